//! Images in inputs, steered inputs and opening messages.
#![expect(clippy::expect_used, reason = "a test")]

use crate::client::Service;
use callsheet::server::ServerOptions;
use serde_json::{Value, json};

const PIXEL: &str = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAACAkQBADs=";

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn image(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

async fn service(responses: Value) -> Service {
    Service::start(json!({"responses": responses})).await
}

/// Returns the user messages of the last model request.
fn sent(service: &Service) -> Vec<Value> {
    let requests = service.model.requests();
    assert!(requests.iter().all(|request| request.status == 200), "a request was refused");
    let messages = requests.last().expect("a request").body["messages"].clone();
    user_contents(&messages)
}

fn user_contents(messages: &Value) -> Vec<Value> {
    let messages = messages.as_array().expect("a list");
    let users = messages.iter().filter(|message| message["role"] == "user");
    users.map(|message| message["content"].clone()).collect()
}

#[tokio::test]
async fn an_image_reaches_the_model_and_the_history_unchanged() {
    let service = service(json!([{"text": ["A pixel."]}, {"text": ["Two."]}])).await;
    service.post("/v1/sessions", json!({"id": "s"})).await;
    let content = json!([text("What is this?"), image(PIXEL)]);
    let run = json!({"input": content, "wait": true});
    let report = service.post("/v1/sessions/s/runs", run).await;
    assert_eq!((report.status, &report.json()["text"]), (200, &json!("A pixel.")));
    let alone = std::slice::from_ref(&content);
    assert_eq!(user_contents(&report.json()["messages"]), alone);
    assert_eq!(sent(&service), alone);
    let other = json!([image("https://example.com/b.png")]);
    service.post("/v1/sessions/s/runs", json!({"input": other, "wait": true})).await;
    assert_eq!(sent(&service), [content.clone(), other.clone()], "each request repeats it");
    let snapshot = service.get("/v1/sessions/s").await.json();
    assert_eq!(user_contents(&snapshot["history"]), [content, other]);
}

#[tokio::test]
async fn steered_and_queued_inputs_may_contain_images() {
    let first = json!({"text": ["One."], "holds": [{"at": "finish", "name": "middle"}]});
    let service = service(json!([first, {"text": ["Two."]}, {"text": ["Three."]}])).await;
    service.post("/v1/sessions", json!({"id": "s"})).await;
    let mut reading = service.watch("s", "go").await;
    reading.until("One.").await;
    let (steered, queued) = (json!([image(PIXEL)]), json!([text("later"), image(PIXEL)]));
    let accepted = service.post("/v1/sessions/s/steer", json!({"input": steered})).await;
    assert_eq!(accepted.status, 202);
    let accepted =
        service.post("/v1/sessions/s/runs", json!({"input": queued, "queue": true})).await;
    assert_eq!(accepted.status, 202);
    let snapshot = service.get("/v1/sessions/s").await.json();
    assert_eq!(snapshot["queued"][0]["input"], queued);
    service.model.open_gate("middle");
    reading.until("\"run_end\":\"answered\"").await;
    assert_eq!(
        service
            .post("/v1/sessions/s/runs", json!({"input": "end", "queue": true, "wait": true}))
            .await
            .status,
        200
    );
    assert_eq!(sent(&service), [json!("go"), steered, queued, json!("end")]);
}

#[tokio::test]
async fn a_session_can_be_opened_with_images() {
    let service = service(json!([{"text": ["Here."]}])).await;
    let content = json!([image(PIXEL), text("keep this")]);
    let messages = json!([
        {"role": "user", "content": content},
        {"role": "assistant", "content": "HostDirectory."},
    ]);
    let opened = service.post("/v1/sessions", json!({"id": "s", "messages": messages})).await;
    assert_eq!(opened.status, 201);
    service.post("/v1/sessions/s/runs", json!({"input": "where?", "wait": true})).await;
    assert_eq!(sent(&service), [content, json!("where?")]);
    let wrong = json!([{"role": "user", "content": [text("a"), image("file:///etc/passwd")]}]);
    let refused = service.post("/v1/sessions", json!({"messages": wrong})).await;
    assert_eq!(refused.error(), (400, "invalid_messages".to_owned()));
    assert!(refused.body.contains("messages[0].content[1]: "), "{}", refused.body);
}

#[tokio::test]
async fn a_list_with_one_text_equals_that_text() {
    let service = service(json!([{"text": ["Hello."]}])).await;
    service.post("/v1/sessions", json!({"id": "s"})).await;
    let run = json!({"input": [text("hi")], "wait": true});
    assert_eq!(service.post("/v1/sessions/s/runs", run).await.status, 200);
    assert_eq!(sent(&service), [json!("hi")]);
}

#[tokio::test]
async fn an_invalid_input_is_refused_and_the_error_names_the_part() {
    let service = service(json!([])).await;
    service.post("/v1/sessions", json!({"id": "s"})).await;
    let detailed = json!({"url": PIXEL, "detail": "high"});
    for (input, code, reason) in [
        (json!(7), "invalid_request", "input: must be a string or a list of parts"),
        (json!(null), "invalid_request", "input: must be a string or a list of parts"),
        (
            json!({"type": "text", "text": "a"}),
            "invalid_request",
            "input: must be a string or a list",
        ),
        (json!(["a"]), "invalid_request", "input: part 0: its \\\"type\\\" must be"),
        (json!([text("a"), {"type": "input_audio"}]), "invalid_request", "input: part 1: its"),
        (
            json!([text("a"), image("a.png")]),
            "invalid_request",
            "part 1: \\\"a.png\\\" must be an http",
        ),
        (
            json!([{"type": "image_url", "image_url": PIXEL}]),
            "invalid_request",
            "part 0: its \\\"image_url\\\" must be an object",
        ),
        (
            json!([{"type": "image_url", "image_url": detailed}]),
            "invalid_request",
            "part 0: its \\\"image_url.detail\\\" is not supported",
        ),
        (json!([]), "empty_input", "the input is empty"),
        (json!([text(" "), text("\n")]), "empty_input", "the input is empty"),
        (json!(" "), "empty_input", "the input is empty"),
    ] {
        for path in ["/v1/sessions/s/runs", "/v1/sessions/s/steer"] {
            let refused = service.post(path, json!({"input": input})).await;
            assert_eq!(refused.error(), (400, code.to_owned()), "{input}");
            assert!(refused.body.contains(reason), "{}", refused.body);
        }
    }
    assert_eq!(service.model.requests().len(), 0);
}

#[tokio::test]
async fn the_body_limit_limits_images() {
    let options = ServerOptions::default().with(|new| new.body_bytes_max = 10_000);
    let script = json!({"responses": [{"text": ["Large."]}]});
    let service = Service::start_with(script, "", options).await;
    service.post("/v1/sessions", json!({"id": "s"})).await;
    let content = |bytes: usize| {
        let url = format!("data:image/png;base64,{}", "A".repeat(bytes));
        json!([image(&url)])
    };
    let run = async |bytes: usize| {
        let body = json!({"input": content(bytes), "wait": true});
        service.post("/v1/sessions/s/runs", body).await
    };
    let refused = run(10_000).await;
    assert_eq!(refused.error(), (413, "body_too_large".to_owned()));
    assert!(refused.body.contains("more than 10000 bytes"), "{}", refused.body);
    assert_eq!(run(9_000).await.status, 200);
    assert_eq!(sent(&service), [content(9_000)]);
}
