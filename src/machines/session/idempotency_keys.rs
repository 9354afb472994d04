//! Idempotency keys of client requests: a request that is repeated with the same key has no second
//! effect. Beyond 1,000 ([`IDEMPOTENCY_KEYS_MAX`]) the oldest keys are forgotten, and a fork forgets all. (The
//! keys of tool calls are another rule: `TurnSpec::idempotency_key`.)
//!
//! Requests are equal if the SHA-256 of their path and JSON body is equal; the order of members does not
//! matter (`request_key` of `server::extract`).

use std::collections::{BTreeMap, VecDeque};

use super::machine::SessionRefusal;
use callsheet_values::record::{RequestKey, Seq};
use callsheet_values::types::RunId;

/// The number of keys that a session remembers: the most recent ones.
pub const IDEMPOTENCY_KEYS_MAX: usize = 1000;

/// The requests from which a session has its inputs, by idempotency key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct IdempotencyKeys {
    seen: BTreeMap<String, SeenRequest>,
    /// The keys, oldest first.
    order: VecDeque<String>,
}

/// A request that was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SeenRequest {
    /// The SHA-256 of the request, in hex digits.
    pub digest: String,
    /// The position of the input's record, or of the last record that has reopened its run.
    pub seq: Seq,
    /// The effect of the request.
    pub effect: RequestEffect,
}

/// The effect of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestEffect {
    /// The request started or queued this run.
    Run(RunId),
    /// The request queued this run, whose input was taken back.
    Removed(RunId),
    /// The request steered the current run.
    Steered,
}

impl IdempotencyKeys {
    /// Returns the first request with this key.
    ///
    /// # Errors
    /// If the key was used with a different request.
    pub(super) fn find(
        &self,
        key: Option<&RequestKey>,
    ) -> Result<Option<&SeenRequest>, SessionRefusal> {
        let Some(RequestKey { key, digest }) = key else { return Ok(None) };
        match self.seen.get(key) {
            Some(seen) if seen.digest != *digest => Err(SessionRefusal::KeyReused),
            seen => Ok(seen),
        }
    }

    /// Remembers that the input of this queued run was taken back.
    pub(super) fn remove_run(&mut self, run: &RunId) {
        for seen in self.seen.values_mut() {
            if seen.effect == RequestEffect::Run(run.clone()) {
                seen.effect = RequestEffect::Removed(run.clone());
            }
        }
    }

    /// Returns whether a request for this run is remembered.
    pub(super) fn has_run(&self, run: &RunId) -> bool {
        let is_of_run =
            |seen: &SeenRequest| matches!(&seen.effect, RequestEffect::Run(id) if id == run);
        self.seen.values().any(is_of_run)
    }

    /// Sets the position of the record from which on a repeated request follows this run.
    pub(super) fn move_run(&mut self, run: &RunId, seq: Seq) {
        for seen in self.seen.values_mut() {
            if seen.effect == RequestEffect::Run(run.clone()) {
                seen.seq = seq;
            }
        }
    }

    /// Remembers a request. Forgets the oldest one if there are too many.
    pub(super) fn insert(&mut self, key: &RequestKey, seq: Seq, effect: RequestEffect) {
        let RequestKey { key, digest } = key.clone();
        if self.seen.insert(key.clone(), SeenRequest { digest, seq, effect }).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > IDEMPOTENCY_KEYS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_recent_keys_are_remembered() {
        let mut keys = IdempotencyKeys::default();
        let request = |n| RequestKey { key: format!("k{n}"), digest: format!("d{n}") };
        for n in 0..=IDEMPOTENCY_KEYS_MAX as u64 {
            keys.insert(&request(n), Seq(n), RequestEffect::Steered);
        }
        assert_eq!(keys.find(Some(&request(0))), Ok(None));
        let effect = RequestEffect::Steered;
        let first = SeenRequest { digest: "d1".into(), seq: Seq(1), effect };
        assert_eq!(keys.find(Some(&request(1))), Ok(Some(&first)));
        let other = RequestKey { digest: "other".into(), ..request(1) };
        assert_eq!(keys.find(Some(&other)), Err(SessionRefusal::KeyReused));
    }
}
