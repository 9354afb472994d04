//! Copies sessions from one journal to another, of any engine.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Batch, BatchStatus, EngineLogState, Journal, JournalEntry, JournalError, restored};
use callsheet_values::record::Record;
use callsheet_values::types::SessionId;

/// Number of records of one batch, and their size in bytes, about.
const BATCH_RECORDS: usize = 1_000;
const BATCH_BYTES: usize = 4 << 20;

/// Marks a journal as a copy: a host that starts on it does not continue its runs until it is told to, because the hosts
/// of the original may continue them too.
///
/// # Errors
/// If the journal has sessions and is no copy yet, or the mark cannot be stored.
pub async fn mark_as_copy(journal: &dyn Journal) -> Result<(), JournalError> {
    if restored::is_waiting_copy(journal).await? {
        return Ok(());
    }
    if journal.count().await? > 0 {
        let reason = "it has sessions, and is no copy that was cut off: copy to an empty journal";
        return Err(JournalError::Write(reason.to_owned()));
    }
    let (key, text) = restored::MARK;
    journal.put_document(key, text, None).await
}

/// Stores a session with its entries, which keep their numbers and times. A part that is stored already, as by a copy that
/// was cut off, stays as it is. Returns false if all of it was stored.
///
/// The session at the root of a child session must be stored before it. A fork shares its first records with the session
/// that it was forked from, if that is stored.
///
/// # Errors
/// If the journal has another session with this id, or cannot store it.
pub async fn copy_session(
    journal: &dyn Journal,
    session: &SessionId,
    entries: Vec<JournalEntry>,
) -> Result<bool, JournalError> {
    let stored = journal.find(session).await?.map_or(0, |stored| stored.seq.0);
    if stored > 0 {
        let is_same = match entries.first() {
            Some(first) => {
                journal.read_some(session, super::Seq(0), 1).await?.first() == Some(first)
            }
            None => false,
        };
        if !is_same || entries.last().is_none_or(|last| last.seq.0 < stored) {
            let reason = format!("it has another session {session}: copy to an empty journal");
            return Err(JournalError::Write(reason));
        }
    }
    let mut entries: Vec<_> = entries.into_iter().filter(|entry| entry.seq.0 > stored).collect();
    if entries.is_empty() {
        return Ok(false);
    }
    let engine_state = Arc::<EngineLogState>::default();
    if stored == 0 {
        let shared = shared_records(journal, &entries).await?;
        // An opening batch whose last record says that the session was forked shares its records.
        let rest = entries.split_off(shared.unwrap_or(1));
        append(journal, session, &engine_state, entries).await?;
        entries = rest;
    }
    let mut batch = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        bytes += entry.body().len();
        batch.push(entry);
        if batch.len() >= BATCH_RECORDS || bytes >= BATCH_BYTES {
            append(journal, session, &engine_state, std::mem::take(&mut batch)).await?;
            bytes = 0;
        }
    }
    append(journal, session, &engine_state, batch).await?;
    Ok(true)
}

/// Returns the number of the first records that a fork shares with a stored session, with the record that it was forked.
async fn shared_records(
    journal: &dyn Journal,
    entries: &[JournalEntry],
) -> Result<Option<usize>, JournalError> {
    let forked = entries.iter().enumerate().rev().find_map(|(at, entry)| {
        let Record::SessionForked { from, .. } = &entry.record else { return None };
        Some((at + 1, from))
    });
    let Some((count, from)) = forked else { return Ok(None) };
    // Another session may have the id by now.
    let mut origin = journal.read_some(from, super::Seq(0), count - 1).await?;
    origin.truncate(count - 1);
    let is_origin = origin.iter().eq(entries.iter().take(count - 1));
    Ok(Some(count).filter(|_| is_origin))
}

async fn append(
    journal: &dyn Journal,
    session: &SessionId,
    engine_state: &Arc<EngineLogState>,
    entries: Vec<JournalEntry>,
) -> Result<(), JournalError> {
    if entries.is_empty() {
        return Ok(());
    }
    let (report, stored) = oneshot::channel();
    let mut report = Some(report);
    let on_status = Box::new(move |status| {
        let result = match status {
            BatchStatus::Written => return,
            BatchStatus::Durable => Ok(()),
            BatchStatus::Failed(error) => Err(error),
            BatchStatus::Refused(refusal) => Err(JournalError::Refused(refusal)),
        };
        // The receiver waits for it.
        let _ = report.take().map(|report| report.send(result));
    });
    let entries = entries.into_iter().map(Arc::new).collect();
    let mut batch = Batch::new(session.clone(), entries, Arc::clone(engine_state), on_status);
    batch.urgent = true;
    if journal.append(batch) == super::AppendStatus::Durable {
        return Ok(());
    }
    journal.flush(session);
    stored.await.unwrap_or(Err(JournalError::Closed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{MemoryJournal, SessionQuery};
    use callsheet_values::record::Seq;
    use callsheet_values::transcript::fixtures;

    fn id(text: &str) -> SessionId {
        SessionId::parse(text).unwrap()
    }

    #[tokio::test]
    async fn a_copy_that_was_cut_off_goes_on() {
        let entries = fixtures::entries(fixtures::sample_records());
        for cut in [0, 1, 2, entries.len() / 2, entries.len()] {
            let journal = MemoryJournal::new();
            let part = entries.get(..cut).unwrap().to_vec();
            if cut > 0 {
                assert_eq!(copy_session(&journal, &id("s"), part).await, Ok(true));
            }
            let is_rest = cut < entries.len();
            assert_eq!(copy_session(&journal, &id("s"), entries.clone()).await, Ok(is_rest));
            assert_eq!(journal.read(&id("s"), Seq(0)).await.unwrap(), entries);
            assert_eq!(journal.list(&SessionQuery::default()).await.unwrap().len(), 1);
            let other = entries.iter().cloned().map(|entry| JournalEntry { time: 7, ..entry });
            let refused = copy_session(&journal, &id("s"), other.collect()).await;
            assert!(refused.unwrap_err().to_string().contains("another session s"));
        }
    }
}
