//! One payload of a response, whatever its wire: what stands around the JSON that dialects read.

use serde_json::value::RawValue;

use super::dialect::Dialect;
use super::error::{malformed, named_error};
use super::mend::{Mended, mend};
use super::repeated::Repeated;
use super::{Delta, Problem};
use crate::types::excerpt;

/// Reads one payload of a stream, or a whole plain body; `event` is the event's name, where it has
/// one.
///
/// An error is one on every wire, and so is a payload that cannot be read, which may have held a
/// part of a call. A list of payloads is read one by one.
pub(super) fn read(dialect: &mut impl Dialect, event: &str, text: &str, out: &mut Vec<Delta>) {
    read_in_full(dialect, event, text, out);
}

/// Reads the next payload of a stream; one that is the one before with another text is not parsed.
pub(super) fn read_next<D: Dialect>(
    dialect: &mut D,
    repeated: &mut Repeated,
    event: &str,
    text: &str,
    out: &mut Vec<Delta>,
) {
    let Some(repeats) = D::REPEATS else { return read(dialect, event, text, out) };
    if let Some((piece, text)) = repeated.read(event, text) {
        dialect.repeated(piece, &text);
        return piece.say(&text, out);
    }
    let before = out.len();
    if read_in_full(dialect, event, text, out) {
        repeated.learn(event, text, out.get(before..).unwrap_or_default(), repeats);
    } else {
        repeated.forget();
    }
}

/// Returns whether it was one object, which was read as it stands.
fn read_in_full(dialect: &mut impl Dialect, event: &str, text: &str, out: &mut Vec<Delta>) -> bool {
    let mut text = text.trim();
    // Some proxies put the field's name before what has it already.
    while let Some(rest) = text.strip_prefix("data:") {
        text = rest.trim_start();
    }
    match text.as_bytes().first() {
        _ if text == "[DONE]" => dialect.done_word(out),
        _ if event == "error" => out.push(Delta::Error(named_error(text))),
        None => {}
        Some(b'{') => return object(dialect, event, text, out),
        Some(b'[') => match serde_json::from_str::<Vec<&RawValue>>(text) {
            Ok(items) => {
                for item in items.iter().filter(|item| item.get().starts_with('{')) {
                    object(dialect, event, item.get(), out);
                }
            }
            Err(error) => out.push(malformed(text, &error)),
        },
        Some(_) => {
            out.push(Delta::Problem(Problem { code: "not_json", detail: excerpt(text, 200) }));
        }
    }
    false
}

/// Returns whether nothing had to be mended.
fn object(dialect: &mut impl Dialect, event: &str, text: &str, out: &mut Vec<Delta>) -> bool {
    let Err(error) = dialect.object(event, text, out) else { return true };
    match mend(text) {
        Some(Mended::Text(mended)) => {
            if dialect.object(event, &mended, out).is_err() {
                out.push(malformed(text, &error));
            }
        }
        Some(Mended::Several(payloads)) => {
            for payload in payloads {
                read(dialect, "", payload, out);
            }
        }
        None => out.push(malformed(text, &error)),
    }
    false
}

/// What the payloads of one whole response decode to, for the tests of the dialects.
#[cfg(test)]
pub(super) fn deltas<D: Dialect>(payloads: &[&str]) -> Vec<Delta> {
    let mut dialect = D::default();
    let mut out = Vec::new();
    for payload in payloads {
        read(&mut dialect, "", payload, &mut out);
    }
    dialect.end(&mut out);
    out
}
