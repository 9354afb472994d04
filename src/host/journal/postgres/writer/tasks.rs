//! The tasks of the writer: hides sessions, and gives trees away.

use std::collections::{HashMap, HashSet};

use tokio::time::Instant;

use super::super::super::{BatchRefusal, JournalError};
use super::super::errors::{StatementFailure, StatementFailureKind};
use super::super::queue::TreeTask;
use super::super::trees::GivenTree;
use super::DatabaseWriter;
use callsheet_values::config::Durability;
use callsheet_values::types::SessionId;

/// The end of a task that is not tried again.
enum TaskError {
    StatementFailure(StatementFailure),
    Refused(JournalError),
}

impl From<StatementFailure> for TaskError {
    fn from(failure: StatementFailure) -> Self {
        Self::StatementFailure(failure)
    }
}

impl DatabaseWriter {
    pub(super) async fn perform(&mut self, task: TreeTask) {
        // The receivers may have been dropped.
        match task {
            TreeTask::Hide(sessions, done) => {
                let hidden = self.hide(&sessions).await;
                let _ = done.send(hidden);
            }
            TreeTask::Give => self.give().await,
        }
    }

    /// Hides sessions, so that they do not exist any more. Returns their numbers.
    async fn hide(&mut self, sessions: &[SessionId]) -> Result<Vec<i64>, JournalError> {
        let began = Instant::now();
        loop {
            match self.try_hide(sessions).await {
                Ok(numbers) => {
                    self.note_success();
                    return Ok(numbers);
                }
                Err(TaskError::Refused(error)) => return Err(error),
                Err(TaskError::StatementFailure(failure)) => {
                    self.retry_task(&failure, began).await?
                }
            }
        }
    }

    async fn try_hide(&mut self, sessions: &[SessionId]) -> Result<Vec<i64>, TaskError> {
        self.connect().await?;
        let found = self.find(&sessions.iter().collect::<Vec<_>>()).await?;
        let (mut places, mut roots, mut epochs) = (HashMap::new(), Vec::new(), Vec::new());
        let (mut session_places, mut numbers) = (Vec::new(), Vec::new());
        for session in found.values() {
            let epoch = self.parts.trees.epoch(session.root);
            let fenced = || TaskError::Refused(JournalError::Refused(BatchRefusal::Fenced));
            let epoch = epoch.ok_or_else(fenced)?;
            let place: i64 = *places.entry(session.root).or_insert_with(|| {
                roots.push(session.root);
                epochs.push(epoch);
                super::super::encoding::signed(roots.len() as u64)
            });
            session_places.push(place);
            numbers.push(session.number);
        }
        if numbers.is_empty() {
            return Ok(numbers);
        }
        // Also if the answer is lost: their logs must not append to what may be hidden.
        self.hidden.extend(&numbers);
        let (open, limit) = self.statement(0)?;
        let (host, hide) = (&self.parts.host, &open.statements.hide);
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&roots, &epochs, host, &session_places, &numbers];
        let rows = open.connection.execute(limit, hide, &parameters).await?;
        let of_kind = |kind: i32| rows.iter().filter(move |row| row.get::<_, i32>(0) == kind);
        let owned = of_kind(0).count();
        let hidden: Vec<i64> = of_kind(1).map(|row| row.get(1)).collect();
        self.parts.counters.note_removed(hidden.len());
        self.parts.trees.forget_uses(sessions);
        if self.parts.durability == Durability::Relaxed {
            self.commit_to_disk().await?;
        }
        if owned < roots.len() {
            return Err(TaskError::Refused(JournalError::Refused(BatchRefusal::Fenced)));
        }
        Ok(hidden)
    }

    /// Gives the trees away that wait for it and are not in use.
    async fn give(&mut self) {
        let began = Instant::now();
        let waiting = self.parts.trees.take_given();
        // The next owner reads the records that are stored so far. A crash of the server must not lose them.
        self.flush().await;
        // A use that begins from now on takes the tree again, with a new epoch.
        let unused = |tree: &GivenTree| {
            let epoch = self.parts.trees.remove_unused(tree.root)?;
            Some((tree.root, epoch, tree.with_runs))
        };
        let trees: Vec<(i64, i64, bool)> = waiting.iter().filter_map(unused).collect();
        let given = loop {
            match self.try_give(&trees).await {
                Ok(given) => {
                    self.note_success();
                    break Ok(given);
                }
                Err(failure) => {
                    if let Err(error) = self.retry_task(&failure, began).await {
                        break Err(error);
                    }
                }
            }
        };
        for (root, epoch, _) in &trees {
            if !given.as_ref().is_ok_and(|given| given.contains(root)) {
                self.parts.trees.restore(*root, *epoch);
            }
        }
        let result = given.map(drop);
        for tree in waiting {
            let _ = tree.done.send(result.clone());
        }
    }

    /// Returns the roots of the trees that were given away.
    async fn try_give(
        &mut self,
        trees: &[(i64, i64, bool)],
    ) -> Result<HashSet<i64>, StatementFailure> {
        if trees.is_empty() {
            return Ok(HashSet::new());
        }
        self.connect().await?;
        let (open, limit) = self.statement(0)?;
        let (host, give) = (&self.parts.host, &open.statements.give);
        let roots: Vec<i64> = trees.iter().map(|(root, _, _)| *root).collect();
        let epochs: Vec<i64> = trees.iter().map(|(_, epoch, _)| *epoch).collect();
        let with_runs: Vec<bool> = trees.iter().map(|(_, _, with_runs)| *with_runs).collect();
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [host, &roots, &epochs, &with_runs];
        let rows = open.connection.execute(limit, give, &parameters).await?;
        if self.parts.durability == Durability::Relaxed {
            self.commit_to_disk().await?;
        }
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Prepares the next attempt of a task, or returns the error if there is none.
    async fn retry_task(
        &mut self,
        failure: &StatementFailure,
        began: Instant,
    ) -> Result<(), JournalError> {
        let is_final = match failure.kind {
            StatementFailureKind::Conflict
            | StatementFailureKind::Refused
            | StatementFailureKind::Value => true,
            StatementFailureKind::Lost
            | StatementFailureKind::Again
            | StatementFailureKind::Exhausted
            | StatementFailureKind::Full => false,
        };
        self.recover_and_store(failure).await;
        if is_final || began.elapsed() >= self.parts.busy_timeout {
            return Err(failure.write_error());
        }
        Ok(())
    }
}
