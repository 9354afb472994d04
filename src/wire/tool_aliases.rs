//! Names of tools and of their properties in the form that a service accepts, and back.
//!
//! A service refuses a whole request for a name that does not match its pattern. Such a name is sent under an alias:
//! always the same one, with a hash, so that different names have different aliases. The alias is in the definition
//! of the tool, in a tool choice, and in the calls and results of the history. In a response, the name of a tool is
//! replaced at once ([`AliasRenderer::original_names`]). The names of properties are replaced when the arguments are
//! complete, by the schema of the called tool ([`original_properties`]).
//!
//! | wire | names of tools | names of properties |
//! | --- | --- | --- |
//! | Anthropic Messages | | `^[a-zA-Z0-9_.-]{1,64}$` |
//! | Gemini | begin with a letter or an underscore | `^[a-zA-Z_][a-zA-Z0-9_]{0,63}$` |
//!
//! Sources: the error "property keys should match pattern" of Anthropic's service, and
//! <https://ai.google.dev/api/caching#FunctionDeclaration>.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::answer_schema::for_each_schema;
use super::call_ids::hashed;
use super::request::{ModelRequest, ToolChoice, ToolDefinition};
use callsheet_values::message::{Message, MessageList, ResponseMessage};
use callsheet_values::types::{ToolCall, Wire};

/// Maximum length of a name on the wires that limit it.
const NAME_CHARS_MAX: usize = 64;

/// Renders the requests of a session with aliases, if one of its tools needs any.
///
/// It keeps the messages of the last request, so that what did not change is neither written nor encoded again.
#[derive(Debug, Default)]
pub struct AliasRenderer {
    last: Option<AliasedTools>,
    /// Each rendered message with its source.
    rendered: Vec<(Arc<Message>, Arc<Message>)>,
}

/// The tools of a request and their aliases.
#[derive(Debug)]
struct AliasedTools {
    wire: Wire,
    tools: Arc<[ToolDefinition]>,
    /// `None` if no name needs an alias.
    aliases: Option<Aliases>,
}

#[derive(Debug)]
struct Aliases {
    /// The tools as they are sent.
    sent: Arc<[ToolDefinition]>,
    /// The tools whose names or properties have aliases, by name.
    by_name: BTreeMap<String, ToolAliases>,
}

#[derive(Debug)]
struct ToolAliases {
    /// The name as it is sent.
    name: Arc<str>,
    /// The aliases of its properties, by property.
    properties: BTreeMap<String, String>,
}

impl AliasRenderer {
    /// Returns the request with aliases. `None` if it needs none.
    pub fn render(&mut self, wire: Wire, request: &ModelRequest) -> Option<ModelRequest> {
        let is_same = |last: &&AliasedTools| {
            let tools = Arc::ptr_eq(&last.tools, &request.tools) || last.tools == request.tools;
            last.wire == wire && tools
        };
        if self.last.as_ref().filter(is_same).is_none() {
            self.rendered.clear();
            let (tools, aliases) = (Arc::clone(&request.tools), Aliases::of(wire, &request.tools));
            self.last = Some(AliasedTools { wire, tools, aliases });
        }
        let aliases = self.last.as_ref()?.aliases.as_ref()?;
        let mut known = std::mem::take(&mut self.rendered).into_iter();
        let mut is_known = true;
        for message in request.messages.iter() {
            let last = known.next().filter(|(source, _)| is_known && Arc::ptr_eq(source, message));
            is_known = last.is_some();
            let entry = last.unwrap_or_else(|| (Arc::clone(message), aliases.message(message)));
            self.rendered.push(entry);
        }
        let messages = self.rendered.iter().map(|(_, sent)| Arc::clone(sent));
        Some(ModelRequest {
            messages: messages.collect::<MessageList>(),
            tools: Arc::clone(&aliases.sent),
            tool_choice: match &request.tool_choice {
                ToolChoice::Tool(name) => ToolChoice::Tool(aliases.name(name)),
                choice @ (ToolChoice::Auto | ToolChoice::None | ToolChoice::Required) => {
                    choice.clone()
                }
            },
            ..request.clone()
        })
    }

    /// Returns the tools of the last request whose names have aliases, by alias.
    pub fn original_names(&self) -> BTreeMap<Arc<str>, String> {
        let aliases = self.last.as_ref().and_then(|last| last.aliases.as_ref());
        let tools = aliases.into_iter().flat_map(|aliases| &aliases.by_name);
        let renamed = tools.filter(|(name, tool)| **name != *tool.name);
        renamed.map(|(name, tool)| (Arc::clone(&tool.name), name.clone())).collect()
    }
}

impl Aliases {
    /// Returns the aliases of these tools. `None` if they need none.
    fn of(wire: Wire, tools: &[ToolDefinition]) -> Option<Self> {
        let aliases = |tool: &ToolDefinition| {
            let name = sent_tool_name(wire, &tool.name);
            let properties: BTreeMap<String, String> = property_names(&tool.schema)
                .into_iter()
                .filter(|name| !accepts_property(wire, name))
                .map(|name| (name.to_owned(), property_alias(name)))
                .collect();
            let is_needed = !properties.is_empty() || matches!(name, Cow::Owned(_));
            let name = name.as_ref().into();
            is_needed.then(|| (tool.name.clone(), ToolAliases { name, properties }))
        };
        let by_name: BTreeMap<String, ToolAliases> = match wire {
            // Every name is accepted.
            Wire::OpenaiChat | Wire::OpenaiResponses | Wire::OllamaChat => BTreeMap::new(),
            Wire::AnthropicMessages | Wire::GeminiGenerate => {
                tools.iter().filter_map(aliases).collect()
            }
        };
        if by_name.is_empty() {
            return None;
        }
        let sent = tools.iter().map(|tool| match by_name.get(&tool.name) {
            None => tool.clone(),
            Some(aliases) => ToolDefinition {
                name: aliases.name.to_string(),
                description: tool.description.clone(),
                schema: aliases.schema(&tool.schema),
            },
        });
        Some(Self { sent: sent.collect(), by_name })
    }

    fn name(&self, name: &Arc<str>) -> Arc<str> {
        self.by_name.get(&**name).map_or_else(|| Arc::clone(name), |tool| Arc::clone(&tool.name))
    }

    /// Returns a message with aliases: itself if it needs none.
    fn message(&self, message: &Arc<Message>) -> Arc<Message> {
        let has_aliases =
            |call: &ToolCall| !call.indirect && self.by_name.contains_key(&*call.name);
        match &**message {
            Message::Assistant(response) if response.calls.iter().any(has_aliases) => {
                let mut sent = ResponseMessage::clone(response);
                for call in sent.calls.iter_mut().filter(|call| has_aliases(call)) {
                    let Some(tool) = self.by_name.get(&*call.name) else { continue };
                    call.name = Arc::clone(&tool.name);
                    if let Some(arguments) = renamed(&call.arguments, &tool.properties) {
                        call.arguments = Arc::new(arguments);
                    }
                }
                Arc::new(Message::Assistant(Arc::new(sent)))
            }
            Message::Tool { call_id, name, content, metadata }
                if self.by_name.contains_key(&**name) =>
            {
                Arc::new(Message::Tool {
                    call_id: Arc::clone(call_id),
                    name: self.name(name),
                    content: content.clone(),
                    metadata: metadata.clone(),
                })
            }
            Message::Assistant(_)
            | Message::Tool { .. }
            | Message::User { .. }
            | Message::Summary { .. } => Arc::clone(message),
        }
    }
}

impl ToolAliases {
    /// Returns a schema with aliases of properties. Their descriptions begin with the names.
    fn schema(&self, schema: &Value) -> Value {
        let mut sent = schema.clone();
        for_each_schema(&mut sent, &mut |schema| {
            if let Some(Value::Object(properties)) = schema.get_mut("properties") {
                *properties = std::mem::take(properties)
                    .into_iter()
                    .map(|(name, property)| match self.properties.get(&name) {
                        Some(alias) => (alias.clone(), described(&name, property)),
                        None => (name, property),
                    })
                    .collect();
            }
            if let Some(Value::Array(required)) = schema.get_mut("required") {
                for name in required {
                    if let Some(alias) = name.as_str().and_then(|name| self.properties.get(name)) {
                        *name = alias.as_str().into();
                    }
                }
            }
            // They name properties too. The host checks them.
            schema.remove("dependentRequired");
            schema.remove("dependencies");
        });
        sent
    }
}

/// Returns the schema of a property with its name at the beginning of its description.
fn described(name: &str, mut property: Value) -> Value {
    if let Value::Object(members) = &mut property {
        let before = members.get("description").and_then(Value::as_str).unwrap_or_default();
        let text = format!("{name}: {before}");
        let text = text.trim_end_matches([' ', ':']).to_owned();
        members.insert("description".to_owned(), text.into());
    }
    property
}

/// Returns the name of a tool as it is sent.
pub(super) fn sent_tool_name(wire: Wire, name: &str) -> Cow<'_, str> {
    let is_accepted = match wire {
        Wire::GeminiGenerate => {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') || name.is_empty()
        }
        Wire::OpenaiChat | Wire::OpenaiResponses | Wire::AnthropicMessages | Wire::OllamaChat => {
            true
        }
    };
    match is_accepted {
        true => Cow::Borrowed(name),
        false => Cow::Owned(property_alias(name)),
    }
}

/// Returns whether a service accepts the name of a property.
fn accepts_property(wire: Wire, name: &str) -> bool {
    match wire {
        Wire::OpenaiChat | Wire::OpenaiResponses | Wire::OllamaChat => true,
        Wire::AnthropicMessages => {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            (1..=NAME_CHARS_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
        }
        Wire::GeminiGenerate => is_identifier(name),
    }
}

/// Returns whether every service accepts a name.
fn is_identifier(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.len() <= NAME_CHARS_MAX
        && name.bytes().all(is_allowed)
}

/// Returns the alias of a name, which every service accepts.
fn property_alias(name: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let alias = hashed(name, is_allowed, NAME_CHARS_MAX - 1);
    match alias.starts_with(|c: char| c.is_ascii_digit()) {
        true => format!("_{alias}"),
        false => alias,
    }
}

/// Returns the names of the properties in a schema, at all depths.
fn property_names(schema: &Value) -> Vec<&str> {
    let (mut names, mut pending) = (Vec::new(), vec![schema]);
    while let Some(value) = pending.pop() {
        match value {
            Value::Object(members) => {
                let properties = members.get("properties").and_then(Value::as_object);
                names.extend(properties.into_iter().flatten().map(|(name, _)| name.as_str()));
                pending.extend(members.values());
            }
            Value::Array(items) => pending.extend(items),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    names
}

/// Returns the names of the properties in a schema that some wires send under an alias, by alias.
pub fn original_properties(schema: &Value) -> BTreeMap<String, String> {
    let odd = property_names(schema).into_iter().filter(|name| !is_identifier(name));
    odd.map(|name| (property_alias(name), name.to_owned())).collect()
}

/// Returns a value with other names of its members, at all depths. `None` if no member has another one.
pub fn renamed(value: &Value, names: &BTreeMap<String, String>) -> Option<Value> {
    let has_name = |value: &Value| -> bool {
        let mut pending = vec![value];
        while let Some(value) = pending.pop() {
            match value {
                Value::Object(members) => {
                    if members.keys().any(|name| names.contains_key(name)) {
                        return true;
                    }
                    pending.extend(members.values());
                }
                Value::Array(items) => pending.extend(items),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        false
    };
    (!names.is_empty() && has_name(value)).then(|| rename(value, names))
}

fn rename(value: &Value, names: &BTreeMap<String, String>) -> Value {
    match value {
        Value::Object(members) => {
            let new = members.iter().map(|(name, value)| {
                (names.get(name).unwrap_or(name).clone(), rename(value, names))
            });
            Value::Object(new.collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(|item| rename(item, names)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use callsheet_values::types::CallKey;

    fn request() -> ModelRequest {
        let schema = json!({"type": "object", "required": ["$filter", "a-b"], "properties": {
            "$filter": {"type": "string", "description": "A filter."},
            "a-b": {"type": "object", "properties": {"x[y]": {"type": "integer"}}},
            "plain": {"type": "string"}}});
        let odd = ToolDefinition::new("3d_view", "Shows.", schema);
        let plain = ToolDefinition::new("plain", "", json!({"properties": {"a": {}}}));
        let call = ToolCall {
            key: CallKey { turn: 1, attempt: 1, index: 0 },
            id: "c".into(),
            provider_id: None,
            name: "3d_view".into(),
            arguments: json!({"$filter": "f", "a-b": {"x[y]": 1}, "plain": "$filter"}).into(),
            raw: None,
            indirect: false,
        };
        let response = ResponseMessage { calls: vec![call], ..ResponseMessage::default() };
        let result = Message::Tool {
            call_id: "c".into(),
            name: "3d_view".into(),
            content: "done".into(),
            metadata: json!({}),
        };
        let messages = vec![Message::user("go"), Message::Assistant(Arc::new(response)), result];
        ModelRequest {
            tools: [odd, plain].into(),
            tool_choice: ToolChoice::Tool("3d_view".into()),
            ..ModelRequest::new("m", messages.into())
        }
    }

    #[test]
    fn names_that_a_wire_refuses_have_the_same_alias_everywhere() {
        let request = request();
        for wire in [Wire::OpenaiChat, Wire::OpenaiResponses, Wire::OllamaChat] {
            assert_eq!(AliasRenderer::default().render(wire, &request), None);
        }
        for (wire, name, filter, inner, nested) in [
            (
                Wire::AnthropicMessages,
                "3d_view",
                property_alias("$filter"),
                "a-b".to_owned(),
                property_alias("x[y]"),
            ),
            (
                Wire::GeminiGenerate,
                &*property_alias("3d_view"),
                property_alias("$filter"),
                property_alias("a-b"),
                property_alias("x[y]"),
            ),
        ] {
            let mut renderer = AliasRenderer::default();
            let sent = renderer.render(wire, &request).unwrap();
            assert_eq!(sent.tools[0].name, name);
            let properties = &sent.tools[0].schema["properties"];
            assert_eq!(properties[&filter]["description"], "$filter: A filter.");
            assert_eq!(properties[&inner]["properties"][&nested]["type"], "integer");
            assert_eq!(sent.tools[0].schema["required"], json!([filter, inner]));
            assert_eq!(sent.tools[1], request.tools[1]);
            assert_eq!(sent.tool_choice, ToolChoice::Tool(name.into()));
            let Message::Assistant(response) = &*sent.messages[1] else { panic!("{sent:?}") };
            let call = &response.calls[0];
            let expected = json!({&filter: "f", &inner: {&nested: 1}, "plain": "$filter"});
            assert_eq!((&*call.name, &*call.arguments), (name, &expected));
            let Message::Tool { name: of_result, .. } = &*sent.messages[2] else { panic!() };
            assert_eq!(&**of_result, name);
            // Arguments that the model sends under aliases get the original names.
            let back = renamed(&expected, &original_properties(&request.tools[0].schema));
            let Message::Assistant(original) = &*request.messages[1] else { panic!() };
            assert_eq!(back.as_ref(), Some(&*original.calls[0].arguments));
            let names = renderer.original_names();
            assert_eq!(
                names.get(name).map(String::as_str),
                (name != "3d_view").then_some("3d_view")
            );
            // The messages of the next request are the same ones.
            let again = renderer.render(wire, &request).unwrap();
            assert!(Arc::ptr_eq(&again.tools, &sent.tools));
            let pairs = again.messages.iter().zip(sent.messages.iter());
            assert!(pairs.into_iter().all(|(one, other)| Arc::ptr_eq(one, other)));
        }
    }

    #[test]
    fn an_alias_is_a_name_that_every_service_accepts() {
        for name in ["", "$", "a b", "1st", "x".repeat(80).as_str(), "größe", "a-b"] {
            let alias = property_alias(name);
            assert!(is_identifier(&alias) && alias.len() <= 64, "{name} {alias}");
        }
        assert_ne!(property_alias("a-b"), property_alias("a_b"));
        let plain = json!({"properties": {"a_b": {}, "C9": {}}});
        assert_eq!(original_properties(&plain), BTreeMap::new());
    }
}
