//! `max_concurrent` of a model: the host-wide limit of its open requests, over real HTTP.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::num::NonZeroU32;
use std::time::Duration;

use crate::support::tools::{CallControl, registry};
use crate::support::{World, within, world};
use callsheet::config::Config;
use callsheet::record::StopMode;
use callsheet::runtime::{ModelStatus, OpenSession, SessionHandle, StartedRun};
use callsheet::types::RunEnd;
use callsheet_mock_provider::{Call, Response, Script, ScriptPosition, When};
use serde_json::{Value, json};

/// Makes a response to the input `input`.
fn response_to(input: &str, response: Response) -> Response {
    Response { when: When { last_user: Some(input.to_owned()), ..When::default() }, ..response }
}

/// Returns a response that waits for the gate of this name.
fn pausing_response(input: &str) -> Response {
    response_to(input, Response::text("Here.").hold(ScriptPosition::Headers, input))
}

/// Sets `max_concurrent = 1` for the model.
async fn capped(
    responses: impl IntoIterator<Item = Response>,
    change: impl FnOnce(&mut Config),
) -> World {
    world(Script::new(responses).then_done(), registry(&CallControl::new()), |config| {
        let model = config.models.get_mut("rehearsal").unwrap();
        model.max_concurrent_requests = NonZeroU32::new(1);
        change(config);
    })
    .await
}

async fn another(world: &World, agent: Option<&str>) -> SessionHandle {
    let agent = agent.map(str::to_owned);
    world.host.open_session(OpenSession::default().with(|new| new.agent = agent)).await.unwrap()
}

fn model(world: &World) -> ModelStatus {
    world.host.models().into_iter().find(|model| model.name == "rehearsal").unwrap()
}

/// Waits until `requests` requests wait for a permit.
async fn until_waiting(world: &World, requests: usize) {
    within(async {
        while model(world).waiting != requests {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Starts a run and waits until `requests` requests wait, its own last.
async fn run_until_waiting(
    world: &World,
    session: &SessionHandle,
    input: &str,
    requests: usize,
) -> StartedRun {
    let run = session.start_run(input).await.unwrap();
    until_waiting(world, requests).await;
    run
}

async fn report(run: StartedRun) -> (RunEnd, String) {
    let report = within(run.report).await.unwrap();
    (report.run_end, report.text)
}

/// Returns the user inputs of the requests, in the order of arrival.
fn order(world: &World) -> Vec<String> {
    let inputs = |body: &Value| {
        let messages = body["messages"].as_array().unwrap();
        let user = messages.iter().rfind(|message| message["role"] == "user").unwrap();
        user["content"].as_str().unwrap().to_owned()
    };
    world.requests().iter().map(|request| inputs(&request.body)).collect()
}

#[tokio::test]
async fn one_request_is_open_at_a_time_and_sessions_take_turns() {
    let call = Call::new("quick", json!({"id": "a"}));
    let first = response_to("one", Response::calls([call]).hold(ScriptPosition::Finish, "first"));
    let world = capped(
        [first, pausing_response("one"), pausing_response("two"), pausing_response("three")],
        |_| (),
    )
    .await;
    let one = world.session.start_run("one").await.unwrap();
    within(world.model.wait_for_gate("first")).await;
    let sessions = [another(&world, None).await, another(&world, None).await];
    let two = run_until_waiting(&world, &sessions[0], "two", 1).await;
    let three = run_until_waiting(&world, &sessions[1], "three", 2).await;
    let page = world.host.telemetry().render();
    for line in
        ["requests_in_flight{model=\"rehearsal\"} 1", "requests_waiting{model=\"rehearsal\"} 2"]
    {
        assert!(page.contains(&format!("\ncallsheet_model_{line}\n")), "{line}: {page}");
    }
    world.model.open_gate("first");
    // The next request of the first session is queued behind earlier ones.
    let mut expected = vec!["one"];
    for (gate, waiting) in [("two", 2), ("three", 1), ("one", 0)] {
        within(world.model.wait_for_gate(gate)).await;
        expected.push(gate);
        until_waiting(&world, waiting).await;
        assert_eq!((order(&world), model(&world).in_flight), (to_owned(&expected), 1));
        world.model.open_gate(gate);
    }
    for run in [one, two, three] {
        assert_eq!(report(run).await, (RunEnd::Answered, "Here.".to_owned()));
    }
    assert_eq!((model(&world).in_flight, model(&world).waiting), (0, 0));
    let page = world.host.telemetry().render();
    let count = "\ncallsheet_model_queue_wait_seconds_count{model=\"rehearsal\"} 4\n";
    assert!(page.contains(count), "{page}");
    world.assert_paired();
}

fn to_owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test]
async fn stopped_closed_and_expired_runs_leave_the_queue() {
    let responses = [pausing_response("hold"), response_to("at last", Response::text("Here."))];
    let world = capped(responses, |config| {
        let mut hurried = config.agents["default"].clone();
        hurried.limits.run_timeout = Some(Duration::from_millis(100));
        config.agents.insert("hurried".into(), hurried);
    })
    .await;
    let holding = world.session.start_run("hold").await.unwrap();
    within(world.model.wait_for_gate("hold")).await;
    let stopped = another(&world, None).await;
    let run = run_until_waiting(&world, &stopped, "stop me", 1).await;
    stopped.stop(StopMode::Now).await.unwrap();
    assert_eq!(report(run).await.0, RunEnd::Stopped);
    until_waiting(&world, 0).await;
    let closed = another(&world, None).await;
    let run = run_until_waiting(&world, &closed, "close me", 1).await;
    closed.close().await.unwrap();
    assert_eq!(report(run).await.0, RunEnd::Stopped);
    until_waiting(&world, 0).await;
    let hurried = another(&world, Some("hurried")).await;
    let run = hurried.start_run("hurry").await.unwrap();
    assert_eq!(report(run).await.0, RunEnd::TimedOut);
    until_waiting(&world, 0).await;
    assert_eq!((world.requests().len(), model(&world).in_flight), (1, 1));
    // A run that is stopped during its request releases the permit.
    let next = run_until_waiting(&world, &stopped, "at last", 1).await;
    world.session.stop(StopMode::Now).await.unwrap();
    assert_eq!(report(holding).await.0, RunEnd::Stopped);
    assert_eq!(report(next).await, (RunEnd::Answered, "Here.".to_owned()));
    // The input before the stop is sent together with the next one.
    assert_eq!(order(&world), ["hold", "stop me\n\nat last"]);
    assert_eq!((model(&world).in_flight, model(&world).waiting), (0, 0));
}

#[tokio::test]
async fn the_wait_for_a_permit_does_not_count_as_the_models_silence() {
    let slow = response_to(
        "hold",
        Response::text("It takes a while.").hold(ScriptPosition::Chunk(2), "middle"),
    );
    let never = response_to("time", Response::text("").hold(ScriptPosition::Headers, "never"));
    let world = capped([slow, never, response_to("wait", Response::text("Here."))], |config| {
        let model = config.models.get_mut("rehearsal").unwrap();
        model.first_event_timeout = Duration::from_millis(400);
        model.answer_timeout = Duration::from_millis(400);
        let mut timer = model.clone();
        timer.max_attempts = 1;
        config.models.insert("timer".into(), timer);
        let mut agent = config.agents["default"].clone();
        agent.model = "timer".into();
        config.agents.insert("timer".into(), agent);
    })
    .await;
    let holding = world.session.start_run("hold").await.unwrap();
    within(world.model.wait_for_gate("middle")).await;
    let waiting = another(&world, None).await;
    let waiting = run_until_waiting(&world, &waiting, "wait", 1).await;
    // Another model has its own permits. When its silence has exceeded the timeout, the first
    // session has waited longer than that.
    let timer = another(&world, Some("timer")).await;
    let timer = timer.start_run("time").await.unwrap();
    assert_eq!(report(timer).await.0, RunEnd::Failed);
    world.model.open_gate("middle");
    assert_eq!(report(waiting).await, (RunEnd::Answered, "Here.".to_owned()));
    assert_eq!(report(holding).await.0, RunEnd::Answered);
    // The measured duration of a request does not include the wait.
    let page = world.host.telemetry().render();
    let name = "callsheet_model_queue_wait_seconds_sum{model=\"rehearsal\"} ";
    let waited = page.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    assert!(waited.parse::<f64>().unwrap() >= 0.4, "{waited}");
    assert_eq!(world.requests().len(), 3);
}
