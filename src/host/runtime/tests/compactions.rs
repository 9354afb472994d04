//! Compactions of long sessions. A host that ends as in a crash at any point of one is followed by a host that
//! makes the same requests, byte by byte; and a turn costs the same however many came before it.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test names the variants that it means")]

use std::sync::atomic::{AtomicBool, AtomicUsize};

use parking_lot::Mutex;

use super::engine::{Engine, entries};
use super::*;
use crate::journal::{AppendStatus, MemoryJournal};
use crate::runtime::ModelSources;
use crate::runtime::model::{ModelRequest, ModelSource, ModelStream};
use callsheet_values::config::{AgentConfig, HistoryForm, ModelConfig};
use callsheet_values::message::Message;
use callsheet_values::record::{Compaction, Record};
use callsheet_values::types::{
    CompactionKind, FinishKind, FinishReason, SessionState, Usage, Wire,
};
use callsheet_wire::{CallDelta, Delta, WireFormat as _};

const WIRES: [Wire; 5] = [
    Wire::OpenaiChat,
    Wire::OpenaiResponses,
    Wire::AnthropicMessages,
    Wire::GeminiGenerate,
    Wire::OllamaChat,
];
/// Number of pages that are read in each run.
const PAGES: u64 = 4;
const RUNS: usize = 8;

/// The bodies of a request, in all wire formats.
type Bodies = [String; 5];

/// A model that reads the next page in each turn. It decides by the request alone, so that a request that is
/// sent again gets the same answer. Its host ends when it receives the request with a given number.
struct Reader {
    sent: Arc<Mutex<Vec<Bodies>>>,
    kill_at: Option<usize>,
    is_dead: Arc<AtomicBool>,
}

/// Returns the number of the last page in a request.
fn last_page(text: &str) -> u64 {
    let numbers = text.split("page=").skip(1).map(|rest| {
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
    });
    numbers.max().unwrap_or(0)
}

impl ModelSource for Reader {
    fn respond(&self, request: ModelRequest) -> ModelStream {
        if self.is_dead.load(Ordering::SeqCst) {
            return Box::pin(futures::stream::pending());
        }
        let bodies = WIRES.map(|wire| String::from_utf8(wire.request_body(&request)).unwrap());
        let number = {
            let mut sent = self.sent.lock();
            sent.push(bodies.clone());
            sent.len()
        };
        if self.kill_at == Some(number) {
            self.is_dead.store(true, Ordering::SeqCst);
        }
        let page = last_page(&bodies[0]);
        let last = request.messages.last().unwrap();
        let is_summary = matches!(&**last, Message::User { content }
            if content.text().starts_with("Summarise this conversation"));
        let is_end =
            page > 0 && page.is_multiple_of(PAGES) && matches!(**last, Message::Tool { .. });
        let mut deltas = Vec::new();
        let mut kind = FinishKind::Stop;
        if is_summary {
            deltas.push(Delta::Text(format!("## Done\nread up to page={page}")));
        } else if is_end {
            deltas.push(Delta::Text(format!("Read up to page={page}.")));
        } else {
            let next = page + 1;
            deltas.push(Delta::Text(format!("I read page={next}.")));
            deltas.push(Delta::Call(CallDelta {
                index: Some(0),
                id: Some(format!("call_{next}")),
                name: Some("page".into()),
                arguments: Some(json!({ "page": next }).to_string()),
                ..CallDelta::default()
            }));
            kind = FinishKind::ToolCalls;
        }
        let usage = Usage {
            input_tokens: bodies[0].len() as u64 / 4,
            output_tokens: 10,
            ..Usage::default()
        };
        deltas.push(Delta::Usage { usage, raw: "{}".into() });
        deltas.push(Delta::Finish(FinishReason::new(kind, "end")));
        Box::pin(futures::stream::once(std::future::ready(Ok(deltas))))
    }
}

/// The point at which the first host ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kill {
    Never,
    /// When the model receives this request, from 1.
    Request(usize),
    /// When this many batches of records were stored.
    Batch(usize),
}

/// The requests and records of a session.
#[derive(Debug)]
struct Trace {
    /// The requests, and the number of those of the first host.
    sent: Vec<Bodies>,
    sent_before: usize,
    /// The number of batches that were stored.
    batches: usize,
    /// The last record before the end of the first host.
    last_record: Option<Record>,
    history: String,
    compactions: Vec<CompactionKind>,
}

async fn start(
    journal: &Arc<MemoryJournal>,
    sent: &Arc<Mutex<Vec<Bodies>>>,
    kill: Kill,
    stored: &Arc<AtomicUsize>,
) -> (Host, Arc<AtomicBool>) {
    let is_dead = Arc::new(AtomicBool::new(false));
    let kill_at = match kill {
        Kill::Request(number) => Some(number),
        Kill::Never | Kill::Batch(_) => None,
    };
    let reader = Reader { sent: Arc::clone(sent), kill_at, is_dead: Arc::clone(&is_dead) };
    let page = tool(spec("page"), |_| async { Ok("some words of a page\n".repeat(70).into()) });
    let agent = AgentConfig::new("reader").with(|agent| {
        agent.tools = vec![ToolPattern::new("*")];
        agent.context.history = HistoryForm::Compact;
        (agent.context.keep_results, agent.context.keep_turns) = (2, 1);
    });
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    config.agents.insert("default".to_owned(), agent);
    let model = ModelConfig::for_source("reader").with(|model| model.context_window = Some(2_000));
    config.models.insert("reader".to_owned(), model);
    let (dead, stored) = (Arc::clone(&is_dead), Arc::clone(stored));
    let engine = Engine::on(Arc::clone(journal), move |inner, batch| {
        if dead.load(Ordering::SeqCst) {
            return AppendStatus::Queued;
        }
        let count = stored.fetch_add(1, Ordering::SeqCst) + 1;
        let status = inner.append(batch);
        if kill == Kill::Batch(count) {
            dead.store(true, Ordering::SeqCst);
        }
        status
    });
    let sources = BTreeMap::from([("reader".to_owned(), Arc::new(reader) as Arc<dyn ModelSource>)]);
    let setup = HostSetup {
        model_sources: ModelSources(sources),
        ..HostSetup::new(config, registry([page]))
    };
    (start_on(setup, engine).await.unwrap(), is_dead)
}

/// Performs the session: gives it each input once it is idle.
async fn perform(kill: Kill) -> Trace {
    let (journal, sent, stored) = (Arc::default(), Arc::default(), Arc::default());
    let (host, is_dead) = start(&journal, &sent, Kill::Never, &stored).await;
    let session = host.open_session("s").await.unwrap();
    host.shutdown().await;
    stored.store(0, Ordering::SeqCst);
    drop((session, is_dead));
    let (mut host, is_dead) = start(&journal, &sent, kill, &stored).await;
    let mut session = host.get_or_open_session(OpenSession::from("s")).await.unwrap();
    let (mut sent_before, mut last_record) = (0, None);
    loop {
        if is_dead.load(Ordering::SeqCst) && last_record.is_none() {
            drop(host);
            sent_before = sent.lock().len();
            last_record = entries(&*journal, session.id()).last().map(|entry| entry.record.clone());
            host = start(&journal, &sent, Kill::Never, &stored).await.0;
            session = host.get_or_open_session(OpenSession::from("s")).await.unwrap();
        }
        if session.state() != SessionState::Running && host.counts().runs == 0 {
            let entries = entries(&*journal, session.id());
            let count = |is_counted: fn(&Record) -> bool| {
                entries.iter().filter(|entry| is_counted(&entry.record)).count()
            };
            let started = count(|record| matches!(record, Record::RunStarted { .. }));
            let ended = count(|record| matches!(record, Record::RunEnded { .. }));
            if ended == RUNS {
                break;
            }
            if started == ended {
                // A dead host may not answer.
                let input = format!("input {started}");
                let _ = timeout(Duration::from_millis(50), session.start_run(input)).await;
            }
        }
        sleep(Duration::from_micros(200)).await;
    }
    let history = session.snapshot().await.unwrap().history;
    let history: Vec<_> = history.iter().map(|m| serde_json::to_string(&**m).unwrap()).collect();
    let all = entries(&*journal, session.id());
    assert!(verify(session.id(), &all).is_empty());
    let compactions = all.iter().filter_map(|entry| match &entry.record {
        Record::Compacted { change, .. } => Some(change.kind()),
        _ => None,
    });
    let trace = Trace {
        sent_before,
        batches: stored.load(Ordering::SeqCst),
        last_record,
        history: history.join("\n"),
        compactions: compactions.collect(),
        sent: sent.lock().clone(),
    };
    host.shutdown().await;
    trace
}

/// Replaces the numbers of attempts: a turn that a kill interrupts goes on with its next attempt, which is part of
/// the references of its results.
fn without_attempts(text: &str) -> String {
    let mut parts = text.split("$VAR_REF{{t");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (turn, rest) = part.split_once('a').unwrap();
        let (_, index) = rest.split_once('c').unwrap();
        out += &format!("$VAR_REF{{{{t{turn}c{index}");
    }
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_point_of_a_compaction_changes_no_request() {
    let whole = timeout(SOON, perform(Kill::Never)).await.unwrap();
    use CompactionKind::{Cleared, Formatted, Summarised};
    for kind in [Cleared, Formatted, Summarised] {
        let count = whole.compactions.iter().filter(|found| **found == kind).count();
        assert!(count >= 2, "{kind:?}: {:?}", whole.compactions);
    }
    let kills = (1..=whole.sent.len()).map(Kill::Request);
    let kills = kills.chain((1..whole.batches).map(Kill::Batch));
    let (mut exact, mut within_compactions) = (0, 0);
    for kill in kills {
        let trace = timeout(SOON, perform(kill)).await.unwrap_or_else(|_| panic!("{kill:?} hangs"));
        let after = &trace.sent[trace.sent_before..];
        let expected = &whole.sent[whole.sent.len() - after.len().min(whole.sent.len())..];
        // Between turns nothing is lost but what is not decided yet.
        let is_within_turn = matches!(
            trace.last_record,
            Some(
                Record::AttemptStarted { .. }
                    | Record::AttemptFailed { .. }
                    | Record::ResponseEnded { .. }
                    | Record::CallIntended { .. }
                    | Record::CallEnded { .. }
            )
        );
        within_compactions +=
            usize::from(matches!(trace.last_record, Some(Record::Compacted { .. })));
        let same = |(one, other): (&Bodies, &Bodies)| match is_within_turn {
            true => without_attempts(&one[0]) == without_attempts(&other[0]),
            false => one == other,
        };
        if let Some(at) = after.iter().zip(expected).position(|pair| !same(pair)) {
            let (found, expected) = (&after[at][0], &expected[at][0]);
            panic!(
                "{kill:?} after {:?}: request {at} of {}\n{found}\ninstead of\n{expected}",
                trace.last_record,
                after.len()
            );
        }
        assert_eq!(trace.compactions, whole.compactions, "{kill:?}");
        let (found, expected) = match is_within_turn {
            true => (without_attempts(&trace.history), without_attempts(&whole.history)),
            false => (trace.history, whole.history.clone()),
        };
        assert_eq!(found, expected, "{kill:?}");
        exact += usize::from(!is_within_turn);
    }
    println!("{exact} kills between turns, {within_compactions} right after a compaction");
    assert!(exact >= 20 && within_compactions >= 6);
}

/// A model that calls a tool in every turn.
struct Endless {
    work: tokio::sync::watch::Sender<Work>,
}

/// The work of an endless run.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    turns: u64,
    summaries: u64,
    /// The bytes of all messages in all requests.
    bytes: usize,
}

impl ModelSource for Endless {
    fn respond(&self, request: ModelRequest) -> ModelStream {
        let bytes: usize = request.messages.iter().map(|message| message_bytes(message)).sum();
        let is_summary = matches!(&**request.messages.last().unwrap(), Message::User { content }
            if content.text().starts_with("Summarise this conversation"));
        let usage = Usage { input_tokens: bytes as u64 / 4, output_tokens: 10, ..Usage::default() };
        let usage = Delta::Usage { usage, raw: "{}".into() };
        let mut turn = 0;
        self.work.send_modify(|work| {
            work.turns += u64::from(!is_summary);
            work.summaries += u64::from(is_summary);
            work.bytes += bytes;
            turn = work.turns;
        });
        let (content, kind) = match is_summary {
            true => (Delta::Text("## Goal\non and on".to_owned()), FinishKind::Stop),
            false => {
                let call = CallDelta {
                    index: Some(0),
                    id: Some(format!("call_{turn:05}")),
                    name: Some("page".into()),
                    arguments: Some(json!({ "page": turn }).to_string()),
                    ..CallDelta::default()
                };
                (Delta::Call(call), FinishKind::ToolCalls)
            }
        };
        let deltas = vec![content, usage, Delta::Finish(FinishReason::new(kind, "end"))];
        Box::pin(futures::stream::once(std::future::ready(Ok(deltas))))
    }
}

fn message_bytes(message: &Message) -> usize {
    match message {
        Message::User { content } | Message::Summary { content } => content.text().len(),
        Message::Assistant(response) => response.text.len() + 40 * response.calls.len(),
        Message::Tool { content, .. } => content.len(),
    }
}

#[test]
fn the_work_of_a_turn_does_not_grow_with_the_session() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (work, mut reached) = tokio::sync::watch::channel(Work::default());
    let page = tool(spec("page"), |_| async { Ok("some words of a page\n".repeat(20).into()) });
    let agent = AgentConfig::new("endless").with(|agent| {
        agent.tools = vec![ToolPattern::new("*")];
        agent.limits.max_turns = None;
        agent.limits.repeat_limit = None;
        agent.limits.run_timeout = None;
    });
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    config.agents.insert("default".to_owned(), agent);
    let model = ModelConfig::for_source("endless").with(|model| model.context_window = Some(4_000));
    config.models.insert("endless".to_owned(), model);
    let stored = Arc::new(AtomicUsize::new(0));
    let engine = {
        let stored = Arc::clone(&stored);
        Engine::on(Arc::default(), move |inner, batch| {
            stored.fetch_add(batch.entries.len(), Ordering::SeqCst);
            inner.append(batch)
        })
    };
    let source = Arc::new(Endless { work }) as Arc<dyn ModelSource>;
    let setup = HostSetup {
        model_sources: ModelSources(BTreeMap::from([("endless".to_owned(), source)])),
        ..HostSetup::new(config, registry([page]))
    };
    let host = runtime.block_on(start_on(setup, engine)).unwrap();
    let session = runtime.block_on(session(&host));
    let run = runtime.block_on(session.start_run("Go on.")).unwrap();
    let mut until = |turns: u64| {
        let (records, before) = (stored.load(Ordering::SeqCst), *reached.borrow());
        let allocations = allocation_counter::measure(|| {
            runtime.block_on(async {
                timeout(SOON, reached.wait_for(|work| work.turns >= turns)).await.unwrap().unwrap();
            });
        });
        let after = *reached.borrow();
        let records = stored.load(Ordering::SeqCst) - records;
        let bytes = after.bytes - before.bytes;
        let summaries = after.summaries - before.summaries;
        println!(
            "up to turn {turns}: {records} records, {summaries} summaries, {bytes} bytes in requests, \
             {} allocations, {} bytes",
            allocations.count_total, allocations.bytes_total
        );
        (bytes, allocations)
    };
    until(100);
    // The first window has compactions already.
    let (bytes, early) = until(300);
    until(800);
    let (late_bytes, late) = until(1_000);
    let is_same = |early: u64, late: u64| late * 4 <= early * 5;
    assert!(is_same(bytes as u64, late_bytes as u64), "{bytes}, {late_bytes}");
    assert!(is_same(early.count_total, late.count_total), "{early:?}, {late:?}");
    assert!(is_same(early.bytes_total, late.bytes_total), "{early:?}, {late:?}");
    let history = runtime.block_on(session.snapshot()).unwrap().history;
    let held: usize = history.iter().map(|message| message_bytes(message)).sum();
    assert!(held < 16_000, "more than the window is in memory: {held} bytes");
    runtime.block_on(session.stop(callsheet_values::record::StopMode::Now)).unwrap();
    runtime.block_on(async { timeout(SOON, run.report).await }).unwrap().unwrap();
    runtime.block_on(host.shutdown());
}

/// A model whose service counts more tokens than the estimate: one for each byte.
struct Dear;

impl ModelSource for Dear {
    fn respond(&self, request: ModelRequest) -> ModelStream {
        let bytes: usize = request.messages.iter().map(|message| message_bytes(message)).sum();
        let usage = Usage { input_tokens: bytes as u64, output_tokens: 1, ..Usage::default() };
        let usage = Delta::Usage { usage, raw: "{}".into() };
        let finish = Delta::Finish(FinishReason::new(FinishKind::Stop, "end"));
        let deltas = vec![Delta::Text("ok".to_owned()), usage, finish];
        Box::pin(futures::stream::once(std::future::ready(Ok(deltas))))
    }
}

#[tokio::test]
async fn the_inputs_that_a_summary_keeps_are_measured_in_the_tokens_of_the_service() {
    let agent = AgentConfig::new("dear").with(|agent| {
        (agent.context.keep_turns, agent.context.keep_user_tokens) = (0, 4_500);
    });
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    config.agents.insert("default".to_owned(), agent);
    config.models.insert("dear".to_owned(), ModelConfig::for_source("dear"));
    let source = Arc::new(Dear) as Arc<dyn ModelSource>;
    let setup = HostSetup {
        model_sources: ModelSources(BTreeMap::from([("dear".to_owned(), source)])),
        ..HostSetup::new(config, registry([]))
    };
    let host = Host::start(setup).await.unwrap();
    let session = session(&host).await;
    let input = "some words of a user\n".repeat(50);
    for _ in 0..8 {
        timeout(SOON, session.run(input.as_str())).await.unwrap().unwrap();
    }
    timeout(SOON, session.compact()).await.unwrap().unwrap();
    let records = session.records(Seq(0)).await.unwrap();
    let kept = records.iter().find_map(|entry| match &entry.record {
        Record::Compacted { change, .. } => match **change {
            Compaction::Summarised { user_messages, .. } => Some(user_messages),
            _ => None,
        },
        _ => None,
    });
    // Each has 1,050 tokens as the service counts, which is three to five times the estimate.
    assert!(kept.is_some_and(|kept| (2..=4).contains(&kept)), "{kept:?}");
}
