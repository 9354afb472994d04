//! The events of many sessions, and the states of all sessions, as one stream.
//!
//! A session that is not in memory is not woken: its stored events are read, and its live events follow
//! when something else wakes it. A session that is in memory stays there while it is watched, as with
//! [`SessionHandle::watch`](super::SessionHandle::watch).
//!
//! If other hosts have the same journal, the stream joins theirs. It reads the states of the sessions of each of them
//! from the beginning on, and the events of the watched sessions that they have. A session that another host wakes is
//! watched there from the position on that was reached. When a host ends, its sessions are looked for again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, SelectAll};
use futures::{Stream, StreamExt as _};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::Host;
use super::error::HostError;
use super::host_ref::HostRef;
use super::peer_events::PeerItem;
use super::session_events::{SessionEvents, WatchOptions};
use super::session_states::{SessionStateChange, StateMessage};
use super::task;
use crate::journal::{JournalError, OtherHost, Owner, SessionSummary};
use crate::telemetry::FeedItem;
use callsheet_values::event::{EventId, PublishedEvent};
use callsheet_values::types::{SessionId, SessionState};

/// Number of sessions of one stream whose stored events are read at once. Each one holds events in memory.
const HISTORIES_MAX: usize = 8;

/// The interval at which new hosts with the same journal are looked for.
const HOSTS_INTERVAL: Duration = Duration::from_secs(1);

/// The time after which a host that has not answered is asked again. Nothing else of the stream is read meanwhile.
const SILENT_PAUSE: Duration = Duration::from_secs(30);

/// Maximum number of streams of other hosts that one stream joins.
const PEER_STREAMS_MAX: usize = 64;

/// Maximum number of sessions of a stream of another host, whose positions are in its URL.
const SESSIONS_PER_STREAM: usize = 64;

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
    /// The text of an event in the stream of another host, with its type and its id.
    OfPeer(String),
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
        self.watch_sessions_with(sessions, all_states, WatchOptions::default()).await
    }

    /// Returns the events that [`watch_sessions`](Self::watch_sessions) returns, with options.
    ///
    /// # Errors
    /// As there.
    pub async fn watch_sessions_with(
        &self,
        sessions: Vec<(SessionId, Option<EventId>)>,
        all_states: bool,
        options: WatchOptions,
    ) -> Result<impl Stream<Item = HostEvent> + Send + use<>, (SessionId, HostError)> {
        let joins_peers = self.peers().is_some();
        self.watch_sessions_of(sessions, all_states, options, joins_peers).await
    }

    /// Returns the events that [`watch_sessions`](Self::watch_sessions) returns, without those of other hosts with the same
    /// journal.
    ///
    /// # Errors
    /// As there.
    pub async fn watch_own_sessions(
        &self,
        sessions: Vec<(SessionId, Option<EventId>)>,
        all_states: bool,
        options: WatchOptions,
    ) -> Result<impl Stream<Item = HostEvent> + Send + use<>, (SessionId, HostError)> {
        self.watch_sessions_of(sessions, all_states, options, false).await
    }

    async fn watch_sessions_of(
        &self,
        sessions: Vec<(SessionId, Option<EventId>)>,
        all_states: bool,
        options: WatchOptions,
        joins_peers: bool,
    ) -> Result<impl Stream<Item = HostEvent> + Send + use<>, (SessionId, HostError)> {
        let host_ref = self.inner.host_ref.clone();
        // Subscribes before the sessions are looked up, so that none wakes unseen.
        let states = host_ref.shared.session_states.subscribe();
        let mut events = HostEvents {
            host_ref,
            states,
            all_states,
            options,
            sources: SelectAll::new(),
            own_sources: 0,
            history_permits: Arc::new(Semaphore::new(HISTORIES_MAX)),
            positions: HashMap::new(),
            asleep: HashSet::new(),
            deleted: HashMap::new(),
            ready: VecDeque::new(),
            has_ended: false,
            peers: joins_peers.then(PeerStreams::new),
        };
        // Before the owners are looked up.
        events.link_hosts().await;
        let mut unread = Vec::new();
        for (session, after) in sessions {
            let added = events.add(&session, after).await;
            unread.extend(added.map_err(|error| (session, error))?);
        }
        let elsewhere: Vec<_> = unread.iter().map(|stored| stored.id.clone()).collect();
        let elsewhere = events.attach_elsewhere(elsewhere).await;
        for stored in unread.into_iter().filter(|stored| !elsewhere.contains(&stored.id)) {
            events.read_stored(&stored);
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
    options: WatchOptions,
    /// The events of the sessions that are in memory, or whose stored events are being read, and the streams of other
    /// hosts.
    sources: SelectAll<BoxStream<'static, SourceItem>>,
    /// Number of the sources that are not streams of other hosts.
    own_sources: usize,
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
    /// The streams of other hosts, if there are others.
    peers: Option<PeerStreams>,
}

/// An item of a source.
enum SourceItem {
    /// Of the events of one session of this host.
    Feed(SessionId, FeedItem),
    /// The end of them. The events up to this position were returned; for live events, only those that came.
    End(SessionId, EventId),
    /// Of the stream of another host with this number.
    Peer(u64, PeerItem),
    PeerEnd(u64),
}

/// The streams of other hosts that a stream joins.
struct PeerStreams {
    /// The open streams by their numbers: the host, and the sessions whose events are in it. Without sessions it is the
    /// stream of the host's states.
    open: HashMap<u64, (OtherHost, Vec<SessionId>)>,
    opened: u64,
    /// The stream in which the events of each session are that another host has.
    sessions: HashMap<SessionId, u64>,
    /// The hosts that have not answered, by their ids, with the time of that.
    silent: HashMap<String, Instant>,
    /// True if a session may be elsewhere, and its owner is to be looked up again.
    looks_again: bool,
    /// The next time at which hosts are looked for.
    ticks: Interval,
}

impl PeerStreams {
    fn new() -> Self {
        let mut ticks = tokio::time::interval(HOSTS_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (open, sessions, silent) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { open, opened: 0, sessions, silent, looks_again: false, ticks }
    }

    /// Returns whether the states of a host's sessions are read, or the host has not answered lately.
    fn is_linked(&self, host: &OtherHost) -> bool {
        let is_silent = self.silent.get(&host.id).is_some_and(|at| at.elapsed() < SILENT_PAUSE);
        let mut open = self.open.values();
        is_silent || open.any(|(open, sessions)| open.id == host.id && sessions.is_empty())
    }

    /// Returns the host that has a session, as far as this stream knows.
    fn host_of(&self, session: &SessionId) -> Option<&OtherHost> {
        self.open.get(self.sessions.get(session)?).map(|(host, _)| host)
    }
}

impl HostEvents {
    /// Adds a session. Returns it if it is not in memory.
    async fn add(
        &mut self,
        session: &SessionId,
        after: Option<EventId>,
    ) -> Result<Option<SessionSummary>, HostError> {
        if self.attach(session, after)? {
            return Ok(None);
        }
        let stored = self.find(session).await?;
        let stored = stored.ok_or_else(|| HostError::NoSuchSession(session.clone()))?;
        let last = EventId { seq: stored.seq, bytes: 0 };
        let after = after.unwrap_or(last);
        if after.seq > last.seq {
            return Err(HostError::UnknownEventId { asked: after, last: last.seq });
        }
        self.positions.insert(session.clone(), after);
        Ok(Some(stored))
    }

    /// Adds the stored events of a session that is not in memory, if there are any after its position.
    fn read_stored(&mut self, stored: &SessionSummary) {
        let last = EventId { seq: stored.seq, bytes: 0 };
        let after = self.positions.get(&stored.id).copied().unwrap_or_default();
        if after < last {
            let history_permits = Arc::clone(&self.history_permits);
            let after = (after, self.options);
            let events = SessionEvents::stored(&self.host_ref, stored, after, history_permits);
            self.push(&stored.id, events, last);
        } else {
            self.asleep.insert(stored.id.clone());
        }
    }

    /// Adds the events of a session if it is in memory. Returns whether it is.
    fn attach(&mut self, session: &SessionId, after: Option<EventId>) -> Result<bool, HostError> {
        let Some(awake_session) = self.host_ref.shared.index.awake(session) else {
            return Ok(false);
        };
        let events = match after {
            Some(after) => {
                let history_permits = Some(Arc::clone(&self.history_permits));
                let after = (after, self.options);
                SessionEvents::from(&self.host_ref, session, &awake_session, after, history_permits)
                    .transpose()?
            }
            None => SessionEvents::from_now(&self.host_ref, &awake_session, self.options),
        };
        // A session without a feed is about to leave memory.
        let Some(events) = events else { return Ok(false) };
        self.positions.insert(session.clone(), events.start());
        self.leave_peer(session);
        self.push(session, events, EventId::default());
        Ok(true)
    }

    fn push(&mut self, session: &SessionId, events: SessionEvents, read_to: EventId) {
        let (of_items, of_end) = (session.clone(), session.clone());
        let items = events.map(move |item| SourceItem::Feed(of_items.clone(), item));
        let end = futures::stream::iter([SourceItem::End(of_end, read_to)]);
        self.own_sources += 1;
        self.sources.push(items.chain(end).boxed());
    }

    async fn next(&mut self) -> Option<HostEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let is_done = self.has_ended || (self.positions.is_empty() && !self.all_states);
            if is_done && self.own_sources == 0 {
                return None;
            }
            tokio::select! {
                biased;
                message = self.states.recv(), if !self.has_ended => self.handle_message(message).await,
                // The last source may end without an item.
                next = self.sources.next(), if !self.sources.is_empty() => {
                    if let Some(item) = next {
                        self.handle_item(item).await;
                    }
                }
                () = next_tick(&mut self.peers), if !self.has_ended => self.look_for_hosts().await,
            }
        }
    }

    async fn handle_message(&mut self, message: Result<StateMessage, RecvError>) {
        match message {
            Ok(StateMessage::Changed(change)) => {
                let is_asleep = self.asleep.contains(&change.session);
                let is_elsewhere = self
                    .peers
                    .as_ref()
                    .is_some_and(|peers| peers.sessions.contains_key(&change.session));
                match change.state {
                    Some(_) if is_asleep || is_elsewhere => self.attach_if_awake(&change.session),
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

    async fn handle_item(&mut self, item: SourceItem) {
        if matches!(item, SourceItem::End(..)) {
            self.own_sources -= 1;
        }
        match item {
            SourceItem::Feed(session, FeedItem::Event(event)) => {
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
            SourceItem::Feed(session, FeedItem::Lagged) => {
                let position = self.positions.get(&session).copied().unwrap_or_default();
                self.ready.push_back(HostEvent::Lagged(session, position));
            }
            SourceItem::Feed(session, FeedItem::Failed(error)) => {
                self.positions.remove(&session);
                self.ready.push_back(HostEvent::Failed(session, error));
            }
            SourceItem::End(session, _) if self.deleted.contains_key(&session) => {
                self.end_session(&session);
            }
            SourceItem::End(session, read_to) => {
                if let Some(position) = self.positions.get_mut(&session) {
                    *position = read_to.max(*position);
                    self.continue_session(session).await;
                }
            }
            SourceItem::Peer(stream, item) => self.handle_peer_item(stream, item).await,
            SourceItem::PeerEnd(stream) => self.end_peer_stream(stream).await,
        }
    }

    async fn handle_peer_item(&mut self, stream: u64, item: PeerItem) {
        let Some(peers) = &self.peers else { return };
        let is_there = |session: &SessionId| peers.sessions.get(session) == Some(&stream);
        match item {
            PeerItem::Event { of, id, text } => {
                let session = of.iter().find(|session| is_there(session));
                let is_elsewhere = of.iter().any(|session| self.positions.contains_key(session));
                if session.is_none() && is_elsewhere {
                    // Another host, or this one, has it by now.
                    return;
                }
                let position = session.and_then(|session| self.positions.get_mut(session));
                if let Some((id, position)) = id.zip(position) {
                    *position = id;
                }
                self.ready.push_back(HostEvent::OfPeer(text));
            }
            PeerItem::Failed { session, text } if is_there(&session) => {
                self.leave_peer(&session);
                self.positions.remove(&session);
                self.ready.push_back(HostEvent::OfPeer(text));
            }
            PeerItem::Failed { .. } => {}
            PeerItem::State(change) => {
                let session = change.session.clone();
                let Some((host, of_stream)) = peers.open.get(&stream).cloned() else { return };
                // The stream of a host's states, or of the events of a session that was deleted.
                if self.all_states && of_stream.is_empty() {
                    self.ready.push_back(HostEvent::State(change.clone()));
                }
                match change.state {
                    None => {
                        self.leave_peer(&session);
                        self.end_session(&session);
                    }
                    Some(_) => {
                        let is_known =
                            peers.host_of(&session).is_some_and(|known| known.id == host.id);
                        if self.positions.contains_key(&session) && !is_known {
                            self.attach_at(&host, vec![session]).await;
                        }
                    }
                }
            }
        }
    }

    /// Looks for the sessions of a stream of another host that has ended.
    async fn end_peer_stream(&mut self, stream: u64) {
        let Some(peers) = &mut self.peers else { return };
        let Some((_, sessions)) = peers.open.remove(&stream) else { return };
        if sessions.is_empty() && self.all_states {
            // The last changes of states at the host that has ended may not have arrived.
            self.ready.push_back(HostEvent::StatesLagged);
        }
        for session in sessions {
            if self
                .peers
                .as_ref()
                .is_some_and(|peers| peers.sessions.get(&session) == Some(&stream))
            {
                self.leave_peer(&session);
                self.continue_session(session).await;
            }
        }
    }

    /// Takes a session out of the stream of another host.
    fn leave_peer(&mut self, session: &SessionId) {
        if let Some(peers) = &mut self.peers {
            peers.sessions.remove(session);
        }
    }

    /// Reads the states of the sessions of all other hosts. Returns whether one is new.
    async fn link_hosts(&mut self) -> bool {
        let shared = Arc::clone(&self.host_ref.shared);
        let (Some(streams), Some(peers)) = (&self.peers, &shared.peers) else { return false };
        let mut others = peers.hosts(HOSTS_INTERVAL).await;
        others.retain(|host| !streams.is_linked(host));
        let links = others.iter().map(|host| peers.watch(host, &[], WatchOptions::default()));
        let links = futures::future::join_all(links).await;
        let mut is_new = false;
        for (host, items) in others.into_iter().zip(links) {
            match items {
                Some(items) => {
                    self.push_peer(&host, Vec::new(), items);
                    is_new = true;
                }
                None => {
                    if let Some(peers) = &mut self.peers {
                        peers.silent.insert(host.id, Instant::now());
                    }
                }
            }
        }
        is_new
    }

    /// Joins hosts that have started meanwhile, and looks for sessions that may be elsewhere.
    async fn look_for_hosts(&mut self) {
        let is_new = self.link_hosts().await;
        if is_new && self.all_states {
            // Changes of states at the new host before the link began are missing.
            self.ready.push_back(HostEvent::StatesLagged);
        }
        let looks_again =
            self.peers.as_mut().is_some_and(|peers| std::mem::take(&mut peers.looks_again));
        if is_new || looks_again {
            let asleep = self.asleep.iter().cloned().collect();
            self.attach_elsewhere(asleep).await;
        }
    }

    /// Adds the events of those sessions that other hosts have, and returns these sessions.
    async fn attach_elsewhere(&mut self, sessions: Vec<SessionId>) -> HashSet<SessionId> {
        let mut attached = HashSet::new();
        if self.peers.is_none() || sessions.is_empty() {
            return attached;
        }
        let (shared, asked) = (Arc::clone(&self.host_ref.shared), sessions.clone());
        // In a task, as in `find`.
        let owners = task::isolated(async move {
            match shared.journal.ownership() {
                Some(ownership) => ownership.owners(&asked).await,
                None => Ok(Vec::new()),
            }
        });
        let Ok(Ok(owners)) = owners.await else {
            self.peers.iter_mut().for_each(|peers| peers.looks_again = true);
            return attached;
        };
        let mut by_host: HashMap<String, (OtherHost, Vec<SessionId>)> = HashMap::new();
        for (session, owner) in sessions.into_iter().zip(owners) {
            if let Some(Owner::Other(host)) = owner {
                by_host.entry(host.id.clone()).or_insert((host, Vec::new())).1.push(session);
            }
        }
        for (host, sessions) in by_host.into_values() {
            for part in sessions.chunks(SESSIONS_PER_STREAM) {
                if self.attach_at(&host, part.to_vec()).await {
                    attached.extend(part.iter().cloned());
                }
            }
        }
        attached
    }

    /// Adds the events of sessions that another host has. Returns whether it answers.
    async fn attach_at(&mut self, host: &OtherHost, sessions: Vec<SessionId>) -> bool {
        let shared = Arc::clone(&self.host_ref.shared);
        let (Some(streams), Some(peers)) = (&mut self.peers, &shared.peers) else { return false };
        if streams.open.len() >= PEER_STREAMS_MAX {
            // The client connects again, and all of them are joined anew.
            let last =
                sessions.first().map(|session| (session.clone(), self.positions.get(session)));
            if let Some((session, position)) = last {
                let position = position.copied().unwrap_or_default();
                self.ready.push_back(HostEvent::Lagged(session, position));
            }
            return true;
        }
        let position = |session: &SessionId| {
            (session.clone(), self.positions.get(session).copied().unwrap_or_default())
        };
        let positions: Vec<_> = sessions.iter().map(position).collect();
        let Some(items) = peers.watch(host, &positions, self.options).await else {
            streams.looks_again = true;
            for session in sessions {
                self.leave_peer(&session);
                self.asleep.insert(session);
            }
            return false;
        };
        for session in &sessions {
            self.asleep.remove(session);
        }
        self.push_peer(host, sessions, items);
        true
    }

    fn push_peer(
        &mut self,
        host: &OtherHost,
        sessions: Vec<SessionId>,
        items: BoxStream<'static, PeerItem>,
    ) {
        let Some(peers) = &mut self.peers else { return };
        let stream = peers.opened;
        peers.opened += 1;
        peers.sessions.extend(sessions.iter().map(|session| (session.clone(), stream)));
        peers.open.insert(stream, (host.clone(), sessions));
        let items = items.map(move |item| SourceItem::Peer(stream, item));
        let end = futures::stream::iter([SourceItem::PeerEnd(stream)]);
        self.sources.push(items.chain(end).boxed());
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
                if self.asleep.contains(&session) {
                    self.attach_elsewhere(vec![session]).await;
                }
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

/// Waits for the next time at which hosts are looked for. Never ends if there are no others.
async fn next_tick(peers: &mut Option<PeerStreams>) {
    match peers {
        Some(peers) => drop(peers.ticks.tick().await),
        None => std::future::pending().await,
    }
}
