//! A configured agent with its models, tools and hooks; its variants, with the overrides of a run or further tools;
//! and the requests to models that it makes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, OnceLock};

use super::error::HostError;
use super::gauge::Gauge;
use super::model::{HostLagClock, ModelRequest};
use super::models::{Model, ModelChain, ModelSources};
use super::tool_limiter::ToolLimiters;
use crate::telemetry::Telemetry;
use callsheet_machines::context::compaction::SUMMARY_REQUEST;
use callsheet_machines::context::tokens::{estimate_text, estimate_tool};
use callsheet_machines::session::SessionRunRules;
use callsheet_machines::turn::{HookScope, OutputRules, RunRules};
use callsheet_tools::{
    ClientSideTool, FrozenList, RESERVED_NAMES, ReadVar, RegisteredHook, RegisteredKind,
    RegisteredTool, RegistryError, ServerToolDefinition, Tool, ToolRegistry, ToolServer, ToolSpec,
    find_tools, use_tool_spec,
};
use callsheet_tools::{ListedTool, ModelRefusal, definition_tokens, list_tools};
use callsheet_values::config::{
    AgentConfig, ClientTool, Config, InvalidOverride, Limits, OutputRequest, RunOverrides,
    Temperature, ToolLoading, ToolOverride, ToolPattern,
};
use callsheet_values::message::{Message, MessageList};
use callsheet_values::types::{
    FINAL_ANSWER, HookPoint, InvalidValue, OutputMode, READ_VAR, RequestKind, Secrets, ToolChoice,
    Wire,
};
use callsheet_wire::ToolDefinition;

/// The number of tools above which `tool_loading = "auto"` offers them by a search.
const TOOLS_WITHOUT_SEARCH: usize = 30;

/// The maximum number of tools in a request to OpenAI's services.
const REQUEST_TOOLS_MAX: usize = 128;

/// The maximum number of tools that clients declare for a session and one of its runs together.
const CLIENT_TOOLS_MAX: usize = 128;

/// A configured agent, shared by its sessions.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) name: Arc<str>,
    pub(super) models: Arc<ModelChain>,
    pub(super) rules: Arc<RunRules>,
    /// The tools that it may call, by name. Includes the host's own: `find_tools` with tool search, `read_var` with
    /// references.
    pub(super) tools: Arc<BTreeMap<String, RegisteredTool>>,
    loading: ToolLoading,
    /// All models of the host. With `allow_overrides`, a run may choose any of them.
    configured: Arc<BTreeMap<String, Arc<Model>>>,
    /// All tools of the host. With `allow_overrides`, a run may choose any of them.
    registry: Arc<ToolRegistry>,
    allow_overrides: bool,
    /// The number of requests for a typed answer that may follow the first one.
    output_retries: u32,
    patterns: Arc<[ToolPattern]>,
    /// The patterns that decide which of its tools a search finds, if there is one.
    search_patterns: Arc<[ToolPattern]>,
    /// The hooks that are asked about its runs, in their order.
    pub(super) hooks: Arc<[RegisteredHook]>,
    /// The instructions of the servers of its tools, as the model reads them behind the system text. Empty if there
    /// are none.
    server_instructions: Arc<str>,
    /// A request to the first model, without messages.
    request_template: ModelRequest,
    /// The hash of what precedes the messages in its requests.
    prompt_hash: OnceLock<u64>,
}

impl Agent {
    /// Creates the agents of a configuration, by name.
    pub(super) fn all(
        config: &Config,
        registry: ToolRegistry,
        configured: &Arc<BTreeMap<String, Arc<Model>>>,
    ) -> Result<BTreeMap<String, Arc<Self>>, HostError> {
        let registry = Arc::new(registry);
        let agents = config.agents.iter().map(|(name, agent)| {
            let find = |model: &String| {
                let missing = || format!("agent {name:?}: there is no model {model:?}");
                configured.get(model).cloned().ok_or_else(|| HostError::Config(missing()))
            };
            let fallbacks: Result<_, _> = agent.fallback_models.iter().map(find).collect();
            let models = ModelChain::new(find(&agent.model)?, fallbacks?);
            let agent = Self::new(name, agent, models, configured, &registry);
            let agent = agent.map_err(|error| {
                let error = config.agent_error(name, "output_schema", error.to_string());
                HostError::Config(error.to_string())
            });
            Ok((name.clone(), Arc::new(agent?)))
        });
        agents.collect()
    }

    /// Creates an agent. Fails if the schema of its answers is invalid.
    fn new(
        name: &str,
        agent: &AgentConfig,
        models: ModelChain,
        configured: &Arc<BTreeMap<String, Arc<Model>>>,
        registry: &Arc<ToolRegistry>,
    ) -> Result<Self, InvalidValue> {
        let schema = agent.output_schema.as_ref();
        let output = schema
            .map(|schema| OutputRules::new(schema, OutputMode::Auto, agent.output_retries))
            .transpose()?
            .map(Arc::new);
        let hooks = registry.hooks().iter().filter(|hook| hook.rule.concerns_agent(name));
        let hooks: Arc<[RegisteredHook]> = hooks.cloned().collect();
        let tools = matching_tools(registry.iter(), &agent.tools);
        let tools_max = tools_max(&models, agent.context.references);
        let uses_tool_search = needs_search(agent.tool_loading, &tools, &agent.tools, tools_max);
        let search_patterns = search_patterns(agent.tools.as_slice().into(), tools_max);
        let host_tools = HostToolSet { uses_tool_search, references: agent.context.references };
        let (tools, definitions) = offer(tools, &search_patterns, host_tools);
        let plans = models.plans(None);
        let request_template = ModelRequest {
            system: Some(agent.system.clone()).filter(|system| !system.is_empty()),
            tools: definitions,
            parallel_tool_calls: (!agent.multi_tool_calls).then_some(false),
            ..ModelRequest::new("", MessageList::default())
        };
        let request_template = models.first().adapt(request_template, plans.first().streamed);
        let rules = RunRules {
            tools: specs(&tools),
            uses_tool_search,
            search_only_tools: search_only_names(&tools, &search_patterns, uses_tool_search),
            limits: agent.limits.clone(),
            execution: agent.execution,
            multi_tool_calls: agent.multi_tool_calls,
            early_start: agent.early_start,
            on_refusal: agent.on_refusal,
            has_servers: registry
                .servers()
                .iter()
                .any(|server| names_server(&agent.tools, &**server)),
            fixed_tokens: fixed_tokens(&request_template),
            system_tokens: system_tokens(&request_template),
            context: agent.context.clone(),
            hooks: hooks.iter().filter_map(turn_scope).collect(),
            tool_choice: ToolChoice::Auto,
            output,
            models: Arc::new(plans),
        };
        Ok(Self {
            name: name.into(),
            models: Arc::new(models),
            rules: Arc::new(rules),
            tools: Arc::new(tools),
            loading: agent.tool_loading,
            patterns: agent.tools.as_slice().into(),
            search_patterns,
            hooks,
            configured: Arc::clone(configured),
            registry: Arc::clone(registry),
            allow_overrides: agent.allow_overrides,
            output_retries: agent.output_retries,
            server_instructions: "".into(),
            request_template,
            prompt_hash: OnceLock::new(),
        })
    }

    /// Lists the tools of the host, and whether the agent offers them.
    pub(super) fn listed_tools(&self) -> Vec<ListedTool> {
        let is_searched =
            |name: &str| self.rules.uses_tool_search && is_searched(name, &self.search_patterns);
        let of_host = self.tools.values().filter(|tool| tool.kind == RegisteredKind::Host);
        let use_tool = self.rules.uses_tool_search.then(use_tool_spec);
        let of_host = of_host.map(|tool| &*tool.spec).chain(&use_tool);
        let is_offered = |name: &str| self.tools.contains_key(name);
        let mut listed = list_tools(&self.registry, of_host, is_offered, is_searched);
        for tool in &mut listed {
            let Some(registered) = self.tools.get(&tool.name) else { continue };
            let sent = definition(&registered.spec);
            let refusal = |model: &Arc<Model>| {
                let (model, reason) = (model.name.clone(), model.set_aside.reason(&sent)?);
                Some(ModelRefusal { model, reason })
            };
            tool.set_aside = self.models.iter().filter_map(refusal).collect();
        }
        listed
    }

    /// Returns the estimated size of all definitions in a request, in tokens.
    pub(super) fn definition_tokens(&self) -> usize {
        let tokens =
            |tool: &ToolDefinition| definition_tokens(&tool.name, &tool.description, &tool.schema);
        self.request_template.tools.iter().map(tokens).sum()
    }

    /// Returns the agent with the overrides of a run.
    ///
    /// # Errors
    /// If the overrides exceed what the agent allows, name an unknown model or tool, or have an invalid output
    /// schema.
    pub(super) fn with_overrides(
        self: &Arc<Self>,
        overrides: &RunOverrides,
    ) -> Result<Arc<Self>, HostError> {
        self.apply_overrides(overrides, self.allow_overrides)
    }

    /// Returns the agent with the overrides of a run. `may_replace` is true if the run may have another system
    /// prompt and temperature.
    fn apply_overrides(
        self: &Arc<Self>,
        overrides: &RunOverrides,
        may_replace: bool,
    ) -> Result<Arc<Self>, HostError> {
        if *overrides == RunOverrides::default() {
            return Ok(Arc::clone(self));
        }
        // With `may_raise` the overrides may exceed the agent's limits.
        let (agent_rules, may_raise) = (&*self.rules, self.allow_overrides);
        let chosen: Option<Arc<[ToolPattern]>> =
            overrides.tools.as_ref().map(|names| names.iter().map(ToolPattern::new).collect());
        let tools_max = tools_max(&self.models, agent_rules.context.references);
        let patterns = match &chosen {
            None => Arc::clone(&self.search_patterns),
            Some(chosen) => search_patterns(Arc::clone(chosen), tools_max),
        };
        let mut host_tools = HostToolSet::of(agent_rules);
        // A tool that the model must call stands in the request, although a search would find it.
        let forced = match &overrides.tool_choice {
            Some(ToolChoice::Tool(name)) if host_tools.uses_tool_search => Some(&**name),
            Some(_) | None => None,
        };
        let forced = forced.filter(|name| is_searched(name, &patterns));
        let patterns: Arc<[ToolPattern]> = match forced {
            None => patterns,
            Some(name) => patterns.iter().cloned().chain([ToolPattern::new(name)]).collect(),
        };
        let (tools, definitions, search_only_tools) = match &chosen {
            None if forced.is_some() => {
                let (tools, definitions) = offer(self.callable_tools(), &patterns, host_tools);
                let search_only = search_only_names(&tools, &patterns, true);
                (Arc::new(tools), definitions, search_only)
            }
            None => {
                let tools = Arc::clone(&self.tools);
                let definitions = Arc::clone(&self.request_template.tools);
                (tools, definitions, Arc::clone(&agent_rules.search_only_tools))
            }
            Some(chosen) => {
                let chosen = self.subset(chosen)?;
                // A search that finds no tool of the run is not offered.
                host_tools.uses_tool_search &=
                    chosen.keys().any(|name| is_searched(name, &patterns));
                let (tools, definitions) = offer(chosen, &patterns, host_tools);
                let search_only = search_only_names(&tools, &patterns, host_tools.uses_tool_search);
                (Arc::new(tools), definitions, search_only)
            }
        };
        // The tools of the client are offered in addition.
        let (tools, definitions) = match overrides.client_tools.as_deref() {
            None | Some([]) => (tools, definitions),
            Some(client) => {
                let mut all = BTreeMap::clone(&tools);
                all.retain(|name, _| !RESERVED_NAMES.contains(&&**name));
                let client = client.iter().map(|tool| (tool.name.clone(), client_side(tool)));
                all.extend(client);
                let (all, definitions) = offer(all, &patterns, host_tools);
                (Arc::new(all), definitions)
            }
        };
        let multi_tool_calls =
            overrides.multi_tool_calls(agent_rules.multi_tool_calls, may_raise)?;
        let models = match &overrides.model {
            None => Arc::clone(&self.models),
            Some(name) => Arc::new(self.models_starting_with(name)?),
        };
        let models = self.with_parameters(models, overrides, may_replace)?;
        let plans = models.plans(overrides.stream);
        let tool_choice = self.tool_choice(overrides, &definitions)?;
        let output = match &overrides.output {
            None => agent_rules.output.clone(),
            Some(OutputRequest { schema, mode, .. }) => {
                let rules = OutputRules::new(schema, *mode, self.output_retries)
                    .map_err(|error| HostError::InvalidOutput(error.to_string()))?;
                Some(Arc::new(rules))
            }
        };
        let mut specs = specs(&tools);
        for (name, spec) in &mut specs {
            let approval = overrides.approval(name, spec.approval, may_raise)?;
            if approval != spec.approval {
                Arc::make_mut(spec).approval = approval;
            }
        }
        let changes_tools =
            overrides.tools.is_some() || overrides.client_tools.is_some() || forced.is_some();
        let fixed_tokens = match changes_tools {
            true => agent_rules.system_tokens + tools_tokens(&definitions),
            false => agent_rules.fixed_tokens,
        };
        // The request template needs the models of the rules; then the rules get the size of its system prompt.
        let mut rules = RunRules {
            tools: specs,
            uses_tool_search: host_tools.uses_tool_search,
            search_only_tools,
            fixed_tokens,
            limits: overrides.limits.apply(&agent_rules.limits, may_raise)?,
            execution: overrides.execution(agent_rules.execution, may_raise)?,
            multi_tool_calls,
            tool_choice,
            output,
            models: Arc::new(plans),
            ..agent_rules.clone()
        };
        let system = match &overrides.system {
            Some(_) if !may_replace => return Err(HostError::OverrideNotAllowed("system")),
            Some(system) => with_instructions(Some(system.as_str()), &self.server_instructions),
            None => self.request_template.system.clone(),
        };
        let system = match &overrides.instructions {
            Some(instructions) => with_instructions(system.as_deref(), instructions),
            None => system,
        };
        let request_template = ModelRequest {
            system,
            tools: definitions,
            parallel_tool_calls: (!multi_tool_calls).then_some(false),
            ..self.request_template.clone()
        };
        let request_template =
            models.first().adapt(request_template, rules.models.first().streamed);
        if overrides.system.is_some() || overrides.instructions.is_some() {
            rules.system_tokens = system_tokens(&request_template);
            rules.fixed_tokens = rules.system_tokens + tools_tokens(&request_template.tools);
        }
        Ok(Arc::new(Self {
            name: Arc::clone(&self.name),
            models,
            rules: Arc::new(rules),
            tools,
            configured: Arc::clone(&self.configured),
            registry: Arc::clone(&self.registry),
            allow_overrides: self.allow_overrides,
            output_retries: self.output_retries,
            loading: self.loading,
            patterns: Arc::clone(&self.patterns),
            search_patterns: if forced.is_some() {
                patterns
            } else {
                Arc::clone(&self.search_patterns)
            },
            hooks: Arc::clone(&self.hooks),
            server_instructions: Arc::clone(&self.server_instructions),
            request_template,
            prompt_hash: OnceLock::new(),
        }))
    }

    /// Checks the tools that a client declares for a session or a run. `inherited` are those of the run's session.
    ///
    /// # Errors
    /// If there are too many, one of them is invalid, or its name is reserved or that of another tool.
    pub(super) fn check_client_tools(
        &self,
        overrides: &RunOverrides,
        inherited: &[ClientTool],
    ) -> Result<(), HostError> {
        let Some(tools) = overrides.client_tools.as_deref() else { return Ok(()) };
        let count = tools.len() + inherited.len();
        if count > CLIENT_TOOLS_MAX {
            let problem = format!("{count} tools are more than {CLIENT_TOOLS_MAX}");
            return Err(HostError::InvalidClientTool(problem));
        }
        let patterns: Option<Vec<ToolPattern>> = overrides.tools.as_ref().map(|names| {
            names.iter().map(ToolPattern::new).filter(|_| self.allow_overrides).collect()
        });
        let mut checked = ToolRegistry::new();
        for tool in inherited {
            // They were checked when the session was opened.
            let _ = checked.register(ClientSideTool::new(tool));
        }
        for tool in tools {
            let name = tool.name.as_str();
            let mut servers = self.registry.servers().iter();
            let of_server = servers.find(|server| {
                name.starts_with(&server.tool_prefix())
                    && self.patterns.iter().any(|pattern| pattern.matches(name))
            });
            let is_chosen = patterns.iter().flatten().any(|pattern| pattern.matches(name))
                && self.registry.tool(name).is_some();
            if of_server.is_some() || is_chosen || self.tools.contains_key(name) {
                return Err(HostError::ToolNameTaken(name.to_owned()));
            }
            checked.register(ClientSideTool::new(tool)).map_err(|error| match &error {
                RegistryError::DuplicateName(name) | RegistryError::ReservedName(name) => {
                    HostError::ToolNameTaken(name.clone())
                }
                RegistryError::InvalidName(_)
                | RegistryError::ZeroTimeout(_)
                | RegistryError::InputNotAnObject(_)
                | RegistryError::InvalidInput { .. } => {
                    HostError::InvalidClientTool(error.to_string())
                }
            })?;
        }
        Ok(())
    }

    /// Returns whether one of the agent's patterns may name a tool of the server.
    pub(super) fn names_server(&self, server: &dyn ToolServer) -> bool {
        names_server(&self.patterns, server)
    }

    /// Returns the agent's patterns, except `*`, that match none of its tools.
    pub(super) fn unmatched_patterns(&self) -> Vec<String> {
        let matches = |pattern: &&ToolPattern| {
            let mut names = self.callable_names();
            pattern.text == "*" || names.any(|name| pattern.matches(name))
        };
        let unmatched = self.patterns.iter().filter(|pattern| !matches(pattern));
        unmatched.map(|pattern| pattern.text.clone()).collect()
    }

    /// Returns whether one of the agent's patterns matches the name.
    pub(super) fn names_tool(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(name))
    }

    /// Returns whether the model has to search for its tools if servers offer these in addition.
    pub(super) fn needs_search(&self, tools: &[ServerToolDefinition]) -> bool {
        let callable = self.callable_tools().into_keys();
        let names = callable.chain(tools.iter().map(|tool| tool.name.clone()));
        let names = names.map(|name| (name, ())).collect();
        let tools_max = tools_max(&self.models, self.rules.context.references);
        needs_search(self.loading, &names, &self.patterns, tools_max)
    }

    /// Returns the tools that it may call, without those of the host itself.
    fn callable_tools(&self) -> BTreeMap<String, RegisteredTool> {
        let mut tools = BTreeMap::clone(&self.tools);
        tools.retain(|name, _| !RESERVED_NAMES.contains(&&**name));
        tools
    }

    /// Returns the names of the tools that it may call, without those of the host itself.
    fn callable_names(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str).filter(|name| !RESERVED_NAMES.contains(name))
    }

    /// Returns the agent with these tools of servers. Leaves out those that cannot be made or registered, such as
    /// those of a server that is not configured any more.
    pub(super) fn with_server_tools(
        &self,
        frozen: &FrozenList,
        overrides: &BTreeMap<String, ToolOverride>,
        tool_limiters: &ToolLimiters,
    ) -> Self {
        let make = |tool: &ServerToolDefinition| {
            let mut servers = self.registry.servers().iter();
            let server = servers.find(|server| tool.name.starts_with(&server.tool_prefix()));
            let made = server.map(|server| server.make_tool(tool));
            let made = made.unwrap_or_else(|| Err("its server is not configured".to_owned()));
            made.inspect_err(|error| {
                tracing::warn!(agent = &*self.name, tool = tool.name, error, "tool_not_offered");
            })
        };
        let made = frozen.tools.iter().filter_map(|tool| make(tool).ok()).collect();
        let kind = RegisteredKind::Mcp;
        let mut agent =
            self.with_registered(kind, made, Some(overrides), tool_limiters, frozen.search);
        if !frozen.instructions.is_empty() {
            agent.add_server_instructions(frozen.instructions_text().into());
        }
        agent
    }

    /// Adds the instructions of servers behind the system text.
    fn add_server_instructions(&mut self, instructions: Arc<str>) {
        let template = &mut self.request_template;
        template.system = with_instructions(template.system.as_deref(), &instructions);
        let rules = Arc::make_mut(&mut self.rules);
        rules.system_tokens = system_tokens(template);
        rules.fixed_tokens = fixed_tokens(template);
        self.server_instructions = instructions;
    }

    /// Returns the agent with further tools, which it offers besides its own. Leaves out those that cannot be
    /// registered.
    pub(super) fn with_tools(
        &self,
        tools: Vec<Arc<dyn Tool>>,
        tool_limiters: &ToolLimiters,
    ) -> Self {
        let uses_tool_search = self.rules.uses_tool_search;
        self.with_registered(RegisteredKind::Native, tools, None, tool_limiters, uses_tool_search)
    }

    /// Registers these tools, with their configured overrides, and returns the agent with them.
    fn with_registered(
        &self,
        kind: RegisteredKind,
        tools: Vec<Arc<dyn Tool>>,
        overrides: Option<&BTreeMap<String, ToolOverride>>,
        tool_limiters: &ToolLimiters,
        uses_tool_search: bool,
    ) -> Self {
        let mut registry = ToolRegistry::clone(&self.registry);
        let mut offered = self.callable_tools();
        for tool in tools {
            let name = tool.spec().name;
            if let Err(error) = registry.register_as(kind, tool) {
                tracing::warn!(agent = &*self.name, %error, "tool_not_offered");
                continue;
            }
            if let Some(change) = overrides.and_then(|overrides| overrides.get(&name)) {
                registry.apply_override(&name, change);
            }
            if let Some(tool) = registry.tool(&name) {
                tool_limiters.add(&tool.spec);
                offered.insert(name, tool.clone());
            }
        }
        let host_tools = HostToolSet { uses_tool_search, ..HostToolSet::of(&self.rules) };
        let (tools, definitions) = offer(offered, &self.search_patterns, host_tools);
        let request_template = ModelRequest { tools: definitions, ..self.request_template.clone() };
        let rules = RunRules {
            tools: specs(&tools),
            uses_tool_search,
            search_only_tools: search_only_names(&tools, &self.search_patterns, uses_tool_search),
            fixed_tokens: fixed_tokens(&request_template),
            ..RunRules::clone(&self.rules)
        };
        Self {
            name: Arc::clone(&self.name),
            models: Arc::clone(&self.models),
            rules: Arc::new(rules),
            configured: Arc::clone(&self.configured),
            allow_overrides: self.allow_overrides,
            output_retries: self.output_retries,
            loading: self.loading,
            patterns: Arc::clone(&self.patterns),
            search_patterns: Arc::clone(&self.search_patterns),
            hooks: Arc::clone(&self.hooks),
            server_instructions: Arc::clone(&self.server_instructions),
            request_template,
            prompt_hash: OnceLock::new(),
            tools: Arc::new(tools),
            registry: Arc::new(registry),
        }
    }

    /// Returns an agent of this name that has only one tool and one model. `None` if neither the host nor this
    /// agent has the tool, or its name is reserved.
    pub(super) fn with_only_tool(&self, tool: &str, name: &str, model: Arc<Model>) -> Option<Self> {
        let is_reserved = RESERVED_NAMES.contains(&tool);
        let found = self.tools.get(tool).or_else(|| self.registry.tool(tool));
        let found = found.filter(|_| !is_reserved)?.clone();
        let host_tools = HostToolSet { uses_tool_search: false, references: false };
        let patterns = [ToolPattern::new(tool)];
        let (tools, definitions) =
            offer(BTreeMap::from([(tool.to_owned(), found)]), &patterns, host_tools);
        let models = ModelChain::new(model, Vec::new());
        let plans = models.plans(None);
        let request_template =
            ModelRequest { system: None, tools: definitions, ..self.request_template.clone() };
        let request_template = models.first().adapt(request_template, plans.first().streamed);
        let rules = RunRules {
            tools: specs(&tools),
            uses_tool_search: false,
            search_only_tools: Arc::default(),
            // The tools of servers are known.
            has_servers: false,
            fixed_tokens: fixed_tokens(&request_template),
            system_tokens: 0,
            tool_choice: ToolChoice::Auto,
            output: None,
            models: Arc::new(plans),
            ..RunRules::clone(&self.rules)
        };
        Some(Self {
            name: name.into(),
            models: Arc::new(models),
            rules: Arc::new(rules),
            tools: Arc::new(tools),
            loading: ToolLoading::All,
            configured: Arc::clone(&self.configured),
            registry: Arc::clone(&self.registry),
            allow_overrides: false,
            output_retries: 0,
            patterns: Arc::new([]),
            search_patterns: Arc::new([]),
            hooks: Arc::clone(&self.hooks),
            server_instructions: Arc::clone(&self.server_instructions),
            request_template,
            prompt_hash: OnceLock::new(),
        })
    }

    /// Returns the agent with the recorded overrides of a run, or without any if the configuration does not allow
    /// them any more. A system prompt and a temperature are always allowed here: they were admitted once.
    pub(super) fn with_recorded_overrides(self: &Arc<Self>, overrides: &RunOverrides) -> Arc<Self> {
        self.apply_overrides(overrides, true).unwrap_or_else(|error| {
            tracing::warn!(agent = &*self.name, %error, "overrides_not_taken");
            Arc::clone(self)
        })
    }

    /// Returns the models with the parameters of a run.
    fn with_parameters(
        &self,
        models: Arc<ModelChain>,
        overrides: &RunOverrides,
        may_replace: bool,
    ) -> Result<Arc<ModelChain>, HostError> {
        let temperature = overrides.temperature.map(Temperature::get);
        if temperature.is_some() && !may_replace {
            return Err(HostError::OverrideNotAllowed("temperature"));
        }
        if temperature.is_none() && overrides.max_output_tokens.is_none() {
            return Ok(models);
        }
        let configured = models.first().max_output_tokens();
        let max_output_tokens = match overrides.max_output_tokens {
            Some(_) => overrides.max_output_tokens(configured, self.allow_overrides)?,
            None => None,
        };
        Ok(Arc::new(models.with_parameters(temperature, max_output_tokens)))
    }

    /// Returns the rule for calling tools of a run that offers these tools.
    fn tool_choice(
        &self,
        overrides: &RunOverrides,
        definitions: &[ToolDefinition],
    ) -> Result<ToolChoice, HostError> {
        let Some(choice) = &overrides.tool_choice else {
            return Ok(self.rules.tool_choice.clone());
        };
        let is_offered = match choice {
            ToolChoice::Auto | ToolChoice::None => true,
            ToolChoice::Required => !definitions.is_empty(),
            ToolChoice::Tool(name) => definitions.iter().any(|tool| *tool.name == **name),
        };
        // The tools of servers may not be known yet.
        let may_be_offered_later = || {
            let mut servers = self.registry.servers().iter();
            servers.any(|server| match choice {
                ToolChoice::Tool(name) => {
                    self.names_server(&**server) && name.starts_with(&server.tool_prefix())
                }
                ToolChoice::Auto | ToolChoice::None | ToolChoice::Required => {
                    self.names_server(&**server)
                }
            })
        };
        if is_offered || may_be_offered_later() {
            return Ok(choice.clone());
        }
        let offered = definitions.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>();
        let (asked, offered) = (choice.to_string(), offered.join(", "));
        Err(HostError::UnknownToolChoice { asked, offered })
    }

    /// Returns the agent's models with this one first.
    fn models_starting_with(&self, name: &str) -> Result<ModelChain, HostError> {
        let Some(model) = self.configured.get(name) else {
            let known = self.configured.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(HostError::UnknownModel { asked: name.to_owned(), known });
        };
        let is_of_agent = self.models.iter().any(|model| model.name == name);
        if !is_of_agent && !self.allow_overrides {
            return Err(InvalidOverride::new("model", name, self.models.names()).into());
        }
        Ok(self.models.starting_with(model))
    }

    /// Returns the tools that match the patterns. Without `allow_overrides` only the agent's own tools.
    ///
    /// # Errors
    /// If a pattern matches no tool, or only tools that the agent may not use. A pattern that may match tools
    /// of servers is not checked, because these tools may not be known yet.
    fn subset(
        &self,
        patterns: &[ToolPattern],
    ) -> Result<BTreeMap<String, RegisteredTool>, HostError> {
        for pattern in patterns {
            // The tools of servers may not be known yet.
            if self.registry.servers().iter().any(|server| {
                self.names_server(&**server)
                    && names_server(std::slice::from_ref(pattern), &**server)
            }) {
                continue;
            }
            let is_callable = self.callable_names().any(|name| pattern.matches(name));
            let is_known = self.registry.iter().any(|(name, _)| pattern.matches(name));
            if !is_known {
                return Err(HostError::UnknownTool(pattern.text.clone()));
            }
            if !is_callable && !self.allow_overrides {
                let allowed = self.callable_names().collect::<Vec<_>>().join(", ");
                return Err(InvalidOverride::new("tools", &pattern.text, allowed).into());
            }
        }
        if self.allow_overrides {
            return Ok(matching_tools(self.registry.iter(), patterns));
        }
        let callable = self.callable_tools();
        Ok(matching_tools(callable.iter().map(|(name, tool)| (name.as_str(), tool)), patterns))
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.rules.limits
    }

    /// Returns the rules of its runs that the session machine applies.
    pub(super) fn session_rules(&self) -> SessionRunRules {
        SessionRunRules::from(&*self.rules)
    }

    /// Returns the model request for a summary of the messages. The tools stay listed, so that the service
    /// finds the beginning of the request in its cache. Where a choice of tools would change that beginning,
    /// the model may call them; the calls are dropped.
    pub(super) fn summary_request(&self, messages: MessageList) -> ModelRequest {
        let mut messages = messages;
        messages.push(Message::user(SUMMARY_REQUEST));
        let tool_choice = match self.rules.models.first().origin.wire {
            Wire::AnthropicMessages | Wire::OllamaChat => ToolChoice::Auto,
            Wire::OpenaiChat | Wire::OpenaiResponses | Wire::GeminiGenerate => ToolChoice::None,
        };
        let is_internal = true;
        ModelRequest { messages, tool_choice, is_internal, ..self.request_template.clone() }
    }

    /// Returns the hash of what precedes the messages in its requests.
    pub(super) fn prompt_hash(&self) -> u64 {
        *self.prompt_hash.get_or_init(|| {
            self.request_template.prompt_hash(self.rules.models.first().origin.wire)
        })
    }

    /// Returns the model request of a turn. Its tools stay listed, whatever it asks for.
    pub(super) fn request(&self, messages: MessageList, kind: RequestKind) -> ModelRequest {
        let chosen = &self.rules.tool_choice;
        let tool_choice = match kind {
            RequestKind::Ordinary if chosen.forces_call() => ToolChoice::Auto,
            RequestKind::Ordinary | RequestKind::ForcedCall => chosen.clone(),
            RequestKind::FinalAnswer | RequestKind::FinalText | RequestKind::Output(_) => {
                ToolChoice::None
            }
        };
        let is_internal = match kind {
            RequestKind::Ordinary | RequestKind::ForcedCall => false,
            RequestKind::FinalAnswer | RequestKind::FinalText | RequestKind::Output(_) => true,
        };
        let template = self.request_template.clone();
        let request = ModelRequest { messages, tool_choice, is_internal, ..template };
        let Some(output) = &self.rules.output else { return request };
        match kind {
            RequestKind::Output(OutputMode::Native) => {
                ModelRequest { output_schema: Some(output.schema.shared()), ..request }
            }
            RequestKind::Output(OutputMode::Tool) => {
                let offered = request.tools.iter().cloned();
                let tools = offered.chain([definition(&output.final_answer)]).collect();
                let tool_choice = ToolChoice::Tool(FINAL_ANSWER.into());
                ModelRequest { tools, tool_choice, ..request }
            }
            RequestKind::Ordinary
            | RequestKind::ForcedCall
            | RequestKind::FinalAnswer
            | RequestKind::FinalText
            | RequestKind::Output(_) => request,
        }
    }
}

/// Returns the system text with the instructions of servers behind it. `None` if it is empty.
fn with_instructions(system: Option<&str>, instructions: &str) -> Option<String> {
    let parts = [system.unwrap_or_default(), instructions];
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    Some(parts.collect::<Vec<_>>().join("\n\n")).filter(|system| !system.is_empty())
}

/// Returns the tokens of tools and system text in each request, by estimate.
fn fixed_tokens(request_template: &ModelRequest) -> u64 {
    system_tokens(request_template) + tools_tokens(&request_template.tools)
}

fn tools_tokens(tools: &[ToolDefinition]) -> u64 {
    tools.iter().map(estimate_tool).sum()
}

fn system_tokens(request_template: &ModelRequest) -> u64 {
    request_template.system.as_deref().map_or(0, estimate_text)
}

/// The rules of the runs of each configured agent, without a running host.
#[derive(Clone, Debug)]
pub struct AgentRules {
    agents: BTreeMap<String, Arc<Agent>>,
    overrides: BTreeMap<String, ToolOverride>,
    tool_limiters: ToolLimiters,
}

impl AgentRules {
    /// Creates the rules of all agents. Applies the configuration's overrides of tools.
    ///
    /// # Errors
    /// If a configured model has an invalid address, key or header, or an agent an unknown model or an invalid output
    /// schema.
    pub fn new(config: &Config, mut tools: ToolRegistry) -> Result<Self, HostError> {
        tools.apply_overrides(&config.tools);
        let models = Arc::new(Model::all(
            config,
            &ModelSources::default(),
            &Telemetry::new(&[]),
            &HostLagClock::default(),
            &Secrets::default(),
        )?);
        let tool_limiters = ToolLimiters::new(&tools, &Gauge::default());
        let agents = Agent::all(config, tools, &models)?;
        Ok(Self { agents, overrides: config.tools.clone(), tool_limiters })
    }

    /// Returns the rules of a run of this agent with these overrides. `frozen` is the journal's document with
    /// the tools of servers that the session has frozen; it is ignored if it cannot be read.
    ///
    /// # Errors
    /// If there is no such agent, or the overrides exceed what the agent allows.
    pub fn rules(
        &self,
        agent: &str,
        overrides: &RunOverrides,
        frozen: Option<&str>,
    ) -> Result<Arc<RunRules>, HostError> {
        let found = self.agents.get(agent);
        let agent = found.ok_or_else(|| HostError::unknown_agent(agent, &self.agents))?;
        let frozen = frozen.and_then(|text| serde_json::from_str::<FrozenList>(text).ok());
        let agent = match frozen {
            Some(list) => {
                Arc::new(agent.with_server_tools(&list, &self.overrides, &self.tool_limiters))
            }
            None => Arc::clone(agent),
        };
        Ok(Arc::clone(&agent.apply_overrides(overrides, true)?.rules))
    }
}

/// Returns the tools that match one of the patterns.
fn matching_tools<'a>(
    tools: impl Iterator<Item = (&'a str, &'a RegisteredTool)>,
    patterns: &[ToolPattern],
) -> BTreeMap<String, RegisteredTool> {
    tools
        .filter(|(name, _)| patterns.iter().any(|pattern| pattern.matches(name)))
        .map(|(name, tool)| (name.to_owned(), tool.clone()))
        .collect()
}

/// Returns whether one of the patterns may match a tool of the server.
fn names_server(patterns: &[ToolPattern], server: &dyn ToolServer) -> bool {
    let prefix = server.tool_prefix();
    patterns.iter().any(|pattern| pattern.may_match_longer(&prefix))
}

/// Returns the maximum number of an agent's tools in a request to one of its models. `references` says that the host
/// adds a tool of its own. OpenAI's services accept 128 ("array too long"); no other limit is known.
fn tools_max(models: &ModelChain, references: bool) -> usize {
    let is_limited = models.iter().any(|model| match model.wire() {
        Wire::OpenaiChat | Wire::OpenaiResponses => true,
        Wire::AnthropicMessages | Wire::GeminiGenerate | Wire::OllamaChat => false,
    });
    if is_limited { REQUEST_TOOLS_MAX - usize::from(references) } else { usize::MAX }
}

/// Returns whether the model finds tools with a search. A search finds only tools that a wildcard pattern
/// matches, so at least one must exist, unless a request cannot have them all.
fn needs_search<T>(
    loading: ToolLoading,
    tools: &BTreeMap<String, T>,
    patterns: &[ToolPattern],
    tools_max: usize,
) -> bool {
    // The services would refuse the request.
    let is_forced = tools.len() > tools_max;
    let is_wanted = match loading {
        ToolLoading::All => false,
        ToolLoading::Search => true,
        ToolLoading::Auto => tools.len() > TOOLS_WITHOUT_SEARCH,
    };
    is_forced || is_wanted && tools.keys().any(|name| is_searched(name, patterns))
}

/// Returns the patterns that decide which tools a search finds. If the tools that are named one by one are too many
/// for a request with a search, it finds all tools.
fn search_patterns(patterns: Arc<[ToolPattern]>, tools_max: usize) -> Arc<[ToolPattern]> {
    let names = patterns.iter().filter(|pattern| pattern.is_name()).count();
    // `find_tools` and `use_tool`.
    let named_max = tools_max.saturating_sub(2);
    if names > named_max { Arc::new([ToolPattern::new("*")]) } else { patterns }
}

/// Returns whether a tool is found by a search, if there is one: only wildcard patterns match it.
fn is_searched(name: &str, patterns: &[ToolPattern]) -> bool {
    let mut matching = patterns.iter().filter(|pattern| pattern.matches(name)).peekable();
    let is_reserved = RESERVED_NAMES.contains(&name);
    !is_reserved && matching.peek().is_some() && matching.all(|pattern| !pattern.is_name())
}

/// Returns the scope of a hook within a turn, or `None` for `run_end`: no turn is open then.
fn turn_scope(hook: &RegisteredHook) -> Option<HookScope> {
    let RegisteredHook { rule, .. } = hook;
    (rule.on != HookPoint::RunEnd).then(|| HookScope { on: rule.on, tools: rule.tools.clone() })
}

/// Returns the names of the tools that are only found by a search.
fn search_only_names(
    tools: &BTreeMap<String, RegisteredTool>,
    patterns: &[ToolPattern],
    uses_tool_search: bool,
) -> Arc<BTreeSet<String>> {
    let names = tools.keys().filter(|name| uses_tool_search && is_searched(name, patterns));
    Arc::new(names.cloned().collect())
}

/// Selects the host's own tools that an agent offers.
#[derive(Clone, Copy, Debug)]
struct HostToolSet {
    /// `find_tools` and `use_tool`.
    uses_tool_search: bool,
    /// `read_var`.
    references: bool,
}

impl HostToolSet {
    fn of(rules: &RunRules) -> Self {
        Self { uses_tool_search: rules.uses_tool_search, references: rules.context.references }
    }
}

/// Returns the tools that may be called, and the definitions for the model, sorted by name.
fn offer(
    mut tools: BTreeMap<String, RegisteredTool>,
    patterns: &[ToolPattern],
    HostToolSet { uses_tool_search, references }: HostToolSet,
) -> (BTreeMap<String, RegisteredTool>, Arc<[ToolDefinition]>) {
    static READ_VAR_TOOL: LazyLock<RegisteredTool> =
        LazyLock::new(|| RegisteredTool::of_host(ReadVar));
    // Without other tools `read_var` is left out: the model may not support tool calling.
    if references && !tools.is_empty() {
        tools.insert(READ_VAR.to_owned(), READ_VAR_TOOL.clone());
    }
    if !uses_tool_search {
        let definitions = tools.values().map(|tool| definition(&tool.spec)).collect();
        return (tools, definitions);
    }
    let is_search_only =
        |tool: &&RegisteredTool| !tool.spec.by_client && is_searched(&tool.spec.name, patterns);
    let search_only = tools.values().filter(is_search_only);
    let finder = find_tools(search_only.map(|tool| Arc::clone(&tool.spec)).collect());
    let listed = tools.values().filter(|tool| !is_search_only(tool));
    let mut definitions: Vec<_> = listed.map(|tool| definition(&tool.spec)).collect();
    let finder = RegisteredTool::of_host(finder);
    definitions.extend([definition(&finder.spec), definition(&use_tool_spec())]);
    definitions.sort_by(|one, other| one.name.cmp(&other.name));
    tools.insert(finder.spec.name.clone(), finder);
    (tools, definitions.into())
}

/// Returns a tool that the client runs, in the form of the host's own tools.
fn client_side(tool: &ClientTool) -> RegisteredTool {
    RegisteredTool::of_host(ClientSideTool::new(tool))
}

fn definition(spec: &ToolSpec) -> ToolDefinition {
    ToolDefinition {
        name: spec.name.clone(),
        description: spec.description.clone(),
        schema: spec.input.as_value().clone(),
    }
}

fn specs(tools: &BTreeMap<String, RegisteredTool>) -> BTreeMap<String, Arc<ToolSpec>> {
    tools.iter().map(|(name, tool)| (name.clone(), Arc::clone(&tool.spec))).collect()
}
