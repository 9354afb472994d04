//! The outcomes of calls that the host knows, but could not store before their run failed because of the journal. They
//! are recorded with the failure of the run, when the journal works again.

use std::sync::Arc;

use callsheet_values::event::CallLabel;
use callsheet_values::record::{JournalEntry, Record, Seq};
use callsheet_values::transcript::{CallTranscript, Transcript, TurnTranscript};
use callsheet_values::types::{CallKey, FailureKind, ToolCall, ToolOutcome, ToolStatus};

/// The text of a call with effects that was running when the journal failed.
const LOST: &str =
    "Error: the journal could not be written during this call; it may or may not have happened";

/// Returns the records of outcomes after the last durable record, among the entries of a turn.
pub(super) fn known(entries: &[Arc<JournalEntry>], durable: Seq) -> Vec<Record> {
    let unstored = entries.iter().filter(|entry| entry.seq > durable);
    unstored
        .filter(|entry| outcome_of(&entry.record).is_some())
        .map(|entry| entry.record.clone())
        .collect()
}

/// Returns the records of outcomes for the calls of a turn that have none in its stored entries: those that are known,
/// and for other calls with effects that had started, that it is not known.
pub(super) fn to_record(entries: &[Arc<JournalEntry>], known: Vec<Record>) -> Vec<Record> {
    let transcript = Transcript::read(entries.iter().map(Arc::as_ref));
    let turn = transcript.runs.last().and_then(|run| run.turns.last());
    let Some(attempt) = turn.and_then(TurnTranscript::attempt) else { return Vec::new() };
    let has_outcome =
        |call: &CallTranscript<'_>| call.outcome().is_some() || !call.reports.is_empty();
    let stored = |key: &CallKey| attempt.calls.get(key);
    let is_called = |key: &CallKey| {
        let calls = attempt.response.iter().flat_map(|response| &response.message.calls);
        calls.map(|call| call.key).any(|called| called == *key) || stored(key).is_some()
    };
    let mut records: Vec<Record> = Vec::new();
    for record in known {
        let Some(key) = outcome_of(&record) else { continue };
        if is_called(&key) && !stored(&key).is_some_and(has_outcome) {
            records.push(record);
        }
    }
    let is_known = |key: &CallKey| records.iter().any(|known| outcome_of(known) == Some(*key));
    let lost = attempt.calls.iter().filter(|(key, call)| !has_outcome(call) && !is_known(key));
    let lost = lost.filter_map(|(_, call)| Some(unknown(call.intents.last()?.call)));
    let lost: Vec<Record> = lost.collect();
    records.extend(lost);
    records
}

/// Returns the call whose outcome a record has.
fn outcome_of(record: &Record) -> Option<CallKey> {
    if let Record::CallEnded { call, amended: false, .. } = record {
        return Some(call.key);
    }
    if let Record::CallReported { key, .. } = record { Some(*key) } else { None }
}

fn unknown(call: &ToolCall) -> Record {
    Record::CallEnded {
        call: CallLabel {
            key: call.key,
            provider_id: call.provider_id.clone(),
            name: call.name.clone(),
        },
        outcome: ToolOutcome::not_ok(ToolStatus::Unknown, FailureKind::HostStopped, LOST),
        notes: Default::default(),
        writes: Default::default(),
        started: None,
        wait: Default::default(),
        duration: Default::default(),
        early: false,
        amended: false,
    }
}
