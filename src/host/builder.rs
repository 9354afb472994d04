//! Builds a host in a program: models, agents, tools and journal by method calls.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
#[cfg(feature = "sqlite")]
use std::path::PathBuf;
use std::sync::Arc;

use metrics::Recorder;

use crate::journal::Journal;
use crate::runtime::model::ModelSource;
use crate::runtime::{Host, HostError, HostSetup, ModelSources, ToolSources};
use crate::telemetry::{LiveHook, MetricsOptions, RegisteredLiveHooks};
#[cfg(feature = "tools")]
use callsheet_tools::BuiltinOptions;
use callsheet_tools::{Hook, HookRule, RegisteredHook, Tool, ToolRegistry, ToolSource};
use callsheet_values::config::{
    AgentConfig, Config, DEFAULT_AGENT, JournalEngine, ModelConfig, ToolPattern,
};

impl Host {
    /// Returns a builder of a host. Without further calls it has one agent, called `default`, without
    /// tools, on the offline rehearsal model (feature `rehearsal`), and a journal in memory.
    pub fn builder() -> HostBuilder {
        let mut config = Config::default();
        config.models.clear();
        config.agents.clear();
        config.journal.engine = JournalEngine::Memory;
        HostBuilder::new(config)
    }
}

/// Builds a host.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use callsheet::prelude::*;
///
/// let host = Host::builder()
///     .agent("writer", AgentConfig::new("rehearsal").system("You write."))
///     .start()
///     .await?;
/// let session = host.open_session(OpenSession::default()).await?;
/// println!("{}", session.run("Say hello.").await?.text()?);
/// host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it is started"]
pub struct HostBuilder {
    config: Config,
    tools: ToolRegistry,
    /// True if the start registers the tools and hooks of the configuration.
    #[cfg(feature = "tools")]
    configured_tools: bool,
    /// The names of the tools that every agent is offered.
    offered: Vec<String>,
    /// The hooks of the program, which are asked after those of the registry.
    hooks: Vec<RegisteredHook>,
    live_hooks: RegisteredLiveHooks,
    tool_sources: ToolSources,
    model_sources: ModelSources,
    journal: Option<Arc<dyn Journal>>,
    journal_holder: String,
    go_on: bool,
    accept_loss: bool,
    metrics: MetricsOptions,
    /// The setters that were called, each with the name it was given (that of an agent, a model or a label, else empty).
    /// A second call with the same name is an error of the start.
    set: BTreeSet<(&'static str, String)>,
    /// The first error of a call before the start.
    error: Option<String>,
}

impl HostBuilder {
    fn new(config: Config) -> Self {
        Self {
            config,
            tools: ToolRegistry::new(),
            #[cfg(feature = "tools")]
            configured_tools: false,
            offered: Vec::new(),
            hooks: Vec::new(),
            live_hooks: RegisteredLiveHooks::default(),
            tool_sources: ToolSources::default(),
            model_sources: ModelSources::default(),
            journal: None,
            journal_holder: String::new(),
            go_on: false,
            accept_loss: false,
            metrics: MetricsOptions::default(),
            set: BTreeSet::new(),
            error: None,
        }
    }

    /// Notes the call of a setter, and an error if it was called with this name before.
    fn note(&mut self, method: &'static str, name: impl Into<String>) {
        let name = name.into();
        let problem = match name.as_str() {
            "" => format!("{method} is set twice"),
            name => format!("{method} {name:?} is set twice"),
        };
        if !self.set.insert((method, name)) {
            self.error.get_or_insert(problem);
        }
    }

    /// Starts from a configuration, such as that of a file. Later calls add models and agents, or replace those of
    /// the same name.
    ///
    /// It is called before [`model`](Self::model), [`agent`](Self::agent), [`configure`](Self::configure) and
    /// `sqlite`, because it would undo them: the start fails then.
    pub fn config(mut self, config: Config) -> Self {
        const UNDONE: [&str; 4] = ["agent", "configure", "model", "sqlite"];
        if let Some((method, _)) = self.set.iter().find(|(method, _)| UNDONE.contains(method)) {
            self.error.get_or_insert(format!("call HostBuilder::config before {method}"));
        }
        Self { config, ..self }
    }

    /// Changes the configuration, for example limits of the host or the time after which sessions
    /// hibernate. If no agent has been added, it has the agent `default`, whose model the start chooses.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder()
    ///     .configure(|config| {
    ///         config.host.max_queued_inputs = 100;
    ///         config.host.idle_after = Some(Duration::from_secs(60));
    ///     })
    ///     .start()
    ///     .await?;
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        let implied = AgentConfig::new("");
        let is_implied = self.config.agents.is_empty();
        if is_implied {
            self.config.agents.insert(DEFAULT_AGENT.to_owned(), implied.clone());
        }
        change(&mut self.config);
        if is_implied && self.config.agents.get(DEFAULT_AGENT) == Some(&implied) {
            self.config.agents.remove(DEFAULT_AGENT);
        }
        self.set.insert(("configure", String::new()));
        self
    }

    /// Adds a model under a name that agents refer to.
    pub fn model(mut self, name: impl Into<String>, model: ModelConfig) -> Self {
        let name = name.into();
        self.note("model", &name);
        self.config.models.insert(name, model);
        self
    }

    /// Adds a model that the program implements itself. [`HostBuilder::model`] with the same name and
    /// [`ModelConfig::for_source`] sets its limits: time limits, attempts, permits, circuit breaker.
    pub fn model_source(mut self, name: impl Into<String>, source: impl ModelSource) -> Self {
        let name = name.into();
        self.note("model_source", &name);
        self.model_sources.0.insert(name, Arc::new(source));
        self
    }

    /// Adds an agent. A session that names no agent has the one called `default`, or the only one.
    pub fn agent(mut self, name: impl Into<String>, agent: AgentConfig) -> Self {
        let name = name.into();
        self.note("agent", &name);
        self.config.agents.insert(name, agent);
        self
    }

    /// Registers a tool and offers it to every agent.
    pub fn tool(mut self, tool: impl Tool) -> Self {
        let name = tool.spec().name;
        self.offered.push(name);
        self.register(tool)
    }

    /// Registers a tool. Only agents whose [`tools`](AgentConfig::tools) name it offer it to their model.
    pub fn register(mut self, tool: impl Tool) -> Self {
        if let Err(error) = self.tools.register(tool) {
            self.error.get_or_insert(error.to_string());
        }
        self
    }

    /// Adds a source of tools, which is read when a run starts. Every agent offers its tools.
    pub fn tool_source(mut self, source: impl ToolSource) -> Self {
        self.tool_sources.0.push(Arc::new(source));
        self
    }

    /// Registers a hook, which is asked at a point of runs and can forbid what it is asked about. Hooks are asked
    /// in the order in which they are registered, after those of the configuration. [`Hook`] has an example.
    pub fn hook(mut self, rule: HookRule, hook: impl Hook) -> Self {
        self.hooks.push(RegisteredHook { rule, hook: Arc::new(hook) });
        self
    }

    /// Registers a hook that follows the events of all runs: see [`LiveHook`]. The name is for the metric
    /// `callsheet_hook_events_lost_total` and for log lines.
    pub fn live_hook(mut self, name: impl Into<String>, hook: impl LiveHook) -> Self {
        self.live_hooks.0.push((name.into(), Arc::new(hook)));
        self
    }

    /// Registers `calculator`, `clock`, `get_variable`, `http_get`, `set_variable` and, if it has a root,
    /// `read_file`. Each agent is offered those that its [`tools`](AgentConfig::tools) name.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    /// use callsheet::tool::BuiltinOptions;
    ///
    /// let options = BuiltinOptions::default().with(|options| {
    ///     options.http_get_allow = vec!["localhost:8080".to_owned()];
    /// });
    /// let agent = AgentConfig::new("rehearsal").tools(["calculator", "http_get"]);
    /// let host = Host::builder().builtin_tools(&options).agent("helper", agent).start().await?;
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[cfg(feature = "tools")]
    pub fn builtin_tools(mut self, options: &BuiltinOptions) -> Self {
        if let Err(error) = self.tools.register_builtin(options) {
            self.error.get_or_insert(error.to_string());
        }
        self
    }

    /// Registers what the configuration defines, at the start: the tables `[tools.NAME]` with `kind`, servers
    /// of tools, and the hooks of `[[hooks]]`. Tools that run programs need
    /// [`run_if_launched`](callsheet_tools::launcher::run_if_launched) first in `main`. The binary registers the
    /// built-in tools too:
    ///
    /// ```no_run
    /// use callsheet::config::Config;
    /// use callsheet::prelude::*;
    /// use callsheet::tool::BuiltinOptions;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = std::fs::read_to_string("callsheet.toml")?;
    /// let config = Config::parse(&text, "callsheet.toml", &|name| std::env::var(name).ok())?;
    /// let builder = Host::builder().builtin_tools(&BuiltinOptions::from(&config));
    /// let host = builder.config(config).configured_tools().start().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tools")]
    pub fn configured_tools(self) -> Self {
        Self { configured_tools: true, ..self }
    }

    /// Replaces the registered tools. Each agent is offered those that its
    /// [`tools`](AgentConfig::tools) name.
    pub fn tools(self, tools: ToolRegistry) -> Self {
        Self { tools, ..self }
    }

    /// Stores sessions in a directory, which is created if it does not exist.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(mut self, directory: impl Into<PathBuf>) -> Self {
        self.config.journal.engine = JournalEngine::Sqlite;
        self.config.host.data_dir = directory.into();
        self.note("sqlite", "");
        self
    }

    /// Describes this host in the error of another host that is started on the same directory.
    pub fn journal_holder(self, description: impl Into<String>) -> Self {
        Self { journal_holder: description.into(), ..self }
    }

    /// Continues the unfinished runs of a restored copy of a journal
    /// ([`restore`](crate::journal::restore)), by the journal's `resume`. Without this they wait for
    /// [`SessionHandle::resume`](crate::runtime::SessionHandle::resume), because the original may continue them too.
    /// Later hosts of the copy need no such call, and for other journals it changes nothing.
    pub fn go_on(self) -> Self {
        Self { go_on: true, ..self }
    }

    /// Starts although the write-ahead log of the configured journal is missing. The start fails without this, because
    /// the newest records are lost with the log. A journal that has its log stays as it is.
    pub fn accept_loss(self) -> Self {
        Self { accept_loss: true, ..self }
    }

    /// Stores sessions in a journal that the program implements.
    pub fn journal(mut self, journal: Arc<dyn Journal>) -> Self {
        self.note("journal", "");
        Self { journal: Some(journal), ..self }
    }

    /// Sends the host's metrics to a recorder of the program, in place of the host's own page. The
    /// trait is of the crate `metrics`, version 0.24.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::sync::Arc;
    ///
    /// use callsheet::prelude::*;
    ///
    /// // For example a `PrometheusRecorder` of `metrics-exporter-prometheus`.
    /// let recorder = Arc::new(metrics::NoopRecorder);
    /// let host = Host::builder().recorder(recorder).metrics_label("host", "eu-1").start().await?;
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// Several hosts can have the same recorder: [`HostBuilder::metrics_label`] tells them apart. A
    /// recorder with buckets finds their bounds in [`Self::histogram_bounds`].
    /// `tool_execution_time_seconds_total` counts whole seconds there.
    pub fn recorder(mut self, recorder: Arc<dyn Recorder + Send + Sync>) -> Self {
        self.note("recorder", "");
        self.metrics.recorder = Some(recorder);
        self
    }

    /// Returns the upper bounds of each histogram's buckets, by the name of the metric, for a recorder of
    /// the program that has buckets.
    ///
    /// ```
    /// use callsheet::prelude::*;
    ///
    /// let mut bounds = HostBuilder::histogram_bounds();
    /// assert!(bounds.any(|(name, _)| name == "callsheet_turn_overhead_seconds"));
    /// ```
    pub fn histogram_bounds() -> impl Iterator<Item = (&'static str, &'static [f64])> {
        crate::telemetry::histogram_bounds()
    }

    /// Adds a label to all metrics of the host, such as `host="eu-1"`, whether they go to its own
    /// page or to a recorder of the program. The start fails if a metric has a label of this name.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().metrics_label("host", "eu-1").start().await?;
    /// # #[cfg(feature = "prometheus")]
    /// assert!(host.metrics_page().unwrap().contains("\ncallsheet_runs_active{host=\"eu-1\"} 0\n"));
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn metrics_label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into();
        self.note("metrics_label", &name);
        self.metrics.labels.insert(name, value.into());
        self
    }

    /// Starts the host. It continues the runs that the journal's last host left unfinished, unless the journal's
    /// `resume` is `manual`.
    ///
    /// # Errors
    /// If something is set twice, such as two agents of one name, an agent names a model or a tool that does not exist, a
    /// limit or the rule of a hook is invalid, a tool or hook of the configuration cannot be made, a built-in tool
    /// cannot be opened, there are several models but no agent, a running host of this program uses the journal, or the recorder with the
    /// same labels, or the journal cannot be opened.
    ///
    /// # Panics
    /// Outside of a Tokio runtime. It must have its timers enabled, as those of `#[tokio::main]` and `Runtime::new`.
    pub async fn start(self) -> Result<Host, HostError> {
        let Self {
            mut config,
            mut tools,
            #[cfg(feature = "tools")]
            configured_tools,
            offered,
            hooks,
            live_hooks,
            tool_sources,
            model_sources,
            journal,
            journal_holder,
            go_on,
            accept_loss,
            metrics,
            set,
            error,
        } = self;
        if let Some(error) = error {
            return Err(HostError::Config(error));
        }
        if journal.is_some() && set.contains(&("sqlite", String::new())) {
            let problem = "HostBuilder::sqlite and HostBuilder::journal: a host has one journal";
            return Err(HostError::Config(problem.to_owned()));
        }
        #[cfg(feature = "tools")]
        if configured_tools {
            let registered = tools.register_configured(&config);
            registered.map_err(|errors| HostError::Config(errors.to_string()))?;
        }
        for name in model_sources.0.keys() {
            config.models.entry(name.clone()).or_insert_with(|| ModelConfig::for_source(name));
        }
        if config.agents.is_empty() {
            config.agents.insert(DEFAULT_AGENT.to_owned(), AgentConfig::new(""));
        }
        let only_model = only_model(&config);
        for agent in config.agents.values_mut() {
            // Only the agent that a host without agents gets has none.
            if agent.model.is_empty() {
                agent.model = only_model.clone()?;
            }
            let missing = |name: &&String| !agent.tools.iter().any(|tool| tool.matches(name));
            let missing: Vec<_> = offered.iter().filter(missing).map(ToolPattern::new).collect();
            agent.tools.extend(missing);
        }
        for hook in hooks {
            check_hook(&hook.rule, &config)?;
            tools.add_hook(hook);
        }
        let kept = start_rehearsal(&mut config).await?;
        let setup = HostSetup::new(config, tools);
        let setup = HostSetup {
            tool_sources,
            model_sources,
            journal,
            journal_holder,
            go_on,
            accept_loss,
            metrics,
            live_hooks,
            kept,
            ..setup
        };
        Box::pin(Host::start(setup)).await
    }
}

/// Checks the rule of a hook of the program.
fn check_hook(rule: &HookRule, config: &Config) -> Result<(), HostError> {
    let wrong = |problem: &str| Err(HostError::Config(format!("hook {:?}: {problem}", rule.name)));
    if rule.timeout.is_zero() {
        return wrong("its timeout must be longer than 0");
    }
    let is_empty = rule.agents.as_ref().is_some_and(Vec::is_empty)
        || rule.tools.as_ref().is_some_and(Vec::is_empty);
    if is_empty {
        return wrong("its lists of agents and tools must not be empty");
    }
    if rule.tools.is_some() && !rule.on.concerns_call() {
        return wrong(&format!("it is asked at {} and has tools", rule.on));
    }
    match rule.agents.iter().flatten().find(|name| !config.agents.contains_key(*name)) {
        Some(unknown) => wrong(&format!("there is no agent {unknown:?}")),
        None => Ok(()),
    }
}

/// Returns the model of the agent `default`, which a host without agents gets: the only one, or the rehearsal model.
fn only_model(config: &Config) -> Result<String, HostError> {
    let mut names = config.models.keys();
    match (names.next(), names.next()) {
        (None, _) => Ok(callsheet_values::config::REHEARSAL.to_owned()),
        (Some(only), None) => Ok(only.clone()),
        (Some(_), Some(_)) => {
            let problem = "several models but no agent: add one with HostBuilder::agent";
            Err(HostError::Config(problem.to_owned()))
        }
    }
}

/// Starts the rehearsal model if an agent uses it.
#[cfg(feature = "rehearsal")]
async fn start_rehearsal(config: &mut Config) -> Result<Box<dyn Any + Send + Sync>, HostError> {
    use std::time::Duration;

    use callsheet_rehearsal::{Rehearsal, improvise};
    use callsheet_values::config::BaseUrl;

    if !config.needs_rehearsal() {
        return Ok(Box::new(()));
    }
    let failed =
        |error: &dyn fmt::Display| HostError::Config(format!("start the rehearsal model: {error}"));
    let rehearsal =
        Rehearsal::start(improvise, Duration::ZERO).await.map_err(|error| failed(&error))?;
    config.set_rehearsal(BaseUrl::parse(&rehearsal.base_url()).map_err(|error| failed(&error))?);
    Ok(Box::new(rehearsal))
}

#[cfg(not(feature = "rehearsal"))]
async fn start_rehearsal(config: &mut Config) -> Result<Box<dyn Any + Send + Sync>, HostError> {
    if config.needs_rehearsal() {
        let problem = "there is no model: add one with HostBuilder::model, or enable the feature \
                       `rehearsal` for the offline one";
        return Err(HostError::Config(problem.to_owned()));
    }
    Ok(Box::new(()))
}

impl fmt::Debug for HostBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBuilder")
            .field("config", &self.config)
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}
