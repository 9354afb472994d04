//! Meters: how much of a limit a run has used. A note tells the model once for each limit, after a turn with calls,
//! that half of it or more is used: `[callsheet: 5 of 10 turns are left]`.

use crate::turn::LimitHit;

/// The use of one limit of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LimitMeter {
    /// The limit's name in the configuration.
    limit: &'static str,
    /// The unit in the plural, for the note to the model.
    unit: &'static str,
    /// `None` means no limit.
    maximum: Option<u64>,
    used: u64,
    half_used_reported: bool,
}

impl LimitMeter {
    pub(super) fn new(limit: &'static str, unit: &'static str, maximum: Option<u64>) -> Self {
        Self { limit, unit, maximum, used: 0, half_used_reported: false }
    }

    pub(super) fn add(&mut self, used: u64) {
        self.used = self.used.saturating_add(used);
    }

    pub(super) fn subtract(&mut self, unused: u64) {
        self.used = self.used.saturating_sub(unused);
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn left(&self) -> Option<u64> {
        self.maximum.map(|maximum| maximum.saturating_sub(self.used))
    }

    /// Returns the limit if nothing is left. `action` names what is done about it.
    pub(super) fn used_up(&self, action: &'static str) -> Option<LimitHit> {
        let maximum = self.maximum.filter(|maximum| self.used >= *maximum)?;
        Some(LimitHit { limit: self.limit, value: self.used, maximum, action, note: None })
    }

    /// Returns the limit with a note to the model, the first time that half or more is used.
    pub(super) fn report_half_used(&mut self) -> Option<LimitHit> {
        let maximum = self.maximum.filter(|maximum| self.used >= maximum.div_ceil(2))?;
        if std::mem::replace(&mut self.half_used_reported, true) {
            return None;
        }
        let left = maximum.saturating_sub(self.used);
        let are = if left == 1 { "is" } else { "are" };
        let note = format!("[callsheet: {left} of {maximum} {} {are} left]", self.unit);
        let action = if left == 0 { "told" } else { "half_used" };
        let (limit, value) = (self.limit, self.used);
        Some(LimitHit { limit, value, maximum, action, note: Some(note) })
    }
}
