//! A request's body in the Responses form.
//!
//! The host is stateless, so the service is told to store nothing and to hand out its reasoning
//! encrypted. What a model gets back of what it said itself has to hang together:
//!
//! - A reasoning item goes only together with the item that it led to, and the other way round
//!   ("was provided without its required following item", "without its required 'reasoning' item").
//! - Reasoning that the service did not store has to bring its content ("Items are not persisted
//!   when `store` is set to false").
//! - Ids of calls have 64 characters at most, and no other rule.
//!
//! So items go back as they came, or, where one of them cannot, as text and calls without ids.

mod back;
mod input;

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::wire::members::Members;
use crate::wire::{ModelRequest, ToolChoice, ToolDefinition};

use input::Input;

/// Writes the body of a request.
pub(in crate::wire) fn request_body(request: &ModelRequest) -> Vec<u8> {
    // Every key is a string and no writer can fail, so nothing here can.
    serde_json::to_vec(&Body(request)).unwrap_or_default()
}

/// Members which the host relies on, so that `extra_body` cannot replace them.
const OURS: [&str; 4] = ["model", "input", "tools", "stream"];

struct Body<'a>(&'a ModelRequest);

impl Serialize for Body<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let request = self.0;
        let mut body = Members::new(serializer.serialize_map(None)?, request, &OURS);
        body.put("model", &request.model)?;
        if let Some(system) = request.system.as_deref().filter(|text| !text.is_empty()) {
            body.put("instructions", system)?;
        }
        body.put("input", &Input { request, stores: stores(request) })?;
        if !request.tools.is_empty() {
            body.put("tools", &Tools(&request.tools))?;
            body.put("tool_choice", &choice(&request.tool_choice))?;
            if let Some(parallel) = request.parallel_tool_calls {
                body.put("parallel_tool_calls", &parallel)?;
            }
        }
        body.put("stream", &request.stream)?;
        if let Some(tokens) = request.max_output_tokens {
            body.put("max_output_tokens", &tokens)?;
        }
        if let Some(temperature) = request.temperature {
            body.put("temperature", &temperature)?;
        }
        body.put("store", &false)?;
        body.put("include", &["reasoning.encrypted_content"])?;
        body.end()
    }
}

/// Whether the service knows its items by their ids, because the configuration lets it store them.
fn stores(request: &ModelRequest) -> bool {
    match request.extra_body.get("store") {
        Some(stores) => stores == true,
        None => request.omit_body.contains("store"),
    }
}

fn choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Tool(name) => json!({"type": "function", "name": **name}),
    }
}

struct Tools<'a>(&'a [ToolDefinition]);

impl Serialize for Tools<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Tool<'a> {
            #[serde(rename = "type")]
            kind: &'static str,
            name: &'a str,
            description: &'a str,
            parameters: &'a Value,
            /// The service's default would refuse schemas that it can enforce only in part.
            strict: bool,
        }
        let mut seq = serializer.serialize_seq(Some(self.0.len()))?;
        for ToolDefinition { name, description, schema } in self.0 {
            seq.serialize_element(&Tool {
                kind: "function",
                name,
                description,
                parameters: schema,
                strict: false,
            })?;
        }
        seq.end()
    }
}
