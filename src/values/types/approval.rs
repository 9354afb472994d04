//! Approvals of tool calls, and questions of tools to people: phases, verdicts and answers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Secrets;

/// The point at which a call waits for an approval, for the answer to a question of its tool, or for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitPhase {
    /// Before the call runs.
    Before,
    /// After the call ran, before the model sees its result.
    After,
    /// While the call runs: its tool asks for input.
    Input,
    /// A client runs the call, and its result is awaited. This is not decided like an approval.
    Client,
}

impl WaitPhase {
    /// Returns the name for clients, logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::Input => "input",
            Self::Client => "client",
        }
    }
}

/// The verdict of an approval, or of a question of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalVerdict {
    /// Approved.
    Approved,
    /// Rejected.
    Rejected,
    /// No decision arrived in time. For an approval this has the effect of a rejection; for a question the
    /// tool gets [`Answer::Expired`] and the call goes on.
    Expired,
    /// The tool stopped waiting for the answer to its question.
    Withdrawn,
}

impl ApprovalVerdict {
    /// Every verdict.
    pub const ALL: [Self; 4] = [Self::Approved, Self::Rejected, Self::Expired, Self::Withdrawn];

    /// Returns the name for clients, logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// A verdict with an optional message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VerdictWithMessage {
    /// The verdict.
    pub verdict: ApprovalVerdict,
    /// The message of the person who decided. After the rejection of a call or its result the model
    /// receives it; after a declined question, the tool.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
}

/// A question of a running call to the people who watch its run.
///
/// ```
/// use callsheet::tool::Question;
/// use serde_json::json;
///
/// let date = json!({ "type": "string", "format": "date", "default": "2027-01-01" });
/// let form = json!({ "type": "object", "properties": { "date": date }, "required": ["date"] });
/// let question = Question::form("Which day?", form);
/// assert_eq!(question.message, "Which day?");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Question {
    /// The text for people.
    pub message: String,
    /// The kind of the answer.
    #[serde(flatten)]
    pub kind: QuestionKind,
}

/// The kind of the answer to a [`Question`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionKind {
    /// An object that is valid for this JSON schema.
    Form(Arc<Value>),
    /// A confirmation that a person has finished what the URL asks for. The host displays the URL and never
    /// opens it. The answer has no content.
    Url(String),
}

/// The answer to a [`Question`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// A person answered: with an object that is valid for the form, or with null to a question with a URL.
    Accepted(Arc<Value>),
    /// A person declined to answer, or no person can be asked. Holds the reason, if one was given.
    Declined(Option<String>),
    /// No answer arrived within the tool's `approval_timeout`.
    Expired,
    /// The call was cancelled or has ended, so that no answer can arrive.
    Cancelled,
}

impl Question {
    /// Creates a question whose answer is an object that is valid for this JSON schema. The `default` of a
    /// property is filled in where an answer leaves the property out.
    #[must_use]
    pub fn form(message: impl Into<String>, form: Value) -> Self {
        Self { message: message.into(), kind: QuestionKind::Form(Arc::new(form)) }
    }

    /// Creates a question whose answer is a confirmation that a person has finished what the URL asks for.
    #[must_use]
    pub fn url(message: impl Into<String>, url: impl Into<String>) -> Self {
        Self { message: message.into(), kind: QuestionKind::Url(url.into()) }
    }

    /// Replaces secrets.
    pub fn redacted(mut self, secrets: &Secrets) -> Self {
        secrets.redact_in_place(&mut self.message);
        match &mut self.kind {
            QuestionKind::Form(form) => {
                if let Some(redacted) = secrets.redact_json(form) {
                    *form = Arc::new(redacted);
                }
            }
            QuestionKind::Url(url) => secrets.redact_in_place(url),
        }
        self
    }
}
