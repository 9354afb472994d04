//! A session with records of most kinds, for tests of code that reads journals.
#![expect(clippy::unwrap_used, reason = "for tests")]

use serde_json::{Value, json};

use crate::record::JournalEntry;
use crate::record::{Record, Seq};
use crate::types::SessionId;

/// Returns the id of the session of the samples.
pub fn session() -> SessionId {
    SessionId::parse("s1").unwrap()
}

/// Returns entries of these records, one second apart.
pub fn entries(records: impl IntoIterator<Item = Record>) -> Vec<JournalEntry> {
    let numbered = records.into_iter().zip(1..);
    let time = |n: u64| 1_700_000_000_000 + n * 1_000;
    numbered
        .map(|(record, n)| JournalEntry { seq: Seq(n), time: time(n), displayed_bytes: 0, record })
        .collect()
}

fn call(turn: u32, attempt: u32, index: u32, name: &str, arguments: Value) -> Value {
    json!({"key": key(turn, attempt, index), "id": format!("c{index}"),
        "provider_id": format!("c{index}"), "name": name, "arguments": arguments})
}

fn key(turn: u32, attempt: u32, index: u32) -> Value {
    json!({"turn": turn, "attempt": attempt, "index": index})
}

fn usage(input: u64, output: u64) -> Value {
    json!({"input_tokens": input, "output_tokens": output, "cached_tokens": 0,
        "reasoning_tokens": 0})
}

fn ended(index: u32, name: &str, outcome: Value, notes: Value) -> Value {
    json!({"type": "call_ended", "outcome": outcome, "notes": notes,
        "call": {"key": key(1, 2, index), "provider_id": format!("c{index}"), "name": name}})
}

fn committed(turn: u32, end: Value, tools: &[&str], finish: Value, usage: Value) -> Value {
    json!({"type": "turn_committed", "turn": turn, "end": end, "summary": {
        "tool_names": tools, "dropped_calls": 0, "finish_reason": finish, "usage": usage,
        "parallel": true, "times": {}}})
}

/// Returns the end of a run with this number of queued inputs.
fn with_queued_inputs(waiting: u64, mut run_ended: Value) -> Value {
    run_ended["waiting"] = waiting.into();
    run_ended
}

fn run_ended(run: &str, end: &str, text: &str, sums: [u64; 5]) -> Value {
    let [turns, tool_calls, input_tokens, output_tokens, duration_ms] = sums;
    json!({"type": "run_ended", "run_id": run, "end": end, "text": text, "error": null,
        "stats": {"turns": turns, "tool_calls": tool_calls, "input_tokens": input_tokens,
            "output_tokens": output_tokens, "duration_ms": duration_ms, "model_ms": 0,
            "tools_ms": 0, "overhead_ms": 0, "overlap_saved_ms": 0}})
}

fn finish(kind: &str) -> Value {
    json!({"kind": kind, "raw": kind})
}

/// Returns the records of two runs. In the first run an attempt breaks, a call is a duplicate, a payment is approved,
/// and the user steers. The second is stopped.
pub fn sample_records() -> Vec<Record> {
    let pay = call(1, 2, 1, "pay", json!({"to": "Ada", "eur": 5}));
    let calls = [
        call(1, 2, 0, "clock", json!({"zone": "Asia/Tokyo"})),
        pay.clone(),
        call(1, 2, 2, "clock", json!({"zone": "Asia/Tokyo"})),
        call(1, 2, 3, "`x`\u{1b}[2J", json!({})),
    ];
    let noon = json!({"status": "success", "content": format!("noon\n```\n# {}", "z".repeat(250))});
    let paid = json!({"status": "success", "content": "paid"});
    let approved = json!({"verdict": "approved", "message": "go on"});
    let request = json!({"call": {"key": key(1, 2, 1), "provider_id": "c1", "name": "pay"},
        "phase": "before", "arguments": {"to": "Ada", "eur": 5}, "arguments_sha256": "00"});
    let mut clock = ended(0, "clock", noon.clone(), json!({}));
    clock["started_ms"] = json!(3);
    clock["duration_ms"] = json!(12);
    let mut pays = ended(1, "pay", paid.clone(), json!({"before": approved}));
    pays["started_ms"] = json!(4);
    pays["duration_ms"] = json!(1_500);
    pays["writes"] = json!({"balance": 7});
    let unknown = json!({"status": "error", "kind": "unknown_tool", "content": "no such tool"});
    let tools = ["clock", "pay", "clock", "`x`\u{1b}[2J"];
    let error = json!({"kind": "transport", "status": null, "code": null,
        "message": "the stream broke", "retry_after": null});
    let records = json!([
        {"type": "session_opened", "agent": "default"},
        {"type": "run_started", "run_id": "run_1", "input": "What time is it?\n````\n# no title",
            "model": "m", "execution": "parallel:4"},
        {"type": "attempt_started", "turn": 1, "attempt": 1, "model": "m", "streamed": true},
        {"type": "attempt_failed", "turn": 1, "attempt": 1, "error": error, "kept": false,
            "usage": usage(3, 0)},
        {"type": "attempt_started", "turn": 1, "attempt": 2, "model": "m", "streamed": true,
            "reason": "the stream broke", "wait_ms": 500},
        {"type": "input_queued", "run_id": "run_2", "input": "And tomorrow?"},
        {"type": "response_ended", "turn": 1, "attempt": 2, "ending": "well",
            "message": {"text": "Let me look.", "reasoning": "A clock.\n```", "calls": calls},
            "finish_reason": finish("tool_calls"), "usage": usage(10, 5)},
        clock,
        ended(2, "clock", noon, json!({"duplicate_of": key(1, 2, 0)})),
        ended(3, "`x`\u{1b}[2J", unknown, json!({})),
        {"type": "approval_asked", "asked": request},
        {"type": "approval_given", "key": key(1, 2, 1), "phase": "before", "verdict": "approved",
            "message": "go on"},
        {"type": "call_intended", "call": pay, "idempotency_key": "s1/t1a2c1"},
        {"type": "call_reported", "key": key(1, 2, 1), "outcome": paid, "reads": {"balance": null},
            "writes": {"balance": 7}},
        pays,
        {"type": "steered", "input": "In Tokyo, I mean.", "after_turn": 1},
        committed(1, json!("finished"), &tools, finish("tool_calls"), usage(13, 5)),
        {"type": "limit_reached", "limit": "max_turns", "value": 1, "maximum": 2,
            "action": "half_used", "note": "[callsheet: 1 of 2 turns is left]"},
        {"type": "attempt_started", "turn": 2, "attempt": 1, "model": "m", "streamed": true},
        {"type": "response_ended", "turn": 2, "attempt": 1, "ending": "well",
            "message": {"text": "It is noon.\u{9b}31m"}, "finish_reason": finish("stop"),
            "usage": usage(20, 4)},
        committed(2, json!("finished"), &[], finish("stop"), usage(20, 4)),
        with_queued_inputs(1, run_ended("run_1", "answered", "It is noon.\u{9b}31m", [2, 4, 33, 9, 3_210])),
        {"type": "run_started", "run_id": "run_2", "input": "And tomorrow?", "model": "m",
            "execution": "parallel:4"},
        {"type": "attempt_started", "turn": 3, "attempt": 1, "model": "m", "streamed": true},
        {"type": "stop_asked", "mode": "now"},
        {"type": "response_ended", "turn": 3, "attempt": 1, "ending": "cancelled",
            "message": {"text": "Tomo"}, "finish_reason": null, "usage": usage(0, 0)},
        committed(3, json!({"cancelled": "stop"}), &[], Value::Null, usage(0, 0)),
        run_ended("run_2", "stopped", "Tomo", [1, 0, 0, 0, 40]),
    ]);
    serde_json::from_value(records).unwrap()
}
