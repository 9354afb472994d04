//! Measures what a stream of a face costs the host, beside the stream of its own API: the CPU time of a run whose answer is
//! read over HTTP, with 1,000 runs at once.
//!
//! There are three processes: the service, the host (this one), and the clients. Each run is in a new session. The own
//! stream has two requests, because its client opens the session.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench that fails is wrong")]

#[path = "shared/provider.rs"]
mod provider;
#[path = "shared/report.rs"]
mod report;
#[path = "shared/times.rs"]
mod times;

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use callsheet::config::{BaseUrl, Config, JournalEngine, ModelConfig};
use callsheet::load::{cpu_time, raise_open_files};
use callsheet::runtime::Host;
use callsheet::server::{self, ServerOptions};
use futures::StreamExt as _;
use provider::{end, event, serve, stream};
use report::Report;
use serde_json::{Value, json};
use times::median;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const STREAMS: usize = 1_000;
const ROUNDS: usize = 7;

/// The answer: pieces of text, with a pause after each, so that all runs go on at once.
const PIECES: usize = 200;
const PAUSE: Duration = Duration::from_millis(10);
const TEXT: &str = "Some words of text. ";

/// The streams, with the path and the body of the request. `{n}` is a number that no other session has.
const STREAMS_OF: [(&str, &str, &str); 5] = [
    ("own", "/v1/sessions/s{n}/runs", r#"{"input":"Go on."}"#),
    ("openai_responses", "/v1/responses", r#"{"model":"default","input":"Go on.","stream":true}"#),
    (
        "openai_chat",
        "/v1/chat/completions",
        r#"{"model":"default","messages":[{"role":"user","content":"Go on {n}."}],"stream":true}"#,
    ),
    (
        "ui",
        "/v1/ui/default",
        r#"{"id":"u{n}","trigger":"submit-message","messages":[{"id":"m1","role":"user","parts":[{"type":"text","text":"Go on."}]}]}"#,
    ),
    (
        "agui",
        "/v1/agui/default",
        r#"{"threadId":"a{n}","runId":"r{n}","messages":[{"id":"m1","role":"user","content":"Go on."}],"tools":[],"context":[],"state":{},"forwardedProps":{}}"#,
    ),
];

#[tokio::main]
async fn main() {
    raise_open_files(STREAMS as u32).unwrap();
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve"] => serve_model().await,
        ["clients", addr] => clients(addr.parse().unwrap()).await,
        _ => measure().await,
    }
}

/// Serves the model until stdin ends.
async fn serve_model() {
    let base_url = serve(|_, _| {
        let pieces = std::iter::repeat_n(event(json!({"content": TEXT}), None), PIECES);
        let pieces = pieces.chain([end("stop")]);
        let paced = futures::stream::iter(pieces).then(async |piece| {
            tokio::time::sleep(PAUSE).await;
            Ok::<_, std::convert::Infallible>(piece)
        });
        stream(axum::body::Body::from_stream(paced))
    })
    .await;
    println!("{base_url}");
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()))
        .await
        .unwrap()
        .unwrap();
}

/// Runs a round for each line of stdin: its number, the path and the body, as JSON.
async fn clients(addr: SocketAddr) {
    for line in std::io::stdin().lines() {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let (round, of) = (line[0].as_u64().unwrap(), line[1].as_u64().unwrap() as usize);
        let (name, path, body) = STREAMS_OF[of];
        let reads = (0..STREAMS).map(|number| async move {
            let number = format!("{of}-{round}-{number}");
            if name == "own" {
                let id = format!("{{\"id\":\"s{number}\"}}");
                post(addr, "/v1/sessions", &id).await;
            }
            let (path, body) = (path.replace("{n}", &number), body.replace("{n}", &number));
            post(addr, &path, &body).await
        });
        let answers = futures::future::join_all(reads).await;
        for answer in answers {
            assert!(
                answer.starts_with("HTTP/1.1 200")
                    && answer.matches("Some words").count() >= PIECES,
                "{name}: {answer:.400}"
            );
        }
        println!("done");
    }
}

/// Sends a request, and reads the answer to its end.
async fn post(addr: SocketAddr, path: &str, body: &str) -> String {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

fn start(arguments: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child =
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

async fn measure() {
    let (mut service, mut out) = start(&["serve"]);
    let mut base_url = String::new();
    out.read_line(&mut base_url).unwrap();
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    config.faces = config.faces.enabled_by_default(true);
    config.use_model("bench", ModelConfig::new(BaseUrl::parse(base_url.trim()).unwrap(), "m"));
    config.agents.values_mut().for_each(|agent| agent.tools.clear());
    let options = ServerOptions::from(&config);
    let host = Host::builder().config(config).start().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let handle = server::serve(listener, host.clone(), options).unwrap();
    let (mut clients, mut out) = start(&["clients", &addr.to_string()]);
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); STREAMS_OF.len()];
    for round in 0..=ROUNDS {
        for (of, times) in times.iter_mut().enumerate() {
            let before = cpu_time();
            use std::io::Write as _;
            writeln!(clients.stdin.as_mut().unwrap(), "[{round},{of}]").unwrap();
            let mut line = String::new();
            tokio::task::block_in_place(|| out.read_line(&mut line).unwrap());
            assert_eq!(line, "done\n");
            // The first round warms up.
            if round > 0 {
                times.push(cpu_time().saturating_sub(before) / STREAMS as u32);
            }
        }
    }
    let medians: Vec<Duration> = times.into_iter().map(median).collect();
    let rows = STREAMS_OF.iter().zip(&medians).map(|((name, ..), time)| {
        let ratio = time.as_secs_f64() / medians[0].as_secs_f64();
        [(*name).to_owned(), format!("{}", time.as_micros()), format!("{ratio:.2}")]
    });
    Report::new("Faces")
        .table(
            "CPU time of a run with 200 pieces of text, whose answer is read over HTTP, with 1,000 at once.",
            ["stream", "us", "of own"],
            rows,
        )
        .print();
    drop((service.stdin.take(), clients.stdin.take()));
    service.wait().unwrap();
    clients.wait().unwrap();
    handle.shutdown().await;
    host.shutdown().await;
}
