//! Measures many sessions on one host, with SQLite in a temporary directory (`TMPDIR`): the memory
//! of an awake and of a hibernating session, the time to wake one, to start a host with all of
//! them, and to continue runs that the last host left unfinished. Each measurement has a baseline:
//! plain SQLite, a plain task, an awake session, or an empty host.
//!
//! Run `cargo bench --bench sessions`, with another number of sessions after `--`. Every part has a
//! time limit of two minutes. The model is a mock provider in the same process.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench that fails is wrong")]

#[path = "shared/report.rs"]
mod report;
#[path = "shared/times.rs"]
mod times;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use callsheet::SessionQuery;
use callsheet::config::{BaseUrl, Config, Durability};
use callsheet::journal::{
    GroupCommit, Journal, JournalObserver, SessionLog, SqliteJournal, SqliteOptions, Urgency,
};
use callsheet::load::memory;
use callsheet::record::{Record, Seq};
use callsheet::runtime::{Host, OpenSession};
use callsheet::types::{Content, Execution, RunEnd, RunId, SessionId};
use callsheet_mock_provider::{MockProvider, MockProviderOptions, Response, Script};
use futures::StreamExt;
use futures::future::join_all;
use report::Report;
use rusqlite::Connection;
use times::{median, quantile};
use tokio::sync::mpsc;
use tokio::time::Instant;

const SESSIONS: usize = 100_000;
/// The number of sessions that are opened concurrently.
const AT_ONCE: usize = 1_000;
/// The number of sessions that are woken one after the other.
const WOKEN: usize = 1_000;
const RECOVERED: usize = 10_000;
const UNFINISHED: usize = 100;
const IDLE: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(120);

/// A temporary directory, deleted on drop.
struct BenchDir(PathBuf);

impl BenchDir {
    fn new(name: &str) -> Self {
        let process = std::process::id();
        let dir = std::env::temp_dir().join(format!("callsheet-sessions-{process}-{name}"));
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
struct Nobody;

impl JournalObserver for Nobody {
    fn stored(&self, _group: GroupCommit) {}
}

/// Returns the resident memory in kilobytes.
fn resident_kb() -> f64 {
    memory().unwrap().now_kb as f64
}

/// A measurement, its baseline, and the ratio.
type Row = [String; 5];

fn row(what: impl Into<String>, it: f64, beside: &str, bare: f64, unit: &str) -> Row {
    let format = |number: f64| format!("{number:.2} {unit}");
    [what.into(), format(it), beside.to_owned(), format(bare), format!("{:.2}", it / bare)]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

async fn model() -> MockProvider {
    let mut response = Response::text("Done.");
    response.repeat = true;
    let script = Script::new([response]);
    let options = MockProviderOptions::default().with(|new| {
        new.script = script;
        new.keep_requests = 0;
    });
    MockProvider::start(options).await.unwrap()
}

async fn host(model: &MockProvider, dir: &Path) -> Host {
    let mut config = Config::default();
    config.set_rehearsal(BaseUrl::parse(&model.base_url()).unwrap());
    config.host.data_dir = dir.to_owned();
    config.host.idle_after = Some(IDLE);
    config.agents.values_mut().for_each(|agent| agent.tools.clear());
    Host::builder().config(config).start().await.unwrap()
}

fn id(at: usize) -> SessionId {
    SessionId::parse(&format!("session-{at:06}")).unwrap()
}

/// Returns the ids of `count` different sessions, spread over all `of`.
fn spread(count: usize, of: usize, salt: usize) -> impl Iterator<Item = SessionId> {
    // The step and the number of sessions have no common factor, so no session is repeated.
    let step = [617_041, 616_793].into_iter().find(|step| !of.is_multiple_of(*step)).unwrap();
    (0..count).map(move |at| id((at * step + salt) % of))
}

async fn until(what: &str, mut there: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !there() {
        assert!(began.elapsed() < PATIENCE, "{what} takes too long");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

/// Returns two rows: the medians and the 99th percentiles.
fn rows(what: &str, mut it: Vec<Duration>, beside: &str, mut bare: Vec<Duration>) -> [Row; 2] {
    let last = [quantile(&mut it, 0.99), quantile(&mut bare, 0.99)];
    [("p50", [median(it), median(bare)]), ("p99", last)]
        .map(|(name, [it, bare])| row(format!("{what}, {name}"), ms(it), beside, ms(bare), "ms"))
}

/// The rows of the same sessions in one table of plain SQLite.
struct Bare {
    connection: Connection,
    _dir: BenchDir,
}

impl Bare {
    /// Stores a row for each session in transactions of [`AT_ONCE`] rows. Returns the elapsed time.
    fn fill(count: usize) -> (Self, Duration) {
        let dir = BenchDir::new("bare");
        let connection = Connection::open(dir.0.join("bare.db")).unwrap();
        connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(())).unwrap();
        connection.pragma_update(None, "synchronous", "full").unwrap();
        let table = "CREATE TABLE sessions(id TEXT NOT NULL UNIQUE, body TEXT NOT NULL) STRICT";
        connection.execute_batch(table).unwrap();
        let mut bare = Self { connection, _dir: dir };
        let began = Instant::now();
        for first in (0..count).step_by(AT_ONCE) {
            let transaction = bare.connection.transaction().unwrap();
            let insert = "INSERT INTO sessions(id, body) VALUES (?1, ?2)";
            let mut statement = transaction.prepare_cached(insert).unwrap();
            for at in first..count.min(first + AT_ONCE) {
                let body = r#"{"session_opened":{"agent":"default","messages":[]}}"#;
                statement.execute((id(at).to_string(), body)).unwrap();
            }
            drop(statement);
            transaction.commit().unwrap();
        }
        (bare, began.elapsed())
    }

    fn list(&self, limit: usize) -> Duration {
        let began = Instant::now();
        let list = "SELECT id, body FROM sessions ORDER BY id LIMIT ?1";
        let mut statement = self.connection.prepare_cached(list).unwrap();
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let rows: Vec<(String, String)> =
            statement.query_map([limit], read).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), limit);
        began.elapsed()
    }
}

/// Returns the memory of a task that waits for messages, in kilobytes.
async fn task_kb(count: usize) -> f64 {
    let before = resident_kb();
    let mut senders = Vec::with_capacity(count);
    for _ in 0..count {
        let (sender, mut receiver) = mpsc::channel::<String>(16);
        tokio::task::spawn(async move { while receiver.recv().await.is_some() {} });
        senders.push(sender);
    }
    tokio::task::yield_now().await;
    (resident_kb() - before) / count as f64
}

/// Measures the same in another process, whose memory is not yet fragmented.
fn task_kb_elsewhere(count: usize) -> f64 {
    let mut itself = Command::new(std::env::current_exe().unwrap());
    let output = itself.args(["tasks", &count.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

async fn many(count: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    let task_kb = task_kb_elsewhere(count);
    let (bare, filled) = Bare::fill(count);
    let (model, dir, empty) = (model().await, BenchDir::new("many"), BenchDir::new("empty"));
    // The first round creates the files.
    host(&model, &empty.0).await.shutdown().await;
    let began = Instant::now();
    host(&model, &empty.0).await.shutdown().await;
    let start_empty = began.elapsed();
    let host_ = host(&model, &dir.0).await;
    let before = resident_kb();
    let began = Instant::now();
    let opened = futures::stream::iter(0..count).map(|at| {
        let open = OpenSession::default().with(|new| new.id = Some(id(at).to_string()));
        host_.open_session(open)
    });
    opened.buffer_unordered(AT_ONCE).for_each(async |session| drop(session.unwrap())).await;
    let each = |took: Duration| took.as_secs_f64() * 1e6 / count as f64;
    let (it, beside) = (each(began.elapsed()), "a row of bare SQLite");
    let what = format!("opened and durable, {AT_ONCE} at once");
    rows.push(row(what, it, beside, each(filled), "us each"));
    let awake = host_.counts().awake;
    let each = (resident_kb() - before) / awake.max(1) as f64;
    rows.push(row(format!("memory of one awake, of {awake}"), each, "a bare task", task_kb, "kB"));
    until("falling asleep", || host_.counts().awake == 0).await;
    let each = (resident_kb() - before) / count as f64;
    let asleep = "memory of one asleep (freed, and kept by the allocator)";
    rows.push(row(asleep, each, "a bare task", task_kb, "kB"));
    rows.extend(wake(&host_, count).await);
    rows.extend(lists(&host_, &bare, count).await);
    host_.shutdown().await;
    drop(host_);
    let began = Instant::now();
    let host_ = host(&model, &dir.0).await;
    assert_eq!(host_.counts().sessions, count);
    host_.shutdown().await;
    let took = ms(began.elapsed());
    rows.push(row(
        "a host that has them, started and shut down",
        took,
        "an empty one",
        ms(start_empty),
        "ms",
    ));
    rows
}

async fn wake(host: &Host, count: usize) -> Vec<Row> {
    let woken = WOKEN.min(count / 4);
    let [mut asleep, mut awake, mut asleep_run, mut awake_run] = [const { Vec::new() }; 4];
    for times in [&mut asleep, &mut awake] {
        for id in spread(woken, count, 0) {
            let began = Instant::now();
            host.session(&id).snapshot().await.unwrap();
            times.push(began.elapsed());
        }
    }
    for times in [&mut asleep_run, &mut awake_run] {
        for id in spread(woken, count, 1) {
            let began = Instant::now();
            let report = host.session(&id).run("Are you there?").await.unwrap();
            times.push(began.elapsed());
            assert_eq!(report.run_end, RunEnd::Answered);
        }
    }
    let mut all = rows("a snapshot of one asleep", asleep, "of one awake", awake).to_vec();
    all.extend(rows("a run of one asleep, durable", asleep_run, "of one awake", awake_run));
    all
}

async fn lists(host: &Host, bare: &Bare, count: usize) -> [Row; 2] {
    let page = SessionQuery::default().with(|new| new.limit = 100);
    let began = Instant::now();
    assert_eq!(host.sessions(page).await.unwrap().len(), 100);
    let some = ms(began.elapsed());
    let began = Instant::now();
    assert_eq!(host.sessions(SessionQuery::default()).await.unwrap().len(), count);
    let all = ms(began.elapsed());
    let beside = "rows of bare SQLite";
    [
        row("a list of 100", some, beside, ms(bare.list(100)), "ms"),
        row("a list of all", all, beside, ms(bare.list(count)), "ms"),
    ]
}

/// Creates a journal in the state in which a killed host leaves it.
async fn killed(dir: &Path) {
    let observer = Arc::new(Nobody);
    let (durability, holder) = (Durability::Relaxed, String::new());
    let options = SqliteOptions::default().with(|new| {
        new.durability = durability;
        new.holder = holder;
        new.observer = observer;
        new.queue_max = 100_000;
    });
    let journal: Arc<dyn Journal> = Arc::new(SqliteJournal::open(dir, options).unwrap());
    let mut logs = Vec::new();
    for at in 0..RECOVERED {
        let log = SessionLog::new(id(at), Arc::clone(&journal), Seq(0), |_| ());
        let mut records = vec![Record::SessionOpened {
            agent: "default".to_owned(),
            messages: Vec::new(),
            metadata: callsheet::Metadata::default(),
            parent: None,
            client_tools: None,
        }];
        if at % (RECOVERED / UNFINISHED) == 0 {
            records.push(Record::RunStarted {
                run_id: RunId(format!("run_{at}").into()),
                input: Content::from("Are you there?"),
                overrides: Default::default(),
                model: "rehearsal".to_owned(),
                execution: Execution::Sequential,
                request: None,
                trace: None,
                metadata: callsheet::Metadata::default(),
                into: None,
                authored_by: None,
            });
        }
        log.append(records, Urgency::Deferrable, || ());
        logs.push(log);
    }
    for log in &logs {
        log.wait_durable(log.last_seq()).await.unwrap();
    }
    journal.close().await;
}

/// Compares a host that continues unfinished runs with an empty one on which as many runs start
/// concurrently.
async fn recover() -> [Row; 2] {
    let (model, dir, empty) = (model().await, BenchDir::new("killed"), BenchDir::new("fresh"));
    // The first round creates the files.
    host(&model, &empty.0).await.shutdown().await;
    let began = Instant::now();
    let fresh = host(&model, &empty.0).await;
    let started = began.elapsed();
    let open = (0..UNFINISHED).map(|_| fresh.open_session(OpenSession::default()));
    let sessions = join_all(open).await.into_iter().map(Result::unwrap).collect::<Vec<_>>();
    let runs = sessions.iter().map(|session| session.run("Are you there?"));
    assert!(join_all(runs).await.iter().all(Result::is_ok));
    let ran = began.elapsed();
    fresh.shutdown().await;
    killed(&dir.0).await;
    let began = Instant::now();
    let host = host(&model, &dir.0).await;
    let restarted = began.elapsed();
    let ended =
        || value(&host, "callsheet_runs_total").is_some_and(|runs| runs >= UNFINISHED as f64);
    until("recovery", ended).await;
    let recovered = began.elapsed();
    host.shutdown().await;
    let what = format!("a host with {RECOVERED} sessions, {UNFINISHED} in the middle of a run");
    let beside = format!("an empty one, and {UNFINISHED} new runs have ended");
    [
        row(format!("{what}, started"), ms(restarted), "an empty one", ms(started), "ms"),
        row(format!("{what}, until these have ended"), ms(recovered), &beside, ms(ran), "ms"),
    ]
}

/// Returns the sum of a metric over its labels.
fn value(host: &Host, name: &str) -> Option<f64> {
    let page = host.telemetry().render();
    let lines = page.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn main() {
    let count = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let count = count.unwrap_or(SESSIONS);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if std::env::args().any(|argument| argument == "tasks") {
        println!("{}", runtime.block_on(task_kb(count)));
        return;
    }
    let mut rows = runtime.block_on(many(count));
    rows.extend(runtime.block_on(recover()));
    let about = format!(
        "{count} sessions on one host, on SQLite. Times are the disk's business too; how they \
         compare is ours."
    );
    let head = ["what", "host", "beside", "bare", "ratio"];
    Report::new("sessions").table(&about, head, rows).print();
}
