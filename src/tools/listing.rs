//! The tools of a host, and which of them an agent offers, for people: `callsheet tools list` and `GET /v1/tools`.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    ApprovalPolicy, RegisteredKind, RegisteredTool, ServerState, StartPolicy, ToolEffect,
    ToolRegistry, ToolServer, ToolSpec,
};

/// Bytes of JSON for each token, on average.
const BYTES_PER_TOKEN: usize = 4;

/// The reason why an agent does not offer a registered tool.
pub const NOT_NAMED: &str = "the agent's tools do not name it";

/// A registered tool, or one of the host itself, and whether an agent offers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedTool {
    /// The name.
    pub name: String,
    /// The kind of its implementation.
    pub kind: RegisteredKind,
    /// Its effect.
    pub effect: ToolEffect,
    /// The time at which a call starts.
    pub start: StartPolicy,
    /// May run again with the same idempotency key after a crash.
    pub idempotent: bool,
    /// The phases of a call that need a person's approval.
    pub approval: ApprovalPolicy,
    /// The estimated size of the definition in a request, in tokens.
    pub tokens: usize,
    /// The server that offers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// True if the model finds it with `find_tools`: its definition is in no request.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub found: bool,
    /// The reason why the agent does not offer the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    /// The models of the agent whose services refuse the tool.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<ModelRefusal>,
}

/// A model whose service refuses a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelRefusal {
    /// The model's name in the configuration.
    pub model: String,
    /// The error of the service.
    pub reason: String,
}

/// A server of tools, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedServer {
    /// The name.
    pub name: String,
    /// `starting`, `up` or `down`.
    pub state: &'static str,
    /// The reason why it is down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// True if the agent's tools name it.
    pub named: bool,
    /// The number of its tools that may be offered.
    pub tools: usize,
    /// The instructions that the model reads, if the agent offers one of its tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Its tools that cannot be offered, by their names on the server, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<(String, String)>,
    /// Its offered tools by their names on the server, with the difference from the accepted one, or with a part of the
    /// schema that is not checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<(String, String)>,
    /// Number of lines of its output that could not be read as messages, and the first of them.
    #[serde(skip_serializing_if = "is_zero")]
    pub noise_lines: u64,
    /// The first of these lines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub noise: Vec<String>,
}

impl ListedServer {
    /// Reads the state of a server. `named`: its tools are among those of the agent.
    pub fn new(server: &dyn ToolServer, named: bool) -> Self {
        let status = Arc::clone(&server.status().borrow());
        let reason = match &status.state {
            ServerState::Starting | ServerState::Up | ServerState::Released => None,
            ServerState::Down(reason) => Some(reason.clone()),
        };
        let listing = status.listing.as_deref();
        let (noise_lines, noise) = server.unparsed_lines();
        Self {
            name: server.name().to_owned(),
            state: status.state.as_str(),
            reason,
            named,
            tools: listing.map_or(0, |listing| listing.tools.len()),
            instructions: listing.and_then(|listing| listing.instructions.clone()),
            left_out: listing.map(|listing| listing.left_out.clone()).unwrap_or_default(),
            warnings: listing.map(|listing| listing.warnings.clone()).unwrap_or_default(),
            noise_lines,
            noise,
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The tools of an agent, and the servers of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AgentTools {
    /// The name of the agent.
    pub agent: Arc<str>,
    /// The tools that it offers.
    pub tools: Vec<ListedTool>,
    /// The estimated size of all definitions in a request, in tokens.
    pub tokens: usize,
    /// The patterns of the agent that match no tool.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<String>,
    /// The servers of the host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ListedServer>,
}

/// Lists the registered tools, and `of_host`: the tools of the host itself that the agent offers. First come the
/// tools in its requests, then those that its model finds with `find_tools`, then those that it does not offer.
pub fn list_tools<'t>(
    registry: &ToolRegistry,
    of_host: impl Iterator<Item = &'t ToolSpec>,
    is_offered: impl Fn(&str) -> bool,
    is_found: impl Fn(&str) -> bool,
) -> Vec<ListedTool> {
    let server_of = |name: &str| {
        let mut servers = registry.servers().iter();
        let server = servers.find(|server| name.starts_with(&server.tool_prefix()));
        server.map(|server| server.name())
    };
    let listed = |(name, tool): (&str, &RegisteredTool)| {
        let offered = is_offered(name);
        let found = offered && is_found(name);
        // A tool of the program may have a name that begins like those of a server.
        let server = if tool.kind == RegisteredKind::Mcp { server_of(name) } else { None };
        ListedTool::new(&tool.spec, tool.kind, server, offered, found)
    };
    let of_host =
        of_host.map(|spec| ListedTool::new(spec, RegisteredKind::Host, None, true, false));
    let mut tools: Vec<ListedTool> = registry.iter().map(listed).chain(of_host).collect();
    tools.sort_by_key(|tool| (tool.left_out.is_some(), tool.found));
    tools
}

impl ListedTool {
    fn new(
        spec: &ToolSpec,
        kind: RegisteredKind,
        server: Option<&str>,
        is_offered: bool,
        found: bool,
    ) -> Self {
        Self {
            name: spec.name.clone(),
            kind,
            effect: spec.effect,
            start: match spec.may_start_early() {
                true => StartPolicy::OnSeal,
                false => StartPolicy::OnFinish,
            },
            idempotent: spec.idempotent,
            approval: spec.approval,
            tokens: definition_tokens(&spec.name, &spec.description, spec.input.as_value()),
            server: server.map(str::to_owned),
            found,
            left_out: (!is_offered).then(|| NOT_NAMED.to_owned()),
            set_aside: Vec::new(),
        }
    }
}

/// Returns the estimated size of a definition in a request, in tokens.
pub fn definition_tokens(name: &str, description: &str, parameters: &Value) -> usize {
    let definition = json!({"name": name, "description": description, "parameters": parameters});
    definition.to_string().len().div_ceil(BYTES_PER_TOKEN)
}
