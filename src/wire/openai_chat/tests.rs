#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]
use serde_json::{Value, json};

use super::*;
use crate::dialect::PayloadDecoder;
use crate::{CallDelta, CallKind, Delta, ProviderMetadata};
use callsheet_values::types::{
    ContentRefusal, FinishKind, FinishReason, ProviderError, ProviderErrorKind, RefusalDetails,
};

fn deltas(payloads: &[&str]) -> Vec<Delta> {
    crate::decoder::deltas::<OpenaiChatDialect>(payloads)
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

fn piece(index: Option<u64>, id: &str, name: &str, arguments: Option<&str>) -> Delta {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    Delta::Call(CallDelta {
        index,
        id: some(id),
        name: some(name),
        arguments: arguments.map(str::to_owned),
        ..CallDelta::default()
    })
}

/// Checks the deltas of a chunk, except the metadata of its reasoning.
#[track_caller]
fn check_delta(delta: &str, expected: &[Delta]) {
    let chunk = format!(r#"{{"choices":[{{"index":0,"delta":{delta}}}]}}"#);
    let found = |chunk: &str| {
        let mut found = deltas(&[chunk]);
        found.retain(|delta| !matches!(delta, Delta::Metadata(ProviderMetadata::Reasoning { .. })));
        found
    };
    assert_eq!(found(&chunk), expected, "{chunk}");
    let spaced = chunk.replace(':', " :\n").replace(',', " , ");
    assert_eq!(found(&spaced), expected, "{spaced}");
}

#[track_caller]
fn check_call(call: &str, expected: Delta) {
    check_delta(&format!(r#"{{"tool_calls":[{call}]}}"#), &[expected]);
}

#[test]
fn text_reasoning_and_refusal() {
    check_delta(r#"{"content":"hi"}"#, &[text("hi")]);
    check_delta(r#"{"content":"a\n\u00e9"}"#, &[text("a\né")]);
    check_delta(r#"{"content":"","refusal":"","reasoning":null}"#, &[]);
    check_delta(r#"{"reasoning":"r","content":"t"}"#, &[reasoning("r"), text("t")]);
    check_delta(r#"{"reasoning_content":"r"}"#, &[reasoning("r")]);
    check_delta(r#"{"reasoning_content":"r","reasoning":"r"}"#, &[reasoning("r")]);
    check_delta(r#"{"reasoning_content":"","reasoning":"r"}"#, &[reasoning("r")]);
    check_delta(r#"{"reasoning_text":"r"}"#, &[reasoning("r")]);
    check_delta(
        r#"{"reasoning":"r","reasoning_details":[{"type":"reasoning.text","text":"r"}]}"#,
        &[reasoning("r")],
    );
    check_delta(r#"{"refusal":"no"}"#, &[Delta::Refusal("no".into())]);
}

#[test]
fn content_in_parts() {
    check_delta(
        r#"{"content":[{"type":"thinking","thinking":[{"type":"text","text":"r"}]},
            {"type":"text","text":"t"},{"type":"reference","reference_ids":[1]},"u",7,null]}"#,
        &[reasoning("r"), text("t"), text("u")],
    );
    check_delta(r#"{"content":[{"type":"thinking","thinking":"r"}]}"#, &[reasoning("r")]);
    check_delta(r#"{"content":{"type":"text","text":"t"}}"#, &[text("t")]);
    check_delta(
        r#"{"content":[{"type":"reasoning","summary":[{"type":"summary_text","text":"r"}]}]}"#,
        &[reasoning("r")],
    );
    check_delta(
        r#"{"content":[{"type":"refusal","refusal":"no"}]}"#,
        &[Delta::Refusal("no".into())],
    );
    check_delta(
        r#"{"content":[[{"type":"thinking","text":"r"},["t"]],{"text":[{"refusal":"no"}]}]}"#,
        &[reasoning("r"), text("t"), Delta::Refusal("no".into())],
    );
}

#[test]
fn texts_beyond_the_limit_of_a_list_are_reported() {
    let parts = vec![r#"{"text":"t"}"#; 5000].join(",");
    for content in [format!("[{parts}]"), format!(r#"[{{"text":[{parts}]}},[{parts}]]"#)] {
        let delta = format!(r#"{{"content":{content}}}"#);
        let found = deltas(&[&chunk(&delta)]);
        assert_eq!((found.len(), found.first()), (4098, Some(&text("t"))));
        let last = found.last();
        assert!(matches!(last, Some(Delta::Problem(p)) if p.code == "too_many_texts"), "{last:?}");
    }
}

#[test]
fn pieces_of_calls_are_decoded_without_inference() {
    let function = r#""function":{"name":"f","arguments":"{}"}"#;
    for (index, expected) in [
        (r#""index":2,"#, Some(2)),
        (r#""index":"2","#, Some(2)),
        (r#""index":2.0,"#, Some(2)),
        (r#""index":2.5,"#, None),
        (r#""index":-1,"#, None),
        (r#""index":"first","#, None),
        (r#""index":null,"#, None),
        (r#""index":[0],"#, None),
        ("", None),
    ] {
        check_call(
            &format!(r#"{{{index}"id":"a",{function}}}"#),
            piece(expected, "a", "f", Some("{}")),
        );
    }
    check_call(
        r#"{"index":0,"id":null,"type":null,"function":{"name":null,"arguments":"{"}}"#,
        piece(Some(0), "", "", Some("{")),
    );
    check_call(
        r#"{"index":0,"id":"","type":"","function":{"name":"","arguments":""}}"#,
        piece(Some(0), "", "", Some("")),
    );
    check_call(r#"{"id":7,"function":{"name":"f"}}"#, piece(None, "7", "f", None));
    check_call(r#"{"index":0,"id":"a"}"#, piece(Some(0), "a", "", None));
    check_call(r#"{"name":"f","arguments":{}}"#, piece(None, "", "f", Some("{}")));
}

#[test]
fn arguments_of_any_json_type_become_text() {
    for (arguments, expected) in [
        ("null", None),
        (r#""null""#, Some("null")),
        (r#"{"a":[1,"é"]}"#, Some(r#"{"a":[1,"é"]}"#)),
        (r#""{\"a\":\"\\u00e9\\n\"}""#, Some(r#"{"a":"\u00e9\n"}"#)),
        ("[]", Some("[]")),
    ] {
        let chunk = format!(
            r#"{{"choices":[{{"delta":{{"tool_calls":[{{"function":
                {{"name":"f","arguments":{arguments}}}}}]}}}}]}}"#
        );
        assert_eq!(deltas(&[&chunk]), [piece(None, "", "f", expected)], "{chunk}");
    }
}

#[test]
fn a_single_call_without_a_list_and_the_deprecated_form_are_read() {
    check_delta(
        r#"{"tool_calls":{"index":0,"id":"a","function":{"name":"f"}}}"#,
        &[piece(Some(0), "a", "f", None)],
    );
    check_delta(
        r#"{"function_call":{"name":"f","arguments":""}}"#,
        &[piece(None, "", "f", Some(""))],
    );
    // If both are present they hold the same call.
    check_delta(
        r#"{"function_call":{"name":"f","arguments":"{}"},
            "tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}"#,
        &[piece(Some(0), "a", "f", Some("{}"))],
    );
    check_delta(r#"{"tool_calls":null,"function_call":null}"#, &[]);
    check_delta(r#"{"tool_calls":"none","content":"t"}"#, &[text("t")]);
}

#[test]
fn a_custom_call_has_free_text() {
    let chunk = r#"{"choices":[{"delta":{"tool_calls":[
        {"index":0,"id":"a","type":"custom","custom":{"name":"f","input":"x=1"}}]}}]}"#;
    let expected = CallDelta {
        index: Some(0),
        id: Some("a".into()),
        name: Some("f".into()),
        arguments: Some("x=1".into()),
        kind: CallKind::Custom,
        ..CallDelta::default()
    };
    assert_eq!(deltas(&[chunk]), [Delta::Call(expected)]);
}

#[test]
fn a_message_after_deltas_is_ignored() {
    let both = r#"{"choices":[{"delta":{"content":"a"},"message":{"content":"a"}}]}"#;
    let summary = r#"{"choices":[{"message":{"content":"ab"},"finish_reason":"stop"}]}"#;
    assert_eq!(deltas(&[both, summary]), [text("a"), finish("stop", FinishKind::Stop)]);
    assert_eq!(deltas(&[summary]), [text("ab"), finish("stop", FinishKind::Stop)]);
    let empty = r#"{"choices":[{"delta":{},"message":{"content":"ab"}}]}"#;
    assert_eq!(deltas(&[empty]), [text("ab")]);
    assert_eq!(deltas(&[both, empty]), [text("a")]);
}

#[test]
fn calls_of_a_complete_message_are_numbered() {
    let body = r#"{"choices":[{"message":{"content":null,"tool_calls":[
        {"function":{"name":"f","arguments":""}},{"function":{"name":"f","arguments":""}}]}}]}"#;
    assert_eq!(
        deltas(&[body]),
        [piece(Some(0), "", "f", Some("")), piece(Some(1), "", "f", Some(""))]
    );
}

fn metadata(members: Value) -> Delta {
    Delta::Metadata(ProviderMetadata::Reasoning { members: Some(members.to_string().into()) })
}

fn chunk(delta: &str) -> String {
    format!(r#"{{"choices":[{{"delta":{delta}}}]}}"#)
}

const FINISH: &str = r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#;

#[test]
fn the_reasoning_field_is_kept() {
    let call = r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f"}}]}"#;
    for (thinking, field) in [
        (r#"{"reasoning_content":"r"}"#, "reasoning_content"),
        (r#"{"reasoning":"r"}"#, "reasoning"),
        (r#"{"reasoning_content":"r","reasoning":"r"}"#, "reasoning_content"),
        (r#"{"content":[{"type":"thinking","thinking":"r"}]}"#, "content"),
    ] {
        assert_eq!(
            deltas(&[&chunk(thinking), &chunk(thinking), &chunk(call), FINISH, "[DONE]"]),
            [
                reasoning("r"),
                reasoning("r"),
                metadata(json!({ "field": field })),
                piece(Some(0), "a", "f", None),
                finish("tool_calls", FinishKind::ToolCalls),
                Delta::Done,
            ]
        );
        let answer = deltas(&[&chunk(thinking), FINISH, "[DONE]"]);
        assert_eq!(answer[1], metadata(json!({ "field": field })));
    }
    // Reasoning that comes last is kept too.
    assert_eq!(
        deltas(&[&chunk(call), &chunk(r#"{"reasoning":"r"}"#), FINISH])[2..],
        [metadata(json!({"field": "reasoning"})), finish("tool_calls", FinishKind::ToolCalls)]
    );
}

#[test]
fn reasoning_details_are_kept_once_they_are_complete() {
    let thinking = |text: &str| {
        chunk(&format!(
            r#"{{"reasoning":"{text}","reasoning_details":
                [{{"type":"reasoning.text","text":"{text}","index":0}}]}}"#
        ))
    };
    let call = chunk(r#"{"tool_calls":[{"index":0,"function":{"name":"f"}}]}"#);
    let signed =
        chunk(r#"{"reasoning_details":[{"type":"reasoning.text","signature":"s","index":0}]}"#);
    let details = json!([{"type": "reasoning.text", "text": "ab", "index": 0,
        "signature": "s"}]);
    assert_eq!(
        deltas(&[&thinking("a"), &thinking("b"), &call, &signed, FINISH, "[DONE]"]),
        [
            reasoning("a"),
            reasoning("b"),
            piece(Some(0), "", "f", None),
            metadata(json!({"field": "reasoning", "reasoning_details": details})),
            finish("tool_calls", FinishKind::ToolCalls),
            Delta::Done,
        ]
    );
    let mut dialect = OpenaiChatDialect::default();
    let mut out = Vec::new();
    crate::decoder::parse_in_full(&mut dialect, "", &thinking("a"), &mut out);
    crate::decoder::parse_in_full(&mut dialect, "", &call, &mut out);
    assert_eq!(out.len(), 2);
    dialect.end_of_body(&mut out);
    assert!(matches!(out[2..], [Delta::Metadata(_)]), "{out:?}");
}

#[test]
fn reasoning_opaque_is_kept_in_every_position() {
    let call = chunk(r#"{"tool_calls":[{"index":0,"function":{"name":"f"}}]}"#);
    let thinking = chunk(r#"{"reasoning_text":"r"}"#);
    let opaque = chunk(r#"{"content":null,"reasoning_opaque":"x"}"#);
    let whole = metadata(json!({"field": "reasoning_text", "reasoning_opaque": "x"}));
    let end = finish("tool_calls", FinishKind::ToolCalls);
    let called = piece(Some(0), "", "f", None);
    assert_eq!(
        deltas(&[&thinking, &opaque, &opaque, &call, FINISH]),
        [reasoning("r"), whole.clone(), called.clone(), end.clone()]
    );
    assert_eq!(
        deltas(&[&thinking, &call, &opaque, FINISH]),
        [reasoning("r"), metadata(json!({"field": "reasoning_text"})), called, whole, end]
    );
    let null = chunk(r#"{"reasoning_opaque":null}"#);
    assert_eq!(deltas(&[&null, &call, FINISH]).len(), 2);
}

#[test]
fn extra_members_of_a_call_are_kept_with_it() {
    let extra = json!({"google": {"thought_signature": "s"}});
    let member = |index, members: Value| {
        Delta::Metadata(ProviderMetadata::Call { index, members: members.to_string().into() })
    };
    check_delta(
        &format!(
            r#"{{"tool_calls":[{{"index":1,"function":{{"name":"f"}},"extra_content":{extra}}},
                {{"index":2,"function":{{"name":"f","provider_specific_fields":{extra}}},
                  "thought_signature":"s","extra_content":null}}]}}"#
        ),
        &[
            piece(Some(1), "", "f", None),
            member(1, json!({ "extra_content": extra })),
            piece(Some(2), "", "f", None),
            member(
                2,
                json!({"thought_signature": "s",
                    "function": {"provider_specific_fields": extra}}),
            ),
        ],
    );
    // Gemini's own stream of this form has no index.
    check_delta(
        &format!(r#"{{"tool_calls":[{{"function":{{"name":"f"}},"extra_content":{extra}}}]}}"#),
        &[
            piece(None, "", "f", None),
            Delta::Metadata(ProviderMetadata::LastCall {
                members: json!({ "extra_content": extra }).to_string().into(),
            }),
        ],
    );
    // It may come late, twice, and in pieces.
    let more = |field: &str| {
        chunk(&format!(r#"{{"tool_calls":[{{"index":0,"function":{{}},"{field}":{{"a":1}}}}]}}"#))
    };
    let (first, second) = (more("extra_content"), more("provider_specific_fields"));
    let found = deltas(&[&first, &first, &second]);
    let found: Vec<_> = found.iter().filter(|d| matches!(d, Delta::Metadata(_))).collect();
    assert_eq!(
        found,
        [
            &member(0, json!({"extra_content": {"a": 1}})),
            &member(0, json!({"extra_content": {"a": 1}, "provider_specific_fields": {"a": 1}})),
        ]
    );
}

#[test]
fn only_the_first_choice_counts() {
    let chunk = r#"{"choices":[{"index":1,"delta":{"content":"b"}},
        {"index":0,"delta":{"content":"a"}},null,{"index":2,"delta":{"content":"c"}}]}"#;
    assert_eq!(deltas(&[chunk]), [text("a")]);
    for nothing in [
        r#"{"choices":[]}"#,
        r#"{"choices":null}"#,
        r#"{"choices":[{"index":0}]}"#,
        r#"{"choices":[{"index":0,"delta":null,"finish_reason":null}]}"#,
        r#"{"choices":[{"index":0,"delta":{},"finish_reason":""}]}"#,
        r#"{"type":"ping"}"#,
        "{}",
        "",
        "[]",
    ] {
        assert_eq!(deltas(&[nothing]), [], "{nothing}");
    }
}

#[test]
fn finish_reasons_have_a_kind_and_keep_their_text() {
    for (word, kind) in [
        ("stop", FinishKind::Stop),
        ("STOP", FinishKind::Stop),
        ("eos", FinishKind::Stop),
        ("end_turn", FinishKind::Stop),
        ("tool_calls", FinishKind::ToolCalls),
        ("function_call", FinishKind::ToolCalls),
        ("tool_use", FinishKind::ToolCalls),
        ("length", FinishKind::Length),
        ("max_tokens", FinishKind::Length),
        ("model_length", FinishKind::Length),
        ("content_filter", FinishKind::ContentFilter),
        ("sensitive", FinishKind::ContentFilter),
        ("refusal", FinishKind::ContentFilter),
        ("error", FinishKind::Error),
        ("network_error", FinishKind::Error),
        ("insufficient_system_resource", FinishKind::Error),
        ("content-filter", FinishKind::ContentFilter),
        ("model_context_window_exceeded", FinishKind::Length),
        ("MALFORMED_FUNCTION_CALL", FinishKind::Error),
        ("UNEXPECTED_TOOL_CALL", FinishKind::Error),
        ("TOO_MANY_TOOL_CALLS", FinishKind::Error),
        ("LANGUAGE", FinishKind::ContentFilter),
        ("MODEL_ARMOR", FinishKind::ContentFilter),
        ("IMAGE_PROHIBITED_CONTENT", FinishKind::ContentFilter),
        ("function_call_filter: MALFORMED_FUNCTION_CALL", FinishKind::Error),
        ("function_call_filter: UNEXPECTED_TOOL_CALL", FinishKind::Error),
        ("content_filter: PROHIBITED_CONTENT", FinishKind::ContentFilter),
        ("content_filter: RECITATION", FinishKind::ContentFilter),
        ("content_filter : a_new_word", FinishKind::ContentFilter),
        ("pause_turn", FinishKind::Pause),
        ("anything", FinishKind::Other),
        ("anything: SAFETY", FinishKind::Other),
    ] {
        let chunk = format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"{word}"}}]}}"#);
        let own = word.split_once(':').map(|(_, word)| word.trim().to_owned());
        let expected = match kind {
            FinishKind::ContentFilter => {
                Delta::Finish(FinishReason::refused(word, RefusalDetails::new(own, None)))
            }
            _ => finish(word, kind),
        };
        assert_eq!(deltas(&[&chunk]), [expected]);
    }
}

#[track_caller]
fn check_error(payload: &str, message: &str, status: Option<u16>, code: Option<&str>) {
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
    assert_eq!(deltas(&[payload]).last(), Some(&expected), "{payload}");
}

#[test]
fn errors_are_found_in_every_position() {
    check_error(r#"{"error":{"message":"m","type":"t","code":null}}"#, "m", None, Some("t"));
    check_error(r#"{"error":"m"}"#, "m", None, None);
    check_error(r#"{"error":{"code":503,"message":"m"}}"#, "m", Some(503), Some("503"));
    check_error(
        r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"error"}],
            "error":{"code":502,"message":"m"}}"#,
        "m",
        Some(502),
        Some("502"),
    );
    check_error(
        r#"{"choices":[{"delta":{},"error":{"code":429,"message":"m"}}]}"#,
        "m",
        Some(429),
        Some("429"),
    );
    check_error(
        r#"{"object":"error","message":"m","type":"BadRequestError","code":400}"#,
        "m",
        Some(400),
        Some("400"),
    );
    check_error(r#"{"choices":[{"delta":{}}],"x_groq":{"error":"m"}}"#, "m", None, None);
    check_error(r#"{"detail":"m"}"#, "m", None, None);
    check_error(
        r#"{"choices":null,"base_resp":{"status_code":1004,"status_msg":"m"}}"#,
        "m",
        None,
        Some("1004"),
    );
    // Token counts in the payload do not hide the error.
    let counted = r#"{"choices":null,"usage":{"total_tokens":0},
        "base_resp":{"status_code":1004,"status_msg":"m"}}"#;
    let found = deltas(&[counted]);
    assert!(
        matches!(&found[..], [Delta::Usage { .. }, Delta::Error(e)] if e.message == "m"),
        "{found:?}"
    );
    check_error(r#"[{"error":{"message":"m"}}]"#, "m", None, None);
    check_error(r#"{"error":{"message":"m\ud800"}}"#, "m\u{FFFD}", None, None);
    check_error(r#"{"message":"m\ud800"}"#, "m\u{FFFD}", None, None);
    let fine = r#"{"choices":null,"base_resp":{"status_code":0,"status_msg":"ok"}}"#;
    assert_eq!(deltas(&[fine]), []);
    for none in [r#"{"error":null}"#, r#"{"error":""}"#, r#"{"error":{}}"#] {
        assert_eq!(deltas(&[none]), [], "{none}");
    }
}

#[test]
fn an_error_that_is_nested_too_deeply_is_not_lost() {
    let deep = format!(r#"{{"message":"m","x":{}{}}}"#, "[".repeat(300), "]".repeat(300));
    for payload in [
        format!(r#"{{"error":{deep}}}"#),
        format!(r#"{{"choices":[{{"delta":{{}},"error":{deep}}}]}}"#),
    ] {
        let found = deltas(&[&payload]);
        assert!(
            matches!(&found[..], [Delta::Error(e)] if e.message.starts_with(r#"{"message":"m""#)),
            "{found:?}"
        );
    }
}

#[test]
fn an_event_named_error_is_an_error() {
    for (data, message) in [
        (r#"{"error":{"message":"m"}}"#, "m"),
        (r#"{"message":"m"}"#, "m"),
        ("m", "m"),
        ("", "the service reported an error"),
    ] {
        let mut out = Vec::new();
        crate::decoder::parse_in_full(&mut OpenaiChatDialect::default(), "error", data, &mut out);
        let error = ProviderError::new(ProviderErrorKind::InStream, message);
        assert_eq!(out, [Delta::Error(error)], "{data}");
    }
}

#[test]
fn invalid_json_is_an_error_and_other_text_is_a_problem() {
    let cut = deltas(&[r#"{"choices":[{"delta":{"content":"a"#]);
    assert!(
        matches!(&cut[..], [Delta::Error(e)] if e.kind == ProviderErrorKind::Malformed),
        "{cut:?}"
    );
    let ping = deltas(&["ping", r#"{"choices":[{"delta":{"content":"a"}}]}"#]);
    assert!(
        matches!(&ping[..], [Delta::Problem(p), Delta::Text(_)] if p.code == "not_json"),
        "{ping:?}"
    );
}

#[test]
fn invalid_payloads_are_repaired_where_possible() {
    let a = r#"{"choices":[{"delta":{"content":"a"}}]}"#;
    assert_eq!(deltas(&[&format!("{a}\n{a}\n[DONE]")]), [text("a"), text("a"), Delta::Done]);
    assert_eq!(deltas(&[&format!("{a}{a}")]), [text("a"), text("a")]);
    let twice = r#"{"choices":[],"choices":[{"delta":{"content":"a"}}]}"#;
    assert_eq!(deltas(&[twice]), [text("a")]);
    let twice = format!(r#"{{"choices":[{{"delta":{{"content":"b"}}}}],{}"#, &a[1..]);
    assert_eq!(deltas(&[&twice]), [text("a")]);
    let half = r#"{"choices":[{"delta":{"content":"\ud83d"}}]}"#;
    assert_eq!(deltas(&[half]), [text("\u{FFFD}")]);
    let no_number = r#"{"choices":[{"delta":{"content":"a"},"logprobs":[NaN,-Infinity]}]}"#;
    assert_eq!(deltas(&[no_number]), [text("a")]);
    assert_eq!(deltas(&["{\"choices\":[{\"delta\":{\"content\":\"a\tb\"}}]}"]), [text("a\tb")]);
    let prefixed = format!("data: data:{a}");
    assert_eq!(deltas(&[&prefixed, "data: [DONE]"]), [text("a"), Delta::Done]);
}

#[test]
fn the_length_of_lists_is_limited() {
    let calls = vec![r#"{"name":"f"}"#; 10_000].join(",");
    let chunk = format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{calls}]}}}}]}}"#);
    assert_eq!(deltas(&[&chunk]).len(), 4097);
    let choices = vec![r#"{"delta":{"content":"a"}}"#; 10_000].join(",");
    assert_eq!(deltas(&[&format!(r#"{{"choices":[{choices}]}}"#)]).len(), 4097);
}

#[test]
fn usage_and_the_done_marker_are_read() {
    let usage = r#"{"prompt_tokens":3,"completion_tokens":2}"#;
    let counts = Delta::Usage {
        usage: callsheet_values::types::Usage {
            input_tokens: 3,
            output_tokens: 2,
            ..callsheet_values::types::Usage::default()
        },
        raw: usage.into(),
    };
    for chunk in [
        format!(r#"{{"choices":[],"usage":{usage}}}"#),
        format!(r#"{{"choices":[{{"delta":{{}},"usage":{usage}}}]}}"#),
        format!(r#"{{"choices":[],"usage":null,"x_groq":{{"usage":{usage}}}}}"#),
    ] {
        assert_eq!(deltas(&[&chunk, " [DONE] "]), [counts.clone(), Delta::Done], "{chunk}");
    }
}

#[test]
fn a_native_finish_reason_says_that_the_output_is_unreadable() {
    let chunk = |word: &str, native: &str, more: (&str, &str)| {
        let choice = format!(r#""delta":{{}},"finish_reason":{word},"native_finish_reason":"#);
        format!(r#"{{"choices":[{{{choice}"{native}"{}}}]{}}}"#, more.0, more.1)
    };
    let native = "MALFORMED_FUNCTION_CALL";
    for (word, more, reason) in [
        (r#""stop""#, ("", ""), "the service could not read the output of its model"),
        (r#""error""#, (r#","error":{"code":502,"message":"m"}"#, ""), "m"),
        (r#""error""#, ("", r#","error":{"code":502,"message":"m"}"#), "the service"),
        ("null", ("", ""), "the service"),
    ] {
        let chunk = chunk(word, native, more);
        // The second one would match a template of the first.
        let found = deltas(&[&chunk, &chunk]);
        let errors = found.iter().filter_map(|delta| match delta {
            Delta::Error(error) if error.kind == ProviderErrorKind::UnparsableOutput => {
                Some(error.message.as_str())
            }
            _ => None,
        });
        let errors: Vec<_> = errors.collect();
        let expected = format!("{native}: {reason}");
        assert!(matches!(found[0], Delta::Error(_)), "{found:?}");
        assert_eq!(errors.len(), 2, "{found:?}");
        assert!(errors.iter().all(|message| message.starts_with(&expected)), "{errors:?}");
        assert!(found.contains(&finish(native, FinishKind::Error)), "{found:?}");
    }
    let well = chunk(r#""stop""#, "STOP", ("", ""));
    assert_eq!(deltas(&[&well]), [finish("stop", FinishKind::Stop)]);
}

#[test]
fn a_filtered_choice_names_its_categories() {
    let results = r#"{"hate":{"filtered":true,"severity":"high"},"sexual":{"filtered":false}}"#;
    for (members, category, explanation) in [
        (format!(r#""content_filter_results":{results}"#), Some("hate"), None),
        (r#""native_finish_reason":"SAFETY""#.to_owned(), Some("SAFETY"), None),
        (r#""native_finish_reason":"content_filter""#.to_owned(), None, None),
        (
            r#""stop_details":{"category":"bio","explanation":"no"}"#.to_owned(),
            Some("bio"),
            Some("no"),
        ),
    ] {
        let choice = format!(r#""delta":{{}},"finish_reason":"content_filter",{members}"#);
        let chunk = format!(r#"{{"choices":[{{"index":0,{choice}}}]}}"#);
        let refusal =
            RefusalDetails::new(category.map(str::to_owned), explanation.map(str::to_owned));
        let expected = Delta::Finish(FinishReason::refused("content_filter", refusal));
        // The second one would match a template of the first.
        assert_eq!(deltas(&[&chunk, &chunk]), [expected.clone(), expected], "{chunk}");
    }
}
