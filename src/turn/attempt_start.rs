//! The exchanges with a model: begun, begun anew, and counted when they are over.

use std::time::Duration;

use super::Turn;
use super::effect::{AttemptPlan, PermitReply, TurnAction, TurnRules};
use crate::event::Event;
use crate::record::Record;
use crate::response::{ResponseAssembler, ResponseLimits};
use crate::types::ProviderError;

impl Turn {
    /// The host has a place at its model for the request of the open attempt, or has none yet.
    /// The measured time of the exchange starts when the request is sent.
    pub fn handle_model_permit(&mut self, now: Duration, place: PermitReply) {
        self.clock.advance(now);
        self.asked_at = match place {
            PermitReply::Granted => self.now(),
            PermitReply::Waiting => Duration::MAX,
        };
    }

    /// Begins the turn: asks its first model.
    pub(super) fn ask(&mut self) {
        let plan = self.attempts.first();
        self.begin_attempt(plan, None, Event::TurnStarted);
    }

    /// Asks a model once more; what was shown of the turn is void.
    pub(super) fn request_again(&mut self, plan: AttemptPlan, reason: String) {
        let fallback = plan.model != self.plan.model;
        let event = Event::AttemptStarted {
            attempt: plan.attempt,
            model: self.model_name(&plan),
            streamed: plan.streamed,
            reason: reason.clone(),
            wait: plan.wait,
            rollback: !fallback && self.plan.streamed && !plan.streamed,
            fallback,
        };
        self.begin_attempt(plan, Some(reason), event);
    }

    /// `event` tells watchers of it.
    fn begin_attempt(&mut self, plan: AttemptPlan, reason: Option<String>, event: Event) {
        self.record(Record::AttemptStarted {
            turn: self.spec.number,
            attempt: plan.attempt,
            model: self.model_name(&plan),
            streamed: plan.streamed,
            reason,
            wait_ms: u64::try_from(plan.wait.as_millis()).unwrap_or(u64::MAX),
        });
        self.emit(event);
        self.plan = plan.clone();
        self.asked_at = self.clock.now() + plan.wait;
        self.first_delta_at = None;
        self.clock.request_started();
        self.effects.perform(TurnAction::Request(plan));
    }

    pub(super) fn model_name(&self, plan: &AttemptPlan) -> String {
        self.spec.rules.models.at(plan.model).origin.model.clone()
    }

    /// The exchange with the model is over; it is paid for whatever becomes of it. Only the first
    /// to say so counts.
    pub(super) fn close_exchange(&mut self, error: Option<ProviderError>) {
        if !self.clock.request_ended() {
            return;
        }
        self.usage += self.response.usage();
        let duration = match self.now().checked_sub(self.asked_at) {
            Some(duration) => duration,
            // It gave up to wait because the model is not asked.
            None if error.is_some() => Duration::ZERO,
            // The attempt was cancelled before its request was sent.
            None => return,
        };
        self.emit(Event::AttemptEnded {
            model: self.model_name(&self.plan),
            streamed: self.plan.streamed,
            duration,
            first_chunk: self.first_delta_at.map(|at| at.saturating_sub(self.asked_at)),
            usage: self.response.usage(),
            finish_reason: self.response.finish().cloned(),
            error: error.map(Box::new),
        });
    }
}

/// Takes in one response, as much of it as may be kept.
pub(super) fn accumulator(rules: &TurnRules) -> ResponseAssembler {
    ResponseAssembler::new(ResponseLimits {
        arguments_bytes_max: rules.limits.max_arguments_bytes,
        ..ResponseLimits::default()
    })
}
