//! The configuration of a host: its types, their defaults, and its checks.
//!
//! `file` reads `callsheet.toml` (feature `toml`) and finds wrong values, with file, line and key. [`Config::check`]
//! finds errors that concern the whole configuration when the host starts. The module does not depend on the HTTP
//! server, actors or tools: `check` receives the names of the registered tools, and other modules check schemas,
//! programs and the URLs of tools.
//!
//! | rule | file |
//! | --- | --- |
//! | a key: its type, default, bounds and description | its row in the file of its section, such as `host` or `limits`; the form of the rows: `key_table` |
//! | precedence: flags, then environment variables, then the file | `cli::setup`, `file/mod` (`Config::parse`) |
//! | unknown keys, errors with file and line | `file/source` |
//! | checks of the whole, also of values that a program has set | `check`; `listen` without a token: `tokens` |
//! | what a run may change (overrides) | `overrides` |
//! | the host's own files, which no sandbox contains | `host_files` |
//! | API keys and tokens from the environment | `model` (`ApiKey`); which values are secret: `secrets` |

mod agent;
mod agent_tool;
mod check;
mod client_tools;
mod console;
mod context;
mod duration;
mod error;
mod faces;
#[cfg(feature = "toml")]
mod file;
mod hooks;
mod host;
#[cfg(feature = "tools")]
mod host_files;
mod journal;
mod key_table;
mod limits;
mod mcp;
mod model;
mod output;
mod overrides;
mod secrets;
mod server;
mod service;
mod tokens;
mod tool_definition;
mod tools;

use std::collections::BTreeMap;
use std::net::SocketAddr;

pub use crate::types::{Execution, SendReasoning, ToolChoice, ToolProtocol, Wire};
pub use crate::types::{OutputMode, UnknownWire};
pub use agent::{AgentConfig, OnRefusal};
pub use agent::{ToolLoading, ToolPattern};
pub use agent_tool::{AgentEvents, AgentToolConfig};
pub use client_tools::ClientTool;
pub use console::ConsoleConfig;
pub use context::HistoryForm;
pub use context::{ContextPolicy, Share};
pub use duration::parse_duration;
pub use error::ConfigError;
pub use error::ConfigErrors;
pub use faces::{
    AguiFaceConfig, ChatDisconnect, FacesConfig, OpenAiFaceConfig, ShowTools, UiFaceConfig,
    UnprovenText,
};
pub use hooks::HookRule;
pub use hooks::{HookConfig, HookFailure, HookKind};
pub use host::{HostConfig, OnShutdown};
pub use host::{TOKEN_CHARS_MIN, TOKEN_ENV, parse_listen};
pub use journal::JournalConfig;
pub use journal::{Durability, JournalEngine, Resume};
pub use key_table::KeyDescription;
pub use limits::Limits;
pub use limits::OnExcess;
pub use mcp::{
    McpConfig, McpHandshake, McpLimits, McpPin, McpShare, McpTransport, McpTrust, OAuthConfig,
    OAuthGrant,
};
pub use model::PromptCache;
pub use model::{ApiKey, BaseUrl, ModelConfig};
pub use output::{OutputRequest, Temperature};
pub use overrides::InvalidOverride;
pub use overrides::{LimitOverrides, RunOverrides};
pub use server::TlsConfig;
pub use service::Proxy;
pub use service::{SecretSource, ServiceConfig};
pub use tokens::TokenConfig;
pub use tokens::TokenScope;
pub use tool_definition::{
    CommandConfig, CommandOutput, CommandStdin, ConfiguredTool, HttpBody, HttpConfig, HttpMethod,
    ProcessConfig, SandboxLevel, ToolInput, ToolKind,
};
pub use tools::ApprovalPolicy;
pub use tools::{AskedCalls, CallRate, StartPolicy, ToolEffect, ToolOverride};

use crate::types::{HookPoint, Secrets};
pub use secrets::with_last_word;

use error::KeyLocations;
use key_table::KeyTable;

/// The name of the built-in offline model. The file must not define a model of this name.
pub const REHEARSAL: &str = "rehearsal";

/// The name of the agent of a configuration without agents.
pub const DEFAULT_AGENT: &str = "default";

/// The environment variable that overrides `multi_tool_calls` of every agent.
pub const MULTI_TOOL_CALLS_ENV: &str = "CALLSHEET_MULTI_TOOL_CALLS";

/// The environment variable that overrides `stream` of every model.
pub const STREAM_ENV: &str = "CALLSHEET_STREAM";

/// The environment variable that disables the fast path of decoding for every model if it is `off`.
pub const FAST_PATH_ENV: &str = "CALLSHEET_FAST_PATH";

/// The whole configuration of a host.
///
/// [`Config::default`] is the configuration of an empty file, without environment variables: one agent that uses the
/// offline rehearsal model. The address of the model is set by [`Config::set_rehearsal`] after it has started.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The host.
    pub host: HostConfig,
    /// The journal.
    pub journal: JournalConfig,
    /// The console.
    pub console: ConsoleConfig,
    /// The protocols of other systems, by which their clients drive sessions.
    pub faces: FacesConfig,
    /// Models by name.
    pub models: BTreeMap<String, ModelConfig>,
    /// Agents by name. All models that they name must be in `models`.
    pub agents: BTreeMap<String, AgentConfig>,
    /// Changes to registered tools, and definitions of further tools, by tool name.
    pub tools: BTreeMap<String, ToolOverride>,
    /// Servers of the Model Context Protocol, by name.
    pub mcp: BTreeMap<String, McpConfig>,
    /// The limits of each of these servers.
    pub mcp_limits: McpLimits,
    /// Hooks, in the order in which they are asked.
    pub hooks: Vec<HookConfig>,
    /// The files with which the HTTP server speaks TLS. `None`: it speaks plain HTTP.
    pub tls: Option<TlsConfig>,
    /// Tokens with a name, which limit what their requests may do.
    pub tokens: Vec<TokenConfig>,
    /// Overrides `stream` of every model, also of one that is added later.
    stream: Option<bool>,
    /// False disables the fast path of every model, also of one that is added later.
    fast_path: bool,
    key_locations: KeyLocations,
    /// The secrets that [`Config::secrets`] has found. All parts of a host share them, so that a secret which one of them
    /// reads later is replaced by all.
    secrets: Secrets,
}

/// Returns the name of a configured model in events, records and logs: its name at its service. If several configured
/// models have the same, the configured name follows in parentheses.
#[must_use]
pub fn displayed_model_name(models: &BTreeMap<String, ModelConfig>, name: &str) -> String {
    let of_service = models.get(name).map_or(name, |model| model.model.as_str());
    match models.values().filter(|model| model.model == of_service).count() {
        0 | 1 => of_service.to_owned(),
        _ => format!("{of_service} ({name})"),
    }
}

impl Config {
    /// Returns whether an agent uses the offline rehearsal model and its address is not set yet. In that
    /// case the model must be started.
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

    /// Makes every agent use the offline rehearsal model.
    pub fn use_rehearsal(&mut self) {
        self.use_model(REHEARSAL, ModelConfig::rehearsal(BaseUrl::unset()));
    }

    /// Adds a model and makes every agent use only this one.
    pub fn use_model(&mut self, name: &str, model: ModelConfig) {
        self.add_model(name, model);
        for agent in self.agents.values_mut() {
            name.clone_into(&mut agent.model);
            agent.fallback_models.clear();
        }
    }

    /// Switches streaming on or off for every model, including those that [`Config::use_model`] adds later.
    pub fn set_stream(&mut self, on: bool) {
        self.stream = Some(on);
        for model in self.models.values_mut() {
            model.stream = on;
        }
    }

    /// Switches the console, the web page of the HTTP server, on or off. Default: on.
    pub fn set_console(&mut self, on: bool) {
        self.console.enabled = on;
    }

    /// Keeps the requests to models for the console, or stops keeping them. They may hold secrets. Default:
    /// off.
    pub fn set_console_requests(&mut self, on: bool) {
        self.console.requests = on;
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
    /// If the address is not loopback and the host has no token, or a short one. Then nothing changes.
    pub fn set_listen(&mut self, listen: SocketAddr) -> Result<(), ConfigErrors> {
        let before = std::mem::replace(&mut self.host.listen, listen);
        let checked = self.check_listen();
        if checked.is_err() {
            self.host.listen = before;
        }
        checked.map_err(|message| ConfigErrors::single("--listen", message))
    }

    /// Creates an error about a value of `[tools.NAME]`, with its line.
    #[must_use]
    pub fn tool_error(&self, tool: &str, key: &str, message: impl Into<String>) -> ConfigErrors {
        ConfigErrors::new(vec![
            self.key_locations.error(&format!("tools.{tool}.{key}"), message.into()),
        ])
    }

    /// Creates an error about a value of `[mcp.NAME]`, with its line.
    #[must_use]
    pub fn mcp_error(&self, server: &str, key: &str, message: impl Into<String>) -> ConfigErrors {
        ConfigErrors::new(vec![
            self.key_locations.error(&format!("mcp.{server}.{key}"), message.into()),
        ])
    }

    /// Creates an error about a value of `[[hooks]]`, with its line.
    #[must_use]
    pub fn hook_error(&self, at: usize, key: &str, message: impl Into<String>) -> ConfigErrors {
        ConfigErrors::new(vec![
            self.key_locations.error(&format!("hooks[{at}].{key}"), message.into()),
        ])
    }

    /// Creates an error about a value of `[server.tls]`, with its line.
    #[must_use]
    pub fn tls_error(&self, key: &str, message: impl Into<String>) -> ConfigErrors {
        ConfigErrors::new(vec![
            self.key_locations.error(&format!("server.tls.{key}"), message.into()),
        ])
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
            console: ConsoleConfig::default(),
            faces: FacesConfig::default(),
            models,
            agents,
            tools: BTreeMap::new(),
            mcp: BTreeMap::new(),
            mcp_limits: McpLimits::default(),
            hooks: Vec::new(),
            tls: None,
            tokens: Vec::new(),
            stream: None,
            fast_path: true,
            key_locations: KeyLocations::default(),
            secrets: Secrets::default(),
        }
    }
}

/// Describes the keys of each section, by its name in the documents.
#[must_use]
pub fn described_keys() -> Vec<(&'static str, Vec<KeyDescription>)> {
    let (config, agent) = (Config::default(), AgentConfig::new(""));
    let command = CommandConfig::new([""]);
    let server =
        McpConfig::new(McpTransport::Http { service: ServiceConfig::new(""), oauth: None });
    let token = TokenConfig::new("", ApiKey::unset(), []);
    let tables: [(&str, &[&dyn KeyTable]); 19] = [
        ("[host]", &[&config.host]),
        ("[journal]", &[&config.journal]),
        ("[console]", &[&config.console]),
        ("[faces.openai]", &[&config.faces.openai]),
        ("[faces.ui]", &[&config.faces.ui]),
        ("[faces.agui]", &[&config.faces.agui]),
        ("[models.NAME]", &[&ModelConfig::new(BaseUrl::unset(), "")]),
        ("[agents.NAME]", &[&agent]),
        ("[agents.NAME.limits]", &[&agent.limits]),
        ("[agents.NAME.context]", &[&agent.context]),
        ("[tools.NAME]", &[&server.policy]),
        ("[tools.NAME] with kind = \"command\"", &[&command, &command.process]),
        ("[tools.NAME] with kind = \"http\"", &[&HttpConfig::new(HttpMethod::Get, "")]),
        ("[tools.NAME] with kind = \"agent\"", &[&AgentToolConfig::new("")]),
        ("[mcp.NAME]", &[&server]),
        ("[mcp_limits]", &[&config.mcp_limits]),
        ("[[hooks]]", &[&HookRule::new("", HookPoint::BeforeCall)]),
        ("[[tokens]]", &[&token]),
        ("[server.tls]", &[&TlsConfig::new("", "")]),
    ];
    let described =
        |tables: &[&dyn KeyTable]| tables.iter().flat_map(|table| table.described_keys()).collect();
    tables.map(|(name, tables)| (name, described(tables))).to_vec()
}

crate::types::impl_with!(
    AgentConfig,
    Config,
    ConsoleConfig,
    FacesConfig,
    HostConfig,
    JournalConfig,
    LimitOverrides,
    Limits,
    ModelConfig,
    RunOverrides,
    ToolOverride
);
