//! Requests that no state of the explorer has: a full queue, the time of a run, and two requests for a smaller context.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::session::{
    InputLimits, RecordedAt, RunSpec, Session, SessionEffect, SessionRefusal, StoredSession,
    SummaryReply, TurnBegin, replay,
};
use crate::turn::fixtures::{model, rules};
use crate::turn::{CancelReason, CommittedTurn, ModelPlan, ModelPlans, RunRules};
use callsheet_values::config::{ClientTool, ContextPolicy, Limits, OnShutdown, RunOverrides};
use callsheet_values::event::{TurnSummary, TurnTimes};
use callsheet_values::record::{JournalEntry, Record, ResponseMessage, Seq, StopMode, TurnEnd};
use callsheet_values::types::{Execution, RequestKind, RunId, SummaryFailure, ToolChoice, Usage};
use callsheet_wire::PromptChange;

/// A session whose runs may take ten seconds, with its journal.
struct Recorded {
    session: Session,
    rules: Arc<RunRules>,
    log: Vec<JournalEntry>,
    began: Option<TurnBegin>,
    cancels: Vec<CancelReason>,
    /// The number of requests for a summary.
    summaries: usize,
    /// The overrides whose rules the session has asked for.
    asked: RefCell<Vec<RunOverrides>>,
}

fn limits() -> Limits {
    Limits { run_timeout: Some(Duration::from_secs(10)), ..Limits::default() }
}

fn run_rules() -> RunRules {
    RunRules { limits: limits(), ..rules(Execution::Sequential) }
}

impl Recorded {
    fn open() -> Self {
        Self::with(run_rules(), None)
    }

    fn with(rules: RunRules, client_tools: Option<Arc<[ClientTool]>>) -> Self {
        let metadata = callsheet_values::types::Metadata::default();
        let mut recorded = Self {
            session: Session::open("a", Vec::new(), metadata, None, client_tools),
            rules: Arc::new(rules),
            log: Vec::new(),
            began: None,
            cancels: Vec::new(),
            summaries: 0,
            asked: RefCell::default(),
        };
        recorded.perform(Duration::ZERO);
        recorded
    }

    /// Opens a session whose only run has ended with an answer.
    fn answered(client_tools: Option<Arc<[ClientTool]>>) -> Self {
        let context = ContextPolicy { keep_turns: 0, ..ContextPolicy::default() };
        let mut recorded = Self::with(RunRules { context, ..run_rules() }, client_tools);
        recorded.start("go", 2).unwrap();
        let answer = ResponseMessage { text: "Noon.".into(), ..ResponseMessage::default() };
        recorded.commit(Some(Arc::new(answer)), Duration::ZERO);
        recorded.perform(Duration::ZERO);
        assert!(recorded.session.run().is_none());
        recorded
    }

    /// Requests a smaller context.
    fn compact(&mut self) {
        let rules_of = |overrides: &RunOverrides| {
            self.asked.borrow_mut().push(overrides.clone());
            Arc::clone(&self.rules)
        };
        self.session.handle_compact_request(&rules_of).unwrap();
        self.perform(Duration::ZERO);
    }

    fn start(&mut self, id: &str, inputs_max: usize) -> Result<(), SessionRefusal> {
        let run = RunSpec {
            run_id: RunId(id.into()),
            input: id.into(),
            overrides: Arc::default(),
            trace: None,
            metadata: callsheet_values::types::Metadata::default(),
            into: None,
            author: None,
        };
        let rules_of = |_: &RunOverrides| Arc::clone(&self.rules);
        self.session.handle_run_request(run, None, InputLimits::inputs(inputs_max), &rules_of)?;
        self.perform(Duration::ZERO);
        Ok(())
    }

    fn append(&mut self, now: Duration, record: &Record) {
        let seq = Seq(self.log.len() as u64 + 1);
        let entry = JournalEntry { seq, time: 0, displayed_bytes: 0, record: record.clone() };
        self.log.push(entry);
        let at = RecordedAt { seq, time: 0, now };
        self.session.apply(at, record, &|_| (&*self.rules).into()).unwrap();
    }

    fn perform(&mut self, now: Duration) {
        loop {
            let rules_of = |overrides: &RunOverrides| {
                self.asked.borrow_mut().push(overrides.clone());
                Arc::clone(&self.rules)
            };
            let Some(effect) = self.session.poll(now, &rules_of) else { return };
            match effect {
                SessionEffect::Record(batch) => {
                    batch.iter().for_each(|made| self.append(now, made));
                }
                SessionEffect::BeginTurn(begin) => self.began = Some(*begin),
                SessionEffect::CancelTurn(reason) => self.cancels.push(reason),
                SessionEffect::RequestSummary(_) => self.summaries += 1,
                SessionEffect::RunEnded(_)
                | SessionEffect::ReadTools
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
        self.session.handle_steer("more".into(), None, None, InputLimits::inputs(9)).unwrap();
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
        let record = CommittedTurn::from_records([&attempt, &commit]).unwrap();
        let record = CommittedTurn { message, ..record };
        assert!(self.session.handle_turn_committed(&record));
    }
}

#[test]
fn queued_and_steered_inputs_share_a_maximum() {
    let mut recorded = Recorded::open();
    recorded.start("first", 2).unwrap();
    recorded.start("second", 2).unwrap();
    recorded.session.handle_steer("third".into(), None, None, InputLimits::inputs(2)).unwrap();
    recorded.perform(Duration::ZERO);
    let full = SessionRefusal::QueueFull(2);
    assert_eq!(recorded.start("fourth", 2), Err(full));
    assert_eq!(
        recorded.session.handle_steer("fifth".into(), None, None, InputLimits::inputs(2)),
        Err(full)
    );
}

#[test]
fn inputs_that_wait_for_the_next_turn_count_while_it_waits_for_tools() {
    let mut recorded = Recorded::with(RunRules { has_servers: true, ..run_rules() }, None);
    recorded.start("first", 2).unwrap();
    assert!(recorded.session.waits_for_tools());
    let steer = |recorded: &mut Recorded| {
        let steered =
            recorded.session.handle_steer("more".into(), None, None, InputLimits::inputs(2));
        recorded.perform(Duration::ZERO);
        steered
    };
    // The input of the run itself does not wait.
    assert_eq!((steer(&mut recorded), steer(&mut recorded)), (Ok(None), Ok(None)));
    let full = SessionRefusal::QueueFull(2);
    assert_eq!(steer(&mut recorded), Err(full));
    assert_eq!(recorded.start("second", 2), Err(full));
    // The next request has them.
    assert!(recorded.session.handle_tools_read("list".into()));
    recorded.perform(Duration::ZERO);
    assert!(recorded.began.is_some());
    assert_eq!(steer(&mut recorded), Ok(None));
}

#[test]
fn a_message_of_the_host_does_not_count_among_the_inputs_that_wait() {
    let models = ModelPlan { context_window: Some(8_000), ..model("m", 3) };
    let rules = RunRules {
        context: ContextPolicy { keep_turns: 0, ..ContextPolicy::default() },
        models: Arc::new(ModelPlans::new(models, Vec::new())),
        tool_choice: ToolChoice::Required,
        ..run_rules()
    };
    let mut recorded = Recorded::with(rules, None);
    recorded.start("go", 1).unwrap();
    // The model must call a tool, and does not. Before it is asked again, a summary is needed.
    let answer = ResponseMessage { text: "word ".repeat(6_900), ..ResponseMessage::default() };
    recorded.commit(Some(Arc::new(answer)), Duration::ZERO);
    recorded.perform(Duration::ZERO);
    let last = recorded.log.last().map(|entry| &entry.record);
    assert!(matches!(last, Some(Record::Instructed { .. })), "{last:?}");
    assert_eq!(recorded.summaries, 1);
    let mut steer = || {
        let steered =
            recorded.session.handle_steer("more".into(), None, None, InputLimits::inputs(1));
        recorded.perform(Duration::ZERO);
        steered
    };
    assert_eq!((steer(), steer()), (Ok(None), Err(SessionRefusal::QueueFull(1))));
}

#[test]
fn an_input_that_waits_for_initial_calls_does_not_count_among_the_inputs_that_wait() {
    let function = json!({"name": "pure", "arguments": "{}"});
    let calls = json!([{"id": "call_a", "type": "function", "function": function}]);
    let asked = json!({"role": "assistant", "content": "So.", "tool_calls": calls});
    let mut recorded = Recorded::open();
    recorded.log.clear();
    let metadata = callsheet_values::types::Metadata::default();
    recorded.session = Session::open("a", vec![asked], metadata, None, None);
    recorded.perform(Duration::ZERO);
    recorded.start("go", 1).unwrap();
    assert_eq!(recorded.session.history().pending_inputs(), 1);
    let mut steer = || {
        let steered =
            recorded.session.handle_steer("more".into(), None, None, InputLimits::inputs(1));
        recorded.perform(Duration::ZERO);
        steered
    };
    assert_eq!((steer(), steer()), (Ok(None), Err(SessionRefusal::QueueFull(1))));
}

#[test]
fn a_turn_that_lost_its_owner_asks_again_for_a_smaller_context() {
    let mut recorded = Recorded::answered(None);
    // A request for a summary has room for some of these runs.
    for id in ["a", "b", "c", "d", "e", "f"] {
        recorded.start(id, 2).unwrap();
        let text = "word ".repeat(500);
        let answer = ResponseMessage { text, ..ResponseMessage::default() };
        recorded.commit(Some(Arc::new(answer)), Duration::ZERO);
        recorded.perform(Duration::ZERO);
    }
    recorded.start("more", 2).unwrap();
    let rules = Arc::clone(&recorded.rules);
    for summaries in [1, 2] {
        recorded.session.handle_overflow(None, None, &|_| Arc::clone(&rules));
        recorded.perform(Duration::ZERO);
        assert_eq!((recorded.summaries, recorded.session.waits_for_summary()), (summaries, true));
        recorded.session.handle_turn_lost(Duration::ZERO);
        recorded.perform(Duration::ZERO);
        assert!(!recorded.session.waits_for_summary());
    }
}

#[test]
fn a_queued_input_in_an_idle_session_is_a_difference_of_the_replay() {
    let mut recorded = Recorded::open();
    let queued = Record::InputQueued {
        run_id: RunId("first".into()),
        input: "go".into(),
        overrides: Arc::default(),
        request: None,
        trace: None,
        metadata: callsheet_values::types::Metadata::default(),
        into: None,
        authored_by: None,
    };
    recorded.append(Duration::ZERO, &queued);
    let difference = replay(&recorded.log, |_, _, _| Ok(Arc::clone(&recorded.rules))).unwrap_err();
    assert_eq!(difference.seq, Some(Seq(2)), "{difference}");
}

#[test]
fn a_run_that_waits_for_tools_ends_when_its_time_is_over() {
    let seconds = Duration::from_secs;
    let mut recorded = Recorded::with(RunRules { has_servers: true, ..run_rules() }, None);
    recorded.start("go", 2).unwrap();
    assert_eq!(recorded.session.deadline_before_turn(), Some(seconds(10)));
    recorded.perform(seconds(10) - Duration::from_millis(1));
    assert!(recorded.began.is_none() && recorded.session.waits_for_tools());
    recorded.perform(seconds(10));
    let begin = recorded.began.take().unwrap();
    assert_eq!(begin.cancel, Some(CancelReason::RunTimeout), "the turn makes no request");
    assert!(!recorded.session.waits_for_tools());
    assert_eq!(recorded.session.deadline_before_turn(), None);
    let is_limit = |entry: &&JournalEntry| {
        matches!(&entry.record, Record::LimitReached { limit, value: 10_000, maximum: 10_000, action, .. }
            if limit == "run_timeout" && action == "ended")
    };
    assert_eq!(recorded.log.iter().filter(is_limit).count(), 1);
    // The run ends too if the host stops before the turn has a record.
    let stored = StoredSession::read(&recorded.log, &|_| limits().into()).unwrap();
    recorded.session = stored.session;
    recorded.session.handle_wake(seconds(20), false);
    recorded.perform(seconds(20));
    assert_eq!(recorded.began.unwrap().cancel, Some(CancelReason::RunTimeout));
    assert_eq!(recorded.log.iter().filter(is_limit).count(), 1);
}

#[test]
fn two_requests_for_a_smaller_context_ask_for_one_summary() {
    let mut recorded = Recorded::answered(None);
    recorded.compact();
    recorded.compact();
    assert_eq!(recorded.summaries, 1);
    let rules = Arc::clone(&recorded.rules);
    let usage = Usage { input_tokens: 7, ..Usage::default() };
    recorded
        .session
        .handle_summary(SummaryReply::Failed { usage, reason: SummaryFailure::Failed }, &|_| {
            Arc::clone(&rules)
        });
    recorded.perform(Duration::ZERO);
    assert_eq!(recorded.summaries, 1, "nothing else asks for one");
    // The tokens of the failed summary are those of the session, also of the stored one.
    let stored = StoredSession::read(&recorded.log, &|_| limits().into()).unwrap();
    assert_eq!((recorded.session.usage(), stored.session.usage()), (usage, usage));
    recorded.compact();
    assert_eq!(recorded.summaries, 2);
}

#[test]
fn the_context_of_an_idle_session_has_the_tools_that_its_client_runs() {
    let schema = serde_json::json!({"type": "object", "properties": {}});
    let tools = [ClientTool::new("open_file", "Opens a file.", schema)];
    let mut recorded = Recorded::answered(Some(tools.into()));
    recorded.compact();
    assert_eq!(recorded.summaries, 1);
    let asked = recorded.asked.borrow();
    assert!(asked.len() > 2, "{asked:?}");
    assert!(asked.iter().all(|overrides| overrides.client_tools.is_some()), "{asked:?}");
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
    recorded.session.handle_steer("more".into(), None, None, InputLimits::inputs(9)).unwrap();
    recorded.perform(Duration::ZERO);
    let request = |recorded: &Recorded| recorded.began.as_ref().unwrap().spec.request_kind;
    assert_eq!(request(&recorded), RequestKind::Ordinary);
    assert_eq!(recorded.session.run().unwrap().machine.turns(), 2);
    let stored = StoredSession::read(&recorded.log, &|_| limits().into()).unwrap();
    assert_eq!(stored.session.run().unwrap().machine.turns(), 2);
    // Without an input, it stays one, and does not count.
    recorded.commit(None, Duration::ZERO);
    recorded.perform(Duration::ZERO);
    assert_eq!(request(&recorded), RequestKind::FinalText);
    assert_eq!(recorded.session.run().unwrap().machine.turns(), 2);
}

#[test]
fn the_time_of_a_run_stands_still_while_people_are_waited_for_and_while_no_host_runs_it() {
    let seconds = Duration::from_secs;
    let mut recorded = Recorded::open();
    recorded.start("go", 2).unwrap();
    let spec = |recorded: &Recorded| {
        let spec = &recorded.began.as_ref().unwrap().spec;
        (spec.run_elapsed, spec.run_time_left.unwrap())
    };
    assert_eq!(spec(&recorded), (Duration::ZERO, seconds(10)));
    recorded.commit_steered(seconds(3));
    assert_eq!(spec(&recorded), (seconds(3), seconds(9)), "two of the seconds were of people");
    let deadline = |recorded: &Recorded| recorded.session.run().unwrap().deadline();
    assert_eq!(deadline(&recorded), Some(seconds(12)));
    // The turn is lost after four seconds, of which it waited for people during one.
    recorded.session.handle_resting(seconds(4), true);
    recorded.session.handle_resting(seconds(5), false);
    recorded.session.handle_turn_lost(seconds(7));
    recorded.perform(seconds(7));
    assert_eq!(spec(&recorded), (seconds(7), seconds(6)));
    assert_eq!(deadline(&recorded), Some(seconds(13)));
    // Another host knows the times of committed turns only.
    let stored = StoredSession::read(&recorded.log, &|_| limits().into()).unwrap();
    recorded.session = stored.session;
    recorded.session.handle_wake(seconds(100), false);
    recorded.perform(seconds(101));
    assert_eq!(spec(&recorded), (seconds(4), seconds(8)));
    assert_eq!(deadline(&recorded), Some(seconds(109)));
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
    recorded.session.handle_close(None);
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
    recorded.session.handle_shutdown(OnShutdown::Interrupt, false);
    recorded.session.handle_stop(StopMode::Now, None);
    recorded.perform(Duration::ZERO);
    recorded.session.handle_resting(Duration::ZERO, true);
    recorded.perform(Duration::ZERO);
    assert_eq!(recorded.cancels, [CancelReason::Shutdown; 2]);
}

#[test]
fn a_session_that_is_read_during_a_shutdown_refuses_inputs_because_of_the_shutdown() {
    let mut recorded = Recorded::open();
    recorded.start("first", 9).unwrap();
    recorded.session.suspended = true;
    let inputs = InputLimits::inputs(9);
    let refused = |session: &mut Session| {
        let run = session.admit_run(&"second".into(), None, true).unwrap_err();
        (run, session.handle_steer("more".into(), None, None, inputs).unwrap_err())
    };
    let suspended = (SessionRefusal::Suspended, SessionRefusal::Suspended);
    assert_eq!(refused(&mut recorded.session), suspended);
    recorded.session.note_shutdown(OnShutdown::Suspend);
    let shutting_down = (SessionRefusal::ShuttingDown, SessionRefusal::ShuttingDown);
    assert_eq!(refused(&mut recorded.session), shutting_down);
}
