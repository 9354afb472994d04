//! The queue of the task that writes ([`GroupQueue`]).

use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::super::group_commit::{
    self, GroupQueue, GroupedBatch, GroupedWork, Opening, SharedCallback,
};
use super::super::{Batch, BatchRefusal, BatchStatus, EngineLogState, JournalError, state_after};
use super::encoding::StoredRecords;
use callsheet_values::record::Record;
use callsheet_values::types::{SessionId, SessionState};

/// A queued batch, with its records in stored form.
pub(super) struct TreeBatch {
    pub(super) session: SessionId,
    /// Set if the batch opens a session.
    pub(super) opening: Option<Opening>,
    /// The session that made the call, if the batch opens a child session.
    pub(super) parent: Option<SessionId>,
    /// The session's state after the batch, if it changes.
    pub(super) state: Option<SessionState>,
    /// The sequence numbers of its records, with those that a fork shares.
    pub(super) seqs: RangeInclusive<u64>,
    pub(super) records: StoredRecords,
    /// The time of its last record.
    pub(super) time: i64,
    /// The keys of the documents that its records name.
    pub(super) documents: Vec<String>,
    pub(super) urgent: bool,
    pub(super) queued_at: Instant,
    pub(super) engine_state: Arc<EngineLogState>,
    pub(super) on_status: SharedCallback,
    /// Its place in the order of the batches that the writer has received.
    pub(super) order: u64,
    /// True if a statement with it was sent, and whether the statement was executed is unknown.
    pub(super) is_fate_unknown: bool,
    /// True if its fate was unknown once. A server that stood still may execute the statement of then later.
    pub(super) was_sent: bool,
    /// True if the batch was reported as written.
    pub(super) is_written: bool,
}

/// The end of a session's log in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreePosition {
    /// The number of the session.
    pub(super) number: i64,
    /// The number of the root of its tree, and the epoch of the tree in which this host owns it.
    pub(super) root: i64,
    pub(super) epoch: i64,
    /// The sequence number of its last stored record.
    pub(super) last: u64,
}

/// The position of a log, if it is known: the engine's value of the log.
type SharedTreePosition = Mutex<Option<TreePosition>>;

impl TreeBatch {
    /// Converts a batch to its stored form, on the thread that appends. Returns `None` if it has no entries.
    pub(super) fn of(batch: Batch) -> Option<Self> {
        let Batch { session, entries, engine_state, urgent, on_status } = batch;
        let (first, last) = (entries.first()?, entries.last()?);
        let opening = if first.seq.0 == 1 { Opening::of(&entries) } else { None };
        let shared = opening.as_ref().map_or(0, Opening::shared_records);
        // A fork is a tree of its own.
        let parent = if let Record::SessionOpened { parent: Some(call), .. } = &first.record
            && opening.is_some()
            && shared == 0
        {
            Some(call.session.clone())
        } else {
            None
        };
        Some(Self {
            state: state_after(entries.iter().map(Arc::as_ref)),
            seqs: first.seq.0..=last.seq.0,
            time: super::encoding::signed(last.time),
            records: StoredRecords::of(entries.get(shared..)?),
            // A fork uses the documents of the records that it shares.
            documents: entries.iter().filter_map(|entry| entry.document_key()).collect(),
            on_status: Arc::new(Mutex::new(on_status)),
            session,
            opening,
            parent,
            urgent,
            queued_at: Instant::now(),
            engine_state,
            order: 0,
            is_fate_unknown: false,
            was_sent: false,
            is_written: false,
        })
    }

    pub(super) fn position(&self) -> Option<TreePosition> {
        self.engine_state.of_engine::<SharedTreePosition>().and_then(|shared| *shared.lock())
    }

    pub(super) fn set_position(&self, position: Option<TreePosition>) {
        if let Some(shared) = self.engine_state.of_engine::<SharedTreePosition>() {
            *shared.lock() = position;
        }
    }

    /// Returns true if an earlier batch of the log was not stored.
    pub(super) fn follows_failure(&self) -> bool {
        self.engine_state.has_failed(*self.seqs.start())
    }

    /// Notes that a statement with the batch was sent, and that its answer is lost.
    pub(super) fn note_sent(&mut self) {
        self.is_fate_unknown = true;
        self.was_sent = true;
    }

    /// Reports that the batch is not stored, nor will later ones of its log be.
    pub(super) fn fail(&self, error: JournalError) {
        self.engine_state.fail(*self.seqs.start());
        group_commit::call(&self.on_status, error.into());
    }

    /// Reports that the database does not store the batch, although it works.
    pub(super) fn refuse(&self, refusal: BatchRefusal) {
        self.fail(JournalError::Refused(refusal));
    }

    pub(super) fn report(&self, status: BatchStatus) {
        group_commit::call(&self.on_status, status);
    }
}

impl GroupedBatch for TreeBatch {
    fn session(&self) -> &SessionId {
        &self.session
    }

    fn is_urgent(&self) -> bool {
        self.urgent
    }

    fn queued_at(&self) -> Instant {
        self.queued_at
    }

    fn bytes(&self) -> usize {
        self.records.bytes()
    }

    fn is_fork(&self) -> bool {
        self.opening.as_ref().is_some_and(|opening| opening.fork.is_some())
    }
}

/// A task of the writer besides storing batches. It follows the batches that were queued before.
pub(super) enum TreeTask {
    /// Hides sessions: they do not exist any more. The answer has their numbers.
    Hide(Vec<SessionId>, oneshot::Sender<Result<Vec<i64>, JournalError>>),
    /// Gives the trees away that [wait for it](super::trees::OwnedTrees::push_given).
    Give,
}

pub(super) type BatchWork = GroupedWork<TreeBatch, TreeTask>;

/// The queue of the writer, in order.
pub(super) struct BatchQueue {
    state: Mutex<GroupQueue<TreeBatch, TreeTask>>,
    ready: Notify,
}

impl BatchQueue {
    pub(super) fn new(batches_max: usize) -> Self {
        Self { state: Mutex::new(GroupQueue::new(batches_max)), ready: Notify::new() }
    }

    /// Queues a batch, or reports at once that it failed.
    pub(super) fn push(&self, batch: TreeBatch) {
        let mut state = self.state.lock();
        if let Some(error) = state.refusal() {
            drop(state);
            return batch.fail(error);
        }
        let had_last_group = state.has_last_group();
        let wake = state.push(batch) || (!had_last_group && state.has_last_group());
        drop(state);
        if wake {
            self.ready.notify_one();
        }
    }

    pub(super) fn push_task(&self, task: TreeTask) -> Result<(), JournalError> {
        self.state.lock().push_task(task)?;
        self.ready.notify_one();
        Ok(())
    }

    /// Makes the writer store and flush the queued batches of a session.
    pub(super) fn flush(&self, session: &SessionId) {
        if self.state.lock().flush(session) {
            self.ready.notify_one();
        }
    }

    /// Closes the queue. Queued batches are still stored.
    pub(super) fn close(&self) {
        self.state.lock().close();
        self.ready.notify_one();
    }

    /// Closes the queue, because no writer remains. The queued batches and tasks fail.
    pub(super) fn abandon(&self) {
        let batches = self.state.lock().abandon();
        batches.into_iter().for_each(|batch| batch.fail(JournalError::Closed));
    }

    /// Returns the number of queued batches.
    pub(super) fn len(&self) -> usize {
        self.state.lock().len()
    }

    /// Waits until there is work, or until a time.
    pub(super) async fn next_work(&self, until: Option<Instant>) -> BatchWork {
        loop {
            let wake = {
                let state = self.state.lock();
                if state.is_due() {
                    break;
                }
                state.deferred_until().into_iter().chain(until).min()
            };
            if wake.is_some_and(|wake| wake <= Instant::now()) {
                break;
            }
            self.wait(wake).await;
        }
        let gather_time = self.state.lock().gather_time();
        if let Some(time) = gather_time {
            let until = Instant::now() + time;
            // A statement costs the less for each batch the more it has, but a wait for nothing costs more.
            let is_gathered = || {
                let state = self.state.lock();
                state.is_full() || state.has_last_group()
            };
            while !is_gathered() && Instant::now() < until {
                self.wait(Some(until)).await;
            }
        }
        self.state.lock().drain()
    }

    /// Waits for a change of the queue, or until a time.
    async fn wait(&self, until: Option<Instant>) {
        match until {
            // A change is noticed by the caller, and so is the time.
            Some(until) => drop(tokio::time::timeout_at(until, self.ready.notified()).await),
            None => self.ready.notified().await,
        }
    }
}
