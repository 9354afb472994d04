//! Several hosts on one database: owners of trees, fenced appends, leases.
#![expect(clippy::disallowed_methods, reason = "the tasks of a test end with it")]

use std::sync::Arc;
use std::time::Duration;

use callsheet::journal::{
    BatchRefusal, Journal, JournalEntry, JournalError, OtherHost, Owner, Ownership as _,
    PostgresJournal,
};
use callsheet::record::{Record, Seq};
use callsheet::types::Metadata;
use tokio_postgres::NoTls;

use crate::log::{
    id, log, open_at, open_with, opened, opened_with, seqs, stop, store, store_fork, store_session,
    until, within,
};
use crate::proxy::{Mode, Proxy};
use crate::server::{TestDatabase, database};

const FENCED: JournalError = JournalError::Refused(BatchRefusal::Fenced);

/// Opens the journals of two hosts on one database.
async fn two_hosts(database: &TestDatabase) -> [Arc<PostgresJournal>; 2] {
    let url = database.url();
    [open_at(&url, "http://a:1").await, open_at(&url, "http://b:1").await]
}

#[tokio::test]
async fn appends_of_a_host_that_has_lost_a_tree_store_nothing() {
    let Some(database) = database().await else { return };
    let [a, b] = two_hosts(&database).await;
    let stale = store_session(&a, "s", 2).await;
    let untouched = store_session(&a, "other", 1).await;
    let other = OtherHost { id: a.host_id().to_owned(), address: Some("http://a:1".to_owned()) };
    assert_eq!(b.take(&id("s")).await, Ok(Owner::Other(other.clone())));
    assert_eq!(
        b.owners(&[id("unknown"), id("s")]).await,
        Ok(vec![None, Some(Owner::Other(other))])
    );
    assert_eq!(a.owners(&[id("s"), id("s")]).await, Ok(vec![Some(Owner::This); 2]));
    // The first host appends to what it has given away.
    a.give(&id("s")).await.unwrap();
    assert_eq!(a.owners(&[id("s")]).await, Ok(vec![None]));
    assert_eq!(b.take(&id("s")).await, Ok(Owner::This));
    assert_eq!(store(&stale, vec![stop()]).await, Err(FENCED));
    assert_eq!(store(&stale, vec![stop()]).await.unwrap_err(), FENCED, "nor later ones");
    store(&log(&b, "s", 2), vec![stop()]).await.unwrap();
    store(&untouched, vec![stop()]).await.unwrap();
    assert_eq!(seqs(&a, "s").await, [1, 2, 3]);
    // A log of an older reading is fenced too, when the tree comes back.
    b.give(&id("s")).await.unwrap();
    assert_eq!(store(&log(&a, "s", 2), vec![stop()]).await, Err(FENCED));
    store(&log(&a, "s", 3), vec![stop()]).await.unwrap();
    assert_eq!((a.failure(), b.failure()), (None, None), "the journals work");
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn an_id_that_two_hosts_open_at_once_is_opened_once() {
    let Some(database) = database().await else { return };
    let [a, b] = two_hosts(&database).await;
    for at in 0..20 {
        let name = format!("s{at}");
        let (first, second) = (log(&a, &name, 0), log(&b, &name, 0));
        let (first, second) =
            tokio::join!(store(&first, vec![opened("a")]), store(&second, vec![opened("b")]));
        let exists = Err(JournalError::Refused(BatchRefusal::Exists));
        assert!(
            (first == Ok(()) && second == exists) || (second == Ok(()) && first == exists),
            "{first:?} {second:?}"
        );
        assert_eq!(seqs(&a, &name).await, [1]);
    }
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn a_tree_has_one_owner() {
    let Some(database) = database().await else { return };
    let [a, b] = two_hosts(&database).await;
    store_session(&a, "root", 1).await;
    let child = log(&a, "sub_00000000000000000000000000000001", 0);
    let record = |parent| opened_with("x", Metadata::default(), Some(parent));
    store(&child, vec![record("root")]).await.unwrap();
    let grandchild = log(&a, "sub_00000000000000000000000000000002", 0);
    store(&grandchild, vec![record("sub_00000000000000000000000000000001")]).await.unwrap();
    let fork = store_fork(&b, "fork", "sub_00000000000000000000000000000001", 1).await.unwrap();
    store(&fork, vec![stop()]).await.unwrap();
    for number in 1..=2 {
        a.give(&id(&format!("sub_{number:032}"))).await.unwrap();
    }
    assert!(matches!(b.take(&id("root")).await, Ok(Owner::Other(_))), "the root is in use");
    a.give(&id("root")).await.unwrap();
    assert_eq!(b.take(&id("sub_00000000000000000000000000000002")).await, Ok(Owner::This));
    for child in [&child, &grandchild] {
        assert_eq!(store(child, vec![stop()]).await, Err(FENCED));
    }
    let late = log(&a, "sub_00000000000000000000000000000003", 0);
    assert_eq!(
        store(&late, vec![record("root")]).await,
        Err(FENCED),
        "a stale host opens no child"
    );
    assert_eq!(a.find(&id("sub_00000000000000000000000000000003")).await, Ok(None));
    let late = log(&b, "sub_00000000000000000000000000000003", 0);
    store(&late, vec![record("root")]).await.unwrap();
    let removed = a.remove(&[id("root")]).await;
    assert_eq!(removed, Err(FENCED), "the owner deletes");
    for number in 2..=3 {
        b.hand_over(&id(&format!("sub_{number:032}"))).await.unwrap();
    }
    assert_eq!(a.take(&id("root")).await, Ok(Owner::This));
    assert_eq!(store(&late, vec![stop()]).await, Err(FENCED));
    assert_eq!(a.take(&id("sub_00000000000000000000000000000003")).await, Ok(Owner::This));
    store(&log(&a, "sub_00000000000000000000000000000003", 1), vec![stop()]).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM trees").await, 2);
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn unfinished_sessions_of_a_dead_host_are_shared_by_the_others() {
    let Some(database) = database().await else { return };
    let proxy = Proxy::start(database.server.port).await;
    let dead = open_with(&database.url_at(proxy.port), |options| {
        options.advertise = Some("http://dead:1".to_owned());
        options.lease = Duration::from_secs(5);
    })
    .await;
    let (mut unfinished, mut logs) = (Vec::new(), Vec::new());
    for at in 0..1_200 {
        let name = format!("s{at:04}");
        let log = log(&dead, &name, 0);
        log.append(vec![opened("x")], callsheet::journal::Urgency::Urgent, || ());
        if at % 6 != 0 {
            log.append(vec![Record::SessionClosed], callsheet::journal::Urgency::Urgent, || ());
            unfinished.push(name);
        }
        logs.push(log);
    }
    for log in &logs {
        within(log.wait_durable(log.last_seq())).await.unwrap();
    }
    let [a, b] = two_hosts(&database).await;
    assert_eq!(a.take_abandoned(500).await, Ok(Vec::new()), "its lease runs");
    proxy.set(Mode::Freeze);
    let lost = within(dead.lost()).await;
    assert_eq!(lost.len(), 1_200, "it gives up by itself");
    assert_eq!(a.take_abandoned(500).await.unwrap().len(), 0, "before its lease is over");
    until("its lease is over", async || a.hosts().await.unwrap().len() == 2).await;
    let take_all = async |journal: &PostgresJournal| {
        let mut taken = Vec::new();
        loop {
            let part = journal.take_abandoned(100).await.unwrap();
            if part.is_empty() {
                return taken;
            }
            taken.extend(part);
        }
    };
    let (mut of_a, of_b) = tokio::join!(take_all(&a), take_all(&b));
    // Those that the other one was taking.
    of_a.extend(take_all(&a).await);
    let mut taken: Vec<String> = of_a.iter().chain(&of_b).map(ToString::to_string).collect();
    taken.sort();
    assert_eq!(taken, unfinished, "each once");
    assert_eq!(a.take_abandoned(500).await, Ok(Vec::new()));
    for (journal, ids) in [(&a, &of_a), (&b, &of_b)] {
        if let Some(taken) = ids.first() {
            store(&log(journal, taken.as_str(), 2), vec![stop()]).await.unwrap();
        }
    }
    // The dead host comes back.
    proxy.set(Mode::Pass);
    let zombie = within(async { store(&logs[1], vec![stop()]).await }).await;
    assert_eq!(zombie, Err(FENCED));
    // One without a run was left, and is its own again.
    store(&logs[0], vec![stop()]).await.unwrap();
    until("it lives again", async || dead.take(&id("s0000")).await == Ok(Owner::This)).await;
    assert_eq!(store(&logs[0], vec![stop()]).await, Err(FENCED));
    for journal in [dead, a, b] {
        within(journal.close()).await;
    }
}

#[tokio::test]
async fn a_host_that_comes_back_goes_on_with_what_no_other_has_taken() {
    let Some(database) = database().await else { return };
    let proxy = Proxy::start(database.server.port).await;
    let host = open_with(&database.url_at(proxy.port), |options| {
        options.advertise = Some("http://a:1".to_owned());
        options.lease = Duration::from_secs(2);
    })
    .await;
    let stale = store_session(&host, "s", 1).await;
    // A session that is closed and not deleted counts as unfinished.
    store(&stale, vec![Record::SessionClosed]).await.unwrap();
    proxy.set(Mode::Freeze);
    assert_eq!(within(host.lost()).await, [id("s")]);
    proxy.set(Mode::Pass);
    let taken = async || host.take_abandoned(10).await.unwrap_or_default() == [id("s")];
    until("it takes the tree again", taken).await;
    assert_eq!(store(&stale, vec![stop()]).await, Err(FENCED), "with a new epoch");
    assert_eq!(host.take(&id("s")).await, Ok(Owner::This));
    store(&log(&host, "s", 2), vec![stop()]).await.unwrap();
    assert_eq!(host.take_abandoned(10).await, Ok(Vec::new()), "once");
    host.close().await;
}

#[tokio::test]
async fn a_tree_that_was_taken_without_an_answer_is_not_forgotten() {
    let Some(database) = database().await else { return };
    let proxy = Proxy::start(database.server.port).await;
    let dead = open_at(&database.url(), "http://dead:1").await;
    let stale = store_session(&dead, "s", 1).await;
    store(&stale, vec![Record::SessionClosed]).await.unwrap();
    dead.close().await;
    let host = open_at(&database.url_at(proxy.port), "http://a:1").await;
    // The tree can be read, and not be taken.
    let (client, connection) = tokio_postgres::connect(&database.url(), NoTls).await.unwrap();
    let driver = tokio::task::spawn(connection);
    client.batch_execute("BEGIN; LOCK TABLE trees IN SHARE MODE").await.unwrap();
    let mut take = host.take_abandoned(10);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut take).await;
    assert!(early.is_err(), "it waits");
    let lost = proxy.lost_answers();
    proxy.set(Mode::LoseAnswers);
    client.batch_execute("COMMIT").await.unwrap();
    let answer = async {
        until("an answer is lost", async || proxy.lost_answers() > lost).await;
        until("the tree is taken", async || {
            database.number("SELECT max(epoch) FROM trees").await > 1
        })
        .await;
        proxy.set(Mode::Pass);
    };
    let (taken, ()) = tokio::join!(take, answer);
    let mut taken = taken.unwrap();
    while taken.is_empty() {
        taken = within(host.take_abandoned(10)).await.unwrap();
    }
    assert_eq!(taken, [id("s")], "it is found");
    store(&log(&host, "s", 2), vec![stop()]).await.unwrap();
    assert_eq!(host.take_abandoned(10).await, Ok(Vec::new()), "once");
    drop(client);
    let _ = driver.await;
    host.close().await;
}

#[tokio::test]
async fn a_tree_that_is_taken_for_a_child_goes_on_whole() {
    let Some(database) = database().await else { return };
    let [a, b] = two_hosts(&database).await;
    let root = store_session(&a, "root", 1).await;
    store(&root, vec![Record::SessionClosed]).await.unwrap();
    let name = "sub_00000000000000000000000000000001";
    let child = log(&a, name, 0);
    store(&child, vec![opened_with("x", Metadata::default(), Some("root"))]).await.unwrap();
    for session in [name, "root"] {
        a.hand_over(&id(session)).await.unwrap();
    }
    assert_eq!(b.take(&id(name)).await, Ok(Owner::This));
    assert_eq!(b.take_abandoned(10).await, Ok(vec![id("root")]), "nobody has asked for it");
    assert_eq!(b.take_abandoned(10).await, Ok(Vec::new()), "once");
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn hosts_are_listed_until_they_end() {
    let Some(database) = database().await else { return };
    let [a, b] = two_hosts(&database).await;
    let hosts = a.hosts().await.unwrap();
    let listed: Vec<_> =
        hosts.iter().map(|host| (host.address.as_deref().unwrap(), host.is_this)).collect();
    assert_eq!(listed, [("http://a:1", true), ("http://b:1", false)]);
    assert!(hosts.iter().all(|host| host.beat_age < Duration::from_secs(2)));
    let before = hosts[0].beat_age;
    until("heartbeats go on", async || {
        let hosts = a.hosts().await.unwrap();
        hosts[0].beat_age < before && a.status().heartbeat_age.unwrap() < Duration::from_secs(2)
    })
    .await;
    b.close().await;
    assert_eq!(a.hosts().await.unwrap().len(), 1);
    a.close().await;
}

#[tokio::test]
async fn a_takeover_waits_for_an_append_that_is_under_way() {
    let Some(database) = database().await else { return };
    let [a, b] = two_hosts(&database).await;
    store_session(&a, "s", 1).await;
    a.give(&id("s")).await.unwrap();
    // A statement of the last owner that has not ended.
    let (client, connection) = tokio_postgres::connect(&database.url(), NoTls).await.unwrap();
    let driver = tokio::task::spawn(connection);
    client.batch_execute("BEGIN; SELECT root FROM trees FOR SHARE").await.unwrap();
    let session = id("s");
    let mut take = b.take(&session);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut take).await;
    assert!(early.is_err(), "it waits");
    let body = "SELECT session, 2, time, body FROM records";
    client.batch_execute(&format!("INSERT INTO records {body}; COMMIT")).await.unwrap();
    assert_eq!(within(take).await, Ok(Owner::This));
    assert_eq!(seqs(&b, "s").await, [1, 2], "the new owner sees it");
    drop(client);
    let _ = driver.await;
    a.close().await;
    b.close().await;
}

/// Deletions and forks of one session at the same time, on two hosts: a fork is whole, or refused.
#[tokio::test]
async fn deletion_and_fork_meet() {
    let Some(database) = database().await else { return };
    let [a, b] = two_hosts(&database).await;
    for at in 0..30_u64 {
        let (origin, fork) = (format!("origin{at}"), format!("fork{at}"));
        store_session(&a, &origin, 20).await;
        let mut entries = b.read(&id(&origin), Seq(0)).await.unwrap();
        let record = Record::SessionForked { from: id(&origin), at: Seq(20) };
        entries.push(JournalEntry { seq: Seq(21), time: 9, displayed_bytes: 0, record });
        let forked = log(&b, &fork, 0);
        let removes = [id(&origin)];
        let (removed, opened) = tokio::join!(a.remove(&removes), async {
            tokio::time::sleep(Duration::from_micros(at * 150)).await;
            forked.import(entries);
            within(forked.wait_durable(Seq(21))).await
        });
        removed.unwrap();
        assert_eq!(a.find(&id(&origin)).await, Ok(None));
        match opened {
            Ok(()) => assert_eq!(seqs(&b, &fork).await, (1..=21).collect::<Vec<_>>()),
            Err(error) => {
                let expected = BatchRefusal::OriginRemoved(id(&origin));
                assert_eq!(error, JournalError::Refused(expected));
                assert_eq!(seqs(&b, &fork).await, [0; 0]);
            }
        }
    }
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn only_its_own_and_free_sessions_are_found_as_idle() {
    let Some(database) = database().await else { return };
    let [a, b] = two_hosts(&database).await;
    store_session(&a, "of-a", 1).await;
    store_session(&b, "of-b", 1).await;
    store_session(&b, "free", 1).await;
    b.give(&id("free")).await.unwrap();
    let found = a.find_idle(u64::MAX, None).await.unwrap();
    assert_eq!(found.ids, [id("free"), id("of-a")]);
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn a_relaxed_host_hands_over_what_it_has_flushed() {
    let Some(database) = database().await else { return };
    let relaxed = |options: &mut callsheet::journal::PostgresOptions| {
        options.durability = callsheet::config::Durability::Relaxed;
        options.advertise = Some("http://a:1".to_owned());
    };
    let a = open_with(&database.url(), relaxed).await;
    let session = store_session(&a, "s", 1).await;
    session.append(vec![stop()], callsheet::journal::Urgency::Urgent, || ());
    a.give(&id("s")).await.unwrap();
    until("it is durable", async || session.durable_seq() == Seq(2)).await;
    a.close().await;
}
