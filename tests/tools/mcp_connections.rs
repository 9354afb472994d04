//! Connections to MCP servers: the question of the newest protocol, the handshake, what servers do that do not know the
//! one or the other, and servers that lose sessions. The process of a server is this test's own binary, which runs
//! [`server_process`].
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

mod credentials;
mod lost_sessions;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::folder::{Folder, calling, result, wait_until};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{any, post};
use axum::{Json, Router};
use callsheet::events::{EventId, FeedItem};
use callsheet::testing::FakeModel;
use futures::StreamExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// The process of a server, if the variable `MCP_MODE` is set.
#[test]
fn server_process() {
    let Ok(mode) = std::env::var("MCP_MODE") else { return };
    let folder = std::env::var("TEST_FOLDER").unwrap();
    let (path, me) = (Path::new(&folder), std::process::id());
    let log = |word: &str| {
        let file = OpenOptions::new().create(true).append(true).open(path.join("log"));
        writeln!(file.unwrap(), "{me} {word}").unwrap();
    };
    log("start");
    match &*mode {
        "usage" => {
            eprintln!("Error: no context");
            (0..100).for_each(|line| eprintln!("  --flag-{line} of which there are many"));
            eprintln!("see the manual");
            std::process::exit(1);
        }
        "mute" => {
            eprintln!("it downloads something");
            std::thread::sleep(LONG);
        }
        _ => {}
    }
    let is_first = requests(path).len() == 1;
    let mut is_asked = false;
    crate::process::serve(|method, _| {
        log(method);
        match (&*mode, method) {
            // As servers of the Rust SDK do.
            ("strict", "server/discover") => {
                eprintln!("expect initialized request");
                std::process::exit(1);
            }
            ("silent", "server/discover") => std::thread::sleep(LONG),
            ("late", "server/discover") => {
                // The other process has been asked in the meantime.
                while !requests(path).concat().contains(&"initialize".to_owned()) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return Some(discovered("2026-07-28"));
            }
            ("late", "initialize") if !is_first => std::thread::sleep(LONG),
            ("older", "server/discover") => {
                is_asked = true;
                return Some(discovered("2025-11-25"));
            }
            ("ends", "server/discover") => is_asked = true,
            ("ends" | "older", "initialize") if is_asked => std::process::exit(1),
            ("held", "initialize") => {
                while path.join("hold").exists() {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            ("wrong", "tools/list") => {
                let tool = json!({"name": "wrong", "inputSchema": {"type": 5}});
                return Some(json!({"tools": [tool]}));
            }
            ("listless", "tools/list") => {
                eprintln!("no database");
                std::process::exit(3);
            }
            (_, "tools/list") => {
                let names = ["echo", "die"];
                let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
                return Some(json!({"tools": names.map(tool), "resultType": "complete"}));
            }
            (_, "tools/call") => {
                if path.join("die").exists() {
                    std::fs::remove_file(path.join("die")).unwrap();
                    std::process::exit(1);
                }
                return Some(crate::process::content("done"));
            }
            _ => {}
        }
        None
    });
}

fn discovered(version: &str) -> Value {
    json!({
        "supportedVersions": [version], "capabilities": {"tools": {}},
        "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
    })
}

/// Returns the methods of the requests that each process of the folder has received, up to the list.
fn requests(folder: &Path) -> Vec<Vec<String>> {
    let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    let mut processes: Vec<(&str, Vec<String>)> = Vec::new();
    for (process, word) in log.lines().filter_map(|line| line.split_once(' ')) {
        let of_process = processes.iter_mut().rfind(|(number, _)| *number == process);
        match (word, of_process) {
            ("start", _) | (_, None) => processes.push((process, Vec::new())),
            ("server/discover" | "initialize", Some((_, words))) => words.push(word.to_owned()),
            (_, Some(_)) => {}
        }
    }
    processes.into_iter().map(|(_, words)| words).collect()
}

fn server(folder: &Folder, mode: &str, keys: &str) -> String {
    let table = crate::process::table(
        folder,
        "mcp_connections::server_process",
        "test",
        &format!("MCP_MODE = {mode:?}"),
    );
    table.replace("start_timeout = \"60s\"\n", "") + keys
}

const ECHO: &str = "test__echo";

fn echoing<const N: usize>() -> FakeModel {
    calling([(); N].map(|()| (ECHO, json!({}))))
}

/// Calls a tool of the server in a new host.
async fn call(folder: &Folder, text: &str) {
    let host = folder.host(text, &echoing::<1>()).await;
    let session = host.open_session(callsheet::OpenSession::default()).await.unwrap();
    assert_eq!(result(&session.run("go").await.unwrap()), ("success", "done"), "{text}");
    host.shutdown().await;
    folder.empty().await;
}

const DISCOVER: &str = "server/discover";
const INITIALIZE: &str = "initialize";

#[tokio::test]
async fn a_server_that_does_not_know_the_question_is_up_at_the_first_attempt_and_then_at_once() {
    for (mode, first) in [
        ("plain", vec![vec![DISCOVER, INITIALIZE]]),
        ("strict", vec![vec![DISCOVER], vec![INITIALIZE]]),
        ("ends", vec![vec![DISCOVER, INITIALIZE], vec![INITIALIZE]]),
        ("older", vec![vec![DISCOVER], vec![INITIALIZE]]),
    ] {
        let folder = Folder::new(mode);
        std::fs::create_dir(folder.path.join("data")).unwrap();
        let text = server(&folder, mode, "");
        call(&folder, &text).await;
        assert_eq!(requests(&folder.path), first, "{mode}");
        // The next host has read in the data directory what worked.
        call(&folder, &text).await;
        let mut expected = first;
        expected.push(vec![INITIALIZE]);
        assert_eq!(requests(&folder.path), expected, "{mode}");
    }
}

#[tokio::test]
async fn a_restart_after_a_crash_costs_one_start() {
    let folder = Folder::new("crash");
    let host = folder.host(&server(&folder, "strict", ""), &echoing::<1>()).await;
    let session = host.open_session("one").await.unwrap();
    std::fs::write(folder.path.join("die"), "").unwrap();
    assert_eq!(result(&session.run("go").await.unwrap()).0, "unknown");
    let expected = [[DISCOVER], [INITIALIZE], [INITIALIZE]];
    wait_until(|| requests(&folder.path) == expected).await;
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_second_process_gets_the_handshake_while_the_first_one_says_nothing() {
    let folder = Folder::new("silent");
    let text = server(&folder, "silent", "start_timeout = \"30s\"\n");
    let host = folder.host(&text, &echoing::<1>()).await;
    let session = host.open_session("one").await.unwrap();
    assert_eq!(result(&session.run("go").await.unwrap()), ("success", "done"));
    assert_eq!(requests(&folder.path), [[DISCOVER], [INITIALIZE]]);
    // The silent one was ended.
    wait_until(|| folder.processes() == 1).await;
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn an_answer_to_the_question_counts_however_late_it_comes() {
    let folder = Folder::new("late");
    // The second process is started after 10 s.
    call(&folder, &server(&folder, "late", "start_timeout = \"60s\"\n")).await;
    assert_eq!(requests(&folder.path), [[DISCOVER], [INITIALIZE]]);
}

#[tokio::test]
async fn a_server_with_a_configured_request_is_not_started_twice() {
    let folder = Folder::new("only");
    call(&folder, &server(&folder, "strict", "handshake = \"initialize\"\n")).await;
    assert_eq!(requests(&folder.path), [[INITIALIZE]]);
    let folder = Folder::new("only");
    let text = server(&folder, "plain", "handshake = \"discover\"\n");
    let (succeeded, printed) = folder.tools(&text, &["list"]);
    assert!(succeeded && printed.contains("server test is down"), "{printed}");
    assert_eq!(requests(&folder.path), [[DISCOVER]]);
}

#[tokio::test]
async fn calls_after_a_start_of_the_host_wait_for_the_server() {
    let folder = Folder::new("restart");
    std::fs::create_dir(folder.path.join("data")).unwrap();
    let text = server(&folder, "held", "");
    let host = folder.host(&text, &echoing::<1>()).await;
    host.open_session("one").await.unwrap().run("go").await.unwrap();
    host.shutdown().await;
    let hold = folder.path.join("hold");
    std::fs::write(&hold, "").unwrap();
    let host = folder.host(&text, &echoing::<1>()).await;
    let session = host.get_or_open_session("one").await.unwrap();
    let mut events = session.watch(EventId::default()).await.unwrap();
    let run = session.start_run("go").await.unwrap();
    while let Some(FeedItem::Event(event)) = events.next().await {
        if event.public().any(|event| event.json.contains(r#""waiting_for":"server""#)) {
            break;
        }
    }
    std::fs::remove_file(&hold).unwrap();
    assert_eq!(result(&run.report.await.unwrap()), ("success", "done"));
    host.shutdown().await;
    folder.empty().await;
}

/// Returns what `callsheet tools list` prints about a server that is down.
fn down(folder: &Folder, text: &str) -> String {
    let (succeeded, printed) = folder.tools(text, &["list"]);
    assert!(succeeded && printed.contains("is down"), "{printed}");
    printed
}

#[test]
fn the_reason_has_the_beginning_and_the_end_of_what_the_program_wrote() {
    let folder = Folder::new("usage");
    let printed = down(&folder, &server(&folder, "usage", ""));
    assert!(printed.contains("exit status 1; it wrote: Error: no context"), "{printed}");
    assert!(printed.contains("bytes left out]") && printed.contains("see the manual"), "{printed}");
    let printed = down(&folder, &server(&folder, "listless", ""));
    let expected = "its program ended with exit status 3; it wrote: no database";
    assert!(printed.contains(expected), "{printed}");
    let printed = down(
        &folder,
        &server(&folder, "mute", "handshake = \"initialize\"\nstart_timeout = \"15s\"\n"),
    );
    let expected = "within 15s (mcp.test.start_timeout); it wrote: it downloads something";
    assert!(printed.contains(expected), "{printed}");
}

#[test]
fn the_end_of_the_input_is_not_shown_as_the_error_of_the_server() {
    let folder = Folder::new("pipe");
    let script = "while read line; do id=${line#*'\"id\":'}; \
                  echo '{\"jsonrpc\":\"2.0\",\"id\":'${id%%[,\\}]*}',\"error\":{\"code\":-1,\"message\":\"no licence\"}}'; \
                  done; echo broken pipe >&2; exit 1";
    let text = folder.server("test", &["sh", "-c", script], "A = \"a\"");
    let printed = down(&folder, &text);
    assert!(printed.contains("the handshake failed: no licence (code -1)"), "{printed}");
    assert!(!printed.contains("broken pipe") && !printed.contains("exit status"), "{printed}");
}

#[test]
fn a_program_that_may_not_be_started_is_named_with_its_interpreter() {
    let folder = Folder::new("denied");
    let (script, interpreter) = (folder.path.join("script"), folder.path.join("interpreter"));
    std::fs::write(&interpreter, "").unwrap();
    std::fs::write(&script, format!("#! {} -x\n", interpreter.display())).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (script, interpreter) = (script.display().to_string(), interpreter.display().to_string());
    let printed = down(&folder, &folder.server("test", &[&script], "A = \"a\""));
    let expected = format!("the program {script} did not start: Permission denied");
    assert!(printed.contains(&expected), "{printed}");
    assert!(printed.contains(&format!("its interpreter is {interpreter}")), "{printed}");
}

#[test]
fn a_check_fails_if_a_server_is_down_or_a_tool_is_left_out() {
    for (mode, expected) in [("plain", true), ("usage", false), ("wrong", false)] {
        let folder = Folder::new("check");
        let text = server(&folder, mode, "");
        let (succeeded, printed) = folder.tools(&text, &["list", "--check"]);
        assert_eq!(succeeded, expected, "{printed}");
        assert!(folder.tools(&text, &["list"]).0, "{mode}");
    }
}

/// A service that answers the question in an unusual way.
struct Service {
    mode: &'static str,
    /// The methods of the requests up to the list.
    requests: Mutex<Vec<String>>,
}

impl Service {
    async fn start(mode: &'static str) -> (Arc<Self>, SocketAddr) {
        let service = Arc::new(Self { mode, requests: Mutex::default() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new()
            .route("/mcp", post(answer))
            .route("/moved", any(|| async { Redirect::temporary("/mcp") }))
            .route("/twice", any(|| async { Redirect::permanent("/moved") }))
            .route("/see-other", any(|| async { Redirect::to("/mcp?key=hidden") }))
            .route("/elsewhere", any(|| async { Redirect::permanent("http://example.com/mcp") }))
            .with_state(Arc::clone(&service));
        #[expect(clippy::disallowed_methods, reason = "the service ends with the test")]
        drop(tokio::spawn(async move { axum::serve(listener, app).await }));
        (service, address)
    }
}

async fn answer(State(service): State<Arc<Service>>, Json(message): Json<Value>) -> Response {
    let method = message["method"].as_str().unwrap();
    if matches!(method, DISCOVER | INITIALIZE) {
        service.requests.lock().push(method.to_owned());
    }
    let result = match (service.mode, method) {
        ("failure", DISCOVER) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        ("page", DISCOVER) => return axum::response::Html("<p>Hello").into_response(),
        ("accepted", DISCOVER) => return StatusCode::ACCEPTED.into_response(),
        ("closed", DISCOVER) => panic!("this closes the connection without an answer"),
        ("silent", DISCOVER) => return std::future::pending().await,
        ("missing", DISCOVER) => return StatusCode::NOT_FOUND.into_response(),
        (_, INITIALIZE) => json!({
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": {"name": "test", "version": "1"},
        }),
        (_, "tools/list") => {
            json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
        }
        (_, "tools/call") => crate::process::content("done"),
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    Json(json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).into_response()
}

#[tokio::test]
async fn a_service_that_does_not_know_the_question_is_up_at_the_first_attempt_and_then_at_once() {
    for mode in ["failure", "page", "accepted", "closed", "silent", "missing"] {
        let (service, address) = Service::start(mode).await;
        let folder = Folder::new(mode);
        std::fs::create_dir(folder.path.join("data")).unwrap();
        // The handshake begins after a third.
        let limit = if mode == "silent" { "15s" } else { "30s" };
        let text =
            format!("[mcp.test]\nurl = \"http://{address}/mcp\"\nstart_timeout = \"{limit}\"\n");
        call(&folder, &text).await;
        assert_eq!(*service.requests.lock(), [DISCOVER, INITIALIZE], "{mode}");
        call(&folder, &text).await;
        assert_eq!(*service.requests.lock(), [DISCOVER, INITIALIZE, INITIALIZE], "{mode}");
    }
}

#[tokio::test]
async fn redirects_within_the_origin_that_keep_the_request_are_followed_and_others_are_named() {
    for (path, target) in [
        ("moved", None),
        ("twice", None),
        ("see-other", Some("HTTP 303 See Other, redirects to http://ADDRESS/mcp\n")),
        ("elsewhere", Some("HTTP 308 Permanent Redirect, redirects to http://example.com/mcp\n")),
    ] {
        let (service, address) = Service::start("missing").await;
        let folder = Folder::new("redirect");
        let text = format!("[mcp.test]\nurl = \"http://{address}/{path}\"\n");
        let Some(target) = target else {
            call(&folder, &text).await;
            continue;
        };
        let target = target.replace("ADDRESS", &address.to_string());
        let printed = tokio::task::spawn_blocking(move || down(&folder, &text)).await.unwrap();
        assert!(printed.contains(&format!("/{path} answered {target}")), "{printed}");
        assert!(service.requests.lock().is_empty(), "{path}");
    }
}
