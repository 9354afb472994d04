//! The limits of a response, and the changes that a delta makes to its calls.

use crate::types::CALLS_MAX;

/// The limits of one response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResponseLimits {
    /// Maximum bytes of one call's arguments. Further bytes are dropped.
    pub arguments_bytes_max: usize,
    /// Maximum number of calls, [`CALLS_MAX`] by default. Further calls are only counted.
    pub calls_max: usize,
    /// Maximum bytes of text, of reasoning and of refusal, each. A longer text is an error of the
    /// response.
    pub text_bytes_max: usize,
}

impl Default for ResponseLimits {
    fn default() -> Self {
        Self { arguments_bytes_max: 1 << 20, calls_max: CALLS_MAX, text_bytes_max: 16 << 20 }
    }
}

/// A change to a call. The numbers are indexes into
/// [`ResponseAssembler::calls`](super::ResponseAssembler::calls).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallChange {
    /// A call with a name was opened.
    Opened(usize),
    /// The arguments of a call are complete.
    Sealed(usize),
    /// Bytes arrived for a call that is sealed.
    ChangedAfterSeal(usize),
    /// A call that the service runs itself was opened: an index into
    /// [`ResponseAssembler::service_calls`](super::ResponseAssembler::service_calls).
    ServiceOpened(usize),
    /// A call that the service runs itself is complete.
    ServiceSealed(usize),
}

/// Changes in the order in which they happened. Most deltas make none, so most lists allocate
/// nothing.
pub type CallChanges = Vec<CallChange>;
