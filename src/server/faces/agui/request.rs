//! The request of AG-UI, `RunAgentInput`. The thread is the session. The client sends all messages that it has; only the
//! last ones say something new, and `resume` answers what the last run waited for.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::super::error::ApiError;
use super::super::chats::{self, ChatBody};
use super::super::replies::{ChatAction, Replies};
use super::super::waits::KnownWaits;
use callsheet_host::runtime::SessionSnapshot;
use callsheet_host::telemetry::FaceKind;
use callsheet_tools::ToolOutput;
use callsheet_values::config::{ClientTool, RunOverrides};
use callsheet_values::types::{Content, ContentPart, Image, excerpt};

/// The body of `POST /v1/agui/{agent}`. Members that the protocol has and this host does not need are not read: `state`
/// (the host's variables are what counts), `forwardedProps`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunAgentInput {
    thread_id: String,
    pub(super) run_id: String,
    pub(super) messages: Vec<AguiMessage>,
    #[serde(default)]
    tools: Vec<AguiTool>,
    #[serde(default)]
    context: Vec<AguiContext>,
    #[serde(default)]
    resume: Option<Vec<ResumeEntry>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AguiMessage {
    pub(super) id: String,
    pub(super) role: String,
    #[serde(default)]
    pub(super) content: Value,
    tool_call_id: Option<String>,
    #[serde(default)]
    tool_calls: Vec<Value>,
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct AguiTool {
    name: String,
    #[serde(default)]
    description: String,
    parameters: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct AguiContext {
    description: String,
    value: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResumeEntry {
    interrupt_id: String,
    status: ResumeStatus,
    #[serde(default)]
    payload: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ResumeStatus {
    Resolved,
    Cancelled,
}

impl RunAgentInput {
    pub(super) fn asked(&self) -> Result<ChatAction, ApiError> {
        let resume = self.resume.as_deref().unwrap_or_default();
        match self.messages.last().map(|message| message.role.as_str()) {
            _ if !resume.is_empty() => Ok(ChatAction::Rest(self.replies(resume)?)),
            Some("user") => Ok(ChatAction::Run(self.input()?)),
            Some("tool") => Ok(ChatAction::Rest(self.replies(resume)?)),
            Some(_) | None => Err(chats::bad_request(
                "messages: the last one must be one of the user or the result of a tool, unless \
                 resume answers what the run waits for",
            )),
        }
    }

    /// Returns whether the last message is one of the user.
    pub(super) fn ends_with_user(&self) -> bool {
        self.messages.last().is_some_and(|message| message.role == "user")
    }

    /// Returns the messages before the last one.
    pub(super) fn earlier(&self) -> &[AguiMessage] {
        self.messages.split_last().map_or(&[], |(_, earlier)| earlier)
    }

    /// Returns the input of the last message.
    pub(super) fn input(&self) -> Result<Content, ApiError> {
        let last = self.messages.last().map_or(&Value::Null, |message| &message.content);
        input(last, self.messages.len().saturating_sub(1))
    }

    fn replies(&self, resume: &[ResumeEntry]) -> Result<Replies, ApiError> {
        let mut replies = Replies::default();
        for (at, entry) in resume.iter().enumerate() {
            let invalid = |reason: &str| chats::bad_request(format!("resume[{at}]: {reason}"));
            entry.add_to(&mut replies).map_err(invalid)?;
        }
        for message in self.messages.iter().filter(|message| message.role == "tool") {
            let key = message.tool_call_id.as_deref().and_then(|id| id.parse().ok());
            let Some(key) = key else { continue };
            let text = text_of(&message.content);
            let output = match &message.error {
                Some(error) if text.is_empty() => ToolOutput::from(error.clone()).into_error(),
                Some(_) => ToolOutput::from(text).into_error(),
                None => ToolOutput::from(text),
            };
            replies.results.push((key, output));
        }
        Ok(replies)
    }
}

impl ChatBody for RunAgentInput {
    const FACE: FaceKind = FaceKind::Agui;
    const ID_PAIR: &'static str = "agui";

    fn chat(&self) -> &str {
        &self.thread_id
    }

    fn last_id(&self) -> &str {
        self.messages.last().map_or("", |message| &message.id)
    }

    /// Messages of other roles are for the page alone.
    fn history(&self) -> Result<Vec<Value>, ApiError> {
        let mut history = Vec::new();
        let mut open = BTreeSet::<String>::new();
        for (at, message) in self.messages.iter().enumerate() {
            let text = text_of(&message.content);
            let is_result =
                message.tool_call_id.as_ref().is_some_and(|id| open.remove(id.as_str()));
            if message.role == "tool" && !is_result {
                let problem = "has the result of no call of the message before it";
                return Err(chats::bad_request(format!("messages[{at}]: {problem}")));
            }
            if let (false, Some(id)) = (message.role == "tool", open.first()) {
                let id = excerpt(id, 64);
                let problem = format!("messages[{at}]: the call {id:?} before it has no result");
                return Err(chats::bad_request(problem));
            }
            let calls = message.tool_calls.iter().filter_map(|call| call["id"].as_str());
            open.extend(calls.map(str::to_owned));
            if at + 1 == self.messages.len() {
                break;
            }
            match message.role.as_str() {
                "user" => {
                    let content = input(&message.content, at)?;
                    history.push(json!({"role": "user", "content": content}));
                }
                "assistant" if !(text.is_empty() && message.tool_calls.is_empty()) => {
                    let calls = &message.tool_calls;
                    history
                        .push(json!({"role": "assistant", "content": text, "tool_calls": calls}));
                }
                "tool" => {
                    let call = &message.tool_call_id;
                    history.push(json!({"role": "tool", "tool_call_id": call, "content": text}));
                }
                _ => {}
            }
        }
        Ok(history)
    }

    /// The tools are those that the client runs. The messages of the system and the context become instructions.
    fn overrides(&self) -> RunOverrides {
        let tools = self.tools.iter().map(|AguiTool { name, description, parameters }| {
            chats::client_tool(name, description, parameters.as_ref())
        });
        let tools: Arc<[ClientTool]> = tools.collect();
        let is_of_system =
            |message: &&AguiMessage| ["system", "developer"].contains(&message.role.as_str());
        let system = self.messages.iter().filter(is_of_system).map(|it| text_of(&it.content));
        let context = self.context.iter();
        let context =
            context.map(|AguiContext { description, value }| format!("{description}:\n{value}"));
        let texts = system.filter(|text| !text.is_empty()).chain(context);
        let instructions = texts.collect::<Vec<_>>().join("\n\n");
        RunOverrides::default().with(|overrides| {
            overrides.client_tools = Some(tools).filter(|tools| !tools.is_empty());
            overrides.instructions = Some(instructions).filter(|text| !text.is_empty());
        })
    }
}

impl ResumeEntry {
    /// The payload is `{"approved", "message"?}`, a boolean, or the object that a question with a form asks for.
    fn add_to(&self, replies: &mut Replies) -> Result<(), &'static str> {
        let id = self.interrupt_id.parse().map_err(|()| "interruptId is none of this API")?;
        let approved = self.payload.get("approved").unwrap_or(&self.payload).as_bool();
        let message = self.payload.get("message").and_then(Value::as_str).map(str::to_owned);
        match (self.status, approved) {
            (ResumeStatus::Cancelled, _) => replies.decide(id, false, message, None),
            (ResumeStatus::Resolved, Some(is_approved)) => {
                replies.decide(id, is_approved, message, None);
            }
            (ResumeStatus::Resolved, None) if self.payload.is_object() => {
                replies.decide(id, true, None, Some(self.payload.clone()));
            }
            (ResumeStatus::Resolved, None) => {
                return Err("payload must be {\"approved\": true or false, \"message\"?}, or the \
                            object that the question asks for");
            }
        }
        Ok(())
    }
}

/// Checks that a request answers all approvals and questions that are open in the session.
pub(super) fn check_answered(
    snapshot: &SessionSnapshot,
    replies: &Replies,
) -> Result<(), ApiError> {
    let KnownWaits { open, answered, .. } = replies.known(snapshot);
    let open: Vec<String> = open.difference(&answered).map(ToString::to_string).collect();
    if open.is_empty() {
        return Ok(());
    }
    let message =
        format!("resume must answer all interrupts that are open; it lacks {}", open.join(", "));
    Err(chats::bad_request(message))
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum InputPart {
    Text { text: String },
    Image { source: PartSource },
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum PartSource {
    #[serde(rename_all = "camelCase")]
    Data {
        value: String,
        mime_type: String,
    },
    Url {
        value: String,
    },
}

fn input(content: &Value, at: usize) -> Result<Content, ApiError> {
    let path = format!("messages[{at}].content");
    let parts = match content {
        Value::String(text) => return Ok(text.as_str().into()),
        Value::Array(parts) => parts,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            let message = format!("{path}: must be a text or a list of parts");
            return Err(chats::bad_request(message));
        }
    };
    chats::read_parts(parts, &path, "a text or an image", |part| {
        let url = match part {
            InputPart::Text { text } => return Ok(ContentPart::Text(text)),
            InputPart::Image { source: PartSource::Url { value } } => value,
            InputPart::Image { source: PartSource::Data { value, mime_type } } => {
                format!("data:{mime_type};base64,{value}")
            }
        };
        Image::parse(&url).map(ContentPart::Image).map_err(|error| error.to_string())
    })
}

/// Returns the text of a message.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => content.to_string(),
    }
}
