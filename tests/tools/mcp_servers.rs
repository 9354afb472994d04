//! Published MCP servers: of npm over standard input and output and over HTTP, and of PyPI; and servers of each SDK.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

mod sdks;

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::folder::{Folder, calling, result, wait_until};
use crate::installed::{Python, is_installed, node, package};
use callsheet::prelude::*;
use callsheet::{ResultPart, StartedRun};
use serde_json::json;

const EVERYTHING: &str = "@modelcontextprotocol/server-everything/dist/index.js";

/// Returns the command of a server in a file of npm.
fn of_npm(file: &str, arguments: &[&str]) -> Vec<String> {
    let command = [node(), package(file)].map(|path| path.display().to_string());
    command.into_iter().chain(arguments.iter().map(|&argument| argument.to_owned())).collect()
}

fn table(folder: &Folder, name: &str, command: &[String], environment: &str) -> String {
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    folder.server(name, &command, environment)
}

fn filesystem(folder: &Folder) -> String {
    let root = folder.path.join("root");
    std::fs::create_dir_all(&root).unwrap();
    let file = "@modelcontextprotocol/server-filesystem/dist/index.js";
    let command = of_npm(file, &[&root.display().to_string()]);
    table(folder, "files", &command, "") + "trust = \"annotations\"\n"
}

fn time(folder: &Folder) -> String {
    table(folder, "time", &[Python::Sdk2.program("mcp-server-time").display().to_string()], "")
}

/// A server over HTTP, which is killed at the end.
struct Service {
    process: Child,
    address: SocketAddr,
}

impl Service {
    fn start(folder: &Folder) -> Self {
        Self::start_with(folder, |_| of_npm(EVERYTHING, &["streamableHttp"]))
    }

    /// Starts the command for a free address.
    fn start_with(folder: &Folder, command: impl FnOnce(SocketAddr) -> Vec<String>) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Self::start_at(folder, free, &command(free))
    }

    fn start_at(folder: &Folder, address: SocketAddr, command: &[String]) -> Self {
        let process = Command::new(&command[0])
            .args(&command[1..])
            .env("PORT", address.port().to_string())
            .env("TEST_FOLDER", &folder.path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, address }
    }

    async fn is_reachable(&self) {
        wait_until(|| std::net::TcpStream::connect(self.address).is_ok()).await;
    }

    /// Returns its table, as the server `all`.
    fn table(&self) -> String {
        format!("[mcp.all]\nurl = \"http://{}/mcp\"\n", self.address)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Uses the server `everything`, whose table is `text`.
async fn use_everything(folder: &Folder, text: &str) {
    let operation = json!({"duration": 0.4, "steps": 4});
    let model = calling([
        ("all__echo", json!({"message": "hello"})),
        ("all__get-tiny-image", json!({})),
        ("all__get-structured-content", json!({"location": "Chicago"})),
        ("all__get-resource-links", json!({"count": 2})),
        ("all__get-resource-reference", json!({"resourceType": "Text", "resourceId": -1})),
        ("all__trigger-long-running-operation", operation),
    ]);
    let host = folder.host(text, &model).await;
    let sessions =
        [host.open_session("one").await.unwrap(), host.open_session("two").await.unwrap()];
    let [one, two] = &sessions;
    assert_eq!(result(&one.run("go").await.unwrap()), ("success", "Echo: hello"));

    let report = two.run("go").await.unwrap();
    let content = &report.calls[0].content;
    assert!(
        matches!(&content[..], [ResultPart::Text { .. }, ResultPart::Image(image), ResultPart::Text { .. }]
            if format!("{image:?}").contains("image/png")),
        "{content:?}"
    );

    let report = one.run("go").await.unwrap();
    let (status, text) = result(&report);
    assert_eq!(status, "success", "{text}");
    let weather: serde_json::Value = serde_json::from_str(text).unwrap();
    assert!(weather["temperature"].is_number(), "{text}");

    let report = two.run("go").await.unwrap();
    let links = report.calls[0].content.iter();
    assert_eq!(links.filter(|part| matches!(part, ResultPart::Resource(_))).count(), 2);
    let report = one.run("go").await.unwrap();
    assert_eq!(result(&report).0, "error");
    assert!(result(&report).1.contains("positive integer"), "{}", result(&report).1);

    let mut run = two.start_run("go").await.unwrap();
    let mut progress = Vec::new();
    while let Some(event) = run.next_event().await.unwrap() {
        if let RunEvent::CallProgressed { text, .. } = event {
            progress.push(text);
        }
    }
    assert_eq!(progress, ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]);
    let report = run.report.await.unwrap();
    assert!(result(&report).1.contains("operation completed"), "{report:?}");
    host.shutdown().await;
}

/// Answers the questions of the server `everything`, whose table is `text`.
async fn answer_everything(folder: &Folder, text: &str) {
    let form = ("all__trigger-elicitation-request", json!({}));
    let page = json!({"url": "https://example.com/x", "message": "Look.", "elicitationId": "1"});
    let page = ("all__trigger-url-elicitation", page);
    let host = folder.host(text, &calling([form.clone(), form, page])).await;
    let session = host.open_session("one").await.unwrap();
    let asked = async || {
        let mut run = session.start_run("go").await.unwrap();
        loop {
            let event = run.next_event().await.unwrap().unwrap();
            if let RunEvent::ApprovalRequested(question) = event {
                return (run, question);
            }
        }
    };
    let answered = async |run: StartedRun| result(&run.report.await.unwrap()).1.to_owned();

    let (run, question) = asked().await;
    let wrong = question.answer(json!({"name": "Ada", "integer": 1000})).await.unwrap_err();
    assert!(wrong.to_string().contains("/integer"), "{wrong}");
    question.answer(json!({"name": "Ada", "integer": 7})).await.unwrap();
    let text = answered(run).await;
    assert!(text.contains("- Name: Ada") && text.contains("- Favorite Integer: 7"), "{text}");
    // The defaults of the form.
    assert!(text.contains("Monica") && text.contains("fish-1"), "{text}");

    let (run, question) = asked().await;
    question.reject("no").await.unwrap();
    let text = answered(run).await;
    assert!(text.contains("User declined"), "{text}");

    let (run, question) = asked().await;
    let shown = format!("{:?}", question.approval.question);
    assert!(shown.contains("https://example.com/x"), "{shown}");
    question.approve().await.unwrap();
    let text = answered(run).await;
    assert!(text.contains("User completed the URL elicitation"), "{text}");
    host.shutdown().await;
}

#[tokio::test]
async fn questions_of_everything_are_answered() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new("asking");
    answer_everything(&folder, &table(&folder, "all", &of_npm(EVERYTHING, &[]), "")).await;
    folder.empty().await;
    let service = Service::start(&folder);
    service.is_reachable().await;
    answer_everything(&folder, &service.table()).await;
}

#[tokio::test]
async fn everything_is_used_over_standard_input_and_output() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new("everything");
    use_everything(&folder, &table(&folder, "all", &of_npm(EVERYTHING, &[]), "")).await;
    folder.empty().await;
}

#[tokio::test]
async fn everything_is_used_over_http() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new("everything-http");
    let service = Service::start(&folder);
    service.is_reachable().await;
    use_everything(&folder, &service.table()).await;
}

#[tokio::test]
async fn a_restarted_service_answers_again() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new("restarted");
    let service = Service::start(&folder);
    service.is_reachable().await;
    let echo = ("all__echo", json!({"message": "hello"}));
    let model = calling([(); 20].map(|()| echo.clone()));
    let host = folder.host(&service.table(), &model).await;
    let session = host.open_session("one").await.unwrap();
    assert_eq!(result(&session.run("go").await.unwrap()).0, "success");
    let address = service.address;
    drop(service);
    let command = of_npm(EVERYTHING, &["streamableHttp"]);
    let service = Service::start_at(&folder, address, &command);
    service.is_reachable().await;
    // The new process does not know the session of the protocol.
    loop {
        let report = session.run("go").await.unwrap();
        let (status, text) = result(&report);
        if status == "success" {
            break;
        }
        let is_expected = text.contains("No valid session ID") || text.contains("was not sent");
        assert!(status == "error" && is_expected, "{status}: {text}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    host.shutdown().await;
}

#[tokio::test]
async fn files_are_used_inside_the_root_and_refused_outside() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new("files");
    let text = filesystem(&folder);
    let file = |name: &str| folder.path.join(name).display().to_string();
    std::fs::write(file("secret"), "outside").unwrap();
    std::os::unix::fs::symlink(file("secret"), file("root/link")).unwrap();
    let inside = file("root/note");
    let model = calling([
        ("files__write_file", json!({"path": inside, "content": "three\nlines\n"})),
        ("files__read_text_file", json!({"path": inside, "head": 1})),
        ("files__read_text_file", json!({"path": file("secret")})),
        ("files__read_text_file", json!({"path": file("root/../secret")})),
        ("files__read_text_file", json!({"path": file("root/link")})),
    ]);
    let host = folder.host(&text, &model).await;
    let session = host.open_session("one").await.unwrap();
    assert_eq!(result(&session.run("go").await.unwrap()).0, "success");
    assert_eq!(std::fs::read_to_string(inside).unwrap(), "three\nlines\n");
    assert_eq!(result(&session.run("go").await.unwrap()), ("success", "three"));
    for _ in 0..3 {
        let report = session.run("go").await.unwrap();
        let (status, text) = result(&report);
        assert_eq!(status, "error", "{text}");
        assert!(text.contains("Access denied") && !text.contains("outside\n"), "{text}");
    }
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn the_memory_is_shared_by_sessions_and_outlives_the_host() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new("memory");
    let memory = folder.path.join("memory.json").display().to_string();
    let environment = format!("MEMORY_FILE_PATH = {memory:?}");
    // It starts the server as its grandchild.
    let prefix = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp");
    let command = ["npx", "--prefix", prefix, "--no", "mcp-server-memory"];
    let text = folder.server("memory", &command, &environment);
    let entity = json!({"name": "Ada", "entityType": "person", "observations": ["likes tea"]});
    let search = ("memory__search_nodes", json!({"query": "tea"}));
    let model = calling([
        ("memory__create_entities", json!({"entities": [entity]})),
        search.clone(),
        search,
    ]);
    let host = folder.host(&text, &model).await;
    let one = host.open_session("one").await.unwrap();
    assert_eq!(result(&one.run("go").await.unwrap()).0, "success");
    let two = host.open_session("two").await.unwrap();
    assert!(result(&two.run("go").await.unwrap()).1.contains("Ada"));
    assert!(folder.processes() > 2, "npx, a shell or the server is missing");
    host.shutdown().await;
    folder.empty().await;

    let host = folder.host(&text, &model).await;
    let one = host.open_session("one").await.unwrap();
    assert!(result(&one.run("go").await.unwrap()).1.contains("Ada"));
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_server_in_python_answers_and_refuses() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new("time");
    let convert = |zone: &str| {
        let arguments =
            json!({"source_timezone": "Asia/Tokyo", "time": "12:30", "target_timezone": zone});
        ("time__convert_time", arguments)
    };
    let model = calling([convert("Etc/UTC"), convert("Mars/Base")]);
    let host = folder.host(&time(&folder), &model).await;
    let session = host.open_session("one").await.unwrap();
    let report = session.run("go").await.unwrap();
    assert_eq!(result(&report).0, "success");
    assert!(result(&report).1.contains("03:30:00+00:00"), "{}", result(&report).1);
    let report = session.run("go").await.unwrap();
    assert_eq!(result(&report).0, "error");
    assert!(result(&report).1.contains("Mars/Base"), "{}", result(&report).1);
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn the_command_line_lists_and_calls_tools_of_all_servers() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new("cli");
    let text =
        table(&folder, "all", &of_npm(EVERYTHING, &[]), "") + &filesystem(&folder) + &time(&folder);
    let (succeeded, listed) = folder.tools(&text, &["list"]);
    assert!(succeeded, "{listed}");
    for tool in ["all__get-sum", "files__list_directory", "time__convert_time"] {
        assert!(listed.contains(tool), "{tool}: {listed}");
    }
    // A tool that can only run as a task.
    assert_eq!(listed.matches("left out").count(), 1, "{listed}");
    assert!(listed.contains("left out: simulate-research-query: "), "{listed}");
    assert!(!listed.contains("down"), "{listed}");
    let (succeeded, printed) = folder.tools(&text, &["call", "all__get-sum", "a=2", "b=3"]);
    assert!(succeeded && printed.contains("The sum of 2 and 3 is 5."), "{printed}");
    let arguments = ["call", "files__list_directory", "path=/"];
    let (succeeded, printed) = folder.tools(&text, &arguments);
    assert!(!succeeded && printed.contains("Access denied"), "{printed}");
    folder.empty().await;
}

#[tokio::test]
async fn no_server_survives_a_host_that_is_killed_during_a_call() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new("killed");
    let text = table(&folder, "all", &of_npm(EVERYTHING, &[]), "") + &time(&folder);
    std::fs::write(folder.path.join("callsheet.toml"), text).unwrap();
    let mut host = Command::new(env!("CARGO_BIN_EXE_callsheet"))
        .args(["tools", "call", "all__trigger-long-running-operation", "duration=60", "steps=600"])
        .current_dir(&folder.path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until(|| folder.processes() >= 2).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    host.kill().unwrap();
    host.wait().unwrap();
    folder.empty().await;
}
