//! Appends the records of one session to the journal.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    AppendStatus, Batch, BatchStatus, EngineLogState, Journal, JournalEntry, JournalError, unix_ms,
};
use callsheet_values::record::{Record, Seq};
use callsheet_values::types::SessionId;

/// The journal of one session. Numbers the records, passes them to the engine, and tracks up to
/// which record they are durable.
#[derive(Debug)]
pub struct SessionLog {
    session: SessionId,
    journal: Arc<dyn Journal>,
    engine_state: Arc<EngineLogState>,
    /// Locked during the engine's `append`, so that it receives the records in order.
    state: Mutex<LogState>,
    durability: Arc<DurabilityTracker>,
}

/// The appended records, durable or not.
#[derive(Debug)]
struct LogState {
    last_seq: Seq,
    /// The approximate number of bytes of all records.
    bytes: u64,
    closed: bool,
    /// The recent entries, for [`SessionLog::entries_since`].
    recent: Vec<Arc<JournalEntry>>,
}

/// The durability of the appended records.
struct DurabilityTracker {
    state: Mutex<DurabilityState>,
    listener: DurabilityListener,
}

#[derive(Debug, Default)]
struct DurabilityState {
    /// All records up to this one are durable.
    durable_seq: Seq,
    failed: Option<JournalError>,
    /// The callers of [`SessionLog::wait_durable`], each with the record that it waits for.
    waiting: Vec<(Seq, oneshot::Sender<Result<(), JournalError>>)>,
}

/// Receives the last durable record each time it changes, in order, before [`SessionLog`] returns it. Receives a
/// failure once.
pub(super) type DurabilityListener = Box<dyn Fn(Result<Seq, JournalError>) + Send + Sync>;

/// A record that is about to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRecord {
    /// The record.
    pub record: Record,
    /// Bytes of text and thinking of the running attempt that were published before the record.
    pub displayed_bytes: u64,
}

impl From<Record> for PendingRecord {
    fn from(record: Record) -> Self {
        Self { record, displayed_bytes: 0 }
    }
}

/// Records that were appended.
#[derive(Debug)]
pub struct Appended {
    /// Their entries. If the log is closed, they are not stored.
    pub entries: Vec<Arc<JournalEntry>>,
    /// Durable already, or queued.
    pub status: AppendStatus,
}

/// The urgency of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// The batch is stored as soon as possible.
    Urgent,
    /// The batch may be stored with the next urgent one of its session, or after a short delay.
    Deferrable,
}

impl SessionLog {
    /// Creates the log of a session whose last record is `last`. All records up to it are durable.
    #[must_use]
    pub fn new(
        session: SessionId,
        journal: Arc<dyn Journal>,
        last: Seq,
        listener: impl Fn(Result<Seq, JournalError>) + Send + Sync + 'static,
    ) -> Self {
        let durability = DurabilityState { durable_seq: last, ..DurabilityState::default() };
        Self {
            session,
            journal,
            engine_state: Arc::default(),
            state: Mutex::new(LogState {
                last_seq: last,
                bytes: 0,
                closed: false,
                recent: Vec::new(),
            }),
            durability: Arc::new(DurabilityTracker {
                state: Mutex::new(durability),
                listener: Box::new(listener),
            }),
        }
    }

    /// Sets the number of bytes that the stored records have.
    #[must_use]
    pub fn with_stored_bytes(self, bytes: u64) -> Self {
        self.state.lock().bytes = bytes;
        self
    }

    /// Appends records with the current time: see [`Self::append_at`].
    pub fn append<R: Into<PendingRecord>>(
        &self,
        records: Vec<R>,
        urgency: Urgency,
        on_stored: impl FnOnce() + Send + 'static,
    ) -> Appended {
        self.append_at(unix_ms(), records, urgency, on_stored)
    }

    /// Appends records as one batch. `time_ms` is the time of the records and their events, as Unix time in
    /// milliseconds.
    ///
    /// If the returned status is [`AppendStatus::Durable`], the records are durable already, and
    /// `on_stored` is dropped. If it is [`AppendStatus::Queued`], the engine stores them later and
    /// then calls `on_stored` once: with `durability = "strict"` when they survive a crash of the
    /// machine, with `"relaxed"` when they survive a crash of the process.
    ///
    /// If they cannot be stored, or the log is closed, `on_stored` is never called. Without records, nothing is
    /// appended, and the status is [`AppendStatus::Durable`].
    pub fn append_at<R: Into<PendingRecord>>(
        &self,
        time_ms: u64,
        records: impl IntoIterator<Item = R>,
        urgency: Urgency,
        on_stored: impl FnOnce() + Send + 'static,
    ) -> Appended {
        let appended = self.append_unless_closed(time_ms, records, urgency, on_stored);
        appended.unwrap_or_else(|entries| Appended { entries, status: AppendStatus::Queued })
    }

    /// Appends records as [`Self::append_at`] does. Returns `None` if the log is closed: the records are dropped, as if
    /// the process had ended here.
    pub fn try_append_at<R: Into<PendingRecord>>(
        &self,
        time_ms: u64,
        records: impl IntoIterator<Item = R>,
        urgency: Urgency,
        on_stored: impl FnOnce() + Send + 'static,
    ) -> Option<Appended> {
        self.append_unless_closed(time_ms, records, urgency, on_stored).ok()
    }

    /// Appends records as [`Self::append_at`] does. Returns the entries as an error if the log is closed.
    fn append_unless_closed<R: Into<PendingRecord>>(
        &self,
        time_ms: u64,
        records: impl IntoIterator<Item = R>,
        urgency: Urgency,
        on_stored: impl FnOnce() + Send + 'static,
    ) -> Result<Appended, Vec<Arc<JournalEntry>>> {
        let mut state = self.state.lock();
        let numbered = (state.last_seq.0 + 1..).zip(records);
        let entries = numbered.map(|(seq, record)| {
            let PendingRecord { record, displayed_bytes } = record.into();
            Arc::new(JournalEntry { seq: Seq(seq), time: time_ms, displayed_bytes, record })
        });
        let entries: Vec<_> = entries.collect();
        let Some(last) = entries.last().map(|entry| entry.seq) else {
            return Ok(Appended { entries, status: AppendStatus::Durable });
        };
        if state.closed {
            return Err(entries);
        }
        state.last_seq = last;
        state.bytes += entries.iter().map(|entry| entry.approximate_bytes()).sum::<u64>();
        state.recent.extend(entries.iter().cloned());
        let durability = Arc::clone(&self.durability);
        let mut on_stored = Some(on_stored);
        let status = self.journal.append(Batch {
            session: self.session.clone(),
            entries: entries.clone(),
            engine_state: Arc::clone(&self.engine_state),
            urgent: urgency == Urgency::Urgent,
            on_status: Box::new(move |status| {
                if !status.is_end_of_log()
                    && let Some(on_stored) = on_stored.take()
                {
                    on_stored();
                }
                durability.update(last, status);
            }),
        });
        if status == AppendStatus::Durable {
            self.durability.mark_durable(last);
        }
        Ok(Appended { entries, status })
    }

    /// Closes the log. Records that were appended before are still stored; to wait for them, use
    /// [`Self::wait_durable`]. Later appends have no effect.
    pub fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Returns whether the log is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Closes the log if all appended records are durable. Returns whether they are, and does
    /// nothing if they are not.
    #[must_use]
    pub fn close_if_durable(&self) -> bool {
        let mut state = self.state.lock();
        let is_durable = self.durable_seq() == state.last_seq;
        state.closed |= is_durable;
        is_durable
    }

    /// Returns the sequence number of the last record; 0 before the first.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        self.state.lock().last_seq
    }

    /// Returns the approximate number of bytes of all records.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Returns the sequence number up to which all records are durable.
    #[must_use]
    pub fn durable_seq(&self) -> Seq {
        self.durability.state.lock().durable_seq
    }

    /// Returns the error after which no more records can be stored, if any.
    #[must_use]
    pub fn failure(&self) -> Option<JournalError> {
        self.durability.state.lock().failed.clone()
    }

    /// Waits until all records up to `up_to` are durable. Asks the engine to store them at once.
    ///
    /// # Errors
    /// If a record of the session could not be stored before all of them are durable. It may be a later record.
    pub async fn wait_durable(&self, up_to: Seq) -> Result<(), JournalError> {
        let receiver = {
            let mut state = self.durability.state.lock();
            if state.durable_seq >= up_to {
                return Ok(());
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            let (sender, receiver) = oneshot::channel();
            state.waiting.push((up_to, sender));
            receiver
        };
        self.journal.flush(&self.session);
        receiver.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Returns the recent entries after `after`, in order, durable or not. Entries that
    /// [`Self::trim_recent`] has removed are missing.
    #[must_use]
    pub fn entries_since(&self, after: Seq) -> Vec<Arc<JournalEntry>> {
        let state = self.state.lock();
        let first = state.recent.partition_point(|entry| entry.seq <= after);
        state.recent.iter().skip(first).cloned().collect()
    }

    /// Inserts entries, which were read from the journal, in front of the recent entries.
    pub fn prepend_recent(&self, entries: impl IntoIterator<Item = JournalEntry>) {
        let mut state = self.state.lock();
        let mut recent: Vec<_> = entries.into_iter().map(Arc::new).collect();
        recent.append(&mut state.recent);
        state.recent = recent;
    }

    /// Appends copies of another session's entries, which keep their numbers and times. The log must
    /// be empty. They are not among the recent entries. Does not count their bytes: they are given to
    /// [`Self::with_stored_bytes`].
    pub fn import(&self, entries: Vec<JournalEntry>) {
        let mut state = self.state.lock();
        let Some(last) = entries.last().map(|entry| entry.seq) else { return };
        state.last_seq = last;
        let durability = Arc::clone(&self.durability);
        let appended = self.journal.append(Batch {
            session: self.session.clone(),
            entries: entries.into_iter().map(Arc::new).collect(),
            engine_state: Arc::clone(&self.engine_state),
            urgent: false,
            on_status: Box::new(move |status| durability.update(last, status)),
        });
        if appended == AppendStatus::Durable {
            self.durability.mark_durable(last);
        }
    }

    /// Removes the entries up to `up_to` from the recent entries. The journal keeps them.
    pub fn trim_recent(&self, up_to: Seq) {
        let mut state = self.state.lock();
        let first = state.recent.partition_point(|entry| entry.seq <= up_to);
        if first == state.recent.len() {
            // Releases the buffer, so that an idle session uses no memory for it.
            state.recent = Vec::new();
        } else {
            state.recent.drain(..first);
        }
    }
}

impl DurabilityState {
    /// Returns true if the records up to this one are known to be durable, or the journal has failed.
    fn is_settled(&self, up_to: Seq) -> bool {
        self.durable_seq >= up_to || self.failed.is_some()
    }
}

impl DurabilityTracker {
    fn update(&self, up_to: Seq, status: BatchStatus) {
        match status {
            BatchStatus::Written => {}
            BatchStatus::Durable => self.mark_durable(up_to),
            BatchStatus::Failed(error) => self.mark_failed(&error),
            BatchStatus::Refused(refusal) => self.mark_failed(&JournalError::Refused(refusal)),
        }
    }

    fn mark_durable(&self, up_to: Seq) {
        if self.state.lock().is_settled(up_to) {
            return;
        }
        // A caller that then finds the record durable finds it in the feed too.
        (self.listener)(Ok(up_to));
        let mut done = Vec::new();
        {
            let mut state = self.state.lock();
            if state.is_settled(up_to) {
                return;
            }
            state.durable_seq = up_to;
            if !state.waiting.is_empty() {
                done.extend(state.waiting.extract_if(.., |(seq, _)| *seq <= up_to));
            }
        }
        for (_, waiter) in done {
            // The waiter may have been dropped.
            let _ = waiter.send(Ok(()));
        }
    }

    fn mark_failed(&self, error: &JournalError) {
        let waiting = {
            let mut state = self.state.lock();
            if state.failed.is_some() {
                return;
            }
            state.failed = Some(error.clone());
            std::mem::take(&mut state.waiting)
        };
        (self.listener)(Err(error.clone()));
        for (_, waiter) in waiting {
            let _ = waiter.send(Err(error.clone()));
        }
    }
}

impl fmt::Debug for DurabilityTracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurabilityTracker").field("state", &self.state).finish_non_exhaustive()
    }
}
