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

pub mod config;
pub mod journal;
#[cfg(feature = "tools")]
pub mod launcher;
#[cfg(feature = "rehearsal")]
#[doc(hidden)]
pub mod rehearsal;
#[cfg(feature = "server")]
pub mod server;
pub mod tool;

#[doc(hidden)]
pub mod builder;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod context;
#[doc(hidden)]
pub mod event;
#[cfg(feature = "load")]
#[doc(hidden)]
pub mod load;
#[doc(hidden)]
pub mod message;
#[doc(hidden)]
pub mod record;
#[doc(hidden)]
pub mod response;
#[doc(hidden)]
pub mod runtime;
#[doc(hidden)]
pub mod session;
#[doc(hidden)]
pub mod telemetry;
#[doc(hidden)]
pub mod tls;
#[doc(hidden)]
pub mod transcript;
#[doc(hidden)]
pub mod turn;
#[doc(hidden)]
pub mod types;
#[doc(hidden)]
pub mod wire;

pub use builder::HostBuilder;
#[doc(hidden)]
pub use context::Variables;
pub use journal::{SessionQuery, SessionSummary};
#[doc(hidden)]
pub use record::RequestKey;
pub use record::StopMode;
pub use runtime::{
    ApprovalHandle, CallReport, ClientCall, CurrentRun, ErrorKind, Host, HostError, OpenSession,
    PendingApproval, PendingClientCall, QueuedInput, RunEvent, RunFailed, RunReport, RunRequest,
    SessionHandle, SessionSnapshot, SessionState, StartedRun, StatsReport, ToolListChange,
    TypedRun, TypedRunError,
};
#[doc(hidden)]
pub use runtime::{ClientResultError, HostCounts, ModelStatus, StoredResult};
#[doc(hidden)]
pub use turn::ApprovalDecision;
pub use types::{
    ApprovalVerdict, Content, ContentPart, Image, InvalidValue, Metadata, ResultPart,
    ResultResource, RunEnd, RunError, RunId, Seq, SessionId, SummaryFailure, ToolStatus,
    TraceContext, WaitPhase,
};
#[doc(hidden)]
pub use types::{CallKey, VerdictWithMessage};

/// Requests to models and their responses, without a host; models that the program implements.
pub mod model {
    pub use crate::config::ToolChoice;
    pub use crate::message::{Message, MessageList, ResponseMessage, ResultContent};
    #[doc(hidden)]
    pub use crate::response::{ResponseAssembler, decode_body};
    pub use crate::runtime::model::{
        ModelClient, ModelReply, ModelRequest, ModelResponse, ModelSource, ModelStream,
        RequestedCall,
    };
    pub use crate::types::{
        FinishKind, FinishReason, ProviderError, ProviderErrorKind, RefusalDetails, ToolCall, Usage,
    };
    #[doc(hidden)]
    pub use crate::wire::CallKind;
    #[doc(hidden)]
    pub use crate::wire::Framing;
    pub use crate::wire::{CallDelta, Delta, ToolDefinition};
}

/// The events of a session, in the form of the HTTP API.
pub mod events {
    pub use crate::event::{EventId, PublicEvent, PublishedEvent};
    pub use crate::runtime::SessionEvents;
    #[doc(hidden)]
    pub use crate::telemetry::Subscription;
    pub use crate::telemetry::{FeedItem, LiveHook};
}

/// A model without a socket, and tests of tools and journals without a host.
#[cfg(feature = "testing")]
pub mod testing {
    pub use crate::journal::check_journal;
    pub use crate::runtime::model::FakeModel;
    pub use crate::tool::testing::{TestedCall, ToolTest};
}

/// The names that a program with a host of its own uses.
pub mod prelude {
    pub use crate::config::{AgentConfig, ApiKey, ApprovalPolicy, BaseUrl, Limits, ModelConfig};
    pub use crate::model::{ModelReply, ModelRequest, ModelSource, ModelStream};
    pub use crate::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec, TypedTool};
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
