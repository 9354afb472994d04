//! A service with the Chat Completions wire in this process, whose answers a bench defines.

#[path = "chat.rs"]
mod chat;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::DefaultBodyLimit;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;

pub(crate) use chat::{end, event};

/// An answer: its body and content type.
pub(crate) type Answer = (&'static str, Body);

/// Returns a streamed answer.
pub(crate) fn stream(body: impl Into<Body>) -> Answer {
    ("text/event-stream", body.into())
}

/// Starts a service on loopback and returns its base URL. `answer` receives the body of a request,
/// and whether its last message is a tool result.
pub(crate) async fn serve<F>(answer: F) -> String
where
    F: Fn(&[u8], bool) -> Answer + Clone + Send + Sync + 'static,
{
    let handle = move |request: Bytes| {
        // The history also contains earlier turns.
        let role = b"\"role\":\"";
        let newest = memchr::memmem::rfind(&request, role).map_or(0, |at| at + role.len());
        let (kind, body) = answer(&request, request[newest..].starts_with(b"tool"));
        async move { ([(CONTENT_TYPE, kind)], body) }
    };
    let server = Router::new()
        .route("/v1/chat/completions", post(handle))
        .layer(DefaultBodyLimit::max(64 << 20));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn(async move { axum::serve(listener, server).await });
    format!("http://{address}/v1")
}
