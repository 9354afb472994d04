//! The values of Callsheet: what the other packages talk about. They have rules of their own, but no I/O, no clock and no
//! async.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `types` | identifiers, errors, and the parts of messages and calls |
//! | `message` | the messages of a conversation |
//! | `config` | the configuration of a host, and its file |
//! | `event` | what a run shows while it goes on |
//! | `record` | what the journal keeps |
//! | `transcript` | the records of a session, read in order |

pub mod config;
pub mod event;
pub mod message;
pub mod record;
pub mod transcript;
pub mod types;
