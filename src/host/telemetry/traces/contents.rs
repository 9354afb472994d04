//! Message contents of spans: lists of messages as JSON, as the GenAI conventions define them. They are recorded
//! only if the environment enables it.

use serde_json::{Value, json};

use callsheet_values::message::Message;
use callsheet_values::types::{Content, RunEnd, excerpt};
use callsheet_wire::ModelRequest;
use callsheet_wire::response::{ResponseAssembler, parse_arguments};

/// Maximum size of the messages of a request, in bytes of JSON. The last messages are kept.
const MESSAGES_BYTES_MAX: usize = 64 * 1024;

/// Maximum size of the parts of one message, in bytes of JSON, which leaves room for its other members. The first
/// parts are kept.
const PARTS_BYTES_MAX: usize = 63 * 1024;

/// Maximum size of one text and of the arguments of one call, in bytes of JSON. Larger ones are truncated.
const PART_BYTES_MAX: usize = 32 * 1024;

/// Maximum number of characters of one text.
const TEXT_CHARS_MAX: usize = 16 * 1024;

/// Maximum size of a character in bytes of JSON.
const CHAR_BYTES_MAX: usize = 6;

/// Number of characters of a text that fit into [`PART_BYTES_MAX`] in every case, with quotes and an ellipsis.
const SAFE_CHARS_MAX: usize = (PART_BYTES_MAX - "\"…\"".len()) / CHAR_BYTES_MAX;

/// Returns whether this value of `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` enables contents in spans.
/// OpenTelemetry's SDKs for different languages use different values for it.
pub(super) fn is_wanted(value: Option<&str>) -> bool {
    let value = value.unwrap_or_default().trim().to_ascii_lowercase();
    matches!(value.as_str(), "true" | "1" | "span_only" | "span_and_event")
}

/// Returns the messages of a request. The first ones are left out if there are too many.
pub(super) fn input(request: &ModelRequest) -> String {
    let mut list = Vec::new();
    // The opening bracket, and after each message a comma or the closing bracket.
    let mut bytes = 1;
    for message in request.messages.iter().rev() {
        let text = message_json(message).to_string();
        bytes += text.len() + 1;
        if bytes > MESSAGES_BYTES_MAX {
            break;
        }
        list.push(text);
    }
    list.reverse();
    format!("[{}]", list.join(","))
}

/// Returns the system prompt.
pub(super) fn system(request: &ModelRequest) -> Option<String> {
    request.system.as_deref().map(|system| json!([text_part(system)]).to_string())
}

/// Returns a user's message.
pub(super) fn user(content: &Content) -> String {
    json!([{"role": "user", "parts": [text_part(&content.text())]}]).to_string()
}

/// Returns a model's response.
pub(super) fn output(response: &ResponseAssembler, finish_reason: Option<&str>) -> String {
    let texts = [("text", response.text()), ("refusal", response.refusal())];
    let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
    let texts = texts.map(|(kind, text)| json!({"type": kind, "content": text_json(text)}));
    let calls = response.calls().iter().map(|call| {
        let parsed = parse_arguments(&call.raw);
        let arguments = parsed.object().map_or_else(|| text_json(&call.raw), arguments_json);
        json!({"type": "tool_call", "id": call.provider_id, "name": call.name,
            "arguments": arguments})
    });
    let parts = first_parts(texts.chain(calls));
    json!([{"role": "assistant", "parts": parts, "finish_reason": finish_reason}]).to_string()
}

/// Returns a run's final answer. The conventions have no finish reason for most ends of a run, so the name of the end
/// is used.
pub(super) fn answer(answer: &str, end: RunEnd) -> String {
    let finish_reason = if end == RunEnd::Answered { "stop" } else { end.as_str() };
    json!([{"role": "assistant", "parts": [text_part(answer)], "finish_reason": finish_reason}])
        .to_string()
}

/// Truncates a text to [`TEXT_CHARS_MAX`] characters, whatever their size in bytes.
pub(super) fn cut(text: &str) -> String {
    excerpt(text, TEXT_CHARS_MAX)
}

/// Returns a text as a JSON string, truncated to [`TEXT_CHARS_MAX`] characters or, if these would have more than
/// [`PART_BYTES_MAX`] bytes, to [`SAFE_CHARS_MAX`].
fn text_json(text: &str) -> Value {
    let json = Value::from(cut(text));
    let fits = json.to_string().len() <= PART_BYTES_MAX;
    if fits { json } else { excerpt(text, SAFE_CHARS_MAX).into() }
}

/// Returns the arguments of a call. Those with more than [`PART_BYTES_MAX`] bytes become a truncated text.
fn arguments_json(arguments: &Value) -> Value {
    let text = arguments.to_string();
    if text.len() <= PART_BYTES_MAX { arguments.clone() } else { text_json(&text) }
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "content": text_json(text)})
}

/// Returns the first parts, as far as they fit into one message.
fn first_parts(parts: impl Iterator<Item = Value>) -> Vec<Value> {
    let mut bytes = 0;
    let fits = |part: &Value| {
        bytes += part.to_string().len() + 1;
        bytes <= PARTS_BYTES_MAX
    };
    parts.take_while(fits).collect()
}

fn message_json(message: &Message) -> Value {
    match message {
        Message::User { content } | Message::Summary { content } => {
            json!({"role": "user", "parts": [text_part(&content.text())]})
        }
        Message::Assistant(response) => {
            let answer = (!response.text.is_empty()).then(|| text_part(&response.text));
            let calls = response.calls.iter().map(|call| {
                json!({"type": "tool_call", "id": call.id, "name": call.name,
                    "arguments": arguments_json(&call.arguments)})
            });
            let parts = first_parts(answer.into_iter().chain(calls));
            json!({"role": "assistant", "parts": parts})
        }
        Message::Tool { call_id, content, .. } => json!({"role": "tool", "parts": [
            {"type": "tool_call_response", "id": call_id, "response": text_json(content)}]}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_wire::response::ResponseLimits;
    use callsheet_wire::{CallDelta, Delta};

    fn parse(messages: &str) -> Value {
        assert!(messages.len() <= MESSAGES_BYTES_MAX, "{}", messages.len());
        serde_json::from_str(messages).unwrap()
    }

    #[test]
    fn the_last_message_of_a_request_is_truncated_and_not_left_out() {
        for (char, chars) in [("x", TEXT_CHARS_MAX), ("\u{1}", SAFE_CHARS_MAX)] {
            let result = Message::tool_result("c", "f", char.repeat(TEXT_CHARS_MAX + 1));
            let messages = vec![Message::user("Hi."), result];
            let messages = parse(&input(&ModelRequest::new("m", messages.into())));
            assert_eq!(messages[0]["parts"][0]["content"], "Hi.");
            let expected = format!("{}…", char.repeat(chars));
            assert_eq!(messages[1]["parts"][0]["response"], expected);
            assert!(Value::from(expected).to_string().len() <= PART_BYTES_MAX);
        }
    }

    #[test]
    fn the_size_of_the_messages_includes_brackets_and_commas() {
        let messages = vec![Message::user("x"); 2000];
        let text = input(&ModelRequest::new("m", messages.into()));
        let count = parse(&text).as_array().unwrap().len();
        let bytes_of_one = text.len() / count;
        assert!(count < 2000 && text.len() + bytes_of_one > MESSAGES_BYTES_MAX);
    }

    #[test]
    fn a_response_has_its_refusal_and_its_first_calls() {
        let mut response = ResponseAssembler::new(ResponseLimits::default());
        response.push(&Delta::Refusal("No.".into()));
        let small = json!({"a": 1});
        let large = json!({"text": "x".repeat(100_000)});
        for (index, arguments) in (0..).zip([&small, &large, &large, &large, &large, &large]) {
            response.push(&Delta::Call(CallDelta {
                index: Some(index),
                name: Some("f".into()),
                arguments: Some(arguments.to_string()),
                ..CallDelta::default()
            }));
        }
        let messages = parse(&output(&response, Some("tool_calls")));
        let parts = messages[0]["parts"].as_array().unwrap();
        assert_eq!(parts[0], json!({"type": "refusal", "content": "No."}));
        assert_eq!(parts[1]["arguments"], small);
        let expected = cut(&large.to_string());
        assert_eq!(parts[2]["arguments"], expected);
        assert_eq!(parts.len(), 5, "three of the large ones fit");
    }

    #[test]
    fn the_finish_reason_of_an_answer_names_the_end_of_the_run() {
        for (end, expected) in [(RunEnd::Answered, "stop"), (RunEnd::TimedOut, "timed_out")] {
            assert_eq!(parse(&answer("x", end))[0]["finish_reason"], expected);
        }
    }
}
