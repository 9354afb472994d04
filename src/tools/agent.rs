//! An agent as a tool: a call runs the agent in a session of its own, the child of the caller's session.
//!
//! The host runs the child ([`AgentCaller`]); `turn::agent_calls` decides what it may use.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use callsheet_values::config::{AgentEvents, AgentToolConfig, Share};

/// An agent as a tool. Its argument is a text, `input`. Its result is the final text of the child, or, where the
/// agent has an `output_schema`, the JSON value. If the run of the child ends without an answer, the result is an
/// error with the reason.
///
/// Two calls with the same text in one response run one child, unless another call with effects is between them.
/// The call has effects, and has no time limit but that of its budget, unless the configuration sets a `timeout`.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use callsheet::model::ModelReply;
/// use callsheet::prelude::*;
/// use callsheet::testing::FakeModel;
/// use callsheet::tool::AgentTool;
/// use serde_json::json;
///
/// let ask = ModelReply::call("researcher", json!({ "input": "Who wrote Emma?" }));
/// let model = FakeModel::replies([ask, ModelReply::text("Jane Austen."), ModelReply::text("It was her.")]);
/// let researcher = AgentTool::new("researcher", "Finds facts.", "researcher");
/// let host = Host::builder()
///     .model_source("fake", model)
///     .agent("default", AgentConfig::new("fake").tools(["researcher"]))
///     .agent("researcher", AgentConfig::new("fake"))
///     .register(researcher)
///     .start()
///     .await?;
/// let report = host.open_session("demo").await?.run("Ask the researcher.").await?;
/// assert_eq!(report.calls[0].result, "Jane Austen.");
/// assert_eq!(report.text()?, "It was her.");
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct AgentTool {
    name: String,
    description: String,
    config: AgentToolConfig,
}

/// The arguments of an agent.
#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "the host reads the arguments")]
struct AgentInput {
    /// The task. The agent sees nothing else of this conversation.
    input: String,
}

impl AgentTool {
    /// Offers the agent `agent` as the tool `name`.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        agent: impl Into<String>,
    ) -> Self {
        Self::with_config(name, description, AgentToolConfig::new(agent))
    }

    /// Makes a tool of this configuration.
    pub fn with_config(
        name: impl Into<String>,
        description: impl Into<String>,
        config: AgentToolConfig,
    ) -> Self {
        Self { name: name.into(), description: description.into(), config }
    }

    /// Sets the maximum depth of a child session below the root session. Default: 1. If the agent tools on
    /// the path to a child have different values, the lowest applies.
    #[must_use]
    pub fn max_depth(mut self, depth: u32) -> Self {
        self.config.max_depth = depth;
        self
    }

    /// Sets the maximum number of child sessions below one run of the root session, at all depths.
    /// Default: 8. If the agent tools on the path to a child have different values, the lowest applies.
    #[must_use]
    pub fn max_children(mut self, sessions: u32) -> Self {
        self.config.max_children = sessions;
        self
    }

    /// Sets the share that a child may use of what the run of its parent has left: of tokens, calls and
    /// time. Not zero. Default: a half.
    #[must_use]
    pub fn share_of_budget(mut self, share: Share) -> Self {
        self.config.share_of_budget = share;
        self
    }

    /// Sends all events of the child to the subscribers of the parent's events. By default they receive those about
    /// tool calls, limits and approvals.
    #[must_use]
    pub fn all_events(mut self) -> Self {
        self.config.agent_events = AgentEvents::All;
        self
    }

    /// Sends no events of the child to the subscribers of the parent's events but those about approvals.
    #[must_use]
    pub fn no_events(mut self) -> Self {
        self.config.agent_events = AgentEvents::None;
        self
    }
}

#[async_trait]
impl Tool for AgentTool {
    fn spec(&self) -> ToolSpec {
        let mut spec = ToolSpec::new::<AgentInput>(self.name.clone(), self.description.clone());
        // A call that runs again after a crash finds the run of its child.
        spec = spec.idempotent();
        spec.agent = Some(Box::new(self.config.clone()));
        spec
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        match context.agent_caller() {
            Some(caller) => caller.call(&context).await,
            None => Err(ToolError::new("an agent can only be called in a session of a host")),
        }
    }
}

/// Runs the child of a call.
#[async_trait]
pub trait AgentCaller: Send + Sync {
    /// Runs the child to its end. Finds the child if the call has run before a crash. Once the call is cancelled,
    /// stops the child, and returns when it and all its descendants have ended.
    async fn call(&self, context: &ToolContext) -> Result<ToolOutput, ToolError>;
}
