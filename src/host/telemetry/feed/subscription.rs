//! The receiving end of a feed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use serde_json::json;

use super::ReaderGuard;
use super::ring::RingReader;
use crate::journal::JournalError;
use crate::telemetry::Telemetry;
use callsheet_values::event::{EventId, PublicEvent, PublishedEvent};
use callsheet_values::types::SessionId;

/// An item of a subscription.
///
/// [`SessionEvents`](crate::runtime::SessionEvents) returns it.
#[derive(Clone, Debug)]
pub enum FeedItem {
    /// The next event.
    Event(Arc<PublishedEvent>),
    /// The subscriber misses the next events, because it was too slow, or because another host has the session now. This
    /// is the last item.
    Lagged,
    /// The session's journal failed, and the next events are not stored. This is the last item.
    Failed(JournalError),
}

/// Returns the public event for [`FeedItem::Failed`]. `session` is the session, for a client that watches
/// several.
#[must_use]
pub fn journal_failed(error: &JournalError, session: Option<&SessionId>) -> PublicEvent {
    let mut json = json!({
        "type": "error",
        "code": "journal_failed",
        "message": error.to_string(),
        "transient": error.is_transient(),
    });
    if let Some(session) = session {
        json["session_id"] = session.as_str().into();
    }
    PublicEvent { kind: "error", json: json.to_string() }
}

/// A stream of the events of a session or of one of its runs, from the time of subscribing. It ends
/// with the session, or after [`FeedItem::Lagged`] or [`FeedItem::Failed`]. While it exists, the session has a
/// reader, also after it ended: the reader of a run continues from the journal.
#[derive(Debug)]
#[must_use = "a subscription receives events only while it exists"]
pub struct Subscription {
    reader: RingReader,
    start: EventId,
    _count: SubscriberCount,
    _guard: ReaderGuard,
}

/// Counts a subscriber in the metrics.
#[derive(Debug)]
pub(super) struct SubscriberCount(Telemetry);

impl SubscriberCount {
    pub(super) fn new(telemetry: &Telemetry) -> Self {
        telemetry.metrics().runs.watchers.increment(1.0);
        Self(telemetry.clone())
    }
}

impl Drop for SubscriberCount {
    fn drop(&mut self) {
        self.0.metrics().runs.watchers.decrement(1.0);
    }
}

impl Subscription {
    pub(super) fn new(
        reader: RingReader,
        start: EventId,
        count: SubscriberCount,
        guard: ReaderGuard,
    ) -> Self {
        Self { reader, start, _count: count, _guard: guard }
    }

    /// Receives [`Event::ArgumentsReceived`](callsheet_values::event::Event::ArgumentsReceived), too, from now on.
    pub fn receive_arguments(&mut self) {
        self.reader.receive_arguments();
    }

    /// Returns the position before the first event.
    #[must_use]
    pub fn start(&self) -> EventId {
        self.start
    }
}

impl Stream for Subscription {
    type Item = FeedItem;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<FeedItem>> {
        self.reader.poll_next(context)
    }
}
