//! Events of an answer on the Chat Completions wire.

use serde_json::{Value, json};

/// Returns one event of a streamed answer.
pub(crate) fn event(delta: Value, finish: Option<&str>) -> String {
    let body = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    format!("data: {body}\n\n")
}

/// Returns the last event of a streamed answer and the `[DONE]` after it.
pub(crate) fn end(finish: &str) -> String {
    event(json!({}), Some(finish)) + "data: [DONE]\n\n"
}
