//! Backups beside a running host, and hosts on restored copies.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "clients of a test are tasks of their own")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use callsheet::journal::{JournalError, JournalReader, restore};
use callsheet::record::Record;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::host_directory::{HostDirectory, HostServer, entries, until, verified, within};

/// A directory beside the data directory, deleted on drop.
struct Neighbour(PathBuf);

impl Neighbour {
    fn new(directory: &HostDirectory, name: &str) -> Self {
        let path = directory.dir.with_extension(name);
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Copies a journal beside its host, on another thread.
async fn back_up(from: &Path, to: &Path) -> Result<(), JournalError> {
    let (from, to) = (from.to_owned(), to.to_owned());
    let copying = tokio::task::spawn_blocking(move || JournalReader::open(&from)?.back_up(&to));
    within(copying).await.unwrap()
}

/// Counts the answered runs of a session in a data directory.
fn answered_runs(dir: &Path, session: &str) -> usize {
    let is_answered = |record: &Record| matches!(record, Record::RunEnded { end, .. } if end.as_str() == "answered");
    entries(dir, session).iter().filter(|entry| is_answered(&entry.record)).count()
}

/// Runs a session again and again, and counts the answers that its client has received.
async fn run_again_and_again(served: &HostServer, session: &str, answers: &Mutex<usize>) {
    served.open(session).await;
    loop {
        served.run(session, "What time is it?").await;
        *answers.lock() += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_beside_a_loaded_host_has_all_that_was_acknowledged_before() {
    let directory = HostDirectory::new(json!({})).await;
    let served = Arc::new(directory.start("", "").await);
    let sessions = ["a", "b", "c", "d"];
    let answers: Vec<_> = sessions.map(|_| Arc::new(Mutex::new(0))).into();
    let clients: Vec<_> = std::iter::zip(sessions, &answers)
        .map(|(session, answers)| {
            let (served, answers) = (Arc::clone(&served), Arc::clone(answers));
            tokio::spawn(async move { run_again_and_again(&served, session, &answers).await })
        })
        .collect();
    for round in 1..=3 {
        let backup = Neighbour::new(&directory, &format!("backup-{round}"));
        until("each session has answers", || answers.iter().all(|count| *count.lock() >= round))
            .await;
        let before: Vec<usize> = answers.iter().map(|count| *count.lock()).collect();
        back_up(&directory.dir, &backup.0).await.unwrap();
        for (session, before) in std::iter::zip(sessions, before) {
            let copied = answered_runs(&backup.0, session);
            assert!(copied >= before, "{session}: {copied} of {before} runs are copied");
        }
        for (id, breaches) in verified(&backup.0) {
            assert!(breaches.is_empty(), "{id}: {breaches:?}");
        }
        let files: Vec<_> =
            fs::read_dir(&backup.0).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(files, ["journal.db"], "the copy needs no other file");
        assert_eq!(modes(&backup.0), (0o700, 0o600));
    }
    for client in clients {
        client.abort();
        let _ = client.await;
    }
    Arc::into_inner(served).unwrap().shutdown().await;
    directory.verify();
}

/// Returns the permissions of a directory and of its database.
fn modes(dir: &Path) -> (u32, u32) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    (mode(dir), mode(&dir.join("journal.db")))
}

#[tokio::test]
async fn a_restored_copy_does_not_act_until_it_is_told_to() {
    let call = |tool: &str, id: &str| json!({"name": tool, "arguments": {"id": id}});
    let script = json!({"responses": [
        {"calls": [call("writes", "a")]},
        {"text": ["It ", "is lost."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
        {"calls": [call("waits", "p")]},
        {"text": ["It is ", "done."]}]});
    let mut directory = HostDirectory::new(script).await;
    let served = directory.start("", "").await;
    served.open("s").await;
    served.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    let (backup, restored) =
        (Neighbour::new(&directory, "backup"), Neighbour::new(&directory, "restored"));
    back_up(&directory.dir, &backup.0).await.unwrap();
    let requests = directory.model.received();
    restore(&backup.0, &restored.0).unwrap();
    assert_eq!(modes(&restored.0), (0o700, 0o600));
    served.crash().await;
    let original = Neighbour(std::mem::replace(&mut directory.dir, restored.0.clone()));
    let calls = directory.control.log();
    assert_eq!(calls, ["start a", "end a"]);

    // Also after a restart of its host.
    for _ in 0..2 {
        let served = directory.start("", "").await;
        let snapshot = served.snapshot("s").await;
        assert_eq!(snapshot["current_run"]["suspended"], true, "{snapshot}");
        served.shutdown().await;
    }
    assert_eq!((directory.model.received(), directory.control.log()), (requests, calls));

    let served = HostServer::start(directory.setup("", "").go_on()).await.unwrap();
    directory.control.lines(3).await;
    served.crash().await;
    // The mark is removed, so the run of this copy continues without being told again.
    let served = directory.start("", "").await;
    directory.control.release("p");
    served.until_snapshot("s", |snapshot: &Value| snapshot["state"] == "idle").await;
    let calls = directory.control.log();
    assert_eq!(calls, ["start a", "end a", "start p", "start p", "end p"]);
    assert_eq!(answered_runs(&directory.dir, "s"), 1);
    served.shutdown().await;
    directory.verify();
    drop(original);
}

#[tokio::test]
async fn a_host_on_the_backup_itself_does_not_act() {
    let script = json!({"responses": [{"calls": [{"name": "waits", "arguments": {"id": "p"}}]}]});
    let mut directory = HostDirectory::new(script).await;
    let served = directory.start("", "").await;
    served.open("s").await;
    served.begin("s", json!({"input": "go"})).await;
    directory.control.lines(1).await;
    let backup = Neighbour::new(&directory, "backup");
    back_up(&directory.dir, &backup.0).await.unwrap();
    served.crash().await;
    let original = Neighbour(std::mem::replace(&mut directory.dir, backup.0.clone()));
    let served = directory.start("", "").await;
    assert_eq!(served.snapshot("s").await["current_run"]["suspended"], true);
    assert_eq!(directory.control.log(), ["start p"]);
    served.shutdown().await;
    // A host on the original goes on.
    directory.dir.clone_from(&original.0);
    let served = directory.start("", "").await;
    directory.control.lines(2).await;
    directory.control.release("p");
    served.until_snapshot("s", |snapshot: &Value| snapshot["state"] == "idle").await;
    served.shutdown().await;
}

#[tokio::test]
async fn a_killed_hosts_directory_is_restored_with_its_write_ahead_log() {
    let directory = HostDirectory::new(json!({})).await;
    let served = directory.start("", "").await;
    served.open("s").await;
    served.run("s", "What time is it?").await;
    // A copy of the files, as they are after a kill.
    let (copy, restored) =
        (Neighbour::new(&directory, "copy"), Neighbour::new(&directory, "restored"));
    fs::create_dir(&copy.0).unwrap();
    for file in ["journal.db", "journal.db-wal"] {
        fs::copy(directory.dir.join(file), copy.0.join(file)).unwrap();
    }
    assert!(matches!(restore(&directory.dir, &restored.0), Err(JournalError::Locked { .. })));
    assert!(!restored.0.exists());
    restore(&copy.0, &restored.0).unwrap();
    assert_eq!(answered_runs(&restored.0, "s"), 1);
    served.shutdown().await;
}

#[tokio::test]
async fn a_copy_that_fails_leaves_nothing_behind() {
    let directory = HostDirectory::new(json!({})).await;
    let served = directory.start("", "").await;
    served.open("s").await;
    served.run("s", &"word ".repeat(20_000)).await;
    served.shutdown().await;
    let (backup, restored) =
        (Neighbour::new(&directory, "backup"), Neighbour::new(&directory, "restored"));
    back_up(&directory.dir, &backup.0).await.unwrap();

    // The target has files.
    let refused = back_up(&directory.dir, &backup.0).await.unwrap_err().to_string();
    assert!(
        refused.ends_with(": it is not empty: name a directory that is missing or empty"),
        "{refused}"
    );
    let refused = restore(&backup.0, &directory.dir).unwrap_err().to_string();
    assert!(refused.contains("it is not empty"), "{refused}");
    directory.verify();

    // The journal is damaged.
    let file = directory.dir.join("journal.db");
    let mut bytes = fs::read(&file).unwrap();
    let length = bytes.len();
    bytes[8_192..length].fill(0xff);
    fs::write(&file, bytes).unwrap();
    let other = Neighbour::new(&directory, "other");
    let failed = back_up(&directory.dir, &other.0).await.unwrap_err();
    assert!(matches!(failed, JournalError::Copy { .. }), "{failed}");
    assert!(!other.0.exists());
    fs::create_dir(&other.0).unwrap();
    back_up(&directory.dir, &other.0).await.unwrap_err();
    assert_eq!(fs::read_dir(&other.0).unwrap().count(), 0);

    // The backup is cut off, or empty.
    let file = backup.0.join("journal.db");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let refused = restore(&backup.0, &restored.0).unwrap_err().to_string();
    assert!(refused.contains("journal.db: it is damaged"), "{refused}");
    fs::write(&file, "").unwrap();
    let refused = restore(&backup.0, &restored.0).unwrap_err().to_string();
    assert!(refused.contains("journal.db: it is empty"), "{refused}");
    assert!(!restored.0.exists());
}
