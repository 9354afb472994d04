//! Ids of calls: missing, duplicate and reused tool call ids.
//!
//! A call has the provider's id in the history and in later requests. If the provider sent no id
//! (missing), or the id of an earlier call of the response (duplicate), or the id of a call of an
//! earlier turn that the host had generated (reused), the host generates one:
//! `call_{turns with calls}_{index}`. Inside the host a call is identified by its
//! [`CallKey`](crate::types::CallKey), never by this id.
//!
//! Related rules: `context::history` keeps the generated ids of a session. `response::call_assembler`
//! decides whether a second piece with the same id continues a call or begins another one.
//! `wire::anthropic::messages` makes ids unique that repeat within a request. Calls with the same
//! name and arguments are another rule: [`identical_calls`](super::identical_calls).

use super::Turn;

impl Turn {
    /// Gives a call its id in the history and in later requests: the provider's id, or a generated
    /// one if that is missing or already used by another call of the turn.
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
