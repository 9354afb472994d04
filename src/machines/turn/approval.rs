//! Approvals (human in the loop): decisions of people about a call before it runs, and about its
//! result.
//!
//! Before: a call that could start now waits for the approval to run. It has its ticket and holds no
//! permit. After: the tool has answered, and the model receives the result only if it is approved.
//! Each approval has its own decision, and the first decision is final.
//!
//! A decision that is sent again gets the same answer while its turn is live and afterwards. The rule
//! for both is `check_decision`: the turn applies it to its state, and `check_repeated_decision` to the
//! records of the session.
//!
//! Approval timeout: without a decision within the tool's `approval_timeout` (24 h by default) the
//! approval expires, which rejects the call or its result.
//!
//! Nobody can be asked: without the HTTP server and without a reader of approvals or events, an approval of a
//! run whose caller only waits for its end is rejected at once (`reject_if_nobody_can_be_asked` in
//! `runtime::session::snapshot`).
//!
//! A decision cannot edit (modify) the arguments: it names them by their SHA-256, and one about other arguments
//! is refused. Hooks can change them, before the approval is requested ([`hook_chain`](super::hook_chain)).
//!
//! While the turn waits only for people, that time counts neither as overhead of the turn nor
//! towards `run_timeout`. Approval timeouts go on, also while the session hibernates
//! (`runtime::maintenance` wakes it) and while no host runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::call::{CallPhase, QUOTE_CHARS, TurnCall};
use super::effect::{ApprovalDecision, ApprovalError};
use super::question::{QuestionDecision, check_content};
use super::{Turn, TurnStage, model_messages};
use callsheet_values::event::{ApprovalRequest, Event, WaitingFor};
use callsheet_values::record::{Record, ResponseEnding};
use callsheet_values::types::{
    ApprovalVerdict, Author, CallKey, Question, ReadSet, ToolOutcome, VerdictWithMessage,
    WaitPhase, WriteSet, excerpt,
};

/// The approvals of a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Approvals {
    pub(super) decisions: BTreeMap<(CallKey, WaitPhase), VerdictWithMessage>,
    /// The approvals that were requested before the turn was resumed, with the time since then.
    pub(super) requested_before_resume: BTreeMap<(CallKey, WaitPhase), Duration>,
}

/// An approval or a question that a call has requested, as decisions are compared with it.
#[derive(Clone, Copy, Debug)]
struct RequestedApproval<'a> {
    phase: WaitPhase,
    /// The SHA-256 of the arguments, or of the question.
    sha256: &'a str,
    /// The question, in the phase `Input`.
    question: Option<&'a Question>,
    status: ApprovalStatus<'a>,
}

/// The status of a requested approval.
#[derive(Clone, Copy, Debug)]
enum ApprovalStatus<'a> {
    Pending,
    /// It has no decision and is not pending any more.
    Closed,
    Decided {
        verdict: ApprovalVerdict,
        /// The answer to a form, with its defaults.
        content: Option<&'a Arc<Value>>,
    },
}

/// A decision of a pending approval that is accepted.
#[derive(Debug)]
struct AcceptedDecision {
    phase: WaitPhase,
    /// The answer to a form, with its defaults.
    content: Option<Arc<Value>>,
}

impl RequestedApproval<'_> {
    fn is_pending(&self) -> bool {
        matches!(self.status, ApprovalStatus::Pending)
    }

    fn is_decided(&self) -> bool {
        matches!(self.status, ApprovalStatus::Decided { .. })
    }

    /// Accepts a decision if this approval is pending. Returns `None` if the decision repeats the first one.
    fn accept(
        &self,
        decision: &ApprovalDecision,
        content: Option<Arc<Value>>,
    ) -> Result<Option<AcceptedDecision>, ApprovalError> {
        match self.status {
            ApprovalStatus::Pending => Ok(Some(AcceptedDecision { phase: self.phase, content })),
            ApprovalStatus::Closed => Err(ApprovalError::NoSuchApproval),
            ApprovalStatus::Decided { verdict, content: first } => {
                let is_same = decision.verdict == verdict && content.as_ref() == first;
                if is_same { Ok(None) } else { Err(ApprovalError::Decided(verdict)) }
            }
        }
    }
}

/// Checks a decision about a call against the approvals and questions that the call has requested, in the order of
/// the requests. Returns the accepted decision if its approval is pending, or `None` if it repeats the first
/// decision.
///
/// A decision without a phase is about the question with its hash, else about the pending approval, else about
/// the last decided one.
///
/// # Errors
/// If the call has no such approval or question, the decision is about other arguments or another question, its
/// content does not fit, it does not say which of two approvals it decides, or the first decision was another one.
fn check_decision(
    requested: &[RequestedApproval<'_>],
    decision: &ApprovalDecision,
) -> Result<Option<AcceptedDecision>, ApprovalError> {
    let is_answer = decision.phase == Some(WaitPhase::Input);
    let question = requested.iter().rev().find_map(|asked| {
        let question = asked.question.filter(|_| decision.is_about(asked.sha256))?;
        Some((asked, question))
    });
    if let Some((asked, question)) = question
        && (is_answer || decision.phase.is_none())
    {
        return asked.accept(decision, check_content(question, decision)?);
    }
    if is_answer {
        let has_asked = requested.iter().any(|asked| asked.question.is_some());
        return Err(if has_asked { ApprovalError::Stale } else { ApprovalError::NoSuchApproval });
    }
    let decided = |phase: WaitPhase| {
        requested.iter().rfind(|asked| asked.phase == phase && asked.is_decided())
    };
    let is_question_open =
        requested.iter().any(|asked| asked.question.is_some() && asked.is_pending());
    let pending = requested.iter().find(|asked| asked.question.is_none() && asked.is_pending());
    let (before, after) = (decided(WaitPhase::Before), decided(WaitPhase::After));
    let approval = match (decision.phase, pending) {
        (Some(phase), _) => decided(phase).or(pending.filter(|asked| asked.phase == phase)),
        // A repetition of the decision to run must not approve the result.
        (None, Some(asked)) if asked.phase == WaitPhase::After && before.is_some() => {
            return Err(ApprovalError::WhichPhase);
        }
        (None, Some(asked)) => Some(asked),
        (None, None) => after.or(before),
    };
    let Some(approval) = approval else {
        // Without a phase, the decision may be meant for the open question.
        let is_stale = is_question_open && decision.phase.is_none();
        return Err(if is_stale { ApprovalError::Stale } else { ApprovalError::NoSuchApproval });
    };
    if !decision.is_about(approval.sha256) {
        return Err(ApprovalError::Stale);
    }
    if decision.content.is_some() {
        let message = "content: only the answer to a question has one (phase \"input\")";
        return Err(ApprovalError::Content(message.to_owned()));
    }
    approval.accept(decision, None)
}

/// Checks a decision about a call whose turn is over, by the records of the session. Only the repetition of a
/// recorded decision is accepted.
///
/// # Errors
/// Returns the errors of `check_decision`. An approval without a decision is not pending any more.
pub fn check_repeated_decision<'a>(
    records: impl IntoIterator<Item = &'a Record>,
    key: CallKey,
    decision: &ApprovalDecision,
) -> Result<(), ApprovalError> {
    let mut requested: Vec<RequestedApproval<'a>> = Vec::new();
    for record in records {
        if let Record::ApprovalAsked { request } = record
            && request.call.key == key
        {
            requested.push(RequestedApproval {
                phase: request.phase,
                sha256: &request.arguments_sha256,
                question: request.question.as_deref(),
                status: ApprovalStatus::Closed,
            });
        } else if let Record::ApprovalGiven { key: decided, phase, verdict, content, .. } = record
            && *decided == key
            && let Some(asked) = requested.iter_mut().rfind(|asked| asked.phase == *phase)
        {
            asked.status = ApprovalStatus::Decided { verdict: *verdict, content: content.as_ref() };
        }
    }
    check_decision(&requested, decision).map(drop)
}

impl Turn {
    /// Applies a decision about a call.
    ///
    /// # Errors
    /// Returns the errors of [`check_decision`]. The turn is unchanged then. A repetition of the same
    /// decision is not an error.
    pub(super) fn apply_decision(
        &mut self,
        key: CallKey,
        decision: ApprovalDecision,
    ) -> Result<(), ApprovalError> {
        let Some(index) = self.position(key) else { return Err(ApprovalError::NoSuchApproval) };
        let accepted = self.check_decision_of(index, &decision)?;
        let Some(AcceptedDecision { phase, content }) = accepted else { return Ok(()) };
        if self.approvals.requested_before_resume.contains_key(&(key, phase)) {
            // An earlier call is not admitted, so this one was not either. Its wait began before the resume.
            self.request_approval(index, phase);
        }
        let ApprovalDecision { verdict, message, author, .. } = decision;
        let given = VerdictWithMessage { verdict, message };
        self.decide_approval(index, phase, given, content, author);
        Ok(())
    }

    /// Checks a decision about a call against what the call has requested.
    fn check_decision_of(
        &self,
        index: usize,
        decision: &ApprovalDecision,
    ) -> Result<Option<AcceptedDecision>, ApprovalError> {
        let Some(call) = self.calls.get(index) else { return Err(ApprovalError::NoSuchApproval) };
        let (sha256, pending) = (call.arguments_sha256(), self.pending_phase(call));
        let phases = [WaitPhase::Before, WaitPhase::After].into_iter();
        let approvals = phases.filter_map(|phase| {
            let status = match self.approvals.decisions.get(&(call.key(), phase)) {
                Some(first) => ApprovalStatus::Decided { verdict: first.verdict, content: None },
                None if pending == Some(phase) => ApprovalStatus::Pending,
                None => return None,
            };
            Some(RequestedApproval { phase, sha256: &sha256, question: None, status })
        });
        let last = call.questions.len();
        let questions = (1..).zip(&call.questions).map(|(number, asked)| RequestedApproval {
            phase: WaitPhase::Input,
            sha256: &asked.sha256,
            question: Some(&asked.question),
            status: match &asked.decision {
                Some(QuestionDecision { verdict_with_message: given, content }) => {
                    ApprovalStatus::Decided { verdict: given.verdict, content: content.as_ref() }
                }
                None if number == last && call.has_open_question() => ApprovalStatus::Pending,
                None => ApprovalStatus::Closed,
            },
        });
        let requested: Vec<RequestedApproval<'_>> = approvals.chain(questions).collect();
        check_decision(&requested, decision)
    }

    /// Returns the pending approvals in call order, and the calls that the client runs.
    pub fn pending_approvals(&self) -> impl Iterator<Item = (CallKey, WaitPhase)> {
        self.calls.iter().filter_map(|call| Some((call.key(), self.pending_phase(call)?)))
    }

    /// Returns the phase of the pending approval of a call. After a resume, it is pending even while the call cannot
    /// be admitted, because an earlier call waits for the values of its references or for hooks.
    fn pending_phase(&self, call: &TurnCall) -> Option<WaitPhase> {
        let before = WaitPhase::Before;
        let is_open = || {
            matches!(call.phase, CallPhase::Sealed)
                && call.notes.before.is_none()
                && self.approvals.requested_before_resume.contains_key(&(call.key(), before))
        };
        call.pending_wait_phase().or_else(|| is_open().then_some(before))
    }

    /// Returns the pending approval of a call as clients see it.
    #[must_use]
    pub fn pending_approval(&self, key: CallKey) -> Option<ApprovalRequest> {
        let call = self.calls.get(self.position(key)?)?;
        Some(approval_request(call, self.pending_phase(call)?))
    }

    /// Returns whether the turn waits only for people: for approvals, answers to questions, results of clients, and
    /// children that wait only for these. That time does not count towards `run_timeout`.
    #[must_use]
    pub fn waits_only_for_people(&self) -> bool {
        self.clock.is_waiting_for_people()
    }

    /// Returns whether the turn waits only for people, and none of its calls runs: if its host ends, the turn
    /// continues from its records without a loss. With `agents_may_run` the same holds for a turn of which only calls
    /// of agents run, because the next host goes on with their children.
    #[must_use]
    pub fn is_resumable(&self, agents_may_run: bool) -> bool {
        let may_run = |call: &TurnCall| agents_may_run && call.agent_tool().is_some();
        let is_in_the_way = |call: &TurnCall| call.is_running() && !may_run(call);
        self.waits_only_for_people() && !self.calls.iter().any(is_in_the_way)
    }

    /// Requests the approval to run a call.
    pub(super) fn request_start_approval(&mut self, index: usize) {
        let until = self.approval_deadline(index, WaitPhase::Before);
        let Some(call) = self.calls.get_mut(index) else { return };
        call.phase = CallPhase::AwaitingApproval { until };
        let approval = (call.key(), WaitPhase::Before);
        if self.approvals.requested_before_resume.contains_key(&approval) {
            // The wait was published before the turn was resumed.
            call.waiting_for = Some(WaitingFor::Approval);
        }
        self.publish_waiting(index, WaitingFor::Approval);
        self.request_approval(index, WaitPhase::Before);
    }

    /// Ends a call with what its tool answered, or requests the approval of the result first. A cancelled turn
    /// requests none: the result is withheld.
    pub(super) fn review_or_end(&mut self, index: usize, outcome: ToolOutcome, writes: WriteSet) {
        let Some(call) = self.calls.get(index) else { return };
        let is_reviewed = call.tool.as_ref().is_some_and(|tool| tool.approval.after);
        let needs_review = is_reviewed || call.hook_requires_result_approval();
        let approval = (call.key(), WaitPhase::After);
        let decision = self.approvals.decisions.get(&approval).cloned();
        if !needs_review {
            self.end_call_with(index, outcome, writes);
        } else if decision.is_none() && self.is_cancelled() {
            self.end_call(index, model_messages::unreviewed());
        } else {
            if !call.has_undecided_report() {
                self.record_report(index, &outcome, &ReadSet::default(), &writes);
            }
            let until = self.approval_deadline(index, WaitPhase::After);
            self.set_phase(index, CallPhase::AwaitingReview { outcome, writes, until });
            match decision {
                // The turn was resumed after the decision.
                Some(given) => self.apply_verdict(index, WaitPhase::After, given),
                None => self.request_approval(index, WaitPhase::After),
            }
        }
    }

    /// Marks as expired the approvals and questions whose time has passed. Ends the calls of clients whose time has
    /// passed.
    pub(super) fn expire_approvals(&mut self) {
        let now = self.now();
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get(index) else { return };
            let Some(until) = call.approval_expires_at() else { continue };
            if until <= now && call.waits_for_client() {
                self.end_unanswered(index);
            } else if let Some(phase) = call.pending_wait_phase().filter(|_| until <= now) {
                let expired =
                    VerdictWithMessage { verdict: ApprovalVerdict::Expired, message: None };
                self.decide_approval(index, phase, expired, None, None);
            }
        }
    }

    /// Computes whether the turn waits only for people.
    pub(super) fn waits_for_people(&self) -> bool {
        matches!(self.stage, TurnStage::ResponseEnded { .. })
            && self.calls.iter().any(TurnCall::waits_for_people)
            && !self.calls.iter().any(|call| {
                let works = call.holds_permit() && !call.waits_for_people();
                let is_read = matches!(call.phase, CallPhase::AwaitingReferences);
                works || is_read || call.waits_for_hooks()
            })
    }

    /// Returns the time at which an approval that is requested now expires. The time that passed
    /// before a resume counts.
    pub(super) fn approval_deadline(&self, index: usize, phase: WaitPhase) -> Option<Duration> {
        let call = self.calls.get(index)?;
        let timeout = call.tool.as_ref()?.approval_timeout;
        match self.approvals.requested_before_resume.get(&(call.key(), phase)) {
            Some(passed) => Some(timeout.saturating_sub(*passed)),
            None => self.now().checked_add(timeout),
        }
    }

    /// Records the request for an approval, unless that was done before the turn was
    /// resumed.
    pub(super) fn request_approval(&mut self, index: usize, phase: WaitPhase) {
        let now = self.now();
        let Some(call) = self.calls.get_mut(index) else { return };
        let requested_before = self.approvals.requested_before_resume.remove(&(call.key(), phase));
        if let Some(passed) = requested_before {
            call.approval_requested_at = Some(Duration::ZERO);
            call.approval_wait_before_resume = passed;
            return;
        }
        call.approval_requested_at = Some(now);
        call.approval_wait_before_resume = Duration::ZERO;
        let request = Box::new(approval_request(call, phase));
        self.record(Record::ApprovalAsked { request });
    }

    /// Records and publishes the decision of a pending approval, and applies it.
    pub(super) fn decide_approval(
        &mut self,
        index: usize,
        phase: WaitPhase,
        given: VerdictWithMessage,
        content: Option<Arc<Value>>,
        author: Option<Author>,
    ) {
        let Some(call) = self.calls.get(index) else { return };
        let (key, label) = (call.key(), call.label());
        let now = self.now();
        let waited = now.saturating_sub(call.approval_requested_at.unwrap_or(now));
        let waited = call.approval_wait_before_resume.saturating_add(waited);
        let verdict = given.verdict;
        let message = given.message.clone();
        self.record(Record::ApprovalGiven {
            key,
            phase,
            verdict,
            message: message.clone(),
            content: content.clone(),
            authored_by: author.clone(),
        });
        self.emit(Event::ApprovalGiven { call: label, phase, verdict, message, author, waited });
        if phase == WaitPhase::Input {
            let decision = QuestionDecision { verdict_with_message: given, content };
            return self.apply_question_decision(index, decision);
        }
        self.approvals.decisions.insert((key, phase), given.clone());
        self.apply_verdict(index, phase, given);
    }

    fn apply_verdict(&mut self, index: usize, phase: WaitPhase, given: VerdictWithMessage) {
        let Some(call) = self.calls.get_mut(index) else { return };
        let is_approved = given.verdict == ApprovalVerdict::Approved;
        let rejection = (!is_approved).then(|| model_messages::rejected(phase, &given));
        let note = match phase {
            WaitPhase::Before => &mut call.notes.before,
            WaitPhase::After => &mut call.notes.after,
            WaitPhase::Input | WaitPhase::Client => return,
        };
        *note = Some(given);
        if let Some(rejection) = rejection {
            self.end_call(index, rejection);
            return;
        }
        if matches!(call.phase, CallPhase::Sealed) {
            // It starts when it is admitted.
            return;
        }
        call.waiting_for = None;
        let waited_in = std::mem::replace(&mut call.phase, CallPhase::Ready);
        if let CallPhase::AwaitingReview { outcome, writes, until: _ } = waited_in {
            self.end_call_with(index, outcome, writes);
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        matches!(
            self.stage,
            TurnStage::ResponseEnded { cancelled: Some(_), .. }
                | TurnStage::ResponseEnded { ending: ResponseEnding::Cancelled, .. }
        )
    }
}

pub(super) fn approval_request(call: &TurnCall, phase: WaitPhase) -> ApprovalRequest {
    let output_summary = if let CallPhase::AwaitingReview { outcome, .. } = &call.phase {
        Some(excerpt(&outcome.content, QUOTE_CHARS))
    } else {
        None
    };
    let asked = call.questions.last().filter(|_| phase == WaitPhase::Input);
    ApprovalRequest {
        call: call.label(),
        phase,
        arguments: call.call.arguments.clone(),
        arguments_sha256: match asked {
            Some(asked) => asked.sha256.clone(),
            None => call.arguments_sha256(),
        },
        output_summary,
        question: asked.map(|asked| Arc::clone(&asked.question)),
    }
}

impl ApprovalDecision {
    /// Returns whether the decision is about the arguments or the question with this hash.
    fn is_about(&self, sha256: &str) -> bool {
        self.arguments_sha256.eq_ignore_ascii_case(sha256)
    }
}
