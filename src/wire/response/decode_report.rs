//! Decodes a recorded response and describes it as JSON, for `callsheet decode` and for tests.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    ParsedArguments, PartialCall, ResponseAssembler, ResponseLimits, ended_well, parse_arguments,
};
use crate::{CallKind, CallReader, Decoder, DecoderOptions, Delta, Framing, Problem, Wire};
use callsheet_values::types::{ProviderError, ProviderErrorKind, ToolProtocol, excerpt};

/// Decodes a whole response body.
///
/// If a limit of the decoder or of text is exceeded, the response keeps what was decoded before and gets an error.
///
/// ```
/// use callsheet::config::Wire;
/// use callsheet::model::{Framing, decode_body};
///
/// let body = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"}}]}\n\ndata: [DONE]\n\n";
/// let response = decode_body(Wire::OpenaiChat, Framing::Sse, Default::default(), body);
/// assert_eq!(response.text(), "Hi");
/// ```
#[must_use]
pub fn decode_body(
    wire: Wire,
    framing: Framing,
    limits: (DecoderOptions, ResponseLimits),
    body: &[u8],
) -> ResponseAssembler {
    decode_body_with(wire, ToolProtocol::Native, framing, limits, body)
}

/// Decodes a whole response body of a model with this protocol of tool calls. The offered tools are not
/// known.
#[must_use]
pub fn decode_body_with(
    wire: Wire,
    protocol: ToolProtocol,
    framing: Framing,
    limits: (DecoderOptions, ResponseLimits),
    body: &[u8],
) -> ResponseAssembler {
    let mut decoder = Decoder::new(wire, framing, limits.0);
    let mut deltas = Vec::new();
    let result = decoder.push(body, &mut deltas).and_then(|()| decoder.finish(&mut deltas));
    deltas.extend(result.err().map(Delta::Error));
    if deltas.is_empty() && !body.trim_ascii().is_empty() {
        // Lines that are not events are skipped, so a file of another kind would seem an empty
        // response.
        let detail = excerpt(&String::from_utf8_lossy(body), 200);
        deltas.push(Delta::Problem(Problem { code: "nothing_decoded", detail }));
    }
    if protocol != ToolProtocol::Native {
        let mut reader = CallReader::reading(protocol, Arc::new([]));
        deltas = reader.read(deltas);
        deltas.append(&mut reader.finish());
    }
    let mut response = ResponseAssembler::new(limits.1);
    for delta in &deltas {
        response.push(delta);
    }
    // Drops a call without a name before `ended_well` classifies the response.
    response.drop_nameless_call();
    if ended_well(&response) {
        response.seal_all();
    }
    response
}

/// Describes a response as one JSON object, in the form of `callsheet decode`.
#[must_use]
pub fn describe_response(response: &ResponseAssembler) -> Value {
    let own = response.calls().iter().filter(|call| !call.is_surplus);
    let mut calls: Vec<&PartialCall> = own.chain(response.service_calls()).collect();
    calls.sort_by_key(|call| call.arrival);
    // Distinct indexes of the wire are the order of the calls, also if their beginnings came in another order.
    let indexes: BTreeSet<_> = calls.iter().filter_map(|call| call.wire_index).collect();
    if indexes.len() == calls.len() {
        calls.sort_by_key(|call| call.wire_index);
    }
    let mut problems = response.problems().to_vec();
    problems.extend(calls.iter().copied().filter_map(incomplete_call));
    let calls: Vec<Value> =
        (0_u64..).zip(calls).map(|(position, call)| describe_call(position, call)).collect();
    json!({
        "text": response.text(),
        "reasoning": response.reasoning(),
        "refusal": response.refusal(),
        "tool_calls": calls,
        // Empty if the service sent no reason, for instance because the prompt was refused.
        "finish_reason": response.finish_reason().map(|finish| &finish.raw).filter(|raw| !raw.is_empty()),
        "usage": response.usage_raw().and_then(|raw| serde_json::from_str::<Value>(raw).ok()),
        "error": response.error().map(describe_error),
        "problems": problems,
    })
}

fn describe_call(position: u64, call: &PartialCall) -> Value {
    let arguments = parse_arguments(&call.raw);
    let object = arguments.object().filter(|_| !call.oversize);
    json!({
        "index": call.wire_index.unwrap_or(position),
        "id": call.provider_id,
        "name": call.name,
        "arguments": object,
        "arguments_raw": call.raw,
        "complete": incomplete_call(call).is_none(),
        "kind": call.kind,
    })
}

/// Returns the problem of a call that is not complete. Free text has no form that it could violate.
fn incomplete_call(call: &PartialCall) -> Option<Problem> {
    let is_json = match call.kind {
        CallKind::Function | CallKind::ServerToolUse => true,
        CallKind::Custom => false,
    };
    let problem = |code, found: &str| {
        let detail = excerpt(&format!("{}: {found}{}", call.name, call.raw), 200);
        Some(Problem { code, detail })
    };
    if call.oversize {
        return problem("arguments_too_large", "");
    }
    match parse_arguments(&call.raw) {
        ParsedArguments::CutOff if is_json => problem("arguments_cut_off", ""),
        ParsedArguments::NotAnObject { found } if is_json => {
            problem("arguments_invalid", &format!("{found}: "))
        }
        ParsedArguments::CutOff
        | ParsedArguments::NotAnObject { .. }
        | ParsedArguments::Object { .. } => {
            // More arguments could have followed.
            if call.sealed { None } else { problem("call_not_ended", "") }
        }
    }
}

fn describe_error(error: &ProviderError) -> Value {
    let ProviderError {
        kind,
        status,
        code,
        message,
        retry_after: _,
        retryable: _,
        overflow: _,
        tool_refusal: _,
        reasoning: _,
        refusal: _,
        content: _,
    } = error;
    let kind: &ProviderErrorKind = kind;
    json!({ "message": message, "code": code, "status": status, "kind": kind })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(framing: Framing, body: &str) -> Value {
        let limits = (DecoderOptions::default(), ResponseLimits::default());
        describe_response(&decode_body(Wire::OpenaiChat, framing, limits, body.as_bytes()))
    }

    #[track_caller]
    fn check(framing: Framing, body: &str, expected: Value) {
        let mut whole = json!({"text": "", "reasoning": "", "refusal": "", "tool_calls": [],
            "finish_reason": null, "usage": null, "error": null, "problems": []});
        for (key, value) in expected.as_object().unwrap() {
            whole[key] = value.clone();
        }
        assert_eq!(decode(framing, body), whole, "{body}");
    }

    fn call(index: u64, name: &str, raw: &str, arguments: Value, complete: bool) -> Value {
        json!({"index": index, "id": format!("c{index}"), "name": name, "arguments": arguments,
            "arguments_raw": raw, "complete": complete, "kind": "function"})
    }

    const TWO_CALLS: &str = concat!(
        r#"{"choices":[{"delta":{"content":"a","tool_calls":[{"index":0,"id":"c0","#,
        r#""function":{"name":"f","arguments":"{}"}},{"index":1,"id":"c1","#,
        r#""function":{"name":"g","arguments":"{\"x\":"}}]}}]}"#,
    );

    #[test]
    fn a_cut_off_response_has_one_complete_call() {
        let end = r#"{"choices":[{"delta":{},"finish_reason":"length"}],"usage":{"n":1}}"#;
        let expected = json!({
            "text": "a",
            "tool_calls": [call(0, "f", "{}", json!({}), true),
                call(1, "g", r#"{"x":"#, Value::Null, false)],
            "finish_reason": "length",
            "usage": {"n": 1},
            "problems": [{"code": "arguments_cut_off", "detail": "g: {\"x\":"}],
        });
        check(Framing::JsonLines, &format!("{TWO_CALLS}\r\n{end}"), expected.clone());
        check(Framing::Sse, &format!("data: {TWO_CALLS}\n\ndata: {end}"), expected.clone());
        check(Framing::JsonArray, &format!("[{TWO_CALLS},\n{end}]"), expected.clone());
        check(Framing::Json, &format!("data: {TWO_CALLS}\n\ndata: {end}\n\n"), expected.clone());
        check(Framing::Json, &format!(": hi\n\ndata: {TWO_CALLS}\n\ndata: {end}\n\n"), expected);
    }

    #[test]
    fn without_an_end_mark_the_last_call_is_not_complete() {
        let whole = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c0",
            "function":{"name":"f","arguments":"{}"}}]}}]}"#
            .replace('\n', "");
        let call = |complete| json!({"tool_calls": [call(0, "f", "{}", json!({}), complete)]});
        let mut cut = call(false);
        cut["problems"] = json!([{"code": "call_not_ended", "detail": "f: {}"}]);
        check(Framing::Sse, &format!("data: {whole}\n\n"), cut);
        check(Framing::Sse, &format!("data: {whole}\n\ndata: [DONE]\n\n"), call(true));
    }

    #[test]
    fn each_call_that_is_not_complete_has_a_problem() {
        for (raw, code) in [
            ("{\\\"x\\\":", "arguments_cut_off"),
            ("[1]", "arguments_invalid"),
            ("{} {}", "arguments_invalid"),
            ("x", "arguments_invalid"),
        ] {
            let body = format!(
                r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":0,"id":"c0",
                "function":{{"name":"f","arguments":"{raw}"}}}}]}},"finish_reason":"stop"}}]}}"#
            );
            let found = decode(Framing::Json, &body);
            assert_eq!(found["tool_calls"][0]["complete"], false, "{found}");
            assert_eq!(found["problems"][0]["code"], code, "{found}");
        }
    }

    #[test]
    fn calls_are_in_the_order_of_the_indexes_of_the_wire() {
        let piece = |index: u64, name: &str| {
            format!(
                r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":{index},"function":{{"name":"{name}","arguments":"{{}}"}}}}]}}}}]}}"#
            )
        };
        let found = decode(Framing::JsonLines, &[piece(1, "g"), piece(0, "f")].join("\n"));
        let names = [&found["tool_calls"][0]["name"], &found["tool_calls"][1]["name"]];
        assert_eq!(names, ["f", "g"]);
        let whole = r#"{"choices":[{"message":{"tool_calls":[
            {"index":1,"function":{"name":"g"}},{"index":0,"function":{"name":"f"}}]}}]}"#;
        let limits = (DecoderOptions::default(), ResponseLimits::default());
        let body = whole.as_bytes();
        let response = decode_body(Wire::OpenaiChat, Framing::Json, limits, body);
        let names: Vec<_> = response.calls().iter().map(|call| &*call.name).collect();
        assert_eq!(names, ["f", "g"]);
    }

    #[test]
    fn free_text_is_complete_without_being_an_object() {
        let body = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c0","type":"custom",
            "custom":{"name":"f","input":"x = 1"}}]},"finish_reason":"tool_calls"}]}"#
            .replace('\n', "");
        let mut custom = call(0, "f", "x = 1", Value::Null, true);
        custom["kind"] = json!("custom");
        let expected = json!({"tool_calls": [custom], "finish_reason": "tool_calls"});
        check(Framing::Sse, &format!("data: {body}\n\n"), expected);
    }

    #[test]
    fn a_plain_body_and_a_plain_error() {
        let body = r#"

            {"object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop",
              "message": {"role": "assistant", "content": "hi", "tool_calls": []}}]}"#;
        let answer = json!({"text": "hi", "finish_reason": "stop"});
        check(Framing::Json, body, answer.clone());
        check(Framing::Sse, body.trim(), answer);
        let error = r#"{"error":{"message":"m","code":"c","status_code":429}}"#;
        check(
            Framing::Json,
            error,
            json!({"error": {"message": "m", "code": "c", "status": 429, "kind": "in_stream"}}),
        );
    }

    #[test]
    fn a_body_that_is_no_answer_is_an_error() {
        for body in ["", "<html>", "{}", "[]", r#"{"choices":[{"message""#] {
            let found = decode(Framing::Json, body);
            assert_eq!(found["error"]["kind"], "malformed", "{body}: {found}");
        }
    }

    #[test]
    fn a_file_of_another_kind_is_a_problem() {
        let decode = |body: &str| {
            let limits = (DecoderOptions::default(), ResponseLimits::default());
            let described = describe_response(&decode_body(
                Wire::OpenaiChat,
                Framing::Sse,
                limits,
                body.as_bytes(),
            ));
            described["problems"].clone()
        };
        let odd = json!([{"code": "nothing_decoded", "detail": "<html>\n"}]);
        assert_eq!(decode("<html>\n"), odd);
        assert_eq!(decode("\n"), json!([]));
        assert_eq!(decode("data: [DONE]\n\n"), json!([]));
    }

    #[test]
    fn limits_are_errors_of_the_response() {
        let limits = (
            DecoderOptions {
                event_bytes_max: 100,
                body_bytes_max: 100,
                ..DecoderOptions::default()
            },
            ResponseLimits::default(),
        );
        for framing in [Framing::Sse, Framing::JsonLines, Framing::Json, Framing::JsonArray] {
            let body = format!("data: {}", "a".repeat(1000));
            let response = decode_body(Wire::OpenaiChat, framing, limits, body.as_bytes());
            let kind = response.error().map(|error| error.kind);
            assert_eq!(kind, Some(ProviderErrorKind::TooLarge), "{framing}");
        }
    }

    #[test]
    fn deep_nesting_and_a_great_many_calls_are_harmless() {
        let deep = format!(
            r#"{{"x":{0}{1},"choices":[{{"delta":{{"content":"a","y":{0}{1}}}}}]}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000),
        );
        assert_eq!(decode(Framing::JsonLines, &deep)["text"], "a");
        let nested = format!(r#"{{"choices":[{{"delta":{{"content":{}"#, "[".repeat(100_000));
        assert_eq!(decode(Framing::JsonLines, &nested)["error"]["kind"], "malformed");
        let call = |n| {
            format!(
                r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":{n},"function":{{"name":"f"}}}}]}}}}]}}"#
            )
        };
        let many: Vec<_> = (0..20_000).map(call).collect();
        let found = decode(Framing::JsonLines, &many.join("\n"));
        assert_eq!(found["tool_calls"].as_array().unwrap().len(), 1024);
    }

    /// The texts of an answer and its calls, each in pieces.
    #[derive(Clone, Debug)]
    struct Answer {
        texts: Vec<String>,
        calls: Vec<(String, Vec<String>)>,
    }

    fn answer() -> impl Strategy<Value = Answer> {
        let texts = proptest::collection::vec("[a-z é\"\\\\\n🌍]{0,6}", 0..5);
        let call = ("[a-z]{1,8}", proptest::collection::vec("[a-z{}\":,🌍 ]{0,8}", 0..4));
        (texts, proptest::collection::vec(call, 0..4))
            .prop_map(|(texts, calls)| Answer { texts, calls })
    }

    fn stream(answer: &Answer, end: &str) -> String {
        let mut payloads: Vec<Value> =
            answer.texts.iter().map(|text| json!({"content": text})).collect();
        for (index, (name, pieces)) in answer.calls.iter().enumerate() {
            let id = format!("c{index}");
            payloads.push(json!({"tool_calls": [{"index": index, "id": id,
                "function": {"name": name, "arguments": ""}}]}));
            payloads.extend(pieces.iter().map(
                |piece| json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}),
            ));
        }
        let frame = |delta| format!("data: {}{end}{end}", json!({"choices": [{"delta": delta}]}));
        payloads.into_iter().map(frame).collect::<String>() + "data: [DONE]" + end + end
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_answer(
            answer in answer(),
            end in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let body = stream(&answer, end);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
            cuts.extend([0, body.len()]);
            cuts.sort_unstable();
            let limits = DecoderOptions::default();
            let mut decoder = Decoder::new(Wire::OpenaiChat, Framing::Sse, limits);
            let mut response = ResponseAssembler::new(ResponseLimits::default());
            let mut deltas = Vec::new();
            for cut in cuts.windows(2) {
                decoder.push(&body.as_bytes()[cut[0]..cut[1]], &mut deltas).unwrap();
            }
            decoder.finish(&mut deltas).unwrap();
            deltas.iter().for_each(|delta| drop(response.push(delta)));
            prop_assert!(response.is_done() && response.problems().is_empty());
            prop_assert_eq!(response.text(), answer.texts.concat());
            let found: Vec<_> = response
                .calls()
                .iter()
                .map(|call| (call.name.to_string(), call.raw.clone()))
                .collect();
            let calls: Vec<_> =
                answer.calls.iter().map(|(name, pieces)| (name.clone(), pieces.concat())).collect();
            prop_assert_eq!(found, calls);
        }

        #[test]
        fn no_bytes_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let limits = (DecoderOptions::default(), ResponseLimits::default());
            for framing in [Framing::Sse, Framing::JsonLines, Framing::Json, Framing::JsonArray] {
                let found = describe_response(&decode_body(Wire::OpenaiChat, framing, limits, &body));
                prop_assert_eq!(found["tool_calls"].as_array().map(Vec::len), Some(0));
            }
        }
    }
}
