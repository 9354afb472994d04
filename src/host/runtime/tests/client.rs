//! Tests of the model client without a host.

use futures::{Stream, StreamExt as _};

use super::provider::{Reply, answer_with, calls_to, plain, text};
use super::*;
use crate::runtime::model::{ModelClient, ModelRequest};
use callsheet_values::config::ApiKey;
use callsheet_values::message::Message;
use callsheet_values::types::{FinishKind, ProviderError, ProviderErrorKind};
use callsheet_wire::Delta;

fn request() -> ModelRequest {
    let hello = Arc::new(Message::User { content: "hello".into() });
    ModelRequest::new("test-model", [hello].into())
}

fn client(provider: &Provider, change: impl FnOnce(&mut ModelConfig)) -> ModelClient {
    let mut config = model(provider);
    change(&mut config);
    ModelClient::new(&config).unwrap()
}

async fn collect(
    stream: impl Stream<Item = Result<Vec<Delta>, ProviderError>>,
) -> (String, Option<ProviderError>) {
    let mut stream = std::pin::pin!(stream);
    let (mut text_received, mut error) = (String::new(), None);
    while let Some(item) = timeout(SOON, stream.next()).await.expect("the stream goes on") {
        assert!(error.is_none(), "an item followed an error");
        match item {
            Ok(batch) => {
                assert!(!batch.is_empty());
                for delta in batch {
                    if let Delta::Text(text) = delta {
                        text_received.push_str(&text);
                    }
                }
            }
            Err(found) => error = Some(found),
        }
    }
    (text_received, error)
}

#[tokio::test]
async fn streams_an_answer_with_the_configured_headers() {
    let provider = Provider::answering("good day").await;
    let client = client(&provider, |config| {
        config.headers.insert("x-team".into(), "blue".into());
        let key = ApiKey::from_env("KEY", &|_| Some("very-secret".into()));
        config.api_key = Some(key.unwrap());
    });
    assert!(!format!("{client:?}").contains("very-secret"));
    assert!(!format!("{client:?}").contains("blue"), "the header may be a key");
    assert_eq!(collect(client.stream(&request())).await, ("good day".into(), None));
    let headers = provider.headers();
    assert_eq!(headers["x-team"], "blue");
    assert_eq!(headers["accept"], "text/event-stream");
    assert_eq!(headers["authorization"], "Bearer very-secret");
}

#[tokio::test]
async fn completes_an_answer_with_calls() {
    let provider = Provider::new(|_, _| Reply::Sse(calls_to(&[("add", r#"{"a":1}"#)]))).await;
    let response = client(&provider, |_| ()).complete(&request()).await.unwrap();
    assert_eq!(response.tool_calls().len(), 1);
    let call = response.first_tool_call().unwrap();
    assert_eq!((call.name.as_str(), &call.arguments), ("add", &Some(json!({"a": 1}))));
    assert_eq!(response.finish_reason.unwrap().kind, FinishKind::ToolCalls);
    assert_eq!(response.usage.input_tokens, 10);
}

#[tokio::test]
async fn a_request_for_a_single_call_returns_only_the_first_to_run() {
    let text_received = [("add", r#"{"a":1}"#), ("add", r#"{"a":2}"#)];
    let provider = Provider::new(move |_, _| Reply::Sse(calls_to(&text_received))).await;
    let client = client(&provider, |_| ());
    for (case, counted) in [(None, 2), (Some(true), 2), (Some(false), 1)] {
        let request = ModelRequest { parallel_tool_calls: case, ..request() };
        let response = client.complete(&request).await.unwrap();
        assert_eq!(response.all_tool_calls().len(), 2);
        assert_eq!(response.tool_calls(), &response.all_tool_calls()[..counted]);
        assert_eq!(response.first_tool_call(), response.all_tool_calls().first());
    }
    let provider = Provider::answering("no call").await;
    let request = ModelRequest { parallel_tool_calls: Some(false), ..request() };
    let response = self::client(&provider, |_| ()).complete(&request).await.unwrap();
    assert_eq!((response.tool_calls(), response.first_tool_call()), (&[][..], None));
}

#[tokio::test]
async fn a_response_may_be_plain_or_streamed_whatever_was_requested() {
    let provider = Provider::new(|_, body| match body["stream"].as_bool() {
        Some(true) => plain("plain"),
        _ => Reply::Sse(answer_with("streamed")),
    })
    .await;
    let client = client(&provider, |_| ());
    assert_eq!(collect(client.stream(&request())).await, ("plain".into(), None));
    let case = ModelRequest { stream: false, ..request() };
    assert_eq!(client.complete(&case).await.unwrap().text, "streamed");
}

#[tokio::test]
async fn an_error_status_has_the_services_message_and_retry_hint() {
    let provider = Provider::new(|_, _| Reply::Whole {
        status: 429,
        kind: "application/json",
        body: r#"{"error":{"message":"slow down","code":"rate_limit"}}"#.into(),
        retry_after: Some("7"),
    })
    .await;
    let (text_received, error) = collect(client(&provider, |_| ()).stream(&request())).await;
    let error = error.unwrap();
    let (before, message) = error.message.split_once(": ").unwrap();
    assert!(before.starts_with("127.0.0.1:"), "{before}");
    let expected = "HTTP status 429: slow down (it asks to wait 7s)";
    assert_eq!((text_received.as_str(), message), ("", expected));
    assert_eq!((error.kind, error.status), (ProviderErrorKind::Status, Some(429)));
    assert_eq!(error.retry_after, Some(Duration::from_secs(7)));
    assert!(error.is_transient());
}

#[tokio::test]
async fn silence_comments_and_breaks_are_errors() {
    let short = |config: &mut ModelConfig| {
        config.first_event_timeout = Duration::from_millis(400);
        config.idle_timeout = Duration::from_millis(200);
        config.progress_timeout = Duration::from_millis(300);
    };
    for (reply, text_received, kind) in [
        (0, "", ProviderErrorKind::Timeout),
        (1, "", ProviderErrorKind::Timeout),
        (2, "hm", ProviderErrorKind::Timeout),
        (3, "hm", ProviderErrorKind::Timeout),
        (4, "hm", ProviderErrorKind::Transport),
    ] {
        let provider = Provider::new(move |_, _| match reply {
            0 => Reply::Silence,
            1 => Reply::Comments(Vec::new()),
            2 => Reply::Comments(vec![text("hm")]),
            3 => Reply::Stall(vec![text("hm")]),
            _ => Reply::Break(vec![text("hm")]),
        })
        .await;
        let (received, error) = collect(client(&provider, short).stream(&request())).await;
        let error = error.unwrap_or_else(|| panic!("case {reply} has no error"));
        assert_eq!((received.as_str(), error.kind), (text_received, kind), "case {reply}: {error}");
        until("the connection is let go", || provider.open() == 0).await;
    }
}

/// Answers one request with a body in two halves, and waits before each half.
async fn slow_plain_service(pause: Duration) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let (mut buffer, mut read) = (vec![0; 65536], 0);
        while !buffer[..read].ends_with(b"}") {
            read += socket.read(&mut buffer[read..]).await.unwrap();
        }
        let body = r#"{"choices":[{"message":{"content":"slow"},"finish_reason":"stop"}]}"#;
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let (first, second) = body.split_at(20);
        for part in [head + first, second.to_owned()] {
            tokio::time::sleep(pause).await;
            // The client may have given up.
            let _ = socket.write_all(part.as_bytes()).await;
        }
    });
    url
}

#[tokio::test]
async fn a_plain_answer_has_its_own_time_limit() {
    let plain = ModelRequest { stream: false, ..request() };
    for (answer_timeout, ends_well) in [(5_000, true), (400, false)] {
        let url = slow_plain_service(Duration::from_millis(300)).await;
        let mut config = ModelConfig::new(BaseUrl::parse(&url).unwrap(), "test-model");
        config.first_event_timeout = Duration::from_millis(100);
        config.idle_timeout = Duration::from_millis(100);
        config.answer_timeout = Duration::from_millis(answer_timeout);
        match ModelClient::new(&config).unwrap().complete(&plain).await {
            Ok(response) => assert_eq!((response.text.as_str(), ends_well), ("slow", true)),
            Err(error) => {
                assert_eq!((error.kind, ends_well), (ProviderErrorKind::Timeout, false), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_refused_connection_is_an_error_without_the_address() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    let config = ModelConfig::new(BaseUrl::parse(&url).unwrap(), "test-model");
    let error = ModelClient::new(&config).unwrap().complete(&request()).await.unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Connect, "{error}");
    assert!(!error.message.contains(&url), "{error}");
}

#[tokio::test]
async fn a_stream_that_stays_open_after_done_has_ended() {
    let provider = Provider::new(move |_, _| Reply::Stall(answer_with("fine"))).await;
    let case = Instant::now();
    assert_eq!(collect(client(&provider, |_| ()).stream(&request())).await, ("fine".into(), None));
    assert!(case.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn the_next_request_uses_the_same_connection() {
    // The listener accepts one connection and closes, so a second connection would fail.
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let server = spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut socket, _) = listener.accept().await.unwrap();
        drop(listener);
        let mut body = String::new();
        for payload in answer_with("fine") {
            body.push_str(&format!("data: {payload}\n\n"));
        }
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut buffer = vec![0; 65536];
        for _ in 0..2 {
            // A request of this size arrives in one or two reads. Its body ends with a brace.
            let mut read = 0;
            while !buffer[..read].ends_with(b"}") {
                read += socket.read(&mut buffer[read..]).await.unwrap();
            }
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let config = ModelConfig::new(BaseUrl::parse(&url).unwrap(), "test-model");
    let client = ModelClient::new(&config).unwrap();
    for _ in 0..2 {
        assert_eq!(client.complete(&request()).await.unwrap().text, "fine");
    }
    server.await.unwrap();
}
