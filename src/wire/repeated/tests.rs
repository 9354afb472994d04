use std::fmt::Debug;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::wire::anthropic::Anthropic;
use crate::wire::dialect::Dialect;
use crate::wire::ollama::Ollama;
use crate::wire::openai_chat::OpenaiChat;
use crate::wire::openai_responses::OpenaiResponses;
use crate::wire::payload::{read, read_next};

/// Reads payloads both ways, which must come to the same, and says how many were not parsed.
fn both<D: Dialect + Debug + PartialEq>(payloads: &[(&str, String)]) -> usize {
    let (mut in_full, mut in_short, mut in_one) = (D::default(), D::default(), D::default());
    let (mut repeated, mut repeated_in_one) = (Repeated::default(), Repeated::default());
    let (mut apart, mut together) = (Vec::new(), Vec::new());
    let (mut all, mut known) = (Vec::new(), 0);
    for (event, payload) in payloads {
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        read(&mut in_full, event, payload, &mut expected);
        known += usize::from(repeated.read(event, payload).is_some());
        read_next(&mut in_short, &mut repeated, event, payload, &mut found);
        all.push(payload);
        assert_eq!(found, expected, "{all:#?}");
        assert_eq!(in_short, in_full, "{all:#?}");
        read_next(&mut in_one, &mut repeated_in_one, event, payload, &mut together);
        apart.extend(expected);
    }
    // Pieces of one read may be joined.
    assert_eq!(joined(together), joined(apart), "{all:#?}");
    known
}

/// Deltas of which those are one that follow each other and say the same piece.
fn joined(deltas: Vec<Delta>) -> Vec<Delta> {
    let mut all = Vec::new();
    for delta in deltas {
        match Piece::of(&delta) {
            Some((piece, text)) => piece.say(text, &mut all),
            None => all.push(delta),
        }
    }
    all
}

fn unnamed(payloads: impl IntoIterator<Item = Value>) -> Vec<(&'static str, String)> {
    payloads.into_iter().map(|payload| ("", payload.to_string())).collect()
}

fn chat(delta: Value) -> Value {
    json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": null}], "usage": null})
}

fn arguments(index: u64, text: &str) -> Value {
    chat(json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]}))
}

#[test]
fn text_and_arguments_are_read_by_what_was_before() {
    let texts = ["It", " is", " \"noon\"", ".\n", "\u{e9}\u{1f600}", " ", "", "end"];
    let texts = texts.map(|text| chat(json!({"content": text})));
    // The first is parsed, and the one without a text.
    assert_eq!(both::<OpenaiChat>(&unnamed(texts)), 5);
    let head = chat(json!({"tool_calls": [{"index": 0, "id": "a", "type": "function",
        "function": {"name": "f", "arguments": ""}}]}));
    let pieces = ["{\"a", "\":", " ", "1", "}"].map(|text| arguments(0, text));
    let other = ["{\"a", "\":1}"].map(|text| arguments(1, text));
    let all = [head].into_iter().chain(pieces).chain(other);
    assert_eq!(both::<OpenaiChat>(&unnamed(all)), 5);
}

#[test]
fn what_nobody_reads_may_change() {
    let padded = |text: &str, pad: &str| {
        let mut chunk = chat(json!({"content": text}));
        chunk["obfuscation"] = pad.into();
        chunk
    };
    assert_eq!(both::<OpenaiChat>(&unnamed([padded("one", "abc"), padded("two", "d")])), 1);
    let event = |number: u64, text: &str| {
        json!({"type": "response.output_text.delta", "sequence_number": number, "item_id": "i",
            "output_index": 0, "content_index": 0, "delta": text})
    };
    let done = json!({"type": "response.output_text.done", "item_id": "i", "output_index": 0,
        "content_index": 0, "text": "one two ten"});
    let events = [event(9, "one"), event(10, " two"), event(11, " ten"), done];
    assert_eq!(both::<OpenaiResponses>(&unnamed(events)), 2);
    let line = |time: &str, text: &str| {
        json!({"created_at": time, "message": {"role": "assistant", "content": text},
            "done": false})
    };
    assert_eq!(both::<Ollama>(&unnamed([line("1:00", "a"), line("1:01", "b")])), 1);
}

#[test]
fn an_event_of_another_name_is_another_payload() {
    let piece = |name, text: &str| {
        let delta = json!({"type": "text_delta", "text": text});
        (name, json!({"type": "content_block_delta", "index": 0, "delta": delta}).to_string())
    };
    let (a, b) = ("content_block_delta", "");
    assert_eq!(both::<Anthropic>(&[piece(a, "x"), piece(a, "y"), piece(b, "z")]), 1);
}

#[test]
fn what_is_not_certain_is_read_in_full() {
    let raw = |payload: &str| vec![("", payload.to_owned()); 2];
    for payload in [
        // The text stands there twice, or as no string, or behind an escape.
        r#"{"choices":[{"delta":{"content":"a"}}],"id":"a"}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":5}}]}}],"content":"5"}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":[]}}]}}],"content":"[]"}"#,
        r#"{"choices":[{"delta":{"content":"\u0061"}}],"reasoning":"a"}"#,
        // More than one thing is said.
        r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}"#,
        r#"{"choices":[{"delta":{"content":"a","reasoning":"b"}}]}"#,
        // Something had to be mended.
        r#"{"choices":[{"delta":{"content":"a"},"logprobs":NaN}]}"#,
        r#"data: {"choices":[{"delta":{"content":"a"}}]} [DONE]"#,
    ] {
        assert_eq!(both::<OpenaiChat>(&raw(payload)), 0, "{payload}");
    }
    // The last of two keys counts, wherever the text stands.
    let twice = r#"{"choices":[{"delta":{"content":"a"}}],"choices":[{"delta":{"content":"b"}}]}"#;
    assert_eq!(both::<OpenaiChat>(&raw(twice)), 1);
    let broken = ["\\ud83d", "\\x", "a\tb", "a\\u0000b"]
        .map(|text| ("", format!(r#"{{"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#)));
    let first = ("", r#"{"choices":[{"delta":{"content":"a"}}]}"#.to_owned());
    let payloads = [vec![first.clone()], broken.to_vec(), vec![first.clone(), first]].concat();
    both::<OpenaiChat>(&payloads);
}

/// Texts that are short, odd, and of JSON's own signs.
fn text() -> impl Strategy<Value = String> {
    const ODD: &[&str] =
        &["", " ", "a", "5", "1e3", "null", "{}", "[]", "\"", "\\", ",", ":", "}", "\",\"", "é"];
    prop_oneof![
        Just(String::from("word ")),
        prop::sample::select(ODD).prop_map(str::to_owned),
        prop::collection::vec(prop::sample::select(ODD), 0..4).prop_map(|odd| odd.concat()),
        ".{0,6}",
    ]
}

fn chat_payload() -> impl Strategy<Value = Value> {
    let member =
        prop::sample::select(&["content", "reasoning", "reasoning_content", "refusal"][..]);
    prop_oneof![
        4 => (member, text()).prop_map(|(key, text)| chat(json!({key: text}))),
        4 => (0..2_u64, text()).prop_map(|(index, text)| arguments(index, &text)),
        1 => (text(), text()).prop_map(|(a, b)| chat(json!({"content": a, "reasoning": b}))),
        1 => (0..2_u64, text()).prop_map(|(index, text)| {
            chat(json!({"tool_calls": [{"index": index, "id": text, "type": "function",
                "function": {"name": "f", "arguments": ""}}]}))
        }),
        1 => text().prop_map(|text| {
            let mut chunk = chat(json!({"content": text}));
            chunk["choices"][0]["finish_reason"] = "stop".into();
            chunk
        }),
        1 => (text(), text()).prop_map(|(text, pad)| {
            let mut chunk = chat(json!({"content": text}));
            chunk["obfuscation"] = pad.into();
            chunk
        }),
        1 => (text(), text()).prop_map(|(text, more)| {
            chat(json!({"content": text, "reasoning_details": [{"text": more, "index": 0}]}))
        }),
    ]
}

fn anthropic_payload() -> impl Strategy<Value = Value> {
    let piece = |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let begin = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    prop_oneof![
        4 => (0..2_u64, text())
            .prop_map(move |(at, text)| piece(at, json!({"type": "text_delta", "text": text}))),
        4 => (0..2_u64, text()).prop_map(move |(at, text)| {
            piece(at, json!({"type": "thinking_delta", "thinking": text}))
        }),
        4 => (0..2_u64, text()).prop_map(move |(at, text)| {
            piece(at, json!({"type": "input_json_delta", "partial_json": text}))
        }),
        1 => (0..2_u64, text()).prop_map(move |(at, text)| {
            piece(at, json!({"type": "signature_delta", "signature": text}))
        }),
        1 => (0..2_u64, prop::sample::select(&["tool_use", "server_tool_use"][..])).prop_map(
            move |(at, kind)| begin(at, json!({"type": kind, "id": "a", "name": "f", "input": {}}))
        ),
        1 => (0..2_u64).prop_map(move |at| begin(at, json!({"type": "thinking", "thinking": ""}))),
        1 => (0..2_u64).prop_map(|at| json!({"type": "content_block_stop", "index": at})),
    ]
}

fn responses_payload() -> impl Strategy<Value = Value> {
    let kinds = [
        "output_text.delta",
        "refusal.delta",
        "reasoning_text.delta",
        "reasoning_summary_text.delta",
        "function_call_arguments.delta",
        "custom_tool_call_input.delta",
    ];
    let ends = ["output_text.done", "reasoning_text.done", "function_call_arguments.done"];
    let event = |kind: &str, number: u64, index: u64| {
        json!({"type": format!("response.{kind}"), "sequence_number": number,
            "output_index": index, "item_id": "i", "content_index": 0})
    };
    prop_oneof![
        8 => (prop::sample::select(kinds.to_vec()), 0..12_u64, 0..2_u64, text()).prop_map(
            move |(kind, number, index, text)| {
                let mut event = event(kind, number, index);
                event["delta"] = text.into();
                event
            }
        ),
        1 => (prop::sample::select(ends.to_vec()), 0..2_u64, text()).prop_map(
            move |(kind, index, text)| {
                let mut event = event(kind, 3, index);
                event["text"] = text.clone().into();
                event["arguments"] = text.into();
                event
            }
        ),
        1 => (0..2_u64, text()).prop_map(move |(index, text)| {
            let mut event = event("output_item.added", 3, index);
            event["item"] = json!({"type": "function_call", "id": "i", "call_id": text,
                "name": "f", "arguments": ""});
            event
        }),
    ]
}

fn ollama_payload() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(&["content", "thinking"][..]);
    (key, text(), text(), any::<bool>()).prop_map(|(key, text, time, done)| {
        json!({"created_at": time, "message": {"role": "assistant", key: text}, "done": done})
    })
}

/// Payloads of which many are the one before with another text; some bytes are damaged.
fn stream(
    payload: impl Strategy<Value = Value>,
) -> impl Strategy<Value = Vec<(&'static str, String)>> {
    let damage =
        prop_oneof![9 => Just(None), 1 => any::<(prop::sample::Index, char)>().prop_map(Some)];
    prop::collection::vec((payload, 1..4_usize, damage), 1..12).prop_map(|all| {
        let mut payloads = Vec::new();
        for (payload, times, damage) in all {
            let mut text = payload.to_string();
            payloads.extend(std::iter::repeat_n(("", text.clone()), times));
            if let Some((place, by)) = damage {
                let mut chars: Vec<char> = text.chars().collect();
                let place = place.index(chars.len());
                chars[place] = by;
                text = chars.into_iter().collect();
                payloads.push(("", text));
            }
        }
        payloads
    })
}

proptest! {
    #[test]
    fn chat_streams_come_to_the_same(payloads in stream(chat_payload())) {
        both::<OpenaiChat>(&payloads);
    }

    #[test]
    fn anthropic_streams_come_to_the_same(payloads in stream(anthropic_payload())) {
        both::<Anthropic>(&payloads);
    }

    #[test]
    fn responses_streams_come_to_the_same(payloads in stream(responses_payload())) {
        both::<OpenaiResponses>(&payloads);
    }

    #[test]
    fn ollama_streams_come_to_the_same(payloads in stream(ollama_payload())) {
        both::<Ollama>(&payloads);
    }
}
