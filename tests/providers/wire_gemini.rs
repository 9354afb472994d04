//! Runs over Gemini's wire: over HTTP, against the mock provider, which refuses what Gemini
//! refuses.
#![expect(clippy::unwrap_used, reason = "a test")]

use crate::support::tools::{CallControl, registry};
use crate::support::{World, within, world_of};
use callsheet::config::Config;
use callsheet::response::{ResponseLimits, decode_body, describe_response};
use callsheet::runtime::{OpenSession, RunReport};
use callsheet::types::{Execution, RunEnd, ToolStatus, Wire};
use callsheet::wire::{DecoderOptions, Framing};
use callsheet_mock_provider::{Call, Response, Script, ScriptPosition};
use serde_json::{Value, json};

fn call(tool: &str, id: &str) -> Call {
    Call::new(tool, json!({"id": id}))
}

/// Starts a host with a model that requires signatures.
async fn world(control: &CallControl, script: Script, stream: bool) -> World {
    let change = |config: &mut Config| {
        for model in config.models.values_mut() {
            model.model = "gemini-3-mock".into();
            model.stream = stream;
        }
        config.agents.get_mut("default").unwrap().execution = Execution::Parallel { max: 8 };
    };
    world_of(Wire::GeminiGenerate, script, registry(control), change).await
}

fn last_contents(world: &World) -> Vec<Value> {
    world.requests().last().unwrap().body["contents"].as_array().unwrap().clone()
}

fn roles(contents: &[Value]) -> Vec<&str> {
    contents.iter().map(|content| content["role"].as_str().unwrap()).collect()
}

fn result(name: &str, output: &str) -> Value {
    json!({"functionResponse": {"name": name, "response": {"output": output}}})
}

fn events(payloads: &[Value]) -> Response {
    let events = payloads.iter().map(|payload| format!("data: {payload}\r\n\r\n"));
    Response::raw("text/event-stream", events.collect::<Vec<_>>())
}

fn parts(parts: Value) -> Value {
    json!({"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}]})
}

fn finish(word: &str) -> Value {
    json!({"candidates": [{"finishReason": word, "index": 0}],
        "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2, "thoughtsTokenCount": 3}})
}

#[track_caller]
fn assert_answered(report: &RunReport) {
    assert_eq!((report.run_end, report.error.as_ref()), (RunEnd::Answered, None));
    assert!(report.calls.iter().all(|call| call.status == ToolStatus::Ok), "{:?}", report.calls);
}

#[tokio::test]
async fn turns_with_parallel_tools_streamed_and_plain() {
    for stream in [true, false] {
        let control = CallControl::new();
        let first = Response {
            text: vec!["Let me look.".into()],
            reasoning: vec!["Hm.".into()],
            ..Response::calls([call("quick", "a"), call("writes", "b"), call("quick", "c")])
        };
        let second = Response::calls([call("quick", "d").id("given"), call("fails", "e")]);
        let script = Script::new([first, second, Response::text("All done.")]);
        let world = world(&control, script, stream).await;
        let report = world.run("go").await;
        assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "All done."));
        let contents = last_contents(&world);
        assert_eq!(roles(&contents), ["user", "model", "user", "model", "user"]);
        assert_eq!(
            contents[2]["parts"],
            json!([
                result("quick", "done a"),
                result("writes", "done b"),
                result("quick", "done c")
            ])
        );
        let answers = &contents[4]["parts"];
        assert_eq!(answers[0]["functionResponse"]["id"], "given");
        assert!(answers[1]["functionResponse"]["response"]["error"].is_string(), "{answers}");
        let method = if stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
        for request in world.requests() {
            assert_eq!(request.path, format!("/v1/models/gemini-3-mock:{method}"));
        }
        // The next run sends the signature of the answer back.
        assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
        let contents = last_contents(&world);
        let answer = contents[5]["parts"].as_array().unwrap();
        assert!(answer.last().unwrap()["thoughtSignature"].is_string(), "{answer:?}");
        world.assert_paired();
    }
}

#[tokio::test]
async fn signatures_go_back_unchanged_in_their_part() {
    let control = CallControl::new();
    let thought = json!({"text": "Hm.", "thought": true, "thoughtSignature": "c2lnIHI="});
    let text = json!({"text": "Look:"});
    let empty = json!({"text": "", "thoughtSignature": "c2lnIHQ="});
    let own = json!({"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "c2lnIG8="});
    let first = json!({"functionCall": {"name": "quick", "args": {"id": "a"}}, "thoughtSignature": "c2lnIGM="});
    let second = json!({"functionCall": {"name": "quick", "args": {"id": "b"}}});
    let script = Script::new([
        events(&[
            parts(json!([thought])),
            parts(json!([text])),
            parts(json!([empty, own])),
            parts(json!([first, second])),
            finish("STOP"),
        ]),
        Response::text("All done."),
    ]);
    let world = world(&control, script, true).await;
    assert_answered(&world.run("go").await);
    let contents = last_contents(&world);
    assert_eq!(contents[1]["parts"], json!([thought, text, empty, own, first, second]));
    world.assert_paired();
}

#[tokio::test]
async fn a_call_in_pieces_runs_with_its_complete_arguments() {
    let control = CallControl::new();
    let mut call = Call::new("quick", json!({"id": "a long one, \"quoted\""}));
    call.pieces = Some(4);
    let first = Response::calls([call]).hold(ScriptPosition::Finish, "finish");
    let world = world(&control, Script::new([first, Response::text("All done.")]), true).await;
    let started = world.session.start_run("go").await.unwrap();
    within(world.model.wait_for_gate("finish")).await;
    // The call was sealed when it was closed, before the response ended.
    control.until_logged("end a long one, \"quoted\"").await;
    world.model.open_gate("finish");
    assert_answered(&within(started.report).await.unwrap());
    world.assert_paired();
}

#[tokio::test]
async fn a_call_that_is_never_closed_is_answered_and_never_run() {
    let control = CallControl::new();
    let script = Script::new([
        Response::calls([Call::raw("quick", "{\"id\": \"a"), call("quick", "b")]),
        Response::text("All done."),
    ]);
    let world = world(&control, script, true).await;
    let report = world.run("go").await;
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(control.log(), ["start b", "end b"]);
    let statuses: Vec<_> = report.calls.iter().map(|call| call.status).collect();
    assert_eq!(statuses[1], ToolStatus::Ok);
    assert_ne!(statuses[0], ToolStatus::Ok);
    world.assert_paired();
}

#[tokio::test]
async fn a_complete_call_starts_before_the_response_has_ended() {
    let control = CallControl::new();
    let first = Response::calls([call("quick", "a"), call("writes", "b")])
        .hold(ScriptPosition::Finish, "finish");
    let world = world(&control, Script::new([first, Response::text("All done.")]), true).await;
    let started = world.session.start_run("go").await.unwrap();
    within(world.model.wait_for_gate("finish")).await;
    control.until_logged("end a").await;
    // The call with effects waits for the finish reason.
    assert_eq!(control.log(), ["start a", "end a"]);
    world.model.open_gate("finish");
    assert_answered(&within(started.report).await.unwrap());
    world.assert_paired();
}

#[tokio::test]
async fn a_stream_that_breaks_is_retried() {
    let control = CallControl::new();
    let asks = || Response::calls([call("quick", "a")]);
    let script = Script::new([
        asks().with(|response| response.cut_after_chunks = Some(2)),
        asks().with(|response| response.truncate = true),
        asks(),
        Response::text("All done."),
    ]);
    let world = world(&control, script, true).await;
    assert_answered(&world.run("go").await);
    assert_eq!(world.requests().len(), 4);
    // The result of the pure call is kept from the first attempt.
    assert_eq!(control.log(), ["start a", "end a"]);
    world.assert_paired();
}

#[tokio::test]
async fn an_error_within_a_stream_fails_the_attempt() {
    let error = json!({"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE",
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.001s"}]}});
    let text = format!("data: {}\n\n", parts(json!([{"text": "Half"}])));
    let bare = format!("{error:#}");
    let event = format!("data: {error}\n\n");
    for error in [bare, event] {
        let control = CallControl::new();
        let broken = Response::raw("text/event-stream", [text.clone(), error]);
        let world = world(&control, Script::new([broken, Response::text("Whole.")]), true).await;
        let report = world.run("go").await;
        assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Whole."));
        assert_eq!(world.requests().len(), 2);
    }
}

#[tokio::test]
async fn a_blocked_prompt_or_answer_ends_the_run_refused() {
    let blocked = json!({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": 5}, "modelVersion": "m"});
    let cut = json!({"candidates": [{"finishReason": "RECITATION", "index": 0}]});
    for answer in [
        events(std::slice::from_ref(&blocked)),
        Response::raw("application/json", [blocked.to_string()]),
        events(&[parts(json!([{"text": "Once"}])), finish("STOP"), cut]),
    ] {
        let control = CallControl::new();
        let world = world(&control, Script::new([answer, Response::text("Fine.")]), true).await;
        assert_eq!(world.run("go").await.run_end, RunEnd::Refused);
        // The session can still be used.
        assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
        world.assert_paired();
    }
}

#[tokio::test]
async fn a_history_of_another_wire_is_accepted() {
    let control = CallControl::new();
    let script = Script::new([Response::calls([call("quick", "b")]), Response::text("All done.")]);
    let world = world(&control, script, true).await;
    let asks = |id: &str, name: &str, arguments: Value| {
        let function = json!({"name": name, "arguments": arguments.to_string()});
        json!({"id": id, "type": "function", "function": function})
    };
    let calls = [
        asks("functions.quick:0", "quick", json!({"id": "x"})),
        asks("0", "get weather!", json!({})),
        asks("call_7", "quick", json!({"id": "a"})),
    ];
    // The history begins with the model and ends in calls that the first run answers.
    let messages = vec![
        json!({"role": "assistant", "content": "Hello."}),
        json!({"role": "user", "content": "a"}),
        json!({"role": "user", "content": "b"}),
        json!({"role": "assistant", "content": null, "tool_calls": calls}),
    ];
    let open = OpenSession::default().with(|new| new.messages = messages);
    let session = world.host.open_session(open).await.unwrap();
    let report = within(session.run("go")).await.unwrap();
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "All done."));
    let contents = last_contents(&world);
    let calls = contents[3]["parts"].as_array().unwrap();
    assert_eq!(calls[0]["thoughtSignature"], "skip_thought_signature_validator");
    assert!(calls.iter().all(|part| part["functionCall"]["id"].is_null()), "{calls:?}");
    assert!(calls[1].get("thoughtSignature").is_none());
    world.assert_paired();
}

/// Returns the output of `callsheet decode` for a stream of these payloads.
fn decoded(payloads: &[Value]) -> Value {
    let body: String = payloads.iter().map(|payload| format!("data: {payload}\n\n")).collect();
    let limits = (DecoderOptions::default(), ResponseLimits::default());
    describe_response(&decode_body(Wire::GeminiGenerate, Framing::Sse, limits, body.as_bytes()))
}

#[test]
fn decode_shows_incomplete_calls() {
    let open = json!({"functionCall": {"name": "f", "willContinue": true}});
    let misplaced = json!({"functionCall": {"name": "f",
        "partialArgs": [{"jsonPath": "$.a[1000000000]", "numberValue": 1}]}});
    let nameless = json!({"functionCall": {"args": {"a": 1}}});
    for (call, problems, shown) in [
        // The next call closes it, as on Chat Completions.
        (open, json!([]), (json!(true), json!({}))),
        (
            misplaced,
            json!(["argument_without_place", "arguments_cut_off"]),
            (json!(false), Value::Null),
        ),
        (nameless, json!(["call_without_name"]), (json!(false), Value::Null)),
    ] {
        let whole = json!({"functionCall": {"name": "g"}});
        let found = decoded(&[parts(json!([call, whole])), finish("STOP")]);
        let codes: Vec<_> =
            found["problems"].as_array().unwrap().iter().map(|problem| &problem["code"]).collect();
        assert_eq!(json!(codes), problems, "{found}");
        let calls = found["tool_calls"].as_array().unwrap();
        assert_eq!(calls.last().unwrap()["complete"], true, "{found}");
        for cut in calls.iter().filter(|call| call["name"] == "f") {
            assert_eq!((&cut["complete"], &cut["arguments"]), (&shown.0, &shown.1));
        }
    }
}

#[test]
fn a_blocked_prompt_has_no_finish_reason() {
    let found = decoded(&[json!({"promptFeedback": {"blockReason": "SAFETY"}})]);
    for key in ["finish_reason", "error"] {
        assert_eq!(found[key], Value::Null, "{found}");
    }
    assert_eq!(found["problems"], json!([]));
}
