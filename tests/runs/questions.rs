//! Questions of running tools over HTTP: the event, the answer, the snapshot and stops.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::client::{HttpConnection, HttpResponse, post};
use crate::support::{World, events, until_event, within, world};
use callsheet::server::{self, ServerHandle, ServerOptions};
use callsheet::tool::{Answer, IntoTool, Question, ToolContext, ToolError, ToolRegistry, ToolSpec};
use callsheet::types::{RunEnd, ToolStatus};
use callsheet_mock_provider::{Call, Response, Script};
use serde_json::{Value, json};
use tokio::net::TcpListener;

fn form() -> Value {
    let properties = json!({
        "seats": {"type": "integer", "minimum": 1}, "class": {"type": "string", "default": "second"},
    });
    json!({"type": "object", "properties": properties, "required": ["seats"]})
}

/// Asks once for a form and once for the consent to a URL, and returns both answers.
async fn book(_: (), context: ToolContext) -> Result<String, ToolError> {
    let seats = context.ask(Question::form("How many seats?", form())).await?;
    let signed = context.ask(Question::url("Sign in.", "https://example.com/in")).await?;
    let text = |answer: Answer| {
        if let Answer::Accepted(content) = answer {
            return content.to_string();
        }
        format!("{answer:?}")
    };
    Ok(format!("{} {}", text(seats), text(signed)))
}

struct Api {
    world: World,
    server: ServerHandle,
}

async fn api() -> Api {
    let mut registry = ToolRegistry::new();
    registry.register(ToolSpec::named("book", "Books seats.").into_tool(book)).unwrap();
    let script = Script::new([Response::calls([Call::new("book", json!({}))])]).then_done();
    let world = world(script, registry, |_| {}).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = server::serve(listener, world.host.clone(), ServerOptions::default()).unwrap();
    Api { world, server }
}

impl Api {
    async fn send(&self, request: String) -> HttpResponse {
        let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        let mut reading = HttpConnection::open(self.server.addr(), &request).await;
        within(reading.read_rest()).await;
        reading.response()
    }

    async fn answer(&self, asked: &Value, body: Value) -> HttpResponse {
        let mut body = body;
        body["arguments_sha256"] = asked["arguments_sha256"].clone();
        let id = self.world.session.id();
        let path = format!("/v1/sessions/{id}/approvals/{}", asked["tool_id"].as_str().unwrap());
        self.send(post(&path, "", &body.to_string())).await
    }

    async fn pending(&self) -> Value {
        let id = self.world.session.id();
        let request = format!("GET /v1/sessions/{id} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.send(request).await.json()["current_run"]["approvals"].clone()
    }

    /// Waits until a question other than `before` is open.
    async fn question(&self, before: &Value) -> Value {
        within(async {
            loop {
                let pending = self.pending().await[0].clone();
                if !pending.is_null() && pending["arguments_sha256"] != before["arguments_sha256"] {
                    return pending;
                }
            }
        })
        .await
    }
}

#[tokio::test]
async fn a_question_is_an_approval_with_a_form_and_is_answered_at_the_same_path() {
    let api = api().await;
    let mut run = api.world.session.start_run("go").await.unwrap();
    until_event(&mut run.events, |event| event["type"] == "tool_approval").await;
    let seats = api.question(&Value::Null).await;
    let expected = json!({
        "tool_id": "t1a1c0", "tool_name": "book", "phase": "input", "input": {},
        "arguments_sha256": seats["arguments_sha256"], "output_summary": null,
        "message": "How many seats?", "form": form(), "asked_at": seats["asked_at"],
    });
    assert_eq!(seats, expected);
    let approve = |content: Value| json!({"decision": "approve", "content": content});
    for (body, fault) in [
        (json!({"decision": "approve"}), "content is missing: send an object that fits the form"),
        (approve(json!({"seats": 0})), "content does not fit the form: /seats: 0 is less than"),
        (approve(json!([])), "content must be an object that fits the form"),
        (json!({"decision": "reject", "content": {}}), "content: only an approval has one"),
    ] {
        let refused = api.answer(&seats, body).await;
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["code"]), (400, &json!("invalid_content")));
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(fault) && message.lines().count() == 1, "{message}");
    }
    assert_eq!(api.pending().await, json!([seats]), "the question stays open");
    let given = approve(json!({"seats": 2}));
    assert_eq!(api.answer(&seats, given.clone()).await.status, 200);
    let sign_in = api.question(&seats).await;
    assert_eq!(sign_in["url"], "https://example.com/in");
    assert_eq!(sign_in.get("form"), None);
    // The first answer again has no effect. Another one comes too late.
    assert_eq!(api.answer(&seats, given.clone()).await.status, 200);
    let late = api.answer(&seats, approve(json!({"seats": 3}))).await;
    assert_eq!((late.status, &late.json()["error"]["code"]), (409, &json!("already_decided")));
    let stale = json!({"tool_id": "t1a1c0", "arguments_sha256": "00"});
    let stale = api.answer(&stale, json!({"decision": "approve"})).await;
    assert_eq!((stale.status, &stale.json()["error"]["code"]), (409, &json!("stale_approval")));
    assert_eq!(api.answer(&sign_in, json!({"decision": "approve"})).await.status, 200);
    let report = within(run.report).await.unwrap();
    assert_eq!(report.calls[0].result, "{\"class\":\"second\",\"seats\":2} null");
    // After the run the answers are known from the journal.
    assert_eq!(api.answer(&seats, given).await.status, 200);
    assert_eq!(api.answer(&seats, approve(json!({"seats": 3}))).await.status, 409);
    let session = &api.world.session;
    let asked = session.records(callsheet::Seq(0)).await.unwrap();
    assert_eq!(callsheet::journal::verify(session.id(), &asked), []);
    api.world.assert_paired();
}

#[tokio::test]
async fn a_late_watcher_reads_the_questions_and_a_stop_ends_the_open_one() {
    let api = api().await;
    let run = api.world.session.start_run("go").await.unwrap();
    let seats = api.question(&Value::Null).await;
    let rejected = json!({"decision": "reject", "message": "no"});
    assert_eq!(api.answer(&seats, rejected).await.status, 200);
    let sign_in = api.question(&seats).await;
    api.world.session.stop(callsheet::StopMode::Now).await.unwrap();
    let report = within(run.report).await.unwrap();
    assert_eq!((report.run_end, report.calls[0].status), (RunEnd::Stopped, ToolStatus::Cancelled));
    let gone = api.answer(&sign_in, json!({"decision": "approve"})).await;
    assert_eq!((gone.status, &gone.json()["error"]["code"]), (404, &json!("no_such_approval")));
    let shown = events(run.events).await;
    let shown = shown.iter().filter(|event| event["type"] == "tool_approval");
    let messages: Vec<_> = shown.map(|event| event["message"].as_str().unwrap()).collect();
    assert_eq!(messages, ["How many seats?", "Sign in."]);
}
