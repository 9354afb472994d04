//! Sequential and parallel execution and early start of calls, over real HTTP.
#![expect(clippy::disallowed_methods, reason = "the test watches events while the run continues")]

use crate::support::tools::{CallControl, registry};
use crate::support::{events, kinds, parallel, results, within, world};
use callsheet::types::{RunEnd, ToolStatus};
use callsheet_mock_provider::{Call, Response, Script, ScriptPosition};
use serde_json::json;

fn call(tool: &str, id: &str) -> Call {
    Call::new(tool, json!({"id": id})).id(&format!("call-{id}"))
}

#[tokio::test]
async fn sequential_calls_end_before_the_next_starts() {
    let control = CallControl::new();
    let calls = [call("quick", "a"), call("writes", "b"), call("quick", "c")];
    let script = Script::new([Response::calls(calls), Response::text("All done.")]);
    let world = world(script, registry(&control), |_| {}).await;
    let report = world.run("go").await;
    assert_eq!(control.log(), ["start a", "end a", "start b", "end b", "start c", "end c"]);
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "All done."));
    assert_eq!(
        results(&world.last_messages()),
        [("call-a", "done a"), ("call-b", "done b"), ("call-c", "done c")]
    );
    world.assert_paired();
}

#[tokio::test]
async fn parallel_results_keep_call_order() {
    let control = CallControl::new();
    let calls = ["a", "b", "c", "d"].map(|id| call("waits", id));
    let script = Script::new([Response::calls(calls), Response::text("All done.")]);
    let world = world(script, registry(&control), parallel(8)).await;
    let started = world.session.start_run("go").await.unwrap();
    let watcher = tokio::task::spawn(events(started.events));
    for id in ["a", "b", "c", "d"] {
        control.until_logged(&format!("start {id}")).await;
    }
    for id in ["d", "c", "b", "a"] {
        control.release(id);
        control.until_logged(&format!("end {id}")).await;
    }
    let report = within(started.report).await.unwrap();
    let order: Vec<_> = report.calls.iter().map(|call| call.result.as_str()).collect();
    assert_eq!(order, ["done a", "done b", "done c", "done d"]);
    assert_eq!(
        results(&world.last_messages()),
        [("call-a", "done a"), ("call-b", "done b"), ("call-c", "done c"), ("call-d", "done d")]
    );
    let events = watcher.await.unwrap();
    let live: Vec<_> = events
        .iter()
        .filter(|event| event["type"] == "tool_result")
        .map(|event| event["provider_id"].as_str().unwrap())
        .collect();
    assert_eq!(
        live,
        ["call-d", "call-c", "call-b", "call-a"],
        "live events have the order of finishing"
    );
    world.assert_paired();
}

#[tokio::test]
async fn parallel_execution_runs_at_most_max_calls() {
    let control = CallControl::new();
    let calls = ["a", "b", "c"].map(|id| call("waits", id));
    let script = Script::new([Response::calls(calls), Response::text("All done.")]);
    let world = world(script, registry(&control), parallel(2)).await;
    let started = world.session.start_run("go").await.unwrap();
    control.until_logged("start a").await;
    control.until_logged("start b").await;
    assert!(!control.log().contains(&"start c".to_owned()));
    control.release("b");
    control.until_logged("start c").await;
    control.release("a");
    control.release("c");
    assert_eq!(within(started.report).await.unwrap().run_end, RunEnd::Answered);
}

#[tokio::test]
async fn a_pure_call_runs_while_the_response_streams() {
    let control = CallControl::new();
    let calls = [call("quick", "a"), call("writes", "b"), call("quick", "c")];
    let response = Response::calls(calls).hold(ScriptPosition::Finish, "finish");
    let script = Script::new([response, Response::text("All done.")]);
    let world = world(script, registry(&control), parallel(8)).await;
    let started = world.session.start_run("go").await.unwrap();
    let watcher = tokio::task::spawn(events(started.events));
    within(world.model.wait_for_gate("finish")).await;
    control.until_logged("end a").await;
    // The call with effects waits for the finish; the read after it waits for that call's ticket.
    assert_eq!(control.log(), ["start a", "end a"]);
    world.model.open_gate("finish");
    let report = within(started.report).await.unwrap();
    assert!(report.calls.iter().all(|call| call.status == ToolStatus::Ok));
    let events = watcher.await.unwrap();
    let early: Vec<_> = events
        .iter()
        .filter(|event| event["type"] == "tool_use" && event["status"] == "running")
        .map(|event| (event["tool_name"].as_str().unwrap(), event["early"].as_bool().unwrap()))
        .collect();
    assert!(early.contains(&("quick", true)) && early.contains(&("writes", false)), "{early:?}");
}

#[tokio::test]
async fn without_early_start_calls_wait_for_the_finish() {
    let control = CallControl::new();
    let calls = [call("quick", "a"), call("quick", "b")];
    let response = Response::calls(calls).hold(ScriptPosition::Finish, "finish");
    let script = Script::new([response, Response::text("All done.")]);
    let world = world(script, registry(&control), |config| {
        config.agents.get_mut("default").unwrap().early_start = false;
    })
    .await;
    let started = world.session.start_run("go").await.unwrap();
    within(world.model.wait_for_gate("finish")).await;
    assert_eq!(control.log(), [""; 0]);
    world.model.open_gate("finish");
    within(started.report).await.unwrap();
    assert_eq!(control.log().len(), 4);
}

#[tokio::test]
async fn identical_calls_run_once_and_share_the_result() {
    let control = CallControl::new();
    let calls = [call("writes", "a"), Call::new("writes", json!({"id": "a"})).id("again")];
    let script = Script::new([Response::calls(calls), Response::text("All done.")]);
    let world = world(script, registry(&control), parallel(8)).await;
    let report = world.run("go").await;
    assert_eq!(control.log(), ["start a", "end a"]);
    assert_eq!(results(&world.last_messages()), [("call-a", "done a"), ("again", "done a")]);
    assert_eq!(report.calls[1].metadata, json!({"duplicate_of": "t1a1c0"}));
    world.assert_paired();
}

#[tokio::test]
async fn the_events_of_a_run_are_complete_and_ordered() {
    let control = CallControl::new();
    let first = Response {
        text: vec!["Let me ".into(), "look.".into()],
        ..Response::calls([call("quick", "a")])
    };
    let script = Script::new([first, Response::text("It is a.")]);
    let world = world(script, registry(&control), |_| {}).await;
    let started = world.session.start_run("go").await.unwrap();
    let events = events(started.events).await;
    assert_eq!(
        kinds(&events),
        [
            "stream_start",
            "tool_use",
            "response_end",
            "tool_use",
            "tool_use",
            "tool_result",
            "turn_end",
            "response_end",
            "turn_end",
            "session_stats",
            "stream_end"
        ]
    );
    let text: String = events
        .iter()
        .filter(|event| event["type"] == "content_delta")
        .map(|event| event["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, "Let me look.It is a.");
    let statuses: Vec<_> = events
        .iter()
        .filter(|event| event["type"] == "tool_use")
        .map(|event| event["status"].as_str().unwrap())
        .collect();
    assert_eq!(statuses, ["detected", "running", "finished"]);
    let end = events.last().unwrap();
    assert_eq!((&end["run_end"], &end["text"]), (&json!("answered"), &json!("It is a.")));
}
