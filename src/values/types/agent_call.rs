//! Calls of agents as tools: child sessions, what a child may use, and what it has used.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{CallKey, RunId, Seq, SessionId};

/// The beginning of the id of a child session.
pub const CHILD_PREFIX: &str = "sub_";

/// The number of hexadecimal digits after [`CHILD_PREFIX`].
pub const CHILD_DIGITS: usize = 32;

/// The call that opened a child session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParentCall {
    /// The session that made the call.
    pub session: SessionId,
    /// The run that made it.
    pub run: RunId,
    /// The call.
    pub key: CallKey,
    /// The run at the root of the tree.
    pub root: RootRun,
    /// The names of the agents, from that of the topmost session down to that of the child session. It does not begin
    /// again at a run that a client starts in a child session, as `root` does.
    pub agent_path: Vec<Arc<str>>,
    /// The lowest `max_depth` of the agent tools on the path. The child is refused if [`depth`](Self::depth) exceeds
    /// it.
    pub max_depth: u32,
    /// The lowest `max_children` of the agent tools on the path: the maximum number of child sessions, at all levels,
    /// of the run `root`.
    pub max_children: u32,
}

impl ParentCall {
    /// Returns the number of calls between the topmost session and the child session.
    #[must_use]
    pub fn depth(&self) -> u32 {
        u32::try_from(self.agent_path.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }
}

/// The run at the root of a tree of child sessions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RootRun {
    /// Its session.
    pub session: SessionId,
    /// The run.
    pub run: RunId,
    /// The position of its first record.
    pub seq: Seq,
}

/// The share of a run's budget that the child of a call may use. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentLease {
    /// Tokens, input and output together.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tokens: Option<u64>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub calls: Option<u32>,
}

/// The child of a call, and what it and its own children have used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChildUse {
    /// The child session.
    pub session: SessionId,
    /// Its run.
    pub run: RunId,
    /// Tokens, input and output together.
    pub tokens: u64,
    /// Tool calls.
    pub calls: u32,
}

/// Returns the id of the child session of a call. The idempotency key of the call holds the run, whose id no other
/// run has, also if the parent's id is used again.
#[must_use]
pub fn child_session_id(parent: &SessionId, idempotency_key: &str) -> SessionId {
    let digest = Sha256::digest(format!("{parent}/{idempotency_key}"));
    let mut id = CHILD_PREFIX.to_owned();
    for byte in digest.iter().take(CHILD_DIGITS / 2) {
        // Writing to a `String` cannot fail.
        let _ = write!(id, "{byte:02x}");
    }
    SessionId(id.into())
}

/// Returns the id of the run that a call starts in its child session. `None` if the session is no child session.
#[must_use]
pub fn child_run_id(session: &SessionId) -> Option<RunId> {
    let digits = child_digits(session.as_str())?;
    Some(RunId(format!("run_{digits}").into()))
}

/// Returns whether the id is that of a child session. Only the host opens sessions with such ids.
#[must_use]
pub fn is_child_session(id: &SessionId) -> bool {
    child_digits(id.as_str()).is_some()
}

fn child_digits(id: &str) -> Option<&str> {
    let digits = id.strip_prefix(CHILD_PREFIX)?;
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (digits.len() == CHILD_DIGITS && digits.bytes().all(is_digit)).then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(id: &str) -> SessionId {
        SessionId::parse(id).unwrap()
    }

    #[test]
    fn the_id_of_a_child_follows_from_parent_run_and_call() {
        let child = child_session_id(&session("a"), "run_1/t1a1c0");
        assert_eq!(child, child_session_id(&session("a"), "run_1/t1a1c0"));
        assert_eq!(SessionId::parse(child.as_str()).as_ref(), Ok(&child));
        assert!(is_child_session(&child) && child.as_str().len() == 36);
        for (parent, key) in [("b", "run_1/t1a1c0"), ("a", "run_2/t1a1c0"), ("a", "run_1/t1a1c1")] {
            assert_ne!(child, child_session_id(&session(parent), key));
        }
        let run = child_run_id(&child).unwrap();
        assert_eq!(run.0.strip_prefix("run_"), child.as_str().strip_prefix("sub_"));
    }

    #[test]
    fn other_ids_are_those_of_no_child() {
        let long = format!("sub_{}", "0".repeat(33));
        let capital = format!("sub_{}", "A".repeat(32));
        for id in ["sub_", "sub_1", "support-7", &long, &capital] {
            assert!(
                !is_child_session(&session(id)) && child_run_id(&session(id)).is_none(),
                "{id}"
            );
        }
    }
}
