//! What a session knows: its history and its variables. Machines: the session actor alone writes
//! them.
#![warn(clippy::indexing_slicing)]

mod history;
mod pairing;
mod initial_history;
mod variables;

pub use history::History;
pub use pairing::paired;
pub use initial_history::{INITIAL_MESSAGES_MAX, InitialHistory, InitialHistoryError};
pub use variables::{VARIABLE_NAME_BYTES_MAX, VariableError, Variables, VariablesTransaction};
