//! The rules of runs and of sessions.

mod runs;
mod stored;
