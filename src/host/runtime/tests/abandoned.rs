//! Tests of requests whose caller goes away, and of journals that fail at a bad moment.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::FutureExt as _;
use tokio::sync::Semaphore;

use super::engine::{Engine, entries};
use super::provider::{Reply, answer_with, text};
use super::*;
use crate::journal::{
    AppendStatus, Batch, BatchRefusal, BatchStatus, Journal, JournalEntry, JournalError,
    MemoryJournal,
};
use crate::runtime::call_by_hand::CALLS_MAX;
use crate::runtime::{ids, maintenance};
use callsheet_tools::{ToolSource, ToolSourceContext};
use callsheet_values::config::Resume;
use callsheet_values::record::{Record, StopMode};
use callsheet_values::types::{ContextOverflow, RunEnd};

/// Returns an engine that fails the next batch with such a record, once `fails` is set.
pub(super) fn failing(
    fails: &Arc<AtomicBool>,
    is_meant: impl Fn(&Record) -> bool + Send + Sync + 'static,
) -> Arc<Engine> {
    let fails = Arc::clone(fails);
    Engine::new(move |inner, mut batch: Batch| {
        let is_meant = batch.entries.iter().any(|entry| is_meant(&entry.record));
        if is_meant && fails.swap(false, Ordering::SeqCst) {
            batch.report(BatchStatus::Failed(JournalError::Full));
            return AppendStatus::Queued;
        }
        inner.append(batch)
    })
}

async fn host_on(provider: &Provider, engine: &Arc<Engine>) -> Host {
    let journal = Arc::clone(engine) as Arc<dyn Journal>;
    start_on(setup(provider, ToolRegistry::new(), |_| ()), journal).await.unwrap()
}

/// Starts a run whose model does not answer, on a host that is dropped then, and returns its session.
async fn interrupted_run(
    provider: &Provider,
    setup: HostSetup,
    journal: &Arc<MemoryJournal>,
) -> SessionId {
    let host = start_on(setup, Arc::clone(journal) as Arc<dyn Journal>).await.unwrap();
    let session = session(&host).await;
    let id = session.id().clone();
    drop(session.start_run("go").await.unwrap());
    until("the request is sent", || provider.open() == 1).await;
    drop(session);
    crash(host).await;
    until("the request is dropped", || provider.open() == 0).await;
    id
}

#[tokio::test]
async fn requests_are_carried_out_although_their_callers_are_gone() {
    let provider = Provider::answering("fine").await;
    let engine = Engine::new(|inner, batch| inner.append(batch));
    let setup = setup(&provider, registry([echo("echo")]), |_| ());
    let host = start_on(setup, engine as Arc<dyn Journal>).await.unwrap();
    let session = |id: &str| host.session(&SessionId::parse(id).unwrap());
    let is_open = async |id: &str| {
        let session = session(id);
        until("it is open", || host.session(session.id()).state() != SessionState::Hibernated)
            .await;
        timeout(SOON, session.snapshot()).await.unwrap().unwrap()
    };
    // Each future is dropped after it was polled once.
    assert!(host.open_session("a").now_or_never().is_none());
    is_open("a").await;
    let a = session("a");
    let fork = host.fork(&a, Seq(1), Some("b".to_owned()));
    assert!(fork.now_or_never().is_none());
    is_open("b").await;
    let call = host.call_tool(None, "echo", serde_json::Map::new(), false);
    assert!(call.now_or_never().is_none());
    session("a").hibernate();
    until("it sleeps", || session("a").state() == SessionState::Hibernated).await;
    assert!(session("a").delete().now_or_never().is_none());
    until("one session is left", || host.counts().sessions == 1).await;
    timeout(SOON, host.open_session("a")).await.unwrap().unwrap();
    nothing_left(&host).await;
}

/// A source of tools that panics.
struct PanickingSource;

impl ToolSource for PanickingSource {
    fn tools(&self, _: &ToolSourceContext<'_>) -> Vec<Arc<dyn Tool>> {
        panic!("a source of tools panics")
    }
}

#[tokio::test]
async fn a_session_whose_start_panics_is_not_counted() {
    let provider = Provider::answering("fine").await;
    let mut setup = setup(&provider, ToolRegistry::new(), |_| ());
    setup.tool_sources = ToolSources(vec![Arc::new(PanickingSource)]);
    let host = Host::start(setup).await.unwrap();
    let died = timeout(SOON, host.open_session("a")).await.unwrap().unwrap_err();
    assert_eq!(died, HostError::SessionClosed);
    assert_eq!(host.counts().sessions, 0);
}

/// Makes a run as soon as the failure of the run before is recorded.
pub(super) async fn run_again(session: &SessionHandle) -> RunReport {
    let report = async {
        loop {
            if let Ok(report) = session.run("again").await {
                return report;
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(SOON, report).await.unwrap()
}

#[tokio::test]
async fn a_run_whose_end_was_lost_does_not_go_on() {
    let provider = Provider::answering("fine").await;
    let fails = Arc::new(AtomicBool::new(true));
    let engine = failing(&fails, |record| matches!(record, Record::RunEnded { .. }));
    let host = host_on(&provider, &engine).await;
    let session = session(&host).await;
    assert!(matches!(session.run("go").await, Err(HostError::Journal(_))));
    assert_eq!(run_again(&session).await.run_end, RunEnd::Answered);
    assert_eq!(provider.count(), 2, "the model is asked once for each run");
    let stored = entries(&*engine, session.id());
    let ends = stored.iter().filter_map(|entry| {
        let Record::RunEnded { end, error, .. } = &entry.record else { return None };
        Some((*end, error.as_ref().map(|error| error.code.clone())))
    });
    let failed = (RunEnd::Failed, Some("journal_failed".to_owned()));
    assert_eq!(ends.collect::<Vec<_>>(), [failed, (RunEnd::Answered, None)]);
    assert!(host.inner.host_ref.shared.maintenance.sessions_to_record().is_empty());
}

/// The outcomes of calls that the host knows are recorded when the journal works again. The host did not stop, and no
/// record says so.
#[tokio::test]
async fn a_run_that_fails_because_of_the_journal_keeps_the_outcomes_that_are_known() {
    let lost =
        "Error: the journal could not be written during this call; it may or may not have happened";
    for (returns, expected) in [(true, ("success", "worked")), (false, ("unknown", lost))] {
        let provider = Provider::calling(&[("writes", "{}")]).await;
        let fails = Arc::new(AtomicBool::new(true));
        let engine = failing(&fails, move |record| match returns {
            true => matches!(record, Record::CallEnded { .. }),
            false => matches!(record, Record::Steered { .. }),
        });
        let started = Arc::new(AtomicBool::new(false));
        let notes = Arc::clone(&started);
        let spec = ToolSpec { effect: Default::default(), ..spec("writes") };
        let writes = tool(spec, move |_| {
            notes.store(true, Ordering::SeqCst);
            async move {
                if !returns {
                    std::future::pending::<()>().await;
                }
                Ok("worked".into())
            }
        });
        let journal = Arc::clone(&engine) as Arc<dyn Journal>;
        let host = start_on(setup(&provider, registry([writes]), |_| ()), journal).await.unwrap();
        let session = session(&host).await;
        let run = session.start_run("go").await.unwrap();
        if !returns {
            until("the call runs", || started.load(Ordering::SeqCst)).await;
            let _ = session.steer("and this").await;
        }
        assert!(matches!(run.report.await, Err(HostError::Journal(_))), "{returns}");
        timeout(SOON, session.snapshot()).await.unwrap().unwrap();
        let outcomes = || {
            let stored = entries(&*engine, session.id());
            let is_over = |entry: &JournalEntry| matches!(entry.record, Record::RunEnded { .. });
            let outcome = |entry: &JournalEntry| {
                let Record::CallEnded { outcome, .. } = &entry.record else { return None };
                Some(outcome.clone())
            };
            stored
                .iter()
                .any(is_over)
                .then(|| stored.iter().filter_map(outcome).collect::<Vec<_>>())
        };
        until("the failure is recorded", || outcomes().is_some()).await;
        let outcomes = outcomes().unwrap();
        let found: Vec<_> = outcomes
            .iter()
            .map(|outcome| (outcome.status.as_str(), outcome.content.to_string()))
            .collect();
        assert_eq!(found, [(expected.0, expected.1.to_owned())]);
    }
}

#[tokio::test]
async fn an_unfinished_run_that_cannot_be_read_at_the_start_goes_on_later() {
    let provider = Provider::new(|n, _| match n {
        0 => Reply::Stall(vec![text("It ")]),
        _ => Reply::Sse(answer_with("fine")),
    })
    .await;
    let (inner, setup) =
        (Arc::new(MemoryJournal::new()), || setup(&provider, ToolRegistry::new(), |_| ()));
    let id = interrupted_run(&provider, setup(), &inner).await;
    let engine = Engine::on(inner, |inner, batch| inner.append(batch));
    engine.fail_reads(true);
    let host = start_on(setup(), Arc::clone(&engine) as Arc<dyn Journal>).await.unwrap();
    until("it was tried", || !host.shared().maintenance.remove_expired(u64::MAX).is_empty()).await;
    let error = host.session(&id).snapshot().await.unwrap_err();
    assert!(matches!(&error, HostError::Journal(JournalError::Unavailable(_))), "{error:?}");
    assert!(error.is_transient());
    host.shared().maintenance.add_expiry(0, id);
    maintenance::run(&host.inner.host_ref);
    engine.fail_reads(false);
    timeout(SOON, async {
        while provider.count() < 2 {
            maintenance::run(&host.inner.host_ref);
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_run_whose_start_was_lost_is_forgotten() {
    let provider = Provider::answering("fine").await;
    let fails = Arc::new(AtomicBool::new(true));
    let engine = failing(&fails, |record| matches!(record, Record::RunStarted { .. }));
    let host = start_on(setup(&provider, ToolRegistry::new(), |_| ()), engine).await.unwrap();
    let session = session(&host).await;
    assert!(matches!(session.run("go").await, Err(HostError::Journal(_))));
    until("its failure is noted", || {
        !host.inner.host_ref.shared.maintenance.sessions_to_record().is_empty()
    })
    .await;
    timeout(SOON, session.snapshot()).await.unwrap().unwrap();
    assert!(host.inner.host_ref.shared.maintenance.sessions_to_record().is_empty());
    assert_eq!(session.run("again").await.unwrap().run_end, RunEnd::Answered);
}

#[tokio::test]
async fn a_failed_run_of_a_session_that_cannot_be_read_is_forgotten() {
    let provider = Provider::answering("fine").await;
    let engine = Engine::new(|inner, batch| inner.append(batch));
    let host = host_on(&provider, &engine).await;
    let id = SessionId::parse("broken").unwrap();
    // The first record does not open a session.
    let record = Record::SessionClosed;
    let entry = JournalEntry { seq: Seq(1), time: 1, displayed_bytes: 0, record };
    let entries = vec![Arc::new(entry)];
    engine.store(Batch::new(id.clone(), entries, Arc::default(), Box::new(|_| ())));
    let state = &host.inner.host_ref.shared.maintenance;
    state.add_unrecorded_failures(&id, [ids::run_id()]);
    maintenance::run(&host.inner.host_ref);
    until("it is forgotten", || state.sessions_to_record().is_empty()).await;
}

#[tokio::test]
async fn a_session_that_is_used_during_the_search_for_idle_ones_is_not_deleted() {
    let provider = Provider::answering("fine").await;
    let engine = Engine::new(|inner, batch| inner.append(batch));
    let host = host_on(&provider, &engine).await;
    let session = session(&host).await;
    session.hibernate();
    until("it sleeps", || session.state() == SessionState::Hibernated).await;
    let touched = engine.find(session.id()).await.unwrap().unwrap().touched;
    until("it is older", || crate::journal::unix_ms() > touched).await;
    engine.hold_lists(true);
    let lists = engine.lists();
    let shared = Arc::clone(&host.inner.host_ref.shared);
    let search = task::isolated(async move { maintenance::delete_part(&shared, 0, None).await });
    let mut search = std::pin::pin!(search);
    assert!(futures::poll!(&mut search).is_pending());
    until("it is found", || engine.lists() > lists).await;
    session.run("go").await.unwrap();
    session.hibernate();
    until("it sleeps again", || session.state() == SessionState::Hibernated).await;
    engine.hold_lists(false);
    assert_eq!(search.await.unwrap(), Ok((0, None)));
    assert_eq!((engine.removals(), host.counts().sessions), (0, 1));
    assert_eq!(session.run("again").await.unwrap().text, "fine");
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_request_that_waits_for_a_fork_finds_no_session_if_the_fork_fails() {
    let provider = Provider::answering("fine").await;
    let engine = Engine::new(|inner, batch| inner.append(batch));
    let host = host_on(&provider, &engine).await;
    let session = session(&host).await;
    engine.hold_reads(Some(session.id().clone()));
    let forking = spawn({
        let (host, session) = (host.clone(), session.clone());
        async move { host.fork(&session, Seq(99), Some("fork".to_owned())).await }
    });
    let id = SessionId::parse("fork").unwrap();
    until("its id is reserved", || host.counts().sessions == 2).await;
    let fork = host.session(&id);
    let mut waiting = Box::pin(fork.snapshot());
    let waits = (&mut waiting).now_or_never().is_none();
    engine.hold_reads(None);
    assert!(waits);
    assert!(matches!(forking.await.unwrap(), Err(HostError::NoSuchRecord { .. })));
    let found = timeout(SOON, waiting).await.unwrap();
    assert!(matches!(found, Err(HostError::NoSuchSession(of)) if of == id));
    nothing_left(&host).await;
}

#[tokio::test]
async fn what_is_learnt_of_a_model_while_it_is_being_stored_is_stored_too() {
    let provider = Provider::answering("fine").await;
    let engine = Engine::new(|inner, batch| inner.append(batch));
    let journal = Arc::clone(&engine) as Arc<dyn Journal>;
    let setup = setup(&provider, ToolRegistry::new(), |_| ());
    let host = start_on(setup, Arc::clone(&journal)).await.unwrap();
    let learnt = host.inner.host_ref.shared.catalog.models["test"].learnt.clone();
    let learn = |window| {
        let overflow = ContextOverflow::of_window(Some(window), None);
        learnt.update(|tokens| tokens.handle_overflow(overflow, 100_000, None));
    };
    engine.hold_documents(true);
    learn(8_192);
    learnt.store_soon(&journal);
    until("the first is being stored", || engine.documents() == 1).await;
    learn(16_384);
    let mut storing = Box::pin(learnt.store(&journal));
    let waits = (&mut storing).now_or_never().is_none();
    engine.hold_documents(false);
    assert!(waits);
    storing.await;
    learnt.read(&*journal).await.unwrap();
    assert_eq!(learnt.get().window(), Some(16_384));
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_deletion_that_fails_after_the_records_are_gone_is_counted() {
    let provider = Provider::answering("fine").await;
    let engine = Engine::new(|inner, batch| inner.append(batch));
    let host = host_on(&provider, &engine).await;
    let session = session(&host).await;
    engine.fail_after_removal();
    assert!(matches!(session.delete().await, Err(HostError::Journal(_))));
    assert_eq!(host.counts().sessions, 0);
    // The repetition says that it is finished.
    assert_eq!(session.delete().await, Ok(()));
}

#[tokio::test]
async fn a_deletion_that_failed_is_finished_when_the_journal_works_again() {
    let provider = Provider::answering("fine").await;
    let is_dead = Arc::new(AtomicBool::new(true));
    let engine = Engine::new(|inner, batch| inner.append(batch)).dead_once(&is_dead);
    let host = host_on(&provider, &engine).await;
    let session = session(&host).await;
    assert!(matches!(session.delete().await, Err(HostError::Journal(_))));
    assert_eq!((host.counts().sessions, engine.count().await), (1, Ok(1)));
    is_dead.store(false, Ordering::SeqCst);
    until("the session is deleted", || stored(engine.count()) == 0).await;
    until("it is not counted", || host.counts().sessions == 0).await;
}

#[tokio::test]
async fn a_session_is_deleted_although_the_end_of_its_run_is_not_recorded() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("hm")])).await;
    let fails = Arc::new(AtomicBool::new(true));
    let engine = failing(&fails, |record| matches!(record, Record::StopAsked { .. }));
    let host = host_on(&provider, &engine).await;
    let session = session(&host).await;
    let _started = session.start_run("go").await.unwrap();
    until("the model is asked", || provider.count() == 1).await;
    timeout(SOON, session.delete()).await.unwrap().unwrap();
    assert_eq!((host.counts().sessions, engine.count().await), (0, Ok(0)));
}

#[tokio::test]
async fn a_fork_whose_origin_is_deleted_meanwhile_is_no_failure_of_the_journal() {
    let provider = Provider::answering("fine").await;
    let engine = Engine::new(|inner, mut batch: Batch| {
        let origin = batch.entries.iter().find_map(|entry| {
            let Record::SessionForked { from, .. } = &entry.record else { return None };
            Some(from.clone())
        });
        let Some(origin) = origin else { return inner.append(batch) };
        batch.report(BatchStatus::Refused(BatchRefusal::OriginRemoved(origin)));
        AppendStatus::Queued
    });
    let host = start_on(setup(&provider, ToolRegistry::new(), |_| ()), engine).await.unwrap();
    let session = session(&host).await;
    let forked = host.fork(&session, Seq(1), Some("fork".to_owned())).await;
    assert!(matches!(forked, Err(HostError::NoSuchSession(id)) if id == *session.id()));
    until("the fork leaves memory", || host.counts().awake == 1).await;
    assert_eq!(host.counts().sessions, 1);
    no_journal_failure_is_counted(&host);
}

pub(super) fn no_journal_failure_is_counted(host: &Host) {
    #[cfg(feature = "prometheus")]
    {
        let page = host.metrics_page().unwrap();
        let failures = page.lines().find(|line| line.starts_with("callsheet_journal_failures"));
        assert!(failures.is_none_or(|failures| failures.ends_with(" 0")), "{failures:?}");
    }
    let _ = host;
}

#[tokio::test]
async fn reports_that_nobody_polls_do_not_keep_other_sessions_asleep() {
    let provider = Provider::answering("fine").await;
    let engine = Engine::new(|inner, batch| inner.append(batch));
    let host = host_on(&provider, &engine).await;
    let (read, other) = (session(&host).await, session(&host).await);
    let run = read.run("go").await.unwrap().run_id;
    other.hibernate();
    until("it sleeps", || other.state() == SessionState::Hibernated).await;
    engine.hold_reads(Some(read.id().clone()));
    let host_ref = &host.inner.host_ref;
    let mut reports: Vec<_> = (0..2 * host_ref::REBUILDS_MAX)
        .map(|_| Box::pin(stored_sessions::read_finished_report(host_ref, read.id(), &run)))
        .collect();
    for report in &mut reports {
        assert!(futures::poll!(report).is_pending());
    }
    engine.hold_reads(None);
    assert_eq!(timeout(SOON, other.run("go")).await.unwrap().unwrap().text, "fine");
    for report in reports {
        assert_eq!(report.await.unwrap().unwrap().text, "fine");
    }
}

#[tokio::test]
async fn a_session_that_another_writer_has_opened_meanwhile_exists() {
    let provider = Provider::answering("fine").await;
    let is_first = AtomicBool::new(true);
    let engine = Engine::new(move |inner, batch: Batch| {
        if is_first.swap(false, Ordering::SeqCst) {
            let (id, entries) = (batch.session.clone(), batch.entries.clone());
            inner.append(Batch::new(id, entries, Arc::default(), Box::new(|_| ())));
        }
        inner.append(batch)
    });
    let host = start_on(setup(&provider, ToolRegistry::new(), |_| ()), engine).await.unwrap();
    let opened = host.open_session("taken").await;
    assert_eq!(opened.err(), Some(HostError::SessionExists));
    until("it leaves memory", || host.counts().awake == 0).await;
    no_journal_failure_is_counted(&host);
    // The stored one can be used.
    let session = host.get_or_open_session("taken").await.unwrap();
    assert_eq!(session.run("go").await.unwrap().text, "fine");
}

#[tokio::test]
async fn a_deletion_that_a_crash_cut_off_is_finished_also_if_runs_wait_to_be_resumed() {
    let provider = Provider::answering("fine").await;
    let (journal, is_dead) = (Arc::new(MemoryJournal::new()), Arc::default());
    let engine = Engine::on(Arc::clone(&journal), |inner, batch| inner.append(batch));
    let engine = engine.dead_once(&is_dead) as Arc<dyn Journal>;
    let setup =
        || setup(&provider, ToolRegistry::new(), |config| config.journal.resume = Resume::Manual);
    let first = start_on(setup(), engine).await.unwrap();
    let session = session(&first).await;
    is_dead.store(true, Ordering::SeqCst);
    assert!(matches!(session.delete().await, Err(HostError::Journal(_))));
    drop((session, first));
    assert_eq!(journal.count().await.unwrap(), 1);
    let host = super::child_sessions::restart(setup, &journal).await;
    until("it is deleted", || journal.count().now_or_never() == Some(Ok(0))).await;
    until("it is not counted", || host.counts().sessions == 0).await;
}

#[tokio::test]
async fn a_run_waits_for_its_manual_resume_also_after_a_failed_deletion() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("so ")])).await;
    let (journal, is_dead) = (Arc::new(MemoryJournal::new()), Arc::<AtomicBool>::default());
    let setup =
        || setup(&provider, ToolRegistry::new(), |config| config.journal.resume = Resume::Manual);
    let id = interrupted_run(&provider, setup(), &journal).await;
    let engine = Engine::on(journal, |inner, batch| inner.append(batch)).dead_once(&is_dead);
    let host = start_on(setup(), engine as Arc<dyn Journal>).await.unwrap();
    is_dead.store(true, Ordering::SeqCst);
    let session = host.session(&id);
    assert!(matches!(session.delete().await, Err(HostError::Journal(_))));
    // The snapshot wakes the session.
    let run = session.snapshot().await.unwrap().current_run.unwrap();
    assert!(run.suspended, "it goes on");
}

#[tokio::test]
async fn a_resume_during_a_shutdown_is_refused() {
    let provider = Provider::new(|_, _| Reply::Stall(vec![text("so ")])).await;
    let journal = Arc::new(MemoryJournal::new());
    let setup =
        || setup(&provider, ToolRegistry::new(), |config| config.journal.resume = Resume::Manual);
    let id = interrupted_run(&provider, setup(), &journal).await;
    let host = super::child_sessions::restart(setup, &journal).await;
    let session = host.session(&id);
    assert!(session.snapshot().await.unwrap().current_run.unwrap().suspended);
    host.inner.host_ref.shared.closing.store(true, Ordering::SeqCst);
    assert_eq!(session.resume().await, Err(HostError::ShuttingDown));
}

#[tokio::test]
async fn calls_by_hand_beyond_the_limit_wait() {
    const MORE: usize = 20;
    let provider = Provider::answering("fine").await;
    let gate = Arc::new(Semaphore::new(0));
    let begun = Arc::<AtomicUsize>::default();
    let (passes, count) = (Arc::clone(&gate), Arc::clone(&begun));
    let mut tools = ToolRegistry::new();
    let work = tool(spec("work"), move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        let passes = Arc::clone(&passes);
        async move {
            passes.acquire().await.unwrap().forget();
            Ok("done".into())
        }
    });
    tools.register(work).unwrap();
    let setup = setup(&provider, tools, |_| ());
    let host = start_on(setup, Arc::new(MemoryJournal::new())).await.unwrap();
    let calls: Vec<_> = (0..CALLS_MAX + MORE)
        .map(|_| {
            let host = host.clone();
            spawn(async move {
                host.call_tool(None, "work", serde_json::Map::new(), false).await.unwrap().run_end
            })
        })
        .collect();
    until("as many run as may", || begun.load(Ordering::SeqCst) == CALLS_MAX).await;
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!((begun.load(Ordering::SeqCst), host.counts().sessions), (CALLS_MAX, CALLS_MAX));
    gate.add_permits(MORE);
    until("the others run", || begun.load(Ordering::SeqCst) == CALLS_MAX + MORE).await;
    gate.add_permits(CALLS_MAX);
    for call in calls {
        assert_eq!(timeout(SOON, call).await.unwrap().unwrap(), RunEnd::Answered);
    }
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_call_by_hand_that_a_crash_cut_off_is_deleted_by_the_next_host() {
    let provider = Provider::answering("fine").await;
    for (is_manual, ends) in [(false, false), (false, true), (true, false), (true, true)] {
        let (journal, is_dead) = (Arc::new(MemoryJournal::new()), Arc::<AtomicBool>::default());
        let has_crashed = Arc::clone(&is_dead);
        let engine = Engine::on(Arc::clone(&journal), move |inner, batch| {
            let is_closed =
                |entry: &Arc<JournalEntry>| matches!(entry.record, Record::SessionClosed);
            if batch.entries.iter().any(is_closed) {
                has_crashed.store(true, Ordering::SeqCst);
            }
            if has_crashed.load(Ordering::SeqCst) {
                return AppendStatus::Queued;
            }
            inner.append(batch)
        });
        let engine = engine.dead_once(&is_dead) as Arc<dyn Journal>;
        let setup = || {
            let mut tools = ToolRegistry::new();
            let work = tool(spec("work"), move |_| async move {
                if !ends {
                    std::future::pending::<()>().await;
                }
                Ok("done".into())
            });
            tools.register(work).unwrap();
            setup(&provider, tools, |config| {
                if is_manual {
                    config.journal.resume = Resume::Manual;
                }
            })
        };
        let first = start_on(setup(), engine).await.unwrap();
        let host = first.clone();
        let call = spawn(async move {
            host.call_tool(None, "work", serde_json::Map::new(), false).await.is_ok()
        });
        if ends {
            until("the session is closed", || is_dead.load(Ordering::SeqCst)).await;
        } else {
            let state = Some(SessionState::Running);
            let running = SessionQuery::default().with(|query| query.state = state);
            until("the call runs", || stored(journal.list(&running)).len() == 1).await;
            is_dead.store(true, Ordering::SeqCst);
        }
        call.abort();
        drop(first);
        assert_eq!(journal.count().await.unwrap(), 1);
        let next = super::child_sessions::restart(setup, &journal).await;
        until("its session is deleted", || journal.count().now_or_never() == Some(Ok(0))).await;
        until("it is not counted", || next.counts().sessions == 0).await;
    }
}

#[tokio::test]
async fn sessions_that_are_deleted_during_a_removal_are_removed_together() {
    let provider = Provider::answering("fine").await;
    let engine = Engine::new(|inner, batch| inner.append(batch));
    let setup = setup(&provider, ToolRegistry::new(), |_| ());
    let host = start_on(setup, Arc::clone(&engine) as Arc<dyn Journal>).await.unwrap();
    let delete = |session: SessionHandle| spawn(async move { session.delete().await });
    let first = session(&host).await;
    engine.hold_removal(Some(first.id().clone()));
    let mut deletions = vec![delete(first)];
    until("the first is being removed", || engine.removals() == 1).await;
    for _ in 0..3 {
        deletions.push(delete(session(&host).await));
    }
    let waiting = || host.inner.host_ref.shared.removals.waiting.lock().len();
    until("the others wait", || waiting() == 3).await;
    engine.hold_removal(None);
    for deletion in deletions {
        timeout(SOON, deletion).await.unwrap().unwrap().unwrap();
    }
    assert_eq!(
        (engine.removals(), engine.count().await.unwrap(), host.counts().sessions),
        (2, 0, 0)
    );
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_fork_has_no_queue_that_keeps_it_running() {
    let provider = Provider::new(|n, _| match n {
        0 => Reply::Stall(vec![text("hm")]),
        _ => Reply::Sse(answer_with("fine")),
    })
    .await;
    let journal = Arc::new(MemoryJournal::new());
    let shared = Arc::clone(&journal) as Arc<dyn Journal>;
    let host = start_on(setup(&provider, ToolRegistry::new(), |_| ()), shared).await.unwrap();
    let session = session(&host).await;
    let first = session.start_run("go").await.unwrap();
    let second = session.start_run(RunRequest::from("then").queued()).await.unwrap();
    session.stop(StopMode::Now).await.unwrap();
    first.report.await.unwrap();
    second.report.await.unwrap();
    let stored = entries(&*journal, session.id());
    let is_end =
        |entry: &&JournalEntry| matches!(entry.record, Record::RunEnded { waiting: 1, .. });
    let end = stored.iter().find(is_end).unwrap().seq;
    let fork = host.fork(&session, end, None).await.unwrap();
    assert_eq!(journal.find(fork.id()).await.unwrap().unwrap().state, SessionState::Idle);
    assert!(open_run_id(&entries(&*journal, fork.id())).is_none());
}

#[tokio::test]
async fn no_run_whose_end_was_lost_goes_on_if_another_one_ended_after_it() {
    let provider = Provider::answering("fine").await;
    let fails = AtomicBool::new(true);
    let held = parking_lot::Mutex::new(Vec::<Batch>::new());
    let is_end = |batch: &Batch| {
        batch.entries.iter().any(|entry| matches!(entry.record, Record::RunEnded { .. }))
    };
    // All batches from the first end of a run on fail when the second run has ended.
    let engine = Engine::new(move |inner, batch: Batch| {
        let mut held = held.lock();
        if !fails.load(Ordering::SeqCst) || (held.is_empty() && !is_end(&batch)) {
            return inner.append(batch);
        }
        held.push(batch);
        if held.iter().filter(|batch| is_end(batch)).count() == 2 {
            fails.store(false, Ordering::SeqCst);
            held.drain(..).for_each(|mut batch| {
                batch.report(BatchStatus::Failed(JournalError::Full));
            });
        }
        AppendStatus::Queued
    });
    let host = host_on(&provider, &engine).await;
    let session = session(&host).await;
    let first = session.start_run("go").await.unwrap();
    let second = session.start_run(RunRequest::from("then").queued()).await.unwrap();
    assert!(matches!(timeout(SOON, first.report).await.unwrap(), Err(HostError::Journal(_))));
    assert!(matches!(timeout(SOON, second.report).await.unwrap(), Err(HostError::Journal(_))));
    let stored = || entries(&*engine, session.id());
    let failed = |entry: &JournalEntry| {
        let Record::RunEnded { run_id, error: Some(error), .. } = &entry.record else {
            return false;
        };
        *run_id == first.run_id && error.code == "journal_failed"
    };
    timeout(SOON, session.snapshot()).await.unwrap().unwrap();
    until("the failure is recorded", || stored().iter().any(failed)).await;
    let of_first = |entry: &&JournalEntry| matches!(&entry.record, Record::RunStarted { run_id, .. } if *run_id == first.run_id);
    assert_eq!(stored().iter().filter(of_first).count(), 1);
}
