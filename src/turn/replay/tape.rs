//! The records that are played, and what they tell ahead of their place.

use std::collections::BTreeSet;

use crate::record::{JournalEntry, Record, ResponseMessage};
use crate::turn::CancelReason;
use crate::turn::effect::TurnEnd;
use crate::types::{CallKey, FailureKind, ProviderError, ReadSet, Usage};

/// The records of a session, read only.
#[derive(Debug)]
pub(crate) struct Tape<'a> {
    entries: &'a [JournalEntry],
    /// Records of calls that no message holds: what they were asked is not known any more, so
    /// that they stand as they are.
    passed_over: Vec<bool>,
}

/// What is recorded of a response that is kept.
#[derive(Clone, Copy)]
pub(super) struct Kept<'a> {
    pub(super) at: usize,
    pub(super) record: &'a Record,
}

impl<'a> Tape<'a> {
    pub(crate) fn new(entries: &'a [JournalEntry]) -> Self {
        let mut tape = Self { entries, passed_over: vec![false; entries.len()] };
        let passed_over = (0..entries.len()).map(|at| tape.is_of_nobody(at)).collect::<Vec<_>>();
        tape.passed_over = passed_over;
        tape
    }

    pub(crate) fn entry(&self, at: usize) -> Option<&'a JournalEntry> {
        self.entries.get(at)
    }

    pub(crate) fn record(&self, at: usize) -> Option<&'a Record> {
        self.entry(at).map(|entry| &entry.record)
    }

    /// The records from `at` on, each with its place.
    pub(crate) fn from(&self, at: usize) -> impl Iterator<Item = (usize, &'a Record)> + use<'a> {
        let entries = self.entries;
        entries.iter().enumerate().skip(at).map(|(at, entry)| (at, &entry.record))
    }

    /// The records from `at` on up to the one that ends the turn, or the run.
    pub(super) fn of_turn(&self, at: usize) -> impl Iterator<Item = (usize, &'a Record)> + use<'a> {
        let mut over = false;
        self.from(at).take_while(move |(_, record)| {
            let goes_on = !over;
            over |= matches!(record, Record::TurnCommitted { .. } | Record::RunEnded { .. });
            goes_on
        })
    }

    pub(super) fn is_passed_over(&self, at: usize) -> bool {
        self.passed_over.get(at).copied().unwrap_or_default()
    }

    /// The place of the next record that a machine has asked for.
    pub(crate) fn next_asked(&self, mut at: usize) -> usize {
        while self.is_passed_over(at) || self.record(at).is_some_and(is_input) {
            at += 1;
        }
        at
    }

    /// The response of an attempt, from a place within its turn.
    pub(super) fn response(&self, from: usize, turn: u32, attempt: u32) -> Option<Kept<'a>> {
        let mut records = self.of_turn(from);
        let is_it = |record: &Record| {
            matches!(record, Record::ResponseEnded { turn: t, attempt: a, .. }
                if (*t, *a) == (turn, attempt))
        };
        records.find(|(_, record)| is_it(record)).map(|(at, record)| Kept { at, record })
    }

    /// How the attempt failed, if it did.
    pub(super) fn failure(
        &self,
        from: usize,
        turn: u32,
        attempt: u32,
    ) -> Option<(&'a ProviderError, Usage)> {
        self.of_turn(from).find_map(|(_, record)| {
            let Record::AttemptFailed { turn: t, attempt: a, error, usage, .. } = record else {
                return None;
            };
            ((*t, *a) == (turn, attempt)).then_some((error, *usage))
        })
    }

    /// Why the turn is cancelled from outside, if it is.
    pub(super) fn cancelled(&self, at: usize) -> Option<CancelReason> {
        self.of_turn(at).find_map(|(_, record)| {
            let Record::TurnCommitted { end: TurnEnd::Cancelled(why), .. } = record else {
                return None;
            };
            Some(*why).filter(|why| *why != CancelReason::Budget)
        })
    }

    /// What a call had read when it next answered, if that is recorded.
    pub(super) fn next_reads(&self, at: usize, of: CallKey) -> Option<&'a ReadSet> {
        self.of_turn(at).find_map(|(_, record)| {
            let Record::CallReported { key, reads, .. } = record else { return None };
            (*key == of).then_some(reads)
        })
    }

    /// Whether a call ever started, as its end says; none if it has no end.
    pub(super) fn started(&self, at: usize, of: CallKey) -> Option<bool> {
        self.of_turn(at).find_map(|(_, record)| {
            let Record::CallEnded { call, started_ms, amended: false, .. } = record else {
                return None;
            };
            (call.key == of).then_some(started_ms.is_some())
        })
    }

    /// The ends of calls from one place of a turn to another.
    pub(super) fn ended(
        &self,
        from: usize,
        to: usize,
    ) -> impl Iterator<Item = (CallKey, &'a Record)> + use<'a> {
        self.of_turn(from).take_while(move |(at, _)| *at < to).filter_map(|(_, record)| {
            let Record::CallEnded { call, .. } = record else { return None };
            Some((call.key, record))
        })
    }

    /// Whether the intent of a call is still to come.
    pub(super) fn is_intended(&self, at: usize, of: CallKey) -> bool {
        let mut records = self.of_turn(at);
        records.any(
            |(_, record)| matches!(record, Record::CallIntended { call, .. } if call.key == of),
        )
    }

    /// The calls that were ended together from `at` on because their time was over.
    pub(super) fn timed_out(&self, at: usize) -> Vec<CallKey> {
        let mut keys = Vec::new();
        for (_, record) in self.of_turn(at) {
            if let Record::CallEnded { call, outcome, .. } = record
                && outcome.kind == Some(FailureKind::Timeout)
            {
                keys.push(call.key);
            } else if !matches!(record, Record::LimitReached { limit, .. } if limit == "tool_timeout")
            {
                break;
            }
        }
        keys
    }

    /// Whether the run's own time was over when theirs was.
    pub(super) fn runs_out_of_time(&self, at: usize) -> bool {
        let mut records = self.of_turn(at).map(|(_, record)| record).skip_while(|record| {
            matches!(record, Record::CallEnded { .. })
                || matches!(record, Record::LimitReached { limit, .. } if limit == "tool_timeout")
        });
        let next = records.next();
        matches!(next, Some(Record::LimitReached { limit, .. }) if limit == "run_timeout")
    }

    /// Whether the record tells of a call that no message of its attempt holds.
    fn is_of_nobody(&self, at: usize) -> bool {
        let Some(record) = self.record(at) else { return false };
        let Some(key) = call_of(record) else {
            return matches!(record, Record::LimitReached { .. }) && self.is_limit_of_nobody(at);
        };
        let response = self.response(at, key.turn, key.attempt);
        // What comes behind a response looks for it before its own place.
        let response = response.or_else(|| self.response_before(at, key));
        let calls = response.and_then(|kept| message(kept.record)).map(|m| &m.calls);
        !calls.is_some_and(|calls| calls.iter().any(|call| call.key == key))
    }

    fn response_before(&self, at: usize, key: CallKey) -> Option<Kept<'a>> {
        let is_it = |record: &Record| {
            matches!(record, Record::ResponseEnded { turn, attempt, .. }
                if (*turn, *attempt) == (key.turn, key.attempt))
        };
        let mut earlier = self.entries.get(..at)?.iter().enumerate().rev();
        let found = earlier
            .by_ref()
            .take_while(|(_, entry)| !matches!(entry.record, Record::TurnCommitted { .. }))
            .find(|(_, entry)| is_it(&entry.record));
        found.map(|(at, entry)| Kept { at, record: &entry.record })
    }

    /// A limit that was told of within an attempt of which nothing is kept, or right behind the
    /// end of a call that no message holds.
    fn is_limit_of_nobody(&self, at: usize) -> bool {
        let before = at.checked_sub(1).and_then(|at| self.record(at));
        if let Some(Record::CallEnded { call, .. }) = before {
            let is_nobodys = at.checked_sub(1).is_some_and(|at| self.is_of_nobody(at));
            return is_nobodys && call.key.attempt > 0;
        }
        let earlier = self.entries.get(..at).unwrap_or_default().iter().rev();
        let open = earlier.map(|entry| &entry.record).find(|record| ends_exchange(record));
        if !matches!(open, Some(Record::AttemptStarted { .. })) {
            return false;
        }
        let next = self.from(at).map(|(_, record)| record).find(|record| ends_exchange(record));
        matches!(next, Some(Record::AttemptFailed { kept: false, .. }))
    }

    /// Calls of a response that were whole before it ended.
    pub(super) fn early(&self, from: usize, kept: Kept<'a>) -> BTreeSet<u32> {
        let mut early = BTreeSet::new();
        let Record::ResponseEnded { ending, message, .. } = kept.record else { return early };
        let is_well = *ending == crate::record::ResponseDisposition::Well;
        for (at, record) in self.of_turn(from) {
            let Some(key) = call_of(record) else { continue };
            if !message.calls.iter().any(|call| call.key == key) {
                continue;
            }
            let shows = if let Record::CallEnded { notes, started_ms, early, .. } = record {
                let ran = notes.duplicate_of.is_some() || started_ms.is_some();
                *early || notes.arguments_changed || (!is_well && ran)
            } else if let Record::CallReported { reads, .. } = record {
                self.missed_a_write(from, kept.at, key, reads)
            } else {
                false
            };
            if at < kept.at || shows {
                early.insert(key.index);
            }
        }
        early
    }

    /// Whether a call had not seen what an earlier one had answered before the response ended.
    fn missed_a_write(&self, from: usize, end: usize, key: CallKey, reads: &ReadSet) -> bool {
        // What had seen any write of the turn has begun behind the response.
        if reads.0.values().any(Option::is_some) {
            return false;
        }
        self.of_turn(from).take_while(|(at, _)| *at < end).any(|(_, record)| {
            let Record::CallReported { key: other, writes, .. } = record else { return false };
            let unseen = |name| reads.0.contains_key(name);
            other.index < key.index && writes.0.keys().any(unseen)
        })
    }
}

/// The message of a response.
pub(super) fn message(record: &Record) -> Option<&ResponseMessage> {
    let Record::ResponseEnded { message, .. } = record else { return None };
    Some(message)
}

/// Which call a record tells of.
pub(super) fn call_of(record: &Record) -> Option<CallKey> {
    match record {
        Record::CallIntended { call, .. } => Some(call.key),
        Record::CallReported { key, .. } | Record::ApprovalGiven { key, .. } => Some(*key),
        Record::ApprovalAsked { asked } => Some(asked.call.key),
        Record::CallEnded { call, .. } => Some(call.key),
        Record::SessionOpened { .. }
        | Record::SessionForked { .. }
        | Record::InputQueued { .. }
        | Record::RunStarted { .. }
        | Record::AttemptStarted { .. }
        | Record::AttemptFailed { .. }
        | Record::ResponseEnded { .. }
        | Record::TurnCommitted { .. }
        | Record::Steered { .. }
        | Record::StopAsked { .. }
        | Record::LimitReached { .. }
        | Record::RunEnded { .. }
        | Record::SessionClosed => None,
    }
}

/// Whether the record is something that came from outside, which no machine asks for.
pub(crate) fn is_input(record: &Record) -> bool {
    matches!(
        record,
        Record::InputQueued { .. }
            | Record::Steered { .. }
            | Record::StopAsked { .. }
            | Record::SessionForked { .. }
    )
}

fn ends_exchange(record: &Record) -> bool {
    matches!(
        record,
        Record::AttemptStarted { .. }
            | Record::AttemptFailed { .. }
            | Record::ResponseEnded { .. }
            | Record::TurnCommitted { .. }
            | Record::RunStarted { .. }
    )
}
