//! The messages between the host and a launcher, over a socket that is the launcher's standard input.
//!
//! The host sends the length of a [`LaunchRequest`] together with the three standard streams of the
//! program, then the request as JSON, then single bytes. The launcher sends [`LauncherMessage`]s, one
//! a line.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::SandboxLevel;

/// The byte that asks to end the program with `SIGTERM`.
pub(super) const TERMINATE: u8 = b'T';

/// The program to start.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LaunchRequest {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) cwd: PathBuf,
    pub(super) env: BTreeMap<String, String>,
    pub(super) sandbox: SandboxLevel,
    /// The path of the tool's program. It differs from `program` if that is a wrapper.
    pub(super) readable_program: PathBuf,
    pub(super) max_memory: Option<u64>,
    pub(super) max_processes: Option<u32>,
}

/// A fact about the program.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LauncherMessage {
    /// It runs.
    Started,
    /// It did not start, because its sandbox could not be set up.
    SandboxFailed(String),
    /// It did not start.
    StartFailed(String),
    /// It had more processes than allowed, and was killed.
    TooManyProcesses,
    /// It ended.
    Exited {
        /// The exit status, unless a signal ended it.
        code: Option<i32>,
        /// The number of the signal that ended it.
        signal: Option<i32>,
    },
}
