//! The tokens of a task, against a loop that sends everything again with each request.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use callsheet::config::{BaseUrl, Config, HistoryForm, JournalEngine, ModelConfig};
use callsheet::message::Message;
use callsheet::model::{CallDelta, Delta, ModelRequest, ModelSource, ModelStream};
use callsheet::prelude::*;
use callsheet::types::{FinishKind, FinishReason, RunEnd, Usage};
use parking_lot::Mutex;
use serde_json::json;

/// Number of bytes that count as a token.
const TOKEN_BYTES: u64 = 4;

/// A task: runs with tool calls.
#[derive(Clone, Copy, Debug)]
struct Task {
    runs: usize,
    /// Turns with a call, in each run.
    turns: usize,
    result_bytes: usize,
    window: u64,
    history: HistoryForm,
}

/// A model that calls `page` in each turn of a run but the last, and counts what it is sent.
struct Reader {
    turns: usize,
    counts: Arc<Mutex<Counts>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    answers: usize,
    summaries: usize,
    requests: usize,
    sent: u64,
}

fn tokens(messages: &[Arc<Message>]) -> u64 {
    let bytes: usize = messages.iter().map(|m| serde_json::to_string(m).unwrap().len()).sum();
    bytes as u64 / TOKEN_BYTES
}

impl ModelSource for Reader {
    fn respond(&self, request: ModelRequest) -> ModelStream {
        let mut counts = self.counts.lock();
        let tokens = tokens(&request.messages);
        counts.requests += 1;
        counts.sent += tokens;
        let is_summary = serde_json::to_string(request.messages.last().unwrap())
            .unwrap()
            .contains("Summarise this conversation");
        let (content, kind) = if is_summary {
            counts.summaries += 1;
            (Delta::Text("## Goal\nread the pages".to_owned()), FinishKind::Stop)
        } else {
            counts.answers += 1;
            if counts.answers.is_multiple_of(self.turns + 1) {
                (Delta::Text("All pages are read.".to_owned()), FinishKind::Stop)
            } else {
                let call = CallDelta::default().with(|call| {
                    call.index = Some(0);
                    call.id = Some(format!("call-{}", counts.answers));
                    call.name = Some("page".into());
                    call.arguments = Some(json!({"number": counts.answers}).to_string());
                });
                (Delta::Call(call), FinishKind::ToolCalls)
            }
        };
        let usage = Usage::default().with(|usage| {
            (usage.input_tokens, usage.output_tokens) = (tokens, 20);
        });
        let usage = Delta::Usage { usage, raw: "{}".into() };
        let deltas = vec![content, usage, Delta::Finish(FinishReason::new(kind, "end"))];
        Box::pin(futures::stream::once(std::future::ready(Ok(deltas))))
    }
}

/// Performs the task. Returns the tokens that were sent, and those that a plain loop would have sent.
async fn perform(task: Task) -> (Counts, u64) {
    let counts = Arc::new(Mutex::new(Counts::default()));
    let reader = Reader { turns: task.turns, counts: Arc::clone(&counts) };
    let bytes = task.result_bytes;
    let page = ToolSpec::named("page", "Returns a page.").pure().into_tool(
        move |input: serde_json::Value, _| async move {
            Ok(format!("{} {}", input["number"], "word ".repeat(bytes / 5)))
        },
    );
    let agent = AgentConfig::new("reader").tools(["page"]).with(|agent| {
        agent.limits.max_turns = None;
        agent.limits.repeat_limit = None;
        agent.limits.run_timeout = None;
        agent.context.history = task.history;
    });
    let address = BaseUrl::parse("http://127.0.0.1:9").unwrap();
    let model =
        ModelConfig::new(address, "reader").with(|model| model.context_window = Some(task.window));
    let config = Config::default().with(|config| {
        config.journal.engine = JournalEngine::Memory;
        config.agents.insert("default".to_owned(), agent);
        config.models.insert("reader".to_owned(), model);
    });
    let host = Host::builder().config(config).model_source("reader", reader).tool(page);
    let host = host.start().await.unwrap();
    let session = host.open_session("s").await.unwrap();
    let (mut history, mut plain): (Vec<Arc<Message>>, u64) = (Vec::new(), 0);
    let mut held = 0;
    for _ in 0..task.runs {
        let run = session.run("Read the pages.");
        let report = tokio::time::timeout(Duration::from_secs(60), run).await.unwrap().unwrap();
        assert_eq!(report.run_end, RunEnd::Answered, "{:?}", report.error);
        // A plain loop sends all messages before each answer.
        for message in report.run_messages() {
            if matches!(**message, Message::Assistant(_)) {
                plain += held;
            }
            held += tokens(std::slice::from_ref(message));
            history.push(Arc::clone(message));
        }
    }
    assert_eq!(history.len(), task.runs * (2 * task.turns + 2));
    host.shutdown().await;
    let counts = *counts.lock();
    (counts, plain)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_task_takes_at_most_half_of_the_tokens_of_a_plain_loop() {
    let task = Task {
        runs: 1,
        turns: 200,
        result_bytes: 8_000,
        window: 60_000,
        history: HistoryForm::Full,
    };
    let tasks = [
        task,
        Task { window: 200_000, result_bytes: 50_000, ..task },
        Task { window: 200_000, ..task },
        Task { runs: 20, turns: 10, ..task },
        Task { runs: 20, turns: 10, history: HistoryForm::Compact, ..task },
    ];
    for task in tasks {
        let (counts, plain) = perform(task).await;
        let share = counts.sent as f64 / plain as f64;
        println!("{task:?}: {counts:?}, a plain loop: {plain}, share {share:.3}");
        assert!(2 * counts.sent <= plain, "{task:?}: {counts:?}, a plain loop: {plain}");
    }
}
