//! The face OpenAI Responses.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use async_openai::types::responses::{Response, ResponseStreamEvent};
use callsheet::config::{ApiKey, ShowTools, TokenConfig, TokenScope, UnprovenText};
use callsheet::server::ServerOptions;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::client::{HttpConnection, HttpResponse, post};
use crate::host_directory::{HostDirectory, HostServer};
use crate::installed::run_client;

/// The Open Responses specification of 2026-04-24 (openresponses/openresponses, commit 92c12d96, Apache-2.0), of which
/// descriptions, titles and examples are left out.
static SPECIFICATION: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("open-responses.json")).unwrap());

/// Checks a payload against the schema of this name.
fn validate(name: &str, payload: &Value) {
    let reference = format!("#/components/schemas/{name}");
    let schema = json!({"$ref": reference, "components": SPECIFICATION["components"]});
    let validator = jsonschema::validator_for(&schema).unwrap();
    if let Err(error) = validator.validate(payload) {
        panic!("{name}: {error} at {}: {payload:#}", error.instance_path());
    }
}

/// Checks a response by the types of a client and, unless it has items of a kind that the specification does not know, by
/// the specification.
fn validate_response(response: &Value) {
    if let Err(error) = Response::deserialize(response) {
        panic!("{error}: {response:#}");
    }
    if !response.to_string().contains("\"mcp_") {
        validate("ResponseResource", response);
    }
}

/// Checks an event like a response.
fn validate_event(event: &Value) {
    if let Err(error) = ResponseStreamEvent::deserialize(event) {
        panic!("{error}: {event:#}");
    }
    if event.to_string().contains("\"mcp_") {
        return;
    }
    let content = &SPECIFICATION["paths"]["/responses"]["post"]["responses"]["200"]["content"];
    let all = content["text/event-stream"]["schema"]["oneOf"].as_array().unwrap();
    let schemas = &SPECIFICATION["components"]["schemas"];
    let name = all.iter().find_map(|reference| {
        let name = reference["$ref"].as_str()?.rsplit('/').next()?;
        (schemas[name]["properties"]["type"]["enum"][0] == event["type"]).then_some(name)
    });
    validate(name.unwrap_or_else(|| panic!("an unknown event: {event}")), event);
}

/// Returns the events of a stream, and checks each one.
pub(crate) fn checked(events: Vec<(String, Value)>) -> Vec<Value> {
    let mut last = None;
    let check = |(name, event): (String, Value)| {
        assert_eq!(event["type"], *name);
        validate_event(&event);
        let number = event["sequence_number"].as_u64();
        assert!(number > last, "{number:?} after {last:?}");
        last = number;
        event
    };
    events.into_iter().map(check).collect()
}

/// Returns the texts of the items that events have added, by item.
fn folded(events: &[Value]) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for event in events {
        if let (Some(item), Some(delta)) = (event["item_id"].as_str(), event["delta"].as_str()) {
            texts.entry(item.to_owned()).or_insert_with(String::new).push_str(delta);
        }
    }
    texts
}

/// Returns the output as a list of short texts.
pub(crate) fn outline(response: &Value) -> Vec<String> {
    let item = |item: &Value| {
        let field = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
        match field("type").as_str() {
            "message" => format!(
                "{}{}",
                item["content"][0]["text"].as_str().unwrap_or_default(),
                item["content"][0]["refusal"].as_str().unwrap_or_default()
            ),
            "reasoning" => format!("({})", item["summary"][0]["text"].as_str().unwrap()),
            "function_call_output" => field("output"),
            "mcp_approval_request" => format!("{}?", field("name")),
            kind => {
                let result =
                    item["output"].as_str().or(item["error"]["content"][0]["text"].as_str());
                format!("{kind} {} {}", field("name"), result.unwrap_or_default())
            }
        }
    };
    response["output"].as_array().unwrap().iter().map(item).collect()
}

pub(crate) async fn start(directory: &HostDirectory, rest: &str) -> HostServer {
    start_with(directory, rest, ShowTools::McpCall, UnprovenText::Show).await
}

async fn start_with(
    directory: &HostDirectory,
    rest: &str,
    show: ShowTools,
    unproven: UnprovenText,
) -> HostServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = ServerOptions::default();
    options.faces = options.faces.enabled_by_default(true);
    options.faces.openai.show_tools = show;
    options.faces.openai.unproven_text = unproven;
    let setup = directory.setup("", rest);
    HostServer::start_at(listener, setup, options).await.unwrap()
}

impl HostServer {
    pub(crate) async fn respond(&self, body: Value) -> Value {
        let answer = self.post("/v1/responses", body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let response = answer.json();
        validate_response(&response);
        response
    }

    pub(crate) async fn stream(&self, mut body: Value) -> Vec<Value> {
        body["stream"] = true.into();
        let answer = self.post("/v1/responses", body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.body.ends_with("data: [DONE]\n\n"), "{answer:?}");
        checked(without_done(&answer))
    }

    pub(crate) async fn retrieve(&self, id: &Value) -> Value {
        let answer = self.get(&format!("/v1/responses/{}", id.as_str().unwrap())).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        validate_response(&answer.json());
        answer.json()
    }

    pub(crate) async fn join(&self, id: &Value, after: Option<u64>) -> Vec<Value> {
        let after = after.map(|number| format!("&starting_after={number}")).unwrap_or_default();
        let path = format!("/v1/responses/{}?stream=true{after}", id.as_str().unwrap());
        let answer = self.get(&path).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        checked(without_done(&answer))
    }

    async fn refused(&self, body: Value) -> (u16, Value) {
        let answer = self.post("/v1/responses", body).await;
        (answer.status, answer.json()["error"].clone())
    }
}

fn without_done(answer: &HttpResponse) -> Vec<(String, Value)> {
    crate::client::parse_events(answer.body.trim_end_matches("data: [DONE]\n\n"))
        .into_iter()
        .map(|event| (event.kind, event.data))
        .collect()
}

pub(crate) fn call(name: &str, id: &str) -> Value {
    json!({"name": name, "arguments": {"id": id}})
}

/// A turn with thinking, text and three calls, then an answer.
fn three_calls() -> Value {
    json!({"responses": [
        {"reasoning": ["Hm, ", "well."], "text": ["Let ", "me ", "see."],
         "calls": [call("quick", "a"), call("fails", "b"), call("writes", "c")]},
        {"text": ["It ", "is ", "done."]}]})
}

pub(crate) fn response_of(events: &[Value]) -> Value {
    events.iter().rev().find_map(|event| event.get("response")).unwrap().clone()
}

#[tokio::test]
async fn a_response_has_thinking_text_and_calls_and_can_be_joined_at_each_event() {
    for (show, calls) in [
        (
            ShowTools::McpCall,
            vec![
                "mcp_call quick done a",
                "mcp_call fails Error: it does not work",
                "mcp_call writes done c",
            ],
        ),
        (
            ShowTools::FunctionCall,
            vec![
                "function_call quick ",
                "done a",
                "function_call fails ",
                "Error: it does not work",
                "function_call writes ",
                "done c",
            ],
        ),
        (ShowTools::None, vec![]),
    ] {
        let directory = HostDirectory::new(three_calls()).await;
        let served = start_with(&directory, "", show, UnprovenText::Show).await;
        let events = served.stream(json!({"model": "default", "input": "go"})).await;
        let response = response_of(&events);
        let mut expected = vec!["(Hm, well.)", "Let me see."];
        expected.extend(calls);
        expected.push("It is done.");
        assert_eq!(outline(&response), expected, "{response:#}");
        assert_eq!(response["status"], "completed");
        assert!(response["usage"]["total_tokens"].as_u64() > Some(0));
        assert_eq!(served.retrieve(&response["id"]).await, response);
        let whole = folded(&events);
        for (at, event) in events.iter().enumerate() {
            let seen = &events[..=at];
            let rest = served.join(&response["id"], event["sequence_number"].as_u64()).await;
            let numbers = |events: &[Value]| -> Vec<u64> {
                events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect()
            };
            // Text may come in larger pieces.
            let later = numbers(&events[at + 1..]);
            assert!(numbers(&rest).iter().all(|number| later.contains(number)), "{at}: {rest:#?}");
            let both: Vec<Value> = seen.iter().chain(&rest).cloned().collect();
            assert_eq!(folded(&both), whole, "after {event}");
            if at + 1 < events.len() {
                assert_eq!(response_of(&rest), response);
            }
        }
        served.shutdown().await;
    }
}

#[tokio::test]
async fn a_plain_response_equals_the_streamed_one() {
    let mut script = three_calls();
    let responses = script["responses"].as_array_mut().unwrap();
    responses.extend(responses.clone());
    let directory = HostDirectory::new(script).await;
    let served = start(&directory, "").await;
    let plain = served.respond(json!({"model": "default", "input": "go"})).await;
    let streamed = response_of(&served.stream(json!({"model": "default", "input": "go"})).await);
    assert_eq!(outline(&plain), outline(&streamed));
    assert_ne!(plain["id"], streamed["id"]);
    assert_eq!(served.retrieve(&plain["id"]).await, plain);
    served.shutdown().await;
}

/// A stream that breaks in the middle of its text, and the answer of the next attempt.
fn broken_text() -> Value {
    json!({"responses": [
        {"reasoning": ["Hm."], "text": ["It ", "is ", "lost."], "cut_after_chunks": 4},
        {"text": ["It ", "is ", "done."]}]})
}

#[tokio::test]
async fn text_that_breaks_ends_as_incomplete_or_is_held_back() {
    let directory = HostDirectory::new(broken_text()).await;
    let served = start(&directory, "").await;
    let events = served.stream(json!({"model": "default", "input": "go"})).await;
    let response = response_of(&events);
    assert_eq!(outline(&response), ["It is done."]);
    let done = |event: &&Value| event["type"] == "response.output_item.done";
    let statuses: Vec<_> =
        events.iter().filter(done).map(|event| event["item"]["status"].clone()).collect();
    assert_eq!(statuses, ["incomplete", "incomplete", "completed"]);
    // A replay has the text that is void, too.
    assert_eq!(folded(&served.join(&response["id"], None).await), folded(&events));
    for event in &events {
        let at = events.iter().position(|other| other == event).unwrap();
        let rest = served.join(&response["id"], event["sequence_number"].as_u64()).await;
        let both: Vec<Value> = events[..=at].iter().chain(&rest).cloned().collect();
        assert_eq!(folded(&both), folded(&events), "after {event}");
    }
    served.shutdown().await;
    let directory = HostDirectory::new(broken_text()).await;
    let served = start_with(&directory, "", ShowTools::None, UnprovenText::Hold).await;
    let events = served.stream(json!({"model": "default", "input": "go"})).await;
    assert_eq!(folded(&events).into_values().collect::<Vec<_>>(), ["It is done."]);
    served.shutdown().await;
}

/// Opens a stream, and reads it until a text has come.
pub(crate) async fn open_stream(
    served: &HostServer,
    body: &Value,
    until: &str,
) -> (HttpConnection, Vec<Value>) {
    let mut connection =
        HttpConnection::open(served.addr(), &post("/v1/responses", "", &body.to_string())).await;
    connection.until(until).await;
    let events = connection.events().into_iter().map(|event| (event.kind, event.data)).collect();
    (connection, checked(events))
}

#[tokio::test]
async fn a_stream_is_joined_at_the_host_that_follows_a_crash() {
    let directory = HostDirectory::new(json!({"responses": [
        {"calls": [call("writes", "a")]},
        {"text": ["It ", "is ", "lost."], "holds": [{"at": {"chunk": 3}, "name": "middle"}]},
        {"text": ["It ", "is ", "done."]}]}))
    .await;
    let served = start(&directory, "").await;
    let body = json!({"model": "default", "input": "go", "stream": true});
    let (connection, seen) = open_stream(&served, &body, "\"is \"").await;
    served.crash().await;
    drop(connection);
    let served = start(&directory, "").await;
    let (id, last) = (&seen[0]["response"]["id"], seen.last().unwrap());
    let rest = served.join(id, last["sequence_number"].as_u64()).await;
    let both: Vec<Value> = seen.iter().chain(&rest).cloned().collect();
    let both =
        checked(both.into_iter().map(|it| (it["type"].as_str().unwrap().to_owned(), it)).collect());
    let mut open = BTreeMap::new();
    for event in &both {
        let index = event["output_index"].as_u64();
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                assert_eq!(open.insert(index.unwrap(), event["item"]["id"].clone()), None);
            }
            "response.output_item.done" => {
                assert_eq!(open[&index.unwrap()], event["item"]["id"], "{event}");
            }
            _ => {}
        }
    }
    let response = response_of(&both);
    assert_eq!(outline(&response), ["mcp_call writes done a", "It is done."]);
    assert_eq!(served.retrieve(id).await, response);
    assert_eq!(directory.control.log(), ["start a", "end a"]);
    served.shutdown().await;
}

#[tokio::test]
async fn a_repeated_request_joins_the_run() {
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["It ", "is ", "done."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]}]}))
    .await;
    let served = start(&directory, "").await;
    let body = json!({"model": "default", "input": "go", "stream": true});
    let (connection, seen) = open_stream(&served, &body, "\"It \"").await;
    drop(connection);
    let marked = post("/v1/responses", "x-stainless-retry-count: 1\r\n", &body.to_string());
    let mut again = HttpConnection::open(served.addr(), &marked).await;
    again.until("\"It \"").await;
    directory.model.open_gate("middle");
    again.until("[DONE]").await;
    let events: Vec<_> = again.events().into_iter().map(|it| (it.kind, it.data)).collect();
    let events = checked(events);
    assert_eq!(events[0]["response"]["id"], seen[0]["response"]["id"]);
    assert_eq!(outline(&response_of(&events)), ["It is done."]);
    assert_eq!(directory.model.requests().len(), 1);
    served.shutdown().await;
}

#[tokio::test]
async fn a_repeated_request_finds_its_run_after_a_crash() {
    const PATHS: [&str; 2] = ["/v1/responses", "/v1/chat/completions"];
    let cases = PATHS.into_iter().flat_map(|path| [0, 1, 2, 3].map(|bits| (path, bits)));
    for (path, bits) in cases {
        let (is_marked, goes_on) = (bits & 1 != 0, bits & 2 != 0);
        let directory = HostDirectory::new(json!({"responses": [
            {"text": ["Hello."]},
            {"calls": [call("writes", "a")]},
            {"text": ["It ", "is ", "lost."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
            {"text": ["It ", "is ", "done."]},
            {"text": ["Again."]}]}))
        .await;
        let served = start(&directory, "").await;
        let user = |text: &str| json!({"role": "user", "content": text});
        let assistant = json!({"role": "assistant", "content": "Hello."});
        let first = match path {
            "/v1/responses" => json!({"model": "default", "input": "Hi."}),
            _ => json!({"model": "default", "messages": [user("Hi.")]}),
        };
        let first = served.post(path, first).await.json();
        let body = match (path, goes_on) {
            ("/v1/responses", true) => {
                json!({"model": "default", "input": "go", "previous_response_id": first["id"]})
            }
            ("/v1/responses", false) => json!({"model": "default", "input": "go"}),
            (_, true) => {
                json!({"model": "default", "messages": [user("Hi."), assistant, user("go")]})
            }
            (_, false) => json!({"model": "default", "messages": [user("go")]}),
        };
        let cut = HttpConnection::open(served.addr(), &post(path, "", &body.to_string())).await;
        crate::host_directory::within(directory.model.wait_for_gate("middle")).await;
        served.crash().await;
        drop(cut);
        let served = start(&directory, "").await;
        let marker = if is_marked { "x-stainless-retry-count: 1\r\n" } else { "" };
        let answer = served.send(&post(path, marker, &body.to_string())).await;
        assert!(answer.body.contains("It is done."), "{path} {is_marked} {goes_on}: {answer:?}");
        assert_eq!(directory.control.log(), ["start a", "end a"]);
        let sessions = served.get("/v1/sessions").await.json();
        let expected = if goes_on { 1 } else { 2 };
        assert_eq!(sessions["sessions"].as_array().unwrap().len(), expected, "{sessions}");
        // Others say the same words now.
        let other = served.send(&post(path, "", &body.to_string())).await;
        assert_eq!(other.status, 200, "{other:?}");
        assert!(other.body.contains("Again."), "{other:?}");
        served.shutdown().await;
    }
}

#[tokio::test]
async fn a_request_goes_on_from_a_response_a_conversation_or_its_history() {
    let script = json!({"responses": [{"text": ["One."]}, {"text": ["Two."]}, {"text": ["Three."]},
        {"text": ["Four."]}, {"text": ["Five."]}, {"text": ["Six."]}]});
    let directory = HostDirectory::new(script).await;
    let served = start(&directory, "").await;
    let first = served.respond(json!({"model": "default", "input": "1"})).await;
    let next = |previous: &Value, input: &str| json!({"model": "default", "input": input, "previous_response_id": previous["id"]});
    let second = served.respond(next(&first, "2")).await;
    assert_eq!(second["conversation"], first["conversation"]);
    assert_eq!(second["previous_response_id"], first["id"]);
    // The first one is not the last of its session any more.
    let fork = served.respond(next(&first, "3")).await;
    assert_ne!(fork["conversation"], first["conversation"]);
    let body = json!({"model": "default", "input": "4", "conversation": second["conversation"]});
    let fourth = served.respond(body).await;
    assert_eq!(fourth["conversation"], first["conversation"]);
    let item = json!({"type": "item_reference", "id": fourth["output"][0]["id"]});
    let user = json!({"role": "user", "content": "5"});
    let body = json!({"model": "default", "input": [{"role": "user", "content": "4"}, item, user]});
    let fifth = served.respond(body).await;
    assert_eq!(fifth["conversation"], first["conversation"]);
    // A history of another service opens a session.
    let foreign = json!({"model": "default", "input": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        user]});
    let sixth = served.respond(foreign).await;
    assert_ne!(sixth["conversation"], first["conversation"]);
    let requests = directory.model.requests();
    let texts = |at: usize| -> Vec<String> {
        let messages = requests[at].body["messages"].as_array().unwrap();
        messages.iter().map(|it| it["content"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert!(texts(2).ends_with(&["1", "One.", "3"].map(str::to_owned)), "{:?}", texts(2));
    assert!(texts(4).ends_with(&["2", "Two.", "4", "Four.", "5"].map(str::to_owned)));
    assert!(texts(5).ends_with(&["a", "b", "5"].map(str::to_owned)), "{:?}", texts(5));
    assert!(texts(5)[0].ends_with("Be brief."), "{:?}", texts(5));
    served.shutdown().await;
}

const ASKS: &str = "[tools.writes]\napproval = \"before\"";

#[tokio::test]
async fn an_approval_ends_the_response_and_the_decision_goes_on_with_the_run() {
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["May I?"], "calls": [call("quick", "a"), call("writes", "b")]},
        {"text": ["Done."]}, {"text": ["Bye."]}]}))
    .await;
    let served = start(&directory, ASKS).await;
    let events = served.stream(json!({"model": "default", "input": "go"})).await;
    let first = response_of(&events);
    assert_eq!(outline(&first), ["May I?", "mcp_call quick done a", "writes?"]);
    assert_eq!(first["status"], "completed");
    let asked = first["output"][2]["id"].as_str().unwrap().to_owned();
    let goes_on = |items: Value| json!({"model": "default", "input": items, "previous_response_id": first["id"]});
    // An ordinary message gets a text that says where a person can decide.
    let repeated = served.respond(goes_on(json!("And now?"))).await;
    assert_eq!(outline(&repeated)[1], "writes?");
    assert!(outline(&repeated)[0].contains("http://localhost/console/"), "{repeated}");
    let decision = |id: &str| json!([{"type": "mcp_approval_response", "approval_request_id": id, "approve": true}]);
    let stale = asked.replace("before.", "before.0");
    let (status, error) = served.refused(goes_on(decision(&stale))).await;
    assert_eq!((status, error["param"].as_str()), (400, Some("input")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("other arguments"), "{error}");
    let events = served.stream(goes_on(decision(&asked))).await;
    let second = response_of(&events);
    assert_eq!(outline(&second), ["mcp_call writes done b", "Done."]);
    assert_eq!(second["output"][0]["approval_request_id"], *asked);
    assert_ne!(second["id"], first["id"]);
    for response in [&first, &second] {
        assert_eq!(served.retrieve(&response["id"]).await, *response);
        assert_eq!(response_of(&served.join(&response["id"], None).await), *response);
    }
    assert_eq!(directory.control.log(), ["start a", "end a", "start b", "end b"]);
    let body = json!({"model": "default", "input": "Bye.", "previous_response_id": second["id"]});
    let third = served.respond(body).await;
    assert_eq!(third["conversation"], first["conversation"]);
    served.shutdown().await;
}

#[tokio::test]
async fn without_items_for_approvals_a_text_says_where_to_decide() {
    let directory = HostDirectory::new(json!({"responses": [
        {"calls": [call("writes", "b")]}, {"text": ["Done."]}, {"text": ["Bye."]}]}))
    .await;
    let served = start_with(&directory, ASKS, ShowTools::None, UnprovenText::Show).await;
    let first = served.respond(json!({"model": "default", "input": "go"})).await;
    let session = first["conversation"]["id"].as_str().unwrap().trim_start_matches("conv_");
    let address = format!("http://localhost/console/#/s/{session}");
    let text = format!("writes {{\"id\":\"b\"}} waits for approval.\nDecide here: {address}");
    assert_eq!(outline(&first), [text.as_str()]);
    let body = json!({"model": "default", "input": "?", "previous_response_id": first["id"]});
    assert_eq!(outline(&served.respond(body.clone()).await), [text]);
    let approvals = served.snapshot(session).await["current_run"]["approvals"].clone();
    let (tool, decision) = crate::host_directory::decision(&approvals[0], "approve");
    let path = format!("/v1/sessions/{session}/approvals/{tool}");
    assert_eq!(served.post(&path, decision).await.status, 200);
    served.until_snapshot(session, |snapshot| snapshot["state"] == "idle").await;
    assert_eq!(outline(&served.respond(body).await), ["Bye."]);
    served.shutdown().await;
}

#[tokio::test]
async fn a_call_of_the_clients_tool_ends_the_response_and_its_output_goes_on() {
    let ask = json!({"name": "weather", "arguments": {"city": "Ulm"}});
    let directory = HostDirectory::new(json!({"responses": [
        {"calls": [call("quick", "a"), ask]}, {"text": ["Sunny."]}]}))
    .await;
    let served = start(&directory, "").await;
    let tool = json!({"type": "function", "name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}});
    let body = json!({"model": "default", "input": "go", "tools": [tool]});
    let first = served.respond(body).await;
    assert_eq!(outline(&first), ["mcp_call quick done a", "function_call weather "]);
    let call = &first["output"][1];
    assert_eq!(call["arguments"], "{\"city\":\"Ulm\"}");
    let user = json!({"model": "default", "input": "?", "previous_response_id": first["id"]});
    assert_eq!(served.refused(user).await.0, 400);
    // The client sends its whole history.
    let output =
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "sun"});
    let body = json!({"model": "default", "tools": [tool],
        "input": [{"role": "user", "content": "go"}, first["output"][0], call, output]});
    let events = served.stream(body.clone()).await;
    let second = response_of(&events);
    assert_eq!(outline(&second), ["Sunny."]);
    assert_eq!(second["conversation"], first["conversation"]);
    served.shutdown().await;
}

#[tokio::test]
async fn run_ends_are_states_of_the_response() {
    let directory = HostDirectory::new(json!({"responses": [
        {"status": 400}, {"text": ["Cut"], "finish_reason": "length"},
        {"text": ["Well"], "finish_reason": "content_filter"},
        {"text": ["Wait"], "holds": [{"at": {"chunk": 2}, "name": "never"}]},
        {"calls": [call("quick", "a")]}]}))
    .await;
    let served = start(&directory, "[agents.default.limits]\nmax_turns = 1").await;
    let body = json!({"model": "default", "input": "go"});
    let events = served.stream(body.clone()).await;
    let kinds: Vec<_> = events.iter().rev().take(2).map(|event| event["type"].clone()).collect();
    assert_eq!(kinds, ["error", "response.failed"]);
    let (flat, error) = (events.last().unwrap(), &events.last().unwrap()["error"]);
    assert_eq!((&flat["message"], &flat["code"]), (&error["message"], &error["code"]));
    let failed = response_of(&events);
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&"failed".into(), &error["code"]));
    let cut = served.respond(body.clone()).await;
    assert_eq!(cut["incomplete_details"]["reason"], "max_output_tokens", "{cut}");
    let refused = served.respond(body.clone()).await;
    assert_eq!(
        refused["output"].as_array().unwrap().last().unwrap()["content"][1],
        json!({"type": "refusal", "refusal": "Well"})
    );
    let streamed = json!({"model": "default", "input": "go", "stream": true});
    let (mut connection, seen) = open_stream(&served, &streamed, "\"Wait\"").await;
    let id = seen[0]["response"]["id"].as_str().unwrap();
    assert_eq!(served.retrieve(&seen[0]["response"]["id"]).await["status"], "in_progress");
    let cancelled = served.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
    assert_eq!((cancelled.status, &cancelled.json()["status"]), (200, &"cancelled".into()));
    connection.until("[DONE]").await;
    assert!(connection.text().contains("event: response.incomplete"), "{}", connection.text());
    let again = served.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
    assert_eq!(again.status, 200);
    let path = format!("/v1/responses/{}/cancel", cut["id"].as_str().unwrap());
    assert_eq!(served.post(&path, json!({})).await.status, 400);
    let turns = served.respond(body).await;
    assert_eq!(turns["status"], "incomplete", "{turns}");
    served.shutdown().await;
}

#[tokio::test]
async fn a_typed_answer_is_the_only_text() {
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["Let me see."], "calls": [call("quick", "a")]}, {"text": ["{\"sum\": 5}"]}]}))
    .await;
    let served = start(&directory, "").await;
    let schema =
        json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]});
    let format = json!({"type": "json_schema", "name": "sum", "schema": schema, "strict": true});
    let body = json!({"model": "default", "input": "2 + 3", "text": {"format": format}});
    let events = served.stream(body).await;
    let response = response_of(&events);
    assert_eq!(outline(&response), ["mcp_call quick done a", "{\"sum\":5}"]);
    assert_eq!(response["text"]["format"]["name"], "sum");
    assert_eq!(served.retrieve(&response["id"]).await, response);
    served.shutdown().await;
}

#[tokio::test]
async fn settings_are_taken_ignored_by_name_or_refused() {
    let directory = HostDirectory::new(json!({"responses": [{"text": ["Hi."]}]})).await;
    let served = start(&directory, "[agents.default]\nsystem = \"You are kind.\"").await;
    let image = "data:image/png;base64,iVBORw==";
    let body = json!({"temperature": 0.5, "max_output_tokens": 4_000_000,
        "instructions": "Be brief.", "metadata": {"a": "b"}, "parallel_tool_calls": false,
        "tool_choice": "none", "input": [{"role": "user", "content": [
            {"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": image}]}]});
    let answer = served.post("/v1/responses", body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let ignored = answer.header("x-callsheet-ignored").unwrap().to_owned();
    assert!(ignored.starts_with("temperature"), "{ignored}");
    let response = answer.json();
    validate_response(&response);
    let expected = [
        ("instructions", json!("Be brief.")),
        ("metadata", json!({"a": "b"})),
        ("parallel_tool_calls", json!(false)),
        ("tool_choice", json!("none")),
    ];
    for (name, value) in expected {
        assert_eq!(response[name], value, "{name}");
    }
    let request = &directory.model.requests()[0].body;
    assert_eq!(request["messages"][0]["content"], "You are kind.\n\nBe brief.", "{request}");
    let path = format!("/v1/responses/{}/input_items", response["id"].as_str().unwrap());
    let items = served.get(&path).await.json();
    assert_eq!(items["data"][0]["content"][1]["image_url"], image);
    served.shutdown().await;
}

#[tokio::test]
async fn bad_input_is_refused_with_its_name() {
    let directory = HostDirectory::new(json!({"responses": [{"text": ["Hi."]}]})).await;
    let served = start(&directory, "").await;
    let first = served.respond(json!({"model": "default", "input": "go"})).await;
    let id = first["id"].as_str().unwrap();
    let file = json!([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]);
    let unknown = "resp_2_unknown";
    for (name, value, status, param) in [
        ("n", json!(2), 400, "n"),
        ("prompt", json!({"id": "p"}), 400, "prompt"),
        ("top_logprobs", json!(3), 400, "top_logprobs"),
        ("temperature", json!("hot"), 400, "temperature"),
        ("temperature", json!(-1), 400, "temperature"),
        ("truncation", json!("x"), 400, "truncation"),
        ("tools", json!([null]), 400, "tools[0]"),
        ("input", json!(""), 400, "input"),
        ("input", json!(7), 400, "input"),
        ("input", file, 400, "input[0].content[0]"),
        ("input", json!([{"type": "computer_call"}]), 400, "input[0]"),
        ("input", json!([{"type": "item_reference", "id": "msg_x"}]), 400, "input[0]"),
        ("tools", json!([{"type": "web_search"}]), 400, "tools[0]"),
        ("tools", json!([{"type": "function", "name": "quick"}]), 400, "tools[0].name"),
        ("tool_choice", json!("nothing"), 400, "tool_choice"),
        ("tool_choice", json!({"type": "function", "name": "nothing"}), 400, "tool_choice"),
        ("max_output_tokens", json!(0), 400, "max_output_tokens"),
        ("metadata", json!({"a": 1}), 400, "metadata.a"),
        ("text", json!({"format": {"type": "grammar"}}), 400, "text.format"),
        ("model", json!("gpt-4o"), 404, "model"),
        ("previous_response_id", json!("abc"), 404, "previous_response_id"),
        ("previous_response_id", json!(unknown), 404, "previous_response_id"),
        (
            "previous_response_id",
            json!(id.replace("resp_2", "resp_3")),
            404,
            "previous_response_id",
        ),
        ("conversation", json!("conv_unknown"), 404, "conversation"),
    ] {
        let mut body = json!({"model": "default", "input": "go"});
        body[name] = value.clone();
        let (answered, error) = served.refused(body).await;
        assert_eq!(answered, status, "{name} {value}: {error}");
        assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{name} {value}: {error}");
        assert!(error["message"].as_str().unwrap().len() > 10, "{error}");
    }
    let last = served.join(&first["id"], None).await.last().unwrap()["sequence_number"].clone();
    let path = |after: u64| format!("/v1/responses/{id}?stream=true&starting_after={after}");
    for after in [last.as_u64().unwrap() + 1, 1 << 54] {
        assert_eq!(served.get(&path(after)).await.status, 400);
    }
    assert_eq!(served.get(&format!("/v1/responses/{unknown}")).await.status, 404);
    assert_eq!(served.get("/v1/responses").await.error(), (426, "upgrade_required".to_owned()));
    let deleted = served.delete(&format!("/v1/responses/{id}")).await;
    assert_eq!((deleted.status, &deleted.json()["deleted"]), (200, &true.into()));
    assert_eq!(served.get(&format!("/v1/responses/{id}")).await.status, 404);
    // None of them has left a session behind.
    assert_eq!(served.get("/v1/sessions").await.json()["sessions"], json!([]));
    served.shutdown().await;
}

/// Runs a client against a host whose model makes three calls, of which a person approves one.
async fn client(show: ShowTools, script: &str, arguments: &[&str]) -> Option<Value> {
    let directory = HostDirectory::new(json!({"responses": [
        {"reasoning": ["Hm."], "text": ["May ", "I?"],
         "calls": [call("quick", "a"), call("fails", "b"), call("writes", "c")]},
        {"text": ["It ", "is ", "done."]}]}))
    .await;
    let rest = if show == ShowTools::McpCall { ASKS } else { "" };
    let served = start_with(&directory, rest, show, UnprovenText::Show).await;
    let printed = run_client(script, served.addr(), arguments).await;
    if printed.is_some() {
        let log = directory.control.log();
        assert_eq!(log.iter().filter(|line| *line == "start c").count(), 1, "{log:?} {printed:?}");
        assert_eq!(directory.model.requests().len(), 2);
    }
    served.shutdown().await;
    printed
}

#[tokio::test]
async fn the_clients_of_openai_run_calls_and_an_approval() {
    for (script, modes) in [
        ("responses_openai.mjs", &["plain", "raw", "helper", "join", "helper_join"][..]),
        ("responses_openai.py", &["plain", "raw", "helper", "join"][..]),
    ] {
        for mode in modes {
            let printed = client(ShowTools::McpCall, script, &[mode]).await;
            let Some(printed) = printed else { return };
            let expected = json!({
                "first": ["reasoning", "message", "mcp_call", "mcp_call", "mcp_approval_request"],
                "second": ["mcp_call", "message"],
                "text": "It is done.",
                "refused": ["BadRequestError", "prompt"],
            });
            assert_eq!(printed, expected, "{script} {mode}");
        }
    }
}

#[tokio::test]
async fn the_agents_sdk_runs_calls_and_an_approval() {
    for mode in ["plain", "stream"] {
        let printed = client(ShowTools::McpCall, "responses_agents.py", &[mode]).await;
        let Some(printed) = printed else { return };
        assert_eq!(printed, json!({"asked": 1, "text": "It is done."}), "{mode}");
    }
}

#[tokio::test]
async fn the_ai_sdk_runs_calls_and_an_approval() {
    for mode in ["plain", "stream"] {
        let printed = client(ShowTools::McpCall, "responses_ai.mjs", &["openai", mode]).await;
        let Some(printed) = printed else { return };
        let expected = json!({"asked": 1, "tools": 2, "text": "It is done.", "finish": "stop"});
        assert_eq!(printed, expected, "{mode}");
        // This provider knows only what the specification has.
        let printed = client(ShowTools::None, "responses_ai.mjs", &["open-responses", mode]).await;
        let expected =
            json!({"asked": 0, "tools": 0, "text": "May I?It is done.", "finish": "stop"});
        assert_eq!(printed, Some(expected), "{mode}");
    }
}

#[tokio::test]
async fn a_websocket_has_the_same_requests_and_events() {
    let script = json!({"responses": [
            {"text": ["One."]}, {"text": ["Two."]}, {"status": 400}, {"text": ["Three."]}]});
    let directory = HostDirectory::new(script).await;
    let served = start(&directory, "").await;
    let printed = run_client("responses_socket.mjs", served.addr(), &[]).await;
    let Some(printed) = printed else { return };
    assert_eq!(printed["broken"], "response.failed");
    assert_eq!(printed["texts"], json!(["One.", "Two.", "Three."]));
    printed["events"].as_array().unwrap().iter().for_each(validate_event);
    let errors = printed["errors"].as_array().unwrap();
    errors.iter().for_each(|error| validate("WebSocketErrorEvent", error));
    let codes: Vec<_> =
        errors.iter().map(|error| (&error["status"], &error["error"]["code"])).collect();
    let [not_found, wrong] = [json!("previous_response_not_found"), json!("invalid_request")];
    let missing = (&json!(404), &not_found);
    assert_eq!(codes, [missing, (&json!(400), &wrong), missing, missing]);
    // The connection has ended, and with it what was not to be stored.
    let session = printed["session"].as_str().unwrap();
    let gone = async || served.get(&format!("/v1/sessions/{session}")).await.status == 404;
    crate::host_directory::within(async {
        while !gone().await {
            tokio::task::yield_now().await;
        }
    })
    .await;
    served.shutdown().await;
}

#[tokio::test]
async fn a_conversation_has_the_items_of_its_responses() {
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["One."], "calls": [call("quick", "a")]}, {"text": ["Two."]}, {"text": ["Three."]}]}))
    .await;
    let served = start_with(&directory, "", ShowTools::FunctionCall, UnprovenText::Show).await;
    let items =
        json!([{"role": "user", "content": "0"}, {"role": "assistant", "content": "Zero."}]);
    let body = json!({"metadata": {"a": "b"}, "items": items});
    let opened = served.post("/v1/conversations", body).await;
    assert_eq!(opened.status, 200, "{opened:?}");
    let wrong = served.post("/v1/conversations", json!({"items": "x"})).await;
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &"items".into()));
    let conversation = opened.json();
    let id = conversation["id"].as_str().unwrap();
    assert_eq!(conversation["metadata"], json!({"a": "b"}));
    for (input, by_id) in [("1", true), ("3", false)] {
        let named = if by_id { json!(id) } else { json!({"id": id}) };
        let body = json!({"model": "default", "input": input, "conversation": named});
        assert_eq!(served.respond(body).await["conversation"]["id"], *id);
    }
    let path = format!("/v1/conversations/{id}");
    assert_eq!(served.get(&path).await.json(), conversation);
    let list = served.get(&format!("{path}/items?order=asc&limit=5")).await.json();
    let mut all = list["data"].as_array().unwrap().clone();
    assert_eq!(list["has_more"], true);
    let last = list["last_id"].as_str().unwrap();
    let list = served.get(&format!("{path}/items?order=asc&after={last}")).await.json();
    all.extend(list["data"].as_array().unwrap().clone());
    all.iter().for_each(|item| validate("ItemField", item));
    let expected =
        ["0", "Zero.", "1", "One.", "function_call quick ", "done a", "Two.", "3", "Three."];
    assert_eq!(outline(&json!({"output": all})), expected);
    assert_eq!(served.delete(&path).await.json()["deleted"], true);
    assert_eq!(served.get(&path).await.status, 404);
    served.shutdown().await;
}

#[tokio::test]
async fn a_compacted_history_is_an_item_of_later_inputs() {
    let directory = HostDirectory::new(json!({"responses": [{"text": ["Hello."]}]})).await;
    let served = start(&directory, "").await;
    let body = json!({"model": "default", "input": [
        {"role": "user", "content": "I am Ada."}, {"role": "assistant", "content": "Hi."}]});
    let compacted = served.post("/v1/responses/compact", body).await;
    assert_eq!(compacted.status, 200, "{compacted:?}");
    let compacted = compacted.json();
    validate("CompactResource", &compacted);
    let mut input = compacted["output"].as_array().unwrap().clone();
    input.push(json!({"role": "user", "content": "Who am I?"}));
    served.respond(json!({"model": "default", "input": input})).await;
    let without_model = served.post("/v1/responses/compact", json!({"input": "Hi."})).await;
    assert_eq!(without_model.status, 400);
    assert_eq!(without_model.json()["error"]["param"], "model");
    let messages = directory.model.requests().pop().unwrap().body["messages"].to_string();
    assert!(messages.contains("I am Ada.") && messages.contains("Who am I?"), "{messages}");
    served.shutdown().await;
}

#[tokio::test]
async fn what_is_not_to_be_stored_is_deleted_when_it_was_delivered() {
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["One."]}, {"text": ["Two."]}, {"text": ["Three."]}]}))
    .await;
    let served = start(&directory, "").await;
    let stored = served.respond(json!({"model": "default", "input": "1"})).await;
    let body = json!({"model": "default", "input": "2", "store": false,
        "previous_response_id": stored["id"]});
    let fork = served.respond(body).await;
    assert_eq!((&fork["store"], outline(&fork)), (&false.into(), vec!["Two.".to_owned()]));
    let path = format!("/v1/responses/{}", fork["id"].as_str().unwrap());
    crate::host_directory::within(async {
        while served.get(&path).await.status != 404 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // What it went on from is kept.
    assert_eq!(served.retrieve(&stored["id"]).await, stored);
    served.shutdown().await;
}

#[tokio::test]
async fn a_response_in_the_background_is_fetched_later() {
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["It ", "is ", "done."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]}]}))
    .await;
    let served = start(&directory, "").await;
    let body = json!({"model": "default", "input": "go", "background": true});
    let begun = served.respond(body).await;
    assert_eq!((&begun["status"], &begun["background"]), (&"in_progress".into(), &true.into()));
    let next = json!({"model": "default", "input": "?", "previous_response_id": begun["id"]});
    assert_eq!(served.refused(next).await.0, 422);
    directory.model.open_gate("middle");
    let events = served.join(&begun["id"], None).await;
    assert_eq!(outline(&response_of(&events)), ["It is done."]);
    assert_eq!(served.retrieve(&begun["id"]).await, response_of(&events));
    served.shutdown().await;
}

#[tokio::test]
async fn a_token_without_the_scope_decides_nothing() {
    let directory = HostDirectory::new(json!({"responses": [
        {"calls": [call("writes", "a")]}, {"text": ["Done."]}]}))
    .await;
    let key = |name: &str| ApiKey::new(&format!("secret-of-{name}")).unwrap();
    let token =
        |name: &str, scope: &[TokenScope]| TokenConfig::new(name, key(name), scope.iter().copied());
    let mut options = ServerOptions::default();
    options.faces = options.faces.enabled_by_default(true);
    options.tokens = vec![
        token("ada", &[TokenScope::Run]),
        token("bob", &[TokenScope::Run, TokenScope::Approve]),
    ];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let served = HostServer::start_at(listener, directory.setup("", ASKS), options).await.unwrap();
    let send = async |name: &str, body: &Value| {
        let headers = format!("authorization: Bearer secret-of-{name}\r\n");
        served.send(&post("/v1/responses", &headers, &body.to_string())).await
    };
    let first = send("ada", &json!({"model": "default", "input": "go"})).await.json();
    assert_eq!(outline(&first), ["writes?"]);
    let decision = json!({"type": "mcp_approval_response",
        "approval_request_id": first["output"][0]["id"], "approve": true});
    let body =
        json!({"model": "default", "input": [decision], "previous_response_id": first["id"]});
    let refused = send("ada", &body).await;
    assert_eq!(refused.error(), (403, "forbidden_scope".to_owned()));
    assert_eq!(outline(&send("bob", &body).await.json()), ["mcp_call writes done a", "Done."]);
    let session = first["conversation"]["id"].as_str().unwrap().trim_start_matches("conv_");
    let authors =
        directory.entries(session).iter().filter(|it| format!("{it:?}").contains("bob")).count();
    assert!(authors > 0, "the journal names who has decided");
    served.shutdown().await;
}

/// Reads a stream that its host resets at this byte.
async fn cut_at(served: &HostServer, body: &Value, bytes: usize) -> Vec<Value> {
    let mut connection =
        HttpConnection::open(served.addr(), &post("/v1/responses", "", &body.to_string())).await;
    while connection.bytes.len() < bytes && connection.read_more().await {}
    connection.bytes.truncate(bytes);
    let begun = connection.bytes.windows(4).any(|four| four == b"\r\n\r\n");
    if !begun {
        return Vec::new();
    }
    checked(connection.events().into_iter().map(|event| (event.kind, event.data)).collect())
}

#[tokio::test]
async fn a_stream_that_is_cut_at_any_byte_is_whole_after_a_join() {
    let mut script = three_calls();
    let turns = script["responses"].as_array().unwrap();
    script["responses"] = turns.iter().cycle().take(24).cloned().collect();
    let directory = HostDirectory::new(script).await;
    let served = start(&directory, "").await;
    for part in 0..12 {
        // An equal request would join the run whose answer broke.
        let body = json!({"model": "default", "input": format!("go {part}"), "stream": true});
        let seen = cut_at(&served, &body, 2_500 + part * 997).await;
        let (id, last) = (&seen[0]["response"]["id"], seen.last().unwrap());
        let rest = served.join(id, last["sequence_number"].as_u64()).await;
        let both: Vec<Value> = seen.iter().chain(&rest).cloned().collect();
        let response = served.retrieve(id).await;
        assert_eq!(response_of(&both), response);
        let texts: BTreeSet<String> = folded(&both).into_values().collect();
        let arguments = ["a", "b", "c"].map(|id| json!({"id": id}).to_string());
        let expected = ["Hm, well.", "It is done.", "Let me see."].map(str::to_owned);
        assert_eq!(texts, expected.into_iter().chain(arguments).collect(), "{part}");
    }
    // Each call ran once in each of the runs.
    assert_eq!(directory.control.log().iter().filter(|line| *line == "start c").count(), 12);
    served.shutdown().await;
}
