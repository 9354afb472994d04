//! Which requests of clients a session has seen, so that the same one again has no second effect.

use std::collections::{HashMap, VecDeque};

use crate::record::{RequestKey, Seq};
use crate::types::RunId;

/// How many requests a session remembers: the last ones.
pub const IDEMPOTENCY_KEYS_MAX: usize = 1000;

/// The requests that brought a session its inputs, by their keys; the last [`IDEMPOTENCY_KEYS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdempotencyKeys {
    known: HashMap<String, SeenRequest>,
    order: VecDeque<String>,
}

/// What a request did when it first came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    /// The SHA-256 of what was asked, in hex digits.
    pub digest: String,
    /// The record of the input.
    pub seq: Seq,
    /// What it brought.
    pub brought: RequestEffect,
}

/// What a request brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestEffect {
    /// A run, at once or behind the one that went on.
    Run(RunId),
    /// An input for the run that went on.
    Steered,
}

impl IdempotencyKeys {
    /// What the request with this key did, if it is known.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&SeenRequest> {
        self.known.get(key)
    }

    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Remembers a request, and forgets the oldest one where there are too many.
    pub fn remember(&mut self, request: RequestKey, seq: Seq, brought: RequestEffect) {
        let RequestKey { key, digest } = request;
        let known = SeenRequest { digest, seq, brought };
        if self.known.insert(key.clone(), known).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > IDEMPOTENCY_KEYS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered() {
        let mut requests = IdempotencyKeys::default();
        for n in 0..=IDEMPOTENCY_KEYS_MAX as u64 {
            let request = RequestKey { key: format!("k{n}"), digest: format!("d{n}") };
            requests.remember(request, Seq(n), RequestEffect::Steered);
        }
        assert_eq!((requests.len(), requests.is_empty()), (IDEMPOTENCY_KEYS_MAX, false));
        assert_eq!(requests.get("k0"), None);
        let first =
            SeenRequest { digest: "d1".into(), seq: Seq(1), brought: RequestEffect::Steered };
        assert_eq!(requests.get("k1"), Some(&first));
    }
}
