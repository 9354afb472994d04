//! Processes of the real binary, and its commands that read the journal.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

/// The directory in which the processes of a host run one after the other.
#[derive(Clone)]
pub(crate) struct HostDirectory {
    pub(crate) path: PathBuf,
    /// Lines of stderr of all processes.
    pub(crate) stderr_lines: Arc<Mutex<Vec<String>>>,
}

/// One process of the host.
pub(crate) struct HostProcess {
    pub(crate) addr: SocketAddr,
    pid: u32,
    exited: watch::Receiver<Option<ExitStatus>>,
}

impl HostDirectory {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kill-{name}-{number}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self { path, stderr_lines: Arc::default() }
    }

    pub(crate) fn write_config(&self, text: &str) {
        std::fs::write(self.path.join("callsheet.toml"), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_callsheet"));
        command.args(args).current_dir(&self.path).stdin(Stdio::null());
        command.env("CALLSHEET_LOG", "warn").env_remove("CALLSHEET_KILL_AT");
        command
    }

    /// Starts a process. Returns `None` if it ends before it listens. The binary kills itself at
    /// `kill_at`.
    pub(crate) async fn start(&self, kill_at: Option<&str>) -> Option<HostProcess> {
        let serve = ["serve", "--config", "callsheet.toml", "--data-dir", "data"];
        let mut command = self.command(&serve);
        if let Some(at) = kill_at {
            command.env("CALLSHEET_KILL_AT", at);
        }
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (pid, stderr) = (child.id(), child.stderr.take().unwrap());
        let (banner, listening) = oneshot::channel();
        let stderr_lines = Arc::clone(&self.stderr_lines);
        std::thread::spawn(move || {
            let mut banner = Some(banner);
            for line in BufReader::new(stderr).lines() {
                let Ok(line) = line else { break };
                let address = line.strip_prefix("callsheet: listening on http://");
                if let Some(address) = address.and_then(|rest| rest.split(' ').next())
                    && let Some(banner) = banner.take()
                {
                    let _ = banner.send(address.parse().unwrap());
                }
                // Indented lines belong to the banner.
                if !line.starts_with(' ') {
                    stderr_lines.lock().push(format!("{pid}: {line}"));
                }
            }
        });
        let (exit, exited) = watch::channel(None);
        std::thread::spawn(move || exit.send(Some(child.wait().unwrap())));
        let addr = listening.await.ok()?;
        Some(HostProcess { addr, pid, exited })
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// Returns stdout of a successful command.
    pub(crate) async fn stdout_of(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        let stdout = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?} in {:?}:\n{stdout}{stderr}", self.path);
        stdout
    }

    /// Checks the invariants of the stored records.
    pub(crate) async fn verify(&self) {
        self.stdout_of(&["sessions", "verify", "--data-dir", "data"]).await;
    }
}

impl HostProcess {
    /// Sends a signal and waits for the exit.
    pub(crate) async fn end(&self, signal: &str) -> ExitStatus {
        let (signal, pid) = (format!("-{signal}"), self.pid.to_string());
        // The process may have exited already.
        let kill = move || Command::new("kill").args([signal, pid]).stderr(Stdio::null()).status();
        tokio::task::spawn_blocking(kill).await.unwrap().unwrap();
        self.ended().await
    }

    /// Waits for the exit.
    pub(crate) async fn ended(&self) -> ExitStatus {
        let mut exited = self.exited.clone();
        let status = *exited.wait_for(Option::is_some).await.unwrap();
        status.unwrap()
    }
}
