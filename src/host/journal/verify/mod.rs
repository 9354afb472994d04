//! Checks a session's records against the invariants of a journal ([`Invariant`]).
//!
//! The verifier is pure: it receives entries and returns breaches. The [`Transcript`] reports records at
//! positions where they cannot be. The verifier adds the records that contradict each other. A journal that the
//! session and turn machines write has no breach, also when they resume after a crash. Tests verify the journals
//! that the turn machine writes.
//!
//! | file | invariants |
//! | --- | --- |
//! | this one | the session's opening, forks and end, its history |
//! | `run` | runs, inputs, and a run's sums |
//! | `turn` | attempts, responses and commits |
//! | `call` | outcomes, intents, approvals, hooks, writes |
//! | `agent` | leases and child sessions of agent calls |

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
use callsheet_machines::context::{History, InitialHistory};
use callsheet_values::message::Message;
use callsheet_values::record::JournalEntry;
use callsheet_values::transcript::{Breach, Invariant, RecordLocation, Transcript};
use callsheet_values::types::{CallKey, RunId, Seq, SessionId};

/// Returns the breaches in a session's records, in the order of the records. A run that has not ended is not
/// a breach: see [`open_run_id`].
#[must_use]
pub fn verify(session: &SessionId, entries: &[JournalEntry]) -> Vec<Breach> {
    let (breaches, last_seq) = record_breaches(session, entries);
    with_history_breaches(breaches, last_seq, entries)
}

/// Does the same as [`verify`], but drops each entry once its messages are in the history. The messages of a large
/// session are therefore not in memory twice.
#[must_use]
pub fn verify_and_drop(session: &SessionId, entries: Vec<JournalEntry>) -> Vec<Breach> {
    let (breaches, last_seq) = record_breaches(session, &entries);
    with_history_breaches(breaches, last_seq, entries)
}

/// Returns the breaches in the records, and the number of the last record. Does not check the history that the
/// records result in.
fn record_breaches(session: &SessionId, entries: &[JournalEntry]) -> (Vec<Breach>, Seq) {
    let transcript = Transcript::read(entries);
    let mut verifier = Verifier {
        session,
        transcript: &transcript,
        breaches: transcript.breaches.clone(),
        calls_by_idempotency_key: BTreeMap::new(),
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

/// Adds the breach in the history that the records result in, if there is one, and sorts all breaches by their
/// records.
fn with_history_breaches(
    mut breaches: Vec<Breach>,
    last_seq: Seq,
    entries: impl IntoIterator<Item = impl Borrow<JournalEntry>>,
) -> Vec<Breach> {
    match history_breach(last_seq, entries) {
        // A breach in the records usually breaks the history too. The breach in the history is therefore added
        // only if it is about pairing or there is no other breach.
        Some(breach) if breach.invariant == Invariant::Pairing || breaches.is_empty() => {
            breaches.push(breach);
        }
        Some(_) | None => {}
    }
    breaches.sort_by_key(|breach| breach.seq);
    breaches
}

/// Returns the first breach of the history that the records result in: a record that contradicts those before it, two
/// calls of a turn with the same id, or messages that need repairs before they can be sent.
fn history_breach(
    last_seq: Seq,
    entries: impl IntoIterator<Item = impl Borrow<JournalEntry>>,
) -> Option<Breach> {
    let pairing_breach =
        |message| Some(Breach { seq: last_seq, invariant: Invariant::Pairing, message });
    let history = match whole_history(entries) {
        Ok(history) => history,
        Err(error) => {
            let (seq, message) = (error.seq, error.what);
            return Some(Breach { seq, invariant: Invariant::Session, message });
        }
    };
    for message in history.messages().iter() {
        let Message::Assistant(response) = message.as_ref() else { continue };
        let calls = &response.calls;
        let ids: BTreeSet<&str> = calls.iter().map(|call| &*call.id).collect();
        if ids.len() < calls.len() {
            // The check of the pairing below relies on ids that differ.
            let message = "the history has two calls of a turn with the same id";
            return pairing_breach(message.to_owned());
        }
    }
    match history.request_messages() {
        (_, 0) => None,
        (_, repairs) => {
            pairing_breach(format!("the history needs {repairs} repairs before it can be sent"))
        }
    }
}

/// Returns the run that is open at the end of these records.
#[must_use]
pub fn open_run_id(entries: &[JournalEntry]) -> Option<&RunId> {
    Transcript::read(entries).open_run()?.id()
}

struct Verifier<'t, 'a> {
    session: &'t SessionId,
    transcript: &'t Transcript<'a>,
    breaches: Vec<Breach>,
    /// The call whose intent first used each idempotency key.
    calls_by_idempotency_key: BTreeMap<&'a str, CallKey>,
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
                Ok(initial) => {
                    self.opens_with_calls = History::from_initial(initial).initial_calls().is_some()
                }
                Err(error) => {
                    self.require(false, opening.at, Invariant::Pairing, || error.to_string());
                }
            }
        }
        for fork in &transcript.forks {
            let (from, last) = (fork.from, fork.last_copied);
            let is_next = last.0.checked_add(1) == Some(fork.at.seq.0);
            self.require(is_next, fork.at, Invariant::Session, || {
                format!("the records of {from} end at {last}, not right before the fork's record")
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
