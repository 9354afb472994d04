//! Measures when tools start: the same turn with a plain response, with a streamed response and
//! `early_start = false`, and with a streamed response and early start, in sequence and in
//! parallel.
//!
//! A response of eight calls takes one second, streamed or not. The first call is complete after
//! about a fifth of it. There are two workloads: each call takes 100 ms, or the first call takes
//! one second and the others nothing. Prints the times from the request to the first start of a
//! tool and to the last result, and their ratios to the plain turn. Also prints the ideal times:
//! the sums of the pauses and the tools alone.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench that fails is wrong")]

#[path = "shared/provider.rs"]
mod provider;
#[path = "shared/report.rs"]
mod report;
#[path = "shared/times.rs"]
mod times;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::{Body, Bytes};
use callsheet::config::{BaseUrl, Config, JournalEngine, ModelConfig, ToolPattern};
use callsheet::runtime::{Host, OpenSession};
use callsheet::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use callsheet::types::{Execution, RunEnd};
use futures::stream;
use parking_lot::Mutex;
use provider::{Answer, end, event, serve};
use report::Report;
use serde_json::{Value, json};
use times::median;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};

const CALLS: usize = 8;

/// The duration of a response.
const RESPONSE: Duration = Duration::from_millis(1_000);

/// The number of pieces: a text, the calls, the end. A pause precedes each piece.
const PAUSES: u32 = CALLS as u32 + 1;

/// The first call is complete when the second one opens.
const FIRST_SEALED: Duration = RESPONSE.checked_div(PAUSES).unwrap().saturating_mul(2);

const ROUNDS: usize = 5;

const EXECUTIONS: [(&str, Execution); 2] =
    [("sequential", Execution::Sequential), ("parallel", Execution::Parallel { max: 16 })];

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Work {
    ms: u64,
    /// Makes the calls different, because identical calls run only once.
    #[serde(rename = "i")]
    _i: usize,
}

/// The measurements of a turn.
#[derive(Clone, Default)]
struct Marks(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    asked: Option<Instant>,
    first_start: Option<Instant>,
    last_result: Option<Instant>,
}

struct WorkTool(Marks);

#[async_trait]
impl Tool for WorkTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<Work>("work", "Works for a while.").pure()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        self.0.0.lock().first_start.get_or_insert_with(Instant::now);
        let Work { ms, .. } = context.input()?;
        sleep(Duration::from_millis(ms)).await;
        self.0.0.lock().last_result = Some(Instant::now());
        Ok("done".into())
    }
}

/// The duration of each call.
#[derive(Clone, Copy)]
struct Workload {
    name: &'static str,
    first_ms: u64,
    other_ms: u64,
}

const WORKLOADS: [Workload; 2] = [
    Workload { name: "8 calls of 100 ms", first_ms: 100, other_ms: 100 },
    Workload { name: "the first call takes 1 s", first_ms: 1_000, other_ms: 0 },
];

impl Workload {
    fn works(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.first_ms).chain(std::iter::repeat_n(self.other_ms, CALLS - 1))
    }

    fn calls(&self) -> Vec<Value> {
        let call = |(index, ms): (usize, u64)| {
            json!({"index": index, "id": format!("call_{index}"), "type": "function",
                "function": {"name": "work", "arguments": json!({"ms": ms, "i": index}).to_string()}})
        };
        self.works().enumerate().map(call).collect()
    }

    fn plain(&self) -> Bytes {
        let message = json!({"role": "assistant", "content": "Well.", "tool_calls": self.calls()});
        let body = json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]});
        Bytes::from(body.to_string())
    }

    fn pieces(&self) -> Vec<Bytes> {
        let mut pieces = vec![event(json!({"content": "Well."}), None)];
        let calls = self.calls().into_iter();
        pieces.extend(calls.map(|call| event(json!({"tool_calls": [call]}), None)));
        pieces.push(end("tool_calls"));
        pieces.into_iter().map(Bytes::from).collect()
    }

    /// Returns the time of the last result if only pauses and tools took time.
    fn ideal(&self, early: bool, execution: Execution) -> Duration {
        let pause = RESPONSE / PAUSES;
        // Each call is complete when the next piece arrives.
        let sealed = (2..).map(|piece| pause * piece);
        let mut last = Duration::ZERO;
        for (sealed, ms) in sealed.zip(self.works()) {
            let mut start = if early { sealed } else { RESPONSE };
            if execution == Execution::Sequential {
                start = start.max(last);
            }
            last = last.max(start + Duration::from_millis(ms));
        }
        last
    }
}

/// The kind of request.
#[derive(Clone, Copy)]
struct Mode {
    name: &'static str,
    streamed: bool,
    early: bool,
}

const MODES: [Mode; 3] = [
    Mode { name: "plain", streamed: false, early: true },
    Mode { name: "streamed, `early_start = false`", streamed: true, early: false },
    Mode { name: "streamed, early start", streamed: true, early: true },
];

async fn provider(workload: Workload, marks: Marks) -> String {
    let (plain, pieces) = (workload.plain(), workload.pieces());
    let last = event(json!({"content": "Done."}), None) + &end("stop");
    let last_plain = json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Done."},
            "finish_reason": "stop"}]});
    let last_plain = last_plain.to_string();
    serve(move |request, is_answered| -> Answer {
        let streamed = memchr::memmem::find(request, b"\"stream\":true").is_some();
        if is_answered {
            return match streamed {
                true => provider::stream(last.clone()),
                false => ("application/json", last_plain.clone().into()),
            };
        }
        marks.0.lock().asked = Some(Instant::now());
        if streamed {
            return provider::stream(paced(pieces.clone(), RESPONSE / PAUSES));
        }
        ("application/json", paced(vec![Bytes::new(), plain.clone()], RESPONSE))
    })
    .await
}

/// Returns a body whose pieces are sent at fixed times, however long the sending takes.
fn paced(pieces: Vec<Bytes>, pause: Duration) -> Body {
    let began = Instant::now();
    let pieces = stream::iter(pieces.into_iter().zip(0..));
    Body::from_stream(stream::StreamExt::then(
        pieces,
        move |(piece, at): (Bytes, u32)| async move {
            tokio::time::sleep_until(began + pause * at).await;
            Ok::<_, Infallible>(piece)
        },
    ))
}

async fn host(base_url: &str, mode: Mode, execution: Execution, marks: &Marks) -> Host {
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    let mut model = ModelConfig::new(BaseUrl::parse(base_url).unwrap(), "m");
    model.stream = mode.streamed;
    config.use_model("bench", model);
    let agent = config.agents.get_mut("default").unwrap();
    agent.tools = vec![ToolPattern::new("*")];
    agent.execution = execution;
    agent.early_start = mode.early;
    let mut tools = ToolRegistry::new();
    tools.register(WorkTool(marks.clone())).unwrap();
    Host::builder().config(config).tools(tools).start().await.unwrap()
}

/// Returns the times from the request to the first start and to the last result.
async fn turn(host: &Host, marks: &Marks) -> (Duration, Duration) {
    let session = host.open_session(OpenSession::default()).await.unwrap();
    *marks.0.lock() = Seen::default();
    let report = session.run("work").await.unwrap();
    assert_eq!((report.run_end, report.calls.len()), (RunEnd::Answered, CALLS));
    session.close().await.unwrap();
    let Seen { asked, first_start, last_result } = std::mem::take(&mut *marks.0.lock());
    let since = |at: Option<Instant>| at.unwrap() - asked.unwrap();
    (since(first_start), since(last_result))
}

async fn compare(workload: Workload) -> Vec<[String; 7]> {
    let marks = Marks::default();
    let base_url = provider(workload, marks.clone()).await;
    let mut rows = Vec::new();
    for (execution_name, execution) in EXECUTIONS {
        let mut hosts = Vec::new();
        for mode in MODES {
            hosts.push((host(&base_url, mode, execution, &marks).await, Vec::new(), Vec::new()));
        }
        // Measured alternately, so that all run under the same load of the machine.
        for _ in 0..ROUNDS {
            for (host, firsts, lasts) in &mut hosts {
                let (first, last) = turn(host, &marks).await;
                firsts.push(first);
                lasts.push(last);
            }
        }
        let mut plain = None;
        for (mode, (host, firsts, lasts)) in MODES.into_iter().zip(hosts) {
            host.shutdown().await;
            let (first, last) = (median(firsts), median(lasts));
            let (plain_first, plain_last) = *plain.get_or_insert((first, last));
            let early = mode.streamed && mode.early;
            let ideal_first = if early { FIRST_SEALED } else { RESPONSE };
            let beside = |time: Duration, ideal: Duration| {
                format!("{:.0} ms (ideal {:.0})", ms(time), ms(ideal))
            };
            let ratio = |time: Duration, plain: Duration| {
                format!("{:.2}", time.as_secs_f64() / plain.as_secs_f64())
            };
            rows.push([
                workload.name.to_owned(),
                execution_name.to_owned(),
                mode.name.to_owned(),
                beside(first, ideal_first),
                ratio(first, plain_first),
                beside(last, workload.ideal(early, execution)),
                ratio(last, plain_last),
            ]);
        }
    }
    rows
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn main() {
    let runtime = Runtime::new().unwrap();
    let rows = WORKLOADS.into_iter().flat_map(|workload| runtime.block_on(compare(workload)));
    let about = format!(
        "A response of {CALLS} calls that takes {:.0} ms, medians of {ROUNDS}: from the request \
         to the first start of a tool and to the last result, and the ratios to the plain turn. \
         Ideal is what pauses and tools alone add up to.",
        ms(RESPONSE)
    );
    let head = [
        "workload",
        "execution",
        "asked",
        "to the first start",
        "ratio",
        "to all results",
        "ratio",
    ];
    Report::new("early").table(&about, head, rows).print();
}
