//! The inputs and effects of a turn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::budget::Budget;
use crate::config::Limits;
use crate::context::Variables;
use crate::event::{Event, TurnTimes};
use crate::record::{Record, ResponseMessage};

pub use crate::record::{CancelReason, TurnEnd};

use crate::tool::ToolSpec;
use crate::types::{
    ApprovalPhase, CallKey, Execution, FinishKind, FinishReason, Judgement, ModelOrigin, ToolCall,
    ToolOutcome, ToolResult, Usage, VariablesUse, Verdict,
};

/// An effect of a turn, which its owner performs in the order in which they are polled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Append the record. All records of one poll loop are one append.
    Record(Record),
    /// Publish the event, behind the records that were polled before it.
    Emit(Event),
    /// Perform the action at once: it waits for no record.
    Perform(TurnAction),
}

/// An action outside the turn, performed as soon as it is polled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TurnAction {
    /// Request a response from the model, after the plan's wait.
    Request(AttemptPlan),
    /// Drop the open exchange, also while it waits to be sent.
    Disconnect,
    /// Request a permit of the call's tool, whose concurrency is limited by the host. The answer is
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
    /// Cancel the running tool, and kill it after `cancel_grace`. The call has its outcome.
    Abort(CallKey),
    /// Write the finished turn to the context. The last effect of a turn but for late outcomes.
    Commit(Box<TurnRecord>),
}

/// A call that starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallStart {
    /// The call.
    pub call: ToolCall,
    /// The variables that the call can read.
    pub variables: Variables,
    /// The key under which the call may run again after a crash.
    pub idempotency_key: String,
}

/// The effects that a turn has asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct EffectQueue {
    ready: VecDeque<Effect>,
    /// Effects that wait until so many records are durable; the numbers never fall.
    deferred: VecDeque<(u64, DeferredEffect)>,
    /// Number of records that the turn has asked for.
    records: u64,
}

/// An effect that waits until a record is durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "nearly all are of the large kind")]
pub(super) enum DeferredEffect {
    /// Queue the effect.
    Queue(Effect),
    /// Start the call, whose intent is the record.
    StartCall(CallKey),
}

impl EffectQueue {
    pub(super) fn record(&mut self, record: Record) {
        self.records += 1;
        self.ready.push_back(Effect::Record(record));
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.ready.push_back(Effect::Emit(event));
    }

    pub(super) fn perform(&mut self, action: TurnAction) {
        self.ready.push_back(Effect::Perform(action));
    }

    /// Defers an effect until every record asked for so far is durable.
    pub(super) fn defer(&mut self, effect: DeferredEffect) {
        self.deferred.push_back((self.records, effect));
    }

    /// Queues the next deferred effect whose records are durable. Returns the call if the effect
    /// is its start.
    pub(super) fn handle_recorded(&mut self, upto: u64) -> Option<CallKey> {
        while let Some((_, deferred)) = self.deferred.pop_front_if(|(needs, _)| *needs <= upto) {
            match deferred {
                DeferredEffect::Queue(effect) => self.ready.push_back(effect),
                DeferredEffect::StartCall(key) => return Some(key),
            }
        }
        None
    }

    pub(super) fn poll(&mut self) -> Option<Effect> {
        self.ready.pop_front()
    }

    /// Number of records that the turn has asked for.
    #[cfg(test)]
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// The deferred effects, each with the number of records that it waits for.
    pub(super) fn deferred(&self) -> impl ExactSizeIterator<Item = &(u64, DeferredEffect)> {
        self.deferred.iter()
    }
}

/// One exchange with the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttemptPlan {
    /// The turn's attempt, from 1, whichever model is asked.
    pub attempt: u32,
    /// Which of the turn's models is asked, from 0.
    pub model: usize,
    /// True if to ask for a streamed answer.
    pub streamed: bool,
    /// The delay before it.
    pub wait: Duration,
}

/// The host's answer to a request for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PermitReply {
    /// The call has it.
    Granted,
    /// All are taken; `Granted` follows when its turn has come.
    Waiting,
}

/// The end of a call, as its supervisor reports it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolCompletion {
    /// The outcome.
    pub outcome: ToolOutcome,
    /// The reads and writes of session variables.
    pub used: VariablesUse,
}

/// A decision about a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ApprovalDecision {
    /// The phase that is decided; `None`: the open one.
    pub phase: Option<ApprovalPhase>,
    /// The verdict, and what is said with it.
    pub judgement: Judgement,
    /// The SHA-256 of the arguments that were shown.
    pub arguments_sha256: String,
}

/// The reason why a decision is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ApprovalError {
    /// No such call waits for this.
    #[error("this call does not wait for an approval")]
    NotAsked,
    /// The call has other arguments than those that were decided about.
    #[error("arguments_sha256 does not match the arguments of the call")]
    Stale,
    /// It was decided otherwise before.
    #[error("the call is already decided: {}", .0.as_str())]
    Decided(Verdict),
    /// The call was asked about before it ran too, and the decision does not say what it is about.
    #[error("the call waits for its second approval: send \"phase\": \"before\" or \"after\"")]
    WhichPhase,
}

/// The rules that are the same for all turns of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TurnRules {
    /// The tools that are offered, by name.
    pub tools: BTreeMap<String, Arc<ToolSpec>>,
    /// The limits.
    pub limits: Limits,
    /// The execution of calls.
    pub execution: Execution,
    /// True if more than the first call of a response is kept.
    pub multi_tool_calls: bool,
    /// True if calls may start while the response is still coming.
    pub early_start: bool,
    /// Whom each turn asks, from the first model again.
    pub models: Arc<ModelPlans>,
}

/// A model as a turn asks it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelPlan {
    /// Its wire, and its name at its service.
    pub origin: Arc<ModelOrigin>,
    /// True if to ask for streamed answers.
    pub streamed: bool,
    /// The number of attempts of a turn with this model.
    pub max_attempts: u32,
}

/// The models of a turn, of which there is at least one: each is asked when the attempts with the
/// one before it are used up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelPlans {
    first: ModelPlan,
    fallbacks: Vec<ModelPlan>,
}

impl ModelPlans {
    /// A model, and those that it may fall back on.
    #[must_use]
    pub fn new(first: ModelPlan, fallbacks: Vec<ModelPlan>) -> Self {
        Self { first, fallbacks }
    }

    /// The model that is asked first.
    #[must_use]
    pub fn first(&self) -> &ModelPlan {
        &self.first
    }

    /// The model at a place, from 0; the first where there is none.
    #[must_use]
    pub fn at(&self, index: usize) -> &ModelPlan {
        self.iter().nth(index).unwrap_or(&self.first)
    }

    /// The models in their order.
    pub fn iter(&self) -> impl Iterator<Item = &ModelPlan> {
        std::iter::once(&self.first).chain(&self.fallbacks)
    }
}

/// The values with which a turn starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TurnSpec {
    /// The session's turn, from 1.
    pub number: u32,
    /// The number of earlier turns with calls in the session: the `n` of `call_{n}_{index}`.
    pub turns_with_calls: u32,
    /// Ids of the form `call_*` that the history holds.
    pub used_call_ids: Arc<BTreeSet<String>>,
    /// True if this is the last request: no call in its answer is run or kept.
    pub last_request: bool,
    /// The remaining budget of the run.
    pub budget: Budget,
    /// When the turn began, since the run began.
    pub began: Duration,
    /// How long the run may still take; while people are all that it waits for, nothing of that
    /// passes.
    pub run_time_left: Option<Duration>,
    /// The session's variables at the beginning.
    pub variables: Variables,
    /// Spreads the waits between attempts of different sessions.
    pub seed: u64,
    /// Idempotency keys are this, a slash and the call's key; the session's id.
    pub idempotency_scope: String,
    /// The rules of the run.
    pub rules: Arc<TurnRules>,
}

impl TurnSpec {
    /// The key under which a call may be run again after a crash.
    #[must_use]
    pub fn idempotency_key(&self, key: CallKey) -> String {
        format!("{}/{key}", self.idempotency_scope)
    }
}

/// A turn that is over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TurnRecord {
    /// The session's turn.
    pub number: u32,
    /// The end of the turn.
    pub end: TurnEnd,
    /// The model's message; `None` if the response is void.
    pub message: Option<Arc<ResponseMessage>>,
    /// One result for each call of the message, in call order.
    pub results: Vec<ToolResult>,
    /// Names of calls that were decoded but not kept.
    pub dropped_calls: Vec<Arc<str>>,
    /// The finish reason of the response.
    pub finish_reason: Option<FinishReason>,
    /// The usage of the turn, all attempts together.
    pub usage: Usage,
    /// The times of the turn.
    pub times: TurnTimes,
}

impl TurnRecord {
    /// Returns whether the service interrupted its response, and goes on when it is sent what it has said.
    /// Where it has said nothing there is nothing to go on from.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        let paused = |finish: &FinishReason| finish.kind == FinishKind::Pause;
        self.finish_reason.as_ref().is_some_and(paused)
            && self.message.as_ref().is_some_and(|message| !message.is_blank())
    }
}
