//! Reassembly of results: calls end in any order, and their results are released in call order.

use std::time::Duration;

use super::call::{CallPhase, TurnCall};
use crate::types::CallKey;

/// The release of a turn's results in call order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Reassembly {
    /// Every call before this index is released or dropped.
    released: usize,
}

impl Reassembly {
    /// Releases the next call in call order, if it has ended. Returns its key and the time between
    /// its end and its release.
    pub(super) fn release_next(
        &mut self,
        calls: &[TurnCall],
        now: Duration,
    ) -> Option<(CallKey, Duration)> {
        while let Some(call) = calls.get(self.released) {
            match &call.phase {
                CallPhase::Dropped => self.released += 1,
                CallPhase::Ended { at, .. } => {
                    self.released += 1;
                    return Some((call.key(), now.saturating_sub(*at)));
                }
                CallPhase::Open
                | CallPhase::Sealed
                | CallPhase::AwaitingReferences
                | CallPhase::AwaitingHooks
                | CallPhase::AwaitingResultHooks { .. }
                | CallPhase::Ready
                | CallPhase::Duplicate { .. }
                | CallPhase::AwaitingPermit { .. }
                | CallPhase::Intended
                | CallPhase::AwaitingApproval { .. }
                | CallPhase::AwaitingClient { .. }
                | CallPhase::Running { .. }
                | CallPhase::Reported(_)
                | CallPhase::AwaitingReview { .. } => return None,
            }
        }
        None
    }

    /// Returns whether nothing is left to release.
    pub(super) fn is_done(&self, calls: &[TurnCall]) -> bool {
        calls.iter().skip(self.released).all(|call| matches!(call.phase, CallPhase::Dropped))
    }
}
