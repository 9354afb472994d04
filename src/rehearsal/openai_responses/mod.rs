//! The Responses API: the events of a stream, or one plain body.
//!
//! Pure: equal responses and requests give equal bytes, apart from the ids and the time. The ids of
//! items that follow reasoning contain a `t`.

mod check;
mod form;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::encoded::{BodyChunk, ChunkMark, Encoded};
use super::openai_chat::OpenaiChat;
use super::script::{Call, Finish, Response};
use super::service::{MODEL, ProviderRequest, ProviderService, RequestRefusal, ResponseStamp};
use super::text::{split_every, split_in};

/// The service of this wire format.
pub(super) enum OpenaiResponses {}

impl ProviderService for OpenaiResponses {
    fn read(asked: &ProviderRequest<'_>) -> Result<Value, RequestRefusal> {
        match check::check(asked.body) {
            Ok(()) => Ok(form::chat_form(asked.body)),
            Err((status, refusal)) => Err(RequestRefusal { status, body: refusal.body() }),
        }
    }

    fn encode(response: &Response, request: &Value, stamp: ResponseStamp) -> Encoded {
        let envelope = Envelope { response, request, stamp };
        if request["stream"] == true {
            Encoded {
                malformed: "data: {\"type\":\"response.output_text.delta\",\"delta\":\n\n",
                ..Encoded::events(envelope.stream())
            }
        } else {
            Encoded::plain(&envelope.whole(&envelope.ending(), envelope.items()))
        }
    }

    fn error(status: u16, message: &str) -> Value {
        OpenaiChat::error(status, message)
    }
}

/// Returns the text that this server sends as encrypted reasoning. It is accepted only with the item
/// that it came with.
fn sealed(id: &str, summary: &str) -> String {
    let digest = Sha256::digest(format!("{id}\n{summary}"));
    let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("rehearsal.{id}.{hash}")
}

/// A response while it is encoded for a request.
struct Envelope<'a> {
    response: &'a Response,
    request: &'a Value,
    stamp: ResponseStamp,
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

impl Envelope<'_> {
    /// Returns the sources of the output items with their indexes.
    fn sources(&self) -> Vec<(usize, ItemSource<'_>)> {
        let Response { reasoning, text, calls, .. } = self.response;
        let thinks = (!reasoning.is_empty()).then_some(ItemSource::Reasoning);
        let speaks = (!text.is_empty() || calls.is_empty()).then_some(ItemSource::Message);
        let calls = calls.iter().enumerate().map(|(place, call)| ItemSource::Call(place, call));
        thinks.into_iter().chain(speaks).chain(calls).enumerate().collect()
    }

    fn id(&self, prefix: &str, index: usize) -> String {
        let thought = if self.response.reasoning.is_empty() { 'r' } else { 't' };
        format!("{prefix}_{thought}{}_{index}", self.stamp.number)
    }

    /// Returns an item in its final form.
    fn item(&self, index: usize, source: &ItemSource<'_>) -> Value {
        match source {
            ItemSource::Reasoning => {
                let id = self.id("rs", index);
                let summary = self.response.reasoning.concat();
                let mut item = json!({"id": id, "type": "reasoning",
                    "summary": [{"type": "summary_text", "text": summary}]});
                let include = self.request["include"].as_array();
                let wanted = |what: &Value| what == "reasoning.encrypted_content";
                if include.is_some_and(|include| include.iter().any(wanted)) {
                    item["encrypted_content"] = sealed(&id, &summary).into();
                }
                item
            }
            ItemSource::Message => {
                let text = self.response.text.concat();
                json!({"id": self.id("msg", index), "type": "message", "status": "completed",
                    "role": "assistant",
                    "content": [{"type": "output_text", "annotations": [], "text": text}]})
            }
            ItemSource::Call(place, call) => {
                let mut item = json!({"id": self.id("fc", index), "type": "function_call",
                    "status": "completed", "arguments": call.arguments_text()});
                if !call.no_id {
                    let made_up = || format!("call_r{}_{place}", self.stamp.number);
                    item["call_id"] = call.id.clone().unwrap_or_else(made_up).into();
                }
                if let Some(name) = &call.name {
                    item["name"] = name.as_str().into();
                }
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

    fn ending(&self) -> Ending {
        let (status, reason) = match &self.response.finish_reason {
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
            "id": format!("resp_rehearsal_{}", self.stamp.number),
            "object": "response",
            "created_at": self.stamp.created,
            "status": ending.status,
            "error": ending.error,
            "incomplete_details": ending.reason.map(|reason| json!({"reason": reason})),
            "model": MODEL,
            "output": output,
            "parallel_tool_calls": true,
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
        let is_cut = self.response.truncate || self.response.finish_reason == Finish::Null;
        if !is_cut {
            let name = match ending.status.as_str() {
                status @ ("incomplete" | "failed" | "cancelled") => format!("response.{status}"),
                _ => "response.completed".to_owned(),
            };
            let response = self.whole(&ending, self.items());
            events.push((json!({"type": name, "response": response}), ChunkMark::Finish));
        }
        let numbered = events.into_iter().zip(0_u64..);
        numbered
            .map(|((mut event, mark), number)| {
                event["sequence_number"] = number.into();
                let name = event["type"].as_str().unwrap_or_default();
                BodyChunk { bytes: format!("event: {name}\ndata: {event}\n\n").into(), mark }
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
        let said = match source {
            ItemSource::Reasoning => {
                begun = json!({"id": item["id"], "type": "reasoning", "summary": []});
                self.thinking(&item["id"])
            }
            ItemSource::Message => {
                begun["status"] = "in_progress".into();
                begun["content"] = json!([]);
                self.speaking(&item["id"])
            }
            ItemSource::Call(place, call) => {
                begun["status"] = "in_progress".into();
                begun["arguments"] = "".into();
                mark = ChunkMark::Call(*place);
                index = call.index.or(index).filter(|_| !call.no_index);
                calling(&item["id"], call)
            }
        };
        let added = json!({"type": "response.output_item.added", "item": begun});
        let done = json!({"type": "response.output_item.done", "item": item});
        for event in std::iter::once(added).chain(said).chain([done]) {
            let event = match index {
                Some(index) => with(event, "output_index", index.into()),
                None => event,
            };
            events.push((event, mark));
        }
    }

    fn thinking(&self, id: &Value) -> Vec<Value> {
        let part = |text: &str| json!({"type": "summary_text", "text": text});
        let event = |name: &str, key: &str, value: Value| {
            let event = json!({"type": format!("response.reasoning_summary_{name}"),
                "item_id": id, "summary_index": 0});
            with(event, key, value)
        };
        let whole = self.response.reasoning.concat();
        let pieces = self.response.reasoning.iter();
        let first = event("part.added", "part", part(""));
        let pieces = pieces.map(|piece| event("text.delta", "delta", piece.as_str().into()));
        let last = [
            event("text.done", "text", whole.as_str().into()),
            event("part.done", "part", part(&whole)),
        ];
        std::iter::once(first).chain(pieces).chain(last).collect()
    }

    fn speaking(&self, id: &Value) -> Vec<Value> {
        let part = |text: &str| json!({"type": "output_text", "annotations": [], "text": text});
        let event = |name: &str, key: &str, value: Value| {
            let event =
                json!({"type": format!("response.{name}"), "item_id": id, "content_index": 0});
            with(event, key, value)
        };
        let whole = self.response.text.concat();
        let pieces = self.response.text.iter();
        let first = event("content_part.added", "part", part(""));
        let pieces = pieces.map(|piece| event("output_text.delta", "delta", piece.as_str().into()));
        let last = [
            event("output_text.done", "text", whole.as_str().into()),
            event("content_part.done", "part", part(&whole)),
        ];
        std::iter::once(first).chain(pieces).chain(last).collect()
    }

    /// Returns the token counts: the script's, else one token for four bytes.
    fn usage(&self) -> Value {
        let Response { reasoning, text, calls, usage, .. } = self.response;
        if let Some(usage) = usage {
            return usage.clone();
        }
        let tokens = |bytes: usize| bytes.div_ceil(4);
        let asked = self.request["messages"].to_string().len();
        let read = tokens(asked + self.request["tools"].to_string().len());
        let thought = tokens(reasoning.iter().map(String::len).sum());
        let said: usize = text.iter().map(String::len).sum();
        let called: usize = calls.iter().map(|call| call.arguments_text().len() + 16).sum();
        let written = tokens(said + called) + thought;
        json!({
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": read + written,
        })
    }
}

fn calling(id: &Value, call: &Call) -> Vec<Value> {
    let text = call.arguments_text();
    let pieces = match call.pieces {
        Some(count) => split_in(&text, count),
        None => split_every(&text, 8),
    };
    let event = |name: &str, key: &str, value: String| {
        let event = json!({"type": format!("response.function_call_arguments.{name}"),
            "item_id": id});
        with(event, key, value.into())
    };
    let pieces = pieces.into_iter().map(|piece| event("delta", "delta", piece));
    pieces.chain([event("done", "arguments", text)]).collect()
}

fn with(mut event: Value, key: &str, value: Value) -> Value {
    event[key] = value;
    event
}

#[cfg(test)]
mod tests {
    use super::super::script::At;
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
        OpenaiResponses::encode(response, &request, ResponseStamp { number: 7, created: 1 })
    }

    fn events(encoded: &Encoded) -> Vec<Value> {
        let text = |chunk: &BodyChunk| String::from_utf8(chunk.bytes.to_vec()).unwrap();
        let data = |text: String| text.split_once("\ndata: ").unwrap().1.to_owned();
        let chunks = encoded.chunks.iter().map(text).map(data);
        chunks.map(|data| serde_json::from_str(&data).unwrap()).collect()
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
        assert_eq!(reasoning["encrypted_content"], sealed("rs_t7_0", "hm"));
        assert_eq!(events[16]["item"]["call_id"], "call_r7_0");
        assert_eq!(
            (&events[16]["output_index"], &events[22]["output_index"]),
            (&json!(2), &json!(3))
        );
        let output = &events[25]["response"]["output"];
        assert_eq!((&output[0], &output[3]["call_id"]), (reasoning, &json!("x")));
        for (at, number) in [
            (At::Call(0), 16),
            (At::AfterCall(0), 21),
            (At::Call(1), 21),
            (At::Finish, 25),
            (At::Done, 26),
        ] {
            assert_eq!(encoded.position(at), number, "{at:?}");
        }
        // The body of a plain answer is the response object of the last event.
        let plain = encode(&asking(), json!({"include": [INCLUDE]}));
        let plain: Vec<u8> = plain.chunks.iter().flat_map(|chunk| chunk.bytes.to_vec()).collect();
        let plain: Value = serde_json::from_slice(&plain).unwrap();
        assert_eq!(plain, events[25]["response"]);
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
