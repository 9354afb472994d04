//! The real binary is killed repeatedly, and nothing is lost or doubled.
//!
//! Provider and effects live in this process and outlive the host: the provider answers HTTP 400 to
//! a history with an unanswered call, and the server that `http_get` fetches from counts each
//! effect by its `Idempotency-Key`. Clients start runs, watch, steer, decide and repeat their requests
//! over HTTP, while the host is killed (SIGKILL, sometimes SIGTERM) and started again on the same
//! data. After each kill the journal is verified. At the end all acknowledged requests, received
//! events and effects are compared with it (`checks.rs`).
//!
//! The short form runs with the other tests. The long one:
//! `CALLSHEET_KILLS=500 cargo test --test kill -- hosts --nocapture`, with `CALLSHEET_SEED=N` for another seed.

use crate::rng::SeededRng;
use crate::scenario::{Scenario, ScenarioOptions};
use callsheet::config::ToolProtocol;

/// Number of kills in the five random scenarios together, in the short form.
const KILLS: usize = 35;

/// Seed of the short form.
const SEED: u64 = 7;

/// Returns the number of kills from `CALLSHEET_KILLS`.
fn requested_kills() -> Option<usize> {
    let text = std::env::var("CALLSHEET_KILLS").ok()?;
    Some(text.parse().expect("CALLSHEET_KILLS is a number"))
}

fn seed() -> u64 {
    let text = std::env::var("CALLSHEET_SEED").ok();
    text.map_or(SEED, |text| text.parse().expect("CALLSHEET_SEED is a number"))
}

async fn random(setup: ScenarioOptions) {
    let kills = requested_kills().unwrap_or(KILLS) / 5;
    let seed = seed();
    println!("{}: {kills} kills, seed {seed}", setup.name);
    let scenario = Scenario::new(setup).await;
    let statistics = scenario.play(SeededRng::new(seed), kills).await;
    println!("{}: {statistics}", setup.name);
}

#[tokio::test]
async fn effects_survive_kills() {
    random(ScenarioOptions { name: "sequence", ..ScenarioOptions::default() }).await;
}

#[tokio::test]
async fn effects_that_start_early_survive_kills() {
    random(ScenarioOptions { name: "early", on_seal: true, ..ScenarioOptions::default() }).await;
}

#[tokio::test]
async fn idempotent_effects_survive_kills() {
    let setup = ScenarioOptions {
        name: "idempotent",
        idempotent: true,
        on_seal: true,
        ..ScenarioOptions::default()
    };
    random(setup).await;
}

#[tokio::test]
async fn relaxed_durability_survives_kills() {
    random(ScenarioOptions { name: "relaxed", relaxed: true, ..ScenarioOptions::default() }).await;
}

#[tokio::test]
async fn planned_restarts_lose_nothing() {
    random(ScenarioOptions { name: "restarts", restarts: true, ..ScenarioOptions::default() })
        .await;
}

/// Runs a short conversation and kills the host right before and right after each commit of a record.
#[tokio::test]
async fn a_kill_at_any_record_loses_nothing() {
    // The short form uses every tenth record.
    let step = if requested_kills().is_some() { 1 } else { 10 };
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    for (way, (on_seal, before)) in ways.into_iter().enumerate() {
        let mut records = 0;
        for at in (1 + way * 3 % step..).step_by(step) {
            let setup =
                ScenarioOptions { name: "every-record", on_seal, ..ScenarioOptions::default() };
            let kill_at = format!("{at}{}", if before { "-before" } else { "" });
            // The next process is killed early too, or during recovery.
            let again = (1 + at % 4).to_string();
            if !Scenario::new(setup).await.play_once([&kill_at, &again]).await {
                break;
            }
            records += 1;
        }
        println!("every-record: {records} records, on_seal {on_seal}, before {before}");
        assert!(records * step > 10, "the conversation has more records");
    }
}

/// The same with models without tool calling, whose calls stand in the text. An effect whose call is read may start
/// before the response has ended.
#[tokio::test]
async fn a_kill_at_any_record_loses_no_call_in_the_text() {
    // The short form uses every 15th record.
    let step = if requested_kills().is_some() { 1 } else { 15 };
    let protocols = ToolProtocol::NAMES.iter().filter(|(word, _)| *word != "native");
    for (way, (word, protocol)) in protocols.enumerate() {
        let mut records = 0;
        for at in (1 + way * 3 % step..).step_by(step) {
            let setup = ScenarioOptions {
                name: "in-text",
                on_seal: way % 2 == 0,
                protocol: *protocol,
                ..ScenarioOptions::default()
            };
            let kill_at = format!("{at}{}", if at % 2 == 0 { "-before" } else { "" });
            let again = (1 + at % 4).to_string();
            if !Scenario::new(setup).await.play_once([&kill_at, &again]).await {
                break;
            }
            records += 1;
        }
        println!("in-text: {records} records, {word}");
        assert!(records * step > 10, "the conversation has more records");
    }
}
