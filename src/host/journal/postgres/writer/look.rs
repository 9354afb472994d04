//! Finds out whether a statement was executed whose answer was lost.

use super::super::encoding::signed;
use super::super::errors::StatementFailure;
use super::super::queue::{TreeBatch, TreePosition};
use super::DatabaseWriter;
use std::time::Duration;

/// The stored records of a batch's session.
struct FoundRecords {
    number: i64,
    root: i64,
    /// The epoch of the tree, if this host owns it.
    epoch: Option<i64>,
    /// Sequence number, time and body of each stored record of the batch.
    records: Vec<(i64, i64, Vec<u8>)>,
}

impl DatabaseWriter {
    /// Reports those batches of unknown fate that are stored, and removes them. The others count as never sent.
    ///
    /// A batch is stored if all its records are, byte for byte: a statement is executed as a whole. If the server executes
    /// it later, the same records cannot be stored twice, because their keys are equal.
    pub(super) async fn settle_unknown(
        &mut self,
        pending: &mut Vec<TreeBatch>,
    ) -> Result<(), StatementFailure> {
        if !pending.iter().any(|batch| batch.is_fate_unknown) {
            return Ok(());
        }
        let found = self.look(pending).await?;
        let (mut stored, mut left) = (Vec::new(), Vec::with_capacity(pending.len()));
        for (mut batch, found) in std::mem::take(pending).into_iter().zip(found) {
            let is_unknown = std::mem::take(&mut batch.is_fate_unknown);
            let position = found.and_then(|found| found.position_of(&batch));
            match position {
                Some(position) if is_unknown => {
                    self.parts.counters.note_fate(true);
                    if batch.opening.is_some() && batch.position().is_none() {
                        self.note_opened(&batch, position);
                    }
                    stored.push((batch, position));
                }
                Some(_) | None => {
                    if is_unknown {
                        self.parts.counters.note_fate(false);
                        rewind(&batch);
                    }
                    left.push(batch);
                }
            }
        }
        *pending = left;
        self.settle_stored(stored, Duration::ZERO);
        Ok(())
    }

    async fn look(
        &self,
        pending: &[TreeBatch],
    ) -> Result<Vec<Option<FoundRecords>>, StatementFailure> {
        let ids: Vec<&str> = pending.iter().map(|batch| batch.session.as_str()).collect();
        let (mut firsts, mut lasts) = (Vec::new(), Vec::new());
        for batch in pending {
            let last = if batch.is_fate_unknown { signed(*batch.seqs.end()) } else { 0 };
            let own = batch.records.iter().next().map_or(1, |(seq, _, _)| seq);
            firsts.push(own);
            lasts.push(last);
        }
        let bytes = pending.iter().map(|batch| batch.records.bytes()).sum();
        let (open, limit) = self.statement(bytes)?;
        let host = &self.parts.host;
        let look = &open.statements.look;
        let rows = open.connection.execute(limit, look, &[host, &ids, &firsts, &lasts]).await?;
        let mut found: Vec<Option<FoundRecords>> = pending.iter().map(|_| None).collect();
        for row in rows {
            let place = usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or(usize::MAX);
            let Some(slot) = found.get_mut(place) else { continue };
            let found = slot.get_or_insert_with(|| FoundRecords {
                number: row.get(1),
                root: row.get(2),
                epoch: row.get::<_, bool>(4).then(|| row.get(3)),
                records: Vec::new(),
            });
            if let Some(seq) = row.get(5) {
                found.records.push((seq, row.get(6), row.get(7)));
            }
        }
        Ok(found)
    }
}

impl FoundRecords {
    /// Returns the position after a batch, if its records are stored.
    fn position_of(&self, batch: &TreeBatch) -> Option<TreePosition> {
        let stored = self.records.iter().map(|(seq, time, body)| (*seq, *time, body.as_slice()));
        if !stored.eq(batch.records.iter()) {
            return None;
        }
        let Self { number, root, .. } = *self;
        // A log that is known goes on in its epoch. A session that this host has just opened has the first epoch, or
        // that of its tree.
        let known = batch.position().map(|position| position.epoch);
        let epoch = known.or(self.epoch).unwrap_or(1);
        Some(TreePosition { number, root, epoch, last: *batch.seqs.end() })
    }
}

/// Lets the log of a batch that is not stored end before it.
fn rewind(batch: &TreeBatch) {
    let first = *batch.seqs.start();
    let position = batch.position().filter(|position| position.last >= first);
    if let Some(position) = position {
        let before = TreePosition { last: first - 1, ..position };
        batch.set_position((first > 1).then_some(before));
    }
}
