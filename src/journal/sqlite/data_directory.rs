//! The data directory, and who has it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::super::JournalError;

/// The database in a data directory.
pub(super) fn database(dir: &Path) -> PathBuf {
    dir.join("journal.db")
}

/// A database's write-ahead log.
pub(super) fn log_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

/// Makes the directory if it is not there; what is in it is for this user alone.
pub(super) fn create(dir: &Path) -> Result<(), JournalError> {
    let failed = |why: String| JournalError::Open { path: dir.to_owned(), why };
    match fs::metadata(dir) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => return Err(failed("it is no directory: name another data_dir".to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(format!("{error}: name another data_dir"))),
    }
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let hint = "create it, or name another data_dir";
    builder
        .create(dir)
        .and_then(|()| dir.parent().map_or(Ok(()), sync))
        .map_err(|error| failed(format!("it cannot be created ({error}): {hint}")))
}

/// Makes durable which files are in a directory.
pub(super) fn sync(dir: &Path) -> io::Result<()> {
    // `data` has the parent "".
    let here = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    if cfg!(unix) { File::open(here)?.sync_all() } else { Ok(()) }
}

/// A data directory that is held for as long as this lives: the system lets go of the lock when
/// the process ends, however it ends.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    _lock: File,
}

impl DirectoryLock {
    /// Takes the directory, and writes down who has it: the process, and what `holder` says.
    pub(super) fn take(dir: &Path, holder: &str) -> Result<Self, JournalError> {
        let path = dir.join("callsheet.lock");
        let failed = |error: &io::Error| JournalError::Open {
            path: path.clone(),
            why: format!("{error}: let this user write the directory and the files in it"),
        };
        // Not truncated: it may say who has it.
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let mut lock = options.open(&path).map_err(|error| failed(&error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(JournalError::Locked { dir: dir.to_owned(), holder: said(&mut lock) });
            }
            Err(TryLockError::Error(error)) => return Err(failed(&error)),
        }
        let mut said = format!("pid {}", std::process::id());
        if !holder.is_empty() {
            said = format!("{said}, {holder}");
        }
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| lock.write_all(said.as_bytes()))
            .map_err(|error| failed(&error))?;
        Ok(Self { _lock: lock })
    }
}

fn said(lock: &mut File) -> String {
    let mut said = String::new();
    // Whoever has it may be about to write it.
    let read = lock.take(4_096).read_to_string(&mut said);
    let said = said.trim();
    if read.is_err() || said.is_empty() { "another host".to_owned() } else { said.to_owned() }
}
