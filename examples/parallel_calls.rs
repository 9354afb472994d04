//! Two calls of one response at the same time: `cargo run --example parallel_calls`.
//!
//! An agent runs the calls of a response one after the other, unless it is told otherwise. The results go back to the
//! model in the order of the calls, whichever ends first.

use std::time::Duration;

use callsheet::model::ModelReply;
use callsheet::prelude::*;
use callsheet::testing::FakeModel;
use serde_json::json;
use tokio::time::{Instant, sleep};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct City {
    /// The name of the city.
    city: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let weather = ToolSpec::named("weather", "Returns the weather of a city.").pure().into_tool(
        async |input: City, _| {
            sleep(Duration::from_millis(300)).await; // a slow service
            Ok(format!("{}: sunny", input.city))
        },
    );
    let calls = ModelReply::call("weather", json!({"city": "Lisbon"}))
        .and_call("weather", json!({"city": "Oslo"}));
    let model = FakeModel::replies([calls, ModelReply::text("Both are sunny.")]);
    let parallel = Execution::Parallel { max: 2 };
    let host = Host::builder()
        .model_source("fake", model)
        .agent("default", AgentConfig::new("fake").with(|agent| agent.execution = parallel))
        .tool(weather)
        .start()
        .await?;
    let session = host.open_session(OpenSession::default()).await?;
    let before = Instant::now();
    let report = session.run("How is the weather in Lisbon and in Oslo?").await?;
    for call in &report.calls {
        println!("{} (after {} ms)", call.result, call.duration_ms);
    }
    println!("{} All in {} ms.", report.text()?, before.elapsed().as_millis());
    assert!(report.calls[0].result.contains("Lisbon"), "in the order of the calls");
    assert!(before.elapsed() < Duration::from_millis(600), "one after the other");
    host.shutdown().await;
    Ok(())
}
