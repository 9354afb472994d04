//! Hooks around calls: nothing that a hook refuses ever runs, whatever the kind of the tool and of the hook.
//! Each tool that runs writes a file, which the tests look for.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{any, post};
use callsheet::ToolStatus;
use callsheet::config::{
    ApiKey, Config, JournalEngine, ModelConfig, OutputMode, OutputRequest, RunOverrides,
};
use callsheet::model::ModelReply;
use callsheet::prelude::*;
use callsheet::testing::FakeModel;
use callsheet::tool::{Hook, HookAnswer, HookError, HookInput, HookPoint, HookRule, ToolRegistry};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The names of the tools, one of each kind.
const TOOLS: [&str; 4] = ["native", "program", "service", "server__tool"];

/// A variable of the host with a secret value: cargo sets it for tests.
const SECRET_VARIABLE: &str = "CARGO_PKG_DESCRIPTION";

/// The key of the model, which no hook was given.
const MODEL_KEY: &str = "sk-model-0123456789";

/// The folder of a configuration. Tools that run write files into it.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("hooks-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self { path }
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.path.join(name);
        std::fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn has(&self, name: &str) -> bool {
        self.path.join(name).exists()
    }

    /// Returns the tools that have run.
    fn ran(&self) -> Vec<&'static str> {
        TOOLS.into_iter().filter(|tool| self.has(&format!("ran-{tool}"))).collect()
    }

    /// Returns the tables of a tool of each kind, except for the native one.
    fn tools(&self, services: &str, approval: &str) -> String {
        let folder = self.path.display();
        self.script("server", &format!(
            r#"while read -r line; do
id=$(sed -n 's/.*"id":\([0-9]*\).*/\1/p' <<<"$line")
case "$line" in
*'"initialize"'*) result='{{"protocolVersion":"2025-06-18","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"t","version":"1"}}}}';;
*'"tools/list"'*) result='{{"tools":[{{"name":"tool","description":"d","inputSchema":{{"type":"object","properties":{{"n":{{"type":"integer"}}}}}}}}]}}';;
*'"tools/call"'*) touch {folder}/ran-server__tool; result='{{"content":[{{"type":"text","text":"secret"}}]}}';;
*) [ -n "$id" ] && echo '{{"jsonrpc":"2.0","id":'$id',"error":{{"code":-32601,"message":"unknown"}}}}'; continue;;
esac
echo '{{"jsonrpc":"2.0","id":'$id',"result":'$result'}}'
done"#
        ));
        let input = r#"input = { n = { type = "integer", default = 0 } }"#;
        format!(
            r#"
[tools.program]
kind = "command"
description = "d"
{input}
command = ["sh", "-c", "touch ran-program; echo secret $1", "sh", "{{n}}"]
approval = "{approval}"
[tools.service]
kind = "http"
description = "d"
{input}
method = "POST"
url = "{services}/tool"
approval = "{approval}"
[tools.native]
approval = "{approval}"
[mcp.server]
command = ["./server"]
approval = "{approval}"
[agents.default]
tools = ["native*", "prog*", "serv*"]
"#
        )
    }

    fn config(&self, text: &str) -> Result<Config, String> {
        let file = self.path.join("callsheet.toml").display().to_string();
        let config = Config::parse(text, &file, &|name| std::env::var(name).ok());
        config.map_err(|error| error.to_string())
    }

    /// Returns a host with these tables, whose model calls each tool once.
    fn host(&self, text: &str, model: FakeModel) -> HostBuilder {
        callsheet::launcher::use_binary(env!("CARGO_BIN_EXE_callsheet"));
        let mut config = self.config(text).unwrap();
        let mut fake = ModelConfig::for_source("fake");
        fake.api_key = Some(ApiKey::new(MODEL_KEY).unwrap());
        config.use_model("fake", fake);
        config.journal.engine = JournalEngine::Memory;
        let mut registry = ToolRegistry::new();
        let mark = self.path.join("ran-native");
        let native = ToolSpec::named("native", "d").into_tool(move |_: Number, _| {
            std::fs::write(&mark, "").unwrap();
            async { Ok("secret") }
        });
        registry.register(native).unwrap();
        registry.register_configured(&config).unwrap();
        Host::builder().config(config).tools(registry).model_source("fake", model)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Number {
    #[expect(dead_code, reason = "only its schema is needed")]
    n: Option<i64>,
}

/// Returns a model that calls each tool once, directly or with `use_tool`.
fn model(is_indirect: bool) -> FakeModel {
    let call = |reply: Option<ModelReply>, name: &str| {
        let (name, arguments) = match is_indirect {
            true => ("use_tool", json!({ "name": name, "arguments": { "n": 1 } })),
            false => (name, json!({ "n": 1 })),
        };
        Some(match reply {
            Some(reply) => reply.and_call(name, arguments),
            None => ModelReply::call(name, arguments),
        })
    };
    let calls = TOOLS.into_iter().fold(None, call).unwrap();
    FakeModel::replies([calls, ModelReply::text("done")])
}

/// A service with a tool and hooks, which stops when dropped.
struct Services {
    origin: String,
    _stop: DropGuard,
}

impl Services {
    async fn start(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let (mark, seen) = (folder.join("ran-service"), folder.join("seen"));
        let tool = move || async move {
            std::fs::write(&mark, "").unwrap();
            "secret"
        };
        let json = |status: u16, body: &'static str| {
            move || async move {
                let status = StatusCode::from_u16(status).unwrap();
                (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
            }
        };
        let keep = move |headers: axum::http::HeaderMap, body: String| async move {
            let secret = headers.get("authorization").unwrap().to_str().unwrap().to_owned();
            std::fs::write(&seen, format!("{secret}\n{body}")).unwrap();
            ([(header::CONTENT_TYPE, "application/json")], r#"{"verdict":"allow"}"#)
        };
        let leak = |headers: axum::http::HeaderMap| async move {
            let secret = headers.get("authorization").unwrap().to_str().unwrap().to_owned();
            let message = format!("no {secret} and {MODEL_KEY}");
            axum::Json(json!({"verdict": "refuse", "message": message}))
        };
        let routes = Router::new()
            .route("/tool", any(tool))
            .route("/seen", post(keep))
            .route("/allow", post(json(200, r#"{"verdict":"allow"}"#)))
            .route("/ask", post(json(200, r#"{"verdict":"ask"}"#)))
            .route("/refuse", post(json(200, r#"{"verdict":"refuse","message":"no"}"#)))
            .route("/leak", post(leak))
            .route("/status", post(json(500, r#"{"verdict":"allow"}"#)))
            .route("/moved", post(json(302, r#"{"verdict":"allow"}"#)))
            .route("/rubbish", post(json(200, "<html>")))
            .route("/empty", post(json(204, "")))
            .route("/hang", post(|| async { std::future::pending::<()>().await }));
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        #[expect(clippy::disallowed_methods, reason = "the server's accept loop")]
        tokio::spawn(async move {
            tokio::select! {
                () = stopped => {}
                served = axum::serve(listener, routes) => served.unwrap(),
            }
        });
        Self { origin, _stop: stop.drop_guard() }
    }
}

/// Runs the model once, and approves what needs approval. Returns the report, and how often approval was
/// requested.
async fn run(host: &Host) -> (RunReport, usize) {
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let mut run = session.start_run("go").await.unwrap();
    let mut asked = 0;
    while let Some(event) = run.next_event().await.unwrap() {
        let RunEvent::ApprovalRequested(question) = event else { continue };
        asked += 1;
        question.approve().await.unwrap();
    }
    (run.report.await.unwrap(), asked)
}

/// An answer of a hook, and whether it is a failure, a refusal, or a question to a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Allow,
    Ask,
    Refuse,
    Failure,
}

/// The scripts of hooks, and the tables of HTTP hooks.
const PROGRAMS: [(&str, Expected); 16] = [
    (r#"echo '{"verdict":"allow"}'"#, Expected::Allow),
    (r#"cat >/dev/null; echo '{"verdict":"allow"}'"#, Expected::Allow),
    (r#"echo '{"verdict":"ask","message":"look"}'"#, Expected::Ask),
    (r#"echo '{"verdict":"refuse","message":"no"}'"#, Expected::Refuse),
    ("echo no >&2; exit 2", Expected::Refuse),
    (r#"echo '{"verdict":"allow"}'; exit 2"#, Expected::Refuse),
    (r#"echo '{"verdict":"allow"}'; exit 1"#, Expected::Failure),
    (r#"echo '{"verdict":"allow"}'; exit 127"#, Expected::Failure),
    (r#"echo '{"verdict":"allow"}'; kill -9 $$"#, Expected::Failure),
    (r#"echo '{"verdict":"allow"}'; sleep 60"#, Expected::Failure),
    ("sleep 60", Expected::Failure),
    ("exit 0", Expected::Failure),
    ("echo allow", Expected::Failure),
    (r#"echo '{"verdict":"allow"'"#, Expected::Failure),
    (r#"echo '{"verdict":"allow","arguments":{"n":"x"}}'"#, Expected::Failure),
    (r#"echo '{"verdict":"allow","verdct":"refuse"}'"#, Expected::Failure),
];

const SERVICES: [(&str, Expected); 9] = [
    ("allow", Expected::Allow),
    ("ask", Expected::Ask),
    ("refuse", Expected::Refuse),
    ("status", Expected::Failure),
    ("moved", Expected::Failure),
    ("rubbish", Expected::Failure),
    ("empty", Expected::Failure),
    ("hang", Expected::Failure),
    ("missing", Expected::Failure),
];

/// Returns the table of a hook.
type HookTable<'t> = &'t dyn Fn(&Folder, &Services) -> String;

/// Checks one case of the matrix: a run in which each tool is called once.
async fn check_before(
    what: &str,
    (hook, expected): (HookTable<'_>, Expected),
    (ignores_failure, approval, is_indirect): (bool, &str, bool),
    rust: Option<RustHook>,
) {
    let folder = Folder::new();
    let services = Services::start(&folder.path).await;
    let mut text = folder.tools(&services.origin, approval);
    if is_indirect {
        text.push_str("tool_loading = \"search\"\n");
    }
    text.push_str(&hook(&folder, &services));
    if ignores_failure && rust.is_none() {
        text.push_str("on_failure = \"allow\"\n");
    }
    let mut builder = folder.host(&text, model(is_indirect));
    if let Some(hook) = rust {
        let rule = HookRule::new("rust", HookPoint::BeforeCall).timeout(TIMEOUT);
        let rule = if ignores_failure { rule.allow_on_failure() } else { rule };
        builder = builder.hook(rule, hook);
    }
    let host = builder.start().await.unwrap();
    let (report, asked) = run(&host).await;
    let what = format!("{what} {ignores_failure} {approval} {is_indirect}: {:#?}", report.calls);
    let is_refused =
        expected == Expected::Refuse || (expected == Expected::Failure && !ignores_failure);
    let ran = if is_refused { vec![] } else { TOOLS.to_vec() };
    assert_eq!(folder.ran(), ran, "{what}");
    let asks = !is_refused && (expected == Expected::Ask || approval == "before");
    assert_eq!(asked, if asks { TOOLS.len() } else { 0 }, "{what}");
    for call in &report.calls {
        let status = if is_refused { ToolStatus::Refused } else { ToolStatus::Ok };
        assert_eq!(call.status, status, "{what}");
        assert_eq!(call.metadata.get("kind").is_some_and(|kind| kind == "hook"), is_refused);
    }
    host.shutdown().await;
}

/// Returns the `approval` of the tools, and whether the model calls them with `use_tool`. Cases of the matrix
/// take turns.
fn variant(nth: usize) -> (&'static str, bool) {
    [("never", false), ("before", true), ("never", true), ("before", false)][nth % 4]
}

const TIMEOUT: Duration = Duration::from_millis(700);

const TABLE: &str = "[[hooks]]\non = \"before_call\"\nname = \"guard\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_program_refuses_ever_runs() {
    for (nth, (script, expected)) in PROGRAMS.into_iter().enumerate() {
        let timeout = if script.contains("sleep") { "700ms" } else { "60s" };
        let hook = |folder: &Folder, _: &Services| {
            folder.script("guard", script);
            format!("{TABLE}kind = \"command\"\ncommand = [\"./guard\"]\ntimeout = \"{timeout}\"\n")
        };
        for ignores_failure in [false, true] {
            let (approval, is_indirect) = variant(nth + usize::from(ignores_failure));
            let how = (ignores_failure, approval, is_indirect);
            check_before(script, (&hook, expected), how, None).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_service_refuses_ever_runs() {
    for (nth, (path, expected)) in SERVICES.into_iter().enumerate() {
        let timeout = if path == "hang" { "700ms" } else { "60s" };
        let hook = |_: &Folder, services: &Services| {
            // A port of loopback on which nothing listens.
            let origin = if path == "missing" { "http://127.0.0.1:1" } else { &services.origin };
            format!("{TABLE}kind = \"http\"\nurl = \"{origin}/{path}\"\ntimeout = \"{timeout}\"\n")
        };
        for ignores_failure in [false, true] {
            let (approval, is_indirect) = variant(nth + 2 + usize::from(ignores_failure));
            let how = (ignores_failure, approval, is_indirect);
            check_before(path, (&hook, expected), how, None).await;
        }
    }
}

/// A hook in Rust.
#[derive(Clone, Copy, Debug)]
enum RustHook {
    Allow,
    Ask,
    Refuse,
    Error,
    Panic,
    Hang,
    Block,
}

#[async_trait::async_trait]
impl Hook for RustHook {
    async fn answer(&self, _: &HookInput) -> Result<HookAnswer, HookError> {
        match self {
            Self::Allow => Ok(HookAnswer::allow()),
            Self::Ask => Ok(HookAnswer::ask()),
            Self::Refuse => Ok(HookAnswer::refuse("no")),
            Self::Error => Err(HookError::new("no rules")),
            Self::Panic => panic!("a bug of the hook"),
            Self::Hang => std::future::pending().await,
            Self::Block => {
                std::thread::sleep(Duration::from_secs(2));
                Ok(HookAnswer::allow())
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn nothing_that_rust_code_refuses_ever_runs() {
    for (hook, expected) in [
        (RustHook::Allow, Expected::Allow),
        (RustHook::Ask, Expected::Ask),
        (RustHook::Refuse, Expected::Refuse),
        (RustHook::Error, Expected::Failure),
        (RustHook::Panic, Expected::Failure),
        (RustHook::Hang, Expected::Failure),
        (RustHook::Block, Expected::Failure),
    ] {
        for ignores_failure in [false, true] {
            for (approval, is_indirect) in [("never", false), ("before", true)] {
                let how = (ignores_failure, approval, is_indirect);
                let none = |_: &Folder, _: &Services| String::new();
                check_before(&format!("{hook:?}"), (&none, expected), how, Some(hook)).await;
            }
        }
    }
}

/// A hook whose program is removed or made unusable after the start of the host.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_gone_refuses() {
    for ruin in ["rm guard", "chmod -x guard", "echo '\\x7fELF' > guard"] {
        let folder = Folder::new();
        let services = Services::start(&folder.path).await;
        folder.script("guard", r#"echo '{"verdict":"allow"}'"#);
        let tools = folder.tools(&services.origin, "never");
        let text = format!("{tools}{TABLE}kind = \"command\"\ncommand = [\"./guard\"]\n");
        let host = folder.host(&text, model(false)).start().await.unwrap();
        let mut command = std::process::Command::new("bash");
        let ruined = command.arg("-c").arg(ruin).current_dir(&folder.path).status();
        assert!(ruined.unwrap().success());
        let (report, _) = run(&host).await;
        assert_eq!(folder.ran(), [""; 0], "{ruin}: {:#?}", report.calls);
        host.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_message_of_a_program_has_no_secret() {
    let stderr = format!("echo \"no $TOKEN and {MODEL_KEY}\" >&2; exit");
    let json = format!(r#"{{"verdict":"refuse","message":"no '"$TOKEN"' and {MODEL_KEY}"}}"#);
    for script in [format!("{stderr} 1"), format!("{stderr} 2"), format!("echo '{json}'")] {
        let folder = Folder::new();
        let services = Services::start(&folder.path).await;
        folder.script("guard", &script);
        let tools = folder.tools(&services.origin, "never");
        let text = format!(
            "{tools}{TABLE}kind = \"command\"\ncommand = [\"./guard\"]\ntools = [\"native\"]\n\
             secret_env = {{ TOKEN = \"{SECRET_VARIABLE}\" }}\n"
        );
        let host = folder.host(&text, model(false)).start().await.unwrap();
        let (report, _) = run(&host).await;
        let result = &report.calls[0].result;
        assert!(result.contains("no [redacted] and [redacted]"), "{script}: {result}");
        host.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_message_of_a_service_has_no_secret() {
    let folder = Folder::new();
    let services = Services::start(&folder.path).await;
    let tools = folder.tools(&services.origin, "never");
    for headers in [
        format!("secret_headers = {{ authorization = \"{SECRET_VARIABLE}\" }}"),
        "headers = { Authorization = \"plain-secret\" }".to_owned(),
    ] {
        let text = format!(
            "{tools}{TABLE}kind = \"http\"\nurl = \"{}/leak\"\ntools = [\"native\"]\n{headers}\n",
            services.origin
        );
        let host = folder.host(&text, model(false)).start().await.unwrap();
        let (report, _) = run(&host).await;
        let result = &report.calls[0].result;
        assert!(result.contains("no [redacted] and [redacted]"), "{headers}: {result}");
        host.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_see_change_and_chain_arguments_and_results() {
    let folder = Folder::new();
    let services = Services::start(&folder.path).await;
    folder.script("first", r#"cat > first.in; echo '{"verdict":"allow","arguments":{"n":2}}'"#);
    folder.script("second", r#"cat > second.in; echo '{"verdict":"allow"}'"#);
    folder.script("censor", r#"cat > censor.in; echo '{"verdict":"allow","result":"public"}'"#);
    folder.script("last", r#"cat > last.in; echo '{"verdict":"refuse","message":"too much"}'"#);
    let mut text = folder.tools(&services.origin, "never");
    for (on, program, tools) in [
        ("before_call", "first", "prog*"),
        ("before_call", "second", "program"),
        ("after_call", "censor", "prog*"),
        ("after_call", "last", "native"),
        ("before_call", "other", "server__*"),
    ] {
        folder.script("other", "exit 2");
        text.push_str(&format!(
            "[[hooks]]\non = \"{on}\"\ntools = [\"{tools}\"]\nkind = \"command\"\n\
             command = [\"./{program}\"]\n"
        ));
    }
    let url = format!("{}/seen", services.origin);
    text.push_str(&format!(
        "[[hooks]]\non = \"after_call\"\ntools = [\"service\"]\nkind = \"http\"\nurl = \"{url}\"\n\
         secret_headers = {{ authorization = \"{SECRET_VARIABLE}\" }}\n"
    ));
    let host = folder.host(&text, model(false)).start().await.unwrap();
    let (report, _) = run(&host).await;
    let results: Vec<_> =
        report.calls.iter().map(|call| (call.status.as_str(), call.result.as_str())).collect();
    let rejected = r#"{"status":"rejected","message":"too much"}"#;
    assert_eq!(results[..3], [("refused", rejected), ("success", "public"), ("success", "secret")]);
    assert_eq!(results[3].0, "refused");
    assert_eq!(folder.ran(), ["native", "program", "service"]);
    let read = |name: &str| std::fs::read_to_string(folder.path.join(name)).unwrap();
    let input = |name: &str| serde_json::from_str::<Value>(&read(name)).unwrap();
    let (first, second, censor) = (input("first.in"), input("second.in"), input("censor.in"));
    let sha256 = |n: &str| {
        use sha2::Digest as _;
        let digest = sha2::Sha256::digest(format!("{{\"n\":{n}}}"));
        digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let run_id = report.run_id.to_string();
    let expected = json!({
        "on": "before_call", "session_id": first["session_id"], "run_id": run_id, "turn": 1,
        "agent": "default", "agent_path": ["default"], "tool_id": "t1a1c1", "tool_name": "program",
        "arguments": { "n": 1 }, "arguments_sha256": sha256("1"),
    });
    assert_eq!(first, expected);
    assert_eq!(
        (&second["arguments"], &second["arguments_sha256"]),
        (&json!({"n": 2}), &json!(sha256("2")))
    );
    assert_eq!((&censor["result"], &censor["status"]), (&json!("secret 2\n"), &json!("success")));
    assert_eq!(censor["arguments"], json!({"n": 2}));
    let seen = read("seen");
    let (secret, body) = seen.split_once('\n').unwrap();
    assert_eq!(secret, std::env::var(SECRET_VARIABLE).unwrap().trim());
    assert_eq!(serde_json::from_str::<Value>(body).unwrap()["result"], "secret");
    // The history has the arguments of the model, and nothing of what was withheld.
    let sent = format!("{:?}", report.all_messages());
    assert!(!sent.contains("secret 2") && sent.contains("public"), "{sent}");
    let metrics = host.metrics_page().unwrap();
    for labels in [
        r#"hook="first",on="before_call",outcome="allow""#,
        r#"hook="last",on="after_call",outcome="refuse""#,
    ] {
        let line = format!("callsheet_hook_duration_seconds_count{{{labels}}} 1\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    host.shutdown().await;
}

/// A stop while hooks are asked ends their programs, and the call never runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_the_wait_for_a_hook_and_its_program() {
    let folder = Folder::new();
    let services = Services::start(&folder.path).await;
    folder.script("guard", "echo $$ > pid.part; mv pid.part pid; sleep 600");
    let tools = folder.tools(&services.origin, "never");
    let text = format!(
        "{tools}{TABLE}kind = \"command\"\ncommand = [\"./guard\"]\ntimeout = \"10m\"\ntools = [\"native\"]\n"
    );
    let host = folder.host(&text, model(false)).start().await.unwrap();
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let run = session.start_run("go").await.unwrap();
    let pid = folder.path.join("pid");
    let read = || std::fs::read_to_string(&pid).unwrap_or_default().trim().to_owned();
    while read().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let process = PathBuf::from(format!("/proc/{}", read()));
    session.stop(StopMode::Now).await.unwrap();
    let report = run.report.await.unwrap();
    assert_eq!(report.run_end, RunEnd::Stopped);
    assert!(!folder.has("ran-native"));
    for _ in 0..2000 {
        if !process.exists() {
            host.shutdown().await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the program of the hook still runs");
}

#[test]
fn a_configuration_with_a_broken_hook_does_not_start() {
    callsheet::launcher::use_binary(env!("CARGO_BIN_EXE_callsheet"));
    let folder = Folder::new();
    std::fs::write(folder.path.join("plain"), "").unwrap();
    let hook = |keys: &str| format!("[[hooks]]\non = \"before_call\"\n{keys}\n");
    for (keys, expected) in [
        ("kind = \"command\"\ncommand = [\"./nothing\"]", "4: hooks[0].command: "),
        (
            "kind = \"command\"\ncommand = [\"./plain\"]",
            "plain is not executable: run chmod +x on it",
        ),
        (
            "kind = \"command\"\ncommand = [\"no-such-program-1\"]",
            "no program \"no-such-program-1\" in PATH",
        ),
        ("kind = \"command\"\ncommand = [\"true\"]\ncwd = \"nowhere\"", "5: hooks[0].cwd: "),
        (
            "kind = \"http\"\nurl = \"ftp://a\"",
            "4: hooks[0].url: must begin with http:// or https://",
        ),
        ("kind = \"http\"\nurl = \"http://u:p@a/\"", "hooks[0].url: must not contain a user name"),
        ("kind = \"http\"\nurl = \"http://a/\"\nallow = [\"%\"]", "hooks[0].allow[0]: "),
        (
            "kind = \"command\"\ncommand = [\"true\"]\ntools = [\"clok\"]",
            "5: hooks[0].tools[0]: no tool is called \"clok\"",
        ),
        (
            "kind = \"command\"\ncommand = [\"true\"]\ntools = [\"use_tool\"]",
            "5: hooks[0].tools[0]: hooks are asked about the tool that use_tool calls",
        ),
    ] {
        let started = folder.config(&hook(keys)).and_then(|config| {
            let mut registry = ToolRegistry::new();
            registry.register_configured(&config).map_err(|error| error.to_string())?;
            config.check_tools(&["clock"]).map_err(|error| error.to_string())
        });
        let error = started.unwrap_err();
        assert!(error.contains(expected), "{error} instead of {expected}");
    }
}

#[tokio::test]
async fn a_hook_that_is_not_registered_stops_the_start() {
    let folder = Folder::new();
    let text = "[[hooks]]\non = \"before_call\"\nkind = \"command\"\ncommand = [\"true\"]\n";
    let mut config = folder.config(text).unwrap();
    config.use_model("fake", ModelConfig::for_source("fake"));
    config.agents.get_mut("default").unwrap().tools.clear();
    let host = Host::builder().config(config).model_source("fake", FakeModel::replies([])).start();
    let error = host.await.unwrap_err().to_string();
    assert!(
        error.contains("hooks[0].kind: is not registered: call HostBuilder::configured_tools"),
        "{error}"
    );
    let rules = [
        HookRule::new("h", HookPoint::BeforeCall).agents(["nobody"]),
        HookRule::new("h", HookPoint::BeforeCall).timeout(Duration::ZERO),
        HookRule::new("h", HookPoint::BeforeCall).tools([""; 0]),
    ];
    for rule in rules {
        let fake = FakeModel::replies([]);
        let host = Host::builder().model_source("fake", fake).hook(rule, RustHook::Allow).start();
        assert!(host.await.unwrap_err().to_string().contains("hook \"h\": "));
    }
}

/// Returns a table of a hook that runs this script.
fn program_hook(folder: &Folder, on: &str, script: &str) -> String {
    folder.script(on, script);
    format!("[[hooks]]\non = \"{on}\"\nkind = \"command\"\ncommand = [\"./{on}\"]\n")
}

/// A hook that changes nothing explains no break of the prompt.
#[tokio::test]
async fn a_hook_that_allows_a_request_is_no_reason_for_another_prompt() {
    for (answer, is_changed) in [
        (HookAnswer::allow(), false),
        (HookAnswer::allow().with_parameters(json!({"system": "Be brief."})), true),
    ] {
        let model = FakeModel::replies([ModelReply::text("one"), ModelReply::text("two")]);
        let rule = HookRule::new("h", HookPoint::BeforeRequest);
        let host = Host::builder().model_source("fake", model.clone()).hook(rule, Fixed(answer));
        let host = host.start().await.unwrap();
        let session = host.open_session(OpenSession::default()).await.unwrap();
        session.run("first").await.unwrap();
        session.run("second").await.unwrap();
        for request in model.requests() {
            assert_eq!(request.prompt_change.is_some(), is_changed);
        }
        host.shutdown().await;
    }
}

/// Notes the points at which it is asked, with the tool and the number of messages.
struct Noting(Arc<Mutex<Vec<String>>>);

#[async_trait::async_trait]
impl Hook for Noting {
    async fn answer(&self, input: &HookInput) -> Result<HookAnswer, HookError> {
        let tool = input.tool_name.as_deref().unwrap_or("-");
        self.0.lock().push(format!("{} {} {tool}", input.on, input.turn));
        Ok(HookAnswer::allow())
    }
}

/// The forced tool of a typed answer is no call; the request for it is a request.
#[tokio::test]
async fn hooks_see_the_request_for_a_typed_answer_and_no_call_of_its_tool() {
    let schema =
        json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]});
    let add = ModelReply::call("add", json!({}));
    let answer = ModelReply::call("final_answer", json!({"sum": 5}));
    let model = FakeModel::replies([add, ModelReply::text("It is 5."), answer]);
    let noted = Arc::new(Mutex::new(Vec::new()));
    let mut host = Host::builder().model_source("fake", model.clone());
    let tool = ToolSpec::named("add", "Adds.").pure().into_tool(async |(): (), _| Ok(5));
    host = host.tool(tool);
    let points = [
        HookPoint::BeforeRequest,
        HookPoint::BeforeCall,
        HookPoint::AfterCall,
        HookPoint::AfterTurn,
    ];
    for on in points {
        host = host.hook(HookRule::new(format!("{on}"), on), Noting(Arc::clone(&noted)));
    }
    let host = host.start().await.unwrap();
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let output = OutputRequest::new(schema).with(|new| new.mode = OutputMode::Tool);
    let overrides = RunOverrides::default().with(|new| new.output = Some(output));
    let request = RunRequest::from("Add 2 and 3.").with(|new| new.overrides = overrides);
    let report = session.run(request).await.unwrap();
    assert_eq!(report.output.as_deref(), Some(&json!({"sum": 5})));
    let expected = [
        "before_request 1 -",
        "before_call 1 add",
        "after_call 1 add",
        "after_turn 1 -",
        "before_request 2 -",
        "after_turn 2 -",
        "before_request 3 -",
        "after_turn 3 -",
    ];
    assert_eq!(*noted.lock(), expected);
    host.shutdown().await;
}

/// Always gives the same answer.
struct Fixed(HookAnswer);

#[async_trait::async_trait]
impl Hook for Fixed {
    async fn answer(&self, _: &HookInput) -> Result<HookAnswer, HookError> {
        Ok(self.0.clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_changed_for_the_model_and_not_in_the_history() {
    let folder = Folder::new();
    let services = Services::start(&folder.path).await;
    let mut text = folder.tools(&services.origin, "never");
    let answer = r#"{"verdict":"allow","parameters":{"system":"Be brief.","temperature":0.5},
        "messages":[{"role":"user","content":"[redacted]"}]}"#;
    let script = format!("cat > request.in; echo '{}'", answer.replace('\n', ""));
    text.push_str(&program_hook(&folder, "before_request", &script));
    text.push_str(&program_hook(
        &folder,
        "run_end",
        "cat > run_end.part; mv run_end.part run_end.in; exit 2",
    ));
    let model = FakeModel::replies([ModelReply::text("one"), ModelReply::text("two")]);
    let host = folder.host(&text, model.clone()).start().await.unwrap();
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let report = session.run("my secret").await.unwrap();
    assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "one"));
    assert_eq!(session.run("again").await.unwrap().text, "two");
    for request in model.requests() {
        assert_eq!(request.system.as_deref(), Some("Be brief."));
        assert_eq!((request.temperature, request.messages.len()), (Some(0.5), 1));
        assert!(format!("{:?}", request.messages).contains("[redacted]"));
    }
    let snapshot = session.snapshot().await.unwrap();
    let history = format!("{:?}", snapshot.history);
    assert!(history.contains("my secret") && !history.contains("[redacted]"), "{history}");
    let read = |name: &str| std::fs::read_to_string(folder.path.join(name)).unwrap();
    let asked: Value = serde_json::from_str(&read("request.in")).unwrap();
    assert_eq!((&asked["on"], &asked["turn"]), (&json!("before_request"), &json!(2)));
    assert_eq!(asked["messages"][0]["content"], "my secret");
    assert_eq!(asked["parameters"]["temperature"], Value::Null);
    let metrics = host.metrics_page().unwrap();
    assert!(!metrics.contains("reason=\"unexplained\"} 1"), "{metrics}");
    // The shutdown waits until hooks are told of the end.
    host.shutdown().await;
    let told: Value = serde_json::from_str(&read("run_end.in")).unwrap();
    assert_eq!((&told["on"], &told["run_end"]), (&json!("run_end"), &json!("answered")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_before_a_request_or_after_a_turn_ends_the_run() {
    for (on, requests, ran) in [("before_request", 0, 0), ("after_turn", 1, TOOLS.len())] {
        for script in ["echo enough >&2; exit 2", "exit 1", "echo '{\"verdict\":\"ask\"}'"] {
            let folder = Folder::new();
            let services = Services::start(&folder.path).await;
            let mut text = folder.tools(&services.origin, "never");
            text.push_str(&program_hook(&folder, on, script));
            let model = model(false);
            let host = folder.host(&text, model.clone()).start().await.unwrap();
            let (report, _) = run(&host).await;
            assert_eq!(report.run_end, RunEnd::Refused, "{on} {script}");
            let error = report.error.unwrap();
            let reason = if script.contains("enough") { "enough" } else { "failed: " };
            assert!(error.code == "hook" && error.message.contains(reason), "{error:?}");
            assert_eq!((model.requests().len(), folder.ran().len()), (requests, ran), "{on}");
            host.shutdown().await;
        }
    }
}
