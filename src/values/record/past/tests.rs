//! Past events of entries that were serialised and read again.

use std::sync::Arc;
use std::time::Duration;

use super::text::PIECE_BYTES_MAX;
use super::*;
use crate::event::{CallLabel, VOIDED_TEXT_BYTES_MAX, VoidedText};
use crate::record::{CancelReason, Compaction, DisplayedSegment, ResponseMessage};
use crate::record::{ResponseEnding, StopMode, TurnEnd};
use crate::types::{
    COMPACT_AT, CallKey, Execution, ProviderError, ProviderErrorKind, ResultNotes, ToolOutcome,
    Usage,
};

fn session() -> SessionId {
    SessionId::parse("s1").unwrap()
}

/// Returns entries of these records, each with the number of bytes that were published before it.
fn entries(records: Vec<(u64, Record)>) -> Vec<JournalEntry> {
    let numbered = records.into_iter().zip(1..);
    let entries = numbered.map(|((displayed_bytes, record), seq)| {
        let entry = JournalEntry { seq: Seq(seq), time: 1000 + seq, displayed_bytes, record };
        JournalEntry::from_body(&session(), entry.seq, entry.time, &entry.body()).unwrap()
    });
    entries.collect()
}

fn format_events(published: &VecDeque<PublishedEvent>) -> Vec<String> {
    let lines = published.iter().map(|published| {
        let id = published.id.unwrap();
        let views = published.public().map(|view| match published.event.text() {
            Some((_, text)) => format!("{}:{text}", view.kind),
            None => view.kind.to_owned(),
        });
        format!("{id} {}", views.collect::<Vec<_>>().join("+"))
    });
    lines.collect()
}

#[track_caller]
fn check(records: Vec<(u64, Record)>, expect: &[&str]) {
    let mut past = PastEvents::new(session(), "default", 0);
    let mut out = VecDeque::new();
    entries(records).iter().for_each(|entry| past.handle_entry(entry, &mut out));
    assert_eq!(format_events(&out), expect);
}

fn run() -> (u64, Record) {
    let record = Record::RunStarted {
        run_id: RunId("run_1".into()),
        input: "go".into(),
        overrides: Arc::default(),
        model: "m".into(),
        execution: Execution::Sequential,
        request: None,
        trace: None,
        metadata: crate::types::Metadata::default(),
        into: None,
        authored_by: None,
    };
    (0, record)
}

fn attempt(attempt: u32, reason: Option<&str>, bytes: u64) -> (u64, Record) {
    let record = Record::AttemptStarted {
        turn: 1,
        attempt,
        model: "m".into(),
        streamed: true,
        reason: reason.map(str::to_owned),
        wait_ms: 0,
        prompt: None,
    };
    (bytes, record)
}

fn call(index: u32) -> ToolCall {
    ToolCall {
        key: CallKey { turn: 1, attempt: 1, index },
        id: format!("c{index}").into(),
        provider_id: None,
        name: "clock".into(),
        arguments: serde_json::json!({"n": index}).into(),
        raw: None,
        indirect: false,
    }
}

fn ended(index: u32, bytes: u64, amended: bool) -> (u64, Record) {
    let ToolCall { key, provider_id, name, .. } = call(index);
    let record = Record::CallEnded {
        call: CallLabel { key, provider_id, name },
        outcome: ToolOutcome::ok("12:00"),
        notes: ResultNotes::default(),
        writes: crate::types::WriteSet::default(),
        started: Some(Duration::from_millis(1)),
        wait: Duration::from_millis(2),
        duration: Duration::from_millis(3),
        early: true,
        amended,
    };
    (bytes, record)
}

fn response(
    text: &str,
    reasoning: &str,
    pieces: Vec<DisplayedSegment>,
    bytes: u64,
) -> (u64, Record) {
    let message = ResponseMessage {
        text: text.into(),
        reasoning: reasoning.into(),
        calls: vec![call(0)],
        ..ResponseMessage::default()
    };
    let record = Record::ResponseEnded {
        turn: 1,
        attempt: 1,
        ending: ResponseEnding::Complete,
        message: message.into(),
        finish_reason: None,
        usage: Usage::default(),
        dropped_calls: Vec::new(),
        displayed_segments: pieces,
    };
    (bytes, record)
}

fn failed(kept: bool, bytes: u64) -> (u64, Record) {
    let error = ProviderError::new(ProviderErrorKind::Transport, "it broke");
    let usage = Usage::default();
    let failed = Record::AttemptFailed {
        turn: 1,
        attempt: 1,
        error,
        kept,
        usage,
        host_stopped: false,
        voided: None,
    };
    (bytes, failed)
}

#[test]
fn text_keeps_its_position_between_the_records() {
    use DisplayedSegment::{Dropped, Text, Thinking};
    let pieces = vec![Text(3), Thinking(2), Dropped("?".into()), Text(2)];
    check(
        vec![
            run(),
            attempt(1, None, 0),
            ended(0, 4, false),
            (4, Record::StopAsked { mode: StopMode::AfterTurn, authored_by: None }),
            ended(0, 5, true),
            ended(1, 9, false),
            response("abcdefgh", "hm", pieces, 11),
            ended(0, 0, false),
        ],
        &[
            "1.0 stream_start",
            "2.0 thinking",
            "2.3 content_delta:abc",
            "2.4 thinking:h",
            "3.4 tool_use+tool_result",
            "3.5 thinking:m",
            "3.6 thinking:?",
            "3.8 content_delta:de",
            "3.9 content_delta:f",
            // Its call is not in the message.
            "6.9 tool_result",
            "6.11 content_delta:gh",
            "7.0 response_end",
            "8.0 tool_use+tool_result",
        ],
    );
}

fn steered(text: &str, bytes: u64) -> (u64, Record) {
    let input = text.into();
    let record = Record::Steered { input, follows_turn: 1, request: None, authored_by: None };
    (bytes, record)
}

#[test]
fn a_steer_keeps_its_position_in_the_text() {
    check(
        vec![
            run(),
            attempt(1, None, 0),
            steered("wait", 3),
            response("abcdef", "", vec![], 6),
            steered("and", 0),
            ended(0, 0, false),
        ],
        &[
            "1.0 stream_start",
            "2.0 thinking",
            "2.3 content_delta:abc",
            "3.3 steered",
            "3.6 content_delta:def",
            "4.0 response_end",
            "5.0 steered",
            "6.0 tool_use+tool_result",
        ],
    );
}

#[test]
fn the_text_of_a_failed_attempt_is_in_the_event_that_voids_it() {
    let voided_of = |records: Vec<(u64, Record)>| {
        let mut past = PastEvents::new(session(), "default", 0);
        let mut out = VecDeque::new();
        entries(records).iter().for_each(|entry| past.handle_entry(entry, &mut out));
        let voided = out.iter().filter_map(|published| {
            let (Event::AttemptStarted { voided, .. } | Event::AttemptVoided { voided, .. }) =
                &published.event
            else {
                return None;
            };
            Some(voided.as_ref().map(|voided| voided.text.clone()))
        });
        voided.collect::<Vec<_>>()
    };
    let failed_after = |text: &str| {
        let (bytes, mut record) = failed(false, text.len() as u64);
        if let Record::AttemptFailed { voided, .. } = &mut record {
            *voided = VoidedText::of_attempt([text, ""], "").map(Arc::new);
        }
        (bytes, record)
    };
    let committed = || {
        let (end, summary) = (TurnEnd::Cancelled(CancelReason::Budget), Box::default());
        (0, Record::TurnCommitted { turn: 1, end, summary })
    };
    let again = |n, bytes| attempt(n, Some("it broke"), bytes);
    let begin = || vec![run(), attempt(1, None, 0)];
    let retried = [failed_after("It is"), again(2, 5), failed_after(""), again(3, 0)];
    assert_eq!(voided_of([begin(), retried.into()].concat()), [Some("It is".to_owned()), None]);
    let ended = [failed_after("It is"), committed()];
    assert_eq!(voided_of([begin(), ended.into()].concat()), [Some("It is".to_owned())]);
    // A journal of an earlier version.
    let older = [failed(false, 5), again(2, 5)];
    assert_eq!(voided_of([begin(), older.into()].concat()), [None]);
}

#[test]
fn the_recorded_text_of_a_failed_attempt_is_limited() {
    let long = "é".repeat(VOIDED_TEXT_BYTES_MAX);
    let voided = VoidedText::of_attempt([&long, "!"], "hm").unwrap();
    assert_eq!((voided.text.len(), voided.thinking.as_str()), (VOIDED_TEXT_BYTES_MAX, "hm"));
    assert_eq!(voided.omitted_bytes, VOIDED_TEXT_BYTES_MAX as u64 + 1);
    assert_eq!(VoidedText::of_attempt(["", ""], ""), None);
}

#[test]
fn a_void_attempt_has_events_and_no_text() {
    check(
        vec![
            run(),
            attempt(1, None, 0),
            ended(0, 7, false),
            failed(false, 9),
            attempt(2, Some("it broke"), 9),
            response("é", "", vec![], 2),
        ],
        &[
            "1.0 stream_start",
            "2.0 thinking",
            "3.7 tool_result",
            "5.0 attempt",
            "5.2 content_delta:é",
            "6.0 response_end",
        ],
    );
}

fn compacted() -> (u64, Record) {
    let change = Compaction::Cleared { calls: Vec::new(), cut: Vec::new(), references: false };
    let (tokens_before, tokens_after, usage) = (9, 5, Usage::default());
    let change = Box::new(change);
    (0, Record::Compacted { change, upto: 0, tokens_before, tokens_after, usage })
}

fn limit_reached(limit: &str) -> (u64, Record) {
    let (limit, action) = (limit.to_owned(), "a".to_owned());
    let (value, maximum, note, usage) = (2, 1, None, Usage::default());
    (0, Record::LimitReached { limit, value, maximum, action, reason: None, note, usage })
}

#[test]
fn the_text_of_a_failed_attempt_is_voided_once_although_the_context_is_made_smaller_first() {
    let failing = [run(), attempt(1, None, 0), failed(false, 9)];
    let summary_failed = || limit_reached(COMPACT_AT);
    let stop = (0, Record::StopAsked { mode: StopMode::AfterTurn, authored_by: None });
    let committed = || {
        let (end, summary) = (TurnEnd::Cancelled(CancelReason::Budget), Box::default());
        (0, Record::TurnCommitted { turn: 1, end, summary })
    };
    let again = [stop, compacted(), summary_failed(), attempt(2, Some("it broke"), 0)];
    check(
        failing.iter().cloned().chain(again).collect(),
        &[
            "1.0 stream_start",
            "2.0 thinking",
            "5.0 context_compacted",
            "6.0 limit_reached",
            "7.0 attempt",
        ],
    );
    let ended = [compacted(), summary_failed(), committed()];
    check(
        failing.iter().cloned().chain(ended).collect(),
        &[
            "1.0 stream_start",
            "2.0 thinking",
            "4.0 context_compacted",
            "5.0 limit_reached",
            "5.0 attempt",
            "6.0 turn_end",
        ],
    );
    let out_of_tokens = [limit_reached("max_tokens_per_run"), committed()];
    check(
        failing.into_iter().chain(out_of_tokens).collect(),
        &["1.0 stream_start", "2.0 thinking", "3.0 attempt", "4.0 limit_reached", "5.0 turn_end"],
    );
}

#[test]
fn the_kept_part_of_a_broken_response_is_returned() {
    check(
        vec![
            run(),
            attempt(1, None, 0),
            (
                4,
                Record::CallIntended {
                    call: call(0),
                    idempotency_key: "k".into(),
                    so_far: None,
                    lease: None,
                },
            ),
            ended(0, 9, false),
            failed(true, 9),
            response("lost", "", vec![], 9),
        ],
        &[
            "1.0 stream_start",
            "2.0 thinking",
            "2.4 content_delta:lost",
            "4.9 tool_use+tool_result",
            "6.0 response_end",
        ],
    );
}

#[test]
fn the_kept_part_of_a_response_is_returned_again_after_the_host_stopped() {
    let (bytes, mut stopped) = failed(true, 0);
    if let Record::AttemptFailed { host_stopped, .. } = &mut stopped {
        *host_stopped = true;
    }
    check(
        vec![
            run(),
            attempt(1, None, 0),
            (
                6,
                Record::CallIntended {
                    call: call(0),
                    idempotency_key: "k".into(),
                    so_far: None,
                    lease: None,
                },
            ),
            ended(0, 9, false),
            (bytes, stopped),
            response("kept", "", vec![], 4),
            ended(1, 0, false),
        ],
        &[
            "1.0 stream_start",
            "2.0 thinking",
            "4.9 tool_use+tool_result",
            "5.0 attempt",
            "5.4 content_delta:kept",
            "6.0 response_end",
            "7.0 tool_result",
        ],
    );
}

#[test]
fn a_turn_of_initial_calls_starts_with_its_response() {
    check(
        vec![run(), response("in the history", "", vec![], 0), ended(0, 0, false)],
        &["1.0 stream_start", "2.0 thinking", "3.0 tool_use+tool_result"],
    );
}

#[test]
fn long_text_is_split() {
    let text = "é".repeat(PIECE_BYTES_MAX);
    let mut past = PastEvents::new(session(), "default", 0);
    let mut out = VecDeque::new();
    let records = vec![attempt(1, None, 0), response(&text, "", vec![], 0)];
    entries(records).iter().for_each(|entry| past.handle_entry(entry, &mut out));
    let pieces: Vec<&str> = out.iter().filter_map(|p| Some(p.event.text()?.1)).collect();
    assert_eq!((pieces.len(), pieces.concat()), (2, text));
}

#[test]
fn the_running_attempt_follows_the_stored_events() {
    let running = |from, pieces: &[(bool, &str)]| {
        let pieces = pieces.iter().map(|(is_thinking, text)| DisplayedText {
            is_thinking: *is_thinking,
            text: (*text).to_owned(),
        });
        let (run, pieces) = (RunId("run_1".into()), pieces.collect());
        RunningText { run, turn: 1, seq: Seq(3), time: 7, from, pieces, calls: vec![call(0)] }
    };
    let mut past = PastEvents::new(session(), "default", 0);
    let mut out = VecDeque::new();
    let records = vec![run(), attempt(1, None, 0), ended(0, 4, false)];
    entries(records).iter().for_each(|entry| past.handle_entry(entry, &mut out));
    assert_eq!(out.len(), 2, "the text before the result is not known yet");
    past.finish(Some(&running(0, &[(true, "hm"), (false, "so it")])), &mut out);
    assert_eq!(
        format_events(&out)[2..],
        [
            "2.2 thinking:hm",
            "2.4 content_delta:so",
            "3.4 tool_use+tool_result",
            "3.7 content_delta: it"
        ]
    );
    // A watcher that has seen the last record gets only the rest of the text.
    out.clear();
    PastEvents::new(session(), "default", 0).finish(Some(&running(5, &[(false, "it")])), &mut out);
    assert_eq!(format_events(&out), ["3.7 content_delta:it"]);
    // The text of a void attempt is not returned.
    out.clear();
    let mut past = PastEvents::new(session(), "default", 0);
    let records = vec![attempt(1, None, 0), failed(false, 2)];
    entries(records).iter().for_each(|entry| past.handle_entry(entry, &mut out));
    past.finish(Some(&running(0, &[(false, "so")])), &mut out);
    assert_eq!(format_events(&out), ["1.0 thinking"]);
    // It does not become the text of the next attempt, whose start was not published yet.
    out.clear();
    let mut past = PastEvents::new(session(), "default", 0);
    let again = attempt(2, Some("it broke"), 2);
    let records = vec![run(), attempt(1, None, 0), failed(false, 2), again];
    entries(records).iter().for_each(|entry| past.handle_entry(entry, &mut out));
    past.finish(Some(&running(0, &[(false, "so")])), &mut out);
    assert_eq!(format_events(&out), ["1.0 stream_start", "2.0 thinking", "4.0 attempt"]);
    // A watcher that knows a record without an event gets the text around it.
    out.clear();
    let mut past = PastEvents::new(session(), "default", 0);
    past.set_known(Seq(4));
    let stop = (5, Record::StopAsked { mode: StopMode::AfterTurn, authored_by: None });
    let records = vec![run(), attempt(1, None, 0), ended(0, 4, false), stop];
    entries(records).iter().for_each(|entry| past.handle_entry(entry, &mut out));
    past.finish(Some(&running(0, &[(false, "so it")])), &mut out);
    let rest = out.into_iter().filter_map(|event| part_after("4".parse().unwrap(), event));
    assert_eq!(format_events(&rest.collect()), ["3.5 content_delta:so it"]);
}

#[test]
fn within_an_attempt_text_is_compared_by_its_bytes_and_records_by_their_numbers() {
    let rest = |after: &str| {
        let after: EventId = after.parse().unwrap();
        let stop =
            |bytes| (bytes, Record::StopAsked { mode: StopMode::AfterTurn, authored_by: None });
        let records = vec![
            run(),
            attempt(1, None, 0),
            stop(2),
            ended(0, 4, false),
            stop(6),
            response("abcdefgh", "", vec![], 8),
            ended(1, 0, false),
        ];
        let mut past = PastEvents::new(session(), "default", 0);
        past.set_known(after.seq);
        let mut out = VecDeque::new();
        entries(records).iter().for_each(|entry| past.handle_entry(entry, &mut out));
        let rest = out.into_iter().filter_map(|event| part_after(after, event));
        format_events(&rest.collect())
    };
    let (result, end, next) = ("4.4 tool_use+tool_result", "6.0 response_end", "7.0 tool_result");
    let all = ["2.4 content_delta:abcd", result, "4.8 content_delta:efgh", end, next];
    assert_eq!(rest("2"), all);
    assert_eq!(rest("3"), all);
    assert_eq!(rest("2.3"), ["2.4 content_delta:d", result, "4.8 content_delta:efgh", end, next]);
    assert_eq!(rest("3.3"), rest("2.3"));
    assert_eq!(rest("2.4"), [result, "4.8 content_delta:efgh", end, next]);
    // The position of the record, and the id of its event.
    assert_eq!(rest("4"), ["4.8 content_delta:abcdefgh", end, next]);
    assert_eq!(rest("4.3"), ["4.8 content_delta:defgh", end, next]);
    assert_eq!(rest("4.4"), ["4.8 content_delta:efgh", end, next]);
    assert_eq!(rest("5"), rest("4"));
    assert_eq!(rest("5.6"), ["4.8 content_delta:gh", end, next]);
    // The response has ended.
    assert_eq!(rest("6"), [next]);
    assert_eq!(rest("7"), [""; 0]);
}

#[test]
fn the_stored_events_of_an_interrupted_attempt_are_returned() {
    let mut past = PastEvents::new(session(), "default", 0);
    let mut out = VecDeque::new();
    let records = vec![run(), attempt(1, None, 0), ended(0, 4, false)];
    entries(records).iter().for_each(|entry| past.handle_entry(entry, &mut out));
    // The host has started again, and the attempt is void.
    past.finish(None, &mut out);
    assert_eq!(format_events(&out)[2..], ["3.4 tool_result"]);
}
