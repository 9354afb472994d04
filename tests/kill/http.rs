//! Requests to a host that may die at any moment. In HTTP/1.0: no chunks, and the end is the end.

use std::io;
use std::net::SocketAddr;

use callsheet::event::EventId;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An answer that came whole.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

/// One event as a watcher got it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) id: Option<EventId>,
    pub(crate) kind: String,
    pub(crate) data: Value,
}

/// Posts JSON.
///
/// # Errors
/// When the host is not there, or is gone before its answer is whole.
pub(crate) async fn post(
    addr: SocketAddr,
    path: &str,
    key: Option<&str>,
    body: &Value,
) -> io::Result<Answer> {
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
    answer(&bytes)
}

fn answer(bytes: &[u8]) -> io::Result<Answer> {
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
    Ok(Answer { status: status.ok_or_else(broken)?, body })
}

/// A session's events as they come.
pub(crate) struct Events {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Events {
    /// Watches a session from a place on.
    ///
    /// # Errors
    /// When the host is not there, or is gone before its answer begins.
    pub(crate) async fn open(
        addr: SocketAddr,
        session: &str,
        last: EventId,
    ) -> io::Result<Result<Self, Answer>> {
        let request = format!(
            "GET /v1/sessions/{session}/events HTTP/1.0\r\nhost: localhost\r\nlast-event-id: {last}\r\n\r\n"
        );
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut events = Self { stream, bytes: Vec::new() };
        let head = loop {
            if let Some(head) = events.take_until("\r\n\r\n") {
                break head;
            }
            if !events.more().await {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        if head.starts_with("HTTP/1.0 200 ") {
            return Ok(Ok(events));
        }
        while events.more().await {}
        let bytes = [head.as_bytes(), b"\r\n\r\n", &events.bytes].concat();
        answer(&bytes).map(Err)
    }

    /// The next event that came whole; none if the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Seen> {
        loop {
            while let Some(text) = self.take_until("\n\n") {
                let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
                if let Some(kind) = field("event: ") {
                    let data = serde_json::from_str(field("data: ").unwrap()).unwrap();
                    let id = field("id: ").map(|id| id.parse().unwrap());
                    return Some(Seen { id, kind: kind.to_owned(), data });
                }
            }
            if !self.more().await {
                return None;
            }
        }
    }

    fn take_until(&mut self, mark: &str) -> Option<String> {
        let at = self.bytes.windows(mark.len()).position(|part| part == mark.as_bytes())?;
        let taken = self.bytes.drain(..at + mark.len()).collect::<Vec<u8>>();
        Some(String::from_utf8(taken[..at].to_vec()).unwrap())
    }

    async fn more(&mut self) -> bool {
        self.stream.read_buf(&mut self.bytes).await.is_ok_and(|read| read > 0)
    }
}
