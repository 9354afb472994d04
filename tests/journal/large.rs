//! A journal of very many sessions, or of a long one: what deletions, lists, long reads and faces cost. It prints times,
//! and asserts none.
//!
//! ```sh
//! CALLSHEET_SESSIONS=1000000 cargo test --release --test journal -- large:: --ignored --nocapture
//! ```
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callsheet::journal::JournalReader;
use rusqlite::Connection;
use serde_json::json;
use tokio::time::Instant;

use crate::host_directory::{HostDirectory, HostServer};

/// Multiplies the session `template` of a journal that no host uses, by statements: `count` sessions with its records,
/// each with another metadata value, the last 200 running. Their ids are in another order than their numbers.
fn multiply(dir: &Path, count: u32) {
    let connection = Connection::open(dir.join("journal.db")).unwrap();
    connection
        .execute_batch(&format!(
            "PRAGMA synchronous = off; PRAGMA cache_size = -200000; PRAGMA temp_store = memory;
             CREATE TEMP TABLE n(i INTEGER PRIMARY KEY);
             WITH RECURSIVE c(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM c WHERE i < {count})
                 INSERT INTO n SELECT i FROM c;
             CREATE TEMP TABLE template AS
                 SELECT r.* FROM records r JOIN sessions s ON s.number = r.session WHERE s.id = 'template';
             CREATE TEMP TABLE base AS SELECT max(number) AS number FROM sessions;
             BEGIN;
             INSERT INTO sessions(number, id, agent, opened, metadata)
                 SELECT base.number + i, printf('s%08x-%d', (i * 2654435761) & 0xffffffff, i), 'default',
                     1700000000000 + i * 1000, json_object('customer', 'c' || (i % 1000))
                 FROM n, base ORDER BY printf('s%08x-%d', (i * 2654435761) & 0xffffffff, i);
             INSERT INTO records(session, seq, time, body)
                 SELECT base.number + i, t.seq, 1700000000000 + i * 1000, t.body FROM n, base, template t
                 ORDER BY i, t.seq;
             INSERT INTO running SELECT base.number + i FROM n, base WHERE i > {count} - 200;
             INSERT INTO documents(key, text) SELECT printf('chat-%064x', i), d.text
                 FROM n, (SELECT text FROM documents WHERE key LIKE 'chat-%' LIMIT 1) d;
             INSERT INTO document_uses(session, key) SELECT base.number + i, printf('chat-%064x', i)
                 FROM n, base, (SELECT 1 FROM documents WHERE key LIKE 'chat-%' LIMIT 1);
             COMMIT;"
        ))
        .unwrap();
}

/// Returns the times below which half and 99 of 100 are, and the longest.
fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    format!("p50 {:.1} p99 {:.1} max {:.1} ms of {}", at(0.5), at(0.99), at(1.0), times.len())
}

/// Runs in four sessions at once, beside `work`. Returns the durations of the runs.
async fn runs_beside(served: &HostServer, name: &str, work: impl Future<Output = ()>) {
    let ended = Arc::new(AtomicBool::new(false));
    let runs = (0..4).map(|at| async move {
        let session = format!("z-{}-{at}", name.replace(' ', "-"));
        served.open(&session).await;
        session
    });
    let sessions = futures::future::join_all(runs).await;
    let runs = sessions.iter().map(|session| async {
        let mut times = Vec::new();
        while !ended.load(Ordering::Relaxed) {
            let began = Instant::now();
            served.run(session, "hello").await;
            times.push(began.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        times
    });
    let work = async {
        let began = Instant::now();
        work.await;
        ended.store(true, Ordering::Relaxed);
        began.elapsed()
    };
    let (times, took) = futures::future::join(futures::future::join_all(runs), work).await;
    println!("runs beside {name} ({took:.1?}): {}", percentiles(times.concat()));
}

/// Deletes sessions one after the other.
async fn delete(served: &HostServer, count: usize) {
    let mut times = Vec::new();
    let ids = JournalIds(served.get(&format!("/v1/sessions?limit={count}")).await.json());
    for id in ids.iter() {
        let began = Instant::now();
        let deleted = served.delete(&format!("/v1/sessions/{id}")).await;
        times.push(began.elapsed());
        assert!([202, 204].contains(&deleted.status), "{deleted:?}");
    }
    println!("DELETE: {}", percentiles(times));
}

struct JournalIds(serde_json::Value);

impl JournalIds {
    fn iter(&self) -> impl Iterator<Item = &str> {
        self.0["sessions"].as_array().unwrap().iter().map(|session| session["id"].as_str().unwrap())
    }
}

async fn list(served: &HostServer, query: &str) {
    let mut times = Vec::new();
    let (mut after, mut count) = (String::new(), 0);
    for _ in 0..20 {
        let began = Instant::now();
        let page = served.get(&format!("/v1/sessions?limit=100{query}{after}")).await;
        times.push(began.elapsed());
        let page = page.json();
        let Some(sessions) = page["sessions"].as_array() else {
            return println!("{query}: {page}");
        };
        count += sessions.len();
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    println!("list {query:?}: {count} sessions, pages {}", percentiles(times));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes; its figures are for a quiet machine"]
async fn costs_of_a_large_journal() {
    let count = count();
    let text = "An answer of a few words. ".repeat(20);
    let directory = HostDirectory::new(json!({"responses": [{"text": [text]}]})).await;
    let served = directory.start("", "").await;
    served.open("template").await;
    served.run("template", &"A question of a few words. ".repeat(20)).await;
    served.shutdown().await;
    let began = Instant::now();
    multiply(&directory.dir, count);
    let bytes = std::fs::metadata(directory.dir.join("journal.db")).unwrap().len();
    println!("{count} sessions, {} MB, made in {:.1?}", bytes / 1_000_000, began.elapsed());

    let began = Instant::now();
    let rest = "[journal]\nresume = \"manual\"";
    let served = directory.start("max_sessions = 100000000\nidle_after = \"2s\"", rest).await;
    println!("start: {:.1?}", began.elapsed());
    for query in [
        "",
        "&order=newest",
        "&state=running",
        "&state=hibernated",
        "&state=idle",
        "&state=running&order=newest",
    ] {
        list(&served, query).await;
    }
    let quiet = tokio::time::sleep(Duration::from_secs(10));
    runs_beside(&served, "nothing", quiet).await;
    delete(&served, 20).await;
    runs_beside(&served, "deletions", delete(&served, 200)).await;
    let check = async {
        let dir = directory.dir.clone();
        let check = move || JournalReader::open(&dir).unwrap().check().unwrap();
        assert_eq!(tokio::task::spawn_blocking(check).await.unwrap(), Vec::<String>::new());
    };
    runs_beside(&served, "check", check).await;
    let backup = async {
        let dir = directory.dir.clone();
        let copy = move || {
            let target = dir.join("backup");
            JournalReader::open(&dir).unwrap().back_up(&target).unwrap();
        };
        tokio::task::spawn_blocking(copy).await.unwrap();
    };
    runs_beside(&served, "backup and deletions", async {
        futures::future::join(backup, delete(&served, 200)).await;
    })
    .await;
    served.shutdown().await;
}

fn count() -> u32 {
    let count = std::env::var("CALLSHEET_SESSIONS").ok();
    count.and_then(|count| count.parse().ok()).unwrap_or(200_000)
}

/// Each session has a note of a history. A request with a known history of 1,000 messages is refused after its session
/// was found, and one for an unknown model before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes; its figures are for a quiet machine"]
async fn costs_of_the_faces_of_a_large_journal() {
    const MESSAGES: usize = 1_000;
    const CHAT: &str = "/v1/chat/completions";
    let directory = HostDirectory::new(json!({"responses": [{"text": ["An answer."]}]})).await;
    let served = directory.start("", "").await;
    served.open("template").await;
    served.run("template", "A question.").await;
    let message = |at: usize| {
        let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": format!("Message {at} of a long talk. ").repeat(4)})
    };
    let mut messages: Vec<_> = (0..MESSAGES - 1).map(message).collect();
    let body = json!({"model": "default", "messages": messages});
    let answer = served.post(CHAT, body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    messages.push(answer.json()["choices"][0]["message"].clone());
    served.shutdown().await;
    multiply(&directory.dir, count());

    let rest = "[journal]\nresume = \"manual\"";
    let served = directory.start("max_sessions = 100000000", rest).await;
    let tools = json!([{"type": "function", "function": {"name": "calculator"}}]);
    for (model, status) in [("unknown", 404), ("default", 400)] {
        let mut times = Vec::new();
        for at in 0..100 {
            let input = json!({"role": "user", "content": format!("Question {at}?")});
            let all: Vec<_> = messages.iter().chain([&input]).collect();
            let body = json!({"model": model, "messages": all, "tools": tools});
            let began = Instant::now();
            let answer = served.post(CHAT, body).await;
            times.push(began.elapsed());
            assert_eq!(answer.status, status, "{answer:?}");
        }
        println!("history of {MESSAGES} messages, model {model}: {}", percentiles(times));
    }
    served.shutdown().await;
}

/// Joins a response of a session that sleeps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes a minute; its figures are for a quiet machine"]
async fn costs_of_a_join_in_a_long_session() {
    const RECORDS: u64 = 10_000;
    let directory = HostDirectory::new(json!({"responses": [{"text": ["An answer."]}]})).await;
    let served = directory.start("idle_after = \"1ms\"", "").await;
    served.open("long").await;
    while served.snapshot("long").await["seq"].as_u64() < Some(RECORDS) {
        for _ in 0..50 {
            served.run("long", "A question.").await;
        }
    }
    let body =
        json!({"model": "default", "input": "The last question.", "conversation": "conv_long"});
    let response = served.post("/v1/responses", body).await;
    assert_eq!(response.status, 200, "{response:?}");
    let id = response.json()["id"].as_str().unwrap().to_owned();
    let mut times = Vec::new();
    for _ in 0..30 {
        served.asleep().await;
        let path = format!("/v1/responses/{id}?stream=true&starting_after=1");
        let began = Instant::now();
        let joined = served.get(&path).await;
        times.push(began.elapsed());
        assert!(joined.body.contains("response.completed"), "{joined:?}");
    }
    println!("join of the last response after {RECORDS} records: {}", percentiles(times));
    served.shutdown().await;
}
