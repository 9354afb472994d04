//! The Responses API: the events of a stream, or one plain body.
//!
//! Pure: equal responses and requests give equal bytes, apart from the ids and the time.
//!
//! The item ids of a response with reasoning have a `t` before the response's number (`msg_t7_1`), those of
//! other responses an `r`. By the `t`, [`check`] sees in a later request that an item came with reasoning,
//! which must be sent back too.

mod check;
mod form;

use serde_json::{Value, json};

use super::encoded::{BodyChunk, ChunkMark, Encoded};
use super::openai_chat::OpenaiChat;
use super::openai_chat::invalid_request;
use super::script::{Call, Finish, Response};
use super::service::{
    MODEL, ProviderRequest, ProviderService, RequestRefusal, ScriptedAnswer, set, tokens,
};
use super::text::{hash, items};

/// The service of this wire format.
pub(super) struct OpenaiResponses;

impl ProviderService for OpenaiResponses {
    fn read(&self, request: &ProviderRequest<'_>) -> Result<Value, RequestRefusal> {
        check::check(request.body).map_err(invalid_request)?;
        Ok(form::chat_form(request.body))
    }

    fn stream(&self, answer: &ScriptedAnswer<'_>) -> Vec<BodyChunk> {
        ResponseEncoder { answer }.stream()
    }

    fn plain(&self, answer: &ScriptedAnswer<'_>) -> Value {
        let encoder = ResponseEncoder { answer };
        let mut body = encoder.whole(&encoder.ending(), encoder.items());
        if !encoder.has_finish() {
            for member in ["status", "incomplete_details", "error"] {
                body[member] = Value::Null;
            }
        }
        body
    }

    fn stream_body(&self, chunks: Vec<BodyChunk>) -> Encoded {
        Encoded {
            malformed: "data: {\"type\":\"response.output_text.delta\",\"delta\":\n\n",
            ..Encoded::events(chunks)
        }
    }

    fn error(&self, status: u16, message: &str) -> Value {
        OpenaiChat.error(status, message)
    }
}

/// Returns the text that this server sends as encrypted reasoning. It is accepted only with the same summary,
/// and not with the id of another item.
fn encrypted_content(id: &str, summary: &str) -> String {
    format!("mock.{id}.{}", hash(&format!("{id}\n{summary}"), 8))
}

/// Encodes one response.
struct ResponseEncoder<'a> {
    answer: &'a ScriptedAnswer<'a>,
}

/// The end of a response.
struct Ending {
    status: String,
    /// The reason why it is incomplete.
    reason: Option<&'static str>,
    error: Value,
}

/// The source of an output item.
enum ItemSource<'a> {
    Reasoning,
    Message,
    Call(usize, &'a Call),
}

impl ResponseEncoder<'_> {
    /// Returns the sources of the output items with their indexes.
    fn sources(&self) -> Vec<(usize, ItemSource<'_>)> {
        let Response { reasoning, text, calls, .. } = self.answer.response;
        let reasoning = (!reasoning.is_empty()).then_some(ItemSource::Reasoning);
        let message = (!text.is_empty() || calls.is_empty()).then_some(ItemSource::Message);
        let calls = calls.iter().enumerate().map(|(place, call)| ItemSource::Call(place, call));
        reasoning.into_iter().chain(message).chain(calls).enumerate().collect()
    }

    fn id(&self, prefix: &str, index: usize) -> String {
        let thought = if self.answer.response.reasoning.is_empty() { 'r' } else { 't' };
        format!("{prefix}_{thought}{}_{index}", self.answer.number)
    }

    /// Returns an item in its final form.
    fn item(&self, index: usize, source: &ItemSource<'_>) -> Value {
        match source {
            ItemSource::Reasoning => {
                let id = self.id("rs", index);
                let summary = self.answer.response.reasoning.concat();
                let mut item = json!({"id": id, "type": "reasoning",
                    "summary": [{"type": "summary_text", "text": summary}]});
                let wanted = |what: &Value| what == "reasoning.encrypted_content";
                if items(&self.answer.request["include"]).iter().any(wanted) {
                    item["encrypted_content"] = encrypted_content(&id, &summary).into();
                }
                item
            }
            ItemSource::Message => {
                let text = self.answer.response.text.concat();
                json!({"id": self.id("msg", index), "type": "message", "status": "completed",
                    "role": "assistant",
                    "content": [{"type": "output_text", "annotations": [], "text": text}]})
            }
            ItemSource::Call(place, call) => {
                let mut item = json!({"id": self.id("fc", index), "type": "function_call",
                    "status": "completed", "arguments": call.arguments_text()});
                set(&mut item, "call_id", self.answer.call_id("call", *place, call));
                set(&mut item, "name", call.name.as_deref());
                item
            }
        }
    }

    fn items(&self) -> Vec<Value> {
        let mut items: Vec<Value> =
            self.sources().iter().map(|(index, source)| self.item(*index, source)).collect();
        if let (Some(last), Some(_)) = (items.last_mut(), self.ending().reason) {
            last["status"] = "incomplete".into();
        }
        items
    }

    /// Returns whether the script lets the response have a finish reason.
    fn has_finish(&self) -> bool {
        let Response { truncate, finish_reason, .. } = self.answer.response;
        !truncate && *finish_reason != Finish::Null
    }

    fn ending(&self) -> Ending {
        let (status, reason) = match &self.answer.response.finish_reason {
            Finish::Inferred | Finish::Null => ("completed", None),
            Finish::Word(word) => match word.as_str() {
                "stop" | "tool_calls" => ("completed", None),
                "length" | "incomplete" => ("incomplete", Some("max_output_tokens")),
                "content_filter" => ("incomplete", Some("content_filter")),
                "error" => ("failed", None),
                word => (word, None),
            },
        };
        let error = match status {
            "failed" => json!({"code": "server_error", "message": "The model had a problem."}),
            _ => Value::Null,
        };
        Ending { status: status.to_owned(), reason, error }
    }

    fn whole(&self, ending: &Ending, output: Vec<Value>) -> Value {
        let is_over = ending.status != "in_progress";
        json!({
            "id": format!("resp_mock_{}", self.answer.number),
            "object": "response",
            "created_at": self.answer.created,
            "status": ending.status,
            "error": ending.error,
            "incomplete_details": ending.reason.map(|reason| json!({"reason": reason})),
            "model": MODEL,
            "output": output,
            "parallel_tool_calls": self.answer.request["parallel_tool_calls"] != false,
            "store": false,
            "usage": is_over.then(|| self.usage()),
        })
    }

    fn stream(&self) -> Vec<BodyChunk> {
        let mut events = Vec::new();
        let ending = self.ending();
        let begun = Ending { status: "in_progress".to_owned(), reason: None, error: Value::Null };
        for name in ["response.created", "response.in_progress"] {
            let response = self.whole(&begun, Vec::new());
            events.push((json!({"type": name, "response": response}), ChunkMark::Content));
        }
        for ((index, source), item) in self.sources().into_iter().zip(self.items()) {
            self.item_events(index, &source, &item, &mut events);
        }
        if self.has_finish() {
            let name = match ending.status.as_str() {
                status @ ("incomplete" | "failed" | "cancelled") => format!("response.{status}"),
                _ => "response.completed".to_owned(),
            };
            let response = self.whole(&ending, self.items());
            events.push((json!({"type": name, "response": response}), ChunkMark::Finish));
        }
        let numbered = events.into_iter().zip(0_u64..);
        numbered
            .map(|((event, mark), number)| {
                BodyChunk::named_event(&with(event, "sequence_number", number.into()), mark)
            })
            .collect()
    }

    fn item_events(
        &self,
        index: usize,
        source: &ItemSource<'_>,
        item: &Value,
        events: &mut Vec<(Value, ChunkMark)>,
    ) {
        let mut begun = item.clone();
        let (mut index, mut mark) = (Some(index as u64), ChunkMark::Content);
        let between = match source {
            ItemSource::Reasoning => {
                begun = json!({"id": item["id"], "type": "reasoning", "summary": []});
                let part = |text: &str| json!({"type": "summary_text", "text": text});
                let names = ["reasoning_summary_part", "reasoning_summary_text", "summary_index"];
                text_events(&item["id"], names, part, &self.answer.response.reasoning)
            }
            ItemSource::Message => {
                begun["status"] = "in_progress".into();
                begun["content"] = json!([]);
                let part =
                    |text: &str| json!({"type": "output_text", "annotations": [], "text": text});
                let names = ["content_part", "output_text", "content_index"];
                text_events(&item["id"], names, part, &self.answer.response.text)
            }
            ItemSource::Call(place, call) => {
                begun["status"] = "in_progress".into();
                begun["arguments"] = "".into();
                mark = ChunkMark::Call(*place);
                index = call.index.or(index).filter(|_| !call.no_index);
                call_events(&item["id"], call)
            }
        };
        let added = json!({"type": "response.output_item.added", "item": begun});
        let done = json!({"type": "response.output_item.done", "item": item});
        for mut event in std::iter::once(added).chain(between).chain([done]) {
            set(&mut event, "output_index", index);
            events.push((event, mark));
        }
    }

    /// Returns the token counts: the script's, else one token for four bytes.
    fn usage(&self) -> Value {
        if let Some(usage) = &self.answer.response.usage {
            return usage.clone();
        }
        let sizes = self.answer.sizes();
        let (read, thought) = (tokens(sizes.request), tokens(sizes.reasoning));
        let written = tokens(sizes.content) + thought;
        json!({
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": read + written,
        })
    }
}

/// Returns the events of a text between the opening and the end of its item. `names` are those of
/// the part, of its text, and of the member that holds the part's index.
fn text_events(
    id: &Value,
    names: [&str; 3],
    part: impl Fn(&str) -> Value,
    pieces: &[String],
) -> Vec<Value> {
    let [part_name, text_name, index] = names;
    let event = |name: &str, change: &str, key: &str, value: Value| json!({"type": format!("response.{name}.{change}"), "item_id": id, index: 0, key: value});
    let whole = pieces.concat();
    let first = event(part_name, "added", "part", part(""));
    let deltas =
        pieces.iter().map(|piece| event(text_name, "delta", "delta", piece.as_str().into()));
    let last = [
        event(text_name, "done", "text", whole.as_str().into()),
        event(part_name, "done", "part", part(&whole)),
    ];
    std::iter::once(first).chain(deltas).chain(last).collect()
}

/// Returns the events of a call between the opening and the end of its item.
fn call_events(id: &Value, call: &Call) -> Vec<Value> {
    let event = |change: &str, key: &str, value: String| {
        json!({"type": format!("response.function_call_arguments.{change}"), "item_id": id,
            key: value})
    };
    let deltas = call.argument_pieces().into_iter().map(|piece| event("delta", "delta", piece));
    deltas.chain([event("done", "arguments", call.arguments_text())]).collect()
}

fn with(mut event: Value, key: &str, value: Value) -> Value {
    event[key] = value;
    event
}

#[cfg(test)]
mod tests {
    use super::super::script::ScriptPosition;
    use super::*;

    const INCLUDE: &str = "reasoning.encrypted_content";

    fn asking() -> Response {
        Response {
            reasoning: vec!["h".into(), "m".into()],
            text: vec!["Let ".into(), "me.".into()],
            calls: vec![
                Call { pieces: Some(2), ..Call::new("clock", json!({"zone": "UTC"})) },
                Call::new("clock", json!({})).id("x"),
            ],
            ..Response::default()
        }
    }

    fn encode(response: &Response, request: Value) -> Encoded {
        OpenaiResponses.encode(&ScriptedAnswer {
            response,
            request: &request,
            number: 7,
            created: 1,
        })
    }

    fn events(encoded: &Encoded) -> Vec<Value> {
        let text = |chunk: &BodyChunk| String::from_utf8(chunk.bytes.to_vec()).unwrap();
        let data = |text: String| text.split_once("\ndata: ").unwrap().1.to_owned();
        let chunks = encoded.chunks.iter().map(text).map(data);
        chunks.map(|data| serde_json::from_str(&data).unwrap()).collect()
    }

    fn plain_body(response: &Response, request: Value) -> Value {
        let chunks = encode(response, request).chunks;
        let bytes: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.bytes.to_vec()).collect();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn streams_every_part_in_order() {
        let encoded = encode(&asking(), json!({"stream": true, "include": [INCLUDE]}));
        let events = events(&encoded);
        let short = |event: &Value| {
            event["type"].as_str().unwrap().trim_start_matches("response.").to_owned()
        };
        let types: Vec<_> = events.iter().map(short).collect();
        assert_eq!(
            types,
            [
                "created",
                "in_progress",
                "output_item.added",
                "reasoning_summary_part.added",
                "reasoning_summary_text.delta",
                "reasoning_summary_text.delta",
                "reasoning_summary_text.done",
                "reasoning_summary_part.done",
                "output_item.done",
                "output_item.added",
                "content_part.added",
                "output_text.delta",
                "output_text.delta",
                "output_text.done",
                "content_part.done",
                "output_item.done",
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
                "completed",
            ]
        );
        assert!(events.iter().zip(0..).all(|(event, at)| event["sequence_number"] == at));
        let reasoning = &events[8]["item"];
        assert_eq!(reasoning["encrypted_content"], encrypted_content("rs_t7_0", "hm"));
        assert_eq!(events[16]["item"]["call_id"], "call_r7_0");
        assert_eq!(
            (&events[16]["output_index"], &events[22]["output_index"]),
            (&json!(2), &json!(3))
        );
        let output = &events[25]["response"]["output"];
        assert_eq!((&output[0], &output[3]["call_id"]), (reasoning, &json!("x")));
        for (at, number) in [
            (ScriptPosition::Call(0), 16),
            (ScriptPosition::AfterCall(0), 21),
            (ScriptPosition::Call(1), 21),
            (ScriptPosition::Finish, 25),
            (ScriptPosition::Done, 26),
        ] {
            assert_eq!(encoded.position(at), number, "{at:?}");
        }
        // The body of a plain answer is the response object of the last event.
        let plain = plain_body(&asking(), json!({"include": [INCLUDE]}));
        assert_eq!(plain, events[25]["response"]);
    }

    #[test]
    fn a_plain_answer_without_a_finish_reason_has_no_status() {
        let text = || Response::text("a b");
        for response in [
            Response { truncate: true, ..text() },
            Response { truncate: true, finish_reason: Finish::Word("error".into()), ..text() },
            Response { finish_reason: Finish::Null, ..text() },
        ] {
            let body = plain_body(&response, json!({}));
            for member in ["status", "incomplete_details", "error"] {
                assert_eq!(body[member], Value::Null, "{response:?}");
            }
            assert_eq!(body["output"][0]["content"][0]["text"], "a b");
        }
    }

    #[test]
    fn the_answer_repeats_whether_calls_may_be_parallel() {
        let parallel = |request: Value| {
            plain_body(&Response::text("a"), request)["parallel_tool_calls"].clone()
        };
        assert_eq!(parallel(json!({})), true);
        assert_eq!(parallel(json!({"parallel_tool_calls": false})), false);
    }

    #[test]
    fn ends_as_the_script_says() {
        let last = |finish: Finish| {
            let response = Response { finish_reason: finish, ..Response::text("a b") };
            events(&encode(&response, json!({"stream": true}))).pop().unwrap()
        };
        let word = |word: &str| last(Finish::Word(word.into()));
        assert_eq!(last(Finish::Inferred)["response"]["status"], "completed");
        assert_eq!(word("length")["response"]["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(word("length")["response"]["output"][0]["status"], "incomplete");
        assert_eq!(word("content_filter")["type"], "response.incomplete");
        assert_eq!(word("error")["response"]["error"]["code"], "server_error");
        assert_eq!(last(Finish::Null)["type"], "response.output_item.done");
    }
}
