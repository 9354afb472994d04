//! Journals that cannot be written or are invalid, deleted sessions, and long session lists.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::client::{HttpConnection, HttpResponse, post};
use crate::host_directory::{HostDirectory, id, until, within};
use callsheet::journal::{JournalReader, restore};
use callsheet::record::{Record, Seq};
use callsheet::runtime::OpenSession;
use futures::StreamExt as _;
use serde_json::{Value, json};

/// The real binary with a data directory.
struct Binary {
    child: Child,
    addr: SocketAddr,
}

fn command(dir: &Path, before: &[&str]) -> Command {
    let binary = env!("CARGO_BIN_EXE_callsheet");
    let mut words = before.to_vec();
    words.push(binary);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("CALLSHEET_LOG").env_remove("RUST_LOG").env_remove("CALLSHEET_TOKEN");
    command.current_dir(env!("CARGO_TARGET_TMPDIR"));
    command
}

impl Binary {
    fn start(dir: &Path, before: &[&str]) -> Self {
        Self::spawn(command(dir, before))
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.by_ref().map(Result::unwrap).find(|line| line.contains("listening on"));
        let first = first.unwrap();
        let addr = first.split("http://").nth(1).unwrap().split(' ').next().unwrap();
        let addr = addr.parse().unwrap();
        // The log goes to a file, so the binary never blocks on a pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, addr }
    }

    async fn send(&self, request: &str) -> HttpResponse {
        let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        let mut reading = HttpConnection::open(self.addr, &request).await;
        within(reading.read_rest()).await;
        reading.response()
    }

    async fn post(&self, path: &str, headers: &str, body: Value) -> HttpResponse {
        self.send(&post(path, headers, &body.to_string())).await
    }

    async fn get(&self, path: &str) -> HttpResponse {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await
    }

    async fn open(&self, session: &str) {
        let opened = self.post("/v1/sessions", "", json!({"id": session})).await;
        assert_eq!(opened.status, 201, "{opened:?}");
    }

    async fn run(&self, session: &str, input: &str) -> HttpResponse {
        let body = json!({"input": input, "wait": true});
        self.post(&format!("/v1/sessions/{session}/runs"), "", body).await
    }

    async fn delete(&self, session: &str) -> HttpResponse {
        let request = format!("DELETE /v1/sessions/{session} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.send(&request).await
    }

    async fn until_ready(&self) {
        let ready = async {
            while self.get("/readyz").await.status != 200 {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        within(ready).await;
    }

    fn stop(mut self) {
        self.signal("TERM");
        assert!(self.child.wait().unwrap().success());
    }

    fn signal(&mut self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the exit status and the message without the program's name.
#[track_caller]
fn refused(output: &Output) -> String {
    let message = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(output.stdout.is_empty());
    assert_eq!(message.lines().count(), 1, "{message}");
    message.trim_end().to_owned()
}

fn path(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("faults-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    let _ = std::fs::remove_file(&path);
    path
}

fn ends(dir: &Path, session: &str) -> Vec<String> {
    let entries = crate::host_directory::entries(dir, session).into_iter();
    entries
        .filter_map(|entry| {
            let Record::RunEnded { end, .. } = entry.record else { return None };
            Some(end.as_str().to_owned())
        })
        .collect()
}

/// Limits the size of files, like a full disk, until the limit is raised.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_fails_only_runs_and_the_host_recovers() {
    let dir = path("full");
    let host = Binary::start(&dir, &["prlimit", "--fsize=600000:unlimited"]);
    for session in ["s", "t", "u"] {
        host.open(session).await;
    }
    let large = "word ".repeat(10_000);
    let mut answered = 0;
    let failed = loop {
        let answer = host.run("s", &large).await;
        if answer.status != 200 {
            break answer;
        }
        answered += 1;
    };
    assert_eq!(failed.error(), (503, "journal_failed".to_owned()));
    assert!(answered > 0);
    let body = json!({"input": large});
    let left_alone = host.post("/v1/sessions/t/runs", "", body.clone()).await;
    assert_eq!(left_alone.error(), (503, "journal_failed".to_owned()), "not acknowledged");
    let streamed = host.post("/v1/sessions/u/runs", "accept: text/event-stream\r\n", body).await;
    let (kind, last) = streamed.events().pop().unwrap();
    assert_eq!((kind.as_str(), &last["code"]), ("error", &json!("journal_failed")), "{last}");
    // It still answers, and shows only stored records.
    assert_eq!(host.get("/healthz").await.status, 200);
    let unready = host.get("/readyz").await;
    assert_eq!(unready.error(), (503, "journal_failed".to_owned()));
    assert!(unready.body.contains("write the journal: "), "{unready:?}");
    assert_eq!(host.get("/v1/sessions").await.json()["sessions"].as_array().unwrap().len(), 3);
    for session in ["s", "t", "u"] {
        let response = host.get(&format!("/v1/sessions/{session}")).await;
        let seq = crate::host_directory::entries(&dir, session).len();
        match response.status {
            200 => assert_eq!(response.json()["seq"], seq),
            // The failed run has not been ended yet.
            503 => assert_eq!(response.error().1, "journal_failed"),
            _ => panic!("{response:?}"),
        }
    }
    let page = host.get("/metrics").await.body;
    assert!(page.contains("callsheet_journal_failures_total"), "{page}");

    let pid = host.child.id().to_string();
    let made_room = Command::new("prlimit").args(["--fsize=unlimited", "--pid", &pid]).status();
    assert!(made_room.unwrap().success());
    // It becomes ready without a request.
    host.until_ready().await;
    for session in ["s", "t", "u"] {
        let answer = within(async {
            loop {
                let answer = host.run(session, "again").await;
                // Until then the failed run has not been ended.
                if answer.status == 200 {
                    break answer;
                }
            }
        })
        .await;
        assert_eq!(answer.json()["run_end"], "answered", "{answer:?}");
    }
    let mut expected = vec!["answered"; answered];
    expected.extend(["failed", "answered"]);
    let ended = ends(&dir, "s");
    // The run whose start was not stored does not exist.
    assert!(ended == expected || ended == vec!["answered"; answered + 1], "{ended:?}");
    for (id, breaches) in crate::host_directory::verified(&dir) {
        assert!(breaches.is_empty(), "{id}: {breaches:?}");
    }
    drop(host);
    let host = Binary::start(&dir, &["env"]);
    assert_eq!(host.run("s", "and again").await.json()["run_end"], "answered");
}

/// The command before a host that has a mount namespace of its own.
#[cfg(target_os = "linux")]
const OWN_MOUNTS: [&str; 3] = ["unshare", "--map-root-user", "--mount"];

/// Returns whether this system allows mounts in user namespaces.
#[cfg(target_os = "linux")]
fn has_own_mounts() -> bool {
    let own_mounts = Command::new(OWN_MOUNTS[0]).args(&OWN_MOUNTS[1..]).arg("true").status();
    if own_mounts.is_ok_and(|status| status.success()) {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "user namespaces are needed for this test");
    eprintln!("skipped: this system allows no mounts in user namespaces");
    false
}

/// On a disk of its own, which fills up twice: everything that was acknowledged is there, the host is
/// ready when it can write, and sessions can be deleted when nothing else can be written.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_is_relieved_by_deleting_sessions() {
    const MOUNT: &str = "mount -t tmpfs -o size=14m tmpfs \"$0\" && exec \"$@\"";
    let dir = path("small_disk");
    std::fs::create_dir_all(&dir).unwrap();
    if !has_own_mounts() {
        return;
    }
    let before = [&OWN_MOUNTS[..], &["sh", "-c", MOUNT, dir.to_str().unwrap()]].concat();
    let host = Binary::start(&dir, &before);
    let (small, large) = ("word ".repeat(2_000), "word ".repeat(100_000));
    let mut kept = Vec::new();
    for round in 0..2 {
        let (deleted, stays) = (format!("deleted-{round}"), format!("stays-{round}"));
        for session in [&deleted, &stays] {
            host.open(session).await;
        }
        let first = host.run(&stays, &small).await;
        assert_eq!((first.status, first.json()["run_end"].as_str()), (200, Some("answered")));
        kept.push(stays);
        while host.run(&deleted, &large).await.status == 200 {}
        // The journal is tried again after a second, and small writes may fit.
        let unready = within(async {
            loop {
                let unready = host.get("/readyz").await;
                if unready.status != 200 {
                    return unready;
                }
                host.run(&deleted, &large).await;
            }
        });
        let unready = unready.await;
        assert_eq!(unready.error(), (503, "journal_failed".to_owned()), "round {round}");
        assert!(unready.body.contains("the disk is full"), "{unready:?}");
        let answer = host.delete(&deleted).await;
        assert_eq!(answer.status, 204, "round {round}: {}", answer.body);
        host.until_ready().await;
        for session in &kept {
            let run = host.run(session, "hello").await;
            assert_eq!(run.status, 200, "round {round}, {session}: {}", run.body);
        }
    }
    for (index, session) in kept.iter().enumerate() {
        let answer = host.get(&format!("/v1/sessions/{session}")).await.json();
        let runs = 1 + kept.len() - index;
        assert_eq!(answer["history"].as_array().unwrap().len(), 2 * runs, "{session}");
    }
    assert_eq!(host.get("/v1/sessions").await.json()["sessions"].as_array().unwrap().len(), 2);
}

/// Runs would use the space that is left, and then no session could be deleted.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_disk_without_room_for_the_reserve_is_for_deletions_only() {
    let (stored, dir) = (path("stored"), path("no_reserve"));
    std::fs::create_dir_all(&dir).unwrap();
    if !has_own_mounts() {
        return;
    }
    let host = Binary::start(&stored, &["env"]);
    for session in ["deleted", "stays"] {
        host.open(session).await;
        assert_eq!(host.run(session, "hello").await.status, 200);
    }
    host.stop();
    let script = "mount -t tmpfs -o size=14m tmpfs \"$0\" && cp \"$1\" \"$0\" \
                  && head -c 11M /dev/zero > \"$0/filler\" && shift && exec \"$@\"";
    let database = stored.join("journal.db");
    let arguments = ["sh", "-c", script, dir.to_str().unwrap(), database.to_str().unwrap()];
    let host = Binary::start(&dir, &[&OWN_MOUNTS[..], &arguments[..]].concat());
    let refuses = async || {
        let unready = host.get("/readyz").await;
        assert_eq!(unready.error(), (503, "journal_failed".to_owned()));
        assert!(unready.body.contains("sessions can only be deleted"), "{unready:?}");
        let refused = host.run("stays", "hello").await;
        assert_eq!(refused.error(), (503, "journal_failed".to_owned()));
    };
    refuses().await;
    let deleted = host.delete("deleted").await;
    assert_eq!(deleted.status, 204, "{deleted:?}");
    refuses().await;
    // The mount is seen only by the host.
    let disk = format!("/proc/{}/root{}", host.child.id(), dir.display());
    std::fs::remove_file(format!("{disk}/filler")).unwrap();
    host.until_ready().await;
    let reserve = std::fs::metadata(format!("{disk}/journal.reserve")).unwrap();
    assert_eq!(reserve.len(), 4 << 20);
    host.open("new").await;
    assert_eq!(host.get("/v1/sessions/deleted").await.status, 404);
}

#[tokio::test]
async fn a_damaged_session_can_be_deleted() {
    let dir = path("damaged_session");
    let host = Binary::start(&dir, &["env"]);
    for session in ["damaged", "whole"] {
        host.open(session).await;
        assert_eq!(host.run(session, "hello").await.status, 200);
    }
    host.stop();
    let connection = rusqlite::Connection::open(dir.join("journal.db")).unwrap();
    let damage = "UPDATE records SET body = CAST(x'ff' || body AS TEXT)
                  WHERE session = (SELECT number FROM sessions WHERE id = 'damaged')";
    assert!(connection.execute(damage, ()).unwrap() > 0);
    drop(connection);
    let host = Binary::start(&dir, &["env"]);
    assert_eq!(host.get("/v1/sessions/damaged").await.status, 500);
    let deleted = host.delete("damaged").await;
    assert_eq!(deleted.status, 204, "{deleted:?}");
    assert_eq!(host.get("/v1/sessions/damaged").await.status, 404);
    assert_eq!(host.run("whole", "hello again").await.status, 200);
}

#[test]
fn an_invalid_journal_is_refused_with_one_line() {
    let dir = path("file");
    std::fs::write(&dir, "a file").unwrap();
    let message = refused(&command(&dir, &["env"]).output().unwrap());
    assert!(message.ends_with("is not a directory: use another data directory"), "{message}");
    assert!(message.contains(dir.to_str().unwrap()), "{message}");

    let dir = path("garbage");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("journal.db"), "this is no database, but long enough").unwrap();
    let message = refused(&command(&dir, &["env"]).output().unwrap());
    assert!(message.contains("it is not a SQLite database: restore it"), "{message}");
}

#[tokio::test]
async fn a_damaged_journal_is_refused_with_one_line() {
    let dir = path("damaged");
    let host = Binary::start(&dir, &["env"]);
    host.open("s").await;
    assert_eq!(host.run("s", "hello").await.status, 200);
    let second = refused(&command(&dir, &["env"]).output().unwrap());
    assert!(second.contains(&format!("pid {}", host.child.id())), "{second}");
    assert!(second.ends_with("stop that host, or use another data directory"), "{second}");
    host.stop();

    let file = dir.join("journal.db");
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let message = refused(&command(&dir, &["env"]).output().unwrap());
    assert!(message.contains("restore it from a backup"), "{message}");
    std::fs::write(&file, &whole).unwrap();
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.pragma_update(None, "user_version", 7).unwrap();
    drop(connection);
    let message = refused(&command(&dir, &["env"]).output().unwrap());
    assert!(message.contains("it is of version 7"), "{message}");
    std::fs::write(&file, &whole).unwrap();
    let host = Binary::start(&dir, &["env"]);
    assert_eq!(host.run("s", "hello again").await.status, 200);
}

#[tokio::test]
async fn nothing_remains_of_a_deleted_session() {
    let secret = "a-very-secret-word";
    let directory =
        HostDirectory::new(json!({"responses": [{"text": ["a-very-secret-", "answer"]}]})).await;
    let served = directory.start("idle_after = \"1ms\"", "").await;
    let holds = |text: &str| {
        let bytes = directory.bytes();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    for sleeps in [false, true] {
        served.open("s").await;
        served.open("other").await;
        served.run("s", secret).await;
        served.run("other", "hello").await;
        assert!(holds(secret));
        if sleeps {
            served.asleep().await;
        }
        assert_eq!(served.delete("/v1/sessions/s").await.status, 204);
        assert!(!holds(secret) && !holds("a-very-secret-answer"), "asleep: {sleeps}");
        assert_eq!(served.delete("/v1/sessions/other").await.status, 204);
    }
    assert_eq!(served.host.counts().sessions, 0);
    served.shutdown().await;
}

/// A backup, or another long read, delays only the erasure of a deleted session.
#[tokio::test]
async fn a_deletion_beside_a_long_read_holds_up_no_run_and_is_finished() {
    let directory = HostDirectory::new(json!({"responses": [{"text": ["fine"]}]})).await;
    let served = directory.start("", "").await;
    for session in ["s", "other"] {
        served.open(session).await;
        served.run(session, "a-very-secret-word").await;
    }
    let reader = rusqlite::Connection::open(directory.dir.join("journal.db")).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    reader.query_row("SELECT count(*) FROM sessions", [], |_| Ok(())).unwrap();
    for _ in 0..2 {
        let deleted = served.delete("/v1/sessions/s").await;
        assert_eq!((deleted.status, &deleted.json()["erased"]), (202, &json!(false)));
    }
    assert_eq!(served.get("/v1/sessions/s").await.status, 404);
    assert_eq!(served.delete("/v1/sessions/unknown").await.status, 404);
    served.run("other", "go on").await;
    drop(reader);
    let mut status = 202;
    while status == 202 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        status = served.delete("/v1/sessions/s").await.status;
    }
    assert_eq!(status, 204);
    served.shutdown().await;
}

#[tokio::test]
async fn a_run_in_progress_is_stopped_before_its_session_is_deleted() {
    let writes = json!({"name": "slow_write", "arguments": {"id": "a"}});
    let directory = HostDirectory::new(json!({"responses": [{"calls": [writes]}]})).await;
    let served = directory.start("", "").await;
    served.open("s").await;
    served.begin("s", json!({"input": "go"})).await;
    directory.control.until_logged("start a").await;
    let deletes = futures::future::join_all((0..3).map(|_| served.delete("/v1/sessions/s"))).await;
    assert!(deletes.iter().any(|answer| answer.status == 204), "{deletes:?}");
    assert!(deletes.iter().all(|answer| [204, 404].contains(&answer.status)), "{deletes:?}");
    assert_eq!(served.host.counts().sessions, 0);
    assert_eq!(JournalReader::open(&directory.dir).unwrap().count().unwrap(), 0);
    served.shutdown().await;
}

#[tokio::test]
async fn only_unused_sessions_are_deleted() {
    let writes = json!({"name": "writes", "arguments": {"id": "a"}});
    let directory = HostDirectory::new(json!({"responses": [{"calls": [writes]}]})).await;
    let rest = "[journal]\nkeep_idle = \"300ms\"\n[tools.writes]\napproval = \"before\"";
    let served = directory.start("idle_after = \"1ms\"", rest).await;
    served.open("asks").await;
    served.begin("asks", json!({"input": "go"})).await;
    served.until_snapshot("asks", |s| s["current_run"]["approvals"][0].is_object()).await;
    served.open("listened").await;
    let mut reading = served.events("listened", "0").await;
    within(reading.until("200 OK")).await;
    for n in 0..20 {
        served.open(&format!("old{n}")).await;
    }
    until("the old ones are deleted", || served.host.counts().sessions == 2).await;
    let journal = JournalReader::open(&directory.dir).unwrap();
    assert_eq!(journal.count().unwrap(), 2);
    assert_eq!(served.get("/v1/sessions/old1").await.status, 404);
    assert_eq!(served.snapshot("asks").await["state"], "waiting");
    assert_eq!(served.snapshot("listened").await["state"], "idle");
    // The id can be used again.
    served.open("old1").await;
    served.shutdown().await;
}

#[tokio::test]
async fn a_thousand_sessions_are_listed_page_by_page() {
    let writes = json!({"name": "writes", "arguments": {"id": "a"}});
    let directory = HostDirectory::new(json!({"responses": [{"calls": [writes]}]})).await;
    let rest = "[journal]\nmax_stored_sessions = 1000\n[tools.writes]\napproval = \"before\"";
    let served = directory.start("idle_after = \"1ms\"", rest).await;
    let opened = futures::stream::iter(0..1000).map(|n| {
        let id = Some(format!("s{n:03}"));
        served.host.open_session(OpenSession::default().with(|new| new.id = id))
    });
    let opened: Vec<_> = within(opened.buffer_unordered(100).collect()).await;
    assert!(opened.iter().all(Result::is_ok));
    served.begin("s500", json!({"input": "go"})).await;
    served.until_snapshot("s500", |s| s["current_run"]["approvals"][0].is_object()).await;
    served.asleep().await;
    // Hibernated sessions count.
    let full = served.post("/v1/sessions", json!({"id": "more"})).await;
    assert_eq!(full.error(), (429, "host_full".to_owned()));
    let forked = served.post("/v1/sessions/s001/fork", json!({"at": 1})).await;
    assert_eq!(forked.error(), (429, "host_full".to_owned()));
    let ready = served.get("/readyz").await.json();
    assert_eq!(ready["stored_sessions"], json!({"count": 1000, "max": 1000}));
    served.asleep().await;
    let mut reading = served.events("s300", "0").await;
    within(reading.until("200 OK")).await;
    for (state, count) in
        [("", 1000_usize), ("&state=hibernated", 998), ("&state=running", 1), ("&state=idle", 1)]
    {
        let (mut ids, mut after, mut pages) = (BTreeSet::new(), String::new(), 0);
        loop {
            let page = served.get(&format!("/v1/sessions?limit=90{state}{after}")).await.json();
            let sessions = page["sessions"].as_array().unwrap();
            assert!(sessions.len() <= 90);
            for session in sessions {
                let id = session["id"].as_str().unwrap().to_owned();
                assert!(ids.last().is_none_or(|last: &String| *last < id));
                ids.insert(id);
            }
            pages += 1;
            let Some(next) = page["next"].as_str() else { break };
            after = format!("&after={next}");
        }
        assert_eq!((ids.len(), pages), (count, count.div_ceil(90)), "{state}");
    }
    drop(reading);
    assert_eq!(served.delete("/v1/sessions/s000").await.status, 204);
    served.open("more").await;
    served.shutdown().await;
    let served = directory.start("", rest).await;
    assert_eq!(served.host.counts().sessions, 1000);
    let full = served.post("/v1/sessions", json!({"id": "one-more"})).await;
    assert_eq!(full.error(), (429, "host_full".to_owned()));
    let stored = JournalReader::open(&directory.dir).unwrap();
    assert_eq!(stored.read(&id("s001"), Seq(0)).unwrap().len(), 1);
    served.shutdown().await;
}

/// Compiles `support/failing_sync.c`, and returns the path of the library.
#[cfg(target_os = "linux")]
fn failing_sync() -> PathBuf {
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("failing_sync.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/failing_sync.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl");
    assert!(compiler.status().unwrap().success());
    library
}

/// A reader cuts a checkpoint short, which then moves pages without a sync. The sync of the next one fails, and the
/// pages of both are lost. They are still in the log.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_failed_fsync_of_a_checkpoint_loses_nothing() {
    let (dir, fails_once) = (path("checkpoint"), path("checkpoint-fails"));
    let preload = format!("LD_PRELOAD={}", failing_sync().display());
    let fails = format!("FAILS_ONCE={}", fails_once.display());
    let mut host = Binary::start(&dir, &["env", &preload, &fails]);
    let text = "y".repeat(300_000);
    let messages =
        json!([{"role": "user", "content": text}, {"role": "assistant", "content": "."}]);
    // Batches that meet the failing sync are refused, and may have been stored nevertheless.
    let open = async |host: &Binary, numbers: std::ops::Range<u32>| {
        for number in numbers {
            let body = json!({"id": format!("s{number}"), "messages": messages});
            let mut opened = host.post("/v1/sessions", "", body.clone()).await;
            let mut expected = vec![201];
            while opened.status == 503 && number >= 40 {
                assert_eq!(opened.error().1, "journal_failed");
                host.until_ready().await;
                opened = host.post("/v1/sessions", "", body.clone()).await;
                expected = vec![201, 409];
            }
            assert!(expected.contains(&opened.status), "{opened:?}");
        }
    };
    open(&host, 0..20).await;
    let reader = rusqlite::Connection::open(dir.join("journal.db")).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM sessions").unwrap();
    let read: u32 =
        reader.query_row("SELECT count(*) FROM sessions", [], |row| row.get(0)).unwrap();
    assert_eq!(read, 20);
    open(&host, 20..40).await;
    drop(reader);
    std::fs::write(&fails_once, "").unwrap();
    open(&host, 40..60).await;
    let failed = async {
        while fails_once.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    within(failed).await;
    open(&host, 60..90).await;
    for is_restarted in [false, true] {
        if is_restarted {
            host.signal("KILL");
            host.child.wait().unwrap();
            host = Binary::start(&dir, &[]);
        }
        for number in 0..90 {
            let session = host.get(&format!("/v1/sessions/s{number}")).await;
            assert_eq!(session.status, 200, "{session:?}");
            assert!(session.body.contains(&text), "s{number}");
        }
    }
    host.stop();
}

/// Copies the file of a journal without its log.
fn copy_without_log(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    std::fs::copy(from.join("journal.db"), to.join("journal.db")).unwrap();
}

#[tokio::test]
async fn a_journal_without_its_log_is_refused_until_the_loss_is_accepted() {
    let dir = path("lost-log");
    let mut host = Binary::start(&dir, &["env"]);
    host.open("s").await;
    let (beside, after_kill, after_stop) = (path("beside"), path("after-kill"), path("after-stop"));
    copy_without_log(&dir, &beside);
    host.signal("KILL");
    host.child.wait().unwrap();
    copy_without_log(&dir, &after_kill);
    for copy in [&beside, &after_kill] {
        // Readers, backups and refusals change nothing.
        let reader = JournalReader::open(copy).unwrap_err().to_string();
        assert!(reader.contains("its write-ahead log, journal.db-wal, is missing"), "{reader}");
        let restored = restore(copy, &path("lost-log-restored")).unwrap_err().to_string();
        assert!(restored.contains("its write-ahead log, journal.db-wal, is missing"), "{restored}");
        for _ in 0..2 {
            let message = refused(&command(copy, &["env"]).output().unwrap());
            assert!(
                message.contains("its write-ahead log, journal.db-wal, is missing"),
                "{message}"
            );
            assert!(message.ends_with("callsheet serve --accept-loss"), "{message}");
        }
        let mut accepting = command(copy, &["env"]);
        accepting.arg("--accept-loss");
        let host = Binary::spawn(accepting);
        assert_eq!(host.get("/v1/sessions/s").await.status, 404);
        host.open("new").await;
        host.stop();
        // Once is enough.
        let host = Binary::start(copy, &["env"]);
        assert_eq!(host.get("/v1/sessions/new").await.status, 200);
        host.stop();
    }
    // With its log nothing is lost, and after a stop there is none.
    let host = Binary::start(&dir, &["env"]);
    assert_eq!(host.get("/v1/sessions/s").await.status, 200);
    host.stop();
    copy_without_log(&dir, &after_stop);
    let host = Binary::start(&after_stop, &["env"]);
    assert_eq!(host.get("/v1/sessions/s").await.status, 200);
    host.stop();
}

/// The log is moved to the database from the open file.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_log_that_is_removed_loses_nothing() {
    let dir = path("no-log");
    let mut host = Binary::start(&dir, &[]);
    host.open("before").await;
    std::fs::remove_file(dir.join("journal.db-wal")).unwrap();
    let refused = host.post("/v1/sessions", "", json!({"id": "refused"})).await;
    assert_eq!(refused.error(), (503, "journal_failed".to_owned()));
    host.until_ready().await;
    host.open("after").await;
    host.signal("KILL");
    host.child.wait().unwrap();
    let host = Binary::start(&dir, &[]);
    for (session, status) in [("before", 200), ("after", 200), ("refused", 404)] {
        assert_eq!(host.get(&format!("/v1/sessions/{session}")).await.status, status, "{session}");
    }
    host.stop();
}
