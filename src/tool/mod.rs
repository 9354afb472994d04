//! Tools: functions that the model may call.
//!
//! A [`Tool`] describes itself once with a [`ToolSpec`] and then runs one call at a time, each with
//! its own [`ToolContext`]. Tools know nothing about sessions, actors or models.
//!
//! To write a tool, define a type for its arguments, its spec and its `run` method:
//!
//! ```
//! use callsheet::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct CountWordsInput { text: String }
//!
//! struct CountWords;
//!
//! #[async_trait::async_trait]
//! impl Tool for CountWords {
//!     fn spec(&self) -> ToolSpec {
//!         ToolSpec::new::<CountWordsInput>("count_words", "Counts the words of a text.").pure()
//!     }
//!
//!     async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
//!         let input: CountWordsInput = context.input()?;
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
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mod.rs` | the [`Tool`] trait, its output and its error |
//! | `spec.rs` | [`ToolSpec`]: name, input schema and scheduling policy of a tool |
//! | `schema.rs` | [`InputSchema`]: a JSON schema with its compiled validator |
//! | `context.rs` | [`ToolContext`]: what one call can read and do |
//! | `registry.rs` | [`ToolRegistry`]: the tools of a host by name |
//! | `overrides.rs` | the `[tools.NAME]` overrides of the configuration, applied to specs |
//! | `builtin/` | feature `tools`: `calculator`, `clock`, `http_get`, `read_file`, `get_variable`, `set_variable` |

#[cfg(feature = "tools")]
mod builtin;
mod context;
mod overrides;
mod registry;
mod schema;
mod spec;

use async_trait::async_trait;

pub use crate::config::{ApprovalPolicy, StartPolicy, ToolEffect};
#[cfg(feature = "tools")]
pub use builtin::{
    AllowRule, BuiltinError, BuiltinOptions, Calculator, Clock, DnsLookup, GetVariable, HttpGet,
    HttpGetOptions, InvalidAllowRule, READ_BYTES_MAX, ReadFile, SetVariable, builtin,
};
pub use context::{ProgressCallback, SharedVariableView, ToolContext};
pub use registry::{RegisteredTool, RegistryError, ToolRegistry};
pub use schema::{InputSchema, InvalidSchema};
pub use spec::ToolSpec;

/// A function that the model may call.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// Returns the tool's name, schema and scheduling policy. Called once, at registration.
    fn spec(&self) -> ToolSpec;

    /// Runs one call. The arguments have passed the tool's schema; [`ToolContext::input`] reads
    /// them.
    ///
    /// The future is dropped when the call is killed. A tool with something to clean up waits for
    /// [`ToolContext::cancelled`], which fires `cancel_grace` earlier.
    ///
    /// # Errors
    /// When the call fails; the model reads the message. A panic is caught and ends only this call.
    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError>;
}

/// The result text of a call that succeeded; the model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOutput(pub String);

impl<T: Into<String>> From<T> for ToolOutput {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

/// The message of a call that failed; the model reads it after `Error: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);

impl ToolError {
    /// Makes an error from a message or another error.
    #[must_use]
    pub fn new(message: impl std::fmt::Display) -> Self {
        Self(message.to_string())
    }
}
