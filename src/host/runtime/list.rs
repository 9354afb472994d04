//! The list of a host's sessions: from the journal, with the state of those that are awake.

use std::sync::Arc;

use super::error::HostError;
use super::host_ref::{HostRef, HostState};
use crate::journal::{JournalError, SessionQuery, SessionSummary};
use callsheet_values::types::SessionState;

/// Minimum number of sessions of one read with a filter, because a small limit would need many reads.
const FILTERED_PAGE_MIN: usize = 256;

/// Maximum number of sessions of one read.
const PAGE_MAX: usize = 1000;

pub(super) async fn sessions(
    host_ref: &HostRef,
    query: SessionQuery,
) -> Result<Vec<SessionSummary>, HostError> {
    let shared = Arc::clone(&host_ref.shared);
    Ok(host_ref.read(move || matching(&shared, query)).await??)
}

fn matching(shared: &HostState, query: SessionQuery) -> Result<Vec<SessionSummary>, JournalError> {
    let mut after = query.after.clone();
    let SessionQuery { limit, .. } = query;
    let limit = if limit == 0 { usize::MAX } else { limit };
    let has_filter = query.state.is_some() || query.touched_before.is_some();
    let page_min = if has_filter { FILTERED_PAGE_MIN } else { 1 };
    let mut found = Vec::new();
    loop {
        // The journal filters only children, because it does not know which sessions are awake.
        let listing = SessionQuery {
            after,
            limit: limit.clamp(page_min, PAGE_MAX),
            children: query.children,
            ..SessionQuery::default()
        };
        let page = shared.journal.list(&listing)?;
        let is_last = page.len() < listing.limit;
        after = page.last().map(|stored| stored.id.clone());
        let summaries = page.into_iter().map(|stored| summary(shared, stored));
        found.extend(summaries.filter(|summary| query.matches(summary)).take(limit - found.len()));
        if is_last || found.len() >= limit {
            return Ok(found);
        }
    }
}

fn summary(shared: &HostState, stored: SessionSummary) -> SessionSummary {
    let state = match shared.index.awake(&stored.id) {
        Some(awake_session) => awake_session.activity.state(),
        // Its run or an input waits, or its deletion is unfinished.
        None if stored.state == SessionState::Running => SessionState::Running,
        None => SessionState::Hibernated,
    };
    SessionSummary { state, ..stored }
}
