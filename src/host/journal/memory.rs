//! The storage engine that keeps records in memory, until it is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    AppendStatus, Batch, BatchRefusal, BatchStatus, Journal, JournalEntry, JournalError,
    JournalFuture, SessionOrder, SessionQuery, SessionSummary, unix_ms,
};
use callsheet_values::record::{HISTORY_POINTS, Seq};
use callsheet_values::types::SessionId;

/// Stores records in memory. Every batch counts as durable at once.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// use std::sync::Arc;
///
/// use callsheet::journal::MemoryJournal;
///
/// // A second host continues the sessions of the first.
/// let journal = Arc::new(MemoryJournal::new());
/// let host = Host::builder().model_source("fake", model.clone()).journal(journal.clone()).start().await?;
/// host.open_session("demo").await?;
/// host.shutdown().await;
/// let host = Host::builder().model_source("fake", model).journal(journal).start().await?;
/// assert_eq!(host.sessions(Default::default()).await?.len(), 1);
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug, Default)]
pub struct MemoryJournal {
    sessions: Mutex<BTreeMap<SessionId, Vec<Arc<JournalEntry>>>>,
    /// The documents with the times at which they were stored.
    documents: Mutex<BTreeMap<String, (u64, String)>>,
    /// The documents that sessions use. Locked after `sessions` and `documents`.
    uses: Mutex<BTreeSet<(SessionId, String)>>,
}

impl MemoryJournal {
    /// Creates an empty engine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the position of the last record of a session; 0 if it is not stored.
    #[cfg(test)]
    pub(super) fn last_seq(&self, session: &SessionId) -> Seq {
        let sessions = self.sessions.lock();
        sessions.get(session).and_then(|entries| entries.last()).map_or(Seq(0), |last| last.seq)
    }
}

impl Journal for MemoryJournal {
    fn append(&self, mut batch: Batch) -> AppendStatus {
        if batch.follows_failure() {
            let reason = "an earlier batch of the session was not stored".to_owned();
            batch.report(BatchStatus::Failed(JournalError::Write(reason)));
            return AppendStatus::Queued;
        }
        let mut sessions = self.sessions.lock();
        let opens = batch.entries.first().is_some_and(|first| first.seq == Seq(1));
        if opens && sessions.contains_key(&batch.session) {
            drop(sessions);
            batch.report(BatchStatus::Refused(BatchRefusal::Exists));
            return AppendStatus::Queued;
        }
        let named = batch.entries.iter().filter_map(|entry| entry.document_key());
        let mut named = named.map(|key| (batch.session.clone(), key)).peekable();
        if named.peek().is_some() {
            self.uses.lock().extend(named);
        }
        match sessions.get_mut(&batch.session) {
            Some(entries) => entries.extend(batch.entries),
            None => {
                sessions.insert(batch.session, batch.entries);
            }
        }
        AppendStatus::Durable
    }

    fn flush(&self, _: &SessionId) {}

    fn read_some<'a>(
        &'a self,
        session: &'a SessionId,
        after: Seq,
        limit: usize,
    ) -> JournalFuture<'a, Vec<JournalEntry>> {
        in_memory(|| {
            let sessions = self.sessions.lock();
            let Some(entries) = sessions.get(session) else { return Vec::new() };
            let begin = entries.partition_point(|entry| entry.seq <= after);
            let found = entries.iter().skip(begin).take(limit);
            found.map(|entry| JournalEntry::clone(entry)).collect()
        })
    }

    fn find<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Option<SessionSummary>> {
        in_memory(|| SessionSummary::from_entries(session, self.sessions.lock().get(session)?))
    }

    fn list<'a>(&'a self, listing: &'a SessionQuery) -> JournalFuture<'a, Vec<SessionSummary>> {
        in_memory(|| {
            let sessions = self.sessions.lock();
            let summary =
                |(id, entries): (&SessionId, &Vec<_>)| SessionSummary::from_entries(id, entries);
            if listing.order == SessionOrder::Newest {
                return listing.select(sessions.iter().filter_map(summary));
            }
            let begin = listing.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let limit = if listing.limit == 0 { usize::MAX } else { listing.limit };
            sessions
                .range::<SessionId, _>((begin, Bound::Unbounded))
                .filter_map(summary)
                .filter(|stored| listing.matches(stored))
                .take(limit)
                .collect()
        })
    }

    fn count(&self) -> JournalFuture<'_, usize> {
        in_memory(|| self.sessions.lock().len())
    }

    fn remove<'a>(&'a self, sessions: &'a [SessionId]) -> JournalFuture<'a, ()> {
        in_memory(|| {
            let mut kept = self.sessions.lock();
            sessions.iter().for_each(|session| drop(kept.remove(session)));
            let mut documents = self.documents.lock();
            let mut uses = self.uses.lock();
            if uses.is_empty() {
                return;
            }
            let removed: BTreeSet<&SessionId> = sessions.iter().collect();
            let mut ended = Vec::new();
            uses.retain(|(session, key)| {
                let is_removed = removed.contains(session);
                if is_removed && key.starts_with(HISTORY_POINTS) {
                    ended.push(key.clone());
                }
                !is_removed
            });
            if !ended.is_empty() {
                let used: BTreeSet<&String> = uses.iter().map(|(_, key)| key).collect();
                ended.retain(|key| !used.contains(key));
                ended.iter().for_each(|key| drop(documents.remove(key)));
            }
        })
    }

    fn put_document<'a>(
        &'a self,
        key: &'a str,
        text: &'a str,
        used_by: Option<&'a SessionId>,
    ) -> JournalFuture<'a, ()> {
        in_memory(|| {
            let sessions = self.sessions.lock();
            self.documents.lock().insert(key.to_owned(), (unix_ms(), text.to_owned()));
            if let Some(session) = used_by.filter(|session| sessions.contains_key(*session)) {
                self.uses.lock().insert((session.clone(), key.to_owned()));
            }
        })
    }

    fn document<'a>(&'a self, key: &'a str) -> JournalFuture<'a, Option<String>> {
        in_memory(|| self.documents.lock().get(key).map(|(_, text)| text.clone()))
    }

    fn remove_unused_documents<'a>(
        &'a self,
        prefix: &'a str,
        stored_before: u64,
    ) -> JournalFuture<'a, ()> {
        in_memory(|| {
            let mut documents = self.documents.lock();
            let uses = self.uses.lock();
            let used: BTreeSet<&String> = uses.iter().map(|(_, key)| key).collect();
            documents.retain(|key, (stored, _)| {
                !key.starts_with(prefix) || *stored >= stored_before || used.contains(key)
            });
        })
    }

    fn is_lasting(&self) -> bool {
        false
    }
}

/// Does something at once, as all methods of this engine do.
fn in_memory<'a, T: Send + 'a>(work: impl FnOnce() -> T) -> JournalFuture<'a, T> {
    Box::pin(ready(Ok(work())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Appended;
    use crate::journal::{SessionLog, Urgency};
    use callsheet_values::record::{Record, StopMode};

    fn log(journal: &Arc<MemoryJournal>, id: &str) -> SessionLog {
        let journal = Arc::clone(journal) as Arc<dyn Journal>;
        SessionLog::new(SessionId::parse(id).unwrap(), journal, Seq(0), |_| ())
    }

    fn append(log: &SessionLog, records: Vec<Record>) -> (Seq, AppendStatus) {
        let Appended { entries, status } = log.append(records, Urgency::Urgent, || ());
        (entries.last().map_or(log.last_seq(), |entry| entry.seq), status)
    }

    #[test]
    fn a_closed_log_appends_nothing() {
        let log = log(&Arc::new(MemoryJournal::new()), "a");
        log.close();
        let stop = || vec![Record::StopAsked { mode: StopMode::Now, authored_by: None }];
        assert!(log.try_append_at(1, stop(), Urgency::Urgent, || ()).is_none());
        assert_eq!(append(&log, stop()), (Seq(1), AppendStatus::Queued));
        assert_eq!(log.last_seq(), Seq(0));
    }

    #[tokio::test]
    async fn numbers_each_session_from_one_without_gaps() {
        let journal = Arc::new(MemoryJournal::new());
        let (a, b) = (log(&journal, "a"), log(&journal, "b"));
        let opened = || Record::SessionOpened {
            agent: "default".into(),
            messages: vec![],
            metadata: callsheet_values::types::Metadata::default(),
            parent: None,
            client_tools: None,
        };
        let stop = || Record::StopAsked { mode: StopMode::Now, authored_by: None };
        assert_eq!(append(&a, vec![opened(), stop()]), (Seq(2), AppendStatus::Durable));
        assert_eq!(append(&b, vec![opened()]), (Seq(1), AppendStatus::Durable));
        assert_eq!(append(&a, vec![Record::SessionClosed]), (Seq(3), AppendStatus::Durable));
        assert_eq!(append(&a, Vec::new()), (Seq(3), AppendStatus::Durable));
        assert_eq!((a.last_seq(), a.durable_seq()), (Seq(3), Seq(3)));
        let records = async |id: &str, after| {
            let entries = journal.read(&SessionId::parse(id).unwrap(), Seq(after)).await.unwrap();
            entries.into_iter().map(|entry| (entry.seq.0, entry.record)).collect::<Vec<_>>()
        };
        assert_eq!(records("a", 0).await, [(1, opened()), (2, stop()), (3, Record::SessionClosed)]);
        assert_eq!(records("a", 2).await, [(3, Record::SessionClosed)]);
        assert_eq!(records("a", 9).await, []);
        assert_eq!(a.entries_since(Seq(1)).len(), 2);
        a.trim_recent(Seq(2));
        assert_eq!(a.entries_since(Seq(0)).len(), 1);
        journal.remove(&[SessionId::parse("a").unwrap()]).await.unwrap();
        assert_eq!(records("a", 0).await, []);
        assert_eq!(records("b", 0).await, [(1, opened())]);
        assert_eq!(journal.count().await, Ok(1));
    }

    #[test]
    fn the_listener_is_notified_before_a_record_can_be_read_as_durable() {
        let (notify, notified) = std::sync::mpsc::channel();
        let log = Arc::new_cyclic(|log: &std::sync::Weak<SessionLog>| {
            let (log, journal) = (log.clone(), Arc::new(MemoryJournal::new()));
            SessionLog::new(SessionId::parse("a").unwrap(), journal, Seq(0), move |durable| {
                let before = log.upgrade().unwrap().durable_seq();
                notify.send((durable, before)).unwrap();
            })
        });
        append(&log, vec![Record::SessionClosed]);
        append(&log, vec![Record::SessionClosed]);
        let notified: Vec<_> = notified.try_iter().collect();
        assert_eq!(notified, [(Ok(Seq(1)), Seq(0)), (Ok(Seq(2)), Seq(1))]);
        assert_eq!(log.durable_seq(), Seq(2));
    }

    #[tokio::test]
    async fn appends_from_many_threads_keep_their_order() {
        let journal = Arc::new(MemoryJournal::new());
        let log = log(&journal, "a");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        append(&log, vec![Record::SessionClosed]);
                    }
                });
            }
        });
        let entries = journal.read(&SessionId::parse("a").unwrap(), Seq(0)).await.unwrap();
        let seqs: Vec<u64> = entries.iter().map(|entry| entry.seq.0).collect();
        assert_eq!(seqs, (1..=400).collect::<Vec<_>>());
    }
}
