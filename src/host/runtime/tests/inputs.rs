//! Tests that an input during a run is neither lost nor doubled, and that the records agree with
//! the session.

use super::engine::{Engine, entries};
use super::provider::{Reply, answer_with, text};
use super::recovery::{STREAM, SUPERVISOR, actors};
use super::*;
use crate::journal::{JournalEntry, MemoryJournal};
use callsheet_machines::session::StoredSession;
use callsheet_values::config::{Limits, RunOverrides};
use callsheet_values::message::Message;
use callsheet_values::record::Record;
use callsheet_values::types::RunEnd;

/// An engine that runs an action directly before or after the turn's commit is recorded. In both
/// cases the session has not received the commit yet.
#[derive(Default)]
struct Moment {
    before: parking_lot::Mutex<Option<Box<dyn FnOnce() + Send>>>,
    after: parking_lot::Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Moment {
    fn engine(self: &Arc<Self>) -> Arc<Engine> {
        let moment = Arc::clone(self);
        Engine::new(move |inner, batch| {
            let is_commit =
                |entry: &Arc<JournalEntry>| matches!(entry.record, Record::TurnCommitted { .. });
            let commits = batch.entries.iter().any(is_commit);
            if commits && let Some(act) = moment.before.lock().take() {
                act();
            }
            let appended = inner.append(batch);
            if commits && let Some(act) = moment.after.lock().take() {
                act();
            }
            appended
        })
    }
}

fn contents(messages: &[Arc<Message>]) -> Vec<String> {
    let contents = messages.iter().map(|message| match message.as_ref() {
        Message::User { content } | Message::Summary { content } => content.text().into_owned(),
        Message::Tool { content, .. } => content.to_string(),
        Message::Assistant(message) => message.text.clone(),
    });
    contents.collect()
}

/// Returns the history of a session as its records describe it.
fn folded(journal: &dyn Journal, session: &SessionHandle) -> Vec<Arc<Message>> {
    let entries = entries(journal, session.id());
    let session_rules =
        |_: &RunOverrides| Limits { max_result_bytes: 65_536, ..Limits::default() }.into();
    StoredSession::read(&entries, &session_rules).unwrap().session.history().messages().to_vec()
}

async fn answering() -> Provider {
    Provider::new(|n, _| Reply::Sse(answer_with(["one", "two", "three"][n.min(2)]))).await
}

async fn steer_while_recording(choose: impl FnOnce(&Moment, Box<dyn FnOnce() + Send>)) {
    let provider = answering().await;
    let moment = Arc::new(Moment::default());
    let journal = moment.engine();
    let setup = setup(&provider, ToolRegistry::new(), |_| ());
    let host = start_on(setup, Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
    let session = session(&host).await;
    let steer = {
        let actor = session.host_ref.shared.index.awake(session.id()).unwrap().actor.clone();
        move || {
            let (reply, _) = tokio::sync::oneshot::channel();
            let input = "more".to_owned();
            actor
                .cast(SessionMessage::Steer {
                    input: input.into(),
                    request_key: None,
                    author: None,
                    reply,
                })
                .unwrap();
        }
    };
    choose(&moment, Box::new(steer));
    let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
    assert_eq!((report.run_end, report.turns), (RunEnd::Answered, 2));
    assert_eq!(contents(report.run_messages()), ["go", "one", "more", "two"]);
    assert_eq!(folded(&*journal, &session), session.snapshot().await.unwrap().history);
    nothing_left(&host).await;
}

#[tokio::test]
async fn an_input_may_arrive_while_the_turn_is_committed() {
    steer_while_recording(|journal, steer| *journal.before.lock() = Some(steer)).await;
    steer_while_recording(|journal, steer| *journal.after.lock() = Some(steer)).await;
}

#[tokio::test]
async fn an_actors_death_neither_loses_nor_doubles_an_input() {
    for which in 0..3 {
        let provider = Provider::new(|n, _| match n {
            0 => Reply::Stall(vec![text("lost ")]),
            _ => Reply::Sse(answer_with(["one", "two"][n - 1])),
        })
        .await;
        let journal = Arc::new(MemoryJournal::new());
        let setup = setup(&provider, ToolRegistry::new(), |_| ());
        let host = start_on(setup, Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
        let session = session(&host).await;
        let run = session.start_run("go").await.unwrap();
        until("the stream is open", || provider.open() == 1).await;
        session.steer("before").await.unwrap();
        let actors = actors(&session).await;
        actors[which].kill();
        session.steer("after").await.unwrap();
        let report = timeout(SOON, run.report).await.unwrap().unwrap();
        assert_eq!(report.run_end, RunEnd::Answered);
        assert_eq!(contents(report.run_messages()), ["go", "one", "before", "after", "two"]);
        assert_eq!(folded(&*journal, &session), session.snapshot().await.unwrap().history);
        nothing_left(&host).await;
    }
}

/// Steers at random times. The input must be in the history exactly once. The model must have
/// received it unless the run was over. The records must agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_at_any_time_is_in_the_history_once() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let provider = Provider::new(|n, _| Reply::Sse(answer_with(&format!("answer {n}")))).await;
    let provider = provider.gated_by(Arc::clone(&gate));
    let journal = Arc::new(MemoryJournal::new());
    let setup = setup(&provider, ToolRegistry::new(), |_| ());
    let host = start_on(setup, Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
    let session = session(&host).await;
    let (mut delivered, mut late) = (0, 0);
    for n in 0..60 {
        let run = session.start_run("go").await.unwrap();
        // The response to the first request comes before the input in two of three runs, and after it in the
        // others. In the first case the input may be too late.
        if n % 3 > 0 {
            gate.add_permits(1);
            for _ in 0..n * 37 % 400 {
                tokio::task::yield_now().await;
            }
        }
        let steered = session.steer("more").await;
        gate.add_permits(if n % 3 > 0 { 1 } else { 2 });
        let report = timeout(SOON, run.report).await.unwrap().unwrap();
        gate.forget_permits(2);
        let contents_of_run = contents(report.run_messages());
        let steers = contents_of_run.iter().filter(|text| *text == "more").count();
        match steered {
            Ok(_) => {
                assert_eq!(
                    (steers, contents_of_run.len(), report.turns),
                    (1, 4, 2),
                    "{contents_of_run:?}"
                );
                delivered += 1;
            }
            Err(HostError::NoRun) => {
                assert_eq!((steers, contents_of_run.len()), (0, 2), "{contents_of_run:?}");
                late += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(delivered >= 20 && delivered + late == 60, "{delivered} inputs in time, {late} late");
    assert_eq!(folded(&*journal, &session), session.snapshot().await.unwrap().history);
}

#[tokio::test]
async fn queued_inputs_are_recorded_in_order() {
    let provider = Provider::new(|n, _| match n {
        0 => Reply::Stall(vec![text("so far")]),
        _ => Reply::Sse(answer_with("two")),
    })
    .await;
    let journal = Arc::new(MemoryJournal::new());
    let setup = setup(&provider, ToolRegistry::new(), |_| ());
    let host = start_on(setup, Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
    let session = session(&host).await;
    let first = session.start_run("go").await.unwrap();
    until("the stream is open", || provider.open() == 1).await;
    let request = RunRequest { queue: true, ..RunRequest::from("next") };
    let second = session.start_run(request).await.unwrap();
    session.steer("more").await.unwrap();
    session.stop(callsheet_values::record::StopMode::Now).await.unwrap();
    assert_eq!(first.report.await.unwrap().run_end, RunEnd::Stopped);
    let report = timeout(SOON, second.report).await.unwrap().unwrap();
    assert_eq!((report.run_id, report.run_end), (second.run_id.clone(), RunEnd::Answered));
    let entries = entries(&*journal, session.id());
    let place = |is_it: &dyn Fn(&Record) -> bool| {
        entries.iter().find(|entry| is_it(&entry.record)).expect("a record").seq
    };
    let queued = place(&|record| matches!(record, Record::InputQueued { .. }));
    let ended = place(&|record| matches!(record, Record::RunEnded { .. }));
    let started = place(
        &|record| matches!(record, Record::RunStarted { run_id, .. } if *run_id == second.run_id),
    );
    assert_eq!(queued, second.seq);
    assert!(queued < ended && ended < started);
    let history = session.snapshot().await.unwrap().history;
    assert_eq!(contents(&history), ["go", "so far", "more", "next", "two"]);
    assert_eq!(folded(&*journal, &session), history);
    nothing_left(&host).await;
}

#[tokio::test]
async fn an_actors_death_during_initial_calls_repeats_no_effect() {
    for which in [STREAM, SUPERVISOR] {
        let provider = answering().await;
        let begun = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let pay = tool(ToolSpec { effect: Default::default(), ..spec("pay") }, {
            let begun = Arc::clone(&begun);
            move |_| {
                begun.fetch_add(1, Ordering::SeqCst);
                std::future::pending()
            }
        });
        let journal = Arc::new(MemoryJournal::new());
        let setup = setup(&provider, registry([pay, echo("echo")]), |_| ());
        let host = start_on(setup, Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
        let calls = ["pay", "echo"].map(|name| {
            json!({"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}})
        });
        let messages = vec![json!({"role": "assistant", "content": "", "tool_calls": calls})];
        let open = OpenSession { messages, ..OpenSession::default() };
        let session = host.open_session(open).await.unwrap();
        assert_eq!(session.snapshot().await.unwrap().history.len(), 1);
        let run = session.start_run("go").await.unwrap();
        until("the call runs", {
            let begun = Arc::clone(&begun);
            move || begun.load(Ordering::SeqCst) == 1
        })
        .await;
        let actors = actors(&session).await;
        actors[which].kill();
        let report = timeout(SOON, run.report).await.unwrap().unwrap();
        assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "one"));
        assert_eq!(begun.load(Ordering::SeqCst), 1, "no effect is repeated");
        let outcomes = results(&report);
        assert_eq!((outcomes["pay"].0, outcomes["echo"]), ("unknown", ("success", "{}")));
        assert_eq!(contents(report.run_messages())[3..], ["go", "one"]);
        assert_eq!(provider.count(), 1);
        assert_eq!(folded(&*journal, &session), session.snapshot().await.unwrap().history);
        nothing_left(&host).await;
    }
}
