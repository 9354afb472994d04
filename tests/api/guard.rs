//! Access control of the API (host names, origins, tokens) and strict request bodies.

use crate::client::{Service, post};
use callsheet::config::ApiKey;
use callsheet::server::ServerOptions;
use serde_json::json;

async fn service() -> Service {
    let options = ServerOptions::default().with(|new| {
        new.allowed_hosts = vec!["host.example".to_owned()];
        new.body_bytes_max = 1000;
    });
    Service::start_with(json!({}), "", options).await
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\n{headers}\r\n")
}

#[tokio::test]
async fn a_foreign_host_name_is_forbidden() {
    let service = service().await;
    let here = service.addr();
    for host in ["localhost", "127.0.0.1:1", "[::1]", "host.example", &here.to_string()] {
        let answer = service.send(&get("/healthz", &format!("host: {host}\r\n"))).await;
        assert_eq!(answer.status, 200, "{host}: {answer:?}");
    }
    for path in ["/healthz", "/v1/sessions", "/nowhere"] {
        let answer = service.send(&get(path, "host: evil.example\r\n")).await;
        assert_eq!(answer.error(), (403, "forbidden_host".to_owned()), "{path}");
    }
    let answer = service.send("GET http://evil.example/ HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(answer.error(), (403, "forbidden_host".to_owned()));
    let answer = service.send("GET /healthz HTTP/1.0\r\n\r\n").await;
    assert_eq!(answer.error(), (400, "missing_host".to_owned()));
}

#[tokio::test]
async fn a_foreign_origin_is_forbidden_and_gets_no_cors_headers() {
    let service = service().await;
    let own = format!("http://{}", service.addr());
    let host = format!("host: {}\r\n", service.addr());
    let answer = service.send(&get("/v1/sessions", &format!("{host}origin: {own}\r\n"))).await;
    assert_eq!(answer.status, 200);
    assert!(!answer.head.contains("access-control"), "{answer:?}");
    for origin in ["https://evil.example", "http://localhost:3000", "null"] {
        let answer =
            service.send(&get("/v1/sessions", &format!("{host}origin: {origin}\r\n"))).await;
        assert_eq!(answer.error(), (403, "forbidden_origin".to_owned()), "{origin}");
        assert!(!answer.head.contains("access-control"), "{answer:?}");
    }
    let preflight = format!(
        "OPTIONS /v1/sessions HTTP/1.1\r\n{host}origin: https://evil.example\r\n\
         access-control-request-method: POST\r\n\r\n"
    );
    assert_eq!(service.send(&preflight).await.error(), (403, "forbidden_origin".to_owned()));
}

#[tokio::test]
async fn pages_of_allowed_origins_use_the_api() {
    let token = ApiKey::new("token-1").unwrap();
    let options = ServerOptions::default().with(|new| {
        new.allowed_origins = vec!["http://localhost:5173".to_owned()];
        new.token = Some(token);
    });
    let service = Service::start_with(json!({}), "", options).await;
    let page = format!("host: {}\r\norigin: http://localhost:5173\r\n", service.addr());
    let ask = "access-control-request-method: POST\r\n\
               access-control-request-headers: authorization,content-type,x-stainless-lang\r\n";
    let preflight = |headers: &str| format!("OPTIONS /v1/sessions HTTP/1.1\r\n{headers}\r\n");
    let answer = service.send(&preflight(&format!("{page}{ask}"))).await;
    assert_eq!((answer.status, answer.body.as_str()), (204, ""));
    for (name, value) in [
        ("access-control-allow-origin", "http://localhost:5173"),
        ("access-control-allow-methods", "get, post, delete"),
        ("access-control-allow-headers", "authorization,content-type,x-stainless-lang"),
        ("access-control-max-age", "7200"),
        ("vary", "origin"),
    ] {
        assert_eq!(answer.header(name), Some(value), "{answer:?}");
    }
    assert!(!answer.head.contains("credentials") && !answer.head.contains("private-network"));
    let private = "access-control-request-private-network: true\r\n";
    let answer = service.send(&preflight(&format!("{page}{ask}{private}"))).await;
    assert_eq!(answer.header("access-control-allow-private-network"), Some("true"));
    // Errors are for the page, too.
    let with = format!("{page}authorization: Bearer token-1\r\nsec-fetch-site: same-site\r\n");
    for (path, headers, status) in [
        ("/v1/sessions", &page, 401),
        ("/v1/sessions", &with, 200),
        ("/v1/sessions/none", &with, 404),
        ("/nowhere", &with, 404),
        ("/healthz", &page, 200),
    ] {
        let answer = service.send(&get(path, headers)).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        let origin = answer.header("access-control-allow-origin");
        assert_eq!(origin, Some("http://localhost:5173"), "{path}");
        assert_eq!(answer.header("vary"), Some("origin"), "{path}");
        let exposed = answer.header("access-control-expose-headers").unwrap();
        assert!(exposed.contains("x-callsheet-session") && exposed.contains("retry-after"));
    }
    // Other origins are refused as before, also under another name of the host (DNS rebinding).
    for (headers, code) in [
        (page.replace("5173", "5174"), "forbidden_origin"),
        (page.replace("http:", "https:"), "forbidden_origin"),
        (page.replace("5173", "5173/"), "forbidden_origin"),
        (page.replace("localhost:5173", "localhost:5173.evil.example"), "forbidden_origin"),
        (page.replace("http://localhost:5173", "null"), "forbidden_origin"),
        (format!("{page}origin: http://evil.example\r\n"), "forbidden_origin"),
        (page.replace("host: 127.0.0.1", "host: evil.example"), "forbidden_host"),
    ] {
        for request in [get("/v1/sessions", &headers), preflight(&format!("{headers}{ask}"))] {
            let answer = service.send(&request).await;
            assert_eq!(answer.error(), (403, code.to_owned()), "{request}");
            assert!(answer.body.contains("host.allowed_"), "{answer:?}");
            let origin = answer.header("access-control-allow-origin");
            assert_eq!(origin.is_some(), code == "forbidden_host", "{request}");
        }
    }
    let answer = service.get("/healthz").await;
    assert_eq!(answer.header("vary"), Some("origin"));
    assert!(!answer.head.contains("access-control"), "{answer:?}");
}

#[tokio::test]
async fn a_page_of_another_site_is_refused_and_gets_no_answer_to_use() {
    let service = service().await;
    let link = "sec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";
    // A page of another port is of the same site.
    for site in ["cross-site", "same-site"] {
        let host = format!("host: {}\r\nsec-fetch-site: {site}\r\n", service.addr());
        for path in ["/v1/sessions/x", "/v1/events", "/metrics"] {
            let answer = service.send(&get(path, &host)).await;
            assert_eq!(answer.error(), (403, "forbidden_origin".to_owned()), "{path}");
        }
        let answer = service.send(&get("/console/", &format!("{host}{link}"))).await;
        assert_eq!(answer.status, 200);
    }
    for path in [
        "/v1/sessions",
        "/v1/sessions/x",
        "/nowhere",
        "/v1/nowhere",
        "/healthz",
        "/metrics",
        "/console/api",
    ] {
        let answer = service.get(path).await;
        for header in [
            "x-content-type-options: nosniff",
            "cache-control: no-store",
            "cross-origin-resource-policy: same-origin",
            "content-security-policy: default-src 'none'",
        ] {
            let count = answer.head.to_ascii_lowercase().matches(header).count();
            assert_eq!(count, 1, "{path}: {header}: {}", answer.head);
        }
    }
}

#[tokio::test]
async fn with_a_token_every_path_with_data_needs_it() {
    let env = |_: &str| Some("token-1".to_owned());
    let token = Some(ApiKey::from_env("T", &env).unwrap());
    let options = ServerOptions::default().with(|new| new.token = token);
    let service = Service::start_with(json!({}), "", options).await;
    for path in ["/", "/healthz", "/readyz"] {
        assert_eq!(service.get(path).await.status, 200, "{path}");
    }
    for path in ["/metrics", "/v1/sessions", "/v1/sessions/x", "/nowhere"] {
        let answer = service.get(path).await;
        assert_eq!(answer.error(), (401, "unauthorized".to_owned()), "{path}");
        assert_eq!(answer.header("www-authenticate"), Some("bearer realm=\"callsheet\""));
    }
    let with = |token: &str| {
        get("/metrics", &format!("host: localhost\r\nauthorization: Bearer {token}\r\n"))
    };
    assert_eq!(service.send(&with("token-2")).await.status, 401);
    assert_eq!(service.send(&with("token-1")).await.status, 200);
    let open = post("/v1/sessions", "authorization: Bearer token-1\r\n", "{}");
    assert_eq!(service.send(&open).await.status, 201);
}

#[tokio::test]
async fn bodies_must_be_json_with_known_members_and_limited_size() {
    let service = service().await;
    let plain = post("/v1/sessions", "", "{}").replace("application/json", "text/plain");
    assert_eq!(service.send(&plain).await.error(), (415, "unsupported_media_type".to_owned()));
    let none = "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(service.send(none).await.error(), (415, "unsupported_media_type".to_owned()));

    let broken = service.send(&post("/v1/sessions", "", "{\n\"id\" 1}")).await;
    assert_eq!(broken.error(), (400, "invalid_json".to_owned()));
    assert!(broken.body.contains("line 2 column 6"), "{broken:?}");
    let unknown = service.post("/v1/sessions", json!({"idd": "x"})).await;
    assert_eq!(unknown.error(), (400, "invalid_request".to_owned()));
    assert!(unknown.body.contains("`idd`"), "{unknown:?}");
    let body = json!({"input": "go"});
    for (path, body) in [
        ("/v1/sessions", json!({"id": "s"})),
        ("/v1/sessions/s/runs", body.clone()),
        ("/v1/sessions/s/steer", body),
        ("/v1/sessions/s/resume", json!({})),
    ] {
        let answer = service.post(&format!("{path}?wait=true"), body.clone()).await;
        assert_eq!(answer.error(), (400, "invalid_request".to_owned()), "{path}");
        assert!(answer.body.contains("unknown parameter `wait`"), "{answer:?}");
        if path == "/v1/sessions" {
            assert_eq!(service.post(path, body).await.status, 201);
        }
    }

    let large = json!({"id": "x".repeat(2000)}).to_string();
    let answer = service.send(&post("/v1/sessions", "", &large)).await;
    assert_eq!(answer.error(), (413, "body_too_large".to_owned()));
    let chunked = format!(
        "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    assert_eq!(service.send(&chunked).await.error(), (413, "body_too_large".to_owned()));
}

#[tokio::test]
async fn a_request_that_needs_no_body_accepts_none_or_an_empty_object() {
    let service = service().await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    for (request, expected) in
        [("verify", 200), ("resume", 409), ("compact", 422), ("tools/refresh", 200)]
    {
        let path = format!("/v1/sessions/s/{request}");
        let none = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        for accepted in [none, post(&path, "", ""), post(&path, "", "{}")] {
            let answer = service.send(&accepted).await;
            assert_eq!(answer.status, expected, "{accepted}: {answer:?}");
        }
        let plain = post(&path, "", "{}").replace("application/json", "text/plain");
        let large = post(&path, "", &json!({"x": "x".repeat(2000)}).to_string());
        for (refused, status, code) in [
            (post(&path, "", "{"), 400, "invalid_json"),
            (post(&path, "", "null"), 400, "invalid_request"),
            (post(&path, "", "{\"wait\":true}"), 400, "invalid_request"),
            (plain, 415, "unsupported_media_type"),
            (large, 413, "body_too_large"),
        ] {
            let answer = service.send(&refused).await;
            assert_eq!(answer.error(), (status, code.to_owned()), "{refused}");
        }
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_json_errors() {
    let service = service().await;
    for path in ["/nowhere", "/v1", "/v1/sessions/", "/v1/sessions/a/b/c", "/v1/sessions/%ff"] {
        let (status, code) = service.get(path).await.error();
        assert_eq!(status, 404, "{path}");
        assert!(matches!(code.as_str(), "not_found" | "no_such_session"), "{path}: {code}");
    }
    let answer = service.send("PUT /v1/sessions HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(answer.error(), (405, "method_not_allowed".to_owned()));
    let allowed = answer.header("allow").unwrap();
    assert!(allowed.contains("get") && allowed.contains("post"), "{allowed}");
    let answer = service.get("/v1/sessions?colour=red").await;
    assert_eq!(answer.error(), (400, "invalid_request".to_owned()));
    assert!(answer.body.contains("colour"), "{answer:?}");
}

#[tokio::test]
async fn health_checks_and_the_start_page_respond() {
    let service = service().await;
    assert_eq!(service.get("/healthz").await.json(), json!({"status": "ok"}));
    let models = json!({"rehearsal": {"breaker": "closed", "in_flight": 0, "waiting": 0}});
    let ready = json!({"status": "ready", "models": models});
    assert_eq!(service.get("/readyz").await.json(), ready);
    let metrics = service.get("/metrics").await;
    let kind = metrics.header("content-type").unwrap();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    let page = service.get("/").await;
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.body.contains(&service.addr().to_string()), "the page has the server's address");
    for outside in ["src=", "@import", "url(", "https://"] {
        assert!(!page.body.contains(outside), "the page loads nothing: {outside}");
    }
}
