//! The request of AG-UI, `RunAgentInput`. The thread is the session. The client sends all messages that it has; only the
//! last ones say something new, and `resume` answers what the last run waited for.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::chats::ChatError;
use super::super::replies::{Decision, Replies};
use super::super::waits::{KnownWaits, WaitId};
use callsheet_host::runtime::SessionSnapshot;
use callsheet_tools::ToolOutput;
use callsheet_values::config::{ClientTool, RunOverrides};
use callsheet_values::types::{Content, ContentPart, Image};

/// The body of `POST /v1/agui/{agent}`. Members that the protocol has and this host does not need are not read: `state`
/// (the host's variables are what counts), `forwardedProps`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunAgentInput {
    pub(super) thread_id: String,
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

/// The action that a request asks for.
#[derive(Debug)]
pub(super) enum AguiAction {
    /// A run with this input.
    Run(Content),
    /// The rest of the run that waits.
    Rest(Replies),
}

impl RunAgentInput {
    pub(super) fn asked(&self) -> Result<AguiAction, ChatError> {
        let resume = self.resume.as_deref().unwrap_or_default();
        match self.messages.last().map(|message| message.role.as_str()) {
            _ if !resume.is_empty() => Ok(AguiAction::Rest(self.replies(resume)?)),
            Some("user") => Ok(AguiAction::Run(self.input()?)),
            Some("tool") => Ok(AguiAction::Rest(self.replies(resume)?)),
            Some(_) | None => Err(ChatError::bad_request(
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

    /// Returns the id of the last message.
    pub(super) fn last_id(&self) -> &str {
        self.messages.last().map_or("", |message| &message.id)
    }

    /// Returns the input of the last message.
    pub(super) fn input(&self) -> Result<Content, ChatError> {
        let last = self.messages.last().map_or(&Value::Null, |message| &message.content);
        input(last, self.messages.len().saturating_sub(1))
    }

    fn replies(&self, resume: &[ResumeEntry]) -> Result<Replies, ChatError> {
        let decisions = resume.iter().enumerate().map(|(at, entry)| entry.decision(at));
        let results = self.messages.iter().filter(|message| message.role == "tool");
        let results = results.filter_map(|message| {
            let key = message.tool_call_id.as_deref()?.parse().ok()?;
            let text = text_of(&message.content);
            Some(match &message.error {
                Some(error) if text.is_empty() => {
                    (key, ToolOutput::from(error.clone()).into_error())
                }
                Some(_) => (key, ToolOutput::from(text).into_error()),
                None => (key, ToolOutput::from(text)),
            })
        });
        Ok(Replies { decisions: decisions.collect::<Result<_, _>>()?, results: results.collect() })
    }

    /// Returns what the request changes of the agent: the tools that the client runs, and the context as instructions.
    pub(super) fn overrides(&self) -> RunOverrides {
        let tools = self.tools.iter().map(|tool| {
            let schema = tool.parameters.clone().unwrap_or_else(|| json!({"type": "object"}));
            ClientTool::new(&tool.name, &tool.description, schema)
        });
        let context = self.context.iter();
        let context =
            context.map(|AguiContext { description, value }| format!("{description}:\n{value}"));
        let instructions = context.collect::<Vec<_>>().join("\n\n");
        RunOverrides::default().with(|overrides| {
            overrides.client_tools = Some(tools.collect())
                .filter(|tools: &std::sync::Arc<[ClientTool]>| !tools.is_empty());
            overrides.instructions = Some(instructions).filter(|text| !text.is_empty());
        })
    }
}

impl ResumeEntry {
    /// The payload is `{"approved", "message"?}`, a boolean, or the object that a question with a form asks for.
    fn decision(&self, at: usize) -> Result<Decision, ChatError> {
        let invalid = |reason: &str| ChatError::bad_request(format!("resume[{at}]: {reason}"));
        let id: WaitId =
            self.interrupt_id.parse().map_err(|()| invalid("interruptId is none of this API"))?;
        let approved = self.payload.get("approved").unwrap_or(&self.payload).as_bool();
        let message = self.payload.get("message").and_then(Value::as_str).map(str::to_owned);
        Ok(match (self.status, approved) {
            (ResumeStatus::Cancelled, _) => {
                Decision { id, is_approved: false, message, content: None }
            }
            (ResumeStatus::Resolved, Some(is_approved)) => {
                Decision { id, is_approved, message, content: None }
            }
            (ResumeStatus::Resolved, None) if self.payload.is_object() => {
                let content = Some(self.payload.clone());
                Decision { id, is_approved: true, message: None, content }
            }
            (ResumeStatus::Resolved, None) => {
                return Err(invalid(
                    "payload must be {\"approved\": true or false, \"message\"?}, or the object that the \
                     question asks for",
                ));
            }
        })
    }
}

/// Checks that a request answers all approvals and questions that are open in the session.
pub(super) fn check_answered(
    snapshot: &SessionSnapshot,
    replies: &Replies,
) -> Result<(), ChatError> {
    let known = KnownWaits::of_run(snapshot.current_run.as_ref(), snapshot.seq);
    let is_answered = |id: &WaitId| replies.decisions.iter().any(|decision| decision.id == *id);
    let open: Vec<String> =
        known.open().filter(|id| !is_answered(id)).map(ToString::to_string).collect();
    if open.is_empty() {
        return Ok(());
    }
    let message =
        format!("resume must answer all interrupts that are open; it lacks {}", open.join(", "));
    Err(ChatError::bad_request(message))
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

fn input(content: &Value, at: usize) -> Result<Content, ChatError> {
    let parts = match content {
        Value::String(text) => return Ok(text.as_str().into()),
        Value::Array(parts) => parts,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            let message = format!("messages[{at}].content: must be a text or a list of parts");
            return Err(ChatError::bad_request(message));
        }
    };
    let parts = parts.iter().enumerate().map(|(part, value)| {
        let invalid = |reason: String| {
            ChatError::bad_request(format!("messages[{at}].content[{part}]: {reason}"))
        };
        let url = match InputPart::deserialize(value) {
            Ok(InputPart::Text { text }) => return Ok(ContentPart::Text(text)),
            Ok(InputPart::Image { source: PartSource::Url { value } }) => value,
            Ok(InputPart::Image { source: PartSource::Data { value, mime_type } }) => {
                format!("data:{mime_type};base64,{value}")
            }
            Err(error) => return Err(invalid(format!("must be a text or an image: {error}"))),
        };
        Image::parse(&url).map(ContentPart::Image).map_err(|error| invalid(error.to_string()))
    });
    Ok(Content::from(parts.collect::<Result<Vec<_>, _>>()?))
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
