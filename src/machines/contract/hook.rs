//! The answer of a hook, and its failure.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use callsheet_values::types::{
    HookPoint, HookVerdict, RunEnd, RunError, RunId, Secrets, SessionId, ToolStatus, excerpt,
};

/// Maximum number of characters of an error's message.
const MESSAGE_CHARS_MAX: usize = 2000;

/// The input of a hook. Programs and services receive it as a JSON object, without the members that
/// are `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HookInput {
    /// The point.
    pub on: HookPoint,
    /// The session.
    pub session_id: SessionId,
    /// The run.
    pub run_id: RunId,
    /// The number of the turn in the session, from 1.
    pub turn: u32,
    /// The name of the agent.
    pub agent: Arc<str>,
    /// The names of the agents from the first one down to this one.
    pub agent_path: Vec<Arc<str>>,
    /// The id of the call in the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_id: Option<String>,
    /// The name of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<Arc<str>>,
    /// The arguments of the call, as the tool receives them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Arc<Value>>,
    /// The SHA-256 of the arguments (compact JSON with sorted keys) in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments_sha256: Option<String>,
    /// The status of the call's result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ToolStatus>,
    /// The result of the call: its whole text, which the model reads up to `max_result_bytes`, or what a hook
    /// before has put in its place. At the end of a turn or a run: the text of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Arc<Value>>,
    /// The messages of the request, or those of the turn: in the Chat Completions form, without the system text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<Arc<Value>>,
    /// The parameters of the request that a hook can change: `system`, `temperature`, `max_output_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Arc<Value>>,
    /// The end of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_end: Option<RunEnd>,
    /// The error of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
}

impl HookInput {
    /// Makes the input about a turn of a run.
    pub fn new(
        on: HookPoint,
        session_id: SessionId,
        run_id: RunId,
        turn: u32,
        agent: Arc<str>,
    ) -> Self {
        Self {
            on,
            session_id,
            run_id,
            turn,
            agent_path: vec![Arc::clone(&agent)],
            agent,
            tool_id: None,
            tool_name: None,
            arguments: None,
            arguments_sha256: None,
            status: None,
            result: None,
            messages: None,
            parameters: None,
            run_end: None,
            error: None,
        }
    }
}

/// The answer of a hook.
///
/// ```
/// use callsheet::tool::HookAnswer;
/// use serde_json::json;
///
/// let refused = HookAnswer::refuse("no deletions");
/// assert_eq!(refused.message.as_deref(), Some("no deletions"));
/// assert_ne!(refused, HookAnswer::allow());
/// let changed = HookAnswer::allow().with_arguments(json!({ "path": "./work" }));
/// assert_eq!(changed.arguments.unwrap()["path"], "./work");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HookAnswer {
    /// The verdict.
    pub verdict: HookVerdict,
    /// The reason of a refusal. The model reads it if a call is refused, and otherwise the error of the run has it.
    #[serde(default)]
    pub message: Option<String>,
    /// The arguments that replace those of the call. Only `before_call` has them.
    #[serde(default)]
    pub arguments: Option<Value>,
    /// The result that replaces that of the call: a text, or another JSON value. Only `after_call` has it.
    #[serde(default)]
    pub result: Option<Value>,
    /// The messages that replace those of the request. Only `before_request` has them.
    #[serde(default)]
    pub messages: Option<Value>,
    /// The parameters that replace those of the request. Only `before_request` has them.
    #[serde(default)]
    pub parameters: Option<Value>,
}

impl HookAnswer {
    /// Allows what the hook is asked about.
    #[must_use]
    pub fn allow() -> Self {
        Self::default()
    }

    /// Asks a person for approval.
    #[must_use]
    pub fn ask() -> Self {
        Self { verdict: HookVerdict::Ask, ..Self::default() }
    }

    /// Refuses for a reason: see [`message`](Self::message).
    #[must_use]
    pub fn refuse(message: impl Into<String>) -> Self {
        let (verdict, message) = (HookVerdict::Refuse, Some(message.into()));
        Self { verdict, message, ..Self::default() }
    }

    /// Replaces the arguments of the call.
    #[must_use]
    pub fn with_arguments(self, arguments: Value) -> Self {
        Self { arguments: Some(arguments), ..self }
    }

    /// Replaces the result of the call.
    #[must_use]
    pub fn with_result(self, result: impl Into<Value>) -> Self {
        Self { result: Some(result.into()), ..self }
    }

    /// Replaces the messages of the request: a list in the Chat Completions form, without a system text.
    #[must_use]
    pub fn with_messages(self, messages: Value) -> Self {
        Self { messages: Some(messages), ..self }
    }

    /// Replaces parameters of the request: an object with `system`, `temperature` or `max_output_tokens`.
    #[must_use]
    pub fn with_parameters(self, parameters: Value) -> Self {
        Self { parameters: Some(parameters), ..self }
    }

    /// Parses the answer of a program or a service. Redacts the secrets of the host.
    ///
    /// # Errors
    /// If it is not one JSON object of this form.
    pub fn parse(bytes: &[u8], secrets: &Secrets) -> Result<Self, HookError> {
        let form = "it must be one JSON object such as {\"verdict\": \"allow\"}";
        if bytes.trim_ascii().is_empty() {
            return Err(HookError::new(format!("its answer is empty: {form}")));
        }
        let mut answer: Self = serde_json::from_slice(bytes).map_err(|error| {
            let error = error.to_string();
            let error = secrets.redact(&error);
            HookError::new(format!("its answer is invalid: {error}; {form}"))
        })?;
        let Self { verdict: _, message, arguments, result, messages, parameters } = &mut answer;
        if let Some(message) = message {
            secrets.redact_in_place(message);
        }
        for value in [arguments, result, messages, parameters].into_iter().flatten() {
            if let Some(redacted) = secrets.redact_json(value) {
                *value = redacted;
            }
        }
        Ok(answer)
    }

    /// Checks that the answer has only what may be answered at this point.
    ///
    /// # Errors
    /// If it has something else.
    pub fn check(&self, on: HookPoint) -> Result<(), HookError> {
        let wrong = |message: &str| Err(HookError::new(message));
        if self.verdict == HookVerdict::Ask && !on.concerns_call() {
            return wrong("its verdict is ask, and only calls can be approved");
        }
        if self.arguments.is_some() && on != HookPoint::BeforeCall {
            return wrong("its answer has arguments, and only before_call may change them");
        }
        if self.result.is_some() && on != HookPoint::AfterCall {
            return wrong("its answer has a result, and only after_call may change it");
        }
        let changes_request = self.messages.is_some() || self.parameters.is_some();
        if changes_request && on != HookPoint::BeforeRequest {
            return wrong(
                "its answer has messages or parameters, and only before_request may change them",
            );
        }
        if self.arguments.as_ref().is_some_and(|arguments| !arguments.is_object()) {
            return wrong("the arguments of its answer are not an object");
        }
        Ok(())
    }
}

/// The reason why a hook gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookError {
    message: Arc<str>,
}

impl HookError {
    /// Makes an error. Its message is logged, and the model reads it if the failure refuses a call.
    pub fn new(message: impl fmt::Display) -> Self {
        Self { message: excerpt(&message.to_string(), MESSAGE_CHARS_MAX).into() }
    }

    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for HookError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_object_with_a_verdict() {
        let parse = |bytes: &[u8]| HookAnswer::parse(bytes, &Secrets::default());
        let answer = parse(b" {\"verdict\": \"ask\", \"message\": \"m\"}\n").unwrap();
        assert_eq!((answer.verdict, answer.message.as_deref()), (HookVerdict::Ask, Some("m")));
        for rubbish in [
            "",
            " \n",
            "allow",
            "{}",
            "null",
            "[]",
            "{\"verdict\": \"maybe\"}",
            "{\"verdict\": \"allow\", \"argumens\": {}}",
            "{\"verdict\": \"allow\"} {\"verdict\": \"allow\"}",
            "{\"verdict\": \"allow\"",
        ] {
            let error = parse(rubbish.as_bytes()).unwrap_err();
            assert!(error.message().contains("{\"verdict\": \"allow\"}"), "{rubbish}: {error}");
        }
        assert!(parse(b"{\"verdict\": \"allow\", \"message\": \xff}").is_err());
    }

    #[test]
    fn an_answer_has_no_secret() {
        let secrets = Secrets::new(["hook-secret"]);
        let parse = |text: &str| HookAnswer::parse(text.as_bytes(), &secrets);
        let refusal =
            parse(r#"{"verdict": "refuse", "message": "with \u0068ook-secret"}"#).unwrap();
        assert_eq!(refusal, HookAnswer::refuse("with [redacted]"));
        let result = parse(r#"{"verdict": "allow", "result": {"hook-secret": 1}}"#).unwrap();
        assert_eq!(result.result, Some(serde_json::json!({"[redacted]": 1})));
        let error = parse(r#"{"verdict": "hook-secret"}"#).unwrap_err();
        assert!(error.message().contains("[redacted]"), "{error}");
    }

    #[test]
    fn an_answer_has_only_what_its_point_allows() {
        let arguments = HookAnswer::allow().with_arguments(serde_json::json!({}));
        let result = HookAnswer::allow().with_result("text");
        for (answer, allowed) in [
            (HookAnswer::ask(), &[HookPoint::BeforeCall, HookPoint::AfterCall][..]),
            (arguments, &[HookPoint::BeforeCall]),
            (result, &[HookPoint::AfterCall]),
            (HookAnswer::allow().with_messages(serde_json::json!([])), &[HookPoint::BeforeRequest]),
            (
                HookAnswer::allow().with_parameters(serde_json::json!({})),
                &[HookPoint::BeforeRequest],
            ),
            (HookAnswer::allow().with_arguments(serde_json::json!([])), &[]),
        ] {
            for (_, on) in HookPoint::WORDS {
                assert_eq!(answer.check(on).is_ok(), allowed.contains(&on), "{answer:?} {on}");
            }
        }
    }
}
