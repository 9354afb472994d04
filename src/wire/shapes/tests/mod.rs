mod payloads;

use std::fmt::Debug;
use std::mem::take;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::wire::Delta;
use crate::wire::anthropic::Anthropic;
use crate::wire::dialect::Dialect;
use crate::wire::ollama::Ollama;
use crate::wire::openai_chat::OpenaiChat;
use crate::wire::openai_responses::OpenaiResponses;
use crate::wire::payload::{read, read_next};
use crate::wire::piece::{say, say_call};
use payloads::{anthropic_payload, chat_payload, ollama_payload, responses_payload, streams};

type Payloads = Vec<(&'static str, String)>;

/// Reads the payloads of a response both ways, which must come to the same, and says how many were
/// not parsed.
fn both<D: Dialect + Debug + PartialEq>(payloads: &[(&'static str, String)]) -> usize {
    all_both::<D>(&[payloads.to_vec()])
}

/// As [`both`], with the shapes of one response known to the next.
fn all_both<D: Dialect + Debug + PartialEq>(responses: &[Payloads]) -> usize {
    let (mut known, mut known_in_one) = (Known::default(), Known::default());
    let mut count = 0;
    for payloads in responses {
        let (mut in_full, mut in_short, mut in_one) = (D::default(), D::default(), D::default());
        let (mut apart, mut together) = (Vec::new(), Vec::new());
        for (event, payload) in payloads {
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            read(&mut in_full, event, payload, &mut expected);
            count += usize::from(known.clone().read(event, payload).is_some());
            read_next(&mut in_short, &mut known, event, payload, &mut found);
            assert_eq!(found, expected, "{payload} of {responses:#?}");
            assert_eq!(in_short, in_full, "{payload} of {responses:#?}");
            assert!(known.shapes.len() <= SHAPES_MAX);
            read_next(&mut in_one, &mut known_in_one, event, payload, &mut together);
            apart.extend(expected);
        }
        in_full.end(&mut apart);
        in_one.end(&mut together);
        // Pieces of one read may be joined.
        assert_eq!(joined(together), joined(apart), "{responses:#?}");
        assert_eq!(known_in_one, known);
    }
    count
}

/// Deltas of which those are one that follow each other and say the same piece.
fn joined(deltas: Vec<Delta>) -> Vec<Delta> {
    let mut all = Vec::new();
    for mut delta in deltas {
        match &mut delta {
            Delta::Text(text) => say(Delta::Text, text, &mut all),
            Delta::Reasoning(text) => say(Delta::Reasoning, text, &mut all),
            Delta::Refusal(text) => say(Delta::Refusal, text, &mut all),
            Delta::Call(piece) => {
                let text = piece.arguments.take();
                let piece = take(piece);
                say_call(piece, text.as_deref(), &mut all);
            }
            Delta::Seal { .. }
            | Delta::Metadata(_)
            | Delta::Finish(_)
            | Delta::Usage { .. }
            | Delta::Error(_)
            | Delta::Problem(_)
            | Delta::Done => all.push(delta),
        }
    }
    all
}

fn unnamed(payloads: impl IntoIterator<Item = Value>) -> Payloads {
    payloads.into_iter().map(|payload| ("", payload.to_string())).collect()
}

fn chat(delta: Value) -> Value {
    json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": null}], "usage": null})
}

fn arguments(index: impl Into<Value>, text: &str) -> Value {
    let index = index.into();
    chat(json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]}))
}

#[test]
fn text_and_arguments_are_read_by_what_was_before() {
    let texts = ["It", " is", " \"noon\"", ".\n", "\u{e9}\u{1f600}", " ", "", "end"];
    let texts = texts.map(|text| chat(json!({"content": text})));
    // The first is parsed.
    assert_eq!(both::<OpenaiChat>(&unnamed(texts)), 7);
    let head = chat(json!({"tool_calls": [{"index": 0, "id": "a", "type": "function",
        "function": {"name": "f", "arguments": ""}}]}));
    let pieces = ["{\"a", "\":", " ", "1", "}"].map(|text| arguments(0_u64, text));
    let other = ["{\"a", "\":1}"].map(|text| arguments(1_u64, text));
    let all = [head].into_iter().chain(pieces).chain(other);
    // The first of the call, and of its arguments. The next call is known by then.
    assert_eq!(both::<OpenaiChat>(&unnamed(all)), 6);
}

/// A response as most services write one, with calls whose index and id begin with these.
fn response(id: &str, calls: u64) -> Payloads {
    let mut all = vec![chat(json!({"role": "assistant", "content": ""}))];
    all.extend(["It", " is"].map(|text| chat(json!({"content": text}))));
    for call in 0..calls {
        let function = json!({"name": "f", "arguments": ""});
        let id = format!("{id}{call}");
        let head = json!({"index": call, "id": id, "type": "function", "function": function});
        all.push(chat(json!({"tool_calls": [head]})));
        all.extend(["{\"a", "\":1}"].map(|text| arguments(call, text)));
        all.push(chat(json!({"content": " and"})));
    }
    let mut end = chat(json!({}));
    end["choices"][0]["finish_reason"] = if calls > 1 { "tool_calls" } else { "stop" }.into();
    all.push(end);
    for payload in &mut all {
        payload["id"] = id.into();
        payload["created"] = id.len().into();
    }
    unnamed(all)
}

#[test]
fn shapes_outlive_calls_and_responses() {
    // Parsed are the opening, the first text, call and arguments, and the end.
    let first = response("a", 20);
    assert_eq!(both::<OpenaiChat>(&first), first.len() - 5);
    let all = [first, response("other", 1), response("", 3)];
    let payloads: usize = all.iter().map(Vec::len).sum();
    assert_eq!(all_both::<OpenaiChat>(&all), payloads - 5);
}

#[test]
fn numbers_are_read_as_they_stand() {
    let most = u64::MAX.to_string();
    let digits = ["0", "1", &most, "18446744073709551616", "99999999999999999999999999", "01"];
    let others = ["-1", "+1", "1.0", "1e2", "0x1", "", "7 ", "null", "\"3\"", "[]"];
    let numbers = [&digits[..], &others].concat();
    let numbers = || numbers.iter().chain(&numbers).copied();
    // Known are numbers after the first one; those who are none have two shapes of their own.
    let call = |number: &str| {
        let call = format!(r#"{{"index":{number},"function":{{"arguments":"x"}}}}"#);
        ("", format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{call}]}}}}]}}"#))
    };
    assert_eq!(both::<OpenaiChat>(&numbers().map(call).collect::<Vec<_>>()), 4);
    let piece = |number: &str| {
        let delta = r#"{"type":"input_json_delta","partial_json":"{}"}"#;
        ("", format!(r#"{{"type":"content_block_delta","index":{number},"delta":{delta}}}"#))
    };
    assert_eq!(both::<Anthropic>(&numbers().map(piece).collect::<Vec<_>>()), 4);
    let event = |number: &str| {
        let kind = "response.function_call_arguments.delta";
        (
            "",
            format!(
                r#"{{"type":"{kind}","output_index":{number},"sequence_number":{number},"delta":"x"}}"#
            ),
        )
    };
    assert_eq!(both::<OpenaiResponses>(&numbers().map(event).collect::<Vec<_>>()), 4);
}

#[test]
fn what_is_kept_is_bounded() {
    let long = "x".repeat(PAYLOAD_BYTES_MAX);
    let piece = |id: &str, text: &str| {
        let mut chunk = chat(json!({"content": text}));
        chunk["id"] = id.into();
        chunk
    };
    // A long text is read by a shape, and none is made of it, nor of what says more besides.
    let all = [piece("a", &long), piece("a", "b"), piece("a", &long), piece("b", &long)];
    assert_eq!(both::<OpenaiChat>(&unnamed(all)), 1);
    let mut known = Known::default();
    for (at, number) in (0..40).zip((0..3).cycle()) {
        let member = ["content", "refusal", "reasoning"][number];
        let chunk = json!({"choices": [{"delta": {member: "a"}}], "other": at}).to_string();
        read_next(&mut OpenaiChat::default(), &mut known, "", &chunk, &mut Vec::new());
    }
    assert_eq!(known.shapes.len(), 3 * SHAPES_OF_A_KIND_MAX);
}

#[test]
fn a_shape_means_the_same_in_any_state() {
    // Thinking that a call follows is told of, and whether it is depends on what came before.
    let thought = chat(json!({"reasoning_content": "so"}));
    let all = [
        arguments(0_u64, "a"),
        thought.clone(),
        arguments(0_u64, "b"),
        thought,
        arguments(1_u64, "c"),
    ];
    assert_eq!(both::<OpenaiChat>(&unnamed(all.clone())), 3);
    let back = unnamed(all.iter().rev().cloned());
    assert_eq!(all_both::<OpenaiChat>(&[unnamed(all), back]), 8);
    // A message counts only where nothing came in pieces.
    let message = json!({"choices": [{"index": 0, "message": {"content": "a"}}]});
    let all = unnamed([message.clone(), message.clone(), chat(json!({"content": "a"})), message]);
    assert_eq!(all_both::<OpenaiChat>(&[all.clone(), all]), 1);
    // Which item is meant, and whether it begins, depends on those that are known.
    let event = |kind: &str, id: &str, index: u64| {
        json!({"type": format!("response.{kind}.delta"), "item_id": id, "output_index": index,
            "delta": "text"})
    };
    let kinds = ["function_call_arguments", "output_text"];
    let all = [("a", 0), ("a", 0), ("b", 1), ("a", 0), ("b", 0), ("c", 7), ("b", 1)];
    let all = all.iter().flat_map(|(id, index)| kinds.map(|kind| event(kind, id, *index)));
    let all = unnamed(all);
    assert_eq!(all_both::<OpenaiResponses>(&[all.clone(), all]), 26);
}

#[test]
fn what_nobody_reads_may_change() {
    // Whatever it is, as long as it stays so.
    for id in [json!(5), json!("a\"b"), json!(null), json!([1]), json!(1.5), json!(true)] {
        let mut chunk = chat(json!({"content": "a"}));
        chunk["id"] = id.clone();
        chunk["created"] = id;
        assert_eq!(both::<OpenaiChat>(&unnamed([chunk.clone(), chunk])), 1);
    }
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
        // The text is no string, or stands there twice with an escape.
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":5}}]}}],"content":"5"}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":true}}]}}],"content":"true"}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":5,"function":{"arguments":"a"}}]}}]}"#,
        r#"{"choices":[{"delta":{"content":"\u0061"}}],"reasoning":"\u0061"}"#,
        // More than one thing is said.
        r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}"#,
        r#"{"choices":[{"delta":{"content":"a","reasoning":"b"}}]}"#,
        // Something had to be mended.
        r#"{"choices":[{"delta":{"content":"a"},"logprobs":NaN}]}"#,
        r#"data: {"choices":[{"delta":{"content":"a"}}]} [DONE]"#,
    ] {
        assert_eq!(both::<OpenaiChat>(&raw(payload)), 0, "{payload}");
    }
    // What is not read may say the same.
    let twice = r#"{"choices":[{"delta":{"content":"a"}}],"content":"a","object":"a"}"#;
    assert_eq!(both::<OpenaiChat>(&raw(twice)), 1);
    // The last of two keys counts, wherever the text stands.
    let twice = r#"{"choices":[{"delta":{"content":"a"}}],"choices":[{"delta":{"content":"b"}}]}"#;
    assert_eq!(both::<OpenaiChat>(&raw(twice)), 1);
    let broken = ["\\ud83d", "\\x", "a\tb", "a\\u0000b"]
        .map(|text| ("", format!(r#"{{"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#)));
    let first = ("", r#"{"choices":[{"delta":{"content":"a"}}]}"#.to_owned());
    let payloads = [vec![first.clone()], broken.to_vec(), vec![first.clone(), first]].concat();
    both::<OpenaiChat>(&payloads);
}

/// Any byte, and often one beside those that matter.
fn odd_byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        9 => prop::sample::select(&b"a!#[]\x7f\x80\xa2\xdc\x20\x21\xff"[..]),
        1 => prop::sample::select(&b"\"\\\x1f\x00\n"[..]),
        1 => any::<u8>(),
    ]
}

proptest! {
    #[test]
    fn strings_end_where_their_quote_is(bytes in prop::collection::vec(odd_byte(), 0..40)) {
        let is_odd = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..b' ');
        prop_assert_eq!(plain_bytes(&bytes), bytes.iter().position(is_odd));
    }

    #[test]
    fn chat_streams_come_to_the_same(responses in streams(chat_payload())) {
        all_both::<OpenaiChat>(&responses);
    }

    #[test]
    fn anthropic_streams_come_to_the_same(responses in streams(anthropic_payload())) {
        all_both::<Anthropic>(&responses);
    }

    #[test]
    fn responses_streams_come_to_the_same(responses in streams(responses_payload())) {
        all_both::<OpenaiResponses>(&responses);
    }

    #[test]
    fn ollama_streams_come_to_the_same(responses in streams(ollama_payload())) {
        all_both::<Ollama>(&responses);
    }
}
