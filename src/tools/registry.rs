//! The registry of a host's tools, by name: 1 to 64 characters of `a-z A-Z 0-9 _ -`. A second tool with the same name
//! is refused. Also holds the servers of tools and the hooks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::{RESERVED_NAMES, RegisteredHook, Tool, ToolServer, ToolSpec};

/// A registered tool with its spec, after the overrides of the configuration.
#[derive(Clone)]
pub struct RegisteredTool {
    /// The spec that the schedule and the model use.
    pub spec: Arc<ToolSpec>,
    /// The implementation.
    pub tool: Arc<dyn Tool>,
    /// The kind of its implementation.
    pub kind: RegisteredKind,
}

/// The kind of a tool's implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RegisteredKind {
    /// Compiled into the program: built in, or written in Rust.
    Native,
    /// A program that the configuration names.
    Command,
    /// An HTTP request that the configuration describes.
    Http,
    /// A tool of an MCP server.
    Mcp,
    /// An agent.
    Agent,
    /// A tool of the host itself, such as `read_var`, or one that the client runs.
    Host,
}

impl RegisteredTool {
    /// Makes a registered tool of the host itself.
    pub fn of_host(tool: impl Tool) -> Self {
        let (spec, kind) = (Arc::new(tool.spec()), RegisteredKind::Host);
        Self { spec, tool: Arc::new(tool), kind }
    }
}

impl fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

/// The tools, tool servers and hooks with which a host starts.
///
/// ```
/// use callsheet::tool::{IntoTool, ToolRegistry, ToolSpec};
///
/// let mut tools = ToolRegistry::new();
/// tools.register(ToolSpec::named("one", "Returns one.").into_tool(async |(): (), _| Ok(1)))?;
/// assert!(tools.tool("one").is_some());
/// # Ok::<(), callsheet::tool::RegistryError>(())
/// ```
#[derive(Clone, Default)]
pub struct ToolRegistry {
    tools: BTreeMap<String, RegisteredTool>,
    servers: Vec<Arc<dyn ToolServer>>,
    hooks: Vec<RegisteredHook>,
}

impl fmt::Debug for ToolRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<&str> = self.servers.iter().map(|server| server.name()).collect();
        f.debug_struct("ToolRegistry")
            .field("tools", &self.tools)
            .field("servers", &servers)
            .field("hooks", &self.hooks)
            .finish()
    }
}

impl ToolRegistry {
    /// Makes an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool under the name of its spec.
    ///
    /// # Errors
    /// If another tool has the name, the name is reserved or a provider would refuse it, a time limit is zero, or the
    /// input is not the schema of an object or not a valid schema.
    pub fn register(&mut self, tool: impl Tool) -> Result<(), RegistryError> {
        self.register_as(RegisteredKind::Native, tool)
    }

    /// Adds a tool of this kind. An agent always has the kind `Agent`. The errors are those of [`Self::register`].
    pub fn register_as(
        &mut self,
        kind: RegisteredKind,
        tool: impl Tool,
    ) -> Result<(), RegistryError> {
        let spec = tool.spec();
        let name = spec.name.clone();
        let valid = (1..=64).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if !valid {
            return Err(RegistryError::InvalidName(name));
        }
        if RESERVED_NAMES.contains(&&*name) {
            return Err(RegistryError::ReservedName(name));
        }
        if self.tools.contains_key(&name) {
            return Err(RegistryError::DuplicateName(name));
        }
        if spec.timeout == Some(Duration::ZERO) || spec.approval_timeout.is_zero() {
            return Err(RegistryError::ZeroTimeout(name));
        }
        if !spec.input.allows_object() {
            return Err(RegistryError::InputNotAnObject(name));
        }
        if let Some(problem) = spec.input.problem() {
            return Err(RegistryError::InvalidInput { name, problem: problem.to_owned() });
        }
        let kind = if spec.agent.is_some() { RegisteredKind::Agent } else { kind };
        let tool = RegisteredTool { spec: Arc::new(spec), tool: Arc::new(tool), kind };
        self.tools.insert(name, tool);
        Ok(())
    }

    /// Adds a server, whose tools are known when it is connected.
    pub fn add_server(&mut self, server: Arc<dyn ToolServer>) {
        self.servers.push(server);
    }

    /// Adds a hook, which is asked after those that were added before.
    pub fn add_hook(&mut self, hook: RegisteredHook) {
        self.hooks.push(hook);
    }

    /// Returns the hooks in the order in which they are asked.
    pub fn hooks(&self) -> &[RegisteredHook] {
        &self.hooks
    }

    /// Replaces the servers by others of the same configuration, which no host has connected.
    pub fn renew_servers(&mut self) {
        self.servers =
            std::mem::take(&mut self.servers).into_iter().map(|server| server.for_host()).collect();
    }

    /// Returns the servers.
    pub fn servers(&self) -> &[Arc<dyn ToolServer>] {
        &self.servers
    }

    /// Returns the tool with this name.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<&RegisteredTool> {
        self.tools.get(name)
    }

    /// Iterates over all tools, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RegisteredTool)> {
        self.tools.iter().map(|(name, tool)| (name.as_str(), tool))
    }

    /// Changes the spec of a registered tool, without the checks of [`Self::register`]. Ignores a name without a
    /// tool.
    pub(super) fn update_spec(&mut self, name: &str, update: impl FnOnce(&mut ToolSpec)) {
        if let Some(entry) = self.tools.get_mut(name) {
            update(Arc::make_mut(&mut entry.spec));
        }
    }
}

/// The reason why a tool was not registered.
///
/// Returned by [`ToolRegistry::register`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Another tool has this name.
    #[error("register tool {0:?}: another tool has this name")]
    DuplicateName(String),
    /// The host has a tool of its own with this name, or it is a text of
    /// [`ToolChoice`](callsheet_values::config::ToolChoice).
    #[error("register tool {0:?}: the name is reserved for a tool of the host or for tool_choice")]
    ReservedName(String),
    /// The name has characters or a length that providers refuse.
    #[error("register tool {0:?}: the name must have 1 to 64 characters of a-z, A-Z, 0-9, _ and -")]
    InvalidName(String),
    /// A time limit is zero.
    #[error("register tool {0:?}: its time limits must be longer than 0")]
    ZeroTimeout(String),
    /// The schema of the arguments is not that of an object.
    #[error("register tool {0:?}: its input must be a struct, because arguments are a JSON object")]
    InputNotAnObject(String),
    /// The schema of the arguments is invalid.
    #[error("register tool {name:?}: the schema of its input is {problem}")]
    InvalidInput {
        /// The name of the tool.
        name: String,
        /// The problem with the schema.
        problem: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IntoTool as _;
    use callsheet_values::types::ToolChoice;

    #[test]
    fn a_tool_that_a_tool_choice_cannot_name_is_refused() {
        let mut registry = ToolRegistry::new();
        for choice in [ToolChoice::Auto, ToolChoice::None, ToolChoice::Required] {
            let name = choice.to_string();
            let tool = ToolSpec::named(&name, "Ends.").into_tool(async |(): (), _| Ok(()));
            assert_eq!(registry.register(tool), Err(RegistryError::ReservedName(name)));
        }
    }
}
