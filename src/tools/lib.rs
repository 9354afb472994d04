//! Tools: functions that the model may call.
//!
//! A tool is a [`TypedTool`] or a closure ([`IntoTool`]); its input type gives the schema
//! and the parsing of its arguments, its output type the text for the model. Below both is the
//! object-safe [`Tool`], which describes itself with a [`ToolSpec`] and runs calls, also several at once, each
//! with its own [`ToolContext`]. Tools know nothing about actors or models.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `lib.rs` | the [`Tool`] trait |
//! | `typed.rs` | [`TypedTool`], and closures as tools |
//! | `output.rs` | [`ToolOutput`]: what the model reads: text, images, resources, or a value |
//! | `error.rs` | [`ToolError`]: a message for the model, and its source for the log |
//! | `context.rs` | [`ToolContext`]: what one call can read and do |
//! | `extensions.rs` | `Extensions`: values of the embedding program for its tools |
//! | `testing.rs` | `ToolTest`: runs a tool without a host |
//! | `launcher/` | feature `tools`: starts the programs of tools through a process that kills them with all descendants; sandboxes |
//! | `tls.rs` | HTTP clients with TLS |
//! | `agent.rs` | [`AgentTool`]: an agent as a tool |
//! | `registry.rs` | `ToolRegistry`: the tools of a host by name |
//! | `read_var.rs` | `read_var`: reads parts of earlier results |
//! | `hook/` | [`Hook`]: code that is asked before and after calls, and can forbid them (allow, ask, deny) |
//! | `client_side.rs` | a tool that the client runs |
//! | `search.rs` | search among many tools: `find_tools` |
//! | `source.rs` | [`ToolSource`]: tools that are not known when the host starts |
//! | `server.rs` | servers of tools: what the host needs of them |
//! | `listing.rs` | the tools of an agent, for `callsheet tools list` and `GET /v1/tools` |
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
// The package `tests/doc_examples` runs the examples, which use the package `callsheet`.
#![cfg(not(doctest))]

#[cfg(feature = "tools")]
pub mod launcher;
pub mod tls;

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
mod search;
mod server;
mod source;
#[cfg(feature = "tools")]
mod template;
pub mod testing;
mod typed;

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;

pub use agent::AgentCaller;
pub use agent::AgentTool;

#[cfg(feature = "tools")]
pub use builtin::BuiltinOptions;
pub use callsheet_values::config::ApprovalPolicy;
pub use callsheet_values::config::{StartPolicy, ToolEffect};
use callsheet_values::types::SessionId;

pub use callsheet_values::config::HookRule;
pub use callsheet_values::types::HookPoint;

#[cfg(feature = "tools")]
pub use builtin::{
    BuiltinError, Calculator, Clock, GetVariable, HttpGet, HttpGetOptions, READ_BYTES_MAX,
    ReadFile, SetVariable, builtin,
};
pub use callsheet_machines::contract::{ParsedSchema, ToolSpec};
pub use callsheet_values::types::{Answer, Question, QuestionKind};
pub use client_side::ClientSideTool;
pub use context::ToolContext;
pub use context::{
    AskCallback, ProgressCallback, ReferenceReader, SharedVariableView, ToolContextParts,
};
pub use error::NextAttempt;
pub use error::ToolError;
pub use extensions::Extensions;
pub use hook::RegisteredHook;
pub use hook::{Hook, HookAnswer, HookError, HookInput};
#[cfg(feature = "tools")]
pub use http::{AllowRule, DnsLookup, HttpClientError, InvalidAllowRule};
pub use listing::NOT_NAMED;
pub use listing::{
    AgentTools, ListedServer, ListedTool, ModelRefusal, definition_tokens, list_tools,
};
pub use output::ToolOutput;
#[cfg(all(feature = "mcp", target_os = "linux"))]
pub use pinning::{LOCK_FILE, PinProblem, PinnedTools, ToolLock, check_instructions};
pub use read_var::ReadVar;
pub use registry::{RegisteredKind, RegisteredTool, RegistryError, ToolRegistry};
pub use retry_after::retry_after;
pub use search::{RESERVED_NAMES, find_tools, use_tool_spec};
pub use server::{
    FrozenList, SERVER_SEPARATOR, ServerListing, ServerObservation, ServerObserver, ServerState,
    ServerStatus, ServerToolDefinition, ToolServer,
};
pub use source::{ToolSource, ToolSourceContext};
#[cfg(feature = "tools")]
pub use template::Template;
pub use typed::{IntoTool, TypedTool};

/// The target of the log lines about MCP servers.
pub const MCP_MODULE: &str = concat!(module_path!(), "::mcp");

/// A function that the model may call: the object-safe form, with the arguments as JSON. A tool whose
/// schema is known at compile time is shorter as a [`TypedTool`] or a closure ([`IntoTool`]).
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
