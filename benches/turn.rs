//! A run of two turns (four calls, then the answer) through the host, beside the same run without
//! actors: the same HTTP client, decoder, accumulator and tools in one plain loop.
//!
//! Sequential and parallel, 1 and 64 sessions at once, over loopback HTTP against a server that
//! answers from memory. Prints the ratios; absolute times mean little on a shared machine.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench that fails is wrong")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use callsheet::config::{BaseUrl, Config, JournalEngine, ModelConfig, ToolPattern};
use callsheet::message::{Message, ResponseMessage};
use callsheet::runtime::model::{ModelClient, ModelRequest};
use callsheet::runtime::{Host, HostSetup, OpenSession};
use callsheet::tool::{Registry, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use callsheet::turn::{Accumulator, AccumulatorLimits, Arguments, understand};
use callsheet::types::{CallKey, Execution, RunEnd, ToolCall};
use callsheet::wire::ToolDefinition;
use criterion::{Criterion, SamplingMode};
use futures::StreamExt;
use futures::future::join_all;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const CALLS: u32 = 4;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Work {
    i: u32,
}

/// Answers at once: what is measured is everything around a tool.
struct WorkTool;

#[async_trait]
impl Tool for WorkTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<Work>("work", "Works.").pure()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let input: Work = context.input()?;
        Ok(format!("r{}", input.i).into())
    }
}

/// The two answers as a service streams them.
fn answers() -> (Bytes, Bytes) {
    let chunk = |delta: serde_json::Value, finish: Option<&str>| {
        let body = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
        format!("data: {body}\n\n")
    };
    let mut calls = String::new();
    for index in 0..CALLS {
        let function = json!({"name": "work", "arguments": ""});
        let head = json!({"index": index, "id": format!("call_{index}"), "type": "function",
            "function": function});
        calls += &chunk(json!({"tool_calls": [head]}), None);
        for piece in ["{\"i\":".to_owned(), format!("{index}}}")] {
            let piece = json!({"index": index, "function": {"arguments": piece}});
            calls += &chunk(json!({"tool_calls": [piece]}), None);
        }
    }
    calls += &chunk(json!({}), Some("tool_calls"));
    let mut text = String::new();
    for word in "All of the work is done and these are the results.".split_inclusive(' ') {
        text += &chunk(json!({"content": word}), None);
    }
    text += &chunk(json!({}), Some("stop"));
    let done = "data: [DONE]\n\n";
    (Bytes::from(calls + done), Bytes::from(text + done))
}

async fn provider() -> String {
    let (calls, text) = answers();
    let answer = move |body: Bytes| {
        let answered = memchr::memmem::find(&body, b"\"role\":\"tool\"").is_some();
        let body = if answered { text.clone() } else { calls.clone() };
        async move { ([(CONTENT_TYPE, "text/event-stream")], body) }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Router::new().route("/v1/chat/completions", post(answer));
    tokio::task::spawn(async move { axum::serve(listener, server).await });
    format!("http://{address}/v1")
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.register(WorkTool).unwrap();
    registry
}

async fn host(base_url: &str, execution: Execution) -> Host {
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    config.use_model("bench", ModelConfig::new(BaseUrl::parse(base_url).unwrap(), "m"));
    let agent = config.agents.get_mut("default").unwrap();
    agent.tools = vec![ToolPattern::new("*")];
    agent.execution = execution;
    Host::start(HostSetup { config, tools: registry() }).await.unwrap()
}

/// One run in each of so many new sessions, at once; how long the runs took.
async fn hosted(host: &Host, sessions: usize) -> Duration {
    let open = (0..sessions).map(|_| host.open_session(OpenSession::default()));
    let sessions: Vec<_> = join_all(open).await.into_iter().map(Result::unwrap).collect();
    let began = Instant::now();
    let reports = join_all(sessions.iter().map(|session| session.run("work"))).await;
    let took = began.elapsed();
    assert!(reports.into_iter().all(|report| report.unwrap().run_end == RunEnd::Answered));
    join_all(sessions.iter().map(callsheet::runtime::SessionHandle::close)).await;
    took
}

/// The same without actors.
async fn bare(client: &ModelClient, execution: Execution, sessions: usize) -> Duration {
    let began = Instant::now();
    let texts = join_all((0..sessions).map(|_| bare_run(client, execution))).await;
    let took = began.elapsed();
    assert!(texts.iter().all(|text| !text.is_empty()));
    took
}

async fn bare_run(client: &ModelClient, execution: Execution) -> String {
    let spec = WorkTool.spec();
    let tools: Arc<[ToolDefinition]> = Arc::new([ToolDefinition {
        name: spec.name.clone(),
        description: spec.description.clone(),
        schema: spec.input.as_value().clone(),
    }]);
    let mut messages = vec![Arc::new(Message::User { content: "work".into() })];
    loop {
        let mut request = ModelRequest::new("m", messages.clone().into());
        request.tools = Arc::clone(&tools);
        let mut response = Accumulator::new(AccumulatorLimits::default());
        let mut stream = std::pin::pin!(client.stream(&request));
        while let Some(batch) = stream.next().await {
            for delta in batch.unwrap() {
                response.push(&delta);
            }
        }
        response.end(true);
        if response.calls().is_empty() {
            return response.text().to_owned();
        }
        let calls: Vec<_> = (0..).zip(response.calls()).map(call).collect();
        let results = match execution {
            Execution::Sequential => {
                let mut results = Vec::new();
                for call in &calls {
                    results.push(run_tool(call).await);
                }
                results
            }
            Execution::Parallel { .. } => join_all(calls.iter().map(run_tool)).await,
        };
        let text = response.text().to_owned();
        messages.push(Arc::new(Message::Assistant(ResponseMessage {
            text,
            calls,
            ..ResponseMessage::default()
        })));
        messages.extend(results.into_iter().map(Arc::new));
    }
}

fn call((index, bucket): (u32, &callsheet::turn::Bucket)) -> ToolCall {
    let Arguments::Object { value, .. } = understand(&bucket.raw) else { panic!("an object") };
    ToolCall {
        key: CallKey { turn: 1, attempt: 1, index },
        id: bucket.provider_id.clone().unwrap(),
        provider_id: bucket.provider_id.clone(),
        name: bucket.name.clone(),
        arguments: value.into(),
        raw: None,
    }
}

async fn run_tool(call: &ToolCall) -> Message {
    let context = ToolContext::new(
        call.key,
        call.arguments.clone(),
        String::new(),
        CancellationToken::new(),
        Arc::new(|_| {}),
    );
    let ToolOutput(content) = WorkTool.run(context).await.unwrap();
    let (call_id, name) = (call.id.clone(), call.name.clone());
    Message::Tool { call_id, name, content, metadata: json!({}) }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let runtime = Runtime::new().unwrap();
    let base_url = runtime.block_on(provider());
    let config = ModelConfig::new(BaseUrl::parse(&base_url).unwrap(), "m");
    let client = ModelClient::new(&config).unwrap();
    let mut criterion = Criterion::default().configure_from_args();
    let mut ratios = Vec::new();
    for (name, execution) in
        [("sequential", Execution::Sequential), ("parallel", Execution::Parallel { max: 16 })]
    {
        let host = runtime.block_on(host(&base_url, execution));
        let mut group = criterion.benchmark_group(format!("turn/{name}"));
        group.sampling_mode(SamplingMode::Flat).sample_size(20);
        group.measurement_time(Duration::from_secs(5));
        for sessions in [1, 64] {
            group.bench_function(format!("host/{sessions}"), |bencher| {
                bencher.to_async(&runtime).iter_custom(async |runs| {
                    let mut took = Duration::ZERO;
                    for _ in 0..runs {
                        took += hosted(&host, sessions).await;
                    }
                    took
                });
            });
            group.bench_function(format!("bare/{sessions}"), |bencher| {
                bencher.to_async(&runtime).iter_custom(async |runs| {
                    let mut took = Duration::ZERO;
                    for _ in 0..runs {
                        took += bare(&client, execution, sessions).await;
                    }
                    took
                });
            });
            ratios.push(runtime.block_on(ratio(&host, &client, name, execution, sessions)));
        }
        group.finish();
    }
    println!("\nThe host beside the bare loop, medians of 100 pairs in turn:");
    for line in ratios {
        println!("  {line}");
    }
}

/// The two in turn, so that both meet the same weather.
async fn ratio(
    host: &Host,
    client: &ModelClient,
    name: &str,
    execution: Execution,
    sessions: usize,
) -> String {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        with.push(hosted(host, sessions).await);
        without.push(bare(client, execution, sessions).await);
    }
    let (with, without) = (median(with), median(without));
    let ratio = with.as_secs_f64() / without.as_secs_f64();
    let overhead = with.saturating_sub(without) / u32::try_from(sessions).unwrap();
    format!("{name}, {sessions} sessions: {ratio:.2} ({overhead:?} more a run)")
}
