//! The messages between actors.
//!
//! Commands are imperative, facts are in the past tense, and a reply port is the last field. Actors
//! import messages, not each other. A sender awaits a `call` if it needs the answer or must not run ahead (the
//! deltas of a response); everything else is a `cast`.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ractor::{ActorId, ActorRef};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::agent::Agent;
use super::error::HostError;
use super::model::ModelRequest;
use super::model_limiter::BreakerPermitGuard;
use super::models::Model;
use super::report::{CompactionReport, ContextReport, RunReport};
use super::session_start::SessionStart;
use super::snapshot::SessionSnapshot;
use super::supervision::ReplyPort;
use super::tool_limiter::CallPermit;
use super::tool_servers::FrozenTools;
use crate::journal::JournalError;
use callsheet_machines::context::ReferenceValues;
use callsheet_machines::session::{MessageName, RecordRange, RunSpec, SummaryReply};
use callsheet_machines::turn::{
    ApprovalDecision, ApprovalError, AttemptPlan, CallStart, CancelReason, CommittedTurn,
    PermitReply, StartedCalls, ToolCompletion, TurnSpec,
};
use callsheet_tools::{Extensions, ToolServer};
use callsheet_values::event::{ServerToolsChange, ToolListChange};
use callsheet_values::record::{JournalEntry, RequestKey, Seq, StopMode};
use callsheet_values::types::{
    Answer, Author, CallKey, Content, HookDecision, HookPoint, ProviderError, Question, Reference,
    ReferenceError, RunId, RunTrace, ToolOutcome, TraceContext,
};
use callsheet_wire::Delta;
use callsheet_wire::response::ExchangeEnd;

/// A message to the actor that supervises the sessions.
pub(super) enum HostMessage {
    /// Start a session whose slot is reserved: a new one, a fork, or one that was read from the journal.
    Begin(Box<SessionStart>),
    /// Run a connection to a server that sessions do not share: for one session, or only to read its list.
    BeginServer { server: Arc<dyn ToolServer>, audience: ServerAudience },
    /// Do the periodic work. `sent` is the time of sending.
    RunMaintenance { sent: Instant },
}

/// The receivers of a server's changes.
#[derive(Clone)]
pub(super) enum ServerAudience {
    /// The awake sessions whose agents name the server.
    Sessions,
    /// The session that the connection belongs to.
    Session(ActorRef<SessionMessage>),
    /// None: the connection was opened to read the list.
    Nobody,
}

/// A message to a session.
pub(super) enum SessionMessage {
    /// Start a run with a user's input, or queue it.
    StartRun {
        run: Box<RunSpec>,
        request_key: Option<RequestKey>,
        /// True if the input may wait for the end of an open run. If false, it is refused while a run is open.
        queue: bool,
        extensions: Extensions,
        reply: ReplyPort<Result<RunAccepted, HostError>>,
    },
    /// Add a user message to the current run.
    Steer {
        input: Content,
        request_key: Option<RequestKey>,
        author: Option<Author>,
        reply: ReplyPort<Result<Seq, HostError>>,
    },
    /// Continue the open run, or start the queued input, of a session that was read from the journal. Also sent when
    /// `run_timeout` passes while the run waits for a summary or for tools: handling any message makes the machine
    /// look at its clock.
    ContinueRun,
    /// Resume a suspended run on request.
    Resume { reply: ReplyPort<Result<Seq, HostError>> },
    /// Release the actors of runs, if no run is open.
    ReleaseActors,
    /// Hibernate, if the session was idle for this time and may hibernate (`session/hibernate`).
    Hibernate { idle: Duration },
    /// A record could not be stored.
    JournalFailed { error: JournalError },
    /// End the current run, if there is one. With `queue`, also take back all queued inputs.
    Stop { mode: StopMode, queue: bool, author: Option<Author>, reply: ReplyPort<Seq> },
    /// Take back the queued input of a run.
    RemoveInput { run_id: RunId, author: Option<Author>, reply: ReplyPort<Result<Seq, HostError>> },
    /// The host shuts down: start no more turns. With `now`, also end the run at once.
    Interrupt { now: bool },
    /// Return a snapshot of the session.
    Snapshot { reply: ReplyPort<SessionSnapshot> },
    /// Stop the run, then close the session and delete its records and its child sessions.
    Close { author: Option<Author>, reply: ReplyPort<Result<(), HostError>> },
    /// Return the records that hold the value of a reference.
    Locate { reference: Reference, reply: ReplyPort<Result<RecordRange, ReferenceError>> },
    /// A turn was committed by the record `seq`. Counts only if it comes from the run's current actors.
    TurnCommitted { epoch: u64, turn: Box<CommittedTurn>, seq: Seq },
    /// The turn has requested an approval, one is not open any more, or one of these has changed: `waits_only_for_people`: the turn waits only
    /// for people; `is_resumable`: it does, and none of its calls runs.
    ApprovalsChanged { epoch: u64, waits_only_for_people: bool, is_resumable: bool },
    /// Replies true if a person or a program may answer the approvals of the run and of its children.
    CheckApprovalReader { reply: ReplyPort<bool> },
    /// Reject the pending approvals: the run at the root of this child session has no reader.
    RejectApprovals,
    /// Decide about a call.
    Decide { key: CallKey, decision: Box<ApprovalDecision>, reply: DecisionReply },
    /// End a call with the result of the client.
    AnswerCall { key: CallKey, outcome: Box<ToolOutcome>, reply: DecisionReply },
    /// The list of the servers' tools was read, for a run that waits for it.
    ToolsRead { tools: Result<Arc<FrozenTools>, HostError> },
    /// A server of tools has another list.
    ServerToolsChanged { change: Arc<ServerToolsChange> },
    /// The session's connection to a server of tools was ended, because another session needed it.
    ServerReleased { server: Arc<str> },
    /// Replace the frozen list of the servers' tools. Reply with the difference.
    RefreshTools { tools: Arc<FrozenTools>, reply: ReplyPort<Result<ToolListChange, HostError>> },
    /// Make the context smaller. Reply with what was done.
    Compact { reply: CompactReply },
    /// Leave a message out of later requests, or take it back.
    Exclude { name: MessageName, include: bool, reply: CompactReply },
    /// Return what fills the window of the model.
    ReportContext { reply: ReplyPort<ContextReport> },
    /// A model has answered this request for a summary, or none will.
    SummaryMade { request: u64, reply: SummaryReply },
    /// Tools were set aside for a model of the current run. The session stores them.
    ToolsSetAside {
        /// The number of the session's set of actors.
        epoch: u64,
        /// The index of the model.
        model: usize,
    },
    /// The request of the current turn was larger than the window of its model, or its content was refused. The turn
    /// waits for [`AccumulatorMessage::ContextReduced`].
    ContextRefused {
        epoch: u64,
        /// The index of the model in the run's chain.
        model: usize,
        error: Box<ProviderError>,
    },
    /// Return the actors of runs: stream, accumulator, tool supervisor.
    #[cfg(test)]
    NameActors { reply: ReplyPort<Option<[ractor::ActorCell; 3]>> },
}

/// A run that was started or queued, or one that an earlier request started.
pub(super) struct RunAccepted {
    pub(super) id: RunId,
    /// The sequence number of its first record, or of the last one that has reopened it.
    pub(super) seq: Seq,
    /// Receives the report. The sender is dropped without a report when the session dies. `None` for a run that an
    /// earlier request started.
    pub(super) report_receiver: Option<tokio::sync::oneshot::Receiver<ReportResult>>,
}

/// Receives the result of a request to make the context smaller, or to leave a message out.
pub(super) type CompactReply = ReplyPort<Result<CompactionReport, HostError>>;

/// The report of a run for its caller, and the sequence number of the run's last record. `None` if only the
/// journal has all messages of the run.
pub(super) type ReportResult = Result<(Option<RunReport>, Seq), HostError>;

/// A message to the stream actor.
pub(super) enum StreamMessage {
    /// Start an exchange; an open exchange is dropped.
    Request {
        turn: u32,
        plan: AttemptPlan,
        model: Arc<Model>,
        request: Arc<ModelRequest>,
        trace: Option<TraceContext>,
        to: AccumulatorRef,
    },
    /// Drop the open exchange, or the wait before it.
    Disconnect,
    /// The task that reads the response has panicked.
    ReadLoopPanicked(Box<dyn Any + Send>),
}

/// The moment at which a request to a model was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestSent {
    pub(super) at: Instant,
    /// The time that it waited before: for the delay of a retry, and for a permit of its model.
    pub(super) waited: Duration,
}

/// A message to the accumulator, which owns the turn. It is small, because most messages are deltas of a
/// response: large contents of the others are boxed.
pub(super) enum AccumulatorMessage {
    /// Start a turn, or continue one from its records.
    BeginTurn(Box<TurnStart>),
    /// A batch of deltas was decoded. The response is read on after the reply. `sent` comes with the
    /// first batch.
    DeltasReceived {
        turn: u32,
        attempt: u32,
        sent: Option<Box<RequestSent>>,
        batch: Vec<Delta>,
        reply: ReplyPort<()>,
    },
    /// The request of an exchange waits for a permit of its model, or has received it.
    ModelPermitReplied { turn: u32, attempt: u32, permit: PermitReply },
    /// An exchange is over.
    ResponseEnded(Box<ResponseEnded>),
    /// A waiting call has received the permit of its tool.
    ToolPermitGranted { key: CallKey },
    /// The tool of a running call asks a question, which is the call's question of this number.
    QuestionAsked { key: CallKey, number: u32, question: Arc<Question> },
    /// The tool does not wait for the answer to its question any longer.
    QuestionWithdrawn { key: CallKey, number: u32 },
    /// The child of a running call waits only for people, or does so no longer.
    ChildWaits { key: CallKey, waits: bool },
    /// The values of the references of a call were read.
    ReferencesRead { key: CallKey, values: Box<Result<ReferenceValues, ReferenceError>> },
    /// Hooks have decided about a call, or without a key about the turn.
    HooksDecided { turn: u32, key: Option<CallKey>, on: HookPoint, decision: Box<HookDecision> },
    /// Calls have ended. Their completions are in the accumulator's [`CompletionQueue`].
    ToolsFinished,
    /// Stop: the tool supervisor has ended and no other turn begins.
    Finish,
    /// More records of the turn are stored, as far as `journal.durability` asks.
    RecordsStored { turn: u32 },
    /// The turn's timer has fired.
    TimerFired,
    /// Cancel the turn.
    Cancel { reason: CancelReason },
    /// The context is smaller: this is the turn's request from now on. `None` if it is as large as before.
    ContextReduced { request: Option<Arc<ModelRequest>> },
    /// Decide about a call.
    Decide { key: CallKey, decision: Box<ApprovalDecision>, reply: DecisionReply },
    /// End a call with the result of the client.
    AnswerCall { key: CallKey, outcome: Box<ToolOutcome>, reply: DecisionReply },
    /// Reply when all earlier messages are handled, and the records that follow from them are appended: whether the turn
    /// is resumable then.
    Flush { reply: ReplyPort<bool> },
}

/// The end of an exchange.
pub(super) struct ResponseEnded {
    pub(super) turn: u32,
    pub(super) attempt: u32,
    /// `None` if no request was sent, or if it came with the first `DeltasReceived`.
    pub(super) sent: Option<Box<RequestSent>>,
    pub(super) end: ExchangeEnd,
    /// Released with the result of the attempt, which the circuit breaker counts. `None` if no request was
    /// sent.
    pub(super) breaker_permit: Option<BreakerPermitGuard>,
}

/// A message to the tool supervisor.
pub(super) enum ToolSupervisorMessage {
    /// Execute the commands in order.
    Execute(Vec<ToolCommand>),
    /// Report completions to this accumulator from now on. Reply with the started calls of the turn
    /// that it resumes, if it resumes one.
    Attach {
        accumulator: AccumulatorRef,
        completions: CompletionQueue,
        resumed_turn: Option<u32>,
        reply: ReplyPort<StartedCalls>,
    },
    /// Ask a question of a running call's tool.
    Ask { key: CallKey, question: Question, reply: oneshot::Sender<Answer> },
    /// Withdraw the question of a call: its tool does not wait for the answer any longer.
    WithdrawQuestion { key: CallKey },
    /// The child of a running call waits only for people, or does so no longer.
    ChildWaits { key: CallKey, waits: bool },
    /// The grace period of a cancelled call is over.
    GraceOver { call: ActorId },
    /// Abort all calls, and stop when none is left.
    Finish,
}

/// A reference to the tool supervisor of a session.
pub(super) type ToolSupervisorRef = ActorRef<ToolSupervisorMessage>;

/// The completions that the tool supervisor reports to its accumulator. A message announces the first
/// one in an empty queue, and the accumulator then removes all.
pub(super) type CompletionQueue = Arc<Mutex<Vec<(CallKey, ToolCompletion)>>>;

/// A command for a call.
pub(super) enum ToolCommand {
    /// Start it.
    Start(Box<StartTool>),
    /// Pass the answer to its question of this number on.
    Answer { key: CallKey, number: u32, answer: Answer },
    /// Cancel it, and kill it after its grace period.
    Abort(CallKey),
}

/// The values with which a call starts.
pub(super) struct StartTool {
    pub(super) start: CallStart,
    pub(super) scope: Arc<RunScope>,
    /// The permit of its tool. `None` if it needed none (`tool_limiter`).
    pub(super) permit: Option<CallPermit>,
}

/// The values of a run that a turn and its calls share.
pub(super) struct RunScope {
    pub(super) run: RunId,
    /// The position of the run's first record.
    pub(super) run_seq: Seq,
    /// The agent with the overrides of the run.
    pub(super) agent: Arc<Agent>,
    pub(super) trace: Option<Arc<RunTrace>>,
    /// The values of the embedding program for the run's tools.
    pub(super) extensions: Extensions,
}

/// A reference to the accumulator of a session.
pub(super) type AccumulatorRef = ActorRef<AccumulatorMessage>;

/// The values with which a turn starts.
pub(super) struct TurnStart {
    pub(super) spec: TurnSpec,
    pub(super) scope: Arc<RunScope>,
    pub(super) request: Arc<ModelRequest>,
    /// The records of the turn, if it began before the last accumulator died or before the session was read from the
    /// journal.
    pub(super) resume: Option<Vec<Arc<JournalEntry>>>,
    /// The reason why the turn is cancelled before it starts.
    pub(super) cancel: Option<CancelReason>,
}

/// Receives the result of a decision.
pub(super) type DecisionReply = ReplyPort<Result<(), ApprovalError>>;
