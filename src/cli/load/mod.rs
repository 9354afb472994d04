//! A load test: many concurrent sessions, run after run through the whole host, against a service of the Chat
//! Completions wire format: a given one, or the built-in one (the rehearsal model).
//!
//! The host is the one that `serve` runs: actors, context, events, metrics, journal. Its agent has
//! one pure tool, `work`, whose arguments the service chooses.
//! Every answer is checked: a fast wrong answer is an error.
//!
//! The whole process is measured, so the built-in service runs in a process of
//! its own ([`ServiceProcess`]). Starting the host, opening the first sessions and a warm-up are not counted.
//! Times are measured at their source (a run where it is requested and answered, a tool in the tool),
//! never by a subscriber of its events.
//!
//! | file | what it does |
//! | --- | --- |
//! | `command` | `callsheet load` |
//! | `options` | the options of a test |
//! | `drive` | opens sessions and makes their runs |
//! | `service` | the built-in service in a process of its own |
//! | `work` | the tool `work`, and the times that it records |
//! | `check` | decides whether a run's answer is correct |
//! | `tally`, `histogram`, `process` | results, time distributions, resources of the process |
//! | `report` | the report as a table and as JSON |

mod check;
pub mod command;
mod drive;
mod histogram;
mod options;
mod process;
mod report;
mod service;
mod tally;
mod work;

use std::io;

pub use drive::{LoadProgress, run};
pub use options::{ExpectedRun, LoadJournal, LoadOptions, RUNS_MAX, SESSIONS_MAX};
pub use process::{ProcessMemory, cpu_time, memory, raise_open_files};
pub use report::{LoadReport, Median, Quantiles};
pub use service::{ServiceProcess, Workload, serve};
pub use tally::ErrorTally;

use callsheet_host::runtime::HostError;
use callsheet_tools::RegistryError;

/// The reason why a load test could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The process may not open a file for each connection.
    #[error(
        "{sessions} sessions need about {needed} open files, and this process may have {allowed}: \
         raise the limit (ulimit -n {needed}), or lower --sessions"
    )]
    OpenFiles {
        /// The number of sessions.
        sessions: u32,
        /// The number of files that this takes.
        needed: u64,
        /// The limit of open files.
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
