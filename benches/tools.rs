//! Compares two tools that compute, called in one response, with two plain threads that do the same
//! work.
//!
//! The tools are `blocking`, and each needs 200 ms of one core. In parallel, the calls should take
//! as long as the threads. In sequence, they should take as long as one thread that does both. Uses
//! loopback HTTP with a server that answers from memory. Prints ratios, because absolute times mean
//! little on a shared machine.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench that fails is wrong")]

#[path = "shared/provider.rs"]
mod provider;
#[path = "shared/report.rs"]
mod report;
#[path = "shared/times.rs"]
mod times;

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Bytes;
use callsheet::config::{BaseUrl, Config, JournalEngine, ModelConfig, ToolPattern};
use callsheet::runtime::{Host, OpenSession, RunReport};
use callsheet::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use callsheet::types::{Execution, RunEnd};
use criterion::{Criterion, SamplingMode};
use provider::{end, event, serve, stream};
use report::Report;
use serde_json::json;
use times::median;
use tokio::runtime::Runtime;
use tokio::time::Instant;

const CALLS: u32 = 2;
const WORK: Duration = Duration::from_millis(200);
const PAIRS: usize = 15;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Input {
    seed: u64,
}

/// Uses one core for this number of rounds.
struct Compute {
    rounds: u64,
}

#[async_trait]
impl Tool for Compute {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<Input>("compute", "Computes.").pure().blocking()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let Input { seed } = context.input()?;
        Ok(compute(seed, self.rounds).to_string().into())
    }
}

fn compute(seed: u64, rounds: u64) -> u64 {
    (0..rounds).fold(seed, |x, round| {
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ round;
        black_box((x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb))
    })
}

/// Returns the number of rounds that take one core as long as [`WORK`].
fn calibrated() -> u64 {
    let rounds = 10_000_000;
    let once = || {
        let began = Instant::now();
        black_box(compute(1, rounds));
        began.elapsed()
    };
    let took = median((0..9).map(|_| once()).collect());
    (rounds as f64 * WORK.as_secs_f64() / took.as_secs_f64()) as u64
}

/// Returns the streamed answer that calls the tool, and the answer after it.
fn answers() -> (Bytes, Bytes) {
    let calls: String = (0..CALLS)
        .map(|index| {
            let function = json!({"name": "compute", "arguments": format!("{{\"seed\":{index}}}")});
            let call = json!({"index": index, "id": format!("call_{index}"), "type": "function",
                "function": function});
            event(json!({"tool_calls": [call]}), None)
        })
        .collect();
    let text = event(json!({"content": "Done."}), None);
    (Bytes::from(calls + &end("tool_calls")), Bytes::from(text + &end("stop")))
}

async fn provider() -> String {
    let (calls, text) = answers();
    serve(move |_, is_answered| stream(if is_answered { text.clone() } else { calls.clone() }))
        .await
}

async fn host(base_url: &str, rounds: u64, execution: Execution) -> Host {
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    config.use_model("bench", ModelConfig::new(BaseUrl::parse(base_url).unwrap(), "m"));
    let agent = config.agents.get_mut("default").unwrap();
    agent.tools = vec![ToolPattern::new("*")];
    agent.execution = execution;
    let mut tools = ToolRegistry::new();
    tools.register(Compute { rounds }).unwrap();
    Host::builder().config(config).tools(tools).start().await.unwrap()
}

/// Runs once in a new session. Returns the elapsed time.
async fn hosted(host: &Host) -> Duration {
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let began = Instant::now();
    let report: RunReport = session.run("compute").await.unwrap();
    let took = began.elapsed();
    assert_eq!((report.run_end, report.calls.len()), (RunEnd::Answered, CALLS as usize));
    session.close().await.unwrap();
    took
}

/// Does the same work on a thread for each call.
fn threads(rounds: u64) -> Duration {
    let began = Instant::now();
    thread::scope(|scope| {
        for seed in 0..CALLS {
            scope.spawn(move || black_box(compute(u64::from(seed), rounds)));
        }
    });
    began.elapsed()
}

fn main() {
    let runtime = Runtime::new().unwrap();
    let base_url = runtime.block_on(provider());
    let rounds = calibrated();
    let mut criterion = Criterion::default().configure_from_args();
    let executions =
        [("parallel", Execution::Parallel { max: 16 }), ("sequential", Execution::Sequential)];
    let hosts = executions
        .map(|(name, execution)| (name, runtime.block_on(host(&base_url, rounds, execution))));
    let mut group = criterion.benchmark_group("tools");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(3));
    group.bench_function("threads", |bencher| {
        bencher.iter_custom(|runs| (0..runs).map(|_| threads(rounds)).sum());
    });
    for (name, host) in &hosts {
        group.bench_function(format!("host/{name}"), |bencher| {
            bencher.to_async(&runtime).iter_custom(async |runs| {
                let mut took = Duration::ZERO;
                for _ in 0..runs {
                    took += hosted(host).await;
                }
                took
            });
        });
    }
    group.finish();
    // Measured alternately, so that all run under the same load of the machine.
    let [mut bare, mut parallel, mut sequential] = [const { Vec::new() }; 3];
    for _ in 0..PAIRS {
        bare.push(threads(rounds));
        parallel.push(runtime.block_on(hosted(&hosts[0].1)));
        sequential.push(runtime.block_on(hosted(&hosts[1].1)));
    }
    let bare = median(bare);
    let row = |what: &str, took: Duration| {
        let ratio = took.as_secs_f64() / bare.as_secs_f64();
        [what.to_owned(), format!("{:.1} ms", took.as_secs_f64() * 1e3), format!("{ratio:.2}")]
    };
    let rows = [
        row("two threads", bare),
        row("a run, in parallel", median(parallel)),
        row("a run, in sequence", median(sequential)),
    ];
    let about = format!(
        "A run whose two blocking tools each compute for about {} ms, beside two plain threads \
         with the same work, medians of {PAIRS} in turn.",
        WORK.as_millis()
    );
    Report::new("tools").table(&about, ["what", "time", "ratio"], rows).print();
}
