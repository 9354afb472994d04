//! Runs over HTTP: events, report and acknowledgement; stop, disconnect and shutdown.

use crate::client::Service;
use serde_json::{Value, json};

/// Returns a script with two calls and then an answer.
fn two_calls() -> Value {
    json!({"responses": [
        {"text": ["Let me look."], "calls": [
            {"name": "calculator", "arguments": {"expression": "6 * 7"}},
            {"name": "calculator", "arguments": {"expression": "1 + 1"}}]},
        {"text": ["It is ", "42."]}
    ]})
}

/// Returns a script whose answer pauses in its middle until the test continues it.
fn pausing_script() -> Value {
    json!({"responses": [
        {"text": ["Now ", "then."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
        {"text": ["Later."]}
    ]})
}

async fn service(script: Value) -> Service {
    let service = Service::start(script).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    service
}

#[tokio::test]
async fn an_event_stream_has_every_event_of_the_run() {
    let service = service(two_calls()).await;
    let mut reading = service.watch("s", "What is 6 * 7?").await;
    reading.until("event: stream_end").await;
    reading.until("0\r\n\r\n").await;
    let answer = reading.response();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let events = answer.events();
    for (kind, data) in &events {
        assert_eq!(data["type"], **kind);
        assert_eq!(data["session_id"], "s");
    }
    let of = |kind: &str| -> Vec<&Value> {
        events.iter().filter(|(k, _)| k == kind).map(|(_, data)| data).collect()
    };
    assert_eq!(events.first().unwrap().0, "stream_start");
    assert_eq!(events.last().unwrap().0, "stream_end");
    let results: Vec<&Value> = of("tool_result").iter().map(|r| &r["output_summary"]).collect();
    assert_eq!(results, ["42", "2"]);
    let text: String = of("content_delta").iter().map(|d| d["text"].as_str().unwrap()).collect();
    assert_eq!(text, "Let me look.It is 42.");
    assert_eq!(of("stream_end")[0]["run_end"], "answered");
    assert_eq!(of("stream_end")[0]["text"], "It is 42.");
}

#[tokio::test]
async fn wait_returns_the_report() {
    let service = service(two_calls()).await;
    let answer =
        service.post("/v1/sessions/s/runs", json!({"input": "6 * 7?", "wait": true})).await;
    assert_eq!(answer.status, 200);
    let report = answer.json();
    assert_eq!(report["run_end"], "answered");
    assert_eq!(report["text"], "It is 42.");
    assert_eq!(report["error"], json!(null));
    assert_eq!(report["turns"], 2);
    let results: Vec<&Value> =
        report["calls"].as_array().unwrap().iter().map(|call| &call["result"]).collect();
    assert_eq!(results, ["42", "2"]);
    let (call, usage) = (&report["calls"][1], &report["calls"][1]["usage"]);
    assert_eq!(call["run_id"], report["run_id"]);
    assert!(usage["input_tokens"].as_u64().unwrap() > 0, "{usage}");
    let keys: Vec<&String> = usage.as_object().unwrap().keys().collect();
    let mut expected = ["input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"];
    expected.sort_unstable();
    assert_eq!(keys, expected);
    let roles: Vec<&Value> =
        report["messages"].as_array().unwrap().iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant"]);
    let snapshot = service.get("/v1/sessions/s").await.json();
    assert_eq!(snapshot["history"], report["messages"]);
}

#[tokio::test]
async fn a_run_without_watchers_continues_and_excludes_others() {
    let service = service(pausing_script()).await;
    let started = service.post("/v1/sessions/s/runs", json!({"input": "go"})).await;
    assert_eq!(started.status, 202);
    let started = started.json();
    assert!(started["run_id"].as_str().unwrap().starts_with("run_"), "{started}");
    assert!(started["seq"].as_u64().unwrap() > 0, "{started}");
    service.model.wait_for_gate("middle").await;
    let snapshot = service.get("/v1/sessions/s").await.json();
    assert_eq!(
        (&snapshot["state"], &snapshot["current_run"]["run_id"]),
        (&json!("running"), &started["run_id"])
    );
    let listed = service.get("/v1/sessions?state=running").await.json();
    assert_eq!(listed["sessions"][0]["id"], "s");
    let other = service.post("/v1/sessions/s/runs", json!({"input": "and"})).await;
    assert_eq!(other.error(), (409, "run_in_progress".to_owned()));
    service.model.open_gate("middle");
    until_idle(&service).await;
    let messages = service.get("/v1/sessions/s").await.json()["history"].clone();
    assert_eq!(messages[1]["content"], "Now then.");
}

#[tokio::test]
async fn closing_the_stream_does_not_stop_the_run() {
    let service = service(pausing_script()).await;
    let mut reading = service.watch("s", "go").await;
    reading.until("\"text\":\"Now \"").await;
    drop(reading);
    service.model.wait_for_gate("middle").await;
    assert_eq!(service.get("/v1/sessions/s").await.json()["state"], "running");
    service.model.open_gate("middle");
    until_idle(&service).await;
    let messages = service.get("/v1/sessions/s").await.json()["history"].clone();
    assert_eq!(messages[1]["content"], "Now then.");
}

#[tokio::test]
async fn stop_ends_the_run() {
    let service = service(pausing_script()).await;
    let mut reading = service.watch("s", "go").await;
    reading.until("\"text\":\"Now \"").await;
    let stop = json!({"mode": "now"});
    let stopped = service.post("/v1/sessions/s/stop", stop.clone()).await;
    assert_eq!((stopped.status, stopped.json()["mode"].clone()), (202, json!("now")));
    reading.until("0\r\n\r\n").await;
    let events = reading.response().events();
    let (kind, end) = events.last().unwrap();
    assert_eq!((kind.as_str(), end["run_end"].clone()), ("stream_end", json!("stopped")));
    assert_eq!(service.post("/v1/sessions/s/stop", stop).await.status, 202, "it is idempotent");
    let wrong = service.post("/v1/sessions/s/stop", json!({"mode": "later"})).await;
    assert_eq!(wrong.error(), (400, "invalid_request".to_owned()));
    let none = service.post("/v1/sessions/s/stop", json!({})).await;
    assert_eq!(none.error(), (400, "invalid_request".to_owned()));
}

#[tokio::test]
async fn errors_name_unknown_members_of_a_run_request() {
    let service = service(json!({})).await;
    for (body, key) in [
        (json!({"input": "x", "waits": true}), "unknown member `waits` (known: `input`, `wait`, "),
        (json!({"wait": true}), "`input` is missing"),
        (json!({"input": 3}), "column"),
        (json!({"input": "x", "limits": [1, 2]}), "must be an object, not a list"),
        (json!({"input": "x", "limits": null}), "must be an object, not null"),
        (json!({"input": "x", "limits": {"max_turns": "2"}}), "from 0 to 4294967295, not "),
        (json!({"input": "x", "max_output_tokens": 0}), "from 1 to 4294967295, not 0"),
        (json!({"input": "x", "wait": 1}), "must be true or false, not 1"),
        (json!({"input": "x", "tools": "a"}), "must be a list, not "),
        (json!({"input": "x", "metadata": {"a": true}}), "metadata: must be a string, not true"),
        (json!({"input": "x", "client_tools": [7]}), "must be an object, not 7"),
        (json!({"input": "x", "temperature": "warm"}), "must be a number, not "),
        (json!({"input": "x", "output": {"schema": {}, "mode": "best"}}), "not `best`"),
    ] {
        let answer = service.post("/v1/sessions/s/runs", body.clone()).await;
        assert_eq!(answer.error(), (400, "invalid_request".to_owned()), "{body}");
        assert!(answer.body.contains(key), "{answer:?}");
        for word in ["invalid type", "invalid value", "expected", "field", "variant", "u32"] {
            assert!(!answer.body.contains(word), "{answer:?}");
        }
    }
    assert_eq!(service.model.received(), 0);
}

#[tokio::test]
async fn host_shutdown_ends_runs_streams_and_readiness() {
    let config = "[host]\nshutdown_grace = \"0s\"\n";
    let service = Service::start_with(pausing_script(), config, Default::default()).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let mut reading = service.watch("s", "go").await;
    reading.until("\"text\":\"Now \"").await;
    service.host.shutdown().await;
    reading.until("0\r\n\r\n").await;
    let events = reading.response().events();
    assert_eq!(events.last().unwrap().1["run_end"], "interrupted");
    assert_eq!(service.get("/readyz").await.error(), (503, "not_ready".to_owned()));
    let refused = service.post("/v1/sessions", json!({})).await;
    assert_eq!(refused.error(), (503, "shutting_down".to_owned()));
    let addr = service.addr();
    service.server.shutdown().await;
    assert!(
        tokio::net::TcpStream::connect(addr).await.is_err(),
        "the server does not listen any more"
    );
}

#[tokio::test]
async fn server_shutdown_ends_open_streams() {
    let service = service(pausing_script()).await;
    let mut reading = service.watch("s", "go").await;
    reading.until("\"text\":\"Now \"").await;
    service.server.shutdown().await;
    reading.read_rest().await;
    assert!(!reading.text().contains("stream_end"), "the run goes on");
    assert!(service.host.is_ready());
}

#[tokio::test]
async fn max_concurrent_runs_limits_the_host() {
    let config = "[host]\nmax_concurrent_runs = 1\n";
    let service = Service::start_with(pausing_script(), config, Default::default()).await;
    for id in ["s", "t"] {
        assert_eq!(service.post("/v1/sessions", json!({"id": id})).await.status, 201);
    }
    let go = json!({"input": "go"});
    assert_eq!(service.post("/v1/sessions/s/runs", go.clone()).await.status, 202);
    service.model.wait_for_gate("middle").await;
    let full = service.post("/v1/sessions/t/runs", go).await;
    assert_eq!(full.error(), (429, "host_full".to_owned()));
    assert_eq!(full.header("retry-after"), Some("1"));
    service.model.open_gate("middle");
    until_idle(&service).await;
    let wait = json!({"input": "go", "wait": true});
    let answered = service.post("/v1/sessions/t/runs", wait).await;
    assert_eq!(answered.json()["run_end"], "answered");
}

/// Polls the session until the run has ended.
async fn until_idle(service: &Service) {
    loop {
        let snapshot = service.get("/v1/sessions/s").await.json();
        if snapshot["state"] == "idle" && snapshot["current_run"].is_null() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn overrides_beyond_the_agent_and_empty_inputs_are_refused() {
    let service = service(json!({"responses": [{"text": ["Hi."]}]})).await;
    let run = async |limits: Value| {
        let body = json!({"input": "go", "limits": limits, "wait": true});
        service.post("/v1/sessions/s/runs", body).await
    };
    let (status, code) = run(json!({"max_turns": 99})).await.error();
    assert_eq!((status, code.as_str()), (400, "limit_too_high"));
    assert_eq!(run(json!({"max_turn": 9})).await.error().0, 400);
    let nobody = json!({"input": "go", "model": "nobody"});
    let unknown = service.post("/v1/sessions/s/runs", nobody).await;
    assert_eq!(unknown.error(), (400, "unknown_model".to_owned()));
    assert!(unknown.body.contains("(known: rehearsal)"), "{unknown:?}");
    let empty = service.post("/v1/sessions/s/runs", json!({"input": " "})).await;
    assert_eq!(empty.error(), (400, "empty_input".to_owned()));
    assert_eq!(run(json!({"max_turns": 1})).await.json()["run_end"], "answered");
}
