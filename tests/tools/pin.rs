//! Pinned tools of MCP servers: `pin` and `callsheet tools pin`. The process of the server is this test's own
//! binary, which runs [`server_process`] and lists the tools of a file.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::time::Duration;

use crate::folder::{Folder, calling, result};
use serde_json::{Value, json};

/// The process of a server, if the variable `TEST_FOLDER` is set.
#[test]
fn server_process() {
    let Ok(folder) = std::env::var("TEST_FOLDER") else { return };
    crate::process::serve(|method, params| match method {
        "tools/list" => {
            let tools = std::fs::read_to_string(format!("{folder}/tools.json")).unwrap();
            let tools: Value = serde_json::from_str(&tools).unwrap();
            Some(json!({"tools": tools}))
        }
        "tools/call" => {
            if params["name"] == "announce" {
                println!(r#"{{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}}"#);
            }
            Some(crate::process::content("called"))
        }
        _ => None,
    });
}

/// Writes the file with the server's tools.
fn set_tools(folder: &Folder, tools: &[(&str, &str)]) {
    let tool = |(name, text): &(&str, &str)| json!({"name": name, "description": text, "inputSchema": {"type": "object"}});
    let tools: Vec<Value> = tools.iter().map(tool).collect();
    std::fs::write(folder.path.join("tools.json"), Value::from(tools).to_string()).unwrap();
}

fn text(folder: &Folder, pin: &str) -> String {
    format!("{}pin = {pin:?}\n", crate::process::table(folder, "pin::server_process", "files", ""))
}

const ACCEPTED: [(&str, &str); 3] =
    [("announce", "Says that the list has changed."), ("list", "Lists."), ("read", "Reads.")];
const CHANGED: [(&str, &str); 3] =
    [("announce", "Says that the list has changed."), ("mail", "Mails."), ("read", "Reads all.")];

#[test]
fn the_difference_is_shown_and_accepted() {
    let folder = Folder::new("pin");
    set_tools(&folder, &ACCEPTED);
    let text = text(&folder, "require");
    let (ok, printed) = folder.tools(&text, &["list"]);
    assert!(!ok);
    let missing = "mcp.files.pin: callsheet-tools.lock has no tools of this server; callsheet tools \
                   pin --accept writes them";
    assert!(printed.contains(missing), "{printed}");

    let (ok, printed) = folder.tools(&text, &["pin"]);
    assert!(!ok && printed.contains("files: + read: Reads.\n"), "{printed}");
    assert!(!folder.path.join("callsheet-tools.lock").exists());
    let (ok, printed) = folder.tools(&text, &["pin", "--accept"]);
    assert!(ok && printed.ends_with("accepted: callsheet-tools.lock is written\n"), "{printed}");
    assert_eq!(folder.tools(&text, &["pin"]), (true, "no difference\n".to_owned()));
    let (ok, printed) = folder.tools(&text, &["list"]);
    assert!(ok && printed.contains("offers") && printed.contains("files__read"), "{printed}");

    set_tools(&folder, &CHANGED);
    let (ok, printed) = folder.tools(&text, &["pin"]);
    let expected = "files: + mail: Mails.\n\
                    files: ~ read: description was \"Reads.\" and is \"Reads all.\"\n\
                    files: - list\n\
                    not accepted: callsheet tools pin --accept writes callsheet-tools.lock\n";
    assert_eq!((ok, &*printed), (false, expected));
    let (_, printed) = folder.tools(&text, &["list"]);
    let line = "left out: read: it has changed: description was \"Reads.\" and is \"Reads all.\"";
    assert!(printed.contains(line) && !printed.contains("files__read"), "{printed}");
    let warned = text.replace("\"require\"", "\"warn\"");
    let (ok, printed) = folder.tools(&warned, &["list"]);
    assert!(ok && printed.contains("files__read") && printed.contains("files__mail"), "{printed}");
    assert!(printed.contains("warning: read: it has changed: description was"), "{printed}");

    std::fs::write(folder.path.join("callsheet-tools.lock"), "{").unwrap();
    let (ok, printed) = folder.tools(&text, &["pin", "--accept"]);
    assert!(!ok && printed.contains("restore the file, or delete it"), "{printed}");
}

#[test]
fn a_server_that_is_new_or_no_longer_configured_is_a_difference() {
    let folder = Folder::new("pin-servers");
    set_tools(&folder, &[]);
    let one = text(&folder, "require");
    let both =
        format!("{one}{}", crate::process::table(&folder, "pin::server_process", "other", ""));
    let with = |line: &str| {
        format!("{line}\nnot accepted: callsheet tools pin --accept writes callsheet-tools.lock\n")
    };
    assert!(folder.tools(&one, &["pin", "--accept"]).0);
    let expected = with("other: + (a server without tools)");
    assert_eq!(folder.tools(&both, &["pin"]), (false, expected));
    assert!(folder.tools(&both, &["pin", "--accept"]).0);
    assert_eq!(folder.tools(&both, &["pin"]), (true, "no difference\n".to_owned()));
    let expected = with("other: - (the server is not configured)");
    assert_eq!(folder.tools(&one, &["pin"]), (false, expected));
}

#[tokio::test]
async fn calls_of_a_tool_that_changes_are_refused() {
    let folder = Folder::new("pin-changes");
    set_tools(&folder, &ACCEPTED);
    let text = text(&folder, "require");
    assert!(folder.tools(&text, &["pin", "--accept"]).0);
    let call = |tool| (tool, json!({}));
    let calls: [_; 300] = std::array::from_fn(|n| match n {
        1 => call("files__announce"),
        _ => call("files__read"),
    });
    let model = calling(calls);
    let host = folder.host(&text, &model).await;
    let session = host.open_session("one").await.unwrap();
    let next = async || {
        let report = session.run("go").await.unwrap();
        (result(&report).1.to_owned(), report.calls[0].metadata["kind"].clone())
    };
    assert_eq!(next().await, ("called".to_owned(), Value::Null));
    set_tools(&folder, &CHANGED);
    assert_eq!(next().await.0, "called");
    // The host reads the list again when it is told that it has changed.
    let (text, kind) = loop {
        let (text, kind) = next().await;
        if !kind.is_null() {
            break (text, kind);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(kind, "tool_changed");
    let expected = "Error: the tool is refused, and the call was not sent: it has changed: \
                    description was \"Reads.\" and is \"Reads all.\"";
    assert_eq!(text, expected);
    // The list of the session stays.
    let names = |request: &callsheet::model::ModelRequest| {
        request.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>()
    };
    let first = names(&model.requests()[0]);
    assert!(model.requests().iter().all(|request| names(request) == first));
    host.shutdown().await;
    folder.empty().await;
}
