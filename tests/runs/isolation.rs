//! Isolation of variables between the calls of a turn: in any finishing order the result equals that
//! of sequential execution.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::support::tools::CallControl;
use crate::support::{parallel, within, world};
use async_trait::async_trait;
use callsheet::config::Config;
use callsheet::context::Variables;
use callsheet::message::Message;
use callsheet::runtime::RunReport;
use callsheet::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use callsheet::types::RunEnd;
use callsheet_mock_provider::{Call, Response, Script};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize, JsonSchema)]
struct StagedInput {
    id: String,
    get: Option<String>,
    set: Option<String>,
}

/// A tool that reads a variable, waits for the test, and writes one that depends on it.
struct ControlledTool {
    spec: ToolSpec,
    control: CallControl,
}

#[async_trait]
impl Tool for ControlledTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let StagedInput { id, get, set } = context.input()?;
        let seen = match get {
            Some(name) => context.get(&name)?.unwrap_or(0),
            None => 0_i64,
        };
        self.control.note(format!("start {id}"));
        self.control.released(&id).await;
        if let Some(name) = set {
            context.set(&name, seen * 10 + 1)?;
        }
        self.control.note(format!("end {id}"));
        Ok(format!("saw {seen}").into())
    }
}

fn registry(control: &CallControl) -> ToolRegistry {
    let mut registry = ToolRegistry::new();
    for spec in [
        ToolSpec::new::<StagedInput>("look", "Pure.").pure(),
        ToolSpec::new::<StagedInput>("act", "Not."),
    ] {
        registry.register(ControlledTool { spec, control: control.clone() }).unwrap();
    }
    registry
}

/// Tool, name of the variable that is read, name of the variable that is written.
type Step = (&'static str, Option<&'static str>, Option<&'static str>);

struct StepsResult {
    report: RunReport,
    variables: Variables,
    log: Vec<String>,
    page: String,
}

impl StepsResult {
    /// Returns the results as the model receives them.
    fn results(&self) -> Vec<&str> {
        let results = self.report.run_messages().iter().filter_map(|message| match &**message {
            Message::Tool { content, .. } => Some(&**content),
            Message::User { .. } | Message::Summary { .. } | Message::Assistant(_) => None,
        });
        results.collect()
    }

    fn starts(&self, id: &str) -> usize {
        self.log.iter().filter(|line| **line == format!("start {id}")).count()
    }
}

/// Runs the steps as the calls of one response. All calls start before the first ends, and those in
/// `order` end in that order.
async fn play(steps: &[Step], order: &[&str], change: impl FnOnce(&mut Config)) -> StepsResult {
    let control = CallControl::new();
    let ids = ["a", "b", "c", "d"];
    let calls = ids.iter().zip(steps).map(|(id, (tool, get, set))| {
        Call::new(tool, json!({"id": id, "get": get, "set": set})).id(&format!("call-{id}"))
    });
    let script = Script::new([Response::calls(calls.collect::<Vec<_>>()), Response::text("Done.")]);
    let world = world(script, registry(&control), change).await;
    let started = world.session.start_run("go").await.unwrap();
    for id in order {
        control.until_logged(&format!("start {id}")).await;
    }
    for id in order {
        control.release(id);
        control.until_logged(&format!("end {id}")).await;
    }
    ids.iter().for_each(|id| control.release(id));
    let report = within(started.report).await.unwrap();
    assert_eq!(report.run_end, RunEnd::Answered);
    world.assert_paired();
    let variables = world.session.snapshot().await.unwrap().variables;
    let page = world.host.telemetry().render();
    StepsResult { report, variables, log: control.log(), page }
}

fn values(variables: &Variables) -> Value {
    variables.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect()
}

#[tokio::test]
async fn without_a_conflict_sequential_and_parallel_histories_are_equal() {
    let steps: [Step; 4] = [
        ("act", None, Some("x")),
        ("look", Some("y"), Some("z")),
        ("act", Some("w"), Some("y")),
        ("look", None, None),
    ];
    let plain = play(&steps, &[], |_| {}).await;
    for order in [["d", "c", "b", "a"], ["b", "a", "d", "c"], ["a", "b", "c", "d"]] {
        let beside = play(&steps, &order, parallel(8)).await;
        let bytes = |played: &StepsResult| {
            let history = serde_json::to_string(&played.report.run_messages()).unwrap();
            history + &values(&played.variables).to_string()
        };
        assert_eq!(bytes(&beside), bytes(&plain), "{order:?}");
    }
}

#[tokio::test]
async fn pure_calls_with_a_conflict_run_again_and_match_sequential_execution() {
    let steps: [Step; 3] =
        [("look", Some("x"), Some("x")), ("look", Some("x"), Some("x")), ("look", Some("x"), None)];
    let plain = play(&steps, &[], |_| {}).await;
    assert_eq!(plain.results(), ["saw 0", "saw 1", "saw 11"]);
    for order in [["c", "b", "a"], ["a", "b", "c"], ["b", "c", "a"]] {
        let beside = play(&steps, &order, parallel(8)).await;
        assert_eq!(beside.results(), plain.results(), "{order:?}");
        assert_eq!(values(&beside.variables), json!({"x": 11}));
        assert_eq!([beside.starts("a"), beside.starts("b"), beside.starts("c")], [1, 2, 2]);
        let counted =
            "\ncallsheet_variable_conflicts_total{tool=\"look\",resolution=\"rerun\"} 2\n";
        assert!(beside.page.contains(counted), "{}", beside.page);
        assert_eq!(beside.report.calls[1].metadata, json!({"conflict": true}));
    }
}

#[tokio::test]
async fn a_call_with_effects_and_a_conflict_keeps_its_result_and_loses_its_writes() {
    let steps: [Step; 3] =
        [("act", None, Some("x")), ("act", Some("x"), Some("y")), ("look", Some("y"), None)];
    let played = play(&steps, &["c", "b", "a"], parallel(8)).await;
    let results = played.results();
    assert_eq!((results[0], results[2]), ("saw 0", "saw 0"));
    assert!(results[1].starts_with("saw 0\n[callsheet: an earlier call"), "{}", results[1]);
    assert_eq!(values(&played.variables), json!({"x": 1}));
    assert_eq!(played.report.calls[1].metadata, json!({"conflict": true, "writes_dropped": true}));
    assert_eq!([played.starts("a"), played.starts("b"), played.starts("c")], [1, 1, 1]);
}
