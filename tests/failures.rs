//! Failures of calls and attempts stay contained, over real HTTP.
#![expect(clippy::expect_used, reason = "a test")]

mod support;

use std::time::Duration;

use callsheet::config::Config;
use callsheet::record::StopMode;
use callsheet::rehearsal::{Call, Finish, Response, Script, ScriptPosition};
use callsheet::tool::ToolRegistry;
use callsheet::types::{RunEnd, ToolStatus};
use serde_json::{Value, json};
use support::tools::{CallControl, registry};
use support::{World, events, parallel, results, until_event, within, world};

fn call(tool: &str, id: &str) -> Call {
    Call::new(tool, json!({"id": id})).id(&format!("call-{id}"))
}

fn model(config: &mut Config) -> &mut callsheet::config::ModelConfig {
    config.models.get_mut("rehearsal").expect("the offline model")
}

fn limits(config: &mut Config) -> &mut callsheet::config::Limits {
    &mut config.agents.get_mut("default").expect("the agent").limits
}

async fn scripted(responses: impl IntoIterator<Item = Response>) -> (World, CallControl) {
    let control = CallControl::new();
    let world = world(Script::new(responses), registry(&control), parallel(8)).await;
    (world, control)
}

#[tokio::test]
async fn a_panic_an_error_and_a_hang_end_only_their_own_calls() {
    let control = CallControl::new();
    let calls = [
        call("panics", "a"),
        call("fails", "b"),
        call("hangs", "c"),
        call("nobody", "d"),
        Call::new("quick", json!({"id": 7})).id("call-e"),
        Call::raw("quick", "{\"id\": \"f").id("call-f"),
        call("quick", "g"),
    ];
    let script = Script::new([Response::calls(calls), Response::text("Well.")]);
    let world = world(script, registry(&control), |config| {
        parallel(8)(config);
        limits(config).tool_timeout = Some(Duration::from_millis(400));
        limits(config).cancel_grace = Duration::from_millis(10);
    })
    .await;
    let report = world.run("go").await;
    let seen: Vec<_> = report
        .calls
        .iter()
        .map(|call| (call.status, call.metadata["kind"].as_str().unwrap_or("-")))
        .collect();
    assert_eq!(
        seen,
        [
            (ToolStatus::Failed, "panic"),
            (ToolStatus::Failed, "tool_error"),
            (ToolStatus::TimedOut, "timeout"),
            (ToolStatus::Failed, "unknown_tool"),
            (ToolStatus::Failed, "invalid_arguments"),
            (ToolStatus::Failed, "cut_off_arguments"),
            (ToolStatus::Ok, "-"),
        ]
    );
    assert_eq!(report.calls[1].result, "Error: it does not work");
    assert_eq!(report.calls[2].result, "Error: Execution timeout after 400ms");
    assert_eq!(report.run_end, RunEnd::Answered);
    let messages = world.last_messages();
    let ids: Vec<_> = results(&messages).iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, ["call-a", "call-b", "call-c", "call-d", "call-e", "call-f", "call-g"]);
    let sent = messages.iter().find(|message| message["role"] == "assistant");
    let arguments = &sent.expect("the calls")["tool_calls"][5]["function"]["arguments"];
    assert_eq!(arguments, "{}", "cut-off arguments are sent as an empty object");
    world.assert_paired();
}

/// Runs against a faulty first response and returns the reasons of the attempts.
async fn recovers_from(fault: Response) -> Vec<String> {
    let control = CallControl::new();
    let script = Script::new([fault, Response::text("Now it works.")]);
    let world = world(script, registry(&control), |config| {
        model(config).first_event_timeout = Duration::from_millis(300);
        model(config).answer_timeout = Duration::from_millis(300);
        model(config).idle_timeout = Duration::from_millis(300);
    })
    .await;
    let started = world.session.start_run("go").await.expect("a run");
    let events = events(started.events).await;
    let report = within(started.report).await.expect("a report");
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Now it works."));
    assert_eq!(world.requests().len(), 2);
    world.assert_paired();
    let attempts = events.iter().filter(|event| event["type"] == "attempt");
    attempts.map(|event| event["reason"].as_str().expect("a reason").to_owned()).collect()
}

fn text() -> Response {
    Response::text("This is an answer that will not come whole.")
}

#[tokio::test]
async fn a_cut_stream_is_retried() {
    let cut = recovers_from(Response { cut_after_chunks: Some(3), ..text() }).await;
    assert_eq!(cut.len(), 1);
    recovers_from(Response { cut_after_bytes: Some(50), ..text() }).await;
}

#[tokio::test]
async fn a_stream_without_a_finish_is_retried() {
    let reasons = recovers_from(Response { truncate: true, ..text() }).await;
    assert_eq!(reasons, ["the response ended without a finish reason"]);
}

#[tokio::test]
async fn a_stalled_stream_is_retried_despite_keep_alives() {
    let stalled = Response { stall_after_chunks: Some(2), ..text() };
    recovers_from(stalled.clone()).await;
    recovers_from(Response { keep_alive_ms: Some(20), ..stalled }).await;
    recovers_from(Response { stall_after_chunks: Some(0), ..text() }).await;
}

#[tokio::test]
async fn malformed_chunks_and_streamed_errors_are_retried() {
    recovers_from(Response { malformed_at_chunk: Some(2), ..text() }).await;
    recovers_from(Response { finish_reason: Finish::Word("error".into()), ..text() }).await;
}

#[tokio::test]
async fn server_errors_and_rate_limits_are_retried() {
    recovers_from(Response::status(500)).await;
    recovers_from(Response::status(503)).await;
    let limited = Response { retry_after: Some("1".into()), ..Response::status(429) };
    let started = std::time::SystemTime::now();
    recovers_from(limited).await;
    assert!(started.elapsed().expect("time goes on") >= Duration::from_secs(1), "it was waited");
}

/// Returns an error response with the header `x-should-retry`.
fn should_retry(word: &str, status: u16) -> Response {
    let headers = [("x-should-retry".to_owned(), word.to_owned())].into();
    Response { headers, ..Response::status(status) }
}

#[tokio::test]
async fn x_should_retry_decides_about_a_retry() {
    recovers_from(should_retry("true", 422)).await;
    for status in [429, 503] {
        let (world, _) = scripted([should_retry("false", status)]).await;
        assert_eq!(world.run("go").await.run_end, RunEnd::Failed);
        assert_eq!(world.requests().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn retry_after_as_a_date_is_respected() {
    for (wait, earliest_ms, latest_ms) in [(100, 95_000, 100_000), (-100, 0, 500)] {
        let date = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(wait);
        let date = httpdate::fmt_http_date(date.into());
        let limited = Response { retry_after: Some(date), ..Response::status(429) };
        let (world, _) = scripted([limited]).await;
        let mut run = world.session.start_run("go").await.expect("a run");
        until_event(&mut run.events, |event| {
            let waits = event["wait_ms"].as_u64().filter(|_| event["type"] == "attempt");
            waits.is_some_and(|ms| (earliest_ms..=latest_ms).contains(&ms))
        })
        .await;
        world.session.stop(StopMode::Now).await.expect("a stop");
    }
}

#[tokio::test]
async fn an_error_that_comes_with_status_200_is_judged_like_its_own_status() {
    let event_with_error = |code: u16, kind: &str| {
        let error = json!({"error": {"message": "so it is", "code": code}}).to_string();
        let body = if kind == "application/json" { error } else { format!("data: {error}\n\n") };
        Response::raw(kind, [body])
    };
    for kind in ["application/json", "text/event-stream"] {
        recovers_from(event_with_error(503, kind)).await;
        let (world, _) = scripted([event_with_error(401, kind)]).await;
        let report = world.run("go").await;
        assert_eq!((report.run_end, world.requests().len()), (RunEnd::Failed, 1), "{kind}");
        // The header of a response applies to the error in its stream.
        let limited = Response { retry_after: Some("100".into()), ..event_with_error(429, kind) };
        let (world, _) = scripted([limited]).await;
        let mut run = world.session.start_run("go").await.expect("a run");
        until_event(&mut run.events, |event| event["wait_ms"] == 100_000).await;
        world.session.stop(StopMode::Now).await.expect("a stop");
        let headers = should_retry("false", 200).headers;
        let (world, _) = scripted([Response { headers, ..event_with_error(503, kind) }]).await;
        let report = world.run("go").await;
        assert_eq!((report.run_end, world.requests().len()), (RunEnd::Failed, 1), "{kind}");
    }
}

#[tokio::test]
async fn plain_responses_are_retried_without_a_rollback() {
    let control = CallControl::new();
    let answers = [
        Response::status(503),
        Response { cut_after_chunks: Some(1), ..text() },
        Response::raw("application/json", [""]),
        Response::text("Plainly."),
    ];
    let world = world(Script::new(answers), registry(&control), |config| {
        model(config).stream = false;
        model(config).max_attempts = 4;
    })
    .await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Plainly."));
    let streamed = world.requests().iter().filter(|r| r.body["stream"] == true).count();
    assert_eq!((world.requests().len(), streamed), (4, 0));
    let page = world.host.telemetry().render();
    assert!(page.contains("\nstreaming_rollbacks_total 0\n"));
}

#[tokio::test]
async fn a_body_that_is_not_a_response_is_retried() {
    recovers_from(Response::raw("text/event-stream", [""])).await;
    recovers_from(Response::raw("application/json", [""])).await;
    recovers_from(Response::raw("text/html", ["<!doctype html><p>Log in"])).await;
    // The service sends an error and keeps the stream open.
    let event_with_error = "data: {\"error\":{\"message\":\"overloaded\"}}\n\n";
    let open = Response {
        stall_after_chunks: Some(1),
        ..Response::raw("text/event-stream", [event_with_error])
    };
    recovers_from(open).await;
}

#[tokio::test]
async fn permanent_errors_end_the_run_with_the_services_message() {
    let error =
        json!({"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}});
    let denied = Response { error: Some(error), ..Response::status(401) };
    let (world, _) = scripted([denied]).await;
    let report = world.run("go").await;
    assert_eq!(report.run_end, RunEnd::Failed);
    let error = report.error.expect("an error");
    assert_eq!(error.code, "provider_error");
    assert!(error.message.contains("Incorrect API key provided"), "{}", error.message);
    assert_eq!(world.requests().len(), 1);
}

#[tokio::test]
async fn after_two_broken_streams_a_plain_response_is_requested() {
    let cut = || Response { cut_after_chunks: Some(2), ..text() };
    let (world, _) = scripted([cut(), cut(), Response::text("Plainly.")]).await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Plainly."));
    let streamed: Vec<_> = world.requests().iter().map(|r| r.body["stream"].clone()).collect();
    assert_eq!(streamed[..2], [Value::Bool(true), Value::Bool(true)]);
    assert_ne!(streamed[2], Value::Bool(true));
    let page = world.host.telemetry().render();
    assert!(page.contains("\nstreaming_rollbacks_total 1\n"));
}

#[tokio::test]
async fn after_the_last_attempt_the_run_fails_and_the_session_continues() {
    let cut = || Response { cut_after_chunks: Some(2), ..text() };
    let (world, _) = scripted([cut(), cut(), cut(), Response::text("Hello again.")]).await;
    let failed = world.run("go").await;
    assert_eq!(failed.run_end, RunEnd::Failed);
    assert!(failed.error.expect("an error").transient);
    let report = world.run("and now?").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Hello again."));
    world.assert_paired();
}

#[tokio::test]
async fn a_pure_result_of_a_broken_stream_is_reused_and_effects_wait_for_a_complete_one() {
    let calls = || [call("quick", "a"), call("writes", "b")];
    let broken = Response::calls(calls()).hold(ScriptPosition::Finish, "broken");
    let broken = Response { truncate: true, ..broken };
    let (world, control) =
        scripted([broken, Response::calls(calls()), Response::text("Done.")]).await;
    let started = world.session.start_run("go").await.expect("a run");
    within(world.model.wait_for_gate("broken")).await;
    control.until_logged("end a").await;
    world.model.open_gate("broken");
    let report = within(started.report).await.expect("a report");
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(control.log(), ["start a", "end a", "start b", "end b"]);
    assert_eq!(report.calls[0].metadata, json!({"reused": true}));
    world.assert_paired();
}

#[tokio::test]
async fn a_response_cut_by_length_refuses_calls_that_did_not_start() {
    let calls = [call("quick", "a"), call("writes", "b")];
    let cut = Response { finish_reason: Finish::Word("length".into()), ..Response::calls(calls) };
    let (world, control) = scripted([cut, Response::text("Done.")]).await;
    let report = world.run("go").await;
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(control.log(), ["start a", "end a"]);
    assert_eq!(
        results(&world.last_messages()),
        [("call-a", "done a"), ("call-b", "Error: not run: the response was cut off")]
    );
    world.assert_paired();
}

#[tokio::test]
async fn a_filtered_response_ends_the_run_as_refused_without_open_calls() {
    let calls = [call("quick", "a"), call("writes", "b")];
    let filtered = Finish::Word("content_filter".into());
    let filtered = Response { finish_reason: filtered, ..Response::calls(calls) };
    let (world, control) = scripted([filtered, Response::text("Hello again.")]).await;
    assert_eq!(world.run("go").await.run_end, RunEnd::Refused);
    assert!(!control.log().contains(&"start b".to_owned()));
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
    world.assert_paired();
}

#[tokio::test]
async fn after_max_turns_a_final_answer_without_tools_is_requested() {
    let control = CallControl::new();
    let responses = [
        Response::calls([call("quick", "a")]),
        Response::calls([call("quick", "b")]),
        Response { text: vec!["So far.".into()], ..Response::calls([call("quick", "c")]) },
    ];
    let world = world(Script::new(responses), registry(&control), |config| {
        limits(config).max_turns = Some(2);
    })
    .await;
    let started = world.session.start_run("go").await.expect("a run");
    let events = events(started.events).await;
    let report = within(started.report).await.expect("a report");
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::MaxTurns, "So far."));
    assert_eq!((report.turns, report.stats.turns), (2, 2), "the last request does not count");
    let stats = events.iter().rfind(|event| event["type"] == "session_stats").expect("sums");
    assert_eq!(stats["turns"], 2);
    assert_eq!(control.log(), ["start a", "end a", "start b", "end b"]);
    let last = &world.requests()[2].body;
    assert_eq!(last["tool_choice"], "none");
    assert!(!last["tools"].as_array().expect("tools are listed").is_empty());
    let limit = events.iter().find(|event| event["type"] == "limit_reached").expect("the event");
    assert_eq!((&limit["limit"], &limit["maximum"]), (&json!("max_turns"), &json!(2)));
    world.assert_paired();
}

#[tokio::test]
async fn repeated_turns_with_only_failed_calls_end_the_run() {
    let failing = |id: &str| Response::calls([call("fails", id), call("nobody", id)]);
    let (world, control) = scripted(["a", "b", "c"].map(failing)).await;
    let started = world.session.start_run("go").await.expect("a run");
    let events = events(started.events).await;
    let report = within(started.report).await.expect("a report");
    assert_eq!(report.run_end, RunEnd::AllToolsFailed);
    let text = "All tool calls failed. Please check the error messages and try again.";
    assert_eq!(report.text, text);
    assert_eq!((control.log().len(), world.requests().len()), (3, 3));
    let limit = events.iter().find(|event| event["type"] == "limit_reached").expect("the event");
    assert_eq!((&limit["limit"], &limit["maximum"]), (&json!("max_failed_turns"), &json!(3)));
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
    world.assert_paired();
}

#[tokio::test]
async fn four_calls_where_three_may_run() {
    let refused = "Error: not run: at most 3 tool calls are run per response. \
                   Send the call again in a later response if it is still needed.";
    let done = [("call-a", "done a"), ("call-b", "done b"), ("call-c", "done c")];
    for (on_excess, answered) in [("answer", 4), ("truncate", 3)] {
        let control = CallControl::new();
        let calls = ["a", "b", "c", "d"].map(|id| call("quick", id));
        let script = Script::new([Response::calls(calls), Response::text("Done.")]);
        let world = world(script, registry(&control), |config| {
            limits(config).max_tool_calls_per_turn = Some(3);
            if on_excess == "truncate" {
                limits(config).on_excess = callsheet::config::OnExcess::Truncate;
            }
        })
        .await;
        assert_eq!(world.run("go").await.run_end, RunEnd::Answered);
        let expected = [&done[..], &[("call-d", refused)]].concat();
        assert_eq!(results(&world.last_messages()), expected[..answered]);
        let sent = world.last_messages();
        let assistant = sent.iter().find(|message| message["role"] == "assistant");
        let calls = assistant.and_then(|message| message["tool_calls"].as_array()).expect("calls");
        assert_eq!(calls.len(), answered, "only answered calls have events");
        assert_eq!(control.log().len(), 6);
        world.assert_paired();
    }
}

#[tokio::test]
async fn on_excess_fail_ends_the_run_and_the_session_continues() {
    let control = CallControl::new();
    let calls = ["a", "b", "c", "d"].map(|id| call("quick", id));
    let script = Script::new([Response::calls(calls), Response::text("Hello again.")]);
    let world = world(script, registry(&control), |config| {
        limits(config).max_tool_calls_per_turn = Some(3);
        limits(config).on_excess = callsheet::config::OnExcess::Fail;
    })
    .await;
    let report = world.run("go").await;
    assert_eq!(report.run_end, RunEnd::Failed);
    let message = "TOOL_CALL_LIMIT_EXCEEDED: received at least 4, maximum 3, turn 1";
    assert_eq!(report.error.expect("an error").message, message);
    assert_eq!(control.log(), [""; 0]);
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
    let refused = "Error: not run: the response held more than the 3 tool calls that are allowed, \
                   and the run was ended.";
    let expected = ["call-a", "call-b", "call-c"].map(|id| (id, refused));
    assert_eq!(results(&world.last_messages()), expected);
    world.assert_paired();
}

#[tokio::test]
async fn without_multi_tool_calls_only_the_first_call_is_kept() {
    let control = CallControl::new();
    let calls = ["a", "b"].map(|id| call("quick", id));
    let script = Script::new([Response::calls(calls), Response::text("Done.")]);
    let world = world(script, registry(&control), |config| {
        config.agents.get_mut("default").expect("the agent").multi_tool_calls = false;
    })
    .await;
    let started = world.session.start_run("go").await.expect("a run");
    let events = events(started.events).await;
    assert_eq!(control.log(), ["start a", "end a"]);
    assert_eq!(results(&world.last_messages()), [("call-a", "done a")]);
    assert_eq!(world.requests()[0].body["parallel_tool_calls"], false);
    let end = events.iter().find(|event| event["type"] == "turn_end").expect("a turn");
    assert_eq!((&end["tool_calls"], &end["dropped_calls"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn an_agent_without_tools_offers_none() {
    let world = world(Script::new([Response::text("Hi.")]), ToolRegistry::new(), |_| {}).await;
    assert_eq!(world.run("go").await.text, "Hi.");
    let body = world.requests()[0].body.clone();
    assert!(body.get("tools").is_none() && body.get("tool_choice").is_none());
}

#[tokio::test]
async fn a_response_that_is_too_large_fails_without_a_retry() {
    let endless = Response { text: vec!["word ".repeat(100); 100], ..text() };
    let control = CallControl::new();
    let world = world(Script::new([endless, text()]), registry(&control), |config| {
        model(config).max_response_bytes = 10_000;
    })
    .await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, world.requests().len()), (RunEnd::Failed, 1));
    let error = report.error.expect("an error").message;
    assert!(
        error.contains("the response is larger than 10000 bytes (max_response_bytes)"),
        "{error}"
    );
}

#[tokio::test]
async fn a_plain_response_above_64_mib_is_read_if_the_model_allows_it() {
    let message = json!({"role": "assistant", "content": "Hello again."});
    let body = json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    let spaces = std::iter::repeat_n(vec![b' '; 1 << 20], 65);
    let large = Response::raw("application/json", spaces.chain([body.to_string().into_bytes()]));
    let world = world(Script::new([large]), ToolRegistry::new(), |config| {
        (model(config).stream, model(config).max_response_bytes) = (false, 128 << 20);
    })
    .await;
    let report = world.run("go").await;
    assert_eq!((report.error, report.text.as_str()), (None, "Hello again."));
}
