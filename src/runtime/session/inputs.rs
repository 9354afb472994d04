//! What users say while a run goes on.

use super::{Closing, State};
use crate::event::Event;
use crate::record::{Record, Seq};
use crate::runtime::error::HostError;

impl State {
    /// Takes an input for the run that goes on. It stands in the history once the running turn is
    /// over, before the next request.
    pub(super) fn steer(&mut self, input: String) -> Result<Seq, HostError> {
        if !matches!(self.close, Closing::No) {
            return Err(HostError::SessionClosed);
        }
        if input.trim().is_empty() {
            return Err(HostError::EmptyInput);
        }
        let run = self.run.as_ref().ok_or(HostError::NoRun)?;
        self.room_for_an_input()?;
        let after_turn = self.turn;
        let record = Record::Steered { input: input.clone(), after_turn };
        let (seq, _) = self.log.append(vec![record], || ());
        self.publisher.publish(&run.id, self.turn, Event::RunSteered { input: input.clone() });
        self.history.steer(after_turn, input);
        Ok(seq)
    }

    fn room_for_an_input(&self) -> Result<(), HostError> {
        let max = self.shared.queued_inputs_max;
        if self.history.undelivered() < max { Ok(()) } else { Err(HostError::QueueFull(max)) }
    }
}
