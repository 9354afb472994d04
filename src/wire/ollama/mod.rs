//! Ollama's chat.
//!
//! Format: Ollama's API reference, <https://docs.ollama.com/api/chat>. A stream has one JSON object
//! per line, and a plain body is one such object. Every call comes complete, with its arguments as
//! an object, so it is sealed at once. Several calls come on one line or on one line each. Their
//! `index` is not always sent and not always distinct (seen in recordings), so calls are numbered
//! in the order in which they come. An error within a stream is a line `{"error": ".."}`.

mod decode;
mod messages;
mod payload;
mod request;
mod usage;

/// The dialect. Its only state is the number of calls so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OllamaDialect {
    calls: u64,
}

#[cfg(test)]
mod tests;
