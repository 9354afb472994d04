//! A data directory in which several hosts run one after the other, with a scripted model that
//! outlives them.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use callsheet::HostBuilder;
use callsheet::config::{BaseUrl, Config, ToolPattern};
use callsheet::journal::{Breach, JournalEntry, JournalError, JournalReader, SessionQuery, verify};
use callsheet::record::Seq;
use callsheet::runtime::{Host, HostError};
use callsheet::server::{self, ServerHandle, ServerOptions};
use callsheet::tool::{Calculator, SetVariable};
use callsheet::types::SessionId;
use callsheet_mock_provider::{MockProvider, Script};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::client::{HttpConnection, HttpResponse, post};
use crate::support::tools::{CallControl, registry};

/// Time limit of every wait, so that a test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

/// Polls a condition until it holds.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what}: it did not happen in time"));
}

/// A data directory, deleted on drop, and a scripted model.
pub(crate) struct HostDirectory {
    pub(crate) dir: PathBuf,
    pub(crate) model: MockProvider,
    pub(crate) control: CallControl,
}

impl HostDirectory {
    pub(crate) async fn new(script: Value) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("callsheet-host-test-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        let script: Script = serde_json::from_value(script).unwrap();
        let model = MockProvider::with_script(script).await.unwrap();
        Self { dir, model, control: CallControl::new() }
    }

    /// Makes the setup of a host: `host` are lines of `[host]`, `rest` are other sections.
    pub(crate) fn setup(&self, host: &str, rest: &str) -> HostBuilder {
        self.setup_with(host, rest, |_| ())
    }

    /// Makes the setup of a host, with changes of its configuration.
    pub(crate) fn setup_with(
        &self,
        host: &str,
        rest: &str,
        change: impl FnOnce(&mut Config),
    ) -> HostBuilder {
        let dir = self.dir.display();
        let text = format!("[host]\ndata_dir = \"{dir}\"\n{host}\n{rest}");
        let mut config = Config::parse(&text, "test.toml", &|_| None).unwrap();
        config.set_rehearsal(BaseUrl::parse(&self.model.base_url()).unwrap());
        let mut tools = registry(&self.control);
        tools.register(Calculator).unwrap();
        tools.register(SetVariable).unwrap();
        tools.register_configured(&config).unwrap();
        for agent in config.agents.values_mut() {
            agent.tools = tools.iter().map(|(name, _)| ToolPattern::new(name)).collect();
        }
        change(&mut config);
        Host::builder().config(config).tools(tools)
    }

    pub(crate) async fn start(&self, host: &str, rest: &str) -> HostServer {
        let starting = tokio::time::timeout(PATIENCE, async {
            loop {
                match HostServer::start(self.setup(host, rest)).await {
                    // Actors of the previous host are still ending.
                    Err(HostError::Journal(JournalError::Locked { .. })) => {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    started => return started.unwrap(),
                }
            }
        });
        starting.await.expect("the previous host releases the journal")
    }

    /// Reads the entries of a session.
    pub(crate) fn entries(&self, session: &str) -> Vec<JournalEntry> {
        entries(&self.dir, session)
    }

    /// Checks the invariants of every stored session.
    #[track_caller]
    pub(crate) fn verify(&self) {
        for (id, breaches) in verified(&self.dir) {
            assert!(breaches.is_empty(), "{id}: {breaches:?}");
        }
    }

    /// Reads the bytes of all files.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let files = std::fs::read_dir(&self.dir).unwrap();
        files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
    }
}

impl Drop for HostDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Reads the entries of a session in a data directory.
pub(crate) fn entries(dir: &Path, session: &str) -> Vec<JournalEntry> {
    JournalReader::open(dir).unwrap().read(&id(session), Seq(0)).unwrap()
}

/// Verifies every session in a data directory.
pub(crate) fn verified(dir: &Path) -> Vec<(SessionId, Vec<Breach>)> {
    let journal = JournalReader::open(dir).unwrap();
    assert_eq!(journal.check().unwrap(), Vec::<String>::new());
    let all = journal.list(&SessionQuery::default()).unwrap().into_iter().map(|stored| stored.id);
    all.map(|id| {
        let breaches = verify(&id, &journal.read(&id, Seq(0)).unwrap());
        (id, breaches)
    })
    .collect()
}

pub(crate) fn id(text: &str) -> SessionId {
    SessionId::parse(text).unwrap()
}

/// A host with its HTTP API.
pub(crate) struct HostServer {
    pub(crate) host: Host,
    server: ServerHandle,
}

impl HostServer {
    pub(crate) async fn start(setup: HostBuilder) -> Result<Self, HostError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // As `callsheet serve` with an address of this host: the faces are on.
        let options = ServerOptions::from(&Config::default());
        Self::start_at(listener, setup, options).await
    }

    /// Starts a host that listens here.
    pub(crate) async fn start_at(
        listener: TcpListener,
        setup: HostBuilder,
        options: ServerOptions,
    ) -> Result<Self, HostError> {
        let host = within(setup.start()).await?;
        let server = server::serve(listener, host.clone(), options).unwrap();
        Ok(Self { host, server })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Sends a request and reads the whole response.
    pub(crate) async fn send(&self, request: &str) -> HttpResponse {
        let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        let mut reading = HttpConnection::open(self.addr(), &request).await;
        within(reading.read_rest()).await;
        reading.response()
    }

    pub(crate) async fn get(&self, path: &str) -> HttpResponse {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await
    }

    pub(crate) async fn delete(&self, path: &str) -> HttpResponse {
        self.send(&format!("DELETE {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> HttpResponse {
        self.send(&post(path, "", &body.to_string())).await
    }

    /// Posts with an `Idempotency-Key`.
    pub(crate) async fn post_keyed(&self, path: &str, key: &str, body: &Value) -> HttpResponse {
        self.send(&post(path, &format!("idempotency-key: {key}\r\n"), &body.to_string())).await
    }

    pub(crate) async fn open(&self, session: &str) {
        let opened = self.post("/v1/sessions", json!({"id": session})).await;
        assert_eq!(opened.status, 201, "{opened:?}");
    }

    /// Runs to the end and returns the report.
    pub(crate) async fn run(&self, session: &str, input: &str) -> Value {
        let body = json!({"input": input, "wait": true});
        let answer = self.post(&format!("/v1/sessions/{session}/runs"), body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Starts a run and returns its id.
    pub(crate) async fn begin(&self, session: &str, body: Value) -> String {
        let answer = self.post(&format!("/v1/sessions/{session}/runs"), body).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.json()["run_id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn snapshot(&self, session: &str) -> Value {
        let answer = self.get(&format!("/v1/sessions/{session}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Waits until the snapshot satisfies the condition.
    pub(crate) async fn until_snapshot(
        &self,
        session: &str,
        enough: impl Fn(&Value) -> bool,
    ) -> Value {
        let asking = tokio::time::timeout(PATIENCE, async {
            loop {
                let snapshot = self.snapshot(session).await;
                if enough(&snapshot) {
                    return snapshot;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        match asking.await {
            Ok(snapshot) => snapshot,
            Err(_) => panic!(
                "the snapshot never satisfied the condition: {}",
                self.snapshot(session).await
            ),
        }
    }

    /// Waits until all sessions hibernate.
    pub(crate) async fn asleep(&self) {
        until("all sessions hibernate", || self.host.counts().awake == 0).await;
    }

    /// Opens the stream of the session's events after `after`.
    pub(crate) async fn events(&self, session: &str, after: &str) -> HttpConnection {
        let path = format!("/v1/sessions/{session}/events?after={after}");
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        HttpConnection::open(self.addr(), &request).await
    }

    /// Shuts the host down.
    pub(crate) async fn shutdown(self) {
        within(self.host.shutdown()).await;
        self.server.shutdown().await;
    }

    /// Ends the host at once, as in a crash. Stored records remain.
    pub(crate) async fn crash(self) {
        let Self { host, server } = self;
        server.shutdown().await;
        drop(host);
    }
}

/// Makes the path segment and the body of a decision about an approval request.
pub(crate) fn decision(request: &Value, decision: &str) -> (String, Value) {
    let tool_id = request["tool_id"].as_str().unwrap().to_owned();
    (tool_id, json!({"decision": decision, "arguments_sha256": request["arguments_sha256"]}))
}
