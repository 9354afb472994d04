//! Sessions over HTTP: open, list, show, close.

use crate::client::{HttpResponse, Service};
use callsheet::server::ServerOptions;
use serde_json::{Value, json};

#[tokio::test]
async fn a_session_is_opened_shown_and_closed() {
    let service = Service::start(json!({})).await;
    let opened = service.post("/v1/sessions", json!({"id": "s-1", "agent": "default"})).await;
    assert_eq!(opened.status, 201);
    assert_eq!(opened.header("location"), Some("/v1/sessions/s-1"));
    let summary = json!({"id": "s-1", "agent": "default", "state": "idle"});
    assert_eq!(opened.json(), summary);
    let snapshot = service.get("/v1/sessions/s-1").await;
    assert_eq!(snapshot.status, 200);
    let snapshot = snapshot.json();
    for (key, value) in summary.as_object().unwrap() {
        assert_eq!(snapshot[key], *value, "{key}");
    }
    assert_eq!(snapshot["history"], json!([]));
    assert_eq!(snapshot.get("current_run"), Some(&json!(null)));

    let closed = service.delete("/v1/sessions/s-1").await;
    assert_eq!((closed.status, closed.body.as_str()), (204, ""));
    let gone = (404, "no_such_session".to_owned());
    assert_eq!(service.get("/v1/sessions/s-1").await.error(), gone);
    assert_eq!(service.delete("/v1/sessions/s-1").await.error(), gone);
    let run = service.post("/v1/sessions/s-1/runs", json!({"input": "x"})).await;
    assert_eq!(run.error(), gone);
    let stop = service.post("/v1/sessions/s-1/stop", json!({"mode": "now"})).await;
    assert_eq!(stop.error(), gone);
}

#[tokio::test]
async fn invalid_open_requests_are_refused_with_a_reason() {
    let service = Service::start(json!({})).await;
    let named = service.post("/v1/sessions", json!({})).await;
    assert_eq!(named.status, 201);
    let id = named.json()["id"].as_str().unwrap().to_owned();
    assert!(!id.is_empty());
    for (body, status, code) in [
        (json!({"id": id}), 409, "session_exists"),
        (json!({"id": "a b"}), 400, "invalid_session_id"),
        (json!({"id": ""}), 400, "invalid_session_id"),
        (json!({"id": "x".repeat(65)}), 400, "invalid_session_id"),
        (json!({"agent": "nobody"}), 400, "unknown_agent"),
        (json!({"agent": 1}), 400, "invalid_request"),
        (json!([]), 400, "invalid_request"),
    ] {
        let answer = service.post("/v1/sessions", body.clone()).await;
        assert_eq!(answer.error(), (status, code.to_owned()), "{body}");
    }
}

#[tokio::test]
async fn max_sessions_limits_the_host() {
    let config = "[host]\nmax_sessions = 1\n";
    let service = Service::start_with(json!({}), config, ServerOptions::default()).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "a"})).await.status, 201);
    let full = service.post("/v1/sessions", json!({"id": "b"})).await;
    assert_eq!(full.error(), (429, "host_full".to_owned()));
    assert_eq!(full.header("retry-after"), Some("1"));
    assert_eq!(service.delete("/v1/sessions/a").await.status, 204);
    assert_eq!(service.post("/v1/sessions", json!({"id": "b"})).await.status, 201);
}

#[tokio::test]
async fn the_newest_sessions_are_listed_first_although_some_are_deleted_meanwhile() {
    let service = Service::start(json!({})).await;
    for id in ["c", "a", "d", "b"] {
        assert_eq!(service.post("/v1/sessions", json!({"id": id})).await.status, 201);
        // In memory, sessions of one millisecond are in the order of their ids.
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    for state in ["", "&state=idle"] {
        let path = format!("/v1/sessions?order=newest&limit=2{state}");
        let page = service.get(&path).await.json();
        let ids = |page: &Value| [0, 1].map(|at| page["sessions"][at]["id"].clone());
        assert_eq!(ids(&page), ["b", "d"], "{state}");
        let next = page["next"].as_str().unwrap();
        if state.is_empty() {
            assert_eq!(service.delete("/v1/sessions/d").await.status, 204);
            let page = service.get(&format!("{path}&after={next}")).await.json();
            assert_eq!((ids(&page), &page["next"]), (["a", "c"].map(Value::from), &Value::Null));
            service.post("/v1/sessions", json!({"id": "d"})).await;
            service.delete("/v1/sessions/b").await;
            service.delete("/v1/sessions/d").await;
            for id in ["d", "b"] {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                service.post("/v1/sessions", json!({"id": id})).await;
            }
        }
    }
    let wrong = service.get("/v1/sessions?order=newest&after=b").await;
    assert_eq!(wrong.error(), (400, "invalid_request".to_owned()));
}

#[tokio::test]
async fn sessions_are_listed_page_by_page() {
    let service = Service::start(json!({})).await;
    for id in ["c", "a", "b"] {
        assert_eq!(service.post("/v1/sessions", json!({"id": id})).await.status, 201);
    }
    let summary = |id: &str| json!({"id": id, "agent": "default", "state": "idle"});
    for (query, ids, next) in [
        ("", vec!["a", "b", "c"], None),
        ("?limit=2", vec!["a", "b"], Some("b")),
        ("?limit=2&after=b", vec!["c"], None),
        ("?limit=3", vec!["a", "b", "c"], None),
        ("?after=c", vec![], None),
        ("?state=idle", vec!["a", "b", "c"], None),
        ("?state=running", vec![], None),
        ("?order=newest&state=running", vec![], None),
    ] {
        let sessions: Vec<_> = ids.into_iter().map(summary).collect();
        let expected = json!({"sessions": sessions, "next": next});
        let answer = service.get(&format!("/v1/sessions{query}")).await;
        let mut page = answer.json();
        for session in page["sessions"].as_array_mut().unwrap() {
            let session = session.as_object_mut().unwrap();
            assert_eq!(session.remove("seq"), Some(json!(1)));
            assert_eq!(session.remove("opened"), session.remove("touched"));
        }
        assert_eq!(page, expected, "{query}");
    }
    for (query, reason) in [
        ("?limit=0", "limit: must be a number from 1 to 1000"),
        ("?limit=1001", "limit: must be a number from 1 to 1000"),
        ("?limit=x", "invalid query: limit: must be a whole number"),
        ("?limit=99999999999999999999", "invalid query: limit: the number is too large"),
        ("?children=maybe", "invalid query: children: must be true or false"),
        ("?state=asleep", ", not `asleep`"),
        ("?limt=5", "invalid query: unknown parameter `limt` (known: `state`, `order`, "),
    ] {
        let answer = service.get(&format!("/v1/sessions{query}")).await;
        assert_eq!(answer.error(), (400, "invalid_request".to_owned()), "{query}");
        assert!(answer.body.contains(reason), "{answer:?}");
    }
}

#[tokio::test]
async fn a_request_without_parameters_refuses_a_query() {
    let service = Service::start(json!({})).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    let refused = |answer: HttpResponse| {
        assert_eq!(answer.error(), (400, "invalid_request".to_owned()));
        assert!(answer.body.contains("unknown parameter `x`: this request has none"), "{answer:?}");
    };
    for path in ["/v1/sessions/s/context", "/v1/sessions/s/turns/1/request", "/v1/host/models"] {
        refused(service.get(&format!("{path}?x=1")).await);
    }
    refused(service.delete("/v1/sessions/s?x=1").await);
    assert_eq!(service.get("/v1/sessions/s").await.status, 200);
    for path in ["/v1/host/models", "/healthz", "/readyz", "/metrics", "/", "/console/"] {
        let query = if path.starts_with("/v1") { "?" } else { "?x=1" };
        assert_eq!(service.get(&format!("{path}{query}")).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_long_page_of_sessions_is_whole() {
    let service = Service::start(json!({})).await;
    let ids: Vec<String> = (0..205).map(|index| format!("s{index:03}")).collect();
    for id in &ids {
        assert_eq!(service.post("/v1/sessions", json!({"id": id})).await.status, 201);
    }
    for limit in [100, 101, 200, 204, 205, 206] {
        let page = service.get(&format!("/v1/sessions?limit={limit}")).await.json();
        let listed = page["sessions"].as_array().unwrap();
        let listed: Vec<&str> = listed.iter().map(|own| own["id"].as_str().unwrap()).collect();
        assert_eq!(listed, ids[..limit.min(ids.len())], "{limit}");
        assert_eq!(page["next"], json!((limit < ids.len()).then(|| &ids[limit - 1])), "{limit}");
    }
}

#[tokio::test]
async fn the_tools_of_an_agent_are_listed() {
    let service = Service::start(json!({})).await;
    let listed = service.get("/v1/tools").await.json();
    assert_eq!(listed["agent"], "default");
    let tools = listed["tools"].as_array().unwrap();
    assert!(!tools.is_empty());
    for tool in tools {
        assert!(
            tool["name"].is_string() && tool["tokens"].as_u64().is_some_and(|n| n > 0),
            "{tool}"
        );
        let kind = if tool["name"] == "read_var" { "host" } else { "native" };
        assert_eq!(tool["kind"], kind);
    }
    let offered = tools.iter().filter(|tool| tool["left_out"].is_null());
    let tokens: u64 = offered.filter_map(|tool| tool["tokens"].as_u64()).sum();
    assert_eq!(listed["tokens"], tokens);
    assert!(tools.iter().any(|tool| tool["name"] == "read_var"), "{listed}");
    assert_eq!(service.get("/v1/tools?agent=nobody").await.error().1, "unknown_agent");
    assert_eq!(service.get("/v1/tools?agnet=x").await.error(), (400, "invalid_request".to_owned()));
}

#[tokio::test]
async fn sessions_are_deleted_by_metadata_and_agent() {
    let service = Service::start(json!({})).await;
    for (id, customer) in [("a", "x y"), ("b", "x y"), ("c", "z")] {
        let body = json!({"id": id, "metadata": {"customer": customer, "kind": "chat"}});
        assert_eq!(service.post("/v1/sessions", body).await.status, 201);
    }
    let delete = async |query: &str| {
        service.delete(&format!("/v1/sessions?metadata.customer=x%20y{query}")).await
    };
    for (query, count) in [("&dry_run=true", 2), ("&agent=other", 0), ("&metadata.kind=x", 0)] {
        let answer = delete(query).await;
        assert_eq!((answer.status, answer.json()), (200, json!({"count": count})), "{query}");
    }
    for query in ["", "?dry_run=true", "?metadata.=x", "?customer=z"] {
        let refused = service.delete(&format!("/v1/sessions{query}")).await;
        assert_eq!(refused.error(), (400, "invalid_request".to_owned()), "{query}");
    }
    assert_eq!(delete("&metadata.kind=chat").await.json(), json!({"count": 2}));
    assert_eq!(delete("").await.json(), json!({"count": 0}));
    let left = service.get("/v1/sessions").await.json();
    assert_eq!(left["sessions"].as_array().unwrap().len(), 1, "{left}");
    assert_eq!(service.delete("/v1/sessions?agent=default").await.json(), json!({"count": 1}));
}
