use super::super::{BatchRefusal, GroupCommit, SessionLog, SessionOrder, Urgency};
use super::*;
use callsheet_values::record::Record;
use callsheet_values::types::SessionState;
use futures::FutureExt as _;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

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
    Record::SessionOpened {
        agent: agent.to_owned(),
        messages: Vec::new(),
        metadata: callsheet_values::types::Metadata::default(),
        parent: None,
        client_tools: None,
    }
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
        let expected = journal.read(&id("s1"), Seq(0)).await.unwrap();
        assert_eq!(expected.len(), 2);
        assert_eq!(expected[0].record, opened("writer"));
        assert_eq!(journal.count().await, Ok(1));
        let found = journal.find(&id("s1")).await.unwrap().unwrap();
        assert_eq!(
            (found.agent.as_str(), found.seq, found.state),
            ("writer", Seq(2), SessionState::Running),
            "its deletion is unfinished"
        );
        drop(session);
        drop(journal);

        let journal = open(&dir, durability);
        assert_eq!(journal.read(&id("s1"), Seq(0)).await.unwrap(), expected);
        assert_eq!(journal.read(&id("s1"), Seq(1)).await.unwrap(), expected[1..]);
        assert_eq!(journal.list(&SessionQuery::default()).await.unwrap(), [found]);
        let session = log(&journal, "s1", 2);
        session.append(vec![Record::SessionClosed], Urgency::Urgent, || ());
        session.wait_durable(Seq(3)).await.unwrap();
        assert_eq!(journal.read(&id("s1"), Seq(0)).await.unwrap().len(), 3);
    }
}

#[tokio::test]
async fn lists_have_the_metadata_of_sessions_and_forks() {
    let dir = TestDir::new();
    let metadata = callsheet_values::types::Metadata::new([("user", "u-17")]).unwrap();
    let with = Record::SessionOpened {
        agent: "writer".to_owned(),
        messages: Vec::new(),
        metadata: metadata.clone(),
        parent: None,
        client_tools: None,
    };
    let journal = open(&dir, Durability::Strict);
    for (session, record) in [("s1", opened("writer")), ("s2", with), ("s3", opened("writer"))] {
        let stored = log(&journal, session, 0);
        stored.append(vec![record], Urgency::Urgent, || ());
        stored.wait_durable(Seq(1)).await.unwrap();
        assert_eq!(journal.find(&id(session)).await.unwrap().unwrap().id, id(session));
    }
    let fork = log(&journal, "s4", 0);
    let mut entries = journal.read(&id("s2"), Seq(0)).await.unwrap();
    let forked = Record::SessionForked { from: id("s2"), at: Seq(1) };
    entries.push(JournalEntry { seq: Seq(2), time: 0, displayed_bytes: 0, record: forked });
    fork.import(entries);
    fork.wait_durable(Seq(2)).await.unwrap();
    drop((fork, journal));
    let journal = open(&dir, Durability::Strict);
    let listed = journal.list(&SessionQuery::default()).await.unwrap();
    let listed: Vec<_> = listed.into_iter().map(|session| session.metadata).collect();
    let none = callsheet_values::types::Metadata::default();
    assert_eq!(listed, [none.clone(), metadata.clone(), none, metadata]);
}

#[tokio::test]
async fn a_full_disk_fails_batches_until_there_is_space_again() {
    for durability in [Durability::Strict, Durability::Relaxed] {
        let dir = TestDir::new();
        let faults = DiskFaults { pages_max: Some(60), ..DiskFaults::default() };
        let journal = SqliteJournal::open_with_faults(&dir.0, options(durability), faults).unwrap();
        let journal = Arc::new(journal);
        let large = || Record::SessionOpened {
            agent: "large ".repeat(5_000),
            messages: vec![],
            metadata: callsheet_values::types::Metadata::default(),
            parent: None,
            client_tools: None,
        };
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
        assert_eq!(journal.count().await, Ok(kept));
        // Existing records can be read, and deleting frees space.
        assert_eq!(journal.list(&SessionQuery::default()).await.unwrap().len(), kept);
        journal.remove(&[id("s0")]).await.unwrap();
        let session = log(&journal, "new", 0);
        session.append(vec![large()], Urgency::Urgent, || ());
        assert_eq!(session.wait_durable(Seq(1)).await, Ok(()));
        assert_eq!(journal.count().await, Ok(kept));
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
        session.wait_durable(Seq(at + 1)).await.unwrap();
    }
    let log = std::fs::metadata(data_directory::wal_path(&journal.path)).unwrap().len();
    // The writer checkpoints while the queue is empty, or at the latest at 8,000 pages of 4 KiB.
    assert!(log < 32 << 20, "{log}");
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
    assert_eq!(journal.count().await, Ok(2));
}

#[tokio::test]
async fn a_deletion_that_was_interrupted_is_finished_by_the_next_host() {
    let dir = TestDir::new();
    {
        let journal = open(&dir, Durability::Strict);
        for name in ["deleted", "kept"] {
            let body = format!("{name} ").repeat(100);
            let session = log(&journal, name, 0);
            session.append(vec![opened("default")], Urgency::Urgent, || ());
            for _ in 1..1_000 {
                session.append(vec![opened(&body)], Urgency::Deferrable, || ());
            }
            session.wait_durable(session.last_seq()).await.unwrap();
        }
        // The host ends after a part of the deletion.
        assert_eq!(journal.run_on_writer(WriterTask::Hide(vec![id("deleted")])).await, Ok(false));
        assert_eq!(journal.run_on_writer(WriterTask::RemoveHidden).await, Ok(true));
        let listed = journal.list(&SessionQuery::default()).await.unwrap();
        assert_eq!(listed.iter().map(|stored| stored.id.as_str()).collect::<Vec<_>>(), ["kept"]);
        assert_eq!((journal.count().await, journal.find(&id("deleted")).await), (Ok(1), Ok(None)));
        assert_eq!(journal.read(&id("deleted"), Seq(0)).await, Ok(Vec::new()));
    }
    let journal = open(&dir, Durability::Strict);
    assert_eq!((journal.count().await, journal.find(&id("deleted")).await), (Ok(1), Ok(None)));
    // The writer deletes the rest by itself.
    until("nothing of it is left", || !file_text(&dir).contains("deleted")).await;
    assert_eq!(journal.read(&id("kept"), Seq(0)).await.unwrap().len(), 1_000);
    // The id is free again.
    let session = log(&journal, "deleted", 0);
    session.append(vec![opened("default")], Urgency::Urgent, || ());
    assert_eq!(session.wait_durable(Seq(1)).await, Ok(()));
}

#[tokio::test]
async fn the_write_ahead_log_stays_bounded_while_a_start_finishes_a_deletion() {
    let dir = TestDir::new();
    let body = "x".repeat(1 << 20);
    {
        let journal = open(&dir, Durability::Relaxed);
        let session = log(&journal, "deleted", 0);
        for _ in 0..32 {
            session.append(vec![opened(&body)], Urgency::Urgent, || ());
        }
        session.wait_durable(Seq(32)).await.unwrap();
        // The host ends before the first part of the deletion.
        assert_eq!(journal.run_on_writer(WriterTask::Hide(vec![id("deleted")])).await, Ok(false));
    }
    let journal = open(&dir, Durability::Relaxed);
    // The writer deletes the records by itself, and this waits for it.
    while journal.run_on_writer(WriterTask::RemoveHidden).await.unwrap() {}
    let log = std::fs::metadata(data_directory::wal_path(&journal.path)).unwrap().len();
    assert!(log < 16 << 20, "{log}");
}

#[tokio::test]
async fn a_check_ignores_a_session_that_is_being_deleted() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    store_session(&journal, "deleted", 3).await;
    assert_eq!(journal.run_on_writer(WriterTask::Hide(vec![id("deleted")])).await, Ok(false));
    // Deletes the records. The next part of the deletion deletes the session.
    assert_eq!(journal.run_on_writer(WriterTask::RemoveHidden).await, Ok(true));
    assert_eq!(JournalReader::open(&dir.0).unwrap().check(), Ok(vec![]));
}

#[tokio::test]
async fn a_database_without_the_session_of_its_last_record_is_damaged() {
    let dir = TestDir::new();
    store_session(&open(&dir, Durability::Strict), "lost", 3).await;
    let connection = rusqlite::Connection::open(dir.0.join("journal.db")).unwrap();
    assert_eq!(connection.execute("DELETE FROM sessions", ()), Ok(1));
    drop(connection);
    let error = SqliteJournal::open(&dir.0, options(Durability::Strict)).unwrap_err().to_string();
    assert!(error.contains("it is damaged") && error.contains("restore it"), "{error}");
}

#[tokio::test]
async fn no_stored_session_is_hibernated() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    store_session(&journal, "idle", 1).await;
    for (state, count) in [(SessionState::Idle, 1), (SessionState::Hibernated, 0)] {
        let query = SessionQuery { state: Some(state), ..SessionQuery::default() };
        assert_eq!(journal.list(&query).await.unwrap().len(), count);
    }
}

#[test]
fn the_shared_records_of_a_fork_do_not_count_as_stored() {
    let fork = Record::SessionForked { from: id("origin"), at: Seq(3) };
    let records = [opened("a"), opened("b"), opened("c"), fork];
    let entries = records.into_iter().zip(1..).map(|(record, seq)| {
        Arc::new(JournalEntry { seq: Seq(seq), time: 7, displayed_bytes: 0, record })
    });
    let batch = Batch::new(id("fork"), entries.collect(), Arc::default(), Box::new(|_| ()));
    assert_eq!(queued_batch(batch).map(|batch| batch.records()), Some(1));
}

#[test]
fn the_reserve_is_released_and_filled_again() {
    let dir = TestDir::new();
    std::fs::create_dir_all(&dir.0).unwrap();
    let reserve = Reserve::new(&dir.0, 100_000);
    assert!(reserve.needs_fill());
    reserve.fill().unwrap();
    assert!(!reserve.needs_fill());
    assert_eq!(std::fs::metadata(dir.0.join("journal.reserve")).unwrap().len(), 100_000);
    reserve.release().unwrap();
    assert!(reserve.needs_fill());
    reserve.release().unwrap();
    let none = Reserve::new(&dir.0, 0);
    assert!(!none.needs_fill(), "none is wanted");
    reserve.fill().unwrap();
    assert!(none.needs_fill(), "one of an earlier configuration is left");
    none.fill().unwrap();
    assert!(!none.needs_fill() && !dir.0.join("journal.reserve").exists());
}

#[cfg(unix)]
#[test]
fn the_reserve_replaces_a_link_and_leaves_its_target() {
    let dir = TestDir::new();
    std::fs::create_dir_all(&dir.0).unwrap();
    let target = dir.0.join("target");
    std::fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, dir.0.join("journal.reserve")).unwrap();
    let reserve = Reserve::new(&dir.0, 8);
    assert!(reserve.needs_fill(), "the size of the target does not count");
    reserve.fill().unwrap();
    assert!(!reserve.needs_fill());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
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
            assert_eq!(session.durable_seq(), Seq(0));
        }
        let failure = journal.failure().unwrap().to_string();
        assert!(failure.contains("cannot be synced"), "{failure}");
        // It is read-only, also after attempts to open it again.
        tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
        assert!(journal.failure().is_some());
        assert!(journal.list(&SessionQuery::default()).await.is_ok());
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn after_a_failed_fsync_of_a_document_no_record_is_acknowledged() {
    let dir = TestDir::new();
    let faults = DiskFaults { synced_file: Some("/dev/null".into()), ..DiskFaults::default() };
    let strict = options(Durability::Strict);
    let journal = Arc::new(SqliteJournal::open_with_faults(&dir.0, strict, faults).unwrap());
    journal.put_document("model-a", "{}", None).await.unwrap_err();
    let failure = journal.failure().unwrap().to_string();
    assert!(failure.contains("cannot be synced"), "{failure}");
    let session = log(&journal, "first", 0);
    session.append(vec![opened("default")], Urgency::Urgent, || ());
    session.wait_durable(Seq(1)).await.unwrap_err();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn after_a_failed_fsync_the_database_is_opened_again() {
    for durability in [Durability::Strict, Durability::Relaxed] {
        let dir = TestDir::new();
        store_session(&open(&dir, durability), "before", 5).await;
        let synced = dir.0.join("synced");
        let point_to = |target: &Path| {
            let _ = std::fs::remove_file(&synced);
            std::os::unix::fs::symlink(target, &synced).unwrap();
        };
        let log_path = data_directory::wal_path(&data_directory::database_path(&dir.0));
        // The disk fails: what is opened from here on cannot be synced.
        point_to("/dev/null".as_ref());
        let faults = DiskFaults { synced_file: Some(synced.clone()), ..DiskFaults::default() };
        let journal = SqliteJournal::open_with_faults(&dir.0, options(durability), faults).unwrap();
        let journal = Arc::new(journal);
        let going_on = log(&journal, "before", 5);
        let failed = log(&journal, "failed", 0);
        failed.append(vec![opened("failed-1")], Urgency::Urgent, || ());
        failed.wait_durable(Seq(1)).await.unwrap_err();
        tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
        assert!(journal.failure().is_some());
        assert!(journal.remove(&[id("before")]).await.is_err());
        point_to(&log_path);
        while journal.failure().is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        going_on.append(vec![opened("before-6")], Urgency::Urgent, || ());
        going_on.wait_durable(Seq(6)).await.unwrap();
        failed.append(vec![opened("failed-2")], Urgency::Urgent, || ());
        failed.wait_durable(Seq(2)).await.unwrap_err();
        store_session(&journal, "after", 2).await;
        let count = journal.list(&SessionQuery::default()).await.unwrap().len();
        assert_eq!(journal.count().await, Ok(count));
        drop((going_on, failed, journal));
        let journal = open(&dir, durability);
        assert_eq!(
            texts(&journal, "before").await,
            (1..=6).map(|at| format!("before-{at}")).collect::<Vec<_>>()
        );
        assert_eq!(texts(&journal, "after").await, ["after-1", "after-2"]);
    }
}

/// Returns the texts of a session's records, all of which are openings or forks.
async fn texts(journal: &SqliteJournal, session: &str) -> Vec<String> {
    let text = |entry: JournalEntry| {
        if let Record::SessionForked { from, at } = entry.record {
            return format!("fork of {from} at {}", at.0);
        }
        let Record::SessionOpened { agent, .. } = entry.record else { panic!("{entry:?}") };
        agent
    };
    let entries = journal.read(&id(session), Seq(0)).await.unwrap();
    let seqs: Vec<u64> = entries.iter().map(|entry| entry.seq.0).collect();
    assert_eq!(seqs, (1..=entries.len() as u64).collect::<Vec<_>>());
    entries.into_iter().map(text).collect()
}

/// Stores a session whose records have the texts `NAME-1` to `NAME-LAST`, three in each batch.
async fn store_session(journal: &Arc<SqliteJournal>, name: &str, last: u64) {
    let records: Vec<Record> = (1..=last).map(|at| opened(&format!("{name}-{at}"))).collect();
    let log = log(journal, name, 0);
    for records in records.chunks(3) {
        log.append(records.to_vec(), Urgency::Urgent, || ());
    }
    log.wait_durable(Seq(last)).await.unwrap();
}

/// Forks a session, and appends a record to the fork.
async fn store_fork(
    journal: &Arc<SqliteJournal>,
    from: &str,
    at: u64,
    to: &str,
) -> Result<(), JournalError> {
    let mut entries = journal.read(&id(from), Seq(0)).await.unwrap();
    entries.truncate(usize::try_from(at).unwrap());
    let record = Record::SessionForked { from: id(from), at: Seq(at) };
    entries.push(JournalEntry { seq: Seq(at + 1), time: 7, displayed_bytes: 0, record });
    let log = log(journal, to, 0);
    log.import(entries);
    log.append(vec![opened(&format!("{to}-own"))], Urgency::Urgent, || ());
    log.wait_durable(Seq(at + 2)).await
}

/// Returns the texts of the first records of a session, and those of a fork of it.
fn fork_texts(name: &str, at: u64, from: &str, to: &str) -> Vec<String> {
    let mut texts: Vec<String> = (1..=at).map(|at| format!("{name}-{at}")).collect();
    texts.extend([format!("fork of {from} at {at}"), format!("{to}-own")]);
    texts
}

/// Returns the bytes of all files.
fn file_text(dir: &TestDir) -> String {
    let files = std::fs::read_dir(&dir.0).unwrap();
    let bytes = files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap());
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

#[tokio::test]
async fn forks_share_the_records_of_their_origin() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    let name = "shared ".repeat(1_000);
    let name = name.trim();
    let first = log(&journal, "origin", 0);
    for at in 1..=100 {
        first.append(vec![opened(&format!("{name}-{at}"))], Urgency::Deferrable, || ());
    }
    first.wait_durable(Seq(100)).await.unwrap();
    let connection = database::open_reading(&journal.path).unwrap();
    let stored_bytes = || -> u64 {
        let sum = "SELECT sum(octet_length(body)) FROM records";
        connection.query_row(sum, [], |row| row.get(0)).unwrap()
    };
    let before = stored_bytes();
    for fork in 0..10 {
        store_fork(&journal, "origin", 99, &format!("f{fork}")).await.unwrap();
    }
    let after = stored_bytes();
    assert!(before > 700_000 && after < before + 10_000, "{before} and {after}");
    for fork in 0..10 {
        let fork = format!("f{fork}");
        assert_eq!(texts(&journal, &fork).await, fork_texts(name, 99, "origin", &fork));
        let found = journal.find(&id(&fork)).await.unwrap().unwrap();
        assert_eq!((found.seq, found.state), (Seq(101), SessionState::Idle));
        let some = journal.read_some(&id(&fork), Seq(97), 3).await.unwrap();
        assert_eq!(some.iter().map(|entry| entry.seq.0).collect::<Vec<_>>(), [98, 99, 100]);
    }
    assert_eq!(journal.read(&id("origin"), Seq(0)).await.unwrap().len(), 100);
}

#[tokio::test]
async fn shared_records_are_deleted_with_the_last_fork() {
    let dir = TestDir::new();
    let mut journal = open(&dir, Durability::Strict);
    store_session(&journal, "origin", 10).await;
    store_fork(&journal, "origin", 5, "five").await.unwrap();
    store_fork(&journal, "origin", 8, "eight").await.unwrap();
    // It shares only records of the first session, and one that shares also those of a fork.
    store_fork(&journal, "eight", 4, "four").await.unwrap();
    store_fork(&journal, "eight", 10, "ten").await.unwrap();
    let ten = || {
        let mut texts = fork_texts("origin", 8, "origin", "eight");
        texts.extend(["fork of eight at 10".to_owned(), "ten-own".to_owned()]);
        texts
    };
    journal.remove(&[id("origin")]).await.unwrap();
    for reopened in [false, true] {
        if reopened {
            drop(journal);
            journal = open(&dir, Durability::Strict);
        }
        assert_eq!((journal.count().await, journal.find(&id("origin")).await), (Ok(4), Ok(None)));
        assert_eq!(texts(&journal, "five").await, fork_texts("origin", 5, "origin", "five"));
        assert_eq!(texts(&journal, "eight").await, fork_texts("origin", 8, "origin", "eight"));
        assert_eq!(texts(&journal, "four").await, fork_texts("origin", 4, "eight", "four"));
        assert_eq!(texts(&journal, "ten").await, ten());
        assert_eq!(journal.read(&id("origin"), Seq(0)).await, Ok(vec![]));
    }
    let text = file_text(&dir);
    assert!(text.contains("origin-8") && !text.contains("origin-9"));

    // The id is free, and belongs to another session.
    store_session(&journal, "origin", 2).await;
    assert_eq!(texts(&journal, "origin").await, ["origin-1", "origin-2"]);
    journal.remove(&[id("origin"), id("eight"), id("five")]).await.unwrap();
    assert_eq!(texts(&journal, "ten").await, ten());
    assert_eq!(texts(&journal, "four").await, fork_texts("origin", 4, "eight", "four"));
    let text = file_text(&dir);
    assert!(text.contains("origin-8") && text.contains("eight-own") && !text.contains("five-own"));
    journal.remove(&[id("ten")]).await.unwrap();
    let text = file_text(&dir);
    assert!(text.contains("origin-4") && !text.contains("origin-5") && !text.contains("eight-own"));
    journal.remove(&[id("four")]).await.unwrap();
    let text = file_text(&dir);
    assert!(!text.contains("origin-") && !text.contains("-own"));
    assert_eq!(journal.count().await, Ok(0));
    drop(journal);
    let connection = rusqlite::Connection::open(dir.0.join("journal.db")).unwrap();
    let rows = "SELECT (SELECT count(*) FROM sessions) + (SELECT count(*) FROM records)";
    assert_eq!(connection.query_row(rows, [], |row| row.get(0)), Ok(0));
}

#[tokio::test]
async fn a_fork_of_a_session_that_has_been_removed_is_refused() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    store_session(&journal, "origin", 3).await;
    let entries = journal.read(&id("origin"), Seq(0)).await.unwrap();
    journal.remove(&[id("origin")]).await.unwrap();
    let log = log(&journal, "fork", 0);
    let record = Record::SessionForked { from: id("origin"), at: Seq(3) };
    let last = JournalEntry { seq: Seq(4), time: 7, displayed_bytes: 0, record };
    log.import(entries.into_iter().chain([last]).collect());
    let error = log.wait_durable(Seq(4)).await.unwrap_err();
    let refusal = BatchRefusal::OriginRemoved(id("origin"));
    assert_eq!(error, JournalError::Refused(refusal));
    assert_eq!((journal.count().await, journal.failure()), (Ok(0), None));
}

#[tokio::test]
async fn a_damaged_session_is_removed_and_leaves_what_a_fork_shares() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    store_session(&journal, "origin", 10).await;
    store_fork(&journal, "origin", 5, "fork").await.unwrap();
    drop(journal);
    let connection = rusqlite::Connection::open(dir.0.join("journal.db")).unwrap();
    // The end of the row that has the first record behind the shared ones.
    let damage = "UPDATE records SET body = CAST(body || x'ff' AS TEXT)
                  WHERE session = (SELECT number FROM sessions WHERE id = 'origin')
                  AND seq = (SELECT min(seq) FROM records WHERE session = 1 AND seq >= 6)";
    assert_eq!(connection.execute(damage, ()), Ok(1));
    drop(connection);
    let journal = open(&dir, Durability::Strict);
    journal.read(&id("origin"), Seq(0)).await.unwrap_err();
    journal.remove(&[id("origin")]).await.unwrap();
    assert_eq!((journal.count().await, journal.find(&id("origin")).await), (Ok(1), Ok(None)));
    assert_eq!(texts(&journal, "fork").await, fork_texts("origin", 5, "origin", "fork"));
}

#[tokio::test]
async fn documents_stay_for_forks_and_those_of_earlier_programs_for_ever() {
    let dir = TestDir::new();
    drop(open(&dir, Durability::Strict));
    let connection = rusqlite::Connection::open(dir.0.join("journal.db")).unwrap();
    connection
        .execute_batch(
            "DROP TABLE documents; DROP TABLE document_uses;
             CREATE TABLE documents(key TEXT NOT NULL PRIMARY KEY, text TEXT NOT NULL) STRICT;
             INSERT INTO documents VALUES ('tools-old', 'old');",
        )
        .unwrap();
    drop(connection);
    let journal = open(&dir, Durability::Strict);
    journal.put_document("tools-new", "new", None).await.unwrap();
    let session = log(&journal, "origin", 0);
    let frozen = Record::ToolsFrozen { sha256: "new".into() };
    session.append(vec![opened("x"), frozen], Urgency::Urgent, || ());
    session.wait_durable(Seq(2)).await.unwrap();
    store_fork(&journal, "origin", 2, "fork").await.unwrap();
    let kept = async |journal: &SqliteJournal| {
        journal.remove_unused_documents("tools-", u64::MAX).await.unwrap();
        let is_kept = async |key| journal.document(key).await.unwrap().is_some();
        [is_kept("tools-old").await, is_kept("tools-new").await]
    };
    assert_eq!(kept(&journal).await, [true, true]);
    journal.remove(&[id("origin")]).await.unwrap();
    assert_eq!(kept(&journal).await, [true, true]);
    drop((session, journal));
    let journal = open(&dir, Durability::Strict);
    assert_eq!(kept(&journal).await, [true, true]);
    journal.remove(&[id("fork")]).await.unwrap();
    assert_eq!(kept(&journal).await, [true, false]);
    assert_eq!(JournalReader::open(&dir.0).unwrap().check(), Ok(vec![]));
}

/// The table of sessions of versions 1 and 2. Their programs added a column for metadata with the first session that
/// had some.
const SESSIONS_OF_VERSION_1: &str = "
    DROP TABLE sessions; DROP TABLE running;
    CREATE TABLE sessions(
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, agent TEXT NOT NULL,
        running INTEGER NOT NULL, opened INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX running_sessions ON sessions(id) WHERE running = 1;
    INSERT INTO sessions VALUES (1, 'old', 'default', 0, 5), (2, 'open', 'default', 1, 5);
    PRAGMA user_version = 1;";
const CHANGES_OF_VERSION_2: &str = "
    ALTER TABLE sessions ADD COLUMN origin INTEGER;
    ALTER TABLE sessions ADD COLUMN prefix INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX forks ON sessions(origin, prefix) WHERE origin IS NOT NULL;
    PRAGMA user_version = 2;";

#[tokio::test]
async fn a_database_of_an_earlier_version_is_converted() {
    let with_metadata = "ALTER TABLE sessions ADD COLUMN metadata TEXT;
        UPDATE sessions SET metadata = '{\"user\":\"u-17\"}' WHERE number = 1;";
    let versions: [&[&str]; 3] =
        [&[], &[CHANGES_OF_VERSION_2], &[CHANGES_OF_VERSION_2, with_metadata]];
    for changes in versions {
        let dir = TestDir::new();
        drop(open(&dir, Durability::Strict));
        let connection = rusqlite::Connection::open(dir.0.join("journal.db")).unwrap();
        connection.execute_batch(SESSIONS_OF_VERSION_1).unwrap();
        changes.iter().for_each(|change| connection.execute_batch(change).unwrap());
        let body = |seq| {
            JournalEntry { seq: Seq(seq), time: 5, displayed_bytes: 0, record: opened("x") }.body()
        };
        let mut rows = vec![(1, 1, body(1)), (1, 2, body(2)), (2, 1, body(1))];
        if !changes.is_empty() {
            // From version 2 on a row can have several records.
            rows = vec![(1, 2, format!("{}\n{}", body(1), body(2))), (2, 1, body(1))];
        }
        for row in rows {
            connection.execute("INSERT INTO records VALUES (?1, ?2, 5, ?3)", row).unwrap();
        }
        drop(connection);
        let error = JournalReader::open(&dir.0).unwrap_err().to_string();
        assert!(error.contains("start the host once"), "{error}");
        let journal = open(&dir, Durability::Strict);
        let sessions = journal.list(&SessionQuery::default()).await.unwrap();
        let states: Vec<_> =
            sessions.iter().map(|found| (found.id.as_str(), found.state)).collect();
        assert_eq!(states, [("old", SessionState::Idle), ("open", SessionState::Running)]);
        assert_eq!(sessions[0].metadata.is_empty(), changes.len() < 2);
        let session = log(&journal, "old", 2);
        session.append(vec![opened("y"), opened("z")], Urgency::Urgent, || ());
        session.wait_durable(Seq(4)).await.unwrap();
        assert_eq!(texts(&journal, "old").await, ["x", "x", "y", "z"]);
        store_fork(&journal, "old", 3, "new").await.unwrap();
        assert_eq!(texts(&journal, "new").await, ["x", "x", "y", "fork of old at 3", "new-own"]);
        assert_eq!(JournalReader::open(&dir.0).unwrap().check(), Ok(vec![]));
    }
}

/// Appends of one session that one transaction stores are one row, and each record keeps its time.
#[tokio::test]
async fn batches_of_a_session_are_stored_as_one_row() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    let (session, other) = (log(&journal, "s1", 0), log(&journal, "s2", 0));
    let first = || vec![opened("writer")];
    let next = || vec![Record::SessionClosed, Record::SessionClosed];
    session.append_at(1_000, first(), Urgency::Deferrable, || ());
    session.append_at(1_000, next(), Urgency::Deferrable, || ());
    session.append_at(1_007, next(), Urgency::Deferrable, || ());
    // The clock was set back.
    session.append_at(900, next(), Urgency::Deferrable, || ());
    session.append_at(950, next(), Urgency::Urgent, || ());
    other.append_at(2_000, first(), Urgency::Urgent, || ());
    session.wait_durable(Seq(9)).await.unwrap();
    other.wait_durable(Seq(1)).await.unwrap();
    let times = async |after| -> Vec<_> {
        let entries = journal.read(&id("s1"), Seq(after)).await.unwrap();
        entries.iter().map(|entry| (entry.seq.0, entry.time)).collect()
    };
    let expected: Vec<(u64, u64)> =
        (1..).zip([1_000, 1_000, 1_000, 1_007, 1_007, 900, 900, 950, 950]).collect();
    assert_eq!(times(0).await, expected);
    assert_eq!(times(4).await, expected[4..]);
    let found = journal.find(&id("s1")).await.unwrap().unwrap();
    assert_eq!((found.seq, found.touched), (Seq(9), 950));
    let connection = rusqlite::Connection::open(dir.0.join("journal.db")).unwrap();
    let rows = "SELECT count(*) FROM records WHERE session = 1";
    let rows: i64 = connection.query_row(rows, [], |row| row.get(0)).unwrap();
    // Two, unless this thread is delayed between the appends.
    assert!(rows < 5, "{rows}");
    // A fork of a part of a row.
    store_fork(&journal, "s1", 2, "fork").await.unwrap();
    let fork = journal.read(&id("fork"), Seq(0)).await.unwrap();
    assert_eq!(fork[..2], journal.read(&id("s1"), Seq(0)).await.unwrap()[..2]);
    journal.remove(&[id("s1")]).await.unwrap();
    assert_eq!(journal.read(&id("fork"), Seq(0)).await.unwrap(), fork);
}

/// A fork in the same transaction as the records that it shares.
#[tokio::test]
async fn a_fork_follows_records_that_wait() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    let origin = log(&journal, "origin", 0);
    origin.append(vec![opened("x"), opened("y")], Urgency::Deferrable, || ());
    origin.append(vec![opened("z")], Urgency::Deferrable, || ());
    let mut entries = Vec::new();
    for (seq, record) in (1..).zip([
        opened("x"),
        opened("y"),
        opened("z"),
        Record::SessionForked { from: id("origin"), at: Seq(3) },
    ]) {
        entries.push(JournalEntry { seq: Seq(seq), time: 0, displayed_bytes: 0, record });
    }
    let fork = log(&journal, "fork", 0);
    fork.import(entries);
    fork.wait_durable(Seq(4)).await.unwrap();
    assert_eq!(texts(&journal, "fork").await, ["x", "y", "z", "fork of origin at 3"]);
    assert_eq!(origin.durable_seq(), Seq(3));
}

/// A batch that is not urgent waits for its own session, not for others.
#[test]
fn a_batch_waits_for_an_urgent_one_of_its_session() {
    let queue = WriteQueue::new(100);
    // Those with an hour are not due in this test, however long this thread is delayed.
    let batch = |session: &str, urgent, due: Duration| QueuedBatch {
        session: id(session),
        opening: None,
        state: None,
        seqs: 1..=1,
        rows: Vec::new(),
        documents: Vec::new(),
        urgent,
        queued_at: Instant::now() + due,
        engine_state: Arc::default(),
        on_status: Arc::new(Mutex::new(Box::new(|_| ()))),
    };
    let hour = Duration::from_secs(3_600);
    let sessions = |work: &queue::WriterWork| -> Vec<String> {
        work.queued.iter().map(|batch| batch.session.to_string()).collect()
    };
    for (session, urgent) in [("a", false), ("b", false), ("a", true), ("c", true), ("a", false)] {
        queue.push(batch(session, urgent, hour));
    }
    assert_eq!(sessions(&queue.next_work(None)), ["a", "a", "c", "a"]);
    queue.push(batch("d", false, hour));
    queue.flush(&id("d"));
    let work = queue.next_work(None);
    assert!(work.flush && sessions(&work) == ["d"]);
    // A task comes after all that was queued before it.
    let (done, _answer) = oneshot::channel();
    queue.push_task(WriterTask::Erase, done).unwrap();
    queue.push(batch("e", true, hour));
    let work = queue.next_work(None);
    assert!(work.task.is_some() && sessions(&work) == ["b"]);
    assert_eq!(sessions(&queue.next_work(None)), ["e"]);
    // When one has waited long, it is stored with all others.
    queue.push(batch("f", false, Duration::from_millis(20)));
    queue.push(batch("g", false, hour));
    assert_eq!(sessions(&queue.next_work(None)), ["f", "g"]);
    queue.close();
    assert!(queue.next_work(None).ended);
}

#[test]
fn a_copy_on_an_empty_page_of_64_kib_is_found_and_erased() {
    const PAGE_SIZE: usize = 65_536;
    let dir = TestDir::new();
    std::fs::create_dir(&dir.0).unwrap();
    let path = dir.0.join("pages");
    let mut content = vec![0_u8; 2 * PAGE_SIZE];
    // A table leaf without cells: its content starts at 65,536, which is stored as 0.
    content[PAGE_SIZE] = 13;
    content[PAGE_SIZE + 100] = 1;
    std::fs::write(&path, &content).unwrap();
    let mut file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let layout = PageLayout { page_size: PAGE_SIZE, has_pointer_maps: false };
    let copies = pages::find_copies(&mut file, layout, [2]).unwrap();
    assert_eq!(copies.keys().collect::<Vec<_>>(), [&2]);
    pages::erase_copies(&mut file, PAGE_SIZE, &copies).unwrap();
    content[PAGE_SIZE + 100] = 0;
    assert!(std::fs::read(&path).unwrap() == content, "the page has other bytes");
}

/// Waits until a condition holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not reached: {what}");
}

/// Begins a read of another program, which ends when the connection is dropped.
fn begin_read(dir: &TestDir) -> rusqlite::Connection {
    let reader = rusqlite::Connection::open(dir.0.join("journal.db")).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM sessions").unwrap();
    reader.query_row("SELECT count(*) FROM sessions", [], |_| Ok(())).unwrap();
    reader
}

#[tokio::test]
async fn a_deletion_beside_a_long_read_is_finished_later_also_by_the_next_host() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    for name in ["first", "second", "third"] {
        store_session(&journal, name, 20).await;
    }
    let reader = begin_read(&dir);
    assert_eq!(journal.remove(&[id("first")]).await, Err(JournalError::NotErased));
    assert_eq!((journal.count().await, journal.find(&id("first")).await), (Ok(2), Ok(None)));
    // The writer does not wait for the reader.
    store_session(&journal, "fourth", 20).await;
    assert_eq!(journal.remove(&[id("first")]).await, Err(JournalError::NotErased), "a repetition");
    assert!(file_text(&dir).contains("first-1"), "the log has it");
    drop(reader);
    until("the writer has erased it", || !file_text(&dir).contains("first-")).await;
    assert_eq!(journal.remove(&[id("first")]).await, Ok(()));

    let reader = begin_read(&dir);
    assert_eq!(journal.remove(&[id("second")]).await, Err(JournalError::NotErased));
    // The files as a kill would leave them.
    let killed = TestDir::new();
    std::fs::create_dir(&killed.0).unwrap();
    for file in ["journal.db", "journal.db-wal"] {
        std::fs::copy(dir.0.join(file), killed.0.join(file)).unwrap();
    }
    drop((reader, journal));
    assert!(file_text(&killed).contains("second-1"));
    let journal = open(&killed, Durability::Strict);
    until("the next host has erased it", || !file_text(&killed).contains("second-")).await;
    assert_eq!(texts(&journal, "third").await.len(), 20);
    assert_eq!(JournalReader::open(&killed.0).unwrap().check(), Ok(vec![]));
}

/// The ids are in an index. When SQLite splits one of its pages, it leaves the old bytes of ids that have moved.
#[tokio::test]
async fn ids_are_erased_although_their_index_was_split() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    let name =
        |at: u64| format!("id{:016x}-{}", at.wrapping_mul(0x9e37_79b9_7f4a_7c15), "x".repeat(40));
    let mut last = None;
    for at in 0..1_000 {
        let session = log(&journal, &name(at), 0);
        session.append(vec![opened("default")], Urgency::Deferrable, || ());
        if at % 50 == 0 {
            session.wait_durable(Seq(1)).await.unwrap();
        }
        last = Some(session);
    }
    last.unwrap().wait_durable(Seq(1)).await.unwrap();
    until("all are stored", || journal.count().now_or_never() == Some(Ok(1_000))).await;
    for at in (0..1_000).step_by(100) {
        journal.remove(&[id(&name(at))]).await.unwrap();
        let text = file_text(&dir);
        assert!(!text.contains(&name(at)), "{at}");
        assert!(text.contains(&name(at + 1)), "{at}");
    }
    assert_eq!(JournalReader::open(&dir.0).unwrap().check(), Ok(vec![]));
}

#[tokio::test]
async fn copies_in_a_database_of_an_earlier_version_are_erased() {
    let dir = TestDir::new();
    store_session(&open(&dir, Durability::Strict), "kept", 100).await;
    let connection = rusqlite::Connection::open(dir.0.join("journal.db")).unwrap();
    connection.execute_batch("DROP TABLE copies_erased").unwrap();
    drop(connection);
    // A page of a table with unused bytes.
    let mut content = std::fs::read(dir.0.join("journal.db")).unwrap();
    let page = content
        .chunks_mut(4_096)
        .skip(1)
        .find(|page| page[0] == 13 && page[1_000..1_200].iter().all(|byte| *byte == 0));
    page.unwrap()[1_000..1_008].copy_from_slice(b"leftover");
    std::fs::write(dir.0.join("journal.db"), content).unwrap();
    let journal = open(&dir, Durability::Strict);
    until("it is erased", || !file_text(&dir).contains("leftover")).await;
    let is_noted =
        || journal.readers.run(|connection| Ok(database::are_copies_erased(connection)?)).unwrap();
    until("the search has ended", is_noted).await;
    assert_eq!(texts(&journal, "kept").await.len(), 100);
    assert_eq!(JournalReader::open(&dir.0).unwrap().check(), Ok(vec![]));
}

#[tokio::test]
async fn lists_with_the_newest_first_begin_after_a_session_that_is_gone() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    for name in ["c", "a", "d", "b"] {
        store_session(&journal, name, 2).await;
    }
    for name in ["a", "d"] {
        // An unfinished deletion counts as a run.
        let session = log(&journal, name, 2);
        session.append(vec![Record::SessionClosed], Urgency::Urgent, || ());
        session.wait_durable(Seq(3)).await.unwrap();
    }
    let pages = async |state: Option<SessionState>, order| {
        let mut query = SessionQuery { state, order, limit: 1, ..SessionQuery::default() };
        let mut ids = Vec::new();
        while let Some(found) = journal.list(&query).await.unwrap().pop() {
            ids.push(found.id.to_string());
            query.continue_after(&found);
        }
        ids
    };
    use SessionOrder::{Id, Newest};
    assert_eq!(pages(None, Newest).await, ["b", "d", "a", "c"]);
    assert_eq!(pages(Some(SessionState::Running), Newest).await, ["d", "a"]);
    assert_eq!(pages(Some(SessionState::Running), Id).await, ["a", "d"]);
    assert_eq!(pages(Some(SessionState::Idle), Newest).await, ["b", "c"]);
    assert_eq!(pages(Some(SessionState::Idle), Id).await, ["b", "c"]);
    let mut query = SessionQuery { order: Newest, limit: 2, ..SessionQuery::default() };
    let page = journal.list(&query).await.unwrap();
    query.continue_after(&page[1]);
    journal.remove(&[id("d")]).await.unwrap();
    let next = journal.list(&query).await.unwrap();
    assert_eq!(next.iter().map(|found| found.id.as_str()).collect::<Vec<_>>(), ["a", "c"]);
}

#[tokio::test]
async fn a_start_that_fails_leaves_the_log_that_the_database_needs() {
    let dir = TestDir::new();
    drop(open(&dir, Durability::Strict));
    let faults = DiskFaults { synced_file: Some(dir.0.join("missing")), ..DiskFaults::default() };
    SqliteJournal::open_with_faults(&dir.0, options(Durability::Strict), faults).unwrap_err();
    let journal = open(&dir, Durability::Strict);
    store_session(&journal, "s", 1).await;
}

#[tokio::test]
async fn a_deletion_whose_caller_goes_away_is_finished() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    store_session(&journal, "deleted", 3).await;
    let ids = [id("deleted")];
    let mut removal = journal.remove(&ids);
    assert!(futures::poll!(&mut removal).is_pending());
    drop(removal);
    until("nothing is left of it", || !file_text(&dir).contains("deleted-")).await;
    assert_eq!(journal.count().await, Ok(0));
}

#[tokio::test]
async fn running_sessions_are_listed_in_order_whether_few_or_many_run() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    let names: Vec<String> = (0..160).map(|at| format!("s{:03}", at * 7 % 160)).collect();
    let logs: Vec<_> = names.iter().map(|name| log(&journal, name, 0)).collect();
    for log in &logs {
        log.append(vec![opened("x")], Urgency::Urgent, || ());
    }
    let mut running: Vec<&str> = Vec::new();
    for (are_many, end) in [(false, 5), (true, 150)] {
        for at in running.len()..end {
            logs[at].append(vec![Record::SessionClosed], Urgency::Urgent, || ());
            logs[at].wait_durable(Seq(2)).await.unwrap();
            running.push(&names[at]);
        }
        running.sort_unstable();
        let found = journal.query(|connection| Ok(query::are_many_running(connection)?)).await;
        assert_eq!(found, Ok(are_many));
        let mut query = SessionQuery { limit: 7, ..SessionQuery::default() };
        query.state = Some(SessionState::Running);
        let mut listed = Vec::new();
        loop {
            let page = journal.list(&query).await.unwrap();
            let Some(last) = page.last() else { break };
            query.continue_after(last);
            assert!(page.iter().all(|found| found.seq == Seq(2)));
            listed.extend(page.into_iter().map(|found| found.id.to_string()));
        }
        assert_eq!(listed, running);
    }
}

/// A lock of another program is waited for. What is appended meanwhile is kept in memory.
#[tokio::test]
async fn writes_wait_for_a_foreign_lock() {
    let dir = TestDir::new();
    let patient =
        SqliteOptions { busy_timeout: Duration::from_secs(60), ..options(Durability::Strict) };
    let journal = Arc::new(SqliteJournal::open(&dir.0, patient).unwrap());
    store_session(&journal, "s", 2).await;
    let other = rusqlite::Connection::open(dir.0.join("journal.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let session = log(&journal, "s", 2);
    for _ in 0..3 {
        session.append(vec![opened("later")], Urgency::Urgent, || ());
    }
    // Longer than one period of the wait.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!((session.durable_seq(), session.failure(), journal.failure()), (Seq(2), None, None));
    other.execute_batch("COMMIT").unwrap();
    session.wait_durable(Seq(5)).await.unwrap();
    drop((session, journal));

    let hasty = SqliteOptions { busy_timeout: Duration::ZERO, ..options(Durability::Strict) };
    let journal = Arc::new(SqliteJournal::open(&dir.0, hasty).unwrap());
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let session = log(&journal, "s", 5);
    session.append(vec![opened("lost")], Urgency::Urgent, || ());
    let error = session.wait_durable(Seq(6)).await.unwrap_err().to_string();
    assert!(error.contains("another program has locked the database"), "{error}");
}

/// After a long read, which keeps the log from being emptied, the log is moved beside the writer and shrinks.
#[tokio::test]
async fn a_log_that_grew_beside_a_long_read_shrinks() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Relaxed);
    store_session(&journal, "s", 1).await;
    let reader = begin_read(&dir);
    let session = log(&journal, "s", 1);
    let body = "x".repeat(1 << 20);
    for at in 2..80 {
        session.append(vec![opened(&body)], Urgency::Urgent, || ());
        session.wait_durable(Seq(at)).await.unwrap();
    }
    let log_bytes = || journal.status().log_bytes.unwrap();
    assert!(log_bytes() > 70 << 20, "{}", log_bytes());
    drop(reader);
    let mut at = 80;
    while log_bytes() > 50 << 20 {
        session.append(vec![opened("small")], Urgency::Urgent, || ());
        session.wait_durable(Seq(at)).await.unwrap();
        at += 1;
        assert!(at < 10_000, "the log has {} bytes", log_bytes());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(journal.read(&id("s"), Seq(0)).await.unwrap().len() as u64, at - 1);
}

#[tokio::test]
async fn free_pages_are_given_back_while_the_host_runs() {
    let dir = TestDir::new();
    let journal = open(&dir, Durability::Strict);
    let body = "x".repeat(100_000);
    for session in 0..100 {
        let session = log(&journal, &format!("s{session}"), 0);
        session.append(vec![opened("default"), opened(&body)], Urgency::Urgent, || ());
        session.wait_durable(Seq(2)).await.unwrap();
    }
    let size = || std::fs::metadata(dir.0.join("journal.db")).unwrap().len();
    // The last one stays, whose pages are at the end.
    let ids: Vec<SessionId> = (0..99).map(|session| id(&format!("s{session}"))).collect();
    journal.remove(&ids).await.unwrap();
    // A checkpoint makes the file shorter.
    let shrinks = async {
        while size() >= 2 << 20 {
            journal.run_on_writer(WriterTask::EraseCopies(Vec::new())).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), shrinks).await.unwrap();
    assert_eq!(journal.failure(), None);
    store_session(&journal, "new", 20).await;
    assert_eq!(journal.read(&id("s99"), Seq(0)).await.unwrap().len(), 2);
    assert_eq!(JournalReader::open(&dir.0).unwrap().check(), Ok(vec![]));
    drop(journal);
    let journal = open(&dir, Durability::Strict);
    assert_eq!(texts(&journal, "new").await.len(), 20);
}

/// A database of an earlier version cannot give pages back. Its backup can.
#[tokio::test]
async fn a_backup_of_an_earlier_database_can_give_pages_back() {
    let dir = TestDir::new();
    store_session(&open(&dir, Durability::Strict), "s", 20).await;
    let old = rusqlite::Connection::open(dir.0.join("journal.db")).unwrap();
    old.execute_batch("PRAGMA journal_mode = delete; PRAGMA auto_vacuum = none; VACUUM").unwrap();
    let layout = |connection: &rusqlite::Connection| PageLayout::read(connection).unwrap();
    assert!(!layout(&old).has_pointer_maps);
    drop(old);
    let journal = open(&dir, Durability::Strict);
    let copies = TestDir::new();
    JournalReader::open(&dir.0).unwrap().back_up(&copies.0.join("backup")).unwrap();
    let restored = copies.0.join("restored");
    restore(&copies.0.join("backup"), &restored).unwrap();
    drop(journal);
    // A copy of the directory is converted when it is restored.
    restore(&dir.0, &copies.0.join("second")).unwrap();
    for dir in ["restored", "second"] {
        let connection = rusqlite::Connection::open(copies.0.join(dir).join("journal.db")).unwrap();
        assert!(layout(&connection).has_pointer_maps, "{dir}");
    }
    let journal = Arc::new(SqliteJournal::open(&restored, options(Durability::Strict)).unwrap());
    assert_eq!(texts(&journal, "s").await.len(), 20);
}
