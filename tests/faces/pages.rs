//! What the tests of the faces for pages share, and the tests that concern both.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use callsheet::config::{ApiKey, Config, TokenConfig, TokenScope, ToolPattern};
use callsheet::server::ServerOptions;
use callsheet::tool::{Answer, IntoTool as _, Question, ToolContext, ToolError, ToolSpec};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::client::{HttpConnection, post};
use crate::host_directory::{HostDirectory, HostServer, within};
use crate::installed::run_client;

/// A call of `writes` waits for a person.
pub(crate) const ASKS: &str = "[tools.writes]\napproval = \"before\"";

/// The same, with an agent that another one calls.
const WITH_CHILD: &str = "[tools.writes]\napproval = \"before\"\n[agents.default]\n[agents.researcher]\n\
     [tools.researcher]\nkind = \"agent\"\ndescription = \"Finds.\"\nagent = \"researcher\"";

pub(crate) fn call(name: &str, id: &str) -> Value {
    json!({"name": name, "arguments": {"id": id}})
}

/// Three calls, of which the second one needs an approval, then an answer.
pub(crate) fn script() -> Value {
    json!({"responses": [
        {"reasoning": ["Hm."], "text": ["Let me ", "see."],
         "calls": [call("quick", "a"), call("writes", "b"), call("fails", "c")]},
        {"text": ["All ", "done."]}]})
}

pub(crate) async fn served(script: Value) -> (HostDirectory, HostServer) {
    served_with(script, ASKS).await
}

pub(crate) async fn served_with(script: Value, config: &str) -> (HostDirectory, HostServer) {
    let directory = HostDirectory::new(script).await;
    let server = directory.start("", config).await;
    (directory, server)
}

/// Returns the number of calls that have begun with this id.
pub(crate) fn starts(directory: &HostDirectory, id: &str) -> usize {
    let line = format!("start {id}");
    directory.control.log().iter().filter(|of| **of == line).count()
}

/// Returns the history without the ids that services give to calls.
async fn history(served: &HostServer, session: &str) -> String {
    let mut history = served.snapshot(session).await["history"].clone();
    for message in history.as_array_mut().unwrap() {
        message.as_object_mut().unwrap().remove("tool_call_id");
        for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
            call["id"].take();
        }
    }
    history.to_string()
}

#[tokio::test]
async fn the_same_script_gives_one_history() {
    let mut histories = Vec::new();
    for client in ["ui.mjs", "agui.mjs"] {
        let (_directory, served) = served(script()).await;
        let Some(printed) = run_client(client, served.addr(), &["approve", "c1"]).await else {
            return;
        };
        assert_eq!(printed["errors"], json!([]), "{printed}");
        histories.push(history(&served, "c1").await);
    }
    let (_directory, served) = served(script()).await;
    served.open("c1").await;
    served.begin("c1", json!({"input": "go"})).await;
    let waits = |snapshot: &Value| snapshot["state"] == "waiting";
    let snapshot = served.until_snapshot("c1", waits).await;
    let (tool, body) =
        crate::host_directory::decision(&snapshot["current_run"]["approvals"][0], "approve");
    assert_eq!(served.post(&format!("/v1/sessions/c1/approvals/{tool}"), body).await.status, 200);
    served.until_snapshot("c1", |snapshot| snapshot["state"] == "idle").await;
    histories.push(history(&served, "c1").await);
    assert!(histories.iter().all(|of| *of == histories[0]), "{histories:#?}");
}

#[tokio::test]
async fn a_call_of_a_child_is_approved_by_the_page() {
    let response = |user: &str, rest: Value| {
        let mut response = rest;
        response["when"] = json!({"last_user": user});
        response
    };
    let find = json!({"name": "researcher", "arguments": {"input": "find"}});
    for client in ["ui.mjs", "agui.mjs"] {
        let script = json!({"responses": [
            response("go", json!({"calls": [find]})),
            response("find", json!({"calls": [call("writes", "b")]})),
            response("find", json!({"text": ["Found."]})),
            response("go", json!({"text": ["All found."]}))]});
        let (directory, served) = served_with(script, WITH_CHILD).await;
        let Some(printed) = run_client(client, served.addr(), &["approve", "c1"]).await else {
            return;
        };
        assert_eq!(printed["errors"], json!([]), "{printed}");
        assert_eq!(starts(&directory, "b"), 1, "{printed}");
        let text = printed["messages"].to_string();
        assert!(text.contains("Found.") && text.contains("All found."), "{printed}");
        let asked = printed["asked"][0]["id"].as_str().unwrap();
        assert!(asked.starts_with("sub_") && asked.contains(".t1a1c0."), "{asked}");
    }
}

fn requests() -> [(&'static str, Value); 2] {
    let message = json!({"id": "m1", "role": "user", "content": "go", "parts": [{"type": "text", "text": "go"}]});
    [
        ("/v1/ui/default", json!({"id": "c1", "messages": [message]})),
        ("/v1/agui/default", json!({"threadId": "c1", "runId": "r", "messages": [message]})),
    ]
}

#[tokio::test]
async fn a_decision_of_another_page_reaches_an_open_stream() {
    let config = format!("{ASKS}\n[agents.default]\nexecution = \"parallel\"");
    for (path, body) in requests() {
        let script = json!({"responses": [
            {"calls": [call("waits", "a"), call("writes", "b")]}, {"text": ["Done."]}]});
        let (directory, served) = served_with(script, &config).await;
        let mut stream =
            HttpConnection::open(served.addr(), &post(path, "", &body.to_string())).await;
        within(stream.until("data: ")).await;
        let snapshot = served.until_snapshot("c1", |of| of["state"] == "waiting").await;
        let (tool, decision) =
            crate::host_directory::decision(&snapshot["current_run"]["approvals"][0], "approve");
        let decided = served.post(&format!("/v1/sessions/c1/approvals/{tool}"), decision).await;
        assert_eq!(decided.status, 200, "{decided:?}");
        directory.control.until_logged("end b").await;
        directory.control.release("a");
        within(stream.read_rest()).await;
        let text = stream.text();
        // AG-UI has the results in call order.
        let at = |text_of: &str| text.find(text_of).unwrap_or_else(|| panic!("{text_of}: {text}"));
        let [a, b] = ["done a", "done b"].map(at);
        assert_eq!(a < b, path.contains("agui"), "{text}");
        assert!(at("Done.") > a.max(b) && !text.contains("interrupt"), "{text}");
    }
}

#[tokio::test]
async fn a_request_that_is_sent_again_joins_its_run() {
    for (path, body) in requests() {
        let script = json!({"responses": [{"calls": [call("waits", "a")]}, {"text": ["Done."]}]});
        let (directory, served) = served(script).await;
        let request = post(path, "", &body.to_string());
        let mut cut = HttpConnection::open(served.addr(), &request).await;
        directory.control.until_logged("start a").await;
        within(cut.until("data: ")).await;
        drop(cut);
        // The host sees that the connection is closed when it writes to it.
        let marked = post(path, "x-stainless-retry-count: 1\r\n", &body.to_string());
        let mut again = HttpConnection::open(served.addr(), &marked).await;
        within(again.until("data: ")).await;
        directory.control.release("a");
        within(again.read_rest()).await;
        assert!(again.text().contains("Done."), "{}", again.text());
        assert_eq!(starts(&directory, "a"), 1);
    }
}

#[tokio::test]
async fn a_run_goes_on_after_a_crash_and_is_joined() {
    for (client, (path, body)) in ["ui.mjs", "agui.mjs"].into_iter().zip(requests()) {
        let script = json!({"responses": [
            {"text": ["Look."], "calls": [call("quick", "a")]},
            {"text": ["Half ", "of"], "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
            {"text": ["Whole."]}]});
        let (directory, served) = served(script).await;
        let mut stream =
            HttpConnection::open(served.addr(), &post(path, "", &body.to_string())).await;
        within(stream.until("Half ")).await;
        served.crash().await;
        directory.model.open_gate("middle");
        let served = directory.start("", ASKS).await;
        let Some(printed) = run_client(client, served.addr(), &["reload", "c1"]).await else {
            return;
        };
        assert_eq!(printed["errors"], json!([]), "{printed}");
        let history =
            served.until_snapshot("c1", |of| of["state"] == "idle").await["history"].clone();
        assert_eq!(history[3]["content"], "Whole.", "{history}");
        // The run may have ended before the page has joined it.
        let messages = printed["messages"].to_string();
        let joined = printed["messages"] != json!([]);
        assert!(!messages.contains("Half"), "{messages}");
        assert!(!joined || messages.contains("Whole."), "{messages}");
        assert_eq!(starts(&directory, "a"), 1);
    }
}

/// Asks for a form, and for the consent to a URL.
async fn book(_: (), context: ToolContext) -> Result<String, ToolError> {
    let schema = json!({"type": "object", "properties": {"seats": {"type": "integer"}}, "required": ["seats"]});
    let seats = context.ask(Question::form("How many seats?", schema)).await?;
    let signed = context.ask(Question::url("Sign in.", "https://example.com/in")).await?;
    let is_accepted = |answer: &Answer| matches!(answer, Answer::Accepted(_));
    let Answer::Accepted(content) = &seats else { return Ok(format!("{seats:?}")) };
    Ok(format!("{content} {}", is_accepted(&signed)))
}

#[tokio::test]
async fn questions_of_tools_are_answered_by_the_page() {
    for client in ["ui.mjs", "agui.mjs"] {
        let script = json!({"responses": [
            {"calls": [{"name": "book", "arguments": {}}]}, {"text": ["Booked."]}]});
        let directory = HostDirectory::new(script).await;
        let setup = directory.setup_with("", "", |config| {
            for agent in config.agents.values_mut() {
                agent.tools.push(ToolPattern::new("book"));
            }
        });
        let setup = setup.tool(ToolSpec::named("book", "Books.").into_tool(book));
        let served = HostServer::start(setup).await.unwrap();
        let Some(printed) = run_client(client, served.addr(), &["answer", "c1"]).await else {
            return;
        };
        assert_eq!(printed["errors"], json!([]), "{printed}");
        let messages = printed["messages"].to_string();
        assert!(messages.contains(r#"{\"seats\":2} true"#), "{messages}");
    }
}

#[tokio::test]
async fn only_a_token_that_may_approve_approves() {
    let directory = HostDirectory::new(script()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let scopes = [TokenScope::Run, TokenScope::Read];
    let runner = TokenConfig::new("runner", ApiKey::new("secret").unwrap(), scopes);
    let options = ServerOptions::from(&Config::default()).with(|new| new.tokens = vec![runner]);
    let served = HostServer::start_at(listener, directory.setup("", ASKS), options).await.unwrap();
    let token = "authorization: Bearer secret\r\n";
    let send =
        async |path: &str, body: Value| served.send(&post(path, token, &body.to_string())).await;
    let user = json!({"id": "m1", "role": "user", "content": "go", "parts": [{"type": "text", "text": "go"}]});
    let ui = send("/v1/ui/default", json!({"id": "c1", "messages": [user]})).await;
    let chunk = |name: &str| {
        let line = ui.body.lines().find(|line| line.contains(name)).unwrap();
        serde_json::from_str::<Value>(line.strip_prefix("data: ").unwrap()).unwrap()
    };
    let asked = chunk("approvalId");
    let answered = json!({"id": chunk("messageId")["messageId"], "role": "assistant", "parts": [{"type": "tool-writes",
        "toolCallId": "t1a1c1", "state": "approval-responded",
        "approval": {"id": asked["approvalId"], "approved": true}}]});
    let refused = send("/v1/ui/default", json!({"id": "c1", "messages": [user, answered]})).await;
    assert_eq!(refused.error(), (403, "forbidden_scope".to_owned()));
    let resume =
        json!([{"interruptId": asked["approvalId"], "status": "resolved", "payload": true}]);
    let input = json!({"threadId": "c1", "runId": "r", "messages": [], "resume": resume});
    assert_eq!(send("/v1/agui/default", input).await.error(), (403, "forbidden_scope".to_owned()));
    assert_eq!(starts(&directory, "b"), 0);
}

#[tokio::test]
async fn a_request_whose_connection_closes_at_once_leaves_a_run_or_nothing() {
    let answer = json!({"text": ["Done."], "repeat": true});
    let (_directory, served) = served(json!({"responses": [answer]})).await;
    for (path, body) in requests() {
        for number in 0..20 {
            let id = format!("c{}{number}", path.len());
            let mut body = body.clone();
            let name = if body["id"].is_null() { "threadId" } else { "id" };
            body[name] = id.clone().into();
            let request = post(path, "", &body.to_string());
            let connection = HttpConnection::open(served.addr(), &request).await;
            // The server is at a different place each time.
            tokio::time::sleep(std::time::Duration::from_micros(number * 150)).await;
            drop(connection);
        }
    }
    let runs = async |id: &str| {
        let runs = served.get(&format!("/v1/sessions/{id}/runs")).await.json();
        runs["runs"].as_array().unwrap().len()
    };
    for session in served.get("/v1/sessions").await.json()["sessions"].as_array().unwrap() {
        let id = session["id"].as_str().unwrap();
        within(async {
            while runs(id).await != 1 {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_message_that_is_sent_again_during_its_run_joins_the_run() {
    for (path, body) in requests() {
        let script = json!({"responses": [{"calls": [call("waits", "a")]}, {"text": ["Done."]}]});
        let (directory, served) = served(script).await;
        let request = post(path, "", &body.to_string());
        let mut first = HttpConnection::open(served.addr(), &request).await;
        directory.control.until_logged("start a").await;
        let mut again = HttpConnection::open(served.addr(), &request).await;
        within(again.until("data: ")).await;
        for (id, text) in [("m2", "go"), ("m1", "no")] {
            let mut other = body.clone();
            other["messages"][0]["id"] = id.into();
            other["messages"][0]["content"] = text.into();
            other["messages"][0]["parts"][0]["text"] = text.into();
            let refused = served.post(path, other).await;
            assert_eq!(refused.error(), (422, "run_in_progress".to_owned()), "{path} {id} {text}");
        }
        directory.control.release("a");
        for stream in [&mut first, &mut again] {
            within(stream.read_rest()).await;
            assert!(stream.text().contains("Done."), "{path}: {}", stream.text());
        }
        let history = served.snapshot("c1").await["history"].clone();
        assert_eq!(history.as_array().unwrap().len(), 4, "{path}: {history}");
        assert_eq!(starts(&directory, "a"), 1);
    }
}

#[tokio::test]
async fn equal_requests_at_the_same_time_are_all_answered() {
    let answer = json!({"text": ["Done."], "repeat": true});
    let (_directory, served) = served(json!({"responses": [answer]})).await;
    for (path, body) in requests() {
        for number in 0..5 {
            let id = format!("c{}{number}", path.len());
            let mut body = body.clone();
            let name = if body["id"].is_null() { "threadId" } else { "id" };
            body[name] = id.clone().into();
            let sent = (0..3).map(|_| served.post(path, body.clone()));
            for answer in futures::future::join_all(sent).await {
                assert!(
                    answer.status == 200 && answer.body.contains("Done."),
                    "{path}: {answer:?}"
                );
            }
        }
    }
}
