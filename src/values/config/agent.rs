//! The configuration of an agent (`[agents.NAME]`), and patterns of tool names.

use std::sync::Arc;

use serde_json::Value;
#[cfg(feature = "toml")]
use toml::de::DeValue;

use super::REHEARSAL;
use super::context::ContextPolicy;
#[cfg(feature = "toml")]
use super::file::values::{self, Parsed};
use super::key_table::{self, key_table, named_values};
use super::limits::Limits;
use crate::types::Execution;

key_table! {
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
    pub struct AgentConfig(
        /// The name of the configured model. Required if there are several.
        model: String => "name of a model",
    ) {
        /// Names of the fallback models. When the attempts with a model are used up, or after an error that is not
        /// retried, the turn continues with the next one.
        fallback_models: Vec<String> = Vec::new() => "list of names of models";
        /// The system prompt. Empty means none.
        system: String = String::new(), Any;
        /// Names of the tools that it may call, or patterns: `*` stands for any characters, `?` for one. Empty means
        /// none.
        tools: Vec<ToolPattern> = Vec::new() => "list of names and patterns";
        /// The way in which tools are offered to the model. `all`: each request holds all definitions. `search`: the
        /// model finds those that only a pattern matched. `auto`: `search` if there are more than 30.
        tool_loading: ToolLoading = ToolLoading::Auto, Any;
        /// The execution mode of tool calls.
        execution: Execution = Execution::Sequential, Any;
        /// True if a response may have more than one tool call. If not, only the first is kept.
        multi_tool_calls: bool = true, Any;
        /// The consequence of a refused answer. `end`: the run ends as `refused`. `fallback`: the next of
        /// `fallback_models` is asked.
        on_refusal: OnRefusal = OnRefusal::End, Any;
        /// True if calls of pure tools, and of tools with `start = "on_seal"`, may start before the end of their
        /// response.
        early_start: bool = true, Any;
        /// True if a run's overrides may exceed the agent's configuration, and replace its system prompt and temperature.
        allow_overrides: bool = false, Any;
        /// The JSON schema of the answers of its runs. The file names a file that holds it.
        output_schema: Option<Arc<Value>> = None => "path";
        /// If an answer does not match the schema, the model is asked once for an answer in this form, and then again at
        /// most this number of times.
        output_retries: u32 = 2, UpTo(10);
        /// The limits of its runs and turns.
        limits: Limits = Limits::default();
        /// The rules that keep the context of its sessions small.
        context: ContextPolicy = ContextPolicy::default();
    }
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

named_values!(ToolLoading, [("all", Self::All), ("search", Self::Search), ("auto", Self::Auto)]);
named_values!(OnRefusal, [("end", Self::End), ("fallback", Self::Fallback)]);

impl key_table::Value for Execution {
    fn form() -> String {
        let max = Self::PARALLEL_MAX;
        format!("\"sequential\" or {{ parallel = N }} with N from 1 to {max}")
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Sequential => "\"sequential\"".to_owned(),
            Self::Parallel { max } => format!("{{ parallel = {max} }}"),
        }
    }

    #[cfg(feature = "toml")]
    fn parse(value: &DeValue<'_>) -> Parsed<Self> {
        const MAX: u32 = Execution::PARALLEL_MAX;
        let invalid = || values::wrong_type(&Self::form(), value);
        if let Some(text) = value.as_str() {
            return text.parse().map_err(|_| invalid());
        }
        let table = value.as_table().filter(|table| table.len() == 1).ok_or_else(invalid)?;
        let max = table.get("parallel").ok_or_else(invalid)?;
        match values::unsigned::<u32>(max.get_ref()) {
            Ok(max) if (1..=MAX).contains(&max) => Ok(Self::Parallel { max }),
            Ok(max) => Err(format!("parallel is a number from 1 to {MAX}, not {max}")),
            Err(error) => Err(format!("parallel: {error}")),
        }
    }
}

impl AgentConfig {
    /// Creates an agent without tools and system prompt that uses `model`.
    #[must_use]
    pub fn new(model: impl Into<String>) -> Self {
        Self::with_defaults(model.into())
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
