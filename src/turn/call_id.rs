//! Ids of calls: missing, duplicate and reused tool call ids.
//!
//! A call has the provider's id in the history and in later requests. The host generates an id,
//! `call_{number of turns with calls}_{index}`, if the provider sent none, or the id of another call
//! of the same response (a duplicate id). A generated id differs from all ids of that form in the
//! history. Inside the host a call is identified by its [`CallKey`](crate::types::CallKey), never by
//! this id.
//!
//! Related rules:
//!
//! - `response::call_assembler` decides whether a second piece with an id that was seen before
//!   continues its call or begins another one.
//! - `context::history` knows the ids that a generated id must not repeat.
//! - An id that the provider reuses in a later response is kept. `wire::anthropic::messages` makes it
//!   unique in a request, because that service refuses repeated ids. `wire::call_ids` rewrites ids
//!   that another service made.
//! - Calls with the same name and arguments: [`identical_calls`](super::identical_calls).

use super::Turn;

impl Turn {
    /// Gives a call its id in the history and in later requests: the provider's id, or a generated
    /// one if that is missing or the id of another call of the response.
    pub(super) fn assign_call_id(&mut self, index: usize) {
        let is_taken = |id: &str| {
            self.calls
                .iter()
                .enumerate()
                .any(|(other, call)| other != index && &*call.call.id == id)
        };
        let provider_id = self.calls.get(index).and_then(|call| call.call.provider_id.clone());
        let id = provider_id.filter(|id| !is_taken(id)).unwrap_or_else(|| {
            let mut n = self.spec.turns_with_calls;
            loop {
                let id = format!("call_{n}_{index}");
                if !is_taken(&id) && !self.spec.used_call_ids.contains(&id) {
                    break id.into();
                }
                n = n.wrapping_add(1);
            }
        });
        if let Some(call) = self.calls.get_mut(index) {
            call.call.id = id;
        }
    }
}
