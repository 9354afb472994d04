//! Requests about the past of a session: its records, reports of runs, decisions about past turns, forks,
//! and deletion.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;

use super::agent_trees;
use super::deletions::Deletion;
use super::error::HostError;
use super::handle::SessionHandle;
use super::host_ref::HostRef;
use super::ids::CALLER;
use super::message::{HostMessage, RunAccepted, SessionMessage};
use super::publish::Publisher;
use super::report::{CallReport, Messages, RunReport};
use super::session_start::{SessionOrigin, SessionStart};
use super::task;
use crate::journal::{Breach, JournalError, SessionLog, open_run_id, unix_ms, verify_and_drop};
use crate::telemetry::FeedItem;
use callsheet_machines::session::{PastRun, StoredSession, past_run};
use callsheet_machines::turn::{ApprovalDecision, check_repeated_decision};
use callsheet_values::record::{EventProjector, JournalEntry, Record, Seq};
use callsheet_values::types::{
    Author, CallKey, FinishReason, RunId, SessionId, SessionState, is_child_session,
};

/// Size from which a page of records ends.
const PAGE_BYTES: u64 = 1 << 20;

impl SessionHandle {
    /// Returns the stored records after a position, in order.
    ///
    /// # Errors
    /// If they cannot be read, or the host shuts down.
    pub async fn records(&self, after: Seq) -> Result<Vec<JournalEntry>, HostError> {
        Ok(self.host_ref.shared.journal.read(self.id(), after).await?)
    }

    /// Returns at most `limit` stored records after a position, fewer if they are large, and true if there
    /// are more. Does not wake the session.
    ///
    /// # Errors
    /// If there is no such session, or its records cannot be read.
    pub async fn record_page(
        &self,
        after: Seq,
        limit: usize,
    ) -> Result<(Vec<JournalEntry>, bool), HostError> {
        let journal = &self.host_ref.shared.journal;
        if journal.find(self.id()).await?.is_none() {
            return Err(HostError::NoSuchSession(self.id().clone()));
        }
        let (mut page, mut bytes) = (Vec::<JournalEntry>::new(), 0);
        let (mut position, mut count) = (after, 1);
        loop {
            // One more than is returned tells whether there are more.
            let wanted = count.min(limit.saturating_add(1) - page.len());
            let entries = journal.read_some(self.id(), position, wanted).await?;
            let is_last = entries.len() < wanted;
            for entry in entries {
                if page.len() == limit || (bytes >= PAGE_BYTES && !page.is_empty()) {
                    return Ok((page, true));
                }
                position = entry.seq;
                bytes += entry.approximate_bytes();
                page.push(entry);
            }
            if is_last {
                return Ok((page, false));
            }
            // The next records may be larger than these, so the number grows step by step.
            let average = (bytes / page.len().max(1) as u64).max(1);
            let fitting = usize::try_from(PAGE_BYTES / average).unwrap_or(usize::MAX);
            count = fitting.clamp(1, 2 * count);
        }
    }

    /// Checks the stored records. Does not wake the session.
    ///
    /// # Errors
    /// If there is no such session, or its records cannot be read.
    pub async fn verify(&self) -> Result<SessionCheck, HostError> {
        let id = self.id().clone();
        // The semaphore is never closed.
        let verifications = Arc::clone(&self.host_ref.shared.history.verifications);
        let permit = verifications.acquire_owned().await;
        let check = move |entries: Vec<JournalEntry>| {
            let _permit = permit;
            if entries.is_empty() {
                return Err(HostError::NoSuchSession(id));
            }
            let (records, open_run) = (entries.len(), open_run_id(&entries).cloned());
            Ok(SessionCheck { records, open_run, breaches: verify_and_drop(&id, entries) })
        };
        self.host_ref.rebuild(self.id(), check).await?
    }
}

/// The result of [`SessionHandle::verify`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionCheck {
    /// The number of records.
    pub records: usize,
    /// The run that has not ended.
    pub open_run: Option<RunId>,
    /// The invariants that the records breach.
    pub breaches: Vec<Breach>,
}

/// Returns the report of a run when it is over and durable. The session delivers it to the caller that
/// started the run.
pub(super) async fn await_report(
    session: SessionHandle,
    RunAccepted { id: run, seq, report_receiver: receiver }: RunAccepted,
    log: Arc<SessionLog>,
) -> Result<RunReport, HostError> {
    let Some(receiver) = receiver else {
        // Until the record by which the run was reopened is stored, the journal has its earlier end.
        log.wait_durable(seq).await?;
        // Boxed: this future is kept for as long as the run takes, and rarely reads the journal.
        return Box::pin(report(session, run)).await;
    };
    let (report, upto) =
        receiver.await.unwrap_or_else(|_| Err(session.host_ref.shared.unavailable_error()))?;
    log.wait_durable(upto).await?;
    match report {
        Some(report) => Ok(report),
        None => Box::pin(self::report(session, run)).await,
    }
}

/// Waits until a run has ended, and returns its report from the journal.
pub(super) async fn report(session: SessionHandle, run: RunId) -> Result<RunReport, HostError> {
    loop {
        // Subscribes before reading, so that the run's end is not missed.
        let mut events = session.subscribe_to(&run).await?;
        if let Some(report) = read_finished_report(&session.host_ref, session.id(), &run).await? {
            return Ok(report);
        }
        loop {
            match events.next().await {
                Some(FeedItem::Event(published)) if !published.event.is_last_of_run() => {}
                Some(_) => break,
                None => return Err(session.host_ref.shared.unavailable_error()),
            }
        }
    }
}

/// Returns the report of a run, if the run has ended.
pub(super) async fn read_finished_report(
    host_ref: &HostRef,
    id: &SessionId,
    run: &RunId,
) -> Result<Option<RunReport>, HostError> {
    let (shared, of, run) = (Arc::clone(&host_ref.shared), id.clone(), run.clone());
    let past = host_ref.rebuild(id, move |entries| {
        let is_removal = |entry: &JournalEntry| matches!(&entry.record, Record::InputRemoved { run_id, .. } if *run_id == run);
        if entries.iter().any(is_removal) {
            return Err(HostError::InputRemoved);
        }
        let own = shared.catalog.agents.get(agent_name(&entries, &of)?);
        let session_rules_of = |overrides: &_| {
            own.map(|own| own.with_recorded_overrides(overrides).session_rules())
                .unwrap_or_default()
        };
        past_run(&entries, &run, &session_rules_of)
            .map_err(|error| HostError::Rebuild(error.to_string()))
    });
    Ok(past.await??.map(run_report))
}

fn run_report(past: PastRun) -> RunReport {
    let PastRun {
        id,
        seq: _,
        end,
        text,
        output,
        started_at,
        ended_at,
        error,
        finish_reason,
        stats,
        calls,
        first_message,
        messages,
    } = past;
    let calls = calls
        .into_iter()
        .map(|(usage, result)| CallReport::new(id.clone(), Some(usage), result))
        .collect();
    RunReport {
        run_id: id,
        run_end: end,
        text,
        output,
        finish_reason: finish_reason.as_ref().map(|finish| finish.kind),
        truncated: finish_reason.as_ref().is_some_and(FinishReason::is_truncated),
        refusal: finish_reason.and_then(|finish| finish.refusal),
        error,
        started_at,
        ended_at,
        turns: stats.turns,
        calls,
        stats,
        exact: (&stats).into(),
        messages: Messages { all: messages, first_of_run: first_message },
    }
}

/// Answers a decision about a call that waits for none. Repeating a recorded decision is not an error.
pub(super) async fn check_past_decision(
    session: &SessionHandle,
    key: CallKey,
    decision: ApprovalDecision,
) -> Result<(), HostError> {
    let is_about_call = move |record: &Record| {
        matches!(record, Record::ApprovalAsked { request } if request.call.key == key)
            || matches!(record, Record::ApprovalGiven { key: decided, .. } if *decided == key)
    };
    let entries = session.records_of_turn(key, is_about_call).await?.unwrap_or_default();
    let records = entries.iter().map(|entry| &entry.record);
    Ok(check_repeated_decision(records, key, &decision)?)
}

/// Deletes a session whose slot is reserved for deletion, and its child sessions before it, unless it is known to
/// have none.
pub(super) async fn delete(
    session: &SessionHandle,
    may_have_children: bool,
) -> Result<(), HostError> {
    let (host_ref, id) = (&session.host_ref, session.id());
    let _owned = match host_ref.shared.owner.take(id).await {
        Ok(owned) => owned,
        Err(error) => {
            if matches!(error, HostError::Journal(_)) {
                host_ref.shared.maintenance.add_failed_deletion(id.clone());
            }
            host_ref.shared.end_deletion(id);
            return Err(error);
        }
    };
    if may_have_children {
        // If they cannot be found, then the session cannot be deleted either.
        if let Err(error) = delete_children(host_ref, id).await {
            host_ref.shared.end_deletion(id);
            return Err(error);
        }
    }
    let removed = host_ref.shared.removals.remove(&host_ref.shared.journal, id).await;
    let is_deleted = removed.as_ref().is_ok_and(|removed| removed.was_removed);
    if is_deleted {
        host_ref.shared.index.note_deleted(id);
        // The subscribers are notified before another session can have the id.
        let agent = removed.as_ref().ok().and_then(|removed| removed.agent.clone());
        host_ref.shared.session_states.deleted(id, agent.clone());
        list_deletion(session, agent).await;
    }
    let is_gone = removed.as_ref().is_ok_and(|removed| removed.was_removed || removed.is_repeated);
    let result = removed.and_then(|removed| match removed.result {
        // An unknown session does not wait for the erasure of others.
        Ok(()) | Err(JournalError::NotErased) if !is_gone => {
            Err(HostError::NoSuchSession(id.clone()))
        }
        result => Ok(result?),
    });
    if !is_gone && matches!(result, Err(HostError::Journal(_))) {
        host_ref.shared.maintenance.add_failed_deletion(id.clone());
    }
    host_ref.shared.end_deletion(id);
    host_ref.shared.update_counts();
    if is_deleted {
        let author = session.author().map(Author::as_str);
        tracing::info!(session = id.as_str(), author, "session_deleted");
    }
    result
}

/// Adds a session that was deleted to the list of deletions, unless the host itself has opened it.
async fn list_deletion(session: &SessionHandle, agent: Option<String>) {
    let (shared, id, author) = (&session.host_ref.shared, session.id(), session.author().cloned());
    let is_of_host = is_child_session(id) || agent.as_deref() == Some(CALLER);
    if author.is_some() || !is_of_host {
        let deletion = Deletion::new(id.clone(), agent, unix_ms(), author);
        shared.deletions.add(&shared.journal, deletion).await;
    }
}

fn delete_children<'a>(
    host_ref: &'a HostRef,
    id: &'a SessionId,
) -> BoxFuture<'a, Result<(), HostError>> {
    Box::pin(async move {
        let children = agent_trees::readable_children(&*host_ref.shared.journal, id).await?;
        for child in children {
            // A child may have children of its own.
            SessionHandle::new(child, host_ref.clone()).close().await?;
        }
        Ok(())
    })
}

/// Maximum size of a fork that stays in memory after it is made. A few small requests could otherwise fill
/// the memory with forks of a large session. One whose run still has to end leaves memory after `idle_after`.
const AWAKE_FORK_BYTES_MAX: u64 = 1 << 20;

/// Opens a session with the records of another one up to `at`. A run that is open at that record ends in the new
/// session. The session is opened even if the future is dropped.
pub(super) async fn fork(
    from: &SessionHandle,
    at: Seq,
    id: SessionId,
) -> Result<SessionHandle, HostError> {
    task::to_its_end(fork_reserved(from.clone(), at, id)).await
}

/// Opens a fork, whose id is reserved until it is open.
async fn fork_reserved(
    from: SessionHandle,
    at: Seq,
    id: SessionId,
) -> Result<SessionHandle, HostError> {
    let host_ref = from.host_ref.clone();
    if let Some(awake_session) = host_ref.shared.index.awake(from.id()) {
        awake_session.log.wait_durable(awake_session.log.last_seq()).await?;
    }
    let waited = host_ref.shared.reserve_new(&id)?;
    let opening = read_fork_start(&host_ref, from.id(), at, &id).await;
    let begun = opening.and_then(|opening| {
        let begun = host_ref.actor.cast(HostMessage::Begin(Box::new(opening)));
        begun.map_err(|_| HostError::ShuttingDown)
    });
    if let Err(error) = begun {
        host_ref.shared.index.uncount_new();
        // The error is about the origin. Requests that wait for the fork find that there is no session of its id.
        host_ref.shared.index.release_slot(&id);
        return Err(error);
    }
    // If its start panicked, the copied records may be stored already: the fork stays counted.
    let awake_session = host_ref.wait_until_awake(waited).await?;
    if let Err(error) = awake_session.log.wait_durable(awake_session.log.last_seq()).await {
        host_ref.shared.index.uncount_new();
        return Err(error.into());
    }
    host_ref.shared.session_states.changed(&id, SessionState::Idle);
    if awake_session.log.bytes() > AWAKE_FORK_BYTES_MAX {
        // If the session has ended, no message is needed.
        let _ = awake_session.actor.cast(SessionMessage::Hibernate { idle: Duration::ZERO });
    }
    Ok(SessionHandle::new(id, host_ref))
}

/// Returns the start of the fork `to`: the records of `from` up to `at`, and the session that they rebuild.
async fn read_fork_start(
    host_ref: &HostRef,
    from: &SessionId,
    at: Seq,
    to: &SessionId,
) -> Result<SessionStart, HostError> {
    if host_ref.shared.journal.find(to).await?.is_some() {
        return Err(HostError::SessionExists);
    }
    let (shared, source, new) = (Arc::clone(&host_ref.shared), from.clone(), to.clone());
    let (rebuilt, projector, adopted) = host_ref
        .rebuild(from, move |mut entries| {
            let Some(last) = entries.last().map(|entry| entry.seq) else {
                return Err(HostError::NoSuchSession(source));
            };
            if at.0 == 0 || at > last {
                return Err(HostError::NoSuchRecord { at, last });
            }
            let agent = agent_name(&entries, &source)?;
            let own = shared.catalog.agents.get(agent).cloned();
            let own = own.ok_or_else(|| HostError::AgentGone(agent.to_owned()))?;
            let session_rules_of =
                |overrides: &_| own.with_recorded_overrides(overrides).session_rules();
            let now = unix_ms();
            let rebuilt = StoredSession::fork(&mut entries, source, at, now, &session_rules_of)
                .map_err(|error| HostError::Rebuild(error.to_string()))?;
            let turn = rebuilt.session.turn();
            let projector = EventProjector::after(new, &rebuilt.agent, turn, &entries);
            Ok((rebuilt, projector, entries))
        })
        .await??;
    let agent = host_ref.shared.catalog.agents.get(&rebuilt.agent).cloned();
    let agent = agent.ok_or_else(|| HostError::AgentGone(rebuilt.agent.clone()))?;
    let tools = host_ref.frozen_tools(&agent, &rebuilt.session).await?;
    Ok(SessionStart {
        publisher: Publisher::new(to.clone(), projector, host_ref.shared.telemetry.clone(), Seq(0)),
        owned: host_ref.shared.owner.opened(to),
        id: to.clone(),
        agent,
        tools,
        origin: SessionOrigin::Forked(Box::new(rebuilt), adopted),
    })
}

fn agent_name<'a>(entries: &'a [JournalEntry], id: &SessionId) -> Result<&'a str, HostError> {
    match entries.first().map(|entry| &entry.record) {
        Some(Record::SessionOpened { agent, .. }) => Ok(agent),
        Some(_) | None => Err(HostError::NoSuchSession(id.clone())),
    }
}
