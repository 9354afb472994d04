//! Reads the values of references (`$VAR_REF{{ID}}` in the arguments of a call, see [`Reference`]) from the
//! session's journal: results, arguments and answers. The turn has the variables itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use ractor::ActorRef;

use super::error::HostError;
use super::handle::SessionHandle;
use super::host_ref::HostRef;
use super::message::SessionMessage;
use super::supervision::call;
use crate::journal::{Journal, JournalError, SessionLog};
use callsheet_machines::context::{
    ReferenceValues, add_value, may_affect_reference, recorded_result, stored_value,
};
use callsheet_machines::session::RecordRange;
use callsheet_tools::ReferenceReader;
use callsheet_values::record::{JournalEntry, Record, Seq};
use callsheet_values::transcript::Transcript;
use callsheet_values::types::{
    CallKey, Reference, ReferenceError, ReferencedValue, SessionId, ToolOutcome,
};

/// Number of records that are read at once. Those that are not needed are dropped after each read, so that few are in
/// memory.
const PART_RECORDS: usize = 16;

/// Reads the values of the references of one session.
pub(super) struct SessionReferences {
    pub(super) id: SessionId,
    /// The session, which knows the positions of the records.
    pub(super) session: ActorRef<SessionMessage>,
    pub(super) log: Arc<SessionLog>,
    pub(super) host_ref: HostRef,
}

impl SessionReferences {
    /// Returns the values of these references, none of which is a variable. Fails if they have more than
    /// `bytes_max` bytes.
    pub(super) async fn read_all(
        &self,
        references: BTreeSet<Reference>,
        bytes_max: usize,
    ) -> Result<ReferenceValues, ReferenceError> {
        let (mut values, mut bytes) = (ReferenceValues::new(), 0);
        for reference in references {
            let value = self.read(&reference).await?;
            add_value(&mut values, &mut bytes, (reference, value), bytes_max)?;
        }
        Ok(values)
    }
}

#[async_trait]
impl ReferenceReader for SessionReferences {
    async fn read(&self, reference: &Reference) -> Result<ReferencedValue, ReferenceError> {
        self.read_value(reference).await
    }
}

impl SessionReferences {
    /// Finds the records of a reference and returns its value.
    ///
    /// Boxed, because the `where` clauses of an `async_trait` method keep the compiler from caching what it proves
    /// about the futures in it.
    fn read_value<'a>(
        &'a self,
        reference: &'a Reference,
    ) -> BoxFuture<'a, Result<ReferencedValue, ReferenceError>> {
        Box::pin(async move {
            let locate = |reply| SessionMessage::Locate { reference: reference.clone(), reply };
            let ended = |_| ReferenceError::Unreadable("the session has ended".to_owned());
            let located = call(&self.session, locate).await.map_err(ended)??;
            let of_reference = reference.clone();
            let is_needed = move |record: &Record| may_affect_reference(record, &of_reference);
            let records = read_range(&self.host_ref, &self.id, &self.log, located, is_needed).await;
            let records = records.map_err(|error| ReferenceError::Unreadable(error.to_string()))?;
            stored_value(&records, reference)
        })
    }
}

/// The result of a call, as the journal holds it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StoredResult {
    /// The call.
    pub key: CallKey,
    /// The name of its tool.
    pub tool_name: Arc<str>,
    /// Its outcome.
    pub outcome: ToolOutcome,
}

impl SessionHandle {
    /// Returns the whole result of a call whose response has ended.
    ///
    /// # Errors
    /// If the session has no such result, or it cannot be read.
    pub async fn result(&self, key: CallKey) -> Result<StoredResult, HostError> {
        let reference = Reference::Result(key);
        let is_needed = move |record: &Record| may_affect_reference(record, &reference);
        let missing = || HostError::NoSuchResult(key.to_string());
        let records = self.records_of_turn(key, is_needed).await?.ok_or_else(missing)?;
        let records = Transcript::read(&records);
        let (call, outcome) = recorded_result(&records, key).ok_or_else(missing)?;
        Ok(StoredResult { key, tool_name: Arc::clone(&call.name), outcome: outcome.clone() })
    }

    /// Returns the needed records of a call's turn. `None` if the session has no such turn.
    pub(super) async fn records_of_turn(
        &self,
        key: CallKey,
        is_needed: impl Fn(&Record) -> bool + Send + 'static,
    ) -> Result<Option<Vec<JournalEntry>>, HostError> {
        let reference = Reference::Result(key);
        let locate = |reply| SessionMessage::Locate { reference: reference.clone(), reply };
        let (located, awake_session) = self.host_ref.request(self.id(), locate).await?;
        let Ok(range) = located else { return Ok(None) };
        let log = &awake_session.log;
        read_range(&self.host_ref, self.id(), log, range, is_needed).await.map(Some)
    }
}

/// Returns the needed records of a range, as soon as all are durable.
async fn read_range(
    host_ref: &HostRef,
    id: &SessionId,
    log: &SessionLog,
    range: RecordRange,
    is_needed: impl Fn(&Record) -> bool + Send + 'static,
) -> Result<Vec<JournalEntry>, HostError> {
    let RecordRange { after, upto } = range;
    // Without an end, the turn is not committed: all its records so far.
    let upto = upto.unwrap_or_else(|| log.last_seq());
    log.wait_durable(upto).await?;
    Ok(read_needed(&*host_ref.shared.journal, id, (after, upto), is_needed).await?)
}

/// Returns the needed records after the first position, up to and including the second.
async fn read_needed(
    journal: &dyn Journal,
    id: &SessionId,
    (mut after, upto): (Seq, Seq),
    is_needed: impl Fn(&Record) -> bool,
) -> Result<Vec<JournalEntry>, JournalError> {
    let mut needed = Vec::new();
    while after < upto {
        // The numbers of records have no gaps. Records after `upto` may not be durable.
        let left = usize::try_from(upto.0 - after.0).unwrap_or(usize::MAX);
        let read = journal.read_some(id, after, left.min(PART_RECORDS)).await?;
        let Some(last) = read.last() else { break };
        after = last.seq;
        needed.extend(read.into_iter().filter(|entry| is_needed(&entry.record)));
    }
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{MemoryJournal, Urgency};
    use callsheet_values::record::StopMode;

    #[tokio::test]
    async fn records_after_the_range_are_not_read() {
        let journal = Arc::new(MemoryJournal::new());
        let id = SessionId::parse("s").unwrap();
        let engine = Arc::clone(&journal) as Arc<dyn Journal>;
        let log = SessionLog::new(id.clone(), engine, Seq(0), |_| ());
        let records =
            vec![Record::StopAsked { mode: StopMode::Now, authored_by: None }; 3 * PART_RECORDS];
        log.append(records, Urgency::Urgent, || ());
        for (after, upto) in [(0, 1), (2, 2), (2, 5), (0, 16), (0, 18), (3, 40), (40, 48)] {
            let range = (Seq(after), Seq(upto));
            let read = read_needed(&*journal, &id, range, |_| true).await.unwrap();
            let numbers: Vec<_> = read.iter().map(|entry| entry.seq.0).collect();
            assert_eq!(numbers, (after + 1..=upto).collect::<Vec<_>>(), "{after} {upto}");
        }
    }
}
