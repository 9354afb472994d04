//! Queued inputs: each becomes a run of its own after the previous run has ended.
#![expect(clippy::expect_used, reason = "a test")]

use crate::client::{HttpConnection, Service, post};
use crate::support::tools::{CallControl, registry};
use crate::support::{World, events, until_event, within, world};
use callsheet::record::StopMode;
use callsheet::runtime::{HostError, RunRequest};
use callsheet::types::RunEnd;
use callsheet_mock_provider::{Response, Script, ScriptPosition};
use serde_json::{Value, json};

fn queued(input: &str) -> RunRequest {
    RunRequest::from(input).with(|new| new.queue = true)
}

/// Starts a world whose first response waits for the test; later ones follow at once.
async fn pausing_world(rest: impl IntoIterator<Item = &'static str>) -> World {
    let first = Response::text("One.").hold(ScriptPosition::Finish, "first");
    let script = Script::new([first].into_iter().chain(rest.into_iter().map(Response::text)));
    world(script, registry(&CallControl::new()), |config| config.host.max_concurrent_runs = 1).await
}

#[tokio::test]
async fn queued_runs_start_one_after_the_other() {
    let world = pausing_world(["Two.", "Three."]).await;
    let first = world.session.start_run("a").await.expect("a run");
    world.model.wait_for_gate("first").await;
    let second = world.session.start_run(queued("b")).await.expect("room");
    let third = world.session.start_run(queued("c")).await.expect("room");
    assert!(first.seq < second.seq && second.seq < third.seq);
    let snapshot = world.session.snapshot().await.expect("a snapshot");
    let queued: Vec<_> = snapshot.queued.iter().map(|q| (&q.run_id, q.input.text())).collect();
    assert_eq!(queued, [(&second.run_id, "b".into()), (&third.run_id, "c".into())]);
    let page = world.host.telemetry().render();
    assert!(page.contains("\ncallsheet_queued_inputs 2\n"), "{page}");
    assert_eq!(world.host.counts().runs, 1, "what waits has no place of its own");
    world.model.open_gate("first");
    for (run, text) in [(first, "One."), (second, "Two."), (third, "Three.")] {
        let report = within(run.report).await.expect("a report");
        assert_eq!((&report.run_id, report.text.as_str()), (&run.run_id, text));
        assert_eq!((report.run_end, report.run_messages().len()), (RunEnd::Answered, 2));
        // Each subscription has only the events of its own run.
        let seen = events(run.events).await;
        assert!(seen.iter().all(|event| event["run_id"] == *run.run_id.0), "{seen:#?}");
        assert_eq!(seen[0]["type"], "stream_start");
        assert_eq!(seen[seen.len() - 1]["text"], text);
    }
    assert_eq!(world.requests().len(), 3);
    world.until_idle().await;
    let snapshot = world.session.snapshot().await.expect("a snapshot");
    assert_eq!((snapshot.history.len(), snapshot.queued.len()), (6, 0));
    assert!(world.host.telemetry().render().contains("\ncallsheet_queued_inputs 0\n"));
    world.assert_paired();
}

#[tokio::test]
async fn queued_runs_start_however_the_previous_run_ended() {
    let world = pausing_world(["Two."]).await;
    let first = world.session.start_run("a").await.expect("a run");
    world.model.wait_for_gate("first").await;
    let second = world.session.start_run(queued("b")).await.expect("room");
    world.session.stop(StopMode::Now).await.expect("a stop");
    assert_eq!(within(first.report).await.expect("a report").run_end, RunEnd::Stopped);
    assert_eq!(within(second.report).await.expect("a report").text, "Two.");

    let broken = Response::status(400).hold(ScriptPosition::Headers, "first");
    let script = Script::new([broken, Response::text("Two.")]);
    let world = crate::support::world(script, registry(&CallControl::new()), |_| ()).await;
    let first = world.session.start_run("a").await.expect("a run");
    world.model.wait_for_gate("first").await;
    let second = world.session.start_run(queued("b")).await.expect("room");
    world.model.open_gate("first");
    assert_eq!(within(first.report).await.expect("a report").run_end, RunEnd::Failed);
    assert_eq!(within(second.report).await.expect("a report").text, "Two.");
}

#[tokio::test]
async fn an_input_to_an_idle_session_starts_at_once() {
    let world =
        world(Script::new([Response::text("One.")]), registry(&CallControl::new()), |_| ()).await;
    let report = within(world.session.run(queued("a"))).await.expect("a report");
    assert_eq!(report.text, "One.");
}

#[tokio::test]
async fn an_invalid_input_is_refused_when_it_is_queued() {
    let world = pausing_world([]).await;
    let first = world.session.start_run("a").await.expect("a run");
    world.model.wait_for_gate("first").await;
    let overrides = serde_json::from_value(json!({"tools": ["nope"]})).expect("overrides");
    let request = queued("b").with(|new| new.overrides = overrides);
    let refused = world.session.start_run(request).await.expect_err("no such tool");
    assert_eq!(refused.code(), "unknown_tool");
    let refused = world.session.start_run(queued(" ")).await.expect_err("nothing to say");
    assert_eq!(refused, HostError::EmptyInput);
    world.model.open_gate("first");
    within(first.report).await.expect("a report");
    assert_eq!(world.requests().len(), 1);
}

#[tokio::test]
async fn overrides_apply_only_to_their_queued_run() {
    let world = pausing_world(["Two.", "Three."]).await;
    let first = world.session.start_run("a").await.expect("a run");
    world.model.wait_for_gate("first").await;
    let overrides = serde_json::from_value(json!({"tools": ["quick"]})).expect("overrides");
    let request = queued("b").with(|new| new.overrides = overrides);
    let second = world.session.start_run(request).await.expect("room");
    let third = world.session.start_run(queued("c")).await.expect("room");
    world.model.open_gate("first");
    for run in [first, second, third] {
        within(run.report).await.expect("a report");
    }
    let tools = world.requests().into_iter().map(|r| r.body["tools"].as_array().map(Vec::len));
    // Each request also has `read_var`.
    assert_eq!(tools.collect::<Vec<_>>(), [Some(9), Some(2), Some(9)]);
}

#[tokio::test]
async fn queued_and_steered_inputs_share_one_limit() {
    let world = pausing_world(["Two.", "Three."]).await;
    let first = world.session.start_run("a").await.expect("a run");
    world.model.wait_for_gate("first").await;
    let mut rest = Vec::new();
    for n in 0..8 {
        world.session.steer(format!("s{n}")).await.expect("room");
        rest.push(world.session.start_run(queued(&format!("q{n}"))).await.expect("room"));
    }
    let full = HostError::QueueFull(16);
    assert_eq!(world.session.start_run(queued("x")).await.expect_err("no room"), full);
    assert_eq!(world.session.steer("x").await.expect_err("no room"), full);
    world.model.open_gate("first");
    let report = within(first.report).await.expect("a report");
    assert_eq!((report.run_messages().len(), report.turns), (2 + 8 + 1, 2));
    for run in rest {
        within(run.report).await.expect("a report");
    }
}

#[tokio::test]
async fn closing_the_session_ends_queued_requests() {
    let world = pausing_world(["Two."]).await;
    let first = world.session.start_run("a").await.expect("a run");
    world.model.wait_for_gate("first").await;
    let second = world.session.start_run(queued("b")).await.expect("room");
    within(world.session.close()).await.expect("a close");
    assert_eq!(within(first.report).await.expect("a report").run_end, RunEnd::Stopped);
    assert_eq!(within(second.report).await.expect_err("not started"), HostError::SessionClosed);
    assert_eq!(world.requests().len(), 1);
}

#[tokio::test]
async fn a_shutdown_starts_no_queued_run() {
    let world = pausing_world(["Two."]).await;
    let first = world.session.start_run("a").await.expect("a run");
    world.model.wait_for_gate("first").await;
    let second = world.session.start_run(queued("b")).await.expect("room");
    let host = world.host.clone();
    let (host_ended, results) = tokio::join!(within(host.shutdown()), async {
        let results = within(second.report).await;
        let refused = world.session.start_run(queued("c")).await.expect_err("too late");
        world.model.open_gate("first");
        (results, refused)
    });
    let () = host_ended;
    assert_eq!(results.0.expect_err("not started"), HostError::ShuttingDown);
    assert_eq!(results.1, HostError::ShuttingDown);
    // The current turn was completed.
    let report = within(first.report).await.expect("a report");
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "One."));
    assert_eq!(world.requests().len(), 1);
}

async fn service(queued_max: u32) -> Service {
    let script = json!({"responses": [
        {"text": ["One."], "holds": [{"at": "finish", "name": "first"}]},
        {"text": ["Two."]}, {"text": ["Three."]}
    ]});
    let config = format!("[host]\nmax_queued_inputs = {queued_max}\n");
    let service = Service::start_with(script, &config, Default::default()).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    assert_eq!(service.post("/v1/sessions/s/runs", json!({"input": "a"})).await.status, 202);
    service.model.wait_for_gate("first").await;
    service
}

/// Sends a queued run request with an `Accept` header.
async fn request_queued_run(service: &Service, accept: &str, body: Value) -> HttpConnection {
    let request = post("/v1/sessions/s/runs", accept, &body.to_string());
    let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
    HttpConnection::open(service.addr(), &request).await
}

/// Waits until `count` inputs are queued.
async fn until_queued(service: &Service, count: usize) -> Value {
    loop {
        let queued = service.get("/v1/sessions/s").await.json()["queued"].clone();
        if queued.as_array().expect("a list").len() == count {
            return queued;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_queued_run_is_available_as_events_as_a_report_and_as_an_acknowledgement() {
    let service = service(2).await;
    let plain = service.post("/v1/sessions/s/runs", json!({"input": "b"})).await;
    assert_eq!(plain.error(), (409, "run_in_progress".to_owned()));
    assert!(plain.body.contains("\\\"queue\\\": true"), "{plain:?}");
    let high = json!({"input": "b", "queue": true, "limits": {"max_turns": 99}});
    let high = service.post("/v1/sessions/s/runs", high).await;
    assert_eq!(high.error(), (400, "limit_too_high".to_owned()));
    let mut watching = request_queued_run(
        &service,
        "accept: text/event-stream\r\n",
        json!({"input": "b", "queue": true}),
    )
    .await;
    // The stream is open although the run is queued.
    watching.until("text/event-stream").await;
    let mut awaiting =
        request_queued_run(&service, "", json!({"input": "c", "queue": true, "wait": true})).await;
    let queued = until_queued(&service, 2).await;
    assert_eq!((&queued[0]["input"], &queued[1]["input"]), (&json!("b"), &json!("c")));
    let full = service.post("/v1/sessions/s/runs", json!({"input": "d", "queue": true})).await;
    assert_eq!(full.error(), (429, "queue_full".to_owned()));
    assert_eq!(full.header("retry-after"), Some("1"));
    service.model.open_gate("first");
    within(watching.read_rest()).await;
    let events = watching.response().events();
    assert_eq!(
        (events[0].0.as_str(), &events[0].1["run_id"]),
        ("stream_start", &queued[0]["run_id"])
    );
    assert!(events.iter().all(|(_, data)| data["run_id"] == queued[0]["run_id"]), "{events:#?}");
    assert_eq!(events[events.len() - 1].1["text"], "Two.");
    within(awaiting.read_rest()).await;
    let report = awaiting.response().json();
    assert_eq!((&report["run_id"], &report["text"]), (&queued[1]["run_id"], &json!("Three.")));
}

#[tokio::test]
async fn the_acknowledgement_names_the_future_run() {
    let service = service(2).await;
    let promised = service.post("/v1/sessions/s/runs", json!({"input": "b", "queue": true})).await;
    assert_eq!(promised.status, 202);
    let promised = promised.json();
    let queued = until_queued(&service, 1).await;
    assert_eq!(queued, json!([{"run_id": promised["run_id"], "input": "b"}]));
    assert!(promised["seq"].as_u64().is_some_and(|seq| seq > 1), "{promised}");
}

#[tokio::test]
async fn deleting_the_session_ends_queued_http_requests() {
    let service = service(2).await;
    let mut watching = request_queued_run(
        &service,
        "accept: text/event-stream\r\n",
        json!({"input": "b", "queue": true}),
    )
    .await;
    let mut awaiting =
        request_queued_run(&service, "", json!({"input": "c", "queue": true, "wait": true})).await;
    until_queued(&service, 2).await;
    assert_eq!(service.delete("/v1/sessions/s").await.status, 204);
    within(awaiting.read_rest()).await;
    assert_eq!(awaiting.response().error(), (404, "no_such_session".to_owned()));
    within(watching.read_rest()).await;
    let events = watching.response().events();
    assert_eq!(events.len(), 1, "{events:#?}");
    assert_eq!((events[0].0.as_str(), &events[0].1["code"]), ("error", &json!("session_closed")));
}

#[tokio::test]
async fn a_queued_input_is_taken_back() {
    let world = pausing_world(["Three."]).await;
    let session = &world.session;
    let first = session.start_run("a").await.expect("a run");
    world.model.wait_for_gate("first").await;
    let key = || Some(callsheet::record::RequestKey::new("k", "b"));
    let second = || queued("b").with(|run| run.request_key = key());
    let waits = session.start_run(second()).await.expect("room");
    let repeated = session.start_run(second()).await.expect("the same run");
    let third = session.start_run(queued("c")).await.expect("room");
    let removed = waits.run_id.clone();
    session.remove_input(&removed).await.expect("it is queued");

    // Whoever waits for the run learns that it does not start, and no run starts for its key.
    assert_eq!(within(waits.report).await.unwrap_err(), HostError::InputRemoved);
    assert_eq!(within(repeated.report).await.unwrap_err(), HostError::InputRemoved);
    assert_eq!(session.start_run(second()).await.unwrap_err(), HostError::InputRemoved);
    let mut events = waits.events;
    until_event(&mut events, |event| event["type"] == "input_removed" && event["waiting"] == 1)
        .await;
    assert!(world.host.telemetry().render().contains("\ncallsheet_queued_inputs 1\n"));

    let refused = |run| async move { session.remove_input(run).await.unwrap_err() };
    assert_eq!(refused(&removed).await, HostError::NoSuchInput);
    assert_eq!(refused(&first.run_id).await, HostError::AlreadyStarted);
    world.model.open_gate("first");
    assert_eq!(within(first.report).await.expect("a report").text, "One.");
    assert_eq!(within(third.report).await.expect("a report").text, "Three.");
    assert_eq!(refused(&third.run_id).await, HostError::AlreadyStarted);
    let runs = session.runs().await.expect("the runs");
    assert!(runs.iter().all(|run| run.run_id != removed), "{runs:#?}");
    world.assert_paired();
}

#[tokio::test]
async fn a_stop_takes_the_queue_back_on_request() {
    let world = pausing_world(["Later."]).await;
    let first = world.session.start_run("a").await.expect("a run");
    world.model.wait_for_gate("first").await;
    let second = world.session.start_run(queued("b")).await.expect("room");
    let third = world.session.start_run(queued("c")).await.expect("room");
    world.session.stop_with_queue(StopMode::Now).await.expect("a stop");
    assert_eq!(within(first.report).await.expect("a report").run_end, RunEnd::Stopped);
    for run in [second, third] {
        assert_eq!(within(run.report).await.unwrap_err(), HostError::InputRemoved);
    }
    world.until_idle().await;
    let next = world.session.run("d").await.expect("a report");
    assert_eq!(next.text, "Later.", "no queued run has asked the model");
    world.assert_paired();
}
