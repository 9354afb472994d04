//! The bodies of requests to models, which a host keeps for the console (`[console] requests`).
//!
//! They are in memory only, and may hold secrets. Nothing is kept unless the configuration asks for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use callsheet_values::types::SessionId;

/// Maximum size of all bodies that are kept. Beyond it the oldest are dropped.
const BYTES_MAX: usize = 64 << 20;

/// The request of the newest attempt of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SentRequest {
    /// The number of the attempt in its turn, from 1.
    pub attempt: u32,
    /// The name of the model in the configuration.
    pub model: String,
    /// The body, exactly as it was sent.
    pub body: Bytes,
}

/// The requests of all sessions.
#[derive(Debug, Default)]
pub(super) struct SentRequests(Mutex<KeptRequests>);

/// A session and the number of one of its turns.
type TurnKey = (SessionId, u32);

#[derive(Debug, Default)]
struct KeptRequests {
    requests: BTreeMap<TurnKey, SentRequest>,
    /// The turns of `requests`, in the order of these requests: the oldest first.
    order: VecDeque<TurnKey>,
    bytes: usize,
}

/// The requests of one session.
#[derive(Clone, Debug)]
pub(super) struct SessionRequests {
    pub(super) session: SessionId,
    pub(super) all: Arc<SentRequests>,
}

impl SessionRequests {
    /// Keeps the request of an attempt instead of that of an earlier attempt of the turn. Keeps none that is larger
    /// than [`BYTES_MAX`].
    pub(super) fn keep(&self, turn: u32, request: SentRequest) {
        self.all.keep((self.session.clone(), turn), request, BYTES_MAX);
    }
}

impl SentRequests {
    fn keep(&self, key: TurnKey, request: SentRequest, bytes_max: usize) {
        let mut kept = self.0.lock();
        kept.remove(&key);
        if request.body.len() > bytes_max {
            return;
        }
        kept.bytes += request.body.len();
        kept.order.push_back(key.clone());
        kept.requests.insert(key, request);
        while kept.bytes > bytes_max
            && let Some(oldest) = kept.order.front().cloned()
        {
            kept.remove(&oldest);
        }
    }

    /// Drops the requests of a session that is deleted.
    pub(super) fn remove_session(&self, session: &SessionId) {
        let mut kept = self.0.lock();
        let of_session = (session.clone(), 0)..=(session.clone(), u32::MAX);
        let turns: Vec<TurnKey> =
            kept.requests.range(of_session).map(|(key, _)| key.clone()).collect();
        turns.iter().for_each(|key| kept.remove(key));
    }

    /// Returns the request of a turn, if it is kept.
    pub(super) fn get(&self, key: &(SessionId, u32)) -> Option<SentRequest> {
        self.0.lock().requests.get(key).cloned()
    }
}

impl KeptRequests {
    fn remove(&mut self, key: &TurnKey) {
        if let Some(request) = self.requests.remove(key) {
            self.bytes -= request.body.len();
            self.order.retain(|own| own != key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(session: &str, turn: u32) -> TurnKey {
        (SessionId::parse(session).unwrap(), turn)
    }

    fn request(attempt: u32, bytes: usize) -> SentRequest {
        SentRequest { attempt, model: "main".to_owned(), body: vec![b'x'; bytes].into() }
    }

    #[test]
    fn the_newest_requests_are_kept_within_the_limit() {
        let all = SentRequests::default();
        let keep = |key: TurnKey, request: SentRequest| all.keep(key, request, 100);
        keep(key("a", 1), request(1, 40));
        keep(key("b", 1), request(1, 40));
        // A later attempt takes the place of the earlier one, and is the newest.
        keep(key("a", 1), request(2, 50));
        assert_eq!(all.get(&key("a", 1)), Some(request(2, 50)));
        keep(key("a", 2), request(1, 20));
        assert_eq!(all.get(&key("b", 1)), None, "the oldest is dropped");
        assert!(all.get(&key("a", 1)).is_some() && all.get(&key("a", 2)).is_some());
        // One that is larger than the limit drops nothing but the earlier attempt.
        keep(key("a", 2), request(2, 101));
        assert_eq!(all.get(&key("a", 2)), None);
        assert!(all.get(&key("a", 1)).is_some());
        keep(key("a-b", 1), request(1, 10));
        all.remove_session(&key("a", 0).0);
        assert_eq!(all.get(&key("a", 1)), None);
        assert!(all.get(&key("a-b", 1)).is_some());
        let kept = all.0.lock();
        assert_eq!((kept.bytes, kept.order.len(), kept.requests.len()), (10, 1, 1));
    }
}
