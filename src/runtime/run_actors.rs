//! The actors that run the turns of a session.

use ractor::{ActorCell, ActorRef};

use super::message::{AccumulatorRef, StreamMessage};

/// The actors of a run. They stay for the next run until the session has been idle for some seconds.
pub(super) struct RunActors {
    pub(super) stream: ActorRef<StreamMessage>,
    pub(super) accumulator: AccumulatorRef,
}

impl RunActors {
    pub(super) fn cells(&self) -> [ActorCell; 2] {
        [self.stream.get_cell(), self.accumulator.get_cell()]
    }

    /// Returns whether every tool is back, late ones too.
    pub(super) fn run_no_tool(&self) -> bool {
        self.accumulator.get_children().is_empty()
    }
}
