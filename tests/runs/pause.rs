//! Paused responses: the service continues when the host sends the partial response back.
#![expect(clippy::expect_used, reason = "a test")]

use crate::support::tools::{CallControl, registry};
use crate::support::{World, events, results, within, world};
use callsheet::record::StopMode;
use callsheet::types::RunEnd;
use callsheet_mock_provider::{Call, Response, Script, ScriptPosition};
use serde_json::{Value, json};

/// Returns a response with a text that the service then pauses.
fn paused(delta: &Value) -> Response {
    let chunk = |delta: &Value, finish: Option<&str>| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!("data: {}\n\n", json!({"choices": [choice]}))
    };
    let chunks = [chunk(delta, None), chunk(&json!({}), Some("pause_turn"))];
    Response::raw("text/event-stream", chunks.into_iter().chain(["data: [DONE]\n\n".to_owned()]))
}

async fn paused_world(responses: impl IntoIterator<Item = Response>, max_turns: u32) -> World {
    world(Script::new(responses), registry(&CallControl::new()), |config| {
        config.agents.get_mut("default").expect("the agent").limits.max_turns = Some(max_turns);
    })
    .await
}

fn roles(messages: &[Value]) -> Vec<&str> {
    let roles = messages.iter().filter_map(|message| message["role"].as_str());
    roles.filter(|role| *role != "system").collect()
}

#[tokio::test]
async fn a_paused_response_is_continued_in_another_turn_without_an_input() {
    let part = paused(&json!({"content": "I will look"}));
    let world = paused_world([part, Response::text("It is noon.")], 5).await;
    let run = world.session.start_run("time?").await.expect("a run");
    let report = within(run.report).await.expect("a report");
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "It is noon."));
    assert_eq!(report.turns, 2);
    let sent = world.last_messages();
    assert_eq!(roles(&sent), ["user", "assistant"]);
    assert_eq!(sent[sent.len() - 1]["content"], "I will look");
    assert_ne!(world.requests()[1].body["tool_choice"], "none");
    let events = events(run.events).await;
    let turn_end = events.iter().find(|event| event["type"] == "turn_end").expect("an end");
    assert_eq!(turn_end["finish_reason"], "pause");
    world.assert_paired();
}

#[tokio::test]
async fn calls_of_a_paused_response_run_as_usual() {
    let function = json!({"name": "quick", "arguments": "{\"id\":\"a\"}"});
    let call = json!({"index": 0, "id": "c0", "type": "function", "function": function});
    let part = paused(&json!({"content": "So.", "tool_calls": [call]}));
    let world = paused_world([part, Response::text("Done.")], 5).await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.turns, report.calls.len()), (RunEnd::Answered, 2, 1));
    let sent = world.last_messages();
    assert_eq!(roles(&sent), ["user", "assistant", "tool"]);
    assert_eq!(results(&sent).len(), 1);
    world.assert_paired();
}

#[tokio::test]
async fn a_paused_response_counts_towards_max_turns() {
    let parts = ["One.", "Two."].map(|text| paused(&json!({"content": text})));
    let world = paused_world(parts.into_iter().chain([Response::text("So far.")]), 2).await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::MaxTurns, "So far."));
    assert_eq!(world.requests().len(), 3);
}

#[tokio::test]
async fn a_paused_response_without_content_counts_as_empty() {
    let world = paused_world([paused(&json!({})), Response::text("Noon.")], 5).await;
    let report = world.run("time?").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Noon."));
    assert_eq!(roles(&world.last_messages()), ["user"]);
}

#[tokio::test]
async fn stop_after_turn_and_steer_apply_to_a_paused_response_as_to_calls() {
    let part = || paused(&json!({"content": "One."})).hold(ScriptPosition::Chunk(1), "middle");
    let stopped = paused_world([part()], 5).await;
    let run = stopped.session.start_run("go").await.expect("a run");
    stopped.model.wait_for_gate("middle").await;
    stopped.session.stop(StopMode::AfterTurn).await.expect("a stop");
    stopped.model.open_gate("middle");
    let report = within(run.report).await.expect("a report");
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Stopped, "One."));

    let steered = paused_world([part(), Response::text("Two.")], 5).await;
    let run = steered.session.start_run("go").await.expect("a run");
    steered.model.wait_for_gate("middle").await;
    steered.session.steer("and more").await.expect("room");
    steered.model.open_gate("middle");
    assert_eq!(within(run.report).await.expect("a report").text, "Two.");
    assert_eq!(roles(&steered.last_messages()), ["user", "assistant", "user"]);
    steered.assert_paired();
}

#[tokio::test]
async fn a_paused_response_keeps_the_calls_of_other_turns() {
    let call = Call::new("quick", json!({"id": "a"})).id("c0");
    let responses =
        [Response::calls([call]), paused(&json!({"content": "Hm."})), Response::text("Done.")];
    let world = paused_world(responses, 5).await;
    assert_eq!(world.run("go").await.turns, 3);
    assert_eq!(roles(&world.last_messages()), ["user", "assistant", "tool", "assistant"]);
    world.assert_paired();
}
