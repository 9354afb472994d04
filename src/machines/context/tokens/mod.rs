//! Counts tokens without a tokenizer. Prices are not known: budgets count tokens.
//!
//! A service reports the tokens of a request only after the request. What is new since then is
//! estimated: by script and kind of characters, because a character of English is a quarter of a token
//! and one of Chinese nearly a whole one. [`TokenMeter`] joins the two and corrects the estimates by what
//! the service counted before, so the model's tokenizer need not be known.
//!
//! | what | file |
//! | --- | --- |
//! | estimate of a text | `text.rs` |
//! | estimate of a message, an input, a tool | `parts.rs` |
//! | the service's numbers and their ratio to the estimates, for one session | `meter.rs` |
//! | the window and the ratio of a model, from all sessions of a host | `model.rs` |

mod meter;
mod model;
mod parts;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
mod text;

pub use meter::TokenMeter;
pub use model::ModelTokens;
pub use parts::{
    IMAGE_TOKENS, add_messages, estimate_content, estimate_message, estimate_tool, part_of,
};
pub use text::estimate_text;
