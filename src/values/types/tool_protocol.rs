//! The protocols of tool calls by name. `wire/tool_protocol` implements them.

/// The form of tool calls in the requests to a model and in its responses.
///
/// Set in [`ModelConfig::tool_protocol`](crate::config::ModelConfig).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ToolProtocol {
    /// Calls in the form of the wire format. Every other protocol is for models without tool calling: the
    /// tools are described in the system prompt, and calls are read from the text.
    #[default]
    Native,
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, as Hermes and Qwen write it.
    Hermes,
    /// `<tool_call><function=NAME><parameter=P>..</parameter></function></tool_call>`, as Qwen3-Coder writes it.
    Xml,
    /// `Action: NAME` and `Action Input: {..}`.
    React,
    /// `[f(a=1), g(b="x")]`, as Llama writes it.
    Pythonic,
    /// `=>#NAME {..}`: one call in a response.
    Arrow,
}

impl ToolProtocol {
    /// The protocols with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("native", Self::Native),
        ("hermes", Self::Hermes),
        ("xml", Self::Xml),
        ("react", Self::React),
        ("pythonic", Self::Pythonic),
        ("arrow", Self::Arrow),
    ];
}

impl std::str::FromStr for ToolProtocol {
    type Err = UnknownToolProtocol;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::NAMES.iter().find(|(word, _)| *word == text);
        known.map(|(_, protocol)| *protocol).ok_or(UnknownToolProtocol)
    }
}

/// The text is not the name of a protocol of tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown tool protocol; it is one of: native, hermes, xml, react, pythonic, arrow")]
pub struct UnknownToolProtocol;
