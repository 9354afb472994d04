//! The rules of runs and of sessions.

mod prefixes;
mod requests;
mod runs;
mod stored;
