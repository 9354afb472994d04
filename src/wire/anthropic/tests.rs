use super::*;
use crate::turn::{Accumulator, AccumulatorLimits, describe, ended_well};
use crate::types::{Part, ProviderError, ProviderErrorKind};
use crate::wire::{CallKind, CallPiece, Keep};
use serde_json::{Value, json};

fn deltas(payloads: &[&str]) -> Vec<Delta> {
    let mut dialect = Anthropic::default();
    let mut out = Vec::new();
    for payload in payloads {
        dialect.payload("", payload, &mut out);
    }
    dialect.end(&mut out);
    out
}

fn response(payloads: &[&str]) -> Accumulator {
    let mut response = Accumulator::new(AccumulatorLimits::default());
    deltas(payloads).iter().for_each(|delta| drop(response.push(delta)));
    let well = ended_well(&response);
    response.end(well);
    response
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

fn refs(payloads: &[String]) -> Vec<&str> {
    payloads.iter().map(String::as_str).collect()
}

fn of(payloads: &[String]) -> Accumulator {
    response(&refs(payloads))
}

/// Index, id, name, raw arguments and completeness of each call.
#[track_caller]
fn check_calls(payloads: &[String], expected: Value) {
    let said = describe(&of(payloads));
    let calls = said["tool_calls"].as_array().unwrap().iter();
    let found: Vec<_> = calls
        .map(|c| json!([c["index"], c["id"], c["name"], c["arguments_raw"], c["complete"]]))
        .collect();
    assert_eq!(Value::from(found), expected, "{payloads:?}");
    assert_eq!(said["problems"], json!([]));
}

const CALL: &str = r#"{"type":"tool_use","id":"a","name":"f","input":{}}"#;

#[test]
fn a_call_opens_grows_and_is_sealed_where_its_block_ends() {
    let payloads = [start(1, CALL), input(1, ""), input(1, r#"{"x""#), input(1, ":1}"), stop(1)];
    let piece = |arguments: &str| {
        Delta::Call(CallPiece {
            index: Some(1),
            arguments: Some(arguments.into()),
            ..CallPiece::default()
        })
    };
    let opening = CallPiece {
        index: Some(1),
        id: Some("a".into()),
        name: Some("f".into()),
        begins: true,
        ..CallPiece::default()
    };
    let seal = Delta::Seal { index: 1, arguments: None };
    let expected = [Delta::Call(opening), piece(r#"{"x""#), piece(":1}"), seal];
    assert_eq!(deltas(&refs(&payloads)), expected);
}

#[test]
fn the_input_of_the_opening_counts_where_no_pieces_come() {
    let full = r#"{"type":"tool_use","id":"a","name":"f","input":{"y": 2}}"#;
    let end = [finish("tool_use"), END.to_owned()];
    let with = |blocks: &[String]| [blocks, &end].concat();
    check_calls(&with(&[start(0, full), stop(0)]), json!([[0, "a", "f", r#"{"y": 2}"#, true]]));
    check_calls(
        &with(&[start(0, full), input(0, "{}"), stop(0)]),
        json!([[0, "a", "f", "{}", true]]),
    );
    check_calls(&with(&[start(0, CALL), stop(0)]), json!([[0, "a", "f", "{}", true]]));
    let null = r#"{"type":"tool_use","id":"a","name":"f","input":null}"#;
    check_calls(&with(&[start(0, null), stop(0)]), json!([[0, "a", "f", "", true]]));
    let text = r#"{"type":"tool_use","id":"a","name":"f","input":"{\"y\":2}"}"#;
    check_calls(&with(&[start(0, text), stop(0)]), json!([[0, "a", "f", r#"{"y":2}"#, true]]));
    // The ends of blocks are left out.
    check_calls(&with(&[start(0, full)]), json!([[0, "a", "f", r#"{"y": 2}"#, true]]));
    let cut = [start(0, full), finish("max_tokens"), END.to_owned()];
    check_calls(&cut, json!([[0, "a", "f", r#"{"y": 2}"#, false]]));
}

#[test]
fn indexes_may_be_texts_or_missing_or_used_again() {
    let end = [finish("tool_use"), END.to_owned()];
    let without = |payload: String| payload.replace(r#""index":0,"#, "");
    let b = CALL.replace(r#""a""#, r#""b""#);
    let said = [
        without(start(0, CALL)),
        without(input(0, r#"{"x":1}"#)),
        r#"{"type":"content_block_stop"}"#.to_owned(),
        without(start(0, &b)),
        without(input(0, r#"{"x":2}"#)),
        r#"{"type":"content_block_stop","index":null}"#.to_owned(),
    ];
    check_calls(
        &[&said[..], &end].concat(),
        json!([[0, "a", "f", r#"{"x":1}"#, true], [1, "b", "f", r#"{"x":2}"#, true]]),
    );
    let text = start(3, CALL).replace(":3,", r#":"3","#);
    check_calls(
        &[&[text, input(3, "{}"), stop(3)], &end[..]].concat(),
        json!([[3, "a", "f", "{}", true]]),
    );
    // Two answers in one body: the first is left where it broke off.
    let opening = r#"{"type":"message_start","message":{"content":[]}}"#.to_owned();
    let said = [
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
        &[&said[..], &end].concat(),
        json!([[0, "a", "f", r#"{"x"#, false], [0, "b", "f", r#"{"x":2}"#, true]]),
    );
}

#[test]
fn bytes_after_the_end_of_a_block_make_its_call_malformed() {
    let said = [start(0, CALL), input(0, "{}"), stop(0), input(0, "}"), finish("tool_use")];
    check_calls(&said, json!([[0, "a", "f", "{}}", false]]));
}

#[test]
fn what_a_block_of_text_or_thinking_wants_back() {
    let cite = |text: &str| {
        let delta = json!({"type": "citations_delta", "citation": {"cited_text": text}});
        json!({"type": "content_block_delta", "index": 1, "delta": delta}).to_string()
    };
    let said = of(&[
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
    assert_eq!((said.text(), said.reasoning()), ("abcd", "hm"));
    let cited = r#"{"citations":[{"cited_text":"x"},{"cited_text":"y"}]}"#;
    assert_eq!(
        said.parts(),
        [
            Part::Reasoning { bytes: 2, members: Some(r#"{"signature":"s1"}"#.into()) },
            Part::Text { bytes: 1, members: Some(cited.into()) },
            Part::Text { bytes: 2, members: None },
            Part::Text { bytes: 1, members: None },
        ]
    );
}

#[test]
fn thinking_without_a_signature_is_whole_if_something_follows() {
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
    let unsigned = Part::Reasoning { bytes: 2, members: Some("{}".into()) };
    assert_eq!(of(&followed.concat()).parts()[0], unsigned);
    let cut = [&thinking(0)[..], &[stop(0), finish("max_tokens"), END.to_owned()]].concat();
    assert_eq!(of(&cut).parts(), []);
}

#[test]
fn what_the_service_runs_itself_is_shown_and_kept_whole_in_its_place() {
    let call = r#"{"type":"server_tool_use","id":"s","name":"web_search","input":{},"caller":{"type":"direct"}}"#;
    let result = r#"{"type":"web_search_tool_result","tool_use_id":"s","content":[{"encrypted_content":"é=="}]}"#;
    let compaction = r#"{"type":"compaction","content":null,"encrypted_content":null}"#;
    let delta = json!({"type": "content_block_delta", "index": 3,
        "delta": {"type": "compaction_delta", "content": "c", "encrypted_content": "e"}});
    let said = of(&[
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
    assert_eq!((said.text(), said.reasoning(), said.calls().len()), ("done", "", 0));
    let shown: Vec<_> = said.service_calls().iter().map(|c| (&*c.name, &*c.raw, c.kind)).collect();
    let kind = CallKind::ServerToolUse;
    assert_eq!(shown, [("web_search", r#"{"query":"x"}"#, kind), ("g", r#"{"a":1}"#, kind)]);
    let kept: Vec<Value> = said
        .parts()
        .iter()
        .filter_map(|part| match part {
            Part::Raw { json } => serde_json::from_str(json).ok(),
            Part::Text { .. } | Part::Reasoning { .. } | Part::Call { .. } => None,
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
    assert_eq!(said.parts().len(), 6);
}

#[test]
fn a_service_call_that_is_cut_off_is_shown_and_not_kept() {
    let call = r#"{"type":"server_tool_use","id":"s","name":"g","input":{}}"#;
    let said = of(&[start(0, call), input(0, "{\"x"), stop(0), finish("max_tokens")]);
    assert_eq!((said.service_calls()[0].raw.as_str(), said.parts()), ("{\"x", &[][..]));
}

#[test]
fn what_else_a_call_says_goes_back_with_it() {
    let call = r#"{"type":"tool_use","id":"a","name":"f","input":{},"caller":{"type":"direct"}}"#;
    let keep = Keep::Call { index: 2, members: r#"{"caller":{"type":"direct"}}"#.into() };
    assert_eq!(deltas(&[&start(2, call)])[1], Delta::Keep(keep));
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
    assert_eq!(describe(&whole), describe(&of(&streamed)));
    assert_eq!(whole.parts(), of(&streamed).parts());
    let in_opening = format!(r#"{{"type":"message_start","message":{body}}}"#);
    let from_opening = response(&[&in_opening, END]);
    assert_eq!(describe(&whole), describe(&from_opening));
    assert_eq!(response(&[r#"{"content":"hi","stop_reason":"end_turn"}"#]).text(), "hi");
}

#[test]
fn finish_reasons_have_a_kind_and_keep_their_word() {
    for (word, kind) in [
        ("end_turn", FinishKind::Stop),
        ("stop_sequence", FinishKind::Stop),
        ("tool_use", FinishKind::ToolCalls),
        ("max_tokens", FinishKind::Length),
        ("model_context_window_exceeded", FinishKind::Length),
        ("refusal", FinishKind::ContentFilter),
        ("pause_turn", FinishKind::Pause),
        ("compaction", FinishKind::Other),
    ] {
        let expected = Delta::Finish(FinishReason { kind, raw: word.into() });
        assert_eq!(deltas(&[&finish(word), END]), [expected, Delta::Done]);
    }
    assert_eq!(deltas(&[r#"{"type":"message_delta","delta":{"stop_reason":null}}"#]), []);
    assert_eq!(deltas(&[END]), [Delta::Done]);
}

#[track_caller]
fn check_error(event: &str, payload: &str, message: &str, status: Option<u16>, code: Option<&str>) {
    let mut out = Vec::new();
    Anthropic::default().payload(event, payload, &mut out);
    let expected = Delta::Error(ProviderError {
        kind: ProviderErrorKind::InStream,
        status,
        code: code.map(str::to_owned),
        message: message.into(),
        retry_after: None,
    });
    assert_eq!(out, [expected], "{payload}");
}

#[test]
fn errors_wherever_they_stand() {
    let overloaded =
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    for event in ["error", "", "message"] {
        check_error(event, overloaded, "Overloaded", Some(529), Some("overloaded_error"));
    }
    let invalid = r#"{"type":"error","error":{"type":"invalid_request_error","message":"m"},
        "request_id":"r"}"#;
    check_error("", invalid, "m", Some(400), Some("invalid_request_error"));
    check_error("", r#"{"error":{"message":"m"}}"#, "m", None, None);
    check_error("", r#"{"detail":"m"}"#, "m", None, None);
    check_error("", r#"[{"error":{"code":503,"message":"m"}}]"#, "m", Some(503), Some("503"));
    check_error("ping", r#"{"type":"ping","error":{"message":"m"}}"#, "m", None, None);
    check_error("error", "m", "m", None, None);
    check_error("error", "", "the service reported an error", None, None);
}

#[test]
fn what_says_nothing_gives_nothing() {
    for nothing in [
        r#"{"type":"ping"}"#,
        r#"{"type":"a_later_event","index":0,"delta":{"text":"x"}}"#,
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"content_block_start","index":0}"#,
        r#"{"type":"content_block_start","index":0,"content_block":null}"#,
        r#"{"type":"content_block_start","index":0,"content_block":7}"#,
        r#"{"type":"content_block_delta","index":0,"delta":null}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"later_delta","text":"x"}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":7}}"#,
        r#"{"type":"message_start"}"#,
        r#"{"type":"message_start","message":null}"#,
        r#"{"type":"message_delta"}"#,
        r#"{"type":"message_delta","delta":[],"usage":null}"#,
        r#"{"error":null}"#,
        "{}",
        "",
        "[]",
        "[DONE]",
    ] {
        assert_eq!(deltas(&[nothing]), [], "{nothing}");
    }
}

#[test]
fn the_name_of_an_event_counts_where_the_payload_says_no_type() {
    let mut out = Vec::new();
    let mut dialect = Anthropic::default();
    let piece = r#"{"index":0,"delta":{"type":"text_delta","text":"a"}}"#;
    dialect.payload("content_block_delta", piece, &mut out);
    dialect.payload("message_stop", "{}", &mut out);
    assert_eq!(out, [Delta::Text("a".into()), Delta::Done]);
}

#[test]
fn a_marker_that_does_not_belong_is_an_end_only_after_a_finish() {
    let text = piece(0, "text_delta", "text", "a");
    assert_eq!(deltas(&[&text, "[DONE]"]), [Delta::Text("a".into())]);
    assert_eq!(deltas(&[&text, &finish("end_turn"), "[DONE]"]).last(), Some(&Delta::Done));
}

#[test]
fn what_cannot_be_read_is_an_error_and_half_a_character_is_replaced() {
    let cut = deltas(&[r#"{"type":"content_block_delta","delta":{"text":"a"#]);
    assert!(
        matches!(&cut[..], [Delta::Error(e)] if e.kind == ProviderErrorKind::Malformed),
        "{cut:?}"
    );
    let half = piece(0, "text_delta", "text", "%").replace('%', r"\ud83d");
    assert_eq!(deltas(&[&half]), [Delta::Text("\u{FFFD}".into())]);
    let block = start(0, r#"{"type":"text","text":"\ud83d"}"#);
    assert_eq!(deltas(&[&block])[0], Delta::Text("\u{FFFD}".into()));
    let name = start(0, r#"{"type":"tool_use","id":"a","name":"\ud83df","input":{}}"#);
    let said = response(&[&name, &stop(0), &finish("tool_use")]);
    assert_eq!(said.calls()[0].name, "\u{FFFD}f");
    assert!(matches!(&deltas(&["hello"])[..], [Delta::Problem(p)] if p.code == "not_json"));
}

#[test]
fn what_is_held_has_a_limit() {
    let calls: Vec<String> = (0..100_000).map(|index| start(index, CALL)).collect();
    let mut dialect = Anthropic::default();
    let mut out = Vec::new();
    calls.iter().for_each(|call| dialect.payload("", call, &mut out));
    assert_eq!(out.len(), 100_000 + 100_000 - 64);
    let service = r#"{"type":"server_tool_use","id":"s","name":"g","input":{}}"#;
    let long = input(0, &"x".repeat(1 << 20));
    let mut said = vec![start(0, service)];
    said.extend(std::iter::repeat_n(long, 20));
    said.push(stop(0));
    let mut dialect = Anthropic::default();
    let mut out = Vec::new();
    said.iter().for_each(|payload| dialect.payload("", payload, &mut out));
    assert!(!out.iter().any(|delta| matches!(delta, Delta::Keep(_))));
}

#[test]
fn the_version_may_stand_in_the_address() {
    for (base, url) in [
        ("https://api.example.com", "https://api.example.com/v1/messages"),
        ("https://api.example.com/v1", "https://api.example.com/v1/messages"),
        ("https://api.example.com/anthropic", "https://api.example.com/anthropic/v1/messages"),
        ("https://api.example.com/api/v4/claude", "https://api.example.com/api/v4/claude/messages"),
        ("https://v2.example.com", "https://v2.example.com/v1/messages"),
        ("http://127.0.0.1:80/v1beta", "http://127.0.0.1:80/v1beta/messages"),
    ] {
        assert_eq!(Anthropic::url(base, "m", true), url);
    }
}
