//! A host with one tool: `cargo run --example hello`. The offline rehearsal model answers.

use callsheet::prelude::*;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Text {
    /// The text to count.
    text: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count_words = ToolSpec::named("count_words", "Counts the words of a text.")
        .pure()
        .into_tool(async |input: Text, _| Ok(input.text.split_whitespace().count()));
    let host = Host::builder().tool(count_words).start().await?;
    let session = host.open_session("demo").await?;
    let report = session.run("Count the words of \"one two three\".").await?;
    println!("{}", report.text()?);
    host.shutdown().await;
    Ok(())
}
