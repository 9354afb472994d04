//! The handles of one model and of one agent.

use ::metrics::Histogram;

use super::families::SharedRecorder;
use super::names;
use crate::types::ProviderErrorKind;

/// The handles of one model's good exchanges.
pub(super) struct ModelHandles {
    /// As a label: the model's name, or `other`.
    pub(super) name: String,
    pub(super) duration: Histogram,
    pub(super) first_chunk: Histogram,
    pub(super) input_tokens: Histogram,
    pub(super) output_tokens: Histogram,
}

/// The handles of one agent's runs.
pub(super) struct AgentHandles {
    /// As a label: the agent's name, or `other`.
    pub(super) name: String,
    pub(super) duration: Histogram,
    pub(super) tool_calls: Histogram,
}

impl ModelHandles {
    pub(super) fn new(recorder: &SharedRecorder, model: &str) -> Self {
        let chat = [("gen_ai_operation_name", "chat"), ("gen_ai_request_model", model)];
        let [operation, request] = chat;
        let tokens = |kind| {
            let labels = [operation, request, ("gen_ai_token_type", kind)];
            names::TOKEN_USAGE.histogram(recorder, &labels)
        };
        Self {
            name: model.to_owned(),
            duration: names::OPERATION_DURATION.histogram(recorder, &chat),
            first_chunk: names::FIRST_CHUNK_TIME.histogram(recorder, &chat),
            input_tokens: tokens("input"),
            output_tokens: tokens("output"),
        }
    }
}

impl AgentHandles {
    pub(super) fn new(recorder: &SharedRecorder, agent: &str) -> Self {
        let labels = [("gen_ai_operation_name", "invoke_agent"), ("gen_ai_agent_name", agent)];
        Self {
            name: agent.to_owned(),
            duration: names::INVOKE_AGENT_DURATION.histogram(recorder, &labels),
            tool_calls: names::INVOKE_AGENT_TOOL_CALLS.histogram(recorder, &labels),
        }
    }
}

/// The word for a kind of trouble.
pub(super) fn error_word(kind: ProviderErrorKind) -> &'static str {
    match kind {
        ProviderErrorKind::Connect => "connect",
        ProviderErrorKind::Timeout => "timeout",
        ProviderErrorKind::Transport => "transport",
        ProviderErrorKind::Status => "status",
        ProviderErrorKind::InStream => "in_stream",
        ProviderErrorKind::Malformed => "malformed",
        ProviderErrorKind::TooLarge => "too_large",
        ProviderErrorKind::Unavailable => "unavailable",
    }
}
