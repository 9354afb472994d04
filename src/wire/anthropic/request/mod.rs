//! A request's body in the Messages form.

mod messages;

use std::borrow::Cow;

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::wire::members::Members;
use crate::wire::{ModelRequest, ToolChoice, ToolDefinition};

pub(in crate::wire) use messages::write as write_messages;

/// The longest answer where nobody says one: this wire wants a number.
const MAX_TOKENS: u64 = 8192;

/// Members which the host relies on, so that `extra_body` cannot replace them.
const OURS: [&str; 4] = ["model", "messages", "tools", "stream"];

pub(in crate::wire) struct Head<'a>(pub(in crate::wire) &'a ModelRequest);

impl Serialize for Head<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let request = self.0;
        let mut body = Members::new(serializer.serialize_map(None)?, request, &OURS);
        body.put("model", &request.model)?;
        body.put("max_tokens", &max_tokens(request))?;
        if let Some(system) = request.system.as_deref().filter(|text| !text.trim().is_empty()) {
            body.put("system", system)?;
        }
        if !request.tools.is_empty() {
            body.put("tools", &Tools(&request.tools))?;
            body.put("tool_choice", &choice(request))?;
        }
        if let Some(temperature) = request.temperature {
            // Other wires go up to 2.
            body.put("temperature", &temperature.clamp(0.0, 1.0))?;
        }
        body.put("stream", &request.stream)?;
        body.end()
    }
}

/// The longest answer, thinking included. Where nobody says one there is room for the thinking that
/// the configuration allows, because the service refuses a budget that is not smaller.
fn max_tokens(request: &ModelRequest) -> u64 {
    if let Some(tokens) = request.max_output_tokens {
        return tokens.into();
    }
    let thinking = request.extra_body.get("thinking");
    let budget = thinking.and_then(|thinking| thinking.get("budget_tokens")?.as_u64());
    budget.unwrap_or(0).saturating_add(MAX_TOKENS)
}

fn choice(request: &ModelRequest) -> Value {
    let mut choice = match &request.tool_choice {
        ToolChoice::Auto => json!({"type": "auto"}),
        // It may not say how many of none there may be.
        ToolChoice::None => return json!({"type": "none"}),
        ToolChoice::Required => json!({"type": "any"}),
        ToolChoice::Tool(name) => json!({"type": "tool", "name": &**name}),
    };
    if request.parallel_tool_calls == Some(false)
        && let Some(members) = choice.as_object_mut()
    {
        members.insert("disable_parallel_tool_use".to_owned(), Value::Bool(true));
    }
    choice
}

struct Tools<'a>(&'a [ToolDefinition]);

impl Serialize for Tools<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Tool<'a> {
            name: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            description: &'a str,
            input_schema: Cow<'a, Value>,
        }
        let mut seq = serializer.serialize_seq(Some(self.0.len()))?;
        for ToolDefinition { name, description, schema } in self.0 {
            seq.serialize_element(&Tool {
                name,
                description,
                input_schema: object_schema(schema),
            })?;
        }
        seq.end()
    }
}

/// A schema as this wire takes it: of an object, and without alternatives at the top. What is
/// lost here the host checks itself when a call comes.
fn object_schema(schema: &Value) -> Cow<'_, Value> {
    const ALTERNATIVES: [&str; 3] = ["oneOf", "anyOf", "allOf"];
    let Value::Object(members) = schema else { return Cow::Owned(json!({"type": "object"})) };
    let fits = members.get("type").is_some_and(|kind| kind == "object")
        && !ALTERNATIVES.iter().any(|key| members.contains_key(*key));
    if fits {
        return Cow::Borrowed(schema);
    }
    let mut members = members.clone();
    members.retain(|key, _| !ALTERNATIVES.contains(&key.as_str()));
    members.insert("type".to_owned(), Value::from("object"));
    Cow::Owned(Value::Object(members))
}

#[cfg(test)]
mod tests;
