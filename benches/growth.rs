//! Measures the cost of a turn late in a session: the 10th, the 100th and the 1,000th turn of a run
//! in which every turn makes one call.
//!
//! The measured time is from the tool's return to the arrival of the next request's head at the
//! service. In it the outcome is released and committed, and the next request is written and sent.
//! Two baselines grow with the history: the same exchange with the same client but without a host,
//! and the writing of the whole request body. (A session's next body reuses the bytes of its last
//! one.) The CPU time of a whole turn is compared with that of the exchange. The rest of the turn
//! must not grow.
//!
//! A second table has the same run with a window of a few thousand tokens, so that the context is
//! made smaller again and again: the CPU time of hundreds of turns, summaries included, beside that
//! of the same requests, sent by the HTTP client alone.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench that fails is wrong")]

#[path = "shared/chat.rs"]
mod chat;
#[path = "shared/report.rs"]
mod report;
#[path = "shared/times.rs"]
mod times;

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use callsheet::config::{BaseUrl, Config, JournalEngine, ModelConfig, ToolPattern};
use callsheet::load::cpu_time;
use callsheet::message::Message;
use callsheet::runtime::model::{ModelClient, ModelRequest};
use callsheet::runtime::{Host, OpenSession};
use callsheet::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use callsheet::types::{RunEnd, Wire};
use callsheet::wire::{ToolDefinition, WireFormat as _};
use chat::{end, event};
use parking_lot::Mutex;
use report::Report;
use serde_json::json;
use times::median;
use tokio::runtime::Runtime;
use tokio::time::Instant;

const TURNS: [usize; 3] = [10, 100, 1_000];

/// The number of turns before and after each of them that are measured too.
const AROUND: usize = 5;

/// The turns of the second table, and its window in tokens.
const RANGES: [Range<usize>; 3] = [100..300, 450..650, 800..1_000];
const WINDOW: u64 = 8_000;

/// The answer of the service to a request for a summary.
const SUMMARY: &str = "Goal: work on. Done: the earlier parts. Open: the rest. Next: call `work`.";

/// The number of sessions.
const SESSIONS: usize = 12;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Work {
    i: usize,
    pad: String,
}

/// The body of a request, and the process's CPU time when its head was read.
type SentBody = (Bytes, Duration);

/// The times of the events of a run.
#[derive(Clone, Default)]
struct Marks {
    /// The times at which the head of a request was read, with the process's CPU time until then.
    asked: Arc<Mutex<Vec<(Instant, Duration)>>>,
    /// The times at which a tool returned.
    returned: Arc<Mutex<Vec<Instant>>>,
    /// The bodies of the requests. Only kept with a window.
    bodies: Option<Arc<Mutex<Vec<SentBody>>>>,
}

struct WorkTool(Marks);

#[async_trait]
impl Tool for WorkTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<Work>("work", "Works.").pure()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let Work { i, pad } = context.input()?;
        let result = format!("result {i} for {pad}").into();
        self.0.returned.lock().push(Instant::now());
        Ok(result)
    }
}

fn answer(turn: usize) -> String {
    if turn > TURNS[2] + AROUND {
        return event(json!({"content": "Done."}), None) + &end("stop");
    }
    let arguments = json!({"i": turn, "pad": "about this many bytes"}).to_string();
    let call = json!({"index": 0, "id": format!("call_{turn:024}"), "type": "function",
        "function": {"name": "work", "arguments": arguments}});
    event(json!({"tool_calls": [call]}), None) + &end("tool_calls")
}

/// Starts a provider. Its answers depend on the number of requests.
async fn provider(marks: Marks) -> String {
    let handle = move |request: Request| {
        let (began, marks) = ((Instant::now(), cpu_time()), marks.clone());
        async move {
            let body = to_bytes(request.into_body(), usize::MAX).await.unwrap();
            let mut asked = marks.asked.lock();
            if let Some(bodies) = &marks.bodies {
                bodies.lock().push((body.clone(), began.1));
                // Only the first request of the run and those for summaries end with a user message.
                let role = memchr::memmem::rfind(&body, br#""role":"user""#).unwrap();
                let is_last = memchr::memmem::find(&body[role..], br#""role":"tool""#).is_none();
                if is_last && !asked.is_empty() {
                    let text = event(json!({"content": SUMMARY}), None) + &end("stop");
                    return ([(CONTENT_TYPE, "text/event-stream")], text);
                }
            }
            asked.push(began);
            ([(CONTENT_TYPE, "text/event-stream")], answer(asked.len()))
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Router::new().route("/v1/chat/completions", post(handle));
    tokio::task::spawn(async move { axum::serve(listener, server).await });
    format!("http://{address}/v1")
}

async fn host(model: ModelConfig, marks: &Marks) -> Host {
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    config.use_model("bench", model);
    let agent = config.agents.get_mut("default").unwrap();
    agent.tools = vec![ToolPattern::new("*")];
    agent.limits.max_turns = None;
    agent.limits.repeat_limit = None;
    let mut tools = ToolRegistry::new();
    tools.register(WorkTool(marks.clone())).unwrap();
    Host::builder().config(config).tools(tools).start().await.unwrap()
}

/// The measurements of one turn.
#[derive(Default)]
struct Measured {
    bytes: usize,
    to_request: Vec<Duration>,
    bare_to_request: Vec<Duration>,
    written: Vec<Duration>,
    cpu: Vec<Duration>,
    bare_cpu: Vec<Duration>,
}

impl Measured {
    fn extend(&mut self, other: Self) {
        self.bytes = other.bytes;
        self.to_request.extend(other.to_request);
        self.bare_to_request.extend(other.bare_to_request);
        self.written.extend(other.written);
        self.cpu.extend(other.cpu);
        self.bare_cpu.extend(other.bare_cpu);
    }
}

/// Runs a session with all turns, and then writes and sends the same requests without a host.
async fn grow(host: Host, client: ModelClient, marks: Marks) -> [Measured; 3] {
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let report = session.run("Work, and work on.").await.unwrap();
    assert_eq!(report.run_end, RunEnd::Answered, "{:?}", report.error);
    session.close().await.unwrap();
    let asked = std::mem::take(&mut *marks.asked.lock());
    let returned = std::mem::take(&mut *marks.returned.lock());
    let mut measured = std::array::from_fn(|_| Measured::default());
    for (turn, measured) in TURNS.into_iter().zip(&mut measured) {
        for turn in turn - AROUND..turn + AROUND {
            measured.to_request.push(asked[turn].0 - returned[turn - 1]);
        }
        let cpu = asked[turn + AROUND].1 - asked[turn - AROUND].1;
        measured.cpu.push(cpu / (2 * AROUND as u32));
        let request = request(&report.all_messages()[..2 * turn - 1]);
        let cpu = cpu_time();
        for _ in 0..2 * AROUND {
            let began = Instant::now();
            client.complete(&request).await.unwrap();
            let asked = marks.asked.lock().pop().unwrap();
            measured.bare_to_request.push(asked.0 - began);
        }
        measured.bare_cpu.push((cpu_time() - cpu) / (2 * AROUND as u32));
        for _ in 0..2 * AROUND {
            let began = Instant::now();
            measured.bytes = black_box(Wire::OpenaiChat.request_body(black_box(&request))).len();
            measured.written.push(began.elapsed());
        }
    }
    measured
}

/// Returns the request of a turn with this history.
fn request(messages: &[Arc<Message>]) -> ModelRequest {
    let spec = WorkTool(Marks::default()).spec();
    let tool = ToolDefinition::new(&spec.name, &spec.description, spec.input.as_value().clone());
    ModelRequest::new("m", messages.to_vec().into()).with(|new| new.tools = Arc::new([tool]))
}

/// The measurements of a range of turns with a window.
#[derive(Default)]
struct InWindow {
    requests: usize,
    summaries: usize,
    bytes: usize,
    cpu: Vec<Duration>,
    bare_cpu: Vec<Duration>,
}

/// Runs a session that fills its window again and again, and then sends the same requests.
async fn grow_in_window(host: Host, url: String, marks: Marks) -> [InWindow; 3] {
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let report = session.run("Work, and work on.").await.unwrap();
    assert_eq!(report.run_end, RunEnd::Answered, "{:?}", report.error);
    session.close().await.unwrap();
    let asked = std::mem::take(&mut *marks.asked.lock());
    let bodies = std::mem::take(&mut *marks.bodies.as_ref().unwrap().lock());
    marks.returned.lock().clear();
    let client = callsheet::tls::client(reqwest::Client::builder().no_proxy()).unwrap();
    let mut measured = std::array::from_fn(|_| InWindow::default());
    for (range, measured) in RANGES.into_iter().zip(&mut measured) {
        let (from, to) = (asked[range.start].1, asked[range.end].1);
        let turns = range.len() as u32;
        let sent = bodies.iter().filter(|(_, at)| (from..to).contains(at));
        let sent: Vec<_> = sent.map(|(body, _)| body).collect();
        measured.requests = sent.len();
        measured.summaries = sent.len() - range.len();
        measured.bytes = sent.iter().map(|body| body.len()).sum::<usize>() / sent.len();
        measured.cpu.push((to - from) / turns);
        let cpu = cpu_time();
        for body in sent {
            let request = client.post(&url).header(CONTENT_TYPE, "application/json");
            request.body(body.clone()).send().await.unwrap().bytes().await.unwrap();
        }
        measured.bare_cpu.push((cpu_time() - cpu) / turns);
    }
    marks.asked.lock().clear();
    marks.bodies.as_ref().unwrap().lock().clear();
    measured
}

/// Adds the table of sessions that fill their window again and again.
fn with_window(report: Report, runtime: &Runtime) -> Report {
    let marks = Marks { bodies: Some(Arc::default()), ..Marks::default() };
    let base_url = runtime.block_on(provider(marks.clone()));
    let mut model = ModelConfig::new(BaseUrl::parse(&base_url).unwrap(), "m");
    model.context_window = Some(WINDOW);
    let host = runtime.block_on(host(model, &marks));
    let url = format!("{base_url}/chat/completions");
    let mut measured: [InWindow; 3] = std::array::from_fn(|_| InWindow::default());
    for _ in 0..SESSIONS {
        let growing = runtime.spawn(grow_in_window(host.clone(), url.clone(), marks.clone()));
        for (all, one) in measured.iter_mut().zip(runtime.block_on(growing).unwrap()) {
            all.cpu.extend(one.cpu);
            all.bare_cpu.extend(one.bare_cpu);
            (all.requests, all.summaries, all.bytes) = (one.requests, one.summaries, one.bytes);
        }
    }
    runtime.block_on(host.shutdown());
    let rows = RANGES.into_iter().zip(measured).map(|(range, measured)| {
        let InWindow { requests, summaries, bytes, cpu, bare_cpu } = measured;
        let [cpu, bare_cpu] = [cpu, bare_cpu].map(|times| median(times).as_secs_f64() * 1e6);
        [
            format!("{} to {}", range.start + 1, range.end),
            format!("{requests} ({summaries})"),
            format!("{:.1} kB", bytes as f64 / 1e3),
            format!("{cpu:.0} us"),
            format!("{bare_cpu:.0} us"),
            format!("{:.2}", cpu / bare_cpu),
        ]
    });
    let about = format!(
        "The same run with a window of {WINDOW} tokens: the CPU of a turn, summaries included, \
         medians of {SESSIONS} sessions, beside the same requests sent by the HTTP client alone."
    );
    let head = ["turns", "requests (summaries)", "request", "CPU of a turn", "alone", "ratio"];
    report.table(&about, head, rows)
}

fn main() {
    let (runtime, marks) = (Runtime::new().unwrap(), Marks::default());
    let base_url = runtime.block_on(provider(marks.clone()));
    let model = ModelConfig::new(BaseUrl::parse(&base_url).unwrap(), "m");
    let client = ModelClient::new(&model).unwrap();
    let host = runtime.block_on(host(model, &marks));
    let mut measured: [Measured; 3] = std::array::from_fn(|_| Measured::default());
    for _ in 0..SESSIONS {
        // Runs on a worker thread, as the tasks of the host do.
        let growing = runtime.spawn(grow(host.clone(), client.clone(), marks.clone()));
        for (all, one) in measured.iter_mut().zip(runtime.block_on(growing).unwrap()) {
            all.extend(one);
        }
    }
    runtime.block_on(host.shutdown());
    let rows = TURNS.into_iter().zip(measured).map(|(turn, measured)| {
        let Measured { bytes, to_request, bare_to_request, written, cpu, bare_cpu } = measured;
        let [time, bare, written, cpu, bare_cpu] =
            [to_request, bare_to_request, written, cpu, bare_cpu]
                .map(|times| median(times).as_secs_f64() * 1e6);
        let us = |number: f64| format!("{number:.0} us");
        [
            turn.to_string(),
            format!("{:.1} kB", bytes as f64 / 1e3),
            us(time),
            format!("{} ({})", us(bare), us(written)),
            format!("{} ({:.2})", us(time - bare), time / bare),
            us(cpu),
            us(bare_cpu),
            format!("{} ({:.2})", us(cpu - bare_cpu), cpu / bare_cpu),
        ]
    });
    let about = format!(
        "A turn late in a session, medians of the {} turns around it in {SESSIONS} sessions: from \
         the tool's return to the head of the next request at the service, and the CPU of the \
         whole turn; beside the same exchange by the same client without a host, which writes the \
         whole body, where a session repeats its last. The service runs in the same process. The \
         rest, and the ratio, may not grow.",
        2 * AROUND
    );
    let head = [
        "turn",
        "request",
        "to the next request",
        "the exchange alone (writing its body)",
        "rest (ratio)",
        "CPU",
        "of the exchange alone",
        "rest (ratio)",
    ];
    with_window(Report::new("growth").table(&about, head, rows), &runtime).print();
}
