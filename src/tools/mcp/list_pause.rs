//! The waits between readings of a list of tools that changes (`tools/list_changed`): 1 s, doubled up to 60 s while
//! the list stays the same. After 60 s without a report the wait is 1 s again.

use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The length of the next wait. It grows, because a server may report a change after each reading although its list
/// stays the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ListPause {
    doublings: u32,
}

impl ListPause {
    /// Handles a reading. `quiet` is the time without a report between the last wait and this reading. Returns the
    /// wait before the next reading: [`FIRST_PAUSE`] after a change or a long quiet, else twice the last one up to
    /// the limit.
    pub(super) fn handle_list(&mut self, quiet: Duration, has_changed: bool) -> Duration {
        if has_changed || quiet >= LONGEST_PAUSE {
            self.doublings = 0;
        }
        let factor = 1_u32.checked_shl(self.doublings).unwrap_or(u32::MAX);
        self.doublings = self.doublings.saturating_add(1);
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
