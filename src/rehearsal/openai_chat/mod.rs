//! Chat Completions: the chunks of a stream, or one plain body.
//!
//! Pure: equal responses and requests give equal bytes, apart from the id and the time.

mod check;
mod content;

use serde_json::{Value, json};

use super::encoded::{BodyChunk, ChunkMark, Encoded};
use super::script::{Call, Finish, Response};
use super::service::{MODEL, ProviderRequest, ProviderService, RequestRefusal, ResponseStamp};
use super::text::{split_every, split_in};

pub(super) use check::check_name;
pub use check::{Refusal, check};

/// The service of this wire format.
pub(super) enum OpenaiChat {}

impl ProviderService for OpenaiChat {
    fn read(asked: &ProviderRequest<'_>) -> Result<Value, RequestRefusal> {
        match check(asked.body) {
            Ok(()) => Ok(asked.body.clone()),
            Err(refusal) => Err(RequestRefusal { status: 400, body: refusal.body() }),
        }
    }

    fn encode(response: &Response, request: &Value, stamp: ResponseStamp) -> Encoded {
        let envelope = Envelope { stamp };
        if request["stream"] == true {
            Encoded::events(envelope.stream(response, request))
        } else {
            Encoded::plain(&envelope.plain(response, request))
        }
    }

    fn error(status: u16, message: &str) -> Value {
        let (kind, code) = match status {
            429 => ("requests", Some("rate_limit_exceeded")),
            401 => ("invalid_request_error", Some("invalid_api_key")),
            404 => ("invalid_request_error", Some("unknown_url")),
            500.. => ("server_error", None),
            _ => ("invalid_request_error", None),
        };
        check::error_body(message, kind, None, code)
    }
}

/// The members that every chunk of a response repeats.
struct Envelope {
    stamp: ResponseStamp,
}

impl Envelope {
    fn wrap(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": format!("chatcmpl-rehearsal-{}", self.stamp.number),
            "object": object,
            "created": self.stamp.created,
            "model": MODEL,
            "system_fingerprint": "callsheet-rehearsal",
            "choices": choices,
        })
    }

    fn chunk(&self, delta: Value, finish: Option<&str>, mark: ChunkMark) -> BodyChunk {
        let choices =
            json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
        BodyChunk::event(&self.wrap("chat.completion.chunk", choices), mark)
    }

    fn stream(&self, response: &Response, request: &Value) -> Vec<BodyChunk> {
        let opening = json!({"role": "assistant", "content": "", "refusal": null});
        let mut chunks = vec![self.chunk(opening, None, ChunkMark::Content)];
        let say =
            |field: &str, piece: &str| self.chunk(json!({field: piece}), None, ChunkMark::Content);
        chunks.extend(response.reasoning.iter().map(|piece| say("reasoning_content", piece)));
        chunks.extend(response.text.iter().map(|piece| say("content", piece)));
        for (place, call) in response.calls.iter().enumerate() {
            for piece in self.call_pieces(place, call) {
                chunks.push(self.chunk(
                    json!({"tool_calls": [piece]}),
                    None,
                    ChunkMark::Call(place),
                ));
            }
        }
        if response.truncate {
            return chunks;
        }
        if let Some(word) = finish_word(response) {
            chunks.push(self.chunk(json!({}), Some(&word), ChunkMark::Finish));
        }
        if response.usage.is_some() || request["stream_options"]["include_usage"] == true {
            let mut last = self.wrap("chat.completion.chunk", json!([]));
            last["usage"] = usage(response, request);
            chunks.push(BodyChunk::event(&last, ChunkMark::Usage));
        }
        if !response.no_done {
            chunks.push(BodyChunk { bytes: "data: [DONE]\n\n".into(), mark: ChunkMark::Done });
        }
        chunks
    }

    /// Returns the opening of a call and the pieces of its arguments.
    fn call_pieces(&self, place: usize, call: &Call) -> Vec<Value> {
        let text = call.arguments_text();
        let pieces = match call.pieces {
            Some(count) => split_in(&text, count),
            None => split_every(&text, 8),
        };
        let indexed = |mut piece: Value| {
            if !call.no_index {
                piece["index"] = json!(call.index.unwrap_or(place as u64));
            }
            piece
        };
        let mut opening = json!({"type": "function", "function": {"arguments": ""}});
        if !call.no_id {
            opening["id"] = self.call_id(place, call).into();
        }
        if let Some(name) = &call.name {
            opening["function"]["name"] = name.as_str().into();
        }
        let rest = pieces.iter().map(|piece| json!({"function": {"arguments": piece}}));
        std::iter::once(opening).chain(rest).map(indexed).collect()
    }

    fn call_id(&self, place: usize, call: &Call) -> String {
        call.id.clone().unwrap_or_else(|| format!("call_r{}_{place}", self.stamp.number))
    }

    fn plain(&self, response: &Response, request: &Value) -> Value {
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
            message["tool_calls"] =
                calls.map(|(place, call)| self.plain_call(place, call)).collect();
        }
        let finish = finish_word(response).filter(|_| !response.truncate);
        let choices =
            json!([{"index": 0, "message": message, "logprobs": null, "finish_reason": finish}]);
        let mut body = self.wrap("chat.completion", choices);
        body["usage"] = usage(response, request);
        body
    }

    fn plain_call(&self, place: usize, call: &Call) -> Value {
        let mut whole =
            json!({"type": "function", "function": {"arguments": call.arguments_text()}});
        if !call.no_id {
            whole["id"] = self.call_id(place, call).into();
        }
        if let Some(name) = &call.name {
            whole["function"]["name"] = name.as_str().into();
        }
        if let Some(index) = call.index {
            whole["index"] = index.into();
        }
        whole
    }
}

fn finish_word(response: &Response) -> Option<String> {
    match &response.finish_reason {
        Finish::Word(word) => Some(word.clone()),
        Finish::Null => None,
        Finish::Inferred if response.calls.is_empty() => Some("stop".to_owned()),
        Finish::Inferred => Some("tool_calls".to_owned()),
    }
}

/// Returns the token counts: the script's, else one token for four bytes.
pub(super) fn usage(response: &Response, request: &Value) -> Value {
    if let Some(usage) = &response.usage {
        return usage.clone();
    }
    let tokens = |bytes: usize| bytes.div_ceil(4);
    let read = tokens(request["messages"].to_string().len() + request["tools"].to_string().len());
    let thought = tokens(response.reasoning.iter().map(String::len).sum());
    let said: usize = response.text.iter().map(String::len).sum();
    let asked: usize = response.calls.iter().map(|call| call.arguments_text().len() + 16).sum();
    let written = tokens(said + asked) + thought;
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
    use super::super::script::At;
    use super::*;

    fn encode(response: &Response, request: &Value, number: u64, created: u64) -> Encoded {
        OpenaiChat::encode(response, request, ResponseStamp { number, created })
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
        assert!(datas.iter().all(|data| data["model"] == "rehearsal"));
        for (at, number) in [
            (At::Call(0), 4),
            (At::AfterCall(0), 7),
            (At::Call(1), 7),
            (At::Finish, 9),
            (At::Done, 11),
            (At::Chunk(99), 12),
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
