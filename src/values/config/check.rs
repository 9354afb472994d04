//! Checks of a whole configuration, whose values may have been set in code.

use std::time::Duration;

use super::ToolKind;
use super::error::did_you_mean;
use super::key_table::KeyTable;
use super::mcp::tool_prefix;
use super::{AgentToolConfig, Config, ConfigError, ConfigErrors, ToolEffect, ToolOverride};
use crate::types::{Execution, READ_VAR, USE_TOOL};

impl Config {
    /// Checks the configuration against the names of the registered tools. Values of a file were checked
    /// when it was parsed. Plain keys are checked here too, because code may have set them.
    ///
    /// # Errors
    /// All mistakes, with the key of each.
    pub fn check(&self, registered: &[&str]) -> Result<(), ConfigErrors> {
        let mut errors = self.tool_errors(registered);
        errors.extend(self.token_mistakes());
        let mut add_error =
            |key: String, message: String| errors.push(self.key_locations.error(&key, message));
        if self.agents.is_empty() {
            add_error("agents".to_owned(), "there is no agent".to_owned());
        }
        if self.agents.contains_key("vitals") && self.faces.ui.enabled != Some(false) {
            let message = "POST /v1/ui/vitals has this name: rename the agent, or set \
                           faces.ui.enabled = false";
            add_error("agents.vitals".to_owned(), message.to_owned());
        }
        // Agents: models, execution.
        for (name, agent) in &self.agents {
            for (at, model) in agent.models().enumerate() {
                let key = match at.checked_sub(1) {
                    None => format!("agents.{name}.model"),
                    Some(fallback) => format!("agents.{name}.fallback_models[{fallback}]"),
                };
                match self.models.get(model) {
                    None => {
                        let hint = did_you_mean(model, self.models.keys().map(String::as_str));
                        let message = format!("no model is called {model:?}{hint}");
                        add_error(key, message);
                    }
                    Some(model) if model.base_url.is_unset() => {
                        let message = "the offline rehearsal model was not started: start it and \
                                       call Config::set_rehearsal, or use Host::builder()";
                        add_error(key, message.to_owned());
                    }
                    Some(_) => {}
                }
            }
            if let Execution::Parallel { max } = agent.execution
                && !(1..=Execution::PARALLEL_MAX).contains(&max)
            {
                let message =
                    format!("must allow 1 to {} concurrent calls", Execution::PARALLEL_MAX);
                add_error(format!("agents.{name}.execution"), message);
            }
        }
        for (name, tool) in &self.tools {
            if tool.timeout == Some(Duration::ZERO) {
                add_error(format!("tools.{name}.timeout"), "must be longer than 0".to_owned());
            }
        }
        for (table, keys) in self.key_tables() {
            keys.check_keys(&mut |key, message| add_error(format!("{table}.{key}"), message));
        }
        for (name, server) in &self.mcp {
            if server.max_timeout < server.timeout {
                let message = "must not be shorter than timeout";
                add_error(format!("mcp.{name}.max_timeout"), message.to_owned());
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(ConfigErrors::new(errors)) }
    }

    /// Returns the sections whose plain keys are checked, with their names.
    fn key_tables(&self) -> Vec<(String, &dyn KeyTable)> {
        let mut tables: Vec<(String, &dyn KeyTable)> = vec![
            ("host".to_owned(), &self.host),
            ("journal".to_owned(), &self.journal),
            ("console".to_owned(), &self.console),
            ("faces.openai".to_owned(), &self.faces.openai),
            ("mcp_limits".to_owned(), &self.mcp_limits),
        ];
        for (name, agent) in &self.agents {
            tables.push((format!("agents.{name}"), agent));
            tables.push((format!("agents.{name}.limits"), &agent.limits));
            tables.push((format!("agents.{name}.context"), &agent.context));
        }
        for (name, model) in &self.models {
            tables.push((format!("models.{name}"), model));
        }
        for (name, tool) in &self.tools {
            tables.push((format!("tools.{name}"), tool));
            match tool.definition.as_ref().map(|definition| &definition.kind) {
                Some(ToolKind::Command(command)) => {
                    tables.push((format!("tools.{name}"), &**command));
                }
                Some(ToolKind::Http(http)) => tables.push((format!("tools.{name}"), &**http)),
                // `agent_tool_mistakes` checks them.
                Some(ToolKind::Agent(_)) | None => {}
            }
        }
        for (name, server) in &self.mcp {
            tables.push((format!("mcp.{name}"), server));
            tables.push((format!("mcp.{name}"), &server.policy));
        }
        tables
    }

    /// Creates an error about a value of `[agents.NAME]`, with its line.
    pub fn agent_error(&self, agent: &str, key: &str, message: impl Into<String>) -> ConfigErrors {
        let key = format!("agents.{agent}.{key}");
        ConfigErrors::new(vec![self.key_locations.error(&key, message.into())])
    }

    /// Returns the keys of invalid values of an agent as a tool, with the reason. `policy` holds the changes of the
    /// configuration to the policy of the tool.
    pub fn agent_tool_mistakes(
        &self,
        agent: &AgentToolConfig,
        policy: &ToolOverride,
    ) -> Vec<(&'static str, String)> {
        let mut mistakes = Vec::new();
        if !self.agents.contains_key(&agent.agent) {
            let known = self.agents.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let message = format!("no agent is called {:?} (known: {known})", agent.agent);
            mistakes.push(("agent", message));
        }
        agent.check_keys(&mut |key, message| mistakes.push((key, message)));
        let checks = [
            ("share_of_budget", agent.share_of_budget.is_zero(), "must be at least 0.001"),
            (
                "effect",
                policy.effect == Some(ToolEffect::None),
                "must be \"some\": an agent uses tokens, and its tools may have effects",
            ),
            (
                "idempotent",
                policy.idempotent == Some(false),
                "must be true: a call that is sent again finds the run of its child",
            ),
            (
                "max_concurrent",
                policy.max_concurrent.is_some(),
                "is not for agents: a call that waits for its child would hold what the child may \
                 need. max_children limits the children of a run",
            ),
            ("blocking", policy.blocking == Some(true), "is not for agents"),
            (
                "retries",
                policy.retries.is_some_and(|retries| retries > 0),
                "is not for agents: their models have max_attempts",
            ),
        ];
        let wrong = checks.into_iter().filter(|(_, is_wrong, _)| *is_wrong);
        mistakes.extend(wrong.map(|(key, _, message)| (key, message.to_owned())));
        mistakes
    }

    /// Checks the names and patterns of tools against the registered tools, and the agents as tools.
    ///
    /// # Errors
    /// If a pattern of an agent or a hook matches no tool, if `[tools.NAME]` names an unknown tool, or if an agent as
    /// a tool does not exist or has invalid values.
    pub fn check_tools(&self, registered: &[&str]) -> Result<(), ConfigErrors> {
        let errors = self.tool_errors(registered);
        if errors.is_empty() { Ok(()) } else { Err(ConfigErrors::new(errors)) }
    }

    fn tool_errors(&self, registered: &[&str]) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        // The names of a server's tools are unknown until it is connected. Only their prefix is checked.
        let prefixes: Vec<String> = self.mcp.keys().map(|server| tool_prefix(server)).collect();
        for (name, agent) in &self.agents {
            for (at, pattern) in agent.tools.iter().enumerate() {
                // "*" means all tools, of which there may be none.
                let is_known = registered.iter().any(|tool| pattern.matches(tool))
                    || prefixes.iter().any(|prefix| pattern.may_match_longer(prefix));
                if pattern.text != "*" && !is_known {
                    let key = format!("agents.{name}.tools[{at}]");
                    let message = unknown_tool_message(&pattern.text, registered);
                    errors.push(self.key_locations.error(&key, message));
                }
            }
        }
        // The tools of hooks.
        for (at, hook) in self.hooks.iter().enumerate() {
            for (nth, pattern) in hook.rule.tools.iter().flatten().enumerate() {
                let mut names = registered.iter().copied().chain(HOST_TOOLS);
                let is_known = names.any(|tool| pattern.matches(tool))
                    || prefixes.iter().any(|prefix| pattern.may_match_longer(prefix));
                if !is_known {
                    let key = format!("hooks[{at}].tools[{nth}]");
                    let message = match pattern.text.as_str() {
                        USE_TOOL => {
                            "hooks are asked about the tool that use_tool calls: name that \
                                     tool"
                                .to_owned()
                        }
                        text => unknown_tool_message(text, registered),
                    };
                    errors.push(self.key_locations.error(&key, message));
                }
            }
        }
        // The names of `[tools.NAME]`.
        let is_of_server = |name: &&String| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let unknown = self.tools.keys().filter(|name| !registered.contains(&name.as_str()));
        for name in unknown.filter(|name| !is_of_server(name)) {
            let is_defined = self.tools.get(name).is_some_and(|tool| tool.definition.is_some());
            let message = if is_defined {
                "is not registered: call HostBuilder::configured_tools".to_owned()
            } else {
                let hint = did_you_mean(name, registered.iter().copied());
                format!("no tool is called {name:?}{hint}")
            };
            errors.push(self.key_locations.error(&format!("tools.{name}"), message));
        }
        // Agents as tools.
        for (name, tool) in &self.tools {
            let Some(definition) = &tool.definition else { continue };
            let ToolKind::Agent(agent) = &definition.kind else { continue };
            for (key, message) in self.agent_tool_mistakes(agent, tool) {
                errors.push(self.key_locations.error(&format!("tools.{name}.{key}"), message));
            }
        }
        errors
    }
}

/// The tools of the host itself that hooks are asked about.
const HOST_TOOLS: [&str; 2] = [READ_VAR, "find_tools"];

fn unknown_tool_message(pattern: &str, registered: &[&str]) -> String {
    if pattern == "read_file" {
        return "there is no read_file without [tools.read_file] root = \"DIR\"".to_owned();
    }
    let known = registered.join(", ");
    format!("no tool is called {pattern:?} (known: {known})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        AgentConfig, BaseUrl, CommandConfig, ConfiguredTool, DEFAULT_AGENT, McpConfig,
        McpTransport, ModelConfig, ServiceConfig, ToolKind, ToolOverride, ToolPattern,
    };

    fn config() -> Config {
        let mut config = Config::default();
        let base_url = BaseUrl::parse("http://127.0.0.1:1/v1").unwrap();
        config.use_model("main", ModelConfig::new(base_url, "m"));
        config.agents.get_mut(DEFAULT_AGENT).unwrap().tools.clear();
        config
    }

    #[test]
    fn an_agent_cannot_have_the_name_of_a_path() {
        let vitals = |config: &mut Config| {
            let agent = config.agents[DEFAULT_AGENT].clone();
            config.agents.insert("vitals".to_owned(), agent);
        };
        let message = "agents.vitals: POST /v1/ui/vitals has this name: rename the agent, or set \
                       faces.ui.enabled = false";
        check(vitals, &[message]);
        let without_face = |config: &mut Config| {
            vitals(config);
            config.faces.ui.enabled = Some(false);
        };
        check(without_face, &[]);
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Config), expected: &[&str]) {
        let mut config = config();
        change(&mut config);
        let errors = config.check(&["clock"]).err();
        let errors: Vec<_> = errors.iter().flat_map(ConfigErrors::iter).collect();
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors, expected);
    }

    fn agent(config: &mut Config) -> &mut AgentConfig {
        config.agents.get_mut(DEFAULT_AGENT).unwrap()
    }

    #[test]
    fn values_that_were_set_in_code_are_checked() {
        check(|_| {}, &[]);
        let pattern = |config: &mut Config| agent(config).tools.push(ToolPattern::new("cl?ck"));
        check(pattern, &[]);
        let unknown = |config: &mut Config| agent(config).tools.push(ToolPattern::new("clok"));
        check(unknown, &["agents.default.tools[0]: no tool is called \"clok\" (known: clock)"]);
        check(
            |config| agent(config).limits.max_turns = Some(0),
            &["agents.default.limits.max_turns: must be at least 1"],
        );
        check(
            |config| agent(config).limits.cancel_grace = Duration::ZERO,
            &["agents.default.limits.cancel_grace: must be longer than 0"],
        );
        check(
            |config| agent(config).model = "maim".to_owned(),
            &["agents.default.model: no model is called \"maim\" (did you mean main?)"],
        );
        check(
            |config| agent(config).fallback_models.push("maim".to_owned()),
            &[
                "agents.default.fallback_models[0]: no model is called \"maim\" (did you mean main?)",
            ],
        );
        check(
            |config| agent(config).execution = Execution::Parallel { max: 0 },
            &["agents.default.execution: must allow 1 to 1024 concurrent calls"],
        );
        check(|config| config.host.max_sessions = 0, &["host.max_sessions: must be at least 1"]);
        check(|config| config.agents.clear(), &["agents: there is no agent"]);
        let attempts = |config: &mut Config| {
            config.models.get_mut("main").unwrap().max_attempts = 0;
        };
        check(attempts, &["models.main.max_attempts: must be at least 1"]);
        let bounds = |config: &mut Config| {
            config.journal.keep_idle = Some(Duration::ZERO);
            config.mcp_limits.max_questions = 101;
            config.mcp_limits.max_reconnect_wait = Duration::ZERO;
            config.models.get_mut("main").unwrap().temperature = Some(f64::NAN);
        };
        check(
            bounds,
            &[
                "journal.keep_idle: must be longer than 0",
                "mcp_limits.max_questions: must be from 1 to 100, and is 101",
                "mcp_limits.max_reconnect_wait: must be from \"100ms\" to \"1h\"",
                "models.main.temperature: must be a number from 0 to 2, not NaN",
            ],
        );
        let policy = ToolOverride {
            timeout: Some(Duration::ZERO),
            approval_timeout: Some(Duration::ZERO),
            breaker_open_for: Some(Duration::ZERO),
            ..ToolOverride::default()
        };
        let tool = |config: &mut Config| {
            config.tools.insert("clock".to_owned(), policy.clone());
        };
        check(
            tool,
            &[
                "tools.clock.timeout: must be longer than 0",
                "tools.clock.approval_timeout: must be longer than 0",
                "tools.clock.breaker_open_for: must be longer than 0",
            ],
        );
        let server = |config: &mut Config| {
            let service = ServiceConfig::new("http://127.0.0.1:1/mcp");
            let transport = McpTransport::Http { service, oauth: None };
            let policy = ToolOverride { timeout: None, breaker_open_for: None, ..policy.clone() };
            let server = McpConfig { policy, ..McpConfig::new(transport) };
            config.mcp.insert("files".to_owned(), server);
        };
        check(server, &["mcp.files.approval_timeout: must be longer than 0"]);
        let server = |config: &mut Config| {
            let (command, process) = (vec!["true".to_owned()], Box::default());
            let server = McpConfig::new(McpTransport::Stdio { command, process }).with(|new| {
                new.start_timeout = Duration::ZERO;
                new.timeout = Duration::ZERO;
                new.max_timeout = Duration::ZERO;
            });
            config.mcp.insert("files".to_owned(), server);
        };
        check(
            server,
            &[
                "mcp.files.start_timeout: must be longer than 0",
                "mcp.files.timeout: must be longer than 0",
                "mcp.files.max_timeout: must be longer than 0",
            ],
        );
        let server = |config: &mut Config| {
            let (command, process) = (vec!["true".to_owned()], Box::default());
            let mut server = McpConfig::new(McpTransport::Stdio { command, process });
            server.max_timeout = server.timeout - Duration::from_secs(1);
            config.mcp.insert("files".to_owned(), server);
        };
        check(server, &["mcp.files.max_timeout: must not be shorter than timeout"]);
    }

    #[test]
    fn a_defined_tool_that_was_not_registered_is_named() {
        let command = CommandConfig::new(["true"]);
        let definition = ConfiguredTool::new("Does nothing.", ToolKind::Command(Box::new(command)));
        let tool = ToolOverride { definition: Some(definition), ..ToolOverride::default() };
        let define = |config: &mut Config| {
            config.tools.insert("nothing".to_owned(), tool);
        };
        let expected = "tools.nothing: is not registered: call HostBuilder::configured_tools";
        check(define, &[expected]);
    }

    #[test]
    fn a_rehearsal_model_that_was_not_started_is_named() {
        let errors = Config::default().check(&["clock", "calculator", "http_get"]).unwrap_err();
        assert!(errors.to_string().contains("the offline rehearsal model was not started"));
    }
}
