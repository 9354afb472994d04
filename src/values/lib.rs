//! The values that all other packages use. They have rules of their own, but no I/O, no clock and no async.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `types` | identifiers, errors, and the parts of messages and calls |
//! | `message` | the messages of a conversation |
//! | `config` | the configuration of a host, and its file |
//! | `event` | the events of a run |
//! | `record` | the records of a journal |
//! | `transcript` | the records of a session, read in order |
// The package `tests/doc_examples` runs the examples, which use the package `callsheet`.
#![cfg(not(doctest))]

pub mod config;
pub mod event;
pub mod message;
pub mod record;
pub mod transcript;
pub mod types;
