//! A session with its messages as JSON, made and sent piece by piece: a client that does not read keeps
//! little in memory, and a long history does not hold up the thread that serves.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use serde::Serialize;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::answer_limiter::{AnswerPermit, LARGE_BYTES, PIECE_BYTES, json_response};
use callsheet_host::runtime::{CallReport, CurrentRun, PendingApproval, SessionSnapshot};
use callsheet_values::message::{Message, content_bytes, json_bytes};
use callsheet_values::types::{QuestionKind, ResultPart};

/// Size from which a single part is encoded on a thread that may block. A part above [`LARGE_BYTES`] is
/// encoded on a thread of its own, which waits for the client: its answer is a large one, so such threads are
/// few.
const BLOCKING_BYTES: usize = 256 * 1024;

/// Bytes of a part's JSON that its approximate size does not count, such as the names of its members.
const NAMES_BYTES: usize = 128;

/// Some of the messages of a session, and its other values. Cloning shares them.
#[derive(Clone, Debug)]
pub(super) struct SessionPage {
    snapshot: Arc<SessionSnapshot>,
    /// The indices of the messages on the page.
    range: Range<usize>,
}

/// The state of a body that is being sent.
struct PageBody {
    page: SessionPage,
    stage: Stage,
    /// The encoded text that is not sent yet.
    text: Bytes,
    /// Held until the body ends.
    permit: AnswerPermit,
}

/// The next part of a body.
enum Stage {
    Beginning,
    /// The part with this index.
    Part(usize),
    /// Pieces of the part with this index, which a thread of its own encodes.
    Pieces(usize, Receiver<io::Result<Vec<u8>>>),
    Done,
}

/// A part of a body after its beginning. It can be large.
enum PagePart {
    Message(Arc<Message>),
    /// The members after the messages.
    End(SessionPage),
}

/// Sends the bytes that are written to it in pieces, and waits while the previous piece is not received. Only the
/// last piece is shorter than [`PIECE_BYTES`]. It may be empty.
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
        Self { snapshot: Arc::new(snapshot), range: first..end }
    }

    /// Returns about the number of bytes of the answer, and the number of those that are in memory at once while
    /// it is sent: a piece and the largest part. A part with a thread of its own counts as one piece.
    pub(super) fn approximate_bytes(&self) -> (usize, usize) {
        let messages = self.messages().iter().map(|message| message.approximate_bytes());
        let (mut all, mut encoded, mut largest) = (0, 0, 0);
        for bytes in messages.chain([self.end_bytes()]) {
            // JSON escapes some characters.
            let json = bytes + bytes / 8 + NAMES_BYTES;
            all += bytes;
            encoded += json;
            largest = largest.max(if bytes > LARGE_BYTES { PIECE_BYTES } else { json });
        }
        (all, encoded.min(PIECE_BYTES + largest))
    }

    pub(super) fn into_response(self, permit: AnswerPermit) -> Response {
        let body = PageBody { page: self, stage: Stage::Beginning, text: Bytes::new(), permit };
        json_response(Body::from_stream(futures::stream::unfold(body, PageBody::next)))
    }

    fn messages(&self) -> &[Arc<Message>] {
        self.snapshot.history.get(self.range.clone()).unwrap_or_default()
    }

    /// Appends the members before the messages.
    fn append_beginning(&self, text: &mut Vec<u8>) -> serde_json::Result<()> {
        let SessionSnapshot { id, agent, metadata, state, seq, .. } = &*self.snapshot;
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
    fn append_end(&self, text: &mut impl Write) -> serde_json::Result<()> {
        let SessionSnapshot { variables, current_run, approvals_open, queued, usage, .. } =
            &*self.snapshot;
        append_member(text, "],", "variables", variables)?;
        append_member(text, ",", "current_run", current_run)?;
        if *approvals_open > 0 {
            append_member(text, ",", "approvals_open", approvals_open)?;
        }
        append_member(text, ",", "queued", queued)?;
        append_member(text, ",", "usage", usage)?;
        if self.range.end < self.snapshot.history.len() {
            append_member(text, ",", "next", &self.range.end.saturating_sub(1))?;
        }
        text.write_all(b"}").map_err(serde_json::Error::io)
    }

    /// Returns about the number of bytes of the members after the messages.
    fn end_bytes(&self) -> usize {
        let SessionSnapshot { variables, current_run, queued, .. } = &*self.snapshot;
        let variables = variables.iter().map(|(name, value)| name.len() + json_bytes(value));
        let queued = queued.iter().map(|queued| content_bytes(&queued.input));
        let run = current_run.as_ref().map_or(0, run_bytes);
        variables.chain(queued).sum::<usize>() + run
    }

    /// Returns the message with this index, or the members after the messages if it is not on the page.
    fn part(&self, index: usize) -> PagePart {
        match self.snapshot.history.get(index).filter(|_| index < self.range.end) {
            Some(message) => PagePart::Message(Arc::clone(message)),
            None => PagePart::End(self.clone()),
        }
    }

    /// Returns the stage after the part with this index.
    fn after(&self, index: usize) -> Stage {
        if index < self.range.end { Stage::Part(index + 1) } else { Stage::Done }
    }
}

impl PagePart {
    fn approximate_bytes(&self) -> usize {
        match self {
            Self::Message(message) => message.approximate_bytes(),
            Self::End(page) => page.end_bytes(),
        }
    }

    fn append_to(&self, text: &mut impl Write) -> serde_json::Result<()> {
        match self {
            Self::Message(message) => serde_json::to_writer(text, message),
            Self::End(page) => page.append_end(text),
        }
    }
}

impl PageBody {
    /// Returns the next piece.
    async fn next(mut self) -> Option<(Result<Bytes, serde_json::Error>, Self)> {
        if self.text.is_empty() {
            match self.encode().await {
                Ok(text) => self.text = Bytes::from(text),
                Err(error) => {
                    self.stage = Stage::Done;
                    return Some((Err(error), self));
                }
            }
        }
        let piece = self.text.split_to(self.text.len().min(PIECE_BYTES));
        (!piece.is_empty()).then_some((Ok(piece), self))
    }

    /// Encodes the next parts: as many as fit in a piece, and at least one. The text is empty if nothing is left.
    async fn encode(&mut self) -> serde_json::Result<Vec<u8>> {
        let mut text = Vec::with_capacity(PIECE_BYTES);
        while text.len() < PIECE_BYTES {
            match &mut self.stage {
                Stage::Beginning => {
                    self.page.append_beginning(&mut text)?;
                    self.stage = Stage::Part(self.page.range.start);
                }
                Stage::Part(index) => {
                    let index = *index;
                    let part = self.page.part(index);
                    let bytes = part.approximate_bytes();
                    if !text.is_empty() && text.len() + bytes + NAMES_BYTES > PIECE_BYTES {
                        break;
                    }
                    let is_message = matches!(part, PagePart::Message(_));
                    if is_message && index > self.page.range.start {
                        text.push(b',');
                    }
                    self.stage = self.page.after(index);
                    match bytes {
                        ..BLOCKING_BYTES => part.append_to(&mut text)?,
                        BLOCKING_BYTES..=LARGE_BYTES => text = encode_apart(part, text).await?,
                        _ => self.stage = Stage::Pieces(index, spawn_encoder(part)),
                    }
                }
                Stage::Pieces(index, pieces) => {
                    // A thread that panics sends no last piece.
                    let broken = || Err(io::Error::other("the encoding of the session broke off"));
                    let piece = pieces.recv().await.unwrap_or_else(broken);
                    let piece = piece.map_err(serde_json::Error::io)?;
                    if piece.len() < PIECE_BYTES {
                        self.stage = self.page.after(*index);
                    }
                    text.extend(piece);
                }
                Stage::Done => break,
            }
        }
        // The permit suffices, unless JSON escapes very many characters.
        if !self.permit.try_grow(0, text.len()) {
            let full = io::Error::other("too many answers are held for clients");
            return Err(serde_json::Error::io(full));
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

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend(bytes.iter().take(count));
        if self.piece.len() == PIECE_BYTES {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts a thread that encodes a part. The thread ends when it has sent all pieces, or when the receiver
/// is dropped.
fn spawn_encoder(part: PagePart) -> Receiver<io::Result<Vec<u8>>> {
    let (pieces, receiver) = channel(1);
    let failed = pieces.clone();
    let encode = move || {
        let mut writer = PieceWriter { piece: Vec::with_capacity(PIECE_BYTES), pieces };
        let encoded = part.append_to(&mut writer).map_err(io::Error::from);
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

/// Appends a part to a text on a thread that may block.
async fn encode_apart(part: PagePart, mut text: Vec<u8>) -> serde_json::Result<Vec<u8>> {
    let encode = move || {
        text.reserve(part.approximate_bytes());
        part.append_to(&mut text).map(|()| text)
    };
    let encoded = tokio::task::spawn_blocking(encode);
    encoded.await.unwrap_or_else(|error| Err(serde::ser::Error::custom(error)))
}

/// Returns about the number of bytes of a run in progress as JSON.
fn run_bytes(run: &CurrentRun) -> usize {
    let approvals = run.approvals.iter().map(approval_bytes);
    let calls = run.client_calls.iter().map(|call| json_bytes(&call.input));
    approvals.chain(calls).chain(run.results.iter().map(report_bytes)).sum()
}

fn approval_bytes(approval: &PendingApproval) -> usize {
    let question = approval.question.as_ref().map_or(0, |question| {
        let kind = match &question.kind {
            QuestionKind::Form(form) => json_bytes(form),
            QuestionKind::Url(url) => url.len(),
        };
        question.message.len() + kind
    });
    json_bytes(&approval.input) + question
}

fn report_bytes(report: &CallReport) -> usize {
    let content = report.content.iter().map(ResultPart::bytes).sum::<usize>();
    let values = json_bytes(&report.arguments) + json_bytes(&report.metadata);
    values + report.result.len() + content
}

fn append_member(
    text: &mut impl Write,
    before: &str,
    name: &str,
    value: &impl Serialize,
) -> serde_json::Result<()> {
    write!(text, "{before}\"{name}\":").map_err(serde_json::Error::io)?;
    serde_json::to_writer(text, value)
}

#[cfg(test)]
mod tests {
    use super::super::answer_limiter::AnswerLimiter;
    use super::*;
    use callsheet_values::types::{Metadata, Seq, SessionId, SessionState, Usage};

    fn page(history: Vec<Message>) -> SessionPage {
        let snapshot = SessionSnapshot {
            id: SessionId::parse("s").expect("an id"),
            agent: "default".to_owned(),
            metadata: Metadata::default(),
            state: SessionState::Idle,
            seq: Seq(1),
            history: history.into_iter().map(Arc::new).collect(),
            variables: Default::default(),
            current_run: None,
            approvals_open: 0,
            queued: Vec::new(),
            usage: Usage::default(),
        };
        SessionPage::new(snapshot, None, None)
    }

    #[tokio::test]
    async fn a_body_with_a_large_part_is_whole() {
        let empty = serde_json::to_vec(&Message::user("")).expect("encode");
        // The message has as many bytes as whole pieces, one less, or one more.
        let length = LARGE_BYTES + PIECE_BYTES - empty.len();
        for length in length - 1..=length + 1 {
            let text = "x".repeat(length);
            let permit = AnswerLimiter::new(1).small();
            let response = page(vec![Message::user(text.as_str())]).into_response(permit);
            let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("read");
            let body: serde_json::Value = serde_json::from_slice(&body).expect("parse");
            assert!(body["history"][0]["content"] == text, "{length}");
        }
    }

    #[tokio::test]
    async fn a_body_whose_encoding_breaks_off_ends_with_an_error() {
        let (pieces, receiver) = channel(1);
        pieces.send(Ok(vec![b'x'; PIECE_BYTES])).await.expect("there is room");
        drop(pieces);
        let body = PageBody {
            page: page(vec![Message::user("x")]),
            stage: Stage::Pieces(0, receiver),
            text: Bytes::new(),
            permit: AnswerLimiter::new(1).small(),
        };
        let (piece, body) = body.next().await.expect("a piece");
        assert_eq!(piece.expect("it is sent").len(), PIECE_BYTES);
        let (broken, body) = body.next().await.expect("an error");
        assert!(broken.is_err());
        assert!(body.next().await.is_none());
    }
}
