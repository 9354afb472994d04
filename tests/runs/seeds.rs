//! Sessions that are opened with messages of an earlier conversation.
#![expect(clippy::expect_used, reason = "a test")]

use crate::client::Service;
use crate::support::tools::{CallControl, registry};
use crate::support::{World, events, kinds, results, until_event, within, world};
use callsheet::config::Config;
use callsheet::record::StopMode;
use callsheet::runtime::{HostError, OpenSession, SessionHandle};
use callsheet::types::{RunEnd, ToolStatus};
use callsheet_mock_provider::{Call, Response, Script};
use serde_json::{Value, json};

fn user(content: &str) -> Value {
    json!({"role": "user", "content": content})
}

fn call(id: &str, name: &str, arguments: Value) -> Value {
    let function = json!({"name": name, "arguments": arguments.to_string()});
    json!({"id": id, "type": "function", "function": function})
}

fn assistant<const N: usize>(calls: [Value; N]) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": calls.to_vec()})
}

fn answer(id: &str, content: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": content})
}

/// Starts a world and opens a session with messages.
async fn seeded(
    messages: Vec<Value>,
    script: Script,
    change: impl FnOnce(&mut Config),
) -> (World, SessionHandle, CallControl) {
    let control = CallControl::new();
    let world = world(script, registry(&control), change).await;
    let open = OpenSession::default().with(|new| new.messages = messages);
    let session = world.host.open_session(open).await.expect("a session");
    (world, session, control)
}

async fn history(session: &SessionHandle) -> Vec<Value> {
    let history = session.snapshot().await.expect("a snapshot").history;
    history.iter().map(|message| serde_json::to_value(message).expect("a message")).collect()
}

/// Returns the messages of a request, without the system prompt.
fn sent(world: &World, request: usize) -> Vec<Value> {
    let messages = world.requests()[request].body["messages"].as_array().expect("a list").clone();
    messages.into_iter().filter(|message| message["role"] != "system").collect()
}

#[tokio::test]
async fn opening_messages_precede_the_first_input() {
    let before = vec![
        user("time?"),
        assistant([call("a", "quick", json!({"id": "x"}))]),
        answer("a", "noon"),
        json!({"role": "assistant", "content": "Noon."}),
    ];
    let script = Script::new([Response::text("One.")]);
    let (world, session, control) = seeded(before.clone(), script, |_| ()).await;
    assert_eq!(history(&session).await, before);
    let report = within(session.run("and now?")).await.expect("a report");
    assert_eq!((report.turns, report.run_messages().len(), report.calls.len()), (1, 2, 0));
    assert_eq!(sent(&world, 0), [&before[..], &[user("and now?")]].concat());
    assert_eq!(control.log(), Vec::<String>::new(), "what is answered is not run");
    world.assert_paired();
}

#[tokio::test]
async fn the_history_of_one_session_can_open_another() {
    let control = CallControl::new();
    let calls = ["quick", "fails"].map(|name| Call::new(name, json!({"id": "x"})));
    let script = Script::new([Response::calls(calls), Response::text("One.")]);
    let world = world(script.then_done(), registry(&control), |_| ()).await;
    world.run("go").await;
    let messages = history(&world.session).await;
    assert_eq!(messages[3]["metadata"]["kind"], "tool_error");
    let open = OpenSession::default().with(|new| new.messages = messages.clone());
    let other = world.host.open_session(open).await.expect("a session");
    assert_eq!(history(&other).await, messages);
    within(other.run("again")).await.expect("a report");
    assert_eq!(history(&other).await[..5], messages);
    world.assert_paired();
}

#[tokio::test]
async fn calls_at_the_end_of_the_messages_run_before_the_first_request() {
    let open = assistant([
        call("a", "waits", json!({"id": "a"})),
        call("b", "waits", json!({"id": "a"})),
        call("c", "writes", json!({"id": "c"})),
        call("d", "nope", json!({})),
        call("e", "quick", json!({"wrong": 1})),
    ]);
    let before = vec![user("do it"), open.clone()];
    let script = Script::new([Response::text("One.")]);
    let (world, session, control) = seeded(before.clone(), script, |config| {
        config.agents.get_mut("default").expect("the agent").limits.max_turns = Some(1);
    })
    .await;
    assert_eq!(history(&session).await, before, "calls without results are shown");
    let run = session.start_run("and then?").await.expect("a run");
    control.until_logged("start a").await;
    assert_eq!(world.requests().len(), 0, "no request was sent");
    session.steer("soon?").await.expect("room");
    control.release("a");
    let report = within(run.report).await.expect("a report");
    // The turn of these calls does not count in `max_turns`, which is 1.
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "One."));
    assert_eq!((report.turns, report.calls.len()), (1, 5));
    let ids: Vec<_> = report.calls.iter().map(|call| call.tool_id.as_str()).collect();
    assert_eq!(ids, ["t1a1c0", "t1a1c1", "t1a1c2", "t1a1c3", "t1a1c4"]);
    let statuses: Vec<_> = report.calls.iter().map(|call| call.status).collect();
    let (ok, failed) = (ToolStatus::Ok, ToolStatus::Failed);
    assert_eq!(statuses, [ok, ok, ok, failed, failed]);
    assert_eq!(report.calls[1].metadata["duplicate_of"], "t1a1c0");
    assert_eq!(control.log(), ["start a", "end a", "start c", "end c"]);
    let sent = sent(&world, 0);
    assert_eq!(sent[..2], before);
    let results_sent = results(&sent);
    assert_eq!(
        results_sent.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        ["a", "b", "c", "d", "e"]
    );
    assert_eq!(
        (results_sent[0].1, results_sent[1].1, results_sent[2].1),
        ("done a", "done a", "done c")
    );
    assert!(results_sent[3].1.contains("there is no tool \"nope\""), "{results_sent:?}");
    assert!(results_sent[4].1.contains("invalid arguments"), "{results_sent:?}");
    assert_eq!(sent[7..], [user("and then?\n\nsoon?")], "consecutive inputs are sent as one");
    assert_eq!(history(&session).await.len(), 10);
    let seen = kinds(&events(run.events).await).join(" ");
    assert!(seen.starts_with("stream_start tool_use"), "{seen}");
    let end = "tool_result turn_end response_end turn_end session_stats stream_end";
    assert!(seen.ends_with(end), "{seen}");
    world.assert_paired();
}

#[tokio::test]
async fn a_stop_cancels_calls_of_the_messages_and_keeps_the_input() {
    let open = assistant([
        call("a", "waits", json!({"id": "a"})),
        call("b", "writes", json!({"id": "b"})),
    ]);
    let script = Script::new([Response::text("One.")]);
    let (world, session, control) = seeded(vec![open], script, |_| ()).await;
    let mut run = session.start_run("go").await.expect("a run");
    until_event(&mut run.events, |event| event["status"] == "running").await;
    control.until_logged("start a").await;
    session.stop(StopMode::Now).await.expect("a stop");
    let report = within(run.report).await.expect("a report");
    assert_eq!((report.run_end, report.turns), (RunEnd::Stopped, 0));
    assert_eq!(world.requests().len(), 0);
    within(session.run("and now?")).await.expect("a report");
    let sent = sent(&world, 0);
    let results_sent = results(&sent);
    assert_eq!(results_sent[0], ("a", "Error: cancelled while running"));
    assert_eq!(results_sent[1], ("b", "Error: not started: the run was ended before"));
    assert_eq!(sent[3..], [user("go\n\nand now?")], "consecutive inputs are sent as one");
    assert_eq!(control.log(), ["start a"], "they are not run again");
    world.assert_paired();
}

#[tokio::test]
async fn excess_calls_of_the_messages_are_refused_and_reported() {
    let calls = [call("a", "quick", json!({"id": "a"})), call("b", "quick", json!({"id": "b"}))];
    let script = Script::new([Response::text("One.")]);
    let (world, session, control) = seeded(vec![assistant(calls)], script, |config| {
        let agent = config.agents.get_mut("default").expect("the agent");
        agent.limits.max_tool_calls_per_turn = Some(1);
    })
    .await;
    let run = session.start_run("go").await.expect("a run");
    let report = within(run.report).await.expect("a report");
    assert_eq!((report.calls[1].status, report.run_end), (ToolStatus::Refused, RunEnd::Answered));
    let seen = events(run.events).await;
    let limit = seen.iter().find(|event| event["type"] == "limit_reached").expect("the event");
    assert_eq!(
        (&limit["limit"], &limit["action"]),
        (&json!("max_tool_calls_per_turn"), &json!("answered"))
    );
    assert_eq!(control.log(), ["start a", "end a"]);
    world.assert_paired();
}

#[tokio::test]
async fn generated_ids_do_not_collide_with_ids_of_the_messages() {
    let before =
        vec![assistant([call("call_1_0", "quick", json!({"id": "x"}))]), answer("call_1_0", "x")];
    let nameless = Call { no_id: true, ..Call::new("quick", json!({"id": "y"})) };
    let script = Script::new([Response::calls([nameless]), Response::text("One.")]);
    let (world, session, _) = seeded(before, script, |_| ()).await;
    within(session.run("go")).await.expect("a report");
    // There was one turn with calls, and the messages use the id that would come next.
    let sent = sent(&world, 1);
    let results_sent = results(&sent);
    assert_eq!(results_sent, [("call_1_0", "x"), ("call_2_0", "done y")]);
    world.assert_paired();
}

#[tokio::test]
async fn invalid_messages_open_no_session() {
    let control = CallControl::new();
    let world = world(Script::default(), registry(&control), |_| ()).await;
    let open = |messages| {
        OpenSession::default().with(|new| {
            new.id = Some("s".into());
            new.messages = messages;
        })
    };
    let refused = world.host.open_session(open(vec![answer("a", "x")])).await.expect_err("refuse");
    assert!(matches!(refused, HostError::InvalidMessages(_)));
    assert_eq!(
        refused.to_string(),
        "messages[0]: tool_call_id \"a\" must be the id of a call in the last assistant message and \
         follow it without a user message between"
    );
    world.host.open_session(open(vec![user("hi")])).await.expect("the id is free");
}

#[tokio::test]
async fn opening_messages_work_over_http() {
    let script = json!({"responses": [{"text": ["It is 42."]}]});
    let service = Service::start(script).await;
    let open = assistant([call("a", "calculator", json!({"expression": "6 * 7"}))]);
    let opened =
        service.post("/v1/sessions", json!({"id": "s", "messages": [user("6 * 7?"), open]})).await;
    assert_eq!((opened.status, opened.json()["state"].clone()), (201, json!("idle")));
    let snapshot = service.get("/v1/sessions/s").await.json();
    assert_eq!(snapshot["history"], json!([user("6 * 7?"), open]));
    let run = json!({"input": "Well?", "wait": true});
    let report = service.post("/v1/sessions/s/runs", run).await.json();
    assert_eq!(report["text"], "It is 42.");
    assert_eq!(report["calls"][0]["result"], "42");
    let roles: Vec<&Value> =
        report["messages"].as_array().expect("a list").iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["assistant", "tool", "user", "assistant"]);
    for (messages, code, part) in [
        (
            json!([user("a"), {"role": "system", "content": "x"}]),
            "invalid_messages",
            "messages[1].role",
        ),
        (
            json!([
                assistant([call("a", "clock", json!({})), call("b", "clock", json!({}))]),
                answer("a", "")
            ]),
            "invalid_messages",
            "messages[0]: call \\\"b\\\" must have a result",
        ),
        (json!(["hi"]), "invalid_messages", "messages[0]: must be an object"),
        (json!({"role": "user"}), "invalid_request", "must be a list, not "),
        (json!("hi"), "invalid_request", "must be a list, not "),
    ] {
        let answer = service.post("/v1/sessions", json!({"messages": messages})).await;
        assert_eq!(answer.error(), (400, code.to_owned()), "{messages}");
        assert!(answer.body.contains(part), "{answer:?}");
    }
    assert_eq!(service.post("/v1/sessions", json!({"messages": []})).await.status, 201);
}
