//! Assembles one model response from its deltas. This module is pure: no async, no clock, no I/O.
//!
//! | file | what it does |
//! | --- | --- |
//! | `assembler` | applies each delta to the response |
//! | `call_assembler` | decides which piece belongs to which call, and when a call is sealed |
//! | `partial_call` | one call while its pieces arrive |
//! | `arguments` | parses the text of a call's arguments |
//! | `content_parts` | the parts of the response and the metadata that the service wants back |
//! | `display_order` | the order in which text and thinking were displayed |
//! | `finish_reason` | decides how a response ended |
//! | `change` | limits, and changes to the calls |
//! | `decode_report` | decodes a recorded response and describes it as JSON |
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
