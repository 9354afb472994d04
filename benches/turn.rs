//! Compares a run of two turns (four calls, then the answer) through the host with the same run
//! without actors: the same HTTP client, decoder, accumulator and tools in a plain loop.
//!
//! Measures sequential and parallel calls with 1, 64 and 1,000 concurrent sessions, over loopback
//! HTTP with a server that answers from memory. Also measures the cost of each further call: a
//! response of 64 calls compared with a response of one call, through the host and through the
//! loop, which runs each call as a tokio task. Prints ratios, because absolute times mean little on
//! a shared machine.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench that fails is wrong")]

#[path = "shared/provider.rs"]
mod provider;
#[path = "shared/report.rs"]
mod report;
#[path = "shared/times.rs"]
mod times;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Bytes;
use callsheet::config::{BaseUrl, Config, JournalEngine, ModelConfig, ToolPattern};
use callsheet::load::{cpu_time, raise_open_files};
use callsheet::message::{Message, ResponseMessage};
use callsheet::response::{ParsedArguments, ResponseAssembler, ResponseLimits, parse_arguments};
use callsheet::runtime::model::{ModelClient, ModelRequest};
use callsheet::runtime::{Host, OpenSession};
use callsheet::tool::testing::tool_context;
use callsheet::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use callsheet::types::{CallKey, Execution, RunEnd, ToolCall};
use callsheet::wire::ToolDefinition;
use criterion::{Criterion, SamplingMode};
use futures::StreamExt;
use futures::future::join_all;
use provider::{end, event, serve, stream};
use report::Report;
use serde_json::json;
use times::median;
use tokio::runtime::Runtime;
use tokio::time::Instant;

const CALLS: u32 = 4;

/// The default of `max_tool_calls_per_turn`.
const MANY: u32 = 64;

const PARALLEL: Execution = Execution::Parallel { max: MANY };

/// Pairs of the number of concurrent sessions and the number of measured rounds.
const SESSIONS: [(usize, usize); 3] = [(1, 200), (64, 40), (1_000, 7)];

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Work {
    i: u32,
}

/// A tool that returns at once, so that only the work around a tool is measured.
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

/// Returns a streamed answer with this number of calls, and the answer after it.
fn answers(calls: u32) -> (Bytes, Bytes) {
    let mut asking = String::new();
    for index in 0..calls {
        let function = json!({"name": "work", "arguments": ""});
        let head = json!({"index": index, "id": format!("call_{index}"), "type": "function",
            "function": function});
        asking += &event(json!({"tool_calls": [head]}), None);
        for piece in ["{\"i\":".to_owned(), format!("{index}}}")] {
            let piece = json!({"index": index, "function": {"arguments": piece}});
            asking += &event(json!({"tool_calls": [piece]}), None);
        }
    }
    let mut text = String::new();
    for word in "All of the work is done and these are the results.".split_inclusive(' ') {
        text += &event(json!({"content": word}), None);
    }
    (Bytes::from(asking + &end("tool_calls")), Bytes::from(text + &end("stop")))
}

async fn provider(calls: u32) -> String {
    let (asking, text) = answers(calls);
    serve(move |_, is_answered| stream(if is_answered { text.clone() } else { asking.clone() }))
        .await
}

fn registry() -> ToolRegistry {
    let mut registry = ToolRegistry::new();
    registry.register(WorkTool).unwrap();
    registry
}

async fn host(base_url: &str, execution: Execution) -> Host {
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    let mut model = ModelConfig::new(BaseUrl::parse(base_url).unwrap(), "m");
    // The plain loop has no such limit.
    model.max_concurrent_requests = None;
    config.use_model("bench", model);
    let agent = config.agents.get_mut("default").unwrap();
    agent.tools = vec![ToolPattern::new("*")];
    agent.execution = execution;
    Host::builder().config(config).tools(registry()).start().await.unwrap()
}

/// Runs once in each of `sessions` new sessions concurrently. Returns the elapsed time and the CPU
/// time.
async fn hosted(host: &Host, sessions: usize) -> (Duration, Duration) {
    let open = (0..sessions).map(|_| host.open_session(OpenSession::default()));
    let sessions: Vec<_> = join_all(open).await.into_iter().map(Result::unwrap).collect();
    let (began, cpu) = (Instant::now(), cpu_time());
    let reports = join_all(sessions.iter().map(|session| session.run("work"))).await;
    let took = (began.elapsed(), cpu_time() - cpu);
    assert!(reports.into_iter().all(|report| report.unwrap().run_end == RunEnd::Answered));
    join_all(sessions.iter().map(callsheet::runtime::SessionHandle::close)).await;
    took
}

/// Does the same without actors, with a task for each session.
async fn bare(client: &ModelClient, execution: Execution, sessions: usize) -> (Duration, Duration) {
    let (began, cpu) = (Instant::now(), cpu_time());
    let runs = (0..sessions).map(|_| tokio::spawn(bare_run(client.clone(), execution)));
    let texts = join_all(runs).await;
    let took = (began.elapsed(), cpu_time() - cpu);
    assert!(texts.iter().all(|text| !text.as_ref().unwrap().is_empty()));
    took
}

async fn bare_run(client: ModelClient, execution: Execution) -> String {
    let spec = WorkTool.spec();
    let tools: Arc<[ToolDefinition]> = Arc::new([ToolDefinition::new(
        &spec.name,
        &spec.description,
        spec.input.as_value().clone(),
    )]);
    let mut messages = vec![Arc::new(Message::User { content: "work".into() })];
    loop {
        let mut request = ModelRequest::new("m", messages.clone().into());
        request.tools = Arc::clone(&tools);
        let mut response = ResponseAssembler::new(ResponseLimits::default());
        let mut deltas = std::pin::pin!(client.stream(&request));
        while let Some(batch) = deltas.next().await {
            for delta in batch.unwrap() {
                response.push(&delta);
            }
        }
        response.seal_all();
        if response.calls().is_empty() {
            return response.text().to_owned();
        }
        let calls: Vec<_> = (0..).zip(response.calls()).map(call).collect();
        let results = match execution {
            Execution::Sequential => {
                let mut results = Vec::new();
                for call in &calls {
                    results.push(run_tool(call.clone()).await);
                }
                results
            }
            Execution::Parallel { .. } => {
                let tasks = calls.iter().map(|call| tokio::spawn(run_tool(call.clone())));
                join_all(tasks).await.into_iter().map(Result::unwrap).collect()
            }
        };
        let text = response.text().to_owned();
        messages.push(Arc::new(Message::Assistant(
            ResponseMessage { text, calls, ..ResponseMessage::default() }.into(),
        )));
        messages.extend(results.into_iter().map(Arc::new));
    }
}

fn call((index, bucket): (u32, &callsheet::response::PartialCall)) -> ToolCall {
    let ParsedArguments::Object { value, .. } = parse_arguments(&bucket.raw) else {
        panic!("an object")
    };
    ToolCall {
        key: CallKey { turn: 1, attempt: 1, index },
        id: bucket.provider_id.clone().unwrap(),
        provider_id: bucket.provider_id.clone(),
        name: bucket.name.clone(),
        arguments: value.into(),
        raw: None,
        indirect: false,
    }
}

async fn run_tool(call: ToolCall) -> Message {
    let output = WorkTool.run(tool_context(call.arguments)).await.unwrap();
    Message::tool_result(call.id, call.name, output.into_text())
}

fn main() {
    raise_open_files(4 * SESSIONS[SESSIONS.len() - 1].0 as u32).unwrap();
    let runtime = Runtime::new().unwrap();
    let base_url = runtime.block_on(provider(CALLS));
    let client = client(&base_url);
    let mut criterion = Criterion::default().configure_from_args();
    let mut ratios = Vec::new();
    for (name, execution) in [("sequential", Execution::Sequential), ("parallel", PARALLEL)] {
        let host = runtime.block_on(host(&base_url, execution));
        let mut group = criterion.benchmark_group(format!("turn/{name}"));
        group.sampling_mode(SamplingMode::Flat).sample_size(10);
        group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
        for (sessions, pairs) in SESSIONS {
            group.bench_function(format!("host/{sessions}"), |bencher| {
                bencher.to_async(&runtime).iter_custom(async |runs| {
                    let mut took = Duration::ZERO;
                    for _ in 0..runs {
                        took += hosted(&host, sessions).await.0;
                    }
                    took
                });
            });
            group.bench_function(format!("bare/{sessions}"), |bencher| {
                bencher.to_async(&runtime).iter_custom(async |runs| {
                    let mut took = Duration::ZERO;
                    for _ in 0..runs {
                        took += bare(&client, execution, sessions).await.0;
                    }
                    took
                });
            });
            let measured = Pairs::measure(&host, &client, execution, sessions, pairs);
            ratios.push(runtime.block_on(measured).row(name, sessions));
        }
        group.finish();
        runtime.block_on(host.shutdown());
    }
    let about = format!(
        "A run of two turns with {CALLS} calls that take no time, each in a new session, through \
         the host, beside the same client, decoder and tools in a task for each session and a \
         plain loop (in parallel: a task for each call); medians of pairs in turn."
    );
    let head = ["execution", "sessions at once", "host", "bare", "ratio", "CPU ratio"];
    let [one, many] = [1, MANY].map(|calls| runtime.block_on(of_calls(calls)));
    Report::new("turn")
        .table(&about, head, ratios)
        .table(
            &format!(
                "What one more call of a turn costs, in parallel: a turn of {MANY} calls beside \
                 one of a single call. By the host it is an actor; by the loop a bare tokio task."
            ),
            ["one more call", "host", "bare", "ratio"],
            many.one_more(&one),
        )
        .print();
}

fn client(base_url: &str) -> ModelClient {
    ModelClient::new(&ModelConfig::new(BaseUrl::parse(base_url).unwrap(), "m")).unwrap()
}

/// Measures a run whose response has this number of calls.
async fn of_calls(calls: u32) -> Pairs {
    let base_url = provider(calls).await;
    let host = host(&base_url, PARALLEL).await;
    let pairs = Pairs::measure(&host, &client(&base_url), PARALLEL, 1, 200).await;
    host.shutdown().await;
    pairs
}

/// The medians of the host and of the plain loop.
struct Pairs {
    time: [Duration; 2],
    cpu: [Duration; 2],
}

impl Pairs {
    /// Measures both alternately, so that both run under the same load of the machine.
    async fn measure(
        host: &Host,
        client: &ModelClient,
        execution: Execution,
        sessions: usize,
        pairs: usize,
    ) -> Self {
        let mut times = [const { Vec::new() }; 2];
        let mut cpu = [const { Vec::new() }; 2];
        for _ in 0..pairs {
            let with = hosted(host, sessions).await;
            let without = bare(client, execution, sessions).await;
            for (at, took) in [with, without].into_iter().enumerate() {
                times[at].push(took.0);
                cpu[at].push(took.1);
            }
        }
        Self { time: times.map(median), cpu: cpu.map(median) }
    }

    fn row(&self, name: &str, sessions: usize) -> [String; 6] {
        let [host, bare] = self.time.map(|time| format!("{:.2} ms", time.as_secs_f64() * 1e3));
        let (time, cpu) = (ratio(self.time), ratio(self.cpu));
        [
            name.to_owned(),
            sessions.to_string(),
            host,
            bare,
            format!("{time:.2}"),
            format!("{cpu:.2}"),
        ]
    }

    /// Returns the rows with the cost of each call after the first.
    fn one_more(&self, one: &Self) -> [[String; 4]; 2] {
        let row = |name: &str, many: [Duration; 2], one: [Duration; 2]| {
            let each = [0, 1].map(|at| many[at].saturating_sub(one[at]) / (MANY - 1));
            let [host, bare] = each.map(|time| format!("{:.1} us", time.as_secs_f64() * 1e6));
            [name.to_owned(), host, bare, format!("{:.2}", ratio(each))]
        };
        [row("time", self.time, one.time), row("CPU", self.cpu, one.cpu)]
    }
}

fn ratio([host, bare]: [Duration; 2]) -> f64 {
    host.as_secs_f64() / bare.as_secs_f64()
}
