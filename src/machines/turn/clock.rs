//! The clock of a turn: the time that it spends on the model, on tools, on people, on waits and on itself.
//! These parts add up to the turn's time and the overlap of model and tools.
//!
//! Time in which the turn waits only for people (`people`: approvals, answers to questions, results of clients,
//! children that wait only for these) is not overhead and does not count towards `run_timeout`. It does count
//! towards the approval timeouts. `session::runs` adds up the times of a run.

use std::time::Duration;

use callsheet_values::event::TurnTimes;

/// The sums of a turn's time by what it was spent on. Must be advanced before every change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct TurnClock {
    now: Duration,
    /// True while a request to the model is open, or about to be sent.
    request_open: bool,
    /// The time of the last request, until it is known when it was sent.
    requested_at: Option<Duration>,
    /// The number of running tools, without those that wait for people.
    running: u32,
    /// True while the turn waits only for people.
    waits_for_people: bool,
    /// The number of waits that are not overhead: of calls for a permit of their tool or for hooks, and of the turn
    /// for hooks.
    waiting: u32,
    times: TurnTimes,
}

impl TurnClock {
    /// Adds the time since the last call. An older `now` adds nothing.
    pub(super) fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        let (model, tools) = (self.request_open, self.running > 0);
        let is_idle = !model && !tools && !self.waits_for_people;
        let (waits, overhead) = (is_idle && self.waiting > 0, is_idle && self.waiting == 0);
        let times = &mut self.times;
        times.total = self.now;
        for (counts, sum) in [
            (model, &mut times.model),
            (tools, &mut times.tools),
            (model && tools, &mut times.overlap),
            (self.waits_for_people, &mut times.people),
            (waits, &mut times.waits),
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
        self.requested_at = Some(self.now);
    }

    /// Notes that the request was sent at this time, after it had waited for the delay of a retry or for a
    /// permit of its model. The time before that is no time of the model.
    pub(super) fn request_sent(&mut self, at: Duration, waited: Duration) {
        let Some(requested_at) = self.requested_at.take() else { return };
        let before = at.min(self.now).saturating_sub(requested_at);
        let waited = waited.min(before);
        self.times.model = self.times.model.saturating_sub(before);
        self.times.waits += waited;
        self.times.overhead += before - waited;
    }

    /// Ends the time of the request. Returns whether a request was open. `waited` counts only if it is not known when
    /// the request was sent: the time for which it has waited, or [`Duration::MAX`] for all of its time.
    pub(super) fn request_ended(&mut self, waited: Duration) -> bool {
        if let Some(requested_at) = self.requested_at {
            self.request_sent(requested_at.saturating_add(waited), waited);
        }
        std::mem::replace(&mut self.request_open, false)
    }

    /// Sets whether the turn waits only for people from now on.
    pub(super) fn set_waiting_for_people(&mut self, waits: bool) {
        self.waits_for_people = waits;
    }

    pub(super) fn is_waiting_for_people(&self) -> bool {
        self.waits_for_people
    }

    pub(super) fn tool_started(&mut self) {
        self.running += 1;
    }

    /// Notes that a running tool waits for people.
    pub(super) fn tool_paused(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    pub(super) fn tool_resumed(&mut self) {
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

    /// Starts a wait for a permit of a tool or for hooks.
    pub(super) fn wait_started(&mut self) {
        self.waiting += 1;
    }

    pub(super) fn wait_ended(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// Returns the number of waits for permits of tools and for hooks.
    #[cfg(any(test, feature = "fixtures"))]
    pub(super) fn waiting(&self) -> usize {
        self.waiting as usize
    }

    /// Returns the number of running tools.
    #[cfg(any(test, feature = "fixtures"))]
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
        // It waited for its model from 1 to 4, and was sent at 5.
        clock.request_sent(ms(5), ms(3));
        clock.tool_started();
        clock.advance(ms(30));
        clock.request_ended(Duration::ZERO);
        clock.advance(ms(60));
        clock.tool_ended(ms(50));
        clock.advance(ms(61));
        // Waits for permits and for approvals are not overhead.
        clock.wait_started();
        clock.advance(ms(70));
        clock.wait_ended();
        clock.set_waiting_for_people(true);
        clock.advance(ms(90));
        clock.set_waiting_for_people(false);
        let expected = TurnTimes {
            total: ms(90),
            model: ms(25),
            tools: ms(50),
            overlap: ms(20),
            people: ms(20),
            waits: ms(12),
            overhead: ms(3),
            tools_sum: ms(50),
            tools_longest: ms(50),
        };
        assert_eq!(clock.times(), expected);
        let TurnTimes { total, model, tools, overlap, people, waits, overhead, .. } = expected;
        assert_eq!(model + tools + people + waits + overhead, total + overlap);
    }
}
