//! `callsheet backup` and `callsheet restore`: output and exit status, beside a running host and on copies.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Read as _;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;

use crate::cli::{Folder, ServeProcess, post, send, serve, signal, stderr, stdout};

/// Returns the exit status and what was printed on stdout and on stderr.
fn printed(output: &Output) -> (Option<i32>, String, String) {
    (output.status.code(), stdout(output), stderr(output))
}

/// Returns the whole stderr of a host that a signal ends.
fn stopped(served: ServeProcess) -> String {
    let ServeProcess { mut child, mut err, banner, .. } = served;
    signal(&child, "TERM");
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    child.wait().unwrap();
    banner + &rest
}

/// Returns the snapshot of a session.
fn snapshot(served: &ServeProcess, session: &str) -> Value {
    let head = "host: localhost\r\nconnection: close";
    let answer =
        send(served.addr, &format!("GET /v1/sessions/{session} HTTP/1.1\r\n{head}\r\n\r\n"));
    // The body is one chunk.
    let body = answer.lines().find(|line| line.starts_with('{')).unwrap();
    serde_json::from_str(body).unwrap()
}

/// Polls a session until its run waits for an approval.
fn until_approval_asked(served: &ServeProcess, session: &str) {
    for _ in 0..2_000 {
        if !snapshot(served, session)["current_run"]["approvals"]
            .as_array()
            .is_none_or(Vec::is_empty)
        {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no approval is asked for: {}", snapshot(served, session));
}

/// A run that waits for an approval stays open.
const CONFIG: &str = "[tools.calculator]\napproval = \"before\"\n";

#[test]
fn a_backup_beside_a_host_is_restored_and_waits_until_go_on() {
    let folder = Folder::new("backup").with("callsheet.toml", CONFIG);
    let served = serve(&folder, &[]);
    for session in ["s", "t"] {
        let opened = send(served.addr, &post("/v1/sessions", &format!("{{\"id\":\"{session}\"}}")));
        assert!(opened.starts_with("HTTP/1.1 201 "), "{opened}");
    }
    let begun = send(served.addr, &post("/v1/sessions/t/runs", "{\"input\":\"What is 2 * 3?\"}"));
    assert!(begun.starts_with("HTTP/1.1 202 "), "{begun}");
    until_approval_asked(&served, "t");
    let (status, out, err) = printed(&folder.run(&["backup", "copy"]));
    assert_eq!((status, &*err), (Some(0), ""));
    assert!(out.starts_with("2 sessions, ") && out.ends_with(" s: copy\n"), "{out}");
    assert_eq!(out.lines().count(), 1);
    stopped(served);

    let (status, out, err) = printed(&folder.run(&["restore", "copy", "--data-dir", "new"]));
    assert_eq!((status, &*err), (Some(0), ""));
    assert!(out.contains(": nothing is broken, 1 run has not ended\n"), "{out}");
    assert!(
        out.contains("the run of 1 session has not ended") && out.ends_with(":\n  t\n"),
        "{out}"
    );
    let served = serve(&folder, &["--data-dir", "new"]);
    assert_eq!(snapshot(&served, "t")["current_run"]["suspended"], true);
    let log = stopped(served);
    assert!(log.contains("restored_copy") && log.contains("waiting_runs=1"), "{log}");
    for flags in [&["--data-dir", "new", "--go-on"][..], &["--data-dir", "new"]] {
        let served = serve(&folder, flags);
        until_approval_asked(&served, "t");
        assert_eq!(snapshot(&served, "t")["current_run"]["suspended"], false);
        let log = stopped(served);
        assert!(!log.contains("restored_copy"), "{log}");
    }
}

#[test]
fn a_backup_with_a_breach_is_restored_with_status_1() {
    let folder = Folder::new("backup-breach");
    let served = serve(&folder, &[]);
    send(served.addr, &post("/v1/sessions", "{\"id\":\"s\"}"));
    assert_eq!(folder.run(&["backup", "copy"]).status.code(), Some(0));
    stopped(served);
    let database = rusqlite::Connection::open(folder.0.join("copy/journal.db")).unwrap();
    assert_eq!(database.execute("UPDATE records SET body = '{' WHERE seq = 1", []).unwrap(), 1);
    database.close().unwrap();
    let (status, out, err) = printed(&folder.run(&["restore", "copy", "--data-dir", "new"]));
    assert_eq!((status, &*err), (Some(1), ""));
    assert!(out.contains("1 problem\n") && out.contains("the copy stays in new\n"), "{out}");
    assert!(folder.0.join("new/journal.db").exists());
}

#[test]
fn wrong_directories_are_one_line_and_status_2() {
    let folder = Folder::new("backup-usage").with("file", "");
    let served = serve(&folder, &[]);
    assert_eq!(folder.run(&["backup", "copy"]).status.code(), Some(0));
    for (args, expected) in [
        (&["backup", "copy"][..], "open the journal copy: it is not empty"),
        (&["backup", "file"], "open the journal file: it is not a directory"),
        (
            &["backup", "other", "--data-dir", "none"],
            "open the journal none/journal.db: No such file",
        ),
        (&["restore", "copy"], "open the journal ./callsheet-data: it is not empty"),
        (
            &["restore", "none", "--data-dir", "new"],
            "open the journal none/journal.db: No such file",
        ),
        (&["restore", "callsheet-data", "--data-dir", "new"], "uses it: stop that host"),
        (&["restore"], "required arguments were not provided: <DIR>"),
    ] {
        let (status, out, err) = printed(&folder.run(args));
        assert_eq!((status, &*out), (Some(2), ""), "{args:?}: {err}");
        assert!(err.contains(expected) && err.lines().count() == 1, "{args:?}: {err}");
    }
    assert!(!folder.0.join("new").exists() && !folder.0.join("other").exists());
    stopped(served);
}
