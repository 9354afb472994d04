#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]
use super::*;
use crate::{CallDelta, Delta, ProviderMetadata};
use callsheet_values::types::{
    FinishKind, FinishReason, ProviderError, ProviderErrorKind, RefusalDetails, Usage,
};

fn deltas(payloads: &[&str]) -> Vec<Delta> {
    crate::decoder::deltas::<GeminiDialect>(payloads)
}

fn text(text: &str) -> Delta {
    Delta::Text(text.into())
}

fn finish(raw: &str, kind: FinishKind) -> Delta {
    Delta::Finish(FinishReason::new(kind, raw))
}

fn refused(raw: &str, category: Option<&str>, explanation: Option<&str>) -> Delta {
    let refusal = RefusalDetails::new(category.map(str::to_owned), explanation.map(str::to_owned));
    Delta::Finish(FinishReason::refused(raw, refusal))
}

fn begins(index: u64, id: Option<&str>, name: &str, arguments: &str) -> Delta {
    Delta::Call(CallDelta {
        index: Some(index),
        id: id.map(str::to_owned),
        name: Some(name.into()),
        arguments: Some(arguments.into()),
        is_marked_start: true,
        ..CallDelta::default()
    })
}

fn piece(index: u64, arguments: &str) -> CallDelta {
    let arguments = Some(arguments.into());
    CallDelta { index: Some(index), arguments, ..CallDelta::default() }
}

fn rest(index: u64, arguments: &str) -> Delta {
    Delta::Call(piece(index, arguments))
}

fn seal(index: u64, arguments: Option<&str>) -> Delta {
    Delta::Seal { index, arguments: arguments.map(str::to_owned) }
}

fn signature(text: &str) -> Box<str> {
    format!(r#"{{"thoughtSignature":"{text}"}}"#).into()
}

fn chunk(parts: &str) -> String {
    format!(r#"{{"candidates":[{{"content":{{"role":"model","parts":[{parts}]}}}}]}}"#)
}

#[track_caller]
fn check_parts(parts: &[&str], expected: &[Delta]) {
    let chunks: Vec<String> = parts.iter().map(|parts| chunk(parts)).collect();
    let chunks: Vec<&str> = chunks.iter().map(String::as_str).collect();
    assert_eq!(deltas(&chunks), expected, "{parts:?}");
    let snake: Vec<String> = chunks
        .iter()
        .map(|chunk| {
            chunk
                .replace("functionCall", "function_call")
                .replace("thoughtSignature", "thought_signature")
                .replace("partialArgs", "partial_args")
                .replace("willContinue", "will_continue")
                .replace("jsonPath", "json_path")
                .replace("Value\"", "_value\"")
        })
        .collect();
    let snake: Vec<&str> = snake.iter().map(String::as_str).collect();
    assert_eq!(deltas(&snake), expected, "{snake:?}");
}

#[test]
fn text_and_thoughts() {
    check_parts(&[r#"{"text":"a"},{"text":"b\n"}"#], &[text("a"), text("b\n")]);
    check_parts(
        &[r#"{"text":"t","thought":true},{"text":"a","thought":false}"#],
        &[Delta::Reasoning("t".into()), text("a")],
    );
    check_parts(&[r#"{"text":""},{},null,7,{"text":null},{"thought":true,"text":""}"#], &[]);
    check_parts(&[r#"{"text":5,"thought":"true"}"#], &[Delta::Reasoning("5".into())]);
}

#[test]
fn a_signature_stays_with_its_own_part() {
    let keep = |members: Option<&str>| {
        Delta::Metadata(ProviderMetadata::Text { members: members.map(signature) })
    };
    let thought = |members: Option<&str>| {
        Delta::Metadata(ProviderMetadata::Reasoning { members: members.map(signature) })
    };
    check_parts(
        &[r#"{"text":"a"}"#, r#"{"text":"b","thoughtSignature":"s"}"#],
        &[text("a"), keep(None), text("b"), keep(Some("s"))],
    );
    check_parts(
        &[r#"{"text":"a"}"#, r#"{"text":"","thoughtSignature":"s"}"#],
        &[text("a"), keep(None), keep(Some("s"))],
    );
    check_parts(&[r#"{"thoughtSignature":"s"}"#], &[keep(None), keep(Some("s"))]);
    check_parts(
        &[r#"{"text":"t","thought":true,"thoughtSignature":"s"}"#],
        &[thought(None), Delta::Reasoning("t".into()), thought(Some("s"))],
    );
    let members = signature("s");
    check_parts(
        &[r#"{"thoughtSignature":"s","functionCall":{"name":"f","args":{}}}"#],
        &[
            begins(0, None, "f", "{}"),
            seal(0, None),
            Delta::Metadata(ProviderMetadata::Call { index: 0, members: members.clone() }),
        ],
    );
    check_parts(
        &[
            r#"{"functionCall":{},"thoughtSignature":"ignored"}"#,
            r#"{"functionCall":{"name":"f","args":{}}}"#,
            r#"{"functionCall":{},"thoughtSignature":"s"}"#,
        ],
        &[
            begins(0, None, "f", "{}"),
            seal(0, None),
            Delta::Metadata(ProviderMetadata::Call { index: 0, members }),
        ],
    );
}

#[test]
fn parts_of_unknown_kinds_are_kept_unchanged() {
    let part = |json: &str| Delta::Metadata(ProviderMetadata::RawPart(json.into()));
    check_parts(
        &[r#"{"executableCode":{"language":"PYTHON","code":"1"}},{"text":"a"},
            {"toolCall":{"id":"x"},"thoughtSignature":"s","nothing":null}"#],
        &[
            part(r#"{"executableCode":{"language":"PYTHON","code":"1"}}"#),
            text("a"),
            part(r#"{"toolCall":{"id":"x"},"thoughtSignature":"s"}"#),
        ],
    );
    check_parts(
        &[r#"{"inlineData":{"mimeType":"image/png","data":"AAAA"},"thought":true,"x":1}"#],
        &[part(r#"{"inlineData":{"mimeType":"image/png","data":"AAAA"},"x":1,"thought":true}"#)],
    );
    check_parts(&[r#"{"text":"a","partMetadata":{}}"#], &[text("a")]);
}

#[test]
fn complete_calls_come_in_order() {
    check_parts(
        &[
            r#"{"functionCall":{"name":"f","args":{"b": 1,"a":2}}},{"functionCall":{"id":"i","name":"f"}}"#,
            r#"{"functionCall":{"name":"g","args":null,"id":""}}"#,
        ],
        &[
            begins(0, None, "f", r#"{"b": 1,"a":2}"#),
            seal(0, None),
            begins(1, Some("i"), "f", "{}"),
            seal(1, None),
            begins(2, None, "g", "{}"),
            seal(2, None),
        ],
    );
    check_parts(&[r#"{"functionCall":{}},{"functionCall":null},{"functionCall":"f"}"#], &[]);
    let nameless = CallDelta { is_marked_start: true, ..piece(0, r#"{"a":1}"#) };
    check_parts(&[r#"{"functionCall":{"args":{"a":1}}}"#], &[Delta::Call(nameless), seal(0, None)]);
}

#[test]
fn a_call_in_pieces() {
    let piece = |path: &str, value: &str| {
        format!(
            r#"{{"functionCall":{{"partialArgs":[{{"jsonPath":"{path}",{value}}}],"willContinue":true}}}}"#
        )
    };
    let opens = r#"{"functionCall":{"name":"f","willContinue":true}}"#;
    let closes = r#"{"functionCall":{}}"#;
    check_parts(
        &[
            opens,
            &piece("$.a", r#""stringValue":"x","willContinue":true"#),
            &piece("$.a", r#""stringValue":"y""#),
            &piece("$.b[0]", r#""numberValue":2.5"#),
            &piece("$.b[1]", r#""boolValue":true"#),
            &piece("$.c", r#""nullValue":null"#),
            &piece("$.d", r#""willContinue":true"#),
            closes,
            closes,
        ],
        &[begins(0, None, "f", "{"), seal(0, Some(r#"{"a":"xy","b":[2.5,true],"c":null}"#))],
    );
    // The piece without `willContinue` closes the call. Every piece has the name.
    check_parts(
        &[
            r#"{"functionCall":{"name":"f","partialArgs":[{"jsonPath":"$.a","stringValue":"x"}],"willContinue":true}}"#,
            r#"{"functionCall":{"name":"f","partialArgs":[{"jsonPath":"$.a","stringValue":"y"}]}}"#,
            r#"{"functionCall":{"name":"f","partialArgs":[{"jsonPath":"$.n","numberValue":7}]}}"#,
        ],
        &[
            begins(0, None, "f", "{"),
            seal(0, Some(r#"{"a":"xy"}"#)),
            begins(1, None, "f", "{"),
            seal(1, Some(r#"{"n":7}"#)),
        ],
    );
    check_parts(
        &[opens, r#"{"functionCall":{"id":"i","args":{"a":1}}}"#],
        &[
            begins(0, None, "f", "{"),
            Delta::Call(CallDelta { index: Some(0), id: Some("i".into()), ..CallDelta::default() }),
            seal(0, Some(r#"{"a":1}"#)),
        ],
    );
}

#[test]
fn a_call_that_is_never_closed_reads_as_cut_off() {
    let opens = r#"{"functionCall":{"name":"f","willContinue":true}}"#;
    let piece = r#"{"functionCall":{"partialArgs":[{"jsonPath":"$.a","stringValue":"x"}],"willContinue":true}}"#;
    check_parts(&[opens, piece], &[begins(0, None, "f", "{"), rest(0, r#""a":"x""#)]);
    let end = |word: &str| format!(r#"{{"candidates":[{{"finishReason":"{word}"}}]}}"#);
    let cut_off = deltas(&[&chunk(opens), &chunk(piece), &end("MAX_TOKENS")]);
    assert_eq!(cut_off.last(), Some(&rest(0, r#""a":"x""#)));
}

#[test]
fn the_next_call_and_a_good_finish_close_the_open_call() {
    let opens = r#"{"functionCall":{"name":"f","willContinue":true}}"#;
    let piece = r#"{"functionCall":{"partialArgs":[{"jsonPath":"$.a","stringValue":"x"}],"willContinue":true}}"#;
    let whole = seal(0, Some(r#"{"a":"x"}"#));
    check_parts(
        &[opens, piece, r#"{"functionCall":{"name":"g","args":{}}}"#],
        &[begins(0, None, "f", "{"), whole.clone(), begins(1, None, "g", "{}"), seal(1, None)],
    );
    check_parts(
        &[opens, opens, r#"{"functionCall":{"name":"f"}}"#],
        &[
            begins(0, None, "f", "{"),
            seal(0, Some("{}")),
            begins(1, None, "f", "{"),
            seal(1, Some("{}")),
        ],
    );
    let end = r#"{"candidates":[{"finishReason":"STOP"}]}"#;
    let ended = deltas(&[&chunk(opens), &chunk(piece), end]);
    assert_eq!(ended, [begins(0, None, "f", "{"), finish("STOP", FinishKind::ToolCalls), whole]);
}

#[test]
fn pieces_with_an_invalid_path_are_reported_and_leave_the_call_cut_off() {
    let problem = |detail: &str| {
        Delta::Problem(crate::Problem { code: "argument_without_place", detail: detail.into() })
    };
    check_parts(
        &[r#"{"functionCall":{"name":"f","partialArgs":[{"jsonPath":"$.a","numberValue":1},
            {"jsonPath":"$.a[1000000000]","numberValue":1},{"jsonPath":"$.b","numberValue":1}]}}"#],
        &[begins(0, None, "f", "{"), problem("$.a[1000000000]"), seal(0, Some(r#"{"a":1"#))],
    );
    let many = vec![r#"{"jsonPath":"$.a","stringValue":"x"}"#; 5000].join(",");
    let call = format!(r#"{{"functionCall":{{"name":"f","partialArgs":[{many}]}}}}"#);
    let found = deltas(&[&chunk(&call)]);
    assert_eq!(found.get(1), Some(&problem("too many pieces at once")));
}

#[test]
fn only_candidate_0_counts() {
    let candidates = |list: &str| format!(r#"{{"candidates":{list}}}"#);
    let a = r#""content":{"parts":[{"text":"a"}]}"#;
    let b = r#""content":{"parts":[{"text":"b"}]}"#;
    for list in [
        format!(r#"[{{"index":1,{b}}},{{"index":0,{a}}}]"#),
        format!(r#"[{{{a}}},{{{b}}}]"#),
        format!(r#"[{{"index":"0",{a}}},{{"index":1,{b}}},null]"#),
        format!(r#"{{{a}}}"#),
    ] {
        assert_eq!(deltas(&[&candidates(&list)]), [text("a")], "{list}");
    }
    for nothing in [
        "[]",
        "null",
        "7",
        "[{}]",
        r#"[{"content":null}]"#,
        r#"[{"content":{"parts":null},"finishReason":null}]"#,
    ] {
        assert_eq!(deltas(&[&candidates(nothing)]), [], "{nothing}");
    }
}

#[test]
fn finish_reasons_have_a_kind_and_keep_their_text() {
    for (word, kind) in [
        ("STOP", FinishKind::Stop),
        ("MAX_TOKENS", FinishKind::Length),
        ("SAFETY", FinishKind::ContentFilter),
        ("RECITATION", FinishKind::ContentFilter),
        ("LANGUAGE", FinishKind::ContentFilter),
        ("PROHIBITED_CONTENT", FinishKind::ContentFilter),
        ("IMAGE_SAFETY", FinishKind::ContentFilter),
        ("MALFORMED_FUNCTION_CALL", FinishKind::Error),
        ("UNEXPECTED_TOOL_CALL", FinishKind::Error),
        ("MISSING_THOUGHT_SIGNATURE", FinishKind::Error),
        ("stop", FinishKind::Stop),
        ("OTHER", FinishKind::Other),
        ("FINISH_REASON_UNSPECIFIED", FinishKind::Other),
    ] {
        let chunk = format!(r#"{{"candidates":[{{"finishReason":"{word}"}}]}}"#);
        let expected = match kind {
            FinishKind::ContentFilter => refused(word, Some(word), None),
            _ => finish(word, kind),
        };
        assert_eq!(deltas(&[&chunk]), [expected]);
    }
    let call = chunk(r#"{"functionCall":{"name":"f"}}"#);
    let end = r#"{"candidates":[{"finish_reason":"STOP"}]}"#;
    assert_eq!(deltas(&[&call, end]).last(), Some(&finish("STOP", FinishKind::ToolCalls)));
}

#[test]
fn a_blocked_prompt_is_a_content_filter_finish_without_text() {
    let blocked = r#"{"promptFeedback":{"blockReason":"SAFETY","safetyRatings":[]}}"#;
    assert_eq!(deltas(&[blocked]), [refused("", Some("SAFETY"), None)]);
    let payload = r#"{"candidates":[],"promptFeedback":{"blockReasonMessage":"m"}}"#;
    assert_eq!(deltas(&[payload]), [refused("", None, Some("m"))]);
    let ended = r#"{"candidates":[{"finishReason":"SAFETY"}]}"#;
    assert_eq!(deltas(&[ended, blocked]), [refused("SAFETY", Some("SAFETY"), None)]);
    let ratings = r#"[{"category":"HARM_CATEGORY_HARASSMENT","blocked":true},
        {"category":"HARM_CATEGORY_HATE_SPEECH"}]"#;
    let rated = format!(
        r#"{{"candidates":[{{"finishReason":"SAFETY","finishMessage":"no","safetyRatings":{ratings}}}]}}"#
    );
    let category = Some("HARM_CATEGORY_HARASSMENT");
    assert_eq!(deltas(&[&rated]), [refused("SAFETY", category, Some("no"))]);
    for fine in [
        r#"{"promptFeedback":{"safetyRatings":[]}}"#,
        r#"{"promptFeedback":{"blockReason":"BLOCK_REASON_UNSPECIFIED"}}"#,
        r#"{"promptFeedback":{"blockReason":null}}"#,
        r#"{"promptFeedback":null}"#,
        r#"{"promptFeedback":[]}"#,
    ] {
        assert_eq!(deltas(&[fine]), [], "{fine}");
    }
}

#[test]
fn usage_beside_everything() {
    let raw = r#"{"promptTokenCount":3,"candidatesTokenCount":2}"#;
    let usage = Usage { input_tokens: 3, output_tokens: 2, ..Usage::default() };
    let counts = Delta::Usage { usage, raw: raw.into() };
    let body = chunk(r#"{"text":"a"}"#);
    for key in ["usageMetadata", "usage_metadata"] {
        let body = format!(r#"{{"{key}":{raw},{}"#, &body[1..]);
        assert_eq!(deltas(&[&body]), [text("a"), counts.clone()]);
    }
}

#[test]
fn errors_are_found_in_every_position() {
    let error = r#"{"error":{"code":503,"message":"m","status":"UNAVAILABLE"}}"#;
    let expected = ProviderError {
        status: Some(503),
        code: Some("503".into()),
        ..ProviderError::new(ProviderErrorKind::InStream, "m")
    };
    let after_text = chunk(r#"{"text":"a"}"#);
    for payloads in [vec![error], vec![&after_text, error], vec![&format!("[{error}]")]] {
        assert_eq!(deltas(&payloads).last(), Some(&Delta::Error(expected.clone())));
    }
    for bare in [r#"{"code":"x","message":"m"}"#, r#"{"error":true,"message":"m"}"#] {
        let bare = deltas(&[bare]);
        assert!(matches!(&bare[..], [Delta::Error(e)] if e.message == "m"), "{bare:?}");
    }
    let mut out = Vec::new();
    crate::decoder::parse_in_full(
        &mut GeminiDialect::default(),
        "error",
        r#"{"message":"m"}"#,
        &mut out,
    );
    assert!(matches!(&out[..], [Delta::Error(e)] if e.message == "m"), "{out:?}");
    assert_eq!(deltas(&[r#"{"error":null}"#, r#"{"error":{}}"#]), []);
}

#[test]
fn invalid_json_is_an_error_unless_it_can_be_repaired() {
    let cut = deltas(&[r#"{"candidates":[{"content":{"parts":[{"text":"a"#]);
    assert!(
        matches!(&cut[..], [Delta::Error(e)] if e.kind == ProviderErrorKind::Malformed),
        "{cut:?}"
    );
    let a = chunk(r#"{"text":"a"}"#);
    assert_eq!(deltas(&[&format!("{a}\n{a}\n[DONE]")]), [text("a"), text("a")]);
    assert_eq!(deltas(&[&format!("data: {a}"), "", "{}", "[]"]), [text("a")]);
    assert_eq!(deltas(&[&chunk(r#"{"text":"\ud83d"}"#)]), [text("\u{FFFD}")]);
    assert_eq!(deltas(&[&format!("[{a},\n{a}]")]), [text("a"), text("a")]);
    let ping = deltas(&["ping"]);
    assert!(matches!(&ping[..], [Delta::Problem(p)] if p.code == "not_json"), "{ping:?}");
    let twice = chunk(r#"{"text":"b","text":"a"}"#);
    assert_eq!(deltas(&[&twice]), [text("a")]);
}

#[test]
fn a_value_of_an_unexpected_type_does_not_affect_other_members() {
    let places = [
        r#""modelVersion":?,"#,
        r#""usageMetadata":?,"#,
        r#""usageMetadata":{"promptTokenCount":?},"#,
        r#""promptFeedback":?,"#,
        r#""promptFeedback":{"blockReason":?},"#,
    ];
    let candidate = [r#""finishReason":?,"#, r#""safetyRatings":?,"#];
    let part = [
        r#"?"#,
        r#"{"thought":?}"#,
        r#"{"thoughtSignature":?}"#,
        r#"{"inlineData":?}"#,
        r#"{"functionCall":?}"#,
        r#"{"functionCall":{"name":?}}"#,
        r#"{"functionCall":{"name":"f","args":?}}"#,
        r#"{"functionCall":{"name":"f","id":?,"willContinue":?}}"#,
        r#"{"functionCall":{"name":"f","partialArgs":?}}"#,
        r#"{"functionCall":{"name":"f","partialArgs":[{"jsonPath":?,"stringValue":"x"}]}}"#,
        r#"{"functionCall":{"name":"f","partialArgs":[{"jsonPath":"$.a","stringValue":?}]}}"#,
        r#"{"functionCall":{"name":"f","partialArgs":[{"jsonPath":"$.a","numberValue":?}]}}"#,
        r#"{"functionCall":{"name":"f","partialArgs":[{"jsonPath":"$.a","nullValue":?}]}}"#,
    ];
    let wrap = |outer: &str, inner: &str, part: &str| {
        format!(
            r#"{{{outer}"candidates":[{{{inner}"content":{{"parts":[{part}{{"text":"ok"}}]}}}}]}}"#
        )
    };
    let shapes = places.iter().map(|outer| wrap(outer, "", ""));
    let shapes = shapes.chain(candidate.iter().map(|inner| wrap("", inner, "")));
    let shapes = shapes.chain(part.iter().map(|part| wrap("", "", &format!("{part},"))));
    for shape in shapes {
        for odd in
            ["null", "true", "7", "-1", "1.5", "\"x\"", "\"\"", "[]", "[7]", "{}", r#"{"a":[{}]}"#]
        {
            let payload = shape.replace('?', odd);
            let found = deltas(&[&payload]);
            assert!(found.contains(&text("ok")), "{payload}: {found:?}");
            let is_error = |delta: &Delta| matches!(delta, Delta::Error(_));
            assert!(!found.iter().any(is_error), "{payload}: {found:?}");
        }
    }
}
