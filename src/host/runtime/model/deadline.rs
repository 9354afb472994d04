//! The time limits of one response: of the silence of the service, and of the time without progress. They do not
//! count the time for which the host itself lagged: the delays of timers by 50 ms or more (`STALL_MIN`). If a check
//! itself is late by as much, the response has up to 0.5 s more (`GRACE_MAX`), once between two restarts of a limit.
//!
//! A service that thinks for minutes sends signs of life: comments, pings, lifecycle events. Any byte shows that it is
//! alive, and only a delta shows that the response goes on. So a service that sends nothing but signs of life has
//! longer than a silent one, but not for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use callsheet_values::config::ModelConfig;
use callsheet_values::types::ProviderError;
use callsheet_wire::Delta;

use super::error;

/// The configuration keys of the time limits.
const FIRST_EVENT_TIMEOUT: &str = "first_event_timeout";
const IDLE_TIMEOUT: &str = "idle_timeout";
const PROGRESS_TIMEOUT: &str = "progress_timeout";
const ANSWER_TIMEOUT: &str = "answer_timeout";

/// The delay of a timer that counts as a stall of the host. A shorter one is usual under load.
const STALL_MIN: Duration = Duration::from_millis(50);

/// Maximum time from a late check to the new deadline. A check is late if a stall of the host lasted beyond the
/// deadline.
const GRACE_MAX: Duration = Duration::from_millis(500);

/// The sum of the host's own lags: times for which its threads handled nothing, because the process was stopped
/// or the threads were busy with something else. The service did not cause such a time, so it does not count
/// against a stream. Clones share the sum.
#[derive(Clone, Debug, Default)]
pub(in crate::runtime) struct HostLagClock {
    stalled_us: Arc<AtomicU64>,
}

impl HostLagClock {
    /// Adds the delay of a timer, if it is long enough to be a stall.
    pub(in crate::runtime) fn add_delay(&self, delay: Duration) {
        if Self::is_stall(delay) {
            let delay = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
            self.stalled_us.fetch_add(delay, Ordering::Relaxed);
        }
    }

    /// Returns whether a delay of a timer is long enough to be a stall.
    pub(in crate::runtime) fn is_stall(delay: Duration) -> bool {
        delay >= STALL_MIN
    }

    pub(in crate::runtime) fn stalled(&self) -> Duration {
        Duration::from_micros(self.stalled_us.load(Ordering::Relaxed))
    }
}

/// The time limits of a model's responses.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimits {
    first_event: Duration,
    idle: Duration,
    progress: Duration,
    answer: Duration,
}

impl From<&ModelConfig> for TimeLimits {
    fn from(config: &ModelConfig) -> Self {
        Self {
            first_event: config.first_event_timeout,
            idle: config.idle_timeout,
            progress: config.progress_timeout,
            answer: config.answer_timeout,
        }
    }
}

/// The time at which a response fails: the earlier end of two time limits.
///
/// Until the body begins, and in a whole plain answer up to its end, there is one limit. In a stream there are two:
/// any bytes restart that of silence, and only progress restarts the other one.
#[derive(Debug)]
pub(super) struct ResponseDeadline {
    limits: TimeLimits,
    silence: Deadline,
    /// `None` before the first bytes of a stream, and for a plain answer.
    progress: Option<Deadline>,
    clock: HostLagClock,
}

impl ResponseDeadline {
    /// Starts the time limit of the beginning of a response: `first_event_timeout`, or the `answer_timeout` of a
    /// response that is not streamed, because nothing arrives while the model writes.
    pub(super) fn new(limits: TimeLimits, streamed: bool, clock: HostLagClock) -> Self {
        let (limit, key) = match streamed {
            true => (limits.first_event, FIRST_EVENT_TIMEOUT),
            false => (limits.answer, ANSWER_TIMEOUT),
        };
        let silence = Deadline::new(Instant::now(), limit, key, &clock);
        Self { limits, silence, progress: None, clock }
    }

    pub(super) fn at(&self) -> Instant {
        let silence = self.silence.at();
        self.progress.as_ref().map_or(silence, |progress| progress.at().min(silence))
    }

    /// Handles bytes of a stream.
    pub(super) fn handle_bytes(&mut self, now: Instant, kind: Progress) {
        let Self { limits, silence, progress, clock } = self;
        *silence = Deadline::new(now, limits.idle, IDLE_TIMEOUT, clock);
        let (limit, key) = match kind {
            Progress::None if progress.is_some() => return,
            Progress::None | Progress::Made => (limits.progress, PROGRESS_TIMEOUT),
            Progress::Finished => (limits.idle.min(limits.progress), IDLE_TIMEOUT),
        };
        *progress = Some(Deadline::new(now, limit, key, clock));
    }

    /// Handles the last delta that matters: only the end of the body may follow, within this time.
    pub(super) fn handle_last(&mut self, wait: Duration) {
        self.silence = Deadline::new(Instant::now(), wait, self.silence.key, &self.clock);
        self.progress = None;
    }

    /// Does not count this time.
    pub(super) fn skip(&mut self, time: Duration) {
        self.silence.due += time;
        self.progress.iter_mut().for_each(|progress| progress.due += time);
    }

    /// Returns the error of a deadline that has passed. `woken` is the time of this check. `subject` is what was
    /// silent, such as "the response".
    pub(super) fn check(&mut self, woken: Instant, subject: &str) -> Option<ProviderError> {
        if self.silence.is_over(woken, &self.clock) {
            let Deadline { limit, key, .. } = self.silence;
            return Some(error::timeout(&format!("{subject} was silent"), limit, key));
        }
        let progress = self.progress.as_mut()?;
        let is_over = progress.is_over(woken, &self.clock);
        let problem = || format!("{subject} made no progress (no text, no thinking, no call)");
        is_over.then(|| error::timeout(&problem(), progress.limit, progress.key))
    }
}

/// The progress that bytes of a stream are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// They only show that the service is alive. Counts of tokens and unknown events are of this kind too, because some
    /// services send them as signs of life.
    None,
    /// The response goes on.
    Made,
    /// The model has finished. Only the end of the stream follows, for which signs of life buy no time.
    Finished,
}

impl Progress {
    /// Returns the progress of deltas.
    pub(super) fn of(batch: &[Delta]) -> Self {
        batch.iter().map(Self::of_delta).max().unwrap_or(Self::None)
    }

    fn of_delta(delta: &Delta) -> Self {
        let is_progress = match delta {
            Delta::Text(text) | Delta::Reasoning(text) | Delta::Refusal(text) => !text.is_empty(),
            Delta::Call(call) => !call.is_blank(),
            Delta::Seal { .. } | Delta::Metadata(_) => true,
            Delta::Usage { .. } | Delta::Problem(_) => false,
            Delta::Finish(_) | Delta::Error(_) | Delta::Done => return Self::Finished,
        };
        if is_progress { Self::Made } else { Self::None }
    }
}

/// The end of one time limit.
#[derive(Debug)]
struct Deadline {
    /// The end of the time limit, moved by the stalls in the clock.
    due: Instant,
    limit: Duration,
    /// The configuration key of the limit.
    key: &'static str,
    /// The part of the clock's time that is already added to `due`.
    counted_stalls: Duration,
    /// The deadline that a late check has set. It applies while it is later than `due`: the clock adds the same
    /// stall to `due` afterwards.
    grace_until: Option<Instant>,
}

impl Deadline {
    fn new(now: Instant, limit: Duration, key: &'static str, clock: &HostLagClock) -> Self {
        Self { due: now + limit, limit, key, counted_stalls: clock.stalled(), grace_until: None }
    }

    fn at(&self) -> Instant {
        self.grace_until.map_or(self.due, |until| until.max(self.due))
    }

    /// Returns true if the deadline has passed. First adds the time for which the host was stalled since the limit
    /// started. `woken` is the time of this check.
    fn is_over(&mut self, woken: Instant, clock: &HostLagClock) -> bool {
        let stalled = clock.stalled();
        self.due += stalled.saturating_sub(self.counted_stalls);
        self.counted_stalls = stalled;
        // The stall that delayed this check may not be in the clock yet.
        let is_late = HostLagClock::is_stall(woken.saturating_duration_since(self.due));
        if is_late && self.grace_until.is_none() {
            self.grace_until = Some(woken + self.limit.min(GRACE_MAX));
        }
        self.at() <= woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_values::types::Usage;
    use callsheet_wire::CallDelta;

    const LIMIT: Duration = Duration::from_secs(1);

    fn deadline(clock: &HostLagClock, progress: Duration) -> ResponseDeadline {
        let limits = TimeLimits { first_event: LIMIT, idle: LIMIT, progress, answer: LIMIT };
        ResponseDeadline::new(limits, true, clock.clone())
    }

    #[tokio::test(start_paused = true)]
    async fn the_hosts_own_stalls_do_not_count() {
        let clock = HostLagClock::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        // The same holds for the limit of silence, and for that of progress.
        for is_progress in [false, true] {
            let restarted = || {
                let mut deadline = deadline(&clock, if is_progress { LIMIT } else { LIMIT * 100 });
                deadline.handle_bytes(start, Progress::Made);
                if is_progress {
                    deadline.silence.due += LIMIT * 100;
                }
                deadline
            };
            let is_over =
                |deadline: &mut ResponseDeadline, ms| deadline.check(at(ms), "it").is_some();
            let mut deadline = restarted();
            assert!(!is_over(&mut deadline, 999));
            // A short delay is usual, and is no stall.
            clock.add_delay(Duration::from_millis(49));
            assert!(is_over(&mut deadline, 1001));

            let mut deadline = restarted();
            clock.add_delay(Duration::from_millis(300));
            assert!(!is_over(&mut deadline, 1000));
            assert_eq!(deadline.at(), at(1300));
            // The same stall counts once.
            assert!(is_over(&mut deadline, 1300));

            // The check itself was late, and the clock has not noticed yet.
            let mut deadline = restarted();
            assert!(!is_over(&mut deadline, 5000));
            assert_eq!(deadline.at(), at(5500));
            // This wait counts once, so that a busy host waits for a dead service at most so much longer.
            assert!(is_over(&mut deadline, 9000));

            // The clock notices the stall after the late check. It counts once.
            let mut deadline = restarted();
            assert!(!is_over(&mut deadline, 5000));
            clock.add_delay(Duration::from_millis(4800));
            assert!(!is_over(&mut deadline, 5500));
            assert_eq!(deadline.at(), at(5800));
            assert!(is_over(&mut deadline, 5800));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_end_a_silence_and_only_progress_renews_the_other_limit() {
        let clock = HostLagClock::default();
        let mut deadline = deadline(&clock, 10 * LIMIT);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(deadline.at(), at(1000));
        let error = deadline.check(at(1001), "it").unwrap();
        let expected =
            "it was silent for 1s; raise the model's first_event_timeout if it needs longer";
        assert_eq!(error.message, expected);
        for ms in (500..10_400).step_by(800) {
            deadline.handle_bytes(at(ms), Progress::None);
            assert_eq!(deadline.check(at(ms + 1), "it"), None);
        }
        assert_eq!(deadline.at(), at(10_500));
        assert_eq!(deadline.check(at(10_499), "it"), None);
        let error = deadline.check(at(10_501), "it").unwrap();
        let expected = "it made no progress (no text, no thinking, no call) for 10s; raise the model's \
                        progress_timeout if it needs longer";
        assert_eq!(error.message, expected);
        deadline.handle_bytes(at(10_501), Progress::Made);
        let error = deadline.check(at(11_502), "it").unwrap();
        let expected = "it was silent for 1s; raise the model's idle_timeout if it needs longer";
        assert_eq!(error.message, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn signs_of_life_after_the_finish_reason_do_not_delay_the_end() {
        let mut deadline = deadline(&HostLagClock::default(), 10 * LIMIT);
        let start = Instant::now();
        deadline.handle_bytes(start, Progress::Finished);
        let later = start + Duration::from_millis(900);
        deadline.handle_bytes(later, Progress::None);
        assert_eq!(deadline.at(), start + LIMIT);
        deadline.handle_bytes(later, Progress::Made);
        assert_eq!(deadline.at(), later + LIMIT);
    }

    #[test]
    fn counts_and_empty_pieces_are_no_progress() {
        let usage = Delta::Usage { usage: Usage::default(), raw: "{}".into() };
        let empty = [usage, Delta::Text(String::new()), Delta::Call(CallDelta::default())];
        assert_eq!(Progress::of(&empty), Progress::None);
        let text = Delta::Reasoning("hm".to_owned());
        assert_eq!(Progress::of(&[text.clone(), empty[0].clone()]), Progress::Made);
        assert_eq!(Progress::of(&[text, Delta::Done]), Progress::Finished);
    }
}
