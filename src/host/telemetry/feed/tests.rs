//! Tests of the feed.

use futures::{FutureExt as _, StreamExt as _};

use super::*;
use callsheet_values::event::{ChildEvent, samples};

fn feed() -> Feed {
    Feed::starting_after(Telemetry::new(&[]), Seq(0))
}

fn text(text: impl ToString) -> Event {
    Event::TextReceived { text: text.to_string() }
}

fn publish(feed: &Feed, event: Event) {
    feed.publish(samples::published(event));
}

/// Publishes the event of the record `seq`. `displayed_bytes` of the attempt were published before.
fn publish_recorded(feed: &Feed, event: Event, seq: u64, displayed_bytes: u64) {
    let id = Some(EventId::for_record(Seq(seq), displayed_bytes, &event));
    feed.publish(PublishedEvent { id, timestamp_ms: 7, ..samples::published(event) });
}

fn limit() -> Event {
    Event::LimitReached {
        limit: "l".into(),
        value: 1,
        maximum: 2,
        action: "a".into(),
        reason: None,
    }
}

fn format_item(item: &FeedItem) -> String {
    let FeedItem::Event(published) = item else {
        return match item {
            FeedItem::Lagged => "lagged".to_owned(),
            FeedItem::Failed(error) => format!("failed: {error}"),
            FeedItem::Event(_) => unreachable!(),
        };
    };
    let id = published.id.map(|id| id.to_string()).unwrap_or_default();
    let event = &published.event;
    let word = event.text().map_or_else(|| kind(event), |(_, text)| text.to_owned());
    format!("{id} {word}")
}

fn kind(event: &Event) -> String {
    let all = format!("{event:?}");
    all.split([' ', '{']).next().unwrap_or_default().to_owned()
}

/// Returns the items that have arrived.
fn ready(subscription: &mut Subscription) -> Vec<String> {
    std::iter::from_fn(|| subscription.next().now_or_never().flatten())
        .map(|item| format_item(&item))
        .collect()
}

async fn all(subscription: Subscription) -> Vec<String> {
    subscription.map(|item| format_item(&item)).collect().await
}

#[cfg(feature = "prometheus")]
fn metric(feed: &Feed, name: &str) -> String {
    let page = feed.telemetry.render();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.expect(name).to_owned()
}

#[tokio::test]
async fn all_subscribers_receive_the_same_events_in_order_until_the_feed_ends() {
    let feed = feed();
    let (one, other) = (feed.subscribe(8), feed.subscribe(8));
    (0..8).for_each(|number| publish(&feed, text(number)));
    drop(feed);
    let expect: Vec<_> = (0..8).map(|number| format!("0.{} {number}", number + 1)).collect();
    assert_eq!(all(one).await, expect);
    assert_eq!(all(other).await, expect);
}

#[tokio::test]
async fn a_late_subscriber_receives_later_events() {
    let feed = feed();
    publish(&feed, text("one"));
    let late = feed.subscribe(8);
    assert_eq!(late.start().to_string(), "0.3");
    publish(&feed, text("two"));
    drop(feed);
    assert_eq!(all(late).await, ["0.6 two"]);
}

#[tokio::test]
async fn a_subscriber_to_a_run_receives_only_events_of_that_run() {
    let feed = feed();
    let (one, other) = (feed.subscribe_to_run(RunId("b".into()), 2), feed.subscribe(8));
    for (number, run) in ["a", "a", "a", "b", "c", "b"].into_iter().enumerate() {
        let run = RunId(run.into());
        feed.publish(PublishedEvent { run, ..samples::published(text(number)) });
    }
    assert!(feed.ring.has_subscribers());
    drop(feed);
    assert_eq!(all(one).await, ["0.4 3", "0.6 5"]);
    assert_eq!(all(other).await.len(), 6);
}

#[cfg(feature = "prometheus")]
#[tokio::test]
async fn a_slow_subscriber_is_removed_with_a_notice_and_delays_no_other() {
    let feed = feed();
    let (slow, quick) = (feed.subscribe(2), feed.subscribe(8));
    (0..5).for_each(|number| publish(&feed, text(number)));
    assert_eq!(metric(&feed, "callsheet_subscribers_lagged_total"), "1");
    // The stream ends although the feed lives on.
    assert_eq!(all(slow).await, ["0.1 0", "0.2 1", "lagged"]);
    assert_eq!(metric(&feed, "callsheet_watchers"), "1");
    drop(feed);
    assert_eq!(all(quick).await.len(), 5);
}

#[tokio::test]
async fn a_subscriber_that_reads_does_not_lag() {
    let feed = feed();
    let mut reader = feed.subscribe(1);
    for number in 0..100 {
        publish(&feed, text(number));
        assert!(matches!(reader.next().await, Some(FeedItem::Event(_))));
    }
}

#[tokio::test]
async fn a_waiting_subscriber_wakes_for_an_event_and_for_the_end() {
    let feed = feed();
    let mut waiting = feed.subscribe(1);
    let publish = async {
        tokio::task::yield_now().await;
        publish(&feed, text(0));
    };
    let (seen, ()) = tokio::join!(waiting.next(), publish);
    assert!(matches!(seen, Some(FeedItem::Event(_))));
    let close = async {
        tokio::task::yield_now().await;
        drop(feed);
    };
    let (seen, ()) = tokio::join!(waiting.next(), close);
    assert!(seen.is_none());
}

#[cfg(feature = "prometheus")]
#[test]
fn closed_subscribers_are_removed() {
    let feed = feed();
    assert!(!feed.ring.has_subscribers());
    let kept = feed.subscribe(1);
    (0..100).for_each(|_| drop(feed.subscribe(1)));
    assert!(feed.ring.has_subscribers());
    assert_eq!(metric(&feed, "callsheet_watchers"), "1");
    drop(kept);
    assert!(!feed.ring.has_subscribers());
    publish(&feed, limit());
    assert_eq!(feed.longest_queue(), 0);
    assert_eq!(metric(&feed, "callsheet_watchers"), "0");
}

#[test]
fn a_subscriber_that_does_not_read_keeps_only_its_own_events() {
    let feed = feed();
    let in_run = |run: &str, event| {
        let run = RunId(run.into());
        feed.publish(PublishedEvent { run, ..samples::published(event) });
    };
    let mut stuck = feed.subscribe_to_run(RunId("a".into()), 8);
    let mut reader = feed.subscribe(8);
    in_run("a", text("first"));
    for number in 0..1_000 {
        in_run("b", text(number));
        assert!(!ready(&mut reader).is_empty());
    }
    assert!(feed.ring.unread_slots() < 200, "{}", feed.ring.unread_slots());
    in_run("a", text("last"));
    assert_eq!(ready(&mut stuck).len(), 2);
    assert_eq!(ready(&mut reader).len(), 1);
    assert_eq!(feed.ring.unread_slots(), 0);
    in_run("b", text("unread"));
    drop(reader);
    assert_eq!(feed.ring.unread_slots(), 0);
}

#[test]
fn concurrent_publishers_have_one_order_for_all_subscribers() {
    let feed = feed();
    let (mut one, mut other) = (feed.subscribe(400), feed.subscribe(400));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let feed = &feed;
            scope.spawn(move || (0..100).for_each(|n| publish(feed, text(thread * 100 + n))));
        }
    });
    let (one, other) = (ready(&mut one), ready(&mut other));
    assert_eq!(one.len(), 400);
    assert_eq!(one, other);
}

#[test]
fn events_after_a_record_wait_until_it_is_durable() {
    let feed = feed();
    let mut events = feed.subscribe(16);
    feed.mark_durable(Seq(1));
    publish(&feed, text("a"));
    publish_recorded(&feed, limit(), 2, 1);
    publish(&feed, text("bc"));
    publish_recorded(&feed, limit(), 4, 3);
    let call = samples::label();
    publish(&feed, Event::CallOpened { call });
    assert_eq!(ready(&mut events), ["0.1 a"]);
    assert_eq!(feed.position().delivered.to_string(), "0.1");
    // A new subscriber receives the published text, not the waiting text.
    let (mut late, snapshot) = feed.subscribe_from(EventId::default(), 8);
    assert!(snapshot.states.is_empty());
    feed.mark_durable(Seq(2));
    assert_eq!(ready(&mut events), ["2.1 LimitReached", "2.3 bc"]);
    feed.mark_durable(Seq(3));
    assert_eq!(ready(&mut events), [""; 0]);
    feed.mark_durable(Seq(5));
    assert_eq!(ready(&mut events), ["4.3 LimitReached", " CallOpened"]);
    let expect = ["2.1 LimitReached", "2.3 bc", "4.3 LimitReached", " CallOpened"];
    assert_eq!(ready(&mut late), expect);
}

#[test]
fn waiting_events_are_dropped_when_the_journal_fails() {
    let feed = feed();
    let mut events = feed.subscribe(16);
    publish_recorded(&feed, limit(), 1, 0);
    feed.fail(JournalError::Full);
    publish(&feed, text("later"));
    feed.mark_durable(Seq(1));
    let failed = "failed: write the journal: the disk is full";
    assert_eq!(ready(&mut events), [failed]);
    assert!(events.next().now_or_never().is_some_and(|end| end.is_none()));
    let (mut late, snapshot) = feed.subscribe_from(EventId::default(), 8);
    assert_eq!(snapshot.position.delivered, EventId::default());
    assert_eq!(ready(&mut late), [failed]);
    assert_eq!(
        journal_failed(&JournalError::Full, None).json,
        "{\"code\":\"journal_failed\",\"message\":\"write the journal: the disk is full\",\
         \"transient\":true,\"type\":\"error\"}"
    );
}

#[test]
fn text_without_subscribers_is_kept_for_later_ones() {
    let feed = feed();
    feed.mark_durable(Seq(9));
    publish_recorded(&feed, Event::TurnStarted, 3, 0);
    let append = |event: &Event| feed.append_text_without_subscribers(event);
    assert!(append(&Event::ThinkingReceived { text: "hm".into() }));
    assert!(append(&text("Nö")));
    assert!(append(&text("on")));
    assert!(!append(&limit()));
    let running = |after: &str| {
        let (_, snapshot) = feed.subscribe_from(after.parse().unwrap(), 1);
        let running = snapshot.running.unwrap();
        let pieces = running.pieces.into_iter().map(|piece| (piece.is_thinking, piece.text));
        (running.from, pieces.collect::<Vec<_>>())
    };
    let piece = |is_thinking, text: &str| (is_thinking, text.to_owned());
    assert_eq!(running("0"), (0, vec![piece(true, "hm"), piece(false, "Nöon")]));
    assert_eq!(running("3.1"), (1, vec![piece(true, "m"), piece(false, "Nöon")]));
    assert_eq!(running("3.3"), (3, vec![piece(false, "öon")]));
    // A position within a character is moved to its start.
    assert_eq!(running("3.4"), (3, vec![piece(false, "öon")]));
    assert_eq!(running("3.7"), (7, vec![]));
    assert_eq!(running("3.99"), (7, vec![]));
    // The next attempt starts with empty text.
    let events = samples::every();
    let again = events.into_iter().find(|e| matches!(e, Event::AttemptStarted { .. })).unwrap();
    publish_recorded(&feed, again, 5, 7);
    assert_eq!(running("0"), (0, vec![]));
    assert_eq!(feed.position().delivered.to_string(), "5.0");
    let subscriber = feed.subscribe(1);
    assert!(!append(&text("for a subscriber")));
    drop(subscriber);
    assert!(append(&text("without a subscriber")));
    let before = feed.position();
    feed.fail(JournalError::Full);
    assert!(!append(&text("after the failure")));
    assert_eq!(feed.position(), before);
}

#[test]
fn text_that_waits_for_a_record_is_one_event() {
    let feed = feed();
    feed.mark_durable(Seq(2));
    publish_recorded(&feed, Event::TurnStarted, 3, 0);
    let append = |event: &Event| feed.append_text_without_subscribers(event);
    // It waits behind the start of the turn.
    assert!(!append(&text("a")));
    publish(&feed, text("a"));
    assert!(append(&text("b")));
    assert!(!append(&Event::ThinkingReceived { text: "hm".into() }));
    publish(&feed, Event::CallOpened { call: samples::label() });
    publish(&feed, text("c"));
    assert!(append(&text("d")));
    assert_eq!(feed.position().delivered.to_string(), "0.0");
    let mut subscriber = feed.subscribe(9);
    assert!(!append(&text("e")));
    publish(&feed, text("e"));
    feed.mark_durable(Seq(3));
    assert_eq!(
        ready(&mut subscriber),
        ["3.0 TurnStarted", "3.2 ab", " CallOpened", "3.4 cd", "3.5 e"]
    );
    drop(subscriber);
    assert!(append(&text("f")));
    assert_eq!(feed.position().delivered.to_string(), "3.6");
}

#[test]
fn arguments_reach_only_subscribers_that_ask_for_them() {
    let feed = feed();
    feed.mark_durable(Seq(9));
    let arguments =
        || Event::ArgumentsReceived { call: samples::label(), offset: 0, text: "{".to_owned() };
    let child = ChildEvent { event: arguments(), ..samples::child_event() };
    let of_child = Event::OfChild { call: samples::key(), event: Arc::new(child) };
    let (mut plain, mut asking) = (feed.subscribe(1), feed.subscribe(9));
    assert!(!feed.has_argument_readers());
    publish(&feed, text("a"));
    asking.receive_arguments();
    assert!(feed.has_argument_readers());
    publish(&feed, arguments());
    publish(&feed, of_child);
    // They do not count as unread events of the other one.
    assert_eq!(ready(&mut plain), ["0.1 a"]);
    assert_eq!(ready(&mut asking), ["0.1 a", " ArgumentsReceived", " OfChild"]);
    publish(&feed, text("b"));
    assert_eq!((ready(&mut plain).len(), ready(&mut asking).len()), (1, 1));
    drop(asking);
    assert!(!feed.has_argument_readers());
    let mut lagging = feed.subscribe(1);
    lagging.receive_arguments();
    (0..2).for_each(|_| publish(&feed, arguments()));
    assert!(!feed.has_argument_readers());
}

#[test]
fn text_is_kept_until_the_record_of_its_response() {
    let feed = feed();
    feed.mark_durable(Seq(9));
    publish_recorded(&feed, Event::TurnStarted, 1, 0);
    publish(&feed, text("all"));
    let pieces =
        || feed.subscribe_from(EventId::default(), 1).1.running.map(|text| text.pieces.len());
    assert_eq!((feed.position().delivered.to_string().as_str(), pieces()), ("1.3", Some(1)));
    assert!(feed.position().has_text);
    let steered = Event::RunSteered { input: "go".into(), author: None };
    publish_recorded(&feed, steered, 2, 3);
    assert_eq!((feed.position().delivered.to_string().as_str(), pieces()), ("2.3", Some(1)));
    let ended = Event::ResponseEnded { response: Arc::new(samples::response()) };
    publish_recorded(&feed, ended, 3, 3);
    assert_eq!((feed.position().delivered.to_string().as_str(), pieces()), ("3.0", Some(0)));
    assert!(!feed.position().has_text);
}

#[test]
fn a_new_subscriber_receives_the_open_calls() {
    let feed = feed();
    feed.mark_durable(Seq(9));
    let call = |index| {
        let mut call = samples::label();
        call.key.index = index;
        call
    };
    let open = || {
        let (_, snapshot) = feed.subscribe_from(EventId::default(), 1);
        snapshot.states.iter().map(|published| kind(&published.event)).collect::<Vec<_>>()
    };
    let service = |status| {
        let call = Box::new(samples::service_call());
        Event::ServiceCallChanged { call, status }
    };
    use callsheet_values::event::ServiceCallStatus::{Finished, Running};
    publish(&feed, Event::CallOpened { call: call(2) });
    publish(&feed, service(Running));
    publish(&feed, Event::CallOpened { call: call(3) });
    publish(
        &feed,
        Event::CallStarted {
            call: call(2),
            arguments: Arc::default(),
            input_summary: String::new(),
            early: true,
            waited: std::time::Duration::ZERO,
            queued: None,
            known_calls: 2,
        },
    );
    for text in ["a", "b"] {
        publish(&feed, Event::CallProgressed { key: call(2).key, text: text.into() });
        publish(&feed, Event::CallProgressed { key: call(7).key, text: text.into() });
    }
    assert_eq!(open(), ["CallStarted", "CallProgressed", "ServiceCallChanged", "CallOpened"]);
    publish(&feed, service(Finished));
    publish(&feed, Event::CallDiscarded { call: call(3), had_result: false });
    assert_eq!(open(), ["CallStarted", "CallProgressed"]);
    let result = Box::new(samples::result());
    publish_recorded(&feed, Event::CallEnded { result, parallel: true, early: true }, 2, 0);
    assert_eq!(open(), [""; 0]);
    publish(&feed, Event::CallOpened { call: call(4) });
    publish_recorded(&feed, Event::TurnEnded { summary: Box::default() }, 3, 0);
    assert_eq!(open(), [""; 0]);
}

#[test]
fn a_stalled_subscriber_costs_only_a_bounded_queue_of_shared_events() {
    let feed = feed();
    let mut stalled: Vec<_> = (0..200).map(|_| feed.subscribe(1024)).collect();
    let progress = Event::CallProgressed { key: samples::key(), text: "x".repeat(1000) };
    let info = allocation_counter::measure(|| {
        (0..1500).for_each(|_| publish(&feed, progress.clone()));
    });
    // This leaves 1,024 events of about 1.3 kB, and their pointers in 200 queues.
    let for_queues = usize::try_from(info.bytes_current).unwrap() - 1024 * 1300;
    assert!(for_queues / 200 < 12 * 1024, "{} bytes each", for_queues / 200);
    assert!(!feed.ring.has_subscribers());
    for subscription in &mut stalled {
        let received = ready(subscription);
        assert_eq!((received.len(), received.last().unwrap().as_str()), (1025, "lagged"));
    }
}

#[tokio::test(start_paused = true)]
#[expect(clippy::disallowed_methods, reason = "the test's tasks end with its runtime")]
async fn many_waiting_subscribers_are_woken_in_groups() {
    let feed = feed();
    let woken = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = || woken.load(std::sync::atomic::Ordering::Relaxed);
    for _ in 0..100 {
        let (mut subscription, woken) = (feed.subscribe(8), Arc::clone(&woken));
        tokio::spawn(async move {
            while subscription.next().await.is_some() {
                woken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        });
    }
    let settle = async || {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
    };
    settle().await;
    publish(&feed, text("a"));
    settle().await;
    assert!((1..=17).contains(&count()), "{} are woken at once", count());
    publish(&feed, text("b"));
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(count(), 200, "all receive all events");
}
