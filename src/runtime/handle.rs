//! A session as its users hold it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use ractor::rpc::CallResult;
use ractor::{ActorRef, RpcReplyPort};
use serde::Serialize;
use tokio::sync::oneshot;

use super::error::HostError;
use super::ids;
use super::message::{RunAccepted, SessionMessage};
use super::publish::Listeners;
use super::report::RunReport;
use super::request::RunRequest;
use super::snapshot::SessionSnapshot;
use super::watch::Watch;
use crate::event::EventId;
use crate::record::{Seq, StopMode};
use crate::telemetry::Subscription;
use crate::turn::Decision;
use crate::types::{CallKey, Content, RunId, SessionId, SessionState};

/// How often a decision is handed in whose taker dies.
const DECIDE_TRIES: u32 = 100;

/// How long is waited between.
const DECIDE_AGAIN: Duration = Duration::from_millis(10);

/// A session of a host. Cloning is cheap; dropping closes nothing.
#[derive(Clone)]
pub struct SessionHandle {
    inner: Arc<Inner>,
}

struct Inner {
    id: SessionId,
    agent: String,
    running: Arc<AtomicBool>,
    listeners: Listeners,
    actor: ActorRef<SessionMessage>,
}

impl SessionHandle {
    pub(super) fn new(
        id: SessionId,
        agent: String,
        running: Arc<AtomicBool>,
        listeners: Listeners,
        actor: ActorRef<SessionMessage>,
    ) -> Self {
        Self { inner: Arc::new(Inner { id, agent, running, listeners, actor }) }
    }

    /// The session's id.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.inner.id
    }

    /// The agent's name.
    #[must_use]
    pub fn agent(&self) -> &str {
        &self.inner.agent
    }

    /// What the session is doing.
    #[must_use]
    pub fn state(&self) -> SessionState {
        if self.inner.running.load(Ordering::Acquire) {
            SessionState::Running
        } else {
            SessionState::Idle
        }
    }

    /// Begins a run with a user's input, or with more than that: see [`RunRequest`].
    ///
    /// # Errors
    /// When the run asks for more than its agent may have, when the session has a run already (and
    /// the request does not wait, or too many do) or is closed, and when the host is full or
    /// shutting down.
    pub async fn start_run(&self, request: impl Into<RunRequest>) -> Result<StartedRun, HostError> {
        let request = request.into();
        let run_id = ids::run_id();
        // Before the run begins, so that none of its events is missed.
        let events = self.inner.listeners.subscribe_to(&run_id);
        let id = run_id.clone();
        let RunAccepted { seq, report } =
            self.ask(|reply| SessionMessage::StartRun { id, request, reply }).await??;
        Ok(StartedRun { run_id, seq, events, report: ReportFuture { report } })
    }

    /// Begins a run and waits for its end.
    ///
    /// # Errors
    /// As [`Self::start_run`], and when the session is closed meanwhile.
    pub async fn run(&self, request: impl Into<RunRequest>) -> Result<RunReport, HostError> {
        let StartedRun { events, report, .. } = self.start_run(request).await?;
        drop(events);
        report.await
    }

    /// Listens to the session's events from now on, until the session ends.
    pub fn subscribe(&self) -> Subscription {
        self.inner.listeners.subscribe()
    }

    /// Shows the session from right behind a place: what came after it, then what comes. Nothing
    /// is shown twice and nothing is left out; text may come in larger pieces than it did. The
    /// first place is 0.0. A place in an attempt whose text is void by now goes on behind that.
    ///
    /// # Errors
    /// When nothing with that id can have been shown, or the session is closed.
    pub fn watch(&self, after: EventId) -> Result<Watch, HostError> {
        Watch::from(&self.inner.listeners, self.id(), self.agent(), after)
    }

    /// Shows the session from now on, beginning with the states of the calls that are open.
    ///
    /// # Errors
    /// When the session is closed.
    pub fn watch_from_now(&self) -> Result<Watch, HostError> {
        Watch::from_now(&self.inner.listeners)
    }

    /// Says something to the run that goes on: a user's message behind the running turn. A run
    /// that would have ended with this turn takes another, unless it is stopped or its limits are
    /// used up; then the message stands at its end. Returns the place of its record.
    ///
    /// # Errors
    /// When no run goes on, the input is empty, too many inputs wait, or the session is closed.
    pub async fn steer(&self, input: impl Into<Content>) -> Result<Seq, HostError> {
        let input = input.into();
        self.ask(|reply| SessionMessage::Steer { input, reply }).await?
    }

    /// Ends the run that goes on, if there is one. Returns when the session has heard it.
    ///
    /// # Errors
    /// When the session is closed.
    pub async fn stop(&self, mode: StopMode) -> Result<(), HostError> {
        self.ask(|reply| SessionMessage::Stop { mode, reply }).await
    }

    /// Decides about a call that waits for people. The first decision stands; the same again is
    /// no error. Returns when the decision is durable.
    ///
    /// # Errors
    /// When nothing is asked about the call, the decision is about other arguments, it was decided
    /// otherwise before, or the session is closed.
    pub async fn decide(&self, key: CallKey, decision: Decision) -> Result<(), HostError> {
        for _ in 0..DECIDE_TRIES {
            let decision = decision.clone();
            let ask = |reply| SessionMessage::Decide { key, decision, reply };
            match self.inner.actor.call(ask, None).await {
                Ok(CallResult::Success(taken)) => return Ok(taken?),
                // The owner of the turn died with it in hand, and is being replaced. If it was
                // taken before, the same again is no error.
                Ok(CallResult::SenderError) => tokio::time::sleep(DECIDE_AGAIN).await,
                Ok(CallResult::Timeout) | Err(_) => break,
            }
        }
        Err(HostError::SessionClosed)
    }

    /// What the session holds.
    ///
    /// # Errors
    /// When the session is closed.
    pub async fn snapshot(&self) -> Result<SessionSnapshot, HostError> {
        self.ask(|reply| SessionMessage::Snapshot { reply }).await
    }

    /// Stops the run, answers what is open, closes the session and forgets its records. Closing a
    /// session that is closed is no error.
    ///
    /// # Errors
    /// None at present.
    pub async fn close(&self) -> Result<(), HostError> {
        match self.ask(|reply| SessionMessage::Close { reply }).await {
            Ok(()) | Err(HostError::SessionClosed) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn actor(&self) -> &ActorRef<SessionMessage> {
        &self.inner.actor
    }

    pub(super) async fn ask<T: Send + 'static>(
        &self,
        message: impl FnOnce(RpcReplyPort<T>) -> SessionMessage,
    ) -> Result<T, HostError> {
        match self.inner.actor.call(message, None).await {
            Ok(CallResult::Success(answer)) => Ok(answer),
            Ok(CallResult::Timeout | CallResult::SenderError) | Err(_) => {
                Err(HostError::SessionClosed)
            }
        }
    }
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionHandle")
            .field("id", &self.inner.id)
            .field("agent", &self.inner.agent)
            .finish_non_exhaustive()
    }
}

/// A run that has begun, or waits for the one before it to end.
#[derive(Debug)]
pub struct StartedRun {
    /// The run.
    pub run_id: RunId,
    /// The place of its first record.
    pub seq: Seq,
    /// The run's events, from its first. They end with the session, not with the run.
    pub events: Subscription,
    /// Its report, once it is over. Dropping it stops nothing. A run that has to wait and is not
    /// begun, because the session is closed or the host shut down before, has none.
    pub report: ReportFuture,
}

/// Waits for a run's report.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct ReportFuture {
    report: oneshot::Receiver<Result<RunReport, HostError>>,
}

impl Future for ReportFuture {
    type Output = Result<RunReport, HostError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let report = Pin::new(&mut self.report).poll(context);
        report.map(|told| told.unwrap_or(Err(HostError::SessionClosed)))
    }
}

/// A session in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionSummary {
    /// Its id.
    pub id: SessionId,
    /// Its agent's name.
    pub agent: String,
    /// What it is doing.
    pub state: SessionState,
}

impl From<&SessionHandle> for SessionSummary {
    fn from(session: &SessionHandle) -> Self {
        let agent = session.agent().to_owned();
        Self { id: session.id().clone(), agent, state: session.state() }
    }
}
