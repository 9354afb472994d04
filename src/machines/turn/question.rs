//! Questions of running calls: a tool asks the people who watch the run for input. In records and events such
//! a question is an approval request of the phase `input`.
//!
//! A call has at most one open question. While it is open, the timeout of the tool is paused
//! ([`people_wait`](super::people_wait)), and the tool's `approval_timeout` counts. The call keeps its
//! permits. A call may ask 100 questions (`runtime::supervisor`), each of at most 64 KiB (`tool::context`).
//! The tool receives the answer after the decision is stored. A question also ends when it expires
//! (the tool receives [`Answer::Expired`]), when the tool withdraws it, or when the call ends.
//!
//! The hash of a question includes its number in the call, so that a decision about one question cannot answer
//! another one with the same text. After a crash of the host, a call that runs again asks again.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Turn;
use super::call::TurnCall;
use super::effect::{ApprovalDecision, ApprovalError, DeferredEffect, Effect, TurnAction};
use super::people_wait::{PeopleWait, PeopleWaitReason};
use super::started_calls::{StartedQuestion, StartedWait};
use crate::contract::ParsedSchema;
use callsheet_values::transcript::CallTranscript;
use callsheet_values::types::{
    Answer, ApprovalVerdict, CallKey, Question, QuestionKind, VerdictWithMessage, WaitPhase,
    sha256_hex,
};

/// A question that a call has asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AskedQuestion {
    pub(super) question: Arc<Question>,
    /// SHA-256 of the question and its number, in hexadecimal. After a resume: the recorded one.
    pub(super) sha256: String,
    /// The decision, if there is one.
    pub(super) decision: Option<QuestionDecision>,
}

/// The decision about a question.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct QuestionDecision {
    pub(super) verdict_with_message: VerdictWithMessage,
    /// The content of an accepted form, with the form's defaults.
    pub(super) content: Option<Arc<Value>>,
}

impl Turn {
    /// Handles the question with this number (from 1) of a running call. Ignores it if the call does not run,
    /// has an open question, or expects another number.
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

    /// Handles the withdrawal of an open question by its tool. Ignores any other question.
    pub fn handle_question_withdrawn(&mut self, now: Duration, key: CallKey, number: u32) {
        self.clock.advance(now);
        if let Some(index) = self.position(key)
            && let Some(call) = self.calls.get(index)
            && call.has_open_question()
            && number == call.question_count()
        {
            self.withdraw_question(index);
            self.advance();
        }
    }

    fn withdraw_question(&mut self, index: usize) {
        let withdrawn = VerdictWithMessage { verdict: ApprovalVerdict::Withdrawn, message: None };
        self.decide_approval(index, WaitPhase::Input, withdrawn, None, None);
    }

    /// Adds a question to a running call, and opens it.
    fn ask(&mut self, index: usize, question: Arc<Question>) {
        let Some(call) = self.calls.get_mut(index) else { return };
        call.questions.push(AskedQuestion::new(question, call.next_question_number()));
        // Its keys have no question number, so an entry is about an earlier question of the call.
        let approval = (call.key(), WaitPhase::Input);
        self.approvals.requested_before_resume.remove(&approval);
        self.open_question(index);
    }

    /// Opens the last question of a running call: pauses the timeout of the tool, and requests the answer.
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
        let (key, number) = (call.key(), call.question_count());
        if let Some(asked) = call.questions.last_mut() {
            asked.decision = Some(decision.clone());
        }
        if let Some(answer) = decision.answer() {
            let answer = TurnAction::Answer { key, number, answer };
            self.effects.defer(DeferredEffect::Queue(Effect::Perform(answer)));
        }
    }

    /// Continues the wait of a call to which the resumed turn has attached. `None` means that the supervisor
    /// knows of no wait. A recorded open question was then withdrawn.
    pub(super) fn resume_wait(&mut self, index: usize, started: Option<&StartedWait>) {
        match started {
            Some(StartedWait::Child) => {
                self.start_people_wait(index, PeopleWaitReason::Child);
            }
            Some(StartedWait::Question(question)) => self.resume_question(index, Some(question)),
            None => self.resume_question(index, None),
        }
    }

    /// Continues the question of a call to which the resumed turn has attached: asks it, waits for its
    /// decision, sends the decision again, or withdraws it.
    fn resume_question(&mut self, index: usize, started: Option<&StartedQuestion>) {
        let Some(call) = self.calls.get(index) else { return };
        let (key, number) = (call.key(), call.question_count());
        if let Some(started) = started
            && started.number > number
        {
            self.ask(index, Arc::clone(&started.question));
            return;
        }
        let Some(last) = call.questions.last() else { return };
        let Some(decision) = &last.decision else {
            self.open_question(index);
            if started.is_none() {
                self.withdraw_question(index);
            }
            return;
        };
        // The tool may not have received the answer.
        if started.is_some()
            && let Some(answer) = decision.answer()
        {
            self.effects.perform(TurnAction::Answer { key, number, answer });
        }
    }
}

impl TurnCall {
    pub(super) fn has_open_question(&self) -> bool {
        self.people_wait().is_some_and(PeopleWait::is_for_answer)
    }

    /// Returns the number of questions that the call has asked, which is the number of its last question.
    pub(super) fn question_count(&self) -> u32 {
        u32::try_from(self.questions.len()).unwrap_or(u32::MAX)
    }

    /// Returns the number of the next question of the call, from 1.
    pub(super) fn next_question_number(&self) -> u32 {
        self.question_count().saturating_add(1)
    }

    /// Restores the recorded questions.
    pub(super) fn restore_questions(&mut self, recorded: &CallTranscript<'_>) {
        for (request, decision) in recorded.input_questions() {
            let Some(question) = request.request.question.clone() else { continue };
            // For a question, this field holds the question's hash.
            let sha256 = request.request.arguments_sha256.clone();
            let decision = decision.map(|decision| QuestionDecision {
                verdict_with_message: decision.verdict_with_message(),
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
        Some(StartedQuestion { number: self.question_count(), question })
    }
}

impl AskedQuestion {
    fn new(question: Arc<Question>, number: u32) -> Self {
        // The number makes the hashes of equal questions differ.
        let identity = json!({ "question": *question, "number": number });
        let sha256 = sha256_hex(identity.to_string());
        Self { question, sha256, decision: None }
    }
}

impl QuestionDecision {
    /// Returns the answer for the tool, unless the tool has withdrawn the question.
    fn answer(&self) -> Option<Answer> {
        match self.verdict_with_message.verdict {
            ApprovalVerdict::Approved => {
                Some(Answer::Accepted(self.content.clone().unwrap_or_default()))
            }
            ApprovalVerdict::Rejected => {
                Some(Answer::Declined(self.verdict_with_message.message.clone()))
            }
            ApprovalVerdict::Expired => Some(Answer::Expired),
            ApprovalVerdict::Withdrawn => None,
        }
    }
}

/// Returns the content of an answer to a form, with the form's defaults filled in. Returns `None` for a
/// rejection and for the answer to a question with a URL.
///
/// # Errors
/// If an approval of a form has no content, its content does not fit the form, or the form is not a valid
/// schema. If a rejection, or the answer to a question with a URL, has content.
pub(super) fn check_content(
    question: &Question,
    decision: &ApprovalDecision,
) -> Result<Option<Arc<Value>>, ApprovalError> {
    let is_accepted = decision.verdict == ApprovalVerdict::Approved;
    let refuse = |message: String| Err(ApprovalError::Content(message));
    let form = match &question.kind {
        QuestionKind::Form(form) if is_accepted => form,
        _ if decision.content.is_none() => return Ok(None),
        QuestionKind::Form(_) => {
            return refuse("content: only an approval has one, not a rejection".to_owned());
        }
        QuestionKind::Url(_) => {
            return refuse("content: a question with a url has none".to_owned());
        }
    };
    let Some(content) = &decision.content else {
        return refuse(format!(
            "content is missing: send an object that fits the form, such as \
             \"content\": {}",
            example_content(form)
        ));
    };
    let Value::Object(members) = content else {
        return refuse("content must be an object that fits the form".to_owned());
    };
    let content = Value::Object(with_defaults(members.clone(), form));
    let schema = ParsedSchema::parse((**form).clone());
    let schema = schema.map_err(|invalid| ApprovalError::Content(format!("form: {invalid}")))?;
    match schema.first_violation(&content) {
        Some(violation) => refuse(format!("content does not fit the form: {violation}")),
        None => Ok(Some(Arc::new(content))),
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

/// Returns an example of content for the form: each property with its type as placeholder.
fn example_content(form: &Value) -> Value {
    let typed = properties(form).map(|(name, schema)| {
        let kind = schema.get("type").and_then(Value::as_str).unwrap_or("any");
        (name.clone(), Value::from(format!("<{kind}>")))
    });
    Value::Object(typed.collect())
}
