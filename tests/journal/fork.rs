//! Forks of a session, at every record.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::host_directory::{HostDirectory, HostServer, decision};
use callsheet::config::{Config, RunOverrides};
use callsheet::record::{JournalEntry, Record, Seq};
use callsheet::session::{RunNext, RunStage, Session, SessionRunRules, StoredSession};
use callsheet::types::RunEnd;
use serde_json::{Value, json};

const ASKING: &str = "[agents.default]\nallow_overrides = true";

/// Makes a session with calls, a variable, an approval, a steered and a queued input, and a stopped
/// run.
async fn session_with_all_records() -> (HostDirectory, HostServer) {
    let set = json!({"name": "set_variable", "arguments": {"name": "city", "value": "Ulm"}});
    let writes = |id: &str| json!({"name": "writes", "arguments": {"id": id}});
    let directory = HostDirectory::new(json!({"responses": [
        {"reasoning": ["Hm."], "text": ["Let me "], "calls": [set, writes("a")]},
        {"text": ["Done."]},
        {"text": ["May I?"], "calls": [writes("b"), writes("c")]},
        {"text": ["Well."], "holds": [{"at": {"chunk": 1}, "name": "steer"}]},
        {"text": ["Well then."]},
        {"text": ["Never"], "holds": [{"at": {"chunk": 2}, "name": "stop"}]}]}))
    .await;
    let served = directory.start("", ASKING).await;
    served.open("s").await;
    served.run("s", "go").await;
    let asking = json!({"input": "ask", "approval": "before"});
    assert_eq!(served.post_keyed("/v1/sessions/s/runs", "k", &asking).await.status, 202);
    for _ in 0..2 {
        let waiting =
            served.until_snapshot("s", |s| s["current_run"]["approvals"][0].is_object()).await;
        let request = &waiting["current_run"]["approvals"][0];
        let (tool_id, approve) = decision(request, "approve");
        let path = format!("/v1/sessions/s/approvals/{tool_id}");
        assert_eq!(served.post(&path, approve).await.status, 200);
        let answered = |s: &Value| s["current_run"]["approvals"][0]["tool_id"] != tool_id.as_str();
        served.until_snapshot("s", answered).await;
    }
    directory.model.wait_for_gate("steer").await;
    served.begin("s", json!({"input": "last", "queue": true})).await;
    let steered = served.post("/v1/sessions/s/steer", json!({"input": "and more"})).await;
    assert_eq!(steered.status, 202);
    directory.model.open_gate("steer");
    directory.model.wait_for_gate("stop").await;
    let stopped = served.post("/v1/sessions/s/stop", json!({"mode": "now"})).await;
    assert_eq!(stopped.status, 202);
    served.until_snapshot("s", |snapshot| snapshot["state"] == "idle").await;
    (directory, served)
}

fn session_rules(_: &RunOverrides) -> SessionRunRules {
    Config::default().agents["default"].limits.clone().into()
}

fn stored(entries: &[JournalEntry]) -> Session {
    StoredSession::read(entries, &session_rules).unwrap().session
}

fn displayed(session: &Session) -> Value {
    serde_json::to_value(session.history().display_messages()).unwrap()
}

#[tokio::test]
async fn a_fork_at_any_record_has_the_state_of_that_record() {
    let (directory, served) = session_with_all_records().await;
    let before = served.snapshot("s").await;
    let all = directory.entries("s");
    let log = directory.control.log();
    assert_eq!(log.len(), 6, "{log:?}");
    assert!(all.len() > 25, "{}", all.len());
    for at in 1..=all.len() {
        let id = format!("f{at}");
        let body = json!({"at": at, "id": id});
        let forked = served.post("/v1/sessions/s/fork", body).await;
        assert_eq!(forked.status, 201, "{at}: {forked:?}");
        assert_eq!(forked.header("location"), Some(format!("/v1/sessions/{id}").as_str()));
        let snapshot = served.until_snapshot(&id, |s| s["state"] == "idle").await;
        assert_eq!(snapshot["queued"], json!([]));
        let entries = directory.entries(&id);
        assert_eq!(entries[..at], all[..at], "{at}");
        let from =
            Record::SessionForked { from: crate::host_directory::id("s"), at: Seq(at as u64) };
        assert_eq!(entries[at].record, from);
        let prefix = stored(&all[..at]);
        let ends = |entry: &JournalEntry| matches!(entry.record, Record::RunEnded { .. });
        let ended: Vec<_> = entries[at..].iter().filter(|entry| ends(entry)).collect();
        if let Some(run) = prefix.run() {
            assert_eq!(ended.len(), 1, "{at}: the open run ends");
            let Record::RunEnded { end, .. } = &ended[0].record else { unreachable!() };
            // A run whose last turn is over ends as it would have ended.
            let expected = match &run.stage {
                RunStage::FollowUp(follow_up) => match &follow_up.next {
                    RunNext::End { end, .. } => *end,
                    RunNext::Turn(_) | RunNext::Instruct(_) => RunEnd::Stopped,
                },
                RunStage::Ready(_) | RunStage::Turn(_) => RunEnd::Stopped,
            };
            assert_eq!(*end, expected, "{at}");
        } else {
            assert_eq!(entries.len(), at + 1, "{at}: nothing else happens");
            assert_eq!(snapshot["history"], displayed(&prefix), "{at}");
        }
        // The fork starts with the original's messages, and every call has a result.
        let history = snapshot["history"].as_array().unwrap();
        let displayed_messages = displayed(&prefix);
        let displayed_messages = displayed_messages.as_array().unwrap();
        assert!(
            history.len() >= displayed_messages.len()
                && history[..displayed_messages.len()] == displayed_messages[..],
            "{at}"
        );
        let count = |role: &str| history.iter().filter(|m| m["role"] == role).count();
        let calls = history.iter().filter_map(|m| m["tool_calls"].as_array()).map(Vec::len);
        assert_eq!(calls.sum::<usize>(), count("tool"), "{at}: {history:?}");
    }
    assert_eq!(directory.control.log(), log, "no effect is repeated");
    assert_eq!(served.snapshot("s").await, before, "the original is unchanged");
    assert_eq!(directory.entries("s"), all);
    directory.verify();
    for at in 1..=all.len() {
        assert_eq!(served.run(&format!("f{at}"), "go on").await["run_end"], "answered", "{at}");
    }
    served.shutdown().await;
    directory.verify();
    let served = directory.start("", ASKING).await;
    assert_eq!(served.snapshot("s").await, before);
    assert_eq!(served.host.counts().sessions, all.len() + 1);
    served.shutdown().await;
}

#[tokio::test]
async fn a_fork_at_a_failure_or_a_review_ends_as_its_records_say() {
    let writes = json!({"name": "writes", "arguments": {"id": "a"}});
    let directory = HostDirectory::new(json!({"responses": [
        {"status": 400}, {"calls": [writes]}, {"text": ["Done."]}]}))
    .await;
    let served = directory.start("", ASKING).await;
    served.open("s").await;
    served.begin("s", json!({"input": "go"})).await;
    served.until_snapshot("s", |snapshot| snapshot["state"] == "idle").await;
    served.begin("s", json!({"input": "ask", "approval": "after"})).await;
    let asks = |s: &Value| s["current_run"]["approvals"][0].is_object();
    let waiting = served.until_snapshot("s", asks).await;
    let (tool_id, approve) = decision(&waiting["current_run"]["approvals"][0], "approve");
    let path = format!("/v1/sessions/s/approvals/{tool_id}");
    assert_eq!(served.post(&path, approve).await.status, 200);
    served.until_snapshot("s", |snapshot| snapshot["state"] == "idle").await;
    let all = directory.entries("s");
    for entry in &all {
        let (id, at) = (format!("f{}", entry.seq.0), entry.seq.0);
        let forked = served.post("/v1/sessions/s/fork", json!({"at": at, "id": id})).await;
        assert_eq!(forked.status, 201, "{at}: {forked:?}");
        let fork = served.until_snapshot(&id, |s| s["state"] == "idle").await;
        if matches!(entry.record, Record::ApprovalGiven { .. }) {
            let history = fork["history"].as_array().unwrap();
            assert_eq!(history.last().unwrap()["content"], "done a", "{fork}");
        }
    }
    let has = |is: fn(&Record) -> bool| all.iter().any(|entry| is(&entry.record));
    assert!(has(|record| matches!(record, Record::AttemptFailed { .. })));
    assert!(has(|record| matches!(record, Record::ApprovalGiven { .. })));
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn an_impossible_fork_is_refused_with_a_reason() {
    let (directory, served) = session_with_all_records().await;
    served.open("taken").await;
    let last = directory.entries("s").len();
    let path = "/v1/sessions/s/fork";
    for (body, status, code) in [
        (json!({"at": 0}), 400, "no_such_record"),
        (json!({"at": last + 1}), 400, "no_such_record"),
        (json!({"at": -1}), 400, "invalid_request"),
        (json!({"id": "x"}), 400, "invalid_request"),
        (json!({"at": 1, "id": "taken"}), 409, "session_exists"),
        (json!({"at": 1, "id": "s"}), 409, "session_exists"),
        (json!({"at": 1, "id": "a b"}), 400, "invalid_session_id"),
    ] {
        let answer = served.post(path, body.clone()).await;
        assert_eq!(answer.error(), (status, code.to_owned()), "{body}");
    }
    let unknown = served.post("/v1/sessions/x/fork", json!({"at": 1, "id": "y"})).await;
    assert_eq!(unknown.error(), (404, "no_such_session".to_owned()));
    assert_eq!(served.get("/v1/sessions/y").await.status, 404);
    assert_eq!(served.host.counts().sessions, 2);
    let unnamed = served.post(path, json!({"at": 1})).await;
    assert_eq!(unnamed.status, 201);
    assert!(unnamed.json()["id"].as_str().unwrap().starts_with("ses_"));
    served.shutdown().await;
}

#[tokio::test]
async fn idempotency_keys_of_the_original_are_unused_in_the_fork() {
    let (directory, served) = session_with_all_records().await;
    let last = directory.entries("s").len();
    let forked = served.post("/v1/sessions/s/fork", json!({"at": last, "id": "f"})).await;
    assert_eq!(forked.status, 201);
    let body = json!({"input": "another", "wait": true});
    let answer = served.post_keyed("/v1/sessions/f/runs", "k", &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    served.shutdown().await;
    let served = directory.start("", ASKING).await;
    let again = served.post_keyed("/v1/sessions/f/runs", "k", &body).await;
    assert_eq!(again.json()["run_id"], answer.json()["run_id"]);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_session_can_be_forked_during_a_run() {
    let writes = json!({"name": "slow_write", "arguments": {"id": "a"}});
    let directory =
        HostDirectory::new(json!({"responses": [{"calls": [writes]}, {"text": ["Done."]}]})).await;
    let served = directory.start("", "").await;
    served.open("s").await;
    served.begin("s", json!({"input": "go"})).await;
    directory.control.until_logged("start a").await;
    let at = served.snapshot("s").await["seq"].clone();
    let forked = served.post("/v1/sessions/s/fork", json!({"at": at, "id": "f"})).await;
    assert_eq!(forked.status, 201, "{forked:?}");
    let fork = served.until_snapshot("f", |snapshot| snapshot["state"] == "idle").await;
    let history = fork["history"].as_array().unwrap();
    assert_eq!(history.len(), 3, "{history:?}");
    directory.control.release("a");
    served.until_snapshot("s", |snapshot| snapshot["state"] == "idle").await;
    assert_eq!(directory.control.log(), ["start a", "end a"]);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_large_fork_does_not_stay_in_memory() {
    let directory = HostDirectory::new(json!({"responses": [{"text": ["Read."]}]})).await;
    let served = directory.start("", "").await;
    served.open("s").await;
    served.run("s", &"word ".repeat(300_000)).await;
    let forked = served.post("/v1/sessions/s/fork", json!({"at": 6, "id": "fork"})).await;
    assert_eq!(forked.status, 201);
    let deadline = tokio::time::Instant::now() + crate::support::PATIENCE;
    loop {
        let listed = served.get("/v1/sessions").await.json();
        let sessions = listed["sessions"].as_array().unwrap();
        let fork = sessions.iter().find(|session| session["id"] == "fork").unwrap();
        if fork["state"] == "hibernated" {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{listed}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
