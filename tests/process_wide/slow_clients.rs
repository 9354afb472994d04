//! Clients that do not finish their requests, or do not read their answers. They cost little, and the host
//! still serves other clients.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::Duration;

use crate::client::{HttpConnection, Service, ended_runs, post};
use callsheet::server::ServerOptions;
use serde_json::{Value, json};

/// Held by the tests that need much memory: one of them measures it.
static LARGE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const HALF_A_REQUEST: &str = "GET /healthz HTTP/1.1\r\nhost: local";

const HALF_A_BODY: &str = "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\n\
                           content-type: application/json\r\ncontent-length: 100\r\n\r\n{";

/// Time for what should happen soon. A test that fails waits this long.
const SOON: Duration = Duration::from_secs(30);

/// Returns the value of a metric.
async fn metric(service: &Service, name: &str) -> f64 {
    let page = service.get("/metrics").await.body;
    let line = page.lines().find(|line| line.split([' ', '{']).next() == Some(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("the metric has a value")
}

/// Opens a session whose history has `messages` messages of `bytes` bytes each.
async fn open_large(service: &Service, messages: usize, bytes: usize) {
    let text = "x".repeat(bytes);
    let message = |index| {
        let role = if index % 2 == 0 { "user" } else { "assistant" };
        json!({"role": role, "content": format!("{index} {text}")})
    };
    let messages: Vec<Value> = (0..messages).map(message).collect();
    let opened = service.post("/v1/sessions", json!({"id": "large", "messages": messages})).await;
    assert_eq!(opened.status, 201, "{}", opened.body);
}

#[tokio::test]
async fn half_sent_requests_are_closed_and_other_clients_are_served() {
    let options = ServerOptions::default().with(|options| {
        options.max_connections = 8;
        options.header_read_timeout = Duration::from_secs(1);
    });
    let service = Service::start_with(json!({}), "", options).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(HttpConnection::open(service.addr(), HALF_A_REQUEST).await);
    }
    for _ in 0..20 {
        assert_eq!(service.get("/healthz").await.status, 200);
    }
    let refused = metric(&service, "callsheet_connections_refused_total").await;
    assert!(refused >= 12.0, "{refused}");
    assert!(metric(&service, "callsheet_connections").await <= 8.0);
    for mut connection in silent {
        let closed = tokio::time::timeout(SOON, connection.read_rest()).await;
        assert!(closed.is_ok(), "a half-sent request is closed after header_read_timeout");
    }
    assert_eq!(metric(&service, "callsheet_connections").await, 1.0);
}

#[tokio::test]
async fn half_sent_bodies_are_closed_and_other_clients_are_served() {
    let options = ServerOptions::default().with(|options| options.max_connections = 8);
    let service = Service::start_with(json!({}), "", options).await;
    // The first request of a connection, and a later one.
    let second = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n{HALF_A_BODY}");
    let mut silent = Vec::new();
    for _ in 0..8 {
        let mut connection = HttpConnection::open(service.addr(), &second).await;
        connection.until("{\"status\"").await;
        silent.push(connection);
    }
    let served = async {
        while service.get("/healthz").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, served).await.expect("one of them makes room");
    for _ in 0..20 {
        silent.push(HttpConnection::open(service.addr(), HALF_A_BODY).await);
    }
    for _ in 0..20 {
        assert_eq!(service.get("/healthz").await.status, 200);
    }
    let refused = metric(&service, "callsheet_connections_refused_total").await;
    assert!(refused >= 20.0, "{refused}");
}

#[tokio::test]
async fn a_connection_with_a_request_keeps_its_place() {
    let options = ServerOptions::default().with(|options| options.max_connections = 2);
    let service = Service::start_with(json!({}), "", options).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let watch = "GET /v1/sessions/s/events HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut first = HttpConnection::open(service.addr(), watch).await;
    let run = post("/v1/sessions/s/runs", "accept: text/event-stream\r\n", "{\"input\":\"go\"}");
    let mut second = HttpConnection::open(service.addr(), &run).await;
    first.until("text/event-stream").await;
    second.until("text/event-stream").await;
    let refused = service.get("/healthz").await;
    assert_eq!(refused.error(), (503, "too_many_connections".to_owned()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    drop(first);
    let again = async {
        while service.get("/healthz").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, again).await.expect("a place is free again");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected_and_frees_its_place() {
    let _alone = LARGE.lock().await;
    let options = ServerOptions::default().with(|options| {
        options.write_timeout = Duration::from_millis(500);
        options.max_large_answers = 2;
        options.body_bytes_max = 64 << 20;
    });
    let service = Service::start_with(json!({}), "", options).await;
    // Larger than what the system buffers for a connection.
    open_large(&service, 40, 1 << 20).await;
    let get = "GET /v1/sessions/large HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut unread = Vec::new();
    for _ in 0..2 {
        unread.push(HttpConnection::open(service.addr(), get).await);
    }
    let third = async {
        loop {
            let refused = service.get("/v1/sessions/large?limit=3").await;
            if refused.status == 503 {
                return refused;
            }
        }
    };
    let refused = tokio::time::timeout(SOON, third).await.expect("both places are taken");
    assert_eq!(refused.error().1, "too_many_large_answers");
    assert_eq!(refused.header("retry-after"), Some("1"));
    // A small answer needs no place.
    assert_eq!(service.get("/v1/sessions/large?after=37").await.status, 503);
    assert_eq!(service.get("/v1/sessions/large?after=39").await.status, 200);
    let freed = async {
        while service.get("/v1/sessions/large?limit=2").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, freed).await.expect("clients that do not read are disconnected");
    drop(unread);
}

/// Opens connections that take all places of large answers: they ask for a path, and read on only until `begin`.
async fn hold_places(service: &Service, path: &str, begin: &str) -> Vec<HttpConnection> {
    let get = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut unread = Vec::new();
    for _ in 0..2 {
        let mut connection = HttpConnection::open(service.addr(), &get).await;
        connection.until(begin).await;
        unread.push(connection);
    }
    unread
}

/// Options with two places of large answers, and room for a body that no system buffers for a connection.
fn two_places() -> ServerOptions {
    ServerOptions::default().with(|options| {
        options.max_large_answers = 2;
        options.body_bytes_max = 64 << 20;
    })
}

#[tokio::test]
async fn answers_that_clients_do_not_read_share_a_bounded_memory() {
    let _alone = LARGE.lock().await;
    let service = Service::start(json!({})).await;
    // One message, so that the answer is just small enough to be no large one, and is encoded as a whole.
    open_large(&service, 1, 1_000_000).await;
    let get = "GET /v1/sessions/large HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut unread = Vec::new();
    for _ in 0..60 {
        unread.push(HttpConnection::open(service.addr(), get).await);
    }
    let refusal = async {
        loop {
            let answer = service.get("/v1/sessions/large").await;
            if answer.status == 503 {
                return answer;
            }
        }
    };
    let refused = tokio::time::timeout(SOON, refusal).await.expect("the memory is taken");
    assert_eq!(refused.error().1, "too_many_large_answers");
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Small answers need no room, and pages of metrics have room of their own.
    assert_eq!(service.get("/v1/sessions/large?after=0").await.status, 200);
    let page = service.get("/metrics").await;
    assert_eq!(page.status, 200);
    assert!(page.body.len() > 32 << 10, "the page is not small: {}", page.body.len());
    drop(unread);
    let freed = async {
        while service.get("/v1/sessions/large").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, freed).await.expect("the memory is free again");
}

#[tokio::test]
async fn unread_pages_of_records_take_places_and_the_report_of_a_run_waits_for_one() {
    let _alone = LARGE.lock().await;
    let script = json!({"responses": [{"text": ["0123456789abcdef".repeat(2 << 16)]}]});
    let service = Service::start_with(script, "", two_places()).await;
    // One record with all messages, which the memory of all answers holds twice.
    open_large(&service, 16, 1 << 20).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let unread = hold_places(&service, "/v1/sessions/large/records", "{\"records\":[").await;
    let refused = service.get("/v1/sessions/large/records").await;
    assert_eq!(refused.error(), (503, "too_many_large_answers".to_owned()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(service.get("/v1/sessions/large").await.status, 503);
    // Small answers need no place.
    assert_eq!(service.get("/v1/sessions/large/records?after=1").await.json()["next"], json!(null));
    let listed = service.get("/v1/sessions").await.json();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 2);
    // When the run has ended, its report waits until the other clients are gone.
    let run = service.post("/v1/sessions/s/runs", json!({"input": "x", "wait": true}));
    let freed = async {
        while service.get("/v1/sessions/s?limit=1").await.json()["next"] != 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(unread);
    };
    let both = async { tokio::join!(run, freed) };
    let (report, ()) = tokio::time::timeout(SOON, both).await.expect("the report arrives");
    assert_eq!(report.status, 200);
    assert_eq!(report.json()["text"].as_str().unwrap().len(), 2 << 20);
}

#[tokio::test]
async fn waiting_inputs_are_a_part_of_a_large_answer() {
    let held = json!({"text": ["Fine."], "holds": [{"at": "finish", "name": "first"}]});
    let service = Service::start_with(json!({"responses": [held]}), "", two_places()).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let started = service.post("/v1/sessions/s/runs", json!({"input": "x"})).await;
    assert_eq!(started.status, 202, "{}", started.body);
    service.model.wait_for_gate("first").await;
    // Inputs that together are sent at once, encoded apart, and sent in pieces.
    let (mut expected, bytes) = (Vec::new(), [100_000, 300_000, 40 << 20]);
    for (index, bytes) in bytes.into_iter().enumerate() {
        expected.push(format!("{index}{}", "y".repeat(bytes)));
        let run = json!({"input": expected[index], "queue": true});
        assert_eq!(service.post("/v1/sessions/s/runs", run).await.status, 202);
        let page = service.get("/v1/sessions/s?limit=1").await.json();
        let queued = page["queued"].as_array().unwrap().iter().map(|queued| &queued["input"]);
        assert!(queued.eq(&expected), "all inputs are shown");
        assert_eq!(page["current_run"]["run_id"], started.json()["run_id"]);
        assert_eq!(page["usage"]["input_tokens"], 0);
    }
    let unread = hold_places(&service, "/v1/sessions/s?limit=1", "{\"id\":\"s\"").await;
    let refused = service.get("/v1/sessions/s?limit=1").await;
    assert_eq!(refused.error(), (503, "too_many_large_answers".to_owned()));
    drop(unread);
    let freed = async {
        while service.get("/v1/sessions/s?limit=1").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, freed).await.expect("a place is free again");
    assert_eq!(service.delete("/v1/sessions/s").await.status, 204);
}

#[tokio::test]
async fn a_long_history_is_read_whole_or_page_by_page() {
    let _alone = LARGE.lock().await;
    let options = ServerOptions::default().with(|options| options.body_bytes_max = 32 << 20);
    // Small messages, messages that are encoded apart, and messages that are sent in pieces.
    for bytes in [100_000, 500_000, 3_000_000] {
        let service = Service::start_with(json!({}), "", options.clone()).await;
        open_large(&service, 7, bytes).await;
        read_whole_and_by_page(&service, bytes).await;
    }
}

async fn read_whole_and_by_page(service: &Service, bytes: usize) {
    let whole = service.get("/v1/sessions/large").await.json();
    let history = whole["history"].as_array().unwrap();
    assert_eq!(history.len(), 7);
    for (index, message) in history.iter().enumerate() {
        let text = message["content"].as_str().unwrap();
        assert!(text.starts_with(&format!("{index} x")) && text.len() == bytes + 2, "{index}");
    }
    assert_eq!(whole.get("next"), None);
    assert_eq!(whole["usage"]["input_tokens"], 0);
    let (mut read, mut query) = (Vec::new(), "?limit=3".to_owned());
    loop {
        let page = service.get(&format!("/v1/sessions/large{query}")).await.json();
        assert_eq!((&page["id"], &page["state"]), (&json!("large"), &json!("idle")));
        read.extend(page["history"].as_array().unwrap().iter().cloned());
        let Some(next) = page.get("next") else { break };
        query = format!("?limit=3&after={next}");
    }
    assert_eq!(read, *history);
    let after_the_end = service.get("/v1/sessions/large?after=99").await.json();
    assert_eq!((&after_the_end["history"], after_the_end.get("next")), (&json!([]), None));
    for query in ["?limit=0", "?limit=-1", "?after=x", "?before=1"] {
        let answer = service.get(&format!("/v1/sessions/large{query}")).await;
        assert_eq!(answer.error(), (400, "invalid_request".to_owned()), "{query}");
    }
}

#[tokio::test]
async fn a_session_that_is_too_large_accepts_no_more_inputs() {
    let script = json!({"responses": [{"text": ["Fine."]}, {"text": ["Fine."]}]});
    let config = "[host]\nmax_session_bytes = 10_000\n";
    let service = Service::start_with(script, config, ServerOptions::default()).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let input = "x".repeat(6_000);
    let run = json!({"input": input, "wait": true});
    assert_eq!(service.post("/v1/sessions/s/runs", run.clone()).await.status, 200);
    let refused = service.post("/v1/sessions/s/runs", run.clone()).await;
    assert_eq!(refused.error(), (413, "session_too_large".to_owned()));
    assert!(refused.body.contains("max_session_bytes is 10000"), "{}", refused.body);
    // A shorter input still fits, and the session can be read and deleted.
    let short = service.post("/v1/sessions/s/runs", json!({"input": "x", "wait": true})).await;
    assert_eq!(short.status, 200);
    assert_eq!(service.get("/v1/sessions/s").await.json()["history"].as_array().unwrap().len(), 4);
    // The size is known again after the session was asleep.
    service.host.session(&"s".parse().unwrap()).hibernate();
    let refused = service.post("/v1/sessions/s/runs", run).await;
    assert_eq!(refused.error(), (413, "session_too_large".to_owned()));
    assert_eq!(service.delete("/v1/sessions/s").await.status, 204);
}

/// Returns the memory of this process in MB.
#[cfg(target_os = "linux")]
fn resident_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("read the status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("has VmRSS");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("parse VmRSS") / 1024
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_events_that_do_not_read_on_share_a_bounded_memory() {
    let _alone = LARGE.lock().await;
    for is_running in [false, true] {
        open_unread_readers(is_running).await;
    }
}

/// Opens many readers of a long response that do not read on, and one that does. The response has ended, or its run
/// is in progress.
#[cfg(target_os = "linux")]
async fn open_unread_readers(is_running: bool) {
    let whole = format!("{}!", "0123456789abcdef".repeat(2 << 16));
    let holds = if is_running { json!([{"at": "finish", "name": "first"}]) } else { json!([]) };
    let script = json!({"responses": [{"text": [whole], "holds": holds}]});
    let service = Service::start_with(script, "", ServerOptions::default()).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let run = json!({"input": "x", "wait": !is_running});
    let started = service.post("/v1/sessions/s/runs", run).await;
    assert!(matches!(started.status, 200 | 202), "{}", started.body);
    if is_running {
        service.model.wait_for_gate("first").await;
    }
    let watch = "GET /v1/sessions/s/events?after=0 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let last = if is_running { "!" } else { "event: stream_end" };
    let read_all = async || {
        let mut reader = HttpConnection::open(service.addr(), watch).await;
        reader.until(last).await;
        let texts = |events: &[crate::client::StreamEvent]| -> String {
            events.iter().filter_map(crate::client::text).collect()
        };
        reader.until_events(|events| texts(events) == whole).await;
    };
    // The host has the whole text by then.
    tokio::time::timeout(SOON, read_all()).await.expect("all events arrive");
    let before = resident_mb();
    let mut unread = Vec::new();
    for _ in 0..100 {
        unread.push(HttpConnection::open(service.addr(), watch).await);
    }
    // Each one has the beginning of its events, and the memory is shared by some of them.
    for connection in &mut unread {
        tokio::time::timeout(SOON, connection.until("stream_start")).await.expect("events arrive");
    }
    let grown = resident_mb().saturating_sub(before);
    assert!(grown < 100, "{grown} MB");
    // One that reads on receives the whole text.
    tokio::time::timeout(SOON, read_all()).await.expect("all events arrive");
    drop(unread);
    assert_eq!(service.delete("/v1/sessions/s").await.status, 204);
}

#[tokio::test]
async fn results_and_repeated_reports_are_refused_before_they_are_read() {
    let _alone = LARGE.lock().await;
    let script = json!({"responses": [{"text": ["0123456789abcdef".repeat(2 << 16)]}]});
    let service = Service::start_with(script, "", two_places()).await;
    open_large(&service, 16, 1 << 20).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let run = post(
        "/v1/sessions/s/runs",
        "idempotency-key: k\r\n",
        &json!({"input": "x", "wait": true}).to_string(),
    );
    let first = service.send(&run).await;
    assert_eq!(first.status, 200);
    let repeated = service.send(&run).await;
    assert_eq!(repeated.json(), first.json());
    let unread = hold_places(&service, "/v1/sessions/large/records", "{\"records\":[").await;
    let refused = service.send(&run).await;
    assert_eq!(refused.error(), (503, "too_many_large_answers".to_owned()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    // A result of unknown size is refused. A part of a result is not, though this result does not exist.
    let result = "/v1/sessions/s/results/t1a1c0";
    let refused = service.get(result).await;
    assert_eq!(refused.error(), (503, "too_many_large_answers".to_owned()));
    assert_eq!(service.get(&format!("{result}?limit=10")).await.status, 404);
    drop(unread);
    let freed = async {
        while service.send(&run).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, freed).await.expect("a place is free again");
}

#[tokio::test]
async fn a_repeated_request_gets_the_report_of_its_run_when_that_has_ended() {
    let held = json!({"text": ["Fine."], "holds": [{"at": "finish", "name": "first"}]});
    let service = Service::start_with(json!({"responses": [held]}), "", two_places()).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let run = post(
        "/v1/sessions/s/runs",
        "idempotency-key: k\r\n",
        &json!({"input": "x", "wait": true}).to_string(),
    );
    let release = async {
        service.model.wait_for_gate("first").await;
        // The second request has begun to wait.
        tokio::time::sleep(Duration::from_millis(200)).await;
        service.model.open_gate("first");
    };
    let repeated = async {
        service.model.wait_for_gate("first").await;
        service.send(&run).await
    };
    let all = async { tokio::join!(service.send(&run), repeated, release) };
    let (first, repeated, ()) = tokio::time::timeout(SOON, all).await.expect("both have ended");
    assert_eq!(first.json()["text"], "Fine.");
    assert_eq!(repeated.json(), first.json());
}

#[tokio::test]
async fn large_bodies_share_a_bounded_memory() {
    let _alone = LARGE.lock().await;
    let service = Service::start(json!({})).await;
    let half = format!(
        "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{{",
        4 << 20
    );
    let mut held = Vec::new();
    for _ in 0..12 {
        held.push(HttpConnection::open(service.addr(), &half).await);
    }
    let text = "x".repeat(1 << 20);
    let large = json!({"id": "large", "messages": [{"role": "user", "content": text}]});
    // The test cannot see when the host has read the twelve. It sends the large request again until that one waits.
    let waits = async {
        loop {
            let sent = service.post("/v1/sessions", large.clone());
            if tokio::time::timeout(Duration::from_millis(500), sent).await.is_err() {
                return;
            }
            service.delete("/v1/sessions/large").await;
        }
    };
    tokio::time::timeout(SOON, waits).await.expect("the memory is taken");
    assert_eq!(service.post("/v1/sessions", json!({"id": "small"})).await.status, 201);
    // A request without a body needs no memory.
    let check = "POST /v1/sessions/small/verify HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert_eq!(service.send(check).await.status, 200);
    drop(held);
    let stored = async {
        while service.post("/v1/sessions", large.clone()).await.status != 201 {
            service.delete("/v1/sessions/large").await;
        }
    };
    tokio::time::timeout(SOON, stored).await.expect("the memory is free again");
}

#[tokio::test]
async fn a_stream_of_several_sessions_reads_the_stored_events_of_few_at_once() {
    let responses: Vec<Value> = (0..20).map(|_| json!({"text": ["Fine."]})).collect();
    let service = Service::start(json!({"responses": responses})).await;
    let ids: Vec<String> = (0..20).map(|at| format!("s{at}")).collect();
    for id in &ids {
        assert_eq!(service.post("/v1/sessions", json!({"id": id})).await.status, 201);
        let run = json!({"input": "x", "wait": true});
        assert_eq!(service.post(&format!("/v1/sessions/{id}/runs"), run).await.status, 200);
    }
    let after: Vec<String> = ids.iter().map(|id| format!("{id}:0")).collect();
    let (ids, after) = (ids.join(","), after.join(","));
    let get =
        format!("GET /v1/events?sessions={ids}&after={after} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut stream = HttpConnection::open(service.addr(), &get).await;
    let all = stream.until_events(|events| ended_runs(events) == 20);
    let events = tokio::time::timeout(SOON, all).await.expect("all events arrive");
    let (mut begun, mut most) = (BTreeSet::new(), 0);
    for event in &events {
        let session = event.data["session_id"].as_str().expect("an event has a session");
        begun.insert(session);
        most = most.max(begun.len());
        if event.kind == "stream_end" {
            begun.remove(session);
        }
    }
    assert!(most <= 8, "{most} sessions are read at once");
}

#[tokio::test]
async fn streams_of_several_sessions_watch_a_bounded_number() {
    let service = Service::start(json!({})).await;
    let ids: Vec<String> = (0..256).map(|at| format!("s{at}")).collect();
    for id in &ids {
        assert_eq!(service.post("/v1/sessions", json!({"id": id})).await.status, 201);
    }
    let get =
        format!("GET /v1/events?sessions={} HTTP/1.1\r\nhost: localhost\r\n\r\n", ids.join(","));
    let mut streams = Vec::new();
    for _ in 0..32 {
        let mut stream = HttpConnection::open(service.addr(), &get).await;
        stream.until("text/event-stream").await;
        streams.push(stream);
    }
    let refused = service.get("/v1/events?sessions=s0").await;
    assert_eq!(refused.error(), (503, "too_many_watched_sessions".to_owned()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    streams.pop();
    let one = "GET /v1/events?sessions=s0 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let freed = async {
        loop {
            let mut stream = HttpConnection::open(service.addr(), one).await;
            stream.until("\r\n\r\n").await;
            if stream.text().starts_with("HTTP/1.1 200") {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, freed).await.expect("a stream that ends makes room");
}
