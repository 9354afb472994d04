//! The public handle of a session, the request for a run, and a run that was started.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::Host;
use super::error::HostError;
use super::host_ref::{HostRef, REQUEST_TRIES_MAX};
use super::ids;
use super::index::AwakeSession;
use super::message::{DecisionReply, RunAccepted, SessionMessage};
use super::report::{CompactionReport, ContextReport};
use super::report::{RunReport, TypedRun, TypedRunError};
use super::run_events::{ApprovalHandle, RunEvent};
use super::run_feed::RunFeed;
use super::run_list::{self, ListedRun};
use super::sent_requests::SentRequest;
use super::session_events::{SessionEvents, WatchOptions};
use super::snapshot::SessionSnapshot;
use super::stored_sessions;
use super::supervision::{CallError, call};
use super::task;
use crate::journal::SessionLog;
use crate::telemetry::Subscription;
use callsheet_machines::session::{MessageName, RunSpec};
use callsheet_machines::turn::{ApprovalDecision, ApprovalError};
use callsheet_tools::Extensions;
use callsheet_values::config::{ClientTool, OutputRequest, RunOverrides};
use callsheet_values::event::{EventId, ToolListChange};
use callsheet_values::record::{Record, RequestKey, Seq, StopMode};
use callsheet_values::types::{
    Author, CallKey, Content, Metadata, RunId, SessionId, SessionState, TraceContext, VariableName,
    is_child_session,
};

/// Maximum number of times that a decision, or the result of a client, is sent. It is sent again if the
/// accumulator dies, or its session leaves memory, before it replies.
const DECIDE_TRIES: u32 = 100;

/// The pause before it is sent again, if no reply came.
const DECIDE_AGAIN: Duration = Duration::from_millis(10);

/// A session of a host, awake or hibernating. Requests wake it, except reads of its records and its
/// deletion. Cloning is cheap; dropping a handle closes nothing.
///
/// A method that changes the session returns when the change is stored durably (with the memory journal: when it is
/// in memory). [`Self::start_run`] (see [`StartedRun::wait_durable`]) and [`Self::resume`] return earlier.
#[derive(Clone)]
pub struct SessionHandle {
    id: SessionId,
    author: Option<Author>,
    pub(super) host_ref: HostRef,
}

impl Host {
    /// Returns a handle of a session. Does not check that the session exists; the first request to it
    /// does.
    #[must_use]
    pub fn session(&self, id: &SessionId) -> SessionHandle {
        SessionHandle::new(id.clone(), self.inner.host_ref.clone())
    }
}

impl SessionHandle {
    pub(super) fn new(id: SessionId, host_ref: HostRef) -> Self {
        Self { id, author: None, host_ref }
    }

    /// Makes `author` the author of the requests by this handle and its copies. The records of runs, inputs, stops and
    /// decisions name it, and so does the record of a deletion.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    /// use callsheet::Author;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?.by(Author::new("ada"));
    /// session.run("Say hello.").await?;
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn by(self, author: Author) -> Self {
        Self { author: Some(author), ..self }
    }

    /// Returns the author of the requests by this handle.
    #[must_use]
    pub fn author(&self) -> Option<&Author> {
        self.author.as_ref()
    }

    /// Returns the session's id.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Returns the agent's name, without waking the session.
    ///
    /// # Errors
    /// If there is no such session.
    pub async fn agent(&self) -> Result<String, HostError> {
        if let Some(awake_session) = self.host_ref.shared.index.awake(&self.id) {
            return Ok(awake_session.agent.clone());
        }
        let stored = self.host_ref.shared.journal.find(&self.id).await?;
        let stored = stored.ok_or_else(|| HostError::NoSuchSession(self.id.clone()))?;
        Ok(stored.agent)
    }

    /// Returns the names of the agents from that of the topmost session down to that of this one, without waking the
    /// session: one name, unless it is a child session.
    ///
    /// # Errors
    /// If there is no such session, or the journal cannot be read.
    pub async fn agent_path(&self) -> Result<Vec<Arc<str>>, HostError> {
        if is_child_session(&self.id) {
            let (first, _) = self.record_page(Seq(0), 1).await?;
            if let Some(Record::SessionOpened { parent: Some(parent), .. }) =
                first.first().map(|entry| &entry.record)
            {
                return Ok(parent.agent_path.clone());
            }
        }
        Ok(vec![self.agent().await?.into()])
    }

    /// Returns the session's state, as [`Host::sessions`] does, without waking the session or reading the journal.
    /// It does not show whether the session exists.
    #[must_use]
    pub fn state(&self) -> SessionState {
        let shared = &self.host_ref.shared;
        shared.with_wait(&self.id, shared.index.state(&self.id))
    }

    /// Returns the request of the newest attempt of a turn, if the host has kept it.
    #[must_use]
    pub fn sent_request(&self, turn: u32) -> Option<SentRequest> {
        let all = self.host_ref.shared.sent_requests.as_ref()?;
        all.get(&(self.id.clone(), turn))
    }

    /// Returns whether the session exists, without waking it.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub async fn exists(&self) -> Result<bool, HostError> {
        Ok(self.host_ref.shared.journal.find(&self.id).await?.is_some())
    }

    /// Returns whether the session's host accepts sessions and runs. It does until it shuts down.
    #[must_use]
    pub fn is_host_ready(&self) -> bool {
        self.host_ref.is_ready()
    }

    /// Starts a run with a user's input: see [`RunRequest`]. Idempotent: if the request's idempotency key was seen
    /// before, returns the run that was started then. If the shutdown of an earlier host has interrupted that run, and
    /// it is still the session's last one, it goes on.
    ///
    /// # Errors
    /// If the run asks for more than its agent may have, when the session has a run already (and
    /// the request does not wait, or too many do) or is closed, and when the host is full or
    /// shutting down.
    pub async fn start_run(&self, request: impl Into<RunRequest>) -> Result<StartedRun, HostError> {
        let request = request.into();
        let new = ids::run_id();
        // Subscribes before the run starts, so that no event of it is missed.
        let (mut events, awake_session) = self
            .host_ref
            .with_awake(&self.id, |awake_session| awake_session.feed_access.subscribe_to(&new))
            .await?;
        let (accepted, accepted_by) = self.request_run(&new, request).await?;
        let (id, seq) = (accepted.id.clone(), accepted.seq);
        let events_are_complete = Arc::ptr_eq(&awake_session, &accepted_by) && id == new;
        if !events_are_complete {
            events = self.subscribe_to(&id).await?;
        }
        let log = Arc::clone(&accepted_by.log);
        let report = stored_sessions::await_report(self.clone(), accepted, Arc::clone(&log));
        let report = Box::pin(report);
        let before = EventId { seq: Seq(seq.0.saturating_sub(1)), bytes: 0 };
        let (session, host_ref) = (self.clone(), self.host_ref.clone());
        let of = (self.id.clone(), id.clone());
        let feed = RunFeed::new(host_ref, of, Arc::clone(&log), before, events_are_complete);
        let options = WatchOptions::default();
        Ok(StartedRun {
            run_id: id,
            seq,
            events_are_complete,
            events,
            report,
            session,
            log,
            feed,
            options,
        })
    }

    /// Wakes the session if it is not in memory.
    pub async fn wake(&self) -> Result<(), HostError> {
        self.host_ref.get_or_wake(&self.id).await.map(drop)
    }

    /// Returns the runs of the session, the newest first, also those that wait in its queue. Reads its records, in
    /// parts, without waking it.
    ///
    /// # Errors
    /// If there is no such session, or the journal cannot be read.
    pub async fn runs(&self) -> Result<Vec<ListedRun>, HostError> {
        run_list::runs(&self.host_ref, &self.id).await
    }

    /// Returns the report of a run that has ended and is stored, or `None`.
    pub async fn stored_report(&self, run: &RunId) -> Result<Option<RunReport>, HostError> {
        stored_sessions::read_finished_report(&self.host_ref, &self.id, run).await
    }

    /// Starts a run and waits for its end. A call that needs approval is rejected at once if no person can be
    /// asked: the session's events have no subscriber, the host has no server, and the program has never
    /// looked for [`Self::approvals`]. A program whose tools need approval uses [`Self::start_run`], or answers
    /// [`Self::approvals`] elsewhere.
    ///
    /// # Errors
    /// As [`Self::start_run`], and when the session is closed meanwhile.
    pub async fn run(&self, request: impl Into<RunRequest>) -> Result<RunReport, HostError> {
        // No subscription is made, because only the report is needed.
        // Boxed: this future is kept for as long as the run takes, and the request needs most of its size.
        let id = ids::run_id();
        let (accepted, accepted_by) = Box::pin(self.request_run(&id, request.into())).await?;
        stored_sessions::await_report(self.clone(), accepted, Arc::clone(&accepted_by.log)).await
    }

    /// Starts a run whose answer is a value of the type `T`, and waits for its end. The schema of `T` is the
    /// output schema of the run.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # use callsheet::model::ModelReply;
    /// # use callsheet::testing::FakeModel;
    /// use callsheet::prelude::*;
    ///
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Sum {
    ///     sum: i64,
    /// }
    ///
    /// # let model = FakeModel::replies([ModelReply::text("It is 5."), ModelReply::text("{\"sum\": 5}")]);
    /// # let host = Host::builder().model_source("fake", model).start().await?;
    /// let session = host.open_session("demo").await?;
    /// let run = session.run_typed::<Sum>("Add 2 and 3.").await?;
    /// assert_eq!(run.output.sum, 5);
    /// println!("{} tokens", run.report.stats.output_tokens);
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Self::run`], and if the run ends without an answer that matches the schema.
    pub async fn run_typed<T: JsonSchema + DeserializeOwned>(
        &self,
        request: impl Into<RunRequest>,
    ) -> Result<TypedRun<T>, TypedRunError> {
        let mut request = request.into();
        // The digest does not depend on the form of `T`, which a later version of the program may change.
        request.complete_key();
        let schema = schemars::schema_for!(T).to_value();
        let output = &mut request.overrides.output;
        let mode = output.take().map(|output| output.mode).unwrap_or_default();
        *output = Some(OutputRequest::new(schema).with(|new| new.mode = mode));
        let report = self.run(request).await?;
        report.check_answered()?;
        let value = report.output.as_deref().unwrap_or(&serde_json::Value::Null);
        let output =
            T::deserialize(value).map_err(|error| TypedRunError::Decode(error.to_string()))?;
        Ok(TypedRun { output, report })
    }

    /// Returns the handle of another session of the host, such as a child session.
    #[must_use]
    pub fn other(&self, id: &SessionId) -> Self {
        Self { id: id.clone(), ..self.clone() }
    }

    /// Starts a run, or finds the run that the same request started first. Returns the session that
    /// accepted it.
    pub(super) async fn request_run(
        &self,
        new: &RunId,
        mut request: RunRequest,
    ) -> Result<(RunAccepted, Arc<AwakeSession>), HostError> {
        request.complete_key();
        let RunRequest {
            input,
            overrides,
            metadata,
            into,
            request_key,
            idempotency_key: _,
            trace,
            queue,
            extensions,
        } = request;
        let run = RunSpec {
            run_id: new.clone(),
            input,
            overrides: Arc::new(overrides),
            trace,
            metadata,
            into: into.map(VariableName::from),
            author: self.author.clone(),
        };
        let ask = |reply| SessionMessage::StartRun {
            run: Box::new(run.clone()),
            request_key: request_key.clone(),
            queue,
            extensions: extensions.clone(),
            reply,
        };
        let (accepted, accepted_by) = self.host_ref.request(&self.id, ask).await?;
        Ok((accepted?, accepted_by))
    }

    /// Subscribes to the session's events from now on, until the session ends. A session with
    /// subscribers does not hibernate.
    ///
    /// # Errors
    /// If there is no such session.
    pub async fn subscribe(&self) -> Result<Subscription, HostError> {
        Ok(self
            .host_ref
            .with_awake(&self.id, |awake_session| awake_session.feed_access.subscribe())
            .await?
            .0)
    }

    /// Subscribes to the events of one run.
    pub(super) async fn subscribe_to(&self, run: &RunId) -> Result<Subscription, HostError> {
        Ok(self
            .host_ref
            .with_awake(&self.id, |awake_session| awake_session.feed_access.subscribe_to(run))
            .await?
            .0)
    }

    /// Returns the session's events after a position: the stored ones, then live ones. Nothing is
    /// doubled or omitted; text may come in larger pieces. The first position is 0.0. If the text of
    /// the position's attempt is void by now, the events continue after that text.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// use callsheet::events::{EventId, FeedItem};
    /// use futures::StreamExt as _;
    ///
    /// session.run("Say hello.").await?;
    /// let mut events = session.watch("0.0".parse::<EventId>()?).await?;
    /// if let Some(FeedItem::Event(event)) = events.next().await {
    ///     for public in event.public() {
    ///         println!("{}: {}", public.kind, public.json);
    ///     }
    /// }
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If the id is above that of the session's last durable record, or the session is closed.
    pub async fn watch(&self, after: EventId) -> Result<SessionEvents, HostError> {
        self.watch_with(Some(after), WatchOptions::default()).await
    }

    /// Returns the session's events after a position, or without one as [`Self::watch_from_now`] does.
    ///
    /// # Errors
    /// As [`Self::watch`].
    pub async fn watch_with(
        &self,
        after: Option<EventId>,
        options: WatchOptions,
    ) -> Result<SessionEvents, HostError> {
        if let Some(after) = after {
            return SessionEvents::after(&self.host_ref, &self.id, after, options).await;
        }
        let from_now = |awake_session: &AwakeSession| {
            SessionEvents::from_now(&self.host_ref, awake_session, options)
        };
        Ok(self.host_ref.with_awake(&self.id, from_now).await?.0)
    }

    /// Returns a run's events from its first record, at `seq`. The stream ends with the session, not with the run.
    ///
    /// # Errors
    /// As [`Self::watch`].
    pub async fn watch_run(&self, run: RunId, seq: Seq) -> Result<SessionEvents, HostError> {
        let before = EventId { seq: Seq(seq.0.saturating_sub(1)), bytes: 0 };
        Ok(self.watch(before).await?.only_run(run))
    }

    /// Returns the session's events from now on, starting with the states of its waiting run and open calls.
    ///
    /// # Errors
    /// If the session is closed.
    pub async fn watch_from_now(&self) -> Result<SessionEvents, HostError> {
        self.watch_with(None, WatchOptions::default()).await
    }

    /// Gives the tools of this session's later runs a value, which replaces one of the same type. It
    /// is kept until the session is deleted or the host ends, and never stored. A tool reads it with
    /// [`ToolContext::extension`](callsheet_tools::ToolContext::extension).
    ///
    /// # Errors
    /// If there is no such session.
    pub async fn add_extension<T: Send + Sync + 'static>(&self, value: T) -> Result<(), HostError> {
        self.host_ref.get_or_wake(&self.id).await?;
        let mut values = Extensions::new();
        values.insert(value);
        self.host_ref.shared.extensions.add_to_session(&self.id, values);
        Ok(())
    }

    /// Adds a user message to the current run, after the running turn. A run that would have ended
    /// with this turn takes another one, unless it is stopped or its limits are used up; then the
    /// message stands at the run's end. Returns the position of the message's record.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// let run = session.start_run("Count to ten.").await?;
    /// if session.steer("Stop at five.").await.is_err() {
    ///     println!("the run is over already");
    /// }
    /// run.report.await?;
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If there is no run, the input is empty, too many inputs wait, or the session is closed.
    pub async fn steer(&self, input: impl Into<Content>) -> Result<Seq, HostError> {
        self.steer_by(input, None).await
    }

    /// Adds a message as [`Self::steer`] does, for a client's request with an idempotency key. The
    /// same request again has no effect and gets the same answer.
    ///
    /// # Errors
    /// As [`Self::steer`], and when the key was used for a different request.
    pub async fn steer_by(
        &self,
        input: impl Into<Content>,
        request_key: Option<RequestKey>,
    ) -> Result<Seq, HostError> {
        let input = input.into();
        let steer = |reply| {
            let (input, request_key) = (input.clone(), request_key.clone());
            SessionMessage::Steer { input, request_key, author: self.author.clone(), reply }
        };
        let (seq, awake_session) = self.host_ref.request(&self.id, steer).await?;
        self.wait_durable(seq?, &awake_session).await
    }

    /// Ends the current run, if there is one. Queued inputs stay and start their runs. Returns when the request is
    /// durable, and does not wait for the end of the run.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// use callsheet::StopMode;
    ///
    /// let run = session.start_run("Count to a million.").await?;
    /// session.stop(StopMode::Now).await?;
    /// assert!(["stopped", "answered"].contains(&run.report.await?.run_end.as_str()));
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If the session is closed.
    pub async fn stop(&self, mode: StopMode) -> Result<(), HostError> {
        self.stop_by(mode, false).await
    }

    /// Does the same as [`Self::stop`], and takes back all queued inputs as [`Self::remove_input`] does.
    ///
    /// # Errors
    /// If the session is closed.
    pub async fn stop_with_queue(&self, mode: StopMode) -> Result<(), HostError> {
        self.stop_by(mode, true).await
    }

    async fn stop_by(&self, mode: StopMode, queue: bool) -> Result<(), HostError> {
        let author = || self.author.clone();
        let stop = |reply| SessionMessage::Stop { mode, queue, author: author(), reply };
        let (seq, awake_session) = self.host_ref.request(&self.id, stop).await?;
        self.wait_durable(seq, &awake_session).await.map(drop)
    }

    /// Takes back the input of a queued run: the run does not start, and its report is
    /// [`HostError::InputRemoved`]. Returns when that is durable.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::{HostError, prelude::*};
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// let first = session.start_run("Count to a million.").await?;
    /// let second = session.start_run(RunRequest::from("Say goodbye.").queued()).await?;
    /// match session.remove_input(&second.run_id).await {
    ///     Ok(()) => assert_eq!(second.report.await.err(), Some(HostError::InputRemoved)),
    ///     // The first run had ended already.
    ///     Err(error) => assert_eq!(error, HostError::AlreadyStarted),
    /// }
    /// first.report.await?;
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If no input of this run is queued, the run has started, or the session is closed.
    pub async fn remove_input(&self, run_id: &RunId) -> Result<(), HostError> {
        let remove = |reply| {
            let (run_id, author) = (run_id.clone(), self.author.clone());
            SessionMessage::RemoveInput { run_id, author, reply }
        };
        let (seq, awake_session) = self.host_ref.request(&self.id, remove).await?;
        self.wait_durable(seq?, &awake_session).await.map(drop)
    }

    /// Resumes a run that the end of its host interrupted, when the journal's `resume` is `manual`.
    /// Returns the position of the session's last record.
    ///
    /// # Errors
    /// If no run waits to be resumed, or the session is closed.
    pub async fn resume(&self) -> Result<Seq, HostError> {
        let resume = |reply| SessionMessage::Resume { reply };
        self.host_ref.request(&self.id, resume).await?.0
    }

    /// Returns the calls of the current run that wait for approval, in call order: for a program that
    /// answers later than on [`RunEvent::ApprovalRequested`], for example after a restart.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// for question in session.approvals().await? {
    ///     println!("{} {}", question.approval.tool_name, question.approval.input);
    ///     question.reject("no person is there to answer").await?;
    /// }
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If the session is closed.
    pub async fn approvals(&self) -> Result<Vec<ApprovalHandle>, HostError> {
        let run = self.snapshot().await?.current_run;
        let open = run.map(|run| run.approvals).unwrap_or_default().into_iter();
        Ok(open.filter_map(|approval| ApprovalHandle::new(approval, self.clone())).collect())
    }

    /// Decides about a call that waits for approval. The first decision stands; the same decision
    /// again is not an error. Returns when the decision is durable.
    ///
    /// # Errors
    /// If the call has no open question, the decision is about other arguments, another decision
    /// was made before, or the session is closed.
    pub async fn decide(
        &self,
        key: CallKey,
        mut decision: ApprovalDecision,
    ) -> Result<(), HostError> {
        decision.author = decision.author.or_else(|| self.author.clone());
        let ask = |reply| {
            let decision = Box::new(decision.clone());
            SessionMessage::Decide { key, decision, reply }
        };
        let (decided, awake_session) = self.ask_turn(ask).await?;
        if decided == Err(ApprovalError::NoSuchApproval) {
            // The decision may concern a turn that is over.
            return stored_sessions::check_past_decision(self, key, decision).await;
        }
        decided?;
        self.wait_durable(awake_session.log.last_seq(), &awake_session).await.map(drop)
    }

    /// Sends a message about a call to its turn, and waits for the reply.
    pub(super) async fn ask_turn(
        &self,
        ask: impl Fn(DecisionReply) -> SessionMessage,
    ) -> Result<(Result<(), ApprovalError>, Arc<AwakeSession>), HostError> {
        for _ in 0..DECIDE_TRIES {
            let awake_session = self.host_ref.get_or_wake(&self.id).await?;
            match call(&awake_session.actor, &ask).await {
                Ok(decided) => return Ok((decided, awake_session)),
                // The accumulator died and is being replaced, or the session leaves memory. If the decision was
                // accepted, sending it again is not an error.
                Err(CallError::NoReply) => tokio::time::sleep(DECIDE_AGAIN).await,
                Err(CallError::Ended) => {
                    if !awake_session.activity.leaving.load(Ordering::Acquire) {
                        break;
                    }
                }
            }
        }
        Err(self.host_ref.shared.unavailable_error())
    }

    /// Reads the tools of servers again. The session's next run offers the present list; without this its
    /// list stays the one of its first run.
    ///
    /// # Errors
    /// If a run is in progress, the session is closed, or the journal cannot be written.
    pub async fn refresh_tools(&self) -> Result<ToolListChange, HostError> {
        let agent = self.agent().await?;
        let agent =
            self.host_ref.shared.catalog.agents.get(&agent).ok_or(HostError::AgentGone(agent))?;
        let servers = &self.host_ref.shared.catalog.tool_servers;
        let connected = servers
            .servers_for(&self.host_ref, Some(&self.id), |server| agent.names_server(server));
        let tools = servers.freeze(agent, &connected).await?;
        let refresh = |reply| SessionMessage::RefreshTools { tools: Arc::clone(&tools), reply };
        let (change, awake_session) = self.host_ref.request(&self.id, refresh).await?;
        self.wait_durable(awake_session.log.last_seq(), &awake_session).await?;
        change
    }

    /// Replaces the first messages of the history by a summary, which a model of the agent writes. The
    /// records keep all messages.
    ///
    /// # Errors
    /// If a run is in progress, there is nothing to replace, no model answers, or the journal cannot be
    /// written.
    pub async fn compact(&self) -> Result<CompactionReport, HostError> {
        let compact = |reply| SessionMessage::Compact { reply };
        let (report, awake_session) = self.host_ref.request(&self.id, compact).await?;
        self.wait_durable(awake_session.log.last_seq(), &awake_session).await?;
        report
    }

    /// Leaves a message of the context out of later requests: one line stands for it. The records keep it. A message
    /// that is left out already is not an error.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    /// use callsheet::{MessageName, Seq};
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// session.run("Say hello.").await?;
    /// // The second record of the session has the input.
    /// let report = session.exclude(MessageName::Input(Seq(2))).await?;
    /// assert_eq!(report.kind, "excluded");
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If a run is in progress, the context has no such message, or the journal cannot be written.
    pub async fn exclude(&self, message: MessageName) -> Result<CompactionReport, HostError> {
        self.set_excluded(message, false).await
    }

    /// Takes back a message that is left out of requests. One that is not left out is not an error.
    ///
    /// # Errors
    /// As for [`exclude`](Self::exclude).
    pub async fn include(&self, message: MessageName) -> Result<CompactionReport, HostError> {
        self.set_excluded(message, true).await
    }

    async fn set_excluded(
        &self,
        name: MessageName,
        include: bool,
    ) -> Result<CompactionReport, HostError> {
        let exclude = |reply| SessionMessage::Exclude { name, include, reply };
        let (report, awake_session) = self.host_ref.request(&self.id, exclude).await?;
        self.wait_durable(awake_session.log.last_seq(), &awake_session).await?;
        report
    }

    /// Returns what fills the window of the agent's model.
    ///
    /// # Errors
    /// If the session is closed.
    pub async fn context(&self) -> Result<ContextReport, HostError> {
        let report = |reply| SessionMessage::ReportContext { reply };
        Ok(self.host_ref.request(&self.id, report).await?.0)
    }

    /// Returns a snapshot of the session, durable or not.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// session.run("Say hello.").await?;
    /// let snapshot = session.snapshot().await?;
    /// assert_eq!((snapshot.history.len(), snapshot.current_run), (2, None));
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If the session is closed.
    pub async fn snapshot(&self) -> Result<SessionSnapshot, HostError> {
        // The caller can answer the approvals in it: from now on they wait, and the host does not reject them itself.
        self.host_ref.shared.approvals_are_read.store(true, Ordering::Relaxed);
        let snapshot = |reply| SessionMessage::Snapshot { reply };
        Ok(self.host_ref.request(&self.id, snapshot).await?.0)
    }

    /// Returns a snapshot once it is durable.
    ///
    /// # Errors
    /// If the session is closed, or its records cannot be stored.
    pub async fn stored_snapshot(&self) -> Result<SessionSnapshot, HostError> {
        let snapshot = |reply| SessionMessage::Snapshot { reply };
        let (snapshot, awake_session) = self.host_ref.request(&self.id, snapshot).await?;
        self.wait_durable(snapshot.seq, &awake_session).await?;
        Ok(snapshot)
    }

    /// Stops the run, answers open calls, closes the session, and deletes its records and its child sessions.
    /// Closing a closed session is not an error.
    ///
    /// # Errors
    /// If the records cannot be deleted.
    pub async fn close(&self) -> Result<(), HostError> {
        match self.delete().await {
            Err(
                HostError::NoSuchSession(_)
                | HostError::SessionClosed
                | HostError::Journal(crate::journal::JournalError::NotErased),
            ) => Ok(()),
            deleted => deleted,
        }
    }

    /// Closes and deletes an existing session, even if the future is dropped.
    ///
    /// # Errors
    /// If there is no such session, or its records cannot be deleted. With [`JournalError::NotErased`](crate::journal::JournalError::NotErased) it is deleted,
    /// and the journal erases what the disk still holds of it; a repetition returns `Ok` when that is done.
    pub async fn delete(&self) -> Result<(), HostError> {
        let shared = Arc::clone(&self.host_ref.shared);
        for _ in 0..REQUEST_TRIES_MAX {
            let asleep = shared.index.reserve_for_deletion(vec![self.id.clone()]);
            if !asleep.is_empty() {
                let session = self.clone();
                let deletion = async move { stored_sessions::delete(&session, true).await };
                return task::to_its_end(deletion).await;
            }
            let close = |reply| SessionMessage::Close { author: self.author.clone(), reply };
            match self.host_ref.request(&self.id, close).await {
                // A session that cannot be woken can still be deleted, and a deletion that was in progress may have
                // failed.
                Err(
                    HostError::Journal(_)
                    | HostError::Rebuild(_)
                    | HostError::AgentGone(_)
                    | HostError::NoSuchSession(_)
                    | HostError::SessionClosed,
                )
                | Ok((Err(HostError::SessionClosed), _)) => tokio::task::yield_now().await,
                Ok((closed, _)) => return closed,
                Err(error) => return Err(error),
            }
        }
        Err(shared.unavailable_error())
    }

    /// Lets the session hibernate now, as it does by itself after `idle_after`. A session with subscribers
    /// stays awake, and one with a run too, unless the run is suspended or waits only for people.
    pub fn hibernate(&self) {
        if let Some(awake_session) = self.host_ref.shared.index.awake(&self.id) {
            // A session that is gone is not awake.
            let _ = awake_session.actor.cast(SessionMessage::Hibernate { idle: Duration::ZERO });
        }
    }

    async fn wait_durable(&self, seq: Seq, awake_session: &AwakeSession) -> Result<Seq, HostError> {
        awake_session.log.wait_durable(seq).await?;
        Ok(seq)
    }
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionHandle").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A user's input, and the overrides of the run.
///
/// A string converts to a request without overrides.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RunRequest {
    /// The user's text and images.
    pub input: Content,
    /// The overrides of the agent for this run.
    pub overrides: RunOverrides,
    /// The client's pairs of strings. The pairs of the session count too.
    pub metadata: Metadata,
    /// The variable that gets the answer: its typed value, or else its text. A run that ends without an
    /// answer leaves the variable as it is.
    pub into: Option<String>,
    /// The idempotency key of the client's request: the same request again has no second effect.
    pub request_key: Option<RequestKey>,
    /// The idempotency key of a request that is not complete yet.
    pub idempotency_key: Option<String>,
    /// The trace context of the client, passed on to the run's requests and calls.
    pub trace: Option<TraceContext>,
    /// True if the input waits for an open run to end. Otherwise it is refused.
    pub queue: bool,
    /// Values for the tools of this run, such as a tenant. A tool reads them with
    /// [`ToolContext::extension`](callsheet_tools::ToolContext::extension). They are never stored: a run
    /// that continues after a restart of the host has none. The values of a repeated request are
    /// ignored.
    pub extensions: Extensions,
}

impl RunRequest {
    /// Lets the input wait for the run in progress, and start when that run has ended. Without this, a
    /// request during a run is refused. At most `max_queued_inputs` inputs of a session wait (16 by
    /// default).
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// let first = session.start_run("Say hello.").await?;
    /// let second = session.start_run(RunRequest::from("Say goodbye.").queued()).await?;
    /// first.report.await?.text()?;
    /// second.report.await?.text()?;
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn queued(mut self) -> Self {
        self.queue = true;
        self
    }

    /// Gives the request an idempotency key. A later request of the session with the same key starts
    /// no second run: it returns the run that the first one started, also after a restart of the
    /// host. The same key with another input, or with other overrides, metadata or variable, is an error.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// let request = RunRequest::from("Say hello.").with_idempotency_key("greeting-1");
    /// let first = session.run(request.clone()).await?;
    /// let second = session.run(request).await?;
    /// assert_eq!(first.run_id, second.run_id);
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Adds the digest of the request to its idempotency key.
    fn complete_key(&mut self) {
        let Some(key) = self.idempotency_key.take() else { return };
        let mut request = json!({ "input": self.input, "overrides": self.overrides });
        if let Some(members) = request.as_object_mut() {
            let metadata = Some(&self.metadata).filter(|metadata| !metadata.is_empty());
            members.extend(metadata.map(|metadata| ("metadata".to_owned(), json!(metadata))));
            members.extend(self.into.as_ref().map(|into| ("into".to_owned(), json!(into))));
        }
        self.request_key = Some(RequestKey::new(key, &request.to_string()));
    }

    /// Attaches pairs of strings to the run: see [`Metadata`].
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// Declares tools that the client runs, in addition to those of the session: see [`ClientTool`].
    #[must_use]
    pub fn with_client_tools(mut self, tools: impl IntoIterator<Item = ClientTool>) -> Self {
        let own = self.overrides.client_tools.take();
        let own = own.iter().flat_map(|own| own.iter().cloned());
        self.overrides.client_tools = Some(own.chain(tools).collect());
        self
    }

    /// Stores the answer in a variable of the session. The name has 1 to 128 bytes.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # use callsheet::model::ModelReply;
    /// # use callsheet::testing::FakeModel;
    /// use callsheet::prelude::*;
    ///
    /// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
    /// # let host = Host::builder().model_source("fake", model).start().await?;
    /// let session = host.open_session("demo").await?;
    /// session.run(RunRequest::from("Say hello.").into_variable("greeting")).await?;
    /// assert_eq!(session.snapshot().await?.variable("greeting"), Some(&"Hello.".into()));
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn into_variable(mut self, name: impl Into<String>) -> Self {
        self.into = Some(name.into());
        self
    }

    /// Gives the tools of this run a value, which replaces one of the same type.
    ///
    /// ```
    /// # struct Tenant(&'static str);
    /// use callsheet::RunRequest;
    ///
    /// // A tool reads it with `context.extension::<Tenant>()`.
    /// let request = RunRequest::from("How many orders are open?").with_extension(Tenant("acme"));
    /// # let _ = request;
    /// ```
    #[must_use]
    pub fn with_extension<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.extensions.insert(value);
        self
    }
}

impl<T: Into<Content>> From<T> for RunRequest {
    fn from(input: T) -> Self {
        Self { input: input.into(), ..Self::default() }
    }
}

/// A run that was started or waits for the run before it. While it exists, the session has a reader: it does not
/// hibernate, and approvals wait for a decision.
#[non_exhaustive]
pub struct StartedRun {
    /// The run's id.
    pub run_id: RunId,
    /// The position of its first record, or of the last one that has reopened it.
    pub seq: Seq,
    /// True if `events` start with the run's first event. False for a run that was requested before:
    /// [`SessionHandle::watch_run`] returns all of its events.
    pub events_are_complete: bool,
    /// The run's events, at least from now on. They end with the session, not with the run.
    pub events: Subscription,
    /// The report, when the run is over. Dropping it does not stop the run. A waiting run that never starts,
    /// because the session was closed or the host shut down, has no report.
    pub report: Pin<Box<dyn Future<Output = Result<RunReport, HostError>> + Send>>,
    session: SessionHandle,
    log: Arc<SessionLog>,
    /// The events of the run alone.
    pub feed: RunFeed,
    options: WatchOptions,
}

impl StartedRun {
    /// Returns the session of the run.
    #[must_use]
    pub fn session(&self) -> &SessionHandle {
        &self.session
    }

    /// Sets what the watcher wants of the events of the run: those of `events`, of [`Self::into_all_events`], and of an
    /// event stream.
    #[must_use]
    pub fn with_options(mut self, options: WatchOptions) -> Self {
        if options.arguments {
            self.events.receive_arguments();
        }
        self.options = options;
        self
    }

    /// Returns the options of the watcher.
    #[must_use]
    pub fn options(&self) -> WatchOptions {
        self.options
    }

    /// Waits until the request for the run is durable, and returns all of its events, also if
    /// `events` has only a part of them.
    ///
    /// # Errors
    /// If the request cannot be stored, or the session is closed.
    pub async fn into_all_events(self) -> Result<SessionEvents, HostError> {
        self.log.wait_durable(self.seq).await?;
        let before = EventId { seq: Seq(self.seq.0.saturating_sub(1)), bytes: 0 };
        Ok(self.session.watch_with(Some(before), self.options).await?.only_run(self.run_id))
    }

    /// Returns the run's next event, or `None` after the last one. All of the run's events are
    /// returned, even to a slow reader and for a run that was requested before; text may come in
    /// larger parts then. Nothing is lost if the caller stops waiting.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// let mut run = session.start_run("Say hello.").await?;
    /// while let Some(event) = run.next_event().await? {
    ///     match event {
    ///         RunEvent::Text(text) => print!("{text}"),
    ///         RunEvent::ApprovalRequested(question) => question.approve().await?,
    ///         _ => {}
    ///     }
    /// }
    /// let report = run.report.await?;
    /// # assert_eq!(report.run_end.as_str(), "answered");
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If the session or the host ended before the run, or the journal fails.
    pub async fn next_event(&mut self) -> Result<Option<RunEvent>, HostError> {
        while let Some(published) = self.feed.next(&mut self.events).await? {
            if let Some(event) = RunEvent::from_published(&published, &self.session) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Waits until the request for the run is durable.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub fn wait_durable(&self) -> impl Future<Output = Result<(), HostError>> + Send + use<> {
        let (log, seq) = (Arc::clone(&self.log), self.seq);
        async move { Ok(log.wait_durable(seq).await?) }
    }
}

impl fmt::Debug for StartedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartedRun")
            .field("run_id", &self.run_id)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}
