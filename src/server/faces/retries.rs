//! Requests that are sent again: clients repeat a request whose answer broke, and most of them do not say so. The
//! repeated request must not start a second run.
//!
//! Measured in 33 of 33 series: the body of a repeated request is equal. So a request is a repeated one if its body, its
//! path and its token are those of an earlier one whose answer was not delivered whole and ended within
//! [`REPEAT_WITHIN`]. The SDKs of OpenAI and Anthropic mark a repeated request ([`RETRY_HEADER`]); then the answer may
//! also have been delivered, as far as this host knows. A request whose answer was delivered is a new one otherwise: two
//! people who send the same words each get a run.
//!
//! Of several equal requests each is repeated once: the repeated request stands for it then. A broken answer goes
//! first, so that a person whose answer broke does not get the run of another one who is being answered.

use std::cmp::Reverse;
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
pub(super) const RETRY_HEADER: &str = "x-stainless-retry-count";

/// The time after the end of an answer that was not delivered whole in which an equal request repeats it.
pub(super) const REPEAT_WITHIN: Duration = Duration::from_secs(10);

/// The time for which the end of an answer is known, for requests that are marked as repeated.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(180);

/// Maximum number of requests that are known. Then those whose answers have ended are forgotten.
const KNOWN_MAX: usize = 20_000;

/// Maximum number of equal requests that are known. Then the one whose answer was delivered first is forgotten.
const EQUAL_MAX: usize = 64;

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

/// Returns the number of earlier attempts, as the client counts them.
pub(super) fn marked_attempt(headers: &HeaderMap) -> u32 {
    let count = headers.get(RETRY_HEADER).and_then(|value| value.to_str().ok());
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The requests of the last minutes, by their digests.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries(Arc<Mutex<KnownRequests>>);

#[derive(Debug, Default)]
struct KnownRequests {
    by_digest: HashMap<RequestDigest, Vec<KnownRequest>>,
    count: usize,
    /// The number of the last request.
    last: u64,
}

/// A request that no other one has repeated yet.
#[derive(Debug)]
struct KnownRequest {
    number: u64,
    /// The digest of the body, which a request with the same key must have.
    body: RequestDigest,
    attempt: u32,
    /// Its run, when it has started.
    run: watch::Receiver<Option<RunPlace>>,
    end: Option<KnownEnd>,
}

/// The end of an answer.
#[derive(Clone, Copy, Debug)]
struct KnownEnd {
    at: Instant,
    is_delivered: bool,
}

/// The rank of a request among the equal ones that may be repeated, the first one first. Those that are a later attempt
/// than the repeated request come last in their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RepeatRank {
    /// Its answer broke.
    Cut {
        is_later: bool,
        at: Instant,
    },
    /// The client may have given up before this host has seen that its connection is closed.
    Answering {
        is_later: bool,
        number: u64,
    },
    Delivered {
        is_later: bool,
        at: Reverse<Instant>,
    },
}

/// The beginning of a request.
#[derive(Debug)]
pub(super) enum Begun {
    /// It is a new one.
    New(RepeatGuard),
    /// It repeats an earlier one, which has started this run.
    Repeats(RunPlace, RepeatGuard),
    /// Its key is that of a request with another body.
    KeyReused,
}

/// The names by which a request is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestNames {
    pub(super) digest: RequestDigest,
    /// The digest of the body.
    pub(super) body: RequestDigest,
    /// The number of earlier attempts, as the client counts them.
    pub(super) attempt: u32,
}

impl Retries {
    /// Notes a request, and finds out whether it repeats an earlier one. Waits until that one has started its run, or
    /// was refused.
    pub(super) async fn begin(&self, names: RequestNames) -> Begun {
        let (sender, receiver) = watch::channel(None);
        let (number, is_first) = self.0.lock().add(names, receiver);
        let (retries, digest) = (self.clone(), names.digest);
        let answering =
            RepeatGuard { retries, digest, number, is_first, run: sender, is_delivered: false };
        loop {
            let Some(request) = self.0.lock().take(names, number) else {
                return Begun::New(answering);
            };
            let (mut run, body) = (request.run.clone(), request.body);
            let taken = TakenRequest { retries: self, digest, request: Some(request) };
            // The sender is dropped if no run is started.
            let started = run.wait_for(Option::is_some).await;
            let Some(place) = started.ok().and_then(|run| run.clone()) else { continue };
            if body != names.body {
                return Begun::KeyReused;
            }
            answering.has_started(place.clone());
            taken.forget();
            return Begun::Repeats(place, answering);
        }
    }
}

impl KnownRequests {
    /// Adds a request. Returns its number, and whether no equal one is known.
    fn add(&mut self, names: RequestNames, run: watch::Receiver<Option<RunPlace>>) -> (u64, bool) {
        if self.count >= KNOWN_MAX {
            self.retain(|request| request.end.is_none_or(|end| end.at.elapsed() < KEPT_FOR));
            if self.count >= KNOWN_MAX / 2 {
                self.retain(|request| request.end.is_none());
            }
        }
        let number = self.next_number();
        let equal = self.by_digest.entry(names.digest).or_default();
        let is_first = equal.is_empty();
        if equal.len() >= EQUAL_MAX {
            let ended = equal.iter().enumerate().filter_map(|(at, request)| {
                let end = request.end?;
                Some((!end.is_delivered, end.at, at))
            });
            if let Some((_, _, at)) = ended.min() {
                equal.remove(at);
                self.count -= 1;
            }
        }
        equal.push(KnownRequest {
            number,
            body: names.body,
            attempt: names.attempt,
            run,
            end: None,
        });
        self.count += 1;
        (number, is_first)
    }

    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn retain(&mut self, is_kept: impl Fn(&KnownRequest) -> bool) {
        for equal in self.by_digest.values_mut() {
            equal.retain(&is_kept);
        }
        self.by_digest.retain(|_, equal| !equal.is_empty());
        self.count = self.by_digest.values().map(Vec::len).sum();
    }

    /// Removes the request that this one, with a number, repeats.
    fn take(&mut self, names: RequestNames, number: u64) -> Option<KnownRequest> {
        let equal = self.by_digest.get_mut(&names.digest)?;
        let ranked = equal.iter().enumerate().filter(|(_, request)| request.number < number);
        let ranked = ranked.filter_map(|(at, request)| Some((request.rank(names.attempt)?, at)));
        let (_, at) = ranked.min()?;
        self.count -= 1;
        Some(equal.remove(at))
    }

    /// Adds a request again that was removed. Its answer may have ended meanwhile.
    fn put_back(&mut self, digest: RequestDigest, mut request: KnownRequest) {
        if request.end.is_none() && request.run.has_changed().is_err() {
            if request.run.borrow().is_none() {
                return;
            }
            request.end = Some(KnownEnd { at: Instant::now(), is_delivered: false });
        }
        self.by_digest.entry(digest).or_default().push(request);
        self.count += 1;
    }

    fn end(&mut self, answering: &RepeatGuard) {
        let Some(equal) = self.by_digest.get_mut(&answering.digest) else { return };
        let Some(at) = equal.iter().position(|known| known.number == answering.number) else {
            return;
        };
        if answering.run.borrow().is_some() {
            let is_delivered = answering.is_delivered;
            let end = Some(KnownEnd { at: Instant::now(), is_delivered });
            equal.iter_mut().skip(at).take(1).for_each(|known| known.end = end);
            return;
        }
        equal.remove(at);
        self.count -= 1;
        if equal.is_empty() {
            self.by_digest.remove(&answering.digest);
        }
    }
}

impl KnownRequest {
    /// Returns the rank, if an equal request repeats it that is this attempt.
    fn rank(&self, attempt: u32) -> Option<RepeatRank> {
        let (is_marked, is_later) = (attempt > 0, self.attempt >= attempt);
        let Some(KnownEnd { at, is_delivered }) = self.end else {
            let number = self.number;
            return is_marked.then_some(RepeatRank::Answering { is_later, number });
        };
        let repeated_for = match (is_marked, is_delivered) {
            (true, _) => KEPT_FOR,
            (false, true) => Duration::ZERO,
            (false, false) => REPEAT_WITHIN,
        };
        (at.elapsed() < repeated_for).then_some(match is_delivered {
            true => RepeatRank::Delivered { is_later, at: Reverse(at) },
            false => RepeatRank::Cut { is_later, at },
        })
    }
}

/// A request that another one is about to repeat. If it is dropped, a later one can repeat it.
struct TakenRequest<'a> {
    retries: &'a Retries,
    digest: RequestDigest,
    request: Option<KnownRequest>,
}

impl TakenRequest<'_> {
    /// Notes that the other request stands for this one.
    fn forget(mut self) {
        self.request = None;
    }
}

impl Drop for TakenRequest<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.retries.0.lock().put_back(self.digest, request);
        }
    }
}

/// The answer to a request. If it is dropped, the answer was not delivered whole.
#[derive(Debug)]
pub(super) struct RepeatGuard {
    retries: Retries,
    digest: RequestDigest,
    number: u64,
    is_first: bool,
    run: watch::Sender<Option<RunPlace>>,
    is_delivered: bool,
}

impl RepeatGuard {
    /// Returns whether no equal request was known before.
    pub(super) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Notes the run that the request has started.
    pub(super) fn has_started(&self, place: RunPlace) {
        self.run.send_replace(Some(place));
    }

    /// Notes the runs of equal requests whose answers broke before this process began.
    pub(super) fn add_cut(&self, places: impl IntoIterator<Item = RunPlace>) {
        let mut known = self.retries.0.lock();
        for place in places {
            let (number, body) = (known.next_number(), self.digest);
            let (_, run) = watch::channel(Some(place));
            let end = Some(KnownEnd { at: Instant::now(), is_delivered: false });
            known.put_back(self.digest, KnownRequest { number, body, attempt: 0, run, end });
        }
    }

    /// Notes that the whole answer was sent.
    pub(super) fn end_delivered(mut self) {
        self.is_delivered = true;
    }
}

impl Drop for RepeatGuard {
    fn drop(&mut self) {
        self.retries.0.lock().end(self);
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

    fn names(key: &str, body: &str, is_marked: bool) -> RequestNames {
        let digest = |text: &str| RequestDigest::new(None, "/", text.as_bytes());
        RequestNames { digest: digest(key), body: digest(body), attempt: is_marked.into() }
    }

    /// Begins a request. Returns the run that it repeats.
    async fn begin(
        retries: &Retries,
        body: &str,
        is_marked: bool,
    ) -> (Option<RunPlace>, RepeatGuard) {
        match retries.begin(names(body, body, is_marked)).await {
            Begun::New(answering) => (None, answering),
            Begun::Repeats(place, answering) => (Some(place), answering),
            Begun::KeyReused => unreachable!("the body is equal"),
        }
    }

    async fn begin_run(retries: &Retries, number: u64) -> RepeatGuard {
        let (repeats, answering) = begin(retries, "a", false).await;
        assert_eq!(repeats, None);
        answering.has_started(place(number));
        answering
    }

    #[tokio::test(start_paused = true)]
    async fn each_of_equal_requests_is_repeated_once() {
        let retries = Retries::default();
        let (first, second) = (begin_run(&retries, 1).await, begin_run(&retries, 2).await);
        let (third, fourth) = (begin_run(&retries, 3).await, begin_run(&retries, 4).await);
        third.end_delivered();
        drop(second);
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(first);
        let mut again = Vec::new();
        for number in [2, 1, 4] {
            let (repeats, answering) = begin(&retries, "a", true).await;
            assert_eq!(repeats, Some(place(number)));
            again.push(answering);
        }
        drop(fourth);
        // The third attempt of one of them.
        drop(again.pop());
        let (repeats, last) = begin(&retries, "a", true).await;
        assert_eq!(repeats, Some(place(4)));
        // The second attempt of another person goes before the third one of those that are being answered.
        let _fifth = begin_run(&retries, 5).await;
        assert_eq!(begin(&retries, "a", true).await.0, Some(place(5)));
        drop(last);
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_request_that_gives_up_leaves_the_earlier_one() {
        let retries = Retries::default();
        let (_, first) = begin(&retries, "a", false).await;
        let again = begin(&retries, "a", true);
        assert!(tokio::time::timeout(Duration::from_secs(1), again).await.is_err());
        first.has_started(place(1));
        assert_eq!(begin(&retries, "a", true).await.0, Some(place(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_not_used_for_another_body() {
        let retries = Retries::default();
        let (key, other) = (names("k", "a", true), names("k", "b", true));
        let Begun::New(first) = retries.begin(key).await else { panic!("it is the first") };
        first.has_started(place(1));
        assert!(matches!(retries.begin(other).await, Begun::KeyReused));
        first.end_delivered();
        assert!(matches!(retries.begin(other).await, Begun::KeyReused));
        assert!(matches!(retries.begin(key).await, Begun::Repeats(found, _) if found == place(1)));
        let Begun::New(refused) = retries.begin(names("l", "a", true)).await else { panic!() };
        drop(refused);
        assert!(matches!(retries.begin(names("l", "b", true)).await, Begun::New(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn few_equal_requests_are_known() {
        let retries = Retries::default();
        drop(begin_run(&retries, 0).await);
        for _ in 0..2 * EQUAL_MAX {
            let (_, answering) = begin(&retries, "a", true).await;
            answering.has_started(place(0));
            let more = begin_run(&retries, 1).await;
            drop(answering);
            more.end_delivered();
        }
        let known = retries.0.lock();
        assert_eq!(known.count, known.by_digest.values().map(Vec::len).sum::<usize>());
        assert!(known.count <= EQUAL_MAX, "{}", known.count);
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
