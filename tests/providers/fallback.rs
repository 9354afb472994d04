//! Fallback to the agent's next model, over real HTTP, with one provider per model.
#![expect(clippy::expect_used, reason = "a test")]

use crate::support::tools::{CallControl, registry};
use crate::support::{World, events, parallel, within, world};
use callsheet::config::{BaseUrl, Config, ModelConfig, StartPolicy, ToolOverride};
use callsheet::runtime::RunReport;
use callsheet::tool::ToolRegistry;
use callsheet::types::{RunEnd, ToolStatus};
use callsheet_mock_provider::{Call, MockProvider, Response, Script, ScriptPosition};
use serde_json::{Value, json};

/// A world with two scripted providers: `rehearsal` and its fallback `backup`.
struct TwoModels {
    world: World,
    backup: MockProvider,
}

async fn two(
    first: impl IntoIterator<Item = Response>,
    second: impl IntoIterator<Item = Response>,
    tools: ToolRegistry,
    change: impl FnOnce(&mut Config),
) -> TwoModels {
    let backup = MockProvider::with_script(Script::new(second)).await.expect("a second provider");
    let url = BaseUrl::parse(&backup.base_url()).expect("its address");
    let world = world(Script::new(first), tools, |config| {
        config.models.insert("backup".into(), ModelConfig::new(url, "backup-model"));
        let agent = config.agents.get_mut("default").expect("the agent");
        agent.fallback_models = vec!["backup".into()];
        parallel(8)(config);
        change(config);
    })
    .await;
    TwoModels { world, backup }
}

fn model<'c>(config: &'c mut Config, name: &str) -> &'c mut ModelConfig {
    config.models.get_mut(name).expect("a configured model")
}

fn no_tools() -> ToolRegistry {
    registry(&CallControl::new())
}

impl TwoModels {
    /// Runs to the end and returns the public events.
    async fn run(&self, input: &str) -> (RunReport, Vec<Value>) {
        let started = self.world.session.start_run(input).await.expect("a run");
        let events = events(started.events).await;
        (within(started.report).await.expect("a report"), events)
    }

    /// Returns the number of requests that each provider received.
    fn received(&self) -> (usize, usize) {
        (self.world.requests().len(), self.backup.requests().len())
    }

    fn fallbacks(&self) -> String {
        let page = self.world.host.telemetry().render();
        let line = page.lines().find(|line| line.starts_with("callsheet_model_fallbacks_total "));
        line.expect("the metric is there").to_owned()
    }
}

/// Returns `attempt model` of each attempt event.
fn attempts(events: &[Value]) -> Vec<String> {
    let attempts = events.iter().filter(|event| event["type"] == "attempt");
    attempts
        .map(|event| format!("{} {}", event["attempt"], event["model"].as_str().expect("a model")))
        .collect()
}

fn cut() -> Response {
    Response { cut_after_chunks: Some(2), ..Response::text("This will not come whole.") }
}

fn call(tool: &str, id: &str) -> Call {
    Call::new(tool, json!({"id": id})).id(&format!("call-{id}"))
}

#[tokio::test]
async fn transient_errors_are_retried_before_the_fallback() {
    let failing = [Response::status(500), cut()];
    let two = two(failing, [Response::text("Here.")], no_tools(), |config| {
        model(config, "rehearsal").max_attempts = 2;
        model(config, "backup").max_output_tokens = Some(77);
        model(config, "backup").temperature = Some(0.5);
        model(config, "backup").extra_body.insert("seed".into(), json!(4));
    })
    .await;
    let (report, events) = two.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Here."));
    assert_eq!(two.received(), (2, 1));
    assert_eq!(attempts(&events), ["2 rehearsal", "3 backup-model"]);
    let last = events.iter().rfind(|event| event["type"] == "attempt").expect("the event");
    assert_eq!((&last["wait_ms"], &last["streamed"]), (&json!(0), &json!(true)));
    assert_ne!(last["reason"], "");
    assert_eq!(two.fallbacks(), "callsheet_model_fallbacks_total 1");
    // Both get the same conversation and tools, with their own parameters.
    let (first, sent) = (&two.world.requests()[0].body, &two.backup.requests()[0].body);
    assert_eq!((&sent["messages"], &sent["tools"]), (&first["messages"], &first["tools"]));
    assert_eq!(sent["model"], "backup-model");
    assert_eq!((&sent["max_tokens"], &sent["temperature"]), (&json!(77), &json!(0.5)));
    assert_eq!(sent["seed"], 4);
    assert_eq!((first.get("max_tokens"), first.get("seed")), (None, None));
    two.world.assert_paired();
}

#[tokio::test]
async fn permanent_errors_lead_to_the_fallback_at_once() {
    let long_wait = Response { retry_after: Some("3600".into()), ..Response::status(429) };
    for failing in [401, 404, 413].map(Response::status).into_iter().chain([long_wait]) {
        let two = two([failing], [Response::text("Here.")], no_tools(), |_| ()).await;
        let (report, events) = two.run("go").await;
        assert_eq!(report.text, "Here.");
        assert_eq!(two.received(), (1, 1));
        assert_eq!(attempts(&events), ["2 backup-model"]);
    }
}

#[tokio::test]
async fn each_turn_starts_with_the_first_model_and_that_models_stream_setting() {
    let control = CallControl::new();
    let first = [Response::status(401), Response::text("Done.")];
    let two = two(first, [Response::calls([call("quick", "a")])], registry(&control), |config| {
        model(config, "backup").stream = false;
    })
    .await;
    let (report, _) = two.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Done."));
    assert_eq!(report.calls[0].tool_id, "t1a2c0");
    assert_eq!(two.received(), (2, 1));
    let streamed: Vec<_> = two.world.requests().iter().map(|r| r.body["stream"].clone()).collect();
    assert_eq!(streamed, [true, true]);
    assert_eq!(two.backup.requests()[0].body["stream"], false);
    let page = two.world.host.telemetry().render();
    assert!(page.contains("\nstreaming_rollbacks_total 0\n"), "nothing was rolled back");
    two.world.assert_paired();
}

#[tokio::test]
async fn when_every_model_fails_the_run_fails_and_the_session_continues() {
    let first = [Response::status(401), Response::text("Hello again.")];
    let two = two(first, [Response::status(500)], no_tools(), |config| {
        model(config, "backup").max_attempts = 1;
    })
    .await;
    let (report, events) = two.run("go").await;
    assert_eq!(report.run_end, RunEnd::Failed);
    let error = report.error.expect("an error");
    assert_eq!((error.code.as_str(), error.transient), ("provider_error", true));
    assert!(error.message.contains("500"), "the last model's words: {}", error.message);
    assert_eq!((two.received(), attempts(&events).len()), ((1, 1), 1));
    assert_eq!(two.run("and now?").await.0.text, "Hello again.");
    two.world.assert_paired();
}

#[tokio::test]
async fn a_pure_result_of_the_first_model_is_reused_by_the_fallback() {
    let control = CallControl::new();
    let calls = || Response::calls([call("quick", "a"), call("writes", "b")]);
    let broken = Response { truncate: true, ..calls().hold(ScriptPosition::Finish, "broken") };
    let answers = [calls(), Response::text("Done.")];
    let two = two([broken, Response::status(401)], answers, registry(&control), |config| {
        model(config, "rehearsal").max_attempts = 1;
    })
    .await;
    let started = two.world.session.start_run("go").await.expect("a run");
    within(two.world.model.wait_for_gate("broken")).await;
    control.until_logged("end a").await;
    two.world.model.open_gate("broken");
    let report = within(started.report).await.expect("a report");
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(control.log(), ["start a", "end a", "start b", "end b"]);
    assert_eq!(report.calls[0].metadata, json!({"reused": true}));
    assert_eq!(two.received(), (2, 2));
    two.world.assert_paired();
}

#[tokio::test]
async fn each_model_gets_its_own_call_ids_unchanged_and_short_ids_for_other_calls() {
    let first =
        [Response::calls([call("quick", "a")]), Response::status(401), Response::text("Yes.")];
    let second = [Response::text("Done.")];
    let two = two(first, second, registry(&CallControl::new()), |_| ()).await;
    assert_eq!(two.run("go").await.0.text, "Done.");
    assert_eq!(two.run("and now?").await.0.text, "Yes.");
    let ids = |messages: &Value| {
        let messages = messages.as_array().expect("a list");
        let called = messages.iter().find_map(|message| message["tool_calls"][0]["id"].as_str());
        let answered = messages.iter().find_map(|message| message["tool_call_id"].as_str());
        let id = called.expect("a call");
        assert_eq!(answered, Some(id));
        id.to_owned()
    };
    // Mistral refuses every other form.
    let short = ids(&two.backup.requests()[0].body["messages"]);
    assert!(short.len() == 9 && short.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{short}");
    let requests = two.world.requests();
    for request in &requests[1..] {
        assert_eq!(ids(&request.body["messages"]), "call-a");
    }
    assert_eq!(two.received(), (3, 1));
    two.world.assert_paired();
}

#[tokio::test]
async fn after_a_started_effect_the_turn_has_no_fallback() {
    let control = CallControl::new();
    let calls = [call("writes", "a"), call("quick", "b")];
    let broken = Response {
        truncate: true,
        ..Response::calls(calls).hold(ScriptPosition::Finish, "broken")
    };
    let answers = [broken, Response::text("Done.")];
    let two = two(answers, [Response::text("Not I.")], registry(&control), |config| {
        model(config, "rehearsal").max_attempts = 1;
        let early = ToolOverride::default().with(|new| new.start = Some(StartPolicy::OnSeal));
        config.tools.insert("writes".into(), early);
    })
    .await;
    let started = two.world.session.start_run("go").await.expect("a run");
    within(two.world.model.wait_for_gate("broken")).await;
    control.until_logged("start a").await;
    two.world.model.open_gate("broken");
    let report = within(started.report).await.expect("a report");
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Done."));
    assert_eq!(report.calls[0].status, ToolStatus::Ok);
    assert_eq!(two.received(), (2, 0));
    two.world.assert_paired();
}
