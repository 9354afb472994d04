//! The named scripts of the rehearsal model, run by a host: two or three calls in a response.
#![expect(clippy::expect_used, reason = "a test")]

use std::sync::Arc;

use crate::support::{parallel, results, world};
use async_trait::async_trait;
use callsheet::rehearsal::{SCRIPT_NAMES, Script};
use callsheet::tool::{
    ParsedSchema, Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec,
};
use callsheet::types::RunEnd;
use parking_lot::Mutex;
use serde_json::json;

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

/// Runs a script with sequential and parallel execution, and checks the calls that ran and the
/// results that the provider received.
async fn check(name: &str, ran: &[&str], expected: &[&str]) {
    for max in [1, 4] {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut registry = ToolRegistry::new();
        for tool in ["get_weather", "get_news", "get_time"] {
            registry.register(LoggingTool(tool, Arc::clone(&log))).expect("a tool");
        }
        let script = Script::named(name).expect("a script of this name");
        let world = world(script, registry, parallel(max)).await;
        let report = world.run("Tell me.").await;
        assert_eq!(report.run_end, RunEnd::Answered);
        assert!(report.text.starts_with("(offline rehearsal model)"), "{}", report.text);
        let mut seen = log.lock().clone();
        seen.sort_unstable();
        assert_eq!(seen, ran, "{name}");
        let messages = world.last_messages();
        let contents: Vec<_> = results(&messages).iter().map(|(_, content)| *content).collect();
        assert_eq!(contents, expected, "{name}");
        world.assert_paired();
    }
}

#[tokio::test]
async fn weather_and_news() {
    check(
        "weather_and_news",
        &[r#"get_news {"topic":"technology"}"#, r#"get_weather {"city":"Tokyo"}"#],
        &["the answer of get_weather", "the answer of get_news"],
    )
    .await;
}

#[tokio::test]
async fn three_tools() {
    check(
        "three_tools",
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
        "duplicate_calls",
        &[r#"get_weather {"city":"Tokyo"}"#],
        &["the answer of get_weather", "the answer of get_weather"],
    )
    .await;
}

#[test]
fn every_script_has_a_test() {
    assert_eq!(SCRIPT_NAMES, ["weather_and_news", "three_tools", "duplicate_calls"]);
}
