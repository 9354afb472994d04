//! `set_variable {name, value}` and `get_variable {name}`: variables of the session.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};

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
        context.set(&name, value)?;
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
        let text = match context.get(&name) {
            Some(value) => value.to_string(),
            None => format!("there is no variable {name:?}"),
        };
        Ok(text.into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::context::{Variables, VariablesTransaction};
    use crate::types::CallKey;

    #[tokio::test]
    async fn get_variable_returns_what_set_variable_wrote() {
        let view = Arc::new(Mutex::new(VariablesTransaction::new(Variables::default(), 30)));
        let run = async |tool: &dyn Tool, arguments: Value| {
            let key = CallKey { turn: 1, attempt: 1, index: 0 };
            let token = CancellationToken::new();
            let context = ToolContext::new(key, arguments, "k".to_owned(), token, Arc::new(|_| {}))
                .with_variables(Arc::clone(&view));
            tool.run(context).await.map(|output| output.0).map_err(|error| error.0)
        };
        let missing = run(&GetVariable, json!({"name": "x"})).await;
        assert_eq!(missing, Ok("there is no variable \"x\"".to_owned()));
        let set = run(&SetVariable, json!({"name": "x", "value": {"n": [1]}})).await;
        assert_eq!(set, Ok("\"x\" is set".to_owned()));
        let found = run(&GetVariable, json!({"name": "x"})).await;
        assert_eq!(found, Ok("{\"n\":[1]}".to_owned()));
        let error = run(&SetVariable, json!({"name": "y", "value": "z".repeat(30)})).await;
        assert!(error.is_err_and(|error| error.contains("max_variables_bytes")));
        let error = run(&SetVariable, json!({"name": "", "value": 1})).await;
        assert!(error.is_err_and(|error| error.contains("1 to 128 bytes")));
    }
}
