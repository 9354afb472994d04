//! Measures what watchers cost a run, compared with the same run without watchers.
//!
//! There are two kinds of watchers: 1 or 100 subscribers in the same process that read every event,
//! and 1,000 clients over HTTP that never read. For the latter, prints their memory and the
//! additional time of the run. The sockets are on loopback. The kernel's socket buffers are not
//! counted.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench that fails is wrong")]

#[path = "shared/provider.rs"]
mod provider;
#[path = "shared/report.rs"]
mod report;
#[path = "shared/times.rs"]
mod times;

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use callsheet::config::{BaseUrl, Config, JournalEngine, ModelConfig};
use callsheet::load::{cpu_time, memory, raise_open_files};
use callsheet::runtime::{Host, OpenSession, SessionHandle};
use callsheet::server::{self, ServerOptions};
use callsheet::telemetry::FeedItem;
use callsheet::types::RunEnd;
use futures::StreamExt as _;
use provider::{end, event, serve, stream};
use report::Report;
use serde_json::json;
use times::median;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// The text of each delta.
const TEXT: &str = "Some words of text. ";

const WATCHERS: usize = 1_000;
const DELTAS: usize = 20_000;
const RUNS: usize = 3;

/// The answer for the subscribers that read, slow enough for 100 of them.
const READ_DELTAS: usize = 2_000;
const READ_PAUSE: Duration = Duration::from_millis(1);
const READ_RUNS: usize = 7;

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns an answer with this number of deltas, a few in each piece that is written.
async fn provider(deltas: usize, pause: Duration) -> String {
    let delta = event(json!({"content": TEXT}), None);
    let piece = Bytes::from(delta.repeat(8));
    serve(move |_, _| {
        let pieces = std::iter::repeat_n(piece.clone(), deltas / 8);
        let pieces = pieces.chain([Bytes::from(end("stop"))]);
        let paced = futures::stream::iter(pieces).then(move |piece| async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            Ok::<_, Infallible>(piece)
        });
        stream(Body::from_stream(paced))
    })
    .await
}

async fn host(deltas: usize, pause: Duration) -> Host {
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    let base_url = provider(deltas, pause).await;
    config.use_model("bench", ModelConfig::new(BaseUrl::parse(&base_url).unwrap(), "m"));
    config.agents.values_mut().for_each(|agent| agent.tools.clear());
    Host::builder().config(config).start().await.unwrap()
}

/// Returns the resident memory in kilobytes.
fn resident_kb() -> i64 {
    memory().unwrap().now_kb as i64
}

fn watchers(host: &Host) -> f64 {
    let page = host.telemetry().render();
    let line = page.lines().find(|line| line.starts_with("callsheet_watchers "));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
}

async fn run(session: &SessionHandle) -> Duration {
    let began = Instant::now();
    assert_eq!(session.run("Go on.").await.unwrap().run_end, RunEnd::Answered);
    began.elapsed()
}

/// Measures a few runs, each in a new session with `count` watchers. Returns the median time, the
/// resident memory before the watchers connected, and its maximum while they were connected.
async fn watched(host: &Host, addr: std::net::SocketAddr, count: usize) -> (Duration, i64, i64) {
    let mut times = Vec::new();
    let (mut before, mut most) = (i64::MAX, 0);
    for _ in 0..RUNS {
        let session = host.open_session(OpenSession::default()).await.unwrap();
        before = before.min(resident_kb());
        let mut sockets = Vec::new();
        let id = session.id();
        let request = format!("GET /v1/sessions/{id}/events HTTP/1.1\r\nhost: localhost\r\n\r\n");
        for _ in 0..count {
            let mut socket = TcpStream::connect(addr).await.unwrap();
            socket.write_all(request.as_bytes()).await.unwrap();
            sockets.push(socket);
        }
        let began = Instant::now();
        while watchers(host) < count as f64 {
            assert!(began.elapsed() < PATIENCE, "{} watch", watchers(host));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        times.push(run(&session).await);
        most = most.max(resident_kb());
        drop(sockets);
        session.close().await.unwrap();
        while watchers(host) > 0.0 {
            assert!(began.elapsed() < PATIENCE, "{} are left", watchers(host));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    (median(times), before, most)
}

/// Returns the median time and CPU time of a few runs, each in a new session with `count`
/// subscribers that read every event.
async fn read(host: &Host, count: usize) -> (Duration, Duration) {
    let (mut times, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..READ_RUNS {
        let session = host.open_session(OpenSession::default()).await.unwrap();
        let mut readers = Vec::new();
        for _ in 0..count {
            let mut watch = session.watch_from_now().await.unwrap();
            readers.push(tokio::spawn(async move {
                let mut seen = 0;
                while let Some(FeedItem::Event(published)) = watch.next().await {
                    seen += published.event.text().map_or(0, |(_, text)| text.len());
                }
                seen
            }));
        }
        let before = cpu_time();
        times.push(run(&session).await);
        session.close().await.unwrap();
        for reader in readers {
            // Pieces that are read together are one event.
            assert_eq!(reader.await.unwrap(), READ_DELTAS * TEXT.len(), "none lagged");
        }
        cpu.push(cpu_time() - before);
    }
    (median(times), median(cpu))
}

async fn fan_out() -> Vec<[String; 6]> {
    let host = host(READ_DELTAS, READ_PAUSE).await;
    let (none, none_cpu) = read(&host, 0).await;
    let mut rows = Vec::new();
    for count in [1, 100] {
        let (time, cpu) = read(&host, count).await;
        let each = cpu.saturating_sub(none_cpu) / (count * READ_DELTAS) as u32;
        let beside = |time: Duration, none: Duration| {
            let (ms, none_ms) = (time.as_secs_f64() * 1e3, none.as_secs_f64() * 1e3);
            (format!("{ms:.1} ms ({none_ms:.1} ms)"), format!("{:.2}", ms / none_ms))
        };
        let ((time, time_ratio), (cpu, cpu_ratio)) = (beside(time, none), beside(cpu, none_cpu));
        let each = format!("{} ns", each.as_nanos());
        rows.push([count.to_string(), time, time_ratio, cpu, cpu_ratio, each]);
    }
    host.shutdown().await;
    rows
}

async fn compare() {
    let read = fan_out().await;
    let host = host(DELTAS, Duration::ZERO).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = server::serve(listener, host.clone(), ServerOptions::default()).unwrap();
    let (none, ..) = watched(&host, server.addr(), 0).await;
    let (with, before, most) = watched(&host, server.addr(), WATCHERS).await;
    server.shutdown().await;
    host.shutdown().await;
    let grown = (most - before).max(0);
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    let never = [
        WATCHERS.to_string(),
        format!("{} ({})", ms(with), ms(none)),
        format!("{:.2}", with.as_secs_f64() / none.as_secs_f64()),
        format!("{before} kB and {grown} kB more"),
        format!("{:.1} kB", grown as f64 / WATCHERS as f64),
    ];
    let about = format!(
        "A run of {READ_DELTAS} deltas, eight every {} ms, that so many read event by event in the \
         same process, beside (in brackets) the same run that nobody watches; medians of \
         {READ_RUNS}.",
        READ_PAUSE.as_millis()
    );
    let head = ["watchers", "time", "ratio", "CPU", "ratio", "CPU for a delta and watcher"];
    let unread = format!(
        "A run of {DELTAS} deltas without a pause, watched by clients over HTTP that never read, \
         beside (in brackets) the same run that nobody watches; medians of {RUNS}. Each is written \
         to until it is too far behind, and then let go."
    );
    let unread_head = ["clients", "time", "ratio", "resident before", "for each client"];
    Report::new("watchers").table(&about, head, read).table(&unread, unread_head, [never]).print();
}

fn main() {
    raise_open_files(4 * WATCHERS as u32).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(compare());
}
