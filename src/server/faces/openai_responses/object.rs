//! The object of a response. The specification requires all of its fields.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::fold::{OpenResponse, ResponseStatus};
use super::ids::{ResponseId, conversation_id};
use callsheet_values::config::{ClientTool, RunOverrides};
use callsheet_values::types::{Metadata, ToolChoice, Usage};

/// The name of the pair of a run's metadata that holds what the face alone needs.
pub(super) const FACE_PAIR: &str = "openai";

/// What a request says that no override of a run says. Stored as a pair of the run's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct FacePair {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) previous: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) background: bool,
    /// False if the session is deleted after the run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) unstored: bool,
    /// The name of the form of a typed answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) format: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) conversation: bool,
}

/// The settings of a request, which its responses repeat.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseSettings {
    pub(super) overrides: Arc<RunOverrides>,
    pub(super) metadata: Metadata,
    pub(super) pair: FacePair,
    /// Tools that the client runs in all runs of the session.
    pub(super) session_tools: Option<Arc<[ClientTool]>>,
}

impl ResponseSettings {
    /// Reads the settings of a run.
    pub(super) fn of_run(overrides: Arc<RunOverrides>, metadata: Metadata) -> Self {
        let pair = metadata.get(FACE_PAIR).and_then(|pair| serde_json::from_str(pair).ok());
        Self { overrides, metadata, pair: pair.unwrap_or_default(), session_tools: None }
    }

    /// Returns the pair for the run's metadata, if it says something.
    pub(super) fn pair(pair: &FacePair) -> Option<(String, String)> {
        let text = serde_json::to_string(pair).unwrap_or_default();
        (*pair != FacePair::default()).then(|| (FACE_PAIR.to_owned(), text))
    }

    pub(super) fn is_client_tool(&self, name: &str) -> bool {
        self.client_tools().any(|tool| tool.name == name)
    }

    fn client_tools(&self) -> impl Iterator<Item = &ClientTool> {
        let both = [&self.session_tools, &self.overrides.client_tools];
        both.into_iter().flatten().flat_map(|tools| tools.iter())
    }

    /// Returns the name of the model: that of the agent, and of its model if the request names it.
    pub(super) fn model(&self, agent: &str) -> String {
        match &self.overrides.model {
            Some(model) => format!("{agent}/{model}"),
            None => agent.to_owned(),
        }
    }

    /// Returns the object of a response. In streams a stopped run is an incomplete response.
    pub(super) fn object(
        &self,
        id: &ResponseId,
        model: &str,
        response: &OpenResponse,
        is_part: bool,
    ) -> Value {
        let RunOverrides {
            tool_choice, max_output_tokens, multi_tool_calls, output, limits, ..
        } = &*self.overrides;
        let FacePair { previous, background, unstored, format, conversation } = &self.pair;
        let of_run = response.previous.map(|begins| ResponseId { begins, ..id.clone() });
        let of_run = of_run.filter(|_| !conversation).map(|id| id.to_string());
        let previous = of_run.as_ref().or(previous.as_ref());
        let is_hidden = is_part && response.status == ResponseStatus::Cancelled;
        let status = if is_hidden { ResponseStatus::Incomplete } else { response.status };
        let metadata: serde_json::Map<String, Value> = self
            .metadata
            .iter()
            .filter(|(name, _)| *name != FACE_PAIR)
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        let error = response.error.as_ref();
        let completed = response.ended_ms.filter(|_| status == ResponseStatus::Completed);
        let is_open = status == ResponseStatus::InProgress;
        let format = match output {
            None => json!({"type": "text"}),
            Some(_) => json!({
                "type": "json_schema",
                "name": format.as_deref().unwrap_or("answer"),
                "description": null,
                "schema": null,
                "strict": true,
            }),
        };
        json!({
            "id": id.to_string(),
            "object": "response",
            "created_at": response.created_ms / 1000,
            "completed_at": completed.map(|ms| ms / 1000),
            "status": status.as_str(),
            "incomplete_details": response.incomplete_reason.map(|reason| json!({"reason": reason})),
            "model": model,
            "previous_response_id": previous,
            "conversation": {"id": conversation_id(&id.session)},
            "instructions": self.overrides.instructions,
            "output": response.output().collect::<Vec<_>>(),
            "error": error.map(|error| json!({"code": error.code, "message": error.message})),
            "tools": self.client_tools().map(tool).collect::<Vec<_>>(),
            "tool_choice": tool_choice_value(tool_choice.as_ref()),
            "truncation": "disabled",
            "parallel_tool_calls": multi_tool_calls.unwrap_or(true),
            "text": {"format": format},
            "top_p": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "top_logprobs": 0,
            "temperature": 1.0,
            "reasoning": null,
            "usage": if is_open { Value::Null } else { usage(response.usage) },
            "max_output_tokens": max_output_tokens,
            "max_tool_calls": limits.max_tool_calls_per_run,
            "store": !unstored,
            "background": background,
            "service_tier": "default",
            "metadata": metadata,
            "safety_identifier": null,
            "prompt_cache_key": null,
        })
    }
}

/// Returns the part of a message that is text.
pub(super) fn text_content(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

pub(super) fn refusal_content(text: &str) -> Value {
    json!({"type": "refusal", "refusal": text})
}

fn tool(tool: &ClientTool) -> Value {
    let ClientTool { name, description, input_schema, .. } = tool;
    json!({
        "type": "function",
        "name": name,
        "description": description,
        "parameters": input_schema,
        "strict": false,
    })
}

fn tool_choice_value(choice: Option<&ToolChoice>) -> Value {
    match choice {
        None | Some(ToolChoice::Auto) => "auto".into(),
        Some(ToolChoice::None) => "none".into(),
        Some(ToolChoice::Required) => "required".into(),
        Some(ToolChoice::Tool(name)) => json!({"type": "function", "name": name}),
    }
}

pub(super) fn usage(usage: Usage) -> Value {
    let Usage { input_tokens, output_tokens, cached_tokens, reasoning_tokens } = usage;
    json!({
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": cached_tokens},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": input_tokens + output_tokens,
    })
}
