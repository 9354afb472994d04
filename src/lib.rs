//! Callsheet hosts LLM agents as a long-running service. Many sessions live in one process. In each
//! session the host reads the model's response as a stream, runs every tool call as a supervised
//! actor, and sends the results back to the model in call order.
//!
//! # Where to begin
//!
//! - To host agents: [`runtime::Host`], [`runtime::SessionHandle`].
//! - To write a tool: [`tool::Tool`].
//! - To serve the HTTP API: [`server`].
//! - To ask a model without a host: [`runtime::model::ModelClient`].
//! - To decode a recorded response: [`response::decode_body`].
//! - To find the code of a rule (a limit, a retry, a timeout, an approval): the tables on the first
//!   pages of [`turn`], [`session`], [`runtime`], [`response`] and [`telemetry`].
//!
//! The rest of this page is `docs/architecture.md`.
//!
#![doc = include_str!("../docs/architecture.md")]

pub mod builder;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod context;
pub mod event;
pub mod journal;
#[cfg(feature = "load")]
pub mod load;
pub mod message;
pub mod record;
#[cfg(feature = "rehearsal")]
pub mod rehearsal;
pub mod response;
pub mod runtime;
#[cfg(feature = "server")]
pub mod server;
pub mod session;
pub mod telemetry;
pub mod tls;
pub mod tool;
pub mod transcript;
pub mod turn;
pub mod types;
pub mod wire;

pub use runtime::model;

/// The names that a program with a host of its own uses.
pub mod prelude {
    pub use crate::builder::HostBuilder;
    pub use crate::config::{AgentConfig, ApiKey, BaseUrl, Config, Limits, ModelConfig, Wire};
    pub use crate::runtime::{
        Host, HostError, OpenSession, RunEvent, RunFailed, RunReport, RunRequest, SessionHandle,
    };
    pub use crate::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec, TypedTool};
}

/// The examples of the README, of `docs/embedding.md` and of `docs/tools.md`, compiled and run as tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/embedding.md")]
    struct Embedding;
    #[doc = include_str!("../docs/tools.md")]
    struct Tools;
}
