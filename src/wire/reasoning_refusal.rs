//! Recognises refusals of a request because of the reasoning of its messages.
//!
//! The wordings are those of public reports: DeepSeek ("The `reasoning_content` in the thinking mode must be passed
//! back to the API.", "Missing `reasoning_content` field in the assistant message at message index 2"), Kimi ("thinking
//! is enabled but reasoning_content is missing in assistant tool call message at index 2"), Groq and Cerebras ("property
//! 'messages.2.assistant.reasoning_content' is unsupported"), Mistral and other services that check with Pydantic
//! ("Extra inputs are not permitted", the member in `loc`), Anthropic ("Expected `thinking` or `redacted_thinking`, but
//! found `tool_use`"), and DeepSeek's endpoint of the same wire ("The `content[].thinking` in the thinking mode must be
//! passed back to the API.").

use serde_json::Value;

use callsheet_values::types::{
    ProviderError, ReasoningField, ReasoningRefusal, ReasoningRefusalKind, one_line,
};

/// Maximum number of bytes of an error that are searched.
const SEARCHED_BYTES_MAX: usize = 8 << 10;
/// Maximum depth of an error's values that are searched.
const DEPTH_MAX: u32 = 10;
/// Maximum number of items of a list that are searched.
const ITEMS_MAX: usize = 16;

/// The members of an error that may name a member of the request. Others may quote the request itself.
const SEARCHED_KEYS: [&str; 19] = [
    "message",
    "detail",
    "details",
    "error",
    "errors",
    "error_message",
    "error_msg",
    "msg",
    "description",
    "title",
    "param",
    "loc",
    "field",
    "code",
    "type",
    "metadata",
    "raw",
    "data",
    "reason",
];

/// Members with names that occur nowhere else.
const FIELDS: [(&str, ReasoningField); 7] = [
    ("reasoning_content", ReasoningField::ReasoningContent),
    ("reasoning content", ReasoningField::ReasoningContent),
    ("reasoning_details", ReasoningField::ReasoningDetails),
    ("reasoning details", ReasoningField::ReasoningDetails),
    ("reasoning_text", ReasoningField::ReasoningText),
    ("reasoning_opaque", ReasoningField::ReasoningText),
    ("redacted_thinking", ReasoningField::Thinking),
];

/// Members whose names are also words and parameters. They count in a path, or quoted in a text about messages.
const AMBIGUOUS_FIELDS: [(&str, ReasoningField); 2] =
    [("reasoning", ReasoningField::Reasoning), ("thinking", ReasoningField::Thinking)];

/// Words of demands that contain words of refusals.
const DEMANDS_OF_A_VALUE: [&str; 7] =
    ["be empty", "be blank", "be null", "be missing", "be omitted", "non-empty", "nonempty"];

const DEMANDS: [&str; 20] = [
    "missing",
    "required",
    "mandatory",
    "expected",
    "expects",
    "passed back",
    "pass back",
    "sent back",
    "must be",
    "must include",
    "must contain",
    "must have",
    "must start",
    "must begin",
    "must provide",
    "should be",
    "should include",
    "needs",
    "need to",
    "provide",
];

const REFUSALS: [&str; 23] = [
    "extra inputs",
    "extra_forbidden",
    "extra field",
    "additional propert",
    "unsupported",
    "not supported",
    "not support",
    "unknown",
    "unrecogni",
    "not recogni",
    "unexpected",
    "not expected",
    "not permitted",
    "not allowed",
    "disallowed",
    "forbidden",
    "not accept",
    "cannot be",
    "can't be",
    "must not",
    "should not",
    "may not",
    "must be removed",
];

/// Finds out whether the service refused the reasoning of the request's messages, and notes it in the error. `value`
/// is the error as JSON.
pub(super) fn note_reasoning_refusal(error: &mut ProviderError, value: Option<&Value>) {
    error.reasoning = find_reasoning_refusal(error, value);
    if error.reasoning.is_some() {
        // The error has a reason, which is not the size of the request.
        error.overflow = None;
    }
}

fn find_reasoning_refusal(
    error: &ProviderError,
    value: Option<&Value>,
) -> Option<ReasoningRefusal> {
    // Gateways wrap the refusal of a service in a status of their own.
    let is_possible = error.status.is_none_or(|status| matches!(status, 400 | 422 | 500 | 502));
    if !is_possible || error.overflow.is_some_and(|overflow| !overflow.of_body) {
        return None;
    }
    let mut text = String::new();
    match value {
        Some(value) => collect_texts(value, DEPTH_MAX, &mut text),
        None => text.push_str(&error.message),
    }
    text.make_ascii_lowercase();
    let field = named_field(&text)?;
    let kind = match direction(&text) {
        Some(kind) => kind,
        None if matches!(error.status, Some(400 | 422)) => ReasoningRefusalKind::Unwanted,
        None => return None,
    };
    Some(ReasoningRefusal { kind, field: Some(field) })
}

/// Appends the texts of an error, one in each line. A path of a member (`loc`) becomes one text.
fn collect_texts(value: &Value, depth: u32, out: &mut String) {
    if out.len() >= SEARCHED_BYTES_MAX {
        return;
    }
    let Some(depth) = depth.checked_sub(1) else { return };
    match value {
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inner @ (Value::Object(_) | Value::Array(_))) => collect_texts(&inner, depth, out),
            Ok(_) | Err(_) => {
                out.push_str(&one_line(text, SEARCHED_BYTES_MAX));
                out.push('\n');
            }
        },
        Value::Array(items) => {
            items.iter().take(ITEMS_MAX).for_each(|item| collect_texts(item, depth, out));
        }
        Value::Object(members) => {
            for (key, value) in members.iter().filter(|(key, _)| SEARCHED_KEYS.contains(&&***key)) {
                let Some(path) = value.as_array().filter(|_| key == "loc") else {
                    collect_texts(value, depth, out);
                    continue;
                };
                for step in path.iter().take(ITEMS_MAX).filter_map(Value::as_str) {
                    out.push('.');
                    out.push_str(step);
                }
                out.push('\n');
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns the member that a text in lower case names.
fn named_field(text: &str) -> Option<ReasoningField> {
    let found = FIELDS.iter().find(|(name, _)| text.contains(name)).map(|(_, field)| *field);
    found.or_else(|| {
        let is_about_messages = ["message", "assistant", "content"].map(|word| text.contains(word));
        let is_about_messages = is_about_messages.contains(&true);
        let is_named = |name: &str| {
            text.match_indices(name).any(|(at, _)| {
                let before = text.get(..at).and_then(|before| before.chars().next_back());
                let after = text.get(at + name.len()..).and_then(|after| after.chars().next());
                let is_whole = after.is_none_or(|c| !c.is_alphanumeric() && !"_.[-".contains(c));
                let is_quoted = before.is_some_and(|c| "'\"`".contains(c))
                    && after.is_some_and(|c| "'\"`".contains(c));
                is_whole && (before == Some('.') || (is_quoted && is_about_messages))
            })
        };
        AMBIGUOUS_FIELDS.iter().find(|(name, _)| is_named(name)).map(|(_, field)| *field)
    })
}

/// Returns what a text in lower case says about the member: the first known word decides. The words with which Groq
/// begins each list of faults are no demand.
fn direction(text: &str) -> Option<ReasoningRefusalKind> {
    let text = &*text.replace("the following must be satisfied", "");
    if DEMANDS_OF_A_VALUE.iter().any(|words| text.contains(words)) {
        return Some(ReasoningRefusalKind::Missing);
    }
    let first = |words: &[&str]| words.iter().filter_map(|words| text.find(words)).min();
    match (first(&DEMANDS), first(&REFUSALS)) {
        (Some(demand), Some(refusal)) if demand < refusal => Some(ReasoningRefusalKind::Missing),
        (_, Some(_)) => Some(ReasoningRefusalKind::Unwanted),
        (Some(_), None) => Some(ReasoningRefusalKind::Missing),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http_error;
    use ReasoningField::{Reasoning, ReasoningContent, ReasoningDetails, Thinking};
    use ReasoningRefusalKind::{Missing, Unwanted};

    #[track_caller]
    fn check(status: u16, body: &str, expected: Option<(ReasoningRefusalKind, ReasoningField)>) {
        let found = http_error(status, body).reasoning;
        let expected = expected.map(|(kind, field)| ReasoningRefusal { kind, field: Some(field) });
        assert_eq!(found, expected, "{status} {body}");
    }

    #[track_caller]
    fn check_message(message: &str, expected: Option<(ReasoningRefusalKind, ReasoningField)>) {
        let error = json!({"message": message, "type": "invalid_request_error", "code": null});
        check(400, &json!({ "error": error }).to_string(), expected);
        check(400, message, expected);
    }

    #[test]
    fn demands_are_recognised() {
        for message in [
            "The `reasoning_content` in the thinking mode must be passed back to the API.",
            "The reasoning content in the thinking mode must be passed back to the API.",
            "Missing `reasoning_content` field in the assistant message at message index 112. For more information, see",
            "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
            "messages[3].reasoning_content: Field required",
            "reasoning_content must not be empty",
            "messages.2: reasoning_content cannot be empty for assistant messages",
        ] {
            check_message(message, Some((Missing, ReasoningContent)));
        }
        check_message("each assistant message must have 'reasoning'", Some((Missing, Reasoning)));
        for message in [
            "The `content[].thinking` in the thinking mode must be passed back to the API.",
            "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
        ] {
            check_message(message, Some((Missing, Thinking)));
        }
    }

    #[test]
    fn refusals_of_the_member_are_recognised() {
        for message in [
            "messages.2.assistant.reasoning_content: property 'messages.2.assistant.reasoning_content' is unsupported",
            "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property 'reasoning_content' is unsupported)]",
            "Unknown parameter: 'messages[1].reasoning_content'.",
            "Unrecognized key(s) in object: 'reasoning_content'",
            "The reasoning_content field must not be in the input messages",
            "messages[1].reasoning_content is wrong",
        ] {
            check_message(message, Some((Unwanted, ReasoningContent)));
        }
        check_message(
            "Extra inputs are not permitted, field: 'messages[8].reasoning', value: 'It is missing.'",
            Some((Unwanted, Reasoning)),
        );
        check_message(
            "messages.1.content.0: Invalid `signature` in `thinking` block",
            Some((Unwanted, Thinking)),
        );
        check_message(
            "reasoning_details is not allowed in assistant messages",
            Some((Unwanted, ReasoningDetails)),
        );
    }

    #[test]
    fn the_member_is_found_in_every_form_of_an_error() {
        let item = json!({"type": "extra_forbidden", "msg": "Extra inputs are not permitted",
            "loc": ["body", "messages", 2, "assistant", "reasoning"], "input": "required"});
        let body = json!({"object": "error", "message": {"detail": [item]}});
        check(422, &body.to_string(), Some((Unwanted, Reasoning)));
        let item = json!({"type": "missing", "msg": "Field required",
            "loc": ["body", "messages", 2, "reasoning_content"]});
        check(422, &json!({"detail": [item]}).to_string(), Some((Missing, ReasoningContent)));
        let raw = json!({"error": {"message": "Missing `reasoning_content` field"}}).to_string();
        let body = json!({"error": {"message": "Provider returned error", "code": 400,
            "metadata": {"raw": raw, "provider_name": "DeepSeek"}}});
        check(400, &body.to_string(), Some((Missing, ReasoningContent)));
        let body = json!({"error": "Internal server error",
            "details": "400 thinking is enabled but reasoning_content is missing at index 50"});
        check(500, &body.to_string(), Some((Missing, ReasoningContent)));
        let body = json!({"message": "property is unsupported", "param": "messages.1.reasoning"});
        check(400, &body.to_string(), Some((Unwanted, Reasoning)));
    }

    #[test]
    fn other_errors_are_no_refusals_of_reasoning() {
        for message in [
            "Unsupported parameter: 'reasoning'",
            "Unsupported value: 'reasoning_effort' does not support 'minimal'",
            "`max_tokens` must be greater than `thinking.budget_tokens`",
            "thinking.type: Input should be 'enabled' or 'disabled'",
            "Thinking mode does not support this tool_choice",
            "\"qwen2.5\" does not support thinking",
            "messages.0.content.1: the text must be a string",
            "",
        ] {
            check_message(message, None);
        }
        let echo = json!({"detail": [{"type": "missing", "loc": ["body", "model"],
            "msg": "Field required", "input": {"messages": [{"reasoning_content": "hm"}]}}]});
        check(422, &echo.to_string(), None);
        check(401, "Missing `reasoning_content` field", None);
        check(429, "Missing `reasoning_content` field", None);
        check(500, "the model wrote reasoning_content", None);
        let overflow = "This model's maximum context length is 8192 tokens. However, your messages \
            (with reasoning_content) resulted in 9000 tokens. Please reduce the length of the messages.";
        check(400, overflow, None);
    }
}
