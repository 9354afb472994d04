//! A session with its messages as JSON, made and sent piece by piece: a client that does not read keeps
//! little in memory, and a long history does not hold up the thread that serves.

use std::ops::Range;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use serde::Serialize;

use super::large_answer::{LargeAnswerPlace, PIECE_BYTES, json_response};
use crate::message::Message;
use crate::runtime::SessionSnapshot;

/// Size from which a single message is encoded on a thread that may block.
const BLOCKING_BYTES: usize = 256 * 1024;

/// Some of the messages of a session, and its other values.
#[derive(Debug)]
pub(super) struct SessionPage {
    snapshot: SessionSnapshot,
    /// The indices of the messages on the page.
    range: Range<usize>,
}

/// The state of a body that is being sent.
struct PageBody {
    page: SessionPage,
    stage: Stage,
    /// Held until the body ends.
    _place: LargeAnswerPlace,
}

/// The next part of a body.
enum Stage {
    Beginning,
    /// The message with this index.
    Message(usize),
    Done,
}

impl SessionPage {
    /// Selects at most `limit` messages whose index is higher than `after`.
    pub(super) fn new(
        snapshot: SessionSnapshot,
        after: Option<usize>,
        limit: Option<usize>,
    ) -> Self {
        let all = snapshot.history.len();
        let first = after.map_or(0, |after| after.saturating_add(1)).min(all);
        let end = limit.map_or(all, |limit| first.saturating_add(limit).min(all));
        Self { snapshot, range: first..end }
    }

    pub(super) fn approximate_bytes(&self) -> usize {
        self.messages().iter().map(|message| message.approximate_bytes()).sum()
    }

    pub(super) fn into_response(self, place: LargeAnswerPlace) -> Response {
        let body = PageBody { page: self, stage: Stage::Beginning, _place: place };
        json_response(Body::from_stream(futures::stream::unfold(body, PageBody::next)))
    }

    fn messages(&self) -> &[Arc<Message>] {
        self.snapshot.history.get(self.range.clone()).unwrap_or_default()
    }

    /// Appends the members before the messages.
    fn append_beginning(&self, text: &mut Vec<u8>) -> serde_json::Result<()> {
        let SessionSnapshot { id, agent, state, seq, .. } = &self.snapshot;
        append_member(text, "{", "id", id)?;
        append_member(text, ",", "agent", agent)?;
        append_member(text, ",", "state", state)?;
        append_member(text, ",", "seq", seq)?;
        text.extend_from_slice(b",\"history\":[");
        Ok(())
    }

    /// Appends the members after the messages.
    fn append_end(&self, text: &mut Vec<u8>) -> serde_json::Result<()> {
        let SessionSnapshot { variables, current_run, queued, usage, .. } = &self.snapshot;
        append_member(text, "],", "variables", variables)?;
        append_member(text, ",", "current_run", current_run)?;
        append_member(text, ",", "queued", queued)?;
        append_member(text, ",", "usage", usage)?;
        if self.range.end < self.snapshot.history.len() {
            append_member(text, ",", "next", &self.range.end.saturating_sub(1))?;
        }
        text.push(b'}');
        Ok(())
    }
}

impl PageBody {
    /// Makes the next piece.
    async fn next(mut self) -> Option<(Result<Bytes, serde_json::Error>, Self)> {
        if matches!(self.stage, Stage::Done) {
            return None;
        }
        match self.piece().await {
            Ok(text) => Some((Ok(Bytes::from(text)), self)),
            Err(error) => {
                self.stage = Stage::Done;
                Some((Err(error), self))
            }
        }
    }

    async fn piece(&mut self) -> serde_json::Result<Vec<u8>> {
        let mut text = Vec::with_capacity(PIECE_BYTES);
        if matches!(self.stage, Stage::Beginning) {
            self.page.append_beginning(&mut text)?;
            self.stage = Stage::Message(self.page.range.start);
        }
        while let Stage::Message(index) = self.stage {
            let range = &self.page.range;
            let Some(message) = self.page.snapshot.history.get(index).filter(|_| index < range.end)
            else {
                self.page.append_end(&mut text)?;
                self.stage = Stage::Done;
                break;
            };
            if index > range.start {
                text.push(b',');
            }
            if message.approximate_bytes() < BLOCKING_BYTES {
                serde_json::to_writer(&mut text, message)?;
            } else {
                text.extend(encode_apart(Arc::clone(message)).await?);
            }
            self.stage = Stage::Message(index + 1);
            if text.len() >= PIECE_BYTES {
                break;
            }
        }
        Ok(text)
    }
}

/// Encodes a large message on a thread that may block.
async fn encode_apart(message: Arc<Message>) -> serde_json::Result<Vec<u8>> {
    let encoded = tokio::task::spawn_blocking(move || serde_json::to_vec(&message));
    encoded.await.unwrap_or_else(|error| Err(serde::ser::Error::custom(error)))
}

fn append_member(
    text: &mut Vec<u8>,
    before: &str,
    name: &str,
    value: &impl Serialize,
) -> serde_json::Result<()> {
    text.extend_from_slice(before.as_bytes());
    text.push(b'"');
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b"\":");
    serde_json::to_writer(text, value)
}
