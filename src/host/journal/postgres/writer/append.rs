//! Stores batches of sessions that are stored already.

use std::collections::{HashMap, HashSet, VecDeque};

use tokio::time::Instant;

use super::super::super::{BatchRefusal, JournalError};
use super::super::errors::{StatementFailure, StatementFailureKind};
use super::super::queue::{TreeBatch, TreePosition};
use super::{DatabaseWriter, FoundSession, Unsettled};
use callsheet_values::types::{SessionId, SessionState};

/// The columns of the statement: the trees, the records, and what these change.
#[derive(Default)]
struct AppendColumns<'a> {
    /// The place of each tree and epoch among the roots and epochs, from 1 on.
    places: HashMap<(i64, i64), i64>,
    roots: Vec<i64>,
    epochs: Vec<i64>,
    records: RecordColumns<'a>,
    begun: (Vec<i64>, Vec<i64>, Vec<&'a str>, Vec<i64>),
    ended: (Vec<i64>, Vec<i64>, Vec<i64>),
    used: (Vec<i64>, Vec<i64>, Vec<&'a str>),
    bytes: usize,
}

#[derive(Default)]
struct RecordColumns<'a> {
    places: Vec<i64>,
    sessions: Vec<i64>,
    seqs: Vec<i64>,
    times: Vec<i64>,
    bodies: Vec<&'a [u8]>,
}

impl<'a> AppendColumns<'a> {
    fn of(batches: &'a [(TreeBatch, TreePosition)]) -> Self {
        let mut columns = Self::default();
        // The last change of each session counts.
        let mut changes = HashMap::new();
        for (batch, position) in batches {
            let place = columns.place(position.root, position.epoch);
            for (seq, time, body) in batch.records.iter() {
                let records = &mut columns.records;
                records.places.push(place);
                records.sessions.push(position.number);
                records.seqs.push(seq);
                records.times.push(time);
                records.bodies.push(body);
            }
            columns.bytes += batch.records.bytes();
            if let Some(state) = batch.state {
                changes.insert(position.number, (batch, position, state));
            }
            for key in &batch.documents {
                columns.used.0.push(place);
                columns.used.1.push(position.number);
                columns.used.2.push(key);
            }
        }
        for (number, (batch, position, state)) in changes {
            let place = columns.place(position.root, position.epoch);
            if state == SessionState::Running {
                columns.begun.0.push(place);
                columns.begun.1.push(number);
                columns.begun.2.push(batch.session.as_str());
                columns.begun.3.push(position.root);
            } else {
                columns.ended.0.push(place);
                columns.ended.1.push(number);
                columns.ended.2.push(batch.time);
            }
        }
        columns
    }

    fn place(&mut self, root: i64, epoch: i64) -> i64 {
        let Self { places, roots, epochs, .. } = self;
        *places.entry((root, epoch)).or_insert_with(|| {
            roots.push(root);
            epochs.push(epoch);
            super::super::encoding::signed(roots.len() as u64)
        })
    }

    /// Returns true if nothing but records is stored.
    fn is_plain(&self) -> bool {
        self.begun.0.is_empty() && self.ended.0.is_empty() && self.used.0.is_empty()
    }
}

impl DatabaseWriter {
    /// Stores batches of stored sessions, all in one statement if the database refuses none of them.
    pub(super) async fn append(&mut self, batches: Vec<TreeBatch>) -> Result<(), Unsettled> {
        let unknown = batches.iter().filter(|batch| batch.position().is_none());
        let unknown: HashSet<&SessionId> = unknown.map(|batch| &batch.session).collect();
        let found = if unknown.is_empty() {
            Ok(HashMap::new())
        } else {
            self.find(&unknown.into_iter().collect::<Vec<_>>()).await
        };
        let found = match found {
            Ok(found) => found,
            Err(failure) => return Err((failure, batches)),
        };
        let mut groups = VecDeque::from([batches]);
        while let Some(group) = groups.pop_front() {
            let mut group = self.check_appends(group, &found);
            if group.is_empty() {
                continue;
            }
            let began = Instant::now();
            let sent = self.send_appends(&group).await;
            self.parts.observer.answered(began.elapsed());
            match sent {
                Ok(owned) => {
                    self.note_success();
                    let (stored, fenced): (Vec<_>, Vec<_>) =
                        group.into_iter().partition(|(_, position)| {
                            owned.contains(&(position.root, position.epoch))
                        });
                    self.settle_stored(stored, began.elapsed());
                    for (batch, TreePosition { root, epoch, .. }) in fenced {
                        self.parts.trees.lose(root, epoch, &batch.session);
                        batch.refuse(BatchRefusal::Fenced);
                    }
                }
                Err(failure) if concerns_one_batch(failure.kind) => {
                    if group.len() > 1 {
                        // Each half is stored alone, so that one bad batch does not fail the others.
                        let second = group.split_off(group.len() / 2);
                        for half in [second, group] {
                            groups.push_front(half.into_iter().map(|(batch, _)| batch).collect());
                        }
                        continue;
                    }
                    let group = group.into_iter().map(|(batch, _)| batch).collect();
                    if let Err((failure, unsettled)) = self.settle_conflict(group, &failure).await {
                        let rest = groups.into_iter().flatten();
                        return Err((failure, unsettled.into_iter().chain(rest).collect()));
                    }
                }
                Err(failure) => {
                    let is_unknown = failure.kind == StatementFailureKind::Lost;
                    let unsettled = group.into_iter().map(|(mut batch, _)| {
                        if is_unknown {
                            batch.note_sent();
                        }
                        batch
                    });
                    return Err((failure, unsettled.chain(groups.into_iter().flatten()).collect()));
                }
            }
        }
        Ok(())
    }

    /// Settles a batch that the database refuses. If its records are stored, an earlier statement with it was executed
    /// late.
    async fn settle_conflict(
        &mut self,
        mut refused: Vec<TreeBatch>,
        failure: &StatementFailure,
    ) -> Result<(), Unsettled> {
        if failure.kind == StatementFailureKind::Conflict {
            refused.iter_mut().for_each(TreeBatch::note_sent);
            if let Err(failure) = self.settle_unknown(&mut refused).await {
                return Err((failure, refused));
            }
        }
        refused.iter().for_each(|batch| batch.fail(failure.write_error()));
        Ok(())
    }

    /// Returns the batches that continue the stored records, each with its position after it. Fails the others.
    fn check_appends(
        &self,
        batches: Vec<TreeBatch>,
        found: &HashMap<SessionId, FoundSession>,
    ) -> Vec<(TreeBatch, TreePosition)> {
        let mut lasts = HashMap::new();
        let mut checked = Vec::with_capacity(batches.len());
        for batch in batches {
            match self.check_append(&batch, found, &lasts) {
                Ok(position) => {
                    lasts.insert(position.number, position.last);
                    checked.push((batch, position));
                }
                Err(error) => batch.fail(error),
            }
        }
        checked
    }

    fn check_append(
        &self,
        batch: &TreeBatch,
        found: &HashMap<SessionId, FoundSession>,
        lasts: &HashMap<i64, u64>,
    ) -> Result<TreePosition, JournalError> {
        let (id, first) = (&batch.session, *batch.seqs.start());
        if batch.follows_failure() {
            let reason = format!("a record of session {id} before {first} was not stored");
            return Err(JournalError::Write(reason));
        }
        let fenced = JournalError::Refused(BatchRefusal::Fenced);
        let position = match batch.position() {
            // A batch that has waited while the tree was lost, and taken again.
            Some(TreePosition { root, epoch, .. })
                if self.parts.trees.epoch(root).is_some_and(|present| present > epoch) =>
            {
                return Err(fenced);
            }
            Some(position) => position,
            None => {
                let Some(session) = found.get(id) else {
                    return Err(JournalError::Write(format!("there is no session {id}")));
                };
                let epoch = self.parts.trees.epoch(session.root);
                // The other host has appended since the session was read.
                let epoch = epoch.filter(|_| session.last < first);
                let Some(epoch) = epoch else { return Err(fenced) };
                let FoundSession { number, root, last } = *session;
                TreePosition { number, root, epoch, last }
            }
        };
        if self.hidden.contains(&position.number) {
            return Err(JournalError::Write(format!("session {id} has been removed")));
        }
        let last = lasts.get(&position.number).copied().unwrap_or(position.last);
        if last.checked_add(1) != Some(first) {
            // The session was read before the tree was lost, and taken again.
            if self.parts.trees.are_shared() {
                return Err(fenced);
            }
            let reason =
                format!("record {first} of session {id} does not follow the last one, {last}");
            return Err(JournalError::Write(reason));
        }
        Ok(TreePosition { last: *batch.seqs.end(), ..position })
    }

    /// Sends the statement that stores these batches. Returns the trees that this host owns.
    async fn send_appends(
        &self,
        batches: &[(TreeBatch, TreePosition)],
    ) -> Result<HashSet<(i64, i64)>, StatementFailure> {
        let columns = AppendColumns::of(batches);
        let (open, limit) = self.statement(columns.bytes)?;
        let (connection, statements) = (&open.connection, &open.statements);
        let AppendColumns { roots, epochs, records, begun, ended, used, .. } = &columns;
        let RecordColumns { places, sessions, seqs, times, bodies } = records;
        let host = &self.parts.host;
        let rows = if columns.is_plain() {
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 8] =
                [roots, epochs, host, places, sessions, seqs, times, bodies];
            connection.execute(limit, &statements.append, &parameters).await?
        } else {
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 18] = [
                roots, epochs, host, places, sessions, seqs, times, bodies, &begun.0, &begun.1,
                &begun.2, &begun.3, &ended.0, &ended.1, &ended.2, &used.0, &used.1, &used.2,
            ];
            connection.execute(limit, &statements.append_and_change, &parameters).await?
        };
        let owned: HashSet<i64> = rows.iter().map(|row| row.get(0)).collect();
        let trees = columns.places.iter().filter(|(_, place)| owned.contains(place));
        Ok(trees.map(|(tree, _)| *tree).collect())
    }
}

/// Returns true if the database refuses a value, so that the other batches of the statement may be stored.
pub(super) fn concerns_one_batch(kind: StatementFailureKind) -> bool {
    match kind {
        StatementFailureKind::Conflict | StatementFailureKind::Value => true,
        StatementFailureKind::Lost
        | StatementFailureKind::Again
        | StatementFailureKind::Exhausted
        | StatementFailureKind::Full
        | StatementFailureKind::Refused => false,
    }
}
