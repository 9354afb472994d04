//! What a session knows: its history and its variables. Machines: the session actor alone writes
//! them.
#![warn(clippy::indexing_slicing)]

mod history;
mod pairing;
mod seed;
mod variables;

pub use history::History;
pub use pairing::paired;
pub use seed::{SEED_MESSAGES_MAX, Seed, SeedError};
pub use variables::{VARIABLE_NAME_BYTES_MAX, VariableError, Variables, View};
