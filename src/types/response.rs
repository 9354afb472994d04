//! What a service says about a response: why it ended, what it cost, what went wrong.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The unified kind of a finish reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishKind {
    /// The model had no more to say.
    Stop,
    /// The model waits for tools.
    ToolCalls,
    /// The response was cut off at its maximal length.
    Length,
    /// The service withheld the rest.
    ContentFilter,
    /// The service interrupted a long response, and goes on when it is sent it back.
    Pause,
    /// The service gave up: it counts as a broken response.
    Error,
    /// A word we do not know; the response counts as ended well.
    Other,
}

/// Why a response ended: our kind, and the provider's word.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FinishReason {
    /// Our kind.
    pub kind: FinishKind,
    /// The provider's word, unchanged.
    pub raw: Arc<str>,
}

/// Token counts of one response (or a sum of them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read, cached ones included.
    pub input_tokens: u64,
    /// Tokens written, reasoning included where the service counts it so.
    pub output_tokens: u64,
    /// Tokens read from the service's cache.
    pub cached_tokens: u64,
    /// Tokens spent on reasoning.
    pub reasoning_tokens: u64,
}

impl Usage {
    /// Tokens read and written: what budgets count.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
    }
}

/// What kind of trouble an attempt met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderErrorKind {
    /// No connection was made.
    Connect,
    /// Nothing came for too long.
    Timeout,
    /// The connection broke, or the body ended without a finish.
    Transport,
    /// An HTTP status that is no success.
    Status,
    /// The service reported an error within the response.
    InStream,
    /// What came is no response of this wire.
    Malformed,
    /// A hard cap of the decoder was reached.
    TooLarge,
    /// The model was not asked, because it failed too often of late.
    Unavailable,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// What kind of trouble.
    pub kind: ProviderErrorKind,
    /// The HTTP status, where there was one (also one named inside a stream's error).
    pub status: Option<u16>,
    /// The provider's code or type, if it gave one.
    pub code: Option<String>,
    /// What happened, for people.
    pub message: String,
    /// How long the service asked us to wait.
    pub retry_after: Option<Duration>,
    /// Whether the service itself said that another attempt may fare better; it knows best.
    #[serde(default)]
    pub retryable: Option<bool>,
}

impl ProviderError {
    /// An error of a kind with nothing but a message.
    #[must_use]
    pub fn new(kind: ProviderErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            status: None,
            code: None,
            message: message.into(),
            retry_after: None,
            retryable: None,
        }
    }

    /// Whether another attempt may fare better: what the service said of that, or else transport
    /// trouble, timeouts, broken and failed streams, and the statuses 408, 409, 429, 499 and 5xx, also
    /// where they stand for an error within a response.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        if let Some(retryable) = self.retryable {
            return retryable;
        }
        match self.status {
            Some(status) if status >= 400 => {
                matches!(status, 408 | 409 | 429 | 499) || status >= 500
            }
            Some(_) | None => match self.kind {
                ProviderErrorKind::Connect
                | ProviderErrorKind::Timeout
                | ProviderErrorKind::Transport
                | ProviderErrorKind::InStream
                | ProviderErrorKind::Malformed
                | ProviderErrorKind::Unavailable => true,
                ProviderErrorKind::Status | ProviderErrorKind::TooLarge => false,
            },
        }
    }
}
