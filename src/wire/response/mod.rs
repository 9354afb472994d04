//! Assembles one model response from its deltas. This module is pure: no async, no clock, no I/O.
//!
//! | rule | file |
//! | --- | --- |
//! | response accepted or broken: finish reason, no finish reason, end mark, refusal, empty response | `finish_reason` |
//! | seal of a call; which piece belongs to which call: index, id, name; a call while its pieces arrive | `call_assembler` |
//! | limits of a response (bytes of arguments and text, number of calls), changes to the calls | `call_assembler` |
//! | arguments: empty, invalid JSON, cut off (partial JSON), encoded twice, not an object | `arguments` |
//! | order of the parts of a response, metadata that the service wants back (signatures of thinking, encrypted reasoning); to which model it goes back: `message::request_parts` | `content_parts` |
//! | order in which text and thinking were displayed | `display_order` |
//! | the response as a whole: applies each delta | `assembler` |
//! | secrets of the host in deltas, also across two of them | `redaction` |
//! | the step after the decoder: tool names, calls in the text, redaction | `reader` |
//! | decoding of a recorded response, and its description as JSON | `decode_report` |
#![warn(clippy::indexing_slicing)]

mod arguments;
mod assembler;
mod call_assembler;
mod content_parts;
mod decode_report;
mod display_order;
mod finish_reason;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod reader;
mod redaction;

pub use arguments::{ParsedArguments, parse_arguments};
pub use assembler::ResponseAssembler;
pub use call_assembler::{CallChange, CallChanges, PartialCall, ResponseLimits};
pub use decode_report::{decode_body, decode_body_with, describe_response};
pub use display_order::DisplayOrder;
pub use finish_reason::{ARGUMENTS_LOST, classify_ending};
pub use finish_reason::{ExchangeEnd, ended_well};
pub use reader::ResponseReader;
pub use redaction::DeltaRedactor;
