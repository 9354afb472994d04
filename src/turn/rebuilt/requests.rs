//! Which requests of clients a session has seen, so that the same one again has no second effect.

use std::collections::{HashMap, VecDeque};

use crate::record::{RequestKey, Seq};
use crate::types::RunId;

/// How many requests a session remembers: the last ones.
pub const REQUESTS_MAX: usize = 1000;

/// The requests that brought a session its inputs, by their keys; the last [`REQUESTS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    known: HashMap<String, KnownRequest>,
    order: VecDeque<String>,
}

/// What a request did when it first came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownRequest {
    /// The SHA-256 of what was asked, in hex digits.
    pub digest: String,
    /// The record of the input.
    pub seq: Seq,
    /// What it brought.
    pub brought: Brought,
}

/// What a request brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Brought {
    /// A run, at once or behind the one that went on.
    Run(RunId),
    /// An input for the run that went on.
    Steered,
}

impl Requests {
    /// What the request with this key did, if it is known.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&KnownRequest> {
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
    pub fn remember(&mut self, request: RequestKey, seq: Seq, brought: Brought) {
        let RequestKey { key, digest } = request;
        let known = KnownRequest { digest, seq, brought };
        if self.known.insert(key.clone(), known).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > REQUESTS_MAX
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
        let mut requests = Requests::default();
        for n in 0..=REQUESTS_MAX as u64 {
            let request = RequestKey { key: format!("k{n}"), digest: format!("d{n}") };
            requests.remember(request, Seq(n), Brought::Steered);
        }
        assert_eq!((requests.len(), requests.is_empty()), (REQUESTS_MAX, false));
        assert_eq!(requests.get("k0"), None);
        let first = KnownRequest { digest: "d1".into(), seq: Seq(1), brought: Brought::Steered };
        assert_eq!(requests.get("k1"), Some(&first));
    }
}
