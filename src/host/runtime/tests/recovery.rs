//! Tests that a run survives the death of any of its actors.

use ractor::ActorCell;

use super::provider::{Reply, answer_with, calls_to, text};
use super::*;
use crate::telemetry::FeedItem;
use callsheet_values::event::Event;
use callsheet_values::record::{Record, StopMode};
use callsheet_values::types::RunEnd;

pub(super) const STREAM: usize = 0;
pub(super) const ACCUMULATOR: usize = 1;
pub(super) const SUPERVISOR: usize = 2;

pub(super) async fn run_actors(session: &SessionHandle) -> Option<[ActorCell; 3]> {
    let name = |reply| SessionMessage::NameActors { reply };
    session.host_ref.request(session.id(), name).await.unwrap().0
}

pub(super) async fn actors(session: &SessionHandle) -> [ActorCell; 3] {
    run_actors(session).await.expect("a run goes on")
}

/// Kills an actor of the run, and waits until it is replaced. The run may be over by then.
pub(super) async fn kill(session: &SessionHandle, which: usize) {
    let before = actors(session).await;
    before[which].kill();
    timeout(SOON, async {
        while run_actors(session).await.is_some_and(|now| now[which] == before[which]) {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("it is replaced");
}

async fn check_death_while_the_model_is_silent(which: usize) {
    let provider = Provider::new(|n, _| match n {
        0 => Reply::Stall(vec![text("lost ")]),
        _ => Reply::Sse(answer_with("found")),
    })
    .await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the stream is open", || provider.open() == 1).await;
    kill(&session, which).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "found"));
    assert_eq!((report.run_messages().len(), provider.count()), (2, 2));
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_turn_that_had_fallen_back_goes_on_with_that_model() {
    check_fallback_after_a_death("backup-model", ["test-model", "backup-model", "backup-model"])
        .await;
    // Both services have a model of this name.
    let displayed = ["test-model (test)", "test-model (backup)", "test-model (backup)"];
    check_fallback_after_a_death("test-model", displayed).await;
}

/// Kills an actor while the fallback model answers. `requested` has the names of the models in the records.
async fn check_fallback_after_a_death(name: &str, requested: [&str; 3]) {
    let main = Provider::new(|_, _| refused()).await;
    let backup = Provider::new(|n, _| match n {
        0 => Reply::Stall(vec![text("lost ")]),
        _ => Reply::Sse(answer_with("found")),
    })
    .await;
    let host = host(&main, ToolRegistry::new(), |config| {
        let mut backup = model(&backup);
        backup.model = name.to_owned();
        config.models.insert("backup".into(), backup);
        config.agents.get_mut("default").unwrap().fallback_models = vec!["backup".into()];
    })
    .await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the stream is open", || backup.open() == 1).await;
    kill(&session, ACCUMULATOR).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "found"));
    assert_eq!((main.count(), backup.count()), (1, 2));
    assert!(backup.requests().iter().all(|sent| sent["model"] == name));
    let records = session.records(Seq(0)).await.unwrap();
    let models = records.iter().filter_map(|entry| {
        let Record::AttemptStarted { model, .. } = &entry.record else { return None };
        Some(model.as_str())
    });
    assert_eq!(models.collect::<Vec<_>>(), requested);
    nothing_left(&host).await;
}

/// Returns a response that is not retried.
pub(super) fn refused() -> Reply {
    let body = r#"{"error":{"message":"no such key"}}"#.into();
    Reply::Whole { status: 401, kind: "application/json", body, retry_after: None }
}

#[tokio::test]
async fn the_stream_actor_dies_while_the_model_is_silent() {
    check_death_while_the_model_is_silent(STREAM).await;
}

#[tokio::test]
async fn the_accumulator_dies_while_the_model_is_silent() {
    check_death_while_the_model_is_silent(ACCUMULATOR).await;
}

/// Kills an actor while a call with effects runs. The call must not run again and must get a
/// result.
async fn check_death_during_a_call_with_effects(which: usize) {
    let provider = Provider::calling(&[("pay", "{}"), ("echo", r#"{"n":1}"#)]).await;
    let starts = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let pay = tool(ToolSpec { effect: Default::default(), ..spec("pay") }, {
        let starts = Arc::clone(&starts);
        move |_| {
            starts.fetch_add(1, Ordering::SeqCst);
            std::future::pending()
        }
    });
    let host = host(&provider, registry([pay, echo("echo")]), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the call runs", {
        let starts = Arc::clone(&starts);
        move || starts.load(Ordering::SeqCst) == 1
    })
    .await;
    kill(&session, which).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "done"));
    assert_eq!(starts.load(Ordering::SeqCst), 1, "no effect is repeated");
    let by_tool = results(&report);
    assert_eq!((by_tool["pay"].0, by_tool["echo"]), ("unknown", ("success", r#"{"n":1}"#)));
    assert_eq!(provider.count(), 2, "the response was complete and is not requested again");
    nothing_left(&host).await;
}

#[tokio::test]
async fn the_stream_actor_dies_during_a_call() {
    check_death_during_a_call_with_effects(STREAM).await;
}

#[tokio::test]
async fn the_tool_supervisor_dies_during_a_call() {
    check_death_during_a_call_with_effects(SUPERVISOR).await;
}

#[tokio::test]
async fn an_idempotent_call_is_run_again_under_the_same_key() {
    let provider = Provider::calling(&[("put", "{}")]).await;
    let keys = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let put = tool(ToolSpec { effect: Default::default(), ..spec("put") }.idempotent(), {
        let keys = Arc::clone(&keys);
        move |context| {
            let keys = Arc::clone(&keys);
            async move {
                let again = {
                    let mut keys = keys.lock();
                    keys.push(context.idempotency_key().to_owned());
                    keys.len() > 1
                };
                if again { Ok("put".into()) } else { std::future::pending().await }
            }
        }
    });
    let host = host(&provider, registry([put]), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the call runs", {
        let keys = Arc::clone(&keys);
        move || keys.lock().len() == 1
    })
    .await;
    kill(&session, SUPERVISOR).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(results(&report), BTreeMap::from([("put", ("success", "put"))]));
    let keys = keys.lock();
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
}

#[tokio::test]
async fn an_actor_that_dies_too_often_fails_the_run_with_every_call_answered() {
    let provider = Provider::new(|_, _| Reply::Sse(calls_to(&[("put", "{}")]))).await;
    let put = tool(ToolSpec { effect: Default::default(), ..spec("put") }.idempotent(), |_| {
        std::future::pending()
    });
    let host = host(&provider, registry([put]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    let running = |host: &Host| {
        let host = host.clone();
        until("the call runs", move || host.counts().tools_running == 1)
    };
    for _ in 0..3 {
        running(&host).await;
        kill(&session, SUPERVISOR).await;
    }
    running(&host).await;
    actors(&session).await[ACCUMULATOR].kill();
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Failed);
    assert_eq!(report.error.as_ref().unwrap().code, "internal_error");
    assert_eq!(report.calls.len(), 1);
    assert_eq!(report.run_messages().len(), 3, "user, call, answer");
    let mut ended = 0;
    use futures::{FutureExt as _, StreamExt as _};
    while let Some(Some(FeedItem::Event(published))) = run.events.next().now_or_never() {
        ended += usize::from(matches!(published.event, Event::RunEnded { .. }));
    }
    assert_eq!(ended, 1);
    nothing_left(&host).await;
    // The session is still usable, and its next run ends.
    assert_eq!(session.snapshot().await.unwrap().state, SessionState::Idle);
    let again = session.start_run("go").await.unwrap();
    running(&host).await;
    session.close().await.unwrap();
    assert_eq!(again.report.await.unwrap().run_end, RunEnd::Stopped);
    while run.events.next().await.is_some() {}
    assert_eq!(host.counts(), HostCounts::default());
}

#[tokio::test]
async fn a_stop_during_the_death_of_an_actor_is_not_lost() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("hm")])).await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the stream is open", || provider.open() == 1).await;
    actors(&session).await[ACCUMULATOR].kill();
    session.stop(StopMode::Now).await.unwrap();
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Stopped);
    nothing_left(&host).await;
}

#[tokio::test]
async fn the_death_of_a_tool_actor_ends_only_its_call() {
    let provider = Provider::calling(&[("hang", "{}"), ("echo", r#"{"n":1}"#)]).await;
    let hang = tool(spec("hang"), |_| std::future::pending());
    let host = host(&provider, registry([hang, echo("echo")]), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the call runs", {
        let host = host.clone();
        move || host.counts().tools_running == 1
    })
    .await;
    let supervisor = actors(&session).await[SUPERVISOR].clone();
    for call in supervisor.get_children() {
        call.kill();
    }
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Answered);
    let by_tool = results(&report);
    assert_eq!(by_tool["hang"], ("error", "Error: the tool was killed"));
    assert_eq!(by_tool["echo"], ("success", r#"{"n":1}"#));
    assert_eq!(report.calls[0].metadata["kind"], "killed");
    nothing_left(&host).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaths_at_any_time_repeat_no_effect_and_leave_no_call_open() {
    let provider = Provider::new(|_, body| {
        let last = body["messages"].as_array().unwrap().last().unwrap();
        let calls = [("echo", r#"{"n":1}"#), ("pay", "{}"), ("echo", r#"{"n":2}"#)];
        Reply::Sse(if last["role"] == "tool" { answer_with("done") } else { calls_to(&calls) })
    })
    .await;
    let paid = Arc::new(parking_lot::Mutex::new(std::collections::BTreeSet::new()));
    let twice = Arc::new(AtomicBool::new(false));
    let pay = tool(ToolSpec { effect: Default::default(), ..spec("pay") }, {
        let (paid, twice) = (Arc::clone(&paid), Arc::clone(&twice));
        move |context| {
            let first = paid.lock().insert(context.idempotency_key().to_owned());
            twice.fetch_or(!first, Ordering::SeqCst);
            async {
                sleep(Duration::from_millis(1)).await;
                Ok("paid".into())
            }
        }
    });
    let host = host(&provider, registry([echo("echo"), pay]), |_| ()).await;
    let workers = (0..8_usize).map(|worker| {
        let host = host.clone();
        spawn(async move {
            let session = session(&host).await;
            let mut unknown = 0;
            for n in 0..25_usize {
                let run = session.start_run("go").await.unwrap();
                sleep(Duration::from_micros((worker * 25 + n) as u64 * 37 % 6000)).await;
                let victim = (worker + n) % 3;
                if let Some(actors) = run_actors(&session).await {
                    actors[victim].kill();
                }
                let report = timeout(SOON, run.report).await.unwrap().unwrap();
                assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "done"));
                assert_eq!((report.calls.len(), report.run_messages().len()), (3, 6));
                for call in &report.calls {
                    match call.status.as_str() {
                        "success" => {}
                        "unknown" if &*call.tool_name == "pay" && victim != ACCUMULATOR => {
                            unknown += 1;
                        }
                        other => panic!("{} ended {other}", call.tool_name),
                    }
                }
            }
            unknown
        })
    });
    let mut unknown = 0;
    for worker in workers.collect::<Vec<_>>() {
        unknown += worker.await.unwrap();
    }
    assert!(!twice.load(Ordering::SeqCst), "an effect was repeated");
    assert!(unknown < 200, "not every death came in the middle of a payment");
    nothing_left(&host).await;
}

#[tokio::test]
async fn runs_of_a_session_share_their_actors_until_it_is_idle() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("so far")])).await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = session(&host).await;
    let mut seen = Vec::new();
    for becomes_idle in [false, true, false] {
        let run = session.start_run("go").await.unwrap();
        // The actors are not stopped during a run.
        rest(&host);
        seen.push(actors(&session).await);
        session.stop(StopMode::Now).await.unwrap();
        timeout(SOON, run.report).await.unwrap().unwrap();
        assert_eq!(host.counts().actors, 3);
        if becomes_idle {
            nothing_left(&host).await;
        }
    }
    assert_eq!(seen[0], seen[1]);
    assert!(seen[1].iter().zip(&seen[2]).all(|(one, other)| one != other));
    nothing_left(&host).await;
}

#[tokio::test]
async fn an_actor_of_a_session_may_die_between_two_runs() {
    for which in [STREAM, ACCUMULATOR, SUPERVISOR] {
        let provider = Provider::new(|n, _| match n {
            0 => Reply::Stall(vec![text("so far")]),
            _ => Reply::Sse(answer_with("found")),
        })
        .await;
        let host = host(&provider, ToolRegistry::new(), |_| ()).await;
        let session = session(&host).await;
        let run = session.start_run("go").await.unwrap();
        let victim = actors(&session).await[which].clone();
        session.stop(StopMode::Now).await.unwrap();
        timeout(SOON, run.report).await.unwrap().unwrap();
        victim.kill();
        let counted = host.clone();
        until("the other actors are gone", move || counted.counts().actors == 0).await;
        let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
        assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "found"));
        nothing_left(&host).await;
    }
}

#[tokio::test]
async fn a_tool_of_an_ended_run_keeps_its_grace_period_when_the_next_run_ends() {
    let provider = Provider::new(|_, _| Reply::Sse(calls_to(&[("slow", "{}")]))).await;
    let cleaned_up = Arc::new(AtomicBool::new(false));
    let slow = tool(spec("slow"), {
        let cleaned_up = Arc::clone(&cleaned_up);
        move |context| {
            let cleaned_up = Arc::clone(&cleaned_up);
            async move {
                context.cancelled().await;
                sleep(Duration::from_millis(200)).await;
                cleaned_up.store(true, Ordering::SeqCst);
                Ok("late".into())
            }
        }
    });
    let host = host(&provider, registry([slow]), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    let running = |count| {
        let host = host.clone();
        move || host.counts().tools_running == count
    };
    until("the call runs", running(1)).await;
    session.stop(StopMode::Now).await.unwrap();
    timeout(SOON, run.report).await.unwrap().unwrap();
    // The tool's supervisor ends with it. Meanwhile the session has a new supervisor.
    rest(&host);
    let run = session.start_run("again").await.unwrap();
    until("the next call runs too", running(2)).await;
    assert!(!cleaned_up.load(Ordering::SeqCst));
    session.stop(StopMode::Now).await.unwrap();
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.calls.len(), 1);
    nothing_left(&host).await;
    assert!(cleaned_up.load(Ordering::SeqCst));
}
