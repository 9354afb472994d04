//! The API in the application of an embedding program: below a path, on other listeners, with a guard.
#![expect(clippy::unwrap_used, reason = "a failed test may panic")]
#![expect(clippy::disallowed_methods, reason = "the servers of the tests")]

use std::net::SocketAddr;
use std::time::Duration;

use crate::client::{HttpConnection, HttpResponse, parse_events, post};
use axum::Router;
use axum::extract::{Path, State};
use axum::response::IntoResponse as _;
use axum::routing::{get, post as post_to};
use callsheet::SessionId;
use callsheet::prelude::*;
use callsheet::server::{self, EventStream, Guard};
use callsheet::testing::FakeModel;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener, UnixStream};

async fn host() -> Host {
    Host::builder().start().await.unwrap()
}

/// Serves an application without connection info.
async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::task::spawn(async move { axum::serve(listener, app.into_make_service()).await });
    addr
}

async fn send(addr: SocketAddr, request: &str) -> HttpResponse {
    let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
    let mut connection = HttpConnection::open(addr, &request).await;
    connection.read_rest().await;
    connection.response()
}

fn get_from(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost:81\r\n{headers}\r\n")
}

#[tokio::test]
async fn paths_stay_below_the_mount_path() {
    let host = host().await;
    let inner = Router::new().nest("/agents", server::router(&host));
    let app = Router::new().route("/mine", get(async || "mine")).nest("/{tenant}", inner);
    let addr = serve(app).await;

    assert_eq!(send(addr, &get_from("/mine", "")).await.body, "mine");
    let opened = send(addr, &post("/acme/agents/v1/sessions", "", r#"{"id":"s"}"#)).await;
    assert_eq!(
        (opened.status, opened.header("location")),
        (201, Some("/acme/agents/v1/sessions/s"))
    );
    let shown = send(addr, &get_from(opened.header("location").unwrap(), "")).await;
    assert_eq!(shown.json()["id"], "s");
    let run = post("/acme/agents/v1/sessions/s/runs", "", r#"{"input":"hello","wait":true}"#);
    let seq = send(addr, &run).await.json()["turns"].clone();
    assert_eq!(seq, 1);
    let fork = post("/acme/agents/v1/sessions/s/fork", "", r#"{"at":2,"id":"f"}"#);
    let location = send(addr, &fork).await.header("location").map(str::to_owned);
    assert_eq!(location.as_deref(), Some("/acme/agents/v1/sessions/f"));

    let page = send(addr, &get_from("/acme/agents", "")).await;
    assert!(page.body.contains("BASE=http://localhost:81/acme/agents\n"), "{page:?}");
    assert!(page.body.contains("<code>GET /acme/agents</code>"));
    assert!(page.body.contains("<code>GET /acme/agents/v1/sessions/{id}</code>"));
    assert!(!page.body.contains("metrics"));
    for path in ["/acme/agents/v1/nowhere", "/acme/agents/v1/sessions/s/nowhere/else"] {
        let unknown = send(addr, &get_from(path, "")).await;
        assert_eq!(unknown.error(), (404, "not_found".to_owned()));
        let message = unknown.json()["error"]["message"].clone();
        assert_eq!(message, format!("unknown path {path}; GET /acme/agents lists the API"));
    }
    assert_eq!(send(addr, &get_from("/acme/agents/metrics", "")).await.status, 404);
    let wrong = send(addr, &get_from("/acme/agents/v1/sessions/s/stop", "")).await;
    assert_eq!(wrong.error(), (405, "method_not_allowed".to_owned()));
    let message = wrong.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.starts_with("/acme/agents/v1/sessions/s/stop does not accept GET"),
        "{message}"
    );
    host.shutdown().await;
}

#[tokio::test]
async fn operations_are_a_router_of_their_own() {
    let host = host().await;
    let app = Router::new()
        .merge(server::router(&host))
        .nest("/ops", server::operations(&host))
        .fallback(async || "the fallback of the program");
    let addr = serve(app).await;
    assert_eq!(send(addr, &get_from("/ops/healthz", "")).await.status, 200);
    assert_eq!(send(addr, &get_from("/ops/readyz", "")).await.json()["status"], "ready");
    let page = send(addr, &get_from("/ops/metrics", "")).await;
    assert!(page.body.contains("\ncallsheet_sessions{"));
    let wrong = send(addr, &post("/ops/metrics", "", "{}")).await;
    assert_eq!(wrong.error(), (405, "method_not_allowed".to_owned()));
    assert_eq!(send(addr, &get_from("/metrics", "")).await.body, "the fallback of the program");
    assert_eq!(send(addr, &get_from("/v1/sessions", "")).await.status, 200);
    host.shutdown().await;

    let recorder = std::sync::Arc::new(metrics::NoopRecorder);
    let host = Host::builder().recorder(recorder).start().await.unwrap();
    let addr = serve(Router::new().merge(server::operations(&host))).await;
    let page = send(addr, &get_from("/metrics", "")).await;
    assert_eq!(page.error(), (404, "no_metrics_page".to_owned()));
    host.shutdown().await;
}

#[tokio::test]
async fn approvals_do_not_wait_on_a_host_with_operations_alone() {
    let pay = ToolSpec::named("pay", "Pays.")
        .approval(ApprovalPolicy::BEFORE)
        .into_tool(async |(): (), _| Ok("paid"));
    let model = FakeModel::replies([ModelReply::call("pay", json!({})), ModelReply::text("No.")]);
    let host = Host::builder().model_source("fake", model).tool(pay).start().await.unwrap();
    let _operations: Router = server::operations(&host);
    let session = host.open_session("test").await.unwrap();
    let run = tokio::time::timeout(Duration::from_secs(20), session.run("go"));
    let report = run.await.unwrap().unwrap();
    assert!(report.calls[0].result.contains("nobody can be asked"), "{:?}", report.calls);
    host.shutdown().await;
}

#[tokio::test]
async fn a_guard_checks_requests_without_connection_info() {
    let host = host().await;
    let guard = Guard::new()
        .hosts(["api.example.com"])
        .token(ApiKey::new("secret").unwrap())
        .public_paths(["/ops/healthz"]);
    let app = Router::new()
        .route("/mine", get(async || "mine"))
        .nest("/agents", server::router(&host))
        .nest("/ops", server::operations(&host))
        .layer(guard);
    let addr = serve(app).await;
    let code = async |host: &str, path: &str, headers: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n");
        let response = send(addr, &request).await;
        if response.status == 200 { "ok".to_owned() } else { response.error().1 }
    };
    let token = "authorization: Bearer secret\r\n";
    let page = "authorization: Bearer secret\r\norigin: https://evil.example\r\n";
    for (host, path, headers, expected) in [
        ("localhost", "/ops/healthz", "", "ok"),
        ("localhost", "/agents/v1/sessions", token, "ok"),
        ("localhost", "/agents/v1/sessions", "", "unauthorized"),
        ("localhost", "/ops/metrics", "", "unauthorized"),
        ("localhost", "/mine", "", "unauthorized"),
        ("API.example.com:8443", "/mine", token, "ok"),
        ("evil.example", "/agents/v1/sessions", token, "forbidden_host"),
        ("10.1.2.3", "/agents/v1/sessions", token, "forbidden_host"),
        ("localhost", "/agents/v1/sessions", page, "forbidden_origin"),
        ("localhost", "/agents/v1/nowhere", token, "not_found"),
    ] {
        assert_eq!(code(host, path, headers).await, expected, "{host} {path} {headers}");
    }
    host.shutdown().await;
}

#[tokio::test]
async fn a_router_has_the_limits_of_its_options() {
    let host = host().await;
    let options = server::ServerOptions::default().with(|options| {
        options.body_bytes_max = 20;
        options.allowed_hosts = vec!["api.example.com".to_owned()];
    });
    let api = options.router(&host).layer(Guard::from(&options));
    let addr = serve(Router::new().nest("/agents", api)).await;
    let long = json!({"id": "a-long-session-id"}).to_string();
    let refused = send(addr, &post("/agents/v1/sessions", "", &long)).await;
    assert_eq!(refused.error(), (413, "body_too_large".to_owned()));
    let request = "GET /agents/v1/sessions HTTP/1.1\r\nhost: api.example.com\r\n\r\n";
    assert_eq!(send(addr, request).await.status, 200);
    host.shutdown().await;
}

#[tokio::test]
async fn the_api_is_served_on_a_unix_socket() {
    let host = host().await;
    let path = std::env::temp_dir().join(format!("callsheet-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let app = Router::new().nest("/agents", server::router(&host).layer(Guard::new()));
    tokio::task::spawn(async move { axum::serve(listener, app.into_make_service()).await });
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let request =
        "GET /agents/v1/sessions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    host.shutdown().await;
    std::fs::remove_file(&path).unwrap();
}

async fn ask(
    State(host): State<Host>,
    Path(id): Path<String>,
    question: String,
) -> Result<EventStream, HostError> {
    let id = SessionId::parse(&id).map_err(|_| HostError::InvalidSessionId)?;
    Ok(EventStream::from(host.session(&id).start_run(question).await?))
}

async fn watch(State(host): State<Host>, Path(id): Path<String>) -> Result<EventStream, HostError> {
    let id = SessionId::parse(&id).map_err(|_| HostError::InvalidSessionId)?;
    Ok(EventStream::from(host.session(&id).watch_from_now().await?))
}

#[tokio::test]
async fn handlers_of_the_program_answer_with_events_and_errors_of_the_api() {
    let host = host().await;
    host.open_session("s").await.unwrap();
    let app = Router::new()
        .route("/ask/{id}", post_to(ask))
        .route("/watch/{id}", get(watch))
        .nest("/agents", server::router(&host))
        .with_state(host.clone());
    let addr = serve(app).await;

    let own = send(addr, &post("/ask/s", "", "hello")).await;
    let of_api = json!({"input": "hello"}).to_string();
    let of_api = post("/agents/v1/sessions/s/runs", "accept: text/event-stream\r\n", &of_api);
    let of_api = send(addr, &of_api).await;
    for name in ["content-type", "cache-control", "x-accel-buffering"] {
        assert_eq!(own.header(name), of_api.header(name));
    }
    let kinds = |response: &HttpResponse| -> Vec<String> {
        response.events().into_iter().map(|(kind, _)| kind).collect()
    };
    assert!(kinds(&own).contains(&"content_delta".to_owned()), "{own:?}");
    assert_eq!(kinds(&own).last().unwrap(), "stream_end");
    assert_eq!(kinds(&of_api).last().unwrap(), "stream_end");

    let missing = send(addr, &post("/ask/nowhere", "", "hello")).await;
    assert_eq!(missing.error(), (404, "no_such_session".to_owned()));
    let invalid = send(addr, &post("/ask/a%20b", "", "hello")).await;
    assert_eq!(invalid.error(), (400, "invalid_session_id".to_owned()));
    let empty = send(addr, &post("/ask/s", "", " ")).await;
    assert_eq!(empty.error(), (400, "empty_input".to_owned()));

    let mut watching = HttpConnection::open(addr, &get_from("/watch/s", "")).await;
    watching.until("200 OK").await;
    send(addr, &post("/ask/s", "", "hello again")).await;
    watching.until("stream_end").await;
    host.shutdown().await;
    // The stream ends with the host, but the session is not closed.
    watching.until("\r\n0\r\n\r\n").await;
    assert!(!watching.text().contains("session_closed"), "{}", watching.text());
}

#[tokio::test]
async fn the_events_of_a_repeated_request_are_complete() {
    let host = host().await;
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let request = || RunRequest::from("hello").with_idempotency_key("k");
    session.run(request()).await.unwrap();
    let run = session.start_run(request()).await.unwrap();
    let body = EventStream::from(run).into_response().into_body();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let events = parse_events(std::str::from_utf8(&body).unwrap());
    assert!(events.iter().any(|event| event.kind == "content_delta"), "{events:?}");
    assert_eq!(events.last().unwrap().kind, "stream_end");
    host.shutdown().await;
}
