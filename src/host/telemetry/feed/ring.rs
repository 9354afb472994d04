//! The delivered events that subscribers have not read, in one buffer for all of them.
//!
//! A subscriber that does not read costs one counter update for each event: it has no queue of its own,
//! and it is woken only while it waits. If many wait, they are woken in small groups with a pause
//! between the groups, so that the runs of the host go on meanwhile.
//!
//! A subscriber that is too far behind is removed. It then receives [`FeedItem::Lagged`], which HTTP clients get as
//! the event `resync` (`server::event_stream`). A client whose connection takes no bytes for `write_timeout` is
//! disconnected (`server::listener`), which drops its subscription.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::subscription::FeedItem;
use crate::journal::{BatchRefusal, JournalError};
use callsheet_values::event::PublishedEvent;
use callsheet_values::types::RunId;

/// Slots without readers are removed although an earlier slot has a reader if there are more of them than this, and
/// they are more than half of all slots.
const DEAD_SLOTS_MAX: usize = 64;

/// Number of subscribers of one feed that are woken at once. One that is woken costs about 30
/// microseconds, most of them for the write to its connection.
const WAKE_GROUP: usize = 16;

/// The pause between two groups of subscribers that are woken.
const WAKE_PAUSE: Duration = Duration::from_millis(2);

/// The unread events of a feed, and its subscribers.
#[derive(Debug, Default)]
pub(super) struct EventRing {
    state: Mutex<RingState>,
    /// Number of subscribers that receive events. Changed under the lock of `state`, and read without
    /// it for each text delta.
    subscribers: AtomicUsize,
    /// Number of those that receive arguments as they arrive. Read without the lock for each chunk of a response.
    argument_readers: AtomicUsize,
}

#[derive(Debug, Default)]
struct RingState {
    slots: VecDeque<Slot>,
    /// Number of slots without readers, which stay because an earlier slot has one.
    dead: usize,
    /// The index of the next event.
    next: u64,
    /// The subscribers by number. The numbers in `free` are unused.
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// The subscribers that wait although they have an unread event, in the order of waking.
    due: VecDeque<Waker>,
    /// True while a task wakes the subscribers in `due`.
    is_waking: bool,
    /// True if no event follows.
    closed: bool,
}

#[derive(Debug)]
struct Slot {
    index: u64,
    event: Arc<PublishedEvent>,
    /// Number of subscribers that have not read it yet.
    readers: usize,
}

/// A subscriber that receives events.
#[derive(Debug)]
struct Entry {
    filter: EventFilter,
    capacity: usize,
    unread: usize,
    waker: Option<Waker>,
    end: Arc<OnceLock<ReaderEnd>>,
}

/// The events that a subscriber receives.
#[derive(Clone, Debug)]
struct EventFilter {
    /// The run whose events it receives. `None` means all runs.
    run: Option<RunId>,
    /// The index from which on it receives arguments as they arrive; by default none.
    arguments_from: u64,
}

impl EventFilter {
    fn admits(&self, index: u64, event: &PublishedEvent) -> bool {
        let is_of_run = self.run.as_ref().is_none_or(|run| *run == event.run);
        is_of_run && (index >= self.arguments_from || !event.event.is_arguments())
    }

    fn has_arguments(&self) -> bool {
        self.arguments_from < u64::MAX
    }
}

/// The end of a subscription before that of its feed.
#[derive(Debug)]
struct ReaderEnd {
    reason: EndReason,
    /// The index of the first event that the subscriber does not receive.
    before: u64,
}

/// The reason why a subscription ends before its session.
#[derive(Clone, Debug)]
pub(super) enum EndReason {
    Lagged,
    Failed(JournalError),
}

/// The reading side of one subscriber.
#[derive(Debug)]
pub(super) struct RingReader {
    ring: Arc<EventRing>,
    number: usize,
    filter: EventFilter,
    /// The index of the next event to look at.
    next: u64,
    end: Arc<OnceLock<ReaderEnd>>,
    is_ended: bool,
}

impl EventRing {
    /// Passes an event to every subscriber. Those with `capacity` unread events are removed: they are
    /// too slow. Returns their number.
    pub(super) fn publish(self: &Arc<Self>, event: &Arc<PublishedEvent>) -> usize {
        // Most events wake one subscriber, which needs no allocation.
        let mut first_waker = None;
        let (mut lagged, mut with_arguments, mut readers) = (0, 0, 0);
        let mut state = self.state.lock();
        let RingState { slots, next, entries, free, due, .. } = &mut *state;
        let index = *next;
        for (number, slot) in entries.iter_mut().enumerate() {
            let Some(entry) = slot else { continue };
            if !entry.filter.admits(index, event) {
                continue;
            }
            if entry.unread < entry.capacity {
                entry.unread += 1;
                readers += 1;
                match entry.waker.take() {
                    Some(waker) if first_waker.is_none() && due.is_empty() => {
                        first_waker = Some(waker);
                    }
                    waker => due.extend(waker),
                }
                continue;
            }
            // It has no end yet, so this cannot fail.
            let _ = entry.end.set(ReaderEnd { reason: EndReason::Lagged, before: index });
            lagged += 1;
            with_arguments += usize::from(entry.filter.has_arguments());
            *slot = None;
            free.push(number);
        }
        if readers > 0 {
            slots.push_back(Slot { index, event: Arc::clone(event), readers });
            *next += 1;
        }
        self.subscribers.fetch_sub(lagged, Ordering::Relaxed);
        self.argument_readers.fetch_sub(with_arguments, Ordering::Relaxed);
        let group = match state.is_waking {
            true => Vec::new(),
            false => self.start_waking(&mut state),
        };
        drop(state);
        first_waker.into_iter().chain(group).for_each(Waker::wake);
        lagged
    }

    /// Returns the first group of the subscribers to wake. Starts a task for the others.
    fn start_waking(self: &Arc<Self>, state: &mut RingState) -> Vec<Waker> {
        if state.due.len() <= WAKE_GROUP {
            return std::mem::take(&mut state.due).into();
        }
        let Ok(runtime) = Handle::try_current() else {
            return std::mem::take(&mut state.due).into();
        };
        state.is_waking = true;
        let task = WakingTask(Arc::clone(self));
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(WAKE_PAUSE).await;
                let group = task.0.state.lock().next_group();
                if group.is_empty() {
                    return;
                }
                group.into_iter().for_each(Waker::wake);
            }
        });
        state.next_group()
    }

    /// Adds a subscriber to the events from now on. `capacity` is the maximum number of unread events.
    pub(super) fn subscribe(self: &Arc<Self>, run: Option<RunId>, capacity: usize) -> RingReader {
        let end = Arc::new(OnceLock::new());
        let capacity = capacity.max(1);
        let filter = EventFilter { run, arguments_from: u64::MAX };
        let (of_entry, of_end) = (filter.clone(), Arc::clone(&end));
        let entry = Entry { filter: of_entry, capacity, unread: 0, waker: None, end: of_end };
        let mut state = self.state.lock();
        let next = state.next;
        let number = match state.free.pop() {
            Some(number) => number,
            None => {
                state.entries.push(None);
                state.entries.len() - 1
            }
        };
        if let Some(slot) = state.entries.get_mut(number) {
            *slot = Some(entry);
        }
        self.subscribers.fetch_add(1, Ordering::Relaxed);
        drop(state);
        RingReader { ring: Arc::clone(self), number, filter, next, end, is_ended: false }
    }

    /// Ends every subscription after its unread events: with [`FeedItem::Lagged`] if another host has the session, else
    /// with the error.
    pub(super) fn fail(&self, error: &JournalError) {
        let mut wakers = Vec::new();
        let mut state = self.state.lock();
        let before = state.next;
        for entry in state.entries.drain(..).flatten() {
            let is_lost = *error == JournalError::Refused(BatchRefusal::Fenced);
            let reason = if is_lost { EndReason::Lagged } else { EndReason::Failed(error.clone()) };
            // It has no end yet, so this cannot fail.
            let _ = entry.end.set(ReaderEnd { reason, before });
            wakers.extend(entry.waker);
        }
        state.free.clear();
        self.subscribers.store(0, Ordering::Relaxed);
        self.argument_readers.store(0, Ordering::Relaxed);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ends every subscription after its unread events.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let entries = state.entries.iter_mut().flatten();
        let wakers: Vec<_> = entries.filter_map(|entry| entry.waker.take()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn has_subscribers(&self) -> bool {
        self.subscribers.load(Ordering::Relaxed) > 0
    }

    pub(super) fn has_argument_readers(&self) -> bool {
        self.argument_readers.load(Ordering::Relaxed) > 0
    }

    /// Returns the number of events in memory.
    #[cfg(test)]
    pub(super) fn unread_slots(&self) -> usize {
        self.state.lock().slots.len()
    }

    /// Returns the number of unread events of the slowest subscriber.
    pub(super) fn longest_queue(&self) -> usize {
        let state = self.state.lock();
        state.entries.iter().flatten().map(|entry| entry.unread).max().unwrap_or(0)
    }
}

/// Marks the ring as having a task that wakes subscribers. If the task ends early, with its runtime,
/// all subscribers that it would have woken are woken at once.
struct WakingTask(Arc<EventRing>);

impl Drop for WakingTask {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_waking = false;
        let due = std::mem::take(&mut state.due);
        drop(state);
        due.into_iter().for_each(Waker::wake);
    }
}

impl RingState {
    /// Removes the next subscribers to wake from the queue.
    fn next_group(&mut self) -> Vec<Waker> {
        let group = self.due.len().min(WAKE_GROUP);
        self.due.drain(..group).collect()
    }

    /// Returns the first event from `next` on that the filter admits, and its index.
    fn find(
        &self,
        filter: &EventFilter,
        next: u64,
        before: u64,
    ) -> Option<(u64, Arc<PublishedEvent>)> {
        let from = self.slots.partition_point(|slot| slot.index < next);
        let mut slots = self.slots.range(from..).take_while(|slot| slot.index < before);
        let slot = slots.find(|slot| filter.admits(slot.index, &slot.event))?;
        Some((slot.index, Arc::clone(&slot.event)))
    }

    /// Counts an event as read by one subscriber.
    fn mark_read(&mut self, index: u64) {
        let at = self.slots.partition_point(|slot| slot.index < index);
        let Some(slot) = self.slots.get_mut(at) else { return };
        slot.readers = slot.readers.saturating_sub(1);
        self.dead += usize::from(slot.readers == 0);
        self.remove_dead_slots();
    }

    /// Counts the events from `next` on as read by one subscriber with this filter.
    fn mark_all_read(&mut self, filter: &EventFilter, next: u64, before: u64) {
        let from = self.slots.partition_point(|slot| slot.index < next);
        let unread = self.slots.range_mut(from..).take_while(|slot| slot.index < before);
        for slot in unread.filter(|slot| filter.admits(slot.index, &slot.event)) {
            slot.readers = slot.readers.saturating_sub(1);
            self.dead += usize::from(slot.readers == 0);
        }
        self.remove_dead_slots();
    }

    /// Drops the slots without readers.
    fn remove_dead_slots(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.readers == 0) {
            self.slots.pop_front();
            self.dead -= 1;
        }
        // A subscriber of an earlier run may keep the front for ever.
        if self.dead > DEAD_SLOTS_MAX && self.dead > self.slots.len() / 2 {
            self.slots.retain(|slot| slot.readers > 0);
            self.dead = 0;
        }
        if self.slots.is_empty() {
            // An idle session keeps no buffer.
            self.slots = VecDeque::new();
        }
    }
}

impl RingReader {
    /// Receives arguments as they arrive, too, from now on.
    pub(super) fn receive_arguments(&mut self) {
        let mut state = self.ring.state.lock();
        let next = state.next;
        // A subscriber that has an end receives no further events.
        if self.filter.has_arguments() || self.end.get().is_some() {
            return;
        }
        if let Some(Some(entry)) = state.entries.get_mut(self.number) {
            entry.filter.arguments_from = next;
            self.filter.arguments_from = next;
            self.ring.argument_readers.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<FeedItem>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let mut state = self.ring.state.lock();
        let end = self.end.get();
        let before = end.map_or(u64::MAX, |end| end.before);
        if let Some((index, event)) = state.find(&self.filter, self.next, before) {
            self.next = index + 1;
            state.mark_read(index);
            if end.is_none()
                && let Some(Some(entry)) = state.entries.get_mut(self.number)
            {
                entry.unread = entry.unread.saturating_sub(1);
            }
            return Poll::Ready(Some(FeedItem::Event(event)));
        }
        if end.is_none()
            && !state.closed
            && let RingState { entries, next, .. } = &mut *state
            && let Some(Some(entry)) = entries.get_mut(self.number)
        {
            // The events that were passed over are not looked at again.
            self.next = *next;
            entry.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        self.is_ended = true;
        Poll::Ready(end.map(|end| match &end.reason {
            EndReason::Lagged => FeedItem::Lagged,
            EndReason::Failed(error) => FeedItem::Failed(error.clone()),
        }))
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        let mut state = self.ring.state.lock();
        let end = self.end.get();
        let before = end.map_or(u64::MAX, |end| end.before);
        state.mark_all_read(&self.filter, self.next, before);
        // A subscriber with an end has lost its number already.
        if end.is_none()
            && let Some(entry) = state.entries.get_mut(self.number)
        {
            *entry = None;
            state.free.push(self.number);
            self.ring.subscribers.fetch_sub(1, Ordering::Relaxed);
            let arguments = usize::from(self.filter.has_arguments());
            self.ring.argument_readers.fetch_sub(arguments, Ordering::Relaxed);
        }
    }
}
