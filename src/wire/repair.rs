//! JSON repair: corrects the invalid JSON of payloads that some services send. The arguments of a call are
//! parsed by `response::arguments`, and those of a call in the text by `tool_protocol`.

use std::borrow::Cow;

use serde_json::Value;
use serde_json::value::RawValue;

/// The result of repairing a payload that could not be parsed.
pub(crate) enum Repaired<'a> {
    /// The same payload, corrected. It may still be invalid in other ways.
    Payload(String),
    /// The payloads that arrived as one.
    Payloads(Vec<&'a str>),
}

/// Repairs a payload. Returns `None` if it finds nothing to correct. Nothing is lost, except that a
/// lone surrogate becomes U+FFFD, `NaN`, `Infinity` and numbers out of range become `null`, and only the last value of a
/// repeated key counts.
#[cold]
pub(crate) fn repair(text: &str) -> Option<Repaired<'_>> {
    // Without the blank line between them, two server-sent events are read as one.
    let starts_payload = |line: &str| line.starts_with('{') || line == "[DONE]";
    if text.contains('\n') && text.lines().all(|line| starts_payload(line.trim())) {
        return Some(Repaired::Payloads(text.lines().collect()));
    }
    // Some services send two payloads in one event, with nothing between them.
    let payloads = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    if let Ok(payloads) = payloads.collect::<Result<Vec<_>, _>>()
        && payloads.len() > 1
    {
        return Some(Repaired::Payloads(payloads.into_iter().map(RawValue::get).collect()));
    }
    // A repeated key makes the typed parse fail. The last one counts.
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        return Some(Repaired::Payload(value.to_string()));
    }
    let repaired = repair_tokens(&replace_lone_surrogates(text)).into_owned();
    (repaired != text).then_some(Repaired::Payload(repaired))
}

/// Parses a JSON value. A lone surrogate becomes U+FFFD.
pub(crate) fn parse_value(text: &str) -> Option<Value> {
    serde_json::from_str(text)
        .or_else(|_| serde_json::from_str(&replace_lone_surrogates(text)))
        .ok()
}

/// Replaces `NaN`, `Infinity`, `-Infinity` and numbers out of range by `null`, and escapes control characters within
/// strings.
pub fn repair_tokens(text: &str) -> Cow<'_, str> {
    let mut repaired = String::new();
    let (mut copied, mut in_string, mut escaped) = (0, false, false);
    let mut token_end = 0;
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
            b'N' | b'I' | b'-' | b'0'..=b'9' if !in_string && at >= token_end => {
                let (length, is_finite) = number_token(text.get(at..).unwrap_or_default());
                token_end = at + length;
                (!is_finite).then(|| (length, "null".to_owned()))
            }
            _ => None,
        };
        if let Some((length, replacement)) = found {
            repaired.push_str(text.get(copied..at).unwrap_or_default());
            repaired.push_str(&replacement);
            copied = at + length;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    repaired.push_str(text.get(copied..).unwrap_or_default());
    Cow::Owned(repaired)
}

/// Returns the length of the token at the beginning of a text, and whether it is a finite number. What is no number
/// counts as finite.
fn number_token(text: &str) -> (usize, bool) {
    let words = ["NaN", "Infinity", "-Infinity"];
    if let Some(word) = words.iter().find(|word| text.starts_with(**word)) {
        return (word.len(), false);
    }
    let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let length = text.bytes().take_while(|byte| is_part(byte)).count();
    let token = text.get(..length).unwrap_or_default();
    let is_infinite = token.parse::<f64>().is_ok_and(f64::is_infinite);
    (length.max(1), !is_infinite)
}

/// Replaces every escaped surrogate that is not part of a pair by an escaped U+FFFD.
pub fn replace_lone_surrogates(text: &str) -> Cow<'_, str> {
    let code_unit = |at: usize| -> Option<u16> {
        let digits = text.get(at..)?.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut repaired = String::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(found) = text.get(at..).and_then(|rest| rest.find('\\')) {
        let escape = at + found;
        at = match (code_unit(escape), code_unit(escape + 6)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => escape + 12,
            (Some(0xD800..=0xDFFF), _) => {
                repaired.push_str(text.get(copied..escape).unwrap_or_default());
                repaired.push_str("\\ufffd");
                copied = escape + 6;
                copied
            }
            // Skips the escaped character, which is ASCII in JSON.
            (Some(_) | None, _) => escape + 2,
        };
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    repaired.push_str(text.get(copied..).unwrap_or_default());
    Cow::Owned(repaired)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_finite_numbers_and_control_characters_are_repaired() {
        for (text, expected) in [
            (
                r#"{"a":NaN,"b":[Infinity,-Infinity],"c":-1}"#,
                r#"{"a":null,"b":[null,null],"c":-1}"#,
            ),
            (r#"{"NaN":"\" -Infinity \\","a":NaN}"#, r#"{"NaN":"\" -Infinity \\","a":null}"#),
            (
                r#"[1e999,-2.5E+400,1e308,-0.5e-999,12,"1e999",-Infinity]"#,
                r#"[null,null,1e308,-0.5e-999,12,"1e999",null]"#,
            ),
            ("{\n\"a\":\"x\ty\0\"}", "{\n\"a\":\"x\\u0009y\\u0000\"}"),
            (r#"{"a":"é"}"#, r#"{"a":"é"}"#),
            ("\"\\", "\"\\"),
        ] {
            assert_eq!(repair_tokens(text), expected, "{text}");
        }
    }

    #[test]
    fn lone_surrogates_are_replaced_and_pairs_are_kept() {
        for (text, repaired) in [
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
            assert_eq!(replace_lone_surrogates(text), repaired, "{text}");
        }
    }
}
