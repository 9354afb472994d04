//! Reads the messages of servers.
//!
//! A message that is nearly JSON (with half a surrogate pair as an escape, or bytes that are no UTF-8, with `NaN` or
//! numbers out of range, or nested more than 120 levels deep) is read with replacements, so that a call is what the
//! server says; a result gets a note about them.

use std::borrow::Cow;

use futures::StreamExt as _;
use memchr::memmem;
use rmcp::model::ServerJsonRpcMessage;
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use serde_json::{Map, Value, json};

use callsheet_values::types::excerpt;
use callsheet_wire::{repair_tokens, replace_lone_surrogates};

/// Maximum number of levels of a message. `serde_json` reads at most 127.
const DEPTH_MAX: usize = 120;

/// The key of the note in the metadata of a result.
const NOTE_KEY: &str = "io.callsheet/repaired";

/// Maximum number of characters of the note.
const NOTE_CHARS_MAX: usize = 300;

/// The member of a tool's `execution` that says whether it runs as a task, and its key in the tool's metadata, where
/// the library keeps it.
const TASK_SUPPORT: &str = "taskSupport";
const TASK_SUPPORT_KEY: &str = "io.callsheet/task-support";

/// Reads a message. `None` if it is none, and cannot be repaired.
pub(super) fn read_message(json: &[u8]) -> Option<ServerJsonRpcMessage> {
    let message = serde_json::from_slice(json).ok();
    if message.is_some() && memmem::find(json, TASK_SUPPORT.as_bytes()).is_none() {
        return message;
    }
    let adapted = adapted_message(json).and_then(|adapted| serde_json::from_value(adapted).ok());
    adapted.or(message)
}

/// Adapts the messages of an event stream, which the library reads.
pub(super) fn adapt_events(events: BoxedSseResponse) -> BoxedSseResponse {
    let adapted = events.map(|event| {
        event.map(|mut event| {
            let message = event.data.as_deref().and_then(|data| adapted_message(data.as_bytes()));
            if let Some(message) = message {
                event.data = Some(message.to_string());
            }
            event
        })
    });
    adapted.boxed()
}

/// Returns a message with what the library would not read or keep: repaired if it is nearly JSON, and with the
/// `taskSupport` of its tools in their metadata. `None` if nothing is to be changed.
pub(super) fn adapted_message(json: &[u8]) -> Option<Value> {
    let mut repaired = repaired_message(json);
    if memmem::find(json, TASK_SUPPORT.as_bytes()).is_some() {
        repaired = repaired.or_else(|| serde_json::from_slice(json).ok());
        repaired.as_mut().map(keep_task_support);
    }
    repaired
}

fn keep_task_support(message: &mut Value) {
    let tools = message.pointer_mut("/result/tools").and_then(Value::as_array_mut);
    for tool in tools.into_iter().flatten().filter_map(Value::as_object_mut) {
        let support = tool.get("execution").and_then(|execution| execution.get(TASK_SUPPORT));
        if let Some(support) = support.cloned() {
            insert_meta(tool, TASK_SUPPORT_KEY, support);
        }
    }
}

/// Returns whether a listed tool can only run as a task.
pub(super) fn needs_task(tool: &Value) -> bool {
    tool["_meta"][TASK_SUPPORT_KEY] == "required"
}

/// Repairs a message of the protocol. A result that is an object has a note about the replacements, which
/// [`repair_note`] returns. `None` if nothing is to be replaced, or the text is no message all the same.
fn repaired_message(json: &[u8]) -> Option<Value> {
    let text = String::from_utf8_lossy(json);
    let characters = replace_lone_surrogates(&text);
    let tokens = repair_tokens(&characters);
    let shallow = cut_depth(&tokens);
    let is_new = |text: &Cow<'_, str>| matches!(text, Cow::Owned(_));
    if ![&text, &characters, &tokens, &shallow].into_iter().any(is_new) {
        return None;
    }
    let changes = [
        (is_new(&text) || is_new(&characters), "characters that are not valid became U+FFFD"),
        (
            count_nulls(&tokens) > count_nulls(&characters),
            "numbers that JSON does not have (NaN, too large) became null",
        ),
        (is_new(&shallow), "what was nested too deep became null"),
    ];
    let mut message: Value = serde_json::from_str(&shallow).ok()?;
    if !message.as_object()?.contains_key("jsonrpc") {
        return None;
    }
    let made = changes.iter().filter(|(is_made, _)| *is_made).map(|(_, change)| *change);
    let made = made.collect::<Vec<_>>().join("; ");
    let result = message.get_mut("result").and_then(Value::as_object_mut);
    if let Some(result) = result.filter(|_| !made.is_empty()) {
        insert_meta(result, NOTE_KEY, made.into());
    }
    Some(message)
}

/// Returns the note about the replacements in a result.
pub(super) fn repair_note(result: &Value) -> Option<String> {
    let made = result.get("_meta")?.get(NOTE_KEY)?.as_str()?;
    let made = excerpt(made, NOTE_CHARS_MAX);
    Some(format!("[the server's answer was not valid JSON: {made}]"))
}

fn insert_meta(members: &mut Map<String, Value>, key: &str, value: Value) {
    let meta = members.entry("_meta").or_insert_with(|| json!({}));
    if let Some(meta) = meta.as_object_mut() {
        meta.insert(key.to_owned(), value);
    }
}

fn count_nulls(json: &str) -> usize {
    json.matches("null").count()
}

/// Replaces each array and object on a level below [`DEPTH_MAX`] by null.
fn cut_depth(json: &str) -> Cow<'_, str> {
    let mut cut = String::new();
    let (mut copied, mut depth, mut in_string, mut is_escaped) = (0, 0_usize, false, false);
    for (at, byte) in json.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                if depth == DEPTH_MAX + 1 {
                    cut.push_str(json.get(copied..at).unwrap_or_default());
                    cut.push_str("null");
                }
            }
            b'}' | b']' if !in_string => {
                if depth == DEPTH_MAX + 1 {
                    copied = at + 1;
                }
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    cut.push_str(json.get(copied..).unwrap_or_default());
    Cow::Owned(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(text: &str) -> Option<Value> {
        let answer = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{text}}}"#);
        let mut message = adapted_message(answer.as_bytes())?;
        Some(message["result"].take())
    }

    #[test]
    fn a_message_is_repaired_with_a_note() {
        for (text, value, note) in [
            (r#""\ud83d\ude00 \ud83d""#, json!("😀 \u{fffd}"), "characters"),
            (r#""\udc00\\ud83d""#, json!("\u{fffd}\\ud83d"), "characters"),
            ("[NaN,-Infinity,1e999,1]", json!([null, null, null, 1]), "numbers"),
            (r#"["NaN",NaN]"#, json!(["NaN", null]), "numbers"),
        ] {
            let repaired = result(&format!(r#"{{"v":{text}}}"#)).unwrap();
            assert_eq!(repaired["v"], value, "{text}");
            assert!(repair_note(&repaired).unwrap().contains(note), "{repaired}");
        }
        let both = result(r#"{"_meta":{"a":1},"v":["\ud83d",NaN]}"#).unwrap();
        assert_eq!(
            repair_note(&both).unwrap(),
            "[the server's answer was not valid JSON: characters that are not valid became U+FFFD; \
             numbers that JSON does not have (NaN, too large) became null]"
        );
        assert_eq!(both["_meta"]["a"], 1);
    }

    #[test]
    fn bytes_that_are_no_characters_are_replaced() {
        let answer = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"v\":\"a\xff\"}}";
        let message = adapted_message(answer).unwrap();
        assert_eq!(message["result"]["v"], "a\u{fffd}");
        assert!(repair_note(&message["result"]).is_some());
    }

    #[test]
    fn the_task_support_of_a_tool_is_kept() {
        let tool = |support: &str| json!({"name": "a", "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}});
        let tools = json!([tool("required"), tool("optional"), {"name": "b", "inputSchema": {}}]);
        let list = json!({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}}).to_string();
        let list = read_message(list.as_bytes()).unwrap();
        let list = serde_json::to_value(list).unwrap();
        let needed = list["result"]["tools"].as_array().unwrap().iter().map(needs_task);
        assert_eq!(needed.collect::<Vec<_>>(), [true, false, false]);
    }

    #[test]
    fn a_control_character_is_kept_without_a_note() {
        let repaired = result("{\"v\":\"a\tb\"}").unwrap();
        assert_eq!(repaired, json!({"v": "a\tb"}));
    }

    #[test]
    fn valid_and_hopeless_texts_are_not_repaired() {
        for text in [r#"{"v":[1,"\ud83d\ude00�"]}"#, "{", "{]", r#"{"v":NaNa}"#] {
            assert_eq!(result(text), None, "{text}");
        }
        assert_eq!(repaired_message(br#"{"level":"info","value":NaN}"#), None);
        assert_eq!(repaired_message(b"NaN"), None);
    }

    #[test]
    fn what_is_nested_too_deep_is_null_and_its_neighbours_stay() {
        let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        let level = |levels| result(&format!(r#"{{"a":{},"b":["]"]}}"#, deep(levels)));
        assert_eq!(level(DEPTH_MAX - 2), None);
        for levels in [DEPTH_MAX - 1, 300, 100_000] {
            let repaired = level(levels).unwrap();
            assert_eq!(repaired["b"], json!(["]"]));
            assert!(repair_note(&repaired).unwrap().contains("nested too deep"), "{levels}");
            let cut = format!("{}null{}", "[".repeat(DEPTH_MAX - 2), "]".repeat(DEPTH_MAX - 2));
            assert_eq!(repaired["a"].to_string(), cut);
        }
    }
}
