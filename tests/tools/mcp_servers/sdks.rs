//! Servers of each SDK: those of `tests/mcp/servers`, which have the same tools, and published ones in Go and Rust.
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use callsheet::model::ModelReply;
use callsheet::record::StopMode;
use callsheet::testing::FakeModel;
use serde_json::{Value, json};

use super::{Service, table};
use crate::folder::{Folder, calling, result, wait_until};
use crate::installed::{Python, is_installed, node, package};

/// A server and what it does that servers of other SDKs do not.
struct Server {
    command: Vec<String>,
    /// True if it speaks the protocol of 2026-07-28.
    is_newest: bool,
    /// The text of a call that adds 2 and 3.
    sum: &'static str,
    /// The text of a call whose tool raises an error with the message "no such row".
    failure: &'static str,
}

fn typescript(version: u8) -> Server {
    let file = format!("{}/tests/mcp/servers/typescript_{version}.mjs", env!("CARGO_MANIFEST_DIR"));
    Server {
        command: vec![node().display().to_string(), file],
        is_newest: version == 2,
        sum: "added\n{\"sum\":5}",
        failure: "no such row",
    }
}

fn python(python: Python, file: &str) -> Server {
    let program = python.program("python").display().to_string();
    let file = format!("{}/tests/mcp/servers/{file}.py", env!("CARGO_MANIFEST_DIR"));
    Server {
        // Without `-B` Python writes compiled files beside the sources.
        command: vec![program, "-B".to_owned(), file],
        is_newest: python == Python::Sdk2,
        sum: "{\n  \"sum\": 5\n}",
        failure: "Error executing tool fail: no such row",
    }
}

/// Returns a command that copies the standard input of the server to the file `sent`.
fn recorded(command: &[String]) -> Vec<String> {
    let script = r#"exec "$@" < <(exec tee -a "$TEST_FOLDER/sent")"#;
    let recorder = ["bash", "-c", script, "recorder"].map(str::to_owned);
    recorder.into_iter().chain(command.iter().cloned()).collect()
}

/// Returns the methods of the messages that were sent to the servers of a folder.
fn sent(folder: &Folder) -> Vec<String> {
    let sent = std::fs::read_to_string(folder.path.join("sent")).unwrap_or_default();
    let messages = sent.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter_map(|message| Some(message["method"].as_str()?.to_owned())).collect()
}

fn has_sent(folder: &Folder, method: &str) -> bool {
    sent(folder).iter().any(|sent| sent == method)
}

/// Uses the server with its newest protocol, and with the handshake of earlier ones.
async fn use_server(server: Server) {
    let ways: &[(bool, &str)] = match server.is_newest {
        true => &[(true, ""), (false, "handshake = \"initialize\"\n")],
        false => &[(false, "")],
    };
    for &(is_newest, keys) in ways {
        let folder = Folder::new("sdk");
        let text = table(&folder, "sdk", &recorded(&server.command), "") + keys;
        use_tools(&folder, &text, &server).await;
        folder.empty().await;
        assert!(has_sent(&folder, "notifications/cancelled"));
        assert_eq!(has_sent(&folder, "initialize"), !is_newest, "{:?}", sent(&folder));
        assert_eq!(has_sent(&folder, "server/discover"), keys.is_empty(), "{:?}", sent(&folder));
    }
}

/// Uses the server over HTTP, with each protocol that it speaks.
async fn use_service(server: Server) {
    let handshakes: &[&str] = match server.is_newest {
        true => &["discover", "initialize"],
        false => &["initialize"],
    };
    for handshake in handshakes {
        let folder = Folder::new("sdk-http");
        let mut command = server.command.clone();
        let service = Service::start_with(&folder, |address| {
            command.push(address.port().to_string());
            command.clone()
        });
        service.is_reachable().await;
        let url = format!("http://{}/mcp", service.address);
        let text = format!("[mcp.sdk]\nurl = {url:?}\nhandshake = {handshake:?}\n");
        use_tools(&folder, &text, &server).await;
    }
}

async fn use_tools(folder: &Folder, text: &str, server: &Server) {
    let text = format!("[agents.default]\nexecution = {{ parallel = 2 }}\n{text}");
    let meet = |name: &str| ("sdk__meet", json!({"name": name}));
    let ((tool, one), (_, two)) = (meet("one"), meet("two"));
    let add = json!({"a": 2, "b": 3});
    let model = FakeModel::replies([
        ModelReply::call("sdk__add", add.clone()),
        ModelReply::text("done"),
        ModelReply::call("sdk__fail", json!({})),
        ModelReply::text("done"),
        ModelReply::call(tool, one).and_call(tool, two),
        ModelReply::text("done"),
        ModelReply::call("sdk__wait", json!({})),
        ModelReply::call("sdk__add", add),
        ModelReply::text("done"),
    ]);
    let host = folder.host(&text, &model).await;
    let session = host.open_session("one").await.unwrap();
    let run = async || session.run("go").await.unwrap();
    assert_eq!(result(&run().await), ("success", server.sum));
    let names = model.requests()[0].tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
    for tool in ["add", "fail", "meet", "wait"] {
        assert!(names.contains(&format!("sdk__{tool}")), "{names:?}");
    }
    assert_eq!(result(&run().await), ("error", server.failure));

    let report = run().await;
    let met: Vec<&str> = report.calls.iter().map(|call| call.result.as_str()).collect();
    assert_eq!(met, ["met one", "met two"]);

    let started = session.start_run("go").await.unwrap();
    wait_until(|| folder.path.join("waiting").exists()).await;
    session.stop(StopMode::Now).await.unwrap();
    assert_eq!(result(&started.report.await.unwrap()).0, "cancelled");
    wait_until(|| folder.path.join("cancelled").exists()).await;
    // The connection goes on.
    assert_eq!(result(&run().await), ("success", server.sum));
    host.shutdown().await;
}

fn python_1() -> Server {
    python(Python::Sdk1, "python_1")
}

fn python_2() -> Server {
    // The SDK keeps the message of the error for itself.
    Server { failure: "Error executing tool fail", ..python(Python::Sdk2, "python_2") }
}

fn fastmcp_4() -> Server {
    let (sum, failure) = ("{\"sum\":5}", "Error calling tool 'fail': no such row");
    Server { sum, failure, ..python(Python::Sdk2, "fastmcp_4") }
}

#[tokio::test]
async fn servers_of_the_typescript_sdk_1_and_2() {
    if is_installed() {
        use_server(typescript(1)).await;
        use_server(typescript(2)).await;
    }
}

#[tokio::test]
async fn a_server_of_the_python_sdk_1() {
    if is_installed() {
        use_server(python_1()).await;
        use_service(python_1()).await;
    }
}

#[tokio::test]
async fn a_server_of_the_python_sdk_2() {
    if is_installed() {
        use_server(python_2()).await;
        use_service(python_2()).await;
    }
}

#[tokio::test]
async fn a_server_of_fastmcp_4() {
    if is_installed() {
        use_server(fastmcp_4()).await;
        use_service(fastmcp_4()).await;
    }
}

/// A published server.
struct Published {
    command: Vec<String>,
    is_newest: bool,
    /// Calls, each with its status and a part of its result.
    calls: Vec<(&'static str, Value, &'static str, &'static str)>,
}

fn context7() -> Published {
    let file = package("@upstash/context7-mcp/dist/index.js");
    let wrong = json!({"libraryId": 5, "query": "x"});
    Published {
        command: [node(), file].map(|path| path.display().to_string()).to_vec(),
        is_newest: true,
        // Its tools need a network, so this call is one that the host refuses.
        calls: vec![("query-docs", wrong, "error", "libraryId")],
    }
}

fn kubernetes(folder: &Folder) -> Published {
    let cluster = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "none",
        "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
        "users": [{"name": "none", "user": {}}],
    });
    let file = folder.path.join("cluster.json");
    std::fs::write(&file, cluster.to_string()).unwrap();
    let platform = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let name = format!("kubernetes-mcp-server-linux-{platform}");
    let program = package(&format!("{name}/bin/{name}"));
    Published {
        command: vec![
            program.display().to_string(),
            "--kubeconfig".to_owned(),
            file.display().to_string(),
        ],
        is_newest: true,
        calls: vec![
            ("configuration_view", json!({}), "success", "http://127.0.0.1:9"),
            ("namespaces_list", json!({}), "error", "connection refused"),
        ],
    }
}

fn cortex() -> Published {
    let program = package("@temporal-cortex/cortex-mcp-linux-x64/bin/cortex-mcp");
    let day = json!({"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"});
    let wrong = json!({"datetime": "nonsense", "target_timezone": "Mars"});
    Published {
        command: vec![program.display().to_string()],
        is_newest: false,
        calls: vec![
            ("compute_duration", day, "success", "86400"),
            ("convert_timezone", wrong, "error", "Invalid datetime"),
        ],
    }
}

fn vaulttools(folder: &Folder) -> Published {
    let program = package("@vaulttools/mcp-linux-x64/bin/vaulttools-mcp");
    let note = folder.path.join("note");
    std::fs::write(&note, "hello").unwrap();
    let tool = "vaulttools_text_base64_encode";
    Published {
        command: vec![
            program.display().to_string(),
            "--allowed-dir".to_owned(),
            folder.path.display().to_string(),
        ],
        is_newest: false,
        calls: vec![
            (tool, json!({"path": note}), "success", "note_base64.txt"),
            (tool, json!({"path": "/etc/passwd"}), "error", "Access denied"),
        ],
    }
}

#[tokio::test]
async fn published_servers_in_go_and_rust_and_of_the_typescript_sdk_2() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new("published");
    let mut servers = vec![context7(), kubernetes(&folder)];
    // They are published for this platform only.
    if cfg!(target_arch = "x86_64") {
        servers.extend([cortex(), vaulttools(&folder)]);
    }
    for Published { command, is_newest, calls } in servers {
        let text = table(&folder, "real", &recorded(&command), "");
        for (tool, arguments, status, part) in calls {
            let tool = format!("real__{tool}");
            let host = folder.host(&text, &calling([(&tool, arguments)])).await;
            let report = host.open_session("one").await.unwrap().run("go").await.unwrap();
            let (seen, answer) = result(&report);
            assert!(seen == status && answer.contains(part), "{tool}: {seen}: {answer}");
            host.shutdown().await;
        }
        folder.empty().await;
        assert_eq!(sent(&folder)[0], "server/discover");
        assert_eq!(has_sent(&folder, "initialize"), !is_newest, "{command:?}: {:?}", sent(&folder));
        std::fs::remove_file(folder.path.join("sent")).unwrap();
    }
}
