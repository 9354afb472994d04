//! The list of a host's sessions: from the journal, with the state of those that are awake.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::error::HostError;
use super::host_ref::HostRef;
use super::host_state::HostState;
use crate::journal::{JournalError, StoredSessionFilter, StoredSessionInfo};
use crate::record::Seq;
use crate::types::{SessionId, SessionState};

/// The number of sessions of one read.
const PAGE: usize = 1000;

/// A filter of sessions.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// use callsheet::SessionQuery;
///
/// for id in ["a", "b", "c"] {
///     host.open_session(id).await?;
/// }
/// let query = SessionQuery::default().with(|new| new.limit = 2);
/// let sessions = host.sessions(query).await?;
/// let ids: Vec<&str> = sessions.iter().map(|session| session.id.as_str()).collect();
/// assert_eq!(ids, ["a", "b"]);
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionQuery {
    /// Only sessions after this id.
    pub after: Option<SessionId>,
    /// The largest number of sessions; 0 means no limit.
    pub limit: usize,
    /// Only sessions in this state.
    pub state: Option<SessionState>,
}

/// A session in a list.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// host.open_session("demo").await?;
/// let sessions = host.sessions(Default::default()).await?;
/// assert_eq!((sessions[0].agent.as_str(), sessions[0].state.as_str()), ("default", "idle"));
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SessionSummary {
    /// Its id.
    pub id: SessionId,
    /// Its agent's name.
    pub agent: String,
    /// Its state.
    pub state: SessionState,
    /// The position of its last record.
    pub seq: Seq,
    /// The time of its opening: Unix time in milliseconds.
    pub opened: u64,
    /// The time of its last record: Unix time in milliseconds.
    pub touched: u64,
}

pub(super) async fn sessions(
    link: &HostRef,
    query: SessionQuery,
) -> Result<Vec<SessionSummary>, HostError> {
    let shared = Arc::clone(&link.shared);
    Ok(link.read(move || matching(&shared, query)).await??)
}

fn matching(shared: &HostState, query: SessionQuery) -> Result<Vec<SessionSummary>, JournalError> {
    let SessionQuery { mut after, limit, state } = query;
    let limit = if limit == 0 { usize::MAX } else { limit };
    let mut found = Vec::new();
    loop {
        // The state is not filtered in the journal, because the journal's state may be out of date.
        let listing =
            StoredSessionFilter { after, limit: PAGE.min(limit), ..StoredSessionFilter::default() };
        let page = shared.journal.list(&listing)?;
        let is_last = page.len() < listing.limit;
        after = page.last().map(|stored| stored.id.clone());
        let summaries = page.into_iter().map(|stored| summary(shared, stored));
        found.extend(
            summaries
                .filter(|summary| state.is_none_or(|state| summary.state == state))
                .take(limit - found.len()),
        );
        if is_last || found.len() >= limit {
            return Ok(found);
        }
    }
}

fn summary(shared: &HostState, stored: StoredSessionInfo) -> SessionSummary {
    let StoredSessionInfo { id, agent, state, seq, opened, touched } = stored;
    let state = match shared.awake(&id) {
        Some(live) if live.activity.running.load(Ordering::Acquire) => SessionState::Running,
        Some(_) => SessionState::Idle,
        // Its run waits for an approval or to be resumed.
        None if state == SessionState::Running => SessionState::Running,
        None => SessionState::Hibernated,
    };
    SessionSummary { id, agent, state, seq, opened, touched }
}
