//! The clock of a turn: the time that it spends on the model, on tools, on approvals and on itself.
//!
//! Time in which the turn waits only for approvals (`people`) is not overhead and does not count
//! towards `run_timeout`. It does count towards the approval timeouts.

use std::time::Duration;

use crate::event::TurnTimes;

/// The sums of a turn's time by what it was spent on. Must be advanced before every change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct TurnClock {
    now: Duration,
    /// True while a request to the model is open.
    request_open: bool,
    /// Returns the number of running tools.
    running: u32,
    /// True while the turn waits only for approvals.
    waits_for_approval: bool,
    /// Returns the number of calls that wait for a permit of their tool.
    queued: u32,
    times: TurnTimes,
}

impl TurnClock {
    /// Adds the time since the last call. An older `now` adds nothing.
    pub(super) fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        let (model, tools) = (self.request_open, self.running > 0);
        let overhead = !model && !tools && !self.waits_for_approval && self.queued == 0;
        let times = &mut self.times;
        times.total = self.now;
        for (counts, sum) in [
            (model, &mut times.model),
            (tools, &mut times.tools),
            (model && tools, &mut times.overlap),
            (self.waits_for_approval, &mut times.people),
            (overhead, &mut times.overhead),
        ] {
            if counts {
                *sum += passed;
            }
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.now
    }

    pub(super) fn request_started(&mut self) {
        self.request_open = true;
    }

    /// Returns whether a request was open.
    pub(super) fn request_ended(&mut self) -> bool {
        std::mem::replace(&mut self.request_open, false)
    }

    /// Sets whether the turn waits only for approvals from now on.
    pub(super) fn set_waiting_for_approval(&mut self, waits: bool) {
        self.waits_for_approval = waits;
    }

    pub(super) fn is_waiting_for_approval(&self) -> bool {
        self.waits_for_approval
    }

    pub(super) fn tool_started(&mut self) {
        self.running += 1;
    }

    pub(super) fn tool_ended(&mut self, ran: Duration) {
        self.running = self.running.saturating_sub(1);
        self.add_tool_time(ran);
    }

    /// Adds the time of a tool that has ended.
    pub(super) fn add_tool_time(&mut self, ran: Duration) {
        self.times.tools_sum += ran;
        self.times.tools_longest = self.times.tools_longest.max(ran);
    }

    /// Starts the wait of a call for a permit of its tool. That time is not the turn's own.
    pub(super) fn call_queued(&mut self) {
        self.queued += 1;
    }

    pub(super) fn call_dequeued(&mut self) {
        self.queued = self.queued.saturating_sub(1);
    }

    /// Returns the number of calls that wait for a permit of their tool.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.queued as usize
    }

    /// Returns the number of running tools.
    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.running as usize
    }

    pub(super) fn times(&self) -> TurnTimes {
        self.times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_divided_by_what_it_was_spent_on() {
        let ms = Duration::from_millis;
        let mut clock = TurnClock::default();
        clock.request_started();
        clock.advance(ms(10));
        clock.tool_started();
        clock.advance(ms(30));
        clock.request_ended();
        clock.advance(ms(60));
        clock.tool_ended(ms(50));
        clock.advance(ms(61));
        // Waits for permits and for approvals are not overhead.
        clock.call_queued();
        clock.advance(ms(70));
        clock.call_dequeued();
        clock.set_waiting_for_approval(true);
        clock.advance(ms(90));
        clock.set_waiting_for_approval(false);
        let expected = TurnTimes {
            total: ms(90),
            model: ms(30),
            tools: ms(50),
            overlap: ms(20),
            people: ms(20),
            overhead: ms(1),
            tools_sum: ms(50),
            tools_longest: ms(50),
        };
        assert_eq!(clock.times(), expected);
    }
}
