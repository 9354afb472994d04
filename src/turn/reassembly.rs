//! Outcomes in any order, released in call order.

use std::time::Duration;

use super::call::{CallPhase, TurnCall};
use crate::types::CallKey;

/// The release of a turn's results in call order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Reassembly {
    /// Every call below this place is released or has left the history.
    released: usize,
}

impl Reassembly {
    /// The next call in call order whose result may be known, with the time that it waited: every
    /// earlier call is released and it has its outcome.
    pub(super) fn next(
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
                | CallPhase::Ready
                | CallPhase::Duplicate { .. }
                | CallPhase::AwaitingPermit { .. }
                | CallPhase::Intended
                | CallPhase::AwaitingApproval { .. }
                | CallPhase::Running { .. }
                | CallPhase::Reported(_)
                | CallPhase::AwaitingReview { .. } => return None,
            }
        }
        None
    }

    /// Returns whether nothing is left to release.
    pub(super) fn is_done(&self, calls: &[TurnCall]) -> bool {
        calls.iter().skip(self.released).all(|call| call.phase == CallPhase::Dropped)
    }
}
