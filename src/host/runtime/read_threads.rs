//! The threads that read the journal.
//!
//! Their number is fixed, unlike that of the threads of [`tokio::task::spawn_blocking`]: an allocator keeps memory
//! for each thread that has decoded large records.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, SendError, Sender};
use std::sync::{Arc, OnceLock};
use std::{fmt, thread};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::error::HostError;
use super::task;

/// Maximum number of concurrent reads. Further ones wait.
const READ_THREADS: usize = 4;

type Read = Box<dyn FnOnce() + Send>;

/// Threads that run blocking reads in the order in which these arrive. They start with the first read, and end after
/// the last one when this value is dropped.
#[derive(Default)]
pub(super) struct ReadThreads {
    reads: OnceLock<Sender<Read>>,
}

impl ReadThreads {
    /// Runs a read. It is skipped if this future is dropped before it begins, and else runs to its end.
    ///
    /// # Errors
    /// If the read panics.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HostError> {
        let (reply, result) = oneshot::channel();
        let read: Read = Box::new(move || {
            if !reply.is_closed() {
                // The caller may have gone meanwhile.
                let _ = reply.send(read());
            }
        });
        if let Err(SendError(read)) = self.reads.get_or_init(start_threads).send(read) {
            // No thread could be started.
            task::blocking(read).await?;
        }
        // The read has panicked.
        result.await.map_err(|_| HostError::ShuttingDown)
    }
}

impl fmt::Debug for ReadThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadThreads").finish_non_exhaustive()
    }
}

fn start_threads() -> Sender<Read> {
    let (sender, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..READ_THREADS {
        let (reads, runtime) = (Arc::clone(&receiver), Handle::current());
        let thread = thread::Builder::new().name("callsheet-read".to_owned());
        let run = move || {
            // A journal of the embedding program may use its runtime.
            let _context = runtime.enter();
            run_reads(&reads);
        };
        if let Err(error) = thread.spawn(run) {
            tracing::warn!(%error, "a thread for reads of the journal cannot be started");
        }
    }
    sender
}

fn run_reads(reads: &Mutex<Receiver<Read>>) {
    loop {
        let next = reads.lock().recv();
        let Ok(read) = next else { return };
        // A read that panics drops its reply, so that its caller gets an error.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(read)) {
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
    async fn reads_that_panic_leave_their_threads_alive() {
        let threads = ReadThreads::default();
        for _ in 0..2 * READ_THREADS {
            let panicked = threads.run(|| std::panic::resume_unwind(Box::new(()))).await;
            assert!(matches!(panicked, Err::<(), _>(HostError::ShuttingDown)));
        }
        assert_eq!(threads.run(|| 1).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn threads_end_with_their_owner() {
        let threads = ReadThreads::default();
        // Each thread waits for all the others, so that one of them cannot run all of these reads.
        let all = Arc::new(std::sync::Barrier::new(READ_THREADS));
        let alive = Arc::new(());
        let waiting = (0..READ_THREADS).map(|_| {
            let (all, alive) = (Arc::clone(&all), Arc::clone(&alive));
            threads.run(move || {
                all.wait();
                THREAD.set(Some(alive));
            })
        });
        futures::future::join_all(waiting).await;
        assert_eq!(Arc::strong_count(&alive), 1 + READ_THREADS);
        drop(threads);
        while Arc::strong_count(&alive) > 1 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_read_can_use_the_runtime() {
        let threads = ReadThreads::default();
        let slept = threads.run(|| Handle::current().block_on(tokio::task::yield_now())).await;
        assert!(slept.is_ok());
    }

    #[tokio::test]
    async fn a_read_whose_caller_has_gone_is_skipped() {
        let threads = ReadThreads::default();
        let busy = Arc::new(std::sync::Barrier::new(READ_THREADS + 1));
        let has_run = Arc::new(AtomicBool::new(false));
        let waiting: Vec<_> = (0..READ_THREADS)
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
