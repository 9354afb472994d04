//! The journal in PostgreSQL, against a real server that the tests start. Without PostgreSQL they are skipped, except in
//! CI.

#[path = "../kill/effects.rs"]
#[expect(
    dead_code,
    clippy::unwrap_used,
    reason = "these tests use a part; a test fails by panicking"
)]
mod effects;
#[path = "../kill/rng.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod rng;

#[path = "../support/client.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod client;
#[path = "../support/host_directory.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod host_directory;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod support;

mod chaos;
mod engine;
mod faults;
mod hosts;
mod log;
mod ownership;
mod proxy;
mod reported;
mod server;
mod several_hosts;
mod start;
