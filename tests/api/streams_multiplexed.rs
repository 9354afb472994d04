//! `GET /v1/events`: the events of many sessions, and the states of all sessions, in one stream.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::client::{HttpConnection, Service, StreamEvent, ended_runs, reproducible_lines, text};
use crate::host_directory::{HostDirectory, HostServer, within};
use serde_json::{Value, json};

const SLEEPY: &str = "idle_after = \"1ms\"";

async fn watch(addr: SocketAddr, query: &str) -> HttpConnection {
    let request = format!("GET /v1/events?{query} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    HttpConnection::open(addr, &request).await
}

/// Waits until the head of the response has come, after which no event is missed.
async fn opened(addr: SocketAddr, query: &str) -> HttpConnection {
    let mut stream = watch(addr, query).await;
    within(stream.until("text/event-stream")).await;
    stream
}

/// Reads until the text is at the end of what has been received. Searches only there, for a long stream.
async fn read_to(stream: &mut HttpConnection, text: &str) {
    let found = |bytes: &[u8]| {
        let end = bytes.len().saturating_sub(8 * 1024);
        String::from_utf8_lossy(&bytes[end..]).contains(text)
    };
    while !found(&stream.bytes) {
        assert!(stream.read_more().await, "{text:?} never came");
    }
}

/// Returns the events of each session.
fn by_session(events: &[StreamEvent]) -> BTreeMap<String, Vec<StreamEvent>> {
    let mut sessions: BTreeMap<String, Vec<StreamEvent>> = BTreeMap::new();
    for event in events {
        let session = event.data["session_id"].as_str().unwrap().to_owned();
        sessions.entry(session).or_default().push(event.clone());
    }
    sessions
}

fn lines_by_session(events: &[StreamEvent]) -> BTreeMap<String, Vec<String>> {
    let sessions = by_session(events).into_iter();
    sessions.map(|(session, events)| (session, reproducible_lines(&events))).collect()
}

/// Returns the sessions and states of the `session_state` events.
fn states(events: &[StreamEvent]) -> Vec<(&str, &str)> {
    let states = events.iter().filter(|event| event.kind == "session_state");
    states
        .map(|event| {
            assert_eq!(event.id, None, "{event:?}");
            assert!(event.data["timestamp"].as_u64().unwrap() > 0, "{event:?}");
            assert_eq!(event.data["type"], "session_state");
            let field = |name: &str| event.data[name].as_str().unwrap();
            (field("session_id"), field("state"))
        })
        .collect()
}

fn calculation() -> Value {
    json!({"reasoning": ["Hm."], "text": ["Let me ", "löok."], "calls": [
        {"name": "calculator", "arguments": {"expression": "6 * 7"}}]})
}

#[tokio::test]
async fn each_session_has_the_events_of_its_own_stream_and_continues_from_any_position() {
    let mut responses = Vec::new();
    for _ in 0..3 {
        responses.extend([calculation(), json!({"text": ["It is ", "42."]})]);
    }
    let directory = HostDirectory::new(json!({"responses": responses})).await;
    let served = directory.start("", "").await;
    for session in ["a-1", "b_2", "C"] {
        served.open(session).await;
    }
    let mut live = opened(served.addr(), "sessions=a-1,b_2,C&after=a-1:0,b_2:0.0").await;
    for session in ["a-1", "b_2", "C"] {
        served.run(session, "go").await;
    }
    let live = within(live.until_events(|seen| ended_runs(seen) == 3)).await;
    let all = lines_by_session(&live);
    for (session, lines) in &all {
        let mut single = served.events(session, "0").await;
        let single = within(single.until_events(|seen| ended_runs(seen) == 1)).await;
        assert_eq!(*lines, reproducible_lines(&single), "{session}");
    }
    for at in 0..live.len() - 1 {
        let (seen, _) = live.split_at(at);
        let mut positions: BTreeMap<&str, &str> = BTreeMap::new();
        for session in ["a-1", "b_2", "C"] {
            positions.insert(session, "0");
        }
        for event in seen {
            if let Some(id) = &event.id {
                positions.insert(event.data["session_id"].as_str().unwrap(), id);
            }
        }
        let after: Vec<_> =
            positions.iter().map(|(session, id)| format!("{session}:{id}")).collect();
        let query = format!("sessions=C,b_2,a-1&after={}", after.join("%2C"));
        let mut rest = watch(served.addr(), &query).await;
        let left = 3 - ended_runs(seen);
        let rest = within(rest.until_events(|seen| ended_runs(seen) == left)).await;
        assert_eq!(lines_by_session(&[seen, &rest].concat()), all, "after {after:?}");
    }
    served.shutdown().await;
}

#[tokio::test]
async fn a_hibernating_session_is_read_without_being_woken() {
    let responses = json!([calculation(), {"text": ["Done."]}, {"text": ["Again."]}]);
    let directory = HostDirectory::new(json!({"responses": responses})).await;
    let served = directory.start(SLEEPY, "").await;
    served.open("a").await;
    served.open("b").await;
    let mut live_single = served.events("a", "0").await;
    served.run("a", "go").await;
    let single = within(live_single.until_events(|seen| ended_runs(seen) == 1)).await;
    drop(live_single);
    let last = single.iter().rev().find_map(|event| event.id.clone()).unwrap();
    served.asleep().await;

    let mut live = opened(served.addr(), "sessions=a,b&after=a:0").await;
    let past = within(live.until_events(|seen| ended_runs(seen) == 1)).await;
    assert_eq!(reproducible_lines(&past), reproducible_lines(&single));
    let mut late = opened(served.addr(), &format!("sessions=b,a&after=a:{last},b:0")).await;
    assert_eq!(served.host.counts().awake, 0, "watching wakes no session");
    // Something else wakes it, and the events go on.
    served.run("a", "again").await;
    let seen = within(live.until_events(|seen| ended_runs(seen) == 2)).await;
    assert_eq!(seen.iter().filter(|event| event.kind == "stream_start").count(), 2, "{seen:?}");
    let seen = within(late.until_events(|seen| ended_runs(seen) == 1)).await;
    assert_eq!(seen.iter().filter_map(text).collect::<String>(), "Again.");
    drop((live, late));
    served.asleep().await;
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_hibernating_run_shows_what_it_waits_for_and_goes_on_when_it_is_decided() {
    let call = json!({"name": "writes", "arguments": {"id": "a"}});
    let script =
        json!({"responses": [{"text": ["May I?"], "calls": [call]}, {"text": ["Thanks."]}]});
    let directory = HostDirectory::new(script).await;
    let served = directory.start(SLEEPY, "[tools.writes]\napproval = \"before\"").await;
    served.open("a").await;
    served.begin("a", json!({"input": "go"})).await;
    served.asleep().await;
    let mut live = opened(served.addr(), "sessions=a,*&after=a:0").await;
    let asked = |seen: &[StreamEvent]| seen.iter().any(|event| event.kind == "tool_approval");
    let seen = within(live.until_events(asked)).await;
    assert_eq!(served.host.counts().awake, 0, "watching wakes no session");
    let question = seen.iter().find(|event| event.kind == "tool_approval").unwrap();
    let (tool_id, body) = crate::host_directory::decision(&question.data, "approve");
    let decided = served.post(&format!("/v1/sessions/a/approvals/{tool_id}"), body).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    let seen = within(live.until_events(|seen| ended_runs(seen) == 1)).await;
    let texts: String = seen.iter().filter_map(text).collect();
    assert_eq!(texts, "May I?Thanks.");
    // It was waiting all the time, although it was not in memory.
    assert_eq!(states(&seen).first(), Some(&("a", "waiting")));
    served.shutdown().await;
}

#[tokio::test]
async fn a_deleted_session_ends_as_closed_and_the_others_go_on() {
    let held =
        json!({"text": ["Now ", "then."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]});
    let directory = HostDirectory::new(json!({"responses": [held, {"text": ["Fine."]}]})).await;
    let served = directory.start("", "").await;
    for session in ["a", "b", "c"] {
        served.open(session).await;
    }
    served.host.session(&crate::host_directory::id("c")).hibernate();
    crate::host_directory::until("it hibernates", || served.host.counts().awake == 2).await;
    let mut live = opened(served.addr(), "sessions=a,b,c").await;
    served.begin("a", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    within(live.until("\"text\":\"Now \"")).await;
    assert_eq!(served.delete("/v1/sessions/a").await.status, 204);
    let seen = within(live.until_events(|seen| !states(seen).is_empty())).await;
    assert_eq!(states(&seen), [("a", "closed")]);
    assert_eq!(seen.last().unwrap().kind, "session_state", "it is the last event of the session");
    served.run("b", "go").await;
    let of_b = |event: &StreamEvent| event.kind == "stream_end" && event.data["session_id"] == "b";
    within(live.until_events(|seen| seen.iter().any(of_b))).await;
    assert_eq!(served.delete("/v1/sessions/c").await.status, 204);
    let seen = within(live.until_events(|seen| states(seen).len() == 2)).await;
    assert_eq!(states(&seen)[1], ("c", "closed"));
    assert_eq!(served.delete("/v1/sessions/b").await.status, 204);
    // The stream ends with its last session.
    within(live.until("\r\n0\r\n\r\n")).await;
    let seen = live.events();
    assert_eq!(states(&seen), [("a", "closed"), ("c", "closed"), ("b", "closed")]);
    served.shutdown().await;
}

#[tokio::test]
async fn invalid_requests_are_refused_with_the_session_that_is_meant() {
    let directory = HostDirectory::new(json!({"responses": []})).await;
    let served = directory.start(SLEEPY, "").await;
    served.open("a").await;
    served.open("b").await;
    for state in ["awake", "asleep"] {
        for (query, status, code, named) in [
            ("", 400, "invalid_request", "sessions"),
            ("?sessions=", 404, "no_such_session", "\\\"\\\""),
            ("?sessions=a,x", 404, "no_such_session", "x"),
            ("?sessions=a,x&after=a:0,x:0", 404, "no_such_session", "x"),
            ("?sessions=a,b%20c", 404, "no_such_session", "b c"),
            ("?sessions=a,a", 400, "invalid_request", "a is named twice"),
            ("?sessions=a&after=b:0", 400, "invalid_request", "b"),
            ("?sessions=a&after=a:x", 400, "invalid_event_id", "a"),
            ("?sessions=a,b&after=a:0,b:99", 400, "unknown_event_id", "session b"),
            ("?sessions=a&limit=3", 400, "invalid_request", "limit"),
        ] {
            let answer = served.get(&format!("/v1/events{query}")).await;
            assert_eq!(answer.error(), (status, code.to_owned()), "{state} {query}");
            assert!(answer.body.contains(named), "{query}: {}", answer.body);
        }
        served.asleep().await;
    }
    let many: Vec<String> = (0..257).map(|at| format!("s{at}")).collect();
    let answer = served.get(&format!("/v1/events?sessions={}", many.join(","))).await;
    assert_eq!(answer.error(), (400, "invalid_request".to_owned()));
    served.shutdown().await;
}

#[tokio::test]
async fn a_star_shows_the_states_of_all_sessions_and_nothing_else() {
    let responses = json!([{"text": ["One."]}, {"text": ["Two."]}]);
    let directory = HostDirectory::new(json!({"responses": responses})).await;
    let served = directory.start("", "").await;
    served.open("old").await;
    let mut all = opened(served.addr(), "sessions=*").await;
    let mut both = opened(served.addr(), "sessions=*,old&after=old:0").await;
    served.open("new").await;
    served.run("new", "go").await;
    served.run("old", "go").await;
    served.host.session(&crate::host_directory::id("new")).hibernate();
    crate::host_directory::until("it hibernates", || served.host.counts().awake == 1).await;
    served.snapshot("new").await;
    let fork = served.post("/v1/sessions/new/fork", json!({"at": 2, "id": "fork"})).await;
    assert_eq!(fork.status, 201);
    for session in ["new", "fork"] {
        assert_eq!(served.delete(&format!("/v1/sessions/{session}")).await.status, 204);
    }
    let expected = [
        ("new", vec!["idle", "running", "idle", "hibernated", "idle", "closed"]),
        ("old", vec!["running", "idle"]),
        // It ends the run that was open at record 2, which may be seen.
        ("fork", vec!["running", "idle", "closed"]),
    ];
    for (stream, is_all) in [(&mut all, true), (&mut both, false)] {
        let enough = |seen: &[StreamEvent]| states(seen).contains(&("fork", "closed"));
        let seen = within(stream.until_events(enough)).await;
        for (session, expected) in &expected {
            let own = states(&seen).into_iter().filter(|(own, _)| own == session);
            let mut own: Vec<&str> = own.map(|(_, state)| state).collect();
            // A state that has changed again before it was sent is sent as the later one.
            own.dedup();
            assert_eq!(own.last(), expected.last(), "{session}: {own:?}");
            assert!(own.len() <= expected.len(), "{session}: {own:?}");
        }
        assert_eq!(seen.iter().all(|event| event.kind == "session_state"), is_all, "{seen:?}");
        assert!(is_all || ended_runs(&seen) == 1, "{seen:?}");
    }
    served.shutdown().await;
    within(all.until("\r\n0\r\n\r\n")).await;
}

#[tokio::test]
async fn the_states_lead_to_those_of_the_list() {
    let directory = HostDirectory::new(json!({"responses": []})).await;
    let served = directory.start(SLEEPY, "").await;
    let mut all = opened(served.addr(), "sessions=*").await;
    for session in ["a", "b"] {
        served.open(session).await;
    }
    served.asleep().await;
    let enough = |seen: &[StreamEvent]| {
        let hibernated = |session| states(seen).contains(&(session, "hibernated"));
        hibernated("a") && hibernated("b")
    };
    within(all.until_events(enough)).await;
    let list = served.get("/v1/sessions").await.json();
    for session in list["sessions"].as_array().unwrap() {
        assert_eq!(session["state"], "hibernated", "{list}");
    }
    assert_eq!(served.host.counts().awake, 0);
    served.shutdown().await;
}

#[tokio::test]
async fn a_client_that_is_too_slow_reads_again_from_its_positions() {
    // Larger than what the system buffers for a connection.
    let words: Vec<String> = (0..3900).map(|at| format!("{at} {} ", "x".repeat(4000))).collect();
    let script = json!({"responses": [{"text": words.clone()}]});
    let service = Service::start(script).await;
    for session in ["a", "b"] {
        assert_eq!(service.post("/v1/sessions", json!({"id": session})).await.status, 201);
    }
    let mut slow = opened(service.addr(), "sessions=a,b&after=a:0,b:0").await;
    let wait = json!({"input": "go", "wait": true});
    let report = within(service.post("/v1/sessions/a/runs", wait)).await.json();
    assert_eq!(report["run_end"], "answered", "{}", report["error"]);
    within(read_to(&mut slow, "\r\n0\r\n\r\n")).await;
    let seen = slow.events();
    let last = seen.last().unwrap();
    assert_eq!((last.kind.as_str(), &last.data["session_id"]), ("resync", &json!("a")));
    let id = seen.iter().rev().find_map(|event| event.id.clone()).unwrap();
    assert_eq!(last.data["id"], id.as_str());
    let mut rest = watch(service.addr(), &format!("sessions=a,b&after=a:{id},b:0")).await;
    // The last members of `stream_end`, whose text is the whole answer.
    within(read_to(&mut rest, "\"error\":null}\n\n\r\n")).await;
    let rest = rest.events();
    assert_eq!(ended_runs(&rest), 1);
    let texts: String = seen.iter().chain(&rest).filter_map(text).collect();
    assert!(texts == words.concat(), "{} of {}", texts.len(), words.concat().len());
}

#[tokio::test]
async fn a_shutdown_of_the_host_ends_the_stream_and_closes_no_session() {
    let held =
        json!({"text": ["Now ", "then."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]});
    let directory = HostDirectory::new(json!({"responses": [held]})).await;
    let host = "shutdown_grace = \"0s\"";
    let served: HostServer = directory.start(host, "").await;
    served.open("a").await;
    served.open("b").await;
    let mut live = opened(served.addr(), "sessions=a,b").await;
    served.begin("a", json!({"input": "go"})).await;
    directory.model.wait_for_gate("middle").await;
    within(live.until("\"text\":\"Now \"")).await;
    within(served.host.shutdown()).await;
    within(live.until("\r\n0\r\n\r\n")).await;
    let seen = live.events();
    assert_eq!(seen.iter().filter_map(text).collect::<String>(), "Now ");
    assert_eq!(states(&seen), []);
    drop(served);
}
