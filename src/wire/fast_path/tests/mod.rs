mod payloads;

use std::fmt::Debug;
use std::mem::take;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::fields::TEMPLATE_BYTES_MAX;
use super::scan::plain_bytes;
use super::template::{TEMPLATES_MAX, TEMPLATES_PER_KIND_MAX};
use super::*;
use crate::Delta;
use crate::anthropic::AnthropicDialect;
use crate::decoder::read_payload;
use crate::delta::{append_call, append_text};
use crate::dialect::PayloadDecoder;
use crate::ollama::OllamaDialect;
use crate::openai_chat::OpenaiChatDialect;
use crate::openai_responses::OpenaiResponsesDialect;
use payloads::{anthropic_payload, chat_payload, ollama_payload, responses_payload, streams};

type Payloads = Vec<(&'static str, String)>;

/// Decodes the payloads of a response with and without the fast path and asserts that the deltas are
/// equal. Returns the number of payloads that were not parsed.
fn count_matches<D: PayloadDecoder + Debug + Default + PartialEq>(
    payloads: &[(&'static str, String)],
) -> usize {
    count_all_matches::<D>(&[payloads.to_vec()])
}

/// As [`count_matches`], but each response starts with the templates of the one before.
fn count_all_matches<D: PayloadDecoder + Debug + Default + PartialEq>(
    responses: &[Payloads],
) -> usize {
    let (mut templates, mut merged_templates) = (TemplateSet::default(), TemplateSet::default());
    let mut count = 0;
    for payloads in responses {
        let (mut full, mut fast, mut merging) = (D::default(), D::default(), D::default());
        let (mut separate, mut merged) = (Vec::new(), Vec::new());
        for (event, payload) in payloads {
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            read_payload(&mut full, None, event, payload, &mut expected);
            count += usize::from(templates.clone().match_payload(event, payload).is_some());
            read_payload(&mut fast, Some(&mut templates), event, payload, &mut found);
            assert_eq!(found, expected, "{payload} of {responses:#?}");
            assert_eq!(fast, full, "{payload} of {responses:#?}");
            assert!(templates.templates.len() <= TEMPLATES_MAX);
            let templates = Some(&mut merged_templates);
            read_payload(&mut merging, templates, event, payload, &mut merged);
            separate.extend(expected);
        }
        full.end_of_body(&mut separate);
        merging.end_of_body(&mut merged);
        // Consecutive deltas of the same kind may be merged.
        assert_eq!(merge(merged), merge(separate), "{responses:#?}");
        assert_eq!(merged_templates, templates);
    }
    count
}

/// Merges consecutive deltas of the same kind.
fn merge(deltas: Vec<Delta>) -> Vec<Delta> {
    let mut all = Vec::new();
    for mut delta in deltas {
        match &mut delta {
            Delta::Text(text) => append_text(Delta::Text, text, &mut all),
            Delta::Reasoning(text) => append_text(Delta::Reasoning, text, &mut all),
            Delta::Refusal(text) => append_text(Delta::Refusal, text, &mut all),
            Delta::Call(piece) => {
                let text = piece.arguments.take();
                let piece = take(piece);
                append_call(piece, text.as_deref(), &mut all);
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
fn texts_and_arguments_match_the_template_of_the_first_one() {
    let texts = ["It", " is", " \"noon\"", ".\n", "\u{e9}\u{1f600}", " ", "", "end"];
    let texts = texts.map(|text| chat(json!({"content": text})));
    // The first payload is parsed.
    assert_eq!(count_matches::<OpenaiChatDialect>(&unnamed(texts)), 7);
    let head = chat(json!({"tool_calls": [{"index": 0, "id": "a", "type": "function",
        "function": {"name": "f", "arguments": ""}}]}));
    let pieces = ["{\"a", "\":", " ", "1", "}"].map(|text| arguments(0_u64, text));
    let other = ["{\"a", "\":1}"].map(|text| arguments(1_u64, text));
    let all = [head].into_iter().chain(pieces).chain(other);
    // The first payload of the call and the first of its arguments are parsed. The next call matches.
    assert_eq!(count_matches::<OpenaiChatDialect>(&unnamed(all)), 6);
}

/// Returns a response as most services send it, with calls whose ids begin with `id`.
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
fn templates_are_used_for_later_calls_and_responses() {
    // The first chunk, the first text, call and arguments, and the last chunk are parsed.
    let first = response("a", 20);
    assert_eq!(count_matches::<OpenaiChatDialect>(&first), first.len() - 5);
    let all = [first, response("other", 1), response("", 3)];
    let payloads: usize = all.iter().map(Vec::len).sum();
    assert_eq!(count_all_matches::<OpenaiChatDialect>(&all), payloads - 5);
}

#[test]
fn every_form_of_a_number_is_read_as_by_the_full_parse() {
    let most = u64::MAX.to_string();
    let digits = ["0", "1", &most, "18446744073709551616", "99999999999999999999999999", "01"];
    let others = ["-1", "+1", "1.0", "1e2", "0x1", "", "7 ", "null", "\"3\"", "[]"];
    let numbers = [&digits[..], &others].concat();
    let numbers = || numbers.iter().chain(&numbers).copied();
    // Numbers in digits match after the first one. The other forms have templates of their own.
    let call = |number: &str| {
        let call = format!(r#"{{"index":{number},"function":{{"arguments":"x"}}}}"#);
        ("", format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{call}]}}}}]}}"#))
    };
    assert_eq!(count_matches::<OpenaiChatDialect>(&numbers().map(call).collect::<Vec<_>>()), 4);
    let piece = |number: &str| {
        let delta = r#"{"type":"input_json_delta","partial_json":"{}"}"#;
        ("", format!(r#"{{"type":"content_block_delta","index":{number},"delta":{delta}}}"#))
    };
    assert_eq!(count_matches::<AnthropicDialect>(&numbers().map(piece).collect::<Vec<_>>()), 4);
    let event = |number: &str| {
        let kind = "response.function_call_arguments.delta";
        (
            "",
            format!(
                r#"{{"type":"{kind}","output_index":{number},"sequence_number":{number},"delta":"x"}}"#
            ),
        )
    };
    assert_eq!(
        count_matches::<OpenaiResponsesDialect>(&numbers().map(event).collect::<Vec<_>>()),
        4
    );
}

#[test]
fn size_and_number_of_templates_are_limited() {
    let long = "x".repeat(TEMPLATE_BYTES_MAX);
    let piece = |id: &str, text: &str| {
        let mut chunk = chat(json!({"content": text}));
        chunk["id"] = id.into();
        chunk
    };
    // A long payload can match a template, but it does not become one.
    let all = [piece("a", &long), piece("a", "b"), piece("a", &long), piece("b", &long)];
    assert_eq!(count_matches::<OpenaiChatDialect>(&unnamed(all)), 1);
    let mut templates = TemplateSet::default();
    for (at, number) in (0..40).zip((0..3).cycle()) {
        let member = ["content", "refusal", "reasoning"][number];
        let chunk = json!({"choices": [{"delta": {member: "a"}}], "other": at}).to_string();
        let dialect = &mut OpenaiChatDialect::default();
        read_payload(dialect, Some(&mut templates), "", &chunk, &mut Vec::new());
    }
    assert_eq!(templates.templates.len(), 3 * TEMPLATES_PER_KIND_MAX);
}

#[test]
fn a_template_is_valid_in_every_state_of_the_dialect() {
    // Reasoning before a call publishes metadata, depending on what came before.
    let thought = chat(json!({"reasoning_content": "so"}));
    let all = [
        arguments(0_u64, "a"),
        thought.clone(),
        arguments(0_u64, "b"),
        thought,
        arguments(1_u64, "c"),
    ];
    assert_eq!(count_matches::<OpenaiChatDialect>(&unnamed(all.clone())), 3);
    let back = unnamed(all.iter().rev().cloned());
    assert_eq!(count_all_matches::<OpenaiChatDialect>(&[unnamed(all), back]), 8);
    // A complete message counts only if nothing came in pieces.
    let message = json!({"choices": [{"index": 0, "message": {"content": "a"}}]});
    let all = unnamed([message.clone(), message.clone(), chat(json!({"content": "a"})), message]);
    assert_eq!(count_all_matches::<OpenaiChatDialect>(&[all.clone(), all]), 1);
    // The item that an event refers to, and whether it begins, depends on the items so far.
    let event = |kind: &str, id: &str, index: u64| {
        json!({"type": format!("response.{kind}.delta"), "item_id": id, "output_index": index,
            "delta": "text"})
    };
    let kinds = ["function_call_arguments", "output_text"];
    let all = [("a", 0), ("a", 0), ("b", 1), ("a", 0), ("b", 0), ("c", 7), ("b", 1)];
    let all = all.iter().flat_map(|(id, index)| kinds.map(|kind| event(kind, id, *index)));
    let all = unnamed(all);
    assert_eq!(count_all_matches::<OpenaiResponsesDialect>(&[all.clone(), all]), 26);
}

#[test]
fn ignored_members_may_change() {
    // Any value matches as long as it is the same.
    for id in [json!(5), json!("a\"b"), json!(null), json!([1]), json!(1.5), json!(true)] {
        let mut chunk = chat(json!({"content": "a"}));
        chunk["id"] = id.clone();
        chunk["created"] = id;
        assert_eq!(count_matches::<OpenaiChatDialect>(&unnamed([chunk.clone(), chunk])), 1);
    }
    let padded = |text: &str, pad: &str| {
        let mut chunk = chat(json!({"content": text}));
        chunk["obfuscation"] = pad.into();
        chunk
    };
    assert_eq!(
        count_matches::<OpenaiChatDialect>(&unnamed([padded("one", "abc"), padded("two", "d")])),
        1
    );
    let event = |number: u64, text: &str| {
        json!({"type": "response.output_text.delta", "sequence_number": number, "item_id": "i",
            "output_index": 0, "content_index": 0, "delta": text})
    };
    let done = json!({"type": "response.output_text.done", "item_id": "i", "output_index": 0,
        "content_index": 0, "text": "one two ten"});
    let events = [event(9, "one"), event(10, " two"), event(11, " ten"), done];
    assert_eq!(count_matches::<OpenaiResponsesDialect>(&unnamed(events)), 2);
    let line = |time: &str, text: &str| {
        json!({"created_at": time, "message": {"role": "assistant", "content": text},
            "done": false})
    };
    assert_eq!(count_matches::<OllamaDialect>(&unnamed([line("1:00", "a"), line("1:01", "b")])), 1);
}

#[test]
fn a_payload_with_another_event_name_does_not_match() {
    let piece = |name, text: &str| {
        let delta = json!({"type": "text_delta", "text": text});
        (name, json!({"type": "content_block_delta", "index": 0, "delta": delta}).to_string())
    };
    let (a, b) = ("content_block_delta", "");
    assert_eq!(
        count_matches::<AnthropicDialect>(&[piece(a, "x"), piece(a, "y"), piece(b, "z")]),
        1
    );
}

#[test]
fn uncertain_payloads_are_parsed_in_full() {
    let raw = |payload: &str| vec![("", payload.to_owned()); 2];
    for payload in [
        // The text is not a string, or appears twice with an escape.
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":5}}]}}],"content":"5"}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":true}}]}}],"content":"true"}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":5,"function":{"arguments":"a"}}]}}]}"#,
        r#"{"choices":[{"delta":{"content":"\u0061"}}],"reasoning":"\u0061"}"#,
        // The payload holds more than one change.
        r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}"#,
        r#"{"choices":[{"delta":{"content":"a","reasoning":"b"}}]}"#,
        // The payload had to be repaired.
        r#"{"choices":[{"delta":{"content":"a"},"logprobs":NaN}]}"#,
        r#"data: {"choices":[{"delta":{"content":"a"}}]} [DONE]"#,
    ] {
        assert_eq!(count_matches::<OpenaiChatDialect>(&raw(payload)), 0, "{payload}");
    }
    // A member that is not read may have the same text.
    let twice = r#"{"choices":[{"delta":{"content":"a"}}],"content":"a","object":"a"}"#;
    assert_eq!(count_matches::<OpenaiChatDialect>(&raw(twice)), 1);
    // The last of two equal keys counts.
    let twice = r#"{"choices":[{"delta":{"content":"a"}}],"choices":[{"delta":{"content":"b"}}]}"#;
    assert_eq!(count_matches::<OpenaiChatDialect>(&raw(twice)), 1);
    let broken = ["\\ud83d", "\\x", "a\tb", "a\\u0000b"]
        .map(|text| ("", format!(r#"{{"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#)));
    let first = ("", r#"{"choices":[{"delta":{"content":"a"}}]}"#.to_owned());
    let payloads = [vec![first.clone()], broken.to_vec(), vec![first.clone(), first]].concat();
    count_matches::<OpenaiChatDialect>(&payloads);
}

/// Any byte, and often one that differs by one bit from a byte that ends a string.
fn odd_byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        9 => prop::sample::select(&b"a!#[]\x7f\x80\xa2\xdc\x20\x21\xff"[..]),
        1 => prop::sample::select(&b"\"\\\x1f\x00\n"[..]),
        1 => any::<u8>(),
    ]
}

proptest! {
    #[test]
    fn plain_bytes_end_at_the_first_special_byte(bytes in prop::collection::vec(odd_byte(), 0..40)) {
        let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..b' ');
        prop_assert_eq!(plain_bytes(&bytes), bytes.iter().position(is_special));
    }

    #[test]
    fn chat_streams_decode_to_the_same_deltas(responses in streams(chat_payload())) {
        count_all_matches::<OpenaiChatDialect>(&responses);
    }

    #[test]
    fn anthropic_streams_decode_to_the_same_deltas(responses in streams(anthropic_payload())) {
        count_all_matches::<AnthropicDialect>(&responses);
    }

    #[test]
    fn responses_streams_decode_to_the_same_deltas(responses in streams(responses_payload())) {
        count_all_matches::<OpenaiResponsesDialect>(&responses);
    }

    #[test]
    fn ollama_streams_decode_to_the_same_deltas(responses in streams(ollama_payload())) {
        count_all_matches::<OllamaDialect>(&responses);
    }
}
