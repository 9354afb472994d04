//! Tests that kill an actor at a chosen record.

use ractor::ActorCell;

use super::engine::{Engine, entries};
use super::provider::{Reply, answer_with, calls_to, text};
use super::recovery::{ACCUMULATOR, SUPERVISOR, actors, kill, refused};
use super::*;
use callsheet_values::record::{Record, StopMode};
use callsheet_values::types::RunEnd;

/// The number of records until the kill, and the actor to kill.
type Armed = Arc<parking_lot::Mutex<Option<(usize, ActorCell)>>>;

/// Returns an engine that kills an actor at the n-th record after it was armed.
fn trap(armed: &Armed) -> Arc<Engine> {
    let armed = Arc::clone(armed);
    Engine::new(move |inner, batch| {
        let mut armed = armed.lock();
        let records = batch.entries.len();
        if let Some((left, _)) = armed.as_mut() {
            let past = *left < records;
            *left = left.saturating_sub(records);
            if past && let Some((_, victim)) = armed.take() {
                victim.kill();
            }
        }
        inner.append(batch)
    })
}

/// Kills the accumulator while it appends its n-th record. The kill takes effect after the
/// accumulator has handled the message. Returns the report's statuses, and true if the kill
/// happened.
async fn killed_at(record: usize) -> (Vec<&'static str>, bool) {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let provider = Provider::new(|_, body| {
        let answered = body["messages"].as_array().unwrap().iter().any(|m| m["role"] == "tool");
        let calls = [("put", "{}"), ("echo", r#"{"n":1}"#)];
        Reply::Sse(if answered { answer_with("done") } else { calls_to(&calls) })
    })
    .await
    .gated_by(Arc::clone(&gate));
    let put = ToolSpec { effect: Default::default(), ..spec("put") }.idempotent();
    let put = tool(put, |_| async { Ok("put".into()) });
    let armed = Armed::default();
    let trap = trap(&armed);
    let setup = setup(&provider, registry([put, echo("echo")]), |_| ());
    let host = start_on(setup, Arc::clone(&trap) as Arc<dyn Journal>).await.unwrap();
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the request has arrived", || provider.count() == 1).await;
    *armed.lock() = Some((record, actors(&session).await[ACCUMULATOR].clone()));
    gate.add_permits(100);
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "done"), "{record}");
    let messages = serde_json::to_value(report.run_messages()).unwrap();
    let roles = messages.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap());
    assert_eq!(
        roles.collect::<Vec<_>>(),
        ["user", "assistant", "tool", "tool", "assistant"],
        "{record}"
    );
    let entries = entries(&*trap, session.id());
    let count = |turn| {
        let is_it = |record: &Record| matches!(record, Record::TurnCommitted { turn: of, .. } if *of == turn);
        entries.iter().filter(|entry| is_it(&entry.record)).count()
    };
    assert_eq!((count(1), count(2)), (1, 1), "{record}");
    nothing_left(&host).await;
    let statuses = report.calls.iter().map(|call| call.status.as_str()).collect();
    let sprung = armed.lock().is_none();
    (statuses, sprung)
}

#[tokio::test]
async fn a_run_survives_the_accumulators_death_at_any_record() {
    let mut deaths = 0;
    loop {
        let (statuses, sprung) = killed_at(deaths).await;
        assert_eq!(statuses, ["success", "success"], "{deaths}");
        if !sprung {
            break;
        }
        deaths += 1;
    }
    assert!(deaths >= 8, "the run has more records than {deaths}");
}

/// Kills the accumulator while it appends the end of a turn that was cut off by a stop or by its
/// time limit. The run end must still name the right cause.
async fn cut_off_at_the_death(stopped: bool) -> RunEnd {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("hm")])).await;
    let armed = Armed::default();
    let trap = trap(&armed);
    let setup = setup(&provider, ToolRegistry::new(), |config| {
        let limits = &mut config.agents.get_mut("default").unwrap().limits;
        limits.run_timeout = Some(Duration::from_secs(60));
    });
    let host = start_on(setup, Arc::clone(&trap) as Arc<dyn Journal>).await.unwrap();
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the stream is open", || provider.open() == 1).await;
    let victim = actors(&session).await[ACCUMULATOR].clone();
    *armed.lock() = Some((usize::from(stopped), victim));
    if stopped {
        session.stop(StopMode::Now).await.unwrap();
    } else {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(60)).await;
        tokio::time::resume();
    }
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert!(armed.lock().is_none(), "it did not die");
    nothing_left(&host).await;
    report.run_end
}

#[tokio::test]
async fn the_cause_of_a_cancelled_turn_survives_its_actors() {
    assert_eq!(cut_off_at_the_death(true).await, RunEnd::Stopped);
    assert_eq!(cut_off_at_the_death(false).await, RunEnd::TimedOut);
}

#[tokio::test]
async fn a_turn_that_failed_before_the_death_is_not_retried() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let provider = Provider::new(|_, _| refused()).await.gated_by(Arc::clone(&gate));
    let armed = Armed::default();
    let trap = trap(&armed);
    let setup = setup(&provider, ToolRegistry::new(), |_| ());
    let host = start_on(setup, Arc::clone(&trap) as Arc<dyn Journal>).await.unwrap();
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the request has arrived", || provider.count() == 1).await;
    *armed.lock() = Some((0, actors(&session).await[ACCUMULATOR].clone()));
    gate.add_permits(100);
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert!(armed.lock().is_none(), "it did not die");
    assert_eq!((report.run_end, provider.count()), (RunEnd::Failed, 1));
    assert_eq!(report.error.unwrap().code, "provider_error");
    nothing_left(&host).await;
}

#[tokio::test]
async fn an_actors_death_releases_its_permits_and_waiting_requests() {
    let provider = Provider::new(|_, body| {
        let last = body["messages"].as_array().unwrap().last().unwrap();
        Reply::Sse(if last["role"] == "tool" {
            answer_with("done")
        } else {
            calls_to(&[("one", "{}")])
        })
    })
    .await;
    let begun = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let one = tool(spec("one").idempotent().max_concurrent(1), {
        let begun = Arc::clone(&begun);
        move |_| {
            let first = begun.fetch_add(1, Ordering::SeqCst) == 0;
            async move { if first { std::future::pending().await } else { Ok("done".into()) } }
        }
    });
    let host = host(&provider, registry([one]), |_| ()).await;
    let (holder, waiter) = (session(&host).await, session(&host).await);
    let holds = holder.start_run("go").await.unwrap();
    until("it runs", || begun.load(Ordering::SeqCst) == 1).await;
    let waits = waiter.start_run("go").await.unwrap();
    until("it waits", || host.counts().calls_waiting == 1).await;
    kill(&waiter, ACCUMULATOR).await;
    until("it waits again", || host.counts().calls_waiting == 1).await;
    kill(&holder, SUPERVISOR).await;
    for run in [holds, waits] {
        let report = timeout(SOON, run.report).await.unwrap().unwrap();
        assert_eq!(results(&report)["one"], ("success", "done"));
    }
    nothing_left(&host).await;
}
