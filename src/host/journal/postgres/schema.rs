//! The tables, and their version. A host creates them at its first start, and changes older ones.
//!
//! | table | has |
//! | --- | --- |
//! | `hosts` | a row for each start of a host, with the end of its lease |
//! | `trees` | the owner and the epoch of each tree of sessions: a root session with its child sessions. The fence |
//! | `sessions` | the sessions. `number` is the order of creation. A row is written when a session is opened, and when it is removed |
//! | `running` | the sessions with a run that has not ended, queued inputs or an unfinished deletion |
//! | `touched` | the time of the last end of a run of each session, or of its opening |
//! | `records` | the records, one in each row |
//! | `documents`, `document_uses` | the documents, and which session's records name which of them |
//! | `callsheet_schema` | the version |
//!
//! No index has a column that an append changes. `removed` of a session is 0, 1 while its records are being deleted, or 2
//! while forks share its first records; its id is null then.

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::JournalError;
use super::connection::{Database, DatabaseConnection};
use super::errors;

/// The version of the tables that this program writes.
pub(super) const VERSION: i32 = 1;

/// The program, in the table of versions.
const PROGRAM: &str = "callsheet";

/// The changes from each version to the next. Those of a running version stay usable by the version before: columns and
/// tables are added only.
const MIGRATIONS: [&str; 1] = ["
    CREATE TABLE hosts (
        id uuid PRIMARY KEY, address text, version text NOT NULL, sessions bigint NOT NULL DEFAULT 0,
        started timestamptz NOT NULL, beat timestamptz NOT NULL, lease_end timestamptz NOT NULL);
    CREATE TABLE trees (root bigint PRIMARY KEY, owner uuid, epoch bigint NOT NULL) WITH (fillfactor = 70);
    CREATE SEQUENCE session_numbers;
    CREATE TABLE sessions (
        number bigint PRIMARY KEY DEFAULT nextval('session_numbers'), id text COLLATE \"C\" UNIQUE,
        root bigint NOT NULL, child boolean NOT NULL, agent text NOT NULL, opened bigint NOT NULL,
        origin bigint, prefix bigint, metadata text, removed smallint NOT NULL DEFAULT 0);
    CREATE INDEX sessions_roots_by_id ON sessions (id) WHERE NOT child AND id IS NOT NULL;
    CREATE INDEX sessions_roots_by_number ON sessions (number) WHERE NOT child AND id IS NOT NULL;
    CREATE INDEX sessions_children ON sessions (root) WHERE child;
    CREATE INDEX sessions_forks ON sessions (origin) WHERE origin IS NOT NULL;
    CREATE INDEX sessions_removed ON sessions (number) WHERE removed = 1;
    CREATE TABLE running (
        session bigint PRIMARY KEY, id text COLLATE \"C\" NOT NULL, root bigint NOT NULL);
    CREATE INDEX running_by_id ON running (id);
    CREATE INDEX running_by_root ON running (root);
    CREATE TABLE touched (session bigint PRIMARY KEY, time bigint NOT NULL);
    CREATE INDEX touched_by_time ON touched (time, session);
    CREATE TABLE records (
        session bigint, seq bigint, time bigint NOT NULL, body bytea NOT NULL, PRIMARY KEY (session, seq));
    ALTER TABLE records ALTER body SET STORAGE EXTERNAL;
    CREATE TABLE documents (key text COLLATE \"C\" PRIMARY KEY, text text NOT NULL, stored bigint NOT NULL);
    CREATE TABLE document_uses (session bigint, key text COLLATE \"C\", PRIMARY KEY (session, key));
    CREATE INDEX document_uses_by_key ON document_uses (key);
"];

/// The number of the advisory lock for changes of the tables, and for starts of hosts.
pub(super) const LOCK: i64 = 0x63_616c_6c73_6865;

/// Creates the tables, or changes those of an earlier version. Hosts that start at the same time wait for each other.
///
/// # Errors
/// If the tables are those of another program or of a later version, or the role must not create them.
pub(super) async fn migrate(
    connection: &mut DatabaseConnection,
    database: &Database,
) -> Result<i32, JournalError> {
    let name = database.name();
    let open_error = |error: tokio_postgres::Error| errors::open_error(name, &error);
    let transaction = connection.client().transaction().await.map_err(open_error)?;
    let locks = "SELECT pg_advisory_xact_lock($1)";
    transaction.query_typed(locks, &[(&LOCK, Type::INT8)]).await.map_err(open_error)?;
    let found = transaction.query_typed(FOUND, &[]).await.map_err(open_error)?;
    let stored = FoundTables::of(&found);
    let before = match stored {
        FoundTables::Nothing => {
            let create = format!(
                "CREATE TABLE callsheet_schema (program text NOT NULL, version int NOT NULL);
                 INSERT INTO callsheet_schema VALUES ('{PROGRAM}', 0)"
            );
            transaction.batch_execute(&create).await.map_err(open_error)?;
            0
        }
        FoundTables::OtherTables => return Err(errors::opening(name, OTHER_TABLES.to_owned())),
        FoundTables::Schema => {
            let select = "SELECT program, version FROM callsheet_schema";
            let rows = transaction.query_typed(select, &[]).await.map_err(open_error)?;
            check_version(&rows).map_err(|reason| errors::opening(name, reason))?
        }
    };
    let missing = usize::try_from(before).ok().and_then(|before| MIGRATIONS.get(before..));
    for migration in missing.unwrap_or_default() {
        transaction.batch_execute(migration).await.map_err(open_error)?;
    }
    if before < VERSION {
        let note = "UPDATE callsheet_schema SET version = $1";
        transaction.execute_typed(note, &[(&VERSION, Type::INT4)]).await.map_err(open_error)?;
    }
    transaction.commit().await.map_err(open_error)?;
    Ok(before)
}

/// Checks that a program that only reads can use the tables.
///
/// # Errors
/// If there are none, or they are those of another program or of a later version.
pub(super) async fn check(
    connection: &mut DatabaseConnection,
    database: &Database,
) -> Result<(), JournalError> {
    let name = database.name();
    let open_error = |error: tokio_postgres::Error| errors::open_error(name, &error);
    let client = connection.client();
    let found = client.query_typed(FOUND, &[]).await.map_err(open_error)?;
    match FoundTables::of(&found) {
        FoundTables::Nothing => {
            let reason = "the database has no sessions: start a host on it once".to_owned();
            Err(errors::opening(name, reason))
        }
        FoundTables::OtherTables => Err(errors::opening(name, OTHER_TABLES.to_owned())),
        FoundTables::Schema => {
            let select = "SELECT program, version FROM callsheet_schema";
            let rows = client.query_typed(select, &[]).await.map_err(open_error)?;
            check_version(&rows).map_err(|reason| errors::opening(name, reason)).map(drop)
        }
    }
}

const OTHER_TABLES: &str = "the database has tables of another program: use a database of its own, or another schema \
                            (options=-csearch_path=NAME in the URL)";

const FOUND: &str = "SELECT to_regclass('callsheet_schema') IS NOT NULL,
    to_regclass('sessions') IS NOT NULL OR to_regclass('records') IS NOT NULL OR to_regclass('hosts') IS NOT NULL
    OR to_regclass('trees') IS NOT NULL OR to_regclass('running') IS NOT NULL
    OR to_regclass('documents') IS NOT NULL";

/// The tables that a database has.
enum FoundTables {
    Nothing,
    OtherTables,
    Schema,
}

impl FoundTables {
    fn of(rows: &[Row]) -> Self {
        let found = rows.first().map_or((false, false), |row| (row.get(0), row.get(1)));
        match found {
            (true, _) => Self::Schema,
            (false, true) => Self::OtherTables,
            (false, false) => Self::Nothing,
        }
    }
}

/// Returns the stored version.
fn check_version(rows: &[Row]) -> Result<i32, String> {
    let found = rows.first().map(|row| (row.get::<_, String>(0), row.get::<_, i32>(1)));
    match found {
        Some((program, _)) if program != PROGRAM => {
            Err(format!("its tables are those of the program {program}: use a database of its own"))
        }
        Some((_, version)) if version > VERSION => Err(format!(
            "its tables have version {version}, and this callsheet knows version {VERSION}: start the later callsheet"
        )),
        Some((_, version @ 0..)) => Ok(version),
        Some(_) | None => Err("its table callsheet_schema is damaged: restore a backup".to_owned()),
    }
}
