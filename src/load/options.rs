//! The options of a load test.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{ApiKey, BaseUrl};
use crate::types::Execution;

/// The largest number of concurrent sessions.
pub const SESSIONS_MAX: u32 = 10_000;

/// The largest number of runs per session.
pub const RUNS_MAX: u32 = 1_000_000;

/// The options of a load test.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The `base_url` of the service.
    pub base_url: BaseUrl,
    /// The model's name at the service.
    pub model: String,
    /// The API key, if the service needs one.
    pub api_key: Option<ApiKey>,
    /// The number of concurrent sessions.
    pub sessions: u32,
    /// The number of consecutive runs per session.
    pub runs: u32,
    /// The number of runs after which a session is replaced by a new one, so that histories stay
    /// short; `None`: never.
    pub renew_after: Option<u32>,
    /// The execution of calls.
    pub execution: Execution,
    /// True if calls may start while their response still streams.
    pub early_start: bool,
    /// True if answers are streamed.
    pub stream: bool,
    /// The journal of the host.
    pub journal: LoadJournal,
    /// The directory of the journal; `None`: a temporary directory.
    pub data_dir: Option<PathBuf>,
    /// The time limit of the test.
    pub time_max: Duration,
    /// The expected answer, checked in addition to its form.
    pub expected: ExpectedAnswer,
}

impl LoadOptions {
    /// Returns options for one run of one session, with the journal in memory.
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
            time_max: Duration::from_secs(600),
            expected: ExpectedAnswer::default(),
        }
    }
}

/// The expectations of each run's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedAnswer {
    /// The number of calls of the run, in all turns together.
    pub calls: Option<usize>,
    /// The final text.
    pub text: Option<String>,
}

/// The journal of a load test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadJournal {
    /// SQLite, durable against a failure of the machine.
    Strict,
    /// SQLite, durable against a crash of the process.
    Relaxed,
    /// In memory.
    #[default]
    Memory,
}

impl LoadJournal {
    /// The values of the command line option.
    pub const WORDS: [(&str, Self); 3] =
        [("strict", Self::Strict), ("relaxed", Self::Relaxed), ("memory", Self::Memory)];
}
