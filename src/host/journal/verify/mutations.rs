//! Tests that change a valid journal in many ways: each change that makes it invalid is reported.

use serde_json::{Value, json};

use super::*;
use crate::journal::export::ChildSessions;
use callsheet_values::record::Record;
use callsheet_values::transcript::CLOCK_SETBACK_MAX_MS;
use callsheet_values::transcript::fixtures::{entries, sample_records, session};
use callsheet_values::types::{Seq, child_run_id, child_session_id};

fn breached(entries: &[JournalEntry]) -> Vec<Invariant> {
    verify(&session(), entries).into_iter().map(|breach| breach.invariant).collect()
}

fn kind(record: &Record) -> String {
    let json = serde_json::to_value(record).unwrap();
    json["type"].as_str().unwrap().to_owned()
}

/// Returns the index of the n-th record of this kind, from 0.
fn at(records: &[Record], kind_of_record: &str, nth: usize) -> usize {
    let mut found = (0..records.len()).filter(|index| kind(&records[*index]) == kind_of_record);
    found.nth(nth).unwrap_or_else(|| panic!("there is no {kind_of_record} {nth}"))
}

/// Returns the journal, where the n-th record of this kind has another value at this JSON pointer. If nothing is
/// there, adds a member at the top of the record.
fn changed(kind_of_record: &str, nth: usize, pointer: &str, value: Value) -> Vec<JournalEntry> {
    let mut records = sample_records();
    let index = at(&records, kind_of_record, nth);
    let mut json = serde_json::to_value(&records[index]).unwrap();
    match json.pointer_mut(pointer) {
        Some(found) => *found = value,
        None => json[&pointer[1..]] = value,
    }
    records[index] = serde_json::from_value(json).unwrap();
    entries(records)
}

#[test]
fn a_valid_journal_has_no_breach() {
    assert_eq!(verify(&session(), &entries(sample_records())), []);
    assert_eq!(open_run_id(&entries(sample_records())), None);
}

#[test]
fn a_prefix_has_no_breach_and_may_have_an_open_run() {
    let entries = entries(sample_records());
    for length in 1..entries.len() {
        assert_eq!(verify(&session(), &entries[..length]), [], "the first {length}");
        let open = !(length == 1 || kind(&entries[length - 1].record) == "run_ended");
        assert_eq!(open_run_id(&entries[..length]).is_some(), open, "the first {length}");
    }
}

#[test]
fn a_missing_record_is_a_breach() {
    // No other record depends on these.
    let alone = ["steered", "stop_asked", "limit_reached"];
    let whole = sample_records();
    for index in 0..whole.len() {
        let mut gap = entries(whole.clone());
        gap.remove(index);
        let is_last = index + 1 == whole.len();
        assert_eq!(breached(&gap).contains(&Invariant::Numbering), !is_last, "{index}");
        let mut records = whole.clone();
        let dropped = kind(&records.remove(index));
        // A call without an intent could be one without effects, and the last run may be open.
        let is_legal = alone.contains(&&*dropped) || dropped == "call_intended" || is_last;
        assert_eq!(breached(&entries(records)).is_empty(), is_legal, "{index}: {dropped}");
    }
}

#[test]
fn a_repeated_record_is_a_breach() {
    // After a crash an approval is requested again and a call is intended again. Users may repeat an
    // input.
    let repeatable = [
        "approval_asked",
        "call_intended",
        "call_reported",
        "steered",
        "stop_asked",
        "limit_reached",
    ];
    for index in 0..sample_records().len() {
        let mut records = sample_records();
        let doubled = records[index].clone();
        records.insert(index, doubled.clone());
        let legal = repeatable.contains(&&*kind(&doubled));
        assert_eq!(breached(&entries(records)).is_empty(), legal, "{index}: {}", kind(&doubled));
    }
}

#[test]
fn exchanged_records_are_a_breach() {
    for (one, other) in [
        (("session_opened", 0), ("run_started", 0)),
        (("run_started", 0), ("attempt_started", 0)),
        (("attempt_started", 0), ("attempt_failed", 0)),
        (("response_ended", 0), ("attempt_started", 1)),
        (("call_ended", 0), ("call_ended", 1)),
        (("approval_asked", 0), ("approval_given", 0)),
        (("approval_given", 0), ("call_intended", 0)),
        (("call_intended", 0), ("call_ended", 3)),
        (("call_reported", 0), ("call_ended", 3)),
        (("call_ended", 3), ("turn_committed", 0)),
        (("turn_committed", 0), ("attempt_started", 2)),
        (("turn_committed", 1), ("run_ended", 0)),
        (("run_ended", 0), ("run_started", 1)),
    ] {
        let mut records = sample_records();
        let (a, b) = (at(&records, one.0, one.1), at(&records, other.0, other.1));
        records.swap(a, b);
        assert!(!breached(&entries(records)).is_empty(), "{one:?} and {other:?}");
    }
}

#[test]
fn a_changed_field_is_a_breach() {
    use Invariant::{
        Approval, Commit, Intent, Outcome, Pairing, Response, Run, Session, Sums, Turn, Writes,
    };
    let unknown_key = json!({"turn": 1, "attempt": 2, "index": 9});
    for (kind_of_record, nth, pointer, value, expected) in [
        ("session_opened", 0, "/messages", json!([{"role": "tool", "content": "x"}]), Pairing),
        ("input_queued", 0, "/run_id", json!("run_1"), Run),
        ("input_queued", 0, "/input", json!("something else"), Run),
        ("run_started", 1, "/run_id", json!("run_1"), Run),
        ("run_started", 0, "/execution", json!("sequential"), Commit),
        ("attempt_started", 0, "/turn", json!(2), Turn),
        ("attempt_started", 0, "/attempt", json!(2), Turn),
        ("attempt_started", 0, "/attempt", json!(u32::MAX), Turn),
        ("attempt_started", 1, "/attempt", json!(3), Turn),
        ("attempt_started", 2, "/turn", json!(3), Turn),
        ("attempt_failed", 0, "/kept", json!(true), Response),
        ("attempt_failed", 0, "/usage/input_tokens", json!(4), Commit),
        ("response_ended", 0, "/attempt", json!(1), Turn),
        ("response_ended", 0, "/ending", json!("broke_kept"), Response),
        ("response_ended", 0, "/ending", json!("refused"), Response),
        ("turn_committed", 2, "/end", json!("finished"), Commit),
        ("response_ended", 0, "/usage/output_tokens", json!(6), Commit),
        ("response_ended", 0, "/finish_reason/kind", json!("stop"), Commit),
        ("response_ended", 0, "/dropped_calls", json!(["x"]), Commit),
        ("response_ended", 0, "/message/calls/0/name", json!("other"), Outcome),
        ("response_ended", 0, "/message/calls/0/id", json!("c1"), Pairing),
        ("response_ended", 0, "/message/calls/0/arguments", json!([]), Response),
        ("response_ended", 0, "/message/calls/1/arguments/eur", json!(6), Intent),
        ("response_ended", 0, "/message/calls/3/key/index", json!(1), Response),
        ("response_ended", 0, "/message/calls/3/key/attempt", json!(1), Response),
        ("response_ended", 1, "/message/text", json!("It is one."), Run),
        ("call_intended", 0, "/idempotency_key", json!("s2/t1a2c1"), Intent),
        ("call_intended", 0, "/idempotency_key", json!("s1/t1a2c2"), Intent),
        ("call_intended", 0, "/call/key", unknown_key.clone(), Outcome),
        ("call_reported", 0, "/key", unknown_key.clone(), Outcome),
        ("call_reported", 0, "/writes", json!({"balance": 8}), Writes),
        ("approval_asked", 0, "/asked/phase", json!("after"), Approval),
        ("approval_given", 0, "/phase", json!("after"), Approval),
        ("approval_given", 0, "/verdict", json!("rejected"), Approval),
        ("approval_given", 0, "/key", unknown_key.clone(), Outcome),
        ("call_ended", 0, "/call/key", unknown_key, Outcome),
        ("call_ended", 0, "/call/key/turn", json!(2), Turn),
        ("call_ended", 0, "/call/key/attempt", json!(1), Turn),
        ("call_ended", 0, "/call/name", json!("other"), Outcome),
        ("call_ended", 0, "/amended", json!(true), Outcome),
        ("call_ended", 0, "/started_ms", Value::Null, Outcome),
        ("call_ended", 0, "/notes", json!({"before": {"verdict": "rejected"}}), Approval),
        ("call_ended", 0, "/outcome/content", json!("one"), Outcome),
        (
            "call_ended",
            0,
            "/outcome",
            json!({"status": "success", "kind": "tool_error", "content": "x"}),
            Outcome,
        ),
        ("call_ended", 0, "/writes", json!({"x": 1}), Writes),
        ("call_ended", 1, "/notes/duplicate_of/index", json!(3), Outcome),
        ("call_ended", 2, "/outcome/kind", json!("host_stopped"), Intent),
        ("call_ended", 2, "/outcome/kind", json!("approval_expired"), Approval),
        ("call_ended", 3, "/notes", json!({}), Approval),
        (
            "call_ended",
            3,
            "/notes",
            json!({"before": {"verdict": "approved"}, "writes_dropped": true}),
            Writes,
        ),
        ("steered", 0, "/after_turn", json!(5), Turn),
        ("turn_committed", 0, "/turn", json!(2), Turn),
        ("turn_committed", 0, "/end", json!("refused"), Commit),
        ("turn_committed", 0, "/summary/tool_names", json!(["clock"]), Commit),
        ("turn_committed", 0, "/summary/usage/input_tokens", json!(12), Commit),
        ("turn_committed", 0, "/summary/dropped_calls", json!(1), Commit),
        ("turn_committed", 0, "/summary/parallel", json!(false), Commit),
        ("run_ended", 0, "/run_id", json!("run_2"), Run),
        ("run_ended", 0, "/end", json!("refused"), Run),
        ("run_ended", 0, "/text", json!("It is one."), Run),
        ("run_ended", 0, "/stats/turns", json!(1), Sums),
        ("run_ended", 0, "/stats/turns", json!(3), Sums),
        ("run_ended", 0, "/stats/tool_calls", json!(3), Sums),
        ("run_ended", 0, "/stats/input_tokens", json!(30), Sums),
    ] {
        let entries = changed(kind_of_record, nth, pointer, value.clone());
        let breached = breached(&entries);
        let change = format!("{kind_of_record} {nth} {pointer} {value}");
        assert!(breached.contains(&expected), "{change}: {breached:?}");
    }
    for last_copied in [7, u64::MAX] {
        let mut records = sample_records();
        records.push(Record::SessionForked { from: session(), at: Seq(last_copied) });
        assert!(breached(&entries(records)).contains(&Session), "{last_copied}");
    }
}

#[test]
fn a_request_for_a_final_answer_does_not_count_as_a_turn() {
    let counting = |turns: u32, change: &dyn Fn(&mut Record)| {
        let mut records = sample_records();
        records.iter_mut().for_each(change);
        let end = at(&records, "run_ended", 0);
        if let Record::RunEnded { stats, .. } = &mut records[end] {
            stats.turns = turns;
        }
        breached(&entries(records))
    };
    let out_of_turns = |record: &mut Record| {
        if let Record::LimitReached { value, action, note, .. } = record {
            (*value, *note) = (2, None);
            "final_answer".clone_into(action);
        }
    };
    assert_eq!(counting(1, &out_of_turns), []);
    assert_eq!(counting(2, &out_of_turns), [Invariant::Sums]);
    assert_eq!(counting(2, &|_| ()), []);
}

#[test]
fn an_empty_answer_is_followed_by_a_request_for_a_final_answer() {
    let turn_with_text = |turn: u32, text: &str| {
        let attempt = json!({"type": "attempt_started", "turn": turn, "attempt": 1, "model": "m",
            "streamed": true});
        let response = json!({"type": "response_ended", "turn": turn, "attempt": 1,
            "ending": "well", "message": {"text": text}, "finish_reason": null,
            "usage": {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0,
                "reasoning_tokens": 0}});
        let commit = json!({"type": "turn_committed", "turn": turn, "end": "finished",
            "summary": {"tool_names": [], "dropped_calls": 0, "finish_reason": null,
                "usage": {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0,
                    "reasoning_tokens": 0},
                "parallel": false, "times": {}}});
        [attempt, response, commit]
    };
    let run = |turns: u32, steered: bool| {
        let mut records = vec![
            json!({"type": "session_opened", "agent": "default"}),
            json!({"type": "run_started", "run_id": "run_1", "input": "go", "model": "m",
                "execution": "sequential"}),
        ];
        records.extend(turn_with_text(1, ""));
        let steer = json!({"type": "steered", "input": "more", "after_turn": 1});
        records.extend(steered.then_some(steer));
        records.extend(turn_with_text(2, "noon"));
        records.push(json!({"type": "run_ended", "run_id": "run_1", "end": "answered",
            "text": "noon", "error": null, "stats": {"turns": turns, "tool_calls": 0,
                "input_tokens": 0, "output_tokens": 0, "duration_ms": 0, "model_ms": 0,
                "tools_ms": 0, "overhead_ms": 0, "overlap_saved_ms": 0}}));
        breached(&entries_from_json(records))
    };
    assert_eq!((run(1, false), run(2, false)), (vec![], vec![Invariant::Sums]));
    assert_eq!((run(2, true), run(1, true)), (vec![], vec![Invariant::Sums]));
}

#[test]
fn numbers_and_times_must_rise() {
    let mut late = entries(sample_records());
    late[4].seq = Seq(9);
    assert_eq!(breached(&late), [Invariant::Numbering]);
    let mut fallen = entries(sample_records());
    fallen[4].time -= CLOCK_SETBACK_MAX_MS;
    assert_eq!(breached(&fallen), [], "a clock may be set back by a day");
    // The entry before is 1 s earlier, so this is 1 s too far.
    fallen[4].time -= 2_000;
    assert_eq!(breached(&fallen), [Invariant::Time]);
    let mut with_displayed_bytes = entries(sample_records());
    // The first record counts shown text, but no run is open.
    with_displayed_bytes[0].displayed_bytes = 7;
    assert_eq!(breached(&with_displayed_bytes), [Invariant::Run]);
}

#[test]
fn only_the_last_run_is_reopened_and_only_if_it_was_interrupted() {
    let zero =
        json!({"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0, "reasoning_tokens": 0});
    let turn = |turn: u32, text: &str, end: Value| {
        let ending = if end == "finished" { "well" } else { "cancelled" };
        [
            json!({"type": "attempt_started", "turn": turn, "attempt": 1, "model": "m", "streamed": true}),
            json!({"type": "response_ended", "turn": turn, "attempt": 1, "ending": ending,
                "message": {"text": text}, "finish_reason": null, "usage": zero}),
            json!({"type": "turn_committed", "turn": turn, "end": end,
                "summary": {"tool_names": [], "dropped_calls": 0, "finish_reason": null,
                    "usage": zero, "parallel": false, "times": {}}}),
        ]
    };
    let end = |run: &str, end: &str, text: &str, turns: u32| {
        json!({"type": "run_ended", "run_id": run, "end": end, "text": text, "error": null,
            "stats": {"turns": turns, "tool_calls": 0, "input_tokens": 0, "output_tokens": 0,
                "duration_ms": 0, "model_ms": 0, "tools_ms": 0, "overhead_ms": 0,
                "overlap_saved_ms": 0}})
    };
    let start = |run: &str| {
        json!({"type": "run_started", "run_id": run, "input": "go", "model": "m",
            "execution": "sequential", "request": {"key": run, "digest": "d"}})
    };
    let reopened = |run: &str| json!({"type": "run_reopened", "run_id": run});
    let cut_off = || turn(1, "It", json!({"cancelled": "shutdown"}));
    let interrupted = || {
        let mut records =
            vec![json!({"type": "session_opened", "agent": "default"}), start("run_1")];
        records.extend(cut_off());
        records.push(end("run_1", "interrupted", "It", 1));
        records
    };
    let check = |more: Vec<Value>| {
        let records = [interrupted(), more].concat();
        breached(&entries_from_json(records))
    };
    let answered = |turns| {
        let more = [vec![reopened("run_1")], turn(2, "It is noon.", json!("finished")).to_vec()];
        [more.concat(), vec![end("run_1", "answered", "It is noon.", turns)]].concat()
    };
    assert_eq!(check(vec![]), []);
    assert_eq!(check(vec![reopened("run_1")]), []);
    assert_eq!(check(answered(1)), []);
    assert_eq!(check(answered(2)), [Invariant::Sums], "the turn takes the place of the other");
    assert_eq!(check(vec![reopened("run_2")]), [Invariant::Run]);
    assert!(check([answered(1), vec![reopened("run_1")]].concat()).contains(&Invariant::Run));
    let later = vec![start("run_2"), end("run_2", "interrupted", "", 0), reopened("run_1")];
    assert!(check(later).contains(&Invariant::Run));
    let again = vec![reopened("run_1"), reopened("run_1")];
    assert!(check(again).contains(&Invariant::Run));
    assert_eq!(
        open_run_id(&entries_from_json([interrupted(), vec![reopened("run_1")]].concat()))
            .map(|run| &*run.0),
        Some("run_1")
    );
}

#[test]
fn a_record_after_the_end_is_a_breach() {
    let mut records = sample_records();
    records.push(Record::SessionClosed);
    assert_eq!(breached(&entries(records.clone())), []);
    records.push(Record::SessionClosed);
    assert_eq!(breached(&entries(records)), [Invariant::Session]);
    let mut open = sample_records();
    *open.last_mut().unwrap() = Record::SessionClosed;
    assert_eq!(breached(&entries(open)), [Invariant::Run]);
}

#[test]
fn an_idempotency_key_begins_with_the_id_of_its_run() {
    let with_scope = |scope: &str| {
        let mut records = sample_records();
        for record in &mut records {
            if let Record::CallIntended { idempotency_key, .. } = record {
                *idempotency_key = idempotency_key.replace("s1/", &format!("{scope}/"));
            }
        }
        breached(&entries(records))
    };
    // Earlier versions used the session's id.
    assert_eq!((with_scope("run_1"), with_scope("s1")), (vec![], vec![]));
    assert_eq!(with_scope("run_2"), [Invariant::Intent]);
}

#[test]
fn copied_records_keep_the_idempotency_keys_of_their_session() {
    let mut records = sample_records();
    let at = Seq(records.len() as u64);
    records.push(Record::SessionForked { from: session(), at });
    let fork = SessionId::parse("s2").unwrap();
    assert_eq!(verify(&fork, &entries(records)), []);
    let foreign = verify(&fork, &entries(sample_records()));
    assert_eq!(foreign.iter().map(|b| b.invariant).collect::<Vec<_>>(), [Invariant::Intent]);
}

/// Returns a session whose run has 100 tokens and 20 calls, in JSON: its response has used 20 tokens and makes two
/// calls of an agent, whose children use 9 tokens and 2 calls each. Records 4 and 6 are the intents, 5 and 7 the
/// outcomes; messages count from 1.
fn with_agents() -> Vec<Value> {
    let usage = |input: u64| {
        json!({"input_tokens": input, "output_tokens": 0, "cached_tokens": 0,
            "reasoning_tokens": 0})
    };
    let key = |index: u32| json!({"turn": 1, "attempt": 1, "index": index});
    let call = |index: u32| {
        json!({"key": key(index), "id": format!("c{index}"), "provider_id": null, "name": "worker",
            "arguments": {"input": "work"}})
    };
    let intended = |index: u32, tokens: u64, calls: u32| {
        json!({"type": "call_intended", "call": call(index),
            "idempotency_key": format!("run_1/t1a1c{index}"),
            "lease": {"tokens": tokens, "calls": calls}})
    };
    let ended = |index: u32| {
        let child = child_session_id(&session(), &format!("run_1/t1a1c{index}"));
        let run = child_run_id(&child).unwrap();
        json!({"type": "call_ended", "call": {"key": key(index), "provider_id": null,
            "name": "worker"}, "started_ms": 1, "outcome": {"status": "success",
            "content": "done", "child": {"session": child, "run": run, "tokens": 9, "calls": 2}}})
    };
    vec![
        json!({"type": "session_opened", "agent": "default"}),
        json!({"type": "run_started", "run_id": "run_1", "input": "go", "model": "m",
            "execution": "sequential", "overrides": {"limits": {"max_tokens_per_run": 100,
            "max_tool_calls_per_run": 20}}}),
        json!({"type": "attempt_started", "turn": 1, "attempt": 1, "model": "m",
            "streamed": true}),
        json!({"type": "response_ended", "turn": 1, "attempt": 1, "ending": "well",
            "message": {"text": "", "calls": [call(0), call(1)]}, "finish_reason": null,
            "usage": usage(20)}),
        // The run has 80 tokens and 18 calls left for the first child, and 71 and 16 for the second.
        intended(0, 80, 18),
        ended(0),
        intended(1, 71, 16),
        ended(1),
        json!({"type": "turn_committed", "turn": 1, "end": "finished", "summary": {
            "tool_names": ["worker", "worker"], "dropped_calls": 0, "finish_reason": null,
            "usage": usage(20), "parallel": false, "times": {}}}),
    ]
}

fn entries_from_json(records: Vec<Value>) -> Vec<JournalEntry> {
    let records: Vec<Record> = serde_json::from_value(Value::Array(records)).unwrap();
    entries(records)
}

/// Returns the breaches of [`with_agents`] after these changes: index of the record, JSON pointer, new value; null
/// removes the member.
fn breaches_after(changes: &[(usize, &str, Value)]) -> Vec<String> {
    let mut records = with_agents();
    for (index, pointer, value) in changes {
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = records[*index].pointer_mut(parent).unwrap().as_object_mut().unwrap();
        if value.is_null() {
            parent.remove(name);
        } else {
            parent.insert(name.to_owned(), value.clone());
        }
    }
    verify(&session(), &entries_from_json(records)).iter().map(ToString::to_string).collect()
}

#[test]
fn a_child_gets_no_more_than_the_run_has_left() {
    assert_eq!(breaches_after(&[]), [""; 0]);
    for (change, expected) in [
        (
            (4, "/lease/tokens", json!(81)),
            "record 5: the child of t1a1c0 may use 81 tokens, and 80 are left (lease)",
        ),
        (
            (4, "/lease/calls", json!(19)),
            "record 5: the child of t1a1c0 may use 19 calls, and 18 are left (lease)",
        ),
        (
            (6, "/lease/tokens", json!(72)),
            "record 7: the child of t1a1c1 may use 72 tokens, and 71 are left (lease)",
        ),
        (
            (6, "/lease/calls", json!(17)),
            "record 7: the child of t1a1c1 may use 17 calls, and 16 are left (lease)",
        ),
        (
            (4, "/lease/tokens", Value::Null),
            "record 5: the tokens of the child of t1a1c0 have no limit, but those of the run do (lease)",
        ),
        (
            (5, "/outcome/child/tokens", json!(10)),
            "record 7: the child of t1a1c1 may use 71 tokens, and 70 are left (lease)",
        ),
    ] {
        assert_eq!(breaches_after(&[change]), [expected]);
    }
    // Without limits of the run the lease cannot be checked.
    let unlimited = (1, "/overrides/limits", json!({}));
    assert_eq!(breaches_after(&[unlimited, (4, "/lease/tokens", json!(1_000))]), [""; 0]);
}

#[test]
fn the_lease_of_an_open_call_is_not_available() {
    let mut records = with_agents();
    records.swap(5, 6);
    let messages = |records: &[Value]| {
        let entries = entries_from_json(records.to_vec());
        verify(&session(), &entries).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // The first child may have ended with 9 tokens before its outcome was recorded.
    assert_eq!(messages(&records), [""; 0]);
    records[5]["lease"]["tokens"] = json!(72);
    assert_eq!(messages(&records).len(), 1);
    // While it runs, its lease counts.
    records.truncate(6);
    records[4]["lease"]["tokens"] = json!(40);
    records[5]["lease"] = json!({"tokens": 40, "calls": 0});
    assert_eq!(messages(&records), [""; 0]);
    records[5]["lease"]["tokens"] = json!(41);
    let expected = "record 6: the child of t1a1c1 may use 41 tokens, and 40 are left (lease)";
    assert_eq!(messages(&records), [expected]);
}

#[test]
fn an_outcome_names_the_child_of_its_call() {
    let other = child_session_id(&session(), "run_1/t1a1c1");
    for (change, expected) in [
        ((5, "/outcome/child/session", json!(other)), "is not the one that its intent determines"),
        ((5, "/outcome/child/run", json!("run_2")), "is not the one that its intent determines"),
        ((4, "/lease", Value::Null), "has a child, and its intent has no lease"),
    ] {
        let breaches = breaches_after(&[change]);
        assert!(breaches.iter().any(|breach| breach.contains(expected)), "{breaches:?}");
    }
    let mut again = with_agents();
    let mut intent = again[4].clone();
    again.insert(5, intent.clone());
    let breached = |records: &[Value]| breached(&entries_from_json(records.to_vec()));
    assert_eq!(breached(&again), [], "a call of an agent is intended again after a crash");
    intent["lease"]["tokens"] = json!(7);
    again[5] = intent;
    assert_eq!(breached(&again), [Invariant::Lease]);
}

#[test]
fn the_id_of_a_child_session_follows_from_its_parent() {
    let parent = json!({"session": "s1", "run": "run_1",
        "key": {"turn": 1, "attempt": 1, "index": 0}, "max_depth": 1, "max_children": 8,
        "root": {"session": "s1", "run": "run_1", "seq": 2}, "agent_path": ["default", "worker"]});
    let opened = json!({"type": "session_opened", "agent": "worker", "parent": parent});
    let entries = entries([serde_json::from_value::<Record>(opened).unwrap()]);
    let child = child_session_id(&session(), "run_1/t1a1c0");
    assert_eq!(verify(&child, &entries), []);
    let other = child_session_id(&session(), "run_1/t1a1c1");
    let breaches = verify(&other, &entries);
    assert_eq!(breaches.iter().map(|b| b.invariant).collect::<Vec<_>>(), [Invariant::Session]);
}

/// Returns the breaches of a parent whose child has these records.
fn with_child(change: impl FnOnce(&mut Vec<Value>)) -> Vec<String> {
    let parent = json!({"session": "s1", "run": "run_1",
        "key": {"turn": 1, "attempt": 1, "index": 0}, "max_depth": 1, "max_children": 8,
        "root": {"session": "s1", "run": "run_1", "seq": 2}, "agent_path": ["default", "worker"]});
    let child = child_session_id(&session(), "run_1/t1a1c0");
    let run = child_run_id(&child).unwrap();
    let mut records = vec![
        json!({"type": "session_opened", "agent": "worker", "parent": parent}),
        json!({"type": "run_started", "run_id": run, "input": "work", "model": "m",
            "execution": "sequential", "overrides": {"limits": {"max_tokens_per_run": 80,
            "max_tool_calls_per_run": 18}}}),
        json!({"type": "run_ended", "run_id": run, "end": "answered", "text": "done",
            "error": null, "stats": {"turns": 1, "tool_calls": 2, "input_tokens": 5,
            "output_tokens": 4, "duration_ms": 1, "model_ms": 1, "tools_ms": 0, "overhead_ms": 0,
            "overlap_saved_ms": 0}}),
    ];
    change(&mut records);
    let mut children = ChildSessions::new(&session());
    children.add(child, Ok(entries_from_json(records)));
    let breaches = verify_children(&session(), &entries_from_json(with_agents()), &children);
    breaches.iter().map(ToString::to_string).collect()
}

#[test]
fn a_child_agrees_with_its_call() {
    assert_eq!(with_child(|_| ()), [""; 0]);
    // Its run has not ended.
    assert_eq!(with_child(|records| records.truncate(2)), [""; 0]);
    // The limits of its agent may be lower than the lease.
    assert_eq!(with_child(|records| records[1]["overrides"]["limits"] = json!({})), [""; 0]);
    for (index, pointer, value, expected) in [
        (0, "/parent/key/index", 1, "names another call"),
        (1, "/overrides/limits/max_tokens_per_run", 81, "has higher limits than its lease"),
        (1, "/overrides/limits/max_tool_calls_per_run", 19, "has higher limits than its lease"),
        (
            2,
            "/stats/input_tokens",
            6,
            "has used 10 tokens and 2 calls, and the outcome counts 9 and 2",
        ),
        (
            2,
            "/stats/tool_calls",
            1,
            "has used 9 tokens and 1 calls, and the outcome counts 9 and 2",
        ),
    ] {
        let breaches = with_child(|records| {
            *records[index].pointer_mut(pointer).unwrap() = value.into();
        });
        let [breach] = &breaches[..] else { panic!("{pointer}: {breaches:?}") };
        assert!(breach.starts_with("record 5: the child sub_"), "{breach}");
        assert!(breach.contains(expected) && breach.ends_with(" (lease)"), "{breach}");
    }
}
