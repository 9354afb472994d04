//! Registers the tools, servers of tools and hooks that the configuration defines.

#[cfg(target_os = "linux")]
use super::command::CommandTool;
use super::defined_input::DefinitionError;
use super::http_request::HttpTool;
#[cfg(all(feature = "mcp", target_os = "linux"))]
use super::mcp::McpServer;
use super::{AgentTool, RegisteredHook, RegisteredKind, ToolRegistry};
#[cfg(not(all(feature = "mcp", target_os = "linux")))]
use callsheet_values::config::McpTransport;
use callsheet_values::config::{
    CommandConfig, Config, ConfigErrors, ConfiguredTool, McpConfig, McpLimits, ToolKind,
};
use callsheet_values::types::Secrets;

impl ToolRegistry {
    /// Registers what the configuration defines: the tools of `[tools.NAME]` with `kind`, servers of tools, and the
    /// hooks of `[[hooks]]`. Checks each definition, but connects to no server. Reads the
    /// secret variables: in what tools, servers and hooks return, their present values read `[redacted]`, and so do all
    /// other secrets of the configuration.
    ///
    /// ```
    /// use callsheet::config::Config;
    /// use callsheet::tool::ToolRegistry;
    ///
    /// callsheet::launcher::run_if_launched(); // first in main
    ///
    /// let text = "[tools.today]\nkind = \"command\"\ndescription = \"Tells the date.\"\ncommand = [\"date\"]\n";
    /// let config = Config::parse(text, "callsheet.toml", &|name| std::env::var(name).ok())?;
    /// let mut tools = ToolRegistry::new();
    /// tools.register_configured(&config)?;
    /// assert!(tools.tool("today").is_some());
    /// # Ok::<(), callsheet::config::ConfigErrors>(())
    /// ```
    ///
    /// # Errors
    /// One for each tool, server or hook that cannot be made, with file, line and key.
    pub fn register_configured(&mut self, config: &Config) -> Result<(), ConfigErrors> {
        let (mut errors, secrets) = (Vec::new(), config.secrets());
        let config = &config.with_host_files();
        for (name, tool) in &config.tools {
            let Some(definition) = &tool.definition else { continue };
            let registered = match &definition.kind {
                ToolKind::Command(command) => {
                    self.register_command(name, definition, command, &secrets)
                }
                ToolKind::Http(http) => {
                    HttpTool::new(name, definition, http, &secrets).and_then(|tool| {
                        let registered = self.register_as(RegisteredKind::Http, tool);
                        registered.map_err(|error| DefinitionError::new("kind", error))
                    })
                }
                ToolKind::Agent(agent) => {
                    let description = &definition.description;
                    let tool = AgentTool::with_config(name, description, agent.clone());
                    let registered = self.register_as(RegisteredKind::Agent, tool);
                    registered.map_err(|error| DefinitionError::new("kind", error))
                }
            };
            if let Err(DefinitionError { key, message }) = registered {
                errors.push(config.tool_error(name, &key, message));
            }
        }
        for (name, server) in &config.mcp {
            if let Err(DefinitionError { key, message }) =
                self.register_server(name, server, config.mcp_limits, &secrets)
            {
                errors.push(config.mcp_error(name, &key, message));
            }
        }
        for (at, hook) in config.hooks.iter().enumerate() {
            match RegisteredHook::configured(hook, &secrets) {
                Ok(hook) => self.add_hook(hook),
                Err(DefinitionError { key, message }) => {
                    errors.push(config.hook_error(at, &key, message));
                }
            }
        }
        ConfigErrors::join(errors)
    }

    #[cfg(target_os = "linux")]
    fn register_command(
        &mut self,
        name: &str,
        definition: &ConfiguredTool,
        command: &CommandConfig,
        secrets: &Secrets,
    ) -> Result<(), DefinitionError> {
        let tool = CommandTool::new(name, definition, command, secrets)?;
        let registered = self.register_as(RegisteredKind::Command, tool);
        registered.map_err(|error| DefinitionError::new("kind", error))
    }

    #[cfg(all(feature = "mcp", target_os = "linux"))]
    fn register_server(
        &mut self,
        name: &str,
        server: &McpConfig,
        limits: McpLimits,
        secrets: &Secrets,
    ) -> Result<(), DefinitionError> {
        self.add_server(McpServer::new(name, server, limits, secrets)?);
        Ok(())
    }

    #[cfg(not(all(feature = "mcp", target_os = "linux")))]
    fn register_server(
        &mut self,
        _: &str,
        server: &McpConfig,
        _: McpLimits,
        _: &Secrets,
    ) -> Result<(), DefinitionError> {
        let key =
            if matches!(server.transport, McpTransport::Http { .. }) { "url" } else { "command" };
        Err(DefinitionError::new(key, "MCP servers need Linux and the cargo feature mcp"))
    }

    #[cfg(not(target_os = "linux"))]
    fn register_command(
        &mut self,
        _: &str,
        _: &ConfiguredTool,
        _: &CommandConfig,
        _: &Secrets,
    ) -> Result<(), DefinitionError> {
        Err(DefinitionError::new("kind", "tools that run programs need Linux"))
    }
}
