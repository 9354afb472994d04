use super::super::{GroupCommit, SessionLog, Urgency};
use super::*;
use crate::types::SessionState;
use std::sync::atomic::AtomicU32;

/// A temporary directory, deleted at the end.
struct TestDir(PathBuf);

impl TestDir {
    fn new() -> Self {
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

#[derive(Debug)]
struct Nobody;

impl JournalObserver for Nobody {
    fn stored(&self, _group: GroupCommit) {}
}

fn options(durability: Durability) -> SqliteOptions {
    let observer = Arc::new(Nobody);
    SqliteOptions { durability, holder: "a test".to_owned(), observer, ..SqliteOptions::default() }
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
async fn durable_records_survive_reopening() {
    for durability in [Durability::Strict, Durability::Relaxed] {
        let dir = TestDir::new();
        let journal = open(&dir, durability);
        let session = log(&journal, "s1", 0);
        session.append(vec![opened("writer")], Urgency::Urgent, || ());
        session.append(vec![Record::SessionClosed], Urgency::Deferrable, || ());
        session.wait_durable(Seq(2)).await.unwrap();
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
        assert_eq!(journal.list(&StoredSessionFilter::default()).unwrap(), [found]);
        let session = log(&journal, "s1", 2);
        session.append(vec![Record::SessionClosed], Urgency::Urgent, || ());
        session.wait_durable(Seq(3)).await.unwrap();
        assert_eq!(journal.read(&id("s1"), Seq(0)).unwrap().len(), 3);
    }
}

#[tokio::test]
async fn a_full_disk_fails_batches_until_there_is_space_again() {
    for durability in [Durability::Strict, Durability::Relaxed] {
        let dir = TestDir::new();
        let faults = DiskFaults { pages_max: Some(60), ..DiskFaults::default() };
        let journal = SqliteJournal::open_with_faults(&dir.0, options(durability), faults).unwrap();
        let journal = Arc::new(journal);
        let large = || Record::SessionOpened { agent: "large ".repeat(5_000), messages: vec![] };
        let mut kept = 0;
        let error = loop {
            let session = log(&journal, &format!("s{kept}"), 0);
            session.append(vec![large()], Urgency::Urgent, || ());
            match session.wait_durable(Seq(1)).await {
                Ok(()) => kept += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error, JournalError::Full);
        assert!(kept > 0 && error.is_transient());
        assert_eq!(journal.count(), Ok(kept));
        // Existing records can be read, and deleting frees space.
        assert_eq!(journal.list(&StoredSessionFilter::default()).unwrap().len(), kept);
        journal.remove(&[id("s0")]).unwrap();
        let session = log(&journal, "new", 0);
        session.append(vec![large()], Urgency::Urgent, || ());
        assert_eq!(session.wait_durable(Seq(1)).await, Ok(()));
        assert_eq!(journal.count(), Ok(kept));
    }
}

#[tokio::test]
async fn the_write_ahead_log_stays_bounded() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Relaxed);
    let session = log(&journal, "s", 0);
    session.append(vec![opened("default")], Urgency::Urgent, || ());
    let body = "x".repeat(100_000);
    for at in 1..400 {
        session.append(vec![opened(&body)], Urgency::Urgent, || ());
        // The queue is empty, so the writer checkpoints.
        session.wait_durable(Seq(at + 1)).await.unwrap();
    }
    let log = std::fs::metadata(data_directory::wal_path(&journal.file)).unwrap().len();
    assert!(log < 10 << 20, "{log}");
    assert!(journal.status().bytes > 35 << 20);
}

#[tokio::test]
async fn a_panicking_listener_does_not_stop_the_writer() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    let engine = Arc::clone(&journal) as Arc<dyn Journal>;
    let bad = SessionLog::new(id("bad"), engine, Seq(0), |_| panic!("as it should"));
    bad.append(vec![opened("default")], Urgency::Urgent, || ());
    let good = log(&journal, "good", 0);
    good.append(vec![opened("default")], Urgency::Urgent, || ());
    assert_eq!(good.wait_durable(Seq(1)).await, Ok(()));
    assert_eq!(journal.count(), Ok(2));
}

#[tokio::test]
async fn a_deletion_that_was_interrupted_is_finished_by_the_next_host() {
    let dir = TestDir::new();
    let body = "a-secret ".repeat(100);
    {
        let journal = open(&dir, Durability::Strict);
        for session in ["deleted", "kept"] {
            let session = log(&journal, session, 0);
            session.append(vec![opened("default")], Urgency::Urgent, || ());
            for _ in 1..1_000 {
                session.append(vec![opened(&body)], Urgency::Deferrable, || ());
            }
            session.wait_durable(session.last_seq()).await.unwrap();
        }
        // The host ends after a part of the deletion.
        assert_eq!(journal.run_on_writer(WriterTask::Hide(vec![id("deleted")])), Ok(false));
        assert_eq!(journal.run_on_writer(WriterTask::RemoveHidden), Ok(true));
        let listed = journal.list(&StoredSessionFilter::default()).unwrap();
        assert_eq!(listed.iter().map(|stored| stored.id.as_str()).collect::<Vec<_>>(), ["kept"]);
        assert_eq!((journal.count(), journal.find(&id("deleted"))), (Ok(1), Ok(None)));
        assert_eq!(journal.read(&id("deleted"), Seq(0)), Ok(Vec::new()));
    }
    let journal = open(&dir, Durability::Strict);
    assert_eq!((journal.count(), journal.find(&id("deleted"))), (Ok(1), Ok(None)));
    // The writer has deleted the rest before its first task.
    assert_eq!(journal.run_on_writer(WriterTask::RemoveHidden), Ok(false));
    assert_eq!(journal.read(&id("kept"), Seq(0)).unwrap().len(), 1_000);
    // The id is free again.
    let session = log(&journal, "deleted", 0);
    session.append(vec![opened("default")], Urgency::Urgent, || ());
    assert_eq!(session.wait_durable(Seq(1)).await, Ok(()));
}

#[test]
fn the_reserve_is_released_and_filled_again() {
    let dir = TestDir::new();
    std::fs::create_dir_all(&dir.0).unwrap();
    let reserve = Reserve::new(&dir.0, 100_000);
    assert!(reserve.is_missing());
    reserve.fill().unwrap();
    assert!(!reserve.is_missing());
    assert_eq!(std::fs::metadata(dir.0.join("journal.reserve")).unwrap().len(), 100_000);
    reserve.release().unwrap();
    assert!(reserve.is_missing());
    reserve.release().unwrap();
    let none = Reserve::new(&dir.0, 0);
    assert!(!none.is_missing(), "none is wanted");
    reserve.fill().unwrap();
    assert!(none.is_missing(), "one of an earlier configuration is left");
    none.fill().unwrap();
    assert!(!none.is_missing() && !dir.0.join("journal.reserve").exists());
}

/// A failed fsync is never repeated as if nothing had happened: the system may have dropped the data
/// (<https://wiki.postgresql.org/wiki/Fsync_Errors>).
#[cfg(target_os = "linux")]
#[tokio::test]
async fn after_a_failed_fsync_nothing_is_acknowledged() {
    for durability in [Durability::Strict, Durability::Relaxed] {
        let dir = TestDir::new();
        // A device that cannot be synced.
        let faults = DiskFaults { synced_file: Some("/dev/null".into()), ..DiskFaults::default() };
        let journal = SqliteJournal::open_with_faults(&dir.0, options(durability), faults).unwrap();
        let journal = Arc::new(journal);
        for name in ["first", "second"] {
            let session = log(&journal, name, 0);
            session.append(vec![opened("default")], Urgency::Urgent, || ());
            let error = session.wait_durable(Seq(1)).await.unwrap_err().to_string();
            assert!(error.contains("cannot be synced"), "{name}: {error}");
            assert!(error.contains("start again"), "{name}: {error}");
            assert_eq!(session.durable_seq(), Seq(0));
        }
        let failure = journal.failure().unwrap().to_string();
        assert!(failure.contains("cannot be synced"), "{failure}");
        // It is read-only from here on, also after the retries.
        tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
        assert!(journal.failure().is_some());
        assert!(journal.list(&StoredSessionFilter::default()).is_ok());
    }
}
