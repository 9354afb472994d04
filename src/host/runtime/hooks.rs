//! Asks the hooks of an agent about its turns and calls, and notifies them of the ends of its runs, each within its
//! time limit.

use std::num::NonZeroU32;
use std::sync::Arc;

use serde_json::json;
use tokio::time::{Instant, timeout};

use super::agent::Agent;
use super::model::ModelRequest;
use super::task;
use crate::telemetry::Telemetry;
use callsheet_machines::context::{History, ResultCut};
use callsheet_machines::session::RunResult;
use callsheet_machines::turn::{
    ChangedParameters, EndedTurn, HookChain, HookOutcome, HookRequest, changed_messages, sha256,
};
use callsheet_tools::{HookAnswer, HookError, HookInput, RegisteredHook};
use callsheet_values::types::{HookDecision, HookPoint, ParentCall, RunId, SessionId};
use callsheet_wire::PromptChange;

/// An invocation of the hooks at a point of a run.
pub(super) struct HookInvocation {
    agent: Arc<Agent>,
    chain: HookChain,
    telemetry: Telemetry,
}

impl HookInvocation {
    /// Makes the invocation for a turn or one of its calls.
    pub(super) fn of_turn(
        request: HookRequest,
        (session, run, turn): (&SessionId, &RunId, u32),
        model_request: Option<&ModelRequest>,
        (agent, parent): (&Arc<Agent>, Option<&ParentCall>),
        telemetry: &Telemetry,
    ) -> Self {
        let HookRequest { on, call, outcome, ended } = request;
        let name = Arc::clone(&agent.name);
        let mut input = HookInput::new(on, session.clone(), run.clone(), turn, name);
        set_path(&mut input, parent);
        let mut tool = None;
        // Before or after a call.
        if let Some(call) = call {
            input.tool_id = Some(call.key.to_string());
            input.arguments_sha256 = Some(sha256(&call.arguments));
            input.arguments = Some(call.arguments);
            tool = agent.rules.tools.get(&*call.name).cloned();
            input.tool_name = Some(call.name);
        }
        if let Some(outcome) = outcome {
            input.status = Some(outcome.status);
            input.result = Some(Arc::new((&*outcome.content).into()));
        }
        // After a turn: its messages have the form that they get in the history.
        if let Some(EndedTurn { message, results }) = ended {
            let text = message.as_ref().map_or("", |message| &message.text);
            input.result = Some(Arc::new(text.into()));
            let mut history = History::new();
            let cut = ResultCut { bytes_max: usize::MAX, references: false };
            history.commit(turn, message.as_ref(), &results, cut);
            input.messages = Some(Arc::new(json!(history.messages())));
        }
        if let Some(request) = model_request.filter(|_| on == HookPoint::BeforeRequest) {
            let ModelRequest { system, temperature, max_output_tokens, messages, .. } = request;
            input.messages = Some(Arc::new(json!(messages)));
            let parameters = json!({
                "system": system, "temperature": temperature, "max_output_tokens": max_output_tokens,
            });
            input.parameters = Some(Arc::new(parameters));
        }
        let bytes_max = agent.rules.limits.max_arguments_bytes;
        let chain = HookChain::new(input, tool, bytes_max);
        Self { agent: Arc::clone(agent), chain, telemetry: telemetry.clone() }
    }

    /// Makes the notification of hooks about the end of a run.
    pub(super) fn of_run_end(
        summary: &RunResult,
        (session, turn): (&SessionId, u32),
        (agent, parent): (&Arc<Agent>, Option<&ParentCall>),
        telemetry: &Telemetry,
    ) -> Self {
        let (on, name) = (HookPoint::RunEnd, Arc::clone(&agent.name));
        let mut input = HookInput::new(on, session.clone(), summary.run_id.clone(), turn, name);
        set_path(&mut input, parent);
        input.result = Some(Arc::new(summary.text.as_str().into()));
        input.run_end = Some(summary.end);
        input.error.clone_from(&summary.error);
        let chain = HookChain::new(input, None, 0);
        Self { agent: Arc::clone(agent), chain, telemetry: telemetry.clone() }
    }

    /// Asks the hooks one after the other. Returns what they have decided together.
    pub(super) async fn ask(self) -> HookDecision {
        let Self { agent, mut chain, telemetry } = self;
        for hook in agent.hooks.iter() {
            if chain.is_over() {
                break;
            }
            if !is_asked(hook, chain.input()) {
                continue;
            }
            let began = Instant::now();
            let answer = ask_one(hook, chain.input()).await;
            let outcome = chain.handle_answer(&hook.rule, answer);
            let (name, on) = (hook.rule.name.as_str(), hook.rule.on);
            telemetry.metrics().hook_answered(name, on, outcome.as_str(), began.elapsed());
            if let HookOutcome::Failed(error) | HookOutcome::FailureIgnored(error) = &outcome {
                let (session, refuses) =
                    (chain.input().session_id.as_str(), matches!(outcome, HookOutcome::Failed(_)));
                tracing::warn!(session, hook = name, %on, %error, refuses, "hook_failed");
            }
        }
        chain.into_decision()
    }
}

/// Sets the agents from the topmost session down to a child session.
fn set_path(input: &mut HookInput, parent: Option<&ParentCall>) {
    if let Some(parent) = parent {
        input.agent_path.clone_from(&parent.agent_path);
    }
}

fn is_asked(hook: &RegisteredHook, input: &HookInput) -> bool {
    let concerns_tool = |name: &Arc<str>| hook.rule.concerns_tool(name);
    hook.rule.on == input.on && input.tool_name.as_ref().is_none_or(concerns_tool)
}

/// Returns the request with the messages and parameters of hooks.
pub(super) fn changed_request(request: &ModelRequest, decision: &HookDecision) -> ModelRequest {
    let mut request = request.clone();
    request.prompt_change = Some(PromptChange::Hook);
    // Both were checked when the hook answered.
    let messages =
        decision.messages.as_deref().and_then(|messages| changed_messages(messages).ok());
    request.messages = messages.unwrap_or(request.messages);
    let parameters = decision.parameters.as_deref();
    let changed = parameters.and_then(|parameters| ChangedParameters::parse(parameters).ok());
    let ChangedParameters { system, temperature, max_output_tokens } = changed.unwrap_or_default();
    request.system = system.or(request.system);
    request.temperature = temperature.or(request.temperature);
    request.max_output_tokens =
        max_output_tokens.map(NonZeroU32::get).or(request.max_output_tokens);
    request
}

async fn ask_one(hook: &RegisteredHook, input: &HookInput) -> Result<HookAnswer, HookError> {
    let (asked, input) = (Arc::clone(&hook.hook), input.clone());
    let answer = task::isolated(async move { asked.answer(&input).await });
    let limit = hook.rule.timeout;
    match timeout(limit, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) if error.is_panic() => Err(HookError::new("it panicked")),
        Ok(Err(_)) => Err(HookError::new("the host is shutting down")),
        Err(_) => Err(HookError::new(format!("no answer within {} s", limit.as_secs_f64()))),
    }
}
