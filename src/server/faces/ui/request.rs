//! The request of `useChat`: the messages of the page, of which only the last one says something new. Before it stands
//! what the session has.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::super::error::ApiError;
use super::super::chats::{self, ChatBody};
use super::super::replies::{ChatAction, Replies};
use super::super::waits::WaitId;
use callsheet_host::telemetry::FaceKind;
use callsheet_tools::ToolOutput;
use callsheet_values::config::{ClientTool, RunOverrides};
use callsheet_values::types::{CallKey, Content, ContentPart, Image, Metadata, excerpt};

/// The body of `POST /v1/ui/{agent}`. `client_tools`, `model` and `metadata` are ours: a page adds them with the option
/// `body` of its transport. `AssistantChatTransport` of `@assistant-ui/ai-sdk` adds `tools`, `system`, `callSettings` and
/// `config`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UiRequest {
    id: String,
    messages: Vec<UiMessage>,
    #[serde(default)]
    pub(super) trigger: ChatTrigger,
    #[serde(rename = "messageId")]
    _message_id: Option<String>,
    client_tools: Option<Arc<[ClientTool]>>,
    model: Option<String>,
    #[serde(default, deserialize_with = "super::super::super::runs::metadata")]
    metadata: Metadata,
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

impl UiRequest {
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

    /// Returns what the last message asks for.
    pub(super) fn asked(&self) -> Result<ChatAction, ApiError> {
        let Some((last, at)) = self.messages.last().zip(self.messages.len().checked_sub(1)) else {
            return Err(chats::bad_request("messages: must have at least one message"));
        };
        match last.role {
            Role::User => Ok(ChatAction::Run(input(&last.parts, at)?)),
            Role::Assistant => rest(last, at),
            Role::System => {
                let message = "the last message must be one of the user, or of the assistant with \
                               answers to what it waits for; the system's text is the agent's own";
                Err(chats::bad_request(format!("messages[{at}]: {message}")))
            }
        }
    }
}

impl ChatBody for UiRequest {
    const FACE: FaceKind = FaceKind::Ui;
    const ID_PAIR: &'static str = "ui";

    fn chat(&self) -> &str {
        &self.id
    }

    fn last_id(&self) -> &str {
        self.messages.last().map_or("", |message| &message.id)
    }

    fn overrides(&self) -> RunOverrides {
        let own = self.client_tools.iter().flat_map(|tools| tools.iter().cloned());
        let of_page = self.tools.iter().flatten().map(|(name, tool)| {
            chats::client_tool(name, &tool.description, tool.parameters.as_ref())
        });
        let tools: Arc<[ClientTool]> = own.chain(of_page).collect();
        let has_tools = self.client_tools.is_some() || !tools.is_empty();
        RunOverrides::default().with(|overrides| {
            overrides.client_tools = has_tools.then_some(tools);
            overrides.model.clone_from(&self.model);
            overrides.instructions = self.system.clone().filter(|text| !text.trim().is_empty());
        })
    }

    fn metadata(&self) -> Metadata {
        self.metadata.clone()
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

fn input(parts: &[Value], at: usize) -> Result<Content, ApiError> {
    let path = format!("messages[{at}].parts");
    chats::read_parts(parts, &path, "a text or a file", |part| match part {
        UserPart::Text { text } => Ok(ContentPart::Text(text)),
        UserPart::File { media_type, url } if media_type.starts_with("image/") => {
            Image::parse(&url).map(ContentPart::Image).map_err(|error| error.to_string())
        }
        UserPart::File { media_type, .. } => {
            Err(format!("a file must be an image, not {:?}", excerpt(&media_type, 64)))
        }
    })
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

fn rest(message: &UiMessage, at: usize) -> Result<ChatAction, ApiError> {
    let mut replies = Replies::default();
    for (part, value) in message.parts.iter().enumerate() {
        let invalid =
            |reason: &str| chats::bad_request(format!("messages[{at}].parts[{part}]: {reason}"));
        // Parts of other types have other members.
        let Ok(tool) = ToolPart::deserialize(value) else { continue };
        if !tool.kind.starts_with("tool-") && tool.kind != "dynamic-tool" {
            continue;
        }
        if let Some(Approval { id, approved: Some(is_approved), reason }) = &tool.approval {
            let id: WaitId = id.parse().map_err(|()| invalid("approval.id is none of this API"))?;
            if tool.state == "approval-responded" {
                // A reason that is a JSON object is the answer to a question with a form: approvals have no other
                // member for it.
                let content = reason.as_deref().filter(|_| *is_approved);
                let content = content.and_then(|reason| serde_json::from_str(reason).ok());
                let content = content.filter(Value::is_object);
                let message = reason.clone().filter(|_| content.is_none());
                replies.decide(id, *is_approved, message, content);
            } else if id.child.is_none() {
                replies.earlier.insert(id);
            }
        }
        let id = tool.tool_call_id.as_deref().unwrap_or_default();
        if !tool.provider_executed
            && let Some(output) = output(&tool)
        {
            let key: CallKey = id.parse().map_err(|_| invalid("toolCallId is none of this API"))?;
            replies.results.push((key, output));
        }
    }
    if replies.is_empty() {
        let reason = "the last message is the assistant's, and answers nothing: append a message of \
                      the user, or answer what it waits for";
        return Err(chats::bad_request(format!("messages[{at}]: {reason}")));
    }
    Ok(ChatAction::Rest(replies))
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
