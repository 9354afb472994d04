//! Limits of a run (turns, calls, tokens, sizes), loop detection, and the ends of responses that are no whole answer:
//! empty, refused and cut off. Over real HTTP.
#![expect(clippy::expect_used, reason = "a test")]

use crate::support::tools::{CallControl, registry};
use crate::support::{World, events, results, within, world, world_of};
use callsheet::config::{Config, Limits, ModelConfig, OnRefusal, RunOverrides};
use callsheet::journal::verify;
use callsheet::record::StopMode;
use callsheet::runtime::{RunReport, RunRequest};
use callsheet::session::StoredSession;
use callsheet::tool::ToolRegistry;
use callsheet::types::{FinishKind, RunEnd, Seq, ToolStatus, Wire};
use callsheet_mock_provider::{
    AnswerState, Call, Finish, ReceivedRequest, Response, Script, ScriptPosition, When,
};
use serde_json::{Value, json};

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

const WIRES: [Wire; 5] = [
    Wire::OpenaiChat,
    Wire::OpenaiResponses,
    Wire::AnthropicMessages,
    Wire::GeminiGenerate,
    Wire::OllamaChat,
];

/// The name of the second model at its service.
const SECOND: &str = "second";

/// Starts a host of one wire whose agent falls back to a second model.
async fn with_fallback(
    wire: Wire,
    stream: bool,
    responses: impl IntoIterator<Item = Response>,
    change: impl FnOnce(&mut Limits),
) -> World {
    let script = Script::new(responses).then_done();
    world_of(wire, script, registry(&CallControl::new()), |config| {
        let mut second = config.models["rehearsal"].clone();
        second.model = SECOND.into();
        config.models.insert(SECOND.into(), second);
        config.models.values_mut().for_each(|model| model.stream = stream);
        let agent = config.agents.get_mut("default").expect("the agent");
        agent.fallback_models = vec![SECOND.into()];
        change(&mut agent.limits);
    })
    .await
}

fn of_second(response: Response) -> Response {
    let when = When { model: Some(SECOND.into()), ..When::default() };
    Response { when, ..response }
}

/// Returns an answer without text: nothing, white space, or thinking alone.
fn empty(number: usize) -> Response {
    match number % 3 {
        0 => Response::text(""),
        1 => Response::text(" \n"),
        _ => Response { reasoning: vec!["I look at it.".into()], ..Response::text("") },
    }
}

fn always(response: Response) -> Response {
    Response { repeat: true, ..response }
}

const ASKS_FOR_TEXT: &str = "Give your final answer now";

/// Returns whether a request asks for the final text with a message of the host.
fn asks_for_text(request: &ReceivedRequest) -> bool {
    request.body.to_string().contains(ASKS_FOR_TEXT)
}

/// Checks the records of a session, and that a replay makes the same.
async fn check_records(world: &World) {
    let entries = world.session.records(Seq(0)).await.expect("the records");
    let breaches = verify(world.session.id(), &entries);
    assert!(breaches.is_empty(), "{breaches:?}");
    world.assert_paired();
}

#[tokio::test]
async fn an_empty_answer_is_asked_for_again_unchanged_and_may_then_call_tools() {
    for (number, wire) in WIRES.into_iter().enumerate() {
        for stream in [true, false] {
            let responses = [
                Response::calls([call("quick", "a")]),
                empty(number + usize::from(stream)),
                Response::calls([call("quick", "b")]),
                Response::text("So."),
            ];
            let world = with_fallback(wire, stream, responses, |_| ()).await;
            let (report, _) = run(&world).await;
            assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "So."), "{wire}");
            assert_eq!((report.turns, report.calls.len()), (3, 2), "{wire}");
            let requests = world.requests();
            assert_eq!(requests.len(), 4, "{wire}");
            assert_eq!(requests[1].body, requests[2].body, "{wire}: it is unchanged");
            check_records(&world).await;
        }
    }
}

#[tokio::test]
async fn a_text_that_announces_calls_which_do_not_come_is_asked_for_again_once() {
    for (wire, finish) in [(Wire::OpenaiChat, "tool_calls"), (Wire::AnthropicMessages, "tool_use")]
    {
        let announcing = |text: &str| Response {
            finish_reason: Finish::Word(finish.into()),
            ..Response::text(text)
        };
        for stream in [true, false] {
            let responses = [
                announcing("I look at it."),
                Response::calls([call("quick", "a")]),
                announcing("I look again."),
                announcing("So."),
            ];
            let world = with_fallback(wire, stream, responses, |_| ()).await;
            let (report, _) = run(&world).await;
            assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "So."), "{wire}");
            assert_eq!((report.turns, report.calls.len()), (2, 1), "{wire}");
            let requests = world.requests();
            assert_eq!(requests.len(), 4, "{wire}");
            assert_eq!(requests[0].body, requests[1].body, "{wire}: it is unchanged");
            check_records(&world).await;
        }
    }
}

#[tokio::test]
async fn after_two_empty_answers_the_final_text_is_asked_for_without_tools() {
    for (number, wire) in WIRES.into_iter().enumerate() {
        let responses = [
            Response::calls([call("quick", "a")]),
            empty(number),
            empty(number + 1),
            Response::text("So."),
            Response::text("Yes."),
        ];
        let world = with_fallback(wire, number % 2 == 0, responses, |_| ()).await;
        let (report, _) = run(&world).await;
        assert_eq!((report.run_end, &*report.text, report.turns), (RunEnd::Answered, "So.", 2));
        let requests = world.requests();
        assert_eq!(requests.len(), 4, "{wire}");
        let asked: Vec<_> = requests.iter().map(asks_for_text).collect();
        assert_eq!(asked, [false, false, false, true], "{wire}");
        if wire == Wire::OpenaiChat {
            assert_eq!(requests[3].body["tool_choice"], "none");
        }
        // The next run goes on from there.
        assert_eq!(run(&world).await.0.text, "Yes.", "{wire}");
        check_records(&world).await;
    }
}

#[tokio::test]
async fn the_fallback_model_is_asked_after_three_empty_answers() {
    for (number, wire) in WIRES.into_iter().enumerate() {
        for stream in [true, false] {
            let responses = [
                Response::calls([call("quick", "a")]),
                of_second(Response::text("So.")),
                always(empty(number)),
            ];
            let world = with_fallback(wire, stream, responses, |_| ()).await;
            let (report, _) = run(&world).await;
            assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "So."), "{wire}");
            assert_eq!(world.requests().len(), 5, "{wire}");
            check_records(&world).await;
        }
    }
}

#[tokio::test]
async fn a_run_of_empty_answers_fails_and_says_how_many_calls_have_run() {
    for (number, wire) in WIRES.into_iter().enumerate() {
        for stream in [true, false] {
            let responses = [
                Response::calls([call("quick", "a")]),
                always(empty(number + usize::from(stream))),
            ];
            let world = with_fallback(wire, stream, responses, |_| ()).await;
            let (report, _) = run(&world).await;
            assert_eq!(report.run_end, RunEnd::Failed, "{wire}");
            let error = report.error.expect("an error");
            assert_eq!((&*error.code, error.transient), ("EMPTY_ANSWER", false), "{wire}");
            assert!(error.message.contains("1 tool call has run"), "{}", error.message);
            // One with a call, two unchanged, one for the text of each model.
            assert_eq!(world.requests().len(), 5, "{wire}");
            check_records(&world).await;
        }
    }
}

#[tokio::test]
async fn out_of_turns_an_empty_final_answer_is_no_answer_either() {
    let max_turns = |limits: &mut Limits| limits.max_turns = Some(1);
    let calls = || Response::calls([call("quick", "a")]);
    let responses = [calls(), empty(0), empty(1), Response::text("So far.")];
    let world = with_fallback(Wire::OpenaiChat, true, responses, max_turns).await;
    let (report, _) = run(&world).await;
    assert_eq!((report.run_end, &*report.text), (RunEnd::MaxTurns, "So far."));
    let choices: Vec<_> = world.requests().iter().map(|r| r.body["tool_choice"].clone()).collect();
    assert_eq!(choices[1..], ["none", "none", "none"]);
    check_records(&world).await;
    let world = with_fallback(Wire::OpenaiChat, true, [calls(), always(empty(2))], max_turns).await;
    let (report, _) = run(&world).await;
    assert_eq!(report.run_end, RunEnd::Failed);
    assert_eq!(report.error.map(|error| error.code), Some("EMPTY_ANSWER".to_owned()));
    assert_eq!(world.requests().len(), 5);
    check_records(&world).await;
}

fn model(config: &mut Config) -> &mut ModelConfig {
    config.models.get_mut("rehearsal").expect("the offline model")
}

const PART: &str = "I will lo";
const QUESTION: &str = "the refused question";

/// Returns a streamed answer that its service refuses after a few words.
fn refused(wire: Wire) -> Response {
    let events = |events: Vec<Value>| {
        let chunks = events.into_iter().map(|event| {
            let kind = event["type"].as_str().map(|kind| format!("event: {kind}\n"));
            format!("{}data: {event}\n\n", kind.unwrap_or_default())
        });
        Response::raw("text/event-stream", chunks)
    };
    match wire {
        Wire::OpenaiChat => events(vec![
            json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": PART}}]}),
            json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "content_filter",
                "content_filter_results": {"violence": {"filtered": true}}}]}),
        ]),
        Wire::OpenaiResponses => events(vec![
            json!({"type": "response.output_text.delta", "output_index": 0, "delta": PART}),
            json!({"type": "response.incomplete", "response": {"status": "incomplete",
                "incomplete_details": {"reason": "content_filter"}, "content_filters": [
                {"blocked": true, "content_filter_results": {"violence": {"filtered": true}}}]}}),
        ]),
        Wire::AnthropicMessages => events(vec![
            json!({"type": "message_start", "message": {"role": "assistant", "content": []}}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            json!({"type": "content_block_delta", "index": 0,
                "delta": {"type": "text_delta", "text": PART}}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details":
                {"type": "refusal", "category": "violence", "explanation": "It is declined."}}}),
            json!({"type": "message_stop"}),
        ]),
        Wire::GeminiGenerate => events(vec![
            json!({"candidates": [{"content": {"role": "model", "parts": [{"text": PART}]}}]}),
            json!({"candidates": [{"finishReason": "SAFETY", "safetyRatings":
                [{"category": "violence", "blocked": true}]}]}),
        ]),
        Wire::OllamaChat => Response::raw(
            "application/x-ndjson",
            [
                json!({"message": {"role": "assistant", "content": PART}, "done": false}),
                json!({"message": {"role": "assistant", "content": ""}, "done": true,
                    "done_reason": "content_filter"}),
            ]
            .map(|line| format!("{line}\n")),
        ),
    }
}

/// Starts a host of one wire whose agent falls back to a second model.
async fn with_second_model(
    wire: Wire,
    on_refusal: OnRefusal,
    responses: impl IntoIterator<Item = Response>,
) -> (World, CallControl) {
    let control = CallControl::new();
    let script = Script::new(responses).then_done();
    let world = world_of(wire, script, registry(&control), |config| {
        let mut second = config.models["rehearsal"].clone();
        second.model = "second".into();
        config.models.insert("second".into(), second);
        let agent = config.agents.get_mut("default").expect("the agent");
        agent.fallback_models = vec!["second".into()];
        agent.on_refusal = on_refusal;
    })
    .await;
    (world, control)
}

fn last_event<'a>(events: &'a [Value], kind: &str) -> &'a Value {
    events.iter().rfind(|event| event["type"] == kind).expect("the event")
}

/// Runs to the end, and returns the events too.
async fn run_with_events(world: &World, input: &str) -> (RunReport, Vec<Value>) {
    let started = world.session.start_run(input).await.expect("a run");
    let events = events(started.events).await;
    (within(started.report).await.expect("a report"), events)
}

/// Checks the records of the session, and that a session that is read from them has the same messages.
async fn check_stored(world: &World) {
    let entries = world.session.records(Seq(0)).await.expect("the records");
    let breaches = verify(world.session.id(), &entries);
    assert!(breaches.is_empty(), "{breaches:?}");
    let stored = StoredSession::read(&entries, &|_| Default::default()).expect("a session");
    let messages = serde_json::to_value(stored.session.history().display_messages());
    let messages = messages.expect("JSON").to_string();
    assert!(!messages.contains(QUESTION) && !messages.contains(PART), "{messages}");
    world.assert_paired();
}

#[tokio::test]
async fn a_refused_run_names_the_reason_and_is_left_out_of_later_requests() {
    for wire in WIRES {
        let responses = [Response::text("Hello."), refused(wire), Response::text("Well.")];
        let (world, _) = with_second_model(wire, OnRefusal::End, responses).await;
        assert_eq!(world.run("hello").await.run_end, RunEnd::Answered);
        let (report, events) = run_with_events(&world, QUESTION).await;
        assert_eq!((report.run_end, &*report.text), (RunEnd::Refused, PART), "{wire}");
        assert_eq!(report.error.as_ref().map(|error| &*error.code), Some("CONTENT_REFUSED"));
        let category = (wire != Wire::OllamaChat).then_some("violence");
        let refusal = report.refusal.clone().expect("a refusal");
        assert_eq!(refusal.category.as_deref(), category, "{wire}");
        let said = (wire == Wire::AnthropicMessages).then_some("It is declined.");
        assert_eq!(refusal.explanation.as_deref(), said, "{wire}");
        for kind in ["turn_end", "stream_end"] {
            assert_eq!(last_event(&events, kind)["refusal"], json!(refusal), "{wire} {kind}");
            assert_eq!(last_event(&events, kind)["finish_reason"], "content_filter");
        }
        // The report has the whole run, and later requests nothing of it.
        assert_eq!(report.run_messages().len(), 2, "{wire}");
        assert_eq!(world.run("and now?").await.text, "Well.", "{wire}");
        let requests = world.requests();
        assert_eq!(requests.len(), 3, "{wire}");
        let last = requests[2].body.to_string();
        assert!(!last.contains(QUESTION) && !last.contains(PART), "{wire}: {last}");
        assert!(last.contains("hello") && last.contains("and now?"), "{wire}: {last}");
        let page = world.host.telemetry().render();
        let series = "callsheet_prompt_prefix_breaks_total{reason=\"excluded\"} 1";
        assert!(page.contains(series), "{wire}: {page}");
        check_stored(&world).await;
    }
}

#[tokio::test]
async fn on_refusal_fallback_the_next_model_answers_and_the_shown_text_is_void() {
    for wire in WIRES {
        let when = When { model: Some("second".into()), ..When::default() };
        let second = Response { when, ..Response::text("Gladly.") };
        let responses = [second, refused(wire), Response::text("Well.")];
        let (world, _) = with_second_model(wire, OnRefusal::Fallback, responses).await;
        let (report, events) = run_with_events(&world, "a question").await;
        assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "Gladly."), "{wire}");
        assert_eq!((report.error, report.refusal), (None, None), "{wire}");
        let attempt = last_event(&events, "attempt");
        assert_eq!(attempt["model"], "second");
        let reason = attempt["reason"].as_str().expect("a reason");
        assert!(reason.starts_with("the model or its service refused to answer"), "{reason}");
        assert_eq!(world.requests().len(), 2, "{wire}");
        assert_eq!(world.run("and now?").await.text, "Well.", "{wire}");
        check_stored(&world).await;
    }
}

#[tokio::test]
async fn a_refusal_by_the_last_model_ends_the_run() {
    let responses = [Response { repeat: true, ..refused(Wire::OpenaiChat) }];
    let (world, _) = with_second_model(Wire::OpenaiChat, OnRefusal::Fallback, responses).await;
    let report = world.run(QUESTION).await;
    assert_eq!((report.run_end, &*report.text), (RunEnd::Refused, PART));
    assert_eq!(world.requests().len(), 2);
    check_stored(&world).await;
}

#[tokio::test]
async fn an_error_by_which_the_service_refuses_the_prompt_is_a_refusal() {
    let error = json!({"error": {"code": "content_filter", "message": "It was filtered.",
        "innererror": {"content_filter_result": {"jailbreak": {"filtered": true}}}}});
    for (on_refusal, requests) in [(OnRefusal::End, 1), (OnRefusal::Fallback, 2)] {
        let filtered = Response { error: Some(error.clone()), ..Response::status(400) };
        let responses = vec![filtered; requests].into_iter().chain([Response::text("Well.")]);
        let (world, _) = with_second_model(Wire::OpenaiChat, on_refusal, responses).await;
        let report = world.run(QUESTION).await;
        assert_eq!((report.run_end, &*report.text), (RunEnd::Refused, ""));
        let refusal = report.refusal.expect("a refusal");
        assert_eq!(refusal.category.as_deref(), Some("jailbreak"));
        assert!(refusal.explanation.as_deref().unwrap_or_default().contains("It was filtered."));
        assert_eq!(world.requests().len(), requests);
        assert_eq!(world.run("and now?").await.text, "Well.");
        assert!(
            !world.last_messages().iter().any(|message| message.to_string().contains(QUESTION))
        );
        let entries = world.session.records(Seq(0)).await.expect("the records");
        assert!(verify(world.session.id(), &entries).is_empty());
    }
}

#[tokio::test]
async fn the_calls_of_a_refused_run_stay_with_their_results() {
    for wire in WIRES {
        let responses =
            [Response::calls([call("writes", "a")]), refused(wire), Response::text("Well.")];
        let (world, control) = with_second_model(wire, OnRefusal::End, responses).await;
        assert_eq!(world.run(QUESTION).await.run_end, RunEnd::Refused, "{wire}");
        assert_eq!(control.log(), ["start a", "end a"]);
        assert_eq!(world.run("and now?").await.text, "Well.", "{wire}");
        let last = world.requests()[2].body.to_string();
        assert!(!last.contains(QUESTION) && !last.contains(PART), "{wire}: {last}");
        assert!(
            last.contains("done a") && last.contains("The input is left out"),
            "{wire}: {last}"
        );
        check_stored(&world).await;
    }
}

#[tokio::test]
async fn a_cut_answer_says_so() {
    for (wire, word) in [
        (Wire::OpenaiChat, "length"),
        (Wire::OpenaiChat, "max_tokens"),
        (Wire::OpenaiChat, "model_context_window_exceeded"),
        (Wire::OpenaiResponses, "incomplete"),
        (Wire::AnthropicMessages, "max_tokens"),
        (Wire::AnthropicMessages, "model_context_window_exceeded"),
        (Wire::GeminiGenerate, "MAX_TOKENS"),
        (Wire::OllamaChat, "length"),
    ] {
        for stream in [true, false] {
            let finish_reason = Finish::Word(word.into());
            let cut = Response { finish_reason, ..Response::text("Half a sen") };
            let script = Script::new([cut]).then_done();
            let world = world_of(wire, script, ToolRegistry::new(), |config| {
                model(config).stream = stream;
            })
            .await;
            let (report, events) = run_with_events(&world, "go").await;
            assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "Half a sen"), "{wire}");
            assert!(report.truncated, "{wire} {word}");
            assert_eq!(report.finish_reason, Some(FinishKind::Length), "{wire} {word}");
            let end = last_event(&events, "stream_end");
            assert_eq!(
                (&end["truncated"], &end["finish_reason"]),
                (&json!(true), &json!("length"))
            );
            let (report, events) = run_with_events(&world, "go on").await;
            assert!(!report.truncated, "{wire}");
            let end = last_event(&events, "stream_end");
            assert_eq!((&end["truncated"], &end["finish_reason"]), (&json!(false), &json!("stop")));
        }
    }
}

#[tokio::test]
async fn a_completed_response_with_all_the_tokens_that_it_was_allowed_is_cut_off() {
    for stream in [true, false] {
        let usage = |tokens| Some(json!({"input_tokens": 9, "output_tokens": tokens}));
        let responses = [
            Response { usage: usage(40), ..Response::text("Half a sen") },
            Response { usage: usage(39), ..Response::text("Whole.") },
        ];
        let script = Script::new(responses);
        let world = world_of(Wire::OpenaiResponses, script, ToolRegistry::new(), |config| {
            model(config).stream = stream;
            model(config).max_output_tokens = Some(40);
        })
        .await;
        assert!(world.run("go").await.truncated);
        assert!(!world.run("go on").await.truncated);
    }
}

#[tokio::test]
async fn an_input_without_an_answer_is_joined_only_where_roles_must_alternate_and_counted() {
    for wire in WIRES {
        let held = Response::text("Never.").hold(ScriptPosition::Headers, "stop");
        let script = Script::new([Response::text("Hello."), held, Response::text("Well.")]);
        let world = world_of(wire, script, ToolRegistry::new(), |_| ()).await;
        world.run("hello").await;
        let started = world.session.start_run("first").await.expect("a run");
        within(world.model.wait_for_gate("stop")).await;
        world.session.stop(StopMode::Now).await.expect("a stop");
        assert_eq!(within(started.report).await.expect("a report").run_end, RunEnd::Stopped);
        world.model.open_gate("stop");
        assert_eq!(world.run("second").await.run_end, RunEnd::Answered);
        let page = world.host.telemetry().render();
        let breaks = |reason: &str| {
            let series = format!("callsheet_prompt_prefix_breaks_total{{reason=\"{reason}\"}} ");
            let value = page.lines().find_map(|line| line.strip_prefix(&series));
            value.map(str::to_owned).unwrap_or_default()
        };
        let joined = if wire == Wire::OpenaiChat { "1" } else { "0" };
        assert_eq!((&*breaks("inputs_joined"), &*breaks("unexplained")), (joined, "0"), "{wire}");
        world.assert_paired();
    }
}
