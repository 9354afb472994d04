//! The context of a session: history and variables. Pure state machines; the session actor alone
//! changes them.
#![warn(clippy::indexing_slicing)]

pub mod compaction;
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
    ReferenceValues, add_value, has_references, is_needed, recorded_result, recorded_value,
    references_in, stored_value, substitute_references,
};
pub use result_cut::ResultCut;
pub use variables::{VARIABLE_NAME_BYTES_MAX, VariableError, Variables, VariablesTransaction};
