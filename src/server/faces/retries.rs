//! Requests that are sent again: clients repeat a request whose answer broke, and most of them do not say so. The
//! repeated request must not start a second run.
//!
//! Measured in 33 of 33 series: the body of a repeated request is equal. So a request is a repeated one if its body, its
//! path and its token are those of an earlier one whose answer was not delivered whole and ended within
//! [`REPEAT_WITHIN`]. The SDKs of OpenAI and Anthropic mark a repeated request ([`RETRY_HEADER`]); then the answer may
//! also have been delivered, as far as this host knows. A request whose answer was delivered is a new one otherwise: two
//! people who send the same words each get a run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;

use callsheet_values::types::{RunId, Seq, SessionId};

/// The header with which the SDKs of OpenAI and Anthropic count their attempts, from 0.
const RETRY_HEADER: &str = "x-stainless-retry-count";

/// The time after the end of an answer that was not delivered whole in which an equal request repeats it.
pub(super) const REPEAT_WITHIN: Duration = Duration::from_secs(10);

/// The time for which the end of an answer is known, for requests that are marked as repeated.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(180);

/// Maximum number of requests that are known. Then those whose answers have ended are forgotten.
const KNOWN_MAX: usize = 20_000;

/// The run that a request has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunPlace {
    pub(super) session: SessionId,
    pub(super) run: RunId,
    /// The first record of the run.
    pub(super) seq: Seq,
}

/// The digest of a request: of its token, its path and its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestDigest([u8; 32]);

impl RequestDigest {
    pub(super) fn new(token: Option<&str>, path: &str, body: &[u8]) -> Self {
        let mut sha = Sha256::new();
        for part in [token.unwrap_or_default().as_bytes(), path.as_bytes(), body] {
            sha.update((part.len() as u64).to_le_bytes());
            sha.update(part);
        }
        Self(sha.finalize().into())
    }

    /// Returns the first digits.
    pub(super) fn digits(&self) -> String {
        self.0.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Returns whether the client says that it repeats a request.
pub(super) fn is_marked(headers: &HeaderMap) -> bool {
    let count = headers.get(RETRY_HEADER).and_then(|value| value.to_str().ok());
    count.and_then(|count| count.parse::<u32>().ok()).is_some_and(|count| count > 0)
}

/// The requests of the last minutes, by their digests. The newest one of equal requests is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries(Arc<Mutex<HashMap<RequestDigest, KnownRequest>>>);

#[derive(Debug)]
struct KnownRequest {
    /// Its run, when it has started.
    run: watch::Receiver<Option<RunPlace>>,
    /// The time until which an equal request repeats it, and until which a marked one does. `None`: its answer has not
    /// ended.
    repeated_until: Option<[Instant; 2]>,
    number: u64,
}

/// The beginning of a request.
pub(super) enum Begun {
    /// It is a new one.
    New(RepeatGuard),
    /// It repeats an earlier one, which has started this run.
    Repeats(RunPlace, RepeatGuard),
}

impl Retries {
    /// Notes a request, and finds out whether it repeats an earlier one. Waits until that one has started its run, or
    /// was refused.
    pub(super) async fn begin(&self, digest: RequestDigest, is_marked: bool) -> Begun {
        let earlier = self.earlier(digest, is_marked);
        let found = match earlier {
            // The sender is dropped if no run is started.
            Some(mut run) => run.wait_for(Option::is_some).await.ok().and_then(|run| run.clone()),
            None => None,
        };
        let (sender, receiver) = watch::channel(found.clone());
        let mut known = self.0.lock();
        let number = known.get(&digest).map_or(0, |request| request.number + 1);
        if known.len() >= KNOWN_MAX {
            let now = Instant::now();
            known.retain(|_, known| known.repeated_until.is_none_or(|[_, marked]| now < marked));
            if known.len() >= KNOWN_MAX / 2 {
                known.retain(|_, request| request.repeated_until.is_none());
            }
        }
        known.insert(digest, KnownRequest { run: receiver, repeated_until: None, number });
        drop(known);
        let answering =
            RepeatGuard { retries: self.clone(), digest, number, run: sender, is_delivered: false };
        match found {
            Some(place) => Begun::Repeats(place, answering),
            None => Begun::New(answering),
        }
    }

    fn earlier(
        &self,
        digest: RequestDigest,
        is_marked: bool,
    ) -> Option<watch::Receiver<Option<RunPlace>>> {
        let now = Instant::now();
        let known = self.0.lock();
        let request = known.get(&digest)?;
        let repeats = match request.repeated_until {
            // The client has given up before this host has seen that its connection is closed.
            None => is_marked,
            Some([equal, marked]) => now < if is_marked { marked } else { equal },
        };
        repeats.then(|| request.run.clone())
    }

    fn end(&self, answering: &RepeatGuard, repeat_within: Duration) {
        let now = Instant::now();
        let mut known = self.0.lock();
        let Some(request) = known.get_mut(&answering.digest) else { return };
        if request.number == answering.number {
            request.repeated_until = Some([now + repeat_within, now + KEPT_FOR]);
        }
    }
}

/// The answer to a request. If it is dropped, the answer was not delivered whole.
#[derive(Debug)]
pub(super) struct RepeatGuard {
    retries: Retries,
    digest: RequestDigest,
    number: u64,
    run: watch::Sender<Option<RunPlace>>,
    is_delivered: bool,
}

impl RepeatGuard {
    /// Returns whether this process has seen no equal request before.
    pub(super) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Notes the run that the request has started.
    pub(super) fn has_started(&self, place: RunPlace) {
        self.run.send_replace(Some(place));
    }

    /// Notes that the whole answer was sent.
    pub(super) fn end_delivered(mut self) {
        self.is_delivered = true;
    }
}

impl Drop for RepeatGuard {
    fn drop(&mut self) {
        let repeat_within = if self.is_delivered { Duration::ZERO } else { REPEAT_WITHIN };
        self.retries.end(self, repeat_within);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u64) -> RunPlace {
        RunPlace {
            session: SessionId::parse("s").unwrap(),
            run: RunId(format!("run_{number}").into()),
            seq: Seq(number),
        }
    }

    /// Begins a request. Returns the run that it repeats.
    async fn begin(
        retries: &Retries,
        body: &str,
        is_marked: bool,
    ) -> (Option<RunPlace>, RepeatGuard) {
        match retries.begin(RequestDigest::new(None, "/", body.as_bytes()), is_marked).await {
            Begun::New(answering) => (None, answering),
            Begun::Repeats(place, answering) => (Some(place), answering),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_whose_answer_broke_is_repeated_for_a_while() {
        let retries = Retries::default();
        let (repeats, first) = begin(&retries, "a", false).await;
        assert_eq!(repeats, None);
        first.has_started(place(1));
        // Another person with the same words, while the first answer is being sent.
        let (repeats, second) = begin(&retries, "a", false).await;
        assert_eq!(repeats, None);
        second.has_started(place(2));
        drop(second);
        let (repeats, third) = begin(&retries, "a", false).await;
        assert_eq!(repeats, Some(place(2)));
        assert_eq!(begin(&retries, "b", false).await.0, None);
        third.end_delivered();
        assert_eq!(begin(&retries, "a", false).await.0, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_marked_request_repeats_one_that_is_answered() {
        let retries = Retries::default();
        let (_, first) = begin(&retries, "a", false).await;
        first.has_started(place(1));
        let (repeats, again) = begin(&retries, "a", true).await;
        assert_eq!(repeats, Some(place(1)));
        drop(first);
        again.end_delivered();
        assert_eq!(begin(&retries, "a", true).await.0, Some(place(1)));
        let (repeats, broken) = begin(&retries, "c", true).await;
        assert_eq!(repeats, None, "the first attempt did not arrive");
        broken.has_started(place(3));
        drop(broken);
        tokio::time::advance(REPEAT_WITHIN).await;
        assert_eq!(begin(&retries, "c", false).await.0, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_request_waits_for_the_start_of_the_run() {
        let retries = Retries::default();
        let (_, first) = begin(&retries, "a", false).await;
        let starts = async {
            tokio::task::yield_now().await;
            first.has_started(place(1));
        };
        let ((repeats, _), ()) = tokio::join!(begin(&retries, "a", true), starts);
        assert_eq!(repeats, Some(place(1)));
        let (_, refused) = begin(&retries, "b", false).await;
        drop(refused);
        assert_eq!(begin(&retries, "b", true).await.0, None, "it has started no run");
    }
}
