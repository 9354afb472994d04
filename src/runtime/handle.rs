//! A session as its users hold it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use ractor::rpc::CallResult;

use super::awake_session::AwakeSession;
use super::error::HostError;
use super::host_ref::{HostRef, TRIES};
use super::ids;
use super::message::{RunAccepted, SessionMessage};
use super::report::RunReport;
use super::request::RunRequest;
use super::session_events::SessionEvents;
use super::snapshot::SessionSnapshot;
use super::stored_sessions;
use crate::event::EventId;
use crate::journal::SessionLog;
use crate::record::{RequestKey, Seq, StopMode};
use crate::telemetry::Subscription;
use crate::turn::{ApprovalDecision, ApprovalError};
use crate::types::{CallKey, Content, RunId, SessionId, SessionState};

/// How often a decision is handed in whose taker dies.
const DECIDE_TRIES: u32 = 100;

/// How long is waited between.
const DECIDE_AGAIN: Duration = Duration::from_millis(10);

/// A session of a host, awake or asleep: whatever it is asked wakes it. Cloning is cheap; dropping
/// closes nothing.
///
/// Whatever is acknowledged is durable by then, as far as the journal's engine goes.
#[derive(Clone)]
pub struct SessionHandle {
    id: SessionId,
    pub(super) link: HostRef,
}

impl SessionHandle {
    pub(super) fn new(id: SessionId, link: HostRef) -> Self {
        Self { id, link }
    }

    /// The session's id.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The agent's name.
    ///
    /// # Errors
    /// When there is no such session.
    pub async fn agent(&self) -> Result<String, HostError> {
        Ok(self.link.live(&self.id).await?.agent.clone())
    }

    /// What the session is doing, as far as that is known without waking it.
    #[must_use]
    pub fn state(&self) -> SessionState {
        match self.link.shared.awake(&self.id) {
            Some(live) if live.state.running.load(Ordering::Acquire) => SessionState::Running,
            Some(_) => SessionState::Idle,
            None => SessionState::Hibernated,
        }
    }

    /// Begins a run with a user's input, or with more than that: see [`RunRequest`]. One whose
    /// [`RunRequest::request`] was seen before begins nothing: it is the run of then.
    ///
    /// # Errors
    /// When the run asks for more than its agent may have, when the session has a run already (and
    /// the request does not wait, or too many do) or is closed, and when the host is full or
    /// shutting down.
    pub async fn start_run(&self, request: impl Into<RunRequest>) -> Result<StartedRun, HostError> {
        let request = request.into();
        let new = ids::run_id();
        // Before the run begins, so that none of its events is missed.
        let (mut events, live) = self.enter(|live| live.listeners.subscribe_to(&new)).await?;
        let (RunAccepted { id, seq, report }, taker) = self.accept(&new, &request).await?;
        let are_whole = Arc::ptr_eq(&live, &taker) && id == new;
        if !are_whole {
            events = self.subscribe_to(&id).await?;
        }
        let log = Arc::clone(&taker.log);
        let told = stored_sessions::told(self.clone(), id.clone(), report, Arc::clone(&log));
        let report = ReportFuture::new(told);
        Ok(StartedRun { run_id: id, seq, are_whole, events, report, log })
    }

    /// Begins a run and waits for its end.
    ///
    /// # Errors
    /// As [`Self::start_run`], and when the session is closed meanwhile.
    pub async fn run(&self, request: impl Into<RunRequest>) -> Result<RunReport, HostError> {
        // Nobody hears its events for the sake of this.
        let (accepted, taker) = self.accept(&ids::run_id(), &request.into()).await?;
        let RunAccepted { id, seq: _, report } = accepted;
        stored_sessions::told(self.clone(), id, report, Arc::clone(&taker.log)).await
    }

    /// Has the session begin a run, or take it for the one of then. Says who has taken it.
    async fn accept(
        &self,
        new: &RunId,
        request: &RunRequest,
    ) -> Result<(RunAccepted, Arc<AwakeSession>), HostError> {
        let ask = |reply| {
            let (id, request) = (new.clone(), Box::new(request.clone()));
            SessionMessage::StartRun { id, request, reply }
        };
        let (accepted, taker) = self.link.ask(&self.id, ask).await?;
        Ok((accepted?, taker))
    }

    /// Listens to the session's events from now on, until the session ends. One that is listened
    /// to does not fall asleep.
    ///
    /// # Errors
    /// When there is no such session.
    pub async fn subscribe(&self) -> Result<Subscription, HostError> {
        Ok(self.enter(|live| live.listeners.subscribe()).await?.0)
    }

    /// The same of one run alone.
    pub(super) async fn subscribe_to(&self, run: &RunId) -> Result<Subscription, HostError> {
        Ok(self.enter(|live| live.listeners.subscribe_to(run)).await?.0)
    }

    /// Comes in to the session, awake: `enter` gives nothing while it falls asleep.
    async fn enter<T>(
        &self,
        enter: impl Fn(&AwakeSession) -> Option<T>,
    ) -> Result<(T, Arc<AwakeSession>), HostError> {
        for _ in 0..TRIES {
            let live = self.link.live(&self.id).await?;
            if let Some(entered) = enter(&live) {
                return Ok((entered, live));
            }
            tokio::task::yield_now().await;
        }
        Err(self.link.shared.gone())
    }

    /// Shows the session from right behind a place: what came after it, then what comes. Nothing
    /// is shown twice and nothing is left out; text may come in larger pieces than it did. The
    /// first place is 0.0. A place in an attempt whose text is void by now goes on behind that.
    ///
    /// # Errors
    /// When nothing with that id can have been shown, or the session is closed.
    pub async fn watch(&self, after: EventId) -> Result<SessionEvents, HostError> {
        let from = |live: &AwakeSession| {
            SessionEvents::from(&live.listeners, &self.id, &live.agent, after)
        };
        self.enter(from).await?.0
    }

    /// Shows a run from its first record on, whose place is `seq`. It goes on behind the run.
    ///
    /// # Errors
    /// As [`Self::watch`].
    pub async fn watch_run(&self, run: RunId, seq: Seq) -> Result<SessionEvents, HostError> {
        let before = EventId { seq: Seq(seq.0.saturating_sub(1)), bytes: 0 };
        Ok(self.watch(before).await?.of_run(run))
    }

    /// Shows the session from now on, beginning with the states of the calls that are open.
    ///
    /// # Errors
    /// When the session is closed.
    pub async fn watch_from_now(&self) -> Result<SessionEvents, HostError> {
        Ok(self.enter(|live| SessionEvents::from_now(&live.listeners)).await?.0)
    }

    /// Says something to the run that goes on: a user's message behind the running turn. A run
    /// that would have ended with this turn takes another, unless it is stopped or its limits are
    /// used up; then the message stands at its end. Returns the place of its record.
    ///
    /// # Errors
    /// When no run goes on, the input is empty, too many inputs wait, or the session is closed.
    pub async fn steer(&self, input: impl Into<Content>) -> Result<Seq, HostError> {
        self.steer_by(input, None).await
    }

    /// The same, brought by a client's request: that request again says nothing, and gets the same
    /// answer.
    ///
    /// # Errors
    /// As [`Self::steer`], and when the request's key was used for another one.
    pub async fn steer_by(
        &self,
        input: impl Into<Content>,
        request: Option<RequestKey>,
    ) -> Result<Seq, HostError> {
        let input = input.into();
        let steer = |reply| {
            let (input, request) = (input.clone(), request.clone());
            SessionMessage::Steer { input, request, reply }
        };
        let (seq, live) = self.link.ask(&self.id, steer).await?;
        self.stored(seq?, &live).await
    }

    /// Ends the run that goes on, if there is one. Returns when the session has heard it.
    ///
    /// # Errors
    /// When the session is closed.
    pub async fn stop(&self, mode: StopMode) -> Result<(), HostError> {
        let stop = |reply| SessionMessage::Stop { mode, reply };
        let (seq, live) = self.link.ask(&self.id, stop).await?;
        self.stored(seq, &live).await.map(drop)
    }

    /// Lets a run go on that was interrupted by the end of its host and waits for that, where the
    /// journal's `resume` is `manual`. Returns the place of the session's last record.
    ///
    /// # Errors
    /// When none waits, or the session is closed.
    pub async fn resume(&self) -> Result<Seq, HostError> {
        let resume = |reply| SessionMessage::Resume { reply };
        self.link.ask(&self.id, resume).await?.0
    }

    /// Decides about a call that waits for people. The first decision stands; the same again is
    /// no error. Returns when the decision is durable.
    ///
    /// # Errors
    /// When nothing is asked about the call, the decision is about other arguments, it was decided
    /// otherwise before, or the session is closed.
    pub async fn decide(&self, key: CallKey, decision: ApprovalDecision) -> Result<(), HostError> {
        for _ in 0..DECIDE_TRIES {
            let live = self.link.live(&self.id).await?;
            let decision = decision.clone();
            let ask = |reply| SessionMessage::Decide { key, decision: decision.clone(), reply };
            match live.actor.call(ask, None).await {
                Ok(CallResult::Success(Err(ApprovalError::NotAsked))) => {
                    // It may have been about a turn that is over.
                    return stored_sessions::decided(self, key, decision).await;
                }
                Ok(CallResult::Success(taken)) => {
                    taken?;
                    return self.stored(live.log.last(), &live).await.map(drop);
                }
                // The owner of the turn died with it in hand, and is being replaced. If it was
                // taken before, the same again is no error.
                Ok(CallResult::SenderError) => tokio::time::sleep(DECIDE_AGAIN).await,
                Ok(CallResult::Timeout) | Err(_) => {
                    if !live.state.leaving.load(Ordering::Acquire) {
                        break;
                    }
                }
            }
        }
        Err(self.link.shared.gone())
    }

    /// What the session holds, durable or not.
    ///
    /// # Errors
    /// When the session is closed.
    pub async fn snapshot(&self) -> Result<SessionSnapshot, HostError> {
        let snapshot = |reply| SessionMessage::Snapshot { reply };
        Ok(self.link.ask(&self.id, snapshot).await?.0)
    }

    /// The same, once it is durable.
    ///
    /// # Errors
    /// When the session is closed, or its records cannot be stored.
    pub async fn stored_snapshot(&self) -> Result<SessionSnapshot, HostError> {
        let snapshot = |reply| SessionMessage::Snapshot { reply };
        let (snapshot, live) = self.link.ask(&self.id, snapshot).await?;
        self.stored(snapshot.seq, &live).await?;
        Ok(snapshot)
    }

    /// Stops the run, answers what is open, closes the session and deletes its records. Closing a
    /// session that is closed is no error.
    ///
    /// # Errors
    /// When the records cannot be deleted.
    pub async fn close(&self) -> Result<(), HostError> {
        match self.delete().await {
            Err(HostError::NoSuchSession(_) | HostError::SessionClosed) => Ok(()),
            deleted => deleted,
        }
    }

    /// The same of a session that is there.
    ///
    /// # Errors
    /// When there is no such session, or its records cannot be deleted.
    pub async fn delete(&self) -> Result<(), HostError> {
        let shared = Arc::clone(&self.link.shared);
        loop {
            let asleep = shared.take_sleeping(vec![self.id.clone()]);
            if !asleep.is_empty() {
                return stored_sessions::delete(&self.link, &self.id).await;
            }
            let close = |reply| SessionMessage::Close { reply };
            match self.link.ask(&self.id, close).await {
                Ok((closed, _)) => return closed,
                // Whatever is wrong with it, it can be deleted.
                Err(HostError::Journal(_) | HostError::Rebuild(_) | HostError::AgentGone(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Lets the session leave memory now, as it does by itself when it has idled for long. One that
    /// has a run, or that somebody listens to, stays; whatever it is asked wakes it.
    pub fn hibernate(&self) {
        if let Some(live) = self.link.shared.awake(&self.id) {
            // One that is gone sleeps.
            let _ = live.actor.cast(SessionMessage::Hibernate { idle: Duration::ZERO });
        }
    }

    async fn stored(&self, seq: Seq, live: &AwakeSession) -> Result<Seq, HostError> {
        let stored = live.log.until_durable(seq).await;
        stored.map(|()| seq).map_err(|error| self.link.shared.not_stored(error))
    }
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionHandle").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A run that has begun, or waits for the one before it to end.
#[derive(Debug)]
pub struct StartedRun {
    /// The run.
    pub run_id: RunId,
    /// The place of its first record.
    pub seq: Seq,
    /// Whether `events` begin with the run's first, which those of a run that was asked for before
    /// do not: whoever wants them all has [`SessionHandle::watch_run`].
    pub are_whole: bool,
    /// The run's events, those from now on at the least. They end with the session, not with the
    /// run.
    pub events: Subscription,
    /// Its report, once it is over. Dropping it stops nothing. A run that has to wait and is not
    /// begun, because the session is closed or the host shut down before, has none.
    pub report: ReportFuture,
    log: Arc<SessionLog>,
}

impl StartedRun {
    /// Waits until it is durable that the run was asked for.
    ///
    /// # Errors
    /// When that cannot be stored.
    pub fn stored(&self) -> impl Future<Output = Result<(), HostError>> + Send + use<> {
        let (log, seq) = (Arc::clone(&self.log), self.seq);
        async move { Ok(log.until_durable(seq).await?) }
    }
}

/// Waits for a run's report.
#[must_use = "a future does nothing unless it is awaited"]
pub struct ReportFuture {
    report: Pin<Box<dyn Future<Output = Result<RunReport, HostError>> + Send>>,
}

impl ReportFuture {
    fn new(report: impl Future<Output = Result<RunReport, HostError>> + Send + 'static) -> Self {
        Self { report: Box::pin(report) }
    }
}

impl fmt::Debug for ReportFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportFuture").finish_non_exhaustive()
    }
}

impl Future for ReportFuture {
    type Output = Result<RunReport, HostError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.report.as_mut().poll(context)
    }
}
