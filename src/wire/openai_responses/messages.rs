//! The history as items of the input, as in OpenAI's API reference,
//! <https://platform.openai.com/docs/api-reference/responses/create>.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::metadata::{ID_CHARS_MAX, ProviderItem, ReplayMode, replay_mode};
use crate::message::{Message, RequestPart, ResponseMessage};
use crate::types::{Content, ContentPart, ModelOrigin, ToolCall, Wire};
use crate::wire::ModelRequest;
use crate::wire::call_ids::{sanitized, sanitized_tool_name};
use crate::wire::lenient::Scalar;
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
            Message::User { content } => writer.write(&InputMessage::of(content)),
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
                writer.write(&CallOutputItem {
                    kind: if is_custom {
                        "custom_tool_call_output"
                    } else {
                        "function_call_output"
                    },
                    call_id: short_call_id(call_id),
                    output: content,
                });
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
            ItemMembers::of(members).is_custom().then_some(&*call.id)
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
        writer.write(&OutputMessage::new(&message.text));
    }
    for part in parts {
        match *part {
            // The whole text is written above.
            RequestPart::Text { .. } if mode == ReplayMode::Bare => {}
            RequestPart::Text { text: "", .. } | RequestPart::Reasoning { .. } => {}
            RequestPart::Text { text, members } => {
                let members = members.map(ItemMembers::of).unwrap_or_default();
                match members.id.as_text().filter(|_| mode == ReplayMode::Whole) {
                    Some(id) => writer.write(&OutputMessageItem::new(text, id, &members)),
                    None => writer.write(&OutputMessage {
                        phase: members.phase.as_text(),
                        ..OutputMessage::new(text)
                    }),
                }
            }
            RequestPart::Call { call, members } => {
                let members = members.map(ItemMembers::of).unwrap_or_default();
                writer.write(&CallItem::new(call, &members, mode));
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

/// The members of an item that go back with its text or call.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ItemMembers<'a> {
    #[serde(rename = "type", borrow)]
    kind: Scalar<'a>,
    #[serde(borrow)]
    id: Scalar<'a>,
    #[serde(borrow)]
    status: Scalar<'a>,
    #[serde(borrow)]
    phase: Scalar<'a>,
    #[serde(borrow)]
    namespace: Scalar<'a>,
    #[serde(borrow)]
    caller: Option<&'a RawValue>,
}

impl<'a> ItemMembers<'a> {
    fn of(members: &'a str) -> Self {
        serde_json::from_str(members).unwrap_or_default()
    }

    fn is_custom(&self) -> bool {
        self.kind.as_text() == Some("custom_tool_call")
    }
}

#[derive(Serialize)]
struct InputMessage<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    content: Vec<InputPart<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum InputPart<'a> {
    InputText { text: &'a str },
    InputImage { image_url: Cow<'a, str>, detail: &'static str },
}

impl<'a> InputMessage<'a> {
    fn of(content: &'a Content) -> Self {
        let part = |part: &'a ContentPart| match part {
            ContentPart::Text(text) => InputPart::InputText { text },
            ContentPart::Image(image) => {
                InputPart::InputImage { image_url: image.url(), detail: "auto" }
            }
        };
        Self { kind: "message", role: "user", content: content.parts().iter().map(part).collect() }
    }
}

/// A message of a model in the form that all services accept, without the item's id.
#[derive(Serialize)]
struct OutputMessage<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'a str>,
}

impl<'a> OutputMessage<'a> {
    fn new(content: &'a str) -> Self {
        Self { kind: "message", role: "assistant", content, phase: None }
    }
}

#[derive(Serialize)]
struct OutputMessageItem<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    id: &'a str,
    role: &'static str,
    status: &'a str,
    content: [OutputText<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'a str>,
}

#[derive(Serialize)]
struct OutputText<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
    annotations: [(); 0],
}

impl<'a> OutputMessageItem<'a> {
    fn new(text: &'a str, id: &'a str, members: &'a ItemMembers<'_>) -> Self {
        Self {
            kind: "message",
            id,
            role: "assistant",
            status: members.status.as_text().unwrap_or("completed"),
            content: [OutputText { kind: "output_text", text, annotations: [] }],
            phase: members.phase.as_text(),
        }
    }
}

#[derive(Serialize)]
struct CallItem<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    call_id: Cow<'a, str>,
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
    /// Without it the service refuses the call ("Missing namespace for function_call").
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<&'a RawValue>,
}

impl<'a> CallItem<'a> {
    fn new(call: &'a ToolCall, members: &'a ItemMembers<'_>, mode: ReplayMode) -> Self {
        let is_whole = mode == ReplayMode::Whole;
        let plain = Self {
            kind: "function_call",
            id: members.id.as_text().filter(|_| is_whole),
            call_id: short_call_id(&call.id),
            name: sanitized_tool_name(&call.name),
            arguments: None,
            input: None,
            status: members.status.as_text().filter(|_| is_whole),
            namespace: members.namespace.as_text(),
            caller: members.caller.filter(|_| is_whole),
        };
        if members.is_custom() {
            let input = match call.raw.as_deref() {
                Some(raw) => Cow::Borrowed(raw),
                None => Cow::Owned(call.arguments_text()),
            };
            return Self { kind: "custom_tool_call", input: Some(input), ..plain };
        }
        Self { arguments: Some(call.arguments_text()), ..plain }
    }
}

#[derive(Serialize)]
struct CallOutputItem<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    call_id: Cow<'a, str>,
    output: &'a str,
}
