//! The context of a session: history and variables. Pure values; the session actor alone
//! changes those of a session.
//!
//! | rule | file |
//! | --- | --- |
//! | order of the messages, inputs that wait for the end of a turn, ids of calls | `history` |
//! | a history that is too long (truncate, trim, shorten, compact): when, and what is kept | `session::context` |
//! | the same: how messages are replaced by a summary, a log or a line | `compaction` |
//! | content that a service refuses, or a client leaves out: what it is replaced by | `exclusion`, `session::exclusion` |
//! | token count (estimate; no tokenizer), learnt context window | `tokens` |
//! | results longer than `max_result_bytes` (truncated output of a tool): what the model sees | `result_cut` |
//! | exactly one result for each call (pairing; orphaned calls and results), repair | `pairing` |
//! | references to earlier results (`$VAR_REF{{..}}`) | `references` |
//! | session variables, and the transaction of a call | `variables` |
//! | messages that a new session begins with | `initial_history` |
#![warn(clippy::indexing_slicing)]

pub mod compaction;
pub mod exclusion;
mod history;
mod initial_history;
mod pairing;
mod references;
mod result_cut;
pub mod tokens;
mod variables;

pub use history::History;
pub use initial_history::{INITIAL_MESSAGES_MAX, InitialHistory, InitialHistoryError};
pub use pairing::repair_pairing;
pub use references::{
    ReferenceValues, add_value, has_references, may_affect_reference, recorded_result,
    recorded_value, references_in, stored_value, substitute_references,
};
pub use result_cut::ResultCut;
pub use variables::{VARIABLE_NAME_BYTES_MAX, VariableError, Variables, VariablesTransaction};
