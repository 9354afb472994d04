//! A stop in each phase of a run: it takes effect at once, every call gets a true result, nothing is
//! left behind, and the session continues.
#![expect(clippy::expect_used, reason = "a test")]

use std::time::Duration;

use crate::support::tools::{CallControl, registry};
use crate::support::{World, parallel, results, until_event, within, world};
use callsheet::record::StopMode;
use callsheet::runtime::{HostCounts, RunReport};
use callsheet::telemetry::Subscription;
use callsheet::types::{RunEnd, ToolStatus};
use callsheet_mock_provider::{AnswerState, Call, Response, Script, ScriptPosition};
use serde_json::json;

fn call(tool: &str, id: &str) -> Call {
    Call::new(tool, json!({"id": id})).id(&format!("call-{id}"))
}

async fn scripted(first: Response) -> (World, CallControl) {
    let control = CallControl::new();
    let script = Script::new([first, Response::text("Hello again.")]);
    let world = world(script, registry(&control), |config| {
        parallel(8)(config);
        let agent = config.agents.get_mut("default").expect("the agent");
        agent.limits.cancel_grace = Duration::from_millis(20);
    })
    .await;
    (world, control)
}

/// Runs until `phase` is reached, stops, and checks the invariants of every stop.
async fn stopped(world: &World, phase: impl AsyncFnOnce(&mut Subscription)) -> RunReport {
    let mut started = world.session.start_run("go").await.expect("a run");
    within(phase(&mut started.events)).await;
    drop(started.events);
    world.session.stop(StopMode::Now).await.expect("a stop");
    let report = within(started.report).await.expect("a report");
    assert_eq!(report.run_end, RunEnd::Stopped);
    // A second stop changes nothing.
    world.session.stop(StopMode::Now).await.expect("a stop");
    let again = world.run("and now?").await;
    assert_eq!((again.run_end, again.text.as_str()), (RunEnd::Answered, "Hello again."));
    world.assert_paired();
    world.until_idle().await;
    report
}

async fn client_left(world: &World) {
    let ended = within(world.model.wait_until_ended(1)).await.expect("the first request");
    assert_eq!(ended.ended, AnswerState::ClientLeft);
}

#[tokio::test]
async fn stop_before_the_first_byte() {
    let (world, _) =
        scripted(Response::text("Never.").hold(ScriptPosition::Headers, "headers")).await;
    let report = stopped(&world, async |_| world.model.wait_for_gate("headers").await).await;
    assert_eq!(report.text, "");
    client_left(&world).await;
    // The turn has no content, so it is not kept, and both inputs are sent as one message.
    assert_eq!(world.last_messages().len(), 1 + usize::from(has_system(&world)));
}

fn has_system(world: &World) -> bool {
    world.last_messages()[0]["role"] == "system"
}

#[tokio::test]
async fn stop_while_the_answer_streams() {
    let response = Response { text: vec!["So ".into(), "far".into()], ..Response::text("") };
    let (world, _) = scripted(response.hold(ScriptPosition::Finish, "finish")).await;
    let report = stopped(&world, async |events| {
        until_event(events, |event| event["text"] == "far").await;
    })
    .await;
    assert_eq!(report.text, "So far");
    client_left(&world).await;
    let messages = world.last_messages();
    assert!(messages.iter().any(|message| message["content"] == "So far"), "{messages:?}");
}

#[tokio::test]
async fn stop_while_a_call_streams_and_an_earlier_one_runs() {
    let calls = [call("quick", "a"), call("waits", "b"), call("writes", "c")];
    let (world, control) =
        scripted(Response::calls(calls).hold(ScriptPosition::Finish, "finish")).await;
    let report = stopped(&world, async |events| {
        until_event(events, |event| event["tool_name"] == "writes").await;
        control.until_logged("end a").await;
        control.until_logged("start b").await;
    })
    .await;
    let statuses: Vec<_> = report.calls.iter().map(|call| call.status).collect();
    assert_eq!(statuses, [ToolStatus::Ok, ToolStatus::Cancelled, ToolStatus::Cancelled]);
    assert_eq!(
        results(&world.last_messages()),
        [
            ("call-a", "done a"),
            ("call-b", "Error: cancelled while running"),
            ("call-c", "Error: not started: the run was ended before"),
        ]
    );
    assert!(!control.log().contains(&"start c".to_owned()));
    client_left(&world).await;
}

#[tokio::test]
async fn stop_while_tools_with_effects_run() {
    let (world, control) = scripted(Response::calls([call("slow_write", "a")])).await;
    stopped(&world, async |_| control.until_logged("start a").await).await;
    let perhaps = "Error: cancelled while running: it may or may not have happened";
    assert_eq!(results(&world.last_messages()), [("call-a", perhaps)]);
}

#[tokio::test]
async fn a_tool_that_ignores_cancellation_is_killed_after_the_grace_period() {
    let (world, control) = scripted(Response::calls([call("hangs", "a")])).await;
    stopped(&world, async |_| control.until_logged("start a").await).await;
}

#[tokio::test]
async fn stop_during_the_wait_between_attempts() {
    let busy = Response { retry_after: Some("60".into()), ..Response::status(429) };
    let (world, _) = scripted(busy).await;
    stopped(&world, async |events| until_event(events, |event| event["type"] == "attempt").await)
        .await;
    assert_eq!(world.requests().len(), 2);
}

#[tokio::test]
async fn stop_after_turn_still_runs_every_call() {
    let control = CallControl::new();
    let calls = [call("waits", "a"), call("writes", "b")];
    let script = Script::new([Response::calls(calls), Response::text("Hello again.")]);
    let world = world(script, registry(&control), |_| {}).await;
    let started = world.session.start_run("go").await.expect("a run");
    control.until_logged("start a").await;
    world.session.stop(StopMode::AfterTurn).await.expect("a stop");
    control.release("a");
    let report = within(started.report).await.expect("a report");
    assert_eq!(report.run_end, RunEnd::Stopped);
    assert_eq!(control.log(), ["start a", "end a", "start b", "end b"]);
    assert_eq!(world.requests().len(), 1, "no further request was made");
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
    world.assert_paired();
}

#[tokio::test]
async fn the_run_timeout_acts_like_a_stop() {
    let control = CallControl::new();
    let script = Script::new([Response::calls([call("waits", "a")]), Response::text("Hello.")]);
    let world = world(script, registry(&control), |config| {
        let agent = config.agents.get_mut("default").expect("the agent");
        agent.limits.run_timeout = Some(Duration::from_millis(100));
    })
    .await;
    let report = world.run("go").await;
    assert_eq!(report.run_end, RunEnd::TimedOut);
    assert_eq!(report.calls[0].status, ToolStatus::Cancelled);
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
    world.assert_paired();
}

#[tokio::test]
async fn a_shutdown_cancels_running_calls_and_interrupts_the_run() {
    let control = CallControl::new();
    let script = Script::new([Response::calls([call("waits", "a")])]);
    let world = world(script, registry(&control), |config| {
        config.host.shutdown_grace = Duration::from_millis(50);
        let agent = config.agents.get_mut("default").expect("the agent");
        agent.limits.cancel_grace = Duration::from_millis(20);
    })
    .await;
    let started = world.session.start_run("go").await.expect("a run");
    control.until_logged("start a").await;
    within(world.host.shutdown()).await;
    let report = within(started.report).await.expect("a report");
    assert_eq!(report.run_end, RunEnd::Interrupted);
    assert_eq!(report.calls[0].status, ToolStatus::Cancelled);
    assert!(world.session.start_run("more").await.is_err());
    let mut idle = HostCounts::default();
    idle.sessions = 1;
    assert_eq!(world.host.counts(), idle);
}
