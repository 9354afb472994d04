//! Callsheet hosts LLM agents as a long-running service. Many sessions live in one process. In each
//! session the host reads the model's response as a stream, runs tool calls as supervised actors, and
//! sends the results back to the model in call order.
//!
//! # Host agents
//!
//! A [`Host`] runs sessions. It has models, agents, tools and a journal, which [`Host::builder`] sets.
//! Without a model it uses an offline one for tests, the rehearsal model (feature `rehearsal`).
//!
//! ```
//! # #[cfg(all(feature = "rehearsal", feature = "testing"))]
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use callsheet::prelude::*;
//!
//! let host = Host::builder().start().await?;
//! let session = host.get_or_open_session("demo").await?;
//! println!("{}", session.run("Say hello.").await?.text()?);
//! host.shutdown().await;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! [`StartedRun::next_event`] returns the events of a run while it goes on. [`server`] serves the HTTP
//! API.
//!
//! # Write a tool
//!
//! A tool is a name, a description and an async function. [`ToolSpec`](tool::ToolSpec) has its other
//! properties, [`TypedTool`](tool::TypedTool) is for tools with state, and
//! [`ToolTest`](testing::ToolTest) tests a tool without a host.
//!
//! ```
//! # #[cfg(all(feature = "rehearsal", feature = "testing"))]
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use callsheet::prelude::*;
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Text {
//!     /// The text to count.
//!     text: String,
//! }
//!
//! let count_words = ToolSpec::named("count_words", "Counts the words of a text.")
//!     .pure()
//!     .into_tool(async |input: Text, _| Ok(input.text.split_whitespace().count()));
//! let host = Host::builder().tool(count_words).start().await?;
//! # host.shutdown().await;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! # Ask a model
//!
//! [`ModelClient`](model::ModelClient) sends one request to a model, without a host. It neither retries nor runs
//! tools.
//!
//! ```no_run
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use callsheet::model::{Message, ModelClient, ModelRequest};
//! use callsheet::prelude::*;
//!
//! let base_url = BaseUrl::parse("http://127.0.0.1:11434/v1")?;
//! let client = ModelClient::new(&ModelConfig::new(base_url, "qwen3"))?;
//! let request = ModelRequest::new("qwen3", vec![Message::user("Say hello.")].into());
//! println!("{}", client.complete(&request).await?.text);
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! # More
//!
//! `docs/embedding.md` describes a host in a program, `docs/architecture.md` the code. The modules that
//! this documentation does not show are for this crate's own binary, tests and benches. They may change
//! in every version.

#[doc(inline)]
pub use callsheet_host::builder::HostBuilder;
#[doc(inline)]
pub use callsheet_host::journal::{SessionOrder, SessionQuery, SessionSummary};
/// [`SessionSummary`] and [`SessionHandle::state`] show its use.
#[doc(inline)]
pub use callsheet_host::runtime::SessionState;
/// Returned by [`SessionHandle::refresh_tools`].
#[doc(inline)]
pub use callsheet_host::runtime::ToolListChange;
#[doc(inline)]
pub use callsheet_host::runtime::{
    ApprovalHandle, CallReport, ClientCall, CurrentRun, ErrorKind, Host, HostError, OpenSession,
    PendingApproval, PendingClientCall, QueuedInput, RunEvent, RunFailed, RunReport, RunRequest,
    SessionHandle, SessionSnapshot, StartedRun, StatsReport, TypedRun, TypedRunError,
};
#[doc(hidden)]
pub use callsheet_host::runtime::{ClientResultError, HostCounts, ModelStatus, StoredResult};
#[doc(hidden)]
pub use callsheet_machines::context::Variables;
/// [`SessionHandle::exclude`] shows its use.
#[doc(inline)]
pub use callsheet_machines::session::MessageName;
#[doc(hidden)]
pub use callsheet_machines::turn::ApprovalDecision;
#[doc(hidden)]
pub use callsheet_values::record::RequestKey;
/// [`SessionHandle::stop`] shows its use.
#[doc(inline)]
pub use callsheet_values::record::StopMode;
/// Given with [`SessionHandle::by`].
#[doc(inline)]
pub use callsheet_values::types::Author;
/// [`Host::fork`] takes one.
#[doc(inline)]
pub use callsheet_values::types::Seq;
/// Part of a [`HostError`].
#[doc(inline)]
pub use callsheet_values::types::SummaryFailure;
/// Given with a [`RunRequest`], as the parent of the run's spans, and read by a tool from its
/// [`ToolContext`](tool::ToolContext::trace).
#[doc(inline)]
pub use callsheet_values::types::TraceContext;
/// Part of an [`ApprovalHandle`].
#[doc(inline)]
pub use callsheet_values::types::WaitPhase;
/// Part of a [`CallReport`].
#[doc(inline)]
pub use callsheet_values::types::{ApprovalVerdict, ToolStatus};
#[doc(hidden)]
pub use callsheet_values::types::{CallKey, VerdictWithMessage};
#[doc(inline)]
pub use callsheet_values::types::{
    Content, ContentPart, Image, InvalidValue, Metadata, ResultPart, ResultResource, SessionId,
};
/// Part of a [`RunReport`].
#[doc(inline)]
pub use callsheet_values::types::{RunEnd, RunError, RunId};

// Modules that the tests and benches of this package use.
#[cfg(feature = "cli")]
#[doc(hidden)]
pub use callsheet_cli::{self as cli, load};
#[doc(hidden)]
pub use callsheet_host::{runtime, telemetry};
#[doc(hidden)]
pub use callsheet_machines::{context, session, turn};
#[cfg(feature = "rehearsal")]
#[doc(hidden)]
pub use callsheet_rehearsal as rehearsal;
#[doc(hidden)]
pub use callsheet_tools::tls;
#[doc(hidden)]
pub use callsheet_values::{event, message, record, transcript, types};
#[doc(hidden)]
pub use callsheet_wire::{self as wire, response};

/// The configuration of a host: its types and their defaults.
pub mod config {
    #[doc(hidden)]
    pub use callsheet_values::config::*;
    #[doc(inline)]
    pub use callsheet_values::config::{
        AgentConfig, ApiKey, ApprovalPolicy, BaseUrl, ClientTool, Config, ConfigErrors,
        ContextPolicy, Execution, HookRule, HostConfig, JournalConfig, LimitOverrides, Limits,
        ModelConfig, OnRefusal, Proxy, RunOverrides, SendReasoning, Share, TlsConfig, TokenConfig,
        TokenScope, ToolChoice, ToolProtocol, Wire,
    };
}

/// The journal: the append-only list of each session's records, from which it is rebuilt. A program names an
/// engine with [`HostBuilder::sqlite`], or gives one of its own ([`Journal`](journal::Journal)) to
/// [`HostBuilder::journal`].
pub mod journal {
    #[doc(hidden)]
    pub use callsheet_host::journal::*;
    #[doc(inline)]
    pub use callsheet_host::journal::{
        AppendStatus, Batch, BatchRefusal, BatchStatus, Journal, JournalError, MemoryJournal,
        Owner, Ownership, SessionQuery, SessionSummary,
    };
    /// [`Batch`] shows how an engine stores it.
    #[doc(inline)]
    pub use callsheet_values::record::JournalEntry;
}

/// Starts the programs of tools, hooks and MCP servers through a launcher process. Linux only.
#[cfg(feature = "tools")]
pub mod launcher {
    #[doc(inline)]
    pub use callsheet_tools::launcher::{run_if_launched, use_binary};
}

/// The HTTP API of a host. [`serve`](server::serve) runs the server. A program with an HTTP server of its own mounts the
/// same routes with [`router`](server::router) and [`operations`](server::operations), and puts a
/// [`Guard`](server::Guard) around them if it wants one. Its own handlers answer with
/// [`EventStream`](server::EventStream) and with [`HostError`], which are responses.
#[cfg(feature = "server")]
pub mod server {
    #[doc(hidden)]
    pub use callsheet_server::*;
    #[doc(inline)]
    pub use callsheet_server::{
        EventStream, Guard, ServerHandle, ServerOptions, ServerTls, ServerTlsError, operations,
        router, serve,
    };
}

/// Tools: functions that the model may call.
///
/// A tool is a [`TypedTool`](tool::TypedTool) or a closure ([`IntoTool`](tool::IntoTool)); its input type gives the schema
/// and the parsing of its arguments, its output type the text for the model. Below both is the object-safe
/// [`Tool`](tool::Tool), which describes itself with a [`ToolSpec`](tool::ToolSpec) and runs calls, also several at once,
/// each with its own [`ToolContext`](tool::ToolContext).
///
/// ```
/// use callsheet::tool::{ToolContext, ToolError, ToolSpec, TypedTool};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Text { text: String }
///
/// #[derive(serde::Serialize)]
/// struct Count { words: usize }
///
/// struct CountWords;
///
/// impl TypedTool for CountWords {
///     type Input = Text;
///     type Output = Count;
///
///     fn spec(&self) -> ToolSpec {
///         ToolSpec::named("count_words", "Counts the words of a text.").pure()
///     }
///
///     async fn call(&self, input: Text, _context: ToolContext) -> Result<Count, ToolError> {
///         Ok(Count { words: input.text.split_whitespace().count() })
///     }
/// }
/// let builder = callsheet::Host::builder().tool(CountWords);
/// # let _ = builder;
/// ```
///
/// [`HostBuilder::tool`] offers it to the agents of a host. [`ToolTest`](testing::ToolTest) tests it without a host.
pub mod tool {
    /// Taken by [`HostBuilder::builtin_tools`](crate::HostBuilder::builtin_tools).
    #[cfg(feature = "tools")]
    #[doc(inline)]
    pub use callsheet_tools::BuiltinOptions;
    #[doc(hidden)]
    pub use callsheet_tools::*;
    #[doc(inline)]
    pub use callsheet_tools::{
        AgentTool, Answer, ApprovalPolicy, Hook, HookAnswer, HookPoint, HookRule, IntoTool,
        Question, QuestionKind, Tool, ToolContext, ToolError, ToolOutput, ToolSource,
        ToolSourceContext, ToolSpec, TypedTool,
    };
    /// [`Hook`] shows its use.
    #[doc(inline)]
    pub use callsheet_tools::{HookError, HookInput};
}

/// Requests to models and their responses, without a host; models that the program implements.
pub mod model {
    #[doc(inline)]
    pub use callsheet_host::runtime::model::{
        ModelClient, ModelReply, ModelRequest, ModelResponse, ModelSource, ModelStream,
        RequestedCall,
    };
    #[doc(inline)]
    pub use callsheet_values::config::ToolChoice;
    #[doc(inline)]
    pub use callsheet_values::message::{Message, MessageList, ResponseMessage, ResultContent};
    /// [`Delta`] shows its use.
    #[doc(inline)]
    pub use callsheet_values::types::{FinishKind, FinishReason, RefusalDetails};
    /// [`ModelReply::error`] shows its use.
    #[doc(inline)]
    pub use callsheet_values::types::{ProviderError, ProviderErrorKind};
    #[doc(inline)]
    pub use callsheet_values::types::{ToolCall, Usage};
    #[doc(inline)]
    pub use callsheet_wire::{CallDelta, Delta, ToolDefinition};
    #[doc(hidden)]
    pub use callsheet_wire::{
        CallKind, Framing,
        response::{ResponseAssembler, decode_body},
    };
}

/// The events of a session, in the form of the HTTP API.
pub mod events {
    #[doc(inline)]
    pub use callsheet_host::runtime::{SessionEvents, WatchOptions};
    #[doc(hidden)]
    pub use callsheet_host::telemetry::Subscription;
    #[doc(inline)]
    pub use callsheet_host::telemetry::{FeedItem, LiveHook};
    /// [`SessionEvents`] shows its use.
    #[doc(inline)]
    pub use callsheet_values::event::{EventForm, EventId, PublicEvent, PublishedEvent};
}

/// A model without a socket, and tests of tools and journals without a host.
#[cfg(feature = "testing")]
pub mod testing {
    #[doc(inline)]
    pub use callsheet_host::journal::check_journal;
    #[doc(inline)]
    pub use callsheet_host::runtime::model::FakeModel;
    #[doc(inline)]
    pub use callsheet_tools::testing::{TestedCall, ToolTest};
}

/// The names that a program with a host of its own uses.
pub mod prelude {
    pub use crate::config::{
        AgentConfig, ApiKey, ApprovalPolicy, BaseUrl, Execution, Limits, ModelConfig,
    };
    pub use crate::model::{ModelReply, ModelRequest, ModelSource, ModelStream};
    pub use crate::tool::{
        IntoTool, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, TypedTool,
    };
    pub use crate::{
        Host, HostBuilder, HostError, OpenSession, RunEnd, RunEvent, RunReport, RunRequest,
        SessionHandle, SessionId, StopMode,
    };
}

/// The Rust examples of documents, compiled and run as tests.
#[cfg(all(doctest, feature = "cli", feature = "testing"))]
mod documents {
    #[doc = include_str!("../docs/architecture.md")]
    struct Architecture;
    #[doc = include_str!("../docs/embedding.md")]
    struct Embedding;
    #[doc = include_str!("../docs/hooks.md")]
    struct Hooks;
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/tools.md")]
    struct Tools;
}
