//! The events of a session from a position on: first the stored ones, then live ones.
//!
//! Stored events are read from the journal page by page, at the reader's speed. Only when they have
//! caught up does the reader become a subscriber, so that a long past fills no queue.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use futures::{Stream, StreamExt as _};

use super::error::HostError;
use super::publish::{Listeners, SUBSCRIBER_EVENTS_MAX};
use crate::event::{EventId, PublishedEvent};
use crate::journal::{Journal, JournalEntry, JournalError};
use crate::record::{PastEvents, part_after};
use crate::telemetry::{
    Feed, FeedItem, FeedPosition, FeedSnapshot, PendingSubscription, Subscription,
};
use crate::types::{RunId, Seq, SessionId};

/// The number of records of one read.
const PAGE: usize = 256;

/// The events of a session from a position on: a stream of [`FeedItem`], which ends with the session or
/// after [`FeedItem::Lagged`] or [`FeedItem::Failed`]. Dropping it stops nothing else.
#[must_use = "a watch that is dropped shows nothing"]
pub struct SessionEvents {
    began: EventId,
    deliveries: Pin<Box<dyn Stream<Item = FeedItem> + Send>>,
}

impl SessionEvents {
    /// The position before its first event.
    #[must_use]
    pub fn began(&self) -> EventId {
        self.began
    }

    pub(super) fn from(
        listeners: &Listeners,
        session: &SessionId,
        agent: &str,
        after: EventId,
    ) -> Option<Result<Self, HostError>> {
        let (feed, entering) = listeners.enter()?;
        let progress = feed.progress();
        if after.seq > progress.durable {
            let last = progress.durable;
            return Some(Err(HostError::UnknownEventId { asked: after, last }));
        }
        // A fold that begins with the last run knows all that it needs.
        let (read, turn) = match progress.run_began {
            Some((began, turn)) if after.seq >= began => (Seq(began.0.saturating_sub(1)), turn),
            Some(_) | None => (Seq(0), 0),
        };
        let reader = HistoryReader {
            feed: Arc::downgrade(&feed),
            entering: Some(entering),
            journal: Arc::clone(&listeners.journal),
            session: session.clone(),
            after,
            past: PastEvents::new(session.clone(), agent, turn),
            read,
            target: target(after, &progress),
            ready: VecDeque::new(),
            present: None,
        };
        Some(Ok(Self::of(after, reader)))
    }

    pub(super) fn from_now(listeners: &Listeners) -> Option<Self> {
        let (feed, _entering) = listeners.enter()?;
        // No text of the running attempt follows its end.
        let (subscription, snapshot) = feed
            .subscribe_from(EventId { seq: Seq(u64::MAX), bytes: u64::MAX }, SUBSCRIBER_EVENTS_MAX);
        let states = snapshot.open.into_iter().map(FeedItem::Event);
        let deliveries = futures::stream::iter(states).chain(subscription);
        Some(Self { began: snapshot.progress.at, deliveries: Box::pin(deliveries) })
    }

    /// Keeps only the events of one run.
    pub(super) fn of_run(self, run: RunId) -> Self {
        let Self { began, deliveries } = self;
        let deliveries = deliveries.filter(move |delivery| {
            let is_other = matches!(delivery, FeedItem::Event(event) if event.run != run);
            std::future::ready(!is_other)
        });
        Self { began, deliveries: Box::pin(deliveries) }
    }

    fn of(began: EventId, reader: HistoryReader) -> Self {
        let deliveries = futures::stream::unfold(Some(reader), async |reader| {
            let mut reader = reader?;
            let next = reader.next().await?;
            let is_last = matches!(next, FeedItem::Failed(_) | FeedItem::Lagged);
            Some((next, (!is_last).then_some(reader)))
        });
        Self { began, deliveries: Box::pin(deliveries) }
    }
}

impl Stream for SessionEvents {
    type Item = FeedItem;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<FeedItem>> {
        self.deliveries.poll_next_unpin(context)
    }
}

impl fmt::Debug for SessionEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionEvents").field("began", &self.began).finish_non_exhaustive()
    }
}

/// The place up to which the journal has to be read; the beginning where it need not be.
fn target(after: EventId, progress: &FeedPosition) -> Seq {
    if after >= progress.recorded { Seq(0) } else { progress.at.seq }
}

/// Reads stored events until they have caught up with the live ones.
struct HistoryReader {
    feed: Weak<Feed>,
    /// Keeps the session in memory while its past is read.
    entering: Option<PendingSubscription>,
    journal: Arc<dyn Journal>,
    session: SessionId,
    after: EventId,
    past: PastEvents,
    /// The last record that was read.
    read: Seq,
    /// The last record to read.
    target: Seq,
    ready: VecDeque<FeedItem>,
    /// The live events after the stored ones, once these have caught up.
    present: Option<(Subscription, Option<FeedSnapshot>)>,
}

impl HistoryReader {
    async fn next(&mut self) -> Option<FeedItem> {
        loop {
            if let Some(delivery) = self.ready.pop_front() {
                return Some(delivery);
            }
            if self.read < self.target {
                match self.page().await {
                    Ok(entries) if entries.is_empty() => return None,
                    Ok(entries) => self.fold(&entries),
                    Err(error) => return Some(FeedItem::Failed(error)),
                }
                continue;
            }
            match &mut self.present {
                None => {
                    let feed = self.feed.upgrade()?;
                    let (subscription, snapshot) =
                        feed.subscribe_from(self.after, SUBSCRIBER_EVENTS_MAX);
                    self.target = target(self.after, &snapshot.progress);
                    self.present = Some((subscription, Some(snapshot)));
                    self.entering = None;
                }
                Some((_, snapshot @ Some(_))) => {
                    if let Some(snapshot) = snapshot.take() {
                        self.finish(snapshot);
                    }
                }
                Some((subscription, None)) => return subscription.next().await,
            }
        }
    }

    /// Returns the next entries; none if the session was deleted.
    async fn page(&self) -> Result<Vec<JournalEntry>, JournalError> {
        let (journal, session, after) =
            (Arc::clone(&self.journal), self.session.clone(), self.read);
        // The read may wait for a disk.
        let reading = tokio::task::spawn_blocking(move || journal.read_some(&session, after, PAGE));
        reading.await.unwrap_or_else(|error| Err(JournalError::Read(error.to_string())))
    }

    fn fold(&mut self, entries: &[JournalEntry]) {
        let mut shown = VecDeque::new();
        for entry in entries.iter().take_while(|entry| entry.seq <= self.target) {
            self.past.handle_entry(entry, &mut shown);
            self.read = entry.seq;
        }
        self.take(shown);
    }

    /// The running attempt's text and the open calls follow the last record.
    fn finish(&mut self, snapshot: FeedSnapshot) {
        let mut shown = VecDeque::new();
        self.past.finish(snapshot.running.as_ref(), &mut shown);
        self.take(shown);
        self.ready.extend(snapshot.open.into_iter().map(FeedItem::Event));
    }

    fn take(&mut self, shown: VecDeque<PublishedEvent>) {
        let shown = shown.into_iter().filter_map(|published| part_after(self.after, published));
        self.ready.extend(shown.map(|published| FeedItem::Event(Arc::new(published))));
    }
}
