//! The events of a session from a position on: first the stored ones, then live ones.
//!
//! Stored events are read from the journal page by page, at the reader's speed. Only when they have
//! caught up does the reader become a subscriber, so that a long past fills no queue.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};

use super::awake_session::AwakeSession;
use super::error::HostError;
use super::host_ref::HostRef;
use super::publish::SUBSCRIBER_EVENTS_MAX;
use crate::event::{EventId, PublishedEvent};
use crate::journal::{JournalEntry, JournalError};
use crate::record::{PastEvents, part_after};
use crate::telemetry::{
    Feed, FeedItem, FeedPosition, FeedSnapshot, PendingSubscription, Subscription,
};
use crate::types::{RunId, Seq, SessionId};

/// Number of records of the first read, whose size is unknown.
const FIRST_PAGE: usize = 1;

/// Maximum number of records of one read.
const PAGE_MAX: usize = 256;

/// Bytes of records that one read aims for. A reader that stops reading keeps about as many in memory.
const PAGE_BYTES: u64 = 64 * 1024;

/// The events of a session from a position on: a stream of [`FeedItem`], which ends with the session or
/// after [`FeedItem::Lagged`] or [`FeedItem::Failed`]. Dropping it stops nothing else.
#[must_use = "a stream does nothing unless it is polled"]
pub struct SessionEvents {
    start: EventId,
    items: BoxStream<'static, FeedItem>,
    host: HostRef,
}

impl SessionEvents {
    /// Returns the position before the first event.
    #[must_use]
    pub fn start(&self) -> EventId {
        self.start
    }

    /// Returns whether the host accepts sessions and runs. If it does not, it shuts down, and the
    /// events end although the session is not closed.
    #[must_use]
    pub fn is_host_ready(&self) -> bool {
        self.host.is_ready()
    }

    pub(super) fn from(
        host: &HostRef,
        session: &SessionId,
        live: &AwakeSession,
        after: EventId,
    ) -> Option<Result<Self, HostError>> {
        let (feed, pending) = live.feed_access.begin_subscription()?;
        let position = feed.position();
        if after.seq > position.durable {
            let last = position.durable;
            return Some(Err(HostError::UnknownEventId { asked: after, last }));
        }
        // Reading can start at the last run, because its events need no earlier records.
        let (read, turn) = match position.run_start {
            Some((first, turn)) if after.seq >= first => (Seq(first.0.saturating_sub(1)), turn),
            Some(_) | None => (Seq(0), 0),
        };
        let reader = HistoryReader {
            feed: Arc::downgrade(&feed),
            pending: Some(pending),
            host: host.clone(),
            session: session.clone(),
            after,
            past: PastEvents::new(session.clone(), &live.agent, turn),
            page: FIRST_PAGE,
            read,
            target: last_to_read(after, &position),
            ready: VecDeque::new(),
            live: None,
        };
        Some(Ok(Self { start: after, items: read_by(reader).boxed(), host: host.clone() }))
    }

    pub(super) fn from_now(host: &HostRef, live: &AwakeSession) -> Option<Self> {
        let (feed, _pending) = live.feed_access.begin_subscription()?;
        // With the last possible position, the snapshot contains no text of the running attempt.
        let (subscription, snapshot) = feed
            .subscribe_from(EventId { seq: Seq(u64::MAX), bytes: u64::MAX }, SUBSCRIBER_EVENTS_MAX);
        let states = snapshot.open_calls.into_iter().map(FeedItem::Event);
        let items = futures::stream::iter(states).chain(subscription).boxed();
        Some(Self { start: snapshot.position.delivered, items, host: host.clone() })
    }

    /// Keeps only the events of one run.
    pub(super) fn only_run(self, run: RunId) -> Self {
        let items = self.items.filter(move |item| {
            let is_other = matches!(item, FeedItem::Event(event) if event.run != run);
            std::future::ready(!is_other)
        });
        Self { items: items.boxed(), ..self }
    }
}

fn read_by(reader: HistoryReader) -> impl Stream<Item = FeedItem> + Send {
    futures::stream::unfold(Some(reader), async |reader| {
        let mut reader = reader?;
        let next = reader.next().await?;
        let is_last = matches!(next, FeedItem::Failed(_) | FeedItem::Lagged);
        Some((next, (!is_last).then_some(reader)))
    })
}

impl Stream for SessionEvents {
    type Item = FeedItem;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<FeedItem>> {
        self.items.poll_next_unpin(context)
    }
}

impl fmt::Debug for SessionEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionEvents").field("start", &self.start).finish_non_exhaustive()
    }
}

/// Returns the last record that has to be read from the journal, or 0 if none has to be.
fn last_to_read(after: EventId, position: &FeedPosition) -> Seq {
    if after >= position.recorded { Seq(0) } else { position.delivered.seq }
}

/// Reads stored events until all of them are read, and then subscribes to live events.
struct HistoryReader {
    feed: Weak<Feed>,
    /// Keeps the session in memory while stored events are read.
    pending: Option<PendingSubscription>,
    host: HostRef,
    session: SessionId,
    /// The position after which events are returned.
    after: EventId,
    past: PastEvents,
    /// The number of records of the next read.
    page: usize,
    /// The last record that was read.
    read: Seq,
    /// The last record to read.
    target: Seq,
    /// Events that were read and not returned yet.
    ready: VecDeque<FeedItem>,
    /// The live events after the stored ones. The snapshot is taken once its events are in `ready`.
    live: Option<(Subscription, Option<FeedSnapshot>)>,
}

impl HistoryReader {
    async fn next(&mut self) -> Option<FeedItem> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some(item);
            }
            if self.read < self.target {
                match self.read_page().await {
                    Ok(entries) if entries.is_empty() => return None,
                    Ok(entries) => self.append_entries(&entries),
                    Err(error) => return Some(FeedItem::Failed(error)),
                }
                continue;
            }
            match &mut self.live {
                None => {
                    let feed = self.feed.upgrade()?;
                    let (subscription, snapshot) =
                        feed.subscribe_from(self.after, SUBSCRIBER_EVENTS_MAX);
                    self.target = last_to_read(self.after, &snapshot.position);
                    self.live = Some((subscription, Some(snapshot)));
                    self.pending = None;
                }
                Some((_, snapshot @ Some(_))) => {
                    if let Some(snapshot) = snapshot.take() {
                        self.append_snapshot(snapshot);
                    }
                }
                Some((subscription, None)) => return subscription.next().await,
            }
        }
    }

    /// Reads the next entries. There are none if the session was deleted.
    async fn read_page(&self) -> Result<Vec<JournalEntry>, JournalError> {
        let (journal, session) = (Arc::clone(&self.host.shared.journal), self.session.clone());
        let (after, page) = (self.read, self.page);
        let read = self.host.read(move || journal.read_some(&session, after, page)).await;
        read.unwrap_or(Err(JournalError::Closed))
    }

    fn append_entries(&mut self, entries: &[JournalEntry]) {
        let bytes: u64 = entries.iter().map(JournalEntry::approximate_bytes).sum();
        let per_record = (bytes / entries.len().max(1) as u64).max(1);
        let page = usize::try_from(PAGE_BYTES / per_record).unwrap_or(PAGE_MAX);
        // The next records may be larger than these, so the page grows step by step.
        self.page = page.clamp(1, PAGE_MAX.min(2 * self.page));
        let mut events = VecDeque::new();
        for entry in entries.iter().take_while(|entry| entry.seq <= self.target) {
            self.past.handle_entry(entry, &mut events);
            self.read = entry.seq;
        }
        self.append_events(events);
    }

    /// Appends the running attempt's text and the open calls, which follow the last record.
    fn append_snapshot(&mut self, snapshot: FeedSnapshot) {
        let mut events = VecDeque::new();
        self.past.finish(snapshot.running.as_ref(), &mut events);
        self.append_events(events);
        self.ready.extend(snapshot.open_calls.into_iter().map(FeedItem::Event));
    }

    /// Appends the events, or the parts of them, that follow the requested position.
    fn append_events(&mut self, events: VecDeque<PublishedEvent>) {
        let events = events.into_iter().filter_map(|published| part_after(self.after, published));
        self.ready.extend(events.map(|published| FeedItem::Event(Arc::new(published))));
    }
}
