//! Tools: functions that the model may call.
//!
//! A tool is a [`TypedTool`] or a closure ([`ToolSpec::into_tool`]); its input type gives the schema
//! and the parsing of its arguments, its output type the text for the model. Below both is the
//! object-safe [`Tool`], which describes itself with a [`ToolSpec`] and runs calls, also several at once, each
//! with its own [`ToolContext`]. Tools know nothing about actors or models.
//!
//! ```
//! use callsheet::tool::{ToolContext, ToolError, ToolSpec, TypedTool};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Text { text: String }
//!
//! #[derive(serde::Serialize)]
//! struct Count { words: usize }
//!
//! struct CountWords;
//!
//! impl TypedTool for CountWords {
//!     type Input = Text;
//!     type Output = Count;
//!
//!     fn spec(&self) -> ToolSpec {
//!         ToolSpec::named("count_words", "Counts the words of a text.").pure()
//!     }
//!
//!     async fn call(&self, input: Text, _context: ToolContext) -> Result<Count, ToolError> {
//!         Ok(Count { words: input.text.split_whitespace().count() })
//!     }
//! }
//! let builder = callsheet::Host::builder().tool(CountWords);
//! # let _ = builder;
//! ```
//!
//! [`HostBuilder::tool`](crate::HostBuilder::tool) offers it to the agents of a host.
//! [`ToolTest`](crate::testing::ToolTest) tests it without a host.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mod.rs` | the [`Tool`] trait |
//! | `typed.rs` | [`TypedTool`], and closures as tools |
//! | `output.rs` | [`ToolOutput`]: what the model reads: text, images, resources, or a value |
//! | `error.rs` | [`ToolError`]: a message for the model, and its source for the log |
//! | `spec.rs` | [`ToolSpec`]: name, input schema and scheduling policy of a tool |
//! | `schema/` | `ParsedSchema`: a compiled JSON Schema, and the check of a value with a limited number of steps |
//! | `context.rs` | [`ToolContext`]: what one call can read and do |
//! | `extensions.rs` | `Extensions`: values of the embedding program for its tools |
//! | `testing.rs` | feature `testing`: `ToolTest`: runs a tool without a host |
//! | `agent.rs` | [`AgentTool`]: an agent as a tool |
//! | `registry.rs` | `ToolRegistry`: the tools of a host by name |
//! | `read_var.rs` | `read_var`: reads parts of earlier results |
//! | `hook/` | [`Hook`]: code that is asked before and after calls, and can forbid them (allow, ask, deny) |
//! | `client_side.rs` | a tool that the client runs |
//! | `search.rs` | search among many tools: `find_tools` |
//! | `source.rs` | [`ToolSource`]: tools that are not known when the host starts |
//! | `server.rs` | servers of tools: what the host needs of them |
//! | `listing.rs` | feature `server`: the tools of an agent, for `callsheet tools list` and `GET /v1/tools` |
//! | `retry_after.rs` | `Retry-After`: the wait that an HTTP service asks for; also read by the model client |
//! | `overrides.rs` | the `[tools.NAME]` overrides of the configuration, applied to specs |
//! | `configured.rs` | feature `tools`: registers the tools that the configuration defines |
//! | `command/` | feature `tools`, Linux: a tool that runs a program |
//! | `http/` | feature `tools`: HTTP requests to public and allowed addresses only |
//! | `http_request.rs` | feature `tools`: a tool that sends an HTTP request |
//! | `redaction.rs` | feature `tools`: removes the secrets of the host from results of configured tools and MCP servers |
//! | `defined_input.rs` | feature `tools`: the schema and the defaults of a configured tool's arguments |
//! | `template.rs` | feature `tools`: texts with placeholders for arguments |
//! | `pinning.rs` | feature `mcp`, Linux: definitions of servers' tools that were accepted: `callsheet-tools.lock` |
//! | `mcp/` | feature `mcp`, Linux: tools of servers of the Model Context Protocol |
//! | `builtin/` | feature `tools`: `calculator`, `clock`, `http_get`, `read_file`, `get_variable`, `set_variable` |

mod agent;
#[cfg(feature = "tools")]
mod builtin;
mod client_side;
#[cfg(all(feature = "tools", target_os = "linux"))]
mod command;
#[cfg(feature = "tools")]
mod configured;
mod context;
#[cfg(feature = "tools")]
mod defined_input;
mod error;
mod extensions;
mod hook;
#[cfg(feature = "tools")]
mod http;
#[cfg(feature = "tools")]
mod http_request;
#[cfg(feature = "server")]
mod listing;
#[cfg(all(feature = "mcp", target_os = "linux"))]
mod mcp;
mod output;
mod overrides;
#[cfg(all(feature = "mcp", target_os = "linux"))]
mod pinning;
mod read_var;
#[cfg(feature = "tools")]
mod redaction;
mod registry;
mod retry_after;
mod schema;
mod search;
mod server;
mod source;
mod spec;
#[cfg(feature = "tools")]
mod template;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod typed;

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;

pub(crate) use agent::AgentCaller;
pub use agent::AgentTool;

pub use crate::config::ApprovalPolicy;
#[doc(hidden)]
pub use crate::config::{StartPolicy, ToolEffect};
use crate::types::SessionId;
#[cfg(feature = "tools")]
pub use builtin::BuiltinOptions;

pub use crate::config::HookRule;
pub use crate::types::HookPoint;

pub use crate::types::{Answer, Question, QuestionKind};
#[cfg(feature = "tools")]
#[doc(hidden)]
pub use builtin::{
    BuiltinError, Calculator, Clock, GetVariable, HttpGet, HttpGetOptions, READ_BYTES_MAX,
    ReadFile, SetVariable, builtin,
};
pub(crate) use client_side::ClientSideTool;
pub use context::ToolContext;
pub(crate) use context::{
    AskCallback, ProgressCallback, ReferenceReader, SharedVariableView, ToolContextParts,
};
pub(crate) use error::NextAttempt;
pub use error::ToolError;
#[doc(hidden)]
pub use extensions::Extensions;
pub(crate) use hook::RegisteredHook;
pub use hook::{Hook, HookAnswer, HookError, HookInput};
#[cfg(feature = "tools")]
#[doc(hidden)]
pub use http::{AllowRule, DnsLookup, HttpClientError, InvalidAllowRule};
#[cfg(feature = "cli")]
pub(crate) use listing::NOT_NAMED;
#[cfg(feature = "server")]
pub(crate) use listing::{
    AgentTools, ListedServer, ListedTool, ModelRefusal, definition_tokens, list_tools,
};
pub use output::ToolOutput;
#[cfg(all(feature = "mcp", target_os = "linux"))]
pub(crate) use pinning::{LOCK_FILE, PinProblem, PinnedTools, ToolLock, check_instructions};
pub(crate) use read_var::ReadVar;
#[doc(hidden)]
pub use registry::{RegisteredKind, RegisteredTool, RegistryError, ToolRegistry};
pub(crate) use retry_after::retry_after;
#[doc(hidden)]
pub use schema::ParsedSchema;
#[cfg(feature = "rehearsal")]
pub(crate) use schema::{CompiledSchema, FormatCheck, PathSegment, Violation};
pub(crate) use search::{RESERVED_NAMES, find_tools, use_tool_spec};
pub(crate) use server::{
    FrozenList, SERVER_SEPARATOR, ServerListing, ServerObservation, ServerObserver, ServerState,
    ServerStatus, ServerToolDefinition, ToolServer,
};
pub use source::{ToolSource, ToolSourceContext};
pub use spec::ToolSpec;
#[cfg(feature = "tools")]
pub(crate) use template::Template;
pub use typed::TypedTool;

/// A function that the model may call: the object-safe form, with the arguments as JSON. A tool whose
/// schema is known at compile time is shorter as a [`TypedTool`] or a closure ([`ToolSpec::into_tool`]).
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// Returns the tool's name, schema and scheduling policy. Called at registration; a later change has
    /// no effect.
    fn spec(&self) -> ToolSpec;

    /// Runs one call. The arguments have passed the tool's schema; [`ToolContext::input`] reads
    /// them.
    ///
    /// The future is dropped when the call is killed. A tool with something to clean up waits for
    /// [`ToolContext::cancelled`], which fires `cancel_grace` earlier.
    ///
    /// # Errors
    /// If the call fails; the model reads the message. A panic is caught and ends only this call.
    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError>;

    /// Returns a future that ends when calls of this session can be sent, if they have to wait. Called only if
    /// `ToolSpec::waits_for_server` is set or the tool is limited (`ToolSpec::is_limited`).
    #[doc(hidden)]
    fn ready(&self, _session: &SessionId) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

#[async_trait]
impl<T: Tool + ?Sized> Tool for Arc<T> {
    fn spec(&self) -> ToolSpec {
        (**self).spec()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        (**self).run(context).await
    }

    fn ready(&self, session: &SessionId) -> Option<BoxFuture<'static, ()>> {
        (**self).ready(session)
    }
}
