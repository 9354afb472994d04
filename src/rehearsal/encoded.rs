//! Bodies to send, in parts that are known for what they are.

use axum::body::Bytes;
use serde_json::Value;

use super::script::At;

/// A part of a body, with what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) bytes: Bytes,
    pub(super) mark: Mark,
}

impl Chunk {
    /// A server-sent event without a name.
    pub(super) fn event(data: &Value, mark: Mark) -> Self {
        Self { bytes: format!("data: {data}\n\n").into(), mark }
    }
}

/// What a chunk is, so that places of a script can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Opening, thinking, text, or a part of a raw or plain body.
    Content,
    /// A part of the call at this place of the list.
    Call(usize),
    /// The finish reason.
    Finish,
    /// The token counts.
    Usage,
    /// The wire's own sign of the end.
    Done,
}

/// A body to send: its type and its chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Encoded {
    pub(super) content_type: String,
    pub(super) chunks: Vec<Chunk>,
    /// What is sent where a chunk is to be malformed.
    pub(super) malformed: &'static str,
    /// What is sent to keep a silent stream alive.
    pub(super) keep_alive: &'static str,
}

impl Encoded {
    /// A stream of server-sent events.
    pub(super) fn events(chunks: Vec<Chunk>) -> Self {
        Self {
            content_type: "text/event-stream; charset=utf-8".to_owned(),
            chunks,
            malformed: "data: {\"choices\":[{\"delta\":{\"content\":\n\n",
            keep_alive: ": keep-alive\n\n",
        }
    }

    /// A stream of JSON lines.
    pub(super) fn lines(chunks: Vec<Chunk>) -> Self {
        Self {
            content_type: "application/x-ndjson".to_owned(),
            chunks,
            malformed: "{\"message\":{\"content\":\n",
            keep_alive: "\n",
        }
    }

    /// A plain body in two chunks, so that faults between chunks have a place in it.
    pub(super) fn plain(body: &Value) -> Self {
        let mut rest = Bytes::from(body.to_string());
        let first = rest.split_to(rest.len() / 2);
        Self::bytes("application/json", [first, rest])
    }

    /// These bytes as they are.
    pub(super) fn bytes(content_type: &str, chunks: impl IntoIterator<Item = Bytes>) -> Self {
        let chunks = chunks.into_iter().map(|bytes| Chunk { bytes, mark: Mark::Content });
        Self { content_type: content_type.to_owned(), ..Self::events(chunks.collect()) }
    }

    /// The number of the chunk before which a place lies; the number of chunks for the end.
    pub(super) fn position(&self, at: At) -> usize {
        let end = self.chunks.len();
        let first = |wanted: &dyn Fn(Mark) -> bool| {
            self.chunks.iter().position(|chunk| wanted(chunk.mark)).unwrap_or(end)
        };
        match at {
            At::Headers => 0,
            At::Chunk(number) => number.min(end),
            At::Call(call) => first(&|mark| mark == Mark::Call(call)),
            At::AfterCall(call) => self
                .chunks
                .iter()
                .rposition(|chunk| chunk.mark == Mark::Call(call))
                .map_or(end, |last| last + 1),
            At::Finish => first(&|mark| mark == Mark::Finish),
            At::Done => first(&|mark| mark == Mark::Done),
        }
    }
}
