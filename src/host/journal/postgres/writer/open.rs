//! Opens sessions, also forks and child sessions.

use std::collections::{HashMap, VecDeque};

use tokio::time::Instant;
use tokio_postgres::types::ToSql;

use super::super::super::{BatchRefusal, JournalError};
use super::super::encoding::{signed, unsigned};
use super::super::errors::{StatementFailure, StatementFailureKind};
use super::super::queue::{TreeBatch, TreePosition};
use super::append::concerns_one_batch;
use super::{DatabaseWriter, Unsettled};
use callsheet_values::types::{SessionId, SessionState, is_child_session};

/// Maximum number of sessions that one statement opens. The statement compares each with each.
const OPENED_MAX: usize = 128;

/// A session that is to be opened, and the place of its tree.
struct NewSession {
    batch: TreeBatch,
    /// The root and the epoch of the tree of a child session. `None`: it is the root of a new tree.
    tree: Option<(i64, i64)>,
    /// The sessions of a fork.
    origin: Option<Origin>,
}

/// The origin of a fork.
#[derive(Clone, Copy, Debug)]
struct Origin {
    /// The session that is forked.
    forked: i64,
    /// The session that has the last shared record in its own rows.
    origin: i64,
    /// The number of shared records.
    prefix: u64,
}

/// The columns of the statement.
#[derive(Default)]
struct OpenColumns<'a> {
    ids: Vec<&'a str>,
    agents: Vec<&'a str>,
    opened: Vec<i64>,
    metadata: Vec<Option<&'a str>>,
    children: Vec<bool>,
    roots: Vec<Option<i64>>,
    epochs: Vec<Option<i64>>,
    forked: Vec<Option<i64>>,
    origins: Vec<Option<i64>>,
    prefixes: Vec<Option<i64>>,
    running: Vec<bool>,
    touched: Vec<i64>,
    record_places: Vec<i64>,
    seqs: Vec<i64>,
    times: Vec<i64>,
    bodies: Vec<&'a [u8]>,
    use_places: Vec<i64>,
    keys: Vec<&'a str>,
    bytes: usize,
}

impl<'a> OpenColumns<'a> {
    fn of(sessions: &'a [NewSession]) -> Self {
        let mut columns = Self::default();
        for (place, new) in (1..).zip(sessions) {
            let batch = &new.batch;
            let Some(opening) = &batch.opening else { continue };
            columns.ids.push(batch.session.as_str());
            columns.agents.push(&opening.agent);
            columns.opened.push(signed(opening.time));
            columns.metadata.push(opening.metadata.as_deref());
            columns.children.push(is_child_session(&batch.session));
            columns.roots.push(new.tree.map(|(root, _)| root));
            columns.epochs.push(new.tree.map(|(_, epoch)| epoch));
            columns.forked.push(new.origin.map(|origin| origin.forked));
            columns.origins.push(new.origin.map(|origin| origin.origin));
            columns.prefixes.push(new.origin.map(|origin| signed(origin.prefix)));
            columns.running.push(batch.state == Some(SessionState::Running));
            columns.touched.push(batch.time);
            for (seq, time, body) in batch.records.iter() {
                columns.record_places.push(place);
                columns.seqs.push(seq);
                columns.times.push(time);
                columns.bodies.push(body);
            }
            columns.bytes += batch.records.bytes();
            for key in &batch.documents {
                columns.use_places.push(place);
                columns.keys.push(key);
            }
        }
        columns
    }
}

/// The result of opening a session.
#[derive(Clone, Copy, Debug)]
enum Opened {
    /// It has this number and this root.
    Stored(i64, i64),
    Exists,
}

impl DatabaseWriter {
    /// Opens sessions, many in one statement if the database refuses none of them.
    pub(super) async fn open(&mut self, mut batches: Vec<TreeBatch>) -> Result<(), Unsettled> {
        let mut groups = VecDeque::new();
        while batches.len() > OPENED_MAX {
            let rest = batches.split_off(OPENED_MAX);
            groups.push_back(std::mem::replace(&mut batches, rest));
        }
        groups.push_back(batches);
        while let Some(group) = groups.pop_front() {
            let mut sessions = match self.prepare(group).await {
                Ok(sessions) => sessions,
                Err((failure, unsettled)) => {
                    let rest = unsettled.into_iter().chain(groups.into_iter().flatten());
                    return Err((failure, rest.collect()));
                }
            };
            if sessions.is_empty() {
                continue;
            }
            let began = Instant::now();
            let sent = self.send_opens(&sessions).await;
            self.parts.observer.answered(began.elapsed());
            match sent {
                Ok(opened) => {
                    self.note_success();
                    let mut existing = self.settle_opened(sessions, &opened, began);
                    // An earlier statement may have opened them late.
                    if let Err(failure) = self.settle_unknown(&mut existing).await {
                        let rest = existing.into_iter().chain(groups.into_iter().flatten());
                        return Err((failure, rest.collect()));
                    }
                    existing.iter().for_each(|batch| batch.refuse(BatchRefusal::Exists));
                }
                Err(failure) if concerns_one_batch(failure.kind) => {
                    if sessions.len() > 1 {
                        let second = sessions.split_off(sessions.len() / 2);
                        for half in [second, sessions] {
                            groups.push_front(half.into_iter().map(|new| new.batch).collect());
                        }
                        continue;
                    }
                    for new in sessions {
                        new.batch.fail(failure.write_error());
                    }
                }
                Err(failure) => {
                    let is_unknown = failure.kind == StatementFailureKind::Lost;
                    let unsettled = sessions.into_iter().map(|mut new| {
                        if is_unknown {
                            new.batch.note_sent();
                        }
                        new.batch
                    });
                    return Err((failure, unsettled.chain(groups.into_iter().flatten()).collect()));
                }
            }
        }
        Ok(())
    }

    /// Finds the trees of child sessions and the origins of forks. Reports the batches that cannot be stored.
    async fn prepare(&mut self, batches: Vec<TreeBatch>) -> Result<Vec<NewSession>, Unsettled> {
        let parents: Vec<&SessionId> = batches.iter().filter_map(|it| it.parent.as_ref()).collect();
        let parents =
            if parents.is_empty() { Ok(HashMap::new()) } else { self.find(&parents).await };
        let parents = match parents {
            Ok(parents) => parents,
            Err(failure) => return Err((failure, batches)),
        };
        let mut sessions = Vec::with_capacity(batches.len());
        let mut batches = batches.into_iter();
        while let Some(batch) = batches.next() {
            if batch.follows_failure() {
                let reason =
                    format!("an earlier batch of session {} was not stored", batch.session);
                batch.fail(JournalError::Write(reason));
                continue;
            }
            // A child session without a stored parent is the root of a tree.
            let parent = batch.parent.as_ref().and_then(|parent| parents.get(parent));
            let epoch = parent.map(|parent| (parent.root, self.parts.trees.epoch(parent.root)));
            let tree = match epoch {
                Some((_, None)) => {
                    batch.refuse(BatchRefusal::Fenced);
                    continue;
                }
                Some((root, Some(epoch))) => Some((root, epoch)),
                None => None,
            };
            let fork = batch.opening.as_ref().and_then(|opening| opening.fork.as_ref());
            let origin = match fork {
                None => None,
                Some((from, prefix)) => match self.origin(from, *prefix).await {
                    Ok(Some(origin)) => Some(origin),
                    Ok(None) => {
                        batch.refuse(BatchRefusal::OriginRemoved(from.clone()));
                        continue;
                    }
                    Err(failure) => {
                        let prepared = sessions.into_iter().map(|new: NewSession| new.batch);
                        return Err((failure, prepared.chain([batch]).chain(batches).collect()));
                    }
                },
            };
            sessions.push(NewSession { batch, tree, origin });
        }
        Ok(sessions)
    }

    /// Finds the sessions with the records that a fork shares. `None` if there is no such record.
    async fn origin(
        &self,
        from: &SessionId,
        prefix: u64,
    ) -> Result<Option<Origin>, StatementFailure> {
        let (open, limit) = self.statement(0)?;
        let find = &open.statements.find_origin;
        let rows = open.connection.execute(limit, find, &[&from.as_str(), &signed(prefix)]).await?;
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(None) };
        let last_record = unsigned(last.get::<_, Option<i64>>(1).unwrap_or(0));
        let origin = Origin { forked: first.get(0), origin: last.get(0), prefix };
        Ok((prefix <= last_record).then_some(origin))
    }

    /// Sends the statement that opens these sessions. Returns what it has done with each place, from 1 on. Those are missing
    /// whose tree is not this host's, or whose origin was removed.
    async fn send_opens(
        &self,
        sessions: &[NewSession],
    ) -> Result<HashMap<i64, Opened>, StatementFailure> {
        let columns = OpenColumns::of(sessions);
        let (open, limit) = self.statement(columns.bytes)?;
        let parameters: [&(dyn ToSql + Sync); 19] = [
            &self.parts.host,
            &columns.ids,
            &columns.agents,
            &columns.opened,
            &columns.metadata,
            &columns.children,
            &columns.roots,
            &columns.epochs,
            &columns.forked,
            &columns.origins,
            &columns.prefixes,
            &columns.running,
            &columns.touched,
            &columns.record_places,
            &columns.seqs,
            &columns.times,
            &columns.bodies,
            &columns.use_places,
            &columns.keys,
        ];
        let rows = open.connection.execute(limit, &open.statements.open, &parameters).await?;
        let opened = rows.iter().map(|row| {
            let stored = row.get::<_, Option<i64>>(1).zip(row.get(2));
            let opened =
                stored.map_or(Opened::Exists, |(number, root)| Opened::Stored(number, root));
            (row.get(0), opened)
        });
        Ok(opened.collect())
    }

    /// Reports the batches of a statement. Returns those whose sessions exist.
    fn settle_opened(
        &mut self,
        sessions: Vec<NewSession>,
        opened: &HashMap<i64, Opened>,
        began: Instant,
    ) -> Vec<TreeBatch> {
        let (mut stored, mut existing) = (Vec::with_capacity(sessions.len()), Vec::new());
        for (place, NewSession { mut batch, tree, .. }) in (1..).zip(sessions) {
            match (opened.get(&place), tree) {
                (Some(Opened::Stored(number, root)), _) => {
                    let epoch = tree.map_or(1, |(_, epoch)| epoch);
                    let position = TreePosition {
                        number: *number,
                        root: *root,
                        epoch,
                        last: *batch.seqs.end(),
                    };
                    self.note_opened(&batch, position);
                    stored.push((batch, position));
                }
                (Some(Opened::Exists), _) => {
                    batch.is_fate_unknown = batch.was_sent;
                    existing.push(batch);
                }
                (None, Some((root, epoch))) => {
                    self.parts.trees.lose(root, epoch, &batch.session);
                    batch.refuse(BatchRefusal::Fenced);
                }
                (None, None) => {
                    let fork = batch.opening.as_ref().and_then(|opening| opening.fork.clone());
                    let from = fork.map_or_else(|| batch.session.clone(), |(from, _)| from);
                    batch.refuse(BatchRefusal::OriginRemoved(from));
                }
            }
        }
        self.settle_stored(stored, began.elapsed());
        existing
    }

    /// Notes a session that this host has opened.
    pub(super) fn note_opened(&self, batch: &TreeBatch, position: TreePosition) {
        self.parts.counters.note_opened();
        if position.root == position.number {
            self.parts.trees.insert(position.number, position.epoch);
        }
        self.parts.trees.note_use(position.root, &batch.session);
    }
}
