//! Payloads that are no JSON as they came, and can be read all the same.

use std::borrow::Cow;

use serde_json::Value;
use serde_json::value::RawValue;

/// What became of a payload that was no JSON.
pub(in crate::wire) enum Mended<'a> {
    /// The same payload, readable.
    Text(String),
    /// Several payloads.
    Several(Vec<&'a str>),
}

/// Makes a payload readable that is not: without loss, but with U+FFFD for half a character and
/// `null` for a number that is none.
#[cold]
pub(in crate::wire) fn mend(text: &str) -> Option<Mended<'_>> {
    // An event without the blank line after it is joined with the next one.
    let starts_payload = |line: &str| line.starts_with('{') || line == "[DONE]";
    if text.contains('\n') && text.lines().all(|line| starts_payload(line.trim())) {
        return Some(Mended::Several(text.lines().collect()));
    }
    // Two payloads in one event, with nothing between them.
    let payloads = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    if let Ok(payloads) = payloads.collect::<Result<Vec<_>, _>>()
        && payloads.len() > 1
    {
        return Some(Mended::Several(payloads.into_iter().map(RawValue::get).collect()));
    }
    // A key that stands twice: the last one counts.
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        return Some(Mended::Text(value.to_string()));
    }
    let whole = replace_lone_surrogates(text);
    match respell(&whole) {
        Cow::Owned(mended) => Some(Mended::Text(mended)),
        Cow::Borrowed(_) => match whole {
            Cow::Owned(mended) => Some(Mended::Text(mended)),
            Cow::Borrowed(_) => None,
        },
    }
}

/// A JSON value, with U+FFFD for half a character.
pub(in crate::wire) fn value_of(text: &str) -> Option<Value> {
    serde_json::from_str(text)
        .or_else(|_| serde_json::from_str(&replace_lone_surrogates(text)))
        .ok()
}

/// Writes in JSON what some services do not: numbers that are none become `null`, and control
/// characters within a string are escaped.
fn respell(text: &str) -> Cow<'_, str> {
    let mut respelt = String::new();
    let (mut kept, mut in_string, mut escaped) = (0, false, false);
    for (at, byte) in text.bytes().enumerate() {
        let found = match byte {
            _ if escaped => {
                escaped = false;
                continue;
            }
            b'\\' => {
                escaped = in_string;
                continue;
            }
            b'"' => {
                in_string = !in_string;
                continue;
            }
            0..0x20 if in_string => Some((1, format!("\\u{byte:04x}"))),
            b'N' | b'I' | b'-' if !in_string => ["NaN", "Infinity", "-Infinity"]
                .iter()
                .find(|word| at >= kept && text.get(at..).is_some_and(|t| t.starts_with(**word)))
                .map(|word| (word.len(), "null".to_owned())),
            _ => None,
        };
        if let Some((length, instead)) = found {
            respelt.push_str(text.get(kept..at).unwrap_or_default());
            respelt.push_str(&instead);
            kept = at + length;
        }
    }
    if kept == 0 {
        return Cow::Borrowed(text);
    }
    respelt.push_str(text.get(kept..).unwrap_or_default());
    Cow::Owned(respelt)
}

/// Writes U+FFFD in the place of every escape that is half a surrogate pair.
pub(crate) fn replace_lone_surrogates(text: &str) -> Cow<'_, str> {
    let unit = |at: usize| -> Option<u16> {
        let digits = text.get(at..)?.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut mended = String::new();
    let (mut kept, mut at) = (0, 0);
    while let Some(found) = text.get(at..).and_then(|rest| rest.find('\\')) {
        let escape = at + found;
        at = match (unit(escape), unit(escape + 6)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => escape + 12,
            (Some(0xD800..=0xDFFF), _) => {
                mended.push_str(text.get(kept..escape).unwrap_or_default());
                mended.push_str("\\ufffd");
                kept = escape + 6;
                kept
            }
            // Past the escaped character, which is ASCII in JSON.
            (Some(_) | None, _) => escape + 2,
        };
    }
    if kept == 0 {
        return Cow::Borrowed(text);
    }
    mended.push_str(text.get(kept..).unwrap_or_default());
    Cow::Owned(mended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_json_is_respelt() {
        for (text, expected) in [
            (
                r#"{"a":NaN,"b":[Infinity,-Infinity],"c":-1}"#,
                r#"{"a":null,"b":[null,null],"c":-1}"#,
            ),
            (r#"{"NaN":"\" -Infinity \\","a":NaN}"#, r#"{"NaN":"\" -Infinity \\","a":null}"#),
            ("{\n\"a\":\"x\ty\0\"}", "{\n\"a\":\"x\\u0009y\\u0000\"}"),
            (r#"{"a":"é"}"#, r#"{"a":"é"}"#),
            ("\"\\", "\"\\"),
        ] {
            assert_eq!(respell(text), expected, "{text}");
        }
    }

    #[test]
    fn lone_surrogates_are_replaced_and_pairs_are_kept() {
        for (text, mended) in [
            (r"a\\ud83d", r"a\\ud83d"),
            (r"\ud83d\ude00", r"\ud83d\ude00"),
            (r"\u00e9\n", r"\u00e9\n"),
            (r"\ud83d", r"\ufffd"),
            (r"x\ude00y", r"x\ufffdy"),
            (r"\ud83d\ud83d\ude00", r"\ufffd\ud83d\ude00"),
            (r"\ud83dé", r"\ufffdé"),
            (r"\ud8", r"\ud8"),
            (r"\", r"\"),
        ] {
            assert_eq!(replace_lone_surrogates(text), mended, "{text}");
        }
    }
}
