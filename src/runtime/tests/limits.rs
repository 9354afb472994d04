//! What a host refuses, and how it ends.

use super::provider::{Reply, text};
use super::*;
use crate::record::StopMode;
use crate::types::RunEnd;

fn named(id: &str) -> OpenSession {
    OpenSession { id: Some(id.into()), ..OpenSession::default() }
}

#[tokio::test]
async fn sessions_are_opened_by_name_and_closed() {
    let provider = Provider::saying("fine").await;
    let host = host(&provider, Registry::new(), |config| config.host.max_sessions = 2).await;
    let session = host.open_session(named("b")).await.unwrap();
    assert_eq!((session.id().as_str(), session.agent()), ("b", "default"));
    assert_eq!(host.open_session(named("b")).await.unwrap_err(), HostError::SessionExists);
    let error = host.open_session(named("no name")).await.unwrap_err();
    assert_eq!(error, HostError::InvalidSessionId);
    let open = OpenSession { agent: Some("nobody".into()), ..OpenSession::default() };
    let error = host.open_session(open).await.unwrap_err();
    assert_eq!(error, HostError::UnknownAgent("nobody".into()));
    host.open_session(named("a")).await.unwrap();
    assert_eq!(host.open_session(named("c")).await.unwrap_err(), HostError::Full("session"));
    let ids: Vec<_> = host.sessions().iter().map(|s| s.id.as_str().to_owned()).collect();
    assert_eq!(ids, ["a", "b"]);
    session.run("go").await.unwrap();
    session.close().await.unwrap();
    session.close().await.unwrap();
    assert!(host.session(session.id()).is_none());
    assert_eq!(session.run("go").await.unwrap_err(), HostError::SessionClosed);
    assert_eq!(session.snapshot().await.unwrap_err(), HostError::SessionClosed);
    until("the place is free", {
        let host = host.clone();
        move || host.counts().sessions == 1
    })
    .await;
    // The name is free, and nothing is remembered under it.
    let again = host.open_session(named("b")).await.unwrap();
    assert_eq!(again.snapshot().await.unwrap().history, []);
}

#[tokio::test]
async fn a_session_has_one_run_and_a_host_so_many() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("hm")])).await;
    let host = host(&provider, Registry::new(), |config| config.host.max_concurrent_runs = 1).await;
    let (first, second) = (session(&host).await, session(&host).await);
    let run = first.start_run("go").await.unwrap();
    assert_eq!(first.start_run("go").await.unwrap_err(), HostError::RunInProgress);
    assert_eq!(second.start_run("go").await.unwrap_err(), HostError::Full("run"));
    assert_eq!((first.state(), second.state()), (SessionState::Running, SessionState::Idle));
    first.stop(StopMode::Now).await.unwrap();
    run.report.await.unwrap();
    // The place is free when the report is there.
    second.start_run("go").await.unwrap();
}

#[tokio::test]
async fn closing_a_session_stops_its_run() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("hm")])).await;
    let host = host(&provider, Registry::new(), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    session.close().await.unwrap();
    assert_eq!(run.report.await.unwrap().run_end, RunEnd::Stopped);
    nothing_left(&host).await;
    until("the session is gone", move || host.counts().sessions == 0).await;
}

#[tokio::test]
async fn a_shutdown_lets_tools_finish_and_takes_no_more_runs() {
    let provider = Provider::calling(&[("slow", "{}")]).await;
    let (begun, release) =
        (Arc::new(tokio::sync::Barrier::new(2)), Arc::new(tokio::sync::Notify::new()));
    let slow = tool(spec("slow"), {
        let (begun, release) = (Arc::clone(&begun), Arc::clone(&release));
        move |_| {
            let (begun, release) = (Arc::clone(&begun), Arc::clone(&release));
            async move {
                begun.wait().await;
                release.notified().await;
                Ok("finished".into())
            }
        }
    });
    let host = host(&provider, registry([slow]), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    begun.wait().await;
    assert!(host.is_ready());
    let ending = spawn({
        let host = host.clone();
        async move { host.shutdown().await }
    });
    until("the host is closing", {
        let host = host.clone();
        move || !host.is_ready()
    })
    .await;
    assert_eq!(session.start_run("go").await.unwrap_err(), HostError::RunInProgress);
    let error = host.open_session(OpenSession::default()).await.unwrap_err();
    assert_eq!(error, HostError::ShuttingDown);
    release.notify_one();
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Interrupted);
    assert_eq!(results(&report), BTreeMap::from([("slow", ("success", "finished"))]));
    assert_eq!(provider.count(), 1);
    timeout(SOON, ending).await.unwrap().unwrap();
    assert_eq!(host.counts(), HostCounts::default());
    host.shutdown().await;
}

#[tokio::test]
async fn a_shutdown_answers_what_outlasts_its_grace() {
    let provider = Provider::calling(&[("hang", "{}")]).await;
    let hang = tool(spec("hang"), |_| std::future::pending());
    let host = host(&provider, registry([hang]), |config| {
        config.host.shutdown_grace = Duration::from_millis(20);
        config.agents.get_mut("default").unwrap().limits.cancel_grace = Duration::from_millis(20);
    })
    .await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the tool runs", {
        let host = host.clone();
        move || host.counts().tools_running == 1
    })
    .await;
    timeout(SOON, host.shutdown()).await.unwrap();
    let report = run.report.await.unwrap();
    assert_eq!(report.run_end, RunEnd::Interrupted);
    assert_eq!(results(&report)["hang"].0, "cancelled");
    assert_eq!(host.counts(), HostCounts::default());
}

#[tokio::test]
async fn a_host_that_is_dropped_ends() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("hm")])).await;
    let host = host(&provider, Registry::new(), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the stream is open", || provider.open() == 1).await;
    drop(host);
    assert_eq!(run.report.await.unwrap_err(), HostError::SessionClosed);
    until("the provider sees the client leave", || provider.open() == 0).await;
}

#[tokio::test]
async fn a_session_that_dies_leaves_neither_place_nor_records() {
    let provider = Provider::saying("fine").await;
    let journal = Arc::new(crate::journal::MemoryJournal::new());
    let setup = setup(&provider, Registry::new(), |_| ());
    let host = Host::start_on(setup, Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
    let open = named("one");
    let session = host.open_session(open.clone()).await.unwrap();
    session.run("go").await.unwrap();
    session.actor().get_cell().kill();
    until("its place is free", || host.counts().sessions == 0 && host.sessions().is_empty()).await;
    assert_eq!(super::engine::entries(&*journal, session.id()), []);
    let session = host.open_session(open).await.unwrap();
    assert_eq!(session.run("go").await.unwrap().run_end, RunEnd::Answered);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_run_that_was_accepted_beside_a_shutdown_has_its_report() {
    for round in 0..20 {
        let provider = Provider::saying("fine").await;
        let host = host(&provider, Registry::new(), |_| ()).await;
        let starters = (0..20).map(|n| {
            let host = host.clone();
            spawn(async move {
                let Ok(session) = host.open_session(OpenSession::default()).await else { return };
                sleep(Duration::from_micros(100 * ((n + round) % 7))).await;
                let Ok(run) = session.start_run("go").await else { return };
                let report = timeout(SOON, run.report).await.expect("the run ends");
                let end = report.expect("it has its report").run_end;
                assert!(matches!(end, RunEnd::Answered | RunEnd::Interrupted), "{end:?}");
            })
        });
        let starters: Vec<_> = starters.collect();
        sleep(Duration::from_micros(200 * round)).await;
        host.shutdown().await;
        for starter in starters {
            starter.await.unwrap();
        }
        nothing_left(&host).await;
        assert_eq!(host.counts(), HostCounts::default());
    }
}
