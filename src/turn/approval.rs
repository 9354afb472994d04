//! People in the loop: what they are asked about a call, and what comes of their answer.
//!
//! Before: a call that could start now waits until somebody lets it. It has its ticket and no
//! place of `max`, so it holds back only what must come after it. After: the tool has answered,
//! and the model sees that only if somebody lets it. Each question has an answer of its own, the
//! first one stands, and none within the tool's `approval_timeout` is a no.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::call::{CallPhase, QUOTE_CHARS, TurnCall};
use super::effect::{ApprovalDecision, ApprovalError};
use super::{Turn, TurnStage, model_messages};
use crate::event::{ApprovalRequest, Event, WaitingFor};
use crate::record::{Record, ResponseDisposition};
use crate::types::{
    ApprovalPhase, CallKey, Judgement, ReadSet, ToolCall, ToolOutcome, Verdict, WriteSet, excerpt,
};

impl Turn {
    /// Somebody has decided about a call.
    ///
    /// # Errors
    /// When nobody was asked about it, the decision is about other arguments or does not say which
    /// of two questions it answers, or it was decided otherwise before. Nothing has changed then.
    /// The same decision again is no error.
    pub(super) fn apply_decision(
        &mut self,
        key: CallKey,
        decision: ApprovalDecision,
    ) -> Result<(), ApprovalError> {
        let index = self.position(key);
        let call = index.and_then(|index| self.calls.get(index));
        let question = call.and_then(TurnCall::pending_approval_phase);
        let judged = |phase| self.judgements.get(&(key, phase));
        let (before, after) = (judged(ApprovalPhase::Before), judged(ApprovalPhase::After));
        let known = match (decision.phase, question) {
            (Some(phase), _) => judged(phase),
            // Said again for the call, it must not pass for leave to see a result nobody has seen.
            (None, Some(ApprovalPhase::After)) if before.is_some() => {
                return Err(ApprovalError::WhichPhase);
            }
            (None, Some(_)) => None,
            (None, None) => after.or(before),
        };
        let asked = index.zip(call).zip(question);
        let asked = asked.filter(|(_, asked)| decision.phase.is_none_or(|phase| phase == *asked));
        if known.is_none() && asked.is_none() {
            return Err(ApprovalError::NotAsked);
        }
        if call.is_some_and(|call| !decision.matches_arguments(&call.call)) {
            return Err(ApprovalError::Stale);
        }
        if let Some(known) = known {
            return decision.check_repeat(known.verdict);
        }
        let Some(((index, _), question)) = asked else { return Err(ApprovalError::NotAsked) };
        self.decide_approval(index, question, decision.judgement);
        Ok(())
    }

    /// What people are asked at present, in call order: which calls, and what about them.
    pub fn pending_approvals(&self) -> impl Iterator<Item = (CallKey, ApprovalPhase)> {
        self.calls.iter().filter_map(|call| Some((call.key(), call.pending_approval_phase()?)))
    }

    /// A question as people are shown it; none where it is not asked at present.
    #[must_use]
    pub fn pending_approval(&self, key: CallKey) -> Option<ApprovalRequest> {
        let call = self.calls.get(self.position(key)?)?;
        Some(request(call, call.pending_approval_phase()?))
    }

    /// Returns whether people are all that the turn waits for. Its clock stands still then, and so does
    /// the run's.
    #[must_use]
    pub fn waits_only_for_approval(&self) -> bool {
        self.clock.is_waiting_for_approval()
    }

    /// Asks whether a call may run.
    pub(super) fn request_start_approval(&mut self, index: usize) {
        let until = self.approval_deadline(index, ApprovalPhase::Before);
        let Some(call) = self.calls.get_mut(index) else { return };
        call.phase = CallPhase::AwaitingApproval { until };
        if self.asked.contains_key(&(call.key(), ApprovalPhase::Before)) {
            call.waiting_for = Some(WaitingFor::Approval);
        }
        self.publish_waiting(index, WaitingFor::Approval);
        self.request_approval(index, ApprovalPhase::Before);
    }

    /// What a tool answered is the call's outcome, unless people have to see it first.
    pub(super) fn review_or_end(&mut self, index: usize, outcome: ToolOutcome, writes: WriteSet) {
        let Some(call) = self.calls.get(index) else { return };
        let reviews = call.tool.as_ref().is_some_and(|tool| tool.approval.after);
        let known = self.judgements.get(&(call.key(), ApprovalPhase::After)).cloned();
        if !reviews {
            self.end_call_with(index, outcome, writes);
        } else if self.is_cancelled() {
            self.end_call(index, model_messages::unreviewed());
        } else {
            if !call.has_undecided_report() {
                self.record_report(index, &outcome, &ReadSet::default(), &writes);
            }
            let until = self.approval_deadline(index, ApprovalPhase::After);
            self.set_phase(index, CallPhase::AwaitingReview { outcome, writes, until });
            match known {
                // It was said before a crash.
                Some(judgement) => self.apply_judgement(index, ApprovalPhase::After, judgement),
                None => self.request_approval(index, ApprovalPhase::After),
            }
        }
    }

    /// Nobody has said anything in time.
    pub(super) fn expire_approvals(&mut self) {
        let now = self.now();
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get(index) else { return };
            let (CallPhase::AwaitingApproval { until: Some(until) }
            | CallPhase::AwaitingReview { until: Some(until), .. }) = call.phase
            else {
                continue;
            };
            if let Some(question) = call.pending_approval_phase().filter(|_| until <= now) {
                let expired = Judgement { verdict: Verdict::Expired, message: None };
                self.decide_approval(index, question, expired);
            }
        }
    }

    /// Returns whether people are all that the turn waits for: then its clocks stand still.
    pub(super) fn waits_for_approval(&self) -> bool {
        matches!(self.stage, TurnStage::ResponseEnded { .. })
            && self.calls.iter().any(|call| call.pending_approval_phase().is_some())
            && !self.calls.iter().any(TurnCall::holds_permit)
    }

    fn approval_deadline(&self, index: usize, phase: ApprovalPhase) -> Option<Duration> {
        let call = self.calls.get(index)?;
        let timeout = call.tool.as_ref()?.approval_timeout;
        match self.asked.get(&(call.key(), phase)) {
            Some(before) => Some(timeout.saturating_sub(*before)),
            None => self.now().checked_add(timeout),
        }
    }

    /// Asks people, unless they were asked before the turn was resumed: then that question stands.
    fn request_approval(&mut self, index: usize, phase: ApprovalPhase) {
        let now = self.now();
        let Some(call) = self.calls.get_mut(index) else { return };
        if let Some(before) = self.asked.remove(&(call.key(), phase)) {
            call.asked_at = Some(Duration::ZERO);
            call.approval_wait_before_resume = before;
            return;
        }
        call.asked_at = Some(now);
        call.approval_wait_before_resume = Duration::ZERO;
        let asked = Box::new(request(call, phase));
        self.record(Record::ApprovalAsked { asked: asked.clone() });
        self.emit(Event::ApprovalAsked { asked });
    }

    pub(super) fn decide_approval(
        &mut self,
        index: usize,
        phase: ApprovalPhase,
        judgement: Judgement,
    ) {
        let Some(call) = self.calls.get(index) else { return };
        let (key, label) = (call.key(), call.label());
        let waited = self.now().saturating_sub(call.asked_at.unwrap_or(self.now()));
        let waited = call.approval_wait_before_resume.saturating_add(waited);
        let verdict = judgement.verdict;
        let message = judgement.message.clone();
        self.record(Record::ApprovalGiven { key, phase, verdict, message });
        self.emit(Event::ApprovalGiven { call: label, phase, verdict, waited });
        self.judgements.insert((key, phase), judgement.clone());
        self.apply_judgement(index, phase, judgement);
    }

    fn apply_judgement(&mut self, index: usize, phase: ApprovalPhase, judgement: Judgement) {
        let Some(call) = self.calls.get_mut(index) else { return };
        let approved = judgement.verdict == Verdict::Approved;
        let refused = (!approved).then(|| model_messages::rejected(phase, &judgement));
        let note = match phase {
            ApprovalPhase::Before => &mut call.notes.before,
            ApprovalPhase::After => &mut call.notes.after,
        };
        *note = Some(judgement);
        if let Some(refused) = refused {
            self.end_call(index, refused);
            return;
        }
        call.waiting_for = None;
        let asked = std::mem::replace(&mut call.phase, CallPhase::Ready);
        if let CallPhase::AwaitingReview { outcome, writes, until: _ } = asked {
            self.end_call_with(index, outcome, writes);
        }
    }

    fn is_cancelled(&self) -> bool {
        matches!(
            self.stage,
            TurnStage::ResponseEnded { cancelled: Some(_), .. }
                | TurnStage::ResponseEnded { ending: ResponseDisposition::Cancelled, .. }
        )
    }
}

fn request(call: &TurnCall, phase: ApprovalPhase) -> ApprovalRequest {
    let output_summary = if let CallPhase::AwaitingReview { outcome, .. } = &call.phase {
        Some(excerpt(&outcome.content, QUOTE_CHARS))
    } else {
        None
    };
    ApprovalRequest {
        call: call.label(),
        phase,
        arguments: call.call.arguments.clone(),
        arguments_sha256: arguments_sha256(&call.call),
        output_summary,
    }
}

impl ApprovalDecision {
    /// Returns whether it is about these very arguments.
    #[must_use]
    pub fn matches_arguments(&self, call: &ToolCall) -> bool {
        self.arguments_sha256.eq_ignore_ascii_case(&arguments_sha256(call))
    }

    /// What is said to it where the first decision stands.
    ///
    /// # Errors
    /// When that was another one.
    pub fn check_repeat(&self, first: Verdict) -> Result<(), ApprovalError> {
        if first == self.judgement.verdict { Ok(()) } else { Err(ApprovalError::Decided(first)) }
    }
}

/// The SHA-256 of a call's arguments as they are run: compact JSON, keys sorted; in hex digits.
fn arguments_sha256(call: &ToolCall) -> String {
    let digest = Sha256::digest(call.arguments_text());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
