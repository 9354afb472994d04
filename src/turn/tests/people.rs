//! People in the loop: what they are asked, and what comes of what they say.

use sha2::{Digest, Sha256};

use super::*;
use crate::config::Limits;
use crate::event::ApprovalRequest;
use crate::turn::fixtures::committed;
use crate::turn::{ApprovalDecision, ApprovalError};
use crate::types::{ApprovalPhase, Judgement, Verdict, WriteSet};

use ApprovalPhase::{After, Before};
use Verdict::{Approved, Expired, Rejected};

const REFUSED: ToolStatus = ToolStatus::Refused;
const REJECTED: Option<FailureKind> = Some(FailureKind::Rejected);
const EXPIRED: Option<FailureKind> = Some(FailureKind::ApprovalExpired);

const NOT_RUN: &str = r#"{"status":"rejected","message":"not run: a person rejected the call"}"#;
const UNSEEN: &str =
    r#"{"status":"rejected","message":"it ran, but a person rejected its result"}"#;
const CUT_SHORT: &str = r#"{"status":"rejected","message":"it ran, but the run was ended before anybody said whether its result may be seen"}"#;

impl Driver {
    /// Decides about whatever is asked about a call at present.
    pub(super) fn decide_approval(&mut self, index: u32, verdict: Verdict) -> &mut Self {
        let asked = self.turn.pending_approval(self.key(index)).map(|asked| asked.phase);
        assert_eq!(self.decide(index, asked, verdict, None), Ok(()));
        self
    }

    fn decide(
        &mut self,
        index: u32,
        phase: Option<ApprovalPhase>,
        verdict: Verdict,
        message: Option<&str>,
    ) -> Result<(), ApprovalError> {
        let arguments = &self.turn.calls[index as usize].call.arguments;
        let hash = Sha256::digest(arguments.to_string());
        let decision = ApprovalDecision {
            phase,
            judgement: Judgement { verdict, message: message.map(Into::into) },
            arguments_sha256: hash.iter().map(|byte| format!("{byte:02X}")).collect(),
        };
        let taken = self.turn.handle_approval(self.now, self.key(index), decision);
        self.pump();
        taken
    }

    fn asked(&self) -> Vec<(u32, ApprovalPhase)> {
        self.pending_approvals().map(|asked| (asked.call.key.index, asked.phase)).collect()
    }

    fn pending_approvals(&self) -> impl Iterator<Item = &ApprovalRequest> {
        self.events.iter().filter_map(|event| match event {
            Event::ApprovalAsked { asked } => Some(&**asked),
            _ => None,
        })
    }

    fn at(&mut self, seconds: u64) -> &mut Self {
        self.now = Duration::from_secs(seconds);
        self.turn.handle_timeout(self.now);
        self.pump();
        self
    }
}

fn calls(execution: Execution, names: &[&str]) -> Driver {
    let mut driver = Driver::with(rules(execution));
    driver.deltas((0..).zip(names).map(|(n, name)| match name.split_once(' ') {
        Some((name, arguments)) => call(n, name, arguments),
        None => call(n, name, &format!("{{\"n\":{n}}}")),
    }));
    driver.well();
    driver
}

fn x(n: i64) -> VariablesUse {
    let writes = WriteSet([("x".into(), Arc::new(serde_json::json!(n)))].into());
    VariablesUse { reads: ["x".into()].into(), writes }
}

#[test]
fn a_call_runs_when_it_is_let_and_its_result_is_told_when_it_is_let() {
    let mut driver = calls(PARALLEL, &["both"]);
    driver.started(&[]).decide_approval(0, Approved).started(&["both#0"]).done(0, "secret");
    assert_eq!(driver.asked(), [(0, Before), (0, After)]);
    assert!(driver.commit.is_none());
    let shown: Vec<_> =
        driver.pending_approvals().map(|asked| asked.output_summary.as_deref()).collect();
    assert_eq!(shown, [None, Some("secret")]);
    driver.decide_approval(0, Approved).results(&[("both", OK, None, "secret")]);
    let notes = &driver.commit.as_ref().unwrap().results[0].notes;
    let approved = Some(Judgement { verdict: Approved, message: None });
    assert_eq!((&notes.before, &notes.after), (&approved, &approved));
}

#[test]
fn what_is_rejected_does_not_run_or_is_not_seen_and_a_message_is_told() {
    let mut driver = calls(PARALLEL, &["asked", "reviewed", "asked", "both", "both"]);
    driver.decide_approval(0, Rejected).done(1, "secret").decide_approval(1, Rejected);
    driver.decide(2, Some(Before), Rejected, Some("ask \"me\" first")).unwrap();
    driver
        .decide_approval(3, Approved)
        .done(3, "secret")
        .decide_approval(3, Rejected)
        .decide_approval(4, Rejected);
    driver.started(&["reviewed#1", "both#3"]);
    let told = r#"{"status":"rejected","message":"ask \"me\" first"}"#;
    driver.results(&[
        ("asked", REFUSED, REJECTED, NOT_RUN),
        ("reviewed", REFUSED, REJECTED, UNSEEN),
        ("asked", REFUSED, REJECTED, told),
        ("both", REFUSED, REJECTED, UNSEEN),
        ("both", REFUSED, REJECTED, NOT_RUN),
    ]);
    let kept = driver.log.iter().filter(|record| {
        matches!(record, Record::CallReported { outcome, .. } if &*outcome.content == "secret")
    });
    assert_eq!(kept.count(), 2);
}

#[test]
fn the_first_decision_stands_and_only_one_about_these_arguments_counts() {
    let mut driver = calls(PARALLEL, &["asked", "pure"]);
    let stale = |phase, hash: &str| ApprovalDecision {
        phase,
        judgement: Judgement { verdict: Approved, message: None },
        arguments_sha256: hash.into(),
    };
    let key = driver.key(0);
    let refused = driver.turn.handle_approval(driver.now, key, stale(None, "00"));
    assert_eq!(refused, Err(ApprovalError::Stale));
    assert_eq!(driver.decide(0, Some(After), Approved, None), Err(ApprovalError::NotAsked));
    assert_eq!(driver.decide(1, None, Approved, None), Err(ApprovalError::NotAsked));
    let nobody = CallKey { index: 7, ..key };
    let refused = driver.turn.handle_approval(driver.now, nobody, stale(None, "00"));
    assert_eq!(refused, Err(ApprovalError::NotAsked));
    driver.started(&["pure#1"]).decide_approval(0, Rejected).decide_approval(0, Rejected);
    for phase in [None, Some(Before)] {
        let refused = driver.decide(0, phase, Approved, None);
        assert_eq!(refused, Err(ApprovalError::Decided(Rejected)));
    }
    driver.done(1, "").started(&["pure#1"]);
    assert_eq!(driver.decide(0, None, Rejected, None), Ok(()));
}

#[test]
fn what_nobody_decides_in_time_is_not_let() {
    let day = 24 * 60 * 60;
    let mut driver = calls(PARALLEL, &["asked", "reviewed"]);
    driver.at(10).done(1, "secret").at(day);
    assert!(driver.commit.is_none());
    let before =
        r#"{"status":"rejected","message":"not run: nobody said in time whether it may run"}"#;
    let after = r#"{"status":"rejected","message":"it ran, but nobody said in time whether its result may be seen"}"#;
    driver.at(day + 10).started(&["reviewed#1"]);
    driver.results(&[("asked", REFUSED, EXPIRED, before), ("reviewed", REFUSED, EXPIRED, after)]);
    assert_eq!(driver.decide(0, None, Approved, None), Err(ApprovalError::Decided(Expired)));
}

#[test]
fn a_question_takes_no_place_and_is_asked_in_its_turn() {
    let mut driver = calls(Execution::Parallel { max: 1 }, &["asked", "pure", "asked"]);
    driver.started(&["pure#1"]);
    assert_eq!(driver.asked(), [(0, Before), (2, Before)]);
    driver
        .decide_approval(2, Approved)
        .started(&["pure#1"])
        .done(1, "")
        .started(&["pure#1", "asked#2"]);
    let mut driver = calls(Execution::Sequential, &["asked", "pure", "asked"]);
    assert_eq!(driver.asked(), [(0, Before)]);
    driver.started(&[]).decide_approval(0, Rejected).started(&["pure#1"]);
    assert_eq!(driver.asked(), [(0, Before)]);
    let mut driver = calls(PARALLEL, &["pure", "asked", "exclusive", "asked_pure"]);
    assert_eq!(driver.asked(), [(1, Before)]);
    driver.decide_approval(1, Rejected).started(&["pure#0"]).done(0, "");
    driver.started(&["pure#0", "exclusive#2"]).done(2, "");
    assert_eq!(driver.asked(), [(1, Before), (3, Before)]);
}

#[test]
fn a_duplicate_gets_what_was_said_about_the_first() {
    let mut driver = calls(PARALLEL, &["asked {}", "asked {}"]);
    driver.decide_approval(0, Rejected);
    driver.results(&[("asked", REFUSED, REJECTED, NOT_RUN); 2]);
    let mut driver = calls(PARALLEL, &["reviewed {}", "reviewed {}"]);
    driver.done(0, "secret").decide_approval(0, Rejected);
    driver.results(&[("reviewed", REFUSED, REJECTED, UNSEEN); 2]);
    assert_eq!(driver.asked(), [(0, After)]);
}

#[test]
fn a_cancel_closes_every_question() {
    let mut driver = calls(PARALLEL, &["asked", "reviewed"]);
    driver.done(1, "secret").cancel();
    let not_started = "Error: not started: the run was ended before";
    driver.results(&[
        ("asked", CANCELLED, NOT_STARTED, not_started),
        ("reviewed", REFUSED, REJECTED, CUT_SHORT),
    ]);
    assert_eq!(driver.decide(0, None, Approved, None), Err(ApprovalError::NotAsked));
    // What is reported only after the cancel is not seen either.
    let mut driver = calls(PARALLEL, &["pure", "bump_reviewed"]);
    driver.report(1, ToolOutcome::ok("secret"), x(1)).cancel();
    let result = &driver.commit.as_ref().unwrap().results[1];
    assert_eq!((&*result.outcome.content, result.writes.is_empty()), (CUT_SHORT, true));
}

#[test]
fn a_rejected_result_leaves_variables_as_they_were() {
    let mut driver = calls(PARALLEL, &["bump_reviewed", "get"]);
    driver.report(0, ToolOutcome::ok("secret"), x(1)).report(
        1,
        ToolOutcome::ok("none"),
        VariablesUse { reads: ["x".into()].into(), ..VariablesUse::default() },
    );
    driver.decide_approval(0, Rejected).started(&["bump_reviewed#0", "get#1"]);
    driver.results(&[("bump_reviewed", REFUSED, REJECTED, UNSEEN), ("get", OK, None, "none")]);
    assert_eq!(committed(&driver.log, &Limits::default()).1, Variables::default());
    let mut driver = calls(PARALLEL, &["bump_reviewed"]);
    driver.report(0, ToolOutcome::ok("seen"), x(1)).decide_approval(0, Approved);
    assert_eq!(committed(&driver.log, &Limits::default()).1.get("x"), Some(&serde_json::json!(1)));
}

#[test]
fn people_see_a_conflicting_effect_as_the_model_would() {
    let mut driver = calls(PARALLEL, &["put", "add_both"]);
    driver.decide_approval(1, Approved).report(1, ToolOutcome::ok("secret"), x(10));
    assert_eq!(driver.asked(), [(1, Before)]);
    driver.report(0, ToolOutcome::ok(""), VariablesUse { reads: [].into(), ..x(1) });
    assert_eq!(driver.asked(), [(1, Before), (1, After)]);
    let shown = driver.pending_approvals().last().unwrap().output_summary.clone().unwrap();
    assert!(shown.starts_with("secret\n[callsheet: an earlier call"), "{shown}");
    driver.decide_approval(1, Approved);
    let result = &driver.commit.as_ref().unwrap().results[1];
    assert!(result.outcome.content.ends_with("What this call wrote to variables was dropped.]"));
    assert!(result.notes.conflict && result.notes.writes_dropped && result.writes.is_empty());
    assert_eq!(committed(&driver.log, &Limits::default()).1.get("x"), Some(&serde_json::json!(1)));
}

#[test]
fn while_people_are_waited_for_the_runs_time_stands_still() {
    let mut timed = spec(rules(PARALLEL));
    timed.run_time_left = Some(Duration::from_secs(60));
    let mut driver = Driver::new(timed);
    driver.deltas([call(0, "asked", "{}"), call(1, "pure", "{\"n\":1}")]).well();
    let deadline = |driver: &Driver| driver.turn.poll_timeout().map(|at| at.as_secs());
    // A tool runs beside the question.
    driver.at(10);
    assert_eq!(deadline(&driver), Some(30));
    driver.done(1, "").at(1000);
    assert_eq!(deadline(&driver), Some(24 * 60 * 60));
    driver.decide_approval(0, Approved);
    assert_eq!(deadline(&driver), Some(1030));
    driver.at(1030).started(&["pure#1", "asked#0"]);
    let times = driver.commit.as_ref().unwrap().times;
    assert_eq!((times.people.as_secs(), times.tools.as_secs()), (990, 40));
    // What is left of the run is what had not passed before.
    let mut timed = spec(rules(PARALLEL));
    timed.run_time_left = Some(Duration::from_secs(60));
    timed.rules = Arc::new(TurnRules {
        limits: crate::config::Limits { tool_timeout: None, ..rules(PARALLEL).limits },
        ..rules(PARALLEL)
    });
    let mut driver = Driver::new(timed);
    driver.at(10).deltas([call(0, "asked", "{}")]).well().at(1000).decide_approval(0, Approved);
    assert_eq!(deadline(&driver), Some(1050));
    driver.at(1049);
    assert!(driver.commit.is_none());
    driver.at(1050).ended(&TurnEnd::Cancelled(CancelReason::RunTimeout));
}

#[test]
fn a_question_is_told_right_behind_its_record_and_is_gone_if_its_call_is_void() {
    let mut turn = Turn::new(spec(rules(PARALLEL)));
    turn.handle_deltas(Duration::ZERO, vec![call(0, "asked_pure", "{}"), call(1, "pure", "{}")]);
    let effects: Vec<_> = std::iter::from_fn(|| turn.poll()).collect();
    let told = effects.windows(2).filter(|pair| {
        matches!(
            pair,
            [
                Effect::Record(Record::ApprovalAsked { asked: recorded }),
                Effect::Emit(Event::ApprovalAsked { asked })
            ] if recorded == asked
        )
    });
    assert_eq!((told.count(), turn.pending_approvals().count()), (1, 1));
    let error = ProviderError::new(ProviderErrorKind::Transport, "cut");
    turn.handle_response_end(Duration::ZERO, ExchangeEnd::Failed(error));
    assert_eq!(turn.pending_approvals().count(), 0);
}

/// A turn that goes on so many seconds after its last record, which had the time 0.
fn after_seconds(driver: &mut Driver, seconds: u64) {
    let log: Vec<_> = driver.log.iter().map(|record| (record.clone(), 0)).collect();
    driver.turn = Turn::resume(spec(rules(PARALLEL)), &entries(0, &log), seconds * 1000, None);
    (driver.now, driver.records) = (Duration::ZERO, 0);
    driver.events.clear();
    driver.pump();
}

#[test]
fn the_time_to_decide_counts_on_while_no_host_runs() {
    let day = 24 * 60 * 60;
    let mut driver = calls(PARALLEL, &["asked", "reviewed"]);
    driver.done(1, "secret");
    let questions: Vec<_> = driver.turn.pending_approvals().collect();
    after_seconds(&mut driver, day - 10);
    assert_eq!((driver.asked(), driver.turn.pending_approvals().collect()), (vec![], questions));
    assert_eq!(driver.turn.poll_timeout(), Some(Duration::from_secs(10)));
    driver.at(9);
    assert!(driver.commit.is_none());
    driver.at(10).ended(&TurnEnd::Finished);
    let waited = driver.events.iter().filter_map(|event| match event {
        Event::ApprovalGiven { waited, .. } => Some(waited.as_secs()),
        _ => None,
    });
    assert_eq!(waited.collect::<Vec<_>>(), [day, day]);
    // Nobody was there when it passed.
    let mut driver = calls(PARALLEL, &["asked", "reviewed"]);
    driver.done(1, "secret");
    after_seconds(&mut driver, day);
    driver.ended(&TurnEnd::Finished);
    let kinds = driver.commit.unwrap().results.into_iter().map(|result| result.outcome.kind);
    assert_eq!(kinds.collect::<Vec<_>>(), [EXPIRED, EXPIRED]);
}

#[test]
fn a_result_that_waits_to_be_seen_waits_for_no_call_before_it() {
    let mut driver = calls(PARALLEL, &["effect", "reviewed"]);
    // A record is taken out that would be there.
    driver.log.is_replayed = false;
    driver.done(1, "secret");
    driver.log.retain(
        |record| !matches!(record, Record::CallIntended { call, .. } if &*call.name == "effect"),
    );
    let kept = driver.log.len();
    driver.crash(kept).started(&["effect#0"]).decide_approval(1, Approved).done(0, "");
    driver.results(&[("effect", OK, None, ""), ("reviewed", OK, None, "secret")]);
}

#[test]
fn what_people_said_before_a_crash_counts_after_it() {
    // What was let run and had not, runs; what was forbidden does not; what is open stands.
    let said = |record: &Record| matches!(record, Record::ApprovalGiven { .. });
    let mut driver = calls(PARALLEL, &["asked", "asked", "asked_pure"]);
    driver.decide_approval(2, Approved).decide_approval(1, Rejected);
    let kept = driver.log.iter().rposition(said).unwrap() + 1;
    driver.events.clear();
    driver.crash(kept).started(&["asked_pure#2"]);
    assert_eq!(driver.asked(), []);
    driver.done(2, "").decide_approval(0, Rejected);
    driver.results(&[
        ("asked", REFUSED, REJECTED, NOT_RUN),
        ("asked", REFUSED, REJECTED, NOT_RUN),
        ("asked_pure", OK, None, ""),
    ]);
    // A question about a result stands, and that is not made again.
    for verdict in [Approved, Rejected] {
        let mut driver = calls(PARALLEL, &["both"]);
        driver.decide_approval(0, Approved).done(0, "secret").decide_approval(0, verdict);
        let kept = driver.log.iter().rposition(said).unwrap();
        driver.events.clear();
        let mut unsaid = calls(PARALLEL, &["both"]);
        unsaid.decide_approval(0, Approved).done(0, "secret").events.clear();
        unsaid.crash(kept).started(&[]).decide_approval(0, verdict);
        assert_eq!(unsaid.asked(), []);
        driver.crash(kept + 1).started(&[]);
        assert_eq!(driver.asked(), []);
        let (status, kind, content) = match verdict {
            Approved => (OK, None, "secret"),
            _ => (REFUSED, REJECTED, UNSEEN),
        };
        driver.results(&[("both", status, kind, content)]);
        unsaid.results(&[("both", status, kind, content)]);
    }
}

#[test]
fn an_effect_whose_unseen_result_the_journal_kept_does_not_happen_again_for_its_duplicate() {
    let mut driver = calls(PARALLEL, &["reviewed {}", "reviewed {}"]);
    driver.done(0, "secret").cancel();
    let ended = driver.log.iter().position(|record| matches!(record, Record::CallEnded { .. }));
    driver.crash(ended.unwrap() + 1).started(&[]);
    driver.results(&[("reviewed", REFUSED, REJECTED, CUT_SHORT); 2]);
}
