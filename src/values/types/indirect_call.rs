//! Calls that the model makes with `use_tool`: the real call, and the form that the model has made.

use serde_json::{Value, json};

use super::ToolCall;

/// The name of the tool that calls a tool which was found by a search.
pub const USE_TOOL: &str = "use_tool";

/// Returns the name and the arguments of the tool that a call of `use_tool` means.
///
/// # Errors
/// The problem with the arguments, for the model.
pub fn used_tool(arguments: &Value) -> Result<(&str, Value), &'static str> {
    let Some(name) = arguments["name"].as_str() else {
        return Err("name must be the name of a tool");
    };
    let object = "arguments must be an object";
    match &arguments["arguments"] {
        Value::Null => Ok((name, json!({}))),
        inner @ Value::Object(_) => Ok((name, inner.clone())),
        // Some models encode the object twice. Unlike in `parse_arguments`, a blank text or `null` within the string
        // is an error.
        Value::String(text) => {
            let inner: Option<Value> = serde_json::from_str(text).ok();
            Ok((name, inner.filter(Value::is_object).ok_or(object)?))
        }
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => Err(object),
    }
}

impl ToolCall {
    /// Returns the call as the history shows it to the model. An indirect call becomes one of `use_tool`, with an
    /// object as `arguments`, also if the model left them out, sent a string or called the tool by its own name.
    #[must_use]
    pub fn as_made(&self) -> Self {
        let call = self.clone();
        if !call.indirect {
            return call;
        }
        let arguments = json!({"name": &*call.name, "arguments": &*call.arguments});
        Self { name: USE_TOOL.into(), arguments: arguments.into(), indirect: false, ..call }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_means_a_tool_and_its_arguments() {
        let inner = json!({"city": "Oslo"});
        let made = json!({"name": "weather", "arguments": inner});
        assert_eq!(used_tool(&made), Ok(("weather", inner.clone())));
        let encoded_twice = json!({"name": "weather", "arguments": inner.to_string()});
        assert_eq!(used_tool(&encoded_twice), Ok(("weather", inner)));
        assert_eq!(used_tool(&json!({"name": "weather"})), Ok(("weather", json!({}))));
        for wrong in [
            json!({}),
            json!({"name": 1}),
            json!({"name": "x", "arguments": [1]}),
            json!({"name": "x", "arguments": "[1]"}),
        ] {
            assert!(used_tool(&wrong).is_err(), "{wrong}");
        }
    }
}
