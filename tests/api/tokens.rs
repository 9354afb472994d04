//! Named tokens: what each scope may do, the agents that a token reaches, and files that are read again.
#![expect(clippy::unwrap_used, reason = "a failed test may panic")]

use std::path::PathBuf;

use crate::client::{HttpConnection, HttpResponse, Service};
use callsheet::config::{ApiKey, TokenConfig, TokenScope};
use callsheet::server::ServerOptions;
use serde_json::{Value, json};

fn token(name: &str, scope: TokenScope) -> TokenConfig {
    TokenConfig::new(name, ApiKey::new(&format!("secret-of-{name}")).unwrap(), [scope])
}

async fn service(config: &str, tokens: impl IntoIterator<Item = TokenConfig>) -> Service {
    let options = ServerOptions::default().with(|new| {
        new.token = Some(ApiKey::new("secret-of-host").unwrap());
        new.tokens = tokens.into_iter().collect();
    });
    Service::start_with(json!({}), config, options).await
}

fn request(token: &str, method: &str, path: &str, body: &Value) -> String {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer secret-of-{token}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

async fn send(service: &Service, token: &str, asked: &str, body: Value) -> HttpResponse {
    let (method, path) = asked.split_once(' ').unwrap();
    service.send(&request(token, method, path, &body)).await
}

/// Returns the requests of the list of the API, in which every route is, with the parameters of each.
fn routes(page: &str) -> Vec<String> {
    let rows = page.split("<tr><td><code>").skip(1);
    let requests = rows.map(|row| row.split(['<', '?']).next().unwrap().to_owned());
    requests
        .map(|request| {
            let request = request.replace("{id}", "x").replace("{tool_id}", "t1a1c0");
            let request = request.replace("{run_id}", "r").replace("{turn}", "1");
            request.replace("{name}", "clock")
        })
        .collect()
}

/// The scope of the requests that are no GET.
fn scope_of(request: &str) -> Option<TokenScope> {
    let (method, path) = request.split_once(' ').unwrap();
    if ["/", "/healthz", "/readyz"].contains(&path) || path.starts_with("/console") {
        return None;
    }
    let ends = |ends: &[&str]| ends.iter().any(|end| path.ends_with(end));
    Some(if method == "GET" || ends(&["/verify", "/vitals"]) {
        TokenScope::Read
    } else if path.contains("/approvals/") {
        TokenScope::Approve
    } else if ends(&["/tools/refresh", "/tools/clock/call"]) {
        TokenScope::Admin
    } else {
        TokenScope::Run
    })
}

#[tokio::test]
async fn every_route_needs_the_scope_that_the_documents_name() {
    use TokenScope::{Admin, Approve, Read, Run};
    let all = [("read", Read), ("run", Run), ("approve", Approve), ("admin", Admin)];
    let service = service("", all.map(|(name, scope)| token(name, scope))).await;
    let routes = routes(&service.get("/").await.body);
    assert!(routes.len() > 30, "{routes:?}");
    for route in routes {
        let needed = scope_of(&route);
        for (name, scope) in all {
            // Without a body, or for a session that does not exist, nothing has an effect.
            let mut stream = HttpConnection::open(
                service.addr(),
                &request(
                    name,
                    route.split(' ').next().unwrap(),
                    route.split(' ').nth(1).unwrap(),
                    &Value::Null,
                ),
            )
            .await;
            stream.until("\r\n\r\n").await;
            let is_refused = stream.text().starts_with("HTTP/1.1 403 ");
            let may = needed.is_none_or(|needed| scope == needed || scope == Admin);
            assert_eq!(is_refused, !may, "{name}: {route}: {}", stream.text());
        }
        let refused = needed.filter(|needed| *needed != Read);
        if let Some(needed) = refused {
            let answer = send(&service, "read", &route, Value::Null).await;
            assert_eq!(answer.error(), (403, "forbidden_scope".to_owned()), "{route}");
            let message = format!(
                "the token \"read\" must not do this: its scope lacks {:?}",
                needed.as_str()
            );
            assert_eq!(answer.json()["error"]["message"], message, "{route}");
        }
    }
}

#[tokio::test]
async fn the_token_of_the_host_may_do_everything_and_unknown_ones_nothing() {
    let service = service("", [token("ops", TokenScope::Read)]).await;
    for (token, expected) in [("host", 201), ("ops", 403), ("nobody", 401)] {
        let answer = send(&service, token, "POST /v1/sessions", json!({})).await;
        assert_eq!(answer.status, expected, "{token}: {answer:?}");
    }
    assert_eq!(service.get("/metrics").await.status, 401);
    let page = send(&service, "ops", "GET /metrics", Value::Null).await.body;
    for line in [r#"callsheet_http_refused_total{status="403"} 1"#, r#"{status="401"} 2"#] {
        assert!(page.contains(line), "{line} in {page}");
    }
}

const AGENTS: &str = "[agents.support]\nmodel = 'rehearsal'\n[agents.sales]\nmodel = 'rehearsal'\n";

#[tokio::test]
async fn a_token_with_agents_reaches_only_their_sessions() {
    let limited = token("limited", TokenScope::Admin).agents(["support"]);
    let service = service(AGENTS, [limited]).await;
    for agent in ["support", "sales"] {
        for id in ["a", "b"] {
            let body = json!({"id": format!("{agent}-{id}"), "agent": agent});
            assert_eq!(send(&service, "host", "POST /v1/sessions", body).await.status, 201);
        }
    }
    let forbidden = (403, "forbidden_agent".to_owned());
    for (asked, body) in [
        ("GET /v1/sessions/sales-a", Value::Null),
        ("GET /v1/sessions/sales-a/events", Value::Null),
        ("GET /v1/sessions/sales-a/records", Value::Null),
        ("POST /v1/sessions/sales-a/runs", json!({"input": "go"})),
        ("POST /v1/sessions/sales-a/stop", json!({"mode": "now"})),
        ("POST /v1/sessions/sales-a/fork", json!({"at": 1})),
        ("DELETE /v1/sessions/sales-a", Value::Null),
        ("GET /v1/events?sessions=support-a,sales-a", Value::Null),
        ("GET /v1/tools?agent=sales", Value::Null),
        ("POST /v1/tools/clock/call", json!({"agent": "sales", "input": {}})),
        ("POST /v1/sessions", json!({"agent": "sales"})),
    ] {
        let answer = send(&service, "limited", asked, body).await;
        assert_eq!(answer.error(), forbidden, "{asked}");
        let message = "the token \"limited\" reaches only sessions of support, and none of agent \
                       \"sales\"";
        assert_eq!(answer.json()["error"]["message"], message);
    }
    let get =
        async |path: &str| send(&service, "limited", &format!("GET {path}"), Value::Null).await;
    assert_eq!(get("/v1/sessions/support-a").await.status, 200);
    assert_eq!(get("/v1/sessions/nowhere").await.error(), (404, "no_such_session".to_owned()));
    assert_eq!(get("/v1/agents").await.json()["agents"].as_array().unwrap().len(), 1);
    // Pages have only its sessions, and no ids of others.
    let mut listed = Vec::new();
    let mut after = String::new();
    loop {
        let page = get(&format!("/v1/sessions?limit=1{after}")).await.json();
        let ids = page["sessions"].as_array().unwrap().iter();
        listed.extend(ids.map(|session| session["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(listed, ["support-a", "support-b"]);
}

#[tokio::test]
async fn the_states_of_all_sessions_are_those_of_the_agents_of_the_token() {
    let limited = token("limited", TokenScope::Read).agents(["support"]);
    let service = service(AGENTS, [limited]).await;
    let watch = request("limited", "GET", "/v1/events?sessions=*", &Value::Null);
    let mut stream = HttpConnection::open(service.addr(), &watch).await;
    stream.until("\r\n\r\n").await;
    for agent in ["sales", "support"] {
        let body = json!({"id": agent, "agent": agent});
        assert_eq!(send(&service, "host", "POST /v1/sessions", body).await.status, 201);
    }
    for agent in ["sales", "support"] {
        let asked = format!("DELETE /v1/sessions/{agent}");
        assert_eq!(send(&service, "host", &asked, Value::Null).await.status, 204);
    }
    let events = stream.until_events(|events| events.len() == 2).await;
    let states: Vec<_> = events
        .iter()
        .map(|event| (event.data["session_id"].clone(), event.data["state"].clone()))
        .collect();
    let expected = ["idle", "closed"].map(|state| (json!("support"), json!(state)));
    assert_eq!(states, expected);
}

#[tokio::test]
async fn files_of_tokens_are_read_again_on_request() {
    let folder = std::env::temp_dir().join(format!("callsheet-tokens-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: &str| -> PathBuf {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name)
    };
    let named =
        token("ops", TokenScope::Read).with(|new| new.file = Some(file("ops", "secret-of-ops")));
    let options = ServerOptions::default().with(|new| {
        new.token = Some(ApiKey::new("secret-of-host").unwrap());
        new.token_file = Some(file("host", "secret-of-host"));
        new.tokens = vec![named];
    });
    let service = Service::start_with(json!({}), "", options).await;
    let statuses = async |tokens: [&str; 3]| {
        let mut statuses = Vec::new();
        for token in tokens {
            statuses.push(send(&service, token, "GET /v1/sessions", Value::Null).await.status);
        }
        statuses
    };
    assert_eq!(statuses(["host", "ops", "new"]).await, [200, 200, 401]);
    file("host", "secret-of-new\n");
    assert_eq!(statuses(["host", "ops", "new"]).await, [200, 200, 401]);
    service.server.read_secrets_again().await;
    assert_eq!(statuses(["host", "ops", "new"]).await, [401, 200, 200]);
    // A file that cannot be used keeps the last token: blank, unreadable, the token of another.
    for text in ["", "secret of new", "secret-of-new"] {
        file("ops", text);
        service.server.read_secrets_again().await;
        assert_eq!(statuses(["host", "ops", "new"]).await, [401, 200, 200], "{text:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
    service.server.read_secrets_again().await;
    assert_eq!(statuses(["host", "ops", "new"]).await, [401, 200, 200]);
}

#[tokio::test]
async fn records_and_lists_name_the_author() {
    let asking = "[tools.calculator]\napproval = \"before\"\n[agents.default]\n\
                  model = 'rehearsal'\ntools = ['calculator']\n";
    let named = ["ada", "bob", "cleo"].map(|name| token(name, TokenScope::Admin));
    let options = ServerOptions::default().with(|new| {
        new.token = Some(ApiKey::new("secret-of-host").unwrap());
        new.tokens = named.into();
    });
    let call = json!({"calls": [{"name": "calculator", "arguments": {"expression": "6 * 7"}}]});
    let text = json!({"text": ["Well."]});
    let script = json!({"responses": [call, text, call, text]});
    let service = Service::start_with(script, asking, options).await;
    let post = async |token: &str, path: &str, body: Value| {
        let answer = send(&service, token, &format!("POST /v1/sessions{path}"), body).await;
        assert!(answer.status < 300, "{answer:?}");
        answer.json()
    };
    let watch = request("host", "GET", "/v1/sessions/s/events?after=0", &Value::Null);
    post("host", "", json!({"id": "s"})).await;
    let mut events = HttpConnection::open(service.addr(), &watch).await;
    let first = post("ada", "/s/runs", json!({"input": "go"})).await;
    events.until("event: tool_approval\n").await;
    let queued = post("bob", "/s/runs", json!({"input": "later", "queue": true})).await;
    post("cleo", "/s/steer", json!({"input": "faster"})).await;
    let open = send(&service, "host", "GET /v1/approvals", Value::Null).await.json();
    let hash = open["approvals"][0]["arguments_sha256"].clone();
    let decision = json!({"decision": "approve", "arguments_sha256": hash});
    post("bob", "/s/approvals/t1a1c0", decision).await;
    let asked = |events: &[crate::client::StreamEvent]| {
        events.iter().filter(|event| event.kind == "tool_approval").count() == 2
    };
    events.until_events(asked).await;
    post("cleo", "/s/stop", json!({"mode": "now"})).await;
    events.until_events(|events| crate::client::ended_runs(events) == 2).await;

    let records = send(&service, "host", "GET /v1/sessions/s/records", Value::Null).await.json();
    let authored: Vec<_> = records["records"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|record| Some((record["type"].as_str()?, record["authored_by"].as_str()?)))
        .collect();
    let expected = [
        ("run_started", "ada"),
        ("input_queued", "bob"),
        ("steered", "cleo"),
        ("approval_given", "bob"),
        ("run_started", "bob"),
        ("stop_asked", "cleo"),
    ];
    assert_eq!(authored, expected);
    let runs = send(&service, "host", "GET /v1/sessions/s/runs", Value::Null).await.json();
    let of = |at: usize| (&runs["runs"][at]["run_id"], &runs["runs"][at]["author"]);
    assert_eq!(of(0), (&queued["run_id"], &json!("bob")));
    assert_eq!(of(1), (&first["run_id"], &json!("ada")));
    let check = post("host", "/s/verify", Value::Null).await;
    assert_eq!(check["breaches"], json!([]));
}
