//! The history: contents of the user and the model alternate, as in Google's API reference.
//!
//! The results of calls are the parts of the user's next content, as many as there are calls and in
//! their order. A message of the user that follows is joined with them. Signatures go back in the part with
//! which they came. Gemini 3 refuses a content whose first call has no signature. So the first call of a response
//! of another model, or of one whose first call was removed, gets the placeholder from the documentation
//! (<https://ai.google.dev/gemini-api/docs/thought-signatures>, "FAQs").

use std::borrow::Cow;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::ModelRequest;
use crate::call_ids::sanitized_tool_name;
use crate::extra_members::{arguments_object, write_members};
use crate::request_cache::HistoryWriter;
use callsheet_values::message::{Message, RequestPart, ResponseMessage, ResultContent};
use callsheet_values::types::{self, ContentPart, Image, ModelOrigin, ToolCall, Wire};

/// The placeholder for the missing signature of a response's first call.
const PLACEHOLDER: &str = r#"{"thoughtSignature":"skip_thought_signature_validator"}"#;
/// The text of the first message of the user if the history begins with the model.
const BEGINNING: &str = "(The conversation begins with the model.)";

/// A content: consecutive parts of one role.
#[derive(Debug, Serialize)]
struct ContentParam<'a> {
    role: &'static str,
    parts: Vec<PartParam<'a>>,
}

#[derive(Debug)]
enum PartParam<'a> {
    Text { text: &'a str, thought: bool, members: Option<&'a str> },
    Image(&'a Image),
    Call { call: &'a ToolCall, with_id: bool, members: Option<&'a str> },
    Result { name: &'a str, id: Option<&'a str>, content: &'a ResultContent, failed: bool },
    Raw(&'a str),
}

/// Writes the contents of a request. Only the last one may depend on later messages.
pub(super) fn write(request: &ModelRequest, writer: &mut HistoryWriter) {
    let contents = contents(request);
    writer.write_all(&contents, contents.len().saturating_sub(1), request.messages.len());
}

fn contents(request: &ModelRequest) -> Vec<ContentParam<'_>> {
    let target_model = ModelOrigin { wire: Wire::GeminiGenerate, model: request.model.clone() };
    let mut contents = Vec::new();
    // The ids that were sent with the last calls. Their results have the same ids.
    let mut sent_ids: Vec<&str> = Vec::new();
    for message in request.messages.iter() {
        match &**message {
            Message::User { content } | Message::Summary { content } => {
                add(&mut contents, "user", user_parts(content))
            }
            Message::Assistant(response) => {
                let parts = model_parts(response, &target_model);
                sent_ids = parts.iter().filter_map(PartParam::sent_id).collect();
                if contents.is_empty() && !parts.is_empty() {
                    let text = PartParam::Text { text: BEGINNING, thought: false, members: None };
                    add(&mut contents, "user", vec![text]);
                }
                add(&mut contents, "model", parts);
            }
            Message::Tool { call_id, name, content, metadata } => {
                let failed = metadata.get("error").is_some_and(|error| *error == true);
                let id = sent_ids.iter().find(|id| **id == &**call_id).copied();
                let result = PartParam::Result { name, id, content, failed };
                add(&mut contents, "user", vec![result]);
            }
        }
    }
    contents
}

/// Adds parts to the last content if it has the same role, or as a new content.
fn add<'a>(contents: &mut Vec<ContentParam<'a>>, role: &'static str, parts: Vec<PartParam<'a>>) {
    match contents.last_mut() {
        _ if parts.is_empty() => {}
        Some(last) if last.role == role => last.parts.extend(parts),
        Some(_) | None => contents.push(ContentParam { role, parts }),
    }
}

fn user_parts(content: &types::Content) -> Vec<PartParam<'_>> {
    let parts = content.parts().iter().filter_map(|part| match part {
        // An empty text is not sent.
        ContentPart::Text(text) if text.is_empty() => None,
        ContentPart::Text(text) => Some(PartParam::Text { text, thought: false, members: None }),
        ContentPart::Image(image) => Some(PartParam::Image(image)),
    });
    let parts: Vec<_> = parts.collect();
    // An empty message still separates two contents of the model.
    if parts.is_empty() {
        return vec![PartParam::Text { text: " ", thought: false, members: None }];
    }
    parts
}

fn model_parts<'a>(
    response: &'a ResponseMessage,
    target_model: &ModelOrigin,
) -> Vec<PartParam<'a>> {
    let with_id = |call: &ToolCall| {
        let wire = response.origin.as_ref().map(|origin| origin.wire);
        call.provider_id.is_some() && wire == Some(Wire::GeminiGenerate)
    };
    // The service signs the first call of a response. If that call was removed, the next one needs the placeholder.
    // A response of this model that never had a signed call needs none.
    let is_signed = |part: &types::MessagePart| {
        matches!(part, types::MessagePart::Call { members: Some(_), .. })
    };
    let needs_signature = !response.is_from(target_model) || response.parts.iter().any(is_signed);
    let mut is_first = true;
    let mut parts = Vec::new();
    for part in response.request_parts(target_model) {
        parts.push(match part {
            RequestPart::Text { text, members } => {
                PartParam::Text { text, thought: false, members }
            }
            // Thoughts without a signature need not go back.
            RequestPart::Reasoning { members: None, .. } => continue,
            RequestPart::Reasoning { text, members } => {
                PartParam::Text { text, thought: true, members }
            }
            RequestPart::Call { call, members } => {
                let placeholder = Some(PLACEHOLDER).filter(|_| is_first && needs_signature);
                is_first = false;
                PartParam::Call { call, with_id: with_id(call), members: members.or(placeholder) }
            }
            RequestPart::Raw(json) => PartParam::Raw(json),
        });
    }
    parts
}

impl<'a> PartParam<'a> {
    /// Returns the id that is sent with a call, if there is one.
    fn sent_id(&self) -> Option<&'a str> {
        match self {
            Self::Call { call, with_id: true, .. } => Some(&call.id),
            Self::Call { .. }
            | Self::Text { .. }
            | Self::Image(_)
            | Self::Result { .. }
            | Self::Raw(_) => None,
        }
    }
}

impl Serialize for PartParam<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = match self {
            Self::Raw(json) => match serde_json::from_str::<&RawValue>(json) {
                Ok(raw) => return raw.serialize(serializer),
                // Not reached: this dialect wrote the part as JSON.
                Err(_) => return json.serialize(serializer),
            },
            Self::Text { .. } | Self::Image(_) | Self::Call { .. } | Self::Result { .. } => {
                serializer.serialize_map(None)?
            }
        };
        match self {
            Self::Text { text, thought, members } => {
                map.serialize_entry("text", text)?;
                if *thought {
                    map.serialize_entry("thought", &true)?;
                }
                write_members(&mut map, *members)?;
            }
            Self::Image(image @ Image::Base64 { media_type, data }) => {
                match accepted_media_type(media_type) {
                    Some(media_type) => {
                        let image = json!({"mimeType": media_type, "data": data});
                        map.serialize_entry("inlineData", &image)?;
                    }
                    None => map.serialize_entry("text", &image.model_text())?,
                }
            }
            Self::Image(Image::Url(url)) => {
                let image = json!({"mimeType": mime_type(url), "fileUri": url});
                map.serialize_entry("fileData", &image)?;
            }
            Self::Call { call, with_id, members } => {
                let id = Some(&*call.id).filter(|_| *with_id);
                let args = arguments_object(call);
                let call = FunctionCallParam { id, name: sanitized_tool_name(&call.name), args };
                map.serialize_entry("functionCall", &call)?;
                write_members(&mut map, *members)?;
            }
            Self::Result { name, id, content, failed } => {
                let response = ResultParam::new(content, *failed);
                let (name, parts) = (sanitized_tool_name(name), result_images(content));
                let result = FunctionResponseParam { id: *id, name, response, parts };
                map.serialize_entry("functionResponse", &result)?;
            }
            Self::Raw(_) => {}
        }
        map.end()
    }
}

/// Returns the service's name of a media type, or `None` if the service refuses images of that type
/// (<https://ai.google.dev/gemini-api/docs/image-understanding>, supported image formats).
fn accepted_media_type(media_type: &str) -> Option<&'static str> {
    match media_type.to_ascii_lowercase().as_str() {
        "image/jpeg" | "image/jpg" => Some("image/jpeg"),
        "image/png" => Some("image/png"),
        "image/webp" => Some("image/webp"),
        "image/heic" => Some("image/heic"),
        "image/heif" => Some("image/heif"),
        _ => None,
    }
}

/// Returns the media type of an image by the extension of its address.
fn mime_type(url: &str) -> &'static str {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let end = path.rsplit('/').next().and_then(|name| name.rsplit_once('.'));
    match end.map(|(_, end)| end.to_ascii_lowercase()).as_deref() {
        Some("png") => "image/png",
        Some("webp") => "image/webp",
        Some("gif") => "image/gif",
        Some("heic") => "image/heic",
        Some("heif") => "image/heif",
        Some("bmp") => "image/bmp",
        Some("svg") => "image/svg+xml",
        Some("avif") => "image/avif",
        Some(_) | None => "image/jpeg",
    }
}

#[derive(Serialize)]
struct FunctionCallParam<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    name: Cow<'a, str>,
    args: Cow<'a, Map<String, Value>>,
}

#[derive(Serialize)]
struct FunctionResponseParam<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    name: Cow<'a, str>,
    response: ResultParam<'a>,
    /// The images of the result (<https://ai.google.dev/gemini-api/docs/function-calling>, multimodal function
    /// responses).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<PartParam<'a>>,
}

/// Returns the images with data that the service accepts. The text of the result names all images, so a URL is
/// not lost.
fn result_images(content: &ResultContent) -> Vec<PartParam<'_>> {
    let is_accepted = |image: &&Image| match image {
        Image::Base64 { media_type, .. } => accepted_media_type(media_type).is_some(),
        Image::Url(_) => false,
    };
    content.images().filter(is_accepted).map(PartParam::Image).collect()
}

/// A result as an object. A result that is a JSON object stays one, unless the call failed.
#[derive(Serialize)]
#[serde(untagged)]
enum ResultParam<'a> {
    Object(Map<String, Value>),
    Output { output: &'a str },
    Error { error: &'a str },
}

impl<'a> ResultParam<'a> {
    fn new(content: &'a str, failed: bool) -> Self {
        if failed {
            return Self::Error { error: content };
        }
        let may_be_object = content.trim_start().starts_with('{');
        let object = may_be_object.then(|| serde_json::from_str(content).ok()).flatten();
        object.map_or(Self::Output { output: content }, Self::Object)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::WireFormat as _;
    use crate::{ToolChoice, ToolDefinition};
    use callsheet_values::types::CallKey;

    fn call(index: u32, id: &str, provider_id: Option<&str>, arguments: Value) -> ToolCall {
        ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: id.into(),
            provider_id: provider_id.map(Arc::from),
            name: "add".into(),
            arguments: arguments.into(),
            raw: None,
            indirect: false,
        }
    }

    fn result(id: &str, content: &str, metadata: Value) -> Message {
        let (call_id, name, content) = (id.into(), "add".into(), content.into());
        Message::Tool { call_id, name, content, metadata }
    }

    fn from(wire: Wire, model: &str) -> Option<Arc<ModelOrigin>> {
        Some(Arc::new(ModelOrigin { wire, model: model.into() }))
    }

    fn user(text: &str) -> Message {
        Message::User { content: text.into() }
    }

    fn sent(messages: impl IntoIterator<Item = Message>) -> Value {
        let messages: Vec<Arc<Message>> = messages.into_iter().map(Arc::new).collect();
        let schema = json!({"type": "object", "properties": {"a": {"type": ["integer", "null"]}},
            "additionalProperties": false, "$schema": "x"});
        let tool = |name: &str, schema| ToolDefinition {
            name: name.into(),
            description: "Adds.".into(),
            schema,
        };
        let request = ModelRequest {
            system: Some("Be brief.".into()),
            tools: [tool("add", schema), tool("now", json!({"type": "object"}))].into(),
            tool_choice: ToolChoice::Tool("add".into()),
            parallel_tool_calls: Some(false),
            max_output_tokens: Some(100),
            temperature: Some(0.5),
            ..ModelRequest::new("m", messages.into())
        };
        serde_json::from_slice(&Wire::GeminiGenerate.request_body(&request)).unwrap()
    }

    /// Returns a model's message: reasoning, text, two calls, and a part of the service's own.
    fn model_message() -> ResponseMessage {
        let signed = |text: &str| Some(format!(r#"{{"thoughtSignature":"{text}"}}"#).into());
        ResponseMessage {
            text: "ab".into(),
            reasoning: "hmso".into(),
            calls: vec![
                call(0, "call_0_0", None, json!({"a": 1})),
                call(1, "given", Some("given"), json!({})),
            ],
            origin: from(Wire::GeminiGenerate, "m"),
            parts: vec![
                types::MessagePart::Reasoning { bytes: 2, members: None },
                types::MessagePart::Reasoning { bytes: 2, members: signed("r") },
                types::MessagePart::Text { bytes: 1, members: None },
                types::MessagePart::Text { bytes: 1, members: signed("t") },
                types::MessagePart::Call { index: 0, members: signed("c") },
                types::MessagePart::Raw { json: r#"{"executableCode":{"code":"1"}}"#.into() },
                types::MessagePart::Call { index: 1, members: None },
                types::MessagePart::Text { bytes: 0, members: signed("e") },
            ],
            hint_bytes: None,
        }
    }

    fn history(response: ResponseMessage) -> [Message; 5] {
        [
            user("1 + 2?"),
            Message::Assistant(response.into()),
            result("call_0_0", r#"{"sum": 3}"#, json!({})),
            result("given", "no", json!({"error": true})),
            user("And now?"),
        ]
    }

    #[test]
    fn its_own_model_gets_all_back() {
        insta::assert_json_snapshot!(sent(history(model_message())));
    }

    #[test]
    fn another_model_gets_text_calls_and_a_placeholder() {
        let parts = |origin| {
            let response = ResponseMessage { origin, ..model_message() };
            sent(history(response))["contents"][1]["parts"].clone()
        };
        let first = json!({"functionCall": {"name": "add", "args": {"a": 1}},
            "thoughtSignature": "skip_thought_signature_validator"});
        let text = json!({"text": "ab"});
        let second = json!({"functionCall": {"name": "add", "args": {}}});
        let with_id = json!({"functionCall": {"name": "add", "args": {}, "id": "given"}});
        for (origin, second) in [
            (from(Wire::GeminiGenerate, "other"), &with_id),
            (from(Wire::OpenaiChat, "m"), &second),
            (None, &second),
        ] {
            assert_eq!(parts(origin), json!([text, first, second]));
        }
    }

    #[test]
    fn a_call_whose_signed_sibling_was_removed_gets_the_placeholder() {
        let mut response = model_message();
        response.calls.remove(0);
        let contents =
            sent([user("a"), Message::Assistant(response.into()), result("given", "x", json!({}))]);
        let parts = contents["contents"][1]["parts"].as_array().unwrap();
        let call = parts.iter().find(|part| part.get("functionCall").is_some()).unwrap();
        assert_eq!(call["thoughtSignature"], "skip_thought_signature_validator");
        let mut unsigned = model_message();
        unsigned.parts = Vec::new();
        let contents = sent(history(unsigned));
        assert!(!contents.to_string().contains("Signature"), "{contents}");
    }

    #[test]
    fn contents_of_user_and_model_alternate() {
        let answer = |text: &str| {
            Message::Assistant(
                ResponseMessage { text: text.into(), ..ResponseMessage::default() }.into(),
            )
        };
        let contents = sent([
            answer("hi"),
            user("a"),
            user("b"),
            answer(""),
            user(""),
            answer("x"),
            answer("y"),
        ]);
        assert_eq!(
            contents["contents"],
            json!([
                {"role": "user", "parts": [{"text": BEGINNING}]},
                {"role": "model", "parts": [{"text": "hi"}]},
                {"role": "user", "parts": [{"text": "a"}, {"text": "b"}, {"text": " "}]},
                {"role": "model", "parts": [{"text": "x"}, {"text": "y"}]},
            ])
        );
    }

    #[test]
    fn images_by_their_bytes_and_their_address() {
        let image = |url: &str| ContentPart::Image(Image::parse(url).unwrap());
        let content = vec![
            ContentPart::Text("See:".into()),
            image("data:image/png;base64,AAAA"),
            image("data:image/JPG;base64,AAAA"),
            image("data:image/gif;base64,AAAA"),
            image("https://example.com/a.b/c.WEBP?x=1.gif"),
            image("https://example.com/a.png/c"),
        ];
        let contents = sent([Message::User { content: content.into() }]);
        assert_eq!(
            contents["contents"][0]["parts"],
            json!([
                {"text": "See:"},
                {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
                {"inlineData": {"mimeType": "image/jpeg", "data": "AAAA"}},
                {"text": "[image image/gif, 3 bytes]"},
                {"fileData": {"mimeType": "image/webp",
                    "fileUri": "https://example.com/a.b/c.WEBP?x=1.gif"}},
                {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://example.com/a.png/c"}},
            ])
        );
    }

    #[test]
    fn invalid_names_and_arguments_are_made_valid() {
        let mut response = model_message();
        response.origin = None;
        response.calls.truncate(1);
        response.calls[0].name = "get weather".into();
        response.calls[0].arguments = json!([1]).into();
        let contents = sent([user("a"), Message::Assistant(response.into())]);
        let call = &contents["contents"][1]["parts"][1]["functionCall"];
        let name = call["name"].as_str().unwrap();
        assert!(name.starts_with("get_weather_"), "{name}");
        assert_eq!(call["args"], json!({}));
    }
}
