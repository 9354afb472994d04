//! The actions of the explorer: inputs of a session, records of its turns, and deaths of actors and of the host.

use std::sync::Arc;
use std::time::Duration;

use super::world::{HeldTurn, World, request_key};
use crate::session::machine::Lifecycle;
use crate::session::{InputLimits, RunAdmission, RunSpec, SessionRefusal, SummaryReply};
use crate::turn::CancelReason;
use callsheet_values::config::{OnShutdown, RunOverrides};
use callsheet_values::event::{ApprovalRequest, CallLabel, TurnSummary, TurnTimes};
use callsheet_values::record::{
    Record, RequestKey, ResponseEnding, ResponseMessage, Seq, StopMode, TurnEnd,
};
use callsheet_values::types::{
    ApprovalVerdict, CallKey, Content, ResultNotes, RunId, SessionId, SummaryFailure, ToolCall,
    ToolOutcome, ToolResult, TraceContext, Usage, WaitPhase, WriteSet,
};

/// An action. The explorer tries all that are possible in a state.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Start,
    /// All accepted requests for runs arrive again.
    Repeat,
    Steer,
    Stop(StopMode),
    /// The newest queued input is taken back.
    RemoveInput,
    /// The turn requests its response.
    Request,
    /// The model answers with a text, and the turn is committed.
    Answer,
    /// The model calls a tool that people have to approve.
    Call,
    Approve,
    /// The turn is committed, after the outcome of its call if that is open.
    Commit,
    /// The session receives the committed turn.
    Receive,
    /// The owner of the turn dies.
    Lose,
    /// The actors have died too often.
    Fail,
    /// The host dies, or loses the session to another one, and this many records are stored.
    Crash(usize),
    /// The session continues as a fork of itself.
    Fork,
    Hibernate,
    Wake,
    Resume,
    /// The host shuts down. True if its grace period is over.
    Shutdown(OnShutdown, bool),
    /// The next host goes on with the session.
    Restart,
    /// The request of the last run, which was interrupted, arrives again.
    Reopen,
    Close,
    /// The list of the servers' tools arrives.
    ReadTools,
    /// The list is read again on request.
    RefreshTools,
    /// The answer to the request for a summary arrives. False if it has failed.
    Summarise(bool),
    /// A client asks for a smaller context.
    Compact,
    /// `run_timeout` expires while the run waits before its next turn.
    TimeOut,
}

impl World {
    pub(super) fn actions(&self) -> Vec<Action> {
        if self.deleted {
            return Vec::new();
        }
        let (left, session) = (&self.left, &self.session);
        let mut actions = Vec::new();
        let shutdowns = [
            Action::Shutdown(OnShutdown::Interrupt, false),
            Action::Shutdown(OnShutdown::Interrupt, true),
            // A hand-over is the same for the machine.
            Action::Shutdown(OnShutdown::Suspend, false),
        ];
        // A host has one mode, and its grace period ends once.
        let may_follow = |action: &Action| match (session.shutdown, action) {
            (Some(before), Action::Shutdown(on_shutdown, _)) => before == *on_shutdown,
            _ => true,
        };
        if left.shutdowns > 0 {
            actions.extend(shutdowns.into_iter().filter(may_follow));
        }
        let is_idle = session.run.is_none() && session.queue.is_empty();
        match session.shutdown {
            Some(OnShutdown::Suspend | OnShutdown::HandOver) => actions.push(Action::Restart),
            Some(OnShutdown::Interrupt) if is_idle && left.reopens > 0 => {
                actions.push(Action::Restart);
            }
            Some(OnShutdown::Interrupt) | None => {}
        }
        if left.reopens > 0 && self.reopenable().is_some() {
            actions.push(Action::Reopen);
        }
        let mut may = |count: u32, some: &[Action]| {
            if count > 0 {
                actions.extend(some);
            }
        };
        let suspended = session.suspended;
        may(left.starts, &[Action::Start]);
        may(u32::from(!self.accepted.is_empty()), &[Action::Repeat]);
        may(left.steers, &[Action::Steer]);
        let stops = [Action::Stop(StopMode::Now), Action::Stop(StopMode::AfterTurn)];
        may(left.stops, &stops);
        let removals = if session.queue.is_empty() { 0 } else { left.removals };
        may(removals, &[Action::RemoveInput]);
        may(left.closes, &[Action::Close]);
        may(left.forks, &[Action::Fork]);
        may(left.refreshes, &[Action::RefreshTools]);
        may(u32::from(self.reads_tools), &[Action::ReadTools]);
        let awaits = u32::from(session.waits_for_summary());
        may(awaits, &[Action::Summarise(true), Action::Summarise(false)]);
        may(left.compactions, &[Action::Compact]);
        let has_deadline = session.deadline_before_turn().is_some();
        may(if has_deadline { left.timeouts_before_turn } else { 0 }, &[Action::TimeOut]);
        if left.crashes > 0 {
            let prefixes = (self.batch_from + 1).min(self.log.len())..=self.log.len();
            actions.extend(prefixes.map(Action::Crash));
        }
        if left.hibernations > 0 && session.may_hibernate() {
            actions.push(Action::Hibernate);
        }
        // A host that shuts down wakes no run.
        if suspended && session.shutdown.is_none() {
            let waits = self.interrupted && left.manual && session.is_suspended();
            let stops = session
                .run
                .as_ref()
                .is_some_and(|run| run.cancel.is_some() || run.stops_after_turn);
            actions.push(if waits && !stops { Action::Resume } else { Action::Wake });
        }
        if let Some(turn) = &self.turn {
            let progress = self.progress(turn.number);
            let stopping = turn.cancel.is_some();
            if progress.committed {
                actions.push(Action::Receive);
            } else if progress.awaits_approval {
                actions.push(if stopping { Action::Commit } else { Action::Approve });
            } else if progress.open_call.is_some() || (progress.has_response || stopping) {
                actions.push(Action::Commit);
            } else if progress.records == 0 {
                actions.push(Action::Request);
            } else {
                actions.push(Action::Answer);
                actions.extend((!turn.drops_calls).then_some(Action::Call));
            }
            let mut may_end = |count: u32, action| actions.extend((count > 0).then_some(action));
            may_end(left.losses, Action::Lose);
            may_end(left.failures, Action::Fail);
        }
        actions
    }

    pub(super) fn act(&mut self, action: Action) {
        let now = Duration::ZERO;
        let before = self.log.len();
        match action {
            Action::Start => self.start(),
            Action::Repeat => {
                let log = self.log.len();
                let resumed = self.session.clone().handle_resume(now);
                assert_eq!(resumed.is_ok(), self.session.is_suspended());
                for (id, seq) in self.accepted.clone() {
                    let again = self.session.admit_run(&"x".into(), Some(&request_key(&id)), true);
                    let expected = self.admission_again(&id, seq);
                    assert!(again == expected || again == Err(SessionRefusal::Closed));
                }
                assert_eq!(self.log.len(), log);
            }
            Action::Steer => {
                self.left.steers -= 1;
                let input: Content = format!("steer {}", self.left.steers).as_str().into();
                let key = format!("key of steer {}", self.left.steers);
                let request = Some(RequestKey { key, digest: "d".into() });
                let waiting = self.waiting_inputs();
                let steered = self.session.handle_steer(
                    input,
                    request,
                    None,
                    InputLimits::inputs(self.inputs_max()),
                );
                let may_steer = self.session.run.is_some()
                    && !self.session.suspended
                    && self.session.lifecycle == Lifecycle::Open
                    && waiting < self.inputs_max();
                assert_eq!(steered.is_ok(), may_steer, "{steered:?}");
            }
            Action::Stop(mode) => {
                self.left.stops -= 1;
                self.session.handle_stop(mode, None);
                self.perform();
                self.resume_if_suspended();
            }
            Action::RemoveInput => {
                self.left.removals -= 1;
                let queued = self.session.queue.back().unwrap().run_id.clone();
                let removed = self.session.handle_remove_input(&queued, None);
                let is_open = self.session.lifecycle == Lifecycle::Open;
                assert_eq!(removed.is_ok(), is_open, "{removed:?}");
            }
            Action::Request => {
                let turn = self.turn.as_ref().unwrap().number;
                self.append_turn(vec![Record::AttemptStarted {
                    turn,
                    attempt: 1,
                    model: "m".into(),
                    streamed: true,
                    reason: None,
                    wait_ms: 0,
                    prompt: None,
                }]);
            }
            Action::Answer => {
                let turn = self.turn.as_ref().unwrap().number;
                let committed = committed(turn, TurnEnd::Finished);
                self.append_turn(vec![response(turn, "so", Vec::new()), committed]);
            }
            Action::Call => {
                let turn = self.turn.as_ref().unwrap().number;
                let request = Record::ApprovalAsked {
                    request: Box::new(ApprovalRequest {
                        call: label(&call(turn)),
                        phase: WaitPhase::Before,
                        arguments: call(turn).arguments,
                        arguments_sha256: "0".into(),
                        output_summary: None,
                        question: None,
                    }),
                };
                self.append_turn(vec![response(turn, "", vec![call(turn)]), request]);
                self.session.handle_resting(now, true);
            }
            Action::Approve => {
                let key = call(self.turn.as_ref().unwrap().number).key;
                let (phase, verdict) = (WaitPhase::Before, ApprovalVerdict::Approved);
                let given = Record::ApprovalGiven {
                    key,
                    phase,
                    verdict,
                    message: None,
                    content: None,
                    authored_by: None,
                };
                self.append_turn(vec![given]);
                self.session.handle_resting(now, false);
            }
            Action::Commit => self.commit_turn(),
            Action::Receive => {
                let number = self.turn.take().unwrap().number;
                let record = self.turn_record(number);
                assert!(self.session.handle_turn_committed(&record));
                self.note_commit(number);
                assert!(!self.session.handle_turn_committed(&record), "a turn is committed once");
            }
            Action::Lose => {
                self.left.losses -= 1;
                let number = self.turn.take().unwrap().number;
                match self.progress(number).committed {
                    true => {
                        assert!(self.session.handle_turn_committed(&self.turn_record(number)));
                        self.note_commit(number);
                    }
                    false => self.session.handle_turn_lost(now),
                }
            }
            Action::Fail => {
                self.left.failures -= 1;
                let number = self.turn.take().unwrap().number;
                let committed = self.progress(number).committed;
                let record = committed.then(|| self.turn_record(number));
                let (code, message) = ("internal_error".to_owned(), "no".to_owned());
                let error = callsheet_values::types::RunError { code, message, transient: true };
                self.session.handle_run_failed(now, record.as_ref(), error);
                if committed {
                    self.note_commit(number);
                }
            }
            Action::Crash(upto) => {
                self.left.crashes -= 1;
                self.log.truncate(upto);
                self.restart(true);
            }
            Action::Fork => {
                self.left.forks -= 1;
                let (from, at) = (SessionId::parse("s").unwrap(), Seq(self.log.len() as u64));
                self.log.push(Record::SessionForked { from, at });
                self.accepted.clear();
                self.restart(true);
            }
            Action::Hibernate => {
                self.left.hibernations -= 1;
                self.restart(false);
            }
            Action::Wake => {
                let manual = self.left.manual && self.interrupted;
                assert!(self.session.handle_wake(now, manual));
                self.has_slot = true;
            }
            Action::Resume => {
                assert!(!self.session.clone().handle_wake(now, true));
                self.session.handle_resume(now).unwrap();
                self.has_slot = true;
            }
            Action::Shutdown(on_shutdown, at_once) => {
                self.left.shutdowns -= 1;
                self.session.handle_shutdown(on_shutdown, at_once);
            }
            Action::Restart => {
                let is_held = self.session.is_held();
                self.restart(true);
                assert!(
                    !is_held || self.session.suspended,
                    "the next host has nothing to go on with"
                );
            }
            Action::Reopen => {
                self.left.reopens -= 1;
                let run = self.reopenable().unwrap();
                self.session.handle_reopen(run.clone(), None);
                self.has_slot = true;
                self.reported.retain(|reported| *reported != run);
                let seq = Seq(self.log.len() as u64 + 1);
                self.accepted.iter_mut().filter(|(id, _)| *id == run).for_each(|it| it.1 = seq);
            }
            Action::ReadTools => {
                self.reads_tools = false;
                let awaited = self.session.waits_for_tools();
                assert_eq!(self.session.handle_tools_read("first".into()), awaited);
            }
            Action::RefreshTools => {
                self.left.refreshes -= 1;
                let is_idle = self.session.run.is_none() && self.session.queue.is_empty();
                let is_open = self.session.lifecycle == Lifecycle::Open;
                let refreshed = self.session.handle_tools_refreshed("second".into());
                assert_eq!(refreshed.is_ok(), is_idle && is_open, "{refreshed:?}");
            }
            Action::Summarise(is_made) => {
                let (text, usage) = ("s".to_owned(), usage());
                let made = SummaryReply::Text { text, usage };
                let reply = if is_made {
                    made
                } else {
                    SummaryReply::Failed { usage, reason: SummaryFailure::Failed }
                };
                let rules = self.rules();
                self.session.handle_summary(reply, &|_| Arc::clone(&rules));
            }
            Action::Compact => {
                self.left.compactions -= 1;
                let is_idle = self.session.run.is_none() && self.session.queue.is_empty();
                let rules = self.rules();
                let compacted = self.session.handle_compact_request(&|_| Arc::clone(&rules));
                assert!(compacted.is_err() || is_idle, "{compacted:?}");
            }
            Action::TimeOut => {
                self.left.timeouts_before_turn -= 1;
                let deadline = self.session.deadline_before_turn().unwrap();
                self.perform_at(deadline);
                let cancel = self.turn.as_ref().and_then(|turn| turn.cancel);
                assert_eq!(cancel, Some(CancelReason::RunTimeout), "the run ends");
            }
            Action::Close => {
                self.left.closes -= 1;
                self.session.handle_close(None);
                self.perform();
                self.resume_if_suspended();
            }
        }
        self.perform();
        if self.log.len() > before {
            self.batch_from = before;
        }
    }

    fn resume_if_suspended(&mut self) {
        if self.session.is_suspended() && self.session.shutdown.is_none() {
            self.session.handle_resume(Duration::ZERO).unwrap();
            self.has_slot = true;
        }
    }

    fn start(&mut self) {
        self.left.starts -= 1;
        let run_id = RunId(format!("run_{}", self.left.starts).into());
        let (input, key): (Content, _) = (run_id.0.as_ref().into(), request_key(&run_id));
        let admission = self.session.admit_run(&input, Some(&key), true);
        let is_open = self.session.lifecycle == Lifecycle::Open && !self.session.is_suspended();
        assert_eq!(admission.is_ok(), is_open, "{admission:?}");
        let Ok(admission) = admission else { return };
        assert!(matches!(admission, RunAdmission::Start | RunAdmission::Queue));
        let is_busy = self.session.run.is_some() || !self.session.queue.is_empty();
        assert_eq!(admission == RunAdmission::Queue, is_busy);
        let model = Some(run_id.0.to_string());
        let overrides = Arc::new(RunOverrides { model, ..RunOverrides::default() });
        let (request, trace) = (Some(key), Some(TraceContext::new([7; 16], [8; 8], true)));
        let (metadata, into) = (callsheet_values::types::Metadata::default(), None);
        let run = RunSpec {
            run_id: run_id.clone(),
            input,
            overrides,
            trace,
            metadata,
            into,
            author: None,
        };
        let rules = self.rules();
        let rules_of = |_: &RunOverrides| std::sync::Arc::clone(&rules);
        let has_room = !is_busy || self.waiting_inputs() < self.inputs_max();
        let limits = InputLimits::inputs(self.inputs_max());
        let handled = self.session.handle_run_request(run, request, limits, &rules_of);
        assert_eq!(handled.is_ok(), has_room && self.session.shutdown.is_none(), "{handled:?}");
        if handled.is_ok() {
            self.has_slot |= admission == RunAdmission::Start;
            self.accepted.push((run_id, Seq(self.log.len() as u64 + 1)));
        }
    }

    /// Reads the session from its journal, after a crash of the host, a fork or hibernation. A fork counts as a
    /// crash.
    fn restart(&mut self, crashed: bool) {
        let was_suspended = self.session.suspended;
        let stored = self.read(self.log.len());
        self.session = stored.session;
        (self.turn, self.has_slot, self.reads_tools) = (None, false, false);
        // A run that was interrupted before the session hibernated still is.
        self.interrupted = crashed || (self.interrupted && was_suspended);
        self.is_crashed |= crashed;
        let seq = self.log.len() as u64;
        // A request whose record was lost was not acknowledged.
        self.accepted.retain(|(_, of)| of.0 <= seq);
        let log = &self.log;
        self.reported.retain(|run| Self::is_over(log, run));
        self.refused.clear();
        self.batch_from = self.log.len();
    }

    fn append_turn(&mut self, records: Vec<Record>) {
        self.log.extend(records);
    }

    fn commit_turn(&mut self) {
        let HeldTurn { number, cancel, .. } = self.turn.clone().unwrap();
        let progress = self.progress(number);
        let mut records = Vec::new();
        if let Some(call) = progress.open_call {
            let result = ToolResult {
                call,
                outcome: ToolOutcome::ok("noon"),
                notes: ResultNotes::default(),
                started: None,
                wait: Duration::ZERO,
                duration: Duration::ZERO,
                writes: WriteSet([("x".into(), serde_json::json!(number).into())].into()),
            };
            records.push(crate::turn::call_ended_record(result, false, false));
        }
        if cancel == Some(CancelReason::Shutdown) && progress.records > 0 && !progress.has_response
        {
            records.push(response(number, "cut o", Vec::new()));
        }
        let end = cancel.map_or(TurnEnd::Finished, TurnEnd::Cancelled);
        records.push(committed(number, end));
        self.append_turn(records);
        self.session.handle_resting(Duration::ZERO, false);
    }
}

fn call(turn: u32) -> ToolCall {
    ToolCall {
        key: CallKey { turn, attempt: 1, index: 0 },
        id: format!("call_{turn}").into(),
        provider_id: None,
        name: "asked".into(),
        arguments: serde_json::json!({"n": turn}).into(),
        raw: None,
        indirect: false,
    }
}

fn response(turn: u32, text: &str, calls: Vec<ToolCall>) -> Record {
    let message = ResponseMessage { text: text.into(), calls, ..ResponseMessage::default() };
    Record::ResponseEnded {
        turn,
        attempt: 1,
        ending: ResponseEnding::Complete,
        message: message.into(),
        finish_reason: None,
        usage: usage(),
        dropped_calls: Vec::new(),
        displayed_segments: Vec::new(),
    }
}

fn committed(turn: u32, end: TurnEnd) -> Record {
    let times = TurnTimes { people: Duration::from_millis(1), ..TurnTimes::default() };
    let summary = TurnSummary { usage: usage(), times, ..TurnSummary::default() };
    Record::TurnCommitted { turn, end, summary: Box::new(summary) }
}

/// Returns the usage of each response and of each summary.
fn usage() -> Usage {
    Usage { input_tokens: 2, output_tokens: 1, ..Usage::default() }
}

fn label(call: &ToolCall) -> CallLabel {
    CallLabel { key: call.key, provider_id: None, name: call.name.clone() }
}
