//! The host of Callsheet: it runs sessions, stores their records, and publishes their events.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `runtime` | the actors, the limits, the client of models, and the handles of a program |
//! | `journal` | the append-only lists of records, in memory or in SQLite |
//! | `telemetry` | events for watchers, metrics, logs and traces |
//! | `error_response` | feature `server`: errors as answers over HTTP |
//! | `thread_pool` | the threads that read, and that rebuild sessions from records |
//! | `builder` | a host in a program, by method calls |
// The package `tests/doc_examples` runs the examples, which use the package `callsheet`.
#![cfg(not(doctest))]

pub mod builder;
#[cfg(feature = "server")]
pub mod error_response;
pub mod journal;
pub mod runtime;
pub mod telemetry;
mod thread_pool;
