//! The journal in a SQLite database: what it stores, what it deletes, and what it says of files
//! that are not as they should be.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use callsheet::config::Durability;
use callsheet::journal::{
    Journal, JournalError, JournalObserver, JournalReader, Listing, MemoryJournal, SessionLog,
    SqliteJournal, SqliteOptions, StoredGroup, StoredSession, Urgency,
};
use callsheet::record::{Record, Seq, StopMode};
use callsheet::types::{Content, RunId, SessionId, SessionState};
use parking_lot::Mutex;

/// A directory of its own, deleted with what is in it.
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

    /// The bytes of every file.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for entry in fs::read_dir(&self.0).unwrap() {
            bytes.extend(fs::read(entry.unwrap().path()).unwrap());
        }
        bytes
    }

    fn holds(&self, text: &str) -> bool {
        memchr::memmem::find(&self.bytes(), text.as_bytes()).is_some()
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Keeps what it is told.
#[derive(Debug, Default)]
struct Groups(Mutex<Vec<StoredGroup>>);

impl JournalObserver for Groups {
    fn stored(&self, group: StoredGroup) {
        self.0.lock().push(group);
    }
}

fn options() -> SqliteOptions {
    SqliteOptions {
        durability: Durability::Strict,
        holder: "listening on 127.0.0.1:7700".to_owned(),
        observer: Arc::new(Groups::default()),
        queue_max: 100_000,
    }
}

fn open(dir: &TestDir) -> Arc<SqliteJournal> {
    Arc::new(SqliteJournal::open(&dir.0, options()).unwrap())
}

fn id(text: &str) -> SessionId {
    SessionId::parse(text).unwrap()
}

fn opened() -> Record {
    Record::SessionOpened { agent: "default".to_owned(), messages: Vec::new() }
}

fn said(text: &str) -> Record {
    Record::InputQueued {
        run_id: RunId("run_0000000000000001".into()),
        input: Content::from(text),
        overrides: Default::default(),
        request: None,
    }
}

fn log(journal: &Arc<SqliteJournal>, session: &str, last: u64) -> SessionLog {
    let journal = Arc::clone(journal) as Arc<dyn Journal>;
    SessionLog::new(id(session), journal, Seq(last), |_| ())
}

#[test]
fn nothing_of_a_removed_session_is_left_on_the_disk() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut seed = 7_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let dir = TestDir::new();
    let journal = open(&dir);
    let sessions = 60;
    let name = |session: u64| format!("secretid{session:03}x");
    let logs: Vec<SessionLog> =
        (0..sessions).map(|session| log(&journal, &name(session), 0)).collect();
    for (session, log) in logs.iter().enumerate() {
        log.append(vec![opened()], Urgency::Urgent, || ());
        let _ = session;
    }
    for _ in 0..sessions * 20 {
        let session = random(sessions);
        let length = [20, 200, 1_000, 3_000, 9_000][random(5) as usize];
        let text = format!("secret{session:03}x").repeat(length / 10);
        logs[session as usize].append(vec![said(&text)], Urgency::Lazy, || ());
    }
    for log in &logs {
        runtime.block_on(log.until_durable(log.last())).unwrap();
    }
    let mut left: Vec<u64> = (0..sessions).collect();
    let mut found = Vec::new();
    while !left.is_empty() {
        let session = left.swap_remove(random(left.len() as u64) as usize);
        assert!(dir.holds(&format!("secret{session:03}x")));
        journal.remove(&[id(&name(session))]).unwrap();
        for gone in (0..sessions).filter(|session| !left.contains(session)) {
            if dir.holds(&format!("secret{gone:03}x")) || dir.holds(&name(gone)) {
                found.push((session, gone));
            }
        }
    }
    assert_eq!(found, []);
}
