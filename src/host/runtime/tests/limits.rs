//! Tests of the limits of a host and of its shutdown.

use super::engine::Engine;
use super::provider::{Reply, answer_with, text};
use super::*;
use crate::journal::{Journal, MemoryJournal};
use callsheet_values::config::OnShutdown;
use callsheet_values::record::StopMode;
use callsheet_values::types::RunEnd;

fn named(id: &str) -> OpenSession {
    OpenSession { id: Some(id.into()), ..OpenSession::default() }
}

#[tokio::test]
async fn sessions_are_opened_by_name_and_closed() {
    let provider = Provider::answering("fine").await;
    let host = host(&provider, ToolRegistry::new(), |config| config.host.max_sessions = 2).await;
    let session = host.open_session(named("b")).await.unwrap();
    assert_eq!((session.id().as_str(), session.agent().await.unwrap().as_str()), ("b", "default"));
    assert_eq!(host.open_session(named("b")).await.unwrap_err(), HostError::SessionExists);
    let error = host.open_session(named("no name")).await.unwrap_err();
    assert_eq!(error, HostError::InvalidSessionId);
    let open = OpenSession { agent: Some("unknown".into()), ..OpenSession::default() };
    let error = host.open_session(open).await.unwrap_err();
    assert_eq!(error.to_string(), "no agent is called \"unknown\" (known: default)");
    host.open_session(named("a")).await.unwrap();
    assert_eq!(host.open_session(named("c")).await.unwrap_err(), HostError::Full("session"));
    let sessions = host.sessions(SessionQuery::default()).await.unwrap();
    let ids: Vec<_> = sessions.iter().map(|s| s.id.as_str().to_owned()).collect();
    assert_eq!(ids, ["a", "b"]);
    session.run("go").await.unwrap();
    session.close().await.unwrap();
    session.close().await.unwrap();
    let gone = HostError::NoSuchSession(session.id().clone());
    assert_eq!(host.session(session.id()).snapshot().await.unwrap_err(), gone);
    assert_eq!(session.run("go").await.unwrap_err(), gone);
    until("the place is free", {
        let host = host.clone();
        move || host.counts().sessions == 1
    })
    .await;
    // The name is free again, and the session under it is new.
    let again = host.open_session(named("b")).await.unwrap();
    assert_eq!(again.snapshot().await.unwrap().history, []);
}

#[tokio::test]
async fn sessions_in_memory_and_stored_ones_have_limits_of_their_own() {
    let provider = Provider::answering("fine").await;
    let host = host(&provider, ToolRegistry::new(), |config| {
        config.host.max_sessions = 1;
        config.journal.max_stored_sessions = 2;
    })
    .await;
    let sleep = async |session: &SessionHandle| {
        session.hibernate();
        until("it sleeps", || session.state() == SessionState::Hibernated).await;
    };
    let first = host.open_session(named("a")).await.unwrap();
    assert_eq!(host.nearly_full_store(), None);
    sleep(&first).await;
    let second = host.open_session(named("b")).await.unwrap();
    assert_eq!(first.run("go").await.unwrap_err(), HostError::Full("session"));
    sleep(&second).await;
    assert_eq!(host.open_session(named("c")).await.unwrap_err(), HostError::StoreFull);
    assert_eq!(host.nearly_full_store(), Some((2, 2)));
    assert_eq!(first.run("go").await.unwrap().text, "fine");
}

#[tokio::test]
async fn a_filtered_list_with_a_small_limit_needs_few_queries() {
    let provider = Provider::answering("fine").await;
    let engine = Engine::new(|inner, batch| inner.append(batch));
    let setup = setup(&provider, ToolRegistry::new(), |_| ());
    let host = start_on(setup, Arc::clone(&engine) as Arc<dyn Journal>).await.unwrap();
    for number in 10..40 {
        host.open_session(named(&number.to_string())).await.unwrap();
    }
    let last = host.open_session(named("40")).await.unwrap();
    last.hibernate();
    until("it hibernates", || last.state() == SessionState::Hibernated).await;
    for (state, expected) in [
        (Some(SessionState::Hibernated), vec!["40"]),
        (Some(SessionState::Idle), vec!["10", "11"]),
        (None, vec!["10", "11"]),
    ] {
        let before = engine.lists();
        let query = SessionQuery { limit: 2, state, ..SessionQuery::default() };
        let found = host.sessions(query).await.unwrap();
        let ids: Vec<&str> = found.iter().map(|session| session.id.as_str()).collect();
        assert_eq!(ids, expected, "{state:?}");
        // Sessions in memory are not listed by the journal.
        let lists = usize::from(state != Some(SessionState::Idle));
        assert_eq!(engine.lists() - before, lists, "{state:?}");
    }
}

#[tokio::test]
async fn a_session_has_one_run_and_a_host_a_limited_number() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("hm")])).await;
    let host =
        host(&provider, ToolRegistry::new(), |config| config.host.max_concurrent_runs = 1).await;
    let (first, second) = (session(&host).await, session(&host).await);
    let run = first.start_run("go").await.unwrap();
    assert_eq!(first.start_run("go").await.unwrap_err(), HostError::RunInProgress);
    assert_eq!(second.start_run("go").await.unwrap_err(), HostError::Full("run"));
    assert_eq!((first.state(), second.state()), (SessionState::Running, SessionState::Idle));
    first.stop(StopMode::Now).await.unwrap();
    run.report.await.unwrap();
    // The permit is released before the report arrives.
    second.start_run("go").await.unwrap();
}

#[tokio::test]
async fn closing_a_session_stops_its_run() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("hm")])).await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
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
    assert_eq!(host.counts(), HostCounts { sessions: 1, ..HostCounts::default() });
    host.shutdown().await;
}

#[tokio::test]
async fn a_shutdown_cancels_calls_after_its_grace_period() {
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
    assert_eq!(host.counts(), HostCounts { sessions: 1, ..HostCounts::default() });
}

#[tokio::test]
async fn a_run_that_a_shutdown_has_interrupted_goes_on_by_its_key() {
    let provider = Provider::calling(&[("hang", "{}")]).await;
    let journal = Arc::new(MemoryJournal::new());
    let begin = async || {
        let hang = tool(spec("hang"), |_| std::future::pending());
        let setup = setup(&provider, registry([hang]), |config| {
            config.host.on_shutdown = Some(OnShutdown::Interrupt);
            config.host.shutdown_grace = Duration::from_millis(20);
            let agent = config.agents.get_mut("default").unwrap();
            agent.limits.cancel_grace = Duration::from_millis(20);
        });
        start_on(setup, Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap()
    };
    let request = || RunRequest::from("go").with_idempotency_key("k");
    let host = begin().await;
    let session = host.open_session(named("one")).await.unwrap();
    let run = session.start_run(request()).await.unwrap();
    until("the tool runs", || host.counts().tools_running == 1).await;
    timeout(SOON, host.shutdown()).await.unwrap();
    let interrupted = run.report.await.unwrap();
    assert_eq!(interrupted.run_end, RunEnd::Interrupted);
    drop((session, host));

    let host = begin().await;
    let session = host.session(&SessionId::parse("one").unwrap());
    assert_eq!(session.runs().await.unwrap()[0].run_end, Some(RunEnd::Interrupted));
    let mut run = session.start_run(request()).await.unwrap();
    let mut text = String::new();
    while let Some(event) = run.next_event().await.unwrap() {
        if let RunEvent::Text(part) = event {
            text.push_str(&part);
        }
    }
    assert_eq!((&*text, run.run_id == interrupted.run_id), ("done", true));
    let report = run.report.await.unwrap();
    assert_eq!((report.run_end, provider.count()), (RunEnd::Answered, 2));
    assert_eq!(results(&report), results(&interrupted), "the outcome stays");
    assert!(report.stats.output_tokens >= interrupted.stats.output_tokens);
    assert_eq!(session.run(request()).await.unwrap().run_end, RunEnd::Answered);
    assert_eq!(session.verify().await.unwrap().breaches, []);
    assert_eq!(session.runs().await.unwrap().len(), 1);
    // The key of an earlier run finds its report.
    let other = || RunRequest::from("more").with_idempotency_key("l");
    assert_eq!(session.run(other()).await.unwrap().run_end, RunEnd::Answered);
    assert_eq!(session.run(request()).await.unwrap(), report);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_host_that_is_dropped_ends() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("hm")])).await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the stream is open", || provider.open() == 1).await;
    drop(host);
    assert_eq!(run.report.await.unwrap_err(), HostError::SessionClosed);
    until("the provider sees the client leave", || provider.open() == 0).await;
}

/// Kills a session's actor, and waits until the host has noticed.
pub(super) async fn kill_session_actor(host: &Host, session: &SessionHandle) {
    let dead = session.host_ref.shared.index.awake(session.id()).unwrap();
    dead.actor.kill();
    let shared = Arc::clone(&host.inner.host_ref.shared);
    let id = session.id().clone();
    until("the host has handled the death", move || {
        shared.index.awake(&id).is_none_or(|live| live.actor.get_id() != dead.actor.get_id())
    })
    .await;
}

#[tokio::test]
async fn a_session_that_dies_continues_from_its_records() {
    let provider = Provider::answering("fine").await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = host.open_session(named("one")).await.unwrap();
    session.run("go").await.unwrap();
    kill_session_actor(&host, &session).await;
    assert_eq!(host.counts().sessions, 1);
    let error = host.open_session(named("one")).await.unwrap_err();
    assert_eq!(error, HostError::SessionExists);
    let report = session.run("again").await.unwrap();
    assert_eq!((report.run_end, report.context_messages().len()), (RunEnd::Answered, 2));
}

#[tokio::test]
async fn a_session_that_dies_during_a_run_continues_the_run() {
    let provider = Provider::new(|n, _| match n {
        0 => Reply::Stall(vec![text("lost ")]),
        _ => Reply::Sse(answer_with("found")),
    })
    .await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = host.open_session(named("one")).await.unwrap();
    let run = session.start_run("go").await.unwrap();
    until("the stream is open", || provider.open() == 1).await;
    kill_session_actor(&host, &session).await;
    assert_eq!(run.report.await.unwrap_err(), HostError::SessionClosed);
    session.snapshot().await.expect("it is there again");
    nothing_left(&host).await;
    let snapshot = session.snapshot().await.unwrap();
    assert_eq!((snapshot.history.len(), snapshot.current_run, provider.count()), (2, None, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_run_that_was_accepted_during_a_shutdown_has_a_report() {
    for round in 0..20 {
        let provider = Provider::answering("fine").await;
        let host = host(&provider, ToolRegistry::new(), |_| ()).await;
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
        let sessions = host.counts().sessions;
        assert_eq!(host.counts(), HostCounts { sessions, ..HostCounts::default() });
    }
}
