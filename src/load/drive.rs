//! Drives the host: opens the sessions, lets each have its runs, and measures the process
//! meanwhile.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use tokio_util::sync::CancellationToken;

use super::LoadError;
use super::check::{Wrong, check};
use super::histogram::Histogram;
use super::options::{LoadJournal, LoadOptions};
use super::process::{cpu_time, memory, raise_open_files};
use super::report::{LoadReport, Measured};
use super::tally::{RunTimes, Tally};
use super::work::{Seats, Work};
use crate::config::{
    AgentConfig, Config, DEFAULT_AGENT, Durability, JournalEngine, ModelConfig, ToolPattern,
};
use crate::event::RunStats;
use crate::journal::unix_ms;
use crate::runtime::{Host, HostError, HostSetup, OpenSession, RunReport, SessionHandle};
use crate::tool::ToolRegistry;

/// What every run is asked. A service that is scripted may look for it.
const INPUT: &str = "Do the work.";

/// The model's name in the host's configuration.
const MODEL: &str = "load";

/// How many runs the warm-up has at most: one in each of so many sessions.
const WARM_UP_MAX: u32 = 256;

/// After how long without a run a session falls asleep: those that others have taken the place of
/// are not to fill the memory.
const IDLE_AFTER: Duration = Duration::from_secs(5);

/// How many sessions are opened at the same time.
const OPENING_MAX: usize = 64;

/// How often the event loop is asked how late it is.
const LAG_PERIOD: Duration = Duration::from_millis(10);

/// How far a load is, for whoever watches.
#[derive(Debug, Default)]
pub struct Counts {
    started: AtomicU64,
    right: AtomicU64,
    wrong: AtomicU64,
}

impl Counts {
    /// Runs that were right and runs that were not, so far.
    #[must_use]
    pub fn ended(&self) -> (u64, u64) {
        (self.right.load(Ordering::Relaxed), self.wrong.load(Ordering::Relaxed))
    }

    /// Whether the warm-up is over.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.started.load(Ordering::Relaxed) > 0
    }

    fn unfinished(&self) -> u64 {
        let (right, wrong) = self.ended();
        self.started.load(Ordering::Relaxed).saturating_sub(right + wrong)
    }
}

/// What the sessions of a load share.
struct Load {
    options: LoadOptions,
    host: Host,
    seats: Arc<Seats>,
    counts: Arc<Counts>,
    tally: Mutex<Tally>,
}

/// Puts the load on, until all runs have ended, the time is over, or `stop` says so. What was
/// measured by then is measured: runs that go on are counted as unfinished.
///
/// # Errors
/// When it could not begin.
pub async fn run(
    options: LoadOptions,
    counts: Arc<Counts>,
    stop: &CancellationToken,
) -> Result<LoadReport, LoadError> {
    raise_open_files(options.sessions)?;
    let deadline = Instant::now() + options.time_max;
    let directory = Directory::of(&options)?;
    let warm_up = options.sessions.min(WARM_UP_MAX);
    // The warm-up's sessions have places of their own.
    let seats = Arc::new(Seats::new(options.sessions + warm_up, unix_ms()));
    let host = start(&options, directory.path(), &seats).await?;
    let (sessions, tally) = (options.sessions, Mutex::new(Tally::new()));
    let load = Arc::new(Load { options, host, seats, counts, tally });
    let measured = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(Measured::default()),
        warm = timeout_at(deadline, load.warm_up(sessions..sessions + warm_up)) => match warm {
            Err(_) => Ok(Measured { late: true, ..Measured::default() }),
            Ok(()) => load.measure(deadline, stop).await,
        },
    };
    load.host.shutdown().await;
    // Its files are closed by now.
    drop(directory);
    let measured = Measured { stopped: stop.is_cancelled(), ..measured? };
    let tally = load.tally.lock();
    Ok(LoadReport::new(&load.options, &tally, load.counts.unfinished(), &measured))
}

/// Starts the host, as wide as the load is.
async fn start(
    options: &LoadOptions,
    directory: Option<&PathBuf>,
    seats: &Arc<Seats>,
) -> Result<Host, LoadError> {
    let mut config = Config::default();
    let all = options.sessions as usize;
    // Those that others have taken the place of may stay.
    config.host.max_sessions = usize::MAX;
    config.host.max_concurrent_runs = all;
    config.host.idle_after = Some(IDLE_AFTER);
    // Whoever ends the load before its time does not wait for what it has left.
    config.host.shutdown_grace = Duration::ZERO;
    match (options.journal, directory) {
        (LoadJournal::Strict | LoadJournal::Relaxed, Some(directory)) => {
            config.host.data_dir.clone_from(directory);
            config.journal.engine = JournalEngine::Sqlite;
            config.journal.durability = match options.journal {
                LoadJournal::Relaxed => Durability::Relaxed,
                LoadJournal::Strict | LoadJournal::Memory => Durability::Strict,
            };
        }
        (_, _) => config.journal.engine = JournalEngine::Memory,
    }
    let mut model = ModelConfig::new(options.base_url.clone(), &options.model);
    model.api_key.clone_from(&options.api_key);
    model.stream = options.stream;
    // What fails is to be seen, not to be mended.
    model.max_attempts = 1;
    model.breaker_failures = None;
    model.max_concurrent_requests = NonZeroU32::new(options.sessions);
    let mut agent = AgentConfig::new(MODEL);
    agent.tools = vec![ToolPattern::new(super::work::NAME)];
    agent.execution = options.execution;
    agent.early_start = options.early_start;
    let limits = &mut agent.limits;
    (limits.max_turns, limits.repeat_limit, limits.max_failed_turns) = (None, None, None);
    (limits.max_tool_calls_per_turn, limits.tool_timeout) = (None, None);
    // The load has an end of its own.
    limits.run_timeout = None;
    config.models.clear();
    config.models.insert(MODEL.to_owned(), model);
    config.agents.clear();
    config.agents.insert(DEFAULT_AGENT.to_owned(), agent);
    let mut tools = ToolRegistry::new();
    tools.register(Work(Arc::clone(seats)))?;
    Ok(Host::start(HostSetup { config, tools }).await?)
}

impl Load {
    /// One run in each of some sessions that are needed no more: connections are open then, and
    /// what is made once is made. What is wrong with it will show again.
    async fn warm_up(&self, seats: std::ops::Range<u32>) {
        let run = async |seat| {
            if let Ok(session) = self.open(seat, 0).await {
                let _ = session.run(INPUT).await;
                let _ = self.let_go(&session).await;
            }
        };
        let count = seats.len();
        stream::iter(seats).for_each_concurrent(count, run).await;
    }

    async fn measure(
        self: &Arc<Self>,
        deadline: Instant,
        stop: &CancellationToken,
    ) -> Result<Measured, LoadError> {
        let opened = stream::iter(0..self.options.sessions)
            .map(async |seat| Ok::<_, HostError>((seat, self.open(seat, 0).await?)))
            .buffer_unordered(OPENING_MAX)
            .try_collect::<Vec<_>>()
            .await?;
        let before = memory();
        let (cpu, began) = (cpu_time(), Instant::now());
        let over = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let lag = Arc::new(Mutex::new(Histogram::new()));
        tasks.spawn(watch_lag(Arc::clone(&lag), over.clone()));
        for (seat, session) in opened {
            tasks.spawn(Arc::clone(self).sit(seat, session));
        }
        let all_ended = async {
            // The watcher of the lag is the last.
            while tasks.len() > 1 && tasks.join_next().await.is_some() {}
        };
        let in_time = tokio::select! {
            biased;
            () = stop.cancelled() => true,
            ended = timeout_at(deadline, all_ended) => ended.is_ok(),
        };
        let (cpu, time) = (cpu_time().saturating_sub(cpu), began.elapsed());
        over.cancel();
        tasks.shutdown().await;
        let lag = lag.lock().percentile(99);
        Ok(Measured { cpu, time, before, after: memory(), lag, stopped: false, late: !in_time })
    }

    async fn open(&self, seat: u32, generation: u32) -> Result<SessionHandle, HostError> {
        let id = Some(self.seats.session_id(seat, generation));
        self.host.open_session(OpenSession { id, ..OpenSession::default() }).await
    }

    /// The runs of one seat, one after the other.
    async fn sit(self: Arc<Self>, seat: u32, mut session: SessionHandle) {
        for number in 0..self.options.runs {
            let is_due = |after: &u32| number > 0 && number.is_multiple_of(*after);
            if self.options.renew_after.as_ref().is_some_and(is_due) {
                match self.renew(seat, number, &session).await {
                    Ok(new) => session = new,
                    Err(error) => return self.wrong(host_error(&error)),
                }
            }
            self.seats.begin(seat);
            self.counts.started.fetch_add(1, Ordering::Relaxed);
            let began = Instant::now();
            let ended = session.run(INPUT).await;
            self.ended(seat, began, ended);
        }
    }

    async fn renew(
        &self,
        seat: u32,
        generation: u32,
        old: &SessionHandle,
    ) -> Result<SessionHandle, HostError> {
        self.let_go(old).await?;
        self.open(seat, generation).await
    }

    /// Deletes a session that is needed no more, unless it is on a disk: that takes far longer than
    /// runs do. There it falls asleep, so that only as many as run are in memory.
    async fn let_go(&self, session: &SessionHandle) -> Result<(), HostError> {
        match self.options.journal {
            LoadJournal::Memory => session.close().await,
            LoadJournal::Strict | LoadJournal::Relaxed => {
                session.hibernate();
                Ok(())
            }
        }
    }

    fn ended(&self, seat: u32, began: Instant, ended: Result<RunReport, HostError>) {
        let latency = began.elapsed();
        let report = match ended {
            Ok(report) => report,
            Err(error) => return self.wrong(host_error(&error)),
        };
        if let Err(wrong) = check(&report, &self.options.expected) {
            return self.wrong(wrong);
        }
        let worked = self.seats.worked(seat);
        let RunStats { model, tools, overlap, .. } = report.exact;
        let waited_for = (model + tools).saturating_sub(overlap);
        let times = RunTimes {
            latency,
            overhead: latency.saturating_sub(waited_for),
            first_tool: worked.map(|worked| worked.first - began),
            tools_ready: worked.map(|worked| worked.ready - began),
        };
        self.tally.lock().right(times, report.calls.len());
        self.counts.right.fetch_add(1, Ordering::Relaxed);
    }

    fn wrong(&self, wrong: Wrong) {
        self.tally.lock().wrong(wrong);
        self.counts.wrong.fetch_add(1, Ordering::Relaxed);
    }
}

fn host_error(error: &HostError) -> Wrong {
    Wrong { kind: error.code().to_owned(), example: error.to_string() }
}

/// How late the event loop wakes a task that sleeps. Timers have a grain of a millisecond.
async fn watch_lag(lag: Arc<Mutex<Histogram>>, over: CancellationToken) {
    let mut ticks = interval(LAG_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while let Some(due) = over.run_until_cancelled(ticks.tick()).await {
        lag.lock().record(due.elapsed());
    }
}

/// Where the journal is.
#[derive(Debug)]
enum Directory {
    None,
    Given(PathBuf),
    /// Deleted with what is in it.
    Temporary(PathBuf),
}

impl Directory {
    fn of(options: &LoadOptions) -> Result<Self, LoadError> {
        match (options.journal, &options.data_dir) {
            (LoadJournal::Memory, _) => Ok(Self::None),
            (LoadJournal::Strict | LoadJournal::Relaxed, Some(path)) => {
                Ok(Self::Given(path.clone()))
            }
            (LoadJournal::Strict | LoadJournal::Relaxed, None) => {
                let name = format!("callsheet-load-{}-{:x}", std::process::id(), unix_ms());
                let path = std::env::temp_dir().join(name);
                std::fs::create_dir(&path).map_err(LoadError::Directory)?;
                Ok(Self::Temporary(path))
            }
        }
    }

    fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::None => None,
            Self::Given(path) | Self::Temporary(path) => Some(path),
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Self::Temporary(path) = self {
            // What cannot be deleted is the system's to tidy up.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}
