//! The files of the console: headers, copies of browsers, access, mount paths; and the start page.
#![expect(clippy::unwrap_used, reason = "a failed test may panic")]
#![expect(clippy::disallowed_methods, reason = "the servers of the tests")]

use crate::client::{HttpConnection, HttpResponse, Service, post};
use axum::Router;
use callsheet::prelude::*;
use callsheet::server::{self, Guard, ServerOptions};
use serde_json::json;
use tokio::net::TcpListener;

const BROWSER: &str = "accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";

fn get_with(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n")
}

async fn service(config: &str) -> Service {
    Service::start_with(json!({}), config, ServerOptions::default()).await
}

#[tokio::test]
async fn files_have_their_types_and_the_headers_of_a_page_that_trusts_no_text() {
    let service = service("").await;
    for (path, kind, start) in [
        ("/console/", "text/html; charset=utf-8", "<!doctype html>"),
        ("/console/index.html", "text/html; charset=utf-8", "<!doctype html>"),
        ("/console/app.js", "text/javascript; charset=utf-8", ""),
        ("/console/style.css", "text/css; charset=utf-8", ""),
    ] {
        let answer = service.get(path).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{path}");
        assert!(answer.body.starts_with(start) && !answer.body.is_empty(), "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        for rule in
            ["default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'"]
        {
            assert!(policy.split("; ").any(|own| own == rule), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
    }
    for path in ["/console/nowhere.js", "/console/app.js/", "/console//app.js", "/console/%2e%2e/"]
    {
        assert_eq!(service.get(path).await.error(), (404, "not_found".to_owned()), "{path}");
    }
    let wrong = service.send(&post("/console/app.js", "", "{}")).await;
    assert_eq!(wrong.error(), (405, "method_not_allowed".to_owned()));
    let page = service.get("/console/").await.body;
    assert!(!page.contains("=\"/") && !page.contains("://"), "all URLs are relative: {page}");
}

#[tokio::test]
async fn a_copy_of_a_file_is_used_again_until_the_file_changes() {
    let service = service("").await;
    let first = service.get("/console/app.js").await;
    let tag = first.header("etag").unwrap();
    assert!(tag.starts_with('"') && tag.len() == 34, "a strong tag: {tag}");
    assert_ne!(service.get("/console/style.css").await.header("etag"), Some(tag));
    assert_eq!(service.get("/console/app.js").await.header("etag"), Some(tag));
    let again = get_with("/console/app.js", &format!("if-none-match: \"other\", {tag}\r\n"));
    let again = service.send(&again).await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    assert_eq!(again.header("etag"), Some(tag));
    assert!(again.header("content-security-policy").is_some());
    let changed = get_with("/console/app.js", "if-none-match: \"other\"\r\n");
    assert_eq!(service.send(&changed).await.body, first.body);
}

#[tokio::test]
async fn browsers_are_led_to_the_console_and_other_clients_get_the_list() {
    let service = service("").await;
    let led = service.send(&get_with("/", BROWSER)).await;
    assert_eq!((led.status, led.header("location")), (302, Some("./console/")));
    assert_eq!(led.header("vary"), Some("accept"));
    let slash = service.get("/console").await;
    assert_eq!((slash.status, slash.header("location")), (302, Some("./console/")));
    for path in ["/", "/console/api"] {
        let list = service.get(path).await;
        assert!(list.body.contains("<code>GET /v1/sessions/{id}</code>"), "{list:?}");
        assert!(list.body.contains("<code>GET /console/</code>"), "{list:?}");
    }
    let list = service.send(&get_with("/console/api", BROWSER)).await;
    assert!(list.body.contains("<code>GET /v1/sessions/{id}</code>"), "{list:?}");
}

#[tokio::test]
async fn a_console_that_is_off_leaves_nothing() {
    let service = service("[console]\nenabled = false\n").await;
    for path in ["/console", "/console/", "/console/app.js", "/console/api"] {
        assert_eq!(service.get(path).await.error(), (404, "not_found".to_owned()), "{path}");
    }
    let list = service.send(&get_with("/", BROWSER)).await;
    assert_eq!(list.status, 200);
    assert!(!list.body.contains("console"), "{list:?}");
}

#[tokio::test]
async fn the_files_need_no_token_and_the_api_does() {
    let options = ServerOptions::default().with(|new| {
        new.token = Some(ApiKey::new("secret").unwrap());
    });
    let service = Service::start_with(json!({}), "", options).await;
    for path in ["/console/", "/console/app.js", "/console/api", "/"] {
        assert_eq!(service.get(path).await.status, 200, "{path}");
    }
    for path in ["/console/../v1/sessions", "/console/%2e%2e/v1/sessions", "/console/nowhere"] {
        assert_eq!(service.get(path).await.error(), (404, "not_found".to_owned()), "{path}");
    }
    for path in ["/v1/sessions", "/v1/tools", "/metrics", "/consoles", "//console/"] {
        assert_eq!(service.get(path).await.error(), (401, "unauthorized".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn the_page_may_call_the_api_of_its_own_origin_and_no_other_page_may() {
    let service = service("").await;
    let host = service.addr().to_string();
    let open = |origin: &str| {
        let headers = format!("origin: {origin}\r\nsec-fetch-site: same-origin\r\n");
        post("/v1/sessions", &headers, "{}").replace("host: localhost", &format!("host: {host}"))
    };
    assert_eq!(service.send(&open(&format!("http://{host}"))).await.status, 201);
    let refused = service.send(&open("http://localhost:1")).await;
    assert_eq!(refused.error(), (403, "forbidden_origin".to_owned()));
}

async fn send(app: Router, request: &str) -> HttpResponse {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let serving =
        tokio::task::spawn(async move { axum::serve(listener, app.into_make_service()).await });
    let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
    let mut connection = HttpConnection::open(addr, &request).await;
    connection.read_rest().await;
    serving.abort();
    connection.response()
}

#[tokio::test]
async fn a_mounted_console_stays_below_its_mount_path() {
    let host = Host::builder().start().await.unwrap();
    let token = ApiKey::new("secret").unwrap();
    let guard = Guard::new().token(token).public_paths(["/", "/console/*"]);
    let inner = Router::new().nest("/agents", server::router(&host).layer(guard));
    let app = Router::new().nest("/{tenant}", inner);
    let led = send(app.clone(), &get_with("/acme/agents", BROWSER)).await;
    assert_eq!((led.status, led.header("location")), (302, Some("./agents/console/")));
    let page = send(app.clone(), &get_with("/acme/agents/console/", BROWSER)).await;
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"), "{page:?}");
    let script = send(app.clone(), &get_with("/acme/agents/console/app.js", "")).await;
    assert_eq!(script.header("content-type"), Some("text/javascript; charset=utf-8"));
    // The script asks for ../v1/ from /acme/agents/console/.
    let refused = send(app.clone(), &get_with("/acme/agents/v1/sessions", "")).await;
    assert_eq!(refused.error(), (401, "unauthorized".to_owned()));
    let token = "authorization: Bearer secret\r\n";
    assert_eq!(send(app.clone(), &get_with("/acme/agents/v1/sessions", token)).await.status, 200);
    let list = send(app.clone(), &get_with("/acme/agents/console/api", "")).await;
    assert!(list.body.contains("<code>GET /acme/agents/console/</code>"), "{list:?}");
    let nowhere = send(app, &get_with("/acme/agents/console/nowhere", "")).await;
    assert_eq!(nowhere.error(), (404, "not_found".to_owned()));
    host.shutdown().await;

    let host = Host::builder().configure(|config| config.console.enabled = false);
    let host = host.start().await.unwrap();
    let app = Router::new().nest("/agents", server::router(&host));
    let app = app.fallback(async || "the fallback of the program");
    let answer = send(app.clone(), &get_with("/agents/console/", "")).await;
    assert_eq!(answer.body, "the fallback of the program");
    let list = send(app, &get_with("/agents", BROWSER)).await;
    assert!(list.body.contains("<code>GET /agents/v1/sessions/{id}</code>"), "{list:?}");
    host.shutdown().await;
}
