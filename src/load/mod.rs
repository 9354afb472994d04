//! A load test: many sessions at once, run after run through the whole host, against a real
//! service of the Chat Completions wire.
//!
//! The host is the one that `serve` runs: actors, context, events, metrics, journal. Its agent has
//! one pure tool, `work`, so that whoever writes the service says what the tools do.
//! Every answer is checked: a fast wrong answer is an error.
//!
//! What is measured is the whole process, so a service that runs beside it runs in a process of
//! its own ([`Service`]). Starting the host, opening the sessions and a warm-up are not counted.
//! Times are taken where things happen (a run where it is asked for and answered, a tool in the
//! tool), never by a watcher of its events; they go into histograms of a fixed size.

mod check;
mod drive;
mod histogram;
mod options;
mod process;
mod report;
mod service;
mod tally;
mod work;

use std::io;

pub use drive::{Counts, run};
pub use options::{Expected, LoadJournal, LoadOptions, RUNS_MAX, SESSIONS_MAX};
pub use process::{Memory, cpu_time, memory, raise_open_files};
pub use report::{LoadReport, Median, Quantiles};
pub use service::{Service, Workload, serve};
pub use tally::ErrorKind;

use crate::runtime::HostError;
use crate::tool::RegistryError;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The process may not open as many files as there are connections.
    #[error(
        "{sessions} sessions need about {needed} open files, and this process may have {allowed}: \
         raise the limit (ulimit -n {needed}), or lower --sessions"
    )]
    OpenFiles {
        /// How many sessions there are to be.
        sessions: u32,
        /// How many files that takes.
        needed: u64,
        /// How many there may be.
        allowed: u64,
    },
    /// The host could not be started, or its sessions could not be opened.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The tool could not be registered.
    #[error(transparent)]
    Tool(#[from] RegistryError),
    /// There is no directory for the journal.
    #[error("make a directory for the journal: {0}")]
    Directory(io::Error),
    /// The built-in service did not start.
    #[error("start the rehearsal model in a process of its own: {0}")]
    Service(String),
}
