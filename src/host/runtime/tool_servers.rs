//! Tool servers (MCP): freezes the list of their tools for each session. `server_connections` keeps them connected.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::agent::Agent;
use super::error::HostError;
use super::tool_limiter::ToolLimiters;
use crate::journal::{Journal, JournalError, unix_ms};
use crate::telemetry::Telemetry;
use callsheet_tools::{
    FrozenList, SERVER_SEPARATOR, ServerListing, ServerState, ServerStatus, ServerToolDefinition,
    ToolServer,
};
use callsheet_values::config::ToolOverride;
use callsheet_values::event::ToolListChange;
use callsheet_values::record::{FROZEN_TOOLS, frozen_tools_key};
use callsheet_values::types::{SessionId, sha256_hex};

/// Time limit for the end of a server at the shutdown of the host. Then its connection is dropped, which
/// kills its process.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time for which the journal keeps a frozen list that no session names. A list is stored before the record
/// that names it, so a new list has no record for a short time.
const UNUSED_LIST_KEPT_MS: u64 = 3_600_000;

/// The SHA-256 of the text `[]`. It is the hash of a list without tools, which is not stored.
const NO_TOOLS_SHA256: &str = "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945";

/// The tools that servers offer to an agent, as a session keeps them.
#[derive(Debug)]
pub(super) struct FrozenTools {
    /// The SHA-256 of the list, in hex digits.
    pub(super) sha256: Arc<str>,
    pub(super) list: FrozenList,
    /// The agent with these tools.
    pub(super) agent: Arc<Agent>,
    /// The servers that were down and whose tools are not known, with the reasons.
    pub(super) missing: Vec<(String, String)>,
}

/// A server as one session sees it: the one of the host, or a connection of its own.
pub(super) struct SessionServer {
    pub(super) server: Arc<dyn ToolServer>,
    /// Ends a connection that was opened only to read its list.
    pub(super) _opened: Option<PerSessionConnection>,
}

/// A connection that one session has to a server. Dropping it ends the connection.
pub(super) struct PerSessionConnection(pub(super) Arc<dyn ToolServer>);

impl Drop for PerSessionConnection {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// An agent's name and the SHA-256 of a list.
type FrozenKey = (Arc<str>, Arc<str>);

/// The last frozen list of an agent, with the lists of the servers that it was made from, and the Unix time in
/// milliseconds at which the journal stored it.
type LatestTools = (Vec<Option<Arc<ServerListing>>>, Arc<FrozenTools>, u64);

/// The servers of a host.
pub(super) struct ToolServers {
    /// The servers, sorted by name.
    pub(super) servers: Vec<Arc<dyn ToolServer>>,
    overrides: BTreeMap<String, ToolOverride>,
    tool_limiters: ToolLimiters,
    journal: Arc<dyn Journal>,
    telemetry: Telemetry,
    /// The last list of each server, by the server's name. The journal stores it.
    last_listings: Mutex<BTreeMap<String, Arc<ServerListing>>>,
    latest: Mutex<BTreeMap<Arc<str>, LatestTools>>,
    /// The frozen lists of awake sessions.
    awake_lists: Mutex<HashMap<FrozenKey, Weak<FrozenTools>>>,
    /// The connections of single sessions to servers that sessions do not share.
    pub(super) session_connections: Mutex<HashMap<SessionId, Vec<Weak<dyn ToolServer>>>>,
}

impl ToolServers {
    /// Creates the servers of a host. Reads the last known list of each from the journal.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub(super) async fn new(
        mut servers: Vec<Arc<dyn ToolServer>>,
        overrides: &BTreeMap<String, ToolOverride>,
        tool_limiters: &ToolLimiters,
        journal: &Arc<dyn Journal>,
        telemetry: &Telemetry,
    ) -> Result<Self, HostError> {
        servers.sort_by(|one, other| one.name().cmp(other.name()));
        let names: Vec<String> = servers.iter().map(|server| server.name().to_owned()).collect();
        let last_listings = read_listings(&**journal, &names).await?;
        let mut startups = BTreeMap::new();
        for key in startup_keys(&servers) {
            startups.extend(journal.document(&key).await?.map(|text| (key, text)));
        }
        restore_startups(&servers, &startups);
        Ok(Self {
            servers,
            overrides: overrides.clone(),
            tool_limiters: tool_limiters.clone(),
            journal: Arc::clone(journal),
            telemetry: telemetry.clone(),
            last_listings: Mutex::new(last_listings),
            latest: Mutex::default(),
            awake_lists: Mutex::default(),
            session_connections: Mutex::default(),
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<dyn ToolServer>> {
        self.servers.iter()
    }

    /// Calls `count` with the name of each server, each state, and the number of connections in that state.
    pub(super) fn count_connections(&self, count: impl Fn(&str, &str, usize)) {
        let connections = self.of_sessions();
        for server in &self.servers {
            let of_name = connections.iter().filter(|other| other.name() == server.name());
            let shared = Some(server).filter(|server| !server.is_per_session());
            let states =
                of_name.chain(shared).map(|server| server.status().borrow().state.as_str());
            let states: Vec<_> = states.collect();
            for state in ServerState::ALL {
                let connections = states.iter().filter(|of| **of == state).count();
                count(server.name(), state, connections);
            }
        }
    }

    /// Returns the names of those servers that are still starting.
    pub(super) fn starting(&self, servers: &[SessionServer]) -> Vec<String> {
        let servers = servers.iter().map(|server| &server.server);
        let starting =
            servers.filter(|server| server.status().borrow().state == ServerState::Starting);
        starting.map(|server| server.name().to_owned()).collect()
    }

    /// Returns the present tools of an agent, after the first attempts to connect to the servers that its
    /// patterns name. A server without a list now has its last known one. The list is stored in the journal.
    ///
    /// # Errors
    /// If the list cannot be stored.
    pub(super) async fn freeze(
        &self,
        agent: &Arc<Agent>,
        servers: &[SessionServer],
    ) -> Result<Arc<FrozenTools>, HostError> {
        let (mut listings, mut missing) = (Vec::new(), Vec::new());
        let named = servers.iter().map(|server| &server.server);
        let named: Vec<_> = named.filter(|server| agent.names_server(&***server)).collect();
        let started = named.iter().map(|server| wait_started(&***server));
        let statuses = futures::future::join_all(started).await;
        for (server, status) in named.iter().zip(statuses) {
            let last = self.last_listing(server.name());
            let listing = match (status.listing.clone(), last) {
                // Equal lists are one value, so that sessions share what is made of it.
                (Some(now), Some(last)) if now.offers_same(&last) => Some(last),
                (now, last) => now.or(last),
            };
            if let (None, ServerState::Down(reason)) = (&listing, &status.state) {
                missing.push((server.name().to_owned(), reason.clone()));
            }
            listings.push(listing);
        }
        let now = unix_ms();
        if let Some((made_from, frozen, stored)) = self.latest.lock().get(&agent.name)
            && are_same_listings(made_from, &listings)
            && now.saturating_sub(*stored) < UNUSED_LIST_KEPT_MS / 2
        {
            return Ok(Arc::clone(frozen));
        }
        let named_listings = named.iter().map(|server| server.name()).zip(&listings);
        let named_listings = named_listings.map(|(server, listing)| (server, listing.as_deref()));
        let offered = listings.iter().flatten().flat_map(|listing| &listing.tools);
        let offered = offered.filter(|tool| agent.names_tool(&tool.name));
        let mut tools: Vec<ServerToolDefinition> = offered.cloned().collect();
        tools.sort_by(|one, other| one.name.cmp(&other.name));
        let is_offered = |server: &str| {
            let prefix = format!("{server}{SERVER_SEPARATOR}");
            tools.iter().any(|tool| tool.name.starts_with(&prefix))
        };
        let instructions = named_listings.filter_map(|(server, listing)| {
            Some((server.to_owned(), listing?.instructions.clone()?))
        });
        let instructions = instructions.filter(|(server, _)| is_offered(server)).collect();
        let list = FrozenList { search: agent.needs_search(&tools), tools, instructions };
        // An empty list is not stored, so that a host without servers writes nothing.
        let sha256: Arc<str> = if list.tools.is_empty() {
            NO_TOOLS_SHA256.into()
        } else {
            let text = serde_json::to_string(&list).unwrap_or_default();
            let sha256: Arc<str> = sha256_hex(&text).into();
            let key = frozen_tools_key(&sha256);
            self.journal.put_document(&key, &text, None).await?;
            sha256
        };
        let frozen = self.shared_frozen_tools(agent, sha256, list, missing);
        for pattern in frozen.agent.unmatched_patterns() {
            tracing::warn!(agent = &*agent.name, pattern, "tool_pattern_matches_nothing");
        }
        for (server, error) in &frozen.missing {
            tracing::warn!(agent = &*agent.name, server, error, "tools_left_out");
        }
        let entry = (listings, Arc::clone(&frozen), now);
        self.latest.lock().insert(Arc::clone(&agent.name), entry);
        Ok(frozen)
    }

    /// Returns the tools that a stored session has frozen. If the journal does not have the list, the agent
    /// gets no tools of servers.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub(super) async fn restore(
        &self,
        agent: &Arc<Agent>,
        sha256: &Arc<str>,
    ) -> Result<Arc<FrozenTools>, HostError> {
        let key = (Arc::clone(&agent.name), Arc::clone(sha256));
        if let Some(frozen) = self.awake_lists.lock().get(&key).and_then(Weak::upgrade) {
            return Ok(frozen);
        }
        let key = frozen_tools_key(sha256);
        let text = self.journal.document(&key).await?;
        let list = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_else(|| {
            if **sha256 != *NO_TOOLS_SHA256 {
                tracing::error!(agent = &*agent.name, sha256 = &**sha256, "tool_list_lost");
            }
            FrozenList { search: agent.needs_search(&[]), ..FrozenList::default() }
        });
        Ok(self.shared_frozen_tools(agent, Arc::clone(sha256), list, Vec::new()))
    }

    /// Returns the shared value of a frozen list.
    fn shared_frozen_tools(
        &self,
        agent: &Arc<Agent>,
        sha256: Arc<str>,
        list: FrozenList,
        missing: Vec<(String, String)>,
    ) -> Arc<FrozenTools> {
        let key = (Arc::clone(&agent.name), Arc::clone(&sha256));
        let mut awake_lists = self.awake_lists.lock();
        let known = awake_lists.get(&key).and_then(Weak::upgrade);
        if let Some(frozen) = known.filter(|frozen| frozen.missing == missing) {
            return frozen;
        }
        self.telemetry.metrics().add_tools(list.tools.iter().map(|tool| &*tool.name));
        let agent = Arc::new(agent.with_server_tools(&list, &self.overrides, &self.tool_limiters));
        let frozen = Arc::new(FrozenTools { sha256, list, agent, missing });
        awake_lists.retain(|_, frozen| frozen.strong_count() > 0);
        awake_lists.insert(key, Arc::downgrade(&frozen));
        frozen
    }

    pub(super) fn last_listing(&self, server: &str) -> Option<Arc<ServerListing>> {
        self.last_listings.lock().get(server).cloned()
    }

    /// Stores a server's list, for sessions that begin while the server is down.
    pub(super) async fn keep_listing(&self, server: &str, listing: &Arc<ServerListing>) {
        if self.last_listing(server).is_some_and(|last| last.offers_same(listing)) {
            return;
        }
        let text = serde_json::to_string(&**listing).unwrap_or_default();
        let key = listing_key(server);
        match self.journal.put_document(&key, &text, None).await {
            Ok(()) => {
                self.last_listings.lock().insert(server.to_owned(), Arc::clone(listing));
            }
            // It is stored the next time that the server reports it.
            Err(error) => tracing::warn!(server, %error, "tool_list_not_stored"),
        }
    }

    /// Stores how a server is started, for the next host.
    pub(super) async fn keep_startup(&self, server: &dyn ToolServer, startup: &'static str) {
        let Some(key) = server.startup_key().map(|key| startup_key(&key)) else { return };
        if let Err(error) = self.journal.put_document(&key, startup, None).await {
            tracing::warn!(server = server.name(), %error, "tool_server_startup_not_stored");
        }
    }

    /// Deletes the frozen lists that no stored session names any more.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub(super) async fn remove_unused_lists(&self) -> Result<(), JournalError> {
        let stored_before = unix_ms().saturating_sub(UNUSED_LIST_KEPT_MS);
        self.journal.remove_unused_documents(FROZEN_TOOLS, stored_before).await
    }

    /// Returns the connections of single sessions that are still open.
    fn of_sessions(&self) -> Vec<Arc<dyn ToolServer>> {
        let connections = self.session_connections.lock();
        connections.values().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Ends all servers.
    pub(super) async fn close(&self) {
        let shared = self.servers.iter().filter(|server| !server.is_per_session()).cloned();
        let close = |server: Arc<dyn ToolServer>| async move {
            server.end();
            server.ended().await;
        };
        let closing = futures::future::join_all(shared.chain(self.of_sessions()).map(close));
        // A server that does not end is dropped with its actor.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
    }
}

impl fmt::Debug for PerSessionConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerSessionConnection").field(&self.0.name()).finish()
    }
}

impl fmt::Debug for ToolServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.servers.iter().map(|server| server.name())).finish()
    }
}

impl FrozenTools {
    /// Returns the difference to the tools that a session had before.
    pub(super) fn change_from(&self, before: Option<&Self>) -> ToolListChange {
        let before = before.map_or(&[][..], |before| &before.list.tools);
        ToolListChange::between(before, &self.list.tools, |tool| &tool.name)
    }
}

/// Waits until the first attempt to connect has a result, at most for `start_timeout`.
pub(super) async fn wait_started(server: &dyn ToolServer) -> Arc<ServerStatus> {
    let mut status = server.status();
    let started = status.wait_for(|status| status.state != ServerState::Starting);
    let limit = server.start_timeout();
    let found = tokio::time::timeout(limit, started).await.ok().and_then(Result::ok);
    if let Some(status) = found.map(|status| Arc::clone(&status)) {
        return status;
    }
    let mut late = ServerStatus::clone(&server.status().borrow());
    if late.state == ServerState::Starting {
        let limit = humantime::format_duration(limit);
        late.state = ServerState::Down(format!("it did not start within {limit}"));
    }
    Arc::new(late)
}

async fn read_listings(
    journal: &dyn Journal,
    servers: &[String],
) -> Result<BTreeMap<String, Arc<ServerListing>>, JournalError> {
    let mut listings = BTreeMap::new();
    for server in servers {
        let text = journal.document(&listing_key(server)).await?;
        // An unreadable list is as if the server had never been connected.
        let listing = text.and_then(|text| serde_json::from_str(&text).ok());
        listings.extend(listing.map(|listing| (server.clone(), Arc::new(listing))));
    }
    Ok(listings)
}

/// Returns the keys of the journal's documents about the start of servers.
pub fn startup_keys(servers: &[Arc<dyn ToolServer>]) -> impl Iterator<Item = String> {
    servers.iter().filter_map(|server| Some(startup_key(&server.startup_key()?)))
}

/// Tells each server what an earlier host has stored about its start: the documents by key.
pub fn restore_startups(servers: &[Arc<dyn ToolServer>], startups: &BTreeMap<String, String>) {
    for server in servers {
        let stored = server.startup_key().and_then(|key| startups.get(&startup_key(&key)));
        stored.inspect(|stored| server.restore_startup(stored));
    }
}

/// Returns whether both are the same allocations.
fn are_same_listings(
    before: &[Option<Arc<ServerListing>>],
    now: &[Option<Arc<ServerListing>>],
) -> bool {
    let same = |(before, now): (&Option<Arc<ServerListing>>, &Option<Arc<ServerListing>>)| match (
        before, now,
    ) {
        (Some(before), Some(now)) => Arc::ptr_eq(before, now),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    before.len() == now.len() && before.iter().zip(now).all(same)
}

/// Returns the key of the journal's document about the start of a server.
fn startup_key(server: &str) -> String {
    format!("startup-{server}")
}

/// Returns the key of the journal's document with the last list of a server.
fn listing_key(server: &str) -> String {
    format!("server-{server}")
}
