//! Callsheet hosts LLM agents as a long-running service.

pub mod config;
pub mod event;
pub mod record;
pub mod tool;
pub mod turn;
pub mod types;
pub mod wire;
