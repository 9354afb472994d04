//! The clock of a turn: time for the model, for tools, for approvals and for waiting.

use std::time::Duration;

use crate::event::TurnTimes;

/// Adds up what the turn's time was spent on. Fed with `now` whenever something changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct TurnClock {
    now: Duration,
    model_open: bool,
    running: u32,
    /// People are all that the turn waits for.
    people: bool,
    /// Calls that wait for a place of their tool in the host.
    queued: u32,
    times: TurnTimes,
}

impl TurnClock {
    /// Time has passed. It never runs backwards: an older `now` adds nothing.
    pub(super) fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        let (model, tools) = (self.model_open, self.running > 0);
        let ours = !model && !tools && !self.people && self.queued == 0;
        let times = &mut self.times;
        times.total = self.now;
        for (counts, sum) in [
            (model, &mut times.model),
            (tools, &mut times.tools),
            (model && tools, &mut times.overlap),
            (self.people, &mut times.people),
            (ours, &mut times.overhead),
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
        self.model_open = true;
    }

    /// Returns whether it had been asked, and not yet answered.
    pub(super) fn request_ended(&mut self) -> bool {
        std::mem::replace(&mut self.model_open, false)
    }

    /// Says whether people are all that the turn waits for from now on.
    pub(super) fn set_waiting_for_approval(&mut self, people: bool) {
        self.people = people;
    }

    pub(super) fn is_waiting_for_approval(&self) -> bool {
        self.people
    }

    pub(super) fn tool_started(&mut self) {
        self.running += 1;
    }

    pub(super) fn tool_ended(&mut self, ran: Duration) {
        self.running = self.running.saturating_sub(1);
        self.add_tool_time(ran);
    }

    /// A tool ran before the turn was resumed.
    pub(super) fn add_tool_time(&mut self, ran: Duration) {
        self.times.tools_sum += ran;
        self.times.tools_longest = self.times.tools_longest.max(ran);
    }

    /// The turn waits only for permits that calls of other sessions hold.
    pub(super) fn call_queued(&mut self) {
        self.queued += 1;
    }

    pub(super) fn call_dequeued(&mut self) {
        self.queued = self.queued.saturating_sub(1);
    }

    /// The number of calls that wait for a permit of their tool.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.queued as usize
    }

    /// The number of running tools.
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
    fn time_is_split_by_what_was_going_on() {
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
        // Waiting for other sessions is not our doing, nor is waiting for people.
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
