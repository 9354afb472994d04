//! Runs the conformance suite of the Model Context Protocol against the client. The suite starts this test's own
//! binary, which runs [`client_process`].
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::process::Command;

use crate::installed::{is_installed, node, package};
use callsheet::config::{Config, JournalEngine, ModelConfig, ToolPattern};
use callsheet::message::Message;
use callsheet::model::{ModelReply, ModelRequest, ModelStream};
use callsheet::prelude::*;
use callsheet::tool::{QuestionKind, ToolRegistry};
use serde_json::{Map, Value, json};

/// The scenarios of the suite's core with the versions of the protocol that they are run with.
const SCENARIOS: [(&str, &[&str]); 11] = [
    ("initialize", &["2025-06-18", "2025-11-25"]),
    ("tools_call", &["2025-06-18", "2025-11-25", "2026-07-28"]),
    ("elicitation-sep1034-client-defaults", &["2025-11-25"]),
    ("sep-2322-client-request-state", &["2026-07-28"]),
    ("sse-retry", &["2025-11-25"]),
    ("request-metadata", &["2026-07-28"]),
    ("http-standard-headers", &["2026-07-28"]),
    ("http-custom-headers", &["2026-07-28"]),
    ("http-invalid-tool-headers", &["2026-07-28"]),
    ("json-schema-ref-no-deref", &["2026-07-28"]),
    ("json-schema-2020-12-preservation", &["2025-11-25", "2026-07-28"]),
];

/// The client, if the suite has started this process: it calls each tool of the server, and answers the questions
/// with what their forms require. The URL is the last argument.
#[tokio::test]
async fn client_process() {
    if std::env::var("MCP_CONFORMANCE_SCENARIO").is_err() {
        return;
    }
    let url = std::env::args().next_back().unwrap();
    let text = format!("[mcp.suite]\nurl = {url:?}\ntimeout = \"10s\"\n");
    let mut config = Config::parse(&text, "suite.toml", &|_| None).unwrap();
    config.agents.get_mut("default").unwrap().tools = vec![ToolPattern::new("*")];
    config.use_model("caller", ModelConfig::for_source("caller"));
    config.journal.engine = JournalEngine::Memory;
    let mut registry = ToolRegistry::new();
    registry.register_configured(&config).unwrap();
    let host = Host::builder().config(config).tools(registry).model_source("caller", call_each);
    let host = host.start().await.unwrap();
    let session = host.open_session("suite").await.unwrap();
    let mut run = session.start_run("Call each tool.").await.unwrap();
    while let Some(event) = run.next_event().await.unwrap() {
        let RunEvent::ApprovalRequested(asked) = event else { continue };
        match &asked.approval.question.as_ref().unwrap().kind {
            QuestionKind::Form(form) => asked.answer(required(form)).await.unwrap(),
            QuestionKind::Url(_) => asked.approve().await.unwrap(),
        }
    }
    let report = run.report.await.unwrap();
    println!("{report:#?}");
    host.shutdown().await;
}

/// Answers as a model that calls each tool once, and then says that it is done.
fn call_each(request: ModelRequest) -> ModelStream {
    let mut reply = ModelReply::text("");
    if !request.messages.iter().any(|message| matches!(**message, Message::Tool { .. })) {
        for tool in request.tools.iter() {
            reply = reply.and_call(&tool.name, arguments(&tool.name, &request));
        }
    }
    reply.into_stream()
}

/// Returns the arguments that the suite asks for, or some that fit the tool's schema.
fn arguments(tool: &str, request: &ModelRequest) -> Value {
    let schema = |name: &str| {
        let tool = request.tools.iter().find(|tool| tool.name == name).unwrap();
        serde_json::to_value(&tool.schema).unwrap()
    };
    if tool == "suite__json_schema_echo" {
        return json!({"schema": schema("suite__json_schema_2020_12_tool")});
    }
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    let context = serde_json::from_str::<Value>(&context).unwrap_or_default();
    let calls = context["toolCalls"].as_array().into_iter().flatten();
    if let Some(call) =
        calls.into_iter().find(|call| tool == format!("suite__{}", call["name"].as_str().unwrap()))
    {
        let arguments = call["arguments"].as_object().unwrap().clone();
        // A null does not fit the schema of an optional parameter.
        return arguments.into_iter().filter(|(_, value)| !value.is_null()).collect();
    }
    required(&schema(tool))
}

/// Returns an object with the required properties that have no default.
fn required(schema: &Value) -> Value {
    let required = schema["required"].as_array().into_iter().flatten();
    let required = required.map(|name| name.as_str().unwrap());
    let property = |name: &str| &schema["properties"][name];
    let filled = required.filter(|name| property(name)["default"].is_null()).map(|name| {
        let value = match property(name)["type"].as_str() {
            Some("number" | "integer") => json!(1),
            Some("boolean") => json!(true),
            _ => json!("x"),
        };
        (name.to_owned(), value)
    });
    Value::Object(filled.collect::<Map<_, _>>())
}

/// Runs a scenario. Returns whether it passed, and what the suite wrote.
fn passes(scenario: &str, version: &str) -> (bool, String) {
    let client = std::env::current_exe().unwrap();
    let client =
        format!("{} --exact mcp_conformance::client_process --nocapture", client.display());
    let suite = package("@modelcontextprotocol/conformance/dist/index.js");
    let output = Command::new(node())
        .arg(suite)
        .args(["client", "--scenario", scenario, "--spec-version", version, "--command", &client])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = format!("{}{text}", String::from_utf8_lossy(&output.stdout));
    // A scenario that checked nothing has not passed.
    let checked = !text.contains("Passed: 0/0") && text.contains("Passed: ");
    (output.status.success() && checked, text)
}

#[test]
fn the_scenarios_of_the_core_pass() {
    if !is_installed() {
        return;
    }
    std::thread::scope(|scope| {
        let runs = SCENARIOS.iter().flat_map(|(scenario, versions)| {
            versions.iter().map(move |version| (*scenario, *version))
        });
        let runs: Vec<_> = runs
            .map(|(scenario, version)| {
                (scenario, version, scope.spawn(move || passes(scenario, version)))
            })
            .collect();
        for (scenario, version, run) in runs {
            let (passed, text) = run.join().unwrap();
            assert!(passed, "{scenario} {version}: {text}");
        }
    });
}
