//! `callsheet sessions`: output and exit status.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use callsheet::config::Durability;
use callsheet::journal::{
    GroupCommit, Journal, JournalObserver, SessionLog, SqliteJournal, SqliteOptions, Urgency,
};
use callsheet::record::{Record, Seq};
use callsheet::types::SessionId;
use serde_json::{Value, json};

#[derive(Debug)]
struct NoListener;

impl JournalObserver for NoListener {
    fn stored(&self, _: GroupCommit) {}
}

/// A directory whose `callsheet-data` contains a journal.
struct Folder {
    path: PathBuf,
    journal: Arc<SqliteJournal>,
}

impl Folder {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("sessions-{name}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        let options = SqliteOptions::default().with(|new| {
            new.durability = Durability::Strict;
            new.holder = "a test".to_owned();
            new.observer = Arc::new(NoListener);
            new.queue_max = 1_000;
        });
        let journal = Arc::new(SqliteJournal::open(&path.join("callsheet-data"), options).unwrap());
        Self { path, journal }
    }

    async fn store(&self, session: &str, records: Value) {
        let records: Vec<Record> = serde_json::from_value(records).unwrap();
        let id = SessionId::parse(session).unwrap();
        let journal = Arc::clone(&self.journal) as Arc<dyn Journal>;
        let log = SessionLog::new(id, journal, Seq(0), |_| ());
        log.append(records, Urgency::Urgent, || ());
        let last = log.last_seq();
        log.wait_durable(last).await.unwrap();
    }

    /// Stores two sessions: one with an answered run and one with an open run.
    async fn filled(name: &str) -> Self {
        let folder = Self::new(name);
        folder.store("answered", Value::Array([open_run(), answered_run()].concat())).await;
        folder.store("open", Value::Array(open_run())).await;
        folder
    }

    /// Changes the database while no host runs.
    async fn tamper(&self, statement: &str) {
        self.journal.close().await;
        let file = self.path.join("callsheet-data/journal.db");
        let changed = rusqlite::Connection::open(file).unwrap().execute(statement, []).unwrap();
        assert_eq!(changed, 1, "{statement}");
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_callsheet"));
        command.arg("sessions").args(args).current_dir(&self.path).stdin(Stdio::null());
        command.env_remove("CALLSHEET_LOG").env_remove("RUST_LOG");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
}

fn open_run() -> Vec<Value> {
    let records = json!([
        {"type": "session_opened", "agent": "default"},
        {"type": "run_started", "run_id": "run_1", "input": "What time is it?", "model": "m",
            "execution": "sequential"},
        {"type": "attempt_started", "turn": 1, "attempt": 1, "model": "m", "streamed": true},
    ]);
    records.as_array().unwrap().clone()
}

fn answered_run() -> Vec<Value> {
    let usage = json!({"input_tokens": 9, "output_tokens": 2, "cached_tokens": 0,
        "reasoning_tokens": 0});
    let records = json!([
        {"type": "response_ended", "turn": 1, "attempt": 1, "ending": "well",
            "message": {"text": "It is \u{1b}[1mnoon."}, "finish_reason": null, "usage": usage},
        {"type": "turn_committed", "turn": 1, "end": "finished", "summary": {"dropped_calls": 0,
            "usage": usage, "parallel": false, "times": {}}},
        {"type": "run_ended", "run_id": "run_1", "end": "answered",
            "text": "It is \u{1b}[1mnoon.", "error": null,
            "stats": {"turns": 1, "tool_calls": 0, "input_tokens": 9, "output_tokens": 2,
                "duration_ms": 40, "model_ms": 0, "tools_ms": 0, "overhead_ms": 0,
                "overlap_saved_ms": 0}},
    ]);
    records.as_array().unwrap().clone()
}

/// Returns the response of the open run, and the question for an approval of its call.
fn asked_approval() -> Vec<Value> {
    let key = json!({"turn": 1, "attempt": 1, "index": 0});
    let usage = json!({"input_tokens": 9, "output_tokens": 2, "cached_tokens": 0,
        "reasoning_tokens": 0});
    let call = json!({"key": key, "id": "c0", "provider_id": null, "name": "p\u{202e}ay",
        "arguments": {}});
    let records = json!([
        {"type": "response_ended", "turn": 1, "attempt": 1, "ending": "well",
            "message": {"text": "", "calls": [call]}, "finish_reason": null, "usage": usage},
        {"type": "approval_asked", "asked": {"phase": "before", "arguments": {},
            "arguments_sha256": "00",
            "call": {"key": key, "provider_id": null, "name": "p\u{202e}ay"}}},
    ]);
    records.as_array().unwrap().clone()
}

/// Returns stdout of a successful command.
#[track_caller]
fn stdout_of(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{:?}: {errors}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the exit status and the only line of stderr.
#[track_caller]
fn refused(output: &Output) -> (i32, String) {
    assert!(output.stdout.is_empty());
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(errors.lines().count(), 1, "{errors}");
    (output.status.code().unwrap(), errors)
}

#[tokio::test]
async fn sessions_are_listed_while_a_host_runs_and_after() {
    let folder = Folder::filled("list").await;
    for stopped in [false, true] {
        if stopped {
            folder.journal.close().await;
        }
        let list = stdout_of(&folder.run(&["list"]));
        let lines: Vec<Vec<&str>> =
            list.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["ID", "AGENT", "STATE", "RECORDS", "LAST", "CHANGE"]);
        assert_eq!(lines[1][..4], ["answered", "default", "idle", "6"]);
        assert_eq!(lines[2][..4], ["open", "default", "running", "3"]);
        assert_eq!(lines[3][..2], ["2", "sessions;"]);
        let running = stdout_of(&folder.run(&["list", "--state", "running", "--json"]));
        let running: Value = serde_json::from_str(&running).unwrap();
        assert_eq!((&running["id"], &running["seq"]), (&json!("open"), &json!(3)));
        let first = stdout_of(&folder.run(&["list", "--limit", "1", "--json"]));
        assert_eq!(first.lines().count(), 1);
    }
}

#[tokio::test]
async fn a_session_is_shown_in_every_format() {
    let folder = Folder::filled("show").await;
    let text = stdout_of(&folder.run(&["show", "answered"]));
    assert!(text.contains("It is [1mnoon.") && !text.contains('\u{1b}'), "{text}");
    let lines = stdout_of(&folder.run(&["show", "answered", "--format", "jsonl"]));
    let kinds: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["type"].clone())
        .collect();
    assert_eq!(
        (kinds.len(), &kinds[0], &kinds[5]),
        (6, &json!("session_opened"), &json!("run_ended"))
    );
    let messages = stdout_of(&folder.run(&["show", "answered", "--format", "openai"]));
    let messages: Value = serde_json::from_str(&messages).unwrap();
    let roles: Vec<_> = messages.as_array().unwrap().iter().map(|m| m["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant"]);
    let log = stdout_of(&folder.run(&["show", "answered", "--format", "markdown"]));
    assert!(log.starts_with("# Session `answered`\n\n- agent: `default`\n"), "{log}");
    let picture = stdout_of(&folder.run(&["show", "answered", "--format", "timeline"]));
    let rows: Vec<&str> = picture.lines().collect();
    assert_eq!(rows[0], "run_1: answered, 1 turn, 0 calls, 40 ms");
    assert!(rows[2].starts_with("turn 1 m ═") && !picture.contains('\u{1b}'), "{picture}");
    let mut wide = folder.command(&["show", "open", "--format", "timeline"]);
    let picture = stdout_of(&wide.env("COLUMNS", "120").output().unwrap());
    assert!(picture.starts_with("run_1: has not ended\n"), "{picture}");
    let columns = picture.lines().map(|line| line.chars().count()).max();
    assert_eq!(columns, Some(120), "{picture}");
    // Of an open run only committed turns become messages.
    let open = folder.run(&["show", "open", "--format", "openai"]);
    let note = String::from_utf8(open.stderr).unwrap();
    assert!(open.status.success() && note.contains("open run, run_1"), "{note}");
    let messages: Value = serde_json::from_slice(&open.stdout).unwrap();
    assert_eq!(messages, json!([{"role": "user", "content": "What time is it?"}]));
}

#[tokio::test]
async fn a_timeline_shows_a_person_who_is_waited_for() {
    let folder = Folder::new("asks");
    folder.store("asks", Value::Array([open_run(), asked_approval()].concat())).await;
    let picture = stdout_of(&folder.run(&["show", "asks", "--format", "timeline"]));
    let row = picture.lines().find(|line| line.contains(r" … p\u{202e}ay ")).unwrap();
    assert!(row.contains('?') && row.contains(" waits "), "{picture}");
    let text = stdout_of(&folder.run(&["show", "asks"]));
    assert!(text.contains(r"p\u{202e}ay") && !text.contains('\u{202e}'), "{text}");
}

#[tokio::test]
async fn verify_accepts_an_intact_journal() {
    let folder = Folder::filled("whole").await;
    let all = stdout_of(&folder.run(&["verify"]));
    assert_eq!(all, "2 sessions, 9 records: nothing is broken, 1 run has not ended\n");
    let one = stdout_of(&folder.run(&["verify", "answered"]));
    assert_eq!(one, "1 session, 6 records: nothing is broken\n");
}

#[tokio::test]
async fn verify_names_each_problem_and_continues_with_the_other_sessions() {
    let folder = Folder::filled("breach").await;
    folder.store("worse", Value::Array([open_run(), answered_run()].concat())).await;
    folder
        .tamper(
            "UPDATE records SET body = replace(body, '\"turns\":1', '\"turns\":2')
         WHERE session = (SELECT number FROM sessions WHERE id = 'worse') AND seq = 6",
        )
        .await;
    folder.tamper(
        "UPDATE records SET body = replace(body, '\"type\":\"run_started\"', '\"type\":\"surprise\"')
         WHERE session = (SELECT number FROM sessions WHERE id = 'answered')",
    ).await;
    let output = folder.run(&["verify"]);
    assert_eq!(output.status.code(), Some(1));
    let found = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines.len(), 3, "{found}");
    let unreadable = "session answered: cannot read record 2 of session answered: unknown variant";
    assert!(lines[0].starts_with(unreadable), "{found}");
    assert_eq!(lines[1], "session worse: record 6: run_1 counts 2 turns, and had 1 (sums)");
    let summary = "3 sessions, 9 records: 2 problems, 1 run has not ended";
    assert_eq!(lines[2], summary);
    assert_eq!(folder.run(&["verify", "open"]).status.code(), Some(0));
    let (status, error) = refused(&folder.run(&["show", "answered"]));
    assert!(status == 2 && error.contains("read record 2"), "{error}");
}

#[tokio::test]
async fn what_is_not_there_is_one_line_and_status_2() {
    let folder = Folder::filled("missing").await;
    for args in [["show", "nobody"], ["verify", "nobody"]] {
        let (status, error) = refused(&folder.run(&args));
        assert_eq!(status, 2);
        assert!(error.contains("./callsheet-data has no session nobody"), "{error}");
    }
    let mut replay = Command::new(env!("CARGO_BIN_EXE_callsheet"));
    let replay = replay.args(["replay", "nobody"]).current_dir(&folder.path).output().unwrap();
    let (status, error) = refused(&replay);
    assert!(status == 2 && error.contains("./callsheet-data has no session nobody"), "{error}");
    let (status, error) = refused(&folder.run(&["list", "--limit", "many"]));
    assert!(status == 2 && error.contains("must be a whole number"), "{error}");
    let nowhere: [&[&str]; 4] = [
        &["list", "--data-dir", "elsewhere"],
        &["verify", "--data-dir", "elsewhere"],
        &["list", "--config", "elsewhere.toml"],
        &["show", "no/id"],
    ];
    for args in nowhere {
        let (status, error) = refused(&folder.run(args));
        assert!(status == 2 && (error.contains("elsewhere") || error.contains("no/id")), "{error}");
    }
    folder.journal.close().await;
    let file = folder.path.join("callsheet-data/journal.db");
    let later = rusqlite::Connection::open(&file).unwrap();
    later.pragma_update(None, "user_version", 99).unwrap();
    drop(later);
    let (status, error) = refused(&folder.run(&["list"]));
    assert!(status == 2 && error.contains("version 99"), "{error}");
    std::fs::write(&file, "no database at all, but long enough to look like a file").unwrap();
    assert_eq!(refused(&folder.run(&["list"])).0, 2);
}

#[tokio::test]
async fn the_configuration_locates_the_journal() {
    let folder = Folder::filled("config").await;
    folder.journal.close().await;
    std::fs::rename(folder.path.join("callsheet-data"), folder.path.join("moved")).unwrap();
    assert_eq!(folder.run(&["list"]).status.code(), Some(2));
    let text = "[host]\ndata_dir = \"moved\"\n";
    std::fs::write(folder.path.join("other.toml"), text).unwrap();
    for args in [["list", "--data-dir", "moved"], ["list", "--config", "other.toml"]] {
        assert!(stdout_of(&folder.run(&args)).contains("2 sessions"));
    }
    std::fs::write(folder.path.join("callsheet.toml"), text).unwrap();
    assert!(stdout_of(&folder.run(&["list"])).contains("2 sessions"));
}

#[tokio::test]
async fn a_closed_stdout_prints_no_error() {
    let folder = Folder::new("pipe");
    let text = "word ".repeat(100_000);
    let mut records = open_run();
    records[1]["input"] = json!(text);
    folder.store("long", Value::Array(records)).await;
    let args = ["show", "long", "--format", "jsonl"];
    let mut child =
        folder.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[tokio::test]
async fn verify_finds_rows_that_contradict_each_other() {
    for (wrong, right) in [(true, "idle"), (false, "running")] {
        let folder = Folder::filled(&format!("flipped-{wrong}")).await;
        let id = if wrong { "answered" } else { "open" };
        let number = format!("(SELECT number FROM sessions WHERE id = '{id}')");
        folder
            .tamper(&if wrong {
                format!("INSERT INTO running SELECT {number}")
            } else {
                format!("DELETE FROM running WHERE session = {number}")
            })
            .await;
        let output = folder.run(&["verify"]);
        let found = String::from_utf8(output.stdout).unwrap();
        assert_eq!((output.status.code(), found.lines().count()), (Some(1), 2), "{found}");
        let state = format!("session {id}: the database has the state");
        assert!(found.starts_with(&state) && found.contains(&format!("end {right}: restore")));
        assert_eq!(folder.run(&["verify", id]).status.code(), Some(1));
    }
    let folder = Folder::filled("orphans").await;
    folder.tamper("DELETE FROM sessions WHERE id = 'answered'").await;
    let output = folder.run(&["verify"]);
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), found.lines().count()), (Some(1), 2), "{found}");
    assert!(found.contains("journal.db: 6 records of session number 1 have no row"), "{found}");
    let folder = Folder::filled("recordless").await;
    folder.tamper("UPDATE sessions SET number = 77 WHERE id = 'answered'").await;
    let output = folder.run(&["verify"]);
    let found = String::from_utf8(output.stdout).unwrap();
    assert!(found.contains("session answered has no records: restore"), "{found}");
}

#[tokio::test]
async fn an_empty_database_is_an_error_that_advises() {
    let folder = Folder::filled("empty").await;
    folder.journal.close().await;
    std::fs::write(folder.path.join("callsheet-data/journal.db"), "").unwrap();
    let (status, error) = refused(&folder.run(&["verify"]));
    assert!(status == 2 && error.contains("journal.db: it is empty"), "{error}");
    assert!(error.contains("restore it from a backup"), "{error}");
}
