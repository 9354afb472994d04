//! Measures 1,000 sessions with streaming responses, each with a tool that runs until it is
//! stopped: the time until a sealed call starts, and the time until a stop is complete.
//!
//! Each response sends a piece every 100 ms. Its first call starts early and waits for its
//! cancellation token. The sessions start 1 ms apart. They are stopped 1 ms apart, or all at once,
//! while the others continue to stream. The baseline has the same number of tasks, which read the
//! same responses with the same client, run each call as a task and stop it with a
//! `CancellationToken`. The first time is from the service's sending of the piece that completes
//! the call to the tool's first instruction. The others are from the stop to the last result at a
//! watcher, and to the tool's return.
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
use callsheet::event::Event;
use callsheet::load::raise_open_files;
use callsheet::message::Message;
use callsheet::record::StopMode;
use callsheet::response::{ResponseAssembler, ResponseLimits};
use callsheet::runtime::model::{ModelClient, ModelRequest};
use callsheet::runtime::{Host, OpenSession, SessionHandle};
use callsheet::telemetry::FeedItem;
use callsheet::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use callsheet::types::RunEnd;
use futures::StreamExt as _;
use futures::future::join_all;
use parking_lot::Mutex;
use provider::{end, event, serve, stream};
use report::Report;
use serde_json::json;
use times::{median, quantile};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

const SESSIONS: usize = 1_000;

/// The pause between two pieces of a response.
const PACE: Duration = Duration::from_millis(100);

/// The pause between the starts, and between the stops, of two sessions.
const APART: Duration = Duration::from_millis(1);

/// The number of text pieces after the calls of a response. The sessions are stopped before its
/// end.
const TEXTS: usize = 600;

const ROUNDS: usize = 3;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Wait {
    i: usize,
}

/// The times of the events of each session's call.
#[derive(Clone)]
struct Marks(Arc<[Mutex<Mark>]>);

#[derive(Clone, Copy, Default)]
struct Mark {
    sealed: Option<Instant>,
    started: Option<Instant>,
    returned: Option<Instant>,
}

impl Marks {
    fn new() -> Self {
        Self((0..SESSIONS).map(|_| Mutex::default()).collect())
    }

    fn started(&self) -> usize {
        self.0.iter().filter(|mark| mark.lock().started.is_some()).count()
    }
}

struct WaitTool(Marks);

#[async_trait]
impl Tool for WaitTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<Wait>("wait", "Waits until it is told to stop.").pure()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let started = Instant::now();
        let Wait { i } = context.input()?;
        self.0.0[i].lock().started = Some(started);
        context.cancelled().await;
        self.0.0[i].lock().returned = Some(Instant::now());
        Ok("stopped".into())
    }
}

/// Starts a provider. The user's input contains the number of the session.
async fn provider(marks: Marks) -> String {
    serve(move |request, _| {
        let number = memchr::memmem::find(request, b"session ").unwrap() + b"session ".len();
        let digits = request[number..].split(|byte| !byte.is_ascii_digit()).next().unwrap();
        let i: usize = std::str::from_utf8(digits).unwrap().parse().unwrap();
        let call = |index: usize| {
            let function = json!({"name": "wait", "arguments": json!({"i": i}).to_string()});
            let call = json!({"index": index, "id": format!("call_{index}"), "type": "function",
                "function": function});
            event(json!({"tool_calls": [call]}), None)
        };
        let text = Bytes::from(event(json!({"content": "Some words of text. "}), None));
        // The first call is complete when the second one opens. The second one is never complete.
        let pieces = [text.clone(), call(0).into(), call(1).into()];
        let texts = std::iter::repeat_n(text, TEXTS).chain([end("tool_calls").into()]);
        let pieces = pieces.into_iter().chain(texts).enumerate();
        let marks = marks.clone();
        let paced = futures::stream::iter(pieces).then(move |(at, piece)| {
            let marks = marks.clone();
            async move {
                sleep(PACE).await;
                if at == 2 {
                    marks.0[i].lock().sealed = Some(Instant::now());
                }
                Ok::<_, Infallible>(piece)
            }
        });
        stream(Body::from_stream(paced))
    })
    .await
}

async fn host(model: ModelConfig, marks: &Marks) -> Host {
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    config.use_model("bench", model);
    let agent = config.agents.get_mut("default").unwrap();
    agent.tools = vec![ToolPattern::new("*")];
    let mut tools = ToolRegistry::new();
    tools.register(WaitTool(marks.clone())).unwrap();
    Host::builder().config(config).tools(tools).start().await.unwrap()
}

/// The time from the stop to the last result, and the session, which is closed later.
type Stopped = (Duration, Option<SessionHandle>);

/// The implementation that runs the sessions.
#[derive(Clone)]
enum World {
    Host(Host),
    Bare(ModelClient, Marks),
}

impl World {
    /// Runs one session from its start to the result of its call after the stop. Returns the time
    /// since the stop.
    async fn session(self, i: usize, stop: oneshot::Receiver<Instant>) -> Stopped {
        match self {
            Self::Host(host) => hosted(&host, i, stop).await,
            Self::Bare(client, marks) => (bare(&client, &marks, i, stop).await, None),
        }
    }
}

async fn hosted(host: &Host, i: usize, stop: oneshot::Receiver<Instant>) -> Stopped {
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let mut run = session.start_run(format!("session {i}").as_str()).await.unwrap();
    let stopping = async {
        let at = stop.await.unwrap();
        session.stop(StopMode::Now).await.unwrap();
        at
    };
    let watching = async {
        let mut last = None;
        while let Some(FeedItem::Event(published)) = run.events.next().await {
            if matches!(published.event, Event::CallEnded { .. }) {
                last = Some(Instant::now());
            }
            if let Event::RunEnded { end, .. } = &published.event {
                assert_eq!(*end, RunEnd::Stopped);
                break;
            }
        }
        last.unwrap()
    };
    let (stopped, last) = tokio::join!(stopping, watching);
    (last - stopped, Some(session))
}

/// Does the same without a host: one task reads, and another one is the call.
async fn bare(
    client: &ModelClient,
    marks: &Marks,
    i: usize,
    stop: oneshot::Receiver<Instant>,
) -> Duration {
    let token = CancellationToken::new();
    let user = Message::User { content: format!("session {i}").as_str().into() };
    let request = ModelRequest::new("m", [Arc::new(user)].into());
    let mut response = ResponseAssembler::new(ResponseLimits::default());
    let mut deltas = std::pin::pin!(client.stream(&request));
    let mut stop = std::pin::pin!(stop);
    let mut call = None;
    let stopped = loop {
        tokio::select! {
            batch = deltas.next() => {
                for delta in batch.unwrap().unwrap() {
                    response.push(&delta);
                }
                if call.is_none() && response.calls().len() > 1 {
                    let (token, marks) = (token.clone(), marks.clone());
                    let input: Wait = serde_json::from_str(&response.calls()[0].raw).unwrap();
                    call = Some(tokio::spawn(async move {
                        marks.0[input.i].lock().started = Some(Instant::now());
                        token.cancelled().await;
                        marks.0[input.i].lock().returned = Some(Instant::now());
                    }));
                }
            }
            stopped = &mut stop => break stopped.unwrap(),
        }
    };
    token.cancel();
    call.unwrap().await.unwrap();
    stopped.elapsed()
}

/// The measurements of all rounds.
#[derive(Default)]
struct Measured {
    to_start: Vec<Duration>,
    one_by_one: Stops,
    at_once: Stops,
}

#[derive(Default)]
struct Stops {
    to_result: Vec<Duration>,
    to_return: Vec<Duration>,
}

/// Starts all sessions, stops them, and waits for their ends.
async fn round(world: &World, marks: &Marks, at_once: bool, measured: &mut Measured) {
    for mark in marks.0.iter() {
        *mark.lock() = Mark::default();
    }
    let mut ticks = interval(APART);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut stops, mut sessions) = (Vec::new(), Vec::new());
    for i in 0..SESSIONS {
        ticks.tick().await;
        let (stop, stopped) = oneshot::channel();
        stops.push(stop);
        sessions.push(tokio::spawn(world.clone().session(i, stopped)));
    }
    while marks.started() < SESSIONS {
        sleep(PACE).await;
    }
    sleep(PACE * 2).await;
    let mut stopped = Vec::new();
    for stop in stops {
        if !at_once {
            ticks.tick().await;
        }
        stopped.push(Instant::now());
        stop.send(stopped[stopped.len() - 1]).unwrap();
    }
    let ended = join_all(sessions).await.into_iter().map(Result::unwrap);
    let (to_result, sessions): (Vec<_>, Vec<_>) = ended.unzip();
    let to = if at_once { &mut measured.at_once } else { &mut measured.one_by_one };
    to.to_result.extend(to_result);
    for session in sessions.into_iter().flatten() {
        session.close().await.unwrap();
    }
    while marks.0.iter().any(|mark| mark.lock().returned.is_none()) {
        sleep(PACE).await;
    }
    for (mark, stopped) in marks.0.iter().zip(stopped) {
        let mark = *mark.lock();
        measured.to_start.push(mark.started.unwrap() - mark.sealed.unwrap());
        to.to_return.push(mark.returned.unwrap() - stopped);
    }
}

async fn compare() -> [Measured; 2] {
    let marks = Marks::new();
    let base_url = provider(marks.clone()).await;
    let mut model = ModelConfig::new(BaseUrl::parse(&base_url).unwrap(), "m");
    model.max_concurrent_requests = None;
    let client = ModelClient::new(&model).unwrap();
    let host = host(model, &marks).await;
    let worlds = [World::Host(host.clone()), World::Bare(client, marks.clone())];
    let mut measured = [Measured::default(), Measured::default()];
    // Measured alternately, so that both run under the same load of the machine.
    for _ in 0..ROUNDS {
        for at_once in [false, true] {
            for (world, measured) in worlds.iter().zip(&mut measured) {
                round(world, &marks, at_once, measured).await;
            }
        }
    }
    host.shutdown().await;
    measured
}

fn row(what: &str, mut host: Vec<Duration>, mut bare: Vec<Duration>) -> [String; 6] {
    let last = [quantile(&mut host, 0.99), quantile(&mut bare, 0.99)];
    let ratio = last[0].as_secs_f64() / last[1].as_secs_f64();
    let ms = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
    let [p50, bare_p50, p99, bare_p99] = [median(host), median(bare), last[0], last[1]].map(ms);
    [what.to_owned(), p50, bare_p50, p99, bare_p99, format!("{ratio:.2}")]
}

fn main() {
    raise_open_files(4 * SESSIONS as u32).unwrap();
    let [host, bare] = Runtime::new().unwrap().block_on(compare());
    let rows = [
        row("a call is whole, to its tool's start", host.to_start, bare.to_start),
        row(
            "a stop, to the last result; one a millisecond",
            host.one_by_one.to_result,
            bare.one_by_one.to_result,
        ),
        row("the same, to the tool's return", host.one_by_one.to_return, bare.one_by_one.to_return),
        row(
            "a stop, to the last result; all at once",
            host.at_once.to_result,
            bare.at_once.to_result,
        ),
        row("the same, to the tool's return", host.at_once.to_return, bare.at_once.to_return),
    ];
    let about = format!(
        "{SESSIONS} sessions, each in a response of a piece every {} ms with a tool that runs until \
         it is told to stop, beside as many tasks that read the same without a host; {ROUNDS} \
         rounds.",
        PACE.as_millis()
    );
    let head = ["from", "p50", "bare p50", "p99", "bare p99", "ratio of p99"];
    Report::new("stop").table(&about, head, rows).print();
}
