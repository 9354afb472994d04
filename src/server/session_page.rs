//! A session with its messages as JSON, made and sent piece by piece: a client that does not read keeps
//! little in memory, and a long history does not hold up the thread that serves.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use serde::Serialize;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::large_answer::{LARGE_BYTES, LargeAnswerPermit, PIECE_BYTES, json_response};
use crate::message::Message;
use crate::runtime::SessionSnapshot;

/// Size from which a single message is encoded on a thread that may block. A message above
/// [`LARGE_BYTES`] is encoded on a thread of its own, which waits for the client: its answer has one of
/// the places of large answers, so such threads are few.
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
    _place: LargeAnswerPermit,
}

/// The next part of a body.
enum Stage {
    Beginning,
    /// The message with this index.
    Message(usize),
    /// Pieces of the message with this index, which a thread of its own encodes.
    Pieces(usize, Receiver<io::Result<Vec<u8>>>),
    Done,
}

/// Sends what is written to it in pieces, and waits while the last piece is not received.
struct PieceWriter {
    piece: Vec<u8>,
    pieces: Sender<io::Result<Vec<u8>>>,
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

    pub(super) fn into_response(self, place: LargeAnswerPermit) -> Response {
        let body = PageBody { page: self, stage: Stage::Beginning, _place: place };
        json_response(Body::from_stream(futures::stream::unfold(body, PageBody::next)))
    }

    fn messages(&self) -> &[Arc<Message>] {
        self.snapshot.history.get(self.range.clone()).unwrap_or_default()
    }

    /// Appends the members before the messages.
    fn append_beginning(&self, text: &mut Vec<u8>) -> serde_json::Result<()> {
        let SessionSnapshot { id, agent, metadata, state, seq, .. } = &self.snapshot;
        append_member(text, "{", "id", id)?;
        append_member(text, ",", "agent", agent)?;
        if !metadata.is_empty() {
            append_member(text, ",", "metadata", metadata)?;
        }
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
        while text.len() < PIECE_BYTES {
            let range = &self.page.range;
            let history = &self.page.snapshot.history;
            match &mut self.stage {
                Stage::Beginning => {
                    self.page.append_beginning(&mut text)?;
                    self.stage = Stage::Message(range.start);
                }
                Stage::Message(index) => {
                    let index = *index;
                    let Some(message) = history.get(index).filter(|_| index < range.end) else {
                        self.page.append_end(&mut text)?;
                        self.stage = Stage::Done;
                        break;
                    };
                    if index > range.start {
                        text.push(b',');
                    }
                    self.stage = Stage::Message(index + 1);
                    match message.approximate_bytes() {
                        ..BLOCKING_BYTES => serde_json::to_writer(&mut text, message)?,
                        BLOCKING_BYTES..=LARGE_BYTES => {
                            text.extend(encode_apart(Arc::clone(message)).await?);
                        }
                        _ => {
                            self.stage = Stage::Pieces(index, pieces_of(Arc::clone(message)));
                        }
                    }
                }
                Stage::Pieces(index, pieces) => match pieces.recv().await {
                    Some(piece) => text.extend(piece.map_err(serde_json::Error::io)?),
                    None => self.stage = Stage::Message(*index + 1),
                },
                Stage::Done => break,
            }
        }
        Ok(text)
    }
}

impl PieceWriter {
    /// Sends the collected bytes. Fails if the client is gone.
    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        self.pieces.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl io::Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend(bytes.iter().take(count));
        if self.piece.len() == PIECE_BYTES {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

/// Starts a thread that encodes a message. The thread ends when all pieces are received, or when the
/// receiver is dropped.
fn pieces_of(message: Arc<Message>) -> Receiver<io::Result<Vec<u8>>> {
    let (pieces, receiver) = channel(1);
    let failed = pieces.clone();
    let encode = move || {
        let mut writer = PieceWriter { piece: Vec::with_capacity(PIECE_BYTES), pieces };
        let encoded = serde_json::to_writer(&mut writer, &message).map_err(io::Error::from);
        if let Err(error) = encoded.and_then(|()| writer.send()) {
            // If the receiver is gone, the error is dropped.
            let _ = writer.pieces.blocking_send(Err(error));
        }
    };
    let thread = std::thread::Builder::new().name("session-page".to_owned()).spawn(encode);
    if let Err(error) = thread {
        // The channel has room for one item.
        let _ = failed.try_send(Err(error));
    }
    receiver
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
