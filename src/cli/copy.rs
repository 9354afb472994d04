//! `callsheet sessions copy`: copies all sessions from one journal to another one of any engine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt as _};

use super::error::CommandError;
use super::output::{self, format_count};
use super::stored_journal::{JournalPlace, StoredJournal, wait};
use callsheet_host::journal::{
    Journal, JournalEntry, JournalError, SessionQuery, SqliteJournal, SqliteOptions, copy_session,
    mark_as_copy,
};
#[cfg(feature = "postgres")]
use callsheet_host::journal::{PostgresJournal, PostgresOptions};
use callsheet_host::runtime::deletion_keys;
use callsheet_values::config::SecretSource;
use callsheet_values::record::Record;
use callsheet_values::types::{SessionId, SessionState, is_child_session};

/// Number of sessions that are copied at once.
const AT_ONCE: usize = 64;

/// Number of sessions that are listed at once.
const PAGE_LENGTH: usize = 1_000;

/// Flags of `callsheet sessions copy`.
#[derive(Debug, clap::Args)]
pub(super) struct CopyArgs {
    /// The data directory that has the sessions.
    #[arg(long, value_name = "DIR", required_unless_present = "from_url_env")]
    from: Option<PathBuf>,
    /// The environment variable with the URL of the PostgreSQL database that has the sessions.
    #[arg(long, value_name = "NAME", conflicts_with = "from")]
    from_url_env: Option<String>,
    /// The data directory that gets them. It is created if it does not exist.
    #[arg(long, value_name = "DIR", required_unless_present = "to_url_env")]
    to: Option<PathBuf>,
    /// The environment variable with the URL of the PostgreSQL database that gets them.
    #[arg(long, value_name = "NAME", conflicts_with = "to")]
    to_url_env: Option<String>,
}

/// Copies all sessions. A copy that was cut off goes on.
pub(super) fn run(args: &CopyArgs) -> Result<ExitCode, CommandError> {
    let place = |dir: &Option<PathBuf>, variable: &Option<String>| match (dir, variable) {
        (Some(dir), _) => JournalPlace::Directory(dir.clone()),
        (None, variable) => {
            JournalPlace::Database(SecretSource::Variable(variable.clone().unwrap_or_default()))
        }
    };
    let from = place(&args.from, &args.from_url_env).open()?;
    let to = open(&place(&args.to, &args.to_url_env))?;
    let copied = wait(copy_all(&from, &*to));
    wait(to.close());
    let Copied { copied, kept, running } = copied.map_err(CommandError::failed)?;
    let mut text = format!("copied {}", format_count(copied, "session"));
    if kept > 0 {
        text.push_str(&format!(
            "; {} there already",
            match kept {
                1 => "1 was".to_owned(),
                many => format!("{many} were"),
            }
        ));
    }
    if running > 0 {
        text.push_str(&format!(
            "\n{} not ended, and will wait until resumed or stopped, or until a start with callsheet serve --go-on when \
             no host has the original any more",
            match running {
                1 => "the run of 1 session has".to_owned(),
                many => format!("the runs of {many} sessions have"),
            }
        ));
    }
    text.push('\n');
    output::to_stdout(&text).map_err(|error| output::write_error(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the journal that gets the sessions. No host can have it meanwhile.
fn open(place: &JournalPlace) -> Result<Arc<dyn Journal>, CommandError> {
    match place {
        JournalPlace::Directory(dir) => open_directory(dir),
        JournalPlace::Database(source) => {
            let url = source.read().map_err(CommandError::usage)?;
            open_database(&url)
        }
    }
}

fn open_directory(dir: &Path) -> Result<Arc<dyn Journal>, CommandError> {
    let options = SqliteOptions::default().with(|options| {
        options.holder = "callsheet sessions copy".to_owned();
    });
    let opened = SqliteJournal::open(dir, options).map_err(CommandError::usage)?;
    Ok(Arc::new(opened))
}

#[cfg(feature = "postgres")]
fn open_database(url: &str) -> Result<Arc<dyn Journal>, CommandError> {
    let opened = wait(PostgresJournal::open(url, PostgresOptions::default()));
    Ok(Arc::new(opened.map_err(CommandError::usage)?))
}

#[cfg(not(feature = "postgres"))]
fn open_database(_: &str) -> Result<Arc<dyn Journal>, CommandError> {
    Err(super::stored_journal::no_databases())
}

/// The numbers of sessions.
#[derive(Debug, Default)]
struct Copied {
    copied: u64,
    /// Those that the other journal had already.
    kept: u64,
    /// Those of the copied ones with an unfinished run or queued inputs, without child sessions.
    running: u64,
}

async fn copy_all(from: &StoredJournal, to: &dyn Journal) -> Result<Copied, JournalError> {
    mark_as_copy(to).await?;
    for key in deletion_keys() {
        let Some(text) = from.document(&key)? else { break };
        to.put_document(&key, &text, None).await?;
    }
    // In the order of creation, so that a session comes after the one that it depends on.
    let mut sessions: Vec<(u64, SessionId)> = Vec::new();
    let mut numbers = Copied::default();
    let mut query = SessionQuery::default().with(|query| {
        query.children = true;
        query.limit = PAGE_LENGTH;
    });
    loop {
        let page = from.list(&query)?;
        let Some(last) = page.last() else { break };
        query.continue_after(last);
        for session in page {
            let runs = session.state == SessionState::Running && !is_child_session(&session.id);
            numbers.running += u64::from(runs);
            sessions.push((session.number, session.id));
        }
    }
    sessions.sort_unstable();
    let mut under_way = FuturesUnordered::new();
    for (_, id) in sessions {
        let entries = from.read(&id)?;
        copy_documents(from, to, &entries).await?;
        let is_fork = |entry: &JournalEntry| matches!(entry.record, Record::SessionForked { .. });
        let depends = is_child_session(&id) || entries.iter().any(is_fork);
        let places = if depends { 0 } else { AT_ONCE - 1 };
        while under_way.len() > places {
            count(&mut numbers, under_way.next().await)?;
        }
        under_way.push(async move { copy_session(to, &id, entries).await });
        if depends {
            count(&mut numbers, under_way.next().await)?;
        }
    }
    while !under_way.is_empty() {
        count(&mut numbers, under_way.next().await)?;
    }
    Ok(numbers)
}

fn count(
    numbers: &mut Copied,
    copied: Option<Result<bool, JournalError>>,
) -> Result<(), JournalError> {
    match copied.transpose()? {
        Some(true) => numbers.copied += 1,
        Some(false) => numbers.kept += 1,
        None => {}
    }
    Ok(())
}

/// Copies the documents that records name.
async fn copy_documents(
    from: &StoredJournal,
    to: &dyn Journal,
    entries: &[JournalEntry],
) -> Result<(), JournalError> {
    for key in entries.iter().filter_map(JournalEntry::document_key) {
        if to.document(&key).await?.is_none()
            && let Some(text) = from.document(&key)?
        {
            to.put_document(&key, &text, None).await?;
        }
    }
    Ok(())
}
