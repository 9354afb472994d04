//! The circuit breaker of a model, over real HTTP.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use crate::client::Service;
use crate::support::{World, events, until_event, within, world};
use callsheet::config::{BaseUrl, Config, ModelConfig};
use callsheet::record::StopMode;
use callsheet::runtime::{BreakerState, ModelStatus, OpenSession, RunReport, SessionHandle};
use callsheet::server::{self, ServerOptions};
use callsheet::tool::ToolRegistry;
use callsheet::types::RunEnd;
use callsheet_mock_provider::{MockProvider, Response, Script, ScriptPosition};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);

/// Starts a world whose breaker opens after `failures` failures, for the given time.
async fn breaking(
    failures: u32,
    open_for: Duration,
    responses: impl IntoIterator<Item = Response>,
    change: impl FnOnce(&mut Config),
) -> World {
    world(Script::new(responses).then_done(), ToolRegistry::new(), |config| {
        let model = config.models.get_mut("rehearsal").unwrap();
        model.breaker_failures = Some(failures);
        model.breaker_open_for = open_for;
        change(config);
    })
    .await
}

async fn run(session: &SessionHandle) -> (RunReport, Vec<Value>) {
    let started = session.start_run("go").await.unwrap();
    let events = events(started.events).await;
    (within(started.report).await.unwrap(), events)
}

async fn another(world: &World) -> SessionHandle {
    world.host.open_session(OpenSession::default()).await.unwrap()
}

fn model(world: &World) -> ModelStatus {
    world.host.models().into_iter().find(|model| model.name == "rehearsal").unwrap()
}

/// Returns `model: reason` of each attempt event.
fn attempts(events: &[Value]) -> Vec<String> {
    let attempts = events.iter().filter(|event| event["type"] == "attempt");
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    attempts.map(|event| format!("{}: {}", word(&event["model"]), word(&event["reason"]))).collect()
}

fn assert_metric(world: &World, line: &str) {
    let page = world.host.telemetry().render();
    assert!(page.contains(&format!("\n{line}\n")), "{line} is not in\n{page}");
}

#[tokio::test]
async fn an_open_breaker_sends_runs_to_the_next_model() {
    let backup = MockProvider::with_script(Script::new([
        Response::text("Here."),
        Response::text("Here again."),
    ]))
    .await
    .unwrap();
    let url = BaseUrl::parse(&backup.base_url()).unwrap();
    let failing =
        [Response::status(500), Response { cut_after_chunks: Some(1), ..Response::text("a b") }];
    let world = breaking(2, HOUR, failing, |config| {
        config.models.insert("backup".into(), ModelConfig::new(url, "backup-model"));
        config.agents.get_mut("default").unwrap().fallback_models = vec!["backup".into()];
    })
    .await;
    let (report, events) = run(&world.session).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Here."));
    let reasons = attempts(&events);
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    let reason =
        "backup-model: the model is not asked: its last 2 requests failed; it is tried again in 3";
    assert!(reasons[2].starts_with(reason), "{reasons:?}");
    // Another session sends it no request at all.
    let (report, events) = run(&another(&world).await).await;
    assert_eq!((report.text.as_str(), attempts(&events).len()), ("Here again.", 1));
    assert_eq!((world.requests().len(), backup.requests().len()), (2, 2));
    assert_eq!(model(&world).breaker, BreakerState::Open);
    assert_metric(&world, "callsheet_model_breaker_state{model=\"rehearsal\"} 2");
    assert_metric(&world, "callsheet_model_breaker_opened_total{model=\"rehearsal\"} 1");
    assert_metric(&world, "callsheet_model_breaker_state{model=\"backup\"} 0");
    assert_metric(&world, "callsheet_model_fallbacks_total 2");
    assert_metric(&world, "callsheet_attempts_total{outcome=\"unavailable\"} 2");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = server::serve(listener, world.host.clone(), ServerOptions::default()).unwrap();
    let service = Service { host: world.host, server, model: world.model };
    let ready = service.get("/readyz").await;
    assert_eq!(ready.status, 200, "a failing model does not make the host unready");
    let status_of = |breaker| json!({"breaker": breaker, "in_flight": 0, "waiting": 0});
    let models = json!({"backup": status_of("closed"), "rehearsal": status_of("open")});
    assert_eq!(ready.json(), json!({"status": "ready", "models": models}));
}

#[tokio::test]
async fn a_half_open_breaker_sends_one_probe_and_the_others_wait_without_using_attempts() {
    let found_out = Response::text("Back.").hold(ScriptPosition::Headers, "probe");
    let answers = [Response::status(503), found_out, Response::text("Back too.")];
    let world = breaking(1, Duration::from_millis(50), answers, |config| {
        config.models.get_mut("rehearsal").unwrap().max_attempts = 2;
    })
    .await;
    let first = world.session.start_run("go").await.unwrap();
    within(world.model.wait_for_gate("probe")).await;
    assert_eq!(model(&world).breaker, BreakerState::HalfOpen);
    assert_metric(&world, "callsheet_model_breaker_state{model=\"rehearsal\"} 1");
    let other = another(&world).await;
    let mut second = other.start_run("go").await.unwrap();
    // It is held back more often than it has attempts.
    for attempt in [2, 3, 4] {
        until_event(&mut second.events, |event| event["attempt"] == attempt).await;
    }
    assert_eq!(world.requests().len(), 2);
    world.model.open_gate("probe");
    assert_eq!(within(first.report).await.unwrap().text, "Back.");
    let events = events(second.events).await;
    let report = within(second.report).await.unwrap();
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Back too."));
    for reason in attempts(&events) {
        assert!(reason.ends_with("another request is trying it"), "{reason}");
    }
    assert_eq!(model(&world).breaker, BreakerState::Closed);
    assert_metric(&world, "callsheet_model_breaker_state{model=\"rehearsal\"} 0");
    assert_metric(&world, "callsheet_model_breaker_opened_total{model=\"rehearsal\"} 1");
}

#[tokio::test]
async fn without_a_fallback_a_run_waits_for_the_breaker() {
    // The second attempt starts while the breaker is open.
    let answers = [Response::status(500), Response::text("Back.")];
    let world = breaking(1, Duration::from_secs(2), answers, |config| {
        config.models.get_mut("rehearsal").unwrap().max_attempts = 2;
    })
    .await;
    let (report, events) = run(&world.session).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Back."));
    assert_eq!((world.requests().len(), attempts(&events).len()), (2, 2));
}

#[tokio::test]
async fn a_run_fails_if_the_breaker_stays_open_too_long() {
    let world = breaking(1, HOUR, [Response::status(500)], |_| ()).await;
    let (report, _) = run(&world.session).await;
    assert_eq!((report.run_end, world.requests().len()), (RunEnd::Failed, 1));
    let error = report.error.unwrap();
    assert!(error.transient && error.message.starts_with("the model is not asked"), "{error:?}");
}

#[tokio::test]
async fn a_stopped_probe_passes_on_to_the_next_run() {
    let found_out = || Response::text("Back.").hold(ScriptPosition::Headers, "probe");
    let world =
        breaking(1, Duration::from_millis(50), [Response::status(500), found_out()], |_| ()).await;
    let first = world.session.start_run("go").await.unwrap();
    within(world.model.wait_for_gate("probe")).await;
    world.session.stop(StopMode::Now).await.unwrap();
    assert_eq!(within(first.report).await.unwrap().run_end, RunEnd::Stopped);
    world.model.push(Response::text("Back."));
    let (report, _) = run(&another(&world).await).await;
    assert_eq!(report.text, "Back.");
    assert_eq!(model(&world).breaker, BreakerState::Closed);
}

#[tokio::test]
async fn client_errors_do_not_count_as_failures() {
    let limited = Response { retry_after: Some("0".into()), ..Response::status(429) };
    let body = json!({"error": {"message": "no such model", "code": 404}}).to_string();
    let answers = [
        Response::status(400),
        Response::status(401),
        limited,
        Response::raw("application/json", [body]),
        Response::text("Here."),
    ];
    let world = breaking(1, HOUR, answers, |config| {
        config.models.get_mut("rehearsal").unwrap().max_attempts = 1;
    })
    .await;
    for _ in 0..4 {
        assert_eq!(run(&world.session).await.0.run_end, RunEnd::Failed);
        assert_eq!(model(&world).breaker, BreakerState::Closed);
    }
    assert_eq!(run(&world.session).await.0.text, "Here.");
}

#[tokio::test]
async fn every_kind_of_service_failure_opens_the_breaker() {
    let error = |status: u16| {
        let body = json!({"error": {"message": "overloaded", "code": status}}).to_string();
        Response::raw("text/event-stream", [format!("data: {body}\n\n")])
    };
    for failing in [
        Response::status(529),
        error(503),
        Response { truncate: true, ..Response::text("cut") },
        Response { malformed_at_chunk: Some(1), ..Response::text("broken") },
        Response::raw("text/event-stream", [""]),
        Response::raw("text/html", ["<html>Log in</html>"]),
        Response::text("silent").hold(ScriptPosition::Headers, "never"),
    ] {
        let world = breaking(1, HOUR, [failing.clone()], |config| {
            let model = config.models.get_mut("rehearsal").unwrap();
            model.max_attempts = 1;
            model.first_event_timeout = Duration::from_millis(200);
            model.answer_timeout = Duration::from_millis(200);
        })
        .await;
        assert_eq!(run(&world.session).await.0.run_end, RunEnd::Failed, "{failing:?}");
        assert_eq!(model(&world).breaker, BreakerState::Open, "{failing:?}");
    }
}
