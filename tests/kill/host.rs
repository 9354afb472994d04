//! The real binary: lives of the host, and what the commands say of its journal.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

/// The folder of a host, in which it lives again and again.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    /// What all its lives said, on stderr.
    pub(crate) said: Arc<Mutex<Vec<String>>>,
}

/// One life of the host.
pub(crate) struct Life {
    pub(crate) addr: SocketAddr,
    pid: u32,
    exited: watch::Receiver<Option<ExitStatus>>,
}

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kill-{name}-{number}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self { path, said: Arc::default() }
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

    /// Starts a life; none if it ends before it listens. `kill_at` is for the binary itself.
    pub(crate) async fn start(&self, kill_at: Option<&str>) -> Option<Life> {
        let serve = ["serve", "--config", "callsheet.toml", "--data-dir", "data"];
        let mut command = self.command(&serve);
        if let Some(at) = kill_at {
            command.env("CALLSHEET_KILL_AT", at);
        }
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (pid, stderr) = (child.id(), child.stderr.take().unwrap());
        let (banner, listening) = oneshot::channel();
        let said = Arc::clone(&self.said);
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
                // The banner and what it suggests say nothing of what went wrong.
                if !line.starts_with(' ') {
                    said.lock().push(format!("{pid}: {line}"));
                }
            }
        });
        let (exit, exited) = watch::channel(None);
        std::thread::spawn(move || exit.send(Some(child.wait().unwrap())));
        let addr = listening.await.ok()?;
        Some(Life { addr, pid, exited })
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// What a command says that ends well.
    pub(crate) async fn ask(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        let stdout = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?} in {:?}:\n{stdout}{stderr}", self.path);
        stdout
    }

    /// Every invariant that shows in the records holds.
    pub(crate) async fn verify(&self) {
        self.ask(&["sessions", "verify", "--data-dir", "data"]).await;
    }
}

impl Life {
    /// Sends a signal, and waits for the end.
    pub(crate) async fn end(&self, signal: &str) -> ExitStatus {
        let (signal, pid) = (format!("-{signal}"), self.pid.to_string());
        // It may have ended by itself.
        let kill = move || Command::new("kill").args([signal, pid]).stderr(Stdio::null()).status();
        tokio::task::spawn_blocking(kill).await.unwrap().unwrap();
        self.ended().await
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) -> ExitStatus {
        let mut exited = self.exited.clone();
        let status = *exited.wait_for(Option::is_some).await.unwrap();
        status.unwrap()
    }
}
