//! Waits of running calls for people: for the answer to a question ([`question`](super::question)), or for a
//! child that itself only waits for people ([`agent_calls`](super::agent_calls)).
//!
//! While a call waits, the timeout of its tool stands still, and the time does not count as time of the tool. If
//! all open calls of the turn wait for people, `run_timeout` stands still too.

use std::time::Duration;

use super::Turn;
use super::call::{CallPhase, TurnCall};

/// The wait of a running call for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PeopleWait {
    awaited: AwaitedPeople,
    since: Duration,
    /// The time that is left to the tool.
    time_left: Option<Duration>,
}

/// What a running call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum AwaitedPeople {
    /// The answer to the question of its tool, which expires at this time.
    Answer { until: Option<Duration> },
    /// The end of the wait of its child.
    Child,
}

impl PeopleWait {
    /// Returns whether a question is open.
    pub(super) fn is_for_answer(self) -> bool {
        matches!(self.awaited, AwaitedPeople::Answer { .. })
    }

    /// Returns the time at which the open question expires.
    pub(super) fn expires_at(self) -> Option<Duration> {
        match self.awaited {
            AwaitedPeople::Answer { until } => until,
            AwaitedPeople::Child => None,
        }
    }
}

impl TurnCall {
    pub(super) fn people_wait(&self) -> Option<PeopleWait> {
        let CallPhase::Running { wait, .. } = self.phase else { return None };
        wait
    }

    /// Returns whether the call waits for a decision, an answer or the result of a client, or for a child that only
    /// waits for these.
    pub(super) fn waits_for_people(&self) -> bool {
        self.pending_approval_phase().is_some() || self.people_wait().is_some()
    }
}

impl Turn {
    /// Stops the clock of a running tool. Returns false if the call does not run, or waits already.
    pub(super) fn start_people_wait(&mut self, index: usize, awaited: AwaitedPeople) -> bool {
        let now = self.now();
        let Some(call) = self.calls.get_mut(index) else { return false };
        let CallPhase::Running { deadline, wait: None } = call.phase else { return false };
        let time_left = deadline.map(|deadline| deadline.saturating_sub(now));
        let wait = Some(PeopleWait { awaited, since: now, time_left });
        call.phase = CallPhase::Running { deadline, wait };
        self.clock.tool_paused();
        true
    }

    /// Lets the clock of a waiting tool go on. Returns false if the call does not wait.
    pub(super) fn end_people_wait(&mut self, index: usize) -> bool {
        let now = self.now();
        let Some(call) = self.calls.get_mut(index) else { return false };
        let Some(PeopleWait { since, time_left, .. }) = call.people_wait() else { return false };
        call.people_wait += now.saturating_sub(since);
        let deadline = time_left.and_then(|left| now.checked_add(left));
        call.phase = CallPhase::Running { deadline, wait: None };
        self.clock.tool_resumed();
        true
    }
}
