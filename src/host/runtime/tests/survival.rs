//! Running tools outlive the accumulator: their effects happen once, and their outcomes count.

use std::sync::atomic::AtomicUsize;

use tokio::sync::Semaphore;

use super::provider::{Reply, answer_with, calls, calls_to};
use super::recovery::{ACCUMULATOR, actors, kill};
use super::*;
use callsheet_values::config::StartPolicy;
use callsheet_values::types::{Execution, RunEnd};

/// Returns a tool with effects that counts its starts and answers when it gets a permit of the gate.
fn gated(spec: ToolSpec, starts: &Arc<AtomicUsize>, gate: &Arc<Semaphore>) -> Closure {
    let (starts, gate) = (Arc::clone(starts), Arc::clone(gate));
    tool(ToolSpec { effect: Default::default(), ..spec }, move |_| {
        starts.fetch_add(1, Ordering::SeqCst);
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.unwrap().forget();
            Ok("paid".into())
        }
    })
}

fn gate() -> (Arc<AtomicUsize>, Arc<Semaphore>) {
    (Arc::default(), Arc::new(Semaphore::new(0)))
}

/// Kills the accumulator while a call with effects runs, as often as given. With `at_once` the call
/// ends before another accumulator is there.
async fn accumulator_dies(deaths: usize, at_once: bool, execution: Execution) {
    let provider = Provider::calling(&[("pay", "{}"), ("echo", r#"{"n":1}"#)]).await;
    let (starts, gate) = gate();
    let host = host(&provider, registry([gated(spec("pay"), &starts, &gate), echo("echo")]), |c| {
        c.agents.get_mut("default").unwrap().execution = execution;
    })
    .await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the call runs", || starts.load(Ordering::SeqCst) == 1).await;
    for _ in 0..deaths {
        if at_once {
            actors(&session).await[ACCUMULATOR].kill();
        } else {
            kill(&session, ACCUMULATOR).await;
        }
    }
    gate.add_permits(1);
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "done"));
    assert_eq!(starts.load(Ordering::SeqCst), 1, "the effect happens once");
    let results = results(&report);
    assert_eq!(results["pay"], ("success", "paid"));
    assert_eq!(results["echo"], ("success", r#"{"n":1}"#));
    assert_eq!(provider.count(), 2, "the response was complete");
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_call_outlives_the_accumulator() {
    accumulator_dies(1, false, Execution::Sequential).await;
    accumulator_dies(1, false, Execution::Parallel { max: 4 }).await;
}

#[tokio::test]
async fn a_call_outlives_several_accumulators() {
    accumulator_dies(3, false, Execution::Sequential).await;
}

#[tokio::test]
async fn an_outcome_that_arrives_between_two_accumulators_is_delivered_once() {
    accumulator_dies(1, true, Execution::Sequential).await;
}

#[tokio::test]
async fn a_call_that_was_started_early_outlives_the_accumulator() {
    let provider = Provider::new(|_, body| {
        let answered = body["messages"].as_array().unwrap().iter().any(|m| m["role"] == "tool");
        if answered {
            Reply::Sse(answer_with("done"))
        } else {
            Reply::Stall(calls(&[("pay", "{}"), ("pay2", "{}")]))
        }
    })
    .await;
    let (starts, gate) = gate();
    let early = ToolSpec { start: StartPolicy::OnSeal, ..spec("pay") };
    let tools = registry([gated(early, &starts, &gate), echo("pay2")]);
    let host = host(&provider, tools, |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the call runs", || starts.load(Ordering::SeqCst) == 1).await;
    kill(&session, ACCUMULATOR).await;
    gate.add_permits(1);
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(starts.load(Ordering::SeqCst), 1, "the effect happens once");
    assert_eq!(results(&report)["pay"], ("success", "paid"));
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_call_that_waits_for_a_permit_of_its_tool_runs_after_the_accumulator_died() {
    let provider = Provider::new(|_, body| {
        let last = body["messages"].as_array().unwrap().last().unwrap();
        Reply::Sse(if last["role"] == "tool" {
            answer_with("done")
        } else {
            calls_to(&[("pay", "{}")])
        })
    })
    .await;
    let (starts, gate) = gate();
    let tools = registry([gated(spec("pay").max_concurrent(1), &starts, &gate)]);
    let host = host(&provider, tools, |_| ()).await;
    let (holder, waiter) = (session(&host).await, session(&host).await);
    let holds = holder.start_run("go").await.unwrap();
    until("the first call runs", || starts.load(Ordering::SeqCst) == 1).await;
    let waits = waiter.start_run("go").await.unwrap();
    until("the second call waits", || host.counts().calls_waiting == 1).await;
    kill(&waiter, ACCUMULATOR).await;
    until("the second call waits again", || host.counts().calls_waiting == 1).await;
    kill(&holder, ACCUMULATOR).await;
    assert_eq!(starts.load(Ordering::SeqCst), 1, "the running call keeps its permit");
    gate.add_permits(2);
    for run in [holds, waits] {
        let report = timeout(SOON, run.report).await.unwrap().unwrap();
        assert_eq!(results(&report)["pay"], ("success", "paid"));
    }
    assert_eq!(starts.load(Ordering::SeqCst), 2);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_blocking_call_outlives_the_accumulator() {
    let provider = Provider::calling(&[("compute", "{}")]).await;
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(parking_lot::Mutex::new(blocked));
    let starts = Arc::new(AtomicUsize::new(0));
    let compute = tool(ToolSpec { effect: Default::default(), ..spec("compute") }.blocking(), {
        let starts = Arc::clone(&starts);
        move |_| {
            let (starts, blocked) = (Arc::clone(&starts), Arc::clone(&blocked));
            async move {
                starts.fetch_add(1, Ordering::SeqCst);
                blocked.lock().recv().unwrap();
                Ok("computed".into())
            }
        }
    });
    let host = host(&provider, registry([compute]), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the call runs", || starts.load(Ordering::SeqCst) == 1).await;
    kill(&session, ACCUMULATOR).await;
    assert_eq!(host.counts().abandoned_threads, 0);
    release.send(()).unwrap();
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(results(&report)["compute"], ("success", "computed"));
    assert_eq!(starts.load(Ordering::SeqCst), 1);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_pure_call_of_a_void_attempt_is_discarded() {
    let provider = Provider::new(|n, _| match n {
        0 => Reply::Stall(calls(&[("read", "{}"), ("read2", "{}")])),
        _ => Reply::Sse(answer_with("done")),
    })
    .await;
    let starts = Arc::new(AtomicUsize::new(0));
    let read = tool(spec("read"), {
        let starts = Arc::clone(&starts);
        move |_| {
            starts.fetch_add(1, Ordering::SeqCst);
            std::future::pending()
        }
    });
    let host = host(&provider, registry([read, echo("read2")]), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the call runs", || starts.load(Ordering::SeqCst) == 1).await;
    kill(&session, ACCUMULATOR).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(
        (report.run_end, report.text.as_str(), report.calls.len()),
        (RunEnd::Answered, "done", 0)
    );
    nothing_left(&host).await;
}
