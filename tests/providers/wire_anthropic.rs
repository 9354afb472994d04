//! Runs over Anthropic's wire: over HTTP, against the mock provider, which refuses what Anthropic
//! refuses.

use crate::support::tools::{CallControl, registry};
use crate::support::{World, parallel, within, world_of};
use callsheet::config::Config;
use callsheet::types::{RunEnd, ToolStatus, Wire};
use callsheet_mock_provider::{Call, Response, Script, ScriptPosition};
use serde_json::{Value, json};

fn call(tool: &str, id: &str) -> Call {
    Call::new(tool, json!({"id": id})).id(&format!("toolu_{id}"))
}

async fn world(
    responses: impl IntoIterator<Item = Response>,
    change: impl FnOnce(&mut Config),
) -> (World, CallControl) {
    let control = CallControl::new();
    let script = Script::new(responses);
    let both = |config: &mut Config| {
        parallel(8)(config);
        change(config);
    };
    (world_of(Wire::AnthropicMessages, script, registry(&control), both).await, control)
}

fn unchanged(_: &mut Config) {}

fn plain(config: &mut Config) {
    config.models.values_mut().for_each(|model| model.stream = false);
}

/// Runs two turns, of which the first makes two calls. Returns the messages of the last request.
async fn two_turns(change: impl FnOnce(&mut Config)) -> (World, Vec<Value>) {
    let first = Response {
        reasoning: vec!["Both ".into(), "at once.".into()],
        text: vec!["Let me ".into(), "look.".into()],
        ..Response::calls([call("quick", "a"), call("fails", "b")])
    };
    let (world, _) = world([first, Response::text("All done.")], change).await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "All done."));
    let statuses: Vec<_> = report.calls.iter().map(|call| call.status).collect();
    assert_eq!(statuses, [ToolStatus::Ok, ToolStatus::Failed]);
    world.assert_paired();
    let messages = world.last_messages();
    (world, messages)
}

#[tokio::test]
async fn parallel_calls_are_answered_at_the_beginning_of_the_next_message() {
    let (world, streamed) = two_turns(unchanged).await;
    let content = &streamed[2]["content"];
    assert_eq!(streamed.len(), 3);
    assert_eq!(
        content[0],
        json!({"type": "tool_result", "tool_use_id": "toolu_a", "content": "done a"})
    );
    assert_eq!(
        (&content[1]["tool_use_id"], &content[1]["is_error"]),
        (&json!("toolu_b"), &json!(true))
    );
    let request = &world.requests()[0];
    assert_eq!(request.headers["anthropic-version"], "2023-06-01");
    assert_eq!((request.path.as_str(), request.wire), ("/v1/messages", Wire::AnthropicMessages));
    let (_, plainly) = two_turns(plain).await;
    assert_eq!(plainly, streamed);
}

#[tokio::test]
async fn thinking_goes_back_unchanged_with_its_signature() {
    let (world, messages) = two_turns(unchanged).await;
    let blocks = messages[1]["content"].as_array().expect("blocks");
    let kinds: Vec<_> =
        blocks.iter().map(|block| block["type"].as_str().expect("a type")).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use", "tool_use"]);
    assert_eq!(blocks[0]["thinking"], "Both at once.");
    let signature = blocks[0]["signature"].as_str().expect("a signature");
    assert!(signature.starts_with("mock-"), "{signature}");
    // The server made the signature and refuses a changed one.
    world.run("and now?").await;
    assert_eq!(world.last_messages()[1], messages[1]);
    world.assert_paired();
}

#[tokio::test]
async fn a_stream_that_breaks_is_retried() {
    for broken in [
        Response { cut_after_chunks: Some(4), ..Response::text("This will not come whole.") },
        Response { truncate: true, ..Response::text("This will not come whole.") },
        Response { malformed_at_chunk: Some(4), ..Response::text("This will not come whole.") },
        Response { truncate: true, ..Response::calls([call("writes", "a")]) },
    ] {
        let (world, control) = world([broken, Response::text("Whole.")], unchanged).await;
        let report = world.run("go").await;
        assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Whole."));
        assert_eq!((world.requests().len(), control.log()), (2, Vec::new()));
        world.assert_paired();
    }
}

#[tokio::test]
async fn an_overload_within_a_stream_is_retried_and_a_bad_request_is_not() {
    let in_stream = |kind: &str| {
        let start = r#"{"type":"message_start","message":{"type":"message","content":[]}}"#;
        let error = json!({"type": "error", "error": {"type": kind, "message": "Overloaded"}});
        let events = [
            format!("event: message_start\ndata: {start}\n\n"),
            format!("event: error\ndata: {error}\n\n"),
        ];
        Response::raw("text/event-stream", events)
    };
    let (again, _) =
        world([in_stream("overloaded_error"), Response::text("Here.")], unchanged).await;
    let report = again.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Here."));
    assert_eq!(again.requests().len(), 2);
    let (once, _) = world([in_stream("invalid_request_error")], unchanged).await;
    let report = once.run("go").await;
    assert_eq!((report.run_end, once.requests().len()), (RunEnd::Failed, 1));
}

#[tokio::test]
async fn a_pure_call_starts_at_the_end_of_its_block() {
    let calls = [call("quick", "a"), call("writes", "b")];
    let response = Response::calls(calls).hold(ScriptPosition::AfterCall(0), "sealed");
    let (world, control) = world([response, Response::text("All done.")], unchanged).await;
    let started = world.session.start_run("go").await.expect("a run");
    within(world.model.wait_for_gate("sealed")).await;
    // The next call has not begun yet.
    control.until_logged("end a").await;
    assert_eq!(control.log(), ["start a", "end a"]);
    world.model.open_gate("sealed");
    let report = within(started.report).await.expect("a report");
    assert!(report.calls.iter().all(|call| call.status == ToolStatus::Ok));
    assert_eq!(control.log(), ["start a", "end a", "start b", "end b"]);
    world.assert_paired();
}

#[tokio::test]
async fn a_call_that_is_cut_off_by_the_length_is_answered_and_the_run_goes_on() {
    let cut = Response {
        finish_reason: callsheet_mock_provider::Finish::Word("length".into()),
        ..Response::calls([Call::raw("writes", r#"{"id":"#).id("toolu_a")])
    };
    let (world, control) = world([cut, Response::text("I see.")], unchanged).await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, control.log()), (RunEnd::Answered, Vec::new()));
    let messages = world.last_messages();
    assert_eq!(messages[1]["content"][0]["input"], json!({}));
    assert_eq!(messages[2]["content"][0]["is_error"], true);
    world.assert_paired();
}

#[tokio::test]
async fn without_a_script_the_server_calls_matching_tools_and_reports_their_results() {
    let (world, control) = world([], unchanged).await;
    let report = world.run("Call quick with id \"a\".").await;
    assert_eq!(report.run_end, RunEnd::Answered);
    assert!(report.text.contains("(offline rehearsal model)"), "{}", report.text);
    assert_eq!(report.calls.len(), control.log().len() / 2, "{:?}", control.log());
    assert!(world.requests().len() > 1, "it called a tool");
    world.assert_paired();
}
