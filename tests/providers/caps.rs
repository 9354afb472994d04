//! `max_concurrent` of a tool: the host-wide limit of its calls, over real HTTP.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::num::NonZeroU32;
use std::time::Duration;

use crate::support::tools::{CallControl, registry, registry_with_blocks};
use crate::support::{World, parallel, until_event, within, world};
use callsheet::config::{Config, ToolOverride};
use callsheet::record::StopMode;
use callsheet::runtime::{OpenSession, SessionHandle, StartedRun};
use callsheet::types::{RunEnd, ToolStatus};
use callsheet_mock_provider::{Call, Response, Script, When};
use futures::future::join_all;
use serde_json::json;

const NEVER: &str = "Error: not started: the run was ended before";

fn call(tool: &str, id: &str) -> Call {
    Call::new(tool, json!({"id": id})).id(&format!("call-{id}"))
}

/// Returns a response with these calls to the input `input`.
fn response_to(input: &str, calls: impl IntoIterator<Item = Call>) -> Response {
    let when = When { last_user: Some(input.to_owned()), ..When::default() };
    Response { when, ..Response::calls(calls) }
}

/// Sets `max_concurrent = 1` for these tools.
fn one_at_a_time(config: &mut Config) {
    parallel(64)(config);
    for tool in ["waits", "slow_write", "blocks"] {
        let max_concurrent = NonZeroU32::new(1);
        let change = ToolOverride::default().with(|new| new.max_concurrent = max_concurrent);
        config.tools.insert(tool.into(), change);
    }
    let agent = config.agents.get_mut("default").unwrap();
    agent.limits.cancel_grace = Duration::from_millis(20);
}

async fn capped(responses: impl IntoIterator<Item = Response>) -> (World, CallControl) {
    let control = CallControl::new();
    let script = Script::new(responses).then_done();
    (world(script, registry_with_blocks(&control), one_at_a_time).await, control)
}

async fn another(world: &World) -> SessionHandle {
    world.host.open_session(OpenSession::default()).await.unwrap()
}

/// Starts a run and waits until the call `id` waits for a permit of its tool.
async fn run_until_waiting(session: &SessionHandle, input: &str, id: &str) -> StartedRun {
    let mut run = session.start_run(input).await.unwrap();
    let provider_id = format!("call-{id}");
    until_event(&mut run.events, |event| {
        event["status"] == "waiting"
            && event["waiting_for"] == "capacity"
            && event["provider_id"] == provider_id
    })
    .await;
    run
}

/// Waits until `calls` calls wait for a permit of their tool.
async fn until_waiting(world: &World, calls: usize) {
    within(async {
        while world.host.counts().calls_waiting != calls {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn one_call_runs_at_a_time_and_sessions_take_turns() {
    let one = ["a1", "a2", "a3"].map(|id| call("waits", id));
    let two = ["b1", "b2"].map(|id| call("waits", id));
    let (world, control) = capped([response_to("one", one), response_to("two", two)]).await;
    let first = run_until_waiting(&world.session, "one", "a3").await;
    let other = another(&world).await;
    let second = run_until_waiting(&other, "two", "b2").await;
    assert_eq!(control.log(), ["start a1"]);
    let mut expected = Vec::new();
    // Session one's second call came first; its third is queued behind session two's first.
    for id in ["a1", "a2", "b1", "a3", "b2"] {
        control.until_logged(&format!("start {id}")).await;
        expected.push(format!("start {id}"));
        assert_eq!(control.log(), expected);
        expected.push(format!("end {id}"));
        control.release(id);
    }
    for (run, results) in
        [(first, &["done a1", "done a2", "done a3"][..]), (second, &["done b1", "done b2"])]
    {
        let report = within(run.report).await.unwrap();
        assert_eq!(report.run_end, RunEnd::Answered);
        let found: Vec<_> = report.calls.iter().map(|call| call.result.as_str()).collect();
        assert_eq!(found, results);
    }
    assert_eq!(control.log(), expected);
    let page = world.host.telemetry().render();
    assert!(page.contains("callsheet_tool_queue_wait_seconds_count{tool=\"waits\"} 5\n"), "{page}");
    world.assert_paired();
}

#[tokio::test]
async fn a_stopped_call_leaves_the_queue_without_having_started() {
    let (world, control) = capped([
        response_to("hold", [call("slow_write", "a")]),
        response_to("stop me", [call("slow_write", "b"), call("writes", "c")]),
        response_to("me too", [call("slow_write", "d")]),
    ])
    .await;
    let holding = world.session.start_run("hold").await.unwrap();
    control.until_logged("start a").await;
    let other = another(&world).await;
    let stopped = run_until_waiting(&other, "stop me", "b").await;
    // A call that waits for a permit does not delay calls of other tools.
    control.until_logged("end c").await;
    other.stop(StopMode::Now).await.unwrap();
    let report = within(stopped.report).await.unwrap();
    assert_eq!(report.run_end, RunEnd::Stopped);
    let outcomes: Vec<_> = report.calls.iter().map(|c| (c.status, c.result.as_str())).collect();
    assert_eq!(outcomes, [(ToolStatus::Cancelled, NEVER), (ToolStatus::Ok, "done c")]);
    assert_eq!(world.host.counts().calls_waiting, 0);
    let next = run_until_waiting(&other, "me too", "d").await;
    control.release("a");
    control.until_logged("start d").await;
    control.release("d");
    assert_eq!(within(holding.report).await.unwrap().run_end, RunEnd::Answered);
    assert_eq!(within(next.report).await.unwrap().run_end, RunEnd::Answered);
    assert!(!control.log().contains(&"start b".to_owned()));
    world.assert_paired();
}

#[tokio::test]
async fn the_tool_timeout_does_not_include_the_wait_for_a_permit() {
    let control = CallControl::new();
    let script = Script::new([
        response_to("hold", [call("waits", "a")]),
        // When the second call times out, the first has waited longer than its own timeout.
        response_to("hurry", [call("waits", "b"), call("hangs", "c")]),
    ]);
    let world = world(script.then_done(), registry_with_blocks(&control), |config| {
        one_at_a_time(config);
        let mut hurried = config.agents["default"].clone();
        hurried.limits.tool_timeout = Some(Duration::from_millis(300));
        config.agents.insert("hurried".into(), hurried);
    })
    .await;
    let holding = world.session.start_run("hold").await.unwrap();
    control.until_logged("start a").await;
    let open = OpenSession::default().with(|new| new.agent = Some("hurried".into()));
    let hurried = world.host.open_session(open).await.unwrap();
    let mut run = hurried.start_run("hurry").await.unwrap();
    until_event(&mut run.events, |event| event["status"] == "timeout").await;
    control.release("b");
    control.release("a");
    let report = within(run.report).await.unwrap();
    let outcomes: Vec<_> = report.calls.iter().map(|call| call.status).collect();
    assert_eq!(outcomes, [ToolStatus::Ok, ToolStatus::TimedOut]);
    assert!(report.calls[0].wait_ms >= 300, "wait_ms is missing: {}", report.calls[0].wait_ms);
    within(holding.report).await.unwrap();
}

#[tokio::test]
async fn an_abandoned_thread_keeps_its_permit_until_it_ends() {
    let (world, control) = capped([
        response_to("hold", [call("blocks", "a")]),
        response_to("then", [call("blocks", "b")]),
    ])
    .await;
    let holding = world.session.start_run("hold").await.unwrap();
    control.until_logged("start a").await;
    let other = another(&world).await;
    let waiting = run_until_waiting(&other, "then", "b").await;
    world.session.stop(StopMode::Now).await.unwrap();
    assert_eq!(within(holding.report).await.unwrap().run_end, RunEnd::Stopped);
    within(async {
        while world.host.counts().abandoned_threads != 1 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    // The call has its result and the session may close, while the thread still runs.
    world.session.close().await.unwrap();
    assert_eq!((world.host.counts().calls_waiting, control.log()), (1, vec!["start a".to_owned()]));
    control.release("b");
    control.release("a");
    let report = within(waiting.report).await.unwrap();
    assert_eq!(report.calls[0].status, ToolStatus::Ok);
    assert_eq!(control.log(), ["start a", "end a", "start b", "end b"]);
}

#[tokio::test]
async fn stopped_and_closed_sessions_leave_the_queue() {
    let many = Response { repeat: true, ..response_to("queue", [call("waits", "b")]) };
    let (world, control) = capped([
        response_to("hold", [call("waits", "a")]),
        many,
        response_to("at last", [call("waits", "c")]),
    ])
    .await;
    let holding = world.session.start_run("hold").await.unwrap();
    control.until_logged("start a").await;
    let sessions = join_all((0..100).map(|_| another(&world))).await;
    let runs = join_all(sessions.iter().map(|session| session.start_run("queue"))).await;
    until_waiting(&world, 100).await;
    for (n, session) in sessions.iter().enumerate() {
        if n % 2 == 0 {
            session.stop(StopMode::Now).await.unwrap();
        } else {
            session.close().await.unwrap();
        }
    }
    for run in runs {
        let report = within(run.unwrap().report).await.unwrap();
        assert_eq!(report.calls[0].result, NEVER);
    }
    assert_eq!(world.host.counts().calls_waiting, 0);
    control.release("c");
    control.release("a");
    within(holding.report).await.unwrap();
    let report = within(sessions[0].run("at last")).await.unwrap();
    assert_eq!(report.calls[0].result, "done c");
    assert_eq!(control.log(), ["start a", "end a", "start c", "end c"]);
}

#[tokio::test]
async fn a_tool_that_panics_or_hangs_releases_its_permit() {
    let control = CallControl::new();
    let responses = [
        response_to("panic", [call("panics", "a"), call("panics", "b")]),
        response_to("hang", [call("hangs", "c"), call("hangs", "d")]),
    ];
    let world = world(Script::new(responses).then_done(), registry(&control), |config| {
        parallel(8)(config);
        for tool in ["panics", "hangs"] {
            let max_concurrent = NonZeroU32::new(1);
            let timeout = Some(Duration::from_millis(20));
            let change = ToolOverride::default().with(|new| {
                new.max_concurrent = max_concurrent;
                new.timeout = timeout;
            });
            config.tools.insert(tool.into(), change);
        }
        config.agents.get_mut("default").unwrap().limits.cancel_grace = Duration::from_millis(20);
    })
    .await;
    for (input, status) in [("panic", ToolStatus::Failed), ("hang", ToolStatus::TimedOut)] {
        let report = world.run(input).await;
        let outcomes: Vec<_> = report.calls.iter().map(|call| call.status).collect();
        assert_eq!(outcomes, [status, status], "{input}");
    }
    assert_eq!(control.log(), ["start a", "start b", "start c", "start d"]);
    world.until_idle().await;
}
