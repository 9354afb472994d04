//! A host with MCP servers, and what is left of their processes.
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callsheet::config::{Config, JournalEngine, ModelConfig, ToolPattern};
use callsheet::model::ModelReply;
use callsheet::prelude::*;
use callsheet::testing::FakeModel;
use callsheet::tool::ToolRegistry;
use serde_json::Value;

const WAIT_MAX: Duration = Duration::from_secs(60);

/// The folder of a configuration. Its servers have the path in their environment.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
}

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("mcp-{name}-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self { path }
    }

    /// Returns the table of a server that is a program. `environment` are members of a table in TOML.
    pub(crate) fn server(&self, name: &str, command: &[&str], environment: &str) -> String {
        let folder = self.path.display().to_string();
        format!(
            "[mcp.{name}]\ncommand = {command:?}\n\
             env = {{ TEST_FOLDER = {folder:?}, {environment} }}\nstart_timeout = \"60s\"\n"
        )
    }

    /// Starts a host with these servers, whose agent has all of their tools.
    pub(crate) async fn host(&self, text: &str, model: &FakeModel) -> Host {
        self.host_with(text, &[("fake", Arc::new(model.clone()))]).await
    }

    /// Starts a host with these servers and models. The agent asks the first one. If the folder has a folder `data`,
    /// the host stores its sessions there.
    pub(crate) async fn host_with(
        &self,
        text: &str,
        models: &[(&str, Arc<dyn ModelSource>)],
    ) -> Host {
        callsheet::launcher::use_binary(env!("CARGO_BIN_EXE_callsheet"));
        let file = self.path.join("callsheet.toml").display().to_string();
        let mut config = Config::parse(text, &file, &|name| std::env::var(name).ok()).unwrap();
        config.agents.get_mut("default").unwrap().tools = vec![ToolPattern::new("*")];
        for (name, _) in models.iter().rev() {
            config.use_model(name, ModelConfig::for_source(name));
        }
        config.agents.get_mut("default").unwrap().allow_overrides = true;
        config.host.data_dir = self.path.join("data");
        config.journal.engine = match config.host.data_dir.exists() {
            true => JournalEngine::Sqlite,
            false => JournalEngine::Memory,
        };
        let mut registry = ToolRegistry::new();
        registry.register_configured(&config).unwrap();
        let host = Host::builder().config(config).tools(registry);
        let with = |host: HostBuilder, (name, model): &(&str, Arc<dyn ModelSource>)| {
            host.model_source(*name, Arc::clone(model))
        };
        models.iter().fold(host, with).start().await.unwrap()
    }

    /// Runs `callsheet tools` with these servers. Returns whether it succeeded, and what it printed.
    pub(crate) fn tools(&self, text: &str, arguments: &[&str]) -> (bool, String) {
        let text = format!("{text}[agents.default]\ntools = [\"*\"]\n");
        std::fs::write(self.path.join("callsheet.toml"), text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_callsheet"))
            .arg("tools")
            .args(arguments)
            .current_dir(&self.path)
            .output()
            .unwrap();
        let printed = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(printed).unwrap())
    }

    /// Returns the number of processes that were started for this folder, descendants included.
    pub(crate) fn processes(&self) -> usize {
        let marker = self.path.display().to_string();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let is_marked = |process: &std::fs::DirEntry| {
            let environ = std::fs::read(process.path().join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environ).contains(&marker)
        };
        processes.filter(is_marked).count()
    }

    /// Waits until no process of this folder is left.
    pub(crate) async fn empty(&self) {
        wait_until(|| self.processes() == 0).await;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

pub(crate) async fn wait_until(mut is_true: impl FnMut() -> bool) {
    let waiting = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, waiting).await.unwrap();
}

/// Returns a model that makes these calls, one in each run.
pub(crate) fn calling<const N: usize>(calls: [(&str, Value); N]) -> FakeModel {
    let replies = calls.into_iter().flat_map(|(tool, arguments)| {
        [ModelReply::call(tool, arguments), ModelReply::text("done")]
    });
    FakeModel::replies(replies)
}

/// Returns status and result of the only call of a run.
pub(crate) fn result(report: &RunReport) -> (&str, &str) {
    assert_eq!(report.calls.len(), 1, "{report:?}");
    (report.calls[0].status.as_str(), &report.calls[0].result)
}
