//! Gemini's `generateContent`: the chunks of a stream, or one plain body.
//!
//! Pure: equal responses and requests give equal bytes, apart from the id and the signatures, which depend on the
//! number of the answer. Model and method are part of the path. As with Gemini 3, the first call of a response has a
//! signature. In a response without calls, the last text part has it. A call has an id only if the script gives one.

mod check;
mod signature;
mod translate;

use serde_json::{Value, json};

use super::encoded::{BodyChunk, ChunkMark};
use super::openai_chat;
use super::script::Call;
use super::service::{
    MODEL, ProviderRequest, ProviderService, RequestRefusal, ScriptedAnswer, set,
};
use super::text::split_in;

/// The service of this wire format.
pub(super) struct Gemini;

/// The finish reasons of Chat Completions, and those of this wire format.
const FINISH_REASONS: [(&str, &str); 5] = [
    ("stop", "STOP"),
    ("tool_calls", "STOP"),
    ("length", "MAX_TOKENS"),
    ("content_filter", "SAFETY"),
    ("error", "MALFORMED_FUNCTION_CALL"),
];

impl ProviderService for Gemini {
    fn read(&self, request: &ProviderRequest<'_>) -> Result<Value, RequestRefusal> {
        let (model, method) = request.action.rsplit_once(':').unwrap_or((request.action, ""));
        let stream = match method {
            "streamGenerateContent" => true,
            "generateContent" => false,
            _ => {
                let message = format!("models/{model} has no method {method:?}.");
                return Err(self.refusal(404, &message));
            }
        };
        let body =
            check::check(model, request.body).map_err(|message| self.refusal(400, &message))?;
        Ok(translate::to_chat(model, stream, &body))
    }

    fn stream(&self, answer: &ScriptedAnswer<'_>) -> Vec<BodyChunk> {
        let response = answer.response;
        let chunk = |part: Value, mark: ChunkMark| {
            BodyChunk::event(&envelope(answer, json!([part]), None), mark)
        };
        let text = |text: &str| chunk(json!({"text": text}), ChunkMark::Content);
        let thought = |text: &String| json!({"text": text, "thought": true});
        let mut chunks = vec![text("")];
        let thoughts = response.reasoning.iter().map(thought);
        chunks.extend(thoughts.map(|part| chunk(part, ChunkMark::Content)));
        chunks.extend(response.text.iter().map(|piece| text(piece)));
        for (place, call) in response.calls.iter().enumerate() {
            let parts = call_parts(answer, place, call).into_iter();
            chunks.extend(parts.map(|part| chunk(part, ChunkMark::Call(place))));
        }
        if response.truncate {
            return chunks;
        }
        // The signature of a response without calls comes last, with an empty text.
        let last = text_part(answer, "");
        let finish = response.finish_word(&FINISH_REASONS);
        let mut end = envelope(answer, json!([last]), finish);
        end["usageMetadata"] = usage(answer);
        chunks.push(BodyChunk::event(&end, ChunkMark::Finish));
        chunks
    }

    fn plain(&self, answer: &ScriptedAnswer<'_>) -> Value {
        let response = answer.response;
        let mut parts = Vec::new();
        let thoughts = response.reasoning.concat();
        if !thoughts.is_empty() {
            parts.push(json!({"text": thoughts, "thought": true}));
        }
        let text = response.text.concat();
        if !text.is_empty() {
            parts.push(text_part(answer, &text));
        }
        let calls = response.calls.iter().enumerate();
        parts.extend(calls.map(|(place, call)| whole_call(answer, place, call)));
        let finish = response.finish_word(&FINISH_REASONS).filter(|_| !response.truncate);
        let mut body = envelope(answer, parts.into(), finish);
        body["usageMetadata"] = usage(answer);
        body
    }

    fn error(&self, status: u16, message: &str) -> Value {
        let word = match status {
            400 => "INVALID_ARGUMENT",
            401 => "UNAUTHENTICATED",
            403 => "PERMISSION_DENIED",
            404 => "NOT_FOUND",
            429 => "RESOURCE_EXHAUSTED",
            499 => "CANCELLED",
            500 => "INTERNAL",
            503 => "UNAVAILABLE",
            504 => "DEADLINE_EXCEEDED",
            _ => "UNKNOWN",
        };
        json!({"error": {"code": status, "message": message, "status": word}})
    }
}

/// Returns the members that a plain body and every chunk of a stream have, with these parts.
fn envelope(answer: &ScriptedAnswer<'_>, parts: Value, finish: Option<String>) -> Value {
    let mut candidate = json!({"content": {"role": "model", "parts": parts}, "index": 0});
    set(&mut candidate, "finishReason", finish);
    json!({
        "candidates": [candidate],
        "modelVersion": MODEL,
        "responseId": format!("mock-{}", answer.number),
    })
}

/// Returns the last text of a response. It has the signature if there are no calls.
fn text_part(answer: &ScriptedAnswer<'_>, text: &str) -> Value {
    let mut part = json!({"text": text});
    if answer.response.calls.is_empty() {
        part["thoughtSignature"] = signature::sign(answer.number, "").into();
    }
    part
}

/// Returns the parts of a call: one, or several that stream the arguments, if the script sets `pieces` above 1 and
/// the arguments are an object.
fn call_parts(answer: &ScriptedAnswer<'_>, place: usize, call: &Call) -> Vec<Value> {
    let whole = whole_call(answer, place, call);
    let count = call.pieces.filter(|count| *count > 1);
    let (Some(count), Some(args)) = (count, whole["functionCall"]["args"].as_object()) else {
        return vec![whole];
    };
    let mut pieces = Vec::new();
    for (name, value) in args {
        partial_arguments(&format!("$[{}]", json!(name)), value, count, &mut pieces);
    }
    let mut opening = whole.clone();
    if let Some(call) = opening["functionCall"].as_object_mut() {
        call.remove("args");
        call.insert("willContinue".to_owned(), true.into());
    }
    let piece = |piece| json!({"functionCall": {"partialArgs": [piece], "willContinue": true}});
    let close = json!({"functionCall": {}});
    std::iter::once(opening).chain(pieces.into_iter().map(piece)).chain([close]).collect()
}

fn whole_call(answer: &ScriptedAnswer<'_>, place: usize, call: &Call) -> Value {
    let text = call.arguments_text();
    let mut function = match serde_json::from_str::<Value>(&text) {
        Ok(args) => json!({"args": args}),
        Err(_) if text.trim().is_empty() => json!({}),
        // In this wire format, cut-off arguments are those of a call that is never closed.
        Err(_) => json!({"willContinue": true}),
    };
    set(&mut function, "name", call.name.as_deref());
    set(&mut function, "id", call.id.as_deref().filter(|_| !call.no_id));
    let mut part = json!({"functionCall": function});
    if place == 0 {
        let name = call.name.as_deref().unwrap_or_default();
        part["thoughtSignature"] = signature::sign(answer.number, name).into();
    }
    part
}

/// Appends the leaves of a value to `out`. Each text is split into `count` pieces and an empty last one.
fn partial_arguments(path: &str, value: &Value, count: usize, out: &mut Vec<Value>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, value) in map {
                partial_arguments(&format!("{path}[{}]", json!(name)), value, count, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (place, value) in items.iter().enumerate() {
                partial_arguments(&format!("{path}[{place}]"), value, count, out);
            }
        }
        Value::String(text) => {
            for piece in split_in(text, count) {
                out.push(json!({"jsonPath": path, "stringValue": piece, "willContinue": true}));
            }
            out.push(json!({"jsonPath": path, "stringValue": ""}));
        }
        Value::Bool(truth) => out.push(json!({"jsonPath": path, "boolValue": truth})),
        Value::Number(number) => out.push(json!({"jsonPath": path, "numberValue": number})),
        // The wire format has no piece for an empty object or list, so null is sent for them.
        Value::Null | Value::Object(_) | Value::Array(_) => {
            out.push(json!({"jsonPath": path, "nullValue": "NULL_VALUE"}));
        }
    }
}

/// Returns the token counts: the script's (names of Chat Completions are translated, others are sent unchanged), else
/// one token for each four bytes.
fn usage(answer: &ScriptedAnswer<'_>) -> Value {
    let counts = openai_chat::usage(answer);
    if counts.get("prompt_tokens").is_none() && counts.get("completion_tokens").is_none() {
        return counts;
    }
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let (prompt, written) = (count(&counts["prompt_tokens"]), count(&counts["completion_tokens"]));
    let cached = count(&counts["prompt_tokens_details"]["cached_tokens"]);
    let thought = count(&counts["completion_tokens_details"]["reasoning_tokens"]);
    json!({
        "promptTokenCount": prompt,
        "cachedContentTokenCount": cached,
        // This count does not include the thoughts.
        "candidatesTokenCount": written.saturating_sub(thought),
        "thoughtsTokenCount": thought,
        "totalTokenCount": prompt.saturating_add(written),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{Finish, Response};

    fn payloads(response: &Response, stream: bool) -> Vec<Value> {
        let encoded = Gemini.encode(&ScriptedAnswer {
            response,
            request: &json!({"stream": stream}),
            number: 7,
            created: 0,
        });
        let body: Vec<u8> = encoded.chunks.iter().flat_map(|chunk| chunk.bytes.to_vec()).collect();
        let body = String::from_utf8(body).unwrap();
        let payloads = body.split("\n\n").filter(|event| !event.is_empty());
        payloads
            .map(|event| serde_json::from_str(event.trim_start_matches("data: ")).unwrap())
            .collect()
    }

    fn parts(payloads: &[Value]) -> Vec<Value> {
        let parts = payloads.iter().map(|p| p["candidates"][0]["content"]["parts"].clone());
        parts.flat_map(|parts| parts.as_array().unwrap().clone()).collect()
    }

    #[test]
    fn a_response_says_the_same_in_a_stream_and_plain() {
        let response = Response {
            text: vec!["a".into(), "b".into()],
            reasoning: vec!["r".into()],
            calls: vec![Call::new("f", json!({"x": 1})).id("i"), Call::new("g", json!({}))],
            ..Response::default()
        };
        let sign = signature::sign(7, "f");
        let first = json!({"functionCall": {"name": "f", "args": {"x": 1}, "id": "i"},
            "thoughtSignature": sign});
        let second = json!({"functionCall": {"name": "g", "args": {}}});
        let thought = json!({"text": "r", "thought": true});
        let text = |text: &str| json!({"text": text});
        let plain = payloads(&response, false);
        assert_eq!(parts(&plain), [thought.clone(), text("ab"), first.clone(), second.clone()]);
        let stream = payloads(&response, true);
        assert_eq!(
            parts(&stream),
            [text(""), thought, text("a"), text("b"), first, second, text("")]
        );
        for body in [plain.last().unwrap(), stream.last().unwrap()] {
            assert_eq!(body["candidates"][0]["finishReason"], "STOP");
            assert_eq!(body["usageMetadata"]["thoughtsTokenCount"], 1);
        }
    }

    #[test]
    fn a_call_in_pieces_or_never_closed() {
        let mut call = Call::new("f", json!({"a": {"b": ["xy", 1]}}));
        call.pieces = Some(2);
        let response = Response::calls([call, Call::raw("g", "{\"x\"")]);
        let found = parts(&payloads(&response, true));
        let piece = |value: Value| {
            let mut piece = json!({"jsonPath": "$[\"a\"][\"b\"][0]"});
            piece.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            json!({"functionCall": {"partialArgs": [piece], "willContinue": true}})
        };
        assert_eq!(found[1]["functionCall"], json!({"name": "f", "willContinue": true}));
        assert_eq!(found[2], piece(json!({"stringValue": "x", "willContinue": true})));
        assert_eq!(found[4], piece(json!({"stringValue": ""})));
        assert_eq!(found[6], json!({"functionCall": {}}));
        assert_eq!(found[7]["functionCall"], json!({"name": "g", "willContinue": true}));
    }

    #[test]
    fn words_of_scripts_become_those_of_the_wire() {
        for (word, expected) in
            [("length", "MAX_TOKENS"), ("content_filter", "SAFETY"), ("SPII", "SPII")]
        {
            let response = Response {
                finish_reason: Finish::Word(word.into()),
                usage: Some(json!({"prompt_tokens": 3, "completion_tokens": 2})),
                ..Response::text("a")
            };
            let body = &payloads(&response, false)[0];
            assert_eq!(body["candidates"][0]["finishReason"], expected);
            assert_eq!(body["usageMetadata"]["promptTokenCount"], 3);
        }
    }

    #[test]
    fn counts_of_chat_completions_are_translated() {
        let counts = |usage: Value| {
            let body = payloads(&Response { usage: Some(usage), ..Response::text("a") }, false);
            let names = [
                "promptTokenCount",
                "cachedContentTokenCount",
                "candidatesTokenCount",
                "thoughtsTokenCount",
                "totalTokenCount",
            ];
            names.map(|name| body[0]["usageMetadata"][name].as_u64())
        };
        let whole = json!({
            "prompt_tokens": 9,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        });
        assert_eq!(counts(whole), [9, 4, 3, 2, 14].map(Some));
        assert_eq!(counts(json!({"completion_tokens": 5})), [0, 0, 5, 0, 5].map(Some));
        let own = json!({"promptTokenCount": 7});
        assert_eq!(counts(own), [Some(7), None, None, None, None]);
    }

    #[test]
    fn model_and_method_stand_in_the_path() {
        let body = json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]});
        let read = |action| Gemini.read(&ProviderRequest { body: &body, action });
        let streamed = read("a b:streamGenerateContent").unwrap();
        assert_eq!((&streamed["model"], &streamed["stream"]), (&json!("a b"), &json!(true)));
        assert_eq!(read("m:generateContent").unwrap()["stream"], false);
        assert_eq!(read("m:countTokens").unwrap_err().status, 404);
        assert_eq!(read("m").unwrap_err().body["error"]["status"], "NOT_FOUND");
    }
}
