//! Tests of subscribers that join at any time while the journal is slow. The events before and
//! after the join must add up to all events.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;

use futures::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::engine::{Engine, entries};
use super::provider::{Reply, chunk, end};
use super::*;
use crate::journal::{AppendStatus, Batch, BatchStatus, Journal, JournalEntry, JournalError};
use crate::telemetry::FeedItem;
use callsheet_values::event::{Event, EventForm, EventId, PublishedEvent};
use callsheet_values::record::{PastEvents, Record, part_after};
use callsheet_values::types::Seq;

/// Batches that are accepted and not stored yet.
type Waiting = Arc<Mutex<VecDeque<Batch>>>;

/// Returns an engine that queues batches until `store_one` stores them.
fn late() -> (Arc<Engine>, Waiting) {
    let waiting = Waiting::default();
    let queue = Arc::clone(&waiting);
    let engine = Engine::new(move |_, batch| {
        queue.lock().push_back(batch);
        AppendStatus::Queued
    });
    (engine, waiting)
}

/// Stores the oldest waiting batch.
fn store_one(engine: &Engine, waiting: &Waiting) -> bool {
    let Some(Batch { session, entries, engine_state, urgent, mut on_status }) =
        waiting.lock().pop_front()
    else {
        return false;
    };
    engine.store(Batch { session, entries, engine_state, urgent, on_status: Box::new(|_| ()) });
    on_status(BatchStatus::Written);
    on_status(BatchStatus::Durable);
    true
}

/// A scripted response: text deltas (true for reasoning), then calls (true for a call of `act`, a
/// tool with effects).
#[derive(Clone, Debug)]
struct ScriptedResponse {
    pieces: Vec<(bool, String)>,
    calls: Vec<bool>,
}

fn scripted_response() -> impl Strategy<Value = ScriptedResponse> {
    let piece = (any::<bool>(), "[a-é😀 ]{1,6}");
    let calls = proptest::collection::vec(any::<bool>(), 0..3);
    (proptest::collection::vec(piece, 0..6), calls)
        .prop_map(|(pieces, calls)| ScriptedResponse { pieces, calls })
}

impl ScriptedResponse {
    fn payloads(&self) -> Vec<String> {
        let pieces = self.pieces.iter().map(|(is_thinking, text)| {
            let key = if *is_thinking { "reasoning_content" } else { "content" };
            chunk(json!({ key: text }), None)
        });
        let calls = self.calls.iter().enumerate().map(|(index, has_effects)| {
            let name = if *has_effects { "act" } else { "echo" };
            let arguments = json!({"n": index}).to_string();
            let function = json!({"name": name, "arguments": arguments});
            let call = json!({"index": index, "id": format!("c{index}"), "function": function});
            chunk(json!({"tool_calls": [call]}), None)
        });
        pieces.chain(calls).collect()
    }

    fn reply(&self, breaks: bool) -> Reply {
        let mut payloads = self.payloads();
        if breaks {
            return Reply::Break(payloads);
        }
        payloads.extend(end(if self.calls.is_empty() { "stop" } else { "tool_calls" }));
        Reply::Sse(payloads)
    }
}

/// Reads events until the given number of runs have ended.
async fn until_ended(mut watch: SessionEvents, mut runs: usize) -> Vec<PublishedEvent> {
    let mut seen = Vec::new();
    while runs > 0 {
        match timeout(SOON, watch.next()).await {
            Ok(Some(FeedItem::Event(published))) => {
                runs -= usize::from(matches!(published.event, Event::RunEnded { .. }));
                seen.push(PublishedEvent::clone(&published));
            }
            other => panic!("{other:?} behind {:?}", seen.last()),
        }
    }
    seen
}

/// Returns the id ranges of failed attempts, from their start to just before their failure.
fn void(entries: &[JournalEntry]) -> Vec<(Seq, Seq)> {
    let mut began = Seq(0);
    let mut void = Vec::new();
    for entry in entries {
        if let Record::AttemptStarted { .. } = entry.record {
            began = entry.seq;
        } else if let Record::AttemptFailed { kept: false, .. } = entry.record {
            void.push((began, entry.seq));
        }
    }
    void
}

/// Formats the events that have an id, with adjacent texts joined. Of failed attempts, includes
/// only results.
fn whole(events: impl IntoIterator<Item = PublishedEvent>, void: &[(Seq, Seq)]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for published in events {
        let Some(id) = published.id else { continue };
        let is_void = void.iter().any(|(from, to)| *from <= id.seq && id.seq < *to);
        if let Some((is_thinking, text)) = published.event.text() {
            let begin = if is_thinking { "thinking: " } else { "text: " };
            match lines.last_mut() {
                _ if is_void => {}
                Some(line) if line.starts_with(begin) => line.push_str(text),
                Some(_) | None => lines.push(format!("{begin}{text}")),
            }
            continue;
        }
        for view in published.public_as(EventForm::Full) {
            if !(is_void && view.kind == "tool_use") {
                lines.push(format!("{id} {} {}", view.kind, view.json));
            }
        }
    }
    lines
}

/// Returns the events up to a position.
fn before(live: &[PublishedEvent], cut: EventId) -> Vec<PublishedEvent> {
    let seen = live.iter().cloned().filter_map(|mut published| {
        let id = published.id?;
        if id <= cut {
            return Some(published);
        }
        if let Event::TextReceived { text } | Event::ThinkingReceived { text } =
            &mut published.event
            && id.seq == cut.seq
        {
            let begin = id.bytes - text.len() as u64;
            let keep = usize::try_from(cut.bytes.saturating_sub(begin)).unwrap();
            text.truncate(text.floor_char_boundary(keep));
            return (!text.is_empty()).then_some(published);
        }
        None
    });
    seen.collect()
}

/// Returns all positions where a subscriber may join, including the middle of texts.
fn cuts(live: &[PublishedEvent]) -> Vec<EventId> {
    let mut cuts = vec![EventId::default()];
    for published in live {
        let Some(id) = published.id else { continue };
        if let Some((_, text)) = published.event.text()
            && let Some((middle, _)) = text.char_indices().nth(text.chars().count() / 2)
        {
            cuts.push(EventId { bytes: id.bytes - (text.len() - middle) as u64, ..id });
        }
        cuts.push(id);
    }
    cuts
}

/// Runs two runs, and steers them at any time. Compares a subscriber from the start with subscribers that join at every third
/// event, and afterwards with subscribers from every position.
async fn check(responses: Vec<ScriptedResponse>, breaks_at: usize, delays: Vec<u8>) {
    let provider = Provider::new(move |n, _| match responses.get(n) {
        Some(responses) => responses.reply(n == breaks_at),
        None => Reply::Sse(super::provider::answer_with("It is done.")),
    })
    .await;
    let (engine, waiting) = late();
    let act = ToolSpec { effect: Default::default(), ..spec("act") };
    let tools = registry([echo("echo"), tool(act, |_| async { Ok("done".into()) })]);
    let setup = setup(&provider, tools, |config| {
        config.agents.get_mut("default").unwrap().execution =
            callsheet_values::types::Execution::Parallel { max: 2 };
    });
    let journal = Arc::clone(&engine) as Arc<dyn Journal>;
    let host = start_on(setup, journal).await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let pauses: Vec<u8> = delays.iter().copied().take(3).collect();
    let storing = spawn({
        let (engine, over) = (Arc::clone(&engine), Arc::clone(&over));
        async move {
            let mut delays = delays.into_iter().cycle();
            while !over.load(Ordering::SeqCst) {
                for _ in 0..delays.next().unwrap_or_default() {
                    tokio::task::yield_now().await;
                }
                if !store_one(&engine, &waiting) {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
    });
    let session = session(&host).await;
    let live = spawn(watched(session.clone()));
    let first = session.start_run("one").await.unwrap();
    let second = RunRequest { queue: true, ..RunRequest::from("two") };
    let second = session.start_run(second).await.unwrap();
    drop((first.events, second.events));
    let steering = spawn({
        let session = session.clone();
        async move {
            for pause in pauses {
                for _ in 0..pause {
                    tokio::task::yield_now().await;
                }
                sleep(Duration::from_millis(u64::from(pause % 4))).await;
                // There may be no run any more.
                let _ = session.steer("And?").await;
            }
        }
    });
    for report in [first.report, second.report] {
        timeout(SOON, report).await.unwrap().unwrap();
    }
    let (live, others) = timeout(SOON, live).await.unwrap().unwrap();
    timeout(SOON, steering).await.unwrap().unwrap();
    over.store(true, Ordering::SeqCst);
    storing.await.unwrap();
    let entries = entries(&*engine, session.id());
    let void = void(&entries);
    let all = whole(live.clone(), &void);
    for (cut, rest) in others {
        let seen = before(&live, cut).into_iter().chain(rest);
        assert_eq!(whole(seen, &void), all, "from {cut} while it ran");
    }
    for cut in cuts(&live) {
        let seen = before(&live, cut);
        let ended = seen.iter().filter(|p| matches!(p.event, Event::RunEnded { .. })).count();
        let rest = until_ended(session.watch(cut).await.unwrap(), 2 - ended).await;
        assert_eq!(whole(seen.into_iter().chain(rest), &void), all, "from {cut}");
    }
    assert_eq!(whole(read_back(&session, &entries), &void), all, "from what is written");
    nothing_left(&host).await;
}

/// Subscribes to two runs, and starts another subscriber at every third event.
async fn watched(
    session: SessionHandle,
) -> (Vec<PublishedEvent>, Vec<(EventId, Vec<PublishedEvent>)>) {
    let (mut live, mut others, mut runs) = (Vec::new(), Vec::new(), 2);
    let mut watch = session.watch(EventId::default()).await.unwrap();
    while runs > 0 {
        let Ok(Some(FeedItem::Event(published))) = timeout(SOON, watch.next()).await else {
            panic!("it ends after {:?}", live.last());
        };
        runs -= usize::from(matches!(published.event, Event::RunEnded { .. }));
        if let Some(id) = published.id.filter(|_| live.len() % 3 == 0 && runs > 0) {
            let cut = if live.len() % 2 == 0 { EventId::default() } else { id };
            let runs = if live.len() % 2 == 0 { 2 } else { runs };
            let other = until_ended(session.watch(cut).await.unwrap(), runs);
            others.push((cut, spawn(other)));
        }
        live.push(PublishedEvent::clone(&published));
    }
    let mut ended = Vec::new();
    for (cut, other) in others {
        ended.push((cut, other.await.unwrap()));
    }
    (live, ended)
}

/// Returns the past events of entries after they are serialised and parsed.
fn read_back(session: &SessionHandle, entries: &[JournalEntry]) -> Vec<PublishedEvent> {
    let mut past = PastEvents::new(session.id().clone(), "", 0);
    let mut published = VecDeque::new();
    for JournalEntry { seq, time, .. } in entries {
        let entry = entries.iter().find(|entry| entry.seq == *seq).unwrap();
        let entry = JournalEntry::from_body(session.id(), *seq, *time, &entry.body()).unwrap();
        past.handle_entry(&entry, &mut published);
    }
    published
        .into_iter()
        .filter_map(|published| part_after(EventId::default(), published))
        .collect()
}

#[test]
fn from_every_position_the_remaining_events_arrive_once() {
    let config = ProptestConfig { cases: 12, failure_persistence: None, ..Default::default() };
    let delays = proptest::collection::vec(0_u8..40, 1..20);
    let strategy = (proptest::collection::vec(scripted_response(), 1..4), 0_usize..5, delays);
    let tested = TestRunner::new(config).run(&strategy, |(responses, breaks_at, delays)| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(check(responses, breaks_at, delays));
        Ok(())
    });
    tested.unwrap();
}

#[tokio::test]
async fn events_are_delivered_when_durable_and_never_after_a_failure() {
    let provider = Provider::answering("Hello you.").await;
    let (engine, waiting) = late();
    let journal = Arc::clone(&engine) as Arc<dyn Journal>;
    let setup = setup(&provider, ToolRegistry::new(), |_| ());
    let host = start_on(setup, journal).await.unwrap();
    let opening = spawn({
        let host = host.clone();
        async move { session(&host).await }
    });
    until("the session waits to be stored", || waiting.lock().len() == 1).await;
    store_one(&engine, &waiting);
    let session = opening.await.unwrap();
    let mut run = session.start_run("go").await.unwrap();
    // The batches of the run, the attempt and the response. The turn waits for the last one.
    until("the response is over", || waiting.lock().len() >= 3).await;
    assert!(run.events.next().now_or_never().is_none());
    let mut watch = session.watch(EventId::default()).await.unwrap();
    assert!(watch.next().now_or_never().is_none());
    store_one(&engine, &waiting);
    let next = timeout(SOON, watch.next()).await.unwrap();
    assert!(
        matches!(&next, Some(FeedItem::Event(published))
        if published.id == Some(EventId { seq: Seq(2), bytes: 0 })),
        "{next:?}"
    );
    let failed = waiting.lock().pop_front();
    let Some(Batch { mut on_status, .. }) = failed else { panic!("nothing waits") };
    on_status(BatchStatus::Failed(JournalError::Full));
    let next = timeout(SOON, watch.next()).await.unwrap();
    assert!(matches!(next, Some(FeedItem::Failed(JournalError::Full))), "{next:?}");
    assert!(watch.next().await.is_none());
    let first = run.events.next().await;
    assert!(matches!(first, Some(FeedItem::Event(_))), "{first:?}");
    let next = run.events.next().await;
    assert!(matches!(next, Some(FeedItem::Failed(JournalError::Full))), "{next:?}");
}

#[tokio::test]
async fn a_reader_of_a_large_event_waits_for_memory_that_readers_share() {
    let provider = Provider::answering("y".repeat(100_000).leak()).await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = session(&host).await;
    session.run("go").await.unwrap();
    let memory = Arc::clone(&host.inner.host_ref.shared.history.bytes);
    let all = u32::try_from(memory.available_permits()).unwrap();
    let taken = memory.acquire_many_owned(all).await.unwrap();
    let mut watch = session.watch(EventId::default()).await.unwrap();
    let mut text_bytes = 0;
    let mut reaches_end = async |wait: Duration| {
        while let Ok(Some(FeedItem::Event(published))) = timeout(wait, watch.next()).await {
            text_bytes += published.event.text().map_or(0, |(_, text)| text.len());
            if matches!(published.event, Event::RunEnded { .. }) {
                return true;
            }
        }
        false
    };
    assert!(!reaches_end(Duration::from_secs(1)).await, "the end has the whole answer, and waits");
    drop(taken);
    assert!(reaches_end(SOON).await, "the end comes");
    assert_eq!(text_bytes, 100_000, "the text comes in small pieces");
}
