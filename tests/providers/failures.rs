//! Failures of calls and attempts stay contained, over real HTTP.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::tools::{CallControl, registry};
use crate::support::{World, events, parallel, results, until_event, within, world, world_of};
use callsheet::config::{BaseUrl, Config, ModelConfig, ToolLoading, ToolPattern};
use callsheet::journal::{Journal, MemoryJournal};
use callsheet::record::{Record, Seq, StopMode};
use callsheet::runtime::{Host, OpenSession, SessionHandle};
use callsheet::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use callsheet::types::{RunEnd, ToolStatus, Wire};
use callsheet_mock_provider::{Call, Finish, MockProvider, Response, Script, ScriptPosition};
use futures::StreamExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};

fn call(tool: &str, id: &str) -> Call {
    Call::new(tool, json!({"id": id})).id(&format!("call-{id}"))
}

fn model(config: &mut Config) -> &mut callsheet::config::ModelConfig {
    config.models.get_mut("rehearsal").expect("the offline model")
}

fn limits(config: &mut Config) -> &mut callsheet::config::Limits {
    &mut config.agents.get_mut("default").expect("the agent").limits
}

async fn scripted(responses: impl IntoIterator<Item = Response>) -> (World, CallControl) {
    let control = CallControl::new();
    let world = world(Script::new(responses), registry(&control), parallel(8)).await;
    (world, control)
}

#[tokio::test]
async fn a_panic_an_error_and_a_hang_end_only_their_own_calls() {
    let control = CallControl::new();
    let calls = [
        call("panics", "a"),
        call("fails", "b"),
        call("hangs", "c"),
        call("nobody", "d"),
        Call::new("quick", json!({"id": 7})).id("call-e"),
        Call::raw("quick", "{\"id\": \"f").id("call-f"),
        call("quick", "g"),
    ];
    let script = Script::new([Response::calls(calls), Response::text("Well.")]);
    let world = world(script, registry(&control), |config| {
        parallel(8)(config);
        limits(config).tool_timeout = Some(Duration::from_millis(400));
        limits(config).cancel_grace = Duration::from_millis(10);
    })
    .await;
    let report = world.run("go").await;
    let seen: Vec<_> = report
        .calls
        .iter()
        .map(|call| (call.status, call.metadata["kind"].as_str().unwrap_or("-")))
        .collect();
    assert_eq!(
        seen,
        [
            (ToolStatus::Failed, "panic"),
            (ToolStatus::Failed, "tool_error"),
            (ToolStatus::TimedOut, "timeout"),
            (ToolStatus::Failed, "unknown_tool"),
            (ToolStatus::Failed, "invalid_arguments"),
            (ToolStatus::Failed, "cut_off_arguments"),
            (ToolStatus::Ok, "-"),
        ]
    );
    assert_eq!(report.calls[1].result, "Error: it does not work");
    assert_eq!(report.calls[2].result, "Error: Execution timeout after 400ms");
    assert_eq!(report.run_end, RunEnd::Answered);
    let messages = world.last_messages();
    let ids: Vec<_> = results(&messages).iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, ["call-a", "call-b", "call-c", "call-d", "call-e", "call-f", "call-g"]);
    let sent = messages.iter().find(|message| message["role"] == "assistant");
    let arguments = &sent.expect("the calls")["tool_calls"][5]["function"]["arguments"];
    assert_eq!(arguments, "{}", "cut-off arguments are sent as an empty object");
    world.assert_paired();
}

/// Runs against a faulty first response and returns the reasons of the attempts.
async fn recovers_from(fault: Response) -> Vec<String> {
    let control = CallControl::new();
    let script = Script::new([fault, Response::text("Now it works.")]);
    let world = world(script, registry(&control), |config| {
        model(config).first_event_timeout = Duration::from_millis(300);
        model(config).answer_timeout = Duration::from_millis(300);
        model(config).idle_timeout = Duration::from_millis(300);
        model(config).progress_timeout = Duration::from_millis(400);
    })
    .await;
    let started = world.session.start_run("go").await.expect("a run");
    let events = events(started.events).await;
    let report = within(started.report).await.expect("a report");
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Now it works."));
    assert_eq!(world.requests().len(), 2);
    world.assert_paired();
    let attempts = events.iter().filter(|event| event["type"] == "attempt");
    attempts.map(|event| event["reason"].as_str().expect("a reason").to_owned()).collect()
}

fn text() -> Response {
    Response::text("This is an answer that will not come whole.")
}

#[tokio::test]
async fn a_cut_stream_is_retried() {
    let cut = recovers_from(Response { cut_after_chunks: Some(3), ..text() }).await;
    assert_eq!(cut.len(), 1);
    recovers_from(Response { cut_after_bytes: Some(50), ..text() }).await;
}

#[tokio::test]
async fn a_stream_without_a_finish_is_retried() {
    let reasons = recovers_from(Response { truncate: true, ..text() }).await;
    assert_eq!(reasons, ["the response ended without a finish reason"]);
}

#[tokio::test]
async fn a_stalled_stream_is_retried_despite_keep_alives() {
    let stalled = Response { stall_after_chunks: Some(2), ..text() };
    let endless = Response { keep_alive_ms: Some(20), ..stalled.clone() };
    let late = Response { stall_after_chunks: Some(0), ..text() };
    for (fault, limit) in
        [(stalled, "idle_timeout"), (endless, "progress_timeout"), (late, "first_event_timeout")]
    {
        let reasons = recovers_from(fault).await;
        assert!(reasons[0].contains(limit), "{limit}: {reasons:?}");
    }
}

#[tokio::test]
async fn after_silence_the_next_attempts_stream_again() {
    let silent = || Response { stall_after_chunks: Some(1), ..text() };
    let control = CallControl::new();
    let script = Script::new([silent(), silent(), silent(), Response::text("At last.")]);
    let world = world(script, registry(&control), |config| {
        model(config).idle_timeout = Duration::from_millis(50);
        model(config).max_attempts = 4;
    })
    .await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "At last."));
    let streamed: Vec<_> = world.requests().iter().map(|r| r.body["stream"].clone()).collect();
    assert_eq!(streamed, vec![Value::Bool(true); 4]);
}

/// Returns a response that begins, then gives signs of life 60 times, and ends with the text "Thought.".
fn thought(wire: Wire) -> Response {
    let (begin, of_life, rest) = match wire {
        Wire::OpenaiChat => (
            vec![json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})],
            None,
            vec![
                json!({"choices": [{"index": 0, "delta": {"content": "Thought."}, "finish_reason": "stop"}]}),
            ],
        ),
        Wire::OpenaiResponses => (
            vec![
                json!({"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}}),
            ],
            Some(json!({"type": "keepalive", "sequence_number": 3})),
            vec![
                json!({"type": "response.completed", "response": {"id": "r", "status": "completed",
                "output": [{"type": "message", "id": "m", "role": "assistant",
                    "content": [{"type": "output_text", "text": "Thought."}]}]}}),
            ],
        ),
        Wire::AnthropicMessages => (
            vec![
                json!({"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [],
                    "usage": {"input_tokens": 3, "output_tokens": 1}}}),
                json!({"type": "content_block_start", "index": 0,
                    "content_block": {"type": "thinking", "thinking": ""}}),
            ],
            Some(json!({"type": "ping"})),
            vec![
                json!({"type": "content_block_delta", "index": 0,
                    "delta": {"type": "signature_delta", "signature": "s"}}),
                json!({"type": "content_block_stop", "index": 0}),
                json!({"type": "content_block_start", "index": 1,
                    "content_block": {"type": "text", "text": "Thought."}}),
                json!({"type": "content_block_stop", "index": 1}),
                json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                    "usage": {"output_tokens": 9}}),
                json!({"type": "message_stop"}),
            ],
        ),
        Wire::GeminiGenerate => (
            vec![json!({"candidates": [{"index": 0, "content": {"role": "model", "parts": []}}]})],
            Some(
                json!({"candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": ""}]}}]}),
            ),
            vec![json!({"candidates": [{"index": 0, "finishReason": "STOP",
                "content": {"role": "model", "parts": [{"text": "Thought."}]}}]})],
        ),
        _ => {
            let line = |content: &str, done: bool| {
                json!({"model": "m", "done": done, "done_reason": "stop",
                    "message": {"role": "assistant", "content": content}})
            };
            (
                vec![line("", false)],
                Some(line("", false)),
                vec![line("Thought.", false), line("", true)],
            )
        }
    };
    let is_lines = wire == Wire::OllamaChat;
    let framed = |payload: Value| match is_lines {
        true => format!("{payload}\n"),
        false => format!("data: {payload}\n\n"),
    };
    let sign = of_life.map_or_else(|| ": keep-alive\n\n".to_owned(), framed);
    let chunks =
        begin.into_iter().map(framed).chain(vec![sign; 60]).chain(rest.into_iter().map(framed));
    let content_type = if is_lines { "application/x-ndjson" } else { "text/event-stream" };
    Response { chunk_delay_ms: Some(25), ..Response::raw(content_type, chunks) }
}

#[tokio::test]
async fn a_long_thought_with_signs_of_life_is_one_request_on_every_wire() {
    let wires = Wire::NAMES.map(|(_, wire)| wire);
    futures::future::join_all(wires.map(|wire| async move {
        let script = Script::new([thought(wire)]);
        let world = world_of(wire, script, ToolRegistry::new(), |config| {
            // The thought is longer than all limits but that of progress.
            model(config).first_event_timeout = Duration::from_millis(1_000);
            model(config).idle_timeout = Duration::from_millis(1_000);
            model(config).progress_timeout = Duration::from_secs(600);
        })
        .await;
        let report = world.run("go").await;
        assert_eq!(
            (report.run_end, report.text.as_str()),
            (RunEnd::Answered, "Thought."),
            "{wire}"
        );
        assert_eq!(world.requests().len(), 1, "{wire}");
    }))
    .await;
}

/// A service that announces to keep connections, and closes each one: behind its first answer, on the next request, or
/// by a reset on the next request.
struct ClosingService {
    base_url: BaseUrl,
    requests: Arc<AtomicUsize>,
}

impl ClosingService {
    /// Starts a service. A connection for whose number `answers` returns false is closed without an answer.
    fn start(answers: impl Fn(usize) -> bool + Clone + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let base_url = BaseUrl::parse(&format!("http://{address}/v1")).expect("an address");
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        std::thread::spawn(move || {
            for (number, connection) in listener.incoming().enumerate() {
                let (answers, counted) = (answers.clone(), Arc::clone(&counted));
                let connection = connection.expect("a connection");
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(connection);
                    let Some(request) = read_request(&mut reader) else { return };
                    counted.fetch_add(1, Ordering::SeqCst);
                    if !answers(number) {
                        return;
                    }
                    let answer = answer_to(&request);
                    if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                    match number % 3 {
                        0 => {}
                        1 => {
                            let repeated = read_request(&mut reader).iter().count();
                            counted.fetch_add(repeated, Ordering::SeqCst);
                        }
                        // A connection that is closed with unread bytes is reset.
                        _ => {
                            let _ = reader.get_ref().peek(&mut [0]);
                        }
                    }
                });
            }
        });
        Self { base_url, requests }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    async fn host(&self, stream: bool) -> Host {
        let model = ModelConfig::new(self.base_url.clone(), "m").with(|new| new.stream = stream);
        Host::builder().model("main", model).start().await.expect("a host")
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Value> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(serde_json::from_slice(&body).expect("a request"))
}

fn answer_to(request: &Value) -> String {
    let head = "HTTP/1.1 200 OK\r\nkeep-alive: timeout=5, max=100\r\n";
    if request["stream"] != true {
        let body = json!({"choices": [{"message": {"content": "Well."}, "finish_reason": "stop"}]})
            .to_string();
        let length = body.len();
        return format!(
            "{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
    }
    let piece =
        json!({"choices": [{"index": 0, "delta": {"content": "Well."}, "finish_reason": "stop"}]});
    let body = format!("data: {piece}\n\ndata: [DONE]\n\n");
    let length = body.len();
    format!(
        "{head}content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
         {length:x}\r\n{body}\r\n0\r\n\r\n"
    )
}

/// Returns the failed attempts of a session's runs.
async fn failed_attempts(session: &SessionHandle) -> Vec<String> {
    let records = session.records(Seq(0)).await.expect("the records");
    let failed = records.into_iter().filter_map(|entry| match entry.record {
        Record::AttemptFailed { error, .. } => Some(error.message),
        _ => None,
    });
    failed.collect()
}

#[tokio::test]
async fn no_attempt_is_lost_to_a_service_that_closes_connections() {
    for stream in [true, false] {
        let service = ClosingService::start(|_| true);
        let host = service.host(stream).await;
        let sessions = (0..20).map(|number| (number, &host));
        futures::stream::iter(sessions)
            .for_each_concurrent(4, |(number, host)| async move {
                let session =
                    host.open_session(format!("s{number}").as_str()).await.expect("a session");
                for _ in 0..50 {
                    let report = within(session.run("go")).await.expect("a report");
                    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Well."));
                }
                assert_eq!(failed_attempts(&session).await, [""; 0]);
            })
            .await;
        // A run needs one request, and a lost one is sent again. The client may notice that a connection is closed
        // before it sends on it, so the number of lost requests depends on the machine.
        assert!(service.requests() > 1_000, "no request was lost: {}", service.requests());
        host.shutdown().await;
    }
}

#[tokio::test]
async fn a_request_is_repeated_once_and_a_fresh_connection_that_fails_counts() {
    for stream in [true, false] {
        // The first connection is closed on its second request.
        let service = ClosingService::start(|number| number == 1);
        let host = service.host(stream).await;
        let session = host.open_session("s").await.expect("a session");
        let report = within(session.run("go")).await.expect("a report");
        assert_eq!(report.run_end, RunEnd::Answered);
        let failed = failed_attempts(&session).await;
        let advice = "(use https:// if it speaks TLS)";
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert!(failed[0].ends_with(advice), "the service has answered nothing yet: {failed:?}");
        assert_eq!(service.requests(), 2);
        let report = within(session.run("go")).await.expect("a report");
        assert_eq!(report.run_end, RunEnd::Failed);
        let failed = failed_attempts(&session).await;
        assert_eq!(failed.len(), 4, "{failed:?}");
        let closed =
            |message: &String| message.ends_with(" closed the connection without an answer");
        assert!(failed[1..].iter().all(closed), "{failed:?}");
        // The reused connection, and a fresh one for each attempt.
        assert_eq!(service.requests(), 2 + 1 + 3);
        host.shutdown().await;
    }
}

#[tokio::test]
async fn malformed_chunks_and_streamed_errors_are_retried() {
    recovers_from(Response { malformed_at_chunk: Some(2), ..text() }).await;
    recovers_from(Response { finish_reason: Finish::Word("error".into()), ..text() }).await;
}

#[tokio::test]
async fn server_errors_and_rate_limits_are_retried() {
    recovers_from(Response::status(500)).await;
    recovers_from(Response::status(503)).await;
    let limited = Response { retry_after: Some("1".into()), ..Response::status(429) };
    let started = std::time::SystemTime::now();
    recovers_from(limited).await;
    assert!(started.elapsed().expect("time goes on") >= Duration::from_secs(1), "it was waited");
}

/// Returns an error response with the header `x-should-retry`.
fn should_retry(word: &str, status: u16) -> Response {
    let headers = [("x-should-retry".to_owned(), word.to_owned())].into();
    Response { headers, ..Response::status(status) }
}

#[tokio::test]
async fn x_should_retry_decides_about_a_retry() {
    recovers_from(should_retry("true", 422)).await;
    for status in [429, 503] {
        let (world, _) = scripted([should_retry("false", status)]).await;
        assert_eq!(world.run("go").await.run_end, RunEnd::Failed);
        assert_eq!(world.requests().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn retry_after_as_a_date_is_respected() {
    for (wait, earliest_ms, latest_ms) in [(100, 95_000, 100_000), (-100, 0, 500)] {
        let date = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(wait);
        let date = httpdate::fmt_http_date(date.into());
        let limited = Response { retry_after: Some(date), ..Response::status(429) };
        let (world, _) = scripted([limited]).await;
        let mut run = world.session.start_run("go").await.expect("a run");
        until_event(&mut run.events, |event| {
            let waits = event["wait_ms"].as_u64().filter(|_| event["type"] == "attempt");
            waits.is_some_and(|ms| (earliest_ms..=latest_ms).contains(&ms))
        })
        .await;
        world.session.stop(StopMode::Now).await.expect("a stop");
    }
}

#[tokio::test]
async fn an_error_that_comes_with_status_200_is_judged_like_its_own_status() {
    let event_with_error = |code: u16, kind: &str| {
        let error = json!({"error": {"message": "so it is", "code": code}}).to_string();
        let body = if kind == "application/json" { error } else { format!("data: {error}\n\n") };
        Response::raw(kind, [body])
    };
    for kind in ["application/json", "text/event-stream"] {
        recovers_from(event_with_error(503, kind)).await;
        let (world, _) = scripted([event_with_error(401, kind)]).await;
        let report = world.run("go").await;
        assert_eq!((report.run_end, world.requests().len()), (RunEnd::Failed, 1), "{kind}");
        // The header of a response applies to the error in its stream.
        let limited = Response { retry_after: Some("100".into()), ..event_with_error(429, kind) };
        let (world, _) = scripted([limited]).await;
        let mut run = world.session.start_run("go").await.expect("a run");
        until_event(&mut run.events, |event| event["wait_ms"] == 100_000).await;
        world.session.stop(StopMode::Now).await.expect("a stop");
        let headers = should_retry("false", 200).headers;
        let (world, _) = scripted([Response { headers, ..event_with_error(503, kind) }]).await;
        let report = world.run("go").await;
        assert_eq!((report.run_end, world.requests().len()), (RunEnd::Failed, 1), "{kind}");
    }
}

#[tokio::test]
async fn plain_responses_are_retried_without_a_rollback() {
    let control = CallControl::new();
    let answers = [
        Response::status(503),
        Response { cut_after_chunks: Some(1), ..text() },
        Response::raw("application/json", [""]),
        Response::text("Plainly."),
    ];
    let world = world(Script::new(answers), registry(&control), |config| {
        model(config).stream = false;
        model(config).max_attempts = 4;
    })
    .await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Plainly."));
    let streamed = world.requests().iter().filter(|r| r.body["stream"] == true).count();
    assert_eq!((world.requests().len(), streamed), (4, 0));
    let page = world.host.telemetry().render();
    assert!(page.contains("\nstreaming_rollbacks_total 0\n"));
}

#[tokio::test]
async fn a_body_that_is_not_a_response_is_retried() {
    recovers_from(Response::raw("text/event-stream", [""])).await;
    recovers_from(Response::raw("application/json", [""])).await;
    recovers_from(Response::raw("text/html", ["<!doctype html><p>Log in"])).await;
    // The service sends an error and keeps the stream open.
    let event_with_error = "data: {\"error\":{\"message\":\"overloaded\"}}\n\n";
    let open = Response {
        stall_after_chunks: Some(1),
        ..Response::raw("text/event-stream", [event_with_error])
    };
    recovers_from(open).await;
}

#[tokio::test]
async fn permanent_errors_end_the_run_with_the_services_message() {
    let error =
        json!({"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}});
    let denied = Response { error: Some(error), ..Response::status(401) };
    let (world, _) = scripted([denied]).await;
    let report = world.run("go").await;
    assert_eq!(report.run_end, RunEnd::Failed);
    let error = report.error.expect("an error");
    assert_eq!(error.code, "provider_error");
    assert!(error.message.contains("Incorrect API key provided"), "{}", error.message);
    assert_eq!(world.requests().len(), 1);
}

#[tokio::test]
async fn after_two_broken_streams_a_plain_response_is_requested() {
    let cut = || Response { cut_after_chunks: Some(2), ..text() };
    let (world, _) = scripted([cut(), cut(), Response::text("Plainly.")]).await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Plainly."));
    let streamed: Vec<_> = world.requests().iter().map(|r| r.body["stream"].clone()).collect();
    assert_eq!(streamed[..2], [Value::Bool(true), Value::Bool(true)]);
    assert_ne!(streamed[2], Value::Bool(true));
    let page = world.host.telemetry().render();
    assert!(page.contains("\nstreaming_rollbacks_total 1\n"));
}

#[tokio::test]
async fn after_the_last_attempt_the_run_fails_and_the_session_continues() {
    let cut = || Response { cut_after_chunks: Some(2), ..text() };
    let (world, _) = scripted([cut(), cut(), cut(), Response::text("Hello again.")]).await;
    let failed = world.run("go").await;
    assert_eq!(failed.run_end, RunEnd::Failed);
    assert!(failed.error.expect("an error").transient);
    let report = world.run("and now?").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Hello again."));
    world.assert_paired();
}

#[tokio::test]
async fn a_pure_result_of_a_broken_stream_is_reused_and_effects_wait_for_a_complete_one() {
    let calls = || [call("quick", "a"), call("writes", "b")];
    let broken = Response::calls(calls()).hold(ScriptPosition::Finish, "broken");
    let broken = Response { truncate: true, ..broken };
    let (world, control) =
        scripted([broken, Response::calls(calls()), Response::text("Done.")]).await;
    let started = world.session.start_run("go").await.expect("a run");
    within(world.model.wait_for_gate("broken")).await;
    control.until_logged("end a").await;
    world.model.open_gate("broken");
    let report = within(started.report).await.expect("a report");
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(control.log(), ["start a", "end a", "start b", "end b"]);
    assert_eq!(report.calls[0].metadata, json!({"reused": true}));
    world.assert_paired();
}

#[tokio::test]
async fn a_response_cut_by_length_refuses_calls_that_did_not_start() {
    let calls = [call("quick", "a"), call("writes", "b")];
    let cut = Response { finish_reason: Finish::Word("length".into()), ..Response::calls(calls) };
    let (world, control) = scripted([cut, Response::text("Done.")]).await;
    let report = world.run("go").await;
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(control.log(), ["start a", "end a"]);
    assert_eq!(
        results(&world.last_messages()),
        [("call-a", "done a"), ("call-b", "Error: not run: the response was cut off")]
    );
    world.assert_paired();
}

#[tokio::test]
async fn a_filtered_response_ends_the_run_as_refused_without_open_calls() {
    let calls = [call("quick", "a"), call("writes", "b")];
    let filtered = Finish::Word("content_filter".into());
    let filtered = Response { finish_reason: filtered, ..Response::calls(calls) };
    let (world, control) = scripted([filtered, Response::text("Hello again.")]).await;
    assert_eq!(world.run("go").await.run_end, RunEnd::Refused);
    assert!(!control.log().contains(&"start b".to_owned()));
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
    world.assert_paired();
}

#[tokio::test]
async fn after_max_turns_a_final_answer_without_tools_is_requested() {
    let control = CallControl::new();
    let responses = [
        Response::calls([call("quick", "a")]),
        Response::calls([call("quick", "b")]),
        Response { text: vec!["So far.".into()], ..Response::calls([call("quick", "c")]) },
    ];
    let world = world(Script::new(responses), registry(&control), |config| {
        limits(config).max_turns = Some(2);
    })
    .await;
    let started = world.session.start_run("go").await.expect("a run");
    let events = events(started.events).await;
    let report = within(started.report).await.expect("a report");
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::MaxTurns, "So far."));
    assert_eq!((report.turns, report.stats.turns), (2, 2), "the last request does not count");
    let stats = events.iter().rfind(|event| event["type"] == "session_stats").expect("sums");
    assert_eq!(stats["turns"], 2);
    assert_eq!(control.log(), ["start a", "end a", "start b", "end b"]);
    let last = &world.requests()[2].body;
    assert_eq!(last["tool_choice"], "none");
    assert!(!last["tools"].as_array().expect("tools are listed").is_empty());
    let limit = events.iter().find(|event| event["type"] == "limit_reached").expect("the event");
    assert_eq!((&limit["limit"], &limit["maximum"]), (&json!("max_turns"), &json!(2)));
    world.assert_paired();
}

#[tokio::test]
async fn repeated_turns_with_only_failed_calls_end_the_run() {
    let failing = |id: &str| Response::calls([call("fails", id), call("nobody", id)]);
    let (world, control) = scripted(["a", "b", "c"].map(failing)).await;
    let started = world.session.start_run("go").await.expect("a run");
    let events = events(started.events).await;
    let report = within(started.report).await.expect("a report");
    assert_eq!(report.run_end, RunEnd::AllToolsFailed);
    let text = "All tool calls failed. Please check the error messages and try again.";
    assert_eq!(report.text, text);
    assert_eq!((control.log().len(), world.requests().len()), (3, 3));
    let limit = events.iter().find(|event| event["type"] == "limit_reached").expect("the event");
    assert_eq!((&limit["limit"], &limit["maximum"]), (&json!("max_failed_turns"), &json!(3)));
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
    world.assert_paired();
}

#[tokio::test]
async fn four_calls_where_three_may_run() {
    let refused = "Error: not run: at most 3 tool calls are run per response. \
                   Send the call again in a later response if it is still needed.";
    let done = [("call-a", "done a"), ("call-b", "done b"), ("call-c", "done c")];
    for (on_excess, answered) in [("answer", 4), ("truncate", 3)] {
        let control = CallControl::new();
        let calls = ["a", "b", "c", "d"].map(|id| call("quick", id));
        let script = Script::new([Response::calls(calls), Response::text("Done.")]);
        let world = world(script, registry(&control), |config| {
            limits(config).max_tool_calls_per_turn = Some(3);
            if on_excess == "truncate" {
                limits(config).on_excess = callsheet::config::OnExcess::Truncate;
            }
        })
        .await;
        assert_eq!(world.run("go").await.run_end, RunEnd::Answered);
        let expected = [&done[..], &[("call-d", refused)]].concat();
        assert_eq!(results(&world.last_messages()), expected[..answered]);
        let sent = world.last_messages();
        let assistant = sent.iter().find(|message| message["role"] == "assistant");
        let calls = assistant.and_then(|message| message["tool_calls"].as_array()).expect("calls");
        assert_eq!(calls.len(), answered, "only answered calls have events");
        assert_eq!(control.log().len(), 6);
        world.assert_paired();
    }
}

#[tokio::test]
async fn on_excess_fail_ends_the_run_and_the_session_continues() {
    let control = CallControl::new();
    let calls = ["a", "b", "c", "d"].map(|id| call("quick", id));
    let script = Script::new([Response::calls(calls), Response::text("Hello again.")]);
    let world = world(script, registry(&control), |config| {
        limits(config).max_tool_calls_per_turn = Some(3);
        limits(config).on_excess = callsheet::config::OnExcess::Fail;
    })
    .await;
    let report = world.run("go").await;
    assert_eq!(report.run_end, RunEnd::Failed);
    let message = "TOOL_CALL_LIMIT_EXCEEDED: received at least 4, maximum 3, turn 1";
    assert_eq!(report.error.expect("an error").message, message);
    assert_eq!(control.log(), [""; 0]);
    assert_eq!(world.run("and now?").await.run_end, RunEnd::Answered);
    let refused = "Error: not run: the response held more than the 3 tool calls that are allowed, \
                   and the run was ended.";
    let expected = ["call-a", "call-b", "call-c"].map(|id| (id, refused));
    assert_eq!(results(&world.last_messages()), expected);
    world.assert_paired();
}

#[tokio::test]
async fn without_multi_tool_calls_only_the_first_call_is_kept() {
    let control = CallControl::new();
    let calls = ["a", "b"].map(|id| call("quick", id));
    let script = Script::new([Response::calls(calls), Response::text("Done.")]);
    let world = world(script, registry(&control), |config| {
        config.agents.get_mut("default").expect("the agent").multi_tool_calls = false;
    })
    .await;
    let started = world.session.start_run("go").await.expect("a run");
    let events = events(started.events).await;
    assert_eq!(control.log(), ["start a", "end a"]);
    assert_eq!(results(&world.last_messages()), [("call-a", "done a")]);
    assert_eq!(world.requests()[0].body["parallel_tool_calls"], false);
    let end = events.iter().find(|event| event["type"] == "turn_end").expect("a turn");
    assert_eq!((&end["tool_calls"], &end["dropped_calls"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn an_agent_without_tools_offers_none() {
    let world = world(Script::new([Response::text("Hi.")]), ToolRegistry::new(), |_| {}).await;
    assert_eq!(world.run("go").await.text, "Hi.");
    let body = world.requests()[0].body.clone();
    assert!(body.get("tools").is_none() && body.get("tool_choice").is_none());
}

#[tokio::test]
async fn a_response_that_is_too_large_fails_without_a_retry() {
    let endless = Response { text: vec!["word ".repeat(100); 100], ..text() };
    let control = CallControl::new();
    let world = world(Script::new([endless, text()]), registry(&control), |config| {
        model(config).max_response_bytes = 10_000;
    })
    .await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, world.requests().len()), (RunEnd::Failed, 1));
    let error = report.error.expect("an error").message;
    assert!(
        error.contains("the response is larger than 10000 bytes (max_response_bytes)"),
        "{error}"
    );
}

#[tokio::test]
async fn a_plain_response_above_64_mib_is_read_if_the_model_allows_it() {
    let message = json!({"role": "assistant", "content": "Hello again."});
    let body = json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    let spaces = std::iter::repeat_n(vec![b' '; 1 << 20], 65);
    let large = Response::raw("application/json", spaces.chain([body.to_string().into_bytes()]));
    let world = world(Script::new([large]), ToolRegistry::new(), |config| {
        (model(config).stream, model(config).max_response_bytes) = (false, 128 << 20);
    })
    .await;
    let report = world.run("go").await;
    assert_eq!((report.error, report.text.as_str()), (None, "Hello again."));
}

/// A service of one wire that refuses requests by a rule, and otherwise answers with a text, or first with a call.
struct StrictService {
    address: String,
    requests: Arc<Mutex<Vec<Value>>>,
}

/// Returns the refusal of a request: its status and its error.
type Rule = Arc<dyn Fn(&Value) -> Option<(u16, Value)> + Send + Sync>;

/// Returns the call for a request that has no result of a call yet.
type Calls = fn(&Value) -> Option<(String, Value)>;

impl StrictService {
    async fn start(wire: Wire, rule: Rule, calls: Calls) -> Self {
        let requests: Arc<Mutex<Vec<Value>>> = Arc::default();
        let received = Arc::clone(&requests);
        let handle = move |axum::Json(body): axum::Json<Value>| {
            received.lock().push(body.clone());
            let (status, answer) = rule(&body).unwrap_or_else(|| (200, answer(wire, calls(&body))));
            let status = axum::http::StatusCode::from_u16(status).expect("a status");
            std::future::ready((status, axum::Json(answer)))
        };
        let app = axum::Router::new().fallback(axum::routing::post(handle));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        drop(tokio::spawn(async move { axum::serve(listener, app).await }));
        Self { address, requests }
    }

    fn configure(&self, wire: Wire, config: &mut Config) {
        let model = model(config);
        model.base_url = BaseUrl::parse(&self.address).expect("an address");
        (model.wire, model.stream) = (wire, false);
    }

    /// Returns the names of the tools in each request, without the one that the host adds.
    fn tools(&self) -> Vec<Vec<String>> {
        let names = |body: &Value| {
            let names = tool_names(body).into_iter();
            names.filter(|name| name != "read_var").collect()
        };
        self.requests.lock().iter().map(names).collect()
    }
}

fn has_result(body: &Value) -> bool {
    let text = body.to_string();
    ["\"tool_result\"", "function_call_output", "functionResponse", "\"role\":\"tool\""]
        .iter()
        .any(|mark| text.contains(mark))
}

/// Returns the definitions of tools in a request of any wire.
fn definitions(body: &Value) -> Vec<Value> {
    let tools = body["tools"].as_array().cloned().unwrap_or_default();
    let of_gemini = tools.first().and_then(|tool| tool["functionDeclarations"].as_array().cloned());
    let unwrapped =
        |tool: Value| if tool["function"].is_object() { tool["function"].clone() } else { tool };
    of_gemini.unwrap_or(tools).into_iter().map(unwrapped).collect()
}

fn tool_names(body: &Value) -> Vec<String> {
    let tools = definitions(body);
    tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
}

/// Returns a plain answer: a call, or a text.
fn answer(wire: Wire, call: Option<(String, Value)>) -> Value {
    match (wire, call) {
        (Wire::OpenaiChat, None) => {
            json!({"choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]})
        }
        (Wire::OpenaiChat, Some((name, arguments))) => {
            let function = json!({"name": name, "arguments": arguments.to_string()});
            let call = json!({"id": "c1", "type": "function", "function": function});
            json!({"choices": [{"message": {"role": "assistant", "tool_calls": [call]},
                "finish_reason": "tool_calls"}]})
        }
        (Wire::OpenaiResponses, None) => {
            json!({"status": "completed", "output": [{"type": "message", "role": "assistant",
                "content": [{"type": "output_text", "text": "ok"}]}]})
        }
        (Wire::OpenaiResponses, Some((name, arguments))) => {
            json!({"status": "completed", "output": [{"type": "function_call", "call_id": "c1",
                "name": name, "arguments": arguments.to_string()}]})
        }
        (Wire::AnthropicMessages, None) => {
            json!({"type": "message", "role": "assistant", "stop_reason": "end_turn",
                "content": [{"type": "text", "text": "ok"}]})
        }
        (Wire::AnthropicMessages, Some((name, arguments))) => {
            let call = json!({"type": "tool_use", "id": "c1", "name": name, "input": arguments});
            json!({"type": "message", "role": "assistant", "stop_reason": "tool_use", "content": [call]})
        }
        (Wire::GeminiGenerate, None) => {
            json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "ok"}]},
                "finishReason": "STOP"}]})
        }
        (Wire::GeminiGenerate, Some((name, arguments))) => {
            let call = json!({"functionCall": {"name": name, "args": arguments}});
            json!({"candidates": [{"content": {"role": "model", "parts": [call]}, "finishReason": "STOP"}]})
        }
        (Wire::OllamaChat, None) => {
            json!({"message": {"role": "assistant", "content": "ok"}, "done": true, "done_reason": "stop"})
        }
        (Wire::OllamaChat, Some((name, arguments))) => {
            let call = json!({"function": {"name": name, "arguments": arguments}});
            json!({"message": {"role": "assistant", "content": "", "tool_calls": [call]},
                "done": true, "done_reason": "stop"})
        }
    }
}

const WIRES: [Wire; 5] = [
    Wire::OpenaiChat,
    Wire::OpenaiResponses,
    Wire::AnthropicMessages,
    Wire::GeminiGenerate,
    Wire::OllamaChat,
];

/// Returns tools of these names, each with one property of this schema. They log their arguments.
fn tools_with(property: (&str, Value), names: &[&str]) -> (ToolRegistry, CallControl) {
    let (mut tools, control) = (ToolRegistry::new(), CallControl::new());
    for name in names {
        let schema = json!({"type": "object", "required": [property.0],
            "properties": {property.0: property.1}});
        let spec = ToolSpec::with_json_schema(*name, "For a test.", schema).expect("a schema");
        tools.register(Logging { spec, control: control.clone() }).expect("the names differ");
    }
    (tools, control)
}

/// A tool that logs its arguments.
struct Logging {
    spec: ToolSpec,
    control: CallControl,
}

#[async_trait::async_trait]
impl Tool for Logging {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments: Value = context.input()?;
        self.control.note(format!("{} {arguments}", self.spec.name));
        Ok("done".into())
    }
}

/// A world whose model is a strict service.
async fn strict_world(
    wire: Wire,
    service: &StrictService,
    tools: ToolRegistry,
    journal: &Arc<MemoryJournal>,
) -> World {
    let model = MockProvider::with_script(Script::new([])).await.expect("a provider");
    let mut config = Config::default();
    config.set_rehearsal(BaseUrl::parse(&model.base_url()).expect("its address"));
    service.configure(wire, &mut config);
    let agent = config.agents.get_mut("default").expect("the agent");
    agent.tools = vec![ToolPattern::new("*")];
    agent.tool_loading = ToolLoading::All;
    let journal: Arc<dyn Journal> = Arc::<MemoryJournal>::clone(journal);
    let host = Host::builder().config(config).tools(tools).journal(journal);
    let host = host.start().await.expect("a host");
    let session = host.open_session(OpenSession::default()).await.expect("a session");
    World { model, host, session }
}

fn no_call(_: &Value) -> Option<(String, Value)> {
    None
}

#[tokio::test]
async fn a_tool_that_a_refusal_names_is_set_aside_for_the_model_and_stays_so_after_a_restart() {
    for wire in WIRES {
        let rule: Rule = Arc::new(move |body: &Value| {
            let at = tool_names(body).iter().position(|name| name == "bad")?;
            let message = match wire {
                Wire::OpenaiChat => "Invalid schema for function 'bad': it is odd".to_owned(),
                Wire::OpenaiResponses => format!("Invalid 'tools[{at}].parameters': it is odd"),
                Wire::AnthropicMessages => format!("tools.{at}.custom.input_schema: it is odd"),
                Wire::GeminiGenerate => {
                    format!("* Request.tools[0].function_declarations[{at}].parameters: it is odd")
                }
                _ => "invalid tool definition for tool bad: it is odd".to_owned(),
            };
            Some((400, json!({"error": {"type": "invalid_request_error", "message": message}})))
        });
        let service = StrictService::start(wire, rule, no_call).await;
        let journal = Arc::new(MemoryJournal::new());
        let names = ["alpha", "bad", "zulu"];
        let tools = || tools_with(("id", json!({"type": "string"})), &names).0;
        let world = strict_world(wire, &service, tools(), &journal).await;
        let started = world.session.start_run("go").await.expect("a run");
        let events = events(started.events).await;
        let report = within(started.report).await.expect("a report");
        assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "ok"), "{wire}");
        let event =
            events.iter().find(|event| event["type"] == "tool_set_aside").expect("an event");
        assert_eq!(event["tool_name"], "bad");
        assert!(event["reason"].as_str().expect("a reason").contains("odd"), "{event}");
        world.run("again").await;
        let all = vec!["alpha", "bad", "zulu"];
        let rest = vec!["alpha", "zulu"];
        assert_eq!(service.tools(), [all, rest.clone(), rest.clone()], "{wire}");
        let page = world.host.telemetry().render();
        assert!(page.contains("callsheet_tools_set_aside{model=\"rehearsal\"} 1"), "{page}");
        let breaks = "callsheet_prompt_prefix_breaks_total{reason=\"tool_set_aside\"} 1";
        assert!(page.contains(breaks), "{page}");
        world.host.shutdown().await;
        let world = strict_world(wire, &service, tools(), &journal).await;
        assert_eq!(world.run("go").await.run_end, RunEnd::Answered);
        assert_eq!(service.tools().len(), 4);
        assert_eq!(service.tools()[3], rest);
        let page = world.host.telemetry().render();
        assert!(page.contains("callsheet_tools_set_aside{model=\"rehearsal\"} 1"), "{page}");
    }
}

#[tokio::test]
async fn a_tool_whose_grammar_cannot_be_compiled_is_found_by_halving() {
    let names: Vec<String> = (0..40).map(|number| format!("tool_{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for bad in ["tool_00", "tool_17", "tool_39"] {
        let rule: Rule = Arc::new(move |body: &Value| {
            let has_bad = tool_names(body).iter().any(|name| name == bad);
            let message = "Failed to initialize samplers: failed to parse grammar";
            has_bad.then(|| (400, json!({"error": {"code": 400, "message": message}})))
        });
        let service = StrictService::start(Wire::OpenaiChat, rule, no_call).await;
        let journal = Arc::new(MemoryJournal::new());
        let odd = ("id", json!({"type": "string", "format": "uuid"}));
        let world =
            strict_world(Wire::OpenaiChat, &service, tools_with(odd, &names).0, &journal).await;
        let report = world.run("go").await;
        assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "ok"));
        let sent = service.tools();
        assert!(sent.len() <= 8, "{} requests", sent.len());
        let rest: Vec<&str> = names.iter().copied().filter(|name| *name != bad).collect();
        assert_eq!(sent.last().expect("a request"), &rest);
        world.run("again").await;
        assert_eq!(service.tools().len(), sent.len() + 1);
        assert_eq!(service.tools().last().expect("a request"), &rest);
    }
}

#[tokio::test]
async fn names_that_a_service_refuses_are_mapped_on_the_way_out_and_back() {
    for (wire, pattern) in [(Wire::AnthropicMessages, "_.-"), (Wire::GeminiGenerate, "_")] {
        let fits = move |name: &str| {
            name.len() <= 64
                && name.chars().all(|c| c.is_ascii_alphanumeric() || pattern.contains(c))
        };
        let rule: Rule = Arc::new(move |body: &Value| {
            definitions(body).into_iter().find_map(|tool| {
                let name = tool["name"].as_str().expect("a name");
                let schema =
                    if tool["parameters"].is_object() { "parameters" } else { "input_schema" };
                let mut properties = tool[schema]["properties"].as_object().expect("some").keys();
                let begins = !name.starts_with(|c: char| c.is_ascii_digit());
                let is_valid =
                    properties.all(|name| fits(name)) && (begins || wire != Wire::GeminiGenerate);
                (!is_valid).then(|| (400, json!({"error": {"message": "a name is invalid"}})))
            })
        });
        let calls: Calls = |body| {
            let tool = definitions(body).into_iter().next()?;
            let schema = if tool["parameters"].is_object() { "parameters" } else { "input_schema" };
            let property = tool[schema]["properties"].as_object()?.keys().next()?.clone();
            let arguments = json!({property: "x"});
            (!has_result(body))
                .then(|| (tool["name"].as_str().unwrap_or_default().to_owned(), arguments))
        };
        let service = StrictService::start(wire, rule, calls).await;
        let journal = Arc::new(MemoryJournal::new());
        let odd = ("$filter[a b]", json!({"type": "string"}));
        let (tools, control) = tools_with(odd, &["3d_view"]);
        let world = strict_world(wire, &service, tools, &journal).await;
        let report = world.run("go").await;
        assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "ok"), "{wire}");
        assert_eq!(control.log(), [r#"3d_view {"$filter[a b]":"x"}"#]);
        assert_eq!(&*report.calls[0].tool_name, "3d_view");
        // The history shows the call as the model made it.
        let requests = service.requests.lock().clone();
        let sent = definitions(&requests[0]).remove(0);
        let history = requests[1].to_string();
        let schema = if sent["parameters"].is_object() { "parameters" } else { "input_schema" };
        let alias = sent[schema]["properties"].as_object().expect("some").keys().next();
        assert!(history.contains(&format!("{{\"{}\":\"x\"}}", alias.expect("one"))), "{history}");
        world.run("again").await;
        let requests = service.requests.lock().clone();
        assert_eq!(requests[1]["tools"], requests[2]["tools"]);
        let page = world.host.telemetry().render();
        assert!(page.contains("prefix_breaks_total{reason=\"unexplained\"} 0"), "{page}");
    }
}

#[tokio::test]
async fn an_output_that_the_service_could_not_read_is_asked_for_again() {
    for wire in WIRES {
        let failures = Arc::new(AtomicUsize::new(0));
        let (count, rules) = (Arc::clone(&failures), AtomicUsize::new(0));
        let rule: Rule = Arc::new(move |_: &Value| {
            let failed = rules.fetch_add(1, Ordering::Relaxed);
            let written = format!("<function=clock>{{\"zone\": \"UTC{}\"}}", "x".repeat(failed));
            let error = json!({"message": "Failed to call a function.", "code": "tool_use_failed",
                "type": "invalid_request_error", "failed_generation": written});
            (failed < count.load(Ordering::Relaxed)).then(|| (400, json!({"error": error})))
        });
        failures.store(2, Ordering::Relaxed);
        let service = StrictService::start(wire, rule, no_call).await;
        let journal = Arc::new(MemoryJournal::new());
        let (tools, _) = tools_with(("id", json!({"type": "string"})), &["clock"]);
        let world = strict_world(wire, &service, tools, &journal).await;
        let report = world.run("go").await;
        assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "ok"), "{wire}");
        assert_eq!(service.tools().len(), 3, "{wire}");
    }
    // The same output again is not asked for a third time.
    let rule: Rule = Arc::new(|_: &Value| {
        let message =
            "The model produced output that does not match the expected peg-native format";
        Some((500, json!({"error": {"code": 500, "message": message}})))
    });
    let service = StrictService::start(Wire::OpenaiChat, rule, no_call).await;
    let journal = Arc::new(MemoryJournal::new());
    let world = strict_world(Wire::OpenaiChat, &service, ToolRegistry::new(), &journal).await;
    let report = world.run("go").await;
    assert_eq!(report.run_end, RunEnd::Failed);
    assert_eq!(service.tools().len(), 2);
}

#[tokio::test]
async fn an_agent_with_more_tools_than_a_service_accepts_searches_them() {
    for (wire, is_limited) in
        WIRES.map(|wire| (wire, matches!(wire, Wire::OpenaiChat | Wire::OpenaiResponses)))
    {
        let names: Vec<String> = (0..130).map(|number| format!("tool_{number:03}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let service = StrictService::start(wire, Arc::new(|_| None), no_call).await;
        let journal = Arc::new(MemoryJournal::new());
        let (tools, _) = tools_with(("id", json!({"type": "string"})), &names);
        let world = strict_world(wire, &service, tools, &journal).await;
        assert_eq!(world.run("go").await.run_end, RunEnd::Answered);
        let sent = service.tools().remove(0);
        match is_limited {
            true => {
                assert!(sent.contains(&"find_tools".to_owned()) && sent.len() <= 128, "{sent:?}")
            }
            false => assert!(sent.len() >= 130, "{wire}"),
        }
    }
}

/// A tool with effects that deletes everything unless its arguments say what.
struct Purge(CallControl, bool);

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct PurgeInput {
    folder: Option<String>,
}

#[async_trait::async_trait]
impl Tool for Purge {
    fn spec(&self) -> ToolSpec {
        let spec = ToolSpec::new::<PurgeInput>("purge", "For a test.");
        if self.1 { spec.start_on_seal() } else { spec }
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let PurgeInput { folder } = context.input()?;
        let folder = folder.unwrap_or_else(|| "ALL".to_owned());
        self.0.note(folder.clone());
        Ok(format!("purged {folder}").into())
    }
}

fn sse(payloads: &[Value]) -> Response {
    let chunks = payloads.iter().map(|payload| format!("data: {payload}\n\n"));
    Response::raw("text/event-stream", chunks.map(String::into_bytes).collect::<Vec<_>>())
}

/// Returns chunks of Chat Completions: index, name (of which the id follows) and arguments.
fn chat(pieces: &[(u64, &str, &str)]) -> Response {
    let mut chunks: Vec<Value> = pieces
        .iter()
        .map(|(index, name, arguments)| {
            let mut call = json!({"index": index, "function": {"arguments": arguments}});
            if !name.is_empty() {
                call["id"] = format!("id_{index}_{name}").into();
                call["function"]["name"] = (*name).into();
            }
            json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
        })
        .collect();
    chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}));
    sse(&chunks)
}

/// Returns events of Anthropic's wire for `purge`: the index of the block, and its arguments, `start` or `stop`.
fn blocks(events: &[(u64, &str)]) -> Response {
    let mut all = vec![json!({"type": "message_start", "message": {"role": "assistant"}})];
    all.extend(events.iter().map(|(index, text)| match *text {
        "start" => json!({"type": "content_block_start", "index": index, "content_block":
            {"type": "tool_use", "id": format!("toolu_{index}"), "name": "purge", "input": {}}}),
        "stop" => json!({"type": "content_block_stop", "index": index}),
        text => json!({"type": "content_block_delta", "index": index,
            "delta": {"type": "input_json_delta", "partial_json": text}}),
    }));
    all.push(json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}));
    all.push(json!({"type": "message_stop"}));
    sse(&all)
}

/// Returns events of the Responses API for `purge`: the index of the item, and its arguments, `added`, or `done`
/// before complete arguments.
fn items(events: &[(u64, &str)]) -> Response {
    let mut all: Vec<Value> = events
        .iter()
        .map(|(index, text)| match (*text, text.strip_prefix("done")) {
            ("added", _) => json!({"type": "response.output_item.added", "output_index": index,
                "item": {"type": "function_call", "id": format!("fc_{index}"), "arguments": "",
                    "call_id": format!("call_{index}"), "name": "purge"}}),
            (_, Some(arguments)) => json!({"type": "response.function_call_arguments.done",
                "output_index": index, "arguments": arguments}),
            (text, None) => json!({"type": "response.function_call_arguments.delta",
                "output_index": index, "item_id": format!("fc_{index}"), "delta": text}),
        })
        .collect();
    all.push(json!({"type": "response.completed", "response": {"status": "completed"}}));
    sse(&all)
}

const TMP: &str = "{\"folder\":\"tmp\"}";
const OLD: &str = "{\"folder\":\"old\"}";

/// Runs a response whose pieces have wrong indexes, and returns what was purged and the number of requests.
async fn purged(wire: Wire, response: Response, on_seal: bool) -> (Vec<String>, usize, World) {
    let control = CallControl::new();
    let mut tools = ToolRegistry::new();
    tools.register(Purge(control.clone(), on_seal)).expect("a new name");
    let script = Script::new([response, Response::text("Done.")]).then_done();
    let world = world_of(wire, script, tools, parallel(8)).await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "Done."));
    let requests = world.requests().len();
    world.assert_paired();
    (control.log(), requests, world)
}

#[tokio::test]
async fn arguments_under_another_index_go_to_the_only_call_without_arguments() {
    let (head, rest) = TMP.split_at(9);
    let (chat_wire, anthropic) = (Wire::OpenaiChat, Wire::AnthropicMessages);
    let responses = Wire::OpenaiResponses;
    for (wire, response, folders) in [
        (chat_wire, chat(&[(0, "purge", ""), (1, "", TMP)]), vec!["tmp"]),
        (chat_wire, chat(&[(0, "purge", ""), (1, "", head), (2, "", rest)]), vec!["tmp"]),
        (chat_wire, chat(&[(0, "purge", ""), (0, "", head), (1, "", rest)]), vec!["tmp"]),
        (
            chat_wire,
            chat(&[(0, "purge", ""), (1, "", TMP), (1, "purge", ""), (2, "", OLD)]),
            vec!["tmp", "old"],
        ),
        // Pieces that interleave by their right indexes.
        (
            chat_wire,
            chat(&[(0, "purge", head), (1, "purge", ""), (1, "", OLD), (0, "", rest)]),
            vec!["tmp", "old"],
        ),
        (anthropic, blocks(&[(0, "start"), (1, head), (1, rest), (1, "stop")]), vec!["tmp"]),
        (anthropic, blocks(&[(0, "start"), (1, TMP), (0, "stop")]), vec!["tmp"]),
        (
            anthropic,
            blocks(&[(1, "start"), (1, head), (1, "stop"), (2, "start"), (1, rest), (2, OLD)]),
            vec!["tmp", "old"],
        ),
        (
            anthropic,
            blocks(&[(1, "start"), (1, "stop"), (2, "start"), (1, TMP), (2, OLD), (2, "stop")]),
            vec!["tmp", "old"],
        ),
        (responses, items(&[(0, "added"), (1, head), (1, rest)]), vec!["tmp"]),
        (responses, items(&[(0, "added"), (1, head), (2, rest)]), vec!["tmp"]),
        (responses, items(&[(0, "added"), (1, &format!("done{TMP}"))]), vec!["tmp"]),
        (
            responses,
            items(&[(0, "added"), (1, "added"), (0, head), (1, OLD), (0, rest)]),
            vec!["tmp", "old"],
        ),
    ] {
        let how = format!("{wire}: {response:?}");
        let (folders_purged, requests, world) = purged(wire, response, false).await;
        assert_eq!(
            (folders_purged, requests),
            (folders.iter().map(|f| (*f).to_owned()).collect(), 2),
            "{how}"
        );
        let page = world.host.telemetry().render();
        assert!(!page.contains("callsheet_response_pieces_lost_total{"), "{how}");
    }
}

#[tokio::test]
async fn a_response_with_arguments_of_no_call_is_void_and_asked_for_again() {
    let gemini = |call: Value| {
        let whole = json!({"functionCall": {"name": "purge", "args": {"folder": "tmp"}}});
        sse(&[json!({"candidates": [{"content": {"parts": [whole, {"functionCall": call}]},
            "finishReason": "STOP"}]})])
    };
    let ollama = |call: Value| {
        let whole = json!({"function": {"name": "purge", "arguments": {"folder": "tmp"}}});
        let line = json!({"message": {"content": "", "tool_calls": [whole, call]}, "done": true,
            "done_reason": "stop"});
        Response::raw("application/x-ndjson", [format!("{line}\n").into_bytes()])
    };
    let plain = json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "message":
        {"content": null, "tool_calls": [{"id": "a", "function": {"name": "purge", "arguments": ""}},
            {"id": "b", "function": {"arguments": TMP}}]}}]});
    let plain = Response::raw("application/json", [plain.to_string().into_bytes()]);
    for (wire, response) in [
        // Which of two calls is meant is not known.
        (Wire::OpenaiChat, chat(&[(0, "purge", ""), (1, "purge", ""), (2, "", TMP)])),
        (Wire::OpenaiChat, chat(&[(0, "", TMP), (1, "purge", "")])),
        (Wire::OpenaiChat, chat(&[(0, "purge", TMP), (1, "", OLD)])),
        // All pieces have the index of one call.
        (Wire::OpenaiChat, chat(&[(0, "purge", ""), (1, "purge", ""), (1, "", TMP), (1, "", OLD)])),
        (Wire::OpenaiChat, plain),
        (
            Wire::AnthropicMessages,
            blocks(&[(0, "start"), (1, "start"), (7, TMP), (0, "stop"), (1, "stop")]),
        ),
        (
            Wire::AnthropicMessages,
            blocks(&[(0, "start"), (0, "stop"), (1, "start"), (1, TMP), (1, OLD), (1, "stop")]),
        ),
        (Wire::OpenaiResponses, items(&[(0, "added"), (1, "added"), (2, TMP)])),
        (Wire::OpenaiResponses, items(&[(0, "added"), (1, TMP), (0, "done{}")])),
        (Wire::GeminiGenerate, gemini(json!({"args": {"folder": "old"}}))),
        (Wire::OllamaChat, ollama(json!({"function": {"arguments": {"folder": "old"}}}))),
    ] {
        let how = format!("{wire}: {response:?}");
        let (folders, requests, world) = purged(wire, response, false).await;
        assert_eq!((folders, requests), (vec![], 2), "{how}");
        let page = world.host.telemetry().render();
        let line =
            page.lines().find(|line| line.starts_with("callsheet_response_pieces_lost_total{"));
        assert!(line.is_some_and(|line| line.ends_with("\"} 1")), "{how}: {line:?}");
    }
}

#[tokio::test]
async fn a_call_with_effects_that_started_before_arguments_were_lost_is_kept() {
    let response = chat(&[(0, "purge", TMP), (1, "purge", ""), (2, "purge", ""), (7, "", OLD)]);
    let (folders, requests, world) = purged(Wire::OpenaiChat, response, true).await;
    assert_eq!((folders, requests), (vec!["tmp".to_owned()], 2));
    let not_run = "Error: not run: the response broke off";
    let messages = world.last_messages();
    let contents: Vec<_> = results(&messages).iter().map(|(_, content)| *content).collect();
    assert_eq!(contents, ["purged tmp", not_run, not_run]);
}
