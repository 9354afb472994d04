//! What a run leaves on the metrics page.
#![expect(clippy::expect_used, reason = "a test")]

mod support;

use callsheet::rehearsal::{Call, Response, Script};
use serde_json::json;
use support::tools::{Stage, registry};
use support::{parallel, world};

fn value(page: &str, series: &str) -> f64 {
    let line = page
        .lines()
        .find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("{series} is not on the page:\n{page}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[tokio::test]
async fn a_run_of_two_turns_is_counted() {
    let stage = Stage::new();
    let calls = ["a", "b"].map(|id| Call::new("quick", json!({"id": id})));
    let script = Script::of([Response::calls(calls), Response::text("Done.")]);
    let world = world(script, registry(&stage), parallel(4)).await;
    world.run("go").await;
    let page = world.host.telemetry().render();
    for (series, expected) in [
        // One turn with two calls, and one with none.
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
