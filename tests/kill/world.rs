//! A host that is killed again and again, and what outlives it.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callsheet::rehearsal::{Rehearsal, RehearsalOptions};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::chance::Chance;
use crate::client::{Client, Told};
use crate::effects::Effects;
use crate::host::{Life, Place};
use crate::job::Job;
use crate::judge;

/// How many users there are.
const CLIENTS: u64 = 3;

/// Runs of one session, before its user opens another one.
const JOBS_MAX: usize = 10;

/// How long a scenario may take for each kill before it fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is different between scenarios.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Setup {
    pub(crate) name: &'static str,
    /// Effects start as soon as their arguments are complete.
    pub(crate) on_seal: bool,
    /// Effects may be repeated with the same key.
    pub(crate) idempotent: bool,
    pub(crate) relaxed: bool,
}

/// What all users see of the world.
pub(crate) struct Shared {
    /// Where the host listens, while it does.
    pub(crate) lives: watch::Sender<Option<std::net::SocketAddr>>,
    /// Events that came, to all watchers together.
    pub(crate) events: watch::Sender<usize>,
    pub(crate) model: Rehearsal,
    pub(crate) effects: Effects,
    /// Nothing more is begun.
    enough: AtomicBool,
}

/// The host's folder, and everybody around it.
pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) place: Place,
    pub(crate) shared: Arc<Shared>,
}

/// What there was to judge.
#[derive(Debug, Default)]
pub(crate) struct Figures {
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

impl fmt::Display for Figures {
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

impl World {
    pub(crate) async fn new(setup: Setup) -> Self {
        let place = Place::new(setup.name);
        let options = RehearsalOptions {
            chunk_delay: Duration::from_millis(1),
            keep_requests: 100_000,
            ..RehearsalOptions::default()
        };
        let model = Rehearsal::start(options).await.unwrap();
        let effects = Effects::start(&place.path.join("effects.txt")).await;
        place.write_config(&config(setup, &model.base_url(), effects.port));
        let shared = Shared {
            lives: watch::Sender::new(None),
            events: watch::Sender::new(0),
            model,
            effects,
            enough: AtomicBool::new(false),
        };
        Self { setup, place, shared: Arc::new(shared) }
    }

    /// Users do their work while the host is killed so many times; then all of it is judged.
    pub(crate) async fn play(&self, mut chance: Chance, kills: usize) -> Figures {
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (shared, chance) = (Arc::clone(&self.shared), chance.split());
            clients.spawn(client(shared, number, chance));
        }
        let killing = tokio::time::timeout(
            PATIENCE * u32::try_from(kills).unwrap().max(1),
            self.kill(&mut chance, kills),
        );
        let mut figures = tokio::select! {
            killed = killing => killed.unwrap_or_else(|_| self.stuck()),
            ended = clients.join_next() => panic!("a client ended: {ended:?}\n{}", self.said()),
        };
        self.shared.enough.store(true, Ordering::Release);
        let life = self.live(None).await.expect("the host starts");
        let all = tokio::time::timeout(PATIENCE, clients.join_all()).await;
        let told = all.unwrap_or_else(|_| self.stuck()).into_iter().flatten().collect();
        self.end_well(&life, &mut figures).await;
        judge::judge(self, told, &mut figures).await;
        figures
    }

    /// One user's plain jobs, in lives that end by themselves at these records, and one that does
    /// not; whether the first did.
    pub(crate) async fn play_once(&self, kill_at: [&str; 2]) -> bool {
        let Shared { model, effects, .. } = &*self.shared;
        let jobs = ["one", "two"].map(|name| Job::plain(name, model, effects.port));
        let mut jobs = Some(jobs.to_vec());
        let shared = Arc::clone(&self.shared);
        let mut client =
            std::pin::pin!(Client::play(shared, "s", Chance::new(3), move |_| jobs.take()));
        let mut figures = Figures::default();
        let playing = async {
            let mut ends = kill_at.into_iter();
            loop {
                if let Some(life) = self.live(ends.next()).await {
                    tokio::select! {
                        told = &mut client => return (told, life),
                        status = life.ended() => assert_eq!(status.signal(), Some(9)),
                    }
                }
                figures.kills += 1;
                self.shared.lives.send_replace(None);
                self.place.verify().await;
            }
        };
        let played = tokio::time::timeout(PATIENCE, playing).await;
        let (told, life) = played.unwrap_or_else(|_| self.stuck());
        self.end_well(&life, &mut figures).await;
        let killed = figures.kills > 0;
        judge::judge(self, vec![told], &mut figures).await;
        killed
    }

    async fn live(&self, kill_at: Option<&str>) -> Option<Life> {
        let life = self.place.start(kill_at).await?;
        self.shared.lives.send_replace(Some(life.addr));
        Some(life)
    }

    async fn kill(&self, chance: &mut Chance, kills: usize) -> Figures {
        let mut figures = Figures::default();
        for _ in 0..kills {
            let life = self.live(None).await.unwrap_or_else(|| panic!("{}", self.said()));
            self.progress(chance).await;
            if chance.percent(15) {
                self.end_well(&life, &mut figures).await;
            } else {
                figures.kills += 1;
                life.end("KILL").await;
                self.shared.lives.send_replace(None);
                self.place.verify().await;
            }
            let sessions = self.place.ask(&["sessions", "list", "--data-dir", "data", "--json"]);
            let sessions = sessions.await;
            let sessions: Vec<&str> = sessions.lines().collect();
            if !sessions.is_empty() {
                let one = sessions[chance.below(sessions.len() as u64) as usize];
                let one: serde_json::Value = serde_json::from_str(one).unwrap();
                self.replay(one["id"].as_str().unwrap()).await;
            }
        }
        figures
    }

    /// The journal replays itself.
    pub(crate) async fn replay(&self, session: &str) {
        let of = ["replay", session, "--config", "callsheet.toml", "--data-dir", "data"];
        self.place.ask(&of).await;
    }

    /// Waits for a random amount of progress.
    async fn progress(&self, chance: &mut Chance) {
        let Shared { events, model, effects, .. } = &*self.shared;
        match chance.below(3) {
            0 => {
                let mut events = events.subscribe();
                let enough = *events.borrow() + 1 + chance.below(60) as usize;
                events.wait_for(|count| *count >= enough).await.unwrap();
            }
            1 => model.wait_for_requests(model.received() + 1 + chance.below(8)).await,
            _ => effects.more(1 + chance.below(6) as usize).await,
        }
    }

    /// A graceful end leaves nothing to recover.
    pub(crate) async fn end_well(&self, life: &Life, figures: &mut Figures) {
        figures.terms += 1;
        let status = life.end("TERM").await;
        assert_eq!(status.code(), Some(0), "{}", self.said());
        self.shared.lives.send_replace(None);
        self.place.verify().await;
        let running = ["sessions", "list", "--state", "running", "--json", "--data-dir", "data"];
        assert_eq!(self.place.ask(&running).await, "", "nothing is left to recover");
    }

    fn stuck<T>(&self) -> T {
        panic!("nothing goes on any more in {:?}\n{}", self.place.path, self.said())
    }

    pub(crate) fn said(&self) -> String {
        let said = self.place.said.lock();
        said.iter().rev().take(60).rev().cloned().collect::<Vec<_>>().join("\n")
    }
}

/// One session after the other, until it is enough.
async fn client(shared: Arc<Shared>, number: u64, mut chance: Chance) -> Vec<Told> {
    let mut all = Vec::new();
    while !shared.enough.load(Ordering::Acquire) {
        let session = format!("s{number}-{}", all.len());
        let (of, mut jobs) = (Arc::clone(&shared), 0);
        let next = |chance: &mut Chance| {
            if jobs >= JOBS_MAX || of.enough.load(Ordering::Acquire) {
                return None;
            }
            let count = if chance.percent(25) { 2 } else { 1 };
            let job = |_| {
                jobs += 1;
                let name = format!("{session}-{jobs}");
                Job::random(&name, &of.model, of.effects.port, chance)
            };
            Some((0..count).map(job).collect())
        };
        let played = Client::play(Arc::clone(&shared), &session, chance.split(), next);
        all.push(played.await);
    }
    all
}

fn config(setup: Setup, base_url: &str, port: u16) -> String {
    let durability = if setup.relaxed { "relaxed" } else { "strict" };
    let start = if setup.on_seal { "on_seal" } else { "on_finish" };
    let idempotent = setup.idempotent;
    format!(
        r#"[host]
listen = "127.0.0.1:0"
shutdown_grace = "2s"
idle_after = "500ms"

[journal]
durability = "{durability}"

[models.main]
wire = "openai-chat"
base_url = "{base_url}"
model = "scripted"
breaker_failures = 0

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
