//! Checks that a host can have written a session's records: every invariant that they can breach.
//!
//! The verifier is pure: entries go in, breaches come out. The [`Transcript`] lists the records in
//! places where they cannot be; the verifier adds the records that contradict each other. A journal
//! is legal if the session and turn machines can write it, also when they resume after a crash.
//! Tests verify the journals that the turn machine writes.
//!
//! | file | invariants |
//! | --- | --- |
//! | this one | the session's opening, forks and end, its history |
//! | `run` | runs, inputs, and a run's sums |
//! | `turn` | attempts, responses and commits |
//! | `call` | outcomes, intents, approvals, writes |
//! | `agent` | leases and child sessions of calls of agents |

mod agent;
mod call;
#[cfg(test)]
mod mutations;
mod run;
#[cfg(test)]
mod tests;
mod turn;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

pub use agent::verify_children;

use super::export::whole_history;
use crate::context::{History, InitialHistory};
use crate::message::Message;
use crate::record::JournalEntry;
use crate::transcript::{Breach, Invariant, RecordLocation, Transcript};
use crate::types::{CallKey, RunId, Seq, SessionId};

/// Returns the breaches in a session's records, in their order. A run that has not ended is no
/// breach: see [`unfinished`].
#[must_use]
pub fn verify(session: &SessionId, entries: &[JournalEntry]) -> Vec<Breach> {
    let (breaches, last) = record_breaches(session, entries);
    with_history_breaches(breaches, last, entries)
}

/// Does the same as [`verify`], and drops each entry when its messages are in the history, so that those of a large
/// session are in memory once.
#[must_use]
pub(crate) fn verify_and_drop(session: &SessionId, entries: Vec<JournalEntry>) -> Vec<Breach> {
    let (breaches, last) = record_breaches(session, &entries);
    with_history_breaches(breaches, last, entries)
}

/// Returns the breaches in the records without those in the history that results, and the position of the last record.
fn record_breaches(session: &SessionId, entries: &[JournalEntry]) -> (Vec<Breach>, Seq) {
    let transcript = Transcript::read(entries);
    let mut verifier = Verifier {
        session,
        transcript: &transcript,
        breaches: transcript.breaches.clone(),
        intents: BTreeMap::new(),
        opens_with_calls: false,
    };
    verifier.check_session();
    verifier.check_runs();
    for run in &transcript.runs {
        run.turns.iter().for_each(|turn| verifier.check_turn(run, turn));
        verifier.check_leases(run);
    }
    (verifier.breaches, transcript.last().unwrap_or_default().seq)
}

/// Adds the breach in the history that the records result in, and sorts all by their records.
fn with_history_breaches(
    mut breaches: Vec<Breach>,
    last: Seq,
    entries: impl IntoIterator<Item = impl Borrow<JournalEntry>>,
) -> Vec<Breach> {
    match history_breach(last, entries) {
        // A contradiction that has been listed already mostly causes this breach.
        Some(breach) if breach.invariant == Invariant::Pairing || breaches.is_empty() => {
            breaches.push(breach);
        }
        Some(_) | None => {}
    }
    breaches.sort_by_key(|breach| breach.seq);
    breaches
}

/// Checks that the history that these records result in can be sent without repairs.
fn history_breach(
    last: Seq,
    entries: impl IntoIterator<Item = impl Borrow<JournalEntry>>,
) -> Option<Breach> {
    let breach = |seq, invariant, message| Some(Breach { seq, invariant, message });
    let history = match whole_history(entries) {
        Ok(history) => history,
        Err(error) => return breach(error.seq, Invariant::Session, error.what),
    };
    for message in history.messages().iter() {
        let Message::Assistant(response) = message.as_ref() else { continue };
        let calls = &response.calls;
        let ids: BTreeSet<&str> = calls.iter().map(|call| &*call.id).collect();
        if ids.len() < calls.len() {
            // The check of the pairing below relies on different ids.
            let message = "the history has two calls of a turn with the same id";
            return breach(last, Invariant::Pairing, message.to_owned());
        }
    }
    match history.request_messages() {
        (_, 0) => None,
        (_, repairs) => {
            let message = format!("the history needs {repairs} repairs before it can be sent");
            breach(last, Invariant::Pairing, message)
        }
    }
}

/// Returns the run that is open at the end of these records.
#[must_use]
pub fn unfinished(entries: &[JournalEntry]) -> Option<&RunId> {
    Transcript::read(entries).open_run()?.id()
}

struct Verifier<'t, 'a> {
    session: &'t SessionId,
    transcript: &'t Transcript<'a>,
    breaches: Vec<Breach>,
    /// The call of each idempotency key.
    intents: BTreeMap<&'a str, CallKey>,
    /// True if the session was opened with calls that its first turn runs.
    opens_with_calls: bool,
}

impl Verifier<'_, '_> {
    /// Adds a breach unless the condition holds.
    fn require(
        &mut self,
        condition: bool,
        at: RecordLocation,
        invariant: Invariant,
        message: impl FnOnce() -> String,
    ) {
        if !condition {
            self.breaches.push(Breach { seq: at.seq, invariant, message: message() });
        }
    }

    fn check_session(&mut self) {
        let transcript = self.transcript;
        if let Some(opening) = transcript.opening {
            if let Some(parent) = opening.parent {
                self.check_parent(opening.at, parent);
            }
            match InitialHistory::parse(opening.messages) {
                Ok(seed) => {
                    self.opens_with_calls = History::from_initial(seed).initial_calls().is_some()
                }
                Err(error) => {
                    self.require(false, opening.at, Invariant::Pairing, || error.to_string());
                }
            }
        }
        for fork in &transcript.forks {
            let (from, last) = (fork.from, fork.last_copied);
            self.require(last.0 + 1 == fork.at.seq.0, fork.at, Invariant::Session, || {
                format!("the records copied from {from} end at {last}, and not right before it")
            });
        }
        if let Some(closed) = transcript.closed {
            let is_over = transcript.open_run().is_none();
            self.require(is_over, closed, Invariant::Run, || {
                "the session is closed while a run is open".to_owned()
            });
        }
    }
}
