//! The configuration of hooks (`[[hooks]]`): programs, services and Rust values that are asked at points of a run.

use std::time::Duration;

use super::key_table::{key_table, named_values};
use super::{ProcessConfig, ServiceConfig, ToolPattern};
use crate::types::HookPoint;

key_table! {
    /// The point at which a hook is asked, and what it is asked about.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use callsheet::tool::{HookPoint, HookRule};
    ///
    /// let rule = HookRule::new("guard", HookPoint::BeforeCall)
    ///     .tools(["files__*"])
    ///     .timeout(Duration::from_secs(1));
    /// assert!(rule.concerns_tool("files__read") && !rule.concerns_tool("clock"));
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct HookRule(
        /// The name in messages, logs and metrics.
        name: String,
        /// The point.
        on: HookPoint,
    ) {
        /// The names of the agents. Without it: all.
        agents: Option<Vec<String>> = None => "list of names";
        /// The tools whose calls it is asked about, for `before_call` and `after_call`. Without it: all.
        tools: Option<Vec<ToolPattern>> = None => "list of names and patterns";
        /// The time limit of an answer.
        timeout: Duration = Duration::from_secs(5), Positive;
        /// The verdict if the hook fails. `allow`: its failure is ignored.
        on_failure: HookFailure = HookFailure::Refuse, Any;
    }
}

impl HookRule {
    /// Creates the rule of a hook that is asked at this point about all agents and all tools. If the hook
    /// fails, the verdict is to refuse.
    pub fn new(name: impl Into<String>, on: HookPoint) -> Self {
        Self::with_defaults(name.into(), on)
    }

    /// Asks only about runs of these agents.
    #[must_use]
    pub fn agents(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.agents = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Asks only about calls of these tools: names or patterns such as `files__*`.
    #[must_use]
    pub fn tools(mut self, patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tools = Some(patterns.into_iter().map(ToolPattern::new).collect());
        self
    }

    /// Sets the time limit of an answer.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Makes the verdict to allow if the hook fails.
    #[must_use]
    pub fn allow_on_failure(self) -> Self {
        Self { on_failure: HookFailure::Allow, ..self }
    }

    /// Returns whether the hook is asked about runs of this agent.
    #[must_use]
    pub fn concerns_agent(&self, name: &str) -> bool {
        self.agents.as_ref().is_none_or(|agents| agents.iter().any(|agent| agent == name))
    }

    /// Returns whether the hook is asked about calls of this tool.
    #[must_use]
    pub fn concerns_tool(&self, name: &str) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.iter().any(|tool| tool.matches(name)))
    }
}

/// The verdict if a hook fails: it timed out, panicked, ended with an error, or gave no valid answer. Without effect
/// at the end of a run, when there is nothing to refuse.
///
/// Set in [`HookRule`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HookFailure {
    /// Refuse.
    #[default]
    Refuse,
    /// Allow.
    Allow,
}

named_values!(HookFailure, [("refuse", Self::Refuse), ("allow", Self::Allow)]);

/// A hook of the configuration file: a table `[[hooks]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookConfig {
    /// The point, and what it is asked about.
    pub rule: HookRule,
    /// The kind of its implementation.
    pub kind: HookKind,
}

/// The kind of a configured hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// Runs a program.
    Command {
        /// The program and its arguments. There is no shell, and there are no placeholders.
        command: Vec<String>,
        /// The environment of the program.
        process: Box<ProcessConfig>,
    },
    /// Sends an HTTP request.
    Http(ServiceConfig),
}
