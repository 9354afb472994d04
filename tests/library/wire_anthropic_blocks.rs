//! Decoding of Anthropic's content blocks, tested with complete responses.

#![expect(clippy::unwrap_used, reason = "a test helper that fails is a failed test")]

use callsheet::response::{ResponseAssembler, ResponseLimits, decode_body, describe_response};
use callsheet::types::{MessagePart, Wire};
use callsheet::wire::{CallKind, DecoderOptions, Framing};
use serde_json::{Value, json};

fn response(payloads: &[&str]) -> ResponseAssembler {
    let lines: Vec<String> = payloads.iter().map(|payload| payload.replace('\n', " ")).collect();
    let limits = (DecoderOptions::default(), ResponseLimits::default());
    let wire = Wire::AnthropicMessages;
    decode_body(wire, Framing::JsonLines, limits, lines.join("\n").as_bytes())
}

fn start(index: u64, block: &str) -> String {
    format!(r#"{{"type":"content_block_start","index":{index},"content_block":{block}}}"#)
}

fn piece(index: u64, kind: &str, key: &str, value: &str) -> String {
    let delta = json!({"type": kind, key: value});
    json!({"type": "content_block_delta", "index": index, "delta": delta}).to_string()
}

fn input(index: u64, json: &str) -> String {
    piece(index, "input_json_delta", "partial_json", json)
}

fn stop(index: u64) -> String {
    format!(r#"{{"type":"content_block_stop","index":{index}}}"#)
}

fn finish(word: &str) -> String {
    format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"{word}"}}}}"#)
}

const END: &str = r#"{"type":"message_stop"}"#;

fn of(payloads: &[String]) -> ResponseAssembler {
    response(&payloads.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Checks index, id, name, raw arguments and completeness of each call.
#[track_caller]
fn check_calls(payloads: &[String], expected: Value) {
    let described = describe_response(&of(payloads));
    let calls = described["tool_calls"].as_array().unwrap().iter();
    let found: Vec<_> = calls
        .map(|c| json!([c["index"], c["id"], c["name"], c["arguments_raw"], c["complete"]]))
        .collect();
    assert_eq!(Value::from(found), expected, "{payloads:?}");
    // Each call that is not complete has a problem.
    let calls = described["tool_calls"].as_array().unwrap().iter();
    let incomplete = calls.filter(|call| call["complete"] == false).count();
    assert_eq!(described["problems"].as_array().unwrap().len(), incomplete, "{described}");
}

const CALL: &str = r#"{"type":"tool_use","id":"a","name":"f","input":{}}"#;

#[test]
fn without_pieces_the_input_of_the_block_start_counts() {
    let full = r#"{"type":"tool_use","id":"a","name":"f","input":{"y": 2}}"#;
    let end = [finish("tool_use"), END.to_owned()];
    let with = |blocks: &[String]| [blocks, &end].concat();
    check_calls(&with(&[start(0, full), stop(0)]), json!([[0, "a", "f", r#"{"y": 2}"#, true]]));
    check_calls(
        &with(&[start(0, full), input(0, "{}"), stop(0)]),
        json!([[0, "a", "f", "{}", true]]),
    );
    check_calls(&with(&[start(0, CALL), stop(0)]), json!([[0, "a", "f", "", true]]));
    let null = r#"{"type":"tool_use","id":"a","name":"f","input":null}"#;
    check_calls(&with(&[start(0, null), stop(0)]), json!([[0, "a", "f", "", true]]));
    let text = r#"{"type":"tool_use","id":"a","name":"f","input":"{\"y\":2}"}"#;
    check_calls(&with(&[start(0, text), stop(0)]), json!([[0, "a", "f", r#"{"y":2}"#, true]]));
    // The service leaves out the ends of blocks.
    check_calls(&with(&[start(0, full)]), json!([[0, "a", "f", r#"{"y": 2}"#, true]]));
    let cut = [start(0, full), finish("max_tokens"), END.to_owned()];
    check_calls(&cut, json!([[0, "a", "f", r#"{"y": 2}"#, false]]));
}

#[test]
fn without_message_stop_the_end_of_the_body_ends_the_blocks() {
    let call = r#"{"type":"tool_use","id":"a","name":"f","input":{"zone":"UTC"}}"#;
    for (end, is_complete) in [(Some("tool_use"), true), (Some("max_tokens"), false), (None, false)]
    {
        let payloads: Vec<_> = [start(0, call)].into_iter().chain(end.map(finish)).collect();
        check_calls(&payloads, json!([[0, "a", "f", r#"{"zone":"UTC"}"#, is_complete]]));
    }
}

#[test]
fn indexes_may_be_texts_or_missing_or_used_again() {
    let end = [finish("tool_use"), END.to_owned()];
    let without = |payload: String| payload.replace(r#""index":0,"#, "");
    let b = CALL.replace(r#""a""#, r#""b""#);
    let payloads = [
        without(start(0, CALL)),
        without(input(0, r#"{"x":1}"#)),
        r#"{"type":"content_block_stop"}"#.to_owned(),
        without(start(0, &b)),
        without(input(0, r#"{"x":2}"#)),
        r#"{"type":"content_block_stop","index":null}"#.to_owned(),
    ];
    check_calls(
        &[&payloads[..], &end].concat(),
        json!([[0, "a", "f", r#"{"x":1}"#, true], [1, "b", "f", r#"{"x":2}"#, true]]),
    );
    let text = start(3, CALL).replace(":3,", r#":"3","#);
    check_calls(
        &[&[text, input(3, "{}"), stop(3)], &end[..]].concat(),
        json!([[3, "a", "f", "{}", true]]),
    );
    // Two answers in one body: the first one breaks off.
    let opening = r#"{"type":"message_start","message":{"content":[]}}"#.to_owned();
    let payloads = [
        opening.clone(),
        start(0, CALL),
        input(0, r#"{"x"#),
        opening,
        start(0, &b),
        input(0, r#"{"x":2}"#),
        stop(0),
        stop(0),
    ];
    check_calls(
        &[&payloads[..], &end].concat(),
        json!([[0, "a", "f", r#"{"x"#, false], [0, "b", "f", r#"{"x":2}"#, true]]),
    );
}

#[test]
fn bytes_after_the_end_of_a_block_make_its_call_malformed() {
    let payloads = [start(0, CALL), input(0, "{}"), stop(0), input(0, "}"), finish("tool_use")];
    check_calls(&payloads, json!([[0, "a", "f", "{}}", false]]));
}

#[test]
fn pieces_after_the_end_of_a_block_belong_to_its_call() {
    let b = CALL.replace(r#""a""#, r#""b""#);
    for before in [vec![], vec![input(0, r#"{"x":"#)]] {
        let rest = if before.is_empty() { r#"{"x":1}"# } else { "1}" };
        let after = [start(1, &b), input(0, rest), input(1, r#"{"x":2}"#), stop(1)];
        let begin = [vec![start(0, CALL)], before, vec![stop(0)]].concat();
        let end = [finish("tool_use"), END.to_owned()];
        check_calls(
            &[&begin[..], &after, &end].concat(),
            json!([[0, "a", "f", r#"{"x":1}"#, true], [1, "b", "f", r#"{"x":2}"#, true]]),
        );
    }
}

#[test]
fn text_and_thinking_blocks_keep_their_metadata() {
    let cite = |text: &str| {
        let delta = json!({"type": "citations_delta", "citation": {"cited_text": text}});
        json!({"type": "content_block_delta", "index": 1, "delta": delta}).to_string()
    };
    let response = of(&[
        start(0, r#"{"type":"thinking","thinking":"","signature":""}"#),
        piece(0, "thinking_delta", "thinking", "hm"),
        piece(0, "signature_delta", "signature", "s1"),
        stop(0),
        start(1, r#"{"type":"text","text":"","citations":[]}"#),
        cite("x"),
        piece(1, "text_delta", "text", "a"),
        cite("y"),
        stop(1),
        start(2, r#"{"type":"text","text":"b"}"#),
        piece(2, "text_delta", "text", "c"),
        stop(2),
        start(3, r#"{"type":"text","text":"","citations":null}"#),
        piece(3, "text_delta", "text", "d"),
        stop(3),
        finish("end_turn"),
    ]);
    assert_eq!((response.text(), response.reasoning()), ("abcd", "hm"));
    let cited = r#"{"citations":[{"cited_text":"x"},{"cited_text":"y"}]}"#;
    assert_eq!(
        response.parts(),
        [
            MessagePart::Reasoning { bytes: 2, members: Some(r#"{"signature":"s1"}"#.into()) },
            MessagePart::Text { bytes: 1, members: Some(cited.into()) },
            MessagePart::Text { bytes: 2, members: None },
            MessagePart::Text { bytes: 1, members: None },
        ]
    );
}

#[test]
fn thinking_without_a_signature_is_complete_if_a_block_follows() {
    let thinking = |index| {
        [
            start(index, r#"{"type":"thinking","thinking":""}"#),
            piece(index, "thinking_delta", "thinking", "hm"),
        ]
    };
    let followed = [
        &thinking(0)[..],
        &[stop(0), start(1, r#"{"type":"text","text":"a"}"#), finish("end_turn")],
    ];
    let unsigned = MessagePart::Reasoning { bytes: 2, members: Some("{}".into()) };
    assert_eq!(of(&followed.concat()).parts()[0], unsigned);
    let cut = [&thinking(0)[..], &[stop(0), finish("max_tokens"), END.to_owned()]].concat();
    assert_eq!(of(&cut).parts(), []);
}

#[test]
fn service_calls_are_listed_and_sent_back_in_order() {
    let call = r#"{"type":"server_tool_use","id":"s","name":"web_search","input":{},"caller":{"type":"direct"}}"#;
    let result = r#"{"type":"web_search_tool_result","tool_use_id":"s","content":[{"encrypted_content":"é=="}]}"#;
    let compaction = r#"{"type":"compaction","content":null,"encrypted_content":null}"#;
    let delta = json!({"type": "content_block_delta", "index": 3,
        "delta": {"type": "compaction_delta", "content": "c", "encrypted_content": "e"}});
    let response = of(&[
        start(0, call),
        input(0, r#"{"query":"#),
        input(0, r#""x"}"#),
        stop(0),
        start(1, result),
        stop(1),
        start(2, r#"{"type":"redacted_thinking","data":"zz"}"#),
        stop(2),
        start(3, compaction),
        delta.to_string(),
        stop(3),
        start(
            4,
            r#"{"type":"mcp_tool_use","id":"m","name":"g","server_name":"n","input":{"a":1}}"#,
        ),
        stop(4),
        start(5, r#"{"type":"text","text":"done"}"#),
        stop(5),
        finish("end_turn"),
    ]);
    assert_eq!((response.text(), response.reasoning(), response.calls().len()), ("done", "", 0));
    let shown: Vec<_> =
        response.service_calls().iter().map(|c| (&*c.name, &*c.raw, c.kind)).collect();
    let kind = CallKind::ServerToolUse;
    assert_eq!(shown, [("web_search", r#"{"query":"x"}"#, kind), ("g", r#"{"a":1}"#, kind)]);
    let kept: Vec<Value> = response
        .parts()
        .iter()
        .filter_map(|part| match part {
            MessagePart::Raw { json } => serde_json::from_str(json).ok(),
            MessagePart::Text { .. }
            | MessagePart::Reasoning { .. }
            | MessagePart::TaggedReasoning { .. }
            | MessagePart::Call { .. } => None,
        })
        .collect();
    assert_eq!(
        kept,
        [
            json!({"type": "server_tool_use", "id": "s", "name": "web_search",
                "input": {"query": "x"}, "caller": {"type": "direct"}}),
            serde_json::from_str(result).unwrap(),
            json!({"type": "redacted_thinking", "data": "zz"}),
            json!({"type": "compaction", "content": "c", "encrypted_content": "e"}),
            json!({"type": "mcp_tool_use", "id": "m", "name": "g", "server_name": "n",
                "input": {"a": 1}}),
        ]
    );
    assert_eq!(response.parts().len(), 6);
}

#[test]
fn a_service_call_that_is_cut_off_is_listed_and_not_sent_back() {
    let call = r#"{"type":"server_tool_use","id":"s","name":"g","input":{}}"#;
    let response = of(&[start(0, call), input(0, "{\"x"), stop(0), finish("max_tokens")]);
    assert_eq!((response.service_calls()[0].raw.as_str(), response.parts()), ("{\"x", &[][..]));
}

#[test]
fn a_plain_body_gives_the_same_as_its_stream() {
    let body = r#"{"id":"m","type":"message","role":"assistant","content":[
        {"type":"thinking","thinking":"hm","signature":"s"},
        {"type":"text","text":"a","citations":[{"cited_text":"x"}]},
        {"type":"tool_use","id":"a","name":"f","input":{"x":1}},
        {"id":"s","input":{},"name":"g","type":"server_tool_use"}],
        "stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":2}}"#;
    let whole = response(&[body]);
    let mut streamed =
        vec![r#"{"type":"message_start","message":{"usage":{"input_tokens":3}}}"#.to_owned()];
    let blocks = serde_json::from_str::<Value>(body).unwrap()["content"].clone();
    for (index, block) in (0..).zip(blocks.as_array().unwrap()) {
        streamed.extend([start(index, &block.to_string()), stop(index)]);
    }
    streamed.push(finish("tool_use"));
    streamed.push(r#"{"type":"message_delta","usage":{"output_tokens":2}}"#.to_owned());
    assert_eq!(describe_response(&whole), describe_response(&of(&streamed)));
    assert_eq!(whole.parts(), of(&streamed).parts());
    let in_opening = format!(r#"{{"type":"message_start","message":{body}}}"#);
    let from_opening = response(&[&in_opening, END]);
    assert_eq!(describe_response(&whole), describe_response(&from_opening));
    assert_eq!(response(&[r#"{"content":"hi","stop_reason":"end_turn"}"#]).text(), "hi");
}

/// Collects the path of every value within a value.
fn paths(value: &Value, here: &str, found: &mut Vec<String>) {
    found.push(here.to_owned());
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| paths(value, &format!("{here}/{key}"), found));
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(at, value)| paths(value, &format!("{here}/{at}"), found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn a_value_of_an_unexpected_type_does_not_lose_the_payload() {
    let server = r#"{"type":"server_tool_use","id":"s","name":"g","input":{"a":1}}"#;
    let payloads = [
        r#"{"type":"message_start","message":{"content":[{"type":"text","text":"t"}],
            "stop_reason":null,"usage":{"input_tokens":3,"output_tokens_details":{"thinking_tokens":1}}}}"#
            .to_owned(),
        start(0, r#"{"type":"thinking","thinking":"","signature":"","more":[]}"#),
        piece(0, "thinking_delta", "thinking", "hm"),
        piece(0, "signature_delta", "signature", "s1"),
        stop(0),
        start(1, r#"{"type":"text","text":"","citations":[{"cited_text":"x"}]}"#),
        piece(1, "text_delta", "text", "a"),
        stop(1),
        start(2, server),
        stop(2),
        start(3, CALL),
        input(3, "{}"),
        stop(3),
        r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":7}}"#
            .to_owned(),
        END.to_owned(),
    ];
    for (at, payload) in payloads.iter().enumerate() {
        let value: Value = serde_json::from_str(payload).unwrap();
        let mut places = Vec::new();
        paths(&value, "", &mut places);
        // Without its type the payload is not an event.
        for place in places.iter().filter(|place| !["", "/type"].contains(&place.as_str())) {
            for odd in [json!(null), json!(7), json!(-1.5), json!("x"), json!([7]), json!({"x": 7})]
            {
                let mut changed = value.clone();
                *changed.pointer_mut(place).unwrap() = odd;
                let mut changed_payloads = payloads.clone();
                changed_payloads[at] = changed.to_string();
                let response = of(&changed_payloads);
                assert_eq!(response.error(), None, "{place} in {}", changed_payloads[at]);
                assert!(response.is_done() || at == payloads.len() - 1, "{}", changed_payloads[at]);
            }
        }
    }
}
