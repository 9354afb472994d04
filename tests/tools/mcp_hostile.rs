//! MCP servers that answer wrongly, too much or not at all. The process of a server is this test's own binary,
//! which runs [`server_process`].
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::folder::{Folder, calling, result, wait_until};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use callsheet::RunRequest;
use callsheet::model::{ModelReply, ModelRequest};
use callsheet::testing::FakeModel;
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The process of a server, if the variable `MCP_MODE` is set.
#[test]
fn server_process() {
    let Ok(mode) = std::env::var("MCP_MODE") else { return };
    let (mut lists, mut asking) = (0, Value::Null);
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let message: Value = serde_json::from_str(&line).unwrap();
        let id = &message["id"];
        match message["method"].as_str().unwrap_or_default() {
            "server/discover" if mode == "empty" => write(id, "result", json!({})),
            "initialize" => write(id, "result", initialized()),
            "tools/list" => {
                if mode != "silent list" || lists == 0 {
                    write(id, "result", listed(&mode, lists, &message["params"]["cursor"]));
                }
                lists += 1;
                let folder = std::env::var("TEST_FOLDER").unwrap();
                std::fs::write(format!("{folder}/lists"), lists.to_string()).unwrap();
                match &*mode {
                    "restless" => report_change(),
                    "pings" => ping_without_end(&folder),
                    _ => {}
                }
            }
            // A process that starts after the end of the first one answers.
            "tools/call" if mode == "deaf" && !is_told_to_end() => read_nothing(),
            "tools/call" if mode == "long method" => {
                asking = id.clone();
                let method = "x".repeat(1_000_000);
                println!("{}", json!({"jsonrpc": "2.0", "id": "asked", "method": method}));
            }
            "" if mode == "long method" => {
                let text = line.len().to_string();
                let result = json!({"content": [{"type": "text", "text": text}]});
                write(&asking, "result", result);
            }
            "tools/call" => called(id, &message["params"]["arguments"]),
            _ if id.is_null() => {}
            _ => write(id, "error", json!({"code": -32601, "message": "no"})),
        }
    }
    if mode == "immortal" {
        std::thread::sleep(Duration::from_secs(600));
    }
    std::process::exit(0);
}

/// Reads nothing more, and ends when it is told to.
fn read_nothing() {
    while !is_told_to_end() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::process::exit(1);
}

fn is_told_to_end() -> bool {
    let end = format!("{}/end", std::env::var("TEST_FOLDER").unwrap());
    std::path::Path::new(&end).exists()
}

/// Sends requests with long ids and reads nothing. Adds a byte to a file for each of them.
fn ping_without_end(folder: &str) {
    let path = format!("{folder}/pings");
    let mut pings = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    let mut out = std::io::stdout().lock();
    for number in 0.. {
        let id = format!("{number:010000}");
        writeln!(out, "{}", json!({"jsonrpc": "2.0", "id": id, "method": "ping"})).unwrap();
        pings.write_all(b".").unwrap();
    }
}

fn initialized() -> Value {
    json!({
        "protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": true}},
        "serverInfo": {"name": "hostile", "version": "1"},
    })
}

fn tool(name: &str, schema: Value) -> Value {
    json!({"name": name, "description": "Does it.", "inputSchema": schema})
}

fn object() -> Value {
    json!({"type": "object"})
}

fn listed(mode: &str, lists: usize, cursor: &Value) -> Value {
    let page = cursor.as_str().map_or(0, |cursor| cursor.parse::<usize>().unwrap());
    let tools = match mode {
        "many" | "endless" => {
            (0..20).map(|at| tool(&format!("t{:05}", page * 20 + at), object())).collect()
        }
        "schemas" => {
            let canary = std::env::var("CANARY").unwrap();
            let root = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
            let own = json!({"type": "object", "$ref": "#"});
            let network = json!({"type": "object", "properties": {"a": {"$ref": canary}}});
            let base =
                json!({"$id": canary, "type": "object", "properties": {"a": {"$ref": "b.json"}}});
            let schema = json!({"$schema": canary, "type": "object"});
            vec![
                tool("root", root),
                tool("own", own),
                tool("network", network),
                tool("base", base),
                tool("schema", schema),
            ]
        }
        _ => {
            let mut tools = vec![tool("act", object()), tool("b", object()), tool("c", object())];
            tools.rotate_left(lists % 3);
            tools
        }
    };
    match (mode, page) {
        ("many", 0..24) | ("endless", _) => {
            json!({"tools": tools, "nextCursor": (page + 1).to_string()})
        }
        _ => json!({"tools": tools}),
    }
}

fn called(id: &Value, arguments: &Value) {
    if let Some(answer) = arguments["answer"].as_str() {
        println!("{}", answer.replace("ID", &id.to_string()));
        return;
    }
    if arguments["line"] == true {
        let mut out = std::io::stdout().lock();
        while out.write_all(&[b'x'; 1 << 16]).is_ok() {}
        return;
    }
    let length = arguments["length"].as_u64().unwrap_or(1);
    let text = "x".repeat(usize::try_from(length).unwrap());
    write(id, "result", json!({"content": [{"type": "text", "text": text}]}));
    report_change();
}

fn report_change() {
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    println!("{changed}");
}

fn write(id: &Value, key: &str, value: Value) {
    let mut message = json!({"jsonrpc": "2.0", "id": id});
    if std::env::var("MCP_MODE").unwrap() == "nulls" {
        message["result"] = Value::Null;
        message["error"] = Value::Null;
    }
    message[key] = value;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{message}").unwrap();
    out.flush().unwrap();
}

/// Returns the table of the server `test`, a process of this mode that ignores `SIGTERM`.
fn process(folder: &Folder, mode: &str, environment: &str) -> String {
    let binary = std::env::current_exe().unwrap().display().to_string();
    let script =
        format!("trap '' TERM; exec '{binary}' --exact mcp_hostile::server_process --nocapture");
    let environment = format!("MCP_MODE = {mode:?}, {environment}");
    folder.server("test", &["sh", "-c", &script], &environment)
}

#[tokio::test]
async fn five_hundred_tools_are_read_from_all_pages_and_pages_without_end_are_not() {
    for (mode, expected) in [("many", 500), ("endless", 2_000)] {
        let folder = Folder::new(mode);
        let (succeeded, printed) = folder.tools(&process(&folder, mode, ""), &["list", "--json"]);
        assert!(succeeded, "{printed}");
        let listed: Value = serde_json::from_str(&printed).unwrap();
        let names = listed["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]);
        let names: Vec<_> =
            names.filter(|name| name.as_str().unwrap().starts_with("test__")).collect();
        assert_eq!(names.len(), expected, "{mode}");
        assert_eq!(names[499], "test__t00499");
        let says_more = printed.contains("only its first 2000 tools are read");
        assert_eq!(says_more, mode == "endless", "{printed}");
    }
}

#[tokio::test]
async fn the_limits_of_servers_are_configured() {
    let folder = Folder::new("limits");
    let text = process(&folder, "endless", "") + "[mcp_limits]\nmax_tools = 40\n";
    let (succeeded, printed) = folder.tools(&text, &["list"]);
    assert!(succeeded && printed.contains("only its first 40 tools are read"), "{printed}");
    let keys = "[mcp_limits]\nmax_line_bytes = 65536\nmax_skipped_bytes = 65536\n";
    let model = calling([60_000, 70_000].map(|length| ("test__act", json!({"length": length}))));
    let host = folder.host(&(process(&folder, "plain", "") + keys), &model).await;
    let session = host.open_session("one").await.unwrap();
    assert_eq!(result(&session.run("go").await.unwrap()).0, "success");
    let report = session.run("go").await.unwrap();
    let (status, text) = result(&report);
    assert!(status == "unknown" && text.contains("more than 65536 bytes"), "{status}: {text}");
    host.shutdown().await;
}

#[tokio::test]
async fn results_of_ten_megabytes_are_read_and_longer_ones_are_unknown_at_once() {
    let folder = Folder::new("long");
    let act = |length: usize| ("test__act", json!({"length": length}));
    let model = calling([act(10_000_000), act(17_000_000), act(1)]);
    let text = process(&folder, "plain", "");
    let host = folder.host(&text, &model).await;
    let session = host.open_session("one").await.unwrap();
    let report = session.run("go").await.unwrap();
    assert_eq!((result(&report).0, result(&report).1.len()), ("success", 10_000_000));
    let report = session.run("go").await.unwrap();
    let (status, text) = result(&report);
    assert!(status == "unknown" && text.contains("more than 16777216 bytes"), "{status}: {text}");
    assert_eq!(result(&session.run("go").await.unwrap()), ("success", "x"));
    // The model reads an excerpt.
    let longest = model.requests().iter().map(|request| format!("{request:?}").len()).max();
    assert!(longest.unwrap() < 1_000_000, "{longest:?}");
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn references_in_circles_are_valid_and_those_to_the_network_are_not_followed() {
    let folder = Folder::new("schemas");
    let canary = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    canary.set_nonblocking(true).unwrap();
    let url = format!("CANARY = \"http://{}/a.json\"", canary.local_addr().unwrap());
    let text = process(&folder, "schemas", &url);
    let (succeeded, listed) = folder.tools(&text, &["list"]);
    assert!(succeeded && listed.contains("test__root"), "{listed}");
    assert!(!listed.contains("test__network") && listed.contains("network"), "{listed}");
    let deep = (0..50).fold(json!({}), |next, _| json!({"next": next}));
    let wrong = (0..50).fold(json!(7), |next, _| json!({"next": next}));
    let model = calling([("test__root", deep), ("test__root", wrong), ("test__own", json!({}))]);
    let host = folder.host(&text, &model).await;
    let session = host.open_session("one").await.unwrap();
    for expected in ["success", "error", "success"] {
        let report = session.run("go").await.unwrap();
        assert_eq!(result(&report).0, expected, "{report:?}");
    }
    host.shutdown().await;
    folder.empty().await;
    let asked = canary.accept();
    assert!(asked.is_err(), "a schema was fetched: {asked:?}");
}

#[tokio::test]
async fn a_server_that_ignores_the_end_of_its_input_and_the_signal_is_killed() {
    let folder = Folder::new("immortal");
    let model = calling([("test__act", json!({}))]);
    let host = folder.host(&process(&folder, "immortal", ""), &model).await;
    host.open_session("one").await.unwrap().run("go").await.unwrap();
    assert!(folder.processes() >= 1);
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_list_in_another_order_is_no_change() {
    let folder = Folder::new("order");
    let model = calling([(); 3].map(|()| ("test__act", json!({}))));
    let host = folder.host(&process(&folder, "plain", ""), &model).await;
    let session = host.open_session("one").await.unwrap();
    let lists = || std::fs::read_to_string(folder.path.join("lists")).unwrap().parse::<usize>();
    for number in 2..5 {
        assert_eq!(result(&session.run("go").await.unwrap()).0, "success");
        wait_until(|| lists().is_ok_and(|lists| lists == number)).await;
        let change = session.refresh_tools().await.unwrap();
        assert_eq!(format!("{change:?}").matches("[]").count(), 3, "{change:?}");
    }
    let offered = |request: &ModelRequest| format!("{:?}", request.tools);
    let lists: Vec<_> = model.requests().iter().map(offered).collect();
    assert!(lists.windows(2).all(|pair| pair[0] == pair[1]), "{lists:?}");
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_server_that_reports_a_change_after_each_list_is_not_asked_without_end() {
    let folder = Folder::new("restless");
    let host = folder.host(&process(&folder, "restless", ""), &calling([])).await;
    let lists = || {
        let lists = std::fs::read_to_string(folder.path.join("lists")).unwrap_or_default();
        lists.parse::<usize>().unwrap_or_default()
    };
    wait_until(|| lists() >= 2).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    // The change during the wait was not lost, and the next wait is longer.
    wait_until(|| lists() >= 3).await;
    assert!(lists() <= 6, "{} lists", lists());
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_host_ends_at_once_although_a_list_is_not_answered() {
    let folder = Folder::new("silent");
    let model = calling([("test__act", json!({}))]);
    let host = folder.host(&process(&folder, "silent list", ""), &model).await;
    let session = host.open_session("one").await.unwrap();
    assert_eq!(result(&session.run("go").await.unwrap()), ("success", "x"));
    let lists = || std::fs::read_to_string(folder.path.join("lists")).unwrap();
    wait_until(|| lists() == "2").await;
    let began = Instant::now();
    host.shutdown().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    folder.empty().await;
}

#[tokio::test]
async fn requests_of_a_server_that_reads_no_reply_are_not_read_without_end() {
    let folder = Folder::new("pings");
    let host = folder.host(&process(&folder, "pings", ""), &calling([])).await;
    let pings = || std::fs::metadata(folder.path.join("pings")).map_or(0, |file| file.len());
    wait_until(|| pings() > 0).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    // Each has 10 kB: 256 KiB of replies wait, and both pipes are full.
    let before = pings();
    assert!(before < 500, "{before} requests");
    // The process is ended after 3 s, and started again.
    wait_until(|| pings() > before).await;
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn the_reply_to_an_unknown_request_does_not_repeat_its_long_name() {
    let folder = Folder::new("method");
    let model = calling([("test__act", json!({}))]);
    let host = folder.host(&process(&folder, "long method", ""), &model).await;
    let session = host.open_session("one").await.unwrap();
    let report = session.run("go").await.unwrap();
    let (status, length) = result(&report);
    assert!(status == "success" && length.parse::<usize>().unwrap() < 1_000, "{length}");
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_ends_its_call_at_once() {
    let folder = Folder::new("answers");
    let (refused, unknown) = ("error", "unknown");
    let answers = [
        (r#"{"jsonrpc":"2.0","id":ID,"error":"no disk"}"#, refused),
        (r#"{"jsonrpc":"2.0","id":ID,"error":{"message":"no disk"}}"#, refused),
        (r#"{"jsonrpc":"2.0","id":ID}"#, unknown),
        (r#"{"jsonrpc":"2.0","id":ID,"result":{"number":01}}"#, unknown),
    ];
    let model = calling(answers.map(|(answer, _)| ("test__act", json!({"answer": answer}))));
    let host = folder.host(&process(&folder, "plain", ""), &model).await;
    let session = host.open_session("one").await.unwrap();
    for (answer, expected) in answers {
        let report = session.run("go").await.unwrap();
        let (status, text) = result(&report);
        assert_eq!(status, expected, "{answer}: {text}");
        assert!(text.contains("not valid JSON-RPC: {"), "{answer}: {text}");
    }
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_server_whose_answers_have_both_members_is_used() {
    let folder = Folder::new("nulls");
    let model = calling([("test__act", json!({}))]);
    let host = folder.host(&process(&folder, "nulls", ""), &model).await;
    let session = host.open_session("one").await.unwrap();
    assert_eq!(result(&session.run("go").await.unwrap()), ("success", "x"));
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_server_whose_discovery_is_empty_is_asked_for_the_handshake() {
    let folder = Folder::new("discovery");
    let model = calling([("test__act", json!({}))]);
    let host = folder.host(&process(&folder, "empty", ""), &model).await;
    let session = host.open_session("one").await.unwrap();
    assert_eq!(result(&session.run("go").await.unwrap()), ("success", "x"));
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn calls_that_a_dead_server_has_not_been_sent_are_sent_to_the_next_process() {
    let folder = Folder::new("deaf");
    // Each fills most of a pipe: the first is read, the second waits in the pipe, and a part of the third.
    let long = json!({"text": "x".repeat(60_000)});
    let calls = (0..6).map(|_| ModelReply::call("test__act", long.clone()));
    let model = FakeModel::replies(calls.chain((0..6).map(|_| ModelReply::text("done"))));
    let text = process(&folder, "deaf", "");
    let host = folder.host(&text, &model).await;
    let mut runs = Vec::new();
    for number in 0..6 {
        let session = host.open_session(format!("s{number}")).await.unwrap();
        runs.push(session.start_run("go").await.unwrap());
    }
    wait_until(|| model.requests().len() == 6).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    std::fs::write(folder.path.join("end"), "").unwrap();
    let (mut unknown, mut answered) = (0, 0);
    for run in runs {
        let report = run.report.await.unwrap();
        match result(&report) {
            ("unknown", _) => unknown += 1,
            ("success", _) => answered += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!((1..=3).contains(&unknown) && answered == 6 - unknown, "{unknown} {answered}");
    host.shutdown().await;
    folder.empty().await;
}

/// A service whose event streams break in the middle of a call.
struct Service {
    mode: &'static str,
    /// The calls that it has begun, and those that it refused.
    calls: AtomicUsize,
    refused: AtomicUsize,
    lists: AtomicUsize,
    /// Lets the first call end, in the mode `drained`.
    released: Semaphore,
}

impl Service {
    async fn start(mode: &'static str) -> (Arc<Self>, SocketAddr) {
        let [calls, refused, lists] = [(); 3].map(|()| AtomicUsize::new(0));
        let service = Self { mode, calls, refused, lists, released: Semaphore::new(0) };
        let service = Arc::new(service);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/mcp", post(answer).get(resumed));
        let app = app.with_state(Arc::clone(&service));
        #[expect(clippy::disallowed_methods, reason = "the service ends with the test")]
        drop(tokio::spawn(async move { axum::serve(listener, app).await }));
        (service, address)
    }
}

async fn answer(State(service): State<Arc<Service>>, Json(message): Json<Value>) -> Response {
    let id = message["id"].clone();
    let json = |key: &str, value: Value| {
        let body = Json(json!({"jsonrpc": "2.0", "id": id, key: value}));
        // The newest protocol has no sessions.
        match service.mode.starts_with("headers") || service.mode.starts_with("status") {
            true => body.into_response(),
            false => ([("mcp-session-id", "one")], body).into_response(),
        }
    };
    match message["method"].as_str().unwrap() {
        "initialize" => json("result", initialized()),
        "server/discover" if service.mode.starts_with("headers") => {
            let versions =
                json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}});
            json("result", complete(versions))
        }
        "subscriptions/listen"
            if service.mode == "headers busy"
                && service.refused.fetch_add(1, Ordering::SeqCst) == 0 =>
        {
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
        "tools/list" if matches!(service.mode, "headers" | "headers busy") => {
            json("result", complete(with_headers()))
        }
        "tools/list" if service.mode == "headers in events" => {
            let list = complete(with_headers());
            let message = json!({"jsonrpc": "2.0", "id": id, "result": list});
            events(format!("data: {message}\n\n"))
        }
        "tools/list" => {
            let number = service.lists.fetch_add(1, Ordering::SeqCst);
            if service.mode == "drained" && number == 1 {
                return StatusCode::BAD_GATEWAY.into_response();
            }
            json("result", listed("plain", 0, &Value::Null))
        }
        "tools/call" if service.mode == "drained" => {
            match service.calls.fetch_add(1, Ordering::SeqCst) {
                0 => drop(service.released.acquire().await),
                1 => return StatusCode::BAD_GATEWAY.into_response(),
                _ => {}
            }
            json("result", answered())
        }
        "tools/call" if service.mode.starts_with("error") => {
            service.calls.fetch_add(1, Ordering::SeqCst);
            let code: i32 = service.mode.trim_start_matches("error ").parse().unwrap();
            let error = json!({"code": code, "message": "no such city"});
            let body = Json(json!({"jsonrpc": "2.0", "id": null, "error": error}));
            (StatusCode::INTERNAL_SERVER_ERROR, body).into_response()
        }
        "tools/call" if service.mode.starts_with("status") => {
            let is_first = service.calls.fetch_add(1, Ordering::SeqCst) == 0;
            let status = service.mode.trim_start_matches("status ").parse().unwrap();
            let status = StatusCode::from_u16(status).unwrap();
            match is_first {
                true => (status, [("retry-after", "0")], "no such city").into_response(),
                false => json("result", answered()),
            }
        }
        "tools/call" => {
            let expired = service.mode == "expired" && service.refused.load(Ordering::SeqCst) == 0;
            if expired {
                service.refused.fetch_add(1, Ordering::SeqCst);
                return StatusCode::NOT_FOUND.into_response();
            }
            service.calls.fetch_add(1, Ordering::SeqCst);
            match service.mode {
                "broken" => broken_stream(": it works on it\n\n"),
                "resumed" | "lost" => broken_stream(&format!("id: {id}\nretry: 10\ndata: \n\n")),
                "ended" => events(": it works on it\n\n".to_owned()),
                "chatty" => {
                    let note = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}});
                    let result = json!({"jsonrpc": "2.0", "id": id, "result": answered()});
                    events(
                        format!("data: {note}\n\n").repeat(2_500) + &format!("data: {result}\n\n"),
                    )
                }
                _ => json("result", answered()),
            }
        }
        _ if id.is_null() => StatusCode::ACCEPTED.into_response(),
        _ => json("error", json!({"code": -32601, "message": "no"})),
    }
}

/// Returns a result of the protocol of 2026-07-28.
fn complete(mut result: Value) -> Value {
    let complete = json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "private"});
    for (key, value) in complete.as_object().unwrap() {
        result[key] = value.clone();
    }
    result
}

/// Returns a list of tools of which two have headers that are not valid.
fn with_headers() -> Value {
    let schema = |kind: &str, header: &str| json!({"type": "object", "properties": {"a": {"type": kind, "x-mcp-header": header}}});
    let tools = [
        tool("good", schema("string", "Region")),
        tool("list", schema("array", "Region")),
        tool("colon", schema("string", "a:b")),
        tool("plain", object()),
    ];
    json!({"tools": tools})
}

fn answered() -> Value {
    json!({"content": [{"type": "text", "text": "done"}]})
}

fn events(text: String) -> Response {
    ([("content-type", "text/event-stream")], text).into_response()
}

/// Answers with the beginning of an event stream, whose connection then breaks.
fn broken_stream(beginning: &str) -> Response {
    let beginning = stream::iter([Ok(Bytes::from(beginning.to_owned()))]);
    // The beginning is sent before.
    let error = stream::once(async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Err(std::io::Error::other("broken"))
    });
    let parts = beginning.chain(error);
    ([("content-type", "text/event-stream")], Body::from_stream(parts)).into_response()
}

/// Continues the event stream of a call.
async fn resumed(State(service): State<Arc<Service>>, headers: HeaderMap) -> Response {
    match headers.get("last-event-id") {
        Some(id) if service.mode == "resumed" => {
            let id: Value = serde_json::from_slice(id.as_bytes()).unwrap();
            let message = json!({"jsonrpc": "2.0", "id": id, "result": answered()});
            events(format!("data: {message}\n\n"))
        }
        Some(_) => StatusCode::NOT_FOUND.into_response(),
        // A stream that ends at once, and asks to be opened again at once.
        None if service.mode == "retry" => {
            service.refused.fetch_add(1, Ordering::SeqCst);
            events("retry: 0\ndata: \n\n".to_owned())
        }
        None => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

#[tokio::test]
async fn a_call_whose_event_stream_breaks_is_unknown_and_not_sent_again() {
    for (mode, expected) in
        [("broken", "unknown"), ("ended", "unknown"), ("lost", "unknown"), ("resumed", "success")]
    {
        let (service, address) = Service::start(mode).await;
        let folder = Folder::new(mode);
        let text = format!("[mcp.test]\nurl = \"http://{address}/mcp\"\ntimeout = \"20s\"\n");
        let model = calling([("test__act", json!({}))]);
        let host = folder.host(&text, &model).await;
        let session = host.open_session("one").await.unwrap();
        let report = session.run("go").await.unwrap();
        let (status, text) = result(&report);
        assert_eq!(status, expected, "{mode}: {text}");
        assert_eq!(service.calls.load(Ordering::SeqCst), 1, "{mode}");
        host.shutdown().await;
    }
}

#[tokio::test]
async fn the_messages_of_an_event_stream_are_read_at_a_limited_rate() {
    let (_service, address) = Service::start("chatty").await;
    let folder = Folder::new("chatty");
    let text = format!("[mcp.test]\nurl = \"http://{address}/mcp\"\n");
    let host = folder.host(&text, &calling([("test__act", json!({}))])).await;
    let session = host.open_session("one").await.unwrap();
    let began = Instant::now();
    assert_eq!(result(&session.run("go").await.unwrap()), ("success", "done"));
    assert!(began.elapsed() > Duration::from_millis(1_400), "{:?}", began.elapsed());
    host.shutdown().await;
}

#[tokio::test]
async fn an_event_stream_that_asks_for_no_wait_is_not_opened_again_at_once() {
    let (service, address) = Service::start("retry").await;
    let folder = Folder::new("retry");
    let text = format!("[mcp.test]\nurl = \"http://{address}/mcp\"\n");
    let host = folder.host(&text, &calling([])).await;
    let opened = || service.refused.load(Ordering::SeqCst);
    wait_until(|| opened() > 0).await;
    let (began, first) = (Instant::now(), opened());
    wait_until(|| opened() >= first + 5).await;
    assert!(began.elapsed() > Duration::from_millis(700), "{:?}", began.elapsed());
    host.shutdown().await;
}

#[tokio::test]
async fn a_line_without_end_costs_its_process_and_no_later_call() {
    let folder = Folder::new("line");
    let model = calling(std::array::from_fn::<_, 1_000, _>(|at| {
        ("test__act", if at == 0 { json!({"line": true}) } else { json!({}) })
    }));
    let host = folder.host(&process(&folder, "plain", ""), &model).await;
    let session = host.open_session("one").await.unwrap();
    assert_eq!(result(&session.run("go").await.unwrap()).0, "unknown");
    loop {
        let report = session.run("go").await.unwrap();
        let (status, text) = result(&report);
        if status == "success" {
            break;
        }
        assert!(text.contains("that did not end within max_skipped_bytes"), "{status}: {text}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let page = host.metrics_page().unwrap();
    assert!(
        page.contains("callsheet_mcp_limits_reached_total{server=\"test\",limit=\"line\"} 1"),
        "{page}"
    );
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_tool_with_a_wrong_header_is_left_out_with_the_reason() {
    for mode in ["headers", "headers in events"] {
        let (_service, address) = Service::start(mode).await;
        let folder = Folder::new("headers");
        let text = format!("[mcp.test]\nurl = \"http://{address}/mcp\"\nexclude = [\"colon\"]\n");
        let list = move || folder.tools(&text, &["list"]);
        let (succeeded, printed) = tokio::task::spawn_blocking(list).await.unwrap();
        assert!(succeeded, "{printed}");
        assert!(printed.contains("test__good") && printed.contains("test__plain"), "{printed}");
        assert!(!printed.contains("test__list") && !printed.contains("colon"), "{printed}");
        assert!(printed.contains("list") && printed.contains("x-mcp-header"), "{printed}");
    }
}

#[tokio::test]
async fn a_subscription_that_a_busy_service_did_not_open_is_opened_again() {
    let (service, address) = Service::start("headers busy").await;
    let folder = Folder::new("busy");
    let text = format!("[mcp.test]\nurl = \"http://{address}/mcp\"\n");
    let host = folder.host(&text, &calling([])).await;
    wait_until(|| service.refused.load(Ordering::SeqCst) == 2).await;
    host.shutdown().await;
}

#[tokio::test]
async fn a_new_connection_after_a_list_that_failed_loses_no_other_call() {
    let (service, address) = Service::start("drained").await;
    let folder = Folder::new("drained");
    let act = ("test__act", json!({}));
    let model = calling([act.clone()]);
    let others = calling([(); 100].map(|()| act.clone()));
    let text = format!("[mcp.test]\nurl = \"http://{address}/mcp\"\n");
    let host =
        folder.host_with(&text, &[("fake", Arc::new(model)), ("others", Arc::new(others))]).await;
    let slow = host.open_session("slow").await.unwrap();
    let slow = slow.start_run("go").await.unwrap();
    wait_until(|| service.calls.load(Ordering::SeqCst) == 1).await;
    let session = host.open_session("other").await.unwrap();
    let other = || {
        let mut request = RunRequest::from("go");
        request.overrides.model = Some("others".to_owned());
        request
    };
    assert_eq!(result(&session.run(other()).await.unwrap()).0, "unknown");
    // The list was read again, in vain, and then through another connection.
    wait_until(|| service.lists.load(Ordering::SeqCst) >= 3).await;
    service.released.add_permits(1);
    assert_eq!(result(&slow.report.await.unwrap()), ("success", "done"));
    while result(&session.run(other()).await.unwrap()).0 != "success" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(service.calls.load(Ordering::SeqCst), 3);
    host.shutdown().await;
}

#[tokio::test]
async fn a_call_in_a_lost_session_is_sent_in_a_new_one() {
    let (service, address) = Service::start("expired").await;
    let folder = Folder::new("expired");
    let act = ("test__act", json!({}));
    let model = calling([act]);
    let host = folder.host(&format!("[mcp.test]\nurl = \"http://{address}/mcp\"\n"), &model).await;
    let session = host.open_session("one").await.unwrap();
    assert_eq!(result(&session.run("go").await.unwrap()), ("success", "done"));
    assert_eq!(service.calls.load(Ordering::SeqCst), 1);
    host.shutdown().await;
}

#[tokio::test]
async fn a_refusal_of_a_service_is_an_error_and_a_failure_is_unknown() {
    let repeatable = "idempotent = true\nretries = 2\n";
    for (mode, keys, calls, status, text) in [
        ("status 303", "", 1, "unknown", "test answered HTTP 303 See Other"),
        ("status 400", repeatable, 1, "error", "test answered HTTP 400 Bad Request: no such city"),
        ("status 401", repeatable, 1, "error", "test answered HTTP 401 Unauthorized: no such city"),
        ("status 404", repeatable, 1, "error", "test answered HTTP 404 Not Found: no such city"),
        ("status 429", repeatable, 2, "success", "done"),
        ("status 429", "", 1, "error", "test answered HTTP 429 Too Many Requests"),
        ("status 500", repeatable, 2, "success", "done"),
        ("status 500", "", 1, "unknown", "test answered HTTP 500 Internal Server Error; the call"),
        ("status 202", "", 1, "unknown", "HTTP 202 or 204"),
        ("status 204", "", 1, "unknown", "HTTP 202 or 204"),
    ] {
        let (service, address) = Service::start(mode).await;
        let folder = Folder::new("status");
        let model = calling([("test__act", json!({}))]);
        let table = format!("[mcp.test]\nurl = \"http://{address}/mcp\"\n{keys}");
        let host = folder.host(&table, &model).await;
        let session = host.open_session("one").await.unwrap();
        let report = session.run("go").await.unwrap();
        let (found, answer) = result(&report);
        assert!(found == status && answer.contains(text), "{mode}: {found}: {answer}");
        assert_eq!(service.calls.load(Ordering::SeqCst), calls, "{mode}");
        assert!(!answer.contains("rmcp"), "{answer}");
        let kind = &report.calls[0].metadata["kind"];
        match status {
            "success" => {}
            _ if text.starts_with("test answered") => assert_eq!(kind, "http_status"),
            _ => assert_eq!(kind, "tool_error"),
        }
        host.shutdown().await;
    }
}

#[tokio::test]
async fn an_error_without_an_id_is_a_refusal_only_if_its_code_says_so() {
    for (mode, status, expected) in [
        ("error -32700", "error", "no such city (code -32700)"),
        ("error -32600", "error", "no such city (code -32600)"),
        ("error -32601", "error", "no such city (code -32601)"),
        ("error -32602", "error", "no such city (code -32602)"),
        ("error -32603", "unknown", "no such city (code -32603); the call may or may not have"),
        ("error -32000", "unknown", "no such city (code -32000); the call may or may not have"),
        ("error -32050", "unknown", "no such city (code -32050); the call may or may not have"),
    ] {
        let (service, address) = Service::start(mode).await;
        let folder = Folder::new("error");
        let model = calling([("test__act", json!({}))]);
        let table = format!("[mcp.test]\nurl = \"http://{address}/mcp\"\n");
        let host = folder.host(&table, &model).await;
        let session = host.open_session("one").await.unwrap();
        let report = session.run("go").await.unwrap();
        let (found, answer) = result(&report);
        assert!(found == status && answer.contains(expected), "{mode}: {found}: {answer}");
        assert_eq!(service.calls.load(Ordering::SeqCst), 1, "{mode}");
        host.shutdown().await;
    }
}

#[tokio::test]
async fn a_wrong_path_is_named_with_the_status_and_no_query_is_shown() {
    let (_service, address) = Service::start("plain").await;
    let closed = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    for (url, expected) in [
        (
            format!("http://{address}/nowhere"),
            format!("http://{address}/nowhere answered HTTP 404 Not Found"),
        ),
        (format!("http://{closed}/mcp"), format!("http://{closed}/mcp")),
    ] {
        let folder = Folder::new("path");
        let text = format!("[mcp.test]\nurl = \"{url}?key=hidden\"\n");
        let list = move || folder.tools(&text, &["list"]);
        let (_, printed) = tokio::task::spawn_blocking(list).await.unwrap();
        let down = printed.lines().find(|line| line.contains("is down")).unwrap();
        assert!(down.contains(&expected), "{printed}");
        assert!(!down.contains("rmcp") && !down.contains("hidden"), "{printed}");
    }
}
