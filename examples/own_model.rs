//! A model that the program implements: `cargo run --example own_model`.
//!
//! Retries, time limits, permits, the circuit breaker and the journal stay those of the host.

use callsheet::model::{Message, ModelReply, ModelRequest, ModelSource, ModelStream};
use callsheet::prelude::*;
use serde_json::json;

/// Asks for the time, and answers with it.
struct Timekeeper;

impl ModelSource for Timekeeper {
    fn respond(&self, request: ModelRequest) -> ModelStream {
        let reply = match request.messages.last().map(|message| &**message) {
            Some(Message::Tool { content, .. }) => ModelReply::text(format!("It is {content}.")),
            _ => ModelReply::call("seconds", json!({})),
        };
        reply.into_stream()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = ToolSpec::named("seconds", "Returns the Unix time in seconds.")
        .into_tool(async |(): (), _| Ok(std::time::UNIX_EPOCH.elapsed()?.as_secs()));
    let host = Host::builder().model_source("own", Timekeeper).tool(seconds).start().await?;
    let session = host.open_session("demo").await?;
    let report = session.run("What time is it?").await?;
    println!("{}", report.text()?);
    assert_eq!(report.calls.len(), 1);
    host.shutdown().await;
    Ok(())
}
