//! Compares the SQLite journal with plain SQLite: one connection on one thread that stores the same
//! rows in transactions of the same size, without status reports.
//!
//! Each of 1, 64 and 1,000 concurrent sessions appends a record and waits until it is durable.
//! Prints ratios, because absolute times depend on the disk.
#![expect(clippy::unwrap_used, reason = "a bench that fails is wrong")]

#[path = "shared/report.rs"]
mod report;
#[path = "shared/times.rs"]
mod times;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use callsheet::config::Durability;
use callsheet::journal::{
    GroupCommit, Journal, JournalEntry, JournalObserver, SessionLog, SqliteJournal, SqliteOptions,
    Urgency,
};
use callsheet::record::{Record, Seq};
use callsheet::types::{Content, RunId, SessionId};
use criterion::{Criterion, SamplingMode, Throughput};
use futures::future::join_all;
use report::Report;
use rusqlite::Connection;
use times::median;
use tokio::runtime::Runtime;
use tokio::time::Instant;

/// The number of rounds of each measurement.
const PAIRS: usize = 60;

/// A temporary directory, deleted on drop.
struct BenchDir(PathBuf);

impl BenchDir {
    fn new(name: &str) -> Self {
        let dir =
            std::env::temp_dir().join(format!("callsheet-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for BenchDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug)]
struct NoObserver;

impl JournalObserver for NoObserver {
    fn stored(&self, _group: GroupCommit) {}
}

fn record() -> Record {
    Record::InputQueued {
        run_id: RunId("run_0000000000000001".into()),
        input: Content::from("What a user says is this long. ".repeat(8).as_str()),
        overrides: Default::default(),
        request: None,
        trace: None,
        metadata: callsheet::Metadata::default(),
        into: None,
        authored_by: None,
    }
}

/// A journal in a temporary directory, with the logs of its sessions.
struct Sessions {
    logs: Vec<SessionLog>,
    _dir: BenchDir,
}

impl Sessions {
    async fn open(durability: Durability, sessions: usize) -> Self {
        let dir = BenchDir::new(&format!("{durability:?}-{sessions}"));
        let (observer, queue_max) = (Arc::new(NoObserver), 100_000);
        let options = SqliteOptions::default().with(|new| {
            new.durability = durability;
            new.holder = String::new();
            new.observer = observer;
            new.queue_max = queue_max;
        });
        let journal: Arc<dyn Journal> = Arc::new(SqliteJournal::open(&dir.0, options).unwrap());
        let opened = Record::SessionOpened {
            agent: "default".to_owned(),
            messages: Vec::new(),
            metadata: callsheet::Metadata::default(),
            parent: None,
            client_tools: None,
        };
        let logs: Vec<SessionLog> = (0..sessions)
            .map(|at| SessionId::parse(&format!("session-{at}")).unwrap())
            .map(|id| SessionLog::new(id, Arc::clone(&journal), Seq(0), |_| ()))
            .collect();
        for log in &logs {
            log.append(vec![opened.clone()], Urgency::Deferrable, || ());
        }
        join_all(logs.iter().map(|log| log.wait_durable(Seq(1)))).await;
        Self { logs, _dir: dir }
    }

    /// Appends one record to each log, and waits until all are durable.
    async fn round(&self) -> Duration {
        let began = Instant::now();
        join_all(self.logs.iter().map(async |log| {
            log.append(vec![record()], Urgency::Urgent, || ());
            let last = log.last_seq();
            log.wait_durable(last).await.unwrap();
            log.trim_recent(last);
        }))
        .await;
        began.elapsed()
    }
}

/// The same tables in plain SQLite.
struct Bare {
    connection: Connection,
    seq: u64,
    sessions: usize,
    _dir: BenchDir,
}

impl Bare {
    fn open(sessions: usize) -> Self {
        let dir = BenchDir::new(&format!("bare-{sessions}"));
        let connection = connect(&dir.0.join("bare.db"));
        Self { connection, seq: 0, sessions, _dir: dir }
    }

    fn round(&mut self) -> Duration {
        let began = Instant::now();
        self.seq += 1;
        let transaction = self.connection.transaction().unwrap();
        let insert = "INSERT INTO records(session, seq, time, body) VALUES (?1, ?2, ?3, ?4)";
        let mut statement = transaction.prepare_cached(insert).unwrap();
        for session in 0..self.sessions {
            let entry =
                JournalEntry { seq: Seq(self.seq), time: 0, displayed_bytes: 0, record: record() };
            statement.execute((session, self.seq, 0, entry.body())).unwrap();
        }
        drop(statement);
        transaction.commit().unwrap();
        began.elapsed()
    }
}

fn connect(file: &Path) -> Connection {
    let connection = Connection::open(file).unwrap();
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(())).unwrap();
    connection.pragma_update(None, "synchronous", "full").unwrap();
    connection.pragma_update(None, "secure_delete", true).unwrap();
    let tables = "CREATE TABLE records(session INTEGER NOT NULL, seq INTEGER NOT NULL,
            time INTEGER NOT NULL, body TEXT NOT NULL) STRICT;
        CREATE UNIQUE INDEX records_by_place ON records(session, seq);";
    connection.execute_batch(tables).unwrap();
    connection
}

/// Measures both alternately, so that both run under the same load of the machine.
async fn ratio(sessions: &Sessions, bare: &mut Bare) -> [String; 4] {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        with.push(sessions.round().await);
        without.push(bare.round());
    }
    let (with, without) = (median(with).as_secs_f64(), median(without).as_secs_f64());
    let count = sessions.logs.len();
    let second = |time: f64| count as f64 / time;
    [
        count.to_string(),
        format!("{:.0}", second(with)),
        format!("{:.0}", second(without)),
        format!("{:.2}", with / without),
    ]
}

fn main() {
    let runtime = Runtime::new().unwrap();
    let mut criterion = Criterion::default().configure_from_args();
    let mut ratios = Vec::new();
    let mut group = criterion.benchmark_group("journal/append");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for count in [1, 64, 1_000] {
        let sessions = runtime.block_on(Sessions::open(Durability::Strict, count));
        let mut bare = Bare::open(count);
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(format!("sqlite/{count}"), |bencher| {
            bencher.to_async(&runtime).iter_custom(async |rounds| {
                let mut took = Duration::ZERO;
                for _ in 0..rounds {
                    took += sessions.round().await;
                }
                took
            });
        });
        group.bench_function(format!("bare/{count}"), |bencher| {
            bencher.iter_custom(|rounds| (0..rounds).map(|_| bare.round()).sum());
        });
        ratios.push(runtime.block_on(ratio(&sessions, &mut bare)));
    }
    group.finish();
    let about = format!(
        "Sessions that each append a record and wait until it is durable, beside bare SQLite with \
         the same rows in transactions of the same size; medians of {PAIRS} pairs in turn. How \
         long an fsync takes is the disk's business."
    );
    let head = ["sessions", "durable appends a second", "bare", "ratio of the times"];
    Report::new("journal").table(&about, head, ratios).print();
}
