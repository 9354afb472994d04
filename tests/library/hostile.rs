//! Hostile responses in every dialect: memory stays bounded, nothing panics, and exceeding a limit is
//! an error that names it.

use std::fmt::Display;

use allocation_counter::measure;
use callsheet::response::{ResponseAssembler, ResponseLimits, describe_response, ended_well};
use callsheet::types::{CALLS_MAX, ProviderErrorKind, Wire};
use callsheet::wire::{Decoder, DecoderOptions, Delta, WireFormat as _};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// Number of bytes of one read.
const READ_BYTES: usize = 16 * 1024;

/// Frames one event of a stream.
fn frame(wire: Wire, event: &dyn Display) -> String {
    match wire {
        Wire::OllamaChat => format!("{event}\n"),
        Wire::OpenaiChat
        | Wire::OpenaiResponses
        | Wire::AnthropicMessages
        | Wire::GeminiGenerate => format!("data: {event}\n\n"),
    }
}

fn text(wire: Wire, text: &str) -> Value {
    match wire {
        Wire::OpenaiChat => json!({"choices": [{"index": 0, "delta": {"content": text}}]}),
        Wire::OpenaiResponses => {
            json!({"type": "response.output_text.delta", "output_index": 0, "delta": text})
        }
        Wire::AnthropicMessages => json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "text_delta", "text": text}}),
        Wire::GeminiGenerate => json!({"candidates": [{"content": {"parts": [{"text": text}]}}]}),
        Wire::OllamaChat => json!({"message": {"content": text}, "done": false}),
    }
}

fn thinking(wire: Wire, text: &str) -> Value {
    match wire {
        Wire::OpenaiChat => {
            json!({"choices": [{"index": 0, "delta": {"reasoning_content": text}}]})
        }
        Wire::OpenaiResponses => {
            json!({"type": "response.reasoning_text.delta", "output_index": 0, "delta": text})
        }
        Wire::AnthropicMessages => json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "thinking_delta", "thinking": text}}),
        Wire::GeminiGenerate => {
            json!({"candidates": [{"content": {"parts": [{"text": text, "thought": true}]}}]})
        }
        Wire::OllamaChat => json!({"message": {"thinking": text}, "done": false}),
    }
}

/// Returns the start of a call, or a complete call if the dialect does not stream arguments.
fn call(wire: Wire, index: usize) -> Value {
    let id = format!("c{index}");
    match wire {
        Wire::OpenaiChat => json!({"choices": [{"delta": {"tool_calls": [{"index": index, "id": id,
            "function": {"name": "f", "arguments": ""}}]}}]}),
        Wire::OpenaiResponses => json!({"type": "response.output_item.added",
            "output_index": index, "item": {"type": "function_call", "call_id": id, "name": "f",
            "arguments": ""}}),
        Wire::AnthropicMessages => json!({"type": "content_block_start", "index": index,
            "content_block": {"type": "tool_use", "id": id, "name": "f", "input": {}}}),
        Wire::GeminiGenerate => json!({"candidates": [{"content": {"parts": [
            {"functionCall": {"name": "f", "args": {}}}]}}]}),
        Wire::OllamaChat => json!({"message": {"tool_calls": [
            {"function": {"name": "f", "arguments": {}}}]}, "done": false}),
    }
}

/// Returns more arguments of call 0, if the dialect streams arguments.
fn arguments(wire: Wire, piece: &str) -> Option<Value> {
    match wire {
        Wire::OpenaiChat => Some(json!({"choices": [{"delta": {"tool_calls": [{"index": 0,
            "function": {"arguments": piece}}]}}]})),
        Wire::OpenaiResponses => Some(json!({"type": "response.function_call_arguments.delta",
            "output_index": 0, "delta": piece})),
        Wire::AnthropicMessages => Some(json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": piece}})),
        Wire::GeminiGenerate => Some(json!({"candidates": [{"content": {"parts": [{"functionCall":
            {"partialArgs": [{"jsonPath": "$.a", "stringValue": piece, "willContinue": true}],
            "willContinue": true}}]}}]})),
        Wire::OllamaChat => None,
    }
}

/// Returns provider data of `bytes` bytes that must be sent back.
fn returned_data(wire: Wire, index: usize, bytes: usize) -> Option<Vec<Value>> {
    let data = "A".repeat(bytes);
    match wire {
        Wire::OpenaiChat => Some(vec![json!({"choices": [{"delta": {"reasoning_details": [
            {"type": "reasoning.encrypted", "index": index, "data": data}]}}]})]),
        Wire::OpenaiResponses => Some(vec![json!({"type": "response.output_item.done",
            "output_index": index, "item": {"type": "reasoning", "id": format!("rs_{index}"),
            "summary": [], "encrypted_content": data}})]),
        Wire::AnthropicMessages => Some(vec![
            json!({"type": "content_block_start", "index": index,
                "content_block": {"type": "redacted_thinking", "data": data}}),
            json!({"type": "content_block_stop", "index": index}),
        ]),
        Wire::GeminiGenerate => Some(vec![json!({"candidates": [{"content": {"parts": [
            {"text": "", "thoughtSignature": data}]}}]})]),
        Wire::OllamaChat => None,
    }
}

/// The result of reading a response, and the peak of its memory.
struct ReadResult {
    response: ResponseAssembler,
    peak: u64,
}

impl ReadResult {
    fn error(&self) -> Option<ProviderErrorKind> {
        self.response.error().map(|error| error.kind)
    }
}

/// Reads a response in chunks of a socket's size until it ends or fails.
fn read(wire: Wire, mut events: impl Iterator<Item = String>) -> ReadResult {
    let mut response = ResponseAssembler::new(ResponseLimits::default());
    let mut pending = String::with_capacity(4 * READ_BYTES);
    let allocated = measure(|| {
        let mut decoder = Decoder::new(wire, wire.framing(true), DecoderOptions::default());
        let mut deltas = Vec::new();
        loop {
            pending.clear();
            while pending.len() < READ_BYTES {
                let Some(event) = events.next() else { break };
                pending.push_str(&event);
            }
            let ended = pending.is_empty();
            let mut result = Ok(());
            for read in pending.as_bytes().chunks(READ_BYTES) {
                result = result.and_then(|()| decoder.push(read, &mut deltas));
            }
            if ended {
                result = result.and_then(|()| decoder.finish(&mut deltas));
            }
            let failed = result.is_err();
            deltas.extend(result.err().map(Delta::Error));
            deltas.drain(..).for_each(|delta| drop(response.push(&delta)));
            let given_up = response.error().map(|error| error.kind);
            if ended || failed || given_up == Some(ProviderErrorKind::TooLarge) {
                break;
            }
        }
        let well = ended_well(&response);
        response.drop_nameless_call();
        if well {
            response.seal_all();
        }
    });
    ReadResult { response, peak: allocated.bytes_max }
}

#[track_caller]
fn check(
    wire: Wire,
    what: &str,
    events: impl Iterator<Item = String>,
    peak_max: u64,
) -> ReadResult {
    let read = read(wire, events);
    assert!(read.peak <= peak_max, "{wire}, {what}: {} bytes at once", read.peak);
    // Every result can be described.
    assert!(describe_response(&read.response).is_object());
    read
}

fn each(test: impl Fn(Wire)) {
    Wire::NAMES.iter().for_each(|(_, wire)| test(*wire));
}

#[test]
fn an_endless_line_is_an_error() {
    each(|wire| {
        let begin = std::iter::once("data: {\"a\":\"".to_owned());
        let endless = begin.chain(std::iter::repeat_n("a".repeat(READ_BYTES), 4096));
        let read = check(wire, "an endless line", endless, 40 * MIB);
        assert_eq!(read.error(), Some(ProviderErrorKind::TooLarge), "{wire}");
    });
}

#[test]
fn very_many_tiny_deltas_are_read() {
    each(|wire| {
        let tiny = frame(wire, &text(wire, "a"));
        let read = check(wire, "tiny deltas", std::iter::repeat_n(tiny, 250_000), 2 * MIB);
        assert_eq!((read.response.text().len(), read.error()), (250_000, None), "{wire}");
    });
}

#[test]
fn very_many_changes_between_text_and_thinking_are_read() {
    each(|wire| {
        let both = frame(wire, &text(wire, "a")) + &frame(wire, &thinking(wire, "b"));
        let read = check(wire, "changes", std::iter::repeat_n(both, 100_000), MIB);
        assert_eq!(read.response.text().len(), 100_000, "{wire}");
        assert_eq!(read.response.reasoning().len(), 100_000, "{wire}");
    });
}

#[test]
fn endless_text_is_an_error() {
    each(|wire| {
        let long = frame(wire, &text(wire, &"a".repeat(100_000)));
        let read = check(wire, "endless text", std::iter::repeat_n(long, 1000), 48 * MIB);
        assert_eq!(read.error(), Some(ProviderErrorKind::TooLarge), "{wire}");
    });
}

#[test]
fn excess_calls_are_counted_but_not_kept() {
    each(|wire| {
        let calls = (0..20_000).map(|index| frame(wire, &call(wire, index)));
        let read = check(wire, "calls", calls, MIB);
        let (kept, excess) = (read.response.calls().len(), read.response.excess());
        assert_eq!((kept, kept + excess), (CALLS_MAX, 20_000), "{wire}");
    });
}

#[test]
fn endless_arguments_are_cut_and_reported() {
    each(|wire| {
        let Some(piece) = arguments(wire, &"a".repeat(1000)) else { return };
        let begin = match wire {
            Wire::GeminiGenerate => json!({"candidates": [{"content": {"parts": [
                {"functionCall": {"name": "f", "willContinue": true}}]}}]}),
            Wire::OpenaiChat
            | Wire::OpenaiResponses
            | Wire::AnthropicMessages
            | Wire::OllamaChat => call(wire, 0),
        };
        let begin = std::iter::once(frame(wire, &begin));
        let events = begin.chain(std::iter::repeat_n(frame(wire, &piece), 50_000));
        let read = check(wire, "arguments", events, 32 * MIB);
        let [call] = read.response.calls() else { panic!("{wire}: one call") };
        assert!(call.raw.len() <= 1 << 20, "{wire}");
        assert!(call.oversize || read.error().is_some(), "{wire}: it is reported");
        assert_eq!(describe_response(&read.response)["tool_calls"][0]["complete"], false, "{wire}");
    });
}

#[test]
fn provider_data_to_send_back_is_limited() {
    each(|wire| {
        if returned_data(wire, 0, 1).is_none() {
            return;
        }
        let kept = (0..100_000).flat_map(|index| returned_data(wire, index, 1000).unwrap());
        let read = check(wire, "parts", kept.map(|event| frame(wire, &event)), 64 * MIB);
        let kept: usize = read
            .response
            .parts()
            .iter()
            .map(|part| serde_json::to_string(part).unwrap().len())
            .sum();
        assert!(kept <= 40 << 20, "{wire}: {kept} bytes are kept");
    });
}

#[test]
fn deep_nesting_is_harmless() {
    each(|wire| {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let (open, close) = (open.repeat(100_000), close.repeat(100_000));
            let deep = format!("{open}1{close}");
            let beside = text(wire, "a").to_string();
            let beside = format!("{{\"deep\":{deep},{}", beside.strip_prefix('{').unwrap());
            let arguments = arguments(wire, "x").unwrap_or_else(|| call(wire, 0)).to_string();
            let within = arguments.replace("\"x\"", &deep).replace("\"arguments\":{}", &deep);
            for event in [beside, within, deep, open.clone()] {
                check(wire, "deep nesting", std::iter::once(frame(wire, &event)), 64 * MIB);
            }
        }
    });
}

#[test]
fn long_lists_of_parts_are_harmless() {
    let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
    let texts = list(&list(r#"{"text":"a"}"#, 1000), 250);
    each(|wire| {
        for parts in [&list("{}", 1_000_000), &texts] {
            for event in [text(wire, "x"), thinking(wire, "x")] {
                let event = event.to_string().replace("\"x\"", parts);
                let events = std::iter::once(frame(wire, &event));
                check(wire, "a long list of parts", events, 32 * MIB);
            }
        }
    });
}

#[test]
fn gemini_paths_cannot_force_allocations() {
    if Wire::NAMES.iter().all(|(_, wire)| *wire != Wire::GeminiGenerate) {
        return;
    }
    let part = |path: &str| {
        json!({"candidates": [{"content": {"parts": [{"functionCall": {"name": "f",
            "partialArgs": [{"jsonPath": path, "stringValue": "x"}], "willContinue": true}}]}}]})
    };
    let deep = format!("$.a{}", ".b".repeat(100_000));
    let wide = format!("$.a{}", "[0]".repeat(100_000));
    for path in ["$.a[1000000000]", "$.a[99999999999999999999]", "$..", "$[", &deep, &wide] {
        let wire = Wire::GeminiGenerate;
        check(wire, path, std::iter::once(frame(wire, &part(path))), 16 * MIB);
    }
    let many = (0..100_000).map(|n| frame(Wire::GeminiGenerate, &part(&format!("$.k{n}[{n}]"))));
    check(Wire::GeminiGenerate, "many paths", many, 64 * MIB);
}
