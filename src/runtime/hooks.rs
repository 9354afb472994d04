//! Asks the hooks of an agent, each within its time limit.

use std::sync::Arc;

use tokio::time::{Instant, timeout};

use super::agent::Agent;
use super::task;
use crate::telemetry::Telemetry;
use crate::tool::{HookAnswer, HookError, HookInput, RegisteredHook};
use crate::turn::{HookChain, HookOutcome, HookRequest, sha256};
use crate::types::{HookDecision, RunId, SessionId};

/// What is asked at a point of a run.
pub(super) struct HookQuestion {
    agent: Arc<Agent>,
    chain: HookChain,
    telemetry: Telemetry,
}

impl HookQuestion {
    /// Makes the question about a call.
    pub(super) fn about_call(
        request: HookRequest,
        (session, run, turn): (&SessionId, &RunId, u32),
        agent: &Arc<Agent>,
        telemetry: &Telemetry,
    ) -> Self {
        let HookRequest { on, call, outcome } = request;
        let name = Arc::clone(&agent.name);
        let mut input = HookInput::new(on, session.clone(), run.clone(), turn, name);
        input.tool_id = Some(call.key.to_string());
        input.arguments_sha256 = Some(sha256(&call.arguments));
        input.arguments = Some(call.arguments);
        if let Some(outcome) = outcome {
            input.status = Some(outcome.status);
            input.result = Some(Arc::new((&*outcome.content).into()));
        }
        let tool = agent.rules.tools.get(&*call.name).cloned();
        input.tool_name = Some(call.name);
        let bytes_max = agent.rules.limits.max_arguments_bytes;
        let chain = HookChain::new(input, tool, bytes_max);
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

fn is_asked(hook: &RegisteredHook, input: &HookInput) -> bool {
    let concerns_tool = |name: &Arc<str>| hook.rule.concerns_tool(name);
    hook.rule.on == input.on && input.tool_name.as_ref().is_none_or(concerns_tool)
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
