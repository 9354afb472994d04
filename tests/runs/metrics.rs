//! The metrics of a run and of the host.
#![expect(clippy::expect_used, reason = "a test")]

use crate::support::tools::{CallControl, registry};
use crate::support::{parallel, within, world};
use callsheet::model::ModelReply;
use callsheet::prelude::*;
use callsheet::runtime::HostCounts;
use callsheet::testing::FakeModel;
use callsheet_mock_provider::{Call, Response, Script};
use serde_json::json;
use std::time::Duration;

fn value(page: &str, series: &str) -> f64 {
    let line = page
        .lines()
        .find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("{series} is not on the page:\n{page}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[tokio::test]
async fn a_run_of_two_turns_is_counted() {
    let control = CallControl::new();
    let calls = ["a", "b"].map(|id| Call::new("quick", json!({"id": id})));
    let script = Script::new([Response::calls(calls), Response::text("Done.")]);
    let world = world(script, registry(&control), parallel(4)).await;
    world.run("go").await;
    let page = world.host.telemetry().render();
    for (series, expected) in [
        // One turn with two calls and one turn without calls.
        ("tool_calls_per_turn_count", 2.0),
        ("tool_calls_per_turn_sum", 2.0),
        ("multi_tool_call_turns_total", 1.0),
        ("streaming_tool_calls_opened_total", 2.0),
        ("streaming_tool_calls_detected_total", 2.0),
        ("tool_execution_time_max_seconds_count", 1.0),
        ("streaming_rollbacks_total", 0.0),
        ("callsheet_history_repairs_total", 0.0),
        ("callsheet_runs_total{run_end=\"answered\"}", 1.0),
    ] {
        assert_eq!(value(&page, series), expected, "{series}");
    }
    assert!(page.contains("gen_ai_client_operation_duration_seconds_bucket"));
    assert!(page.contains("gen_ai_execute_tool_duration_seconds_bucket"));
}

#[tokio::test]
async fn the_host_reports_its_limits_version_and_load() {
    let script = Script::new([Response::text("Done.")]);
    let world = world(script, registry(&CallControl::new()), |config| {
        config.host.max_sessions = 70;
        config.host.max_concurrent_runs = 7;
    })
    .await;
    // A subscriber that reads nothing.
    let _slow = world.session.start_run("go").await.expect("a run").events;
    world.until_idle().await;
    let page = || {
        world.host.update_metrics();
        world.host.telemetry().render()
    };
    let version = concat!("callsheet_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}");
    let metrics_page = page();
    for (series, expected) in
        [("callsheet_sessions_max", 70.0), ("callsheet_runs_max", 7.0), (version, 1.0)]
    {
        assert_eq!(value(&metrics_page, series), expected, "{series}");
    }
    for series in
        ["callsheet_watcher_queue_events", "callsheet_tasks", "process_resident_memory_bytes"]
    {
        assert!(value(&metrics_page, series) > 0.0, "{series}");
    }
    // The host measures the runtime at intervals.
    within(async {
        while value(&page(), "callsheet_event_loop_lag_seconds_count") == 0.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_actors_of_a_run_end_when_their_session_has_been_idle() {
    let model = FakeModel::replies([ModelReply::text("Done.")]);
    let host = Host::builder().model_source("fake", model).start().await.unwrap();
    let session = host.open_session("s").await.unwrap();
    session.run("go").await.unwrap();
    assert!((1..=3).contains(&host.counts().actors), "{:?}", host.counts());
    tokio::time::sleep(Duration::from_secs(15)).await;
    let mut idle = HostCounts::default();
    (idle.sessions, idle.awake) = (1, 1);
    assert_eq!(host.counts(), idle);
    host.shutdown().await;
}
