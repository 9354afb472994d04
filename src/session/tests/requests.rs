//! Requests that no state of the explorer has: a full queue, and the time of a run.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Limits, RunOverrides};
use crate::event::{TurnSummary, TurnTimes};
use crate::record::{JournalEntry, Record, ResponseMessage, Seq, StopMode, TurnEnd};
use crate::session::{
    InputLimits, RecordedAt, RunInput, Session, SessionEffect, SessionRefusal, StoredSession,
    TurnBegin,
};
use crate::turn::fixtures::rules;
use crate::turn::{CancelReason, TurnRecord, TurnRules};
use crate::types::{Execution, RequestKind, RunId};
use crate::wire::PromptChange;

/// A session whose runs may take ten seconds, with its journal.
struct Recorded {
    session: Session,
    log: Vec<JournalEntry>,
    began: Option<TurnBegin>,
    cancels: Vec<CancelReason>,
}

fn limits() -> Limits {
    Limits { run_timeout: Some(Duration::from_secs(10)), ..Limits::default() }
}

fn turn_rules(_: &RunOverrides) -> Arc<TurnRules> {
    Arc::new(TurnRules { limits: limits(), ..rules(Execution::Sequential) })
}

impl Recorded {
    fn open() -> Self {
        let session = Session::open("a", Vec::new(), crate::types::Metadata::default(), None, None);
        let (log, cancels) = (Vec::new(), Vec::new());
        let mut recorded = Self { session, log, began: None, cancels };
        recorded.perform(Duration::ZERO);
        recorded
    }

    fn start(&mut self, id: &str, inputs_max: usize) -> Result<(), SessionRefusal> {
        let run = RunInput {
            run_id: RunId(id.into()),
            input: id.into(),
            overrides: Arc::default(),
            trace: None,
            metadata: crate::types::Metadata::default(),
            into: None,
        };
        self.session.handle_run_request(run, None, InputLimits::inputs(inputs_max), &turn_rules)?;
        self.perform(Duration::ZERO);
        Ok(())
    }

    fn append(&mut self, now: Duration, record: &Record) {
        let seq = Seq(self.log.len() as u64 + 1);
        let entry = JournalEntry { seq, time: 0, displayed_bytes: 0, record: record.clone() };
        self.log.push(entry);
        let at = RecordedAt { seq, time: 0, now };
        self.session.apply(at, record, &|_| limits().into()).unwrap();
    }

    fn perform(&mut self, now: Duration) {
        while let Some(effect) = self.session.poll(now, &turn_rules) {
            match effect {
                SessionEffect::Record(batch) => {
                    batch.iter().for_each(|made| self.append(now, &made.record));
                }
                SessionEffect::BeginTurn(begin) => self.began = Some(*begin),
                SessionEffect::CancelTurn(reason) => self.cancels.push(reason),
                SessionEffect::RunEnded(_)
                | SessionEffect::ReadTools
                | SessionEffect::RequestSummary(_)
                | SessionEffect::ContextReduced { .. }
                | SessionEffect::RunRefused { .. }
                | SessionEffect::Close => {}
            }
        }
    }

    /// Commits the current turn, in which people were waited for during two of its three seconds.
    /// A user steers it, so that another turn follows.
    fn commit_steered(&mut self, now: Duration) {
        self.commit_with(None, now);
    }

    fn commit_with(&mut self, message: Option<Arc<ResponseMessage>>, now: Duration) {
        self.session.handle_steer("more".into(), None, InputLimits::inputs(9)).unwrap();
        self.perform(now);
        self.commit(message, now);
        self.perform(now);
    }

    /// Commits the current turn, and does not yet perform what follows.
    fn commit(&mut self, message: Option<Arc<ResponseMessage>>, now: Duration) {
        let seconds = Duration::from_secs;
        let times = TurnTimes { total: seconds(3), people: seconds(2), ..TurnTimes::default() };
        let summary = Box::new(TurnSummary { times, ..TurnSummary::default() });
        let turn = self.session.turn();
        let attempt = Record::AttemptStarted {
            turn,
            attempt: 1,
            model: "m".into(),
            streamed: true,
            reason: None,
            wait_ms: 0,
            prompt: None,
        };
        let commit = Record::TurnCommitted { turn, end: TurnEnd::Finished, summary };
        self.append(now, &attempt);
        self.append(now, &commit);
        let record = TurnRecord::from_records([&attempt, &commit]).unwrap();
        let record = TurnRecord { message, ..record };
        assert!(self.session.handle_turn_committed(&record));
    }
}

#[test]
fn queued_and_steered_inputs_share_a_maximum() {
    let mut recorded = Recorded::open();
    recorded.start("first", 2).unwrap();
    recorded.start("second", 2).unwrap();
    recorded.session.handle_steer("third".into(), None, InputLimits::inputs(2)).unwrap();
    recorded.perform(Duration::ZERO);
    let full = SessionRefusal::QueueFull(2);
    assert_eq!(recorded.start("fourth", 2), Err(full));
    assert_eq!(
        recorded.session.handle_steer("fifth".into(), None, InputLimits::inputs(2)),
        Err(full)
    );
}

#[test]
fn the_reason_of_a_changed_prompt_is_kept_until_a_response_proves_that_a_request_was_sent() {
    let mut recorded = Recorded::open();
    recorded.start("go", 2).unwrap();
    assert_eq!(recorded.session.handle_request(1, false), None);
    recorded.commit_steered(Duration::ZERO);
    let changed = Some(PromptChange::Config);
    assert_eq!(recorded.session.handle_request(2, false), changed);
    // The turn ended before the request was sent.
    recorded.commit_steered(Duration::ZERO);
    assert_eq!(recorded.session.handle_request(2, false), changed);
    recorded.commit_with(Some(Arc::default()), Duration::ZERO);
    assert_eq!(recorded.session.handle_request(2, false), None);
}

#[test]
fn an_input_before_the_request_for_a_final_answer_makes_it_an_ordinary_one() {
    let mut recorded = Recorded::open();
    recorded.start("go", 2).unwrap();
    // The answer was empty. The input arrives before the next turn, as if that waited for a summary.
    recorded.commit(None, Duration::ZERO);
    recorded.session.handle_steer("more".into(), None, InputLimits::inputs(9)).unwrap();
    recorded.perform(Duration::ZERO);
    let request = |recorded: &Recorded| recorded.began.as_ref().unwrap().spec.request;
    assert_eq!(request(&recorded), RequestKind::Ordinary);
    assert_eq!(recorded.session.run().unwrap().machine.turns(), 2);
    let stored = StoredSession::read(&recorded.log, &|_| limits().into()).unwrap();
    assert_eq!(stored.session.run().unwrap().machine.turns(), 2);
    // Without an input, it stays one, and does not count.
    recorded.commit(None, Duration::ZERO);
    recorded.perform(Duration::ZERO);
    assert_eq!(request(&recorded), RequestKind::FinalAnswer);
    assert_eq!(recorded.session.run().unwrap().machine.turns(), 2);
}

#[test]
fn the_time_of_a_run_stands_still_while_people_are_waited_for_and_while_no_host_runs_it() {
    let seconds = Duration::from_secs;
    let mut recorded = Recorded::open();
    recorded.start("go", 2).unwrap();
    let spec = |recorded: &Recorded| {
        let spec = &recorded.began.as_ref().unwrap().spec;
        (spec.began, spec.run_time_left.unwrap())
    };
    assert_eq!(spec(&recorded), (Duration::ZERO, seconds(10)));
    recorded.commit_steered(seconds(3));
    assert_eq!(spec(&recorded), (seconds(3), seconds(9)), "two of the seconds were of people");
    // The turn is lost after four seconds, of which it waited for people during one.
    recorded.session.handle_resting(seconds(4), true);
    recorded.session.handle_resting(seconds(5), false);
    recorded.session.handle_turn_lost(seconds(7));
    recorded.perform(seconds(7));
    assert_eq!(spec(&recorded), (seconds(7), seconds(6)));
    // Another host knows the times of committed turns only.
    let stored = StoredSession::read(&recorded.log, &|_| limits().into()).unwrap();
    recorded.session = stored.session;
    recorded.session.handle_wake(seconds(100), false);
    recorded.perform(seconds(101));
    assert_eq!(spec(&recorded), (seconds(4), seconds(8)));
}

#[test]
fn queued_inputs_keep_their_order() {
    let mut recorded = Recorded::open();
    for id in ["first", "second", "third"] {
        recorded.start(id, 9).unwrap();
    }
    let waiting: Vec<_> = recorded.session.queue().map(|queued| &*queued.run_id.0).collect();
    assert_eq!(waiting, ["second", "third"]);
}

#[test]
fn closing_stops_the_current_run_and_refuses_the_queued_ones() {
    let mut recorded = Recorded::open();
    recorded.start("first", 9).unwrap();
    recorded.start("second", 9).unwrap();
    recorded.session.handle_close();
    recorded.perform(Duration::ZERO);
    assert_eq!(recorded.cancels, [CancelReason::Stop]);
    assert_eq!(recorded.session.queue().count(), 0);
    let third = recorded.session.admit_run(&"third".into(), None, true);
    assert_eq!(third, Err(SessionRefusal::Closed));
}

#[test]
fn a_stop_during_a_shutdown_keeps_the_reason_of_the_shutdown() {
    let mut recorded = Recorded::open();
    recorded.start("first", 9).unwrap();
    recorded.session.handle_shutdown(false);
    recorded.session.handle_stop(StopMode::Now);
    recorded.perform(Duration::ZERO);
    recorded.session.handle_resting(Duration::ZERO, true);
    recorded.perform(Duration::ZERO);
    assert_eq!(recorded.cancels, [CancelReason::Shutdown; 2]);
}
