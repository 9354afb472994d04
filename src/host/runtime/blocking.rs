//! Runs tools that block or compute on separate threads, at most 64 in the whole host.

use std::future::Future;
use std::panic::resume_unwind;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use super::gauge::{CountGuard, Gauge};

/// Maximum number of threads for blocking tools in the whole host. Further calls wait for a thread;
/// the wait counts toward their time limit.
pub(super) const BLOCKING_THREADS_MAX: usize = 64;

/// The threads of blocking tools.
///
/// A thread cannot be killed. When its call is aborted, the future is dropped at its next await.
/// Until then the thread is *abandoned*: it keeps its permit, and a gauge counts it.
#[derive(Clone, Debug)]
pub(super) struct BlockingPool {
    permits: Arc<Semaphore>,
    abandoned: Gauge,
}

impl BlockingPool {
    pub(super) fn new(threads_max: usize, abandoned: Gauge) -> Self {
        Self { permits: Arc::new(Semaphore::new(threads_max)), abandoned }
    }

    /// Runs a future to its end on a thread that it may block. Panics if the future panics. Returns
    /// `None` if the runtime is shutting down.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        let (caller_alive, aborted) = oneshot::channel::<()>();
        let watch = CallerGuard {
            thread: Arc::default(),
            abandoned: self.abandoned.clone(),
            _caller_alive: caller_alive,
        };
        let thread = Arc::clone(&watch.thread);
        let runtime = Handle::current();
        let joined = tokio::task::spawn_blocking(move || {
            let _ended = ThreadEndGuard(thread);
            let _permit = permit;
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = aborted => None,
                    value = future => Some(value),
                }
            })
        })
        .await;
        drop(watch);
        match joined {
            Ok(value) => value,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => None,
        }
    }
}

/// The state of a thread.
#[derive(Debug, Default)]
enum ThreadState {
    #[default]
    Working,
    Ended,
    /// Its call has ended. The gauge counts it until the thread ends.
    Abandoned {
        _held: CountGuard,
    },
}

/// Held by the caller. If it is dropped before the thread has ended, it marks the thread as
/// abandoned.
struct CallerGuard {
    thread: Arc<Mutex<ThreadState>>,
    abandoned: Gauge,
    /// Notifies the thread when it is dropped.
    _caller_alive: oneshot::Sender<()>,
}

impl Drop for CallerGuard {
    fn drop(&mut self) {
        let mut thread = self.thread.lock();
        if matches!(*thread, ThreadState::Working) {
            *thread = ThreadState::Abandoned { _held: self.abandoned.increment() };
        }
    }
}

/// Held by the thread. Marks the thread as ended when it is dropped.
struct ThreadEndGuard(Arc<Mutex<ThreadState>>);

impl Drop for ThreadEndGuard {
    fn drop(&mut self) {
        *self.0.lock() = ThreadState::Ended;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::runtime::tests::spawn;

    #[tokio::test]
    async fn a_thread_is_counted_from_the_abort_of_its_call_until_it_ends() {
        let abandoned = Gauge::default();
        let pool = BlockingPool::new(1, abandoned.clone());
        assert_eq!(pool.run(async { 7 }).await, Some(7));
        let (release, blocked) = mpsc::channel::<()>();
        let (started, begun) = tokio::sync::oneshot::channel();
        let call = spawn({
            let pool = pool.clone();
            async move {
                pool.run(async move {
                    started.send(()).unwrap();
                    blocked.recv().unwrap();
                })
                .await
            }
        });
        begun.await.unwrap();
        assert_eq!(abandoned.count(), 0);
        call.abort();
        call.await.unwrap_err();
        assert_eq!(abandoned.count(), 1);
        release.send(()).unwrap();
        abandoned.wait_until_zero().await;
        assert_eq!(pool.run(async { 8 }).await, Some(8));
    }

    #[tokio::test]
    async fn a_panic_is_passed_to_the_caller() {
        let pool = BlockingPool::new(1, Gauge::default());
        let call = spawn(async move { pool.run(async { panic!("in the tool") }).await });
        assert!(call.await.unwrap_err().is_panic());
    }
}
