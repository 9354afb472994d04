//! Waits of running calls for people: for the answer to a question ([`question`](super::question)), or for a
//! child that itself only waits for people ([`agent_calls`](super::agent_calls)).
//!
//! While a call waits, the timeout of its tool is paused, and the time does not count as time of the tool. If the
//! turn waits only for people (`Turn::waits_for_people`), `run_timeout` is paused too.

use std::time::Duration;

use super::Turn;

/// The wait of a running call for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PeopleWait {
    reason: PeopleWaitReason,
    since: Duration,
    /// The time that is left to the tool.
    time_left: Option<Duration>,
}

/// The reason of the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PeopleWaitReason {
    /// The answer to the question of its tool, which expires at this time.
    Answer { until: Option<Duration> },
    /// The end of the wait of its child.
    Child,
}

impl PeopleWait {
    /// Starts the wait of a call whose tool has this deadline.
    pub(super) fn new(now: Duration, reason: PeopleWaitReason, deadline: Option<Duration>) -> Self {
        let time_left = deadline.map(|deadline| deadline.saturating_sub(now));
        Self { reason, since: now, time_left }
    }

    /// Returns the time for which the call has waited.
    pub(super) fn waited(self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    /// Returns the deadline of the tool if the wait ends now.
    pub(super) fn deadline(self, now: Duration) -> Option<Duration> {
        self.time_left.and_then(|left| now.checked_add(left))
    }

    /// Returns whether a question is open.
    pub(super) fn is_for_answer(self) -> bool {
        matches!(self.reason, PeopleWaitReason::Answer { .. })
    }

    /// Returns the time at which the open question expires.
    pub(super) fn expires_at(self) -> Option<Duration> {
        match self.reason {
            PeopleWaitReason::Answer { until } => until,
            PeopleWaitReason::Child => None,
        }
    }
}

impl Turn {
    /// Stops the clock of a running tool. Returns false if the call does not run, or waits already.
    pub(super) fn start_people_wait(&mut self, index: usize, reason: PeopleWaitReason) -> bool {
        let now = self.now();
        let call = self.calls.get_mut(index);
        let has_started = call.is_some_and(|call| call.start_people_wait(now, reason));
        if has_started {
            self.clock.tool_paused();
        }
        has_started
    }

    /// Restarts the clock of a waiting tool. Returns false if the call does not wait.
    pub(super) fn end_people_wait(&mut self, index: usize) -> bool {
        let now = self.now();
        let call = self.calls.get_mut(index);
        let has_ended = call.is_some_and(|call| call.end_people_wait(now));
        if has_ended {
            self.clock.tool_resumed();
        }
        has_ended
    }
}
