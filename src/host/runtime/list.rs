//! The list of a host's sessions: from the journal, with the state of those that are awake. Also the list of open
//! approvals, selected by metadata that the journal has.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::approval_inbox::{ApprovalQuery, OpenApproval};
use super::error::HostError;
use super::host_ref::{HostRef, HostState};
use super::index::AwakeSession;
use crate::journal::{JournalError, Owner, SessionOrder, SessionQuery, SessionSummary};
use callsheet_values::types::{SessionId, SessionState};

/// Minimum number of sessions of one read of which some are left out, because a small limit would need many reads.
const FILTERED_PAGE_MIN: usize = 256;

/// Maximum number of sessions of one read.
const PAGE_MAX: usize = 1000;

pub(super) async fn sessions(
    host_ref: &HostRef,
    query: SessionQuery,
) -> Result<Vec<SessionSummary>, HostError> {
    let mut found = matching(&host_ref.shared, query).await?;
    add_hosts(&host_ref.shared, &mut found).await?;
    Ok(found)
}

/// Returns the sessions with these ids, which other hosts have in memory in this state. Leaves out those that are deleted
/// meanwhile.
pub(super) async fn sessions_elsewhere(
    host_ref: &HostRef,
    ids: Vec<SessionId>,
    state: SessionState,
) -> Result<Vec<SessionSummary>, HostError> {
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        found.extend(host_ref.shared.journal.find(&id).await?);
    }
    add_hosts(&host_ref.shared, &mut found).await?;
    found.iter_mut().for_each(|session| session.state = state);
    Ok(found)
}

/// Adds the hosts that have sessions, if several hosts have the same journal. What another host has is in its memory.
async fn add_hosts(shared: &HostState, found: &mut [SessionSummary]) -> Result<(), JournalError> {
    let Some(ownership) = shared.journal.ownership().filter(|_| !found.is_empty()) else {
        return Ok(());
    };
    let ids: Vec<SessionId> = found.iter().map(|session| session.id.clone()).collect();
    for (session, owner) in found.iter_mut().zip(ownership.owners(&ids).await?) {
        match owner {
            Some(Owner::This) => session.host.clone_from(&shared.advertise),
            Some(Owner::Other(other)) => {
                if session.state == SessionState::Hibernated {
                    session.state = SessionState::Idle;
                }
                session.host = other.address;
            }
            None => {}
        }
    }
    Ok(())
}

async fn matching(
    shared: &HostState,
    query: SessionQuery,
) -> Result<Vec<SessionSummary>, JournalError> {
    let limit = if query.limit == 0 { usize::MAX } else { query.limit };
    let (stored_state, page_min) = match query.state {
        None => (None, 1),
        Some(SessionState::Waiting) => return waiting(shared, &query).await,
        Some(SessionState::Idle) => return awake_and_idle(shared, &query).await,
        // The journal may know the end of a run a moment later than the session.
        Some(SessionState::Running) => (Some(SessionState::Running), 1),
        // Some of those without a run are awake.
        Some(SessionState::Hibernated) => (Some(SessionState::Idle), FILTERED_PAGE_MIN),
    };
    let mut listing = SessionQuery {
        state: stored_state,
        limit: limit.clamp(page_min, PAGE_MAX),
        ..query.clone()
    };
    let mut found = Vec::new();
    loop {
        let page = shared.journal.list(&listing).await?;
        let is_last = page.len() < listing.limit;
        if let Some(last) = page.last() {
            listing.continue_after(last);
        }
        let mut summaries: Vec<_> =
            page.into_iter().map(|stored| summary(shared, stored)).collect();
        if query.state == Some(SessionState::Hibernated) {
            // Without those that other hosts have in memory.
            add_hosts(shared, &mut summaries).await?;
        }
        summaries.retain(|summary| query.matches(summary));
        found.extend(summaries.into_iter().take(limit - found.len()));
        if is_last || found.len() >= limit {
            return Ok(found);
        }
    }
}

/// Returns sessions that are awake without a run. They are in memory, so the journal is asked for each of the page.
async fn awake_and_idle(
    shared: &HostState,
    query: &SessionQuery,
) -> Result<Vec<SessionSummary>, JournalError> {
    let limit = if query.limit == 0 { usize::MAX } else { query.limit };
    // In the order of the ids.
    let mut awake = shared.index.all_awake();
    awake.retain(|(_, session)| session.activity.state() == SessionState::Idle);
    match query.order {
        SessionOrder::Id => {
            awake.retain(|(id, _)| query.after.as_ref().is_none_or(|after| id > after));
        }
        SessionOrder::Newest => {
            let mut numbered = Vec::with_capacity(awake.len());
            for (id, session) in awake {
                let number = number(shared, &id, &session).await?;
                let is_after = query.after_number.zip(query.after.as_ref());
                if is_after.is_none_or(|(last, after)| (number, &id) < (last, after)) {
                    numbered.push((number, id, session));
                }
            }
            numbered.sort_by(|(a, a_id, _), (b, b_id, _)| (b, b_id).cmp(&(a, a_id)));
            awake = numbered.into_iter().map(|(_, id, session)| (id, session)).collect();
        }
    }
    let mut found = Vec::new();
    for (id, _) in awake {
        if found.len() >= limit {
            break;
        }
        // A session whose first record is not stored yet is not listed.
        let stored = shared.journal.find(&id).await?.map(|stored| summary(shared, stored));
        found.extend(stored.filter(|summary| query.matches(summary)));
    }
    Ok(found)
}

/// Returns the number of an awake session, which is read once. 0 if it is not stored yet.
async fn number(
    shared: &HostState,
    id: &SessionId,
    session: &AwakeSession,
) -> Result<u64, JournalError> {
    let known = &session.activity.number;
    if let Some(number) = known.get() {
        return Ok(*number);
    }
    let Some(stored) = shared.journal.find(id).await? else { return Ok(0) };
    Ok(*known.get_or_init(|| stored.number))
}

/// Returns the sessions of which approvals are open. The journal does not know them.
async fn waiting(
    shared: &HostState,
    query: &SessionQuery,
) -> Result<Vec<SessionSummary>, JournalError> {
    let limit = if query.limit == 0 { usize::MAX } else { query.limit };
    let is_by_id = query.order == SessionOrder::Id;
    let (mut found, mut after) = (Vec::new(), query.after.clone().filter(|_| is_by_id));
    while found.len() < limit || !is_by_id {
        let ids = shared.approval_inbox.sessions_after(after.as_ref(), PAGE_MAX);
        let Some(last) = ids.last().cloned() else { break };
        after = Some(last);
        for id in ids {
            if is_by_id && found.len() == limit {
                break;
            }
            let stored = shared.journal.find(&id).await?.map(|stored| summary(shared, stored));
            found.extend(stored.filter(|summary| query.matches(summary)));
        }
    }
    Ok(if is_by_id { found } else { query.select(found) })
}

fn summary(shared: &HostState, stored: SessionSummary) -> SessionSummary {
    let state = match shared.index.awake(&stored.id) {
        Some(awake_session) => awake_session.activity.state(),
        // Its run or an input waits, or its deletion is unfinished.
        None if stored.state == SessionState::Running => SessionState::Running,
        None => SessionState::Hibernated,
    };
    let state = shared.with_wait(&stored.id, state);
    let approvals_open = shared.approval_inbox.count_of(&stored.id);
    SessionSummary { state, approvals_open, ..stored }
}

/// Number of open approvals of one read with a filter by metadata.
const FILTERED_PAGE: usize = 256;

/// Returns the open approvals that match a query, the oldest first.
pub(super) async fn open_approvals(
    shared: &HostState,
    query: &ApprovalQuery,
    filter: impl Fn(&OpenApproval) -> bool + Sync,
) -> Result<Vec<Arc<OpenApproval>>, JournalError> {
    let ApprovalQuery { agent, metadata, after, limit } = query;
    let limit = if *limit == 0 { usize::MAX } else { *limit };
    let inbox = &shared.approval_inbox;
    let is_selected = |open: &OpenApproval| {
        let is_of = |agent: &String| open.agent_path.iter().any(|name| **name == **agent);
        agent.as_ref().is_none_or(is_of) && filter(open)
    };
    if metadata.is_empty() {
        return Ok(inbox.page(after.as_ref(), limit, is_selected));
    }
    let (mut found, mut after) = (Vec::new(), after.clone());
    // A run of a child session does not have the metadata of the session at the root.
    let mut roots = BTreeMap::new();
    while found.len() < limit {
        let page = inbox.page(after.as_ref(), FILTERED_PAGE, is_selected);
        let Some(last) = page.last() else { break };
        after = last.position();
        for approval in page {
            let mut matches = approval.metadata.includes(metadata);
            if let Some(root) = approval.root().filter(|_| !matches) {
                matches = match roots.entry(root.clone()) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(unknown) => {
                        let stored = shared.journal.find(root).await?;
                        let has = stored.is_some_and(|root| root.metadata.includes(metadata));
                        *unknown.insert(has)
                    }
                };
            }
            if matches && found.len() < limit {
                found.push(approval);
            }
        }
    }
    Ok(found)
}
