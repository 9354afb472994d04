//! The events of many sessions, and the states of all sessions, as one stream.
//!
//! A session that is not in memory is not woken: its stored events are read, and its live events follow
//! when something else wakes it. A session that is in memory stays there while it is watched, as with
//! [`SessionHandle::watch`](super::SessionHandle::watch).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures::stream::{BoxStream, SelectAll};
use futures::{Stream, StreamExt as _};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::Host;
use super::error::HostError;
use super::host_ref::HostRef;
use super::session_events::SessionEvents;
use super::session_states::{SessionStateChange, StateMessage};
use super::task;
use crate::journal::{JournalError, SessionSummary};
use crate::telemetry::FeedItem;
use callsheet_values::event::{EventId, PublishedEvent};
use callsheet_values::types::{SessionId, SessionState};

/// Number of sessions of one stream whose stored events are read at once. Each one holds events in memory.
const HISTORIES_MAX: usize = 8;

/// An item of the stream of [`Host::watch_sessions`].
#[derive(Debug)]
pub enum HostEvent {
    /// An event of a session.
    Published(Arc<PublishedEvent>),
    /// The new state of a session.
    State(SessionStateChange),
    /// The client was too slow for the events of this session, which continue after this position. This
    /// is the last item.
    Lagged(SessionId, EventId),
    /// The client was too slow for the states of the sessions. This is the last item.
    StatesLagged,
    /// The events of this session cannot be read. Those of the others go on.
    Failed(SessionId, JournalError),
}

impl Host {
    /// Returns the events of sessions, and with `all_states` the changes of the states of all sessions
    /// from now on. Each session has the position after which its events are wanted; without one they are
    /// wanted from now on. The stream ends when the host shuts down, and without `all_states` also when all
    /// of the sessions are deleted or have failed.
    ///
    /// # Errors
    /// If a session or a position does not exist, with the id of the session.
    pub async fn watch_sessions(
        &self,
        sessions: Vec<(SessionId, Option<EventId>)>,
        all_states: bool,
    ) -> Result<impl Stream<Item = HostEvent> + Send + use<>, (SessionId, HostError)> {
        let host_ref = self.inner.host_ref.clone();
        // Subscribes before the sessions are looked up, so that none wakes unseen.
        let states = host_ref.shared.session_states.subscribe();
        let mut events = HostEvents {
            host_ref,
            states,
            all_states,
            sources: SelectAll::new(),
            history_permits: Arc::new(Semaphore::new(HISTORIES_MAX)),
            positions: HashMap::new(),
            asleep: HashSet::new(),
            deleted: HashMap::new(),
            ready: VecDeque::new(),
            has_ended: false,
        };
        for (session, after) in sessions {
            events.add(&session, after).await.map_err(|error| (session, error))?;
        }
        Ok(futures::stream::unfold(Some(events), async |events| {
            let mut events = events?;
            let next = events.next().await?;
            let is_last = matches!(next, HostEvent::Lagged(..) | HostEvent::StatesLagged);
            Some((next, (!is_last).then_some(events)))
        }))
    }
}

/// The state of a stream of [`Host::watch_sessions`].
struct HostEvents {
    host_ref: HostRef,
    states: Receiver<StateMessage>,
    all_states: bool,
    /// The events of the sessions that are in memory, or whose stored events are being read.
    sources: SelectAll<BoxStream<'static, (SessionId, SourceItem)>>,
    /// One permit for each session whose stored events are being read.
    history_permits: Arc<Semaphore>,
    /// The position after the last event of each session. A session that was deleted or has failed has none.
    positions: HashMap<SessionId, EventId>,
    /// The sessions that are not in memory, and whose stored events were returned.
    asleep: HashSet<SessionId>,
    /// The sessions that were deleted while older events of them are still to be returned, with the time of
    /// the deletion.
    deleted: HashMap<SessionId, u64>,
    /// Items that are returned next.
    ready: VecDeque<HostEvent>,
    /// True if the host has shut down.
    has_ended: bool,
}

/// An item of the events of one session.
enum SourceItem {
    Feed(FeedItem),
    /// The end. The events up to this position were returned; for live events, only those that came.
    End(EventId),
}

impl HostEvents {
    /// Adds a session.
    async fn add(&mut self, session: &SessionId, after: Option<EventId>) -> Result<(), HostError> {
        if self.attach(session, after)? {
            return Ok(());
        }
        let stored = self.find(session).await?;
        let stored = stored.ok_or_else(|| HostError::NoSuchSession(session.clone()))?;
        let last = EventId { seq: stored.seq, bytes: 0 };
        let after = after.unwrap_or(last);
        if after.seq > last.seq {
            return Err(HostError::UnknownEventId { asked: after, last: last.seq });
        }
        self.positions.insert(session.clone(), after);
        if after < last {
            let history_permits = Arc::clone(&self.history_permits);
            let events = SessionEvents::stored(&self.host_ref, &stored, after, history_permits);
            self.push(session, events, last);
        } else {
            self.asleep.insert(session.clone());
        }
        Ok(())
    }

    /// Adds the events of a session if it is in memory. Returns whether it is.
    fn attach(&mut self, session: &SessionId, after: Option<EventId>) -> Result<bool, HostError> {
        let Some(awake_session) = self.host_ref.shared.index.awake(session) else {
            return Ok(false);
        };
        let events = match after {
            Some(after) => {
                let history_permits = Some(Arc::clone(&self.history_permits));
                SessionEvents::from(&self.host_ref, session, &awake_session, after, history_permits)
                    .transpose()?
            }
            None => SessionEvents::from_now(&self.host_ref, &awake_session),
        };
        // A session without a feed is about to leave memory.
        let Some(events) = events else { return Ok(false) };
        self.positions.insert(session.clone(), events.start());
        self.push(session, events, EventId::default());
        Ok(true)
    }

    fn push(&mut self, session: &SessionId, events: SessionEvents, read_to: EventId) {
        let items = events.map(SourceItem::Feed);
        let items = items.chain(futures::stream::iter([SourceItem::End(read_to)]));
        let session = session.clone();
        self.sources.push(items.map(move |item| (session.clone(), item)).boxed());
    }

    async fn next(&mut self) -> Option<HostEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let is_done = self.has_ended || (self.positions.is_empty() && !self.all_states);
            if is_done && self.sources.is_empty() {
                return None;
            }
            tokio::select! {
                biased;
                message = self.states.recv(), if !self.has_ended => self.handle_message(message).await,
                // The last source may end without an item.
                next = self.sources.next(), if !self.sources.is_empty() => {
                    if let Some((session, item)) = next {
                        self.handle_item(session, item).await;
                    }
                }
            }
        }
    }

    async fn handle_message(&mut self, message: Result<StateMessage, RecvError>) {
        match message {
            Ok(StateMessage::Changed(change)) => {
                let is_asleep = self.asleep.contains(&change.session);
                match change.state {
                    Some(_) if is_asleep => self.attach_if_awake(&change.session),
                    None if is_asleep => self.end_session(&change.session),
                    None if self.positions.contains_key(&change.session) => {
                        self.deleted.entry(change.session.clone()).or_insert(change.time);
                    }
                    Some(_) | None => {}
                }
                if self.all_states {
                    // A deletion is returned even if a new session has the id by now.
                    let state =
                        change.state.map(|state| self.live_state(&change.session).unwrap_or(state));
                    self.ready.push_back(HostEvent::State(SessionStateChange { state, ..change }));
                }
            }
            Err(RecvError::Lagged(_)) if self.all_states => {
                self.ready.push_back(HostEvent::StatesLagged);
            }
            Err(RecvError::Lagged(_)) => {
                // The messages about these sessions may be lost.
                for session in std::mem::take(&mut self.asleep) {
                    self.continue_session(session).await;
                }
            }
            Ok(StateMessage::HostEnded) | Err(RecvError::Closed) => self.has_ended = true,
        }
    }

    async fn handle_item(&mut self, session: SessionId, item: SourceItem) {
        match item {
            SourceItem::Feed(FeedItem::Event(event)) => {
                // Stored events are read page by page. After a deletion, a page may have events of a new
                // session with this id.
                let deleted = self.deleted.get(&session);
                if deleted.is_some_and(|time| event.timestamp_ms > *time) {
                    return;
                }
                if let Some((id, position)) = event.id.zip(self.positions.get_mut(&session)) {
                    *position = id;
                }
                self.ready.push_back(HostEvent::Published(event));
            }
            SourceItem::Feed(FeedItem::Lagged) => {
                let position = self.positions.get(&session).copied().unwrap_or_default();
                self.ready.push_back(HostEvent::Lagged(session, position));
            }
            SourceItem::Feed(FeedItem::Failed(error)) => {
                self.positions.remove(&session);
                self.ready.push_back(HostEvent::Failed(session, error));
            }
            SourceItem::End(_) if self.deleted.contains_key(&session) => self.end_session(&session),
            SourceItem::End(read_to) => {
                if let Some(position) = self.positions.get_mut(&session) {
                    *position = read_to.max(*position);
                    self.continue_session(session).await;
                }
            }
        }
    }

    /// Continues with a session whose events have ended, or whose messages are lost: it was deleted, has left memory,
    /// or has woken meanwhile.
    async fn continue_session(&mut self, session: SessionId) {
        // The sessions of a host that shuts down leave memory, and are not deleted.
        if !self.host_ref.is_ready() {
            return;
        }
        match self.find(&session).await {
            Ok(Some(_)) => {
                self.asleep.insert(session.clone());
                self.attach_if_awake(&session);
            }
            Ok(None) => self.end_session(&session),
            Err(HostError::Journal(error)) => {
                self.positions.remove(&session);
                self.ready.push_back(HostEvent::Failed(session, error));
            }
            // The host shuts down.
            Err(_) => {}
        }
    }

    /// Adds the events of a session that was asleep, if it is in memory by now.
    fn attach_if_awake(&mut self, session: &SessionId) {
        let position = self.positions.get(session).copied();
        match self.attach(session, position) {
            Ok(true) => {
                self.asleep.remove(session);
            }
            Ok(false) => {}
            // The session has fewer records than before, because the journal has failed meanwhile.
            Err(_) => {
                self.ready
                    .push_back(HostEvent::Lagged(session.clone(), position.unwrap_or_default()));
            }
        }
    }

    /// Ends the events of a session that was deleted. Those of a new session with its id do not follow.
    fn end_session(&mut self, session: &SessionId) {
        self.asleep.remove(session);
        self.deleted.remove(session);
        // With the states of all sessions, the deletion is in the stream already.
        if self.positions.remove(session).is_some() && !self.all_states {
            self.ready.push_back(HostEvent::State(SessionStateChange::new(session, None)));
        }
    }

    fn live_state(&self, session: &SessionId) -> Option<SessionState> {
        let shared = &self.host_ref.shared;
        let state = shared.index.awake(session)?.activity.state();
        Some(shared.with_wait(session, state))
    }

    fn find(
        &self,
        session: &SessionId,
    ) -> impl Future<Output = Result<Option<SessionSummary>, HostError>> + Send + use<> {
        let (host_ref, session) = (self.host_ref.clone(), session.clone());
        // In a task: the stream is not polled while its client does not read, and would keep a permit for reading.
        let found =
            task::isolated(async move { Ok(host_ref.shared.journal.find(&session).await?) });
        async move { found.await.unwrap_or(Err(HostError::ShuttingDown)) }
    }
}
