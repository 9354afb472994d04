//! A thousand clients that watch one session over HTTP and never read, while a long run streams:
//! how much memory they take, and how much longer the run is for them.
//!
//! The sockets are real ones on loopback. What the kernel holds in their buffers is not counted.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench that fails is wrong")]

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use callsheet::config::{BaseUrl, Config, JournalEngine, ModelConfig};
use callsheet::runtime::{Host, HostSetup, OpenSession, SessionHandle};
use callsheet::server::{self, ServerOptions};
use callsheet::tool::Registry;
use callsheet::types::RunEnd;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

const WATCHERS: usize = 1_000;
const DELTAS: usize = 20_000;
const RUNS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer of so many deltas, a few to each piece that is written.
async fn provider() -> String {
    let chunk = |delta: serde_json::Value, finish: Option<&str>| {
        let body = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
        format!("data: {body}\n\n")
    };
    let delta = chunk(json!({"content": "Some words of text. "}), None);
    let last = chunk(json!({}), Some("stop")) + "data: [DONE]\n\n";
    let piece = Bytes::from(delta.repeat(8));
    let answer = move || {
        let pieces = std::iter::repeat_n(piece.clone(), DELTAS / 8);
        let pieces = pieces.chain([Bytes::from(last.clone())]);
        let body = Body::from_stream(futures::stream::iter(pieces.map(Ok::<_, std::io::Error>)));
        async move { ([(CONTENT_TYPE, "text/event-stream")], body) }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Router::new().route("/v1/chat/completions", post(answer));
    tokio::spawn(async move { axum::serve(listener, server).await });
    format!("http://{address}/v1")
}

/// Resident memory in kilobytes.
fn resident_kb() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
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

/// The median of a few runs, each in a session of its own that so many watch; the resident memory
/// before they came, and the most while they were there.
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
    times.sort_unstable();
    (times[RUNS / 2], before, most)
}

async fn compare() {
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    let base_url = provider().await;
    config.use_model("bench", ModelConfig::new(BaseUrl::parse(&base_url).unwrap(), "m"));
    let host = Host::start(HostSetup { config, tools: Registry::new() }).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = server::serve(listener, host.clone(), ServerOptions::default()).unwrap();
    let (none, ..) = watched(&host, server.addr(), 0).await;
    let (with, before, most) = watched(&host, server.addr(), WATCHERS).await;
    let grown = (most - before).max(0);
    println!("\nA run of {DELTAS} deltas, medians of {RUNS}:");
    println!("  nobody watches: {none:.2?}");
    println!(
        "  {WATCHERS} clients watch and never read: {with:.2?}, ratio {:.2}; {} MB more resident, {:.1} kB each",
        with.as_secs_f64() / none.as_secs_f64(),
        grown / 1024,
        grown as f64 / WATCHERS as f64
    );
    server.shutdown().await;
    host.shutdown().await;
}

fn main() {
    tokio::runtime::Runtime::new().unwrap().block_on(compare());
}
