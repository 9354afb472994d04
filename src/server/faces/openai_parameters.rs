//! The parameters of a body in the form of OpenAI's APIs. Each one is taken out when it is read, and what is left is not
//! supported: an error names it.

use std::num::NonZeroU32;

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use super::openai_error::{OpenAiError, wrong};
use callsheet_values::config::{ClientTool, OutputRequest};
use callsheet_values::types::{ToolChoice, excerpt};

/// A parameter without effect: its name, the values that it may have, and what they are.
pub(super) type IgnoredParameter = (&'static str, fn(&Value) -> bool, &'static str);

/// The parameters without effect of all faces of OpenAI. They are named in a header of the answer.
const IGNORED: [IgnoredParameter; 8] = [
    ("top_p", |value| is_from(value, 0.0, 1.0), "must be a number from 0 to 1"),
    ("frequency_penalty", |value| is_from(value, -2.0, 2.0), "must be a number from -2 to 2"),
    ("presence_penalty", |value| is_from(value, -2.0, 2.0), "must be a number from -2 to 2"),
    ("service_tier", Value::is_string, "must be a string"),
    ("safety_identifier", Value::is_string, "must be a string"),
    ("prompt_cache_key", Value::is_string, "must be a string"),
    ("prompt_cache_retention", Value::is_string, "must be a string"),
    ("reasoning", Value::is_object, "must be an object"),
];

/// Returns whether a value is a number in a range.
pub(super) fn is_from(value: &Value, min: f64, max: f64) -> bool {
    value.as_f64().is_some_and(|number| (min..=max).contains(&number))
}

/// The parameters that were not read yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Parameters(Map<String, Value>);

impl Parameters {
    /// Reads a body. Clients send null for what they leave out.
    pub(super) fn parse(body: &[u8]) -> Result<Self, OpenAiError> {
        let invalid =
            |message: String| OpenAiError::new(StatusCode::BAD_REQUEST, "invalid_json", message);
        let mut fields = match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => fields,
            Ok(_) => return Err(invalid("the body must be a JSON object".to_owned())),
            Err(error) => return Err(invalid(format!("the body is not valid JSON: {error}"))),
        };
        fields.retain(|_, value: &mut Value| !value.is_null());
        Ok(Self(fields))
    }

    /// Returns the body of what was not read yet.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // Cannot fail: all keys are texts.
        serde_json::to_vec(&self.0).unwrap_or_default()
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, OpenAiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(wrong(name, "must be a string")),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>, OpenAiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(wrong(name, "must be true or false")),
        }
    }

    pub(super) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, OpenAiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(_) => Err(wrong(name, "must be an object")),
        }
    }

    pub(super) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, OpenAiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(_) => Err(wrong(name, "must be a list")),
        }
    }

    /// Takes a number of at least 1.
    pub(super) fn count(&mut self, name: &str) -> Result<Option<NonZeroU32>, OpenAiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let number = number.and_then(NonZeroU32::new).map(Some);
        number.ok_or_else(|| wrong(name, "must be a whole number of at least 1"))
    }

    /// Takes `metadata`.
    pub(super) fn pairs(&mut self) -> Result<Vec<(String, String)>, OpenAiError> {
        let pairs = self.object("metadata")?.unwrap_or_default();
        let pairs = pairs.into_iter().map(|(name, value)| match value {
            Value::String(value) => Ok((name, value)),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => {
                Err(wrong(format!("metadata.{}", excerpt(&name, 64)), "must be a string"))
            }
        });
        pairs.collect()
    }

    /// Takes the parameters without effect: those of all faces, and `own`. Returns their names.
    pub(super) fn ignored(
        &mut self,
        own: &[IgnoredParameter],
    ) -> Result<Vec<&'static str>, OpenAiError> {
        let mut names = Vec::new();
        for (name, is_valid, form) in IGNORED.iter().chain(own) {
            match self.take(name) {
                None => {}
                Some(value) if is_valid(&value) => names.push(*name),
                Some(_) => return Err(wrong(*name, form)),
            }
        }
        Ok(names)
    }

    /// Checks that there is no parameter beside these.
    pub(super) fn check_names(&self, known: &[&str]) -> Result<(), OpenAiError> {
        let mut rest = self.clone();
        known.iter().for_each(|name| drop(rest.take(name)));
        rest.finish()
    }

    /// Returns the error of a parameter that was not read.
    pub(super) fn finish(self) -> Result<(), OpenAiError> {
        match self.0.into_iter().next() {
            None => Ok(()),
            Some((name, _)) => Err(wrong(excerpt(&name, 64), "is not supported; leave it out")),
        }
    }
}

/// Reads a tool that the client runs. `path` leads to the object with its name.
pub(super) fn client_tool(function: &Value, path: &str) -> Result<ClientTool, OpenAiError> {
    let name = function["name"].as_str().filter(|name| !name.is_empty());
    let name =
        name.ok_or_else(|| wrong(format!("{path}.name"), "must be a string that is not empty"))?;
    if !(function["strict"].is_null() || function["strict"].is_boolean()) {
        return Err(wrong(format!("{path}.strict"), "must be true or false"));
    }
    let schema = match &function["parameters"] {
        Value::Object(schema) if !schema.is_empty() => Value::Object(schema.clone()),
        Value::Null | Value::Object(_) => json!({"type": "object", "properties": {}}),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(wrong(format!("{path}.parameters"), "must be an object"));
        }
    };
    Ok(ClientTool::new(name, function["description"].as_str().unwrap_or_default(), schema))
}

/// Reads the rule for calling tools. `named` returns the name in an object that names a function; `tools` are those of
/// the request.
///
/// `required` is about the tools of the request, and the host's rule about all tools of the run. So the only tool of a
/// request is forced by its name. With several, a call of one of the agent's own tools is enough.
pub(super) fn tool_choice(
    choice: Option<&Value>,
    named: fn(&Value) -> &Value,
    tools: &[ClientTool],
) -> Result<Option<ToolChoice>, OpenAiError> {
    let Some(choice) = choice else { return Ok(None) };
    Ok(Some(match (choice.as_str(), named(choice).as_str(), tools) {
        (Some("required"), _, [only]) => ToolChoice::Tool(only.name.as_str().into()),
        (Some(word @ ("auto" | "none" | "required")), ..) => word.into(),
        (None, Some(name), _) if choice["type"] == "function" => ToolChoice::Tool(name.into()),
        _ => {
            let problem = "must be auto, none, required, or an object that names a function";
            return Err(wrong("tool_choice", problem));
        }
    }))
}

/// Reads the form of the answer. `schema` is that of its object, and `path` leads to the form.
pub(super) fn output(
    format: &Value,
    schema: &Value,
    path: &str,
) -> Result<Option<OutputRequest>, OpenAiError> {
    match (format["type"].as_str(), schema) {
        (Some("text"), _) => Ok(None),
        (Some("json_object"), _) => Ok(Some(OutputRequest::new(json!({"type": "object"})))),
        (Some("json_schema"), Value::Object(_)) => Ok(Some(OutputRequest::new(schema.clone()))),
        _ => Err(wrong(path, "the type must be text, json_object, or json_schema with a schema")),
    }
}
