//! The wire formats by name. The dialects in `wire/` implement them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A wire format: the API of a service for requests and responses.
///
/// Set in [`ModelConfig::wire`](crate::config::ModelConfig).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wire {
    /// OpenAI's Chat Completions, and the variants of it that other services speak.
    OpenaiChat,
    /// OpenAI's Responses.
    OpenaiResponses,
    /// Anthropic's Messages.
    AnthropicMessages,
    /// Gemini's `generateContent` and `streamGenerateContent`.
    GeminiGenerate,
    /// Ollama's own chat.
    OllamaChat,
}

impl Wire {
    /// The wires with their names in configuration, commands, metrics and records.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("openai-chat", Self::OpenaiChat),
        ("openai-responses", Self::OpenaiResponses),
        ("anthropic-messages", Self::AnthropicMessages),
        ("gemini-generate", Self::GeminiGenerate),
        ("ollama-chat", Self::OllamaChat),
    ];

    /// Returns the name in configuration, commands, metrics and records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenaiChat => "openai-chat",
            Self::OpenaiResponses => "openai-responses",
            Self::AnthropicMessages => "anthropic-messages",
            Self::GeminiGenerate => "gemini-generate",
            Self::OllamaChat => "ollama-chat",
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Wire {
    type Err = UnknownWire;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::NAMES.iter().find(|(word, _)| *word == text);
        known.map(|(_, wire)| *wire).ok_or(UnknownWire)
    }
}

/// The text is not the name of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownWire;

impl std::error::Error for UnknownWire {}

impl fmt::Display for UnknownWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = Wire::NAMES.map(|(word, _)| word).join(", ");
        write!(f, "unknown wire; it is one of: {words}")
    }
}
