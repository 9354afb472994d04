//! Parses and validates `callsheet.toml`.
//!
//! Values are converted to types: durations, addresses, patterns and API keys. All errors are found
//! before the host starts, with file, line and key. Depends on neither HTTP nor actors nor tools;
//! [`Config::check`] receives the names of the registered tools.

mod agent;
mod check;
mod host;
mod journal;
mod limits;
mod model;
mod overrides;
mod secrets;
mod source;
mod tools;
mod values;

use std::collections::BTreeMap;
use std::net::SocketAddr;

pub use crate::types::Execution;
#[doc(hidden)]
pub use crate::types::UnknownWire;
pub use crate::types::Wire;
pub use agent::{AgentConfig, ToolPattern};
pub use host::HostConfig;
#[doc(hidden)]
pub use host::{TOKEN_ENV, parse_listen};
pub use journal::{Durability, JournalConfig, JournalEngine, Resume};
pub use limits::{Limits, OnExcess};
pub use model::{ApiKey, BaseUrl, InvalidBaseUrl, InvalidKey, ModelConfig};
#[doc(hidden)]
pub use overrides::OverrideTooHigh;
pub use overrides::{LimitOverrides, RunOverrides};
pub use source::{ConfigError, ConfigErrors};
pub use tools::{ApprovalPolicy, StartPolicy, ToolEffect, ToolOverride};
#[doc(hidden)]
pub use values::parse_duration;

use source::{ConfigSource, Origins};
use values::Parsed;

/// The name of the built-in offline model. The file must not define a model of this name.
#[doc(hidden)]
pub const REHEARSAL: &str = "rehearsal";

/// The name of the agent of a configuration without agents.
pub const DEFAULT_AGENT: &str = "default";

/// The environment variable that overrides `multi_tool_calls` of every agent.
#[doc(hidden)]
pub const MULTI_TOOL_CALLS_ENV: &str = "CALLSHEET_MULTI_TOOL_CALLS";

/// The environment variable that overrides `stream` of every model.
#[doc(hidden)]
pub const STREAM_ENV: &str = "CALLSHEET_STREAM";

/// The environment variable that turns the fast path of decoding off for every model, by `off`.
#[doc(hidden)]
pub const FAST_PATH_ENV: &str = "CALLSHEET_FAST_PATH";

/// The whole configuration of a host.
///
/// [`Config::default`] is the configuration of an empty file: one agent that uses the offline
/// rehearsal model. Its address is set by [`Config::set_rehearsal`] after it has started.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The host.
    pub host: HostConfig,
    /// The journal.
    pub journal: JournalConfig,
    /// Models by name.
    pub models: BTreeMap<String, ModelConfig>,
    /// Agents by name. All models that they name are in `models`.
    pub agents: BTreeMap<String, AgentConfig>,
    /// Changes to tools, by tool name.
    pub tools: BTreeMap<String, ToolOverride>,
    stream: Option<bool>,
    fast_path: bool,
    origins: Origins,
}

impl Config {
    /// Parses a configuration file. `file` is its name in errors, `env` looks up environment
    /// variables.
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
    /// Returns all errors of the file and of the environment variables that it names, in the order
    /// of lines.
    pub fn parse(
        text: &str,
        file: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigErrors> {
        let source = ConfigSource::new(text, file);
        let Some(root) = source.root() else { return Err(source.into_errors()) };
        let host = HostConfig::read(&root.table("host"), env);
        let journal = JournalConfig::read(&root.table("journal"));
        let mut models: BTreeMap<String, ModelConfig> = root
            .tables("models")
            .into_iter()
            .map(|(name, section)| (name, ModelConfig::read(&section, env)))
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
                let change = ToolOverride::read(&name, &section);
                (name, change)
            })
            .collect();
        root.finish();
        if agents.is_empty() {
            match AgentConfig::embedded(&models) {
                Ok(agent) => {
                    agents.insert(DEFAULT_AGENT.to_owned(), agent);
                }
                Err(message) => source.add_error(None, "agents", message),
            }
        }
        if agents.values().any(AgentConfig::uses_rehearsal) {
            models.insert(REHEARSAL.to_owned(), ModelConfig::rehearsal(BaseUrl::unset()));
        }
        let multi_tool_calls = parse_switch(&source, env, MULTI_TOOL_CALLS_ENV);
        let stream = parse_switch(&source, env, STREAM_ENV);
        let fast_path = fast_path(&source, env);
        let origins = source.finish()?;
        let mut config = Self { host, journal, models, agents, tools, stream, fast_path, origins };
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

    /// Returns whether an agent uses the offline rehearsal model and its address is not set yet. It
    /// must be started then.
    #[must_use]
    pub fn needs_rehearsal(&self) -> bool {
        let is_set = |model: &ModelConfig| !model.base_url.is_unset();
        self.agents.values().any(AgentConfig::uses_rehearsal)
            && !self.models.get(REHEARSAL).is_some_and(is_set)
    }

    /// Sets the address of the offline rehearsal model.
    pub fn set_rehearsal(&mut self, base_url: BaseUrl) {
        match self.models.get_mut(REHEARSAL) {
            Some(model) => model.base_url = base_url,
            None => self.add_model(REHEARSAL, ModelConfig::rehearsal(base_url)),
        }
    }

    /// Makes every agent use the offline rehearsal model with this wire format.
    pub fn use_rehearsal(&mut self, wire: Wire) {
        let model = ModelConfig { wire, ..ModelConfig::rehearsal(BaseUrl::unset()) };
        self.use_model(REHEARSAL, model);
    }

    /// Adds a model and makes every agent use only this one.
    pub fn use_model(&mut self, name: &str, model: ModelConfig) {
        self.add_model(name, model);
        for agent in self.agents.values_mut() {
            name.clone_into(&mut agent.model);
            agent.fallback_models.clear();
        }
    }

    /// Switches streaming on or off for every model, including models that are added later.
    pub fn set_stream(&mut self, on: bool) {
        self.stream = Some(on);
        for model in self.models.values_mut() {
            model.stream = on;
        }
    }

    /// Switches multiple tool calls per response on or off for every agent.
    pub fn set_multi_tool_calls(&mut self, on: bool) {
        for agent in self.agents.values_mut() {
            agent.multi_tool_calls = on;
        }
    }

    /// Sets the address to listen on.
    ///
    /// # Errors
    /// If the address is not loopback and the host has no token.
    pub fn set_listen(&mut self, listen: SocketAddr) -> Result<(), ConfigErrors> {
        self.host.listen = listen;
        self.host.check().map_err(|message| ConfigErrors::single("--listen", message))
    }

    /// Creates an error about a value of `[tools.NAME]`, with its line.
    #[must_use]
    pub fn tool_error(&self, tool: &str, key: &str, message: impl Into<String>) -> ConfigErrors {
        ConfigErrors::new(vec![self.origins.error(&format!("tools.{tool}.{key}"), message.into())])
    }

    fn add_model(&mut self, name: &str, mut model: ModelConfig) {
        if let Some(on) = self.stream {
            model.stream = on;
        }
        model.fast_path &= self.fast_path;
        self.models.insert(name.to_owned(), model);
    }
}

impl Default for Config {
    fn default() -> Self {
        let models =
            BTreeMap::from([(REHEARSAL.to_owned(), ModelConfig::rehearsal(BaseUrl::unset()))]);
        let agents =
            BTreeMap::from([(DEFAULT_AGENT.to_owned(), AgentConfig::default_with(REHEARSAL))]);
        Self {
            host: HostConfig::default(),
            journal: JournalConfig::default(),
            models,
            agents,
            tools: BTreeMap::new(),
            stream: None,
            fast_path: true,
            origins: Origins::default(),
        }
    }
}

/// Reads [`FAST_PATH_ENV`]. The fast path is on without it.
fn fast_path(source: &ConfigSource<'_>, env: &dyn Fn(&str) -> Option<String>) -> bool {
    match env(FAST_PATH_ENV).as_deref() {
        None | Some("on") => true,
        Some("off") => false,
        Some(other) => {
            source.add_env_error(FAST_PATH_ENV, format!("must be on or off, not {other:?}"));
            true
        }
    }
}

/// Parses an environment variable with the value `true` or `false`.
fn parse_switch(
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

crate::types::impl_with!(
    AgentConfig,
    Config,
    HostConfig,
    JournalConfig,
    LimitOverrides,
    Limits,
    ModelConfig,
    RunOverrides,
    ToolOverride
);
