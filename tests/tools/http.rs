//! Tools that send HTTP requests, against real servers on loopback.

#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{AppendHeaders, IntoResponse, Redirect};
use axum::routing::{any, get};
use callsheet::config::{Config, JournalEngine, ModelConfig, ToolPattern};
use callsheet::model::ModelReply;
use callsheet::prelude::*;
use callsheet::testing::FakeModel;
use callsheet::tool::ToolRegistry;
use callsheet::tool::testing::ToolTest;
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A variable of the host with a secret value: cargo sets it for tests.
const SECRET_VARIABLE: &str = "CARGO_PKG_DESCRIPTION";

/// A server on a free port of 127.0.0.1 that stops when dropped.
struct Server {
    origin: String,
    _stop: DropGuard,
}

impl Server {
    async fn start(routes: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        #[expect(clippy::disallowed_methods, reason = "the server's accept loop")]
        tokio::spawn(async move {
            tokio::select! {
                () = stopped => {}
                served = axum::serve(listener, routes) => served.unwrap(),
            }
        });
        Self { origin, _stop: stop.drop_guard() }
    }

    /// Starts a server that answers with the request that it received.
    async fn echo() -> Self {
        Self::start(Router::new().fallback(any(echo))).await
    }
}

async fn echo(method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> impl IntoResponse {
    let headers = headers.iter().map(|(name, value)| {
        (name.to_string(), Value::from(String::from_utf8_lossy(value.as_bytes())))
    });
    let body = String::from_utf8(body.to_vec()).unwrap();
    let request = json!({
        "method": method.as_str(), "target": uri.to_string(), "body": body,
        "headers": headers.collect::<serde_json::Map<_, _>>(),
    });
    ([(header::CONTENT_TYPE, "application/json")], request.to_string())
}

fn registry(keys: &str) -> Result<ToolRegistry, String> {
    let text = format!("[tools.t]\nkind = \"http\"\ndescription = \"d\"\n{keys}\n");
    let config = Config::parse(&text, "callsheet.toml", &|name| std::env::var(name).ok());
    let mut registry = ToolRegistry::new();
    let registered = registry.register_configured(&config.map_err(|error| error.to_string())?);
    registered.map_err(|error| error.to_string())?;
    Ok(registry)
}

fn tool(keys: &str) -> ToolTest {
    ToolTest::new(Arc::clone(&registry(keys).unwrap().tool("t").unwrap().tool))
}

async fn call(keys: &str, input: Value) -> Result<Value, String> {
    let call = tool(keys).call(input).await;
    let text = call.result.map(|output| output.text().into_owned());
    let text = text.map_err(|error| error.to_string())?;
    Ok(serde_json::from_str(&text).unwrap_or(Value::from(text)))
}

#[tokio::test]
async fn arguments_go_to_the_url_the_query_and_the_body() {
    let server = Server::echo().await;
    let keys = format!(
        "method = \"POST\"\nurl = \"{}/p/{{project}}/t/?v=1\"\n\
         input = {{ project = {{}}, notify = {{ default = [] }}, title = {{}}, note = {{ default = 1 }} }}\n\
         query = {{ notify = \"{{notify}}\", all = \"x{{notify}}\" }}\nheaders = {{ x-team = \"search\" }}",
        server.origin
    );
    let input = json!({"project": "a b/../c?d", "notify": ["x y", "z&"], "title": "é"});
    let request = call(&keys, input).await.unwrap();
    assert_eq!(request["method"], "POST");
    assert_eq!(
        request["target"],
        "/p/a%20b%2F..%2Fc%3Fd/t/?v=1&all=x%5B%22x+y%22%2C%22z%26%22%5D&notify=x+y&notify=z%26"
    );
    let body: Value = serde_json::from_str(request["body"].as_str().unwrap()).unwrap();
    assert_eq!(body, json!({"title": "é", "note": 1}));
    let headers = &request["headers"];
    assert_eq!(
        (&headers["x-team"], &headers["content-type"]),
        (&json!("search"), &json!("application/json"))
    );
    assert!(headers["idempotency-key"].as_str().is_some_and(|key| !key.is_empty()), "{headers}");
}

#[tokio::test]
async fn a_text_body_and_other_headers_are_sent_as_configured() {
    let server = Server::echo().await;
    let keys = format!(
        "method = \"PUT\"\nurl = \"{}/x\"\ninput = {{ note = {{ type = \"string\" }} }}\nbody = \"text:note\"\n\
         idempotency_header = \"X-Key\"\nheaders = {{ content-type = \"text/markdown\" }}",
        server.origin
    );
    let request = call(&keys, json!({"note": "# hello"})).await.unwrap();
    assert_eq!((&request["method"], &request["body"]), (&json!("PUT"), &json!("# hello")));
    assert_eq!(request["headers"]["content-type"], "text/markdown");
    assert!(
        request["headers"].get("x-key").is_some()
            && request["headers"].get("idempotency-key").is_none()
    );
    let get = call(&format!("url = \"{}/x\"", server.origin), json!({})).await.unwrap();
    assert_eq!((&get["method"], &get["body"]), (&json!("GET"), &json!("")));
}

async fn number_of_keys(headers: HeaderMap) -> String {
    headers.get_all("x-key").iter().count().to_string()
}

#[tokio::test]
async fn the_key_of_the_call_replaces_a_configured_header_of_its_name() {
    let server = Server::start(Router::new().fallback(any(number_of_keys))).await;
    let keys = format!(
        "method = \"POST\"\nurl = \"{}/\"\nidempotency_header = \"X-Key\"\nheaders = {{ x-key = \"mine\" }}",
        server.origin
    );
    assert_eq!(call(&keys, json!({})).await.unwrap(), 1);
}

#[tokio::test]
async fn an_argument_cannot_leave_its_path_segment_or_choose_a_private_host() {
    let server = Server::echo().await;
    let keys = format!("url = \"{}/a/{{x}}?y={{x}}\"\ninput = {{ x = {{}} }}", server.origin);
    for value in ["..", ".", ""] {
        let error = call(&keys, json!({"x": value})).await.unwrap_err();
        assert!(error.contains("would change the path"), "{value:?}: {error}");
    }
    assert_eq!(
        call(&keys, json!({"x": "%2e%2e"})).await.unwrap()["target"],
        "/a/%252e%252e?y=%252e%252e"
    );
    let schema = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("tools_http_optional.json");
    std::fs::write(&schema, r#"{"type":"object","properties":{"x":{}}}"#).unwrap();
    let optional = format!("url = \"{}/a/{{x}}\"\ninput_schema = {schema:?}", server.origin);
    assert_eq!(call(&optional, json!({})).await.unwrap_err(), "the URL needs the argument x");
    // The host of a placeholder is not allowed by the configuration.
    let port = server.origin.rsplit(':').next().unwrap();
    let keys = format!("url = \"http://{{host}}:{port}/\"\ninput = {{ host = {{}} }}");
    let error = call(&keys, json!({"host": "127.0.0.1"})).await.unwrap_err();
    assert!(error.starts_with("refused: 127.0.0.1 is a loopback address"), "{error}");
    let allowed = format!("{keys}\nallow = [\"127.0.0.1:{port}\"]");
    assert_eq!(call(&allowed, json!({"host": "127.0.0.1"})).await.unwrap()["target"], "/");
    assert!(call(&allowed, json!({"host": "a@127.0.0.1"})).await.is_err());
}

#[tokio::test]
async fn answers_are_picked_and_statuses_of_failure_are_errors() {
    let page = "{\"data\":{\"id\":\"T-1\",\"tags\":[1,2]}}";
    let routes = Router::new()
        .route(
            "/ok",
            get(move || async move { ([(header::CONTENT_TYPE, "application/json")], page) }),
        )
        .route("/missing", get(async || (StatusCode::NOT_FOUND, "no such ticket")))
        .route("/empty", get(async || StatusCode::NO_CONTENT))
        .route("/large", get(async || "x".repeat(2 << 20)));
    let server = Server::start(routes).await;
    let url = |path: &str| format!("url = \"{}{path}\"", server.origin);
    let pick = |path: &str, pick: &str| format!("{}\npick = \"{pick}\"", url(path));
    assert_eq!(call(&pick("/ok", "/data/id"), json!({})).await.unwrap(), "T-1");
    assert_eq!(call(&pick("/ok", "/data/tags"), json!({})).await.unwrap(), json!([1, 2]));
    let error = call(&pick("/ok", "/data/name"), json!({})).await.unwrap_err();
    assert_eq!(error, "the answer has nothing at /data/name");
    let error = call(&pick("/empty", "/x"), json!({})).await.unwrap_err();
    assert!(error.starts_with("the answer is not JSON"), "{error}");
    let error = call(&pick("/large", "/x"), json!({})).await.unwrap_err();
    assert_eq!(error, "the answer is longer than 1 MiB");
    assert_eq!(
        call(&url("/missing"), json!({})).await.unwrap_err(),
        "HTTP 404 Not Found\nno such ticket"
    );
    let accepted = format!("{}\nok_status = [404]", url("/missing"));
    assert_eq!(call(&accepted, json!({})).await.unwrap(), "no such ticket");
    let error =
        call(&format!("{}\nok_status = [200]", url("/empty")), json!({})).await.unwrap_err();
    assert!(error.starts_with("HTTP 204 No Content"), "{error}");
}

#[tokio::test]
async fn secrets_go_to_their_origin_only_and_are_in_no_result() {
    let other = Server::echo().await;
    let there = format!("{}/there", other.origin);
    let routes = Router::new()
        .route("/away", any(async move || Redirect::temporary(&there)))
        .route("/back", get(async || Redirect::temporary("/echo")))
        .fallback(any(echo));
    let server = Server::start(routes).await;
    let secret = std::env::var(SECRET_VARIABLE).unwrap();
    let other_host = other.origin.trim_start_matches("http://");
    let keys = |path: &str| {
        format!(
            "url = \"{}{path}\"\nallow = [\"{other_host}\"]\nheaders = {{ x-team = \"search\" }}\n\
             secret_headers = {{ authorization = \"{SECRET_VARIABLE}\" }}",
            server.origin
        )
    };
    for path in ["/echo", "/back"] {
        let request = call(&keys(path), json!({})).await.unwrap();
        assert_eq!(request["headers"]["authorization"], "[redacted]", "{path}: {request}");
        assert!(!request.to_string().contains(&secret));
    }
    let request = call(&keys("/away"), json!({})).await.unwrap();
    assert_eq!(request["target"], "/there");
    for name in ["authorization", "x-team", "idempotency-key"] {
        assert_eq!(request["headers"].get(name), None, "{name}");
    }
    // Only GET requests follow a redirect: another request may have effects.
    let post = format!("method = \"POST\"\n{}", keys("/away"));
    let error = call(&post, json!({})).await.unwrap_err();
    assert!(
        error.starts_with(&format!("HTTP 307 Temporary Redirect, redirects to {}", other.origin)),
        "{error}"
    );
    // Without a rule, a redirect to a private address is refused.
    let strict = keys("/away").replace(&format!("allow = [\"{other_host}\"]"), "");
    let error = call(&strict, json!({})).await.unwrap_err();
    assert!(error.contains("refused: 127.0.0.1 is a loopback address"), "{error}");
}

#[tokio::test]
async fn a_cut_answer_has_no_part_of_a_secret() {
    let before = |count: usize| {
        move |headers: HeaderMap| async move {
            format!("{}{}", "x".repeat(count), headers["authorization"].to_str().unwrap())
        }
    };
    let there = |headers: HeaderMap| async move {
        let location = format!("{}{}", "/x".repeat(90), headers["authorization"].to_str().unwrap());
        (StatusCode::FOUND, [(header::LOCATION, location)])
    };
    let routes = Router::new()
        .route("/error", get(before(1980)))
        .route("/large", get(before((1 << 20) - 20)))
        .route("/away", any(there));
    let server = Server::start(routes).await;
    let keys = |path: &str| {
        format!(
            "url = \"{}{path}\"\nsecret_headers = {{ authorization = \"{SECRET_VARIABLE}\" }}",
            server.origin
        )
    };
    let error = call(&format!("{}\nok_status = [404]", keys("/error")), json!({})).await;
    assert_eq!(error.unwrap_err(), format!("HTTP 200 OK\n{}[redacted]", "x".repeat(1980)));
    let large = call(&keys("/large"), json!({})).await.unwrap();
    let size = (1 << 20) - 20 + std::env::var(SECRET_VARIABLE).unwrap().len();
    let cut = format!("x[redacted]\n[cut: the first 1048576 of {size} bytes]");
    assert!(large.as_str().unwrap().ends_with(&cut));
    let error =
        call(&format!("method = \"POST\"\n{}", keys("/away")), json!({})).await.unwrap_err();
    assert!(error.contains("/x[redacted]\n"), "{error}");
}

#[test]
fn the_host_knows_the_secrets_of_its_tools() {
    let text = format!(
        "[tools.t]\nkind = \"http\"\ndescription = \"d\"\nurl = \"http://a/\"\n\
         secret_headers = {{ authorization = \"{SECRET_VARIABLE}\" }}"
    );
    let config = Config::parse(&text, "callsheet.toml", &|name| std::env::var(name).ok()).unwrap();
    let secret = std::env::var(SECRET_VARIABLE).unwrap();
    assert_eq!(config.secrets().redact(&format!("<{secret}>")), "<[redacted]>");
}

#[tokio::test]
async fn a_proxy_receives_requests_but_no_forbidden_target() {
    let proxy = Server::echo().await;
    let keys = |url: &str| {
        format!("url = \"{url}\"\ninput = {{ host = {{}} }}\nproxy = \"{}\"", proxy.origin)
    };
    // No name ends in `.invalid`, so the host cannot look it up.
    for url in ["http://service.invalid/x", "http://{host}/x"] {
        let request = call(&keys(url), json!({"host": "service.invalid"})).await.unwrap();
        assert_eq!(request["target"], "http://service.invalid/x");
    }
    for (host, expected) in [
        ("10.0.0.1", "10.0.0.1 is a private address"),
        ("127.0.0.1", "127.0.0.1 is a loopback address"),
        ("localhost", "localhost has no public address"),
    ] {
        let error = call(&keys("http://{host}/x"), json!({"host": host})).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let wrong = registry("url = \"http://a/\"\nproxy = \"socks\"").unwrap_err();
    let expected =
        "proxy: must be \"none\", \"env\" or a URL such as \"http://proxy:3128\", not \"socks\"";
    assert!(wrong.contains(expected), "{wrong}");
}

/// Returns a server that answers `busy` to the first two requests, and then "here it is". Counts the requests.
async fn busy_twice(busy: StatusCode, wait: Option<&'static str>) -> (Server, Arc<AtomicU32>) {
    let requests = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&requests);
    let answer = move || {
        let is_busy = counted.fetch_add(1, Ordering::SeqCst) < 2;
        async move {
            let wait = wait.map(|wait| (header::RETRY_AFTER, wait));
            match is_busy {
                true => (busy, AppendHeaders(wait), "come again").into_response(),
                false => "here it is".into_response(),
            }
        }
    };
    (Server::start(Router::new().route("/", get(answer))).await, requests)
}

#[tokio::test]
async fn a_busy_service_is_asked_again_and_a_refused_request_is_not() {
    for (status, wait, retries, expected) in [
        (503, None, 2, (3, "success", "here it is")),
        (429, Some("0"), 2, (3, "success", "here it is")),
        (500, Some("3600"), 2, (1, "error", "Error: HTTP 500 Internal Server Error\ncome again")),
        (404, None, 2, (1, "error", "Error: HTTP 404 Not Found\ncome again")),
        (503, None, 0, (1, "error", "Error: HTTP 503 Service Unavailable\ncome again")),
    ] {
        let (server, requests) = busy_twice(StatusCode::from_u16(status).unwrap(), wait).await;
        let keys = format!(
            "method = \"GET\"\nurl = \"{}/\"\nidempotent = true\nretries = {retries}",
            server.origin
        );
        let report = run_with(&keys).await;
        let call = &report.calls[0];
        let found = (requests.load(Ordering::SeqCst), call.status.as_str(), &*call.result);
        assert_eq!(found, expected, "{status}");
    }
}

#[tokio::test]
async fn a_request_that_was_not_sent_may_be_sent_again_although_it_has_effects() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let keys = format!("method = \"POST\"\nurl = \"http://127.0.0.1:{port}/\"\nretries = 1");
    let report = run_with(&keys).await;
    let call = &report.calls[0];
    assert_eq!(call.metadata["kind"], "not_sent");
    assert!(call.result.ends_with("(after 2 attempts)"), "{}", call.result);
}

#[tokio::test]
async fn a_call_whose_arguments_are_refused_is_not_tried_again() {
    let schema = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("tools_http_refused.json");
    std::fs::write(&schema, r#"{"type":"object","properties":{"x":{}}}"#).unwrap();
    let default = |x: &str| format!("input = {{ x = {{ default = \"{x}\" }} }}");
    for (url, input, expected) in [
        ("a.example/{x}", format!("input_schema = {schema:?}"), "the URL needs the argument x"),
        ("a.example/{x}", default(".."), "an argument makes \"..\" of a path segment"),
        ("a.example/{x}", default(&"x".repeat(9000)), "the URL has 9017 bytes"),
        ("{x}/", default("a b"), "invalid URL: "),
        ("{x}/", default("127.0.0.1"), "refused: 127.0.0.1 is a loopback address"),
    ] {
        let keys = format!("url = \"http://{url}\"\n{input}\nidempotent = true\nretries = 1");
        let report = run_with(&keys).await;
        let result = &report.calls[0].result;
        assert!(result.starts_with(&format!("Error: {expected}")), "{result}");
        assert!(!result.contains("attempts"), "{result}");
    }
}

/// Runs a model that calls the tool `t` with these keys once.
async fn run_with(keys: &str) -> RunReport {
    let text = format!("[tools.t]\nkind = \"http\"\ndescription = \"d\"\n{keys}\n");
    let mut config = Config::parse(&text, "callsheet.toml", &|_| None).unwrap();
    config.use_model("fake", ModelConfig::for_source("fake"));
    config.agents.get_mut("default").unwrap().tools = vec![ToolPattern::new("t")];
    config.journal.engine = JournalEngine::Memory;
    let model = FakeModel::replies([ModelReply::call("t", json!({})), ModelReply::text("done")]);
    let host = Host::builder().config(config).tools(registry(keys).unwrap());
    let host = host.model_source("fake", model).start().await.unwrap();
    let report = host.open_session("one").await.unwrap().run("go").await.unwrap();
    host.shutdown().await;
    report
}

#[tokio::test]
async fn a_cancelled_call_does_not_wait_for_its_answer() {
    // The body begins and never ends.
    let endless = async || {
        let first = futures::stream::iter([Ok::<_, Infallible>("a")]);
        Body::from_stream(first.chain(futures::stream::pending()))
    };
    let server = Server::start(Router::new().fallback(any(endless))).await;
    let keys = format!("method = \"POST\"\nurl = \"{}/\"", server.origin);
    let call = tool(&keys).cancel_after(Duration::from_millis(50)).call(json!({})).await;
    let error = call.result.unwrap_err().to_string();
    assert_eq!(error, "cancelled; the server may have acted on the request");
}

#[tokio::test]
async fn a_request_that_broke_may_have_had_an_effect() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    #[expect(clippy::disallowed_methods, reason = "the server's accept loop")]
    tokio::spawn(async move { while silent.accept().await.is_ok() {} });
    let keys = format!("method = \"POST\"\nurl = \"http://{address}/\"");
    let error = call(&keys, json!({})).await.unwrap_err();
    assert!(error.ends_with("; the server may have acted on the request"), "{error}");
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let keys = format!("method = \"POST\"\nurl = \"http://{address}/\"");
    let error = call(&keys, json!({})).await.unwrap_err();
    assert!(error.starts_with("failed to connect") && !error.contains("may have"), "{error}");
}

#[tokio::test]
async fn a_redirect_that_cannot_be_followed_may_have_had_an_effect() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}/", closed.local_addr().unwrap());
    drop(closed);
    let location = target.clone();
    let redirect = async move || Redirect::temporary(&location);
    let server = Server::start(Router::new().fallback(any(redirect))).await;
    let allow = target.trim_start_matches("http://").trim_end_matches('/');
    let keys = format!(
        "url = \"{}/\"\nallow = [\"{allow}\"]\neffect = \"some\"\nretries = 1",
        server.origin
    );
    let report = run_with(&keys).await;
    let call = &report.calls[0];
    assert_ne!(call.metadata["kind"], "not_sent");
    assert!(call.result.contains(&format!("redirected to {target}: ")), "{}", call.result);
    assert!(call.result.ends_with("the server may have acted on the request"), "{}", call.result);
}

#[tokio::test]
async fn an_answer_that_broke_may_follow_an_effect() {
    let broken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = broken.local_addr().unwrap();
    #[expect(clippy::disallowed_methods, reason = "the server's accept loop")]
    tokio::spawn(async move {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 9\r\n\r\na";
        while let Ok((mut stream, _)) = broken.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer).await;
        }
    });
    let keys = format!("method = \"POST\"\nurl = \"http://{address}/\"");
    let error = call(&keys, json!({})).await.unwrap_err();
    assert!(error.ends_with("; the server may have acted on the request"), "{error}");
}

#[test]
fn wrong_definitions_name_line_key_and_remedy() {
    for (keys, expected) in [
        ("", "1: tools.t.url: is missing"),
        ("url = \"ftp://a/\"", "4: tools.t.url: must begin with http:// or https://"),
        (
            "url = \"http://u:p@a/\"",
            "4: tools.t.url: must not contain a user name or password: use secret_headers",
        ),
        ("url = \"http://a b/\"", "4: tools.t.url: invalid international domain name"),
        (
            "url = \"http://a/{x}\"",
            "4: tools.t.url: {x} is not a property of the input (known: none); write \"{{\" for a literal \"{\"",
        ),
        (
            "url = \"http://a/\"\nmethod = \"get\"",
            "5: tools.t.method: must be \"GET\", \"POST\", \"PUT\", \"PATCH\" or \"DELETE\", not \"get\"",
        ),
        (
            "url = \"http://a/\"\nquery = { q = \"{x}\" }",
            "5: tools.t.query.q: {x} is not a property of the input (known: none); write \"{{\" for a literal \"{\"",
        ),
        (
            "url = \"http://a/\"\nheaders = { \"a b\" = \"c\" }",
            "5: tools.t.headers.a b: \"a b\" is not the name of a header",
        ),
        (
            "url = \"http://a/\"\nheaders = { Host = \"c\" }",
            "5: tools.t.headers.Host: Host belongs to the connection and cannot be set",
        ),
        (
            "url = \"http://a/\"\nsecret_headers = { a = \"UNSET_X\" }",
            "5: tools.t.secret_headers.a: the environment variable UNSET_X is not set or is blank: set it before the host starts",
        ),
        (
            "url = \"http://a/\"\nallow = [\"http://b\"]",
            "5: tools.t.allow[0]: must be a host, \"host:port\" or a network such as \"10.0.0.0/8\", not \"http://b\"",
        ),
        (
            "url = \"http://a/\"\nbody = \"text:x\"",
            "5: tools.t.body: {x} is not a property of the input (known: none)",
        ),
        (
            "url = \"http://a/\"\nbody = \"xml\"",
            "5: tools.t.body: must be \"none\", \"json\" or \"text:NAME\", not \"xml\"",
        ),
        (
            "url = \"http://a/\"\npick = \"id\"",
            "5: tools.t.pick: must be a JSON pointer such as \"/data/id\"",
        ),
        (
            "url = \"http://a/\"\nok_status = [42]",
            "5: tools.t.ok_status[0]: 42 is not an HTTP status (100 to 599)",
        ),
        ("url = \"http://a/\"\ncommand = [\"x\"]", "5: tools.t.command: unknown key"),
    ] {
        assert_eq!(registry(keys).err().unwrap(), format!("callsheet.toml:{expected}"), "{keys}");
    }
}
