//! Tests of calls of agents: results, cancellation, budgets, recovery.

use std::sync::atomic::AtomicUsize;

use futures::{FutureExt as _, StreamExt as _};

use super::engine::{Engine, entries};
use super::provider::{Reply, answer_with, calls_to, text};
use super::recovery::{ACCUMULATOR, STREAM, SUPERVISOR, kill};
use super::*;
use crate::journal::{Batch, JournalEntry, MemoryJournal};
use crate::telemetry::FeedItem;
use callsheet_tools::{
    AgentTool, Hook, HookAnswer, HookError, HookInput, HookRule, RegisteredHook,
};
use callsheet_values::config::{
    AgentConfig, AgentEvents, AgentToolConfig, ApprovalPolicy, ClientTool, OnShutdown, Share,
};
use callsheet_values::event::{Event, PublishedEvent};
use callsheet_values::record::{Record, StopMode};
use callsheet_values::types::{HookPoint, RunEnd, is_child_session};

/// Returns the agent that has sent a request.
pub(super) fn agent_of(request: &serde_json::Value) -> &str {
    request["messages"][0]["content"].as_str().unwrap()
}

/// Returns whether the last message of a request is a result.
pub(super) fn has_result(request: &serde_json::Value) -> bool {
    request["messages"].as_array().unwrap().last().unwrap()["role"] == "tool"
}

/// Starts a provider whose agents `default` and `worker` call the next agent, and answer with `done`. `helper`
/// gets this reply.
async fn chain(helper: impl Fn(&serde_json::Value) -> Reply + Send + Sync + 'static) -> Provider {
    Provider::new(move |_, request| match agent_of(request) {
        "helper" => helper(request),
        _ if has_result(request) => Reply::Sse(answer_with("done")),
        "default" => Reply::Sse(calls_to(&[("worker", r#"{"input": "work"}"#)])),
        _ => Reply::Sse(calls_to(&[("helper", r#"{"input": "help"}"#)])),
    })
    .await
}

pub(super) fn agent_tool(name: &str, change: impl FnOnce(&mut AgentToolConfig)) -> AgentTool {
    let config = AgentToolConfig::new(name).with(|config| config.max_depth = 3).with(change);
    AgentTool::with_config(name, "for a test", config)
}

/// Returns the agents `default`, `worker` and `helper`, each of which may call the next one and `note`.
pub(super) fn family(
    provider: &Provider,
    tools: impl IntoIterator<Item = Closure>,
    agents: impl IntoIterator<Item = AgentTool>,
    change: impl FnOnce(&mut Config),
) -> HostSetup {
    let mut registry = registry(tools);
    agents.into_iter().for_each(|agent| registry.register(agent).unwrap());
    for name in ["worker", "helper"] {
        if registry.tool(name).is_none() {
            registry.register(agent_tool(name, |_| ())).unwrap();
        }
    }
    if registry.tool("note").is_none() {
        registry.register(echo("note")).unwrap();
    }
    setup(provider, registry, |config| {
        let agent = |tools: &[&str]| {
            AgentConfig::new("test")
                .with(|agent| agent.tools = tools.iter().copied().map(ToolPattern::new).collect())
        };
        config.agents.insert("default".into(), agent(&["worker", "note*"]));
        config.agents.insert("worker".into(), agent(&["helper", "worker", "note*"]));
        config.agents.insert("helper".into(), agent(&["note*"]));
        for (name, agent) in &mut config.agents {
            agent.system.clone_from(name);
        }
        change(config);
    })
}

/// Returns all child sessions.
fn children(host: &Host) -> Vec<SessionHandle> {
    let query = SessionQuery::default().with(|query| query.children = true);
    let stored = stored(host.inner.host_ref.shared.journal.list(&query)).into_iter();
    stored.filter(|of| is_child_session(&of.id)).map(|of| host.session(&of.id)).collect()
}

pub(super) async fn restart(setup: impl Fn() -> HostSetup, journal: &Arc<MemoryJournal>) -> Host {
    start_on(setup(), Arc::clone(journal) as Arc<dyn Journal>).await.unwrap()
}

#[tokio::test]
async fn a_child_whose_run_is_refused_is_not_left_behind() {
    let provider = Provider::new(|_, request| match has_result(request) {
        true => Reply::Sse(answer_with("done")),
        false => Reply::Sse(calls_to(&[("worker", r#"{"input": ""}"#)])),
    })
    .await;
    let host = Host::start(family(&provider, [], [], |_| ())).await.unwrap();
    let session = session(&host).await;
    let report = session.run("go").await.unwrap();
    assert_eq!(results(&report).len(), 1);
    assert!(children(&host).is_empty());
    assert_eq!(host.counts().sessions, 1);
}

#[tokio::test]
async fn a_child_whose_run_is_refused_does_not_count_towards_max_children() {
    let provider = Provider::new(|_, request| match agent_of(request) {
        "worker" => Reply::Sse(answer_with("worked")),
        _ if has_result(request) => Reply::Sse(answer_with("done")),
        _ => Reply::Sse(calls_to(&[
            ("worker", r#"{"input": ""}"#),
            ("worker", r#"{"input": "work"}"#),
        ])),
    })
    .await;
    let worker = agent_tool("worker", |config| config.max_children = 1);
    let host = Host::start(family(&provider, [], [worker], |_| ())).await.unwrap();
    let session = session(&host).await;
    let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
    let calls: Vec<_> = report.calls.iter().map(|call| call.status.as_str()).collect();
    assert_eq!(calls, ["error", "success"], "{report:?}");
    assert_eq!(children(&host).len(), 1);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_call_returns_the_text_of_its_child() {
    let provider = chain(|_| Reply::Sse(answer_with("helped"))).await;
    let host = Host::start(family(&provider, [], [], |_| ())).await.unwrap();
    let session = session(&host).await;
    let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
    assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "done"));
    assert_eq!(results(&report)["worker"], ("success", "done"));
    let sent: Vec<_> = provider.requests().iter().map(|sent| agent_of(sent).to_owned()).collect();
    assert_eq!(sent, ["default", "worker", "helper", "worker", "default"]);
    let children = children(&host);
    assert_eq!(children.len(), 2);
    // The lists hide them.
    assert_eq!(host.sessions(SessionQuery::default()).await.unwrap().len(), 1);
    let child = &report.calls[0].metadata["child"];
    // Two requests of the worker and one of its helper.
    assert_eq!((&child["tokens"], &child["tool_calls"]), (&json!(45), &json!(1)));
    for child in &children {
        let first = child.records(Seq(0)).await.unwrap().remove(0).record;
        let Record::SessionOpened { agent, parent, .. } = first else { panic!("{first:?}") };
        let path: Vec<String> =
            parent.unwrap().agent_path.iter().map(ToString::to_string).collect();
        let expected: &[&str] = if agent == "worker" {
            &["default", "worker"]
        } else {
            &["default", "worker", "helper"]
        };
        assert_eq!(path, expected);
    }
    nothing_left(&host).await;
}

/// Returns the records of a session of one type.
async fn records(session: &SessionHandle, is_it: impl Fn(&Record) -> bool) -> Vec<Record> {
    let entries = session.records(Seq(0)).await.unwrap();
    entries.into_iter().map(|entry| entry.record).filter(is_it).collect()
}

#[tokio::test]
async fn a_child_that_fails_is_an_error_with_the_reason() {
    let provider = chain(|_| super::recovery::refused()).await;
    let host = Host::start(family(&provider, [], [], |_| ())).await.unwrap();
    let session = session(&host).await;
    let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Answered);
    let worker = children(&host).into_iter();
    let mut texts = Vec::new();
    for child in worker {
        for record in records(&child, |record| matches!(record, Record::CallEnded { .. })).await {
            let Record::CallEnded { outcome, .. } = record else { unreachable!() };
            texts.push(outcome.content.to_string());
        }
    }
    assert_eq!(texts.len(), 1);
    assert!(texts[0].starts_with("Error: the agent helper ended as failed: provider_error: "));
    assert!(texts[0].contains("no such key"), "{texts:?}");
    nothing_left(&host).await;
}

#[tokio::test]
async fn the_typed_answer_of_a_child_is_the_structured_value() {
    let provider = Provider::new(|_, request| match agent_of(request) {
        "helper" => Reply::Sse(answer_with(r#"{"n": 1}"#)),
        _ if has_result(request) => Reply::Sse(answer_with("done")),
        _ => Reply::Sse(calls_to(&[("helper", r#"{"input": "help"}"#)])),
    })
    .await;
    let setup = family(&provider, [], [], |config| {
        config.agents.get_mut("default").unwrap().tools = vec![ToolPattern::new("helper")];
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        config.agents.get_mut("helper").unwrap().output_schema = Some(schema.into());
    });
    let host = Host::start(setup).await.unwrap();
    let session = session(&host).await;
    let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
    assert_eq!(results(&report)["helper"], ("success", r#"{"n":1}"#));
    let ended = records(&session, |record| matches!(record, Record::CallEnded { .. })).await;
    let Record::CallEnded { outcome, .. } = &ended[0] else { unreachable!() };
    assert_eq!(outcome.full.as_ref().unwrap().structured, Some(json!({"n": 1})));
    nothing_left(&host).await;
}

/// Waits until the helper of a chain is asked.
async fn helper_is_asked(provider: &Provider) {
    until("the helper is asked", || {
        provider.requests().iter().any(|sent| agent_of(sent) == "helper")
    })
    .await;
}

/// Checks that all children have ended, and that no request follows.
async fn all_is_over(host: &Host, provider: &Provider, requests: usize) {
    nothing_left(host).await;
    sleep(Duration::from_millis(30)).await;
    assert_eq!((provider.count(), provider.open()), (requests, 0), "a request after the end");
}

/// Returns the types of the ends of all children's runs.
async fn ends(host: &Host) -> Vec<RunEnd> {
    let mut ends = Vec::new();
    for child in children(host) {
        for record in records(&child, |record| matches!(record, Record::RunEnded { .. })).await {
            let Record::RunEnded { end, .. } = record else { unreachable!() };
            ends.push(end);
        }
    }
    ends
}

#[tokio::test]
async fn a_stop_ends_all_descendants_before_the_run() {
    let provider = chain(|_| Reply::Stall(vec![text("so ")])).await;
    let host = Host::start(family(&provider, [], [], |_| ())).await.unwrap();
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    helper_is_asked(&provider).await;
    session.stop(StopMode::Now).await.unwrap();
    let mut open = None;
    while let Some(item) = timeout(SOON, run.events.next()).await.unwrap() {
        let FeedItem::Event(event) = item else { panic!("{item:?}") };
        if matches!(event.event, Event::RunEnded { .. }) {
            open = Some(host.counts().runs);
            break;
        }
    }
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Stopped);
    assert_eq!(open, Some(0), "a child goes on after the end of the run");
    let (status, text) = results(&report)["worker"];
    assert!(status == "cancelled" && text.contains("it may or may not have happened"), "{text}");
    assert_eq!(ends(&host).await, [RunEnd::Stopped, RunEnd::Stopped]);
    // The helper's response was cut off before its usage was known.
    assert_eq!(report.calls[0].metadata["child"]["tokens"], json!(15));
    all_is_over(&host, &provider, 3).await;
}

#[tokio::test]
async fn time_limits_end_all_descendants() {
    for limit in ["tool", "run"] {
        let provider = chain(|_| Reply::Stall(vec![text("so ")])).await;
        let host = Host::start(family(&provider, [], [], |config| {
            let time = Some(Duration::from_millis(300));
            match limit {
                "tool" => config.tools.entry("worker".into()).or_default().timeout = time,
                _ => config.agents.get_mut("default").unwrap().limits.run_timeout = time,
            }
        }))
        .await
        .unwrap();
        let session = session(&host).await;
        let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
        let (status, _) = results(&report)["worker"];
        if limit == "tool" {
            assert_eq!((report.run_end, status), (RunEnd::Answered, "timeout"));
            all_is_over(&host, &provider, 4).await;
        } else {
            // The time of the child is a share of that of the run, so that the helper ends first.
            assert!(ends(&host).await.contains(&RunEnd::TimedOut), "{status}");
            let sent = provider.count();
            all_is_over(&host, &provider, sent).await;
        }
    }
}

#[tokio::test]
async fn deleting_a_session_deletes_its_descendants() {
    for is_running in [true, false] {
        let provider = chain(move |_| match is_running {
            true => Reply::Stall(vec![text("so ")]),
            false => Reply::Sse(answer_with("helped")),
        })
        .await;
        let host = Host::start(family(&provider, [], [], |_| ())).await.unwrap();
        for asleep in [false, true] {
            let session = session(&host).await;
            let before = provider.count();
            let run = session.start_run("go").await.unwrap();
            if is_running {
                until("the helper is asked", || provider.count() == before + 3).await;
            } else {
                drop(run.events);
                timeout(SOON, run.report).await.unwrap().unwrap();
                if asleep {
                    rest(&host);
                    until("it sleeps", || {
                        session.hibernate();
                        host.inner.host_ref.shared.index.awake(session.id()).is_none()
                    })
                    .await;
                }
            }
            assert_eq!(host.counts().sessions, 3);
            let sent = provider.count();
            session.delete().await.unwrap();
            assert_eq!((host.counts().sessions, children(&host).len()), (0, 0));
            all_is_over(&host, &provider, sent).await;
        }
    }
}

#[tokio::test]
async fn a_session_is_deleted_after_its_children_also_if_their_deletion_is_in_progress() {
    let provider = chain(|_| Reply::Stall(vec![text("so ")])).await;
    let engine = Engine::new(|inner, batch| inner.append(batch));
    let journal = Arc::clone(&engine) as Arc<dyn Journal>;
    let host = start_on(family(&provider, [], [], |_| ()), journal).await.unwrap();
    let session = session(&host).await;
    drop(session.start_run("go").await.unwrap());
    helper_is_asked(&provider).await;
    let child = children(&host).remove(0);
    engine.hold_removal(Some(child.id().clone()));
    let deletion = spawn({
        let child = child.clone();
        async move { child.delete().await }
    });
    let is_closed = || {
        let entries = entries(&*engine, child.id());
        matches!(entries.last().unwrap().record, Record::SessionClosed)
    };
    until("the child is closed", is_closed).await;
    let (again, parent) = (child.clone(), session.clone());
    let mut again = spawn(async move { again.delete().await });
    let mut parent = spawn(async move { parent.delete().await });
    let first = async { futures::future::select(&mut again, &mut parent).await };
    assert!(timeout(Duration::from_millis(50), first).await.is_err(), "the child is there");
    assert!(engine.find(session.id()).await.unwrap().is_some());
    engine.hold_removal(None);
    timeout(SOON, deletion).await.unwrap().unwrap().unwrap();
    let again = timeout(SOON, again).await.unwrap().unwrap();
    assert!(matches!(again, Err(HostError::NoSuchSession(_))), "{again:?}");
    timeout(SOON, parent).await.unwrap().unwrap().unwrap();
    assert_eq!(engine.count().await.unwrap(), 0);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_deletion_that_a_crash_has_cut_off_is_finished_by_the_next_host() {
    let provider = chain(|_| Reply::Stall(vec![text("so ")])).await;
    let (journal, is_dead) = (Arc::new(MemoryJournal::new()), Arc::default());
    let engine = Engine::on(Arc::clone(&journal), |inner, batch| inner.append(batch));
    let engine = engine.dead_once(&is_dead);
    let setup = || family(&provider, [], [], |_| ());
    let first = start_on(setup(), engine as Arc<dyn Journal>).await.unwrap();
    let session = session(&first).await;
    let run = session.start_run("go").await.unwrap();
    helper_is_asked(&provider).await;
    is_dead.store(true, Ordering::SeqCst);
    assert!(matches!(session.delete().await, Err(HostError::Journal(_))));
    drop((run, session, first));
    assert_eq!(journal.count().await.unwrap(), 3);
    let host = restart(setup, &journal).await;
    until("all are deleted", || journal.count().now_or_never() == Some(Ok(0))).await;
    nothing_left(&host).await;
    assert_eq!(host.counts().sessions, 0);
}

#[tokio::test]
async fn after_a_crash_the_calls_find_their_children() {
    for manual in [false, true] {
        let gate = Arc::new(tokio::sync::Semaphore::new(2));
        let provider =
            chain(|_| Reply::Sse(answer_with("helped"))).await.gated_by(Arc::clone(&gate));
        let journal = Arc::new(MemoryJournal::new());
        let setup = || {
            family(&provider, [], [], |config| {
                // No room for another session.
                config.host.max_sessions = 3;
                if manual {
                    config.journal.resume = Resume::Manual;
                }
            })
        };
        let first = start_on(setup(), Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
        let session = session(&first).await;
        let id = session.id().clone();
        drop(session.start_run("go").await.unwrap());
        helper_is_asked(&provider).await;
        drop(session);
        crash(first).await;
        until("the request is dropped", || provider.open() == 0).await;
        gate.add_permits(100);
        let host = restart(setup, &journal).await;
        let session = host.session(&id);
        if manual {
            session.resume().await.unwrap();
        }
        let mut events = session.watch("0".parse().unwrap()).await.unwrap();
        let end = async {
            while let Some(FeedItem::Event(event)) = events.next().await {
                if let Event::RunEnded { end, .. } = event.event {
                    return end;
                }
            }
            panic!("no end");
        };
        assert_eq!(timeout(SOON, end).await.unwrap(), RunEnd::Answered);
        let sent: Vec<_> =
            provider.requests().iter().map(|sent| agent_of(sent).to_owned()).collect();
        // Only the request that was open is sent again.
        let expected = ["default", "worker", "helper", "helper", "worker", "default"];
        assert_eq!(sent, expected);
        assert_eq!(children(&host).len(), 2);
        nothing_left(&host).await;
    }
}

/// Stores entries of a session in a journal. They become older by this time.
fn store_aged(
    journal: &MemoryJournal,
    session: &SessionId,
    entries: impl IntoIterator<Item = JournalEntry>,
    age: Duration,
) {
    let age_ms = u64::try_from(age.as_millis()).unwrap();
    let aged = |entry: JournalEntry| JournalEntry { time: entry.time - age_ms, ..entry };
    let entries = entries.into_iter().map(|entry| Arc::new(aged(entry))).collect();
    journal.append(Batch::new(session.clone(), entries, Arc::default(), Box::new(|_| ())));
}

#[tokio::test]
async fn a_child_is_not_deleted_while_the_call_of_its_parent_waits_for_a_manual_resume() {
    let provider = chain(|_| Reply::Sse(answer_with("helped"))).await;
    let first = Host::start(family(&provider, [], [], |_| ())).await.unwrap();
    let session = session(&first).await;
    timeout(SOON, session.run("go")).await.unwrap().unwrap();
    // The crash comes before the outcome of the child is recorded.
    let before = Arc::clone(&first.inner.host_ref.shared.journal);
    let journal = Arc::new(MemoryJournal::new());
    let has_no_outcome = |entry: &JournalEntry| !matches!(entry.record, Record::CallEnded { .. });
    let own = entries(&*before, session.id()).into_iter().take_while(has_no_outcome);
    store_aged(&journal, session.id(), own, Duration::ZERO);
    for child in children(&first) {
        let entries = entries(&*before, child.id());
        store_aged(&journal, child.id(), entries, Duration::from_secs(3600));
    }
    let (id, sent) = (session.id().clone(), provider.count());
    drop(session);
    crash(first).await;
    let setup = || {
        family(&provider, [], [], |config| {
            config.journal.resume = Resume::Manual;
            config.journal.keep_idle = Some(Duration::from_secs(10));
            // The host looks for sessions to delete every second.
            config.host.idle_after = Some(Duration::from_millis(100));
        })
    };
    let host = restart(setup, &journal).await;
    // The run of the worker has ended, so that nothing needs its helper.
    until("the helper is deleted", || children(&host).len() == 1).await;
    assert_eq!(children(&host)[0].agent().await.unwrap(), "worker");
    let session = host.session(&id);
    session.resume().await.unwrap();
    until("the run has ended", || {
        entries(&*journal, &id).iter().any(|entry| matches!(entry.record, Record::RunEnded { .. }))
    })
    .await;
    let ended = records(&session, |record| matches!(record, Record::CallEnded { .. })).await;
    let Record::CallEnded { outcome, .. } = &ended[0] else { unreachable!() };
    assert_eq!(&*outcome.content, "done");
    assert_eq!(provider.count(), sent + 1, "the child has run again");
    nothing_left(&host).await;
    // Now nothing needs it.
    until("the worker is deleted", || {
        children(&host).iter().for_each(SessionHandle::hibernate);
        children(&host).is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_stop_before_a_crash_leaves_no_orphan() {
    let provider = chain(|_| Reply::Stall(vec![text("so ")])).await;
    let journal = Arc::new(MemoryJournal::new());
    let setup = || family(&provider, [], [], |_| ());
    let first = start_on(setup(), Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
    let session = session(&first).await;
    let id = session.id().clone();
    drop(session.start_run("go").await.unwrap());
    helper_is_asked(&provider).await;
    drop(session);
    crash(first).await;
    // The stop was stored, and its consequences were not.
    let last = journal.read(&id, Seq(0)).await.unwrap().last().unwrap().seq;
    let log = crate::journal::SessionLog::new(id.clone(), Arc::clone(&journal) as _, last, |_| ());
    log.append(
        vec![Record::StopAsked { mode: StopMode::Now, authored_by: None }],
        crate::journal::Urgency::Urgent,
        || (),
    );
    let host = restart(setup, &journal).await;
    let is_over = || host.counts().runs == 0 && host.counts().awake >= 3;
    until("all runs have ended", is_over).await;
    let session = host.session(&id);
    let ended = records(&session, |record| matches!(record, Record::CallEnded { .. })).await;
    let Record::CallEnded { outcome, .. } = &ended[0] else { unreachable!() };
    assert_eq!(outcome.status, callsheet_values::types::ToolStatus::Cancelled);
    assert!(outcome.child.is_some());
    assert_eq!(ends(&host).await, [RunEnd::Stopped, RunEnd::Stopped]);
    let sent = provider.count();
    all_is_over(&host, &provider, sent).await;
}

#[tokio::test]
async fn the_actors_of_a_parent_may_die_while_its_child_runs() {
    for which in [STREAM, ACCUMULATOR, SUPERVISOR] {
        let gate = Arc::new(tokio::sync::Semaphore::new(2));
        let provider =
            chain(|_| Reply::Sse(answer_with("helped"))).await.gated_by(Arc::clone(&gate));
        let host = Host::start(family(&provider, [], [], |_| ())).await.unwrap();
        let session = session(&host).await;
        let run = session.start_run("go").await.unwrap();
        helper_is_asked(&provider).await;
        kill(&session, which).await;
        gate.add_permits(100);
        let report = timeout(SOON, run.report).await.unwrap().unwrap();
        assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "done"));
        assert_eq!(results(&report)["worker"], ("success", "done"));
        assert_eq!(provider.count(), 5, "nothing is asked twice");
        nothing_left(&host).await;
    }
}

#[tokio::test]
async fn a_parent_that_is_given_up_leaves_no_orphan() {
    let provider = chain(|_| Reply::Stall(vec![text("so ")])).await;
    let host = Host::start(family(&provider, [], [], |_| ())).await.unwrap();
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    helper_is_asked(&provider).await;
    for _ in 0..3 {
        kill(&session, SUPERVISOR).await;
    }
    let actors = super::recovery::actors(&session).await;
    actors[SUPERVISOR].kill();
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Failed);
    until("the children have ended", || host.counts().runs == 0).await;
    assert_eq!(ends(&host).await, [RunEnd::Stopped, RunEnd::Stopped]);
    all_is_over(&host, &provider, 3).await;
}

#[tokio::test]
async fn a_child_gets_a_share_of_what_its_parent_has_left() {
    let provider = Provider::new(|_, request| match agent_of(request) {
        "worker" => Reply::Sse(answer_with("done")),
        _ if has_result(request) => Reply::Sse(answer_with("done")),
        _ => Reply::Sse(calls_to(&[
            ("worker", r#"{"input": "a"}"#),
            ("worker", r#"{"input": "b"}"#),
            ("worker", r#"{"input": "c"}"#),
        ])),
    })
    .await;
    let setup = family(&provider, [], [], |config| {
        let default = config.agents.get_mut("default").unwrap();
        default.execution = callsheet_values::types::Execution::Parallel { max: 2 };
        default.limits.max_tokens_per_run = Some(1015);
        default.limits.max_tool_calls_per_run = Some(23);
        default.limits.run_timeout = Some(Duration::from_secs(100));
    });
    let gate = Arc::new(tokio::sync::Semaphore::new(1));
    let provider = provider.gated_by(Arc::clone(&gate));
    let host = Host::start(setup).await.unwrap();
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("two children are asked", || provider.count() == 3).await;
    gate.add_permits(100);
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Answered);
    let mut leases = Vec::new();
    for child in children(&host) {
        for record in records(&child, |record| matches!(record, Record::RunStarted { .. })).await {
            let Record::RunStarted { overrides, input, .. } = record else { unreachable!() };
            let limits = &overrides.limits;
            assert!(limits.run_timeout.unwrap() <= Duration::from_secs(50));
            leases.push((
                input.text().into_owned(),
                limits.max_tokens_per_run.unwrap(),
                limits.max_tool_calls_per_run.unwrap(),
            ));
        }
    }
    leases.sort();
    // The first response has used 15 tokens and three calls. The second child gets its share of what the first
    // one was not given, and the third one of what is left when one has ended.
    assert_eq!(leases[..2], [("a".into(), 500, 10), ("b".into(), 250, 5)]);
    let (third, tokens, calls) = leases[2].clone();
    assert!(third == "c" && (250..500).contains(&tokens) && (5..10).contains(&calls), "{leases:?}");
    let intents = records(&session, |record| matches!(record, Record::CallIntended { .. })).await;
    let leased = intents.iter().map(|record| {
        let Record::CallIntended { lease, .. } = record else { unreachable!() };
        lease.unwrap().tokens.unwrap()
    });
    assert_eq!(leased.collect::<Vec<_>>(), [500, 250, tokens]);
    nothing_left(&host).await;
}

#[tokio::test]
async fn the_use_of_children_counts_for_the_budget_of_the_parent() {
    // Five requests of 15 tokens, of which three are those of descendants.
    let provider = chain(|_| Reply::Sse(answer_with("helped"))).await;
    let setup = family(
        &provider,
        [],
        [agent_tool("worker", |config| {
            config.share_of_budget = Share::of(1.0).unwrap();
        })],
        |config| {
            config.agents.get_mut("default").unwrap().limits.max_tokens_per_run = Some(60);
        },
    );
    let host = Host::start(setup).await.unwrap();
    let session = session(&host).await;
    let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
    let reached = records(&session, |record| matches!(record, Record::LimitReached { .. })).await;
    let Some(Record::LimitReached { limit, value, .. }) = reached.last() else {
        panic!("{report:?}")
    };
    assert_eq!((limit.as_str(), *value), ("max_tokens_per_run", 60));
    assert_eq!(report.run_end, RunEnd::Budget);
    nothing_left(&host).await;
}

#[tokio::test]
async fn nothing_left_is_an_error_that_names_the_key() {
    let provider = chain(|_| Reply::Sse(answer_with("helped"))).await;
    for key in ["max_tokens_per_run", "max_tool_calls_per_run"] {
        let host = Host::start(family(&provider, [], [], |config| {
            let limits = &mut config.agents.get_mut("default").unwrap().limits;
            match key {
                "max_tokens_per_run" => limits.max_tokens_per_run = Some(16),
                _ => limits.max_tool_calls_per_run = Some(2),
            }
        }))
        .await
        .unwrap();
        let session = session(&host).await;
        let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
        let (status, text) = results(&report)["worker"];
        assert!(status == "error" && text.contains(&format!("not run: {key}: ")), "{text}");
        assert_eq!(children(&host).len(), 0);
        nothing_left(&host).await;
    }
}

#[tokio::test]
async fn depth_and_number_of_children_are_limited_for_the_whole_tree() {
    // Every agent calls two workers, for ever.
    let provider = || async {
        Provider::new(|_, request| {
            if has_result(request) {
                return Reply::Sse(answer_with("done"));
            }
            Reply::Sse(calls_to(&[
                ("worker", r#"{"input": "a"}"#),
                ("worker", r#"{"input": "b"}"#),
            ]))
        })
        .await
    };
    for (max_depth, max_children, expected) in
        [(1, 8, 2), (2, 8, 6), (3, 8, 8), (3, 5, 5), (9, 1, 1)]
    {
        let provider = provider().await;
        let worker = agent_tool("worker", |config| {
            (config.max_depth, config.max_children) = (max_depth, max_children);
        });
        let setup = family(&provider, [], [worker], |config| {
            config.agents.get_mut("default").unwrap().execution =
                callsheet_values::types::Execution::Parallel { max: 2 };
        });
        let host = Host::start(setup).await.unwrap();
        let session = session(&host).await;
        for run in 1..=2 {
            let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
            assert_eq!(report.run_end, RunEnd::Answered);
            assert_eq!(children(&host).len(), expected * run, "{max_depth} {max_children}");
        }
        let refusals = async {
            let mut keys = std::collections::BTreeSet::new();
            for session in children(&host).iter().chain([&session]) {
                for record in records(session, |r| matches!(r, Record::CallEnded { .. })).await {
                    let Record::CallEnded { outcome, .. } = record else { unreachable!() };
                    if outcome.kind.is_some() {
                        keys.insert(outcome.content.split(": ").nth(2).unwrap().to_owned());
                    }
                }
            }
            keys
        };
        let refusals = refusals.await;
        let expected: &[&str] = match (max_depth, max_children) {
            (1 | 2, _) => &["max_depth"],
            _ => &["max_children"],
        };
        assert!(refusals.iter().any(|key| expected.contains(&&**key)), "{refusals:?}");
        nothing_left(&host).await;
        assert!(host.inner.host_ref.shared.agent_trees.is_empty());
    }
}

#[tokio::test]
async fn a_fork_of_a_child_has_its_depth() {
    let provider = chain(|_| Reply::Sse(answer_with("helped"))).await;
    let setup = family(
        &provider,
        [],
        [
            agent_tool("worker", |config| config.max_depth = 2),
            agent_tool("helper", |config| config.max_depth = 2),
        ],
        |config| {
            config.agents.get_mut("helper").unwrap().tools.push(ToolPattern::new("worker"));
        },
    );
    let host = Host::start(setup).await.unwrap();
    let session = session(&host).await;
    timeout(SOON, session.run("go")).await.unwrap().unwrap();
    for child in children(&host) {
        if child.agent().await.unwrap() != "worker" {
            continue;
        }
        let fork = host.fork(&child, Seq(2), Some("fork".into())).await.unwrap();
        // At depth 1 it may call a helper, at depth 2.
        let report = timeout(SOON, fork.run("go on")).await.unwrap().unwrap();
        assert_eq!(results(&report)["helper"], ("success", "helped"));
        // It is a session of its own: it is listed, and is not deleted with the parent.
        assert_eq!(host.sessions(SessionQuery::default()).await.unwrap().len(), 2);
    }
    let mut is_refused = false;
    for child in children(&host) {
        if child.agent().await.unwrap() == "helper" && !is_refused {
            is_refused = true;
            let fork = host.fork(&child, Seq(2), Some("deep".into())).await.unwrap();
            let record = fork.records(Seq(0)).await.unwrap().remove(0).record;
            let Record::SessionOpened { parent, .. } = record else { unreachable!() };
            assert_eq!(parent.unwrap().depth(), 2);
        }
    }
    session.delete().await.unwrap();
    let left = host.sessions(SessionQuery::default()).await.unwrap();
    assert_eq!(left.iter().map(|of| of.id.as_str()).collect::<Vec<_>>(), ["deep", "fork"]);
    nothing_left(&host).await;
}

#[tokio::test]
async fn counts_of_children_survive_a_crash() {
    let gate = Arc::new(tokio::sync::Semaphore::new(2));
    let provider = Provider::new(|_, request| match agent_of(request) {
        "worker" => Reply::Sse(answer_with("done")),
        _ if has_result(request) && request["messages"].as_array().unwrap().len() > 5 => {
            Reply::Sse(answer_with("done"))
        }
        _ if has_result(request) => Reply::Sse(calls_to(&[("worker", r#"{"input": "b"}"#)])),
        _ => Reply::Sse(calls_to(&[("worker", r#"{"input": "a"}"#)])),
    })
    .await
    .gated_by(Arc::clone(&gate));
    let journal = Arc::new(MemoryJournal::new());
    let setup =
        || family(&provider, [], [agent_tool("worker", |config| config.max_children = 1)], |_| ());
    let first = start_on(setup(), Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
    let session = session(&first).await;
    let id = session.id().clone();
    drop(session.start_run("go").await.unwrap());
    until("the second turn is asked for", || provider.count() == 3).await;
    drop(session);
    crash(first).await;
    until("the request is dropped", || provider.open() == 0).await;
    let host = restart(setup, &journal).await;
    gate.add_permits(100);
    until("the run has ended", || host.counts().runs == 0 && provider.count() >= 5).await;
    assert_eq!(children(&host).len(), 1);
    let ended =
        records(&host.session(&id), |record| matches!(record, Record::CallEnded { .. })).await;
    let Record::CallEnded { outcome, .. } = &ended[1] else { unreachable!() };
    assert!(outcome.content.contains("not run: max_children: "), "{}", outcome.content);
    nothing_left(&host).await;
}

/// Waits for the next event of a child that fits.
async fn child_event(
    events: &mut (impl futures::Stream<Item = FeedItem> + Unpin),
    is_it: impl Fn(&Event) -> bool,
) -> Arc<PublishedEvent> {
    let found = async {
        while let Some(item) = events.next().await {
            let FeedItem::Event(published) = item else { panic!("{item:?}") };
            if matches!(&published.event, Event::OfChild { event, .. } if is_it(&event.event)) {
                return published;
            }
        }
        panic!("the events ended");
    };
    timeout(SOON, found).await.expect("the event of a child")
}

/// Starts a host whose helper calls a tool that needs approval.
async fn asking(events: AgentEvents) -> (Provider, Host) {
    let provider = chain(|request| match has_result(request) {
        true => Reply::Sse(answer_with("helped")),
        false => Reply::Sse(calls_to(&[("note", r#"{"n": 1}"#)])),
    })
    .await;
    let note = tool(
        ToolSpec { effect: Default::default(), ..spec("note") }.approval(ApprovalPolicy::BEFORE),
        |_| async { Ok("noted".into()) },
    );
    let with = |name| agent_tool(name, |config| config.agent_events = events);
    let setup = family(&provider, [note], [with("worker"), with("helper")], |_| ());
    let host = Host::start(setup).await.unwrap();
    (provider, host)
}

/// The time limit of every call and run that waits for a person below it.
const LIMIT: Duration = Duration::from_millis(1200);

/// Returns the setup of a chain down to a helper whose tool `note` needs approval. All calls of agents and all runs
/// have a time limit.
fn limited(provider: &Provider, change: impl FnOnce(&mut Config)) -> HostSetup {
    let note = tool(
        ToolSpec { effect: Default::default(), ..spec("note") }.approval(ApprovalPolicy::BEFORE),
        |_| async { Ok("noted".into()) },
    );
    let whole = |name| agent_tool(name, |config| config.share_of_budget = Share::of(1.0).unwrap());
    family(provider, [note], [whole("worker"), whole("helper")], |config| {
        for name in ["worker", "helper"] {
            config.tools.entry(name.into()).or_default().timeout = Some(LIMIT);
        }
        for agent in config.agents.values_mut() {
            agent.limits.run_timeout = Some(LIMIT);
        }
        change(config);
    })
}

/// Starts the provider of a chain of agents down to `last`, which calls `note` and then answers.
async fn noting(last: &'static str) -> Provider {
    Provider::new(move |_, request| match (agent_of(request), has_result(request)) {
        (_, true) => Reply::Sse(answer_with("done")),
        (agent, _) if agent == last => Reply::Sse(calls_to(&[("note", r#"{"n": 1}"#)])),
        ("default", _) => Reply::Sse(calls_to(&[("worker", r#"{"input": "work"}"#)])),
        _ => Reply::Sse(calls_to(&[("helper", r#"{"input": "help"}"#)])),
    })
    .await
}

/// Approves what a descendant has asked.
async fn approve(host: &Host, asked: &PublishedEvent) {
    let Event::OfChild { event, .. } = &asked.event else { panic!("{asked:?}") };
    let Event::ApprovalAsked { request } = &event.event else { panic!("{asked:?}") };
    let decision = callsheet_machines::turn::ApprovalDecision {
        phase: None,
        verdict: callsheet_values::types::ApprovalVerdict::Approved,
        message: None,
        arguments_sha256: request.arguments_sha256.clone(),
        content: None,
        author: None,
    };
    host.session(&event.session).decide(request.call.key, decision).await.unwrap();
}

/// Waits for longer than any time limit.
async fn outlast_limits() {
    sleep(LIMIT + LIMIT / 4).await;
}

#[tokio::test]
async fn the_clocks_of_all_ancestors_stand_still_while_a_child_waits_for_a_person() {
    for (last, requests) in [("worker", 4), ("helper", 6)] {
        let provider = noting(last).await;
        let host = Host::start(limited(&provider, |_| ())).await.unwrap();
        let session = session(&host).await;
        let mut run = session.start_run("go").await.unwrap();
        let asked = child_event(&mut run.events, is_asked).await;
        outlast_limits().await;
        approve(&host, &asked).await;
        let report = timeout(SOON, run.report).await.unwrap().unwrap();
        assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "done"));
        assert_eq!(results(&report)["worker"], ("success", "done"));
        assert!(ends(&host).await.iter().all(|end| *end == RunEnd::Answered));
        // The time of the wait is the time of people in every run.
        let entries = session.records(Seq(0)).await.unwrap();
        let times = entries.iter().find_map(|entry| {
            let Record::TurnCommitted { summary, .. } = &entry.record else { return None };
            Some(summary.times)
        });
        let times = times.unwrap();
        assert!(times.people >= LIMIT && times.tools < LIMIT, "{times:?}");
        all_is_over(&host, &provider, requests).await;
    }
}

#[tokio::test]
async fn the_clocks_run_again_when_the_child_goes_on() {
    for limit in ["tool", "run"] {
        let provider = Provider::new(|_, request| match (agent_of(request), has_result(request)) {
            ("worker", true) => Reply::Stall(vec![text("so ")]),
            ("worker", false) => Reply::Sse(calls_to(&[("note", r#"{"n": 1}"#)])),
            (_, true) => Reply::Sse(answer_with("done")),
            _ => Reply::Sse(calls_to(&[("worker", r#"{"input": "work"}"#)])),
        })
        .await;
        let setup = limited(&provider, |config| {
            config.agents.get_mut("worker").unwrap().limits.run_timeout = None;
            match limit {
                "tool" => config.agents.get_mut("default").unwrap().limits.run_timeout = None,
                _ => config.tools.get_mut("worker").unwrap().timeout = None,
            }
        });
        let host = Host::start(setup).await.unwrap();
        let session = session(&host).await;
        let mut run = session.start_run("go").await.unwrap();
        let asked = child_event(&mut run.events, is_asked).await;
        outlast_limits().await;
        approve(&host, &asked).await;
        let report = timeout(SOON, run.report).await.unwrap().unwrap();
        if limit == "tool" {
            assert_eq!(
                (report.run_end, results(&report)["worker"].0),
                (RunEnd::Answered, "timeout")
            );
            all_is_over(&host, &provider, 4).await;
        } else {
            // The child's time is the whole of what the run had left, so that either may end first.
            let is_over = report.run_end == RunEnd::TimedOut
                || results(&report)["worker"].1.contains("timed_out");
            assert!(is_over, "{report:?}");
        }
    }
}

#[tokio::test]
async fn the_time_of_a_run_goes_on_while_another_child_works() {
    let provider = Provider::new(|_, request| match (agent_of(request), has_result(request)) {
        (_, true) => Reply::Sse(answer_with("done")),
        ("worker", false) => Reply::Sse(calls_to(&[("note", r#"{"n": 1}"#)])),
        ("helper", false) => Reply::Stall(vec![text("so ")]),
        _ => Reply::Sse(calls_to(&[
            ("worker", r#"{"input": "work"}"#),
            ("helper", r#"{"input": "help"}"#),
        ])),
    })
    .await;
    let setup = limited(&provider, |config| {
        config.tools.values_mut().for_each(|tool| tool.timeout = None);
        for name in ["worker", "helper"] {
            config.agents.get_mut(name).unwrap().limits.run_timeout = None;
        }
        let agent = config.agents.get_mut("default").unwrap();
        agent.tools.push(ToolPattern::new("helper"));
        agent.execution = callsheet_values::types::Execution::Parallel { max: 2 };
    });
    let host = Host::start(setup).await.unwrap();
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    child_event(&mut run.events, is_asked).await;
    let helper_timed_out = async {
        while !ends(&host).await.contains(&RunEnd::TimedOut) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    // The helper's time is the whole of what the run had left, so that either may end first.
    let ended = tokio::select! {
        ended = timeout(SOON, &mut run.report) => Some(ended.unwrap().unwrap()),
        () = helper_timed_out => None,
    };
    if let Some(report) = ended {
        assert_eq!(report.run_end, RunEnd::TimedOut, "{report:?}");
        assert_eq!(results(&report)["worker"].0, "cancelled");
    } else {
        // The run does not time out any more: its clock stands still while the worker waits for a person.
        session.stop(StopMode::Now).await.unwrap();
        timeout(SOON, run.report).await.unwrap().unwrap();
    }
    let sent = provider.count();
    all_is_over(&host, &provider, sent).await;
}

#[tokio::test]
async fn a_stop_ends_a_parent_whose_child_waits_for_a_person() {
    for is_shutdown in [false, true] {
        let provider = noting("helper").await;
        let host = Host::start(limited(&provider, |_| ())).await.unwrap();
        let session = session(&host).await;
        let mut run = session.start_run("go").await.unwrap();
        child_event(&mut run.events, is_asked).await;
        if is_shutdown {
            timeout(SOON, host.shutdown()).await.unwrap();
        } else {
            session.stop(StopMode::Now).await.unwrap();
        }
        let report = timeout(SOON, run.report).await.unwrap().unwrap();
        if is_shutdown {
            assert_eq!(report.run_end, RunEnd::Interrupted);
            continue;
        }
        assert_eq!((report.run_end, results(&report)["worker"].0), (RunEnd::Stopped, "cancelled"));
        assert_eq!(ends(&host).await, [RunEnd::Stopped, RunEnd::Stopped]);
        all_is_over(&host, &provider, 3).await;
    }
}

#[tokio::test]
async fn a_shutdown_leaves_a_parent_and_its_child_to_the_next_host() {
    let provider = noting("helper").await;
    let journal = Arc::new(MemoryJournal::new());
    let setup = || {
        limited(&provider, |config| {
            config.host.on_shutdown = Some(OnShutdown::Suspend);
            // Nobody has to wait for it.
            config.host.shutdown_grace = Duration::from_secs(3_600);
        })
    };
    let first = start_on(setup(), Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
    let session = session(&first).await;
    let id = session.id().clone();
    let mut run = session.start_run("go").await.unwrap();
    let asked = child_event(&mut run.events, is_asked).await;
    timeout(SOON, first.shutdown()).await.unwrap();
    assert_eq!(run.report.await.unwrap_err(), HostError::ShuttingDown);
    drop((session, first));
    let host = restart(setup, &journal).await;
    assert!(ends(&host).await.is_empty());
    until("the sessions are read", || host.shared().approval_inbox.session_count() > 0).await;
    let find = |agent: &str| {
        let query = ApprovalQuery { agent: Some(agent.to_owned()), ..ApprovalQuery::default() };
        host.open_approvals(query, |_| true)
    };
    assert_eq!(find("clerk").await.unwrap(), []);
    let open = find("worker").await.unwrap();
    let path: Vec<_> = open.iter().flat_map(|open| &open.agent_path).map(|name| &**name).collect();
    assert_eq!((open.len(), path), (1, vec!["default", "worker", "helper"]));
    assert_eq!((&open[0].root_session, open[0].session == id), (&id, false));
    approve(&host, &asked).await;
    until("the run has ended", || host.counts().runs == 0).await;
    assert_eq!(ends(&host).await, [RunEnd::Answered, RunEnd::Answered]);
    all_is_over(&host, &provider, 6).await;
}

#[tokio::test]
async fn clocks_stand_still_after_a_crash_while_a_child_waits_for_a_person() {
    let provider = noting("helper").await;
    let journal = Arc::new(MemoryJournal::new());
    let setup = || limited(&provider, |_| ());
    let first = start_on(setup(), Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
    let session = session(&first).await;
    let id = session.id().clone();
    let mut run = session.start_run("go").await.unwrap();
    let asked = child_event(&mut run.events, is_asked).await;
    drop((session, run));
    crash(first).await;
    let host = restart(setup, &journal).await;
    outlast_limits().await;
    approve(&host, &asked).await;
    until("the run has ended", || host.counts().runs == 0).await;
    assert_eq!(ends(&host).await, [RunEnd::Answered, RunEnd::Answered]);
    let session = host.session(&id);
    let ended = records(&session, |record| matches!(record, Record::RunEnded { .. })).await;
    assert!(matches!(ended[..], [Record::RunEnded { end: RunEnd::Answered, .. }]), "{ended:?}");
    all_is_over(&host, &provider, 6).await;
}

#[tokio::test]
async fn the_actors_of_a_parent_may_die_while_its_child_waits_for_a_person() {
    for which in [STREAM, ACCUMULATOR, SUPERVISOR] {
        let provider = noting("helper").await;
        let host = Host::start(limited(&provider, |_| ())).await.unwrap();
        let session = session(&host).await;
        let mut run = session.start_run("go").await.unwrap();
        let asked = child_event(&mut run.events, is_asked).await;
        kill(&session, which).await;
        outlast_limits().await;
        approve(&host, &asked).await;
        let report = timeout(SOON, run.report).await.unwrap().unwrap();
        assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "done"));
        assert_eq!(results(&report)["worker"], ("success", "done"));
        all_is_over(&host, &provider, 6).await;
    }
}

fn is_asked(event: &Event) -> bool {
    matches!(event, Event::ApprovalAsked { .. })
}

#[tokio::test]
async fn approvals_of_descendants_appear_in_the_roots_stream_and_again_on_connecting() {
    for events in [AgentEvents::None, AgentEvents::Tools, AgentEvents::All] {
        let (_provider, host) = asking(events).await;
        let session = session(&host).await;
        let mut run = session.start_run("go").await.unwrap();
        let asked = child_event(&mut run.events, is_asked).await;
        let public: Vec<_> = asked.public().collect();
        assert_eq!((public.len(), public[0].kind), (1, "tool_approval"));
        let json: serde_json::Value = serde_json::from_str(&public[0].json).unwrap();
        assert_eq!(json["agent_path"], json!(["default", "worker", "helper"]));
        assert_eq!(json["parent_tool_id"], "t1a1c0");
        assert!(asked.id.is_none());
        // A watcher that connects now receives it, too.
        let mut later = session.watch("0".parse().unwrap()).await.unwrap();
        let again = child_event(&mut later, is_asked).await;
        let id: SessionId = serde_json::from_value(json["session_id"].clone()).unwrap();
        let Event::OfChild { event, .. } = &again.event else { unreachable!() };
        assert_eq!(event.session, id);
        // It is decided at the child's session, whose parent is named.
        assert_ne!(json["parent_session_id"], json!(session.id()));
        approve(&host, &again).await;
        let report = timeout(SOON, run.report).await.unwrap().unwrap();
        assert_eq!(report.run_end, RunEnd::Answered);
        // It is not sent again when it is decided.
        let mut after = session.watch("0".parse().unwrap()).await.unwrap();
        while let Some(Some(FeedItem::Event(published))) = after.next().now_or_never() {
            assert!(!matches!(published.event, Event::OfChild { .. }));
        }
        nothing_left(&host).await;
    }
}

#[tokio::test]
async fn approvals_of_children_are_rejected_where_nothing_can_answer() {
    let (provider, host) = asking(AgentEvents::Tools).await;
    let session = session(&host).await;
    let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Answered);
    let results = provider.requests().iter().any(|sent| {
        let last = sent["messages"].as_array().unwrap().last().unwrap();
        last["content"].as_str().is_some_and(|text| text.contains("nobody can be asked"))
    });
    assert!(results, "the helper reads that its call was rejected");
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_reader_of_the_run_answers_the_approvals_of_its_children() {
    let (_provider, host) = asking(AgentEvents::None).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    let mut asked = 0;
    while let Some(event) = timeout(SOON, run.next_event()).await.unwrap().unwrap() {
        if let RunEvent::ApprovalRequested(question) = event {
            asked += 1;
            question.approve().await.unwrap();
        }
    }
    assert_eq!(asked, 1);
    assert_eq!(run.report.await.unwrap().run_end, RunEnd::Answered);
    nothing_left(&host).await;
}

#[tokio::test]
async fn the_stream_has_the_events_that_agent_events_names() {
    for events in [AgentEvents::None, AgentEvents::Tools, AgentEvents::All] {
        let provider = chain(|request| match has_result(request) {
            true => Reply::Sse(answer_with("helped")),
            false => Reply::Sse(calls_to(&[("note", r#"{"n": 1}"#)])),
        })
        .await;
        let with = |name| agent_tool(name, |config| config.agent_events = events);
        let setup = family(&provider, [], [with("worker"), with("helper")], |_| ());
        let host = Host::start(setup).await.unwrap();
        let session = session(&host).await;
        let mut run = session.start_run("go").await.unwrap();
        let mut kinds = std::collections::BTreeSet::new();
        while let Some(FeedItem::Event(published)) = timeout(SOON, run.events.next()).await.unwrap()
        {
            if matches!(published.event, Event::OfChild { .. }) {
                kinds.extend(published.public().map(|public| public.kind));
                assert!(published.public().all(|public| {
                    serde_json::from_str::<serde_json::Value>(&public.json).unwrap()["agent_path"]
                        [0]
                        == "default"
                }));
            }
            if matches!(published.event, Event::RunEnded { .. }) {
                break;
            }
        }
        let has = |kind| kinds.contains(kind);
        let (tools, texts) = (has("tool_result") && has("tool_use"), has("content_delta"));
        match events {
            AgentEvents::None => assert!(kinds.is_empty(), "{kinds:?}"),
            AgentEvents::Tools => assert!(tools && !texts && !has("stream_end"), "{kinds:?}"),
            AgentEvents::All => assert!(tools && texts && has("stream_end"), "{kinds:?}"),
        }
        nothing_left(&host).await;
    }
}

#[tokio::test]
async fn waiting_parents_do_not_block_their_children() {
    let provider = chain(|_| Reply::Sse(answer_with("helped"))).await;
    let setup = family(&provider, [], [], |config| {
        config.host.max_concurrent_runs = 4;
        config.models.get_mut("test").unwrap().max_concurrent_requests =
            std::num::NonZeroU32::new(2);
    });
    let host = Host::start(setup).await.unwrap();
    let runs = (0..200).map(|_| {
        let host = host.clone();
        spawn(async move {
            let session = session(&host).await;
            loop {
                match session.run("go").await {
                    Ok(report) => return report.run_end,
                    Err(HostError::Full("run")) => sleep(Duration::from_millis(50)).await,
                    Err(error) => panic!("{error}"),
                }
            }
        })
    });
    let ends = timeout(3 * SOON, futures::future::join_all(runs)).await;
    assert!(
        ends.is_ok(),
        "{:?} {} requests, {} open",
        host.counts(),
        provider.count(),
        provider.open()
    );
    let ends = ends.unwrap();
    assert!(ends.into_iter().all(|end| end.unwrap() == RunEnd::Answered));
    assert_eq!((host.counts().sessions, provider.count()), (600, 1000));
    nothing_left(&host).await;
}

#[tokio::test]
async fn tools_of_the_client_are_not_offered_to_children() {
    let provider = Provider::new(|_, request| match (agent_of(request), has_result(request)) {
        (_, true) => Reply::Sse(answer_with("done")),
        ("default", _) => Reply::Sse(calls_to(&[("worker", r#"{"input": "work"}"#)])),
        _ => Reply::Sse(calls_to(&[("open_file", "{}")])),
    })
    .await;
    let host = Host::start(family(&provider, [], [], |_| ())).await.unwrap();
    let tool = |name| ClientTool::new(name, "Opens a file.", json!({"type": "object"}));
    let open = OpenSession::default().with_client_tools([tool("open_file")]);
    let session = host.open_session(open).await.unwrap();
    let request = RunRequest::from("go").with_client_tools([tool("open_page")]);
    let report = timeout(SOON, session.run(request)).await.unwrap().unwrap();
    assert_eq!(results(&report)["worker"], ("success", "done"));
    for sent in provider.requests() {
        let tools = sent["tools"].as_array().unwrap();
        let names: Vec<_> = tools.iter().map(|tool| &tool["function"]["name"]).collect();
        let is_offered = |name: &str| names.contains(&&json!(name));
        let is_root = agent_of(&sent) == "default";
        assert_eq!(is_offered("open_file") && is_offered("open_page"), is_root, "{names:?}");
    }
    // The call of the child is one of a tool that it does not have, and does not wait.
    let child = children(&host).remove(0);
    let ended = records(&child, |record| matches!(record, Record::CallEnded { .. })).await;
    let Record::CallEnded { outcome, .. } = &ended[0] else { unreachable!() };
    assert!(outcome.content.contains("The tools are: "), "{}", outcome.content);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_call_of_the_client_waits_beside_a_child_over_a_crash() {
    for is_stopped in [false, true] {
        let gate = Arc::new(tokio::sync::Semaphore::new(1));
        let provider = Provider::new(|_, request| match agent_of(request) {
            "default" if has_result(request) => Reply::Sse(answer_with("done")),
            "default" => {
                Reply::Sse(calls_to(&[("open_file", "{}"), ("worker", r#"{"input": "work"}"#)]))
            }
            _ => Reply::Sse(answer_with("worked")),
        })
        .await
        .gated_by(Arc::clone(&gate));
        let journal = Arc::new(MemoryJournal::new());
        let setup = || {
            family(&provider, [], [], |config| {
                config.agents.get_mut("default").unwrap().execution =
                    callsheet_values::types::Execution::Parallel { max: 2 };
            })
        };
        let first = start_on(setup(), Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
        let open_file = ClientTool::new("open_file", "", json!({"type": "object"}));
        let open = OpenSession::default().with_client_tools([open_file]);
        let session = first.open_session(open).await.unwrap();
        let id = session.id().clone();
        drop(session.start_run("go").await.unwrap());
        until("the child is asked", || provider.count() == 2).await;
        assert_eq!(session.client_calls().await.unwrap().len(), 1);
        drop(session);
        crash(first).await;
        until("the request is dropped", || provider.open() == 0).await;
        let host = restart(setup, &journal).await;
        let session = host.session(&id);
        until("the child is asked again", || provider.count() == 3).await;
        let call = session.client_calls().await.unwrap().remove(0);
        if is_stopped {
            session.stop(StopMode::Now).await.unwrap();
        } else {
            call.answer("opened").await.unwrap();
            gate.add_permits(100);
        }
        until("the run has ended", || host.counts().runs == 0).await;
        let ended = records(&session, |record| matches!(record, Record::CallEnded { .. })).await;
        let mut outcomes: Vec<_> = ended
            .iter()
            .map(|record| {
                let Record::CallEnded { call, outcome, .. } = record else { unreachable!() };
                (&*call.name, outcome.status.as_str(), &*outcome.content)
            })
            .collect();
        outcomes.sort_unstable();
        if is_stopped {
            let names: Vec<_> = outcomes.iter().map(|(name, status, _)| (*name, *status)).collect();
            assert_eq!(names, [("open_file", "cancelled"), ("worker", "cancelled")]);
            assert_eq!(ends(&host).await, [RunEnd::Stopped]);
            let late = session.answer_call("t1a1c0", "opened").await.unwrap_err();
            assert_eq!(late, crate::runtime::ClientResultError::CallEnded.into());
        } else {
            let expected = [("open_file", "success", "opened"), ("worker", "success", "worked")];
            assert_eq!(outcomes, expected);
            assert_eq!(ends(&host).await, [RunEnd::Answered]);
        }
        let sent = provider.count();
        all_is_over(&host, &provider, sent).await;
    }
}

/// A hook that refuses calls of `note`, and keeps the paths of the agents.
#[derive(Clone, Default)]
struct Guard(Arc<parking_lot::Mutex<Vec<String>>>);

#[async_trait]
impl Hook for Guard {
    async fn answer(&self, input: &HookInput) -> Result<HookAnswer, HookError> {
        let tool = input.tool_name.clone().unwrap_or_default();
        self.0.lock().push(format!("{}: {tool}", input.agent_path.join("/")));
        Ok(if &*tool == "note" { HookAnswer::refuse("no notes") } else { HookAnswer::allow() })
    }
}

#[tokio::test]
async fn hooks_hold_at_every_depth() {
    let provider = chain(|request| match has_result(request) {
        true => Reply::Sse(answer_with("helped")),
        false => Reply::Sse(calls_to(&[("note", r#"{"n": 1}"#)])),
    })
    .await;
    let ran = Arc::new(AtomicUsize::new(0));
    let note = tool(spec("note"), {
        let ran = Arc::clone(&ran);
        move |_| {
            ran.fetch_add(1, Ordering::SeqCst);
            async { Ok("noted".into()) }
        }
    });
    let guard = Guard::default();
    let mut setup = family(&provider, [note], [], |_| ());
    let rule = HookRule::new("guard", HookPoint::BeforeCall);
    setup.tools.add_hook(RegisteredHook { rule, hook: Arc::new(guard.clone()) });
    let host = Host::start(setup).await.unwrap();
    let session = session(&host).await;
    let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
    assert_eq!((report.run_end, ran.load(Ordering::SeqCst)), (RunEnd::Answered, 0));
    let expected = ["default: worker", "default/worker: helper", "default/worker/helper: note"];
    assert_eq!(*guard.0.lock(), expected);
    nothing_left(&host).await;
}

#[tokio::test]
async fn agents_as_tools_are_checked_at_the_start() {
    let provider = Provider::answering("done").await;
    let error = |agent: AgentTool, change: fn(&mut Config)| {
        let setup = family(&provider, [], [agent], change);
        async { Host::start(setup).await.unwrap_err().to_string() }
    };
    let unknown = AgentTool::new("worker", "for a test", "wroker");
    let found = error(unknown, |_| ()).await;
    assert!(
        found.contains("tools.worker.agent: no agent is called \"wroker\" (known: default, "),
        "{found}"
    );
    let worker = || agent_tool("worker", |_| ());
    let found = error(worker(), |config| {
        let tool = config.tools.entry("worker".into()).or_default();
        tool.max_concurrent = std::num::NonZeroU32::new(1);
    });
    assert!(found.await.contains("tools.worker.max_concurrent: is not for agents"));
    let found = error(worker(), |config| {
        let tool = config.tools.entry("worker".into()).or_default();
        tool.effect = Some(callsheet_values::config::ToolEffect::None);
    });
    assert!(found.await.contains("tools.worker.effect: must be \"some\""));
    let host = Host::start(family(&provider, [], [], |_| ())).await.unwrap();
    let child = format!("sub_{}", "0".repeat(32));
    assert_eq!(host.open_session(child).await.unwrap_err(), HostError::ReservedSessionId);
}
