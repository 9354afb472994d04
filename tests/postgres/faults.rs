//! Servers that crash, connections that are cut, answers that are lost: nothing that was acknowledged is lost, nothing is
//! stored twice, and the engine goes on by itself.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and its tasks end with it"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callsheet::config::Durability;
use callsheet::journal::{Journal, JournalError, PostgresJournal, Urgency};
use callsheet::record::{Record, Seq};
use callsheet_values::transcript::fixtures;
use rustix::process::Signal;
use tokio::time::Instant;

use crate::log::{
    PATIENCE, id, log, open_with, opened, seqs, stop, store, store_fork, store_session, until,
    within,
};
use crate::proxy::{Mode, Proxy};
use crate::server::{TestDatabase, database, own_database};

/// Number of sessions of a load.
const SESSIONS: usize = 24;

/// Sessions that append one record after the other, each as soon as the last one is durable.
struct Load {
    journal: Arc<PostgresJournal>,
    ends: Arc<AtomicBool>,
    sessions: Vec<tokio::task::JoinHandle<(String, u64)>>,
}

impl Load {
    fn start(journal: &Arc<PostgresJournal>) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let sessions = (0..SESSIONS).map(|at| {
            let (journal, ends) = (Arc::clone(journal), Arc::clone(&ends));
            tokio::task::spawn(async move {
                // Some sessions end runs, some name documents, and some are opened again and again.
                let (mut name, mut round) = (format!("s{at}"), 0);
                let mut log = log(&journal, &name, 0);
                let mut record = opened("load");
                while !ends.load(Ordering::Acquire) {
                    let is_urgent = at % 3 != 0;
                    let urgency = if is_urgent { Urgency::Urgent } else { Urgency::Deferrable };
                    log.append(vec![record, stop()], urgency, || ());
                    let durable = tokio::time::timeout(PATIENCE, log.wait_durable(log.last_seq()));
                    durable.await.expect("it becomes durable").expect("it is stored");
                    record = match at % 4 {
                        0 => Record::SessionClosed,
                        1 => Record::ToolsFrozen { sha256: format!("sum{at}").into() },
                        _ => stop(),
                    };
                    if at % 6 == 5 && log.last_seq().0 > 20 {
                        round += 1;
                        name = format!("s{at}-{round}");
                        log = crate::log::log(&journal, &name, 0);
                        record = opened("load");
                    }
                }
                (name, log.last_seq().0)
            })
        });
        let sessions = sessions.collect();
        Self { journal: Arc::clone(journal), ends, sessions }
    }

    /// Ends the load, and checks that each session has each of its records once.
    async fn end(self) -> u64 {
        self.ends.store(true, Ordering::Release);
        let mut records = 0;
        for session in self.sessions {
            let (name, last) = within(session).await.unwrap();
            assert_eq!(seqs(&self.journal, &name).await, (1..=last).collect::<Vec<_>>(), "{name}");
            records += last;
        }
        records
    }
}

async fn open(database: &TestDatabase, port: u16, durability: Durability) -> Arc<PostgresJournal> {
    open_with(&database.url_at(port), |options| {
        options.durability = durability;
        options.write_timeout = Duration::from_millis(500);
        options.lease = Duration::from_secs(10);
    })
    .await
}

/// Checks that the engine writes, after a fault.
async fn check_writes(journal: &Arc<PostgresJournal>, session: &str) {
    store_session(journal, session, 2).await;
    until("the failure is over", async || journal.failure().is_none()).await;
}

/// Returns the numbers of batches of unknown fate that were found to be stored, and not to be.
fn unknown_commits(journal: &PostgresJournal) -> (u64, u64) {
    let status = journal.status();
    (status.unknown_stored, status.unknown_lost)
}

#[tokio::test]
async fn connections_are_cut() {
    for durability in [Durability::Strict, Durability::Relaxed] {
        let Some(database) = database().await else { return };
        let proxy = Proxy::start(database.server.port).await;
        let journal = open(&database, proxy.port, durability).await;
        let load = Load::start(&journal);
        for round in 0..25 {
            tokio::time::sleep(Duration::from_millis(60 + round * 7 % 50)).await;
            proxy.cut();
        }
        assert!(load.end().await > 4 * SESSIONS as u64);
        check_writes(&journal, "after").await;
        within(journal.close()).await;
    }
}

#[tokio::test]
async fn answers_to_commits_are_lost() {
    for durability in [Durability::Strict, Durability::Relaxed] {
        let Some(database) = database().await else { return };
        let proxy = Proxy::start(database.server.port).await;
        let journal = open(&database, proxy.port, durability).await;
        let load = Load::start(&journal);
        for round in 0..15 {
            tokio::time::sleep(Duration::from_millis(100 + round * 7 % 50)).await;
            let before = proxy.lost_answers();
            proxy.set(Mode::LoseAnswers);
            until("an answer is lost", async || proxy.lost_answers() > before).await;
            proxy.set(Mode::Pass);
        }
        assert!(load.end().await > 4 * SESSIONS as u64);
        let (stored, _) = unknown_commits(&journal);
        assert!(stored > 5, "statements were executed whose answers were lost: {stored}");
        check_writes(&journal, "after").await;
        within(journal.close()).await;
    }
}

#[tokio::test]
async fn connections_are_dead_without_a_word() {
    for durability in [Durability::Strict, Durability::Relaxed] {
        let Some(database) = database().await else { return };
        let proxy = Proxy::start(database.server.port).await;
        let journal = open(&database, proxy.port, durability).await;
        let load = Load::start(&journal);
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            proxy.set(Mode::Freeze);
            tokio::time::sleep(Duration::from_millis(900)).await;
            proxy.set(Mode::Pass);
        }
        assert!(load.end().await > 4 * SESSIONS as u64);
        check_writes(&journal, "after").await;
        within(journal.close()).await;
    }
}

#[tokio::test]
async fn slow_answers_are_no_failure() {
    let Some(database) = database().await else { return };
    let proxy = Proxy::start(database.server.port).await;
    let journal = open(&database, proxy.port, Durability::Strict).await;
    proxy.delay(Duration::from_millis(50));
    let load = Load::start(&journal);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(load.end().await > SESSIONS as u64 * 8);
    assert_eq!((unknown_commits(&journal), journal.failure()), ((0, 0), None));
    within(journal.close()).await;
}

#[tokio::test]
async fn the_server_is_killed_in_mid_load() {
    for durability in [Durability::Strict, Durability::Relaxed] {
        let Some(database) = own_database(&["fsync=on"]).await else { return };
        let port = database.server.port;
        let journal = open(&database, port, durability).await;
        let load = Load::start(&journal);
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            database.server.stop(Signal::KILL);
            database.server.run().await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(load.end().await > 4 * SESSIONS as u64);
        check_writes(&journal, "after").await;
        within(journal.close()).await;
    }
}

#[tokio::test]
async fn batches_wait_while_the_database_is_away() {
    let Some(database) = own_database(&["fsync=off"]).await else { return };
    let journal = open(&database, database.server.port, Durability::Strict).await;
    let sessions: Vec<_> = (0..4).map(|at| log(&journal, &format!("s{at}"), 0)).collect();
    store(&sessions[0], vec![opened("x")]).await.unwrap();
    database.server.stop(Signal::INT);
    for log in &sessions[1..] {
        log.append(vec![opened("x")], Urgency::Urgent, || ());
    }
    sessions[0].append(vec![stop()], Urgency::Urgent, || ());
    until("the engine says so", async || journal.failure().is_some()).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(sessions[1].durable_seq(), Seq(0));
    assert_eq!(sessions[1].failure(), None, "they wait");
    let read = journal.read(&id("s0"), Seq(0)).await;
    assert!(matches!(read, Err(JournalError::Unavailable(_))), "{read:?}");
    database.server.run().await;
    for log in &sessions {
        within(log.wait_durable(log.last_seq())).await.unwrap();
    }
    until("the failure is over", async || journal.failure().is_none()).await;
    assert_eq!(seqs(&journal, "s0").await, [1, 2]);
    within(journal.close()).await;
}

#[tokio::test]
async fn batches_fail_when_the_database_is_away_for_too_long() {
    let Some(database) = database().await else { return };
    let proxy = Proxy::start(database.server.port).await;
    let journal = open_with(&database.url_at(proxy.port), |options| {
        options.busy_timeout = Duration::from_millis(1_500);
        options.write_timeout = Duration::from_millis(300);
    })
    .await;
    let session = store_session(&journal, "s", 1).await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    let began = Instant::now();
    let error = store(&session, vec![stop()]).await.unwrap_err();
    assert!(error.is_transient() && matches!(error, JournalError::Write(_)), "{error}");
    assert!(began.elapsed() >= Duration::from_millis(1_500));
    assert!(journal.failure().is_some());
    let removed = within(journal.remove(&[id("s")])).await;
    assert!(matches!(removed, Err(JournalError::Write(_))), "{removed:?}");
    proxy.set(Mode::Pass);
    until("it works again by itself", async || journal.failure().is_none()).await;
    assert!(store(&session, vec![stop()]).await.is_err(), "its log has a gap");
    store(&log(&journal, "s", 1), vec![stop()]).await.unwrap();
    assert_eq!(seqs(&journal, "s").await, [1, 2]);
    within(journal.close()).await;
}

#[tokio::test]
async fn a_statement_that_stands_still_is_given_up() {
    let Some(database) = database().await else { return };
    let journal = open(&database, database.server.port, Durability::Strict).await;
    let session = store_session(&journal, "s", 1).await;
    // Another session of the server holds the row of the tree.
    let hold = "BEGIN; UPDATE trees SET epoch = epoch; SELECT pg_sleep(2); ROLLBACK";
    let holder = database.sql(hold);
    let appended = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let began = Instant::now();
        store(&session, vec![stop()]).await.unwrap();
        assert!(began.elapsed() > Duration::from_secs(1));
    };
    tokio::join!(holder, appended);
    assert_eq!(seqs(&journal, "s").await, [1, 2]);
    let (stored, lost) = unknown_commits(&journal);
    assert!(stored + lost > 0, "the engine has given the connection up");
    within(journal.close()).await;
}

#[tokio::test]
async fn a_deletion_and_a_fork_survive_lost_answers() {
    let Some(database) = database().await else { return };
    let proxy = Proxy::start(database.server.port).await;
    let journal = open(&database, proxy.port, Durability::Strict).await;
    for at in 0..8 {
        let (origin, fork) = (format!("o{at}"), format!("f{at}"));
        store_session(&journal, &origin, 6).await;
        let lose = async {
            tokio::time::sleep(Duration::from_millis(at * 2)).await;
            proxy.set(Mode::LoseAnswers);
            tokio::time::sleep(Duration::from_millis(30)).await;
            proxy.set(Mode::Pass);
        };
        let (forked, ()) = tokio::join!(store_fork(&journal, &fork, &origin, 4), lose);
        forked.unwrap();
        let lose = async {
            tokio::time::sleep(Duration::from_millis(at * 2)).await;
            proxy.set(Mode::LoseAnswers);
            tokio::time::sleep(Duration::from_millis(30)).await;
            proxy.set(Mode::Pass);
        };
        let ids = [id(&origin)];
        let (removed, ()) = tokio::join!(journal.remove(&ids), lose);
        removed.unwrap();
        assert_eq!(seqs(&journal, &origin).await, [0; 0]);
        assert_eq!(seqs(&journal, &fork).await, [1, 2, 3, 4, 5]);
    }
    within(journal.close()).await;
}

/// Every kind of record survives: see the journal's check of a whole transcript.
#[tokio::test]
async fn all_records_of_a_transcript_are_read_back() {
    let Some(database) = database().await else { return };
    let journal = open(&database, database.server.port, Durability::Strict).await;
    let records = fixtures::sample_records();
    let session = log(&journal, "s", 0);
    store(&session, vec![opened("x")]).await.unwrap();
    store(&session, records.clone()).await.unwrap();
    let read = journal.read(&id("s"), Seq(1)).await.unwrap();
    assert!(read.into_iter().map(|entry| entry.record).eq(records));
    within(journal.close()).await;
}

/// The server dies, and its standby is promoted. A commit has waited for the standby, so nothing is lost.
#[tokio::test]
async fn the_standby_is_used_when_the_server_has_died() {
    let Some(database) = own_database(&[]).await else { return };
    let standby = database.server.standby().await;
    let wait = "ALTER SYSTEM SET synchronous_standby_names = '*'";
    database.sql(wait).await;
    database.sql("SELECT pg_reload_conf()").await;
    // A standby cannot be written, so the journal does not use it although it comes first.
    let url = format!(
        "postgres://{}@127.0.0.1:{},127.0.0.1:{}/{}",
        crate::server::USER,
        standby.port,
        database.server.port,
        database.name
    );
    let journal = open_with(&url, |options| options.durability = Durability::Strict).await;
    let log = store_session(&journal, "s", 20).await;
    database.server.stop(Signal::KILL);
    log.append(vec![stop()], Urgency::Urgent, || ());
    let promoted = standby.sql("postgres", "SELECT pg_promote()").await;
    assert_eq!(promoted, ["t"]);
    within(log.wait_durable(log.last_seq())).await.unwrap();
    let stored = journal.read_some(&id("s"), Seq(0), usize::MAX).await.unwrap();
    assert_eq!(
        stored.iter().map(|entry| entry.seq.0).collect::<Vec<_>>(),
        (1..=21).collect::<Vec<_>>()
    );
    within(journal.close()).await;
}
