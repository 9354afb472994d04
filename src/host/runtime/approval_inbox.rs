//! The open approvals and questions of all sessions of a host, awake or not, in the order of their age.
//!
//! A session keeps its own list up to date while it is awake ([`ApprovalInbox::set`]), from its records. It stays the
//! same while the session hibernates. When a host starts, the sessions with unfinished runs are read, and add theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use super::snapshot::PendingApproval;
use callsheet_values::types::{CallKey, Metadata, RunId, SessionId};

/// An approval, or a question of a tool, that waits for a person.
///
/// [`Host::open_approvals`](crate::runtime::Host::open_approvals) returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenApproval {
    /// The session whose call waits. A decision goes to this session.
    pub session: SessionId,
    /// The run of the call.
    pub run: RunId,
    /// The session at the root: the session itself, unless it is a child session.
    pub root_session: SessionId,
    /// The names of the agents, from that of the topmost session down to that of this one.
    pub agent_path: Vec<Arc<str>>,
    /// The pairs of strings of the run and its session.
    pub metadata: Metadata,
    /// The call or its result, or the question.
    pub approval: PendingApproval,
}

/// A query of the open approvals of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ApprovalQuery {
    /// Approvals of this agent, or of sub-agents below it.
    pub agent: Option<String>,
    /// Approvals of runs that have all of these pairs, or whose session at the root has them.
    pub metadata: Metadata,
    /// Approvals after this position.
    pub after: Option<ApprovalPosition>,
    /// Maximum number of approvals. 0 means no limit.
    pub limit: usize,
}

callsheet_values::impl_with!(ApprovalQuery);

/// The position of an open approval in the list of all: its time, session and call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApprovalPosition {
    asked_at: u64,
    session: SessionId,
    key: CallKey,
}

impl std::fmt::Display for ApprovalPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}", self.asked_at, self.session, self.key)
    }
}

impl std::str::FromStr for ApprovalPosition {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (asked_at, rest) = text.split_once('-').ok_or(())?;
        let (session, key) = rest.rsplit_once('-').ok_or(())?;
        Ok(Self {
            asked_at: asked_at.parse().map_err(drop)?,
            session: SessionId::parse(session).map_err(drop)?,
            key: key.parse().map_err(drop)?,
        })
    }
}

impl OpenApproval {
    /// Returns the session at the root, if it is another one.
    pub(super) fn root(&self) -> Option<&SessionId> {
        Some(&self.root_session).filter(|root| **root != self.session)
    }

    /// Returns its position in the list of all.
    #[must_use]
    pub fn position(&self) -> Option<ApprovalPosition> {
        let key = self.approval.tool_id.parse().ok()?;
        let (asked_at, session) = (self.approval.asked_at, self.session.clone());
        Some(ApprovalPosition { asked_at, session, key })
    }
}

/// The open approvals of all sessions.
#[derive(Debug, Default)]
pub(super) struct ApprovalInbox(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    in_order: BTreeMap<ApprovalPosition, Arc<OpenApproval>>,
    by_session: BTreeMap<SessionId, BTreeSet<ApprovalPosition>>,
    /// The number below each session at a root that is another session.
    of_children: BTreeMap<SessionId, usize>,
}

impl ApprovalInbox {
    /// Replaces the open approvals of a session.
    pub(super) fn set(&self, session: &SessionId, approvals: Vec<OpenApproval>) {
        let mut open = self.0.lock();
        for position in open.by_session.remove(session).unwrap_or_default() {
            let removed = open.in_order.remove(&position);
            let Some(root) = removed.as_ref().and_then(|removed| removed.root()) else { continue };
            if let Some(count) = open.of_children.get_mut(root) {
                *count -= 1;
                if *count == 0 {
                    open.of_children.remove(root);
                }
            }
        }
        for approval in approvals {
            let Some(position) = approval.position() else { continue };
            if let Some(root) = approval.root() {
                *open.of_children.entry(root.clone()).or_default() += 1;
            }
            let of_session = open.by_session.entry(session.clone()).or_default();
            of_session.insert(position.clone());
            open.in_order.insert(position, Arc::new(approval));
        }
    }

    /// Returns at most `limit` open approvals after a position, the oldest first: those that pass the filter.
    pub(super) fn page(
        &self,
        after: Option<&ApprovalPosition>,
        limit: usize,
        filter: impl Fn(&OpenApproval) -> bool,
    ) -> Vec<Arc<OpenApproval>> {
        let open = self.0.lock();
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.clone()));
        let rest = open.in_order.range((from, Bound::Unbounded)).map(|(_, approval)| approval);
        rest.filter(|approval| filter(approval)).take(limit).cloned().collect()
    }

    /// Returns the number of open approvals of a session, and of a session at the root with those of all its child
    /// sessions.
    pub(super) fn count_of(&self, session: &SessionId) -> usize {
        let open = self.0.lock();
        let own = open.by_session.get(session).map_or(0, BTreeSet::len);
        own + open.of_children.get(session).unwrap_or(&0)
    }

    /// Returns whether a session itself has open approvals.
    pub(super) fn has(&self, session: &SessionId) -> bool {
        self.0.lock().by_session.contains_key(session)
    }

    /// Returns the number of sessions with open approvals.
    pub(super) fn session_count(&self) -> usize {
        self.0.lock().by_session.len()
    }

    /// Returns at most `limit` sessions with open approvals, in the order of their ids.
    pub(super) fn sessions_after(&self, after: Option<&SessionId>, limit: usize) -> Vec<SessionId> {
        let open = self.0.lock();
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.clone()));
        let sessions = open.by_session.range((from, Bound::Unbounded));
        sessions.map(|(session, _)| session).take(limit).cloned().collect()
    }

    /// Returns the number of open approvals, and the time of the oldest: Unix time in milliseconds.
    pub(super) fn count_and_oldest(&self) -> (usize, Option<u64>) {
        let open = self.0.lock();
        let oldest = open.in_order.first_key_value().map(|(position, _)| position.asked_at);
        (open.in_order.len(), oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_is_written() {
        let session = SessionId::parse("a-b-1").unwrap();
        let position = ApprovalPosition { asked_at: 17, session, key: "t1a2c3".parse().unwrap() };
        assert_eq!(position.to_string(), "17-a-b-1-t1a2c3");
        assert_eq!(position.to_string().parse(), Ok(position));
        for wrong in ["", "17", "17-s", "x-s-t1a1c0", "17-s-c0"] {
            assert!(wrong.parse::<ApprovalPosition>().is_err(), "{wrong}");
        }
    }
}
