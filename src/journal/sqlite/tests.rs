use std::sync::atomic::AtomicU32;
use std::time::Duration;

use tokio::sync::oneshot;

use super::super::{SessionLog, Slot, Stage, StoredGroup, Urgency};
use super::*;

/// A directory of its own, deleted with what is in it.
pub(super) struct TestDir(pub(super) PathBuf);

impl TestDir {
    pub(super) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("callsheet-journal-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Keeps what it is told.
#[derive(Debug, Default)]
pub(super) struct Groups(pub(super) Mutex<Vec<StoredGroup>>);

impl JournalObserver for Groups {
    fn stored(&self, group: StoredGroup) {
        self.0.lock().push(group);
    }
}

pub(super) fn options(durability: Durability) -> SqliteOptions {
    let observer = Arc::new(Groups::default());
    SqliteOptions { durability, holder: "a test".to_owned(), observer, queue_max: 10_000 }
}

fn id(text: &str) -> SessionId {
    SessionId::parse(text).unwrap()
}

fn opened(agent: &str) -> Record {
    Record::SessionOpened { agent: agent.to_owned(), messages: Vec::new() }
}

fn log(journal: &Arc<SqliteJournal>, session: &str, last: u64) -> SessionLog {
    let journal = Arc::clone(journal) as Arc<dyn Journal>;
    SessionLog::new(id(session), journal, Seq(last), |_| ())
}

fn open(dir: &TestDir, durability: Durability) -> Arc<SqliteJournal> {
    Arc::new(SqliteJournal::open(&dir.0, options(durability)).unwrap())
}

#[tokio::test]
async fn what_is_durable_is_there_after_opening_again() {
    for durability in [Durability::Strict, Durability::Relaxed] {
        let dir = TestDir::new();
        let journal = open(&dir, durability);
        let session = log(&journal, "s1", 0);
        session.append(vec![opened("writer")], Urgency::Urgent, || ());
        session.append(vec![Record::SessionClosed], Urgency::Lazy, || ());
        session.until_durable(Seq(2)).await.unwrap();
        let expected = journal.read(&id("s1"), Seq(0)).unwrap();
        assert_eq!(expected.len(), 2);
        assert_eq!(expected[0].record, opened("writer"));
        assert_eq!(journal.count(), Ok(1));
        let found = journal.find(&id("s1")).unwrap().unwrap();
        assert_eq!(
            (found.agent.as_str(), found.seq, found.state),
            ("writer", Seq(2), SessionState::Idle)
        );
        drop(session);
        drop(journal);

        let journal = open(&dir, durability);
        assert_eq!(journal.read(&id("s1"), Seq(0)).unwrap(), expected);
        assert_eq!(journal.read(&id("s1"), Seq(1)).unwrap(), expected[1..]);
        assert_eq!(journal.list(&Listing::default()).unwrap(), [found]);
        let session = log(&journal, "s1", 2);
        session.append(vec![Record::SessionClosed], Urgency::Urgent, || ());
        session.until_durable(Seq(3)).await.unwrap();
        assert_eq!(journal.read(&id("s1"), Seq(0)).unwrap().len(), 3);
    }
}
