//! The face of the UI message stream of the AI SDK.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use crate::client::{HttpConnection, post};
use crate::host_directory::{HostDirectory, within};
use crate::installed::run_client;
use crate::pages::{ASKS, call, script, served, served_with, starts};

fn user(text: &str) -> Value {
    json!({"id": "u1", "role": "user", "parts": [{"type": "text", "text": text}]})
}

fn body(chat: &str, text: &str) -> Value {
    json!({"id": chat, "trigger": "submit-message", "messages": [user(text)]})
}

/// Returns the chunks of a stream, without the terminator.
fn chunks(stream: &str) -> Vec<Value> {
    let lines = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// Returns the parts of the last message, in few words.
fn shown(printed: &Value) -> Vec<String> {
    let message = printed["messages"].as_array().unwrap().last().unwrap();
    let parts = message["parts"].as_array().unwrap().iter();
    let shown = parts.map(|part| {
        let kind = part["type"].as_str().unwrap();
        match part["text"].as_str() {
            Some(text) => format!("{kind}: {text}"),
            None => {
                let end =
                    if part["output"].is_null() { &part["errorText"] } else { &part["output"] };
                let end = end.as_str().unwrap_or_default();
                let state = part["state"].as_str().unwrap_or_default();
                format!("{kind} {state} {end}").trim_end().to_owned()
            }
        }
    });
    shown.collect()
}

const WHOLE: [&str; 8] = [
    "step-start",
    "reasoning: Hm.",
    "text: Let me see.",
    "tool-quick output-available done a",
    "tool-writes output-available done b",
    "tool-fails output-error Error: it does not work",
    "step-start",
    "text: All done.",
];

#[tokio::test]
async fn use_chat_runs_three_tools_and_an_approval() {
    let (directory, served) = served(script()).await;
    let Some(printed) = run_client("ui.mjs", served.addr(), &["approve", "c1"]).await else {
        return;
    };
    assert_eq!(printed["errors"], json!([]), "{printed}");
    assert_eq!(shown(&printed), WHOLE);
    assert_eq!(printed["requests"], json!(["POST 200", "POST 200"]));
    assert_eq!(printed["finishes"], json!(["tool-calls", "stop"]));
    let message = &printed["messages"][1];
    let metadata = &message["metadata"];
    assert_eq!(metadata["session_id"], "c1");
    assert_eq!((&metadata["run_id"], &metadata["run_end"]), (&message["id"], &json!("answered")));
    assert!(metadata["usage"]["inputTokens"].as_u64().unwrap() > 0);
    let asked = &printed["asked"][0];
    assert!(asked["id"].as_str().unwrap().starts_with("t1a1c1."), "{asked}");
    assert_eq!(starts(&directory, "b"), 1);
    let history = served.snapshot("c1").await["history"].clone();
    assert_eq!(history.as_array().unwrap().len(), 6, "{history}");
}

#[tokio::test]
async fn a_rejected_call_is_denied() {
    let (directory, served) = served(script()).await;
    let Some(printed) = run_client("ui.mjs", served.addr(), &["reject", "c1"]).await else {
        return;
    };
    assert_eq!(printed["errors"], json!([]), "{printed}");
    assert_eq!(shown(&printed)[4], "tool-writes output-denied");
    assert_eq!(printed["messages"][1]["parts"][4]["approval"]["reason"], "too dear");
    assert_eq!(starts(&directory, "b"), 0);
    let again = run_client("ui.mjs", served.addr(), &["reload", "c1"]).await.unwrap();
    assert_eq!(shown(&again)[2..5], [WHOLE[3], "tool-writes output-denied", WHOLE[5]]);
}

#[tokio::test]
async fn a_page_that_was_cut_off_near_the_end_reads_the_whole_answer() {
    let (_directory, served) = served(json!({"responses": [
        {"text": ["Let me see."], "calls": [call("quick", "a")]}, {"text": ["All ", "done."]}]}))
    .await;
    let printed = run_client("ui.mjs", served.addr(), &["ended", "c1", "10"]).await;
    let Some(printed) = printed else { return };
    assert_eq!(printed["requests"], json!(["POST 200", "GET 204"]), "{printed}");
    assert_eq!(printed["status"], "ready");
    assert_eq!(shown(&printed).last().unwrap(), "text: All done.");
    assert_eq!(printed["messages"].as_array().unwrap().len(), 2, "{printed}");
}

#[tokio::test]
async fn a_page_joins_after_a_cut_at_any_chunk() {
    for cut in [1, 3, 5, 8, 12, 14] {
        let (directory, served) = served(script()).await;
        let cut_at = cut.to_string();
        let printed = run_client("ui.mjs", served.addr(), &["cut", "c1", &cut_at]).await;
        let Some(printed) = printed else { return };
        assert_eq!(shown(&printed), WHOLE, "cut after {cut}: {printed}");
        assert_eq!(printed["messages"].as_array().unwrap().len(), 2);
        assert_eq!(printed["cutOff"]["id"], printed["messages"][1]["id"]);
        assert_eq!(starts(&directory, "b"), 1);
    }
}

#[tokio::test]
async fn a_page_that_is_opened_again_finds_the_run_also_after_a_restart() {
    let (directory, served) = served(script()).await;
    let left = run_client("ui.mjs", served.addr(), &["leave", "c1", "4"]).await;
    if left.is_none() {
        return;
    }
    let waits = |snapshot: &Value| snapshot["state"] == "waiting";
    served.until_snapshot("c1", waits).await;
    served.shutdown().await;
    let served = directory.start("", ASKS).await;
    let Some(printed) = run_client("ui.mjs", served.addr(), &["reload", "c1"]).await else {
        return;
    };
    assert_eq!(printed["errors"], json!([]), "{printed}");
    assert_eq!(shown(&printed), WHOLE);
    assert_eq!(printed["requests"], json!(["GET 200", "POST 200"]));
    assert_eq!(printed["messages"].as_array().unwrap().len(), 2, "{printed}");
    let again = run_client("ui.mjs", served.addr(), &["reload", "c1"]).await.unwrap();
    assert_eq!(again["requests"], json!(["GET 204"]));
    let without_thinking: Vec<_> =
        WHOLE.into_iter().filter(|part| !part.starts_with("reasoning")).collect();
    assert_eq!(shown(&again), without_thinking);
    let nothing = served.get("/v1/ui/default/c1/stream").await;
    assert_eq!((nothing.status, nothing.body.as_str()), (204, ""));
    assert_eq!(served.get("/v1/ui/default/other/stream").await.status, 204);
    directory.verify();
}

#[tokio::test]
async fn a_page_runs_its_own_tools() {
    let (directory, served) = served(json!({"responses": [
        {"text": ["Where?"], "calls": [json!({"name": "where", "arguments": {}}), call("quick", "a")]},
        {"text": ["In Rome."]}]}))
    .await;
    let Some(printed) = run_client("ui.mjs", served.addr(), &["page", "c1"]).await else { return };
    assert_eq!(printed["errors"], json!([]), "{printed}");
    assert_eq!(printed["data"], json!(["where"]), "only the page's tool is run by the page");
    assert_eq!(shown(&printed).last().unwrap(), "text: In Rome.");
    let history = served.snapshot("c1").await["history"].to_string();
    assert!(history.contains("Rome") && history.contains("image_url"), "{history}");
    drop(directory);
}

#[tokio::test]
async fn all_calls_of_the_page_come_with_an_approval() {
    let page = |name: &str| json!({"name": name, "arguments": {}});
    let calls = json!([page("where"), page("when"), call("writes", "b")]);
    let directory = HostDirectory::new(json!({"responses": [{"calls": calls}]})).await;
    let served =
        directory.start("", &format!("{ASKS}\n[agents.default]\nexecution = \"parallel\"")).await;
    let mut asked = body("c1", "go");
    let tool =
        |name: &str| json!({"name": name, "description": "", "input_schema": {"type": "object"}});
    asked["client_tools"] = json!([tool("where"), tool("when")]);
    let answer = served.post("/v1/ui/default", asked).await;
    let events = answer.body.matches("\"type\":\"tool-input-available\"").count();
    assert_eq!(events, 3, "{}", answer.body);
    assert!(!answer.body.contains("reset-step"), "{}", answer.body);
    served.post("/v1/sessions/c1/stop", json!({"mode": "now"})).await;
}

#[tokio::test]
async fn a_chat_is_one_session() {
    let (_directory, served) = served(json!({"responses": [
        {"text": ["One."]}, {"text": ["Two."]}, {"text": ["Three."]}]}))
    .await;
    let Some(printed) = run_client("ui.mjs", served.addr(), &["twice", "c1"]).await else { return };
    assert_eq!(printed["errors"], json!([]), "{printed}");
    assert_eq!(shown(&printed), ["step-start", "text: Three."]);
    let snapshot = served.snapshot("c1").await;
    let texts: Vec<_> =
        snapshot["history"].as_array().unwrap().iter().map(|m| &m["content"]).collect();
    assert_eq!(texts, ["first", "One.", "second", "Two.", "second", "Three."]);
}

#[tokio::test]
async fn a_broken_attempt_resets_its_step_and_a_steer_is_shown() {
    let (directory, served) = served(json!({"responses": [
        {"text": ["Wro", "ng"], "cut_after_chunks": 3},
        {"text": ["Right."], "calls": [call("waits", "a")]},
        {"text": ["Done."]}]}))
    .await;
    let request = post("/v1/ui/default", "", &body("c1", "go").to_string());
    let mut stream = HttpConnection::open(served.addr(), &request).await;
    directory.control.until_logged("start a").await;
    let steered = served.post("/v1/sessions/c1/steer", json!({"input": "and fast"})).await;
    assert_eq!(steered.status, 202);
    directory.control.release("a");
    within(stream.until("[DONE]")).await;
    let live = chunks(&stream.text());
    let kinds: Vec<_> = live.iter().map(|chunk| chunk["type"].as_str().unwrap()).collect();
    let reset = kinds.iter().position(|kind| *kind == "reset-step").unwrap();
    assert!(kinds[..reset].contains(&"text-delta"), "{kinds:?}");
    let steer = live.iter().find(|chunk| chunk["type"] == "steering-message").unwrap();
    assert_eq!(steer["parts"], json!([{"type": "text", "text": "and fast"}]));
    assert_eq!(kinds.last(), Some(&"finish"));
}

#[tokio::test]
async fn bad_requests_have_clear_errors_and_leave_nothing() {
    let (directory, served) = served(script()).await;
    let send = async |body: Value| {
        let answer = served.post("/v1/ui/default", body).await;
        (answer.status, answer.json()["error"]["message"].as_str().unwrap().to_owned())
    };
    let image = |media_type: &str, url: &str| {
        let parts = json!([{"type": "file", "mediaType": media_type, "url": url}]);
        json!({"id": "c1", "messages": [{"role": "user", "parts": parts}]})
    };
    let answered = |part: Value| {
        let messages = json!([user("go"), {"id": "run_1", "role": "assistant", "parts": [part]}]);
        json!({"id": "c1", "messages": messages})
    };
    let approval = json!({"type": "tool-x", "toolCallId": "t1a1c0", "state": "approval-responded",
        "approval": {"id": "t1a1c0.ab", "approved": true}});
    let mut foreign = approval.clone();
    foreign["approval"]["id"] = "mine".into();
    let cases = [
        (json!({"messages": [user("go")]}), 400, "id"),
        (json!({"id": "c1", "messages": []}), 400, "at least one message"),
        (json!({"id": "c1", "messages": [user("go")], "temperature": 1}), 400, "temperature"),
        (json!({"id": "c1", "messages": [{"role": "system", "parts": []}]}), 400, "messages[0]"),
        (json!({"id": "c1", "messages": [user(" ")]}), 400, "input"),
        (image("application/pdf", "data:application/pdf;base64,AA=="), 400, "application/pdf"),
        (image("image/png", "data:image/png;base64,%"), 400, "messages[0].parts[0]"),
        (answered(json!({"type": "text", "text": "Hm."})), 400, "answers nothing"),
        (answered(foreign), 400, "approval.id"),
        (answered(approval), 422, "no session"),
        (json!({"id": "c1", "messages": [user("go")], "model": "none"}), 400, "model"),
    ];
    for (body, status, text) in cases {
        let (seen, message) = send(body.clone()).await;
        assert!(seen == status && message.contains(text), "{body}: {seen} {message}");
    }
    let unknown = served.post("/v1/ui/nobody", body("c1", "go")).await;
    assert_eq!(unknown.error(), (404, "unknown_agent".to_owned()));
    assert_eq!(served.get("/v1/sessions/c1").await.status, 404, "nothing is half done");
    assert_eq!(directory.model.received(), 0);
}

#[tokio::test]
async fn a_run_in_progress_is_joined_or_stopped() {
    let (directory, served) = served(json!({"responses": [
        {"text": ["Wait."], "calls": [call("waits", "a")]}, {"text": ["Done."]}]}))
    .await;
    let request = post("/v1/ui/default", "", &body("c1", "go").to_string());
    let mut first = HttpConnection::open(served.addr(), &request).await;
    directory.control.until_logged("start a").await;
    let again = served.post("/v1/ui/default", body("c1", "hello?")).await;
    assert_eq!(again.error(), (422, "run_in_progress".to_owned()));
    let stopped = served.post("/v1/ui/default/c1/stop", json!({})).await;
    assert_eq!(stopped.status, 202, "{stopped:?}");
    within(first.until("[DONE]")).await;
    let last = chunks(&first.text()).pop().unwrap();
    assert_eq!((&last["type"], &last["finishReason"]), (&json!("finish"), &json!("interrupted")));
    let done = served.post("/v1/ui/default", body("c2", "go")).await;
    assert!(done.body.ends_with("data: [DONE]\n\n"), "{done:?}");
    // A run that has ended meanwhile is no error for a stop button.
    let stopped = served.post("/v1/ui/default/c2/stop", json!({})).await;
    assert_eq!(stopped.json(), json!({"id": "c2", "mode": "now"}));
    let unknown = served.post("/v1/ui/default/c3/stop", json!({})).await;
    assert_eq!(unknown.error(), (404, "no_such_session".to_owned()));
}

#[tokio::test]
async fn a_join_has_the_parts_of_the_live_stream() {
    let (_directory, served) = served(script()).await;
    let live = served.post("/v1/ui/default", body("c1", "go")).await;
    assert_eq!(live.header("x-vercel-ai-ui-message-stream"), Some("v1"));
    assert_eq!(live.header("x-callsheet-session"), Some("c1"));
    let joined = served.get("/v1/ui/default/c1/stream").await;
    // Text comes in other pieces; arguments as they arrive and decisions are states.
    let of = |stream: &str| {
        let mut merged: Vec<Value> = Vec::new();
        for chunk in chunks(stream) {
            match (chunk["type"].as_str().unwrap(), merged.last_mut()) {
                ("tool-input-delta" | "tool-input-start", _) => {}
                ("text-delta", Some(last)) if last["type"] == "text-delta" => {
                    let text = [&last["delta"], &chunk["delta"]].map(|text| text.as_str().unwrap());
                    last["delta"] = text.concat().into();
                }
                _ => merged.push(chunk),
            }
        }
        merged
    };
    let (live, joined) = (of(&live.body), of(&joined.body));
    let sorted = |chunks: &[Value]| {
        let mut lines: Vec<_> = chunks.iter().map(ToString::to_string).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&live), sorted(&joined));
}

/// Returns the calls that have a part, in order.
fn started_calls(stream: &str) -> Vec<String> {
    let starts = chunks(stream).into_iter().filter(|chunk| chunk["type"] == "tool-input-start");
    starts.map(|chunk| chunk["toolCallId"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_join_has_the_calls_in_order_while_their_response_arrives() {
    for execution in ["sequential", "parallel"] {
        let (directory, served) = served_with(
            json!({"responses": [
                {"calls": [call("waits", "a"), call("quick", "b"), call("quick", "c")],
                 "holds": [{"at": "finish", "name": "finish"}]},
                {"text": ["Done."]}]}),
            &format!("[agents.default]\nexecution = \"{execution}\""),
        )
        .await;
        served.open("c1").await;
        served.begin("c1", json!({"input": "go"})).await;
        let mut events = served.events("c1", "0").await;
        within(events.until("\"tool_id\":\"t1a1c2\"")).await;
        if execution == "parallel" {
            // The ends of calls are stored, the states of open ones are not.
            directory.control.until_logged("end b").await;
            within(events.until("\"tool_result\"")).await;
        }
        let request = "GET /v1/ui/default/c1/stream HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let mut joined = HttpConnection::open(served.addr(), request).await;
        within(joined.until("t1a1c2")).await;
        directory.model.open_gate("finish");
        directory.control.release("a");
        within(joined.until("[DONE]")).await;
        let stream = joined.text();
        assert_eq!(started_calls(&stream), ["t1a1c0", "t1a1c1", "t1a1c2"], "{execution}: {stream}");
        let ends = chunks(&stream);
        let ends = ends.iter().filter(|chunk| chunk["type"] == "tool-output-available");
        assert_eq!(ends.count(), 3, "{execution}: {stream}");
    }
}

#[tokio::test]
async fn assistant_ui_names_its_tools_and_its_system_text() {
    let (directory, served) = served(json!({"responses": [
        {"text": ["Where?"], "calls": [json!({"name": "where", "arguments": {}})]}, {"text": ["Done."]}]}))
    .await;
    let with = |more: Value| {
        let mut body = body("c1", "go");
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (wrong, text) in [
        (json!({"tools": [{"name": "where"}]}), "must be an object, not a list"),
        (json!({"tools": {"where": {"input_schema": {}}}}), "input_schema"),
        (json!({"tools": {"where": {"parameters": 7}}}), "where"),
        (json!({"tools": {"where here": {"parameters": {"type": "object"}}}}), "where here"),
        (json!({"system": 7}), "must be a string"),
        (json!({"callSettings": []}), "must be an object"),
        (json!({"messageID": "u1"}), "messageID"),
    ] {
        let answer = served.post("/v1/ui/default", with(wrong.clone())).await;
        assert_eq!(answer.error().0, 400, "{wrong}: {answer:?}");
        assert!(answer.body.contains(text), "{wrong}: {answer:?}");
    }
    let schema = json!({"type": "object", "properties": {}, "$schema": "http://json-schema.org/draft-07/schema#"});
    let sent = with(json!({
        "system": "Answer in Italian.", "callSettings": {"temperature": 1}, "config": {},
        "tools": {"where": {"description": "Where the user is.", "parameters": schema, "providerOptions": {"a": {}}}},
    }));
    let answer = served.post("/v1/ui/default", sent).await;
    assert_eq!(answer.header("x-callsheet-ignored"), Some("callsettings, tools.provideroptions"));
    let last = chunks(&answer.body).pop().unwrap();
    assert_eq!(last["finishReason"], "tool-calls", "{answer:?}");
    let asked = directory.model.requests()[0].body.to_string();
    assert!(
        asked.contains("Where the user is.") && asked.contains("Answer in Italian."),
        "{asked}"
    );
    let plain = served.post(
        "/v1/ui/default",
        json!({"id": "c2", "messages": [user("go")],
        "tools": {}, "system": null, "callSettings": {}, "config": null}),
    );
    let plain = plain.await;
    assert_eq!((plain.status, plain.header("x-callsheet-ignored")), (200, None));
}
