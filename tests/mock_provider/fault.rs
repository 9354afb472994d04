//! Sends a body with the pauses, gates and faults of its script.
//!
//! [`plan`] is pure; [`perform`] executes a plan.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures::Stream;

use super::encoded::{BodyChunk, Encoded};
use super::requests::{AnswerState, OpenRequest, ProviderState};
use super::script::{Response, ScriptPosition};

/// The pause that lets the bytes before a cut reach the socket: hyper drops unflushed bytes when
/// a body fails.
const FLUSH: Duration = Duration::from_millis(2);

/// One step of sending a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SendStep {
    /// Send these bytes.
    Send(Bytes),
    /// Wait for this time.
    Pause(Duration),
    /// Wait until the gate of this name is open.
    Hold(String),
    /// Send nothing more, or only these bytes at this interval.
    Stall { keep_alive: Option<(Duration, &'static str)> },
    /// Break the connection.
    Cut,
}

/// The body broke off because the script says so, or because the server is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mock provider broke the body off")]
pub(super) struct BrokeOff;

/// Returns the pauses and gates before the status line.
pub(super) fn before_headers(response: &Response) -> Vec<SendStep> {
    waits_by_chunk(response, |at| (at == ScriptPosition::Headers).then_some(0))
        .remove(&0)
        .unwrap_or_default()
}

/// Returns the plan of a body. `chunk_delay` is the pause of responses that set none.
pub(super) fn plan(encoded: &Encoded, response: &Response, chunk_delay: Duration) -> Vec<SendStep> {
    let chunks: Vec<&BodyChunk> =
        encoded.chunks.iter().take(response.truncate_after_chunks.unwrap_or(usize::MAX)).collect();
    let end = chunks.len();
    let delay = response.chunk_delay_ms.map_or(chunk_delay, Duration::from_millis);
    let mut waits = waits_by_chunk(response, |at| {
        (at != ScriptPosition::Headers).then(|| encoded.position(at).min(end))
    });
    let mut bytes_left = response.cut_after_bytes;
    let mut steps = Vec::new();
    for number in 0..=end {
        if (1..end).contains(&number) && !delay.is_zero() {
            steps.push(SendStep::Pause(delay));
        }
        steps.append(&mut waits.remove(&number).unwrap_or_default());
        // A stall or a cut beyond the end happens at the end.
        if response.stall_after_chunks.is_some_and(|after| after.min(end) == number) {
            let every = response.keep_alive_ms.map(Duration::from_millis);
            let keep_alive = every.map(|every| (every, encoded.keep_alive));
            steps.push(SendStep::Stall { keep_alive });
            return steps;
        }
        let cut = response.cut_after_chunks.is_some_and(|after| after.min(end) == number);
        if cut || bytes_left == Some(0) {
            steps.push(SendStep::Cut);
            return steps;
        }
        let Some(chunk) = chunks.get(number) else { break };
        let mut bytes = chunk.bytes.clone();
        if response.malformed_at_chunk == Some(number) {
            bytes = Bytes::from_static(encoded.malformed.as_bytes());
        }
        if let Some(left) = &mut bytes_left {
            bytes.truncate(*left);
            *left -= bytes.len();
        }
        if !bytes.is_empty() {
            steps.push(SendStep::Send(bytes));
        }
    }
    if bytes_left.is_some() {
        steps.push(SendStep::Cut);
    }
    steps
}

/// Returns the pauses and gates of a response by the index of the chunk that follows them.
fn waits_by_chunk(
    response: &Response,
    position: impl Fn(ScriptPosition) -> Option<usize>,
) -> BTreeMap<usize, Vec<SendStep>> {
    let delays = response.delays.iter().map(|delay| {
        let pause = SendStep::Pause(Duration::from_millis(delay.ms));
        (position(delay.at), pause)
    });
    let holds =
        response.holds.iter().map(|hold| (position(hold.at), SendStep::Hold(hold.name.clone())));
    let mut waits = BTreeMap::<usize, Vec<SendStep>>::new();
    for (position, step) in delays.chain(holds) {
        if let Some(position) = position {
            waits.entry(position).or_default().push(step);
        }
    }
    waits
}

/// Returns the stream that sends a body by its plan. The stream fails where the plan cuts, and when
/// the server stops. When the client disconnects, the stream is dropped and `open` records it.
pub(super) fn perform(
    steps: Vec<SendStep>,
    state: Arc<ProviderState>,
    open: OpenRequest,
) -> impl Stream<Item = Result<Bytes, BrokeOff>> + Send {
    let sender = BodySender { steps: steps.into(), state, open };
    futures::stream::unfold(Some(sender), |sender| async {
        let mut sender = sender?;
        let stop = sender.state.stop.clone();
        let sent = tokio::select! {
            biased;
            () = stop.cancelled() => Some(Err(BrokeOff)),
            sent = sender.next() => sent,
        };
        match sent {
            Some(Ok(bytes)) => Some((Ok(bytes), Some(sender))),
            Some(Err(broke_off)) => {
                sender.open.end(AnswerState::Broken);
                Some((Err(broke_off), None))
            }
            None => {
                sender.open.end(AnswerState::Whole);
                None
            }
        }
    })
}

struct BodySender {
    steps: VecDeque<SendStep>,
    state: Arc<ProviderState>,
    open: OpenRequest,
}

impl BodySender {
    /// Waits until the next bytes are due, and returns them.
    async fn next(&mut self) -> Option<Result<Bytes, BrokeOff>> {
        loop {
            match self.steps.pop_front()? {
                SendStep::Send(bytes) => {
                    // Gives hyper the chance to flush, so that every chunk is a write of its own.
                    tokio::task::yield_now().await;
                    return Some(Ok(bytes));
                }
                SendStep::Pause(duration) => tokio::time::sleep(duration).await,
                SendStep::Hold(name) => self.state.pass_gate(&name).await,
                SendStep::Stall { keep_alive: None } => std::future::pending().await,
                SendStep::Stall { keep_alive: Some((every, what)) } => {
                    tokio::time::sleep(every).await;
                    self.steps.push_front(SendStep::Stall { keep_alive: Some((every, what)) });
                    return Some(Ok(Bytes::from_static(what.as_bytes())));
                }
                SendStep::Cut => {
                    tokio::time::sleep(FLUSH).await;
                    return Some(Err(BrokeOff));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::encoded::ChunkMark;
    use super::super::script::Call;
    use super::*;

    fn three() -> Encoded {
        let chunk =
            |text: &str| BodyChunk { bytes: text.to_owned().into(), mark: ChunkMark::Content };
        Encoded::events(["aa", "bb", "cc"].map(chunk).into())
    }

    /// Writes a plan as text: `-` pauses, `[name]` waits, `~` stalls, `!` cuts, `?` is a malformed chunk.
    fn planned(change: impl FnOnce(&mut Response)) -> String {
        let mut response = Response::default();
        change(&mut response);
        let step = |step: SendStep| match step {
            SendStep::Send(bytes) if bytes == three().malformed => "?".to_owned(),
            SendStep::Send(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            SendStep::Pause(duration) => format!("-{}-", duration.as_millis()),
            SendStep::Hold(name) => format!("[{name}]"),
            SendStep::Stall { keep_alive: None } => "~".to_owned(),
            SendStep::Stall { keep_alive: Some((every, _)) } => format!("~{}~", every.as_millis()),
            SendStep::Cut => "!".to_owned(),
        };
        plan(&three(), &response, Duration::ZERO).into_iter().map(step).collect()
    }

    #[test]
    fn plans_faults_and_pauses() {
        assert_eq!(planned(|_| ()), "aabbcc");
        assert_eq!(planned(|r| r.chunk_delay_ms = Some(3)), "aa-3-bb-3-cc");
        assert_eq!(planned(|r| r.cut_after_bytes = Some(3)), "aab!");
        assert_eq!(planned(|r| r.cut_after_bytes = Some(4)), "aabb!");
        assert_eq!(planned(|r| r.cut_after_bytes = Some(0)), "!");
        assert_eq!(planned(|r| r.cut_after_bytes = Some(99)), "aabbcc!");
        assert_eq!(planned(|r| r.cut_after_chunks = Some(1)), "aa!");
        assert_eq!(planned(|r| r.cut_after_chunks = Some(99)), "aabbcc!");
        assert_eq!(planned(|r| r.stall_after_chunks = Some(2)), "aabb~");
        assert_eq!(planned(|r| r.stall_after_chunks = Some(9)), "aabbcc~");
        assert_eq!(
            planned(|r| {
                r.stall_after_chunks = Some(0);
                r.keep_alive_ms = Some(5);
            }),
            "~5~"
        );
        assert_eq!(planned(|r| r.malformed_at_chunk = Some(1)), "aa?cc");
        assert_eq!(planned(|r| r.truncate_after_chunks = Some(2)), "aabb");
        assert_eq!(
            planned(|r| *r = Response::default()
                .hold(ScriptPosition::Chunk(1), "g")
                .delay(ScriptPosition::Chunk(1), 9)),
            "aa-9-[g]bbcc"
        );
        assert_eq!(
            planned(|r| *r = Response::default().hold(ScriptPosition::Finish, "end")),
            "aabbcc[end]"
        );
        assert_eq!(
            planned(|r| *r = Response::default().hold(ScriptPosition::Headers, "h")),
            "aabbcc"
        );
    }

    #[test]
    fn only_waits_at_the_headers_come_before_them() {
        let response = Response::calls([Call::default()])
            .hold(ScriptPosition::Headers, "h")
            .hold(ScriptPosition::Chunk(0), "c")
            .delay(ScriptPosition::Headers, 2);
        let pause = SendStep::Pause(Duration::from_millis(2));
        assert_eq!(before_headers(&response), [pause, SendStep::Hold("h".into())]);
    }
}
