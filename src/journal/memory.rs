//! The engine that keeps records in memory: they live as long as the process.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::{Acknowledge, Appended, Entry, Journal};
use crate::record::Seq;
use crate::types::SessionId;

/// Keeps records in memory. Every batch is durable, in this engine's sense, at once.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    sessions: Mutex<HashMap<SessionId, Vec<Entry>>>,
}

impl MemoryJournal {
    /// An engine without records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Journal for MemoryJournal {
    fn append(&self, session: &SessionId, batch: Vec<Entry>, _: Acknowledge) -> Appended {
        let mut sessions = self.sessions.lock();
        match sessions.get_mut(session) {
            Some(entries) => entries.extend(batch),
            None => {
                sessions.insert(session.clone(), batch);
            }
        }
        Appended::Durable
    }

    fn entries_since(&self, session: &SessionId, after: Seq) -> Vec<Entry> {
        let sessions = self.sessions.lock();
        let Some(entries) = sessions.get(session) else { return Vec::new() };
        let begin = entries.partition_point(|entry| entry.seq <= after);
        entries.iter().skip(begin).cloned().collect()
    }

    fn remove(&self, session: &SessionId) {
        self.sessions.lock().remove(session);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::journal::SessionLog;
    use crate::record::{Record, StopMode};

    fn log(journal: &Arc<MemoryJournal>, id: &str) -> SessionLog {
        SessionLog::new(SessionId::parse(id).unwrap(), Arc::clone(journal) as Arc<dyn Journal>)
    }

    #[test]
    fn numbers_each_session_from_one_without_gaps() {
        let journal = Arc::new(MemoryJournal::new());
        let (a, b) = (log(&journal, "a"), log(&journal, "b"));
        let opened = || Record::SessionOpened { agent: "default".into(), messages: vec![] };
        let stop = || Record::StopAsked { mode: StopMode::Now };
        assert_eq!(a.append(vec![opened(), stop()], || ()), (Seq(2), Appended::Durable));
        assert_eq!(b.append(vec![opened()], || ()), (Seq(1), Appended::Durable));
        assert_eq!(a.append(vec![Record::SessionClosed], || ()), (Seq(3), Appended::Durable));
        assert_eq!(a.append(Vec::new(), || ()), (Seq(3), Appended::Durable));
        assert_eq!(a.records_since(Seq(0)), [opened(), stop(), Record::SessionClosed]);
        assert_eq!(a.records_since(Seq(2)), [Record::SessionClosed]);
        assert_eq!(a.records_since(Seq(9)), []);
        let seqs: Vec<u64> = a.entries_since(Seq(0)).iter().map(|e| e.seq.0).collect();
        assert_eq!(seqs, [1, 2, 3]);
        a.remove();
        assert_eq!(a.records_since(Seq(0)), []);
        assert_eq!(b.records_since(Seq(0)), [opened()]);
    }

    #[test]
    fn appends_from_many_threads_keep_their_order() {
        let journal = Arc::new(MemoryJournal::new());
        let log = log(&journal, "a");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..100 {
                        log.append(vec![Record::TurnCommitted { turn }], || ());
                    }
                });
            }
        });
        let seqs: Vec<u64> = log.entries_since(Seq(0)).iter().map(|e| e.seq.0).collect();
        assert_eq!(seqs, (1..=400).collect::<Vec<_>>());
    }
}
