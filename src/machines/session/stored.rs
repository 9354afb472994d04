//! A stored session: the session machine after the records of a journal.

use std::borrow::Borrow;
use std::time::Duration;

use super::machine::{Session, SessionRulesOf};
use super::open_run::{OpenRun, RecordedAt, RunStage};
use super::run_machine::{FollowUp, RunNext};
use crate::turn::CommittedTurn;
use callsheet_values::record::{JournalEntry, Record, Seq, StopMode};
use callsheet_values::transcript::Transcript;
use callsheet_values::types::SessionId;

/// A session that was read from its journal.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSession {
    /// The session, suspended if a run has not ended or inputs wait.
    pub session: Session,
    /// The name of the session's agent.
    pub agent: String,
    /// The time when the session was opened or forked: Unix time in milliseconds.
    pub opened: u64,
    /// The position of the last record.
    pub last: Seq,
    /// The approximate number of bytes of all records.
    pub bytes: u64,
    /// The records of the turn in progress, from its first one on.
    pub turn_entries: Vec<JournalEntry>,
}

/// A record that contradicts the ones before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {} contradicts the ones before it: {what}", .seq.0)]
pub struct RebuildError {
    /// The position of the record.
    pub seq: Seq,
    /// The contradiction.
    pub what: String,
}

impl StoredSession {
    /// Reads a session from all of its records. `session_rules_of` returns the rules of a run with its
    /// overrides.
    ///
    /// # Errors
    /// If a record contradicts the ones before it.
    pub fn read(
        entries: &[JournalEntry],
        session_rules_of: SessionRulesOf<'_>,
    ) -> Result<Self, RebuildError> {
        SessionReader::new(session_rules_of).read_all(entries)
    }

    /// Reads a session with everything that was said, also what records have replaced in its context.
    ///
    /// # Errors
    /// If a record contradicts the ones before it.
    pub fn read_uncompacted(
        entries: impl IntoIterator<Item = impl Borrow<JournalEntry>>,
        session_rules_of: SessionRulesOf<'_>,
    ) -> Result<Self, RebuildError> {
        SessionReader::new(session_rules_of).with_all_messages().read_all(entries)
    }

    /// Forks the session `from` behind the record `at`, at the Unix time `time` in milliseconds.
    /// Drops the later entries and appends the record of the fork.
    ///
    /// # Errors
    /// If a record contradicts the ones before it.
    pub fn fork(
        entries: &mut Vec<JournalEntry>,
        from: SessionId,
        at: Seq,
        time: u64,
        session_rules_of: SessionRulesOf<'_>,
    ) -> Result<Self, RebuildError> {
        entries.retain(|entry| entry.seq <= at);
        let record = Record::SessionForked { from, at };
        entries.push(JournalEntry { seq: Seq(at.0 + 1), time, displayed_bytes: 0, record });
        Self::read(entries, session_rules_of)
    }
}

const NOT_OPENED: &str = "a session begins with the record that it was opened";

/// Hands the records of a journal to a session, and each turn when it is committed.
///
/// The commit of a turn is recorded by the turn's owner, before the session receives it. Inputs
/// that follow in the journal may have reached the session first. The reader therefore keeps a
/// committed turn back until a record shows that the session had received it, or until the end of
/// the journal.
pub(super) struct SessionReader<'a> {
    session: Session,
    session_rules_of: SessionRulesOf<'a>,
    last: Seq,
    bytes: u64,
    /// The records of the turn in progress.
    turn: Option<Vec<JournalEntry>>,
    kept_back: Option<KeptBackTurn>,
    /// The history keeps the messages that records replace.
    has_all_messages: bool,
}

/// A committed turn that the session may not have received yet.
struct KeptBackTurn {
    turn: CommittedTurn,
    /// A stop after the turn was recorded behind the commit.
    stopped: bool,
}

impl<'a> SessionReader<'a> {
    pub(super) fn new(session_rules_of: SessionRulesOf<'a>) -> Self {
        let session = Session::blank();
        Self {
            session,
            session_rules_of,
            last: Seq(0),
            bytes: 0,
            turn: None,
            kept_back: None,
            has_all_messages: false,
        }
    }

    /// Keeps the messages that records replace, so that the history has everything that was said.
    pub(super) fn with_all_messages(mut self) -> Self {
        self.has_all_messages = true;
        self.session.context.keeps_all_messages = true;
        self
    }

    fn read_all(
        mut self,
        entries: impl IntoIterator<Item = impl Borrow<JournalEntry>>,
    ) -> Result<StoredSession, RebuildError> {
        for entry in entries {
            self.read(entry.borrow())?;
        }
        if self.last.0 == 0 {
            return Err(contradiction(Seq(1), NOT_OPENED));
        }
        Ok(self.finish())
    }

    /// Reads the next record. Returns the turn that it commits.
    pub(super) fn read(
        &mut self,
        entry: &JournalEntry,
    ) -> Result<Option<&CommittedTurn>, RebuildError> {
        let (seq, last) = (entry.seq, self.last.0);
        if last == 0 && !matches!(entry.record, Record::SessionOpened { .. }) {
            return Err(contradiction(seq, NOT_OPENED));
        }
        if last > 0 && seq.0 != last + 1 {
            return Err(contradiction(seq, format!("it follows record {last}")));
        }
        if self.session.is_closed() {
            return Err(contradiction(seq, "the session is closed"));
        }
        self.last = seq;
        self.bytes += entry.approximate_bytes();
        self.read_record(entry).map_err(|what| contradiction(seq, what))?;
        let commits = matches!(entry.record, Record::TurnCommitted { .. });
        Ok(self.kept_back.as_ref().filter(|_| commits).map(|kept_back| &kept_back.turn))
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the session after all records.
    pub(super) fn finish(mut self) -> StoredSession {
        self.commit_kept_back(|_| true);
        let mut session = self.session;
        session.outbox.clear();
        session.suspended = session.run.is_some() || !session.queue.is_empty();
        StoredSession {
            agent: session.agent.clone(),
            opened: session.opened_at,
            last: self.last,
            bytes: self.bytes,
            turn_entries: self.turn.unwrap_or_default(),
            session,
        }
    }

    /// Applies a record. First passes on the turn that is kept back, if the record shows that the session had
    /// received it.
    fn read_record(&mut self, entry: &JournalEntry) -> Result<(), String> {
        let record = &entry.record;
        match record {
            Record::InputQueued { .. } | Record::InputRemoved { .. } => {}
            Record::StopAsked { mode: StopMode::AfterTurn, .. } => {
                if let Some(kept_back) = &mut self.kept_back {
                    kept_back.stopped = true;
                    return Ok(());
                }
            }
            Record::StopAsked { mode: StopMode::Now, .. } => {}
            Record::Steered { follows_turn, .. } => {
                if *follows_turn > self.session.turn {
                    self.commit_kept_back(is_ready);
                }
            }
            Record::LimitReached { limit, .. } => {
                self.commit_kept_back(|run| match &run.stage {
                    RunStage::FollowUp(follow_up) => {
                        follow_up.limits.first().is_some_and(|hit| hit.limit == limit)
                    }
                    RunStage::Ready(_) | RunStage::Turn(_) => false,
                });
            }
            Record::Instructed { .. } => self.commit_kept_back(|run| {
                matches!(&run.stage, RunStage::FollowUp(FollowUp { limits, next: RunNext::Instruct(_) })
                    if limits.is_empty())
            }),
            Record::RunEnded { .. } | Record::SessionForked { .. } | Record::SessionClosed => {
                self.commit_kept_back(|_| true);
            }
            Record::SessionOpened { .. }
            | Record::RunStarted { .. }
            | Record::RunReopened { .. } => {}
            Record::ToolsFrozen { .. } | Record::Compacted { .. } => {
                self.commit_kept_back(is_ready)
            }
            Record::AttemptStarted { .. }
            | Record::AttemptFailed { .. }
            | Record::ResponseEnded { .. }
            | Record::CallIntended { .. }
            | Record::CallReported { .. }
            | Record::HooksDecided { .. }
            | Record::TurnHooksDecided { .. }
            | Record::CallEnded { .. }
            | Record::ApprovalAsked { .. }
            | Record::ApprovalGiven { .. }
            | Record::TurnCommitted { .. } => {
                self.commit_kept_back(is_ready);
                self.turn.get_or_insert_default();
            }
        }
        let at = RecordedAt { seq: entry.seq, time: entry.time, now: Duration::ZERO };
        if !(self.has_all_messages && matches!(record, Record::Compacted { .. })) {
            self.session.apply(at, record, self.session_rules_of)?;
        }
        self.gather(entry)
    }

    /// Collects the records of the turn in progress, with the inputs between them.
    fn gather(&mut self, entry: &JournalEntry) -> Result<(), String> {
        let Some(entries) = &mut self.turn else { return Ok(()) };
        if self.session.run.as_ref().is_none_or(|run| run.turn().is_none()) {
            self.turn = None;
            return Ok(());
        }
        entries.push(entry.clone());
        if matches!(entry.record, Record::TurnCommitted { .. }) {
            let transcript = Transcript::read(entries.iter());
            let committed = transcript.runs.iter().flat_map(|run| run.committed()).next();
            let (turn, commit) = committed.ok_or("it is not the commit of the turn")?;
            let turn = CommittedTurn::from_transcript(turn, commit)
                .map_err(|key| format!("call {key} of the turn has no outcome"))?;
            self.kept_back = Some(KeptBackTurn { turn, stopped: false });
            self.turn = None;
        }
        Ok(())
    }

    /// Passes the committed turn to the session. If a stop after the turn was recorded after it,
    /// the stop may have reached the session first. `fits` returns true if the state then agrees
    /// with the next record; otherwise the session received the turn first.
    fn commit_kept_back(&mut self, fits: impl Fn(&OpenRun) -> bool) {
        let Some(KeptBackTurn { turn, stopped }) = self.kept_back.take() else { return };
        let stop = |session: &mut Session| {
            session.run.iter_mut().for_each(|run| run.stop(StopMode::AfterTurn));
        };
        if !stopped {
            self.session.handle_turn_committed(&turn);
            return;
        }
        let mut stopped_later = self.session.clone();
        stop(&mut self.session);
        self.session.handle_turn_committed(&turn);
        if !self.session.run.as_deref().is_some_and(fits) {
            stopped_later.handle_turn_committed(&turn);
            stop(&mut stopped_later);
            self.session = stopped_later;
        }
    }
}

/// Returns true if the next turn may have begun.
fn is_ready(run: &OpenRun) -> bool {
    matches!(run.stage, RunStage::Ready(_))
}

fn contradiction(seq: Seq, what: impl Into<String>) -> RebuildError {
    RebuildError { seq, what: what.into() }
}
