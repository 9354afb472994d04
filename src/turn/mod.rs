//! One turn, and the run around it. Machines: no async, no clock, no I/O.
#![warn(clippy::indexing_slicing)]
