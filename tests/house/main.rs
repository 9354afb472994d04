//! The repository itself: the structure of the crate, documents, licences, metrics and dashboards; and what other
//! programs say of it: Prometheus, the TypeScript compiler, a browser. These tests skip themselves where the program
//! is missing.

#[path = "../support/client.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod client;
#[path = "../support/host_directory.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod host_directory;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod support;

mod architecture;
mod console;
mod dashboards;
mod deploy;
mod documents;
mod grafana;
mod licences;
mod panels;
mod prometheus;
mod promtool;
