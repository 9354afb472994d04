#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]
use proptest::prelude::*;

use super::*;
use crate::{CallDelta, CallKind, Delta, ProviderMetadata};
use callsheet_values::types::{FinishKind, FinishReason, ProviderErrorKind, Usage};

fn deltas(payloads: &[&str]) -> Vec<Delta> {
    crate::decoder::deltas::<OpenaiResponsesDialect>(payloads)
}

/// Returns an event of a type with these members.
fn event(kind: &str, members: &str) -> String {
    format!(r#"{{"type":"response.{kind}",{members}}}"#)
}

#[track_caller]
fn check(events: &[(&str, &str)], expected: &[Delta]) {
    let payloads: Vec<_> = events.iter().map(|(kind, rest)| event(kind, rest)).collect();
    let payloads: Vec<_> = payloads.iter().map(String::as_str).collect();
    assert_eq!(deltas(&payloads), expected, "{payloads:#?}");
}

fn text(text: &str) -> Delta {
    Delta::Text(text.into())
}

fn reasoning(text: &str) -> Delta {
    Delta::Reasoning(text.into())
}

fn begin(index: u64, id: &str, name: &str) -> Delta {
    Delta::Call(CallDelta {
        index: Some(index),
        id: Some(id.into()),
        name: Some(name.into()),
        is_marked_start: true,
        ..CallDelta::default()
    })
}

fn more(index: u64, arguments: &str) -> Delta {
    Delta::Call(CallDelta {
        index: Some(index),
        arguments: Some(arguments.into()),
        ..CallDelta::default()
    })
}

fn seal(index: u64, arguments: &str) -> Delta {
    let arguments = Some(arguments.to_owned()).filter(|text| !text.is_empty());
    Delta::Seal { index, arguments }
}

fn keep(index: u64, members: &str) -> Delta {
    Delta::Metadata(ProviderMetadata::Call { index, members: members.into() })
}

fn part(json: &str) -> Delta {
    Delta::Metadata(ProviderMetadata::RawPart(json.into()))
}

fn finish(raw: &str, kind: FinishKind) -> Delta {
    Delta::Finish(FinishReason::new(kind, raw))
}

const ADDED: &str = r#""output_index":1,"item":{"type":"function_call","id":"fc_1","status":"in_progress","call_id":"c1","name":"f","arguments":""}"#;
const DONE: &str = r#""output_index":1,"item":{"type":"function_call","id":"fc_1","status":"completed","call_id":"c1","name":"f","arguments":"{\"a\":1}"}"#;
const MEMBERS: &str = r#"{"id":"fc_1","status":"completed"}"#;

#[test]
fn a_call_starts_grows_is_sealed_and_keeps_its_members() {
    check(
        &[
            ("output_item.added", ADDED),
            ("function_call_arguments.delta", r#""output_index":1,"item_id":"x","delta":"{\"a\"""#),
            ("function_call_arguments.delta", r#""output_index":1,"item_id":"y","delta":":1}""#),
            ("function_call_arguments.done", r#""output_index":1,"arguments":"{\"a\":1}""#),
            ("output_item.done", DONE),
            (
                "completed",
                r#""response":{"status":"completed","output":[{"type":"reasoning"},
                {"type":"function_call","id":"z","call_id":"c1","name":"f","arguments":"{}"}]}"#,
            ),
        ],
        &[
            begin(1, "c1", "f"),
            more(1, r#"{"a""#),
            more(1, ":1}"),
            seal(1, r#"{"a":1}"#),
            seal(1, r#"{"a":1}"#),
            keep(1, MEMBERS),
            finish("completed", FinishKind::ToolCalls),
            Delta::Done,
        ],
    );
}

#[test]
fn a_call_that_is_only_in_its_end_event_or_in_the_response_counts_once() {
    let item = r#"{"type":"function_call","id":"fc_1","status":"completed","call_id":"c1","name":"f","arguments":{"a":1}}"#;
    let end = [finish("completed", FinishKind::ToolCalls), Delta::Done];
    let response = format!(r#""response":{{"status":"completed","output":[{item}]}}"#);
    let call = [begin(0, "c1", "f"), seal(0, r#"{"a":1}"#), keep(0, MEMBERS)];
    let expected = [&call[..], &end].concat();
    check(&[("completed", &response)], &expected);
    let done = format!(r#""output_index":0,"item":{item}"#);
    check(&[("output_item.done", &done), ("completed", &response)], &expected);
    // Without an index the call is found by its id.
    let done = format!(r#""item":{item}"#);
    check(&[("output_item.done", &done), ("completed", &response)], &expected);
    // Without a seal the arguments come with the complete response.
    let added = format!(r#""output_index":0,"item":{}"#, item.replace(r#"{"a":1}"#, r#""""#));
    check(&[("output_item.added", &added), ("completed", &response)], &expected);
    let plain = format!(r#"{{"object":"response","status":"completed","output":[{item}]}}"#);
    assert_eq!(deltas(&[&plain]), expected);
    assert_eq!(deltas(&[&format!("[{plain}]")]), expected);
}

#[test]
fn items_are_found_by_index_then_by_id_then_by_order() {
    let add = |index: &str, id: &str, call: &str| {
        let item = format!(
            r#"{{"type":"function_call","id":"{id}","call_id":"{call}","name":"f","arguments":""}}"#
        );
        event("output_item.added", &format!(r#"{index}"item":{item}"#))
    };
    let say = |members: &str| event("function_call_arguments.delta", members);
    for (first, second, one, two) in [
        (
            r#""output_index":0,"#,
            r#""output_index":1,"#,
            r#""output_index":0,"item_id":"z1","#,
            r#""output_index":1,"item_id":"z2","#,
        ),
        (
            r#""output_index":"0","#,
            r#""output_index":1.0,"#,
            r#""output_index":0,"#,
            r#""output_index":1,"#,
        ),
        ("", "", r#""item_id":"i0","#, r#""item_id":"i1","#),
        ("", "", r#""output_index":null,"item_id":"i0","#, r#""item_id":"i1","#),
    ] {
        let payloads = [
            add(first, "i0", "c0"),
            add(second, "i1", "c1"),
            say(&format!(r#"{one}"delta":"a""#)),
            say(&format!(r#"{two}"delta":"b""#)),
        ];
        let payloads: Vec<_> = payloads.iter().map(String::as_str).collect();
        let expected = [begin(0, "c0", "f"), begin(1, "c1", "f"), more(0, "a"), more(1, "b")];
        assert_eq!(deltas(&payloads), expected, "{payloads:?}");
    }
    let payloads =
        [add("", "i0", "c0"), say(r#""delta":"a""#), add("", "i1", "c1"), say(r#""delta":"b""#)];
    let payloads: Vec<_> = payloads.iter().map(String::as_str).collect();
    let expected = [begin(0, "c0", "f"), more(0, "a"), begin(1, "c1", "f"), more(1, "b")];
    assert_eq!(deltas(&payloads), expected);
}

#[test]
fn an_index_may_be_used_again_for_another_call() {
    let other = ADDED.replace("c1", "c2").replace("fc_1", "fc_2");
    check(
        &[
            ("output_item.added", ADDED),
            ("output_item.added", ADDED),
            ("output_item.done", DONE),
            ("output_item.added", &other),
            ("function_call_arguments.delta", r#""output_index":1,"delta":"{}""#),
        ],
        &[
            begin(1, "c1", "f"),
            seal(1, r#"{"a":1}"#),
            keep(1, MEMBERS),
            begin(1, "c2", "f"),
            more(1, "{}"),
        ],
    );
}

#[test]
fn a_call_that_is_cut_off_is_not_sealed_by_its_item() {
    let done = DONE.replace("completed", "incomplete").replace(r#":1}""#, r#":""#);
    let response =
        r#""response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}"#;
    check(
        &[("output_item.added", ADDED), ("output_item.done", &done), ("incomplete", response)],
        &[
            begin(1, "c1", "f"),
            more(1, r#"{"a":"#),
            keep(1, r#"{"id":"fc_1"}"#),
            finish("incomplete", FinishKind::Length),
            Delta::Done,
        ],
    );
}

#[test]
fn empty_complete_arguments_are_ignored_and_the_item_decides() {
    check(
        &[
            ("output_item.added", ADDED),
            ("function_call_arguments.delta", r#""output_index":1,"delta":"{}""#),
            ("function_call_arguments.done", r#""output_index":1,"arguments":"""#),
            ("function_call_arguments.done", r#""output_index":1"#),
            ("output_item.done", &DONE.replace(r#","arguments":"{\"a\":1}""#, "")),
        ],
        &[begin(1, "c1", "f"), more(1, "{}"), seal(1, ""), keep(1, MEMBERS)],
    );
}

#[test]
fn a_custom_call_has_free_text() {
    let item = |status: &str, input: &str| {
        format!(
            r#""output_index":0,"item":{{"type":"custom_tool_call","id":"ctc_1","status":"{status}","call_id":"c1","name":"f","input":"{input}"}}"#
        )
    };
    let custom = |piece: Delta| {
        let Delta::Call(piece) = piece else { panic!("{piece:?} is not a piece of a call") };
        Delta::Call(CallDelta { kind: CallKind::Custom, ..piece })
    };
    check(
        &[
            ("output_item.added", &item("in_progress", "")),
            ("custom_tool_call_input.delta", r#""output_index":0,"delta":"x=""#),
            ("custom_tool_call_input.done", r#""output_index":0,"input":"x=1""#),
            ("output_item.done", &item("completed", "x=1")),
        ],
        &[
            custom(begin(0, "c1", "f")),
            custom(more(0, "x=")),
            seal(0, "x=1"),
            seal(0, "x=1"),
            keep(0, r#"{"id":"ctc_1","status":"completed","type":"custom_tool_call"}"#),
        ],
    );
    let without_id = item("completed", "x=1").replace(r#""id":"ctc_1","#, "");
    check(
        &[("output_item.done", &without_id)],
        &[custom(begin(0, "c1", "f")), seal(0, "x=1"), keep(0, r#"{"type":"custom_tool_call"}"#)],
    );
}

#[test]
fn repeated_text_counts_once() {
    let item = |content: &str| {
        format!(r#""output_index":0,"item":{{"type":"message","id":"m","content":{content}}}"#)
    };
    let delta = ("output_text.delta", r#""output_index":0,"content_index":0,"delta":"ab""#);
    let whole = ("output_text.done", r#""output_index":0,"content_index":0,"text":"ab""#);
    let parts = r#"[{"type":"output_text","text":"ab"}]"#;
    let (item, listed) = (item(parts), format!(r#"{{"type":"message","content":{parts}}}"#));
    let done = ("output_item.done", item.as_str());
    let response = format!(r#""response":{{"status":"completed","output":[{listed}]}}"#);
    let completed = ("completed", response.as_str());
    let end = [text("ab"), finish("completed", FinishKind::Stop), Delta::Done];
    for events in [
        &[delta, whole, done, completed][..],
        &[whole, done, completed],
        &[done, completed],
        &[completed],
        &[delta, completed],
    ] {
        check(events, &end);
    }
    let next = ("output_text.done", r#""output_index":0,"content_index":1,"text":"c""#);
    check(&[delta, whole, next, done], &[text("ab"), text("c")]);
    check(&[whole, next, done], &[text("ab"), text("c")]);
    let miscounted = ("output_text.done", r#""output_index":0,"content_index":1,"text":"ab""#);
    check(&[delta, miscounted, done], &[text("ab")]);
    let older = ("reasoning.delta", r#""output_index":0,"delta":{"text":"ab"}"#);
    check(&[older], &[reasoning("ab")]);
    check(&[("output_item.done", r#""item":{"type":"message","content":"ab"}"#)], &[text("ab")]);
}

#[test]
fn a_refusal_is_not_text() {
    let refusal = Delta::Refusal("no".into());
    check(
        &[
            ("refusal.delta", r#""output_index":0,"delta":"no""#),
            ("refusal.done", r#""output_index":0,"refusal":"no""#),
        ],
        std::slice::from_ref(&refusal),
    );
    let item = r#""item":{"type":"message","id":"m","phase":"final_answer","content":[
        {"type":"refusal","refusal":"no"}]}"#;
    check(&[("output_item.done", item)], &[refusal]);
}

#[test]
fn repeated_reasoning_counts_once_and_the_item_is_kept() {
    let item = r#"{"type":"reasoning","id":"rs_1","encrypted_content":"e","summary":[{"type":"summary_text","text":"ab"},{"type":"summary_text","text":"c"}]}"#;
    let done = format!(r#""output_index":0,"item":{item}"#);
    let done = ("output_item.done", done.as_str());
    let summary = |part: u8, delta: &str| {
        format!(r#""output_index":0,"summary_index":{part},"delta":"{delta}""#)
    };
    let (first, second) = (summary(0, "ab"), summary(1, "c"));
    let pieces = [
        ("reasoning_summary_text.delta", first.as_str()),
        ("reasoning_summary_text.done", r#""output_index":0,"summary_index":0,"text":"ab""#),
        ("reasoning_summary_text.delta", second.as_str()),
    ];
    let expected = [reasoning("ab"), reasoning("c"), part(item)];
    check(&[&pieces[..], &[done]].concat(), &expected);
    check(&[done], &expected);
    // Some services send the same reasoning as text and as a summary.
    let raw = r#""output_index":0,"content_index":0,"delta":"ab""#;
    check(
        &[
            ("reasoning_text.delta", raw),
            ("reasoning_summary_text.delta", &first),
            ("reasoning_summary_text.done", r#""output_index":0,"summary_index":1,"text":"x""#),
        ],
        &[reasoning("ab")],
    );
    let both = r#""item":{"type":"reasoning","content":[{"type":"reasoning_text","text":"a"}],
        "summary":[{"type":"summary_text","text":"b"}]}"#;
    let kept = both.trim_start_matches(r#""item":"#);
    check(&[("output_item.done", both)], &[reasoning("a"), part(kept)]);
}

#[test]
fn a_message_goes_back_as_an_item_only_if_required() {
    let message = r#""output_index":1,"item":{"type":"message","id":"m","status":"completed","phase":"commentary","content":"ab"}"#;
    let bare = message.replace(r#""phase":"commentary","#, "");
    let kept =
        |members: &str| Delta::Metadata(ProviderMetadata::Text { members: Some(members.into()) });
    check(&[("output_item.done", &bare)], &[text("ab")]);
    let with_phase = kept(r#"{"id":"m","phase":"commentary","status":"completed"}"#);
    check(&[("output_item.done", message)], &[text("ab"), with_phase]);
    let thought = ("output_item.done", r#""output_index":0,"item":{"type":"reasoning"}"#);
    let members = kept(r#"{"id":"m","status":"completed"}"#);
    check(
        &[thought, ("output_item.done", &bare)],
        &[part(r#"{"type":"reasoning"}"#), text("ab"), members],
    );
}

#[test]
fn concurrent_calls_with_one_index_are_distinguished_by_their_ids() {
    let item = |id: &str, arguments: &str| {
        format!(
            r#""output_index":0,"item":{{"type":"function_call","id":"fc_{id}","call_id":"{id}","name":"f","arguments":"{arguments}"}}"#
        )
    };
    let delta = |id: &str| format!(r#""output_index":0,"item_id":"fc_{id}","delta":"{{}}""#);
    // Bridges send the same index for all calls.
    let events = [
        ("output_item.added", &item("a", "")),
        ("output_item.added", &item("b", "")),
        ("function_call_arguments.delta", &delta("a")),
        ("function_call_arguments.delta", &delta("b")),
        ("output_item.done", &item("a", "{}")),
        ("output_item.done", &item("b", "[]")),
    ];
    let members = |id: &str| format!(r#"{{"id":"fc_{id}"}}"#);
    let expected = [
        begin(0, "a", "f"),
        begin(1, "b", "f"),
        more(0, "{}"),
        more(1, "{}"),
        seal(0, "{}"),
        keep(0, &members("a")),
        seal(1, "[]"),
        keep(1, &members("b")),
    ];
    check(&events.map(|(kind, text)| (kind, text.as_str())), &expected);
    // llama.cpp sends no index and no id of the item.
    let bare = |text: &str, id: &str| {
        text.replace(r#""output_index":0,"#, "")
            .replace(&format!(r#""id":"fc_{id}","#), "")
            .replace("fc_", "")
    };
    let texts = ["a", "b", "a", "b", "a", "b"];
    let events: Vec<_> =
        events.iter().zip(texts).map(|((kind, text), id)| (*kind, bare(text, id))).collect();
    let events: Vec<_> = events.iter().map(|(kind, text)| (*kind, text.as_str())).collect();
    let expected = [
        begin(0, "a", "f"),
        begin(1, "b", "f"),
        more(0, "{}"),
        more(1, "{}"),
        seal(0, "{}"),
        seal(1, "[]"),
    ];
    check(&events, &expected);
}

#[test]
fn a_call_with_a_new_id_in_the_response_list_is_the_same_call() {
    let listed = |id: &str, name: &str| {
        format!(
            r#""response":{{"output":[{{"type":"function_call","call_id":"{id}","name":"{name}","arguments":"{{}}"}}]}}"#
        )
    };
    let done = r#""output_index":0,"item":{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"}"#;
    let called = [begin(0, "c1", "f"), seal(0, "{}")];
    let ended = [finish("completed", FinishKind::ToolCalls), Delta::Done];
    check(
        &[("output_item.done", done), ("completed", &listed("c9", "f"))],
        &[&called[..], &ended].concat(),
    );
    check(
        &[("output_item.done", done), ("completed", &listed("c9", "g"))],
        &[&called[..], &[begin(0, "c9", "g"), seal(0, "{}")], &ended].concat(),
    );
}

#[test]
fn a_call_keeps_its_caller_and_namespace() {
    let item = |beside: &str| {
        format!(
            r#""item":{{"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{{}}",{beside}}}"#
        )
    };
    let done = item(r#""namespace":"n","caller":{"type":"program","caller_id":"p"}"#);
    let members = r#"{"caller":{"caller_id":"p","type":"program"},"id":"fc_1","namespace":"n"}"#;
    check(&[("output_item.done", &done)], &[begin(0, "c1", "f"), seal(0, "{}"), keep(0, members)]);
    let done = item(r#""namespace":null,"caller":null"#);
    let members = r#"{"id":"fc_1"}"#;
    check(&[("output_item.done", &done)], &[begin(0, "c1", "f"), seal(0, "{}"), keep(0, members)]);
}

#[test]
fn reasoning_that_comes_after_its_result_is_not_kept() {
    let response = r#""response":{"output":[{"type":"reasoning","id":"rs_1"},
        {"type":"function_call","id":"fc_1","status":"completed","call_id":"c1","name":"f",
        "namespace":"n","arguments":"{}"}]}"#;
    check(
        &[("output_item.added", ADDED), ("completed", response)],
        &[
            begin(1, "c1", "f"),
            seal(1, "{}"),
            keep(1, r#"{"namespace":"n"}"#),
            finish("completed", FinishKind::ToolCalls),
            Delta::Done,
        ],
    );
}

#[test]
fn items_of_tools_that_the_service_ran_are_kept_and_are_no_calls() {
    for kind in ["web_search_call", "mcp_call", "code_interpreter_call", "not_known_yet"] {
        let item = format!(r#"{{"type":"{kind}","id":"x","name":"n","arguments":"{{}}"}}"#);
        let done = format!(r#""output_index":0,"item":{item}"#);
        let response = format!(r#""response":{{"output":[{item}]}}"#);
        check(
            &[
                ("output_item.added", &done),
                ("web_search_call.searching", r#""output_index":0"#),
                ("mcp_call_arguments.delta", r#""output_index":0,"delta":"{}""#),
                ("output_item.done", &done),
                ("completed", &response),
            ],
            &[part(&item), finish("completed", FinishKind::Stop), Delta::Done],
        );
    }
}

#[test]
fn the_status_decides_the_finish_kind() {
    for (kind, response, raw, finished) in [
        ("completed", r#"{"status":"completed"}"#, "completed", FinishKind::Stop),
        ("completed", "{}", "completed", FinishKind::Stop),
        ("completed", "null", "completed", FinishKind::Stop),
        ("completed", r#"{"status":"in_progress"}"#, "completed", FinishKind::Stop),
        ("incomplete", r#"{"status":7}"#, "incomplete", FinishKind::Length),
        (
            "incomplete",
            r#"{"incomplete_details":{"reason":"content_filter"}}"#,
            "incomplete",
            FinishKind::ContentFilter,
        ),
        ("completed", r#"{"status":"incomplete"}"#, "incomplete", FinishKind::Length),
        ("failed", r#"{"status":"failed","error":null}"#, "failed", FinishKind::Error),
        ("cancelled", "{}", "cancelled", FinishKind::Error),
    ] {
        check(
            &[(kind, &format!(r#""response":{response}"#))],
            &[finish(raw, finished), Delta::Done],
        );
    }
    for (status, kind) in [("queued", FinishKind::Error), ("paused", FinishKind::Other)] {
        let body = format!(r#"{{"object":"response","status":"{status}","output":[]}}"#);
        assert_eq!(deltas(&[&body]), [finish(status, kind), Delta::Done]);
    }
    let named = r#"{"response":{"status":"completed"}}"#;
    let mut out = Vec::new();
    crate::decoder::parse_in_full(
        &mut OpenaiResponsesDialect::default(),
        "response.completed",
        named,
        &mut out,
    );
    assert_eq!(out, [finish("completed", FinishKind::Stop), Delta::Done]);
}

#[test]
fn usage_is_counted_and_kept_as_sent() {
    let raw = r#"{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":3}}"#;
    let usage = Usage { input_tokens: 9, output_tokens: 5, cached_tokens: 4, reasoning_tokens: 3 };
    check(
        &[("completed", &format!(r#""response":{{"usage":{raw}}}"#))],
        &[
            finish("completed", FinishKind::Stop),
            Delta::Usage { usage, raw: raw.into() },
            Delta::Done,
        ],
    );
}

#[track_caller]
fn check_error(payload: &str, message: &str, code: Option<&str>, status: Option<u16>) {
    let found = deltas(&[payload]);
    let Some(Delta::Error(error)) = found.first() else { panic!("{payload}: {found:?}") };
    let seen = (error.message.as_str(), error.code.as_deref(), error.status);
    assert_eq!(seen, (message, code, status), "{payload}");
}

#[test]
fn errors_are_found_in_every_position() {
    let quota = r#"{"type":"insufficient_quota","code":"insufficient_quota","message":"m"}"#;
    check_error(
        &format!(r#"{{"type":"error","sequence_number":2,"error":{quota}}}"#),
        "m",
        Some("insufficient_quota"),
        Some(402),
    );
    check_error(
        r#"{"type":"error","code":"rate_limit_exceeded","message":"m","param":null}"#,
        "m",
        Some("rate_limit_exceeded"),
        Some(429),
    );
    check_error(r#"{"type":"error","code":null,"message":"m"}"#, "m", None, None);
    check_error(
        r#"{"type":"error","status":400,"error":{"type":"t","message":"m"}}"#,
        "m",
        Some("t"),
        Some(400),
    );
    check_error(
        r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"m"}}}"#,
        "m",
        Some("server_error"),
        Some(500),
    );
    check_error(
        r#"{"type":"invalid_request_error","message":"m"}"#,
        "m",
        Some("invalid_request_error"),
        Some(400),
    );
    check_error(r#"{"error":{"message":"m"}}"#, "m", None, None);
    check_error(r#"{"error":"m"}"#, "m", None, None);
    check_error(r#"{"object":"response","output":[],"error":"m"}"#, "m", None, None);
    check_error(r#"[{"error":{"message":"m"}}]"#, "m", None, None);
    for (data, message) in
        [(r#"{"message":"m"}"#, "m"), ("m", "m"), ("", "the service reported an error")]
    {
        let mut out = Vec::new();
        crate::decoder::parse_in_full(
            &mut OpenaiResponsesDialect::default(),
            "error",
            data,
            &mut out,
        );
        assert!(matches!(&out[..], [Delta::Error(e)] if e.message == message), "{out:?}");
    }
}

#[test]
fn complete_arguments_of_an_unknown_item_are_not_dropped() {
    let done = r#"{"type":"response.function_call_arguments.done","arguments":"{\"x\":1}"}"#;
    let found = deltas(&[done]);
    let [Delta::Call(piece)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((piece.name.as_deref(), piece.arguments.as_deref()), (None, Some(r#"{"x":1}"#)));
}

#[test]
fn pieces_may_name_their_call_by_its_own_id() {
    let added = |index: u64, id: &str| {
        format!(
            r#"{{"type":"response.output_item.added","output_index":{index},"item":{{"type":"function_call","id":"fc_{id}","call_id":"{id}","name":"f"}}}}"#
        )
    };
    let piece = |id: &str, text: &str| {
        format!(
            r#"{{"type":"response.function_call_arguments.delta","call_id":"{id}","delta":"{text}"}}"#
        )
    };
    let payloads =
        [added(0, "a"), added(1, "b"), piece("a", "1"), piece("b", "2"), piece("a", "3")];
    let indexes: Vec<_> = deltas(&payloads.each_ref().map(|text| text.as_str()))
        .iter()
        .filter_map(|delta| match delta {
            Delta::Call(piece) if piece.arguments.is_some() => piece.index,
            _ => None,
        })
        .collect();
    assert_eq!(indexes, [0, 1, 0]);
}

#[test]
fn empty_payloads_have_no_deltas() {
    for payload in [
        r#"{"type":"response.created","response":{"status":"in_progress","output":[],"error":null}}"#,
        r#"{"type":"response.not_known_yet","delta":"a","text":"b","error":{"message":"m"}}"#,
        r#"{"type":"keepalive","sequence_number":3}"#,
        r#"{"type":"ping","error":null}"#,
        r#"{"type":"response.output_item.added"}"#,
        r#"{"type":"response.output_item.done","item":null}"#,
        r#"{"type":"response.output_item.done","item":7}"#,
        r#"{"type":"response.output_text.delta"}"#,
        r#"{"type":"response.output_text.delta","delta":{"x":1}}"#,
        r#"{"type":7}"#,
        "{}",
        "[]",
        "",
        "[DONE]",
        "data: [DONE]",
    ] {
        assert_eq!(deltas(&[payload]), [], "{payload}");
    }
}

#[test]
fn invalid_json_is_an_error_unless_it_can_be_repaired() {
    let cut = deltas(&[r#"{"type":"response.output_text.delta","delta":"a"#]);
    assert!(
        matches!(&cut[..], [Delta::Error(e)] if e.kind == ProviderErrorKind::Malformed),
        "{cut:?}"
    );
    let ping = deltas(&["ping"]);
    assert!(matches!(&ping[..], [Delta::Problem(p)] if p.code == "not_json"), "{ping:?}");
    let half = r#"{"type":"response.output_text.delta","delta":"\ud83d"}"#;
    assert_eq!(deltas(&[half]), [text("\u{FFFD}")]);
    let one = r#"{"type":"response.output_text.delta","delta":"a"}"#;
    assert_eq!(deltas(&[&format!("{one}\n{one}\n[DONE]")]), [text("a"), text("a")]);
    assert_eq!(deltas(&[&format!("data: {one}")]), [text("a")]);
    let twice = r#"{"type":"x","type":"response.output_text.delta","delta":"b","delta":"a"}"#;
    assert_eq!(deltas(&[twice]), [text("a")]);
}

#[test]
fn an_item_without_a_type_is_recognised_by_its_members() {
    let item = r#""item":{"id":"fc_1","call_id":"c1","name":"f","arguments":"{}"}"#;
    check(
        &[("output_item.done", item)],
        &[begin(0, "c1", "f"), seal(0, "{}"), keep(0, r#"{"id":"fc_1"}"#)],
    );
    let item = r#""item":{"type":null,"role":"assistant","content":[{"text":"ab"}]}"#;
    check(&[("output_item.done", item)], &[text("ab")]);
}

/// Generates events of any type, with members of any value.
fn any_event() -> impl Strategy<Value = String> {
    let kinds = [
        "output_item.added",
        "output_item.done",
        "output_text.delta",
        "output_text.done",
        "refusal.done",
        "reasoning_text.delta",
        "reasoning_summary_text.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "custom_tool_call_input.done",
        "completed",
        "incomplete",
        "failed",
    ];
    let items = [
        r#"{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"}"#,
        r#"{"type":"custom_tool_call","id":"x","name":"f","input":[1]}"#,
        r#"{"type":"message","content":[{"type":"output_text","text":"a"},{"refusal":"b"}]}"#,
        r#"{"type":"reasoning","id":"x","content":{"text":7},"summary":["a",null]}"#,
        r#"{"type":"web_search_call"}"#,
        "{}",
    ];
    let odd = [
        "null",
        "7",
        "-1",
        "0",
        "1.0",
        "18446744073709551615",
        "true",
        r#""""#,
        r#""1""#,
        "[]",
        r#"["a"]"#,
        r#"{"text":"a"}"#,
        r#"{"message":"m"}"#,
    ];
    let odd = prop::sample::select(odd.to_vec());
    let item = prop_oneof![odd.clone(), prop::sample::select(items.to_vec())];
    let output = prop::collection::vec(item.clone(), 0..4);
    let response = (odd.clone(), odd.clone(), output).prop_map(|(status, usage, output)| {
        let output = output.join(",");
        format!(r#"{{"status":{status},"usage":{usage},"output":[{output}]}}"#)
    });
    let keys = [
        "output_index",
        "item_id",
        "content_index",
        "delta",
        "text",
        "refusal",
        "arguments",
        "input",
        "name",
        "error",
    ];
    let member = (prop::sample::select(keys.to_vec()), odd)
        .prop_map(|(key, value)| format!(r#""{key}":{value}"#));
    let members = prop::collection::vec(member, 0..5);
    (prop::sample::select(kinds.to_vec()), members, item, response).prop_map(
        |(kind, mut members, item, response)| {
            members.push(format!(r#""item":{item},"response":{response}"#));
            event(kind, &members.join(","))
        },
    )
}

proptest! {
    #[test]
    fn no_event_makes_a_later_payload_unreadable(
        payloads in prop::collection::vec(any_event(), 0..12),
    ) {
        let payloads: Vec<_> = payloads.iter().map(String::as_str).collect();
        let found = deltas(&payloads);
        let mut begun = std::collections::BTreeSet::new();
        for delta in &found {
            if let Delta::Error(error) = delta {
                prop_assert!(error.kind != ProviderErrorKind::Malformed, "{error}");
            }
            if let Delta::Call(piece) = delta {
                prop_assert!(piece.is_marked_start || begun.contains(&piece.index), "{found:?}");
                begun.insert(piece.index);
            }
        }
    }
}

#[test]
fn many_items_take_bounded_time_and_memory() {
    let mut dialect = OpenaiResponsesDialect::default();
    let mut out = Vec::new();
    for index in 0..20_000 {
        let item =
            format!(r#"{{"type":"function_call","call_id":"c{index}","name":"f","arguments":""}}"#);
        let added = event("output_item.added", &format!(r#""output_index":{index},"item":{item}"#));
        crate::decoder::parse_in_full(&mut dialect, "", &added, &mut out);
    }
    assert_eq!((out.len(), dialect.items.all().len()), (20_000, 2048));
    let list = vec![r#"{"type":"message","content":"a"}"#; 20_000].join(",");
    let found = deltas(&[&format!(r#"{{"object":"response","output":[{list}]}}"#)]);
    assert_eq!(found.len(), 2048 + 2);
}

#[test]
fn a_response_with_as_many_tokens_as_it_was_allowed_is_cut_off() {
    let body = |tokens: u64| {
        let usage = format!(r#""usage":{{"input_tokens":3,"output_tokens":{tokens}}}"#);
        format!(r#"{{"object":"response","status":"completed","output":[],{usage}}}"#)
    };
    let kind = |allowed: Option<u64>, tokens: u64| {
        let (mut dialect, mut out) = (OpenaiResponsesDialect::new(allowed), Vec::new());
        crate::decoder::parse_in_full(&mut dialect, "", &body(tokens), &mut out);
        let finish = out.iter().find_map(|delta| match delta {
            Delta::Finish(finish) => Some(finish.clone()),
            _ => None,
        });
        finish.map(|finish| (finish.kind, finish.raw))
    };
    let completed = |kind| Some((kind, "completed".into()));
    assert_eq!(kind(Some(40), 40), completed(FinishKind::Length));
    assert_eq!(kind(Some(40), 39), completed(FinishKind::Stop));
    assert_eq!(kind(None, 40), completed(FinishKind::Stop));
}
