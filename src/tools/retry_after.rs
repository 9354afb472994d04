//! The wait that an HTTP service asks for before the next attempt: `Retry-After`. Tools that send requests read it,
//! and so does the model client (`runtime::model::error`).

use std::time::{Duration, SystemTime};

/// Upper bound of a wait that is read from a response, so that adding it to a time cannot overflow. The callers have
/// lower limits: `SERVICE_WAIT_MAX` of `turn::retry` for a model, and its timeout for a tool.
const RETRY_AFTER_READ_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the requested wait: `retry-after-ms`, or, if that is missing or invalid, `retry-after` in seconds or as an
/// HTTP date. It is at most `RETRY_AFTER_READ_MAX`.
pub fn retry_after<'v>(
    header: impl Fn(&str) -> Option<&'v str>,
    now: SystemTime,
) -> Option<Duration> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let seconds = |number: f64| {
        let wait = || Duration::try_from_secs_f64(number).unwrap_or(RETRY_AFTER_READ_MAX);
        (number >= 0.0).then(wait)
    };
    let ms = header("retry-after-ms").and_then(number).and_then(|ms| seconds(ms / 1000.0));
    let wait = ms.or_else(|| {
        let value = header("retry-after")?;
        match number(value) {
            Some(number) => seconds(number),
            None => until(value, now),
        }
    });
    wait.map(|wait| wait.min(RETRY_AFTER_READ_MAX))
}

/// Returns the time from now until an HTTP date, or zero if the date is in the past.
fn until(date: &str, now: SystemTime) -> Option<Duration> {
    let date = httpdate::parse_http_date(date.trim()).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &'static str, value: &'static str, expect: Option<Duration>) {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_480);
        let header = |asked: &str| (asked == name).then_some(value);
        assert_eq!(retry_after(header, now), expect, "{name}: {value}");
    }

    #[test]
    fn every_form_of_retry_after_is_read() {
        check("retry-after", "7", Some(Duration::from_secs(7)));
        check("retry-after", "0.5", Some(Duration::from_millis(500)));
        check("retry-after", "Wed, 21 Oct 2015 07:28:10 GMT", Some(Duration::from_secs(10)));
        check("retry-after", "Wed, 21 Oct 2015 07:27:00 GMT", Some(Duration::ZERO));
        for large in ["99999999999", "1e20", "inf"] {
            check("retry-after", large, Some(RETRY_AFTER_READ_MAX));
        }
        check("retry-after", "-3", None);
        check("retry-after", "soon", None);
        check("retry-after-ms", "1500", Some(Duration::from_millis(1500)));
        check("x-other", "7", None);
    }

    #[test]
    fn milliseconds_that_cannot_be_a_wait_leave_the_seconds() {
        for (ms, seconds) in [("1500", 2), ("-1", 7), ("soon", 7)] {
            let header = |asked: &str| Some(if asked == "retry-after-ms" { ms } else { "7" });
            let wait = retry_after(header, SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(wait.as_millis().div_ceil(1000), seconds, "{ms}");
        }
    }
}
