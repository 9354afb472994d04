//! Approvals: requests before and after a call, decisions, expiry and stops, over real HTTP.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use crate::client::{HttpConnection, HttpResponse, post};
use crate::support::tools::{CallControl, registry};
use crate::support::{World, parallel, results, until_event, within, world};
use callsheet::config::{ApprovalPolicy, Config, RunOverrides, ToolOverride};
use callsheet::runtime::{RunReport, RunRequest};
use callsheet::server::{self, ServerHandle, ServerOptions};
use callsheet::telemetry::{FeedItem, Subscription};
use callsheet::types::{ApprovalVerdict, RunEnd, ToolStatus};
use callsheet_mock_provider::{Call, Response, Script};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Of `{"id":"a"}`.
const SHA256_OF_A: &str = "8489a5deb454a360345c7868bca8672de92b446caf3d3b014af6a56e3d549d30";

fn call(tool: &str, id: &str) -> Call {
    Call::new(tool, json!({"id": id})).id(&format!("call-{id}"))
}

/// A host with its HTTP API and one session.
struct Api {
    world: World,
    server: ServerHandle,
    control: CallControl,
}

/// Starts a host whose tools need approval, with a model that makes the calls and then answers.
async fn api(
    calls: impl IntoIterator<Item = Call>,
    asking: &[(&str, ApprovalPolicy)],
    change: impl FnOnce(&mut Config),
) -> Api {
    scripted(Script::new([Response::calls(calls)]).then_done(), asking, change).await
}

async fn scripted(
    script: Script,
    asking: &[(&str, ApprovalPolicy)],
    change: impl FnOnce(&mut Config),
) -> Api {
    let control = CallControl::new();
    let world = world(script, registry(&control), |config| {
        for (tool, approval) in asking {
            let change = ToolOverride::default().with(|new| new.approval = Some(*approval));
            config.tools.insert((*tool).to_owned(), change);
        }
        change(config);
    })
    .await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = server::serve(listener, world.host.clone(), ServerOptions::default()).unwrap();
    Api { world, server, control }
}

impl Api {
    fn path(&self, rest: &str) -> String {
        format!("/v1/sessions/{}{rest}", self.world.session.id())
    }

    async fn send(&self, request: String) -> HttpResponse {
        let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        let mut reading = HttpConnection::open(self.server.addr(), &request).await;
        within(reading.read_rest()).await;
        reading.response()
    }

    async fn decide(&self, tool_id: &str, body: Value) -> HttpResponse {
        let path = self.path(&format!("/approvals/{tool_id}"));
        self.send(post(&path, "", &body.to_string())).await
    }

    /// Sends a decision about an approval request and expects it to be accepted.
    async fn answer(&self, request: &Value, decision: &str, message: Option<&str>) {
        let mut body =
            json!({"decision": decision, "arguments_sha256": request["arguments_sha256"]});
        if let Some(message) = message {
            body["message"] = message.into();
        }
        let tool_id = request["tool_id"].as_str().unwrap();
        let answer = self.decide(tool_id, body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json(), json!({"tool_id": tool_id, "decision": decision}));
    }

    async fn current_run(&self) -> Value {
        let path = self.path("");
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.send(request).await.json()["current_run"].clone()
    }

    async fn stop(&self, mode: &str) {
        let body = json!({"mode": mode}).to_string();
        assert_eq!(self.send(post(&self.path("/stop"), "", &body)).await.status, 202);
    }

    /// Returns the only tool result of the last model request.
    fn last_tool_result(&self) -> String {
        let messages = self.world.last_messages();
        let results = results(&messages);
        assert_eq!(results.len(), 1, "{results:?}");
        results[0].1.to_owned()
    }
}

/// Waits for the next approval request.
async fn next_approval(events: &mut Subscription) -> Value {
    within(async {
        while let Some(FeedItem::Event(published)) = events.next().await {
            for event in published.public() {
                let event: Value = serde_json::from_str(&event.json).unwrap();
                if event["type"] == "tool_approval" {
                    return event;
                }
            }
        }
        panic!("no approval was requested");
    })
    .await
}

fn result(report: &RunReport, index: usize) -> (ToolStatus, &str) {
    (report.calls[index].status, &report.calls[index].result)
}

#[tokio::test]
async fn a_call_runs_after_its_approval() {
    let api = api([call("writes", "a")], &[("writes", ApprovalPolicy::BEFORE)], |_| {}).await;
    let mut run = api.world.session.start_run("go").await.unwrap();
    until_event(&mut run.events, |event| event["waiting_for"] == "approval").await;
    let pending = next_approval(&mut run.events).await;
    let expected = json!({
        "tool_id": "t1a1c0", "tool_name": "writes", "phase": "before", "input": {"id": "a"},
        "arguments_sha256": SHA256_OF_A, "output_summary": null,
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(pending[key], *value, "{key}");
    }
    // A late watcher sees the same request.
    let mut listed = api.current_run().await["approvals"].clone();
    let asked_at = listed[0].as_object_mut().unwrap().remove("asked_at").unwrap();
    assert!(asked_at.as_u64().unwrap() > 1_600_000_000_000);
    assert_eq!(listed, json!([expected]));
    assert_eq!(api.control.log(), [""; 0]);
    api.answer(&pending, "approve", None).await;
    let report = within(run.report).await.unwrap();
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(result(&report, 0), (ToolStatus::Ok, "done a"));
    let call = &report.calls[0];
    assert_eq!((call.approval, call.result_rejected), (Some(ApprovalVerdict::Approved), false));
    assert_eq!(call.reject_reason, None);
    assert_eq!(api.last_tool_result(), "done a");
    assert_eq!(api.current_run().await, Value::Null);
    api.world.assert_paired();
}

#[tokio::test]
async fn a_rejected_call_never_runs_and_the_model_gets_the_reason() {
    let api = api([call("writes", "a")], &[("writes", ApprovalPolicy::BEFORE)], |_| {}).await;
    let mut run = api.world.session.start_run("go").await.unwrap();
    let pending = next_approval(&mut run.events).await;
    api.answer(&pending, "reject", Some("not on a \"Sunday\"")).await;
    let report = within(run.report).await.unwrap();
    assert_eq!(api.last_tool_result(), r#"{"status":"rejected","message":"not on a \"Sunday\""}"#);
    assert_eq!(api.control.log(), [""; 0]);
    let call = &report.calls[0];
    assert_eq!(
        (call.status, call.approval),
        (ToolStatus::Refused, Some(ApprovalVerdict::Rejected))
    );
    assert_eq!(call.reject_reason.as_deref(), Some("not on a \"Sunday\""));
    assert_eq!((call.result_rejected, call.started_ms), (false, None));
    assert_eq!(call.metadata, json!({"error": true, "kind": "rejected"}));
    let page = api.world.host.telemetry().render();
    assert!(page.contains("callsheet_approvals_total{verdict=\"rejected\"} 1\n"), "{page}");
    api.world.assert_paired();
}

#[tokio::test]
async fn an_expired_approval_counts_as_a_rejection() {
    let api = api([call("writes", "a")], &[], |config| {
        let change = ToolOverride::default().with(|new| {
            new.approval = Some(ApprovalPolicy::BEFORE);
            new.approval_timeout = Some(Duration::from_millis(20));
        });
        config.tools.insert("writes".to_owned(), change);
    })
    .await;
    let mut run = api.world.session.start_run("go").await.unwrap();
    let pending = next_approval(&mut run.events).await;
    let report = within(run.report).await.unwrap();
    let expected = "not run: no decision about the call arrived in time";
    assert_eq!(
        api.last_tool_result(),
        format!(r#"{{"status":"rejected","message":"{expected}"}}"#)
    );
    let call = &report.calls[0];
    assert_eq!((call.status, call.approval), (ToolStatus::Refused, Some(ApprovalVerdict::Expired)));
    assert_eq!(call.reject_reason.as_deref(), Some("no decision arrived in time"));
    assert_eq!(call.metadata["kind"], "approval_expired");
    // Later decisions are refused.
    for decision in ["approve", "reject"] {
        let hash = &pending["arguments_sha256"];
        let late = json!({"decision": decision, "arguments_sha256": hash});
        let late = api.decide("t1a1c0", late).await;
        assert_eq!(late.error(), (409, "already_decided".to_owned()));
    }
    assert_eq!(api.control.log(), [""; 0]);
}

#[tokio::test]
async fn a_result_reaches_the_model_after_its_approval() {
    let api = api([call("writes", "a")], &[("writes", ApprovalPolicy::AFTER)], |_| {}).await;
    let mut run = api.world.session.start_run("go").await.unwrap();
    let pending = next_approval(&mut run.events).await;
    assert_eq!(
        (&pending["phase"], &pending["output_summary"]),
        (&json!("after"), &json!("done a"))
    );
    assert_eq!(api.control.log(), ["start a", "end a"]);
    assert_eq!(api.world.requests().len(), 1);
    api.answer(&pending, "approve", None).await;
    let report = within(run.report).await.unwrap();
    assert_eq!(result(&report, 0), (ToolStatus::Ok, "done a"));
    assert_eq!(report.calls[0].approval, Some(ApprovalVerdict::Approved));
    assert_eq!(api.last_tool_result(), "done a");
}

#[tokio::test]
async fn a_rejected_result_is_neither_sent_nor_stored() {
    let api = api([call("writes", "a")], &[("writes", ApprovalPolicy::AFTER)], |_| {}).await;
    let mut run = api.world.session.start_run("go").await.unwrap();
    let pending = next_approval(&mut run.events).await;
    api.answer(&pending, "reject", Some("private")).await;
    let expected = r#"{"status":"rejected","message":"private"}"#;
    until_event(&mut run.events, |event| {
        event["type"] == "tool_result"
            && event["status"] == "refused"
            && event["output_summary"] == expected
    })
    .await;
    let report = within(run.report).await.unwrap();
    assert_eq!(result(&report, 0), (ToolStatus::Refused, expected));
    let call = &report.calls[0];
    assert_eq!((call.approval, call.result_rejected), (Some(ApprovalVerdict::Rejected), true));
    assert!(call.started_ms.is_some(), "it ran");
    assert_eq!(api.last_tool_result(), expected);
    for request in api.world.requests() {
        assert!(!request.body.to_string().contains("done a"), "{}", request.body);
    }
    api.world.assert_paired();
}

#[tokio::test]
async fn approvals_are_decided_in_any_order_and_results_keep_call_order() {
    let calls = ["a", "b", "c"].map(|id| call("writes", id));
    let api = api(calls, &[("writes", ApprovalPolicy::BEFORE)], parallel(1)).await;
    let mut run = api.world.session.start_run("go").await.unwrap();
    let mut pending = Vec::new();
    for _ in 0..3 {
        pending.push(next_approval(&mut run.events).await);
    }
    let pending = api.current_run().await["approvals"].clone();
    let ids: Vec<&Value> = pending.as_array().unwrap().iter().map(|one| &one["tool_id"]).collect();
    assert_eq!(ids, ["t1a1c0", "t1a1c1", "t1a1c2"]);
    api.answer(&pending[2], "approve", None).await;
    api.control.until_logged("end c").await;
    api.answer(&pending[0], "reject", Some("no")).await;
    assert_eq!(api.current_run().await["approvals"].as_array().unwrap().len(), 1);
    api.answer(&pending[1], "approve", None).await;
    within(run.report).await.unwrap();
    assert_eq!(api.control.log(), ["start c", "end c", "start b", "end b"]);
    assert_eq!(
        results(&api.world.last_messages()),
        [
            ("call-a", r#"{"status":"rejected","message":"no"}"#),
            ("call-b", "done b"),
            ("call-c", "done c"),
        ]
    );
}

#[tokio::test]
async fn an_invalid_decision_is_refused_with_a_reason() {
    let api = api([call("writes", "a")], &[("writes", ApprovalPolicy::BEFORE)], |_| {}).await;
    let early = json!({"decision": "approve", "arguments_sha256": SHA256_OF_A});
    let none = (404, "no_such_approval".to_owned());
    assert_eq!(api.decide("t1a1c0", early.clone()).await.error(), none);
    let mut run = api.world.session.start_run("go").await.unwrap();
    next_approval(&mut run.events).await;
    for tool_id in ["t1a1c1", "t2a1c0", "t1a2c0", "t01a1c0", "writes", "%20"] {
        assert_eq!(api.decide(tool_id, early.clone()).await.error(), none, "{tool_id}");
    }
    let invalid = (400, "invalid_request".to_owned());
    let nowhere = (404, "not_found".to_owned());
    assert_eq!(api.decide("%ff", early.clone()).await.error(), nowhere);
    let long = "x".repeat(4001);
    for (body, expect) in [
        (json!({"decision": "approve", "arguments_sha256": "0"}), (409, "stale_approval".into())),
        (json!({"decision": "approve"}), invalid.clone()),
        (json!({"decision": "perhaps", "arguments_sha256": SHA256_OF_A}), invalid.clone()),
        (json!({"arguments_sha256": SHA256_OF_A}), invalid.clone()),
        (
            json!({"decision": "reject", "arguments_sha256": SHA256_OF_A, "message": long}),
            invalid.clone(),
        ),
        (
            json!({"decision": "approve", "arguments_sha256": SHA256_OF_A, "phase": "after"}),
            none.clone(),
        ),
    ] {
        assert_eq!(api.decide("t1a1c0", body.clone()).await.error(), expect, "{body}");
    }
    let hint = api.decide("t1a1c0", json!({"decision": "approve"})).await;
    assert!(hint.body.contains("current_run.approvals"), "{hint:?}");
    assert_eq!(api.control.log(), [""; 0]);
    // The first valid decision is final, during the run and after it.
    let before = json!({"decision": "approve", "arguments_sha256": SHA256_OF_A, "phase": "before"});
    let counted = api.decide("t1a1c0", before.clone()).await;
    assert_eq!(
        counted.json(),
        json!({"tool_id": "t1a1c0", "phase": "before", "decision": "approve"})
    );
    within(run.report).await.unwrap();
    assert_eq!(api.decide("t1a1c0", before).await.status, 200);
    let stale = json!({"decision": "approve", "arguments_sha256": "0"});
    assert_eq!(api.decide("t1a1c0", stale).await.error(), (409, "stale_approval".to_owned()));
    let other = json!({"decision": "reject", "arguments_sha256": SHA256_OF_A});
    assert_eq!(api.decide("t1a1c0", other).await.error(), (409, "already_decided".to_owned()));
}

#[tokio::test]
async fn a_waiting_call_delays_only_calls_that_depend_on_its_start() {
    let calls = [call("writes", "w"), call("quick", "q"), call("slow_write", "x")];
    let api = api(calls, &[("writes", ApprovalPolicy::BEFORE)], |config| {
        parallel(1)(config);
        let alone = ToolOverride::default().with(|new| new.exclusive = Some(true));
        config.tools.insert("slow_write".to_owned(), alone);
    })
    .await;
    api.control.release("x");
    let mut run = api.world.session.start_run("go").await.unwrap();
    let pending = next_approval(&mut run.events).await;
    until_event(&mut run.events, |event| event["waiting_for"] == "exclusive").await;
    // The only permit of `max` is free for the next call.
    api.control.until_logged("end q").await;
    assert_eq!(api.control.log(), ["start q", "end q"]);
    api.answer(&pending, "approve", None).await;
    within(run.report).await.unwrap();
    assert_eq!(api.control.log()[2..], ["start w", "end w", "start x", "end x"]);
}

#[tokio::test]
async fn in_sequential_execution_later_calls_wait_for_the_approval() {
    let calls = [call("writes", "w"), call("quick", "q")];
    let api = api(calls, &[("writes", ApprovalPolicy::BEFORE)], |_| {}).await;
    let mut run = api.world.session.start_run("go").await.unwrap();
    let pending = next_approval(&mut run.events).await;
    assert_eq!(api.control.log(), [""; 0]);
    api.answer(&pending, "approve", None).await;
    within(run.report).await.unwrap();
    assert_eq!(api.control.log(), ["start w", "end w", "start q", "end q"]);
}

#[tokio::test]
async fn stop_now_cancels_calls_that_wait_for_approval() {
    let calls = [call("writes", "a"), call("quick", "b")];
    let asking = [("writes", ApprovalPolicy::AFTER), ("quick", ApprovalPolicy::BEFORE)];
    let api = api(calls, &asking, parallel(4)).await;
    let mut run = api.world.session.start_run("go").await.unwrap();
    next_approval(&mut run.events).await;
    next_approval(&mut run.events).await;
    api.stop("now").await;
    let report = within(run.report).await.unwrap();
    assert_eq!(report.run_end, RunEnd::Stopped);
    assert_eq!(api.control.log(), ["start a", "end a"]);
    let (status, text) = result(&report, 0);
    assert_eq!(status, ToolStatus::Refused);
    assert!(
        text.contains("it ran, but the run was ended before its result was approved"),
        "{text}"
    );
    let never = "Error: not started: the run was ended before";
    assert_eq!(result(&report, 1), (ToolStatus::Cancelled, never));
    assert_eq!((report.calls[0].approval, report.calls[1].approval), (None, None));
    // A decision after the stop is refused.
    let late = json!({"decision": "approve", "arguments_sha256": SHA256_OF_A});
    assert_eq!(api.decide("t1a1c0", late).await.error(), (404, "no_such_approval".to_owned()));
    assert_eq!(api.world.run("and now?").await.run_end, RunEnd::Answered);
    for request in api.world.requests() {
        assert!(!request.body.to_string().contains("done a"), "{}", request.body);
    }
    api.world.assert_paired();
    api.world.until_idle().await;
}

#[tokio::test]
async fn stop_after_turn_waits_for_approvals_and_sends_no_further_request() {
    let api = api([call("writes", "a")], &[("writes", ApprovalPolicy::BEFORE)], |_| {}).await;
    let mut run = api.world.session.start_run("go").await.unwrap();
    let pending = next_approval(&mut run.events).await;
    api.stop("after_turn").await;
    api.answer(&pending, "approve", None).await;
    let report = within(run.report).await.unwrap();
    assert_eq!(report.run_end, RunEnd::Stopped);
    assert_eq!(result(&report, 0), (ToolStatus::Ok, "done a"));
    assert_eq!(api.world.requests().len(), 1);
}

#[tokio::test]
async fn a_broken_response_voids_its_approval_requests() {
    let broken = Response::calls([call("quick", "a"), call("quick", "b")]);
    let broken = broken.with(|response| response.truncate = true);
    let script = Script::new([broken, Response::calls([call("quick", "a")])]).then_done();
    let api = scripted(script, &[("quick", ApprovalPolicy::BEFORE)], parallel(4)).await;
    let mut run = api.world.session.start_run("go").await.unwrap();
    let void = next_approval(&mut run.events).await;
    assert_eq!(void["tool_id"], "t1a1c0");
    until_event(&mut run.events, |event| event["status"] == "discarded").await;
    let pending = next_approval(&mut run.events).await;
    assert_eq!(pending["tool_id"], "t1a2c0");
    let late = json!({"decision": "approve", "arguments_sha256": void["arguments_sha256"]});
    assert_eq!(api.decide("t1a1c0", late).await.error(), (404, "no_such_approval".to_owned()));
    assert_eq!(api.current_run().await["approvals"][0]["tool_id"], "t1a2c0");
    api.answer(&pending, "approve", None).await;
    let report = within(run.report).await.unwrap();
    assert_eq!((report.calls.len(), result(&report, 0)), (1, (ToolStatus::Ok, "done a")));
    assert_eq!(api.control.log(), ["start a", "end a"]);
}

#[tokio::test]
async fn identical_calls_share_one_approval() {
    for (decision, expected) in
        [("approve", "done a"), ("reject", r#"{"status":"rejected","message":"no"}"#)]
    {
        let again = Call::new("writes", json!({"id": "a"})).id("again");
        let asking = [("writes", ApprovalPolicy::BEFORE)];
        let api = api([call("writes", "a"), again], &asking, parallel(4)).await;
        let mut run = api.world.session.start_run("go").await.unwrap();
        let pending = next_approval(&mut run.events).await;
        assert_eq!(api.current_run().await["approvals"].as_array().unwrap().len(), 1);
        api.answer(&pending, decision, Some("no")).await;
        let report = within(run.report).await.unwrap();
        assert_eq!(
            results(&api.world.last_messages()),
            [("call-a", expected), ("again", expected)],
            "{decision}"
        );
        assert_eq!(report.calls[1].metadata["duplicate_of"], "t1a1c0");
        assert!(api.control.log().len() <= 2);
    }
}

#[tokio::test]
async fn a_run_may_add_approvals_but_not_remove_them() {
    let calls = || [Response::calls([call("writes", "a")]), Response::text("All done.")];
    let script = Script::new(calls().into_iter().chain(calls()));
    let api = scripted(script, &[("writes", ApprovalPolicy::BEFORE)], |_| {}).await;
    let never = json!({"input": "go", "approval": "never"}).to_string();
    let refused = api.send(post(&api.path("/runs"), "", &never)).await;
    assert_eq!(refused.error(), (400, "limit_too_high".to_owned()));
    assert!(refused.body.contains("(writes: before)"), "{refused:?}");
    let wrong = json!({"input": "go", "approval": "both"}).to_string();
    let wrong = api.send(post(&api.path("/runs"), "", &wrong)).await;
    assert_eq!(wrong.error(), (400, "invalid_request".to_owned()));

    // Each phase has its own request.
    let mut events = api.world.session.subscribe().await.unwrap();
    let more = json!({"input": "go", "approval": "after"}).to_string();
    assert_eq!(api.send(post(&api.path("/runs"), "", &more)).await.status, 202);
    let before = next_approval(&mut events).await;
    assert_eq!(before["phase"], "before");
    api.answer(&before, "approve", None).await;
    let after = next_approval(&mut events).await;
    assert_eq!((&after["phase"], &after["tool_id"]), (&json!("after"), &json!("t1a1c0")));
    let hash = &before["arguments_sha256"];
    let body = |decision: &str, phase: &str| json!({"decision": decision, "arguments_sha256": hash, "phase": phase});
    let again = api.decide("t1a1c0", body("approve", "before")).await;
    assert_eq!(again.status, 200, "{again:?}");
    let other = api.decide("t1a1c0", body("reject", "before")).await;
    assert_eq!(other.error(), (409, "already_decided".to_owned()));
    let stale = json!({"decision": "approve", "arguments_sha256": "0", "phase": "before"});
    assert_eq!(api.decide("t1a1c0", stale).await.error(), (409, "stale_approval".to_owned()));
    // Repeating the approval to run does not approve the result.
    let twice = json!({"decision": "approve", "arguments_sha256": hash});
    assert_eq!(api.decide("t1a1c0", twice).await.error(), (409, "phase_needed".to_owned()));
    assert_eq!(api.decide("t1a1c0", body("reject", "after")).await.status, 200);
    until_event(&mut events, |event| event["type"] == "stream_end").await;
    assert_eq!(api.control.log(), ["start a", "end a"]);
    let expected = "it ran, but a person rejected its result";
    assert_eq!(
        api.last_tool_result(),
        format!(r#"{{"status":"rejected","message":"{expected}"}}"#)
    );
}

#[tokio::test]
async fn a_run_may_remove_approvals_if_its_agent_allows_it() {
    let api = api([call("writes", "a")], &[("writes", ApprovalPolicy::BEFORE)], |config| {
        config.agents.get_mut("default").unwrap().allow_overrides = true;
    })
    .await;
    let overrides = RunOverrides::default().with(|new| new.approval = Some(ApprovalPolicy::NEVER));
    let request = RunRequest::default().with(|new| {
        new.input = "go".into();
        new.overrides = overrides;
    });
    let report = within(api.world.session.run(request)).await.unwrap();
    assert_eq!(result(&report, 0), (ToolStatus::Ok, "done a"));
    assert_eq!(report.calls[0].approval, None);
}

#[tokio::test]
async fn deleting_a_session_cancels_calls_that_wait_for_approval() {
    let api = api([call("writes", "a")], &[("writes", ApprovalPolicy::BEFORE)], |_| {}).await;
    let mut run = api.world.session.start_run("go").await.unwrap();
    let pending = next_approval(&mut run.events).await;
    let path = api.path("");
    let gone = api.send(format!("DELETE {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
    assert_eq!(gone.status, 204);
    let report = within(run.report).await.unwrap();
    assert_eq!(report.run_end, RunEnd::Stopped);
    assert_eq!(result(&report, 0).0, ToolStatus::Cancelled);
    let late = json!({"decision": "approve", "arguments_sha256": pending["arguments_sha256"]});
    assert_eq!(api.decide("t1a1c0", late).await.error(), (404, "no_such_session".to_owned()));
}

#[tokio::test]
async fn finished_results_are_visible_and_stored_while_a_slow_call_runs() {
    let calls = [call("quick", "a"), call("slow_write", "b"), call("quick", "c")];
    let api = api(calls, &[], parallel(4)).await;
    let mut run = api.world.session.start_run("go").await.unwrap();
    api.control.until_logged("start b").await;
    until_event(&mut run.events, |event| {
        event["type"] == "tool_result" && event["provider_id"] == "call-c"
    })
    .await;
    let current = api.current_run().await;
    assert_eq!(current["turn"], 1);
    let seen = current["results"].as_array().unwrap();
    let seen: Vec<_> = seen.iter().map(|call| (&call["tool_id"], &call["result"])).collect();
    // Results are released in call order, so later ones wait for the slow call.
    assert_eq!(seen, [(&json!("t1a1c0"), &json!("done a"))]);
    api.stop("now").await;
    let report = within(run.report).await.unwrap();
    let kept: Vec<_> = report.calls.iter().map(|call| call.result.as_str()).collect();
    let perhaps = "Error: cancelled while running: it may or may not have happened";
    assert_eq!(kept, ["done a", perhaps, "done c"]);
}
