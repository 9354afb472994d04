//! Fifty facts of a long session, in inputs, results and decisions of the model, are all within its reach after
//! results were cleared and after the history was summarised.
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test, which looks for some kinds of messages"
)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use callsheet::config::{BaseUrl, Config, HistoryForm, JournalEngine, ModelConfig};
use callsheet::message::Message;
use callsheet::model::{CallDelta, Delta, ModelRequest, ModelSource, ModelStream};
use callsheet::prelude::*;
use callsheet::record::{Compaction, Record, Seq};
use callsheet::types::{FinishKind, FinishReason, RunEnd, Usage};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Number of runs. Each has a fact in its input, one in a result, and all but the last one in a decision.
const RUNS: usize = 17;
const WINDOW: u64 = 30_000;
const RESULT_BYTES: usize = 6_000;

/// Returns a fact, which is in no other text.
fn fact(kind: char, number: usize) -> String {
    format!("{kind}-{number}-{:05}", (number * 7_919 + kind as usize * 104_729) % 100_000)
}

fn facts(kind: char) -> impl Iterator<Item = String> {
    let count = if kind == 'D' { RUNS - 1 } else { RUNS };
    (0..count).map(move |number| fact(kind, number))
}

/// A model that makes a note of each input, and looks up all references that it sees when it is told to recall.
#[derive(Clone, Default)]
struct Notes {
    /// The text of the messages of the last request that was not for a summary.
    last: Arc<Mutex<String>>,
}

/// Returns all texts of a request's messages, with the results and the arguments of calls.
fn said(request: &ModelRequest) -> String {
    let texts = request.messages.iter().map(|message| match &**message {
        Message::User { content } | Message::Summary { content } => content.text().into_owned(),
        Message::Assistant(response) => response.text.clone(),
        Message::Tool { content, .. } => content.to_string(),
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// Returns the references of results in a text, in order.
fn references(text: &str) -> Vec<String> {
    let rest = text.split("$VAR_REF{{").skip(1);
    let names = rest.filter_map(|rest| rest.split_once("}}").map(|(name, _)| name.to_owned()));
    let is_result = |name: &String| name.starts_with('t') && !name.contains('.');
    names.filter(is_result).collect::<BTreeSet<_>>().into_iter().collect()
}

fn call(index: u64, name: &str, arguments: &Value) -> Delta {
    Delta::Call(CallDelta::default().with(|call| {
        call.index = Some(index);
        call.id = Some(format!("{name}-{index}"));
        call.name = Some(name.into());
        call.arguments = Some(arguments.to_string());
    }))
}

impl Notes {
    fn deltas(&self, request: &ModelRequest) -> Vec<Delta> {
        let text = said(request);
        let last_input = request.messages.iter().rev().find_map(|message| match &**message {
            Message::User { content } => Some(content.text().into_owned()),
            _ => None,
        });
        let last_input = last_input.expect("the user's words are in each request");
        let is_answered = matches!(&**request.messages.last().unwrap(), Message::Tool { .. });
        let (mut deltas, mut kind) = (Vec::new(), FinishKind::Stop);
        if last_input.starts_with("Summarise this conversation") {
            deltas.push(Delta::Text(summary(&text)));
        } else {
            self.last.lock().clone_from(&text);
            if is_answered {
                deltas.push(Delta::Text("Noted.".to_owned()));
            } else if last_input == "recall" {
                let calls = references(&text).into_iter().zip(0..);
                let call = |(id, index): (String, u64)| {
                    call(index, "read_var", &json!({"id": id, "pattern": "R-"}))
                };
                deltas.extend(calls.map(call));
                kind = FinishKind::ToolCalls;
            } else {
                let number = last_input.split(' ').nth(1).unwrap().parse::<usize>().unwrap();
                if number < RUNS - 1 {
                    deltas.push(Delta::Text(format!("I decide: {}", fact('D', number))));
                }
                deltas.push(call(0, "look", &json!({"number": number})));
                kind = FinishKind::ToolCalls;
            }
        }
        let usage = Usage::default().with(|usage| {
            (usage.input_tokens, usage.output_tokens) = (text.len() as u64 / 4, 20);
        });
        deltas.push(Delta::Usage { usage, raw: "{}".into() });
        deltas.push(Delta::Finish(FinishReason::new(kind, "end")));
        deltas
    }
}

/// Returns the decisions and references of a text, as a model does that is asked for a summary of it.
fn summary(text: &str) -> String {
    let decisions: BTreeSet<_> = text.lines().filter(|line| line.contains("I decide: ")).collect();
    let decisions = decisions.into_iter().collect::<Vec<_>>().join("\n");
    let artifacts = references(text).into_iter().map(|name| format!("- $VAR_REF{{{{{name}}}}}\n"));
    format!("## Decisions\n{decisions}\n## Artifacts\n{}", artifacts.collect::<String>())
}

impl ModelSource for Notes {
    fn respond(&self, request: ModelRequest) -> ModelStream {
        let deltas = self.deltas(&request);
        Box::pin(futures::stream::once(std::future::ready(Ok(deltas))))
    }
}

async fn host(notes: Notes, history: HistoryForm) -> Host {
    let look =
        ToolSpec::named("look", "Looks.").pure().into_tool(async |input: serde_json::Value, _| {
            let number = input["number"].as_u64().unwrap() as usize;
            let words = "some words of a page\n".repeat(RESULT_BYTES / 42);
            Ok(format!("{words}The number is {}.\n{words}", fact('R', number)))
        });
    let agent = AgentConfig::new("notes").tools(["look"]).with(|agent| {
        agent.limits.max_tool_calls_per_turn = None;
        agent.context.history = history;
    });
    let address = BaseUrl::parse("http://127.0.0.1:9").unwrap();
    let model =
        ModelConfig::new(address, "notes").with(|model| model.context_window = Some(WINDOW));
    let config = Config::default().with(|config| {
        config.journal.engine = JournalEngine::Memory;
        config.agents.insert("default".to_owned(), agent);
        config.models.insert("notes".to_owned(), model);
    });
    Host::builder().config(config).model_source("notes", notes).tool(look).start().await.unwrap()
}

async fn run(session: &SessionHandle, input: &str) -> RunReport {
    let running = tokio::time::timeout(Duration::from_secs(20), session.run(input));
    let report = running.await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Answered, "{:?}", report.error);
    report
}

async fn changes(session: &SessionHandle) -> (usize, usize) {
    let entries = session.records(Seq(0)).await.unwrap();
    let count = |is_counted: fn(&Compaction) -> bool| {
        let changes = entries.iter().filter(|entry| match &entry.record {
            Record::Compacted { change, .. } => is_counted(change),
            _ => false,
        });
        changes.count()
    };
    (
        count(|change| matches!(change, Compaction::Cleared { .. })),
        count(|change| matches!(change, Compaction::Summarised { .. })),
    )
}

/// Checks that a model which sees the next request reaches every fact.
async fn check_reach(session: &SessionHandle, notes: &Notes, when: &str) {
    let report = run(session, "recall").await;
    let seen = notes.last.lock().clone();
    // The words of the user and the decisions are in the request itself.
    for fact in facts('U').chain(facts('D')) {
        assert!(seen.contains(&fact), "{when}: {fact} is lost");
    }
    // The results are in the request, or a call with a reference in it reads them.
    let read: String = report.calls.iter().map(|call| format!("{}\n", call.result)).collect();
    for fact in facts('R') {
        assert!(seen.contains(&fact) || read.contains(&fact), "{when}: {fact} is lost");
    }
    assert!(report.calls.iter().any(|call| call.result.contains("R-")), "{when}: nothing is read");
}

async fn fifty_facts(history: HistoryForm) {
    assert_eq!(facts('U').count() + facts('R').count() + facts('D').count(), 50);
    let notes = Notes::default();
    let host = host(notes.clone(), history).await;
    let session = host.open_session("s").await.unwrap();
    for number in 0..RUNS {
        run(&session, &format!("Note {number} of the user: {}", fact('U', number))).await;
    }
    if history == HistoryForm::Full {
        let (cleared, summarised) = changes(&session).await;
        assert!(cleared > 0 && summarised == 0, "{cleared} {summarised}");
    }
    check_reach(&session, &notes, "after clearing").await;
    for times in 1..=3 {
        session.compact().await.unwrap();
        assert_eq!(changes(&session).await.1, times);
        check_reach(&session, &notes, &format!("after {times} summaries")).await;
        // More messages, so that the next summary saves a third.
        for _ in 0..4 {
            run(&session, "Note 0 again").await;
        }
    }
    host.shutdown().await;
}

#[tokio::test]
async fn fifty_facts_are_reachable_after_clearing_and_after_summaries() {
    fifty_facts(HistoryForm::Full).await;
}

#[tokio::test]
async fn fifty_facts_are_reachable_after_formatting_and_after_summaries() {
    fifty_facts(HistoryForm::Compact).await;
}
