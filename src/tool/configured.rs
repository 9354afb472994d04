//! Registers the tools that the configuration defines.

#[cfg(target_os = "linux")]
use super::command::CommandTool;
use super::defined_input::DefinitionError;
use super::http_request::HttpTool;
use super::{RegisteredKind, ToolRegistry};
use crate::config::{CommandConfig, Config, ConfigErrors, ConfiguredTool, ToolKind};

impl ToolRegistry {
    /// Registers the tools that the configuration defines: the tables `[tools.NAME]` with `kind`.
    /// Everything is checked that can be checked before a call.
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
    /// One for each tool that cannot be made, with file, line and key.
    pub fn register_configured(&mut self, config: &Config) -> Result<(), ConfigErrors> {
        let mut errors = Vec::new();
        for (name, tool) in &config.tools {
            let Some(definition) = &tool.definition else { continue };
            let registered = match &definition.kind {
                ToolKind::Command(command) => self.register_command(name, definition, command),
                ToolKind::Http(http) => HttpTool::new(name, definition, http).and_then(|tool| {
                    let registered = self.register_as(RegisteredKind::Http, tool);
                    registered.map_err(|error| DefinitionError::new("kind", error))
                }),
            };
            if let Err(DefinitionError { key, message }) = registered {
                errors.push(config.tool_error(name, &key, message));
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
    ) -> Result<(), DefinitionError> {
        let tool = CommandTool::new(name, definition, command)?;
        let registered = self.register_as(RegisteredKind::Command, tool);
        registered.map_err(|error| DefinitionError::new("kind", error))
    }

    #[cfg(not(target_os = "linux"))]
    fn register_command(
        &mut self,
        _: &str,
        _: &ConfiguredTool,
        _: &CommandConfig,
    ) -> Result<(), DefinitionError> {
        Err(DefinitionError::new("kind", "tools that run programs need Linux"))
    }
}
