//! Tests of the stream of several sessions when a session dies or is deleted, or its journal fails.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::{Stream, StreamExt as _};

use super::engine::Engine;
use super::limits::kill_session_actor;
use super::provider::{Reply, answer_with, text};
use super::*;
use crate::journal::{AppendStatus, BatchStatus, Journal, JournalError};
use callsheet_values::event::{Event, EventId};
use callsheet_values::types::RunEnd;

/// Returns the sessions, from their beginnings.
fn all(sessions: &[&SessionHandle]) -> Vec<(SessionId, Option<EventId>)> {
    let start = Some(EventId::default());
    sessions.iter().map(|session| (session.id().clone(), start)).collect()
}

/// Reads until a run of the session has ended. Returns its text and its end.
async fn ended(
    events: &mut (impl Stream<Item = HostEvent> + Unpin),
    session: &SessionHandle,
) -> (String, RunEnd) {
    let mut received = String::new();
    loop {
        let next = timeout(SOON, events.next()).await.unwrap();
        let Some(HostEvent::Published(published)) = next else { panic!("{next:?}") };
        if published.session != *session.id() {
            continue;
        }
        if let Event::TextReceived { text } = &published.event {
            received.push_str(text);
        } else if let Event::AttemptStarted { .. } | Event::AttemptVoided { .. } = &published.event
        {
            received.clear();
        } else if let Event::RunEnded { end, .. } = &published.event {
            return (received, *end);
        }
    }
}

/// Reads until the condition holds for an item. Returns the text of the session.
async fn text_until(
    events: &mut (impl Stream<Item = HostEvent> + Unpin),
    session: &SessionHandle,
    is_last: impl Fn(&HostEvent) -> bool,
) -> String {
    let mut received = String::new();
    loop {
        let next = timeout(SOON, events.next()).await.unwrap().unwrap();
        if let HostEvent::Published(published) = &next
            && published.session == *session.id()
            && let Event::TextReceived { text } = &published.event
        {
            received.push_str(text);
        }
        if is_last(&next) {
            return received;
        }
    }
}

/// Deletes a session and opens another one with its id while the reader of its events is behind. The reader
/// follows `one` from its beginning (`from_start`) or from now on.
async fn delete_and_reopen(from_start: bool, all_states: bool) {
    let provider = Provider::new(|n, _| {
        let answer = if n == 0 { "old" } else { "new" };
        Reply::Sse(answer_with(answer))
    })
    .await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let one = host.open_session("one").await.unwrap();
    let two = host.open_session("two").await.unwrap();
    if from_start {
        one.run("go").await.unwrap();
    }
    let after = from_start.then(EventId::default);
    let watched = vec![(one.id().clone(), after), (two.id().clone(), None)];
    let events = host.watch_sessions(watched, all_states).await.unwrap();
    let mut events = Box::pin(events);
    if from_start {
        // The reader now has the first page of the stored events.
        let first = timeout(SOON, events.next()).await.unwrap();
        assert!(matches!(first, Some(HostEvent::Published(_))), "{first:?}");
    } else {
        one.run("go").await.unwrap();
    }
    one.delete().await.unwrap();
    // The times of the deletion and of events have milliseconds.
    sleep(Duration::from_millis(2)).await;
    let new = host.open_session("one").await.unwrap();
    new.run("go").await.unwrap();
    let is_deletion = |item: &HostEvent| {
        matches!(item, HostEvent::State(change)
            if change.session == *one.id() && change.state.is_none())
    };
    let mut text = text_until(&mut events, &one, is_deletion).await;
    if !from_start && !all_states {
        assert_eq!(text, "old", "the events before the deletion are returned");
    }
    new.run("go").await.unwrap();
    two.run("go").await.unwrap();
    let is_end = |item: &HostEvent| {
        matches!(item, HostEvent::Published(published)
            if published.session == *two.id() && matches!(published.event, Event::RunEnded { .. }))
    };
    text.push_str(&text_until(&mut events, &one, is_end).await);
    assert!("old".starts_with(&text), "{text}");
    host.shutdown().await;
}

#[tokio::test]
async fn a_new_session_with_the_id_of_a_deleted_one_does_not_continue_its_events() {
    for from_start in [true, false] {
        for all_states in [true, false] {
            delete_and_reopen(from_start, all_states).await;
        }
    }
}

#[tokio::test]
async fn the_events_of_a_session_that_dies_go_on() {
    let provider = Provider::new(|n, _| match n {
        0 => Reply::Stall(vec![text("lost ")]),
        _ => Reply::Sse(answer_with("found")),
    })
    .await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let one = host.open_session("one").await.unwrap();
    let two = host.open_session("two").await.unwrap();
    let events = host.watch_sessions(all(&[&one, &two]), false).await.unwrap();
    let mut events = Box::pin(events);
    let _run = one.start_run("go").await.unwrap();
    until("the stream is open", || provider.open() == 1).await;
    kill_session_actor(&host, &one).await;
    assert_eq!(ended(&mut events, &one).await, ("found".to_owned(), RunEnd::Answered));
    two.run("go").await.unwrap();
    assert_eq!(ended(&mut events, &two).await, ("found".to_owned(), RunEnd::Answered));
    host.shutdown().await;
    assert!(timeout(SOON, events.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_stream_of_all_states_that_begins_after_a_shutdown_ends() {
    let provider = Provider::answering("fine").await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    host.shutdown().await;
    let mut events = Box::pin(host.watch_sessions(Vec::new(), true).await.unwrap());
    let next = timeout(SOON, events.next()).await.unwrap();
    assert!(next.is_none(), "{next:?}");
}

#[tokio::test]
async fn a_failure_of_the_journal_ends_the_events_of_its_session_only() {
    let provider = Provider::answering("fine").await;
    let fails = Arc::new(AtomicBool::new(false));
    let is_failing = Arc::clone(&fails);
    let engine = Engine::new(move |inner, mut batch| {
        if is_failing.load(Ordering::SeqCst) && batch.session.as_str() == "one" {
            batch.report(BatchStatus::Failed(JournalError::Full));
            return AppendStatus::Queued;
        }
        inner.append(batch)
    });
    let setup = setup(&provider, ToolRegistry::new(), |_| ());
    let host = start_on(setup, engine as Arc<dyn Journal>).await.unwrap();
    let one = host.open_session("one").await.unwrap();
    let two = host.open_session("two").await.unwrap();
    let events = host.watch_sessions(all(&[&one, &two]), false).await.unwrap();
    let mut events = Box::pin(events);
    one.run("go").await.unwrap();
    assert_eq!(ended(&mut events, &one).await, ("fine".to_owned(), RunEnd::Answered));
    fails.store(true, Ordering::SeqCst);
    assert!(one.run("go").await.is_err());
    let failed = loop {
        let next = timeout(SOON, events.next()).await.unwrap();
        if let Some(HostEvent::Failed(session, error)) = next {
            break (session, error);
        }
        assert!(matches!(next, Some(HostEvent::Published(_))), "{next:?}");
    };
    assert_eq!(failed, (one.id().clone(), JournalError::Full));
    two.run("go").await.unwrap();
    assert_eq!(ended(&mut events, &two).await, ("fine".to_owned(), RunEnd::Answered));
}
