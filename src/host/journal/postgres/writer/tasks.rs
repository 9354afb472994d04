//! The tasks of the writer: hides sessions, and gives trees away.

use std::collections::HashMap;

use tokio::time::Instant;

use super::super::super::{BatchRefusal, JournalError};
use super::super::errors::{StatementFailure, StatementFailureKind};
use super::super::queue::TreeTask;
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
            TreeTask::Give(roots, to, done) => {
                let given = self.give(&roots, to.as_deref()).await;
                let _ = done.send(given);
            }
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
        if self.parts.durability == Durability::Relaxed {
            self.commit_to_disk().await?;
        }
        if owned < roots.len() {
            return Err(TaskError::Refused(JournalError::Refused(BatchRefusal::Fenced)));
        }
        Ok(hidden)
    }

    /// Gives the trees of root sessions to another host, or to nobody.
    async fn give(&mut self, roots: &[SessionId], to: Option<&str>) -> Result<(), JournalError> {
        let began = Instant::now();
        // What was stored before must not be lost after the new owner has read it.
        self.flush().await;
        loop {
            match self.try_give(roots, to).await {
                Ok(()) => {
                    self.note_success();
                    return Ok(());
                }
                Err(failure) => self.retry_task(&failure, began).await?,
            }
        }
    }

    async fn try_give(
        &mut self,
        sessions: &[SessionId],
        to: Option<&str>,
    ) -> Result<(), StatementFailure> {
        self.connect().await?;
        let trees = self.parts.trees.of_roots(sessions);
        let (roots, epochs): (Vec<i64>, Vec<i64>) = trees.iter().copied().unzip();
        let (open, limit) = self.statement(0)?;
        let give = &open.statements.give;
        open.connection.execute(limit, give, &[&self.parts.host, &roots, &epochs, &to]).await?;
        if self.parts.durability == Durability::Relaxed {
            self.commit_to_disk().await?;
        }
        trees.iter().for_each(|(root, epoch)| self.parts.trees.remove(*root, *epoch));
        Ok(())
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
