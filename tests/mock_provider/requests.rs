//! The received requests, and the gates at which streams wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Uri};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::script::Script;
use callsheet_values::types::Wire;

/// A request that the server has received. Requests to an unknown path, or with an unreadable body, do not count.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedRequest {
    /// Its number, from 1 since the server's start.
    pub number: u64,
    /// The time at which it was received completely.
    pub at: Instant,
    /// Its wire format.
    pub wire: Wire,
    /// Its path and query.
    pub path: String,
    /// Its headers, with names in lower case. Of several with one name, the last is kept.
    pub headers: BTreeMap<String, String>,
    /// Its body; null if that was not JSON.
    pub body: Value,
    /// The status of the answer; 0 before the answer.
    pub status: u16,
    /// The state of the answer.
    pub ended: AnswerState,
}

/// The state of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerState {
    /// It is still being sent.
    Open,
    /// The whole body was sent.
    Whole,
    /// The script or the server's shutdown broke it off.
    Broken,
    /// The client disconnected before the end.
    ClientLeft,
}

/// The state that can be observed from outside.
#[derive(Debug, Default)]
struct ObservedState {
    received: u64,
    /// The last requests. Older ones are removed.
    kept: VecDeque<ReceivedRequest>,
    /// The names of the gates that a stream has reached.
    reached: BTreeSet<String>,
    /// The names of the gates that are open.
    released: BTreeSet<String>,
}

/// The state that the connections and the handle share.
#[derive(Debug)]
pub(super) struct ProviderState {
    pub(super) script: Mutex<Script>,
    pub(super) chunk_delay: Duration,
    pub(super) stop: CancellationToken,
    keep_requests: usize,
    observed: watch::Sender<ObservedState>,
}

impl ProviderState {
    pub(super) fn new(script: Script, chunk_delay: Duration, keep_requests: usize) -> Self {
        Self {
            script: Mutex::new(script),
            chunk_delay,
            stop: CancellationToken::new(),
            keep_requests,
            observed: watch::Sender::new(ObservedState::default()),
        }
    }

    /// Counts a request, and stores it if requests are kept. The returned value reports its end.
    pub(super) fn receive(
        self: &Arc<Self>,
        wire: Wire,
        uri: &Uri,
        headers: &HeaderMap,
        body: &Value,
    ) -> OpenRequest {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let mut number = 0;
        self.observed.send_modify(|seen| {
            seen.received += 1;
            number = seen.received;
            if self.keep_requests > 0 {
                if seen.kept.len() >= self.keep_requests {
                    seen.kept.pop_front();
                }
                seen.kept.push_back(ReceivedRequest {
                    number,
                    at: Instant::now(),
                    wire,
                    path: uri.to_string(),
                    headers: headers
                        .iter()
                        .map(|(name, value)| (name.to_string(), text(value)))
                        .collect(),
                    body: body.clone(),
                    status: 0,
                    ended: AnswerState::Open,
                });
            }
        });
        OpenRequest { state: Arc::clone(self), wire, number, ended: AnswerState::Open }
    }

    /// Waits at a gate until it is released.
    pub(super) async fn pass_gate(&self, name: &str) {
        self.observed.send_modify(|seen| {
            seen.reached.insert(name.to_owned());
        });
        self.wait_for(|seen| seen.released.contains(name)).await;
    }

    pub(super) fn open_gate(&self, name: &str) {
        self.observed.send_modify(|seen| {
            seen.released.insert(name.to_owned());
        });
    }

    pub(super) async fn wait_for_gate(&self, name: &str) {
        self.wait_for(|seen| seen.reached.contains(name)).await;
    }

    pub(super) fn received(&self) -> u64 {
        self.observed.borrow().received
    }

    pub(super) fn requests(&self) -> Vec<ReceivedRequest> {
        self.observed.borrow().kept.iter().cloned().collect()
    }

    pub(super) async fn wait_for_received(&self, count: u64) {
        self.wait_for(|seen| seen.received >= count).await;
    }

    pub(super) async fn wait_until_ended(&self, number: u64) -> Option<ReceivedRequest> {
        let find = |seen: &ObservedState| seen.kept.iter().find(|r| r.number == number).cloned();
        self.wait_for(|seen| {
            // A removed request cannot be waited for.
            let forgotten = seen.received >= number && find(seen).is_none();
            forgotten || find(seen).is_some_and(|request| request.ended != AnswerState::Open)
        })
        .await;
        find(&self.observed.borrow())
    }

    async fn wait_for(&self, fits: impl FnMut(&ObservedState) -> bool) {
        // This fails only when the sender is dropped, and `self` owns the sender.
        let _ = self.observed.subscribe().wait_for(fits).await;
    }

    fn update(&self, number: u64, change: impl FnOnce(&mut ReceivedRequest)) {
        self.observed.send_if_modified(|seen| {
            let found = seen.kept.iter_mut().rfind(|request| request.number == number);
            found.map(change).is_some()
        });
    }
}

/// A request while it is answered. Dropping it before [`OpenRequest::end`] records that the client has
/// disconnected, or that the server has stopped.
#[derive(Debug)]
pub(super) struct OpenRequest {
    state: Arc<ProviderState>,
    pub(super) wire: Wire,
    pub(super) number: u64,
    ended: AnswerState,
}

impl OpenRequest {
    pub(super) fn set_status(&self, status: u16) {
        self.state.update(self.number, |request| request.status = status);
    }

    pub(super) fn end(&mut self, ended: AnswerState) {
        if self.ended == AnswerState::Open {
            self.ended = ended;
            self.state.update(self.number, |request| request.ended = ended);
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let has_stopped = self.state.stop.is_cancelled();
        self.end(if has_stopped { AnswerState::Broken } else { AnswerState::ClientLeft });
    }
}
