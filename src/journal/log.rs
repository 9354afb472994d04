//! One session's way to the journal.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    AppendStatus, Batch, BatchStatus, Journal, JournalEntry, JournalError, SessionLogState, unix_ms,
};
use crate::record::{Record, Seq};
use crate::types::SessionId;

/// One session's journal: numbers the records, hands them to the engine, and knows which of them
/// are durable.
#[derive(Debug)]
pub struct SessionLog {
    session: SessionId,
    journal: Arc<dyn Journal>,
    log_state: Arc<SessionLogState>,
    /// Held over the engine's `append`, so that numbers reach it in order.
    numbered: Mutex<Sequence>,
    progress: Arc<LogProgress>,
}

#[derive(Debug)]
struct Sequence {
    last: Seq,
    closed: bool,
    /// The entries that [`SessionLog::entries_since`] gives.
    tail: Vec<Arc<JournalEntry>>,
}

/// How far the appended records have come.
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

/// Told of every record up to which all are durable, in order, and once of a failure.
pub(super) type DurabilityListener = Box<dyn Fn(Result<Seq, JournalError>) + Send + Sync>;

/// A record, and how much watchers had been shown of the running attempt by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRecord {
    /// The record.
    pub record: Record,
    /// Bytes of text and thinking.
    pub shown: u64,
}

impl From<Record> for PendingRecord {
    fn from(record: Record) -> Self {
        Self { record, shown: 0 }
    }
}

/// Whether somebody waits for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// It is stored as soon as can be.
    Urgent,
    /// It may be stored with the next urgent one, or a little later.
    Lazy,
}

impl SessionLog {
    /// The log of a session whose last record is `last`; all up to it are durable.
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
            numbered: Mutex::new(Sequence { last, closed: false, tail: Vec::new() }),
            progress: Arc::new(LogProgress { state, listener: Box::new(listener) }),
        }
    }

    /// Appends records as one batch. `acknowledge` is called when they are stored, as durably as
    /// the journal is told to be before a run goes on, unless that is so at once; after a failure
    /// it is never called.
    pub fn append<N: Into<PendingRecord>>(
        &self,
        records: Vec<N>,
        urgency: Urgency,
        acknowledge: impl FnOnce() + Send + 'static,
    ) -> (Seq, AppendStatus) {
        self.append_at(unix_ms(), records, urgency, acknowledge)
    }

    /// The same with the time that the records get: that of the events which are their views.
    pub fn append_at<N: Into<PendingRecord>>(
        &self,
        time: u64,
        records: impl IntoIterator<Item = N>,
        urgency: Urgency,
        acknowledge: impl FnOnce() + Send + 'static,
    ) -> (Seq, AppendStatus) {
        let mut records = records.into_iter().peekable();
        let mut numbered = self.numbered.lock();
        if records.peek().is_none() {
            return (numbered.last, AppendStatus::Durable);
        }
        if numbered.closed {
            return (numbered.last, AppendStatus::Queued);
        }
        let mut entries = Vec::with_capacity(records.size_hint().0);
        for record in records {
            let PendingRecord { record, shown } = record.into();
            numbered.last.0 += 1;
            entries.push(Arc::new(JournalEntry { seq: numbered.last, time, shown, record }));
        }
        numbered.tail.extend(entries.iter().cloned());
        let last = numbered.last;
        let progress = Arc::clone(&self.progress);
        let mut acknowledge = Some(acknowledge);
        let appended = self.journal.append(Batch {
            session: self.session.clone(),
            entries,
            log_state: Arc::clone(&self.log_state),
            urgent: urgency == Urgency::Urgent,
            on_status: Box::new(move |stage| {
                if !matches!(stage, BatchStatus::Failed(_))
                    && let Some(acknowledge) = acknowledge.take()
                {
                    acknowledge();
                }
                progress.told(last, stage);
            }),
        });
        if appended == AppendStatus::Durable {
            self.progress.durable(last);
        }
        (last, appended)
    }

    /// Takes no more records: whoever appends now is told nothing.
    pub fn close(&self) {
        self.numbered.lock().closed = true;
    }

    /// The same if all that was appended is durable. Returns whether it is.
    #[must_use]
    pub fn close_if_durable(&self) -> bool {
        let mut numbered = self.numbered.lock();
        let is_durable = self.durable() == numbered.last;
        numbered.closed |= is_durable;
        is_durable
    }

    /// The last record's place; 0 before the first.
    #[must_use]
    pub fn last(&self) -> Seq {
        self.numbered.lock().last
    }

    /// The last record up to which all are durable.
    #[must_use]
    pub fn durable(&self) -> Seq {
        self.progress.state.lock().durable
    }

    /// Why nothing more can be stored, if that is so.
    #[must_use]
    pub fn failure(&self) -> Option<JournalError> {
        self.progress.state.lock().failed.clone()
    }

    /// Waits until all records up to a place are durable.
    ///
    /// # Errors
    /// When one of them, or one before, could not be stored.
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

    /// The entries that were appended after a place, in order; from the last
    /// [`Self::forget_until`] on, durable or not.
    #[must_use]
    pub fn entries_since(&self, after: Seq) -> Vec<Arc<JournalEntry>> {
        let numbered = self.numbered.lock();
        let begin = numbered.tail.partition_point(|entry| entry.seq <= after);
        numbered.tail.iter().skip(begin).cloned().collect()
    }

    /// Keeps entries at hand that were read from the journal.
    pub fn remember(&self, entries: impl IntoIterator<Item = JournalEntry>) {
        let mut numbered = self.numbered.lock();
        let mut tail: Vec<_> = entries.into_iter().map(Arc::new).collect();
        tail.append(&mut numbered.tail);
        numbered.tail = tail;
    }

    /// Appends entries that another session's log has had: their places and times stay. For a log
    /// without records.
    pub fn adopt(&self, entries: Vec<JournalEntry>) {
        let mut numbered = self.numbered.lock();
        let Some(last) = entries.last().map(|entry| entry.seq) else { return };
        numbered.last = last;
        let progress = Arc::clone(&self.progress);
        let appended = self.journal.append(Batch {
            session: self.session.clone(),
            entries: entries.into_iter().map(Arc::new).collect(),
            log_state: Arc::clone(&self.log_state),
            urgent: false,
            on_status: Box::new(move |stage| progress.told(last, stage)),
        });
        if appended == AppendStatus::Durable {
            self.progress.durable(last);
        }
    }

    /// Keeps no entries up to a place at hand.
    pub fn forget_until(&self, upto: Seq) {
        let mut numbered = self.numbered.lock();
        let begin = numbered.tail.partition_point(|entry| entry.seq <= upto);
        if begin == numbered.tail.len() {
            // A session that idles keeps no room for it.
            numbered.tail = Vec::new();
        } else {
            numbered.tail.drain(..begin);
        }
    }
}

impl LogProgress {
    fn told(&self, upto: Seq, stage: BatchStatus) {
        match stage {
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
            // Whoever waited may be gone.
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
