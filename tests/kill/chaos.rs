//! Tools whose servers, programs and hosts are killed at random. Every call is answered, each effect happens at
//! most once (counted where it happens), the prefix of requests stays, and no process is left.
//!
//! The short form runs with the other tests. The long ones:
//! `CALLSHEET_CHAOS_SESSIONS=10000 cargo test --release --test kill -- chaos::a_shared chaos::the_servers --nocapture`
//! and `CALLSHEET_KILLS=100 cargo test --test kill -- chaos::a_host --nocapture`.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::collections::{BTreeMap, HashMap};
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::folder::{Folder, calling, result, wait_until};
use axum::Router;
use axum::http::Uri;
use callsheet::model::{ModelReply, ModelRequest, ModelSource, ModelStream};
use callsheet::prelude::*;
use callsheet_mock_provider::{Call, MockProvider, MockProviderOptions, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The process of a server, if the variable `TEST_FOLDER` is set. Its tool writes the argument `n` to a file.
#[test]
fn server_process() {
    let Ok(folder) = std::env::var("TEST_FOLDER") else { return };
    let folder = Path::new(&folder);
    std::fs::write(folder.join("pid"), std::process::id().to_string()).unwrap();
    crate::process::serve(|method, params| match method {
        "tools/list" => {
            let schema = json!({"type": "object"});
            Some(json!({"tools": [{"name": "act", "description": "Acts.", "inputSchema": schema}]}))
        }
        "tools/call" => {
            let n = &params["arguments"]["n"];
            let number = n.as_u64().unwrap_or_default();
            // It also dies by itself, before and after an effect.
            if number % 499 == 13 {
                std::process::exit(1);
            }
            effect(folder, "effects", &n.to_string());
            if number % 499 == 55 {
                std::process::exit(1);
            }
            Some(crate::process::content("done"))
        }
        _ => None,
    });
}

fn effect(folder: &Path, file: &str, line: &str) {
    let file = OpenOptions::new().create(true).append(true).open(folder.join(file));
    file.unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Returns how many times each line is in a file of effects.
fn effects(folder: &Folder, file: &str) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(folder.path.join(file)).unwrap_or_default();
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        *counts.entry(line.trim_matches('"').to_owned()).or_default() += 1;
    }
    counts
}

fn server(folder: &Folder, keys: &str) -> String {
    crate::process::table(folder, "chaos::server_process", "test", "") + keys
}

/// Returns a number below `limit`, the next one of a fixed series.
fn random(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % limit
}

fn kill(pid: u32) {
    let kill = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
    kill.unwrap();
}

/// A model that calls `test__act` once in each run, and checks that each request repeats the one before it of
/// its session.
#[derive(Default)]
struct CheckingModel {
    calls: AtomicUsize,
    /// The messages of the last request of each session, and the tools of all.
    last: Mutex<HashMap<String, String>>,
    tools: Mutex<Option<String>>,
    breaks: AtomicUsize,
}

impl ModelSource for CheckingModel {
    fn respond(&self, request: ModelRequest) -> ModelStream {
        let messages: Vec<Value> = request
            .messages
            .iter()
            .map(|message| serde_json::to_value(&**message).unwrap())
            .collect();
        let texts: Vec<String> = messages.iter().map(Value::to_string).collect();
        let (session, text) = (texts[0].clone(), texts.join(","));
        let tools = format!("{:?}", request.tools);
        let is_prefix = {
            let last = self.last.lock().insert(session, text.clone());
            let same = *self.tools.lock().get_or_insert_with(|| tools.clone()) == tools;
            same && last.is_none_or(|last| text.starts_with(&last))
        };
        self.breaks.fetch_add(usize::from(!is_prefix), Ordering::Relaxed);
        let is_answer = texts.last().unwrap().contains("tool_call_id");
        if is_answer {
            return ModelReply::text("done").into_stream();
        }
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        ModelReply::call("test__act", json!({"n": n})).into_stream()
    }
}

/// Runs many sessions on a server whose processes are killed at random, for this time.
async fn server_is_killed(keys: &str, sessions: usize, time: Duration) {
    let folder = Folder::new("chaos");
    let model = Arc::new(CheckingModel::default());
    let source: Arc<dyn ModelSource> = Arc::clone(&model) as _;
    let host = folder.host_with(&server(&folder, keys), &[("fake", source)]).await;
    let began = tokio::time::Instant::now();
    let mut running = JoinSet::new();
    for number in 0..sessions {
        let host = host.clone();
        running.spawn(async move {
            let session = host.open_session(format!("s{number}")).await.unwrap();
            let mut outcomes = Vec::new();
            while outcomes.is_empty() || began.elapsed() < time {
                let report = session.run(format!("s{number}")).await.unwrap();
                assert_eq!(report.run_end, RunEnd::Answered, "{report:?}");
                let status = result(&report).0.to_owned();
                outcomes.push((report.calls[0].arguments["n"].to_string(), status));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            outcomes
        });
    }
    // Many sessions need more time between two kills.
    let (pause, mut seed, mut kills) = (200 + sessions as u64 / 2, 11, 0);
    let mut outcomes = Vec::new();
    loop {
        tokio::select! {
            done = running.join_next() => match done {
                Some(done) => outcomes.extend(done.unwrap()),
                None => break,
            },
            () = tokio::time::sleep(Duration::from_millis(pause + random(&mut seed, 1500))) => {
                let pid = std::fs::read_to_string(folder.path.join("pid"));
                if let Ok(pid) = pid.unwrap_or_default().parse() {
                    kill(pid);
                    kills += 1;
                }
            }
        }
    }
    let took = began.elapsed();
    host.shutdown().await;
    folder.empty().await;
    let effects = effects(&folder, "effects");
    let mut counts = BTreeMap::new();
    for (n, status) in &outcomes {
        *counts.entry(status.as_str()).or_insert(0) += 1;
        let happened = effects.get(n).copied().unwrap_or_default();
        let expected = match status.as_str() {
            "success" => 1..=1,
            "unknown" => 0..=1,
            // The call was not sent.
            "error" => 0..=0,
            other => panic!("{other}"),
        };
        assert!(expected.contains(&happened), "call {n} is {status} and happened {happened} times");
    }
    println!("{sessions} sessions, {kills} kills, {took:.1?}: {counts:?}");
    assert_eq!(outcomes.len(), model.calls.load(Ordering::Relaxed), "each call is answered");
    assert_eq!(model.breaks.load(Ordering::Relaxed), 0, "the prefix of requests stays");
    assert!(counts["success"] > 0 && kills > 0, "{counts:?}");
}

/// Number of sessions from `CALLSHEET_CHAOS_SESSIONS`.
fn sessions() -> Option<usize> {
    std::env::var("CALLSHEET_CHAOS_SESSIONS").ok().map(|number| number.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_server_is_killed_under_load() {
    let time = if sessions().is_some() { 30 } else { 6 };
    server_is_killed("", sessions().unwrap_or(100), Duration::from_secs(time)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_of_sessions_are_killed_under_load() {
    server_is_killed("share = \"session\"\n", 10, Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_thousand_connections_leave_no_process() {
    let cycles = if sessions().is_some() { 1000 } else { 20 };
    let folder = Folder::new("cycles");
    let text = server(&folder, "share = \"session\"\n");
    let (succeeded, listed) = folder.tools(&text, &["list"]);
    assert!(succeeded && listed.contains("test__act"), "{listed}");
    let model = CheckingModel::default();
    let host = folder.host_with(&text, &[("fake", Arc::new(model))]).await;
    for number in 0..cycles {
        let session = host.open_session(format!("c{number}")).await.unwrap();
        session.run("go").await.unwrap();
        session.close().await.unwrap();
    }
    folder.empty().await;
    host.shutdown().await;
    // The helpers of other tests work here, too.
    let host = folder.host(&text, &calling([("test__act", json!({"n": 1}))])).await;
    host.open_session("last").await.unwrap().run("go").await.unwrap();
    host.shutdown().await;
    folder.empty().await;
}

/// A process of the real binary.
struct HostProcess {
    child: Child,
    address: String,
}

impl HostProcess {
    fn start(folder: &Folder) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_callsheet"))
            .args(["serve", "--data-dir", "data"])
            .current_dir(&folder.path)
            .env("CALLSHEET_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                let address = line.strip_prefix("callsheet: listening on http://")?.to_owned();
                address.split(' ').next().map(str::to_owned)
            })
            .unwrap();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, address }
    }

    /// Sends a request. `None` if the host is gone.
    async fn request(&self, method: &str, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).await.ok()?;
        let length = body.len();
        let request = format!(
            "{method} /v1/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    }

    fn end(mut self, signal: &str) -> std::process::ExitStatus {
        let pid = self.child.id().to_string();
        Command::new("kill").args([signal, &pid]).status().unwrap();
        self.child.wait().unwrap()
    }
}

/// Starts a service that notes each request in the file `effects-http`.
async fn service(folder: &Folder) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, path) = (listener.local_addr().unwrap().port(), folder.path.clone());
    let note = async move |uri: Uri| {
        effect(&path, "effects-http", uri.path().trim_start_matches('/'));
        tokio::time::sleep(Duration::from_millis(10)).await;
        "done"
    };
    let app = Router::new().fallback(move |uri| {
        let note = note.clone();
        async move { note(uri).await }
    });
    #[expect(clippy::disallowed_methods, reason = "the service ends with the test")]
    drop(tokio::spawn(async move { axum::serve(listener, app).await }));
    port
}

fn configuration(folder: &Folder, model: &str, port: u16) -> String {
    let marker = folder.path.display();
    let servers = server(folder, "");
    format!(
        r#"{servers}
[host]
listen = "127.0.0.1:0"
[models.main]
wire = "openai-chat"
base_url = "{model}"
model = "scripted"
breaker_failures = 0
[agents.default]
model = "main"
tools = ["test__act", "note", "post"]
execution = {{ parallel = 4 }}
[tools.note]
kind = "command"
description = "Notes."
input = {{ n = {{ type = "string" }} }}
command = ["sh", "-c", "echo \"$0\" >> effects-command; sleep 0.02", "{{n}}"]
env = {{ TEST_FOLDER = "{marker}" }}
[tools.post]
kind = "http"
description = "Posts."
input = {{ n = {{ type = "string" }} }}
method = "POST"
url = "http://127.0.0.1:{port}/{{n}}"
body = "none"
"#
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_killed_with_tools_of_all_kinds_running() {
    let kills = std::env::var("CALLSHEET_KILLS").map_or(6, |number| number.parse().unwrap());
    let folder = Folder::new("host");
    let options = MockProviderOptions::default().with(|new| new.keep_requests = 0);
    let model = MockProvider::start(options).await.unwrap();
    let port = service(&folder).await;
    let text = configuration(&folder, &model.base_url(), port);
    std::fs::write(folder.path.join("callsheet.toml"), text).unwrap();
    let mut seed = 5;
    let mut sessions = Vec::new();
    for round in 0..kills {
        let host = HostProcess::start(&folder);
        for number in 0..4 {
            let name = format!("r{round}-{number}");
            let input = format!("job {name};");
            let calls = |turn: usize| {
                let call =
                    |tool: &str| Call::new(tool, json!({"n": format!("{name}-{turn}-{tool}")}));
                Response::calls(["test__act", "note", "post"].map(call))
            };
            for (turn, response) in
                [calls(0), calls(1), Response::text("done")].into_iter().enumerate()
            {
                model.push(response.with(|response| {
                    response.when.last_user = Some(input.clone());
                    response.when.turns = Some(turn);
                    response.repeat = true;
                }));
            }
            let id = json!({"id": name}).to_string();
            let run = json!({"input": input}).to_string();
            let opened = host.request("POST", "sessions", &id).await.unwrap();
            assert!(opened.contains("201"), "{opened}");
            let begun = host.request("POST", &format!("sessions/{name}/runs"), &run).await.unwrap();
            assert!(begun.contains("202"), "{begun}");
            sessions.push(name);
        }
        tokio::time::sleep(Duration::from_millis(random(&mut seed, 250))).await;
        host.end("-KILL");
        folder.empty().await;
    }
    let host = HostProcess::start(&folder);
    for name in &sessions {
        let is_idle = async {
            loop {
                let shown = host.request("GET", &format!("sessions/{name}"), "").await.unwrap();
                if shown.contains("\"state\":\"idle\"") {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), is_idle).await.unwrap();
    }
    assert_eq!(host.end("-TERM").code(), Some(0));
    wait_until(|| folder.processes() == 0).await;
    let verified = Command::new(env!("CARGO_BIN_EXE_callsheet"))
        .args(["sessions", "verify", "--data-dir", "data"])
        .current_dir(&folder.path)
        .output()
        .unwrap();
    assert!(verified.status.success(), "{verified:?}");
    for file in ["effects", "effects-command", "effects-http"] {
        let effects = effects(&folder, file);
        let twice: Vec<_> = effects.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "{file}: {twice:?}");
        println!("{file}: {} effects in {} runs, {kills} kills", effects.len(), sessions.len());
        assert!(!effects.is_empty());
    }
}
