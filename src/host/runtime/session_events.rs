//! The events of a session from a position on: first the stored ones, then live ones.
//!
//! Reconnect: a client gives the id of the last event that it received (`Last-Event-ID`, or `after`). No id is too
//! old: the later events with ids are replayed from the journal until the session is deleted. An id whose record
//! number is above that of the last durable record is refused (`unknown_event_id`). A record is replayed as all its
//! public events, also those whose SSE frames have no `id:`. Progress and other events without a record are not
//! replayed; the states of open calls are sent again.
//!
//! Stored events are read from the journal page by page, at the reader's speed. The reader becomes a subscriber only
//! when at most the newest ones are left to read, so that stored events never fill its queue.
//!
//! The memory of slow readers is bounded in two ways. At most [`HISTORY_READS_MAX`] pages are
//! decoded at once, and records are dropped before their events wait for the reader. Readers that hold
//! more than [`READER_BYTES`] of events share [`SHARED_BYTES`]. If no shared bytes are left, a reader keeps
//! only the first events of its page and decodes the page again later. If the first event alone exceeds
//! [`READER_BYTES`], the reader waits for a share.
//! The text of the running attempt is read in the same way, and the reader becomes a subscriber with its last part.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;

use super::error::HostError;
use super::host_ref::HostRef;
use super::index::AwakeSession;
use super::publish::SUBSCRIBER_EVENTS_MAX;
use super::task;
use crate::journal::{JournalEntry, JournalError, SessionSummary};
use crate::telemetry::{Feed, FeedItem, FeedPosition, FeedSnapshot, ReaderGuard, Subscription};
use callsheet_values::event::{EventForm, EventId, PublishedEvent};
use callsheet_values::record::{PastEvents, part_after};
use callsheet_values::types::{RunId, Seq, SessionId};

/// Number of records of the first read, whose size is unknown.
const FIRST_PAGE: usize = 1;

/// Maximum number of records of one read.
const PAGE_MAX: usize = 256;

/// Bytes of records that one read aims for.
const PAGE_BYTES: u64 = 64 * 1024;

/// Number of pages of all readers that are read and decoded at once. Records can be large.
const HISTORY_READS_MAX: usize = 1;

/// Number of sessions whose records are verified at once. Each is in memory as a whole.
const VERIFICATIONS_MAX: usize = 1;

/// Bytes of events that each reader may hold without a share of [`SHARED_BYTES`].
const READER_BYTES: usize = 20 * 1024;

/// Bytes of events that all readers together may hold beyond [`READER_BYTES`] each.
const SHARED_BYTES: usize = 16 << 20;

/// Bytes of events that a page may have beyond [`READER_BYTES`], unless it is a single large event.
const PAGE_SHARE_BYTES: usize = 1 << 20;

/// The part of [`SHARED_BYTES`] that is kept for single large events.
const LARGE_EVENTS_BYTES: usize = SHARED_BYTES / 2;

/// Which events a watcher receives, and in which form.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::testing::FakeModel;
/// # use callsheet::model::ModelReply;
/// use callsheet::events::{EventForm, EventId, FeedItem, WatchOptions};
/// use callsheet::prelude::*;
/// use futures::StreamExt as _;
///
/// # let model = FakeModel::replies([ModelReply::text("Noon.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// let session = host.open_session("demo").await?;
/// session.run("What time is it?").await?;
/// let options = WatchOptions::default().with(|options| options.form = EventForm::Full);
/// let mut events = session.watch_with(Some(EventId::default()), options).await?;
/// let Some(FeedItem::Event(start)) = events.next().await else { panic!("an event") };
/// let public: Vec<_> = start.public_as(options.form).collect();
/// assert!(public[0].json.contains(r#""input":"What time is it?""#));
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchOptions {
    /// The form of the public events.
    pub form: EventForm,
    /// True to receive [`Event::ArgumentsReceived`](callsheet_values::event::Event::ArgumentsReceived), too.
    pub arguments: bool,
}

callsheet_values::impl_with!(WatchOptions);

/// The events of a session from a position on: a stream of [`FeedItem`], which ends with the session or
/// after [`FeedItem::Lagged`] or [`FeedItem::Failed`]. Dropping it stops nothing else.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use callsheet::events::{EventId, FeedItem};
/// use callsheet::prelude::*;
/// use callsheet::testing::FakeModel;
/// use futures::StreamExt as _;
///
/// let model = FakeModel::replies([callsheet::model::ModelReply::text("Hello.")]);
/// let host = Host::builder().model_source("fake", model).start().await?;
/// let session = host.open_session("demo").await?;
/// session.run("Say hello.").await?;
/// // A client that reconnects gives the id of the last event that it received.
/// let mut events = session.watch("0".parse::<EventId>()?).await?;
/// let Some(FeedItem::Event(first)) = events.next().await else { panic!("an event") };
/// assert_eq!(first.session.as_str(), "demo");
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[must_use = "a stream does nothing unless it is polled"]
pub struct SessionEvents {
    start: EventId,
    options: WatchOptions,
    items: BoxStream<'static, FeedItem>,
    host_ref: HostRef,
}

impl SessionEvents {
    /// Returns the position before the first event.
    #[must_use]
    pub fn start(&self) -> EventId {
        self.start
    }

    /// Returns the options of the watcher.
    #[must_use]
    pub fn options(&self) -> WatchOptions {
        self.options
    }

    /// Returns whether the host accepts sessions and runs. If it does not, it shuts down, and the
    /// events end although the session is not closed.
    #[must_use]
    pub fn is_host_ready(&self) -> bool {
        self.host_ref.is_ready()
    }

    /// Returns the events of a session after a position. Wakes the session.
    pub(super) async fn after(
        host_ref: &HostRef,
        session: &SessionId,
        after: EventId,
        options: WatchOptions,
    ) -> Result<Self, HostError> {
        host_ref
            .with_awake(session, |awake_session| {
                Self::from(host_ref, session, awake_session, (after, options), None)
            })
            .await?
            .0
    }

    /// Returns the events of a session that is in memory, or `None` if it leaves memory. Stored events are read
    /// with a permit of `history_permits`.
    pub(super) fn from(
        host_ref: &HostRef,
        session: &SessionId,
        awake_session: &AwakeSession,
        (after, options): (EventId, WatchOptions),
        history_permits: Option<Arc<Semaphore>>,
    ) -> Option<Result<Self, HostError>> {
        let (feed, pending) = awake_session.feed_access.acquire_reader_guard()?;
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
            host_ref: host_ref.clone(),
            session: session.clone(),
            options,
            after,
            past: PastEvents::new(session.clone(), &awake_session.agent, turn),
            page: FIRST_PAGE,
            read,
            target: last_to_read(after, &position),
            ready: VecDeque::new(),
            share: None,
            history_permits,
            permit: None,
            live: None,
        };
        let (items, host_ref) = (read_by(reader).boxed(), host_ref.clone());
        Some(Ok(Self { start: after, options, items, host_ref }))
    }

    /// Returns the stored events of a session that is not in memory. They end after the last stored record, and
    /// are read with a permit of `history_permits`.
    pub(super) fn stored(
        host_ref: &HostRef,
        stored: &SessionSummary,
        (after, options): (EventId, WatchOptions),
        history_permits: Arc<Semaphore>,
    ) -> Self {
        let reader = HistoryReader {
            feed: Weak::new(),
            pending: None,
            host_ref: host_ref.clone(),
            session: stored.id.clone(),
            options,
            after,
            past: PastEvents::new(stored.id.clone(), &stored.agent, 0),
            page: FIRST_PAGE,
            read: Seq(0),
            target: stored.seq,
            ready: VecDeque::new(),
            share: None,
            history_permits: Some(history_permits),
            permit: None,
            live: None,
        };
        Self { start: after, options, items: read_by(reader).boxed(), host_ref: host_ref.clone() }
    }

    /// Returns the events, from now on, of a session that is in memory. The states of its waiting run and of its open
    /// calls, and the pending approvals of its children, come first. `None` if the session leaves memory.
    pub(super) fn from_now(
        host_ref: &HostRef,
        awake_session: &AwakeSession,
        options: WatchOptions,
    ) -> Option<Self> {
        let (feed, _pending) = awake_session.feed_access.acquire_reader_guard()?;
        // With the last possible position, the snapshot contains no text of the running attempt.
        let (mut subscription, snapshot) = feed
            .subscribe_from(EventId { seq: Seq(u64::MAX), bytes: u64::MAX }, SUBSCRIBER_EVENTS_MAX);
        if options.arguments {
            subscription.receive_arguments();
        }
        let states = snapshot.states.into_iter().map(FeedItem::Event);
        let items = futures::stream::iter(states).chain(subscription).boxed();
        let (start, host_ref) = (snapshot.position.delivered, host_ref.clone());
        Some(Self { start, options, items, host_ref })
    }

    /// Keeps only the events of one run.
    pub fn only_run(self, run: RunId) -> Self {
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

/// Returns the last record that has to be read from the journal, or 0 if none has to be. `recorded` is the last
/// delivered event that shows a record, `delivered` the last delivered event of any kind. Before `recorded`, the
/// reader lacks stored events and reads up to the last delivered event.
fn last_to_read(after: EventId, position: &FeedPosition) -> Seq {
    if after < position.recorded {
        position.delivered.seq
    } else if after.seq > position.recorded.seq && position.has_text {
        // The records between `recorded` and `after` have no events, but say whether the response with this text has
        // ended.
        after.seq
    } else {
        Seq(0)
    }
}

/// The limits that all readers of stored events share.
#[derive(Debug)]
pub(super) struct HistoryLimits {
    /// The pages that may be read at once.
    reads: Arc<Semaphore>,
    /// The bytes of events that readers may hold beyond [`READER_BYTES`].
    pub(super) bytes: Arc<Semaphore>,
    /// The sessions that may be verified at once.
    pub(super) verifications: Arc<Semaphore>,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self {
            reads: Arc::new(Semaphore::new(HISTORY_READS_MAX)),
            bytes: Arc::new(Semaphore::new(SHARED_BYTES)),
            verifications: Arc::new(Semaphore::new(VERIFICATIONS_MAX)),
        }
    }
}

/// Reads stored events until all of them are read, and then subscribes to live events.
struct HistoryReader {
    feed: Weak<Feed>,
    /// Keeps the session in memory until live events are read. `None` for a session that is not in memory.
    pending: Option<ReaderGuard>,
    host_ref: HostRef,
    session: SessionId,
    options: WatchOptions,
    /// The position after which events are returned.
    after: EventId,
    past: PastEvents,
    /// The number of records of the next read.
    page: usize,
    /// The last record that was read, or that need not be read.
    read: Seq,
    /// The last record to read.
    target: Seq,
    /// Events that were read and not returned yet.
    ready: VecDeque<FeedItem>,
    /// The share of [`SHARED_BYTES`] for the events in `ready`.
    share: Option<OwnedSemaphorePermit>,
    /// Limits the number of sessions of one stream that are read at once. `None` if the stream has one session, and
    /// after the permit was acquired.
    history_permits: Option<Arc<Semaphore>>,
    /// The permit of `history_permits`, held until all stored events are returned.
    permit: Option<OwnedSemaphorePermit>,
    /// The live events after the stored ones. The snapshot becomes `None` when its events move to `ready`.
    live: Option<(Subscription, Option<FeedSnapshot>)>,
}

/// The events of a page of records.
enum DecodedPage {
    Page(Box<HistoryPage>),
    /// The first events, which have to stay together, need a share of [`SHARED_BYTES`] of this size.
    NeedsShare(u32),
}

/// A page of stored events.
struct HistoryPage {
    events: VecDeque<PublishedEvent>,
    /// The share of [`SHARED_BYTES`] for the events.
    share: Option<OwnedSemaphorePermit>,
    /// The state and the position after the page. `None` if the page has further events, which are
    /// read later.
    end: Option<(PastEvents, Seq)>,
    /// The number of records of the next page.
    next_page: usize,
}

impl HistoryReader {
    /// Returns the next item: first stored events, then the text of the running attempt and the states of open calls,
    /// then live events.
    async fn next(&mut self) -> Option<FeedItem> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some(item);
            }
            self.share = None;
            if self.read < self.target {
                if let Some(history_permits) = self.history_permits.take() {
                    // The semaphore is never closed.
                    self.permit = history_permits.acquire_owned().await.ok();
                }
                match self.read_page().await {
                    Ok(Some(page)) => self.append_page(page),
                    Ok(None) => return None,
                    Err(error) => return Some(FeedItem::Failed(error)),
                }
                continue;
            }
            match &mut self.live {
                None if self.pending.is_none() => {
                    // A session without a feed has no live events. `PastEvents` holds back the events of an attempt
                    // until it knows the attempt's text. Here no text will follow.
                    let mut events = VecDeque::new();
                    self.past.finish(None, &mut events);
                    if events.is_empty() {
                        return None;
                    }
                    let after = self.after;
                    self.append_events(
                        events.into_iter().filter_map(|event| part_after(after, event)),
                    );
                }
                None => {
                    let feed = self.feed.upgrade()?;
                    let (mut subscription, snapshot) =
                        feed.subscribe_from(self.after, SUBSCRIBER_EVENTS_MAX);
                    if self.options.arguments {
                        subscription.receive_arguments();
                    }
                    self.target = last_to_read(self.after, &snapshot.position);
                    let texts = snapshot.running.iter().flat_map(|running| &running.pieces);
                    let bytes: usize = texts.map(|piece| piece.text.len()).sum();
                    // If records must be read first, the subscription is kept only if its text is short and no permit
                    // has to be awaited. Otherwise a long text would stay in memory, or unread events would pile up
                    // during the wait. It is dropped, and a later iteration subscribes again.
                    let is_short = bytes <= READER_BYTES / 2;
                    if self.read >= self.target || (is_short && self.try_acquire_permit()) {
                        self.live = Some((subscription, Some(snapshot)));
                    }
                }
                Some((_, snapshot @ Some(_))) => {
                    if let Some(snapshot) = snapshot.take()
                        && !self.append_snapshot(snapshot)
                    {
                        self.live = None;
                    }
                }
                Some((subscription, None)) => {
                    (self.pending, self.permit) = (None, None);
                    let item = subscription.next().await?;
                    if !self.is_known(&item) {
                        return Some(item);
                    }
                }
            }
        }
    }

    /// Returns whether stored events may be read at once. Acquires the permit if it is free.
    fn try_acquire_permit(&mut self) -> bool {
        let Some(history_permits) = &self.history_permits else { return true };
        let Ok(permit) = Arc::clone(history_permits).try_acquire_owned() else { return false };
        (self.history_permits, self.permit) = (None, Some(permit));
        true
    }

    /// Returns whether a live event shows a record up to the reader's position. The client may have its position from
    /// `GET /v1/sessions/{id}`, which can show a record before the record's event is published.
    fn is_known(&self, item: &FeedItem) -> bool {
        matches!(item, FeedItem::Event(published)
            if published.event.text().is_none()
                && published.id.is_some_and(|id| id.seq <= self.after.seq))
    }

    /// Reads and decodes the next entries. `None` if the session was deleted.
    async fn read_page(&self) -> Result<Option<HistoryPage>, JournalError> {
        let (host_ref, session) = (self.host_ref.clone(), self.session.clone());
        let (position, target, page) = (self.read, self.target, self.page);
        let (after, form, past) = (self.after, self.options.form, self.past.clone());
        // Runs in a task of its own. A stream of many readers does not poll each of them, and an unpolled reader
        // would keep its permit.
        let read = task::isolated(async move {
            let history = &host_ref.shared.history;
            let mut share = None;
            loop {
                // The semaphores are never closed.
                let permit = Arc::clone(&history.reads).acquire_owned().await;
                let entries = host_ref.shared.journal.read_some(&session, position, page).await?;
                let (past, bytes) = (past.clone(), Arc::clone(&history.bytes));
                let decode = move || {
                    let page = decode_page(&entries, past, (after, target), form, &bytes, share);
                    drop((entries, permit));
                    page
                };
                match host_ref.run_on_thread(decode).await.map_err(|_| JournalError::Closed)? {
                    Some(DecodedPage::Page(page)) => return Ok(Some(*page)),
                    Some(DecodedPage::NeedsShare(size)) => {
                        let bytes = Arc::clone(&history.bytes);
                        share = bytes.acquire_many_owned(size).await.ok();
                    }
                    None => return Ok(None),
                }
            }
        });
        read.await.unwrap_or(Err(JournalError::Closed))
    }

    fn append_page(&mut self, page: HistoryPage) {
        let HistoryPage { events, share, end, next_page } = page;
        match end {
            Some((past, read)) => {
                self.past = past;
                self.read = read;
                // The next records may be larger than these, so the page grows step by step.
                self.page = next_page.clamp(1, PAGE_MAX.min(2 * self.page));
            }
            None => self.after = events.back().and_then(|event| event.id).unwrap_or(self.after),
        }
        self.share = share;
        self.append_events(events);
    }

    /// Appends the running attempt's text and the open calls, which follow the last record. Returns false if there
    /// was memory only for the first part of the text: the rest is read from a later snapshot.
    fn append_snapshot(&mut self, snapshot: FeedSnapshot) -> bool {
        let (after, mut past) = (self.after, self.past.clone());
        past.set_known(after.seq);
        let mut events = VecDeque::new();
        past.finish(snapshot.running.as_ref(), &mut events);
        let mut events: VecDeque<_> =
            events.into_iter().filter_map(|event| part_after(after, event)).collect();
        // An estimate: only the texts that are kept are encoded, because this thread serves other clients.
        let texts = events.iter().filter_map(|published| published.event.text());
        let bytes: usize = texts.map(|(_, text)| 1024 + 3 * text.len()).sum();
        self.share = try_share(bytes, &self.host_ref.shared.history.bytes);
        let bytes_max = bytes_max(self.share.as_ref());
        let kept = count_fitting_events(&events, self.options.form, bytes_max);
        let is_whole = kept == events.len();
        events.truncate(kept);
        if !is_whole {
            self.after = events.back().and_then(|event| event.id).unwrap_or(after);
        }
        self.append_events(events);
        if is_whole {
            // This state does not contain the held-back events, which are in `ready`.
            self.past = past;
            self.ready.extend(snapshot.states.into_iter().map(FeedItem::Event));
        }
        is_whole
    }

    fn append_events(&mut self, events: impl IntoIterator<Item = PublishedEvent>) {
        self.ready.extend(events.into_iter().map(|event| FeedItem::Event(Arc::new(event))));
    }
}

/// Decodes a page of entries to the events, or the parts of them, that follow the position `after`.
fn decode_page(
    entries: &[JournalEntry],
    mut past: PastEvents,
    (after, target): (EventId, Seq),
    form: EventForm,
    shared: &Arc<Semaphore>,
    share: Option<OwnedSemaphorePermit>,
) -> Option<DecodedPage> {
    let read = entries.iter().take_while(|entry| entry.seq <= target).last()?.seq;
    let record_bytes: u64 = entries.iter().map(JournalEntry::approximate_bytes).sum();
    let per_record = (record_bytes / entries.len().max(1) as u64).max(1);
    let next_page = usize::try_from(PAGE_BYTES / per_record).unwrap_or(PAGE_MAX);
    let mut events = VecDeque::new();
    past.set_known(after.seq);
    for entry in entries.iter().take_while(|entry| entry.seq <= target) {
        past.handle_entry(entry, &mut events);
    }
    let mut events: VecDeque<_> =
        events.into_iter().filter_map(|event| part_after(after, event)).collect();
    let bytes: usize = events.iter().map(|event| event_bytes(event, form)).sum();
    let share = share.or_else(|| try_share(bytes, shared));
    let bytes_max = bytes_max(share.as_ref());
    let kept = if bytes <= bytes_max {
        events.len()
    } else {
        count_fitting_events(&events, form, bytes_max)
    };
    let kept_bytes = events.iter().take(kept).map(|event| event_bytes(event, form)).sum();
    if kept_bytes > bytes_max {
        return Some(DecodedPage::NeedsShare(share_of(kept_bytes)));
    }
    let end = (kept == events.len()).then_some((past, read));
    events.truncate(kept);
    Some(DecodedPage::Page(Box::new(HistoryPage { events, share, end, next_page })))
}

/// Acquires the share of [`SHARED_BYTES`] that several events may have now, which may be less than they need.
fn try_share(bytes: usize, shared: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    let spare = shared.available_permits().saturating_sub(LARGE_EVENTS_BYTES);
    let part = share_of(bytes.min(READER_BYTES + spare.min(PAGE_SHARE_BYTES)));
    Arc::clone(shared).try_acquire_many_owned(part).ok()
}

/// Returns the bytes of events that a reader with this share may hold. The largest share suffices for an event of any
/// size.
fn bytes_max(share: Option<&OwnedSemaphorePermit>) -> usize {
    let shared = share.map_or(0, OwnedSemaphorePermit::num_permits);
    if shared < LARGE_EVENTS_BYTES { READER_BYTES + shared } else { usize::MAX }
}

/// Returns the share of [`SHARED_BYTES`] that events need. At most [`LARGE_EVENTS_BYTES`], so that no reader waits
/// for all bytes.
fn share_of(bytes: usize) -> u32 {
    u32::try_from(bytes.saturating_sub(READER_BYTES).min(LARGE_EVENTS_BYTES)).unwrap_or(u32::MAX)
}

/// Returns the number of events to keep in `bytes_max`: at least one, and such that the next one has a later
/// position.
fn count_fitting_events(
    events: &VecDeque<PublishedEvent>,
    form: EventForm,
    bytes_max: usize,
) -> usize {
    let mut bytes = 0;
    let pairs = events.iter().zip(events.iter().skip(1));
    for (index, (event, next)) in pairs.enumerate() {
        bytes += event_bytes(event, form);
        let is_full = bytes + event_bytes(next, form) > bytes_max;
        if is_full && event.id.is_some() && next.id > event.id {
            return index + 1;
        }
    }
    events.len()
}

/// Returns the approximate size of an event in memory, with its text for clients. The first call encodes that text,
/// in [`decode_page`] on a thread that serves no clients.
fn event_bytes(published: &PublishedEvent, form: EventForm) -> usize {
    let text = published.stream_text(form).len();
    size_of::<PublishedEvent>() + 2 * text + published.event.hidden_bytes()
}
