//! Encoded bodies as a list of marked chunks.

use axum::body::Bytes;
use serde_json::Value;

use super::script::ScriptPosition;

/// A chunk of a body and its mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BodyChunk {
    pub(super) bytes: Bytes,
    pub(super) mark: ChunkMark,
}

impl BodyChunk {
    /// Returns a server-sent event without a name.
    pub(super) fn event(data: &Value, mark: ChunkMark) -> Self {
        Self { bytes: format!("data: {data}\n\n").into(), mark }
    }

    /// Returns a server-sent event whose name is its `type`.
    pub(super) fn named_event(data: &Value, mark: ChunkMark) -> Self {
        let name = data["type"].as_str().unwrap_or_default();
        Self { bytes: format!("event: {name}\ndata: {data}\n\n").into(), mark }
    }

    /// Returns a JSON line.
    pub(super) fn line(data: &Value, mark: ChunkMark) -> Self {
        Self { bytes: format!("{data}\n").into(), mark }
    }
}

/// The kind of a chunk, by which the positions of a script are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkMark {
    /// The opening, reasoning, text, or a part of a raw, plain or error body.
    Content,
    /// A part of the call with this index in the script's list.
    Call(usize),
    /// The finish reason.
    Finish,
    /// The token counts.
    Usage,
    /// The end marker of the wire format.
    Done,
}

/// A body: its content type and its chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Encoded {
    pub(super) content_type: String,
    pub(super) chunks: Vec<BodyChunk>,
    /// The bytes that replace a chunk that the script makes malformed.
    pub(super) malformed: &'static str,
    /// The bytes that keep a stalled stream alive.
    pub(super) keep_alive: &'static str,
}

impl Encoded {
    /// Returns a stream of server-sent events.
    pub(super) fn events(chunks: Vec<BodyChunk>) -> Self {
        Self {
            content_type: "text/event-stream; charset=utf-8".to_owned(),
            chunks,
            malformed: "data: {\"choices\":[{\"delta\":{\"content\":\n\n",
            keep_alive: ": keep-alive\n\n",
        }
    }

    /// Returns a stream of JSON lines.
    pub(super) fn lines(chunks: Vec<BodyChunk>) -> Self {
        Self {
            content_type: "application/x-ndjson".to_owned(),
            chunks,
            malformed: "{\"message\":{\"content\":\n",
            keep_alive: "\n",
        }
    }

    /// Returns a plain body in two chunks, so that a script can place a fault between them.
    pub(super) fn plain(body: &Value) -> Self {
        let mut rest = Bytes::from(body.to_string());
        let first = rest.split_to(rest.len() / 2);
        Self::bytes("application/json", [first, rest])
    }

    /// Returns a body of raw bytes.
    pub(super) fn bytes(content_type: &str, chunks: impl IntoIterator<Item = Bytes>) -> Self {
        let chunks = chunks.into_iter().map(|bytes| BodyChunk { bytes, mark: ChunkMark::Content });
        Self { content_type: content_type.to_owned(), ..Self::events(chunks.collect()) }
    }

    /// Returns the index of the chunk that follows a position; the number of chunks for the end, and for a
    /// position that the body does not have.
    pub(super) fn position(&self, at: ScriptPosition) -> usize {
        let end = self.chunks.len();
        let first = |wanted: &dyn Fn(ChunkMark) -> bool| {
            self.chunks.iter().position(|chunk| wanted(chunk.mark)).unwrap_or(end)
        };
        match at {
            ScriptPosition::Headers => 0,
            ScriptPosition::Chunk(number) => number.min(end),
            ScriptPosition::Call(call) => first(&|mark| mark == ChunkMark::Call(call)),
            ScriptPosition::AfterCall(call) => self
                .chunks
                .iter()
                .rposition(|chunk| chunk.mark == ChunkMark::Call(call))
                .map_or(end, |last| last + 1),
            ScriptPosition::Finish => first(&|mark| mark == ChunkMark::Finish),
            ScriptPosition::Done => first(&|mark| mark == ChunkMark::Done),
        }
    }
}
