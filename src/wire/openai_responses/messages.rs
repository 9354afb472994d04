//! The history as items of the input, as in OpenAI's API reference,
//! <https://platform.openai.com/docs/api-reference/responses/create>.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::metadata::{ID_CHARS_MAX, ProviderItem, ReplayMode, replay_mode};
use crate::ModelRequest;
use crate::call_ids::{sanitized, sanitized_tool_name};
use crate::lenient::Scalar;
use crate::request_cache::HistoryWriter;
use callsheet_values::message::{Message, RequestPart, ResponseMessage, ResultContent};
use callsheet_values::types::{Content, ContentPart, ModelOrigin, SendReasoning, ToolCall, Wire};

/// Writes the history as items. No item depends on later messages.
pub(super) fn write(request: &ModelRequest, writer: &mut HistoryWriter) {
    let stores = stores(request);
    let target_model = ModelOrigin { wire: Wire::OpenaiResponses, model: request.model.clone() };
    let (first, messages) = (writer.first_message(), request.messages.iter());
    let before = messages.clone().take(first).map(|message| &**message);
    let mut custom =
        last_response(before).map(|response| custom_ids(&response.request_parts(&target_model)));
    for message in messages.skip(first) {
        match &**message {
            Message::User { content } | Message::Summary { content } => {
                writer.write(&MessageItem::from_user(content))
            }
            Message::Assistant(message) => {
                let parts = message.request_parts(&target_model);
                let mode = match message.is_from(&target_model) {
                    true => replay_mode(message, &parts, stores),
                    false => ReplayMode::Bare,
                };
                custom = Some(custom_ids(&parts));
                let rule = request.reasoning;
                if rule.send == SendReasoning::All && !has_reasoning(&parts, mode) {
                    // DeepSeek demands it, also of messages without reasoning.
                    let is_own = message.has_reasoning_of(&target_model, rule.is_fallback);
                    let own = Some(&*message.reasoning).filter(|text| is_own && !text.is_empty());
                    writer.write(&ReasoningItem::new(own.unwrap_or_else(|| rule.filler())));
                }
                write_response(writer, message, &parts, mode);
            }
            Message::Tool { call_id, content, .. } => {
                let is_custom = custom.iter().flatten().any(|id| *id == &**call_id);
                let (call_id, output) = (short_call_id(call_id), output_content(content));
                let kind = match is_custom {
                    true => "custom_tool_call_output",
                    false => "function_call_output",
                };
                writer.write(&CallOutputItem { kind, call_id, output });
            }
        }
    }
    writer.mark_reusable(request.messages.len());
}

/// Returns whether the service stores items and finds them by their ids. The body says `store: false`
/// unless `extra_body` sets `store`, or `omit_body` leaves it to the service, which stores by default.
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
        Message::User { .. } | Message::Summary { .. } | Message::Tool { .. } => None,
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
            ItemMembers::read(Some(members)).is_custom().then_some(&*call.id)
        }
        RequestPart::Call { .. }
        | RequestPart::Text { .. }
        | RequestPart::Reasoning { .. }
        | RequestPart::Raw(_) => None,
    }
}

/// Returns whether a reasoning item of a message is written.
fn has_reasoning(parts: &[RequestPart<'_>], mode: ReplayMode) -> bool {
    let is_reasoning = |part: &RequestPart<'_>| match part {
        RequestPart::Raw(json) => ProviderItem::read(json).is_reasoning(),
        RequestPart::Text { .. } | RequestPart::Reasoning { .. } | RequestPart::Call { .. } => {
            false
        }
    };
    mode != ReplayMode::Bare && parts.iter().any(is_reasoning)
}

/// Reasoning that its service has not sent as an item.
#[derive(Serialize)]
struct ReasoningItem<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    summary: [(); 0],
    content: [ReasoningText<'a>; 1],
}

#[derive(Serialize)]
struct ReasoningText<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
}

impl<'a> ReasoningItem<'a> {
    fn new(text: &'a str) -> Self {
        let content = [ReasoningText { kind: "reasoning_text", text }];
        Self { kind: "reasoning", summary: [], content }
    }
}

fn write_response(
    writer: &mut HistoryWriter,
    message: &ResponseMessage,
    parts: &[RequestPart<'_>],
    mode: ReplayMode,
) {
    if mode == ReplayMode::Bare && !message.text.is_empty() {
        writer.write(&MessageItem::from_response(&message.text, &ItemMembers::default(), mode));
    }
    for part in parts {
        match *part {
            // The whole text is written above.
            RequestPart::Text { .. } if mode == ReplayMode::Bare => {}
            RequestPart::Text { text: "", .. } | RequestPart::Reasoning { .. } => {}
            RequestPart::Text { text, members } => {
                writer.write(&MessageItem::from_response(text, &ItemMembers::read(members), mode));
            }
            RequestPart::Call { call, members } => {
                writer.write(&CallItem::new(call, &ItemMembers::read(members), mode));
            }
            RequestPart::Raw(json) => write_raw(writer, json, mode),
        }
    }
}

fn write_raw(writer: &mut HistoryWriter, json: &str, mode: ReplayMode) {
    let item = ProviderItem::read(json);
    match mode {
        // `true`: `replay_mode` has already checked the reasoning. This leaves out calls that we cannot
        // answer, and items without a type.
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
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ItemMembers<'a> {
    #[serde(rename = "type")]
    kind: Scalar<'a>,
    id: Scalar<'a>,
    status: Scalar<'a>,
    phase: Scalar<'a>,
    namespace: Scalar<'a>,
    caller: Option<&'a RawValue>,
}

impl<'a> ItemMembers<'a> {
    fn read(members: Option<&'a str>) -> Self {
        members.and_then(|members| serde_json::from_str(members).ok()).unwrap_or_default()
    }

    fn is_custom(&self) -> bool {
        self.kind.as_text() == Some("custom_tool_call")
    }
}

/// A message of the user or of the model.
#[derive(Serialize)]
struct MessageItem<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
    content: MessageContent<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum MessageContent<'a> {
    Text(&'a str),
    Parts(Vec<MessagePart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum MessagePart<'a> {
    InputText { text: &'a str },
    InputImage { image_url: Cow<'a, str>, detail: &'static str },
    OutputText { text: &'a str, annotations: [(); 0] },
}

fn input_parts(content: &Content) -> Vec<MessagePart<'_>> {
    content.parts().iter().map(input_part).collect()
}

fn input_part(part: &ContentPart) -> MessagePart<'_> {
    match part {
        ContentPart::Text(text) => MessagePart::InputText { text },
        ContentPart::Image(image) => {
            MessagePart::InputImage { image_url: image.url(), detail: "auto" }
        }
    }
}

/// Returns the output of a call: a text, or text and images.
fn output_content(content: &ResultContent) -> MessageContent<'_> {
    match content.parts() {
        Some(parts) => MessageContent::Parts(input_parts(parts)),
        None => MessageContent::Text(content),
    }
}

impl<'a> MessageItem<'a> {
    fn new(role: &'static str, content: MessageContent<'a>) -> Self {
        Self { kind: "message", id: None, role, status: None, content, phase: None }
    }

    fn from_user(content: &'a Content) -> Self {
        Self::new("user", MessageContent::Parts(input_parts(content)))
    }

    /// Returns a message of the model: as the item that it was, or without an id in the form that
    /// all services accept.
    fn from_response(text: &'a str, members: &'a ItemMembers<'_>, mode: ReplayMode) -> Self {
        let phase = members.phase.as_text();
        let Some(id) = members.id.as_text().filter(|_| mode == ReplayMode::Whole) else {
            return Self { phase, ..Self::new("assistant", MessageContent::Text(text)) };
        };
        let content =
            MessageContent::Parts(vec![MessagePart::OutputText { text, annotations: [] }]);
        let status = Some(members.status.as_text().unwrap_or("completed"));
        Self { id: Some(id), status, phase, ..Self::new("assistant", content) }
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
    input: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
    /// The namespace of the called tool, if it has one. Without it the service refuses such a call
    /// ("Missing namespace for function_call"), so it goes back in every mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<&'a RawValue>,
}

impl<'a> CallItem<'a> {
    fn new(call: &'a ToolCall, members: &'a ItemMembers<'_>, mode: ReplayMode) -> Self {
        let is_whole = mode == ReplayMode::Whole;
        let (kind, arguments, input) = match (members.is_custom(), &call.raw) {
            (true, Some(raw)) => ("custom_tool_call", None, Some(raw.to_string())),
            // An empty input is decoded as an object without members.
            (true, None) if call.arguments.as_object().is_some_and(Map::is_empty) => {
                ("custom_tool_call", None, Some(String::new()))
            }
            (true, None) => ("custom_tool_call", None, Some(call.arguments_text())),
            (false, _) => ("function_call", Some(call.arguments_text()), None),
        };
        Self {
            kind,
            id: members.id.as_text().filter(|_| is_whole),
            call_id: short_call_id(&call.id),
            name: sanitized_tool_name(&call.name),
            arguments,
            input,
            status: members.status.as_text().filter(|_| is_whole),
            namespace: members.namespace.as_text(),
            caller: members.caller.filter(|_| is_whole),
        }
    }
}

#[derive(Serialize)]
struct CallOutputItem<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    call_id: Cow<'a, str>,
    output: MessageContent<'a>,
}
