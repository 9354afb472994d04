//! Properties of a response: finish reason, token usage, errors.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ReasoningRefusal;

/// The unified kind of a finish reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishKind {
    /// The model finished its answer.
    Stop,
    /// The model waits for tool results.
    ToolCalls,
    /// The response reached its maximum length.
    Length,
    /// The service withheld the rest of the response.
    ContentFilter,
    /// The service paused a long response. It continues when it receives the response back.
    Pause,
    /// The service reported a failure. The response counts as broken.
    Error,
    /// An unknown reason. The response counts as completed.
    Other,
}

/// The finish reason of a response: the unified kind and the provider's word.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FinishReason {
    /// The unified kind.
    pub kind: FinishKind,
    /// The provider's word, unchanged.
    pub raw: Arc<str>,
    /// Set if the model or its service refused to answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub refusal: Option<Arc<RefusalDetails>>,
}

/// The details of a refusal, as far as the service names them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RefusalDetails {
    /// The service's word for what it refused, such as `cyber` or `HARM_CATEGORY_HARASSMENT`. Several words are
    /// separated by a comma and a space.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub category: Option<String>,
    /// The service's explanation, or the refusal in the model's words.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub explanation: Option<String>,
}

impl RefusalDetails {
    /// Makes the details of a refusal. A text that is blank counts as none.
    #[must_use]
    pub fn new(category: Option<String>, explanation: Option<String>) -> Self {
        let given = |text: &String| !text.trim().is_empty();
        Self { category: category.filter(given), explanation: explanation.filter(given) }
    }

    /// Returns whether the service has named neither category nor explanation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.category.is_none() && self.explanation.is_none()
    }
}

/// Token counts of one response (or a sum of them).
///
/// ```
/// use callsheet::model::Usage;
///
/// let mut sum = Usage::default().with(|usage| usage.input_tokens = 7);
/// sum += Usage::default().with(|usage| (usage.input_tokens, usage.output_tokens) = (3, 2));
/// assert_eq!((sum.input_tokens, sum.total()), (10, 12));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens, including cached ones.
    pub input_tokens: u64,
    /// Output tokens, including those of reasoning if the service counts them.
    pub output_tokens: u64,
    /// Input tokens that came from the service's cache.
    pub cached_tokens: u64,
    /// Output tokens used for reasoning.
    pub reasoning_tokens: u64,
}

/// The end of a response, which decides what happens to its calls. `docs/architecture.md` has the
/// table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseEnding {
    /// The response completed. Calls that had not started may start.
    #[serde(rename = "well")]
    Complete,
    /// The response reached its maximum length. Calls that had not started are answered with an
    /// error.
    Length,
    /// The response was refused or filtered, or a hook refused its request. Its calls are removed from
    /// the history, except those with effects that had started.
    Refused,
    /// The response broke after a call with effects had started. The received part is kept as the
    /// turn.
    #[serde(rename = "broke_kept")]
    BrokenKept,
    /// The response had too many calls, and `on_excess` is `fail`.
    #[serde(rename = "excess")]
    TooManyCalls,
    /// The run was stopped at once, timed out, exceeded its budget or was interrupted by a shutdown during the
    /// response. Running calls are aborted, and calls that had not started are answered.
    Cancelled,
}

impl FinishReason {
    /// Makes a finish reason.
    pub fn new(kind: FinishKind, raw: impl Into<Arc<str>>) -> Self {
        Self { kind, raw: raw.into(), refusal: None }
    }

    /// Makes the finish reason of a response that its service refused.
    #[must_use]
    pub fn refused(raw: impl Into<Arc<str>>, refusal: RefusalDetails) -> Self {
        let refusal = Some(Arc::new(refusal)).filter(|refusal| !refusal.is_empty());
        Self { kind: FinishKind::ContentFilter, raw: raw.into(), refusal }
    }

    /// Returns whether the response was cut off: at its maximum length, or at the end of the window.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.kind == FinishKind::Length
    }

    /// Returns whether the service ended the response because it could not read its model's calls: Gemini's
    /// `MALFORMED_FUNCTION_CALL`, `MALFORMED_RESPONSE`, `UNEXPECTED_TOOL_CALL` and `TOO_MANY_TOOL_CALLS`
    /// (<https://ai.google.dev/api/generate-content#FinishReason>), `function_call_filter` of its Chat Completions,
    /// Bedrock's `malformed_model_output` and `malformed_tool_use`.
    pub fn is_unparsable_output(&self) -> bool {
        let word = self.raw.to_ascii_lowercase().replace('-', "_");
        self.kind == FinishKind::Error
            && ["malformed", "unexpected_tool_call", "too_many_tool_calls", "function_call_filter"]
                .iter()
                .any(|part| word.contains(part))
    }
}

super::impl_with!(Usage);

impl Usage {
    /// Returns the sum of input and output tokens, which budgets count.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Returns true if nothing was counted.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
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

/// The kind of error of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderErrorKind {
    /// The connection could not be established.
    Connect,
    /// No data arrived in time.
    Timeout,
    /// The connection broke, or the body ended without a finish reason.
    Transport,
    /// The HTTP status was not a success.
    Status,
    /// The service reported an error within the response.
    InStream,
    /// The data is not a response of this wire format.
    Malformed,
    /// One of two. The response exceeded a hard limit: `max_response_bytes`, or that of its text or of one event. Or
    /// the service accepted a request that filled the context window; then [`ProviderError::is_context_overflow`]
    /// returns true. A request that the service refuses as too large has another kind, such as [`Self::Status`].
    TooLarge,
    /// The service could not read what its model wrote, such as a call with invalid JSON. It reports this with any
    /// status, in a stream, or as a finish reason.
    UnparsableOutput,
    /// No request was sent, because the model's circuit breaker is open.
    #[serde(rename = "unavailable")]
    BreakerOpen,
    /// The response is complete, but has neither text nor calls, or its finish reason announces calls and none came.
    EmptyAnswer,
    /// The model or its service refused to answer, and another model is asked.
    Refused,
}

/// The error of a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// The kind of error.
    pub kind: ProviderErrorKind,
    /// The HTTP status, or the status that an error within a stream names.
    pub status: Option<u16>,
    /// The provider's code or type, if it gave one.
    pub code: Option<String>,
    /// A message for people.
    pub message: String,
    /// The delay before a retry that the service requested.
    pub retry_after: Option<Duration>,
    /// True if the service states that a retry may succeed, false if it states that none will, `None` if it states
    /// neither.
    #[serde(default)]
    pub retryable: Option<bool>,
    /// Set if the request was larger than the context window of the model, or than its service accepts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub overflow: Option<ContextOverflow>,
    /// Set if the service refused the request because of its tools.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tool_refusal: Option<ToolRefusal>,
    /// Set if the service refused the request because of the reasoning of its messages. The host keeps it only if
    /// the next request differs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reasoning: Option<ReasoningRefusal>,
    /// Set if the error is a refusal to answer, such as that of a content filter.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub refusal: Option<Arc<RefusalDetails>>,
    /// Set if the service refused the request because of the content of its messages, or may have.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub content: Option<ContentRefusal>,
}

/// The part of an error by which a service refuses the content of a request's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentRefusal {
    /// The error names images.
    Image,
    /// The error names a policy about contents.
    Policy,
    /// The error does not say what is wrong with the request. Its content may be the reason.
    Unnamed,
}

/// The tools because of which a service refused a request, by name, in the order of the request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolRefusal {
    /// The error names them.
    Named(Vec<String>),
    /// The error names none. These may be the reason, by their schemas.
    Suspected(Vec<String>),
    /// None: the error is the host's own. The service accepted a request without some of its tools, which was sent to
    /// find the refused ones.
    Accepted,
}

/// A request that was larger than the context window of its model, or than its service accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContextOverflow {
    /// The window in tokens, if the service named it.
    pub window: Option<u64>,
    /// The tokens of the request, if the service named them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub request_tokens: Option<u64>,
    /// The length of an answer, in tokens, that the window has room for behind the input. Set if the service counts the
    /// requested length of the answer, and the input alone is below the window.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output_room: Option<u32>,
    /// True if the error says nothing about the window: the service refused the size of the request's body in bytes,
    /// or it answered 400 without a reason, which some services do if a request is too long.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub of_body: bool,
}

impl ContextOverflow {
    /// Creates an overflow of the window, with the numbers that the service named.
    #[must_use]
    pub fn of_window(window: Option<u64>, request_tokens: Option<u64>) -> Self {
        Self { window, request_tokens, output_room: None, of_body: false }
    }

    /// Creates an overflow that says nothing about the window: see the field of this name.
    #[must_use]
    pub fn of_body() -> Self {
        Self { of_body: true, ..Self::default() }
    }
}

impl ProviderError {
    /// Creates an error from a kind and a message.
    #[must_use]
    pub fn new(kind: ProviderErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            status: None,
            code: None,
            message: message.into(),
            retry_after: None,
            retryable: None,
            overflow: None,
            tool_refusal: None,
            reasoning: None,
            refusal: None,
            content: None,
        }
    }

    /// Returns the finish reason of the response that this error stands for, if it is a refusal to answer.
    pub fn refusal_reason(&self) -> Option<FinishReason> {
        let refusal = Some(Arc::clone(self.refusal.as_ref()?));
        let raw = self.code.as_deref().unwrap_or_default().into();
        Some(FinishReason { kind: FinishKind::ContentFilter, raw, refusal })
    }

    /// Returns whether the request was too large: for the context window of the model, or for its service.
    #[must_use]
    pub fn is_context_overflow(&self) -> bool {
        self.overflow.is_some()
    }

    /// Returns whether a retry may succeed. The first rule that applies decides:
    /// 1. The error of a request that was too large is not transient.
    /// 2. An output that the service could not read is transient, whatever the status: the model may write another.
    /// 3. The service's own statement ([`Self::retryable`]) counts.
    /// 4. Of the error statuses, which an error within a stream may also name, 408, 409, 429, 499 and those from 500
    ///    on are transient.
    /// 5. An error without an error status is transient, unless its kind is [`ProviderErrorKind::Status`] or
    ///    [`ProviderErrorKind::TooLarge`].
    #[must_use]
    pub fn is_transient(&self) -> bool {
        // The same request would be refused again.
        if self.is_context_overflow() {
            return false;
        }
        if self.kind == ProviderErrorKind::UnparsableOutput {
            return true;
        }
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
                | ProviderErrorKind::UnparsableOutput
                | ProviderErrorKind::BreakerOpen => true,
                ProviderErrorKind::Status
                | ProviderErrorKind::TooLarge
                | ProviderErrorKind::EmptyAnswer
                | ProviderErrorKind::Refused => false,
            },
        }
    }
}
