//! The HTTP API inside an application with an axum of its own: `cargo run --example embed_axum`.
//!
//! The API is mounted below `/agents`, behind a guard. The application has a route of its own, which
//! answers with the events of a run, and a metrics page of its own for all of its hosts. The program
//! asks itself over HTTP, prints the answers and ends.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use callsheet::prelude::*;
use callsheet::server::{self, EventStream, Guard};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::net::TcpListener;

/// Opens the session at its first question, and answers with the events of the run.
async fn ask(
    State(host): State<Host>,
    Path(session): Path<String>,
    question: String,
) -> Result<EventStream, HostError> {
    let session = host.get_or_open_session(session.as_str()).await?;
    Ok(EventStream::from(session.start_run(question).await?))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let recorder = Arc::new(recorder);
    let host = Host::builder().recorder(recorder).metrics_label("host", "eu-1").start().await?;

    let guard = Guard::new().hosts(["agents.example.com"]).token(ApiKey::new("a-long-secret")?);
    let app = axum::Router::new()
        .route("/ask/{session}", post(ask))
        .nest("/agents", server::router(&host).layer(guard))
        .route("/metrics", get(async move || page.render()))
        .with_state(host.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async { drop(stopped.await) });
    let client = async {
        let asked = ask_itself(&address).await;
        // The host's shutdown ends open event streams, for which the server would wait.
        host.shutdown().await;
        drop(stop);
        asked
    };
    let (served, asked) = tokio::join!(server.into_future(), client);
    served?;
    asked
}

async fn ask_itself(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    // A host leaves the cryptography provider of the process to the program.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder().no_proxy().build()?;

    let question = http.post(format!("{address}/ask/demo")).body("Say hello.");
    let events = question.send().await?.error_for_status()?.text().await?;
    for line in events.lines().filter(|line| line.starts_with("event: ")) {
        println!("{line}");
    }
    assert!(events.contains("event: stream_end"));

    let sessions = format!("{address}/agents/v1/sessions");
    assert_eq!(http.get(&sessions).send().await?.status(), 401);
    let listed = http.get(&sessions).bearer_auth("a-long-secret").send().await?.text().await?;
    println!("{listed}");
    assert!(listed.contains("\"id\":\"demo\""));

    let page = http.get(format!("{address}/metrics")).send().await?.text().await?;
    let answered = "callsheet_runs_total{run_end=\"answered\",host=\"eu-1\"} 1";
    assert!(page.contains(answered), "{page}");
    println!("{answered}");
    Ok(())
}
