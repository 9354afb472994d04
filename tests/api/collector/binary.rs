//! The binary in a directory of its own, with a configuration for a scripted model.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::spawn_blocking;

/// Time limit of every step, after which the test fails.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(crate) fn new(model: &str) -> Self {
        Self::with(model, "memory", "")
    }

    /// Creates a host that keeps its sessions and requires approval for pages.
    pub(crate) fn asking_people(model: &str) -> Self {
        Self::with(model, "sqlite", "approval = \"before\"\n")
    }

    fn with(model: &str, journal: &str, page: &str) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("otlp-{number}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        let config = format!(
            "[host]\nlisten = \"127.0.0.1:0\"\n[journal]\nengine = \"{journal}\"\n\
             [models.main]\nwire = \"openai-chat\"\nbase_url = \"{model}\"\nmodel = \"m\"\n\
             [models.backup]\nwire = \"openai-chat\"\nbase_url = \"{model}\"\nmodel = \"n\"\n\
             [agents.default]\nmodel = \"main\"\nfallback_models = [\"backup\"]\nexecution = \"parallel\"\ntools = [\"*\"]\n\
             [tools.http_get]\nallow = [\"127.0.0.1\"]\n{page}"
        );
        std::fs::write(path.join("callsheet.toml"), config).unwrap();
        Self { path }
    }

    fn command(&self, collector: &str, variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_callsheet"));
        command.current_dir(&self.path).stdin(Stdio::null());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("OTEL_")) {
            command.env_remove(name);
        }
        command.env_remove("CALLSHEET_LOG").env_remove("RUST_LOG");
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector).envs(variables.iter().copied());
        command
    }

    /// Runs one prompt to its end.
    pub(crate) async fn run(
        &self,
        collector: &str,
        variables: &[(&str, &str)],
        prompt: &str,
    ) -> Output {
        let mut command = self.command(collector, variables);
        command.args(["run", prompt]);
        let run = spawn_blocking(move || command.output().unwrap());
        tokio::time::timeout(PATIENCE, run).await.expect("it ends in time").unwrap()
    }

    /// Starts the host and waits until it listens.
    pub(crate) async fn serve(&self, collector: &str, variables: &[(&str, &str)]) -> Host {
        let mut command = self.command(collector, variables);
        let mut child = command.arg("serve").stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let listening = spawn_blocking(move || {
            let url = lines.find_map(|line| {
                let line = line.unwrap();
                let (_, behind) = line.split_once("listening on ")?;
                behind.split(' ').next().map(str::to_owned)
            });
            // Keeps reading, so that writers never block.
            std::thread::spawn(move || lines.for_each(drop));
            url.expect("it listens")
        });
        let url = tokio::time::timeout(PATIENCE, listening).await.expect("in time").unwrap();
        let host = Host { child, url, http: client() };
        let opened = host.post("/v1/sessions", json!({"id": "s"}), &[]).await;
        assert!(opened.is_ok() || self.path.join("callsheet-data").exists(), "{opened:?}");
        host
    }
}

fn client() -> reqwest::Client {
    callsheet::tls::client(reqwest::Client::builder().no_proxy().timeout(PATIENCE)).unwrap()
}

/// A running host with one session.
pub(crate) struct Host {
    child: Child,
    url: String,
    http: reqwest::Client,
}

impl Host {
    async fn post(
        &self,
        path: &str,
        body: Value,
        headers: &[(&str, &str)],
    ) -> Result<Value, reqwest::Error> {
        let mut request = self.http.post(format!("{}{path}", self.url)).json(&body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await?.error_for_status()?.json().await
    }

    /// Runs a prompt to its end.
    pub(crate) async fn ask(&self, headers: &[(&str, &str)]) {
        let body = json!({"input": "Hello.", "wait": true});
        let report = self.post("/v1/sessions/s/runs", body, headers).await.unwrap();
        assert_eq!(report["run_end"], "answered", "{report}");
    }

    /// Starts a run without waiting for its end.
    pub(crate) async fn begin(&self, headers: &[(&str, &str)]) {
        self.post("/v1/sessions/s/runs", json!({"input": "Hello."}), headers).await.unwrap();
    }

    /// Waits for an approval request.
    pub(crate) async fn until_approval_request(&self) {
        self.until(|session| session["current_run"]["approvals"][0].is_object()).await;
    }

    /// Waits until no run is in progress.
    pub(crate) async fn until_idle(&self) {
        self.until(|session| session["state"] == "idle").await;
    }

    async fn until(&self, is_so: impl Fn(&Value) -> bool) {
        let looking = async {
            loop {
                let session = self.get("/v1/sessions/s").await;
                let session: Value = serde_json::from_str(&session).unwrap();
                if is_so(&session) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.expect("it comes to that");
    }

    pub(crate) async fn approve(&self, call: &str) {
        let session: Value = serde_json::from_str(&self.get("/v1/sessions/s").await).unwrap();
        let seen = &session["current_run"]["approvals"][0]["arguments_sha256"];
        let path = format!("/v1/sessions/s/approvals/{call}");
        let body = json!({"decision": "approve", "arguments_sha256": seen});
        self.post(&path, body, &[]).await.unwrap();
    }

    pub(crate) async fn metrics(&self) -> String {
        self.get("/metrics").await
    }

    async fn get(&self, path: &str) -> String {
        let answer = self.http.get(format!("{}{path}", self.url)).send().await.unwrap();
        answer.text().await.unwrap()
    }

    /// Shuts it down gracefully: queued spans are exported.
    pub(crate) async fn stop(mut self) {
        let id = self.child.id().to_string();
        assert!(
            std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap().success()
        );
        let ended = async {
            while self.child.try_wait().unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("it ends in time");
    }

    /// Kills it.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // It may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
