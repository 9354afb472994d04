//! Questions of a server (elicitation) as questions of a call.
//!
//! A server of the newest protocol answers a call with `input_required`. The call is then sent again, with the
//! answers and the server's opaque state. A server of an earlier protocol sends a request during the call, and
//! does not name the call. Over HTTP it is the call whose event stream carries the question. Otherwise (a process, or
//! another event stream) it is the call that was sent last. If calls of several sessions run, the question is then
//! declined, so that no session receives the question of another one. A call is sent at most 16 times, the first time
//! included. It asks one question at a time, and `max_questions` in all: others are declined at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{Answer, Question, ToolContext, ToolError};
use callsheet_values::types::Secrets;

/// Maximum number of times that one call is sent, the first time included.
pub(super) const ROUNDS_MAX: usize = 16;

/// The method of a question.
pub(super) const ELICIT: &str = "elicitation/create";

/// The answer to a call that needs input.
pub(super) struct InputRequired {
    /// The requests by their keys.
    requests: BTreeMap<String, Value>,
    /// The server's state, which is sent back as it is.
    pub(super) state: Option<String>,
}

impl InputRequired {
    /// Reads the answer to a call. Returns `None` if the call is complete.
    pub(super) fn read(answer: &Value) -> Option<Self> {
        if answer["resultType"] != "input_required" {
            return None;
        }
        let requests = answer["inputRequests"].as_object();
        let requests = requests.into_iter().flatten();
        Some(Self {
            requests: requests.map(|(key, request)| (key.clone(), request.clone())).collect(),
            state: answer["requestState"].as_str().map(str::to_owned),
        })
    }

    /// Returns the number of questions. If there are none, the server only asks that the call is sent again.
    pub(super) fn question_count(&self) -> usize {
        self.requests.len()
    }

    /// Asks the questions one after the other, at most `questions_max`; declines the others. Returns the responses by key. The list of roots is empty.
    ///
    /// # Errors
    /// If a question is not valid, or the server asks for something else.
    pub(super) async fn responses(
        &self,
        asker: &Asker,
        questions_max: usize,
    ) -> Result<BTreeMap<String, Value>, ToolError> {
        let mut responses = BTreeMap::new();
        for (at, (key, request)) in self.requests.iter().enumerate() {
            let method = request["method"].as_str().unwrap_or_default();
            let response = match method {
                ELICIT if at >= questions_max => decline(),
                ELICIT => asker.ask(&request["params"]).await?,
                "roots/list" => json!({ "roots": [] }),
                _ => {
                    let message =
                        format!("the server asks for {method:?}, which the host does not offer");
                    return Err(ToolError::new(message).permanent());
                }
            };
            responses.insert(key.clone(), response);
        }
        Ok(responses)
    }

    /// Returns the responses that cancel all questions.
    pub(super) fn cancelled(&self) -> BTreeMap<String, Value> {
        self.requests.keys().map(|key| (key.clone(), action(&Answer::Cancelled))).collect()
    }
}

/// Asks the questions of a call's server.
#[derive(Clone)]
pub(super) struct Asker {
    context: ToolContext,
    secrets: Secrets,
    /// The reasons why questions have no answer, for the model.
    unanswered: Arc<Mutex<Vec<String>>>,
}

impl Asker {
    pub(super) fn new(context: ToolContext, secrets: Secrets) -> Self {
        Self { context, secrets, unanswered: Arc::default() }
    }

    pub(super) fn context(&self) -> &ToolContext {
        &self.context
    }

    /// Asks a question of the server. Returns the result of `elicitation/create`.
    ///
    /// # Errors
    /// If it is no question, its form cannot be checked, or it is too large.
    pub(super) async fn ask(&self, params: &Value) -> Result<Value, ToolError> {
        let question = question(params).ok_or_else(|| {
            ToolError::new("the server asks a question without a message, a form or a url")
                .permanent()
        })?;
        let question = question.redacted(&self.secrets);
        let message = question.message.clone();
        let answer = self.context.ask(question).await?;
        let reason = match &answer {
            Answer::Declined(Some(reason)) => Some(&**reason),
            Answer::Expired => Some("no answer arrived in time"),
            Answer::Accepted(_) | Answer::Declined(None) | Answer::Cancelled => None,
        };
        if let Some(reason) = reason {
            let note = format!("[callsheet: the question {message:?} was not answered: {reason}]");
            self.unanswered.lock().push(note);
        }
        Ok(action(&answer))
    }

    /// Returns the note for the model about questions without an answer.
    pub(super) fn note(&self) -> Option<String> {
        let notes = self.unanswered.lock();
        (!notes.is_empty()).then(|| notes.join("\n"))
    }
}

/// Returns a question from the parameters of `elicitation/create`.
fn question(params: &Value) -> Option<Question> {
    let message = params["message"].as_str()?;
    if params["mode"] == "url" {
        return Some(Question::url(message, params["url"].as_str()?));
    }
    let form = &params["requestedSchema"];
    form.is_object().then(|| Question::form(message, form.clone()))
}

/// Returns the result of `elicitation/create`.
fn action(answer: &Answer) -> Value {
    match answer {
        Answer::Accepted(content) if content.is_null() => json!({ "action": "accept" }),
        Answer::Accepted(content) => json!({ "action": "accept", "content": content }),
        Answer::Declined(_) => decline(),
        Answer::Expired | Answer::Cancelled => json!({ "action": "cancel" }),
    }
}

/// Returns the result that declines a question.
pub(super) fn decline() -> Value {
    json!({ "action": "decline" })
}
