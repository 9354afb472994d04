//! New unique ids.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::journal::unix_ms;
use crate::types::{RunId, SessionId};

/// A name for a run: `run_` and 16 hex digits.
pub(super) fn run_id() -> RunId {
    RunId(format!("run_{:016x}", unique()).into())
}

/// A name for a session whose opener gave none.
pub(super) fn session_id() -> Option<SessionId> {
    SessionId::parse(&format!("ses_{:016x}", unique())).ok()
}

/// The same number for the same parts, in this process and in any other.
pub(super) fn spread(session: &SessionId, turn: u32) -> u64 {
    // FNV-1a: the standard hasher may change between releases.
    let bytes = session.as_str().bytes().chain(turn.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// 64 bits from the keys that the standard library takes from the system's randomness, the time
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
    fn names_are_well_formed_and_differ() {
        let runs: BTreeSet<_> = (0..1000).map(|_| run_id().0).collect();
        assert_eq!(runs.len(), 1000);
        assert!(runs.iter().all(|id| id.len() == 20 && id.starts_with("run_")));
        assert_ne!(session_id().unwrap(), session_id().unwrap());
    }
}
