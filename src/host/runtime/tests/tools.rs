//! Tests that a failing tool ends only its own call.

use tokio::sync::Semaphore;

use super::*;
use callsheet_values::types::RunEnd;

/// Runs a turn in which `bad` is called between two working calls, with a short timeout and grace period.
async fn run_between_working_calls(bad: Closure) -> (RunReport, Host) {
    let provider =
        Provider::calling(&[("one", r#"{"n":1}"#), ("bad", "{}"), ("two", r#"{"n":2}"#)]).await;
    let host = host(&provider, registry([echo("one"), bad, echo("two")]), |config| {
        let limits = &mut config.agents.get_mut("default").unwrap().limits;
        limits.tool_timeout = Some(Duration::from_millis(400));
        limits.cancel_grace = Duration::from_millis(20);
    })
    .await;
    let report = session(&host).await.run("go").await.unwrap();
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "done"));
    let by_tool = results(&report);
    assert_eq!(by_tool["one"], ("success", r#"{"n":1}"#));
    assert_eq!(by_tool["two"], ("success", r#"{"n":2}"#));
    (report, host)
}

#[tokio::test]
async fn an_error_ends_only_its_call() {
    let bad = tool(spec("bad"), |_| async { Err(ToolError::new("no luck")) });
    let (report, host) = run_between_working_calls(bad).await;
    assert_eq!(results(&report)["bad"], ("error", "Error: no luck"));
    assert_eq!(report.calls[1].metadata, json!({"error": true, "kind": "tool_error"}));
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_panic_ends_only_its_call() {
    let bad = tool(spec("bad"), |_| async { panic!("out of cheese") });
    let (report, host) = run_between_working_calls(bad).await;
    assert_eq!(results(&report)["bad"], ("error", "Error: the tool panicked: out of cheese"));
    assert_eq!(report.calls[1].metadata, json!({"error": true, "kind": "panic"}));
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_panic_before_the_first_await_ends_only_its_call() {
    fn boom() -> Result<ToolOutput, ToolError> {
        panic!("at once")
    }
    let bad = tool(spec("bad"), |_| std::future::ready(boom()));
    let (report, host) = run_between_working_calls(bad).await;
    assert_eq!(results(&report)["bad"].0, "error");
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_tool_that_hangs_is_killed_after_the_grace_period() {
    let dropped = Arc::new(AtomicBool::new(false));
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let bad = tool(spec("bad"), {
        let dropped = Arc::clone(&dropped);
        move |_| {
            let guard = Dropped(Arc::clone(&dropped));
            async move {
                let _guard = guard;
                std::future::pending().await
            }
        }
    });
    let (report, host) = run_between_working_calls(bad).await;
    assert_eq!(results(&report)["bad"].0, "timeout");
    nothing_left(&host).await;
    assert!(dropped.load(Ordering::SeqCst));
}

/// Advances the host's clock in steps that are too short for a stall of the host.
async fn pass_slowly(time: Duration) {
    let step = Duration::from_millis(10);
    tokio::time::pause();
    for _ in 0..time.as_millis() / step.as_millis() {
        tokio::time::advance(step).await;
        tokio::task::yield_now().await;
    }
    tokio::time::resume();
}

/// Starts a run that calls `slow`, which may take 30 s, and waits until the call has begun.
async fn begin_slow_call(
    slow: Closure,
    begun: &tokio::sync::Notify,
) -> (Provider, Host, StartedRun) {
    let provider = Provider::calling(&[("slow", "{}")]).await;
    let host = host(&provider, registry([slow]), |config| {
        let agent = config.agents.get_mut("default").unwrap();
        agent.early_start = false;
        agent.limits.tool_timeout = Some(Duration::from_secs(30));
    })
    .await;
    let run = session(&host).await.start_run("go").await.unwrap();
    timeout(SOON, begun.notified()).await.unwrap();
    (provider, host, run)
}

#[tokio::test]
async fn a_stall_of_the_host_does_not_count_towards_the_timeout_of_a_call() {
    let (begun, finish) = <(Arc<tokio::sync::Notify>, Arc<tokio::sync::Notify>)>::default();
    let slow = tool(spec("slow"), {
        let (begun, finish) = (Arc::clone(&begun), Arc::clone(&finish));
        move |_| {
            begun.notify_one();
            let finish = Arc::clone(&finish);
            async move {
                finish.notified().await;
                Ok("done".into())
            }
        }
    });
    let (_provider, _host, run) = begin_slow_call(slow, &begun).await;
    // All of the time passes at once, as for a process that was stopped.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    finish.notify_one();
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(results(&report)["slow"], ("success", "done"));
}

#[tokio::test]
async fn a_call_times_out_after_thirty_seconds() {
    let begun = Arc::new(tokio::sync::Notify::new());
    let slow = tool(spec("slow"), {
        let begun = Arc::clone(&begun);
        move |_| {
            begun.notify_one();
            std::future::pending()
        }
    });
    let (provider, host, run) = begin_slow_call(slow, &begun).await;
    // The response is over, so only the timeout of the tool runs.
    pass_slowly(Duration::from_secs(29)).await;
    for _ in 0..100 {
        // This lets the actors handle their messages without a wait.
        tokio::task::yield_now().await;
    }
    assert_eq!(host.counts().tools_running, 1, "a second is left");
    pass_slowly(Duration::from_secs(1)).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    let by_tool = results(&report)["slow"];
    assert_eq!(by_tool, ("timeout", "Error: Execution timeout after 30s"));
    let sent = &provider.requests()[1]["messages"];
    let last = sent.as_array().unwrap().last().unwrap();
    assert_eq!(last["content"], "Error: Execution timeout after 30s");
}

#[tokio::test]
async fn a_cancelled_tool_may_clean_up() {
    let cleaned_up = Arc::new(AtomicBool::new(false));
    let bad = tool(spec("bad"), {
        let cleaned_up = Arc::clone(&cleaned_up);
        move |context| {
            let cleaned_up = Arc::clone(&cleaned_up);
            async move {
                context.cancelled().await;
                cleaned_up.store(true, Ordering::SeqCst);
                Ok("too late to count".into())
            }
        }
    });
    let (report, host) = run_between_working_calls(bad).await;
    assert_eq!(results(&report)["bad"].0, "timeout");
    nothing_left(&host).await;
    assert!(cleaned_up.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_tool_that_blocks_does_not_block_other_tools() {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(parking_lot::Mutex::new(blocked));
    let bad = tool(spec("bad").blocking(), move |_| {
        let blocked = Arc::clone(&blocked);
        async move {
            // The test's runtime has one thread. To block that thread would block the whole test.
            let _ = blocked.lock().recv();
            Ok("free".into())
        }
    });
    let (report, host) = run_between_working_calls(bad).await;
    assert_eq!(results(&report)["bad"].0, "timeout");
    let counting = host.clone();
    until("the thread is abandoned", move || counting.counts().abandoned_threads == 1).await;
    nothing_left(&host).await;
    release.send(()).unwrap();
    until("the thread is back", move || host.counts().abandoned_threads == 0).await;
}

#[tokio::test]
async fn a_blocking_tool_answers_and_may_panic() {
    let bad = tool(spec("bad").blocking(), |_| async {
        sleep(Duration::from_millis(1)).await;
        panic!("on its thread")
    });
    let (report, host) = run_between_working_calls(bad).await;
    assert_eq!(results(&report)["bad"], ("error", "Error: the tool panicked: on its thread"));
    nothing_left(&host).await;
}

#[tokio::test]
async fn progress_is_published_while_the_call_is_open_and_is_limited() {
    use crate::telemetry::FeedItem;
    use callsheet_values::event::Event;
    use futures::StreamExt as _;

    let provider = Provider::calling(&[("busy", "{}")]).await;
    let kept = Arc::new(parking_lot::Mutex::new(None));
    let busy = tool(spec("busy"), {
        let kept = Arc::clone(&kept);
        move |context| {
            *kept.lock() = Some(context.clone());
            async move {
                context.progress("x".repeat(10_000));
                for _ in 0..1500 {
                    context.progress("on and on");
                }
                Ok("busy".into())
            }
        }
    });
    let host = host(&provider, registry([busy]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    let mut texts = Vec::new();
    while let Some(FeedItem::Event(published)) = run.events.next().await {
        if let Event::CallProgressed { text, .. } = &published.event {
            texts.push(text.clone());
        }
        if matches!(published.event, Event::RunEnded { .. }) {
            break;
        }
    }
    assert_eq!(texts.len(), 1000);
    assert_eq!(texts[0].chars().count(), 501);
    kept.lock().take().unwrap().progress("after the end");
    session.close().await.unwrap();
    while let Some(delivery) = run.events.next().await {
        let FeedItem::Event(published) = delivery else { continue };
        assert!(!matches!(published.event, Event::CallProgressed { .. }));
    }
}

/// A value that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropped");
        }
    }
}

#[tokio::test]
async fn a_panic_while_a_tool_is_dropped_ends_only_its_call() {
    for (blocking, hangs) in [(false, true), (true, true), (false, false), (true, false)] {
        // A panic takes long where backtraces are written.
        let limit = if hangs { Duration::from_millis(30) } else { SOON };
        let mut bad = spec("bad").timeout(limit);
        bad.blocking = blocking;
        let (report, host) = run_between_working_calls(tool(bad, move |_| async move {
            let _bomb = Bomb;
            if hangs {
                std::future::pending::<()>().await;
            }
            Ok("ok".into())
        }))
        .await;
        let found = results(&report);
        let expect = if hangs { "timeout" } else { "error" };
        assert_eq!(found["bad"].0, expect, "{blocking} {hangs}: {found:?}");
        nothing_left(&host).await;
        until("its thread is back", || host.counts().abandoned_threads == 0).await;
    }
}

#[tokio::test]
async fn the_end_of_a_call_cancels_the_tasks_that_its_tool_started() {
    let provider = Provider::calling(&[("compute", "{}"), ("leave", "{}")]).await;
    let (begun, helper_cancelled) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let first = Arc::new(AtomicBool::new(true));
    let compute = tool(spec("compute").blocking(), {
        let begun = Arc::clone(&begun);
        move |context| {
            let (begun, first) = (Arc::clone(&begun), first.swap(false, Ordering::SeqCst));
            async move {
                begun.add_permits(1);
                while first && !context.is_cancelled() {
                    std::thread::yield_now();
                }
                Ok("ok".into())
            }
        }
    });
    let leave = tool(spec("leave"), {
        let helper_cancelled = Arc::clone(&helper_cancelled);
        move |context| {
            let helper_cancelled = Arc::clone(&helper_cancelled);
            spawn(async move {
                context.cancelled().await;
                helper_cancelled.add_permits(1);
            });
            async { Ok("ok".into()) }
        }
    });
    let host = host(&provider, registry([compute, leave]), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    timeout(SOON, begun.acquire()).await.unwrap().unwrap().forget();
    // The tool gets no abort, because its supervisor is killed.
    let [_, _, supervisor] = super::recovery::actors(&session).await;
    supervisor.kill();
    assert_eq!(timeout(SOON, run.report).await.unwrap().unwrap().run_end, RunEnd::Answered);
    nothing_left(&host).await;
    until("the thread is back", || host.counts().abandoned_threads == 0).await;
    timeout(SOON, helper_cancelled.acquire())
        .await
        .expect("the helper is cancelled")
        .unwrap()
        .forget();
}
