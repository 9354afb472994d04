//! A response is assembled to the same result on every wire, however the service splits it into
//! events and the network into reads.
#![expect(clippy::unwrap_used, reason = "a test helper that fails is a failed test")]

use callsheet::response::{ResponseAssembler, ResponseLimits, ended_well, parse_arguments};
use callsheet::types::Wire;
use callsheet::wire::{Decoder, DecoderOptions, Framing};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value, json};

/// A model's response: texts, and calls with arguments of a few members.
#[derive(Clone, Debug)]
struct Answer {
    texts: Vec<String>,
    calls: Vec<(String, Map<String, Value>)>,
}

/// The splitting of the response into payloads and chunks.
#[derive(Clone, Debug)]
struct Splitting {
    line_end: &'static str,
    comments: bool,
    piece_chars: usize,
    cuts: Vec<Index>,
}

fn answer() -> impl Strategy<Value = Answer> {
    let value = prop_oneof![
        any::<i32>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
        "[a-z \"\\\\{}é🌍\n]{0,8}".prop_map(Value::from),
        proptest::collection::vec(any::<u8>(), 1..3).prop_map(|items| json!({ "list": items })),
    ];
    let members = proptest::collection::vec(("[a-z .'é]{1,4}", value), 0..4);
    let arguments = members.prop_map(|members| members.into_iter().collect());
    let calls = proptest::collection::vec(("[a-z_]{1,8}", arguments), 0..4);
    let texts = proptest::collection::vec("[a-z é\"\\\\\n🌍]{1,6}", 1..5);
    (texts, calls).prop_map(|(texts, calls)| Answer { texts, calls })
}

fn splitting() -> impl Strategy<Value = Splitting> {
    (
        prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
        any::<bool>(),
        1_usize..9,
        proptest::collection::vec(any::<Index>(), 0..6),
    )
        .prop_map(|(line_end, comments, piece_chars, cuts)| Splitting {
            line_end,
            comments,
            piece_chars,
            cuts,
        })
}

fn pieces(text: &str, chars: usize) -> Vec<String> {
    let all: Vec<char> = text.chars().collect();
    all.chunks(chars).map(|piece| piece.iter().collect()).collect()
}

/// Returns the events of a stream.
fn streamed(wire: Wire, answer: &Answer, chars: usize) -> Vec<Value> {
    let calls = answer.calls.iter().zip(1_usize..);
    let mut events = Vec::new();
    match wire {
        Wire::OpenaiChat => {
            let delta = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]});
            events.extend(answer.texts.iter().map(|text| delta(json!({"content": text}))));
            for ((name, arguments), index) in calls {
                let call = |function: Value| {
                    json!({"tool_calls": [{"index": index, "id": format!("c{index}"),
                        "function": function}]})
                };
                events.push(delta(call(json!({"name": name, "arguments": ""}))));
                for piece in pieces(&json!(arguments).to_string(), chars) {
                    events.push(delta(call(json!({"arguments": piece}))));
                }
            }
            events.push(json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}));
        }
        Wire::OpenaiResponses => {
            events.extend(answer.texts.iter().map(|text| {
                json!({"type": "response.output_text.delta", "output_index": 0, "delta": text})
            }));
            for (call, index) in calls {
                let whole = json!(call.1).to_string();
                let mut item = response_item(call, index);
                item["arguments"] = "".into();
                events.push(json!({"type": "response.output_item.added", "output_index": index,
                    "item": item}));
                events.extend(pieces(&whole, chars).into_iter().map(|piece| {
                    json!({"type": "response.function_call_arguments.delta",
                        "output_index": index, "delta": piece})
                }));
                events.push(json!({"type": "response.function_call_arguments.done",
                    "output_index": index, "arguments": whole}));
                events.push(json!({"type": "response.output_item.done", "output_index": index,
                    "item": response_item(call, index)}));
            }
            events.push(json!({"type": "response.completed", "response": plain(wire, answer)}));
        }
        Wire::AnthropicMessages => {
            let start = |index: usize, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
            let delta = |index: usize, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
            let stop = |index: usize| json!({"type": "content_block_stop", "index": index});
            events.push(start(0, json!({"type": "text", "text": ""})));
            events.extend(
                answer
                    .texts
                    .iter()
                    .map(|text| delta(0, json!({"type": "text_delta", "text": text}))),
            );
            events.push(stop(0));
            for ((name, arguments), index) in calls {
                let id = format!("c{index}");
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                events.push(start(index, block));
                for piece in pieces(&json!(arguments).to_string(), chars) {
                    let piece = json!({"type": "input_json_delta", "partial_json": piece});
                    events.push(delta(index, piece));
                }
                events.push(stop(index));
            }
            events.push(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}));
            events.push(json!({"type": "message_stop"}));
        }
        Wire::GeminiGenerate => {
            let chunk = |part: Value| json!({"candidates": [{"content": {"parts": [part]}}]});
            events.extend(answer.texts.iter().map(|text| chunk(json!({"text": text}))));
            for ((name, arguments), _) in calls {
                // The arguments come in pieces with their paths, and an empty piece closes the call.
                events.push(chunk(json!({"functionCall": {"name": name, "willContinue": true}})));
                for (key, value) in arguments {
                    for part in partial(key, value, chars) {
                        events.push(chunk(json!({"functionCall": {"partialArgs": [part],
                            "willContinue": true}})));
                    }
                }
                events.push(chunk(json!({"functionCall": {}})));
            }
            events.push(json!({"candidates": [{"finishReason": "STOP"}]}));
        }
        Wire::OllamaChat => {
            let line = |message: Value| json!({"message": message, "done": false});
            events.extend(answer.texts.iter().map(|text| line(json!({"content": text}))));
            for ((name, arguments), _) in calls {
                let function = json!({"name": name, "arguments": arguments});
                events.push(line(json!({"content": "", "tool_calls": [{"function": function}]})));
            }
            events.push(json!({"message": {"content": ""}, "done": true, "done_reason": "stop"}));
        }
    }
    events
}

/// Returns one member of the arguments as items of Gemini's `partialArgs`.
fn partial(key: &str, value: &Value, chars: usize) -> Vec<Value> {
    let path = format!("$['{}']", key.replace('\\', "\\\\").replace('\'', "\\'"));
    match value {
        Value::Null => vec![json!({"jsonPath": path, "nullValue": "NULL_VALUE"})],
        Value::Bool(truth) => vec![json!({"jsonPath": path, "boolValue": truth})],
        Value::Number(number) => vec![json!({"jsonPath": path, "numberValue": number})],
        Value::String(text) if text.is_empty() => {
            vec![json!({"jsonPath": path, "stringValue": ""})]
        }
        Value::String(text) => {
            let pieces = pieces(text, chars).into_iter();
            pieces.map(|piece| json!({"jsonPath": path, "stringValue": piece})).collect()
        }
        Value::Array(items) => {
            let items = items.iter().zip(0..);
            items
                .map(|(item, at)| json!({"jsonPath": format!("{path}[{at}]"), "numberValue": item}))
                .collect()
        }
        Value::Object(map) => map
            .iter()
            .flat_map(|(inner, value)| {
                let deeper = partial("x", value, chars);
                let path = format!("{path}.{inner}");
                deeper.into_iter().map(move |mut part| {
                    let tail = part["jsonPath"].as_str().unwrap().replacen("$['x']", "", 1);
                    part["jsonPath"] = format!("{path}{tail}").into();
                    part
                })
            })
            .collect(),
    }
}

fn response_item((name, arguments): &(String, Map<String, Value>), index: usize) -> Value {
    json!({"type": "function_call", "id": format!("fc_{index}"), "call_id": format!("c{index}"),
        "name": name, "arguments": json!(arguments).to_string(), "status": "completed"})
}

/// Returns the answer as a plain body.
fn plain(wire: Wire, answer: &Answer) -> Value {
    let text = answer.texts.concat();
    let calls = answer.calls.iter().zip(1_usize..);
    match wire {
        Wire::OpenaiChat => {
            let calls: Vec<Value> = calls
                .map(|((name, arguments), index)| {
                    json!({"id": format!("c{index}"), "function": {"name": name,
                        "arguments": json!(arguments).to_string()}})
                })
                .collect();
            json!({"choices": [{"index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": text, "tool_calls": calls}}]})
        }
        Wire::OpenaiResponses => {
            let message = json!({"type": "message", "role": "assistant",
                "content": [{"type": "output_text", "text": text}]});
            let calls = calls.map(|(call, index)| response_item(call, index));
            let output: Vec<Value> = std::iter::once(message).chain(calls).collect();
            json!({"object": "response", "status": "completed", "output": output})
        }
        Wire::AnthropicMessages => {
            let calls = calls.map(|((name, arguments), index)| {
                json!({"type": "tool_use", "id": format!("c{index}"), "name": name,
                    "input": arguments})
            });
            let text = json!({"type": "text", "text": text});
            let content: Vec<Value> = std::iter::once(text).chain(calls).collect();
            json!({"type": "message", "content": content, "stop_reason": "end_turn"})
        }
        Wire::GeminiGenerate => {
            let calls = calls.map(
                |((name, arguments), _)| json!({"functionCall": {"name": name, "args": arguments}}),
            );
            let parts: Vec<Value> = std::iter::once(json!({"text": text})).chain(calls).collect();
            json!({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})
        }
        Wire::OllamaChat => {
            let calls: Vec<Value> = calls
                .map(|((name, arguments), _)| {
                    json!({"function": {"name": name, "arguments": arguments}})
                })
                .collect();
            json!({"message": {"content": text, "tool_calls": calls}, "done": true,
                "done_reason": "stop"})
        }
    }
}

/// Returns a body of these events in a framing that can hold several.
fn body(framing: Framing, events: &[Value], splitting: &Splitting) -> Vec<u8> {
    let end = splitting.line_end;
    match framing {
        Framing::Sse => {
            let comment =
                if splitting.comments { format!(": hi{end}{end}") } else { String::new() };
            let framed = events.iter().map(|event| format!("{comment}data: {event}{end}{end}"));
            framed.collect::<String>().into_bytes()
        }
        Framing::JsonLines => {
            // A line of JSON ends with a line feed.
            let end = if splitting.comments { "\r\n" } else { "\n" };
            events.iter().map(|event| format!("{event}{end}")).collect::<String>().into_bytes()
        }
        Framing::Json => events.first().unwrap().to_string().into_bytes(),
        Framing::JsonArray => json!(events).to_string().into_bytes(),
    }
}

fn read(wire: Wire, framing: Framing, body: &[u8], cuts: &[Index]) -> ResponseAssembler {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
    cuts.extend([0, body.len()]);
    cuts.sort_unstable();
    let mut decoder = Decoder::new(wire, framing, DecoderOptions::default());
    let mut response = ResponseAssembler::new(ResponseLimits::default());
    let mut deltas = Vec::new();
    for cut in cuts.windows(2) {
        decoder.push(&body[cut[0]..cut[1]], &mut deltas).unwrap();
    }
    decoder.finish(&mut deltas).unwrap();
    deltas.iter().for_each(|delta| drop(response.push(delta)));
    let well = ended_well(&response);
    response.drop_nameless_call();
    if well {
        response.seal_all();
    }
    response
}

proptest! {
    #[test]
    fn a_split_response_is_assembled_correctly(answer in answer(), splitting in splitting()) {
        // Pieces that could be snapshots of the whole text count as such.
        let is_snapshot = |pair: &[String]| pair[0].len() >= 8 && pair[1].starts_with(&pair[0]);
        prop_assume!(!answer.texts.windows(2).any(is_snapshot));
        for (_, wire) in Wire::NAMES {
            let events = streamed(wire, &answer, splitting.piece_chars);
            let whole = [plain(wire, &answer)];
            for (framing, events) in [
                (Framing::Sse, &events[..]),
                (Framing::JsonLines, &events),
                (Framing::JsonArray, &events),
                (Framing::Json, &whole),
            ] {
                let body = body(framing, events, &splitting);
                let response = read(wire, framing, &body, &splitting.cuts);
                let how = format!("{wire} as {framing}: {}", String::from_utf8_lossy(&body));
                prop_assert!(ended_well(&response) && response.problems().is_empty(), "{}", how);
                prop_assert_eq!(response.text(), answer.texts.concat(), "{}", how);
                let found: Vec<_> = response
                    .calls()
                    .iter()
                    .map(|call| (call.name.to_string(), parse_arguments(&call.raw).object().cloned()))
                    .collect();
                let expected: Vec<_> = answer
                    .calls
                    .iter()
                    .map(|(name, arguments)| (name.clone(), Some(json!(arguments))))
                    .collect();
                prop_assert_eq!(found, expected, "{}", how);
                prop_assert!(response.calls().iter().all(|call| call.sealed));
                // Any other split gives the same.
                prop_assert!(read(wire, framing, &body, &[]) == response, "{}", how);
            }
        }
    }
}
