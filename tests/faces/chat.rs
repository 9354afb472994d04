//! The face OpenAI Chat Completions.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "the proxy of a test ends with it")]

use std::net::SocketAddr;

use async_openai::types::chat::{CreateChatCompletionResponse, CreateChatCompletionStreamResponse};
use callsheet::server::ServerOptions;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::client::{HttpConnection, HttpResponse, post};
use crate::host_directory::{HostDirectory, HostServer, within};
use crate::installed::run_client;

const PATH: &str = "/v1/chat/completions";

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

fn body(messages: &[Value]) -> Value {
    json!({"model": "default", "messages": messages})
}

fn with(mut body: Value, members: Value) -> Value {
    body.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    body
}

/// Sends a request and returns the whole answer.
async fn complete(served: &HostServer, body: &Value) -> HttpResponse {
    let answer = served.send(&post(PATH, "", &body.to_string())).await;
    if answer.status == 200 && body["stream"] != true {
        CreateChatCompletionResponse::deserialize(answer.json()).unwrap();
    }
    answer
}

/// Sends the messages, and returns the answer's text and the session.
async fn say(served: &HostServer, messages: &[Value]) -> (String, String) {
    let answer = complete(served, &body(messages)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let session = answer.header("x-callsheet-session").unwrap().to_owned();
    let text = answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    (text, session)
}

/// Returns the chunks of a stream, each of which the types of a client can read.
fn chunks(stream: &str) -> Vec<Value> {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    let chunks = data.filter(|data| *data != "[DONE]").map(|data| {
        serde_json::from_str::<CreateChatCompletionStreamResponse>(data).unwrap();
        serde_json::from_str(data).unwrap()
    });
    chunks.collect()
}

/// Adds up the text of a stream.
fn content(stream: &str) -> String {
    let chunks = chunks(stream);
    let text = |chunk: &Value| {
        chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
    };
    chunks.iter().map(text).collect()
}

async fn sessions(served: &HostServer) -> usize {
    served.get("/v1/sessions").await.json()["sessions"].as_array().unwrap().len()
}

fn open_file(path: &str) -> Value {
    json!({"name": "open_file", "arguments": {"path": path}})
}

fn quick(id: &str) -> Value {
    json!({"name": "quick", "arguments": {"id": id}})
}

async fn serve(directory: &HostDirectory, rest: &str, mut options: ServerOptions) -> HostServer {
    options.faces = options.faces.enabled_by_default(true);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    HostServer::start_at(listener, directory.setup("", rest), options).await.unwrap()
}

/// Starts a host with these sections of its configuration.
async fn start(directory: &HostDirectory, rest: &str) -> HostServer {
    serve(directory, rest, ServerOptions::default()).await
}

async fn holding(directory: &HostDirectory) -> HostServer {
    let mut options = ServerOptions::default();
    options.faces.openai.unproven_text = callsheet::config::UnprovenText::Hold;
    serve(directory, "", options).await
}

/// One client in one way: a conversation of three messages, without a session's name.
async fn converses(script: &str, mode: &str, execution: &str) {
    let directory = HostDirectory::new(json!({"responses": [
        {"reasoning": ["Hm."], "text": ["Hel", "lo."]},
        {"text": ["Let me look."], "calls": [quick("q1"), quick("q2"), quick("q3")]},
        {"text": ["Found."]},
        {"calls": [open_file("a.txt"), open_file("b.txt")]},
        {"text": ["Both are open."]},
    ]}))
    .await;
    let agent = format!("[agents.default]\nexecution = \"{execution}\"\n");
    let served = start(&directory, &agent).await;
    let arguments = [mode, "Hi.", "Look it up.", "Open the file."];
    let Some(seen) = run_client(script, served.addr(), &arguments).await else { return };
    let word = if script == "chat_ai.mjs" { "tool-calls" } else { "tool_calls" };
    let seen_answers: Vec<Value> = seen["answers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| {
            let text = answer["content"].as_str().unwrap_or_default();
            json!([text, answer["finish_reason"], answer["calls"]])
        })
        .collect();
    // One call after the other, or both together.
    let calls = match execution {
        "sequential" => vec![json!(["", word, 1]), json!(["", word, 1])],
        _ => vec![json!(["", word, 2])],
    };
    let hello = json!(["Hello.", "stop", 0]);
    let found = json!(["Let me look.\n\nFound.", "stop", 0]);
    let expected = [vec![hello, found], calls, vec![json!(["Both are open.", "stop", 0])]].concat();
    assert_eq!(seen_answers, expected, "{script} {mode}");
    if script == "chat_ai.mjs" {
        assert_eq!(seen["ran"], json!(["a.txt", "b.txt"]));
    } else {
        assert_eq!(seen["models"], json!(["default"]));
        assert_eq!(seen["missing"], json!([404, "model_not_found"]));
    }
    let listed = served.get("/v1/sessions").await.json()["sessions"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{script} {mode}: {listed}");
    let history = served.snapshot(listed[0]["id"].as_str().unwrap()).await["history"].clone();
    let inputs = history.as_array().unwrap().iter().filter(|message| message["role"] == "user");
    assert_eq!(inputs.count(), 3);
    assert_eq!(history[10]["content"], "opened a.txt", "{history}");
    let system = directory.model.requests()[0].body["messages"][0]["content"].clone();
    assert!(system.as_str().unwrap().ends_with("Be brief."), "{system}");
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn the_client_for_javascript_converses() {
    for (mode, execution) in [("raw", "sequential"), ("helper", "parallel"), ("plain", "parallel")]
    {
        converses("chat_openai.mjs", mode, execution).await;
    }
}

#[tokio::test]
async fn the_client_for_python_converses() {
    for (mode, execution) in [("raw", "sequential"), ("helper", "parallel"), ("plain", "parallel")]
    {
        converses("chat_openai.py", mode, execution).await;
    }
}

#[tokio::test]
async fn the_ai_sdk_converses() {
    for (mode, execution) in [("stream", "parallel"), ("plain", "sequential")] {
        converses("chat_ai.mjs", mode, execution).await;
    }
}

#[tokio::test]
async fn a_history_is_recognised() {
    let texts = ["One.", "Two.", "Three.", "Other.", "One.", "Either.", "Seeded.", "Again."];
    let responses: Vec<Value> = texts.iter().map(|text| json!({"text": [text]})).collect();
    let directory = HostDirectory::new(json!({"responses": responses})).await;
    let served = start(&directory, "").await;
    let (_, first) = say(&served, &[user("a")]).await;
    let (_, second) = say(&served, &[user("a"), assistant("One."), user("b")]).await;
    assert_eq!(second, first, "the whole history of one session");
    let whole = [user("a"), assistant("One."), user("b"), assistant("Two."), user("c")];
    assert_eq!(say(&served, &whole).await, ("Three.".to_owned(), first.clone()));
    // The message b is edited.
    let (_, fork) = say(&served, &[user("a"), assistant("One."), user("B")]).await;
    assert_ne!(fork, first);
    let sent = directory.model.requests()[3].body["messages"].clone();
    let roles: Vec<_> = sent.as_array().unwrap().iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    // Another client whose conversation begins with the same words.
    let (_, equal) = say(&served, &[user("a")]).await;
    assert_ne!(equal, first);
    let (_, either) = say(&served, &[user("a"), assistant("One."), user("d")]).await;
    assert_eq!(either, equal, "the other one has gone on, so it is the whole history of one");
    // Nobody knows this history: its messages open a session.
    let (_, seeded) = say(&served, &[user("x"), assistant("y"), user("z")]).await;
    let history = served.snapshot(&seeded).await["history"].clone();
    assert_eq!(history[1]["content"], "y");
    assert_eq!(history.as_array().unwrap().len(), 4);
    // A session that is deleted is not found.
    assert_eq!(served.delete(&format!("/v1/sessions/{seeded}")).await.status, 204);
    let messages = [user("x"), assistant("y"), user("z"), assistant("Seeded."), user("w")];
    assert_ne!(say(&served, &messages).await.1, seeded);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn clients_with_equal_conversations_share_no_session() {
    let directory =
        HostDirectory::new(json!({"responses": [{"text": ["One."], "repeat": true}]})).await;
    let served = start(&directory, "").await;
    let (_, first) = say(&served, &[user("a")]).await;
    let (_, second) = say(&served, &[user("a")]).await;
    let (_, third) = say(&served, &[user("a"), assistant("One."), user("b")]).await;
    assert!(third != first && third != second);
    // A restarted host knows the histories.
    served.shutdown().await;
    let served = start(&directory, "").await;
    let messages = [user("a"), assistant("One."), user("b"), assistant("One."), user("c")];
    assert_eq!(say(&served, &messages).await.1, third);
}

#[tokio::test]
async fn a_call_that_waits_for_a_person_ends_the_answer() {
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["I will write."], "calls": [{"name": "writes", "arguments": {"id": "w"}}]},
        {"text": ["Written."]},
        {"text": ["You are welcome."]},
    ]}))
    .await;
    let served = start(&directory, "[tools.writes]\napproval = \"before\"\n").await;
    let (first, session) = say(&served, &[user("Write.")]).await;
    let address = format!("http://localhost/console/#/s/{session}");
    assert!(first.starts_with("I will write.\n\nThe call of `writes` waits"), "{first}");
    assert!(first.ends_with(&address), "{first}");
    // The next message gets the same text, streamed too, and is not passed on.
    let mut messages = vec![user("Write."), assistant(&first), user("Well?")];
    let answer = complete(&served, &with(body(&messages), json!({"stream": true}))).await;
    let notice = content(&answer.body);
    assert!(first.ends_with(&notice) && !notice.is_empty(), "{notice}");
    assert!(answer.body.ends_with("data: [DONE]\n\n"));
    assert_eq!(answer.header("x-callsheet-session"), Some(&*session));
    messages.extend([assistant(&notice), user("Thanks.")]);
    let snapshot = served.snapshot(&session).await;
    let approval = &snapshot["current_run"]["approvals"][0];
    let path = format!("/v1/sessions/{session}/approvals/t1a1c0");
    let sha = &approval["arguments_sha256"];
    let decision = json!({"decision": "approve", "arguments_sha256": sha});
    assert_eq!(served.post(&path, decision).await.status, 200);
    served.until_snapshot(&session, |snapshot| snapshot["current_run"].is_null()).await;
    // The rest of the run, which nobody has seen, precedes the next answer.
    let (last, same) = say(&served, &messages).await;
    assert_eq!((&*last, &same), ("Written.\n\nYou are welcome.", &session));
    messages.extend([assistant(&last), user("Bye.")]);
    assert_eq!(say(&served, &messages).await.1, session);
    assert_eq!(directory.control.log(), ["start w", "end w"]);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_repeated_request_joins_the_run_whose_answer_was_cut() {
    let holds = json!([{"at": {"chunk": 3}, "name": "middle"}]);
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["Let me look."], "calls": [quick("q")]},
        {"text": ["It ", "is ", "noon."], "holds": holds},
    ]}))
    .await;
    let served = start(&directory, "").await;
    let streamed = with(
        body(&[user("When?")]),
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    );
    let request = post(PATH, "", &streamed.to_string());
    let mut cut = HttpConnection::open(served.addr(), &request).await;
    within(cut.until("is ")).await;
    drop(cut);
    let marked = post(PATH, "x-stainless-retry-count: 1\r\n", &streamed.to_string());
    let mut again = HttpConnection::open(served.addr(), &marked).await;
    within(again.until("is ")).await;
    directory.model.open_gate("middle");
    within(again.until("data: [DONE]")).await;
    let text = again.text();
    assert_eq!(content(&text), "Let me look.\n\nIt is noon.");
    let chunks = chunks(&text);
    let states = chunks.iter().filter_map(|chunk| chunk["callsheet"]["status"].as_str());
    assert!(states.collect::<Vec<_>>().contains(&"finished"), "{text}");
    let usage = chunks.last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["total_tokens"].as_u64() > Some(0));
    assert!(chunks.iter().rev().skip(1).all(|chunk| chunk["usage"].is_null()));
    assert_eq!(chunks[chunks.len() - 2]["choices"][0]["finish_reason"], "stop");
    assert_eq!((sessions(&served).await, directory.control.log().len()), (1, 2));
    // The next message finds the session.
    let messages = [user("When?"), assistant("Let me look.\n\nIt is noon."), user("Thanks.")];
    say(&served, &messages).await;
    assert_eq!(sessions(&served).await, 1);
}

#[tokio::test]
async fn text_of_an_attempt_that_broke_is_not_sent_twice() {
    let script = |second: &[&str]| {
        json!({"responses": [
            {"text": ["It is ", "noon."], "cut_after_chunks": 2},
            {"text": second},
        ]})
    };
    let streamed = with(body(&[user("When?")]), json!({"stream": true}));
    let again = "It is \n\n[The answer broke off here. It begins again:]\n\nOne o'clock.";
    for (second, expected) in
        [(&["It is", " noon."][..], "It is noon."), (&["One o'clock."][..], again)]
    {
        let directory = HostDirectory::new(script(second)).await;
        let served = start(&directory, "").await;
        let answer = complete(&served, &streamed).await;
        assert_eq!(content(&answer.body), expected);
        served.shutdown().await;
        let directory = HostDirectory::new(script(second)).await;
        let served = holding(&directory).await;
        let answer = complete(&served, &streamed).await;
        assert_eq!(content(&answer.body), second.concat());
        served.shutdown().await;
    }
}

#[tokio::test]
async fn a_typed_answer_is_only_json() {
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["Let me see."], "calls": [quick("q")]},
        {"text": ["{\"sum\": 5}"], "repeat": true},
    ]}))
    .await;
    let served = start(&directory, "").await;
    let schema = json!({
        "type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}});
    let request = json!({"response_format": format, "temperature": 0.5, "top_p": 1});
    let answer = complete(&served, &with(body(&[user("2 + 3?")]), request)).await;
    let text = answer.json()["choices"][0]["message"]["content"].clone();
    assert_eq!(text, "{\"sum\":5}", "{answer:?}");
    assert_eq!(answer.header("x-callsheet-ignored"), Some("top_p, temperature"));
}

#[tokio::test]
async fn wrong_requests_are_refused_before_anything_is_done() {
    let holds = json!([{"at": {"chunk": 1}, "name": "middle"}]);
    let directory =
        HostDirectory::new(json!({"responses": [{"text": ["a", "b"], "holds": holds}]})).await;
    let served = start(&directory, "").await;
    let named = "x-callsheet-session: one\r\n";
    let two = with(body(&[user("a")]), json!({"metadata": {"session_id": "two"}}));
    let foreign = json!({"role": "tool", "tool_call_id": "call_1", "content": "x"});
    let call =
        json!({"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let calls = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let own_tool = json!({"tools": [{"type": "function", "function": {"name": "quick"}}]});
    for (headers, body, status, code) in [
        (named, two, 400, "invalid_request"),
        ("", with(body(&[user("a")]), json!({"n": 2})), 400, "invalid_request"),
        ("", with(body(&[user("a")]), json!({"model": "gpt-4o"})), 404, "model_not_found"),
        ("", body(&[user("a"), calls.clone()]), 400, "invalid_request"),
        ("", with(body(&[user("a")]), own_tool), 400, "tool_name_taken"),
        ("", body(&vec![user("a"); 10_001]), 400, "invalid_request"),
    ] {
        let answer = served.send(&post(PATH, headers, &body.to_string())).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (status, &json!(code)), "{answer:?}");
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
    let head = post(PATH, "", "").replace("content-length: 0", "content-length: 9000000");
    let image = served.send(&head).await;
    let error = image.json()["error"].clone();
    assert_eq!((image.status, &error["code"]), (413, &json!("body_too_large")));
    assert_eq!(error["type"], "invalid_request_error");
    assert_eq!(sessions(&served).await, 0);
    // A second message, while the run of the first one is in progress.
    let streamed = with(body(&[user("a")]), json!({"stream": true}));
    let first = post(PATH, named, &streamed.to_string());
    let mut first = HttpConnection::open(served.addr(), &first).await;
    within(first.until("\"role\":\"assistant\"")).await;
    let second = post(PATH, named, &body(&[user("b")]).to_string());
    let refused = served.send(&second).await;
    let code = refused.json()["error"]["code"].clone();
    assert_eq!((refused.status, code), (422, json!("run_in_progress")));
    directory.model.open_gate("middle");
    within(first.until("[DONE]")).await;
    assert!(first.text().contains("x-callsheet-session: one"));
    // The result of a call that the session does not have.
    let foreign = body(&[user("a"), calls, foreign]);
    let refused = served.send(&post(PATH, named, &foreign.to_string())).await;
    let code = refused.json()["error"]["code"].clone();
    assert_eq!((refused.status, code), (400, json!("invalid_request")), "{refused:?}");
    assert_eq!(directory.model.requests().len(), 1);
}

/// Returns what a client makes of a stream: text, reasoning, calls, finish reason and usage.
fn folded(stream: &str) -> Value {
    let (mut calls, mut finish, mut usage) = (Vec::new(), Value::Null, Value::Null);
    let mut reasoning = String::new();
    for chunk in chunks(stream) {
        let choice = &chunk["choices"][0];
        reasoning.push_str(choice["delta"]["reasoning_content"].as_str().unwrap_or_default());
        calls.extend(choice["delta"]["tool_calls"].as_array().cloned().unwrap_or_default());
        for (value, new) in [(&mut finish, &choice["finish_reason"]), (&mut usage, &chunk["usage"])]
        {
            if !new.is_null() {
                *value = new.clone();
            }
        }
    }
    json!([content(stream), reasoning, calls, finish, usage])
}

/// Sends a request, and the same once more as a client does that has not received the answer.
async fn twice(served: &HostServer, messages: &[Value]) -> Value {
    let first = complete(served, &with_tool(messages)).await;
    let again = repeat(served, messages).await;
    assert_eq!(folded(&first.body), again, "{}", first.body);
    again
}

async fn repeat(served: &HostServer, messages: &[Value]) -> Value {
    let marked = "x-stainless-retry-count: 1\r\n";
    let request = post(PATH, marked, &with_tool(messages).to_string());
    folded(&served.send(&request).await.body)
}

fn with_tool(messages: &[Value]) -> Value {
    let function = json!({"name": "open_file", "parameters": {"type": "object"}});
    let members = json!({
        "stream": true,
        "stream_options": {"include_usage": true},
        "tools": [{"type": "function", "function": function}],
    });
    with(body(messages), members)
}

#[tokio::test]
async fn a_replay_gives_the_same_answer() {
    for execution in ["sequential", "parallel"] {
        let directory = HostDirectory::new(json!({"responses": [
            {"reasoning": ["Hm."], "text": ["I see", " it."], "cut_after_chunks": 3},
            {"reasoning": ["So."], "text": ["I open", " it."], "calls": [
                quick("q"), open_file("a.txt"), open_file("b.txt"),
                {"name": "writes", "arguments": {"id": "w"}},
            ]},
            {"text": ["All is done."]},
        ]}))
        .await;
        let rest = format!(
            "[agents.default]\nexecution = \"{execution}\"\n[tools.writes]\napproval = \"before\"\n"
        );
        let served = start(&directory, &rest).await;
        let first = vec![user("Open both.")];
        let mut messages = first.clone();
        let mut answer = twice(&served, &messages).await;
        let opened = answer.clone();
        let mut count = 0;
        while answer[3] == "tool_calls" {
            let heads = answer[2].as_array().unwrap().iter().filter(|call| call["id"].is_string());
            let calls: Vec<Value> = heads
                .map(|head| {
                    let function = json!({"name": head["function"]["name"], "arguments": "{}"});
                    json!({"id": head["id"], "type": "function", "function": function})
                })
                .collect();
            let ids: Vec<Value> = calls.iter().map(|call| call["id"].clone()).collect();
            count += calls.len();
            messages.push(json!({"role": "assistant", "content": answer[0], "tool_calls": calls}));
            let result = |id| json!({"role": "tool", "tool_call_id": id, "content": "opened"});
            messages.extend(ids.into_iter().map(result));
            answer = twice(&served, &messages).await;
        }
        assert_eq!((count, &answer[3]), (2, &json!("stop")));
        assert!(answer[0].as_str().unwrap().starts_with("The call of `writes` waits"), "{answer}");
        // Also after the calls have ended.
        assert_eq!(repeat(&served, &first).await, opened, "{execution}");
        let text = opened[0].as_str().unwrap();
        assert!(text.starts_with("I see") && text.ends_with("I open it."), "{text}");
        served.shutdown().await;
    }
}

#[tokio::test]
async fn a_message_after_an_approval_goes_into_the_run() {
    let holds = json!([{"at": {"chunk": 2}, "name": "middle"}]);
    let directory = HostDirectory::new(json!({"responses": [
        {"calls": [{"name": "writes", "arguments": {"id": "w"}}]},
        {"text": ["Writ", "ten."], "holds": holds},
        {"text": ["You are welcome."]},
    ]}))
    .await;
    let served = start(&directory, "[tools.writes]\napproval = \"before\"\n").await;
    let (notice, session) = say(&served, &[user("Write.")]).await;
    let snapshot = served.snapshot(&session).await;
    let sha = &snapshot["current_run"]["approvals"][0]["arguments_sha256"];
    let decision = json!({"decision": "approve", "arguments_sha256": sha});
    let path = format!("/v1/sessions/{session}/approvals/t1a1c0");
    assert_eq!(served.post(&path, decision).await.status, 200);
    within(directory.model.wait_for_gate("middle")).await;
    let messages = [user("Write."), assistant(&notice), user("Thanks.")];
    let request = with(body(&messages), json!({"stream": true})).to_string();
    let mut answer = HttpConnection::open(served.addr(), &post(PATH, "", &request)).await;
    within(answer.until("Writ")).await;
    directory.model.open_gate("middle");
    within(answer.until("[DONE]")).await;
    assert_eq!(content(&answer.text()), "Written.\n\nYou are welcome.");
    assert_eq!(sessions(&served).await, 1);
    served.shutdown().await;
    directory.verify();
}

#[tokio::test]
async fn a_run_that_nobody_waits_for_is_recognised_later() {
    let holds = json!([{"at": {"chunk": 2}, "name": "middle"}]);
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["It is ", "noon."], "holds": holds},
        {"text": ["Ah."], "repeat": true},
    ]}))
    .await;
    let served = start(&directory, "").await;
    let streamed = with(body(&[user("When?")]), json!({"stream": true}));
    let named = "x-callsheet-session: one\r\n";
    let request = post(PATH, named, &streamed.to_string());
    let mut cut = HttpConnection::open(served.addr(), &request).await;
    within(cut.until("It is ")).await;
    drop(cut);
    directory.model.open_gate("middle");
    served.until_snapshot("one", |snapshot| snapshot["current_run"].is_null()).await;
    // The client has read the answer elsewhere. The note of it follows the end of the run.
    let messages = [user("When?"), assistant("It is noon."), user("Thanks.")];
    let recognised = async { while say(&served, &messages).await.1 != "one" {} };
    within(recognised).await;
}

/// Passes connections on to the host. Cuts the first one when the client has the head of the answer.
async fn cut_first(
    listener: TcpListener,
    to: SocketAddr,
    is_cut: tokio::sync::oneshot::Sender<()>,
) {
    let (mut client, _) = listener.accept().await.unwrap();
    let mut host = TcpStream::connect(to).await.unwrap();
    let mut received = Vec::new();
    while !received.windows(4).any(|four| four == b"\r\n\r\n") {
        let (mut sent, mut answered) = ([0; 4096], [0; 4096]);
        tokio::select! {
            read = client.read(&mut sent) => host.write_all(&sent[..read.unwrap()]).await.unwrap(),
            read = host.read(&mut answered) => {
                let answered = &answered[..read.unwrap()];
                received.extend_from_slice(answered);
                client.write_all(answered).await.unwrap();
            }
        }
    }
    drop((client, host));
    is_cut.send(()).unwrap();
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut host = TcpStream::connect(to).await.unwrap();
        tokio::spawn(async move { copy_bidirectional(&mut client, &mut host).await });
    }
}

#[tokio::test]
async fn a_client_that_repeats_its_request_by_itself_gets_the_one_run() {
    let holds = json!([{"at": {"chunk": 2}, "name": "middle"}]);
    let directory = HostDirectory::new(json!({"responses": [
        {"calls": [{"name": "writes", "arguments": {"id": "w"}}]},
        {"text": ["It is ", "noon."], "holds": holds},
    ]}))
    .await;
    let served = start(&directory, "").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let (is_cut, cut) = tokio::sync::oneshot::channel();
    let passing = tokio::spawn(cut_first(listener, served.addr(), is_cut));
    let release = async {
        // The client is not installed, or its answer is cut before the run has ended.
        if cut.await.is_ok() {
            directory.model.open_gate("middle");
        }
    };
    let asking = async {
        let seen = run_client("chat_openai.py", proxy, &["retry", "When?"]).await;
        passing.abort();
        seen
    };
    let (seen, ()) = tokio::join!(asking, release);
    let Some(seen) = seen else { return };
    assert_eq!(
        seen["answers"],
        json!([{"content": "It is noon.", "finish_reason": "stop", "calls": 0}])
    );
    assert_eq!((sessions(&served).await, directory.control.log().len()), (1, 2));
    served.shutdown().await;
    directory.verify();
}

/// Opens a stream of an answer, and returns its connection when it has this text.
async fn open_stream(
    served: &HostServer,
    headers: &str,
    body: &Value,
    text: &str,
) -> HttpConnection {
    let mut connection =
        HttpConnection::open(served.addr(), &post(PATH, headers, &body.to_string())).await;
    within(connection.until(text)).await;
    connection
}

#[tokio::test]
async fn equal_requests_of_two_people_are_repeated_one_by_one() {
    let held = |text: &str| json!({"text": [text, " end"], "holds": [{"at": {"chunk": 2}, "name": "middle"}]});
    let directory = HostDirectory::new(json!({"responses": [held("One"), held("Two")]})).await;
    let served = start(&directory, "").await;
    let request = with(body(&[user("a")]), json!({"stream": true}));
    let first = open_stream(&served, "", &request, "One").await;
    let second = open_stream(&served, "", &request, "Two").await;
    drop((first, second));
    let marked = "x-stainless-retry-count: 1\r\n";
    let mut connections = Vec::new();
    for _ in 0..2 {
        connections.push(open_stream(&served, marked, &request, "role").await);
    }
    directory.model.open_gate("middle");
    let mut texts = Vec::new();
    for mut connection in connections {
        within(connection.until("[DONE]")).await;
        texts.push(content(&connection.text()));
    }
    texts.sort();
    assert_eq!(texts, ["One end", "Two end"]);
    assert_eq!(directory.model.requests().len(), 2);
}

#[tokio::test]
async fn equal_requests_are_repeated_one_by_one_after_a_crash() {
    for marker in ["", "x-stainless-retry-count: 1\r\n"] {
        let held =
            json!({"text": ["Lost", " end"], "holds": [{"at": {"chunk": 2}, "name": "never"}]});
        let texts = ["One.", "Two.", "Three."].map(|text| json!({"text": [text]}));
        let responses = [vec![held.clone(), held], texts.to_vec()].concat();
        let directory = HostDirectory::new(json!({"responses": responses})).await;
        let served = start(&directory, "").await;
        let request = with(body(&[user("a")]), json!({"stream": true}));
        let first = open_stream(&served, "", &request, "Lost").await;
        let second = open_stream(&served, "", &request, "Lost").await;
        served.crash().await;
        drop((first, second));
        let served = start(&directory, "").await;
        let mut ids = std::collections::BTreeSet::new();
        for _ in 0..2 {
            let answer = served.send(&post(PATH, marker, &request.to_string())).await;
            ids.insert(answer.header("x-callsheet-session").unwrap().to_owned());
        }
        assert_eq!((ids.len(), sessions(&served).await), (2, 2));
        let answer = served.send(&post(PATH, "", &request.to_string())).await;
        assert!(!ids.contains(answer.header("x-callsheet-session").unwrap()));
        served.shutdown().await;
    }
}

#[tokio::test]
async fn a_key_is_for_one_request() {
    let directory =
        HostDirectory::new(json!({"responses": [{"text": ["One."], "repeat": true}]})).await;
    let served = start(&directory, "").await;
    let send = async |key: &str, text: &str| {
        let request = body(&[user(text)]).to_string();
        served.send(&post(PATH, &format!("idempotency-key: {key}\r\n"), &request)).await
    };
    let (first, again) = (send("k", "a").await, send("k", "a").await);
    assert_eq!((first.status, first.body), (200, again.body));
    let other = send("k", "b").await;
    let error = other.json()["error"].clone();
    assert_eq!((other.status, &error["code"]), (422, &json!("idempotency_key_reused")));
    assert_eq!(send("", "a").await.status, 200);
    assert_eq!(send("", "b").await.status, 200);
    assert_eq!(sessions(&served).await, 3);
}

#[tokio::test]
async fn a_required_call_is_one_of_the_client() {
    let directory =
        HostDirectory::new(json!({"responses": [{"calls": [open_file("a.txt")]}]})).await;
    let served = start(&directory, "").await;
    let request = with(with_tool(&[user("Open.")]), json!({"tool_choice": "required"}));
    let answer = complete(&served, &request).await;
    assert_eq!(folded(&answer.body)[3], "tool_calls");
    let sent = directory.model.requests()[0].body["tool_choice"].clone();
    assert_eq!(sent["function"]["name"], "open_file", "{sent}");
}

#[tokio::test]
async fn a_history_with_calls_made_elsewhere_is_answered() {
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["It is noon."]}, {"text": ["You are welcome."]}]}))
    .await;
    let served = start(&directory, "").await;
    let function = json!({"name": "clock", "arguments": "{}"});
    let call = json!({"id": "call_x", "type": "function", "function": function});
    let mut messages = vec![
        user("When?"),
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "call_x", "content": "12:00"}),
    ];
    let (text, session) = say(&served, &messages).await;
    assert_eq!(text, "It is noon.");
    let sent = directory.model.requests()[0].body["messages"].clone();
    let roles: Vec<_> = sent.as_array().unwrap().iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "user"], "{sent}");
    messages.extend([assistant(&text), user("Thanks.")]);
    assert_eq!(say(&served, &messages).await.1, session);
}

#[tokio::test]
async fn results_that_are_sent_again_get_the_same_answer() {
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["I open it."], "calls": [open_file("a.txt")]},
        {"text": ["It is open."]},
        {"text": ["Well."]},
        {"text": ["Anew."], "repeat": true},
    ]}))
    .await;
    let served = start(&directory, "").await;
    let first = folded(&complete(&served, &with_tool(&[user("Open.")])).await.body);
    let head = &first[2][0];
    let function = json!({"name": "open_file", "arguments": "{\"path\":\"a.txt\"}"});
    let call = json!({"id": head["id"], "type": "function", "function": function});
    let calls = json!({"role": "assistant", "content": first[0], "tool_calls": [call]});
    let result = |text: &str| json!({"role": "tool", "tool_call_id": head["id"], "content": text});
    let mut messages = vec![user("Open."), calls, result("opened")];
    let answer = folded(&complete(&served, &with_tool(&messages)).await.body);
    assert_eq!(answer[0], "It is open.");
    let again = folded(&complete(&served, &with_tool(&messages)).await.body);
    assert_eq!(again, answer);
    assert_eq!(directory.model.requests().len(), 2);
    // Also when the session has gone on.
    let mut longer = messages.clone();
    longer.extend([assistant("It is open."), user("Well?")]);
    assert_eq!(folded(&complete(&served, &with_tool(&longer)).await.body)[0], "Well.");
    let again = folded(&complete(&served, &with_tool(&messages)).await.body);
    assert_eq!((again, sessions(&served).await), (answer, 1));
    let other = [messages[0].clone(), messages[1].clone(), result("not found")];
    let refused = complete(&served, &with_tool(&other)).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (422, &json!("call_ended")));
    // The client has not kept the answer.
    messages.push(user("And?"));
    assert_eq!(folded(&complete(&served, &with_tool(&messages)).await.body)[0], "Anew.");
    assert_eq!(sessions(&served).await, 2);
}

#[tokio::test]
async fn a_refusal_is_no_content() {
    let refuses = r#"data: {"choices":[{"index":0,"delta":{"refusal":"I can't."}}]}"#;
    let ends = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let chunks = [refuses, ends, "data: [DONE]"].map(|chunk| format!("{chunk}\n\n"));
    let filtered = json!({"text": ["Well"], "finish_reason": "content_filter"});
    let refused = json!({"raw_chunks": chunks});
    let directory =
        HostDirectory::new(json!({"responses": [refused, refused, refused, filtered]})).await;
    let served = start(&directory, "").await;
    let plain = complete(&served, &body(&[user("a")])).await.json();
    let choice = &plain["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&Value::Null, &json!("stop"))
    );
    assert_eq!(choice["message"]["refusal"], "I can't.");
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}});
    let typed = json!({"stream": true, "response_format": format});
    for (members, expected) in [(typed, ""), (json!({"stream": true}), "I can't.")] {
        let answer = complete(&served, &with(body(&[user("b")]), members)).await;
        assert_eq!(content(&answer.body), expected);
        let chunks = chunks_of(&answer.body, "refusal");
        assert_eq!(chunks, ["I can't."]);
        assert_eq!(folded(&answer.body)[3], "stop");
    }
    let filtered = complete(&served, &body(&[user("c")])).await.json();
    assert_eq!(filtered["choices"][0]["finish_reason"], "content_filter");
}

/// Returns this member of all deltas.
fn chunks_of(stream: &str, member: &str) -> Vec<String> {
    let texts =
        chunks(stream).into_iter().map(|chunk| chunk["choices"][0]["delta"][member].clone());
    texts.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn an_answer_that_does_not_fit_its_schema_is_not_asked_for_again() {
    let directory =
        HostDirectory::new(json!({"responses": [{"text": ["five"], "repeat": true}]})).await;
    let served = start(&directory, "").await;
    let schema = json!({"type": "object", "required": ["sum"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}});
    let request = with(body(&[user("2 + 3?")]), json!({"response_format": format}));
    let answer = complete(&served, &request).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (422, &json!("OUTPUT_INVALID")));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    let directory = HostDirectory::new(json!({"responses": [{"status": 400}]})).await;
    let served = start(&directory, "").await;
    let answer = complete(&served, &body(&[user("a")])).await;
    assert_eq!((answer.status, answer.header("x-should-retry")), (502, Some("false")));
}

#[tokio::test]
async fn errors_have_the_form_of_openai() {
    let directory = HostDirectory::new(json!({"responses": []})).await;
    let mut options = ServerOptions::default();
    let token = callsheet::config::ApiKey::new("a-long-secret-of-the-host").unwrap();
    options.token = Some(token);
    let served = serve(&directory, "", options).await;
    let valid = "authorization: Bearer a-long-secret-of-the-host\r\n";
    let foreign = format!("{valid}origin: http://evil.example\r\n");
    let get = |path: &str, headers: &str| {
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: 0\r\n\r\n")
    };
    let ask = body(&[user("a")]).to_string();
    let named = |name: &str| {
        let tool = json!({"type": "function", "function": {"name": name}});
        with(body(&[user("a")]), json!({"tools": [tool]})).to_string()
    };
    let chosen = json!({"tool_choice": {"type": "function", "function": {"name": "nope"}}});
    let chosen = with(body(&[user("a")]), chosen).to_string();
    for (request, status, kind, param) in [
        (post(PATH, "", &ask), 401, "authentication_error", Value::Null),
        (post(PATH, &foreign, &ask), 403, "permission_error", Value::Null),
        (get("/v1/chat/nothing", valid), 404, "invalid_request_error", Value::Null),
        (get("/v1/chat/completions", valid), 405, "invalid_request_error", Value::Null),
        (get("/v1/models?a=b", valid), 400, "invalid_request_error", Value::Null),
        (get("/v1/responses/x/y/z", valid), 404, "invalid_request_error", Value::Null),
        (
            post(PATH, valid, &named("a b")),
            400,
            "invalid_request_error",
            "tools[0].function.name".into(),
        ),
        (
            post(PATH, valid, &named("quick")),
            400,
            "invalid_request_error",
            "tools[0].function.name".into(),
        ),
        (post(PATH, valid, &chosen), 400, "invalid_request_error", "tool_choice".into()),
    ] {
        let answer = served.send(&request).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["type"]), (status, &json!(kind)), "{answer:?}");
        assert_eq!(error["param"], param, "{answer:?}");
        assert!(error["code"].is_string() && error["message"].is_string());
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    let other = served.send(&get("/v1/sessions/x", "")).await.json();
    assert_eq!(other["error"]["type"], Value::Null);
}

#[tokio::test]
async fn a_chat_goes_on_after_a_run_that_has_failed_or_was_stopped() {
    let directory = HostDirectory::new(json!({"responses": [
        {"status": 401}, {"text": ["Well."]},
        {"calls": [{"name": "waits", "arguments": {"id": "b"}}]}, {"text": ["On."]}]}))
    .await;
    let served = start(&directory, "").await;
    let mut messages = vec![user("Look.")];
    let failed = complete(&served, &body(&messages)).await;
    assert_eq!(failed.status, 502, "{failed:?}");
    let session = failed.header("x-callsheet-session").unwrap().to_owned();
    messages.push(user("Again."));
    let (text, same) = say(&served, &messages).await;
    assert_eq!((text.as_str(), &same), ("Well.", &session));
    messages.extend([assistant("Well."), user("Wait.")]);
    let body = body(&messages);
    let stopped = async {
        directory.control.until_logged("start b").await;
        served.post(&format!("/v1/sessions/{session}/stop"), json!({"mode": "now"})).await
    };
    let (answer, stopped) = futures::future::join(complete(&served, &body), stopped).await;
    assert!(stopped.status < 300, "{stopped:?}");
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (422, &json!("run_stopped")));
    messages.push(user("On."));
    assert_eq!(say(&served, &messages).await, ("On.".to_owned(), session));
    served.shutdown().await;
}

#[tokio::test]
async fn a_form_that_only_the_request_with_results_asks_for_is_named_as_ignored() {
    let directory = HostDirectory::new(json!({"responses": [
        {"calls": [open_file("a.txt")]}, {"text": ["It is open."]}]}))
    .await;
    let served = start(&directory, "").await;
    let asked = with(with_tool(&[user("Open.")]), json!({"stream": false}));
    let first = complete(&served, &asked).await.json();
    let message = first["choices"][0]["message"].clone();
    let id = &message["tool_calls"][0]["id"];
    let result = json!({"role": "tool", "tool_call_id": id, "content": "opened"});
    let messages =
        [json!({"role": "system", "content": "Be kind."}), user("Open."), message, result];
    let typed = json!({"stream": false, "response_format": {"type": "json_object"}});
    let answer = complete(&served, &with(with_tool(&messages), typed)).await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "It is open.");
    let ignored = answer.header("x-callsheet-ignored");
    assert_eq!(ignored, Some("messages[].role=system, response_format"));
    served.shutdown().await;
}

#[tokio::test]
async fn equal_bodies_for_two_sessions_are_two_requests() {
    let directory = HostDirectory::new(json!({"responses": [
        {"calls": [{"name": "waits", "arguments": {"id": "a"}}]}, {"text": ["For Bob."]}]}))
    .await;
    let served = start(&directory, "").await;
    let text = with(body(&[user("go on")]), json!({"stream": true})).to_string();
    let request = |session: &str| post(PATH, &format!("x-callsheet-session: {session}\r\n"), &text);
    let cut = HttpConnection::open(served.addr(), &request("alice")).await;
    directory.control.until_logged("start a").await;
    drop(cut);
    let answer = served.send(&request("bob")).await;
    assert_eq!(answer.header("x-callsheet-session"), Some("bob"));
    assert_eq!(content(&answer.body), "For Bob.");
    let keyed = |session: &str| request(session).replacen("\r\n", "\r\nidempotency-key: k\r\n", 1);
    assert_eq!(served.send(&keyed("carol")).await.status, 200);
    assert_eq!(served.send(&keyed("dave")).await.status, 422);
    directory.control.release("a");
    served.shutdown().await;
}
