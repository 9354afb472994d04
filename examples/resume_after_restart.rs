//! A run that survives the end of its process: `cargo run --example resume_after_restart`.
//!
//! The first host is dropped while a tool runs, as if the process had been killed. The second host
//! opens the same journal and continues the run. The call with effects that was running is not
//! repeated: the model is told that its outcome is unknown.

use std::time::Duration;

use callsheet::prelude::*;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Order {
    /// The article to order.
    article: String,
}

fn builder(directory: &std::path::Path, work: Duration) -> HostBuilder {
    let order = ToolSpec::named("order", "Orders an article.").into_tool(
        move |order: Order, _| async move {
            tokio::time::sleep(work).await;
            Ok(format!("ordered {}", order.article))
        },
    );
    Host::builder().tool(order).sqlite(directory)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("callsheet-resume-{}", std::process::id()));

    let host = builder(&directory, Duration::from_secs(3600)).start().await?;
    let session = host.open_session("demo").await?;
    let request = RunRequest::from("Order the article \"bolt\".").with_idempotency_key("order-1");
    let mut run = session.start_run(request.clone()).await?;
    while let Some(event) = run.next_event().await? {
        if let RunEvent::CallStarted { tool_name, .. } = event {
            println!("{tool_name} is running; the host is killed");
            break;
        }
    }
    drop((run, session, host));

    // Waits for the journal until the first host has ended.
    let host = builder(&directory, Duration::ZERO).start().await?;
    // The key returns the run that continues, instead of a second one.
    let session = host.get_or_open_session("demo").await?;
    let report = session.run(request).await?;
    for call in &report.calls {
        println!("{} {} -> {}", call.tool_name, call.arguments, call.result);
    }
    println!("{}", report.text()?);
    assert_eq!(report.calls[0].status.as_str(), "unknown");
    host.shutdown().await;
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
