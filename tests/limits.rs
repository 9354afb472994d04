//! Limits of a run (turns, calls, tokens, sizes) and loop detection, over real HTTP.
#![expect(clippy::expect_used, reason = "a test")]

mod support;

use callsheet::config::{Limits, RunOverrides};
use callsheet::rehearsal::{AnswerState, Call, Response, Script};
use callsheet::runtime::{RunReport, RunRequest};
use callsheet::types::{RunEnd, ToolStatus};
use serde_json::{Value, json};
use support::tools::{CallControl, registry};
use support::{World, events, results, within, world};

const NOT_STARTED: &str = "Error: not started: the run was ended before";

fn call(tool: &str, id: &str) -> Call {
    Call::new(tool, json!({"id": id})).id(&format!("call-{id}"))
}

fn costing(response: Response, tokens: u64) -> Response {
    let usage = json!({"prompt_tokens": tokens - 10, "completion_tokens": 10});
    Response { usage: Some(usage), ..response }
}

/// Returns a stream of texts, each with the tokens that the response has used so far.
fn counting(pieces: &[(&str, u64)]) -> Response {
    let chunks = pieces.iter().map(|(text, tokens)| {
        let chunk = json!({"choices": [{"index": 0, "delta": {"content": text}}],
            "usage": {"prompt_tokens": tokens, "completion_tokens": 0}});
        format!("data: {chunk}\n\n")
    });
    Response::raw("text/event-stream", chunks)
}

async fn limited(
    responses: impl IntoIterator<Item = Response>,
    change: impl FnOnce(&mut Limits),
) -> (World, CallControl) {
    let control = CallControl::new();
    let world = world(Script::new(responses).then_done(), registry(&control), |config| {
        let agent = config.agents.get_mut("default").expect("the agent");
        agent.early_start = false;
        change(&mut agent.limits);
    })
    .await;
    (world, control)
}

fn request_with(overrides: Value) -> RunRequest {
    let overrides: RunOverrides = serde_json::from_value(overrides).expect("overrides");
    RunRequest::default().with(|new| {
        new.input = "go".into();
        new.overrides = overrides;
    })
}

/// Runs once, and returns `limit value maximum action` of each limit event.
async fn run(world: &World) -> (RunReport, Vec<String>) {
    run_with(world, json!({})).await
}

async fn run_with(world: &World, overrides: Value) -> (RunReport, Vec<String>) {
    let started = world.session.start_run(request_with(overrides)).await.expect("a run");
    let events = events(started.events).await;
    let report = within(started.report).await.expect("a report");
    assert_eq!(events.last().expect("an end")["run_end"], report.run_end.as_str());
    let limit_events =
        events.iter().filter(|event| event["type"] == "limit_reached").map(|event| {
            let word = |field: &str| event[field].as_str().expect("a word").to_owned();
            format!("{} {} {} {}", word("limit"), event["value"], event["maximum"], word("action"))
        });
    (report, limit_events.collect())
}

/// Returns the tool results in a request.
fn sent(world: &World, request: usize) -> Vec<(String, String)> {
    let body = &world.requests()[request].body;
    let messages: &Vec<Value> = body["messages"].as_array().expect("messages");
    results(messages).iter().map(|(id, text)| ((*id).to_owned(), (*text).to_owned())).collect()
}

/// Returns the text of the last tool result in a request.
fn last_result(world: &World, request: usize) -> String {
    sent(world, request).pop().expect("a result").1
}

async fn assert_session_continues(world: &World) {
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
    world.assert_paired();
    world.until_idle().await;
}

#[tokio::test]
async fn a_response_beyond_the_token_budget_is_cut_off() {
    let counted = counting(&[("So ", 60), ("far", 101)]);
    let endless = Response { stall_after_chunks: Some(2), ..counted };
    let (world, _) = limited([endless], |limits| limits.max_tokens_per_run = Some(100)).await;
    let (report, limit_events) = run(&world).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Budget, "So far"));
    assert_eq!(limit_events, ["max_tokens_per_run 101 100 ended"]);
    let ended = within(world.model.wait_until_ended(1)).await.expect("the request");
    assert_eq!(ended.ended, AnswerState::ClientLeft);
    assert_session_continues(&world).await;
    let messages = world.last_messages();
    assert!(messages.iter().any(|message| message["content"] == "So far"), "{messages:?}");
}

#[tokio::test]
async fn calls_of_a_response_beyond_the_token_budget_do_not_start() {
    for stream in [true, false] {
        let calls = [call("quick", "a"), call("writes", "b")];
        let responses = [costing(Response::calls(calls), 101)];
        let (world, control) =
            limited(responses, |limits| limits.max_tokens_per_run = Some(100)).await;
        let (report, limit_events) = run_with(&world, json!({"stream": stream})).await;
        assert_eq!((report.run_end, report.turns), (RunEnd::Budget, 1));
        assert_eq!(limit_events, ["max_tokens_per_run 101 100 ended"]);
        assert_eq!((control.log(), world.requests().len()), (vec![], 1));
        assert_session_continues(&world).await;
        let expected = ["call-a", "call-b"].map(|id| (id.to_owned(), NOT_STARTED.to_owned()));
        assert_eq!(sent(&world, 1), expected);
    }
}

#[tokio::test]
async fn tokens_add_up_over_turns_and_a_complete_answer_is_kept() {
    let turn = |id: &str, tokens| costing(Response::calls([call("quick", id)]), tokens);
    let responses = [turn("a", 40), turn("b", 20), costing(Response::text("Done."), 60)];
    let (world, _) = limited(responses, |limits| limits.max_tokens_per_run = Some(100)).await;
    let (report, limit_events) = run(&world).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Done."));
    let expected =
        ["max_tokens_per_run 60 100 half_used", "max_tokens_per_run 120 100 answer_kept"];
    assert_eq!(limit_events, expected);
    assert_eq!(last_result(&world, 1), "done a");
    assert_eq!(last_result(&world, 2), "done b\n\n[callsheet: 40 of 100 tokens are left]");
    let page = world.host.telemetry().render();
    let counted = "\ncallsheet_limits_reached_total{limit=\"max_tokens_per_run\"} 1\n";
    assert!(page.contains(counted), "half of a limit is not reached: {page}");
}

#[tokio::test]
async fn an_exactly_used_token_budget_allows_no_further_request() {
    let responses = || [costing(Response::calls([call("quick", "a")]), 100)];
    for max_turns in [1, 10] {
        let (world, control) = limited(responses(), |limits| {
            limits.max_turns = Some(max_turns);
            limits.max_tokens_per_run = Some(100);
        })
        .await;
        let (report, limit_events) = run(&world).await;
        assert_eq!((report.run_end, world.requests().len()), (RunEnd::Budget, 1));
        assert_eq!(report.calls[0].status, ToolStatus::Ok);
        assert_eq!(limit_events, ["max_tokens_per_run 100 100 ended"]);
        assert_eq!(control.log(), ["start a", "end a"]);
        assert_session_continues(&world).await;
    }
}

#[tokio::test]
async fn failed_attempts_count_towards_the_token_budget() {
    let broken = |tokens| Response { cut_after_chunks: Some(1), ..counting(&[("So", tokens)]) };
    let (world, _) = limited([broken(100)], |limits| limits.max_tokens_per_run = Some(100)).await;
    let (report, limit_events) = run(&world).await;
    assert_eq!((report.run_end, world.requests().len()), (RunEnd::Budget, 1));
    assert_eq!(limit_events, ["max_tokens_per_run 100 100 ended"]);
    assert_session_continues(&world).await;
    let again = Response { stall_after_chunks: Some(1), ..counting(&[("far", 41)]) };
    let responses = [broken(60), again];
    let (world, _) = limited(responses, |limits| limits.max_tokens_per_run = Some(100)).await;
    let (report, limit_events) = run(&world).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Budget, "far"));
    assert_eq!(limit_events, ["max_tokens_per_run 101 100 ended"]);
    assert_eq!(world.requests().len(), 2);
    assert_session_continues(&world).await;
}

#[tokio::test]
async fn exceeding_the_runs_call_limit_ends_the_run_after_a_notice() {
    let turn = |ids: [&str; 2]| Response::calls(ids.map(|id| call("quick", id)));
    let responses = [turn(["a", "b"]), turn(["c", "d"])];
    let (world, control) =
        limited(responses, |limits| limits.max_tool_calls_per_run = Some(3)).await;
    let (report, limit_events) = run(&world).await;
    assert_eq!((report.run_end, report.calls.len()), (RunEnd::Budget, 3));
    let expected = ["max_tool_calls_per_run 2 3 half_used", "max_tool_calls_per_run 4 3 ended"];
    assert_eq!(limit_events, expected);
    assert_eq!(control.log(), ["start a", "end a", "start b", "end b"]);
    let note = "done b\n\n[callsheet: 1 of 3 tool calls is left]";
    assert_eq!(last_result(&world, 1), note);
    assert_session_continues(&world).await;
    let answered = [("a", "done a"), ("b", note), ("c", NOT_STARTED)];
    let answered = answered.map(|(id, text)| (format!("call-{id}"), text.to_owned()));
    assert_eq!(sent(&world, 2), answered);
}

#[tokio::test]
async fn a_run_may_lower_its_agents_limits() {
    let responses = ["a", "b"].map(|id| Response::calls([call("quick", id)]));
    let (world, _) = limited(responses, |_| {}).await;
    let limits = json!({"max_tool_calls_per_run": 1, "max_tokens_per_run": 1_000_000,
        "max_result_bytes": 5});
    let (report, _) = run_with(&world, json!({"limits": limits})).await;
    assert_eq!((report.run_end, report.calls.len()), (RunEnd::Budget, 1));
    let expected_result = "done\n[1 of 6 bytes are left out here; the whole result is $VAR_REF{{t1a1c0}}]\na\n\n\
                 [callsheet: 0 of 1 tool calls are left]";
    assert_eq!(last_result(&world, 1), expected_result, "a note comes after the cut");
    assert_session_continues(&world).await;
}

#[tokio::test]
async fn notices_of_several_limits_come_together_and_once() {
    let responses = ["a", "b", "c"].map(|id| Response::calls([call("quick", id)]));
    let (world, _) = limited(responses, |limits| {
        limits.max_turns = Some(4);
        limits.max_tool_calls_per_run = Some(4);
    })
    .await;
    let (report, limit_events) = run(&world).await;
    assert_eq!((report.run_end, report.turns), (RunEnd::Answered, 4));
    assert_eq!(limit_events, ["max_turns 2 4 half_used", "max_tool_calls_per_run 2 4 half_used"]);
    let noted = "done b\n\n[callsheet: 2 of 4 turns are left]\n\
                 [callsheet: 2 of 4 tool calls are left]";
    let texts: Vec<_> = sent(&world, 3).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["done a", noted, "done c"]);
    // Another run starts with full budgets.
    assert_session_continues(&world).await;
    assert_eq!(report.calls[1].result, "done b", "the result has no note");
}

#[tokio::test]
async fn a_repeating_model_is_warned_and_then_stopped() {
    let again = Response { text: vec!["Again.".into()], ..Response::calls([call("quick", "a")]) };
    let repeating = (0..7).map(|_| again.clone());
    let (world, control) = limited(repeating, |limits| limits.max_turns = None).await;
    let (report, limit_events) = run(&world).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::LoopDetected, "Again."));
    assert_eq!((report.turns, world.requests().len(), control.log().len()), (6, 6, 12));
    assert_eq!(limit_events, ["repeat_limit 3 3 told", "repeat_limit 6 3 ended"]);
    let note = "done a\n\n[callsheet: 3 turns in a row made the same calls and got the same \
                results; after 6 the run is ended]";
    let texts: Vec<_> = sent(&world, 5).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["done a", "done a", note, "done a", "done a"]);
    world.assert_paired();
}

#[tokio::test]
async fn polling_with_changing_results_is_not_a_loop() {
    let ids = ["a", "a", "b", "a", "a", "b", "a", "a", "b"];
    let responses = ids.map(|id| Response::calls([call("quick", id)]));
    let (world, _) = limited(responses, |limits| limits.max_turns = None).await;
    let (report, limit_events) = run(&world).await;
    assert_eq!((report.run_end, report.turns), (RunEnd::Answered, 10));
    assert_eq!(limit_events, [""; 0]);
}

#[tokio::test]
async fn calls_with_too_large_arguments_are_refused() {
    let responses = [Response::calls([call("quick", "0123456789"), call("quick", "a")])];
    let (world, control) = limited(responses, |limits| limits.max_arguments_bytes = 12).await;
    assert_eq!(run(&world).await.0.run_end, RunEnd::Answered);
    let results = sent(&world, 1);
    let wanted = "Error: not run: invalid arguments: they are larger than allowed. Received: ";
    assert!(results[0].1.starts_with(wanted), "{results:?}");
    assert_eq!(results[1].1, "done a");
    assert_eq!(control.log(), ["start a", "end a"]);
}

#[tokio::test]
async fn an_empty_answer_is_followed_by_one_request_without_tools() {
    let responses =
        [Response::calls([call("quick", "a")]), Response::text(""), Response::text("So.")];
    let (world, _) = limited(responses, |limits| limits.max_turns = Some(2)).await;
    let (report, _) = run(&world).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "So."));
    let choices: Vec<_> = world.requests().iter().map(|r| r.body["tool_choice"].clone()).collect();
    assert_eq!(choices.last(), Some(&json!("none")));
    assert_ne!(choices[1], "none");
    world.assert_paired();
}
