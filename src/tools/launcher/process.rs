//! A program that was started by a launcher, with its pipes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

use super::SUBCOMMAND;
use super::protocol::{LaunchRequest, LauncherMessage, TERMINATE, send_streams};

/// Time in which a launcher answers, also on a machine that starts many at once. A binary that does not
/// answer is not a launcher.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);

/// A started program. Dropping its `control` kills it with all descendants.
#[derive(Debug)]
pub struct LaunchedProcess {
    /// The pipe to its standard input.
    pub stdin: pipe::Sender,
    /// The pipe from its standard output. Descendants may hold it open.
    pub stdout: pipe::Receiver,
    /// The pipe from its standard error. Descendants may hold it open.
    pub stderr: pipe::Receiver,
    /// The connection to its launcher.
    pub control: ProcessControl,
}

/// The connection to the launcher of a program. Dropping it kills the program with all descendants.
#[derive(Debug)]
pub struct ProcessControl {
    socket: BufReader<UnixStream>,
    launcher: Child,
    /// The beginning of a message that has not arrived whole.
    partial: Vec<u8>,
    has_exceeded_processes: bool,
}

/// The end of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// It exited with this status.
    Exited(i32),
    /// This signal ended it.
    Signalled(i32),
    /// It was killed because it had more processes than allowed.
    TooManyProcesses,
    /// Its launcher was killed.
    LauncherDied,
}

impl LaunchedProcess {
    /// Starts a launcher, which starts the program. Must be called within an async runtime.
    ///
    /// # Errors
    /// If the launcher or the program does not start.
    pub(super) async fn start(
        binary: PathBuf,
        request: &LaunchRequest,
    ) -> Result<Self, StartError> {
        let starting = Self::start_unbounded(&binary, request);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, starting).await {
            Ok(started) => started,
            Err(_) => Err(StartError::LauncherDidNotAnswer { binary }),
        }
    }

    async fn start_unbounded(
        binary: &PathBuf,
        request: &LaunchRequest,
    ) -> Result<Self, StartError> {
        let (own_end, launchers_end) = StdUnixStream::pair()?;
        let launcher = Command::new(binary)
            .arg0("callsheet")
            .arg(SUBCOMMAND)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(launchers_end)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let (stdin_end, stdin) = io::pipe()?;
        let (stdout, stdout_end) = io::pipe()?;
        let (stderr, stderr_end) = io::pipe()?;
        let body = serde_json::to_vec(request).map_err(io::Error::other)?;
        // A binary that has ended already, or ends without reading, is not a launcher.
        let kinds_after_end = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
        let send_error = |error: io::Error| {
            if kinds_after_end.contains(&error.kind()) {
                StartError::LauncherDidNotAnswer { binary: binary.clone() }
            } else {
                StartError::Io(error)
            }
        };
        let streams = [stdin_end.as_fd(), stdout_end.as_fd(), stderr_end.as_fd()];
        send_streams(&own_end, body.len(), &streams).map_err(send_error)?;
        drop((stdin_end, stdout_end, stderr_end));
        own_end.set_nonblocking(true)?;
        let mut socket = BufReader::new(UnixStream::from_std(own_end)?);
        socket.write_all(&body).await.map_err(send_error)?;
        let partial = Vec::new();
        let mut control =
            ProcessControl { socket, launcher, partial, has_exceeded_processes: false };
        match control.next_message().await {
            Ok(Some(LauncherMessage::Started)) => {}
            Ok(Some(LauncherMessage::SandboxFailed(message))) => {
                return Err(StartError::Sandbox(message));
            }
            Ok(Some(LauncherMessage::StartFailed(message))) => {
                return Err(StartError::Program(message));
            }
            // The processes are counted before the launcher reports the start.
            Ok(Some(LauncherMessage::TooManyProcesses)) => {
                let message =
                    "it was killed at its start: it had more processes than max_processes";
                return Err(StartError::Program(message.to_owned()));
            }
            Ok(None | Some(LauncherMessage::Exited { .. })) | Err(_) => {
                return Err(StartError::LauncherDidNotAnswer { binary: binary.clone() });
            }
        }
        Ok(Self {
            stdin: pipe::Sender::from_owned_fd(stdin.into())?,
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
            control,
        })
    }
}

impl ProcessControl {
    /// Waits for the end of the program. Its descendants may still run. Cancel safe.
    pub async fn wait(&mut self) -> ProcessEnd {
        loop {
            match self.next_message().await {
                Ok(Some(LauncherMessage::Exited { .. })) if self.has_exceeded_processes => {
                    return ProcessEnd::TooManyProcesses;
                }
                Ok(Some(LauncherMessage::Exited { code: Some(code), .. })) => {
                    return ProcessEnd::Exited(code);
                }
                Ok(Some(LauncherMessage::Exited { signal, .. })) => {
                    return ProcessEnd::Signalled(signal.unwrap_or_default());
                }
                Ok(Some(LauncherMessage::TooManyProcesses)) => self.has_exceeded_processes = true,
                Ok(Some(
                    LauncherMessage::Started
                    | LauncherMessage::SandboxFailed(_)
                    | LauncherMessage::StartFailed(_),
                )) => {}
                Ok(None) | Err(_) => return ProcessEnd::LauncherDied,
            }
        }
    }

    /// Sends `SIGTERM` to the program and its descendants.
    pub async fn terminate(&mut self) {
        // If the launcher is gone, `wait` reports it.
        let _ = self.socket.write_all(&[TERMINATE]).await;
    }

    /// Kills the program with all descendants, and waits for the end of the launcher: they are gone then, unless
    /// one hangs in the kernel.
    pub async fn kill(self) {
        let Self { socket, mut launcher, .. } = self;
        // The launcher kills the program when the socket closes.
        drop(socket);
        let _ = launcher.wait().await;
    }

    /// Returns the next message. `None` if the launcher has closed the socket. Cancel safe: keeps the bytes
    /// read so far.
    async fn next_message(&mut self) -> io::Result<Option<LauncherMessage>> {
        self.socket.read_until(b'\n', &mut self.partial).await?;
        let line = std::mem::take(&mut self.partial);
        if line.is_empty() {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&line)?))
    }
}

/// The reason why a program did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program that runs the host has named no launcher.
    #[error(
        "no launcher: call callsheet::launcher::run_if_launched() first in main, or \
         callsheet::launcher::use_binary(..) with the path of the callsheet binary"
    )]
    NoLauncher,
    /// The binary did not answer as a launcher.
    #[error(
        "{} did not answer as a launcher: it must call callsheet::launcher::run_if_launched() \
         first in main", .binary.display()
    )]
    LauncherDidNotAnswer {
        /// The binary.
        binary: PathBuf,
    },
    /// The sandbox could not be set up.
    #[error("the sandbox cannot be set up: {0}")]
    Sandbox(String),
    /// The program could not be started.
    #[error("{0}")]
    Program(String),
    /// A secret variable is not set.
    #[error("the environment variable {0} is not set")]
    MissingSecret(String),
    /// The launcher could not be started.
    #[error("start the launcher: {0}")]
    Io(#[from] io::Error),
}
