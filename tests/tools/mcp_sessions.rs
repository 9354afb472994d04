//! MCP servers that sessions do not share: `share = "session"`. The process of a server is this test's own
//! binary, which runs [`server_process`].
#![cfg(target_os = "linux")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::folder::{Folder, calling, result, wait_until};
use callsheet::events::FeedItem;
use callsheet::model::ModelReply;
use callsheet::prelude::*;
use callsheet::testing::FakeModel;
use futures::StreamExt as _;
use serde_json::{Value, json};

/// The process of a server that counts its calls, if the variable `MCP_MODE` is set.
#[test]
fn server_process() {
    let Ok(mode) = std::env::var("MCP_MODE") else { return };
    let folder = std::env::var("TEST_FOLDER").unwrap();
    let mut calls = 0;
    let is_held = Path::new(&folder).join("hold").exists();
    crate::process::serve(|method, params| match method {
        "initialize" => {
            while mode == "held" && Path::new(&folder).join("hold").exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            None
        }
        "tools/list" => {
            let mut names = vec!["count"];
            names.extend(is_held.then_some("wait"));
            names.extend((calls > 1).then_some("late"));
            let schema = json!({"type": "object"});
            let tool =
                |name| json!({"name": name, "description": "Does it.", "inputSchema": schema});
            Some(json!({"tools": names.into_iter().map(tool).collect::<Vec<_>>()}))
        }
        "tools/call" if params["name"] == "wait" => {
            std::fs::write(Path::new(&folder).join("waits"), "").unwrap();
            while Path::new(&folder).join("hold").exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            Some(crate::process::content("waited"))
        }
        "tools/call" => {
            calls += 1;
            if calls == 2 {
                println!(r#"{{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}}"#);
            }
            Some(crate::process::content(&calls.to_string()))
        }
        _ => None,
    });
}

fn server(folder: &Folder, mode: &str, keys: &str) -> String {
    let environment = format!("MCP_MODE = {mode:?}");
    crate::process::table(folder, "mcp_sessions::server_process", "test", &environment)
        + "share = \"session\"\n"
        + keys
}

const COUNT: &str = "test__count";

/// Returns a model that counts once in each of so many runs.
fn counting<const N: usize>() -> FakeModel {
    calling([(); N].map(|()| (COUNT, json!({}))))
}

/// Returns the offered tools of all requests.
fn offered(model: &FakeModel) -> Vec<String> {
    let names = |request: &callsheet::model::ModelRequest| {
        let names = request.tools.iter().map(|tool| tool.name.clone());
        names.filter(|name| name != "read_var").collect::<Vec<_>>().join(" ")
    };
    model.requests().iter().map(names).collect()
}

#[tokio::test]
async fn each_session_has_a_process_while_it_is_awake() {
    let folder = Folder::new("own");
    let model = counting::<6>();
    let host = folder.host(&server(&folder, "plain", ""), &model).await;
    let (one, two) =
        (host.open_session("one").await.unwrap(), host.open_session("two").await.unwrap());
    assert_eq!(folder.processes(), 0, "nothing is started before a session needs it");
    for (session, expected) in [(&one, "1"), (&one, "2"), (&two, "1")] {
        let report = session.run("go").await.unwrap();
        assert_eq!(result(&report), ("success", expected));
    }
    let both = folder.processes();
    // A session that sleeps has none, and the other one keeps its own.
    wait_until(|| {
        one.hibernate();
        folder.processes() == both / 2
    })
    .await;
    assert_eq!(result(&two.run("go").await.unwrap()), ("success", "2"));
    // It wakes with the same list, and a new process.
    assert_eq!(result(&one.run("go").await.unwrap()), ("success", "1"));
    assert_eq!(folder.processes(), both);
    assert!(offered(&model).iter().all(|names| names == COUNT), "{:?}", offered(&model));
    one.close().await.unwrap();
    wait_until(|| folder.processes() == both / 2).await;
    assert_eq!(result(&two.run("go").await.unwrap()), ("success", "3"));
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_call_of_a_session_that_has_woken_waits_for_its_server() {
    let folder = Folder::new("waits");
    let model = counting::<2>();
    let host = folder.host(&server(&folder, "held", ""), &model).await;
    let session = host.open_session("one").await.unwrap();
    session.run("go").await.unwrap();
    wait_until(|| {
        session.hibernate();
        folder.processes() == 0
    })
    .await;
    let hold = folder.path.join("hold");
    std::fs::write(&hold, "").unwrap();
    let mut events = session.watch(callsheet::events::EventId::default()).await.unwrap();
    let run = session.start_run("go").await.unwrap();
    let mut is_waiting = false;
    while let Some(item) = events.next().await {
        let FeedItem::Event(event) = item else { panic!("{item:?}") };
        let texts: Vec<_> = event.public().map(|event| event.json).collect();
        let text = texts.join("\n");
        if text.contains(r#""waiting_for":"server""#) {
            assert!(text.contains(r#""type":"tool_use""#) && text.contains(COUNT), "{text}");
            is_waiting = true;
            std::fs::remove_file(&hold).unwrap();
        }
        if text.contains("stream_end") && event.run == run.run_id {
            break;
        }
    }
    assert!(is_waiting);
    assert_eq!(result(&run.report.await.unwrap()), ("success", "1"));
    host.shutdown().await;
    folder.empty().await;
}

/// The beginning of the line for a model whose call found a new process.
const RENEWED: &str = "[callsheet: the server test was started again for this call";

#[tokio::test]
async fn at_max_connections_the_session_that_is_idle_for_the_longest_time_gives_way_and_is_told() {
    let folder = Folder::new("most");
    let model = counting::<9>();
    let host = folder.host(&server(&folder, "plain", "max_connections = 2\n"), &model).await;
    let mut sessions = Vec::new();
    for name in ["one", "two", "three"] {
        sessions.push(host.open_session(name).await.unwrap());
    }
    let mut of_one = sessions[0].subscribe().await.unwrap();
    for session in &sessions {
        assert_eq!(result(&session.run("go").await.unwrap()), ("success", "1"));
    }
    let told = async {
        while let Some(FeedItem::Event(event)) = of_one.next().await {
            if let Some(event) = event.public().find(|event| event.kind == "server_released") {
                return event.json;
            }
        }
        panic!("no event")
    };
    let told = tokio::time::timeout(Duration::from_secs(30), told).await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&told).unwrap()["server"], "test");
    wait_until(|| folder.processes() == 2).await;
    // The third has its process still; the first one finds a new one, and the second one gives way.
    assert_eq!(result(&sessions[2].run("go").await.unwrap()), ("success", "2"));
    let report = sessions[0].run("go").await.unwrap();
    let (status, text) = result(&report);
    assert_eq!(status, "success");
    assert!(text.starts_with("1") && text.contains(RENEWED), "{text}");
    // It is told once.
    assert_eq!(result(&sessions[0].run("go").await.unwrap()), ("success", "2"));
    assert_eq!(result(&sessions[2].run("go").await.unwrap()), ("success", "3"));
    assert!(result(&sessions[1].run("go").await.unwrap()).1.contains(RENEWED));
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_session_beyond_max_connections_is_connected_when_the_run_of_another_one_ends() {
    let folder = Folder::new("busy");
    let slow = calling([("test__wait", json!({}))]);
    let others = counting::<1000>();
    let text = server(&folder, "plain", "max_connections = 1\n");
    let models: [(&str, Arc<dyn ModelSource>); 2] =
        [("fake", Arc::new(slow)), ("others", Arc::new(others))];
    let host = folder.host_with(&text, &models).await;
    let (one, two) =
        (host.open_session("one").await.unwrap(), host.open_session("two").await.unwrap());
    let hold = folder.path.join("hold");
    std::fs::write(&hold, "").unwrap();
    let run = one.start_run("go").await.unwrap();
    wait_until(|| folder.path.join("waits").exists()).await;
    let other = || {
        let mut request = RunRequest::from("go");
        request.overrides.model = Some("others".to_owned());
        request
    };
    let report = two.run(other()).await.unwrap();
    let (status, text) = result(&report);
    assert_eq!(status, "error");
    assert!(text.contains("1 sessions are connected to it (mcp.test.max_connections)"), "{text}");
    std::fs::remove_file(&hold).unwrap();
    assert_eq!(result(&run.report.await.unwrap()), ("success", "waited"));
    let connected = async {
        while result(&two.run(other()).await.unwrap()) != ("success", "1") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), connected).await.unwrap();
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn a_change_of_the_list_is_told_to_the_session_of_the_connection_only() {
    let folder = Folder::new("told");
    let model = counting::<4>();
    let host = folder.host(&server(&folder, "plain", ""), &model).await;
    let (one, two) =
        (host.open_session("one").await.unwrap(), host.open_session("two").await.unwrap());
    two.run("go").await.unwrap();
    let (mut of_one, mut of_two) = (one.subscribe().await.unwrap(), two.subscribe().await.unwrap());
    one.run("go").await.unwrap();
    one.run("go").await.unwrap();
    let told = async {
        while let Some(FeedItem::Event(event)) = of_one.next().await {
            if let Some(event) = event.public().find(|event| event.kind == "tools_changed") {
                return event.json;
            }
        }
        panic!("no event")
    };
    let told = tokio::time::timeout(Duration::from_secs(30), told).await.unwrap();
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["server"], &told["added"]), (&json!("test"), &json!(["test__late"])));
    assert_eq!((&told["removed"], &told["changed"]), (&json!([]), &json!([])));
    // The other session has seen all of its events by then.
    two.close().await.unwrap();
    while let Some(item) = of_two.next().await {
        let FeedItem::Event(event) = item else { break };
        assert!(event.public().all(|event| event.kind != "tools_changed"), "{event:?}");
    }
    let change = one.refresh_tools().await.unwrap();
    assert_eq!(change.added, ["test__late"]);
    host.shutdown().await;
    folder.empty().await;
}

#[tokio::test]
async fn the_list_is_read_through_a_process_of_its_own_that_ends() {
    let folder = Folder::new("listed");
    let text = server(&folder, "plain", "");
    let (succeeded, printed) = folder.tools(&text, &["list"]);
    assert!(succeeded && printed.contains(COUNT), "{printed}");
    folder.empty().await;
    let (succeeded, printed) = folder.tools(&text, &["call", COUNT]);
    assert!(succeeded && printed.contains('1'), "{printed}");
    folder.empty().await;
    // A refreshment by a session that sleeps.
    let model = FakeModel::replies([ModelReply::text("hello")]);
    let host = folder.host(&text, &model).await;
    let session = host.open_session("one").await.unwrap();
    assert_eq!(session.refresh_tools().await.unwrap().added, [COUNT]);
    folder.empty().await;
    host.shutdown().await;
}
