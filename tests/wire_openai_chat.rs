//! Metadata that goes back to a Chat Completions service, over HTTP.
#![expect(clippy::unwrap_used, reason = "a test")]

mod support;

use callsheet::rehearsal::{Call, Finish, Response, Script};
use callsheet::types::RunEnd;
use serde_json::{Value, json};
use support::tools::{CallControl, registry};
use support::{parallel, world};

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
