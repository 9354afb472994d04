//! Runs over Ollama's wire, over HTTP.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use crate::support::tools::{CallControl, registry};
use crate::support::{World, events, parallel, within, world_of};
use callsheet::config::{Config, ModelConfig};
use callsheet::types::{RunEnd, Wire};
use callsheet_mock_provider::{Call, Finish, Response, Script, ScriptPosition};
use serde_json::{Value, json};

fn call(tool: &str, id: &str) -> Call {
    Call::new(tool, json!({"id": id})).id(&format!("call-{id}"))
}

fn model(config: &mut Config) -> &mut ModelConfig {
    config.models.get_mut("rehearsal").unwrap()
}

async fn scripted(
    responses: impl IntoIterator<Item = Response>,
    change: impl FnOnce(&mut Config),
) -> (World, CallControl) {
    let control = CallControl::new();
    let script = Script::new(responses);
    let world = world_of(Wire::OllamaChat, script, registry(&control), |config| {
        parallel(8)(config);
        change(config);
    })
    .await;
    (world, control)
}

async fn two_turns_with_parallel_calls(stream: bool) {
    let thinking = |response: Response| response.with(|r| r.reasoning = vec!["hm".into()]);
    let responses = [
        thinking(Response::calls([call("quick", "a"), call("quick", "b")])),
        Response::calls([Call { no_id: true, ..Call::new("quick", json!({"id": "c"})) }]),
        thinking(Response::text("All done.")),
    ];
    let (world, _) = scripted(responses, |config| model(config).stream = stream).await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "All done."));
    let request = &world.requests()[2];
    assert_eq!(request.path, "/v1/api/chat");
    assert_eq!(request.body["stream"], stream);
    let asks = |thinking: &str, ids: &[(&str, &str)]| {
        let calls = ids.iter().map(|(id, input)| {
            json!({"id": id, "function": {"name": "quick", "arguments": {"id": input}}})
        });
        json!({"role": "assistant", "content": "", "thinking": thinking,
            "tool_calls": calls.collect::<Vec<_>>()})
    };
    let answers = |id: &str, content: &str| json!({"role": "tool", "content": content, "tool_name": "quick", "tool_call_id": id});
    let messages = world.last_messages();
    let since = messages.iter().position(|message| message["role"] == "user").unwrap();
    assert_eq!(
        messages[since..],
        [
            json!({"role": "user", "content": "go"}),
            asks("hm", &[("call-a", "a"), ("call-b", "b")]),
            answers("call-a", "done a"),
            answers("call-b", "done b"),
            asks("", &[("call_1_0", "c")]),
            answers("call_1_0", "done c"),
        ]
    );
    world.assert_paired();
}

#[tokio::test]
async fn two_turns_with_parallel_calls_as_streams() {
    two_turns_with_parallel_calls(true).await;
}

#[tokio::test]
async fn two_turns_with_parallel_calls_as_plain_answers() {
    two_turns_with_parallel_calls(false).await;
}

#[tokio::test]
async fn a_pure_call_starts_before_the_response_has_ended() {
    let calls = [call("quick", "a"), call("writes", "b")];
    let responses = [
        Response::calls(calls).hold(ScriptPosition::Finish, "finish"),
        Response::text("All done."),
    ];
    let (world, control) = scripted(responses, |_| {}).await;
    let started = world.session.start_run("go").await.unwrap();
    within(world.model.wait_for_gate("finish")).await;
    control.until_logged("end a").await;
    assert_eq!(control.log(), ["start a", "end a"]);
    world.model.open_gate("finish");
    let report = within(started.report).await.unwrap();
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(control.log(), ["start a", "end a", "start b", "end b"]);
    world.assert_paired();
}

/// Runs with a first response that is faulty. Returns the reasons of the attempts.
async fn recovers_from(fault: Response) -> Vec<String> {
    let (world, _) = scripted([fault, Response::text("Now it works.")], |config| {
        model(config).first_event_timeout = Duration::from_millis(300);
        model(config).answer_timeout = Duration::from_millis(300);
        model(config).idle_timeout = Duration::from_millis(300);
        model(config).progress_timeout = Duration::from_millis(400);
    })
    .await;
    let started = world.session.start_run("go").await.unwrap();
    let events = events(started.events).await;
    let report = within(started.report).await.unwrap();
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Now it works."));
    assert_eq!(world.requests().len(), 2);
    world.assert_paired();
    let attempts = events.iter().filter(|event| event["type"] == "attempt");
    attempts.map(|event| event["reason"].as_str().unwrap().to_owned()).collect()
}

fn text() -> Response {
    Response::text("This is an answer that will not come whole.")
}

#[tokio::test]
async fn an_error_within_a_stream_is_retried() {
    let lines = [
        json!({"model": "m", "message": {"role": "assistant", "content": "This"}, "done": false}),
        json!({"error": "an error was encountered while running the model"}),
    ];
    let lines = lines.map(|line: Value| format!("{line}\n"));
    let reasons = recovers_from(Response::raw("application/x-ndjson", lines)).await;
    assert!(reasons[0].ends_with("an error was encountered while running the model"));
}

#[tokio::test]
async fn a_stream_that_breaks_is_retried() {
    recovers_from(Response { cut_after_chunks: Some(3), ..text() }).await;
    recovers_from(Response { cut_after_bytes: Some(50), ..text() }).await;
    recovers_from(Response { truncate: true, ..text() }).await;
    recovers_from(Response { malformed_at_chunk: Some(2), ..text() }).await;
    recovers_from(Response { finish_reason: Finish::Word("error".into()), ..text() }).await;
}

#[tokio::test]
async fn a_stream_that_stalls_times_out_despite_keep_alives() {
    let stalled = Response { stall_after_chunks: Some(2), ..text() };
    recovers_from(stalled.clone()).await;
    recovers_from(Response { keep_alive_ms: Some(20), ..stalled }).await;
}

#[tokio::test]
async fn an_error_keeps_the_message_of_the_service() {
    let denied =
        Response { error: Some(json!({"error": "model 'm' not found"})), ..Response::status(404) };
    let (world, _) = scripted([denied], |_| {}).await;
    let report = world.run("go").await;
    assert_eq!(report.run_end, RunEnd::Failed);
    let message = report.error.unwrap().message;
    assert!(message.contains("model 'm' not found"), "{message}");
    assert_eq!(world.requests().len(), 1);
}
