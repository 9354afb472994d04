//! Compares a call of an MCP server's tool, as a run makes it, with a call of the bare client library on the same server.
//!
//! The server is this program again, a process that answers at once. A run makes 50 calls of its tool, one after the
//! other; the same run with a tool of the program that returns the same text tells what a call costs without a server.
//! The difference is the cost of the host's part of MCP. CPU time of this process; the server's is not in it.
#![expect(clippy::unwrap_used, reason = "a bench that fails is wrong")]

#[path = "shared/report.rs"]
mod report;
#[path = "shared/times.rs"]
mod times;

use std::io::{BufRead as _, Write as _};
use std::process::Stdio;
use std::time::Duration;

use callsheet::config::{
    Config, JournalEngine, McpConfig, McpHandshake, McpTransport, ToolPattern,
};
use callsheet::load::cpu_time;
use callsheet::model::{Message, ModelReply, ModelRequest};
use callsheet::prelude::*;
use callsheet::runtime::OpenSession;
use callsheet::tool::ToolRegistry;
use report::Report;
use rmcp::ServiceExt as _;
use rmcp::model::CallToolRequestParams;
use rmcp::service::{RoleClient, RunningService};
use serde_json::{Value, json};
use times::median;

const CALLS: u32 = 50;
const PAIRS: usize = 15;
const TEXT: &str = "The weather in Berlin is 17 degrees, with light rain in the evening.";

/// Answers the requests of a client.
fn serve() {
    let (input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    for line in input.lines() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let result = match message["method"].as_str().unwrap() {
            "initialize" => json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "bench", "version": "1"},
            }),
            "tools/list" => {
                json!({"tools": [{"name": "weather", "inputSchema": {"type": "object"}}]})
            }
            "tools/call" => json!({"content": [{"type": "text", "text": TEXT}]}),
            _ => continue,
        };
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        writeln!(output, "{answer}").unwrap();
        output.flush().unwrap();
    }
}

/// Starts a host whose model asks for the calls of a tool, each in a turn of its own.
async fn host(tool: &'static str) -> Host {
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    let agent = config.agents.get_mut("default").unwrap();
    "bench".clone_into(&mut agent.model);
    agent.tools = vec![ToolPattern::new("*")];
    let program = std::env::current_exe().unwrap().display().to_string();
    let command = vec![program, "--serve".to_owned()];
    let transport = McpTransport::Stdio { command, process: Box::default() };
    let server = McpConfig::new(transport);
    let server = server.with(|new| new.handshake = McpHandshake::Initialize);
    config.mcp.insert("bench".to_owned(), server);
    let mut tools = ToolRegistry::new();
    let local = ToolSpec::named("weather", "Tells the weather.");
    tools.register(local.into_tool(async |_: Value, _| Ok(TEXT))).unwrap();
    tools.register_configured(&config).unwrap();
    let model = move |request: ModelRequest| {
        let is_answered =
            matches!(request.messages.last().map(|last| &**last), Some(Message::Tool { .. }));
        let reply = if is_answered {
            ModelReply::text("done")
        } else {
            // Calls with the same arguments would run once.
            let call = |reply: ModelReply, day| reply.and_call(tool, json!({"day": day}));
            (1..CALLS).fold(ModelReply::call(tool, json!({"day": 0})), call)
        };
        reply.into_stream()
    };
    let host = Host::builder().config(config).tools(tools).model_source("bench", model);
    host.start().await.unwrap()
}

/// Returns the CPU time of a call in a run.
async fn hosted(host: &Host) -> Duration {
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let before = cpu_time();
    let report = session.run("go").await.unwrap();
    let took = cpu_time() - before;
    assert!(report.calls.iter().all(|call| call.result == TEXT));
    assert_eq!(report.calls.len(), CALLS as usize);
    took / CALLS
}

async fn bare_client() -> RunningService<RoleClient, ()> {
    let mut server = tokio::process::Command::new(std::env::current_exe().unwrap());
    let server = server.arg("--serve").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = server.kill_on_drop(false).spawn().unwrap();
    let pipes = (server.stdout.take().unwrap(), server.stdin.take().unwrap());
    ().serve(pipes).await.unwrap()
}

/// Returns the CPU time of a call with the bare client.
async fn bare(client: &RunningService<RoleClient, ()>) -> Duration {
    let arguments = json!({"day": 0}).as_object().unwrap().clone();
    let params = CallToolRequestParams::new("weather").with_arguments(arguments);
    let before = cpu_time();
    for _ in 0..CALLS {
        let answer = client.call_tool(params.clone()).await.unwrap();
        assert_eq!(answer.content.len(), 1);
    }
    (cpu_time() - before) / CALLS
}

fn main() {
    if std::env::args().any(|argument| argument == "--serve") {
        return serve();
    }
    callsheet::launcher::run_if_launched();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (served, local, client) =
            (host("bench__weather").await, host("weather").await, bare_client().await);
        let [mut bares, mut with, mut without] = [const { Vec::new() }; 3];
        for _ in 0..PAIRS {
            bares.push(bare(&client).await);
            with.push(hosted(&served).await);
            without.push(hosted(&local).await);
        }
        let (bare, with, without) = (median(bares), median(with), median(without));
        let row = |what: &str, took: Duration| {
            let ratio = took.as_secs_f64() / bare.as_secs_f64();
            [what.to_owned(), format!("{:.1} us", took.as_secs_f64() * 1e6), format!("{ratio:.2}")]
        };
        let rows = [
            row("the bare client", bare),
            row("a call in a run, without that of a tool in this process", with.saturating_sub(without)),
            row("a call in a run", with),
            row("a call of a tool in this process, in a run", without),
        ];
        let about = format!(
            "CPU time of a call over stdio, of {CALLS} in a run, beside the client library alone on the same server, \
             medians of {PAIRS} in turn."
        );
        Report::new("mcp").table(&about, ["what", "CPU time", "ratio"], rows).print();
        for host in [served, local] {
            host.shutdown().await;
        }
    });
}
