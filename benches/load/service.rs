//! A service that answers from memory.
//!
//! Each event has about 300 bytes with all fields that real services send. The whole body is ready
//! at once, so that the client never waits, unless there is a pace.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::DefaultBodyLimit;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use callsheet::load::SESSIONS_MAX;
use futures::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The sizes of a workload: calls, bytes of their arguments, and pieces of text in both answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) calls: usize,
    pub(crate) argument_bytes: usize,
    /// In the first answer.
    pub(crate) texts: usize,
    /// In the last answer.
    pub(crate) last_texts: usize,
}

/// Four calls of about 64 bytes in pieces of 8, and twice 32 pieces of text: 108 events, 33 KB.
pub(crate) const W1: Workload =
    Workload { name: "w1", calls: 4, argument_bytes: 64, texts: 32, last_texts: 32 };

/// Eight calls of 4 KiB in pieces of 8, and 2,048 pieces of text.
pub(crate) const FAT: Workload =
    Workload { name: "fat", calls: 8, argument_bytes: 4096, texts: 2048, last_texts: 32 };

impl Workload {
    pub(crate) fn named(name: &str) -> Self {
        [W1, FAT].into_iter().find(|workload| workload.name == name).unwrap()
    }

    /// Returns the two bodies, and the number of their events together.
    pub(crate) fn bodies(&self) -> (Vec<u8>, Vec<u8>, usize) {
        let words = ["The", " quick", " brown", " fox", " jumps", " over", " a", " dog"];
        let text = |count: usize| {
            let words = words.iter().cycle().take(count);
            words.map(|word| json!({"content": word})).collect::<Vec<_>>()
        };
        let mut asking = text(self.texts);
        for index in 0..self.calls {
            let begin = format!("{{\"ms\":0,\"i\":{index},\"pad\":\"");
            let pad = "x".repeat(self.argument_bytes - begin.len() - 2);
            let arguments = format!("{begin}{pad}\"}}");
            let head = json!({"index": index, "id": format!("call_{index:024}"), "type": "function",
                "function": {"name": "work", "arguments": ""}});
            asking.push(json!({"tool_calls": [head]}));
            asking.extend(arguments.as_bytes().chunks(8).map(|piece| {
                let piece = std::str::from_utf8(piece).unwrap();
                json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            }));
        }
        let (first, events) = body(asking, "tool_calls");
        let (last, more) = body(text(self.last_texts), "stop");
        (first, last, events + more)
    }
}

fn body(deltas: Vec<Value>, finish: &str) -> (Vec<u8>, usize) {
    let event = |choices: Value, usage: Value| {
        json!({
            "id": "chatcmpl-BqKvhz5zX6oS1oMNF0BvpQOXGmCmE",
            "object": "chat.completion.chunk",
            "created": 1_751_900_000,
            "model": "some-model-2026-01-01",
            "service_tier": "default",
            "system_fingerprint": "fp_34a54ae93c",
            "choices": choices,
            "usage": usage,
        })
    };
    let choice = |delta: Value, finish: Value| {
        let delta =
            json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
        event(delta, Value::Null)
    };
    let opening = json!({"role": "assistant", "content": "", "refusal": null});
    let mut events = vec![choice(opening, Value::Null)];
    events.extend(deltas.into_iter().map(|delta| choice(delta, Value::Null)));
    events.push(choice(json!({}), finish.into()));
    events.push(event(
        json!([]),
        json!({"prompt_tokens": 120, "completion_tokens": 80, "total_tokens": 200,
            "prompt_tokens_details": {"cached_tokens": 0}}),
    ));
    let mut text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    text.push_str("data: [DONE]\n\n");
    (text.into_bytes(), events.len() + 1)
}

/// A whole body, or events with pauses between them.
#[derive(Clone)]
struct Paced {
    body: Bytes,
    pace: Duration,
}

impl Paced {
    fn body(&self) -> Body {
        let Self { body, pace } = self.clone();
        if pace.is_zero() {
            return Body::from(body);
        }
        Body::from_stream(stream::unfold(body, move |mut rest| async move {
            let end = memchr::memmem::find(&rest, b"\n\n")? + 2;
            let event = rest.split_to(end);
            tokio::time::sleep(pace).await;
            Some((Ok::<_, Infallible>(event), rest))
        }))
    }
}

/// Serves on one thread until the process ends. Prints its address to stdout.
pub(crate) async fn serve(workload: Workload, pace: Duration) {
    callsheet::load::raise_open_files(SESSIONS_MAX).unwrap();
    let (first, last, _) = workload.bodies();
    let paced = |body| Paced { body: Bytes::from(body), pace };
    let (first, last) = (paced(first), paced(last));
    let answer = move |body: Bytes| {
        // The history also contains earlier runs of the session.
        let role = b"\"role\":\"";
        let newest = memchr::memmem::rfind(&body, role).unwrap() + role.len();
        let body = if body[newest..].starts_with(b"tool") { last.body() } else { first.body() };
        async move { ([(CONTENT_TYPE, "text/event-stream")], body) }
    };
    let server = Router::new()
        .route("/v1/chat/completions", post(answer))
        .layer(DefaultBodyLimit::max(64 << 20));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("http://{}/v1", listener.local_addr().unwrap());
    axum::serve(listener, server).await.unwrap();
}
