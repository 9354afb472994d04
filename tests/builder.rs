//! A host that a program builds: tools are offered, mistakes are errors, and no file appears unasked.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use callsheet::prelude::*;
use callsheet::server::{ServerOptions, serve};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct CountWordsInput {
    text: String,
}

struct CountWords;

#[async_trait::async_trait]
impl Tool for CountWords {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<CountWordsInput>("count_words", "Counts the words of a text.").pure()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let input: CountWordsInput = context.input()?;
        Ok(format!("{} words", input.text.split_whitespace().count()).into())
    }
}

const PROMPT: &str = "Count the words of \"one two three\".";

fn unreachable_model() -> ModelConfig {
    let base_url = BaseUrl::parse("http://127.0.0.1:9/v1").unwrap();
    ModelConfig { max_attempts: 1, ..ModelConfig::new(base_url, "m") }
}

#[tokio::test]
async fn a_tool_of_the_builder_is_offered_and_nothing_is_stored() {
    let host = Host::builder().tool(CountWords).start().await.unwrap();
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let report = session.run(PROMPT).await.unwrap();
    assert_eq!(report.calls.len(), 1);
    assert_eq!(report.calls[0].result, "3 words");
    assert!(report.text().unwrap().contains("3 words"), "{}", report.text);
    host.shutdown().await;
    assert!(!Path::new("callsheet-data").exists());
}

#[tokio::test]
async fn mistakes_are_errors_of_the_start() {
    let error = |builder: HostBuilder| async { builder.start().await.unwrap_err().to_string() };
    let misspelt = AgentConfig::new("rehearsal").tools(["cuont_words"]);
    let found = error(Host::builder().agent("a", misspelt).register(CountWords)).await;
    assert_eq!(
        found,
        "start the host: agents.a.tools[0]: no tool is called \"cuont_words\" (known: count_words)"
    );
    let found = error(Host::builder().tool(CountWords).tool(CountWords)).await;
    assert!(found.contains("\"count_words\": another tool has this name"), "{found}");
    let no_turns = Limits { max_turns: Some(0), ..Limits::default() };
    let found = error(Host::builder().agent("a", AgentConfig::new("rehearsal").limits(no_turns)));
    assert_eq!(found.await, "start the host: agents.a.limits.max_turns: must be at least 1");
    let models = Host::builder().model("a", unreachable_model()).model("b", unreachable_model());
    assert!(error(models).await.contains("several models but no agent"));
    let found = error(Host::builder().agent("a", AgentConfig::new("main"))).await;
    assert!(found.contains("agents.a.model: no model is called \"main\""), "{found}");
}

#[tokio::test]
async fn a_failed_run_has_no_text() {
    let host = Host::builder().model("main", unreachable_model()).start().await.unwrap();
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let report = session.run("hello").await.unwrap();
    let failed = report.text().unwrap_err();
    assert!(failed.to_string().starts_with("the run ended as failed: "), "{failed}");
    host.shutdown().await;
}

#[tokio::test]
async fn a_session_continues_after_a_restart() {
    let directory = std::env::temp_dir().join(format!("callsheet-builder-{}", std::process::id()));
    let mut lengths = Vec::new();
    for _ in 0..2 {
        let host = Host::builder().sqlite(&directory).start().await.unwrap();
        let open = OpenSession { id: Some("demo".to_owned()), ..OpenSession::default() };
        let session = host.get_or_open_session(open).await.unwrap();
        let report = session.run("hello").await.unwrap();
        lengths.push((report.context_messages().len(), report.all_messages().len()));
        host.shutdown().await;
    }
    assert_eq!(lengths, [(0, 2), (2, 4)]);
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn an_address_that_others_reach_needs_a_token() {
    let host = Host::builder().start().await.unwrap();
    let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = serve(listener, host.clone(), ServerOptions::default()).unwrap_err();
    assert!(refused.to_string().ends_with("is not loopback and needs ServerOptions::token"));
    host.shutdown().await;
}
