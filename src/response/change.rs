//! What a delta does to the calls of a response, and how many there may be.

use crate::types::CALLS_MAX;

/// How much one response may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResponseLimits {
    /// Bytes of one call's arguments; more is not kept.
    pub arguments_bytes_max: usize,
    /// Calls that are kept at all; more are only counted.
    pub calls_max: usize,
    /// Bytes of text, of reasoning and of refusal, each; more is an error of the response.
    pub text_bytes_max: usize,
}

impl Default for ResponseLimits {
    fn default() -> Self {
        Self { arguments_bytes_max: 1 << 20, calls_max: CALLS_MAX, text_bytes_max: 16 << 20 }
    }
}

/// What a delta did to the calls; the numbers are indexes into [`ResponseAssembler::calls`](super::ResponseAssembler::calls).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallChange {
    /// A call with a name was opened.
    Opened(usize),
    /// A call's arguments are whole.
    Sealed(usize),
    /// More bytes came for a call that was sealed already.
    ChangedAfterSeal(usize),
    /// A call that the service runs itself was opened: an index into
    /// [`ResponseAssembler::service_calls`](super::ResponseAssembler::service_calls).
    ServiceOpened(usize),
    /// All of such a call has come.
    ServiceSealed(usize),
}

/// CallChanges in the order in which they happened; mostly none, which allocates nothing.
pub type CallChanges = Vec<CallChange>;
