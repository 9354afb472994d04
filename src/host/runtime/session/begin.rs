//! The start of a session actor, for a new, stored or forked session.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ractor::ActorRef;
use tokio::time::Instant;

use super::run::{ActiveRun, RunAgents, RunCaller, SessionActors};
use super::summary::AwaitedSummary;
use super::{Callers, SessionActor, SessionHandler};
use crate::journal::SessionLog;
use crate::runtime::error::HostError;
use crate::runtime::host_ref::HostRef;
use crate::runtime::index::{AwakeSession, SessionActivity};
use crate::runtime::message::{HostMessage, SessionMessage};
use crate::runtime::models::prompt_cache_key;
use crate::runtime::session_start::{SessionOrigin, SessionStart};
use crate::runtime::supervision::spawn_linked;
use callsheet_machines::session::{OpenRun, RunSpec, Session, SessionEffect};
use callsheet_values::config::RunOverrides;
use callsheet_values::record::{JournalEntry, Seq};

/// The arguments of a session actor.
#[derive(Debug)]
pub(in crate::runtime) struct SessionArguments {
    start: SessionStart,
    host_ref: HostRef,
    log: Arc<SessionLog>,
    activity: Arc<SessionActivity>,
}

/// Starts the actor of a session.
pub(in crate::runtime) fn spawn(
    start: SessionStart,
    host_ref: HostRef,
    supervisor: &ActorRef<HostMessage>,
) -> Result<Arc<AwakeSession>, HostError> {
    let agent = start.agent.name.to_string();
    let feed_access = start.publisher.feed_access();
    // This access does not keep the feed alive, so subscribers' streams end with the session.
    let feed_of_log = feed_access.clone();
    let session_ref: Arc<OnceLock<ActorRef<SessionMessage>>> = Arc::default();
    let journal = Arc::clone(&host_ref.shared.journal);
    let (last, bytes) = match &start.origin {
        SessionOrigin::Stored(stored) => (stored.last, stored.bytes),
        SessionOrigin::Forked(stored, _) => (Seq(0), stored.bytes),
        SessionOrigin::New { .. } => (Seq(0), 0),
    };
    let failure_receiver = Arc::clone(&session_ref);
    let log = SessionLog::new(start.id.clone(), journal, last, move |durable| {
        let failed = durable.as_ref().err().cloned();
        feed_of_log.handle_journal(durable);
        if let Some((error, session)) = failed.zip(failure_receiver.get()) {
            // If the session has ended, no message is needed.
            let _ = session.cast(SessionMessage::JournalFailed { error });
        }
    });
    let log = log.with_stored_bytes(bytes);
    let (log, activity) = (Arc::new(log), Arc::new(SessionActivity::of(&start.id)));
    let arguments = SessionArguments {
        start,
        host_ref,
        log: Arc::clone(&log),
        activity: Arc::clone(&activity),
    };
    let spawned = spawn_linked(supervisor, SessionHandler, arguments);
    let spawned = spawned.map_err(|_| HostError::SessionClosed)?;
    let _ = session_ref.set(spawned.clone());
    // The journal may have failed before the listener had the reference.
    if let Some(error) = log.failure() {
        let _ = spawned.cast(SessionMessage::JournalFailed { error });
    }
    Ok(Arc::new(AwakeSession { agent, actor: spawned, feed_access, log, activity }))
}

impl SessionActor {
    pub(super) fn new(arguments: SessionArguments) -> Self {
        let SessionArguments { start, host_ref, log, activity } = arguments;
        let SessionStart { id, agent, tools, origin, owned, publisher } = start;
        let awake = host_ref.shared.gauges.awake.increment();
        let (session, stored) = match origin {
            // The messages were checked when the session was requested.
            SessionOrigin::New { messages, metadata, parent, client_tools } => {
                (Session::open(&agent.name, messages, metadata, parent, client_tools), None)
            }
            SessionOrigin::Stored(stored) => {
                (stored.session, Some((stored.last, stored.turn_entries)))
            }
            SessionOrigin::Forked(stored, entries) => {
                log.import(entries);
                (stored.session, Some((stored.last, stored.turn_entries)))
            }
        };
        let before_turn = |(last, entries): &(Seq, Vec<JournalEntry>)| {
            entries.first().map_or(*last, |first| Seq(first.seq.0.saturating_sub(1)))
        };
        let mut agents = RunAgents::new(agent);
        // The frozen tools of servers. The tool sources below are the program's own.
        if let Some(tools) = tools {
            agents.use_tools(tools);
        }
        agents.read_tool_sources(&id, &host_ref.shared);
        let seq_before_calls = log.last_seq();
        let mut state = Self {
            prompt_cache_key: prompt_cache_key(&id),
            id,
            session,
            agents,
            host_ref,
            publisher,
            log,
            started: Instant::now(),
            run: None,
            actors: SessionActors::default(),
            callers: Callers::default(),
            run_count_guard: None,
            stored_seq_before_turn: stored.as_ref().map_or(Seq(0), before_turn),
            seq_before_calls,
            is_in_inbox: stored.is_some(),
            waits_in_inbox: None,
            last_run_end: 0,
            ended_runs: Vec::new(),
            server_connections: Vec::new(),
            activity,
            summary: AwaitedSummary::default(),
            _awake: awake,
            _owned: owned,
        };
        state.activity.touched_ms.store(state.host_ref.shared.clock_ms(), Ordering::Relaxed);
        if let Some((_, entries)) = stored {
            state.log.prepend_recent(entries);
            state.forget_failures();
        }
        state.update_inbox();
        state.count_queued();
        state.activity.has_open_run.store(state.session.run().is_some(), Ordering::Release);
        let agents = state.agents.clone();
        let rules_of = |overrides: &RunOverrides| agents.rules(overrides);
        // Here the effects are only records: of the opening, or of the formatting of the last run.
        while let Some(SessionEffect::Record(batch)) = state.session.poll(Duration::ZERO, &rules_of)
        {
            state.append(batch);
        }
        if !state.session.client_tools().is_empty() {
            // The context is reported before the first run too.
            let overrides = state.session.with_client_tools(&Arc::default());
            state.agents.use_for(&overrides);
        }
        state
    }

    /// Counts the runs that wait in the queue of a stored session. No caller waits for them.
    fn count_queued(&mut self) {
        let queued = self.session.queue().map(|RunSpec { run_id, .. }| {
            let counted = Some(self.host_ref.shared.gauges.queued_inputs.increment());
            (run_id.clone(), RunCaller { report: None, _counted: counted })
        });
        self.callers.runs = queued.collect();
    }

    /// Forgets the failed runs of this session that are not open in the journal. A queued run whose `RunStarted` could
    /// not be stored is one of these: its caller has received the journal's error, but the journal has it in the
    /// queue, so it runs now.
    fn forget_failures(&self) {
        let open = self.session.run().map(|run| &run.id);
        self.host_ref.shared.maintenance.forget_failures(&self.id, open);
    }

    /// Continues a session that was suspended, with its run or else its queue, and counts that as a run of the host.
    pub(super) fn continue_resumed_session(&mut self) {
        self.host_ref.shared.index.note_resumed(&self.id);
        self.host_ref.shared.release_quarantine(&self.id);
        // The limit does not apply, because the run was accepted before.
        let gauges = &self.host_ref.shared.gauges;
        let is_child_run = self.session.run().is_some_and(|run| self.is_child_run(&run.id));
        let runs = if is_child_run { &gauges.child_runs } else { &gauges.runs };
        self.run_count_guard = Some(runs.increment());
        let now = self.now();
        // Without a run, the machine starts the first one of the queue.
        let Some(run) = self.session.run() else { return };
        let OpenRun { id, overrides, trace, began, .. } = run.clone();
        let elapsed = run.elapsed(now);
        self.agents.use_for(&overrides);
        let trace = self.begin_trace(&id, trace, began, elapsed, None);
        let unstored = self.host_ref.shared.maintenance.remove_unrecorded_failure(&id);
        let extensions = self.host_ref.shared.extensions.for_run(&self.id, &id);
        let run = ActiveRun::new(id, trace, extensions, self.stored_seq_before_turn, None);
        self.run = Some(Box::new(run));
        self.activity.has_open_run.store(true, Ordering::Release);
        self.host_ref.shared.update_counts();
        if unstored.is_some() {
            self.give_up("journal_failed", "the journal could not be written", unstored);
        }
    }
}
