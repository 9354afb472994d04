//! The requests of the console other than events: records, verification, exact requests, models, calls by hand,
//! and what pages report of themselves.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "the servers of the tests")]

use std::sync::Arc;

use crate::client::{HttpConnection, Service, StreamEvent, post};
use crate::host_directory::{HostDirectory, within};
use callsheet::record::JournalEntry;
use callsheet::server::ServerOptions;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const SLEEPY: &str = "idle_after = \"1ms\"";

fn gone(session: &str) -> String {
    format!("there is no session \"{session}\"")
}

#[tokio::test]
async fn records_are_read_page_by_page_as_the_journal_has_them() {
    let call = json!({"name": "quick", "arguments": {"id": "a"}});
    let script =
        json!({"responses": [{"text": ["Let me."], "calls": [call]}, {"text": ["Done."]}]});
    let directory = HostDirectory::new(script).await;
    let served = directory.start(SLEEPY, "").await;
    served.open("s").await;
    served.run("s", "go").await;
    served.asleep().await;
    let stored: Vec<Value> = directory
        .entries("s")
        .iter()
        .map(|entry: &JournalEntry| serde_json::to_value(entry).unwrap())
        .collect();
    assert!(stored.len() > 5 && stored[0]["type"] == "session_opened", "{stored:?}");
    let whole = served.get("/v1/sessions/s/records").await.json();
    assert_eq!(whole, json!({"records": stored, "next": null}));
    let (mut read, mut after) = (Vec::new(), json!(0));
    while !after.is_null() {
        let page = served.get(&format!("/v1/sessions/s/records?limit=2&after={after}")).await;
        let page = page.json();
        assert!(page["records"].as_array().unwrap().len() <= 2);
        read.extend(page["records"].as_array().unwrap().clone());
        after = page["next"].clone();
    }
    assert_eq!(read, stored);
    let behind = served.get("/v1/sessions/s/records?after=1000").await.json();
    assert_eq!(behind, json!({"records": [], "next": null}));
    for query in ["?limit=0", "?limit=1001", "?after=-1", "?after=x", "?before=1"] {
        let answer = served.get(&format!("/v1/sessions/s/records{query}")).await;
        assert_eq!(answer.error(), (400, "invalid_request".to_owned()), "{query}");
    }
    let unknown = served.get("/v1/sessions/x/records").await;
    assert_eq!(unknown.error(), (404, "no_such_session".to_owned()));
    assert!(unknown.json()["error"]["message"] == gone("x"));
    assert_eq!(served.host.counts().awake, 0, "reading records wakes no session");
    served.shutdown().await;
}

#[tokio::test]
async fn a_page_of_large_records_ends_early_and_none_is_left_out() {
    let options = ServerOptions::default().with(|options| options.body_bytes_max = 32 << 20);
    let responses: Vec<Value> = (0..5).map(|_| json!({"text": ["Fine."]})).collect();
    let service = Service::start_with(json!({"responses": responses}), "", options).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    for _ in 0..5 {
        let run = json!({"input": "x".repeat(700_000), "wait": true});
        assert_eq!(service.post("/v1/sessions/s/runs", run).await.status, 200);
    }
    let (mut pages, mut seqs, mut after) = (0, Vec::new(), json!(0));
    while !after.is_null() {
        let answer = service.get(&format!("/v1/sessions/s/records?limit=1000&after={after}")).await;
        assert!(answer.body.len() < 3 << 20, "{} bytes", answer.body.len());
        let page = answer.json();
        seqs.extend(page["records"].as_array().unwrap().iter().map(|record| record["seq"].clone()));
        (pages, after) = (pages + 1, page["next"].clone());
    }
    let expected: Vec<Value> = (1..=seqs.len()).map(|seq| json!(seq)).collect();
    assert_eq!(seqs, expected);
    assert!(pages > 1 && seqs.len() > 20, "{pages} pages, {} records", seqs.len());
}

#[tokio::test]
async fn verification_finds_no_breach_and_names_an_open_run() {
    let held =
        json!({"text": ["Now ", "then."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]});
    let directory = HostDirectory::new(json!({"responses": [{"text": ["Hello."]}, held]})).await;
    let served = directory.start("", "").await;
    served.open("s").await;
    served.run("s", "go").await;
    let verify = async || served.post("/v1/sessions/s/verify", json!({})).await;
    let checked = verify().await.json();
    let records = served.snapshot("s").await["seq"].clone();
    assert_eq!(checked, json!({"records": records, "open_run": null, "breaches": []}));
    let run = served.begin("s", json!({"input": "again"})).await;
    directory.model.wait_for_gate("middle").await;
    assert_eq!(verify().await.json()["open_run"], run.as_str());
    directory.model.open_gate("middle");
    served.until_snapshot("s", |session| session["state"] == "idle").await;
    assert_eq!(verify().await.json()["breaches"], json!([]));
    let unknown = served.post("/v1/sessions/x/verify", json!({})).await;
    assert_eq!(unknown.error(), (404, "no_such_session".to_owned()));
    served.shutdown().await;
}

#[tokio::test]
async fn breaches_are_listed_with_their_records() {
    let directory = HostDirectory::new(json!({"responses": [{"text": ["Hello."]}]})).await;
    let served = directory.start("", "").await;
    served.open("s").await;
    served.run("s", "go").await;
    served.shutdown().await;
    let database = rusqlite::Connection::open(directory.dir.join("journal.db")).unwrap();
    let change = "UPDATE records SET body = replace(body, '\"turns\":1', '\"turns\":2')";
    assert!(database.execute(change, []).unwrap() > 0);
    drop(database);
    let served = directory.start("", "").await;
    let checked = served.post("/v1/sessions/s/verify", json!({})).await.json();
    let breach = &checked["breaches"][0];
    assert_eq!(breach["invariant"], "sums", "{checked}");
    assert!(breach["seq"].as_u64().unwrap() > 1 && breach["what"].is_string(), "{checked}");
    served.shutdown().await;
}

/// A service that answers its first request with status 500 and the others with a text, and keeps the bodies
/// that it receives.
async fn raw_service() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let bodies: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&bodies);
    tokio::task::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            let body = loop {
                let mut buffer = [0; 4096];
                let read = stream.read(&mut buffer).await.unwrap();
                bytes.extend_from_slice(&buffer[..read]);
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let head = head.to_ascii_lowercase();
                let length = head.split("content-length: ").nth(1).unwrap();
                let length: usize = length.lines().next().unwrap().parse().unwrap();
                if body.len() >= length {
                    break body.to_owned();
                }
            };
            let is_first = kept.lock().is_empty();
            kept.lock().push(body);
            let message = json!({"role": "assistant", "content": "Grüße."});
            let (status, answer) = match is_first {
                true => ("500 Internal Server Error", json!({"error": {"message": "broken"}})),
                false => (
                    "200 OK",
                    json!({"choices": [
                    {"index": 0, "message": message, "finish_reason": "stop"}]}),
                ),
            };
            let answer = answer.to_string();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n\
                 content-length: {}\r\n\r\n{answer}",
                answer.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (url, bodies)
}

fn with_raw_service(url: &str, rest: &str) -> String {
    format!(
        "[models.main]\nbase_url = \"{url}\"\nmodel = \"m\"\nstream = false\n\
         [agents.default]\nmodel = \"main\"\ntools = [\"calculator\"]\n{rest}"
    )
}

#[tokio::test]
async fn the_exact_request_of_a_turn_is_shown_if_the_host_keeps_requests() {
    let (url, bodies) = raw_service().await;
    let config = with_raw_service(&url, "[console]\nrequests = true\n");
    let service = Service::start_with(json!({}), &config, ServerOptions::default()).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    for input in ["Ünïcode \u{202e} and \"quotes\"", "again"] {
        let run = json!({"input": input, "wait": true});
        let report = within(service.post("/v1/sessions/s/runs", run)).await.json();
        assert_eq!(report["run_end"], "answered", "{report}");
    }
    let bodies = bodies.lock().clone();
    assert_eq!(bodies.len(), 3, "the first turn had two attempts");
    for (turn, attempt, body) in [(1, "2", &bodies[1]), (2, "1", &bodies[2])] {
        let shown = service.get(&format!("/v1/sessions/s/turns/{turn}/request")).await;
        assert_eq!((shown.status, &shown.body), (200, body));
        assert_eq!(shown.header("callsheet-attempt"), Some(attempt));
        assert_eq!(shown.header("callsheet-model"), Some("main"));
        assert_eq!(shown.header("content-type"), Some("application/json"));
    }
    for turn in ["0", "3", "x", "-1", "99999999999"] {
        let none = service.get(&format!("/v1/sessions/s/turns/{turn}/request")).await;
        assert_eq!(none.error(), (404, "no_such_request".to_owned()), "{turn}");
    }
    let unknown = service.get("/v1/sessions/x/turns/1/request").await;
    assert_eq!(unknown.error(), (404, "no_such_session".to_owned()));
    // A session of the same name has not sent the requests of the deleted one.
    assert_eq!(service.delete("/v1/sessions/s").await.status, 204);
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let none = service.get("/v1/sessions/s/turns/1/request").await;
    assert_eq!(none.error(), (404, "no_such_request".to_owned()));
}

#[tokio::test]
async fn no_request_is_kept_unless_the_configuration_says_so() {
    let service = Service::start(json!({"responses": [{"text": ["Hello."]}]})).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let run = json!({"input": "go", "wait": true});
    assert_eq!(service.post("/v1/sessions/s/runs", run).await.status, 200);
    let refused = service.get("/v1/sessions/s/turns/1/request").await;
    assert_eq!(refused.error(), (404, "requests_not_kept".to_owned()));
    assert!(refused.body.contains("requests = true"), "{}", refused.body);
    let session = service.host.session(&"s".parse().unwrap());
    assert_eq!(session.sent_request(1), None);
}

#[tokio::test]
async fn the_models_are_reported_with_their_places_and_errors() {
    let (url, _) = raw_service().await;
    let config = with_raw_service(&url, "").replace(
        "stream = false\n",
        "stream = false\nmax_attempts = 1\nbreaker_failures = 1\nbreaker_open_for = \"1h\"\n",
    );
    let service = Service::start_with(json!({}), &config, ServerOptions::default()).await;
    let report = service.get("/v1/host/models").await.json();
    let main = json!({
        "name": "main", "wire": "openai-chat", "model": "m", "breaker": "closed",
        "retry_in_ms": null, "in_flight": 0, "waiting": 0, "max_concurrent_requests": 256,
        "answered": 0, "failed": {}, "last_error": null,
    });
    assert_eq!(report["models"][0], main);
    assert_eq!(report["models"][1]["name"], "rehearsal");
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let run = json!({"input": "go", "wait": true});
    let failed = within(service.post("/v1/sessions/s/runs", run)).await.json();
    assert_eq!(failed["run_end"], "failed", "{failed}");
    let report = service.get("/v1/host/models").await.json();
    let main = &report["models"][0];
    assert_eq!((&main["breaker"], &main["failed"]), (&json!("open"), &json!({"status": 1})));
    let retry_in = main["retry_in_ms"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&retry_in), "{retry_in}");
    let error = &main["last_error"];
    assert_eq!((&error["kind"], &error["status"]), (&json!("status"), &json!(500)));
    assert!(error["message"].as_str().unwrap().contains("broken"), "{error}");
    assert!(error["time"].as_u64().unwrap() > 1_600_000_000_000);
}

#[tokio::test]
async fn a_tool_is_called_by_hand_as_a_session_would() {
    let directory = HostDirectory::new(json!({"responses": []})).await;
    let asking = "[tools.writes]\napproval = \"before\"\n";
    let served = directory.start("", asking).await;
    let mut states = HttpConnection::open(
        served.addr(),
        "GET /v1/events?sessions=* HTTP/1.1\r\nhost: localhost\r\n\r\n",
    )
    .await;
    within(states.until("text/event-stream")).await;
    let call = async |name: &str, body: Value| {
        let answer = served.post(&format!("/v1/tools/{name}/call"), body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    };
    let answer = call("quick", json!({"input": {"id": "a"}})).await;
    assert_eq!((&answer["run_end"], &answer["error"]), (&json!("answered"), &Value::Null));
    let made = &answer["call"];
    assert_eq!((&made["tool_name"], &made["status"]), (&json!("quick"), &json!("success")));
    assert_eq!((&made["result"], &made["arguments"]), (&json!("done a"), &json!({"id": "a"})));
    // Arguments that do not fit the schema, a failure, a panic.
    let wrong = call("quick", json!({"input": {"id": 3}})).await;
    assert_eq!(wrong["call"]["status"], "error", "{wrong}");
    assert_eq!(call("fails", json!({"input": {"id": "b"}})).await["call"]["status"], "error");
    assert_eq!(call("panics", json!({"input": {"id": "c"}})).await["call"]["status"], "error");
    // A call that needs approval runs only if its sender approves it.
    let refused = call("writes", json!({"input": {"id": "d"}})).await;
    assert_eq!(refused["call"]["status"], "refused", "{refused}");
    assert_eq!(refused["call"]["reject_reason"], "the caller has not approved the call");
    let input = json!({"input": {"id": "e"}, "approve": true, "agent": "default"});
    let approved = call("writes", input).await;
    assert_eq!(
        (&approved["call"]["status"], &approved["call"]["approval"]),
        (&json!("success"), &json!("approved"))
    );
    assert_eq!(directory.control.log().last().unwrap(), "end e");
    assert!(!directory.control.log().contains(&"start d".to_owned()));
    for (name, body, status, code) in [
        ("nowhere", json!({"input": {}}), 404, "unknown_tool"),
        ("*", json!({"input": {}}), 404, "unknown_tool"),
        ("read_var", json!({"input": {}}), 404, "unknown_tool"),
        ("quick", json!({"input": {}, "agent": "nobody"}), 400, "unknown_agent"),
        ("quick", json!({"input": [1]}), 400, "invalid_request"),
        ("quick", json!({}), 400, "invalid_request"),
        ("quick", json!({"input": {}, "approved": true}), 400, "invalid_request"),
    ] {
        let answer = served.post(&format!("/v1/tools/{name}/call"), body.clone()).await;
        assert_eq!(answer.error(), (status, code.to_owned()), "{name} {body}");
    }
    // Nothing is left: no session, no request to the model.
    assert_eq!(served.host.counts().sessions, 0);
    assert_eq!(directory.model.received(), 0);
    let closed = |seen: &[StreamEvent]| {
        seen.iter().filter(|event| event.data["state"] == "closed").count() == 6
    };
    within(states.until_events(closed)).await;
    served.shutdown().await;
    assert_eq!(crate::host_directory::verified(&directory.dir), []);
}

#[tokio::test]
async fn a_call_by_hand_goes_on_without_its_client_and_leaves_nothing() {
    let directory = HostDirectory::new(json!({"responses": []})).await;
    let served = directory.start("", "").await;
    let request = post("/v1/tools/slow_write/call", "", "{\"input\":{\"id\":\"a\"}}");
    let client = HttpConnection::open(served.addr(), &request).await;
    directory.control.until_logged("start a").await;
    drop(client);
    directory.control.release("a");
    directory.control.until_logged("end a").await;
    crate::host_directory::until("the session is deleted", || served.host.counts().sessions == 0)
        .await;
    served.shutdown().await;
}

#[tokio::test]
async fn pages_report_what_they_have_measured() {
    let service = Service::start(json!({})).await;
    let report = json!({"frames": 3, "blocking_ms": 120.5, "paint_ms": [16, 40.5, 300]});
    let answer = service.post("/v1/ui/vitals", report).await;
    assert_eq!((answer.status, answer.body.as_str()), (204, ""));
    let page = service.get("/metrics").await.body;
    for line in [
        "callsheet_ui_long_frames_total 3",
        "callsheet_ui_event_to_paint_seconds_count 3",
        "callsheet_ui_event_to_paint_seconds_bucket{le=\"0.05\"} 2",
    ] {
        assert!(page.contains(&format!("\n{line}\n")), "{line} is not in\n{page}");
    }
    for bad in [
        json!({"frames": 0, "blocking_ms": 0, "paint_ms": vec![1; 201]}),
        json!({"frames": 0, "blocking_ms": 0, "paint_ms": [-1]}),
        json!({"frames": "3", "blocking_ms": 0, "paint_ms": []}),
        json!({"paint_ms": []}),
    ] {
        let answer = service.post("/v1/ui/vitals", bad.clone()).await;
        assert_eq!(answer.error(), (400, "invalid_request".to_owned()), "{bad}");
    }
    let page = service.get("/metrics").await.body;
    assert!(page.contains("\ncallsheet_ui_event_to_paint_seconds_count 3\n"), "{page}");
}
