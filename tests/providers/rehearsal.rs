//! The rehearsal model over real HTTP: its answers, and its errors.

#![expect(clippy::unwrap_used, reason = "a failed test may panic")]

use std::time::Duration;

use callsheet::rehearsal::{Call, Rehearsal, RehearsedAnswer, improvise};
use reqwest::Response;
use serde_json::{Value, json};

use crate::mock_provider::{Message, ask, client, read_plain, read_stream};

const PROMPT: &str = "What time is it in Tokyo and in Beijing, and what is 17 % of 2,350?";
const CHINESE: &str = "东京和北京现在几点？2350 的 17% 是多少？";

async fn post(server: &Rehearsal, body: &Value) -> Response {
    let url = format!("{}/chat/completions", server.base_url());
    let response = client().post(url).json(body).send().await.unwrap();
    assert_eq!(response.headers()["x-callsheet-rehearsal"], "1");
    response
}

async fn read(server: &Rehearsal, body: &Value) -> Message {
    let response = post(server, body).await;
    assert_eq!(response.status(), 200);
    let text = response.text().await.unwrap();
    assert!(text.contains(r#""model":"rehearsal""#), "{text}");
    if body["stream"] == true { read_stream(&text) } else { read_plain(&text) }
}

fn with_tools(mut request: Value) -> Value {
    let tool = |name: &str, argument: &str| {
        json!({"type": "function", "function": {"name": name, "description": "", "parameters":
            {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}}})
    };
    request["tools"] = json!([tool("clock", "zone"), tool("calculator", "expression")]);
    request
}

#[tokio::test]
async fn improvises_three_calls_and_quotes_their_results() {
    let server = Rehearsal::start(improvise, Duration::ZERO).await.unwrap();
    for (prompt, stream) in [(PROMPT, true), (PROMPT, false), (CHINESE, true), (CHINESE, false)] {
        let mut request = with_tools(ask(prompt, stream));
        if stream {
            request["stream_options"] = json!({"include_usage": true});
        }
        let first = read(&server, &request).await;
        let calls: Vec<(&str, &str)> = first
            .calls
            .iter()
            .map(|(_, name, arguments)| (name.as_str(), arguments.as_str()))
            .collect();
        assert_eq!(
            calls,
            [
                ("clock", r#"{"zone":"Asia/Tokyo"}"#),
                ("clock", r#"{"zone":"Asia/Shanghai"}"#),
                ("calculator", r#"{"expression":"17% of 2350"}"#),
            ]
        );
        assert_eq!(first.finish.as_deref(), Some("tool_calls"));
        assert!(first.usage && first.done);
        let messages = request["messages"].as_array_mut().unwrap();
        let asked: Vec<Value> = first
            .calls
            .iter()
            .map(|(id, name, arguments)| {
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
            })
            .collect();
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": asked}));
        for ((id, ..), result) in first.calls.iter().zip(["10:00", "09:00", "399.5"]) {
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
        }
        let last = read(&server, &request).await;
        assert_eq!(last.calls, []);
        assert_eq!(last.finish.as_deref(), Some("stop"));
        for part in ["rehearsal", "- clock: 10:00", "- clock: 09:00", "- calculator: 399.5"] {
            let part =
                if prompt == CHINESE { part.replace("rehearsal", "排练") } else { part.into() };
            assert!(last.text.contains(&part), "{}", last.text);
        }
    }
}

#[tokio::test]
async fn what_it_cannot_answer_is_refused_with_the_reason() {
    let server = Rehearsal::start(improvise, Duration::ZERO).await.unwrap();
    let url = |path: &str| format!("{}{path}", server.base_url());
    let broken = client()
        .post(url("/chat/completions"))
        .header("content-type", "application/json")
        .body("{\"model\":");
    for (request, status, reason) in [
        (broken, 400, "Failed to parse the request body as JSON"),
        (client().get(url("/chat/completions")), 404, "GET /v1/chat/completions"),
        (client().post(url("/messages")), 404, "speaks the wire format openai-chat only"),
    ] {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["x-callsheet-rehearsal"], "1");
        let body: Value = response.json().await.unwrap();
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains(reason), "{message}");
    }
}

#[tokio::test]
async fn a_function_of_the_request_answers_at_the_given_pace() {
    let answer = |request: &Value| RehearsedAnswer {
        text: vec!["a ".to_owned(), "b".to_owned()],
        calls: vec![Call { name: "echo".to_owned(), arguments: request["messages"][0].clone() }],
    };
    let server = Rehearsal::start(answer, Duration::from_millis(10)).await.unwrap();
    let started = tokio::time::Instant::now();
    let message = read(&server, &ask("hi", true)).await;
    // More than six chunks with a pause before each but the first.
    assert!(started.elapsed() >= Duration::from_millis(60), "{:?}", started.elapsed());
    assert_eq!(message.text, "a b");
    assert_eq!(message.calls[0].2, r#"{"content":"hi","role":"user"}"#);
    assert_ne!(message.calls[0].0, read(&server, &ask("hi", false)).await.calls[0].0);
}

#[tokio::test]
async fn dropping_it_closes_the_port() {
    let server = Rehearsal::start(improvise, Duration::ZERO).await.unwrap();
    read(&server, &ask("hi", true)).await;
    let url = server.base_url();
    drop(server);
    let closed = async {
        while client().get(&url).send().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), closed).await.unwrap();
}
