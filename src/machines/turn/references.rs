//! References in the arguments of a call: their values are put in at the seal.
//!
//! The schema check, identical calls, approvals and the tool use the final arguments. The message of the
//! response, and so the history, keeps the arguments as the model made them ([`TurnCall::model_arguments`]).
//!
//! Variables have their values at the start of the turn. Other values are in the journal: the call waits
//! ([`CallPhase::AwaitingReferences`]) until the owner of the turn has read them. They never change, so a
//! resumed turn reads them again. A reference without a value answers the call with an error.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::call::{CallPhase, TurnCall};
use super::effect::TurnAction;
use super::spec::{RunRules, TurnSpec};
use super::{Turn, admission, model_messages};
use crate::context::{
    ReferenceValues, Variables, has_references, references_in, substitute_references,
};
use callsheet_values::event::ArgumentsAnomaly;
use callsheet_values::types::{
    CallKey, FINAL_ANSWER, READ_VAR, Reference, ReferenceError, ReferencedValue,
};

impl TurnCall {
    /// Returns whether the values of references have to be put into the arguments before the call can be
    /// admitted. The arguments of `read_var` name references
    /// themselves, and those of `final_answer` are the answer.
    pub(super) fn has_references(&self, rules: &RunRules) -> bool {
        rules.context.references
            && self.tool.is_some()
            && self.arguments_error.is_none()
            && !self.is_excess
            && self.model_arguments.is_none()
            && ![READ_VAR, FINAL_ANSWER].contains(&&*self.call.name)
            && has_references(&self.call.arguments)
    }

    /// Sets the arguments for the tool. Those of the model are kept.
    pub(super) fn set_final_arguments(&mut self, arguments: Arc<serde_json::Value>) {
        let before = std::mem::replace(&mut self.call.arguments, arguments);
        self.model_arguments.get_or_insert(before);
        self.dedup_key = super::call::dedup_key_of(&self.call);
    }
}

impl Turn {
    /// Handles the values of the references of a call, or the reason why one has none. Ignores values that
    /// no call waits for.
    pub fn handle_references(
        &mut self,
        now: Duration,
        key: CallKey,
        values: Result<ReferenceValues, ReferenceError>,
    ) {
        self.clock.advance(now);
        let Some(index) = self.position(key) else { return };
        if !self
            .calls
            .get(index)
            .is_some_and(|call| matches!(call.phase, CallPhase::AwaitingReferences))
        {
            return;
        }
        self.set_phase(index, CallPhase::Sealed);
        self.put_in_values(index, values);
        self.ask_hooks_before_start(index);
        self.advance();
    }

    /// Puts the values of references into the arguments of a sealed call. If some have to be read, the call
    /// waits for them.
    pub(super) fn resolve_references(&mut self, index: usize) {
        let Some(call) = self.calls.get(index) else { return };
        if !matches!(call.phase, CallPhase::Sealed) || !call.has_references(&self.spec.rules) {
            return;
        }
        match unread_references(references_in(&call.call.arguments), &self.spec) {
            Ok(references) if !references.is_empty() => {
                let bytes_max = self.spec.rules.limits.max_arguments_bytes;
                let key = call.key();
                self.set_phase(index, CallPhase::AwaitingReferences);
                self.effects.perform(TurnAction::ReadReferences { key, references, bytes_max });
            }
            Ok(_) => self.put_in_values(index, Ok(ReferenceValues::new())),
            Err(error) => self.put_in_values(index, Err(error)),
        }
    }

    /// Puts the values that were read, and those of variables, into the arguments, and checks them.
    fn put_in_values(&mut self, index: usize, read: Result<ReferenceValues, ReferenceError>) {
        let Some(call) = self.calls.get_mut(index) else { return };
        let maximum = self.spec.rules.limits.max_arguments_bytes;
        let substituted = read.and_then(|read| {
            let arguments = &call.call.arguments;
            let values = with_variables(read, references_in(arguments), &self.spec.variables);
            substitute_references(arguments, &values, maximum)
        });
        let is_too_large = matches!(substituted, Err(ReferenceError::TooLarge { .. }));
        match substituted {
            Ok(arguments) => {
                call.set_final_arguments(Arc::new(arguments));
                let raw = call.call.arguments_text();
                admission::check_schema(call, &raw);
            }
            Err(error) => {
                call.arguments_error = Some(model_messages::unresolved_references(&error));
            }
        }
        if call.arguments_error.is_some() {
            self.publish_anomaly(index, ArgumentsAnomaly::Invalid);
        }
        if is_too_large {
            let maximum = maximum as u64;
            let value = maximum.saturating_add(1);
            self.record_limit("max_arguments_bytes", value, maximum, "answered");
        }
    }
}

/// Adds the values of the references to variables.
pub(super) fn with_variables(
    mut values: ReferenceValues,
    references: BTreeSet<Reference>,
    variables: &Variables,
) -> ReferenceValues {
    for reference in references {
        if let Reference::Variable(name) = &reference
            && let Some(value) = variables.get(name)
        {
            let value = ReferencedValue::json(Arc::new(value.clone()));
            values.insert(reference, value);
        }
    }
    values
}

/// Returns the references whose values have to be read.
///
/// # Errors
/// If one certainly has no value.
fn unread_references(
    references: BTreeSet<Reference>,
    spec: &TurnSpec,
) -> Result<BTreeSet<Reference>, ReferenceError> {
    let mut unread = BTreeSet::new();
    for reference in references {
        match &reference {
            Reference::Variable(name) if spec.variables.get(name).is_some() => {}
            Reference::Variable(_) => return Err(ReferenceError::NoSuchVariable(reference)),
            Reference::Result(key) | Reference::Structured(key) | Reference::Arguments(key)
                if key.turn == spec.number =>
            {
                return Err(ReferenceError::SameTurn(reference));
            }
            Reference::Result(key) | Reference::Structured(key) | Reference::Arguments(key)
                if key.turn > spec.number =>
            {
                return Err(ReferenceError::NoSuchResult(reference));
            }
            Reference::Answer(run) if *run == spec.run => {
                return Err(ReferenceError::NoSuchRun(reference));
            }
            Reference::Result(_)
            | Reference::Structured(_)
            | Reference::Arguments(_)
            | Reference::Answer(_) => {
                unread.insert(reference);
            }
        }
    }
    Ok(unread)
}
