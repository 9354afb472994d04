//! What a session knows: its history. A machine: the session actor alone writes it.
#![warn(clippy::indexing_slicing)]

mod history;
mod pairing;
mod seed;

pub use history::History;
pub use pairing::paired;
pub use seed::{SEED_MESSAGES_MAX, Seed, SeedError};
