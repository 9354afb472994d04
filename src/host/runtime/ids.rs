//! New unique ids, the seed of a turn, and a reserved name.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::journal::unix_ms;
use callsheet_values::types::{RunId, SessionId};

/// Returns a new run id: `run_` and 16 hex digits.
pub(super) fn run_id() -> RunId {
    RunId(format!("run_{:016x}", unique()).into())
}

/// Returns a new session id: `ses_` and 16 hex digits.
pub(super) fn session_id() -> Option<SessionId> {
    SessionId::parse(&format!("ses_{:016x}", unique())).ok()
}

/// The name of the agent and of the model of tool calls by hand (`call_by_hand`); not a valid name in a configuration
/// file. After a crash of the host no agent has it, so that the run is not continued.
pub const CALLER: &str = "(tools call)";

/// The beginning of the ids of the sessions of tool calls by hand (`call_by_hand`).
pub(super) const CALL_PREFIX: &str = "call_";

/// Returns a new id for the session of a tool call by hand: [`CALL_PREFIX`] and 16 hex digits.
pub(super) fn call_session_id() -> Option<SessionId> {
    SessionId::parse(&format!("{CALL_PREFIX}{:016x}", unique())).ok()
}

/// Returns the seed of a turn's random delays: the same number for the same turn in every process.
pub(super) fn turn_seed(session: &SessionId, turn: u32) -> u64 {
    // FNV-1a: the standard hasher may change between releases.
    let bytes = session.as_str().bytes().chain(turn.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Returns 64 bits from the system's randomness (the keys of the standard library's hasher), the time
/// and a counter.
fn unique() -> u64 {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(COUNTER.fetch_add(1, Ordering::Relaxed));
    hasher.write_u64(unix_ms());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_well_formed_and_unique() {
        let runs: BTreeSet<_> = (0..1000).map(|_| run_id().0).collect();
        assert_eq!(runs.len(), 1000);
        assert!(runs.iter().all(|id| id.len() == 20 && id.starts_with("run_")));
        assert_ne!(session_id().unwrap(), session_id().unwrap());
    }
}
