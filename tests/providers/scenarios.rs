//! Runs the example configurations of the section "Limits" in docs/configuration.md.
#![expect(clippy::expect_used, reason = "a test")]

use crate::support::tools::{CallControl, registry};
use crate::support::{World, results, within, world};
use callsheet::config::Config;
use callsheet::runtime::RunReport;
use callsheet::types::RunEnd;
use callsheet_mock_provider::{Call, Response, Script};
use serde_json::{Value, json};

/// Reads the example whose first line is this comment.
fn example(title: &str) -> Config {
    let page = include_str!("../../docs/configuration.md");
    let (_, limits) = page.split_once("\n## Limits\n").expect("the section");
    let limits = limits.split("\n## ").next().expect("its end");
    let block = limits
        .split("```toml\n")
        .skip(1)
        .filter_map(|block| block.split_once("```").map(|(text, _)| text))
        .find(|block| block.lines().next().is_some_and(|line| line == format!("# {title}")))
        .expect("the configuration");
    Config::parse(block, "docs/configuration.md", &|_| None).expect("a configuration")
}

/// Starts an agent with the example configuration and the test tools.
async fn agent(title: &str, responses: impl IntoIterator<Item = Response>) -> (World, CallControl) {
    let control = CallControl::new();
    let script = Script::new(responses);
    let world = world(script, registry(&control), |config| {
        let mut agent = example(title).agents["default"].clone();
        let ours = config.agents.get_mut("default").expect("the agent");
        agent.tools = std::mem::take(&mut ours.tools);
        *ours = agent;
    })
    .await;
    (world, control)
}

/// Makes `turns` responses with `calls` different calls each; ids are `TURN.CALL`.
fn turns(turns: usize, calls: usize, tool: &str) -> Vec<Response> {
    let call = |turn, index| {
        let id = format!("{turn}.{index}");
        Call::new(tool, json!({"id": id})).id(&id)
    };
    (1..=turns).map(|t| Response::calls((1..=calls).map(|c| call(t, c)))).collect()
}

fn assert_out_of_turns(world: &World, report: &RunReport, requests: usize) {
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::MaxTurns, "So far."));
    let sent = world.requests();
    assert_eq!(sent.len(), requests, "one a turn, and the one for an answer");
    for (number, request) in sent.iter().enumerate() {
        let is_last = number + 1 == requests;
        assert_eq!(request.body["tool_choice"] == "none", is_last, "request {number}");
        let tools = request.body["tools"].as_array().map_or(0, Vec::len);
        assert!(tools > 0, "the tools stay listed");
    }
    world.assert_paired();
}

fn ids(messages: &[Value]) -> Vec<&str> {
    results(messages).iter().map(|(id, _)| *id).collect()
}

#[tokio::test]
async fn one_call_per_response_and_twenty_turns() {
    let mut responses = turns(20, 2, "quick");
    responses.push(Response::text("So far."));
    let (world, control) = agent("One call after the other: at most twenty", responses).await;
    let report = world.run("go").await;
    assert_out_of_turns(&world, &report, 21);
    assert!(world.requests().iter().all(|r| r.body["parallel_tool_calls"] == false));
    let expected: Vec<_> = (1..=20).map(|turn| format!("{turn}.1")).collect();
    assert_eq!(ids(&world.last_messages()), expected);
    let ran = expected.iter().flat_map(|id| [format!("start {id}"), format!("end {id}")]);
    assert_eq!(control.log(), ran.collect::<Vec<_>>());
}

#[tokio::test]
async fn ten_calls_at_once_and_five_turns() {
    let mut responses = turns(5, 10, "waits");
    responses.push(Response::text("So far."));
    let (world, control) = agent("Ten at once, five times: at most fifty", responses).await;
    let started = world.session.start_run("go").await.expect("a run");
    for turn in 1..=5 {
        for call in 1..=10 {
            control.until_logged(&format!("start {turn}.{call}")).await;
        }
        assert_eq!(control.log().len(), (turn - 1) * 20 + 10, "all ten run, and none has ended");
        for call in (1..=10).rev() {
            control.release(&format!("{turn}.{call}"));
        }
    }
    let report = within(started.report).await.expect("a report");
    assert_out_of_turns(&world, &report, 6);
    let expected: Vec<_> =
        (1..=5).flat_map(|turn| (1..=10).map(move |call| format!("{turn}.{call}"))).collect();
    assert_eq!(ids(&world.last_messages()), expected);
    assert_eq!(control.log().len(), 100);
}

#[tokio::test]
async fn three_calls_per_response_and_three_turns() {
    let mut responses = turns(3, 4, "quick");
    responses.push(Response::text("So far."));
    let (world, control) = agent("Three times three: at most nine", responses).await;
    let report = world.run("go").await;
    assert_out_of_turns(&world, &report, 4);
    let ran = control.log().iter().filter(|line| line.starts_with("start ")).count();
    assert_eq!(ran, 9);
    let messages = world.last_messages();
    let results = results(&messages);
    assert_eq!(results.len(), 12, "the fourth call of each response is answered, not run");
    for (id, text) in results {
        let is_fourth = id.ends_with(".4");
        assert_eq!(text.starts_with("Error: not run: at most 3 tool calls"), is_fourth, "{text}");
    }
}
