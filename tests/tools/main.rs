//! Tools outside of the host: programs and sandboxes, HTTP services, MCP servers, hooks.

#[cfg(target_os = "linux")]
#[path = "../mcp/folder.rs"]
mod folder;
#[cfg(target_os = "linux")]
#[path = "../mcp/process.rs"]
mod process;

mod command;
mod hooks;
mod http;
mod http_get;
#[cfg(target_os = "linux")]
mod installed;
mod mcp;
mod mcp_answers;
mod mcp_conformance;
mod mcp_connections;
mod mcp_hostile;
mod mcp_questions;
mod mcp_servers;
mod mcp_sessions;
mod pin;
