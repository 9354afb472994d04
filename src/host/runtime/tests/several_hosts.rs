//! Two hosts with one journal: a session has one owner, and another host goes on with it wherever the first one loses it
//! or hands it over.

use std::sync::atomic::AtomicUsize;

use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::abandoned::no_journal_failure_is_counted;
use super::child_sessions::family;
use super::provider::{Reply, answer_with, calls_to};
use super::*;
use crate::journal::Ownership;
use crate::journal::shared::{SharedJournal, Store};
use crate::telemetry::FeedItem;
use callsheet_values::config::OnShutdown;
use callsheet_values::record::{Record, RequestKey, StopMode};
use callsheet_values::types::{RunEnd, is_child_session};

/// Returns a provider that calls a tool until the request has a result.
async fn calling(tool: &'static str) -> Provider {
    Provider::new(move |_, body| {
        let has_result = body["messages"].as_array().unwrap().iter().any(|m| m["role"] == "tool");
        Reply::Sse(if has_result { answer_with("done") } else { calls_to(&[(tool, "{}")]) })
    })
    .await
}

/// Returns a tool with effects that counts its starts.
fn paying(starts: &Arc<AtomicUsize>) -> ToolRegistry {
    let starts = Arc::clone(starts);
    registry([tool(ToolSpec { effect: Default::default(), ..spec("pay") }, move |_| {
        starts.fetch_add(1, Ordering::SeqCst);
        async { Ok("paid".into()) }
    })])
}

async fn on(setup: HostSetup, journal: &Arc<SharedJournal>) -> Host {
    start_on(setup, Arc::clone(journal) as Arc<dyn Journal>).await.unwrap()
}

/// Wakes sessions, which a host has taken, and waits until no run is open.
async fn go_on(host: &Host, taken: &[SessionId]) {
    for id in taken {
        host.inner.host_ref.get_or_wake(id).await.unwrap();
    }
    until("the runs have ended", || host.counts().runs == 0).await;
}

/// Returns the ends of the runs of a session.
async fn ends(session: &SessionHandle) -> Vec<RunEnd> {
    let records = session.records(Seq(0)).await.unwrap();
    let ends = records.iter().filter_map(|entry| {
        let Record::RunEnded { end, .. } = &entry.record else { return None };
        Some(*end)
    });
    ends.collect()
}

#[tokio::test]
async fn another_host_goes_on_wherever_a_host_loses_a_session() {
    let (mut at, mut continued) = (1, 0);
    loop {
        let (store, starts) = (Arc::new(Store::default()), Arc::default());
        let provider = calling("pay").await;
        let second = SharedJournal::new(&store);
        let taken: Arc<Mutex<Option<Vec<SessionId>>>> = Arc::default();
        let first = SharedJournal::with(&store, {
            let (second, taken) = (Arc::clone(&second), Arc::clone(&taken));
            move |own, batches| {
                if batches == at {
                    own.end_lease();
                    *taken.lock() = Some(stored(second.take_abandoned(10)));
                }
            }
        });
        let one = on(setup(&provider, paying(&starts), |_| ()), &first).await;
        let session = session(&one).await;
        let mut events = session.subscribe().await.unwrap();
        let reported = timeout(SOON, session.run("go")).await.unwrap();
        if taken.lock().is_none() {
            // The run has fewer batches.
            assert_eq!(reported.unwrap().run_end, RunEnd::Answered);
            break;
        }
        let two = on(setup(&provider, paying(&starts), |_| ()), &second).await;
        let id = session.id().clone();
        match &reported {
            Ok(report) => assert_eq!(report.run_end, RunEnd::Answered),
            Err(error) => {
                assert_eq!(*error, HostError::SessionMoved, "batch {at}");
                let last = timeout(SOON, async {
                    let mut last = None;
                    while let Some(item) = events.next().await {
                        last = Some(item);
                    }
                    last
                });
                let last = last.await.unwrap();
                assert!(matches!(last, Some(FeedItem::Lagged)), "resync, at batch {at}: {last:?}");
            }
        }
        drop(events);
        until("the session has left the first host", || {
            one.shared().index.awake(&id).is_none() || reported.is_ok()
        })
        .await;
        assert!(
            one.shared().maintenance.sessions_to_record().is_empty(),
            "nothing to record later"
        );
        no_journal_failure_is_counted(&one);
        let records = session.records(Seq(0)).await.unwrap().len();
        sleep(Duration::from_millis(20)).await;
        assert_eq!(session.records(Seq(0)).await.unwrap().len(), records, "no record of a ghost");
        let taken = taken.lock().take().unwrap();
        go_on(&two, &taken).await;
        continued += taken.len();
        let there = two.session(&id);
        // A run whose start was not stored is asked for again.
        let expected = usize::from(!taken.is_empty() || reported.is_ok());
        assert_eq!(ends(&there).await, vec![RunEnd::Answered; expected], "batch {at}");
        assert_eq!(there.run("go").await.unwrap().run_end, RunEnd::Answered);
        assert!(starts.load(Ordering::SeqCst) <= 1 + expected, "an effect happens once");
        nothing_left(&two).await;
        (_, _) = (one.shutdown().await, two.shutdown().await);
        at += 1;
    }
    assert!(continued >= 4, "{continued} of {at}");
}

#[tokio::test]
async fn a_session_has_one_owner() {
    let store = Arc::new(Store::default());
    let provider = Provider::answering("fine").await;
    let [first, second] = [SharedJournal::new(&store), SharedJournal::new(&store)];
    let one = on(setup(&provider, ToolRegistry::new(), |_| ()), &first).await;
    let two = on(setup(&provider, ToolRegistry::new(), |_| ()), &second).await;
    let session = one.open_session("s").await.unwrap();
    let elsewhere = two.session(session.id());
    let taken = two.open_session("s").await;
    assert_eq!(taken.unwrap_err(), HostError::SessionExists);
    assert_eq!(session.run("go").await.unwrap().text, "fine");
    assert_eq!(elsewhere.run("go").await.unwrap_err(), HostError::SessionMoved);
    assert_eq!(elsewhere.close().await.unwrap_err(), HostError::SessionMoved);
    assert!(!elsewhere.records(Seq(0)).await.unwrap().is_empty(), "any host reads what is stored");
    // A fork is a tree of its own.
    let fork = two.fork(&elsewhere, Seq(1), Some("f".to_owned())).await.unwrap();
    assert_eq!(fork.run("go").await.unwrap().text, "fine");
    assert_eq!(one.session(fork.id()).run("go").await.unwrap_err(), HostError::SessionMoved);
    // Another host can take a session that has left memory.
    session.hibernate();
    until("it is asleep", || one.counts().awake == 0).await;
    let runs = async || elsewhere.run("go").await.is_ok();
    timeout(SOON, async {
        while !runs().await {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(session.run("go").await.unwrap_err(), HostError::SessionMoved);
    elsewhere.close().await.unwrap();
    assert!(matches!(session.run("go").await.unwrap_err(), HostError::NoSuchSession(_)));
    (_, _) = (nothing_left(&one).await, nothing_left(&two).await);
    (_, _) = (one.shutdown().await, two.shutdown().await);
}

#[tokio::test]
async fn a_shutdown_hands_open_runs_over() {
    let store = Arc::new(Store::default());
    let gate = Arc::new(Semaphore::new(0));
    let provider = Provider::new(|_, body| {
        Reply::Sse(match super::child_sessions::agent_of(body) {
            "helper" => answer_with("helped"),
            _ if super::child_sessions::has_result(body) => answer_with("done"),
            "worker" => calls_to(&[("helper", r#"{"input":"x"}"#)]),
            _ => calls_to(&[("worker", r#"{"input":"x"}"#)]),
        })
    })
    .await
    .gated_by(Arc::clone(&gate));
    let [first, second] = [SharedJournal::new(&store), SharedJournal::new(&store)];
    let family = || {
        family(&provider, [], [], |config| {
            config.host.shutdown_grace = Duration::from_millis(20);
        })
    };
    let one = on(family(), &first).await;
    assert_eq!(one.shared().catalog.on_shutdown, OnShutdown::HandOver);
    let two = on(family(), &second).await;
    let session = session(&one).await;
    let run = session.start_run("go").await.unwrap();
    // The topmost session and the worker have their answers; the helper waits for its own.
    gate.add_permits(2);
    until("the helper asks", || provider.count() == 3).await;
    timeout(SOON, one.shutdown()).await.unwrap();
    assert_eq!(run.report.await.unwrap_err(), HostError::ShuttingDown);
    gate.add_permits(100);
    let there = two.session(session.id());
    timeout(SOON, async {
        while ends(&there).await != [RunEnd::Answered] {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
    let query = SessionQuery::default().with(|query| query.children = true);
    let children = stored(second.list(&query)).into_iter().filter(|s| is_child_session(&s.id));
    for child in children {
        assert_eq!(ends(&two.session(&child.id)).await, [RunEnd::Answered]);
    }
    nothing_left(&two).await;
    two.shutdown().await;
}

#[tokio::test]
async fn only_a_journal_of_several_hosts_hands_runs_over() {
    let provider = Provider::answering("fine").await;
    let setup = setup(&provider, ToolRegistry::new(), |config| {
        config.host.on_shutdown = Some(OnShutdown::HandOver);
    });
    let error = Host::start(setup).await.unwrap_err().to_string();
    assert!(error.contains("\"hand_over\" needs a journal that several hosts use"), "{error}");
}

#[tokio::test]
async fn a_session_that_is_lost_with_the_lease_ends_its_streams_and_goes_on() {
    let (store, starts) = (Arc::new(Store::default()), Arc::new(AtomicUsize::new(0)));
    let provider = calling("wait").await;
    let journal = SharedJournal::new(&store);
    let tools = registry([tool(spec("wait"), {
        let starts = Arc::clone(&starts);
        move |_| {
            let is_first = starts.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                if is_first {
                    std::future::pending::<()>().await;
                }
                Ok("done".into())
            }
        }
    })]);
    let host = on(setup(&provider, tools, |_| ()), &journal).await;
    let session = session(&host).await;
    let mut events = session.subscribe().await.unwrap();
    let request = || {
        RunRequest::default().with(|run| {
            run.input = "go".into();
            run.request_key = Some(RequestKey::new("key", "go"));
        })
    };
    let first = session.start_run(request()).await.unwrap();
    until("the tool runs", || starts.load(Ordering::SeqCst) == 1).await;
    let repeated = session.start_run(request()).await.unwrap();
    assert_eq!(repeated.run_id, first.run_id);
    journal.lose_all();
    let report = timeout(SOON, first.report).await.unwrap();
    assert_eq!(report.map(drop), Err(HostError::SessionMoved));
    let mut last = None;
    while let Some(item) = timeout(SOON, events.next()).await.unwrap() {
        last = Some(item);
    }
    assert!(matches!(last, Some(FeedItem::Lagged)), "resync: {last:?}");
    // No other host has it, so the one that waits lets it go on here.
    let report = timeout(SOON, repeated.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Answered);
    host.shutdown().await;
}

#[tokio::test]
async fn a_run_that_takes_one_host_after_the_other_down_is_set_aside() {
    let (store, starts) = (Arc::new(Store::default()), Arc::new(AtomicUsize::new(0)));
    let provider = calling("wait").await;
    let start = async || {
        let journal = SharedJournal::new(&store);
        let starts = Arc::clone(&starts);
        let tools = registry([tool(spec("wait"), move |_| {
            starts.fetch_add(1, Ordering::SeqCst);
            std::future::pending()
        })]);
        (on(setup(&provider, tools, |_| ()), &journal).await, journal)
    };
    let is_started = async |count: usize| {
        until("the tool runs", || starts.load(Ordering::SeqCst) == count).await;
    };
    let (host, journal) = start().await;
    let session = session(&host).await;
    let id = session.id().clone();
    let _run = session.start_run("go").await.unwrap();
    is_started(1).await;
    // A host that starts beside it counts no crash.
    let (beside, _) = start().await;
    assert_eq!(beside.quarantined_sessions(), []);
    beside.shutdown().await;
    let mut last = (host, journal);
    for count in 2..=3 {
        last.1.end_lease();
        let next = start().await;
        is_started(count).await;
        last = next;
    }
    // At the third host it has gone on alone.
    last.1.end_lease();
    let (host, _journal) = start().await;
    assert_eq!(host.quarantined_sessions(), std::slice::from_ref(&id));
    sleep(Duration::from_millis(50)).await;
    assert_eq!(starts.load(Ordering::SeqCst), 3, "it does not go on by itself");
    assert_eq!(host.session(&id).resume().await.map(drop), Ok(()));
    is_started(4).await;
    assert_eq!(host.quarantined_sessions(), []);
    host.session(&id).stop(StopMode::Now).await.unwrap();
    host.shutdown().await;
}
