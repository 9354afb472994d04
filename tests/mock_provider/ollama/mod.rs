//! Ollama's own chat: the lines of a stream, or one plain body.
//!
//! Pure: equal responses and requests give equal bytes, apart from the ids and the time.
//! The finish reason, the token counts and `done` are one last line, which is marked as the finish.

mod check;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::encoded::{BodyChunk, ChunkMark, Encoded};
use super::script::{Call, Finish};
use super::service::{
    MODEL, ProviderRequest, ProviderService, RequestRefusal, ScriptedAnswer, set, tokens,
};

/// The service of this wire format.
pub(super) struct Ollama;

impl ProviderService for Ollama {
    fn read(&self, request: &ProviderRequest<'_>) -> Result<Value, RequestRefusal> {
        check::read(request.body).map_err(|message| self.refusal(400, &message))
    }

    fn stream(&self, answer: &ScriptedAnswer<'_>) -> Vec<BodyChunk> {
        let response = answer.response;
        let line = |message: Value, mark| BodyChunk::line(&line(answer, message, false), mark);
        let thought = |piece: &String| json!({"content": "", "thinking": piece});
        let text = |piece: &String| json!({"content": piece});
        let messages = response.reasoning.iter().map(thought).chain(response.text.iter().map(text));
        let mut chunks: Vec<_> =
            messages.map(|message| line(message, ChunkMark::Content)).collect();
        for (place, call) in response.calls.iter().enumerate() {
            let message = json!({"content": "", "tool_calls": [whole_call(answer, place, call)]});
            chunks.push(line(message, ChunkMark::Call(place)));
        }
        if !response.truncate {
            let last = last_line(answer, json!({"content": ""}));
            chunks.push(BodyChunk::line(&last, ChunkMark::Finish));
        }
        chunks
    }

    fn plain(&self, answer: &ScriptedAnswer<'_>) -> Value {
        let response = answer.response;
        let mut message = json!({"content": response.text.concat()});
        if !response.reasoning.is_empty() {
            message["thinking"] = response.reasoning.concat().into();
        }
        if !response.calls.is_empty() {
            let calls = response.calls.iter().enumerate();
            message["tool_calls"] =
                calls.map(|(place, call)| whole_call(answer, place, call)).collect();
        }
        if response.truncate { line(answer, message, false) } else { last_line(answer, message) }
    }

    fn stream_body(&self, chunks: Vec<BodyChunk>) -> Encoded {
        Encoded::lines(chunks)
    }

    fn error(&self, _status: u16, message: &str) -> Value {
        json!({ "error": message })
    }
}

/// Returns the members that a plain body and every line of a stream have, with this message.
fn line(answer: &ScriptedAnswer<'_>, mut message: Value, done: bool) -> Value {
    message["role"] = "assistant".into();
    let seconds = i64::try_from(answer.created).unwrap_or_default();
    let created_at = Timestamp::from_second(seconds).unwrap_or_default().to_string();
    json!({"model": MODEL, "created_at": created_at, "message": message, "done": done})
}

/// Returns the last line of a stream, or a plain body: with the finish reason and the token counts.
fn last_line(answer: &ScriptedAnswer<'_>, message: Value) -> Value {
    let mut line = line(answer, message, !answer.response.no_done);
    let reason = match &answer.response.finish_reason {
        Finish::Word(word) => Some(word.as_str()),
        // Ollama says `stop` for a response with calls too.
        Finish::Inferred => Some("stop"),
        Finish::Null => None,
    };
    set(&mut line, "done_reason", reason);
    for (key, count) in usage(answer).as_object().into_iter().flatten() {
        line[key] = count.clone();
    }
    line
}

/// Returns a call. Ollama sends calls whole, so `pieces` of the script has no effect.
fn whole_call(answer: &ScriptedAnswer<'_>, place: usize, call: &Call) -> Value {
    let arguments = match (&call.arguments_raw, &call.arguments) {
        (Some(raw), _) => serde_json::from_str(raw).unwrap_or_else(|_| raw.as_str().into()),
        (None, Some(arguments)) => arguments.clone(),
        (None, None) => json!({}),
    };
    let mut whole = json!({"function": {"arguments": arguments}});
    set(&mut whole, "id", answer.call_id("call", place, call));
    let index = (!call.no_index).then_some(call.index.unwrap_or(place as u64));
    set(&mut whole["function"], "index", index);
    set(&mut whole["function"], "name", call.name.as_deref());
    whole
}

/// Returns the token counts: the script's, else one token for four bytes.
fn usage(answer: &ScriptedAnswer<'_>) -> Value {
    if let Some(usage) = &answer.response.usage {
        return usage.clone();
    }
    let sizes = answer.sizes();
    let written = tokens(sizes.reasoning + sizes.content);
    json!({"prompt_eval_count": tokens(sizes.request), "eval_count": written})
}

#[cfg(test)]
mod tests {
    use super::super::script::ScriptPosition;
    use super::*;
    use crate::script::Response;

    fn encode(response: &Response, stream: bool) -> Encoded {
        let request = &json!({"stream": stream});
        Ollama.encode(&ScriptedAnswer { response, request, number: 7, created: 1 })
    }

    fn lines(encoded: &Encoded) -> Vec<Value> {
        let bytes: Vec<u8> = encoded.chunks.iter().flat_map(|chunk| chunk.bytes.to_vec()).collect();
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn asking() -> Response {
        Response {
            reasoning: vec!["hm".into()],
            text: vec!["Let ".into(), "me.".into()],
            calls: vec![
                Call { pieces: Some(2), ..Call::new("clock", json!({"zone": "UTC"})) },
                Call { no_index: true, ..Call::raw("clock", "{\"zone\": \"UT").id("x") },
            ],
            ..Response::default()
        }
    }

    #[test]
    fn streams_every_part_in_order() {
        let encoded = encode(&asking(), true);
        assert_eq!(encoded.content_type, "application/x-ndjson");
        let lines = lines(&encoded);
        let messages: Vec<&Value> = lines.iter().map(|line| &line["message"]).collect();
        let role = "assistant";
        let call = |call: Value| json!({"role": role, "content": "", "tool_calls": [call]});
        assert_eq!(
            messages,
            [
                &json!({"role": role, "content": "", "thinking": "hm"}),
                &json!({"role": role, "content": "Let "}),
                &json!({"role": role, "content": "me."}),
                &call(json!({"id": "call_r7_0", "function":
                    {"index": 0, "name": "clock", "arguments": {"zone": "UTC"}}})),
                &call(json!({"id": "x", "function":
                    {"name": "clock", "arguments": "{\"zone\": \"UT"}})),
                &json!({"role": role, "content": ""}),
            ]
        );
        assert!(lines.iter().all(|line| line["model"] == "mock"));
        assert_eq!(lines[0]["created_at"], "1970-01-01T00:00:01Z");
        assert_eq!((&lines[4]["done"], &lines[5]["done"]), (&json!(false), &json!(true)));
        assert_eq!(lines[5]["done_reason"], "stop");
        assert!(lines[5]["eval_count"].as_u64() > Some(0));
        for (at, number) in [
            (ScriptPosition::Call(0), 3),
            (ScriptPosition::AfterCall(0), 4),
            (ScriptPosition::Call(1), 4),
            (ScriptPosition::Finish, 5),
            (ScriptPosition::Done, 6),
            (ScriptPosition::Chunk(99), 6),
        ] {
            assert_eq!(encoded.position(at), number, "{at:?}");
        }
    }

    #[test]
    fn leaves_out_what_the_script_leaves_out() {
        let last = |change: &dyn Fn(&mut Response)| {
            let mut response = Response::text("a b");
            change(&mut response);
            lines(&encode(&response, true)).pop().unwrap()
        };
        assert_eq!(last(&|r| r.no_done = true)["done"], false);
        assert_eq!(last(&|r| r.finish_reason = Finish::Null)["done_reason"], Value::Null);
        assert_eq!(last(&|r| r.truncate = true)["message"]["content"], "b");
        assert_eq!(last(&|r| r.usage = Some(json!({})))["eval_count"], Value::Null);
        let bare = Response::calls([Call { no_id: true, no_index: true, ..Call::default() }]);
        let message = &lines(&encode(&bare, true))[0]["message"];
        assert_eq!(message["tool_calls"], json!([{"function": {"arguments": {}}}]));
    }

    #[test]
    fn a_plain_body_holds_the_same() {
        let body = lines(&encode(&asking(), false)).pop().unwrap();
        let message = &body["message"];
        assert_eq!((&message["content"], &message["thinking"]), (&json!("Let me."), &json!("hm")));
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], json!({"zone": "UTC"}));
        assert_eq!(message["tool_calls"][1]["id"], "x");
        assert_eq!((&body["done"], &body["done_reason"]), (&json!(true), &json!("stop")));
    }
}
