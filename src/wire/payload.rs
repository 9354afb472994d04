//! One payload of a response, whatever its wire: what stands around the JSON that dialects read.

use serde_json::value::RawValue;

use super::dialect::Dialect;
use super::error::{malformed, named_error};
use super::mend::{Mended, mend};
use super::piece::Outline;
use super::shapes::Known;
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

/// Reads the next payload of a stream; one whose shape is known is not parsed.
pub(super) fn read_next<D: Dialect>(
    dialect: &mut D,
    known: &mut Known,
    event: &str,
    text: &str,
    out: &mut Vec<Delta>,
) {
    if let Some(piece) = known.read(event, text) {
        dialect.piece(&piece, out);
    } else if let Some(outline) = read_in_full(dialect, event, text, out) {
        known.learn(event, text, &outline);
    }
}

/// Returns where its piece stands, if it was one object which holds no more than that.
fn read_in_full<'p>(
    dialect: &mut impl Dialect,
    event: &str,
    text: &'p str,
    out: &mut Vec<Delta>,
) -> Option<Outline<'p>> {
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
    None
}

/// As [`read_in_full`]; what had to be mended has no piece.
fn object<'p>(
    dialect: &mut impl Dialect,
    event: &str,
    text: &'p str,
    out: &mut Vec<Delta>,
) -> Option<Outline<'p>> {
    let error = match dialect.object(event, text, out) {
        Ok(outline) => return outline,
        Err(error) => error,
    };
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
    None
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
