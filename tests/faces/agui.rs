//! The face AG-UI.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use crate::client::{HttpConnection, post};
use crate::host_directory::within;
use crate::installed::run_client;
use crate::pages::{ASKS, call, script, served, starts};

fn input(thread: &str, text: &str) -> Value {
    json!({"threadId": thread, "runId": "r1", "messages": [
        {"id": "m1", "role": "user", "content": text}], "tools": [], "context": [], "state": {}})
}

fn events(stream: &str) -> Vec<Value> {
    let lines = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// Returns the messages of the client, in few words.
fn shown(printed: &Value) -> Vec<String> {
    let messages = printed["messages"].as_array().unwrap().iter();
    let shown = messages.map(|message| {
        let calls = message["toolCalls"].as_array().map_or(0, Vec::len);
        let calls = if calls > 0 { format!(" +{calls}") } else { String::new() };
        let text = message["content"].as_str().unwrap_or_default();
        format!("{}: {text}{calls}", message["role"].as_str().unwrap())
    });
    shown.collect()
}

const WHOLE: [&str; 7] = [
    "user: go",
    "reasoning: Hm.",
    "assistant: Let me see. +3",
    "tool: done a",
    "tool: done b",
    "tool: Error: it does not work",
    "assistant: All done.",
];

#[tokio::test]
async fn http_agent_runs_three_tools_and_an_approval() {
    let (directory, served) = served(script()).await;
    let Some(printed) = run_client("agui.mjs", served.addr(), &["approve", "c1"]).await else {
        return;
    };
    assert_eq!(printed["errors"], json!([]), "{printed}");
    assert_eq!(shown(&printed), WHOLE);
    assert_eq!(printed["messages"][0]["id"], "mine-1", "the client's own message stays");
    let outcomes = &printed["outcomes"];
    assert_eq!(
        (&outcomes[0]["type"], &outcomes[1]["type"]),
        (&json!("interrupt"), &json!("success"))
    );
    let asked = &printed["asked"][0];
    assert_eq!(
        (&asked["reason"], &asked["toolCallId"]),
        (&json!("tool_approval"), &json!("t1a1c1"))
    );
    assert_eq!(starts(&directory, "b"), 1);
    let history = served.snapshot("c1").await["history"].clone();
    assert_eq!(history.as_array().unwrap().len(), 6, "{history}");
}

#[tokio::test]
async fn a_cancelled_interrupt_rejects_the_call() {
    let (directory, served) = served(script()).await;
    let Some(printed) = run_client("agui.mjs", served.addr(), &["reject", "c1"]).await else {
        return;
    };
    assert_eq!(printed["errors"], json!([]), "{printed}");
    assert_eq!(starts(&directory, "b"), 0);
    assert_eq!(shown(&printed).last().unwrap(), "assistant: All done.");
}

#[tokio::test]
async fn a_thread_is_joined_after_a_cut_at_any_event() {
    for cut in [1, 4, 8, 13, 18, 24] {
        let (directory, served) = served(script()).await;
        let cut_at = cut.to_string();
        let printed = run_client("agui.mjs", served.addr(), &["cut", "c1", &cut_at]).await;
        let Some(printed) = printed else { return };
        assert_eq!(printed["errors"], json!([]), "cut after {cut}: {printed}");
        assert_eq!(shown(&printed), WHOLE, "cut after {cut}: {printed}");
        assert_eq!(printed["messages"][0]["id"], "mine-1", "the client's own message stays");
        let joined = printed["joined"].as_array().unwrap();
        assert_eq!(joined[0], "mine-1", "cut after {cut}: {joined:?}");
        assert_eq!(starts(&directory, "b"), 1);
    }
}

#[tokio::test]
async fn a_page_that_is_opened_again_joins_also_after_a_restart() {
    let (directory, served) = served(script()).await;
    let request = post("/v1/agui/default", "", &input("c1", "go").to_string());
    let mut left = HttpConnection::open(served.addr(), &request).await;
    within(left.until("RUN_STARTED")).await;
    drop(left);
    served.until_snapshot("c1", |snapshot| snapshot["state"] == "waiting").await;
    served.shutdown().await;
    let served = directory.start("", ASKS).await;
    let Some(printed) = run_client("agui.mjs", served.addr(), &["reload", "c1"]).await else {
        return;
    };
    assert_eq!(printed["errors"], json!([]), "{printed}");
    assert_eq!(shown(&printed), WHOLE);
    // A thread at rest is told, too.
    let again = run_client("agui.mjs", served.addr(), &["reload", "c1"]).await.unwrap();
    assert_eq!(shown(&again), WHOLE);
    directory.verify();
}

#[tokio::test]
async fn a_page_runs_its_own_tools() {
    let (directory, served) = served(json!({"responses": [
        {"text": ["Where?"], "calls": [json!({"name": "where", "arguments": {}}), call("quick", "a")]},
        {"text": ["In Rome."]}]}))
    .await;
    let Some(printed) = run_client("agui.mjs", served.addr(), &["page", "c1"]).await else {
        return;
    };
    assert_eq!(printed["errors"], json!([]), "{printed}");
    assert_eq!(
        printed["outcomes"][0],
        json!({"type": "success", "pendingToolCallIds": ["t1a1c0"]})
    );
    assert_eq!(shown(&printed).last().unwrap(), "assistant: In Rome.");
    let first = directory.model.requests()[0].body.to_string();
    assert!(first.contains("Language") && first.contains("Italian"), "{first}");
    let history = served.snapshot("c1").await["history"].to_string();
    assert!(history.contains("Rome"), "{history}");
}

#[tokio::test]
async fn a_thread_is_one_session() {
    let (_directory, served) =
        served(json!({"responses": [{"text": ["One."]}, {"text": ["Two."]}]})).await;
    let Some(printed) = run_client("agui.mjs", served.addr(), &["twice", "c1"]).await else {
        return;
    };
    assert_eq!(printed["errors"], json!([]), "{printed}");
    assert_eq!(
        shown(&printed),
        ["user: first", "assistant: One.", "user: second", "assistant: Two."]
    );
    assert_eq!(served.snapshot("c1").await["history"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn variables_are_the_state_and_a_broken_attempt_is_taken_back() {
    let set = json!({"name": "set_variable", "arguments": {"name": "a/b", "value": 7}});
    let (_directory, served) = served(json!({"responses": [
        {"text": ["Wro", "ng"], "cut_after_chunks": 3},
        {"text": ["Right."], "calls": [set]},
        {"text": ["Done."]}]}))
    .await;
    let answer = served.post("/v1/agui/default", input("c1", "go")).await;
    let seen = events(&answer.body);
    let kinds = kinds(&seen);
    assert_eq!((kinds[0], kinds[1]), ("RUN_STARTED", "STATE_SNAPSHOT"));
    assert_eq!(kinds.last(), Some(&"RUN_FINISHED"));
    let at = kinds.iter().position(|kind| *kind == "MESSAGES_SNAPSHOT").unwrap();
    assert_eq!(seen[at]["messages"].as_array().unwrap().len(), 1, "only the user's: {kinds:?}");
    let delta = seen.iter().find(|event| event["type"] == "STATE_DELTA").unwrap();
    assert_eq!(delta["delta"], json!([{"op": "add", "path": "/a~1b", "value": 7}]));
    assert!(answer.body.contains("id: "), "{}", answer.body);
    let mut next = input("c1", "again");
    next["messages"] = json!([{"id": "m2", "role": "user", "content": "again"}]);
    let seen = events(&served.post("/v1/agui/default", next).await.body);
    assert_eq!(seen[1]["snapshot"], json!({"a/b": 7}));
}

#[tokio::test]
async fn bad_requests_have_clear_errors() {
    let (_directory, served) = served(script()).await;
    let send = async |body: Value| {
        let answer = served.post("/v1/agui/default", body).await;
        (answer.status, answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned())
    };
    let with = |thread: &str, messages: Value, resume: Value| json!({"threadId": thread, "runId": "r1", "messages": messages, "resume": resume});
    let user = |content: Value| json!([{"id": "m1", "role": "user", "content": content}]);
    let pdf = json!([{"type": "document", "source": {"type": "url", "value": "http://a/b"}}]);
    let approve = |id: &str, payload: Value| json!([{"interruptId": id, "status": "resolved", "payload": payload}]);
    let cases = [
        (json!({"runId": "r", "messages": []}), 400, "threadId"),
        (with("c1", json!([]), json!(null)), 400, "the last one must be"),
        (with("c1", user(json!(7)), json!(null)), 400, "messages[0].content"),
        (with("c1", user(pdf), json!(null)), 400, "messages[0].content[0]"),
        (with("c1", json!([]), approve("mine", json!(true))), 400, "interruptId"),
        (with("c1", json!([]), approve("t1a1c0.ab", json!("yes"))), 400, "payload"),
        (with("c1", json!([]), approve("t1a1c0.ab", json!(true))), 422, "no session"),
    ];
    for (body, status, text) in cases {
        let (seen, message) = send(body.clone()).await;
        assert!(seen == status && message.contains(text), "{body}: {seen} {message}");
    }
    assert_eq!(served.get("/v1/sessions/c1").await.status, 404);
    let unknown = served.get("/v1/agui/default/c1/stream").await;
    assert_eq!(unknown.error(), (404, "no_such_session".to_owned()));
    // An interrupt is open.
    let seen = events(&served.post("/v1/agui/default", input("c1", "go")).await.body);
    let id = seen.last().unwrap()["outcome"]["interrupts"][0]["id"].as_str().unwrap().to_owned();
    let (status, message) = send(input("c1", "what now?")).await;
    assert!(status == 400 && message.contains(&id), "{status} {message}");
    let stale = id.replace(id.split('.').nth(1).unwrap(), "ab");
    let (status, message) = send(with("c1", json!([]), approve(&stale, json!(true)))).await;
    assert!(status == 400 && message.contains(&id), "{status} {message}");
    // When the run has ended, an answer to it does not keep a new message away.
    let stop = served.post("/v1/sessions/c1/stop", json!({"mode": "now"})).await;
    assert_eq!(stop.status, 202);
    served.until_snapshot("c1", |snapshot| snapshot["state"] == "idle").await;
    let (status, message) = send(with("c1", json!([]), approve(&id, json!(true)))).await;
    assert!(status == 422 && message.contains("no run"), "{status} {message}");
    let late = with("c1", user(json!("and now?")), approve(&id, json!(true)));
    let seen = events(&served.post("/v1/agui/default", late).await.body);
    assert_eq!(kinds(&seen).last(), Some(&"RUN_FINISHED"));
}

#[tokio::test]
async fn messages_keep_their_ids_in_later_runs_and_joins() {
    let two = json!({"responses": [
        {"text": ["Let me see."], "calls": [call("quick", "a")]}, {"text": ["Done."]},
        {"text": ["Done."]},
        {"text": ["Slowly."], "holds": [{"at": "finish", "name": "finish"}]},
        {"text": ["Slowly."]}]});
    let (directory, served) = served(two).await;
    let ids = |messages: &Value| -> Vec<String> {
        let messages = messages.as_array().unwrap().iter();
        messages.map(|message| message["id"].as_str().unwrap().to_owned()).collect()
    };
    let last_snapshot = |stream: &str| {
        let events = events(stream);
        events.into_iter().rfind(|event| event["type"] == "MESSAGES_SNAPSHOT").unwrap()["messages"]
            .take()
    };
    let only = |id: &str, text: &str| {
        let mut body = input("c1", text);
        body["messages"][0]["id"] = id.into();
        body
    };
    let first = served.post("/v1/agui/default", only("m1", "go")).await;
    let after_first = ["m1", "t1a1", "t1a1c0.result", "t2a1"];
    assert_eq!(ids(&last_snapshot(&first.body)), after_first);
    // This client sends only its last message, and says the same again.
    let second = served.post("/v1/agui/default", only("m2", "go")).await;
    let after_second = ["m1", "t1a1", "t1a1c0.result", "t2a1", "m2", "t3a1"];
    assert_eq!(ids(&last_snapshot(&second.body)), after_second);
    let at_rest = served.get("/v1/agui/default/c1/stream").await;
    assert_eq!(ids(&last_snapshot(&at_rest.body)), after_second);
    // A client that gives each message the same id gets different ones.
    let request = post("/v1/agui/default", "", &only("m1", "and?").to_string());
    let mut third = HttpConnection::open(served.addr(), &request).await;
    within(third.until("Slowly.")).await;
    let join = "GET /v1/agui/default/c1/stream HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut joined = HttpConnection::open(served.addr(), join).await;
    within(joined.until("Slowly.")).await;
    let snapshot = ids(&last_snapshot(&joined.text()));
    assert_eq!(snapshot[..6], after_second);
    assert!(snapshot[6].starts_with("run_") && snapshot.len() == 7, "{snapshot:?}");
    served.crash().await;
    directory.model.open_gate("finish");
    let served = directory.start("", ASKS).await;
    served.until_snapshot("c1", |of| of["state"] == "idle").await;
    let again = served.get("/v1/agui/default/c1/stream").await;
    assert_eq!(ids(&last_snapshot(&again.body))[..7], snapshot);
}

#[tokio::test]
async fn a_repeated_request_has_the_messages_of_its_run_once() {
    let answer = json!({"text": ["Done."], "repeat": true});
    let (_directory, served) = served(json!({"responses": [answer]})).await;
    let mut input = input("c1", "go");
    served.post("/v1/agui/default", input.clone()).await;
    for id in ["m2", "m3"] {
        let message = json!({"id": id, "role": "user", "content": "go"});
        input["messages"].as_array_mut().unwrap().push(message);
        let answer = served.post_keyed("/v1/agui/default", id, &input).await;
        let again = served.post_keyed("/v1/agui/default", id, &input).await;
        let messages = |answer: &str| {
            let finish =
                events(answer).into_iter().rfind(|event| event["type"] == "MESSAGES_SNAPSHOT");
            finish.unwrap()["messages"].take()
        };
        assert_eq!(messages(&answer.body), messages(&again.body));
    }
    assert_eq!(served.snapshot("c1").await["history"].as_array().unwrap().len(), 6);
}

#[tokio::test]
async fn an_unknown_thread_begins_with_what_the_client_has() {
    let (directory, served) = served(json!({"responses": [{"text": ["Hello Ada."]}]})).await;
    let function = json!({"name": "lookup", "arguments": "{}"});
    let mut body = input("c1", "Hi.");
    let earlier = [
        json!({"id": "s", "role": "system", "content": "Be kind."}),
        json!({"id": "u", "role": "user", "content": "I am Ada."}),
        json!({"id": "c", "role": "assistant", "toolCalls": [{"id": "x", "type": "function", "function": function}]}),
        json!({"id": "r", "role": "tool", "toolCallId": "x", "content": "known"}),
        json!({"id": "g", "role": "assistant", "content": "Welcome."}),
    ];
    let last = body["messages"].as_array_mut().unwrap().pop().unwrap();
    body["messages"].as_array_mut().unwrap().extend(earlier.into_iter().chain([last]));
    let answer = served.post("/v1/agui/default", body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let events = events(&answer.body);
    let snapshot = events.iter().rfind(|event| event["type"] == "MESSAGES_SNAPSHOT");
    let messages = &snapshot.unwrap()["messages"];
    let ids: Vec<_> = messages.as_array().unwrap().iter().map(|it| it["id"].clone()).collect();
    assert_eq!([&ids[0], &ids[3]], ["u", "g"], "{messages}");
    assert_eq!(ids.len(), 6, "{messages}");
    let request = directory.model.requests()[0].body["messages"].clone();
    let roles: Vec<_> = request.as_array().unwrap().iter().map(|it| it["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant", "user"]);
    assert!(request[0]["content"].as_str().unwrap().contains("Be kind."), "{request}");

    let call = json!({"id": "x", "type": "function", "function": {"name": "quick", "arguments": "{\"id\":\"a\"}"}});
    let mut body = input("c2", "Hi.");
    let messages = body["messages"].as_array_mut().unwrap();
    messages.insert(0, json!({"id": "c", "role": "assistant", "toolCalls": [call]}));
    let refused = served.post("/v1/agui/default", body).await;
    assert_eq!(refused.status, 400, "a call without a result is not run: {refused:?}");
    assert_eq!(served.get("/v1/sessions/c2").await.status, 404);
    assert_eq!(starts(&directory, "a"), 0);
}
