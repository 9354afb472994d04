//! Agents as tools: `[tools.NAME]` with `kind = "agent"`.

use super::Share;
use super::key_table::{key_table, named_values};

key_table! {
    /// An agent as a tool. A call runs the agent in a child session, and returns its final text.
    ///
    /// `AgentTool` is the tool.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub struct AgentToolConfig(
        /// The name of the agent.
        agent: String => "name of an agent; required",
    ) {
        /// Maximum number of calls of agents between the root session and a child. If the agent tools on the path to a child have
        /// different values, the lowest applies.
        max_depth: u32 = 1, Positive;
        /// Maximum number of child sessions below one run of the root session, at all depths. If the agent tools on the
        /// path to a child have different values, the lowest applies.
        max_children: u32 = 8, Positive;
        /// The share of the parent run's remaining tokens, calls and time that a child may use.
        share_of_budget: Share = Share::HALF => "share from 0.001 to 1";
        /// The events of the child that the watchers of its parent receive, besides approvals: none, those about tool
        /// calls and limits, or all.
        agent_events: AgentEvents = AgentEvents::Tools, Any;
    }
}

impl AgentToolConfig {
    /// Configures an agent as a tool, with default values.
    pub fn new(agent: impl Into<String>) -> Self {
        Self::with_defaults(agent.into())
    }
}

crate::types::impl_with!(AgentToolConfig);

/// The events of a child session that the watchers of its parent receive. Approvals are always among them.
///
/// Set in the [`AgentToolConfig`] of an `AgentTool`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AgentEvents {
    /// Only approvals.
    None,
    /// Those about tool calls and limits.
    #[default]
    Tools,
    /// All.
    All,
}

named_values!(AgentEvents, [("none", Self::None), ("tools", Self::Tools), ("all", Self::All)]);
