//! The engine by itself: what it stores, reads, lists and deletes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use callsheet::config::Durability;
use callsheet::journal::{
    BatchRefusal, Journal, JournalEntry, JournalError, SessionLog, SessionQuery, Urgency,
};
use callsheet::record::{Record, Seq};
use callsheet::types::{Metadata, SessionState};
use callsheet::{SessionOrder, testing};

use crate::log::{
    id, log, open, open_at, open_with, opened, opened_with, seqs, stop, store, store_fork,
    store_session, until, within,
};
use crate::server::{TestDatabase, database, own_database};

#[tokio::test]
async fn it_keeps_the_contract_of_an_engine() {
    for durability in [Durability::Strict, Durability::Relaxed] {
        let Some(database) = database().await else { return };
        let url = database.url();
        testing::check_journal(async || {
            open_with(&url, |options| options.durability = durability).await as Arc<dyn Journal>
        })
        .await;
    }
}

#[tokio::test]
async fn several_of_it_keep_the_contract_of_owners() {
    let Some(database) = database().await else { return };
    let (url, number) = (database.url(), AtomicU32::new(0));
    testing::check_journal(async || {
        let number = number.fetch_add(1, Ordering::Relaxed);
        open_at(&url, &format!("http://h{number}:1")).await as Arc<dyn Journal>
    })
    .await;
}

#[tokio::test]
async fn durable_records_survive_reopening() {
    for durability in [Durability::Strict, Durability::Relaxed] {
        let Some(database) = database().await else { return };
        let open = || open_with_durability(&database, durability);
        let journal = open().await;
        let session = log(&journal, "s1", 0);
        session.append(vec![opened("writer")], Urgency::Urgent, || ());
        session.append(vec![Record::SessionClosed], Urgency::Deferrable, || ());
        within(session.wait_durable(Seq(2))).await.unwrap();
        let expected = journal.read(&id("s1"), Seq(0)).await.unwrap();
        assert_eq!(expected.len(), 2);
        let found = journal.find(&id("s1")).await.unwrap().unwrap();
        let state = (found.agent.as_str(), found.seq, found.state);
        assert_eq!(state, ("writer", Seq(2), SessionState::Running), "its deletion is unfinished");
        within(journal.close()).await;
        store(&session, vec![stop()]).await.unwrap_err();

        let journal = open().await;
        assert_eq!(journal.read(&id("s1"), Seq(0)).await.unwrap(), expected);
        assert_eq!(journal.read(&id("s1"), Seq(1)).await.unwrap(), expected[1..]);
        assert_eq!(journal.list(&SessionQuery::default()).await.unwrap(), [found]);
        assert_eq!(journal.count().await, Ok(1));
        store(&log(&journal, "s1", 2), vec![stop()]).await.unwrap();
        assert_eq!(seqs(&journal, "s1").await, [1, 2, 3]);
        journal.close().await;
    }
}

async fn open_with_durability(
    database: &TestDatabase,
    durability: Durability,
) -> Arc<callsheet::journal::PostgresJournal> {
    open_with(&database.url(), |options| options.durability = durability).await
}

#[tokio::test]
async fn relaxed_batches_are_written_before_they_are_durable() {
    let Some(database) = own_database(&["fsync=off"]).await else { return };
    let journal = open_with(&database.url(), |options| {
        options.durability = Durability::Relaxed;
        // A heartbeat would make the server flush its log, too.
        options.lease = std::time::Duration::from_secs(600);
    })
    .await;
    let session = store_session(&journal, "s", 1).await;
    for _ in 0..3 {
        let (written, is_written) = tokio::sync::oneshot::channel();
        let note = move || written.send(()).unwrap();
        session.append(vec![stop()], Urgency::Urgent, note);
        within(is_written).await.unwrap();
        let last = session.last_seq();
        assert!(session.durable_seq() < last, "nothing has waited for the disk");
        until("it becomes durable by itself", async || session.durable_seq() == last).await;
    }
    let unflushed = "SELECT (pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn())::bigint";
    session.append(vec![stop()], Urgency::Urgent, || ());
    within(session.wait_durable(session.last_seq())).await.unwrap();
    assert_eq!(database.number(unflushed).await, 0, "the server has flushed all of its log");
    journal.close().await;
}

#[tokio::test]
async fn lists_have_the_metadata_of_sessions_and_forks() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    let metadata = Metadata::new([("user", "u-17")]).unwrap();
    let with = opened_with("writer", metadata.clone(), None);
    for (session, record) in [("s1", opened("writer")), ("s2", with), ("s3", opened("writer"))] {
        store(&log(&journal, session, 0), vec![record]).await.unwrap();
    }
    store_fork(&journal, "s4", "s2", 1).await.unwrap();
    let listed = journal.list(&SessionQuery::default()).await.unwrap();
    let listed: Vec<_> = listed.into_iter().map(|session| session.metadata).collect();
    let none = Metadata::default();
    assert_eq!(listed, [none.clone(), metadata.clone(), none, metadata]);
    journal.close().await;
}

#[tokio::test]
async fn pages_have_each_session_once_in_order() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    for (session, runs) in [("c", false), ("a", true), ("d", true), ("b", false)] {
        let log = store_session(&journal, session, 1).await;
        if runs {
            store(&log, vec![Record::SessionClosed]).await.unwrap();
        }
    }
    let child = log(&journal, "sub_00000000000000000000000000000001", 0);
    let record = opened_with("child", Metadata::default(), Some("a"));
    store(&child, vec![record, Record::SessionClosed]).await.unwrap();
    let pages = async |state: Option<SessionState>, order, children| {
        let mut query = SessionQuery::default().with(|query| {
            (query.state, query.order, query.limit) = (state, order, 1);
            query.children = children;
        });
        let mut ids = Vec::new();
        while let Some(found) = journal.list(&query).await.unwrap().pop() {
            ids.push(found.id.to_string());
            query.continue_after(&found);
        }
        ids
    };
    use SessionOrder::{Id, Newest};
    use SessionState::{Hibernated, Idle, Running};
    let sub = "sub_00000000000000000000000000000001";
    assert_eq!(pages(None, Newest, false).await, ["b", "d", "a", "c"]);
    assert_eq!(pages(None, Newest, true).await, [sub, "b", "d", "a", "c"]);
    assert_eq!(pages(None, Id, true).await, ["a", "b", "c", "d", sub]);
    assert_eq!(pages(Some(Running), Newest, false).await, ["d", "a"]);
    assert_eq!(pages(Some(Running), Newest, true).await, [sub, "d", "a"]);
    assert_eq!(pages(Some(Running), Id, false).await, ["a", "d"]);
    assert_eq!(pages(Some(Idle), Newest, false).await, ["b", "c"]);
    assert_eq!(pages(Some(Idle), Id, true).await, ["b", "c"]);
    assert_eq!(pages(Some(Hibernated), Id, true).await, [""; 0]);
    journal.close().await;
}

#[tokio::test]
async fn a_list_without_limit_is_complete() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    let logs: Vec<SessionLog> =
        (0..2_300).map(|at| log(&journal, &format!("s{at:04}"), 0)).collect();
    for log in &logs {
        log.append(vec![opened("x")], Urgency::Urgent, || ());
    }
    for log in &logs {
        within(log.wait_durable(Seq(1))).await.unwrap();
    }
    let listed = journal.list(&SessionQuery::default()).await.unwrap();
    let ids = listed.iter().map(|session| session.id.as_str().to_owned());
    assert!(ids.eq((0..2_300).map(|at| format!("s{at:04}"))));
    assert_eq!(journal.count().await, Ok(2_300));
    journal.close().await;
}

#[tokio::test]
async fn large_and_odd_records_are_read_back() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    let session = store_session(&journal, "s", 1).await;
    let odd = |text: &str| Record::RunStarted {
        run_id: callsheet::types::RunId("run_0000000000000001".into()),
        input: callsheet::types::Content::from(text),
        overrides: Arc::default(),
        model: "m".to_owned(),
        execution: callsheet::types::Execution::Sequential,
        request: None,
        trace: None,
        metadata: Metadata::default(),
        into: None,
        authored_by: None,
    };
    let texts = ["\0 \u{1} \u{10ffff} \\ ' \" \n", &"large ".repeat(500_000), ""];
    let records: Vec<Record> = texts.into_iter().map(odd).collect();
    for record in &records {
        store(&session, vec![record.clone()]).await.unwrap();
    }
    let read = journal.read(&id("s"), Seq(1)).await.unwrap();
    assert!(read.iter().map(|entry| &entry.record).eq(&records));
    let bytes = database.number("SELECT max(octet_length(body)) FROM records").await;
    assert!(bytes < 100_000, "large bodies are compressed: {bytes}");
    journal.close().await;
}

#[tokio::test]
async fn a_batch_that_the_database_refuses_does_not_fail_the_others() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    // A text of PostgreSQL cannot have this character.
    let bad = log(&journal, "bad", 0);
    let good: Vec<_> = (0..20).map(|at| log(&journal, &format!("good{at}"), 0)).collect();
    for (at, log) in good.iter().enumerate() {
        log.append(vec![opened("x")], Urgency::Deferrable, || ());
        if at == 7 {
            bad.append(vec![opened("a\0b")], Urgency::Deferrable, || ());
        }
    }
    for log in &good {
        within(log.wait_durable(Seq(1))).await.unwrap();
    }
    let error = within(bad.wait_durable(Seq(1))).await.unwrap_err();
    assert!(matches!(error, JournalError::Write(_)), "{error}");
    assert_eq!(journal.failure(), None, "the journal works");
    journal.close().await;
}

#[tokio::test]
async fn a_panicking_listener_does_not_stop_the_writer() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    let engine = Arc::clone(&journal) as Arc<dyn Journal>;
    let bad = SessionLog::new(id("bad"), engine, Seq(0), |_| panic!("as it should"));
    bad.append(vec![opened("default")], Urgency::Urgent, || ());
    store_session(&journal, "good", 1).await;
    assert_eq!(journal.count().await, Ok(2));
    journal.close().await;
}

#[tokio::test]
async fn many_sessions_are_stored_in_few_transactions() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    let logs: Vec<_> = (0..500).map(|at| log(&journal, &format!("s{at}"), 0)).collect();
    let commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    for log in &logs {
        log.append(vec![opened("x")], Urgency::Urgent, || ());
    }
    for log in &logs {
        within(log.wait_durable(Seq(1))).await.unwrap();
    }
    let before = database.number(commits).await;
    for _ in 0..10 {
        for log in &logs {
            log.append(vec![stop()], Urgency::Urgent, || ());
        }
    }
    for log in &logs {
        within(log.wait_durable(Seq(11))).await.unwrap();
    }
    // The numbers of a connection are there after a second.
    tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
    let stored = database.number("SELECT count(*) FROM records").await;
    assert_eq!(stored, 500 * 11);
    let commits = database.number(commits).await - before;
    assert!(commits < 100, "{commits} transactions for 5,000 batches");
    journal.close().await;
}

#[tokio::test]
async fn a_record_that_does_not_follow_is_refused() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    let first = store_session(&journal, "s", 3).await;
    let gap = store(&log(&journal, "s", 4), vec![stop()]).await.unwrap_err();
    assert!(gap.to_string().contains("record 5 of session s does not follow the last one, 3"));
    let unknown = store(&log(&journal, "t", 1), vec![stop()]).await.unwrap_err();
    assert!(unknown.to_string().contains("there is no session t"), "{unknown}");
    store(&first, vec![stop()]).await.unwrap();
    assert_eq!(seqs(&journal, "s").await, [1, 2, 3, 4]);
    journal.close().await;
}

#[tokio::test]
async fn removed_sessions_are_gone_and_their_ids_are_free() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    let removed = store_session(&journal, "removed", 2_500).await;
    store_session(&journal, "kept", 2).await;
    within(journal.remove(&[id("removed"), id("unknown")])).await.unwrap();
    assert_eq!(journal.find(&id("removed")).await, Ok(None));
    assert_eq!(seqs(&journal, "removed").await, [0; 0]);
    assert_eq!(journal.count().await, Ok(1));
    let error = store(&removed, vec![stop()]).await.unwrap_err().to_string();
    assert!(error.contains("has been removed"), "{error}");
    for (table, rows) in [("records", 2), ("sessions", 1), ("trees", 1), ("touched", 1)] {
        assert_eq!(
            database.number(&format!("SELECT count(*) FROM {table}")).await,
            rows,
            "{table}"
        );
    }
    store_session(&journal, "removed", 1).await;
    assert_eq!(seqs(&journal, "removed").await, [1]);
    assert_eq!(seqs(&journal, "kept").await, [1, 2]);
    journal.close().await;
}

#[tokio::test]
async fn a_deletion_whose_caller_goes_away_is_finished() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    store_session(&journal, "removed", 3).await;
    let ids = [id("removed")];
    let mut removal = journal.remove(&ids);
    assert!(futures::poll!(&mut removal).is_pending());
    drop(removal);
    let rows = async || database.number("SELECT count(*) FROM records").await == 0;
    until("nothing is left of it", rows).await;
    journal.close().await;
}

#[tokio::test]
async fn the_next_host_finishes_a_deletion() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    store_session(&journal, "removed", 3).await;
    journal.close().await;
    // The last host has ended after it hid the session.
    database.sql("UPDATE sessions SET id = NULL, removed = 1").await;
    let journal = open(&database.url()).await;
    assert_eq!(journal.count().await, Ok(0));
    let rows = async || database.number("SELECT count(*) FROM records").await == 0;
    until("nothing is left of it", rows).await;
    journal.close().await;
}

#[tokio::test]
async fn forks_keep_the_records_that_they_share() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    store_session(&journal, "origin", 9).await;
    let fork = store_fork(&journal, "fork", "origin", 5).await.unwrap();
    store(&fork, vec![stop()]).await.unwrap();
    // Its shared records are those of the origin, and of the fork.
    store_fork(&journal, "early", "fork", 3).await.unwrap();
    let late = store_fork(&journal, "late", "fork", 7).await.unwrap();
    store(&late, vec![stop()]).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM records").await, 9 + 2 + 1 + 2);
    let origin = journal.read(&id("origin"), Seq(0)).await.unwrap();
    let check = async || {
        assert_eq!(seqs(&journal, "fork").await, (1..=7).collect::<Vec<_>>());
        assert_eq!(seqs(&journal, "early").await, [1, 2, 3, 4]);
        assert_eq!(seqs(&journal, "late").await, (1..=9).collect::<Vec<_>>());
        let read: Vec<JournalEntry> = journal.read_some(&id("late"), Seq(2), 3).await.unwrap();
        assert_eq!(read, origin[2..5]);
        assert_eq!(journal.read_some(&id("late"), Seq(4), 3).await.unwrap().len(), 3);
    };
    check().await;
    within(journal.remove(&[id("origin")])).await.unwrap();
    assert_eq!(seqs(&journal, "origin").await, [0; 0]);
    check().await;
    assert_eq!(database.number("SELECT count(*) FROM records").await, 5 + 2 + 1 + 2);
    within(journal.remove(&[id("fork"), id("early")])).await.unwrap();
    assert_eq!(seqs(&journal, "late").await, (1..=9).collect::<Vec<_>>());
    within(journal.remove(&[id("late")])).await.unwrap();
    for table in ["records", "sessions", "trees"] {
        assert_eq!(database.number(&format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
    }
    journal.close().await;
}

#[tokio::test]
async fn a_fork_of_a_removed_session_is_refused() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    store_session(&journal, "origin", 3).await;
    let mut entries = journal.read(&id("origin"), Seq(0)).await.unwrap();
    within(journal.remove(&[id("origin")])).await.unwrap();
    let record = Record::SessionForked { from: id("origin"), at: Seq(3) };
    entries.push(JournalEntry { seq: Seq(4), time: 9, displayed_bytes: 0, record });
    let fork = log(&journal, "fork", 0);
    fork.import(entries);
    let error = within(fork.wait_durable(Seq(4))).await.unwrap_err();
    let expected = BatchRefusal::OriginRemoved(id("origin"));
    assert_eq!(error, JournalError::Refused(expected));
    journal.close().await;
}

#[tokio::test]
async fn idle_sessions_are_found_in_parts() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    for at in 0..150 {
        let log = log(&journal, &format!("s{at:03}"), 0);
        let running = if at % 3 == 0 { vec![Record::SessionClosed] } else { Vec::new() };
        let records = [opened("x")].into_iter().chain(running);
        log.append_at(1_000 + at, records, Urgency::Urgent, || ());
        within(log.wait_durable(log.last_seq())).await.unwrap();
    }
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let part = journal.find_idle(1_120, after.as_ref()).await.unwrap();
        assert!(part.ids.len() <= 64 && part.ids.is_sorted());
        found.extend(part.ids.iter().map(ToString::to_string));
        let Some(next) = part.next else { break };
        after = Some(next);
    }
    let expected = (0..120).filter(|at| at % 3 != 0).map(|at| format!("s{at:03}"));
    assert!(found.into_iter().eq(expected));
    journal.close().await;
}

#[tokio::test]
async fn a_missing_or_damaged_record_is_an_error() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    store_session(&journal, "s", 5).await;
    database.sql("UPDATE records SET body = '\\x7b00' WHERE seq = 4").await;
    let error = journal.read(&id("s"), Seq(0)).await.unwrap_err().to_string();
    assert!(error.contains("record 4 of session s"), "{error}");
    database.sql("DELETE FROM records WHERE seq = 3").await;
    let error = journal.read(&id("s"), Seq(0)).await.unwrap_err().to_string();
    assert!(error.contains("record 3 of session s is missing"), "{error}");
    assert_eq!(journal.read_some(&id("s"), Seq(0), 2).await.unwrap().len(), 2);
    journal.close().await;
}

#[tokio::test]
async fn a_full_queue_fails_batches_at_once() {
    let Some(database) = database().await else { return };
    let journal = open_with(&database.url(), |options| options.queue_max = 4).await;
    let failures = Arc::new(AtomicU32::new(0));
    let logs: Vec<_> = (0..50).map(|at| log(&journal, &format!("s{at}"), 0)).collect();
    for log in &logs {
        log.append(vec![opened("x")], Urgency::Urgent, || ());
        if log.failure() == Some(JournalError::Overloaded) {
            failures.fetch_add(1, Ordering::Relaxed);
        }
    }
    assert!(failures.load(Ordering::Relaxed) > 0);
    within(journal.close()).await;
}

#[tokio::test]
async fn a_record_costs_little_of_the_log() {
    let Some(database) = own_database(&[]).await else { return };
    let journal = open(&database.url()).await;
    let log = store_session(&journal, "s", 1).await;
    let record = || Record::Steered {
        input: "x".repeat(900).into(),
        follows_turn: 1,
        request: None,
        authored_by: None,
    };
    let position =
        async || database.number("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").await;
    // Pages that are changed for the first time after a checkpoint are logged whole.
    store(&log, vec![record()]).await.unwrap();
    let before = position().await;
    let sessions = "SELECT pg_relation_size('sessions')";
    let size = database.number(sessions).await;
    for _ in 0..500 {
        store(&log, vec![record()]).await.unwrap();
    }
    let (after, last) = (position().await, log.last_seq().0);
    let stored = database.number("SELECT sum(length(body)) FROM records WHERE seq > 2").await;
    let (of_log, of_body) = ((after - before) / 500, stored / 500);
    assert!((900..1_100).contains(&of_body), "{of_body} {last}");
    assert!(of_log <= 1_500, "{of_log} bytes of the log for {of_body}");
    assert_eq!(database.number(sessions).await, size, "the table of sessions does not grow");
    within(journal.close()).await;
}
