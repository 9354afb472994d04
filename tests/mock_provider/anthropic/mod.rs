//! Anthropic's Messages: the events of a stream, or one plain body.
//!
//! Pure: equal responses and requests give equal bytes, apart from the ids.

mod chat;
mod check;

use serde_json::{Value, json};

use super::encoded::{BodyChunk, ChunkMark, Encoded};
use super::openai_chat;
use super::script::Call;
use super::service::{
    MODEL, ProviderRequest, ProviderService, RequestRefusal, ScriptedAnswer, set,
};
use super::text::hash;

/// The service of this wire format.
pub(super) struct Anthropic;

/// The finish reasons of Chat Completions, and those of this wire format.
const STOP_REASONS: [(&str, &str); 4] = [
    ("stop", "end_turn"),
    ("tool_calls", "tool_use"),
    ("length", "max_tokens"),
    ("content_filter", "refusal"),
];

impl ProviderService for Anthropic {
    fn read(&self, request: &ProviderRequest<'_>) -> Result<Value, RequestRefusal> {
        check::check(request.body).map_err(|message| self.refusal(400, &message))?;
        Ok(chat::request(request.body))
    }

    fn stream(&self, answer: &ScriptedAnswer<'_>) -> Vec<BodyChunk> {
        let response = answer.response;
        let usage = usage(answer);
        let mut opening_usage = usage.clone();
        opening_usage["output_tokens"] = 1.into();
        let opening = message(answer, json!([]), None, opening_usage);
        let opening =
            [json!({"type": "message_start", "message": opening}), json!({"type": "ping"})];
        let mut chunks =
            opening.map(|event| BodyChunk::named_event(&event, ChunkMark::Content)).to_vec();
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
            let pieces = call.argument_pieces().into_iter();
            let pieces =
                pieces.map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
            let opening = call_block(answer, place, call, json!({}));
            chunks.extend(block(index, &opening, pieces, ChunkMark::Call(place)));
        }
        if response.truncate {
            return chunks;
        }
        if let Some(word) = response.finish_word(&STOP_REASONS) {
            let delta = json!({"stop_reason": word, "stop_sequence": null});
            let last = json!({"type": "message_delta", "delta": delta, "usage": usage});
            chunks.push(BodyChunk::named_event(&last, ChunkMark::Finish));
        }
        if !response.no_done {
            let stop = json!({"type": "message_stop"});
            chunks.push(BodyChunk::named_event(&stop, ChunkMark::Done));
        }
        chunks
    }

    fn plain(&self, answer: &ScriptedAnswer<'_>) -> Value {
        let response = answer.response;
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
            call_block(answer, place, call, input)
        }));
        let word = response.finish_word(&STOP_REASONS).filter(|_| !response.truncate);
        message(answer, content.into(), word.as_deref(), usage(answer))
    }

    fn stream_body(&self, chunks: Vec<BodyChunk>) -> Encoded {
        Encoded {
            malformed: "event: content_block_delta\n\
                        data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\n\n",
            keep_alive: "event: ping\ndata: {\"type\": \"ping\"}\n\n",
            ..Encoded::events(chunks)
        }
    }

    fn error(&self, status: u16, message: &str) -> Value {
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
const SIGNATURE_BEGIN: &str = "mock-";

/// Returns the signature of a thought. It fails to verify if the thought is changed.
fn signature(thinking: &str) -> String {
    format!("{SIGNATURE_BEGIN}{}", hash(&format!("callsheet mock {thinking}"), 32))
}

fn message(
    answer: &ScriptedAnswer<'_>,
    content: Value,
    stop_reason: Option<&str>,
    usage: Value,
) -> Value {
    json!({
        "id": format!("msg_mock_{}", answer.number),
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": null,
        "usage": usage,
    })
}

/// Returns the content block of a call.
fn call_block(answer: &ScriptedAnswer<'_>, place: usize, call: &Call, input: Value) -> Value {
    let mut block = json!({"type": "tool_use", "input": input});
    set(&mut block, "id", answer.call_id("toolu", place, call));
    set(&mut block, "name", call.name.as_deref());
    block
}

/// Returns the events of a content block: start, deltas, stop.
fn block(
    index: Option<u64>,
    opening: &Value,
    pieces: impl Iterator<Item = Value>,
    mark: ChunkMark,
) -> Vec<BodyChunk> {
    let start = json!({"type": "content_block_start", "content_block": opening});
    let deltas = pieces.map(|delta| json!({"type": "content_block_delta", "delta": delta}));
    let stop = json!({"type": "content_block_stop"});
    let indexed = |mut event: Value| {
        set(&mut event, "index", index);
        BodyChunk::named_event(&event, mark)
    };
    std::iter::once(start).chain(deltas).chain([stop]).map(indexed).collect()
}

/// Returns the token counts: the script's, with the names of this wire format or of Chat Completions,
/// else estimated.
fn usage(answer: &ScriptedAnswer<'_>) -> Value {
    let counts = openai_chat::usage(answer);
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
    use super::*;
    use crate::script::{Finish, Response, ScriptPosition};
    use crate::text::items;

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
        Anthropic.encode(&ScriptedAnswer { response, request: &request, number: 7, created: 1 })
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
        let order: Vec<Value> = events
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
            Value::from(order),
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
            (ScriptPosition::Call(0), 10),
            (ScriptPosition::AfterCall(0), 14),
            (ScriptPosition::Call(1), 14),
            (ScriptPosition::Finish, 17),
            (ScriptPosition::Done, 18),
            (ScriptPosition::Chunk(99), 19),
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
        let kinds: Vec<_> = items(&body["content"]).iter().map(|b| &b["type"]).collect();
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
        assert_eq!(Anthropic.error(529, "m")["error"]["type"], "overloaded_error");
    }
}
