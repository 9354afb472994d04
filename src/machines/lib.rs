//! The rules of Callsheet as state machines. Time is an argument, and so is everything that is read or answered: nothing here
//! waits, asks a clock, or does I/O.
//!
//! | module | what it decides |
//! | --- | --- |
//! | `contract` | what a tool says about itself, and what a hook is asked and answers; the check of a value by its schema |
//! | `context` | the messages that the model reads |
//! | `turn` | a turn: attempts, calls, results, approvals |
//! | `session` | a session: its runs, in order, and what it remembers |

pub mod context;
pub mod contract;
pub mod session;
pub mod turn;
