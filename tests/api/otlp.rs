//! Spans as a collector receives them, with the real binary, HTTP and protobuf.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::collector::{Collector, Folder, Pages, Spans, hex, traceparent};
use callsheet_mock_provider::{MockProvider, Script};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::{Value, json};

const PROMPT: &str = "Read the secret page.";

async fn model(script: Value) -> MockProvider {
    let script: Script = serde_json::from_value(script).unwrap();
    MockProvider::with_script(script).await.unwrap()
}

/// Returns a turn with a page, a sum and a failing call, then the answer.
async fn three_calls(pages: &Pages) -> MockProvider {
    model(json!({"responses": [
        {"text": ["Let me look."], "calls": [
            {"id": "page", "name": "http_get", "arguments": {"url": pages.url}},
            {"id": "sum", "name": "calculator", "arguments": {"expression": "6 * 7"}},
            {"id": "mistake", "name": "calculator", "arguments": {"expression": "6 /"}},
            {"id": "nothing", "name": "no_such_tool", "arguments": {}}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 7}},
        {"text": ["It is ", "secret."], "usage": {"prompt_tokens": 20, "completion_tokens": 3}}
    ]}))
    .await
}

/// Runs the binary with a prompt and these environment variables.
async fn run(model: &MockProvider, collector: &str, variables: &[(&str, &str)]) -> String {
    let folder = Folder::new(&model.base_url());
    let output = folder.run(collector, variables, PROMPT).await;
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    errors
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_a_tree_of_spans() {
    let (collector, pages) = (Collector::start().await, Pages::start().await);
    let model = three_calls(&pages).await;
    let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=of%20mine");
    run(&model, &collector.url, &[headers]).await;

    let spans = Spans(collector.spans());
    let agent = spans.one("invoke_agent default");
    assert_eq!((agent.kind(), agent.parent_span_id.len()), (SpanKind::Internal, 0));
    let names: Vec<&str> = spans.below(agent).iter().map(|span| span.name.as_str()).collect();
    let expected = [
        "chat m",
        "execute_tool calculator",
        "execute_tool calculator",
        "execute_tool http_get",
        "chat m",
    ];
    assert_eq!(names.iter().collect::<BTreeSet<_>>(), expected.iter().collect());
    assert_eq!((names.len(), spans.0.len()), (5, 6), "and nothing else: {names:?}");
    for span in spans.below(agent) {
        assert_eq!(span.trace_id, agent.trace_id);
        let within = agent.start_time_unix_nano <= span.start_time_unix_nano
            && span.start_time_unix_nano <= span.end_time_unix_nano
            && span.end_time_unix_nano <= agent.end_time_unix_nano;
        assert!(within, "{span:?} within {agent:?}");
    }
    let attributes = Spans::attributes(agent);
    assert_eq!(attributes["gen_ai.operation.name"], "invoke_agent");
    assert_eq!(attributes["gen_ai.agent.name"], "default");
    assert_eq!(attributes["gen_ai.provider.name"], "openai");
    assert_eq!(attributes["gen_ai.usage.input_tokens"], 31);
    assert_eq!(attributes["gen_ai.usage.output_tokens"], 10);
    assert_eq!(attributes["callsheet.run_end"], "answered");
    let conversation = &attributes["gen_ai.conversation.id"];

    let chats = spans.all("chat m");
    assert!(chats[0].end_time_unix_nano <= chats[1].start_time_unix_nano);
    for (chat, finish, tokens) in [(chats[0], "tool_calls", 11), (chats[1], "stop", 20)] {
        let attributes = Spans::attributes(chat);
        assert_eq!(chat.kind(), SpanKind::Client);
        assert_eq!(attributes["gen_ai.operation.name"], "chat");
        assert_eq!(attributes["gen_ai.request.model"], "m");
        assert_eq!(attributes["gen_ai.provider.name"], "openai");
        assert_eq!(attributes["gen_ai.response.finish_reasons"], json!([finish]));
        assert_eq!(attributes["gen_ai.usage.input_tokens"], tokens);
        assert_eq!(attributes["gen_ai.request.stream"], true);
        assert_eq!(attributes["server.address"], "127.0.0.1");
        assert_eq!(&attributes["gen_ai.conversation.id"], conversation);
        assert_eq!((Spans::status(chat), attributes.get("error.type")), (StatusCode::Unset, None));
    }

    let tools = [("page", None), ("sum", None), ("mistake", Some("tool_error"))];
    for (id, error) in tools {
        let span = spans.tool(id);
        let attributes = Spans::attributes(span);
        assert_eq!(span.kind(), SpanKind::Internal);
        assert_eq!(attributes["gen_ai.operation.name"], "execute_tool");
        assert_eq!(attributes["gen_ai.tool.type"], "function");
        assert_eq!(
            span.name,
            format!("execute_tool {}", attributes["gen_ai.tool.name"].as_str().unwrap())
        );
        assert_eq!(attributes.get("error.type").and_then(Value::as_str), error);
        let status = if error.is_some() { StatusCode::Error } else { StatusCode::Unset };
        assert_eq!(Spans::status(span), status);
    }

    // Models and tools receive the ids of their spans.
    let sent: Vec<_> = model.requests().iter().map(|r| r.headers["traceparent"].clone()).collect();
    assert_eq!(sent, [traceparent(chats[0]), traceparent(chats[1])]);
    assert_eq!(pages.requests(), [traceparent(spans.tool("page"))]);

    // Contents are not exported.
    let bytes = collector.text();
    for message in ["secret", "Let me look", "6 * 7", "/page"] {
        assert!(!bytes.contains(message), "{message} was exported");
    }
    let request = collector.request();
    assert_eq!(request.headers["content-type"], "application/x-protobuf");
    assert_eq!(request.headers["x-key"], "of mine");
    assert_eq!(request.resource["service.name"], "callsheet");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_attempt_is_a_span_and_a_failed_one_has_its_error() {
    let collector = Collector::start().await;
    let model = model(json!({"responses": [
        {"status": 503, "retry_after": "0"},
        {"text": ["It br", "oke", " off"], "cut_after_chunks": 2},
        {"text": ["Now."]}
    ]}))
    .await;
    run(&model, &collector.url, &[("OTEL_SERVICE_NAME", "mine")]).await;
    let spans = Spans(collector.spans());
    let chats = spans.all("chat m");
    let errors: Vec<_> = chats.iter().map(|c| Spans::attributes(c).remove("error.type")).collect();
    assert_eq!(errors, [Some(json!("503")), Some(json!("transport")), None]);
    let statuses: Vec<_> = chats.iter().map(|chat| Spans::status(chat)).collect();
    assert_eq!(statuses, [StatusCode::Error, StatusCode::Error, StatusCode::Unset]);
    let attempts: Vec<_> =
        chats.iter().map(|chat| Spans::attributes(chat)["callsheet.attempt"].clone()).collect();
    assert_eq!(attempts, [json!(1), json!(2), json!(3)]);
    let sent: Vec<_> = model.requests().iter().map(|r| r.headers["traceparent"].clone()).collect();
    let spanned: Vec<_> = chats.iter().map(|chat| traceparent(chat)).collect();
    assert_eq!(sent, spanned);
    assert_eq!(Spans::status(spans.one("invoke_agent default")), StatusCode::Unset);
    assert_eq!(collector.request().resource["service.name"], "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fallback_is_a_span_of_the_model_that_answered() {
    let collector = Collector::start().await;
    let model = model(json!({"responses": [{"status": 401}, {"text": ["Hi."]}]})).await;
    run(&model, &collector.url, &[]).await;
    let spans = Spans(collector.spans());
    let (first, second) = (spans.one("chat m"), spans.one("chat n"));
    assert_eq!(Spans::attributes(first)["error.type"], "401");
    assert_eq!(Spans::attributes(second)["gen_ai.request.model"], "n");
    assert_eq!(Spans::attributes(second)["callsheet.attempt"], 2);
    assert_eq!(first.parent_span_id, second.parent_span_id);
    let agent = Spans::attributes(spans.one("invoke_agent default"));
    assert_eq!(agent["gen_ai.request.model"], "m", "the one that was asked first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_fails_is_an_error() {
    let collector = Collector::start().await;
    let model = model(json!({"responses": [{"status": 401, "repeat": true}]})).await;
    let folder = Folder::new(&model.base_url());
    let output = folder.run(&collector.url, &[], PROMPT).await;
    assert_eq!(output.status.code(), Some(1));
    let spans = Spans(collector.spans());
    let agent = spans.one("invoke_agent default");
    assert_eq!(Spans::status(agent), StatusCode::Error);
    assert_eq!(Spans::attributes(agent)["error.type"], "provider_error");
    assert_eq!(Spans::attributes(spans.one("chat m"))["error.type"], "401");
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_are_exported_if_the_environment_enables_it() {
    let (collector, pages) = (Collector::start().await, Pages::start().await);
    let model = three_calls(&pages).await;
    let capture = ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true");
    run(&model, &collector.url, &[capture]).await;
    let spans = Spans(collector.spans());
    let json_of = |span, key: &str| -> Value {
        serde_json::from_str(Spans::attributes(span)[key].as_str().unwrap()).unwrap()
    };
    let text = |role: &str, text: &str| json!({"role": role, "parts": [{"type": "text", "content": text}]});
    let agent = spans.one("invoke_agent default");
    assert_eq!(json_of(agent, "gen_ai.input.messages"), json!([text("user", PROMPT)]));
    let answer = &json_of(agent, "gen_ai.output.messages")[0];
    assert_eq!(answer["parts"], text("assistant", "It is secret.")["parts"]);

    let chats = spans.all("chat m");
    assert_eq!(json_of(chats[0], "gen_ai.input.messages"), json!([text("user", PROMPT)]));
    let message = &json_of(chats[0], "gen_ai.output.messages")[0];
    assert_eq!(message["finish_reason"], "tool_calls");
    assert_eq!(message["parts"][0]["content"], "Let me look.");
    let call = json!({"type": "tool_call", "id": "sum", "name": "calculator",
        "arguments": {"expression": "6 * 7"}});
    assert_eq!(message["parts"][2], call);
    let asked = json_of(chats[1], "gen_ai.input.messages");
    let roles: Vec<_> = asked.as_array().unwrap().iter().map(|m| m["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "tool", "tool"]);
    assert_eq!(asked[3]["parts"][0]["response"], "42");
    let sum = Spans::attributes(spans.tool("sum"));
    assert_eq!(sum["gen_ai.tool.call.result"], "42");
    assert_eq!(sum["gen_ai.tool.call.arguments"], "{\"expression\":\"6 * 7\"}");
}

/// The sampling decision of the host or of the client is passed on.
#[tokio::test(flavor = "multi_thread")]
async fn unsampled_traces_are_passed_on_and_not_exported() {
    let collector = Collector::start().await;
    let model = model(json!({"responses": [{"text": ["Hi."], "repeat": true}]})).await;
    run(&model, &collector.url, &[("OTEL_TRACES_SAMPLER", "always_off")]).await;
    let variables = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0")];
    run(&model, &collector.url, &variables).await;
    run(&model, &collector.url, &[("OTEL_TRACES_EXPORTER", "none")]).await;
    assert_eq!(collector.spans().len(), 0);
    let variables = [("OTEL_TRACES_SAMPLER", "allways_on"), ("CALLSHEET_LOG", "warn")];
    let errors = run(&model, &collector.url, &variables).await;
    assert_eq!(errors.matches("all_traces_sampled").count(), 1, "{errors}");
    assert!(errors.contains("allways_on") && errors.contains("parentbased_always_on"), "{errors}");
    assert_eq!(collector.spans().len(), 2, "all are sampled");
    let sent: Vec<_> =
        model.requests().iter().map(|r| r.headers.get("traceparent").cloned()).collect();
    let flags = |sent: &Option<String>| sent.as_ref().map(|s| s[53..].to_owned());
    let flags: Vec<_> = sent.iter().map(flags).collect();
    assert_eq!(flags[..3], [Some("00".to_owned()), Some("00".to_owned()), None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_or_silent_collector_costs_a_run_only_its_spans() {
    let model = model(json!({"responses": [{"text": ["Hi."], "repeat": true}]})).await;
    let timeout = ("OTEL_EXPORTER_OTLP_TIMEOUT", "300");
    let log = ("CALLSHEET_LOG", "warn");
    // The port is bound, but nothing listens on it.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let dead = format!("http://{}", bound.local_addr().unwrap());
    let silent = Collector::silent().await;
    for url in [&dead, &silent] {
        let errors = run(&model, url, &[timeout, log]).await;
        assert_eq!(errors.matches("trace_export_failed").count(), 1, "{errors}");
    }
    let grpc = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    for (url, variable) in [("no address", timeout), (&dead, grpc)] {
        let errors = run(&model, url, &[variable, log]).await;
        assert_eq!(errors.matches("traces_not_exported").count(), 1, "{errors}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_requested_over_http_is_a_child_of_the_clients_span() {
    let collector = Collector::start().await;
    let model = model(json!({"responses": [{"text": ["Hi."], "repeat": true}]})).await;
    let folder = Folder::new(&model.base_url());
    let host = folder.serve(&collector.url, &[]).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let given = format!("00-{trace}-00f067aa0ba902b7-01");
    host.ask(&[("traceparent", &given), ("tracestate", "rojo=1")]).await;
    host.ask(&[("traceparent", &given.replace("-01", "-00"))]).await;
    host.ask(&[("traceparent", "00-nothing")]).await;
    host.stop().await;

    let spans = Spans(collector.spans());
    let agents = spans.all("invoke_agent default");
    assert_eq!(agents.len(), 2, "the one that was not sampled has no span");
    assert_eq!(hex(&agents[0].trace_id), trace);
    assert_eq!(hex(&agents[0].parent_span_id), "00f067aa0ba902b7");
    assert_eq!(agents[0].trace_state, "rojo=1");
    assert_ne!(hex(&agents[1].trace_id), trace, "a trace of its own");
    let requests = model.requests();
    assert_eq!(requests[0].headers["tracestate"], "rojo=1");
    let sent = |at: usize| requests[at].headers["traceparent"].clone();
    assert_eq!(sent(0), traceparent(spans.all("chat m")[0]));
    assert!(sent(1).starts_with(&format!("00-{trace}-")) && sent(1).ends_with("-00"));
    assert_ne!(sent(1), given.replace("-01", "-00"), "a span of its own");
}

/// The queue is bounded. Spans that do not fit are counted.
#[tokio::test(flavor = "multi_thread")]
async fn spans_beyond_the_queue_are_dropped_and_counted() {
    let model = model(json!({"responses": [{"text": ["Hi."], "repeat": true}]})).await;
    let folder = Folder::new(&model.base_url());
    let silent = Collector::silent().await;
    // The time limit of an export is longer than this test.
    let patient = ("OTEL_EXPORTER_OTLP_TIMEOUT", "600000");
    let host = folder.serve(&silent, &[("OTEL_BSP_MAX_QUEUE_SIZE", "3"), patient]).await;
    for _ in 0..5 {
        host.ask(&[]).await;
    }
    let page = host.metrics().await;
    // Two spans per run, and three in the queue.
    assert!(page.contains("callsheet_spans_total{result=\"dropped\"} 7"), "{page}");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_on_this_machine_is_reached_without_a_proxy() {
    let collector = Collector::start().await;
    let model = model(json!({"responses": [{"text": ["Hi."]}]})).await;
    // Refuses connections, because it is closed at once.
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = format!("http://{proxy}");
    let variables = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]
        .map(|name| (name, &*proxy))
        .into_iter()
        .chain([("no_proxy", ""), ("NO_PROXY", "")]);
    run(&model, &collector.url, &variables.collect::<Vec<_>>()).await;
    assert_eq!(collector.spans().len(), 2);
}

/// Trace, span and start time of the run survive the host.
#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_run_continues_its_trace_after_a_crash() {
    let collector = Collector::start().await;
    let pages = Pages::start().await;
    let model = model(json!({"responses": [
        {"calls": [{"id": "page", "name": "http_get", "arguments": {"url": pages.url}}]},
        {"text": ["Done."]}
    ]}))
    .await;
    let folder = Folder::asking_people(&model.base_url());
    let host = folder.serve(&collector.url, &[]).await;
    let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    host.begin(&[("traceparent", given)]).await;
    host.until_approval_request().await;
    let killed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    host.kill();
    let host = folder.serve(&collector.url, &[]).await;
    host.approve("t1a1c0").await;
    host.until_idle().await;
    host.stop().await;

    let spans = Spans(collector.spans());
    let agent = spans.one("invoke_agent default");
    assert_eq!(hex(&agent.trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(hex(&agent.parent_span_id), "00f067aa0ba902b7");
    let below: Vec<_> = spans.below(agent).iter().map(|span| span.name.clone()).collect();
    // The first request ended before the crash. Its span may have been sent.
    assert!(
        below.ends_with(&["execute_tool http_get".to_owned(), "chat m".to_owned()]),
        "{below:?}"
    );
    assert!(u128::from(agent.start_time_unix_nano) < killed, "it began in the first life");
    let page = spans.tool("page");
    assert!(u128::from(page.start_time_unix_nano) > killed, "the call began in the second");
    assert_eq!(pages.requests(), [traceparent(page)]);
}
