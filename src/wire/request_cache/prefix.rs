//! Compares the prompt of a request with that of the session's previous request.
//!
//! The prompt is the tools, the system text and the messages. A service that caches it reads only what
//! was appended. Every other change is a break, for which the host must have a reason.

use std::borrow::Cow;

use memchr::memmem;
use serde_json::Value;

use crate::Wire;
use crate::request::{PROMPT_MEMBERS, PromptChange};

/// A breakpoint of Anthropic's cache, in the bytes of a body. Within a text its quotes would be escaped.
const BREAKPOINT: &[u8] = br#","cache_control":{"type":"ephemeral"}"#;

/// The relation of a history to the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Continuation {
    /// It begins with the one before it.
    Continues,
    /// It does except for the last input, to whose text more inputs were joined. A service can read it from its cache
    /// up to that input.
    InputsJoined,
    /// It begins otherwise.
    Breaks,
}

impl Continuation {
    fn of(continues: bool) -> Self {
        if continues { Self::Continues } else { Self::Breaks }
    }
}

/// Returns how the history `after` continues the history `before`. Both arguments are the bytes that follow
/// the elements which the two histories have in common.
pub(super) fn continuation(before: &[u8], after: &[u8]) -> Continuation {
    let is_start = |before: &[u8], after: &[u8]| {
        let rest = after.strip_prefix(before);
        rest.is_some_and(|rest| before.is_empty() || rest.is_empty() || rest.starts_with(b","))
    };
    if is_start(before, after) {
        return Continuation::Continues;
    }
    let (before, after) = (without_breakpoints(before), without_breakpoints(after));
    if is_start(&before, &after) {
        return Continuation::Continues;
    }
    let elements = |bytes: &[u8]| {
        let bytes = bytes.strip_prefix(b",").unwrap_or(bytes);
        serde_json::from_slice::<Vec<Value>>(&[b"[", bytes, b"]"].concat()).ok()
    };
    match elements(&before).zip(elements(&after)) {
        Some((before, after)) => history_continuation(&before, &after),
        None => Continuation::Breaks,
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

/// Returns how the prompt of a body continues that of another one. Slow: parses both.
pub(super) fn body_continuation(history_member: &str, before: &[u8], after: &[u8]) -> Continuation {
    let parse = |body: &[u8]| {
        let mut value = serde_json::from_slice::<Value>(body).ok()?;
        remove_breakpoints(&mut value);
        Some(value)
    };
    let (Some(before), Some(after)) = (parse(before), parse(after)) else {
        return Continuation::Breaks;
    };
    let is_same = |member: &str| before.get(member) == after.get(member);
    let history = |body: &Value| body.get(history_member).and_then(Value::as_array).cloned();
    let (Some(old), Some(new)) = (history(&before), history(&after)) else {
        return Continuation::Breaks;
    };
    match PROMPT_MEMBERS.iter().all(|member| is_same(member)) {
        true => history_continuation(&old, &new),
        false => Continuation::Breaks,
    }
}

fn history_continuation(before: &[Value], after: &[Value]) -> Continuation {
    let Some((last, earlier)) = before.split_last() else { return Continuation::Continues };
    match after.split_at_checked(earlier.len()) {
        Some((kept, [message, ..])) if kept == earlier => message_continuation(last, message),
        Some(_) | None => Continuation::Breaks,
    }
}

/// Returns how a message continues another one. Where inputs of a user that follow each other are one message, it has
/// more parts, or a longer text; a response that its service paused and its continuation are one message too.
fn message_continuation(before: &Value, after: &Value) -> Continuation {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        return Continuation::of(before == after);
    };
    let is_of_user = old.get("role").is_some_and(|role| role == "user");
    let mut continuation = Continuation::Continues;
    for (member, value) in old {
        let has_parts = matches!(member.as_str(), "content" | "parts") && value.is_array();
        match new.get(member) {
            Some(new) if new == value => {}
            Some(new) if has_parts && parts_continue(value, new) => {}
            Some(new) if is_of_user && text_continues(value, new) => {
                continuation = Continuation::InputsJoined;
            }
            Some(_) | None => return Continuation::Breaks,
        }
    }
    continuation
}

/// Returns whether a list of parts begins with another one.
fn parts_continue(before: &Value, after: &Value) -> bool {
    let lists = before.as_array().zip(after.as_array());
    lists.is_some_and(|(before, after)| after.starts_with(before))
}

/// Returns whether a text, or the text of a list of parts, begins with another text.
fn text_continues(before: &Value, after: &Value) -> bool {
    match (before, after) {
        (Value::String(before), Value::String(after)) => after.starts_with(&**before),
        // Texts are joined to one as long as no image is among them.
        (Value::String(before), Value::Array(after)) => {
            let texts = after.iter().map_while(|part| part.get("text")?.as_str());
            texts.collect::<Vec<_>>().join("\n\n").starts_with(&**before)
        }
        _ => false,
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

/// Returns the reason for a break between two requests, given the wires and models of both. `continuation` is not
/// [`Continuation::Continues`].
pub(super) fn reason(
    before: (Wire, &str),
    after: (Wire, &str),
    continuation: Continuation,
    change: Option<PromptChange>,
) -> PromptChange {
    let is_other_model = before != after;
    match change {
        Some(
            change @ (PromptChange::RunOverride | PromptChange::ClientTools | PromptChange::Config),
        ) => change,
        _ if is_other_model => PromptChange::Fallback,
        Some(change) => change,
        None if continuation == Continuation::InputsJoined => PromptChange::InputsJoined,
        None => PromptChange::Unexplained,
    }
}
