//! Calls that wait for a decision: `cargo run --example approvals`.
//!
//! The program approves small payments and rejects large ones. A program with users would ask one of
//! them instead; the run waits, even over a restart of the host.

#![expect(clippy::wildcard_enum_match_arm, reason = "events that the program does not need")]

use callsheet::prelude::*;
use callsheet::tool::ApprovalPolicy;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Payment {
    /// The amount in euros.
    amount: f64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pay = ToolSpec::named("pay", "Pays an amount.")
        .approval(ApprovalPolicy::BEFORE)
        .into_tool(async |payment: Payment, _| Ok(format!("paid {} euros", payment.amount)));
    let host = Host::builder().tool(pay).start().await?;
    let session = host.open_session("demo").await?;
    let mut results = Vec::new();
    for prompt in ["Pay the amount 20.", "Pay the amount 5000."] {
        println!("> {prompt}");
        let mut run = session.start_run(prompt).await?;
        while let Some(event) = run.next_event().await? {
            match event {
                RunEvent::ApprovalRequested(question) => {
                    let amount = question.approval.input["amount"].as_f64().unwrap_or(f64::MAX);
                    if amount <= 100.0 {
                        question.approve().await?;
                    } else {
                        question.reject(format!("{amount} euros are too much")).await?;
                    }
                }
                RunEvent::CallEnded(call) => {
                    println!("{} -> {}", call.tool_name, call.result);
                    results.push(call.status.as_str());
                }
                _ => {}
            }
        }
        println!("{}", run.report.await?.text()?);
    }
    assert_eq!(results, ["success", "refused"]);
    host.shutdown().await;
    Ok(())
}
