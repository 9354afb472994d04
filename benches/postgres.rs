//! Measures the journal in PostgreSQL: the records a second that one engine stores, beside the bare statement in a loop on
//! one connection, and pages of many sessions. Needs the URL of an empty database in `CALLSHEET_BENCH_DATABASE_URL`.
//! `CALLSHEET_BENCH_SESSIONS` is the number of sessions of the lists (a million).
//!
//! Machines and disks differ: compare the two columns, which are measured alternately.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench that fails is wrong")]

#[path = "shared/report.rs"]
mod report;

use std::sync::Arc;
use std::time::Duration;

use callsheet::config::Durability;
use callsheet::journal::{
    Journal, Ownership as _, PostgresJournal, PostgresOptions, SessionLog, SessionQuery, Urgency,
};
use callsheet::record::{Record, Seq};
use callsheet::types::SessionId;
use callsheet::{SessionOrder, SessionState};
use report::Report;
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tokio_postgres::{Client, NoTls};

/// Number of sessions that append at once, and of rows of a bare statement.
const SESSIONS: usize = 64;

/// The time of a measurement, and the number of measurements.
const TIME: Duration = Duration::from_secs(3);
const ROUNDS: usize = 4;

fn url() -> Option<String> {
    std::env::var("CALLSHEET_BENCH_DATABASE_URL").ok()
}

async fn open(durability: Durability) -> Arc<PostgresJournal> {
    let options = PostgresOptions::default().with(|options| options.durability = durability);
    Arc::new(PostgresJournal::open(&url().unwrap(), options).await.unwrap())
}

fn record() -> Record {
    Record::SessionOpened {
        agent: "x".repeat(950),
        messages: Vec::new(),
        metadata: callsheet::Metadata::default(),
        parent: None,
        client_tools: None,
    }
}

/// Appends one record after the other in each session. Returns the records a second.
async fn engine(logs: &[Arc<SessionLog>]) -> f64 {
    let (began, until) = (Instant::now(), Instant::now() + TIME);
    let appends = logs.iter().map(|log| {
        let log = Arc::clone(log);
        tokio::spawn(async move {
            let mut count = 0_u32;
            while Instant::now() < until {
                log.append(vec![record()], Urgency::Urgent, || ());
                log.wait_durable(log.last_seq()).await.unwrap();
                log.trim_recent(log.last_seq());
                count += 1;
            }
            count
        })
    });
    let counts = futures::future::join_all(appends.collect::<Vec<_>>()).await;
    let count: u32 = counts.into_iter().map(Result::unwrap).sum();
    f64::from(count) / began.elapsed().as_secs_f64()
}

/// Executes the bare statement in a loop. Returns the records a second.
async fn bare(client: &Client, next: &mut i64) -> f64 {
    let insert = "INSERT INTO bare SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[])";
    let insert = client.prepare(insert).await.unwrap();
    let body = record_body();
    let (began, mut count) = (Instant::now(), 0_u32);
    while began.elapsed() < TIME {
        let sessions: Vec<i64> = (0..SESSIONS as i64).collect();
        let (seqs, times) = (vec![*next; SESSIONS], vec![7_i64; SESSIONS]);
        let bodies = vec![body.as_slice(); SESSIONS];
        client.execute(&insert, &[&sessions, &seqs, &times, &bodies]).await.unwrap();
        *next += 1;
        count += SESSIONS as u32;
    }
    f64::from(count) / began.elapsed().as_secs_f64()
}

fn record_body() -> Vec<u8> {
    serde_json::to_vec(&record()).unwrap()
}

async fn store_rates(durability: Durability) -> Vec<[String; 4]> {
    let (client, connection) = tokio_postgres::connect(&url().unwrap(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let strict = durability == Durability::Strict;
    let setting = if strict { "on" } else { "off" };
    let create = "CREATE TABLE IF NOT EXISTS bare
        (session bigint, seq bigint, time bigint, body bytea, PRIMARY KEY (session, seq));
        ALTER TABLE bare ALTER body SET STORAGE EXTERNAL; TRUNCATE bare";
    client.batch_execute(&format!("{create}; SET synchronous_commit = {setting}")).await.unwrap();
    let journal = open(durability).await;
    let logs = (0..SESSIONS).map(|at| {
        let engine = Arc::clone(&journal) as Arc<dyn Journal>;
        let id = SessionId::parse(&format!("rate-{durability:?}-{at}")).unwrap();
        Arc::new(SessionLog::new(id, engine, Seq(0), |_| ()))
    });
    let logs: Vec<_> = logs.collect();
    engine(&logs).await;
    let mut next = 1;
    let mut rows = Vec::new();
    for _ in 0..ROUNDS {
        let (bare, engine) = (bare(&client, &mut next).await, engine(&logs).await);
        let setting = if strict { "strict" } else { "relaxed" };
        rows.push([
            setting.to_owned(),
            format!("{bare:.0}"),
            format!("{engine:.0}"),
            format!("{:.2}", engine / bare),
        ]);
    }
    journal.close().await;
    rows
}

/// Returns the median and the longest time of pages of 100 sessions at many depths.
async fn pages(count: u64) -> Vec<[String; 3]> {
    let (client, connection) = tokio_postgres::connect(&url().unwrap(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let fill = format!(
        "INSERT INTO sessions (id, root, child, agent, opened)
            SELECT 'page-' || md5(g::text), 0, false, 'default', g FROM generate_series(1, {count}) g;
         UPDATE sessions SET root = number WHERE root = 0;
         INSERT INTO trees SELECT number, NULL, 1 FROM sessions WHERE id LIKE 'page-%';
         INSERT INTO touched SELECT number, opened FROM sessions WHERE id LIKE 'page-%';
         INSERT INTO records SELECT number, 1, opened, '{{}}' FROM sessions WHERE id LIKE 'page-%';
         INSERT INTO running SELECT number, id, number FROM sessions WHERE id LIKE 'page-%' AND number % 100 = 0;
         ANALYZE"
    );
    client.batch_execute(&fill).await.unwrap();
    let journal = open(Durability::Strict).await;
    let mut rows = Vec::new();
    for (order, state) in [
        (SessionOrder::Newest, None),
        (SessionOrder::Id, None),
        (SessionOrder::Newest, Some(SessionState::Idle)),
        (SessionOrder::Newest, Some(SessionState::Running)),
        (SessionOrder::Id, Some(SessionState::Running)),
    ] {
        let mut times = Vec::new();
        for depth in 0..40 {
            let mut query = SessionQuery::default();
            (query.order, query.state, query.limit) = (order, state, 100);
            query.after_number = Some(count - depth * (count / 41));
            query.after = SessionId::parse(&format!("page-{:02x}", depth * 6)).ok();
            let began = Instant::now();
            let page = journal.list(&query).await.unwrap();
            times.push(began.elapsed());
            assert_eq!(page.len(), 100);
        }
        times.sort();
        rows.push([
            format!("{order:?}, {state:?}"),
            format!("{:.1} ms", times[20].as_secs_f64() * 1e3),
            format!("{:.1} ms", times[39].as_secs_f64() * 1e3),
        ]);
    }
    let began = Instant::now();
    let found = journal.find_idle(count / 2, None).await.unwrap();
    assert_eq!(found.ids.len(), 64);
    let took = format!("{:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    rows.push(["idle ones".to_owned(), took.clone(), took]);
    let began = Instant::now();
    let mut orphaned = 0;
    loop {
        let taken = journal.take_abandoned(500).await.unwrap().len();
        if taken == 0 {
            break;
        }
        orphaned += taken;
    }
    let took = format!("{:.0} ms", began.elapsed().as_secs_f64() * 1e3);
    rows.push([format!("takeover of {orphaned}"), took.clone(), took]);
    journal.close().await;
    rows
}

fn main() {
    if url().is_none() {
        println!("CALLSHEET_BENCH_DATABASE_URL names no database: nothing is measured");
        return;
    }
    let runtime = Runtime::new().unwrap();
    let mut rates = runtime.block_on(store_rates(Durability::Strict));
    rates.extend(runtime.block_on(store_rates(Durability::Relaxed)));
    let count = std::env::var("CALLSHEET_BENCH_SESSIONS").ok().and_then(|text| text.parse().ok());
    let count = count.unwrap_or(1_000_000);
    let pages = runtime.block_on(pages(count));
    let about = format!(
        "Records of 1 KiB a second: {SESSIONS} rows a bare statement, {SESSIONS} sessions."
    );
    let list = format!("Pages of 100 of {count} sessions, 1 % of which run, at 40 depths.");
    Report::new("postgres")
        .table(&about, ["durability", "bare statement", "engine", "ratio"], rates)
        .table(&list, ["order and state", "median", "longest"], pages)
        .print();
}
