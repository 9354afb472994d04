//! Provider bytes to our nouns, and our nouns to request bodies.
//!
//! Machines: no HTTP, no clock. A `Decoder` is a framing and a dialect; it takes bytes in any
//! cut and gives [`Delta`]s. A dialect decides nothing about calls: which piece belongs to which
//! call, and when one is whole, is the accumulator's business (`turn::Accumulator`).
#![warn(clippy::indexing_slicing)]

mod delta;

pub use delta::{CallKind, CallPiece, Delta, Problem};
