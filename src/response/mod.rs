//! One model response, assembled from its deltas. Machines: no async, no clock, no I/O.
//!
//! | file | rule |
//! | --- | --- |
//! | `assembler` | which delta changes which part of the response |
//! | `calls` | which piece belongs to which call; when a call is sealed |
//! | `partial_call` | one call while its pieces arrive |
//! | `arguments` | what the text of a call's arguments means |
//! | `content_parts` | the parts that the service wants back |
//! | `display_order` | the order in which text and thinking were shown |
//! | `response_end` | whether a response that is over ended well |
//! | `change` | what a delta did to the calls |
//! | `decode_report` | a recorded response, decoded and described as JSON |
#![warn(clippy::indexing_slicing)]

mod arguments;
mod assembler;
mod call_assembler;
mod change;
mod content_parts;
mod decode_report;
mod display_order;
mod finish_reason;
#[cfg(test)]
pub(crate) mod fixtures;
mod partial_call;

pub use arguments::{ParsedArguments, parse_arguments};
pub use assembler::ResponseAssembler;
pub use change::{CallChange, CallChanges, ResponseLimits};
pub use decode_report::{decode_body, describe_response};
pub(crate) use display_order::DisplayOrder;
pub(crate) use finish_reason::classify_ending;
pub use finish_reason::{ExchangeEnd, ended_well};
pub use partial_call::PartialCall;
