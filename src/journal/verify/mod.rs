//! Whether a session's records can be what a host wrote: every invariant of the design that shows
//! in them.
//!
//! Pure: entries go in, breaches come out. What is legal is what the turn machine does, also when
//! it goes on after a crash; tests let it write journals and read them here. What is checked where:
//!
//! | file | invariants |
//! | --- | --- |
//! | this one | numbers, times, the session's begin and end, its history |
//! | `run` | runs, inputs, and a run's sums |
//! | `turn` | turns and attempts, responses and commits |
//! | `call` | outcomes, intents, approvals, writes |

mod call;
#[cfg(test)]
mod mutations;
mod run;
#[cfg(test)]
mod tests;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::export::whole_history;
use crate::context::{History, InitialHistory};
use crate::message::Message;
use crate::record::{JournalEntry, Record, Seq};
use crate::types::{CallKey, Content, RunId, SessionId};
use run::OpenRun;
use turn::OpenTurn;

/// How far a clock that is set back may let times fall, in milliseconds: a day.
const TIME_FALL_MAX_MS: u64 = 24 * 60 * 60 * 1000;

/// Something in a journal that no host writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The record at which it shows.
    pub seq: Seq,
    /// What is broken.
    pub invariant: Invariant,
    /// What is seen, for people.
    pub what: String,
}

/// What has to be true of a session's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Invariant {
    /// Places count from 1 without gaps.
    Numbering,
    /// Times do not fall, but for a clock that is set right.
    Time,
    /// A session is opened by its first record and by no other, and closed by its last.
    Session,
    /// Runs do not overlap, and each has its own id.
    Run,
    /// Turns are consecutive, and so are the attempts of each.
    Turn,
    /// A turn has one response, which agrees with how its attempt ended.
    Response,
    /// Every call that is kept has one outcome, and no other call has one.
    Outcome,
    /// An effect's intent comes before its outcome, always under the same key.
    Intent,
    /// People answer what they are asked, and their first answer stands.
    Approval,
    /// Variables are written by calls that succeeded, and as these reported it.
    Writes,
    /// A commit agrees with the records of its turn.
    Commit,
    /// The history can be sent to a provider as it is.
    Pairing,
    /// A run's sums agree with its turns.
    Sums,
}

impl Invariant {
    /// The word for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Numbering => "numbering",
            Self::Time => "time",
            Self::Session => "session",
            Self::Run => "run",
            Self::Turn => "turn",
            Self::Response => "response",
            Self::Outcome => "outcome",
            Self::Intent => "intent",
            Self::Approval => "approval",
            Self::Writes => "writes",
            Self::Commit => "commit",
            Self::Pairing => "pairing",
            Self::Sums => "sums",
        }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}: {} ({})", self.seq, self.what, self.invariant.as_str())
    }
}

/// What is wrong with a session's records, in their order. A run that has not ended is no breach:
/// see [`unfinished`].
#[must_use]
pub fn verify(session: &SessionId, entries: &[JournalEntry]) -> Vec<Breach> {
    let fork = entries.iter().rposition(|e| matches!(e.record, Record::SessionForked { .. }));
    let mut verifier = Verifier {
        session,
        own_from: fork.map_or(0, |place| place + 1),
        seq: Seq(0),
        breaches: Vec::new(),
        opens_with_calls: false,
        closed: false,
        run: None,
        started: BTreeSet::new(),
        queued: BTreeMap::new(),
        turn: None,
        last_turn: 0,
        gave_up: false,
        intents: BTreeMap::new(),
    };
    let mut last_time = 0;
    for (place, entry) in entries.iter().enumerate() {
        verifier.place(place, entry, &mut last_time);
        verifier.record(place, &entry.record);
    }
    verifier.history(entries);
    verifier.breaches
}

/// The run that goes on at the end of these records, if one does.
#[must_use]
pub fn unfinished(entries: &[JournalEntry]) -> Option<&RunId> {
    for entry in entries.iter().rev() {
        match &entry.record {
            Record::RunStarted { run_id, .. } => return Some(run_id),
            Record::RunEnded { .. } => return None,
            Record::SessionOpened { .. }
            | Record::SessionForked { .. }
            | Record::InputQueued { .. }
            | Record::AttemptStarted { .. }
            | Record::AttemptFailed { .. }
            | Record::ResponseEnded { .. }
            | Record::CallIntended { .. }
            | Record::CallReported { .. }
            | Record::ApprovalAsked { .. }
            | Record::ApprovalGiven { .. }
            | Record::CallEnded { .. }
            | Record::TurnCommitted { .. }
            | Record::Steered { .. }
            | Record::StopAsked { .. }
            | Record::LimitReached { .. }
            | Record::SessionClosed => {}
        }
    }
    None
}

/// What the records so far say.
struct Verifier<'a> {
    session: &'a SessionId,
    /// From this place on the records are not those of a session that this one was forked from.
    own_from: usize,
    seq: Seq,
    breaches: Vec<Breach>,
    /// Whether the first turn begins with calls that the session was opened with.
    opens_with_calls: bool,
    closed: bool,
    run: Option<OpenRun<'a>>,
    started: BTreeSet<&'a str>,
    queued: BTreeMap<&'a str, &'a Content>,
    turn: Option<OpenTurn<'a>>,
    /// The last turn that was begun.
    last_turn: u32,
    /// The last run was given up, and a turn of it may have left no record.
    gave_up: bool,
    /// Whose each idempotency key is.
    intents: BTreeMap<&'a str, CallKey>,
}

impl<'a> Verifier<'a> {
    fn breach(&mut self, invariant: Invariant, what: impl Into<String>) {
        self.breaches.push(Breach { seq: self.seq, invariant, what: what.into() });
    }

    fn place(&mut self, place: usize, entry: &JournalEntry, last_time: &mut u64) {
        self.seq = entry.seq;
        let expected = place as u64 + 1;
        if entry.seq.0 != expected {
            let what = format!("its number should be {expected}");
            self.breach(Invariant::Numbering, what);
        }
        let fallen = last_time.saturating_sub(entry.time);
        if fallen > TIME_FALL_MAX_MS {
            let what = format!("its time is {} s before that of an earlier one", fallen / 1000);
            self.breach(Invariant::Time, what);
        }
        *last_time = entry.time.max(*last_time);
        let opens = matches!(entry.record, Record::SessionOpened { .. });
        if opens != (place == 0) {
            let what = if opens { "the session is opened again" } else { "nothing opened it" };
            self.breach(Invariant::Session, what);
        }
        if self.closed {
            self.breach(Invariant::Session, "it comes after the session was closed");
        }
        if entry.shown > 0 && self.run.is_none() {
            self.breach(Invariant::Run, "it counts what was shown of a run, and none goes on");
        }
    }

    fn record(&mut self, place: usize, record: &'a Record) {
        match record {
            Record::SessionOpened { messages, .. } => match InitialHistory::parse(messages) {
                Ok(seed) => {
                    self.opens_with_calls = History::from_initial(seed).open_calls().is_some();
                }
                Err(error) => self.breach(Invariant::Pairing, error.to_string()),
            },
            Record::SessionForked { from, at } => self.forked(from, *at),
            Record::InputQueued { run_id, input, .. } => self.input_queued(run_id, input),
            Record::RunStarted { run_id, input, execution, .. } => {
                self.run_started(run_id, input, *execution);
            }
            Record::AttemptStarted { turn, attempt, .. } => self.attempt_started(*turn, *attempt),
            Record::AttemptFailed { turn, attempt, kept, usage, .. } => {
                self.attempt_failed(*turn, *attempt, *kept, *usage);
            }
            Record::ResponseEnded { turn, attempt, .. } => {
                self.response_ended(*turn, *attempt, record);
            }
            Record::CallIntended { call, idempotency_key, so_far } => {
                self.call_intended(call, idempotency_key, place >= self.own_from);
                self.partial_response(call, so_far.as_deref());
            }
            Record::CallReported { key, writes, .. } => self.call_reported(*key, writes),
            Record::ApprovalAsked { asked } => self.approval_asked(asked),
            Record::ApprovalGiven { key, phase, verdict, .. } => {
                self.approval_given(*key, *phase, *verdict);
            }
            Record::CallEnded { .. } => self.call_ended(record),
            Record::TurnCommitted { turn, end, summary } => {
                self.turn_committed(*turn, end, summary);
            }
            Record::Steered { after_turn, .. } => self.steered(*after_turn),
            Record::StopAsked { .. } => self.needs_run("somebody asked a run to stop"),
            Record::LimitReached { .. } => self.needs_run("a limit of a run was reached"),
            Record::RunEnded { .. } => self.run_ended(record),
            Record::SessionClosed => {
                if self.run.is_some() {
                    self.breach(Invariant::Run, "the session is closed, and a run goes on");
                }
                self.closed = true;
            }
        }
    }

    /// What stood before is another session's; whatever went on there does not go on here.
    fn forked(&mut self, from: &SessionId, at: Seq) {
        if at.0 + 1 != self.seq.0 {
            let what = format!("what it takes over of {from} ends at {at}, and not before it");
            self.breach(Invariant::Session, what);
        }
        // What waits in the other one is its own business.
        self.queued.clear();
    }

    /// The history that these records fold to can be sent without repairs.
    fn history(&mut self, entries: &[JournalEntry]) {
        let history = match whole_history(entries) {
            Ok(history) => history,
            Err(error) => {
                // Mostly said above, in words of its own.
                if self.breaches.is_empty() {
                    self.seq = error.seq;
                    self.breach(Invariant::Session, error.what);
                }
                return;
            }
        };
        for message in history.messages().iter() {
            let Message::Assistant(response) = message.as_ref() else { continue };
            let calls = &response.calls;
            let ids: BTreeSet<&str> = calls.iter().map(|call| &*call.id).collect();
            if ids.len() < calls.len() {
                // The check of the pairing takes for granted that there is none.
                self.breach(Invariant::Pairing, "the history holds one id for two calls of a turn");
                return;
            }
        }
        let (_, repairs) = history.request_messages();
        if repairs > 0 {
            let what = format!("the history needs {repairs} repairs before it can be sent");
            self.breach(Invariant::Pairing, what);
        }
    }
}
