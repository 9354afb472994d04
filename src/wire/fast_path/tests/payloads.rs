//! Generated payloads of every kind, and streams of them.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Payloads, arguments, chat};

/// Short texts, many of them with characters that are special in JSON.
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

/// Mostly a small number, so that many payloads share it.
fn index() -> impl Strategy<Value = Value> {
    prop_oneof![
        12 => (0..3_u64).prop_map(Value::from),
        1 => any::<u64>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        1 => text().prop_map(Value::from),
        1 => Just(Value::Null),
    ]
}

/// Returns the `delta` of a chunk with a finish reason.
fn finished() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!({}),
        json!({"content": ""}),
        json!({"content": null, "refusal": null}),
        json!({"reasoning": "", "tool_calls": []}),
        json!({"tool_calls": [null]}),
        json!({"reasoning_opaque": "x"}),
    ])
}

pub(super) fn chat_payload() -> impl Strategy<Value = Value> {
    let member = prop::sample::select(
        &["content", "reasoning", "reasoning_content", "reasoning_text", "refusal"][..],
    );
    prop_oneof![
        4 => (member, text()).prop_map(|(key, text)| chat(json!({key: text}))),
        4 => (index(), text()).prop_map(|(index, text)| arguments(index, &text)),
        1 => (text(), text()).prop_map(|(a, b)| chat(json!({"content": a, "reasoning": b}))),
        2 => (index(), text(), text(), text()).prop_map(|(index, id, name, text)| {
            chat(json!({"tool_calls": [{"index": index, "id": id, "type": "function",
                "function": {"name": name, "arguments": text}}]}))
        }),
        1 => (index(), text(), text()).prop_map(|(index, text, more)| {
            chat(json!({"tool_calls": [{"index": index, "function": {"arguments": text},
                "extra_content": {"signature": more}}]}))
        }),
        1 => (text(), text()).prop_map(|(text, more)| {
            let mut chunk = chat(json!({"content": text}));
            chunk["choices"][0]["message"] = json!({"content": more});
            chunk
        }),
        1 => (text(), any::<bool>()).prop_map(|(text, beside)| {
            let message = json!({"index": 0, "message": {"content": text}});
            let delta = json!({"index": 1, "delta": {"content": text}});
            json!({"choices": if beside { vec![delta, message] } else { vec![message] }})
        }),
        1 => (text(), text()).prop_map(|(name, text)| {
            chat(json!({"function_call": {"name": name, "arguments": text}}))
        }),
        1 => text().prop_map(|text| chat(json!({"reasoning_opaque": text}))),
        1 => text().prop_map(|text| {
            let mut chunk = chat(json!({"content": text}));
            chunk["choices"][0]["finish_reason"] = "stop".into();
            chunk
        }),
        2 => (finished(), text()).prop_map(|(delta, reason)| {
            let mut chunk = chat(delta);
            chunk["choices"][0]["finish_reason"] = reason.into();
            chunk
        }),
        1 => (text(), text()).prop_map(|(text, pad)| {
            let mut chunk = chat(json!({"content": text}));
            chunk["obfuscation"] = pad.clone().into();
            chunk["id"] = pad.into();
            chunk
        }),
        1 => (text(), text()).prop_map(|(text, more)| {
            chat(json!({"content": text, "reasoning_details": [{"text": more, "index": 0}]}))
        }),
    ]
}

pub(super) fn anthropic_payload() -> impl Strategy<Value = Value> {
    let piece = |index: Value, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let begin = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    prop_oneof![
        4 => (index(), text())
            .prop_map(move |(at, text)| piece(at, json!({"type": "text_delta", "text": text}))),
        4 => (index(), text()).prop_map(move |(at, text)| {
            piece(at, json!({"type": "thinking_delta", "thinking": text}))
        }),
        4 => (index(), text()).prop_map(move |(at, text)| {
            piece(at, json!({"type": "input_json_delta", "partial_json": text}))
        }),
        1 => (index(), text()).prop_map(move |(at, text)| {
            piece(at, json!({"type": "signature_delta", "signature": text}))
        }),
        1 => (0..2_u64, prop::sample::select(&["tool_use", "server_tool_use"][..])).prop_map(
            move |(at, kind)| begin(at, json!({"type": kind, "id": "a", "name": "f", "input": {}}))
        ),
        1 => (0..2_u64).prop_map(move |at| begin(at, json!({"type": "thinking", "thinking": ""}))),
        1 => (0..2_u64).prop_map(|at| json!({"type": "content_block_stop", "index": at})),
    ]
}

pub(super) fn responses_payload() -> impl Strategy<Value = Value> {
    let kinds = [
        "output_text.delta",
        "refusal.delta",
        "reasoning_text.delta",
        "reasoning_summary_text.delta",
        "function_call_arguments.delta",
        "custom_tool_call_input.delta",
    ];
    let ends = ["output_text.done", "reasoning_text.done", "function_call_arguments.done"];
    let id = || prop::sample::select(&["i", "j", "", "\\"][..]);
    let event = |kind: &str, number: u64, index: Value, id: &str, part: Value| {
        json!({"type": format!("response.{kind}"), "sequence_number": number,
            "output_index": index, "item_id": id, "content_index": part})
    };
    prop_oneof![
        8 => (prop::sample::select(kinds.to_vec()), 0..12_u64, index(), id(), index(), text()).prop_map(
            move |(kind, number, index, id, part, text)| {
                let mut event = event(kind, number, index, id, part);
                event["delta"] = text.into();
                event
            }
        ),
        1 => (prop::sample::select(ends.to_vec()), 0..2_u64, text()).prop_map(
            move |(kind, index, text)| {
                let mut event = event(kind, 3, index.into(), "i", 0.into());
                event["text"] = text.clone().into();
                event["arguments"] = text.into();
                event
            }
        ),
        1 => (0..2_u64, text()).prop_map(move |(index, text)| {
            let mut event = event("output_item.added", 3, index.into(), "i", 0.into());
            event["item"] = json!({"type": "function_call", "id": "i", "call_id": text,
                "name": "f", "arguments": ""});
            event
        }),
    ]
}

pub(super) fn ollama_payload() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(&["content", "thinking"][..]);
    (key, text(), text(), any::<bool>()).prop_map(|(key, text, time, done)| {
        json!({"created_at": time, "message": {"role": "assistant", key: text}, "done": done})
    })
}

/// Payloads, many of them repeated, some with a damaged character.
fn stream(payload: impl Strategy<Value = Value>) -> impl Strategy<Value = Payloads> {
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

/// Returns several streams. Each is decoded with the templates of those before.
pub(super) fn streams(
    payload: impl Strategy<Value = Value>,
) -> impl Strategy<Value = Vec<Payloads>> {
    prop::collection::vec(stream(payload), 1..4)
}
