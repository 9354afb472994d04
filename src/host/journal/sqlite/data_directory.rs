//! The data directory: its lock, which admits one host; the permissions of its files (0600, and 0700 for a directory
//! that holds nothing else); the check that the database is there and still the one that was opened.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::super::JournalError;

/// The files of a journal.
#[cfg(unix)]
const FILES: [&str; 5] =
    ["journal.db", "journal.db-wal", "journal.db-shm", "journal.reserve", LOCK_FILE];

/// The name of the lock file.
const LOCK_FILE: &str = "callsheet.lock";

/// Returns the path of the database in a data directory.
pub(super) fn database_path(dir: &Path) -> PathBuf {
    dir.join("journal.db")
}

/// Returns the path of the [reserve](super::reserve) in a data directory.
pub(super) fn reserve_path(dir: &Path) -> PathBuf {
    dir.join("journal.reserve")
}

/// The free space below which a database may not open, in bytes.
const OPEN_BYTES_MIN: u64 = 1 << 20;

/// Returns whether the disk of a directory has too little space to open a database.
pub(super) fn is_full(dir: &Path) -> bool {
    free_bytes(dir).is_some_and(|free| free < OPEN_BYTES_MIN)
}

/// Returns the free bytes of the disk of a directory, if the system reports them.
pub(super) fn free_bytes(dir: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(dir).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Returns the path of a database's write-ahead log.
pub(super) fn wal_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

/// Creates the directory if it does not exist, accessible only to this user.
pub(super) fn create_if_missing(dir: &Path) -> Result<(), JournalError> {
    let open_error = |reason: String| JournalError::Open { path: dir.to_owned(), reason };
    match fs::metadata(dir) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => {
            return Err(open_error("it is not a directory: use another data directory".to_owned()));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(open_error(format!("{error}: use another data directory"))),
    }
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let hint = "create it, or use another data directory";
    builder
        .create(dir)
        .and_then(|()| dir.parent().map_or(Ok(()), sync_directory))
        .map_err(|error| open_error(format!("it cannot be created ({error}): {hint}")))
}

/// Checks that the database is not lost. A host makes the reserve after the tables of the database, so a reserve
/// without a database means that sessions may have been stored here. Without a reserve, a loss is not noticed.
fn check_not_lost(dir: &Path) -> Result<(), JournalError> {
    let path = database_path(dir);
    let is_lost = match fs::metadata(&path) {
        Ok(found) => found.is_file() && found.len() == 0,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    if !is_lost || fs::symlink_metadata(reserve_path(dir)).is_err() {
        return Ok(());
    }
    let reason = "it is missing or empty, but a host has stored sessions here: restore it from a \
                  backup, or remove journal.reserve to begin without sessions";
    Err(JournalError::Open { path, reason: reason.to_owned() })
}

/// Makes the files of the journal that belong to the owner of the database readable by that user alone, and creates
/// the database for that. SQLite gives its log the permissions of the database. A directory that holds only the
/// journal is tightened too.
///
/// # Errors
/// If other users can write to the directory, because they could replace the files.
#[cfg(unix)]
fn protect(dir: &Path) -> Result<(), JournalError> {
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};

    let failed = |path: &Path, reason: String| JournalError::Open { path: path.to_owned(), reason };
    let io = |path: &Path, error: io::Error| failed(path, error.to_string());
    let set_mode = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|error| io(path, error))
    };
    let database = database_path(dir);
    let created =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&database);
    // If it cannot be opened, the database reports why.
    let Ok(owner) = created.and_then(|file| file.metadata()).map(|found| found.uid()) else {
        return Ok(());
    };
    let mut is_shared = false;
    for entry in fs::read_dir(dir).map_err(|error| io(dir, error))? {
        let entry = entry.map_err(|error| io(dir, error))?;
        let name = entry.file_name();
        if !FILES.iter().any(|file| name == *file) {
            is_shared = true;
            continue;
        }
        let found = entry.metadata().map_err(|error| io(&entry.path(), error))?;
        if found.is_file() && found.mode() & 0o077 != 0 && found.uid() == owner {
            set_mode(&entry.path(), 0o600)?;
        }
    }
    let found = fs::metadata(dir).map_err(|error| io(dir, error))?;
    if found.mode() & 0o077 != 0 && found.uid() == owner && !is_shared {
        return set_mode(dir, 0o700);
    }
    // In a sticky directory such as /tmp, users cannot replace the files of another user.
    if found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0 {
        let reason = "other users can write to this directory: run chmod go-w on it, or use another \
                      data directory";
        return Err(failed(dir, reason.to_owned()));
    }
    Ok(())
}

/// Does nothing: other systems have no such permissions.
#[cfg(not(unix))]
fn protect(_: &Path) -> Result<(), JournalError> {
    Ok(())
}

/// Syncs the entries of a directory.
pub(super) fn sync_directory(dir: &Path) -> io::Result<()> {
    // The parent of `data` is "".
    let here = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    if cfg!(unix) { File::open(here)?.sync_all() } else { Ok(()) }
}

/// The locks of a data directory. The system releases them when the process ends, for any reason.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    /// The database itself is locked, too, because the lock file can be removed while a host runs.
    ///
    /// SQLite's own locks belong to the process, and the system releases them when the process closes any
    /// descriptor of the file (`man 2 fcntl`). So this one is opened before SQLite opens the file and closed
    /// after it, and what is read beside SQLite while SQLite has the file open is read with it.
    database: Arc<Mutex<File>>,
    opened: OpenedDatabase,
    _lock: File,
}

/// The file that was opened as the database. Later its path may name another file, or none.
#[derive(Clone, Debug)]
pub(super) struct OpenedDatabase {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    /// The size that it has at least, in bytes. A shorter file has lost records. Only the writer changes it.
    len: Arc<AtomicU64>,
    /// True while the next checkpoint makes the file shorter.
    is_shrinking: Arc<AtomicBool>,
}

impl OpenedDatabase {
    /// Checks that the file is still at its path, and not shorter than it should be. Otherwise the next host would not
    /// find what is stored in it.
    pub(super) fn check(&self) -> Result<(), JournalError> {
        self.checked_len().map(drop)
    }

    /// Checks the file like [`check`](Self::check), and notes that it has become longer. Only the writer does so.
    pub(super) fn check_and_note(&self) -> Result<(), JournalError> {
        let len = self.checked_len()?;
        if !self.is_shrinking.load(Ordering::Acquire) {
            self.len.fetch_max(len, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Notes that the database has this size in bytes once its log was moved.
    pub(super) fn begin_shrinking(&self, len: u64) {
        self.is_shrinking.store(true, Ordering::Release);
        self.len.fetch_min(len, Ordering::AcqRel);
    }

    /// Notes that the log was moved.
    pub(super) fn end_shrinking(&self) {
        self.is_shrinking.store(false, Ordering::Release);
    }

    /// Returns the length of the file, or 0 if it cannot be read now.
    fn checked_len(&self) -> Result<u64, JournalError> {
        use io::ErrorKind::{NotADirectory, NotFound};

        // Read before the length, because the file may grow meanwhile, and after it, because the writer lowers it before
        // the file becomes shorter.
        let before = self.len.load(Ordering::Acquire);
        let what = match fs::metadata(&self.path) {
            Ok(found) if identity(&found) == self.identity => {
                if found.len() >= before.min(self.len.load(Ordering::Acquire)) {
                    return Ok(found.len());
                }
                "truncated"
            }
            Ok(_) => "removed or replaced",
            // Other errors do not mean that it is gone.
            Err(error) if !matches!(error.kind(), NotFound | NotADirectory) => return Ok(0),
            Err(_) => "removed or replaced",
        };
        Err(JournalError::Write(format!(
            "journal.db was {what} while the host runs: move it back, or stop the host and restore the data directory \
             from a backup"
        )))
    }
}

/// Returns the device and the inode of a file.
#[cfg(unix)]
fn identity(found: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;

    Some((found.dev(), found.ino()))
}

/// Returns `None`: other systems have no inodes.
#[cfg(not(unix))]
fn identity(_: &Metadata) -> Option<(u64, u64)> {
    None
}

impl DirectoryLock {
    /// Locks the directory, and writes process id and `holder` to the lock file. Makes the files readable by
    /// their owner alone, and creates the database for that.
    pub(super) fn acquire(dir: &Path, holder: &str) -> Result<Self, JournalError> {
        let path = dir.join(LOCK_FILE);
        // The file is not truncated before it is locked, because it may name the current holder.
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let mut lock = options.open(&path).map_err(|error| open_error(&path, &error))?;
        if !try_to_lock(&lock).map_err(|error| open_error(&path, &error))? {
            let holder = current_holder(&mut lock);
            return Err(JournalError::Locked { dir: dir.to_owned(), holder });
        }
        check_not_lost(dir)?;
        protect(dir)?;
        let file = database_path(dir);
        let database = options.open(&file).map_err(|error| open_error(&file, &error))?;
        if !try_to_lock(&database).map_err(|error| open_error(&file, &error))? {
            let holder = "another host, whose lock file was removed,".to_owned();
            return Err(JournalError::Locked { dir: dir.to_owned(), holder });
        }
        let found = database.metadata().map_err(|error| open_error(&file, &error))?;
        let opened = OpenedDatabase {
            path: file,
            identity: identity(&found),
            len: Arc::new(found.len().into()),
            is_shrinking: Arc::default(),
        };
        let mut text = format!("pid {}", std::process::id());
        if !holder.is_empty() {
            text = format!("{text}, {holder}");
        }
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| lock.write_all(text.as_bytes()))
            .map_err(|error| open_error(&path, &error))?;
        Ok(Self { database: Arc::new(Mutex::new(database)), opened, _lock: lock })
    }

    /// Returns the file that was opened as the database.
    pub(super) fn opened(&self) -> &OpenedDatabase {
        &self.opened
    }

    /// Returns the file of the database.
    pub(super) fn database(&self) -> &Arc<Mutex<File>> {
        &self.database
    }
}

/// Checks that no host uses a directory.
pub(super) fn check_not_locked(dir: &Path) -> Result<(), JournalError> {
    let path = dir.join(LOCK_FILE);
    // A directory without the file is not used.
    let Ok(mut lock) = File::open(&path) else { return Ok(()) };
    if try_to_lock(&lock).map_err(|error| open_error(&path, &error))? {
        return Ok(());
    }
    let holder = current_holder(&mut lock);
    Err(JournalError::Locked { dir: dir.to_owned(), holder })
}

/// Locks a file. Returns false if it is locked already, by another process or by this one.
fn try_to_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn open_error(path: &Path, error: &io::Error) -> JournalError {
    let hint = "give this user write permission for the directory and its files";
    JournalError::Open { path: path.to_owned(), reason: format!("{error}: {hint}") }
}

fn current_holder(lock: &mut File) -> String {
    let mut text = String::new();
    // The holder may not have written its name yet.
    let read = lock.take(4_096).read_to_string(&mut text);
    let text = text.trim();
    if read.is_err() || text.is_empty() { "another host".to_owned() } else { text.to_owned() }
}
