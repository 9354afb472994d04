//! Three hosts with one database under load, while hosts are killed, stopped for longer than their lease, and replaced,
//! and the database is killed. Then a checker reads what clients, the tool and the journal have.
//!
//! `CALLSHEET_CHAOS_SECONDS` and `CALLSHEET_CHAOS_SEED` let it run for longer, and again.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use callsheet::journal::{PostgresReader, SessionQuery, verify};
use callsheet::record::{Record, Seq};
use callsheet::types::RunEnd;
use parking_lot::{Mutex, RwLock};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::{StreamEvent, parse_events};
use crate::effects::Effects;
use crate::host_directory::HostDirectory;
use crate::hosts::Binary;
use crate::log::id;
use crate::rng::SeededRng;
use crate::server::own_database;
use crate::several_hosts::texts;

/// The time for which a client waits for a run: several takeovers.
const RUN_MAX: Duration = Duration::from_secs(60);

/// The lease of the hosts, and the time for which one stands still.
const LEASE: Duration = Duration::from_secs(2);
const STOPPED: Duration = Duration::from_millis(3_500);

/// The time after the last fault within which a client has seen everything.
const QUIET: Duration = Duration::from_secs(5);

const CLIENTS: usize = 6;

/// The hosts as the clients reach them, and the state of the test that all clients share.
struct ClientState {
    addresses: RwLock<Vec<SocketAddr>>,
    http: reqwest::Client,
    is_over: AtomicBool,
    /// The longest time in which no host has answered a new session's request, in milliseconds.
    longest_wait: AtomicU64,
}

impl ClientState {
    fn address(&self, rng: &mut SeededRng) -> SocketAddr {
        let addresses = self.addresses.read();
        addresses[usize::try_from(rng.below(addresses.len() as u64)).unwrap()]
    }

    /// Sends a request to one host after the other, until it is answered for good.
    async fn post(
        &self,
        rng: &mut SeededRng,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> Value {
        let began = Instant::now();
        let mut last = String::new();
        while began.elapsed() < RUN_MAX {
            let url = format!("http://{}{path}", self.address(rng));
            let mut request = self.http.post(&url).json(body);
            if let Some(key) = key {
                request = request.header("idempotency-key", key);
            }
            match request.send().await {
                Ok(answer) => {
                    let status = answer.status().as_u16();
                    let text = answer.text().await.unwrap_or_default();
                    match status {
                        200..300 => return serde_json::from_str(&text).unwrap(),
                        // An earlier attempt has opened it.
                        409 if path == "/v1/sessions" => return Value::Null,
                        500 | 502 | 503 => last = format!("{status} {text}"),
                        _ => panic!("{url} {body}: {status} {text}"),
                    }
                }
                Err(error) => last = format!("{url}: {error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{path} {body} is not answered: {last}");
    }
}

/// Runs of one client in its session. Returns the ids of the runs by their keys.
async fn client(
    shared: &ClientState,
    number: usize,
    mut rng: SeededRng,
) -> BTreeMap<String, String> {
    let session = format!("s{number}");
    shared.post(&mut rng, "/v1/sessions", None, &json!({"id": session})).await;
    let mut runs = BTreeMap::new();
    while !shared.is_over.load(Ordering::Relaxed) {
        let key = format!("key-{number}-{}", runs.len());
        let body = json!({"input": "go", "wait": true});
        let path = format!("/v1/sessions/{session}/runs");
        let began = Instant::now();
        let report = shared.post(&mut rng, &path, Some(&key), &body).await;
        let took = u64::try_from(began.elapsed().as_millis()).unwrap();
        shared.longest_wait.fetch_max(took, Ordering::Relaxed);
        assert_eq!(report["run_end"], "answered", "{report}");
        runs.insert(key, report["run_id"].as_str().unwrap().to_owned());
    }
    runs
}

/// Watches a session, and connects again anywhere with the id of the last event, until nothing has come for a while after
/// the last run.
async fn watcher(shared: &ClientState, session: &str, mut rng: SeededRng) -> Vec<StreamEvent> {
    let mut all: Vec<StreamEvent> = Vec::new();
    // Also the end of the faults.
    let mut last_news = Instant::now();
    let mut was_over = false;
    let mut has_news = |last: &mut Instant| {
        let is_over = shared.is_over.load(Ordering::Relaxed);
        if is_over && !std::mem::replace(&mut was_over, is_over) {
            *last = Instant::now();
        }
        !is_over || last.elapsed() < QUIET
    };
    while has_news(&mut last_news) {
        let after = all.iter().rev().find_map(|event| event.id.clone()).unwrap_or("0".to_owned());
        let url = format!("http://{}/v1/sessions/{session}/events", shared.address(&mut rng));
        let asked = shared.http.get(&url).header("last-event-id", after).send();
        let asked = tokio::time::timeout(QUIET, asked).await;
        if let Ok(Ok(mut answer)) = asked
            && answer.status().is_success()
        {
            let mut text = String::new();
            while has_news(&mut last_news) {
                match tokio::time::timeout(Duration::from_millis(500), answer.chunk()).await {
                    Ok(Ok(Some(chunk))) => {
                        last_news = Instant::now();
                        text.push_str(std::str::from_utf8(&chunk).unwrap());
                    }
                    Ok(Ok(None) | Err(_)) => break,
                    // Nothing has come.
                    Err(_) => {}
                }
            }
            let whole = text.rfind("\n\n").map_or(0, |end| end + 2);
            all.extend(parse_events(&text[..whole]));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn every_acknowledged_record_is_there_once_and_no_effect_twice() {
    let Some(database) = own_database(&[]).await else { return };
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = setting("CALLSHEET_CHAOS_SECONDS").unwrap_or(8);
    let seed = setting("CALLSHEET_CHAOS_SEED").unwrap_or(17);
    let mut rng = SeededRng::new(seed);
    let directory = HostDirectory::new(json!({"responses": [
        {"when": {"turns": 0}, "calls": [{"name": "pay", "arguments": {"id": "a"}}],
         "chunk_delay_ms": 5, "repeat": true},
        {"text": ["It ", "is ", "done."], "chunk_delay_ms": 5, "repeat": true}]}))
    .await;
    std::fs::create_dir_all(&directory.dir).unwrap();
    let effects = Effects::start(&directory.dir.join("effects")).await;
    let config = format!(
        "[host]\nlisten = \"127.0.0.1:0\"\nadvertise = \"http://127.0.0.1:0\"\nidle_after = \"300ms\"\n\
         shutdown_grace = \"2s\"\n\
         [journal]\nengine = \"postgres\"\nurl_env = \"TEST_DATABASE_URL\"\nlease = \"2s\"\n\
         [models.m]\nbase_url = \"{}\"\nmodel = \"mock\"\n\
         [agents.default]\nmodel = \"m\"\ntools = [\"pay\"]\n\
         [tools.pay]\nkind = \"http\"\nmethod = \"POST\"\ndescription = \"Pays.\"\n\
         url = \"http://127.0.0.1:{}/slow/{{id}}\"\ninput = {{ id = {{ type = \"string\" }} }}\n",
        directory.model.base_url(),
        effects.port
    );
    let start = async || Binary::start_with(&database, &directory, &config).await;
    let mut hosts = [start().await, start().await, start().await];
    let shared = ClientState {
        addresses: RwLock::new(hosts.iter().map(|host| host.addr).collect()),
        http: callsheet_tools::tls::client(reqwest::Client::builder().no_proxy().timeout(RUN_MAX))
            .unwrap(),
        is_over: AtomicBool::new(false),
        longest_wait: AtomicU64::new(0),
    };
    let done = Mutex::new(Vec::new());
    let rngs: Vec<_> = std::iter::repeat_with(|| rng.split()).take(CLIENTS + 1).collect();
    let faults = async {
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(200 + rng.below(800))).await;
            let at = usize::try_from(rng.below(hosts.len() as u64)).unwrap();
            let fault = rng.below(4);
            let renew = |old: SocketAddr, new: SocketAddr| {
                let mut addresses = shared.addresses.write();
                addresses.retain(|address| *address != old);
                addresses.push(new);
            };
            match fault {
                0 => {
                    done.lock().push("kill");
                    let old = hosts[at].addr;
                    hosts[at].signal(Signal::KILL);
                    tokio::time::sleep(Duration::from_millis(rng.below(1_500))).await;
                    hosts[at] = start().await;
                    renew(old, hosts[at].addr);
                }
                1 => {
                    done.lock().push("stop");
                    hosts[at].stop();
                    tokio::time::sleep(STOPPED).await;
                    hosts[at].signal(Signal::CONT);
                }
                2 => {
                    done.lock().push("replace");
                    let new = start().await;
                    let mut old = std::mem::replace(&mut hosts[at], new);
                    renew(old.addr, hosts[at].addr);
                    old.signal(Signal::TERM);
                    old.wait().await;
                }
                _ => {
                    done.lock().push("database");
                    database.server.stop(Signal::KILL);
                    tokio::time::sleep(Duration::from_millis(rng.below(1_000))).await;
                    database.server.run().await;
                }
            }
        }
        shared.is_over.store(true, Ordering::Relaxed);
    };
    let clients = rngs.iter().take(CLIENTS).enumerate();
    let clients = clients.map(|(number, rng)| client(&shared, number, rng.clone()));
    let clients = futures::future::join_all(clients);
    let watched = watcher(&shared, "s0", rngs[CLIENTS].clone());
    let (runs, watched, ()) = tokio::join!(clients, watched, faults);
    let count: usize = runs.iter().map(BTreeMap::len).sum();
    let done = done.into_inner();
    let longest = shared.longest_wait.load(Ordering::Relaxed);
    eprintln!("seed {seed}: {count} runs, faults {done:?}, longest run {longest} ms");
    assert!(count > CLIENTS, "{count}");

    // No effect twice.
    let mut keys = BTreeSet::new();
    for effect in effects.done() {
        assert!(keys.insert(effect.key.clone()), "{} happened twice", effect.key);
    }
    // Each run that was acknowledged is there once, and has answered.
    let reader = PostgresReader::open(&database.url()).await.unwrap();
    let query = SessionQuery::default().with(|query| query.children = true);
    let sessions = reader.list(&query).await.unwrap();
    assert_eq!(sessions.len(), CLIENTS);
    let mut succeeded = 0;
    for (number, acknowledged) in runs.iter().enumerate() {
        let session = id(&format!("s{number}"));
        let entries = reader.read(&session, Seq(0)).await.unwrap();
        let breaches = verify(&session, &entries);
        assert!(breaches.is_empty(), "{session}: {breaches:?}");
        let (mut started, mut ended) = (Vec::new(), 0);
        for entry in &entries {
            if let Record::RunStarted { run_id, .. } = &entry.record {
                started.push(run_id.0.to_string());
            } else if let Record::RunEnded { end, .. } = &entry.record {
                assert_eq!(*end, RunEnd::Answered, "{session}");
                ended += 1;
            }
            succeeded += entry.body().matches("\"status\":\"success\"").count();
        }
        let expected: BTreeSet<String> = acknowledged.values().cloned().collect();
        assert_eq!(expected.len(), acknowledged.len(), "each key has its own run");
        assert_eq!(started.iter().cloned().collect::<BTreeSet<_>>(), expected, "{session}");
        assert_eq!((started.len(), ended), (expected.len(), expected.len()), "{session}");
    }
    assert!(succeeded <= keys.len(), "a call that has succeeded has had its effect");
    // A client that watched has seen what is stored.
    let all = shared.http.get(format!("http://{}/v1/sessions/s0/events?after=0", hosts[0].addr));
    let mut answer = all.send().await.unwrap();
    let mut text = String::new();
    while let Ok(Ok(Some(chunk))) =
        tokio::time::timeout(LEASE + Duration::from_secs(1), answer.chunk()).await
    {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        if text.matches("event: stream_end").count() >= runs[0].len() {
            break;
        }
    }
    let (seen, stored) = (texts(&watched, "s0"), texts(&parse_events(&text), "s0"));
    let ends = |texts: &[(String, String)]| -> Vec<(String, String)> {
        texts.iter().filter(|(_, text)| text.starts_with("stream_end")).cloned().collect()
    };
    assert_eq!(ends(&seen), ends(&stored));
}
