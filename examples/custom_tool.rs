//! A tool with state, a value of the program and cancellation: `cargo run --example custom_tool`.
//!
//! `ToolTest` runs the tool without a host. The second part of the program gives it to a host.

use std::collections::HashMap;
use std::time::Duration;

use callsheet::prelude::*;
use callsheet::testing::ToolTest;
use serde_json::json;

/// The arguments of a call.
#[derive(serde::Deserialize, schemars::JsonSchema)]
struct StockInput {
    /// The name of the article.
    article: String,
}

/// The result of a call.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Stock {
    pieces: u32,
    queries: u32,
}

/// The customer of a session. The program gives it with the session; the model does not see it.
struct Customer(&'static str);

/// Looks up how many pieces of an article a customer has.
#[derive(Clone)]
struct StockLookup {
    pieces: HashMap<(&'static str, &'static str), u32>,
}

impl TypedTool for StockLookup {
    type Input = StockInput;
    type Output = Stock;

    fn spec(&self) -> ToolSpec {
        ToolSpec::named("stock", "Returns the number of pieces of an article.").pure()
    }

    async fn call(&self, input: StockInput, context: ToolContext) -> Result<Stock, ToolError> {
        let Customer(customer) = context.extension()?;
        context.progress(format!("looking for {}", input.article));
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(20)) => {} // a slow warehouse
            () = context.cancelled() => return Err(ToolError::new("cancelled")),
        }
        let found = self.pieces.get(&(customer, input.article.as_str()));
        let missing = || ToolError::new(format!("there is no article {:?}", input.article));
        let pieces = *found.ok_or_else(missing)?;
        let queries = context.get("queries")?.unwrap_or(0) + 1;
        context.set("queries", queries)?;
        Ok(Stock { pieces, queries })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let lookup = StockLookup { pieces: [(("acme", "bolt"), 42)].into() };

    // Without a host.
    let mut test = ToolTest::new(lookup.clone()).extension(Customer("acme")).variable("queries", 1);
    let call = test.call(json!({ "article": "bolt" })).await;
    assert_eq!(call.output::<Stock>(), Stock { pieces: 42, queries: 2 });
    assert_eq!(call.progress, ["looking for bolt"]);
    let call = test.call(json!({ "article": "nut" })).await;
    assert_eq!(call.error().message(), "there is no article \"nut\"");
    let mut test = test.cancel_after(Duration::ZERO);
    assert_eq!(test.call(json!({ "article": "bolt" })).await.error().message(), "cancelled");

    // In a host, with the offline rehearsal model.
    let host = Host::builder().tool(lookup).start().await?;
    let open = OpenSession::default().with_extension(Customer("acme"));
    let session = host.open_session(open).await?;
    let report = session.run("What is the stock of the article \"bolt\"?").await?;
    for call in &report.calls {
        println!("{} {} -> {}", call.tool_name, call.arguments, call.result);
    }
    println!("{}", report.text);
    assert_eq!(report.calls[0].result, "{\"pieces\":42,\"queries\":1}");
    host.shutdown().await;
    Ok(())
}
