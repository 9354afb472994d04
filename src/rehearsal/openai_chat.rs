//! Answers in Chat Completions: the chunks of a stream, or one plain body.
//!
//! Pure: equal answers and requests give equal bytes, apart from the ids and the time.

use std::iter;

use serde_json::{Value, json};

use super::text::split_every;
use super::{Call, RehearsedAnswer};

/// The name under which the rehearsal model answers, whatever model was requested.
const MODEL: &str = "rehearsal";

/// The number and time of an answer, from which its ids are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerId {
    /// The number of the request at this server, from 1.
    pub(super) number: u64,
    /// Unix time in seconds.
    pub(super) created: u64,
}

/// Returns the server-sent events of an answer.
pub(super) fn stream(answer: &RehearsedAnswer, request: &Value, id: AnswerId) -> Vec<String> {
    let chunk = |choices: Value| envelope(id, "chat.completion.chunk", choices);
    let delta = |delta: Value| chunk(json!([choice("delta", delta, None)]));
    let opening = json!({"role": "assistant", "content": "", "refusal": null});
    let texts = answer.text.iter().map(|piece| json!({"content": piece}));
    let calls = answer.calls.iter().enumerate().flat_map(|(index, call)| {
        let pieces = split_every(&call.arguments.to_string(), 8).into_iter();
        let pieces = pieces.map(|piece| json!({"function": {"arguments": piece}}));
        iter::once(opened_call(id, index, call, "")).chain(pieces).map(move |mut piece| {
            piece["index"] = index.into();
            json!({"tool_calls": [piece]})
        })
    });
    let mut chunks: Vec<Value> = iter::once(opening).chain(texts).chain(calls).map(delta).collect();
    chunks.push(chunk(json!([choice("delta", json!({}), Some(finish_reason(answer)))])));
    if request["stream_options"]["include_usage"] == true {
        let mut last = chunk(json!([]));
        last["usage"] = usage(answer, request);
        chunks.push(last);
    }
    let events = chunks.iter().map(|data| format!("data: {data}\n\n"));
    events.chain(["data: [DONE]\n\n".to_owned()]).collect()
}

/// Returns an answer as one plain body.
pub(super) fn plain(answer: &RehearsedAnswer, request: &Value, id: AnswerId) -> Value {
    let content = answer.text.concat();
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !answer.calls.is_empty() {
        let calls = answer.calls.iter().enumerate();
        let whole = |(index, call): (usize, &Call)| {
            opened_call(id, index, call, &call.arguments.to_string())
        };
        message["tool_calls"] = calls.map(whole).collect();
        if content.is_empty() {
            message["content"] = Value::Null;
        }
    }
    let choices = json!([choice("message", message, Some(finish_reason(answer)))]);
    let mut body = envelope(id, "chat.completion", choices);
    body["usage"] = usage(answer, request);
    body
}

/// Returns the body of the answer to a request that cannot be answered.
pub(super) fn error(message: &str) -> Value {
    let kind = "invalid_request_error";
    json!({"error": {"message": message, "type": kind, "param": null, "code": null}})
}

/// Returns the members that a plain body and every chunk of a stream have, with these choices.
fn envelope(id: AnswerId, object: &str, choices: Value) -> Value {
    json!({
        "id": format!("chatcmpl-rehearsal-{}", id.number),
        "object": object,
        "created": id.created,
        "model": MODEL,
        "system_fingerprint": "callsheet-rehearsal",
        "choices": choices,
    })
}

/// Returns a choice with its content: the `delta` of a chunk or the `message` of a plain body.
fn choice(key: &str, content: Value, finish: Option<&str>) -> Value {
    json!({"index": 0, key: content, "logprobs": null, "finish_reason": finish})
}

/// Returns a call with its id, its name and these arguments.
fn opened_call(id: AnswerId, index: usize, call: &Call, arguments: &str) -> Value {
    json!({
        "id": format!("call_r{}_{index}", id.number),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    })
}

fn finish_reason(answer: &RehearsedAnswer) -> &'static str {
    if answer.calls.is_empty() { "stop" } else { "tool_calls" }
}

/// Returns the estimated token counts: one token for each four bytes, and 16 bytes for each call besides its
/// arguments.
fn usage(answer: &RehearsedAnswer, request: &Value) -> Value {
    let bytes = |value: &Value| value.to_string().len();
    let text: usize = answer.text.iter().map(String::len).sum();
    let calls: usize = answer.calls.iter().map(|call| bytes(&call.arguments) + 16).sum();
    let read = (bytes(&request["messages"]) + bytes(&request["tools"])).div_ceil(4);
    let written = (text + calls).div_ceil(4);
    json!({
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking() -> RehearsedAnswer {
        let call = |arguments| Call { name: "clock".to_owned(), arguments };
        RehearsedAnswer {
            text: vec!["Let ".to_owned(), "me.".to_owned()],
            calls: vec![call(json!({"zone": "UTC"})), call(json!({}))],
        }
    }

    #[test]
    fn a_stream_has_every_part_in_order() {
        let request = json!({"stream": true, "stream_options": {"include_usage": true}});
        let events = stream(&asking(), &request, AnswerId { number: 7, created: 1 });
        let datas: Vec<Value> = events
            .iter()
            .filter_map(|event| event.strip_prefix("data: ")?.strip_suffix("\n\n"))
            .filter_map(|data| serde_json::from_str(data).ok())
            .collect();
        assert_eq!((events.len(), datas.len()), (11, 10));
        assert_eq!(events[10], "data: [DONE]\n\n");
        let deltas: Vec<&Value> = datas.iter().map(|data| &data["choices"][0]["delta"]).collect();
        assert_eq!(deltas[0]["role"], "assistant");
        assert_eq!((&deltas[1]["content"], &deltas[2]["content"]), (&json!("Let "), &json!("me.")));
        let function = json!({"name": "clock", "arguments": ""});
        assert_eq!(
            deltas[3]["tool_calls"],
            json!([{"index": 0, "id": "call_r7_0", "type": "function", "function": function}])
        );
        assert_eq!(
            deltas[5]["tool_calls"],
            json!([{"index": 0, "function": {"arguments": "\"UTC\"}"}}])
        );
        assert_eq!(deltas[6]["tool_calls"][0]["id"], "call_r7_1");
        assert_eq!(datas[8]["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!(datas[9]["choices"], json!([]));
        assert!(datas[9]["usage"]["completion_tokens"].as_u64() > Some(0));
        assert!(datas.iter().all(|data| data["model"] == "rehearsal"));
        assert_eq!(stream(&asking(), &json!({}), AnswerId { number: 7, created: 1 }).len(), 10);
    }

    #[test]
    fn a_plain_body_has_the_same() {
        let body = plain(&asking(), &json!({}), AnswerId { number: 7, created: 1 });
        assert_eq!(body["object"], "chat.completion");
        let message = &body["choices"][0]["message"];
        assert_eq!(message["content"], "Let me.");
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], r#"{"zone":"UTC"}"#);
        assert_eq!(message["tool_calls"][1]["id"], "call_r7_1");
        assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
    }
}
