//! Reads `[[hooks]]`.

use std::collections::BTreeMap;

use toml::de::DeValue;

use super::process::{EnvLookup, command, service};
use super::source::Section;
use super::values::{self, Parsed};
use crate::config::key_table::KeyTable as _;
use crate::config::{
    AgentConfig, DEFAULT_AGENT, HookConfig, HookKind, HookRule, ProcessConfig, ServiceConfig,
    ToolPattern,
};
use crate::types::HookPoint;

/// The value of `kind`.
#[derive(Clone, Copy)]
enum HookKindName {
    Command,
    Http,
}

const KINDS: [(&str, HookKindName); 2] =
    [("command", HookKindName::Command), ("http", HookKindName::Http)];

impl HookConfig {
    /// Reads a hook. It may name only the agents in `known_agents`, or the default agent if there are none. Returns
    /// `None` if the point or the kind is missing or wrong.
    pub(super) fn read(
        section: &Section<'_, '_>,
        known_agents: &BTreeMap<String, AgentConfig>,
        env: EnvLookup<'_>,
    ) -> Option<Self> {
        let on = section.read("on", |value| values::one_of(value, &HookPoint::WORDS));
        section.require("on", &on);
        let kind_name = section.read("kind", |value| values::one_of(value, &KINDS));
        section.require("kind", &kind_name);
        let name = section.read("name", values::non_empty_string);
        let empty = "must not be empty: leave it out for all, or remove the hook";
        let agents =
            section.non_empty_list("agents", empty, |value| known_agent(value, known_agents));
        let tools = section.non_empty_list("tools", empty, values::non_empty_string);
        if tools.is_some() && on.is_some_and(|on| !on.concerns_call()) {
            section.add_error("tools", "needs on = \"before_call\" or \"after_call\"");
        }
        let kind = kind_name.map(|name| match name {
            HookKindName::Command => HookKind::Command {
                command: command(section),
                process: Box::new(ProcessConfig::read(section, env)),
            },
            HookKindName::Http => http(section, env),
        });
        let name = name.or(kind.as_ref().map(HookKind::default_name)).unwrap_or_default();
        let mut rule = HookRule::new(name, on.unwrap_or(HookPoint::BeforeCall));
        rule.read_keys(section);
        rule.agents = agents;
        rule.tools = tools.map(|tools| tools.into_iter().map(ToolPattern::new).collect());
        // The keys of a hook depend on its kind.
        if kind.is_some() {
            section.report_unknown_keys();
        }
        let (_, kind) = (on?, kind?);
        Some(Self { rule, kind })
    }
}

/// Parses the name of an agent. A file without agents has only the default agent.
fn known_agent(value: &DeValue<'_>, agents: &BTreeMap<String, AgentConfig>) -> Parsed<String> {
    let name = values::non_empty_string(value)?;
    let known: Vec<&str> = match agents.is_empty() {
        true => vec![DEFAULT_AGENT],
        false => agents.keys().map(String::as_str).collect(),
    };
    if known.contains(&name.as_str()) {
        return Ok(name);
    }
    Err(format!("no agent is called {name:?} (known: {})", known.join(", ")))
}

fn http(section: &Section<'_, '_>, env: EnvLookup<'_>) -> HookKind {
    let url = section.read("url", values::non_empty_string);
    section.require("url", &url);
    HookKind::Http(service(section, url.unwrap_or_default(), env))
}

impl HookKind {
    /// Returns the file name of the program, or the authority of the URL: the host with its port.
    fn default_name(&self) -> String {
        match self {
            Self::Command { command, .. } => {
                let program = command.first().map_or("", String::as_str);
                program.rsplit('/').next().unwrap_or(program).to_owned()
            }
            Self::Http(ServiceConfig { url, .. }) => {
                let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
                rest.split(['/', '?', '#']).next().unwrap_or(rest).to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{Config, HookFailure};

    fn parse(text: &str) -> Result<Config, String> {
        let env = |name: &str| (name == "SET").then(|| "value".to_owned());
        Config::parse(text, "etc/callsheet.toml", &env).map_err(|error| error.to_string())
    }

    #[test]
    fn a_hook_has_all_keys_of_its_table() {
        let text = r#"
[[hooks]]
on = "before_call"
kind = "command"
command = ["./guard", "-v"]
agents = ["default"]
tools = ["files__*"]
timeout = "2s"
on_failure = "allow"
cwd = "work"
secret_env = { TOKEN = "SET" }
sandbox = "read"

[[hooks]]
on = "after_call"
name = "audit"
kind = "http"
url = "https://audit.example.com/x"
headers = { "x-team" = "search" }
secret_headers = { authorization = "SET" }
"#;
        let config = parse(text).unwrap();
        let [guard, audit] = &config.hooks[..] else { panic!("two") };
        let HookConfig { rule, kind: HookKind::Command { command, process } } = guard else {
            panic!("a command")
        };
        assert_eq!((&*rule.name, rule.on), ("guard", HookPoint::BeforeCall));
        assert_eq!((rule.timeout, rule.on_failure), (Duration::from_secs(2), HookFailure::Allow));
        assert!(rule.concerns_agent("default") && !rule.concerns_agent("other"));
        assert!(rule.concerns_tool("files__read") && !rule.concerns_tool("clock"));
        assert_eq!(*command, ["etc/./guard", "-v"]);
        assert_eq!(process.cwd, std::path::Path::new("etc/work"));
        let HookConfig { rule, kind: HookKind::Http(service) } = audit else { panic!("http") };
        assert_eq!((&*rule.name, rule.on_failure), ("audit", HookFailure::Refuse));
        assert_eq!(rule.timeout, Duration::from_secs(5));
        assert!(rule.concerns_agent("default") && rule.concerns_tool("clock"));
        assert_eq!(service.url, "https://audit.example.com/x");
        assert_eq!((service.headers.len(), service.secret_headers.len()), (1, 1));
    }

    #[test]
    fn wrong_hooks_name_line_and_remedy() {
        let hook = "[[hooks]]\non = \"before_call\"\nkind = \"command\"\ncommand = [\"true\"]\n";
        for (text, expected) in [
            (
                "[[hooks]]\non = \"before_cal\"\nkind = \"command\"\ncommand = [\"true\"]",
                "2: hooks[0].on: must be \"before_request\", \"before_call\", \"after_call\", \"after_turn\" or \"run_end\", not \"before_cal\"",
            ),
            (
                "[[hooks]]\non = \"delta\"\nkind = \"command\"\ncommand = [\"true\"]",
                "2: hooks[0].on: must be \"before_request\", \"before_call\", \"after_call\", \"after_turn\" or \"run_end\", not \"delta\"",
            ),
            ("[[hooks]]\non = \"before_call\"", "1: hooks[0].kind: is missing"),
            (
                "[[hooks]]\non = \"before_call\"\ncommand = [\"true\"]",
                "1: hooks[0].kind: is missing",
            ),
            ("hooks = 1", "1: hooks: must be a list of tables ([[hooks]]), not 1"),
            ("hooks = [1]", "1: hooks[0]: must be a table, not 1"),
            (
                &format!("{hook}tools = []"),
                "5: hooks[0].tools: must not be empty: leave it out for all, or remove the hook",
            ),
            (
                &format!("{hook}agents = [\"nobody\"]"),
                "5: hooks[0].agents[0]: no agent is called \"nobody\" (known: default)",
            ),
            (&format!("{hook}agents = [\"\"]"), "5: hooks[0].agents[0]: must not be empty"),
            (
                &format!("{hook}agents = [\"\", \"default\", \"nobody\"]"),
                "5: hooks[0].agents[0]: must not be empty\n\
                 etc/callsheet.toml:5: hooks[0].agents[2]: no agent is called \"nobody\" (known: default)",
            ),
            (&format!("{hook}timeout = \"0s\""), "5: hooks[0].timeout: must be longer than 0"),
            (
                &format!("{hook}on_failure = \"ask\""),
                "5: hooks[0].on_failure: must be \"refuse\" or \"allow\", not \"ask\"",
            ),
            (&format!("{hook}url = \"x\""), "5: hooks[0].url: unknown key"),
            (
                &hook.replace("command = [\"true\"]", ""),
                "1: hooks[0].command: is missing: a list of the program and its arguments",
            ),
        ] {
            let expected = format!("etc/callsheet.toml:{expected}");
            assert_eq!(parse(text).unwrap_err(), expected, "{text}");
        }
    }
}
