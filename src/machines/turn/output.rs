//! Typed answers: the schema of a run's answer, and how its value is found in a response: in the first valid call of
//! `final_answer`; if there is no call of it, in the whole text or in the only code block of the text. The text of a
//! response that was cut off has none. `session::run_machine` decides about the requests. The configuration calls a
//! typed answer `output`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::committed::CommittedTurn;
use crate::contract::{ParsedSchema, ToolSpec};
use callsheet_values::types::{
    FINAL_ANSWER, FinishKind, InvalidValue, OutputMode, ToolStatus, excerpt,
};

/// The maximum length of an error in a message to the model, in characters.
const VIOLATION_CHARS_MAX: usize = 500;
/// The member that holds the answer in the arguments of `final_answer`, if the answer is not an object.
const VALUE: &str = "value";
/// The members of a schema that hold definitions.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// The rules of a run's typed answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutputRules {
    /// The schema of the answer.
    pub schema: ParsedSchema,
    /// The way in which the model is asked for it.
    pub mode: OutputMode,
    /// The number of times the answer may be requested again after the first request for it.
    pub retries: u32,
    /// The tool by which a model gives the answer.
    pub final_answer: Arc<ToolSpec>,
}

impl OutputRules {
    /// Compiles the schema of an answer, and creates the tool `final_answer` for it.
    ///
    /// # Errors
    /// If the schema is not a valid JSON schema, or refers to another document.
    pub fn new(schema: &Value, mode: OutputMode, retries: u32) -> Result<Self, InvalidValue> {
        let arguments = if is_object(schema) { schema.clone() } else { object_with_value(schema) };
        let spec = ToolSpec::with_schema(
            FINAL_ANSWER,
            "Gives the final answer. Call it once, when the answer is complete.",
            ParsedSchema::parse(arguments)?,
        )
        .pure();
        let schema = ParsedSchema::parse(schema.clone())?;
        Ok(Self { schema, mode, retries, final_answer: Arc::new(spec) })
    }

    /// Returns the answer of a turn. A valid call of `final_answer` has it in its arguments. If there is no call of
    /// `final_answer`, the answer is the whole text, or the content of the only code block in it.
    ///
    /// # Errors
    /// If there is no valid answer. The error tells the model why.
    pub fn value_of(&self, turn: &CommittedTurn) -> Result<Arc<Value>, String> {
        let mut first_violation = None;
        for result in turn.results.iter().filter(|result| &*result.call.name == FINAL_ANSWER) {
            if result.outcome.status == ToolStatus::Ok {
                return Ok(self.answer_in_arguments(&result.call.arguments));
            }
            first_violation.get_or_insert_with(|| result.outcome.content.to_string());
        }
        if let Some(violation) = first_violation {
            return Err(excerpt(&violation, VIOLATION_CHARS_MAX));
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
            Some(violation) => Err(excerpt(&violation, VIOLATION_CHARS_MAX)),
            None => Ok(Arc::new(value)),
        }
    }

    /// Returns the message that asks the model for the answer. `mode` is the way in which this request asks
    /// for it, `violation` says why the last answer was refused, and the message contains the schema if
    /// `with_schema` is true.
    pub fn instruction(
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
    fn answer_in_arguments(&self, arguments: &Arc<Value>) -> Arc<Value> {
        if is_object(self.schema.as_value()) {
            return Arc::clone(arguments);
        }
        Arc::new(arguments.get(VALUE).cloned().unwrap_or_default())
    }
}

fn is_object(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "object")
}

/// Returns the schema of an object whose member is the value. References in the schema of the value find what
/// they found before: its definitions move to the object, and references to its other parts point to the
/// member.
fn object_with_value(schema: &Value) -> Value {
    let mut inner = schema.clone();
    let mut whole = json!({"type": "object", "required": [VALUE], "additionalProperties": false});
    point_to_member(&mut inner);
    if let (Some(inner), Some(whole)) = (inner.as_object_mut(), whole.as_object_mut()) {
        inner.remove("$schema");
        // `#` would be the schema itself instead of the object.
        inner.remove("$id");
        for name in DEFINITIONS {
            whole.extend(inner.remove(name).map(|found| (name.to_owned(), found)));
        }
    }
    if let Some(whole) = whole.as_object_mut() {
        whole.insert("properties".to_owned(), json!({VALUE: inner}));
    }
    whole
}

/// Changes the references to the schema itself and to its parts other than definitions, because the schema is
/// a member.
fn point_to_member(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get_mut("$ref")
                && is_outside_definitions(reference)
            {
                let pointer = reference.trim_start_matches('#');
                *reference = format!("#/properties/{VALUE}{pointer}");
            }
            members.values_mut().for_each(point_to_member);
        }
        Value::Array(items) => items.iter_mut().for_each(point_to_member),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_outside_definitions(reference: &str) -> bool {
    let Some(pointer) = reference.strip_prefix("#/") else { return matches!(reference, "" | "#") };
    let first = pointer.split('/').next().unwrap_or_default();
    !DEFINITIONS.contains(&first)
}

/// Returns the content of the only code block of a text.
fn only_code_block(text: &str) -> Option<&str> {
    match code_blocks(text)?.as_slice() {
        [block] => Some(*block),
        _ => None,
    }
}

/// Returns the contents of the code blocks of a text. Returns `None` if the last block has no end. A line that
/// starts like a fence is always one, because a string in a JSON value has no line breaks.
fn code_blocks(text: &str) -> Option<Vec<&str>> {
    let is_fence = |line: &str| ["```", "~~~"].iter().any(|fence| line.trim().starts_with(fence));
    let mut blocks = Vec::new();
    let mut block_start = None;
    let mut line_start = 0;
    for line in text.split_inclusive('\n') {
        let line_end = line_start + line.len();
        if is_fence(line) {
            match (block_start.take(), one_line_block(line)) {
                (Some(start), _) => blocks.extend(text.get(start..line_start)),
                (None, Some(block)) => blocks.push(block),
                (None, None) => block_start = Some(line_end),
            }
        }
        line_start = line_end;
    }
    block_start.is_none().then_some(blocks)
}

/// Returns the content of a code block in backquotes that begins and ends on this line.
fn one_line_block(line: &str) -> Option<&str> {
    let block = line.trim();
    if block.len() <= 6 || !block.ends_with("```") {
        return None;
    }
    let content = block.trim_matches('`');
    Some(content.strip_prefix("json").unwrap_or(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(schema: &Value) -> OutputRules {
        OutputRules::new(schema, OutputMode::Auto, 2).unwrap()
    }

    fn sum_rules() -> OutputRules {
        rules(
            &json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}),
        )
    }

    #[test]
    fn the_whole_text_or_its_only_code_block_is_the_answer() {
        let sum_in = |text: &str| sum_rules().value_of_text(text).map(|value| value["sum"].clone());
        for text in [
            "{\"sum\": 7}",
            "```json\n{\"sum\": 7}\n```",
            "The sum is 7.\n\n```\n{\n  \"sum\": 7\n}\n```\nDone.",
            "As asked:\n  ```JSON\n{\"sum\": 7}\n  ```",
            "~~~\n{\"sum\": 7}\n~~~",
            "Here: \n```{\"sum\": 7}```\nDone.",
            "```json {\"sum\": 7} ```",
        ] {
            assert_eq!(sum_in(text), Ok(json!(7)), "{text}");
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
            let error = sum_in(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn code_within_a_string_is_not_a_code_block() {
        let rules = rules(&json!({"type": "object", "properties": {"code": {"type": "string"}}}));
        let text = "```json\n{\"code\": \"```rust\\nfn main() {}\\n```\"}\n```";
        let value = rules.value_of_text(text).unwrap();
        assert_eq!(value["code"], "```rust\nfn main() {}\n```");
    }

    #[test]
    fn an_answer_that_is_not_an_object_is_a_member_of_the_arguments() {
        let schema = json!({"type": "array", "items": {"$ref": "#/$defs/Item"},
            "$defs": {"Item": {"type": "integer"}}});
        let rules = rules(&schema);
        let input = &rules.final_answer.input;
        assert_eq!(input.first_violation(&json!({"value": [1, 2]})), None);
        assert!(input.first_violation(&json!({"value": ["a"]})).is_some());
        assert!(input.first_violation(&json!([1])).is_some());
        assert_eq!(*rules.answer_in_arguments(&json!({"value": [1]}).into()), json!([1]));
        let arguments = json!({"sum": 1});
        assert_eq!(*sum_rules().answer_in_arguments(&arguments.clone().into()), arguments);
    }

    #[test]
    fn references_in_a_schema_that_is_a_member_find_what_they_name() {
        for (schema, valid, invalid) in [
            (
                json!({"type": ["integer", "array"], "items": {"$ref": "#"}}),
                json!([1, [2]]),
                json!([1, ["a"]]),
            ),
            (
                json!({"type": "array", "prefixItems": [{"type": "integer"}],
                    "items": {"$ref": "#/prefixItems/0"}}),
                json!([1, 2]),
                json!([1, "a"]),
            ),
            (
                json!({"type": "array", "items": {"$ref": "#/$defs/Tree"}, "$defs":
                    {"Tree": {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}}}),
                json!([1, [2]]),
                json!(["a"]),
            ),
            (
                json!({"type": "array", "items": {"$ref": "#/$defs"},
                    "$defs": {"items": {"type": "integer"}}}),
                json!([[1]]),
                json!([["a"]]),
            ),
            (
                json!({"$id": "#", "type": "array", "items": {"$ref": "#/$defs/Item"},
                    "$defs": {"Item": {"type": "integer"}}}),
                json!([1]),
                json!(["a"]),
            ),
            (
                json!({"$id": "https://example.com/answer", "type": "array",
                    "items": {"$ref": "#/$defs/Item"}, "$defs": {"Item": {"type": "integer"}}}),
                json!([1]),
                json!(["a"]),
            ),
        ] {
            let rules = rules(&schema);
            let input = &rules.final_answer.input;
            // Some dialects look for definitions at the root only.
            let has_definitions = schema.get("$defs").is_some();
            assert_eq!(input.as_value().get("$defs").is_some(), has_definitions, "{schema}");
            assert_eq!(input.first_violation(&json!({"value": valid})), None, "{schema}");
            assert!(input.first_violation(&json!({"value": invalid})).is_some(), "{schema}");
        }
    }

    #[test]
    fn an_invalid_schema_and_a_reference_to_another_document_are_refused() {
        for schema in [json!({"type": 7}), json!({"$ref": "https://example.com/schema.json"})] {
            assert!(OutputRules::new(&schema, OutputMode::Auto, 2).is_err(), "{schema}");
        }
    }
}
