//! Compares accumulating decoded deltas with a plain baseline that appends the same texts to
//! strings.
//!
//! Prints the time for a delta and the ratio of the two. Also prints the number of allocations for
//! decoding and accumulating a text delta. A delta owns its text, so one allocation is necessary.
#![expect(clippy::unwrap_used, reason = "a bench that fails is wrong")]

mod bodies;
#[path = "shared/report.rs"]
mod report;

use std::hint::black_box;
use std::time::Duration;

use allocation_counter::measure;
use bodies::{READ_BYTES, WIRES, body};
use callsheet::response::{ResponseAssembler, ResponseLimits};
use callsheet::types::Wire;
use callsheet::wire::{Decoder, DecoderOptions, Delta, Framing};
use criterion::{BenchmarkId, Criterion, Throughput};
use report::Report;
use tokio::time::Instant;

fn decoded(wire: Wire, framing: Framing, body: &[u8]) -> Vec<Delta> {
    let mut decoder = Decoder::new(wire, framing, DecoderOptions::default());
    let mut deltas = Vec::new();
    decoder.push(body, &mut deltas).unwrap();
    decoder.finish(&mut deltas).unwrap();
    deltas
}

/// Appends the texts of all deltas, and the arguments of each call.
fn appended(deltas: &[Delta]) -> (String, Vec<String>) {
    let (mut text, mut calls) = (String::new(), Vec::<String>::new());
    for delta in deltas {
        match delta {
            Delta::Text(piece) => text.push_str(piece),
            Delta::Call(piece) => {
                if piece.name.is_some() {
                    calls.push(String::new());
                }
                if let (Some(call), Some(piece)) = (calls.last_mut(), &piece.arguments) {
                    call.push_str(piece);
                }
            }
            Delta::Seal { arguments: Some(whole), .. } => {
                if let Some(call) = calls.last_mut().filter(|call| *call != whole) {
                    whole.clone_into(call);
                }
            }
            Delta::Seal { .. }
            | Delta::Reasoning(_)
            | Delta::Refusal(_)
            | Delta::Metadata(_)
            | Delta::Finish(_)
            | Delta::Usage { .. }
            | Delta::Error(_)
            | Delta::Problem(_)
            | Delta::Done => {}
        }
    }
    (text, calls)
}

fn accumulated(deltas: &[Delta]) -> ResponseAssembler {
    let mut response = ResponseAssembler::new(ResponseLimits::default());
    for delta in deltas {
        black_box(response.push(delta));
    }
    response.seal_all();
    response
}

fn accumulate(criterion: &mut Criterion) -> Vec<[String; 4]> {
    let mut rows = Vec::new();
    for (wire, framing) in WIRES {
        let deltas = decoded(wire, framing, &body(wire, 2000, 64));
        assert_eq!(accumulated(&deltas).text(), appended(&deltas).0);
        let mut group = criterion.benchmark_group("accumulate");
        group.throughput(Throughput::Elements(deltas.len() as u64));
        group.bench_with_input(BenchmarkId::new("bare", wire), &deltas[..], |bencher, deltas| {
            bencher.iter(|| appended(black_box(deltas)));
        });
        group.bench_with_input(
            BenchmarkId::new("callsheet", wire),
            &deltas[..],
            |bencher, deltas| bencher.iter(|| accumulated(black_box(deltas))),
        );
        group.finish();
        rows.push(ratio(wire, framing, &deltas));
    }
    rows
}

/// Measures both alternately in many passes, and returns the best pass of each.
fn ratio(wire: Wire, framing: Framing, deltas: &[Delta]) -> [String; 4] {
    let mut best = [Duration::MAX; 2];
    let mut time = |at: usize, pass: &mut dyn FnMut()| {
        let start = Instant::now();
        pass();
        best[at] = best[at].min(start.elapsed());
    };
    for _ in 0..200 {
        time(0, &mut || drop(black_box(appended(black_box(deltas)))));
        time(1, &mut || drop(black_box(accumulated(black_box(deltas)))));
    }
    let [bare, ours] = best.map(|time| time.as_secs_f64());
    let texts = 4000;
    let body = body(wire, texts, 0);
    let allocated = measure(|| {
        let mut decoder = Decoder::new(wire, framing, DecoderOptions::default());
        let mut response = ResponseAssembler::new(ResponseLimits::default());
        let mut deltas = Vec::new();
        for read in body.chunks(READ_BYTES) {
            decoder.push(read, &mut deltas).unwrap();
            for delta in deltas.drain(..) {
                black_box(response.push(&delta));
            }
        }
    });
    [
        format!("`{wire}`"),
        format!("{:.0} ns", ours / deltas.len() as f64 * 1e9),
        format!("{:.2}", ours / bare),
        format!("{:.3}", allocated.count_total as f64 / texts as f64),
    ]
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
        .configure_from_args();
    let rows = accumulate(&mut criterion);
    criterion.final_summary();
    let about = "Putting decoded deltas together, beside appending the same texts to strings; the \
        best of many passes in turn. And how often decoding and accumulating a delta of text \
        allocate.";
    let head = ["wire", "a delta", "ratio", "allocations a delta of text"];
    Report::new("accumulate").table(about, head, rows).print();
}
