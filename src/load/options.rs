//! What a load is to be.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{ApiKey, BaseUrl};
use crate::types::Execution;

/// How many sessions there may be at once.
pub const SESSIONS_MAX: u32 = 10_000;

/// How many runs each of them may have.
pub const RUNS_MAX: u32 = 1_000_000;

/// What a load is to be.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The address of the service.
    pub base_url: BaseUrl,
    /// The model's name there.
    pub model: String,
    /// What the service wants to see, if anything.
    pub api_key: Option<ApiKey>,
    /// How many sessions run at once.
    pub sessions: u32,
    /// How many runs each has, one after the other.
    pub runs: u32,
    /// After so many runs a session is deleted and a new one takes its place, so that histories stay
    /// short; `None`: never.
    pub renew_after: Option<u32>,
    /// How calls are run.
    pub execution: Execution,
    /// Whether calls may start while their response still comes.
    pub early_start: bool,
    /// Whether answers are streamed.
    pub stream: bool,
    /// Where records go.
    pub journal: LoadJournal,
    /// Where the journal is kept; a temporary directory that is deleted where it is none.
    pub data_dir: Option<PathBuf>,
    /// When it ends, whatever is left to do.
    pub time_max: Duration,
    /// What answers have to be, beside well-formed.
    pub expected: Expected,
}

impl LoadOptions {
    /// One run of one session, in memory.
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
            expected: Expected::default(),
        }
    }
}

/// What is known of each run's answer before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// How many calls the run makes, all turns together.
    pub calls: Option<usize>,
    /// The final text.
    pub text: Option<String>,
}

/// Where a load's records go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadJournal {
    /// To SQLite; what is acknowledged survives the end of the machine.
    Strict,
    /// To SQLite; runs wait for the end of the process alone.
    Relaxed,
    /// Nowhere.
    #[default]
    Memory,
}

impl LoadJournal {
    /// The words for it.
    pub const WORDS: [(&str, Self); 3] =
        [("strict", Self::Strict), ("relaxed", Self::Relaxed), ("memory", Self::Memory)];
}
