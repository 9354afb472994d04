//! The host's own secrets do not come back from a service or a tool.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test")]

mod support;

use std::collections::BTreeMap;

use callsheet::config::{ApiKey, Config};
use callsheet::rehearsal::{Call, Response, Script};
use callsheet::tool::{ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use callsheet::types::ResultResource;
use serde_json::{Value, json};
use support::{World, events, within, world};

const KEY: &str = "sk-live-0123456789";
const TOKEN: &str = "host-token-with-\"quotes\"";
const HEADER: &str = "header+secret/==";

fn configure(config: &mut Config) {
    config.host.token = Some(ApiKey::new(TOKEN).unwrap());
    let model = config.models.get_mut("rehearsal").expect("the offline model");
    model.api_key = Some(ApiKey::new(KEY).unwrap());
    model.headers = BTreeMap::from([("x-auth".to_owned(), format!("Bearer {HEADER}"))]);
    model.max_attempts = 1;
}

/// Returns a tool that repeats secrets in its progress, its variables, its result and its error.
async fn leak(input: Value, context: ToolContext) -> Result<ToolOutput, ToolError> {
    context.progress(format!("using {KEY}"));
    context.set("last", json!({"token": TOKEN, HEADER: 1}))?;
    if input["fails"] == true {
        return Err(ToolError::new(format!("cannot use {TOKEN}")));
    }
    let output = ToolOutput::json(
        &json!({"url": "https://h/?k=header%2Bsecret%2F%3D%3D", "auth": "dTpzay1saXZlLTAxMjM0NTY3ODk="}),
    )?;
    let file = ResultResource::new(KEY, "text/plain").with_text(format!("token={TOKEN}"));
    Ok(output.with_part(file).with_structured(json!({HEADER: TOKEN})))
}

async fn world_with(responses: Vec<Response>) -> World {
    let mut tools = ToolRegistry::new();
    tools.register(ToolSpec::named("leak", "Repeats secrets.").into_tool(leak)).unwrap();
    world(Script::new(responses), tools, configure).await
}

/// Runs and returns all events, the report and the stored history as one text.
async fn everything(world: &World) -> String {
    let run = world.session.start_run("go").await.expect("a run");
    let events = events(run.events).await;
    let report = within(run.report).await.expect("a report");
    let snapshot = world.session.snapshot().await.expect("a snapshot");
    let text = json!({"events": events, "report": report, "snapshot": snapshot}).to_string();
    for secret in
        [KEY, TOKEN, "host-token-with", HEADER, "header%2Bsecret", "c2stbGl2ZS", "pzay1saXZl"]
    {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    text
}

#[tokio::test]
async fn errors_of_a_service_are_redacted() {
    let refusal = Response {
        error: Some(json!({"error": {"message": format!("bad key {KEY}")}})),
        ..Response::status(401)
    };
    let text = everything(&world_with(vec![refusal]).await).await;
    assert!(text.contains("bad key [redacted]"), "{text}");
}

#[tokio::test]
async fn the_beginning_of_a_key_that_an_excerpt_cuts_is_removed() {
    let page = format!("<{}{KEY}</html>", "x".repeat(89));
    let payload = format!("data: {{\"id\": {}{KEY}\n\n", "x".repeat(183));
    for (content_type, body) in [("text/html", page), ("text/event-stream", payload)] {
        let text = everything(&world_with(vec![Response::raw(content_type, [body])]).await).await;
        assert!(text.contains("x[redacted]…") && !text.contains("sk-live"), "{text}");
    }
}

#[tokio::test]
async fn texts_and_arguments_of_a_response_are_redacted() {
    let cut = KEY.chars().map(String::from);
    let cut = ["It is ".to_owned()].into_iter().chain(cut).chain([".".to_owned()]);
    let call = Response {
        text: cut.clone().collect(),
        reasoning: cut.collect(),
        ..Response::calls([Call::new("leak", json!({"key": KEY, "fails": false}))])
    };
    let text = everything(&world_with(vec![call, Response::text("Done.")]).await).await;
    assert!(text.contains("It is [redacted]."), "{text}");
    assert!(text.contains(r#""key":"[redacted]""#), "{text}");
}

#[tokio::test]
async fn a_secret_is_redacted_if_each_chunk_has_token_counts() {
    let event = |(text, tokens): (String, u32)| {
        let choice = json!({"index": 0, "delta": {"content": text}, "finish_reason": null});
        let usage = json!({"prompt_tokens": 1, "completion_tokens": tokens});
        format!("data: {}\n\n", json!({"choices": [choice], "usage": usage}))
    };
    let texts = ["It is ".to_owned()].into_iter().chain(KEY.chars().map(String::from));
    let end =
        json!({"choices": [{"index": 0, "delta": {"content": "."}, "finish_reason": "stop"}]});
    let events = texts.zip(1..).map(event).chain([format!("data: {end}\n\ndata: [DONE]\n\n")]);
    let text =
        everything(&world_with(vec![Response::raw("text/event-stream", events)]).await).await;
    assert!(text.contains("It is [redacted]."), "{text}");
}

#[tokio::test]
async fn results_progress_and_variables_of_tools_are_redacted() {
    for fails in [false, true] {
        let call = Response::calls([Call::new("leak", json!({"fails": fails}))]);
        let text = everything(&world_with(vec![call, Response::text("Done.")]).await).await;
        assert!(text.contains("using [redacted]"), "{text}");
        let expected = if fails { "cannot use [redacted]" } else { "https://h/?k=[redacted]" };
        assert!(text.contains(expected), "{text}");
        if !fails {
            assert!(text.contains(r#""[redacted]":1"#), "{text}");
        }
    }
}
