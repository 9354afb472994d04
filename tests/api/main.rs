//! The HTTP API: requests, streams of events, repeated requests, the console's requests, traces.

#[path = "../support/client.rs"]
mod client;
#[path = "../support/host_directory.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod host_directory;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod support;

#[cfg(feature = "otlp")]
mod collector;
mod console;
mod console_api;
mod exclusions;
mod guard;
mod idempotency;
mod images;
mod mounted;
#[cfg(feature = "otlp")]
mod otlp;
mod runs;
mod sessions;
mod streams;
mod streams_multiplexed;
mod tls;
mod tokens;
mod trace_context;
