//! Restarts: a new host continues after a shutdown or a crash.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use crate::client::{ended_runs, post, reproducible_lines};
use crate::host_directory::{HostDirectory, HostServer, decision, until, within};
use axum::Router;
use axum::response::{IntoResponse, Response};
use callsheet::SessionState;
use callsheet::journal::JournalEntry;
use callsheet::record::Record;
use callsheet::types::WaitPhase;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

const MANUAL: &str = "[journal]\nresume = \"manual\"";

fn call(tool: &str, id: &str) -> Value {
    json!({"name": tool, "arguments": {"id": id}})
}

fn is_idle(snapshot: &Value) -> bool {
    snapshot["state"] == "idle"
}

fn inputs(snapshot: &Value) -> Vec<&str> {
    let history = snapshot["history"].as_array().unwrap().iter();
    let users = history.filter(|message| message["role"] == "user");
    users.map(|message| message["content"].as_str().unwrap()).collect()
}

/// Returns the run ends of a session's runs.
fn run_ends(directory: &HostDirectory, session: &str) -> Vec<String> {
    let ends = directory.entries(session).into_iter().filter_map(|entry| {
        let Record::RunEnded { end, .. } = entry.record else { return None };
        Some(end.as_str().to_owned())
    });
    ends.collect()
}

async fn service(script: Value, rest: &str) -> (HostDirectory, HostServer) {
    let directory = HostDirectory::new(script).await;
    let served = directory.start("", rest).await;
    served.open("s").await;
    (directory, served)
}

/// Returns a script whose second text hangs in the first attempt.
fn hanging_script() -> Value {
    json!({"responses": [
        {"reasoning": ["Hm."], "text": ["Let me "], "calls": [call("writes", "a")]},
        {"text": ["It ", "is lost."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
        {"text": ["It is ", "done."]}]})
}

#[tokio::test]
async fn idle_sessions_survive_a_restart() {
    let (directory, served) = service(hanging_script(), "").await;
    directory.model.open_gate("middle");
    let messages = json!([{"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello."}]);
    let opened = json!({"id": "t", "messages": messages});
    assert_eq!(served.post("/v1/sessions", opened).await.status, 201);
    served.run("s", "go").await;
    let before = (served.snapshot("s").await, served.snapshot("t").await);
    assert_eq!(before.1["history"], messages);
    served.shutdown().await;
    let served = directory.start("", "").await;
    assert_eq!((served.snapshot("s").await, served.snapshot("t").await), before);
    assert_eq!(served.host.counts().sessions, 2);
    served.crash().await;
    let served = directory.start("", "").await;
    assert_eq!((served.snapshot("s").await, served.snapshot("t").await), before);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_run_resumes_after_a_crash() {
    let (directory, served) = service(hanging_script(), "").await;
    served.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    assert_eq!(directory.control.log(), ["start a", "end a"]);
    let steered = served.post("/v1/sessions/s/steer", json!({"input": "and more"})).await;
    assert_eq!(steered.status, 202);
    let queued = served.begin("s", json!({"input": "then", "queue": true})).await;
    served.crash().await;
    let served = directory.start("", "").await;
    let done = |s: &Value| is_idle(s) && inputs(s).len() == 3;
    let after = served.until_snapshot("s", done).await;
    assert_eq!(inputs(&after), ["go", "and more", "then"]);
    assert_eq!(run_ends(&directory, "s"), ["answered", "answered"]);
    assert_eq!(directory.control.log(), ["start a", "end a"], "no effect is repeated");
    let page = served.get("/metrics").await.body;
    assert!(page.contains("\ncallsheet_runs_recovered_total 1\n"), "{page}");
    assert!(directory.entries("s").iter().any(|entry| {
        matches!(&entry.record, Record::RunStarted { run_id, .. } if *run_id.0 == *queued)
    }));
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn after_a_crash_pure_calls_run_again_and_calls_with_effects_do_not() {
    let calls = json!([call("waits", "p"), call("slow_write", "w")]);
    let script = json!({"responses": [{"calls": calls}, {"text": ["Well."]}]});
    let (directory, served) = service(script, "[agents.default]\nexecution = \"parallel\"").await;
    served.begin("s", json!({"input": "go"})).await;
    directory.control.lines(2).await;
    served.crash().await;
    let served = directory.start("", "[agents.default]\nexecution = \"parallel\"").await;
    directory.control.release("p");
    let after = served.until_snapshot("s", is_idle).await;
    let mut log = directory.control.log();
    log.sort();
    assert_eq!(log, ["end p", "start p", "start p", "start w"]);
    let history = after["history"].as_array().unwrap();
    assert_eq!(history[2]["content"], "done p");
    assert_eq!(history[3]["metadata"]["error"], true, "{history:?}");
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn the_runs_of_a_session_are_listed_and_each_can_be_asked_for() {
    let (directory, served) = service(hanging_script(), "").await;
    let path = "/v1/sessions/s/runs";
    assert_eq!(served.get(path).await.json(), json!({"runs": [], "next": null}));
    let first = served.begin("s", json!({"input": "go", "metadata": {"order": "7"}})).await;
    directory.model.wait_for_gate("middle").await;
    let second = served.begin("s", json!({"input": "then", "queue": true})).await;
    let states = |list: &Value| -> Vec<(String, String)> {
        let runs = list["runs"].as_array().unwrap().iter();
        let text = |run: &Value, key: &str| run[key].as_str().unwrap().to_owned();
        runs.map(|run| (text(run, "run_id"), text(run, "state"))).collect()
    };
    let of = |id: &str, state: &str| (id.to_owned(), state.to_owned());
    let listed = served.get(path).await.json();
    assert_eq!(states(&listed), [of(&second, "queued"), of(&first, "running")]);
    let one = |id: &str| format!("{path}/{id}");
    assert_eq!(served.get(&one(&first)).await.json()["current_run"]["turn"], 2);
    assert_eq!(served.get(&one(&second)).await.json()["queued"]["input"], "then");
    directory.model.open_gate("middle");
    served.until_snapshot("s", |s| is_idle(s) && inputs(s).len() == 2).await;
    served.crash().await;
    let served = directory.start("", "").await;
    let page = served.get(&format!("{path}?limit=1")).await.json();
    assert_eq!((states(&page), &page["next"]), (vec![of(&second, "ended")], &json!(second)));
    let page = served.get(&format!("{path}?after={second}")).await.json();
    let ended = &page["runs"][0];
    assert_eq!((&ended["run_end"], &ended["input"]), (&json!("answered"), &json!("go")));
    assert_eq!((&ended["metadata"]["order"], &page["next"]), (&json!("7"), &Value::Null));
    assert_eq!(served.host.counts().awake, 0, "a list wakes nothing");
    let report = served.get(&one(&first)).await.json();
    assert_eq!(
        (&report["run_end"], &report["calls"][0]["tool_name"]),
        (&json!("answered"), &json!("writes"))
    );
    assert_eq!(served.get(&one("run_x")).await.error(), (404, "no_such_run".to_owned()));
    assert_eq!(
        served.get("/v1/sessions/none/runs").await.error(),
        (404, "no_such_session".to_owned())
    );
    let agents = served.get("/v1/agents").await.json();
    assert_eq!(
        (&agents["agents"][0]["name"], &agents["agents"][0]["models"]),
        (&json!("default"), &json!(["rehearsal"]))
    );
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn all_open_approvals_are_found_asleep_and_after_restarts_until_they_are_decided() {
    let asking =
        "[tools.writes]\napproval = \"before\"\n[agents.default]\nexecution = \"parallel\"\n";
    let calls = |id: &str| json!({"calls": [call("writes", id), call("writes", "x")]});
    let text = json!({"text": ["Well."]});
    let script = json!({"responses": [calls("a"), calls("b"), text, text]});
    let directory = HostDirectory::new(script).await;
    let mut served = directory.start("idle_after = \"50ms\"", asking).await;
    for session in ["s", "t"] {
        served.open(session).await;
        let body = json!({"input": "go", "metadata": {"customer": format!("of {session}")}});
        served.begin(session, body).await;
        let asks = |s: &Value| s["current_run"]["approvals"][1].is_object();
        let snapshot = served.until_snapshot(session, asks).await;
        assert_eq!(
            (&snapshot["state"], &snapshot["approvals_open"]),
            (&json!("waiting"), &json!(2))
        );
    }
    served.asleep().await;
    served.open("other").await;
    let inbox = async |served: &HostServer, query: &str| {
        let answer = served.get(&format!("/v1/approvals{query}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    };
    let all = inbox(&served, "").await;
    let open = all["approvals"].as_array().unwrap();
    let sessions: Vec<_> = open.iter().map(|open| open["session_id"].as_str().unwrap()).collect();
    assert_eq!((sessions, &all["next"]), (vec!["s", "s", "t", "t"], &Value::Null));
    assert_eq!(
        (&open[0]["arguments"]["id"], &open[0]["agent_path"]),
        (&json!("a"), &json!(["default"]))
    );
    assert_eq!(served.host.counts().awake, 1, "no session is woken");
    let listed = async |query: &str| {
        let page = served.get(&format!("/v1/sessions{query}")).await.json();
        let row = |s: &Value| (s["id"].clone(), s["state"].clone(), s["approvals_open"].clone());
        page["sessions"].as_array().unwrap().iter().map(row).collect::<Vec<_>>()
    };
    let waits = |id: &str| (json!(id), json!("waiting"), json!(2));
    assert_eq!(listed("?state=waiting").await, [waits("s"), waits("t")]);
    assert_eq!(listed("?state=waiting&after=s&limit=1").await, [waits("t")]);
    assert_eq!(listed("?state=running").await, [waits("s"), waits("t")]);
    assert_eq!(listed("").await.len(), 3);
    let metrics = served.get("/metrics").await.body;
    for series in [
        "callsheet_runs_open{state=\"running\"} 0",
        "callsheet_runs_open{state=\"waiting\"} 2",
        "callsheet_runs_open{state=\"sleeping\"} 0",
        "callsheet_sessions{state=\"waiting\"} 2",
        "callsheet_sessions{state=\"running\"} 0",
        "callsheet_sessions{state=\"idle\"} 1",
        "callsheet_sessions{state=\"hibernated\"} 0",
    ] {
        assert!(metrics.contains(&format!("\n{series}\n")), "{series}: {metrics}");
    }
    let of_t = inbox(&served, "?metadata.customer=of%20t&limit=1").await;
    assert_eq!(of_t["approvals"], json!([open[2]]));
    assert_eq!(inbox(&served, "?metadata.customer=x").await["approvals"], json!([]));
    // By pages of three.
    let first = inbox(&served, "?limit=3").await;
    let rest = inbox(&served, &format!("?after={}", first["next"].as_str().unwrap())).await;
    assert_eq!((&first["approvals"][2], &rest["approvals"][0]), (&open[2], &open[3]));
    assert_eq!(inbox(&served, "?agent=nobody").await["approvals"], json!([]));
    for wrong in ["limit=0", "after=x", "state=running", "metadata.=x"] {
        assert_eq!(served.get(&format!("/v1/approvals?{wrong}")).await.status, 400, "{wrong}");
    }
    // After a crash, and with a host that resumes nothing.
    for rest in [asking.to_owned(), format!("{asking}{MANUAL}")] {
        served.crash().await;
        served = directory.start("", &rest).await;
        let found = async {
            while inbox(&served, "").await != all {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        within(found).await;
    }
    let metrics = served.get("/metrics").await.body;
    assert!(metrics.contains("\ncallsheet_approvals_open 4\n"), "{metrics}");
    let (tool_id, approve) = decision(&open[0], "approve");
    let path = |tool_id: &str| format!("/v1/sessions/s/approvals/{tool_id}");
    assert_eq!(served.post(&path(&tool_id), approve).await.status, 200);
    let left = inbox(&served, "").await;
    assert_eq!(left["approvals"].as_array().unwrap()[..], open[1..]);
    assert_eq!(served.post("/v1/sessions/t/stop", json!({"mode": "now"})).await.status, 202);
    served.until_snapshot("t", is_idle).await;
    assert_eq!(inbox(&served, "").await["approvals"], json!([open[1]]));
    assert_eq!(served.delete("/v1/sessions/s").await.status, 204);
    assert_eq!(inbox(&served, "").await["approvals"], json!([]));
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_run_that_was_alone_at_the_third_crash_is_set_aside_and_other_sessions_live() {
    let calls = json!({"calls": [call("waits", "p")]});
    let text = json!({"text": ["Well."]});
    let script = json!({"responses": [calls, calls, text, text, text]});
    let directory = HostDirectory::new(script).await;
    let served = directory.start("", "").await;
    for session in ["a", "b"] {
        served.open(session).await;
        served.begin(session, json!({"input": "go"})).await;
    }
    directory.control.lines(2).await;
    served.crash().await;
    // After the first crash all runs go on together.
    let served = directory.start("", "").await;
    directory.control.lines(4).await;
    served.crash().await;
    // After the second one, each goes on alone.
    let served = directory.start("", "").await;
    directory.control.lines(5).await;
    let suspended = |snapshot: &Value| snapshot["current_run"]["suspended"].clone();
    assert_eq!(suspended(&served.snapshot("a").await), false);
    assert_eq!(suspended(&served.snapshot("b").await), true);
    assert_eq!(directory.control.log().len(), 5);
    served.crash().await;
    // After the third one, the run that was alone is set aside, and the next one is alone until its call has ended.
    let served = directory.start("", "").await;
    directory.control.lines(6).await;
    directory.control.release("p");
    served.until_snapshot("b", is_idle).await;
    let aside = served.snapshot("a").await;
    assert_eq!(aside["current_run"]["quarantined"], true, "{aside}");
    assert_eq!(served.get("/readyz").await.json()["quarantined_runs"], 1);
    served.open("c").await;
    assert_eq!(served.run("c", "go").await["run_end"], "answered");
    served.shutdown().await;
    // A planned restart does not change that.
    let served = directory.start("", "").await;
    assert_eq!(served.snapshot("a").await["current_run"]["quarantined"], true);
    assert_eq!(served.post("/v1/sessions/a/resume", json!({})).await.status, 202);
    served.until_snapshot("a", is_idle).await;
    assert_eq!(served.get("/readyz").await.json()["quarantined_runs"], Value::Null);
    assert_eq!(run_ends(&directory, "a"), ["answered"]);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_suspect_whose_run_has_ended_meanwhile_does_not_hold_up_the_others() {
    let calls = json!({"calls": [call("waits", "p")]});
    let script =
        json!({"responses": [calls, calls, calls, {"text": ["Well."]}, {"text": ["Well."]}]});
    let directory = HostDirectory::new(script).await;
    let served = directory.start("", "").await;
    for session in ["a", "b", "c"] {
        served.open(session).await;
        served.begin(session, json!({"input": "go"})).await;
    }
    directory.control.lines(3).await;
    served.crash().await;
    let served = directory.start("", "").await;
    directory.control.lines(6).await;
    served.crash().await;
    // The first suspect goes on alone. The second one is stopped before its turn comes.
    let served = directory.start("", "").await;
    directory.control.lines(7).await;
    assert_eq!(served.post("/v1/sessions/b/stop", json!({"mode": "now"})).await.status, 202);
    served.until_snapshot("b", is_idle).await;
    directory.control.release("p");
    for session in ["a", "c"] {
        served.until_snapshot(session, is_idle).await;
    }
    served.shutdown().await;
    for (session, end) in [("a", "answered"), ("b", "stopped"), ("c", "answered")] {
        assert_eq!(run_ends(&directory, session), [end]);
    }
    directory.verify();
}

#[tokio::test]
async fn a_shutdown_leaves_running_and_queued_runs_to_the_next_host() {
    let script = json!({"responses": [
        {"calls": [call("waits", "p")]}, {"text": ["One."]}, {"text": ["Two."]}]});
    let directory = HostDirectory::new(script).await;
    let grace = "shutdown_grace = \"50ms\"";
    let served = directory.start(grace, "").await;
    served.open("s").await;
    let jobs = [
        ("job-1", json!({"input": "go"})),
        ("job-2", json!({"input": "then", "queue": true, "wait": true})),
    ];
    let path = "/v1/sessions/s/runs";
    let accepted = served.post_keyed(path, jobs[0].0, &jobs[0].1).await;
    let first = accepted.json()["run_id"].clone();
    directory.control.lines(1).await;
    let (waiting, ()) = tokio::join!(served.post_keyed(path, jobs[1].0, &jobs[1].1), async {
        served.until_snapshot("s", |s| s["queued"][0].is_object()).await;
        within(served.host.shutdown()).await;
    });
    assert_eq!(waiting.error(), (503, "shutting_down".to_owned()));
    assert_eq!(waiting.header("retry-after"), Some("1"), "{waiting:?}");
    served.shutdown().await;
    assert_eq!(run_ends(&directory, "s"), [""; 0]);
    let served = directory.start(grace, "").await;
    directory.control.release("p");
    let again = served.post_keyed(path, jobs[0].0, &jobs[0].1).await;
    assert_eq!((again.status, &again.json()["run_id"]), (202, &first));
    let report = served.post_keyed(path, jobs[1].0, &jobs[1].1).await;
    assert_eq!((report.status, &report.json()["text"]), (200, &json!("Two.")));
    let after = served.until_snapshot("s", is_idle).await;
    assert_eq!(inputs(&after), ["go", "then"]);
    assert_eq!(run_ends(&directory, "s"), ["answered", "answered"]);
    assert_eq!(directory.control.log(), ["start p", "start p", "end p"]);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_run_between_two_turns_does_not_wait_for_the_end_of_the_grace_period() {
    let (directory, served) = service(hanging_script(), "").await;
    served.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    served.begin("s", json!({"input": "then", "queue": true})).await;
    // The grace period is longer than the patience of this test. The running turn finishes, and with it the run.
    let stopping = served.shutdown();
    let release = async { directory.model.open_gate("middle") };
    tokio::join!(stopping, release);
    assert_eq!(run_ends(&directory, "s"), ["answered"]);
    let served = directory.start("", "").await;
    let after = served.until_snapshot("s", |s| is_idle(s) && inputs(s).len() == 2).await;
    assert_eq!(inputs(&after), ["go", "then"]);
    assert_eq!(run_ends(&directory, "s"), ["answered", "answered"]);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_shutdown_interrupts_running_and_queued_runs_if_that_is_configured() {
    let directory = HostDirectory::new(hanging_script()).await;
    let served = directory.start("on_shutdown = \"interrupt\"", "").await;
    served.open("s").await;
    served.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    served.begin("s", json!({"input": "then", "queue": true})).await;
    served.begin("s", json!({"input": "last", "queue": true})).await;
    let stopping = async {
        let served = served;
        served.shutdown().await;
    };
    let release = async {
        // The running turn finishes within the grace period.
        directory.model.open_gate("middle");
    };
    tokio::join!(stopping, release);
    assert_eq!(run_ends(&directory, "s").last().map(String::as_str), Some("interrupted"));
    assert_eq!(run_ends(&directory, "s").len(), 3);
    let served = directory.start("", "").await;
    let after = served.snapshot("s").await;
    assert!(is_idle(&after), "{after}");
    assert_eq!(inputs(&after), ["go", "then", "last"]);
    assert_eq!(served.run("s", "again").await["run_end"], "answered");
    served.shutdown().await;
    directory.verify();
}

/// Posts a run with an `Idempotency-Key`, and reads its events to their end.
async fn watched(served: &HostServer, key: &str, body: &Value) -> Vec<Value> {
    let headers = format!("accept: text/event-stream\r\nidempotency-key: {key}\r\n");
    let answer = served.send(&post("/v1/sessions/s/runs", &headers, &body.to_string())).await;
    answer.events().into_iter().map(|(_, data)| data).collect()
}

#[tokio::test]
async fn a_key_lets_a_run_go_on_that_a_shutdown_has_interrupted() {
    let directory = HostDirectory::new(hanging_script()).await;
    let interrupt = "on_shutdown = \"interrupt\"\nshutdown_grace = \"0s\"";
    let served = directory.start(interrupt, "").await;
    served.open("s").await;
    let (path, body) = ("/v1/sessions/s/runs", json!({"input": "go", "wait": true}));
    let ask = served.post_keyed(path, "k", &body);
    let stop = async {
        directory.model.wait_for_gate("middle").await;
        within(served.host.shutdown()).await;
    };
    let (report, ()) = tokio::join!(ask, stop);
    let report = report.json();
    assert_eq!((&report["run_end"], &report["text"]), (&json!("interrupted"), &json!("It ")));
    let run = &report["run_id"];
    served.shutdown().await;

    let served = directory.start("", "").await;
    assert!(is_idle(&served.snapshot("s").await), "it does not go on by itself");
    let (one, two, events) = tokio::join!(
        served.post_keyed(path, "k", &body),
        served.post_keyed(path, "k", &body),
        watched(&served, "k", &body)
    );
    let (one, two) = (one.json(), two.json());
    assert_eq!(
        (&one["run_end"], &one["text"], &one["run_id"]),
        (&json!("answered"), &json!("It is done."), run)
    );
    assert_eq!(two, one, "both wait for the same end");
    assert_eq!(one["turns"], 2);
    assert_eq!(one["calls"].as_array().unwrap().len(), 1, "{one}");
    let told: Vec<_> = [&events[0], events.last().unwrap()]
        .iter()
        .map(|event| (event["type"].clone(), event["run_id"].clone()))
        .collect();
    assert_eq!(told, [(json!("stream_start"), run.clone()), (json!("stream_end"), run.clone())]);
    assert_eq!(
        (&events[0]["reopened"], &events.last().unwrap()["run_end"]),
        (&json!(true), &json!("answered"))
    );
    assert_eq!(directory.control.log(), ["start a", "end a"], "no effect is repeated");
    assert_eq!(run_ends(&directory, "s"), ["interrupted", "answered"]);
    let entries = directory.entries("s");
    let reopened = |entry: &&JournalEntry| matches!(entry.record, Record::RunReopened { .. });
    assert_eq!(entries.iter().filter(reopened).count(), 1);
    let history = served.snapshot("s").await["history"].clone();
    let said: Vec<_> =
        history.as_array().unwrap().iter().map(|message| message["content"].clone()).collect();
    assert_eq!(
        said,
        ["go", "Let me ", "done a", "It is done."],
        "the answer was cut off and is made again"
    );
    let requests = directory.model.requests();
    let sent = &requests.last().unwrap().body;
    assert_eq!(sent["messages"].as_array().unwrap().last().unwrap()["role"], "tool", "{sent}");
    let listed = served.get(path).await.json();
    assert_eq!(
        (listed["runs"].as_array().unwrap().len(), &listed["runs"][0]["run_end"]),
        (1, &json!("answered"))
    );
    assert_eq!(served.post_keyed(path, "k", &body).await.json(), one);
    let page = served.get("/metrics").await.body;
    assert!(page.contains("callsheet_runs_total{run_end=\"answered\"} 1"), "{page}");
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_key_of_an_interrupted_run_that_is_not_the_last_one_finds_its_report() {
    let directory = HostDirectory::new(hanging_script()).await;
    let served = directory.start("on_shutdown = \"interrupt\"\nshutdown_grace = \"0s\"", "").await;
    served.open("s").await;
    let (path, body) = ("/v1/sessions/s/runs", json!({"input": "go"}));
    let queued = json!({"input": "then", "queue": true});
    let first = served.post_keyed(path, "k", &body).await.json();
    directory.model.wait_for_gate("middle").await;
    let second = served.post_keyed(path, "q", &queued).await.json();
    served.shutdown().await;
    assert_eq!(run_ends(&directory, "s"), ["interrupted", "interrupted"]);

    let served = directory.start("", "").await;
    let again = served.post_keyed(path, "k", &body).await.json();
    assert_eq!(again["run_id"], first["run_id"]);
    let events = watched(&served, "k", &body).await;
    assert_eq!(events.last().unwrap()["run_end"], "interrupted");
    // The queued run is the last one.
    let again = served.post_keyed(path, "q", &queued).await.json();
    assert_eq!(again["run_id"], second["run_id"]);
    served.until_snapshot("s", is_idle).await;
    assert_eq!(run_ends(&directory, "s"), ["interrupted", "interrupted", "answered"]);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_run_that_waits_for_an_approval_is_kept_over_a_shutdown() {
    let asking = "[tools.writes]\napproval = \"before\"\n";
    let (directory, served) = service(hanging_script(), asking).await;
    directory.model.open_gate("middle");
    served.begin("s", json!({"input": "go"})).await;
    let asks = |s: &Value| s["current_run"]["approvals"][0].is_object();
    served.until_snapshot("s", asks).await;
    served.begin("s", json!({"input": "then", "queue": true})).await;
    let waiting = served.snapshot("s").await;
    served.shutdown().await;
    assert_eq!(run_ends(&directory, "s"), [""; 0]);
    let served = directory.start("", asking).await;
    assert_eq!(served.until_snapshot("s", asks).await, waiting);
    let (tool_id, approve) = decision(&waiting["current_run"]["approvals"][0], "approve");
    let decided = served.post(&format!("/v1/sessions/s/approvals/{tool_id}"), approve).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    let done = |s: &Value| is_idle(s) && inputs(s).len() == 2;
    served.until_snapshot("s", done).await;
    assert_eq!(run_ends(&directory, "s"), ["answered", "answered"]);
    assert_eq!(directory.control.log(), ["start a", "end a"]);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_run_whose_last_tool_ends_during_a_shutdown_is_kept_for_its_approval() {
    let asking = "[agents.default]\nexecution = \"parallel:3\"\n\
        [tools.writes]\napproval = \"before\"\n";
    let calls = json!([call("slow_write", "w"), call("writes", "a")]);
    let script = json!({"responses": [{"calls": calls}, {"text": ["Done."]}]});
    let (directory, served) = service(script, asking).await;
    served.begin("s", json!({"input": "go"})).await;
    directory.control.until_logged("start w").await;
    let asks = |s: &Value| s["current_run"]["approvals"][0].is_object();
    let waiting = served.until_snapshot("s", asks).await;
    let release = async { directory.control.release("w") };
    tokio::join!(served.shutdown(), release);
    let served = directory.start("", asking).await;
    let kept = served.until_snapshot("s", asks).await;
    assert_eq!(kept["current_run"]["results"][0]["status"], "success", "{kept}");
    let (tool_id, approve) = decision(&waiting["current_run"]["approvals"][0], "approve");
    let decided = served.post(&format!("/v1/sessions/s/approvals/{tool_id}"), approve).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    served.until_snapshot("s", is_idle).await;
    assert_eq!(run_ends(&directory, "s"), ["answered"]);
    assert_eq!(directory.control.log(), ["start w", "end w", "start a", "end a"]);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_call_that_was_just_approved_and_asks_a_question_is_not_killed_by_a_shutdown() {
    let asking = "[tools.asks]\napproval = \"before\"\n";
    let script = json!({"responses": [{"calls": [call("asks", "a")]}, {"text": ["Done."]}]});
    let (directory, served) = service(script, asking).await;
    served.begin("s", json!({"input": "go"})).await;
    let asks = |s: &Value| s["current_run"]["approvals"][0].is_object();
    let waiting = served.until_snapshot("s", asks).await;
    let session = served.host.session(&crate::host_directory::id("s"));
    let (tool_id, approve) = decision(&waiting["current_run"]["approvals"][0], "approve");
    let decided = served.post(&format!("/v1/sessions/s/approvals/{tool_id}"), approve).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    // The tool may be about to ask, or its question may be open: it gets its answer within the grace period.
    let answering = async {
        loop {
            let open = session.approvals().await.unwrap_or_default();
            match open.into_iter().find(|open| open.approval.phase == WaitPhase::Input) {
                Some(question) => break question.approve().await.unwrap(),
                None => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            }
        }
    };
    let ((), ()) = tokio::join!(served.shutdown(), within(answering));
    let log = ["start a", "answer Accepted(Null)", "end a"];
    assert_eq!(directory.control.log(), log);
    let served = directory.start("", asking).await;
    served.until_snapshot("s", is_idle).await;
    assert_eq!(run_ends(&directory, "s"), ["answered"]);
    assert_eq!(directory.control.log(), log);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_call_for_the_client_is_kept_over_a_shutdown() {
    let open_file = json!({"name": "open_file", "arguments": {"path": "a.txt"}});
    let script = json!({"responses": [{"calls": [open_file]}, {"text": ["Done."]}]});
    let directory = HostDirectory::new(script).await;
    let served = directory.start("", "").await;
    let tools = json!([{"name": "open_file", "input_schema": {"type": "object"}}]);
    let opened = served.post("/v1/sessions", json!({"id": "s", "client_tools": tools})).await;
    assert_eq!(opened.status, 201, "{opened:?}");
    served.begin("s", json!({"input": "go"})).await;
    let is_handed = |s: &Value| s["current_run"]["client_calls"][0].is_object();
    let waiting = served.until_snapshot("s", is_handed).await;
    served.shutdown().await;
    let served = directory.start("", "").await;
    assert_eq!(served.until_snapshot("s", is_handed).await, waiting);
    let path = "/v1/sessions/s/results/t1a1c0";
    let answered = served.post(path, json!({"content": "opened"})).await;
    assert_eq!(answered.status, 200, "{answered:?}");
    served.until_snapshot("s", is_idle).await;
    assert_eq!(run_ends(&directory, "s"), ["answered"]);
    served.shutdown().await;
    directory.verify();
}

/// Restarts a crashed host with `resume = "manual"`: its run is suspended.
async fn suspended_run() -> (HostDirectory, HostServer) {
    let (directory, served) = service(hanging_script(), "").await;
    served.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    served.crash().await;
    let served = directory.start("idle_after = \"1ms\"", MANUAL).await;
    let session = served.host.session(&crate::host_directory::id("s"));
    for _ in 0..2 {
        assert_eq!(session.state(), SessionState::Running, "it sleeps, and its run is open");
        let suspended = served.snapshot("s").await;
        assert_eq!(suspended["state"], "running", "{suspended}");
        assert_eq!(suspended["current_run"]["suspended"], true, "{suspended}");
        for (path, body) in [
            ("runs", json!({"input": "x"})),
            ("runs", json!({"input": "x", "queue": true})),
            ("steer", json!({"input": "x"})),
        ] {
            let answer = served.post(&format!("/v1/sessions/s/{path}"), body).await;
            assert_eq!(answer.error(), (409, "run_suspended".to_owned()), "{path}");
        }
        served.asleep().await;
    }
    assert_eq!(directory.model.received(), 2, "nothing goes on by itself");
    (directory, served)
}

#[tokio::test]
async fn with_manual_resume_a_run_waits_for_the_request() {
    let (directory, served) = suspended_run().await;
    let resumed = served.post("/v1/sessions/s/resume", json!({})).await;
    assert_eq!(resumed.status, 202, "{resumed:?}");
    let after = served.until_snapshot("s", is_idle).await;
    assert_eq!(after["history"].as_array().unwrap().last().unwrap()["content"], "It is done.");
    let again = served.post("/v1/sessions/s/resume", json!({})).await;
    assert_eq!(again.error(), (409, "not_suspended".to_owned()));
    assert_eq!(served.run("s", "again").await["run_end"], "answered");
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_suspended_run_can_be_stopped() {
    // With after_turn the turn is completed and gives its answer.
    for (mode, end) in [("now", "stopped"), ("after_turn", "answered")] {
        let (directory, served) = suspended_run().await;
        let stopped = served.post("/v1/sessions/s/stop", json!({"mode": mode})).await;
        assert_eq!(stopped.status, 202, "{stopped:?}");
        served.until_snapshot("s", is_idle).await;
        assert_eq!(run_ends(&directory, "s"), [end], "{mode}");
        served.shutdown().await;
        directory.verify();
    }
}

#[tokio::test]
async fn an_input_that_was_taken_back_stays_away_after_a_crash() {
    let (directory, served) = service(hanging_script(), "").await;
    let path = "/v1/sessions/s/runs";
    let input = |text: &str| json!({"input": text, "queue": true});
    let first = served.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    let mut queued = Vec::new();
    for text in ["one", "two"] {
        let accepted = served.post_keyed(path, text, &input(text)).await;
        queued.push(accepted.json()["run_id"].as_str().unwrap().to_owned());
    }
    let of_queue = |run: &str| format!("/v1/sessions/s/queue/{run}");
    assert_eq!(served.delete(&of_queue(&queued[0])).await.status, 204);
    served.crash().await;

    let served = directory.start("", MANUAL).await;
    let snapshot = served.snapshot("s").await;
    assert_eq!(snapshot["queued"].as_array().unwrap().len(), 1, "{snapshot}");
    assert_eq!(snapshot["queued"][0]["input"], "two");
    assert_eq!(served.delete(&of_queue(&queued[1])).await.status, 204, "the run is suspended");
    for (run, expected) in [
        (&*queued[0], (404, "no_such_input".to_owned())),
        ("run_0", (404, "no_such_input".to_owned())),
        (&*first, (409, "already_started".to_owned())),
    ] {
        assert_eq!(served.delete(&of_queue(run)).await.error(), expected, "{run}");
    }
    for text in ["one", "two"] {
        let again = served.post_keyed(path, text, &input(text)).await;
        assert_eq!(again.error(), (409, "input_removed".to_owned()));
    }
    let shown = served.get(&format!("{path}/{}", queued[0])).await;
    assert_eq!(shown.error(), (409, "input_removed".to_owned()));
    let stop = json!({"mode": "now", "queue": true});
    assert_eq!(served.post("/v1/sessions/s/stop", stop).await.status, 202);
    let after = served.until_snapshot("s", is_idle).await;
    assert_eq!(inputs(&after), ["go"]);
    assert_eq!(served.run("s", "new").await["run_end"], "answered");
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_suspended_run_can_be_deleted() {
    let (directory, served) = suspended_run().await;
    assert_eq!(served.delete("/v1/sessions/s").await.status, 204);
    // The id is free, and a new session with it is not suspended.
    served.open("s").await;
    assert_eq!(served.run("s", "new").await["run_end"], "answered");
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_decision_resumes_a_suspended_run() {
    let asking = "[tools.writes]\napproval = \"before\"\n";
    let (directory, served) = service(hanging_script(), asking).await;
    directory.model.open_gate("middle");
    served.begin("s", json!({"input": "go"})).await;
    let asks = |s: &Value| s["current_run"]["approvals"][0].is_object();
    let waiting = served.until_snapshot("s", asks).await;
    served.crash().await;
    let served = directory.start("", &format!("{asking}{MANUAL}")).await;
    assert_eq!(served.snapshot("s").await["current_run"]["suspended"], true);
    let (tool_id, approve) = decision(&waiting["current_run"]["approvals"][0], "approve");
    let decided = served.post(&format!("/v1/sessions/s/approvals/{tool_id}"), approve).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    served.until_snapshot("s", is_idle).await;
    assert_eq!(directory.control.log(), ["start a", "end a"]);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_suspended_run_shows_its_open_approvals_and_its_results() {
    let asking = "[agents.default]\nexecution = \"parallel:3\"\n\
        [tools.writes]\napproval = \"before\"\n";
    let script = json!({"responses": [
        {"calls": [call("quick", "a"), call("writes", "b"), call("writes", "c")]},
        {"text": ["Done."]}]});
    let (directory, served) = service(script, asking).await;
    served.begin("s", json!({"input": "go"})).await;
    let asks = |count: usize| {
        move |snapshot: &Value| {
            let current = &snapshot["current_run"];
            let len = |list: &Value| list.as_array().map_or(0, Vec::len);
            len(&current["approvals"]) == count && len(&current["results"]) == 1
        }
    };
    let waiting = served.until_snapshot("s", asks(2)).await;
    served.crash().await;
    let served = directory.start("", &format!("{asking}{MANUAL}")).await;
    let suspended = served.snapshot("s").await;
    let mut expected = waiting.clone();
    expected["current_run"]["suspended"] = true.into();
    assert_eq!(suspended, expected);
    let (tool_id, reject) = decision(&suspended["current_run"]["approvals"][0], "reject");
    let decided = served.post(&format!("/v1/sessions/s/approvals/{tool_id}"), reject).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    let left = served.until_snapshot("s", |s| s["current_run"]["approvals"][1].is_null()).await;
    let left = &left["current_run"]["approvals"][0];
    assert_eq!(*left, waiting["current_run"]["approvals"][1]);
    served.crash().await;
    let served = directory.start("", &format!("{asking}{MANUAL}")).await;
    let suspended = served.snapshot("s").await;
    assert_eq!(suspended["current_run"]["approvals"], json!([left]));
    assert_eq!(suspended["current_run"]["results"].as_array().unwrap().len(), 2);
    let (tool_id, approve) = decision(left, "approve");
    let decided = served.post(&format!("/v1/sessions/s/approvals/{tool_id}"), approve).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    served.until_snapshot("s", is_idle).await;
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn an_approval_keeps_its_age_after_a_restart() {
    let asking = "[tools.writes]\napproval = \"before\"\n";
    let (directory, served) = service(hanging_script(), asking).await;
    served.begin("s", json!({"input": "go"})).await;
    let asks = |s: &Value| s["current_run"]["approvals"][0].is_object();
    let waiting = served.until_snapshot("s", asks).await;
    served.crash().await;
    let served = directory.start("", asking).await;
    assert_eq!(served.snapshot("s").await, waiting);
    served.shutdown().await;
}

#[tokio::test]
async fn calls_of_opening_messages_run_after_a_crash() {
    let directory = HostDirectory::new(json!({"responses": [{"text": ["Done."]}]})).await;
    let served = directory.start("", "").await;
    let function = json!({"name": "slow_write", "arguments": "{\"id\":\"a\"}"});
    let call = json!({"id": "c1", "type": "function", "function": function});
    let messages = json!([{"role": "user", "content": "Hi."},
        {"role": "assistant", "content": null, "tool_calls": [call]}]);
    let opened = served.post("/v1/sessions", json!({"id": "s", "messages": messages})).await;
    assert_eq!(opened.status, 201, "{opened:?}");
    served.crash().await;
    let served = directory.start("", "").await;
    served.begin("s", json!({"input": "go"})).await;
    directory.control.until_logged("start a").await;
    served.crash().await;
    let served = directory.start("", "").await;
    let after = served.until_snapshot("s", is_idle).await;
    let history = after["history"].as_array().unwrap();
    let roles: Vec<_> = history.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "user", "assistant"]);
    assert_eq!(directory.control.log(), ["start a"]);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_stream_continues_after_any_event_of_the_previous_host() {
    let (directory, served) = service(hanging_script(), "").await;
    let mut live = served.events("s", "0").await;
    served.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    let first =
        within(live.until_events(|seen| seen.iter().any(|event| event.data["text"] == "It ")))
            .await;
    drop(live);
    served.crash().await;
    let served = directory.start("", "").await;
    served.until_snapshot("s", is_idle).await;
    let mut all = served.events("s", "0").await;
    let all = reproducible_lines(&within(all.until_events(|seen| ended_runs(seen) == 1)).await);
    assert!(all.iter().any(|line| line == "content_delta: It is done."), "{all:?}");
    let mut compared = 0;
    for (at, event) in first.iter().enumerate() {
        let Some(id) = &event.id else { continue };
        let mut reading = served.events("s", id).await;
        let rest = within(reading.until_events(|seen| ended_runs(seen) == 1)).await;
        assert_eq!(reproducible_lines(&[&first[..=at], &rest].concat()), all, "after {id}");
        compared += 1;
    }
    assert!(compared > 5, "{first:?}");
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_resumed_turn_uses_the_fallback_model_that_it_had_reached() {
    let directory = HostDirectory::new(json!({"responses": [
        {"when": {"model": "main"}, "status": 400},
        {"when": {"model": "backup"}, "text": ["It ", "is lost."],
         "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
        {"when": {"model": "backup"}, "text": ["Done."]}]}))
    .await;
    let url = directory.model.base_url();
    let models = format!(
        "[models.main]\nmodel = \"main\"\nbase_url = \"{url}\"\n\
         [models.backup]\nmodel = \"backup\"\nbase_url = \"{url}\"\n\
         [agents.default]\nmodel = \"main\"\nfallback_models = [\"backup\"]"
    );
    let served = directory.start("", &models).await;
    served.open("s").await;
    served.begin("s", json!({"input": "go"})).await;
    within(directory.model.wait_for_gate("middle")).await;
    served.crash().await;
    let served = directory.start("", &models).await;
    served.until_snapshot("s", is_idle).await;
    let models: Vec<Value> =
        directory.model.requests().iter().map(|request| request.body["model"].clone()).collect();
    assert_eq!(models, ["main", "backup", "backup"]);
    served.shutdown().await;
    directory.verify();
}

/// Moves the stored times back by one hour.
fn age_by_an_hour(directory: &HostDirectory) {
    let connection = rusqlite::Connection::open(directory.dir.join("journal.db")).unwrap();
    let changed = connection.execute("UPDATE records SET time = time - 3600000", []).unwrap();
    assert!(changed > 0);
}

#[tokio::test]
async fn downtime_does_not_count_towards_the_run_timeout() {
    let briefly = "[agents.default]\nlimits = { run_timeout = \"60s\" }";
    let (directory, served) = service(hanging_script(), briefly).await;
    served.begin("s", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    served.crash().await;
    age_by_an_hour(&directory);
    let served = directory.start("", briefly).await;
    served.until_snapshot("s", is_idle).await;
    assert_eq!(run_ends(&directory, "s"), ["answered"]);
    served.shutdown().await;
}

#[tokio::test]
async fn downtime_counts_towards_the_approval_timeout() {
    let asking = "[tools.writes]\napproval = \"before\"\napproval_timeout = \"10m\"";
    let (directory, served) = service(hanging_script(), asking).await;
    directory.model.open_gate("middle");
    served.begin("s", json!({"input": "go"})).await;
    let asks = |s: &Value| s["current_run"]["approvals"][0].is_object();
    served.until_snapshot("s", asks).await;
    served.crash().await;
    age_by_an_hour(&directory);
    let served = directory.start("", asking).await;
    let after = served.until_snapshot("s", is_idle).await;
    assert_eq!(after["history"][2]["metadata"]["kind"], "approval_expired", "{after}");
    assert_eq!(directory.control.log(), Vec::<String>::new());
    served.shutdown().await;
}

/// A service that checks the reasoning of the messages that it receives.
struct ReasoningService {
    base_url: String,
    /// The bodies of all requests, each with whether it was answered.
    requests: Arc<Mutex<Vec<(Value, bool)>>>,
}

/// The wire of a [`ReasoningService`], and its check: the error for a request that it refuses.
#[derive(Clone, Copy)]
struct ReasoningRules {
    wire: &'static str,
    check: fn(&Value) -> Option<&'static str>,
}

impl ReasoningService {
    async fn start(rules: ReasoningRules) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<(Value, bool)>>> = Arc::default();
        let seen = Arc::clone(&requests);
        let answer = async move |body: String| {
            let body: Value = serde_json::from_str(&body).unwrap();
            let messages = body["messages"].as_array().unwrap();
            let mut answers = messages.iter().filter(|message| message["role"] == "assistant");
            let refused = answers.find_map(|message| (rules.check)(message));
            let mut seen = seen.lock();
            let number = seen.iter().filter(|(_, answered)| *answered).count();
            seen.push((body.clone(), refused.is_none()));
            match refused {
                Some(message) => {
                    let error =
                        json!({"error": {"message": message, "type": "invalid_request_error"}});
                    (axum::http::StatusCode::BAD_REQUEST, error.to_string()).into_response()
                }
                None => rules.answer(&body, number),
            }
        };
        let app = Router::new().fallback(move |body| {
            let answer = answer.clone();
            async move { answer(body).await }
        });
        #[expect(clippy::disallowed_methods, reason = "the service ends with the test")]
        drop(tokio::spawn(async move { axum::serve(listener, app).await }));
        Self { base_url, requests }
    }

    fn config(&self, wire: &str, rest: &str) -> String {
        let base_url = &self.base_url;
        format!(
            "[models.thinker]\nwire = \"{wire}\"\nbase_url = \"{base_url}\"\nmodel = \"m\"\n{rest}\n\
             [agents.default]\nmodel = \"thinker\"\n"
        )
    }

    /// Returns the number of refused requests.
    fn refused(&self) -> usize {
        self.requests.lock().iter().filter(|(_, answered)| !answered).count()
    }

    /// Returns a member of each message of a model in the last request.
    fn last_members(&self, member: &str) -> Value {
        let requests = self.requests.lock();
        let messages = requests.last().unwrap().0["messages"].as_array().unwrap();
        let answers = messages.iter().filter(|message| message["role"] == "assistant");
        answers.map(|message| message[member].clone()).collect()
    }
}

impl ReasoningRules {
    /// Answers in turn with: a call with reasoning, a call without, a text with reasoning, a text without.
    fn answer(self, body: &Value, number: usize) -> Response {
        let has_call = number % 4 < 2;
        let reasoning = number.is_multiple_of(2).then(|| format!("R{number}"));
        let streamed = body["stream"] == true;
        let arguments = json!({"expression": format!("{number} + 1")});
        let mut message = json!({"role": "assistant", "content": ""});
        if !has_call {
            message["content"] = format!("Answer {number}.").into();
        }
        if self.wire == "ollama-chat" {
            message["thinking"] = reasoning.unwrap_or_default().into();
            if has_call {
                message["tool_calls"] =
                    json!([{"function": {"name": "calculator", "arguments": arguments}}]);
            }
            let chunk =
                json!({"model": "m", "message": message, "done": true, "done_reason": "stop"});
            return format!("{chunk}\n").into_response();
        }
        message["reasoning_content"] = reasoning.map_or(Value::Null, Value::from);
        if has_call {
            let function = json!({"name": "calculator", "arguments": arguments.to_string()});
            message["tool_calls"] = json!([{"index": 0, "id": format!("call-{number}"),
                "type": "function", "function": function}]);
        }
        let finish = if has_call { "tool_calls" } else { "stop" };
        let member = if streamed { "delta" } else { "message" };
        let body = json!({"id": "x", "choices": [{"index": 0, member: message,
            "finish_reason": finish}]});
        if !streamed {
            return body.to_string().into_response();
        }
        let headers = [("content-type", "text/event-stream")];
        (headers, format!("data: {body}\n\ndata: [DONE]\n\n")).into_response()
    }
}

/// Runs a session of many runs over crashes and shutdowns.
async fn run_over_restarts(service: &ReasoningService, wire: &str, rest: &str, opening: Value) {
    let directory = HostDirectory::new(json!({"responses": []})).await;
    let config = service.config(wire, rest);
    let mut served = directory.start("", &config).await;
    let opened = served.post("/v1/sessions", json!({"id": "s", "messages": opening})).await;
    assert_eq!(opened.status, 201, "{opened:?}");
    for round in 0..3 {
        for _ in 0..3 {
            let report = served.run("s", "go on").await;
            assert_eq!(report["run_end"], "answered", "{report}");
        }
        let page = served.get("/metrics").await.body;
        let breaks = page.lines().filter(|line| line.contains("reason=\"unexplained\""));
        assert!(
            breaks.clone().all(|line| line.ends_with(" 0")),
            "{:?}",
            breaks.collect::<Vec<_>>()
        );
        if round % 2 == 0 {
            served.crash().await;
        } else {
            served.shutdown().await;
        }
        served = directory.start("", &config).await;
    }
    served.shutdown().await;
    directory.verify();
}

fn demands_reasoning(message: &Value) -> Option<&'static str> {
    let error = "The `reasoning_content` in the thinking mode must be passed back to the API.";
    (!message["reasoning_content"].is_string()).then_some(error)
}

fn demands_words(message: &Value) -> Option<&'static str> {
    let is_blank = message["reasoning_content"].as_str().is_none_or(str::is_empty);
    is_blank.then_some("Missing `reasoning_content` field in the assistant message at index 2")
}

fn refuses_reasoning(message: &Value) -> Option<&'static str> {
    let is_sent = !message["reasoning_content"].is_null();
    is_sent.then_some("property 'messages.2.assistant.reasoning_content' is unsupported")
}

/// Demands reasoning in calls, and refuses it in other messages.
fn demands_and_refuses_reasoning(message: &Value) -> Option<&'static str> {
    match message["tool_calls"].is_array() {
        true => demands_reasoning(message),
        false => refuses_reasoning(message),
    }
}

fn demands_thinking(message: &Value) -> Option<&'static str> {
    let error = "messages[1].thinking is missing";
    (!message["thinking"].is_string()).then_some(error)
}

#[tokio::test]
async fn reasoning_goes_back_to_a_service_that_demands_it_or_refuses_it_over_restarts() {
    let bare =
        json!([{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]);
    let chat = "openai-chat";
    for (wire, check, opening, refused) in [
        (chat, demands_reasoning as fn(&Value) -> _, json!([]), 0),
        (chat, demands_reasoning, bare.clone(), 1),
        (chat, demands_words, bare.clone(), 2),
        (chat, refuses_reasoning, bare.clone(), 1),
        (chat, demands_and_refuses_reasoning, bare.clone(), 2),
        ("ollama-chat", demands_thinking, json!([]), 0),
        ("ollama-chat", demands_thinking, bare.clone(), 1),
    ] {
        for stream in [true, false] {
            let service = ReasoningService::start(ReasoningRules { wire, check }).await;
            let rest = format!("stream = {stream}");
            run_over_restarts(&service, wire, &rest, opening.clone()).await;
            assert_eq!(service.refused(), refused, "{wire} {stream} {opening}");
        }
    }
}

#[tokio::test]
async fn reasoning_of_all_messages_goes_back_after_a_crash_and_opening_messages_have_theirs() {
    let rules = ReasoningRules { wire: "openai-chat", check: demands_reasoning };
    let service = ReasoningService::start(rules).await;
    let directory = HostDirectory::new(json!({"responses": []})).await;
    let config = service.config("openai-chat", "");
    let served = directory.start("", &config).await;
    let details = json!([{"type": "reasoning.text", "text": "D"}]);
    let messages = json!([
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello.", "reasoning_content": "O"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "P", "reasoning_details": details},
    ]);
    let opened = served.post("/v1/sessions", json!({"id": "s", "messages": messages})).await;
    assert_eq!(opened.status, 201, "{opened:?}");
    served.run("s", "go").await;
    served.run("s", "go").await;
    served.crash().await;
    let served = directory.start("", &config).await;
    served.run("s", "go").await;
    assert_eq!(service.refused(), 1, "details were sent instead of the text");
    let expected = json!(["O", "P", "R0", "", "R2", "", "R4", ""]);
    assert_eq!(service.last_members("reasoning_content"), expected);
    // The history shows it, and another session opens with it.
    let history = served.snapshot("s").await["history"].clone();
    let metadata = json!({"reasoning": "R0", "reasoning_field": "reasoning_content"});
    assert_eq!(history[5]["metadata"], metadata);
    assert_eq!(history[3]["metadata"]["reasoning_details"], details);
    let opened = served.post("/v1/sessions", json!({"id": "t", "messages": history})).await;
    assert_eq!(opened.status, 201, "{opened:?}");
    assert_eq!(served.snapshot("t").await["history"], history);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn content_that_a_service_refuses_stays_left_out_after_a_crash() {
    let refused = json!({"when": {"contains": "done a"}, "repeat": true, "status": 400,
        "error": {"error": {"message": "Bad Request"}}});
    let script = json!({"responses": [refused,
        {"calls": [call("writes", "a")]},
        {"text": ["It ", "is lost."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
        {"text": ["It is ", "done."]}, {"text": ["Hello."]}, {"text": ["Again."]}]});
    let (directory, served) = service(script, "").await;
    served.begin("s", json!({"input": "go"})).await;
    until("the held request", || directory.model.received() == 3).await;
    served.crash().await;
    let served = directory.start("", "").await;
    let snapshot = served.until_snapshot("s", is_idle).await;
    assert_eq!(snapshot["history"].as_array().unwrap().last().unwrap()["content"], "It is done.");
    assert_eq!(served.run("s", "hello").await["text"], "Hello.");
    served.crash().await;
    let served = directory.start("", "").await;
    assert_eq!(served.run("s", "hello").await["text"], "Again.");
    let requests = directory.model.requests();
    let refused: Vec<_> = requests.iter().map(|request| request.status == 400).collect();
    assert_eq!(refused, [false, true, false, false, false, false]);
    assert_eq!(run_ends(&directory, "s"), ["answered"; 3]);
    served.shutdown().await;
    directory.verify();
}
