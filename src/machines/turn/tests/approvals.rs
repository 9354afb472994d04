//! Approvals: requests, decisions, timeouts, conflicts and crashes.

use sha2::{Digest, Sha256};

use super::*;
use crate::turn::fixtures::committed;
use crate::turn::{ApprovalDecision, ApprovalError};
use callsheet_values::config::Limits;
use callsheet_values::event::ApprovalRequest;
use callsheet_values::types::{ApprovalVerdict, VerdictWithMessage, WaitPhase, WriteSet};

use ApprovalVerdict::{Approved, Expired, Rejected};
use WaitPhase::{After, Before};

const REFUSED: ToolStatus = ToolStatus::Refused;
const REJECTED: Option<FailureKind> = Some(FailureKind::Rejected);
const EXPIRED: Option<FailureKind> = Some(FailureKind::ApprovalExpired);

const NOT_RUN: &str = r#"{"status":"rejected","message":"not run: a person rejected the call"}"#;
const RESULT_REJECTED: &str =
    r#"{"status":"rejected","message":"it ran, but a person rejected its result"}"#;
const NOT_REVIEWED: &str = r#"{"status":"rejected","message":"it ran, but the run was ended before its result was approved"}"#;

impl Driver {
    /// Decides the pending approval of a call.
    pub(super) fn decide_approval(&mut self, index: u32, verdict: ApprovalVerdict) -> &mut Self {
        let phase = self.turn.pending_approval(self.key(index)).map(|request| request.phase);
        assert_eq!(self.decide(index, phase, verdict, None), Ok(()));
        self
    }

    fn decide(
        &mut self,
        index: u32,
        phase: Option<WaitPhase>,
        verdict: ApprovalVerdict,
        message: Option<&str>,
    ) -> Result<(), ApprovalError> {
        let arguments = &self.turn.calls[index as usize].call.arguments;
        let hash = Sha256::digest(arguments.to_string());
        let decision = ApprovalDecision {
            phase,
            verdict,
            message: message.map(Into::into),
            arguments_sha256: hash.iter().map(|byte| format!("{byte:02X}")).collect(),
            content: None,
            author: None,
        };
        let applied = self.turn.handle_approval(self.now, self.key(index), decision);
        self.perform_effects();
        applied
    }

    fn requested_approvals(&self) -> Vec<(u32, WaitPhase)> {
        self.approval_requests().map(|request| (request.call.key.index, request.phase)).collect()
    }

    fn approval_requests(&self) -> impl Iterator<Item = &ApprovalRequest> {
        self.events.iter().filter_map(|event| match event {
            Event::ApprovalAsked { request } => Some(&**request),
            _ => None,
        })
    }

    fn advance_to(&mut self, seconds: u64) -> &mut Self {
        self.now = Duration::from_secs(seconds);
        self.turn.handle_timeout(self.now);
        self.perform_effects();
        self
    }
}

fn calls(execution: Execution, names: &[&str]) -> Driver {
    let mut driver = Driver::with(rules(execution));
    driver.receive((0..).zip(names).map(|(n, name)| match name.split_once(' ') {
        Some((name, arguments)) => call(n, name, arguments),
        None => call(n, name, &format!("{{\"n\":{n}}}")),
    }));
    driver.end_well();
    driver
}

fn reads_and_writes_x(n: i64) -> VariablesUse {
    let writes = WriteSet([("x".into(), Arc::new(serde_json::json!(n)))].into());
    VariablesUse { reads: ["x".into()].into(), writes }
}

#[test]
fn a_call_runs_after_its_approval_and_its_result_is_released_after_its_review() {
    let mut driver = calls(PARALLEL, &["both"]);
    driver
        .assert_started(&[])
        .decide_approval(0, Approved)
        .assert_started(&["both#0"])
        .finish_call(0, "secret");
    assert_eq!(driver.requested_approvals(), [(0, Before), (0, After)]);
    assert!(driver.commit.is_none());
    let summaries: Vec<_> =
        driver.approval_requests().map(|request| request.output_summary.as_deref()).collect();
    assert_eq!(summaries, [None, Some("secret")]);
    driver.decide_approval(0, Approved).assert_results(&[("both", OK, None, "secret")]);
    let notes = &driver.commit.as_ref().unwrap().results[0].notes;
    let approved = Some(VerdictWithMessage { verdict: Approved, message: None });
    assert_eq!((&notes.before, &notes.after), (&approved, &approved));
}

#[test]
fn a_rejected_call_does_not_run_and_a_rejected_result_is_replaced_by_the_message() {
    let mut driver = calls(PARALLEL, &["asked", "reviewed", "asked", "both", "both"]);
    driver.decide_approval(0, Rejected).finish_call(1, "secret").decide_approval(1, Rejected);
    driver.decide(2, Some(Before), Rejected, Some("ask \"me\" first")).unwrap();
    driver
        .decide_approval(3, Approved)
        .finish_call(3, "secret")
        .decide_approval(3, Rejected)
        .decide_approval(4, Rejected);
    driver.assert_started(&["reviewed#1", "both#3"]);
    let with_message = r#"{"status":"rejected","message":"ask \"me\" first"}"#;
    driver.assert_results(&[
        ("asked", REFUSED, REJECTED, NOT_RUN),
        ("reviewed", REFUSED, REJECTED, RESULT_REJECTED),
        ("asked", REFUSED, REJECTED, with_message),
        ("both", REFUSED, REJECTED, RESULT_REJECTED),
        ("both", REFUSED, REJECTED, NOT_RUN),
    ]);
    let reports = driver.log.iter().filter(|record| {
        matches!(record, Record::CallReported { outcome, .. } if &*outcome.content == "secret")
    });
    assert_eq!(reports.count(), 2);
}

#[test]
fn the_first_decision_is_final_and_must_be_about_the_same_arguments() {
    let mut driver = calls(PARALLEL, &["asked", "pure"]);
    let stale = |phase, hash: &str| ApprovalDecision {
        phase,
        verdict: Approved,
        message: None,
        arguments_sha256: hash.into(),
        content: None,
        author: None,
    };
    let key = driver.key(0);
    let refused = driver.turn.handle_approval(driver.now, key, stale(None, "00"));
    assert_eq!(refused, Err(ApprovalError::Stale));
    assert_eq!(driver.decide(0, Some(After), Approved, None), Err(ApprovalError::NoSuchApproval));
    assert_eq!(driver.decide(1, None, Approved, None), Err(ApprovalError::NoSuchApproval));
    let unknown = CallKey { index: 7, ..key };
    let refused = driver.turn.handle_approval(driver.now, unknown, stale(None, "00"));
    assert_eq!(refused, Err(ApprovalError::NoSuchApproval));
    driver.assert_started(&["pure#1"]).decide_approval(0, Rejected).decide_approval(0, Rejected);
    for phase in [None, Some(Before)] {
        let refused = driver.decide(0, phase, Approved, None);
        assert_eq!(refused, Err(ApprovalError::Decided(Rejected)));
    }
    driver.finish_call(1, "").assert_started(&["pure#1"]);
    assert_eq!(driver.decide(0, None, Rejected, None), Ok(()));
}

#[test]
fn an_approval_expires_after_its_timeout() {
    let day = 24 * 60 * 60;
    let mut driver = calls(PARALLEL, &["asked", "reviewed"]);
    driver.advance_to(10).finish_call(1, "secret").advance_to(day);
    assert!(driver.commit.is_none());
    let before =
        r#"{"status":"rejected","message":"not run: no decision about the call arrived in time"}"#;
    let after = r#"{"status":"rejected","message":"it ran, but no decision about its result arrived in time"}"#;
    driver.advance_to(day + 10).assert_started(&["reviewed#1"]);
    driver.assert_results(&[
        ("asked", REFUSED, EXPIRED, before),
        ("reviewed", REFUSED, EXPIRED, after),
    ]);
    assert_eq!(driver.decide(0, None, Approved, None), Err(ApprovalError::Decided(Expired)));
}

#[test]
fn a_pending_approval_holds_no_permit_and_is_requested_in_ticket_order() {
    let mut driver = calls(Execution::Parallel { max: 1 }, &["asked", "pure", "asked"]);
    driver.assert_started(&["pure#1"]);
    assert_eq!(driver.requested_approvals(), [(0, Before), (2, Before)]);
    driver
        .decide_approval(2, Approved)
        .assert_started(&["pure#1"])
        .finish_call(1, "")
        .assert_started(&["pure#1", "asked#2"]);
    let mut driver = calls(Execution::Sequential, &["asked", "pure", "asked"]);
    assert_eq!(driver.requested_approvals(), [(0, Before)]);
    driver.assert_started(&[]).decide_approval(0, Rejected).assert_started(&["pure#1"]);
    assert_eq!(driver.requested_approvals(), [(0, Before)]);
    let mut driver = calls(PARALLEL, &["pure", "asked", "exclusive", "asked_pure"]);
    assert_eq!(driver.requested_approvals(), [(1, Before)]);
    driver.decide_approval(1, Rejected).assert_started(&["pure#0"]).finish_call(0, "");
    driver.assert_started(&["pure#0", "exclusive#2"]).finish_call(2, "");
    assert_eq!(driver.requested_approvals(), [(1, Before), (3, Before)]);
}

#[test]
fn a_duplicate_copies_the_rejection_of_the_first_call() {
    let mut driver = calls(PARALLEL, &["asked {}", "asked {}"]);
    driver.decide_approval(0, Rejected);
    driver.assert_results(&[("asked", REFUSED, REJECTED, NOT_RUN); 2]);
    let mut driver = calls(PARALLEL, &["reviewed {}", "reviewed {}"]);
    driver.finish_call(0, "secret").decide_approval(0, Rejected);
    driver.assert_results(&[("reviewed", REFUSED, REJECTED, RESULT_REJECTED); 2]);
    assert_eq!(driver.requested_approvals(), [(0, After)]);
}

#[test]
fn a_cancellation_ends_every_pending_approval() {
    let mut driver = calls(PARALLEL, &["asked", "reviewed"]);
    driver.finish_call(1, "secret").cancel();
    let not_started = "Error: not started: the run was ended before";
    driver.assert_results(&[
        ("asked", CANCELLED, NOT_STARTED, not_started),
        ("reviewed", REFUSED, REJECTED, NOT_REVIEWED),
    ]);
    assert_eq!(driver.decide(0, None, Approved, None), Err(ApprovalError::NoSuchApproval));
    // A report that is resolved by the cancellation is not approved either.
    let mut driver = calls(PARALLEL, &["pure", "bump_reviewed"]);
    driver.finish_call_using(1, ToolOutcome::ok("secret"), reads_and_writes_x(1)).cancel();
    let result = &driver.commit.as_ref().unwrap().results[1];
    assert_eq!((&*result.outcome.content, result.writes.is_empty()), (NOT_REVIEWED, true));
}

#[test]
fn a_rejected_result_changes_no_variables() {
    let mut driver = calls(PARALLEL, &["bump_reviewed", "get"]);
    driver
        .finish_call_using(0, ToolOutcome::ok("secret"), reads_and_writes_x(1))
        .finish_call_using(
            1,
            ToolOutcome::ok("none"),
            VariablesUse { reads: ["x".into()].into(), ..VariablesUse::default() },
        );
    driver.decide_approval(0, Rejected).assert_started(&["bump_reviewed#0", "get#1"]);
    driver.assert_results(&[
        ("bump_reviewed", REFUSED, REJECTED, RESULT_REJECTED),
        ("get", OK, None, "none"),
    ]);
    assert_eq!(committed(&driver.log, &Limits::default()).1, Variables::default());
    let mut driver = calls(PARALLEL, &["bump_reviewed"]);
    driver
        .finish_call_using(0, ToolOutcome::ok("seen"), reads_and_writes_x(1))
        .decide_approval(0, Approved);
    assert_eq!(committed(&driver.log, &Limits::default()).1.get("x"), Some(&serde_json::json!(1)));
}

#[test]
fn a_review_shows_the_note_of_a_conflict() {
    let mut driver = calls(PARALLEL, &["put", "add_both"]);
    driver.decide_approval(1, Approved).finish_call_using(
        1,
        ToolOutcome::ok("secret"),
        reads_and_writes_x(10),
    );
    assert_eq!(driver.requested_approvals(), [(1, Before)]);
    driver.finish_call_using(
        0,
        ToolOutcome::ok(""),
        VariablesUse { reads: [].into(), ..reads_and_writes_x(1) },
    );
    assert_eq!(driver.requested_approvals(), [(1, Before), (1, After)]);
    let summary = driver.approval_requests().last().unwrap().output_summary.clone().unwrap();
    assert!(summary.starts_with("secret\n[callsheet: an earlier call"), "{summary}");
    driver.decide_approval(1, Approved);
    let result = &driver.commit.as_ref().unwrap().results[1];
    assert!(result.outcome.content.ends_with("What this call wrote to variables was dropped.]"));
    assert!(result.notes.conflict && result.notes.writes_dropped && result.writes.is_empty());
    assert_eq!(committed(&driver.log, &Limits::default()).1.get("x"), Some(&serde_json::json!(1)));
}

#[test]
fn time_with_only_approvals_pending_does_not_count_towards_run_timeout() {
    let mut timed = spec(rules(PARALLEL));
    timed.run_time_left = Some(Duration::from_secs(60));
    let mut driver = Driver::new(timed);
    driver.receive([call(0, "asked", "{}"), call(1, "pure", "{\"n\":1}")]).end_well();
    let deadline = |driver: &Driver| driver.turn.poll_timeout().map(|at| at.as_secs());
    // A tool runs while the approval is pending.
    driver.advance_to(10);
    assert_eq!(deadline(&driver), Some(30));
    driver.finish_call(1, "").advance_to(1000);
    assert_eq!(deadline(&driver), Some(24 * 60 * 60));
    driver.decide_approval(0, Approved);
    assert_eq!(deadline(&driver), Some(1030));
    driver.advance_to(1030).assert_started(&["pure#1", "asked#0"]);
    let times = driver.commit.as_ref().unwrap().times;
    assert_eq!((times.people.as_secs(), times.tools.as_secs()), (990, 40));
    // The remaining time of the run is the time before the approval subtracted from its limit.
    let mut timed = spec(rules(PARALLEL));
    timed.run_time_left = Some(Duration::from_secs(60));
    timed.rules = Arc::new(RunRules {
        limits: callsheet_values::config::Limits { tool_timeout: None, ..rules(PARALLEL).limits },
        ..rules(PARALLEL)
    });
    let mut driver = Driver::new(timed);
    driver
        .advance_to(10)
        .receive([call(0, "asked", "{}")])
        .end_well()
        .advance_to(1000)
        .decide_approval(0, Approved);
    assert_eq!(deadline(&driver), Some(1050));
    driver.advance_to(1049);
    assert!(driver.commit.is_none());
    driver.advance_to(1050).assert_end(&TurnEnd::Cancelled(CancelReason::RunTimeout));
}

#[test]
fn an_approval_is_requested_once_and_is_gone_with_a_void_attempt() {
    let mut turn = Turn::new(spec(rules(PARALLEL)));
    turn.handle_deltas(Duration::ZERO, vec![call(0, "asked_pure", "{}"), call(1, "pure", "{}")]);
    let effects: Vec<_> = std::iter::from_fn(|| turn.poll()).collect();
    let is_request =
        |effect: &&Effect| matches!(effect, Effect::Record(Record::ApprovalAsked { .. }));
    assert_eq!(
        (effects.iter().filter(is_request).count(), turn.pending_approvals().count()),
        (1, 1)
    );
    let error = ProviderError::new(ProviderErrorKind::Transport, "cut");
    turn.handle_response_end(Duration::ZERO, ExchangeEnd::Failed(error));
    assert_eq!(turn.pending_approvals().count(), 0);
}

/// Resumes the turn this number of seconds after its records, which have the time 0.
fn resume_after(driver: &mut Driver, seconds: u64) {
    let log: Vec<_> = driver.log.iter().map(|record| (record.clone(), 0)).collect();
    driver.turn = Turn::resume(spec(rules(PARALLEL)), &entries(0, &log), seconds * 1000, None);
    (driver.now, driver.records) = (Duration::ZERO, 0);
    driver.events.clear();
    driver.perform_effects();
}

#[test]
fn an_approval_timeout_also_passes_while_no_host_runs() {
    let day = 24 * 60 * 60;
    let mut driver = calls(PARALLEL, &["asked", "reviewed"]);
    driver.finish_call(1, "secret");
    let pending: Vec<_> = driver.turn.pending_approvals().collect();
    resume_after(&mut driver, day - 10);
    assert_eq!(
        (driver.requested_approvals(), driver.turn.pending_approvals().collect()),
        (vec![], pending)
    );
    assert_eq!(driver.turn.poll_timeout(), Some(Duration::from_secs(10)));
    driver.advance_to(9);
    assert!(driver.commit.is_none());
    driver.advance_to(10).assert_end(&TurnEnd::Finished);
    let waited = driver.events.iter().filter_map(|event| match event {
        Event::ApprovalGiven { waited, .. } => Some(waited.as_secs()),
        _ => None,
    });
    assert_eq!(waited.collect::<Vec<_>>(), [day, day]);
    // The approvals expired while no host ran.
    let mut driver = calls(PARALLEL, &["asked", "reviewed"]);
    driver.finish_call(1, "secret");
    resume_after(&mut driver, day);
    driver.assert_end(&TurnEnd::Finished);
    let kinds = driver.commit.unwrap().results.into_iter().map(|result| result.outcome.kind);
    assert_eq!(kinds.collect::<Vec<_>>(), [EXPIRED, EXPIRED]);
}

#[test]
fn a_review_waits_for_no_earlier_call() {
    let mut driver = calls(PARALLEL, &["effect", "reviewed"]);
    // A replay cannot make these records, because one is missing.
    driver.log.is_replayed = false;
    driver.finish_call(1, "secret");
    driver.log.retain(
        |record| !matches!(record, Record::CallIntended { call, .. } if &*call.name == "effect"),
    );
    let kept = driver.log.len();
    driver
        .crash(kept)
        .assert_started(&["effect#0"])
        .decide_approval(1, Approved)
        .finish_call(0, "");
    driver.assert_results(&[("effect", OK, None, ""), ("reviewed", OK, None, "secret")]);
}

#[test]
fn decisions_before_a_crash_apply_after_it() {
    // The approved call runs, the rejected call does not, and the third approval is still pending.
    let is_decision = |record: &Record| matches!(record, Record::ApprovalGiven { .. });
    let mut driver = calls(PARALLEL, &["asked", "asked", "asked_pure"]);
    driver.decide_approval(2, Approved).decide_approval(1, Rejected);
    let kept = driver.log.iter().rposition(is_decision).unwrap() + 1;
    driver.events.clear();
    driver.crash(kept).assert_started(&["asked_pure#2"]);
    assert_eq!(driver.requested_approvals(), []);
    driver.finish_call(2, "").decide_approval(0, Rejected);
    driver.assert_results(&[
        ("asked", REFUSED, REJECTED, NOT_RUN),
        ("asked", REFUSED, REJECTED, NOT_RUN),
        ("asked_pure", OK, None, ""),
    ]);
    // A pending review is not requested again, and the call does not run again.
    for verdict in [Approved, Rejected] {
        let mut driver = calls(PARALLEL, &["both"]);
        driver.decide_approval(0, Approved).finish_call(0, "secret").decide_approval(0, verdict);
        let kept = driver.log.iter().rposition(is_decision).unwrap();
        driver.events.clear();
        let mut undecided = calls(PARALLEL, &["both"]);
        undecided.decide_approval(0, Approved).finish_call(0, "secret").events.clear();
        undecided.crash(kept).assert_started(&[]).decide_approval(0, verdict);
        assert_eq!(undecided.requested_approvals(), []);
        driver.crash(kept + 1).assert_started(&[]);
        assert_eq!(driver.requested_approvals(), []);
        let (status, kind, content) = match verdict {
            Approved => (OK, None, "secret"),
            _ => (REFUSED, REJECTED, RESULT_REJECTED),
        };
        driver.assert_results(&[("both", status, kind, content)]);
        undecided.assert_results(&[("both", status, kind, content)]);
    }
}

#[test]
fn a_run_that_ends_after_a_recorded_review_keeps_its_decision() {
    for verdict in [Approved, Rejected] {
        let mut driver = calls(PARALLEL, &["reviewed"]);
        driver.finish_call(0, "secret").decide_approval(0, verdict);
        let given = |record: &Record| matches!(record, Record::ApprovalGiven { .. });
        let kept = driver.log.iter().position(given).unwrap() + 1;
        driver.log.truncate(kept);
        // A replay cannot know this cancellation.
        driver.log.is_replayed = false;
        let log: Vec<_> = driver.log.iter().map(|record| (record.clone(), 0)).collect();
        let cancel = Some(CancelReason::Stop);
        driver.turn = Turn::resume(spec(rules(PARALLEL)), &entries(0, &log), 0, cancel);
        (driver.records, driver.commit) = (0, None);
        driver.perform_effects();
        driver.assert_results(&[match verdict {
            Approved => ("reviewed", OK, None, "secret"),
            _ => ("reviewed", REFUSED, REJECTED, RESULT_REJECTED),
        }]);
        let notes = &driver.commit.as_ref().unwrap().results[0].notes;
        assert_eq!(notes.after.as_ref().map(|given| given.verdict), Some(verdict));
    }
}

#[test]
fn a_duplicate_of_a_call_with_an_unreviewed_result_does_not_run_after_a_crash() {
    let mut driver = calls(PARALLEL, &["reviewed {}", "reviewed {}"]);
    driver.finish_call(0, "secret").cancel();
    let ended = driver.log.iter().position(|record| matches!(record, Record::CallEnded { .. }));
    driver.crash(ended.unwrap() + 1).assert_started(&[]);
    driver.assert_results(&[("reviewed", REFUSED, REJECTED, NOT_REVIEWED); 2]);
}
