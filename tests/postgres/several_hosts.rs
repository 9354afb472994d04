//! Several hosts on one database: any of them takes any request.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callsheet::config::{ApiKey, BaseUrl, Config, TokenConfig, TokenScope};
use callsheet::server::ServerOptions;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::client::{HttpConnection, HttpResponse, StreamEvent, post};
use crate::host_directory::{HostDirectory, HostServer, decision};
use crate::hosts::Binary;
use crate::log::{open_with, until, within};
use crate::server::{TestDatabase, database};

const PEER_TOKEN: &str = "peer-token-of-the-tests";

/// Starts a host that the others can reach, with a configuration for all of them.
pub(crate) async fn start(directory: &HostDirectory, database: &TestDatabase) -> HostServer {
    start_with(directory, database, |_| ()).await
}

async fn start_with(
    directory: &HostDirectory,
    database: &TestDatabase,
    change: impl FnOnce(&mut Config),
) -> HostServer {
    start_at(directory, &database.url(), change).await
}

/// Starts a host on the database at a URL.
pub(crate) async fn start_at(
    directory: &HostDirectory,
    url: &str,
    change: impl FnOnce(&mut Config),
) -> HostServer {
    start_configured(directory, url, "", change).await
}

async fn start_configured(
    directory: &HostDirectory,
    url: &str,
    sections: &str,
    change: impl FnOnce(&mut Config),
) -> HostServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let journal = open_with(url, |options| options.advertise = Some(address.clone())).await;
    let mut options = ServerOptions::default();
    let setup = directory.setup_with("", sections, |config| {
        config.host.advertise = Some(BaseUrl::parse(&address).unwrap());
        config.host.peer_token = Some(ApiKey::new(PEER_TOKEN).unwrap());
        config.journal.lease = Duration::from_secs(2);
        change(config);
        options = ServerOptions::from(&*config).with(|options| {
            options.close_timeout = Duration::from_secs(10);
        });
    });
    HostServer::start_at(listener, setup.journal(journal), options).await.unwrap()
}

pub(crate) fn call(tool: &str, id: &str) -> Value {
    json!({"name": tool, "arguments": {"id": id}})
}

/// Sends a request with further header lines.
async fn send(host: &HostServer, method: &str, path: &str, headers: &str) -> HttpResponse {
    host.send(&format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n")).await
}

pub(crate) async fn shut_down(hosts: impl IntoIterator<Item = HostServer>) {
    for host in hosts {
        host.shutdown().await;
    }
}

#[tokio::test]
async fn any_host_takes_any_request() {
    let Some(database) = database().await else { return };
    let script = json!({"responses": [
        {"text": ["Let me "], "calls": [call("waits", "a")]},
        {"text": ["It ", "is done."]},
        {"text": ["Hello."]}]});
    let directory = HostDirectory::new(script).await;
    let (a, b) = (start(&directory, &database).await, start(&directory, &database).await);
    a.open("s").await;
    let again = b.post("/v1/sessions", json!({"id": "s"})).await;
    assert_eq!(again.status, 409, "{again:?}");
    // The events of a run that goes on at another host, as they come.
    let mut events = b.events("s", "0").await;
    let run = b.begin("s", json!({"input": "go"})).await;
    directory.control.until_logged("start a").await;
    assert!(a.host.counts().runs == 1 && b.host.counts().awake == 0, "the owner runs it");
    within(events.until("event: tool_use")).await;
    let snapshot = b.snapshot("s").await;
    assert_eq!(snapshot["state"], "running");
    assert_eq!(snapshot, a.snapshot("s").await);
    let busy = b.post("/v1/sessions/s/runs", json!({"input": "more"})).await;
    assert_eq!(busy.status, 409, "{busy:?}");
    let steered = b.post("/v1/sessions/s/steer", json!({"input": "and be short"})).await;
    assert_eq!(steered.status, 202, "{steered:?}");
    directory.control.release("a");
    within(events.until("event: stream_end")).await;
    let report = b.get(&format!("/v1/sessions/s/runs/{run}")).await;
    assert_eq!((report.status, &report.json()["text"]), (200, &json!("It is done.")), "{report:?}");
    let again = b.run("s", "hello").await;
    assert_eq!(again["text"], "Hello.");
    // History comes from any host.
    let records = b.get("/v1/sessions/s/records?limit=1000").await;
    assert_eq!(records.json(), a.get("/v1/sessions/s/records?limit=1000").await.json());
    let last = database.number("SELECT max(seq) FROM records").await;
    let forked = b.post("/v1/sessions/s/fork", json!({"at": last, "id": "f"})).await;
    assert_eq!(forked.status, 201, "{forked:?}");
    assert_eq!(a.snapshot("f").await["history"], b.snapshot("s").await["history"]);
    let hosts = b.get("/v1/hosts").await.json();
    let hosts = hosts["hosts"].as_array().unwrap().clone();
    let addresses: Vec<_> = hosts.iter().map(|host| host["address"].as_str().unwrap()).collect();
    assert_eq!(addresses, [format!("http://{}", a.addr()), format!("http://{}", b.addr())]);
    assert_eq!(hosts.iter().map(|host| host["this"] == true).collect::<Vec<_>>(), [false, true]);
    assert_eq!(b.delete("/v1/sessions/s").await.status, 204);
    assert_eq!(a.get("/v1/sessions/s").await.status, 404);
    drop(events);
    shut_down([a, b]).await;
}

#[tokio::test]
async fn a_hop_carries_the_caller() {
    let Some(database) = database().await else { return };
    let script = json!({"responses": [{"calls": [call("writes", "a")]}, {"text": ["Done."]}]});
    let directory = HostDirectory::new(script).await;
    let tokens = |config: &mut Config| {
        config.host.token = Some(ApiKey::new("the-token-of-the-host").unwrap());
        let token = |name: &str, scope: &[TokenScope]| {
            let secret = ApiKey::new(&format!("the-token-of-{name}")).unwrap();
            TokenConfig::new(name, secret, scope.iter().copied())
        };
        config.tokens = vec![
            token("clerk", &[TokenScope::Read, TokenScope::Run]),
            token("boss", &[TokenScope::Read, TokenScope::Approve]),
            token("other", &[TokenScope::Read, TokenScope::Run]).agents(["nobody"]),
        ];
        // The name of an agent that exists is checked at the start only.
        config.agents.insert("nobody".to_owned(), config.agents["default"].clone());
    };
    let a = start_with(&directory, &database, tokens).await;
    let b = start_with(&directory, &database, tokens).await;
    let bearer = |name: &str| format!("authorization: Bearer the-token-of-{name}\r\n");
    let send_json = async |host: &HostServer, path: &str, name: &str, body: Value| {
        host.send(&post(path, &bearer(name), &body.to_string())).await
    };
    let opened = send_json(&a, "/v1/sessions", "clerk", json!({"id": "s"})).await;
    assert_eq!(opened.status, 201, "{opened:?}");
    let refused = send_json(&b, "/v1/sessions/s/runs", "boss", json!({"input": "go"})).await;
    assert_eq!(refused.error(), (403, "forbidden_scope".to_owned()));
    let refused = send_json(&b, "/v1/sessions/s/runs", "other", json!({"input": "go"})).await;
    assert_eq!(refused.error(), (403, "forbidden_agent".to_owned()));
    let started =
        send_json(&b, "/v1/sessions/s/runs", "clerk", json!({"input": "go", "approval": "before"}))
            .await;
    assert_eq!(started.status, 202, "{started:?}");
    let snapshot = async || send(&b, "GET", "/v1/sessions/s", &bearer("boss")).await.json();
    until("it waits", async || snapshot().await["state"] == "waiting").await;
    let waiting = snapshot().await;
    let (tool_id, answer) = decision(&waiting["current_run"]["approvals"][0], "approve");
    let path = format!("/v1/sessions/s/approvals/{tool_id}");
    let decided = send_json(&b, &path, "boss", answer).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    until("it ends", async || snapshot().await["state"] == "idle").await;
    let records = send(&b, "GET", "/v1/sessions/s/records?limit=1000", &bearer("boss")).await;
    let authors: Vec<Value> = records.json()["records"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|record| record.get("authored_by").cloned())
        .collect();
    assert_eq!(authors, ["clerk", "boss"], "{records:?}");
    shut_down([a, b]).await;
}

#[tokio::test]
async fn lists_have_what_all_hosts_have() {
    let Some(database) = database().await else { return };
    let asks = json!({"when": {"turns": 0}, "calls": [call("writes", "a")], "repeat": true});
    let script = json!({"responses": [asks, {"text": ["Done."], "repeat": true}]});
    let directory = HostDirectory::new(script).await;
    let (a, b) = (start(&directory, &database).await, start(&directory, &database).await);
    for (host, session) in [(&a, "s1"), (&b, "s2"), (&a, "s3")] {
        let metadata = json!({"customer": if session == "s2" { "x" } else { "y" }});
        let opened = json!({"id": session, "metadata": metadata});
        assert_eq!(host.post("/v1/sessions", opened).await.status, 201);
        host.begin(session, json!({"input": "go", "approval": "before"})).await;
        host.until_snapshot(session, |snapshot| snapshot["state"] == "waiting").await;
    }
    for host in [&a, &b] {
        let mut found = Vec::new();
        let mut path = "/v1/approvals?limit=1".to_owned();
        loop {
            let page = host.get(&path).await.json();
            let listed = page["approvals"].as_array().unwrap();
            assert_eq!(listed.len(), 1, "{page}");
            found.push(listed[0]["session_id"].as_str().unwrap().to_owned());
            let Some(next) = page["next"].as_str() else { break };
            path = format!("/v1/approvals?limit=1&after={next}");
        }
        assert_eq!(found, ["s1", "s2", "s3"], "the oldest first");
        let of_customer = host.get("/v1/approvals?metadata.customer=x").await.json();
        assert_eq!(of_customer["approvals"].as_array().unwrap().len(), 1, "{of_customer}");
        let listed = host.get("/v1/sessions").await.json();
        let hosts: Vec<_> = listed["sessions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|session| session["host"].as_str().unwrap().to_owned())
            .collect();
        let [a, b] = [&a, &b].map(|host| format!("http://{}", host.addr()));
        assert_eq!(hosts, [a.clone(), b, a]);
        for session in listed["sessions"].as_array().unwrap() {
            assert_eq!(session["state"], "waiting", "{session}");
            assert_eq!(session["approvals_open"], 1, "{session}");
        }
    }
    a.open("idle").await;
    for host in [&a, &b] {
        for (state, expect) in [
            ("waiting", &["s1", "s2", "s3"][..]),
            ("running", &["s1", "s2", "s3"]),
            ("idle", &["idle"]),
            ("hibernated", &[]),
        ] {
            let mut found = Vec::new();
            let mut path = format!("/v1/sessions?limit=2&state={state}");
            loop {
                let page = host.get(&path).await.json();
                for session in page["sessions"].as_array().unwrap() {
                    found.push(session["id"].as_str().unwrap().to_owned());
                    let shown = session["state"].as_str().unwrap();
                    assert!(shown == state || state == "running", "{session}");
                }
                let Some(next) = page["next"].as_str() else { break };
                path = format!("/v1/sessions?limit=2&state={state}&after={next}");
            }
            assert_eq!(found, expect, "{state}");
        }
        let newest = host.get("/v1/sessions?state=waiting&order=newest&limit=2").await.json();
        let ids: Vec<_> = newest["sessions"].as_array().unwrap().iter().map(|s| &s["id"]).collect();
        assert_eq!(ids, ["s3", "s2"], "{newest}");
    }
    a.delete("/v1/sessions/idle").await;
    let deleted = b.delete("/v1/sessions?metadata.customer=y").await;
    assert_eq!(deleted.json()["count"], 2, "{deleted:?}");
    let left = a.get("/v1/sessions").await.json();
    assert_eq!(left["sessions"].as_array().unwrap().len(), 1, "{left}");
    shut_down([a, b]).await;
}

#[tokio::test]
async fn requests_between_hosts_are_checked() {
    let Some(database) = database().await else { return };
    let directory = HostDirectory::new(json!({"responses": [{"text": ["Hello."]}]})).await;
    let (a, b) = (start(&directory, &database).await, start(&directory, &database).await);
    a.open("s").await;
    let peer = format!("authorization: Bearer {PEER_TOKEN}\r\n");
    let get = async |host: &HostServer, headers: &str| {
        let answer = send(host, "GET", "/v1/sessions/s", headers).await;
        if answer.status == 200 { (200, String::new()) } else { answer.error() }
    };
    let to = |host: &HostServer| format!("callsheet-host: {}\r\n", host.host.id());
    let refused = |status: u16, code: &str| (status, code.to_owned());
    assert_eq!(get(&a, &(to(&a) + &peer)).await, refused(200, ""));
    // One hop at most.
    assert_eq!(get(&b, &(to(&b) + &peer)).await, refused(503, "session_moved"));
    assert_eq!(get(&a, &(to(&b) + &peer)).await, refused(421, "wrong_host"));
    assert_eq!(get(&a, &to(&a)).await, refused(401, "wrong_peer_token"));
    let wrong = "authorization: Bearer peer-token-of-another-cluster\r\n";
    assert_eq!(get(&a, &(to(&a) + wrong)).await, refused(401, "wrong_peer_token"));
    let told = "callsheet-caller: {\"name\":\"x\",\"scope\":[\"approve\"]}\r\n";
    assert_eq!(get(&a, &(to(&a) + &peer + told)).await, refused(403, "forbidden_scope"));
    let unknown = "callsheet-caller: {\"name\":\"x\",\"scope\":[\"everything\"]}\r\n";
    assert_eq!(get(&a, &(to(&a) + &peer + unknown)).await, refused(400, "invalid_request"));
    // Another host has another peer token.
    let c = start_with(&directory, &database, |config| {
        config.host.peer_token = Some(ApiKey::new("peer-token-of-another-cluster").unwrap());
    })
    .await;
    let answer = within(c.get("/v1/sessions/s")).await;
    assert_eq!(answer.error(), (502, "peer_not_reached".to_owned()), "{answer:?}");
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&a.addr().to_string()) && message.contains("peer token"), "{message}");
    shut_down([a, b, c]).await;
}

/// Hosts whose clocks differ have the clock of their database. For the second one, that is ten minutes fast.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_have_the_clock_of_their_database() {
    let Some(database) = database().await else { return };
    let directory = HostDirectory::new(json!({"responses": []})).await;
    let config = |variable: &str| {
        format!(
            "[host]\nlisten = \"127.0.0.1:0\"\nadvertise = \"http://127.0.0.1:0\"\n\
             [journal]\nengine = \"postgres\"\nurl_env = \"{variable}\"\nlease = \"2s\"\n"
        )
    };
    let usual = Binary::start_with(&database, &directory, &config("TEST_DATABASE_URL")).await;
    database
        .sql(
            "CREATE SCHEMA fast; CREATE FUNCTION fast.clock_timestamp() RETURNS timestamptz LANGUAGE sql
             AS $$ SELECT pg_catalog.clock_timestamp() + interval '10 minutes' $$",
        )
        .await;
    let fast = Binary::start_with(&database, &directory, &config("FAST_DATABASE_URL")).await;
    let now = database.number("SELECT (extract(epoch FROM now()) * 1000)::bigint").await;
    for (host, id) in [(&usual, "usual"), (&fast, "fast")] {
        let opened = host.send(&post("/v1/sessions", "", &json!({"id": id}).to_string())).await;
        assert_eq!(opened.status, 201, "{opened:?}");
    }
    let opened = database.sql("SELECT opened FROM sessions ORDER BY number").await;
    let ahead: Vec<i64> = opened.iter().map(|text| text.parse::<i64>().unwrap() - now).collect();
    assert!((0..10_000).contains(&ahead[0]), "{ahead:?}");
    assert!((600_000..610_000).contains(&ahead[1]), "{ahead:?}");
}

/// Opens the stream of several sessions.
async fn watch(host: &HostServer, query: &str) -> HttpConnection {
    let request = format!("GET /v1/events?{query} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut events = HttpConnection::open(host.addr(), &request).await;
    within(events.until("\r\n\r\n")).await;
    events
}

/// Returns the events of a session that have an id, each with its id and its text. The pieces of a text are joined.
pub(crate) fn texts(events: &[StreamEvent], session: &str) -> Vec<(String, String)> {
    let mut texts: Vec<(String, String)> = Vec::new();
    for event in events.iter().filter(|event| event.data["session_id"] == session) {
        let Some(id) = event.id.clone() else { continue };
        let text = event.data["text"].as_str().unwrap_or_default();
        let is_same_record = |last: &str| last.split('.').next() == id.split('.').next();
        match texts.last_mut().filter(|(last, _)| is_same_record(last)) {
            Some((last, before))
                if event.kind == "content_delta" && before.starts_with("content") =>
            {
                *last = id;
                before.push_str(text);
            }
            Some(_) | None => texts.push((id, format!("{} {text}", event.kind))),
        }
    }
    texts
}

#[tokio::test]
async fn one_stream_has_the_sessions_of_all_hosts() {
    let Some(database) = database().await else { return };
    let response = json!({"text": ["It ", "is ", "done."], "chunk_delay_ms": 5, "repeat": true});
    let directory = HostDirectory::new(json!({"responses": [response]})).await;
    let (a, b) = (start(&directory, &database).await, start(&directory, &database).await);
    a.open("s1").await;
    b.open("s2").await;
    a.run("s1", "before").await;
    let mut all = watch(&b, "sessions=*").await;
    let mut events = watch(&b, "sessions=s1,s2&after=s1:0,s2:0").await;
    let ends = |session: &'static str, count: usize| {
        move |events: &[StreamEvent]| {
            let is_end = |event: &&StreamEvent| {
                event.kind == "stream_end" && event.data["session_id"] == session
            };
            events.iter().filter(is_end).count() >= count
        }
    };
    within(events.until_events(ends("s1", 1))).await;
    a.run("s1", "go").await;
    within(events.until_events(ends("s1", 2))).await;
    b.run("s2", "go").await;
    within(events.until_events(ends("s2", 1))).await;
    a.open("s3").await;
    a.run("s3", "go").await;
    let states = within(all.until_events(|events| {
        let of = |state: &str, session: &str| {
            events.iter().any(|e| e.data["state"] == state && e.data["session_id"] == session)
        };
        of("running", "s1") && of("running", "s2") && of("running", "s3") && of("idle", "s3")
    }))
    .await;
    assert!(states.iter().all(|event| event.kind == "session_state"), "{states:?}");
    // A third host begins, the first one ends, and the session goes on at the new one, and then at the second.
    let c = start(&directory, &database).await;
    let last = within(all.until_events(|events| events.iter().any(|e| e.kind == "resync"))).await;
    assert_eq!(last.last().unwrap().data["id"], Value::Null, "its earlier states are unknown");
    a.shutdown().await;
    c.run("s1", "go").await;
    assert_eq!(c.host.counts().awake, 1, "the third host has it");
    within(events.until_events(ends("s1", 3))).await;
    c.shutdown().await;
    b.run("s1", "go").await;
    let joined = within(events.until_events(ends("s1", 4))).await;
    for session in ["s1", "s2"] {
        let mut alone = b.events(session, "0").await;
        let count = if session == "s1" { 4 } else { 1 };
        let alone = within(alone.until_events(ends(session, count))).await;
        assert_eq!(texts(&joined, session), texts(&alone, session), "{session}");
    }
    assert_eq!(b.delete("/v1/sessions/s1").await.status, 204);
    within(events.until("\"state\":\"closed\"")).await;
    let c = start(&directory, &database).await;
    assert_eq!(c.delete("/v1/sessions/s2").await.status, 204);
    within(events.read_rest()).await;
    assert_eq!(
        events.text().matches("\"state\":\"closed\"").count(),
        2,
        "it ends with the last one"
    );
    c.shutdown().await;
    drop(all);
    shut_down([b]).await;
}

/// An agent that calls another agent, and a tool whose calls wait for a person.
const AGENTS: &str = "
    [agents.default]
    model = \"rehearsal\"
    [agents.helper]
    model = \"rehearsal\"
    system = \"You are the helper.\"
    [tools.ask_helper]
    kind = \"agent\"
    agent = \"helper\"
    description = \"Asks the helper.\"";

/// Clients start runs at all hosts in turn, with sub-agents and approvals, while each host ends and another one begins.
#[tokio::test]
async fn a_rolling_restart_fails_no_request() {
    let Some(database) = database().await else { return };
    let of_helper = "You are the helper.";
    let script = json!({"responses": [
        {"when": {"contains": of_helper, "turns": 0}, "calls": [call("quick", "h")],
         "chunk_delay_ms": 5, "repeat": true},
        {"when": {"contains": of_helper}, "text": ["I ", "helped."], "chunk_delay_ms": 10, "repeat": true},
        {"when": {"turns": 0}, "repeat": true, "chunk_delay_ms": 5, "calls": [
            {"name": "ask_helper", "arguments": {"input": "Help."}}, call("writes", "w")]},
        {"text": ["It ", "is ", "done."], "chunk_delay_ms": 20, "repeat": true}]});
    let directory = HostDirectory::new(script).await;
    let start = async || start_agents(&directory, &database).await;
    let mut hosts = vec![start().await, start().await, start().await];
    let addresses =
        parking_lot::RwLock::new(hosts.iter().map(HostServer::addr).collect::<Vec<_>>());
    let address = |at: usize| {
        let all = addresses.read();
        all[at % all.len()]
    };
    let send = async |address, request: String| {
        let mut reading = HttpConnection::open(address, &request).await;
        within(reading.read_rest()).await;
        reading.response()
    };
    let is_over = AtomicBool::new(false);
    let client = async |number: usize| {
        let (session, mut runs) = (format!("s{number}"), 0);
        let mut opened = false;
        while !is_over.load(Ordering::Relaxed) {
            let (path, body) = match opened {
                false => ("/v1/sessions".to_owned(), json!({"id": session})),
                true => (
                    format!("/v1/sessions/{session}/runs"),
                    json!({"input": "go", "wait": true, "approval": "writes"}),
                ),
            };
            let address = address(number + runs);
            let answer =
                send(address, post(&path, "connection: close\r\n", &body.to_string())).await;
            assert!(answer.status < 300, "{path} at {address}: {answer:?}");
            if opened {
                assert_eq!(answer.json()["run_end"], "answered", "{answer:?}");
                runs += 1;
            }
            opened = true;
        }
        runs
    };
    let people = async {
        let (mut at, mut decided) = (0, 0);
        while !is_done(&is_over, &database).await {
            at += 1;
            let list = "GET /v1/approvals HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            let listed = send(address(at), list.to_owned()).await.json();
            for open in listed["approvals"].as_array().unwrap() {
                let (tool_id, answer) = decision(open, "approve");
                let session = open["session_id"].as_str().unwrap();
                let path = format!("/v1/sessions/{session}/approvals/{tool_id}");
                let request = post(&path, "connection: close\r\n", &answer.to_string());
                let answer = send(address(at + 1), request).await;
                // Another list may have had it, too.
                assert!([200, 404].contains(&answer.status), "{answer:?}");
                decided += usize::from(answer.status == 200);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        decided
    };
    let restarts = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let old = hosts.remove(0);
            let new = start().await;
            // As a load balancer does: the new one first, and then no more connections to the old one.
            {
                let mut all = addresses.write();
                all.retain(|address| *address != old.addr());
                all.push(new.addr());
            }
            hosts.push(new);
            old.shutdown().await;
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let clients = futures::future::join_all((0..8).map(client));
    let (runs, decided, ()) = tokio::join!(clients, people, restarts);
    let runs = runs.iter().sum::<usize>();
    let count = async |text: &str| {
        let condition = format!("convert_from(body, 'UTF8') LIKE '%{text}%'");
        database.number(&format!("SELECT count(*) FROM records WHERE {condition}")).await
    };
    let ended = count("\"run_ended\"").await;
    // Each run and that of its helper.
    assert!(runs > 10 && usize::try_from(ended) == Ok(2 * runs), "{runs} {ended}");
    assert!(decided >= runs, "{decided} {runs}");
    assert_eq!(count("interrupted").await, 0);
    shut_down(hosts).await;
    assert_eq!(crate::hosts::verify_all(&database).await, 8 + runs);
}

async fn start_agents(directory: &HostDirectory, database: &TestDatabase) -> HostServer {
    start_configured(directory, &database.url(), AGENTS, |_| ()).await
}

/// Returns whether the clients have ended, and no run is open any more.
async fn is_done(is_over: &AtomicBool, database: &TestDatabase) -> bool {
    is_over.load(Ordering::Relaxed) && database.number("SELECT count(*) FROM running").await == 0
}

#[cfg(feature = "faces")]
#[tokio::test]
async fn any_host_takes_requests_of_other_clients() {
    let Some(database) = database().await else { return };
    let script = json!({"responses": [
        {"text": ["One."]}, {"text": ["Two."]}, {"text": ["Three."]}, {"text": ["Four."]},
        {"text": ["Hello."]}, {"text": ["Hello again."]},
        {"text": ["Five ", "and six."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]}]});
    let directory = HostDirectory::new(script).await;
    let (a, b) = (start(&directory, &database).await, start(&directory, &database).await);
    let first = a.post("/v1/responses", json!({"model": "default", "input": "go"})).await.json();
    let id = first["id"].as_str().unwrap();
    let stored = b.get(&format!("/v1/responses/{id}")).await;
    assert_eq!(stored.json()["output"], first["output"], "{stored:?}");
    let next = json!({"model": "default", "input": "on", "previous_response_id": id});
    let second = b.post("/v1/responses", next).await.json();
    assert_eq!(second["output"][0]["content"][0]["text"], "Two.", "{second}");
    assert_eq!(second["conversation"], first["conversation"], "the session is not forked");
    // A client that names no session is recognised by its history, at any host.
    let user = |text: &str| json!({"role": "user", "content": text});
    let mut messages = vec![user("hello")];
    for (host, expect) in [(&a, "Three."), (&b, "Four.")] {
        let body = json!({"model": "default", "messages": messages});
        let answer = host.post("/v1/chat/completions", body).await;
        let message = answer.json()["choices"][0]["message"].clone();
        assert_eq!(message["content"], expect, "{answer:?}");
        messages.extend([message, user("and now?")]);
    }
    let listed = a.get("/v1/sessions").await.json();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 2, "{listed}");
    // A request that is sent again to another host joins the run.
    let body = json!({"model": "default", "messages": [user("hello")]}).to_string();
    for [first, again] in [["", "x-stainless-retry-count: 1\r\n"], ["idempotency-key: k\r\n"; 2]] {
        let path = "/v1/chat/completions";
        let first = a.send(&post(path, first, &body)).await;
        let again = b.send(&post(path, again, &body)).await;
        assert_eq!(again.json()["choices"], first.json()["choices"], "{again:?}");
        assert_eq!(again.header("x-callsheet-session"), first.header("x-callsheet-session"));
    }
    // A page that joins at another host sees the whole answer.
    let input = json!([{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "go"}]}]);
    let body = json!({"id": "page", "trigger": "submit-message", "messages": input}).to_string();
    let mut page = HttpConnection::open(a.addr(), &post("/v1/ui/default", "", &body)).await;
    directory.model.wait_for_gate("middle").await;
    let join =
        "GET /v1/ui/default/page/stream HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let mut joined = HttpConnection::open(b.addr(), join).await;
    within(joined.until("Five ")).await;
    directory.model.open_gate("middle");
    for reading in [&mut page, &mut joined] {
        within(reading.until("[DONE]")).await;
        assert!(reading.text().contains("and six."), "{}", reading.text());
    }
    shut_down([a, b]).await;
}
