//! The SQLite journal: storing, deleting, and errors of damaged files.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
#[cfg(all(unix, debug_assertions))]
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use callsheet::config::Durability;
use callsheet::journal::{
    AppendStatus, Batch, BatchStatus, EngineLogState, GroupCommit, Journal, JournalEntry,
    JournalError, JournalObserver, JournalReader, MemoryJournal, SessionLog, SessionQuery,
    SqliteJournal, SqliteOptions, Urgency,
};
use callsheet::record::{Record, Seq, StopMode};
use callsheet::types::{Content, Execution, RunEnd, RunId, SessionId, SessionState};
use parking_lot::Mutex;
use proptest::prelude::*;

/// A temporary directory, deleted at the end.
struct TestDir(PathBuf);

impl TestDir {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("callsheet-journal-test-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&dir);
        Self(dir)
    }

    /// Returns the bytes of every file.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for entry in fs::read_dir(&self.0).unwrap() {
            bytes.extend(fs::read(entry.unwrap().path()).unwrap());
        }
        bytes
    }

    fn database(&self) -> PathBuf {
        self.0.join("journal.db")
    }

    /// Copies the current files, as a crash would leave them.
    fn copy(&self) -> Self {
        let copy = Self::new();
        fs::create_dir(&copy.0).unwrap();
        for entry in fs::read_dir(&self.0).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != "journal.db-shm" {
                fs::copy(entry.path(), copy.0.join(entry.file_name())).unwrap();
            }
        }
        copy
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Collects the observer's calls. With a gate, the writer thread waits after each transaction until
/// the gate opens.
#[derive(Debug, Default)]
struct Groups {
    groups: Mutex<Vec<GroupCommit>>,
    syncs: AtomicUsize,
    gate: Option<Gate>,
}

#[derive(Debug)]
struct Gate {
    arrived: SyncSender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl JournalObserver for Groups {
    fn stored(&self, group: GroupCommit) {
        self.groups.lock().push(group);
        if let Some(Gate { arrived, go_on }) = &self.gate {
            // A finished test opens the gate.
            let _ = arrived.send(());
            let _ = go_on.lock().recv();
        }
    }

    fn synced(&self, _: Duration) {
        self.syncs.fetch_add(1, Ordering::SeqCst);
    }
}

impl Groups {
    fn sizes(&self) -> Vec<(usize, usize)> {
        self.groups.lock().iter().map(|group| (group.batches, group.records)).collect()
    }
}

/// A gate at which a test controls the writer thread.
struct Meeting {
    arrived: Receiver<()>,
    go_on: Option<SyncSender<()>>,
}

fn gated() -> (Arc<Groups>, Meeting) {
    let (arrived, arrives) = sync_channel(100);
    let (go_on, goes_on) = sync_channel(100);
    let gate = Gate { arrived, go_on: Mutex::new(goes_on) };
    let groups = Groups { gate: Some(gate), ..Groups::default() };
    (Arc::new(groups), Meeting { arrived: arrives, go_on: Some(go_on) })
}

fn options() -> SqliteOptions {
    SqliteOptions::default().with(|new| {
        new.durability = Durability::Strict;
        new.holder = "listening on 127.0.0.1:7700".to_owned();
        new.observer = Arc::new(Groups::default());
        new.queue_max = 100_000;
    })
}

fn open(dir: &TestDir) -> Arc<SqliteJournal> {
    Arc::new(SqliteJournal::open(&dir.0, options()).unwrap())
}

fn id(text: &str) -> SessionId {
    SessionId::parse(text).unwrap()
}

fn opened() -> Record {
    Record::SessionOpened {
        agent: "default".to_owned(),
        messages: Vec::new(),
        metadata: callsheet::Metadata::default(),
        parent: None,
        client_tools: None,
    }
}

fn steered(text: &str) -> Record {
    Record::InputQueued {
        run_id: RunId("run_0000000000000001".into()),
        input: Content::from(text),
        overrides: Default::default(),
        request: None,
        trace: None,
        metadata: callsheet::Metadata::default(),
        into: None,
        authored_by: None,
    }
}

fn log(journal: &Arc<SqliteJournal>, session: &str, last: u64) -> SessionLog {
    let journal = Arc::clone(journal) as Arc<dyn Journal>;
    SessionLog::new(id(session), journal, Seq(last), |_| ())
}

/// Appends records like a session's log, and collects the status of each batch.
struct Raw {
    session: SessionId,
    engine_state: Arc<EngineLogState>,
    statuses: Receiver<(u64, BatchStatus)>,
    status_sender: std::sync::mpsc::Sender<(u64, BatchStatus)>,
}

impl Raw {
    fn new(session: &str) -> Self {
        let (status_sender, statuses) = channel();
        Self { session: id(session), engine_state: Arc::default(), statuses, status_sender }
    }

    fn batch(&self, seq: u64, record: Record, urgent: bool) -> Batch {
        let status_sender = self.status_sender.clone();
        let entry = JournalEntry { seq: Seq(seq), time: seq, displayed_bytes: 0, record };
        let mut batch = Batch::new(
            self.session.clone(),
            vec![Arc::new(entry)],
            Arc::clone(&self.engine_state),
            Box::new(move |control| status_sender.send((seq, control)).unwrap()),
        );
        batch.urgent = urgent;
        batch
    }

    fn append(&self, journal: &SqliteJournal, seq: u64) {
        let record = if seq == 1 { opened() } else { steered("hello") };
        assert_eq!(journal.append(self.batch(seq, record, true)), AppendStatus::Queued);
    }

    /// Returns the next status.
    fn next(&self) -> (u64, BatchStatus) {
        self.statuses.recv().unwrap()
    }
}

/// Returns a deterministic source of bytes and numbers.
fn random() -> impl FnMut(u64) -> u64 {
    let mut seed = 7_u64;
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Returns the error message of opening the journal.
fn refused(dir: &TestDir) -> String {
    match SqliteJournal::open(&dir.0, options()) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    }
}

/// Creates and closes a journal of a few sessions. Returns its entries by session.
fn filled(dir: &TestDir) -> Vec<(SessionId, Vec<JournalEntry>)> {
    let journal = open(dir);
    let mut random = random();
    let logs: Vec<SessionLog> = (0..6).map(|at| log(&journal, &format!("s{at}"), 0)).collect();
    for log in &logs {
        log.append(vec![opened()], Urgency::Deferrable, || ());
    }
    for at in 0..120 {
        let text = "word ".repeat(random(900) as usize);
        logs[at % logs.len()].append(vec![steered(&text)], Urgency::Deferrable, || ());
    }
    logs.iter().for_each(|log| block_on(log.wait_durable(log.last_seq())).unwrap());
    let sessions = block_on(journal.list(&SessionQuery::default())).unwrap();
    let read = |session: SessionId| {
        let entries = block_on(journal.read(&session, Seq(0))).unwrap();
        (session, entries)
    };
    sessions.into_iter().map(|stored| read(stored.id)).collect()
}

#[test]
fn nothing_of_a_removed_session_remains_on_the_disk() {
    let mut random = random();
    let dir = TestDir::new();
    let journal = open(&dir);
    let sessions = 60;
    let name = |session: u64| format!("secret{session:03}x");
    let logs: Vec<SessionLog> =
        (0..sessions).map(|session| log(&journal, &name(session), 0)).collect();
    for log in &logs {
        log.append(vec![opened()], Urgency::Deferrable, || ());
    }
    for _ in 0..sessions * 20 {
        let session = random(sessions);
        let length = [20, 200, 1_000, 3_000, 9_000][random(5) as usize];
        let text = name(session).repeat(length / 10);
        logs[session as usize].append(vec![steered(&text)], Urgency::Deferrable, || ());
    }
    logs.iter().for_each(|log| block_on(log.wait_durable(log.last_seq())).unwrap());
    let mut left: Vec<u64> = (0..sessions).collect();
    while !left.is_empty() {
        let session = left.swap_remove(random(left.len() as u64) as usize);
        block_on(journal.remove(&[id(&name(session))])).unwrap();
        let bytes = dir.bytes();
        let found: BTreeSet<u64> = memchr::memmem::find_iter(&bytes, "secret")
            .filter_map(|at| std::str::from_utf8(&bytes[at + 6..at + 9]).ok()?.parse().ok())
            .collect();
        assert_eq!(found, left.iter().copied().collect(), "after {session}");
        assert_eq!(block_on(journal.count()), Ok(left.len()));
    }
}

#[test]
fn a_second_host_learns_who_uses_the_directory() {
    let dir = TestDir::new();
    let journal = open(&dir);
    let error = SqliteJournal::open(&dir.0, options()).unwrap_err();
    let holder = format!("pid {}, listening on 127.0.0.1:7700", std::process::id());
    assert_eq!(error, JournalError::Locked { dir: dir.0.clone(), holder });
    block_on(journal.close());
    let raw = Raw::new("a");
    raw.append(&journal, 1);
    assert_eq!(raw.next(), (1, BatchStatus::Failed(JournalError::Closed)));
    assert_eq!(block_on(journal.remove(&[id("a")])), Err(JournalError::Closed));
    assert_eq!(block_on(journal.read(&id("a"), Seq(0))), Err(JournalError::Closed));
    drop(SqliteJournal::open(&dir.0, options()).unwrap());
}

#[test]
fn the_lock_holds_although_its_file_is_removed() {
    let dir = TestDir::new();
    let journal = open(&dir);
    std::fs::remove_file(dir.0.join("callsheet.lock")).unwrap();
    assert!(refused(&dir).contains("stop that host"), "{}", refused(&dir));
    drop(journal);
    open(&dir);
}

/// SQLite's locks must stay when the host reads the file beside SQLite: without them another program
/// could take the log away.
#[cfg(target_os = "linux")]
#[test]
fn sqlites_locks_stay_when_sessions_are_removed() {
    let dir = TestDir::new();
    filled(&dir);
    let journal = open(&dir);
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(dir.database()).unwrap());
    let locks = || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let is_ours = |line: &&str| line.contains("POSIX") && line.contains(&format!(":{inode} "));
        locks.lines().filter(is_ours).count()
    };
    let before = locks();
    assert!(before > 0, "SQLite holds a lock on a database with a log");
    block_on(journal.remove(&[id("s0")])).unwrap();
    assert_eq!(locks(), before);
}

#[cfg(unix)]
#[test]
fn the_directory_is_accessible_only_to_this_user() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TestDir::new();
    let inner = TestDir(dir.0.join("of").join("the host"));
    drop(open(&inner));
    let mode = fs::metadata(&inner.0).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // A stopped host has removed the write-ahead log.
    let names: BTreeSet<_> =
        fs::read_dir(&inner.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["callsheet.lock".into(), "journal.db".into()].into());
}

#[test]
fn an_invalid_journal_is_refused_with_a_reason() {
    let dir = TestDir::new();
    fs::write(&dir.0, "a file").unwrap();
    assert!(refused(&dir).ends_with(": it is not a directory: use another data directory"));
    fs::remove_file(&dir.0).unwrap();

    fs::create_dir(&dir.0).unwrap();
    for text in ["x", "this is no database, but a text that is long enough to be taken for one"] {
        fs::write(dir.database(), text).unwrap();
        let error = refused(&dir);
        assert!(error.contains("journal.db: it is not a SQLite database: restore it"), "{error}");
    }
    fs::remove_file(dir.database()).unwrap();
    fs::create_dir(dir.database()).unwrap();
    let error = refused(&dir);
    assert!(error.contains("journal.db: "), "{error}");
    fs::remove_dir(dir.database()).unwrap();

    let other = rusqlite::Connection::open(dir.database()).unwrap();
    other.execute_batch("CREATE TABLE x(y)").unwrap();
    let error = refused(&dir);
    assert!(error.ends_with("another program's database: use another data directory"), "{error}");
    drop(other);
    fs::remove_file(dir.database()).unwrap();

    drop(open(&dir));
    let connection = rusqlite::Connection::open(dir.database()).unwrap();
    connection.pragma_update(None, "user_version", 7).unwrap();
    let error = refused(&dir);
    assert!(error.contains("it is of version 7, and this program reads version 3"), "{error}");
    connection.pragma_update(None, "user_version", 3).unwrap();
    drop(connection);
    drop(open(&dir));

    // Another tool locks the database.
    let connection = rusqlite::Connection::open(dir.database()).unwrap();
    let exclusive = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
    connection.pragma_update_and_check(None, "locking_mode", "exclusive", exclusive).unwrap();
    connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let error = refused(&dir);
    assert!(error.ends_with("another program has locked it: stop that program"), "{error}");
    drop(connection);
    drop(open(&dir));
}

#[test]
fn a_lost_database_is_refused_beside_its_reserve() {
    let dir = TestDir::new();
    let with_reserve = || options().with(|new| new.reserve_bytes = 1_000);
    drop(SqliteJournal::open(&dir.0, with_reserve()).unwrap());
    for is_empty in [true, false] {
        fs::remove_file(dir.database()).unwrap();
        if is_empty {
            fs::write(dir.database(), "").unwrap();
        }
        let error = SqliteJournal::open(&dir.0, with_reserve()).unwrap_err().to_string();
        assert!(error.contains("journal.db: it is missing or empty"), "{error}");
        assert!(error.contains("restore it from a backup, or remove journal.reserve"), "{error}");
    }
    fs::remove_file(dir.0.join("journal.reserve")).unwrap();
    drop(SqliteJournal::open(&dir.0, with_reserve()).unwrap());
}

#[cfg(unix)]
#[test]
fn a_database_that_was_truncated_is_not_written() {
    let dir = TestDir::new();
    let journal = open(&dir);
    let raw = Raw::new("a");
    raw.append(&journal, 1);
    assert_eq!(raw.next(), (1, BatchStatus::Durable));
    assert_eq!(journal.failure(), None);
    let database = fs::OpenOptions::new().write(true).open(dir.database()).unwrap();
    database.set_len(0).unwrap();
    let failure = journal.failure().unwrap();
    assert!(failure.to_string().contains("journal.db was truncated"), "{failure}");
    let lost = Raw::new("b");
    lost.append(&journal, 1);
    assert_eq!(lost.next(), (1, BatchStatus::Failed(failure.clone())));
    assert_eq!(block_on(journal.put_document("key", "text", None)), Err(failure));
}

#[cfg(unix)]
#[test]
fn a_database_that_is_not_at_its_path_is_not_written() {
    let dir = TestDir::new();
    let journal = open(&dir);
    let raw = Raw::new("a");
    raw.append(&journal, 1);
    assert_eq!(raw.next(), (1, BatchStatus::Durable));
    let moved = dir.0.join("moved.db");
    fs::rename(dir.database(), &moved).unwrap();
    let refuses = |session: &str| {
        let failure = journal.failure().unwrap();
        assert!(failure.to_string().contains("journal.db was removed or replaced"), "{failure}");
        let lost = Raw::new(session);
        lost.append(&journal, 1);
        assert_eq!(lost.next(), (1, BatchStatus::Failed(failure.clone())));
        assert_eq!(block_on(journal.remove(&[id("a")])), Err(failure.clone()));
        assert_eq!(block_on(journal.put_document("key", "text", None)), Err(failure));
    };
    refuses("removed");
    fs::write(dir.database(), "another file").unwrap();
    refuses("replaced");
    // It is opened again when it is back.
    fs::rename(&moved, dir.database()).unwrap();
    while journal.failure().is_some() {
        std::thread::sleep(Duration::from_millis(10));
    }
    raw.append(&journal, 2);
    assert_eq!(raw.next(), (2, BatchStatus::Durable));
    drop(journal);
    let journal = open(&dir);
    assert_eq!(
        (block_on(journal.count()), block_on(journal.read(&id("a"), Seq(0))).unwrap().len()),
        (Ok(1), 2)
    );
}

#[test]
fn a_directory_that_cannot_be_written_is_refused_but_can_be_read() {
    let outer = TestDir::new();
    let dir = TestDir(outer.0.join("of a host?"));
    let expected = filled(&dir);
    let set = |readonly| {
        for path in [dir.database(), dir.0.join("callsheet.lock"), dir.0.clone()] {
            let mut permissions = fs::metadata(&path).unwrap().permissions();
            permissions.set_readonly(readonly);
            fs::set_permissions(&path, permissions).unwrap();
        }
    };
    set(true);
    // The superuser can always write.
    let writable = fs::write(dir.0.join("probe"), "").is_ok();
    let opened = SqliteJournal::open(&dir.0, options()).map(drop);
    let read = JournalReader::open(&dir.0).and_then(|reader| reader.read(&expected[0].0, Seq(0)));
    set(false);
    assert_eq!(read.unwrap(), expected[0].1);
    if !writable {
        let error = opened.unwrap_err().to_string();
        assert!(error.contains("give this user write permission for the directory"), "{error}");
    }
}

#[test]
fn records_are_recovered_after_a_crash() {
    let dir = TestDir::new();
    let journal = open(&dir);
    let raw = Raw::new("a");
    for seq in 1..=50 {
        raw.append(&journal, seq);
        assert_eq!(raw.next(), (seq, BatchStatus::Durable));
        if seq % 10 == 0 {
            let copy = dir.copy();
            let entries = block_on(open(&copy).read(&id("a"), Seq(0))).unwrap();
            assert_eq!(entries.len() as u64, seq);
        }
    }
}

/// Reads the journal. Each entry is either unchanged or an error.
fn check_damaged(
    dir: &TestDir,
    expected: &[(SessionId, Vec<JournalEntry>)],
) -> Result<(), JournalError> {
    let journal = SqliteJournal::open(&dir.0, options())?;
    for (session, entries) in expected {
        let read = block_on(journal.read(session, Seq(0)))?;
        assert_eq!(&read, entries);
    }
    block_on(journal.list(&SessionQuery::default()))?;
    Ok(())
}

#[test]
fn a_truncated_file_is_detected_when_it_is_opened() {
    let dir = TestDir::new();
    let expected = filled(&dir);
    let whole = fs::read(dir.database()).unwrap();
    let mut random = random();
    let pages = (0..whole.len()).step_by(4_096).skip(1);
    let places = pages.chain((0..40).map(|_| 1 + random(whole.len() as u64 - 1) as usize));
    for length in places {
        let copy = dir.copy();
        fs::write(copy.database(), &whole[..length]).unwrap();
        let error = refused(&copy);
        let statuses = error.contains("damaged") || error.contains("is not a SQLite database");
        assert!(statuses && error.contains("restore it from a backup"), "at {length}: {error}");
    }
    check_damaged(&dir, &expected).unwrap();
}

#[test]
fn a_truncated_file_with_a_log_is_detected() {
    let dir = TestDir::new();
    filled(&dir);
    let journal = open(&dir);
    let raw = Raw::new("new");
    raw.append(&journal, 1);
    assert_eq!(raw.next(), (1, BatchStatus::Durable));
    let copy = dir.copy();
    let whole = fs::read(copy.database()).unwrap();
    fs::write(copy.database(), &whole[..whole.len() - 3 * 4_096]).unwrap();
    let error = refused(&copy);
    assert!(error.contains("its end is cut off"), "{error}");
    let error = JournalReader::open(&copy.0).unwrap_err().to_string();
    assert!(error.contains("its end is cut off"), "{error}");
    fs::write(copy.database(), &whole).unwrap();
    assert_eq!(block_on(open(&copy).count()), Ok(7));
}

#[test]
fn flipped_bytes_cause_errors_and_never_a_panic() {
    let dir = TestDir::new();
    let expected = filled(&dir);
    let whole = fs::read(dir.database()).unwrap();
    let mut random = random();
    let mut errors = 0;
    for round in 0..150 {
        let mut broken = whole.clone();
        for _ in 0..=round % 20 {
            let at = random(broken.len() as u64) as usize;
            broken[at] ^= 1 << random(8);
        }
        let copy = TestDir::new();
        fs::create_dir(&copy.0).unwrap();
        fs::write(copy.database(), broken).unwrap();
        let opened = SqliteJournal::open(&copy.0, options());
        let Ok(journal) = opened else {
            errors += 1;
            continue;
        };
        let raw = Raw::new("new");
        raw.append(&journal, 1);
        let (_, control) = raw.next();
        assert!(matches!(control, BatchStatus::Durable | BatchStatus::Failed(_)));
        let all =
            expected.iter().all(|(session, _)| block_on(journal.read(session, Seq(0))).is_ok());
        errors += usize::from(!all || block_on(journal.list(&SessionQuery::default())).is_err());
        drop(journal);
        // The problems are texts for people.
        let _ = JournalReader::open(&copy.0).and_then(|reader| reader.check());
    }
    assert!(errors > 0, "some were noticed");
}

#[test]
fn many_batches_share_one_transaction() {
    let dir = TestDir::new();
    let (groups, mut meeting) = gated();
    let journal =
        SqliteJournal::open(&dir.0, options().with(|new| new.observer = groups.clone())).unwrap();
    let first = Raw::new("first");
    first.append(&journal, 1);
    meeting.arrived.recv().unwrap();
    // The writer is busy.
    let others: Vec<Raw> = (0..500).map(|at| Raw::new(&format!("s{at}"))).collect();
    for seq in 1..=2 {
        others.iter().for_each(|raw| raw.append(&journal, seq));
    }
    assert_eq!(journal.status().queued, 1_000);
    drop(meeting.go_on.take());
    for raw in &others {
        assert_eq!(
            [raw.next(), raw.next()],
            [(1, BatchStatus::Durable), (2, BatchStatus::Durable)]
        );
    }
    block_on(journal.close());
    assert_eq!(groups.sizes(), [(1, 1), (1_000, 1_000)]);
    assert_eq!(groups.syncs.load(Ordering::SeqCst), 2);
}

#[test]
fn batches_that_are_not_urgent_are_stored_after_a_delay_with_a_flush_or_at_the_close() {
    let dir = TestDir::new();
    let journal = open(&dir);
    let raw = Raw::new("a");
    journal.append(raw.batch(1, opened(), false));
    assert_eq!(raw.next(), (1, BatchStatus::Durable));
    journal.append(raw.batch(2, steered("x"), false));
    journal.flush(&SessionId::parse("a").unwrap());
    assert_eq!(raw.next(), (2, BatchStatus::Durable));
    journal.append(raw.batch(3, steered("x"), false));
    // Queued batches are stored before closing.
    drop(journal);
    assert_eq!(raw.next(), (3, BatchStatus::Durable));
    assert_eq!(block_on(open(&dir).read(&id("a"), Seq(0))).unwrap().len(), 3);
}

#[test]
fn relaxed_batches_are_written_then_durable_in_order() {
    let dir = TestDir::new();
    let relaxed = options().with(|new| new.durability = Durability::Relaxed);
    let journal = SqliteJournal::open(&dir.0, relaxed).unwrap();
    let raw = Raw::new("a");
    (1..=3).for_each(|seq| raw.append(&journal, seq));
    let mut statuses: Vec<_> = (0..6).map(|_| raw.next()).collect();
    let durable: Vec<u64> = statuses
        .iter()
        .filter(|(_, control)| *control == BatchStatus::Durable)
        .map(|(seq, _)| *seq)
        .collect();
    assert_eq!(durable, [1, 2, 3]);
    statuses.retain(|(_, control)| *control == BatchStatus::Written);
    assert_eq!(
        statuses,
        [(1, BatchStatus::Written), (2, BatchStatus::Written), (3, BatchStatus::Written)]
    );
    // There is no flush.
    raw.append(&journal, 4);
    assert_eq!([raw.next(), raw.next()], [(4, BatchStatus::Written), (4, BatchStatus::Durable)]);
    raw.append(&journal, 5);
    drop(journal);
    assert_eq!([raw.next(), raw.next()], [(5, BatchStatus::Written), (5, BatchStatus::Durable)]);
}

#[test]
fn batches_beyond_the_queue_limit_fail_and_leave_no_gap() {
    let dir = TestDir::new();
    let (groups, mut meeting) = gated();
    let journal = SqliteJournal::open(
        &dir.0,
        options().with(|new| {
            new.observer = groups;
            new.queue_max = 2;
        }),
    )
    .unwrap();
    let (raw, other) = (Raw::new("a"), Raw::new("b"));
    raw.append(&journal, 1);
    // The batch is stored, but its status is not reported.
    meeting.arrived.recv().unwrap();
    (2..=4).for_each(|seq| raw.append(&journal, seq));
    // The failure is reported at once, before the queued batches.
    assert_eq!(raw.next(), (4, BatchStatus::Failed(JournalError::Overloaded)));
    drop(meeting.go_on.take());
    for seq in 1..=3 {
        assert_eq!(raw.next(), (seq, BatchStatus::Durable));
    }
    raw.append(&journal, 5);
    let reason = "a record of session a before 5 was not stored".to_owned();
    assert_eq!(raw.next(), (5, BatchStatus::Failed(JournalError::Write(reason))));
    other.append(&journal, 1);
    assert_eq!(other.next(), (1, BatchStatus::Durable));
    assert_eq!(block_on(journal.read(&id("a"), Seq(0))).unwrap().len(), 3);
}

#[test]
fn an_invalid_batch_fails_alone() {
    let dir = TestDir::new();
    let (groups, mut meeting) = gated();
    let journal = SqliteJournal::open(&dir.0, options().with(|new| new.observer = groups)).unwrap();
    let (gap, large, good) = (Raw::new("gap"), Raw::new("large"), Raw::new("good"));
    gap.append(&journal, 1);
    meeting.arrived.recv().unwrap();
    // All are in one transaction. One batch leaves a gap, one cannot be stored.
    gap.append(&journal, 3);
    gap.append(&journal, 2);
    let mut batch = large.batch(1, opened(), true);
    let entry = JournalEntry { time: u64::MAX, ..JournalEntry::clone(&batch.entries[0]) };
    batch.entries = vec![Arc::new(entry)];
    journal.append(batch);
    large.append(&journal, 2);
    (1..=2).for_each(|seq| good.append(&journal, seq));
    let unknown = Raw::new("unknown");
    unknown.append(&journal, 4);
    drop(meeting.go_on.take());
    assert_eq!(gap.next(), (1, BatchStatus::Durable));
    let failed = |raw: &Raw, reason: &str| {
        let (_, control) = raw.next();
        let BatchStatus::Failed(JournalError::Write(text)) = control else { panic!("{control:?}") };
        assert!(text.contains(reason), "{text}");
    };
    failed(&gap, "record 3 of session gap does not follow the last one, 1");
    // A new log can append it.
    assert_eq!(gap.next(), (2, BatchStatus::Durable));
    failed(&large, "");
    failed(&large, "a record of session large before 2 was not stored");
    failed(&unknown, "there is no session unknown");
    assert_eq!([good.next(), good.next()], [(1, BatchStatus::Durable), (2, BatchStatus::Durable)]);
    assert_eq!(block_on(journal.count()), Ok(2));
}

#[test]
fn a_removed_session_accepts_no_more_records() {
    let dir = TestDir::new();
    let journal = open(&dir);
    let raw = Raw::new("a");
    raw.append(&journal, 1);
    assert_eq!(raw.next(), (1, BatchStatus::Durable));
    block_on(journal.remove(&[id("a"), id("never")])).unwrap();
    assert_eq!((block_on(journal.count()), block_on(journal.find(&id("a")))), (Ok(0), Ok(None)));
    // Another session, which must not receive the records of the first.
    let other = Raw::new("a");
    other.append(&journal, 1);
    assert_eq!(other.next(), (1, BatchStatus::Durable));
    raw.append(&journal, 2);
    let reason = "session a has been removed".to_owned();
    assert_eq!(raw.next(), (2, BatchStatus::Failed(JournalError::Write(reason))));
    assert_eq!(block_on(journal.read(&id("a"), Seq(0))).unwrap().len(), 1);
}

#[test]
fn concurrent_appends_keep_order_without_gaps() {
    let dir = TestDir::new();
    let journal = open(&dir);
    let logs: Vec<SessionLog> = (0..4).map(|at| log(&journal, &format!("s{at}"), 0)).collect();
    for log in &logs {
        log.append(vec![opened()], Urgency::Urgent, || ());
    }
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let logs = &logs;
            scope.spawn(move || {
                for at in 0..100 {
                    let urgency = if at % 3 == 0 { Urgency::Urgent } else { Urgency::Deferrable };
                    let records = vec![steered("x"); 1 + at % 2];
                    logs[(thread + at) % logs.len()].append(records, urgency, || ());
                }
            });
        }
    });
    for log in &logs {
        let last = log.last_seq();
        block_on(log.wait_durable(last)).unwrap();
    }
    let stored = block_on(journal.list(&SessionQuery::default())).unwrap();
    for (stored, log) in stored.iter().zip(&logs) {
        assert_eq!((stored.seq, log.last_seq()), (Seq(301), Seq(301)));
        let seqs: Vec<u64> = block_on(journal.read(&stored.id, Seq(0)))
            .unwrap()
            .iter()
            .map(|entry| entry.seq.0)
            .collect();
        assert_eq!(seqs, (1..=301).collect::<Vec<_>>());
    }
}

#[test]
fn a_record_of_a_later_version_is_an_error_of_its_own() {
    let dir = TestDir::new();
    let journal = open(&dir);
    let raw = Raw::new("a");
    for seq in 1..=2 {
        raw.append(&journal, seq);
        // A row for each record.
        assert_eq!(raw.next(), (seq, BatchStatus::Durable));
    }
    drop(journal);
    let connection = rusqlite::Connection::open(dir.database()).unwrap();
    let later = r#"UPDATE records SET body = '{"v":9,"record":{}}' WHERE seq = 2"#;
    connection.execute_batch(later).unwrap();
    drop(connection);
    let error = block_on(open(&dir).read(&id("a"), Seq(0))).unwrap_err();
    assert!(matches!(error, JournalError::Unreadable(_)), "{error:?}");
    assert!(error.to_string().contains("record 2 of session a: it is of version 9"), "{error}");
}

#[test]
fn commands_read_a_live_journal_and_one_of_a_stopped_host() {
    let dir = TestDir::new();
    let error = JournalReader::open(&dir.0).unwrap_err().to_string();
    assert!(error.contains("journal.db") && error.contains("data directory of a host"), "{error}");
    let journal = open(&dir);
    let reader = JournalReader::open(&dir.0).unwrap();
    let raw = Raw::new("a");
    raw.append(&journal, 1);
    assert_eq!(raw.next(), (1, BatchStatus::Durable));
    let check = |reader: &JournalReader| {
        assert_eq!(reader.read(&id("a"), Seq(0)).unwrap()[0].record, opened());
        assert_eq!(reader.find(&id("a")).unwrap().unwrap().seq, Seq(1));
        assert_eq!(reader.list(&SessionQuery::default()).unwrap().len(), 1);
        assert_eq!((reader.count(), reader.check()), (Ok(1), Ok(Vec::new())));
    };
    check(&reader);
    check(&JournalReader::open(&dir.0).unwrap());
    drop(journal);
    check(&reader);
    check(&JournalReader::open(&dir.0).unwrap());
}

/// The process that the next test kills. It is not a test by itself.
#[test]
fn child() {
    let Some(dir) = std::env::var_os("CALLSHEET_TEST_DIR") else { return };
    let journal = SqliteJournal::open(dir.as_ref(), options()).unwrap();
    let raw = Raw::new("a");
    for seq in 1..=100 {
        raw.append(&journal, seq);
        assert_eq!(raw.next(), (seq, BatchStatus::Durable));
    }
}

#[cfg(all(unix, debug_assertions))]
#[test]
fn a_process_kills_itself_at_the_configured_point() {
    use std::os::unix::process::ExitStatusExt;
    for (statuses, stored) in [("30", 30), ("30-before", 29)] {
        let dir = TestDir::new();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sqlite::child"])
            .env("CALLSHEET_TEST_DIR", &dir.0)
            .env("CALLSHEET_KILL_AT", statuses)
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(9), "{child:?}");
        let entries = block_on(open(&dir).read(&id("a"), Seq(0))).unwrap();
        assert_eq!(entries.len(), stored);
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Open(u8),
    Append(u8, u8),
    Remove(Vec<u8>),
    Reopen,
    List { after: Option<u8>, limit: usize, state: Option<SessionState>, before: Option<u64> },
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let session = 0..6_u8;
    let state =
        prop_oneof![Just(None), Just(Some(SessionState::Idle)), Just(Some(SessionState::Running))];
    let list = (prop::option::of(session.clone()), 0..4_usize, state, prop::option::of(0..60_u64));
    let operation = prop_oneof![
        3 => session.clone().prop_map(Operation::Open),
        8 => (session.clone(), 0..4_u8).prop_map(|(at, kind)| Operation::Append(at, kind)),
        1 => prop::collection::vec(session, 0..3).prop_map(Operation::Remove),
        1 => Just(Operation::Reopen),
        3 => list.prop_map(|(after, limit, state, before)| Operation::List {
            after, limit, state, before
        }),
    ];
    prop::collection::vec(operation, 1..60)
}

fn record(kind: u8) -> Record {
    let run_id = RunId("run_0000000000000001".into());
    match kind {
        0 => Record::RunStarted {
            run_id,
            input: Content::from("x"),
            overrides: Default::default(),
            model: "m".to_owned(),
            execution: Execution::Sequential,
            request: None,
            trace: None,
            metadata: callsheet::Metadata::default(),
            into: None,
            authored_by: None,
        },
        1 => Record::RunEnded {
            run_id,
            end: RunEnd::Answered,
            text: "done".to_owned(),
            error: None,
            output: None,
            into: None,
            stats: Default::default(),
            waiting: 0,
            finish_reason: None,
        },
        _ => Record::StopAsked { mode: StopMode::Now, authored_by: None },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// The in-memory engine is the reference: it is simple enough to be correct by inspection.
    #[test]
    fn it_answers_as_the_engine_in_memory_does(operations in operations()) {
        let dir = TestDir::new();
        let mut journal = open(&dir);
        let model = MemoryJournal::new();
        let name = |at: u8| id(&format!("s{at}"));
        for (time, operation) in (1..).zip(operations) {
            let (at, kind) = match operation {
                Operation::Open(at) => (at, None),
                Operation::Append(at, kind) => (at, Some(kind)),
                Operation::Remove(sessions) => {
                    let sessions: Vec<_> = sessions.into_iter().map(name).collect();
                    prop_assert_eq!(block_on(journal.remove(&sessions)), block_on(model.remove(&sessions)));
                    continue;
                }
                Operation::Reopen => {
                    drop(journal);
                    journal = open(&dir);
                    continue;
                }
                Operation::List { after, limit, state, before } => {
                    let listing =
                        SessionQuery::default().with(|query| {
                            query.after = after.map(name);
                            (query.limit, query.state) = (limit, state);
                            query.touched_before = before;
                        });
                    let listed = |journal: &dyn Journal| {
                        block_on(journal.list(&listing)).map(|found| serde_json::to_value(found).unwrap())
                    };
                    prop_assert_eq!(listed(&*journal), listed(&model));
                    continue;
                }
            };
            let last = block_on(model.find(&name(at))).unwrap().map_or(0, |stored| stored.seq.0);
            if (last == 0) != kind.is_none() {
                continue;
            }
            let raw = Raw::new(&format!("s{at}"));
            let record = kind.map_or_else(opened, record);
            let mut batch = raw.batch(last + 1, record, true);
            let entry = JournalEntry { time, ..JournalEntry::clone(&batch.entries[0]) };
            batch.entries = vec![Arc::new(entry)];
            let mut same = raw.batch(1, opened(), true);
            same.entries.clone_from(&batch.entries);
            model.append(same);
            journal.append(batch);
            prop_assert_eq!(raw.next(), (last + 1, BatchStatus::Durable));
        }
        prop_assert_eq!(block_on(journal.count()), block_on(model.count()));
        for at in 0..6 {
            // As JSON, which has no numbers: these are the engine's own.
            let found = |journal: &dyn Journal| {
                block_on(journal.find(&name(at))).map(|found| serde_json::to_value(found).unwrap())
            };
            prop_assert_eq!(found(&*journal), found(&model));
            for after in [0, 2] {
                let after = Seq(after);
                prop_assert_eq!(block_on(journal.read(&name(at), after)), block_on(model.read(&name(at), after)));
            }
        }
    }
}

#[tokio::test]
async fn the_engine_keeps_the_contract_of_a_journal() {
    let dir = TestDir::new();
    callsheet::testing::check_journal(async || open(&dir) as _).await;
}

#[cfg(unix)]
#[test]
fn other_users_cannot_read_the_journal_whatever_the_directory_was() {
    use std::os::unix::fs::PermissionsExt as _;

    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let set = |path: &std::path::Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let dir = TestDir::new();
    std::fs::create_dir_all(&dir.0).unwrap();
    // The directory is only the journal's: it is tightened.
    set(&dir.0, 0o755);
    let journal = open(&dir);
    SessionLog::new(id("a"), journal.clone(), Seq(0), |_| ()).append(
        vec![opened()],
        Urgency::Urgent,
        || (),
    );
    let files = |expected: usize| {
        let files = std::fs::read_dir(&dir.0).unwrap().map(|file| file.unwrap().path());
        let files: Vec<_> = files.filter(|path| !path.ends_with("notes.txt")).collect();
        assert!(files.len() >= expected, "{files:?}");
        files
    };
    assert_eq!(mode(&dir.0), 0o700);
    files(3).iter().for_each(|file| assert_eq!(mode(file), 0o600, "{file:?}"));
    block_on(journal.close());
    // Files of an earlier version are tightened, and a directory with other files stays as it is.
    std::fs::write(dir.0.join("notes.txt"), "mine").unwrap();
    files(2).iter().for_each(|file| set(file, 0o644));
    set(&dir.0, 0o755);
    block_on(open(&dir).close());
    files(2).iter().for_each(|file| assert_eq!(mode(file), 0o600, "{file:?}"));
    assert_eq!(mode(&dir.0), 0o755);
    // Others could replace the files.
    set(&dir.0, 0o777);
    let error = SqliteJournal::open(&dir.0, options()).unwrap_err().to_string();
    assert!(error.contains("other users can write to this directory: run chmod go-w"), "{error}");
    set(&dir.0, 0o700);
}
