//! Every recorded response decodes to its entry in the manifest: whole, cut at every byte, and with
//! other line ends.
//!
//! The recordings are not part of the crate. They are read from `$CALLSHEET_CORPUS`, or else from
//! `../shared/corpus` beside the clone. Without them the tests pass, unless `CI=true`.
#![expect(clippy::unwrap_used, reason = "a test helper that fails is a failed test")]

use std::path::PathBuf;

use callsheet::response::{ResponseAssembler, ResponseLimits, describe_response, ended_well};
use callsheet::wire::{Decoder, DecoderOptions, Framing, PayloadTemplates, Wire};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Maximum size of a body that is decoded as a whole for every cut.
const TWO_PUSHES_BYTES_MAX: usize = 3 * 1024;
/// Longer bodies are cut within blocks of this size.
const BLOCK_BYTES: usize = 96;

struct Recording {
    file: String,
    wire: Wire,
    framing: Framing,
    body: Vec<u8>,
    expected: Value,
    /// True if the manifest allows another reading. It has the calls of one of them.
    ambiguous: bool,
}

fn recordings() -> Vec<Recording> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/corpus");
    let root = PathBuf::from(std::env::var("CALLSHEET_CORPUS").unwrap_or_else(|_| beside.into()));
    let Ok(manifest) = std::fs::read_to_string(root.join("MANIFEST.jsonl")) else {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "no corpus at {}", root.display());
        eprintln!("skipped: no corpus at {}", root.display());
        return Vec::new();
    };
    let recordings: Vec<_> = manifest
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter_map(|entry| Some((entry["wire_format"].as_str()?.parse().ok()?, entry)))
        .map(|(wire, entry)| Recording {
            file: entry["file"].as_str().unwrap().to_owned(),
            wire,
            framing: entry["framing"].as_str().unwrap().parse().unwrap(),
            body: std::fs::read(root.join(entry["file"].as_str().unwrap())).unwrap(),
            expected: entry["expected"].clone(),
            ambiguous: entry["ambiguous"] == true,
        })
        .collect();
    assert!(!recordings.is_empty(), "the manifest names no recording");
    recordings
}

#[derive(Clone, PartialEq)]
struct State {
    decoder: Decoder,
    response: ResponseAssembler,
}

impl State {
    fn new(wire: Wire, framing: Framing) -> Self {
        Self {
            decoder: Decoder::new(wire, framing, DecoderOptions::default()),
            response: ResponseAssembler::new(ResponseLimits::default()),
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let mut deltas = Vec::new();
        self.decoder.push(bytes, &mut deltas).unwrap();
        deltas.iter().for_each(|delta| drop(self.response.push(delta)));
    }

    fn finish(mut self) -> ResponseAssembler {
        let mut deltas = Vec::new();
        self.decoder.finish(&mut deltas).unwrap();
        deltas.iter().for_each(|delta| drop(self.response.push(delta)));
        let well = ended_well(&self.response);
        self.response.drop_nameless_call();
        if well {
            self.response.seal_all();
        }
        self.response
    }
}

fn decode<'a>(
    wire: Wire,
    framing: Framing,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> ResponseAssembler {
    let mut state = State::new(wire, framing);
    pieces.into_iter().for_each(|piece| state.push(piece));
    state.finish()
}

/// Returns the calls of a manifest's entry in the form of `describe_response`.
///
/// Two things differ from the manifest on purpose. A call without an index has its position in the
/// order of arrival. Empty arguments and the text `null` are `{}`, where the manifest has no
/// object.
fn expected_calls(expected: &Value) -> Vec<Value> {
    let calls = expected["tool_calls"].as_array().unwrap().iter().enumerate();
    calls
        .map(|(position, call)| {
            let raw = call["arguments_raw"].as_str();
            let is_empty = raw.is_some_and(|raw| raw.is_empty() || raw == "null");
            let arguments = if is_empty { json!({}) } else { call["arguments"].clone() };
            assert!(is_empty || call["arguments_valid"] == arguments.is_object());
            json!({
                "index": call["index"].as_u64().unwrap_or(position as u64),
                "id": call["id"],
                "name": call["name"],
                "arguments": arguments,
                "arguments_raw": call["arguments_raw"],
                "kind": call["kind"].as_str().unwrap_or("function"),
            })
        })
        .collect()
}

/// Returns the decoded calls, with the raw text only if the manifest has it.
fn found_calls(found: &Value, expected: &[Value]) -> Vec<Value> {
    let calls = found["tool_calls"].as_array().unwrap().iter().enumerate();
    calls
        .map(|(at, call)| {
            let has_raw = expected.get(at).is_some_and(|call| !call["arguments_raw"].is_null());
            json!({
                "index": call["index"],
                "id": call["id"],
                "name": call["name"],
                "arguments": call["arguments"],
                "arguments_raw": if has_raw { call["arguments_raw"].clone() } else { Value::Null },
                "kind": call["kind"],
            })
        })
        .collect()
}

#[track_caller]
fn compare(recording: &Recording, response: &ResponseAssembler, how: &str) {
    let Recording { file, expected, .. } = recording;
    let found = describe_response(response);
    for key in ["text", "reasoning", "refusal"] {
        let text = found[key].as_str().unwrap();
        let chars = expected[format!("{key}_len")].as_u64().unwrap_or(0);
        assert_eq!(text.chars().count() as u64, chars, "{file} {how} {key}");
        if let Some(hash) = expected[format!("{key}_sha256")].as_str() {
            assert_eq!(hex(&Sha256::digest(text)), hash, "{file} {how} {key}");
        }
    }
    let calls = expected_calls(expected);
    if recording.ambiguous {
        assert_eq!(found["tool_calls"].as_array().unwrap().len(), calls.len(), "{file} {how}");
    } else {
        assert_eq!(found_calls(&found, &calls), calls, "{file} {how}");
    }
    assert_eq!(found["finish_reason"], expected["finish_reason"], "{file} {how}");
    assert_eq!(found["usage"], expected["usage"], "{file} {how}");
    assert_eq!(found["error"]["message"], expected["error"]["message"], "{file} {how}");
    // The only problem of a recording is that the response was cut off within a call.
    for problem in found["problems"].as_array().unwrap() {
        assert_eq!(problem["code"], "arguments_cut_off", "{file} {how}: {problem}");
        let calls = found["tool_calls"].as_array().unwrap();
        assert!(calls.iter().any(|call| call["complete"] == false), "{file} {how}: {problem}");
    }
    // A call is complete unless the response was cut off within it.
    for (at, call) in found["tool_calls"].as_array().unwrap().iter().enumerate() {
        let ended = ended_well(response) || at + 1 < calls.len();
        assert_eq!(call["complete"], ended && call["arguments"].is_object(), "{file} {how}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn recordings_decode_as_a_whole() {
    for recording in recordings() {
        let response = decode(recording.wire, recording.framing, [&recording.body[..]]);
        compare(&recording, &response, "whole");
    }
}

#[test]
fn recordings_decode_byte_by_byte() {
    for recording in recordings() {
        let response = decode(recording.wire, recording.framing, recording.body.chunks(1));
        compare(&recording, &response, "byte by byte");
    }
}

/// A cut at every byte changes nothing.
///
/// A short body is decoded in two pushes for every cut. For long bodies that would take minutes, so
/// they are cut in blocks. After a block was pushed, the decoder and the response are in the same
/// state with and without a cut in it, so the rest is decoded equally.
#[test]
fn recordings_decode_equally_with_every_cut() {
    for Recording { file, wire, framing, body, .. } in recordings() {
        let whole = decode(wire, framing, [&body[..]]);
        if body.len() <= TWO_PUSHES_BYTES_MAX {
            for cut in 0..=body.len() {
                let (head, tail) = body.split_at(cut);
                assert_eq!(decode(wire, framing, [head, tail]), whole, "{file} cut at {cut}");
            }
        }
        let mut state = State::new(wire, framing);
        for (block, number) in body.chunks(BLOCK_BYTES).zip(0..) {
            let mut uncut = state.clone();
            uncut.push(block);
            for cut in 1..block.len() {
                let (head, tail) = block.split_at(cut);
                let mut with_cut = state.clone();
                with_cut.push(head);
                with_cut.push(tail);
                assert!(with_cut == uncut, "{file} cut at {}", number * BLOCK_BYTES + cut);
            }
            state = uncut;
        }
        assert_eq!(state.finish(), whole, "{file} in blocks");
    }
}

/// Templates of other responses change nothing, in any order of the responses.
#[test]
fn recordings_decode_equally_with_templates_of_other_responses() {
    let mut recordings = recordings();
    let mut templates = PayloadTemplates::default();
    recordings.sort_by_key(|recording| recording.wire.to_string());
    let backwards = recordings.iter().rev();
    for Recording { file, wire, framing, body, .. } in recordings.iter().chain(backwards) {
        let whole = decode(*wire, *framing, [&body[..]]);
        for pieces in [body.len().max(1), 7] {
            let decoder = Decoder::with_templates(
                *wire,
                *framing,
                DecoderOptions::default(),
                templates.clone(),
            );
            let mut state = State { decoder, ..State::new(*wire, *framing) };
            body.chunks(pieces).for_each(|piece| state.push(piece));
            let State { mut decoder, mut response } = state;
            let mut deltas = Vec::new();
            decoder.finish(&mut deltas).unwrap();
            deltas.iter().for_each(|delta| drop(response.push(delta)));
            let well = ended_well(&response);
            response.drop_nameless_call();
            if well {
                response.seal_all();
            }
            assert!(response == whole, "{file} in pieces of {pieces}");
            templates = decoder.into_templates();
        }
    }
}

#[test]
fn recordings_decode_with_other_line_ends_comments_and_a_byte_order_mark() {
    for recording in recordings().iter().filter(|recording| recording.framing == Framing::Sse) {
        let text = String::from_utf8(recording.body.clone()).unwrap();
        let lines: Vec<&str> = text.split('\n').map(|line| line.trim_end_matches('\r')).collect();
        for end in ["\n", "\r\n", "\r"] {
            let plain = lines.join(end);
            let commented = lines.join(&format!("{end}: keep-alive{end}"));
            let marked = format!("\u{FEFF}{plain}");
            for body in [plain, commented, marked] {
                let how = format!("with {end:?}");
                let wire = recording.wire;
                compare(recording, &decode(wire, Framing::Sse, [body.as_bytes()]), &how);
                let pieces = body.as_bytes().chunks(7);
                compare(recording, &decode(wire, Framing::Sse, pieces), &how);
            }
        }
    }
}
