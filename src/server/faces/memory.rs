//! The state of a server's faces: repeated requests, open answers, and permits. A restart loses it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::retries::Retries;
use callsheet_host::journal::unix_ms;
use callsheet_values::types::RunId;

/// Maximum number of WebSockets. They do not count in `max_connections`.
const SOCKETS_MAX: usize = 1000;

/// The state that the requests of all faces share.
#[derive(Debug)]
pub(in super::super) struct FacesMemory {
    pub(super) retries: Retries,
    /// The time at which the server was made: Unix time in milliseconds.
    pub(super) started: u64,
    pub(super) chat: OpenAnswers,
    /// The permits of WebSockets.
    pub(super) sockets: Arc<Semaphore>,
    /// True when the sessions that an earlier process should have deleted are being deleted.
    pub(super) has_deleted_old: AtomicBool,
}

impl Default for FacesMemory {
    fn default() -> Self {
        Self {
            retries: Retries::default(),
            started: unix_ms(),
            chat: OpenAnswers::default(),
            sockets: Arc::new(Semaphore::new(SOCKETS_MAX)),
            has_deleted_old: AtomicBool::new(false),
        }
    }
}

/// The runs whose answers are being sent: their number, and when the last one was closed.
#[derive(Debug, Default)]
pub(super) struct OpenAnswers(Mutex<HashMap<RunId, (usize, Instant)>>);

impl OpenAnswers {
    pub(super) fn opened(&self, run: &RunId) {
        self.0.lock().entry(run.clone()).or_insert((0, Instant::now())).0 += 1;
    }

    pub(super) fn closed(&self, run: &RunId) {
        if let Some((count, closed)) = self.0.lock().get_mut(run) {
            *count = count.saturating_sub(1);
            *closed = Instant::now();
        }
    }

    /// Returns true, and forgets the run, if none of its answers has been open for this time.
    pub(super) fn is_left(&self, run: &RunId, since: Duration) -> bool {
        let mut all = self.0.lock();
        let is_left =
            all.get(run).is_none_or(|(count, closed)| *count == 0 && closed.elapsed() >= since);
        if is_left {
            all.remove(run);
        }
        is_left
    }
}
