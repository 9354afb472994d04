//! The begin of a session: it opens, it is read from the journal, or it forks another session.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorRef};
use tokio::time::Instant;

use super::run::{ActiveRun, RunAgents, RunCaller};
use super::{SessionActor, State};
use crate::config::RunOverrides;
use crate::journal::SessionLog;
use crate::record::{JournalEntry, Seq};
use crate::runtime::awake_session::{AwakeSession, SessionActivity};
use crate::runtime::error::HostError;
use crate::runtime::host_ref::HostRef;
use crate::runtime::message::SessionMessage;
use crate::runtime::session_start::{SessionOrigin, SessionStart};
use crate::session::{OpenRun, QueuedRun, Session, SessionEffect};

/// A session about to begin, with what others will know of it.
#[derive(Debug)]
pub(in crate::runtime) struct Begun {
    opening: SessionStart,
    link: HostRef,
    log: Arc<SessionLog>,
    live: Arc<SessionActivity>,
}

/// Begins a session.
pub(in crate::runtime) async fn spawn(
    opening: SessionStart,
    link: HostRef,
    supervisor: ActorCell,
) -> Result<Arc<AwakeSession>, HostError> {
    let agent = opening.agent.name.clone();
    let feed_access = opening.publisher.feed_access(&link.shared.journal);
    // A reference to the log does not keep the session's streams open.
    let gate = feed_access.clone();
    let actor: Arc<OnceLock<ActorRef<SessionMessage>>> = Arc::default();
    let journal = Arc::clone(&link.shared.journal);
    let last = match &opening.origin {
        SessionOrigin::Stored(stored) => stored.last,
        SessionOrigin::New { .. } | SessionOrigin::Forked(..) => Seq(0),
    };
    let told = Arc::clone(&actor);
    let log = SessionLog::new(opening.id.clone(), journal, last, move |stored| {
        let failed = stored.as_ref().err().cloned();
        gate.handle_journal(stored);
        if let Some((error, session)) = failed.zip(told.get()) {
            // A session that has ended needs no notice.
            let _ = session.cast(SessionMessage::JournalFailed { error });
        }
    });
    let (log, state) = (Arc::new(log), Arc::new(SessionActivity::default()));
    let begun = Begun { opening, link, log: Arc::clone(&log), live: Arc::clone(&state) };
    let (spawned, _) = Actor::spawn_linked(None, SessionActor, begun, supervisor)
        .await
        .map_err(|_| HostError::ShuttingDown)?;
    let _ = actor.set(spawned.clone());
    if let Some(error) = log.failure() {
        let _ = spawned.cast(SessionMessage::JournalFailed { error });
    }
    Ok(Arc::new(AwakeSession { agent, actor: spawned, feed_access, log, state }))
}

impl State {
    pub(super) fn begin_session(begun: Begun) -> Self {
        let Begun { opening, link, log, live } = begun;
        let SessionStart { id, agent, origin, publisher } = opening;
        let shared = Arc::clone(&link.shared);
        let awake = shared.gauges.awake.increment();
        let (session, stored) = match origin {
            // The messages were checked when the session was requested.
            SessionOrigin::New { messages } => (Session::open(&agent.name, messages), None),
            SessionOrigin::Stored(stored) => {
                (stored.session, Some((stored.last, stored.turn_entries)))
            }
            SessionOrigin::Forked(stored, entries) => {
                log.import(entries);
                (stored.session, Some((stored.last, stored.turn_entries)))
            }
        };
        let first_of_turn = |(last, entries): &(Seq, Vec<JournalEntry>)| {
            entries.first().map_or(*last, |first| Seq(first.seq.0.saturating_sub(1)))
        };
        let mut state = Self {
            id,
            session,
            agents: RunAgents::new(agent),
            shared,
            link,
            publisher,
            log,
            started: Instant::now(),
            run: None,
            actors: None,
            callers: HashMap::new(),
            slot: None,
            stored_turn_after: stored.as_ref().map_or(Seq(0), first_of_turn),
            epoch: 0,
            lingering: HashSet::new(),
            live,
            closers: Vec::new(),
            snapshot_replies: Vec::new(),
            _awake: awake,
        };
        state.live.touched_ms.store(state.shared.clock_ms(), Ordering::Relaxed);
        if let Some((_, entries)) = stored {
            state.log.prepend_recent(entries);
        }
        state.count_queued();
        state.live.running.store(state.session.run().is_some(), Ordering::Release);
        let agents = state.agents.clone();
        let rules_of = |overrides: &RunOverrides| agents.rules(overrides);
        while let Some(SessionEffect::Record(batch)) = state.session.poll(Duration::ZERO, &rules_of)
        {
            state.append(batch);
        }
        state
    }

    /// Counts the runs that wait in the queue of a stored session. No caller waits for them.
    fn count_queued(&mut self) {
        let queued = self.session.queue().map(|QueuedRun { run_id, .. }| {
            let counted = Some(self.shared.gauges.queued.increment());
            (run_id.clone(), RunCaller { report: None, _counted: counted })
        });
        self.callers = queued.collect();
    }

    /// Takes a place among the host's runs, after the session was resumed.
    pub(super) fn resumed(&mut self) {
        self.shared.held.lock().remove(&self.id);
        // Runs that were accepted once are not refused.
        self.slot = Some(self.shared.gauges.runs.increment());
        let now = self.now();
        let Some(run) = self.session.run() else { return };
        let OpenRun { id, overrides, trace, began, .. } = run.clone();
        let elapsed = run.elapsed(now);
        self.agents.use_for(&overrides);
        let trace = self.begin_trace(&id, trace, began, elapsed, None);
        let has_failed = self.shared.unwritten.lock().remove(&id).is_some();
        self.run = Some(Box::new(ActiveRun::new(id, trace, self.stored_turn_after, None)));
        self.live.running.store(true, Ordering::Release);
        self.shared.update_counts();
        if has_failed {
            self.give_up("journal_failed", "the journal could not be written");
        }
    }
}
