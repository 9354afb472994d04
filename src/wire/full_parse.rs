//! The full parse of one payload: handles everything around the JSON object that a dialect reads.

use serde_json::value::RawValue;

use super::dialect::PayloadDecoder;
use super::error::{malformed, named_error};
use super::fast_path::TemplateFields;
use super::repair::{Repaired, repair};
use super::{Delta, Problem};
use crate::types::excerpt;

/// Parses one payload of a stream, or a complete plain body, and appends its deltas to `out`.
/// `event` is the name of the server-sent event, or empty.
///
/// An event named `error` is an error on every wire. So is a payload that cannot be read, because
/// it may have held part of a call. A JSON array is read as a list of payloads.
///
/// Returns the positions of the fields if the payload is a single object that holds one change.
pub(super) fn parse_in_full<'p>(
    decoder: &mut dyn PayloadDecoder,
    event: &str,
    text: &'p str,
    out: &mut Vec<Delta>,
) -> Option<TemplateFields<'p>> {
    let mut text = text.trim();
    // Some proxies repeat the field name of server-sent events.
    while let Some(rest) = text.strip_prefix("data:") {
        text = rest.trim_start();
    }
    match text.as_bytes().first() {
        _ if text == "[DONE]" => decoder.done_marker(out),
        _ if event == "error" => out.push(Delta::Error(named_error(text))),
        None => {}
        Some(b'{') => return parse_object(decoder, event, text, out),
        Some(b'[') => match serde_json::from_str::<Vec<&RawValue>>(text) {
            Ok(items) => {
                for item in items.iter().filter(|item| item.get().starts_with('{')) {
                    parse_object(decoder, event, item.get(), out);
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

/// Parses an object, after a repair if necessary. A repaired payload never becomes a template.
fn parse_object<'p>(
    decoder: &mut dyn PayloadDecoder,
    event: &str,
    text: &'p str,
    out: &mut Vec<Delta>,
) -> Option<TemplateFields<'p>> {
    let error = match decoder.parse_payload(event, text, out) {
        Ok(fields) => return fields,
        Err(error) => error,
    };
    match repair(text) {
        Some(Repaired::Payload(repaired)) => {
            if decoder.parse_payload(event, &repaired, out).is_err() {
                out.push(malformed(text, &error));
            }
        }
        Some(Repaired::Payloads(payloads)) => {
            for payload in payloads {
                parse_in_full(decoder, "", payload, out);
            }
        }
        None => out.push(malformed(text, &error)),
    }
    None
}

/// Decodes the payloads of one complete response, for the tests of the dialects.
#[cfg(test)]
pub(super) fn deltas<D: PayloadDecoder + Default>(payloads: &[&str]) -> Vec<Delta> {
    let mut decoder = D::default();
    let mut out = Vec::new();
    for payload in payloads {
        parse_in_full(&mut decoder, "", payload, &mut out);
    }
    decoder.end_of_body(&mut out);
    out
}
