//! The invariants of every state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::world::{World, entries, record_turn, request_key};
use crate::context::{Variables, repair_pairing};
use crate::session::machine::Lifecycle;
use crate::session::{
    InputLimits, OUTPUT_INVALID, OpenRun, OpenTurn, RunSpec, RunStage, Session, SessionRefusal,
    StoredSession, pending_approvals,
};
use crate::turn::CancelReason;
use callsheet_values::config::{OnShutdown, RunOverrides};
use callsheet_values::message::Message;
use callsheet_values::record::{JournalEntry, Record, RequestKey, Seq, StopMode, TurnEnd};
use callsheet_values::types::{CallKey, RunEnd, RunError, RunId, Usage};

impl World {
    pub(super) fn check(&self) {
        self.check_runs();
        self.check_inputs();
        self.check_sums();
        self.check_context();
        self.check_owner();
        self.check_stored();
        self.check_approvals();
        self.check_stops();
        self.check_left();
        self.check_end();
    }

    /// Checks that each run starts once and ends once, or again after it was reopened, one run at a time. The queue keeps its order, and each
    /// queued run starts as it was requested. A run that was steered after its last turn is not
    /// answered, and one that a limit ends has a record of that limit.
    fn check_runs(&self) {
        let (mut open, mut interrupted, mut seen) = (None, None, BTreeSet::new());
        let (mut queued, mut closed) = (Vec::<&RunId>::new(), false);
        let (mut requests, mut committed, mut steered) = (BTreeMap::new(), 0, 0);
        let mut reached = Vec::<(&str, &str)>::new();
        for record in &self.log {
            assert!(!closed, "{record:?} follows the close");
            match record {
                Record::InputQueued { run_id, input, overrides, trace, .. } => {
                    queued.push(run_id);
                    requests.insert(run_id, (input, overrides, trace));
                }
                Record::InputRemoved { run_id, .. } => {
                    let at = queued.iter().position(|id| *id == run_id);
                    queued.remove(at.expect("the input was queued"));
                    assert!(seen.insert(run_id), "the input of run {run_id} is taken back twice");
                }
                Record::RunStarted { run_id, input, overrides, trace, .. } => {
                    let request = (input, overrides, trace);
                    assert_eq!(requests.remove(run_id).unwrap_or(request), request);
                    assert!(open.is_none(), "run {run_id} starts within {open:?}");
                    assert!(seen.insert(run_id), "run {run_id} starts twice");
                    if let Some(at) = queued.iter().position(|id| *id == run_id) {
                        assert_eq!(at, 0, "run {run_id} overtakes another one");
                        queued.remove(0);
                    } else {
                        assert!(queued.is_empty(), "run {run_id} overtakes the queue");
                    }
                    open = Some(run_id);
                    interrupted = None;
                    reached.clear();
                }
                Record::RunReopened { run_id, .. } => {
                    assert!(
                        open.is_none() && queued.is_empty(),
                        "run {run_id} is not the last one"
                    );
                    assert_eq!(interrupted.take(), Some(run_id), "the run was interrupted");
                    open = Some(run_id);
                }
                Record::LimitReached { limit, action, .. } => reached.push((limit, action)),
                Record::TurnCommitted { turn, .. } => committed = *turn,
                // The queue belongs to the session that was forked.
                Record::SessionForked { .. } => queued.clear(),
                Record::Steered { follows_turn, .. } => steered = *follows_turn,
                Record::RunEnded { run_id, end, waiting, error, .. } => {
                    assert_eq!(open.take(), Some(run_id), "another run ends");
                    interrupted = (*end == RunEnd::Interrupted).then_some(run_id);
                    let is_invalid =
                        error.as_ref().is_some_and(|error| error.code == OUTPUT_INVALID);
                    let limits: &[_] = match end {
                        RunEnd::MaxTurns => &[("max_turns", "final_answer")],
                        RunEnd::AllToolsFailed => &[("max_failed_turns", "ended")],
                        RunEnd::LoopDetected => &[("repeat_limit", "ended")],
                        RunEnd::Budget => {
                            &[("max_tokens_per_run", "ended"), ("max_tool_calls_per_run", "ended")]
                        }
                        RunEnd::TimedOut => &[("run_timeout", "ended")],
                        RunEnd::Failed if is_invalid => &[("output_retries", "ended")],
                        _ => &[],
                    };
                    let is_recorded = limits.iter().any(|limit| reached.contains(limit));
                    assert!(is_recorded || limits.is_empty(), "{end:?} after {reached:?}");
                    let is_answered = *end == RunEnd::Answered && steered == committed;
                    assert!(!is_answered || committed == 0, "an input has no answer");
                    let is_counted = *waiting == queued.len() as u64 || self.is_closing();
                    assert!(is_counted, "{waiting} inputs wait");
                }
                Record::SessionClosed => closed = true,
                _ => {}
            }
        }
        assert_eq!(open, self.session.run.as_ref().map(|run| &run.id), "the open run");
        if let Some(run) = &self.session.run {
            let overrides = (run.overrides.model.as_deref(), run.trace.is_some());
            assert_eq!(overrides, (Some(&*run.id.0), true), "the request of the open run");
            let started = self.log.iter().rposition(|r| matches!(r, Record::RunStarted { .. }));
            let has_stop = |mode| {
                self.log[started.unwrap()..]
                    .contains(&Record::StopAsked { mode, authored_by: None })
            };
            assert_eq!(run.stops_after_turn, has_stop(StopMode::AfterTurn), "a stop is kept");
            assert!(!has_stop(StopMode::Now) || run.cancel.is_some(), "a stop is kept");
        }
        let waiting: Vec<_> = self.session.queue.iter().map(|queued| &queued.run_id).collect();
        let is_closing = self.is_closing();
        assert!(queued == waiting || (is_closing && waiting.is_empty()), "the queue");
    }

    /// Checks that no accepted run is lost, that the history contains every input once, and that
    /// idempotency keys are known.
    fn check_inputs(&self) {
        for (id, seq) in &self.accepted {
            let of_run = |record: &Record| {
                matches!(record, Record::RunStarted { run_id, .. }
                    | Record::RunReopened { run_id, .. }
                    | Record::InputQueued { run_id, .. } if run_id == id)
            };
            assert!(of_run(&self.log[seq.0 as usize - 1]), "run {id} has record {seq:?}");
            let again = self.session.admit_run(&"x".into(), Some(&request_key(id)), true);
            let is_removed = self.is_removed(id);
            let expected = self.admission_again(id, *seq);
            assert!(again == expected || again == Err(SessionRefusal::Closed), "{again:?}");
            let other = RequestKey { digest: "other".into(), ..request_key(id) };
            let reused = self.session.admit_run(&"x".into(), Some(&other), true).unwrap_err();
            assert!(matches!(reused, SessionRefusal::KeyReused | SessionRefusal::Closed));
            let is_known = self.session.has_run(id) || Self::is_over(&self.log, id);
            assert!(!(is_removed && self.session.has_run(id)), "run {id} was taken back");
            assert!(is_known || is_removed || self.refused.contains(id), "run {id} is lost");
        }
        let users = self.session.history.messages();
        let users = users.iter().filter(|message| matches!(&***message, Message::User { .. }));
        let inputs = self.count(|record| {
            matches!(
                record,
                Record::RunStarted { .. } | Record::Steered { .. } | Record::Instructed { .. }
            )
        });
        let pending = self.session.history.pending_inputs();
        assert!(
            self.session.run.is_some() || pending == 0,
            "an input waits for a run that is over"
        );
        // A summary keeps only the last inputs of users.
        let users = users.count() + pending;
        assert!(users == inputs || (self.is_compacted() && users > 0), "inputs in the history");
    }

    /// Checks that the requests of steered inputs since the last fork are known, and that the totals of the session
    /// and of its runs are those of the received turns and of the summaries.
    fn check_sums(&self) {
        let (mut all, mut of_run, mut calls) = (Usage::default(), Usage::default(), 0);
        let mut is_open = false;
        for (record, seq) in self.log.iter().zip(1..) {
            match record {
                Record::Steered { request, .. } => {
                    let seen = self.session.keys.find(request.as_ref()).unwrap();
                    let is_known = seq > self.forked_at();
                    let expected = is_known.then_some(Seq(seq));
                    assert_eq!(seen.map(|seen| seen.seq), expected, "a steered input");
                }
                Record::RunStarted { .. } => {
                    (of_run, calls, is_open) = (Usage::default(), 0, true);
                }
                Record::TurnCommitted { turn, summary, .. } if self.has_received(*turn) => {
                    all += summary.usage;
                    of_run += summary.usage;
                    calls += self.results(*turn).len();
                }
                Record::Compacted { usage, .. } | Record::LimitReached { usage, .. } => {
                    all += *usage;
                    if is_open {
                        of_run += *usage;
                    }
                }
                Record::RunReopened { .. } => is_open = true,
                Record::RunEnded { stats, .. } => {
                    is_open = false;
                    let counted = (stats.input_tokens, stats.output_tokens);
                    assert_eq!(counted, (of_run.input_tokens, of_run.output_tokens));
                    assert_eq!(stats.tool_calls as usize, calls, "the calls of a run");
                    assert!(stats.turns <= self.left.max_turns, "more turns than `max_turns`");
                }
                _ => {}
            }
        }
        assert_eq!(self.session.usage, all, "the usage of the session");
    }

    /// Checks that the history has the message of each turn and every note, unless it is compacted, that calls and
    /// results are paired, and that the variables have the values of the last writes.
    fn check_context(&self) {
        let (mut responses, mut notes, mut variables) = (0, 0, Variables::default());
        let (mut cut_off, mut steered) = (None, 0);
        for record in &self.log {
            match record {
                Record::TurnCommitted { turn, end, .. } if self.has_received(*turn) => {
                    let progress = self.progress(*turn);
                    responses += usize::from(progress.has_response);
                    let is_answer = progress.has_response && self.results(*turn).is_empty();
                    let is_cut_off = is_answer && matches!(end, TurnEnd::Cancelled(_));
                    cut_off = is_cut_off.then_some(*turn);
                    for result in self.results(*turn) {
                        let Record::CallEnded { writes, .. } = result else { continue };
                        variables.apply(writes);
                    }
                }
                // An answer that was cut off, and that nothing follows, is requested again.
                Record::RunReopened { .. } => {
                    responses -= usize::from(cut_off.take().is_some_and(|turn| turn != steered));
                }
                Record::Steered { follows_turn, .. } => steered = *follows_turn,
                Record::RunStarted { .. } => cut_off = None,
                Record::LimitReached { note, .. } => notes += usize::from(note.is_some()),
                _ => {}
            }
        }
        let (mut messages, mut noted) = (0, 0);
        for message in self.session.history.messages().iter() {
            match &**message {
                Message::Assistant(_) => messages += 1,
                Message::Tool { content, .. } => noted += content.matches("[callsheet: ").count(),
                Message::User { .. } | Message::Summary { .. } => {}
            }
        }
        if !self.is_compacted() {
            let expected = (responses, notes);
            assert_eq!((messages, noted), expected, "messages and notes in the history");
        }
        let messages = self.session.history.messages();
        assert_eq!(repair_pairing(messages).1, 0, "the history is paired");
        assert_eq!(self.session.variables, variables, "the variables");
    }

    /// Returns true if the session has received this committed turn.
    fn has_received(&self, turn: u32) -> bool {
        self.turn.as_ref().is_none_or(|held| held.number != turn)
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(self.session.lifecycle, Lifecycle::Closing | Lifecycle::Closed)
    }

    fn is_compacted(&self) -> bool {
        self.count(|record| matches!(record, Record::Compacted { .. })) > 0
    }

    fn count(&self, is_counted: impl Fn(&Record) -> bool) -> usize {
        self.log.iter().filter(|record| is_counted(record)).count()
    }

    /// Checks that a run in progress has an owner of its turn, waits for its tools or for a summary, or is left to the
    /// next host, and has a slot, and that an idle session without a queue has neither owner nor slot.
    fn check_owner(&self) {
        let goes_on = self.session.run.is_some() && !self.session.suspended;
        let waits_for_tools = self.session.waits_for_tools();
        let waits_for_summary = self.session.waits_for_summary();
        let is_held = self.session.is_held();
        let is_left = is_held && self.session.run.is_some();
        let is_owned = self.turn.is_some() || waits_for_tools || waits_for_summary || is_left;
        assert!(goes_on == is_owned || (waits_for_summary && !goes_on), "the owner of the turn");
        assert!(!waits_for_summary || self.turn.is_none(), "no turn begins before its summary");
        assert_eq!(goes_on || is_held, self.has_slot, "the slot among the host's runs");
        assert_eq!(self.session.holds_slot(), self.has_slot);
        if let Some(turn) = &self.turn {
            assert_eq!(turn.number, self.session.turn);
        }
    }

    /// Checks that the state that is read from the records equals the durable state of the running session.
    fn check_stored(&self) {
        self.check_tools();
        for upto in self.batch_from.max(1)..self.log.len() {
            self.read(upto);
        }
        let StoredSession { session: stored, turn_entries, .. } = self.read(self.log.len());
        self.check_turn_entries(&turn_entries);
        let opened_at = self.forked_at().max(1);
        assert_eq!((&stored.agent, stored.opened_at), (&self.session.agent, opened_at));
        let mut live = self.session.clone();
        let mut has_received = true;
        if let Some(turn) = &self.turn
            && self.progress(turn.number).committed
        {
            assert!(live.handle_turn_committed(&self.turn_record(turn.number)));
            live.handle_commit_recorded(turn.number, self.commit_position(turn.number));
            has_received = false;
        }
        assert_eq!(stored.history, live.history);
        assert_eq!(stored.variables, live.variables);
        assert_eq!(stored.usage, live.usage);
        assert_eq!(stored.durable_context(), live.durable_context(), "the size of the context");
        assert_eq!(stored.keys, live.keys);
        assert_eq!(stored.references, live.references);
        if !self.is_closing() {
            assert_eq!(stored.queue, live.queue);
        }
        // A stop that is recorded after a commit may have arrived before the session received the commit.
        if has_received && self.is_stop_ambiguous() {
            return;
        }
        let has_records = self.progress(live.turn).records > 0;
        let begun = u32::from(self.turn.is_some() && has_received && !has_records);
        // A turn that failed without a record is counted until the host stops.
        let is_counted = !has_records && stored.turn + 1 == live.turn;
        assert!(stored.turn == live.turn - begun || is_counted, "the last turn");
        // The first reason for a cancellation is kept, and a shutdown has no record.
        let is_shutting_down = live.shutdown.is_some();
        let run = |session: Session| {
            let mut run = session.run.map(|run| durable_part(*run, has_records));
            if let Some(run) = run.as_mut().filter(|_| is_shutting_down) {
                run.cancel = None;
            }
            run
        };
        assert_eq!(run(stored), run(live), "the run");
    }

    /// Checks that the tools of servers are frozen before the first turn, unless its run is cancelled, and
    /// that the frozen list is known.
    fn check_tools(&self) {
        let mut lists = self.log.iter().rev().filter_map(|record| match record {
            Record::ToolsFrozen { sha256 } => Some(sha256),
            _ => None,
        });
        assert_eq!(self.session.frozen_tools(), lists.next(), "the frozen list");
        if let Some(turn) = &self.turn {
            let is_known = self.session.frozen_tools().is_some() || turn.cancel.is_some();
            assert!(is_known || !self.left.servers, "a turn begins without its tools");
        }
        assert!(!self.session.waits_for_tools() || self.turn.is_none(), "a turn awaits its tools");
    }

    /// Checks that a turn in progress resumes from all records since its first one.
    fn check_turn_entries(&self, stored: &[JournalEntry]) {
        let number = self.session.turn;
        let is_open = self.session.run.is_some() && !self.progress(number).committed;
        let first = self.log.iter().position(|record| record_turn(record) == Some(number));
        let first = first.filter(|_| is_open).unwrap_or(self.log.len());
        let expected = first as u64 + 1..self.log.len() as u64 + 1;
        assert!(stored.iter().map(|entry| entry.seq.0).eq(expected), "the records of the turn");
    }

    /// Checks that a session that is left in this state has no effect any more, whatever arrives, and refuses requests.
    fn check_left(&self) {
        if self.deleted {
            return;
        }
        let mut left = self.session.clone();
        left.handle_left();
        let rules = self.rules();
        let (now, limits) = (Duration::ZERO, InputLimits::inputs(self.inputs_max()));
        let rules_of = |_: &RunOverrides| Arc::clone(&rules);
        let error = RunError { code: String::new(), message: String::new(), transient: true };
        let late: [&dyn Fn(&mut Session); 9] = [
            &|session| session.handle_stop(StopMode::Now, None),
            &|session| session.handle_remove_inputs(None),
            &|session| session.handle_close(None),
            &|session| session.handle_shutdown(OnShutdown::Interrupt, true),
            &|session| session.handle_resting(now, true),
            &|session| session.handle_turn_lost(now),
            &|session| session.handle_run_failed(now, None, error.clone()),
            &|session| _ = session.handle_wake(now, false),
            &|session| _ = session.handle_tools_read("late".into()),
        ];
        for handle in late {
            handle(&mut left);
            assert_eq!(left.poll(now, &rules_of), None, "an effect of a session that was left");
        }
        let refused = Err(SessionRefusal::Left);
        assert_eq!(left.handle_steer("late".into(), None, None, limits).map(drop), refused);
        assert_eq!(left.admit_run(&"late".into(), None, true).map(drop), refused);
    }

    fn is_stop_ambiguous(&self) -> bool {
        let last = self.log.iter().rposition(|r| matches!(r, Record::TurnCommitted { .. }));
        let Some(last) = last else { return false };
        let behind = &self.log[last + 1..];
        let decided = |record: &Record| {
            matches!(record, Record::LimitReached { .. }) || record_turn(record).is_some()
        };
        let stop = Record::StopAsked { mode: StopMode::AfterTurn, authored_by: None };
        let stopped = behind.iter().position(|record| *record == stop);
        stopped.is_some_and(|at| !behind[..at].iter().any(decided))
            && self.session.run.is_some()
            && !behind.iter().any(|record| matches!(record, Record::RunStarted { .. }))
    }

    /// Checks that the records have as many pending approvals as the turn waits for.
    fn check_approvals(&self) {
        let Some(turn) = &self.turn else { return };
        let progress = self.progress(turn.number);
        let key = CallKey { turn: turn.number, attempt: 1, index: 0 };
        let earlier = CallKey { turn: turn.number - 1, ..key };
        assert!(self.session.expects_decision(key), "a decision about the current turn");
        assert!(!self.session.expects_decision(earlier), "a decision about an earlier turn");
        let of_turn: Vec<_> = entries(&self.log)
            .into_iter()
            .filter(|entry| record_turn(&entry.record) == Some(turn.number))
            .collect();
        assert_eq!(
            pending_approvals(&of_turn).len(),
            usize::from(progress.awaits_approval),
            "open approvals"
        );
        let run = self.session.run.as_ref().unwrap();
        let rests = run.turn().is_some_and(OpenTurn::is_resting);
        assert_eq!(rests, progress.awaits_approval, "it waits only for approvals");
        if rests && run.cancel.is_some() {
            assert!(turn.cancel.is_some(), "a run that ends waits for no approval");
        }
    }

    /// Checks that the current turn of a run that is stopped, or whose session closes, is cancelled. During a
    /// shutdown the callers of queued runs know that they are refused.
    fn check_stops(&self) {
        if self.session.shutdown.is_some() {
            let is_refused = |run: &RunSpec| self.refused.contains(&run.run_id);
            assert!(self.session.queue().all(is_refused), "a queued run is not refused");
        }
        let Some(run) = self.session.run.as_ref() else { return };
        assert!(!self.is_closing() || run.cancel.is_some(), "a session that closes stops its run");
        let is_stopped = run.cancel == Some(CancelReason::Stop) || self.is_closing();
        if let Some(turn) = self.turn.as_ref().filter(|_| is_stopped) {
            assert!(turn.cancel.is_some(), "a stopped turn is cancelled");
        }
    }

    /// Checks that no run is open or queued when no action but a repeated request is left. A session that was
    /// suspended when its host began to shut down is left out.
    fn check_end(&self) {
        let is_over =
            |action: &super::actions::Action| matches!(action, super::actions::Action::Repeat);
        if !self.actions().iter().all(is_over) {
            return;
        }
        if self.session.suspended && self.session.shutdown.is_some() {
            return;
        }
        assert!(self.session.run.is_none() && self.turn.is_none(), "a run never ends");
        assert!(self.session.queue.is_empty(), "a queued run never starts");
        assert!(!self.is_closing() || self.deleted, "it is never deleted");
    }
}

/// Returns the part of a run that is durable.
fn durable_part(mut run: OpenRun, has_records: bool) -> OpenRun {
    run.cancel = run.cancel.filter(|reason| *reason == CancelReason::Stop);
    run.stage = match run.stage {
        RunStage::Turn(turn) if has_records => {
            RunStage::Turn(OpenTurn::new(turn.request_kind, None))
        }
        RunStage::Turn(turn) => RunStage::Ready(turn.request_kind),
        other => other,
    };
    run
}
