//! Calls that the client runs, over real HTTP and in the library: declarations, results, waits, restarts and errors.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::host_directory::{HostDirectory, HostServer, within};
use crate::support::{World, results, until_event, world};
use callsheet::config::{BaseUrl, ClientTool, Config, RunOverrides};
use callsheet::journal::verify;
use callsheet::prelude::*;
use callsheet::record::{Record, Seq};
use callsheet::runtime::{AgentRules, OpenSession, RunRequest};
use callsheet::session::replay;
use callsheet::tool::{Hook, HookAnswer, HookError, HookInput, HookPoint, HookRule, ToolOutput};
use callsheet::types::{RunEnd, ToolChoice, ToolStatus};
use callsheet::{ClientResultError, HostError};
use callsheet_mock_provider::{Call, Response, Script};
use serde_json::{Value, json};

const SLEEPY: &str = "idle_after = \"1ms\"";

fn schema() -> Value {
    json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]})
}

fn declared(name: &str) -> Value {
    json!({"name": name, "description": "Opens a file in the editor.", "input_schema": schema()})
}

fn pure(name: &str) -> Value {
    let mut tool = declared(name);
    tool["effect"] = "none".into();
    tool
}

fn open_file(path: &str) -> Value {
    json!({"name": "open_file", "arguments": {"path": path}})
}

async fn directory(calls: &[Value]) -> HostDirectory {
    HostDirectory::new(json!({"responses": [{"calls": calls}, {"text": ["Done."]}]})).await
}

/// Opens the session `s` with these tools of the client.
async fn open(served: &HostServer, tools: &[Value]) {
    let opened = served.post("/v1/sessions", json!({"id": "s", "client_tools": tools})).await;
    assert_eq!(opened.status, 201, "{opened:?}");
}

fn open_calls(snapshot: &Value) -> Vec<Value> {
    let calls = snapshot["current_run"]["client_calls"].as_array();
    calls.cloned().unwrap_or_default()
}

/// Waits until the session `s` has this number of calls for the client.
async fn until_handed(served: &HostServer, count: usize) -> Vec<Value> {
    let snapshot = served.until_snapshot("s", |snapshot| open_calls(snapshot).len() == count).await;
    assert_eq!(snapshot["current_run"]["approvals"], json!([]));
    open_calls(&snapshot)
}

async fn ended(served: &HostServer) -> Value {
    served.until_snapshot("s", |snapshot| snapshot["current_run"].is_null()).await
}

#[tokio::test]
async fn a_declared_call_waits_asleep_and_its_result_is_the_client_s() {
    let directory = directory(&[
        open_file("a.txt"),
        json!({"name": "calculator", "arguments": {"expression": "1+1"}}),
    ])
    .await;
    let served = directory.start(SLEEPY, "").await;
    open(&served, &[declared("open_file")]).await;
    served.begin("s", json!({"input": "Open a.txt."})).await;
    let handed = until_handed(&served, 1).await;
    assert_eq!(handed[0]["tool_id"], "t1a1c0");
    assert_eq!(handed[0]["tool_name"], "open_file");
    assert_eq!(handed[0]["input"], json!({"path": "a.txt"}));
    assert!(handed[0]["asked_at"].as_u64() > Some(1_000_000));
    // The model is offered both, sorted by name.
    let offered = directory.model.requests()[0].body["tools"].clone();
    let names: Vec<_> =
        offered.as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    assert!(
        names.contains(&&json!("open_file")) && names.contains(&&json!("calculator")),
        "{names:?}"
    );
    assert!(names.is_sorted_by_key(|name| name.as_str()));
    served.asleep().await;
    // A client that comes later learns of the open call, with its arguments.
    let mut watching = served.events("s", "0").await;
    let events =
        within(watching.until_events(|events| {
            events.iter().any(|event| event.data["waiting_for"] == "client")
        }))
        .await;
    let waiting = events.iter().find(|event| event.data["waiting_for"] == "client").unwrap();
    assert_eq!((waiting.kind.as_str(), &waiting.id), ("tool_use", &None));
    assert_eq!(waiting.data["status"], "waiting");
    assert_eq!(waiting.data["by"], "client");
    assert_eq!(waiting.data["input"], json!({"path": "a.txt"}));
    let path = "/v1/sessions/s/results/t1a1c0";
    let answered = served.post(path, json!({"content": "opened"})).await;
    assert_eq!(answered.status, 200, "{answered:?}");
    assert_eq!(answered.json(), json!({"tool_id": "t1a1c0", "status": "success"}));
    let again = served.post(path, json!({"content": "opened"})).await;
    assert_eq!(again.error(), (409, "already_answered".to_owned()));
    within(watching.until("stream_end")).await;
    let result = watching
        .events()
        .into_iter()
        .find(|event| event.kind == "tool_result" && event.data["tool_name"] == "open_file");
    let result = result.unwrap().data;
    assert_eq!(
        (&result["status"], &result["output_summary"]),
        (&json!("success"), &json!("opened"))
    );
    assert_eq!(result["metadata"], json!({"by": "client"}));
    let snapshot = ended(&served).await;
    let texts: Vec<_> = snapshot["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["content"].as_str().unwrap_or(""))
        .collect();
    assert_eq!(texts[2..], ["opened", "2", "Done."]);
    // The turn is over, and the first result stands.
    let late = served.post(path, json!({"content": "x"})).await;
    assert_eq!(late.error(), (409, "already_answered".to_owned()));
    let shown = served.get(path).await.json();
    assert_eq!(shown["content"], "opened");
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_result_arrives_after_a_crash_of_the_host() {
    let directory = directory(&[open_file("a.txt"), open_file("b.txt")]).await;
    let parallel = "[agents.default]\nexecution = { parallel = 4 }";
    let served = directory.start("", parallel).await;
    open(&served, &[pure("open_file")]).await;
    served.begin("s", json!({"input": "go"})).await;
    let before = until_handed(&served, 2).await;
    let answer = served.post("/v1/sessions/s/results/t1a1c1", json!({"content": "b"})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    served.crash().await;
    let served = directory.start("", parallel).await;
    let after = until_handed(&served, 1).await;
    assert_eq!(after, before[..1], "the call was handed out again");
    let again = served.post("/v1/sessions/s/results/t1a1c1", json!({"content": "b"})).await;
    assert_eq!(again.error(), (409, "already_answered".to_owned()));
    let answer = served.post("/v1/sessions/s/results/t1a1c0", json!({"content": "a"})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    ended(&served).await;
    let body = directory.model.requests().last().unwrap().body.clone();
    let messages = body["messages"].as_array().unwrap().clone();
    assert_eq!(results(&messages).iter().map(|(_, text)| *text).collect::<Vec<_>>(), ["a", "b"]);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn results_are_texts_parts_values_and_errors() {
    for (body, status, text) in [
        (json!({"content": "plain"}), "success", "plain"),
        (json!({"content": ""}), "success", ""),
        (
            json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            "success",
            "a\nb",
        ),
        (json!({"content": {"ok": true}}), "success", r#"{"ok":true}"#),
        (json!({"content": "seen", "structured": [1]}), "success", "seen"),
        (json!({"content": {"a": 1}, "structured": [1]}), "success", r#"{"a":1}"#),
        (json!({"content": "no such file", "is_error": true}), "error", "no such file"),
    ] {
        let directory = directory(&[open_file("a.txt")]).await;
        let served = directory.start("", "").await;
        open(&served, &[declared("open_file")]).await;
        served.begin("s", json!({"input": "go"})).await;
        until_handed(&served, 1).await;
        let path = "/v1/sessions/s/results/t1a1c0";
        let answered = served.post(path, body.clone()).await;
        assert_eq!((answered.status, &answered.json()["status"]), (200, &json!(status)), "{body}");
        ended(&served).await;
        let shown = served.get(path).await.json();
        assert_eq!((&shown["content"], &shown["status"]), (&json!(text), &json!(status)), "{body}");
        if body["structured"].is_array() {
            assert_eq!(shown["structured"], json!([1]));
        }
        let request = directory.model.requests().last().unwrap().body.clone();
        let messages = request["messages"].as_array().unwrap().clone();
        assert_eq!(results(&messages)[0].1, text);
        served.shutdown().await;
        directory.verify();
    }
}

#[tokio::test]
async fn unknown_second_late_and_large_results_are_typed_errors() {
    let directory = directory(&[
        open_file("a.txt"),
        json!({"name": "calculator", "arguments": {"expression": "1+1"}}),
    ])
    .await;
    let served = directory.start("", "").await;
    let mut tool = declared("open_file");
    tool["approval_timeout"] = "1500ms".into();
    open(&served, &[tool]).await;
    served.begin("s", json!({"input": "go"})).await;
    until_handed(&served, 1).await;
    let post = async |id: &str, body: Value| {
        served.post(&format!("/v1/sessions/s/results/{id}"), body).await.error()
    };
    let result = || json!({"content": "x"});
    let missing = (404, "no_such_call".to_owned());
    for id in ["t1a1c7", "t9a1c0", "nonsense", "t1a1c1"] {
        assert_eq!(post(id, result()).await, missing, "{id}");
    }
    let invalid = (400, "invalid_request".to_owned());
    for body in [
        json!({}),
        json!({"content": 7}),
        json!({"content": null}),
        json!({"content": [{"type": "video"}]}),
        json!({"content": "x", "error": true}),
    ] {
        assert_eq!(post("t1a1c0", body).await.0, 400);
    }
    assert_eq!(post("t1a1c0", json!({"content": 7})).await, invalid);
    // The server refuses the length, and reads no body.
    let large = "POST /v1/sessions/s/results/t1a1c0 HTTP/1.1\r\nhost: localhost\r\n\
                 content-type: application/json\r\ncontent-length: 5000000\r\n\r\n";
    let refused = served.send(large).await;
    assert_eq!(refused.error(), (413, "result_too_large".to_owned()));
    // It is no approval.
    let (hash, no_approval) = ("0", (404, "no_such_approval".to_owned()));
    let decision = json!({"decision": "approve", "arguments_sha256": hash});
    let decided = served.post("/v1/sessions/s/approvals/t1a1c0", decision).await;
    assert_eq!(decided.error(), no_approval);
    let snapshot = ended(&served).await;
    let texts: Vec<_> = snapshot["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["content"].as_str().unwrap_or(""))
        .collect();
    assert_eq!(
        texts[2],
        "Error: no result from the client within 1.5s: it may or may not have happened"
    );
    assert_eq!(post("t1a1c0", result()).await, (409, "call_ended".to_owned()));
    assert_eq!(post("t1a1c1", result()).await, missing);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn invalid_declarations_are_refused_by_name() {
    let directory = directory(&[]).await;
    let served = directory.start("", "").await;
    let taken = || (400, "tool_name_taken".to_owned());
    let invalid = || (400, "invalid_client_tool".to_owned());
    let bad_schema = json!({"name": "x", "input_schema": {"type": "nonsense"}});
    let list = json!({"name": "x", "input_schema": {"type": "array"}});
    let none = json!({"name": "x", "input_schema": true});
    let many: Vec<_> = (0..129).map(|n| declared(&format!("tool_{n}"))).collect();
    let cases = [
        (vec![declared("calculator")], taken()),
        (vec![declared("read_var")], taken()),
        (vec![declared("final_answer")], taken()),
        (vec![declared("a"), declared("a")], taken()),
        (vec![declared("no spaces")], invalid()),
        (vec![bad_schema], invalid()),
        (vec![list], invalid()),
        (vec![none], invalid()),
        (many, invalid()),
        (vec![json!({"name": "x"})], (400, "invalid_json".to_owned())),
    ];
    served.open("plain").await;
    for (tools, (status, code)) in cases {
        let opened = served.post("/v1/sessions", json!({"client_tools": tools})).await;
        assert_eq!(opened.error().0, status, "{tools:?}");
        let body = json!({"input": "go", "client_tools": tools});
        let run = served.post("/v1/sessions/plain/runs", body).await;
        assert_eq!(run.error().0, status, "{tools:?}");
        if code != "invalid_json" {
            assert_eq!((opened.error().1, run.error().1), (code.clone(), code), "{tools:?}");
        }
    }
    // A run may not declare a tool of its session again.
    open(&served, &[declared("open_file")]).await;
    let body = json!({"input": "go", "client_tools": [declared("open_file")]});
    let run = served.post("/v1/sessions/s/runs", body).await;
    assert_eq!(run.error(), taken());
    let tight = json!({"input": "go", "tool_choice": "close_file"});
    assert_eq!(
        served.post("/v1/sessions/s/runs", tight).await.error(),
        (400, "unknown_tool".to_owned())
    );
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn stops_forks_and_deletions_end_a_call_of_the_client() {
    let directory = directory(&[open_file("a.txt")]).await;
    let served = directory.start("", "").await;
    open(&served, &[declared("open_file")]).await;
    served.begin("s", json!({"input": "go"})).await;
    until_handed(&served, 1).await;
    let seq = served.snapshot("s").await["seq"].as_u64().unwrap();
    let forked = served.post("/v1/sessions/s/fork", json!({"at": seq, "id": "f"})).await;
    assert_eq!(forked.status, 201, "{forked:?}");
    let fork = served.until_snapshot("f", |snapshot| snapshot["current_run"].is_null()).await;
    let answer = fork["history"][2]["content"].as_str().unwrap();
    assert_eq!(answer, "Error: cancelled while running: it may or may not have happened");
    let late = served.post("/v1/sessions/f/results/t1a1c0", json!({"content": "x"})).await;
    assert_eq!(late.error(), (409, "call_ended".to_owned()));
    // The session itself is untouched by its fork.
    until_handed(&served, 1).await;
    served.post("/v1/sessions/s/stop", json!({"mode": "now"})).await;
    let stopped = ended(&served).await;
    assert_eq!(stopped["history"][2]["content"].as_str().unwrap(), answer);
    let late = served.post("/v1/sessions/s/results/t1a1c0", json!({"content": "x"})).await;
    assert_eq!(late.error(), (409, "call_ended".to_owned()));
    assert_eq!(served.delete("/v1/sessions/s").await.status, 204);
    let gone = served.post("/v1/sessions/s/results/t1a1c0", json!({"content": "x"})).await;
    assert_eq!(gone.error(), (404, "no_such_session".to_owned()));
    served.shutdown().await;
    directory.verify();
}

fn client_tool() -> ClientTool {
    ClientTool::new("open_file", "Opens a file.", schema())
}

fn call(path: &str) -> Call {
    Call::new("open_file", json!({"path": path}))
}

async fn library(responses: Vec<Response>) -> World {
    world(Script::new(responses).then_done(), callsheet::tool::ToolRegistry::new(), |_| {}).await
}

/// Checks that the records are valid, and that a replay makes the same.
async fn check_records(world: &World, session: &SessionHandle) {
    let entries = session.records(Seq(0)).await.unwrap();
    let text: String = callsheet::journal::export::text(&entries).collect();
    assert_eq!(verify(session.id(), &entries), [], "{text}");
    let mut config = Config::default();
    config.set_rehearsal(BaseUrl::parse(&world.model.base_url()).unwrap());
    config.agents.get_mut("default").unwrap().tools = Vec::new();
    let rules = AgentRules::new(&config, callsheet::tool::ToolRegistry::new()).unwrap();
    let rules_of = |agent: &str, overrides: &RunOverrides, frozen: Option<&str>| {
        rules.rules(agent, overrides, frozen).map_err(|error| error.to_string())
    };
    if let Err(difference) = replay(&entries, rules_of) {
        panic!("{difference}\n{text}");
    }
    assert!(text.contains("client"), "{text}");
    world.assert_paired();
}

#[tokio::test]
async fn a_program_answers_the_calls_of_a_session_and_of_a_run() {
    let calls = [call("a"), Call::new("close_file", json!({"path": "b"}))];
    let world =
        library(vec![Response::calls(calls), Response::text("First."), Response::text("Second.")])
            .await;
    let open = OpenSession::default().with_client_tools([client_tool()]);
    let session = world.host.open_session(open).await.unwrap();
    let close = ClientTool::new("close_file", "Closes a file.", schema()).pure();
    let request = RunRequest::from("go").with_client_tools([close]);
    let mut run = session.start_run(request).await.unwrap();
    let mut seen = Vec::new();
    while let Some(event) = within(run.next_event()).await.unwrap() {
        if let RunEvent::ClientCall(call) = event {
            assert_eq!(session.client_calls().await.unwrap().len(), 1);
            seen.push(format!("{} {}", call.pending.tool_name, call.pending.input));
            let name = call.pending.tool_name.clone();
            let output = if name == "open_file" {
                "opened".into()
            } else {
                ToolOutput::from("no").into_error()
            };
            call.answer(output).await.unwrap();
            let second = call.answer("x").await.unwrap_err();
            assert_eq!(second, HostError::ClientResult(ClientResultError::AlreadyAnswered));
        }
    }
    assert_eq!(seen, [r#"open_file {"path":"a"}"#, r#"close_file {"path":"b"}"#]);
    let report = run.report.await.unwrap();
    assert_eq!(report.text, "First.");
    let statuses: Vec<_> =
        report.calls.iter().map(|call| (call.status, call.result.clone())).collect();
    assert_eq!(statuses, [(ToolStatus::Ok, "opened".into()), (ToolStatus::Failed, "no".into())]);
    // The next run has other tools, so that its prompt does not continue the last one.
    within(session.run("again")).await.unwrap();
    let page = world.host.telemetry().render();
    let count =
        |reason: &str| page.contains(&format!("prefix_breaks_total{{reason=\"{reason}\"}} 1"));
    assert!(count("client_tools") && !count("run_override") && !count("unexplained"), "{page}");
    check_records(&world, &session).await;
}

#[tokio::test]
async fn a_run_whose_events_have_no_reader_answers_the_call_with_an_error() {
    let world = library(vec![Response::calls([call("a")]), Response::text("Then not.")]).await;
    let request = RunRequest::from("go").with_client_tools([client_tool()]);
    let report = within(world.session.run(request)).await.unwrap();
    assert_eq!((report.run_end, report.calls[0].status), (RunEnd::Answered, ToolStatus::Failed));
    assert!(report.calls[0].result.contains("no client runs it"), "{}", report.calls[0].result);
    check_records(&world, &world.session).await;
}

#[tokio::test]
async fn a_forced_call_may_be_one_of_the_client() {
    let world = library(vec![Response::calls([call("a")]), Response::text("Done.")]).await;
    let open = OpenSession::default().with_client_tools([client_tool()]);
    let session = world.host.open_session(open).await.unwrap();
    let choice = Some(ToolChoice::Tool("open_file".into()));
    let overrides = RunOverrides::default().with(|new| new.tool_choice = choice);
    let request = RunRequest::from("go").with(|new| new.overrides = overrides);
    let mut events = session.subscribe().await.unwrap();
    let run = session.start_run(request).await.unwrap();
    until_event(&mut events, |event| event["waiting_for"] == "client").await;
    let forced = &world.requests()[0].body["tool_choice"];
    assert_eq!(forced["function"]["name"], "open_file");
    session.answer_call("t1a1c0", "opened").await.unwrap();
    assert_eq!(within(run.report).await.unwrap().text, "Done.");
    check_records(&world, &session).await;
}

/// Refuses calls whose path is `secret`, and withholds results that are `secret`.
struct Guard;

#[async_trait::async_trait]
impl Hook for Guard {
    async fn answer(&self, input: &HookInput) -> Result<HookAnswer, HookError> {
        assert_eq!(input.tool_name.as_deref(), Some("open_file"));
        let is_secret = if input.on == HookPoint::BeforeCall {
            input.arguments.as_ref().unwrap()["path"] == "secret"
        } else {
            **input.result.as_ref().unwrap() == json!("secret")
        };
        Ok(if is_secret { HookAnswer::refuse("it is secret") } else { HookAnswer::allow() })
    }
}

#[tokio::test]
async fn hooks_guard_the_calls_of_the_client() {
    let script =
        Script::new([Response::calls([call("secret"), call("open")]), Response::text("Done.")]);
    let model =
        callsheet_mock_provider::MockProvider::with_script(script.then_done()).await.unwrap();
    let mut config = Config::default();
    config.journal.engine = callsheet::config::JournalEngine::Memory;
    config.set_rehearsal(BaseUrl::parse(&model.base_url()).unwrap());
    config.agents.get_mut("default").unwrap().tools = Vec::new();
    let host = Host::builder().config(config);
    let host = host.hook(HookRule::new("before", HookPoint::BeforeCall), Guard);
    let host = host.hook(HookRule::new("after", HookPoint::AfterCall), Guard);
    let host = host.start().await.unwrap();
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let request = RunRequest::from("go").with_client_tools([client_tool()]);
    let mut run = session.start_run(request).await.unwrap();
    let mut handed = Vec::new();
    while let Some(event) = within(run.next_event()).await.unwrap() {
        if let RunEvent::ClientCall(call) = event {
            handed.push(call.pending.input["path"].clone());
            call.answer("secret").await.unwrap();
        }
    }
    assert_eq!(handed, ["open"], "a refused call reached the client");
    let report = run.report.await.unwrap();
    let refused = r#"{"status":"rejected","message":"it is secret"}"#;
    assert_eq!(
        report.calls.iter().map(|call| &*call.result).collect::<Vec<_>>(),
        [refused, refused]
    );
    let entries = session.records(Seq(0)).await.unwrap();
    assert_eq!(verify(session.id(), &entries), []);
    let is_hand_over = |entry: &&callsheet::record::JournalEntry| {
        matches!(&entry.record, Record::ApprovalAsked { .. })
    };
    assert_eq!(entries.iter().filter(is_hand_over).count(), 1);
    host.shutdown().await;
}
