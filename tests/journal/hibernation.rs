//! Hibernation: idle sessions leave memory, and any request wakes them unchanged.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use crate::client::post;
use crate::host_directory::{HostDirectory, HostServer, decision, id, until, within};
use callsheet::SessionState;
use callsheet::event::EventId;
use callsheet::runtime::RunRequest;
use futures::future::join_all;
use serde_json::{Value, json};

/// Sessions hibernate at once when idle.
const SLEEPY: &str = "idle_after = \"1ms\"";

/// `writes` needs an approval before it runs.
const ASKING: &str = "[tools.writes]\napproval = \"before\"";

fn writes(id: &str) -> Value {
    json!({"name": "writes", "arguments": {"id": id}})
}

/// Makes a hibernated session whose run called tools and set a variable.
async fn hibernated_session() -> (HostDirectory, HostServer, Value) {
    let set = json!({"name": "set_variable", "arguments": {"name": "city", "value": "Ulm"}});
    let directory = HostDirectory::new(json!({"responses": [
        {"reasoning": ["Hm."], "text": ["Let me "], "calls": [set, writes("a")]},
        {"text": ["Done."]}]}))
    .await;
    let served = directory.start(SLEEPY, "").await;
    served.open("s").await;
    served.run("s", "go").await;
    let snapshot = served.snapshot("s").await;
    assert_eq!(snapshot["history"].as_array().unwrap().len(), 5, "{snapshot}");
    assert_eq!(snapshot["variables"]["city"], "Ulm");
    assert_eq!(snapshot["usage"]["input_tokens"].as_u64().map(|n| n > 0), Some(true));
    served.asleep().await;
    (directory, served, snapshot)
}

#[tokio::test]
async fn a_session_wakes_unchanged() {
    let (directory, served, before) = hibernated_session().await;
    assert_eq!(served.host.counts().sessions, 1);
    let after = served.get("/v1/sessions/s").await;
    assert_eq!(after.json(), before);
    served.asleep().await;
    assert_eq!(served.get("/v1/sessions/s").await.body, after.body);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn every_request_wakes_a_session() {
    let (directory, served, before) = hibernated_session().await;
    let steered = served.post("/v1/sessions/s/steer", json!({"input": "x"})).await;
    assert_eq!(steered.error(), (409, "no_run".to_owned()));
    served.asleep().await;
    let stopped = served.post("/v1/sessions/s/stop", json!({"mode": "now"})).await;
    assert_eq!(stopped.status, 202);
    served.asleep().await;
    let resumed = served.post("/v1/sessions/s/resume", json!({})).await;
    assert_eq!(resumed.error(), (409, "not_suspended".to_owned()));
    served.asleep().await;
    let question = json!({"tool_id": "t1a1c1", "arguments_sha256": "0"});
    let (tool_id, body) = decision(&question, "approve");
    let decided = served.post(&format!("/v1/sessions/s/approvals/{tool_id}"), body).await;
    assert_eq!(decided.error(), (404, "no_such_approval".to_owned()));
    served.asleep().await;
    let mut reading = served.events("s", "0").await;
    within(reading.until("stream_end")).await;
    drop(reading);
    served.asleep().await;
    let last = before["seq"].as_u64().unwrap();
    let forked = served.post("/v1/sessions/s/fork", json!({"at": last, "id": "f"})).await;
    assert_eq!(forked.status, 201, "{forked:?}");
    served.asleep().await;
    assert_eq!(served.snapshot("s").await, before, "the requests have not changed it");
    served.asleep().await;
    let report = served.run("s", "again").await;
    assert_eq!(report["run_end"], "answered");
    served.asleep().await;
    assert_eq!(served.delete("/v1/sessions/s").await.status, 204);
    for path in ["/v1/sessions/s", "/v1/sessions/s/events?after=0"] {
        assert_eq!(served.get(path).await.error(), (404, "no_such_session".to_owned()), "{path}");
    }
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn an_unknown_session_is_not_found() {
    let directory = HostDirectory::new(json!({})).await;
    let served = directory.start(SLEEPY, "").await;
    let gone = (404, "no_such_session".to_owned());
    for path in ["", "/events", "/events?after=0"] {
        assert_eq!(served.get(&format!("/v1/sessions/x{path}")).await.error(), gone, "{path}");
    }
    for (path, body) in [
        ("runs", json!({"input": "x"})),
        ("steer", json!({"input": "x"})),
        ("stop", json!({"mode": "now"})),
        ("resume", json!({})),
        ("fork", json!({"at": 1})),
        ("approvals/t1a1c0", json!({"decision": "approve", "arguments_sha256": "0"})),
    ] {
        let answer = served.post(&format!("/v1/sessions/x/{path}"), body).await;
        assert_eq!(answer.error(), gone, "{path}");
    }
    assert_eq!(served.delete("/v1/sessions/x").await.error(), gone);
    let counts = served.host.counts();
    assert_eq!((counts.sessions, counts.awake), (0, 0));
    served.shutdown().await;
}

#[tokio::test]
async fn concurrent_requests_wake_a_session_once() {
    let (directory, served, before) = hibernated_session().await;
    let answers = join_all((0..64).map(|_| served.get("/v1/sessions/s"))).await;
    assert!(answers.iter().all(|answer| answer.json() == before));
    let runs = (0..16).map(|n| {
        let body = json!({"input": format!("input {n}"), "queue": true, "wait": true});
        served.post("/v1/sessions/s/runs", body)
    });
    served.asleep().await;
    let reports = join_all(runs).await;
    assert!(reports.iter().all(|report| report.status == 200), "{reports:?}");
    served.shutdown().await;
    directory.verify();
}

/// Makes a session whose run waits for an approval.
async fn session_waiting_for_approval(
    host: &str,
    rest: &str,
) -> (HostDirectory, HostServer, Value) {
    let script = json!({"responses": [
        {"text": ["May I?"], "calls": [writes("a")]}, {"text": ["Done."]}]});
    let directory = HostDirectory::new(script).await;
    let served = directory.start(host, rest).await;
    served.open("s").await;
    served.begin("s", json!({"input": "go"})).await;
    let waiting = served.until_snapshot("s", is_asking).await;
    (directory, served, waiting)
}

fn is_asking(snapshot: &Value) -> bool {
    snapshot["current_run"]["approvals"].as_array().is_some_and(|waiting| !waiting.is_empty())
}

fn is_idle(snapshot: &Value) -> bool {
    snapshot["state"] == "idle"
}

#[tokio::test]
async fn a_run_that_waits_for_approval_hibernates_until_the_decision() {
    let (directory, served, waiting) = session_waiting_for_approval(SLEEPY, ASKING).await;
    let session = served.host.session(&id("s"));
    for _ in 0..3 {
        served.asleep().await;
        assert_eq!(served.host.counts().runs, 0);
        assert_eq!(session.state(), SessionState::Waiting, "its run is open");
        let listed = served.get("/v1/sessions").await.json();
        assert_eq!(listed["sessions"][0]["state"], "waiting");
        assert_eq!(served.snapshot("s").await, waiting, "the approval request is unchanged");
    }
    served.asleep().await;
    let (tool_id, approve) = decision(&waiting["current_run"]["approvals"][0], "approve");
    let path = format!("/v1/sessions/s/approvals/{tool_id}");
    let decided = served.post(&path, approve.clone()).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    let ended = served.until_snapshot("s", is_idle).await;
    assert_eq!(ended["history"].as_array().unwrap().len(), 4);
    assert_eq!(directory.control.log(), ["start a", "end a"]);
    served.asleep().await;
    assert_eq!(session.state(), SessionState::Hibernated, "its run has ended");
    assert_eq!(
        served.post(&path, approve).await.status,
        200,
        "a repeated decision is not an error"
    );
    served.asleep().await;
    let (_, reject) = decision(&waiting["current_run"]["approvals"][0], "reject");
    let again = served.post(&path, reject).await;
    assert_eq!(again.error(), (409, "already_decided".to_owned()));
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn with_manual_resume_a_hibernated_run_is_not_suspended() {
    let manual = format!("{ASKING}\n[journal]\nresume = \"manual\"");
    let (directory, served, waiting) = session_waiting_for_approval(SLEEPY, &manual).await;
    served.asleep().await;
    assert_eq!(served.snapshot("s").await, waiting);
    served.asleep().await;
    let steered = served.post("/v1/sessions/s/steer", json!({"input": "and more"})).await;
    assert_eq!(steered.status, 202, "{steered:?}");
    let (tool_id, approve) = decision(&waiting["current_run"]["approvals"][0], "approve");
    let decided = served.post(&format!("/v1/sessions/s/approvals/{tool_id}"), approve).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    served.until_snapshot("s", is_idle).await;
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_waiting_request_gets_the_report_of_a_run_that_hibernated() {
    let (directory, served, waiting) = session_waiting_for_approval(SLEEPY, ASKING).await;
    served.asleep().await;
    let (tool_id, approve) = decision(&waiting["current_run"]["approvals"][0], "approve");
    // Queued behind a hibernated run.
    let waiting = async {
        let body = json!({"input": "and then", "queue": true, "wait": true});
        served.post("/v1/sessions/s/runs", body).await
    };
    let deciding = async {
        served.until_snapshot("s", |s| s["queued"].as_array().unwrap().len() == 1).await;
        served.post(&format!("/v1/sessions/s/approvals/{tool_id}"), approve).await
    };
    let (report, decided) = tokio::join!(waiting, deciding);
    assert_eq!((report.status, decided.status), (200, 200), "{report:?} {decided:?}");
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn inputs_queued_behind_a_hibernated_run_start_after_it() {
    let (directory, served, waiting) = session_waiting_for_approval(SLEEPY, ASKING).await;
    let second = served.begin("s", json!({"input": "second", "queue": true})).await;
    let third = served.begin("s", json!({"input": "third", "queue": true})).await;
    served.asleep().await;
    let queued = served.snapshot("s").await["queued"].clone();
    assert_eq!(
        queued,
        json!([
        {"run_id": second, "input": "second"}, {"run_id": third, "input": "third"}])
    );
    served.asleep().await;
    let (tool_id, reject) = decision(&waiting["current_run"]["approvals"][0], "reject");
    let decided = served.post(&format!("/v1/sessions/s/approvals/{tool_id}"), reject).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    let inputs = |snapshot: &Value| {
        let users = |message: &&Value| message["role"] == "user";
        snapshot["history"].as_array().unwrap().iter().filter(users).count()
    };
    served.until_snapshot("s", |snapshot| is_idle(snapshot) && inputs(snapshot) == 3).await;
    assert_eq!(directory.control.log(), Vec::<String>::new());
    served.asleep().await;
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn an_approval_expires_during_hibernation() {
    let asking_briefly = format!("{ASKING}\napproval_timeout = \"700ms\"");
    let (directory, served, _) = session_waiting_for_approval(SLEEPY, &asking_briefly).await;
    served.asleep().await;
    // No request comes; the host wakes the session.
    let stored = || directory.entries("s");
    let ended = |entry: &callsheet::journal::JournalEntry| {
        matches!(entry.record, callsheet::record::Record::RunEnded { .. })
    };
    until("the run ends", || stored().iter().any(ended)).await;
    let history = served.snapshot("s").await["history"].clone();
    assert_eq!(history[2]["metadata"]["kind"], "approval_expired", "{history}");
    assert_eq!(directory.control.log(), Vec::<String>::new());
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_watched_session_does_not_hibernate() {
    let (_kept, served, _) = hibernated_session().await;
    served.open("other").await;
    let mut reading = served.events("s", "0").await;
    within(reading.until("stream_end")).await;
    // The other session hibernates long after this one could have.
    until("the other one sleeps", || served.host.counts().awake == 1).await;
    served.run("s", "again").await;
    let seen =
        within(reading.until_events(|seen| {
            seen.iter().filter(|event| event.kind == "stream_end").count() == 2
        }))
        .await;
    assert!(seen.iter().all(|event| event.kind != "error"), "{seen:?}");
    drop(reading);
    served.asleep().await;
    served.shutdown().await;
}

#[tokio::test]
async fn a_slow_reader_of_the_past_does_not_see_the_stream_end() {
    let (_kept, served, _) = hibernated_session().await;
    let session = served.host.session(&id("s"));
    let mut watch = within(session.watch(EventId::default())).await.unwrap();
    let first = within(futures::StreamExt::next(&mut watch)).await;
    served.open("other").await;
    until("the other one sleeps", || served.host.counts().awake <= 1).await;
    let mut seen = vec![first.unwrap()];
    while !is_end(seen.last().unwrap()) {
        seen.push(within(futures::StreamExt::next(&mut watch)).await.expect("it goes on"));
    }
    let report = within(session.run("again")).await.unwrap();
    loop {
        let next = within(futures::StreamExt::next(&mut watch)).await.expect("it goes on");
        if is_end(&next) {
            let callsheet::telemetry::FeedItem::Event(published) = next else { unreachable!() };
            assert_eq!(published.run, report.run_id);
            break;
        }
    }
    served.shutdown().await;
}

fn is_end(delivery: &callsheet::telemetry::FeedItem) -> bool {
    let callsheet::telemetry::FeedItem::Event(published) = delivery else {
        panic!("{delivery:?}");
    };
    published.public().any(|event| event.kind == "stream_end")
}

#[tokio::test]
async fn a_session_of_a_removed_agent_names_it_and_can_be_deleted() {
    let directory = HostDirectory::new(json!({})).await;
    let agents = "[agents.old]\n[agents.new]";
    let served = directory.start(SLEEPY, agents).await;
    let opened = served.post("/v1/sessions", json!({"id": "s", "agent": "old"})).await;
    assert_eq!(opened.status, 201);
    served.run("s", "go").await;
    served.shutdown().await;
    let served = directory.start(SLEEPY, "[agents.new]").await;
    for answer in [
        served.get("/v1/sessions/s").await,
        served.post("/v1/sessions/s/runs", json!({"input": "x"})).await,
        served.post("/v1/sessions/s/fork", json!({"at": 1})).await,
        served.get("/v1/sessions/s/events?after=0").await,
    ] {
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(answer.error(), (409, "agent_gone".to_owned()), "{message}");
        assert!(message.contains("\"old\""), "{message}");
    }
    let listed = served.get("/v1/sessions").await.json();
    assert_eq!(listed["sessions"][0]["id"], "s");
    assert_eq!(served.delete("/v1/sessions/s").await.status, 204);
    assert_eq!(served.get("/v1/sessions").await.json()["sessions"], json!([]));
    assert_eq!(served.host.counts().sessions, 0);
    served.shutdown().await;
}

/// Sends requests of every kind while the session hibernates and wakes repeatedly.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waking_neither_loses_nor_doubles_requests() {
    const ROUNDS: usize = 10;
    let directory = HostDirectory::new(json!({})).await;
    let served =
        Arc::new(directory.start(&format!("{SLEEPY}\nmax_queued_inputs = 1000"), "").await);
    served.open("s").await;
    for round in 0..ROUNDS {
        served.asleep().await;
        let runs = (0..6).map(|n| {
            let input = format!("round {round} input {n}");
            let session = served.host.session(&id("s"));
            let request = RunRequest::from(input).with(|new| new.queue = true);
            async move { session.run(request).await.unwrap().run_id }
        });
        let looks = (0..6).map(|_| served.get("/v1/sessions/s"));
        let stops = (0..2).map(|_| {
            let request = post("/v1/sessions/s/stop", "", "{\"mode\":\"after_turn\"}");
            let served = &served;
            async move { served.send(&request).await }
        });
        let (ids, looks, stops) =
            within(async { tokio::join!(join_all(runs), join_all(looks), join_all(stops)) }).await;
        assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 6);
        assert!(looks.iter().all(|look| look.status == 200), "{looks:?}");
        assert!(stops.iter().all(|stop| stop.status == 202), "{stops:?}");
    }
    let snapshot = served.snapshot("s").await;
    let users = snapshot["history"].as_array().unwrap().iter();
    let mut inputs: Vec<String> = users
        .filter(|message| message["role"] == "user")
        .map(|message| message["content"].to_string())
        .collect();
    assert_eq!(inputs.len(), ROUNDS * 6);
    inputs.sort_unstable();
    inputs.dedup();
    assert_eq!(inputs.len(), ROUNDS * 6);
    Arc::into_inner(served).unwrap().shutdown().await;
    directory.verify();
}
