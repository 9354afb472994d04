//! Tools of MCP servers, with real processes and a real HTTP service. The process of a server is this test's
//! own binary, which runs [`server_process`].
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::fs::OpenOptions;
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use callsheet::config::{ApiKey, Config, JournalEngine, ModelConfig, ToolPattern};
use callsheet::model::ModelReply;
use callsheet::prelude::*;
use callsheet::testing::FakeModel;
use callsheet::tool::ToolRegistry;
use serde_json::{Value, json};

/// A variable of the host with a secret value: cargo sets it for tests.
const SECRET_VARIABLE: &str = "CARGO_PKG_DESCRIPTION";

/// The key of the model, which no server was given.
const MODEL_KEY: &str = "sk-model-0123456789";

const WAIT_MAX: Duration = Duration::from_secs(30);

/// The process of a server, if the variable `MCP_MODE` is set.
#[test]
fn server_process() {
    let Ok(mode) = std::env::var("MCP_MODE") else { return };
    if mode == "mute" {
        std::thread::sleep(Duration::from_secs(600));
    }
    if mode == "fails" {
        eprintln!("no\n\u{1b}[31mdatabase");
        std::process::exit(3);
    }
    if mode == "leaks" {
        // The first secret is cut at the end of the beginning that the host keeps, the other one at the beginning of
        // the end.
        let (secret, beginning) = (std::env::var("TOKEN").unwrap(), "w".repeat(1_024 - 20));
        eprint!("{beginning}{secret}{}", "y".repeat(3_000));
        eprint!("{secret}{}last words", "x".repeat(2_048 - 30));
        std::process::exit(3);
    }
    if mode == "leaks-key" {
        eprint!("{}{MODEL_KEY}{}", "w".repeat(1_024 - 12), "y".repeat(3_000));
        eprint!("{MODEL_KEY}{}last words", "x".repeat(2_048 - 22));
        std::process::exit(3);
    }
    if mode == "keys" {
        println!("{}{MODEL_KEY}", "x".repeat(190));
    }
    let child = (mode == "stubborn")
        .then(|| std::process::Command::new("sleep").arg("600").spawn().unwrap());
    let (mut mode, mut subscription) = (mode, Value::Null);
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        log(&line);
        let message: Value = serde_json::from_str(&line).unwrap();
        let id = message["id"].clone();
        match message["method"].as_str().unwrap_or_default() {
            "server/discover" if mode == "modern" => send(&id, &discovered()),
            "subscriptions/listen" if mode == "modern" => {
                notify("subscriptions/acknowledged", &id, &json!({"toolsListChanged": true}));
                subscription = id;
            }
            "initialize" => send(&id, &initialized(&message)),
            "tools/list" => {
                send(&id, &json!({"tools": described(&mode), "resultType": "complete"}))
            }
            // It reads nothing any more.
            "tools/call" if mode == "deaf" => std::thread::sleep(Duration::from_secs(600)),
            "tools/call" => {
                called(&id, &message["params"]);
                if mode == "modern" {
                    mode = "changed".to_owned();
                    notify("tools/list_changed", &subscription, &Value::Null);
                }
            }
            _ if id.is_null() => {}
            _ => write(
                &json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}}),
            ),
        }
    }
    if let Some(mut child) = child {
        child.wait().unwrap();
    }
    std::process::exit(0);
}

/// Returns the answer of a server of the protocol of 2026-07-28.
fn discovered() -> Value {
    let capabilities = json!({"tools": {"listChanged": true}});
    json!({
        "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
        "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
    })
}

/// Sends a notification of a subscription.
fn notify(method: &str, subscription: &Value, notifications: &Value) {
    let meta = json!({"io.modelcontextprotocol/subscriptionId": subscription});
    let params = match notifications.is_null() {
        true => json!({"_meta": meta}),
        false => json!({"_meta": meta, "notifications": notifications}),
    };
    let method = format!("notifications/{method}");
    write(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
}

fn initialized(message: &Value) -> Value {
    let version = message["params"]["protocolVersion"].clone();
    let capabilities = json!({"tools": {"listChanged": true}});
    let server = json!({"name": "test", "version": "1"});
    json!({"protocolVersion": version, "capabilities": capabilities, "serverInfo": server})
}

fn described(mode: &str) -> Value {
    let tool = |name: &str| json!({"name": name, "description": format!("Does {name}."), "inputSchema": {"type": "object"}});
    let names: &[&str] = if mode == "changed" {
        &["echo", "new"]
    } else {
        &["sleep", "echo", "die", "secret", "progress"]
    };
    let mut tools: Vec<Value> = names.iter().map(|name| tool(name)).collect();
    tools.push(json!({"name": "broken", "inputSchema": {"type": 5}}));
    if mode == "keys" {
        let schema = json!({"type": "object", "properties": {MODEL_KEY: {"const": MODEL_KEY}}});
        tools.push(json!({
            "name": format!("good_{MODEL_KEY}"), "description": format!("Uses {MODEL_KEY}."),
            "inputSchema": schema, "outputSchema": schema, "annotations": {"title": MODEL_KEY},
        }));
        tools.push(json!({"name": MODEL_KEY, "inputSchema": {"type": MODEL_KEY}}));
    }
    Value::from(tools)
}

fn called(id: &Value, params: &Value) {
    let arguments = params["arguments"].clone();
    let answer = |text: &str| json!({"content": [{"type": "text", "text": text}], "isError": text == "fail"});
    match params["name"].as_str().unwrap() {
        "die" => {
            eprintln!("it hurts");
            std::process::exit(4);
        }
        "sleep" => {}
        "secret" => send(id, &answer(&std::env::var("TOKEN").unwrap_or_default())),
        "progress" => {
            let token = &params["_meta"]["progressToken"];
            let params = json!({"progressToken": token, "progress": 1, "message": "half"});
            let method = "notifications/progress";
            write(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
            std::thread::sleep(Duration::from_millis(100));
            send(id, &answer("done"));
        }
        "echo" => {
            println!("this is no message");
            // An answer to nothing, and the same answer twice.
            send(&json!(4711), &answer("wrong"));
            send(id, &answer(arguments["text"].as_str().unwrap_or_default()));
            send(id, &answer("again"));
        }
        other => send(id, &answer(other)),
    }
}

fn send(id: &Value, result: &Value) {
    write(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
}

fn write(message: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{message}").unwrap();
    out.flush().unwrap();
}

fn log(line: &str) {
    let Ok(path) = std::env::var("LOG") else { return };
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    writeln!(file, "{line}").unwrap();
}

/// The folder of a configuration with a server.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new(name: &str) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("mcp-program-{name}-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self { path }
    }

    /// Returns the table of a server, and of an agent that names all tools.
    fn text(&self, mode: &str, keys: &str) -> String {
        let (binary, log) = (std::env::current_exe().unwrap(), self.path.join("log"));
        let arguments = "\"--exact\", \"mcp::server_process\", \"--nocapture\"";
        format!(
            "[mcp.test]\ncommand = [{:?}, {arguments}]\nenv = {{ MCP_MODE = {mode:?}, LOG = {:?} }}\n\
             secret_env = {{ TOKEN = {SECRET_VARIABLE:?} }}\n{keys}\n",
            binary.display().to_string(),
            log.display().to_string(),
        )
    }

    fn config(&self, text: &str) -> Result<(Config, ToolRegistry), String> {
        callsheet::launcher::use_binary(env!("CARGO_BIN_EXE_callsheet"));
        let file = self.path.join("callsheet.toml").display().to_string();
        let config = Config::parse(text, &file, &|name| std::env::var(name).ok());
        let mut config = config.map_err(|error| error.to_string())?;
        config.agents.get_mut("default").unwrap().tools = vec![ToolPattern::new("*")];
        let mut fake = ModelConfig::for_source("fake");
        fake.api_key = Some(ApiKey::new(MODEL_KEY).unwrap());
        config.use_model("fake", fake);
        config.journal.engine = JournalEngine::Sqlite;
        config.host.data_dir = self.path.join("data");
        let mut registry = ToolRegistry::new();
        registry.register_configured(&config).map_err(|error| error.to_string())?;
        Ok((config, registry))
    }

    async fn host(&self, text: &str, model: &FakeModel) -> Host {
        let (config, registry) = self.config(text).unwrap();
        let host = Host::builder().config(config).tools(registry);
        host.model_source("fake", model.clone()).start().await.unwrap()
    }

    /// Returns the messages of a method that servers of this folder have received.
    fn received(&self, method: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(self.path.join("log")).unwrap_or_default();
        let messages = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        messages.filter(|message| message["method"] == method).collect()
    }

    /// Waits until a server has received a message of this method.
    async fn receives(&self, method: &str) -> Value {
        let received = async {
            loop {
                match self.received(method).pop() {
                    Some(message) => return message,
                    None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        tokio::time::timeout(WAIT_MAX, received).await.unwrap()
    }

    /// Returns the number of processes that were started for this folder.
    fn processes(&self) -> usize {
        let marker = self.path.display().to_string();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let is_marked = |process: &std::fs::DirEntry| {
            let environ = std::fs::read(process.path().join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environ).contains(&marker)
        };
        processes.filter(is_marked).count()
    }

    /// Waits until no process of this folder is left.
    async fn empty(&self) {
        let gone = async {
            while self.processes() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(WAIT_MAX, gone).await.unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn call(tool: &str, arguments: Value) -> ModelReply {
    ModelReply::call(tool, arguments)
}

/// Returns a model that makes these calls, one in each run.
fn calling<const N: usize>(calls: [(&str, Value); N]) -> FakeModel {
    let replies = calls
        .into_iter()
        .flat_map(|(tool, arguments)| [call(tool, arguments), ModelReply::text("done")]);
    FakeModel::replies(replies)
}

/// Returns status and result of the only call of a run.
fn result(report: &RunReport) -> (&str, &str) {
    assert_eq!(report.calls.len(), 1, "{report:?}");
    (report.calls[0].status.as_str(), &report.calls[0].result)
}

/// Returns the names of the tools of each request, without the one that the host adds.
fn offered(model: &FakeModel) -> Vec<Vec<String>> {
    let names = |request: &callsheet::model::ModelRequest| {
        let names = request.tools.iter().map(|tool| tool.name.clone());
        names.filter(|name| name != "read_var").collect()
    };
    model.requests().iter().map(names).collect()
}

const ALL: [&str; 5] = ["test__die", "test__echo", "test__progress", "test__secret", "test__sleep"];

#[tokio::test]
async fn a_server_answers_calls_of_all_sessions_through_one_process() {
    let folder = Folder::new("answers");
    let echo = |text: &str| ("test__echo", json!({"text": text}));
    let model = calling([echo("one"), echo("two"), echo("fail"), ("test__secret", json!({}))]);
    let host = folder.host(&folder.text("plain", ""), &model).await;
    let (one, two) =
        (host.open_session("one").await.unwrap(), host.open_session("two").await.unwrap());
    assert_eq!(result(&one.run("go").await.unwrap()), ("success", "one"));
    assert_eq!(result(&two.run("go").await.unwrap()), ("success", "two"));
    assert_eq!(result(&one.run("go").await.unwrap()), ("error", "fail"));
    let report = one.run("go").await.unwrap();
    assert_eq!(result(&report), ("success", "[redacted]"));
    assert!(offered(&model).iter().all(|names| *names == ALL), "{:?}", offered(&model));
    assert_eq!(folder.received("initialize").len(), 1);
    let calls = folder.received("tools/call");
    let keys: Vec<_> = calls
        .iter()
        .map(|call| call["params"]["_meta"]["io.callsheet/idempotency-key"].as_str().unwrap())
        .collect();
    assert!(keys[0].ends_with("t1a1c0") && keys[0] != keys[1], "{keys:?}");
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_server_of_the_newest_protocol_needs_no_handshake_and_reports_changes() {
    let folder = Folder::new("modern");
    let model = calling([("test__echo", json!({"text": "hi"}))]);
    let host = folder.host(&folder.text("modern", ""), &model).await;
    let session = host.open_session("one").await.unwrap();
    folder.receives("subscriptions/listen").await;
    assert_eq!(result(&session.run("go").await.unwrap()), ("success", "hi"));
    assert_eq!(offered(&model), [ALL, ALL]);
    let changed = async {
        while session.refresh_tools().await.unwrap().added != ["test__new"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, changed).await.unwrap();
    assert!(folder.received("initialize").is_empty());
    let call = folder.receives("tools/call").await;
    let version = &call["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
    assert_eq!(version, "2026-07-28");
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_call_whose_server_dies_is_unknown_and_the_next_one_works() {
    let folder = Folder::new("dies");
    let echo = ("test__echo", json!({"text": "back"}));
    let model = calling([("test__die", json!({})), echo]);
    let host = folder.host(&folder.text("plain", ""), &model).await;
    let session = host.open_session("one").await.unwrap();
    let report = session.run("go").await.unwrap();
    let (status, text) = result(&report);
    assert_eq!(status, "unknown", "{text}");
    assert!(text.contains("the server test broke") && text.contains("may or may not"), "{text}");
    // It waits until the server is started again.
    assert_eq!(result(&session.run("go").await.unwrap()), ("success", "back"));
    let calls = folder.received("tools/call");
    assert_eq!(calls.iter().filter(|call| call["params"]["name"] == "die").count(), 1);
    assert!(offered(&model).iter().all(|names| *names == ALL));
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_stopped_call_is_cancelled_on_the_server() {
    let folder = Folder::new("cancel");
    let model = calling([("test__sleep", json!({})), ("test__echo", json!({"text": "on"}))]);
    let host = folder.host(&folder.text("plain", ""), &model).await;
    let session = host.open_session("one").await.unwrap();
    let run = session.start_run("go").await.unwrap();
    let sent = folder.receives("tools/call").await;
    session.stop(StopMode::Now).await.unwrap();
    let cancelled = folder.receives("notifications/cancelled").await;
    assert_eq!(cancelled["params"]["requestId"], sent["id"]);
    run.report.await.unwrap();
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_call_without_an_answer_ends_after_its_time_and_progress_is_passed_on() {
    let folder = Folder::new("times");
    let model = calling([("test__sleep", json!({})), ("test__progress", json!({}))]);
    let text = folder.text("plain", "timeout = \"300ms\"\nmax_timeout = \"5s\"");
    let host = folder.host(&text, &model).await;
    let session = host.open_session("one").await.unwrap();
    let report = session.run("go").await.unwrap();
    let expected = "Error: no answer within 300ms (mcp.test.timeout)";
    assert_eq!(result(&report), ("timeout", expected));
    folder.receives("notifications/cancelled").await;
    let mut run = session.start_run("go").await.unwrap();
    let mut progress = Vec::new();
    while let Some(event) = run.next_event().await.unwrap() {
        if let RunEvent::CallProgressed { text, .. } = event {
            progress.push(text);
        }
    }
    assert_eq!(progress, ["half"]);
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn calls_end_in_time_although_the_server_reads_nothing() {
    let folder = Folder::new("deaf");
    // More than a pipe holds.
    let long = "x".repeat(60_000);
    let echo = ("test__echo", json!({"text": long}));
    let model = calling([(); 4].map(|()| echo.clone()));
    let host = folder.host(&folder.text("deaf", "timeout = \"300ms\""), &model).await;
    let session = host.open_session("one").await.unwrap();
    // The first is read, and the pipe takes the second and a part of the third.
    for _ in 0..3 {
        assert_eq!(result(&session.run("go").await.unwrap()).0, "timeout");
    }
    let report = session.run("go").await.unwrap();
    let (status, text) = result(&report);
    assert!(status == "error" && text.contains("this one was not sent"), "{status}: {text}");
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn servers_that_do_not_start_are_left_out_and_end() {
    for (mode, expected) in [
        ("mute", "did not answer within"),
        ("fails", "exit status 3; it wrote: no \\u{1b}[31mdatabase"),
    ] {
        let folder = Folder::new(mode);
        let model = FakeModel::replies([ModelReply::text("hello")]);
        let host = folder.host(&folder.text(mode, "start_timeout = \"500ms\""), &model).await;
        let session = host.open_session("one").await.unwrap();
        session.run("go").await.unwrap();
        assert_eq!(offered(&model), [Vec::<String>::new()], "{mode}");
        host.shutdown().await;
        folder.empty().await;
        let text = folder.text(mode, "start_timeout = \"500ms\"");
        let text = format!("{text}[agents.default]\ntools = [\"*\"]\n");
        std::fs::write(folder.path.join("callsheet.toml"), text).unwrap();
        let listed = std::process::Command::new(env!("CARGO_BIN_EXE_callsheet"))
            .args(["tools", "list"])
            .current_dir(&folder.path)
            .output()
            .unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert!(listed.contains("server test is down") && listed.contains(expected), "{listed}");
    }
}

/// Returns what a command prints about the tools of a server, its log included. The model has the key [`MODEL_KEY`].
fn printed(folder: &Folder, mode: &str, arguments: &[&str]) -> String {
    let text = folder.text(mode, "")
        + "[models.m]\nbase_url = \"http://127.0.0.1:9/v1\"\nmodel = \"m\"\napi_key_env = \"MODEL_KEY\"\n\
           [agents.default]\ntools = [\"*\"]\n";
    std::fs::write(folder.path.join("callsheet.toml"), text).unwrap();
    let printed = std::process::Command::new(env!("CARGO_BIN_EXE_callsheet"))
        .args(arguments)
        .env("MODEL_KEY", MODEL_KEY)
        .current_dir(&folder.path)
        .output()
        .unwrap();
    String::from_utf8([printed.stdout, printed.stderr].concat()).unwrap()
}

#[test]
fn the_parts_of_a_secret_where_the_standard_error_is_cut_are_not_shown() {
    let secret = std::env::var(SECRET_VARIABLE).unwrap();
    for (mode, secret) in [("leaks", &*secret), ("leaks-key", MODEL_KEY)] {
        let folder = Folder::new(mode);
        let listed = printed(&folder, mode, &["tools", "list"]);
        let (beginning, end) = (&secret[..10], &secret[secret.len() - 10..]);
        assert!(
            listed.contains("exit status 3; it wrote: ww") && listed.contains("xxx"),
            "{listed}"
        );
        assert!(!listed.contains(beginning) && !listed.contains(end), "{listed}");
        assert!(listed.contains("xxxlast words"), "{listed}");
    }
}

#[tokio::test]
async fn what_a_server_lists_has_no_key_of_a_model() {
    // A key is also replaced where an excerpt would cut it.
    let part = &MODEL_KEY[..9];
    let folder = Folder::new("keys");
    let listed = printed(&folder, "keys", &["tools", "list"]);
    assert!(listed.contains("left out: [redacted]: ") && listed.contains("xxx"), "{listed}");
    assert!(listed.contains("test__good__redacted_"), "{listed}");
    assert!(!listed.contains(part), "{listed}");
    let pinned = printed(&folder, "keys", &["tools", "pin", "--accept"]);
    let lock = std::fs::read_to_string(folder.path.join("callsheet-tools.lock")).unwrap();
    assert!(lock.contains("redacted"), "{lock}");
    assert!(!pinned.contains(part) && !lock.contains(part), "{pinned}{lock}");
    let model = FakeModel::replies([ModelReply::text("hello")]);
    let host = folder.host(&folder.text("keys", ""), &model).await;
    host.open_session("one").await.unwrap().run("go").await.unwrap();
    host.shutdown().await;
    let requests = format!("{:?}", model.requests());
    assert!(requests.contains("Uses [redacted].") && !requests.contains(part), "{requests}");
    for file in std::fs::read_dir(folder.path.join("data")).unwrap().flatten() {
        let stored = std::fs::read(file.path()).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&stored).contains(part), "{}", file.path().display());
    }
}

#[tokio::test]
async fn a_server_that_ignores_the_end_of_its_input_ends_with_its_children() {
    let folder = Folder::new("stubborn");
    let model = calling([("test__echo", json!({"text": "x"}))]);
    let host = folder.host(&folder.text("stubborn", ""), &model).await;
    host.open_session("one").await.unwrap().run("go").await.unwrap();
    assert!(folder.processes() >= 2);
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_session_keeps_its_list_over_a_restart_until_it_is_refreshed() {
    let folder = Folder::new("frozen");
    let model = FakeModel::replies((0..4).map(|_| ModelReply::text("hello")));
    let host = folder.host(&folder.text("plain", ""), &model).await;
    let session = host.open_session("one").await.unwrap();
    session.run("go").await.unwrap();
    host.shutdown().await;

    let host = folder.host(&folder.text("changed", ""), &model).await;
    let old = host.get_or_open_session("one").await.unwrap();
    old.run("go").await.unwrap();
    let new = host.open_session("two").await.unwrap();
    new.run("go").await.unwrap();
    let change = old.refresh_tools().await.unwrap();
    assert_eq!(change.added, ["test__new"]);
    assert_eq!(change.removed, ["test__die", "test__progress", "test__secret", "test__sleep"]);
    old.run("go").await.unwrap();
    let changed = ["test__echo", "test__new"];
    let expected: [&[&str]; 4] = [&ALL, &ALL, &changed, &changed];
    assert_eq!(offered(&model), expected);
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_registry_serves_one_host_after_another() {
    let folder = Folder::new("hosts");
    let (config, registry) = folder.config(&folder.text("plain", "")).unwrap();
    for _ in 0..2 {
        let model = calling([("test__echo", json!({"text": "hi"}))]);
        let host = Host::builder().config(config.clone()).tools(registry.clone());
        let host = host.model_source("fake", model).start().await.unwrap();
        let session = host.open_session(OpenSession::default()).await.unwrap();
        assert_eq!(result(&session.run("go").await.unwrap()), ("success", "hi"));
        host.shutdown().await;
        folder.empty().await;
    }
}

#[tokio::test]
async fn no_process_survives_a_killed_host() {
    let folder = Folder::new("killed");
    std::fs::write(folder.path.join("callsheet.toml"), folder.text("stubborn", "")).unwrap();
    for wait in [0, 40, 120, 400] {
        let mut host = std::process::Command::new(env!("CARGO_BIN_EXE_callsheet"))
            .args(["tools", "call", "test__sleep"])
            .current_dir(&folder.path)
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        tokio::time::sleep(Duration::from_millis(wait)).await;
        host.kill().unwrap();
        host.wait().unwrap();
        folder.empty().await;
    }
}

#[test]
fn wrong_servers_are_refused_with_line_and_remedy() {
    let folder = Folder::new("wrong");
    for (text, expected) in [
        (
            "[mcp.a]\ncommand = [\"no-such-program\"]",
            "2: mcp.a.command: no program \"no-such-program\" in PATH",
        ),
        ("[mcp.a]\ncommand = [\"true\"]\ncwd = \"nowhere\"", "3: mcp.a.cwd: "),
        (
            "[mcp.a]\nurl = \"ftp://example.com\"",
            "2: mcp.a.url: must begin with http:// or https://",
        ),
        (
            "[mcp.a]\nurl = \"http://u:p@example.com\"",
            "2: mcp.a.url: must not contain a user name or password",
        ),
        ("[mcp.a]\nurl = \"mcp\"", "2: mcp.a.url: must begin with http:// or https://"),
        (
            "[mcp.a]\nurl = \"http://127.0.0.1:1\"\nheaders = { Host = \"b\" }",
            "3: mcp.a.headers.Host: Host belongs to the connection and cannot be set",
        ),
        ("[mcp.a]\ncommand = [\"true\"]\npin = \"warn\"", "3: mcp.a.pin: callsheet-tools.lock has"),
    ] {
        let error = folder.config(text).err().unwrap();
        let file = folder.path.join("callsheet.toml").display().to_string();
        assert!(error.starts_with(&format!("{file}:{expected}")), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

/// Answers as a server of the older protocol does, without streams.
async fn answer(headers: HeaderMap, Json(message): Json<Value>) -> Response {
    if headers.get("authorization").is_none_or(|value| !value.as_bytes().starts_with(b"An actor")) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let result = match message["method"].as_str().unwrap() {
        "initialize" => initialized(&message),
        "tools/list" => json!({"tools": described("plain")}),
        "tools/call" if message["params"]["name"] == "sleep" => {
            tokio::time::sleep(Duration::from_secs(600)).await;
            json!({})
        }
        "tools/call" => {
            let text = message["params"]["arguments"]["text"].clone();
            json!({"content": [{"type": "text", "text": text}]})
        }
        _ if message["id"].is_null() => return StatusCode::ACCEPTED.into_response(),
        _ => {
            let error = json!({"code": -32601, "message": "no"});
            return Json(json!({"jsonrpc": "2.0", "id": message["id"], "error": error}))
                .into_response();
        }
    };
    Json(json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).into_response()
}

#[tokio::test]
async fn a_service_is_reached_over_http_with_its_secret_header() {
    let folder = Folder::new("http");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/mcp", post(answer));
    #[expect(clippy::disallowed_methods, reason = "the service ends with the test")]
    let service = tokio::spawn(async move { axum::serve(listener, app).await });
    let model =
        calling([("web__echo", json!({"text": "hi"})), ("web__echo", json!({"text": "again"}))]);
    let text = format!(
        "[mcp.web]\nurl = \"http://{address}/mcp\"\ntimeout = \"2s\"\n\
         secret_headers = {{ authorization = {SECRET_VARIABLE:?} }}\n"
    );
    let host = folder.host(&text, &model).await;
    let session = host.open_session("one").await.unwrap();
    assert_eq!(result(&session.run("go").await.unwrap()), ("success", "hi"));
    service.abort();
    let _ = service.await;
    let report = session.run("go").await.unwrap();
    let (status, text) = result(&report);
    // The connection was refused, so nothing was sent.
    assert_eq!(status, "error", "{text}");
    assert!(text.contains("was not sent"), "{text}");
    host.shutdown().await;
}
