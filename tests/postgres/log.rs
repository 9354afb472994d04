//! Logs of sessions, for tests of the engine.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use callsheet::journal::{
    Journal, JournalEntry, JournalError, PostgresJournal, PostgresOptions, SessionLog, Urgency,
};
use callsheet::record::{Record, Seq, StopMode};
use callsheet::types::{CallKey, Metadata, ParentCall, RootRun, RunId, SessionId};

/// Time limit of every wait, so that a test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("it takes too long"))
}

/// Polls a condition until it holds.
pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what}: it did not happen in time"));
}

pub(crate) fn id(text: &str) -> SessionId {
    SessionId::parse(text).unwrap()
}

pub(crate) fn opened(agent: &str) -> Record {
    opened_with(agent, Metadata::default(), None)
}

pub(crate) fn opened_with(agent: &str, metadata: Metadata, parent: Option<&str>) -> Record {
    let parent = parent.map(|parent| {
        let run = RunId("run_0000000000000001".into());
        Arc::new(ParentCall {
            session: id(parent),
            run: run.clone(),
            key: CallKey { turn: 1, attempt: 1, index: 0 },
            root: RootRun { session: id(parent), run, seq: Seq(1) },
            agent_path: vec!["a".into(), "b".into()],
            max_depth: 3,
            max_children: 9,
        })
    });
    Record::SessionOpened {
        agent: agent.to_owned(),
        messages: Vec::new(),
        metadata,
        parent,
        client_tools: None,
    }
}

pub(crate) fn stop() -> Record {
    Record::StopAsked { mode: StopMode::Now, authored_by: None }
}

/// Opens the journal of a host without an address, with leases of 2 s.
pub(crate) async fn open(url: &str) -> Arc<PostgresJournal> {
    open_with(url, |_| ()).await
}

/// Opens the journal of a host that is one of several.
pub(crate) async fn open_at(url: &str, address: &str) -> Arc<PostgresJournal> {
    open_with(url, |options| options.advertise = Some(address.to_owned())).await
}

pub(crate) async fn open_with(
    url: &str,
    change: impl FnOnce(&mut PostgresOptions),
) -> Arc<PostgresJournal> {
    Arc::new(try_open_with(url, change).await.unwrap())
}

pub(crate) async fn try_open_with(
    url: &str,
    change: impl FnOnce(&mut PostgresOptions),
) -> Result<PostgresJournal, JournalError> {
    let options = PostgresOptions::default().with(|options| {
        options.lease = Duration::from_secs(2);
        change(options);
    });
    within(PostgresJournal::open(url, options)).await
}

/// Returns the log of a session that has `last` records.
pub(crate) fn log(journal: &Arc<PostgresJournal>, session: &str, last: u64) -> SessionLog {
    let journal = Arc::clone(journal) as Arc<dyn Journal>;
    SessionLog::new(id(session), journal, Seq(last), |_| ())
}

/// Appends records, and waits until they are durable.
pub(crate) async fn store(log: &SessionLog, records: Vec<Record>) -> Result<(), JournalError> {
    log.append(records, Urgency::Urgent, || ());
    within(log.wait_durable(log.last_seq())).await
}

/// Stores a new session with this number of records.
pub(crate) async fn store_session(
    journal: &Arc<PostgresJournal>,
    session: &str,
    records: usize,
) -> SessionLog {
    let stored = log(journal, session, 0);
    let stops = (1..records).map(|_| stop());
    store(&stored, [opened("default")].into_iter().chain(stops).collect()).await.unwrap();
    stored
}

/// Stores a fork of a session, which shares the first `at` records of it.
pub(crate) async fn store_fork(
    journal: &Arc<PostgresJournal>,
    fork: &str,
    from: &str,
    at: u64,
) -> Result<SessionLog, JournalError> {
    let mut entries = journal.read_some(&id(from), Seq(0), usize::try_from(at).unwrap()).await?;
    let record = Record::SessionForked { from: id(from), at: Seq(at) };
    entries.push(JournalEntry { seq: Seq(at + 1), time: 9, displayed_bytes: 0, record });
    let log = log(journal, fork, 0);
    log.import(entries);
    within(log.wait_durable(Seq(at + 1))).await.map(|()| log)
}

pub(crate) async fn seqs(journal: &PostgresJournal, session: &str) -> Vec<u64> {
    let entries = journal.read(&id(session), Seq(0)).await.unwrap();
    entries.iter().map(|entry| entry.seq.0).collect()
}
