//! Tools: what the model may call. One file per kind of tool.
//!
//! A [`Tool`] says once what it is ([`ToolSpec`]) and then runs, each call with its own
//! [`ToolContext`]. It knows nothing of sessions, actors or models.
//!
//! A tool of your own is a type for its arguments, what it is, and what it does:
//!
//! ```
//! use callsheet::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Text { text: String }
//!
//! struct CountWords;
//!
//! #[async_trait::async_trait]
//! impl Tool for CountWords {
//!     fn spec(&self) -> ToolSpec {
//!         ToolSpec::new::<Text>("count_words", "Counts the words of a text.").pure()
//!     }
//!
//!     async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
//!         let input: Text = context.input()?;
//!         Ok(format!("{} words", input.text.split_whitespace().count()).into())
//!     }
//! }
//! # let mut registry = callsheet::tool::ToolRegistry::new();
//! # registry.register(CountWords)?;
//! # assert!(registry.tool("count_words").is_some());
//! # Ok::<(), callsheet::tool::RegistryError>(())
//! ```
//!
//! [`ToolRegistry::register`] adds it to a host's tools, for example to the [`builtin`] ones.

mod builtin;
mod calculator;
mod clock;
mod context;
mod http_get;
mod overrides;
mod read_file;
mod registry;
mod schema;
mod variables;

use std::num::NonZeroU32;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;

pub use crate::config::{ApprovalPolicy, StartPolicy, ToolEffect};
pub use builtin::{BuiltinError, BuiltinOptions, builtin};
pub use calculator::Calculator;
pub use clock::Clock;
pub use context::{ProgressCallback, SharedVariableView, ToolContext};
pub use http_get::{AllowRule, DnsLookup, HttpGet, HttpGetOptions, InvalidAllowRule};
pub use read_file::{READ_BYTES_MAX, ReadFile};
pub use registry::{RegisteredTool, RegistryError, ToolRegistry};
pub use schema::{InputSchema, InvalidSchema};
pub use variables::{GetVariable, SetVariable};

/// Something that the model may call.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// What the tool is; asked once, when it is registered.
    fn spec(&self) -> ToolSpec;

    /// Runs one call. Arguments have passed the tool's schema; [`ToolContext::input`] reads them.
    ///
    /// The future is dropped when the call is killed; a tool that has something to tidy up
    /// watches [`ToolContext::cancelled`], which fires `cancel_grace` earlier.
    ///
    /// # Errors
    /// What went wrong, as told to the model. A panic is caught and ends this call alone.
    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError>;
}

/// What a call gave: the text that the model is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOutput(pub String);

impl<T: Into<String>> From<T> for ToolOutput {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

/// Why a call failed, as told to the model after `Error: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);

impl ToolError {
    /// An error from anything that reads as one.
    #[must_use]
    pub fn new(message: impl std::fmt::Display) -> Self {
        Self(message.to_string())
    }
}

/// What a tool is: its name and schema for the model, its manners for the schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolSpec {
    /// `[a-zA-Z0-9_-]{1,64}`: what every provider accepts.
    pub name: String,
    /// What it is for, for the model.
    pub description: String,
    /// The JSON schema of its arguments.
    pub input: InputSchema,
    /// Whether anybody can notice a call.
    pub effect: ToolEffect,
    /// When a sealed call may start; only matters for tools with effects.
    pub start: StartPolicy,
    /// Runs alone: a barrier in call order.
    pub exclusive: bool,
    /// May be run again with the same idempotency key after a crash.
    pub idempotent: bool,
    /// Identical calls of one response run each for itself.
    pub repeatable: bool,
    /// Blocks or computes: it is run on a thread of its own pool.
    pub blocking: bool,
    /// How long one call may run; the agent's `tool_timeout` where it is none.
    pub timeout: Option<Duration>,
    /// When people are asked about its calls.
    pub approval: ApprovalPolicy,
    /// How long they have to answer; then it counts as a no.
    pub approval_timeout: Duration,
    /// How many of its calls may run at once in the whole host; none: any number.
    pub max_concurrent: Option<NonZeroU32>,
}

/// How long people have to answer where the tool does not say.
const APPROVAL_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

impl ToolSpec {
    /// A tool with effects whose arguments are `Input`, with the manners that are safe for
    /// anything: it waits for a good finish and is never run twice.
    #[must_use]
    pub fn new<Input: JsonSchema>(name: &str, description: &str) -> Self {
        Self::with_schema(name, description, InputSchema::of::<Input>())
    }

    /// The same with a JSON schema made elsewhere.
    #[must_use]
    pub fn with_schema(name: &str, description: &str, input: InputSchema) -> Self {
        Self {
            name: name.to_owned(),
            description: description.to_owned(),
            input,
            effect: ToolEffect::Some,
            start: StartPolicy::OnFinish,
            exclusive: false,
            idempotent: false,
            repeatable: false,
            blocking: false,
            timeout: None,
            approval: ApprovalPolicy::NEVER,
            approval_timeout: APPROVAL_TIMEOUT,
            max_concurrent: None,
        }
    }

    /// Nothing outside this process can notice a call: it may start on its seal.
    #[must_use]
    pub fn pure(mut self) -> Self {
        self.effect = ToolEffect::None;
        self
    }

    /// A call may start on its own seal although it has effects.
    #[must_use]
    pub fn start_on_seal(mut self) -> Self {
        self.start = StartPolicy::OnSeal;
        self
    }

    /// A call runs alone, a barrier in call order.
    #[must_use]
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// A call may be run again with the same idempotency key after a crash.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Identical calls of one response run each for itself.
    #[must_use]
    pub fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }

    /// A call blocks or computes, and is run on a thread of its own pool.
    #[must_use]
    pub fn blocking(mut self) -> Self {
        self.blocking = true;
        self
    }

    /// How long one call may run.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// People are asked about each call, within [`Self::approval_timeout`].
    #[must_use]
    pub fn approval(mut self, approval: ApprovalPolicy) -> Self {
        self.approval = approval;
        self
    }

    /// How many calls may run at once in the whole host, all sessions together; 0 counts as 1.
    /// Further ones wait, the sessions in turn.
    #[must_use]
    pub fn max_concurrent(mut self, calls: u32) -> Self {
        self.max_concurrent = NonZeroU32::new(calls).or(Some(NonZeroU32::MIN));
        self
    }

    /// Whether a call can be noticed from outside.
    #[must_use]
    pub fn has_effects(&self) -> bool {
        self.effect == ToolEffect::Some
    }

    /// Whether a sealed call may start before the response has ended.
    #[must_use]
    pub fn may_start_early(&self) -> bool {
        !self.has_effects() || self.start == StartPolicy::OnSeal
    }
}
