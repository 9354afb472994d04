//! A scenario: a host that is killed repeatedly, with its clients, model and effects.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callsheet::config::ToolProtocol;
use callsheet_mock_provider::{MockProvider, MockProviderOptions};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::checks;
use crate::client::{Client, ClientLog};
use crate::effects::Effects;
use crate::host_process::{HostDirectory, HostProcess};
use crate::input::UserInput;
use crate::rng::SeededRng;

/// Number of clients.
const CLIENTS: u64 = 3;

/// Maximum number of runs in a session, after which its client opens another one.
const INPUTS_MAX: usize = 10;

/// Time limit of a scenario per kill.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of a scenario.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScenarioOptions {
    pub(crate) name: &'static str,
    /// Effects start on their seal.
    pub(crate) on_seal: bool,
    /// Effects may run again with the same key.
    pub(crate) idempotent: bool,
    pub(crate) relaxed: bool,
    pub(crate) protocol: ToolProtocol,
    /// All ends of the host are planned: SIGTERM.
    pub(crate) restarts: bool,
}

/// State that all clients share.
pub(crate) struct SharedState {
    /// Address of the host while it listens.
    pub(crate) address: watch::Sender<Option<std::net::SocketAddr>>,
    /// Number of events that all watchers have received.
    pub(crate) events: watch::Sender<usize>,
    pub(crate) model: MockProvider,
    pub(crate) effects: Effects,
    /// Clients start nothing more.
    is_finished: AtomicBool,
}

/// The host's directory and everything around it.
pub(crate) struct Scenario {
    pub(crate) setup: ScenarioOptions,
    pub(crate) directory: HostDirectory,
    pub(crate) shared: Arc<SharedState>,
}

/// Counts of a scenario.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    pub(crate) kills: usize,
    pub(crate) terms: usize,
    pub(crate) sessions: usize,
    pub(crate) runs: usize,
    pub(crate) requests: usize,
    pub(crate) effects: usize,
    pub(crate) repeated: usize,
    pub(crate) events: usize,
    pub(crate) reconnects: usize,
    pub(crate) unknown: usize,
    pub(crate) broken: usize,
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, terms, sessions, runs, requests, effects, .. } = self;
        let Self { repeated, events, reconnects, unknown, broken, .. } = self;
        write!(
            f,
            "{kills} times SIGKILL, {terms} times SIGTERM; {sessions} sessions, {runs} runs, \
             {requests} requests to the model ({broken} broken off by a kill), {effects} effects \
             ({repeated} repeated, {unknown} calls unknown), {events} events over {reconnects} \
             connections"
        )
    }
}

impl Scenario {
    pub(crate) async fn new(setup: ScenarioOptions) -> Self {
        let directory = HostDirectory::new(setup.name);
        let options = MockProviderOptions::default().with(|new| {
            new.chunk_delay = Duration::from_millis(1);
            new.keep_requests = 100_000;
        });
        let model = MockProvider::start(options).await.unwrap();
        let effects = Effects::start(&directory.path.join("effects.txt")).await;
        directory.write_config(&config(setup, &model.base_url(), effects.port));
        let shared = SharedState {
            address: watch::Sender::new(None),
            events: watch::Sender::new(0),
            model,
            effects,
            is_finished: AtomicBool::new(false),
        };
        Self { setup, directory, shared: Arc::new(shared) }
    }

    /// Runs the clients while the host is killed `kills` times, then checks everything.
    pub(crate) async fn play(&self, mut rng: SeededRng, kills: usize) -> Statistics {
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (shared, rng) = (Arc::clone(&self.shared), rng.split());
            clients.spawn(client(shared, number, rng));
        }
        let killing = tokio::time::timeout(
            PATIENCE * u32::try_from(kills).unwrap().max(1),
            self.kill(&mut rng, kills),
        );
        let mut statistics = tokio::select! {
            killed = killing => killed.unwrap_or_else(|_| self.fail_as_stuck()),
            ended = clients.join_next() => panic!("a client ended: {ended:?}\n{}", self.recent_stderr()),
        };
        self.shared.is_finished.store(true, Ordering::Release);
        let process = self.start_host(None).await.expect("the host starts");
        let all = tokio::time::timeout(PATIENCE, clients.join_all()).await;
        let client_logs =
            all.unwrap_or_else(|_| self.fail_as_stuck()).into_iter().flatten().collect();
        self.shut_down(&process, &mut statistics).await;
        checks::check_everything(self, client_logs, &mut statistics).await;
        statistics
    }

    /// Runs one client's inputs. Two processes kill themselves at these records, a third one continues.
    /// Returns true if the first one was killed.
    pub(crate) async fn play_once(&self, kill_at: [&str; 2]) -> bool {
        let SharedState { model, effects, .. } = &*self.shared;
        let inputs = [("one", 0), ("two", 2)].map(|(name, turns)| match self.setup.protocol {
            ToolProtocol::Native => UserInput::plain(name, model, effects.port),
            protocol => UserInput::in_text(name, model, effects.port, protocol, turns),
        });
        let mut inputs = Some(inputs.to_vec());
        let shared = Arc::clone(&self.shared);
        let mut client =
            std::pin::pin!(Client::play(shared, "s", SeededRng::new(3), move |_| inputs.take()));
        let mut statistics = Statistics::default();
        let playing = async {
            let mut ends = kill_at.into_iter();
            loop {
                if let Some(process) = self.start_host(ends.next()).await {
                    tokio::select! {
                        client_logs = &mut client => return (client_logs, process),
                        status = process.ended() => assert_eq!(status.signal(), Some(9)),
                    }
                }
                statistics.kills += 1;
                self.shared.address.send_replace(None);
                self.directory.verify().await;
            }
        };
        let played = tokio::time::timeout(PATIENCE, playing).await;
        let (client_logs, process) = played.unwrap_or_else(|_| self.fail_as_stuck());
        self.shut_down(&process, &mut statistics).await;
        let killed = statistics.kills > 0;
        checks::check_everything(self, vec![client_logs], &mut statistics).await;
        assert!(statistics.effects > 1, "calls were made");
        killed
    }

    async fn start_host(&self, kill_at: Option<&str>) -> Option<HostProcess> {
        let process = self.directory.start(kill_at).await?;
        self.shared.address.send_replace(Some(process.addr));
        Some(process)
    }

    async fn kill(&self, rng: &mut SeededRng, kills: usize) -> Statistics {
        let mut statistics = Statistics::default();
        for _ in 0..kills {
            let process =
                self.start_host(None).await.unwrap_or_else(|| panic!("{}", self.recent_stderr()));
            self.progress(rng).await;
            if self.setup.restarts || rng.percent(15) {
                self.shut_down(&process, &mut statistics).await;
            } else {
                statistics.kills += 1;
                process.end("KILL").await;
                self.shared.address.send_replace(None);
                self.directory.verify().await;
            }
            let sessions =
                self.directory.stdout_of(&["sessions", "list", "--data-dir", "data", "--json"]);
            let sessions = sessions.await;
            let sessions = json_lines(&sessions);
            if !sessions.is_empty() {
                let one = &sessions[rng.below(sessions.len() as u64) as usize];
                self.replay(one["id"].as_str().unwrap()).await;
            }
        }
        statistics
    }

    /// Replays a session from the journal.
    pub(crate) async fn replay(&self, session: &str) {
        let of = ["replay", session, "--config", "callsheet.toml", "--data-dir", "data"];
        self.directory.stdout_of(&of).await;
    }

    /// Waits for a random amount of progress.
    async fn progress(&self, rng: &mut SeededRng) {
        let SharedState { events, model, effects, .. } = &*self.shared;
        match rng.below(3) {
            0 => {
                let mut events = events.subscribe();
                let enough = *events.borrow() + 1 + rng.below(60) as usize;
                events.wait_for(|count| *count >= enough).await.unwrap();
            }
            1 => model.wait_for_requests(model.received() + 1 + rng.below(8)).await,
            _ => effects.more(1 + rng.below(6) as usize).await,
        }
    }

    /// Shuts the host down, and checks that it has interrupted no run: what has not ended is left to the next host.
    pub(crate) async fn shut_down(&self, process: &HostProcess, statistics: &mut Statistics) {
        statistics.terms += 1;
        let status = process.end("TERM").await;
        assert_eq!(status.code(), Some(0), "{}", self.recent_stderr());
        self.shared.address.send_replace(None);
        self.directory.verify().await;
        let all = ["sessions", "list", "--json", "--data-dir", "data"];
        for session in json_lines(&self.directory.stdout_of(&all).await) {
            let id = session["id"].as_str().unwrap();
            let show = ["sessions", "show", id, "--format", "jsonl", "--data-dir", "data"];
            let records = json_lines(&self.directory.stdout_of(&show).await);
            assert!(!records.iter().any(|record| record["end"] == "interrupted"), "{id}");
        }
    }

    fn fail_as_stuck<T>(&self) -> T {
        panic!("no progress in {:?}\n{}", self.directory.path, self.recent_stderr())
    }

    pub(crate) fn recent_stderr(&self) -> String {
        let lines = self.directory.stderr_lines.lock();
        lines.iter().rev().take(60).rev().cloned().collect::<Vec<_>>().join("\n")
    }
}

/// Plays one session after the other until the scenario is finished.
async fn client(shared: Arc<SharedState>, number: u64, mut rng: SeededRng) -> Vec<ClientLog> {
    let mut all = Vec::new();
    while !shared.is_finished.load(Ordering::Acquire) {
        let session = format!("s{number}-{}", all.len());
        let (of, mut inputs) = (Arc::clone(&shared), 0);
        let next = |rng: &mut SeededRng| {
            if inputs >= INPUTS_MAX || of.is_finished.load(Ordering::Acquire) {
                return None;
            }
            let count = if rng.percent(25) { 2 } else { 1 };
            let input = |_| {
                inputs += 1;
                let name = format!("{session}-{inputs}");
                UserInput::random(&name, &of.model, of.effects.port, rng)
            };
            Some((0..count).map(input).collect())
        };
        let played = Client::play(Arc::clone(&shared), &session, rng.split(), next);
        all.push(played.await);
    }
    all
}

fn config(setup: ScenarioOptions, base_url: &str, port: u16) -> String {
    let durability = if setup.relaxed { "relaxed" } else { "strict" };
    let start = if setup.on_seal { "on_seal" } else { "on_finish" };
    let idempotent = setup.idempotent;
    // A short one leaves more calls and responses in the middle.
    let grace = if setup.restarts { "50ms" } else { "2s" };
    let mut protocols = ToolProtocol::NAMES.iter();
    let protocol = protocols.find(|(_, protocol)| *protocol == setup.protocol).unwrap().0;
    format!(
        r#"[host]
listen = "127.0.0.1:0"
shutdown_grace = "{grace}"
idle_after = "500ms"

[journal]
durability = "{durability}"

[models.main]
wire = "openai-chat"
base_url = "{base_url}"
model = "scripted"
breaker_failures = 0
tool_protocol = "{protocol}"

[agents.parallel]
model = "main"
tools = ["clock", "calculator", "http_get"]
execution = {{ parallel = 4 }}
limits = {{ tool_timeout = "300ms" }}

[agents.sequential]
model = "main"
tools = ["clock", "calculator", "http_get"]
limits = {{ tool_timeout = "300ms" }}

[tools.http_get]
allow = ["127.0.0.1:{port}"]
effect = "some"
start = "{start}"
idempotent = {idempotent}
"#
    )
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
