//! Overrides of a run: which of its agent's settings it may change.
#![expect(clippy::expect_used, reason = "a test")]

use crate::support::tools::{CallControl, registry};
use crate::support::{World, events, parallel, within, world};
use callsheet::config::RunOverrides;
use callsheet::runtime::{HostError, RunRequest};
use callsheet::types::RunEnd;
use callsheet_mock_provider::{Call, Response, Script};
use serde_json::{Value, json};

fn request_with(overrides: Value) -> RunRequest {
    let overrides: RunOverrides = serde_json::from_value(overrides).expect("overrides");
    RunRequest::default().with(|new| {
        new.input = "go".into();
        new.overrides = overrides;
    })
}

async fn calling_twice() -> (World, CallControl) {
    let control = CallControl::new();
    let calls = ["a", "b"].map(|id| Call::new("waits", json!({"id": id})));
    let script = Script::new([Response::calls(calls)]).then_done();
    (world(script, registry(&control), parallel(4)).await, control)
}

#[tokio::test]
async fn a_run_may_override_its_agents_execution() {
    let (world, control) = calling_twice().await;
    let request = request_with(json!({"execution": "sequential"}));
    let run = world.session.start_run(request).await.expect("a run");
    control.until_logged("start a").await;
    control.release("b");
    control.release("a");
    within(run.report).await.expect("a report");
    assert_eq!(control.log(), ["start a", "end a", "start b", "end b"]);
}

#[tokio::test]
async fn limits_tools_and_stream_are_overridden_for_one_run_only() {
    let control = CallControl::new();
    let call = || Response::calls([Call::new("quick", json!({"id": "a"}))]);
    let script = Script::new([call(), Response::text("So far."), call()]).then_done();
    let world = world(script, registry(&control), parallel(4)).await;
    let request =
        request_with(json!({"limits": {"max_turns": 1}, "tools": ["q*"], "stream": false}));
    let report = within(world.session.run(request)).await.expect("a report");
    assert_eq!(report.run_end, RunEnd::MaxTurns);
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
    let requests = world.requests();
    let tools = |at: usize| requests[at].body["tools"].as_array().map_or(0, Vec::len);
    // Each request also has `read_var`.
    assert_eq!((tools(0), tools(2)), (2, 9));
    assert_ne!(requests[0].body["stream"], true);
    assert_eq!(requests[2].body["stream"], true);
}

#[tokio::test]
async fn a_run_may_exceed_its_agent_only_if_overrides_may_raise() {
    for (overrides, message) in [
        (
            json!({"execution": "parallel:5"}),
            "execution: parallel:5 is more than the agent allows (parallel:4)",
        ),
        (
            json!({"limits": {"max_turns": 0}}),
            "limits.max_turns: 0 (no limit) is more than the agent allows (10)",
        ),
        (json!({"tools": ["nope"]}), "no tool is called \"nope\""),
    ] {
        let (world, _) = calling_twice().await;
        let refused = world.session.start_run(request_with(overrides)).await.expect_err("too much");
        assert_eq!(refused.to_string(), message);
        assert_eq!(world.requests().len(), 0);
    }
    let control = CallControl::new();
    let world = world(Script::default().then_done(), registry(&control), |config| {
        let agent = config.agents.get_mut("default").expect("the agent");
        agent.allow_overrides = true;
        agent.tools.truncate(1);
    })
    .await;
    let more = json!({"execution": "parallel:5", "tools": ["*"], "limits": {"max_turns": 0}});
    let report = within(world.session.run(request_with(more))).await.expect("a report");
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(world.requests()[0].body["tools"].as_array().map(Vec::len), Some(9));
}

#[tokio::test]
async fn a_tool_outside_the_agent_needs_permission() {
    let control = CallControl::new();
    let world = world(Script::default(), registry(&control), |config| {
        let agent = config.agents.get_mut("default").expect("the agent");
        agent.tools = vec![callsheet::config::ToolPattern::new("quick")];
    })
    .await;
    let request = request_with(json!({"tools": ["writes"]}));
    let refused = world.session.start_run(request).await.expect_err("too much");
    assert_eq!(refused.code(), "limit_too_high");
    assert!(matches!(refused, HostError::InvalidOverride(_)));
}

/// Starts a world whose agent has the models `rehearsal` and `backup`; `other` belongs to another
/// agent. One provider serves all three.
async fn three_models(responses: impl IntoIterator<Item = Response>, may_raise: bool) -> World {
    world(Script::new(responses), registry(&CallControl::new()), |config| {
        let plain = config.models["rehearsal"].clone();
        for name in ["backup", "other"] {
            let model = plain.clone().with(|new| new.model = format!("{name}-model"));
            config.models.insert(name.to_owned(), model);
        }
        let agent = config.agents.get_mut("default").expect("the agent");
        agent.fallback_models = vec!["backup".to_owned()];
        agent.allow_overrides = may_raise;
    })
    .await
}

/// Returns the model of each request, and true if it asks for a stream.
fn requested_models(world: &World) -> Vec<(String, bool)> {
    let models = world.requests().into_iter().map(|request| {
        let model = request.body["model"].as_str().expect("a model").to_owned();
        (model, request.body["stream"] == true)
    });
    models.collect()
}

#[tokio::test]
async fn a_run_may_start_with_a_fallback_model_for_one_run() {
    let responses =
        [Response::status(401), Response::text("The other one."), Response::text("The first.")];
    let world = three_models(responses, false).await;
    let request = request_with(json!({"model": "backup", "stream": false}));
    let run = world.session.start_run(request).await.expect("a run");
    let events = events(run.events).await;
    assert_eq!(
        (&events[0]["type"], &events[0]["model"]),
        (&json!("stream_start"), &json!("backup-model"))
    );
    let report = within(run.report).await.expect("a report");
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "The other one."));
    assert_eq!(world.run("and now?").await.text, "The first.");
    let expected = [("backup-model", false), ("rehearsal", false), ("rehearsal", true)];
    assert_eq!(
        requested_models(&world),
        expected.map(|(model, streamed)| (model.to_owned(), streamed))
    );
}

#[tokio::test]
async fn a_model_outside_the_agent_needs_permission() {
    let world = three_models([], false).await;
    let start = |model: &str| world.session.start_run(request_with(json!({"model": model})));
    let refused = start("other").await.expect_err("too much");
    assert_eq!(refused.code(), "limit_too_high");
    let message = "model: other is more than the agent allows (rehearsal, backup)";
    assert_eq!(refused.to_string(), message);
    let unknown = start("nobody").await.expect_err("it is not there");
    assert_eq!(unknown.code(), "unknown_model");
    let message = "model: no model is called \"nobody\" (known: backup, other, rehearsal)";
    assert_eq!(unknown.to_string(), message);
    assert_eq!(requested_models(&world), []);

    let failing = [401, 401].map(Response::status).into_iter();
    let world = three_models(failing.chain([Response::text("At last.")]), true).await;
    let report = within(world.session.run(request_with(json!({"model": "other"})))).await;
    assert_eq!(report.expect("a report").text, "At last.");
    let models: Vec<_> = requested_models(&world).into_iter().map(|(model, _)| model).collect();
    assert_eq!(models, ["other-model", "rehearsal", "backup-model"]);
}
