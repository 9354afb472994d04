//! `set_variable {name, value}` and `get_variable {name}`: variables of the session.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};

/// Writes a variable of the session. Pure: it has no effects outside the session.
#[derive(Clone, Copy, Debug)]
pub struct SetVariable;

/// Reads a variable of the session. Pure.
#[derive(Clone, Copy, Debug)]
pub struct GetVariable;

#[derive(Deserialize, JsonSchema)]
struct SetVariableInput {
    /// The variable's name, of 1 to 128 bytes.
    name: String,
    /// Any JSON value.
    value: Value,
}

#[derive(Deserialize, JsonSchema)]
struct GetVariableInput {
    /// The variable's name.
    name: String,
}

#[async_trait]
impl Tool for SetVariable {
    fn spec(&self) -> ToolSpec {
        let description = "Stores a value under a name for later calls and turns of this session.";
        // An identical call after another write of the variable is not a duplicate.
        ToolSpec::new::<SetVariableInput>("set_variable", description).pure().repeatable()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let SetVariableInput { name, value } = context.input()?;
        context.set(&name, value).map_err(ToolError::permanent)?;
        Ok(format!("{name:?} is set").into())
    }
}

#[async_trait]
impl Tool for GetVariable {
    fn spec(&self) -> ToolSpec {
        let description = "Returns the JSON value that this session stores under a name.";
        ToolSpec::new::<GetVariableInput>("get_variable", description).pure().repeatable()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let GetVariableInput { name } = context.input()?;
        let text = match context.get::<Value>(&name)? {
            Some(value) => value.to_string(),
            None => format!("there is no variable {name:?}"),
        };
        Ok(text.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::ToolTest;

    #[tokio::test]
    async fn set_variable_writes_a_value_under_a_valid_name() {
        let mut set = ToolTest::new(SetVariable);
        let call = set.call(json!({"name": "x", "value": {"n": [1]}})).await;
        assert_eq!(call.text(), "\"x\" is set");
        assert_eq!(call.written, [("x".to_owned(), json!({"n": [1]}))].into());
        let call = set.call(json!({"name": "y", "value": "z".repeat(1 << 20)})).await;
        assert!(call.error().message().contains("max_variables_bytes"));
        let call = set.call(json!({"name": "", "value": 1})).await;
        assert!(call.error().message().contains("1 to 128 bytes"));
    }

    #[tokio::test]
    async fn get_variable_returns_the_value_as_json() {
        let mut get = ToolTest::new(GetVariable).variable("x", json!({"n": [1]}));
        assert_eq!(get.call(json!({"name": "x"})).await.text(), "{\"n\":[1]}");
        assert_eq!(get.call(json!({"name": "y"})).await.text(), "there is no variable \"y\"");
    }
}
