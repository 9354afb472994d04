//! Every recorded response decodes to its entry in the manifest: whole, cut at every byte, with
//! other line ends, and with the pieces of its calls interleaved.
//!
//! The recordings are not part of the crate. They are read from `$CALLSHEET_CORPUS`, or else from
//! `../shared/corpus` beside the clone. Without them the tests pass, unless `CI=true`.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]
#![expect(clippy::unwrap_used, reason = "a test helper that fails is a failed test")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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

/// Returns whether the reasoning has a text, and that only in `reasoning_details`. The clients that made the manifest
/// do not read it.
fn has_details_alone(body: &[u8]) -> bool {
    let body = String::from_utf8_lossy(body);
    let has = |part: &str| body.contains(part);
    (has("\"reasoning.text\"") || has("\"reasoning.summary\"")) && !has("\"reasoning\":\"")
}

#[track_caller]
fn compare(recording: &Recording, response: &ResponseAssembler, how: &str) {
    let Recording { file, expected, .. } = recording;
    let found = describe_response(response);
    for key in ["text", "reasoning", "refusal"] {
        let text = found[key].as_str().unwrap();
        let chars = expected[format!("{key}_len")].as_u64().unwrap_or(0);
        if key == "reasoning" && chars == 0 && has_details_alone(&recording.body) {
            assert!(!text.is_empty(), "{file} {how}");
            continue;
        }
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
    // The only problem of a recording is that a call is not complete. Each such call has one.
    for problem in found["problems"].as_array().unwrap() {
        let codes = ["arguments_cut_off", "arguments_invalid", "call_not_ended"];
        assert!(codes.iter().any(|code| problem["code"] == *code), "{file} {how}: {problem}");
    }
    let incomplete = found["tool_calls"].as_array().unwrap().iter();
    let incomplete = incomplete.filter(|call| call["complete"] == false).count();
    assert_eq!(found["problems"].as_array().unwrap().len(), incomplete, "{file} {how}");
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

/// A payload of a stream, with the number of its call if it is a piece of one.
struct Piece {
    event: Option<String>,
    payload: Value,
    call: Option<u64>,
}

/// Returns the payloads of a recording. A payload with pieces of several calls becomes several. Returns `None` if
/// the calls cannot be told apart by their indexes.
fn pieces(recording: &Recording) -> Option<Vec<Piece>> {
    let text = String::from_utf8(recording.body.clone()).ok()?;
    let (mut event, mut pieces) = (None, Vec::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("event:") {
            event = Some(name.trim().to_owned());
        }
        let Some(data) = line.strip_prefix("data:") else { continue };
        let event = event.take();
        let Ok(payload) = serde_json::from_str::<Value>(data) else { continue };
        let single = |payload, call| Piece { event: event.clone(), payload, call };
        match recording.wire {
            Wire::OpenaiChat => {
                let calls =
                    payload.pointer("/choices/0/delta/tool_calls").and_then(Value::as_array);
                let calls = calls.cloned().unwrap_or_default();
                if calls.is_empty() {
                    pieces.push(single(payload, None));
                    continue;
                }
                let mut payload = payload;
                let end = payload["choices"][0]["finish_reason"].take();
                for (at, call) in calls.iter().enumerate() {
                    // The rest of the payload comes with its first piece only.
                    let mut one = json!({"choices": [{"index": 0, "delta": {}}]});
                    if at == 0 {
                        one = payload.clone();
                    }
                    one["choices"][0]["delta"]["tool_calls"] = json!([call]);
                    pieces.push(single(one, Some(call["index"].as_u64()?)));
                }
                if !end.is_null() {
                    let end = json!({"choices": [{"delta": {}, "finish_reason": end}]});
                    pieces.push(single(end, None));
                }
            }
            Wire::OpenaiResponses => {
                let kind = payload["type"].as_str().unwrap_or_default();
                let is_call = payload["item"]["type"] == "function_call"
                    || kind.starts_with("response.function_call_arguments.");
                let call = if is_call { Some(payload["output_index"].as_u64()?) } else { None };
                pieces.push(single(payload, call));
            }
            _ => {
                let is_call = payload["content_block"]["type"] == "tool_use"
                    || payload["delta"]["type"] == "input_json_delta";
                let index = payload["index"].as_u64();
                let stops = payload["type"] == "content_block_stop"
                    && pieces
                        .iter()
                        .any(|piece: &Piece| piece.call.is_some() && piece.call == index);
                let call = if is_call || stops { Some(index?) } else { None };
                pieces.push(single(payload, call));
            }
        }
    }
    Some(pieces)
}

/// Returns the pieces with those of the calls in another order, which keeps the order within each call. `next`
/// chooses the call of the next piece from the numbers of the calls that have some left.
fn interleaved(pieces: &[Piece], mut next: impl FnMut(&[u64]) -> usize) -> Vec<&Piece> {
    let first = pieces.iter().position(|piece| piece.call.is_some()).unwrap();
    let last = pieces.iter().rposition(|piece| piece.call.is_some()).unwrap();
    let (before, rest) = pieces.split_at(first);
    let (within, after) = rest.split_at(last - first + 1);
    let others = within.iter().filter(|piece| piece.call.is_none());
    let mut order: Vec<&Piece> = before.iter().chain(others).collect();
    let mut calls = BTreeMap::<u64, VecDeque<&Piece>>::new();
    for piece in within {
        if let Some(call) = piece.call {
            calls.entry(call).or_default().push_back(piece);
        }
    }
    while !calls.is_empty() {
        let left: Vec<u64> = calls.keys().copied().collect();
        let chosen = left[next(&left)];
        let queue = calls.get_mut(&chosen).unwrap();
        order.extend(queue.pop_front());
        if queue.is_empty() {
            calls.remove(&chosen);
        }
    }
    order.extend(after);
    order
}

fn body_of(pieces: &[&Piece]) -> Vec<u8> {
    let frame = |piece: &&Piece| {
        let event = piece.event.as_ref().map(|name| format!("event: {name}\n"));
        format!("{}data: {}\n\n", event.unwrap_or_default(), piece.payload)
    };
    pieces.iter().map(frame).collect::<String>().into_bytes()
}

/// The pieces of parallel calls may come in any order that keeps the order within each call.
#[test]
fn recordings_with_interleaved_calls_have_the_same_calls() {
    let wires = [Wire::OpenaiChat, Wire::OpenaiResponses, Wire::AnthropicMessages];
    let mut recordings = recordings();
    let any = !recordings.is_empty();
    recordings.retain(|recording| {
        let calls = recording.expected["tool_calls"].as_array().map_or(0, Vec::len);
        wires.contains(&recording.wire) && recording.framing == Framing::Sse && calls > 1
    });
    let mut shuffled = BTreeMap::<String, usize>::new();
    for recording in &recordings {
        let Some(pieces) = pieces(recording) else { continue };
        let indexes: BTreeSet<_> = pieces.iter().filter_map(|piece| piece.call).collect();
        let whole = decode(recording.wire, recording.framing, [&recording.body[..]]);
        let calls = |response: &ResponseAssembler| describe_response(response)["tool_calls"].take();
        if indexes.len() != whole.calls().len() || !ended_well(&whole) {
            continue;
        }
        *shuffled.entry(recording.wire.to_string()).or_default() += 1;
        let (mut turn, mut seed) = (0_usize, 42_u64);
        let mut random = move |left: &[u64]| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % left.len()
        };
        let mut orders = vec![
            interleaved(&pieces, |left| left.len() - 1),
            interleaved(&pieces, |left| {
                turn += 1;
                turn % left.len()
            }),
        ];
        orders.extend((0..4).map(|_| interleaved(&pieces, &mut random)));
        for order in orders {
            let body = body_of(&order);
            let Recording { file, wire, framing, .. } = recording;
            let response = decode(*wire, *framing, [&body[..]]);
            assert!(ended_well(&response), "{file}: {}", String::from_utf8_lossy(&body));
            assert_eq!(calls(&response), calls(&whole), "{file}");
            assert_eq!(response.text(), whole.text(), "{file}");
            assert!(decode(*wire, *framing, body.chunks(1)) == response, "{file} byte by byte");
            if body.len() <= TWO_PUSHES_BYTES_MAX {
                for cut in 0..=body.len() {
                    let (head, tail) = body.split_at(cut);
                    assert!(decode(*wire, *framing, [head, tail]) == response, "{file} at {cut}");
                }
            }
        }
    }
    println!("{shuffled:?}");
    assert!(!any || shuffled.len() == wires.len(), "{shuffled:?}");
}
