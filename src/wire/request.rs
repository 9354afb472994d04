//! What a model is asked, before it is written for a wire.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::message::MessageList;

/// What a model is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRequest {
    /// The provider's name of the model.
    pub model: String,
    /// The system prompt.
    pub system: Option<String>,
    /// The history; on the wire it follows the system prompt.
    pub messages: MessageList,
    /// What the model may call.
    pub tools: Arc<[ToolDefinition]>,
    /// Whether it may call now; says nothing where there are no tools.
    pub tool_choice: ToolChoice,
    /// Whether it may ask for several calls at once; none leaves it to the service.
    pub parallel_tool_calls: Option<bool>,
    /// Whether the answer is wanted as a stream.
    pub stream: bool,
    /// The longest answer, in tokens.
    pub max_output_tokens: Option<u32>,
    /// The sampling temperature.
    pub temperature: Option<f64>,
    /// Members of the body that we do not know. They win over our own, apart from those that the
    /// host relies on; an object is merged with ours.
    pub extra_body: Map<String, Value>,
    /// Members that we would write and its service refuses.
    pub omit_body: BTreeSet<String>,
}

impl ModelRequest {
    /// A request for a streamed answer, without tools and wishes.
    #[must_use]
    pub fn new(model: impl Into<String>, messages: MessageList) -> Self {
        Self {
            model: model.into(),
            system: None,
            messages,
            tools: Arc::new([]),
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: None,
            stream: true,
            max_output_tokens: None,
            temperature: None,
            extra_body: Map::new(),
            omit_body: BTreeSet::new(),
        }
    }

    /// Whether nothing but their messages tells them apart.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let Self {
            model,
            system,
            messages: _,
            tools,
            tool_choice,
            parallel_tool_calls,
            stream,
            max_output_tokens,
            temperature,
            extra_body,
            omit_body,
        } = self;
        *model == other.model
            && *system == other.system
            // Those that are shared are not read.
            && *tools == other.tools
            && *tool_choice == other.tool_choice
            && *parallel_tool_calls == other.parallel_tool_calls
            && *stream == other.stream
            && *max_output_tokens == other.max_output_tokens
            && *temperature == other.temperature
            && *extra_body == other.extra_body
            && *omit_body == other.omit_body
    }
}

/// A tool as a model is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolDefinition {
    /// The tool's name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The JSON schema of its arguments.
    pub schema: Value,
}

/// Tools in the form of Chat Completions, which two of the wires share.
pub(super) struct FunctionTools<'a>(pub(super) &'a [ToolDefinition]);

impl Serialize for FunctionTools<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Tool<'a> {
            #[serde(rename = "type")]
            kind: &'static str,
            function: Function<'a>,
        }
        #[derive(Serialize)]
        struct Function<'a> {
            name: &'a str,
            description: &'a str,
            parameters: &'a Value,
        }
        let mut seq = serializer.serialize_seq(Some(self.0.len()))?;
        for ToolDefinition { name, description, schema } in self.0 {
            let function = Function { name, description, parameters: schema };
            seq.serialize_element(&Tool { kind: "function", function })?;
        }
        seq.end()
    }
}

/// Whether the model may call tools now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// It may not; the tools stay listed.
    None,
    /// It has to call at least one.
    Required,
    /// It has to call this one.
    Tool(Arc<str>),
}
