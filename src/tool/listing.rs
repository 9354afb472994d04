//! The tools of an agent, for people: `callsheet tools list` and `GET /v1/tools`.

use serde::Serialize;
use serde_json::json;

use super::{
    ApprovalPolicy, RegisteredKind, RegisteredTool, StartPolicy, ToolEffect, ToolRegistry, ToolSpec,
};

/// Bytes of JSON for each token, on average.
const BYTES_PER_TOKEN: usize = 4;

/// The reason why an agent does not offer a registered tool.
pub(crate) const NOT_NAMED: &str = "the agent's tools do not name it";

/// A registered tool, and whether an agent offers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ListedTool {
    pub(crate) name: String,
    pub(crate) kind: RegisteredKind,
    pub(crate) effect: ToolEffect,
    /// The time at which a call starts.
    pub(crate) start: StartPolicy,
    pub(crate) idempotent: bool,
    pub(crate) approval: ApprovalPolicy,
    /// The estimated size of the definition in a request, in tokens.
    pub(crate) tokens: usize,
    /// The reason why the agent does not offer the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_out: Option<&'static str>,
}

/// Lists the registered tools, first those that the agent offers.
pub(crate) fn list_tools(
    registry: &ToolRegistry,
    is_offered: impl Fn(&str) -> bool,
) -> Vec<ListedTool> {
    let listed = |(name, tool): (&str, &RegisteredTool)| ListedTool::new(tool, is_offered(name));
    let mut tools: Vec<ListedTool> = registry.iter().map(listed).collect();
    tools.sort_by_key(|tool| tool.left_out.is_some());
    tools
}

impl ListedTool {
    fn new(tool: &RegisteredTool, is_offered: bool) -> Self {
        let spec = &tool.spec;
        Self {
            name: spec.name.clone(),
            kind: tool.kind,
            effect: spec.effect,
            start: match spec.may_start_early() {
                true => StartPolicy::OnSeal,
                false => StartPolicy::OnFinish,
            },
            idempotent: spec.idempotent,
            approval: spec.approval,
            tokens: definition_tokens(spec),
            left_out: (!is_offered).then_some(NOT_NAMED),
        }
    }
}

fn definition_tokens(spec: &ToolSpec) -> usize {
    let parameters = spec.input.as_value();
    let definition = json!({
        "name": spec.name, "description": spec.description, "parameters": parameters,
    });
    definition.to_string().len().div_ceil(BYTES_PER_TOKEN)
}
