//! The error of a call: the text for the model, and the chain of causes for the log. The text of a converted error is
//! cut at 200 characters. `NextAttempt` says whether another attempt may help (`retries`).

use std::error::Error;
use std::fmt;
use std::time::Duration;

use callsheet_values::types::{FailureKind, ToolStatus, excerpt};

/// Maximum number of characters of another error's text that the model reads.
const SOURCE_TEXT_CHARS_MAX: usize = 200;

/// The error of a call that failed. The model reads its message after `Error: `.
///
/// `?` converts every type that implements [`std::error::Error`]; for others, such as a `String` or a boxed error, use
/// `.map_err(ToolError::new)`. The message is then the text of that error, without those of its
/// sources and cut at 200 characters; the log has the whole chain. [`with_message`](Self::with_message) replaces
/// the message for the model:
///
/// ```
/// use callsheet::tool::ToolError;
///
/// fn port(text: &str) -> Result<u16, ToolError> {
///     if text.is_empty() {
///         return Err(ToolError::new("the port is missing"));
///     }
///     Ok(text.parse::<u16>()?)
/// }
///
/// assert_eq!(port("").unwrap_err().message(), "the port is missing");
/// assert_eq!(port("eighty").unwrap_err().message(), "invalid digit found in string");
///
/// let error = port("eighty").unwrap_err().with_message("give the port as a number");
/// assert_eq!(error.message(), "give the port as a number");
/// assert!(error.source().is_some());
/// ```
///
/// It does not implement [`std::error::Error`], which would rule out this conversion, but `?`
/// converts it to a boxed error.
pub struct ToolError {
    message: String,
    kind: FailureKind,
    status: ToolStatus,
    next_attempt: NextAttempt,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// The prospects of another attempt of the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NextAttempt {
    /// It may succeed.
    #[default]
    MayHelp,
    /// It may succeed after this time.
    After(Duration),
    /// It would fail in the same way.
    Useless,
}

impl ToolError {
    /// Makes an error with a message, which the model reads up to `max_result_bytes`. There is no source to log.
    #[must_use]
    pub fn new(message: impl fmt::Display) -> Self {
        let (kind, status) = (FailureKind::ToolError, ToolStatus::Failed);
        let next_attempt = NextAttempt::MayHelp;
        Self { message: message.to_string(), kind, status, next_attempt, source: None }
    }

    /// Replaces the message for the model. The source stays for the log.
    #[must_use]
    pub fn with_message(self, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..self }
    }

    /// Declares that another attempt would fail in the same way, for example because the arguments are
    /// wrong. The call is not tried again ([`retries`](super::ToolSpec::retries)), and does not count as a
    /// failure of the tool for its circuit breaker.
    #[must_use]
    pub fn permanent(self) -> Self {
        Self { next_attempt: NextAttempt::Useless, ..self }
    }

    /// Declares that another attempt may succeed after a time, such as the one that a service asks for. For
    /// the circuit breaker of the tool, such an error counts neither as a failure nor as a success.
    #[must_use]
    pub fn retry_after(self, wait: Duration) -> Self {
        Self { next_attempt: NextAttempt::After(wait), ..self }
    }

    /// Returns whether another attempt may succeed.
    #[must_use]
    pub fn next_attempt(&self) -> NextAttempt {
        self.next_attempt
    }

    /// Returns whether the call certainly had no effect, because it was not sent.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        let unsent = matches!(self.kind, FailureKind::NotSent | FailureKind::ServerDown);
        unsent && self.status == ToolStatus::Failed
    }

    /// Replaces the message by the result of a function.
    #[must_use]
    pub fn map_message(self, change: impl FnOnce(String) -> String) -> Self {
        Self { message: change(self.message), ..self }
    }

    /// Sets the reason that the metadata of the result names.
    #[must_use]
    pub fn with_kind(self, kind: FailureKind) -> Self {
        Self { kind, ..self }
    }

    /// Sets the status of the call.
    #[cfg(feature = "mcp")]
    #[must_use]
    pub fn with_status(self, status: ToolStatus) -> Self {
        Self { status, ..self }
    }

    /// Returns the status of the call.
    #[must_use]
    pub fn status(&self) -> ToolStatus {
        self.status
    }

    /// Returns the reason that the metadata of the result names.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Returns the message for the model.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the error that this one was converted from.
    #[must_use]
    pub fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.source.as_deref()?)
    }

    /// Returns the texts of the converted error and of all its sources, for the log.
    pub fn source_chain(&self) -> Option<String> {
        let mut error = self.source()?;
        let mut chain = error.to_string();
        while let Some(source) = error.source() {
            chain.push_str(": ");
            chain.push_str(&source.to_string());
            error = source;
        }
        Some(chain)
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for ToolError {
    fn from(error: E) -> Self {
        let message = excerpt(&error.to_string(), SOURCE_TEXT_CHARS_MAX);
        Self { source: Some(Box::new(error)), ..Self::new(message) }
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolError")
            .field("message", &self.message)
            .field("source", &self.source)
            .finish()
    }
}

/// A [`ToolError`] as an error of the standard library.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct BoxedToolError {
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl From<ToolError> for Box<dyn Error + Send + Sync> {
    fn from(ToolError { message, source, .. }: ToolError) -> Self {
        Box::new(BoxedToolError { message, source })
    }
}

impl From<ToolError> for Box<dyn Error> {
    fn from(ToolError { message, source, .. }: ToolError) -> Self {
        Box::new(BoxedToolError { message, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("query {query:?}")]
    struct QueryError {
        query: String,
        source: std::num::ParseIntError,
    }

    fn query(query: &str) -> Result<u8, ToolError> {
        let parsed = query.parse::<u8>();
        Ok(parsed.map_err(|source| QueryError { query: query.to_owned(), source })?)
    }

    #[test]
    fn the_model_reads_the_top_error_and_the_log_has_the_chain() {
        let error = query("x").unwrap_err();
        assert_eq!(error.to_string(), "query \"x\"");
        let chain = "query \"x\": invalid digit found in string";
        assert_eq!(error.source_chain().as_deref(), Some(chain));
        let error = error.with_message("no such query");
        assert_eq!(error.message(), "no such query");
        assert_eq!(error.source_chain().as_deref(), Some(chain));
        assert!(error.source().is_some_and(<dyn Error>::is::<QueryError>));
    }

    #[test]
    fn the_text_of_a_converted_error_is_cut_but_a_message_is_not() {
        let long = "x".repeat(300);
        let error = query(&long).unwrap_err();
        assert_eq!(error.message().chars().count(), 201);
        assert!(error.message().starts_with("query \"xxx") && error.message().ends_with('…'));
        assert!(error.source_chain().is_some_and(|chain| chain.contains(&long)));
        assert_eq!(ToolError::new(&long).message(), long);
        assert_eq!(ToolError::new(&long).source_chain(), None);
    }

    #[test]
    fn a_tool_error_becomes_a_boxed_error_with_its_source() {
        let boxed: Box<dyn Error> = query("x").unwrap_err().with_message("no").into();
        assert_eq!(boxed.to_string(), "no");
        assert!(boxed.source().is_some_and(<dyn Error>::is::<QueryError>));
    }
}
