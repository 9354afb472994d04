//! What the actors say to each other.
//!
//! Commands are imperative, facts in the past tense, a reply port comes last. Actors import
//! messages, not each other. Data flows by an awaited `call`, control by `cast`.

use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorRef, RpcReplyPort};
use tokio::time::Instant;

use super::agent::Agent;
use super::error::HostError;
use super::model::ModelRequest;
use super::model_limiter::BreakerPermitGuard;
use super::models::Model;
use super::report::RunReport;
use super::request::RunRequest;
use super::session_start::SessionStart;
use super::snapshot::SessionSnapshot;
use crate::event::ApprovalRequest;
use crate::journal::JournalError;
use crate::record::{JournalEntry, RequestKey, Seq, StopMode};
use crate::response::ExchangeEnd;
use crate::turn::{
    ApprovalDecision, ApprovalError, AttemptPlan, CancelReason, PermitReply, TurnRecord, TurnSpec,
};
use crate::types::{CallKey, Content, RunId, RunTrace, TraceContext};
use crate::wire::Delta;

/// To the actor that supervises the sessions.
pub(super) enum HostMessage {
    /// Begin a session whose place is reserved, a new one or one that was asleep.
    Begin(Box<SessionStart>),
    /// Bring the metrics up to date.
    KeepUp { sent: Instant },
}

/// To a session.
pub(super) enum SessionMessage {
    /// Begin a run with a user's input, or let it wait for the one that goes on.
    StartRun {
        id: RunId,
        request: Box<RunRequest>,
        reply: RpcReplyPort<Result<RunAccepted, HostError>>,
    },
    /// Say something to the run that goes on.
    Steer {
        input: Content,
        request: Option<RequestKey>,
        reply: RpcReplyPort<Result<Seq, HostError>>,
    },
    /// Go on with what the journal says was going on.
    GoOn,
    /// The same, asked by somebody.
    Resume { reply: RpcReplyPort<Result<Seq, HostError>> },
    /// Let the actors of runs go, if no run goes on.
    Rest,
    /// Leave memory, if nothing has happened for so long.
    Hibernate { idle: Duration },
    /// A record could not be stored.
    JournalFailed { error: JournalError },
    /// End the run that goes on, if there is one.
    Stop { mode: StopMode, reply: RpcReplyPort<Seq> },
    /// Take no more turns; with `now`, end the run at once.
    Interrupt { now: bool },
    /// Tell what the session holds.
    Snapshot { reply: RpcReplyPort<SessionSnapshot> },
    /// Stop the run, then end the session and forget its records.
    Close { reply: RpcReplyPort<Result<(), HostError>> },
    /// A turn is over. Counted only if it comes from the run's present actors.
    TurnCommitted { epoch: u64, record: Box<TurnRecord> },
    /// What people are asked at present, and whether the turn waits for nothing else.
    QuestionsChanged { epoch: u64, questions: Vec<ApprovalRequest>, rests: bool },
    /// All that the records of a turn say has been told: it goes on.
    TurnKnown { epoch: u64 },
    /// Somebody has decided about a call.
    Decide { key: CallKey, decision: ApprovalDecision, reply: DecisionReply },
    /// Name the actors of runs: stream, accumulator.
    #[cfg(test)]
    NameActors { reply: RpcReplyPort<Option<[ractor::ActorCell; 2]>> },
}

/// A run that has begun or waits, or one that was asked for before.
pub(super) struct RunAccepted {
    pub(super) id: RunId,
    /// The place of its first record.
    pub(super) seq: Seq,
    /// Gets its report; dropped without one when the session dies. None of a run that is over.
    pub(super) report: Option<tokio::sync::oneshot::Receiver<ReportResult>>,
}

/// What whoever waits for a run is told, and the place of the run's last record.
pub(super) type ReportResult = Result<(RunReport, Seq), HostError>;

/// To the reader of the model's responses.
pub(super) enum StreamMessage {
    /// Begin an exchange; one that is open is dropped.
    Request {
        turn: u32,
        plan: AttemptPlan,
        model: Arc<Model>,
        request: Arc<ModelRequest>,
        trace: Option<TraceContext>,
        to: AccumulatorRef,
    },
    /// Drop the exchange that is open, the wait before it included.
    Disconnect,
    /// The read loop died of a bug.
    ReadLoopDied,
}

/// To the owner of the turn.
pub(super) enum AccumulatorMessage {
    /// Begin a turn, or go on with one from its records.
    BeginTurn(Box<TurnStart>),
    /// A chunk of the response was decoded. The next is read after the reply.
    DeltasReceived { turn: u32, attempt: u32, batch: Vec<Delta>, reply: RpcReplyPort<()> },
    /// The request of an exchange waits for a place at its model, or has waited and has it.
    RequestPlace { turn: u32, attempt: u32, place: PermitReply },
    /// An exchange is over. Its model's breaker wants to know how it is judged; there is none to
    /// know if nobody was asked.
    ResponseEnded {
        turn: u32,
        attempt: u32,
        end: ExchangeEnd,
        breaker_permit: Option<BreakerPermitGuard>,
    },
    /// The turn of a call that waited for a place of its tool has come.
    PlaceGranted { key: CallKey },
    /// A call that was told to stop has had its grace.
    GraceOver { key: CallKey },
    /// Tell all calls to stop, and end when none is left.
    Finish,
    /// So many of the turn's records are durable.
    RecordsStored { turn: u32, upto: u64 },
    /// The moment that the turn named has come.
    TimerFired,
    /// End the turn.
    Cancel { why: CancelReason },
    /// Somebody has decided about a call.
    Decide { key: CallKey, decision: ApprovalDecision, reply: DecisionReply },
}

/// The accumulator of a session, for those who report to it.
pub(super) type AccumulatorRef = ActorRef<AccumulatorMessage>;

/// What a turn begins with.
pub(super) struct TurnStart {
    pub(super) spec: TurnSpec,
    pub(super) run: RunId,
    /// The agent as the run has it.
    pub(super) agent: Arc<Agent>,
    pub(super) trace: Option<Arc<RunTrace>>,
    pub(super) request: Arc<ModelRequest>,
    /// What was recorded of the turn, if it began before its last accumulator died.
    pub(super) resume: Option<Vec<Arc<JournalEntry>>>,
    /// The turn is cancelled before it has begun.
    pub(super) cancel: Option<CancelReason>,
}

/// Tells whoever decided about a call what came of it.
pub(super) type DecisionReply = RpcReplyPort<Result<(), ApprovalError>>;
