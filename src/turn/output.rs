//! Typed answers: the schema of a run's answer, and how its value is found in a response.

use std::sync::Arc;

use serde_json::{Value, json};

use super::committed::CommittedTurn;
use crate::tool::{InputSchema, ToolSpec};
use crate::types::{FINAL_ANSWER, FinishKind, InvalidValue, OutputMode, ToolStatus, excerpt};

/// The maximum length of an error in a message to the model, in characters.
const VIOLATION_CHARS: usize = 500;
/// The member that holds the answer in the arguments of `final_answer`, if the answer is no object.
const VALUE: &str = "value";
/// The members of a schema to which references point.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// The rules of a run's typed answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutputRules {
    /// The schema of the answer.
    pub schema: InputSchema,
    /// The way in which the model is asked for it.
    pub mode: OutputMode,
    /// The number of requests that may follow the first one.
    pub retries: u32,
    /// The tool by which a model gives the answer.
    pub final_answer: Arc<ToolSpec>,
}

impl OutputRules {
    /// Compiles a schema.
    ///
    /// # Errors
    /// If it is not a valid JSON schema, or refers to another document.
    pub fn new(schema: &Value, mode: OutputMode, retries: u32) -> Result<Self, InvalidValue> {
        let arguments = if is_object(schema) { schema.clone() } else { object_with_value(schema) };
        let spec = ToolSpec::with_schema(
            FINAL_ANSWER,
            "Gives the final answer. Call it once, when the answer is complete.",
            InputSchema::parse(arguments)?,
        )
        .pure();
        let schema = InputSchema::parse(schema.clone())?;
        Ok(Self { schema, mode, retries, final_answer: Arc::new(spec) })
    }

    /// Returns the value of the answer in a turn: of a valid call of `final_answer`, else of the whole text
    /// or of the content of its only code block.
    ///
    /// # Errors
    /// If no value matches the schema. The error is the reason, for the model.
    pub fn value_of(&self, turn: &CommittedTurn) -> Result<Arc<Value>, String> {
        let mut violation = None;
        for result in turn.results.iter().filter(|result| &*result.call.name == FINAL_ANSWER) {
            if result.outcome.status == ToolStatus::Ok {
                return Ok(self.unwrapped(&result.call.arguments));
            }
            violation.get_or_insert_with(|| result.outcome.content.to_string());
        }
        if let Some(violation) = violation {
            return Err(excerpt(&violation, VIOLATION_CHARS));
        }
        if turn.finish_reason.as_ref().is_some_and(|finish| finish.kind == FinishKind::Length) {
            return Err("the answer was cut off at its maximum length".to_owned());
        }
        let text = turn.message.as_ref().map_or("", |message| message.text.trim());
        self.value_of_text(text)
    }

    fn value_of_text(&self, text: &str) -> Result<Arc<Value>, String> {
        if text.is_empty() {
            return Err("the answer is empty".to_owned());
        }
        let value = match serde_json::from_str::<Value>(text) {
            Ok(value) => value,
            Err(whole) => match only_code_block(text) {
                None => return Err(format!("the answer is not JSON: {whole}")),
                Some(block) => serde_json::from_str(block)
                    .map_err(|error| format!("the code block is not JSON: {error}"))?,
            },
        };
        match self.schema.first_violation(&value) {
            Some(violation) => Err(excerpt(&violation, VIOLATION_CHARS)),
            None => Ok(Arc::new(value)),
        }
    }

    /// Returns the message that asks the model for the answer. `violation` says why the last one was
    /// refused.
    pub(crate) fn instruction(
        &self,
        mode: OutputMode,
        violation: Option<&str>,
        with_schema: bool,
    ) -> String {
        let refused = violation.map(|violation| {
            format!("The last answer does not match the schema of the answer: {violation}. ")
        });
        let request = match mode {
            OutputMode::Tool => "Give the final answer by a call of the tool final_answer.",
            OutputMode::Auto | OutputMode::Native | OutputMode::Prompt => {
                "Give the final answer as one JSON value that matches its schema, without any other text."
            }
        };
        let schema = with_schema.then(|| format!(" The schema: {}", self.schema.as_value()));
        let (refused, schema) = (refused.unwrap_or_default(), schema.unwrap_or_default());
        format!("[callsheet: {refused}{request}{schema}]")
    }

    /// Returns the answer in the arguments of `final_answer`.
    fn unwrapped(&self, arguments: &Arc<Value>) -> Arc<Value> {
        if is_object(self.schema.as_value()) {
            return Arc::clone(arguments);
        }
        Arc::new(arguments.get(VALUE).cloned().unwrap_or_default())
    }
}

fn is_object(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "object")
}

/// Returns the schema of an object whose member is the value. References still find their definitions.
fn object_with_value(schema: &Value) -> Value {
    let mut inner = schema.clone();
    let mut whole = json!({"type": "object", "required": [VALUE], "additionalProperties": false});
    if let (Some(inner), Some(whole)) = (inner.as_object_mut(), whole.as_object_mut()) {
        inner.remove("$schema");
        for name in DEFINITIONS {
            whole.extend(inner.remove(name).map(|found| (name.to_owned(), found)));
        }
    }
    if let Some(whole) = whole.as_object_mut() {
        whole.insert("properties".to_owned(), json!({VALUE: inner}));
    }
    whole
}

/// Returns the content of the only code block of a text. A line of backquotes cannot stand within a JSON
/// value, because a string has no line breaks.
fn only_code_block(text: &str) -> Option<&str> {
    let is_fence = |line: &str| ["```", "~~~"].iter().any(|fence| line.trim().starts_with(fence));
    let (mut found, mut start, mut at) = (None, None, 0);
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        if is_fence(line) {
            match start.take() {
                // A block on one line.
                None if line.trim().len() > 6 && line.trim().ends_with("```") => {
                    let content = line.trim().trim_matches('`');
                    let content = content.strip_prefix("json").unwrap_or(content);
                    if found.replace(content).is_some() {
                        return None;
                    }
                }
                None => start = Some(end),
                Some(from) if found.is_none() => found = text.get(from..at),
                Some(_) => return None,
            }
        }
        at = end;
    }
    found.filter(|_| start.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(schema: &Value) -> OutputRules {
        OutputRules::new(schema, OutputMode::Auto, 2).unwrap()
    }

    fn sum() -> OutputRules {
        rules(
            &json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}),
        )
    }

    #[test]
    fn the_whole_text_or_its_only_code_block_is_the_answer() {
        let ok = |text: &str| sum().value_of_text(text).map(|value| value["sum"].clone());
        for text in [
            "{\"sum\": 7}",
            "```json\n{\"sum\": 7}\n```",
            "The sum is 7.\n\n```\n{\n  \"sum\": 7\n}\n```\nDone.",
            "As asked:\n  ```JSON\n{\"sum\": 7}\n  ```",
            "~~~\n{\"sum\": 7}\n~~~",
            "Here: \n```{\"sum\": 7}```\nDone.",
            "```json {\"sum\": 7} ```",
        ] {
            assert_eq!(ok(text), Ok(json!(7)), "{text}");
        }
        for (text, part) in [
            ("", "empty"),
            ("The sum is 7.", "not JSON"),
            ("{\"sum\": 7} and more", "not JSON"),
            ("```json\n{\"sum\": 7", "not JSON"),
            ("```json\n{\"sum\": 7\n```", "the code block is not JSON"),
            ("```\n{\"sum\": 7}\n```\nor\n```\n{\"sum\": 8}\n```", "not JSON"),
            ("{\"sum\": \"7\"}", "/sum"),
            ("[]", "object"),
        ] {
            let error = ok(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn code_within_a_string_is_no_code_block() {
        let rules = rules(&json!({"type": "object", "properties": {"code": {"type": "string"}}}));
        let text = "```json\n{\"code\": \"```rust\\nfn main() {}\\n```\"}\n```";
        let value = rules.value_of_text(text).unwrap();
        assert_eq!(value["code"], "```rust\nfn main() {}\n```");
    }

    #[test]
    fn an_answer_that_is_no_object_is_a_member_of_the_arguments() {
        let schema = json!({"type": "array", "items": {"$ref": "#/$defs/Item"},
            "$defs": {"Item": {"type": "integer"}}});
        let rules = rules(&schema);
        let input = &rules.final_answer.input;
        assert_eq!(input.first_violation(&json!({"value": [1, 2]})), None);
        assert!(input.first_violation(&json!({"value": ["a"]})).is_some());
        assert!(input.first_violation(&json!([1])).is_some());
        assert_eq!(*rules.unwrapped(&json!({"value": [1]}).into()), json!([1]));
        assert_eq!(*sum().unwrapped(&json!({"sum": 1}).into()), json!({"sum": 1}));
    }

    #[test]
    fn a_schema_of_another_document_is_refused() {
        for schema in [json!({"type": 7}), json!({"$ref": "https://example.com/schema.json"})] {
            assert!(OutputRules::new(&schema, OutputMode::Auto, 2).is_err(), "{schema}");
        }
    }
}
