//! A host with a tool of its own, asked by a program: `cargo run --example word_count`.
//!
//! The offline rehearsal model answers here. Give `ModelConfig::new` the address of a real model to use one.

use callsheet::config::{BaseUrl, Config, DEFAULT_AGENT, ModelConfig, ToolPattern};
use callsheet::rehearsal::{Rehearsal, RehearsalOptions};
use callsheet::runtime::{Host, HostSetup, OpenSession};
use callsheet::tool::{ToolRegistry, ToolSpec};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Text {
    text: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut tools = ToolRegistry::new();
    tools.register(
        ToolSpec::named("count_words", "Counts the words of a text.")
            .pure()
            .into_tool(async |input: Text, _| Ok(input.text.split_whitespace().count())),
    )?;

    let model = Rehearsal::start(RehearsalOptions::default()).await?;
    let mut config = Config::default();
    config.use_model("main", ModelConfig::new(BaseUrl::parse(&model.base_url())?, "rehearsal"));
    if let Some(agent) = config.agents.get_mut(DEFAULT_AGENT) {
        agent.tools = vec![ToolPattern::new("count_words")];
    }

    let host = Host::start(HostSetup { config, tools }).await?;
    let session = host.open_session(OpenSession::default()).await?;
    let report = session.run("Count the words of \"one two three\".").await?;
    for call in &report.calls {
        println!("{} {} -> {}", call.tool_name, call.arguments, call.result);
    }
    println!("{}", report.text);
    assert_eq!(report.calls[0].result, "3");
    host.shutdown().await;
    Ok(())
}
