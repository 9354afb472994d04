//! Runs over the Responses wire: over HTTP, against the mock provider, which refuses what OpenAI
//! refuses.
#![expect(clippy::unwrap_used, reason = "a test")]

use crate::support::tools::{CallControl, registry};
use crate::support::{World, parallel, within, world_of};
use callsheet::config::Config;
use callsheet::response::{ResponseLimits, decode_body, describe_response};
use callsheet::runtime::RunReport;
use callsheet::types::{RunEnd, Wire};
use callsheet::wire::{DecoderOptions, Framing};
use callsheet_mock_provider::{Call, Finish, Response, Script, ScriptPosition};
use serde_json::{Value, json};

fn call(tool: &str, id: &str) -> Call {
    Call::new(tool, json!({"id": id})).id(&format!("call-{id}"))
}

fn asking(ids: [&str; 2]) -> Response {
    Response {
        reasoning: vec!["Hm, ".into(), "two.".into()],
        ..Response::calls(ids.map(|id| call("quick", id)))
    }
}

async fn scripted(
    responses: impl IntoIterator<Item = Response>,
    change: impl FnOnce(&mut Config),
) -> (World, CallControl) {
    let control = CallControl::new();
    let script = Script::new(responses).then_done();
    let world = world_of(Wire::OpenaiResponses, script, registry(&control), |config| {
        parallel(8)(config);
        change(config);
    })
    .await;
    (world, control)
}

fn plain(config: &mut Config) {
    config.models.values_mut().for_each(|model| model.stream = false);
}

fn input(world: &World) -> Vec<Value> {
    world.requests().last().unwrap().body["input"].as_array().unwrap().clone()
}

fn types(items: &[Value]) -> Vec<&str> {
    items.iter().map(|item| item["type"].as_str().unwrap()).collect()
}

async fn two_turns_of_parallel_calls(change: impl FnOnce(&mut Config)) {
    let commented = Response { text: vec!["And ".into(), "more.".into()], ..asking(["c", "d"]) };
    let responses = [asking(["a", "b"]), commented, Response::text("All done.")];
    let (world, control) = scripted(responses, change).await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "All done."));
    assert_eq!(control.log().len(), 8);
    let items = input(&world);
    assert_eq!(
        types(&items),
        [
            "message",
            "reasoning",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output",
            "reasoning",
            "message",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output",
        ]
    );
    // The items go back as the service sent them, each before the item that it led to.
    let summary = json!([{"type": "summary_text", "text": "Hm, two."}]);
    for (at, id) in [(1, "rs_t1_0"), (6, "rs_t2_0")] {
        assert_eq!((&items[at]["id"], &items[at]["summary"]), (&json!(id), &summary));
        assert!(items[at]["encrypted_content"].as_str().unwrap().contains(id));
    }
    assert_eq!(
        items[2],
        json!({"type": "function_call", "id": "fc_t1_1", "status": "completed",
            "call_id": "call-a", "name": "quick", "arguments": "{\"id\":\"a\"}"})
    );
    assert_eq!(
        items[7],
        json!({"type": "message", "id": "msg_t2_1", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": "And more.", "annotations": []}]})
    );
    let outputs: Vec<_> = [4, 5, 10, 11]
        .map(|at| (items[at]["call_id"].as_str().unwrap(), items[at]["output"].as_str().unwrap()))
        .into();
    assert_eq!(
        outputs,
        [("call-a", "done a"), ("call-b", "done b"), ("call-c", "done c"), ("call-d", "done d")]
    );
    assert_eq!(world.requests()[0].path, "/v1/responses");
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
    world.assert_paired();
}

#[tokio::test]
async fn two_turns_of_parallel_calls_streamed() {
    two_turns_of_parallel_calls(|_| {}).await;
}

#[tokio::test]
async fn two_turns_of_parallel_calls_plain() {
    two_turns_of_parallel_calls(plain).await;
}

#[tokio::test]
async fn a_call_starts_while_the_response_still_streams() {
    let calls = [call("quick", "a"), call("quick", "b")];
    let response = Response::calls(calls).hold(ScriptPosition::Call(1), "next");
    let (world, control) = scripted([response, Response::text("All done.")], |_| {}).await;
    let started = world.session.start_run("go").await.unwrap();
    within(world.model.wait_for_gate("next")).await;
    control.until_logged("end a").await;
    assert_eq!(control.log(), ["start a", "end a"]);
    world.model.open_gate("next");
    let report = within(started.report).await.unwrap();
    assert_eq!((report.run_end, report.calls.len()), (RunEnd::Answered, 2));
    world.assert_paired();
}

async fn after(first: Response) -> (RunReport, World) {
    let (world, _) = scripted([first, Response::text("Here it is.")], |_| {}).await;
    let report = world.run("go").await;
    (report, world)
}

#[tokio::test]
async fn broken_responses_are_retried() {
    let text = || Response::text("This will not come whole.");
    for broken in [
        Response { cut_after_chunks: Some(5), ..text() },
        Response { truncate: true, ..text() },
        Response { malformed_at_chunk: Some(5), ..text() },
        Response { cut_after_chunks: Some(8), ..asking(["a", "b"]) },
        Response { finish_reason: Finish::Word("error".into()), ..text() },
        Response::status(500),
    ] {
        let (report, world) = after(broken.clone()).await;
        let ended = (report.run_end, report.text.as_str());
        assert_eq!(ended, (RunEnd::Answered, "Here it is."), "{broken:?}");
        assert_eq!(world.requests().len(), 2);
        world.assert_paired();
    }
}

fn error_event(code: &str) -> Response {
    let error = json!({"type": "error", "code": code, "message": "It failed.", "param": null});
    let created = json!({"type": "response.created", "response": {"status": "in_progress"}});
    let frame = |event: Value| format!("data: {event}\n\n");
    Response::raw("text/event-stream", [frame(created), frame(error)])
}

#[tokio::test]
async fn an_error_within_a_stream_is_retried_unless_its_code_is_permanent() {
    for code in ["rate_limit_exceeded", "server_error", "nobody_knows"] {
        let (report, world) = after(error_event(code)).await;
        assert_eq!(report.run_end, RunEnd::Answered, "{code}");
        assert_eq!(world.requests().len(), 2, "{code}");
    }
    for code in ["insufficient_quota", "invalid_prompt", "context_length_exceeded"] {
        let (report, world) = after(error_event(code)).await;
        assert_eq!(report.run_end, RunEnd::Failed, "{code}");
        assert!(report.error.unwrap().message.contains("It failed."), "{code}");
        assert_eq!(world.requests().len(), 1, "{code}");
    }
}

#[tokio::test]
async fn calls_that_are_cut_off_are_answered_and_the_session_goes_on() {
    let cut = Response {
        calls: vec![call("quick", "a"), Call::raw("quick", "{\"id\": \"b").id("call-b")],
        finish_reason: Finish::Word("length".into()),
        ..asking(["a", "b"])
    };
    let (report, world) = after(cut).await;
    assert_eq!((report.run_end, report.calls.len()), (RunEnd::Answered, 2));
    let items = input(&world);
    let cut_off = items.iter().find(|item| item["call_id"] == "call-b").unwrap();
    assert_eq!((&cut_off["type"], &cut_off["arguments"]), (&json!("function_call"), &json!("{}")));
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
    world.assert_paired();
}

#[tokio::test]
async fn a_kept_call_goes_back_with_the_reasoning_that_led_to_it() {
    let (world, _) = scripted([asking(["a", "b"]), Response::text("Done.")], |config| {
        config.agents.get_mut("default").unwrap().multi_tool_calls = false;
    })
    .await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.calls.len()), (RunEnd::Answered, 1));
    let items = input(&world);
    let expected = ["message", "reasoning", "function_call", "function_call_output"];
    assert_eq!(types(&items), expected);
    world.assert_paired();
}

/// The service sends every part of this response several times. The response decodes to the same
/// with any of the repetitions left out, as long as one remains of each part.
#[test]
fn a_response_decodes_to_the_same_without_its_repetitions() {
    let arguments = json!({"id": "a"}).to_string();
    let content = json!([{"type": "output_text", "text": "Hi."}]);
    let message = |content: &Value| json!({"type": "message", "id": "m", "content": content});
    let call = |arguments: &str| {
        json!({"type": "function_call", "id": "f", "call_id": "c", "name": "n",
            "arguments": arguments})
    };
    let item = |kind: &str, index: u8, item: Value| json!({"type": format!("response.output_item.{kind}"), "output_index": index, "item": item});
    let piece = |kind: &str, index: u8, key: &str, value: &str| json!({"type": format!("response.{kind}"), "output_index": index, key: value});
    let (head, tail) = arguments.split_at(4);
    let repetitions = [
        vec![item("added", 0, message(&json!([])))],
        vec![
            piece("output_text.delta", 0, "delta", "H"),
            piece("output_text.delta", 0, "delta", "i."),
        ],
        vec![piece("output_text.done", 0, "text", "Hi.")],
        vec![item("done", 0, message(&content))],
        vec![item("added", 1, call(""))],
        vec![
            piece("function_call_arguments.delta", 1, "delta", head),
            piece("function_call_arguments.delta", 1, "delta", tail),
        ],
        vec![piece("function_call_arguments.done", 1, "arguments", &arguments)],
        vec![item("done", 1, call(&arguments))],
    ];
    let mut tried = 0;
    for (left_out, has_output) in (0_u32..256).flat_map(|set| [(set, true), (set, false)]) {
        let has = |at: usize| left_out & (1 << at) == 0;
        let says_text = has_output || has(1) || has(2) || has(3);
        let says_call = has_output || has(7) || (has(4) && (has(5) || has(6)));
        if !says_text || !says_call {
            continue;
        }
        tried += 1;
        let output =
            if has_output { json!([message(&content), call(&arguments)]) } else { json!([]) };
        let end = json!({"type": "response.completed",
            "response": {"status": "completed", "output": output}});
        let kept = repetitions.iter().enumerate().filter(|(at, _)| has(*at));
        let events = kept.flat_map(|(_, events)| events).chain([&end]);
        let body: String = events.map(|event| format!("{event}\n")).collect();
        let limits = (DecoderOptions::default(), ResponseLimits::default());
        let found = decode_body(Wire::OpenaiResponses, Framing::JsonLines, limits, body.as_bytes());
        let found = describe_response(&found);
        assert_eq!(found["text"], "Hi.", "{body}");
        let expected = json!([{"index": 1, "id": "c", "name": "n", "arguments": {"id": "a"},
            "arguments_raw": arguments, "complete": true, "kind": "function"}]);
        assert_eq!(found["tool_calls"], expected, "{body}");
        assert_eq!((&found["problems"], &found["error"]), (&json!([]), &Value::Null), "{body}");
    }
    assert!(tried > 256, "{tried}");
}
