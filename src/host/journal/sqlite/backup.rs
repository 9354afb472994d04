//! Backups of a journal: a copy of the database beside a running host, and its return to a data directory. A copy has
//! a [mark](super::super::restored): a host that starts on it does not continue its runs.

use std::ffi::c_int;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::thread;
use tokio::time::Instant;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};

use super::super::JournalError;
use super::super::restored::MARK;
use super::database::DatabaseKind;
use super::pages::PageLayout;
use super::{data_directory, database, errors};

/// Number of pages that a step of a backup copies: 4 MB.
const STEP_PAGES: c_int = 1024;

/// The pause after a step of a backup, as a multiple of its time.
const PAUSE: u32 = 3;

/// The name of a copy until it is whole.
const PARTIAL_COPY: &str = "journal.db.part";

/// The directory in a data directory that holds a copy until it is whole.
const PARTIAL_RESTORE: &str = "restore.part";

/// Copies the database of a connection to a directory that is missing or empty. The copy is one state of the database,
/// with all that was committed before, and has no write-ahead log.
pub(super) fn back_up(source: &Connection, dir: &Path) -> Result<(), JournalError> {
    let target = TargetDirectory::create(dir)?;
    let (partial, file) = (dir.join(PARTIAL_COPY), data_directory::database_path(dir));
    let copied = (|| {
        create_private(&partial)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut copy = Connection::open_with_flags(&partial, flags)?;
        copy_pages(source, &mut copy, &partial)?;
        // The copy has no log.
        copy.pragma_update(None, "journal_mode", "delete")?;
        give_pages_back(&copy)?;
        database::forget_log(&copy)?;
        mark(copy)?;
        Ok(publish(&partial, &file)?)
    })();
    copied.map_err(|error: CopyError| target.clear(error))
}

/// Copies the pages of one state of a database, in steps with pauses, so that a host beside it has most of the
/// processor and of the disk.
fn copy_pages(source: &Connection, copy: &mut Connection, file: &Path) -> Result<(), CopyError> {
    let file = File::open(file)?;
    // Within a transaction the copy has the state of its beginning. Otherwise it would begin again with each commit.
    let state = source.unchecked_transaction()?;
    state.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    let backup = Backup::new(source, copy)?;
    loop {
        let began = Instant::now();
        let step = backup.step(STEP_PAGES)?;
        // Otherwise the disk has to take all at the end, and the commits of a host wait for it.
        file.sync_data()?;
        if step == StepResult::Done {
            return Ok(());
        }
        thread::sleep(began.elapsed() * PAUSE);
    }
}

/// Converts the copy of a database of an earlier version, so that it can give free pages back.
fn give_pages_back(copy: &Connection) -> Result<(), CopyError> {
    if !PageLayout::read(copy)?.has_pointer_maps {
        copy.execute_batch("PRAGMA auto_vacuum = incremental; VACUUM")?;
    }
    Ok(())
}

/// Copies a backup to a data directory that is missing or empty. Checks it as a host does when it starts, and converts
/// the tables of an earlier version. The runs of the copy wait until a host is told to continue them
/// ([`HostBuilder::go_on`](crate::builder::HostBuilder::go_on)).
///
/// [`JournalReader::back_up`](super::JournalReader::back_up) shows its use.
///
/// # Errors
/// If there is no backup, a host uses it, the data directory is not empty, or the database cannot be copied or opened.
/// Then the data directory is left as it was.
pub fn restore(backup: &Path, data_dir: &Path) -> Result<(), JournalError> {
    let source = data_directory::database_path(backup);
    let open_error = |reason: String| JournalError::Open { path: source.clone(), reason };
    if let Err(error) = fs::metadata(&source) {
        return Err(open_error(format!("{error}: name the directory of a backup")));
    }
    if database::lacks_log(&source) {
        return Err(open_error(errors::LOG_MISSING.to_owned()));
    }
    data_directory::check_not_locked(backup)?;
    let target = TargetDirectory::create(data_dir)?;
    let partial_dir = data_dir.join(PARTIAL_RESTORE);
    let partial = data_directory::database_path(&partial_dir);
    let restored = (|| {
        data_directory::create_if_missing(&partial_dir)?;
        copy_file(&source, &partial)?;
        let wal = data_directory::wal_path(&source);
        if wal.exists() {
            copy_file(&wal, &data_directory::wal_path(&partial))?;
        }
        check_not_empty(&partial)?;
        // Closing the only connection moves the log to the database, and removes it.
        let copy = database::open(&partial)?;
        give_pages_back(&copy)?;
        database::forget_log(&copy)?;
        mark(copy)?;
        publish(&partial, &data_directory::database_path(data_dir))?;
        // A directory that is still there is ignored by a host.
        let _ = fs::remove_dir_all(&partial_dir);
        Ok(())
    })();
    restored.map_err(|error: CopyError| {
        let error = target.clear(error);
        if let JournalError::Open { path, reason } = &error
            && *path == partial
        {
            // The user knows the backup, not the partial copy.
            return open_error(reason.clone());
        }
        error
    })
}

/// Checks that a database has tables: a host would create those of an empty one.
fn check_not_empty(file: &Path) -> Result<(), JournalError> {
    let connection =
        database::open_reading(file).map_err(|error| errors::open_error(file, &error))?;
    if matches!(database::check_kind(&connection, file)?, DatabaseKind::Empty) {
        let reason = "it is empty, without tables: use another backup".to_owned();
        return Err(JournalError::Open { path: file.to_owned(), reason });
    }
    Ok(())
}

/// An error of a copy, before it is known which directory it concerns.
enum CopyError {
    Io(io::Error),
    Sqlite(rusqlite::Error),
    Journal(JournalError),
}

impl From<io::Error> for CopyError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rusqlite::Error> for CopyError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<JournalError> for CopyError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

/// The directory that receives a copy.
struct TargetDirectory<'d> {
    dir: &'d Path,
    /// True if it was missing.
    is_new: bool,
}

impl<'d> TargetDirectory<'d> {
    /// Creates the directory, or checks that it is empty.
    fn create(dir: &'d Path) -> Result<Self, JournalError> {
        let open_error = |reason: String| JournalError::Open { path: dir.to_owned(), reason };
        let is_new = !dir.exists();
        data_directory::create_if_missing(dir)?;
        let entries = fs::read_dir(dir).map_err(|error| open_error(error.to_string()))?;
        // The root of a file system may have this directory.
        if entries.flatten().any(|entry| entry.file_name() != "lost+found") {
            let reason = "it is not empty: name a directory that is missing or empty";
            return Err(open_error(reason.to_owned()));
        }
        Ok(Self { dir, is_new })
    }

    /// Removes what a failed copy has left, and returns the error.
    fn clear(&self, error: CopyError) -> JournalError {
        let partial = self.dir.join(PARTIAL_COPY);
        let _ = fs::remove_file(&partial);
        let _ = fs::remove_file(partial.with_extension("part-journal"));
        let _ = fs::remove_dir_all(self.dir.join(PARTIAL_RESTORE));
        if self.is_new {
            // Only an empty directory is removed.
            let _ = fs::remove_dir(self.dir);
        }
        let (lacks_space, reason) = match error {
            CopyError::Journal(error) => return error,
            CopyError::Io(error) => (errors::lacks_space(&error), error.to_string()),
            CopyError::Sqlite(error) => (errors::may_lack_space(&error), error.to_string()),
        };
        let reason = if lacks_space { "the disk is full".to_owned() } else { reason };
        JournalError::Copy { dir: self.dir.to_owned(), reason }
    }
}

/// Marks a copy, and closes its database.
fn mark(mut copy: Connection) -> rusqlite::Result<()> {
    let (key, text) = MARK;
    database::put_document(&mut copy, key, text, None)?;
    copy.close().map_err(|(_, error)| error)
}

/// Creates an empty file that only this user can read.
fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    io::copy(&mut File::open(from)?, &mut create_private(to)?).map(drop)
}

/// Syncs a complete file, and renames it.
fn publish(partial: &Path, file: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(partial)?.sync_all()?;
    fs::rename(partial, file)?;
    file.parent().map_or(Ok(()), data_directory::sync_directory)
}
