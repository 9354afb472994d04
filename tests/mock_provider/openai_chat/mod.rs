//! Chat Completions: the chunks of a stream, or one plain body.
//!
//! Pure: equal responses and requests give equal bytes, apart from the ids and the time.

mod check;

use serde_json::{Value, json};

use super::encoded::{BodyChunk, ChunkMark};
use super::request_schema::Refusal;
use super::script::Call;
use super::service::{
    MODEL, ProviderRequest, ProviderService, RequestRefusal, ScriptedAnswer, set, tokens,
};

pub(super) use check::check_tool_choice;

/// The service of this wire format.
pub(super) struct OpenaiChat;

impl ProviderService for OpenaiChat {
    fn read(&self, request: &ProviderRequest<'_>) -> Result<Value, RequestRefusal> {
        check::check(request.body).map_err(invalid_request)?;
        Ok(request.body.clone())
    }

    fn stream(&self, answer: &ScriptedAnswer<'_>) -> Vec<BodyChunk> {
        let response = answer.response;
        let chunk = |delta: Value, mark: ChunkMark| {
            BodyChunk::event(&chunk(answer, json!([choice("delta", delta, None)])), mark)
        };
        let opening = json!({"role": "assistant", "content": "", "refusal": null});
        let mut chunks = vec![chunk(opening, ChunkMark::Content)];
        let delta = |field: &str, piece: &str| chunk(json!({field: piece}), ChunkMark::Content);
        chunks.extend(response.reasoning.iter().map(|piece| delta("reasoning_content", piece)));
        chunks.extend(response.text.iter().map(|piece| delta("content", piece)));
        for (place, call) in response.calls.iter().enumerate() {
            let pieces = call_pieces(answer, place, call).into_iter();
            let mark = ChunkMark::Call(place);
            chunks.extend(pieces.map(|piece| chunk(json!({"tool_calls": [piece]}), mark)));
        }
        if response.truncate {
            return chunks;
        }
        if let Some(word) = response.finish_word(&[]) {
            let last = self::chunk(answer, json!([choice("delta", json!({}), Some(&word))]));
            chunks.push(BodyChunk::event(&last, ChunkMark::Finish));
        }
        if response.usage.is_some() || answer.request["stream_options"]["include_usage"] == true {
            let mut last = self::chunk(answer, json!([]));
            last["usage"] = usage(answer);
            chunks.push(BodyChunk::event(&last, ChunkMark::Usage));
        }
        if !response.no_done {
            chunks.push(BodyChunk { bytes: "data: [DONE]\n\n".into(), mark: ChunkMark::Done });
        }
        chunks
    }

    fn plain(&self, answer: &ScriptedAnswer<'_>) -> Value {
        let response = answer.response;
        let content = response.text.concat();
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if content.is_empty() && !response.calls.is_empty() {
            message["content"] = Value::Null;
        }
        if !response.reasoning.is_empty() {
            message["reasoning_content"] = response.reasoning.concat().into();
        }
        if !response.calls.is_empty() {
            let calls = response.calls.iter().enumerate();
            let calls = calls.map(|(place, call)| {
                let mut whole = opening(answer, place, call, &call.arguments_text());
                set(&mut whole, "index", call.index);
                whole
            });
            message["tool_calls"] = calls.collect();
        }
        let finish = response.finish_word(&[]).filter(|_| !response.truncate);
        let choices = json!([choice("message", message, finish.as_deref())]);
        let mut body = envelope(answer, "chat.completion", choices);
        body["usage"] = usage(answer);
        body
    }

    fn error(&self, status: u16, message: &str) -> Value {
        let (kind, code) = match status {
            429 => ("requests", Some("rate_limit_exceeded")),
            401 => ("invalid_request_error", Some("invalid_api_key")),
            404 => ("invalid_request_error", Some("unknown_url")),
            500.. => ("server_error", None),
            _ => ("invalid_request_error", None),
        };
        json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
    }
}

/// Returns the answer to a request with a fault.
pub(super) fn invalid_request(refusal: Refusal) -> RequestRefusal {
    let Refusal { status, message, param, code } = refusal;
    let kind = "invalid_request_error";
    let body = json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
    RequestRefusal { status, body }
}

/// Returns the members that a plain body and every chunk of a stream have, with these choices.
fn envelope(answer: &ScriptedAnswer<'_>, object: &str, choices: Value) -> Value {
    json!({
        "id": format!("chatcmpl-mock-{}", answer.number),
        "object": object,
        "created": answer.created,
        "model": MODEL,
        "system_fingerprint": "mock",
        "choices": choices,
    })
}

fn chunk(answer: &ScriptedAnswer<'_>, choices: Value) -> Value {
    envelope(answer, "chat.completion.chunk", choices)
}

/// Returns a choice with its content: the `delta` of a chunk or the `message` of a plain body.
fn choice(key: &str, content: Value, finish: Option<&str>) -> Value {
    json!({"index": 0, key: content, "logprobs": null, "finish_reason": finish})
}

/// Returns the opening of a call and the pieces of its arguments.
fn call_pieces(answer: &ScriptedAnswer<'_>, place: usize, call: &Call) -> Vec<Value> {
    let index = (!call.no_index).then_some(call.index.unwrap_or(place as u64));
    let indexed = |mut piece: Value| {
        set(&mut piece, "index", index);
        piece
    };
    let pieces = call.argument_pieces().into_iter();
    let pieces = pieces.map(|piece| json!({"function": {"arguments": piece}}));
    std::iter::once(opening(answer, place, call, "")).chain(pieces).map(indexed).collect()
}

/// Returns a call with its id, its name and these arguments.
fn opening(answer: &ScriptedAnswer<'_>, place: usize, call: &Call, arguments: &str) -> Value {
    let mut opening = json!({"type": "function", "function": {"arguments": arguments}});
    set(&mut opening, "id", answer.call_id("call", place, call));
    set(&mut opening["function"], "name", call.name.as_deref());
    opening
}

/// Returns the token counts: the script's, else one token for four bytes.
pub(super) fn usage(answer: &ScriptedAnswer<'_>) -> Value {
    if let Some(usage) = &answer.response.usage {
        return usage.clone();
    }
    let sizes = answer.sizes();
    let (read, thought) = (tokens(sizes.request), tokens(sizes.reasoning));
    let written = tokens(sizes.content) + thought;
    json!({
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": thought},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoded::Encoded;
    use crate::script::{Finish, Response, ScriptPosition};

    fn encode(response: &Response, request: &Value, number: u64, created: u64) -> Encoded {
        OpenaiChat.encode(&ScriptedAnswer { response, request, number, created })
    }

    fn lines(encoded: &Encoded) -> Vec<String> {
        let text = |chunk: &BodyChunk| String::from_utf8(chunk.bytes.to_vec()).unwrap();
        encoded.chunks.iter().map(text).collect()
    }

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

    #[test]
    fn streams_every_part_in_order() {
        let request = json!({"stream": true, "stream_options": {"include_usage": true}});
        let encoded = encode(&asking(), &request, 7, 1);
        let lines = lines(&encoded);
        let datas: Vec<Value> = lines
            .iter()
            .filter_map(|line| line.strip_prefix("data: ")?.strip_suffix("\n\n"))
            .filter_map(|data| serde_json::from_str(data).ok())
            .collect();
        let deltas: Vec<&Value> = datas.iter().map(|data| &data["choices"][0]["delta"]).collect();
        assert_eq!(datas.len(), 11);
        assert_eq!(lines[11], "data: [DONE]\n\n");
        assert_eq!(deltas[1]["reasoning_content"], "hm");
        assert_eq!(deltas[3]["content"], "me.");
        let opening = &deltas[4]["tool_calls"][0];
        assert_eq!(opening["id"], "call_r7_0");
        assert_eq!(opening["function"], json!({"name": "clock", "arguments": ""}));
        assert_eq!(deltas[5]["tool_calls"][0]["function"]["arguments"], "{\"zone\"");
        assert_eq!(
            deltas[6]["tool_calls"][0],
            json!({"index": 0, "function": {"arguments": ":\"UTC\"}"}})
        );
        assert_eq!(deltas[7]["tool_calls"][0]["index"], 1);
        assert_eq!(datas[9]["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!(datas[10]["choices"], json!([]));
        assert!(datas[10]["usage"]["completion_tokens"].as_u64() > Some(0));
        assert!(datas.iter().all(|data| data["model"] == "mock"));
        for (at, number) in [
            (ScriptPosition::Call(0), 4),
            (ScriptPosition::AfterCall(0), 7),
            (ScriptPosition::Call(1), 7),
            (ScriptPosition::Finish, 9),
            (ScriptPosition::Done, 11),
            (ScriptPosition::Chunk(99), 12),
        ] {
            assert_eq!(encoded.position(at), number, "{at:?}");
        }
    }

    #[test]
    fn leaves_out_what_the_script_leaves_out() {
        let count = |change: &dyn Fn(&mut Response)| {
            let mut response = Response::text("a b");
            change(&mut response);
            encode(&response, &json!({"stream": true}), 1, 1).chunks.len()
        };
        assert_eq!(count(&|_| ()), 5);
        assert_eq!(count(&|r| r.no_done = true), 4);
        assert_eq!(count(&|r| r.finish_reason = Finish::Null), 4);
        assert_eq!(count(&|r| r.truncate = true), 3);
        assert_eq!(count(&|r| r.usage = Some(json!({}))), 6);
        let bare = Response::calls([Call { no_id: true, no_index: true, ..Call::default() }]);
        let text = lines(&encode(&bare, &json!({"stream": true}), 1, 1)).concat();
        assert!(
            text.contains(r#"{"tool_calls":[{"function":{"arguments":""},"type":"function"}]}"#),
            "{text}"
        );
    }

    #[test]
    fn plain_body_holds_the_same() {
        let body = lines(&encode(&asking(), &json!({}), 7, 1));
        assert_eq!(body.len(), 2);
        let body: Value = serde_json::from_str(&body.concat()).unwrap();
        assert_eq!(body["object"], "chat.completion");
        let message = &body["choices"][0]["message"];
        assert_eq!(message["content"], "Let me.");
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], r#"{"zone":"UTC"}"#);
        assert_eq!(message["tool_calls"][1]["id"], "x");
        assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
    }
}
