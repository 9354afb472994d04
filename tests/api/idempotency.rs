//! `Idempotency-Key`: a repeated request has no second effect and gets the same response.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::client::{HttpConnection, HttpResponse, post};
use crate::host_directory::{HostDirectory, HostServer, decision, within};
use serde_json::{Value, json};

const SLEEPY: &str = "idle_after = \"1ms\"";
const RUNS: &str = "/v1/sessions/s/runs";

fn script() -> Value {
    json!({"responses": [
        {"reasoning": ["Hm."], "text": ["Let me "],
         "calls": [{"name": "writes", "arguments": {"id": "a"}}]},
        {"text": ["It is ", "done."]}]})
}

async fn service(script: Value, host: &str, rest: &str) -> (HostDirectory, HostServer) {
    let directory = HostDirectory::new(script).await;
    let served = directory.start(host, rest).await;
    served.open("s").await;
    (directory, served)
}

fn inputs(snapshot: &Value) -> usize {
    let history = snapshot["history"].as_array().unwrap();
    history.iter().filter(|message| message["role"] == "user").count()
}

async fn watched(served: &HostServer, key: &str, body: &Value) -> HttpResponse {
    let headers = format!("accept: text/event-stream\r\nidempotency-key: {key}\r\n");
    served.send(&post(RUNS, &headers, &body.to_string())).await
}

#[tokio::test]
async fn a_repeated_run_request_returns_the_first_runs_response() {
    let (directory, served) = service(script(), SLEEPY, "").await;
    let body = json!({"input": "go", "wait": true});
    let first = served.post_keyed(RUNS, "k-1", &body).await;
    assert_eq!(first.status, 200, "{first:?}");
    // The order of the body's members does not matter.
    let turned = served.post_keyed(RUNS, "k-1", &json!({"wait": true, "input": "go"})).await;
    assert_eq!(turned.json(), first.json());
    served.asleep().await;
    assert_eq!(served.post_keyed(RUNS, "k-1", &body).await.json(), first.json());
    served.run("s", "and then").await;
    assert_eq!(served.post_keyed(RUNS, "k-1", &body).await.json(), first.json());
    let other = served.post_keyed(RUNS, "k-1", &json!({"input": "stop", "wait": true})).await;
    assert_eq!(other.error(), (422, "idempotency_key_reused".to_owned()));
    let without = served.post_keyed(RUNS, "k-1", &json!({"input": "go"})).await;
    assert_eq!(without.error(), (422, "idempotency_key_reused".to_owned()));
    served.shutdown().await;

    let served = directory.start(SLEEPY, "").await;
    assert_eq!(served.post_keyed(RUNS, "k-1", &body).await.json(), first.json());
    let steer = served.post_keyed("/v1/sessions/s/steer", "k-1", &json!({"input": "go"})).await;
    assert_eq!(steer.error(), (422, "idempotency_key_reused".to_owned()));
    assert_eq!(inputs(&served.snapshot("s").await), 2);
    assert_eq!(directory.control.log(), ["start a", "end a"]);
    // The key belongs to one session.
    served.open("t").await;
    let elsewhere = served.post_keyed("/v1/sessions/t/runs", "k-1", &body).await;
    assert_ne!(elsewhere.json()["run_id"], first.json()["run_id"]);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_repeated_run_request_without_wait_gets_the_same_acknowledgement() {
    let (directory, served) = service(script(), "", "").await;
    let body = json!({"input": "go"});
    let (first, second) =
        tokio::join!(served.post_keyed(RUNS, "k", &body), served.post_keyed(RUNS, "k", &body));
    assert_eq!((first.status, first.body.as_str()), (202, second.body.as_str()));
    served.until_snapshot("s", |snapshot| snapshot["state"] == "idle").await;
    assert_eq!(served.post_keyed(RUNS, "k", &body).await.body, first.body);
    assert_eq!(inputs(&served.snapshot("s").await), 1);
    served.crash().await;
    let served = directory.start("", "").await;
    assert_eq!(served.post_keyed(RUNS, "k", &body).await.body, first.body);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn two_waiting_requests_with_one_key_get_the_same_report() {
    let script = json!({"responses": [
        {"text": ["Now ", "then."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]}]});
    let (directory, served) = service(script, "", "").await;
    let body = json!({"input": "go", "wait": true});
    let first = served.post_keyed(RUNS, "k", &body);
    let second = served.post_keyed(RUNS, "k", &body);
    let release = async {
        directory.model.wait_for_gate("middle").await;
        // The second request has arrived once a third with another input is refused.
        let third = served.post_keyed(RUNS, "other", &json!({"input": "x"})).await;
        assert_eq!(third.error(), (409, "run_in_progress".to_owned()));
        directory.model.open_gate("middle");
    };
    let (first, second, ()) = within(async { tokio::join!(first, second, release) }).await;
    assert_eq!((first.status, second.status), (200, 200), "{first:?} {second:?}");
    assert_eq!(first.json(), second.json());
    assert_eq!(directory.model.received(), 1);
    served.shutdown().await;
    directory.verify();
}

/// Returns the reproducible events of a stream: without call states and statistics, and with joined texts.
fn reproducible_events(answer: &HttpResponse) -> Vec<Value> {
    let mut seen: Vec<Value> = Vec::new();
    for event in crate::client::parse_events(&answer.body) {
        if event.id.is_none() {
            continue;
        }
        let is_text = matches!(event.kind.as_str(), "content_delta" | "thinking");
        match seen.last_mut() {
            Some(last) if is_text && last["type"] == event.data["type"] => {
                let text = event.data["text"].as_str().unwrap();
                let both = format!("{}{text}", last["text"].as_str().unwrap());
                last["text"] = both.into();
            }
            Some(_) | None => {
                let mut data = event.data;
                data["id"] = if is_text { Value::Null } else { event.id.into() };
                if is_text {
                    data["timestamp"] = Value::Null;
                }
                seen.push(data);
            }
        }
    }
    seen
}

#[tokio::test]
async fn a_repeated_stream_request_replays_the_whole_run() {
    let (directory, served) = service(script(), SLEEPY, "").await;
    served.run("s", "before").await;
    let mut script = script();
    for response in script["responses"].as_array_mut().unwrap().drain(..) {
        directory.model.push(serde_json::from_value(response).unwrap());
    }
    let body = json!({"input": "go"});
    let first = watched(&served, "k", &body).await;
    assert_eq!(first.status, 200, "{first:?}");
    let all = reproducible_events(&first);
    assert_eq!(all.first().unwrap()["type"], "stream_start", "{all:?}");
    assert_eq!(all.last().unwrap()["type"], "stream_end");
    assert_eq!(reproducible_events(&watched(&served, "k", &body).await), all);
    served.run("s", "behind").await;
    served.asleep().await;
    assert_eq!(reproducible_events(&watched(&served, "k", &body).await), all);
    served.shutdown().await;
    let served = directory.start(SLEEPY, "").await;
    assert_eq!(reproducible_events(&watched(&served, "k", &body).await), all);
    assert_eq!(inputs(&served.snapshot("s").await), 3);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_broken_stream_can_be_requested_again_during_the_run() {
    let script = json!({"responses": [
        {"text": ["Now ", "then."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]}]});
    let (directory, served) = service(script, "", "").await;
    let request = post(
        RUNS,
        "accept: text/event-stream\r\nidempotency-key: k\r\n",
        &json!({"input": "go", "queue": true}).to_string(),
    );
    let mut first = HttpConnection::open(served.addr(), &request).await;
    within(first.until("\"text\":\"Now \"")).await;
    drop(first);
    let mut again = HttpConnection::open(served.addr(), &request).await;
    within(again.until("\"text\":\"Now \"")).await;
    directory.model.open_gate("middle");
    let seen = within(
        again.until_events(|seen| seen.last().is_some_and(|event| event.kind == "stream_end")),
    )
    .await;
    let text: String = seen.iter().filter_map(|event| event.data["text"].as_str()).collect();
    assert!(text.starts_with("Now then."), "{seen:?}");
    served.shutdown().await;
}

#[tokio::test]
async fn a_queued_runs_stream_starts_with_its_own_first_event() {
    let script = json!({"responses": [
        {"text": ["first"], "holds": [{"at": {"chunk": 1}, "name": "middle"}]},
        {"text": ["second"]}]});
    let (directory, served) = service(script, "", "").await;
    served.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    let body = json!({"input": "then", "queue": true});
    let both = async { tokio::join!(watched(&served, "k", &body), watched(&served, "k", &body)) };
    let release = async {
        served.until_snapshot("s", |s| s["queued"].as_array().unwrap().len() == 1).await;
        directory.model.open_gate("middle");
    };
    let ((first, second), ()) = within(async { tokio::join!(both, release) }).await;
    assert_eq!(reproducible_events(&first), reproducible_events(&second));
    assert!(first.body.contains("second") && !first.body.contains("\"first\""), "{first:?}");
    assert_eq!(
        reproducible_events(&watched(&served, "k", &body).await),
        reproducible_events(&first)
    );
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_repeated_steer_is_recorded_once() {
    let script = json!({"responses": [
        {"text": ["Now ", "then."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
        {"text": ["Well."]}]});
    let (directory, served) = service(script, SLEEPY, "").await;
    served.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    let (path, body) = ("/v1/sessions/s/steer", json!({"input": "and more"}));
    let (first, second) =
        tokio::join!(served.post_keyed(path, "k", &body), served.post_keyed(path, "k", &body));
    assert_eq!((first.status, first.body.as_str()), (202, second.body.as_str()));
    let other = served.post_keyed(path, "k", &json!({"input": "less"})).await;
    assert_eq!(other.error(), (422, "idempotency_key_reused".to_owned()));
    directory.model.open_gate("middle");
    served.until_snapshot("s", |snapshot| snapshot["state"] == "idle").await;
    served.asleep().await;
    // The repeated request succeeds even after the run has ended.
    assert_eq!(served.post_keyed(path, "k", &body).await.body, first.body);
    assert_eq!(inputs(&served.snapshot("s").await), 2);
    served.shutdown().await;
    let served = directory.start("", "").await;
    assert_eq!(served.post_keyed(path, "k", &body).await.body, first.body);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_repeated_decision_counts_once_with_and_without_a_key() {
    let asking = "[tools.writes]\napproval = \"before\"";
    let (directory, served) = service(script(), SLEEPY, asking).await;
    served.begin("s", json!({"input": "go"})).await;
    let waiting =
        served.until_snapshot("s", |s| s["current_run"]["approvals"][0].is_object()).await;
    let (tool_id, approve) = decision(&waiting["current_run"]["approvals"][0], "approve");
    let path = format!("/v1/sessions/s/approvals/{tool_id}");
    let (first, second) = tokio::join!(
        served.post_keyed(&path, "k", &approve),
        served.post_keyed(&path, "k", &approve)
    );
    assert_eq!((first.status, first.body.as_str()), (200, second.body.as_str()));
    served.until_snapshot("s", |snapshot| snapshot["state"] == "idle").await;
    served.asleep().await;
    assert_eq!(served.post_keyed(&path, "k", &approve).await.body, first.body);
    assert_eq!(directory.control.log(), ["start a", "end a"]);
    served.shutdown().await;
    let served = directory.start("", asking).await;
    assert_eq!(served.post_keyed(&path, "k", &approve).await.body, first.body);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn an_invalid_key_is_refused_and_starts_no_run() {
    let (_kept, served) = service(json!({}), "", "").await;
    let body = json!({"input": "go"}).to_string();
    let long = "k".repeat(256);
    for header in [
        "idempotency-key: \r\n".to_owned(),
        format!("idempotency-key: {long}\r\n"),
        "idempotency-key: k\u{e9}y\r\n".to_owned(),
        "idempotency-key: a\r\nidempotency-key: b\r\n".to_owned(),
    ] {
        let answer = served.send(&post(RUNS, &header, &body)).await;
        assert_eq!(answer.error(), (400, "invalid_request".to_owned()), "{header:?}");
    }
    assert_eq!(inputs(&served.snapshot("s").await), 0);
    let longest = served.post_keyed(RUNS, &"k".repeat(255), &json!({"input": "go"})).await;
    assert_eq!(longest.status, 202);
    served.shutdown().await;
}

/// A refused request is not stored, so a repetition is handled again.
#[tokio::test]
async fn a_refused_request_can_be_repeated() {
    let script = json!({"responses": [
        {"text": ["first"], "holds": [{"at": {"chunk": 1}, "name": "middle"}]}]});
    let (directory, served) = service(script, "", "").await;
    let body = json!({"input": "then", "wait": true});
    served.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    let refused = served.post_keyed(RUNS, "k", &body).await;
    assert_eq!(refused.error(), (409, "run_in_progress".to_owned()));
    directory.model.open_gate("middle");
    served.until_snapshot("s", |snapshot| snapshot["state"] == "idle").await;
    assert_eq!(served.post_keyed(RUNS, "k", &body).await.status, 200);
    served.shutdown().await;
}
