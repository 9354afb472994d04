//! Proof by killing: the real binary is killed again and again, and nothing is lost or done twice.
//!
//! Provider and effects live in this process and outlive the host: the provider answers HTTP 400 to
//! a history with an unanswered call, and the server that `http_get` fetches from counts each
//! effect by its `Idempotency-Key`. Clients ask, watch, steer, decide and repeat their requests over
//! HTTP while the host is killed under them (SIGKILL, now and then SIGTERM) and started again
//! on the same data. After each kill the journal is verified; at the end all that was said,
//! shown and done is held against it (`judge`).
//!
//! The short form runs with the other tests. The long one:
//! `CALLSHEET_KILLS=500 cargo test --test kill -- --nocapture`, with `CALLSHEET_SEED=N` for other
//! choices.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod chance;
mod client;
mod effects;
mod host;
mod http;
mod job;
mod judge;
mod world;

use chance::Chance;
use world::{Setup, World};

/// Kills of all four random scenarios together, in the short form.
const KILLS: usize = 28;

/// With which seed the choices of the short form are made.
const SEED: u64 = 7;

/// Kills that somebody asked for.
fn asked() -> Option<usize> {
    let text = std::env::var("CALLSHEET_KILLS").ok()?;
    Some(text.parse().expect("CALLSHEET_KILLS is a number"))
}

fn seed() -> u64 {
    let text = std::env::var("CALLSHEET_SEED").ok();
    text.map_or(SEED, |text| text.parse().expect("CALLSHEET_SEED is a number"))
}

async fn random(setup: Setup) {
    let kills = asked().unwrap_or(KILLS) / 4;
    let seed = seed();
    println!("{}: {kills} kills, seed {seed}", setup.name);
    let world = World::new(setup).await;
    let figures = world.play(Chance::new(seed), kills).await;
    println!("{}: {figures}", setup.name);
}

#[tokio::test]
async fn killed_with_effects_in_sequence() {
    random(Setup { name: "sequence", ..Setup::default() }).await;
}

#[tokio::test]
async fn killed_with_effects_that_start_early() {
    random(Setup { name: "early", on_seal: true, ..Setup::default() }).await;
}

#[tokio::test]
async fn killed_with_effects_that_may_be_repeated() {
    let setup = Setup { name: "idempotent", idempotent: true, on_seal: true, ..Setup::default() };
    random(setup).await;
}

#[tokio::test]
async fn killed_with_relaxed_durability() {
    random(Setup { name: "relaxed", relaxed: true, ..Setup::default() }).await;
}

/// A short conversation, killed right before and right after each of its records is committed.
#[tokio::test]
async fn killed_at_every_record() {
    // The short form takes every tenth place.
    let step = if asked().is_some() { 1 } else { 10 };
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    for (way, (on_seal, before)) in ways.into_iter().enumerate() {
        let mut places = 0;
        for at in (1 + way * 3 % step..).step_by(step) {
            let setup = Setup { name: "every-record", on_seal, ..Setup::default() };
            let kill_at = format!("{at}{}", if before { "-before" } else { "" });
            // The next life ends as early as it can, or in the middle of what it recovers.
            let again = (1 + at % 4).to_string();
            if !World::new(setup).await.play_once([&kill_at, &again]).await {
                break;
            }
            places += 1;
        }
        println!("every-record: {places} places, on_seal {on_seal}, before {before}");
        assert!(places * step > 10, "the conversation has more records");
    }
}
