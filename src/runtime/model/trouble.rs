//! What went wrong in an exchange, in our words.

use std::error::Error;
use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, RETRY_AFTER};

use crate::types::{ProviderError, ProviderErrorKind};

/// The longest wait that is taken from a service; what it asks for beyond this is as good as never.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// An error of the client, before or within the body.
pub(super) fn transport(error: reqwest::Error) -> ProviderError {
    let kind = if error.is_connect() {
        ProviderErrorKind::Connect
    } else if error.is_timeout() {
        ProviderErrorKind::Timeout
    } else {
        ProviderErrorKind::Transport
    };
    ProviderError::new(kind, describe(&error.without_url()))
}

/// An error and its causes in one line: the last one says most.
pub(super) fn describe(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// Nothing came for too long.
pub(super) fn silence(what: &str, after: Duration) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Timeout, format!("{what} for {after:?}"))
}

/// How long the service asks us to wait: `retry-after-ms`, or `retry-after` in seconds or as an
/// HTTP date.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let asked = match text("retry-after-ms").and_then(number) {
        Some(ms) => Duration::try_from_secs_f64(ms / 1000.0).ok(),
        None => {
            let value = text(RETRY_AFTER.as_str())?;
            match number(value) {
                Some(seconds) => Duration::try_from_secs_f64(seconds).ok(),
                None => until(value, now),
            }
        }
    };
    asked.map(|wait| wait.min(RETRY_AFTER_MAX))
}

/// From now until an HTTP date; zero if it is over.
fn until(date: &str, now: SystemTime) -> Option<Duration> {
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date.trim()).ok()?;
    Some(SystemTime::from(date).duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &'static str, value: &'static str, expect: Option<Duration>) {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_480);
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        assert_eq!(retry_after(&headers, now), expect, "{name}: {value}");
    }

    #[test]
    fn reads_every_form_of_retry_after() {
        check("retry-after", "7", Some(Duration::from_secs(7)));
        check("retry-after", "0.5", Some(Duration::from_millis(500)));
        check("retry-after", "Wed, 21 Oct 2015 07:28:10 GMT", Some(Duration::from_secs(10)));
        check("retry-after", "Wed, 21 Oct 2015 07:27:00 GMT", Some(Duration::ZERO));
        check("retry-after", "99999999999", Some(RETRY_AFTER_MAX));
        check("retry-after", "-3", None);
        check("retry-after", "soon", None);
        check("retry-after-ms", "1500", Some(Duration::from_millis(1500)));
        check("x-other", "7", None);
    }

    #[test]
    fn names_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("send request: no route")]
        struct Outer(#[source] std::io::Error);
        let inner = std::io::Error::other("no route");
        assert_eq!(describe(&Outer(inner)), "send request: no route");
    }
}
