//! A few threads for work that takes long: the reads of SQLite, and what is rebuilt from records.
//!
//! Their number is fixed, unlike that of the threads of [`tokio::task::spawn_blocking`]: an allocator keeps memory
//! for each thread that has decoded large records.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, SendError, Sender};
use std::sync::{Arc, OnceLock};
use std::{fmt, thread};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Maximum number of works at the same time. Further ones wait.
const THREADS: usize = 4;

type Work = Box<dyn FnOnce() + Send>;

/// Threads that do work in the order in which it arrives. They start with the first work, and end after
/// the last one when this value is dropped.
#[derive(Default)]
pub(crate) struct WorkerThreads {
    works: OnceLock<Sender<Work>>,
}

impl WorkerThreads {
    /// Does some work. It is skipped if this future is dropped before it begins, and else done to its end. `None` if
    /// it panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, result) = oneshot::channel();
        let work: Work = Box::new(move || {
            if !reply.is_closed() {
                // The caller may have gone meanwhile.
                let _ = reply.send(work());
            }
        });
        if let Err(SendError(work)) = self.works.get_or_init(start_threads).send(work) {
            // No thread could be started.
            work();
        }
        result.await.ok()
    }
}

impl fmt::Debug for WorkerThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerThreads").finish_non_exhaustive()
    }
}

fn start_threads() -> Sender<Work> {
    let (sender, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..THREADS {
        let works = Arc::clone(&receiver);
        let thread = thread::Builder::new().name("callsheet-read".to_owned());
        if let Err(error) = thread.spawn(move || run_works(&works)) {
            tracing::warn!(%error, "a thread for reads of the journal cannot be started");
        }
    }
    sender
}

fn run_works(works: &Mutex<Receiver<Work>>) {
    loop {
        let next = works.lock().recv();
        let Ok(work) = next else { return };
        // Work that panics drops its reply, so that its caller is told.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
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
    async fn work_that_panics_leaves_their_threads_alive() {
        let threads = WorkerThreads::default();
        for _ in 0..2 * THREADS {
            let panicked = threads.run(|| std::panic::resume_unwind(Box::new(()))).await;
            assert_eq!(panicked, None::<()>);
        }
        assert_eq!(threads.run(|| 1).await, Some(1));
    }

    #[tokio::test]
    async fn threads_end_with_their_owner() {
        let threads = WorkerThreads::default();
        // Each thread waits for all the others, so that one of them cannot run all of these reads.
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
    async fn work_whose_caller_has_gone_is_skipped() {
        let threads = WorkerThreads::default();
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
