//! What is checked as a call starts, as it is told, and as the turn is committed.

use super::*;

/// Whether it is what a tool said.
pub(super) fn answered_by_its_tool(outcome: &ToolOutcome) -> bool {
    let kinds = [FailureKind::ToolError, FailureKind::Panic, FailureKind::Killed];
    outcome.kind.is_none_or(|kind| kinds.contains(&kind))
}

impl World {
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
        let places = match rules.execution {
            Execution::Sequential => 1,
            Execution::Parallel { max } => max as usize,
        };
        assert!(self.running.len() <= places, "more calls run than may");
        for earlier in &calls[..place] {
            let waits = matches!(earlier.phase, Phase::Open | Phase::Sealed | Phase::Ready);
            assert!(!waits, "a ticket was taken out of order");
            let same = earlier.identity == started.identity && earlier.started_at.is_some();
            let twice = same && earlier.unfit.is_none() && scenario.identical_run_once;
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
                // Whoever waits for people holds back only what must come after it.
                let asked = tool.approval.before;
                assert!(again || asked || other < key, "effects out of order");
                let same = scenario.identical_run_once && *identity == started.identity;
                assert!(again || !same, "an identical call ran twice");
            }
            self.effects.push((*key, started.identity.clone()));
        }
    }

    pub(super) fn may_start(&self, call: &Call, rules: &TurnRules) -> bool {
        let (ending, cancelled) = match &self.turn.state {
            State::Asking => {
                let early = rules.early_start && rules.limits.on_excess != OnExcess::Fail;
                return early && call.tool.as_ref().unwrap().may_start_early();
            }
            State::Judged { ending, cancelled, .. } => (*ending, cancelled.is_some()),
            State::Over => return false,
        };
        let again = self.crashes > 0 && call.tool.as_ref().unwrap().idempotent;
        match ending {
            Ending::Well => !cancelled,
            // Its intent was being recorded when the ending came.
            Ending::Length | Ending::BrokeKept => call.has_effects() && !cancelled,
            Ending::Refused => again && !cancelled,
            Ending::Excess | Ending::Cancelled => false,
        }
    }

    /// The journal rebuilds the same history, and it may be sent.
    pub(super) fn check_journal(&self, record: &crate::turn::TurnRecord) {
        let mut live = History::new();
        live.commit(record.number, record.message.as_ref(), &record.results, 1 << 20);
        assert_eq!(live.request_messages().1, 0, "the history is not paired");
        assert_eq!(History::fold(&self.log, 1 << 20), live, "the journal says something else");
        let ids: HashSet<_> = record.results.iter().map(|result| &result.call.id).collect();
        assert_eq!(ids.len(), record.results.len(), "an id was used twice");
        assert!(record.results.iter().all(|r| r.call.arguments.is_object()));
    }
}
