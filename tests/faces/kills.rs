//! Streams of the face OpenAI Responses that are cut and joined again, also at a host that follows a killed one.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::client::{HttpConnection, parse_events, post};
use crate::host_directory::{HostDirectory, HostServer, within};
use crate::responses::{call, checked, response_of, start};

/// An item as a client folds it from its events.
#[derive(Clone, Debug, Default)]
struct FoldedItem {
    id: Value,
    kind: String,
    /// The deltas.
    text: String,
    done: Option<Value>,
}

/// Returns the items that a client has from all its events, by index.
fn fold(events: &[Value]) -> BTreeMap<u64, FoldedItem> {
    let mut items = BTreeMap::<u64, FoldedItem>::new();
    for event in events {
        let Some(index) = event["output_index"].as_u64() else { continue };
        if event["type"] == "response.output_item.added" {
            let (id, kind) = (event["item"]["id"].clone(), event["item"]["type"].as_str().unwrap());
            assert!(items.values().all(|item| item.id != id), "twice: {event}");
            let item = FoldedItem { id, kind: kind.to_owned(), ..FoldedItem::default() };
            let before = items.insert(index, item);
            assert!(before.is_none(), "the index of {before:?}: {event}");
            continue;
        }
        let item = items.get_mut(&index).unwrap_or_else(|| panic!("of no item: {event}"));
        assert!(item.done.is_none(), "after the end of its item: {event}");
        if event["type"] == "response.output_item.done" {
            assert_eq!(event["item"]["id"], item.id, "{event}");
            item.done = Some(event["item"].clone());
            continue;
        }
        assert_eq!(event["item_id"], item.id, "{event}");
        item.text.push_str(event["delta"].as_str().unwrap_or_default());
    }
    items
}

/// Returns the text of an item that has ended.
fn text_of(item: &Value) -> String {
    let parts = item["content"].as_array().or(item["summary"].as_array());
    let parts = parts.into_iter().flatten().filter_map(|part| part["text"].as_str());
    parts.chain(item["arguments"].as_str()).collect()
}

/// Checks that the events of a client are what its response says.
fn check(events: &[Value], response: &Value, what: &str) {
    let numbers = events.iter().map(|event| event["sequence_number"].as_u64());
    assert!(numbers.is_sorted_by(|a, b| a < b), "{what}: {events:#?}");
    let created = events.iter().filter(|event| event["type"] == "response.created");
    assert_eq!(created.count(), 1, "{what}");
    let items = fold(events);
    let mut output = Vec::new();
    for (index, FoldedItem { kind, text, done, .. }) in items {
        let done = done.unwrap_or_else(|| panic!("{what}: the item at {index} has no end"));
        let is_incomplete = done["status"] == "incomplete";
        // The text of an attempt is lost with its host.
        if !(is_incomplete && text_of(&done).is_empty()) {
            assert_eq!(text_of(&done), text, "{what}: {kind} at {index}");
        }
        if !is_incomplete {
            output.push(done);
        }
    }
    assert_eq!(json!(output), response["output"], "{what}");
    assert_eq!(response_of(events), *response, "{what}");
}

fn number(event: &Value) -> Option<u64> {
    event["sequence_number"].as_u64()
}

/// Returns what a client has that is cut after this event, and joins.
async fn rejoined(served: &HostServer, seen: &[Value], at: usize) -> Vec<Value> {
    let (id, after) = (seen[0]["response"]["id"].as_str().unwrap(), number(&seen[at]).unwrap());
    let path = format!("/v1/responses/{id}?stream=true&starting_after={after}");
    let answer = served.get(&path).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let rest = parse_events(answer.body.trim_end_matches("data: [DONE]\n\n"));
    seen[..=at].iter().cloned().chain(rest.into_iter().map(|event| event.data)).collect()
}

/// Checks a client that is cut after some of its events, and joins.
async fn check_cuts(
    served: &HostServer,
    seen: &[Value],
    step: usize,
    response: &Value,
    what: &str,
) {
    for at in (0..seen.len()).step_by(step) {
        let both = rejoined(served, seen, at).await;
        check(&both, response, &format!("{what}, cut after {}", seen[at]));
    }
}

/// Returns the index of each item.
fn indexes(events: &[Value]) -> BTreeMap<String, u64> {
    let items = fold(events).into_iter();
    items.map(|(index, item)| (item.id.as_str().unwrap().to_owned(), index)).collect()
}

/// The responses of a run: thinking, text and two calls; an attempt that breaks; the answer.
const STAGES: usize = 3;

fn stage(number: usize) -> Value {
    match number {
        0 => json!({"reasoning": ["Hm, ", "well."], "text": ["Let ", "me ", "see."],
            "calls": [call("quick", "a"), call("writes", "b")]}),
        1 => json!({"reasoning": ["So."], "text": ["It ", "is ", "lost."], "cut_after_chunks": 4}),
        _ => json!({"reasoning": ["Ah."], "text": ["It ", "is ", "done."]}),
    }
}

/// A moment at which the host is killed: the model waits in this stage, and the client has read a text.
#[derive(Clone, Copy, Debug)]
struct HostKill {
    stage: usize,
    at: &'static str,
    seen: &'static str,
}

const fn kill(stage: usize, at: &'static str, seen: &'static str) -> HostKill {
    HostKill { stage, at, seen }
}

/// Returns a run in whose stages the host is killed, and the answers of the model.
fn script(kills: &[HostKill]) -> Value {
    let mut responses = Vec::new();
    for number in 0..STAGES {
        for (index, kill) in kills.iter().enumerate().filter(|(_, kill)| kill.stage == number) {
            let at: Value = serde_json::from_str(kill.at).unwrap();
            let mut response = stage(number);
            response["holds"] = json!([{"at": at, "name": format!("kill {index}")}]);
            responses.push(response);
        }
        responses.push(stage(number));
    }
    json!({"responses": responses})
}

/// Reads the events of a stream up to a text.
async fn read_until(connection: &mut HttpConnection, text: &str) -> Vec<Value> {
    connection.until(text).await;
    let events = connection.events().into_iter().map(|event| (event.kind, event.data)).collect();
    checked(events)
}

/// Runs a run whose host is killed, with one client that reads on, and returns its events.
async fn killed(directory: &HostDirectory, kills: &[HostKill]) -> (HostServer, Vec<Value>) {
    let mut served = start(directory, "").await;
    let body = json!({"model": "default", "input": "go", "stream": true});
    let request = post("/v1/responses", "", &body.to_string());
    let mut connection = HttpConnection::open(served.addr(), &request).await;
    let mut seen = Vec::<Value>::new();
    for (index, kill) in kills.iter().enumerate() {
        within(directory.model.wait_for_gate(&format!("kill {index}"))).await;
        seen.extend(read_until(&mut connection, kill.seen).await);
        served.crash().await;
        directory.model.open_gate(&format!("kill {index}"));
        served = start(directory, "").await;
        let id = seen[0]["response"]["id"].as_str().unwrap();
        let after = number(seen.last().unwrap()).unwrap();
        let path = format!("/v1/responses/{id}?stream=true&starting_after={after}");
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        connection = HttpConnection::open(served.addr(), &request).await;
    }
    seen.extend(read_until(&mut connection, "[DONE]").await);
    (served, seen)
}

/// Checks what a client has seen of a run whose host is killed, for each cut of the client.
async fn check_kills(kills: &[HostKill]) {
    let what = format!("{kills:?}");
    let directory = HostDirectory::new(script(kills)).await;
    let (served, seen) = killed(&directory, kills).await;
    let response = served.retrieve(&seen[0]["response"]["id"]).await;
    assert_eq!(response["status"], "completed", "{what}");
    check(&seen, &response, &what);
    check_cuts(&served, &seen, 1, &response, &what).await;
    // An item has one index for all clients.
    let whole = served.join(&response["id"], None).await;
    check(&whole, &response, &what);
    let mine = indexes(&seen);
    for (id, index) in indexes(&whole) {
        assert!(mine.get(&id).is_none_or(|mine| *mine == index), "{what}: {id} at {index}");
    }
    // A client that was cut before the kill, and then again.
    for at in (0..seen.len()).step_by(7) {
        let other = rejoined(&served, &seen, at).await;
        check_cuts(&served, &other, 5, &response, &what).await;
    }
    served.shutdown().await;
}

const IN_THINKING: HostKill = kill(0, r#"{"chunk": 2}"#, r#""delta":"Hm, "}"#);
const AFTER_THINKING: HostKill = kill(0, r#"{"chunk": 3}"#, r#"well."}"#);
const IN_TEXT: HostKill = kill(0, r#"{"chunk": 4}"#, r#""delta":"Let "}"#);
const AFTER_TEXT: HostKill = kill(0, r#"{"chunk": 6}"#, r#"see."}"#);
const AFTER_CALLS: HostKill = kill(0, r#""finish""#, r#"see."}"#);
const IN_BROKEN_TEXT: HostKill = kill(1, r#"{"chunk": 3}"#, r#""delta":"It "}"#);
const AFTER_BROKEN_TEXT: HostKill = kill(2, r#""headers""#, r#""status":"incomplete""#);
const IN_ANSWER: HostKill = kill(2, r#"{"chunk": 3}"#, r#""delta":"It "}"#);

/// Checks several runs at once: they mostly wait.
async fn check_each(runs: &[&[HostKill]]) {
    futures::future::join_all(runs.iter().map(|kills| Box::pin(check_kills(kills)))).await;
}

#[tokio::test]
async fn a_client_sees_each_item_once_over_kills_in_the_first_text() {
    check_each(&[
        &[],
        &[IN_THINKING],
        &[AFTER_THINKING],
        &[IN_TEXT],
        &[AFTER_TEXT],
        &[AFTER_CALLS],
    ])
    .await;
}

#[tokio::test]
async fn a_client_sees_each_item_once_over_kills_in_later_texts() {
    check_each(&[&[IN_BROKEN_TEXT], &[AFTER_BROKEN_TEXT], &[IN_ANSWER]]).await;
}

#[tokio::test]
async fn a_client_sees_each_item_once_over_several_kills() {
    // More kills without progress quarantine the run.
    check_each(&[
        &[IN_TEXT, IN_THINKING],
        &[AFTER_TEXT, AFTER_CALLS],
        &[AFTER_THINKING, IN_BROKEN_TEXT],
        &[IN_BROKEN_TEXT, AFTER_BROKEN_TEXT],
        &[AFTER_BROKEN_TEXT, IN_ANSWER],
    ])
    .await;
}

/// Returns the events about the item of an index, without what all of them have.
fn of_item(events: &[Value], index: u64) -> Vec<(&str, &Value)> {
    let of = events.iter().filter(|event| event["output_index"] == index);
    of.map(|event| (event["type"].as_str().unwrap(), event)).collect()
}

#[tokio::test]
async fn the_arguments_of_a_call_come_as_a_delta() {
    let directory = HostDirectory::new(
        json!({"responses": [{"calls": [call("quick", "a")]}, {"text": ["."]}]}),
    )
    .await;
    let served = start(&directory, "").await;
    let events = served.stream(json!({"model": "default", "input": "go"})).await;
    let of = of_item(&events, 0);
    let kinds: Vec<&str> = of.iter().map(|(kind, _)| *kind).collect();
    let expected = [
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
        "response.output_item.done",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(of[0].1["item"]["arguments"], "");
    for event in [&of[2].1["delta"], &of[3].1["arguments"], &of[5].1["item"]["arguments"]] {
        assert_eq!(event, r#"{"id":"a"}"#);
    }
    served.shutdown().await;
}

#[tokio::test]
async fn a_refusal_is_a_part_of_the_message_in_the_words_of_the_service() {
    let refused = |delta: Value| {
        let chunk = |delta: Value, finish: Value| {
            let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
            format!(
                "data: {}\n\n",
                json!({"id": "c", "object": "chat.completion.chunk",
                "created": 1, "model": "m", "choices": [choice]})
            )
        };
        json!({"raw_chunks": [chunk(delta, Value::Null), chunk(json!({}), json!("stop")),
            "data: [DONE]\n\n"], "content_type": "text/event-stream"})
    };
    let directory = HostDirectory::new(json!({"responses": [
        refused(json!({"role": "assistant", "content": null, "refusal": "I will not."})),
        {"text": ["Well", "."], "finish_reason": "content_filter"},
        {"finish_reason": "content_filter"}]}))
    .await;
    let served = start(&directory, "").await;
    let mut refusals = Vec::new();
    for expected in [["I will not.", "I will not."], ["Well.", "Well."], ["", ""]] {
        let events = served.stream(json!({"model": "default", "input": "go"})).await;
        let response = response_of(&events);
        let items = response["output"].as_array().unwrap();
        assert_eq!((items.len(), &response["status"]), (1, &json!("completed")), "{response:#}");
        let content = items[0]["content"].as_array().unwrap();
        let refusal = content.last().unwrap();
        assert_eq!(refusal["type"], "refusal", "{response:#}");
        refusals.push(refusal["refusal"].as_str().unwrap().to_owned());
        let text = content.first().and_then(|part| part["text"].as_str());
        assert_eq!(text.unwrap_or_default(), expected[0]);
        if !expected[1].is_empty() {
            assert_eq!(refusals.last().unwrap(), expected[1]);
        }
        for at in 0..events.len() {
            let both = rejoined(&served, &events, at).await;
            assert_eq!(response_of(&both), response);
            assert_eq!(indexes(&both), indexes(&events));
        }
    }
    assert_eq!(refusals[2], "the model or its service refused to answer");
    served.shutdown().await;
}

#[tokio::test]
async fn the_limit_of_calls_is_the_reason_of_an_incomplete_response() {
    let directory = HostDirectory::new(json!({"responses": [
        {"calls": [call("quick", "a")]}, {"calls": [call("quick", "b"), call("quick", "c")]}]}))
    .await;
    let served = start(&directory, "").await;
    let body = json!({"model": "default", "input": "go", "max_tool_calls": 1});
    let response = served.respond(body).await;
    assert_eq!(response["status"], "incomplete", "{response:#}");
    assert_eq!(response["incomplete_details"]["reason"], "max_tool_calls");
    assert_eq!(served.retrieve(&response["id"]).await, response);
    served.shutdown().await;
}

#[tokio::test]
async fn a_run_that_a_shutdown_interrupts_goes_on_without_an_item_twice() {
    let script = script(&[IN_TEXT]);
    let directory = HostDirectory::new(script).await;
    let served = start(&directory, "").await;
    let body = json!({"model": "default", "input": "go", "stream": true});
    let request = post("/v1/responses", "idempotency-key: k\r\n", &body.to_string());
    let mut connection = HttpConnection::open(served.addr(), &request).await;
    within(directory.model.wait_for_gate("kill 0")).await;
    let mut seen = read_until(&mut connection, IN_TEXT.seen).await;
    served.shutdown().await;
    connection.read_rest().await;
    let events = connection.events().into_iter().map(|event| (event.kind, event.data)).collect();
    seen.extend(checked(events).into_iter().skip(seen.len()));
    directory.model.open_gate("kill 0");
    let served = start(&directory, "").await;
    let again = within(served.send(&request)).await;
    assert_eq!(again.status, 200, "{again:?}");
    let response = served.retrieve(&seen[0]["response"]["id"]).await;
    assert_eq!(response["status"], "completed", "{response:#}");
    check_cuts(&served, &seen, 1, &response, "interrupted").await;
    served.shutdown().await;
}
