//! A plain baseline that reads a response of each wire: framing by memchr, and one parse of the
//! events into borrowed structs, whose result is dropped.

use std::borrow::Cow;
use std::hint::black_box;

use callsheet::types::Wire;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Reads a body. Returns a number so that the compiler does not remove the work.
pub(crate) fn read(wire: Wire, body: &[u8]) -> usize {
    let mut read = 0;
    let mut rest = body;
    while let Some(end) = memchr::memchr(b'\n', rest) {
        let line = &rest[..end];
        rest = &rest[end + 1..];
        let data = if wire == Wire::OllamaChat { Some(line) } else { line.strip_prefix(b"data: ") };
        let Some(data) = data else { continue };
        let text = std::str::from_utf8(data).unwrap();
        read += match wire {
            Wire::OpenaiChat if text == "[DONE]" => 0,
            Wire::OpenaiChat => parsed::<Chat<'_>>(text, Chat::bytes),
            Wire::OpenaiResponses => parsed::<Responses<'_>>(text, Responses::bytes),
            Wire::AnthropicMessages => parsed::<Anthropic<'_>>(text, Anthropic::bytes),
            Wire::GeminiGenerate => parsed::<Gemini<'_>>(text, Gemini::bytes),
            Wire::OllamaChat => parsed::<Ollama<'_>>(text, Ollama::bytes),
        };
    }
    read
}

fn parsed<'a, T: Deserialize<'a>>(text: &'a str, bytes: impl Fn(&T) -> usize) -> usize {
    bytes(black_box(&serde_json::from_str(text).unwrap()))
}

type Text<'a> = Option<Cow<'a, str>>;

fn length(text: &Text<'_>) -> usize {
    text.as_ref().map_or(0, |text| text.len())
}

#[derive(Deserialize)]
struct Chat<'a> {
    #[serde(borrow)]
    choices: Vec<ChatChoice<'a>>,
}

#[derive(Deserialize)]
struct ChatChoice<'a> {
    #[serde(borrow)]
    delta: ChatDelta<'a>,
    #[serde(borrow)]
    finish_reason: Text<'a>,
}

#[derive(Deserialize)]
struct ChatDelta<'a> {
    #[serde(borrow)]
    content: Text<'a>,
    #[serde(borrow, default)]
    tool_calls: Vec<ChatCall<'a>>,
}

#[derive(Deserialize)]
struct ChatCall<'a> {
    index: u64,
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    function: ChatFunction<'a>,
}

#[derive(Deserialize)]
struct ChatFunction<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    arguments: Text<'a>,
}

impl Chat<'_> {
    fn bytes(&self) -> usize {
        let mut bytes = 0;
        for choice in &self.choices {
            bytes += length(&choice.delta.content) + length(&choice.finish_reason);
            for call in &choice.delta.tool_calls {
                black_box((call.index, &call.id, &call.function.name));
                bytes += length(&call.function.arguments);
            }
        }
        bytes
    }
}

#[derive(Deserialize)]
struct Responses<'a> {
    #[serde(rename = "type", borrow)]
    kind: Text<'a>,
    output_index: Option<u64>,
    #[serde(borrow)]
    delta: Text<'a>,
    #[serde(borrow)]
    arguments: Text<'a>,
    #[serde(borrow)]
    item: Option<ResponsesItem<'a>>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ResponsesItem<'a> {
    #[serde(rename = "type", borrow)]
    kind: Text<'a>,
    #[serde(borrow)]
    call_id: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    arguments: Text<'a>,
}

impl Responses<'_> {
    fn bytes(&self) -> usize {
        black_box((&self.output_index, &self.response));
        let item = self.item.as_ref().map_or(0, |item| {
            black_box((&item.call_id, &item.name));
            length(&item.kind) + length(&item.arguments)
        });
        length(&self.kind) + length(&self.delta) + length(&self.arguments) + item
    }
}

#[derive(Deserialize)]
struct Anthropic<'a> {
    #[serde(rename = "type", borrow)]
    kind: Text<'a>,
    index: Option<u64>,
    #[serde(borrow)]
    delta: Option<AnthropicDelta<'a>>,
    #[serde(borrow)]
    content_block: Option<AnthropicBlock<'a>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct AnthropicDelta<'a> {
    #[serde(rename = "type", borrow)]
    kind: Text<'a>,
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    partial_json: Text<'a>,
    #[serde(borrow)]
    stop_reason: Text<'a>,
}

#[derive(Deserialize)]
struct AnthropicBlock<'a> {
    #[serde(rename = "type", borrow)]
    kind: Text<'a>,
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

impl Anthropic<'_> {
    fn bytes(&self) -> usize {
        black_box((&self.index, &self.usage));
        let delta = self.delta.as_ref().map_or(0, |delta| {
            length(&delta.kind)
                + length(&delta.text)
                + length(&delta.partial_json)
                + length(&delta.stop_reason)
        });
        let block = self.content_block.as_ref().map_or(0, |block| {
            black_box((&block.id, &block.name, &block.input));
            length(&block.kind)
        });
        length(&self.kind) + delta + block
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Gemini<'a> {
    #[serde(borrow)]
    candidates: Vec<GeminiCandidate<'a>>,
    #[serde(borrow)]
    usage_metadata: Option<GeminiUsage<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiCandidate<'a> {
    #[serde(borrow)]
    content: GeminiContent<'a>,
    #[serde(borrow)]
    finish_reason: Text<'a>,
}

#[derive(Deserialize)]
struct GeminiContent<'a> {
    #[serde(borrow)]
    parts: Vec<GeminiPart<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiPart<'a> {
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    function_call: Option<GeminiCall<'a>>,
}

#[derive(Deserialize)]
struct GeminiCall<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiUsage<'a> {
    prompt_token_count: Option<u64>,
    candidates_token_count: Option<u64>,
    #[serde(borrow)]
    prompt_tokens_details: Option<&'a RawValue>,
}

impl Gemini<'_> {
    fn bytes(&self) -> usize {
        let mut bytes = 0;
        for candidate in &self.candidates {
            bytes += length(&candidate.finish_reason);
            for part in &candidate.content.parts {
                bytes += length(&part.text);
                bytes += part.function_call.as_ref().map_or(0, |call| {
                    length(&call.name) + call.args.map_or(0, |args| args.get().len())
                });
            }
        }
        black_box(self.usage_metadata.as_ref().map(|usage| {
            (usage.prompt_token_count, usage.candidates_token_count, usage.prompt_tokens_details)
        }));
        bytes
    }
}

#[derive(Deserialize)]
struct Ollama<'a> {
    #[serde(borrow)]
    message: OllamaMessage<'a>,
    done: bool,
    #[serde(borrow)]
    done_reason: Text<'a>,
}

#[derive(Deserialize)]
struct OllamaMessage<'a> {
    #[serde(borrow)]
    content: Text<'a>,
    #[serde(borrow, default)]
    tool_calls: Vec<OllamaCall<'a>>,
}

#[derive(Deserialize)]
struct OllamaCall<'a> {
    #[serde(borrow)]
    function: OllamaFunction<'a>,
}

#[derive(Deserialize)]
struct OllamaFunction<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

impl Ollama<'_> {
    fn bytes(&self) -> usize {
        let calls = self.message.tool_calls.iter().map(|call| {
            length(&call.function.name) + call.function.arguments.map_or(0, |raw| raw.get().len())
        });
        let calls: usize = calls.sum();
        usize::from(self.done) + length(&self.done_reason) + length(&self.message.content) + calls
    }
}
