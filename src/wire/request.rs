//! The request to a model, independent of the wire.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::tool_schema::ToolForm;
use callsheet_values::message::{Message, MessageList};
pub use callsheet_values::types::ToolChoice;
use callsheet_values::types::{CompactionKind, MessagePart, ModelOrigin, ReasoningRule, Wire};

/// The members of bodies that belong to the prompt, other than the history.
pub(super) const PROMPT_MEMBERS: [&str; 4] =
    ["tools", "system", "instructions", "systemInstruction"];

/// One request to a model.
///
/// ```
/// use callsheet::model::{Message, ModelRequest};
///
/// let mut request = ModelRequest::new("qwen3", vec![Message::user("Say hello.")].into());
/// request.stream = false;
/// assert_eq!(request.messages.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRequest {
    /// The provider's name of the model.
    pub model: String,
    /// The system prompt.
    pub system: Option<String>,
    /// The history. On the wire it follows the system prompt.
    pub messages: MessageList,
    /// The tools that the model may call.
    pub tools: Arc<[ToolDefinition]>,
    /// The rule for calling tools. Without effect if there are no tools.
    pub tool_choice: ToolChoice,
    /// Allows several calls in one response. `None` leaves it to the service.
    pub parallel_tool_calls: Option<bool>,
    /// Requests the answer as a stream.
    pub stream: bool,
    /// Maximum length of the answer in tokens.
    pub max_output_tokens: Option<u32>,
    /// The sampling temperature.
    pub temperature: Option<f64>,
    /// The JSON schema of the answer. A service that enforces it from the first token calls no tools.
    pub output_schema: Option<Arc<Value>>,
    /// Extra members of the body. They replace the members that the host writes, except those that it
    /// relies on. If both values of a member are objects, they are merged.
    pub extra_body: Map<String, Value>,
    /// Members that the host leaves out, because the service refuses them.
    pub omit_body: BTreeSet<String>,
    /// Asks the service to cache the prompt: by `cache_control` on Anthropic Messages, by
    /// `prompt_cache_key` on Chat Completions and Responses. The other wires have no member for it.
    pub prompt_cache: bool,
    /// The value of `prompt_cache_key`: the same for all requests of a session.
    pub prompt_cache_key: Option<Arc<str>>,
    /// The rule for the reasoning of the model's earlier messages.
    pub reasoning: ReasoningRule,
    /// The host itself asks, for a summary or a final answer.
    pub is_internal: bool,
    /// The reason why the prompt may not begin with that of the session's previous request.
    pub prompt_change: Option<PromptChange>,
}

impl ModelRequest {
    /// Creates a request for a streamed answer, without tools and optional parameters.
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
            output_schema: None,
            extra_body: Map::new(),
            omit_body: BTreeSet::new(),
            prompt_cache: false,
            prompt_cache_key: None,
            reasoning: ReasoningRule::default(),
            is_internal: false,
            prompt_change: None,
        }
    }

    /// Returns the request with at most this maximum length of the answer, also in `extra_body`. A thinking budget stays
    /// below it, because Anthropic refuses any other.
    pub fn with_output_room(mut self, room: u32) -> Self {
        self.max_output_tokens =
            Some(self.max_output_tokens.map_or(room, |maximum| maximum.min(room)));
        if !self.extra_body.is_empty() {
            limit_output(&mut self.extra_body, room);
        }
        self
    }

    /// Returns true if the model, the tools, the system text, the members that may replace them, the request to
    /// cache the prompt and the rule for reasoning are the same.
    pub(super) fn has_same_prompt_members(&self, other: &Self) -> bool {
        (Arc::ptr_eq(&self.tools, &other.tools) || self.tools == other.tools)
            && self.model == other.model
            && self.system == other.system
            && self.extra_body == other.extra_body
            && self.omit_body == other.omit_body
            && self.prompt_cache == other.prompt_cache
            && self.reasoning == other.reasoning
    }

    /// Returns the request with the reasoning that its model wrote in tags in the text again. Messages before `first`
    /// stay as they are, because they are written already. Returns `None` if there is none.
    pub(super) fn with_tagged_reasoning(&self, wire: Wire, first: usize) -> Option<Self> {
        let is_tagged = |part: &MessagePart| matches!(part, MessagePart::TaggedReasoning { .. });
        let mut new = self.messages.iter().skip(first);
        new.find(|message| match &***message {
            Message::Assistant(response) => response.parts.iter().any(is_tagged),
            Message::User { .. } | Message::Summary { .. } | Message::Tool { .. } => false,
        })?;
        let target_model = ModelOrigin { wire, model: self.model.clone() };
        let written = |(position, message): (usize, &Arc<Message>)| match &**message {
            Message::Assistant(response) if position >= first => {
                let is_sent = self.reasoning.includes(!response.calls.is_empty());
                match response.with_tagged_reasoning(&target_model, is_sent) {
                    Cow::Borrowed(_) => Arc::clone(message),
                    Cow::Owned(response) => Arc::new(Message::Assistant(Arc::new(response))),
                }
            }
            Message::Assistant(_)
            | Message::User { .. }
            | Message::Summary { .. }
            | Message::Tool { .. } => Arc::clone(message),
        };
        let messages = self.messages.iter().enumerate().map(written).collect();
        Some(Self { messages, ..self.clone() })
    }

    /// Returns the hash of the wire and of what precedes the messages: model, system text, tools, and members that
    /// may replace them. It is the same in each version of the program, so that records can hold it. It has 48
    /// bits, which JSON numbers represent exactly everywhere.
    pub fn prompt_hash(&self, wire: Wire) -> u64 {
        let tools = self.tools.iter().map(|tool| (&tool.name, &tool.description, &tool.schema));
        let extra = self.extra_body.iter().filter(|(name, _)| PROMPT_MEMBERS.contains(&&***name));
        let omitted = self.omit_body.iter().filter(|name| PROMPT_MEMBERS.contains(&&***name));
        let prompt = json!([
            wire.as_str(),
            self.model,
            self.system,
            tools.collect::<Vec<_>>(),
            extra.collect::<Vec<_>>(),
            omitted.collect::<Vec<_>>(),
        ]);
        let digest = Sha256::digest(prompt.to_string());
        digest.iter().take(6).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
    }

    /// Returns true if nothing differs but the messages and what follows them in a body.
    pub(super) fn is_same_without_messages(&self, other: &Self) -> bool {
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
            output_schema,
            extra_body,
            omit_body,
            prompt_cache,
            // It follows the messages in a body.
            prompt_cache_key: _,
            reasoning,
            // It only decides about `extra_body`.
            is_internal: _,
            prompt_change: _,
        } = self;
        // Nearly always the tools are shared.
        (Arc::ptr_eq(tools, &other.tools) || *tools == other.tools)
            && *model == other.model
            && *system == other.system
            && *tool_choice == other.tool_choice
            && *parallel_tool_calls == other.parallel_tool_calls
            && *stream == other.stream
            && *max_output_tokens == other.max_output_tokens
            && *temperature == other.temperature
            && *output_schema == other.output_schema
            && *extra_body == other.extra_body
            && *omit_body == other.omit_body
            && *prompt_cache == other.prompt_cache
            && *reasoning == other.reasoning
    }
}

/// Members of bodies that hold the maximum length of the answer.
const OUTPUT_LIMITS: [&str; 6] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "maxOutputTokens",
    "max_new_tokens",
    "num_predict",
];
/// The least thinking budget that Anthropic accepts, in tokens.
const THINKING_BUDGET_MIN: u32 = 1_024;

/// Lowers the maximum length of the answer in the members of a body, and in the objects among them.
fn limit_output(members: &mut Map<String, Value>, room: u32) {
    for (name, value) in members {
        // Ollama's `num_predict` of -1 means that there is no limit.
        let is_above = value.as_i64().is_some_and(|number| number > room.into() || number < 0);
        if OUTPUT_LIMITS.contains(&&**name) && is_above {
            *value = room.into();
        } else if name == "thinking"
            && value.get("budget_tokens").and_then(Value::as_u64) >= Some(room.into())
        {
            *value = match room / 2 {
                budget if budget >= THINKING_BUDGET_MIN => {
                    json!({"type": "enabled", "budget_tokens": budget})
                }
                _ => json!({"type": "disabled"}),
            };
        } else if let Value::Object(members) = value {
            limit_output(members, room);
        }
    }
}

/// The reason why the prompt of a request does not begin with that of the session's previous request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PromptChange {
    /// The context was made smaller.
    Compacted(CompactionKind),
    /// The run, or the one before it, overrides settings of its agent.
    RunOverride,
    /// The form of the answer changed.
    Output,
    /// The client has other tools.
    ClientTools,
    /// A hook changed the request.
    Hook,
    /// The configuration changed.
    Config,
    /// The request is for another model than the one before.
    Fallback,
    /// The tools of servers were read again.
    ToolsRefreshed,
    /// Tools were set aside, because the service refuses them.
    ToolSetAside,
    /// A refusal of the service changed what is sent of the model's reasoning.
    Reasoning,
    /// Messages were left out, because the service refused to answer them.
    Excluded,
    /// An input was joined to the input before it, which had no answer.
    InputsJoined,
    /// No reason is known. This is a bug of the host.
    Unexplained,
}

impl PromptChange {
    /// All reasons.
    pub const ALL: [Self; 16] = [
        Self::Compacted(CompactionKind::Cleared),
        Self::Compacted(CompactionKind::Formatted),
        Self::Compacted(CompactionKind::Summarised),
        Self::Compacted(CompactionKind::Dropped),
        Self::RunOverride,
        Self::Output,
        Self::ClientTools,
        Self::Hook,
        Self::Config,
        Self::Fallback,
        Self::ToolsRefreshed,
        Self::ToolSetAside,
        Self::Reasoning,
        Self::Excluded,
        Self::InputsJoined,
        Self::Unexplained,
    ];

    /// Returns the name for metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compacted(kind) => kind.as_str(),
            Self::RunOverride => "run_override",
            Self::Output => "output",
            Self::ClientTools => "client_tools",
            Self::Hook => "hook",
            Self::Config => "config",
            Self::Fallback => "fallback",
            Self::ToolsRefreshed => "tools_refreshed",
            Self::ToolSetAside => "tool_set_aside",
            Self::Reasoning => "reasoning",
            Self::Excluded => "excluded",
            Self::InputsJoined => "inputs_joined",
            Self::Unexplained => "unexplained",
        }
    }
}

/// The definition of a tool as the model sees it.
///
/// Part of a [`ModelRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolDefinition {
    /// The tool's name.
    pub name: String,
    /// The tool's purpose.
    pub description: String,
    /// The JSON schema of its arguments.
    pub schema: Value,
}

impl ToolDefinition {
    /// Defines a tool.
    pub fn new(name: impl Into<String>, description: impl Into<String>, schema: Value) -> Self {
        Self { name: name.into(), description: description.into(), schema }
    }
}

/// Returns tools in the form of Chat Completions, which Ollama's chat shares, as `form` has their parts.
pub(super) fn function_tools(tools: &[ToolDefinition], form: ToolForm) -> Vec<Value> {
    let function = |ToolDefinition { name, description, schema }: &ToolDefinition| {
        let (parameters, description) = (form.schema(schema), form.description(description));
        let function = json!({"name": name, "description": description, "parameters": parameters});
        json!({"type": "function", "function": function})
    };
    tools.iter().map(function).collect()
}

/// Keywords at the top level of a schema that services refuse: "input_schema does not support oneOf, allOf, or
/// anyOf at the top level" (<https://github.com/anthropics/claude-code/issues/5973>), "schema must have type 'object'
/// and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"
/// (<https://github.com/langchain-ai/langchainjs/issues/9804>).
const REFUSED_KEYWORDS: [&str; 6] = ["$ref", "oneOf", "anyOf", "allOf", "enum", "not"];

/// Greatest depth of a part (the target of a reference, an item of `allOf`, an alternative) whose own parts are
/// merged too. The whole schema has depth 0. The limit is needed because schemas may refer to themselves.
const PARTS_DEPTH_MAX: u32 = 2;

/// Returns a schema of arguments in the form that services accept: of an object with properties. The properties of
/// references, `allOf` and alternatives at the top level are merged into it. The host checks the arguments of a call
/// against the original schema.
pub(super) fn object_schema(schema: &Value) -> Cow<'_, Value> {
    let Value::Object(members) = schema else {
        return Cow::Owned(json!({"type": "object", "properties": {}}));
    };
    let fits = members.get("type").is_some_and(|kind| kind == "object")
        && members.contains_key("properties")
        && !REFUSED_KEYWORDS.iter().any(|key| members.contains_key(*key));
    if fits {
        return Cow::Borrowed(schema);
    }
    let mut members = merged(schema, members, 0);
    members.insert("type".to_owned(), Value::from("object"));
    let properties = members.entry("properties").or_insert_with(|| json!({})).clone();
    if let Some(Value::Array(required)) = members.get_mut("required") {
        required.retain(|name| name.as_str().is_some_and(|name| properties.get(name).is_some()));
    }
    Cow::Owned(Value::Object(members))
}

/// Merges what a schema refers to, all of its `allOf`, and the properties of its alternatives into it. Its own
/// keywords take precedence.
fn merged(root: &Value, schema: &Map<String, Value>, depth: u32) -> Map<String, Value> {
    let mut whole = schema.clone();
    whole.retain(|key, _| !REFUSED_KEYWORDS.contains(&key.as_str()));
    if depth > PARTS_DEPTH_MAX {
        return whole;
    }
    let reference = schema.get("$ref").and_then(Value::as_str);
    let target = reference.and_then(|path| root.pointer(path.strip_prefix('#')?));
    let items = |key: &str| schema.get(key).and_then(Value::as_array).into_iter().flatten();
    for part in target.into_iter().chain(items("allOf")).filter_map(Value::as_object) {
        merge_schema(&mut whole, merged(root, part, depth + 1));
    }
    for part in items("anyOf").chain(items("oneOf")).filter_map(Value::as_object) {
        let mut part = merged(root, part, depth + 1);
        part.retain(|key, _| key == "properties");
        merge_schema(&mut whole, part);
    }
    whole
}

/// Merges the keywords of a schema into another, whose own take precedence.
pub(super) fn merge_schema(whole: &mut Map<String, Value>, part: Map<String, Value>) {
    for (key, value) in part {
        match (whole.get_mut(&key), value) {
            (Some(Value::Object(known)), Value::Object(more)) => {
                for (name, value) in more {
                    known.entry(name).or_insert(value);
                }
            }
            (Some(Value::Array(names)), Value::Array(more)) if key == "required" => {
                for name in more {
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
            }
            (Some(_), _) => {}
            (None, value) => {
                whole.insert(key, value);
            }
        }
    }
}

callsheet_values::impl_with!(ModelRequest);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_an_answer_is_lowered_where_each_wire_has_it() {
        let object = |value: Value| value.as_object().cloned().unwrap_or_default();
        let lowered = |maximum: Option<u32>, extra: Value| {
            let request = ModelRequest::new("m", [].into());
            let request =
                ModelRequest { max_output_tokens: maximum, extra_body: object(extra), ..request };
            let request = request.with_output_room(900);
            (request.max_output_tokens, Value::Object(request.extra_body))
        };
        assert_eq!(lowered(None, json!({})), (Some(900), json!({})));
        assert_eq!(lowered(Some(1_000), json!({})), (Some(900), json!({})));
        assert_eq!(lowered(Some(40), json!({})), (Some(40), json!({})));
        for (extra, expected) in [
            (json!({"max_tokens": 4096, "top_k": 4096}), json!({"max_tokens": 900, "top_k": 4096})),
            (json!({"max_completion_tokens": 4096}), json!({"max_completion_tokens": 900})),
            (json!({"max_output_tokens": 100}), json!({"max_output_tokens": 100})),
            (
                json!({"generationConfig": {"maxOutputTokens": 4096}}),
                json!({"generationConfig": {"maxOutputTokens": 900}}),
            ),
            (json!({"options": {"num_predict": -1}}), json!({"options": {"num_predict": 900}})),
            (
                json!({"thinking": {"type": "enabled", "budget_tokens": 4096}}),
                json!({"thinking": {"type": "disabled"}}),
            ),
        ] {
            assert_eq!(lowered(None, extra), (Some(900), expected));
        }
    }

    #[test]
    fn a_schema_of_arguments_is_one_of_an_object() {
        let fitting = json!({"type": "object", "properties": {"a": {"anyOf": [{}]}}});
        assert!(matches!(object_schema(&fitting), Cow::Borrowed(_)));
        let empty = json!({"type": "object", "properties": {}});
        for schema in [
            json!(true),
            json!({}),
            json!({"type": "object"}),
            json!({"allOf": [{"type": "object"}]}),
            json!({"type": ["object", "null"], "not": {"required": ["a"]}}),
        ] {
            assert_eq!(*object_schema(&schema), empty, "{schema}");
        }
        let definition = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let referring = json!({"$ref": "#/$defs/Input", "$defs": {"Input": definition}});
        let expected = json!({
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "$defs": {"Input": definition},
        });
        assert_eq!(*object_schema(&referring), expected);
        let alternatives = json!({
            "type": "object",
            "required": ["b"],
            "oneOf": [
                {"properties": {"a": {"type": "string"}}, "required": ["a"]},
                {"properties": {"c": {"type": "integer"}}},
            ],
            "allOf": [
                {"$ref": "#/$defs/Base"},
                {"properties": {"d": {"type": "null"}}, "required": ["d", "e", "b"]},
            ],
            "$defs": {"Base": {"$ref": "#/$defs/Other"}, "Other": {"properties": {"b": {}}}},
        });
        let sent = object_schema(&alternatives).into_owned();
        let names: Vec<_> = sent["properties"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert_eq!(sent["required"], json!(["b", "d"]));
        let own = json!({"$ref": "#", "properties": {"a": {"type": "string"}}});
        assert_eq!(object_schema(&own)["properties"], json!({"a": {"type": "string"}}));
        let dangling = json!({"$ref": "other.json", "description": "d"});
        let expected = json!({"type": "object", "properties": {}, "description": "d"});
        assert_eq!(*object_schema(&dangling), expected);
    }
}
