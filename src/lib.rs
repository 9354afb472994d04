//! Callsheet hosts LLM agents as a long-running service.

pub mod config;
pub mod record;
pub mod rehearsal;
pub mod tool;
pub mod turn;
pub mod types;
pub mod wire;
