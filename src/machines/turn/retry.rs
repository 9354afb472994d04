//! Retries of a turn: the number of attempts, the wait before each (exponential backoff, jitter,
//! `Retry-After`), and fallback models. Each turn begins with the first model again. A resumed turn continues
//! with the model that it requested last.
//!
//! A transient error ([`ProviderError::is_transient`]) is retried with the same model until its
//! `max_attempts` are used up. After two broken streams the requests to that model no longer stream. A stream that
//! fell silent, or made no progress, is not broken: a plain request is silent too, and some services generate on for
//! a client that has left a plain request. Any other error, and the failure of the last attempt, leads to the next model without a wait: another service may accept
//! a request that this one refuses.
//!
//! If a service could not read what its model wrote ([`ProviderErrorKind::UnparsableOutput`]), the next attempt may
//! succeed. A second such error of the same model that says the same, apart from ids and times, leads to the next
//! model, although attempts are left: at temperature 0 the model would write it again.
//!
//! A request that the service refused because of the reasoning of its messages is sent again at once if the next one
//! differs ([`ProviderError::reasoning`]): at most [`CHANGED_REQUESTS_MAX`] times in a turn with each model, besides
//! `max_attempts`.
//!
//! The wait before a retry is the longer of the backoff and the service's `Retry-After`:
//!
//! - Backoff: a random time between half of the full backoff and all of it (jitter), so that many
//!   sessions do not retry at the same moment. The full backoff is 500 ms after the first attempt with a model,
//!   and doubles with each further attempt up to 30 s.
//! - `Retry-After`: read from the response by `runtime::model::error` (headers) and `wire::error`
//!   (body). One that is longer than 120 s ([`SERVICE_WAIT_MAX`]) leads to the next model.
//!
//! An empty answer is asked for again once, unchanged, and so is one that announces calls but has none. Where the request already asks for the final text or for a typed
//! answer, the next model is asked instead. A refused answer leads to the next model if `on_refusal` says so. Both are
//! decided in [`attempt`](super::attempt) (`check_answer`).
//!
//! A request that the circuit breaker of the model refuses uses up no attempt. If another model is
//! left, the turn requests that one at once. Otherwise the turn waits until the breaker may let a request
//! through. Each such wait is limited to 120 s too, and their sum to 120 s multiplied by the model's
//! `max_attempts`.

use std::sync::Arc;
use std::time::Duration;

use super::effect::AttemptPlan;
use super::spec::{ModelPlan, ModelPlans};
use callsheet_values::types::{ProviderError, ProviderErrorKind, RequestKind};

/// The full backoff after the first attempt. It doubles with each further attempt.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
/// The maximum of the full backoff.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The longest wait for a service: for its `Retry-After`, or for its circuit breaker. A longer one means no retry
/// with this model: the next model is requested at once, or the turn fails.
const SERVICE_WAIT_MAX: Duration = Duration::from_secs(120);
/// The number of broken streams of a model after which its attempts no longer stream.
const BROKEN_STREAMS_MAX: u32 = 2;

/// The number of refused requests of a turn with one model that are changed and sent again. A service may refuse one
/// member and demand another one, not empty.
const CHANGED_REQUESTS_MAX: u32 = 3;

/// The attempts that a turn has made, and the decision about the next one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RetryPolicy {
    models: Arc<ModelPlans>,
    /// Seed of the jitter.
    seed: u64,
    /// The number of attempts of the turn with all models.
    attempts: u32,
    /// The index of the current model.
    model_index: usize,
    /// The number of attempts with the current model since the turn was resumed.
    attempts_with_model: u32,
    /// The number of consecutive refusals of the current model's circuit breaker.
    consecutive_refusals: u32,
    /// The sum of the waits for the current model's circuit breaker.
    breaker_wait: Duration,
    /// The number of broken streams of the current model.
    broken_streams: u32,
    /// The last error of the current model whose output its service could not read, without ids and times.
    unparsable_output: Option<String>,
    /// The number of refused requests of the current model that were changed and sent again.
    changed_requests: u32,
    /// Maximum length of the answer of the current model, because the service refused a longer one.
    output_room: Option<u32>,
    /// The kind of the turn's request.
    request_kind: RequestKind,
    /// The number of empty answers of the turn.
    empty_answers: u32,
    /// True if an empty or refused answer stays the answer, because its record says so.
    keeps_answer: bool,
}

impl RetryPolicy {
    /// Makes the state of a turn without attempts. The seed varies the waits.
    pub fn new(models: Arc<ModelPlans>, seed: u64) -> Self {
        Self {
            models,
            seed,
            attempts: 0,
            model_index: 0,
            attempts_with_model: 0,
            consecutive_refusals: 0,
            breaker_wait: Duration::ZERO,
            broken_streams: 0,
            unparsable_output: None,
            changed_requests: 0,
            output_room: None,
            request_kind: RequestKind::Ordinary,
            empty_answers: 0,
            keeps_answer: false,
        }
    }

    /// Keeps an empty or refused answer. Used by the replay of a turn whose records have it.
    pub(super) fn keep_answer(&mut self) {
        self.keeps_answer = true;
    }

    /// Returns whether an empty or refused answer stays the answer.
    pub(super) fn keeps_answer(&self) -> bool {
        self.keeps_answer
    }

    /// Sets the kind of the turn's request.
    pub(super) fn for_request(self, request_kind: RequestKind) -> Self {
        Self { request_kind, ..self }
    }

    /// Continues in a resumed turn with the model that was requested last. The model has all its attempts
    /// again, because the interruption was not its failure. Records of earlier versions have only the name at its
    /// service: of several models with the same, it is the first one.
    pub(super) fn resumed(mut self, attempts: u32, model: &str, empty_answers: u32) -> Self {
        (self.attempts, self.empty_answers) = (attempts, empty_answers);
        let displayed = self.models.iter().position(|plan| *plan.displayed_name == *model);
        let of_service = || self.models.iter().position(|plan| plan.origin.model == model);
        self.model_index = displayed.or_else(of_service).unwrap_or_default();
        self
    }

    /// Returns the plan of the current attempt, without its wait.
    pub(super) fn current(&self) -> AttemptPlan {
        AttemptPlan {
            attempt: self.attempts,
            model_index: self.model_index,
            streamed: self.model().streamed && self.broken_streams < BROKEN_STREAMS_MAX,
            wait: Duration::ZERO,
            left_out_tools: Vec::new(),
            output_room: self.output_room,
        }
    }

    /// Plans the first attempt of the turn, or the first one after a resume.
    pub fn plan_first_attempt(&mut self) -> AttemptPlan {
        self.next_attempt(Duration::ZERO)
    }

    /// Plans the first attempt after a resume behind an attempt that failed with `error`. An empty or refused answer may
    /// lead to the next model.
    pub(super) fn plan_after_resume(&mut self, error: &ProviderError) -> AttemptPlan {
        let leaves_model = match error.kind {
            ProviderErrorKind::Refused => true,
            ProviderErrorKind::EmptyAnswer => !self.repeats_empty_answer(),
            ProviderErrorKind::Connect
            | ProviderErrorKind::Timeout
            | ProviderErrorKind::Transport
            | ProviderErrorKind::Status
            | ProviderErrorKind::InStream
            | ProviderErrorKind::Malformed
            | ProviderErrorKind::TooLarge
            | ProviderErrorKind::UnparsableOutput
            | ProviderErrorKind::BreakerOpen => false,
        };
        let next = if leaves_model { self.fall_back() } else { None };
        next.unwrap_or_else(|| self.plan_first_attempt())
    }

    /// Plans an attempt with the same model and a changed request, such as one with a smaller context.
    pub(super) fn plan_same_model_attempt(&mut self) -> AttemptPlan {
        self.next_attempt(Duration::ZERO)
    }

    /// Plans an attempt with the same model and without tools that its service refuses. It uses up none of the model's
    /// attempts.
    pub(super) fn plan_changed_request(&mut self) -> AttemptPlan {
        self.attempts += 1;
        self.current()
    }

    /// Plans an attempt with the same model that asks for a shorter answer, because the service refused the length of
    /// the requested one. Returns `None` if the error is another one, or if the answer was to be as short already.
    pub fn with_shorter_answer(&mut self, error: &ProviderError) -> Option<AttemptPlan> {
        let room = error.overflow?.output_room?;
        if self.output_room.is_some_and(|before| before <= room) {
            return None;
        }
        self.output_room = Some(room);
        self.attempts_with_model = self.attempts_with_model.saturating_sub(1);
        Some(self.next_attempt(Duration::ZERO))
    }

    /// Plans the attempt after one that failed with `error`. Returns `None` if no attempt is left.
    pub fn after_error(
        &mut self,
        error: &ProviderError,
        was_streamed: bool,
    ) -> Option<AttemptPlan> {
        let retry_after = error.retry_after.unwrap_or_default();
        match error.kind {
            ProviderErrorKind::BreakerOpen => return self.after_breaker_refusal(retry_after),
            ProviderErrorKind::EmptyAnswer => return self.after_empty_answer(),
            ProviderErrorKind::Refused => return self.fall_back(),
            ProviderErrorKind::Connect
            | ProviderErrorKind::Timeout
            | ProviderErrorKind::Transport
            | ProviderErrorKind::Status
            | ProviderErrorKind::InStream
            | ProviderErrorKind::Malformed
            | ProviderErrorKind::UnparsableOutput
            | ProviderErrorKind::TooLarge => {}
        }
        self.consecutive_refusals = 0;
        if error.reasoning.is_some() && self.changed_requests < CHANGED_REQUESTS_MAX {
            self.changed_requests += 1;
            self.attempts_with_model = self.attempts_with_model.saturating_sub(1);
            return Some(self.plan_same_model_attempt());
        }
        self.broken_streams += u32::from(was_streamed && is_broken_stream(error));
        let may_retry = error.is_transient()
            && retry_after <= SERVICE_WAIT_MAX
            && !self.repeats_unparsable_output(error);
        if may_retry && self.attempts_with_model < self.model().max_attempts {
            let wait = self.backoff(self.attempts_with_model).max(retry_after);
            return Some(self.next_attempt(wait));
        }
        self.fall_back()
    }

    /// Remembers an error of an output that the service could not read. Returns whether the error before it said the
    /// same.
    fn repeats_unparsable_output(&mut self, error: &ProviderError) -> bool {
        if error.kind != ProviderErrorKind::UnparsableOutput {
            return false;
        }
        let message = Some(without_ids(&error.message));
        std::mem::replace(&mut self.unparsable_output, message.clone()) == message
    }

    /// Plans the attempt after a refusal of the circuit breaker. `retry_after` is the time until the
    /// breaker may let a request through; zero while another session's probe is open.
    fn after_breaker_refusal(&mut self, retry_after: Duration) -> Option<AttemptPlan> {
        self.attempts_with_model = self.attempts_with_model.saturating_sub(1);
        if let Some(plan) = self.fall_back() {
            return Some(plan);
        }
        self.consecutive_refusals += 1;
        let wait = self.backoff(self.consecutive_refusals).max(retry_after);
        self.breaker_wait = self.breaker_wait.saturating_add(wait);
        let breaker_wait_max = SERVICE_WAIT_MAX.saturating_mul(self.model().max_attempts);
        let may_wait = wait <= SERVICE_WAIT_MAX && self.breaker_wait <= breaker_wait_max;
        may_wait.then(|| self.next_attempt(wait))
    }

    /// Returns whether another attempt of the turn follows an empty answer.
    pub(super) fn may_follow_empty_answer(&self) -> bool {
        match self.repeats_empty_answer() {
            true => self.may_repeat_answer(),
            false => self.has_fallback() && !self.keeps_answer,
        }
    }

    /// Returns whether an answer in which something is missing is asked for again, once in a turn and unchanged.
    pub(super) fn may_repeat_answer(&self) -> bool {
        self.repeats_empty_answer() && self.empty_answers == 0 && !self.keeps_answer
    }

    /// Returns whether an empty answer to this kind of request is asked for again, once and unchanged. The other kinds
    /// already ask for an answer in another form, so that the next model is asked.
    fn repeats_empty_answer(&self) -> bool {
        match self.request_kind {
            RequestKind::Ordinary | RequestKind::ForcedCall | RequestKind::FinalAnswer => true,
            RequestKind::FinalText | RequestKind::Output(_) => false,
        }
    }

    fn after_empty_answer(&mut self) -> Option<AttemptPlan> {
        if !self.may_follow_empty_answer() {
            return None;
        }
        self.empty_answers += 1;
        if !self.repeats_empty_answer() {
            return self.fall_back();
        }
        // The service works, so that the model has all its attempts again.
        (self.attempts_with_model, self.broken_streams) = (0, 0);
        Some(self.next_attempt(Duration::ZERO))
    }

    /// Returns whether another model is left.
    pub(super) fn has_fallback(&self) -> bool {
        self.models.iter().nth(self.model_index + 1).is_some()
    }

    /// Plans the first attempt with the next model. Returns `None` if there is no other model.
    fn fall_back(&mut self) -> Option<AttemptPlan> {
        if !self.has_fallback() {
            return None;
        }
        self.model_index += 1;
        (self.attempts_with_model, self.consecutive_refusals, self.broken_streams) = (0, 0, 0);
        self.changed_requests = 0;
        (self.breaker_wait, self.output_room) = (Duration::ZERO, None);
        self.unparsable_output = None;
        Some(self.next_attempt(Duration::ZERO))
    }

    fn next_attempt(&mut self, wait: Duration) -> AttemptPlan {
        self.attempts += 1;
        self.attempts_with_model += 1;
        AttemptPlan { wait, ..self.current() }
    }

    /// Returns the current model.
    pub(super) fn model(&self) -> &ModelPlan {
        self.models.at(self.model_index)
    }

    /// Returns the backoff after a number of attempts: a random time between half of the full backoff
    /// and all of it.
    fn backoff(&self, attempts: u32) -> Duration {
        let doubled = BACKOFF_FIRST.saturating_mul(1 << attempts.saturating_sub(1).min(16));
        let full = doubled.min(BACKOFF_MAX);
        let jitter = jitter(self.seed, self.attempts);
        full / 2 + Duration::from_nanos((full.as_nanos() as u64 / 2).saturating_mul(jitter) / 1024)
    }
}

/// The statuses with which a proxy reports, within a stream, that its connection to the service broke.
const BROKEN_UPSTREAM: [u16; 3] = [500, 502, 504];

/// Returns whether the stream itself broke, so that a response without streaming may succeed. An
/// error that arrived within a stream counts unless its status says that the service refuses the
/// request or is overloaded.
fn is_broken_stream(error: &ProviderError) -> bool {
    match error.kind {
        ProviderErrorKind::Transport | ProviderErrorKind::Malformed => true,
        ProviderErrorKind::InStream => {
            error.status.is_none_or(|status| BROKEN_UPSTREAM.contains(&status))
        }
        ProviderErrorKind::Connect
        | ProviderErrorKind::Timeout
        | ProviderErrorKind::Status
        | ProviderErrorKind::TooLarge
        | ProviderErrorKind::UnparsableOutput
        | ProviderErrorKind::BreakerOpen
        | ProviderErrorKind::EmptyAnswer
        | ProviderErrorKind::Refused => false,
    }
}

/// Returns a message with `#` for each word that has a digit: ids, times and counts.
fn without_ids(message: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | ':' | '.');
    let mut text = String::with_capacity(message.len());
    for piece in message.split_inclusive(|c: char| !is_word(c)) {
        let word = piece.trim_end_matches(|c: char| !is_word(c));
        let has_digit = word.bytes().any(|byte| byte.is_ascii_digit());
        text.push_str(if has_digit { "#" } else { word });
        text.push_str(piece.get(word.len()..).unwrap_or_default());
    }
    text
}

/// Returns a pseudo-random number below 1024 (the finalizer of splitmix64).
fn jitter(seed: u64, attempt: u32) -> u64 {
    let mut x = seed.wrapping_add(u64::from(attempt).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) % 1024
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::model;
    use super::*;
    use callsheet_values::types::{ReasoningRefusal, ReasoningRefusalKind};

    fn error(kind: ProviderErrorKind) -> ProviderError {
        ProviderError::new(kind, "it broke")
    }

    fn retry_policy(max: u32, seed: u64) -> RetryPolicy {
        RetryPolicy::new(Arc::new(ModelPlans::new(model("m", max), Vec::new())), seed)
    }

    /// Returns a policy of two attempts with a streaming model, two with one that does not stream, and one with
    /// a third.
    fn with_fallbacks() -> RetryPolicy {
        let plain = ModelPlan { streamed: false, ..model("b", 2) };
        let plans = ModelPlans::new(model("a", 2), vec![plain, model("c", 1)]);
        RetryPolicy::new(Arc::new(plans), 1)
    }

    fn denied() -> ProviderError {
        ProviderError { status: Some(401), ..error(ProviderErrorKind::Status) }
    }

    /// Returns the number of the attempt, the index of its model and whether it streams.
    fn summary(plan: &AttemptPlan) -> (u32, usize, bool) {
        (plan.attempt, plan.model_index, plan.streamed)
    }

    #[test]
    fn the_attempt_after_two_broken_streams_does_not_stream() {
        let mut retry = retry_policy(3, 7);
        assert!(retry.plan_first_attempt().streamed);
        let second = retry.after_error(&error(ProviderErrorKind::Transport), true).unwrap();
        assert_eq!((second.attempt, second.streamed), (2, true));
        let third = retry.after_error(&error(ProviderErrorKind::Malformed), true).unwrap();
        assert_eq!((third.attempt, third.streamed), (3, false));
        assert_eq!(retry.after_error(&error(ProviderErrorKind::Transport), false), None);
    }

    #[test]
    fn the_attempts_after_silence_stream_again() {
        let mut retry = retry_policy(4, 7);
        retry.plan_first_attempt();
        for number in 2..=4 {
            let plan = retry.after_error(&error(ProviderErrorKind::Timeout), true).unwrap();
            assert_eq!(summary(&plan), (number, 0, true));
        }
    }

    #[test]
    fn the_backoff_doubles_up_to_its_maximum_and_differs_by_seed() {
        let waits = |seed| {
            let mut retry = retry_policy(20, seed);
            retry.plan_first_attempt();
            (0..19)
                .map(|_| retry.after_error(&error(ProviderErrorKind::Connect), true).unwrap().wait)
                .collect::<Vec<_>>()
        };
        let first = waits(1);
        assert_ne!(first, waits(2));
        assert!(first[0] >= BACKOFF_FIRST / 2 && first[0] <= BACKOFF_FIRST);
        assert!(first.iter().all(|wait| *wait <= BACKOFF_MAX));
        assert!(first[18] >= BACKOFF_MAX / 2);
    }

    #[test]
    fn retry_after_is_respected_unless_it_is_too_long() {
        let mut retry = retry_policy(3, 1);
        retry.plan_first_attempt();
        let mut limited = error(ProviderErrorKind::Status);
        limited.status = Some(429);
        limited.retry_after = Some(Duration::from_secs(7));
        assert_eq!(retry.after_error(&limited, true).unwrap().wait, Duration::from_secs(7));
        limited.retry_after = Some(Duration::from_secs(3600));
        assert_eq!(retry.after_error(&limited, true), None);
    }

    #[test]
    fn an_error_within_a_stream_is_retried_by_its_status() {
        let in_stream =
            |status| ProviderError { status: Some(status), ..error(ProviderErrorKind::InStream) };
        for status in [400, 401, 403, 404, 413] {
            let mut retry = retry_policy(3, 1);
            retry.plan_first_attempt();
            assert_eq!(retry.after_error(&in_stream(status), true), None, "{status}");
        }
        for status in [429, 503, 529] {
            let mut retry = retry_policy(4, 1);
            retry.plan_first_attempt();
            let mut limited = in_stream(status);
            limited.retry_after = Some(Duration::from_secs(9));
            for number in 2..=4 {
                let plan = retry.after_error(&limited, true).unwrap();
                assert_eq!(summary(&plan), (number, 0, true), "{status} is not a broken stream");
                assert_eq!(plan.wait, Duration::from_secs(9));
            }
            assert_eq!(retry.after_error(&limited, true), None);
        }
        // A proxy reports a broken connection to the service.
        for status in [500, 502, 504] {
            let mut retry = retry_policy(4, 1);
            retry.plan_first_attempt();
            for (number, streamed) in [(2, true), (3, false)] {
                let plan = retry.after_error(&in_stream(status), true).unwrap();
                assert_eq!(summary(&plan), (number, 0, streamed), "{status} is a broken stream");
            }
        }
    }

    #[test]
    fn the_retryable_flag_of_an_error_overrides_its_status() {
        for (status, retryable, is_retried) in
            [(400, true, true), (503, false, false), (429, false, false), (404, true, true)]
        {
            let mut retry = retry_policy(2, 1);
            retry.plan_first_attempt();
            let mut error = error(ProviderErrorKind::Status);
            (error.status, error.retryable) = (Some(status), Some(retryable));
            assert_eq!(
                retry.after_error(&error, true).is_some(),
                is_retried,
                "{status} {retryable}"
            );
            assert_eq!(retry.after_error(&error, true), None, "its attempts are used up");
        }
    }

    #[test]
    fn an_output_that_the_service_could_not_read_is_tried_again_but_not_a_third_time_if_it_is_the_same()
     {
        let unread = |message: &str| {
            let error = ProviderError::new(ProviderErrorKind::UnparsableOutput, message);
            ProviderError { status: Some(400), retryable: Some(false), ..error }
        };
        let mut retry = retry_policy(4, 1);
        retry.plan_first_attempt();
        for (number, message) in [(2, "cannot read f(1)"), (3, "cannot read g()"), (4, "cut off")] {
            let plan = retry.after_error(&unread(message), true).unwrap();
            assert_eq!(summary(&plan), (number, 0, true));
        }
        assert_eq!(retry.after_error(&unread("else"), true), None, "its attempts are used up");
        let mut retry = with_fallbacks();
        retry.models = Arc::new(ModelPlans::new(model("a", 5), vec![model("b", 5)]));
        retry.plan_first_attempt();
        let message = |id, time| unread(&format!("no call in req_{id} at {time}: <f>{{}}</f>"));
        let plan = retry.after_error(&message("a1b", "10:00:01.25"), true).unwrap();
        assert_eq!(summary(&plan), (2, 0, true));
        let plan = retry.after_error(&message("99c", "10:00:07.5"), true).unwrap();
        assert_eq!((summary(&plan), plan.wait), ((3, 1, true), Duration::ZERO), "the next model");
        let plan = retry.after_error(&message("5", "11:30"), true).unwrap();
        assert_eq!(summary(&plan), (4, 1, true), "its own first error");
        assert_eq!(retry.after_error(&message("6", "11:31"), true), None);
    }

    /// Returns the error of a request that the circuit breaker refuses for this number of seconds.
    fn unavailable(seconds: u64) -> ProviderError {
        let retry_after = Some(Duration::from_secs(seconds));
        ProviderError { retry_after, ..error(ProviderErrorKind::BreakerOpen) }
    }

    #[test]
    fn a_refusal_of_the_circuit_breaker_leads_to_the_next_model_without_a_wait() {
        let mut retry = with_fallbacks();
        retry.plan_first_attempt();
        let plan = retry.after_error(&unavailable(30), true).unwrap();
        assert_eq!((summary(&plan), plan.wait), ((2, 1, false), Duration::ZERO));
        let plan = retry.after_error(&unavailable(240), true).unwrap();
        assert_eq!((summary(&plan), plan.wait), ((3, 2, true), Duration::ZERO));
    }

    #[test]
    fn a_refusal_of_the_circuit_breaker_uses_up_no_attempt() {
        let mut retry = retry_policy(2, 1);
        retry.plan_first_attempt();
        let broken = error(ProviderErrorKind::Connect);
        retry.after_error(&broken, true).unwrap();
        let plan = retry.after_error(&unavailable(30), true).unwrap();
        assert_eq!((plan.attempt, plan.wait), (3, Duration::from_secs(30)));
        // While another session's probe is open, the waits grow.
        let mut waits = Vec::new();
        for _ in 0..4 {
            waits.push(retry.after_error(&unavailable(0), true).unwrap().wait);
        }
        assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
        assert_eq!(retry.after_error(&broken, true), None, "both attempts are used up");
    }

    #[test]
    fn the_wait_for_the_circuit_breaker_is_limited() {
        for (seconds, max_attempts) in [(0, 1), (1, 1), (30, 1), (60, 3), (100, 3), (120, 2)] {
            let mut retry = retry_policy(max_attempts, 1);
            retry.plan_first_attempt();
            let (mut waited, longest) = (Duration::ZERO, SERVICE_WAIT_MAX * max_attempts);
            while let Some(plan) = retry.after_error(&unavailable(seconds), true) {
                waited += plan.wait;
                assert!(plan.attempt < 50);
            }
            assert!(waited <= longest && waited >= longest / 2, "{seconds}: {waited:?}");
        }
        let mut retry = retry_policy(1, 1);
        retry.plan_first_attempt();
        assert_eq!(retry.after_error(&unavailable(121), true), None);
    }

    #[test]
    fn a_request_whose_reasoning_was_refused_is_changed_and_sent_again_at_once() {
        let refusal = ReasoningRefusal { kind: ReasoningRefusalKind::Missing, field: None };
        let refused = ProviderError { reasoning: Some(refusal), ..denied() };
        let mut retry = with_fallbacks();
        retry.plan_first_attempt();
        for model in 0..3 {
            for _ in 0..CHANGED_REQUESTS_MAX {
                let plan = retry.after_error(&refused, true).unwrap();
                assert_eq!((plan.model_index, plan.wait), (model, Duration::ZERO));
            }
            let next = retry.after_error(&refused, true).map(|plan| plan.model_index);
            assert_eq!(next, Some(model + 1).filter(|model| *model < 3));
        }
    }

    #[test]
    fn a_permanent_error_is_not_retried() {
        let mut retry = retry_policy(3, 1);
        retry.plan_first_attempt();
        assert_eq!(retry.after_error(&denied(), true), None);
    }

    #[test]
    fn each_model_has_its_own_attempts_and_attempts_are_numbered_over_all_models() {
        let mut retry = with_fallbacks();
        let broken = error(ProviderErrorKind::Transport);
        assert_eq!(summary(&retry.plan_first_attempt()), (1, 0, true));
        let mut waits = Vec::new();
        for expected in [(2, 0, true), (3, 1, false), (4, 1, false), (5, 2, true)] {
            let plan = retry.after_error(&broken, true).unwrap();
            assert_eq!(summary(&plan), expected);
            assert_eq!(retry.current(), AttemptPlan { wait: Duration::ZERO, ..plan.clone() });
            waits.push(plan.wait.is_zero());
        }
        assert_eq!(waits, [false, true, false, true], "a fallback does not wait");
        assert_eq!(retry.after_error(&broken, true), None);
    }

    #[test]
    fn a_permanent_error_or_a_long_retry_after_leads_to_the_next_model_without_a_wait() {
        let retry_after = Some(Duration::from_secs(3600));
        let busy = ProviderError { retry_after, ..error(ProviderErrorKind::Connect) };
        for error in [denied(), busy, error(ProviderErrorKind::TooLarge)] {
            let mut retry = with_fallbacks();
            retry.plan_first_attempt();
            let plan = retry.after_error(&error, true).unwrap();
            assert_eq!((summary(&plan), plan.wait), ((2, 1, false), Duration::ZERO), "{error}");
        }
    }

    fn empty() -> ProviderError {
        error(ProviderErrorKind::EmptyAnswer)
    }

    #[test]
    fn an_empty_answer_is_asked_for_once_more_from_the_same_model() {
        let mut retry = with_fallbacks();
        retry.plan_first_attempt();
        let broken = error(ProviderErrorKind::Transport);
        assert_eq!(summary(&retry.after_error(&broken, true).unwrap()), (2, 0, true));
        let plan = retry.after_error(&empty(), true).unwrap();
        assert_eq!((summary(&plan), plan.wait), ((3, 0, true), Duration::ZERO));
        // The model has all its attempts again.
        assert_eq!(summary(&retry.after_error(&broken, true).unwrap()), (4, 0, true));
        assert!(!retry.may_follow_empty_answer());
        assert_eq!(retry.after_error(&empty(), true), None);
    }

    #[test]
    fn an_empty_final_text_or_a_refusal_leads_to_the_next_model() {
        let mut retry = with_fallbacks().for_request(RequestKind::FinalText);
        retry.plan_first_attempt();
        assert_eq!(summary(&retry.after_error(&empty(), true).unwrap()), (2, 1, false));
        let refused = error(ProviderErrorKind::Refused);
        assert_eq!(summary(&retry.after_error(&refused, false).unwrap()), (3, 2, true));
        assert_eq!(retry.after_error(&refused, true), None);
        assert_eq!(retry.after_error(&empty(), true), None);
    }

    #[test]
    fn after_a_crash_the_number_of_empty_answers_is_kept() {
        let mut retry = with_fallbacks().resumed(1, "a", 1);
        assert_eq!(summary(&retry.plan_after_resume(&empty())), (2, 0, true));
        assert!(!retry.may_follow_empty_answer());
        let mut retry = with_fallbacks().for_request(RequestKind::FinalText).resumed(1, "a", 1);
        assert_eq!(summary(&retry.plan_after_resume(&empty())), (2, 1, false));
        let refused = error(ProviderErrorKind::Refused);
        assert_eq!(
            summary(&with_fallbacks().resumed(1, "a", 0).plan_after_resume(&refused)),
            (2, 1, false)
        );
    }

    #[test]
    fn after_a_crash_the_last_model_has_all_its_attempts_again() {
        let mut retry = with_fallbacks().resumed(3, "b", 0);
        assert_eq!(summary(&retry.plan_first_attempt()), (4, 1, false));
        let broken = error(ProviderErrorKind::Connect);
        assert_eq!(summary(&retry.after_error(&broken, false).unwrap()), (5, 1, false));
        assert_eq!(summary(&retry.after_error(&broken, false).unwrap()), (6, 2, true));
        assert_eq!(
            summary(&with_fallbacks().resumed(3, "gone", 0).plan_first_attempt()),
            (4, 0, true)
        );
    }
}
