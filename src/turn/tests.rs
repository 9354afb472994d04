//! The rules of a turn, one by one. The order of things is the explorer's business.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::fixtures::{call, finish, more, rules, spec, text};
use super::{
    CancelReason, Effect, ResponseEnd, ToolDone, Turn, TurnEnd, TurnRecord, TurnRules, TurnSpec,
};
use crate::config::OnExcess;
use crate::event::Event;
use crate::record::Record;
use crate::types::{
    Execution, FailureKind, FinishKind, ProviderError, ProviderErrorKind, ToolOutcome, ToolStatus,
};
use crate::wire::{CallPiece, Delta};

/// A turn whose records are durable at once, and what it asked for.
struct Driver {
    turn: Turn,
    now: Duration,
    records: u64,
    log: Vec<Record>,
    started: Vec<String>,
    aborted: Vec<u32>,
    requests: Vec<(u32, bool)>,
    disconnects: u32,
    events: Vec<Event>,
    commit: Option<TurnRecord>,
}

impl Driver {
    fn new(spec: TurnSpec) -> Self {
        let mut driver = Self {
            turn: Turn::new(spec),
            now: Duration::ZERO,
            records: 0,
            log: Vec::new(),
            started: Vec::new(),
            aborted: Vec::new(),
            requests: Vec::new(),
            disconnects: 0,
            events: Vec::new(),
            commit: None,
        };
        driver.pump();
        driver
    }

    fn with(rules: TurnRules) -> Self {
        Self::new(spec(rules))
    }

    fn pump(&mut self) {
        loop {
            let before = self.records;
            while let Some(effect) = self.turn.poll() {
                match effect {
                    Effect::Record(record) => {
                        self.records += 1;
                        self.log.push(record);
                    }
                    Effect::Request(plan) => self.requests.push((plan.attempt, plan.streamed)),
                    Effect::Disconnect => self.disconnects += 1,
                    Effect::Start(call) => {
                        self.started.push(format!("{}#{}", call.name, call.key.index));
                    }
                    Effect::Abort(key) => self.aborted.push(key.index),
                    Effect::Emit(event) => self.events.push(event),
                    Effect::Release(_) => {}
                    Effect::Commit(record) => self.commit = Some(*record),
                }
            }
            if self.records == before {
                return;
            }
            self.turn.handle_recorded(self.now, self.records);
        }
    }

    #[track_caller]
    fn ended(&self, end: &TurnEnd) {
        assert_eq!(&self.commit.as_ref().expect("the turn is over").end, end);
    }

    fn deltas(&mut self, deltas: impl IntoIterator<Item = Delta>) -> &mut Self {
        self.turn.handle_deltas(self.now, deltas.into_iter().collect());
        self.pump();
        self
    }

    fn close(&mut self) -> &mut Self {
        self.turn.handle_response_end(self.now, ResponseEnd::Closed);
        self.pump();
        self
    }

    fn well(&mut self) -> &mut Self {
        self.deltas([finish(FinishKind::ToolCalls)]).close()
    }

    fn broken(&mut self) -> &mut Self {
        let error = ProviderError::new(ProviderErrorKind::Transport, "cut");
        self.turn.handle_response_end(self.now, ResponseEnd::Failed(error));
        self.pump();
        self
    }

    fn done(&mut self, index: u32, content: &str) -> &mut Self {
        self.outcome(index, ToolOutcome::ok(content))
    }

    fn outcome(&mut self, index: u32, outcome: ToolOutcome) -> &mut Self {
        let attempt = self.turn.attempt();
        let key = crate::types::CallKey { turn: 1, attempt, index };
        self.turn.handle_outcome(self.now, key, ToolDone { outcome });
        self.pump();
        self
    }

    /// Goes on from what the journal holds after a crash.
    fn crash(&mut self, records_kept: usize) -> &mut Self {
        self.log.truncate(records_kept);
        let spec = self.turn.spec.as_ref().clone();
        self.turn = Turn::resume(spec, &self.log);
        self.records = 0;
        self.started.clear();
        self.pump();
        self
    }

    fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|event| wanted(event)).count()
    }

    fn cancel(&mut self) -> &mut Self {
        self.turn.handle_cancel(self.now, CancelReason::Stop);
        self.pump();
        self
    }

    #[track_caller]
    fn started(&self, expected: &[&str]) {
        assert_eq!(self.started, expected);
    }

    /// `name status kind content` of each result, in call order.
    #[track_caller]
    fn results(&self, expected: &[(&str, ToolStatus, Option<FailureKind>, &str)]) {
        let record = self.commit.as_ref().expect("the turn is over");
        let seen: Vec<_> = record
            .results
            .iter()
            .map(|result| {
                let outcome = &result.outcome;
                (result.call.name.as_str(), outcome.status, outcome.kind, outcome.content.as_str())
            })
            .collect();
        assert_eq!(seen, expected);
    }

    fn limits(&self) -> Vec<(String, u64, u64, String)> {
        let limits = self.events.iter().filter_map(|event| match event {
            Event::LimitReached { limit, value, maximum, action } => {
                Some((limit.clone(), *value, *maximum, action.clone()))
            }
            _ => None,
        });
        limits.collect()
    }
}

const PARALLEL: Execution = Execution::Parallel { max: 8 };
const OK: ToolStatus = ToolStatus::Ok;
const FAILED: ToolStatus = ToolStatus::Failed;
const CANCELLED: ToolStatus = ToolStatus::Cancelled;
const NOT_STARTED: Option<FailureKind> = Some(FailureKind::NotStarted);

#[test]
fn a_pure_call_starts_when_the_next_one_opens_and_an_effect_when_the_response_ended_well() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}")]).started(&[]);
    driver.deltas([call(1, "effect", "{}")]).started(&["pure#0"]);
    driver.deltas([call(2, "pure", "{\"n\":1}"), call(3, "pure", "{\"n\":2}")]);
    driver.started(&["pure#0"]);
    // The effect has its ticket first, but starts when its intent is durable.
    driver.well().started(&["pure#0", "pure#2", "pure#3", "effect#1"]);
}

#[test]
fn start_on_seal_is_for_those_whose_author_says_so_and_early_start_switches_all_off() {
    let response = || [call(0, "seal", "{}"), call(1, "pure", "{}"), call(2, "pure", "[]")];
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas(response()).started(&["pure#1", "seal#0"]);
    let mut driver = Driver::with(TurnRules { early_start: false, ..rules(PARALLEL) });
    driver.deltas(response()).started(&[]);
    driver.well().started(&["pure#1", "seal#0"]);
}

#[test]
fn in_sequence_a_call_starts_when_every_earlier_one_has_ended() {
    let mut driver = Driver::with(rules(Execution::Sequential));
    driver.deltas([call(0, "effect", "{}"), call(1, "pure", "{}"), call(2, "effect", "[]")]);
    driver.well().started(&["effect#0"]);
    driver.done(0, "a").started(&["effect#0", "pure#1"]);
    driver.done(1, "b");
    driver.results(&[
        ("effect", OK, None, "a"),
        ("pure", OK, None, "b"),
        (
            "effect",
            FAILED,
            Some(FailureKind::InvalidArguments),
            "Error: not run: invalid arguments: they are a JSON array. Received: []",
        ),
    ]);
}

#[test]
fn results_are_in_call_order_whatever_the_finishing_order() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas((0..3).map(|n| call(n, "pure", &format!("{{\"n\":{n}}}")))).well();
    driver.done(2, "c").done(0, "a").done(1, "b");
    driver.results(&[("pure", OK, None, "a"), ("pure", OK, None, "b"), ("pure", OK, None, "c")]);
}

#[test]
fn an_exclusive_call_runs_alone() {
    let mut driver = Driver::with(rules(PARALLEL));
    let calls = ["pure", "exclusive", "pure"];
    driver.deltas((0..).zip(calls).map(|(n, name)| call(n, name, &format!("{{\"n\":{n}}}"))));
    driver.well().started(&["pure#0"]);
    driver.done(0, "").started(&["pure#0", "exclusive#1"]);
    driver.done(1, "").started(&["pure#0", "exclusive#1", "pure#2"]);
}

#[test]
fn unknown_tools_and_bad_arguments_are_answered_and_never_run() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([
        call(0, "nobody", "{}"),
        call(1, "pure", "{\"n\":\"x\"}"),
        call(2, "pure", "{\"n\":"),
        call(3, "pure", ""),
    ]);
    driver.well().started(&["pure#3"]);
    driver.done(3, "ran");
    let contents: Vec<_> =
        driver.commit.as_ref().unwrap().results.iter().map(|r| &r.outcome).collect();
    assert!(contents[0].content.starts_with("Error: there is no tool \"nobody\". The tools are: "));
    assert_eq!(contents[1].kind, Some(FailureKind::InvalidArguments));
    assert!(contents[1].content.contains("/n: \"x\" is not of type \"integer\""));
    assert_eq!(contents[2].kind, Some(FailureKind::CutOffArguments));
    assert_eq!(contents[3], &ToolOutcome::ok("ran"));
    let raw = |index: usize| driver.commit.as_ref().unwrap().results[index].call.raw.clone();
    assert_eq!((raw(2).as_deref(), raw(3)), (Some("{\"n\":"), None));
}

#[test]
fn a_double_encoded_object_is_decoded_once_more_and_told() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "\"{\\\"n\\\":7}\"")]).well().started(&["pure#0"]);
    let odd = driver.events.iter().any(|event| {
        matches!(event, Event::ArgumentsOdd { oddity: crate::event::Oddity::DecodedTwice, .. })
    });
    assert!(odd);
    driver.done(0, "");
    let call = driver.commit.as_ref().unwrap().results[0].call.clone();
    assert_eq!(call.arguments, serde_json::json!({"n": 7}));
}

#[test]
fn a_duplicate_waits_for_the_first_and_gets_a_copy() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "effect", "{\"n\":1}"), call(1, "effect", "{ \"n\": 1 }")]);
    driver.well().started(&["effect#0"]);
    let no = ToolOutcome::not_ok(FAILED, FailureKind::ToolError, "no");
    driver.outcome(0, no).started(&["effect#0"]);
    let kind = Some(FailureKind::ToolError);
    driver.results(&[("effect", FAILED, kind, "no"), ("effect", FAILED, kind, "no")]);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(record.results[1].notes.duplicate_of, Some(record.results[0].call.key));
}

#[test]
fn repeatable_calls_and_calls_around_an_effect_run_each_for_themselves() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "repeatable", "{}"), call(1, "repeatable", "{}")]);
    driver.well().started(&["repeatable#0", "repeatable#1"]);
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}"), call(1, "effect", "{}"), call(2, "pure", "{}")]);
    driver.well().started(&["pure#0", "pure#2", "effect#1"]);
}

#[test]
fn bytes_after_the_seal_void_a_pure_result_and_a_duplicate_then_runs_itself() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}"), call(1, "pure", "{}"), call(2, "pure", "{\"n\":2}")]);
    driver.started(&["pure#0"]);
    driver.deltas([more(0, "x")]);
    assert_eq!(driver.aborted, [0]);
    driver.started(&["pure#0", "pure#1"]);
    driver.well().done(1, "b").done(2, "c");
    let record = driver.commit.as_ref().unwrap();
    let kinds: Vec<_> = record.results.iter().map(|result| result.outcome.kind).collect();
    assert_eq!(kinds, [Some(FailureKind::Malformed), None, None]);
}

#[test]
fn bytes_after_the_seal_leave_a_started_effect_as_it_is() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "seal", "{}"), call(1, "pure", "{}")]).deltas([more(0, "x")]);
    driver.well().done(0, "sent").done(1, "b");
    driver.results(&[("seal", OK, None, "sent"), ("pure", OK, None, "b")]);
    assert!(driver.commit.as_ref().unwrap().results[0].notes.arguments_changed);
}

#[test]
fn a_response_cut_at_its_length_runs_what_has_started_and_answers_the_rest() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}"), call(1, "effect", "{}"), call(2, "pure", "{\"n")]);
    driver.deltas([finish(FinishKind::Length)]).close().done(0, "a");
    let cut = "Error: not run: the response was cut off";
    driver.results(&[
        ("pure", OK, None, "a"),
        ("effect", CANCELLED, NOT_STARTED, cut),
        ("pure", CANCELLED, NOT_STARTED, cut),
    ]);
    let arguments = &driver.commit.as_ref().unwrap().results[2].call.arguments;
    assert_eq!(arguments, &serde_json::json!({}));
}

#[test]
fn a_refusal_drops_everything_but_an_effect_that_has_started() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([
        text("no"),
        call(0, "pure", "{}"),
        call(1, "seal", "{}"),
        call(2, "pure", "{}"),
    ]);
    driver.started(&["pure#0", "seal#1"]);
    driver.deltas([finish(FinishKind::ContentFilter)]).close();
    assert_eq!(driver.aborted, [0]);
    driver.done(1, "sent");
    driver.results(&[("seal", OK, None, "sent")]);
    assert_eq!(driver.commit.as_ref().unwrap().end, TurnEnd::Refused);
}

#[test]
fn a_broken_response_is_void_and_pure_results_are_used_again() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}"), call(1, "effect", "{}")]).done(0, "noon").broken();
    assert_eq!(driver.requests, [(1, true), (2, true)]);
    driver.deltas([call(0, "pure", "{}"), call(1, "effect", "{}")]).well();
    driver.started(&["pure#0", "effect#1"]);
    driver.done(1, "sent");
    driver.results(&[("pure", OK, None, "noon"), ("effect", OK, None, "sent")]);
    assert!(driver.commit.as_ref().unwrap().results[0].notes.reused);
}

#[test]
fn after_two_broken_streams_the_plain_answer_is_asked_for_and_after_three_the_turn_fails() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.broken().broken().broken();
    assert_eq!(driver.requests, [(1, true), (2, true), (3, false)]);
    let record = driver.commit.as_ref().unwrap();
    assert!(matches!(&record.end, TurnEnd::Failed(error) if error.code == "provider_error"));
    assert_eq!(record.message, None);
}

#[test]
fn once_an_effect_has_started_a_broken_response_is_the_turn() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([text("so"), call(0, "seal", "{}"), call(1, "pure", "{}"), call(2, "pure", "[")]);
    driver.broken().done(0, "sent").done(1, "b");
    assert_eq!(driver.requests, [(1, true)]);
    let cut = "Error: not run: the response broke off";
    driver.results(&[
        ("seal", OK, None, "sent"),
        ("pure", OK, None, "b"),
        ("pure", CANCELLED, NOT_STARTED, cut),
    ]);
    assert_eq!(driver.commit.as_ref().unwrap().end, TurnEnd::Finished);
}

#[test]
fn the_end_of_the_stream_is_no_good_finish_but_the_wires_own_sign_is() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([text("so")]).close();
    assert_eq!(driver.requests.len(), 2);
    driver.deltas([call(0, "effect", "{}"), Delta::Done]).close().started(&["effect#0"]);
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "effect", "{"), Delta::Done]).close().started(&[]);
    assert_eq!(driver.requests.len(), 2);
}

#[test]
fn what_breaks_after_the_finish_reason_takes_nothing_away() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "effect", "{}"), finish(FinishKind::ToolCalls)]).broken();
    driver.started(&["effect#0"]);
    assert_eq!(driver.requests.len(), 1);
}

#[test]
fn a_call_without_a_name_and_nothing_else_is_a_malformed_response() {
    let nameless = || {
        let arguments = Some("{}".to_owned());
        Delta::Call(CallPiece { index: Some(0), arguments, ..CallPiece::default() })
    };
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([nameless()]).well();
    assert_eq!(driver.requests.len(), 2);
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([nameless(), call(1, "pure", "{}")]).well().done(0, "a");
    driver.results(&[("pure", OK, None, "a")]);
}

#[test]
fn a_stop_answers_every_call_truthfully() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([
        call(0, "pure", "{}"),
        call(1, "seal", "{}"),
        call(2, "pure", "{\"n\":1}"),
        call(3, "effect", "{}"),
    ]);
    driver.done(0, "a").cancel();
    assert_eq!((driver.disconnects, driver.aborted.clone()), (1, vec![1, 2]));
    let kind = Some(FailureKind::Cancelled);
    let perhaps = "Error: cancelled while running: it may or may not have happened";
    driver.results(&[
        ("pure", OK, None, "a"),
        ("seal", CANCELLED, kind, perhaps),
        ("pure", CANCELLED, kind, "Error: cancelled while running"),
        ("effect", CANCELLED, NOT_STARTED, "Error: not started: the run was ended before"),
    ]);
    assert_eq!(driver.commit.as_ref().unwrap().end, TurnEnd::Cancelled(CancelReason::Stop));
}

#[test]
fn a_deadline_decides_at_once_and_a_late_outcome_is_dropped() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "quick", "{}"), call(1, "effect", "{}")]).well();
    driver.now = driver.turn.poll_timeout().unwrap();
    assert_eq!(driver.now, Duration::from_millis(5));
    driver.turn.handle_timeout(driver.now);
    driver.pump();
    assert_eq!(driver.aborted, [0]);
    driver.done(0, "too late");
    driver.now = driver.turn.poll_timeout().unwrap();
    driver.turn.handle_timeout(driver.now);
    driver.pump();
    let kind = Some(FailureKind::Timeout);
    let perhaps = "Error: Execution timeout after 30s: it may or may not have happened";
    driver.results(&[
        ("quick", ToolStatus::TimedOut, kind, "Error: Execution timeout after 5ms"),
        ("effect", ToolStatus::TimedOut, kind, perhaps),
    ]);
    let late = |event: &&Event| matches!(event, Event::OutcomeLate { .. });
    assert_eq!(driver.events.iter().filter(late).count(), 1);
}

fn four_calls(on_excess: OnExcess, maximum: u32) -> Driver {
    let mut rules = rules(PARALLEL);
    rules.limits.max_tool_calls_per_turn = Some(maximum);
    rules.limits.on_excess = on_excess;
    let mut driver = Driver::with(rules);
    driver.deltas((0..4).map(|n| call(n, "pure", &format!("{{\"n\":{n}}}")))).well();
    for index in 0..maximum.min(4) {
        driver.done(index, "ran");
    }
    driver
}

#[test]
fn four_calls_where_three_may_run() {
    let told = |value, action: &str| {
        vec![("max_tool_calls_per_turn".to_owned(), value, 3, action.to_owned())]
    };
    let answer = four_calls(OnExcess::Answer, 3);
    let statuses = |driver: &Driver| -> Vec<_> {
        let results = &driver.commit.as_ref().unwrap().results;
        results.iter().map(|result| result.outcome.status).collect()
    };
    assert_eq!(statuses(&answer), [OK, OK, OK, ToolStatus::Refused]);
    assert_eq!(answer.limits(), told(4, "answered"));
    let truncate = four_calls(OnExcess::Truncate, 3);
    assert_eq!(statuses(&truncate), [OK, OK, OK]);
    assert_eq!(truncate.commit.as_ref().unwrap().dropped_calls, ["pure"]);
    assert_eq!(truncate.limits(), told(4, "truncated"));
    let fail = four_calls(OnExcess::Fail, 3);
    fail.started(&[]);
    assert_eq!(statuses(&fail), [ToolStatus::Refused; 3]);
    assert_eq!((fail.disconnects, fail.limits()), (1, told(4, "failed")));
    let message = "TOOL_CALL_LIMIT_EXCEEDED: received at least 4, maximum 3, turn 1";
    let end = &fail.commit.as_ref().unwrap().end;
    assert!(matches!(end, TurnEnd::Failed(error) if error.message == message));
}

#[test]
fn as_many_again_are_answered_and_what_is_above_is_truncated() {
    let driver = four_calls(OnExcess::Answer, 1);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!((record.results.len(), record.dropped_calls.len()), (2, 2));
}

#[test]
fn without_multi_tool_calls_only_the_first_is_kept_and_the_rest_is_named() {
    let mut driver = Driver::with(TurnRules { multi_tool_calls: false, ..rules(PARALLEL) });
    driver.deltas([call(0, "pure", "{}"), call(1, "effect", "{}")]).well().done(0, "a");
    driver.results(&[("pure", OK, None, "a")]);
    assert_eq!(driver.commit.as_ref().unwrap().dropped_calls, ["effect"]);
}

#[test]
fn in_a_last_request_calls_are_dropped() {
    let mut driver = Driver::new(TurnSpec { last_request: true, ..spec(rules(PARALLEL)) });
    driver.deltas([text("so"), call(0, "pure", "{}")]).well().started(&[]);
    driver.results(&[]);
    assert_eq!(driver.commit.as_ref().unwrap().message.as_ref().unwrap().text, "so");
}

#[test]
fn ids_are_the_providers_unless_they_are_missing_taken_or_repeated() {
    let piece = |index, id: Option<&str>| {
        Delta::Call(CallPiece {
            index: Some(index),
            id: id.map(str::to_owned),
            name: Some("repeatable".into()),
            arguments: Some("{}".into()),
            ..CallPiece::default()
        })
    };
    let held_ids = Arc::new(BTreeSet::from(["call_4_3".to_owned()]));
    let mut driver =
        Driver::new(TurnSpec { turns_with_calls: 4, held_ids, ..spec(rules(PARALLEL)) });
    driver.deltas([piece(0, Some("x")), piece(1, None), piece(2, Some("x")), piece(3, None)]);
    driver.cancel();
    let record = driver.commit.as_ref().unwrap();
    let ids: Vec<_> = record.results.iter().map(|result| result.call.id.as_str()).collect();
    assert_eq!(ids, ["x", "call_4_1", "call_4_2", "call_5_3"]);
    assert_eq!(record.results[2].call.provider_id.as_deref(), Some("x"));
}

#[test]
fn a_resumed_turn_uses_what_is_known_and_answers_the_rest() {
    let mut driver = Driver::with(rules(Execution::Sequential));
    driver.deltas([call(0, "effect", "{}"), call(1, "effect", "{\"n\":1}"), call(2, "pure", "{}")]);
    driver.well().done(0, "sent");
    driver.started(&["effect#0", "effect#1"]);
    let mut turn = Turn::resume(spec(rules(Execution::Sequential)), &driver.log);
    let effects: Vec<_> = std::iter::from_fn(|| turn.poll()).collect();
    driver.records =
        effects.iter().filter(|effect| matches!(effect, Effect::Record(_))).count() as u64;
    let started: Vec<_> = effects
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Start(call) => Some(call.key.index),
            _ => None,
        })
        .collect();
    assert_eq!(started, [2]);
    driver.turn = turn;
    driver.turn.handle_recorded(driver.now, driver.records);
    driver.done(2, "noon");
    let unknown = "Error: the host stopped during this call; it may or may not have happened";
    driver.results(&[
        ("effect", OK, None, "sent"),
        ("effect", ToolStatus::Unknown, Some(FailureKind::HostStopped), unknown),
        ("pure", OK, None, "noon"),
    ]);
}

#[test]
fn what_is_known_of_a_call_as_it_opens_is_told() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "")]);
    let with_id = |event: &Event| matches!(event, Event::CallOpened { call } if call.provider_id.as_deref() == Some("id0"));
    assert_eq!(driver.count(with_id), 1);
}

#[test]
fn a_call_that_is_not_kept_is_still_decoded_and_counted() {
    let mut driver = Driver::with(TurnRules { multi_tool_calls: false, ..rules(PARALLEL) });
    driver.deltas([call(0, "pure", "{}"), call(1, "pure", "{}"), call(2, "pure", "[")]).well();
    let counted =
        |event: &Event| matches!(event, Event::ResponseEnded { opened: 3, detected: 2, .. });
    assert_eq!(driver.count(counted), 1);
    assert_eq!(driver.count(|event| matches!(event, Event::CallStarted { of: 1, .. })), 1);
}

#[test]
fn a_call_that_was_answered_unrun_keeps_its_answer_when_more_bytes_come() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver
        .deltas([call(0, "pure", "[]"), call(1, "pure", "{}")])
        .deltas([more(0, "x")])
        .deltas([more(0, "y")]);
    driver.well().done(1, "b");
    let told = driver.count(
        |event| matches!(event, Event::CallEnded { result, .. } if result.call.key.index == 0),
    );
    assert_eq!(told, 1);
    let kind = driver.commit.as_ref().unwrap().results[0].outcome.kind;
    assert_eq!(kind, Some(FailureKind::InvalidArguments));
}

#[test]
fn results_of_repeatable_calls_are_not_used_again() {
    let response =
        || [call(0, "repeatable", "{}"), call(1, "repeatable", "{}"), call(2, "effect", "{}")];
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas(response()).done(0, "a").done(1, "b").broken().deltas(response()).well();
    driver.started(&["repeatable#0", "repeatable#1", "repeatable#0", "repeatable#1", "effect#2"]);
}

#[test]
fn a_reused_result_is_copied_like_one_of_its_own_attempt() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}"), call(1, "pure", "[]")]).done(0, "noon").broken();
    driver.deltas([call(0, "pure", "{}"), call(1, "pure", "{}")]).well().started(&["pure#0"]);
    driver.results(&[("pure", OK, None, "noon"), ("pure", OK, None, "noon")]);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(record.results[1].notes.duplicate_of, Some(record.results[0].call.key));
}

#[test]
fn the_order_of_keys_makes_no_other_call() {
    let mut driver = Driver::with(rules(PARALLEL));
    let calls = [call(0, "pure", "{\"n\":1,\"a\":2}"), call(1, "pure", "{\"a\":2,\"n\":1}")];
    driver.deltas(calls).well().started(&["pure#0"]);
}

#[test]
fn a_response_above_a_hard_cap_is_closed_at_once_and_not_asked_for_again() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([text(&"x".repeat((16 << 20) + 1)), text("more")]);
    assert_eq!((driver.disconnects, driver.requests.len()), (1, 1));
    let end = &driver.commit.as_ref().unwrap().end;
    assert!(matches!(end, TurnEnd::Failed(error) if error.message.contains("more than 16777216")));
}

#[test]
fn calls_above_the_hard_cap_are_told_where_there_is_no_limit() {
    let mut rules = rules(PARALLEL);
    rules.limits.max_tool_calls_per_turn = None;
    let mut driver = Driver::with(rules);
    driver.deltas((0..1030).map(|n| call(n, "nobody", "{}"))).well();
    let told = ("max_tool_calls_per_turn".to_owned(), 1030, 1024, "truncated".to_owned());
    assert_eq!(driver.limits(), [told]);
    assert_eq!(driver.count(|e| matches!(e, Event::ResponseEnded { opened: 1030, .. })), 1);
}

#[test]
fn a_stop_during_the_wait_before_an_attempt_ends_the_turn_and_counts_no_exchange() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.broken().cancel();
    assert_eq!((driver.requests.len(), driver.disconnects), (2, 1));
    assert_eq!(driver.count(|event| matches!(event, Event::AttemptEnded { .. })), 1);
    driver.ended(&TurnEnd::Cancelled(CancelReason::Stop));
    assert_eq!(driver.commit.as_ref().unwrap().message, None);
}

#[test]
fn each_attempt_is_paid_for_once() {
    let tokens = |n| Delta::Usage {
        usage: crate::types::Usage { input_tokens: n, ..Default::default() },
        raw: "{}".into(),
    };
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([tokens(1), tokens(2)]).broken().deltas([text("so"), tokens(10)]);
    driver.deltas([finish(FinishKind::Stop)]).close();
    assert_eq!(driver.commit.as_ref().unwrap().usage.input_tokens, 12);
    let mut kept = Driver::with(rules(PARALLEL));
    kept.deltas([call(0, "seal", "{}"), call(1, "pure", "{}"), tokens(3)]).broken();
    kept.done(0, "").done(1, "");
    assert_eq!(kept.commit.as_ref().unwrap().usage.input_tokens, 3);
    assert_eq!(kept.count(|event| matches!(event, Event::AttemptEnded { .. })), 1);
}

#[test]
fn a_timeout_beyond_all_time_is_none() {
    let mut rules = rules(PARALLEL);
    rules.limits.tool_timeout = Some(Duration::MAX);
    let mut driver = Driver::with(rules);
    driver.now = Duration::from_secs(1);
    driver.deltas([call(0, "pure", "{}")]).well().started(&["pure#0"]);
    assert_eq!(driver.turn.poll_timeout(), None);
}

#[test]
fn an_answer_quotes_a_part_of_what_does_not_fit() {
    let mut driver = Driver::with(rules(PARALLEL));
    let long = format!("{{\"n\":\"{}\"}}", "x".repeat(100_000));
    driver.deltas([call(0, "pure", &long)]).well();
    let content = &driver.commit.as_ref().unwrap().results[0].outcome.content;
    assert!(content.len() < 600, "{content}");
}

#[test]
fn ids_are_unique_whatever_the_order_of_the_seals() {
    let same = |index| {
        let piece = CallPiece {
            index: Some(index),
            id: Some(if index == 0 { "call_0_1" } else { "x" }.into()),
            name: Some("repeatable".into()),
            ..CallPiece::default()
        };
        Delta::Call(CallPiece { id: piece.id.clone().filter(|_| index != 1), ..piece })
    };
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([same(0), same(1), same(2), same(3)]).cancel();
    let results = &driver.commit.as_ref().unwrap().results;
    let ids: Vec<_> = results.iter().map(|result| result.call.id.as_str()).collect();
    assert_eq!(ids, ["call_0_1", "call_1_1", "x", "call_0_3"]);
}

/// The journal may end behind any record: what must not run does not, whatever is left of it.
#[test]
fn a_resumed_turn_runs_nothing_that_was_answered_unrun() {
    let mut limited = rules(PARALLEL);
    limited.limits.max_tool_calls_per_turn = Some(3);
    let response = || {
        [
            call(0, "pure", "{\"n\":\"x\"}"),
            call(1, "pure", "{\"n\":"),
            call(2, "nobody", "{}"),
            call(3, "pure", "{\"n\":3}"),
        ]
    };
    let mut whole = Driver::with(limited.clone());
    whole.deltas(response()).well();
    let ended = whole.log.iter().position(|r| matches!(r, Record::ResponseEnded { .. })).unwrap();
    for kept in ended + 1..whole.log.len() {
        let mut driver = Driver::with(limited.clone());
        driver.deltas(response()).well().crash(kept).started(&[]);
        assert_eq!(driver.commit.unwrap().results.len(), 4, "{kept} records");
    }
    // The same, where the outcomes of all calls are lost.
    let mut driver = Driver::with(limited);
    driver.deltas(response()).well();
    driver.log.retain(|record| !matches!(record, Record::CallEnded { .. }));
    let kept = driver.log.len() - 1;
    driver.crash(kept).started(&[]);
    let results = whole.commit.unwrap().results;
    let outcomes: Vec<_> = results.iter().map(|result| &result.outcome).collect();
    let resumed = driver.commit.unwrap().results;
    assert_eq!(resumed.iter().map(|result| &result.outcome).collect::<Vec<_>>(), outcomes);
}

#[test]
fn a_failed_call_is_no_second_try_for_its_duplicate_after_a_crash() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}"), call(1, "pure", "{}")]).well();
    driver.outcome(0, ToolOutcome::not_ok(FAILED, FailureKind::ToolError, "no"));
    let first = |record: &Record| matches!(record, Record::CallEnded { key, .. } if key.index == 0);
    let kept = driver.log.iter().position(first).unwrap() + 1;
    driver.crash(kept).started(&[]);
    let results = &driver.commit.as_ref().unwrap().results;
    assert_eq!(results[1].outcome.content, "no");
    assert_eq!(
        (results[1].started, results[1].notes.duplicate_of),
        (None, Some(results[0].call.key))
    );
}

#[test]
fn a_stop_after_a_crash_does_not_deny_what_may_have_happened() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "idempotent", "{}")]).well().started(&["idempotent#0"]);
    driver.turn = Turn::resume(spec(rules(PARALLEL)), &driver.log);
    driver.turn.handle_cancel(Duration::ZERO, CancelReason::Stop);
    driver.records = 0;
    driver.pump();
    let perhaps = "Error: cancelled while running: it may or may not have happened";
    driver.results(&[("idempotent", CANCELLED, Some(FailureKind::Cancelled), perhaps)]);
}

#[test]
fn what_a_broken_response_had_started_before_a_crash_is_counted() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "seal", "{}"), call(1, "seal", "{\"n\":1}"), text("x")]);
    let kept = driver.log.len();
    driver.crash(kept);
    let counted =
        |event: &Event| matches!(event, Event::ResponseEnded { opened: 1, detected: 1, .. });
    assert_eq!(driver.count(counted), 1);
}
