//! The subscribers of one session.
//!
//! Each has a bounded queue. Publishing never waits for one: a subscriber whose queue is full gets
//! what is in it, then is told that it lagged, and its stream ends; it may read again from where
//! it was. All subscribers see the same events in the same order.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::event::Published;
use crate::types::RunId;

/// Hands a session's events to whoever listens. Dropping it ends every subscriber's stream.
#[derive(Debug, Default)]
pub struct Bus {
    subscribers: Mutex<Vec<Subscriber>>,
}

#[derive(Debug)]
struct Subscriber {
    /// Whose events it hears; those of all runs if there is none.
    run: Option<RunId>,
    queue: mpsc::Sender<Arc<Published>>,
    lagged: Arc<AtomicBool>,
}

/// What a subscriber gets.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The next event.
    Event(Arc<Published>),
    /// The subscriber was too slow and missed what came next. This is its last item.
    Lagged,
}

/// The events of one session, or of one of its runs, from the moment of subscribing: a stream of
/// [`Delivery`], which ends with the session, or after [`Delivery::Lagged`].
#[derive(Debug)]
#[must_use = "a subscription that is dropped hears nothing"]
pub struct Subscription {
    queue: mpsc::Receiver<Arc<Published>>,
    lagged: Arc<AtomicBool>,
}

impl Bus {
    /// A bus without subscribers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a subscriber that may be `capacity` events behind (at least 1).
    pub fn subscribe(&self, capacity: usize) -> Subscription {
        self.add(None, capacity)
    }

    /// Adds a subscriber that hears the events of one run alone, which may begin later.
    pub fn subscribe_to(&self, run: RunId, capacity: usize) -> Subscription {
        self.add(Some(run), capacity)
    }

    fn add(&self, run: Option<RunId>, capacity: usize) -> Subscription {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        let lagged = Arc::new(AtomicBool::new(false));
        let mut subscribers = self.subscribers.lock();
        // An idle session publishes nothing, and those who leave it would never be let go.
        subscribers.retain(|subscriber| !subscriber.queue.is_closed());
        subscribers.push(Subscriber { run, queue: sender, lagged: Arc::clone(&lagged) });
        drop(subscribers);
        Subscription { queue: receiver, lagged }
    }

    /// Whether nobody listens.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.subscribers.lock().iter().all(|subscriber| subscriber.queue.is_closed())
    }

    /// Hands an event to every subscriber, and lets those go that are gone or too slow.
    /// Returns how many were too slow. Never blocks; allocates nothing when nobody listens.
    pub fn publish(&self, event: Published) -> usize {
        let mut subscribers = self.subscribers.lock();
        subscribers.retain(|subscriber| !subscriber.queue.is_closed());
        if subscribers.is_empty() {
            return 0;
        }
        let event = Arc::new(event);
        let mut lagged = 0;
        subscribers.retain(|subscriber| {
            if subscriber.run.as_ref().is_some_and(|run| *run != event.run) {
                return true;
            }
            match subscriber.queue.try_send(Arc::clone(&event)) {
                Ok(()) => true,
                Err(TrySendError::Closed(_)) => false,
                Err(TrySendError::Full(_)) => {
                    // The mark is set before the sender is dropped, which is what the reader sees.
                    subscriber.lagged.store(true, Ordering::Release);
                    lagged += 1;
                    false
                }
            }
        });
        lagged
    }
}

impl Stream for Subscription {
    type Item = Delivery;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Delivery>> {
        let next = ready!(self.queue.poll_recv(context));
        Poll::Ready(match next {
            Some(event) => Some(Delivery::Event(event)),
            None => self.lagged.swap(false, Ordering::Acquire).then_some(Delivery::Lagged),
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;
    use crate::event::Event;
    use crate::event::samples;

    fn event(number: usize) -> Published {
        samples::published(Event::TextReceived { text: number.to_string() })
    }

    /// The texts of the stream up to its end, `!` where it says that it lagged.
    async fn texts(subscription: Subscription) -> Vec<String> {
        subscription
            .map(|delivery| match delivery {
                Delivery::Lagged => "!".to_owned(),
                Delivery::Event(published) => {
                    let Event::TextReceived { text } = &published.event else {
                        panic!("{published:?} was never published");
                    };
                    text.clone()
                }
            })
            .collect()
            .await
    }

    #[tokio::test]
    async fn all_subscribers_hear_the_same_in_order_until_the_bus_is_gone() {
        let bus = Bus::new();
        let (one, other) = (bus.subscribe(8), bus.subscribe(8));
        for number in 0..8 {
            assert_eq!(bus.publish(event(number)), 0);
        }
        drop(bus);
        let expect: Vec<_> = (0..8).map(|number| number.to_string()).collect();
        assert_eq!(texts(one).await, expect);
        assert_eq!(texts(other).await, expect);
    }

    #[tokio::test]
    async fn a_late_subscriber_hears_what_comes_after() {
        let bus = Bus::new();
        bus.publish(event(0));
        let late = bus.subscribe(8);
        bus.publish(event(1));
        drop(bus);
        assert_eq!(texts(late).await, ["1"]);
    }

    #[tokio::test]
    async fn a_subscriber_to_a_run_hears_that_run_alone_and_lags_for_no_other() {
        let bus = Bus::new();
        let of_run =
            |run: &str, number| crate::event::Published { run: RunId(run.into()), ..event(number) };
        let (one, other) = (bus.subscribe_to(RunId("b".into()), 2), bus.subscribe(8));
        for (number, run) in ["a", "a", "a", "b", "c", "b"].into_iter().enumerate() {
            assert_eq!(bus.publish(of_run(run, number)), 0);
        }
        assert!(!bus.is_idle());
        drop(bus);
        assert_eq!(texts(one).await, ["3", "5"]);
        assert_eq!(texts(other).await.len(), 6);
    }

    #[tokio::test]
    async fn a_slow_subscriber_is_told_and_let_go_and_delays_nobody() {
        let bus = Bus::new();
        let (slow, quick) = (bus.subscribe(2), bus.subscribe(8));
        let lagged: Vec<_> = (0..5).map(|number| bus.publish(event(number))).collect();
        assert_eq!(lagged, [0, 0, 1, 0, 0]);
        // Its stream ends although the bus lives on.
        assert_eq!(texts(slow).await, ["0", "1", "!"]);
        drop(bus);
        assert_eq!(texts(quick).await, ["0", "1", "2", "3", "4"]);
    }

    #[tokio::test]
    async fn a_subscriber_that_reads_does_not_lag() {
        let bus = Bus::new();
        let mut reader = bus.subscribe(1);
        for number in 0..100 {
            assert_eq!(bus.publish(event(number)), 0);
            assert!(matches!(reader.next().await, Some(Delivery::Event(_))));
        }
    }

    #[tokio::test]
    async fn a_waiting_subscriber_wakes_for_an_event_and_for_the_end() {
        let bus = Bus::new();
        let mut waiting = bus.subscribe(1);
        let publish = async {
            tokio::task::yield_now().await;
            bus.publish(event(0));
        };
        let (seen, ()) = tokio::join!(waiting.next(), publish);
        assert!(matches!(seen, Some(Delivery::Event(_))));
        let close = async {
            tokio::task::yield_now().await;
            drop(bus);
        };
        let (seen, ()) = tokio::join!(waiting.next(), close);
        assert!(seen.is_none());
    }

    #[test]
    fn a_dropped_subscriber_is_forgotten() {
        let bus = Bus::new();
        assert!(bus.is_idle());
        let kept = bus.subscribe(1);
        let gone = bus.subscribe(1);
        assert!(!bus.is_idle());
        drop(gone);
        assert_eq!(bus.publish(event(0)), 0);
        assert_eq!(bus.subscribers.lock().len(), 1);
        drop(kept);
        assert!(bus.is_idle());
        assert_eq!(bus.publish(event(1)), 0);
        assert_eq!(bus.subscribers.lock().len(), 0);
    }

    #[test]
    fn subscribers_that_come_and_go_do_not_pile_up() {
        let bus = Bus::new();
        let _kept = bus.subscribe(1);
        for _ in 0..100 {
            drop(bus.subscribe(1));
        }
        assert!(bus.subscribers.lock().len() <= 2);
    }

    #[test]
    fn threads_that_publish_at_once_are_heard_in_one_order() {
        let bus = Bus::new();
        let (one, other) = (bus.subscribe(400), bus.subscribe(400));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let bus = &bus;
                scope.spawn(move || {
                    for number in 0..100 {
                        bus.publish(event(thread * 100 + number));
                    }
                });
            }
        });
        drop(bus);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (one, other) = runtime.block_on(async { (texts(one).await, texts(other).await) });
        assert_eq!(one.len(), 400);
        assert_eq!(one, other);
    }
}
