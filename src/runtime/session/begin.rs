//! How a session begins: opened, read from the journal, or as another future of another one.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use ractor::{Actor, ActorCell, ActorRef};

use super::inputs::QueuedRun;
use super::run::NewRun;
use super::{Closing, SessionActor, State};
use crate::context::{History, InitialHistory, Variables};
use crate::journal::{SessionLog, Urgency};
use crate::record::{Record, Seq, StopMode};
use crate::runtime::awake_session::{AwakeSession, SessionActivity};
use crate::runtime::error::HostError;
use crate::runtime::host_ref::HostRef;
use crate::runtime::message::SessionMessage;
use crate::runtime::session_start::{SessionOrigin, SessionStart};
use crate::session::{Continue, IdempotencyKeys, Rebuilt};
use crate::types::Usage;

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
    let listeners = opening.publisher.listeners(&link.shared.journal);
    // Whoever holds on to the log does not keep the session's streams open.
    let gate = listeners.clone();
    let actor: Arc<OnceLock<ActorRef<SessionMessage>>> = Arc::default();
    let journal = Arc::clone(&link.shared.journal);
    let last = match &opening.origin {
        SessionOrigin::Rebuilt(rebuilt) => rebuilt.last,
        SessionOrigin::New { .. } | SessionOrigin::Forked(..) => Seq(0),
    };
    let told = Arc::clone(&actor);
    let log = SessionLog::new(opening.id.clone(), journal, last, move |stored| {
        let failed = stored.as_ref().err().cloned();
        gate.handle_journal(stored);
        if let Some((error, session)) = failed.zip(told.get()) {
            // One that is gone has nobody left to tell.
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
    Ok(Arc::new(AwakeSession { agent, actor: spawned, listeners, log, state }))
}

impl State {
    pub(super) fn begin_session(begun: Begun) -> Self {
        let Begun { opening, link, log, live } = begun;
        let SessionStart { id, agent, origin, publisher } = opening;
        let shared = Arc::clone(&link.shared);
        let awake = shared.gauges.awake.increment();
        let mut state = Self {
            id,
            run_agent: Arc::clone(&agent),
            agent,
            shared,
            link,
            publisher,
            log,
            history: History::new(),
            variables: Variables::default(),
            usage: Usage::default(),
            turn: 0,
            run: None,
            actors: None,
            suspended: None,
            queue: std::collections::VecDeque::new(),
            next: None,
            requests: IdempotencyKeys::default(),
            epoch: 0,
            lingering: HashSet::new(),
            live,
            close: Closing::No,
            looking: Vec::new(),
            _awake: awake,
        };
        state.touch();
        match origin {
            SessionOrigin::New { messages } => {
                // They were checked when the session was asked for.
                state.history =
                    History::from_initial(InitialHistory::parse(&messages).unwrap_or_default());
                let agent = state.agent.name.clone();
                let opened = Record::SessionOpened { agent, messages };
                let (last, _) = state.log.append(vec![opened], Urgency::Lazy, || ());
                // No turn goes on from there.
                state.log.forget_until(last);
            }
            SessionOrigin::Rebuilt(rebuilt) => state.take_over(*rebuilt),
            SessionOrigin::Forked(mut rebuilt, entries) => {
                state.log.adopt(entries);
                rebuilt.queue.clear();
                if let Some(run) = &mut rebuilt.run {
                    run.stops = Some(StopMode::Now);
                }
                state.take_over(*rebuilt);
            }
        }
        state
    }

    /// Takes over what the journal says.
    fn take_over(&mut self, rebuilt: Rebuilt) {
        let Rebuilt { history, variables, usage, turn, queue, requests, run, .. } = rebuilt;
        self.history = history;
        self.variables = variables;
        self.usage = usage;
        self.turn = turn;
        self.requests = requests;
        for waits in queue {
            let agent = self.agent.as_it_was(&waits.overrides);
            let run = NewRun {
                id: waits.run_id,
                input: waits.input,
                overrides: waits.overrides,
                request: None,
                trace: waits.trace,
                agent,
                report: None,
            };
            self.queue.push_back(QueuedRun::new(run, &self.shared));
        }
        if let Some(run) = run {
            if let Continue::Turn { entries, .. } = &run.next {
                self.log.remember(entries.iter().cloned());
            }
            self.live.running.store(true, Ordering::Release);
            self.suspended = Some(Box::new(run));
        }
    }

    /// Goes on with what the journal says was going on, unless somebody has to ask for that.
    pub(super) async fn go_on(&mut self, myself: &ActorRef<SessionMessage>) {
        let is_asked = self.suspended.as_ref().is_some_and(|run| run.stops.is_some());
        // One that was only asleep was interrupted by nothing.
        let is_held = self.shared.held.lock().contains(&self.id);
        // Inputs that only wait are no unfinished run.
        if !is_held || is_asked || self.suspended.is_none() {
            self.go_on_now(myself).await;
        }
    }

    /// The same, asked by somebody.
    pub(super) async fn resume(
        &mut self,
        myself: &ActorRef<SessionMessage>,
    ) -> Result<Seq, HostError> {
        if self.suspended.is_none() {
            return Err(HostError::NotSuspended);
        }
        self.go_on_now(myself).await;
        Ok(self.log.last())
    }

    /// Somebody asks for what needs the run.
    pub(super) async fn go_on_if_suspended(&mut self, myself: &ActorRef<SessionMessage>) {
        if self.suspended.is_some() {
            self.go_on_now(myself).await;
        }
    }

    async fn go_on_now(&mut self, myself: &ActorRef<SessionMessage>) {
        if self.shared.is_closing() {
            // It goes on when the next host starts.
            return;
        }
        self.shared.held.lock().remove(&self.id);
        // FairSemaphore of runs that were accepted once are not refused.
        let place = self.shared.gauges.runs.increment();
        match self.suspended.take() {
            Some(run) => Box::pin(self.resume_run(myself, *run, place)).await,
            None if self.run.is_none() && self.next.is_none() => self.hand_on(place),
            None => {}
        }
    }
}
