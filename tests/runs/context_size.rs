//! A context that stays small: cleared results, compact history, summaries and requests that are too large,
//! over real HTTP.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use crate::support::{World, events, within, world};
use callsheet::config::{
    AgentConfig, BaseUrl, Config, HistoryForm, RunOverrides, Share, ToolPattern, Wire,
};
use callsheet::journal::{Journal as _, MemoryJournal, verify};
use callsheet::record::{Seq, StopMode};
use callsheet::runtime::{AgentRules, Host, HostError, OpenSession, RunReport, RunRequest};
use callsheet::session::replay;
use callsheet::tool::{IntoTool, ToolRegistry, ToolSpec};
use callsheet::types::{RunEnd, SummaryFailure};
use callsheet_mock_provider::{Call, Finish, MockProvider, Response, Script, ScriptPosition};
use serde_json::{Value, json};

/// A window that three results of a tool that is kept fill to nine tenths, in tokens.
const WINDOW: u64 = 1_720;

/// Tools whose results are long. Each word is about one token.
fn tools() -> ToolRegistry {
    let mut tools = ToolRegistry::default();
    let long = |name: &str| ToolSpec::named(name, "Returns a long text.").pure().repeatable();
    let text = async |(): (), _| Ok("word ".repeat(400));
    tools.register(long("long").into_tool(text)).unwrap();
    tools.register(long("kept").keep().into_tool(text)).unwrap();
    tools
}

fn calls(tool: &str) -> Response {
    Response::calls([Call::new(tool, json!({}))])
}

/// A response to a request of so many tokens.
fn of_tokens(response: Response, tokens: u64) -> Response {
    let usage = json!({"prompt_tokens": tokens, "completion_tokens": 5});
    Response { usage: Some(usage), ..response }
}

async fn host(
    responses: impl IntoIterator<Item = Response>,
    window: u64,
    change: impl FnOnce(&mut Config),
) -> World {
    world(Script::new(responses), tools(), |config| {
        let model = config.models.values_mut().next().expect("the model");
        model.context_window = Some(window).filter(|window| *window > 0);
        model.max_attempts = 1;
        let agent = config.agents.get_mut("default").expect("the agent");
        agent.limits.max_turns = None;
        agent.limits.repeat_limit = None;
        agent.context.keep_results = 1;
        change(config);
    })
    .await
}

fn messages(world: &World, request: usize) -> Vec<Value> {
    world.requests()[request].body["messages"].as_array().unwrap().clone()
}

/// The beginnings of the messages of a request.
fn beginnings(world: &World, request: usize) -> Vec<String> {
    let text = |message: &Value| {
        let content = message["content"].as_str().unwrap_or("calls");
        let content: String = content.chars().take(24).collect();
        format!("{}: {content}", message["role"].as_str().unwrap())
    };
    messages(world, request).iter().map(text).collect()
}

/// Checks that the records of the session are valid.
async fn check_valid(world: &World) {
    let entries = world.session.records(Seq(0)).await.unwrap();
    let breaches = verify(world.session.id(), &entries);
    assert!(breaches.is_empty(), "{breaches:?}");
}

/// Checks that the records of the session are valid, have a line of text each, and replay the same.
async fn check_records(world: &World) {
    check_valid(world).await;
    let entries = world.session.records(Seq(0)).await.unwrap();
    let text: String = callsheet::journal::export::text(&entries).collect();
    assert!(text.contains("  compacted  ") && !text.contains("misplaced"), "{text}");
    check_replay(world, |_| ()).await;
}

/// Checks that a replay of the session with this change of its agent makes the same records.
async fn check_replay(world: &World, change: impl FnOnce(&mut AgentConfig)) {
    let entries = world.session.records(Seq(0)).await.unwrap();
    let mut config = Config::default();
    config.set_rehearsal(BaseUrl::parse(&world.model.base_url()).unwrap());
    let agent = config.agents.get_mut("default").unwrap();
    agent.tools = ["long", "kept"].map(ToolPattern::new).into();
    agent.limits.max_turns = None;
    agent.limits.repeat_limit = None;
    change(agent);
    let rules = AgentRules::new(&config, tools()).unwrap();
    let rules_of = |agent: &str, overrides: &RunOverrides, frozen: Option<&str>| {
        rules.rules(agent, overrides, frozen).map_err(|error| error.to_string())
    };
    if let Err(difference) = replay(&entries, rules_of) {
        let text: String = callsheet::journal::export::text(&entries).collect();
        panic!("{difference}\n{text}");
    }
}

async fn run(world: &World) -> (RunReport, Vec<Value>) {
    let (report, events) = run_with_events(world).await;
    let changes = events.into_iter().filter(|event| event["type"] == "context_compacted");
    (report, changes.collect())
}

async fn run_with_events(world: &World) -> (RunReport, Vec<Value>) {
    let started = world.session.start_run("go").await.expect("a run");
    let events = events(started.events).await;
    (within(started.report).await.expect("a report"), events)
}

/// Returns `limit action` of each limit that was reached.
fn limits(events: &[Value]) -> Vec<String> {
    let limits = events.iter().filter(|event| event["type"] == "limit_reached");
    let word = |event: &Value, member: &str| event[member].as_str().unwrap().to_owned();
    limits.map(|event| format!("{} {}", word(event, "limit"), word(event, "action"))).collect()
}

#[tokio::test]
async fn old_results_become_lines_when_the_context_is_above_its_share() {
    let responses = [
        of_tokens(calls("long"), 100),
        of_tokens(calls("kept"), 550),
        of_tokens(calls("long"), 1_000),
        of_tokens(calls("long"), 1_450),
        Response::text("Done."),
    ];
    let world = host(responses, 2_000, |_| {}).await;
    let (report, changes) = run(&world).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Done."));
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert_eq!(changes[0]["kind"], "cleared");
    assert!(changes[0]["tokens_after"].as_u64() < changes[0]["tokens_before"].as_u64());
    let cleared = "tool: [cleared by the host: th";
    let cleared: String = cleared.chars().take(30).collect();
    let results: Vec<String> = beginnings(&world, 4);
    let results: Vec<_> = results.iter().filter(|text| text.starts_with("tool: ")).collect();
    assert_eq!((results[0], results[2]), (&cleared, &cleared));
    assert!(results[1].contains("word"), "the results of a tool that is kept stay");
    assert!(results[3].contains("word"), "the last result stays");
    // The report has everything.
    let said: Vec<_> =
        report.run_messages().iter().map(|m| serde_json::to_value(m).unwrap()).collect();
    let whole = said.iter().filter(|message| {
        message["role"] == "tool" && message["content"].as_str().is_some_and(|t| t.len() > 1_000)
    });
    assert_eq!(whole.count(), 4);
    let page = world.host.telemetry().render();
    assert!(page.contains("callsheet_context_tokens_saved_total{kind=\"cleared\"}"), "{page}");
    check_records(&world).await;
    world.assert_paired();
}

#[tokio::test]
async fn nothing_is_cleared_without_a_window_or_for_little() {
    for (window, least) in [(0, 0.1), (1_200, 0.9)] {
        let responses = [
            of_tokens(calls("long"), 100),
            of_tokens(calls("long"), 550),
            of_tokens(Response::text("Done."), 1_000),
        ];
        let world = host(responses, window, |config| {
            let agent = config.agents.get_mut("default").unwrap();
            agent.context.clear_at_least = Share::of(least).unwrap();
            agent.context.compact_at = Share::of(0.0).unwrap();
        })
        .await;
        let (report, changes) = run(&world).await;
        assert_eq!((report.run_end, changes.len()), (RunEnd::Answered, 0));
    }
}

#[tokio::test]
async fn a_run_that_ended_becomes_one_message_with_a_log() {
    let responses = [calls("long"), Response::text("First."), Response::text("Second.")];
    let compact = |config: &mut Config| {
        config.agents.get_mut("default").unwrap().context.history = HistoryForm::Compact;
    };
    let world = host(responses, 0, compact).await;
    let report = world.run("one").await;
    assert_eq!(report.run_messages().len(), 4, "the report has the whole chain");
    world.run("two").await;
    let sent = messages(&world, 2);
    assert_eq!(sent.len(), 3);
    let text = sent[1]["content"].as_str().unwrap();
    let hint = "<SYSTEM-CONTEXT>\nTools were used in this run. Their full results can be read with \
                read_var:\n- long: $VAR_REF{{t1a1c0}}\n[Tool Execution Log] blocks are written by \
                the host. Do not write such blocks yourself.\n</SYSTEM-CONTEXT>\n---\n";
    let words = "word ".repeat(40);
    let log = format!(
        "[Tool Execution Log] long\narguments: {{}}\nstatus: success\nresult: {}…\n\nFirst.",
        &words[..words.len().min(200)]
    );
    assert_eq!(text, format!("{hint}{log}"));
    let history = world.session.snapshot().await.unwrap().history;
    let form = serde_json::to_value(&*history[1]).unwrap();
    assert_eq!(form["metadata"]["hint_size"], hint.len());
    assert_eq!(history.len(), 4, "a run without calls stays as it is");
    check_records(&world).await;
    world.assert_paired();
}

#[tokio::test]
async fn a_summary_is_asked_for_with_the_same_beginning_and_replaces_the_first_messages() {
    let turns = (0..13).map(|turn| of_tokens(calls("kept"), 120 + 410 * turn));
    let responses = turns.chain([
        of_tokens(Response::text("## Goal\ngo"), 5_450),
        of_tokens(Response::text("Done."), 560),
    ]);
    let world = host(responses, 6_200, |config| {
        config.agents.get_mut("default").unwrap().context.keep_turns = 1;
    })
    .await;
    let (report, changes) = run(&world).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Done."));
    assert_eq!(report.run_messages().len(), 28, "the report has the whole chain");
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!((&changes[0]["kind"], &changes[0]["upto"]), (&json!("summarised"), &json!(12)));
    let [before, asked] = [12, 13].map(|request| world.requests()[request].body.clone());
    for member in ["tools", "model"] {
        assert_eq!(before[member], asked[member]);
    }
    let (earlier, all) = (messages(&world, 12), messages(&world, 13));
    assert_eq!(all[..earlier.len()], earlier[..], "the beginning is the same");
    assert_eq!(asked["tool_choice"], "none");
    let last = all.last().unwrap();
    assert!(last["content"].as_str().unwrap().starts_with("Summarise this conversation"));
    let left = beginnings(&world, 14);
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(left[0].starts_with("user: go"), "the user's words stay: {left:?}");
    let summary = messages(&world, 14)[0]["content"].as_str().unwrap().to_owned();
    let results = "- kept: $VAR_REF{{t11a1c0}}\n- kept: $VAR_REF{{t12a1c0}}";
    assert!(summary.contains("## Goal\ngo\n\n[Results that"), "{summary}");
    assert!(summary.ends_with(results), "{summary}");
    // The tokens of the summary count.
    assert_eq!(report.stats.input_tokens, 13 * 120 + 410 * 78 + 5_450 + 560);
    check_records(&world).await;
    world.assert_paired();
}

#[tokio::test]
async fn two_summaries_without_effect_are_told_and_the_run_goes_on() {
    let long = "as long as before ".repeat(300);
    let responses = [
        of_tokens(calls("kept"), 240),
        of_tokens(calls("kept"), 650),
        of_tokens(calls("kept"), 1_060),
        of_tokens(Response::text(&long), 550),
        of_tokens(calls("kept"), 1_470),
        Response::status(500),
        of_tokens(Response::text("Done."), 560),
    ];
    let world = host(responses, WINDOW, |config| {
        config.agents.get_mut("default").unwrap().context.keep_turns = 0;
    })
    .await;
    let (report, events) = run_with_events(&world).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Done."));
    assert_eq!(limits(&events), ["compact_at summary_failed"; 2]);
    let reasons = events.iter().filter_map(|event| event["reason"].as_str());
    assert_eq!(reasons.collect::<Vec<_>>(), ["no_saving", "failed"]);
    // The next request would not fit into the window, and there is no summary.
    let changes = events.iter().filter(|event| event["type"] == "context_compacted");
    assert_eq!(changes.map(|change| &change["kind"]).collect::<Vec<_>>(), ["dropped"]);
    let left = messages(&world, 6);
    let line = left[0]["content"].as_str().unwrap();
    assert!(line.starts_with("go\n") && line.contains("earlier messages were dropped"), "{line}");
    assert!(line.contains("$VAR_REF{{t3a1c0}}"), "{line}");
    assert!(left.last().unwrap()["content"].as_str().unwrap().starts_with("word"), "{left:?}");
    // The tokens of a summary without effect count, too.
    assert_eq!(report.stats.input_tokens, 240 + 650 + 1_060 + 550 + 1_470 + 560);
    assert_eq!(
        world.session.snapshot().await.unwrap().usage.input_tokens,
        240 + 650 + 1_060 + 550 + 1_470 + 560
    );
    check_records(&world).await;
    world.assert_paired();
}

#[tokio::test]
async fn a_fresh_result_that_does_not_fit_is_cut_and_not_summarised_away() {
    // The window is learnt from the refusal, or known before.
    for window in [0, 600] {
        let mut responses = vec![of_tokens(calls("kept"), 260)];
        responses.extend((window == 0).then(|| refusal(600)));
        responses.push(of_tokens(Response::text("Done."), 400));
        let world = host(responses, window, |_| ()).await;
        let (report, changes) = run(&world).await;
        assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Done."));
        let kinds: Vec<_> = changes.iter().map(|change| &change["kind"]).collect();
        assert_eq!(kinds, ["cleared"], "{changes:?}");
        let sent = messages(&world, world.requests().len() - 1);
        let result = sent.last().unwrap()["content"].as_str().unwrap();
        assert!(result.starts_with("word word") && result.ends_with("word "), "{result}");
        assert!(result.contains("left out here; the whole result is $VAR_REF{{t1a1c0}}"));
        let refused = world.requests().iter().filter(|request| request.status == 400).count();
        assert_eq!(refused, usize::from(window == 0), "only the request by which it is learnt");
        check_records(&world).await;
    }
}

/// A refusal of an answer of 4,000 tokens behind 200 tokens.
fn answer_refusal() -> Response {
    let message = "This model's maximum context length is 4096 tokens. However, you requested 4200 \
        tokens (200 in the messages, 4000 in the completion). Please reduce the length of either.";
    let error = json!({"error": {"message": message, "code": "context_length_exceeded"}});
    Response { error: Some(error), ..Response::status(400) }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_asked_for_with_the_length_that_fits() {
    for (wire, member) in [
        (Wire::OpenaiChat, "/max_tokens"),
        (Wire::OpenaiResponses, "/max_output_tokens"),
        (Wire::AnthropicMessages, "/max_tokens"),
        (Wire::GeminiGenerate, "/generationConfig/maxOutputTokens"),
        (Wire::OllamaChat, "/options/num_predict"),
    ] {
        let responses = [
            calls("long"),
            answer_refusal(),
            Response::text("Done."),
            Response::text("Again."),
            answer_refusal(),
            Response::text("## Goal\ngo"),
        ];
        let world = crate::support::world_of(wire, Script::new(responses), tools(), |config| {
            let model = config.models.values_mut().next().expect("the model");
            model.max_output_tokens = Some(4_000);
            config.agents.get_mut("default").unwrap().context.keep_turns = 0;
        })
        .await;
        let (report, changes) = run(&world).await;
        assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Done."), "{wire:?}");
        assert_eq!(changes.len(), 0, "{changes:?}");
        let asked = |request: usize| {
            let body = &world.requests()[request].body;
            body.pointer(member).and_then(Value::as_u64).unwrap_or_default()
        };
        assert_eq!([asked(0), asked(1), asked(2)], [4_000, 4_000, 3_896], "{wire:?}");
        // It is known from then on, also for the summary.
        run(&world).await;
        assert!((2_000..3_900).contains(&asked(3)), "{wire:?}: {}", asked(3));
        within(world.session.compact()).await.unwrap();
        assert!(asked(4) < 4_000, "{wire:?}: {}", asked(4));
        assert!(asked(5) <= 3_896, "{wire:?}: {}", asked(5));
        check_valid(&world).await;
        if wire == Wire::OpenaiChat {
            check_replay(&world, |_| ()).await;
        }
    }
}

/// A refusal that names the window.
fn refusal(window: u64) -> Response {
    let message = format!("This model's maximum context length is {window} tokens.");
    let error = json!({"error": {"message": message, "code": "context_length_exceeded"}});
    Response { error: Some(error), ..Response::status(400) }
}

#[tokio::test]
async fn a_failed_summary_is_asked_for_again_before_the_first_turn_of_the_next_input() {
    let responses = [
        of_tokens(calls("kept"), 240),
        of_tokens(calls("kept"), 650),
        of_tokens(calls("kept"), 1_060),
        Response::status(500),
        of_tokens(Response::text("First."), 1_480),
        of_tokens(Response::text("## Goal\ngo"), 560),
        of_tokens(Response::text("Done."), 200),
    ];
    let world = host(responses, WINDOW, |config| {
        config.agents.get_mut("default").unwrap().context.keep_turns = 0;
    })
    .await;
    let (report, changes) = run(&world).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "First."));
    assert_eq!(changes.len(), 0, "{changes:?}");
    let (report, changes) = run(&world).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Done."));
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(changes[0]["kind"], "summarised");
    check_records(&world).await;
}

#[tokio::test]
async fn a_failed_summary_drops_nothing_as_long_as_the_request_fits() {
    let responses = [
        of_tokens(calls("kept"), 240),
        of_tokens(calls("kept"), 650),
        of_tokens(calls("kept"), 1_060),
        Response::status(500),
        of_tokens(Response::text("Done."), 1_470),
    ];
    // The last request leaves less than a tenth of the window.
    let world = host(responses, 1_640, |config| {
        config.agents.get_mut("default").unwrap().context.keep_turns = 0;
    })
    .await;
    let (report, events) = run_with_events(&world).await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Done."));
    assert_eq!(limits(&events), ["compact_at summary_failed"]);
    let limit = events.iter().find(|event| event["type"] == "limit_reached").unwrap();
    assert!(limit["value"].as_u64() > Some(1_476), "{limit}");
    assert!(!events.iter().any(|event| event["type"] == "context_compacted"), "{events:?}");
    assert_eq!(messages(&world, 4).len(), 7, "everything is sent");
    check_valid(&world).await;
    check_replay(&world, |_| ()).await;
    world.assert_paired();
}

#[tokio::test]
async fn a_request_above_the_window_that_is_not_refused_is_made_smaller_once_in_a_turn() {
    let cut_off = Response { finish_reason: Finish::Word("length".into()), ..Response::text("") };
    let silent = [of_tokens(Response::text("junk"), 2_100), of_tokens(cut_off, 1_985)];
    for silent in silent {
        let responses = [
            of_tokens(calls("long"), 100),
            of_tokens(calls("long"), 550),
            silent.clone(),
            of_tokens(Response::text("Done."), 900),
            // The context is made smaller once.
            silent.clone(),
            silent,
            of_tokens(Response::text("Here I am."), 700),
        ];
        let world = host(responses, 2_000, |config| {
            let agent = config.agents.get_mut("default").unwrap();
            agent.context.compact_at = Share::of(0.0).unwrap();
        })
        .await;
        let (report, changes) = run(&world).await;
        assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Done."));
        let of_results = |change: &Value| change["kind"] == "cleared";
        assert!(!changes.is_empty() && changes.iter().all(of_results), "{changes:?}");
        assert_eq!(report.turns, 3);
        assert!(!beginnings(&world, 3).iter().any(|text| text.contains("junk")));
        let (report, _) = run(&world).await;
        assert_eq!(report.run_end, RunEnd::Failed);
        assert_eq!(report.error.unwrap().code, "CONTEXT_OVERFLOW");
        let page = world.host.metrics_page().unwrap();
        assert!(
            page.contains("callsheet_context_overflows_total{model=\"rehearsal\"} 3"),
            "{page}"
        );
        check_records(&world).await;
        let left = 7 - world.requests().len();
        for _ in 0..left {
            run(&world).await;
        }
        world.assert_paired();
    }
}

#[tokio::test]
async fn an_empty_response_of_maximum_length_far_from_the_window_is_no_overflow() {
    let finish_reason = Finish::Word("length".into());
    let cut_off = Response { finish_reason, ..Response::text("") };
    let responses = [of_tokens(cut_off, 1_900), of_tokens(Response::text("Done."), 1_950)];
    let world = host(responses, 2_000, |_| ()).await;
    let (report, changes) = run(&world).await;
    assert_eq!((report.run_end, changes.len()), (RunEnd::Answered, 0));
}

#[tokio::test]
async fn the_parts_of_each_request_and_the_cached_tokens_are_counted() {
    let usage = json!({"prompt_tokens": 600, "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 512}});
    let second = Response { usage: Some(usage), ..Response::text("Done.") };
    let world = host([of_tokens(calls("long"), 100), second], 0, |_| ()).await;
    run(&world).await;
    let page = world.host.metrics_page().unwrap();
    let value = |series: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse().unwrap()
    };
    let of =
        |part: &str, of: &str| value(&format!("callsheet_context_tokens_{of}{{part=\"{part}\"}}"));
    for part in ["tools", "system", "user", "assistant", "results", "summary"] {
        assert_eq!(of(part, "count"), 2.0, "{part}");
    }
    assert!(of("results", "sum") > 300.0, "{page}");
    assert!(of("tools", "sum") > 0.0 && of("user", "sum") > 0.0 && of("summary", "sum") == 0.0);
    let cached = page.lines().find(|line| line.starts_with("callsheet_cached_input_tokens_total{"));
    assert!(cached.is_some_and(|line| line.ends_with(" 512")), "{cached:?}");
}

#[tokio::test]
async fn a_run_that_waits_for_a_summary_stops() {
    for mode in [StopMode::Now, StopMode::AfterTurn] {
        let asked = Response::text("## Goal").hold(ScriptPosition::Headers, "summary");
        let responses = [
            of_tokens(calls("kept"), 240),
            of_tokens(calls("kept"), 650),
            of_tokens(calls("kept"), 1_060),
            of_tokens(asked, 550),
        ];
        let world = host(responses, WINDOW, |config| {
            config.agents.get_mut("default").unwrap().context.keep_turns = 0;
        })
        .await;
        let started = world.session.start_run("go").await.expect("a run");
        within(world.model.wait_for_gate("summary")).await;
        world.session.stop(mode).await.unwrap();
        let report = within(started.report).await.expect("a report");
        assert_eq!(report.run_end, RunEnd::Stopped, "{mode:?}");
        world.model.open_gate("summary");
        let entries = world.session.records(Seq(0)).await.unwrap();
        assert!(verify(world.session.id(), &entries).is_empty());
        assert_eq!(world.requests().len(), 4, "nothing is asked after the stop");
        world.assert_paired();
    }
}

#[tokio::test]
async fn a_run_that_waits_for_a_summary_ends_when_its_time_is_over() {
    let responses = [
        of_tokens(calls("kept"), 240),
        of_tokens(calls("kept"), 650),
        of_tokens(calls("kept"), 1_060),
        of_tokens(Response::text("## Goal").hold(ScriptPosition::Headers, "summary"), 550),
        of_tokens(Response::text("## Goal\ngo"), 560),
        of_tokens(Response::text("Done."), 200),
    ];
    let world = host(responses, WINDOW, |config| {
        let agent = config.agents.get_mut("default").unwrap();
        agent.context.keep_turns = 0;
        agent.limits.run_timeout = Some(Duration::from_secs(5));
    })
    .await;
    let (report, events) = run_with_events(&world).await;
    assert_eq!(report.run_end, RunEnd::TimedOut);
    assert_eq!(limits(&events), ["run_timeout ended"]);
    assert_eq!(world.requests().len(), 4, "nothing is asked after the end");
    world.model.open_gate("summary");
    check_valid(&world).await;
    check_replay(&world, |_| ()).await;
    // The next run asks for a summary again.
    let (report, changes) = run(&world).await;
    assert_eq!((report.run_end, changes.len()), (RunEnd::Answered, 1));
    world.assert_paired();
    world.until_idle().await;
}

#[tokio::test]
async fn a_summary_that_uses_up_the_tokens_of_its_run_ends_it() {
    let long = "as long as before ".repeat(300);
    for (summary, effect) in [("## Goal\ngo", None), (&*long, Some("summary_failed"))] {
        let responses = [
            of_tokens(calls("kept"), 240),
            of_tokens(calls("kept"), 650),
            of_tokens(calls("kept"), 1_060),
            of_tokens(Response::text(summary), 2_000),
        ];
        let world = host(responses, WINDOW, |config| {
            let agent = config.agents.get_mut("default").unwrap();
            agent.context.keep_turns = 0;
            agent.limits.max_tokens_per_run = Some(3_950);
        })
        .await;
        let (report, events) = run_with_events(&world).await;
        assert_eq!(report.run_end, RunEnd::Budget);
        let summary = effect.map(|effect| format!("compact_at {effect}"));
        let reached = ["max_tokens_per_run ended".to_owned()];
        assert_eq!(limits(&events), summary.into_iter().chain(reached).collect::<Vec<_>>());
        let last = events.iter().rev().find(|event| event["type"] == "limit_reached").unwrap();
        // Five tokens are those of each response.
        assert_eq!((&last["value"], &last["maximum"]), (&json!(3_970), &json!(3_950)));
        assert_eq!(report.stats.input_tokens, 240 + 650 + 1_060 + 2_000);
        assert_eq!(world.requests().len(), 4, "no further request is made");
        check_valid(&world).await;
        check_replay(&world, |agent| agent.limits.max_tokens_per_run = Some(3_950)).await;
    }
}

#[tokio::test]
async fn a_summary_that_is_cut_off_or_filtered_replaces_nothing() {
    for (word, reason) in
        [("length", SummaryFailure::CutOff), ("content_filter", SummaryFailure::Refused)]
    {
        let finish_reason = Finish::Word(word.to_owned());
        let part = Response { finish_reason, ..Response::text("## Goal\na part of") };
        let responses = [
            calls("long"),
            Response::text("First."),
            of_tokens(part, 500),
            Response::text("Next."),
        ];
        let world = host(responses, 0, |config| {
            config.agents.get_mut("default").unwrap().context.keep_turns = 0;
        })
        .await;
        world.run("one").await;
        let before = world.session.snapshot().await.unwrap().usage;
        let compacted = within(world.session.compact()).await;
        assert_eq!(compacted.unwrap_err(), HostError::SummaryFailed(reason), "{word}");
        assert_eq!(world.requests().len(), 3);
        let snapshot = world.session.snapshot().await.unwrap();
        assert_eq!(snapshot.history.len(), 4, "{word}");
        // Its tokens are counted in the session, and not in a run.
        let input_tokens = snapshot.usage.input_tokens - before.input_tokens;
        let output_tokens = snapshot.usage.output_tokens - before.output_tokens;
        assert_eq!((input_tokens, output_tokens), (500, 5), "{word}");
        world.run("two").await;
        let entries = world.session.records(Seq(0)).await.unwrap();
        let text: String = callsheet::journal::export::text(&entries).collect();
        assert!(text.contains("compact_at: ") && !text.contains("misplaced"), "{text}");
        check_valid(&world).await;
        check_replay(&world, |_| ()).await;
    }
}

#[tokio::test]
async fn a_summary_with_too_much_text_is_not_read_to_its_end() {
    // A response may have 16 MiB of text. The end of this one never comes.
    let large = Response { text: vec!["x".repeat(1 << 20); 17], ..Response::default() };
    let responses =
        [calls("long"), Response::text("First."), large.hold(ScriptPosition::Finish, "end")];
    let world = host(responses, 0, |config| {
        config.agents.get_mut("default").unwrap().context.keep_turns = 0;
    })
    .await;
    world.run("one").await;
    let compacted = within(world.session.compact()).await;
    assert_eq!(compacted.unwrap_err(), HostError::SummaryFailed(SummaryFailure::Failed));
}

#[tokio::test]
async fn a_summary_must_save_a_third_of_the_request_as_it_is_counted_afterwards() {
    // When the result was added, the service's count grew by three times the estimate. So the host counts new messages,
    // such as a summary, as three times their estimate, and the replaced messages at the average of the whole request.
    for (words, saves) in [(1, true), (200, false)] {
        let summary = "word ".repeat(words);
        let responses = [
            of_tokens(calls("long"), 100),
            of_tokens(Response::text("First."), 1_500),
            Response::text(&summary),
        ];
        let world = host(responses, 0, |config| {
            config.agents.get_mut("default").unwrap().context.keep_turns = 0;
        })
        .await;
        world.run("one").await;
        let compacted = within(world.session.compact()).await;
        let used = world.session.context().await.unwrap().used;
        if saves {
            let report = compacted.unwrap();
            assert_eq!(report.tokens_after, used, "{report:?}");
            assert!((1_500..1_600).contains(&report.tokens_before), "{report:?}");
            assert!(used > 100, "the tools are part of each request: {report:?}");
        } else {
            let reason = SummaryFailure::NoSaving;
            assert_eq!(compacted.unwrap_err(), HostError::SummaryFailed(reason));
            assert!(used >= 1_500, "{used}");
        }
    }
}

#[tokio::test]
async fn a_client_may_ask_for_a_smaller_context() {
    let responses = [calls("long"), Response::text("First."), Response::text("so far")];
    let world = host(responses, 0, |config| {
        config.agents.get_mut("default").unwrap().context.keep_turns = 0;
    })
    .await;
    assert_eq!(world.session.compact().await.unwrap_err(), HostError::NothingToCompact);
    world.run("one").await;
    let report = within(world.session.compact()).await.unwrap();
    assert_eq!(report.kind, "summarised");
    assert!(report.tokens_after * 3 <= report.tokens_before * 2, "{report:?}");
    let history = world.session.snapshot().await.unwrap().history;
    assert_eq!(history.len(), 2);
    check_records(&world).await;
    assert_eq!(within(world.session.compact()).await.unwrap_err(), HostError::NothingToCompact);
}

#[tokio::test]
async fn a_stored_session_has_the_same_context() {
    let directory = std::env::temp_dir().join(format!("callsheet-context-{}", std::process::id()));
    let start = async |responses: Vec<Response>| {
        let model = callsheet_mock_provider::MockProvider::with_script(Script::new(responses))
            .await
            .unwrap();
        let mut config = Config::default();
        config.set_rehearsal(BaseUrl::parse(&model.base_url()).unwrap());
        let agent = config.agents.get_mut("default").unwrap();
        agent.tools = vec![ToolPattern::new("*")];
        agent.context.history = HistoryForm::Compact;
        agent.context.keep_turns = 0;
        let host = Host::builder().config(config).tools(tools()).sqlite(&directory);
        (model, host.start().await.unwrap())
    };
    let said = |session: callsheet::runtime::SessionHandle| async move {
        let history = session.snapshot().await.unwrap().history;
        history.iter().map(|message| serde_json::to_string(message).unwrap()).collect::<Vec<_>>()
    };
    // Two calls, so that the summary saves a third of the log that they leave.
    let responses = vec![
        calls("long"),
        calls("kept"),
        Response::text("First."),
        Response::text("sum"),
        Response::text("Second."),
    ];
    let (_model, host) = start(responses).await;
    let session = host.open_session("s").await.unwrap();
    within(session.run("one")).await.unwrap();
    within(session.compact()).await.unwrap();
    within(session.run("two")).await.unwrap();
    let before = said(session.clone()).await;
    assert_eq!(before.len(), 4);
    host.shutdown().await;
    let (_model, host) = start(Vec::new()).await;
    let session = host.get_or_open_session(OpenSession::from("s")).await.unwrap();
    assert_eq!(said(session).await, before);
    host.shutdown().await;
    let _ = std::fs::remove_dir_all(directory);
}

#[tokio::test]
async fn a_client_sees_what_fills_the_window() {
    let responses = [of_tokens(calls("long"), 500), of_tokens(Response::text("done"), 1_500)];
    let world = host(responses, 10_000, |_| ()).await;
    let empty = json!(world.session.context().await.unwrap());
    assert_eq!((&empty["window"], &empty["source"]), (&json!(10_000), &json!("config")));
    run(&world).await;
    let report = json!(world.session.context().await.unwrap());
    let used = report["used"].as_u64().unwrap();
    assert!((1_500..1_600).contains(&used), "{report}");
    let tokens_of = |part: &str| {
        let parts = report["parts"].as_array().unwrap();
        let found = parts.iter().find(|found| found["part"] == part).unwrap();
        (found["tokens"].as_u64().unwrap(), found["bytes"].as_u64().unwrap())
    };
    let parts = ["tools", "system", "user", "assistant", "results", "summary"].map(tokens_of);
    let sum = parts.iter().map(|(tokens, _)| tokens).sum::<u64>();
    assert!(sum <= used && sum + 6 >= used, "{report}");
    let [tools, _, user, assistant, results, summary] = parts;
    assert!(tools.0 > 0 && user.0 > 0 && assistant.0 > 0, "{report}");
    assert!(results.0 > user.0 + assistant.0 && results.1 >= 2_000, "{report}");
    assert_eq!(summary, (0, 0));
}

#[tokio::test]
async fn the_context_of_an_idle_session_is_that_of_a_run_without_changes() {
    let world = host([Response::text("Done.")], 10_000, |_| ()).await;
    let sizes = async || {
        let report = json!(world.session.context().await.unwrap());
        let parts = report["parts"].as_array().unwrap().clone();
        let bytes = |part: &str| {
            let found = parts.iter().find(|found| found["part"] == part).unwrap();
            found["bytes"].as_u64().unwrap()
        };
        ["tools", "system"].map(bytes)
    };
    let before = sizes().await;
    let mut request = RunRequest::from("go");
    request.overrides.tools = Some(vec!["long".to_owned()]);
    within(world.session.start_run(request).await.unwrap().report).await.unwrap();
    assert_eq!(sizes().await, before);
}

#[tokio::test]
async fn requests_of_a_session_continue_their_prompt_except_at_a_change_of_the_context() {
    let responses = [
        of_tokens(calls("long"), 100),
        of_tokens(calls("kept"), 550),
        of_tokens(calls("long"), 1_000),
        of_tokens(calls("long"), 1_450),
        of_tokens(Response::text("done"), 1_600),
    ];
    let world = host(responses, 2_000, |_| ()).await;
    let (_, changes) = run(&world).await;
    assert!(!changes.is_empty(), "the context was made smaller");
    let page = world.host.metrics_page().unwrap();
    let breaks = |reason: &str| {
        let series = format!("callsheet_prompt_prefix_breaks_total{{reason=\"{reason}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&series)).unwrap();
        line.parse::<usize>().unwrap()
    };
    assert_eq!((breaks("cleared"), breaks("unexplained")), (changes.len(), 0), "{changes:?}");
    let keys: Vec<Value> =
        world.requests().iter().map(|request| request.body["prompt_cache_key"].clone()).collect();
    assert!(keys[0].as_str().is_some_and(|key| key.len() == 32), "{keys:?}");
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
}

#[tokio::test]
async fn the_first_request_after_a_restart_is_compared_with_the_last_one_before_it() {
    let journal = Arc::new(MemoryJournal::new());
    let breaks = async |system: &str, history: HistoryForm, overrides: RunOverrides| {
        let responses = [calls("long"), Response::text("Done.")];
        let model = MockProvider::with_script(Script::new(responses)).await.unwrap();
        let mut config = Config::default();
        config.set_rehearsal(BaseUrl::parse(&model.base_url()).unwrap());
        let agent = config.agents.get_mut("default").unwrap();
        agent.tools = vec![ToolPattern::new("*")];
        agent.system = system.to_owned();
        agent.context.history = history;
        let host = Host::builder().config(config).tools(tools()).journal(journal.clone());
        let host = host.start().await.unwrap();
        let session = host.get_or_open_session(OpenSession::from("s")).await.unwrap();
        let mut request = RunRequest::from("go");
        request.overrides = overrides;
        within(session.start_run(request).await.unwrap().report).await.unwrap();
        let page = host.metrics_page().unwrap();
        host.shutdown().await;
        let series = page.lines().filter_map(|line| {
            let reason = line.strip_prefix("callsheet_prompt_prefix_breaks_total{reason=\"")?;
            let (reason, count) = reason.split_once("\"} ")?;
            (count != "0").then(|| format!("{reason} {count}"))
        });
        series.collect::<Vec<_>>()
    };
    let (full, compact) = (HistoryForm::Full, HistoryForm::Compact);
    let own = RunOverrides::default;
    let few = || {
        let mut overrides = own();
        overrides.tools = Some(vec!["long".to_owned()]);
        overrides
    };
    assert_eq!(breaks("Be brief.", full, own()).await, [""; 0], "the first request");
    assert_eq!(breaks("Be brief.", full, own()).await, [""; 0], "nothing has changed");
    assert_eq!(breaks("Be long.", full, own()).await, ["config 1"]);
    // The run before is formatted when the session wakes, and this one at its end.
    assert_eq!(breaks("Be long.", compact, own()).await, ["formatted 1"]);
    assert_eq!(breaks("Be long.", full, own()).await, ["formatted 1"]);
    assert_eq!(breaks("Be long.", full, few()).await, ["run_override 1"]);
    assert_eq!(breaks("Be long.", full, few()).await, [""; 0]);
    assert_eq!(breaks("Be long.", full, own()).await, ["run_override 1"]);
    let session = callsheet::types::SessionId::parse("s").unwrap();
    let entries = journal.read(&session, Seq(0)).await.unwrap();
    assert!(verify(&session, &entries).is_empty());
    let recorded = entries.iter().filter(|entry| {
        matches!(entry.record, callsheet::record::Record::AttemptStarted { prompt: Some(_), .. })
    });
    assert_eq!(recorded.count(), 4, "a prompt is recorded when it changes");
}

#[tokio::test]
async fn the_num_ctx_of_ollama_is_the_window_unless_another_one_is_configured() {
    for (window, expected) in [(0, 8_192), (4_000, 4_000)] {
        let world = host([], window, |config| {
            let model = config.models.values_mut().next().unwrap();
            model.wire = Wire::OllamaChat;
            model.extra_body.insert("options".to_owned(), json!({"num_ctx": 8_192}));
        })
        .await;
        let report = json!(world.session.context().await.unwrap());
        assert_eq!((&report["window"], &report["source"]), (&json!(expected), &json!("config")));
    }
}
