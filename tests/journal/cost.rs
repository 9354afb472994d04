//! The number of appends, transactions and fsyncs of a run.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use callsheet::config::{BaseUrl, Config, Durability, ToolPattern};
use callsheet::journal::{
    AppendStatus, Batch, BatchStatus, GroupCommit, Journal, JournalEntry, JournalFuture,
    JournalObserver, JournalStatus, SessionQuery, SessionSummary, SqliteJournal, SqliteOptions,
};
use callsheet::record::{Record, Seq};
use callsheet::runtime::{Host, OpenSession};
use callsheet::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use callsheet::types::{Execution, RunEnd, SessionId};
use callsheet_mock_provider::{Call, MockProvider, Response, Script};
use futures::future::{BoxFuture, join_all};
use parking_lot::{Condvar, Mutex};
use serde_json::json;

const CALLS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts the sessions that wait for the disk.
const SESSIONS: usize = 64;

/// A SQLite journal that holds back batches that are not urgent until an urgent one of their session, or a flush,
/// arrives. The engine may do so for a few milliseconds; without a clock the counts are exact.
#[derive(Debug)]
struct Counted {
    sqlite: SqliteJournal,
    lazy: Mutex<HashMap<SessionId, Batch>>,
    counts: Arc<Counts>,
    dir: PathBuf,
}

#[derive(Debug, Default)]
struct Counts {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The record types of each batch.
    batches: Vec<Vec<String>>,
    /// The sessions of urgent batches.
    waiting: HashSet<SessionId>,
    /// Number of batches of each transaction.
    transactions: Vec<usize>,
    fsyncs: usize,
    /// Number of sessions that must wait for the disk before it continues.
    gate: usize,
}

impl JournalObserver for Counts {
    fn stored(&self, group: GroupCommit) {
        let mut state = self.state.lock();
        state.transactions.push(group.batches);
        while state.waiting.len() < state.gate {
            let waited = self.changed.wait_for(&mut state, PATIENCE);
            assert!(!waited.timed_out(), "{} sessions came", state.waiting.len());
        }
        state.gate = 0;
    }

    fn synced(&self, _: Duration) {
        self.state.lock().fsyncs += 1;
    }
}

impl Counted {
    fn new(name: &str) -> Arc<Self> {
        let process = std::process::id();
        let dir = std::env::temp_dir().join(format!("callsheet-cost-{process}-{name}"));
        let counts = Arc::new(Counts::default());
        let observer = Arc::clone(&counts) as Arc<dyn JournalObserver>;
        let (durability, holder) = (Durability::Strict, String::new());
        let options = SqliteOptions::default().with(|new| {
            new.durability = durability;
            new.holder = holder;
            new.observer = observer;
            new.queue_max = 10_000;
        });
        let sqlite = SqliteJournal::open(&dir, options).unwrap();
        Arc::new(Self { sqlite, lazy: Mutex::default(), counts, dir })
    }

    /// Resets the counts. From now on the disk waits for this number of sessions.
    fn reset(&self, gate: usize) {
        *self.counts.state.lock() = State { gate, ..State::default() };
    }

    fn fsyncs(&self) -> usize {
        self.counts.state.lock().fsyncs
    }

    fn pass_on(&self, mut batch: Batch) {
        batch.urgent = true;
        self.sqlite.append(batch);
    }
}

/// Joins two batches of the same session.
fn joined(before: Batch, mut after: Batch) -> Batch {
    let mut entries = before.entries;
    entries.append(&mut after.entries);
    let (mut first, mut second) =
        (before.on_status, std::mem::replace(&mut after.on_status, Box::new(|_| ())));
    after.on_status = Box::new(move |control: BatchStatus| {
        first(control.clone());
        second(control);
    });
    after.entries = entries;
    after
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Journal for Counted {
    fn append(&self, batch: Batch) -> AppendStatus {
        let kinds = batch.entries.iter().map(|entry| kind(&entry.record)).collect();
        self.counts.state.lock().batches.push(kinds);
        let mut lazy = self.lazy.lock();
        let batch = match lazy.remove(&batch.session) {
            Some(before) => joined(before, batch),
            None => batch,
        };
        let session = batch.session.clone();
        if batch.urgent {
            self.pass_on(batch);
            // Counted when it is in the queue, so the disk may continue.
            self.counts.state.lock().waiting.insert(session);
            self.counts.changed.notify_all();
        } else {
            lazy.insert(session, batch);
        }
        AppendStatus::Queued
    }

    fn flush(&self, session: &SessionId) {
        if let Some(batch) = self.lazy.lock().remove(session) {
            self.pass_on(batch);
        }
        self.sqlite.flush(session);
    }

    fn read_some<'a>(
        &'a self,
        session: &'a SessionId,
        after: Seq,
        limit: usize,
    ) -> JournalFuture<'a, Vec<JournalEntry>> {
        self.sqlite.read_some(session, after, limit)
    }

    fn find<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Option<SessionSummary>> {
        self.sqlite.find(session)
    }

    fn list<'a>(&'a self, listing: &'a SessionQuery) -> JournalFuture<'a, Vec<SessionSummary>> {
        self.sqlite.list(listing)
    }

    fn count(&self) -> JournalFuture<'_, usize> {
        self.sqlite.count()
    }

    fn remove<'a>(&'a self, sessions: &'a [SessionId]) -> JournalFuture<'a, ()> {
        self.sqlite.remove(sessions)
    }

    fn put_document<'a>(
        &'a self,
        key: &'a str,
        text: &'a str,
        used_by: Option<&'a SessionId>,
    ) -> JournalFuture<'a, ()> {
        self.sqlite.put_document(key, text, used_by)
    }

    fn document<'a>(&'a self, key: &'a str) -> JournalFuture<'a, Option<String>> {
        self.sqlite.document(key)
    }

    fn status(&self) -> JournalStatus {
        self.sqlite.status()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.sqlite.close()
    }
}

fn kind(record: &Record) -> String {
    serde_json::to_value(record).unwrap()["type"].as_str().unwrap().to_owned()
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Work {
    i: usize,
}

/// A tool with or without effects.
struct WorkTool {
    is_pure: bool,
}

#[async_trait]
impl Tool for WorkTool {
    fn spec(&self) -> ToolSpec {
        let spec = ToolSpec::new::<Work>("work", "Works.");
        if self.is_pure { spec.pure() } else { spec }
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let input: Work = context.input()?;
        Ok(format!("r{}", input.i).into())
    }
}

struct World {
    host: Host,
    journal: Arc<Counted>,
    _model: MockProvider,
}

/// Returns the responses of concurrent runs: each has a turn of four calls and then an answer.
fn work(runs: usize) -> Vec<Response> {
    let calls = || (0..CALLS).map(|i| Call::new("work", json!({"i": i})));
    let work = (0..runs).map(|_| Response::calls(calls()));
    work.chain((0..runs).map(|_| Response::text("Done."))).collect()
}

async fn world(name: &str, is_pure: bool, execution: Execution, script: Vec<Response>) -> World {
    let model = MockProvider::with_script(Script::new(script).then_done()).await.unwrap();
    let mut config = Config::default();
    config.set_rehearsal(BaseUrl::parse(&model.base_url()).unwrap());
    let agent = config.agents.get_mut("default").unwrap();
    agent.tools = vec![ToolPattern::new("*")];
    agent.execution = execution;
    let mut tools = ToolRegistry::new();
    tools.register(WorkTool { is_pure }).unwrap();
    let journal = Counted::new(name);
    let shared = Arc::clone(&journal) as Arc<dyn Journal>;
    let host = Host::builder().config(config).tools(tools).journal(shared).start().await.unwrap();
    World { host, journal, _model: model }
}

impl World {
    /// Runs one prompt in a new session. Returns its batches and the number of fsyncs.
    async fn cost_of_run(&self, calls: usize) -> (Vec<Vec<String>>, usize) {
        let session = self.host.open_session(OpenSession::default()).await.unwrap();
        self.journal.reset(0);
        let report = within(session.run("Work.")).await.unwrap();
        assert_eq!((report.run_end, report.calls.len()), (RunEnd::Answered, calls));
        let fsyncs = self.journal.fsyncs();
        let batches = std::mem::take(&mut self.journal.counts.state.lock().batches);
        self.host.shutdown().await;
        (batches, fsyncs)
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

#[tokio::test]
async fn a_turn_of_four_calls_with_effects_takes_five_fsyncs_and_the_answer_one_more() {
    let world = world("effects", false, Execution::Sequential, work(1)).await;
    let (batches, fsyncs) = world.cost_of_run(CALLS).await;
    let expected: [&[&str]; 10] = [
        &["run_started"],
        &["attempt_started"],
        // From here on the batches are urgent.
        &["response_ended", "call_intended"],
        &["call_ended", "call_intended"],
        &["call_ended", "call_intended"],
        &["call_ended", "call_intended"],
        &["call_ended", "turn_committed"],
        // These records are stored together.
        &["attempt_started"],
        &["response_ended", "turn_committed"],
        &["run_ended"],
    ];
    assert_eq!(batches, expected);
    assert_eq!(fsyncs, 6);
}

#[tokio::test]
async fn the_intents_of_calls_in_parallel_are_one_append() {
    let world = world("parallel", false, Execution::Parallel { max: 16 }, work(1)).await;
    let (batches, fsyncs) = world.cost_of_run(CALLS).await;
    let intents = ["call_intended"; CALLS].map(str::to_owned);
    let asked = batches.iter().find(|batch| batch[0] == "response_ended").unwrap();
    assert_eq!(asked[1..], intents, "{batches:?}");
    // The outcomes arrive separately or together.
    assert!((3..=2 + CALLS).contains(&fsyncs), "{fsyncs}: {batches:?}");
}

#[tokio::test]
async fn pure_calls_have_no_intents() {
    let world = world("pure", true, Execution::Sequential, work(1)).await;
    let (batches, fsyncs) = world.cost_of_run(CALLS).await;
    let all = batches.concat();
    let count = |kind: &str| all.iter().filter(|record| *record == kind).count();
    assert_eq!((count("call_intended"), count("call_ended")), (0, CALLS), "{batches:?}");
    assert!(fsyncs <= 2 + CALLS, "{fsyncs}: {batches:?}");
}

#[tokio::test]
async fn an_answer_alone_takes_one_fsync() {
    let script = vec![Response::text("Here I am.")];
    let world = world("answer", false, Execution::Sequential, script).await;
    let (batches, fsyncs) = world.cost_of_run(0).await;
    assert_eq!(batches.concat().first().map(String::as_str), Some("run_started"));
    assert_eq!(batches.concat().last().map(String::as_str), Some("run_ended"));
    assert_eq!(fsyncs, 1, "{batches:?}");
}

#[tokio::test]
async fn waiting_sessions_share_an_fsync() {
    let World { host, journal, _model } =
        world("many", false, Execution::Sequential, work(SESSIONS)).await;
    let open = (0..SESSIONS).map(|_| host.open_session(OpenSession::default()));
    let sessions = join_all(open).await.into_iter().map(Result::unwrap).collect::<Vec<_>>();
    journal.reset(SESSIONS);
    let reports = within(join_all(sessions.iter().map(|session| session.run("Work.")))).await;
    assert!(reports.into_iter().all(|report| report.unwrap().run_end == RunEnd::Answered));
    let State { transactions, fsyncs, .. } = std::mem::take(&mut *journal.counts.state.lock());
    // The others arrived during the first fsync.
    assert!(transactions[1] >= SESSIONS - transactions[0], "{transactions:?}");
    assert!(fsyncs < SESSIONS * 6, "{fsyncs}: {transactions:?}");
    host.shutdown().await;
}
