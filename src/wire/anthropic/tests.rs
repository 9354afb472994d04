use serde_json::json;

use super::*;
use crate::dialect::RequestFormat;
use crate::{CallDelta, Delta, ProviderMetadata};
use callsheet_values::types::{
    ContentRefusal, FinishReason, ProviderError, ProviderErrorKind, RefusalDetails,
};

fn deltas(payloads: &[&str]) -> Vec<Delta> {
    crate::decoder::deltas::<AnthropicDialect>(payloads)
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

const CALL: &str = r#"{"type":"tool_use","id":"a","name":"f","input":{}}"#;

#[test]
fn a_call_starts_grows_and_is_sealed_at_the_end_of_its_block() {
    let payloads = [start(1, CALL), input(1, ""), input(1, r#"{"x""#), input(1, ":1}"), stop(1)];
    let piece = |arguments: &str| {
        Delta::Call(CallDelta {
            index: Some(1),
            arguments: Some(arguments.into()),
            ..CallDelta::default()
        })
    };
    let opening = CallDelta {
        index: Some(1),
        id: Some("a".into()),
        name: Some("f".into()),
        is_marked_start: true,
        ..CallDelta::default()
    };
    let seal = Delta::Seal { index: 1, arguments: None };
    let expected = [Delta::Call(opening), piece(r#"{"x""#), piece(":1}"), seal];
    assert_eq!(deltas(&refs(&payloads)), expected);
}

#[test]
fn other_members_of_a_call_go_back_with_it() {
    let kept = |beside: &str| {
        let call = format!(r#"{{"type":"tool_use","id":"a","name":"f","input":{{}},{beside}}}"#);
        let found = deltas(&[&start(2, &call)]);
        found.into_iter().find(|delta| matches!(delta, Delta::Metadata(_)))
    };
    for beside in [r#""caller":{"tool_id":"t","type":"code_execution"}"#, r#""more":1"#] {
        let keep = ProviderMetadata::Call { index: 2, members: format!("{{{beside}}}").into() };
        assert_eq!(kept(beside), Some(Delta::Metadata(keep)));
    }
    // Members with default values do not go back, because some relays refuse them.
    assert_eq!(kept(r#""caller":{"type":"direct"},"more":null"#), None);
}

#[test]
fn finish_reasons_have_a_kind_and_keep_their_text() {
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
        let expected = Delta::Finish(FinishReason::new(kind, word));
        assert_eq!(deltas(&[&finish(word), END]), [expected, Delta::Done]);
    }
    let details = r#"{"type":"refusal","category":"cyber","explanation":"It is declined."}"#;
    let refused = Delta::Finish(FinishReason::refused(
        "refusal",
        RefusalDetails::new(Some("cyber".into()), Some("It is declined.".into())),
    ));
    let inner = format!(
        r#"{{"type":"message_delta","delta":{{"stop_reason":"refusal","stop_details":{details}}}}}"#
    );
    let plain = format!(
        r#"{{"type":"message","content":[],"stop_reason":"refusal","stop_details":{details}}}"#
    );
    for payload in [inner, plain] {
        assert_eq!(deltas(&[&payload]), std::slice::from_ref(&refused), "{payload}");
    }
    let none = r#"{"type":"message","content":[],"stop_reason":"refusal","stop_details":null}"#;
    let expected = Delta::Finish(FinishReason::new(FinishKind::ContentFilter, "refusal"));
    assert_eq!(deltas(&[none]), [expected]);
    assert_eq!(deltas(&[r#"{"type":"message_delta","delta":{"stop_reason":null}}"#]), []);
    assert_eq!(deltas(&[END]), [Delta::Done]);
}

#[track_caller]
fn check_error(event: &str, payload: &str, message: &str, status: Option<u16>, code: Option<&str>) {
    let mut out = Vec::new();
    crate::decoder::parse_in_full(&mut AnthropicDialect::default(), event, payload, &mut out);
    let expected = Delta::Error(ProviderError {
        content: (status == Some(400)).then_some(ContentRefusal::Unnamed),
        kind: ProviderErrorKind::InStream,
        status,
        code: code.map(str::to_owned),
        message: message.into(),
        retry_after: None,
        retryable: None,
        overflow: None,
        tool_refusal: None,
        reasoning: None,
        refusal: None,
    });
    assert_eq!(out, [expected], "{payload}");
}

#[test]
fn errors_are_found_in_every_position() {
    let overloaded =
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    for event in ["error", "", "message"] {
        check_error(event, overloaded, "Overloaded", Some(529), Some("overloaded_error"));
    }
    let invalid = r#"{"type":"error","error":{"type":"invalid_request_error","message":"m"},
        "request_id":"r"}"#;
    check_error("", invalid, "m", Some(400), Some("invalid_request_error"));
    check_error("", r#"{"error":{"message":"m"}}"#, "m", None, None);
    check_error("", r#"{"error":true,"message":"m"}"#, "m", None, None);
    check_error("", r#"{"detail":"m"}"#, "m", None, None);
    check_error("", r#"[{"error":{"code":503,"message":"m"}}]"#, "m", Some(503), Some("503"));
    check_error("ping", r#"{"type":"ping","error":{"message":"m"}}"#, "m", None, None);
    check_error("error", "m", "m", None, None);
    check_error("error", "", "the service reported an error", None, None);
}

#[test]
fn empty_payloads_have_no_deltas() {
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
fn the_event_name_counts_if_the_payload_has_no_type() {
    let mut out = Vec::new();
    let mut dialect = AnthropicDialect::default();
    let piece = r#"{"index":0,"delta":{"type":"text_delta","text":"a"}}"#;
    crate::decoder::parse_in_full(&mut dialect, "content_block_delta", piece, &mut out);
    crate::decoder::parse_in_full(&mut dialect, "message_stop", "{}", &mut out);
    assert_eq!(out, [Delta::Text("a".into()), Delta::Done]);
}

#[test]
fn a_delta_without_a_type_is_recognised_by_its_members() {
    for (piece, expected) in [
        (r#"{"text":"a"}"#, Some(Delta::Text("a".into()))),
        (r#"{"type":null,"thinking":"a"}"#, Some(Delta::Reasoning("a".into()))),
        (r#"{"signature":"a"}"#, None),
        ("{}", None),
    ] {
        let event = format!(r#"{{"type":"content_block_delta","index":0,"delta":{piece}}}"#);
        assert_eq!(deltas(&[&event]), Vec::from_iter(expected), "{piece}");
    }
    let beside = r#"{"type":"message_delta","stop_reason":"end_turn"}"#;
    let usage = r#"{"type":"message_stop","usage":{"output_tokens":2}}"#;
    let found = deltas(&[beside, usage]);
    assert!(
        matches!(&found[..], [Delta::Finish(_), Delta::Usage { .. }, Delta::Done]),
        "{found:?}"
    );
}

#[test]
fn a_done_marker_on_this_wire_is_ignored() {
    let text = piece(0, "text_delta", "text", "a");
    assert_eq!(deltas(&[&text, "[DONE]"]), [Delta::Text("a".into())]);
}

#[test]
fn invalid_json_is_an_error_and_a_lone_surrogate_is_replaced() {
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
    let Delta::Call(piece) = &deltas(&[&name])[0] else { panic!("no call") };
    assert_eq!(piece.name.as_deref(), Some("\u{FFFD}f"));
    let message = r#"{"type":"message","content":"a\ud83d","stop_reason":"end_turn"}"#;
    assert_eq!(deltas(&[message])[0], Delta::Text("a\u{FFFD}".into()));
    assert!(matches!(&deltas(&["hello"])[..], [Delta::Problem(p)] if p.code == "not_json"));
}

#[test]
fn a_kept_block_has_a_size_limit() {
    let calls: Vec<String> = (0..100_000).map(|index| start(index, CALL)).collect();
    let mut dialect = AnthropicDialect::default();
    let mut out = Vec::new();
    calls
        .iter()
        .for_each(|call| drop(crate::decoder::parse_in_full(&mut dialect, "", call, &mut out)));
    assert_eq!(out.len(), 100_000 + 100_000 - 64);
    let service = r#"{"type":"server_tool_use","id":"s","name":"g","input":{}}"#;
    let long = input(0, &"x".repeat(1 << 20));
    let mut payloads = vec![start(0, service)];
    payloads.extend(std::iter::repeat_n(long, 20));
    payloads.push(stop(0));
    let mut dialect = AnthropicDialect::default();
    let mut out = Vec::new();
    payloads.iter().for_each(|payload| {
        crate::decoder::parse_in_full(&mut dialect, "", payload, &mut out);
    });
    assert!(!out.iter().any(|delta| matches!(delta, Delta::Metadata(_))));
}

#[test]
fn the_address_may_contain_the_version() {
    for (base, url) in [
        ("https://api.example.com", "https://api.example.com/v1/messages"),
        ("https://api.example.com/v1", "https://api.example.com/v1/messages"),
        ("https://api.example.com/anthropic", "https://api.example.com/anthropic/v1/messages"),
        ("https://api.example.com/api/v4/claude", "https://api.example.com/api/v4/claude/messages"),
        ("https://v2.example.com", "https://v2.example.com/v1/messages"),
        ("http://127.0.0.1:80/v1beta", "http://127.0.0.1:80/v1beta/messages"),
    ] {
        assert_eq!(AnthropicDialect::url(base, "m", true), url);
    }
}
