//! Two or three calls in a response, run by a host.
#![expect(clippy::expect_used, reason = "a test")]

use std::sync::Arc;

use crate::support::{parallel, results, world};
use async_trait::async_trait;
use callsheet::tool::{
    ParsedSchema, Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec,
};
use callsheet::types::RunEnd;
use callsheet_mock_provider::{Call, Response, Script};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// A tool that returns its own name, and logs its arguments.
struct LoggingTool(&'static str, Arc<Mutex<Vec<String>>>);

#[async_trait]
impl Tool for LoggingTool {
    fn spec(&self) -> ToolSpec {
        let schema = ParsedSchema::parse(json!({"type": "object"})).expect("a schema");
        ToolSpec::with_schema(self.0, "For a test.", schema).pure()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        self.1.lock().push(format!("{} {}", self.0, context.arguments()));
        Ok(format!("the answer of {}", self.0).into())
    }
}

/// Runs a response with these calls, sequentially and in parallel, and checks the calls that ran and the
/// results that the provider received.
async fn check(calls: &[(&str, Value)], ran: &[&str], expected: &[&str]) {
    for max in [1, 4] {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut registry = ToolRegistry::new();
        for tool in ["get_weather", "get_news", "get_time"] {
            registry.register(LoggingTool(tool, Arc::clone(&log))).expect("a tool");
        }
        let asking = calls.iter().map(|(name, arguments)| Call::new(name, arguments.clone()));
        let script = Script::new([Response::calls(asking), Response::text("That is all.")]);
        let world = world(script, registry, parallel(max)).await;
        let report = world.run("Tell me.").await;
        assert_eq!(report.run_end, RunEnd::Answered);
        let mut seen = log.lock().clone();
        seen.sort_unstable();
        assert_eq!(seen, ran);
        let messages = world.last_messages();
        let contents: Vec<_> = results(&messages).iter().map(|(_, content)| *content).collect();
        assert_eq!(contents, expected);
        world.assert_paired();
    }
}

fn weather() -> (&'static str, Value) {
    ("get_weather", json!({"city": "Tokyo"}))
}

fn news() -> (&'static str, Value) {
    ("get_news", json!({"topic": "technology"}))
}

#[tokio::test]
async fn two_tools() {
    check(
        &[weather(), news()],
        &[r#"get_news {"topic":"technology"}"#, r#"get_weather {"city":"Tokyo"}"#],
        &["the answer of get_weather", "the answer of get_news"],
    )
    .await;
}

#[tokio::test]
async fn three_tools() {
    check(
        &[weather(), news(), ("get_time", json!({"zone": "Asia/Tokyo"}))],
        &[
            r#"get_news {"topic":"technology"}"#,
            r#"get_time {"zone":"Asia/Tokyo"}"#,
            r#"get_weather {"city":"Tokyo"}"#,
        ],
        &["the answer of get_weather", "the answer of get_news", "the answer of get_time"],
    )
    .await;
}

#[tokio::test]
async fn duplicate_calls() {
    check(
        &[weather(), weather()],
        &[r#"get_weather {"city":"Tokyo"}"#],
        &["the answer of get_weather", "the answer of get_weather"],
    )
    .await;
}
