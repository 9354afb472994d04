//! Blocking tools run on threads of their own, over real HTTP.

use crate::support::tools::{CallControl, registry_with_blocks};
use crate::support::{parallel, within, world};
use callsheet::runtime::OpenSession;
use callsheet::types::RunEnd;
use callsheet_mock_provider::{Call, Response, Script, When};
use serde_json::json;

fn call(tool: &str, id: &str) -> Call {
    Call::new(tool, json!({"id": id}))
}

/// Returns a response with these calls to the input `input`.
fn response_to(input: &str, calls: Vec<Call>) -> Response {
    let when = When { last_user: Some(input.to_owned()), ..When::default() };
    Response { when, ..Response::calls(calls) }
}

#[tokio::test]
async fn blocked_threads_do_not_delay_other_tools() {
    let control = CallControl::new();
    let blocking = |n: usize| {
        let calls = (0..40).map(move |i| call("blocks", &format!("{n}-{i}")));
        response_to(&format!("block {n}"), calls.collect())
    };
    let script =
        Script::new([blocking(0), blocking(1), response_to("go", vec![call("quick", "q")])]);
    let world = world(script.then_done(), registry_with_blocks(&control), parallel(64)).await;
    let open = async || world.host.open_session(OpenSession::default()).await.unwrap();
    let other = open().await;
    let first = world.session.start_run("block 0").await.unwrap();
    let second = other.start_run("block 1").await.unwrap();
    // The other calls wait for a free thread.
    control.lines(64).await;
    let report = within(open().await.run("go")).await.unwrap();
    assert_eq!((report.run_end, report.calls[0].result.as_str()), (RunEnd::Answered, "done q"));
    let log = control.log();
    assert_eq!(log.iter().filter(|line| line.starts_with("start")).count(), 65);
    assert_eq!(log.iter().filter(|line| line.starts_with("end")).count(), 1, "{log:?}");
    for n in 0..2 {
        (0..40).for_each(|i| control.release(&format!("{n}-{i}")));
    }
    for (n, run) in [first.report, second.report].into_iter().enumerate() {
        let report = within(run).await.unwrap();
        let expected: Vec<_> = (0..40).map(|i| format!("done {n}-{i}")).collect();
        assert_eq!(report.calls.iter().map(|c| c.result.clone()).collect::<Vec<_>>(), expected);
    }
}
