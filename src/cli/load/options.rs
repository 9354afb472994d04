//! The options of a load test.

use std::path::PathBuf;
use std::time::Duration;

use callsheet_values::config::{ApiKey, BaseUrl};
use callsheet_values::types::Execution;

/// Maximum number of concurrent sessions, which the command line enforces ([`run`](super::run) does not).
pub const SESSIONS_MAX: u32 = 10_000;

/// Maximum number of runs per session, which the command line enforces ([`run`](super::run) does not).
pub const RUNS_MAX: u32 = 1_000_000;

/// The options of a load test.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The `base_url` of the service, whose wire format is Chat Completions.
    pub base_url: BaseUrl,
    /// The model's name at the service.
    pub model: String,
    /// The API key of the service. `None`: requests have none.
    pub api_key: Option<ApiKey>,
    /// The number of concurrent sessions.
    pub sessions: u32,
    /// The number of runs per session, one after the other. Sessions that replace each other count as one.
    pub runs: u32,
    /// The number of runs after which a new session replaces the old one, so that histories stay short.
    /// `None`: never.
    pub renew_after: Option<u32>,
    /// The execution of calls: sequential or parallel.
    pub execution: Execution,
    /// True if calls may start while their response still streams.
    pub early_start: bool,
    /// True if the host requests streamed responses, false if it requests plain ones.
    pub stream: bool,
    /// The journal of the host.
    pub journal: LoadJournal,
    /// The directory of a journal on disk, which is kept. `None`: a temporary directory, which is deleted at
    /// the end.
    pub data_dir: Option<PathBuf>,
    /// The time limit of the whole test, with start and warm-up, which does not interrupt the start of the host.
    /// Runs that are open then are counted as unfinished.
    pub max_time: Duration,
    /// The expected calls and text of each run. Other checks do not depend on it: the run must be answered,
    /// and each call must have succeeded.
    pub expected: ExpectedRun,
}

impl LoadOptions {
    /// Returns options for one run of one session, with the journal in memory and a time limit of 10 minutes.
    #[must_use]
    pub fn new(base_url: BaseUrl, model: impl Into<String>) -> Self {
        Self {
            base_url,
            model: model.into(),
            api_key: None,
            sessions: 1,
            runs: 1,
            renew_after: None,
            execution: Execution::Sequential,
            early_start: true,
            stream: true,
            journal: LoadJournal::Memory,
            data_dir: None,
            max_time: Duration::from_secs(600),
            expected: ExpectedRun::default(),
        }
    }
}

/// The expected calls and text of each run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedRun {
    /// The number of calls of the run, in all turns together. `None`: any number.
    pub calls: Option<usize>,
    /// The final text. `None`: any text.
    pub text: Option<String>,
}

/// The journal of a load test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadJournal {
    /// SQLite. A record is stored when it is synced to the disk, so that it survives a failure of the
    /// machine.
    Strict,
    /// SQLite. A record is stored when it is written, so that it survives a crash of the process.
    Relaxed,
    /// In memory. Nothing is written to a disk.
    #[default]
    Memory,
}

impl LoadJournal {
    /// The names of the journals on the command line.
    pub const NAMES: [(&str, Self); 3] =
        [("strict", Self::Strict), ("relaxed", Self::Relaxed), ("memory", Self::Memory)];
}
