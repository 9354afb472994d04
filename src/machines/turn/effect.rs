//! The inputs and effects of a turn, and the queue of its effects, some of which are deferred until
//! records are stored.
//!
//! A record is *stored* when it is as safe as `journal.durability` asks: synced to the disk (`strict`), or
//! written, so that it survives the process (`relaxed`). Only a synced record is *durable*.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Turn;
use super::committed::CommittedTurn;
use super::started_calls::CallStartState;
use crate::context::Variables;
use callsheet_values::event::Event;
use callsheet_values::record::{Record, ResponseMessage};
use callsheet_values::types::{
    AgentLease, Answer, ApprovalVerdict, Author, CallKey, HookDecision, HookPoint, ProviderError,
    Reference, ToolCall, ToolOutcome, ToolResult, WaitPhase,
};

pub use callsheet_values::record::{CancelReason, TurnEnd};

/// An effect of a turn, which its owner performs in the order in which they are polled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Append the record. All records of one poll loop are one append.
    Record(Record),
    /// Publish the event after the records that were polled before it.
    Emit(Event),
    /// Perform the action at once: it waits for no record.
    Perform(TurnAction),
}

/// An action outside the turn, performed as soon as it is polled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TurnAction {
    /// Request a response from the model, after the plan's wait.
    Request(AttemptPlan),
    /// Make the context smaller, because the request was too large for the model, or leave content out that its service
    /// refused. The answer is
    /// [`handle_context_reduced`](super::Turn::handle_context_reduced).
    ReduceContext(ProviderError),
    /// Set tools of the request aside for a model: its service refuses them.
    SetToolsAside {
        /// The index of the model.
        model_index: usize,
        /// Their names.
        tools: Vec<String>,
        /// The error of the service.
        reason: String,
    },
    /// Drop the open exchange, also while it waits to be sent.
    Disconnect,
    /// Read the values of the references in the call's arguments. The answer is
    /// [`handle_references`](super::Turn::handle_references).
    ReadReferences {
        /// The call that waits for them.
        key: CallKey,
        /// The references. None is to a variable or to a call of this turn.
        references: BTreeSet<Reference>,
        /// The maximum number of bytes of all values together.
        bytes_max: usize,
    },
    /// Ask hooks about a call, or about the turn. The answer is
    /// [`handle_hook_decision`](super::Turn::handle_hook_decision).
    AskHooks(Box<HookRequest>),
    /// Drop the question to hooks about a call, or about the turn: the decision is not needed.
    WithdrawHooks(Option<CallKey>),
    /// Put the messages and parameters of hooks into the request that follows, and into those of later attempts.
    ChangeRequest(Arc<HookDecision>),
    /// Request a permit of the call's tool, whose calls the host limits. The answer is
    /// [`handle_tool_permit`](super::Turn::handle_tool_permit).
    RequestToolPermit {
        /// The call that needs the permit.
        key: CallKey,
        /// The call's tool.
        tool: Arc<str>,
    },
    /// Withdraw the permit or the request for it: the call will not start.
    ReleaseToolPermit(CallKey),
    /// Run the call's tool, with the call's permit if it has one.
    Start(CallStart),
    /// Pass the answer to a question on to the running tool. Ignored if the tool does not wait for it.
    Answer {
        /// The call.
        key: CallKey,
        /// The number of the question in its call, from 1.
        number: u32,
        /// The answer.
        answer: Answer,
    },
    /// Cancel the running tool, and kill it after `cancel_grace`. The call has its outcome or is discarded. The call
    /// of an agent has none: it gets its outcome when the child has ended, and is not killed.
    Abort(CallKey),
    /// Write the finished turn to the context. Only events about late outcomes can follow.
    Commit(Box<CommittedTurn>),
}

/// A question to the hooks, about a call or about the turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HookRequest {
    /// The point.
    pub on: HookPoint,
    /// The call, with its final arguments. `None` if the question is about the turn.
    pub call: Option<ToolCall>,
    /// Its result, if its tool has answered.
    pub outcome: Option<ToolOutcome>,
    /// The response of a turn that has ended, with the results of its calls.
    pub ended: Option<EndedTurn>,
}

/// A turn with all its results.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndedTurn {
    /// The message of the response.
    pub message: Option<Arc<ResponseMessage>>,
    /// The results, in call order.
    pub results: Vec<ToolResult>,
}

/// A call that starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallStart {
    /// The call.
    pub call: ToolCall,
    /// The variables that the call can read.
    pub variables: Variables,
    /// The state to give back in a [`StartedCall`](super::StartedCall).
    pub state: CallStartState,
    /// The budget of the child session, if the tool is an agent.
    pub agent: Option<Box<AgentCallStart>>,
}

/// The start of the call of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AgentCallStart {
    /// The budget of the child.
    pub lease: AgentLease,
    /// The time that it may take. `None` means no limit.
    pub time: Option<Duration>,
    /// True if the call was cancelled before this start, which repeats one from before a crash: a child that exists
    /// is stopped, and none is opened.
    pub is_cancelled: bool,
}

/// The effects of a turn that were not polled yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct EffectQueue {
    ready: VecDeque<Effect>,
    /// Each effect waits until this number of records is stored. The numbers are ascending.
    deferred: VecDeque<(u64, DeferredEffect)>,
    /// The number of records that were queued.
    records: u64,
}

/// An effect that waits until a record is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "nearly all are of the large kind")]
pub(super) enum DeferredEffect {
    /// Queue the effect.
    Queue(Effect),
    /// Start the call, whose intent is the record, or publish that the client has to run it.
    StartCall(CallKey),
}

impl EffectQueue {
    fn record(&mut self, record: Record) {
        self.records += 1;
        self.ready.push_back(Effect::Record(record));
    }

    fn emit(&mut self, event: Event) {
        self.ready.push_back(Effect::Emit(event));
    }

    pub(super) fn perform(&mut self, action: TurnAction) {
        self.ready.push_back(Effect::Perform(action));
    }

    /// Defers an effect until every record that was queued before it is stored.
    pub(super) fn defer(&mut self, effect: DeferredEffect) {
        self.deferred.push_back((self.records, effect));
    }

    /// Queues the deferred effects whose records are stored, up to the next start of a call. Returns that call, or
    /// `None` if no start is left.
    fn handle_recorded(&mut self, upto: u64) -> Option<CallKey> {
        while self.deferred.front().is_some_and(|(records, _)| *records <= upto)
            && let Some((_, deferred)) = self.deferred.pop_front()
        {
            match deferred {
                DeferredEffect::Queue(effect) => self.ready.push_back(effect),
                DeferredEffect::StartCall(key) => return Some(key),
            }
        }
        None
    }

    fn poll(&mut self) -> Option<Effect> {
        self.ready.pop_front()
    }

    /// Returns the number of records that were queued.
    #[cfg(any(test, feature = "fixtures"))]
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// Returns the deferred effects, each with the number of records that it waits for.
    pub(super) fn deferred(&self) -> impl ExactSizeIterator<Item = &(u64, DeferredEffect)> {
        self.deferred.iter()
    }
}

impl Turn {
    pub(super) fn record(&mut self, record: Record) {
        self.effects.record(record);
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.effects.emit(event);
    }

    /// Returns the next effect, or `None` if there is none.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.poll()
    }

    /// Handles that the first `upto` records of this machine are stored. Records from which it was resumed do not
    /// count.
    pub fn handle_recorded(&mut self, now: Duration, upto: u64) {
        self.clock.advance(now);
        while let Some(key) = self.effects.handle_recorded(upto) {
            if let Some(index) = self.position(key) {
                self.start_intended(index);
            }
        }
        self.advance();
    }

    /// Returns whether an effect waits until records are stored, such as a start, a result or the commit.
    #[must_use]
    pub fn waits_for_records(&self) -> bool {
        self.effects.deferred().len() > 0
    }

    /// Returns whether only the commit of a turn without calls waits for its record. Such a turn had
    /// no external effects, and its end is not published before it is stored. The session may
    /// therefore continue the run, so that the end of the run is stored in the same batch.
    #[must_use]
    pub fn may_commit_early(&self) -> bool {
        let mut deferred = self.effects.deferred();
        let is_commit = |(_, deferred): &(u64, DeferredEffect)| {
            matches!(deferred, DeferredEffect::Queue(Effect::Perform(TurnAction::Commit(_))))
        };
        self.calls.is_empty() && deferred.next().is_some_and(is_commit) && deferred.len() == 0
    }
}

/// The plan of one exchange with a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttemptPlan {
    /// The number of the attempt in its turn, from 1. It counts the attempts with all models.
    pub attempt: u32,
    /// The index of the model in [`ModelPlans`](super::ModelPlans).
    pub model_index: usize,
    /// True if a streamed response is requested.
    pub streamed: bool,
    /// The delay before the request.
    pub wait: Duration,
    /// The tools that the request leaves out, to find those that the service refuses.
    pub left_out_tools: Vec<String>,
    /// Maximum length of the answer in tokens, because a longer one does not fit into the window behind the request.
    pub output_room: Option<u32>,
}

/// The host's answer to a request for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PermitReply {
    /// The permit is granted.
    Granted,
    /// All permits are held. `Granted` follows later.
    Waiting,
    /// The maximum rate is reached. `Granted` follows later.
    RateLimited,
    /// The server of the tool is not connected yet. `Granted` follows later.
    ServerStarting,
}

/// A decision about a call.
///
/// ```
/// use callsheet::{ApprovalDecision, ApprovalVerdict, PendingApproval, WaitPhase};
///
/// fn approve(pending: &PendingApproval) -> ApprovalDecision {
///     ApprovalDecision {
///         phase: Some(WaitPhase::Before),
///         verdict: ApprovalVerdict::Approved,
///         message: None,
///         arguments_sha256: pending.arguments_sha256.clone(),
///         content: None,
///         author: None,
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ApprovalDecision {
    /// The phase that is decided; `None`: that of the question with this hash, or else of the pending approval.
    pub phase: Option<WaitPhase>,
    /// The verdict.
    pub verdict: ApprovalVerdict,
    /// The message of the person who decided. After a rejection the model receives it, or the tool that asked.
    pub message: Option<String>,
    /// The SHA-256 of the arguments, or of the question, that the decision is about.
    pub arguments_sha256: String,
    /// The answer to a question with a form.
    pub content: Option<Value>,
    /// The author of the decision.
    pub author: Option<Author>,
}

/// The reason why a decision is refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ApprovalError {
    /// The call has no such approval, or the approval is not pending any more and has no decision.
    #[error("this call does not wait for an approval")]
    NoSuchApproval,
    /// The decision is about other arguments than those of the call, or about another question.
    #[error("arguments_sha256 does not match the arguments of the call, or its open question")]
    Stale,
    /// The approval has another decision.
    #[error("the call is already decided: {}", .0.as_str())]
    Decided(ApprovalVerdict),
    /// The call had an approval before it ran too, and the decision does not name its phase.
    #[error("the call waits for its second approval: send \"phase\": \"before\" or \"after\"")]
    WhichPhase,
    /// The answer to a question does not fit it, or a decision that answers no question has content.
    #[error("{0}")]
    Content(String),
}
