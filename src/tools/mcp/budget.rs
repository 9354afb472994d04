//! The budget of a process, or of an event stream, for what the server sends without being asked:
//! `max_messages_per_second`, and as many more at once. A line of more than 64 KiB counts as several. An answer to a
//! request of the host costs nothing.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// The time for which the budget may be used up in advance.
const BURST: Duration = Duration::from_secs(1);

/// Number of bytes of a line that count as one message.
const MESSAGE_BYTES: usize = 64 << 10;

/// The budget of one connection.
#[derive(Debug)]
pub(super) struct MessageBudget {
    /// The time for which a message uses the budget.
    message_interval: Duration,
    /// The time until which the budget is used up.
    used_until: Option<Instant>,
    /// The number of requests whose answers have not arrived.
    awaited_answers: u64,
}

impl MessageBudget {
    pub(super) fn new(messages_per_second: NonZeroU32) -> Self {
        let message_interval = Duration::from_secs(1) / messages_per_second.get();
        Self { message_interval, used_until: None, awaited_answers: 0 }
    }

    /// Returns the time at which the next message may be read. `None`: now.
    pub(super) fn next_read(&self) -> Option<Instant> {
        let next = self.used_until?.checked_sub(BURST)?;
        (next > Instant::now()).then_some(next)
    }

    /// Uses the budget for a line.
    pub(super) fn spend(&mut self, bytes: usize) {
        let messages = u32::try_from(1 + bytes / MESSAGE_BYTES).unwrap_or(u32::MAX);
        let now = Instant::now();
        let from = self.used_until.map_or(now, |until| until.max(now));
        self.used_until = from.checked_add(self.message_interval.saturating_mul(messages));
    }

    /// Notes that a request was sent.
    pub(super) fn add_request(&mut self) {
        self.awaited_answers += 1;
    }

    /// Notes an answer. Returns false if no request awaits one.
    pub(super) fn take_answer(&mut self) -> bool {
        let is_awaited = self.awaited_answers > 0;
        self.awaited_answers -= u64::from(is_awaited);
        is_awaited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thousand_messages_come_at_once_and_a_thousand_each_second() {
        let (mut budget, began) =
            (MessageBudget::new(NonZeroU32::new(1_000).unwrap()), Instant::now());
        for read in 0..=3_000 {
            if let Some(next) = budget.next_read() {
                assert!(read > 1_000, "{read}");
                tokio::time::sleep_until(next).await;
            }
            budget.spend(10);
        }
        assert_eq!(began.elapsed(), Duration::from_secs(2));
        budget.spend(640 << 10);
        assert_eq!(budget.next_read(), Some(Instant::now() + Duration::from_millis(12)));
        budget.add_request();
        assert!(budget.take_answer() && !budget.take_answer());
    }
}
