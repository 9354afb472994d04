//! Journals of this and earlier versions: each is verified, read, and its open runs go on.
//!
//! `CALLSHEET_WRITE_JOURNAL=tests/journal/versions/NAME.db cargo test --test journal -- --ignored` writes the journal
//! of the present version. One is added when a version changes what is stored.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use callsheet::journal::JournalReader;
use serde_json::{Value, json};

use crate::host_directory::{HostDirectory, HostServer, decision, verified};

/// The stored journals.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/journal/versions");

const CONFIG: &str = r#"
[agents.default]
execution = "parallel"
[agents.helper]
[tools.writes]
approval = "before"
# The journals become older, and their approvals must not expire.
approval_timeout = "87600h"
[tools.researcher]
kind = "agent"
description = "Answers a question."
agent = "helper"
"#;

/// The sessions that the journal has.
const SESSIONS: [&str; 6] = ["plain", "fork", "parent", "stopped", "asks", "queued"];

fn script() -> Value {
    let call = |tool: &str, arguments: Value| json!({"name": tool, "arguments": arguments});
    json!({"responses": [
        // plain
        {"reasoning": ["Two calls."], "text": ["Let me see."], "calls": [
            call("calculator", json!({"expression": "6 * 7"})),
            call("set_variable", json!({"name": "answer", "value": 42}))]},
        {"text": ["It is 42."]},
        {"calls": [call("fails", json!({"id": "f"})), call("no_such_tool", json!({}))]},
        {"text": ["One failed."]},
        // parent, its child, parent
        {"calls": [call("researcher", json!({"input": "Why?"}))]},
        {"text": ["Because."]},
        {"text": ["The helper says: because."]},
        // stopped
        {"text": ["Half of ", "it."], "holds": [{"at": {"chunk": 2}, "name": "stopped"}]},
        // asks
        {"calls": [call("writes", json!({"id": "a"}))]},
        // queued
        {"text": ["It ", "is lost."], "holds": [{"at": {"chunk": 2}, "name": "queued"}]}
    ]})
}

/// Writes a journal whose host has ended without a shutdown.
async fn write_journal(file: &Path) {
    let directory = HostDirectory::new(script()).await;
    let served = directory.start("", CONFIG).await;
    for session in SESSIONS.into_iter().filter(|session| *session != "fork") {
        served.open(session).await;
    }
    served.run("plain", "What is 6 * 7?").await;
    served.run("plain", "And then?").await;
    let last = served.snapshot("plain").await["seq"].clone();
    let fork = json!({"id": "fork", "at": last});
    assert_eq!(served.post("/v1/sessions/plain/fork", fork).await.status, 201);
    served.run("parent", "Ask the helper.").await;
    served.begin("stopped", json!({"input": "Tell me."})).await;
    directory.model.wait_for_gate("stopped").await;
    served.post("/v1/sessions/stopped/stop", json!({"mode": "now"})).await;
    served.until_snapshot("stopped", |s| s["state"] == "idle").await;
    let asking = json!({"input": "Write it.", "metadata": {"customer": "c"}});
    served.begin("asks", asking).await;
    served.until_snapshot("asks", |s| s["current_run"]["approvals"][0].is_object()).await;
    served.begin("queued", json!({"input": "Tell me."})).await;
    directory.model.wait_for_gate("queued").await;
    served.post("/v1/sessions/queued/steer", json!({"input": "Shortly."})).await;
    served.begin("queued", json!({"input": "And then?", "queue": true})).await;
    let copy = directory.dir.with_extension("copy");
    JournalReader::open(&directory.dir).unwrap().back_up(&copy).unwrap();
    fs::rename(copy.join("journal.db"), file).unwrap();
    fs::remove_dir(copy).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes a journal of the present version"]
async fn writes_the_journal_of_this_version() {
    let file = std::env::var("CALLSHEET_WRITE_JOURNAL").unwrap();
    write_journal(Path::new(&file)).await;
}

/// Lets a host go on with a journal.
async fn continue_journal(file: &Path) {
    let name = file.display();
    let texts = std::iter::repeat_n(json!({"text": ["Well."]}), 16).collect::<Vec<_>>();
    let directory = HostDirectory::new(json!({"responses": texts})).await;
    fs::create_dir_all(&directory.dir).unwrap();
    fs::copy(file, directory.dir.join("journal.db")).unwrap();
    let stored: Vec<_> = verified(&directory.dir);
    assert_eq!(stored.len(), SESSIONS.len(), "{name}: {stored:?}");
    directory.verify();

    let served = directory.start("", CONFIG).await;
    let plain = served.snapshot("plain").await;
    assert_eq!(plain["variables"]["answer"], 42, "{name}");
    let texts = |snapshot: &Value| {
        let history = snapshot["history"].as_array().unwrap().iter();
        let texts = history.filter_map(|message| message["content"].as_str());
        texts.map(str::to_owned).collect::<Vec<_>>()
    };
    for text in ["What is 6 * 7?", "Let me see.", "42", "It is 42.", "One failed."] {
        assert!(texts(&plain).iter().any(|own| own == text), "{name}: {text}: {plain}");
    }
    assert_eq!(served.snapshot("fork").await["history"], plain["history"], "{name}");
    let events = served.get("/v1/sessions/parent/runs").await.json();
    assert_eq!(events["runs"][0]["run_end"], "answered", "{name}");
    let asks = served.snapshot("asks").await;
    assert_eq!(asks["current_run"]["metadata"]["customer"], "c", "{name}");
    let (tool_id, approve) = decision(&asks["current_run"]["approvals"][0], "approve");
    let path = format!("/v1/sessions/asks/approvals/{tool_id}");
    assert_eq!(served.post(&path, approve).await.status, 200, "{name}");
    // The file is a backup, so its runs wait for a request.
    let resumed = served.post("/v1/sessions/queued/resume", json!({})).await;
    assert_eq!(resumed.status, 202, "{name}: {resumed:?}");
    let is_done = |s: &Value| s["state"] == "idle" && s["queued"] == json!([]);
    for session in SESSIONS {
        served.until_snapshot(session, is_done).await;
    }
    assert_eq!(directory.control.log(), ["start a", "end a"], "{name}");
    let queued = served.snapshot("queued").await;
    let inputs: Vec<_> = texts(&queued).into_iter().filter(|text| text != "Well.").collect();
    assert_eq!(inputs, ["Tell me.", "Shortly.", "And then?"], "{name}: {queued}");
    for session in SESSIONS {
        assert_eq!(served.run(session, "Go on.").await["text"], "Well.", "{name}: {session}");
    }
    check_replays(&served, name.to_string().as_str()).await;
    served.shutdown().await;
    directory.verify();
}

/// Checks that each session's events can be read from the beginning.
async fn check_replays(served: &HostServer, name: &str) {
    for session in SESSIONS {
        let mut events = served.events(session, "0").await;
        events.until("\"text\":\"Well.\"").await;
        assert!(events.text().contains("stream_start"), "{name}: {session}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn journals_of_this_and_earlier_versions_go_on() {
    let files = fs::read_dir(FOLDER).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        continue_journal(&file).await;
    }
}
