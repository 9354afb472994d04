//! Compares decoding and accumulating a stream of each wire with a plain baseline: framing by
//! memchr and one parse of the same events into borrowed structs, whose result is dropped.
//!
//! Prints MB/s, the time for an event, and the ratio of the two.
#![expect(clippy::unwrap_used, reason = "a bench that fails is wrong")]

mod bare;
mod bodies;
#[path = "shared/report.rs"]
mod report;

use std::hint::black_box;
use std::time::Duration;

use bodies::{READ_BYTES, WIRES, body};
use callsheet::response::{ResponseAssembler, ResponseLimits};
use callsheet::types::Wire;
use callsheet::wire::{Decoder, DecoderOptions, Framing};
use criterion::{BenchmarkId, Criterion, Throughput};
use report::Report;
use tokio::time::Instant;

fn decode_and_accumulate(wire: Wire, framing: Framing, body: &[u8]) -> ResponseAssembler {
    let mut decoder = Decoder::new(wire, framing, DecoderOptions::default());
    let mut response = ResponseAssembler::new(ResponseLimits::default());
    let mut deltas = Vec::new();
    for read in body.chunks(READ_BYTES) {
        decoder.push(read, &mut deltas).unwrap();
        for delta in deltas.drain(..) {
            black_box(response.push(&delta));
        }
    }
    decoder.finish(&mut deltas).unwrap();
    deltas.iter().for_each(|delta| drop(response.push(delta)));
    response.seal_all();
    response
}

fn decode(criterion: &mut Criterion) -> Vec<[String; 5]> {
    let mut rows = Vec::new();
    for (wire, framing) in WIRES {
        for (name, texts, calls) in [("text", 4000, 0), ("calls", 0, 64), ("both", 2000, 64)] {
            let body = body(wire, texts, calls);
            assert_eq!(decode_and_accumulate(wire, framing, &body).calls().len(), calls);
            let mut group = criterion.benchmark_group(format!("decode/{wire}"));
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_with_input(BenchmarkId::new("bare", name), &body[..], |bencher, body| {
                bencher.iter(|| bare::read(wire, black_box(body)));
            });
            group.bench_with_input(
                BenchmarkId::new("callsheet", name),
                &body[..],
                |bencher, body| {
                    bencher.iter(|| decode_and_accumulate(wire, framing, black_box(body)));
                },
            );
            group.finish();
            rows.push(ratio(wire, framing, name, &body));
        }
    }
    rows
}

/// Measures both alternately in many passes, and returns the best pass of each.
fn ratio(wire: Wire, framing: Framing, name: &str, body: &[u8]) -> [String; 5] {
    let mut best = [Duration::MAX; 2];
    let mut time = |at: usize, pass: &mut dyn FnMut()| {
        let start = Instant::now();
        pass();
        best[at] = best[at].min(start.elapsed());
    };
    for _ in 0..60 {
        time(0, &mut || assert_ne!(black_box(bare::read(wire, black_box(body))), 0));
        time(1, &mut || drop(black_box(decode_and_accumulate(wire, framing, black_box(body)))));
    }
    let [bare, ours] = best.map(|time| time.as_secs_f64());
    let events = events(framing, body) as f64;
    [
        format!("`{wire}`"),
        name.to_owned(),
        format!("{:.0}", body.len() as f64 / ours / 1e6),
        format!("{:.0} ns", ours / events * 1e9),
        format!("{:.2}", ours / bare),
    ]
}

/// Returns the number of events of a body.
fn events(framing: Framing, body: &[u8]) -> usize {
    let lines = body.split(|byte| *byte == b'\n');
    lines.filter(|line| line.starts_with(b"data: ") || framing == Framing::JsonLines).count()
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
        .configure_from_args();
    let rows = decode(&mut criterion);
    criterion.final_summary();
    let about = "Decoding and accumulating a stream of text, of calls, and of both, beside memchr \
        framing and one parse of the same events into borrowed structs; the best of many passes in \
        turn.";
    let head = ["wire", "stream", "MB/s", "an event", "ratio"];
    Report::new("decode").table(about, head, rows).print();
}
