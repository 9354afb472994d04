//! Random trees of agents over three levels: parents are stopped and deleted, their children too, and hosts end at
//! random moments. A ledger sees all records in the order in which they are stored, and all requests.
//!
//! The short forms run with the other tests. Longer ones:
//! `CALLSHEET_TREES=20000 CALLSHEET_TREE_HOSTS=400 cargo test --lib -- runtime::tests::random_trees --nocapture`.
//! `CALLSHEET_TREE_SEED` sets the seed.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use futures::StreamExt as _;
use parking_lot::Mutex;
use serde_json::Value;

use super::child_sessions::{agent_of, agent_tool, family, has_result};
use super::engine::Engine;
use super::provider::{Reply, answer_with, calls_to, text};
use super::*;
use crate::journal::{AppendStatus, Batch, BatchStatus, JournalError, MemoryJournal};
use callsheet_values::record::{JournalEntry, Record, StopMode};
use callsheet_values::types::{AgentLease, CallKey, ChildUse, RunEnd, RunId, is_child_session};

/// The time within which a request that was sent before the end of its run may arrive.
const IN_FLIGHT_MAX: Duration = Duration::from_millis(500);
/// The tokens of one response.
const RESPONSE_TOKENS: u64 = 15;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |value| value.parse().unwrap())
}

/// A run that was started.
struct KnownRun {
    session: SessionId,
    /// The run whose call has started it.
    parent: Option<RunId>,
    ended: Option<(Instant, RunEnd)>,
    /// The runs of its calls.
    children: BTreeSet<RunId>,
}

/// The runs of all hosts, and the breaches of the rules of child sessions.
#[derive(Default)]
struct Ledger {
    runs: HashMap<RunId, KnownRun>,
    /// The runs by their inputs, which differ.
    by_input: HashMap<String, RunId>,
    /// The runs of the calls that opened the child sessions.
    parents: HashMap<SessionId, RunId>,
    ends: BTreeMap<RunEnd, usize>,
    /// Requests that arrived shortly after the end of their run.
    in_flight: usize,
    problems: Vec<String>,
}

impl Ledger {
    fn note(&mut self, session: &SessionId, entry: &JournalEntry) {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "a test names the variants that it means"
        )]
        match &entry.record {
            Record::SessionOpened { parent: Some(parent), .. } => {
                self.parents.insert(session.clone(), parent.run.clone());
            }
            Record::RunStarted { run_id, input, .. } => {
                let parent = self.parents.get(session).cloned();
                if let Some(parent) = &parent {
                    let parent = self.runs.get_mut(parent).unwrap();
                    parent.children.insert(run_id.clone());
                    if parent.ended.is_some() {
                        self.problems.push(format!("{session}: started after its parent's end"));
                    }
                }
                self.by_input.insert(input.text().into_owned(), run_id.clone());
                let (session, children) = (session.clone(), BTreeSet::new());
                let run = KnownRun { session, parent, ended: None, children };
                self.runs.insert(run_id.clone(), run);
            }
            Record::RunEnded { run_id, end, .. } => {
                let run = self.runs.get_mut(run_id).unwrap();
                run.ended = Some((Instant::now(), *end));
                for child in run.children.clone() {
                    let child = &self.runs[&child];
                    if child.ended.is_none() {
                        let (child, parent) = (&child.session, session);
                        self.problems.push(format!("{child}: goes on after its parent {parent}"));
                    }
                }
                *self.ends.entry(*end).or_default() += 1;
            }
            _ => {}
        }
    }

    /// Checks that the run of a request, and all runs above it, go on.
    fn check_request(&mut self, request: &Value) {
        let mut run = self.by_input.get(input_of(request)).cloned();
        if run.is_none() {
            self.problems.push(format!("a request of no run: {}", input_of(request)));
        }
        while let Some(id) = run {
            let known = &self.runs[&id];
            if let Some((ended, end)) = known.ended {
                let late = ended.elapsed();
                if late > IN_FLIGHT_MAX {
                    let (session, input) = (&known.session, input_of(request));
                    self.problems.push(format!(
                        "{session} ended as {end:?} {late:?} before a request of {input}"
                    ));
                }
                self.in_flight += 1;
            }
            run = known.parent.clone();
        }
        self.problems.extend(unanswered(request));
    }

    /// Returns the open child sessions of a run, at all levels.
    fn open_descendants(&self, root: &RunId) -> Vec<SessionId> {
        let mut runs = vec![root];
        let mut found = Vec::new();
        while let Some(run) = runs.pop().and_then(|run| self.runs.get(run)) {
            runs.extend(&run.children);
            let open = run.children.iter().map(|child| &self.runs[child]);
            found.extend(open.filter(|run| run.ended.is_none()).map(|run| run.session.clone()));
        }
        found
    }

    #[track_caller]
    fn check_end(&self, seed: u64) {
        let first: Vec<_> = self.problems.iter().take(10).collect();
        assert!(first.is_empty(), "seed {seed}: {} problems: {first:#?}", self.problems.len());
        let open: Vec<_> = self.runs.values().filter(|run| run.ended.is_none()).collect();
        let open: Vec<_> = open.iter().map(|run| &run.session).collect();
        assert!(open.is_empty(), "seed {seed}: runs without an end: {open:?}");
    }
}

/// Returns the input of the run of a request.
fn input_of(request: &Value) -> &str {
    let messages = request["messages"].as_array().unwrap();
    let user = messages.iter().rfind(|message| message["role"] == "user").unwrap();
    // The input of a run that got no answer stands before it.
    user["content"].as_str().unwrap().rsplit("\n\n").next().unwrap()
}

/// Returns the calls of a request without exactly one result.
fn unanswered(request: &Value) -> Vec<String> {
    let messages = request["messages"].as_array().unwrap();
    let mut open: BTreeSet<&str> = BTreeSet::new();
    let mut found = Vec::new();
    for message in messages {
        if let Some(id) = message["tool_call_id"].as_str() {
            if !open.remove(id) {
                found.push(format!("a result without a call: {id}"));
            }
            continue;
        }
        found.extend(std::mem::take(&mut open).iter().map(|id| format!("no result of {id}")));
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        open.extend(calls.map(|call| call["id"].as_str().unwrap()));
    }
    found.extend(open.iter().map(|id| format!("no result of {id}")));
    found
}

/// The records of one test, and its random responses.
struct TreeTest {
    ledger: Arc<Mutex<Ledger>>,
    journal: Arc<MemoryJournal>,
    random: Arc<Mutex<Random>>,
    /// The number of requests.
    requests: Arc<AtomicUsize>,
    /// The batches that dead hosts have not stored.
    held: Arc<Mutex<Vec<Batch>>>,
    /// Set once every response ends.
    is_calm: Arc<AtomicBool>,
}

impl TreeTest {
    fn new(seed: u64) -> Self {
        Self {
            ledger: Arc::default(),
            journal: Arc::default(),
            random: Arc::new(Mutex::new(Random(seed))),
            requests: Arc::default(),
            held: Arc::default(),
            is_calm: Arc::default(),
        }
    }

    /// Returns the provider of a host. It does not count requests once the host `is_dead`.
    async fn provider(&self, is_dead: &Arc<AtomicBool>) -> Provider {
        let (ledger, random) = (Arc::clone(&self.ledger), Arc::clone(&self.random));
        let (is_calm, is_dead) = (Arc::clone(&self.is_calm), Arc::clone(is_dead));
        let requests = Arc::clone(&self.requests);
        Provider::new(move |_, request| {
            let mut ledger = ledger.lock();
            if is_dead.load(Ordering::SeqCst) {
                return Reply::Silence;
            }
            ledger.check_request(request);
            drop(ledger);
            let n = requests.fetch_add(1, Ordering::SeqCst);
            reply(&mut random.lock(), n, request, is_calm.load(Ordering::SeqCst))
        })
        .await
    }

    /// Starts a host on the records. It stores nothing once it is `dead`.
    async fn host(&self, provider: &Provider, runs: u32, dead: &Arc<AtomicBool>) -> Host {
        let (ledger, is_dead) = (Arc::clone(&self.ledger), Arc::clone(dead));
        let held = Arc::clone(&self.held);
        let engine = Engine::on(Arc::clone(&self.journal), move |inner, batch| {
            let mut ledger = ledger.lock();
            if is_dead.load(Ordering::SeqCst) {
                held.lock().push(batch);
                return AppendStatus::Queued;
            }
            for entry in &batch.entries {
                ledger.note(&batch.session, entry);
            }
            inner.append(batch)
        })
        .dead_once(dead);
        let agents = ["worker", "helper"];
        let agents = agents.map(|name| agent_tool(name, |config| config.max_depth = 2));
        let setup = family(provider, [], agents, |config| {
            config.host.max_concurrent_runs = runs as usize;
            for agent in ["default", "worker"] {
                config.agents.get_mut(agent).unwrap().execution =
                    callsheet_values::types::Execution::Parallel { max: 3 };
            }
            let limits = &mut config.agents.get_mut("default").unwrap().limits;
            limits.max_tokens_per_run = Some(400);
            limits.max_tool_calls_per_run = Some(20);
            limits.run_timeout = Some(Duration::from_secs(1));
        });
        start_on(setup, engine).await.unwrap()
    }
}

/// Returns the response to a request.
fn reply(random: &mut Random, n: usize, request: &Value, is_calm: bool) -> Reply {
    if !is_calm {
        match random.below(40) {
            0..3 => return Reply::Stall(vec![text("so ")]),
            3 => return Reply::Break(vec![text("so ")]),
            4 => return super::recovery::refused(),
            _ => {}
        }
    }
    let (input, agent) = (input_of(request), agent_of(request));
    let goes_on = match has_result(request) {
        true => random.one_in(6) && !is_calm,
        false => agent != "helper" || random.one_in(3),
    };
    if !goes_on {
        return Reply::Sse(answer_with("that is all"));
    }
    let name = match agent {
        "default" => "worker",
        "worker" => "helper",
        _ => "note",
    };
    let calls = 1 + random.below(2);
    let arguments = |call: u64| format!(r#"{{"input": "{input}/{n}.{call}"}}"#);
    let mut all: Vec<_> = (0..calls).map(|call| (name, arguments(call))).collect();
    if random.one_in(4) {
        all.push(("note", arguments(9)));
    }
    if random.one_in(8) {
        // The same call twice has one child.
        all.insert(1, (name, arguments(0)));
    }
    let all: Vec<_> = all.iter().map(|(name, input)| (*name, &**input)).collect();
    Reply::Sse(calls_to(&all))
}

/// Starts a run, as soon as the host has a place for it. `None` if the session is gone.
async fn start(session: &SessionHandle, input: &str) -> Option<StartedRun> {
    loop {
        match session.start_run(input).await {
            Ok(run) => return Some(run),
            Err(HostError::Full("run")) => sleep(Duration::from_millis(5)).await,
            Err(HostError::NoSuchSession(_) | HostError::SessionClosed) => return None,
            Err(error) => panic!("{input}: {error}"),
        }
    }
}

/// Disturbs a run, or one of its descendants, or not.
async fn disturb(
    world: &TreeTest,
    (host, is_dead): (&Host, &AtomicBool),
    session: &SessionHandle,
    run: &RunId,
    mut random: Random,
) {
    sleep(random.pause(250)).await;
    let action = random.below(12);
    let descendants = world.ledger.lock().open_descendants(run);
    let child = (!descendants.is_empty())
        .then(|| host.session(&descendants[random.below(descendants.len() as u64) as usize]));
    let done = match (action, child) {
        (0..3, _) => session.stop(StopMode::Now).await,
        (3, _) => session.stop(StopMode::AfterTurn).await,
        (4..6, _) => session.delete().await,
        (6, Some(child)) => child.stop(StopMode::Now).await,
        (7, Some(child)) => child.delete().await,
        _ => Ok(()),
    };
    match done {
        Ok(()) | Err(HostError::NoSuchSession(_) | HostError::SessionClosed) => {}
        // The journal of a host that ends is closed.
        Err(HostError::Journal(_)) if is_dead.load(Ordering::SeqCst) => {}
        Err(error) => panic!("{}: {action}: {error}", session.id()),
    }
}

/// Checks what the children of each stored session have used.
fn check_use(journal: &MemoryJournal, seed: u64) -> usize {
    let all = SessionQuery::default().with(|query| query.children = true);
    let mut checked = 0;
    for listed in stored(journal.list(&all)) {
        let entries = stored(journal.read(&listed.id, Seq(0)));
        let mut leases: BTreeMap<CallKey, AgentLease> = BTreeMap::new();
        for entry in &entries {
            if let Record::CallIntended { call, lease: Some(lease), .. } = &entry.record {
                leases.insert(call.key, *lease);
            }
        }
        for entry in &entries {
            let Record::CallEnded { call, outcome, notes, .. } = &entry.record else { continue };
            let (Some(child), None) = (&outcome.child, &notes.duplicate_of) else { continue };
            let (lease, place) = (leases[&call.key], format!("seed {seed}: {}", listed.id));
            let ChildUse { session, tokens, calls, .. } = &**child;
            let own = stored(journal.read(session, Seq(0)));
            if own.is_empty() {
                // It was deleted by itself.
                continue;
            }
            let (used, responses) = used(&own);
            assert_eq!((*tokens, *calls), used, "{place}: {session}");
            // The usage of a response is known when it ends: one response of each session may exceed the lease.
            let most = lease.tokens.unwrap() + responses * RESPONSE_TOKENS;
            assert!(*tokens <= most, "{place}: {tokens} tokens of {most}");
            assert!(*calls <= lease.calls.unwrap(), "{place}: {calls} calls of {lease:?}");
            checked += 1;
        }
    }
    checked
}

/// Returns the tokens and the calls of the run of a child session, and the number of sessions that made requests.
fn used(entries: &[JournalEntry]) -> ((u64, u32), u64) {
    let (mut tokens, mut sessions) = (0, 1);
    let mut calls: BTreeMap<CallKey, u32> = BTreeMap::new();
    for entry in entries {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "a test names the variants that it means"
        )]
        match &entry.record {
            Record::RunEnded { stats, .. } => tokens += stats.input_tokens + stats.output_tokens,
            // The calls of a response that is void do not count.
            Record::AttemptFailed { turn, attempt, kept: false, .. } => {
                calls.retain(|key, _| (key.turn, key.attempt) != (*turn, *attempt));
            }
            Record::CallEnded { call, outcome, notes, .. } => {
                let child = outcome.child.as_ref().filter(|_| notes.duplicate_of.is_none());
                let own = child.map_or(0, |child| child.calls);
                calls.insert(call.key, own + 1);
                if let Some(child) = child {
                    tokens += child.tokens;
                    sessions += 1;
                }
            }
            _ => {}
        }
    }
    let calls = calls.values().sum();
    ((tokens, calls), sessions)
}

/// Runs a parent to its end. Returns whether it was deleted.
async fn parent(world: &TreeTest, host: &Host, number: u64, seed: u64) -> bool {
    let mut random = Random(seed ^ (number << 20));
    let session = session(host).await;
    let started = start(&session, &format!("root{number}")).await.unwrap();
    drop(started.events);
    let run = started.run_id.clone();
    let lives = AtomicBool::new(false);
    let disturbed = disturb(world, (host, &lives), &session, &run, Random(random.below(u64::MAX)));
    let (report, ()) = futures::join!(timeout(3 * SOON, started.report), disturbed);
    let report = report.unwrap_or_else(|_| panic!("seed {seed}: {number} does not end"));
    let left = world.ledger.lock().open_descendants(&run);
    assert!(left.is_empty(), "seed {seed}: {left:?} go on after {number}");
    if random.one_in(10) {
        let _ = session.delete().await;
    }
    let is_deleted = !session.exists().await.unwrap();
    assert!(report.is_ok() || is_deleted, "seed {seed}: {:?}", report.err());
    is_deleted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stops_and_deletions_of_many_parents_leave_nothing() {
    let seed = number("CALLSHEET_TREE_SEED", u64::from(std::process::id()));
    let parents = number("CALLSHEET_TREES", 1000);
    eprintln!("seed {seed}");
    let world = TreeTest::new(seed);
    let is_dead = Arc::default();
    let provider = world.provider(&is_dead).await;
    let host = world.host(&provider, 16, &is_dead).await;
    let all = futures::stream::iter(0..parents).map(|number| parent(&world, &host, number, seed));
    let deleted: Vec<bool> = all.buffer_unordered(24).collect().await;
    let deleted = deleted.into_iter().filter(|deleted| *deleted).count();
    nothing_left(&host).await;
    sleep(IN_FLIGHT_MAX).await;
    let ledger = world.ledger.lock();
    ledger.check_end(seed);
    check_parents(&world.journal, seed);
    let checked = check_use(&world.journal, seed);
    assert!(host.inner.host_ref.shared.agent_trees.is_empty(), "seed {seed}");
    eprintln!(
        "{parents} parents, {deleted} deleted, {} runs: {:?}; {} requests, {} in flight at an end, {} leases",
        ledger.runs.len(),
        ledger.ends,
        world.requests.load(Ordering::SeqCst),
        ledger.in_flight,
        checked
    );
    for end in [RunEnd::Answered, RunEnd::Stopped, RunEnd::TimedOut, RunEnd::Failed] {
        let count = ledger.ends.get(&end).copied().unwrap_or_default();
        // On a busy machine most runs are out of time.
        assert!(count > 0, "seed {seed}: none ended as {end:?}");
    }
}

/// Checks that the call of each stored child session is stored.
fn check_parents(journal: &MemoryJournal, seed: u64) {
    let all = SessionQuery::default().with(|query| query.children = true);
    let ids = stored(journal.list(&all)).into_iter().map(|stored| stored.id);
    for child in ids.filter(is_child_session) {
        let first = stored(journal.read_some(&child, Seq(0), 1)).remove(0).record;
        let Record::SessionOpened { parent: Some(parent), .. } = first else { unreachable!() };
        let is_stored = stored(journal.read(&parent.session, Seq(0))).iter().any(|entry| {
            matches!(&entry.record, Record::RunStarted { run_id, .. } if *run_id == parent.run)
        });
        assert!(is_stored, "seed {seed}: {child} is an orphan of {}", parent.session);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_end_leave_no_orphans() {
    let seed = number("CALLSHEET_TREE_SEED", u64::from(std::process::id()));
    let hosts = number("CALLSHEET_TREE_HOSTS", 25);
    eprintln!("seed {seed}");
    let world = Arc::new(TreeTest::new(seed));
    let mut random = Random(seed);
    let ids: Vec<SessionId> =
        (0..20).map(|number| SessionId::parse(&format!("parent{number}")).unwrap()).collect();
    for number in 0..hosts {
        let is_dead = Arc::new(AtomicBool::new(false));
        let provider = world.provider(&is_dead).await;
        let host = world.host(&provider, 30, &is_dead).await;
        let shared = Arc::downgrade(&host.inner.host_ref.shared);
        let tasks: Vec<_> = ids
            .iter()
            .map(|id| {
                let (world, host, id) = (Arc::clone(&world), host.clone(), id.clone());
                let is_dead = Arc::clone(&is_dead);
                let mut random = Random(random.below(u64::MAX));
                spawn(async move {
                    for run in 0.. {
                        let _ = host.open_session(id.as_str()).await;
                        let session = host.session(&id);
                        let input = format!("{id}-{number}-{run}");
                        let run = match session.start_run(&*input).await {
                            Ok(run) => run.run_id,
                            // A run of the last host goes on.
                            Err(_) => match session.snapshot().await {
                                Ok(snapshot) => match snapshot.current_run {
                                    Some(run) => run.run_id,
                                    None => continue,
                                },
                                Err(_) => continue,
                            },
                        };
                        let one = Random(random.below(u64::MAX));
                        disturb(&world, (&host, &is_dead), &session, &run, one).await;
                    }
                })
            })
            .collect();
        sleep(random.pause(500)).await;
        {
            let _ledger = world.ledger.lock();
            is_dead.store(true, Ordering::SeqCst);
        }
        for task in tasks {
            task.abort();
            if let Err(error) = task.await
                && error.is_panic()
            {
                panic!("seed {seed}: {error}");
            }
        }
        drop(host);
        let gone = timeout(SOON, async {
            while shared.strong_count() > 0 {
                let held = std::mem::take(&mut *world.held.lock());
                for mut batch in held {
                    let error = JournalError::Write("the host is dead".to_owned());
                    batch.report(BatchStatus::Failed(error));
                }
                sleep(Duration::from_millis(1)).await;
            }
        });
        assert!(gone.await.is_ok(), "seed {seed}: something waits for a host that has ended");
    }
    world.is_calm.store(true, Ordering::SeqCst);
    let is_dead = Arc::default();
    let provider = world.provider(&is_dead).await;
    let host = world.host(&provider, 30, &is_dead).await;
    for id in host.quarantined_sessions() {
        let _ = host.session(&id).resume().await;
    }
    let ended = timeout(SOON, async {
        while host.counts().runs > 0
            || world.ledger.lock().runs.values().any(|run| run.ended.is_none())
            // The host also finishes the deletions that dead hosts have begun.
            || !find_unfinished_sessions(&*world.journal).await.unwrap().1.is_empty()
        {
            sleep(Duration::from_millis(1)).await;
        }
    });
    if ended.await.is_err() {
        for run in world.ledger.lock().runs.values().filter(|run| run.ended.is_none()) {
            let entries = stored(world.journal.read(&run.session, Seq(0)));
            let lines: Vec<_> = entries.iter().rev().take(40).map(JournalEntry::body).collect();
            let lines: Vec<_> =
                lines.iter().rev().map(|l| l.chars().take(400).collect::<String>()).collect();
            eprintln!(
                "{}: {:?}\n{}",
                run.session,
                host.session(&run.session).state(),
                lines.join("\n")
            );
        }
        panic!("seed {seed}: {:?}", host.counts());
    }
    nothing_left(&host).await;
    sleep(IN_FLIGHT_MAX).await;
    let ledger = world.ledger.lock();
    ledger.check_end(seed);
    check_parents(&world.journal, seed);
    let checked = check_use(&world.journal, seed);
    eprintln!(
        "{hosts} hosts, {} runs: {:?}; {} requests, {checked} leases",
        ledger.runs.len(),
        ledger.ends,
        world.requests.load(Ordering::SeqCst),
    );
}
