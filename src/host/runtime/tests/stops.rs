//! Tests that a stop reaches all parts of a run and that nothing keeps running.

use futures::StreamExt as _;
use tokio::sync::Semaphore;

use super::provider::{Reply, calls, calls_to, text};
use super::*;
use crate::telemetry::FeedItem;
use callsheet_values::event::Event;
use callsheet_values::record::StopMode;
use callsheet_values::types::RunEnd;

#[tokio::test]
async fn a_stop_closes_the_stream() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("one "), text("moment")])).await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the stream is open", || provider.open() == 1).await;
    let began = Instant::now();
    session.stop(StopMode::Now).await.unwrap();
    let report = run.report.await.unwrap();
    assert_eq!(report.run_end, RunEnd::Stopped);
    until("the provider sees the client leave", || provider.open() == 0).await;
    assert!(began.elapsed() < Duration::from_secs(5), "it took {:?}", began.elapsed());
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_stop_takes_effect_while_the_model_is_silent() {
    let provider = Provider::new(|_, _| Reply::Silence).await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the request has arrived", || provider.open() == 1).await;
    session.stop(StopMode::Now).await.unwrap();
    assert_eq!(run.report.await.unwrap().run_end, RunEnd::Stopped);
    until("the provider sees the client leave", || provider.open() == 0).await;
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_stop_ends_the_wait_for_a_delivery() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("one ")])).await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let model = Arc::clone(&host.inner.host_ref.shared.catalog.models["test"]);
    let deliveries = &model.limiter.deliveries;
    let count = deliveries.available_permits();
    let all = deliveries.acquire_many(count.try_into().unwrap()).await.unwrap();
    let (stopped, other) = (session(&host).await, session(&host).await);
    let mut events = other.subscribe().await.unwrap();
    let run = stopped.start_run("go").await.unwrap();
    let other_run = other.start_run("go").await.unwrap();
    until("both responses have begun", || provider.open() == 2).await;
    stopped.stop(StopMode::Now).await.unwrap();
    assert_eq!(timeout(SOON, run.report).await.unwrap().unwrap().text, "");
    // The other response goes on when there are permits, and returns its own.
    drop(all);
    timeout(SOON, async {
        while let Some(FeedItem::Event(published)) = events.next().await {
            if published.event.text() == Some((false, "one ")) {
                break;
            }
        }
    })
    .await
    .unwrap();
    until("its permit is returned", || deliveries.available_permits() == count).await;
    other.stop(StopMode::Now).await.unwrap();
    assert_eq!(timeout(SOON, other_run.report).await.unwrap().unwrap().text, "one ");
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_stop_ends_the_wait_between_attempts() {
    let provider = Provider::new(|_, _| Reply::Whole {
        status: 503,
        kind: "text/plain",
        body: "busy".into(),
        retry_after: Some("60"),
    })
    .await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = session(&host).await;
    let mut events = session.subscribe().await.unwrap();
    let run = session.start_run("go").await.unwrap();
    timeout(SOON, async {
        loop {
            let Some(FeedItem::Event(published)) = events.next().await else { panic!("ended") };
            if let Event::AttemptStarted { wait, .. } = published.event {
                assert_eq!(wait, Duration::from_secs(60));
                return;
            }
        }
    })
    .await
    .unwrap();
    session.stop(StopMode::Now).await.unwrap();
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Stopped);
    assert_eq!(provider.count(), 1);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_stop_answers_every_call() {
    let provider = Provider::new(|_, _| {
        Reply::Stall(calls(&[("hang", r#"{"n":1}"#), ("hang", r#"{"n":2}"#), ("hang", "{}")]))
    })
    .await;
    let notified = Arc::new(AtomicBool::new(false));
    let hang = tool(spec("hang"), {
        let notified = Arc::clone(&notified);
        move |context| {
            let notified = Arc::clone(&notified);
            async move {
                context.cancelled().await;
                notified.store(true, Ordering::SeqCst);
                std::future::pending().await
            }
        }
    });
    let host = host(&provider, registry([hang]), |config| {
        let limits = &mut config.agents.get_mut("default").unwrap().limits;
        limits.cancel_grace = Duration::from_millis(20);
    })
    .await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    let counting = host.clone();
    until("the tool runs", move || counting.counts().tools_running == 1).await;
    session.stop(StopMode::Now).await.unwrap();
    let report = run.report.await.unwrap();
    assert_eq!(report.run_end, RunEnd::Stopped);
    assert!(!report.calls.is_empty());
    assert!(report.calls.iter().all(|call| call.status.as_str() == "cancelled"));
    // The next request is valid, because each call in the history has a result.
    let snapshot = session.snapshot().await.unwrap();
    assert_eq!(snapshot.history.len(), 2 + report.calls.len());
    nothing_left(&host).await;
    assert!(notified.load(Ordering::SeqCst));
}

#[tokio::test]
async fn run_timeout_ends_the_run() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("hm")])).await;
    let host = host(&provider, ToolRegistry::new(), |config| {
        let limits = &mut config.agents.get_mut("default").unwrap().limits;
        limits.run_timeout = Some(Duration::from_millis(50));
    })
    .await;
    let report = session(&host).await.run("go").await.unwrap();
    assert_eq!(report.run_end, RunEnd::TimedOut);
    nothing_left(&host).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_stopped_runs_leave_no_actors_or_tasks() {
    let provider = Provider::new(|n, _| match n % 3 {
        0 => Reply::Stall(vec![text("one "), text("moment")]),
        1 => Reply::Stall(calls(&[("hang", r#"{"n":1}"#), ("hang", r#"{"n":2}"#)])),
        _ => Reply::Silence,
    })
    .await;
    let hang = tool(spec("hang"), |_| std::future::pending());
    let host = host(&provider, registry([hang]), |config| {
        let limits = &mut config.agents.get_mut("default").unwrap().limits;
        limits.cancel_grace = Duration::from_millis(5);
    })
    .await;
    let workers = (0..10).map(|_| {
        let host = host.clone();
        spawn(async move {
            let session = session(&host).await;
            for n in 0..100 {
                let run = session.start_run("go").await.unwrap();
                sleep(Duration::from_millis(n % 4)).await;
                session.stop(StopMode::Now).await.unwrap();
                assert_eq!(run.report.await.unwrap().run_end, RunEnd::Stopped);
            }
            session.close().await.unwrap();
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    nothing_left(&host).await;
    until("the sessions are gone", {
        let host = host.clone();
        move || host.counts() == HostCounts::default()
    })
    .await;
    until("the provider sees all clients leave", || provider.open() == 0).await;
    assert_eq!(host.sessions(SessionQuery::default()).await.unwrap(), []);
}

#[tokio::test]
async fn dropping_the_report_does_not_stop_the_run() {
    let provider = Provider::answering("fine").await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = session(&host).await;
    drop(session.start_run("go").await.unwrap());
    nothing_left(&host).await;
    assert_eq!(session.snapshot().await.unwrap().history.len(), 2);
}

#[tokio::test]
async fn a_slow_subscriber_does_not_delay_the_run() {
    let words: &'static str = Box::leak("word ".repeat(6000).into_boxed_str());
    let provider = Provider::answering(words).await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = session(&host).await;
    let _never_read = session.subscribe();
    let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
    assert_eq!(report.text, words);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_cancelled_before_it_begins_sends_no_request() {
    let runs = 300;
    let provider = Provider::new(|_, _| Reply::Sse(calls_to(&[("wait", "{}")]))).await;
    let gate = Arc::new(Semaphore::new(0));
    let wait = tool(spec("wait"), {
        let gate = Arc::clone(&gate);
        move |_| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.unwrap().forget();
                Ok("ok".into())
            }
        }
    });
    let host = host(&provider, registry([wait]), |_| ()).await;
    for _ in 0..runs {
        let session = session(&host).await;
        let run = session.start_run("go").await.unwrap();
        let counting = host.clone();
        until("the tool runs", move || counting.counts().tools_running == 1).await;
        let live = session.host_ref.shared.index.awake(session.id()).unwrap();
        live.actor.cast(message::SessionMessage::Interrupt { now: false }).unwrap();
        session.snapshot().await.unwrap();
        gate.add_permits(1);
        assert_eq!(run.report.await.unwrap().run_end, RunEnd::Interrupted);
    }
    nothing_left(&host).await;
    assert_eq!(provider.count(), runs);
}
