//! Measures what durability costs a run: the same two turns (four sequential calls, then the
//! answer) with the memory engine, with SQLite, and with SQLite and `durability = "relaxed"`. With the feature `postgres`
//! and the URL of an empty database in `CALLSHEET_BENCH_DATABASE_URL`, also with PostgreSQL.
//!
//! Measures one session and 64 concurrent ones, with pure calls and with calls with effects, whose
//! intents and outcomes must be durable before the run continues. Uses loopback HTTP with a server
//! that answers from memory, and a temporary data directory (`TMPDIR`). Prints times and CPU as
//! ratios to the memory engine, and the numbers of transactions and fsyncs of a run. Absolute times
//! depend on the disk.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench that fails is wrong")]

#[path = "shared/provider.rs"]
mod provider;
#[path = "shared/report.rs"]
mod report;
#[path = "shared/times.rs"]
mod times;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Bytes;
use callsheet::config::{BaseUrl, Config, Durability, ModelConfig, ToolPattern};
use callsheet::journal::{
    GroupCommit, Journal, JournalObserver, MemoryJournal, SqliteJournal, SqliteOptions,
};
use callsheet::load::cpu_time;
use callsheet::runtime::{Host, OpenSession, SessionHandle};
use callsheet::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use callsheet::types::{Execution, RunEnd};
use futures::future::join_all;
use provider::{end, event, serve, stream};
use report::Report;
use serde_json::json;
use times::median;
use tokio::runtime::Runtime;
use tokio::time::Instant;

const CALLS: u32 = 4;
const ROUNDS: usize = 40;

/// A temporary directory, deleted on drop.
struct BenchDir(PathBuf);

impl BenchDir {
    fn new(name: &str) -> Self {
        let dir =
            std::env::temp_dir().join(format!("callsheet-cost-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for BenchDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Work {
    i: u32,
}

/// A tool that returns at once, so that only the work around a tool is measured.
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

/// Returns the two streamed answers.
fn answers() -> (Bytes, Bytes) {
    let mut calls = String::new();
    for index in 0..CALLS {
        let function = json!({"name": "work", "arguments": format!("{{\"i\":{index}}}")});
        let call = json!({"index": index, "id": format!("call_{index}"), "type": "function",
            "function": function});
        calls += &event(json!({"tool_calls": [call]}), None);
    }
    let mut text = String::new();
    for word in "All of the work is done and these are the results.".split_inclusive(' ') {
        text += &event(json!({"content": word}), None);
    }
    (Bytes::from(calls + &end("tool_calls")), Bytes::from(text + &end("stop")))
}

async fn provider() -> String {
    let (calls, text) = answers();
    serve(move |_, is_answered| stream(if is_answered { text.clone() } else { calls.clone() }))
        .await
}

/// Counts the transactions.
#[derive(Debug, Default)]
struct Counter {
    transactions: AtomicU64,
    fsyncs: AtomicU64,
}

impl JournalObserver for Counter {
    fn stored(&self, _: GroupCommit) {
        self.transactions.fetch_add(1, Ordering::Relaxed);
    }

    fn synced(&self, _: Duration) {
        self.fsyncs.fetch_add(1, Ordering::Relaxed);
    }
}

/// A host with one of the engines.
struct World {
    name: &'static str,
    host: Host,
    counter: Arc<Counter>,
    _dir: Option<BenchDir>,
    times: Vec<Duration>,
    cpu: Duration,
    /// The transactions and fsyncs of the runs only.
    counted: (u64, u64),
}

impl World {
    async fn new(name: &'static str, kept: Option<Durability>, base_url: &str, pure: bool) -> Self {
        let mut config = Config::default();
        config.use_model("bench", ModelConfig::new(BaseUrl::parse(base_url).unwrap(), "m"));
        let agent = config.agents.get_mut("default").unwrap();
        agent.tools = vec![ToolPattern::new("*")];
        agent.execution = Execution::Sequential;
        let mut tools = ToolRegistry::new();
        tools.register(WorkTool { is_pure: pure }).unwrap();
        let counter = Arc::new(Counter::default());
        let dir = kept.map(|_| BenchDir::new(&format!("{name}-{pure}")));
        let journal: Arc<dyn Journal> = match kept.zip(dir.as_ref()) {
            #[cfg(feature = "postgres")]
            Some(_) if name == POSTGRES => postgres(&counter).await.unwrap(),
            None => Arc::new(MemoryJournal::new()),
            Some((durability, dir)) => {
                let observer = Arc::clone(&counter) as Arc<dyn JournalObserver>;
                let holder = String::new();
                let options = SqliteOptions::default().with(|new| {
                    new.durability = durability;
                    new.holder = holder;
                    new.observer = observer;
                    new.queue_max = 65_536;
                });
                Arc::new(SqliteJournal::open(&dir.0, options).unwrap())
            }
        };
        let host =
            Host::builder().config(config).tools(tools).journal(journal).start().await.unwrap();
        let (times, cpu, counted) = (Vec::new(), Duration::ZERO, (0, 0));
        Self { name, host, counter, _dir: dir, times, cpu, counted }
    }

    fn counts(&self) -> (u64, u64) {
        let Counter { transactions, fsyncs } = &*self.counter;
        (transactions.load(Ordering::Relaxed), fsyncs.load(Ordering::Relaxed))
    }

    /// Runs once in each of `sessions` new sessions concurrently.
    async fn round(&mut self, count: usize) {
        let open = (0..count).map(|_| self.host.open_session(OpenSession::default()));
        let sessions: Vec<SessionHandle> =
            join_all(open).await.into_iter().map(Result::unwrap).collect();
        let (before, cpu, began) = (self.counts(), cpu_time(), Instant::now());
        let reports = join_all(sessions.iter().map(|session| session.run("work"))).await;
        self.times.push(began.elapsed());
        self.cpu += cpu_time() - cpu;
        assert!(reports.into_iter().all(|report| report.unwrap().run_end == RunEnd::Answered));
        let after = self.counts();
        self.counted.0 += after.0 - before.0;
        self.counted.1 += after.1 - before.1;
    }

    /// Formats the measurement as ratios to the memory engine.
    fn row(&self, of: (Duration, Duration), calls: &str, count: usize) -> [String; 8] {
        let runs = (ROUNDS * count) as f64;
        let (time, cpu) = self.sums();
        [
            count.to_string(),
            calls.to_owned(),
            self.name.to_owned(),
            format!(
                "{:.2} ({:.2} ms)",
                time.as_secs_f64() / of.0.as_secs_f64(),
                time.as_secs_f64() * 1e3
            ),
            format!("{:.2}", cpu.as_secs_f64() / of.1.as_secs_f64()),
            format!("{:.2} ms", cpu.as_secs_f64() * 1e3 / runs),
            format!("{:.2}", self.counted.0 as f64 / runs),
            format!("{:.2}", self.counted.1 as f64 / runs),
        ]
    }

    /// Returns the median time of a round, and the CPU time of all rounds.
    fn sums(&self) -> (Duration, Duration) {
        (median(self.times.clone()), self.cpu)
    }
}

/// The name of a host with the journal in PostgreSQL, and the variable with the URL of its database.
#[cfg(feature = "postgres")]
const POSTGRES: &str = "postgres";
#[cfg(feature = "postgres")]
const URL_VARIABLE: &str = "CALLSHEET_BENCH_DATABASE_URL";

/// Opens the journal in the database, if the environment names one.
#[cfg(feature = "postgres")]
async fn postgres(counter: &Arc<Counter>) -> Option<Arc<dyn Journal>> {
    use callsheet::journal::{PostgresJournal, PostgresOptions};
    let url = std::env::var(URL_VARIABLE).ok()?;
    let options = PostgresOptions::default().with(|options| {
        options.observer = Arc::clone(counter) as Arc<dyn JournalObserver>;
        options.queue_max = 65_536;
    });
    Some(Arc::new(PostgresJournal::open(&url, options).await.unwrap()))
}

async fn compare(base_url: &str, pure: bool, count: usize) -> Vec<[String; 8]> {
    let mut worlds = vec![
        World::new("memory", None, base_url, pure).await,
        World::new("sqlite", Some(Durability::Strict), base_url, pure).await,
        World::new("sqlite, relaxed", Some(Durability::Relaxed), base_url, pure).await,
    ];
    #[cfg(feature = "postgres")]
    if std::env::var_os(URL_VARIABLE).is_some() {
        worlds.push(World::new(POSTGRES, Some(Durability::Strict), base_url, pure).await);
    }
    // The first round opens the connections to the provider.
    for world in &mut worlds {
        world.round(count).await;
        (world.times, world.cpu, world.counted) = (Vec::new(), Duration::ZERO, (0, 0));
    }
    // Measured alternately, so that all run under the same load of the machine.
    for _ in 0..ROUNDS {
        for world in &mut worlds {
            world.round(count).await;
        }
    }
    for world in &worlds {
        world.host.shutdown().await;
    }
    let calls = if pure { "pure" } else { "with effects" };
    let memory = worlds[0].sums();
    worlds.iter().map(|world| world.row(memory, calls, count)).collect()
}

fn main() {
    let runtime = Runtime::new().unwrap();
    let base_url = runtime.block_on(provider());
    let mut rows = Vec::new();
    for pure in [false, true] {
        for count in [1, 64] {
            rows.extend(runtime.block_on(compare(&base_url, pure, count)));
        }
    }
    let about = format!(
        "A run of two turns, {CALLS} calls one after the other and then the answer, beside the \
         same with the memory engine: ratios of the median time of {ROUNDS} rounds and of their \
         CPU. How long an fsync takes is the disk's business."
    );
    let head = [
        "sessions at once",
        "calls",
        "journal",
        "time",
        "CPU",
        "CPU a run",
        "transactions a run",
        "fsyncs a run",
    ];
    Report::new("cost").table(&about, head, rows).print();
}
