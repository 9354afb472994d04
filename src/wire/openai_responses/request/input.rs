//! The items of a request's input.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::back::{Back, ID_CHARS_MAX, OwnItem, back};
use crate::message::{Message, RequestPart, ResponseMessage};
use crate::types::{Content, ContentPart, ModelOrigin, ToolCall, Wire};
use crate::wire::ModelRequest;
use crate::wire::body::Elements;
use crate::wire::ids::{cleaned, tool_name};
use crate::wire::loose::Scalar;

/// Writes the history as items; `stores` if the service knows them by their ids. None changes for
/// what follows it.
pub(super) fn write(request: &ModelRequest, stores: bool, elements: &mut Elements) {
    let origin = ModelOrigin { wire: Wire::OpenaiResponses, model: request.model.clone() };
    let (first, messages) = (elements.first_message(), request.messages.iter());
    let before = messages.clone().take(first).map(|message| &**message);
    let mut custom = last_said(before).map(|said| custom_ids(&said.request_parts(&origin)));
    for message in messages.skip(first) {
        match &**message {
            Message::User { content } => elements.put(&UserMessage::of(content)),
            Message::Assistant(message) => {
                let pieces = message.request_parts(&origin);
                let back = match message.is_from(&origin) {
                    true => back(message, &pieces, stores),
                    false => Back::Bare,
                };
                custom = Some(custom_ids(&pieces));
                assistant(elements, message, &pieces, back);
            }
            Message::Tool { call_id, content, .. } => {
                let is_custom = custom.iter().flatten().any(|id| *id == &**call_id);
                elements.put(&Output {
                    kind: if is_custom {
                        "custom_tool_call_output"
                    } else {
                        "function_call_output"
                    },
                    call_id: call_id_for(call_id),
                    output: content,
                });
            }
        }
    }
    elements.settle(request.messages.len());
}

fn last_said<'a>(
    messages: impl DoubleEndedIterator<Item = &'a Message>,
) -> Option<&'a ResponseMessage> {
    messages.rev().find_map(|message| match message {
        Message::Assistant(said) => Some(&**said),
        Message::User { .. } | Message::Tool { .. } => None,
    })
}

/// The same for a call and for its output. The service looks at nothing but the length.
fn call_id_for(id: &str) -> Cow<'_, str> {
    cleaned(id, |_| true, ID_CHARS_MAX)
}

/// The calls of a message whose input was free text: their outputs have a type of their own.
fn custom_ids<'a>(pieces: &[RequestPart<'a>]) -> Vec<&'a str> {
    pieces.iter().filter_map(custom_id).collect()
}

fn custom_id<'a>(piece: &RequestPart<'a>) -> Option<&'a str> {
    match piece {
        RequestPart::Call { call, members: Some(members) } => {
            Beside::of(members).is_custom().then_some(&*call.id)
        }
        RequestPart::Call { .. }
        | RequestPart::Text { .. }
        | RequestPart::Reasoning { .. }
        | RequestPart::Raw(_) => None,
    }
}

fn assistant(
    elements: &mut Elements,
    message: &ResponseMessage,
    pieces: &[RequestPart<'_>],
    back: Back,
) {
    if back == Back::Bare && !message.text.is_empty() {
        // In one piece, as any other model's.
        elements.put(&Said::new(&message.text));
    }
    for piece in pieces {
        match *piece {
            RequestPart::Text { .. } if back == Back::Bare => {}
            RequestPart::Text { text: "", .. } | RequestPart::Reasoning { .. } => {}
            RequestPart::Text { text, members } => {
                let beside = members.map(Beside::of).unwrap_or_default();
                match beside.id.as_text().filter(|_| back == Back::Whole) {
                    Some(id) => elements.put(&SaidAsItem::new(text, id, &beside)),
                    None => {
                        elements.put(&Said { phase: beside.phase.as_text(), ..Said::new(text) })
                    }
                }
            }
            RequestPart::Call { call, members } => {
                let beside = members.map(Beside::of).unwrap_or_default();
                elements.put(&Call::new(call, &beside, back));
            }
            RequestPart::Raw(json) => raw(elements, json, back),
        }
    }
}

fn raw(elements: &mut Elements, json: &str, back: Back) {
    let item = OwnItem::of(json);
    match back {
        // What cannot go although the message goes whole is a call that we cannot answer.
        Back::Whole if item.can_go(true) => {
            if let Ok(item) = serde_json::from_str::<&RawValue>(json) {
                elements.put(item);
            }
        }
        Back::WithoutIds if item.is_reasoning() => {
            let mut item = serde_json::from_str::<Map<String, Value>>(json).unwrap_or_default();
            item.remove("id");
            elements.put(&item);
        }
        Back::Whole | Back::WithoutIds | Back::Bare => {}
    }
}

/// What stood beside a text or a call in its item.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Beside<'a> {
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

impl<'a> Beside<'a> {
    fn of(members: &'a str) -> Self {
        serde_json::from_str(members).unwrap_or_default()
    }

    fn is_custom(&self) -> bool {
        self.kind.as_text() == Some("custom_tool_call")
    }
}

#[derive(Serialize)]
struct UserMessage<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    content: Vec<UserPart<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum UserPart<'a> {
    InputText { text: &'a str },
    InputImage { image_url: Cow<'a, str>, detail: &'static str },
}

impl<'a> UserMessage<'a> {
    fn of(content: &'a Content) -> Self {
        let part = |part: &'a ContentPart| match part {
            ContentPart::Text(text) => UserPart::InputText { text },
            ContentPart::Image(image) => {
                UserPart::InputImage { image_url: image.url(), detail: "auto" }
            }
        };
        Self { kind: "message", role: "user", content: content.parts().iter().map(part).collect() }
    }
}

/// What the model said, without being an item of the service's: the form that all of them take.
#[derive(Serialize)]
struct Said<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'a str>,
}

impl<'a> Said<'a> {
    fn new(content: &'a str) -> Self {
        Self { kind: "message", role: "assistant", content, phase: None }
    }
}

#[derive(Serialize)]
struct SaidAsItem<'a> {
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

impl<'a> SaidAsItem<'a> {
    fn new(text: &'a str, id: &'a str, beside: &'a Beside<'_>) -> Self {
        Self {
            kind: "message",
            id,
            role: "assistant",
            status: beside.status.as_text().unwrap_or("completed"),
            content: [OutputText { kind: "output_text", text, annotations: [] }],
            phase: beside.phase.as_text(),
        }
    }
}

#[derive(Serialize)]
struct Call<'a> {
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
    /// The service does not find the tool without it ("Missing namespace for function_call").
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<&'a RawValue>,
}

impl<'a> Call<'a> {
    fn new(call: &'a ToolCall, beside: &'a Beside<'_>, back: Back) -> Self {
        let goes = back == Back::Whole;
        let plain = Self {
            kind: "function_call",
            id: beside.id.as_text().filter(|_| goes),
            call_id: call_id_for(&call.id),
            name: tool_name(&call.name),
            arguments: None,
            input: None,
            status: beside.status.as_text().filter(|_| goes),
            namespace: beside.namespace.as_text(),
            caller: beside.caller.filter(|_| goes),
        };
        if beside.is_custom() {
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
struct Output<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    call_id: Cow<'a, str>,
    output: &'a str,
}
