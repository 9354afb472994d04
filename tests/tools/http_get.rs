//! `http_get` against real servers on loopback.

#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use callsheet::config::ToolEffect;
use callsheet::tool::testing::{ToolTest, tool_context};
use callsheet::tool::{DnsLookup, HttpGet, HttpGetOptions, Tool, ToolOutput};
use futures::{StreamExt, stream};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A server on a free port of 127.0.0.1 that counts its requests and stops when dropped.
struct Server {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    _stop: DropGuard,
}

impl Server {
    async fn start(routes: Router) -> Self {
        let requests = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&requests);
        let routes = routes.layer(axum::middleware::map_request(move |request| {
            counter.fetch_add(1, Ordering::SeqCst);
            std::future::ready::<axum::extract::Request>(request)
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        #[expect(clippy::disallowed_methods, reason = "the server's accept loop")]
        tokio::spawn(async move {
            tokio::select! {
                () = stopped => {}
                served = axum::serve(listener, routes) => served.unwrap(),
            }
        });
        Self { address, requests, _stop: stop.drop_guard() }
    }

    /// Starts a server that responds "hello" to every request.
    async fn hello() -> Self {
        Self::start(Router::new().fallback(|| async { "hello" })).await
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn request_count(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn options(allow: &[&str]) -> HttpGetOptions {
    let allow = allow.iter().map(|rule| rule.parse().unwrap()).collect();
    HttpGetOptions::default().with(|new| new.allow = allow)
}

/// Makes a DNS lookup that returns the same addresses for every name.
fn lookup_of(addresses: &[&str]) -> DnsLookup {
    let found: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
    Arc::new(move |_| Box::pin(std::future::ready(Ok(found.clone()))))
}

async fn run(tool: &HttpGet, url: &str) -> Result<String, String> {
    let done = tool.run(tool_context(json!({ "url": url }))).await;
    done.map(ToolOutput::into_text).map_err(|error| error.message().to_owned())
}

/// Fetches with the system's DNS lookup.
async fn fetch(allow: &[&str], url: &str) -> Result<String, String> {
    run(&HttpGet::new(options(allow)).unwrap(), url).await
}

#[tokio::test]
async fn fetches_allowed_hosts() {
    let server = Server::hello().await;
    let url = server.url("/a?b=c");
    let port = server.address.port();
    let expect =
        format!("HTTP 200 OK\nurl: {url}\ncontent-type: text/plain; charset=utf-8\n\nhello");
    for rule in [&format!("127.0.0.1:{port}"), "127.0.0.1", "127.0.0.0/8"] {
        assert_eq!(fetch(&[rule], &url).await, Ok(expect.clone()), "{rule}");
    }
    let by_name = fetch(&["localhost"], &format!("http://LocalHost:{port}/")).await.unwrap();
    assert!(by_name.ends_with("\n\nhello"), "{by_name}");
}

#[tokio::test]
async fn refuses_loopback_unless_allowed() {
    let server = Server::hello().await;
    let port = server.address.port();
    for url in [
        format!("http://127.0.0.1:{port}/"),
        format!("http://2130706433:{port}/"),
        format!("http://0x7f.1:{port}/"),
        format!("http://127.0.0.1.:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://0:{port}/"),
    ] {
        for rules in [&[][..], &["127.0.0.1:1"], &["other.example"], &["10.0.0.0/8"]] {
            let error = fetch(rules, &url).await.unwrap_err();
            assert!(error.starts_with("refused: "), "{url}: {error}");
        }
    }
    for name in ["localhost", "LOCALHOST"] {
        let error = fetch(&[], &format!("http://{name}:{port}/")).await.unwrap_err();
        assert!(error.contains("has no public address"), "{name}: {error}");
    }
    assert_eq!(server.request_count(), 0);
}

#[tokio::test]
async fn names_are_checked_by_their_addresses() {
    let server = Server::hello().await;
    let port = server.address.port();
    let url = format!("http://innocent.example:{port}/");
    for addresses in
        [&["127.0.0.1"][..], &["::ffff:127.0.0.1"], &["127.0.0.1", "::1", "169.254.169.254"]]
    {
        let tool = HttpGet::with_dns_lookup(options(&[]), lookup_of(addresses)).unwrap();
        let error = run(&tool, &url).await.unwrap_err();
        assert_eq!(
            error,
            "refused: innocent.example has no public address, and only public addresses can be fetched"
        );
    }
    assert_eq!(server.request_count(), 0);
}

#[tokio::test]
async fn a_host_rule_applies_to_its_name_and_port() {
    let server = Server::hello().await;
    let port = server.address.port();
    let rule = format!("intranet.example:{port}");
    let tool = HttpGet::with_dns_lookup(options(&[&rule]), lookup_of(&["127.0.0.1"])).unwrap();
    assert!(run(&tool, &format!("http://intranet.example:{port}/")).await.is_ok());
    assert!(run(&tool, &format!("http://other.example:{port}/")).await.is_err());
    let other_port = Server::hello().await;
    let port = other_port.address.port();
    assert!(run(&tool, &format!("http://intranet.example:{port}/")).await.is_err());
    assert_eq!((server.request_count(), other_port.request_count()), (1, 0));
}

#[tokio::test]
async fn connections_go_only_to_the_checked_address_of_one_lookup() {
    let server = Server::hello().await;
    let url = format!("http://both.example:{}/", server.address.port());
    // The first lookup returns an allowed address, a second one would not (DNS rebinding).
    let lookups = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&lookups);
    let rebinding: DnsLookup = Arc::new(move |_| {
        let first = counter.fetch_add(1, Ordering::SeqCst) == 0;
        let answer: IpAddr = if first { "127.0.0.1" } else { "127.9.9.9" }.parse().unwrap();
        Box::pin(std::future::ready(Ok(vec!["10.255.255.1".parse().unwrap(), answer])))
    });
    let tool = HttpGet::with_dns_lookup(options(&["127.0.0.1/32"]), rebinding).unwrap();
    assert!(run(&tool, &url).await.is_ok());
    assert_eq!(lookups.load(Ordering::SeqCst), 1);
    assert!(run(&tool, &url).await.unwrap_err().contains("has no public address"));
    assert_eq!(server.request_count(), 1);
}

#[tokio::test]
async fn every_redirect_is_checked() {
    let secret = Server::hello().await;
    let secret_url = secret.url("/secret");
    let to = |target: String| move || std::future::ready(Redirect::temporary(&target));
    let routes = Router::new()
        .route("/port", get(to(secret_url.clone())))
        .route("/again", get(to("/port".to_owned())))
        .route("/name", get(to(format!("http://rebound.example:{}/", secret.address.port()))))
        .route("/metadata", get(to("http://169.254.169.254/latest/meta-data/".to_owned())))
        .route("/file", get(to("file:///etc/passwd".to_owned())))
        .route("/login", get(to("http://user:secret@example.com/".to_owned())))
        .route("/long", get(to(format!("http://example.com/{}", "x".repeat(9000)))))
        .route("/bad", get(to("http://[/".to_owned())));
    let server = Server::start(routes).await;
    let rule = server.address.to_string();
    let tool = HttpGet::with_dns_lookup(options(&[&rule]), lookup_of(&["127.0.0.1"])).unwrap();
    for (path, expect) in [
        ("/port", "127.0.0.1 is a loopback address"),
        ("/again", "127.0.0.1 is a loopback address"),
        ("/name", "rebound.example has no public address"),
        ("/metadata", "169.254.169.254 is a link-local address"),
        ("/file", "only http and https"),
        ("/login", "user name or password"),
        ("/long", "the URL has 9019 bytes"),
        ("/bad", "invalid URL"),
    ] {
        let error = run(&tool, &server.url(path)).await.unwrap_err();
        assert!(error.starts_with("redirected to ") && error.contains(expect), "{path}: {error}");
    }
    assert_eq!(secret.request_count(), 0);
}

#[tokio::test]
async fn redirects_are_followed_up_to_a_limit() {
    let hop = |uri: Uri| async move {
        let left: u32 = uri.path().trim_matches('/').parse().unwrap();
        match left {
            0 => "arrived".into_response(),
            _ => Redirect::permanent(&format!("../{}/", left - 1)).into_response(),
        }
    };
    let server = Server::start(Router::new().fallback(hop)).await;
    let arrived = fetch(&["127.0.0.1"], &server.url("/5/")).await.unwrap();
    assert!(arrived.contains(&format!("url: {}\n", server.url("/0/"))), "{arrived}");
    assert!(arrived.ends_with("\n\narrived"), "{arrived}");
    assert_eq!(server.request_count(), 6);
    let error = fetch(&["127.0.0.1"], &server.url("/6/")).await.unwrap_err();
    assert_eq!(error, "redirected more than 5 times");
    assert_eq!(server.request_count(), 12);
}

#[tokio::test]
async fn every_hop_carries_the_calls_idempotency_key() {
    let hop = |uri: Uri, headers: HeaderMap| async move {
        let keys: Vec<_> = headers.get_all("idempotency-key").iter().collect();
        if uri.path() == "/" {
            return Redirect::to(&format!("/{}", keys.len())).into_response();
        }
        format!("{} {keys:?}", uri.path()).into_response()
    };
    let server = Server::start(Router::new().fallback(hop)).await;
    for (effect, expect) in
        [(ToolEffect::Some, "\n\n/1 [\"test/t1a1c0\"]"), (ToolEffect::None, "\n\n/0 []")]
    {
        let tool = HttpGet::new(options(&["127.0.0.1"])).unwrap();
        let mut test = ToolTest::new(tool).update_spec(|spec| spec.effect = effect);
        let call = test.call(json!({ "url": server.url("/") })).await;
        assert!(call.text().ends_with(expect), "{}", call.text());
    }
}

#[tokio::test]
async fn any_status_is_a_result() {
    let routes = Router::new()
        .route("/teapot", get(|| async { (StatusCode::IM_A_TEAPOT, "short and stout") }))
        .route("/none", get(|| async { StatusCode::NO_CONTENT }))
        // A redirect without a location.
        .route("/nowhere", get(|| async { (StatusCode::FOUND, "where to?") }));
    let server = Server::start(routes).await;
    for (path, status, body) in [
        ("/teapot", "418 I'm a teapot", "short and stout"),
        ("/missing", "404 Not Found", "[the body is empty]"),
        ("/none", "204 No Content", "[the body is empty]"),
        ("/nowhere", "302 Found", "where to?"),
    ] {
        let result = fetch(&["127.0.0.1"], &server.url(path)).await.unwrap();
        assert!(result.starts_with(&format!("HTTP {status}\n")), "{result}");
        assert!(result.ends_with(&format!("\n\n{body}")), "{result}");
    }
}

#[tokio::test]
async fn only_text_bodies_are_returned() {
    let typed = |content_type: &'static str| {
        move || async move { ([(header::CONTENT_TYPE, content_type)], vec![0x89, b'P', b'N', b'G']) }
    };
    let routes = Router::new()
        .route("/png", get(typed("image/png")))
        .route("/gzip", get(|| async { ([(header::CONTENT_ENCODING, "gzip")], "not really") }));
    let server = Server::start(routes).await;
    for (path, expect) in [
        ("/png", "[the body is left out: it is image/png, 4 bytes]"),
        ("/gzip", "[the body is left out: it is encoded as gzip, 10 bytes]"),
    ] {
        let result = fetch(&["127.0.0.1"], &server.url(path)).await.unwrap();
        assert!(result.starts_with("HTTP 200 OK\n") && result.ends_with(expect), "{result}");
    }
}

#[tokio::test]
async fn a_body_is_cut_at_its_limit() {
    let endless = || async {
        let chunks = stream::repeat(Bytes::from_static(&[b'x'; 1000]));
        let body = Body::from_stream(chunks.map(Ok::<_, Infallible>));
        ([(header::CONTENT_TYPE, "text/plain")], body)
    };
    let routes = Router::new()
        .route("/large", get(|| async { "y".repeat(300 * 1024) }))
        .route("/fits", get(|| async { "z".repeat(256 * 1024) }))
        .route("/endless", get(endless));
    let server = Server::start(routes).await;
    let body = |answer: String| answer.split_once("\n\n").unwrap().1.to_owned();
    let large = body(fetch(&["127.0.0.1"], &server.url("/large")).await.unwrap());
    let note = "\n[cut: the first 262144 of 307200 bytes]";
    assert!(large == "y".repeat(256 * 1024) + note, "{}", large.len());
    let fits = body(fetch(&["127.0.0.1"], &server.url("/fits")).await.unwrap());
    assert!(fits == "z".repeat(256 * 1024), "{}", fits.len());
    let endless = body(fetch(&["127.0.0.1"], &server.url("/endless")).await.unwrap());
    assert!(endless.ends_with("\n[cut: the first 262144 bytes; the size is unknown]"));
}

#[tokio::test]
async fn a_silent_server_times_out() {
    let stalling = || async {
        let started = stream::iter([Ok::<_, Infallible>("begun")]);
        Body::from_stream(started.chain(stream::pending()))
    };
    let routes = Router::new()
        .route("/silent", get(std::future::pending::<()>))
        .route("/stalling", get(stalling));
    let server = Server::start(routes).await;
    let total_timeout = Duration::from_millis(200);
    let options = options(&["127.0.0.1"]).with(|new| new.total_timeout = total_timeout);
    let tool = HttpGet::new(options).unwrap();
    for path in ["/silent", "/stalling"] {
        let started = Instant::now();
        assert_eq!(
            run(&tool, &server.url(path)).await,
            Err("the request did not finish within 0.2 s".to_owned())
        );
        assert!(started.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(server.request_count(), 2);
}

#[tokio::test]
async fn a_cancelled_call_stops_at_once() {
    let server = Server::start(Router::new().fallback(std::future::pending::<()>)).await;
    let tool = HttpGet::new(options(&["127.0.0.1"])).unwrap();
    let mut test = ToolTest::new(tool).cancel_after(Duration::from_millis(500));
    let call = test.call(json!({ "url": server.url("/") })).await;
    assert_eq!(call.error().message(), "cancelled");
    assert_eq!(server.request_count(), 1);
}

#[tokio::test]
async fn transport_errors_are_reported() {
    let server = Server::hello().await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = fetch(&["127.0.0.1"], &format!("http://{closed}/")).await.unwrap_err();
    assert!(error.starts_with("failed to connect: Connection refused"), "{error}");
    // HTTPS to a server without TLS is an error.
    let tls = format!("https://{}/", server.address);
    let error = fetch(&["127.0.0.1"], &tls).await.unwrap_err();
    assert!(error.starts_with("failed to connect: "), "{error}");
    let nowhere: DnsLookup =
        Arc::new(|_| Box::pin(std::future::ready(Err(std::io::Error::other("no such host")))));
    let tool = HttpGet::with_dns_lookup(options(&[]), nowhere).unwrap();
    let error = run(&tool, "http://nowhere.example/").await.unwrap_err();
    assert_eq!(error, "failed to connect: no such host");
    for (url, expect) in
        [("", "invalid URL"), ("example.com", "invalid URL"), ("http://", "invalid URL")]
    {
        let error = run(&tool, url).await.unwrap_err();
        assert!(error.starts_with(expect), "{error}");
    }
    let long = format!("http://example.com/{}", "x".repeat(9000));
    assert_eq!(
        run(&tool, &long).await.unwrap_err(),
        "the URL has 9019 bytes; at most 8192 are allowed"
    );
}

#[tokio::test]
async fn requests_reveal_only_the_user_agent() {
    let echo = |headers: HeaderMap| async move {
        let mut names: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        names.sort();
        names.join("\n")
    };
    let routes = Router::new()
        .route("/from", get(|| async { ([(header::SET_COOKIE, "a=b")], Redirect::to("/echo")) }))
        .route("/echo", get(echo));
    let server = Server::start(routes).await;
    let result = fetch(&["127.0.0.1"], &server.url("/from")).await.unwrap();
    let (_, sent) = result.split_once("\n\n").unwrap();
    let expect = format!(
        "accept-encoding: identity\n\
         accept: text/*, application/json, application/xml;q=0.9, */*;q=0.5\n\
         host: {}\n\
         idempotency-key: test/t1a1c0\n\
         user-agent: callsheet/{}",
        server.address,
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(sent, expect);
}

/// Runs the first test in another process with proxy variables in its environment.
#[test]
fn proxy_variables_are_ignored() {
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "http_get::fetches_allowed_hosts"])
        .env_remove("NO_PROXY")
        .env_remove("no_proxy");
    for name in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"]
    {
        child.env(name, &address);
    }
    let output = child.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
    let connection = proxy.accept().map(|_| ()).map_err(|e| e.kind());
    assert_eq!(connection, Err(std::io::ErrorKind::WouldBlock), "the proxy was used");
}
