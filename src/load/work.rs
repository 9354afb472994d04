//! The tool of a load, and what it notes of its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};

/// The tool's name.
pub(super) const NAME: &str = "work";

/// `work {ms, i, pad}`: sleeps `ms` and answers `r<i>`. With 0 it does not sleep at all.
pub(super) struct Work(pub(super) Arc<Seats>);

#[derive(Deserialize, JsonSchema)]
struct Input {
    /// How long to work, in milliseconds.
    #[serde(default)]
    ms: u64,
    /// The number to answer.
    i: i64,
    /// Makes the arguments longer.
    #[serde(default)]
    #[expect(dead_code, reason = "it is there to be read from the wire")]
    pad: String,
}

#[async_trait]
impl Tool for Work {
    fn spec(&self) -> ToolSpec {
        let what = "Works for a while and answers with a number.";
        ToolSpec::new::<Input>(NAME, what).pure().repeatable()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let began = Instant::now();
        let Input { ms, i, .. } = context.input()?;
        if ms > 0 {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        let Self(seats) = self;
        if let Some(seat) = seats.of(context.idempotency_key()) {
            seat.worked(context.key().turn, seats.since(began), seats.now());
        }
        Ok(format!("r{i}").into())
    }
}

/// What the tool has to answer to these arguments.
pub(super) fn answer(arguments: &Value) -> String {
    format!("r{}", arguments.get("i").unwrap_or(&Value::Null))
}

/// What the tool notes for every session that runs.
#[derive(Debug)]
pub(super) struct Seats {
    epoch: Instant,
    /// What all sessions' names begin with: of this load alone.
    prefix: String,
    seats: Vec<Seat>,
}

/// The calls of the run that goes on, of its first turn with calls. Times are nanoseconds since the
/// epoch; 0 is none.
#[derive(Debug, Default)]
struct Seat {
    turn: AtomicU32,
    first: AtomicU64,
    ready: AtomicU64,
}

/// When the first tool of a run started, and when all of that turn had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Worked {
    pub(super) first: Instant,
    pub(super) ready: Instant,
}

impl Seats {
    pub(super) fn new(count: u32, load: u64) -> Self {
        Self {
            epoch: Instant::now(),
            prefix: format!("load-{load:x}-"),
            seats: (0..count).map(|_| Seat::default()).collect(),
        }
    }

    /// The name of a seat's session.
    pub(super) fn session_id(&self, seat: u32, generation: u32) -> String {
        format!("{}{seat}-{generation}", self.prefix)
    }

    /// A run begins.
    pub(super) fn begin(&self, seat: u32) {
        let Some(seat) = self.seats.get(seat as usize) else { return };
        for time in [&seat.first, &seat.ready] {
            time.store(0, Ordering::Relaxed);
        }
        seat.turn.store(0, Ordering::Relaxed);
    }

    /// What has been noted since.
    pub(super) fn worked(&self, seat: u32) -> Option<Worked> {
        let seat = self.seats.get(seat as usize)?;
        let time = |at: &AtomicU64| match at.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(self.epoch + Duration::from_nanos(nanos)),
        };
        Some(Worked { first: time(&seat.first)?, ready: time(&seat.ready)? })
    }

    /// The seat of the session that a call's idempotency key begins with.
    fn of(&self, key: &str) -> Option<&Seat> {
        let (seat, _) = key.strip_prefix(&self.prefix)?.split_once('-')?;
        self.seats.get(seat.parse::<usize>().ok()?)
    }

    fn now(&self) -> u64 {
        self.since(Instant::now())
    }

    fn since(&self, at: Instant) -> u64 {
        u64::try_from((at - self.epoch).as_nanos()).unwrap_or(u64::MAX).max(1)
    }
}

impl Seat {
    fn worked(&self, turn: u32, began: u64, ended: u64) {
        // The calls of one turn all come before those of the next.
        let first = self.turn.compare_exchange(0, turn, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err_and(|noted| noted != turn) {
            return;
        }
        let _ = self.first.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |noted| {
            (noted == 0 || began < noted).then_some(began)
        });
        self.ready.fetch_max(ended, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_seat_notes_the_first_start_and_the_last_end_of_the_first_turn_with_calls() {
        let seats = Seats::new(2, 0xab);
        let key = format!("{}/t3a1c0", seats.session_id(1, 7));
        assert_eq!(key, "load-ab-1-7/t3a1c0");
        assert_eq!(seats.worked(1), None);
        for (turn, began, ended) in [(3, 20, 50), (3, 10, 40), (4, 5, 90)] {
            seats.of(&key).unwrap().worked(turn, began, ended);
        }
        let at = |nanos| seats.epoch + Duration::from_nanos(nanos);
        assert_eq!(seats.worked(1), Some(Worked { first: at(10), ready: at(50) }));
        assert_eq!(seats.worked(0), None);
        seats.begin(1);
        assert_eq!(seats.worked(1), None);
        for other in ["ses_1/t1a1c0", "load-ab-2-0/t1a1c0", "load-ab-x-0/t1a1c0", "load-ab-1"] {
            assert!(seats.of(other).is_none(), "{other}");
        }
    }

    #[test]
    fn the_answer_is_the_number() {
        assert_eq!(answer(&json!({"i": 7, "ms": 3, "pad": "x"})), "r7");
        assert_eq!(answer(&json!({"i": -1})), "r-1");
    }
}
