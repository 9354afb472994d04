//! The mock provider over real HTTP: its answers, its refusals, and its faults.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

use std::time::Duration;

use callsheet_mock_provider::{
    AnswerState, Call, MockProvider, MockProviderOptions, Response, Script, ScriptPosition,
};
use futures::StreamExt;
use serde_json::{Value, json};

pub(crate) fn client() -> reqwest::Client {
    callsheet::tls::client(reqwest::Client::builder().no_proxy()).unwrap()
}

async fn serve(responses: impl IntoIterator<Item = Response>) -> MockProvider {
    MockProvider::with_script(Script::new(responses).then_done()).await.unwrap()
}

async fn post(server: &MockProvider, body: &Value) -> reqwest::Response {
    let url = format!("{}/chat/completions", server.base_url());
    client().post(url).json(body).send().await.unwrap()
}

pub(crate) fn ask(prompt: &str, stream: bool) -> Value {
    json!({"model": "any", "stream": stream, "messages": [{"role": "user", "content": prompt}]})
}

/// The message of a response, streamed or not.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Message {
    pub(crate) text: String,
    /// Id, name and arguments of each call.
    pub(crate) calls: Vec<(String, String, String)>,
    pub(crate) finish: Option<String>,
    pub(crate) usage: bool,
    pub(crate) done: bool,
}

pub(crate) fn read_plain(body: &str) -> Message {
    let body: Value = serde_json::from_str(body).unwrap();
    let choice = &body["choices"][0];
    let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Message {
        text: text(&choice["message"]["content"]),
        calls: calls
            .iter()
            .map(|call| {
                (
                    text(&call["id"]),
                    text(&call["function"]["name"]),
                    text(&call["function"]["arguments"]),
                )
            })
            .collect(),
        finish: choice["finish_reason"].as_str().map(str::to_owned),
        usage: body["usage"]["total_tokens"].as_u64() > Some(0),
        done: true,
    }
}

pub(crate) fn read_stream(body: &str) -> Message {
    let mut message = Message::default();
    for event in body.split_terminator("\n\n") {
        let data = event.strip_prefix("data: ").expect("every event is one data line");
        if data == "[DONE]" {
            message.done = true;
            continue;
        }
        let data: Value = serde_json::from_str(data).unwrap();
        message.usage |= data["usage"]["total_tokens"].as_u64() > Some(0);
        let choice = &data["choices"][0];
        message.text += choice["delta"]["content"].as_str().unwrap_or_default();
        message.finish = choice["finish_reason"].as_str().map(str::to_owned).or(message.finish);
        for piece in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(piece["index"].as_u64().unwrap()).unwrap();
            if message.calls.len() <= index {
                message.calls.push(Default::default());
            }
            let call = &mut message.calls[index];
            call.0 += piece["id"].as_str().unwrap_or_default();
            call.1 += piece["function"]["name"].as_str().unwrap_or_default();
            call.2 += piece["function"]["arguments"].as_str().unwrap_or_default();
        }
    }
    message
}

async fn read(server: &MockProvider, body: &Value) -> Message {
    let response = post(server, body).await;
    assert_eq!(response.status(), 200);
    let text = response.text().await.unwrap();
    if body["stream"] == true { read_stream(&text) } else { read_plain(&text) }
}

/// Returns the body up to its end or break, and true if it broke.
async fn read_broken(response: reqwest::Response) -> (String, bool) {
    let mut stream = response.bytes_stream();
    let mut body = Vec::new();
    while let Some(part) = stream.next().await {
        match part {
            Ok(bytes) => body.extend_from_slice(&bytes),
            Err(_) => return (String::from_utf8(body).unwrap(), true),
        }
    }
    (String::from_utf8(body).unwrap(), false)
}

#[tokio::test]
async fn refuses_a_broken_history_in_the_providers_words() {
    let server = serve([Response::text("hello")]).await;
    let call = |id: &str, arguments: &str| {
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "clock", "arguments": arguments}}]})
    };
    let answer = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "x"});
    for (messages, words) in [
        (
            vec![call("call_x", "{}")],
            "An assistant message with 'tool_calls' must be followed by tool messages responding to \
             each 'tool_call_id'. The following tool_call_ids did not have response messages: call_x",
        ),
        (
            vec![call("a", "{}"), answer("a"), answer("a")],
            "Duplicate value for 'tool_call_id' of 'a'",
        ),
        (
            vec![call("a", "{}"), answer("b")],
            "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
        ),
        (vec![call("a", "{\"zone\":"), answer("a")], "a JSON object"),
        (vec![], "empty array"),
        (vec![json!({"role": "robot", "content": ""})], "Invalid value: 'robot'"),
    ] {
        for stream in [true, false] {
            let response =
                post(&server, &json!({"model": "m", "stream": stream, "messages": messages})).await;
            assert_eq!(response.status(), 400);
            let body: Value = response.json().await.unwrap();
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.contains(words), "{message}");
            assert_eq!(body["error"]["type"], "invalid_request_error");
        }
    }
    let url = format!("{}/chat/completions", server.base_url());
    let response = client().post(url).body("{\"model\":").send().await.unwrap();
    assert_eq!(response.status(), 400);
    assert!(response.text().await.unwrap().contains("could not parse the JSON body"));
    // A refused request uses no response of the script.
    assert_eq!(server.responses_left(), 1);
    let received = server.requests();
    assert_eq!(received.len(), 13);
    assert!(
        received.iter().all(|request| request.status == 400 && request.ended == AnswerState::Whole)
    );
    assert_eq!(received[12].body, Value::Null);
}

#[tokio::test]
async fn a_path_can_hold_an_encoded_model_name() {
    let server = serve([Response::text("hello")]).await;
    let url = format!("{}/models/a%2Fb%3AgenerateContent", server.base_url());
    let body = json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]});
    let response = client().post(url).json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    server.shutdown().await;
}

#[tokio::test]
async fn its_model_is_listed_and_other_paths_are_not_found() {
    let server = serve([]).await;
    let get = |path: &str| client().get(format!("http://{}{path}", server.address())).send();
    let models: Value = get("/v1/models").await.unwrap().json().await.unwrap();
    assert_eq!(models["data"][0]["id"], "mock");
    for path in ["/v1/embeddings", "/v1/chat/completions"] {
        let response = get(path).await.unwrap();
        assert_eq!(response.status(), 404);
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["code"], "unknown_url");
    }
}

#[tokio::test]
async fn statuses_come_with_retry_after_and_an_error() {
    let server = serve([
        Response::status(429).with(|r| r.retry_after = Some("7".into())),
        Response::status(500),
        Response::status(503).with(|r| r.error = Some(json!({"error": "busy"}))),
        Response::raw("text/html", ["<p>bad ", "gateway"]).with(|r| r.status = Some(502)),
    ])
    .await;
    let request = ask("hi", true);
    let limited = post(&server, &request).await;
    assert_eq!((limited.status().as_u16(), &limited.headers()["retry-after"] == "7"), (429, true));
    let body: Value = limited.json().await.unwrap();
    assert_eq!(body["error"]["code"], "rate_limit_exceeded");
    let failed = post(&server, &request).await;
    assert_eq!(failed.status(), 500);
    assert_eq!(failed.json::<Value>().await.unwrap()["error"]["type"], "server_error");
    let busy = post(&server, &request).await;
    assert_eq!(busy.status(), 503);
    assert_eq!(busy.json::<Value>().await.unwrap(), json!({"error": "busy"}));
    let raw = post(&server, &request).await;
    assert_eq!((raw.status().as_u16(), &raw.headers()["content-type"] == "text/html"), (502, true));
    assert_eq!(raw.text().await.unwrap(), "<p>bad gateway");
}

#[tokio::test]
async fn recordings_are_served_byte_for_byte() {
    let bytes: Vec<u8> = (0..=255).collect();
    let server =
        serve([Response::raw("text/event-stream", bytes.chunks(7).map(<[u8]>::to_vec))]).await;
    let response = post(&server, &ask("hi", true)).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.bytes().await.unwrap(), bytes);
}

#[tokio::test]
async fn a_cut_breaks_the_body_at_its_byte() {
    let whole = {
        let server = serve([Response::text("one two three")]).await;
        post(&server, &ask("hi", true)).await.text().await.unwrap()
    };
    for bytes in [0, 1, 100, 300, 1_000_000] {
        let server =
            serve([Response::text("one two three").with(|r| r.cut_after_bytes = Some(bytes))])
                .await;
        let (body, broken) = read_broken(post(&server, &ask("hi", true)).await).await;
        assert!(broken, "a cut body ends with an error");
        assert_eq!(body.len(), bytes.min(whole.len()));
        assert_eq!(server.wait_until_ended(1).await.unwrap().ended, AnswerState::Broken);
    }
    for (stream, chunks, sent, held_back) in
        [(true, 2, "one", "two"), (false, 1, "\"choices\"", "\"usage\"")]
    {
        let cut = Response::text("one two").with(|r| r.cut_after_chunks = Some(chunks));
        let server = serve([cut]).await;
        let (body, broken) = read_broken(post(&server, &ask("hi", stream)).await).await;
        assert!(broken && body.contains(sent) && !body.contains(held_back), "{body}");
    }
}

#[tokio::test]
async fn a_body_can_end_early_without_an_error() {
    let text = || Response::text("one two");
    let server = serve([
        text().with(|r| r.truncate = true),
        text().with(|r| r.truncate_after_chunks = Some(2)),
        text().with(|r| r.no_done = true),
        text().with(|r| r.finish_reason = callsheet_mock_provider::Finish::Null),
    ])
    .await;
    let mut messages = Vec::new();
    for _ in 0..4 {
        let (body, broken) = read_broken(post(&server, &ask("hi", true)).await).await;
        assert!(!broken);
        let message = read_stream(&body);
        messages.push((message.text, message.finish.is_some(), message.done));
    }
    assert_eq!(
        messages,
        [
            ("one two".to_owned(), false, false),
            ("one ".to_owned(), false, false),
            ("one two".to_owned(), true, false),
            ("one two".to_owned(), false, true),
        ]
    );
}

#[tokio::test]
async fn a_chunk_can_be_malformed() {
    let server = serve([Response::text("one two").with(|r| r.malformed_at_chunk = Some(1))]).await;
    let body = post(&server, &ask("hi", true)).await.text().await.unwrap();
    let bad = body.split("\n\n").nth(1).unwrap().strip_prefix("data: ").unwrap();
    assert!(serde_json::from_str::<Value>(bad).is_err());
    assert!(body.contains("two") && body.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_stall_lasts_until_the_client_leaves() {
    let server = serve([
        Response::text("one two").with(|r| r.stall_after_chunks = Some(2)),
        Response::text("one two").with(|r| {
            r.stall_after_chunks = Some(2);
            r.keep_alive_ms = Some(5);
        }),
    ])
    .await;
    let mut silent = post(&server, &ask("hi", true)).await.bytes_stream();
    let mut seen = String::new();
    while !seen.contains("one") {
        seen += std::str::from_utf8(&silent.next().await.unwrap().unwrap()).unwrap();
    }
    let more = tokio::time::timeout(Duration::from_millis(50), silent.next()).await;
    assert!(more.is_err(), "nothing more is sent");
    assert_eq!(server.requests()[0].ended, AnswerState::Open);
    drop(silent);
    assert_eq!(server.wait_until_ended(1).await.unwrap().ended, AnswerState::ClientLeft);

    let mut alive = post(&server, &ask("hi", true)).await.bytes_stream();
    let mut seen = String::new();
    while seen.matches(": keep-alive\n\n").count() < 3 {
        seen += std::str::from_utf8(&alive.next().await.unwrap().unwrap()).unwrap();
    }
    assert!(!seen.contains("two"));
}

#[tokio::test]
async fn a_gate_holds_the_stream_until_it_is_released() {
    let calls =
        [Call::new("clock", json!({"zone": "UTC"})), Call::new("clock", json!({"zone": "GMT"}))];
    let held = Response::calls(calls)
        .hold(ScriptPosition::Headers, "headers")
        .hold(ScriptPosition::AfterCall(0), "first call")
        .hold(ScriptPosition::Done, "done");
    let server = serve([held]).await;
    let request = ask("hi", true);
    let asking = post(&server, &request);
    tokio::pin!(asking);
    tokio::select! {
        _ = &mut asking => panic!("the headers are held back"),
        () = server.wait_for_gate("headers") => {}
    }
    assert_eq!(server.requests()[0].status, 0);
    server.open_gate("headers");
    let mut stream = asking.await.bytes_stream();
    let mut seen = String::new();
    server.wait_for_gate("first call").await;
    while !seen.contains("UTC") {
        seen += std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap();
    }
    assert!(!seen.contains("GMT") && !seen.contains("\"index\":1"));
    server.open_gate("first call");
    server.wait_for_gate("done").await;
    while !seen.contains("finish_reason\":\"tool_calls") {
        seen += std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap();
    }
    assert!(seen.contains("GMT") && !seen.contains("[DONE]"));
    server.open_gate("done");
    while let Some(part) = stream.next().await {
        seen += std::str::from_utf8(&part.unwrap()).unwrap();
    }
    assert!(seen.ends_with("data: [DONE]\n\n"));
    assert_eq!(server.wait_until_ended(1).await.unwrap().ended, AnswerState::Whole);
}

#[tokio::test]
async fn pauses_between_chunks_are_kept() {
    let options = MockProviderOptions::default().with(|new| {
        new.chunk_delay = Duration::from_millis(10);
        new.script = Script::new([Response::text("a b c").delay(ScriptPosition::Finish, 30)]);
    });
    let server = MockProvider::start(options).await.unwrap();
    let started = tokio::time::Instant::now();
    post(&server, &ask("hi", true)).await.bytes().await.unwrap();
    // Six chunks with five pauses, and one more chunk of 30 ms.
    assert!(started.elapsed() >= Duration::from_millis(80), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_shutdown_ends_every_connection() {
    let server = serve([
        Response::text("one").with(|r| r.stall_after_chunks = Some(1)),
        Response::text("one").hold(ScriptPosition::Headers, "never"),
        Response::text("one"),
    ])
    .await;
    let request = ask("hi", true);
    let stalled = post(&server, &request).await;
    let url = format!("{}/chat/completions", server.base_url());
    let held = client().post(url).json(&request).send();
    let idle = client();
    let address = server.address();
    let (held, ()) = tokio::join!(held, async {
        server.wait_for_gate("never").await;
        let url = format!("{}/chat/completions", server.base_url());
        idle.post(url).json(&request).send().await.unwrap().bytes().await.unwrap();
        // This returns only when all three connections are closed.
        server.shutdown().await;
    });
    assert!(held.is_err() || held.is_ok_and(|response| response.status() == 503));
    assert!(read_broken(stalled).await.1);
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn only_the_last_requests_are_kept() {
    let options = MockProviderOptions::default().with(|new| new.keep_requests = 2);
    let server = MockProvider::start(options).await.unwrap();
    for _ in 0..3 {
        read(&server, &ask("hi", false)).await;
    }
    server.wait_for_requests(3).await;
    let numbers: Vec<u64> = server.requests().iter().map(|request| request.number).collect();
    assert_eq!(numbers, [2, 3]);
    assert_eq!(server.wait_until_ended(1).await, None);
}
