//! Parses the initial messages of a session, in the Chat Completions form.

use std::sync::Arc;

use serde::Deserialize as _;
use serde_json::{Map, Value};

use callsheet_values::message::{Message, ResultContent};
use callsheet_values::record::ResponseMessage;
use callsheet_values::types::{
    CALLS_MAX, CallKey, Content, MessagePart, ReasoningField, ToolCall, excerpt,
};

/// Maximum number of initial messages.
pub const INITIAL_MESSAGES_MAX: usize = 10_000;

/// Maximum number of characters of an input that an error quotes.
const QUOTE_CHARS: usize = 64;

/// The members of an assistant's message that hold the text of its reasoning.
const TEXT_FIELDS: [ReasoningField; 4] = [
    ReasoningField::ReasoningContent,
    ReasoningField::Reasoning,
    ReasoningField::ReasoningText,
    ReasoningField::Thinking,
];

const REASONING_DETAILS: &str = "reasoning_details";
const REASONING_OPAQUE: &str = "reasoning_opaque";
/// The member of the metadata that names the member of the reasoning.
const REASONING_FIELD: &str = "reasoning_field";

/// All members of an assistant's message that hold reasoning.
const REASONING_KEYS: [&str; 6] = [
    "reasoning_content",
    "reasoning",
    "reasoning_text",
    "thinking",
    REASONING_DETAILS,
    REASONING_OPAQUE,
];

/// Parsed initial messages, which satisfy the pairing rule. Only calls of the last message have no results yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitialHistory {
    /// The messages, without the last one if it has calls.
    pub(super) messages: Vec<Arc<Message>>,
    /// The last message, if it has calls. The session's first turn runs them.
    pub(super) initial_calls: Option<Arc<ResponseMessage>>,
}

/// An error in the initial messages: location and problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {problem}")]
pub struct InitialHistoryError {
    /// The path of the invalid value, such as `messages[2].content`.
    location: String,
    problem: String,
}

impl InitialHistory {
    /// Parses messages of users, assistants and tools. `content` is a string or a list of text parts,
    /// which are joined by line feeds. A list of a user or a tool may also contain images; then it stays a list.
    /// An unknown member of a text part is ignored if the content is an assistant's, or a tool's without images.
    /// Otherwise it is an error, unless its value is `null`.
    ///
    /// `metadata` has the form that the host writes:
    /// - A tool's is kept.
    /// - Of an assistant's, the reasoning and its members are kept: `reasoning`, `reasoning_field`,
    ///   `reasoning_details` and `reasoning_opaque`. `hint_size` is kept if the message has no calls and the size is a
    ///   character boundary of the text. The rest is dropped.
    /// - A user's is ignored, so a summary becomes a user message.
    ///
    /// The reasoning of an assistant's message may also be in the members in which services send it:
    /// `reasoning_content`, `reasoning`, `reasoning_text`, `thinking`, `reasoning_details` and `reasoning_opaque`. It is
    /// sent back in these. Of several texts, the first in this order that is not empty counts.
    ///
    /// # Errors
    /// If a message is invalid or violates the pairing rule: each call needs exactly one result
    /// before the next user or assistant message, except for the calls of the last message. Reports the first
    /// problem found. A missing result is found only after the next user or assistant message has been parsed, or
    /// at the end.
    pub fn parse(values: &[Value]) -> Result<Self, InitialHistoryError> {
        if values.len() > INITIAL_MESSAGES_MAX {
            let count = values.len();
            return Err(InitialHistoryError {
                location: "messages".to_owned(),
                problem: format!("must be at most {INITIAL_MESSAGES_MAX} messages, not {count}"),
            });
        }
        let mut messages = Vec::with_capacity(values.len());
        let mut calls = PrecedingCalls::default();
        for (index, value) in values.iter().enumerate() {
            let message =
                parse_message(value, &mut calls).map_err(|problem| problem.in_message(index))?;
            match &message {
                Message::Tool { .. } => {}
                // A summary is never parsed; the arm is for completeness.
                Message::User { .. } | Message::Summary { .. } => {
                    calls.check_results()?;
                    calls = PrecedingCalls::default();
                }
                Message::Assistant(message) => {
                    calls.check_results()?;
                    calls = PrecedingCalls::new(index, &message.calls);
                }
            }
            messages.push(Arc::new(message));
        }
        let initial_calls = match messages.last().map(Arc::as_ref) {
            Some(Message::Assistant(message)) if !message.calls.is_empty() => {
                Some(Arc::new(first_response(message)))
            }
            Some(_) | None => None,
        };
        match &initial_calls {
            Some(_) => drop(messages.pop()),
            None => calls.check_results()?,
        }
        Ok(Self { messages, initial_calls })
    }
}

/// Creates the response of the session's first turn.
fn first_response(message: &ResponseMessage) -> ResponseMessage {
    let calls = message.calls.iter().map(|call| ToolCall {
        key: CallKey { turn: 1, attempt: 1, index: call.key.index },
        ..call.clone()
    });
    ResponseMessage { calls: calls.collect(), ..message.clone() }
}

/// The calls of the last assistant message, for which results may follow. Empty after a user message.
#[derive(Debug, Default)]
struct PrecedingCalls {
    /// The index of the assistant message.
    message: usize,
    calls: Vec<PrecedingCall>,
}

#[derive(Debug)]
struct PrecedingCall {
    id: String,
    name: String,
    has_result: bool,
}

impl PrecedingCalls {
    fn new(message: usize, calls: &[ToolCall]) -> Self {
        let calls = calls.iter().map(|call| PrecedingCall {
            id: call.id.to_string(),
            name: call.name.to_string(),
            has_result: false,
        });
        Self { message, calls: calls.collect() }
    }

    /// Records that a result was read, and returns the name of the call's tool.
    fn add_result(&mut self, id: &str) -> Result<String, MessageProblem> {
        let quoted = excerpt(id, QUOTE_CHARS);
        let Some(call) = self.calls.iter_mut().find(|call| call.id == id) else {
            return Err(invalid(
                "",
                format!(
                    "tool_call_id {quoted:?} must be the id of a call in the last assistant message \
                     and follow it without a user message between"
                ),
            ));
        };
        if std::mem::replace(&mut call.has_result, true) {
            return Err(invalid("", format!("call {quoted:?} must not have a second result")));
        }
        Ok(call.name.clone())
    }

    /// Checks that every call has a result.
    fn check_results(&self) -> Result<(), InitialHistoryError> {
        match self.calls.iter().find(|call| !call.has_result) {
            None => Ok(()),
            Some(PrecedingCall { id, .. }) => {
                let id = excerpt(id, QUOTE_CHARS);
                let problem = format!(
                    "call {id:?} must have a result before the next user or assistant message"
                );
                Err(invalid("", problem).in_message(self.message))
            }
        }
    }
}

/// A problem within a message, and its position there.
#[derive(Debug)]
struct MessageProblem {
    path: String,
    problem: String,
}

fn invalid(path: impl Into<String>, problem: impl Into<String>) -> MessageProblem {
    MessageProblem { path: path.into(), problem: problem.into() }
}

impl MessageProblem {
    fn in_message(self, index: usize) -> InitialHistoryError {
        InitialHistoryError {
            location: format!("messages[{index}]{}", self.path),
            problem: self.problem,
        }
    }
}

fn parse_message(value: &Value, calls: &mut PrecedingCalls) -> Result<Message, MessageProblem> {
    let Value::Object(fields) = value else { return Err(invalid("", "must be an object")) };
    let role = fields.get("role").ok_or_else(|| invalid("", "must have a \"role\""))?;
    match role.as_str() {
        Some("user") => parse_user(fields),
        Some("assistant") => parse_assistant(fields),
        Some("tool") => parse_tool(fields, calls),
        Some("system" | "developer") => Err(invalid(
            ".role",
            "must be \"user\", \"assistant\" or \"tool\": the system prompt is set in the agent",
        )),
        Some(_) | None => {
            let role = excerpt(&role.to_string(), QUOTE_CHARS);
            Err(invalid(
                ".role",
                format!("must be \"user\", \"assistant\" or \"tool\", not {role}"),
            ))
        }
    }
}

fn parse_user(fields: &Map<String, Value>) -> Result<Message, MessageProblem> {
    check_keys(fields, &["role", "content", "metadata"], "")?;
    let content = match fields.get("content") {
        None | Some(Value::Null) => Content::default(),
        Some(content) => Content::parse(content).map_err(|error| {
            let part = error.part().map(|at| format!("[{at}]")).unwrap_or_default();
            invalid(format!(".content{part}"), error.problem())
        })?,
    };
    if content.is_blank() {
        return Err(invalid(".content", "must not be empty"));
    }
    let is_text = content.parts().iter().all(|part| part.as_text().is_some());
    let content = if is_text { content.text().into_owned().into() } else { content };
    Ok(Message::User { content })
}

fn parse_assistant(fields: &Map<String, Value>) -> Result<Message, MessageProblem> {
    let known = ["role", "content", "tool_calls", "metadata"];
    check_keys(fields, &[&known[..], &REASONING_KEYS].concat(), "")?;
    let text = parse_text_content(fields)?.unwrap_or_default();
    let metadata = parse_metadata(fields)?;
    let (reasoning, members) = parse_reasoning(fields, &metadata)?;
    let calls = match fields.get("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(calls)) => parse_calls(calls)?,
        Some(_) => return Err(invalid(".tool_calls", "must be a list")),
    };
    if text.is_empty() && calls.is_empty() {
        return Err(invalid("", "must have content or tool_calls"));
    }
    // Only the log of a run has a hint, and it has no calls. A wrong size is ignored, because a recorded message that
    // has one must stay readable.
    let hint_size = metadata.get("hint_size").filter(|_| calls.is_empty()).and_then(Value::as_u64);
    let hint_bytes = hint_size
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|bytes| text.is_char_boundary(*bytes));
    let part = members.map(|members| MessagePart::Reasoning {
        bytes: reasoning.len(),
        members: Some(members.into()),
    });
    let parts = part.into_iter().collect();
    Ok(Message::Assistant(
        ResponseMessage { text, reasoning, calls, hint_bytes, parts, ..ResponseMessage::default() }
            .into(),
    ))
}

/// Parses the reasoning of an assistant's message: its text, and the JSON of the members that go back with it.
fn parse_reasoning(
    fields: &Map<String, Value>,
    metadata: &Map<String, Value>,
) -> Result<(String, Option<String>), MessageProblem> {
    let mut found: Option<(ReasoningField, &str)> = None;
    for field in TEXT_FIELDS {
        match fields.get(field.as_str()) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => {
                let is_better = |(_, known): (_, &str)| known.is_empty() && !text.is_empty();
                if found.is_none_or(is_better) {
                    found = Some((field, text));
                }
            }
            Some(_) => return Err(invalid(format!(".{}", field.as_str()), "must be a string")),
        }
    }
    let details = match fields.get(REASONING_DETAILS) {
        None | Some(Value::Null) => metadata.get(REASONING_DETAILS).filter(|list| list.is_array()),
        Some(list @ Value::Array(_)) => Some(list),
        Some(_) => return Err(invalid(format!(".{REASONING_DETAILS}"), "must be a list")),
    };
    let details = details.filter(|list| list.as_array().is_some_and(|list| !list.is_empty()));
    let value = |key: &str| fields.get(key).or_else(|| metadata.get(key));
    let opaque = value(REASONING_OPAQUE).filter(|value| !value.is_null());
    let noted = metadata.get("reasoning").and_then(Value::as_str);
    let (field, text) = match (found, noted) {
        (Some((field, text)), _) => (Some(field), text),
        (None, Some(text)) => (metadata.get(REASONING_FIELD).and_then(as_field), text),
        (None, None) => (None, ""),
    };
    if field.is_none() && details.is_none() && opaque.is_none() {
        return Ok((text.to_owned(), None));
    }
    let mut members = Map::new();
    let mut insert = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            members.insert(key.to_owned(), value);
        }
    };
    insert("field", field.map(|field| field.as_str().into()));
    insert(REASONING_DETAILS, details.cloned());
    insert(REASONING_OPAQUE, opaque.cloned());
    Ok((text.to_owned(), Some(Value::Object(members).to_string())))
}

fn as_field(name: &Value) -> Option<ReasoningField> {
    ReasoningField::deserialize(name).ok()
}

fn parse_tool(
    fields: &Map<String, Value>,
    calls: &mut PrecedingCalls,
) -> Result<Message, MessageProblem> {
    check_keys(fields, &["role", "content", "tool_call_id", "name", "metadata"], "")?;
    let content = parse_result_content(fields)?;
    let metadata = Value::Object(parse_metadata(fields)?);
    let call_id = non_empty_string(fields, "tool_call_id", "")?;
    let name = calls.add_result(&call_id)?;
    let (call_id, name) = (call_id.into(), name.into());
    Ok(Message::Tool { call_id, name, content, metadata })
}

fn parse_calls(values: &[Value]) -> Result<Vec<ToolCall>, MessageProblem> {
    if values.len() > CALLS_MAX {
        let problem = format!("must be at most {CALLS_MAX} calls, not {}", values.len());
        return Err(invalid(".tool_calls", problem));
    }
    let mut calls: Vec<ToolCall> = Vec::with_capacity(values.len());
    for (index, value) in values.iter().enumerate() {
        let path = format!(".tool_calls[{index}]");
        let call = parse_call(value, index, &path)?;
        if calls.iter().any(|other| other.id == call.id) {
            let id = excerpt(&call.id, QUOTE_CHARS);
            let problem = format!("must be unique in the message, and {id:?} is not");
            return Err(invalid(path + ".id", problem));
        }
        calls.push(call);
    }
    Ok(calls)
}

fn parse_call(value: &Value, index: usize, path: &str) -> Result<ToolCall, MessageProblem> {
    let Value::Object(fields) = value else { return Err(invalid(path, "must be an object")) };
    check_keys(fields, &["id", "type", "function"], path)?;
    if fields.get("type").is_some_and(|kind| kind != "function") {
        return Err(invalid(format!("{path}.type"), "must be \"function\""));
    }
    let id = non_empty_string(fields, "id", path)?;
    let path = format!("{path}.function");
    let Some(Value::Object(function)) = fields.get("function") else {
        return Err(invalid(path, "must be an object with \"name\" and \"arguments\""));
    };
    check_keys(function, &["name", "arguments"], &path)?;
    let name = non_empty_string(function, "name", &path)?;
    let arguments = function.get("arguments").and_then(Value::as_str).and_then(parse_arguments);
    let Some(arguments) = arguments else {
        return Err(invalid(path + ".arguments", "must be the JSON text of an object"));
    };
    Ok(ToolCall {
        // The session's turns start at 1, so the calls of initial messages have turn 0.
        key: CallKey { turn: 0, attempt: 0, index: u32::try_from(index).unwrap_or(u32::MAX) },
        provider_id: Some(id.as_str().into()),
        id: id.into(),
        name: name.into(),
        arguments: Arc::new(arguments),
        raw: None,
        indirect: false,
    })
}

/// Parses the arguments of a call. Some services send an empty string if there are no arguments.
fn parse_arguments(text: &str) -> Option<Value> {
    if text.is_empty() {
        return Some(Value::Object(Map::new()));
    }
    serde_json::from_str(text).ok().filter(Value::is_object)
}

/// Rejects unknown keys, unless their value is `null` or an empty list. Client libraries also write
/// fields without a value.
fn check_keys(
    fields: &Map<String, Value>,
    known: &[&str],
    path: &str,
) -> Result<(), MessageProblem> {
    let has_no_value =
        |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    let unknown =
        fields.iter().find(|(key, value)| !known.contains(&key.as_str()) && !has_no_value(value));
    match unknown {
        None => Ok(()),
        Some((key, _)) => {
            let key = excerpt(key, QUOTE_CHARS);
            let known = known.join(", ");
            Err(invalid(path, format!("unknown key {key:?} (known: {known})")))
        }
    }
}

/// Parses the result of a call: a text, or a list of texts and images.
fn parse_result_content(fields: &Map<String, Value>) -> Result<ResultContent, MessageProblem> {
    let is_image = |part: &Value| part.get("type").is_some_and(|kind| kind == "image_url");
    match fields.get("content") {
        Some(value @ Value::Array(parts)) if parts.iter().any(is_image) => {
            let content = Content::parse(value).map_err(|error| {
                let part = error.part().map(|at| format!("[{at}]")).unwrap_or_default();
                invalid(format!(".content{part}"), error.problem())
            })?;
            Ok(ResultContent::from_parts(content))
        }
        _ => {
            let text = parse_text_content(fields)?;
            Ok(text.ok_or_else(|| invalid(".content", "is required"))?.into())
        }
    }
}

/// Returns the content, which must be a string or a list of text parts. Parts are joined by line
/// feeds. `None` if the content is `null` or missing.
fn parse_text_content(fields: &Map<String, Value>) -> Result<Option<String>, MessageProblem> {
    match fields.get("content") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().enumerate().map(|(index, part)| {
                let is_text = part.get("type").is_some_and(|kind| kind == "text");
                part.get("text").filter(|_| is_text).and_then(Value::as_str).ok_or_else(|| {
                    let problem = "must be {\"type\": \"text\", \"text\": ...}";
                    invalid(format!(".content[{index}]"), problem)
                })
            });
            texts.collect::<Result<Vec<_>, _>>().map(|texts| Some(texts.join("\n")))
        }
        Some(_) => Err(invalid(".content", "must be a string or a list of text parts")),
    }
}

fn parse_metadata(fields: &Map<String, Value>) -> Result<Map<String, Value>, MessageProblem> {
    match fields.get("metadata") {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(metadata)) => Ok(metadata.clone()),
        Some(_) => Err(invalid(".metadata", "must be an object")),
    }
}

/// Returns the string of a key, which must not be empty.
fn non_empty_string(
    fields: &Map<String, Value>,
    key: &str,
    path: &str,
) -> Result<String, MessageProblem> {
    let text = fields.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    text.map(str::to_owned)
        .ok_or_else(|| invalid(format!("{path}.{key}"), "must be a string that is not empty"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(id: &str, arguments: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": "clock", "arguments": arguments}})
    }

    fn assistant(ids: &[&str]) -> Value {
        let calls: Vec<_> = ids.iter().map(|id| call(id, "{}")).collect();
        json!({"role": "assistant", "content": null, "tool_calls": calls})
    }

    fn answers(id: &str) -> Value {
        json!({"role": "tool", "tool_call_id": id, "content": "noon"})
    }

    fn user() -> Value {
        json!({"role": "user", "content": "hi"})
    }

    #[track_caller]
    fn check_error(messages: &[Value], error: &str) {
        assert_eq!(InitialHistory::parse(messages).unwrap_err().to_string(), error);
    }

    #[test]
    fn histories_of_the_host_are_read_back() {
        let messages = [
            user(),
            json!({"role": "assistant", "content": "Look.",
                "tool_calls": [call("a", "{\"n\":1}"), call("b", "{}")],
                "metadata": {"reasoning": "hm"}}),
            json!({"role": "tool", "tool_call_id": "b", "content": ""}),
            json!({"role": "tool", "tool_call_id": "a", "content": "no",
                "metadata": {"error": true, "kind": "tool_error"}}),
            json!({"role": "assistant", "content": "Done."}),
            json!({"role": "assistant", "content": "<hint>Done.", "metadata": {"hint_size": 6}}),
            assistant(&["a"]),
            answers("a"),
        ];
        let seed = InitialHistory::parse(&messages).unwrap();
        assert_eq!(seed.initial_calls, None);
        let serialised: Vec<Value> =
            seed.messages.iter().map(|m| serde_json::to_value(m).unwrap()).collect();
        assert_eq!(serialised, messages);
        assert_eq!(super::super::repair_pairing(&seed.messages).1, 0);
    }

    #[test]
    fn reasoning_is_read_from_its_members_and_shown_in_the_metadata() {
        let details = json!([{"type": "reasoning.text", "text": "hm"}]);
        for (members, metadata) in [
            (
                json!({"reasoning_content": "hm"}),
                json!({"reasoning": "hm", "reasoning_field": "reasoning_content"}),
            ),
            (
                json!({"thinking": "hm", "reasoning_content": null}),
                json!({"reasoning": "hm", "reasoning_field": "thinking"}),
            ),
            (
                json!({"reasoning_content": "", "reasoning": "hm", "reasoning_details": details}),
                json!({"reasoning": "hm", "reasoning_field": "reasoning",
                    "reasoning_details": details}),
            ),
            (
                json!({"reasoning_text": "hm", "reasoning_opaque": "x"}),
                json!({"reasoning": "hm", "reasoning_field": "reasoning_text",
                    "reasoning_opaque": "x"}),
            ),
            (json!({"reasoning_details": details}), json!({"reasoning_details": details})),
            (json!({"reasoning_content": "", "reasoning_details": []}), json!(null)),
        ] {
            let mut message = json!({"role": "assistant", "content": "ok"});
            message.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
            let parsed = InitialHistory::parse(&[message]).unwrap();
            let shown = serde_json::to_value(&parsed.messages[0]).unwrap();
            assert_eq!(shown["metadata"], metadata, "{members}");
            let again = InitialHistory::parse(std::slice::from_ref(&shown)).unwrap();
            assert_eq!(serde_json::to_value(&again.messages[0]).unwrap(), shown);
            if !metadata.is_null() {
                assert_eq!(again, parsed, "{members}");
            }
        }
        for (member, value, problem) in [
            ("reasoning_content", json!(1), "must be a string"),
            ("reasoning_details", json!("x"), "must be a list"),
        ] {
            let message = json!({"role": "assistant", "content": "ok", member: value});
            check_error(&[message], &format!("messages[0].{member}: {problem}"));
        }
    }

    #[test]
    fn a_hint_size_that_does_not_fit_is_ignored() {
        for hint_size in [json!(1), json!(6), json!(-1), json!(1.5), json!("2"), json!(u64::MAX)] {
            let metadata = json!({"hint_size": hint_size});
            let message = json!({"role": "assistant", "content": "été", "metadata": metadata});
            let seed = InitialHistory::parse(&[message]).unwrap();
            let parsed = serde_json::to_value(&seed.messages[0]).unwrap();
            assert_eq!(parsed, json!({"role": "assistant", "content": "été"}), "{metadata}");
        }
    }

    #[test]
    fn calls_of_the_last_message_are_the_first_turn() {
        let seed = InitialHistory::parse(&[user(), assistant(&["a", "b"])]).unwrap();
        assert_eq!(seed.messages.len(), 1);
        let open = seed.initial_calls.unwrap();
        let calls: Vec<_> = open.calls.iter().map(|c| (&*c.id, c.key.to_string())).collect();
        assert_eq!(calls, [("a", "t1a1c0".to_owned()), ("b", "t1a1c1".to_owned())]);
        assert_eq!(InitialHistory::parse(&[]).unwrap(), InitialHistory::default());
    }

    #[test]
    fn messages_of_client_libraries_are_accepted() {
        let seed = InitialHistory::parse(&[
            json!({"role": "user", "content": [
                {"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}),
            json!({"role": "assistant", "content": "", "refusal": null, "annotations": [],
                "audio": null, "function_call": null, "tool_calls": [call("a", "")]}),
            json!({"role": "tool", "tool_call_id": "a", "name": "clock", "content": [
                {"type": "text", "text": "noon"}]}),
        ])
        .unwrap();
        let serialised = serde_json::to_value(&seed.messages).unwrap();
        assert_eq!(serialised[0]["content"], "one\ntwo");
        assert_eq!(serialised[1]["tool_calls"][0]["function"]["arguments"], "{}");
        assert_eq!(serialised[2]["content"], "noon");
    }

    #[test]
    fn images_of_users_are_kept() {
        let messages = [
            json!({"role": "user", "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}),
            json!({"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}),
        ];
        let seed = InitialHistory::parse(&messages).unwrap();
        assert_eq!(serde_json::to_value(&seed.messages).unwrap(), json!(messages));
    }

    #[test]
    fn the_pairing_rule_holds() {
        check_error(
            &[user(), assistant(&["a", "b"]), answers("a"), user()],
            "messages[1]: call \"b\" must have a result before the next user or assistant message",
        );
        check_error(
            &[assistant(&["a", "b"]), answers("b")],
            "messages[0]: call \"a\" must have a result before the next user or assistant message",
        );
        check_error(
            &[assistant(&["a"]), assistant(&["b"])],
            "messages[0]: call \"a\" must have a result before the next user or assistant message",
        );
        check_error(
            &[assistant(&["a"]), answers("a"), answers("a")],
            "messages[2]: call \"a\" must not have a second result",
        );
        for between in [user(), json!({"role": "assistant", "content": "So."})] {
            check_error(
                &[user(), assistant(&["a"]), answers("a"), between, answers("a")],
                "messages[4]: tool_call_id \"a\" must be the id of a call in the last assistant message \
                 and follow it without a user message between",
            );
        }
        check_error(
            &[assistant(&["a", "a"])],
            "messages[0].tool_calls[1].id: must be unique in the message, and \"a\" is not",
        );
    }

    #[test]
    fn invalid_messages_are_reported_with_their_position() {
        let call = |call: Value| json!({"role": "assistant", "tool_calls": [call]});
        let function = |function: Value| call(json!({"id": "a", "function": function}));
        let arguments =
            "messages[0].tool_calls[0].function.arguments: must be the JSON text of an object";
        for (message, error) in [
            (json!("hi"), "messages[0]: must be an object"),
            (json!({}), "messages[0]: must have a \"role\""),
            (
                json!({"role": "system", "content": "x"}),
                "messages[0].role: must be \"user\", \"assistant\" or \"tool\": the system prompt is set in the agent",
            ),
            (
                json!({"role": "developer", "content": "x"}),
                "messages[0].role: must be \"user\", \"assistant\" or \"tool\": the system prompt is set in the agent",
            ),
            (
                json!({"role": "bot"}),
                "messages[0].role: must be \"user\", \"assistant\" or \"tool\", not \"bot\"",
            ),
            (json!({"role": "user"}), "messages[0].content: must not be empty"),
            (json!({"role": "user", "content": " "}), "messages[0].content: must not be empty"),
            (
                json!({"role": "user", "content": 1}),
                "messages[0].content: must be a string or a list of parts",
            ),
            (
                json!({"role": "user", "content": [{"type": "text", "text": " "}]}),
                "messages[0].content: must not be empty",
            ),
            (
                json!({"role": "user", "content": [
                    {"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]}),
                "messages[0].content[1]: its \"image_url\" must be an object with a \"url\"",
            ),
            (
                json!({"role": "assistant", "content": 1}),
                "messages[0].content: must be a string or a list of text parts",
            ),
            (
                json!({"role": "assistant", "content": [{"type": "image_url", "image_url": {}}]}),
                "messages[0].content[0]: must be {\"type\": \"text\", \"text\": ...}",
            ),
            (
                json!({"role": "user", "content": "x", "name": "Al"}),
                "messages[0]: unknown key \"name\" (known: role, content, metadata)",
            ),
            (
                json!({"role": "assistant", "content": null}),
                "messages[0]: must have content or tool_calls",
            ),
            (
                json!({"role": "assistant", "content": "x", "metadata": 1}),
                "messages[0].metadata: must be an object",
            ),
            (
                json!({"role": "assistant", "tool_calls": {}}),
                "messages[0].tool_calls: must be a list",
            ),
            (call(json!(1)), "messages[0].tool_calls[0]: must be an object"),
            (
                call(json!({"function": {}})),
                "messages[0].tool_calls[0].id: must be a string that is not empty",
            ),
            (
                call(json!({"id": "a", "type": "custom", "custom": {}})),
                "messages[0].tool_calls[0]: unknown key \"custom\" (known: id, type, function)",
            ),
            (
                call(json!({"id": "a", "type": "custom"})),
                "messages[0].tool_calls[0].type: must be \"function\"",
            ),
            (
                call(json!({"id": "a"})),
                "messages[0].tool_calls[0].function: must be an object with \"name\" and \"arguments\"",
            ),
            (
                function(json!({"arguments": "{}"})),
                "messages[0].tool_calls[0].function.name: must be a string that is not empty",
            ),
            (function(json!({"name": "n"})), arguments),
            (function(json!({"name": "n", "arguments": {}})), arguments),
            (function(json!({"name": "n", "arguments": "[1]"})), arguments),
            (function(json!({"name": "n", "arguments": "{\"a\":"})), arguments),
            (
                json!({"role": "tool", "content": "x"}),
                "messages[0].tool_call_id: must be a string that is not empty",
            ),
            (json!({"role": "tool", "tool_call_id": "a"}), "messages[0].content: is required"),
        ] {
            check_error(&[message], error);
        }
    }

    #[test]
    fn too_many_messages_or_calls_are_rejected() {
        let messages = vec![user(); INITIAL_MESSAGES_MAX];
        assert!(InitialHistory::parse(&messages).is_ok());
        let more = [messages, vec![user()]].concat();
        check_error(&more, "messages: must be at most 10000 messages, not 10001");
        let call = |id: u32| {
            let function = json!({"name": "f", "arguments": ""});
            json!({"id": id.to_string(), "function": function})
        };
        let with_calls = |calls| json!({"role": "assistant", "tool_calls": (0..calls).map(call).collect::<Vec<_>>()});
        assert!(InitialHistory::parse(&[with_calls(1024)]).is_ok());
        check_error(
            &[with_calls(1025)],
            "messages[0].tool_calls: must be at most 1024 calls, not 1025",
        );
    }
}
