//! The configuration of an agent (`[agents.NAME]`), and patterns of tool names.

use std::sync::Arc;

use serde_json::Value;

use super::REHEARSAL;
use super::context::ContextPolicy;
use super::limits::Limits;
use crate::types::Execution;

/// Default of `output_retries`.
const OUTPUT_RETRIES: u32 = 2;

/// The configuration of one agent: models, tools, limits and execution mode.
///
/// ```
/// use callsheet::config::{AgentConfig, Execution, Limits};
///
/// let agent = AgentConfig::new("main")
///     .system("You are careful.")
///     .tools(["clock", "calc*"])
///     .limits(Limits::default().with(|limits| limits.max_turns = Some(5)))
///     .with(|agent| agent.execution = Execution::Parallel { max: 4 });
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AgentConfig {
    /// The name of the configured model.
    pub model: String,
    /// Names of the fallback models. When the attempts with a model are used up, or after an error that is not
    /// retried, the turn continues with the next one.
    pub fallback_models: Vec<String>,
    /// The system prompt. Empty means none.
    pub system: String,
    /// Patterns of the tools that it may call. Empty means none.
    pub tools: Vec<ToolPattern>,
    /// The way in which tools are offered to the model.
    pub tool_loading: ToolLoading,
    /// True if a response may have more than one tool call. If not, only the first is kept.
    pub multi_tool_calls: bool,
    /// The execution mode of tool calls.
    pub execution: Execution,
    /// True if calls of pure tools, and of tools with `start = "on_seal"`, may start before the end of their
    /// response.
    pub early_start: bool,
    /// The consequence of a refused answer.
    pub on_refusal: OnRefusal,
    /// True if a run's overrides may exceed the agent's configuration.
    pub allow_overrides: bool,
    /// The limits of its runs and turns.
    pub limits: Limits,
    /// The rules that keep the context of its sessions small.
    pub context: ContextPolicy,
    /// The JSON schema of the answers of its runs.
    pub output_schema: Option<Arc<Value>>,
    /// If an answer does not match the schema, the model is asked once for an answer in this form, and then again
    /// at most this number of times.
    pub output_retries: u32,
}

/// The way in which an agent offers its tools to the model.
///
/// ```
/// use callsheet::config::{AgentConfig, ToolLoading};
///
/// let agent = AgentConfig::new("main").with(|agent| agent.tool_loading = ToolLoading::Search);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ToolLoading {
    /// Each request holds all definitions.
    All,
    /// Each request holds the tools that the agent names one by one. Tools that only a pattern with `*` or `?`
    /// matches are left out: the model finds them with `find_tools`, and calls them with `use_tool`.
    Search,
    /// `Search` if there are more than 30 tools, else `All`. Decided once for a session.
    #[default]
    Auto,
}

/// The consequence of an answer that the model or its service refused.
///
/// ```
/// use callsheet::config::{AgentConfig, OnRefusal};
///
/// let agent = AgentConfig::new("main").with(|agent| agent.on_refusal = OnRefusal::Fallback);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnRefusal {
    /// The run ends as `refused`.
    #[default]
    End,
    /// The next fallback model is asked, unless a call with effects has started. Text that was shown is void. The run
    /// ends as `refused` if no model is left.
    Fallback,
}

impl AgentConfig {
    /// Creates an agent without tools and system prompt that uses `model`.
    #[must_use]
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            fallback_models: Vec::new(),
            system: String::new(),
            tools: Vec::new(),
            tool_loading: ToolLoading::Auto,
            multi_tool_calls: true,
            execution: Execution::Sequential,
            early_start: true,
            on_refusal: OnRefusal::End,
            allow_overrides: false,
            limits: Limits::default(),
            context: ContextPolicy::default(),
            output_schema: None,
            output_retries: OUTPUT_RETRIES,
        }
    }

    /// Sets the system prompt.
    #[must_use]
    pub fn system(self, text: impl Into<String>) -> Self {
        Self { system: text.into(), ..self }
    }

    /// Sets the tools that the agent is offered, by name or pattern: `*` matches any characters, `?`
    /// matches one.
    #[must_use]
    pub fn tools<T: Into<String>>(self, patterns: impl IntoIterator<Item = T>) -> Self {
        Self { tools: patterns.into_iter().map(ToolPattern::new).collect(), ..self }
    }

    /// If `on`, requests leave out the tools that only a pattern with `*` or `?` matches: the model finds them with
    /// `find_tools`, and calls them with `use_tool`. Otherwise each request offers all tools. By default, the model
    /// searches if the agent has more than 30 tools.
    #[must_use]
    pub fn search_tools(self, on: bool) -> Self {
        let tool_loading = if on { ToolLoading::Search } else { ToolLoading::All };
        Self { tool_loading, ..self }
    }

    /// Sets the limits of its runs.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Returns the agent of a configuration without agents.
    pub(super) fn default_with(model: &str) -> Self {
        let tools = ["clock", "calculator", "http_get"].map(ToolPattern::new);
        let tools = if cfg!(feature = "tools") { tools.to_vec() } else { Vec::new() };
        Self { tools, ..Self::new(model) }
    }

    /// Returns the names of its models in the order of use.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.model).chain(&self.fallback_models).map(String::as_str)
    }

    pub(super) fn uses_rehearsal(&self) -> bool {
        self.models().any(|model| model == REHEARSAL)
    }
}

/// A pattern for tool names: `*` matches any characters, `?` matches one.
///
/// ```
/// use callsheet::config::ToolPattern;
///
/// assert!(ToolPattern::new("get_*").matches("get_variable"));
/// assert!(!ToolPattern::new("get_*").matches("set_variable"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolPattern {
    /// The text of the pattern.
    pub text: String,
}

impl ToolPattern {
    /// Creates a pattern from its text, which may be a plain name.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }

    /// Returns whether the pattern is the name of one tool.
    #[must_use]
    pub fn is_name(&self) -> bool {
        !self.text.contains(['*', '?'])
    }

    /// Returns whether the pattern matches some name that is longer than `beginning` and begins with it. `beginning`
    /// is the prefix of a server whose tools are not known yet.
    #[must_use]
    pub fn may_match_longer(&self, beginning: &str) -> bool {
        let (pattern, beginning) = (self.text.as_bytes(), beginning.as_bytes());
        let before_star = pattern.iter().position(|byte| *byte == b'*').unwrap_or(pattern.len());
        let has_star = before_star < pattern.len();
        let mut pairs = pattern.iter().take(before_star).zip(beginning);
        pairs.all(|(p, byte)| *p == b'?' || p == byte)
            && (has_star || before_star > beginning.len())
    }

    /// Returns whether the pattern matches a name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.text.as_bytes(), name.as_bytes());
        let (mut pattern_at, mut name_at) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        // Backtracks to the last star only, so the cost is at most the product of the lengths.
        while let Some(byte) = name.get(name_at) {
            match pattern.get(pattern_at) {
                Some(b'*') => {
                    star = Some((pattern_at, name_at));
                    pattern_at += 1;
                }
                Some(p) if *p == b'?' || p == byte => {
                    (pattern_at, name_at) = (pattern_at + 1, name_at + 1);
                }
                Some(_) | None => {
                    let Some((star_pattern_at, star_name_at)) = star else { return false };
                    star = Some((star_pattern_at, star_name_at + 1));
                    (pattern_at, name_at) = (star_pattern_at + 1, star_name_at + 1);
                }
            }
        }
        pattern.iter().skip(pattern_at).all(|byte| *byte == b'*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_may_match_a_longer_name() {
        for (pattern, beginning, expected) in [
            ("*", "files__", true),
            ("files__*", "files__", true),
            ("files__read", "files__", true),
            ("f*", "files__", true),
            ("?iles__r", "files__", true),
            ("*_read", "files__", true),
            ("files", "files__", false),
            ("files__", "files__", false),
            ("file*", "git__", false),
            ("git__log", "files__", false),
        ] {
            let found = ToolPattern::new(pattern).may_match_longer(beginning);
            assert_eq!(found, expected, "{pattern} {beginning}");
        }
    }

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("clock", "clock", true),
            ("clock", "clocks", false),
            ("clock", "cloc", false),
            ("*", "", true),
            ("*", "anything", true),
            ("http_*", "http_get", true),
            ("http_*", "https_get", false),
            ("*_get", "http_get_get", true),
            ("a*b*c", "a_b_b_c", true),
            ("a*b*c", "a_c_b", false),
            ("?lock", "clock", true),
            ("?lock", "lock", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(ToolPattern::new(pattern).matches(name), expected, "{pattern} {name}");
        }
    }
}
