//! Messages that a client leaves out of later requests, over HTTP.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::client::Service;
use serde_json::{Value, json};

async fn service() -> Service {
    let call = json!({"name": "clock", "arguments": {"zone": "UTC"}});
    let script = json!({"responses": [{"calls": [call]}, {"text": ["It is noon."]},
        {"text": ["Yes."], "repeat": true}]});
    let service = Service::start(script).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    run(&service, "What time is it?").await;
    service
}

async fn run(service: &Service, input: &str) -> Value {
    let body = json!({"input": input, "wait": true});
    let report = service.post("/v1/sessions/s/runs", body).await;
    assert_eq!(report.status, 200, "{}", report.body);
    report.json()
}

async fn last_request(service: &Service) -> String {
    run(service, "And?").await;
    service.model.requests().last().unwrap().body.to_string()
}

async fn change(service: &Service, change: &str, message: Value) -> Value {
    let answer = service.post(&format!("/v1/sessions/s/{change}"), message).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

#[tokio::test]
async fn a_message_is_left_out_of_later_requests_until_it_is_taken_back() {
    let service = service().await;
    let before = last_request(&service).await;
    assert!(before.contains("What time is it?"), "{before}");
    let input = json!({"seq": 2});
    let call = json!({"tool_id": "t1a1c0"});
    for message in [&input, &call] {
        let answer = change(&service, "exclude", message.clone()).await;
        assert_eq!(answer["kind"], "excluded");
        // A repetition changes nothing.
        let again = change(&service, "exclude", message.clone()).await;
        assert_eq!(again["tokens_before"], again["tokens_after"]);
    }
    let without = last_request(&service).await;
    assert!(!without.contains("What time is it?"), "{without}");
    assert!(without.contains("a message of the user, 16 bytes"), "{without}");
    assert!(without.contains("left out by the host: the result of clock"), "{without}");
    assert!(without.contains("$VAR_REF{{t1a1c0}}"), "{without}");
    for message in [&input, &call] {
        assert_eq!(change(&service, "include", message.clone()).await["kind"], "included");
        change(&service, "include", message.clone()).await;
    }
    let after = last_request(&service).await;
    assert!(after.contains("What time is it?") && !after.contains("left out"), "{after}");
    // Each change is one record.
    let records = service.get("/v1/sessions/s/records?limit=1000").await.json();
    let kinds = records["records"].as_array().unwrap().iter().filter_map(|entry| {
        let record = entry.get("record").unwrap_or(entry);
        (record["type"] == "compacted").then(|| record["change"]["kind"].as_str().unwrap())
    });
    let kinds: Vec<_> = kinds.collect();
    assert_eq!(kinds, ["excluded", "excluded", "included", "included"]);
    let page = service.host.telemetry().render();
    let series = "callsheet_prompt_prefix_breaks_total{reason=\"excluded\"} 2";
    assert!(page.contains(series), "{page}");
}

#[tokio::test]
async fn requests_that_name_no_message_are_refused_with_a_reason() {
    let service = service().await;
    for (body, status, code) in [
        (json!({}), 400, "invalid_request"),
        (json!({"seq": 2, "tool_id": "t1a1c0"}), 400, "invalid_request"),
        (json!({"tool_id": "x"}), 400, "invalid_request"),
        (json!({"seq": 1}), 400, "not_an_input"),
        (json!({"seq": 0}), 404, "no_such_message"),
        (json!({"seq": 1000}), 404, "no_such_message"),
        (json!({"tool_id": "t9a1c0"}), 404, "no_such_message"),
    ] {
        for change in ["exclude", "include"] {
            let answer = service.post(&format!("/v1/sessions/s/{change}"), body.clone()).await;
            assert_eq!(answer.error(), (status, code.to_owned()), "{body} {change}");
        }
    }
    let gone = service.post("/v1/sessions/none/exclude", json!({"seq": 1})).await;
    assert_eq!(gone.error(), (404, "no_such_session".to_owned()));
}

#[tokio::test]
async fn a_message_cannot_be_left_out_while_a_run_is_in_progress() {
    let script = json!({"responses": [{"text": ["a ", "b"],
        "holds": [{"at": {"chunk": 2}, "name": "middle"}]}]});
    let service = Service::start(script).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let started = service.post("/v1/sessions/s/runs", json!({"input": "go"})).await;
    assert_eq!(started.status, 202);
    let answer = service.post("/v1/sessions/s/exclude", json!({"seq": 2})).await;
    assert_eq!(answer.error(), (409, "run_in_progress".to_owned()));
    service.model.open_gate("middle");
}
