//! The kind of a turn's request, the rule for calling tools, and the form of the answer.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The name of the tool by which a model gives an answer that matches a schema.
pub const FINAL_ANSWER: &str = "final_answer";

/// The rule for calling tools.
///
/// Set in a `ModelRequest`, or for a run in
/// [`RunOverrides`](crate::config::RunOverrides). Its text is `auto`, `none`, `required` or the name of a tool.
/// No tool can be registered with one of the three words as its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// The model may not call tools. They stay listed, and calls are dropped.
    None,
    /// The model must call at least one tool.
    Required,
    /// The model must call this tool.
    Tool(Arc<str>),
}

impl ToolChoice {
    /// Returns true if the model must call a tool.
    #[must_use]
    pub fn forces_call(&self) -> bool {
        matches!(self, Self::Required | Self::Tool(_))
    }
}

impl From<&str> for ToolChoice {
    fn from(text: &str) -> Self {
        match text {
            "auto" => Self::Auto,
            "none" => Self::None,
            "required" => Self::Required,
            name => Self::Tool(name.into()),
        }
    }
}

impl fmt::Display for ToolChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Required => "required",
            Self::Tool(name) => name,
        })
    }
}

impl Serialize for ToolChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(Self::from(&*text))
    }
}

/// The way in which a model is asked for an answer that matches a schema.
///
/// Set in an [`OutputRequest`](crate::config::OutputRequest).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputMode {
    /// By the schema field of the wire format, such as `response_format` (structured output). If the service
    /// refuses the field or ignores it, by a prompt.
    #[default]
    Auto,
    /// By the schema field of the wire format.
    Native,
    /// By the tool `final_answer`, which the model must call.
    Tool,
    /// By a prompt that contains the schema.
    Prompt,
}

/// The kind of the request of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// Uses the run's tool choice, or `Auto` if that would force a call.
    #[default]
    Ordinary,
    /// Uses the run's tool choice, which forces a call.
    ForcedCall,
    /// Asks for a final answer, because the turns of the run are used up. Calls are dropped.
    FinalAnswer,
    /// Asks for the final text after answers that were empty. Calls are dropped. If this answer is empty too, the
    /// fallback models are asked.
    FinalText,
    /// Asks for the answer in the form of the run's output schema. The mode is not `Auto`.
    Output(OutputMode),
}

impl RequestKind {
    /// Returns true if calls of the response are dropped.
    #[must_use]
    pub fn drops_calls(self) -> bool {
        match self {
            Self::Ordinary | Self::ForcedCall | Self::Output(OutputMode::Tool) => false,
            Self::FinalAnswer
            | Self::FinalText
            | Self::Output(OutputMode::Auto | OutputMode::Native | OutputMode::Prompt) => true,
        }
    }
}
