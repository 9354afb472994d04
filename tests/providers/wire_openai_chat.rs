//! Metadata that goes back to a Chat Completions service, over HTTP.
#![expect(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::disallowed_methods, reason = "the test watches events while the run continues")]

use crate::support::tools::{CallControl, registry};
use crate::support::{events, parallel, world, world_of};
use callsheet::types::{RunEnd, Wire};
use callsheet_mock_provider::{Call, Finish, ReceivedRequest, Response, Script};
use serde_json::{Value, json};

/// Runs a turn with calls and the turn of the answer. Returns the message of the first turn as it
/// was sent back.
async fn sent_back(first: Response, stream: bool) -> Value {
    let done = Response::text("Done.").with(|r| r.reasoning = vec!["at last".into()]);
    let script = Script::new([first, done, Response::text("Still here.")]);
    let world = world(script, registry(&CallControl::new()), |config| {
        parallel(8)(config);
        config.models.get_mut("rehearsal").unwrap().stream = stream;
    })
    .await;
    assert_eq!(world.run("go").await.run_end, RunEnd::Answered);
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
    world.assert_paired();
    let messages = world.last_messages();
    let answers: Vec<&Value> = messages.iter().filter(|m| m["role"] == "assistant").collect();
    let done = json!({"role": "assistant", "content": "Done.", "reasoning_content": "at last"});
    assert_eq!(answers[1], &done);
    answers[0].clone()
}

#[tokio::test]
async fn reasoning_goes_back_with_its_calls() {
    for stream in [true, false] {
        let calls =
            [Call::new("quick", json!({"id": "a"})), Call::new("quick", json!({"id": "b"}))];
        let first = Response::calls(calls).with(|r| r.reasoning = vec!["h".into(), "m".into()]);
        let asking = sent_back(first, stream).await;
        assert_eq!(asking["reasoning_content"], "hm");
        assert_eq!(asking["tool_calls"].as_array().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_response_that_geminis_endpoint_filters_is_no_answer() {
    let filtered = |reason: &str| Response {
        finish_reason: Finish::Word(reason.into()),
        ..Response::text("Half an")
    };
    let script = Script::new([
        filtered("function_call_filter: MALFORMED_FUNCTION_CALL"),
        Response::text("Whole."),
        filtered("content_filter: PROHIBITED_CONTENT"),
    ]);
    let world = world(script, registry(&CallControl::new()), |_| ()).await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Whole."));
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Refused);
    assert_eq!(world.requests().len(), 3);
}

#[tokio::test]
async fn signatures_and_details_go_back_unchanged() {
    let call = |index: u64, id: &str, extra: Value| {
        let function = json!({"name": "quick", "arguments": format!("{{\"id\":\"{id}\"}}")});
        json!({"index": index, "id": id, "type": "function", "function": function,
            "extra_content": extra})
    };
    let extra = json!({"google": {"thought_signature": "c2lnbmVk"}});
    let detail = |rest: Value| {
        let mut detail = json!({"type": "reasoning.text", "format": "x", "index": 0});
        detail.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        json!({"reasoning_details": [detail]})
    };
    let deltas = [
        detail(json!({"text": "h"})),
        detail(json!({"text": "m"})),
        json!({"tool_calls": [call(0, "a", extra.clone())]}),
        json!({"tool_calls": [call(1, "b", Value::Null)]}),
        detail(json!({"signature": "s"})),
    ];
    let chunk = |delta: &Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!("data: {}\n\n", json!({"choices": [choice]}))
    };
    let mut chunks: Vec<String> = deltas.iter().map(|delta| chunk(delta, Value::Null)).collect();
    chunks.push(chunk(&json!({}), json!("tool_calls")));
    chunks.push("data: [DONE]\n\n".to_owned());
    let asking = sent_back(Response::raw("text/event-stream", chunks), true).await;
    assert_eq!(asking["tool_calls"][0]["extra_content"], extra);
    assert_eq!(asking["tool_calls"][1].get("extra_content"), None);
    let whole = detail(json!({"text": "hm", "signature": "s"}));
    assert_eq!(asking["reasoning_details"], whole["reasoning_details"]);
}

/// Returns the texts that clients were shown: as thinking, and as answer.
fn shown(events: &[Value]) -> (String, String) {
    let of_kind = |kind: &str| -> String {
        events.iter().filter(|event| event["type"] == kind).map(text_of).collect()
    };
    (of_kind("thinking"), of_kind("content_delta"))
}

fn text_of(event: &Value) -> &str {
    let text = event.get("text").or_else(|| event.get("content"));
    text.and_then(Value::as_str).unwrap_or_else(|| panic!("{event}"))
}

/// Returns whether some text of a request contains a part.
fn has_text(request: &ReceivedRequest, part: &str) -> bool {
    fn any(value: &Value, part: &str) -> bool {
        match value {
            Value::String(text) => text.contains(part),
            Value::Array(items) => items.iter().any(|item| any(item, part)),
            Value::Object(members) => members.values().any(|value| any(value, part)),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }
    any(&request.body, part)
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_in_tags_is_thinking_and_goes_back_to_its_model_as_it_came() {
    let raw = "<think>\nHm, so.\n</think>\n\nHello.";
    for (_, wire) in Wire::NAMES {
        for stream in [true, false] {
            let chars: Vec<char> = raw.chars().collect();
            let pieces = chars.chunks(4).map(|piece| piece.iter().collect()).collect();
            let script = Script::new([
                Response { text: pieces, ..Response::default() },
                Response::text("Again."),
                Response::text("Once more."),
            ]);
            let world = world_of(wire, script, registry(&CallControl::new()), |config| {
                config.models.values_mut().for_each(|model| model.stream = stream);
                let mut other = config.models["rehearsal"].clone();
                other.model = "other".into();
                config.models.insert("other".into(), other);
            })
            .await;
            let subscription = world.session.subscribe().await.unwrap();
            let collected = tokio::spawn(events(subscription));
            let report = world.run("go").await;
            assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "Hello."), "{wire}");
            let expected = ("Hm, so.".to_owned(), "Hello.".to_owned());
            assert_eq!(shown(&collected.await.unwrap()), expected, "{wire}");
            assert_eq!(world.run("and now?").await.text, "Again.");
            world.assert_paired();
            assert!(has_text(&world.requests()[1], raw), "{wire}: {:?}", world.requests()[1].body);
        }
    }
}

#[tokio::test]
async fn reasoning_details_alone_are_thinking() {
    let detail = |text: &str, kind: &str, member: &str| json!({"reasoning_details": [{"type": kind, "index": 0, member: text}]});
    let body = |chunks: Vec<Value>| {
        let chunk = |delta: Value| {
            let choice = json!({"index": 0, "delta": delta});
            format!("data: {}\n\n", json!({"choices": [choice]}))
        };
        let mut chunks: Vec<String> = chunks.into_iter().map(chunk).collect();
        let finish = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
        chunks.push(format!("data: {finish}\n\ndata: [DONE]\n\n"));
        Response::raw("text/event-stream", chunks)
    };
    let text = |text: &str| json!({"content": text});
    for (kind, member) in [("reasoning.text", "text"), ("reasoning.summary", "summary")] {
        let pieces = ["I think", " of it", " well."].map(|piece| detail(piece, kind, member));
        let snapshots = ["I think", "I think of it", "I think of it well."];
        let snapshots = snapshots.map(|piece| detail(piece, kind, member));
        let answers = ["Hello", "Hello there", "Hello there, you."].map(text);
        for response in [
            body(pieces.into_iter().chain([text("Hello there, you.")]).collect()),
            body(snapshots.into_iter().chain(answers).collect()),
        ] {
            let script = Script::new([response]);
            let world = world(script, registry(&CallControl::new()), |_| ()).await;
            let subscription = world.session.subscribe().await.unwrap();
            let collected = tokio::spawn(events(subscription));
            let report = world.run("go").await;
            assert_eq!(report.text, "Hello there, you.");
            let expected = ("I think of it well.".to_owned(), "Hello there, you.".to_owned());
            assert_eq!(shown(&collected.await.unwrap()), expected, "{kind}");
        }
    }
}
