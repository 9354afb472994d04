//! Questions of MCP servers (elicitation), in the newest protocol and in an earlier one. The process of a server is
//! this test's own binary, which runs [`server_process`].
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};
use std::sync::Arc;

use crate::folder::{Folder, calling, result, wait_until};
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use callsheet::prelude::*;
use callsheet::testing::FakeModel;
use callsheet::tool::QuestionKind;
use callsheet::{ApprovalHandle, StartedRun, WaitPhase};
use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

const MODES: [&str; 2] = ["legacy", "modern"];

/// The number of questions that the tool `flood` asks at once.
const FLOOD: usize = 600;

/// The server's state, which a client sends back as it is.
const STATE: &str = "st\u{e4}te \"1\"";

/// The process of a server, if the variable `MCP_MODE` is set. Its tools ask questions, and answer with the answers.
#[test]
fn server_process() {
    let Ok(mode) = std::env::var("MCP_MODE") else { return };
    // Calls that wait for an answer, by the id of the question.
    let mut waiting: HashMap<Value, (Value, Value, Vec<Value>)> = HashMap::new();
    let mut flooding: Option<(Value, Vec<Value>)> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        log(&line);
        let message: Value = serde_json::from_str(&line).unwrap();
        let (id, params) = (message["id"].clone(), message["params"].clone());
        match message["method"].as_str().unwrap_or_default() {
            "server/discover" if mode == "modern" => send(&id, discovered()),
            "subscriptions/listen" if mode == "modern" => {}
            "initialize" => send(&id, initialized()),
            "tools/list" => send(&id, json!({"tools": tools(), "resultType": "complete"})),
            "tools/call" if params["name"] == "mute" => {}
            "tools/call" if params["name"] == "flood" => {
                flooding = Some((id, Vec::new()));
                std::thread::spawn(|| {
                    (0..FLOOD).for_each(|at| ask(&json!(at), &seats("How many?")))
                });
            }
            "" if flooding.is_some() => {
                let (call, answers) = flooding.as_mut().unwrap();
                answers.push(message["result"]["action"].clone());
                // The open question is answered after all others.
                if answers.len() == FLOOD - 1 {
                    log(&json!({"declined": answers}).to_string());
                }
                if answers.len() == FLOOD {
                    send(call, completed(&answers[FLOOD - 1]));
                    flooding = None;
                }
            }
            "tools/call" if mode == "modern" => send(&id, round(&params)),
            "tools/call" => {
                let question = questions(&params["name"])[0].clone();
                ask(&id, &question);
                waiting.insert(json!(format!("ask {id}")), (id, params, Vec::new()));
            }
            "" if waiting.contains_key(&id) => {
                let (call, params, mut answers) = waiting.remove(&id).unwrap();
                answers.push(message["result"].clone());
                match questions(&params["name"]).get(answers.len()) {
                    Some(question) => {
                        ask(&call, question);
                        waiting.insert(id, (call, params, answers));
                    }
                    None => send(&call, completed(&Value::from(answers))),
                }
            }
            _ if id.is_null() => {}
            _ => write(
                &json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}}),
            ),
        }
    }
    std::process::exit(0);
}

fn discovered() -> Value {
    json!({
        "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
        "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
    })
}

fn initialized() -> Value {
    json!({
        "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
        "serverInfo": {"name": "asking", "version": "1"},
    })
}

fn tools() -> Value {
    let tool = |name: &str| json!({"name": name, "description": "Asks.", "inputSchema": {"type": "object"}});
    ["seats", "twice", "endless", "sign_in", "nested", "mute", "flood"].map(tool).into()
}

fn seats(message: &str) -> Value {
    let properties = json!({
        "seats": {"type": "integer", "title": "Seats", "minimum": 1},
        "class": {"type": "string", "enum": ["first", "second"], "default": "second"},
    });
    let form = json!({"type": "object", "properties": properties, "required": ["seats"]});
    json!({"mode": "form", "message": message, "requestedSchema": form})
}

/// Returns the questions of a tool in their order.
fn questions(tool: &Value) -> Vec<Value> {
    match tool.as_str().unwrap() {
        "twice" => vec![seats("How many?"), seats("How many?")],
        "endless" => vec![seats("How many?"); 1_000],
        "sign_in" => vec![json!({
            "mode": "url", "message": "Sign in.", "url": "https://example.com/in",
            "elicitationId": "e1",
        })],
        // No client has to know such a form.
        "nested" => {
            let place = json!({"type": "object", "properties": {"row": {"type": "integer"}}});
            let form = json!({"type": "object", "properties": {"place": place}});
            vec![json!({"message": "Which place?", "requestedSchema": form})]
        }
        _ => vec![seats("How many seats?")],
    }
}

/// Answers a call in the newest protocol. The state holds the answers up to now.
fn round(params: &Value) -> Value {
    let state = params["requestState"].as_str();
    let answered = state.map(|state| state.strip_prefix(STATE).unwrap());
    let mut answers: Vec<Value> =
        answered.map_or(Vec::new(), |answers| serde_json::from_str(answers).unwrap());
    answers.extend(params["inputResponses"].get("q").cloned());
    match questions(&params["name"]).get(answers.len()) {
        None => completed(&Value::from(answers)),
        Some(question) => json!({
            "resultType": "input_required",
            "inputRequests": {"q": {"method": "elicitation/create", "params": question}},
            "requestState": format!("{STATE}{}", Value::from(answers)),
        }),
    }
}

fn completed(answers: &Value) -> Value {
    let content = json!([{"type": "text", "text": answers.to_string()}]);
    json!({"content": content, "resultType": "complete"})
}

/// Sends a question during a call of an earlier protocol.
fn ask(call: &Value, question: &Value) {
    let id = format!("ask {call}");
    write(&json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": question}));
}

fn send(id: &Value, result: Value) {
    write(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
}

fn write(message: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{message}").unwrap();
    out.flush().unwrap();
}

fn log(line: &str) {
    let path = format!("{}/log", std::env::var("TEST_FOLDER").unwrap());
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    writeln!(file, "{line}").unwrap();
}

fn server(folder: &Folder, mode: &str) -> String {
    let binary = std::env::current_exe().unwrap().display().to_string();
    let command = [&*binary, "--exact", "mcp_questions::server_process", "--nocapture"];
    folder.server("test", &command, &format!("MCP_MODE = {mode:?}"))
}

/// Returns the messages that the server has received.
fn received(folder: &Folder) -> Vec<Value> {
    let log = std::fs::read_to_string(folder.path.join("log")).unwrap_or_default();
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the next question of a run.
async fn question(run: &mut StartedRun) -> ApprovalHandle {
    loop {
        let event = run.next_event().await.unwrap().unwrap();
        if let RunEvent::ApprovalRequested(question) = event {
            return question;
        }
        assert!(!matches!(event, RunEvent::CallEnded(_)), "no question: {event:?}");
    }
}

/// Reads the events of a run to its end, and returns the answers that its tool has received.
async fn answers(mut run: StartedRun) -> Value {
    while run.next_event().await.unwrap().is_some() {}
    let report = run.report.await.unwrap();
    let (status, text) = result(&report);
    assert_eq!(status, "success", "{text}");
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

#[tokio::test]
async fn a_person_answers_the_form_of_a_server() {
    for mode in MODES {
        let folder = Folder::new(mode);
        let model = calling([("test__seats", json!({})), ("test__nested", json!({}))]);
        let host = folder.host(&server(&folder, mode), &model).await;
        let session = host.open_session("one").await.unwrap();
        let mut run = session.start_run("go").await.unwrap();
        let asked = question(&mut run).await;
        assert_eq!((asked.approval.phase, &*asked.approval.tool_id), (WaitPhase::Input, "t1a1c0"));
        let shown = asked.approval.question.as_ref().unwrap();
        assert_eq!(shown.message, "How many seats?", "{mode}");
        let QuestionKind::Form(form) = &shown.kind else { panic!("no form") };
        assert_eq!(form["properties"]["class"]["default"], "second");
        let missing = asked.approve().await.unwrap_err().to_string();
        assert!(missing.starts_with("content is missing: send an object"), "{missing}");
        let wrong = asked.answer(json!({"seats": 0})).await.unwrap_err().to_string();
        assert!(wrong.starts_with("content does not fit the form: /seats"), "{wrong}");
        // The question is still open.
        asked.answer(json!({"seats": 2})).await.unwrap();
        let content = json!({"seats": 2, "class": "second"});
        assert_eq!(answers(run).await, json!([{"action": "accept", "content": content}]), "{mode}");
        let mut run = session.start_run("go").await.unwrap();
        question(&mut run).await.answer(json!({"place": {"row": 3}})).await.unwrap();
        let content = json!({"place": {"row": 3}});
        assert_eq!(answers(run).await, json!([{"action": "accept", "content": content}]), "{mode}");
        host.shutdown().await;
        folder.empty().await;
    }
}

#[tokio::test]
async fn questions_of_a_call_come_one_after_the_other_and_each_has_its_own_answer() {
    for mode in MODES {
        let folder = Folder::new(mode);
        let model = calling([("test__twice", json!({})), ("test__sign_in", json!({}))]);
        let host = folder.host(&server(&folder, mode), &model).await;
        let session = host.open_session("one").await.unwrap();
        let mut run = session.start_run("go").await.unwrap();
        let first = question(&mut run).await;
        first.answer(json!({"seats": 1})).await.unwrap();
        let second = question(&mut run).await;
        let late = first.answer(json!({"seats": 9})).await.unwrap_err();
        assert_eq!(late.code(), "already_decided");
        second.reject("enough").await.unwrap();
        let text = answers(run).await;
        let given =
            r#"[{"action":"accept","content":{"class":"second","seats":1}},{"action":"decline"}]"#;
        let note = r#"[callsheet: the question "How many?" was not answered: enough]"#;
        assert_eq!(text, format!("{given}\n{note}"), "{mode}");
        let mut run = session.start_run("go").await.unwrap();
        let asked = question(&mut run).await;
        let url = QuestionKind::Url("https://example.com/in".to_owned());
        assert_eq!(asked.approval.question.as_ref().unwrap().kind, url);
        asked.approve().await.unwrap();
        assert_eq!(answers(run).await, json!([{"action": "accept"}]), "{mode}");
        let received = received(&folder);
        let calls = received.iter().filter(|message| message["method"] == "tools/call");
        let ids: Vec<_> = calls.map(|call| call["id"].clone()).collect();
        // The newest protocol sends a call again, with another id.
        assert_eq!(ids.len(), if mode == "modern" { 5 } else { 2 });
        assert!(ids.iter().enumerate().all(|(at, id)| !ids[..at].contains(id)), "{ids:?}");
        host.shutdown().await;
        folder.empty().await;
    }
}

#[tokio::test]
async fn what_a_call_asks_beside_an_open_question_is_declined_at_once() {
    let folder = Folder::new("flood");
    let host =
        folder.host(&server(&folder, "legacy"), &calling([("test__flood", json!({}))])).await;
    let session = host.open_session("one").await.unwrap();
    let mut run = session.start_run("go").await.unwrap();
    let open = question(&mut run).await;
    let declined =
        || received(&folder).into_iter().find_map(|line| line["declined"].as_array().cloned());
    wait_until(|| declined().is_some()).await;
    assert!(declined().unwrap().iter().all(|action| action == "decline"));
    let page = host.metrics_page().unwrap();
    let counted = format!(
        "callsheet_mcp_limits_reached_total{{server=\"test\",limit=\"questions\"}} {}",
        FLOOD - 1
    );
    assert!(page.contains(&counted), "{page}");
    open.answer(json!({"seats": 1})).await.unwrap();
    assert_eq!(answers(run).await, json!("accept"));
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_question_whose_answer_cannot_be_sent_is_not_asked() {
    let folder = Folder::new("modern");
    let model = calling([("test__endless", json!({}))]);
    let host = folder.host(&server(&folder, "modern"), &model).await;
    let session = host.open_session("one").await.unwrap();
    let mut run = session.start_run("go").await.unwrap();
    let mut asked = 0;
    while let Some(event) = run.next_event().await.unwrap() {
        let RunEvent::ApprovalRequested(question) = event else { continue };
        asked += 1;
        question.answer(json!({"seats": 1})).await.unwrap();
    }
    let report = run.report.await.unwrap();
    let (status, text) = result(&report);
    assert_eq!(status, "error", "{text}");
    assert!(text.contains("the server has asked for input 16 times"), "{text}");
    let calls = received(&folder).into_iter().filter(|message| message["method"] == "tools/call");
    assert_eq!((calls.count(), asked), (16, 15));
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn the_server_is_told_of_a_stop_and_of_an_expiry() {
    for mode in MODES {
        let folder = Folder::new(mode);
        let model = calling([("test__seats", json!({})), ("test__seats", json!({"again": 1}))]);
        let text = server(&folder, mode) + "approval_timeout = \"300ms\"\n";
        let host = folder.host(&text, &model).await;
        let session = host.open_session("one").await.unwrap();
        let mut run = session.start_run("go").await.unwrap();
        question(&mut run).await;
        let text = answers(run).await;
        let expired = "[{\"action\":\"cancel\"}]\n[callsheet: the question \"How many seats?\" was not \
                       answered: no answer arrived in time]";
        assert_eq!(text, expired, "{mode}");
        let cancels = || {
            let cancelled = received(&folder).into_iter().filter(|message| {
                let answers = [&message["result"], &message["params"]["inputResponses"]["q"]];
                answers.iter().any(|answer| answer["action"] == "cancel")
            });
            cancelled.count()
        };
        assert_eq!(cancels(), 1);
        let mut run = session.start_run("go").await.unwrap();
        let asked = question(&mut run).await;
        session.stop(StopMode::Now).await.unwrap();
        let report = run.report.await.unwrap();
        assert_eq!(result(&report).0, "cancelled");
        wait_until(|| cancels() == 2).await;
        assert_eq!(asked.reject("late").await.unwrap_err().code(), "no_such_approval");
        host.shutdown().await;
        folder.empty().await;
    }
}

#[tokio::test]
async fn a_question_that_nobody_reads_is_declined_at_once() {
    for mode in MODES {
        let folder = Folder::new(mode);
        let model = calling([("test__seats", json!({}))]);
        let host = folder.host(&server(&folder, mode), &model).await;
        let session = host.open_session("one").await.unwrap();
        let report = session.run("go").await.unwrap();
        let (status, text) = result(&report);
        let expected = "[{\"action\":\"decline\"}]\n[callsheet: the question \"How many seats?\" was not \
                        answered: nobody can be asked: nobody reads the events of this run]";
        assert_eq!((status, text), ("success", expected), "{mode}");
        host.shutdown().await;
        folder.empty().await;
    }
}

#[tokio::test]
async fn the_time_of_a_question_is_not_time_of_the_call() {
    for mode in MODES {
        let folder = Folder::new(mode);
        let (seats, mute) = (("test__seats", json!({})), ("test__mute", json!({})));
        let model = calling([seats]);
        let text = server(&folder, mode) + "timeout = \"300ms\"\nmax_timeout = \"400ms\"\n";
        let host = folder.host(&text, &model).await;
        let session = host.open_session("one").await.unwrap();
        let mut run = session.start_run("go").await.unwrap();
        let asked = question(&mut run).await;
        // Another call uses up its time meanwhile.
        let other = folder.host(&text, &calling([mute])).await;
        let report = other.open_session("two").await.unwrap().run("go").await.unwrap();
        let text = "Error: no answer within 300ms (mcp.test.timeout)";
        assert_eq!(result(&report), ("timeout", text), "{mode}");
        let metadata = &report.calls[0].metadata;
        assert_eq!(*metadata, json!({"error": true, "kind": "timeout"}));
        asked.answer(json!({"seats": 2})).await.unwrap();
        assert_eq!(answers(run).await[0]["action"], "accept", "{mode}");
        other.shutdown().await;
        host.shutdown().await;
        folder.empty().await;
    }
}

#[tokio::test]
async fn a_question_that_may_be_of_another_session_is_declined() {
    let folder = Folder::new("sessions");
    let seats = || ModelReply::call("test__seats", json!({}));
    let done = || ModelReply::text("done");
    let model = FakeModel::replies([seats(), seats(), done(), done()]);
    let host = folder.host(&server(&folder, "legacy"), &model).await;
    let mut one = host.open_session("one").await.unwrap().start_run("go").await.unwrap();
    let asked = question(&mut one).await;
    // The process does not say for which of the two calls it asks.
    let two = host.open_session("two").await.unwrap().start_run("go").await.unwrap();
    drop(two);
    wait_until(|| received(&folder).iter().any(|message| message["result"]["action"] == "decline"))
        .await;
    asked.answer(json!({"seats": 2})).await.unwrap();
    assert_eq!(answers(one).await[0]["action"], "accept");
    host.shutdown().await;
    folder.empty().await;
}

#[test]
fn a_question_without_a_terminal_is_declined_with_the_reason() {
    for mode in MODES {
        let folder = Folder::new(mode);
        let (_, printed) =
            folder.tools(&server(&folder, mode), &["call", "--approve", "test__seats"]);
        let expected = r#"[{"action":"decline"}]"#;
        let reason = "was not answered: nobody could be asked: there is no terminal]";
        assert!(printed.contains(expected) && printed.contains(reason), "{mode}: {printed}");
    }
}

/// A service of an earlier protocol: the event streams of its calls, by the ids of its questions.
type OpenCalls = Arc<Mutex<HashMap<Value, (Value, mpsc::Sender<Value>)>>>;

/// Answers as a service of an earlier protocol, which asks in the event stream of the call.
async fn answer(State(calls): State<OpenCalls>, Json(message): Json<Value>) -> Response {
    let id = message["id"].clone();
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => initialized(),
        "tools/list" => json!({"tools": tools()}),
        "tools/call" => {
            let (events, receiver) = mpsc::channel(4);
            let question = json!(format!("ask {id}"));
            let text = format!("How many, {}?", message["params"]["arguments"]["who"]);
            let ask = json!({
                "jsonrpc": "2.0", "id": question, "method": "elicitation/create",
                "params": seats(&text),
            });
            events.try_send(ask).unwrap();
            calls.lock().insert(question, (id, events));
            let events = stream::unfold(receiver, async |mut receiver| {
                Some((receiver.recv().await?, receiver))
            });
            let events = events.map(|event| Ok::<_, std::io::Error>(format!("data: {event}\n\n")));
            let body = Body::from_stream(events);
            return ([("content-type", "text/event-stream")], body).into_response();
        }
        "" => {
            let (call, events) = calls.lock().remove(&id).unwrap();
            let result = completed(&message["result"]);
            events.try_send(json!({"jsonrpc": "2.0", "id": call, "result": result})).unwrap();
            return StatusCode::ACCEPTED.into_response();
        }
        _ if id.is_null() => return StatusCode::ACCEPTED.into_response(),
        _ => {
            let error = json!({"code": -32601, "message": "no"});
            return Json(json!({"jsonrpc": "2.0", "id": id, "error": error})).into_response();
        }
    };
    Json(json!({"jsonrpc": "2.0", "id": id, "result": result})).into_response()
}

#[tokio::test]
async fn a_question_over_http_is_one_of_the_call_in_whose_stream_it_comes() {
    let folder = Folder::new("http");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/mcp", post(answer)).with_state(OpenCalls::default());
    #[expect(clippy::disallowed_methods, reason = "the service ends with the test")]
    let service = tokio::spawn(async move { axum::serve(listener, app).await });
    let call = |who: &str| ModelReply::call("web__seats", json!({"who": who}));
    let model = FakeModel::replies([
        call("one"),
        call("two"),
        ModelReply::text("done"),
        ModelReply::text("done"),
    ]);
    let text = format!("[mcp.web]\nurl = \"http://{address}/mcp\"\n");
    let host = folder.host(&text, &model).await;
    let mut one = host.open_session("one").await.unwrap().start_run("go").await.unwrap();
    let asked_one = question(&mut one).await;
    let mut two = host.open_session("two").await.unwrap().start_run("go").await.unwrap();
    let asked_two = question(&mut two).await;
    let message = |asked: &ApprovalHandle| asked.approval.question.clone().unwrap().message;
    assert_eq!(message(&asked_one), "How many, \"one\"?");
    assert_eq!(message(&asked_two), "How many, \"two\"?");
    asked_two.answer(json!({"seats": 2})).await.unwrap();
    asked_one.answer(json!({"seats": 1})).await.unwrap();
    assert_eq!(answers(one).await["content"]["seats"], 1);
    assert_eq!(answers(two).await["content"]["seats"], 2);
    host.shutdown().await;
    service.abort();
}
