//! Runs and sessions of a host in this process, whose model is scripted: tools, limits, approvals, questions, stops,
//! variables, results.

#[path = "../support/client.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod client;
#[path = "../support/host_directory.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod host_directory;
#[path = "../support/mod.rs"]
mod support;

mod approvals;
mod blocking;
mod builder;
mod client_tools;
mod context_size;
mod context_window;
mod execution;
mod isolation;
mod limits;
mod metrics;
mod overrides;
mod pause;
mod questions;
mod queue;
mod recorder;
mod references;
mod refused_content;
mod run_options;
mod seeds;
mod steer;
mod stop;
mod time_accounting;
mod tool_images;
mod typed_answers;
mod typed_tools;
mod variables;
