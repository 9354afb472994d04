//! Reads `callsheet.toml`: parses its values, and collects all errors with their lines.

mod agent;
mod faces;
mod hooks;
mod host;
mod mcp;
mod model;
mod process;
mod server;
pub(super) mod source;
mod tokens;
mod tool_definition;
mod tools;
pub(super) mod values;

use std::collections::BTreeMap;

use super::error::KeyLocations;
use super::key_table::KeyTable as _;
use super::{
    AgentConfig, BaseUrl, Config, ConfigErrors, ConsoleConfig, DEFAULT_AGENT, FAST_PATH_ENV,
    FacesConfig, HookConfig, HostConfig, JournalConfig, JournalEngine, MULTI_TOOL_CALLS_ENV,
    McpConfig, McpLimits, ModelConfig, REHEARSAL, STREAM_ENV, TlsConfig, TokenConfig, ToolOverride,
};
use crate::types::Secrets;
use source::ConfigSource;
use values::Parsed;

impl Config {
    /// Parses a configuration file. `file` is its path: errors name it, and some paths in the file are relative to
    /// its folder. `env` looks up environment variables.
    ///
    /// ```
    /// use callsheet::config::Config;
    ///
    /// let text = "[agents.default]\nmodel = \"rehearsal\"\ntools = [\"clock\"]\n";
    /// let config = Config::parse(text, "callsheet.toml", &|name| std::env::var(name).ok())?;
    /// assert!(config.agents.contains_key("default"));
    ///
    /// let error = Config::parse("[agents.a]\nmodle = 1\n", "callsheet.toml", &|_| None).unwrap_err();
    /// assert!(error.to_string().starts_with("callsheet.toml:2: agents.a.modle: "), "{error}");
    /// # Ok::<(), callsheet::config::ConfigErrors>(())
    /// ```
    ///
    /// # Errors
    /// Returns all errors of the file and of environment variables, in the order of lines. If the file is not TOML,
    /// returns only this error.
    pub fn parse(
        text: &str,
        file: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigErrors> {
        Self::parse_with_keys(text, file, env, |_| true)
    }

    /// Parses a configuration file as [`Config::parse`] does. Only the models for which `needs_key` returns true must
    /// have the API keys that the file names.
    pub fn parse_with_keys(
        text: &str,
        file: &str,
        env: &dyn Fn(&str) -> Option<String>,
        needs_key: impl Fn(&str) -> bool,
    ) -> Result<Self, ConfigErrors> {
        let source = ConfigSource::new(text, file);
        // Reads the tables of the file.
        let Some(root) = source.root() else { return Err(source.into_errors()) };
        let [host_table, journal_table, console_table] =
            ["host", "journal", "console"].map(|key| root.table(key));
        let host = HostConfig::read(&host_table, env);
        let journal = JournalConfig::read_table(&journal_table);
        let console = ConsoleConfig::read_table(&console_table);
        let faces = FacesConfig::read(&root.table("faces"));
        let mut models: BTreeMap<String, ModelConfig> = root
            .tables("models")
            .into_iter()
            .map(|(name, section)| {
                let model = ModelConfig::read(&section, env, needs_key(&name));
                (name, model)
            })
            .collect();
        if models.contains_key(REHEARSAL) {
            root.table("models").add_error(REHEARSAL, "is the name of the built-in offline model");
        }
        let mut agents: BTreeMap<String, AgentConfig> = root
            .tables("agents")
            .into_iter()
            .map(|(name, section)| {
                let agent = AgentConfig::read(&section, &models);
                (name, agent)
            })
            .collect();
        let tools = root
            .tables("tools")
            .into_iter()
            .map(|(name, section)| {
                let tool_override = ToolOverride::read(&name, &section, env);
                (name, tool_override)
            })
            .collect();
        let mcp = root
            .tables("mcp")
            .into_iter()
            .map(|(name, section)| {
                if let Some(problem) = McpConfig::name_problem(&name) {
                    root.table("mcp").add_error(&name, problem);
                }
                let server = McpConfig::read(&section, env);
                (name, server)
            })
            .collect();
        let mcp_limits = McpLimits::read(&root.table("mcp_limits"));
        let hooks = root
            .table_list("hooks")
            .into_iter()
            .filter_map(|section| HookConfig::read(&section, &agents, env))
            .collect();
        let tls = TlsConfig::read(&root.table("server"));
        let tokens = root.table_list("tokens").into_iter();
        let tokens: Vec<Option<TokenConfig>> =
            tokens.map(|section| TokenConfig::read(&section, env)).collect();
        root.report_unknown_keys_with_hints(&[&host_table, &journal_table, &console_table]);
        // A wrong token has its error already.
        let is_token_wrong = tokens.contains(&None)
            || ["token_env", "token_file"].iter().any(|key| host_table.is_wrong(key));
        // Adds what a file may leave out: an agent, and the rehearsal model.
        if agents.is_empty() {
            match AgentConfig::default_for(&models) {
                Ok(agent) => {
                    agents.insert(DEFAULT_AGENT.to_owned(), agent);
                }
                Err(message) => source.add_error(None, "agents", message),
            }
        }
        if agents.values().any(AgentConfig::uses_rehearsal) {
            models.insert(REHEARSAL.to_owned(), ModelConfig::rehearsal(BaseUrl::unset()));
        }
        // Environment variables take precedence over the file.
        let multi_tool_calls = bool_from_env(&source, env, MULTI_TOOL_CALLS_ENV);
        let stream = bool_from_env(&source, env, STREAM_ENV);
        let fast_path = fast_path_from_env(&source, env);
        let mut config = Self {
            host,
            journal,
            console,
            faces,
            models,
            agents,
            tools,
            mcp,
            mcp_limits,
            hooks,
            tls,
            tokens: tokens.into_iter().flatten().collect(),
            stream,
            fast_path,
            key_locations: KeyLocations::default(),
            secrets: Secrets::default(),
        };
        if !is_token_wrong && let Err(message) = config.check_listen() {
            host_table.add_error("listen", message);
        }
        if config.host.advertise.is_some() && config.journal.engine != JournalEngine::Postgres {
            let message = "needs journal.engine = \"postgres\": other hosts reach this one for the sessions of a database \
                           that they share";
            host_table.add_error("advertise", message.to_owned());
        }
        config.key_locations = source.into_result()?;
        if let Some(on) = multi_tool_calls {
            config.set_multi_tool_calls(on);
        }
        if let Some(on) = stream {
            config.set_stream(on);
        }
        for model in config.models.values_mut() {
            model.fast_path = fast_path;
        }
        Ok(config)
    }
}

/// Reads [`FAST_PATH_ENV`]: `on` or `off`. The fast path is on if the variable is not set.
fn fast_path_from_env(source: &ConfigSource<'_>, env: &dyn Fn(&str) -> Option<String>) -> bool {
    match env(FAST_PATH_ENV).as_deref() {
        None | Some("on") => true,
        Some("off") => false,
        Some(other) => {
            source.add_env_error(FAST_PATH_ENV, format!("must be on or off, not {other:?}"));
            true
        }
    }
}

/// Reads an environment variable that is `true` or `false`. Returns `None` if it is not set, or has another value.
fn bool_from_env(
    source: &ConfigSource<'_>,
    env: &dyn Fn(&str) -> Option<String>,
    name: &str,
) -> Option<bool> {
    let text = env(name)?;
    let parsed: Parsed<bool> = match text.as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(format!("must be true or false, not {other:?}")),
    };
    parsed.map_err(|message| source.add_env_error(name, message)).ok()
}
