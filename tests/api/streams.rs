//! `GET /v1/sessions/{id}/events`: a session's events from any position.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::time::Duration;

use crate::client::{HttpConnection, Service, StreamEvent, ended_runs, reproducible_lines, text};
use callsheet::event::EventId;
use callsheet::telemetry::FeedItem;
use callsheet::types::SessionId;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

async fn service(script: Value) -> Service {
    let service = Service::start(script).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    service
}

/// Connects to the session's events with the query `after` and additional header lines.
async fn events(service: &Service, after: &str, headers: &str) -> HttpConnection {
    let request =
        format!("GET /v1/sessions/s/events{after} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
    HttpConnection::open(service.addr(), &request).await
}

/// Returns a script with thinking, text and two calls; a broken attempt; an answer; and more.
fn long_script() -> Value {
    json!({"responses": [
        {"reasoning": ["Hm, ", "né."], "text": ["Let me ", "löok."], "calls": [
            {"name": "calculator", "arguments": {"expression": "6 * 7"}},
            {"name": "calculator", "arguments": {"expression": "1 + 1"}}]},
        {"text": ["This ", "is lost."], "cut_after_chunks": 3},
        {"reasoning": ["So."], "text": ["It is ", "42."]},
        {"text": ["May I?"], "calls": [{"name": "calculator", "arguments": {"expression": "2"}}]},
        {"text": ["Thank you."]},
        {"text": ["Now ", "then."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]}
    ]})
}

/// Starts three runs, stops the last one, and returns the events that were watched live.
async fn three_runs(service: &Service) -> Vec<StreamEvent> {
    let mut live = events(service, "?after=0", "").await;
    let runs = "/v1/sessions/s/runs";
    assert_eq!(service.post(runs, json!({"input": "go"})).await.status, 202);
    let approval = json!({"input": "ask", "queue": true, "approval": "before"});
    assert_eq!(service.post(runs, approval).await.status, 202);
    let seen = live.until_events(|seen| seen.iter().any(|e| e.kind == "tool_approval")).await;
    let approval = &seen.iter().find(|event| event.kind == "tool_approval").unwrap().data;
    let path = format!("/v1/sessions/s/approvals/{}", approval["tool_id"].as_str().unwrap());
    let sha = &approval["arguments_sha256"];
    let approve = json!({"decision": "approve", "arguments_sha256": sha});
    assert_eq!(service.post(&path, approve).await.status, 200);
    live.until_events(|seen| ended_runs(seen) == 2).await;
    assert_eq!(service.post(runs, json!({"input": "hold"})).await.status, 202);
    service.model.wait_for_gate("middle").await;
    let steer = json!({"input": "and more"});
    assert_eq!(service.post("/v1/sessions/s/steer", steer).await.status, 202);
    let stop = json!({"mode": "now"});
    assert_eq!(service.post("/v1/sessions/s/stop", stop).await.status, 202);
    live.until_events(|seen| ended_runs(seen) == 3).await
}

#[tokio::test]
async fn after_any_event_the_remaining_events_are_the_same() {
    let service = service(long_script()).await;
    let live = within(three_runs(&service)).await;
    let all = reproducible_lines(&live);
    let kinds = |kind: &str| live.iter().filter(|event| event.kind == kind).count();
    assert_eq!((kinds("tool_result"), kinds("attempt"), kinds("tool_approval")), (3, 1, 1));
    let mut cuts = vec![(0, "0".to_owned())];
    for (at, event) in live.iter().enumerate().take(live.len() - 1) {
        if let Some(id) = &event.id {
            cuts.push((at + 1, id.clone()));
        }
    }
    for (at, id) in cuts {
        let (seen, _) = live.split_at(at);
        let left = 3 - ended_runs(seen);
        if left == 0 {
            continue;
        }
        let mut reading = events(&service, &format!("?after={id}"), "").await;
        let rest = within(reading.until_events(|seen| ended_runs(seen) == left)).await;
        let both = [seen, &rest].concat();
        assert_eq!(reproducible_lines(&both), all, "after {id}");
    }
    for event in &live {
        let is_state = ["tool_use", "tool_progress", "approval_decided", "session_stats", "error"];
        assert_eq!(event.id.is_none(), is_state.contains(&event.kind.as_str()), "{event:?}");
    }
}

/// Returns the events of a type.
fn of_kind<'a>(events: &'a [StreamEvent], kind: &str) -> Vec<&'a StreamEvent> {
    events.iter().filter(|event| event.kind == kind).collect()
}

#[tokio::test]
async fn full_events_have_whole_inputs_and_outputs_live_and_in_every_replay() {
    let service = service(long_script()).await;
    let mut watching = events(&service, "?after=0&full=true", "").await;
    let short = within(three_runs(&service)).await;
    let live = within(watching.until_events(|seen| ended_runs(seen) == 3)).await;
    let inputs =
        of_kind(&live, "stream_start").into_iter().map(|event| event.data["input"].clone());
    assert_eq!(inputs.collect::<Vec<_>>(), ["go", "ask", "hold"]);
    let [steered] = of_kind(&live, "steered")[..] else { panic!("one steer") };
    assert_eq!((steered.data["input"].as_str(), steered.id.is_some()), (Some("and more"), true));
    let finished =
        of_kind(&live, "tool_use").into_iter().filter(|event| event.data["status"] == "finished");
    let expressions: Vec<_> =
        finished.map(|event| event.data["input"]["expression"].clone()).collect();
    assert_eq!(expressions, ["6 * 7", "1 + 1", "2"]);
    for event in of_kind(&live, "tool_use") {
        let has_input = event.data["status"] != "detected";
        assert_eq!(event.data["input"].is_object(), has_input, "{event:?}");
    }
    let results =
        of_kind(&live, "tool_result").into_iter().map(|event| event.data["content"].clone());
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    assert_eq!(results.collect::<Vec<_>>(), [text("42"), text("2"), text("2")]);
    let [attempt] = of_kind(&live, "attempt")[..] else { panic!("one attempt failed") };
    assert_eq!(attempt.data["voided"]["text"], "This is lost.");
    let ends: Vec<_> = of_kind(&live, "response_end")
        .into_iter()
        .map(|event| {
            (event.data["ending"].as_str().unwrap(), event.data["calls"].as_array().unwrap().len())
        })
        .collect();
    let complete = "complete";
    assert_eq!(
        ends,
        [(complete, 2), (complete, 0), (complete, 1), (complete, 0), ("cancelled", 0)]
    );
    for event in of_kind(&live, "stream_end") {
        assert!(event.data["usage"]["input_tokens"].is_u64(), "{event:?}");
    }

    let all = reproducible_lines(&live);
    let after_each =
        live.iter().enumerate().filter_map(|(at, event)| Some((at + 1, event.id.clone()?)));
    for (at, id) in after_each {
        let (seen, _) = live.split_at(at);
        let left = 3 - ended_runs(seen);
        if left > 0 {
            let mut reading = events(&service, &format!("?after={id}&full=true"), "").await;
            let rest = within(reading.until_events(|seen| ended_runs(seen) == left)).await;
            assert_eq!(reproducible_lines(&[seen, &rest].concat()), all, "after {id}");
        }
    }
    // Without `full`, these events have the same ids and no such members.
    let ids = |events: &[StreamEvent]| {
        let ids =
            events.iter().filter(|event| event.kind != "content_delta" && event.kind != "thinking");
        ids.filter_map(|event| Some((event.kind.clone(), event.id.clone()?))).collect::<Vec<_>>()
    };
    assert_eq!(ids(&short), ids(&live));
    for event in
        short.iter().filter(|event| !["steered", "tool_approval"].contains(&event.kind.as_str()))
    {
        for member in ["input", "content", "voided"] {
            assert_eq!(event.data.get(member), None, "{event:?}");
        }
    }
}

#[tokio::test]
async fn arguments_arrive_only_in_streams_that_ask_for_them() {
    let script = json!({"responses": [
        {"text": ["Let me look."], "calls": [
            {"name": "calculator", "arguments": {"expression": "6 * 7"}},
            {"name": "calculator", "arguments": {"expression": "1 + 1"}}]},
        {"text": ["It is 42."]},
    ]});
    let service = service(script).await;
    let mut asking = events(&service, "?after=0&arguments=true", "").await;
    let mut other = events(&service, "?after=0", "").await;
    let wait = json!({"input": "go", "wait": true});
    assert_eq!(service.post("/v1/sessions/s/runs", wait).await.status, 200);
    let asking = within(asking.until_events(|seen| ended_runs(seen) == 1)).await;
    let mut arguments = [String::new(), String::new()];
    for event in of_kind(&asking, "tool_input_delta") {
        assert_eq!(event.id, None);
        let index = usize::try_from(event.data["call_index"].as_u64().unwrap()).unwrap();
        assert_eq!(event.data["offset"], arguments[index].len());
        arguments[index].push_str(event.data["text"].as_str().unwrap());
    }
    let parsed = arguments.map(|text| serde_json::from_str::<Value>(&text).unwrap());
    assert_eq!(parsed, [json!({"expression": "6 * 7"}), json!({"expression": "1 + 1"})]);
    let other = within(other.until_events(|seen| ended_runs(seen) == 1)).await;
    assert!(of_kind(&other, "tool_input_delta").is_empty());
    let others: Vec<_> =
        asking.into_iter().filter(|event| event.kind != "tool_input_delta").collect();
    assert_eq!(reproducible_lines(&others), reproducible_lines(&other));
}

#[tokio::test]
async fn the_stream_of_a_new_run_takes_the_same_parameters() {
    let script = json!({"responses": [
        {"calls": [{"name": "calculator", "arguments": {"expression": "6 * 7"}}]},
        {"text": ["It is 42."]},
    ]});
    let service = service(script).await;
    let body = json!({"input": "go"}).to_string();
    let request = format!(
        "POST /v1/sessions/s/runs?full=true&arguments=true HTTP/1.1\r\nhost: localhost\r\n\
         accept: text/event-stream\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut reading = HttpConnection::open(service.addr(), &request).await;
    let seen = within(reading.until_events(|seen| ended_runs(seen) == 1)).await;
    assert_eq!(of_kind(&seen, "stream_start")[0].data["input"], "go");
    assert!(!of_kind(&seen, "tool_input_delta").is_empty());
    let request =
        "GET /v1/events?sessions=s&after=s:0&full=true HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut reading = HttpConnection::open(service.addr(), request).await;
    let joined = within(reading.until_events(|seen| ended_runs(seen) == 1)).await;
    assert_eq!(of_kind(&joined, "stream_start")[0].data["input"], "go");
    let refused = [
        service.get("/v1/sessions/s/events?full=maybe").await,
        service.get("/v1/sessions/s/events?arguments=1").await,
        service.get("/v1/events?sessions=s&full=").await,
        service.post("/v1/sessions/s/runs?full=yes", json!({"input": "go"})).await,
    ];
    for response in refused {
        assert_eq!(response.status, 400);
        let error = &response.json()["error"];
        assert_eq!(error["code"], "invalid_request");
        assert!(error["message"].as_str().unwrap().contains("must be true or false"), "{error}");
    }
}

#[tokio::test]
async fn a_stream_can_continue_within_a_text() {
    let service = service(json!({"responses": [{"text": ["Grüße ", "dich."]}]})).await;
    let wait = json!({"input": "go", "wait": true});
    assert_eq!(service.post("/v1/sessions/s/runs", wait).await.status, 200);
    for (bytes, expect) in [(0, "Grüße dich."), (1, "rüße dich."), (2, "üße dich."), (8, "dich.")]
    {
        // The attempt's record is the third, after those of the session and the run.
        let header = format!("last-event-id: 3.{bytes}\r\n");
        let mut reading = events(&service, "?after=0", &header).await;
        let seen = within(reading.until_events(|seen| ended_runs(seen) == 1)).await;
        let rest: String = seen.iter().filter_map(text).collect();
        assert_eq!(rest, expect, "{seen:?}");
        assert_eq!(seen[0].kind, "content_delta");
    }
}

fn texts(events: &[StreamEvent]) -> String {
    events.iter().filter_map(text).collect()
}

/// Reads the events after a position until they have a text of this length, and returns them.
async fn events_with_text(service: &Service, after: &str, bytes: usize) -> Vec<StreamEvent> {
    let mut reading = events(service, &format!("?after={after}"), "").await;
    within(reading.until_events(|seen| texts(seen).len() >= bytes)).await
}

/// Reads the events after a position to the end of the run.
async fn events_to_end(service: &Service, after: &str) -> Vec<StreamEvent> {
    let mut reading = events(service, &format!("?after={after}"), "").await;
    within(reading.until_events(|seen| ended_runs(seen) == 1)).await
}

/// Returns the record in the snapshot of the session, which has no part of `text`.
async fn snapshot_seq(service: &Service, text: &str) -> u64 {
    let snapshot = service.get("/v1/sessions/s").await;
    assert!(!snapshot.body.contains(text), "{snapshot:?}");
    snapshot.json()["seq"].as_u64().unwrap()
}

/// Checks that after each event of an ended run's stream the remaining events follow.
async fn assert_continues_from_each_id(service: &Service, stream: &[StreamEvent]) {
    let all = reproducible_lines(stream);
    for (at, event) in stream.iter().enumerate() {
        let (seen, _) = stream.split_at(at + 1);
        let Some(id) = event.id.as_ref().filter(|_| ended_runs(seen) == 0) else { continue };
        let rest = events_to_end(service, id).await;
        assert_eq!(reproducible_lines(&[seen, &rest].concat()), all, "after {id}");
    }
}

#[tokio::test]
async fn a_stream_from_a_snapshot_has_the_text_that_the_snapshot_does_not_have() {
    let script = json!({"responses": [
        {"reasoning": ["Hm. "], "text": ["Now ", "thén ", "more. "],
         "holds": [{"at": {"chunk": 4}, "name": "middle"}]},
        {"text": ["Again."]}]});
    let service = service(script).await;
    let mut live = events(&service, "?after=0", "").await;
    assert_eq!(service.post("/v1/sessions/s/runs", json!({"input": "go"})).await.status, 202);
    service.model.wait_for_gate("middle").await;
    let before = "Hm. Now thén ";
    within(live.until_events(|seen| texts(seen) == before)).await;
    let steer = json!({"input": "and more"});
    assert_eq!(service.post("/v1/sessions/s/steer", steer).await.status, 202);
    // The steer is the fourth record, after those of the session, the run and the attempt.
    assert_eq!(snapshot_seq(&service, "thén").await, 4);
    let so_far = events_with_text(&service, "4", before.len()).await;
    assert_eq!(texts(&so_far), before);
    assert!(so_far.iter().all(|event| text(event).is_some()), "{so_far:?}");
    for (at, event) in so_far.iter().enumerate() {
        let expected = texts(so_far.get(at + 1..).unwrap());
        let rest = events_with_text(&service, event.id.as_ref().unwrap(), expected.len()).await;
        assert_eq!(texts(&rest), expected);
    }
    // A client may know a part of the text.
    for after in ["3.8", "4.8"] {
        assert_eq!(texts(&events_with_text(&service, after, 6).await), "thén ", "{after}");
    }
    let mut joined = events(&service, "?after=4", "").await;
    within(joined.until_events(|seen| texts(seen).len() >= before.len())).await;
    service.model.open_gate("middle");
    let joined = within(joined.until_events(|seen| ended_runs(seen) == 1)).await;
    assert_eq!(texts(&joined), "Hm. Now thén more. Again.");
    let late = events_to_end(&service, "4").await;
    assert_eq!(reproducible_lines(&late), reproducible_lines(&joined));
    let live = within(live.until_events(|seen| ended_runs(seen) == 1)).await;
    for stream in [live, joined, late] {
        assert_continues_from_each_id(&service, &stream).await;
    }
    for after in ["3.8", "4.8"] {
        assert_eq!(texts(&events_to_end(&service, after).await), "thén more. Again.", "{after}");
    }
    // The fifth record is that of the response.
    assert_eq!(texts(&events_to_end(&service, "5").await), "Again.");
}

#[tokio::test]
async fn a_stream_from_a_snapshot_repeats_no_event_whose_record_the_snapshot_has() {
    let script = json!({"responses": [
        {"text": ["Let me ", "look. "], "calls": [
            {"name": "calculator", "arguments": {"expression": "6 * 7"}},
            {"name": "calculator", "arguments": {"expression": "1 + 1"}}],
         "holds": [{"at": "finish", "name": "finish"}]},
        {"text": ["It is 42."]}]});
    let service = service(script).await;
    let mut live = events(&service, "?after=0", "").await;
    let run = json!({"input": "go"});
    assert_eq!(service.post("/v1/sessions/s/runs", run).await.status, 202);
    service.model.wait_for_gate("finish").await;
    // A call runs while the response streams, so its result is in the middle of the attempt.
    let is_result = |event: &StreamEvent| event.kind == "tool_result";
    let seen = within(live.until_events(|seen| seen.iter().any(is_result))).await;
    let result = seen.iter().find(|event| is_result(event)).unwrap();
    assert_eq!(result.id.as_deref().unwrap().split_once('.').unwrap().1, "13");
    let seq = snapshot_seq(&service, "look").await;
    let after = seq.to_string();
    let so_far = events_with_text(&service, &after, 13).await;
    let mut joined = events(&service, &format!("?after={seq}"), "").await;
    within(joined.until_events(|seen| texts(seen).len() >= 13)).await;
    service.model.open_gate("finish");
    let joined = within(joined.until_events(|seen| ended_runs(seen) == 1)).await;
    let late = events_to_end(&service, &after).await;
    for stream in [&so_far, &joined, &late] {
        assert!(texts(stream).starts_with("Let me look. "), "{stream:?}");
        for event in stream.iter().filter(|event| text(event).is_none()) {
            let Some(id) = event.id.as_ref() else { continue };
            let id: EventId = id.parse().unwrap();
            assert!(id.seq.0 > seq, "{event:?} after {seq}");
        }
    }
    assert_eq!(texts(&joined), "Let me look. It is 42.");
    assert_eq!(reproducible_lines(&late), reproducible_lines(&joined));
    let live = within(live.until_events(|seen| ended_runs(seen) == 1)).await;
    for stream in [live, joined, late] {
        assert_continues_from_each_id(&service, &stream).await;
    }
    let rest = events_to_end(&service, &format!("{seq}.7")).await;
    assert_eq!(texts(&rest), "look. It is 42.");
}

#[tokio::test]
async fn an_invalid_event_id_is_refused() {
    let service = service(json!({})).await;
    for (query, header, code) in [
        ("?after=x", "", "invalid_event_id"),
        ("?after=", "", "invalid_event_id"),
        ("?after=1.", "", "invalid_event_id"),
        ("?after=-1", "", "invalid_event_id"),
        ("?from=1", "", "invalid_request"),
        ("?after=0", "last-event-id: abc\r\n", "invalid_event_id"),
        ("?after=2", "", "unknown_event_id"),
        ("?after=0", "last-event-id: 99.1\r\n", "unknown_event_id"),
    ] {
        let path = format!("/v1/sessions/s/events{query}");
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{header}\r\n");
        let answer = service.send(&request).await;
        assert_eq!(answer.error(), (400, code.to_owned()), "{query} {header}");
    }
    let unknown = service.get("/v1/sessions/t/events").await;
    assert_eq!(unknown.error(), (404, "no_such_session".to_owned()));
}

#[tokio::test]
async fn without_an_event_id_the_stream_starts_now_with_the_open_calls() {
    let script = json!({"responses": [
        {"text": ["Before."], "calls": [
            {"name": "calculator", "arguments": {"expression": "6 * 7"}}]},
        {"text": ["After."]}]});
    let service = service(script).await;
    let mut first = events(&service, "?after=0", "").await;
    let run = json!({"input": "go", "approval": "before"});
    assert_eq!(service.post("/v1/sessions/s/runs", run).await.status, 202);
    let approval = within(first.until_events(|seen| {
        seen.iter().any(|event| event.data["waiting_for"] == "approval")
            && seen.iter().any(|event| event.kind == "tool_approval")
    }))
    .await;
    let mut late = events(&service, "", "").await;
    let seen = within(late.until_events(|seen| !seen.is_empty())).await;
    assert_eq!((seen[0].kind.as_str(), &seen[0].id), ("tool_use", &None));
    assert_eq!(seen[0].data["waiting_for"], "approval");
    let request = approval.iter().find(|event| event.kind == "tool_approval").unwrap();
    let tool_id = request.data["tool_id"].as_str().unwrap();
    let sha = &request.data["arguments_sha256"];
    let reject = json!({"decision": "reject", "arguments_sha256": sha});
    let decided = service.post(&format!("/v1/sessions/s/approvals/{tool_id}"), reject).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    let seen = within(late.until_events(|seen| ended_runs(seen) == 1)).await;
    let texts: String = seen.iter().filter_map(text).collect();
    assert_eq!(texts, "After.");
    // The stream continues after the run, until the session is closed.
    assert_eq!(service.delete("/v1/sessions/s").await.status, 204);
    let closed = |seen: &[StreamEvent]| seen.last().is_some_and(|event| event.kind == "error");
    let last = within(late.until_events(closed)).await.pop().unwrap();
    assert_eq!((last.kind.as_str(), &last.data["code"]), ("error", &json!("session_closed")));
}

#[tokio::test]
async fn watchers_that_join_late_see_the_same_events() {
    let script = json!({"responses": [
        {"reasoning": ["Hm."], "text": ["Now ", "then."],
         "holds": [{"at": {"chunk": 3}, "name": "middle"}]}]});
    let service = service(script).await;
    let mut live = service.watch("s", "go").await;
    within(live.until("\"text\":\"Now \"")).await;
    service.model.wait_for_gate("middle").await;
    let mut readings = Vec::new();
    for at in 0..50 {
        let after = if at % 2 == 0 { "?after=0" } else { "?after=3.4" };
        readings.push((at, events(&service, after, "").await));
    }
    for (at, reading) in &mut readings {
        let text = if *at % 2 == 0 { "\"text\":\"Now \"" } else { "\"text\":\"ow \"" };
        within(reading.until(text)).await;
    }
    service.model.open_gate("middle");
    let all = within(live.until_events(|seen| ended_runs(seen) == 1)).await;
    for (at, mut reading) in readings {
        let seen = within(reading.until_events(|seen| ended_runs(seen) == 1)).await;
        if at % 2 == 0 {
            assert_eq!(reproducible_lines(&seen), reproducible_lines(&all));
        } else {
            let texts: String = seen.iter().filter_map(text).collect();
            assert_eq!(texts, "ow then.");
        }
    }
    let page = service.get("/metrics").await.body;
    assert!(page.contains("\ncallsheet_watchers "), "{page}");
}

#[tokio::test]
async fn a_slow_watcher_continues_without_loss() {
    let words: Vec<String> = (0..5000).map(|at| format!("w{at} ")).collect();
    let service = service(json!({"responses": [{"text": words.clone()}]})).await;
    let session = service.host.session(&SessionId::parse("s").unwrap());
    let mut slow = Vec::new();
    for _ in 0..1000 {
        let mut watch = session.watch(EventId::default()).await.unwrap();
        assert!(watch.next().now_or_never().is_none(), "nothing has happened");
        slow.push(watch);
    }
    let wait = json!({"input": "go", "wait": true});
    assert_eq!(within(service.post("/v1/sessions/s/runs", wait)).await.status, 200);
    let mut watch = slow.swap_remove(500);
    let (mut texts, mut last, mut resyncs) = (String::new(), EventId::default(), 0);
    loop {
        match within(watch.next()).await {
            Some(FeedItem::Event(published)) => {
                last = published.id.unwrap_or(last);
                texts.push_str(published.event.text().map_or("", |(_, text)| text));
                if published.public().any(|event| event.kind == "stream_end") {
                    break;
                }
            }
            Some(FeedItem::Lagged) => {
                resyncs += 1;
                watch = session.watch(last).await.unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((texts, resyncs), (words.concat(), 1));
    let page = service.get("/metrics").await.body;
    assert!(page.contains("\ncallsheet_subscribers_lagged_total 1000\n"), "{page}");
}

#[tokio::test]
async fn a_host_shutdown_closes_no_session() {
    let service = service(json!({"responses": [{"text": ["Hello."]}]})).await;
    let mut live = events(&service, "?after=0", "connection: close\r\n").await;
    let wait = json!({"input": "go", "wait": true});
    assert_eq!(service.post("/v1/sessions/s/runs", wait.clone()).await.status, 200);
    within(live.until_events(|seen| ended_runs(seen) == 1)).await;
    service.host.shutdown().await;
    within(live.read_rest()).await;
    let seen = live.events();
    assert_eq!(seen.last().unwrap().kind, "stream_end", "{seen:?}");
    for (path, body) in [("runs", wait), ("steer", json!({"input": "and"}))] {
        let refused = service.post(&format!("/v1/sessions/s/{path}"), body).await;
        assert_eq!(refused.error(), (503, "shutting_down".to_owned()));
    }
}

#[tokio::test]
async fn text_of_a_turn_whose_attempts_are_used_up_is_void_live_and_in_every_replay() {
    let delta = |delta: Value| format!("data: {}\n\n", json!({"choices": [{"delta": delta}]}));
    // An error that no repetition mends.
    let error = json!({"error": {"message": "so it is", "code": 401}});
    let chunks = [
        delta(json!({"reasoning_content": "Hm."})),
        delta(json!({"content": "This "})),
        delta(json!({"content": "is lost."})),
        format!("data: {error}\n\n"),
    ];
    let script = json!({"responses": [
        {"content_type": "text/event-stream", "raw_chunks": chunks, "chunk_delay_ms": 5}]});
    let service = service(script).await;
    let mut reading = events(&service, "?after=0", "").await;
    assert_eq!(service.post("/v1/sessions/s/runs", json!({"input": "go"})).await.status, 202);
    let live = within(reading.until_events(|seen| ended_runs(seen) == 1)).await;
    let text_received: String = live.iter().filter_map(text).collect();
    assert!(text_received.starts_with("Hm.This"), "{text_received:?}");
    let expected = reproducible_lines(&live);
    let is_text =
        |line: &&String| line.starts_with("content_delta") || line.starts_with("thinking:");
    assert_eq!(expected.iter().filter(is_text).count(), 0, "{expected:?}");
    let attempt = live.iter().find(|event| event.kind == "attempt").unwrap();
    assert_eq!((&attempt.data["attempt"], &attempt.data["wait_ms"]), (&json!(1), &json!(0)));
    for (at, event) in live.iter().enumerate().take(live.len() - 1) {
        let Some(id) = &event.id else { continue };
        let mut reading = events(&service, &format!("?after={id}"), "").await;
        let rest = within(reading.until_events(|seen| ended_runs(seen) == 1)).await;
        assert_eq!(reproducible_lines(&[&live[..=at], &rest].concat()), expected, "after {id}");
    }
    let mut replay = events(&service, "?after=0", "").await;
    let replay = within(replay.until_events(|seen| ended_runs(seen) == 1)).await;
    assert_eq!(reproducible_lines(&replay), expected);
}
