//! A small thread pool for jobs that take long: reads of SQLite, and rebuilding sessions from records.
//!
//! Their number is fixed, unlike that of the threads of [`tokio::task::spawn_blocking`]: an allocator keeps memory
//! for each thread that has decoded large records.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, SendError, Sender};
use std::sync::{Arc, OnceLock};
use std::{fmt, thread};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Maximum number of jobs at the same time. Further ones wait.
const THREADS: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that run jobs in the order in which these arrive. They start with the first job, and end after
/// the last one when this value is dropped.
#[derive(Default)]
pub(crate) struct ThreadPool {
    jobs: OnceLock<Sender<Job>>,
}

impl ThreadPool {
    /// Runs a job. It is skipped if this future is dropped before it begins, and else runs to its end. Returns `None`
    /// if it panics on a thread of the pool.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, result) = oneshot::channel();
        let job: Job = Box::new(move || {
            if !reply.is_closed() {
                // The caller may have gone meanwhile.
                let _ = reply.send(job());
            }
        });
        if let Err(SendError(job)) = self.jobs.get_or_init(start_threads).send(job) {
            // No thread could be started, so the caller waits.
            job();
        }
        result.await.ok()
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool").finish_non_exhaustive()
    }
}

fn start_threads() -> Sender<Job> {
    let (sender, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..THREADS {
        let jobs = Arc::clone(&receiver);
        let thread = thread::Builder::new().name("callsheet-jobs".to_owned());
        if let Err(error) = thread.spawn(move || run_jobs(&jobs)) {
            tracing::warn!(%error, "a thread for reads and rebuilding cannot be started");
        }
    }
    sender
}

fn run_jobs(jobs: &Mutex<Receiver<Job>>) {
    loop {
        let next = jobs.lock().recv();
        let Ok(job) = next else { return };
        // A job that panics drops its reply, so that its caller gets `None`.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(job)) {
            // To drop it may panic, too.
            std::mem::forget(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test]
    async fn jobs_that_panic_leave_their_threads_alive() {
        let threads = ThreadPool::default();
        for _ in 0..2 * THREADS {
            let panicked = threads.run(|| std::panic::resume_unwind(Box::new(()))).await;
            assert_eq!(panicked, None::<()>);
        }
        assert_eq!(threads.run(|| 1).await, Some(1));
    }

    #[tokio::test]
    async fn threads_end_with_their_owner() {
        let threads = ThreadPool::default();
        // Each thread waits for all the others, so that one of them cannot run all of these jobs.
        let all = Arc::new(std::sync::Barrier::new(THREADS));
        let alive = Arc::new(());
        let waiting = (0..THREADS).map(|_| {
            let (all, alive) = (Arc::clone(&all), Arc::clone(&alive));
            threads.run(move || {
                all.wait();
                THREAD.set(Some(alive));
            })
        });
        futures::future::join_all(waiting).await;
        assert_eq!(Arc::strong_count(&alive), 1 + THREADS);
        drop(threads);
        while Arc::strong_count(&alive) > 1 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_job_whose_caller_has_gone_is_skipped() {
        let threads = ThreadPool::default();
        let busy = Arc::new(std::sync::Barrier::new(THREADS + 1));
        let has_run = Arc::new(AtomicBool::new(false));
        let waiting: Vec<_> = (0..THREADS)
            .map(|_| {
                let busy = Arc::clone(&busy);
                Box::pin(threads.run(move || busy.wait()))
            })
            .collect();
        let waiting = futures::future::join_all(waiting);
        let flag = Arc::clone(&has_run);
        let mut dropped = Box::pin(threads.run(move || flag.store(true, Ordering::Relaxed)));
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        assert!(futures::poll!(&mut dropped).is_pending());
        drop(dropped);
        assert_eq!(Arc::strong_count(&has_run), 2, "it waits for a thread");
        busy.wait();
        waiting.await;
        while Arc::strong_count(&has_run) > 1 {
            tokio::task::yield_now().await;
        }
        assert!(!has_run.load(Ordering::Relaxed));
    }

    thread_local! {
        /// Dropped with the thread.
        static THREAD: std::cell::RefCell<Option<Arc<()>>> = const { std::cell::RefCell::new(None) };
    }
}
