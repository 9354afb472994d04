//! MCP servers over HTTP that lose the sessions of their clients.
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use callsheet::testing::FakeModel;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::folder::{Folder, calling, result};

/// A service that forgets its session after each `lifetime` calls.
struct Service {
    mode: &'static str,
    lifetime: usize,
    state: Mutex<ServiceState>,
}

#[derive(Default)]
struct ServiceState {
    /// The number of the session that it knows.
    session: usize,
    calls_of_session: usize,
    /// The number of calls that it has received.
    received: usize,
    /// The idempotency keys of the calls that it has run.
    keys: Vec<String>,
}

impl Service {
    async fn start(mode: &'static str, lifetime: usize) -> (Arc<Self>, String) {
        let service = Arc::new(Self { mode, lifetime, state: Mutex::default() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let app = Router::new().route("/mcp", post(answer)).with_state(Arc::clone(&service));
        #[expect(clippy::disallowed_methods, reason = "the service ends with the test")]
        drop(tokio::spawn(async move { axum::serve(listener, app).await }));
        (
            service,
            format!("[mcp.test]\nurl = \"http://{address}/mcp\"\nhandshake = \"initialize\"\n"),
        )
    }
}

async fn answer(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    Json(message): Json<Value>,
) -> Response {
    let (id, method) = (&message["id"], message["method"].as_str().unwrap());
    let json = |key: &str, value: Value| Json(json!({"jsonrpc": "2.0", "id": id, key: value}));
    let mut state = service.state.lock();
    if method == "initialize" {
        (state.session, state.calls_of_session) = (state.session + 1, 0);
        let session = [("mcp-session-id", state.session.to_string())];
        let initialized = json!({
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": {"name": "test", "version": "1"},
        });
        return (session, json("result", initialized)).into_response();
    }
    let is_call = method == "tools/call";
    state.received += usize::from(is_call);
    let session = headers.get("mcp-session-id").map(|value| value.to_str().unwrap().to_owned());
    let is_known = state.calls_of_session < service.lifetime
        && session == Some(state.session.to_string())
        && !(is_call && service.mode == "gone");
    if !is_known {
        let unknown = json!({"code": -32000, "message": "Bad Request: no such session"});
        return match service.mode {
            "status 400" => (StatusCode::BAD_REQUEST, json("error", unknown)).into_response(),
            "status 200" => json("error", unknown).into_response(),
            _ => StatusCode::NOT_FOUND.into_response(),
        };
    }
    match method {
        "tools/list" => {
            let tool = json!({"name": "act", "inputSchema": {"type": "object"}});
            json("result", json!({"tools": [tool]})).into_response()
        }
        "tools/call" => {
            let key = &message["params"]["_meta"]["io.callsheet/idempotency-key"];
            state.keys.push(key.as_str().unwrap().to_owned());
            state.calls_of_session += 1;
            if service.mode == "cut" && state.keys.len() == 1 {
                let cut = json!({"code": -32000, "message": "Connection closed"});
                return json("error", cut).into_response();
            }
            json("result", json!({"content": [{"type": "text", "text": "done"}]})).into_response()
        }
        _ => StatusCode::ACCEPTED.into_response(),
    }
}

fn acting<const N: usize>() -> FakeModel {
    calling([(); N].map(|()| ("test__act", json!({}))))
}

#[tokio::test]
async fn a_call_that_a_lost_session_refuses_unread_is_sent_once_more_in_a_new_one() {
    for mode in ["status 404", "status 400", "status 200"] {
        let (service, text) = Service::start(mode, 1).await;
        let folder = Folder::new("lost");
        let host = folder.host(&text, &acting::<3>()).await;
        let session = host.open_session("one").await.unwrap();
        for _ in 0..3 {
            assert_eq!(result(&session.run("go").await.unwrap()), ("success", "done"), "{mode}");
        }
        {
            let state = service.state.lock();
            assert_eq!((state.session, state.keys.len(), state.received), (3, 3, 5), "{mode}");
        }
        host.shutdown().await;
    }
}

#[tokio::test]
async fn no_call_of_many_sessions_is_lost_or_runs_twice() {
    let (service, text) = Service::start("status 404", 8).await;
    let folder = Folder::new("many");
    let host = folder.host(&text, &acting::<80>()).await;
    let runs = (0..40).map(|number| {
        let host = &host;
        async move {
            let session = host.open_session(format!("s{number}").as_str()).await.unwrap();
            for _ in 0..2 {
                let report = session.run("go").await.unwrap();
                assert!(report.calls.iter().all(|call| call.result == "done"), "{report:?}");
            }
        }
    });
    futures::future::join_all(runs).await;
    let mut keys = service.state.lock().keys.clone();
    let executed = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), executed, "a call ran twice");
    host.shutdown().await;
}

#[tokio::test]
async fn a_session_that_is_lost_again_at_once_ends_the_call_as_not_sent() {
    let (service, text) = Service::start("gone", 1).await;
    let folder = Folder::new("gone");
    let host = folder.host(&text, &acting::<1>()).await;
    let session = host.open_session("one").await.unwrap();
    let report = session.run("go").await.unwrap();
    let (status, text) = result(&report);
    assert!(status == "error" && text.contains("was not sent"), "{status}: {text}");
    assert!(text.contains("does not know its session"), "{text}");
    assert_eq!(service.state.lock().received, 2);
    host.shutdown().await;
}

#[tokio::test]
async fn a_call_that_may_have_been_cut_is_unknown_and_not_sent_again() {
    let (service, text) = Service::start("cut", 10).await;
    let folder = Folder::new("cut");
    let host = folder.host(&text, &acting::<2>()).await;
    let session = host.open_session("one").await.unwrap();
    let report = session.run("go").await.unwrap();
    let (status, text) = result(&report);
    assert!(status == "unknown" && text.contains("Connection closed (code -32000)"), "{text}");
    assert_eq!(result(&session.run("go").await.unwrap()), ("success", "done"));
    assert_eq!(service.state.lock().received, 2);
    host.shutdown().await;
}
