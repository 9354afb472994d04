//! Kill tests: hosts, tools and servers are killed at random while they work.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(clippy::wildcard_enum_match_arm, reason = "a protocol that is new is written like most")]

#[cfg(target_os = "linux")]
#[path = "../mcp/folder.rs"]
mod folder;
#[cfg(target_os = "linux")]
#[path = "../mcp/process.rs"]
mod process;

mod chaos;
mod checks;
mod client;
mod effects;
mod host_process;
mod hosts;
mod http_client;
mod input;
mod rng;
mod scenario;
