//! Combines the answers of the hooks that are asked at one point: each sees what the one before left, and the
//! strictest verdict applies.

use std::num::NonZeroU32;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::context::{History, InitialHistory};
use crate::contract::{HookAnswer, HookError, HookInput, ToolSpec};
use callsheet_values::config::{HookFailure, HookRule};
use callsheet_values::message::MessageList;
use callsheet_values::types::{
    HookDecision, HookPoint, HookVerdict, RESULT_BYTES_MAX, excerpt, sha256_hex,
};

/// Maximum number of characters of a message.
const MESSAGE_CHARS_MAX: usize = 2000;
/// The problem of messages that do not end as those of a request do.
const WRONG_END: &str = "they must end with a message of a user or a tool";

/// The effect of a hook's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookOutcome {
    /// The hook has answered with this verdict.
    Answered(HookVerdict),
    /// The hook has failed, which counts as a refusal.
    Failed(HookError),
    /// The hook has failed, and its rule ignores failures.
    FailureIgnored(HookError),
}

impl HookOutcome {
    /// Returns the word for metrics.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Answered(verdict) => verdict.as_str(),
            Self::Failed(_) => "failed",
            Self::FailureIgnored(_) => "failure_ignored",
        }
    }
}

/// The hooks that are asked at one point, in their order.
#[derive(Clone, Debug)]
pub struct HookChain {
    input: HookInput,
    decision: HookDecision,
    /// The tool of the call, whose schema changed arguments have to fit.
    tool: Option<Arc<ToolSpec>>,
    /// The maximum size of changed arguments.
    arguments_bytes_max: usize,
}

impl HookChain {
    /// Returns a chain with the input of the first hook.
    #[must_use]
    pub fn new(input: HookInput, tool: Option<Arc<ToolSpec>>, arguments_bytes_max: usize) -> Self {
        Self { input, decision: HookDecision::default(), tool, arguments_bytes_max }
    }

    /// Returns the input of the next hook.
    #[must_use]
    pub fn input(&self) -> &HookInput {
        &self.input
    }

    /// Handles the answer of the hook with this rule. [`is_over`](Self::is_over) tells whether another one is asked.
    pub fn handle_answer(
        &mut self,
        rule: &HookRule,
        answer: Result<HookAnswer, HookError>,
    ) -> HookOutcome {
        match answer.and_then(|answer| self.check(answer)) {
            Ok(answer) => {
                let verdict = answer.verdict;
                self.apply(rule, answer);
                HookOutcome::Answered(verdict)
            }
            Err(error) if rule.on_failure == HookFailure::Allow => {
                HookOutcome::FailureIgnored(error)
            }
            Err(error) => {
                let message = format!("the hook {} failed: {error}", rule.name);
                self.apply(rule, HookAnswer::refuse(message));
                HookOutcome::Failed(error)
            }
        }
    }

    /// Returns whether no further hook is asked. At the end of a run every hook is notified, because there is nothing
    /// to refuse.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.decision.verdict == HookVerdict::Refuse && self.input.on != HookPoint::RunEnd
    }

    /// Returns the decision. A refusal drops all changes.
    #[must_use]
    pub fn into_decision(self) -> HookDecision {
        let HookDecision { verdict, hook, message, .. } = self.decision;
        match verdict {
            HookVerdict::Refuse => HookDecision { verdict, hook, message, ..Default::default() },
            HookVerdict::Allow | HookVerdict::Ask => {
                HookDecision { verdict, hook, message, ..self.decision }
            }
        }
    }

    fn check(&self, answer: HookAnswer) -> Result<HookAnswer, HookError> {
        answer.check(self.input.on)?;
        let result_bytes = answer.result.as_ref().map_or(0, |result| result.to_string().len());
        if result_bytes > RESULT_BYTES_MAX {
            return Err(HookError::new(format!(
                "the result of its answer has {result_bytes} bytes, more than {RESULT_BYTES_MAX}"
            )));
        }
        if let Some(messages) = &answer.messages {
            changed_messages(messages)?;
            // The request after a response that its service paused ends with this response.
            let may_end_so = self.input.messages.as_deref().is_some_and(ends_with_response);
            if ends_with_response(messages) && !may_end_so {
                return Err(invalid_messages(&WRONG_END));
            }
        }
        if let Some(parameters) = &answer.parameters {
            ChangedParameters::parse(parameters)?;
        }
        let Some(arguments) = &answer.arguments else { return Ok(answer) };
        let bytes = arguments.to_string().len();
        if bytes > self.arguments_bytes_max {
            let maximum = self.arguments_bytes_max;
            return Err(HookError::new(format!(
                "the arguments of its answer have {bytes} bytes, more than max_arguments_bytes = \
                 {maximum}"
            )));
        }
        let tool = self.tool.as_ref();
        match tool.and_then(|tool| tool.input.first_violation(arguments)) {
            Some(violation) => Err(HookError::new(format!(
                "the arguments of its answer do not fit the schema of the tool: {violation}"
            ))),
            None => Ok(answer),
        }
    }

    fn apply(&mut self, rule: &HookRule, answer: HookAnswer) {
        let HookAnswer { verdict, message, arguments, result, messages, parameters, .. } = answer;
        if verdict > self.decision.verdict {
            self.decision.verdict = verdict;
            self.decision.hook = Some(rule.name.as_str().into());
            let message = message.map(|message| excerpt(&message, MESSAGE_CHARS_MAX));
            self.decision.message = message.map(Into::into);
        }
        if let Some(arguments) = arguments.map(Arc::new) {
            self.input.arguments_sha256 = Some(sha256(&arguments));
            self.input.arguments = Some(Arc::clone(&arguments));
            self.decision.arguments = Some(arguments);
        }
        if let Some(result) = result.map(Arc::new) {
            self.input.result = Some(Arc::clone(&result));
            self.decision.result = Some(result);
        }
        if let Some(messages) = messages.map(Arc::new) {
            self.input.messages = Some(Arc::clone(&messages));
            self.decision.messages = Some(messages);
        }
        if let Some(changed) = parameters {
            let mut before = self.input.parameters.as_deref().cloned().unwrap_or_default();
            merge(&mut before, &changed);
            self.input.parameters = Some(Arc::new(before));
            let mut all = self.decision.parameters.as_deref().cloned().unwrap_or_default();
            merge(&mut all, &changed);
            self.decision.parameters = Some(Arc::new(all));
        }
    }
}

/// The parameters that a hook has changed. An absent one stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangedParameters {
    /// The system text.
    pub system: Option<String>,
    /// The sampling temperature.
    pub temperature: Option<f64>,
    /// Maximum length of the answer in tokens.
    pub max_output_tokens: Option<NonZeroU32>,
}

impl ChangedParameters {
    /// Parses the parameters of an answer.
    ///
    /// # Errors
    /// If they are not an object of this form.
    pub fn parse(value: &Value) -> Result<Self, HookError> {
        Self::deserialize(value).map_err(|error| {
            HookError::new(format!("the parameters of its answer are invalid: {error}"))
        })
    }
}

/// Returns the messages of a hook as those of a request.
///
/// # Errors
/// If they are not a list of messages that can be sent to a model.
pub fn changed_messages(value: &Value) -> Result<MessageList, HookError> {
    let messages = value.as_array().ok_or_else(|| invalid_messages(&"they are not a list"))?;
    let parsed = InitialHistory::parse(messages).map_err(|error| invalid_messages(&error))?;
    let history = History::from_initial(parsed);
    if history.messages().is_empty() || history.initial_calls().is_some() {
        return Err(invalid_messages(&WRONG_END));
    }
    Ok(history.request_messages().0)
}

fn invalid_messages(problem: &dyn std::fmt::Display) -> HookError {
    HookError::new(format!("the messages of its answer are invalid: {problem}"))
}

/// Returns whether the last message is one of a model.
fn ends_with_response(messages: &Value) -> bool {
    let last = messages.as_array().and_then(|messages| messages.last());
    last.and_then(|last| last.get("role")).is_some_and(|role| role == "assistant")
}

/// Sets the members of an object in another value, which becomes an object if it is none.
fn merge(object: &mut Value, members: &Value) {
    if !object.is_object() {
        *object = Value::Object(Default::default());
    }
    if let (Some(object), Some(members)) = (object.as_object_mut(), members.as_object()) {
        object.extend(members.clone());
    }
}

/// Returns the SHA-256 of a value (compact JSON with sorted keys) in hexadecimal.
#[must_use]
pub fn sha256(value: &Value) -> String {
    sha256_hex(value.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::contract::ParsedSchema;
    use callsheet_values::types::{RunId, SessionId};

    fn chain(on: HookPoint) -> HookChain {
        let (session, run) = (SessionId::parse("s").unwrap(), RunId("r".into()));
        let mut input = HookInput::new(on, session, run, 1, "default".into());
        input.arguments = Some(Arc::new(json!({ "n": 1 })));
        let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
        let tool = ToolSpec::with_schema("t", "", ParsedSchema::parse(schema).unwrap());
        HookChain::new(input, Some(Arc::new(tool)), 20)
    }

    fn rule(name: &str) -> HookRule {
        HookRule::new(name, HookPoint::BeforeCall)
    }

    #[test]
    fn the_strictest_verdict_applies_with_the_message_of_its_first_hook() {
        let verdicts = [HookAnswer::allow(), HookAnswer::ask(), HookAnswer::refuse("no")];
        for first in &verdicts {
            for second in &verdicts {
                let mut chain = chain(HookPoint::BeforeCall);
                for (name, answer) in [("a", first), ("b", second)] {
                    if !chain.is_over() {
                        chain.handle_answer(&rule(name), Ok(answer.clone()));
                    }
                }
                let decision = chain.into_decision();
                assert_eq!(decision.verdict, first.verdict.max(second.verdict));
                let strictest = if second.verdict > first.verdict { "b" } else { "a" };
                let is_allowed = decision.verdict == HookVerdict::Allow;
                assert_eq!(decision.hook.as_deref(), (!is_allowed).then_some(strictest));
                let is_refused = decision.verdict == HookVerdict::Refuse;
                assert_eq!(decision.message.as_deref(), is_refused.then_some("no"));
            }
        }
    }

    #[test]
    fn each_hook_sees_what_the_one_before_left() {
        let mut before = chain(HookPoint::BeforeCall);
        let changed = HookAnswer::ask().with_arguments(json!({ "n": 2 }));
        before.handle_answer(&rule("a"), Ok(changed));
        assert_eq!(before.input().arguments.as_deref(), Some(&json!({ "n": 2 })));
        assert_eq!(before.input().arguments_sha256, Some(sha256(&json!({ "n": 2 }))));
        before.handle_answer(&rule("b"), Ok(HookAnswer::allow()));
        let decision = before.into_decision();
        assert_eq!(decision.verdict, HookVerdict::Ask);
        assert_eq!(decision.arguments.as_deref(), Some(&json!({ "n": 2 })));
        let mut after = chain(HookPoint::AfterCall);
        after.handle_answer(&rule("a"), Ok(HookAnswer::allow().with_result("short")));
        assert_eq!(after.input().result.as_deref(), Some(&json!("short")));
        assert_eq!(after.into_decision().result.as_deref(), Some(&json!("short")));
    }

    #[test]
    fn messages_end_with_a_response_only_if_those_of_the_request_do() {
        let list = |last: &str| {
            let user = json!({ "role": "user", "content": "go" });
            json!([user, { "role": last, "content": "so" }])
        };
        for (asked, answered, is_valid) in [
            ("user", "user", true),
            ("user", "assistant", false),
            ("assistant", "user", true),
            ("assistant", "assistant", true),
        ] {
            let mut chain = chain(HookPoint::BeforeRequest);
            chain.input.messages = Some(Arc::new(list(asked)));
            let answer = HookAnswer::allow().with_messages(list(answered));
            let outcome = chain.handle_answer(&rule("guard"), Ok(answer));
            let is_answered = matches!(outcome, HookOutcome::Answered(_));
            assert_eq!(is_answered, is_valid, "{asked} {answered}: {outcome:?}");
        }
    }

    #[test]
    fn a_failure_refuses_unless_the_rule_ignores_it() {
        let failures = || {
            [
                Err(HookError::new("it is gone")),
                Ok(HookAnswer::allow().with_arguments(json!({ "n": "two" }))),
                Ok(HookAnswer::allow().with_arguments(json!({ "n": 2, "x": "0123456789" }))),
                Ok(HookAnswer::allow().with_arguments(json!([1]))),
                Ok(HookAnswer::allow().with_result("text")),
            ]
        };
        for failure in failures() {
            let mut chain = chain(HookPoint::BeforeCall);
            let outcome = chain.handle_answer(&rule("guard"), failure);
            assert!(matches!(outcome, HookOutcome::Failed(_)) && chain.is_over());
            let decision = chain.into_decision();
            assert_eq!((decision.verdict, decision.arguments), (HookVerdict::Refuse, None));
            let message = decision.message.unwrap();
            assert!(message.starts_with("the hook guard failed: "), "{message}");
        }
        for failure in failures() {
            let mut chain = chain(HookPoint::BeforeCall);
            let outcome = chain.handle_answer(&rule("guard").allow_on_failure(), failure);
            assert!(matches!(outcome, HookOutcome::FailureIgnored(_)) && !chain.is_over());
            assert_eq!(chain.into_decision(), HookDecision::default());
        }
    }
}
