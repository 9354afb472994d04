//! The history as items of the input, as in OpenAI's API reference,
//! <https://platform.openai.com/docs/api-reference/responses/create>.

use std::borrow::Cow;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::metadata::{ID_CHARS_MAX, ProviderItem, ReplayMode, replay_mode};
use crate::message::{Message, RequestPart, ResponseMessage};
use crate::types::{Content, ContentPart, ModelOrigin, ToolCall, Wire};
use crate::wire::ModelRequest;
use crate::wire::call_ids::{sanitized, sanitized_tool_name};
use crate::wire::extra_members::present_members;
use crate::wire::request_cache::HistoryWriter;

/// Writes the history as items. No item depends on later messages.
pub(super) fn write(request: &ModelRequest, writer: &mut HistoryWriter) {
    let stores = stores(request);
    let origin = ModelOrigin { wire: Wire::OpenaiResponses, model: request.model.clone() };
    let (first, messages) = (writer.first_message(), request.messages.iter());
    let before = messages.clone().take(first).map(|message| &**message);
    let mut custom =
        last_response(before).map(|response| custom_ids(&response.request_parts(&origin)));
    for message in messages.skip(first) {
        match &**message {
            Message::User { content } => writer.write(&input_message(content)),
            Message::Assistant(message) => {
                let parts = message.request_parts(&origin);
                let mode = match message.is_from(&origin) {
                    true => replay_mode(message, &parts, stores),
                    false => ReplayMode::Bare,
                };
                custom = Some(custom_ids(&parts));
                write_response(writer, message, &parts, mode);
            }
            Message::Tool { call_id, content, .. } => {
                let is_custom = custom.iter().flatten().any(|id| *id == &**call_id);
                writer.write(&json!({
                    "type": if is_custom { "custom_tool_call_output" } else { "function_call_output" },
                    "call_id": short_call_id(call_id),
                    "output": content,
                }));
            }
        }
    }
    writer.mark_reusable(request.messages.len());
}

/// Returns whether the service finds items by their ids, because the configuration lets it store
/// them.
fn stores(request: &ModelRequest) -> bool {
    match request.extra_body.get("store") {
        Some(stores) => stores == true,
        None => request.omit_body.contains("store"),
    }
}

fn last_response<'a>(
    messages: impl DoubleEndedIterator<Item = &'a Message>,
) -> Option<&'a ResponseMessage> {
    messages.rev().find_map(|message| match message {
        Message::Assistant(response) => Some(&**response),
        Message::User { .. } | Message::Tool { .. } => None,
    })
}

/// Returns a call's id in the form that the service accepts. Only its length is limited (error
/// message of OpenAI's API).
fn short_call_id(id: &str) -> Cow<'_, str> {
    sanitized(id, |_| true, ID_CHARS_MAX)
}

/// Returns the ids of a message's calls whose input is free text. Their results have a type of
/// their own.
fn custom_ids<'a>(parts: &[RequestPart<'a>]) -> Vec<&'a str> {
    parts.iter().filter_map(custom_id).collect()
}

fn custom_id<'a>(part: &RequestPart<'a>) -> Option<&'a str> {
    match part {
        RequestPart::Call { call, members: Some(members) } => {
            is_custom(&item_members(Some(members))).then_some(&*call.id)
        }
        RequestPart::Call { .. }
        | RequestPart::Text { .. }
        | RequestPart::Reasoning { .. }
        | RequestPart::Raw(_) => None,
    }
}

fn write_response(
    writer: &mut HistoryWriter,
    message: &ResponseMessage,
    parts: &[RequestPart<'_>],
    mode: ReplayMode,
) {
    if mode == ReplayMode::Bare && !message.text.is_empty() {
        writer.write(&output_message(&message.text, None, mode));
    }
    for part in parts {
        match *part {
            // The whole text is written above.
            RequestPart::Text { .. } if mode == ReplayMode::Bare => {}
            RequestPart::Text { text: "", .. } | RequestPart::Reasoning { .. } => {}
            RequestPart::Text { text, members } => {
                writer.write(&output_message(text, members, mode));
            }
            RequestPart::Call { call, members } => {
                writer.write(&call_item(call, members, mode));
            }
            RequestPart::Raw(json) => write_raw(writer, json, mode),
        }
    }
}

fn write_raw(writer: &mut HistoryWriter, json: &str, mode: ReplayMode) {
    let item = ProviderItem::of(json);
    match mode {
        // An item that cannot go back here is a call that we cannot answer.
        ReplayMode::Whole if item.can_go_back(true) => {
            if let Ok(item) = serde_json::from_str::<&RawValue>(json) {
                writer.write(item);
            }
        }
        ReplayMode::WithoutIds if item.is_reasoning() => {
            let mut item = serde_json::from_str::<Map<String, Value>>(json).unwrap_or_default();
            item.remove("id");
            writer.write(&item);
        }
        ReplayMode::Whole | ReplayMode::WithoutIds | ReplayMode::Bare => {}
    }
}

/// Reads the members of an item that go back with its text or call.
fn item_members(members: Option<&str>) -> Map<String, Value> {
    members.and_then(|members| serde_json::from_str(members).ok()).unwrap_or_default()
}

fn is_custom(members: &Map<String, Value>) -> bool {
    members.get("type").is_some_and(|kind| kind == "custom_tool_call")
}

fn input_message(content: &Content) -> Value {
    let part = |part: &ContentPart| match part {
        ContentPart::Text(text) => json!({"type": "input_text", "text": text}),
        ContentPart::Image(image) => {
            json!({"type": "input_image", "image_url": image.url(), "detail": "auto"})
        }
    };
    let parts: Vec<Value> = content.parts().iter().map(part).collect();
    json!({"type": "message", "role": "user", "content": parts})
}

/// Returns a message of the model: as the item that it was, or without an id in the form that all
/// services accept.
fn output_message(text: &str, members: Option<&str>, mode: ReplayMode) -> Map<String, Value> {
    let members = item_members(members);
    let id = members.get("id").filter(|_| mode == ReplayMode::Whole);
    let content = match id {
        Some(_) => json!([{"type": "output_text", "text": text, "annotations": []}]),
        None => text.into(),
    };
    let status = || members.get("status").cloned().unwrap_or("completed".into());
    present_members(json!({
        "type": "message",
        "id": id,
        "role": "assistant",
        "status": id.map(|_| status()),
        "content": content,
        "phase": members.get("phase"),
    }))
}

fn call_item(call: &ToolCall, members: Option<&str>, mode: ReplayMode) -> Map<String, Value> {
    let members = item_members(members);
    let of_item = |key: &str| members.get(key).filter(|_| mode == ReplayMode::Whole);
    let (kind, input_member, input) = match (is_custom(&members), &call.raw) {
        (true, Some(raw)) => ("custom_tool_call", "input", raw.to_string()),
        (true, None) => ("custom_tool_call", "input", call.arguments_text()),
        (false, _) => ("function_call", "arguments", call.arguments_text()),
    };
    present_members(json!({
        "type": kind,
        "id": of_item("id"),
        "call_id": short_call_id(&call.id),
        "name": sanitized_tool_name(&call.name),
        (input_member): input,
        "status": of_item("status"),
        // Without it the service refuses the call ("Missing namespace for function_call").
        "namespace": members.get("namespace"),
        "caller": of_item("caller"),
    }))
}
