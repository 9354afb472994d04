//! What a run costs the journal: counted, not timed.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use callsheet::config::{BaseUrl, Config, Durability, ToolPattern};
use callsheet::journal::{
    Appended, Batch, Entry, Journal, JournalError, JournalObserver, JournalStatus, Listing,
    SqliteJournal, SqliteOptions, Stage, StoredGroup, StoredSession,
};
use callsheet::record::{Record, Seq};
use callsheet::rehearsal::{Call, Rehearsal, Response, Script};
use callsheet::runtime::{Host, HostSetup, OpenSession, RunReport};
use callsheet::tool::{Registry, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use callsheet::types::{Execution, RunEnd, SessionId};
use parking_lot::{Condvar, Mutex};
use serde_json::json;

const CALLS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// Where so many sessions wait for the disk.
const SESSIONS: usize = 64;

/// SQLite on a disk, with batches that nobody waits for held back until one comes that somebody
/// waits for. The engine may do that for a few milliseconds; without a clock the counts are exact.
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
    /// The types of the records of each batch.
    batches: Vec<Vec<String>>,
    /// The sessions of urgent batches.
    waiting: Vec<SessionId>,
    /// How many batches each transaction stored, each with an fsync of its own.
    fsyncs: Vec<usize>,
    /// How many sessions have to wait for the disk before it goes on.
    gate: usize,
}

impl JournalObserver for Counts {
    fn stored(&self, group: StoredGroup) {
        assert!(group.synced, "{group:?}");
        let mut state = self.state.lock();
        state.fsyncs.push(group.batches);
        while state.waiting.len() < state.gate {
            let waited = self.changed.wait_for(&mut state, PATIENCE);
            assert!(!waited.timed_out(), "{} sessions came", state.waiting.len());
        }
        state.gate = 0;
    }
}

impl Counted {
    fn new(name: &str) -> Arc<Self> {
        let process = std::process::id();
        let dir = std::env::temp_dir().join(format!("callsheet-cost-{process}-{name}"));
        let counts = Arc::new(Counts::default());
        let observer = Arc::clone(&counts) as Arc<dyn JournalObserver>;
        let (durability, holder) = (Durability::Strict, String::new());
        let options = SqliteOptions { durability, holder, observer, queue_max: 10_000 };
        let sqlite = SqliteJournal::open(&dir, options).unwrap();
        Arc::new(Self { sqlite, lazy: Mutex::default(), counts, dir })
    }

    /// Forgets what was counted; from now on the disk waits for so many sessions.
    fn reset(&self, gate: usize) {
        *self.counts.state.lock() = State { gate, ..State::default() };
    }

    fn fsyncs(&self) -> usize {
        self.counts.state.lock().fsyncs.len()
    }

    fn pass_on(&self, mut batch: Batch) {
        batch.urgent = true;
        self.sqlite.append(batch);
    }
}

/// One batch of two of the same session.
fn joined(before: Batch, behind: Batch) -> Batch {
    let mut entries = before.entries;
    entries.extend(behind.entries);
    let (mut first, mut second) = (before.tell, behind.tell);
    let tell = Box::new(move |stage: Stage| {
        first(stage.clone());
        second(stage);
    });
    Batch { entries, tell, ..behind }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.sqlite.close();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Journal for Counted {
    fn append(&self, batch: Batch) -> Appended {
        {
            let mut state = self.counts.state.lock();
            state.batches.push(batch.entries.iter().map(|entry| kind(&entry.record)).collect());
            if batch.urgent {
                state.waiting.push(batch.session.clone());
                self.counts.changed.notify_all();
            }
        }
        let mut lazy = self.lazy.lock();
        let batch = match lazy.remove(&batch.session) {
            Some(before) => joined(before, batch),
            None => batch,
        };
        if batch.urgent {
            self.pass_on(batch);
        } else {
            lazy.insert(batch.session.clone(), batch);
        }
        Appended::Queued
    }

    fn flush(&self) {
        self.lazy.lock().drain().for_each(|(_, batch)| self.pass_on(batch));
        self.sqlite.flush();
    }

    fn read(&self, session: &SessionId, after: Seq) -> Result<Vec<Entry>, JournalError> {
        self.sqlite.read(session, after)
    }

    fn find(&self, session: &SessionId) -> Result<Option<StoredSession>, JournalError> {
        self.sqlite.find(session)
    }

    fn list(&self, listing: &Listing) -> Result<Vec<StoredSession>, JournalError> {
        self.sqlite.list(listing)
    }

    fn count(&self) -> Result<usize, JournalError> {
        self.sqlite.count()
    }

    fn remove(&self, sessions: &[SessionId]) -> Result<(), JournalError> {
        self.sqlite.remove(sessions)
    }

    fn status(&self) -> JournalStatus {
        self.sqlite.status()
    }

    fn close(&self) {
        self.sqlite.close();
    }
}

fn kind(record: &Record) -> String {
    serde_json::to_value(record).unwrap()["type"].as_str().unwrap().to_owned()
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Work {
    i: usize,
}

/// Has effects, or none.
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
    _model: Rehearsal,
}

/// Every run is a turn of four calls, and the answer.
async fn world(name: &str, is_pure: bool, execution: Execution, runs: usize) -> World {
    let calls = || (0..CALLS).map(|i| Call::new("work", json!({"i": i})));
    let work = (0..runs).map(|_| Response::calls(calls()));
    let answers = (0..runs).map(|_| Response::text("Done."));
    let script = Script::of(work.chain(answers)).then_done();
    let model = Rehearsal::with_script(script).await.unwrap();
    let mut config = Config::default();
    config.set_rehearsal(BaseUrl::parse(&model.base_url()).unwrap());
    let agent = config.agents.get_mut("default").unwrap();
    agent.tools = vec![ToolPattern::new("*")];
    agent.execution = execution;
    let mut tools = Registry::new();
    tools.register(WorkTool { is_pure }).unwrap();
    let journal = Counted::new(name);
    let shared = Arc::clone(&journal) as Arc<dyn Journal>;
    let host = Host::start_on(HostSetup { config, tools }, shared).await.unwrap();
    World { host, journal, _model: model }
}

/// One run; the batches that it appended, and how many fsyncs it took.
async fn cost_of_run(
    name: &str,
    is_pure: bool,
    execution: Execution,
) -> (Vec<Vec<String>>, usize) {
    let World { host, journal, _model } = world(name, is_pure, execution, 1).await;
    let session = host.open_session(OpenSession::default()).await.unwrap();
    journal.reset(0);
    let run = tokio::time::timeout(PATIENCE, session.run("Work."));
    let report: RunReport = run.await.expect("it ends").unwrap();
    assert_eq!((report.run_end, report.calls.len()), (RunEnd::Answered, CALLS));
    let fsyncs = journal.fsyncs();
    let batches = std::mem::take(&mut journal.counts.state.lock().batches);
    host.shutdown().await;
    (batches, fsyncs)
}

#[tokio::test]
async fn a_sequential_turn_of_four_calls_with_effects_takes_five_fsyncs() {
    let (batches, fsyncs) = cost_of_run("effects", false, Execution::Sequential).await;
    println!("{batches:#?} {fsyncs}");
}

#[tokio::test]
async fn pure() {
    let (batches, fsyncs) = cost_of_run("pure", true, Execution::Sequential).await;
    println!("{batches:#?} {fsyncs}");
}
#[tokio::test]
async fn parallel() {
    let (batches, fsyncs) = cost_of_run("parallel", false, Execution::Parallel { max: 16 }).await;
    println!("{batches:#?} {fsyncs}");
}
