use serde_json::{Value, json};

use super::*;
use callsheet_values::transcript::fixtures::session;
use callsheet_values::types::{Seq, SessionId, child_run_id, child_session_id, text_columns};

/// The time of the run's start: Unix time in milliseconds.
const BEGAN: u64 = 1_700_000_000_000;

/// The present time.
const NOW: u64 = BEGAN + 100_301;

/// Entries of these records, with times since the run's start.
fn entries(records: Vec<(u64, Value)>) -> Vec<JournalEntry> {
    let numbered = records.into_iter().zip(1..);
    let entry = |((at, record), n)| {
        let record = serde_json::from_value(record).unwrap();
        JournalEntry { seq: Seq(n), time: BEGAN + at, displayed_bytes: 0, record }
    };
    numbered.map(entry).collect()
}

fn style(columns: usize) -> TimelineStyle {
    TimelineStyle { columns, coloured: false, turns_max: 12 }
}

fn drawn(records: Vec<(u64, Value)>, style: TimelineStyle) -> String {
    let children = ChildSessions::new(&session());
    let text: String = timeline(&entries(records), &children, None, NOW, style).collect();
    for line in text.lines() {
        assert!(text_columns(line) <= style.columns, "{line:?} is too wide");
        assert!(style.coloured || !line.contains(char::is_control), "{line:?}");
    }
    text
}

fn key(turn: u32, attempt: u32, index: u32) -> Value {
    json!({"turn": turn, "attempt": attempt, "index": index})
}

fn run_started() -> (u64, Value) {
    let run = json!({"type": "run_started", "run_id": "run_1", "input": "hi", "model": "m",
        "execution": "sequential"});
    (0, run)
}

fn attempt_started(at: u64, turn: u32, attempt: u32, wait_ms: u64) -> (u64, Value) {
    let record = json!({"type": "attempt_started", "turn": turn, "attempt": attempt,
        "model": "small-1", "streamed": true, "wait_ms": wait_ms});
    (at, record)
}

fn attempt_failed(at: u64, turn: u32, attempt: u32, message: &str) -> (u64, Value) {
    let error = json!({"kind": "transport", "status": null, "code": null, "message": message,
        "retry_after": null});
    (
        at,
        json!({"type": "attempt_failed", "turn": turn, "attempt": attempt, "error": error,
        "kept": false}),
    )
}

/// Returns the failure of an attempt during which the host stopped.
fn attempt_interrupted(at: u64, turn: u32, attempt: u32) -> (u64, Value) {
    let (at, mut failed) = attempt_failed(at, turn, attempt, "the host stopped during the attempt");
    failed["host_stopped"] = true.into();
    (at, failed)
}

fn response_ended(at: u64, turn: u32, attempt: u32, ending: &str, names: &[&str]) -> (u64, Value) {
    let calls: Vec<Value> = names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            json!({"key": key(turn, attempt, index as u32), "id": format!("c{index}"),
                "provider_id": null, "name": name, "arguments": {}})
        })
        .collect();
    let record = json!({"type": "response_ended", "turn": turn, "attempt": attempt,
        "ending": ending, "message": {"text": "", "calls": calls}, "finish_reason": null,
        "usage": {"input_tokens": 1, "output_tokens": 1, "cached_tokens": 0,
            "reasoning_tokens": 0}});
    (at, record)
}

/// Returns the outcome of a call. `times` are its wait, its start and its duration in milliseconds.
fn call_ended(of: (u32, u32, u32), name: &str, times: [u64; 3], status: &str) -> (u64, Value) {
    let (wait, started, took) = (times[0], times[1], times[2]);
    let record = json!({"type": "call_ended", "outcome": {"status": status, "content": "x"},
        "call": {"key": key(of.0, of.1, of.2), "provider_id": null, "name": name},
        "started_ms": started, "wait_ms": wait, "duration_ms": took});
    (started + took, record)
}

fn call_not_run(at: u64, of: (u32, u32, u32), name: &str, outcome: Value) -> (u64, Value) {
    let record = json!({"type": "call_ended", "outcome": outcome,
        "call": {"key": key(of.0, of.1, of.2), "provider_id": null, "name": name}});
    (at, record)
}

fn approval_asked(at: u64, of: (u32, u32, u32), name: &str) -> (u64, Value) {
    let call = json!({"key": key(of.0, of.1, of.2), "provider_id": null, "name": name});
    let asked = json!({"call": call, "phase": "before", "arguments": {}, "arguments_sha256": ""});
    (at, json!({"type": "approval_asked", "asked": asked}))
}

fn run_ended(at: u64, end: &str, turns: u64, calls: u64) -> (u64, Value) {
    let record = json!({"type": "run_ended", "run_id": "run_1", "end": end, "text": "",
        "error": null, "stats": {"turns": turns, "tool_calls": calls, "input_tokens": 1,
            "output_tokens": 1, "duration_ms": at, "model_ms": 0, "tools_ms": 0,
            "overhead_ms": 0, "overlap_saved_ms": 0}});
    (at, record)
}

/// Returns the records of a run with three calls in one response.
fn run_with_three_calls(times: [[u64; 3]; 3], done: u64) -> Vec<(u64, Value)> {
    let names = ["clock", "http_get", "calculator"];
    let mut records =
        vec![run_started(), attempt_started(2, 1, 1, 0), response_ended(402, 1, 1, "well", &names)];
    records.extend(
        times
            .iter()
            .zip(0..)
            .map(|(times, n)| call_ended((1, 1, n), names[n as usize], *times, "success")),
    );
    records.sort_by_key(|(at, _)| *at);
    records.extend([attempt_started(done, 2, 1, 0), response_ended(done + 200, 2, 1, "well", &[])]);
    records.push(run_ended(done + 203, "answered", 2, 3));
    records
}

#[test]
fn sequential_calls() {
    let times = [[302, 402, 200], [402, 602, 300], [582, 902, 100]];
    for columns in [40, 80, 200] {
        let text = drawn(run_with_three_calls(times, 1_005), style(columns));
        insta::assert_snapshot!(format!("sequential_{columns}"), text);
    }
}

#[test]
fn parallel_calls() {
    let times = [[302, 402, 200], [200, 402, 300], [80, 402, 100]];
    insta::assert_snapshot!("parallel", drawn(run_with_three_calls(times, 705), style(80)));
}

#[test]
fn calls_that_start_early() {
    let times = [[0, 100, 200], [0, 200, 300], [0, 320, 100]];
    insta::assert_snapshot!("early", drawn(run_with_three_calls(times, 505), style(80)));
}

#[test]
fn failed_refused_and_copied_calls() {
    let names = ["a", "slow", "pay", "nothing", "a", "wire"];
    let unknown = json!({"status": "error", "kind": "unknown_tool", "content": "no such tool"});
    let refused = json!({"status": "refused", "kind": "rejected", "content": "no"});
    let mut copied = call_not_run(350, (1, 2, 4), "a", json!({"status": "error", "content": "x"}));
    copied.1["notes"] = json!({"duplicate_of": key(1, 2, 0)});
    let given = |at, index: u32, verdict: &str| {
        let key = key(1, 2, index);
        (at, json!({"type": "approval_given", "key": key, "phase": "before", "verdict": verdict}))
    };
    let records = vec![
        run_started(),
        attempt_started(0, 1, 1, 0),
        attempt_failed(80, 1, 1, "the stream broke"),
        attempt_started(80, 1, 2, 120),
        response_ended(300, 1, 2, "well", &names),
        approval_asked(301, (1, 2, 2), "pay"),
        approval_asked(301, (1, 2, 5), "wire"),
        call_not_run(302, (1, 2, 3), "nothing", unknown),
        call_ended((1, 2, 0), "a", [0, 300, 50], "error"),
        copied,
        call_ended((1, 2, 1), "slow", [0, 300, 400], "timeout"),
        given(900, 2, "rejected"),
        call_not_run(900, (1, 2, 2), "pay", refused),
        given(1_000, 5, "approved"),
        call_ended((1, 2, 5), "wire", [700, 1_000, 100], "success"),
        attempt_started(1_101, 2, 1, 0),
        response_ended(1_300, 2, 1, "length", &[]),
        run_ended(1_301, "answered", 2, 6),
    ];
    insta::assert_snapshot!("failures_40", drawn(records.clone(), style(40)));
    insta::assert_snapshot!("failures", drawn(records, style(80)));
}

#[test]
fn a_stopped_run() {
    let mut records = run_with_three_calls([[0, 100, 300], [0, 200, 201], [0, 320, 81]], 405);
    records.retain(|(at, record)| *at < 402 && record["type"] != "response_ended");
    records.push(call_ended((1, 1, 0), "clock", [0, 100, 301], "cancelled"));
    records.push(response_ended(401, 1, 1, "cancelled", &["clock", "http_get"]));
    let cancelled = json!({"status": "cancelled", "kind": "cancelled", "content": "x"});
    records.push(call_not_run(402, (1, 1, 1), "http_get", cancelled));
    records.push(run_ended(403, "stopped", 1, 2));
    insta::assert_snapshot!("stopped", drawn(records, style(80)));
}

#[test]
fn an_open_run() {
    let intended = |at, index: u32| {
        let call = json!({"key": key(1, 1, index), "id": "c", "provider_id": null,
            "name": "pay", "arguments": {}});
        (at, json!({"type": "call_intended", "call": call, "idempotency_key": "k"}))
    };
    let records = vec![
        run_started(),
        attempt_started(0, 1, 1, 0),
        response_ended(300, 1, 1, "well", &["clock", "pay", "wire"]),
        call_ended((1, 1, 0), "clock", [0, 300, 150], "success"),
        intended(451, 1),
        (600, json!({"type": "steered", "input": "quick", "after_turn": 1})),
    ];
    insta::assert_snapshot!("open_tools", drawn(records.clone(), style(80)));
    insta::assert_snapshot!("open_model", drawn(records[..2].to_vec(), style(80)));
    assert_eq!(drawn(Vec::new(), style(80)), "", "no run, no picture");
    assert!(drawn(records[..1].to_vec(), style(80)).starts_with("run_1: has not ended\n"));
}

/// An approval is asked, and nothing happens for 100 seconds.
#[test]
fn an_open_approval_is_drawn_up_to_now() {
    let mut records = vec![
        run_started(),
        attempt_started(0, 1, 1, 0),
        response_ended(300, 1, 1, "well", &["clock", "pay"]),
        approval_asked(301, (1, 1, 1), "pay"),
        call_ended((1, 1, 0), "clock", [0, 300, 150], "success"),
    ];
    let text = drawn(records.clone(), style(80));
    let row = row_of(&text, "pay");
    assert!(row.contains("?????") && row.ends_with(" waits 1 m 40 s"), "{text}");
    assert!(text.contains("\n┊ 1 m 39 s waiting for approval, from 450 ms\n"), "{text}");
    assert!(text.contains("? waits for approval"), "{text}");
    // After the decision the call waits for no person.
    let decided = json!({"type": "approval_given", "key": key(1, 1, 1), "phase": "before",
        "verdict": "approved"});
    records.push((451, decided));
    let text = drawn(records.clone(), style(80));
    let row = row_of(&text, "pay");
    assert!(row.contains('?') && row.ends_with(" open") && !text.contains('┊'), "{text}");
    // After the end of a run, its approval is not drawn as waiting.
    records.pop();
    records.push(run_ended(500, "failed", 1, 2));
    let text = drawn(records, style(80));
    assert!(row_of(&text, "pay").ends_with(" open") && !text.contains('┊'), "{text}");
}

/// Returns the row of the call of this tool.
fn row_of<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines().find(|line| line.contains(&format!(" {name} "))).unwrap()
}

/// The host is killed while the model streams, and again while an approval is pending for a day.
#[test]
fn idle_time_is_shortened_and_noted() {
    let hour = 3_600_000;
    let day = 24 * hour;
    let mut pays = call_ended((1, 2, 0), "pay", [700, 1_000, 300], "success");
    pays.0 = day + 2_300;
    let records = vec![
        run_started(),
        attempt_started(0, 1, 1, 0),
        (400, json!({"type": "steered", "input": "quick", "after_turn": 1})),
        attempt_interrupted(hour, 1, 1),
        attempt_started(hour, 1, 2, 0),
        response_ended(hour + 500, 1, 2, "well", &["pay"]),
        approval_asked(hour + 501, (1, 2, 0), "pay"),
        (
            day + 2_000,
            json!({"type": "approval_given", "key": key(1, 2, 0), "phase": "before",
            "verdict": "approved"}),
        ),
        pays,
        attempt_started(day + 2_310, 2, 1, 0),
        response_ended(day + 2_900, 2, 1, "well", &[]),
        run_ended(day + 2_901, "answered", 2, 1),
    ];
    insta::assert_snapshot!("left_out", drawn(records, style(80)));
}

#[test]
fn a_narrow_picture_keeps_every_figure_of_its_heading() {
    let times = [[302, 402, 200], [402, 602, 300], [582, 902, 100]];
    let mut records = run_with_three_calls(times, 1_005);
    for (_, record) in records.iter_mut().filter(|(_, record)| record["run_id"] == "run_1") {
        record["run_id"] = "run_0d698ae45423929d".into();
    }
    let text = drawn(records, style(40));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "run_0d698ae45423929d: answered, 2 turns,");
    assert_eq!(lines[1], "3 calls, 1.2 s");
    assert!(lines[6].starts_with(" ✓ calculator "), "the name of the tool is whole: {text}");
}

#[test]
fn ticks_after_folded_time_differ() {
    for (again, end) in [(1_721, 1_729), (3_600_000, 3_700_000)] {
        let records = vec![
            run_started(),
            attempt_started(0, 1, 1, 0),
            attempt_failed(3, 1, 1, "the stream broke"),
            attempt_started(again, 1, 2, 0),
            response_ended(end, 1, 2, "well", &[]),
            run_ended(end, "answered", 1, 0),
        ];
        let text = drawn(records, style(200));
        let ticks: Vec<_> = text.lines().nth(1).unwrap().split('|').map(str::trim).collect();
        let distinct: std::collections::BTreeSet<_> = ticks.iter().collect();
        assert!(ticks.len() > 3 && distinct.len() == ticks.len(), "{ticks:?}");
    }
}

#[test]
fn a_call_of_the_longest_duration_is_drawn() {
    let mut ended = call_ended((1, 1, 0), "clock", [0, 300, 100], "success");
    ended.1["duration_ms"] = u64::MAX.into();
    let records = vec![
        run_started(),
        attempt_started(0, 1, 1, 0),
        response_ended(300, 1, 1, "well", &["clock"]),
        ended,
        run_ended(401, "answered", 1, 1),
    ];
    let text = drawn_coloured(records);
    assert!(text.contains(" clock ") && text.contains('█'), "{text}");
}

#[test]
fn the_legend_has_only_the_symbols_of_drawn_turns() {
    let records = run_with_three_calls([[0, 100, 200], [0, 200, 300], [0, 320, 100]], 505);
    assert!(drawn(records.clone(), style(80)).contains("█ tool runs"));
    let text = drawn(records, TimelineStyle { turns_max: 1, ..style(80) });
    assert!(text.contains("═ model answers") && !text.contains("tool runs"), "{text}");
}

#[test]
fn turns_have_their_numbers_in_the_session() {
    let mut records = run_with_three_calls([[0, 100, 200], [0, 200, 300], [0, 320, 100]], 505);
    let mut second = run_with_three_calls([[0, 100, 200], [0, 200, 300], [0, 320, 100]], 505);
    for (at, record) in &mut second {
        *at += 1_000;
        for path in ["/turn", "/call/key/turn"] {
            if let Some(turn) = record.pointer_mut(path) {
                *turn = (turn.as_u64().unwrap() + 2).into();
            }
        }
        if let Some(calls) = record.pointer_mut("/message/calls").and_then(Value::as_array_mut) {
            calls.iter_mut().for_each(|call| call["key"]["turn"] = 3.into());
        }
    }
    records.extend(second);
    let text = drawn(records, style(80));
    let turns = text.lines().filter(|line| line.starts_with("turn "));
    let labels: Vec<_> = turns.map(|line| line.get(..6).unwrap()).collect();
    assert_eq!(labels, ["turn 1", "turn 2", "turn 3", "turn 4"], "{text}");
}

#[test]
fn a_long_run_has_a_limited_number_of_rows() {
    let mut records = vec![run_started()];
    for turn in 1..=100_u32 {
        let at = u64::from(turn) * 1_000;
        let names = vec!["a_tool_with_a_rather_long_name_東京"; 64];
        records.extend([
            attempt_started(at, turn, 1, 0),
            response_ended(at + 200, turn, 1, "well", &names),
        ]);
        records.extend((0..64_u32).map(|n| {
            let status = if n % 32 == 31 { "error" } else { "success" };
            call_ended((turn, 1, n), names[0], [0, at + 200 + u64::from(n) * 10, 10], status)
        }));
    }
    records.push(run_ended(101_000, "answered", 100, 6_400));
    let last = TimelineStyle { turns_max: 12, ..style(100) };
    let text = drawn(records.clone(), last);
    // A heading, a line about hidden turns, 12 turns of 18 rows below an axis each, the legend.
    assert_eq!(text.lines().count(), 2 + 12 * 19 + 1, "{text}");
    insta::assert_snapshot!("long", text.lines().take(24).collect::<Vec<_>>().join("\n"));
    let all = drawn(records, TimelineStyle { turns_max: usize::MAX, ..style(100) });
    assert_eq!(all.lines().filter(|line| line.starts_with("turn ")).count(), 100);
}

#[test]
fn colours_do_not_change_the_text() {
    let records = run_with_three_calls([[302, 402, 200], [402, 602, 300], [582, 902, 100]], 1_005);
    let plain = drawn(records.clone(), style(80));
    let coloured = drawn_coloured(records);
    let mut bare = coloured.clone();
    while let Some(at) = bare.find('\x1b') {
        let end = at + bare[at..].find('m').unwrap();
        bare.replace_range(at..=end, "");
    }
    assert_eq!(bare, plain);
    assert!(coloured.contains("\x1b[32m█"), "{coloured:?}");
}

fn drawn_coloured(records: Vec<(u64, Value)>) -> String {
    let (children, style) =
        (ChildSessions::new(&session()), TimelineStyle { coloured: true, ..style(80) });
    timeline(&entries(records), &children, None, NOW, style).collect()
}

#[test]
fn control_characters_in_names_are_removed_and_invisible_ones_written_out() {
    let mut records = vec![run_started(), attempt_started(0, 1, 1, 0)];
    let names = ["a\x1b[2J\u{9b}31m\nb", "p\u{202e}ay\u{200b}"];
    records.push(response_ended(100, 1, 1, "well", &names));
    let text = drawn(records, style(80));
    assert!(text.contains("a[2J31mb") && text.contains(r"p\u{202e}ay\u{200b}"), "{text}");
}

#[test]
fn durations_have_few_digits() {
    for (ms, expected) in [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (1_239, "1.23 s"),
        (20_500, "20.5 s"),
        (60_000, "1 m 0 s"),
        (3_600_000 * 20 + 60_000 * 3, "20 h 3 m"),
    ] {
        assert_eq!(format_duration(ms), expected);
    }
}

/// Returns the records of a run with one call of an agent, which starts at 300 ms, and its session's children.
fn run_with_agent() -> (Vec<(u64, Value)>, SessionId) {
    let call = json!({"key": key(1, 1, 0), "id": "c0", "provider_id": null, "name": "worker",
        "arguments": {"input": "work"}});
    let mut ended = call_ended((1, 1, 0), "worker", [0, 300, 1_200], "success");
    let child = child_session_id(&session(), "run_1/t1a1c0");
    ended.1["outcome"]["child"] =
        json!({"session": child, "run": child_run_id(&child), "tokens": 9, "calls": 1});
    let records = vec![
        run_started(),
        attempt_started(0, 1, 1, 0),
        response_ended(300, 1, 1, "well", &["worker"]),
        (
            300,
            json!({"type": "call_intended", "call": call, "lease": {},
            "idempotency_key": "run_1/t1a1c0"}),
        ),
        ended,
        attempt_started(1_501, 2, 1, 0),
        response_ended(1_700, 2, 1, "well", &[]),
        run_ended(1_701, "answered", 2, 1),
    ];
    (records, child)
}

/// Returns the records of a child session that calls a tool a number of times.
fn run_of_child(child: &SessionId, calls: u32) -> Vec<JournalEntry> {
    let mut start = run_started();
    start.1["run_id"] = json!(child_run_id(child));
    let names = vec!["http_get"; calls as usize];
    let mut records =
        vec![start, attempt_started(1, 1, 1, 0), response_ended(400, 1, 1, "well", &names)];
    records.extend((0..calls).map(|n| call_ended((1, 1, n), names[0], [0, 400, 500], "success")));
    records.extend([attempt_started(901, 2, 1, 0), response_ended(1_150, 2, 1, "well", &[])]);
    let mut end = run_ended(1_151, "answered", 2, calls.into());
    end.1["run_id"] = json!(child_run_id(child));
    records.push(end);
    let records = records.into_iter().map(|(at, record)| (at + 320, record));
    entries(records.collect())
}

fn nested(records: Vec<(u64, Value)>, children: &ChildSessions, columns: usize) -> String {
    let text: String = timeline(&entries(records), children, None, NOW, style(columns)).collect();
    for line in text.lines() {
        assert!(text_columns(line) <= columns, "{line:?} is too wide");
    }
    text
}

#[test]
fn the_rows_of_a_child_stand_below_its_call() {
    let (records, child) = run_with_agent();
    let mut children = ChildSessions::new(&session());
    assert!(children.add(child.clone(), Ok(run_of_child(&child, 2))).is_empty());
    for columns in [40, 80] {
        let text = nested(records.clone(), &children, columns);
        insta::assert_snapshot!(format!("nested_{columns}"), text);
    }
}

#[test]
fn a_child_with_many_calls_has_a_limited_number_of_rows() {
    let (mut records, child) = run_with_agent();
    let mut children = ChildSessions::new(&session());
    let mut entries = run_of_child(&child, 16);
    let turns: Vec<_> = entries[1..entries.len() - 1].to_vec();
    for turn in 2..=4 {
        let later = turns.iter().cloned().map(|mut entry| {
            let mut record = serde_json::to_value(&entry.record).unwrap();
            for path in ["/turn", "/call/key/turn"] {
                if let Some(number) = record.pointer_mut(path) {
                    *number = (number.as_u64().unwrap() + 2 * (turn - 1)).into();
                }
            }
            let calls = record.pointer_mut("/message/calls").and_then(Value::as_array_mut);
            calls
                .into_iter()
                .flatten()
                .for_each(|call| call["key"]["turn"] = (2 * turn - 1).into());
            entry.record = serde_json::from_value(record).unwrap();
            entry
        });
        let last = entries.len() - 1;
        entries.splice(last..last, later);
    }
    children.add(child, Ok(entries));
    let text = nested(records.clone(), &children, 100);
    // Four times 18 rows, of which 48 are drawn.
    assert!(text.contains("\n  24 rows not drawn "), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("   ✓ http_get")).count(), 43, "{text}");
    // The child is deleted, or cannot be read.
    let none = ChildSessions::new(&session());
    let text = nested(records.clone(), &none, 80);
    let line = text.lines().find(|line| line.starts_with("  child session")).unwrap();
    assert!(line.ends_with(" deleted") && text.contains("█ tool runs"), "{text}");
    // It is open and has not been opened yet: there is nothing to draw.
    records.truncate(4);
    assert!(!nested(records, &none, 80).contains("child session"));
}

#[test]
fn an_open_child_is_drawn_up_to_the_last_record_of_the_tree() {
    let (mut records, child) = run_with_agent();
    records.truncate(4);
    let mut open = run_of_child(&child, 1);
    open.truncate(5);
    let mut children = ChildSessions::new(&session());
    children.add(child, Ok(open));
    insta::assert_snapshot!("nested_open", nested(records, &children, 80));
}

#[test]
fn a_call_of_an_agent_is_drawn_as_long_as_its_child_waits() {
    let (mut records, child) = run_with_agent();
    records.truncate(4);
    let mut open = run_of_child(&child, 1);
    open.truncate(3);
    let mut asked = entries(vec![approval_asked(730, (1, 1, 0), "http_get")]).remove(0);
    asked.seq = Seq(4);
    open.push(asked);
    let mut children = ChildSessions::new(&session());
    children.add(child, Ok(open));
    let text = nested(records, &children, 80);
    let row = row_of(&text, "http_get");
    assert!(row.ends_with(" waits 1 m 39 s"), "{text}");
    // Both bars end at the present time.
    let end = |row: &str, symbol: char| row.chars().zip(1..).filter(|(c, _)| *c == symbol).last();
    let (worker, asked) = (end(row_of(&text, "worker"), '▒'), end(row, '?'));
    assert_eq!(worker.map(|(_, column)| column), asked.map(|(_, column)| column), "{text}");
}
