//! The open connections of a server, and the limit on them.
//!
//! When all slots are taken, a new connection gets the slot of one that waits for its client: for the first request,
//! or for the rest of a body. So clients that stay silent do not exclude others. A connection that is idle after a
//! complete request (keep-alive) keeps its slot.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use callsheet_host::runtime::Host;
use callsheet_host::telemetry::HostMetrics;

/// The open connections of a server.
#[derive(Debug)]
pub(super) struct Connections {
    maximum: usize,
    state: Mutex<ConnectionsState>,
    host: Host,
}

#[derive(Debug, Default)]
struct ConnectionsState {
    open: usize,
    /// The number of the next connection.
    next: u64,
    /// The connections without a complete request, in the order in which they were accepted.
    without_request: BTreeMap<u64, CancellationToken>,
    /// True from the first connection that was refused or closed to make room, until more than a tenth of the
    /// slots is free again.
    is_crowded: bool,
    /// True from the first connection that was closed because the process had no file descriptor left.
    lacks_descriptors: bool,
}

/// A request of which the client has not sent everything. Dropping it means that the rest has arrived, or is
/// not needed.
#[derive(Debug)]
pub(super) struct IncompleteRequest {
    connections: Arc<Connections>,
    number: u64,
}

/// The slot of one connection. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    connections: Arc<Connections>,
    number: u64,
    evicted: CancellationToken,
}

impl Connections {
    pub(super) fn new(host: Host, maximum: usize) -> Arc<Self> {
        Arc::new(Self { maximum, state: Mutex::default(), host })
    }

    /// Acquires a slot for a new connection. If all are taken, closes the oldest connection without a
    /// complete request. `None` if there is none: the new connection is refused.
    pub(super) fn admit(self: &Arc<Self>) -> Option<ConnectionSlot> {
        let mut state = self.state.lock();
        if state.open >= self.maximum {
            self.metrics().connection_refused();
            self.warn_if_crowded(&mut state);
            if !state.close_oldest() {
                return None;
            }
        }
        let number = state.next;
        let evicted = CancellationToken::new();
        state.next += 1;
        state.open += 1;
        state.without_request.insert(number, evicted.clone());
        self.metrics().set_connections(state.open);
        Some(ConnectionSlot { connections: Arc::clone(self), number, evicted })
    }

    /// Closes the oldest connection without a complete request, if there is one, because the process has no file
    /// descriptor left.
    pub(super) fn free_descriptor(&self) {
        let mut state = self.state.lock();
        if !state.close_oldest() {
            return;
        }
        self.metrics().connection_refused();
        if !std::mem::replace(&mut state.lacks_descriptors, true) {
            let (open, silent) = (state.open, state.without_request.len());
            tracing::warn!(
                open,
                without_request = silent,
                "descriptors_used_up: connections without a complete request are closed: raise the limit of open \
                 files, or lower max_connections"
            );
        }
    }

    fn warn_if_crowded(&self, state: &mut ConnectionsState) {
        if !std::mem::replace(&mut state.is_crowded, true) {
            let (open, silent) = (state.open, state.without_request.len());
            tracing::warn!(
                open,
                without_request = silent,
                max_connections = self.maximum,
                "connections_full: connections without a complete request are closed, others are refused"
            );
        }
    }

    fn metrics(&self) -> &HostMetrics {
        self.host.telemetry().metrics().host()
    }
}

impl ConnectionsState {
    /// Closes the oldest connection without a complete request. Returns false if there is none.
    fn close_oldest(&mut self) -> bool {
        let Some((_, oldest)) = self.without_request.pop_first() else { return false };
        oldest.cancel();
        true
    }
}

impl ConnectionSlot {
    /// Notes that the header of a request has arrived. Once its body has arrived too, the connection is not
    /// closed to make room, until the header of its next request arrives.
    pub(super) fn begin_request(&self) -> IncompleteRequest {
        let (connections, number) = (Arc::clone(&self.connections), self.number);
        let mut state = connections.state.lock();
        // The connection may have been closed to make room already.
        if !self.evicted.is_cancelled() {
            state.without_request.insert(number, self.evicted.clone());
        }
        drop(state);
        IncompleteRequest { connections, number }
    }

    /// Waits until the connection has to make room for another.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for IncompleteRequest {
    fn drop(&mut self) {
        self.connections.state.lock().without_request.remove(&self.number);
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.connections.state.lock();
        state.open -= 1;
        state.without_request.remove(&self.number);
        let crowded_from = self.connections.maximum - self.connections.maximum / 10;
        state.is_crowded &= state.open >= crowded_from;
        self.connections.metrics().set_connections(state.open);
    }
}
