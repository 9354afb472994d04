//! The values with which a turn starts: its rules, its models and its budget. Also the idempotency keys
//! of its tool calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::output::OutputRules;
use crate::context::Variables;
use crate::context::exclusion::Excludable;
use crate::contract::ToolSpec;
use callsheet_values::config::{ContextPolicy, Limits, OnRefusal, ToolPattern};
use callsheet_values::types::{
    CallKey, Execution, FINAL_ANSWER, HookPoint, ModelOrigin, OutputMode, RequestKind, RunId,
    ToolChoice, USE_TOOL,
};

/// The values with which a turn starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TurnSpec {
    /// The number of the turn in its session, from 1.
    pub number: u32,
    /// The number of earlier turns with calls in the session: the first `n` that is tried for the id
    /// `call_{n}_{index}` of a call.
    pub turns_with_calls: u32,
    /// The ids of the form `call_{n}_{index}` in the history. Generated ids differ from them.
    pub used_call_ids: Arc<BTreeSet<String>>,
    /// The kind of the turn's request.
    pub request_kind: RequestKind,
    /// The remaining budget of the run.
    pub budget: Budget,
    /// The time between the start of the run and that of the turn.
    pub run_elapsed: Duration,
    /// The remaining time of the run. It does not decrease while the turn waits only for
    /// people.
    pub run_time_left: Option<Duration>,
    /// The context window of the first model in tokens, if it is configured or learnt.
    pub window: Option<u64>,
    /// The content that the request may lose if its service refuses it.
    pub excludable: Excludable,
    /// The hash of what precedes the messages in the requests, if it differs from that of the turn before.
    pub new_prompt: Option<u64>,
    /// The session's variables at the start of the turn.
    pub variables: Variables,
    /// The seed of the backoff's jitter.
    pub seed: u64,
    /// The run, whose id begins the idempotency keys of its calls.
    pub run: RunId,
    /// The rules of the run.
    pub rules: Arc<RunRules>,
}

impl TurnSpec {
    /// Returns the idempotency key of a tool call.
    #[must_use]
    pub fn idempotency_key(&self, key: CallKey) -> String {
        key.idempotency_key(&self.run)
    }

    /// Returns the tool that a call of this name means, if the turn has one.
    pub(super) fn tool(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        if name == FINAL_ANSWER {
            let output = self.rules.output.as_ref();
            let is_asked = self.request_kind == RequestKind::Output(OutputMode::Tool);
            return output.filter(|_| is_asked).map(|output| &output.final_answer);
        }
        self.rules.tools.get(name)
    }
}

/// The rest of a run's limits when one of its turns begins. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Tokens, input and output together.
    pub tokens_left: Option<u64>,
    /// Calls that may still be kept.
    pub calls_left: Option<u32>,
}

/// A point at which a hook is asked, and the calls that it is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HookScope {
    /// The point.
    pub on: HookPoint,
    /// The tools. `None`: all.
    pub tools: Option<Vec<ToolPattern>>,
}

impl HookScope {
    /// Returns whether the hook is asked at this point about calls of this tool.
    #[must_use]
    pub fn contains(&self, on: HookPoint, tool: &str) -> bool {
        let is_named = |tools: &Vec<ToolPattern>| tools.iter().any(|name| name.matches(tool));
        self.on == on && self.tools.as_ref().is_none_or(is_named)
    }
}

/// The rules that are the same for all turns of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunRules {
    /// The tools that the model may call, by name. With a search, requests define only some of them.
    pub tools: BTreeMap<String, Arc<ToolSpec>>,
    /// True if the model finds tools with a search and calls them with `use_tool`.
    pub uses_tool_search: bool,
    /// The tools that only a search finds: no request defines them.
    pub search_only_tools: Arc<BTreeSet<String>>,
    /// The limits.
    pub limits: Limits,
    /// The execution of calls.
    pub execution: Execution,
    /// True if more than the first call of a response is kept.
    pub multi_tool_calls: bool,
    /// True if calls may start before the response has ended.
    pub early_start: bool,
    /// The consequence of a refused answer.
    pub on_refusal: OnRefusal,
    /// True if servers may offer some of the tools. Their lists are frozen before the session's first turn.
    pub has_servers: bool,
    /// The tokens of tools and system text in each request, by estimate.
    pub fixed_tokens: u64,
    /// The share of the system text in `fixed_tokens`.
    pub system_tokens: u64,
    /// The rules that keep the context small.
    pub context: ContextPolicy,
    /// The points at which hooks are asked, and the calls that they are asked about.
    pub hooks: Arc<[HookScope]>,
    /// The rule for calling tools. A call is forced in the first turn only.
    pub tool_choice: ToolChoice,
    /// The rules of the typed answer.
    pub output: Option<Arc<OutputRules>>,
    /// The models. Each turn starts with the first one.
    pub models: Arc<ModelPlans>,
}

impl RunRules {
    /// Returns whether a hook is asked at this point about the turn.
    pub(super) fn has_turn_hook(&self, on: HookPoint) -> bool {
        self.hooks.iter().any(|scope| scope.on == on)
    }

    /// Returns whether a hook is asked at this point about calls of this tool. No hook is asked about `final_answer`:
    /// its call is the answer of the model, and runs nothing.
    pub(super) fn has_hook(&self, on: HookPoint, tool: &str) -> bool {
        tool != FINAL_ANSWER && self.hooks.iter().any(|scope| scope.contains(on, tool))
    }

    /// Returns whether a call of this name means another tool.
    pub(super) fn is_use_tool(&self, name: &str) -> bool {
        self.uses_tool_search && name == USE_TOOL
    }
}

/// A model of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelPlan {
    /// The wire format of the model and its name at its service.
    pub origin: Arc<ModelOrigin>,
    /// The name in events and records: see [`displayed_model_name`](callsheet_values::config::displayed_model_name).
    pub displayed_name: Arc<str>,
    /// True if streamed responses are requested.
    pub streamed: bool,
    /// The maximum number of attempts of a turn with this model. One with a smaller context may exceed it, and the
    /// count begins again when the turn is resumed.
    pub max_attempts: u32,
    /// The configured context window of the model, in tokens.
    pub context_window: Option<u64>,
}

/// The models of a turn, at least one. `turn::retry` decides when the next one is requested.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelPlans {
    first: ModelPlan,
    fallbacks: Vec<ModelPlan>,
}

impl ModelPlans {
    /// Returns a model with its fallbacks.
    #[must_use]
    pub fn new(first: ModelPlan, fallbacks: Vec<ModelPlan>) -> Self {
        Self { first, fallbacks }
    }

    /// Returns the model of the first attempt.
    #[must_use]
    pub fn first(&self) -> &ModelPlan {
        &self.first
    }

    /// Returns the model at an index, or the first model if there is none.
    #[must_use]
    pub fn at(&self, index: usize) -> &ModelPlan {
        self.iter().nth(index).unwrap_or(&self.first)
    }

    /// Returns the models in their order.
    pub fn iter(&self) -> impl Iterator<Item = &ModelPlan> {
        std::iter::once(&self.first).chain(&self.fallbacks)
    }
}
