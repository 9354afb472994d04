//! A journal in memory with a test's own `append`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::stored;

use crate::journal::{
    AppendStatus, Batch, Journal, JournalEntry, JournalError, JournalFuture, JournalStatus,
    MemoryJournal, SessionQuery, SessionSummary,
};
use callsheet_values::record::Seq;
use callsheet_values::types::SessionId;

/// Handles a batch and passes it to the engine.
pub(super) type Append = dyn Fn(&MemoryJournal, Batch) -> AppendStatus + Send + Sync;

/// An engine in memory with a test's own `append`.
pub(super) struct Engine {
    inner: Arc<MemoryJournal>,
    append: Box<Append>,
    /// Once set, nothing is removed.
    is_dead: Arc<AtomicBool>,
    /// The removal of this session waits.
    held: Mutex<Option<SessionId>>,
    /// Reads of this session wait.
    held_reads: Mutex<Option<SessionId>>,
    /// While it is set, sessions cannot be read.
    is_unavailable: AtomicBool,
    /// While it is set, a list waits after it was made.
    holds_lists: AtomicBool,
    /// While it is set, documents wait before they are stored.
    holds_documents: AtomicBool,
    /// Once set, the next removal fails after it has removed the records.
    fails_late: AtomicBool,
    /// Once set, the next document is not stored.
    fails_document: AtomicBool,
    /// The number of times that sessions were listed.
    lists: AtomicUsize,
    removals: AtomicUsize,
    /// The number of documents whose storing has begun.
    documents: AtomicUsize,
}

impl Engine {
    pub(super) fn new(
        append: impl Fn(&MemoryJournal, Batch) -> AppendStatus + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::on(Arc::default(), append)
    }

    /// Returns an engine on the records of another one.
    pub(super) fn on(
        inner: Arc<MemoryJournal>,
        append: impl Fn(&MemoryJournal, Batch) -> AppendStatus + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner,
            append: Box::new(append),
            is_dead: Arc::default(),
            held: Mutex::default(),
            held_reads: Mutex::default(),
            is_unavailable: AtomicBool::new(false),
            holds_lists: AtomicBool::new(false),
            holds_documents: AtomicBool::new(false),
            fails_late: AtomicBool::new(false),
            fails_document: AtomicBool::new(false),
            lists: AtomicUsize::new(0),
            removals: AtomicUsize::new(0),
            documents: AtomicUsize::new(0),
        })
    }

    /// Makes the engine return an error after it has removed sessions, once.
    pub(super) fn fail_after_removal(&self) {
        self.fails_late.store(true, Ordering::SeqCst);
    }

    /// Makes the engine fail to store the next document.
    pub(super) fn fail_document(&self) {
        self.fails_document.store(true, Ordering::SeqCst);
    }

    /// Returns whether the next document is not stored.
    pub(super) fn fails_document(&self) -> bool {
        self.fails_document.load(Ordering::SeqCst)
    }

    /// Makes the engine fail to remove sessions once this is set.
    pub(super) fn dead_once(self: Arc<Self>, is_dead: &Arc<AtomicBool>) -> Arc<Self> {
        let mut engine = Arc::into_inner(self).unwrap();
        engine.is_dead = Arc::clone(is_dead);
        Arc::new(engine)
    }

    /// Lets the removal of a session wait, or of none.
    pub(super) fn hold_removal(&self, session: Option<SessionId>) {
        *self.held.lock() = session;
    }

    /// Lets reads of a session wait, or of none.
    pub(super) fn hold_reads(&self, session: Option<SessionId>) {
        *self.held_reads.lock() = session;
    }

    /// Lets reads of sessions fail, as those of a database that cannot be reached, or no longer.
    pub(super) fn fail_reads(&self, fail: bool) {
        self.is_unavailable.store(fail, Ordering::SeqCst);
    }

    /// Lets lists wait after they were made, or no longer.
    pub(super) fn hold_lists(&self, holds: bool) {
        self.holds_lists.store(holds, Ordering::SeqCst);
    }

    /// Lets documents wait before they are stored, or no longer.
    pub(super) fn hold_documents(&self, holds: bool) {
        self.holds_documents.store(holds, Ordering::SeqCst);
    }

    /// Returns the number of documents whose storing has begun.
    pub(super) fn documents(&self) -> usize {
        self.documents.load(Ordering::SeqCst)
    }

    /// Returns the number of times that sessions were listed.
    pub(super) fn lists(&self) -> usize {
        self.lists.load(Ordering::SeqCst)
    }

    /// Returns the number of removals that have begun.
    pub(super) fn removals(&self) -> usize {
        self.removals.load(Ordering::SeqCst)
    }

    /// Stores a batch immediately.
    pub(super) fn store(&self, batch: Batch) {
        self.inner.append(batch);
    }
}

/// Waits while a condition holds.
async fn wait_while(is_so: impl Fn() -> bool) {
    while is_so() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// Returns all stored entries of a session.
pub(super) fn entries(journal: &dyn Journal, session: &SessionId) -> Vec<JournalEntry> {
    stored(journal.read(session, Seq(0)))
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Journal for Engine {
    fn append(&self, batch: Batch) -> AppendStatus {
        (self.append)(&self.inner, batch)
    }

    fn flush(&self, _: &SessionId) {}

    fn read_some<'a>(
        &'a self,
        session: &'a SessionId,
        after: Seq,
        limit: usize,
    ) -> JournalFuture<'a, Vec<JournalEntry>> {
        if self.is_unavailable.load(Ordering::SeqCst) {
            let error = JournalError::Unavailable("the server is starting".to_owned());
            return Box::pin(std::future::ready(Err(error)));
        }
        if self.held_reads.lock().is_none() {
            return self.inner.read_some(session, after, limit);
        }
        Box::pin(async move {
            wait_while(|| self.held_reads.lock().as_ref() == Some(session)).await;
            self.inner.read_some(session, after, limit).await
        })
    }

    fn find<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Option<SessionSummary>> {
        self.inner.find(session)
    }

    fn list<'a>(&'a self, listing: &'a SessionQuery) -> JournalFuture<'a, Vec<SessionSummary>> {
        let listed = self.inner.list(listing);
        self.lists.fetch_add(1, Ordering::SeqCst);
        if !self.holds_lists.load(Ordering::SeqCst) {
            return listed;
        }
        Box::pin(async {
            wait_while(|| self.holds_lists.load(Ordering::SeqCst)).await;
            listed.await
        })
    }

    fn count(&self) -> JournalFuture<'_, usize> {
        self.inner.count()
    }

    fn remove<'a>(&'a self, sessions: &'a [SessionId]) -> JournalFuture<'a, ()> {
        Box::pin(async move {
            self.removals.fetch_add(1, Ordering::SeqCst);
            if self.is_dead.load(Ordering::SeqCst) {
                return Err(JournalError::Write("the host is dead".to_owned()));
            }
            let is_held = || self.held.lock().as_ref().is_some_and(|held| sessions.contains(held));
            wait_while(is_held).await;
            self.inner.remove(sessions).await?;
            match self.fails_late.swap(false, Ordering::SeqCst) {
                true => Err(JournalError::Write("another program reads the database".to_owned())),
                false => Ok(()),
            }
        })
    }

    fn put_document<'a>(
        &'a self,
        key: &'a str,
        text: &'a str,
        used_by: Option<&'a SessionId>,
    ) -> JournalFuture<'a, ()> {
        Box::pin(async move {
            if self.fails_document.swap(false, Ordering::SeqCst) {
                return Err(JournalError::Full);
            }
            self.documents.fetch_add(1, Ordering::SeqCst);
            wait_while(|| self.holds_documents.load(Ordering::SeqCst)).await;
            self.inner.put_document(key, text, used_by).await
        })
    }

    fn remove_unused_documents<'a>(
        &'a self,
        prefix: &'a str,
        before: u64,
    ) -> JournalFuture<'a, ()> {
        self.inner.remove_unused_documents(prefix, before)
    }

    fn document<'a>(&'a self, key: &'a str) -> JournalFuture<'a, Option<String>> {
        self.inner.document(key)
    }

    fn status(&self) -> JournalStatus {
        self.inner.status()
    }
}
