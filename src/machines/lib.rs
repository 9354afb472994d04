//! The rules of Callsheet as state machines. Time is an argument: nothing here waits, reads a clock, or does I/O.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `contract` | the properties of a tool, the input and the answer of a hook, the check of a value by its schema |
//! | `context` | the messages that the model reads |
//! | `turn` | a turn: attempts, calls, results, approvals |
//! | `session` | a session: its history, variables, queue and runs |
// The package `tests/doc_examples` runs the examples, which use the package `callsheet`.
#![cfg(not(doctest))]

pub mod context;
pub mod contract;
pub mod session;
pub mod turn;
