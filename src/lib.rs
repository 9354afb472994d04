//! Callsheet hosts LLM agents as a long-running service.

pub mod cli;
pub mod config;
pub mod context;
pub mod event;
pub mod journal;
pub mod message;
pub mod record;
pub mod rehearsal;
pub mod runtime;
pub mod telemetry;
pub mod tls;
pub mod tool;
pub mod turn;
pub mod types;
pub mod wire;
