//! Long runs with a model whose window is real: it counts the tokens of each request, and refuses those
//! that are too large.
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test, which looks for one kind of message"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callsheet::config::{BaseUrl, Config, ModelConfig};
use callsheet::journal::MemoryJournal;
use callsheet::message::Message;
use callsheet::model::{CallDelta, Delta, ModelRequest, ModelSource, ModelStream};
use callsheet::prelude::*;
use callsheet::types::{
    ContextOverflow, FinishKind, FinishReason, ProviderError, ProviderErrorKind, RunEnd, Usage,
};
use parking_lot::Mutex;
use serde_json::json;

const TURNS: usize = 200;
const BYTES: usize = 50_000;
const SUMMARY: &str = "## Goal\nread all pages";

/// What the model was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    answers: usize,
    refusals: usize,
    summaries: usize,
    largest: u64,
}

/// The form in which a service refuses a request that is too large.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// By an error that names its window.
    Named,
    /// By an error.
    Unnamed,
    /// By a response without content that ends for its length.
    Silent,
}

/// A model with a window. It calls the tool `page` in each turn, and answers after the last one.
struct Window {
    tokens: u64,
    refusal: Refusal,
    /// The turns before an answer.
    turns: usize,
    seen: Arc<Mutex<Seen>>,
}

impl Window {
    fn deltas(&self, request: &ModelRequest) -> Result<Vec<Delta>, ProviderError> {
        assert_paired(&request.messages);
        assert!(has_input(&request.messages), "the user's words are in each request");
        let tokens = tokens(request);
        let mut seen = self.seen.lock();
        if tokens > self.tokens {
            seen.refusals += 1;
            if matches!(self.refusal, Refusal::Silent) {
                return Ok(vec![Delta::Finish(FinishReason::new(FinishKind::Length, "length"))]);
            }
            let mut error = ProviderError::new(ProviderErrorKind::Status, "the prompt is too long");
            error.status = Some(400);
            let window = Some(self.tokens).filter(|_| matches!(self.refusal, Refusal::Named));
            error.overflow = Some(ContextOverflow { window, ..ContextOverflow::default() });
            return Err(error);
        }
        seen.largest = seen.largest.max(tokens);
        let asks_summary = match &**request.messages.last().expect("a message") {
            Message::User { content } => content.text().starts_with("Summarise this conversation"),
            _ => false,
        };
        let usage = Usage::default().with(|usage| {
            (usage.input_tokens, usage.output_tokens) = (tokens, 20);
        });
        let usage = Delta::Usage { usage, raw: "{}".into() };
        let (content, kind) = if asks_summary {
            seen.summaries += 1;
            (Delta::Text(SUMMARY.to_owned()), FinishKind::Stop)
        } else if seen.answers % (self.turns + 1) == self.turns {
            seen.answers += 1;
            (Delta::Text("All pages are read.".to_owned()), FinishKind::Stop)
        } else {
            seen.answers += 1;
            let call = CallDelta::default().with(|call| {
                call.index = Some(0);
                call.id = Some(format!("call-{}", seen.answers));
                call.name = Some("page".into());
                call.arguments = Some(json!({"number": seen.answers}).to_string());
            });
            (Delta::Call(call), FinishKind::ToolCalls)
        };
        Ok(vec![content, usage, Delta::Finish(FinishReason::new(kind, "end"))])
    }
}

impl ModelSource for Window {
    fn respond(&self, request: ModelRequest) -> ModelStream {
        Box::pin(futures::stream::once(std::future::ready(self.deltas(&request))))
    }
}

/// Four bytes are a token.
fn tokens(request: &ModelRequest) -> u64 {
    let messages: usize =
        request.messages.iter().map(|m| serde_json::to_string(m).unwrap().len()).sum();
    let tools: usize = request.tools.iter().map(|tool| tool.schema.to_string().len() + 80).sum();
    ((messages + tools) / 4) as u64
}

/// Checks that each call has its result directly behind it.
fn assert_paired(messages: &[Arc<Message>]) {
    let mut open = Vec::new();
    for message in messages {
        match &**message {
            Message::Tool { call_id, .. } => assert_eq!(open.pop(), Some(call_id.to_string())),
            Message::Assistant(response) => {
                assert!(open.is_empty(), "a call without a result");
                open.extend(response.calls.iter().rev().map(|call| call.id.to_string()));
            }
            _ => assert!(open.is_empty(), "a call without a result"),
        }
    }
    assert!(open.is_empty(), "a call without a result");
}

fn has_input(messages: &[Arc<Message>]) -> bool {
    messages.iter().any(|message| match &**message {
        Message::User { content } => content.text() == "Read all pages, and remember 4711.",
        _ => false,
    })
}

async fn host(window: Window, known: Option<u64>) -> Host {
    host_at(window, known, "http://127.0.0.1:9", Arc::new(MemoryJournal::new())).await
}

/// Starts a host whose model has this address.
async fn host_at(
    window: Window,
    known: Option<u64>,
    address: &str,
    journal: Arc<MemoryJournal>,
) -> Host {
    let page = ToolSpec::named("page", "Returns a page.").pure().into_tool(
        async |input: serde_json::Value, _| {
            Ok(format!("{} {}", input["number"], "word ".repeat(BYTES / 5)))
        },
    );
    let agent = AgentConfig::new("window").tools(["page"]).with(|agent| {
        agent.limits.max_turns = None;
        agent.limits.repeat_limit = None;
        agent.limits.run_timeout = None;
    });
    let address = BaseUrl::parse(address).unwrap();
    let model = ModelConfig::new(address, "window").with(|model| model.context_window = known);
    let config = Config::default().with(|config| {
        config.agents.insert("default".to_owned(), agent);
        config.models.insert("window".to_owned(), model);
    });
    let host = Host::builder().config(config).model_source("window", window).tool(page);
    host.journal(journal).start().await.unwrap()
}

async fn read_pages(known: Option<u64>, refusal: Refusal, runs: usize) -> Seen {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let window = Window { tokens: 60_000, refusal, turns: TURNS, seen: Arc::clone(&seen) };
    let host = host(window, known).await;
    let session = host.open_session("s").await.unwrap();
    for _ in 0..runs {
        let run = session.run("Read all pages, and remember 4711.");
        let report = tokio::time::timeout(Duration::from_secs(120), run).await.unwrap().unwrap();
        assert_eq!(report.run_end, RunEnd::Answered, "{:?}", report.error);
        assert_eq!(report.calls.len(), TURNS);
    }
    let held = session.snapshot().await.unwrap().history;
    let bytes: usize = held.iter().map(|m| serde_json::to_string(m).unwrap().len()).sum();
    assert!(bytes < 300_000, "the history in memory is as large as the window: {bytes}");
    host.shutdown().await;
    let seen = *seen.lock();
    println!("window known: {known:?}, {refusal:?}, {seen:?}");
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_refused_where_the_window_is_known() {
    let seen = read_pages(Some(60_000), Refusal::Named, 2).await;
    assert_eq!(seen.refusals, 0, "{seen:?}");
    // 12,500 tokens are new in each turn, and clearing leaves the newest eight results.
    assert!(seen.summaries <= 2 * (2 * TURNS * 12_500 / 60_000), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_many_large_results_ends_answered() {
    for refusal in [Refusal::Named, Refusal::Unnamed, Refusal::Silent] {
        let seen = read_pages(None, refusal, 1).await;
        // The window is learnt from the first refusal.
        assert!(seen.refusals <= 1, "{seen:?}");
        assert!(seen.largest <= 60_000);
    }
}

/// Runs a new session that reads ten pages, and returns the refused requests and the known window.
async fn read_ten_pages(host: &Host, seen: &Mutex<Seen>) -> (usize, Option<u64>) {
    let before = seen.lock().refusals;
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let report = session.run("Read all pages, and remember 4711.").await.unwrap();
    assert_eq!(report.run_end, RunEnd::Answered, "{:?}", report.error);
    let window = session.context().await.unwrap().window;
    (seen.lock().refusals - before, window)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learnt_window_is_known_to_new_sessions_and_to_the_next_host() {
    for refusal in [Refusal::Named, Refusal::Unnamed] {
        let (seen, journal) =
            (Arc::new(Mutex::new(Seen::default())), Arc::new(MemoryJournal::new()));
        let start = async |known, address: &str| {
            let window = Window { tokens: 60_000, refusal, turns: 10, seen: Arc::clone(&seen) };
            host_at(window, known, address, Arc::clone(&journal)).await
        };
        let host = start(None, "http://127.0.0.1:9").await;
        let (refusals, learnt) = read_ten_pages(&host, &seen).await;
        assert_eq!(refusals, 1, "it is learnt from a refusal");
        let learnt = learnt.unwrap();
        assert!(match refusal {
            Refusal::Named => learnt == 60_000,
            Refusal::Unnamed | Refusal::Silent => (40_000..60_000).contains(&learnt),
        });
        assert_eq!(read_ten_pages(&host, &seen).await.0, 0, "another session");
        host.shutdown().await;
        let host = start(None, "http://127.0.0.1:9").await;
        let (refusals, known) = read_ten_pages(&host, &seen).await;
        assert_eq!(refusals, 0, "the next host");
        assert!(known >= Some(learnt), "{known:?}");
        host.shutdown().await;
        let host = start(Some(50_000), "http://127.0.0.1:9").await;
        assert_eq!(
            read_ten_pages(&host, &seen).await,
            (0, Some(50_000)),
            "the configured one wins"
        );
        host.shutdown().await;
        let host = start(None, "http://127.0.0.1:10").await;
        assert_eq!(read_ten_pages(&host, &seen).await.0, 1, "another service");
        host.shutdown().await;
    }
}

#[tokio::test]
async fn the_count_of_another_model_says_nothing_about_a_window() {
    let respond = |deltas: Result<Vec<Delta>, ProviderError>| -> ModelStream {
        Box::pin(futures::stream::once(std::future::ready(deltas)))
    };
    let refusal = |status| {
        let mut error = ProviderError::new(ProviderErrorKind::Status, "no");
        error.status = Some(status);
        error
    };
    // It answers one request.
    let answered = AtomicBool::new(false);
    let large = move |_: ModelRequest| {
        if answered.swap(true, Ordering::Relaxed) {
            return respond(Err(refusal(401)));
        }
        let usage = Usage::default().with(|usage| usage.input_tokens = 100_000);
        let usage = Delta::Usage { usage, raw: "{}".into() };
        let end = Delta::Finish(FinishReason::new(FinishKind::Stop, "stop"));
        respond(Ok(vec![Delta::Text("Hello.".to_owned()), usage, end]))
    };
    let small = move |_: ModelRequest| {
        let mut error = refusal(400);
        error.overflow = Some(ContextOverflow::default());
        respond(Err(error))
    };
    let config = Config::default().with(|config| {
        let agent = AgentConfig::new("large")
            .with(|agent| agent.fallback_models = vec!["small".to_owned()]);
        config.agents.insert("default".to_owned(), agent);
        config.agents.insert("small".to_owned(), AgentConfig::new("small"));
    });
    let host = Host::builder().config(config).journal(Arc::new(MemoryJournal::new()));
    let host = host.model_source("large", large).model_source("small", small);
    let host = host.start().await.unwrap();
    let session = host.open_session("s").await.unwrap();
    assert_eq!(session.run("Hello.").await.unwrap().run_end, RunEnd::Answered);
    let report = session.run("And now?").await.unwrap();
    assert_eq!(report.error.unwrap().code, "CONTEXT_OVERFLOW");
    let of_small = OpenSession::default().with(|new| new.agent = Some("small".to_owned()));
    let other = host.open_session(of_small).await.unwrap();
    assert_eq!(other.context().await.unwrap().window, None);
    host.shutdown().await;
}

#[tokio::test]
async fn the_first_request_of_a_session_is_counted_by_the_ratio_of_the_model() {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let window = Window { tokens: 600_000, refusal: Refusal::Named, turns: 20, seen };
    let host = host(window, None).await;
    let first = host.open_session("first").await.unwrap();
    let used = async |id: &str| {
        let session = host.open_session(id).await.unwrap();
        session.context().await.unwrap().used
    };
    let before = used("before").await;
    first.run("Read all pages, and remember 4711.").await.unwrap();
    let after = used("after").await;
    // The words of the pages are a quarter longer than a token of this model.
    assert!(after > before, "{before} {after}");
    host.shutdown().await;
}

/// The long form of the tests above, on windows of many sizes. Takes minutes:
/// `cargo test --release --test runs -- context_window:: --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn a_thousand_runs_of_two_hundred_turns_end_answered() {
    let refusals = [Refusal::Named, Refusal::Unnamed, Refusal::Silent];
    let mut sums = Seen::default();
    for number in 0..1_000 {
        let seen = Arc::new(Mutex::new(Seen::default()));
        // Windows of 30,000 to 230,000 tokens, some of which are configured.
        let tokens = 30_000 + (number * 7_919) % 200_000;
        let known = (number % 4 == 3).then_some(tokens);
        let refusal = refusals[number as usize % 3];
        let window = Window { tokens, refusal, turns: TURNS, seen: Arc::clone(&seen) };
        let host = host(window, known).await;
        let session = host.open_session("s").await.unwrap();
        let run = session.run("Read all pages, and remember 4711.");
        let report = tokio::time::timeout(Duration::from_secs(300), run).await;
        let seen = *seen.lock();
        let place =
            format!("run {number}, {tokens} tokens, known: {known:?}, {refusal:?}, {seen:?}");
        println!("{place}");
        let report = report.expect("the run ends").unwrap();
        assert_eq!(report.run_end, RunEnd::Answered, "{place}: {:?}", report.error);
        assert_eq!(report.calls.len(), TURNS, "{place}");
        assert!(seen.refusals <= usize::from(known.is_none()), "{place}");
        // A window that no refusal names is learnt too small.
        let window = session.context().await.unwrap().window.unwrap_or(tokens);
        let filled = TURNS * BYTES / 4 / window as usize + 1;
        assert!(seen.summaries <= 2 * filled, "{place}");
        host.shutdown().await;
        sums.answers += seen.answers;
        sums.refusals += seen.refusals;
        sums.summaries += seen.summaries;
        sums.largest = sums.largest.max(seen.largest);
    }
    println!("{sums:?}");
}

/// A model with a small window that only talks. Its summaries are good, cut off, refused and too long, in turn.
struct Talk {
    tokens: u64,
    seen: Arc<Mutex<Seen>>,
}

impl ModelSource for Talk {
    fn respond(&self, request: ModelRequest) -> ModelStream {
        Box::pin(futures::stream::once(std::future::ready(self.deltas(&request))))
    }
}

impl Talk {
    fn deltas(&self, request: &ModelRequest) -> Result<Vec<Delta>, ProviderError> {
        assert_paired(&request.messages);
        let tokens = tokens(request);
        let mut seen = self.seen.lock();
        if tokens > self.tokens {
            seen.refusals += 1;
            let mut error = ProviderError::new(ProviderErrorKind::Status, "the prompt is too long");
            error.status = Some(400);
            error.overflow = Some(ContextOverflow::of_window(Some(self.tokens), Some(tokens)));
            return Err(error);
        }
        seen.largest = seen.largest.max(tokens);
        let last = match &**request.messages.last().expect("a message") {
            Message::User { content } => content.text().to_string(),
            _ => String::new(),
        };
        let (text, kind) = if last.starts_with("Summarise this conversation") {
            seen.summaries += 1;
            match seen.summaries % 4 {
                1 => ("## Goal\nto talk ".repeat(10), FinishKind::Stop),
                2 => ("## Goal\na part ".repeat(10), FinishKind::Length),
                3 => (String::new(), FinishKind::ContentFilter),
                _ => ("## Goal\nto talk ".repeat(400), FinishKind::Stop),
            }
        } else {
            seen.answers += 1;
            let number = last.rsplit(' ').next().unwrap_or_default().to_owned();
            assert_eq!(number, seen.answers.to_string(), "the newest words of the user are sent");
            ("an answer ".repeat(1 + seen.answers % 30), FinishKind::Stop)
        };
        let usage = Usage::default().with(|usage| {
            (usage.input_tokens, usage.output_tokens) = (tokens, text.len() as u64 / 4);
        });
        let usage = Delta::Usage { usage, raw: "{}".into() };
        Ok(vec![Delta::Text(text), usage, Delta::Finish(FinishReason::new(kind, "end"))])
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_window_never_ends_a_session() {
    for known in [None, Some(2_048)] {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let agent = AgentConfig::new("talk").tools(["*"; 0]);
        let address = BaseUrl::parse("http://127.0.0.1:9").unwrap();
        let model = ModelConfig::new(address, "talk").with(|model| model.context_window = known);
        let config = Config::default().with(|config| {
            config.agents.insert("default".to_owned(), agent);
            config.models.insert("talk".to_owned(), model);
        });
        let model = Talk { tokens: 2_048, seen: Arc::clone(&seen) };
        let host = Host::builder().config(config).model_source("talk", model);
        let host = host.journal(Arc::new(MemoryJournal::new())).start().await.unwrap();
        let session = host.open_session("s").await.unwrap();
        for number in 1..=120 {
            let input = format!("{}number {number}", "some words of the user ".repeat(number % 60));
            let report = within(session.run(input)).await;
            assert_eq!(report.run_end, RunEnd::Answered, "{number}: {:?}", report.error);
        }
        let records = session.records(callsheet::record::Seq(0)).await.unwrap();
        let breaches = callsheet::journal::verify(session.id(), &records);
        assert!(breaches.is_empty(), "{breaches:?}");
        host.shutdown().await;
        let seen = *seen.lock();
        println!("window known: {known:?}, {seen:?}");
        assert!(seen.refusals <= usize::from(known.is_none()), "{seen:?}");
        assert!(seen.summaries > 0 && seen.largest <= 2_048, "{seen:?}");
    }
}

async fn within<T, E: std::fmt::Debug>(work: impl Future<Output = Result<T, E>>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("in time").unwrap()
}
