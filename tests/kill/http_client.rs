//! Requests to a host that may be killed at any time. HTTP/1.0: no chunks; the end of the connection
//! ends the body.

use std::io;
use std::net::SocketAddr;

use callsheet::event::EventId;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A complete response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl HttpResponse {
    pub(crate) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

/// An event as a watcher received it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StreamEvent {
    pub(crate) id: Option<EventId>,
    pub(crate) kind: String,
    pub(crate) data: Value,
}

/// Posts JSON.
///
/// # Errors
/// When the host does not listen, or ends before its response is complete.
pub(crate) async fn post(
    addr: SocketAddr,
    path: &str,
    key: Option<&str>,
    body: &Value,
) -> io::Result<HttpResponse> {
    let body = body.to_string();
    let key = key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default();
    let request = format!(
        "POST {path} HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         {key}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    parse_response(&bytes)
}

fn parse_response(bytes: &[u8]) -> io::Result<HttpResponse> {
    let broken = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let text = std::str::from_utf8(bytes).map_err(|_| broken())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(broken)?;
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    if length.and_then(|length| length.parse().ok()) != Some(body.len()) {
        return Err(broken());
    }
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = serde_json::from_str(body).map_err(|_| broken())?;
    Ok(HttpResponse { status: status.ok_or_else(broken)?, body })
}

/// A live stream of a session's events.
pub(crate) struct EventStream {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl EventStream {
    /// Watches a session after an event.
    ///
    /// # Errors
    /// When the host does not listen, or ends before its response begins.
    pub(crate) async fn open(
        addr: SocketAddr,
        session: &str,
        last: EventId,
    ) -> io::Result<Result<Self, HttpResponse>> {
        let request = format!(
            "GET /v1/sessions/{session}/events HTTP/1.0\r\nhost: localhost\r\nlast-event-id: {last}\r\n\r\n"
        );
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut events = Self { stream, bytes: Vec::new() };
        let head = loop {
            if let Some(head) = events.split_until("\r\n\r\n") {
                break head;
            }
            if !events.read_more().await {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        if head.starts_with("HTTP/1.0 200 ") {
            return Ok(Ok(events));
        }
        while events.read_more().await {}
        let bytes = [head.as_bytes(), b"\r\n\r\n", &events.bytes].concat();
        parse_response(&bytes).map(Err)
    }

    /// Returns the next complete event, or `None` when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<StreamEvent> {
        loop {
            while let Some(text) = self.split_until("\n\n") {
                let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
                if let Some(kind) = field("event: ") {
                    let data = serde_json::from_str(field("data: ").unwrap()).unwrap();
                    let id = field("id: ").map(|id| id.parse().unwrap());
                    return Some(StreamEvent { id, kind: kind.to_owned(), data });
                }
            }
            if !self.read_more().await {
                return None;
            }
        }
    }

    fn split_until(&mut self, mark: &str) -> Option<String> {
        let at = self.bytes.windows(mark.len()).position(|part| part == mark.as_bytes())?;
        let head = self.bytes.drain(..at + mark.len()).collect::<Vec<u8>>();
        Some(String::from_utf8(head[..at].to_vec()).unwrap())
    }

    async fn read_more(&mut self) -> bool {
        self.stream.read_buf(&mut self.bytes).await.is_ok_and(|read| read > 0)
    }
}
