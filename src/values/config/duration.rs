//! Parses durations such as `30s`.

use std::time::Duration;

/// Maximum duration: 10 years. Adding it to a clock does not overflow.
pub(super) const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Parses a duration such as `30s`, `5m`, `250ms` or `24h`.
///
/// # Errors
/// If the text is not a duration, or it is longer than 10 years.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let invalid =
        || format!("must be a time such as \"30s\", \"5m\", \"250ms\" or \"24h\", not {text:?}");
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(invalid)?;
    let (amount, unit) = text.split_at(digits);
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(invalid()),
    };
    if amount.is_empty() {
        return Err(invalid());
    }
    let amount: Option<u64> = amount.parse().ok();
    amount
        .and_then(|amount| amount.checked_mul(unit_ms))
        .map(Duration::from_millis)
        .filter(|duration| *duration <= LONGEST)
        .ok_or_else(|| format!("is too long: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, expected) in [
            ("250ms", Some(250)),
            ("30s", Some(30_000)),
            ("5m", Some(300_000)),
            ("24h", Some(86_400_000)),
            ("0s", Some(0)),
            ("", None),
            ("s", None),
            ("30", None),
            ("-1s", None),
            ("1.5s", None),
            ("1 s", None),
            ("30S", None),
            ("5d", None),
            ("99999999999999999999s", None),
            ("18446744073709551615h", None),
            ("999999h", None),
        ] {
            let parsed = parse_duration(text).ok();
            assert_eq!(parsed, expected.map(Duration::from_millis), "{text:?}");
        }
    }
}
