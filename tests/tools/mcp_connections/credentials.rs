//! Secrets of MCP servers over HTTP that change while the host runs: files, and access tokens of OAuth.
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use callsheet::testing::FakeModel;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::folder::{Folder, calling, result};

const CLIENT_SECRET: &str = "client-secret-0123456789";

/// A service that wants a header `authorization`, and the authorization server of its tokens.
struct Service {
    address: SocketAddr,
    /// How the token endpoint answers.
    mode: &'static str,
    /// The time for which a token is accepted.
    lifetime: Duration,
    state: Mutex<ServiceState>,
}

#[derive(Default)]
struct ServiceState {
    /// The values of the header that are accepted, each until a time.
    accepted: Vec<(String, Option<Instant>)>,
    /// The refresh token that is accepted.
    refresh_token: String,
    token_requests: Vec<Value>,
    /// The number of requests that were refused.
    refused: usize,
    /// The idempotency keys of the calls that ran.
    calls: Vec<String>,
}

impl Service {
    async fn start(mode: &'static str, lifetime: Duration) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Mutex::default();
        let service = Arc::new(Self { address, mode, lifetime, state });
        let app = Router::new()
            .route("/mcp", post(answer))
            .route("/token", post(token))
            .with_state(Arc::clone(&service));
        #[expect(clippy::disallowed_methods, reason = "the service ends with the test")]
        drop(tokio::spawn(async move { axum::serve(listener, app).await }));
        service
    }

    /// Returns the configuration of the server, with further keys.
    fn text(&self, keys: &str) -> String {
        let url = format!("http://{}", self.address);
        let keys = keys.replace("TOKEN_URL", &format!("{url}/token"));
        format!("[mcp.test]\nurl = \"{url}/mcp\"\nhandshake = \"initialize\"\n{keys}")
    }
}

async fn answer(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    Json(message): Json<Value>,
) -> Response {
    let mut state = service.state.lock();
    let given = headers.get("authorization").map_or("", |value| value.to_str().unwrap());
    let is_accepted = state
        .accepted
        .iter()
        .any(|(value, end)| value == given && end.is_none_or(|end| Instant::now() < end));
    if !is_accepted {
        state.refused += 1;
        let challenge = [("www-authenticate", "Bearer error=\"invalid_token\"")];
        return match state.refused % 2 {
            0 => StatusCode::UNAUTHORIZED.into_response(),
            _ => (StatusCode::UNAUTHORIZED, challenge).into_response(),
        };
    }
    let result = match message["method"].as_str().unwrap() {
        "initialize" => json!({
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": {"name": "test", "version": "1"},
        }),
        "tools/list" => {
            json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
        }
        "tools/call" => {
            let key = &message["params"]["_meta"]["io.callsheet/idempotency-key"];
            state.calls.push(key.as_str().unwrap().to_owned());
            json!({"content": [{"type": "text", "text": format!("with {given}")}]})
        }
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    Json(json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).into_response()
}

/// The time after which the token endpoint of the mode `slow` sends the answer that it has made.
const ANSWER_DELAY: Duration = Duration::from_secs(1);

async fn token(State(service): State<Arc<Service>>, headers: HeaderMap, body: String) -> Response {
    let answer = token_answer(&service, &headers, &body);
    if service.mode == "slow" {
        tokio::time::sleep(ANSWER_DELAY).await;
    }
    answer
}

fn token_answer(service: &Service, headers: &HeaderMap, body: &str) -> Response {
    let form = url::form_urlencoded::parse(body.as_bytes()).into_owned();
    let form: Value = form.map(|(name, value)| (name, Value::from(value))).collect();
    let mut state = service.state.lock();
    let number = state.token_requests.len();
    let is_basic = headers.get("authorization").is_some_and(|value| {
        let pair = STANDARD.encode(format!("the-host:{CLIENT_SECRET}"));
        value.to_str().unwrap() == format!("Basic {pair}")
    });
    let is_known = match service.mode {
        "basic" => is_basic && form.get("client_secret").is_none(),
        _ => is_basic || form["client_secret"] == CLIENT_SECRET,
    };
    let is_refresh = form["grant_type"] == "refresh_token";
    let is_stale = is_refresh && form["refresh_token"] != json!(state.refresh_token);
    state.token_requests.push(form);
    let refused = |error: &str, text: &str| {
        (StatusCode::BAD_REQUEST, Json(json!({"error": error, "error_description": text})))
            .into_response()
    };
    if !is_known {
        return refused("invalid_client", "unknown client");
    }
    if is_stale {
        return refused("invalid_grant", "stale refresh token");
    }
    let access = format!("access-token-{number}");
    state.accepted.push((format!("Bearer {access}"), Some(Instant::now() + service.lifetime)));
    let seconds = service.lifetime.as_secs();
    let answer = match service.mode {
        // Without `token_type`, and with a string.
        "string" => json!({"access_token": access, "expires_in": seconds.to_string()}),
        "endless" => json!({"access_token": access, "token_type": "Bearer"}),
        "rotating" | "slow" => {
            state.refresh_token = format!("refresh-token-{number}");
            json!({
                "access_token": access, "token_type": "Bearer", "expires_in": seconds,
                "refresh_token": state.refresh_token,
            })
        }
        _ => json!({"access_token": access, "token_type": "bearer", "expires_in": seconds}),
    };
    Json(answer).into_response()
}

fn echoing<const N: usize>() -> FakeModel {
    calling([(); N].map(|()| ("test__echo", json!({}))))
}

const CREDENTIALS: &str = "[mcp.test.oauth]\ngrant = \"client_credentials\"\ntoken_url = \"TOKEN_URL\"\n\
     client_id = \"the-host\"\nclient_secret_file = \"client-secret\"\nscope = \"read write\"\n";

#[tokio::test]
async fn a_token_that_is_replaced_in_its_file_costs_no_call() {
    let service = Service::start("", Duration::ZERO).await;
    let folder = Folder::new("secret-file");
    let file = folder.path.join("token");
    let replace = |number: usize| {
        let value = format!("Bearer file-token-{number}");
        std::fs::write(&file, format!("{value}\n")).unwrap();
        service.state.lock().accepted = vec![(value, None)];
    };
    replace(0);
    let keys = "secret_files = { authorization = \"token\" }\n";
    let host = folder.host(&service.text(keys), &echoing::<5>()).await;
    let session = host.open_session("one").await.unwrap();
    for number in 0..5 {
        replace(number);
        let report = session.run("go").await.unwrap();
        assert_eq!(result(&report), ("success", "with [redacted]"), "{number}");
    }
    let (calls, refused) = {
        let state = service.state.lock();
        (state.calls.len(), state.refused)
    };
    assert_eq!((calls, refused), (5, 4), "each replaced token is refused once");
    host.shutdown().await;
}

#[tokio::test]
async fn tokens_of_client_credentials_are_renewed_before_they_end_and_after_a_refusal() {
    for (mode, revoked) in [("", false), ("string", false), ("basic", false), ("endless", true)] {
        let service = Service::start(mode, Duration::from_secs(2)).await;
        let folder = Folder::new("client-credentials");
        std::fs::write(folder.path.join("client-secret"), format!("{CLIENT_SECRET}\n")).unwrap();
        let host = folder.host(&service.text(CREDENTIALS), &echoing::<6>()).await;
        let session = host.open_session("one").await.unwrap();
        for number in 0..6 {
            if revoked && number == 3 {
                // A younger token is not asked for again.
                tokio::time::sleep(Duration::from_millis(5100)).await;
                service.state.lock().accepted.clear();
            }
            let report = session.run("go").await.unwrap();
            assert_eq!(result(&report), ("success", "with Bearer [redacted]"), "{mode} {number}");
            if !revoked {
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
        }
        {
            let state = service.state.lock();
            let first = &state.token_requests[0];
            let expected = ["client_credentials", "read write"].map(Value::from);
            assert_eq!(
                [&first["grant_type"], &first["scope"]],
                [&expected[0], &expected[1]],
                "{mode}"
            );
            assert_eq!(first["resource"], format!("http://{}/mcp", service.address));
            assert!(state.token_requests.len() >= 2, "{mode}");
            assert_eq!((state.calls.len(), state.refused > 0), (6, revoked), "{mode}");
        }
        host.shutdown().await;
    }
}

#[tokio::test]
async fn a_refresh_token_that_is_replaced_is_written_to_its_file() {
    let service = Service::start("rotating", Duration::from_secs(2)).await;
    service.state.lock().refresh_token = "refresh-token-first".to_owned();
    let folder = Folder::new("refresh-token");
    let file = folder.path.join("refresh-token");
    std::fs::write(folder.path.join("client-secret"), CLIENT_SECRET).unwrap();
    std::fs::write(&file, "refresh-token-first").unwrap();
    let keys = CREDENTIALS
        .replace("client_credentials", "refresh_token")
        .replace("scope = \"read write\"", "refresh_token_file = \"refresh-token\"");
    for _ in 0..2 {
        // The second host begins with the token that the first one has written.
        let host = folder.host(&service.text(&keys), &echoing::<2>()).await;
        let session = host.open_session("one").await.unwrap();
        for _ in 0..2 {
            let report = session.run("go").await.unwrap();
            assert_eq!(result(&report), ("success", "with Bearer [redacted]"));
            tokio::time::sleep(Duration::from_millis(1100)).await;
        }
        host.shutdown().await;
    }
    let state = service.state.lock();
    assert!(state.token_requests.len() >= 3, "{:?}", state.token_requests);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), state.refresh_token);
    assert_eq!((state.calls.len(), state.refused), (4, 0));
}

#[tokio::test]
async fn a_refresh_token_is_written_although_the_attempt_to_connect_that_asked_for_it_has_ended() {
    let service = Service::start("slow", Duration::from_secs(600)).await;
    service.state.lock().refresh_token = "refresh-token-first".to_owned();
    let folder = Folder::new("refresh-token-slow");
    let file = folder.path.join("refresh-token");
    std::fs::write(folder.path.join("client-secret"), CLIENT_SECRET).unwrap();
    std::fs::write(&file, "refresh-token-first").unwrap();
    let keys = CREDENTIALS
        .replace("[mcp.test.oauth]", "start_timeout = \"500ms\"\n[mcp.test.oauth]")
        .replace("client_credentials", "refresh_token")
        .replace("scope = \"read write\"", "refresh_token_file = \"refresh-token\"");
    let host = folder.host(&service.text(&keys), &echoing::<20>()).await;
    let mut outcomes = Vec::new();
    // The list of a session that has begun without the server stays without its tool.
    for number in 0..20 {
        let session = host.open_session(format!("session-{number}").as_str()).await.unwrap();
        let report = session.run("go").await.unwrap();
        outcomes.push(result(&report).0.to_owned());
        if outcomes.last().is_some_and(|outcome| outcome == "success") {
            break;
        }
        tokio::time::sleep(ANSWER_DELAY / 2).await;
    }
    assert_eq!(outcomes.first().map(String::as_str), Some("error"), "{outcomes:?}");
    assert_eq!(outcomes.last().map(String::as_str), Some("success"), "{outcomes:?}");
    host.shutdown().await;
    let state = service.state.lock();
    assert_eq!(state.token_requests.len(), 1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), state.refresh_token);
}

#[tokio::test]
async fn a_server_without_a_token_is_down_with_the_reason_of_the_token_endpoint() {
    let service = Service::start("", Duration::from_secs(60)).await;
    let folder = Folder::new("no-token");
    std::fs::write(folder.path.join("client-secret"), "another-secret-0123").unwrap();
    let listed = listed(&folder, &service.text(CREDENTIALS), None).await;
    assert!(
        listed.contains("server test is down")
            && listed.contains("no access token from http://127.0.0.1:")
            && listed.contains("invalid_client: unknown client"),
        "{listed}"
    );
    assert_eq!(service.state.lock().refused, 0, "no request is sent without a token");
}

/// Returns the output of `callsheet tools list` with this configuration of a server.
async fn listed(folder: &Folder, text: &str, http_proxy: Option<&str>) -> String {
    let text = format!("{text}[agents.default]\ntools = [\"*\"]\n");
    std::fs::write(folder.path.join("callsheet.toml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_callsheet"));
    command.args(["tools", "list"]).current_dir(&folder.path).stdout(Stdio::piped());
    command.env_remove("NO_PROXY").env_remove("no_proxy").env_remove("http_proxy");
    match http_proxy {
        Some(url) => command.env("HTTP_PROXY", url),
        None => command.env_remove("HTTP_PROXY"),
    };
    let list = command.spawn().unwrap();
    let listed = tokio::task::spawn_blocking(move || list.wait_with_output().unwrap());
    String::from_utf8(listed.await.unwrap().stdout).unwrap()
}

#[tokio::test]
async fn a_server_and_its_token_endpoint_are_reached_through_a_proxy() {
    // The service is its own proxy: it does not look at the host of a URL. No name ends in `.invalid`.
    let service = Service::start("", Duration::from_secs(60)).await;
    let folder = Folder::new("proxy");
    std::fs::write(folder.path.join("client-secret"), CLIENT_SECRET).unwrap();
    let address = service.address.to_string();
    let proxy_url = format!("http://{address}");
    let text = service.text(CREDENTIALS).replace(&address, "mcp.invalid");
    let with = |proxy: &str| {
        text.replace("[mcp.test.oauth]", &format!("proxy = \"{proxy}\"\n[mcp.test.oauth]"))
    };
    for (proxy, variable, is_reached) in [
        (proxy_url.as_str(), None, true),
        ("env", Some(proxy_url.as_str()), true),
        ("none", Some(proxy_url.as_str()), false),
        ("env", None, false),
    ] {
        let listed = listed(&folder, &with(proxy), variable).await;
        assert_eq!(listed.contains("test__echo"), is_reached, "{proxy} {variable:?}: {listed}");
        assert_eq!(listed.contains("no access token from"), !is_reached, "{listed}");
    }
}
