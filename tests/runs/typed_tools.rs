//! Typed tools and closures in a host: values, errors with sources, identity and extensions.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{World, within, world};
use callsheet::config::ApprovalPolicy;
use callsheet::runtime::{OpenSession, RunReport, RunRequest, SessionHandle};
use callsheet::tool::{IntoTool, ToolContext, ToolError, ToolRegistry, ToolSpec, TypedTool};
use callsheet::turn::ApprovalDecision;
use callsheet::types::{ApprovalVerdict, SessionState, WaitPhase};
use callsheet_mock_provider::{Call, Response, Script};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Deserialize, JsonSchema)]
struct Query {
    /// The name of the table.
    table: String,
}

#[derive(Serialize)]
struct Rows {
    count: usize,
    queries: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("query {table:?}")]
struct QueryError {
    table: String,
    source: io::Error,
}

/// Counts the rows of the tables that it knows, and its queries in a session.
struct CountRows {
    tables: Vec<(&'static str, usize)>,
}

impl TypedTool for CountRows {
    type Input = Query;
    type Output = Rows;

    fn spec(&self) -> ToolSpec {
        ToolSpec::named("count_rows", "Counts the rows of a table.").pure()
    }

    async fn call(&self, input: Query, context: ToolContext) -> Result<Rows, ToolError> {
        let queries = context.get("queries")?.unwrap_or(0) + 1;
        context.set("queries", queries)?;
        let found = self.tables.iter().find(|(name, _)| *name == input.table);
        let (_, count) = *found.ok_or_else(|| QueryError {
            table: input.table,
            source: io::Error::other("no such table"),
        })?;
        Ok(Rows { count, queries })
    }
}

/// A value of the embedding program.
struct Tenant(&'static str);

/// Another one.
struct User(u32);

/// Returns a tool that names the tenant and the user of the call.
fn whose() -> ToolSpec {
    ToolSpec::named("whose", "Names the owner.")
}

async fn owner((): (), context: ToolContext) -> Result<String, ToolError> {
    let user = context.extension::<User>().map_or(0, |user| user.0);
    Ok(format!("{} {user}", context.extension::<Tenant>()?.0))
}

/// Returns a script with one call in each of `runs` runs.
fn calling(tool: &str, arguments: &[Value]) -> Script {
    let runs = arguments.iter().flat_map(|arguments| {
        [Response::calls(vec![Call::new(tool, arguments.clone())]), Response::text("done")]
    });
    Script::new(runs)
}

async fn world_with(tool: impl callsheet::tool::Tool, arguments: &[Value]) -> World {
    let name = tool.spec().name;
    let mut tools = ToolRegistry::new();
    tools.register(tool).unwrap();
    world(calling(&name, arguments), tools, |_| ()).await
}

fn result(report: &RunReport) -> &str {
    &report.calls[0].result
}

#[tokio::test]
async fn a_typed_tool_returns_json_and_keeps_typed_variables() {
    let tool = CountRows { tables: vec![("users", 42)] };
    let users = json!({ "table": "users" });
    let world = world_with(tool, &[users.clone(), users, json!({ "tabel": "users" })]).await;
    assert_eq!(result(&world.run("go").await), r#"{"count":42,"queries":1}"#);
    assert_eq!(result(&world.run("go").await), r#"{"count":42,"queries":2}"#);
    let refused = world.run("go").await;
    assert!(result(&refused).contains("\"table\" is a required property"), "{refused:?}");
    let request = &world.requests()[0].body;
    let parameters = &request["tools"][0]["function"]["parameters"];
    assert_eq!(parameters["properties"]["table"]["description"], "The name of the table.");
    world.assert_paired();
}

/// Collects log lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

// The actors run on the thread of the test, so they see its subscriber.
#[tokio::test]
async fn the_model_reads_the_top_error_and_the_log_has_the_sources() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().json().with_writer(lines.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let world = world_with(CountRows { tables: Vec::new() }, &[json!({ "table": "x" })]).await;
    let report = world.run("go").await;
    assert_eq!(result(&report), "Error: query \"x\"");
    let log = String::from_utf8(lines.0.lock().clone()).unwrap();
    let line = log.lines().find(|line| line.contains("tool_failed")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["level"], "WARN");
    let fields = json!({
        "message": "tool_failed",
        "session": world.session.id().as_str(),
        "run": &*report.run_id.0,
        "turn": 1,
        "tool_id": "t1a1c0",
        "tool_name": "count_rows",
        "error": "query \"x\": no such table",
    });
    assert_eq!(line["fields"], fields);
}

#[tokio::test]
async fn the_context_identifies_the_call_and_its_deadline() {
    let spec = ToolSpec::named("who", "Describes the call.").timeout(Duration::from_secs(9));
    let tool = spec.into_tool(async |(): (), context: ToolContext| {
        let left = context.deadline().unwrap() - tokio::time::Instant::now();
        assert!(left > Duration::from_secs(8) && left <= Duration::from_secs(9), "{left:?}");
        let ids = (context.session().clone(), context.run().0.to_string());
        Ok((ids, context.agent().to_owned(), context.tool().to_owned(), context.key().turn))
    });
    let world = world_with(tool, &[json!({})]).await;
    let report = world.run("go").await;
    let (session, run) = (world.session.id().as_str(), &*report.run_id.0);
    assert_eq!(result(&report), json!([[session, run], "default", "who", 1]).to_string());
}

#[tokio::test]
async fn a_run_sees_its_own_values_and_those_of_its_session() {
    let world = world_with(whose().into_tool(owner), &vec![json!({}); 7]).await;
    let without = world.run("go").await;
    assert!(result(&without).starts_with("Error: no value of the type "), "{without:?}");
    let open = OpenSession::default().with_extension(Tenant("acme"));
    let session = world.host.open_session(open).await.unwrap();
    let run = async |request: RunRequest| {
        let report = within(session.run(request)).await.unwrap();
        result(&report).to_owned()
    };
    assert_eq!(run("go".into()).await, "acme 0");
    let request = RunRequest::from("go").with_extension(User(7));
    assert_eq!(run(request.with_extension(Tenant("other"))).await, "other 7");
    // The values of a run end with it; those of a session survive its hibernation.
    asleep(&session).await;
    assert_eq!(run("go".into()).await, "acme 0");
    session.add_extension(User(8)).await.unwrap();
    assert_eq!(run("go".into()).await, "acme 8");
    // A queued run keeps its values until it starts.
    let first = RunRequest::from("go").with_extension(User(1));
    let second = RunRequest::from("go").with_extension(User(2)).with(|new| new.queue = true);
    let first = session.start_run(first).await.unwrap().report;
    let second = session.start_run(second).await.unwrap().report;
    assert_eq!(result(&within(first).await.unwrap()), "acme 1");
    assert_eq!(result(&within(second).await.unwrap()), "acme 2");
}

#[tokio::test]
async fn the_values_of_a_run_survive_its_hibernation() {
    let spec = whose().approval(ApprovalPolicy::BEFORE);
    let world = world_with(spec.into_tool(owner), &[json!({})]).await;
    let session = &world.session;
    let request = RunRequest::from("go").with_extension(Tenant("acme"));
    drop(within(session.start_run(request)).await.unwrap());
    let asked = within(async {
        loop {
            let run = session.snapshot().await.unwrap().current_run;
            if let Some(asked) = run.and_then(|run| run.approvals.into_iter().next()) {
                return asked;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    within(async {
        while world.host.counts().awake > 0 {
            session.hibernate();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    let decision = ApprovalDecision {
        phase: Some(WaitPhase::Before),
        verdict: ApprovalVerdict::Approved,
        message: None,
        content: None,
        arguments_sha256: asked.arguments_sha256,
        author: None,
    };
    within(session.decide(asked.tool_id.parse().unwrap(), decision)).await.unwrap();
    let history = within(async {
        loop {
            let snapshot = session.snapshot().await.unwrap();
            if snapshot.current_run.is_none() {
                return serde_json::to_value(snapshot).unwrap()["history"].clone();
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(history[2]["content"], "acme 0");
}

/// Waits until the session hibernates, whose run has ended.
async fn asleep(session: &SessionHandle) {
    within(async {
        while session.state() != SessionState::Hibernated {
            session.hibernate();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
