//! Decoding and accumulating a Chat Completions stream, beside a bare baseline: framing by memchr
//! and one parse of the same events into borrowed structs, whose result is thrown away.
//!
//! Prints the ratio of the two. A third number says how much of it is the accumulator's.
#![expect(clippy::unwrap_used, reason = "a bench that fails is wrong")]

use std::borrow::Cow;
use std::hint::black_box;
use std::time::Duration;

use callsheet::turn::{Accumulator, AccumulatorLimits};
use callsheet::wire::{Decoder, DecoderLimits, Framing, Wire};
use criterion::{BenchmarkId, Criterion, Throughput};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Bytes of one read, about what a socket gives.
const READ_BYTES: usize = 16 * 1024;

#[derive(Deserialize)]
struct BareChunk<'a> {
    #[serde(borrow)]
    choices: Vec<BareChoice<'a>>,
}

#[derive(Deserialize)]
struct BareChoice<'a> {
    #[serde(borrow)]
    delta: BareDelta<'a>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct BareDelta<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tool_calls: Vec<BareCall<'a>>,
}

#[derive(Deserialize)]
struct BareCall<'a> {
    index: u64,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    function: BareFunction<'a>,
}

#[derive(Deserialize)]
struct BareFunction<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<Cow<'a, str>>,
}

/// A response of text and of calls whose arguments come in pieces, as services send them.
fn synthesised(texts: usize, calls: usize) -> Vec<u8> {
    let mut body = String::new();
    let mut event = |delta: Value, finish_reason: Option<&str>| {
        let chunk = json!({
            "id": "chatcmpl-BqKvhz5zX6oS1oMNF0BvpQOXGmCmE",
            "object": "chat.completion.chunk",
            "created": 1_751_900_000,
            "model": "some-model-2026-01-01",
            "service_tier": "default",
            "system_fingerprint": "fp_34a54ae93c",
            "choices": [{"index": 0, "delta": delta, "logprobs": null,
                "finish_reason": finish_reason}],
        });
        body.push_str(&format!("data: {chunk}\n\n"));
    };
    let words =
        [" the", " weather", " in", " Tokyo", " is", "\n\"fine\"", " at", " 21", " °C", "."];
    for at in 0..texts {
        event(json!({"content": words[at % words.len()]}), None);
    }
    for index in 0..calls {
        let function = json!({"name": "get_weather", "arguments": ""});
        let id = format!("call_{index:024}");
        event(
            json!({"tool_calls": [{"index": index, "id": id, "type": "function",
                "function": function}]}),
            None,
        );
        let pieces = [
            "{\"",
            "location",
            "\":\"",
            "San",
            " Francisco",
            ",",
            " CA",
            "\",\"",
            "days",
            "\":",
            "7",
            "}",
        ];
        for piece in pieces {
            let function = json!({"arguments": piece});
            event(json!({"tool_calls": [{"index": index, "function": function}]}), None);
        }
    }
    event(json!({}), Some("tool_calls"));
    body.push_str("data: [DONE]\n\n");
    body.into_bytes()
}

fn bare(body: &[u8]) -> usize {
    let mut parsed = 0;
    let mut rest = body;
    while let Some(end) = memchr::memchr(b'\n', rest) {
        let line = &rest[..end];
        rest = &rest[end + 1..];
        let Some(data) = line.strip_prefix(b"data: ") else { continue };
        let text = std::str::from_utf8(data).unwrap();
        if text != "[DONE]" {
            let chunk: BareChunk<'_> = serde_json::from_str(text).unwrap();
            for choice in &chunk.choices {
                parsed += choice.delta.content.as_ref().map_or(0, |text| text.len());
                parsed += usize::from(choice.finish_reason.is_some());
                for call in &choice.delta.tool_calls {
                    black_box((call.index, &call.id, &call.function.name));
                    parsed += call.function.arguments.as_ref().map_or(0, |text| text.len());
                }
            }
        }
    }
    parsed
}

fn decode_only(body: &[u8]) -> usize {
    let mut decoder = Decoder::new(Wire::OpenaiChat, Framing::Sse, DecoderLimits::default());
    let mut deltas = Vec::new();
    let mut count = 0;
    for read in body.chunks(READ_BYTES) {
        decoder.push(read, &mut deltas).unwrap();
        count += black_box(&deltas).len();
        deltas.clear();
    }
    decoder.finish(&mut deltas).unwrap();
    count + deltas.len()
}

fn decode_and_accumulate(body: &[u8]) -> Accumulator {
    let mut decoder = Decoder::new(Wire::OpenaiChat, Framing::Sse, DecoderLimits::default());
    let mut response = Accumulator::new(AccumulatorLimits::default());
    let mut deltas = Vec::new();
    for read in body.chunks(READ_BYTES) {
        decoder.push(read, &mut deltas).unwrap();
        for delta in deltas.drain(..) {
            black_box(response.push(&delta));
        }
    }
    decoder.finish(&mut deltas).unwrap();
    deltas.iter().for_each(|delta| drop(response.push(delta)));
    response.end(true);
    response
}

fn decode(criterion: &mut Criterion) {
    for (name, texts, calls) in [("text", 4000, 0), ("calls", 0, 64), ("both", 2000, 64)] {
        let body = synthesised(texts, calls);
        assert_eq!(decode_and_accumulate(&body).calls().len(), calls);
        let mut group = criterion.benchmark_group("decode");
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_with_input(BenchmarkId::new("bare", name), &body[..], |bencher, body| {
            bencher.iter(|| bare(black_box(body)));
        });
        group.bench_with_input(BenchmarkId::new("callsheet", name), &body[..], |bencher, body| {
            bencher.iter(|| decode_and_accumulate(black_box(body)));
        });
        group.finish();
        print_ratio(name, &body);
    }
}

/// The best of many passes each, taken in turns, so that both meet the same machine.
fn print_ratio(name: &str, body: &[u8]) {
    let mut best = [Duration::MAX; 3];
    let mut time = |at: usize, pass: &mut dyn FnMut()| {
        let start = Instant::now();
        pass();
        best[at] = best[at].min(start.elapsed());
    };
    for _ in 0..60 {
        time(0, &mut || assert_ne!(black_box(bare(black_box(body))), 0));
        time(1, &mut || assert_ne!(black_box(decode_only(black_box(body))), 0));
        time(2, &mut || drop(black_box(decode_and_accumulate(black_box(body)))));
    }
    let [bare, decoded, both] = best.map(|time| time.as_secs_f64());
    let events = memchr::memchr_iter(b'\n', body).count() as f64 / 2.0;
    println!(
        "{name}: {:.0} MB/s, {:.0} ns an event: {:.2} times the bare baseline ({:.2} without \
         accumulating)",
        body.len() as f64 / both / 1e6,
        both / events * 1e9,
        both / bare,
        decoded / bare,
    );
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    decode(&mut criterion);
    criterion.final_summary();
}
