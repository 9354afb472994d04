//! Drives the host: opens the sessions, makes their runs, and measures the process
//! meanwhile.
//!
//! A slot is the number of one of the concurrent sessions. A session that replaces another one
//! takes over its slot.

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
use super::check::{AnswerFault, check};
use super::histogram::DurationHistogram;
use super::options::{LoadJournal, LoadOptions};
use super::process::{cpu_time, memory, raise_open_files};
use super::report::{LoadReport, Measured};
use super::tally::{RunTimes, Tally};
use super::work::{ToolTimings, WorkTool};
use callsheet_host::journal::unix_ms;
use callsheet_host::runtime::{Host, HostError, OpenSession, RunReport, SessionHandle};
use callsheet_tools::ToolRegistry;
use callsheet_values::config::{
    AgentConfig, Config, DEFAULT_AGENT, Durability, JournalEngine, ModelConfig, ToolPattern,
};
use callsheet_values::event::RunStats;

/// The prompt of every run. A scripted service may match it.
const INPUT: &str = "Do the work.";

/// The model's name in the host's configuration.
const MODEL: &str = "load";

/// The largest number of warm-up runs; each has a session of its own.
const WARM_UP_MAX: u32 = 256;

/// The time after which a session without a run hibernates. Replaced sessions that could not hibernate at once
/// do so then, so that they do not fill the memory.
const IDLE_AFTER: Duration = Duration::from_secs(5);

/// The number of sessions that are opened concurrently.
const OPENING_MAX: usize = 64;

/// The interval at which the lag of the event loop is measured.
const LAG_PERIOD: Duration = Duration::from_millis(10);

/// The progress of a load test, for display.
#[derive(Debug, Default)]
pub struct LoadProgress {
    started: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
}

impl LoadProgress {
    /// Returns the numbers of correct and of failed runs so far. A session that could not be replaced counts as a
    /// failed run.
    #[must_use]
    pub fn ended(&self) -> (u64, u64) {
        (self.succeeded.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Returns whether the warm-up is over.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.started.load(Ordering::Relaxed) > 0
    }

    fn unfinished(&self) -> u64 {
        let (succeeded, failed) = self.ended();
        self.started.load(Ordering::Relaxed).saturating_sub(succeeded + failed)
    }
}

/// The state that the sessions of a load test share.
struct LoadTest {
    options: LoadOptions,
    host: Host,
    timings: Arc<ToolTimings>,
    progress: Arc<LoadProgress>,
    tally: Mutex<Tally>,
}

/// Runs the load test until all runs have ended, the time is over, or `stop` is cancelled. Runs that
/// are open then are counted as unfinished.
///
/// # Errors
/// If the test could not start.
pub async fn run(
    options: LoadOptions,
    progress: Arc<LoadProgress>,
    stop: &CancellationToken,
) -> Result<LoadReport, LoadError> {
    raise_open_files(options.sessions)?;
    let deadline = Instant::now() + options.max_time;
    let directory = JournalDirectory::new(&options)?;
    let warm_up = options.sessions.min(WARM_UP_MAX);
    // The warm-up uses the slots after the measured ones.
    let timings = Arc::new(ToolTimings::new(options.sessions + warm_up, unix_ms()));
    let host = start(&options, directory.path(), &timings).await?;
    let (sessions, tally) = (options.sessions, Mutex::new(Tally::new()));
    let load = Arc::new(LoadTest { options, host, timings, progress, tally });
    let opened = async {
        load.warm_up(sessions..sessions + warm_up).await;
        load.open_all().await
    };
    let measured = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(Measured { stopped: true, ..Measured::default() }),
        opened = timeout_at(deadline, opened) => match opened {
            Err(_) => Ok(Measured { timed_out: true, ..Measured::default() }),
            Ok(Err(error)) => Err(LoadError::Host(error)),
            Ok(Ok(opened)) => Ok(load.measure(opened, deadline, stop).await),
        },
    };
    load.host.shutdown().await;
    // The journal has closed its files.
    drop(directory);
    let measured = measured?;
    let tally = load.tally.lock();
    Ok(LoadReport::new(&load.options, &tally, load.progress.unfinished(), &measured))
}

/// Starts a host with limits that fit the load.
async fn start(
    options: &LoadOptions,
    directory: Option<&PathBuf>,
    timings: &Arc<ToolTimings>,
) -> Result<Host, LoadError> {
    let mut config = Config::default();
    let all = options.sessions as usize;
    // On disk, replaced sessions remain and count.
    config.host.max_sessions = usize::MAX;
    config.host.max_concurrent_runs = all;
    config.host.idle_after = Some(IDLE_AFTER);
    // A cancelled load does not wait for open runs.
    config.host.shutdown_grace = Duration::ZERO;
    let on_disk = match (options.journal, directory) {
        (LoadJournal::Strict, Some(directory)) => Some((directory, Durability::Strict)),
        (LoadJournal::Relaxed, Some(directory)) => Some((directory, Durability::Relaxed)),
        (LoadJournal::Memory, _) | (_, None) => None,
    };
    config.journal.engine = JournalEngine::Memory;
    if let Some((directory, durability)) = on_disk {
        config.host.data_dir.clone_from(directory);
        config.journal.engine = JournalEngine::Sqlite;
        config.journal.durability = durability;
    }
    let mut model = ModelConfig::new(options.base_url.clone(), &options.model);
    model.api_key.clone_from(&options.api_key);
    model.stream = options.stream;
    // Failures must be visible, so nothing is retried.
    model.max_attempts = 1;
    model.breaker_failures = None;
    model.max_concurrent_requests = NonZeroU32::new(options.sessions);
    let mut agent = AgentConfig::new(MODEL);
    agent.tools = vec![ToolPattern::new(super::work::NAME)];
    agent.execution = options.execution;
    agent.early_start = options.early_start;
    // Disables references, so that `work` is the only tool, as in the hand-written loop of
    // `benches/load.rs`.
    agent.context.references = false;
    let limits = &mut agent.limits;
    (limits.max_turns, limits.repeat_limit, limits.max_failed_turns) = (None, None, None);
    (limits.max_tool_calls_per_turn, limits.tool_timeout) = (None, None);
    // The load test has its own time limit.
    limits.run_timeout = None;
    config.models.clear();
    config.models.insert(MODEL.to_owned(), model);
    config.agents.clear();
    config.agents.insert(DEFAULT_AGENT.to_owned(), agent);
    let mut tools = ToolRegistry::new();
    tools.register(WorkTool(Arc::clone(timings)))?;
    Ok(Host::builder().config(config).tools(tools).start().await?)
}

impl LoadTest {
    /// Makes one run in each of some separate sessions, so that connections are open and caches
    /// are filled. Its failures are ignored, because they will occur again.
    async fn warm_up(&self, slots: std::ops::Range<u32>) {
        let run = async |slot| {
            if let Ok(session) = self.open(slot, 0).await {
                let _ = session.run(INPUT).await;
                let _ = self.release_session(&session).await;
            }
        };
        let count = slots.len();
        stream::iter(slots).for_each_concurrent(count, run).await;
    }

    /// Opens the sessions. Returns them with their slots.
    async fn open_all(&self) -> Result<Vec<(u32, SessionHandle)>, HostError> {
        stream::iter(0..self.options.sessions)
            .map(async |slot| Ok::<_, HostError>((slot, self.open(slot, 0).await?)))
            .buffer_unordered(OPENING_MAX)
            .try_collect::<Vec<_>>()
            .await
    }

    /// Makes all runs of the opened sessions, and returns what the process used meanwhile.
    async fn measure(
        self: &Arc<Self>,
        opened: Vec<(u32, SessionHandle)>,
        deadline: Instant,
        stop: &CancellationToken,
    ) -> Measured {
        let before = memory();
        let (cpu, began) = (cpu_time(), Instant::now());
        let lag = Arc::new(Mutex::new(DurationHistogram::new()));
        let mut lag_task = JoinSet::new();
        lag_task.spawn(watch_lag(Arc::clone(&lag)));
        let mut tasks = JoinSet::new();
        for (slot, session) in opened {
            tasks.spawn(Arc::clone(self).run_slot(slot, session));
        }
        let all_ended = async { while tasks.join_next().await.is_some() {} };
        let (stopped, timed_out) = tokio::select! {
            biased;
            () = stop.cancelled() => (true, false),
            ended = timeout_at(deadline, all_ended) => (false, ended.is_err()),
        };
        let (cpu, time) = (cpu_time().saturating_sub(cpu), began.elapsed());
        lag_task.abort_all();
        tasks.shutdown().await;
        let lag = lag.lock().percentile(99);
        Measured { cpu, time, before, after: memory(), lag, stopped, timed_out }
    }

    async fn open(&self, slot: u32, generation: u32) -> Result<SessionHandle, HostError> {
        let id = Some(self.timings.session_id(slot, generation));
        self.host.open_session(OpenSession::default().with(|open| open.id = id)).await
    }

    /// Makes the runs of one slot, one after the other.
    async fn run_slot(self: Arc<Self>, slot: u32, mut session: SessionHandle) {
        for number in 0..self.options.runs {
            let is_due = |after: &u32| number > 0 && number.is_multiple_of(*after);
            if self.options.renew_after.as_ref().is_some_and(is_due) {
                match Box::pin(self.renew(slot, number, &session)).await {
                    Ok(new) => session = new,
                    Err(error) => {
                        // Counts as a run that was started and failed.
                        self.progress.started.fetch_add(1, Ordering::Relaxed);
                        return self.record_failure(host_error(&error));
                    }
                }
            }
            self.timings.reset(slot);
            self.progress.started.fetch_add(1, Ordering::Relaxed);
            let began = Instant::now();
            let ended = session.run(INPUT).await;
            self.record_end(slot, began, ended);
        }
    }

    async fn renew(
        &self,
        slot: u32,
        generation: u32,
        old: &SessionHandle,
    ) -> Result<SessionHandle, HostError> {
        self.release_session(old).await?;
        self.open(slot, generation).await
    }

    /// Removes a session after the warm-up or its replacement. In memory it is deleted. On disk it hibernates,
    /// because deletion takes far longer than a run.
    async fn release_session(&self, session: &SessionHandle) -> Result<(), HostError> {
        match self.options.journal {
            LoadJournal::Memory => session.close().await,
            LoadJournal::Strict | LoadJournal::Relaxed => {
                session.hibernate();
                Ok(())
            }
        }
    }

    fn record_end(&self, slot: u32, began: Instant, ended: Result<RunReport, HostError>) {
        let latency = began.elapsed();
        let report = match ended {
            Ok(report) => report,
            Err(error) => return self.record_failure(host_error(&error)),
        };
        if let Err(fault) = check(&report, &self.options.expected) {
            return self.record_failure(fault);
        }
        let measured = self.timings.measured(slot);
        let RunStats { model, tools, overlap, .. } = report.exact;
        let waited_for = (model + tools).saturating_sub(overlap);
        let times = RunTimes {
            latency,
            overhead: latency.saturating_sub(waited_for),
            first_tool: measured.map(|tools| tools.first - began),
            tools_ready: measured.map(|tools| tools.ready - began),
        };
        self.tally.lock().record_success(times, report.calls.len());
        self.progress.succeeded.fetch_add(1, Ordering::Relaxed);
    }

    fn record_failure(&self, fault: AnswerFault) {
        self.tally.lock().record_failure(fault);
        self.progress.failed.fetch_add(1, Ordering::Relaxed);
    }
}

fn host_error(error: &HostError) -> AnswerFault {
    AnswerFault { kind: error.code().to_owned(), example: error.to_string() }
}

/// Measures how late the event loop wakes a sleeping task. Timers have a resolution of a millisecond.
async fn watch_lag(lag: Arc<Mutex<DurationHistogram>>) {
    let mut ticks = interval(LAG_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let due = ticks.tick().await;
        lag.lock().record(due.elapsed());
    }
}

/// The directory of the journal.
#[derive(Debug)]
enum JournalDirectory {
    None,
    Given(PathBuf),
    /// A temporary directory, deleted in the end.
    Temporary(PathBuf),
}

impl JournalDirectory {
    fn new(options: &LoadOptions) -> Result<Self, LoadError> {
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

impl Drop for JournalDirectory {
    fn drop(&mut self) {
        if let Self::Temporary(path) = self {
            // A directory that cannot be deleted is left to the system.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}
