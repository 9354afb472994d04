//! The waits between readings of a list of tools that changes (`tools/list_changed`): 1 s, doubled up to 60 s while the
//! list stays the same.

use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The readings of a list that showed no change, although the server had reported one. A server that reports a change
/// after each reading would otherwise be asked without end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ListPause {
    unchanged: u32,
}

impl ListPause {
    /// Handles a reading. `quiet` is the time without a report between the last wait and this reading. Returns the wait
    /// before the next reading: twice the last one while the list does not change.
    pub(super) fn handle_list(&mut self, quiet: Duration, has_changed: bool) -> Duration {
        if has_changed || quiet >= LONGEST_PAUSE {
            self.unchanged = 0;
        }
        let factor = 1_u32.checked_shl(self.unchanged).unwrap_or(u32::MAX);
        self.unchanged = self.unchanged.saturating_add(1);
        FIRST_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_the_list_changes_or_is_quiet() {
        let mut pause = ListPause::default();
        let mut seconds = |quiet: u64, has_changed: bool| {
            pause.handle_list(Duration::from_secs(quiet), has_changed).as_secs()
        };
        let waits: Vec<u64> = (0..100).map(|_| seconds(0, false)).collect();
        assert_eq!(waits[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(waits[99], 60);
        assert_eq!([seconds(0, true), seconds(0, false), seconds(59, false)], [1, 2, 4]);
        assert_eq!([seconds(60, false), seconds(0, false)], [1, 2]);
    }
}
