//! A real Prometheus scrapes a real host under load, with failures. Then every expression of every
//! panel and rule has data. Prometheus runs with the configuration and rules of `dashboards/`,
//! except for the host's address and shorter intervals.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::client::{HttpConnection, HttpResponse};
use crate::host_directory::{HostDirectory, HostServer, decision, until, within};
use crate::panels::{Dashboard, Expression, dashboards, substituted};
use async_trait::async_trait;
use callsheet::HostBuilder;
use callsheet::runtime::HostError;
use callsheet::tool::{
    Hook, HookAnswer, HookError, HookInput, HookPoint, HookRule, Tool, ToolContext, ToolError,
    ToolOutput, ToolSpec,
};
use callsheet_mock_provider::MockProvider;
use futures::future::join_all;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// The values of Grafana's variables for a panel that shows some hours.
const RATE_INTERVAL: &str = "1m";
const RANGE: &str = "1h";

/// Scenes: the user's input of a run and its run end. In some of them something fails.
const SCENES: [(&str, &str); 13] = [
    ("several quick calls", "answered"),
    ("a call that fails", "answered"),
    ("a call that panics", "answered"),
    ("a call that hangs", "answered"),
    ("arguments that are odd", "answered"),
    ("a tool that nobody has", "answered"),
    ("too many calls", "answered"),
    ("the same again and again", "loop_detected"),
    ("two that conflict", "answered"),
    ("streams that break", "answered"),
    ("arguments that are lost", "answered"),
    ("a cut off answer", "answered"),
    ("more than the window", "failed"),
];

/// A whole call, and arguments under an index that no call has.
const LOST_ARGUMENTS: &str = r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"quick","arguments":"{}"}},{"index":5,"function":{"arguments":"{}"}}]},"finish_reason":"tool_calls"}]}

data: [DONE]

"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_expression_has_data() {
    let Some(mut prometheus) = Prometheus::find() else { return };
    let directory = HostDirectory::new(script()).await;
    let backup =
        MockProvider::with_script(callsheet_mock_provider::Script::default()).await.unwrap();
    let served = recovered(&directory, &backup).await;
    prometheus.start(served.addr());
    prometheus.until_ready().await;

    // A watched session stays in memory.
    served.open("watched").await;
    let _watcher = served.events("watched", "0").await;
    // A rate needs two scrapes.
    for wave in ["one", "two"] {
        load(&served, wave).await;
        let vitals = json!({"frames": 2, "blocking_ms": 40, "paint_ms": [12, 400]});
        assert_eq!(served.post("/v1/ui/vitals", vitals).await.status, 204);
        prometheus.until_scraped().await;
    }
    // The other sessions are hibernated by then.
    until("all but one sleep", || served.host.counts().awake == 1).await;
    prometheus.until_scraped().await;

    let rules = prometheus.rules().await;
    let expressions = dashboards().iter().flat_map(Dashboard::expressions).collect::<Vec<_>>();
    let lists: Vec<Expression> = dashboards().iter().flat_map(lists).collect();
    assert!(expressions.len() > 100 && lists.len() == 4 && rules.len() > 15);
    let mut silent = Vec::new();
    for Expression { place, text } in expressions.iter().chain(&lists).chain(&rules) {
        let query = substituted(text, RATE_INTERVAL, RANGE);
        if let Err(reason) = prometheus.data(&query).await {
            silent.push(format!("{place}: {reason}: {query}"));
        }
    }
    assert!(silent.is_empty(), "{} without data:\n{}", silent.len(), silent.join("\n"));
    happened(&served.get("/metrics").await.body);
    served.shutdown().await;
    directory.verify();
}

/// Returns the queries of the dashboards' variables, as expressions.
fn lists(dashboard: &Dashboard) -> Vec<Expression> {
    let queries = dashboard.variable_queries().into_iter();
    let expression = |query: Expression| {
        let inner = query.text.strip_prefix("label_values(").unwrap().trim_end_matches(')');
        let (series, label) = inner.rsplit_once(", ").unwrap();
        Expression { text: format!("count by ({label}) ({series})"), ..query }
    };
    queries.map(expression).collect()
}

/// Checks that the load had its effects.
fn happened(page: &str) {
    for series in [
        "callsheet_runs_recovered_total",
        "callsheet_runs_total{run_end=\"loop_detected\"}",
        "callsheet_tool_panics_total",
        "callsheet_tool_results_total{tool=\"fails\",status=\"error\"}",
        "callsheet_tool_results_total{tool=\"hangs\",status=\"timeout\"}",
        "callsheet_tool_results_total{tool=\"other\",status=\"error\"}",
        "callsheet_tool_calls_dropped_total",
        "callsheet_limits_reached_total{limit=\"max_tool_calls_per_turn\"}",
        "callsheet_limits_reached_total{limit=\"tool_timeout\"}",
        "callsheet_arguments_odd_total{oddity=\"invalid\"}",
        "callsheet_approvals_total{verdict=\"approved\"}",
        "callsheet_approvals_total{verdict=\"rejected\"}",
        "callsheet_variable_conflicts_total{tool=\"peek\",resolution=\"rerun\"}",
        "callsheet_tool_starts_early_total",
        "callsheet_context_overflows_total{model=\"main\"}",
        "streaming_rollbacks_total",
        "callsheet_model_fallbacks_total",
        "callsheet_model_breaker_opened_total{model=\"flaky\"}",
        "callsheet_attempts_total{outcome=\"unavailable\"}",
        "callsheet_sessions{state=\"hibernated\"}",
        "callsheet_watchers",
        "callsheet_steers_total",
        "callsheet_journal_size_bytes",
        "process_resident_memory_bytes",
        "callsheet_tasks",
        "callsheet_event_loop_lag_seconds_count",
        "callsheet_host_mailbox_wait_seconds_count",
        "callsheet_journal_fsync_seconds_count",
    ] {
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        let value: f64 = value.unwrap_or_else(|| panic!("no {series}")).parse().unwrap();
        assert!(value > 0.0, "{series} is {value}");
    }
    // No label is the id of a session or call, or a name that only the model knows.
    for id in ["watched", "crashed", "one-", "two-", "t1a1c", "call_", "nobody"] {
        assert!(!page.contains(&format!("\"{id}")), "{id} is on the page");
    }
}

/// Returns the model's answers, by the user's input.
fn script() -> Value {
    let call = |tool: &str, id: &str| json!({"name": tool, "arguments": {"id": id}});
    let named = |tool: &str| json!({"name": tool, "arguments": {"name": "x"}});
    let calls = |scene: &str, calls: Vec<Value>| {
        json!({"when": {"last_user": scene, "turns": 0}, "repeat": true, "text": ["Let me ", "see."],
            "calls": calls, "delays": [{"at": "finish", "ms": 20}]})
    };
    let said = |user: &str, turns: usize| json!({"last_user": user, "turns": turns});
    let text = |user: &str, turns: usize| json!({"when": said(user, turns), "repeat": true, "text": ["It ", "is ", "done."]});
    let mut responses = vec![
        json!({"when": {"last_user": "go on"}, "text": ["It ", "stops."],
            "holds": [{"at": {"chunk": 2}, "name": "crash"}]}),
        json!({"when": {"model": "flaky"}, "status": 500, "repeat": true}),
        json!({"when": {"last_user": "streams that break", "stream": true}, "repeat": true,
            "text": ["It ", "breaks."], "cut_after_chunks": 2}),
        json!({"when": {"last_user": "arguments that are lost", "stream": true}, "repeat": true,
            "content_type": "text/event-stream", "raw_chunks": [LOST_ARGUMENTS]}),
        json!({"when": {"last_user": "more than the window"}, "repeat": true, "status": 400,
            "error": {"error": {"message": "too long", "code": "context_length_exceeded"}}}),
        json!({"when": {"last_user": "a cut off answer", "turns": 0}, "repeat": true,
            "calls": [call("quick", "a")], "finish_reason": "length"}),
        json!({"when": {"last_user": "the same again and again"}, "repeat": true,
            "calls": [call("quick", "a")]}),
        calls("several quick calls", ["a", "b", "c"].map(|id| call("quick", id)).into()),
        calls("a call that fails", vec![call("fails", "a"), call("quick", "b")]),
        calls("a call that panics", vec![call("panics", "a"), call("quick", "b")]),
        calls("a call that hangs", vec![call("hangs", "a"), call("quick", "b")]),
        calls(
            "arguments that are odd",
            vec![json!({"name": "quick", "arguments_raw": "[\"id\"]"}), call("quick", "b")],
        ),
        calls("a tool that nobody has", vec![call("nobody", "a"), call("quick", "b")]),
        calls("too many calls", (0..10).map(|number| call("quick", &number.to_string())).collect()),
        calls("two that conflict", vec![named("late"), named("peek")]),
        calls("ask me", vec![call("writes", "a")]),
        calls("wait for me", vec![call("waits", "go")]),
    ];
    let inputs = SCENES.iter().map(|(input, _)| *input).chain(["go on", "ask me", "wait for me"]);
    responses.extend(inputs.flat_map(|input| [text(input, 0), text(input, 1)]));
    json!({"responses": responses})
}

fn setup(directory: &HostDirectory, backup: &MockProvider) -> HostBuilder {
    let (main, backup) = (directory.model.base_url(), backup.base_url());
    let rest = format!(
        r#"
        [journal]
        max_stored_sessions = 1000
        [models.main]
        wire = "openai-chat"
        base_url = "{main}"
        model = "main"
        [models.flaky]
        wire = "openai-chat"
        base_url = "{main}"
        model = "flaky"
        max_attempts = 1
        breaker_failures = 1
        breaker_open_for = "1h"
        [models.backup]
        wire = "openai-chat"
        base_url = "{backup}"
        model = "backup"
        [agents.default]
        model = "main"
        execution = {{ parallel = 8 }}
        [agents.default.limits]
        max_tool_calls_per_turn = 4
        repeat_limit = 2
        tool_timeout = "100ms"
        cancel_grace = "10ms"
        [agents.shaky]
        model = "flaky"
        fallback_models = ["backup"]
        [tools.quick]
        max_concurrent = 2
        breaker_failures = 1000
        [mcp.gone]
        url = "http://127.0.0.1:1/mcp"
        [tools.waits]
        timeout = "20s"
        [tools.late]
        timeout = "20s"
        [tools.writes]
        approval = "before"
        "#
    );
    let read = Arc::new(Semaphore::new(0));
    let setup = directory.setup("idle_after = \"100ms\"", &rest);
    let rule = HookRule::new("guard", HookPoint::AfterTurn);
    setup.tool(Late(Arc::clone(&read))).tool(Peek(read)).hook(rule, Guard)
}

/// Starts a host that resumes a run of a crashed host.
async fn recovered(directory: &HostDirectory, backup: &MockProvider) -> HostServer {
    let setup = setup(directory, backup);
    let crashing = HostServer::start(setup.clone()).await.unwrap();
    crashing.open("crashed").await;
    crashing.begin("crashed", json!({"input": "go on"})).await;
    directory.model.wait_for_gate("crash").await;
    crashing.crash().await;
    within(async {
        loop {
            match Box::pin(HostServer::start(setup.clone())).await {
                // The actors of the last host are still stopping.
                Err(HostError::Journal(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                started => return started.unwrap(),
            }
        }
    })
    .await
}

/// Runs every scene concurrently, each in a session of its own.
async fn load(served: &HostServer, wave: &str) {
    let scenes = SCENES.iter().enumerate().map(|(number, (input, end))| async move {
        let session = format!("{wave}-{number}");
        served.open(&session).await;
        let report = served.run(&session, input).await;
        assert_eq!(report["run_end"], *end, "{input}: {report}");
    });
    tokio::join!(join_all(scenes), ask(served, wave), steer(served, wave), fall_back(served, wave));
}

/// A call needs approval. The first one is approved, the second one rejected.
async fn ask(served: &HostServer, wave: &str) {
    let session = format!("{wave}-asked");
    served.open(&session).await;
    served.begin(&session, json!({"input": "ask me"})).await;
    let asked = |snapshot: &Value| snapshot["current_run"]["approvals"][0].is_object();
    let snapshot = served.until_snapshot(&session, asked).await;
    let verdict = if wave == "one" { "approve" } else { "reject" };
    let (tool_id, body) = decision(&snapshot["current_run"]["approvals"][0], verdict);
    let decided = served.post(&format!("/v1/sessions/{session}/approvals/{tool_id}"), body).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    served.until_snapshot(&session, |snapshot| snapshot["state"] == "idle").await;
}

/// A run is steered, and another one is queued behind it. Both are stopped.
async fn steer(served: &HostServer, wave: &str) {
    let session = format!("{wave}-steered");
    served.open(&session).await;
    served.begin(&session, json!({"input": "wait for me"})).await;
    let said = |what: &str| format!("/v1/sessions/{session}/{what}");
    let steered = served.post(&said("steer"), json!({"input": "and more"})).await;
    assert_eq!(steered.status, 202, "{steered:?}");
    let stopped = served.post(&said("stop"), json!({"mode": "now"})).await;
    assert!(stopped.status < 300, "{stopped:?}");
    served.until_snapshot(&session, |snapshot| snapshot["state"] == "idle").await;
}

/// The agent's first model fails until its circuit breaker opens.
async fn fall_back(served: &HostServer, wave: &str) {
    for number in 0..3 {
        let id = format!("{wave}-shaky-{number}");
        let opened = served.post("/v1/sessions", json!({"id": id, "agent": "shaky"})).await;
        assert_eq!(opened.status, 201, "{opened:?}");
        let report = served.run(&id, "hello").await;
        assert_eq!(report["run_end"], "answered", "{report}");
    }
}

#[derive(Deserialize, JsonSchema)]
struct Named {
    name: String,
}

/// Allows every turn.
struct Guard;

#[async_trait]
impl Hook for Guard {
    async fn answer(&self, _: &HookInput) -> Result<HookAnswer, HookError> {
        Ok(HookAnswer::allow())
    }
}

/// Writes a variable after the other call has read it.
struct Late(Arc<Semaphore>);

#[async_trait]
impl Tool for Late {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<Named>("late", "For a test.").pure()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let Named { name } = context.input()?;
        self.0.acquire().await?.forget();
        context.set(&name, 2)?;
        Ok("written".into())
    }
}

/// Reads a variable and notifies the other call.
struct Peek(Arc<Semaphore>);

#[async_trait]
impl Tool for Peek {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<Named>("peek", "For a test.").pure()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let Named { name } = context.input()?;
        let seen = context.get::<Value>(&name)?.unwrap_or_default().to_string();
        self.0.add_permits(1);
        Ok(seen.into())
    }
}

/// A Prometheus process of this test. Dropping it stops it and deletes its data.
struct Prometheus {
    addr: SocketAddr,
    dir: PathBuf,
    child: Option<Child>,
}

impl Prometheus {
    /// Returns `None` if Prometheus is not installed. That is a failure if `CI` is true.
    fn find() -> Option<Self> {
        let version = Command::new("prometheus").arg("--version").output();
        if let Err(error) = version {
            let ci = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!ci, "prometheus does not start: {error}");
            eprintln!("skipped: prometheus does not start: {error}");
            return None;
        }
        let dir = std::env::temp_dir().join(format!("callsheet-prometheus-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        // Prometheus cannot report a port that it chooses, so a free one is chosen here.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        Some(Self { addr: free.local_addr().unwrap(), dir, child: None })
    }

    /// Starts it with the shipped configuration, scraping `host` five times per second.
    fn start(&mut self, host: SocketAddr) {
        let mut config =
            std::fs::read_to_string(crate::panels::folder().join("prometheus.yml")).unwrap();
        let rules = crate::panels::folder().join("callsheet.rules.yml");
        for (shipped, here) in [
            ("scrape_interval: 5s", "scrape_interval: 200ms"),
            ("evaluation_interval: 15s", "evaluation_interval: 200ms"),
            ("[callsheet.rules.yml]", &format!("[{}]", rules.display())),
            ("127.0.0.1:7700", &host.to_string()),
        ] {
            assert_eq!(config.matches(shipped).count(), 1, "{shipped}");
            config = config.replace(shipped, here);
        }
        let file = self.dir.join("prometheus.yml");
        std::fs::write(&file, config).unwrap();
        let log = std::fs::File::create(self.dir.join("log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", self.dir.join("data").display()))
            .arg(format!("--web.listen-address={}", self.addr))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap());
    }

    /// Waits for the first scrape, which takes up to five seconds.
    async fn until_ready(&self) {
        let ready = within(async {
            loop {
                let asked = tokio::net::TcpStream::connect(self.addr).await;
                let answers = asked.is_ok() && self.get("/-/ready").await.status == 200;
                if answers && self.query("up").await[0]["value"][1] == "1" {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        ready.await;
    }

    /// Waits for two more scrapes and one more rule evaluation.
    async fn until_scraped(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let scrapes = format!("sum(timestamp(callsheet_runs_active) > bool {})", now + 0.5);
        let recorded =
            format!("sum(timestamp(streaming_tool_detection_rate) > bool {})", now + 0.5);
        within(async {
            for query in [scrapes, recorded] {
                loop {
                    let result = self.query(&query).await;
                    if result[0]["value"][1] == "1" {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        })
        .await;
    }

    /// Returns the expressions of its rules. Of alerts it returns the compared value, because no
    /// alert fires here.
    async fn rules(&self) -> Vec<Expression> {
        let rules = self.get("/api/v1/rules").await.json();
        let groups = rules["data"]["groups"].as_array().unwrap().iter();
        let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
        let expression = |rule: &Value| {
            let (place, query) = (rule["name"].to_string(), rule["query"].as_str().unwrap());
            assert_eq!(rule["lastError"], Value::Null, "{place}");
            if rule["type"] == "recording" {
                return Expression { place, text: query.to_owned() };
            }
            for annotation in ["summary", "description"] {
                assert!(rule["annotations"][annotation].is_string(), "{place}: {annotation}");
            }
            assert!(rule["labels"]["severity"].is_string(), "{place}: its severity");
            let compared = query.rsplit_once([' ']).unwrap().0.rsplit_once(' ').unwrap();
            assert!([">", ">=", "<"].contains(&compared.1), "{place}: {query}");
            Expression { place, text: compared.0.to_owned() }
        };
        rules.map(expression).collect()
    }

    /// Returns `None` if a query returns at least one number, or else the problem.
    async fn data(&self, query: &str) -> Result<(), String> {
        let answer = self.send_query(query).await;
        let json = answer.json();
        if json["status"] != "success" {
            return Err(json["error"].to_string());
        }
        let samples = json["data"]["result"].as_array().unwrap();
        let is_number = |sample: &&Value| sample["value"][1] != "NaN";
        match samples.iter().find(is_number) {
            Some(_) => Ok(()),
            None => Err(format!("{} samples, none of them a number", samples.len())),
        }
    }

    async fn query(&self, query: &str) -> Value {
        self.send_query(query).await.json()["data"]["result"].take()
    }

    async fn send_query(&self, query: &str) -> HttpResponse {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        self.get(&format!("/api/v1/query?query={encoded}")).await
    }

    async fn get(&self, path: &str) -> HttpResponse {
        let head = "host: localhost\r\nconnection: close";
        let request = format!("GET {path} HTTP/1.1\r\n{head}\r\n\r\n");
        let mut reading = HttpConnection::open(self.addr, &request).await;
        within(reading.read_rest()).await;
        reading.response()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // If it has already ended, its log was printed.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            eprintln!("prometheus said:\n{log}");
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
