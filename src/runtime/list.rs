//! The sessions of a host in a list: what the journal knows, and which of them are awake.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::error::HostError;
use super::host_ref::HostRef;
use super::host_state::HostState;
use crate::journal::{JournalError, StoredSessionFilter, StoredSessionInfo};
use crate::record::Seq;
use crate::types::{SessionId, SessionState};

/// How many sessions are read from the journal at once.
const PAGE: usize = 1000;

/// Which sessions are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionQuery {
    /// Those behind this id.
    pub after: Option<SessionId>,
    /// At most so many; 0 is no limit.
    pub limit: usize,
    /// Those in this state.
    pub state: Option<SessionState>,
}

/// A session in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionSummary {
    /// Its id.
    pub id: SessionId,
    /// Its agent's name.
    pub agent: String,
    /// What it is doing.
    pub state: SessionState,
    /// The place of its last record.
    pub seq: Seq,
    /// When it was opened: Unix time in milliseconds.
    pub opened: u64,
    /// When its last record was appended: Unix time in milliseconds.
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
        // What a session does now is not known to the journal: it is asked for all.
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
        Some(live) if live.state.running.load(Ordering::Acquire) => SessionState::Running,
        Some(_) => SessionState::Idle,
        // Its run waits: for people, or to be resumed.
        None if state == SessionState::Running => SessionState::Running,
        None => SessionState::Hibernated,
    };
    SessionSummary { id, agent, state, seq, opened, touched }
}
