//! Variables of a session: visibility of writes between calls, and conflicts.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use crate::client::HttpConnection;
use crate::support::{World, events, parallel, results, within, world};
use async_trait::async_trait;
use callsheet::config::Config;
use callsheet::record::StopMode;
use callsheet::server::{self, ServerOptions};
use callsheet::tool::{
    BuiltinOptions, Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec, builtin,
};
use callsheet::types::{RunEnd, ToolStatus};
use callsheet_mock_provider::{Call, Response, Script};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

#[derive(Deserialize, JsonSchema)]
struct NameInput {
    name: String,
}

/// The gates at which the tools wait, and a log of their actions.
#[derive(Clone)]
struct Gates {
    /// One permit for each allowed write.
    write: Arc<Semaphore>,
    /// One permit for each completed read.
    read: Arc<Semaphore>,
}

/// The action of a gated tool.
#[derive(Clone, Copy)]
enum GatedAction {
    /// Waits for its gate, and writes 2.
    WriteLate,
    /// Reads, and releases a permit.
    Peek,
    /// Reads with effects, and logs the value.
    Note,
    /// Writes, and fails.
    Fail,
    /// Writes, releases a permit, and never returns.
    Hang,
}

struct Gated {
    name: &'static str,
    deed: GatedAction,
    gates: Gates,
}

#[async_trait]
impl Tool for Gated {
    fn spec(&self) -> ToolSpec {
        let spec = ToolSpec::new::<NameInput>(self.name, "For a test.");
        match self.deed {
            GatedAction::Note => spec,
            GatedAction::WriteLate | GatedAction::Peek | GatedAction::Fail | GatedAction::Hang => {
                spec.pure()
            }
        }
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let NameInput { name } = context.input()?;
        let shown = |value: Option<Value>| value.unwrap_or_default().to_string();
        match self.deed {
            GatedAction::WriteLate => {
                self.gates.write.acquire().await?.forget();
                context.set(&name, 2)?;
                Ok("written".into())
            }
            GatedAction::Peek => {
                let seen = shown(context.get(&name)?);
                self.gates.read.add_permits(1);
                Ok(seen.into())
            }
            GatedAction::Note => {
                let seen = shown(context.get(&name)?);
                context.set("noted", seen.clone())?;
                self.gates.read.add_permits(1);
                Ok(format!("noted {seen}").into())
            }
            GatedAction::Fail => {
                context.set(&name, "lost")?;
                Err(ToolError::new("no luck"))
            }
            GatedAction::Hang => {
                context.set(&name, "lost")?;
                self.gates.read.add_permits(1);
                std::future::pending().await
            }
        }
    }
}

fn set(name: &str, value: impl Into<Value>) -> Call {
    let value: Value = value.into();
    Call::new("set_variable", json!({"name": name, "value": value}))
}

fn call(tool: &str, name: &str) -> Call {
    Call::new(tool, json!({"name": name}))
}

/// Makes a script: each list of calls is a response, then comes an answer. It restarts with the next
/// run.
async fn scripted(
    responses: impl IntoIterator<Item = Vec<Call>>,
    change: impl FnOnce(&mut Config),
) -> (World, Gates) {
    let gates = Gates { write: Arc::new(Semaphore::new(0)), read: Arc::new(Semaphore::new(0)) };
    let mut tools: ToolRegistry = builtin(&BuiltinOptions::default()).unwrap();
    for (name, deed) in [
        ("write_late", GatedAction::WriteLate),
        ("peek", GatedAction::Peek),
        ("note", GatedAction::Note),
        ("fail", GatedAction::Fail),
        ("hang", GatedAction::Hang),
    ] {
        tools.register(Gated { name, deed, gates: gates.clone() }).unwrap();
    }
    let responses = responses.into_iter().flat_map(|calls| {
        let numbered = calls.into_iter().enumerate();
        let calls = numbered.map(|(n, call)| call.id(&format!("c{n}")));
        [Response::calls(calls.collect::<Vec<_>>()), Response::text("Done.")]
    });
    (world(Script::new(responses), tools, change).await, gates)
}

async fn variables(world: &World) -> Value {
    serde_json::to_value(world.session.snapshot().await.unwrap().variables).unwrap()
}

fn conflicts(world: &World, resolution: &str) -> bool {
    let one = format!("resolution=\"{resolution}\"}} 1");
    let page = world.host.telemetry().render();
    let mut series =
        page.lines().filter(|line| line.starts_with("callsheet_variable_conflicts_total{"));
    series.any(|line| line.ends_with(&one))
}

#[tokio::test]
async fn a_call_reads_writes_of_earlier_calls_of_its_response() {
    for execution in ["sequential", "parallel"] {
        let calls = vec![set("x", json!({"n": 1})), call("get_variable", "x"), set("x", 3)];
        let (world, _) = scripted([calls], |config| {
            let agent = config.agents.get_mut("default").unwrap();
            agent.execution = execution.parse().unwrap();
        })
        .await;
        let report = world.run("go").await;
        assert_eq!(report.run_end, RunEnd::Answered);
        let expected = [("c0", "\"x\" is set"), ("c1", "{\"n\":1}"), ("c2", "\"x\" is set")];
        assert_eq!(results(&world.last_messages()), expected, "{execution}");
        assert_eq!(variables(&world).await, json!({"x": 3}));
    }
}

#[tokio::test]
async fn writes_persist_into_the_next_run_and_appear_in_the_snapshot() {
    let missing = vec![call("get_variable", "y"), call("get_variable", "x")];
    let (world, _) = scripted([vec![set("x", "kept")], missing], |_| {}).await;
    world.run("go").await;
    world.run("and now?").await;
    let messages = world.last_messages();
    let expected = results(&messages);
    assert_eq!(expected[1..], [("c0", "there is no variable \"y\""), ("c1", "\"kept\"")]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = server::serve(listener, world.host.clone(), ServerOptions::default()).unwrap();
    let request = format!(
        "GET /v1/sessions/{} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        world.session.id()
    );
    let mut reading = HttpConnection::open(server.addr(), &request).await;
    within(reading.read_rest()).await;
    assert_eq!(reading.response().json()["variables"], json!({"x": "kept"}));
}

#[tokio::test]
async fn a_pure_call_with_a_conflict_runs_again() {
    let calls = vec![call("write_late", "x"), call("peek", "x")];
    let (world, gates) = scripted([calls], parallel(4)).await;
    let run = world.session.start_run("go").await.unwrap();
    // It reads before the write.
    within(gates.read.acquire()).await.unwrap().forget();
    gates.write.add_permits(1);
    let report = within(run.report).await.unwrap();
    assert_eq!(results(&world.last_messages()), [("c0", "written"), ("c1", "2")]);
    assert_eq!(report.calls[1].metadata, json!({"conflict": true}));
    assert_eq!(gates.read.available_permits(), 1, "it ran once more");
    assert!(conflicts(&world, "rerun"));
}

#[tokio::test]
async fn a_call_with_effects_and_a_conflict_keeps_its_result_and_loses_its_writes() {
    let calls = vec![call("write_late", "x"), call("note", "x"), call("get_variable", "noted")];
    let (world, gates) = scripted([calls], parallel(4)).await;
    let run = world.session.start_run("go").await.unwrap();
    within(gates.read.acquire()).await.unwrap().forget();
    gates.write.add_permits(1);
    let report = within(run.report).await.unwrap();
    let expected = "noted null\n[callsheet: an earlier call of the same response changed variables \
                after this call had read them: x. What this call wrote to variables was dropped.]";
    assert_eq!(
        results(&world.last_messages()),
        [("c0", "written"), ("c1", expected), ("c2", "there is no variable \"noted\"")]
    );
    assert_eq!(report.calls[1].metadata, json!({"conflict": true, "writes_dropped": true}));
    assert_eq!(gates.read.available_permits(), 0, "an effect is not repeated");
    assert_eq!(variables(&world).await, json!({"x": 2}));
    assert!(conflicts(&world, "writes_dropped"));
}

#[tokio::test]
async fn reading_an_unwritten_variable_is_not_a_conflict() {
    let calls = vec![call("write_late", "x"), call("peek", "y")];
    let (world, gates) = scripted([calls], parallel(4)).await;
    let run = world.session.start_run("go").await.unwrap();
    within(gates.read.acquire()).await.unwrap().forget();
    gates.write.add_permits(1);
    let report = within(run.report).await.unwrap();
    assert_eq!(report.calls[1].metadata, json!({}));
    assert_eq!(gates.read.available_permits(), 0);
}

#[tokio::test]
async fn the_size_of_variables_is_limited() {
    let calls = vec![set("a", "x".repeat(50)), set("b", "1234567890"), set("c", "1234567890")];
    let (world, _) = scripted([calls], |config| {
        config.agents.get_mut("default").unwrap().limits.max_variables_bytes = 20;
    })
    .await;
    let run = world.session.start_run("go").await.unwrap();
    let seen = events(run.events).await;
    let report = within(run.report).await.unwrap();
    let (first, third) = (&report.calls[0], &report.calls[2]);
    assert_eq!(first.status, ToolStatus::Failed);
    assert!(first.result.contains("where 20 are allowed (max_variables_bytes)"), "{first:?}");
    assert_eq!(third.metadata, json!({"writes_dropped": true}));
    assert!(third.result.ends_with("together they would exceed 20 bytes.]"), "{third:?}");
    assert_eq!(variables(&world).await, json!({"b": "1234567890"}));
    let limit = seen.iter().find(|event| event["type"] == "limit_reached").unwrap();
    assert_eq!((&limit["limit"], &limit["maximum"]), (&json!("max_variables_bytes"), &json!(20)));
}

#[tokio::test]
async fn writes_of_failed_calls_are_discarded() {
    let calls = vec![set("kept", 1), call("fail", "a"), call("hang", "b")];
    let (world, gates) = scripted([calls.clone(), calls], |config| {
        let limits = &mut config.agents.get_mut("default").unwrap().limits;
        limits.tool_timeout = Some(Duration::from_millis(100));
        limits.cancel_grace = Duration::from_millis(10);
    })
    .await;
    let report = world.run("go").await;
    let statuses: Vec<_> = report.calls.iter().map(|call| call.status).collect();
    assert_eq!(statuses, [ToolStatus::Ok, ToolStatus::Failed, ToolStatus::TimedOut]);
    assert_eq!(variables(&world).await, json!({"kept": 1}));
    within(gates.read.acquire()).await.unwrap().forget();
    // So are the writes of stopped calls.
    let run = world.session.start_run("again").await.unwrap();
    within(gates.read.acquire()).await.unwrap().forget();
    world.session.stop(StopMode::Now).await.unwrap();
    within(run.report).await.unwrap();
    assert_eq!(variables(&world).await, json!({"kept": 1}));
    world.assert_paired();
}
