//! The host's own secrets do not come back from a service or a tool.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::support::{World, events, within, world};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response as HttpResponse};
use axum::routing::post;
use axum::{Json, Router};
use callsheet::config::{ApiKey, Config};
use callsheet::prelude::Host;
use callsheet::tool::{IntoTool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use callsheet::types::ResultResource;
use callsheet_mock_provider::{Call, Response, Script};
use parking_lot::Mutex;
use serde_json::{Value, json};

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

/// A service that accepts one key, repeats it in its answer, and counts the requests with other ones.
#[derive(Default)]
struct Service {
    key: String,
    refused: usize,
}

async fn answer(State(service): State<Arc<Mutex<Service>>>, headers: HeaderMap) -> HttpResponse {
    let mut service = service.lock();
    let given = headers["authorization"].to_str().unwrap().to_owned();
    if given != format!("Bearer {}", service.key) {
        service.refused += 1;
        let error = json!({"error": {"message": format!("Incorrect key: {given}")}});
        return (StatusCode::UNAUTHORIZED, Json(error)).into_response();
    }
    let message = json!({"role": "assistant", "content": format!("with {given}")});
    let choices = json!([{"index": 0, "message": message, "finish_reason": "stop"}]);
    Json(json!({"id": "1", "object": "chat.completion", "model": "m", "choices": choices}))
        .into_response()
}

#[tokio::test]
async fn a_key_that_is_replaced_in_its_file_costs_no_run() {
    let service = Arc::new(Mutex::new(Service::default()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let routes = Router::new().route("/v1/chat/completions", post(answer));
    let routes = routes.with_state(Arc::clone(&service));
    #[expect(clippy::disallowed_methods, reason = "the service ends with the test")]
    drop(tokio::spawn(async move { axum::serve(listener, routes).await }));
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("key-{}", std::process::id()));
    let replace = |key: &str| {
        std::fs::write(&file, format!("{key}\n")).unwrap();
        service.lock().key = key.to_owned();
    };
    replace("file-key-0");
    let text = format!(
        "[models.m]\nbase_url = \"{url}\"\nmodel = \"m\"\nstream = false\nmax_attempts = 1\napi_key_file = {file:?}\n\
         [agents.default]\nmodel = \"m\"\n[journal]\nengine = \"memory\"\n"
    );
    let config = Config::parse(&text, "callsheet.toml", &|_| None).unwrap();
    let host = Host::builder().config(config).start().await.unwrap();
    let session = host.open_session("one").await.unwrap();
    for number in 0..3 {
        replace(&format!("file-key-{number}"));
        let report = within(session.run("go")).await.unwrap();
        assert_eq!(report.text().unwrap(), "with Bearer [redacted]");
    }
    assert_eq!(service.lock().refused, 2, "each replaced key is refused once");
    // A key that is not accepted either is the error of the run.
    std::fs::write(&file, "file-key-wrong").unwrap();
    service.lock().key = "another".to_owned();
    let report = within(session.run("go")).await.unwrap();
    let error = report.text().unwrap_err().to_string();
    assert!(error.contains("Incorrect key: Bearer [redacted]"), "{error}");
    host.shutdown().await;
    let config = |key: &str| {
        let text = format!("[models.m]\nbase_url = \"{url}\"\nmodel = \"m\"\n{key}");
        Config::parse(&text, "callsheet.toml", &|_| Some("key".to_owned())).unwrap_err().to_string()
    };
    let missing = config("api_key_file = \"none\"\n");
    assert!(
        missing.contains("4: models.m.api_key_file: the file none cannot be read: "),
        "{missing}"
    );
    let both = config("api_key_file = \"none\"\napi_key_env = \"X\"\n");
    assert!(both.contains("api_key_env and api_key_file exclude each other"), "{both}");
    std::fs::remove_file(&file).unwrap();
}
