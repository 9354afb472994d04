//! Questions of running calls: a tool asks the people who watch the run for input (`phase: "input"`).
//!
//! A call has at most one open question. While it is open, the timeout of the tool is paused
//! ([`people_wait`](super::people_wait)), and the tool's `approval_timeout` counts. The call keeps its permits. The
//! answer reaches the tool after its record is stored. A question ends without an answer when it expires, when the
//! tool withdraws it, or with the call.
//!
//! Each question has its own hash, also if its text is that of an earlier one: a decision about another
//! question is refused as outdated. After a crash of the host, a call that runs again asks again.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Turn;
use super::call::TurnCall;
use super::effect::{ApprovalDecision, ApprovalError, DeferredEffect, Effect, TurnAction};
use super::people_wait::{PeopleWait, PeopleWaitReason};
use super::started_calls::{StartedQuestion, StartedWait};
use crate::tool::InputSchema;
use crate::transcript::CallTranscript;
use crate::types::{
    Answer, ApprovalVerdict, CallKey, Question, QuestionKind, VerdictWithMessage, WaitPhase,
    sha256_hex,
};

/// A question that a call has asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AskedQuestion {
    pub(super) question: Arc<Question>,
    pub(super) sha256: String,
    /// The decision, if there is one.
    pub(super) decision: Option<QuestionDecision>,
}

/// The decision about a question.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct QuestionDecision {
    pub(super) given: VerdictWithMessage,
    pub(super) content: Option<Arc<Value>>,
}

impl Turn {
    /// Handles a question of a running call, which is the call's question of this number. Ignores the
    /// question of a call that does not run any more.
    pub fn handle_question(
        &mut self,
        now: Duration,
        key: CallKey,
        number: u32,
        question: Arc<Question>,
    ) {
        self.clock.advance(now);
        if let Some(index) = self.position(key)
            && let Some(call) = self.calls.get(index)
            && call.is_running()
            && !call.has_open_question()
            && number == call.next_question_number()
        {
            self.ask(index, question);
            self.advance();
        }
    }

    /// Handles that the tool of a running call does not wait for the answer to its question any longer.
    pub fn handle_question_withdrawn(&mut self, now: Duration, key: CallKey, number: u32) {
        self.clock.advance(now);
        if let Some(index) = self.position(key)
            && let Some(call) = self.calls.get(index)
            && call.has_open_question()
            && number.saturating_add(1) == call.next_question_number()
        {
            self.withdraw_question(index);
            self.advance();
        }
    }

    fn withdraw_question(&mut self, index: usize) {
        let withdrawn = VerdictWithMessage { verdict: ApprovalVerdict::Withdrawn, message: None };
        self.decide_approval(index, WaitPhase::Input, withdrawn, None);
    }

    fn ask(&mut self, index: usize, question: Arc<Question>) {
        let Some(call) = self.calls.get_mut(index) else { return };
        call.questions.push(AskedQuestion::new(question, call.next_question_number()));
        // An earlier question of the call is another one.
        let approval = (call.key(), WaitPhase::Input);
        self.approvals.requested_before_resume.remove(&approval);
        self.open_question(index);
    }

    /// Opens the last question of a running call.
    fn open_question(&mut self, index: usize) {
        let until = self.approval_deadline(index, WaitPhase::Input);
        if self.start_people_wait(index, PeopleWaitReason::Answer { until }) {
            self.request_approval(index, WaitPhase::Input);
        }
    }

    /// Applies the recorded decision of the open question, and passes the answer on to the tool.
    pub(super) fn apply_question_decision(&mut self, index: usize, decision: QuestionDecision) {
        if !self.end_people_wait(index) {
            return;
        }
        let Some(call) = self.calls.get_mut(index) else { return };
        let (key, number) = (call.key(), call.next_question_number().saturating_sub(1));
        if let Some(asked) = call.questions.last_mut() {
            asked.decision = Some(decision.clone());
        }
        if let Some(answer) = decision.answer() {
            let answer = TurnAction::Answer { key, number, answer };
            self.effects.defer(DeferredEffect::Queue(Effect::Perform(answer)));
        }
    }

    /// Continues the wait of a call that the resumed turn has attached to.
    pub(super) fn resume_wait(&mut self, index: usize, started: Option<&StartedWait>) {
        match started {
            Some(StartedWait::Child) => {
                self.start_people_wait(index, PeopleWaitReason::Child);
            }
            Some(StartedWait::Question(question)) => self.resume_question(index, Some(question)),
            None => self.resume_question(index, None),
        }
    }

    /// Continues the question of a call that the resumed turn has attached to: asks it, waits for its decision,
    /// or passes the decision on that the tool may not have received.
    fn resume_question(&mut self, index: usize, started: Option<&StartedQuestion>) {
        let Some(call) = self.calls.get(index) else { return };
        let (key, last) = (call.key(), call.questions.last());
        let last_number = call.next_question_number().saturating_sub(1);
        match (started, last) {
            (Some(started), _) if started.number > last_number => {
                self.ask(index, Arc::clone(&started.question));
            }
            (Some(_), Some(AskedQuestion { decision: Some(decision), .. })) => {
                if let Some(answer) = decision.answer() {
                    let number = last_number;
                    self.effects.perform(TurnAction::Answer { key, number, answer });
                }
            }
            (Some(_), Some(AskedQuestion { decision: None, .. })) => self.open_question(index),
            // The tool has withdrawn it while no turn listened.
            (None, Some(AskedQuestion { decision: None, .. })) => {
                self.open_question(index);
                self.withdraw_question(index);
            }
            (Some(_) | None, _) => {}
        }
    }
}

impl TurnCall {
    pub(super) fn has_open_question(&self) -> bool {
        self.people_wait().is_some_and(PeopleWait::is_for_answer)
    }

    /// Returns the number of the next question of the call, from 1.
    pub(super) fn next_question_number(&self) -> u32 {
        u32::try_from(self.questions.len()).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// Restores the recorded questions.
    pub(super) fn restore_questions(&mut self, recorded: &CallTranscript<'_>) {
        for (request, decision) in recorded.input_questions() {
            let Some(question) = request.request.question.clone() else { continue };
            let sha256 = request.request.arguments_sha256.clone();
            let decision = decision.map(|decision| QuestionDecision {
                given: decision.verdict_with_message(),
                content: decision.content.cloned(),
            });
            self.questions.push(AskedQuestion { question, sha256, decision });
        }
    }

    /// Returns the wait for people as the supervisor of its call keeps it.
    pub(super) fn started_wait(&self) -> Option<StartedWait> {
        let question = self.started_question().map(StartedWait::Question);
        question.or_else(|| self.child_waits_for_people().then_some(StartedWait::Child))
    }

    /// Returns the open question as the supervisor of its call keeps it.
    pub(super) fn started_question(&self) -> Option<StartedQuestion> {
        if !self.has_open_question() {
            return None;
        }
        let question = Arc::clone(&self.questions.last()?.question);
        Some(StartedQuestion { number: self.next_question_number().saturating_sub(1), question })
    }
}

impl AskedQuestion {
    fn new(question: Arc<Question>, number: u32) -> Self {
        // The number makes each question of a call another one.
        let identity = json!({ "question": *question, "number": number });
        let sha256 = sha256_hex(identity.to_string());
        Self { question, sha256, decision: None }
    }
}

impl QuestionDecision {
    /// Returns the answer for the tool, unless the tool has withdrawn the question.
    fn answer(&self) -> Option<Answer> {
        match self.given.verdict {
            ApprovalVerdict::Approved => {
                Some(Answer::Accepted(self.content.clone().unwrap_or_default()))
            }
            ApprovalVerdict::Rejected => Some(Answer::Declined(self.given.message.clone())),
            ApprovalVerdict::Expired => Some(Answer::Expired),
            ApprovalVerdict::Withdrawn => None,
        }
    }
}

impl Question {
    /// Returns the content of an answer with the defaults of the form.
    ///
    /// # Errors
    /// If the content is missing, does not fit the form, or is given where there is no form.
    pub(super) fn check_content(
        &self,
        decision: &ApprovalDecision,
    ) -> Result<Option<Arc<Value>>, ApprovalError> {
        let is_accepted = decision.verdict == ApprovalVerdict::Approved;
        let error = |message: String| Err(ApprovalError::Content(message));
        let form = match &self.kind {
            QuestionKind::Form(form) if is_accepted => form,
            _ if decision.content.is_none() => return Ok(None),
            QuestionKind::Form(_) => {
                return error("content: only an approval has one, not a rejection".to_owned());
            }
            QuestionKind::Url(_) => {
                return error("content: a question with a url has none".to_owned());
            }
        };
        let Some(content) = &decision.content else {
            return error(format!(
                "content is missing: send an object that fits the form, such as \
                 \"content\": {}",
                example(form)
            ));
        };
        let Value::Object(given) = content else {
            return error("content must be an object that fits the form".to_owned());
        };
        let content = Value::Object(with_defaults(given.clone(), form));
        let schema = InputSchema::parse((**form).clone());
        let schema =
            schema.map_err(|invalid| ApprovalError::Content(format!("form: {invalid}")))?;
        match schema.first_violation(&content) {
            Some(violation) => error(format!("content does not fit the form: {violation}")),
            None => Ok(Some(Arc::new(content))),
        }
    }
}

/// Returns the properties of a form.
fn properties(form: &Value) -> impl Iterator<Item = (&String, &Value)> {
    form.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// Fills in the defaults of properties that are left out.
fn with_defaults(mut content: Map<String, Value>, form: &Value) -> Map<String, Value> {
    for (name, schema) in properties(form) {
        if let Some(default) = schema.get("default")
            && !content.contains_key(name)
        {
            content.insert(name.clone(), default.clone());
        }
    }
    content
}

/// Returns the form of an answer, with the type of each property.
fn example(form: &Value) -> Value {
    let typed = properties(form).map(|(name, schema)| {
        let kind = schema.get("type").and_then(Value::as_str).unwrap_or("any");
        (name.clone(), Value::from(format!("<{kind}>")))
    });
    Value::Object(typed.collect())
}
