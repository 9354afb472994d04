//! Measures what metrics cost a run: the events of a run (four calls, then the answer) are recorded
//! to the metrics of a host. The baselines are the same events with a recorder that does nothing,
//! and the CPU time of a whole run in a host, metrics included.
//!
//! The provider answers from memory on a separate thread, whose CPU time is not counted.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench that fails is wrong")]

#[path = "shared/provider.rs"]
mod provider;
#[path = "shared/report.rs"]
mod report;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Bytes;
use callsheet::config::{BaseUrl, Config, JournalEngine, ModelConfig, ToolPattern};
use callsheet::event::Event;
use callsheet::runtime::{Host, OpenSession};
use callsheet::telemetry::{FeedItem, Metrics, SharedRecorder, Telemetry};
use callsheet::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use callsheet::types::RunEnd;
use futures::StreamExt as _;
use provider::{end, event, serve, stream};
use report::Report;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

const CALLS: u32 = 4;
const TEXTS: usize = 32;
const RUNS: usize = 500;
const RECORDED_RUNS: usize = 20_000;

/// The number of runs between two calls of `upkeep`, which a busy host makes every five seconds.
const UPKEEP_EVERY: usize = 1_000;

/// The name of the provider's thread.
const PROVIDER: &str = "provider";

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

/// Returns the two streamed answers.
fn answers() -> (Bytes, Bytes) {
    let text = || (0..TEXTS).map(|_| event(json!({"content": "words "}), None)).collect::<String>();
    let mut calls = text();
    for index in 0..CALLS {
        let function = json!({"name": "work", "arguments": format!("{{\"i\":{index}}}")});
        let call = json!({"index": index, "id": format!("call_{index}"), "type": "function",
            "function": function});
        calls += &event(json!({"tool_calls": [call]}), None);
    }
    (Bytes::from(calls + &end("tool_calls")), Bytes::from(text() + &end("stop")))
}

/// Starts a provider on a separate thread, and returns its address.
fn provider() -> String {
    let (calls, text) = answers();
    let (address, receiver) = std::sync::mpsc::channel();
    let work = move || {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let answer = move |_: &[u8], answered| {
                stream(if answered { text.clone() } else { calls.clone() })
            };
            address.send(serve(answer).await).unwrap();
            std::future::pending::<()>().await;
        });
    };
    std::thread::Builder::new().name(PROVIDER.to_owned()).spawn(work).unwrap();
    receiver.recv().unwrap()
}

async fn host(base_url: &str) -> Host {
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    config.use_model("bench", ModelConfig::new(BaseUrl::parse(base_url).unwrap(), "m"));
    config.agents.get_mut("default").unwrap().tools = vec![ToolPattern::new("*")];
    let mut tools = ToolRegistry::new();
    tools.register(WorkTool).unwrap();
    Host::builder().config(config).tools(tools).start().await.unwrap()
}

/// Returns the events of one run.
async fn events(host: &Host) -> Vec<Event> {
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let mut run = session.start_run("work").await.unwrap();
    let mut events = Vec::new();
    while let Some(FeedItem::Event(published)) = run.events.next().await {
        events.push(published.event.clone());
        if matches!(published.event, Event::RunEnded { .. }) {
            break;
        }
    }
    events
}

/// Returns the CPU time of one run without the provider's.
async fn cpu_of_a_run(host: &Host) -> Duration {
    let mut spent = Duration::ZERO;
    for number in 0..RUNS + RUNS / 10 {
        let session = host.open_session(OpenSession::default()).await.unwrap();
        let before = cpu_time();
        assert_eq!(session.run("work").await.unwrap().run_end, RunEnd::Answered);
        // Warm-up.
        if number >= RUNS / 10 {
            spent += cpu_time() - before;
        }
    }
    spent / u32::try_from(RUNS).unwrap()
}

/// Returns the CPU time of this process without the provider's.
fn cpu_time() -> Duration {
    let of_thread = |thread: std::fs::DirEntry| {
        // The thread may have ended.
        let read = |file| std::fs::read_to_string(thread.path().join(file)).ok();
        let counted = read("comm")?.trim() != PROVIDER;
        let nanos = read("schedstat")?.split(' ').next()?.parse::<u64>().ok()?;
        counted.then_some(nanos)
    };
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    Duration::from_nanos(threads.flatten().filter_map(of_thread).sum())
}

/// Returns the time to record the events of a run.
fn recorded(metrics: &Metrics, events: &[Event], upkeep: impl Fn()) -> Duration {
    let began = Instant::now();
    for number in 0..RECORDED_RUNS {
        events.iter().for_each(|event| metrics.record(event));
        if number % UPKEEP_EVERY == 0 {
            upkeep();
        }
    }
    upkeep();
    began.elapsed() / u32::try_from(RECORDED_RUNS).unwrap()
}

fn main() {
    let base_url = provider();
    let runtime = Runtime::new().unwrap();
    let (events, cpu) = runtime.block_on(async {
        let host = host(&base_url).await;
        let measured = (events(&host).await, cpu_of_a_run(&host).await);
        host.shutdown().await;
        measured
    });
    let tools = ["work".to_owned()];
    let telemetry = Telemetry::new(&tools);
    let nothing =
        Metrics::new(SharedRecorder::new(Arc::new(::metrics::NoopRecorder), Vec::new()), &tools);
    // Measured alternately, so that both run under the same load of the machine; the best round of
    // each counts.
    let rounds = (0..5).map(|_| {
        let kept = recorded(telemetry.metrics(), &events, || telemetry.upkeep());
        (kept, recorded(&nothing, &events, || {}))
    });
    let (kept, bare) =
        rounds.reduce(|one, other| (one.0.min(other.0), one.1.min(other.1))).unwrap();
    let share = |time: Duration| 100.0 * time.as_secs_f64() / cpu.as_secs_f64();
    let row = |what: &str, time: Duration| {
        [
            what.to_owned(),
            format!("{:.2} us", time.as_secs_f64() * 1e6),
            format!("{:.2} %", share(time)),
        ]
    };
    let rows = [row("recorded", kept), row("a recorder that does nothing", bare)];
    let about = format!(
        "What it takes to record the {} events of a run, beside the CPU of the whole run ({:.0} us).",
        events.len(),
        cpu.as_secs_f64() * 1e6
    );
    Report::new("metrics").table(&about, ["what", "time", "of the run"], rows).print();
}
