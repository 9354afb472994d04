//! Compares the prompt of a request with that of the session's previous request.
//!
//! The prompt is the tools, the system text and the messages. A service that caches it reads only what
//! was appended. Every other change is a break, for which the host must have a reason.

use std::borrow::Cow;

use memchr::memmem;
use serde_json::Value;

use crate::wire::Wire;
use crate::wire::request::{PROMPT_MEMBERS, PromptChange};

/// A breakpoint of Anthropic's cache, in the bytes of a body. Within a text its quotes would be escaped.
const BREAKPOINT: &[u8] = br#","cache_control":{"type":"ephemeral"}"#;

/// Returns whether the history `after` continues the history `before`. Both arguments are the bytes that follow
/// the elements which the two histories have in common.
pub(super) fn continues(before: &[u8], after: &[u8]) -> bool {
    let is_start = |before: &[u8], after: &[u8]| {
        let rest = after.strip_prefix(before);
        rest.is_some_and(|rest| before.is_empty() || rest.is_empty() || rest.starts_with(b","))
    };
    if is_start(before, after) {
        return true;
    }
    let (before, after) = (without_breakpoints(before), without_breakpoints(after));
    is_start(&before, &after) || {
        let elements = |bytes: &[u8]| {
            let bytes = bytes.strip_prefix(b",").unwrap_or(bytes);
            serde_json::from_slice::<Vec<Value>>(&[b"[", bytes, b"]"].concat()).ok()
        };
        let (before, after) = (elements(&before), elements(&after));
        before.zip(after).is_some_and(|(before, after)| history_continues(&before, &after))
    }
}

fn without_breakpoints(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut positions = memmem::find_iter(bytes, BREAKPOINT).peekable();
    if positions.peek().is_none() {
        return Cow::Borrowed(bytes);
    }
    let mut kept = Vec::with_capacity(bytes.len());
    let mut from = 0;
    for position in positions {
        kept.extend_from_slice(bytes.get(from..position).unwrap_or_default());
        from = position + BREAKPOINT.len();
    }
    kept.extend_from_slice(bytes.get(from..).unwrap_or_default());
    Cow::Owned(kept)
}

/// Returns whether the prompt of a body continues that of another one. Slow: parses both.
pub(super) fn body_continues(history_member: &str, before: &[u8], after: &[u8]) -> bool {
    let parse = |body: &[u8]| {
        let mut value = serde_json::from_slice::<Value>(body).ok()?;
        remove_breakpoints(&mut value);
        Some(value)
    };
    let (Some(before), Some(after)) = (parse(before), parse(after)) else { return false };
    let is_same = |member: &str| before.get(member) == after.get(member);
    let history = |body: &Value| body.get(history_member).and_then(Value::as_array).cloned();
    let (Some(old), Some(new)) = (history(&before), history(&after)) else { return false };
    PROMPT_MEMBERS.iter().all(|member| is_same(member)) && history_continues(&old, &new)
}

fn history_continues(before: &[Value], after: &[Value]) -> bool {
    let Some((last, earlier)) = before.split_last() else { return true };
    let Some((kept, rest)) = after.split_at_checked(earlier.len()) else { return false };
    kept == earlier && rest.first().is_some_and(|message| message_continues(last, message))
}

/// Returns whether a message is another one with more at its end: on most wires, the inputs of a user that
/// follow each other are one message, and so are a response that its service paused and its continuation.
fn message_continues(before: &Value, after: &Value) -> bool {
    let (Value::Object(old), Value::Object(new)) = (before, after) else { return before == after };
    let is_of_user = old.get("role").is_some_and(|role| role == "user");
    let grows = |member: &str, value: &Value| {
        is_of_user || (matches!(member, "content" | "parts") && value.is_array())
    };
    before == after
        || old.iter().all(|(member, value)| {
            new.get(member).is_some_and(|new| {
                new == value || (grows(member, value) && content_continues(value, new))
            })
        })
}

/// Returns whether a text or a list of parts begins with another one.
fn content_continues(before: &Value, after: &Value) -> bool {
    match (before, after) {
        (Value::String(before), Value::String(after)) => after.starts_with(&**before),
        (Value::Array(before), Value::Array(after)) => after.starts_with(before),
        // Texts are joined to one as long as no image is among them.
        (Value::String(before), Value::Array(after)) => {
            let texts = after.iter().map_while(|part| part.get("text")?.as_str());
            texts.collect::<Vec<_>>().join("\n\n").starts_with(&**before)
        }
        (before, after) => before == after,
    }
}

fn remove_breakpoints(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(remove_breakpoints),
        Value::Object(members) => {
            members.remove("cache_control");
            members.values_mut().for_each(remove_breakpoints);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns the reason for a break between two requests, given the wires and models of both.
pub(super) fn reason(
    before: (Wire, &str),
    after: (Wire, &str),
    change: Option<PromptChange>,
) -> PromptChange {
    let is_other_model = before != after;
    match change {
        Some(
            change @ (PromptChange::RunOverride | PromptChange::ClientTools | PromptChange::Config),
        ) => change,
        _ if is_other_model => PromptChange::Fallback,
        Some(change) => change,
        None => PromptChange::Unexplained,
    }
}
