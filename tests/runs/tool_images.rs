//! Results of tools that are more than text: images, resources and structured values.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use crate::support::tools::{CallControl, registry};
use crate::support::{World, within, world_of};
use callsheet::config::{BaseUrl, Config, ToolPattern};
use callsheet::journal::{Journal, MemoryJournal};
use callsheet::runtime::{Host, OpenSession, RunReport, RunRequest};
use callsheet::tool::{IntoTool, ToolOutput, ToolSpec};
use callsheet::types::{Image, ResultResource, RunEnd, Wire};
use callsheet_mock_provider::{Call, MockProvider, Response, Script};
use serde_json::{Value, json};

const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=";

fn pixel() -> Image {
    Image::Base64 { media_type: "image/png".into(), data: PIXEL.into() }
}

/// Starts a host whose model first calls `chart` twice and then answers.
async fn world_with(wire: Wire, output: ToolOutput) -> World {
    let calls = [Call::new("chart", json!({})), Call::new("chart", json!({}))];
    let script = Script::new([
        Response::calls(calls),
        Response::text("Seen."),
        Response::text("Still here."),
    ]);
    let mut tools = registry(&CallControl::new());
    let chart = ToolSpec::named("chart", "Draws a chart.").into_tool(move |(): (), _| {
        let output = output.clone();
        async move { Ok(output) }
    });
    tools.register(chart).unwrap();
    world_of(wire, script, tools, |_| ()).await
}

async fn run(world: &World, input: &str) -> RunReport {
    let report = within(world.session.run(RunRequest::from(input))).await.unwrap();
    assert_eq!(report.run_end, RunEnd::Answered, "{:?}", report.error);
    report
}

fn chart() -> ToolOutput {
    let file = ResultResource::new("chart.csv", "text/csv").with_text("a,b");
    ToolOutput::from("Sales:").with_part(pixel()).with_part(file)
}

/// The text of the result for models that see no images in results.
const TEXT: &str =
    "Sales:\n[image image/png, 68 bytes]\n[resource chart.csv, text/csv, 3 bytes]\na,b";

#[tokio::test(flavor = "multi_thread")]
async fn every_wire_sends_the_images_of_results() {
    for (name, wire) in Wire::NAMES {
        let world = world_with(wire, chart()).await;
        let report = run(&world, "draw").await;
        assert_eq!((&*report.calls[0].result, report.calls[0].content.len()), (TEXT, 3));
        run(&world, "and now?").await;
        world.assert_paired();
        let requests = world.requests();
        assert!(requests.iter().all(|request| request.status == 200), "{name}");
        for request in &requests[1..] {
            let body = request.body.to_string();
            assert_eq!(body.matches(PIXEL).count(), 2, "{name}: {body}");
            assert!(body.contains("chart.csv"), "{name}: {body}");
        }
    }
}

async fn second_request(wire: Wire, output: ToolOutput) -> Value {
    let world = world_with(wire, output).await;
    run(&world, "draw").await;
    world.requests()[1].body.clone()
}

#[tokio::test]
async fn three_wires_have_the_images_in_the_results() {
    let body = second_request(Wire::AnthropicMessages, chart()).await;
    let source = json!({"type": "base64", "media_type": "image/png", "data": PIXEL});
    assert_eq!(
        body["messages"][2]["content"][0]["content"],
        json!([
            {"type": "text", "text": "Sales:"},
            {"type": "image", "source": source},
            {"type": "text", "text": "[resource chart.csv, text/csv, 3 bytes]\na,b"},
        ])
    );
    let body = second_request(Wire::OpenaiResponses, chart()).await;
    let items = body["input"].as_array().unwrap();
    let output = items.iter().find(|item| item["type"] == "function_call_output").unwrap();
    let url = format!("data:image/png;base64,{PIXEL}");
    assert_eq!(
        output["output"][1],
        json!({"type": "input_image", "image_url": url, "detail": "auto"})
    );
    let body = second_request(Wire::GeminiGenerate, chart()).await;
    let results = &body["contents"][2]["parts"];
    assert_eq!(
        results[0]["functionResponse"]["parts"],
        json!([{"inlineData": {"mimeType": "image/png", "data": PIXEL}}])
    );
    assert_eq!(results[0]["functionResponse"]["response"]["output"], TEXT);
}

#[tokio::test]
async fn two_wires_have_them_in_a_message_behind_all_results() {
    let url = format!("data:image/png;base64,{PIXEL}");
    let body = second_request(Wire::OpenaiChat, chart()).await;
    let messages = body["messages"].as_array().unwrap();
    let last = &messages[messages.len() - 3..];
    assert_eq!((&last[0]["role"], &last[1]["role"]), (&json!("tool"), &json!("tool")));
    assert_eq!(last[0]["content"], TEXT);
    let image = json!({"type": "image_url", "image_url": {"url": url}});
    let heading = "[The images of the tool results above, in their order:]";
    let expected =
        json!({"role": "user", "content": [{"type": "text", "text": heading}, image, image]});
    assert_eq!(last[2], expected);
    let body = second_request(Wire::OllamaChat, chart()).await;
    let last = body["messages"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last, json!({"role": "user", "content": heading, "images": [PIXEL, PIXEL]}));
}

#[tokio::test]
async fn a_structured_value_is_read_only_without_content() {
    let value = json!({"total": 3});
    let body =
        second_request(Wire::OpenaiChat, ToolOutput::from("three").with_structured(value.clone()))
            .await;
    let results = |body: &Value| {
        let messages = body["messages"].as_array().unwrap().clone();
        messages.into_iter().filter(|message| message["role"] == "tool").collect::<Vec<_>>()
    };
    assert_eq!(results(&body)[0]["content"], "three");
    let body = second_request(Wire::OpenaiChat, ToolOutput::default().with_structured(value)).await;
    assert_eq!(results(&body)[0]["content"], r#"{"total":3}"#);
}

#[tokio::test]
async fn an_error_keeps_its_parts_and_anthropics_service_gets_its_text() {
    let world = world_with(Wire::AnthropicMessages, chart().into_error()).await;
    let report = run(&world, "draw").await;
    let call = &report.calls[0];
    assert_eq!((call.status.as_str(), &*call.result, call.content.len()), ("error", TEXT, 3));
    // The service refuses images in the result of a failed call.
    let result = &world.requests()[1].body["messages"][2]["content"][0];
    assert_eq!((&result["is_error"], &result["content"]), (&json!(true), &json!(TEXT)));
}

#[tokio::test]
async fn events_and_history_have_the_parts() {
    let world = world_with(Wire::AnthropicMessages, chart()).await;
    let started = world.session.start_run("draw").await.unwrap();
    let events = crate::support::events(started.events).await;
    let parts = json!([
        {"type": "text", "text": "Sales:"},
        {"type": "image", "media_type": "image/png", "data": PIXEL},
        {"type": "resource", "name": "chart.csv", "media_type": "text/csv", "bytes": 3, "text": "a,b"},
    ]);
    let results: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "tool_result").collect();
    assert_eq!(results.len(), 2);
    assert!(results.iter().all(|result| result["content"] == parts), "{results:?}");
    let snapshot = json!(world.session.snapshot().await.unwrap());
    let history = snapshot["history"].as_array().unwrap();
    let result = history.iter().find(|message| message["role"] == "tool").unwrap();
    assert_eq!(result["content"][1]["type"], "image_url");
    // A session can be opened with this history, and sends the same.
    let opened = OpenSession::default().with(|new| new.messages = history.clone());
    let copy = world.host.open_session(opened).await.unwrap();
    within(copy.run("and now?")).await.unwrap();
    let requests = world.requests();
    let last = &requests.last().unwrap().body["messages"];
    let mut sent = requests[1].body["messages"][2].clone();
    // The end of the prompt, where the service caches it, is elsewhere now.
    sent["content"][1].as_object_mut().unwrap().remove("cache_control").unwrap();
    assert_eq!(last[2], sent);
}

#[tokio::test]
async fn a_stored_session_sends_the_same_images_again() {
    let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::new());
    let mut bodies = Vec::new();
    for run in ["draw", "and now?"] {
        let answers = [Response::calls([Call::new("chart", json!({}))]), Response::text("Seen.")];
        let answers = if run == "draw" { answers.to_vec() } else { vec![Response::text("Yes.")] };
        let model = MockProvider::with_script(Script::new(answers)).await.unwrap();
        let mut config = Config::default();
        config.set_rehearsal(BaseUrl::parse(&model.base_url()).unwrap());
        config.agents.get_mut("default").unwrap().tools = vec![ToolPattern::new("chart")];
        let tool =
            ToolSpec::named("chart", "Draws a chart.").into_tool(async |(): (), _| Ok(chart()));
        let builder = Host::builder().config(config).tool(tool).journal(Arc::clone(&journal));
        let host = builder.start().await.unwrap();
        let session = host.get_or_open_session("s").await.unwrap();
        within(session.run(run)).await.unwrap();
        within(host.shutdown()).await;
        bodies.push(model.requests().last().unwrap().body["messages"].clone());
    }
    let first = bodies[0].as_array().unwrap();
    assert_eq!(bodies[1].as_array().unwrap()[..first.len()], first[..]);
}
