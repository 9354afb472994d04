//! The rules of runs.

mod runs;
