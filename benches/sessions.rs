//! Many sessions on one host, on SQLite in a temporary directory (`TMPDIR`): what one costs in
//! memory awake and asleep, how long it takes to wake, to start a host that has them all, and to
//! go on with runs that the last host left unfinished.
//!
//! `cargo bench --bench sessions`, or with another number of sessions behind `--`. Every part
//! stops waiting after two minutes. The model is the built-in rehearsal server in the same process.
#![expect(clippy::unwrap_used, reason = "a bench that fails is wrong")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use callsheet::config::{BaseUrl, Config, Durability};
use callsheet::journal::{
    Journal, JournalObserver, SessionLog, SqliteJournal, SqliteOptions, StoredGroup, Urgency,
};
use callsheet::record::{Record, Seq};
use callsheet::rehearsal::{Rehearsal, RehearsalOptions, Response, Script};
use callsheet::runtime::{Host, HostSetup, OpenSession, SessionQuery};
use callsheet::tool::Registry;
use callsheet::types::{Content, Execution, RunEnd, RunId, SessionId};
use futures::StreamExt;
use tokio::time::Instant;

const SESSIONS: usize = 100_000;
/// How many are opened at once.
const AT_ONCE: usize = 1_000;
/// How many are woken, each by itself.
const WOKEN: usize = 1_000;
const RECOVERED: usize = 10_000;
const UNFINISHED: usize = 100;
const IDLE: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(120);

/// A directory of its own, deleted with what is in it.
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
    fn stored(&self, _group: StoredGroup) {}
}

/// Resident memory in kilobytes.
fn resident_kb() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn line(what: &str, value: impl std::fmt::Display) {
    println!("  {what:<58} {value}");
}

async fn model() -> Rehearsal {
    let mut response = Response::text("Done.");
    response.repeat = true;
    let script = Script::of([response]);
    let options = RehearsalOptions { script, keep_requests: 0, ..RehearsalOptions::default() };
    Rehearsal::start(options).await.unwrap()
}

async fn host(model: &Rehearsal, dir: &Path) -> Host {
    let mut config = Config::default();
    config.set_rehearsal(BaseUrl::parse(&model.base_url()).unwrap());
    config.host.data_dir = dir.to_owned();
    config.host.idle_after = Some(IDLE);
    Host::start(HostSetup { config, tools: Registry::new() }).await.unwrap()
}

fn id(at: usize) -> SessionId {
    SessionId::parse(&format!("session-{at:06}")).unwrap()
}

/// So many different sessions, spread over all.
fn spread(count: usize, of: usize, salt: usize) -> impl Iterator<Item = SessionId> {
    // A step without a common factor comes to no place twice.
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

fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    format!("p50 {:.2?}, p99 {:.2?}, max {:.2?}", at(0.5), at(0.99), at(1.0))
}

async fn many(count: usize) {
    let (model, dir) = (model().await, BenchDir::new("many"));
    let host_ = host(&model, &dir.0).await;
    let before = resident_kb();
    println!("\n{count} sessions on one host:");
    let began = Instant::now();
    let opened = futures::stream::iter(0..count).map(|at| {
        let open = OpenSession { id: Some(id(at).to_string()), ..OpenSession::default() };
        host_.open_session(open)
    });
    opened.buffer_unordered(AT_ONCE).for_each(async |session| drop(session.unwrap())).await;
    let took = began.elapsed();
    line("opened a second, each durable", format!("{:.0}", count as f64 / took.as_secs_f64()));
    line("resident before", format!("{} MB", before / 1024));
    let (now, awake) = (resident_kb(), host_.counts().awake);
    let each = (now - before) as f64 / awake.max(1) as f64;
    line(&format!("resident with {awake} awake"), format!("{} MB, {each:.2} kB each", now / 1024));
    until("falling asleep", || host_.counts().awake == 0).await;
    let now = resident_kb();
    let each = (now - before) as f64 / count as f64;
    line("resident with all asleep", format!("{} MB, {each:.2} kB each", now / 1024));
    wake(&host_, count).await;
    lists(&host_).await;
    let began = Instant::now();
    host_.shutdown().await;
    line("shut down", format!("{:.2?}", began.elapsed()));
    drop(host_);
    let began = Instant::now();
    let host_ = host(&model, &dir.0).await;
    line("start of a host that has them", format!("{:.2?}", began.elapsed()));
    assert_eq!(host_.counts().sessions, count);
    host_.shutdown().await;
}

async fn wake(host: &Host, count: usize) {
    let woken = WOKEN.min(count / 4);
    let (mut snapshots, mut runs, mut awake) = (Vec::new(), Vec::new(), Vec::new());
    for id in spread(woken, count, 0) {
        let began = Instant::now();
        host.session(&id).snapshot().await.unwrap();
        snapshots.push(began.elapsed());
    }
    for id in spread(woken, count, 1) {
        let began = Instant::now();
        let report = host.session(&id).run("Are you there?").await.unwrap();
        runs.push(began.elapsed());
        assert_eq!(report.run_end, RunEnd::Answered);
    }
    for id in spread(woken, count, 1) {
        let began = Instant::now();
        host.session(&id).run("Still?").await.unwrap();
        awake.push(began.elapsed());
    }
    line(&format!("{woken} woken by a snapshot"), quantiles(snapshots));
    line(&format!("{woken} woken by a run, to its end"), quantiles(runs));
    line("the same, awake", quantiles(awake));
}

async fn lists(host: &Host) {
    let page = SessionQuery { limit: 100, ..SessionQuery::default() };
    let began = Instant::now();
    assert_eq!(host.sessions(page).await.unwrap().len(), 100);
    line("a list of 100", format!("{:.2?}", began.elapsed()));
    let began = Instant::now();
    let all = host.sessions(SessionQuery::default()).await.unwrap().len();
    line(&format!("a list of all {all}"), format!("{:.2?}", began.elapsed()));
}

/// A journal as a host leaves it that is killed.
async fn killed(dir: &Path) {
    let observer = Arc::new(Nobody);
    let (durability, holder) = (Durability::Relaxed, String::new());
    let options = SqliteOptions { durability, holder, observer, queue_max: 100_000 };
    let journal: Arc<dyn Journal> = Arc::new(SqliteJournal::open(dir, options).unwrap());
    let mut logs = Vec::new();
    for at in 0..RECOVERED {
        let log = SessionLog::new(id(at), Arc::clone(&journal), Seq(0), |_| ());
        let mut records =
            vec![Record::SessionOpened { agent: "default".to_owned(), messages: Vec::new() }];
        if at % (RECOVERED / UNFINISHED) == 0 {
            records.push(Record::RunStarted {
                run_id: RunId(format!("run_{at}").into()),
                input: Content::from("Are you there?"),
                overrides: Default::default(),
                model: "rehearsal".to_owned(),
                execution: Execution::Sequential,
                request: None,
                trace: None,
            });
        }
        log.append(records, Urgency::Lazy, || ());
        logs.push(log);
    }
    for log in &logs {
        log.until_durable(log.last()).await.unwrap();
    }
    let done = tokio::task::spawn_blocking(move || journal.close());
    done.await.unwrap();
}

async fn recover() {
    let (model, dir) = (model().await, BenchDir::new("killed"));
    killed(&dir.0).await;
    println!(
        "\n{RECOVERED} sessions, {UNFINISHED} of them in the middle of a run, when a host starts:"
    );
    let began = Instant::now();
    let host = host(&model, &dir.0).await;
    line("started", format!("{:.2?}", began.elapsed()));
    let ended =
        || value(&host, "callsheet_runs_total").is_some_and(|runs| runs >= UNFINISHED as f64);
    until("recovery", ended).await;
    line("all runs have ended", format!("{:.2?}", began.elapsed()));
    let going = value(&host, "callsheet_recovery_seconds").unwrap_or_default();
    line("all runs went on after", format!("{:.2?}", Duration::from_secs_f64(going)));
    host.shutdown().await;
}

/// The sum of a metric over its labels.
fn value(host: &Host, name: &str) -> Option<f64> {
    let page = host.telemetry().render();
    let lines = page.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn main() {
    let count = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(many(count.unwrap_or(SESSIONS)));
    runtime.block_on(recover());
}
