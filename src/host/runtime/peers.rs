//! The other hosts with the same journal: which of them has a session, and requests to them.
//!
//! A request between hosts is one of the HTTP API. It names the host that it is for ([`HOST_HEADER`]), which never passes
//! it on: a request takes one hop at most. The token of all hosts is its bearer token, and the client whose request was
//! passed on is in [`CALLER_HEADER`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method};
use parking_lot::Mutex;
use reqwest::redirect::Policy;
use tokio::time::Instant;

use super::Host;
use super::error::HostError;
use super::ids;
use crate::journal::{HostInfo, Journal, OtherHost, Owner};
use callsheet_values::config::{ApiKey, Config};
use callsheet_values::types::SessionId;

/// The header with the id of the host that a request between hosts is for, and of the host that answers it.
pub const HOST_HEADER: &str = "callsheet-host";

/// The header with the name, the scope and the agents of the token of the client whose request was passed on, as JSON.
/// Without it the client may do everything.
pub const CALLER_HEADER: &str = "callsheet-caller";

/// The header of an answer between hosts with the code of an error.
pub const REFUSAL_HEADER: &str = "callsheet-refusal";

/// Time limit for the connection to another host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The age of what this host knows of the others when it waits for one of them.
const LIFE_AGE_MAX: Duration = Duration::from_millis(900);

/// Servers close idle connections after 10 s.
const POOL_IDLE_MAX: Duration = Duration::from_secs(5);

/// The time after the end of a dead host's lease in which another one has its sessions.
const TAKEOVER_TIME: Duration = Duration::from_secs(5);

/// The client for requests to the other hosts with the same journal.
#[derive(Debug)]
pub struct Peers {
    client: reqwest::Client,
    authorization: HeaderValue,
    patience: Duration,
    journal: Arc<dyn Journal>,
    known: Mutex<KnownHosts>,
}

/// The other hosts, as the journal had them last. It cannot be read any more at the end of a shutdown.
#[derive(Debug, Default)]
struct KnownHosts {
    hosts: Vec<OtherHost>,
    read_at: Option<Instant>,
}

/// A request to another host that was not answered.
///
/// [`Peers::send`] returns it.
#[derive(Debug, thiserror::Error)]
#[error("the host at {address} does not answer: {source}")]
pub struct PeerError {
    address: String,
    source: reqwest::Error,
}

impl PeerError {
    /// Returns whether the other host may have received the request.
    #[must_use]
    pub fn was_sent(&self) -> bool {
        !self.source.is_connect() && !self.source.is_builder()
    }
}

/// A request to another host.
#[derive(Clone, Debug)]
pub struct PeerRequest {
    /// The method.
    pub method: Method,
    /// The path and the query, from the root of the API on: `/v1/sessions/a`.
    pub path: String,
    /// The headers of the client that are passed on.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl PeerRequest {
    /// Creates a request without headers and body.
    #[must_use]
    pub fn get(path: String) -> Self {
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        Self { method: Method::GET, path, headers, body }
    }
}

impl Peers {
    /// Returns how this host reaches the others with its journal, if there can be others and the configuration has their
    /// token.
    pub(super) fn new(
        config: &Config,
        journal: &Arc<dyn Journal>,
    ) -> Result<Option<Self>, HostError> {
        let has_owners = journal.ownership().is_some();
        let Some(token) = config.host.peer_token.as_ref().filter(|_| has_owners) else {
            return Ok(None);
        };
        // Hosts are reached without a proxy.
        let settings = reqwest::Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(POOL_IDLE_MAX)
            .tcp_keepalive(CONNECT_TIMEOUT);
        let invalid = |error: &dyn std::error::Error| {
            HostError::Config(format!("host.peer_token_env: {error}"))
        };
        let client = callsheet_tools::tls::client(settings).map_err(|error| invalid(&error))?;
        Ok(Some(Self {
            client,
            authorization: bearer(token).map_err(|error| invalid(&error))?,
            patience: config.journal.lease + TAKEOVER_TIME,
            journal: Arc::clone(journal),
            known: Mutex::default(),
        }))
    }

    /// Returns the time for which requests wait for a host that has their session: longer than the lease of a dead one.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Returns the other hosts that can be reached, as they were known at most `age_max` ago, or last.
    pub(super) async fn hosts(&self, age_max: Duration) -> Vec<OtherHost> {
        let is_known = self.known.lock().read_at.is_some_and(|at| at.elapsed() <= age_max);
        if !is_known
            && let Some(ownership) = self.journal.ownership()
            && let Ok(hosts) = ownership.hosts().await
        {
            let others = hosts.into_iter().filter(|host| !host.is_this && host.address.is_some());
            let others = others.map(|HostInfo { id, address, .. }| OtherHost { id, address });
            let (hosts, read_at) = (others.collect(), Some(Instant::now()));
            *self.known.lock() = KnownHosts { hosts, read_at };
        }
        self.known.lock().hosts.clone()
    }

    /// Sends a request to another host.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn send(
        &self,
        to: &OtherHost,
        request: PeerRequest,
    ) -> Result<reqwest::Response, PeerError> {
        let address = to.address.as_deref().unwrap_or_default();
        let PeerRequest { method, path, headers, body } = request;
        let sent = self
            .client
            .request(method, format!("{address}{path}"))
            .headers(headers)
            .header(AUTHORIZATION, self.authorization.clone())
            .header(HOST_HEADER, to.id.as_str())
            .body(body);
        sent.send().await.map_err(|source| PeerError {
            address: address.to_owned(),
            source: source.without_url(),
        })
    }
}

fn bearer(token: &ApiKey) -> Result<HeaderValue, http::header::InvalidHeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.reveal()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The host that answers a request about a session.
///
/// [`Host::session_place`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionPlace {
    /// This host.
    Here,
    /// Another host: it has the session, or this one shuts down.
    At(OtherHost),
}

impl Host {
    /// Returns the id of this host among those with the same journal: another one at each start.
    #[must_use]
    pub fn id(&self) -> &str {
        let shared = self.shared();
        shared.journal.ownership().map_or(&shared.host_id, |ownership| ownership.host_id())
    }

    /// Returns how this host reaches the others with the same journal. `None`: it is alone, or has no token for them.
    #[must_use]
    pub fn peers(&self) -> Option<&Peers> {
        self.shared().peers.as_ref()
    }

    /// Returns the hosts with the same journal that live, this one among them.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub async fn hosts(&self) -> Result<Vec<HostInfo>, HostError> {
        let shared = self.shared();
        match shared.journal.ownership() {
            Some(ownership) => Ok(ownership.hosts().await?),
            None => {
                let sessions = shared.gauges.awake.count() as u64;
                Ok(vec![HostInfo { sessions, ..HostInfo::this(&shared.host_id) }])
            }
        }
    }

    /// Returns the other hosts with the same journal that live and can be reached: those that were known last, if the
    /// journal cannot be read.
    pub async fn other_hosts(&self) -> Vec<OtherHost> {
        match self.peers() {
            Some(peers) => peers.hosts(Duration::ZERO).await,
            None => Vec::new(),
        }
    }

    /// Returns whether another host lives, as this one knew within the last second.
    pub async fn is_living(&self, host: &OtherHost) -> bool {
        let Some(peers) = self.peers() else { return false };
        peers.hosts(LIFE_AGE_MAX).await.iter().any(|other| other.id == host.id)
    }

    /// Returns the host that answers a request about a session: the one that has it, or this one. While this host shuts
    /// down, one of the others: which of them, `attempt` tells.
    pub async fn session_place(&self, id: &SessionId, attempt: usize) -> SessionPlace {
        let shared = self.shared();
        let Some(ownership) = shared.journal.ownership() else { return SessionPlace::Here };
        if shared.index.awake(id).is_some() {
            return SessionPlace::Here;
        }
        // A request for which the owner cannot be read is answered here, with that error.
        let owners = ownership.owners(std::slice::from_ref(id)).await.unwrap_or_default();
        match owners.into_iter().next().flatten() {
            Some(Owner::Other(other)) => SessionPlace::At(other),
            Some(Owner::This) | None => self.place_of_new(attempt).await,
        }
    }

    /// Returns the number of the actor that has a session in memory, if it is awake.
    #[must_use]
    pub fn session_actor(&self, id: &SessionId) -> Option<u64> {
        self.shared().index.awake(id).map(|session| session.actor.get_id().pid())
    }

    /// Returns whether what an actor had in memory of a session may be old: the session has another actor now, or none, or
    /// this host has not shown in time that it lives. Another host may have gone on meanwhile.
    #[must_use]
    pub fn may_have_lost(&self, id: &SessionId, actor: u64) -> bool {
        let ownership = self.shared().journal.ownership();
        self.session_actor(id) != Some(actor)
            || ownership.is_some_and(|ownership| !ownership.is_in_use(id))
    }

    /// Returns the host that answers a request for a session that no host has: this one, or another one while this one
    /// shuts down.
    pub async fn place_of_new(&self, attempt: usize) -> SessionPlace {
        if !self.shared().is_shutting_down() {
            return SessionPlace::Here;
        }
        let mut others = self.other_hosts().await;
        match others.len() {
            0 => SessionPlace::Here,
            count => SessionPlace::At(others.swap_remove(attempt % count)),
        }
    }

    /// Returns a key for a request that a client has sent without one: after a loss of its answer it can be repeated.
    #[must_use]
    pub fn request_key(&self) -> String {
        format!("callsheet-{}", ids::run_id().0)
    }
}
