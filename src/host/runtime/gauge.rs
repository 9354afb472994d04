//! Counts of live objects. They reveal leaks, enforce `max_concurrent_runs`, feed the metrics, and let the shutdown
//! wait for runs and calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// A count of live objects of one kind. Each object holds a [`CountGuard`] while it lives.
#[derive(Clone, Debug, Default)]
pub(super) struct Gauge {
    inner: Arc<GaugeCount>,
}

#[derive(Debug, Default)]
struct GaugeCount {
    count: AtomicUsize,
    became_zero: Notify,
}

impl Gauge {
    /// Counts one more object until the guard is dropped.
    pub(super) fn increment(&self) -> CountGuard {
        self.inner.count.fetch_add(1, Ordering::SeqCst);
        CountGuard { gauge: self.clone() }
    }

    /// Counts one more object, unless there are `max` already.
    pub(super) fn try_increment(&self, max: usize) -> Option<CountGuard> {
        self.inner
            .count
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
                (count < max).then_some(count + 1)
            })
            .ok()?;
        Some(CountGuard { gauge: self.clone() })
    }

    /// Returns the count.
    pub(super) fn count(&self) -> usize {
        self.inner.count.load(Ordering::SeqCst)
    }

    /// Waits until the count is 0.
    pub(super) async fn wait_until_zero(&self) {
        loop {
            let became_zero = self.inner.became_zero.notified();
            tokio::pin!(became_zero);
            // Enabled before the check, so that a change after the check is not missed.
            became_zero.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            became_zero.await;
        }
    }
}

/// Counts one object until this guard is dropped.
#[derive(Debug)]
pub(super) struct CountGuard {
    gauge: Gauge,
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        if self.gauge.inner.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.gauge.inner.became_zero.notify_waiters();
        }
    }
}

/// The counts of a host's live objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Gauges {
    /// Sessions that are awake.
    pub(super) awake: Gauge,
    /// Runs in progress that count towards `max_concurrent_runs`: all but `child_runs`.
    pub(super) runs: Gauge,
    /// Runs that calls of agents have started.
    pub(super) child_runs: Gauge,
    /// Runs of awake sessions, approvals or questions of which wait for a person.
    pub(super) waiting_runs: Gauge,
    /// Inputs that wait for the run before them.
    pub(super) queued_inputs: Gauge,
    /// Actors of runs (streams, accumulators, tool supervisors) and of running calls.
    pub(super) actors: Gauge,
    /// Tasks that belong to an actor.
    pub(super) tasks: Gauge,
    /// Actors of running calls. `actors` counts them too.
    pub(super) running_calls: Gauge,
    /// Calls that wait for a permit of their tool or for their server.
    pub(super) waiting_calls: Gauge,
    /// Threads of blocking tools that have not returned although their call has ended.
    pub(super) abandoned_threads: Gauge,
    /// Notifications of hooks about the end of a run.
    pub(super) run_end_hooks: Gauge,
}

impl Gauges {
    /// Waits until no run is counted. The open run of a suspended session is not counted.
    pub(super) async fn wait_until_no_runs(&self) {
        loop {
            self.runs.wait_until_zero().await;
            self.child_runs.wait_until_zero().await;
            // A run that was about to start or to be resumed when the shutdown began may have been counted while this
            // waited for the children.
            if self.runs.count() + self.child_runs.count() == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::tests::spawn;

    #[tokio::test]
    async fn counts_up_to_a_maximum_and_notifies_at_zero() {
        let gauge = Gauge::default();
        gauge.wait_until_zero().await;
        let first = gauge.try_increment(2).unwrap();
        let second = gauge.increment();
        assert!(gauge.try_increment(2).is_none());
        assert_eq!(gauge.count(), 2);
        let waiting = spawn({
            let gauge = gauge.clone();
            async move { gauge.wait_until_zero().await }
        });
        drop(first);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(second);
        waiting.await.unwrap();
        assert_eq!(gauge.count(), 0);
    }
}
