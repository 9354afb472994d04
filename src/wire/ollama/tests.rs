use super::*;
use crate::dialect::RequestFormat;
use crate::{CallDelta, Delta};
use callsheet_values::types::{FinishKind, FinishReason, ProviderError, ProviderErrorKind, Usage};

fn deltas(payloads: &[&str]) -> Vec<Delta> {
    crate::decoder::deltas::<OllamaDialect>(payloads)
}

fn text(text: &str) -> Delta {
    Delta::Text(text.into())
}

fn reasoning(text: &str) -> Delta {
    Delta::Reasoning(text.into())
}

fn finish(raw: &str, kind: FinishKind) -> Delta {
    Delta::Finish(FinishReason::new(kind, raw))
}

fn call(index: u64, id: &str, name: &str, arguments: Option<&str>) -> [Delta; 2] {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let piece = CallDelta {
        index: Some(index),
        id: some(id),
        name: some(name),
        arguments: arguments.map(str::to_owned),
        is_marked_start: true,
        ..CallDelta::default()
    };
    [Delta::Call(piece), Delta::Seal { index, arguments: None }]
}

#[track_caller]
fn check_message(message: &str, expected: &[Delta]) {
    let line = format!(
        r#"{{"model":"m","created_at":"2026-01-01T00:00:00Z","message":{message},"done":false}}"#
    );
    assert_eq!(deltas(&[&line]), expected, "{line}");
}

#[test]
fn text_and_thinking() {
    check_message(r#"{"role":"assistant","content":"hi"}"#, &[text("hi")]);
    check_message(r#"{"content":"a\n\u00e9","images":["AA=="]}"#, &[text("a\né")]);
    check_message(r#"{"content":"","thinking":"r"}"#, &[reasoning("r")]);
    check_message(r#"{"content":"t","thinking":"r"}"#, &[reasoning("r"), text("t")]);
    check_message(r#"{"content":[{"type":"text","text":"t"},"u"]}"#, &[text("t"), text("u")]);
    for nothing in [
        r#"{"content":""}"#,
        r#"{"content":null,"thinking":null,"tool_calls":null}"#,
        r#"{"content":7,"thinking":false,"tool_calls":"none"}"#,
        r#"{"tool_calls":[]}"#,
        r#"{"tool_calls":[null,{},{"function":{}},{"function":null}]}"#,
        "{}",
        "null",
        "[]",
    ] {
        check_message(nothing, &[]);
    }
}

#[test]
fn a_call_is_complete_and_numbered_in_order() {
    let line = |call: &str| format!(r#"{{"message":{{"tool_calls":[{call}]}},"done":false}}"#);
    let first = r#"{"id":"a","function":{"index":0,"name":"f","arguments":{"x":[1,"é"]}}}"#;
    let second = r#"{"function":{"name":"g","arguments":{}}}"#;
    let expected = [call(0, "a", "f", Some(r#"{"x":[1,"é"]}"#)), call(1, "", "g", Some("{}"))];
    assert_eq!(deltas(&[&line(first), &line(second)]), expected.concat());
    assert_eq!(deltas(&[&line(&format!("{first},{second}"))]), expected.concat());
    // Some services send the same index for every call.
    let again = first.replace(r#""id":"a""#, r#""id":"b""#);
    let twice =
        [call(0, "a", "f", Some(r#"{"x":[1,"é"]}"#)), call(1, "b", "f", Some(r#"{"x":[1,"é"]}"#))];
    assert_eq!(deltas(&[&line(first), &line(&again)]), twice.concat());
}

#[test]
fn arguments_of_any_type() {
    for (arguments, expected) in [
        (r#","arguments":{"a":1}"#, Some(r#"{"a":1}"#)),
        (r#","arguments":"{\"a\":1}""#, Some(r#"{"a":1}"#)),
        (r#","arguments":"""#, Some("")),
        (r#","arguments":null"#, None),
        ("", None),
        (r#","arguments":[]"#, Some("[]")),
        (r#","arguments":true"#, Some("true")),
    ] {
        let message = format!(r#"{{"tool_calls":[{{"function":{{"name":"f"{arguments}}}}}]}}"#);
        check_message(&message, &call(0, "", "f", expected));
    }
    check_message(
        r#"{"tool_calls":{"id":7,"name":"f","arguments":{}}}"#,
        &call(0, "7", "f", Some("{}")),
    );
    check_message(
        r#"{"tool_calls":[{"id":"a","function":{"arguments":{}}}]}"#,
        &call(0, "a", "", Some("{}")),
    );
}

#[test]
fn the_last_line_has_a_finish_reason_and_token_counts() {
    let counts = |raw: &str, input_tokens, output_tokens| {
        let usage = Usage { input_tokens, output_tokens, ..Usage::default() };
        Delta::Usage { usage, raw: raw.into() }
    };
    let last = r#"{"message":{"role":"assistant","content":""},"done_reason":"stop","done":true,
        "total_duration":1,"prompt_eval_count":17,"prompt_eval_duration":2,"eval_count":5}"#;
    assert_eq!(
        deltas(&[last]),
        [
            finish("stop", FinishKind::Stop),
            counts(r#"{"prompt_eval_count":17,"eval_count":5}"#, 17, 5),
            Delta::Done
        ]
    );
    assert_eq!(
        deltas(&[r#"{"done":true,"eval_count":5,"prompt_eval_count":null}"#]),
        [counts(r#"{"eval_count":5}"#, 0, 5), Delta::Done]
    );
    assert_eq!(
        deltas(&[r#"{"done":true,"done_reason":"length","eval_count":"5"}"#]),
        [finish("length", FinishKind::Length), counts(r#"{"eval_count":"5"}"#, 0, 5), Delta::Done]
    );
    assert_eq!(deltas(&[r#"{"done":true}"#, r#"{"done":"true"}"#]), [Delta::Done, Delta::Done]);
    for not_yet in [r#"{"done":false}"#, r#"{"done":null,"done_reason":null}"#, "{}", "", "[]"] {
        assert_eq!(deltas(&[not_yet]), [], "{not_yet}");
    }
}

#[test]
fn finish_reasons_have_a_kind_and_keep_their_text() {
    for (word, kind) in [
        ("stop", FinishKind::Stop),
        ("length", FinishKind::Length),
        ("tool_calls", FinishKind::ToolCalls),
        ("load", FinishKind::Other),
        ("unload", FinishKind::Other),
        ("anything", FinishKind::Other),
    ] {
        let line = format!(r#"{{"done_reason":"{word}"}}"#);
        assert_eq!(deltas(&[&line]), [finish(word, kind)]);
    }
}

#[track_caller]
fn check_error(line: &str, message: &str, status: Option<u16>, code: Option<&str>) {
    let expected = Delta::Error(ProviderError {
        content: None,
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
    assert_eq!(deltas(&[line]).last(), Some(&expected), "{line}");
}

#[test]
fn errors_are_found_in_every_position() {
    check_error(r#"{"error":"m"}"#, "m", None, None);
    check_error(r#"{"error":{"message":"m","code":503}}"#, "m", Some(503), Some("503"));
    check_error(r#"{"StatusCode":429,"Status":"429 Too Many","error":"m"}"#, "m", Some(429), None);
    check_error(r#"{"error":"m","status_code":"500"}"#, "m", Some(500), None);
    check_error(r#"{"error":"m","signin_url":"https://a/b"}"#, "m", None, None);
    check_error(r#"{"error":true,"message":"m"}"#, "m", None, None);
    check_error(r#"{"message":{"content":"a"},"done":false,"error":"m"}"#, "m", None, None);
    check_error(r#"{"message":{"content":""},"done":true,"error":"m"}"#, "m", None, None);
    check_error(r#"{"error":{"message":"m\ud800"}}"#, "m\u{FFFD}", None, None);
    check_error(r#"{"message":"m"}"#, "m", None, None);
    check_error(r#"{"detail":"m"}"#, "m", None, None);
    check_error(r#"[{"error":"m"}]"#, "m", None, None);
    for none in [r#"{"error":null}"#, r#"{"error":"","message":{}}"#, r#"{"error":{}}"#] {
        assert_eq!(deltas(&[none]), [], "{none}");
    }
    let mut out = Vec::new();
    crate::decoder::parse_in_full(&mut OllamaDialect::default(), "error", "m", &mut out);
    assert!(matches!(&out[..], [Delta::Error(error)] if error.message == "m"), "{out:?}");
}

#[test]
fn invalid_json_is_an_error_and_other_text_is_a_problem() {
    let cut = deltas(&[r#"{"message":{"content":"a"#]);
    assert!(
        matches!(&cut[..], [Delta::Error(e)] if e.kind == ProviderErrorKind::Malformed),
        "{cut:?}"
    );
    let odd = deltas(&["ping", r#"{"message":{"content":"a"}}"#]);
    assert!(
        matches!(&odd[..], [Delta::Problem(p), Delta::Text(_)] if p.code == "not_json"),
        "{odd:?}"
    );
}

#[test]
fn invalid_lines_are_repaired_where_possible() {
    let a = r#"{"message":{"content":"a"}}"#;
    for several in [format!("{a}\n{a}"), format!("{a}{a}"), format!("[{a},{a}]")] {
        assert_eq!(deltas(&[&several]), [text("a"), text("a")], "{several}");
    }
    assert_eq!(deltas(&[&format!("data: {a}"), "data: [DONE]"]), [text("a")]);
    assert_eq!(deltas(&[r#"{"message":{"content":"\ud83d"}}"#]), [text("\u{FFFD}")]);
    assert_eq!(deltas(&["{\"message\":{\"content\":\"a\tb\"}}"]), [text("a\tb")]);
    assert_eq!(deltas(&[r#"{"message":null,"message":{"content":"a"}}"#]), [text("a")]);
}

#[test]
fn the_base_address_may_contain_the_api_path() {
    for (base, url) in [
        ("http://a:11434", "http://a:11434/api/chat"),
        ("http://a:11434/api", "http://a:11434/api/chat"),
        ("http://a/v1", "http://a/v1/api/chat"),
    ] {
        assert_eq!(OllamaDialect::url(base, "m", true), url);
    }
}
