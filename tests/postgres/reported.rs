//! Faults that users of other systems have reported, where several workers use one database: a test for each.
//!
//! | report | test |
//! | --- | --- |
//! | dbos-transact-py#716: a restart of the database in a recovery strands work | `a_restart_of_the_database_in_a_takeover_strands_nothing` |
//! | dbos-transact-py#742: two workers recover one run | `a_run_is_taken_over_once` |
//! | dbos-transact-py#804: a draining process takes its work back | `a_draining_host_takes_nothing_back` |
//! | dbos-transact-py#453, dbos-transact-golang#174: recovery needs a restart | `a_run_is_taken_over_once` |
//! | turnstone#988, agent-workspace-fabric#423, parsar#568: zombies write | `a_host_that_stands_still_writes_nothing_later` |
//! | hermescopy#278: a lease stuck in starting | `a_host_that_is_killed_in_its_start_holds_nothing` |
//! | agentfield#987, illospace#422, paperclip#9949: a deploy fails the runs in flight | `several_hosts::a_rolling_restart_fails_no_request` |
//! | boxel#4639: a dead worker holds leases for hours | `a_host_that_stands_still_writes_nothing_later` |
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use callsheet::journal::{Journal as _, PostgresReader};
use callsheet::record::{Record, Seq};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::post;
use crate::host_directory::HostDirectory;
use crate::hosts::Binary;
use crate::log::{id, open_at, open_with, until, within};
use crate::proxy::{Mode, Proxy};
use crate::server::{TestDatabase, database, own_database};
use crate::several_hosts::{call, shut_down, start, start_at};

fn is_idle(snapshot: &Value) -> bool {
    snapshot["state"] == "idle"
}

/// A run with a call that has effects, and whose answer is held in the middle.
async fn held() -> HostDirectory {
    HostDirectory::new(json!({"responses": [
        {"calls": [call("writes", "a")]},
        {"text": ["It ", "is lost."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
        {"text": ["It is ", "done."]}]}))
    .await
}

/// Returns the number of ends of runs of a session.
async fn ended(database: &TestDatabase, session: &str) -> usize {
    let reader = PostgresReader::open(&database.url()).await.unwrap();
    let entries = reader.read(&id(session), Seq(0)).await.unwrap();
    entries.iter().filter(|entry| matches!(entry.record, Record::RunEnded { .. })).count()
}

#[tokio::test]
async fn a_restart_of_the_database_in_a_takeover_strands_nothing() {
    let Some(database) = own_database(&[]).await else { return };
    let directory = held().await;
    let (a, b) = (start(&directory, &database).await, start(&directory, &database).await);
    a.open("s").await;
    a.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    a.crash().await;
    database.server.stop(Signal::KILL);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    database.server.run().await;
    let asked = async || b.get("/v1/sessions/s").await.status == 200;
    until("the session is read again", asked).await;
    b.until_snapshot("s", is_idle).await;
    assert_eq!(directory.control.log(), ["start a", "end a"], "no effect is repeated");
    assert_eq!(ended(&database, "s").await, 1);
    shut_down([b]).await;
}

#[tokio::test]
async fn a_run_is_taken_over_once() {
    let Some(database) = database().await else { return };
    let directory = held().await;
    let a = start(&directory, &database).await;
    let (b, c) = (start(&directory, &database).await, start(&directory, &database).await);
    a.open("s").await;
    a.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    a.crash().await;
    // No request asks for the session, and no host is started.
    until("it has ended", async || ended(&database, "s").await == 1).await;
    let hosts = [b.host.counts(), c.host.counts()];
    assert_eq!(hosts.iter().filter(|counts| counts.awake == 1).count(), 1, "{hosts:?}");
    assert_eq!(directory.control.log(), ["start a", "end a"]);
    assert_eq!(
        directory.model.requests().len(),
        3,
        "the answer is asked for twice, and not thrice"
    );
    shut_down([b, c]).await;
}

#[tokio::test]
async fn a_draining_host_takes_nothing_back() {
    let Some(database) = database().await else { return };
    let script = json!({"responses": [
        {"when": {"last_user": "slow"}, "text": ["It ", "is ", "slow."],
         "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
        {"text": ["Hello."], "repeat": true}]});
    let directory = HostDirectory::new(script).await;
    let (a, b) = (start(&directory, &database).await, start(&directory, &database).await);
    for session in ["idle", "slow"] {
        a.open(session).await;
    }
    a.begin("slow", json!({"input": "slow"})).await;
    directory.model.wait_for_gate("middle").await;
    let address = a.addr();
    let draining = async {
        a.shutdown().await;
        Instant::now()
    };
    let others = async {
        // An idle session is handed over although the other one has a turn.
        b.run("idle", "hello").await;
        // Longer than the interval at which hosts look for trees.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let owner = database
            .sql(
                "SELECT h.address FROM sessions s JOIN trees t USING (root)
            JOIN hosts h ON h.id = t.owner WHERE s.id = 'idle'",
            )
            .await;
        assert_eq!(owner, [format!("http://{}", b.addr())]);
        let state = crate::client::HttpConnection::open(
            address,
            "GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        );
        let mut state = state.await;
        within(state.read_rest()).await;
        assert_eq!(state.response().error(), (503, "draining".to_owned()));
        directory.model.open_gate("middle");
        Instant::now()
    };
    let (ended_at, opened_at) = tokio::join!(draining, others);
    assert!(ended_at > opened_at, "it waits for the turn");
    let slow = b.until_snapshot("slow", is_idle).await;
    assert_eq!(slow["history"].as_array().unwrap().last().unwrap()["content"], "It is slow.");
    shut_down([b]).await;
}

#[tokio::test]
async fn a_host_that_stands_still_writes_nothing_later() {
    let Some(database) = database().await else { return };
    let proxy = Proxy::start(database.server.port).await;
    let directory = held().await;
    let a = start_at(&directory, &database.url_at(proxy.port), |_| ()).await;
    let b = start(&directory, &database).await;
    a.open("s").await;
    a.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    proxy.set(Mode::Freeze);
    b.until_snapshot("s", is_idle).await;
    let records = database.number("SELECT count(*) FROM records").await;
    // The zombie goes on with its answer.
    directory.model.open_gate("middle");
    proxy.set(Mode::Pass);
    until("it has left the zombie", async || a.host.counts().awake == 0).await;
    assert_eq!(database.number("SELECT count(*) FROM records").await, records);
    assert_eq!(ended(&database, "s").await, 1);
    assert_eq!(directory.control.log(), ["start a", "end a"]);
    shut_down([a, b]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_killed_in_its_start_holds_nothing() {
    let Some(database) = database().await else { return };
    let beside = open_at(&database.url(), "http://beside:1").await;
    let directory = HostDirectory::new(json!({"responses": []})).await;
    let config = "[host]\nlisten = \"127.0.0.1:0\"\nadvertise = \"http://10.9.8.7:1\"\n\
                  [journal]\nengine = \"postgres\"\nurl_env = \"TEST_DATABASE_URL\"\nlease = \"2s\"\n";
    for delay in [5, 20, 60] {
        let killed =
            Binary::kill_in_start(&database, &directory, config, Duration::from_millis(delay));
        killed.await;
    }
    // Another one with its address waits for one lease at most: then it would fail.
    let next = open_with(&database.url(), |options| {
        options.advertise = Some("http://10.9.8.7:1".to_owned());
    })
    .await;
    within(next.close()).await;
    within(beside.close()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_has_stood_still_does_not_answer_from_its_memory() {
    let Some(database) = database().await else { return };
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["It ", "is lost."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
        {"text": ["It is done."]}, {"text": ["It goes on."]}]}))
    .await;
    let config = format!(
        "[host]\nlisten = \"127.0.0.1:0\"\nadvertise = \"http://127.0.0.1:0\"\n\
         [journal]\nengine = \"postgres\"\nurl_env = \"TEST_DATABASE_URL\"\nlease = \"2s\"\n\
         [models.m]\nbase_url = \"{}\"\nmodel = \"mock\"\n[agents.default]\nmodel = \"m\"\n",
        directory.model.base_url(),
    );
    let a = Binary::start_with(&database, &directory, &config).await;
    let b = Binary::start_with(&database, &directory, &config).await;
    assert_eq!(a.send(&post("/v1/sessions", "", r#"{"id":"s"}"#)).await.status, 201);
    let began = a.send(&post("/v1/sessions/s/runs", "", r#"{"input":"go","wait":false}"#)).await;
    assert_eq!(began.status, 202, "{began:?}");
    directory.model.wait_for_gate("middle").await;
    a.stop();
    // Before anything else it reads these requests when it goes on: it has the run in memory, which has ended.
    let read = a.send("GET /v1/sessions/s HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let more = r#"{"input":"more","wait":true}"#;
    let more = post("/v1/sessions/s/runs", "", more);
    let run = a.send(&more);
    let goes_on = async {
        within(async {
            while ended(&database, "s").await == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        a.signal(Signal::CONT);
    };
    let (read, run, ()) = tokio::join!(read, run, goes_on);
    assert_eq!((read.status, run.status), (200, 200), "{read:?} {run:?}");
    assert!(read.json()["history"].to_string().contains("It is done."), "{read:?}");
    assert_eq!(run.json()["text"], "It goes on.", "{run:?}");
    drop((a, b));
}
