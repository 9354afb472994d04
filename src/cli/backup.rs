//! `callsheet backup` and `callsheet restore`: a copy of a journal beside a running host, and its return to a data
//! directory.

use std::path::PathBuf;
use std::process::ExitCode;

use tokio::time::Instant;

use super::error::CommandError;
use super::output::{self, format_count};
use super::sessions::verify_journal;
use super::stored_journal::{JournalLocation, StoredJournal, database_bytes};
use callsheet_host::journal::{JournalError, JournalReader, restore};
use callsheet_values::types::{SessionId, SessionState};

/// Maximum number of sessions that are named after a restore.
const NAMED_SESSIONS_MAX: usize = 20;

/// The advice for a backup of a journal in PostgreSQL, and for its return.
const PG_DUMP: &str =
    "copy it with pg_dump, as in pg_dump --format=custom --file=callsheet.dump URL";
const PG_RESTORE: &str = "restore a copy of pg_dump with pg_restore";

/// Flags of `callsheet backup`.
#[derive(Debug, clap::Args)]
pub(super) struct BackupArgs {
    /// The directory of the backup, which must be missing or empty.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    location: JournalLocation,
}

/// Flags of `callsheet restore`.
#[derive(Debug, clap::Args)]
pub(super) struct RestoreArgs {
    /// The directory of the backup.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    location: JournalLocation,
}

/// Copies the journal of a running or stopped host to a directory.
pub(super) fn back_up(args: &BackupArgs) -> Result<ExitCode, CommandError> {
    let began = Instant::now();
    let dir = args.location.place()?.directory(PG_DUMP)?;
    let journal = JournalReader::open(&dir).map_err(CommandError::usage)?;
    journal.back_up(&args.dir).map_err(copy_error)?;
    let copy = JournalReader::open(&args.dir).map_err(CommandError::failed)?;
    let sessions = copy.count().map_err(CommandError::failed)?;
    print(&format!(
        "{}, {} bytes in {:.1} s: {}\n",
        format_count(sessions as u64, "session"),
        database_bytes(copy.file()),
        began.elapsed().as_secs_f64(),
        args.dir.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Copies a backup to a data directory, verifies the copy, and prints which sessions wait.
pub(super) fn run_restore(args: &RestoreArgs) -> Result<ExitCode, CommandError> {
    let dir = args.location.place()?.directory(PG_RESTORE)?;
    restore(&args.dir, &dir).map_err(copy_error)?;
    let journal = StoredJournal::in_directory(&dir).map_err(CommandError::failed)?;
    let status = verify_journal(&journal, None)?;
    if status != ExitCode::SUCCESS {
        print(&format!("the copy stays in {}\n", dir.display()))?;
    }
    print(&waiting_sessions(&journal)?)?;
    Ok(status)
}

/// Returns lines about the sessions whose runs or queued inputs wait.
fn waiting_sessions(journal: &StoredJournal) -> Result<String, CommandError> {
    let (mut named, mut count) = (Vec::<SessionId>::new(), 0);
    for page in journal.pages(0, Some(SessionState::Running), false) {
        let page = page.map_err(CommandError::failed)?;
        count += page.len();
        let missing = NAMED_SESSIONS_MAX - named.len();
        named.extend(page.into_iter().take(missing).map(|session| session.id));
    }
    let dir = journal.place();
    if count == 0 {
        return Ok(format!("{dir} is ready; no run waits\n"));
    }
    let lines: String = named.iter().map(|id| format!("  {id}\n")).collect();
    let more = match count - named.len() {
        0 => String::new(),
        more => format!("  and {more} more\n"),
    };
    Ok(format!(
        "{dir} is ready; {} not ended, and will wait until resumed or stopped, or until a start with \
         callsheet serve --go-on:\n{lines}{more}",
        match count {
            1 => "the run of 1 session has".to_owned(),
            many => format!("the runs of {many} sessions have"),
        }
    ))
}

/// Maps an error of a copy. A directory that cannot be used counts as wrong usage.
fn copy_error(error: JournalError) -> CommandError {
    let is_usage = matches!(error, JournalError::Open { .. } | JournalError::Locked { .. });
    if is_usage { CommandError::usage(error) } else { CommandError::failed(error) }
}

fn print(text: &str) -> Result<(), CommandError> {
    output::to_stdout(text).map_err(|error| output::write_error(&error))
}
