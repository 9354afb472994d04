//! Appends the records of one session to the journal.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    AppendStatus, Batch, BatchStatus, Journal, JournalEntry, JournalError, SessionLogState, unix_ms,
};
use crate::record::{Record, Seq};
use crate::types::SessionId;

/// The journal of one session. Numbers the records, passes them to the engine, and tracks which of
/// them are durable.
#[derive(Debug)]
pub struct SessionLog {
    session: SessionId,
    journal: Arc<dyn Journal>,
    log_state: Arc<SessionLogState>,
    /// Locked during the engine's `append`, so that it receives the records in order.
    sequence: Mutex<Sequence>,
    progress: Arc<LogProgress>,
}

#[derive(Debug)]
struct Sequence {
    last: Seq,
    closed: bool,
    /// The recent entries, for [`SessionLog::entries_since`].
    tail: Vec<Arc<JournalEntry>>,
}

/// The durability of the appended records.
struct LogProgress {
    state: Mutex<DurabilityState>,
    listener: DurabilityListener,
}

#[derive(Debug, Default)]
struct DurabilityState {
    durable: Seq,
    failed: Option<JournalError>,
    waiting: Vec<(Seq, oneshot::Sender<Result<(), JournalError>>)>,
}

/// Receives the last durable record, in order, and a failure once.
pub(super) type DurabilityListener = Box<dyn Fn(Result<Seq, JournalError>) + Send + Sync>;

/// A record that is about to be appended, with the amount of text that watchers have received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRecord {
    /// The record.
    pub record: Record,
    /// Bytes of text and thinking of the running attempt that watchers have received.
    pub shown: u64,
}

impl From<Record> for PendingRecord {
    fn from(record: Record) -> Self {
        Self { record, shown: 0 }
    }
}

/// The urgency of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// The batch is stored as soon as possible.
    Urgent,
    /// The batch may be stored with the next urgent one, or after a short delay.
    Lazy,
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
        let state = Mutex::new(DurabilityState { durable: last, ..DurabilityState::default() });
        Self {
            session,
            journal,
            log_state: Arc::default(),
            sequence: Mutex::new(Sequence { last, closed: false, tail: Vec::new() }),
            progress: Arc::new(LogProgress { state, listener: Box::new(listener) }),
        }
    }

    /// Appends records as one batch. `acknowledge` is called when they are stored with the
    /// durability that a run waits for, unless they are durable when this returns. After a failure
    /// it is never called.
    pub fn append<N: Into<PendingRecord>>(
        &self,
        records: Vec<N>,
        urgency: Urgency,
        acknowledge: impl FnOnce() + Send + 'static,
    ) -> (Seq, AppendStatus) {
        self.append_at(unix_ms(), records, urgency, acknowledge)
    }

    /// Appends records with this time, which is the time of their events.
    pub fn append_at<N: Into<PendingRecord>>(
        &self,
        time: u64,
        records: impl IntoIterator<Item = N>,
        urgency: Urgency,
        acknowledge: impl FnOnce() + Send + 'static,
    ) -> (Seq, AppendStatus) {
        let mut records = records.into_iter().peekable();
        let mut sequence = self.sequence.lock();
        if records.peek().is_none() {
            return (sequence.last, AppendStatus::Durable);
        }
        if sequence.closed {
            return (sequence.last, AppendStatus::Queued);
        }
        let mut entries = Vec::with_capacity(records.size_hint().0);
        for record in records {
            let PendingRecord { record, shown } = record.into();
            sequence.last.0 += 1;
            entries.push(Arc::new(JournalEntry { seq: sequence.last, time, shown, record }));
        }
        sequence.tail.extend(entries.iter().cloned());
        let last = sequence.last;
        let progress = Arc::clone(&self.progress);
        let mut acknowledge = Some(acknowledge);
        let appended = self.journal.append(Batch {
            session: self.session.clone(),
            entries,
            log_state: Arc::clone(&self.log_state),
            urgent: urgency == Urgency::Urgent,
            on_status: Box::new(move |status| {
                if !matches!(status, BatchStatus::Failed(_))
                    && let Some(acknowledge) = acknowledge.take()
                {
                    acknowledge();
                }
                progress.update(last, status);
            }),
        });
        if appended == AppendStatus::Durable {
            self.progress.durable(last);
        }
        (last, appended)
    }

    /// Closes the log. Later appends are ignored.
    pub fn close(&self) {
        self.sequence.lock().closed = true;
    }

    /// Closes the log if all appended records are durable. Returns whether they are.
    #[must_use]
    pub fn close_if_durable(&self) -> bool {
        let mut sequence = self.sequence.lock();
        let is_durable = self.durable() == sequence.last;
        sequence.closed |= is_durable;
        is_durable
    }

    /// Returns the sequence number of the last record; 0 before the first.
    #[must_use]
    pub fn last(&self) -> Seq {
        self.sequence.lock().last
    }

    /// Returns the last record up to which all are durable.
    #[must_use]
    pub fn durable(&self) -> Seq {
        self.progress.state.lock().durable
    }

    /// Returns the error after which no more records can be stored, if any.
    #[must_use]
    pub fn failure(&self) -> Option<JournalError> {
        self.progress.state.lock().failed.clone()
    }

    /// Waits until all records up to a place are durable.
    ///
    /// # Errors
    /// If one of them, or an earlier one, could not be stored.
    pub async fn until_durable(&self, upto: Seq) -> Result<(), JournalError> {
        let receiver = {
            let mut state = self.progress.state.lock();
            if state.durable >= upto {
                return Ok(());
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            let (sender, receiver) = oneshot::channel();
            state.waiting.push((upto, sender));
            receiver
        };
        self.journal.flush();
        receiver.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Returns the entries after `after`, in order, durable or not. Entries up to the last
    /// [`Self::forget_until`] are missing.
    #[must_use]
    pub fn entries_since(&self, after: Seq) -> Vec<Arc<JournalEntry>> {
        let sequence = self.sequence.lock();
        let begin = sequence.tail.partition_point(|entry| entry.seq <= after);
        sequence.tail.iter().skip(begin).cloned().collect()
    }

    /// Adds entries that were read from the journal to the recent entries.
    pub fn remember(&self, entries: impl IntoIterator<Item = JournalEntry>) {
        let mut sequence = self.sequence.lock();
        let mut tail: Vec<_> = entries.into_iter().map(Arc::new).collect();
        tail.append(&mut sequence.tail);
        sequence.tail = tail;
    }

    /// Appends entries of another session's log, which keep their numbers and times. The log must
    /// be empty.
    pub fn adopt(&self, entries: Vec<JournalEntry>) {
        let mut sequence = self.sequence.lock();
        let Some(last) = entries.last().map(|entry| entry.seq) else { return };
        sequence.last = last;
        let progress = Arc::clone(&self.progress);
        let appended = self.journal.append(Batch {
            session: self.session.clone(),
            entries: entries.into_iter().map(Arc::new).collect(),
            log_state: Arc::clone(&self.log_state),
            urgent: false,
            on_status: Box::new(move |status| progress.update(last, status)),
        });
        if appended == AppendStatus::Durable {
            self.progress.durable(last);
        }
    }

    /// Removes the recent entries up to `upto`.
    pub fn forget_until(&self, upto: Seq) {
        let mut sequence = self.sequence.lock();
        let begin = sequence.tail.partition_point(|entry| entry.seq <= upto);
        if begin == sequence.tail.len() {
            // An idle session keeps no memory for it.
            sequence.tail = Vec::new();
        } else {
            sequence.tail.drain(..begin);
        }
    }
}

impl LogProgress {
    fn update(&self, upto: Seq, status: BatchStatus) {
        match status {
            BatchStatus::Written => {}
            BatchStatus::Durable => self.durable(upto),
            BatchStatus::Failed(error) => self.failed(&error),
        }
    }

    fn durable(&self, upto: Seq) {
        let mut done = Vec::new();
        {
            let mut state = self.state.lock();
            if state.durable >= upto || state.failed.is_some() {
                return;
            }
            state.durable = upto;
            if !state.waiting.is_empty() {
                done.extend(state.waiting.extract_if(.., |(needs, _)| *needs <= upto));
            }
        }
        (self.listener)(Ok(upto));
        for (_, waiting) in done {
            // The waiter may have been dropped.
            let _ = waiting.send(Ok(()));
        }
    }

    fn failed(&self, error: &JournalError) {
        let waiting = {
            let mut state = self.state.lock();
            if state.failed.is_some() {
                return;
            }
            state.failed = Some(error.clone());
            std::mem::take(&mut state.waiting)
        };
        (self.listener)(Err(error.clone()));
        for (_, waiting) in waiting {
            let _ = waiting.send(Err(error.clone()));
        }
    }
}

impl fmt::Debug for LogProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogProgress").field("state", &self.state).finish_non_exhaustive()
    }
}
