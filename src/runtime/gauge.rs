//! Counts of what is alive, so that a leak shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// How many of a kind there are. Every one holds a [`Held`] for as long as it lives.
#[derive(Clone, Debug, Default)]
pub(super) struct Gauge {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    count: AtomicUsize,
    emptied: Notify,
}

impl Gauge {
    /// Counts one more, until the guard is dropped.
    pub(super) fn hold(&self) -> Held {
        self.inner.count.fetch_add(1, Ordering::Relaxed);
        Held { gauge: self.clone() }
    }

    /// The same, unless there are `max` already.
    pub(super) fn try_hold(&self, max: usize) -> Option<Held> {
        self.inner
            .count
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
                (count < max).then_some(count + 1)
            })
            .ok()?;
        Some(Held { gauge: self.clone() })
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.inner.count.load(Ordering::SeqCst)
    }

    /// Waits until there are none.
    pub(super) async fn emptied(&self) {
        loop {
            let emptied = self.inner.emptied.notified();
            tokio::pin!(emptied);
            // Enabled before the look, so that no emptying falls between the two.
            emptied.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            emptied.await;
        }
    }
}

/// One that is counted.
#[derive(Debug)]
pub(super) struct Held {
    gauge: Gauge,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.gauge.inner.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.gauge.inner.emptied.notify_waiters();
        }
    }
}

/// What is alive in a host.
#[derive(Clone, Debug, Default)]
pub(super) struct Gauges {
    /// Sessions that are awake.
    pub(super) awake: Gauge,
    pub(super) runs: Gauge,
    pub(super) queued: Gauge,
    pub(super) actors: Gauge,
    pub(super) tasks: Gauge,
    pub(super) tools: Gauge,
    pub(super) waiting: Gauge,
    pub(super) abandoned: Gauge,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::tests::spawn;

    #[tokio::test]
    async fn counts_up_to_a_maximum_and_tells_when_it_is_empty() {
        let gauge = Gauge::default();
        gauge.emptied().await;
        let first = gauge.try_hold(2).unwrap();
        let second = gauge.hold();
        assert!(gauge.try_hold(2).is_none());
        assert_eq!(gauge.count(), 2);
        let waiting = spawn({
            let gauge = gauge.clone();
            async move { gauge.emptied().await }
        });
        drop(first);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(second);
        waiting.await.unwrap();
        assert_eq!(gauge.count(), 0);
    }
}
