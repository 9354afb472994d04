//! A tool that the client runs: its entry in the registry, with the spec that the model sees.

use async_trait::async_trait;

use super::{ParsedSchema, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use callsheet_values::config::ClientTool;

/// A tool that the client runs. The host never runs it.
#[derive(Debug)]
pub struct ClientSideTool(ToolSpec);

impl ClientSideTool {
    /// Makes the tool of a definition that a client gave.
    pub fn new(tool: &ClientTool) -> Self {
        let ClientTool { name, description, input_schema, effect, approval_timeout, .. } = tool;
        let mut schema = (**input_schema).clone();
        if let Some(members) = schema.as_object_mut() {
            // Model services require this member.
            members.entry("type").or_insert_with(|| "object".into());
        }
        let input = ParsedSchema::from_value(schema);
        let mut spec = ToolSpec::with_schema(name, description, input);
        spec.effect = *effect;
        spec.approval_timeout = approval_timeout.unwrap_or(spec.approval_timeout);
        spec.by_client = true;
        Self(spec)
    }
}

#[async_trait]
impl Tool for ClientSideTool {
    fn spec(&self) -> ToolSpec {
        self.0.clone()
    }

    async fn run(&self, _: ToolContext) -> Result<ToolOutput, ToolError> {
        Err(ToolError::new("only the client runs this tool"))
    }
}
