//! Anthropic's Messages: the events of a stream, or one plain body.
//!
//! Pure: equal responses and requests give equal bytes, apart from the id.

mod chat;
mod check;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::encoded::{BodyChunk, ChunkMark, Encoded};
use super::openai_chat;
use super::script::{Call, Finish, Response};
use super::service::{MODEL, ProviderRequest, ProviderService, RequestRefusal, ResponseStamp};
use super::text::{split_every, split_in};

/// The service of this wire format.
pub(super) enum Anthropic {}

impl ProviderService for Anthropic {
    fn read(asked: &ProviderRequest<'_>) -> Result<Value, RequestRefusal> {
        match check::check(asked.body) {
            Ok(()) => Ok(chat::request(asked.body)),
            Err(message) => Err(RequestRefusal { status: 400, body: Self::error(400, &message) }),
        }
    }

    fn encode(response: &Response, request: &Value, stamp: ResponseStamp) -> Encoded {
        let envelope = Envelope { stamp };
        if request["stream"] == true {
            Encoded {
                malformed: "event: content_block_delta\n\
                            data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\n\n",
                keep_alive: "event: ping\ndata: {\"type\": \"ping\"}\n\n",
                ..Encoded::events(envelope.stream(response, request))
            }
        } else {
            Encoded::plain(&envelope.plain(response, request))
        }
    }

    fn error(status: u16, message: &str) -> Value {
        let kind = match status {
            401 => "authentication_error",
            402 => "billing_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            504 => "timeout_error",
            529 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": message}})
    }
}

/// The prefix of a signature of this server.
const SIGNATURE_BEGIN: &str = "rehearsal-";

/// Returns the signature of a thought. It fails to verify if the thought is changed.
fn signature(thinking: &str) -> String {
    let hash = Sha256::digest(format!("callsheet rehearsal {thinking}"));
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{SIGNATURE_BEGIN}{hex}")
}

/// The members that every event of a response repeats.
struct Envelope {
    stamp: ResponseStamp,
}

impl Envelope {
    fn message(&self, content: Value, stop_reason: Option<&str>, usage: Value) -> Value {
        json!({
            "id": format!("msg_rehearsal_{}", self.stamp.number),
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": null,
            "usage": usage,
        })
    }

    fn stream(&self, response: &Response, request: &Value) -> Vec<BodyChunk> {
        let usage = usage(response, request);
        let mut opening_usage = usage.clone();
        opening_usage["output_tokens"] = 1.into();
        let opening = self.message(json!([]), None, opening_usage);
        let start = json!({"type": "message_start", "message": opening});
        let ping = json!({"type": "ping"});
        let mut chunks = vec![event(&start, ChunkMark::Content), event(&ping, ChunkMark::Content)];
        let mut index = 0;
        if !response.reasoning.is_empty() {
            let pieces = response.reasoning.iter();
            let pieces = pieces.map(|piece| json!({"type": "thinking_delta", "thinking": piece}));
            let signature = signature(&response.reasoning.concat());
            let signed = json!({"type": "signature_delta", "signature": signature});
            let opening = json!({"type": "thinking", "thinking": "", "signature": ""});
            let pieces = pieces.chain([signed]);
            chunks.extend(block(Some(index), &opening, pieces, ChunkMark::Content));
            index += 1;
        }
        if !response.text.is_empty() {
            let pieces = response.text.iter();
            let pieces = pieces.map(|piece| json!({"type": "text_delta", "text": piece}));
            let opening = json!({"type": "text", "text": ""});
            chunks.extend(block(Some(index), &opening, pieces, ChunkMark::Content));
            index += 1;
        }
        for (place, call) in response.calls.iter().enumerate() {
            let index = (!call.no_index).then_some(call.index.unwrap_or(index + place as u64));
            let text = call.arguments_text();
            let pieces = match call.pieces {
                Some(count) => split_in(&text, count),
                None => split_every(&text, 8),
            };
            let pieces = pieces
                .iter()
                .map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
            let opening = self.call(place, call, json!({}));
            chunks.extend(block(index, &opening, pieces, ChunkMark::Call(place)));
        }
        if response.truncate {
            return chunks;
        }
        if let Some(word) = stop_reason(response) {
            let delta = json!({"stop_reason": word, "stop_sequence": null});
            let last = json!({"type": "message_delta", "delta": delta, "usage": usage});
            chunks.push(event(&last, ChunkMark::Finish));
        }
        if !response.no_done {
            chunks.push(event(&json!({"type": "message_stop"}), ChunkMark::Done));
        }
        chunks
    }

    fn call(&self, place: usize, call: &Call, input: Value) -> Value {
        let mut block = json!({"type": "tool_use", "input": input});
        if !call.no_id {
            let made = || format!("toolu_r{}_{place}", self.stamp.number);
            block["id"] = call.id.clone().unwrap_or_else(made).into();
        }
        if let Some(name) = &call.name {
            block["name"] = name.as_str().into();
        }
        block
    }

    fn plain(&self, response: &Response, request: &Value) -> Value {
        let mut content = Vec::new();
        if !response.reasoning.is_empty() {
            let thinking = response.reasoning.concat();
            let signature = signature(&thinking);
            content.push(json!({"type": "thinking", "thinking": thinking, "signature": signature}));
        }
        if !response.text.is_empty() {
            content.push(json!({"type": "text", "text": response.text.concat()}));
        }
        let calls = response.calls.iter().enumerate();
        content.extend(calls.map(|(place, call)| {
            let text = call.arguments_text();
            let input = match text.as_str() {
                "" => json!({}),
                // A plain body can hold text that is not JSON only as a string.
                _ => serde_json::from_str(&text).unwrap_or(Value::String(text)),
            };
            self.call(place, call, input)
        }));
        let word = stop_reason(response).filter(|_| !response.truncate);
        self.message(content.into(), word.as_deref(), usage(response, request))
    }
}

/// Returns the events of a content block: start, deltas, stop.
fn block(
    index: Option<u64>,
    opening: &Value,
    pieces: impl Iterator<Item = Value>,
    mark: ChunkMark,
) -> Vec<BodyChunk> {
    let indexed = |mut payload: Value| {
        if let Some(index) = index {
            payload["index"] = index.into();
        }
        event(&payload, mark)
    };
    let mut chunks =
        vec![indexed(json!({"type": "content_block_start", "content_block": opening}))];
    chunks.extend(
        pieces.map(|delta| indexed(json!({"type": "content_block_delta", "delta": delta}))),
    );
    chunks.push(indexed(json!({"type": "content_block_stop"})));
    chunks
}

/// Returns an event whose name is its type.
fn event(payload: &Value, mark: ChunkMark) -> BodyChunk {
    let name = payload["type"].as_str().unwrap_or_default();
    BodyChunk { bytes: format!("event: {name}\ndata: {payload}\n\n").into(), mark }
}

/// Returns the stop reason, with the words of Chat Completions translated.
fn stop_reason(response: &Response) -> Option<String> {
    let word = match &response.finish_reason {
        Finish::Word(word) => match word.as_str() {
            "stop" => "end_turn",
            "tool_calls" => "tool_use",
            "length" => "max_tokens",
            "content_filter" => "refusal",
            other => other,
        },
        Finish::Null => return None,
        Finish::Inferred if response.calls.is_empty() => "end_turn",
        Finish::Inferred => "tool_use",
    };
    Some(word.to_owned())
}

/// Returns the token counts: the script's, with the names of this wire format or of Chat Completions,
/// else estimated.
fn usage(response: &Response, request: &Value) -> Value {
    let counts = openai_chat::usage(response, request);
    if counts.get("prompt_tokens").is_none() && counts.get("completion_tokens").is_none() {
        return counts;
    }
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let cached = count(&counts["prompt_tokens_details"]["cached_tokens"]);
    let thought = count(&counts["completion_tokens_details"]["reasoning_tokens"]);
    json!({
        "input_tokens": count(&counts["prompt_tokens"]).saturating_sub(cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": count(&counts["completion_tokens"]),
        "output_tokens_details": {"thinking_tokens": thought},
    })
}

#[cfg(test)]
mod tests {
    use super::super::script::At;
    use super::*;

    fn asking() -> Response {
        Response {
            reasoning: vec!["hm".into()],
            text: vec!["Let ".into(), "me.".into()],
            calls: vec![
                Call { pieces: Some(2), ..Call::new("clock", json!({"zone": "UTC"})) },
                Call::new("clock", json!({})).id("x"),
            ],
            ..Response::default()
        }
    }

    fn encode(response: &Response, stream: bool) -> Encoded {
        let request = json!({"stream": stream, "messages": []});
        Anthropic::encode(response, &request, ResponseStamp { number: 7, created: 1 })
    }

    fn text(encoded: &Encoded) -> String {
        encoded.chunks.iter().map(|chunk| str::from_utf8(&chunk.bytes).unwrap()).collect()
    }

    #[test]
    fn streams_every_part_in_order_under_its_name() {
        let encoded = encode(&asking(), true);
        let text = text(&encoded);
        let events: Vec<(&str, Value)> = text
            .split_terminator("\n\n")
            .map(|event| {
                let (name, data) = event.split_once("\ndata: ").unwrap();
                (name.strip_prefix("event: ").unwrap(), serde_json::from_str(data).unwrap())
            })
            .collect();
        assert!(events.iter().all(|(name, data)| data["type"] == *name));
        let said: Vec<Value> = events
            .iter()
            .map(|(name, data)| match *name {
                "content_block_start" => {
                    json!([data["index"], data["content_block"]["type"]])
                }
                "content_block_delta" => json!([data["index"], data["delta"]["type"]]),
                _ => json!(name),
            })
            .collect();
        let stop = "content_block_stop";
        assert_eq!(
            Value::from(said),
            json!([
                "message_start",
                "ping",
                [0, "thinking"],
                [0, "thinking_delta"],
                [0, "signature_delta"],
                stop,
                [1, "text"],
                [1, "text_delta"],
                [1, "text_delta"],
                stop,
                [2, "tool_use"],
                [2, "input_json_delta"],
                [2, "input_json_delta"],
                stop,
                [3, "tool_use"],
                [3, "input_json_delta"],
                stop,
                "message_delta",
                "message_stop",
            ])
        );
        assert_eq!(events[10].1["content_block"]["id"], "toolu_r7_0");
        assert_eq!(events[17].1["delta"]["stop_reason"], "tool_use");
        assert!(events[17].1["usage"]["output_tokens"].as_u64() > Some(0));
        for (at, number) in [
            (At::Call(0), 10),
            (At::AfterCall(0), 14),
            (At::Call(1), 14),
            (At::Finish, 17),
            (At::Done, 18),
            (At::Chunk(99), 19),
        ] {
            assert_eq!(encoded.position(at), number, "{at:?}");
        }
    }

    #[test]
    fn leaves_out_what_the_script_leaves_out() {
        let count = |change: &dyn Fn(&mut Response)| {
            let mut response = Response::text("a b");
            change(&mut response);
            encode(&response, true).chunks.len()
        };
        assert_eq!(count(&|_| ()), 8);
        assert_eq!(count(&|r| r.no_done = true), 7);
        assert_eq!(count(&|r| r.finish_reason = Finish::Null), 7);
        assert_eq!(count(&|r| r.truncate = true), 6);
        let bare = Response::calls([Call { no_id: true, no_index: true, ..Call::default() }]);
        let text = text(&encode(&bare, true));
        assert!(text.contains(r#"{"content_block":{"input":{},"type":"tool_use"},"#), "{text}");
    }

    #[test]
    fn plain_body_holds_the_same() {
        let body: Value = serde_json::from_str(&text(&encode(&asking(), false))).unwrap();
        let kinds: Vec<_> = chat::items(&body["content"]).iter().map(|b| &b["type"]).collect();
        assert_eq!(kinds, ["thinking", "text", "tool_use", "tool_use"]);
        assert_eq!(body["content"][2]["input"], json!({"zone": "UTC"}));
        assert_eq!(body["stop_reason"], "tool_use");
        let raw = Response::calls([Call::raw("f", "{cut")]);
        let body: Value = serde_json::from_str(&text(&encode(&raw, false))).unwrap();
        assert_eq!(body["content"][0]["input"], "{cut");
    }

    #[test]
    fn words_and_counts_of_chat_completions_are_translated() {
        let response = Response {
            finish_reason: Finish::Word("length".into()),
            usage: Some(json!({"prompt_tokens": 9, "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 4}})),
            ..Response::text("a")
        };
        let body: Value = serde_json::from_str(&text(&encode(&response, false))).unwrap();
        assert_eq!(body["stop_reason"], "max_tokens");
        let usage = &body["usage"];
        assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&json!(5), &json!(5)));
        assert_eq!(usage["cache_read_input_tokens"], 4);
        assert_eq!(Anthropic::error(529, "m")["error"]["type"], "overloaded_error");
    }
}
