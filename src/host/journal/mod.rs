//! The append-only list of a session's records, from which it is rebuilt.
//!
//! A [`Journal`] is a storage engine for the records of many sessions. `SessionLog` appends the
//! records of one session. It numbers them, so that the session and its accumulator can append
//! concurrently without a gap, and tracks which of them are durable.
//!
//! A program names an engine with [`HostBuilder::sqlite`](crate::builder::HostBuilder::sqlite), or gives one of its
//! own to [`HostBuilder::journal`](crate::builder::HostBuilder::journal).
//!
//! | rule | file |
//! | --- | --- |
//! | when a record is durable (`journal.durability`, strict or relaxed), and who is notified | `log`, `sqlite/writer` |
//! | full disk, failed write, failed fsync: what fails, and when it is tried again | `sqlite/writer`, `sqlite/writer/tasks`, `sqlite/reserve`; the session: `runtime::session::end`; the status 503: `server::error` |
//! | group commit; limits of the queue of the writer | `group_commit` |
//! | damage (corruption: a corrupt or truncated file, a torn write, a record that cannot be read), integrity check, checksums | the file: `sqlite/database` (`check_beginning`, `check_size`, `check_ends`), `sqlite/errors`; the write-ahead log, which alone has checksums: `sqlite/writer` (`sync`); a record: `record::entry` (`JournalEntry::from_body`), `sqlite/query` (a missing one); records that contradict each other: `session::stored`; all of the journal: `sqlite/query` (`check`), `verify/`; the status 500: `server::error`; `docs/operations.md` describes it |
//! | write-ahead log (WAL) of SQLite: when it is synced, checkpointed and emptied | `sqlite/writer`, `sqlite/writer/tasks`; `sqlite/writer/erase`, `sqlite/writer/catch_up` |
//! | schema version of the database, conversion of an older one (migration) | `sqlite/database`; version of records: `record::entry` |
//! | lock of the data directory: one host, permissions of its files, a database that was removed | `sqlite/data_directory` |
//! | several hosts with one engine: owners and fencing | `ownership`; the host: `runtime::ownership` |
//! | deletion (secure delete, erasure): hiding, erasing, space on the disk | `sqlite/writer/tasks`, `sqlite/deletion`; `sqlite/writer/erase`, `sqlite/pages` |
//! | garbage collection of documents that no session names | `sqlite/writer/tasks`; when: `runtime::maintenance`, `runtime::tool_servers` |
//! | backup beside a running host, and its return to a data directory; the mark of a copy, whose runs wait | `sqlite/backup`; `restored` |
//! | copy of sessions from one engine to another | `copy` |
//! | fork: records that it shares with its origin, and when they are deleted | `sqlite/database` (the tables), `sqlite/deletion`; a fork of a fork: `origin` of `sqlite/writer` |
//! | invariants of the records of a session | `verify/` |

mod check;
mod copy;
mod error;
pub mod export;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod group_commit;
mod log;
mod memory;
mod ownership;
#[cfg(feature = "postgres")]
mod postgres;
pub(crate) mod restored;
#[cfg(test)]
pub(crate) mod shared;
#[cfg(feature = "sqlite")]
mod sqlite;
mod verify;

use std::any::Any;
use std::fmt;
use std::future::ready;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub use callsheet_values::record::JournalEntry;
pub use callsheet_values::record::Record;
pub use callsheet_values::record::UnreadableRecord;
pub use callsheet_values::transcript::{Breach, Invariant};
pub use check::check_journal;
pub use copy::{copy_session, mark_as_copy};
pub use error::{BatchRefusal, JournalError};
pub use log::{Appended, PendingRecord, SessionLog, Urgency};
pub use memory::MemoryJournal;
pub use ownership::{HostInfo, OtherHost, Owner, Ownership};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresJournal, PostgresOptions, PostgresReader, SchemaVersions};
#[cfg(feature = "sqlite")]
pub use sqlite::{JournalReader, restore};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteJournal, SqliteOptions};
pub use verify::verify_and_drop;
pub use verify::{open_run_id, verify, verify_children};

use callsheet_values::record::Seq;
use callsheet_values::types::Metadata;
use callsheet_values::types::{SessionId, SessionState, is_child_session};

/// The future of a method of a [`Journal`]: boxed, because an engine is used as `dyn Journal`.
pub type JournalFuture<'a, T> = BoxFuture<'a, Result<T, JournalError>>;

/// A storage engine for records. A method that waits for a disk or a network returns a future. A future that is dropped
/// may have taken effect, in whole or in part.
///
/// One host at a time uses an engine: `Host::shutdown` frees it. The start of a second host in the same program
/// waits a moment for one that was dropped, and fails if it runs on. That two engines, or two programs, do not write
/// to the same database is for the engine to see to, or it says which host owns a session ([`Ownership`]).
///
/// `examples/own_journal.rs` is an engine in 230 lines. [`check_journal`]
/// tests an engine.
///
/// [`Batch`] shows how an engine stores records.
pub trait Journal: Send + Sync + fmt::Debug {
    /// Appends a batch atomically. Batches of one session are stored in the order of the calls.
    /// An engine that waits for a disk queues the batch and [reports](Batch::report) its status
    /// later, from a thread or a task of its own. If the queue is full, it reports the failure at once.
    ///
    /// A batch that opens a session whose id is stored is [refused](BatchStatus::Refused).
    ///
    /// After a batch was not stored, later batches of the session fail too: see [`Batch::follows_failure`].
    fn append(&self, batch: Batch) -> AppendStatus;

    /// Makes the appended batches of a session durable soon, including those that are not urgent: a caller waits for
    /// them. Batches of other sessions may wait longer.
    fn flush(&self, session: &SessionId);

    /// Returns at most `limit` stored entries of a session after `after`, in order. Queued entries
    /// are not included.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read_some<'a>(
        &'a self,
        session: &'a SessionId,
        after: Seq,
        limit: usize,
    ) -> JournalFuture<'a, Vec<JournalEntry>>;

    /// Returns all stored entries of a session after `after`.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read<'a>(
        &'a self,
        session: &'a SessionId,
        after: Seq,
    ) -> JournalFuture<'a, Vec<JournalEntry>> {
        self.read_some(session, after, usize::MAX)
    }

    /// Returns a stored session, or `None` if there is none with this id.
    ///
    /// # Errors
    /// If it cannot be read.
    fn find<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Option<SessionSummary>>;

    /// Returns stored sessions. [`SessionQuery::select`] defines which, and in which order.
    ///
    /// # Errors
    /// If they cannot be read.
    fn list<'a>(&'a self, listing: &'a SessionQuery) -> JournalFuture<'a, Vec<SessionSummary>>;

    /// Searches the next stored sessions after `after`, also child sessions, for those without a run whose last record is
    /// older than `touched_before`. An engine ends after as many sessions as it can search quickly.
    ///
    /// # Errors
    /// If they cannot be read.
    fn find_idle<'a>(
        &'a self,
        touched_before: u64,
        after: Option<&'a SessionId>,
    ) -> JournalFuture<'a, IdleSessions> {
        let query = SessionQuery {
            after: after.cloned(),
            limit: IdleSessions::FOUND_MAX,
            state: Some(SessionState::Idle),
            touched_before: Some(touched_before),
            children: true,
            ..SessionQuery::default()
        };
        Box::pin(async move {
            let ids: Vec<_> = self.list(&query).await?.into_iter().map(|found| found.id).collect();
            let next = ids.last().filter(|_| ids.len() == IdleSessions::FOUND_MAX).cloned();
            Ok(IdleSessions { ids, next })
        })
    }

    /// Returns the number of stored sessions.
    ///
    /// # Errors
    /// If it cannot be read.
    fn count(&self) -> JournalFuture<'_, usize>;

    /// Deletes sessions. When the future is ready, no data of them is left on the disk, except records that their forks
    /// share. Unknown sessions are ignored.
    ///
    /// # Errors
    /// If they could not be deleted. Some may have been. With [`JournalError::NotErased`] all are deleted, and the
    /// engine erases what the disk still holds of them by itself.
    fn remove<'a>(&'a self, sessions: &'a [SessionId]) -> JournalFuture<'a, ()>;

    /// Stores a text that belongs to no session, such as a list of tool definitions. A text that was stored
    /// under the same key is replaced. It is durable when the future is ready. A key has at most 128 characters of
    /// a-z, A-Z, 0-9, `_` and `-`. The session `used_by`, if it is stored, then uses the text, as if one of its records
    /// named it. A text whose key begins with [`HISTORY_POINTS`](callsheet_values::record::HISTORY_POINTS) is deleted with
    /// the last session that uses it, unless the engine keeps all documents.
    ///
    /// # Errors
    /// If it cannot be stored.
    fn put_document<'a>(
        &'a self,
        key: &'a str,
        text: &'a str,
        used_by: Option<&'a SessionId>,
    ) -> JournalFuture<'a, ()>;

    /// Returns the text that was stored under a key.
    ///
    /// # Errors
    /// If it cannot be read.
    fn document<'a>(&'a self, key: &'a str) -> JournalFuture<'a, Option<String>>;

    /// Deletes the documents whose keys begin with `prefix`, which were stored before this Unix time in
    /// milliseconds, and which no stored session uses: none of its records [names](JournalEntry::document_key) it. A
    /// document that was stored again counts as new. An engine that keeps all documents need not implement this.
    ///
    /// # Errors
    /// If they could not be deleted. Some may have been.
    fn remove_unused_documents<'a>(
        &'a self,
        prefix: &'a str,
        stored_before: u64,
    ) -> JournalFuture<'a, ()> {
        let _ = (prefix, stored_before);
        Box::pin(ready(Ok(())))
    }

    /// Returns the ownership of sessions, if several hosts use the engine at the same time. `None`: this host owns all
    /// sessions.
    fn ownership(&self) -> Option<&dyn Ownership> {
        None
    }

    /// Returns whether what is stored outlives the process. The runs of a host that shuts down go on at its next
    /// start then, by default.
    fn is_lasting(&self) -> bool {
        true
    }

    /// Returns the current status of the engine, for metrics.
    fn status(&self) -> JournalStatus {
        JournalStatus::default()
    }

    /// Returns the error of the last write, until a write succeeds: the journal cannot be written now. An
    /// engine tries again by itself.
    fn failure(&self) -> Option<JournalError> {
        None
    }

    /// Stores all queued batches and closes. Later batches fail.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}

/// Records of one session that are stored together. A host makes it.
///
/// ```
/// use callsheet::SessionId;
/// use callsheet::journal::{Batch, BatchRefusal, BatchStatus, JournalError};
///
/// /// Stores a batch, on the thread of the engine that writes.
/// fn write(mut batch: Batch, is_stored: impl Fn(&SessionId) -> bool) {
///     let error = JournalError::Write("an earlier batch was not stored".to_owned());
///     // To store it would leave a gap between the records.
///     if batch.follows_failure() {
///         return batch.report(BatchStatus::Failed(error));
///     }
///     let opens = batch.entries.first().is_some_and(|first| first.seq.0 == 1);
///     if opens && is_stored(&batch.session) {
///         return batch.report(BatchStatus::Refused(BatchRefusal::Exists));
///     }
///     for entry in &batch.entries {
///         println!("INSERT {} {} {} {}", batch.session, entry.seq, entry.time, entry.body());
///     }
///     batch.report(BatchStatus::Durable);
/// }
/// ```
#[non_exhaustive]
pub struct Batch {
    /// The session.
    pub session: SessionId,
    /// Its next records, without a gap.
    pub entries: Vec<Arc<JournalEntry>>,
    /// True if a run or a client waits for it. Others may wait for the next urgent batch of their session: in SQLite
    /// at most 30 ms.
    pub urgent: bool,
    /// The engine's state of the session's log.
    pub engine_state: Arc<EngineLogState>,
    /// Receives its status.
    pub on_status: BatchCallback,
}

impl Batch {
    /// Makes a batch that is not urgent.
    #[must_use]
    pub fn new(
        session: SessionId,
        entries: Vec<Arc<JournalEntry>>,
        engine_state: Arc<EngineLogState>,
        on_status: BatchCallback,
    ) -> Self {
        Self { session, entries, urgent: false, engine_state, on_status }
    }

    /// Returns true if an earlier batch of the same session failed since the session was read. An engine
    /// reports such a batch as failed, and does not store it, because a gap would be left.
    #[must_use]
    pub fn follows_failure(&self) -> bool {
        self.entries.first().is_some_and(|first| self.engine_state.has_failed(first.seq.0))
    }

    /// Reports the status: `Written` at most once, then one of the others. After a failure or a refusal, the
    /// later batches of the session [follow a failure](Self::follows_failure).
    pub fn report(&mut self, status: BatchStatus) {
        if status.is_end_of_log()
            && let Some(first) = self.entries.first()
        {
            self.engine_state.fail(first.seq.0);
        }
        (self.on_status)(status);
    }
}

/// Receives the status of a batch: `Written` at most once, then one of the others.
pub type BatchCallback = Box<dyn FnMut(BatchStatus) + Send>;

/// The status of a batch.
///
/// [`Batch::report`] receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchStatus {
    /// The batch survives a crash of the process. Reported only by engines in which it does not yet
    /// survive a crash of the machine.
    Written,
    /// The batch survives a crash of the machine.
    Durable,
    /// The batch could not be stored. After a failed fsync it may be in the journal nevertheless.
    Failed(JournalError),
    /// The engine works, and does not store the batch.
    Refused(BatchRefusal),
}

impl BatchStatus {
    /// Returns whether the batch is not stored, so that no later one of its log can be.
    fn is_end_of_log(&self) -> bool {
        match self {
            Self::Written | Self::Durable => false,
            Self::Failed(_) | Self::Refused(_) => true,
        }
    }
}

impl From<JournalError> for BatchStatus {
    /// Returns the status of a batch that is not stored.
    fn from(error: JournalError) -> Self {
        if let JournalError::Refused(refusal) = error {
            Self::Refused(refusal)
        } else {
            Self::Failed(error)
        }
    }
}

/// The state that an engine keeps for one [`SessionLog`].
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use callsheet::journal::EngineLogState;
///
/// let state = EngineLogState::default();
/// state.of_engine::<AtomicU64>().unwrap().store(7, Ordering::Relaxed);
/// assert_eq!(state.of_engine::<AtomicU64>().unwrap().load(Ordering::Relaxed), 7);
/// ```
#[derive(Debug, Default)]
pub struct EngineLogState {
    /// The engine's own value, from its first use on.
    of_engine: OnceLock<Box<dyn Any + Send + Sync>>,
    /// The first record that could not be stored, or 0. Later records would leave a gap.
    failed: AtomicU64,
}

impl EngineLogState {
    /// Returns the engine's own value of the log, such as the position of its last record. The first call creates it.
    /// Returns `None` if it was created with another type, which an engine never does.
    pub fn of_engine<T: Any + Default + Send + Sync>(&self) -> Option<&T> {
        self.of_engine.get_or_init(|| Box::<T>::default()).downcast_ref()
    }

    /// Marks the records from this one on as not stored. An engine calls it for the first record of
    /// a batch that fails.
    pub fn fail(&self, from: u64) {
        let earlier = |failed| (failed == 0 || from < failed).then_some(from);
        // The failure of an earlier record is kept.
        let _ = self.failed.fetch_update(Ordering::AcqRel, Ordering::Acquire, earlier);
    }

    /// Returns true if this record, or an earlier one, could not be stored.
    #[must_use]
    pub fn has_failed(&self, seq: u64) -> bool {
        (1..=seq).contains(&self.failed.load(Ordering::Acquire))
    }
}

/// The durability of a batch when `append` returns.
///
/// [`MemoryJournal`] stores at once, [`Batch`] shows a report that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AppendStatus {
    /// The batch is durable. No status follows.
    Durable,
    /// The batch is queued, or has failed. Its status follows.
    Queued,
}

/// A session in a list.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// host.open_session("demo").await?;
/// let sessions = host.sessions(Default::default()).await?;
/// assert_eq!((sessions[0].agent.as_str(), sessions[0].state.as_str()), ("default", "idle"));
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SessionSummary {
    /// Its id.
    pub id: SessionId,
    /// Its agent's name.
    pub agent: String,
    /// In a journal: `Running` if a run has not ended, inputs wait, or its deletion has to be finished; else `Idle`.
    pub state: SessionState,
    /// The sequence number of its last record.
    pub seq: Seq,
    /// The time at which it was opened: Unix time in milliseconds.
    pub opened: u64,
    /// The time of its last record: Unix time in milliseconds.
    pub touched: u64,
    /// Its place in the order of creation: sessions that were stored later have no lower one.
    #[serde(skip)]
    pub number: u64,
    /// The client's pairs of strings.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// Number of approvals and questions that wait for a person, with those of the session's sub-agents. Engines do
    /// not set it.
    #[serde(skip_serializing_if = "is_zero")]
    pub approvals_open: usize,
    /// The address of the host that has it, if several hosts have the same journal. Engines do not set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

pub(crate) fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl SessionSummary {
    /// Describes a session without records, for an engine that then sets the other fields.
    #[must_use]
    pub fn new(id: SessionId, agent: impl Into<String>) -> Self {
        let (state, seq) = (SessionState::Idle, Seq(0));
        let metadata = Metadata::default();
        Self {
            id,
            agent: agent.into(),
            state,
            seq,
            opened: 0,
            touched: 0,
            number: 0,
            metadata,
            approvals_open: 0,
            host: None,
        }
    }

    /// Derives it from all stored entries of a session. `None` if they do not begin with the
    /// session's opening. The number is the time of the opening; an engine may set another one.
    #[must_use]
    pub fn from_entries(id: &SessionId, entries: &[Arc<JournalEntry>]) -> Option<Self> {
        let (first, last) = (entries.first()?, entries.last()?);
        let Record::SessionOpened { agent, metadata, .. } = &first.record else { return None };
        Some(Self {
            metadata: metadata.clone(),
            id: id.clone(),
            agent: agent.clone(),
            state: state_after(entries.iter().map(Arc::as_ref)).unwrap_or(SessionState::Idle),
            seq: last.seq,
            opened: first.time,
            touched: last.time,
            number: first.time,
            approvals_open: 0,
            host: None,
        })
    }
}

/// A filter of sessions.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// use callsheet::SessionQuery;
///
/// for id in ["a", "b", "c"] {
///     host.open_session(id).await?;
/// }
/// let query = SessionQuery::default().with(|new| new.limit = 2);
/// let sessions = host.sessions(query).await?;
/// let ids: Vec<&str> = sessions.iter().map(|session| session.id.as_str()).collect();
/// assert_eq!(ids, ["a", "b"]);
///
/// use callsheet::SessionOrder;
/// let newest = SessionQuery::default().with(|new| new.order = SessionOrder::Newest);
/// assert_eq!(host.sessions(newest).await?.len(), 3);
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionQuery {
    /// The order of the sessions.
    pub order: SessionOrder,
    /// Sessions after this id. [`continue_after`](Self::continue_after) sets it, and `after_number`.
    pub after: Option<SessionId>,
    /// With [`SessionOrder::Newest`]: the number of the session `after`.
    pub after_number: Option<u64>,
    /// Maximum number of sessions. 0 means no limit.
    pub limit: usize,
    /// Sessions in this state. `Running` includes `Waiting`.
    pub state: Option<SessionState>,
    /// Sessions whose last record is older: Unix time in milliseconds.
    pub touched_before: Option<u64>,
    /// True if child sessions are listed, too, which calls of agents have opened.
    pub children: bool,
}

/// Sessions that [`Journal::find_idle`] has found. An engine with an index of its own makes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdleSessions {
    /// Their ids, in order.
    pub ids: Vec<SessionId>,
    /// The session after which the search goes on. `None` if all were searched.
    pub next: Option<SessionId>,
}

impl IdleSessions {
    /// Number of sessions after which a search ends: that many are deleted together.
    pub const FOUND_MAX: usize = 64;
}

/// The order of a list of sessions. [`SessionQuery`] shows its use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionOrder {
    /// By id.
    #[default]
    Id,
    /// The session that was created last is the first.
    Newest,
}

impl SessionQuery {
    /// Lets the query begin after a session of a page, for the next page.
    pub fn continue_after(&mut self, last: &SessionSummary) {
        self.after = Some(last.id.clone());
        self.after_number = Some(last.number);
    }

    /// Selects from all sessions those that the query asks for, in its order: for an engine that cannot do so itself.
    #[must_use]
    pub fn select(
        &self,
        sessions: impl IntoIterator<Item = SessionSummary>,
    ) -> Vec<SessionSummary> {
        let follows = |session: &SessionSummary| match (&self.after, self.after_number, self.order)
        {
            (Some(after), _, SessionOrder::Id) => session.id > *after,
            (Some(after), Some(number), SessionOrder::Newest) => {
                (session.number, &session.id) < (number, after)
            }
            (None, _, _) | (_, None, SessionOrder::Newest) => true,
        };
        let found = sessions.into_iter().filter(|found| self.matches(found) && follows(found));
        let mut found: Vec<_> = found.collect();
        match self.order {
            SessionOrder::Id => found.sort_by(|a, b| a.id.cmp(&b.id)),
            SessionOrder::Newest => found.sort_by(|a, b| (b.number, &b.id).cmp(&(a.number, &a.id))),
        }
        found.truncate(if self.limit == 0 { usize::MAX } else { self.limit });
        found
    }

    /// Returns true if a session has the state and the age of the query. `after` and `limit`
    /// belong to the list, not to a session.
    #[must_use]
    pub fn matches(&self, session: &SessionSummary) -> bool {
        // A session that waits for a person has a run in progress.
        let waits = session.state == SessionState::Waiting;
        let is_in = |state| session.state == state || (waits && state == SessionState::Running);
        self.state.is_none_or(is_in)
            && self.touched_before.is_none_or(|time| session.touched < time)
            && (self.children || !is_child_session(&session.id))
    }
}

callsheet_values::impl_with!(SessionQuery);

/// The status of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalStatus {
    /// Number of queued batches.
    pub queued: usize,
    /// Size on disk in bytes.
    pub bytes: u64,
    /// Size of the write-ahead log in bytes, if the engine has one. `bytes` has it too.
    pub log_bytes: Option<u64>,
    /// Free bytes of the file system of the journal, if the engine has one.
    pub disk_free_bytes: Option<u64>,
    /// Number of trees that this host owns, if several hosts use the engine.
    pub owned: Option<usize>,
    /// The time since the last heartbeat that succeeded, if the engine has a lease.
    pub heartbeat_age: Option<std::time::Duration>,
    /// Number of batches whose answer was lost, and which were then found to be stored.
    pub unknown_stored: u64,
    /// Number of batches whose answer was lost, and which were then found not to be stored.
    pub unknown_lost: u64,
}

/// Receives measurements of an engine, for metrics.
pub trait JournalObserver: Send + Sync + fmt::Debug {
    /// A transaction was committed.
    fn stored(&self, group: GroupCommit);

    /// An fsync made all committed transactions durable.
    fn synced(&self, took: std::time::Duration) {
        let _ = took;
    }

    /// A database elsewhere has answered a request to store batches, or has not answered within its time limit.
    fn answered(&self, took: std::time::Duration) {
        let _ = took;
    }
}

/// Batches that one transaction stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupCommit {
    /// Number of batches.
    pub batches: usize,
    /// Number of records.
    pub records: usize,
    /// Duration of the transaction.
    pub took: std::time::Duration,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("session", &self.session)
            .field("entries", &self.entries)
            .field("urgent", &self.urgent)
            .finish_non_exhaustive()
    }
}

/// Returns the session's state after these records, if they change it.
pub fn state_after<'e>(
    entries: impl DoubleEndedIterator<Item = &'e JournalEntry>,
) -> Option<SessionState> {
    let mut is_forked = false;
    entries.rev().find_map(|entry| {
        let record = &entry.record;
        // A fork has no queue.
        is_forked |= matches!(record, Record::SessionForked { .. });
        // A queued input keeps the session running, and so does a deletion that has to be finished.
        let goes_on = matches!(
            record,
            Record::RunStarted { .. } | Record::RunReopened { .. } | Record::SessionClosed
        );
        let is_running =
            goes_on || (matches!(record, Record::RunEnded { waiting: 1.., .. }) && !is_forked);
        if is_running {
            return Some(SessionState::Running);
        }
        matches!(record, Record::RunEnded { .. }).then_some(SessionState::Idle)
    })
}

/// The clock of the database that hosts share, less this machine's, in milliseconds. 0 without such a database.
static CLOCK_OFFSET_MS: AtomicI64 = AtomicI64::new(0);

/// Returns the Unix time in milliseconds. Hosts that share a database have its clock, so that a time which one of them has
/// recorded, such as that of an approval, means the same to the others.
#[must_use]
pub fn unix_ms() -> u64 {
    machine_unix_ms().saturating_add_signed(CLOCK_OFFSET_MS.load(Ordering::Relaxed))
}

/// Returns the Unix time in milliseconds by the clock of this machine.
fn machine_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    callsheet_values::types::millis(since)
}
