//! One turn, and the run around it. Machines: no async, no clock, no I/O.
#![warn(clippy::indexing_slicing)]

mod accumulator;
mod arguments;
mod bucket;
mod calls;
mod decoded;

pub use accumulator::{Accumulator, AccumulatorLimits, Change, Changes};
pub use arguments::{Arguments, understand};
pub use bucket::Bucket;
pub use decoded::{decode_body, describe};
