//! The request of `useChat`: the messages of the page, of which only the last one says something new. Before it stands
//! what the session has.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::chats::ChatError;
use super::super::replies::{Decision, Replies};
use super::super::waits::{KnownWaits, WaitId};
use callsheet_tools::ToolOutput;
use callsheet_values::config::{ClientTool, RunOverrides};
use callsheet_values::types::{CallKey, Content, ContentPart, Image, Metadata, RunId, excerpt};

/// The body of `POST /v1/ui/{agent}`. `client_tools`, `model` and `metadata` are ours: a page adds them with the option
/// `body` of its transport. `AssistantChatTransport` of `@assistant-ui/ai-sdk` adds `tools`, `system`, `callSettings` and
/// `config`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UiRequest {
    pub(super) id: String,
    messages: Vec<UiMessage>,
    #[serde(default)]
    pub(super) trigger: ChatTrigger,
    #[serde(rename = "messageId")]
    _message_id: Option<String>,
    client_tools: Option<Arc<[ClientTool]>>,
    model: Option<String>,
    #[serde(default, deserialize_with = "super::super::super::runs::metadata")]
    pub(super) metadata: Metadata,
    /// The page's own tools, by name.
    tools: Option<BTreeMap<String, PageTool>>,
    system: Option<String>,
    #[serde(rename = "callSettings")]
    call_settings: Option<Map<String, Value>>,
    config: Option<Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PageTool {
    #[serde(default)]
    description: String,
    parameters: Option<Value>,
    provider_options: Option<Map<String, Value>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ChatTrigger {
    #[default]
    SubmitMessage,
    RegenerateMessage,
}

#[derive(Debug, Deserialize)]
struct UiMessage {
    #[serde(default)]
    id: String,
    role: Role,
    #[serde(default)]
    parts: Vec<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    User,
    Assistant,
}

/// What the last message asks for.
#[derive(Debug)]
pub(super) enum UiAction {
    /// A run with this input.
    Run(Content),
    /// The rest of the message of a run.
    Rest { run: RunId, replies: Replies, known: KnownWaits },
}

impl UiRequest {
    /// Returns what the request changes of the agent.
    pub(super) fn overrides(&self) -> RunOverrides {
        let tools = self.tools.iter().flatten().map(|(name, tool)| {
            let schema = tool.parameters.clone().unwrap_or_else(|| json!({"type": "object"}));
            ClientTool::new(name, &tool.description, schema)
        });
        let tools: Vec<_> =
            self.client_tools.iter().flat_map(|tools| tools.iter().cloned()).chain(tools).collect();
        RunOverrides::default().with(|overrides| {
            overrides.client_tools = Some(tools.into()).filter(|_: &Arc<[_]>| self.has_tools());
            overrides.model.clone_from(&self.model);
            let system = self.system.clone();
            overrides.instructions = system.filter(|text| !text.trim().is_empty());
        })
    }

    fn has_tools(&self) -> bool {
        self.client_tools.is_some() || self.tools.as_ref().is_some_and(|tools| !tools.is_empty())
    }

    /// Returns the names of the members that have no effect.
    pub(super) fn ignored(&self) -> Vec<&'static str> {
        let is_filled = |map: &Option<Map<_, _>>| map.as_ref().is_some_and(|map| !map.is_empty());
        let mut tools = self.tools.iter().flat_map(BTreeMap::values);
        let names = [
            ("callSettings", is_filled(&self.call_settings)),
            ("config", is_filled(&self.config)),
            ("tools.providerOptions", tools.any(|tool| is_filled(&tool.provider_options))),
        ];
        names.into_iter().filter(|(_, is_sent)| *is_sent).map(|(name, _)| name).collect()
    }

    /// Returns the id of the last message.
    pub(super) fn last_id(&self) -> &str {
        self.messages.last().map_or("", |message| &message.id)
    }

    /// Returns what the last message asks for.
    pub(super) fn asked(&self) -> Result<UiAction, ChatError> {
        let Some((last, at)) = self.messages.last().zip(self.messages.len().checked_sub(1)) else {
            return Err(ChatError::bad_request("messages: must have at least one message"));
        };
        match last.role {
            Role::User => Ok(UiAction::Run(input(&last.parts, at)?)),
            Role::Assistant => rest(last, at),
            Role::System => {
                let message = "the last message must be one of the user, or of the assistant with \
                               answers to what it waits for; the system's text is the agent's own";
                Err(ChatError::bad_request(format!("messages[{at}]: {message}")))
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum UserPart {
    Text {
        text: String,
    },
    #[serde(rename_all = "camelCase")]
    File {
        media_type: String,
        url: String,
    },
}

fn input(parts: &[Value], at: usize) -> Result<Content, ChatError> {
    let parts = parts.iter().enumerate().map(|(part, value)| {
        let invalid = |reason: String| {
            ChatError::bad_request(format!("messages[{at}].parts[{part}]: {reason}"))
        };
        match UserPart::deserialize(value) {
            Ok(UserPart::Text { text }) => Ok(ContentPart::Text(text)),
            Ok(UserPart::File { media_type, url }) if media_type.starts_with("image/") => {
                let image = Image::parse(&url).map_err(|error| invalid(error.to_string()))?;
                Ok(ContentPart::Image(image))
            }
            Ok(UserPart::File { media_type, .. }) => {
                let media_type = excerpt(&media_type, 64);
                Err(invalid(format!("a file must be an image, not {media_type:?}")))
            }
            Err(error) => Err(invalid(format!("must be a text or a file: {error}"))),
        }
    });
    Ok(Content::from(parts.collect::<Result<Vec<_>, _>>()?))
}

/// A part of the assistant's message that may have an answer of the page.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolPart {
    #[serde(rename = "type")]
    kind: String,
    tool_call_id: Option<String>,
    #[serde(default)]
    state: String,
    output: Option<Value>,
    error_text: Option<String>,
    #[serde(default)]
    provider_executed: bool,
    approval: Option<Approval>,
}

#[derive(Deserialize)]
struct Approval {
    id: String,
    approved: Option<bool>,
    reason: Option<String>,
}

fn rest(message: &UiMessage, at: usize) -> Result<UiAction, ChatError> {
    let (mut replies, mut known) = (Replies::default(), KnownWaits::default());
    for (part, value) in message.parts.iter().enumerate() {
        let invalid = |reason: &str| {
            ChatError::bad_request(format!("messages[{at}].parts[{part}]: {reason}"))
        };
        // Parts of other types have other members.
        let Ok(tool) = ToolPart::deserialize(value) else { continue };
        if !tool.kind.starts_with("tool-") && tool.kind != "dynamic-tool" {
            continue;
        }
        if let Some(Approval { id, approved: Some(is_approved), reason }) = &tool.approval {
            let id: WaitId = id.parse().map_err(|()| invalid("approval.id is none of this API"))?;
            known.answered.insert(id.clone());
            if tool.state == "approval-responded" {
                known.decided_children.extend(id.child.is_some().then(|| id.call_id()));
                replies.decisions.push(decision(id, *is_approved, reason.as_deref()));
            }
        }
        let id = tool.tool_call_id.as_deref().unwrap_or_default();
        if !tool.provider_executed
            && let Some(output) = output(&tool)
        {
            let key: CallKey = id.parse().map_err(|_| invalid("toolCallId is none of this API"))?;
            known.answered_calls.insert(key);
            replies.results.push((key, output));
        }
    }
    if replies.is_empty() {
        let reason = "the last message is the assistant's, and answers nothing: append a message of \
                      the user, or answer what it waits for";
        return Err(ChatError::bad_request(format!("messages[{at}]: {reason}")));
    }
    Ok(UiAction::Rest { run: RunId(message.id.as_str().into()), replies, known })
}

/// A reason that is a JSON object is the answer to a question with a form: approvals have no other member for it.
fn decision(id: WaitId, is_approved: bool, reason: Option<&str>) -> Decision {
    let content =
        reason.filter(|_| is_approved).and_then(|reason| serde_json::from_str(reason).ok());
    let content = content.filter(Value::is_object);
    let message = reason.filter(|_| content.is_none()).map(str::to_owned);
    Decision { id, is_approved, message, content }
}

/// Returns the result of a call that the page has run.
fn output(tool: &ToolPart) -> Option<ToolOutput> {
    match tool.state.as_str() {
        "output-available" => Some(match tool.output.clone().unwrap_or_default() {
            Value::String(text) => text.into(),
            value @ Value::Object(_) => ToolOutput::default().with_structured(value),
            value @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_)) => {
                ToolOutput::from(value.to_string())
            }
        }),
        "output-error" => {
            let text = tool.error_text.clone().unwrap_or_default();
            Some(ToolOutput::from(text).into_error())
        }
        _ => None,
    }
}
