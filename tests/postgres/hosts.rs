//! Whole hosts on the engine: runs, restarts, crashes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use callsheet::journal::{PostgresReader, SessionQuery, verify};
use callsheet::record::Seq;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::{Value, json};

use crate::client::{HttpConnection, HttpResponse, post};
use crate::host_directory::{HostDirectory, HostServer};
use crate::log::{id, open, within};
use crate::server::{TestDatabase, database};

fn call(tool: &str, id: &str) -> Value {
    json!({"name": tool, "arguments": {"id": id}})
}

fn is_idle(snapshot: &Value) -> bool {
    snapshot["state"] == "idle"
}

/// Starts a host with a journal in the database.
async fn start(directory: &HostDirectory, database: &TestDatabase) -> HostServer {
    let journal = open(&database.url()).await;
    HostServer::start(directory.setup("", "").journal(journal)).await.unwrap()
}

/// Verifies the records of all sessions. Returns the number of sessions.
pub(crate) async fn verify_all(database: &TestDatabase) -> usize {
    let reader = PostgresReader::open(&database.url()).await.unwrap();
    let query = SessionQuery::default().with(|query| query.children = true);
    let sessions = reader.list(&query).await.unwrap();
    for session in &sessions {
        let entries = reader.read(&session.id, Seq(0)).await.unwrap();
        let breaches = verify(&session.id, &entries);
        assert!(breaches.is_empty(), "{}: {breaches:?}", session.id);
    }
    sessions.len()
}

#[tokio::test]
async fn runs_go_on_after_a_restart_and_after_a_crash() {
    let Some(database) = database().await else { return };
    let script = json!({"responses": [
        {"reasoning": ["Hm."], "text": ["Let me "], "calls": [call("writes", "a")]},
        {"text": ["It ", "is lost."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
        {"text": ["It is ", "done."]}]});
    let directory = HostDirectory::new(script).await;
    let served = start(&directory, &database).await;
    served.open("s").await;
    served.open("idle").await;
    let again = served.post("/v1/sessions", json!({"id": "idle"})).await;
    assert_eq!(again.status, 409, "{again:?}");
    served.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    assert_eq!(directory.control.log(), ["start a", "end a"]);
    let before = served.snapshot("idle").await;
    served.crash().await;
    let served = start(&directory, &database).await;
    let after = served.until_snapshot("s", is_idle).await;
    let text = after["history"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap();
    assert_eq!(text, "It is done.");
    assert_eq!(directory.control.log(), ["start a", "end a"], "no effect is repeated");
    assert_eq!(served.snapshot("idle").await, before);
    served.shutdown().await;
    let served = start(&directory, &database).await;
    assert_eq!(served.snapshot("s").await, after);
    assert_eq!(served.host.counts().sessions, 2);
    assert_eq!(served.delete("/v1/sessions/idle").await.status, 204);
    assert_eq!(served.get("/v1/sessions/idle").await.status, 404);
    served.shutdown().await;
    assert_eq!(verify_all(&database).await, 1);
    assert_eq!(database.number("SELECT count(*) FROM running").await, 0);
}

#[tokio::test]
async fn forks_and_pages_of_a_host() {
    let Some(database) = database().await else { return };
    let script = json!({"responses": [{"text": ["Hello."]}]});
    let directory = HostDirectory::new(script).await;
    let served = start(&directory, &database).await;
    served.open("s").await;
    served.run("s", "go").await;
    let records = database.number("SELECT max(seq) FROM records").await;
    let forked = served.post("/v1/sessions/s/fork", json!({"at": records, "id": "f"})).await;
    assert!(forked.status < 300, "{forked:?}");
    assert_eq!(served.snapshot("f").await["history"], served.snapshot("s").await["history"]);
    let listed = served.get("/v1/sessions?order=newest&limit=1").await.json();
    assert_eq!(listed["sessions"][0]["id"], "f", "{listed}");
    served.shutdown().await;
    assert_eq!(verify_all(&database).await, 2);
}

/// The real binary on a configured database.
pub(crate) struct Binary {
    child: Child,
    /// What it has logged before it listened.
    pub(crate) start_log: String,
    pub(crate) addr: SocketAddr,
}

fn command(database: &TestDatabase, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_callsheet"));
    command.args(words).env("TEST_DATABASE_URL", database.url());
    // A schema with a clock that is ten minutes fast comes first.
    let fast = format!("{}?options=-csearch_path%3Dfast,public,pg_catalog", database.url());
    command.env("FAST_DATABASE_URL", fast);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("CALLSHEET_PEER_TOKEN", "peer-token-of-the-tests");
    command.env_remove("CALLSHEET_LOG").env_remove("RUST_LOG").env_remove("CALLSHEET_TOKEN");
    command
}

impl Binary {
    fn start(database: &TestDatabase, directory: &HostDirectory) -> Self {
        Self::start_at(database, database.server.port, directory)
    }

    /// Starts it with the port of a pooler.
    fn start_at(database: &TestDatabase, port: u16, directory: &HostDirectory) -> Self {
        let text = "[host]\nlisten = \"127.0.0.1:0\"\n[journal]\nengine = \"postgres\"\n\
                    url_env = \"TEST_DATABASE_URL\"\nlease = \"2s\"\n";
        Self::configured_at(database, port, directory, text)
    }

    /// Starts it with a configuration, beside what runs.
    pub(crate) async fn start_with(
        database: &TestDatabase,
        directory: &HostDirectory,
        config: &str,
    ) -> Self {
        tokio::task::block_in_place(|| Self::configured(database, directory, config))
    }

    /// Starts it, and kills it soon.
    pub(crate) async fn kill_in_start(
        database: &TestDatabase,
        directory: &HostDirectory,
        config: &str,
        after: Duration,
    ) {
        std::fs::create_dir_all(&directory.dir).unwrap();
        let file = directory.dir.join("killed.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = command(database, &["serve", "--config"]);
        let quiet = command.arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = quiet.spawn().unwrap();
        tokio::time::sleep(after).await;
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Stops it, and waits until all of its threads stand still: the others go on until one has read the signal.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
        let options = WaitOptions::UNTRACED;
        let (_, status) =
            tokio::task::block_in_place(|| waitpid(Some(pid), options).unwrap()).unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    /// Waits until it has ended well.
    pub(crate) async fn wait(&mut self) {
        let ended = tokio::task::block_in_place(|| self.child.wait().unwrap());
        assert!(ended.success(), "{ended}");
    }

    fn configured(database: &TestDatabase, directory: &HostDirectory, text: &str) -> Self {
        Self::configured_at(database, database.server.port, directory, text)
    }

    fn configured_at(
        database: &TestDatabase,
        port: u16,
        directory: &HostDirectory,
        text: &str,
    ) -> Self {
        std::fs::create_dir_all(&directory.dir).unwrap();
        let config = directory.dir.join("callsheet.toml");
        std::fs::write(&config, text).unwrap();
        let mut command = command(database, &["serve", "--config"]);
        command.env("TEST_DATABASE_URL", database.url_at(port));
        let mut child = command.arg(&config).stdout(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut before = String::new();
        let first = lines.by_ref().map(Result::unwrap).find(|line| {
            before.push_str(line);
            line.contains("listening on")
        });
        let first = first.unwrap_or_else(|| panic!("the host does not start: {before}"));
        assert!(!before.contains("postgres://callsheet:"), "{before}");
        let addr = first.split("http://").nth(1).unwrap().split(' ').next().unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, start_log: before, addr: addr.parse().unwrap() }
    }

    pub(crate) async fn send(&self, request: &str) -> HttpResponse {
        let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        let mut reading = HttpConnection::open(self.addr, &request).await;
        within(reading.read_rest()).await;
        reading.response()
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn the_binary_is_killed_and_goes_on() {
    let Some(database) = database().await else { return };
    let directory = HostDirectory::new(json!({"responses": []})).await;
    let binary = Binary::start(&database, &directory);
    let opened = binary.send(&post("/v1/sessions", "", r#"{"id":"s"}"#)).await;
    assert_eq!(opened.status, 201, "{opened:?}");
    let run = json!({"input": "Hello.", "wait": true}).to_string();
    let ran = binary.send(&post("/v1/sessions/s/runs", "", &run)).await;
    assert_eq!(ran.status, 200, "{ran:?}");
    drop(binary);
    let began = tokio::time::Instant::now();
    let binary = Binary::start(&database, &directory);
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "it waits for one lease");
    let ready = binary.send("GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(ready.status, 200, "{ready:?}");
    let ran = binary.send(&post("/v1/sessions/s/runs", "", &run)).await;
    assert_eq!(ran.status, 200, "{ran:?}");
    drop(binary);
    assert_eq!(verify_all(&database).await, 1);
    let reader = PostgresReader::open(&database.url()).await.unwrap();
    let entries = reader.read(&id("s"), Seq(0)).await.unwrap();
    let starts = entries.iter().filter(|entry| entry.body().contains("run_started")).count();
    assert_eq!(starts, 2);
}

#[tokio::test]
async fn a_start_names_a_pooler_in_transaction_mode() {
    let Some(database) = database().await else { return };
    let directory = HostDirectory::new(json!({"responses": []})).await;
    for (mode, is_named) in [("transaction", true), ("session", false)] {
        let Some((pooler, port)) = database.server.pooler(mode).await else { return };
        let binary = Binary::start_at(&database, port, &directory);
        let log = &binary.start_log;
        assert_eq!(log.contains("pooler_in_transaction_mode"), is_named, "{mode}: {log}");
        drop((binary, pooler));
    }
}

/// Runs a command that reads the database. Returns its exit status and what it has printed.
fn output(database: &TestDatabase, words: &[&str]) -> (bool, String) {
    let output = command(database, words).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn commands_read_a_database() {
    let Some(database) = database().await else { return };
    let of_database = ["--database-url-env", "TEST_DATABASE_URL"];
    let run = |words: &[&str]| output(&database, &[words, &of_database].concat());
    let empty = run(&["sessions", "list"]);
    assert!(!empty.0 && empty.1.contains("the database has no sessions"), "{empty:?}");
    assert_eq!(
        run(&["migrate"]),
        (true, "the tables have version 1 now, and had version 0\n".to_owned())
    );
    assert_eq!(run(&["migrate"]), (true, "the tables have version 1 already\n".to_owned()));
    let directory = HostDirectory::new(json!({"responses": []})).await;
    let binary = Binary::start(&database, &directory);
    binary.send(&post("/v1/sessions", "", r#"{"id":"s"}"#)).await;
    let body = json!({"input": "Hello.", "wait": true}).to_string();
    assert_eq!(binary.send(&post("/v1/sessions/s/runs", "", &body)).await.status, 200);
    for (words, expect) in [
        (&["sessions", "list"][..], "1 session; the journal in postgres://callsheet@127.0.0.1"),
        (&["sessions", "show", "s"], "Hello."),
        (&["sessions", "verify"], "nothing is broken"),
        (&["sessions", "audit", "--json"], "\"session_id\":\"s\""),
        (&["replay", "s"], "no difference"),
    ] {
        let (succeeds, text) = run(words);
        assert!(succeeds && text.contains(expect), "{words:?}: {text}");
    }
    let (succeeds, text) = run(&["sessions", "show", "x"]);
    assert!(!succeeds && text.contains("has no session x"), "{text}");
    let (succeeds, text) = run(&["backup", "never-written"]);
    assert!(!succeeds && text.contains("pg_dump"), "{text}");
    let words = ["sessions", "list", "--database-url-env", "CALLSHEET_NOT_SET"];
    let (succeeds, text) = output(&database, &words);
    assert!(!succeeds && text.contains("CALLSHEET_NOT_SET is not set"), "{text}");
}

#[tokio::test]
async fn sessions_are_copied_to_a_database_and_back() {
    let Some(database) = database().await else { return };
    let script = json!({"responses": [
        {"when": {"last_user": "wait"}, "text": ["It ", "waits."], "repeat": true,
         "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
        {"when": {"turns": 0}, "calls": [call("writes", "a")], "repeat": true},
        {"text": ["Done."], "repeat": true}]});
    let directory = HostDirectory::new(script).await;
    let served = directory.start("", "").await;
    for session in ["s", "gone", "open"] {
        served.open(session).await;
    }
    served.run("s", "go").await;
    let last = directory.entries("s").len();
    for (at, id) in [(last, "f"), (3, "g")] {
        let forked = served.post("/v1/sessions/s/fork", json!({"at": at, "id": id})).await;
        assert_eq!(forked.status, 201, "{forked:?}");
    }
    served.run("g", "more").await;
    assert_eq!(served.delete("/v1/sessions/gone").await.status, 204);
    served.begin("open", json!({"input": "wait"})).await;
    directory.model.wait_for_gate("middle").await;
    served.crash().await;
    let from = directory.dir.to_str().unwrap();
    let run = |words: &[&str]| output(&database, words);
    let to_database = ["sessions", "copy", "--from", from, "--to-url-env", "TEST_DATABASE_URL"];
    let copied = run(&to_database);
    assert!(copied.0 && copied.1.starts_with("copied 4 sessions\n"), "{copied:?}");
    assert!(copied.1.contains("the run of 1 session has not ended"), "{copied:?}");
    let again = run(&to_database);
    assert!(again.0 && again.1.starts_with("copied 0 sessions; 4 were there already"), "{again:?}");
    let reader = PostgresReader::open(&database.url()).await.unwrap();
    let listed = reader.list(&SessionQuery::default()).await.unwrap();
    assert_eq!(listed.len(), 4);
    for session in &listed {
        let entries = reader.read(&session.id, Seq(0)).await.unwrap();
        assert_eq!(entries, directory.entries(session.id.as_str()), "{}", session.id);
    }
    let shared = "SELECT count(*) FROM sessions WHERE origin IS NOT NULL";
    assert_eq!(database.number(shared).await, 2, "forks share their first records");
    // A host on the copy waits with the run, because another one may have the original.
    let on_copy = start(&directory, &database).await;
    assert_eq!(on_copy.snapshot("open").await["current_run"]["suspended"], true);
    on_copy.crash().await;
    let audit = run(&["sessions", "audit", "--database-url-env", "TEST_DATABASE_URL"]);
    assert!(audit.0 && audit.1.contains("gone"), "{audit:?}");
    let back = directory.dir.join("back");
    let back = back.to_str().unwrap();
    let copied = run(&["sessions", "copy", "--from-url-env", "TEST_DATABASE_URL", "--to", back]);
    assert!(copied.0 && copied.1.starts_with("copied 4 sessions\n"), "{copied:?}");
    for session in &listed {
        let entries = reader.read(&session.id, Seq(0)).await.unwrap();
        let copy = crate::host_directory::entries(std::path::Path::new(back), session.id.as_str());
        assert_eq!(copy, entries, "{}", session.id);
    }
    // Another session with an id of a copied one.
    let other = HostDirectory::new(json!({"responses": [{"text": ["Hello."]}]})).await;
    let served = other.start("", "").await;
    served.open("s").await;
    served.shutdown().await;
    let refused = run(&[
        "sessions",
        "copy",
        "--from",
        other.dir.to_str().unwrap(),
        "--to-url-env",
        "TEST_DATABASE_URL",
    ]);
    assert!(!refused.0 && refused.1.contains("it has another session s"), "{refused:?}");
    let missing = run(&["sessions", "copy", "--from", from]);
    assert!(!missing.0 && missing.1.contains("--to"), "{missing:?}");
}
