//! What is checked as a call starts, as it is told, and as the turn is committed.

use super::*;
use crate::config::Limits;
use crate::turn::fixtures::committed;

/// Returns whether it is what a tool said.
pub(super) fn answered_by_its_tool(outcome: &ToolOutcome) -> bool {
    let kinds = [FailureKind::ToolError, FailureKind::Panic, FailureKind::Killed];
    outcome.kind.is_none_or(|kind| kinds.contains(&kind))
}

impl World {
    /// Returns whether the turn was resumed from its records.
    fn is_resumed(&self) -> bool {
        self.crashes + self.deaths > 0
    }

    pub(super) fn is_tools_answer(&self, key: &CallKey) -> bool {
        self.reported.contains_key(key)
    }

    /// A result says what happened: to the model, and to those who watch.
    pub(super) fn check_result(&self, result: &ToolResult) {
        let (key, outcome) = (result.call.key, &result.outcome);
        assert_eq!(key.attempt, self.turn.attempt(), "a call of a void attempt");
        assert_eq!(self.ended.get(&key), Some(outcome), "another outcome was told");
        let begun = self.begun.contains(&key);
        let is_copy = result.notes.duplicate_of.is_some() || result.notes.reused;
        let call = self.turn.calls.iter().find(|call| call.key() == key).unwrap();
        // A pure call may have run before a crash that nobody remembers.
        let known = self.crashes == 0 || call.has_effects();
        match outcome.kind {
            Some(FailureKind::Malformed) => assert!(!call.has_effects() || !begun),
            _ if is_copy => {}
            None => assert!(begun),
            Some(FailureKind::ToolError | FailureKind::Panic | FailureKind::Killed) => {
                assert!(begun);
            }
            Some(FailureKind::Timeout) => assert!(begun),
            // After a crash nobody knows whether what was intended had begun.
            Some(FailureKind::Cancelled) => assert!(begun || self.crashes > 0),
            Some(FailureKind::HostStopped) => assert!(self.crashes > 0 && call.has_effects()),
            // Before it ran, or after.
            Some(FailureKind::Rejected | FailureKind::ApprovalExpired) => {
                assert!(!known || !begun || self.is_reviewed(key), "{key} ran, and was not let");
            }
            Some(
                FailureKind::NotStarted
                | FailureKind::UnknownTool
                | FailureKind::InvalidArguments
                | FailureKind::CutOffArguments
                | FailureKind::Limit,
            ) => assert!(!known || !begun, "{key} ran, and is answered {outcome:?}"),
        }
        self.check_answer(result);
    }

    /// The models are asked in their order, each as often as it may be, and never after an effect.
    pub(super) fn check_request(&mut self, plan: &AttemptPlan, scenario: &Scenario) {
        assert!(self.effects.is_empty(), "asked again after an effect");
        self.asked.push(plan.model);
        assert!(self.asked.is_sorted(), "an earlier model was asked again");
        for (index, model) in scenario.spec.rules.models.iter().enumerate() {
            let times = self.asked.iter().filter(|asked| **asked == index).count();
            assert!(times <= model.max_attempts as usize || self.is_resumed(), "asked too often");
        }
        let name = &scenario.spec.rules.models.at(plan.model).origin.model;
        let named = self.log.iter().rev().find_map(|record| {
            if let Record::AttemptStarted { model, .. } = record { Some(model) } else { None }
        });
        assert_eq!(named, Some(name), "the journal names another model");
    }

    /// No attempt that could have been made was left out.
    pub(super) fn check_failure(&self, error: &RunError, scenario: &Scenario) {
        if error.code != "provider_error" {
            return;
        }
        let models = &scenario.spec.rules.models;
        assert_eq!(self.asked.last(), Some(&(models.iter().count() - 1)), "a model was left out");
        let attempts: u32 = models.iter().map(|model| model.max_attempts).sum();
        assert!(!error.transient || self.asked.len() >= attempts as usize, "given up too early");
    }

    /// How many more calls of that call's tool may run.
    pub(super) fn has_place(&self, key: CallKey) -> bool {
        let tool = |key: &CallKey| {
            let call = self.turn.calls.iter().find(|call| call.key() == *key).unwrap();
            call.tool.clone().unwrap()
        };
        let wanted = tool(&key);
        let max = wanted.max_concurrent.unwrap().get() as usize;
        let taken = self.running.iter().chain(&self.granted).filter(|k| tool(k) == wanted).count();
        taken < max
    }

    pub(super) fn check_reserve(&mut self, key: CallKey, tool: &str, scenario: &Scenario) {
        let calls = &self.turn.calls;
        let place = calls.iter().position(|call| call.key() == key).unwrap();
        let rules = &scenario.spec.rules;
        assert!(&*calls[place].call.name == tool && calls[place].has_concurrency_limit());
        // Whoever wants it no more has given it up by the end of the poll.
        let wanted = matches!(calls[place].phase, CallPhase::AwaitingPermit { .. });
        assert!(!wanted || self.may_start(&calls[place], rules), "a place was asked for too early");
        assert!(!self.running.contains(&key) && !self.granted.contains(&key));
        assert!(self.waiting.insert(key), "a place was asked for twice");
        self.check_tickets(place, rules);
    }

    /// The ticket was taken in call order, and a place of `max` with it.
    fn check_tickets(&self, place: usize, rules: &TurnRules) {
        for earlier in &self.turn.calls[..place] {
            let waits =
                matches!(earlier.phase, CallPhase::Open | CallPhase::Sealed | CallPhase::Ready);
            assert!(!waits, "a ticket was taken out of order");
        }
        let places = match rules.execution {
            Execution::Sequential => 1,
            Execution::Parallel { max } => max as usize,
        };
        let taken = self.running.len() + self.waiting.len() + self.granted.len();
        assert!(taken <= places, "more calls run than may");
    }

    pub(super) fn check_start(&mut self, key: &CallKey, scenario: &Scenario) {
        let calls = &self.turn.calls;
        let place = calls.iter().position(|call| call.key() == *key).unwrap();
        let started = &calls[place];
        let rules = &scenario.spec.rules;
        assert!(self.running.insert(*key), "started twice");
        let again = self.crashes > 0 || self.reruns.contains(key);
        assert!(self.begun.insert(*key) || again, "started again");
        assert!(self.may_start(started, rules), "started where nothing may");
        self.check_allowed(*key);
        assert_eq!(
            self.granted.remove(key),
            started.has_concurrency_limit(),
            "started without its place"
        );
        self.check_tickets(place, rules);
        for earlier in &calls[..place] {
            let same = earlier.identity == started.identity && earlier.started_at.is_some();
            let twice = same && earlier.arguments_error.is_none() && scenario.identical_run_once;
            assert!(!twice || self.crashes > 0, "an identical call ran twice");
        }
        let others = self.running.iter().filter(|other| *other != key);
        for other in others {
            let other = calls.iter().find(|call| call.key() == *other).unwrap();
            assert!(!other.is_exclusive() && !started.is_exclusive(), "beside an exclusive call");
        }
        if started.has_effects() {
            let tool = started.tool.as_ref().unwrap();
            let durable = &self.log[..self.durable as usize];
            assert!(
                durable
                    .iter()
                    .any(|r| matches!(r, Record::CallIntended { call, .. } if call.key == *key)),
                "an effect before its intent was durable"
            );
            let again = tool.idempotent && self.crashes > 0;
            for (other, identity) in &self.effects {
                assert!(again || other != key, "an effect was repeated");
                assert_eq!(other.attempt, key.attempt, "effects of two attempts");
                // Whoever waits for people holds back only what must come after it, and one that
                // waits for a place of its tool may be overtaken.
                let may_overtake = tool.approval.before || started.has_concurrency_limit();
                assert!(again || may_overtake || other < key, "effects out of order");
                let same = scenario.identical_run_once && *identity == started.identity;
                assert!(again || !same, "an identical call ran twice");
            }
            self.effects.push((*key, started.identity.clone()));
        }
    }

    pub(super) fn may_start(&self, call: &TurnCall, rules: &TurnRules) -> bool {
        let (ending, cancelled) = match &self.turn.stage {
            TurnStage::AwaitingResponse => {
                let early = rules.early_start && rules.limits.on_excess != OnExcess::Fail;
                return early && call.tool.as_ref().unwrap().may_start_early();
            }
            TurnStage::ResponseEnded { ending, cancelled, .. } => (*ending, cancelled.is_some()),
            TurnStage::Finished => return false,
        };
        let again = self.crashes > 0 && call.tool.as_ref().unwrap().idempotent;
        match ending {
            ResponseDisposition::Well => !cancelled,
            // Its intent was being recorded when the ending came.
            ResponseDisposition::Length | ResponseDisposition::BrokeKept => {
                call.has_effects() && !cancelled
            }
            ResponseDisposition::Refused => again && !cancelled,
            ResponseDisposition::Excess | ResponseDisposition::Cancelled => false,
        }
    }

    /// Everything is answered, nothing goes on, and it ended for the reason that there was.
    pub(super) fn check_commit(&self, record: &crate::turn::TurnRecord, scenario: &Scenario) {
        let empty = Vec::new();
        let calls = record.message.as_ref().map_or(&empty, |message| &message.calls);
        let answered: Vec<_> = record.results.iter().map(|r| r.call.key).collect();
        let asked: Vec<_> = calls.iter().map(|call| call.key).collect();
        assert_eq!(answered, asked, "each call has one result, in call order");
        assert_eq!(self.released, asked, "each result was released");
        assert!(self.running.is_empty(), "something still runs");
        let places = self.waiting.len() + self.granted.len();
        assert_eq!(places, 0, "a place is kept, or waited for");
        assert_eq!(self.delivered, None, "the exchange is still open");
        let by_budget = record.end == TurnEnd::Cancelled(CancelReason::Budget);
        assert_eq!(by_budget, self.told_over_budget(), "the end is not the one told");
        if record.end == TurnEnd::Cancelled(CancelReason::RunTimeout) {
            let left = scenario.spec.run_time_left.unwrap();
            // Behind a crash it may be one that was told before.
            let was_told = self.is_resumed();
            assert!(was_told || self.now >= left + self.people, "people's time was the run's");
        } else {
            let cancelled = matches!(record.end, TurnEnd::Cancelled(_));
            assert!(by_budget || cancelled == self.cancel_counts || self.is_resumed());
        }
        if let TurnEnd::Failed(error) = &record.end {
            self.check_failure(error, scenario);
        }
        for result in &record.results {
            self.check_result(result);
            self.check_seen(result);
        }
        self.check_journal(record);
        self.check_serial(record);
    }

    /// The journal rebuilds the same history, and it may be sent.
    pub(super) fn check_journal(&self, record: &crate::turn::TurnRecord) {
        let mut live = History::new();
        live.begin_run("go".into());
        live.commit(record.number, record.message.as_ref(), &record.results, 1 << 20);
        assert_eq!(live.request_messages().1, 0, "the history is not paired");
        let limits = Limits { max_result_bytes: 1 << 20, ..Limits::default() };
        assert_eq!(committed(&self.log, &limits).0, live, "the journal says something else");
        let ids: HashSet<_> = record.results.iter().map(|result| &result.call.id).collect();
        assert_eq!(ids.len(), record.results.len(), "an id was used twice");
        assert!(record.results.iter().all(|r| r.call.arguments.is_object()));
    }
}
