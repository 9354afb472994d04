//! Steering: an input to a running run reaches the model before the run ends.
#![expect(clippy::expect_used, reason = "a test")]

use crate::client::Service;
use crate::support::tools::{CallControl, registry};
use crate::support::{World, within, world};
use callsheet::record::StopMode;
use callsheet::runtime::{HostError, RunReport, SessionHandle};
use callsheet::types::RunEnd;
use callsheet_mock_provider::{Call, Response, Script, ScriptPosition};
use serde_json::{Value, json};

/// Starts a world whose first response calls a tool that waits until `a` is released.
async fn world_with_waiting_tool(rest: impl IntoIterator<Item = Response>) -> (World, CallControl) {
    let control = CallControl::new();
    let call = Call::new("waits", json!({"id": "a"})).id("call-a");
    let script = Script::new([Response::calls([call])].into_iter().chain(rest));
    let world = world(script, registry(&control), |_| ()).await;
    (world, control)
}

/// Summarises messages: the first letter of the role, then the text or the names of the calls.
fn summary(messages: &[Value]) -> Vec<String> {
    let summaries = messages.iter().filter(|message| message["role"] != "system").map(|message| {
        let role = &message["role"].as_str().expect("a role")[..1];
        let content = message["content"].as_str().unwrap_or_default();
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let calls = calls.map(|call| call["function"]["name"].as_str().expect("a name"));
        let calls: String = calls.map(|name| format!(" {name}()")).collect();
        format!("{role}: {content}{calls}")
    });
    summaries.collect()
}

async fn history(session: &SessionHandle) -> Vec<String> {
    let history = session.snapshot().await.expect("a snapshot").history;
    let messages: Vec<Value> =
        history.iter().map(|m| serde_json::to_value(m).expect("a message")).collect();
    summary(&messages)
}

async fn ended(report: impl Future<Output = Result<RunReport, HostError>>) -> RunReport {
    within(report).await.expect("a report")
}

#[tokio::test]
async fn steered_inputs_follow_the_turns_results_in_order() {
    let (world, control) = world_with_waiting_tool([Response::text("Both.")]).await;
    let run = world.session.start_run("go").await.expect("a run");
    control.until_logged("start a").await;
    let first = world.session.steer("and b").await.expect("room");
    let second = world.session.steer("and c").await.expect("room");
    assert!(run.seq < first && first < second);
    control.release("a");
    let report = ended(run.report).await;
    assert_eq!((report.run_end, report.turns), (RunEnd::Answered, 2));
    // Consecutive inputs are sent as one message and remain two in the history.
    let before = ["u: go", "a:  waits()", "t: done a"];
    assert_eq!(summary(&world.last_messages()), [&before[..], &["u: and b\n\nand c"]].concat());
    let stored = [&before[..], &["u: and b", "u: and c", "a: Both."]].concat();
    assert_eq!(history(&world.session).await, stored);
    assert_eq!(report.run_messages().len(), 6);
    world.assert_paired();
    let page = world.host.telemetry().render();
    assert!(page.contains("\ncallsheet_steers_total 2\n"), "{page}");
}

/// Runs with a first response that pauses in its middle, and steers there.
async fn steered_in_the_middle(first: Response, rest: impl Into<Vec<Response>>) -> World {
    let responses = [first.hold(ScriptPosition::Finish, "middle")].into_iter().chain(rest.into());
    let world = world(Script::new(responses), registry(&CallControl::new()), |config| {
        config.agents.get_mut("default").expect("the agent").limits.max_turns = Some(2);
    })
    .await;
    let run = world.session.start_run("go").await.expect("a run");
    world.model.wait_for_gate("middle").await;
    world.session.steer("more").await.expect("room");
    world.model.open_gate("middle");
    assert_eq!(ended(run.report).await.run_end, RunEnd::Answered);
    world.assert_paired();
    world
}

#[tokio::test]
async fn an_answer_does_not_end_a_run_with_a_pending_steer() {
    let world = steered_in_the_middle(Response::text("One."), [Response::text("Two.")]).await;
    assert_eq!(summary(&world.last_messages()), ["u: go", "a: One.", "u: more"]);
}

#[tokio::test]
async fn after_a_steer_an_empty_answer_is_followed_by_a_turn_with_tools() {
    let rest = [Response::text(""), Response::text("Two.")];
    let world = steered_in_the_middle(Response::text(""), rest).await;
    assert_eq!(summary(&world.last_messages()), ["u: go\n\nmore"]);
    assert_eq!(world.requests().len(), 3);
    assert_ne!(world.requests()[2].body["tool_choice"], "none");
}

#[tokio::test]
async fn after_max_turns_the_steer_precedes_the_final_request() {
    let responses = [
        Response::text("One.").hold(ScriptPosition::Finish, "one"),
        Response::text("Two.").hold(ScriptPosition::Finish, "two"),
    ];
    let world = world(Script::new(responses), registry(&CallControl::new()), |config| {
        config.agents.get_mut("default").expect("the agent").limits.max_turns = Some(1);
    })
    .await;
    let run = world.session.start_run("go").await.expect("a run");
    for (gate, input) in [("one", "more"), ("two", "too late")] {
        world.model.wait_for_gate(gate).await;
        world.session.steer(input).await.expect("room");
        world.model.open_gate(gate);
    }
    let report = ended(run.report).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::MaxTurns, "Two."));
    assert_eq!(summary(&world.last_messages()), ["u: go", "a: One.", "u: more"]);
    assert_eq!(world.requests()[1].body["tool_choice"], "none");
    let all = ["u: go", "a: One.", "u: more", "a: Two.", "u: too late"];
    assert_eq!(history(&world.session).await, all, "no input is lost");
}

#[tokio::test]
async fn a_stop_wins_over_a_steer_and_keeps_its_input() {
    for mode in [StopMode::AfterTurn, StopMode::Now] {
        let (world, control) = world_with_waiting_tool([Response::text("Later.")]).await;
        let run = world.session.start_run("go").await.expect("a run");
        control.until_logged("start a").await;
        world.session.steer("before").await.expect("room");
        world.session.stop(mode).await.expect("a stop");
        if mode == StopMode::AfterTurn {
            world.session.steer("after").await.expect("room");
            control.release("a");
        }
        assert_eq!(ended(run.report).await.run_end, RunEnd::Stopped);
        assert_eq!(world.requests().len(), 1, "no further request is sent");
        let stored = history(&world.session).await;
        assert_eq!(stored[3], "u: before");
        assert_eq!(stored.get(4).is_some(), mode == StopMode::AfterTurn);
        world.run("and now?").await;
        let sent = summary(&world.last_messages());
        let users: Vec<&str> = stored[3..].iter().map(|summaries| &summaries[3..]).collect();
        let last = format!("u: {}\n\nand now?", users.join("\n\n"));
        assert_eq!(sent, [&stored[..3], &[last]].concat());
        world.assert_paired();
    }
}

#[tokio::test]
async fn a_failed_run_keeps_its_steered_input() {
    let broken = Response::status(400).hold(ScriptPosition::Headers, "first");
    let world = world(Script::new([broken]), registry(&CallControl::new()), |_| ()).await;
    let run = world.session.start_run("go").await.expect("a run");
    world.model.wait_for_gate("first").await;
    world.session.steer("more").await.expect("room");
    world.model.open_gate("first");
    assert_eq!(ended(run.report).await.run_end, RunEnd::Failed);
    assert_eq!(history(&world.session).await, ["u: go", "u: more"]);
}

#[tokio::test]
async fn a_steer_needs_a_run_an_input_and_space_in_the_queue() {
    let (world, control) =
        world_with_waiting_tool([Response::text("Ok."), Response::text("Ok.")]).await;
    assert_eq!(world.session.steer("x").await, Err(HostError::NoRun));
    let run = world.session.start_run("go").await.expect("a run");
    control.until_logged("start a").await;
    assert_eq!(world.session.steer(" \n").await, Err(HostError::EmptyInput));
    for n in 0..16 {
        world.session.steer(n.to_string()).await.expect("room");
    }
    assert_eq!(world.session.steer("x").await, Err(HostError::QueueFull(16)));
    control.release("a");
    assert_eq!(ended(run.report).await.run_messages().len(), 3 + 16 + 1);
    assert_eq!(world.session.steer("x").await, Err(HostError::NoRun));
    world.session.close().await.expect("a close");
    let gone = HostError::NoSuchSession(world.session.id().clone());
    assert_eq!(world.session.steer("x").await, Err(gone));
}

#[tokio::test]
async fn steering_works_over_http() {
    let script = json!({"responses": [
        {"text": ["One."], "holds": [{"at": "finish", "name": "middle"}]}, {"text": ["Two."]}
    ]});
    let config = "[host]\nmax_queued_inputs = 1\n";
    let service = Service::start_with(script, config, Default::default()).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let steer = async |body: Value| service.post("/v1/sessions/s/steer", body).await;
    let more = json!({"input": "more"});
    assert_eq!(steer(more.clone()).await.error(), (409, "no_run".to_owned()));
    let mut reading = service.watch("s", "go").await;
    reading.until("One.").await;
    for (body, code) in [
        (json!({"input": ""}), "empty_input"),
        (json!({}), "invalid_request"),
        (json!({"input": "x", "wait": true}), "invalid_request"),
    ] {
        assert_eq!(steer(body.clone()).await.error(), (400, code.to_owned()), "{body}");
    }
    let accepted = steer(more.clone()).await;
    assert_eq!(accepted.status, 202);
    let seq = accepted.json()["seq"].as_u64().expect("a place");
    let full = steer(more.clone()).await;
    assert_eq!(full.error(), (429, "queue_full".to_owned()));
    assert_eq!(full.header("retry-after"), Some("1"));
    service.model.open_gate("middle");
    reading.until("\"run_end\":\"answered\"").await;
    let snapshot = service.get("/v1/sessions/s").await.json();
    let history = snapshot["history"].as_array().expect("a history");
    assert_eq!(summary(history), ["u: go", "a: One.", "u: more", "a: Two."]);
    assert!(seq < snapshot["seq"].as_u64().expect("a place"));
    let unknown = service.post("/v1/sessions/unknown/steer", more).await;
    assert_eq!(unknown.error(), (404, "no_such_session".to_owned()));
}
