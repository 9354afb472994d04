//! What the server has received, and the gates at which its streams wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, Uri};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::script::Script;
use crate::types::Wire;

/// A request that the server has received.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedRequest {
    /// Its number, counted from 1 over the server's life.
    pub number: u64,
    /// When it was whole.
    pub at: Instant,
    /// The wire that it speaks.
    pub wire: Wire,
    /// Its path, with the query.
    pub path: String,
    /// Its headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Its body; null if that was no JSON.
    pub body: Value,
    /// The status it was answered with; 0 before it was.
    pub status: u16,
    /// Whether the answer is out, and how it ended.
    pub ended: Ended,
}

/// How the sending of an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It is still being sent.
    Open,
    /// The whole body was handed over.
    Whole,
    /// The script, or the end of the server, broke it off.
    Broken,
    /// The client left before the end.
    ClientLeft,
}

/// What is seen of the server from outside.
#[derive(Debug, Default)]
struct Seen {
    received: u64,
    /// The last requests; older ones are forgotten.
    kept: VecDeque<ReceivedRequest>,
    reached: BTreeSet<String>,
    released: BTreeSet<String>,
}

/// What the connections and the handle share.
#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) script: Mutex<Script>,
    pub(super) chunk_delay: Duration,
    pub(super) stop: CancellationToken,
    keep_requests: usize,
    seen: watch::Sender<Seen>,
}

impl ServerState {
    pub(super) fn new(script: Script, chunk_delay: Duration, keep_requests: usize) -> Self {
        Self {
            script: Mutex::new(script),
            chunk_delay,
            stop: CancellationToken::new(),
            keep_requests,
            seen: watch::Sender::new(Seen::default()),
        }
    }

    /// Notes a request; what is returned follows it to its end.
    pub(super) fn receive(
        self: &Arc<Self>,
        wire: Wire,
        uri: &Uri,
        headers: &HeaderMap,
        body: &Value,
    ) -> OpenRequest {
        let mut number = 0;
        self.seen.send_modify(|seen| {
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
                        .map(|(name, value)| {
                            (
                                name.to_string(),
                                String::from_utf8_lossy(value.as_bytes()).into_owned(),
                            )
                        })
                        .collect(),
                    body: body.clone(),
                    status: 0,
                    ended: Ended::Open,
                });
            }
        });
        OpenRequest { desk: Arc::clone(self), wire, number, ended: Ended::Open }
    }

    /// Waits at a gate until it is released.
    pub(super) async fn pass_gate(&self, name: &str) {
        self.seen.send_modify(|seen| {
            seen.reached.insert(name.to_owned());
        });
        self.wait_for(|seen| seen.released.contains(name)).await;
    }

    pub(super) fn release(&self, name: &str) {
        self.seen.send_modify(|seen| {
            seen.released.insert(name.to_owned());
        });
    }

    pub(super) async fn gate_reached(&self, name: &str) {
        self.wait_for(|seen| seen.reached.contains(name)).await;
    }

    pub(super) fn received(&self) -> u64 {
        self.seen.borrow().received
    }

    pub(super) fn kept(&self) -> Vec<ReceivedRequest> {
        self.seen.borrow().kept.iter().cloned().collect()
    }

    pub(super) async fn wait_for_received(&self, count: u64) {
        self.wait_for(|seen| seen.received >= count).await;
    }

    pub(super) async fn wait_until_ended(&self, number: u64) -> Option<ReceivedRequest> {
        let find = |seen: &Seen| seen.kept.iter().find(|r| r.number == number).cloned();
        self.wait_for(|seen| {
            // One that was forgotten is not waited for.
            let forgotten = seen.received >= number && find(seen).is_none();
            forgotten || find(seen).is_some_and(|request| request.ended != Ended::Open)
        })
        .await;
        find(&self.seen.borrow())
    }

    async fn wait_for(&self, fits: impl FnMut(&Seen) -> bool) {
        // Fails only when the sender is gone, and the sender is `self`.
        let _ = self.seen.subscribe().wait_for(fits).await;
    }

    fn note(&self, number: u64, change: impl FnOnce(&mut ReceivedRequest)) {
        self.seen.send_if_modified(|seen| {
            let found = seen.kept.iter_mut().rfind(|request| request.number == number);
            found.map(change).is_some()
        });
    }
}

/// A request that is being answered. Dropped before [`OpenRequest::end`], the client has left.
#[derive(Debug)]
pub(super) struct OpenRequest {
    desk: Arc<ServerState>,
    pub(super) wire: Wire,
    pub(super) number: u64,
    ended: Ended,
}

impl OpenRequest {
    pub(super) fn status(&self, status: u16) {
        self.desk.note(self.number, |request| request.status = status);
    }

    pub(super) fn end(&mut self, ended: Ended) {
        if self.ended == Ended::Open {
            self.ended = ended;
            self.desk.note(self.number, |request| request.ended = ended);
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let broken = self.desk.stop.is_cancelled();
        self.end(if broken { Ended::Broken } else { Ended::ClientLeft });
    }
}
