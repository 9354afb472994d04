//! Answers of MCP servers, and the text of them that the model reads. The process of a server is this test's own binary, which
//! runs [`server_process`].
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::time::Duration;

use crate::folder::{Folder, calling, result, wait_until};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use callsheet::model::ModelReply;
use callsheet::prelude::*;
use callsheet::testing::FakeModel;
use serde_json::{Value, json};

/// The process of a server, if the variable `TEST_FOLDER` is set. A call with the argument `habit` is answered when it
/// is cancelled, as a library does it that has this habit.
#[test]
fn server_process() {
    let Ok(folder) = std::env::var("TEST_FOLDER") else { return };
    let (mut habit, mut running) = (String::new(), Value::Null);
    for line in std::io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let of_call = message["params"]["arguments"]["habit"].as_str();
        let answer = match (message["method"].as_str().unwrap_or_default(), of_call) {
            ("tools/call", Some(of_call)) => {
                (habit, running) = (of_call.to_owned(), message["id"].clone());
                if habit == "ends" {
                    std::process::exit(1);
                }
                std::fs::write(format!("{folder}/called"), "").unwrap();
                while habit == "blocks" && !Path::new(&format!("{folder}/stopped")).exists() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                None
            }
            ("notifications/cancelled", _) => {
                assert_eq!(message["params"]["requestId"], running);
                match &*habit {
                    "error at once" => {
                        let error = json!({"code": 0, "message": "Request cancelled"});
                        Some(json!({"jsonrpc": "2.0", "id": running, "error": error}).to_string())
                    }
                    "late result" => {
                        let result = json!({"content": [{"type": "text", "text": "late"}]});
                        Some(json!({"jsonrpc": "2.0", "id": running, "result": result}).to_string())
                    }
                    _ => None,
                }
            }
            _ => answer(&message),
        };
        if let Some(answer) = answer {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{answer}").unwrap();
            out.flush().unwrap();
        }
    }
    std::process::exit(0);
}

/// Returns the text of the answer to a message. The argument `raw` of a call is the text of its result. Else the result
/// says how long the argument `measure` is.
fn answer(message: &Value) -> Option<String> {
    let id = message.get("id")?;
    let member = match message["method"].as_str().unwrap() {
        "initialize" => format!(
            r#""result": {}"#,
            json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "resources": {}},
                "serverInfo": {"name": "test", "version": "1"}, "instructions": instructions(),
            })
        ),
        "resources/list" => format!(r#""result": {}"#, resources(&message["params"]["cursor"])),
        "resources/templates/list" => {
            let template = json!({"uriTemplate": "demo://{name}", "name": "any"});
            format!(r#""result": {}"#, json!({"resourceTemplates": [template]}))
        }
        "resources/read" => read(&message["params"]["uri"]),
        "tools/list" => format!(r#""result": {{"tools": [{}]}}"#, tools().join(",")),
        "tools/call" => {
            let arguments = &message["params"]["arguments"];
            let measured = || {
                let text = format!("{} bytes", arguments["measure"].to_string().len());
                json!({"content": [{"type": "text", "text": text}]}).to_string()
            };
            let raw = arguments["raw"].as_str().map_or_else(measured, str::to_owned);
            format!(r#""result": {raw}"#)
        }
        _ => r#""error": {"code": -32601, "message": "no"}"#.to_owned(),
    };
    Some(format!(r#"{{"jsonrpc": "2.0", "id": {id}, {member}}}"#))
}

/// Returns the instructions of the server: the text of a file.
fn instructions() -> Option<String> {
    let folder = std::env::var("TEST_FOLDER").ok()?;
    std::fs::read_to_string(format!("{folder}/instructions")).ok()
}

/// Returns a page of the list of resources.
fn resources(cursor: &Value) -> Value {
    match cursor.as_str() {
        None => {
            let first =
                json!({"uri": "demo://a", "name": "a", "mimeType": "text/plain", "size": 9});
            json!({"resources": [first], "nextCursor": "2"})
        }
        Some(_) => json!({"resources": [{"uri": "demo://b", "name": "b"}]}),
    }
}

/// Returns the member of the answer with the content of a resource.
fn read(uri: &Value) -> String {
    if uri != "demo://a" {
        return r#""error": {"code": -32002, "message": "no such resource"}"#.to_owned();
    }
    let text = json!({"uri": uri, "mimeType": "text/plain", "text": "the notes"});
    let image = json!({"uri": "demo://a/b.png", "mimeType": "image/png", "blob": "iVBORw=="});
    format!(r#""result": {}"#, json!({"contents": [text, image]}))
}

fn tools() -> [String; 4] {
    let deep = format!(r#"{}{{"type": "string"}}{}"#, r#"{"items": "#.repeat(300), "}".repeat(300));
    [
        r#"{"name": "act", "description": "Half: \ud83d", "inputSchema": {"type": "object", "default": NaN}}"#.to_owned(),
        r#"{"name": "later", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}"#.to_owned(),
        r#"{"name": "either", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}}"#.to_owned(),
        format!(r#"{{"name": "deep", "inputSchema": {{"type": "object", "properties": {{"a": {deep}}}}}}}"#),
    ]
}

/// Returns the table of the server that is a process.
fn process(folder: &Folder) -> String {
    let binary = std::env::current_exe().unwrap().display().to_string();
    folder.server("odd", &[&binary, "--exact", "mcp_answers::server_process", "--nocapture"], "")
}

/// Starts the server at a URL, and returns its table. With `events` it answers with event streams.
#[expect(clippy::disallowed_methods, reason = "the service ends with the test")]
async fn service(events: bool) -> String {
    let respond = move |Json(message): Json<Value>| async move {
        let Some(answer) = answer(&message) else {
            return StatusCode::ACCEPTED.into_response();
        };
        let (media_type, body): (_, String) = match events {
            true => ("text/event-stream", format!("data: {answer}\n\n")),
            false => ("application/json", answer),
        };
        Response::builder().header("content-type", media_type).body(body.into()).unwrap()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(
        async move { axum::serve(listener, Router::new().route("/mcp", post(respond))).await },
    );
    format!("[mcp.odd]\nurl = \"http://{address}/mcp\"\n")
}

fn call(raw: &str) -> FakeModel {
    calling([("odd__act", json!({"raw": raw}))])
}

const NEARLY_JSON: &str = r#"{"content": [{"type": "text", "text": "half \ud83d and 1e999"}],
    "structuredContent": {"mean": NaN, "name": "half \ud83d and 1e999"}}"#;

#[tokio::test]
async fn an_answer_that_is_nearly_json_is_what_the_server_says() {
    let expected = "half \u{fffd} and 1e999\n[the server's answer was not valid JSON: characters that are not valid \
                    became U+FFFD; numbers that JSON does not have (NaN, too large) became null]";
    let folder = Folder::new("nearly");
    for table in [process(&folder), service(true).await, service(false).await] {
        let model = call(&NEARLY_JSON.replace('\n', " "));
        let host = folder.host(&table, &model).await;
        let report = host.open_session("one").await.unwrap().run("go").await.unwrap();
        assert_eq!(result(&report), ("success", expected), "{table}");
        host.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_cannot_be_offered_takes_only_itself_away() {
    let folder = Folder::new("left-out");
    for table in [process(&folder), service(true).await, service(false).await] {
        let (ok, printed) = folder.tools(&table, &["list"]);
        assert!(ok, "{printed}");
        assert!(printed.contains("odd__act") && printed.contains("odd__either"), "{printed}");
        for line in [
            "left out: later: it can only run as a task, which the host does not offer",
            "left out: deep: its definition is nested more than 100 levels deep",
        ] {
            assert!(printed.contains(line), "{line}\n{printed}");
        }
    }
}

#[tokio::test]
async fn a_call_that_was_cancelled_is_cancelled_whatever_the_server_answers() {
    for habit in ["no answer", "error at once", "late result", "blocks"] {
        let folder = Folder::new("cancelled");
        let next = r#"{"content": [{"type": "text", "text": "next"}]}"#;
        // The first run ends before its second request.
        let model = FakeModel::replies([
            ModelReply::call("odd__act", json!({ "habit": habit })),
            ModelReply::call("odd__act", json!({ "raw": next })),
            ModelReply::text("done"),
        ]);
        let host = folder.host(&process(&folder), &model).await;
        let session = host.open_session("one").await.unwrap();
        let run = session.start_run("go").await.unwrap();
        wait_until(|| folder.path.join("called").exists()).await;
        session.stop(StopMode::Now).await.unwrap();
        let report = run.report.await.unwrap();
        assert_eq!(result(&report).0, "cancelled", "{habit}");
        std::fs::write(folder.path.join("stopped"), "").unwrap();
        // The same process answers the next call, and not with the answer of the first.
        let report = session.run("go").await.unwrap();
        assert_eq!(result(&report), ("success", "next"), "{habit}");
        host.shutdown().await;
        folder.empty().await;
    }
}

#[tokio::test]
async fn the_model_reads_a_value_that_the_text_does_not_hold() {
    let rows: Vec<Value> = (0..1_000).map(|at| json!({"name": format!("row {at}")})).collect();
    let raw = |rows: &[Value]| {
        let content = json!([{"type": "text", "text": "Search executed."}]);
        json!({"content": content, "structuredContent": {"rows": rows}}).to_string()
    };
    let folder = Folder::new("value");
    let reference = "$VAR_REF{{t3a1c0.structured}}";
    let model = calling([
        ("odd__act", json!({"raw": raw(&rows[..2])})),
        ("odd__act", json!({"raw": raw(&rows)})),
        ("read_var", json!({"id": reference, "limit": 40})),
        ("read_var", json!({"id": "t1a1c0.structured"})),
        ("odd__act", json!({ "measure": reference })),
        ("read_var", json!({"id": "t9a1c0.arguments"})),
        ("read_var", json!({"id": "t5a1c0.structured"})),
        ("read_var", json!({"id": "t77a1c0.structured"})),
    ]);
    let host = folder.host(&process(&folder), &model).await;
    let session = host.open_session("one").await.unwrap();
    let mut results = Vec::new();
    for _ in 0..8 {
        let report = session.run("go").await.unwrap();
        let (_, text) = result(&report);
        results.push(text.to_owned());
    }
    let both = r#"{"rows":[{"name":"row 0"},{"name":"row 1"}]}"#;
    assert_eq!(results[0], format!("Search executed.\n{both}"));
    assert_eq!(results[1], format!("Search executed.\n[more as JSON, 18900 bytes: {reference}]"));
    let part = r#"{"rows":[{"name":"row 0"},{"name":"row 1"#;
    let expected = format!("[{reference}: bytes 0 to 40 of 18900; next offset: 40]\n{part}");
    assert_eq!(results[2], expected);
    let expected = format!("[$VAR_REF{{{{t1a1c0.structured}}}}: bytes 0 to 44 of 44]\n{both}");
    assert_eq!(results[3], expected);
    assert_eq!(results[4], "18900 bytes");
    let expected = "Error: $VAR_REF{{t5a1c0.structured}}: the result has no structured value";
    assert_eq!(results[6], expected);
    let expected = "Error: $VAR_REF{{t77a1c0.structured}}: the session has no such result";
    assert_eq!(results[7], expected);
    host.shutdown().await;
}

/// Returns the system texts of all requests.
fn system_texts(model: &FakeModel) -> Vec<String> {
    model.requests().into_iter().map(|request| request.system.unwrap_or_default()).collect()
}

#[tokio::test]
async fn a_session_keeps_the_instructions_of_its_first_run() {
    let block = |text: &str| {
        format!(
            "[instructions of the server odd, for the use of its tools odd__*]\n{text}\n\
             [end of the instructions of odd]"
        )
    };
    let folder = Folder::new("instructions");
    let set = |text: &str| std::fs::write(folder.path.join("instructions"), text).unwrap();
    set("Call act first.\n");
    let ends = ModelReply::call("odd__act", json!({"habit": "ends"}));
    let done = || ModelReply::text("done");
    let model = FakeModel::replies(std::iter::once(ends).chain((0..10_000).map(|_| done())));
    let table = format!("{}[agents.default]\nsystem = \"Be brief.\"\n", process(&folder));
    let host = folder.host(&table, &model).await;
    let first = host.open_session("first").await.unwrap();
    let report = first.run("go").await.unwrap();
    assert_eq!(result(&report).0, "unknown");
    // The server that has ended is started again, with other instructions.
    set("Call b first.");
    let mut second = host.open_session("0").await.unwrap();
    for number in 1.. {
        second.run("go").await.unwrap();
        if !system_texts(&model).last().unwrap().contains("act first") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        second = host.open_session(number.to_string()).await.unwrap();
    }
    first.run("on").await.unwrap();
    let texts = system_texts(&model);
    let own = "Be brief.\n\n";
    assert_eq!(texts[0], format!("{own}{}", block("Call act first.")));
    assert_eq!(texts[1], texts[0]);
    assert_eq!(*texts.last().unwrap(), texts[0]);
    assert_eq!(texts[texts.len() - 2], format!("{own}{}", block("Call b first.")));
    let request = RunRequest::from("go");
    let request = request.with(|new| new.overrides.system = Some("Other.".to_owned()));
    first.run(request).await.unwrap();
    let expected = format!("Other.\n\n{}", block("Call act first."));
    assert_eq!(*system_texts(&model).last().unwrap(), expected);
    host.shutdown().await;
    folder.empty().await;
}

#[test]
fn instructions_are_listed_and_pinned_and_can_be_left_out() {
    let folder = Folder::new("pinned");
    let set = |text: &str| std::fs::write(folder.path.join("instructions"), text).unwrap();
    let table = process(&folder);
    set("Call act\nfirst.");
    let (_, printed) = folder.tools(&table, &["list"]);
    let line = "  instructions (15 characters): Call act first.\n";
    assert!(printed.contains(line), "{printed}");
    let (_, printed) = folder.tools(&format!("{table}instructions = false\n"), &["list"]);
    assert!(!printed.contains("instructions"), "{printed}");

    set("Call \u{202e}act\u{9b}.");
    let (_, printed) = folder.tools(&table, &["list", "--json"]);
    assert!(!printed.contains(['\u{202e}', '\u{9b}']), "{printed}");
    let listed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(listed["servers"][0]["instructions"], "Call \u{202e}act\u{9b}.");

    set("Call act\nfirst.");
    let pinned = format!("{table}pin = \"require\"\n");
    let (ok, printed) = folder.tools(&table, &["pin"]);
    assert!(!ok && printed.contains("odd: + (instructions): Call act first.\n"), "{printed}");
    let (ok, printed) = folder.tools(&pinned, &["pin", "--accept"]);
    assert!(ok, "{printed}");
    assert_eq!(folder.tools(&pinned, &["pin"]), (true, "no difference\n".to_owned()));
    set("Send all.");
    let (ok, printed) = folder.tools(&pinned, &["pin"]);
    let difference = r#"text was "Call act\nfirst." and is "Send all.""#;
    let line = format!("odd: ~ (instructions): {difference}\n");
    assert!(!ok && printed.contains(&line), "{printed}");
    let (_, printed) = folder.tools(&pinned, &["list"]);
    let line = format!("left out: (instructions): it has changed: {difference}\n");
    assert!(printed.contains(&line) && !printed.contains("characters)"), "{printed}");
    let (_, printed) = folder.tools(&pinned.replace("require", "warn"), &["list"]);
    assert!(printed.contains("  instructions (9 characters): Send all.\n"), "{printed}");
    let line = format!("warning: (instructions): it has changed: {difference}\n");
    assert!(printed.contains(&line), "{printed}");
}

#[tokio::test]
async fn resources_are_listed_and_read_with_one_tool() {
    let folder = Folder::new("resources");
    let link = json!({"type": "resource_link", "uri": "demo://a", "name": "a"});
    let raw = json!({"content": [link]}).to_string();
    let reading = "odd__read_resource";
    let expected = [
        (
            ("odd__act", json!({ "raw": raw })),
            "[resource a, demo://a]\n[odd__read_resource reads what is linked, by its URI]",
        ),
        (
            (reading, json!({"uri": "demo://a"})),
            "[resource a, text/plain, 9 bytes, demo://a]\nthe notes\n[image image/png, 4 bytes]",
        ),
        ((reading, json!({"uri": "demo://c"})), "Error: no such resource (code -32002)"),
        (
            (reading, json!({})),
            "demo://a  a (text/plain, 9 bytes)\n[more with cursor \"resources:2\"]\n",
        ),
        ((reading, json!({"cursor": "resources:2"})), "demo://b  b\ndemo://{name}  any\n"),
        (
            (reading, json!({"cursor": "2"})),
            "Error: cursor: must be the cursor at the end of a list of this server",
        ),
    ];
    for table in [process(&folder), service(true).await, service(false).await] {
        let model = calling(expected.clone().map(|(call, _)| call));
        let host = folder.host(&table, &model).await;
        let session = host.open_session("one").await.unwrap();
        for (call, expected) in &expected {
            let report = session.run("go").await.unwrap();
            assert_eq!(result(&report).1, *expected, "{call:?}");
        }
        host.shutdown().await;
    }
}

#[test]
fn the_tool_that_reads_resources_can_be_excluded_and_has_no_effects() {
    let folder = Folder::new("excluded");
    let (_, printed) = folder.tools(&process(&folder), &["list"]);
    let line = printed.lines().find(|line| line.starts_with("odd__read_resource ")).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>()[1..5], ["mcp", "none", "on_seal", "no"]);
    let excluding = format!("{}exclude = [\"read_resource\"]\n", process(&folder));
    let (_, printed) = folder.tools(&excluding, &["list"]);
    assert!(!printed.contains("read_resource"), "{printed}");
}
