//! The start on a database: its tables, and errors that say what to do.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use callsheet::journal::{Journal, Ownership as _, PostgresReader};

use crate::log::{id, open, open_at, seqs, store_session, try_open_with, within};
use crate::server::{GUARDED_USER, PASSWORD, TestDatabase, database, own_database};

async fn start_error(url: &str) -> String {
    try_open_with(url, |_| ()).await.unwrap_err().to_string()
}

/// Returns a URL with the user who needs a password.
fn guarded_url(database: &TestDatabase, password: &str) -> String {
    let (port, name) = (database.server.port, &database.name);
    format!("postgres://{GUARDED_USER}:{password}@127.0.0.1:{port}/{name}")
}

#[tokio::test]
async fn a_start_that_fails_says_what_to_do() {
    let Some(database) = database().await else { return };
    let port = database.server.port;
    for (url, expect) in [
        (format!("postgres://callsheet@127.0.0.1:{port}"), "names no database: add it"),
        (
            format!("postgres://callsheet@127.0.0.1:{port}/missing"),
            "create the database with createdb",
        ),
        ("postgres://callsheet@127.0.0.1:1/x".to_owned(), "check the host and the port in the URL"),
        (guarded_url(&database, "wrong-secret"), "check the user and the password"),
        (guarded_url(&database, PASSWORD), "grant the role the right to create tables"),
        (format!("{}?sslmode=require", database.url()), "TLS"),
    ] {
        let error = start_error(&url).await;
        assert!(error.contains(expect), "{url}: {error}");
        assert!(!error.contains("wrong-secret") && !error.contains(PASSWORD), "{error}");
    }
    assert_eq!(
        database.number("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").await,
        0
    );
    let error = PostgresReader::open(&database.url()).await.unwrap_err().to_string();
    assert!(error.contains("the database has no sessions"), "{error}");
}

#[tokio::test]
async fn a_role_that_may_create_tables_is_enough() {
    let Some(database) = database().await else { return };
    let url = guarded_url(&database, PASSWORD);
    database.sql(&format!("GRANT CREATE ON SCHEMA public TO {GUARDED_USER}")).await;
    let journal = open(&url).await;
    store_session(&journal, "s", 2).await;
    journal.close().await;
}

#[tokio::test]
async fn tables_of_other_programs_and_versions_are_refused() {
    let Some(foreign) = database().await else { return };
    foreign.sql("CREATE TABLE sessions (id int)").await;
    let error = start_error(&foreign.url()).await;
    assert!(error.contains("tables of another program"), "{error}");
    let Some(database) = database().await else { return };
    open(&database.url()).await.close().await;
    for (change, expect) in [
        ("UPDATE callsheet_schema SET version = 99", "have version 99"),
        (
            "UPDATE callsheet_schema SET program = 'other', version = 1",
            "those of the program other",
        ),
        ("DELETE FROM callsheet_schema", "its table callsheet_schema is damaged"),
        (
            "INSERT INTO callsheet_schema VALUES ('callsheet', 1); ALTER TABLE records DROP COLUMN time",
            "its tables are not those of this version",
        ),
    ] {
        database.sql(change).await;
        let error = start_error(&database.url()).await;
        assert!(error.contains(expect), "{change}: {error}");
    }
}

#[tokio::test]
async fn hosts_that_start_at_once_create_the_tables_once() {
    let Some(database) = database().await else { return };
    let url = database.url();
    let starts = (0..6).map(|at| {
        let url = url.clone();
        async move { open_at(&url, &format!("http://h{at}:1")).await }
    });
    let journals = futures::future::join_all(starts).await;
    assert_eq!(journals[0].hosts().await.unwrap().len(), 6);
    for journal in journals {
        journal.close().await;
    }
}

#[tokio::test]
async fn a_host_without_an_address_is_alone() {
    let Some(database) = database().await else { return };
    let url = database.url();
    let alone = open(&url).await;
    let began = tokio::time::Instant::now();
    for advertise in [None, Some("http://b:1".to_owned())] {
        let second = try_open_with(&url, |options| options.advertise = advertise).await;
        let error = second.unwrap_err().to_string();
        assert!(error.contains("another host") && error.contains("advertise"), "{error}");
    }
    assert!(began.elapsed() > Duration::from_secs(3), "each has waited for one lease");
    alone.close().await;
    let addressed = open_at(&url, "http://a:1").await;
    let second = try_open_with(&url, |options| options.advertise = Some("http://a:1".to_owned()));
    let error = second.await.unwrap_err().to_string();
    assert!(error.contains("another host at http://a:1"), "{error}");
    addressed.close().await;
    // A host that was killed has left its row.
    database
        .sql("INSERT INTO hosts VALUES (gen_random_uuid(), NULL, '0', 0, now(), now(), now() + interval '1 second')")
        .await;
    let began = tokio::time::Instant::now();
    let next = open(&url).await;
    assert!(began.elapsed() > Duration::from_millis(700), "it waits for the end of the lease");
    next.close().await;
}

#[tokio::test]
async fn a_reader_reads_beside_a_host() {
    let Some(database) = database().await else { return };
    let journal = open(&database.url()).await;
    store_session(&journal, "s", 3).await;
    journal.put_document("key", "text", None).await.unwrap();
    let reader = within(PostgresReader::open(&database.url())).await.unwrap();
    let entries = reader.read(&id("s"), callsheet::record::Seq(0)).await.unwrap();
    assert_eq!(entries, journal.read(&id("s"), callsheet::record::Seq(0)).await.unwrap());
    assert_eq!(reader.find(&id("s")).await, journal.find(&id("s")).await);
    assert_eq!(reader.list(&Default::default()).await.unwrap().len(), 1);
    assert_eq!(reader.document("key").await, Ok(Some("text".to_owned())));
    assert!(reader.bytes().await.unwrap() > 0);
    assert_eq!(seqs(&journal, "s").await, [1, 2, 3]);
    journal.close().await;
}

#[tokio::test]
async fn the_certificate_of_the_server_is_verified() {
    let directory = std::env::temp_dir().join(format!("callsheet-tls-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let [cert, key] =
        [("cert.pem", made.cert.pem()), ("key.pem", made.signing_key.serialize_pem())].map(
            |(name, text)| {
                let file = directory.join(name);
                std::fs::write(&file, text).unwrap();
                crate::server::give_to_server(&file);
                file
            },
        );
    let settings = [
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", cert.display()),
        format!("ssl_key_file={}", key.display()),
    ];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let Some(database) = own_database(&settings).await else { return };
    let migrate = |trusts: bool| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_callsheet"));
        command.args(["migrate", "--database-url-env", "TEST_DATABASE_URL"]);
        command.env("TEST_DATABASE_URL", format!("{}?sslmode=require", database.url()));
        command.env_remove("SSL_CERT_FILE");
        if trusts {
            command.env("SSL_CERT_FILE", &cert);
        }
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (succeeds, text) = migrate(false);
    assert!(!succeeds && text.contains("the server's certificate is not trusted"), "{text}");
    assert!(migrate(true).0);
    std::fs::remove_dir_all(&directory).unwrap();
}
