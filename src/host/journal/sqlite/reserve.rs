//! The reserve: a file whose only purpose is to occupy space on the disk. When the disk is full, it is removed
//! so that sessions can be deleted.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::data_directory;

/// The reserve of a data directory.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    bytes: u64,
}

impl Reserve {
    /// Names the reserve of a directory. With 0 bytes there is none.
    pub(super) fn new(dir: &Path, bytes: u64) -> Self {
        Self { path: data_directory::reserve_path(dir), bytes }
    }

    /// Returns true if the file does not have its size, or with 0 bytes if there is a file.
    pub(super) fn needs_fill(&self) -> bool {
        // A link or a pipe at its path is not the reserve.
        let found = fs::symlink_metadata(&self.path).ok();
        if self.bytes == 0 {
            return found.is_some();
        }
        !found.is_some_and(|found| found.is_file() && found.len() == self.bytes)
    }

    /// Creates the file with its size, in place of what is at its path. With 0 bytes only removes that.
    pub(super) fn fill(&self) -> io::Result<()> {
        self.release()?;
        if self.bytes == 0 {
            return Ok(());
        }
        let written = self.write();
        if written.is_err() {
            self.release()?;
        }
        written
    }

    /// Removes the file. Returns false if there was none.
    pub(super) fn release(&self) -> io::Result<bool> {
        match fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn write(&self) -> io::Result<()> {
        let mut options = File::options();
        // It follows no link, which would overwrite another file.
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&self.path)?;
        // Not zeros, for which some file systems take no space.
        let block = [0xa5; 64 * 1024];
        let mut left = self.bytes;
        while left > 0 {
            let length = left.min(block.len() as u64);
            file.write_all(block.get(..length as usize).unwrap_or(&block))?;
            left -= length;
        }
        file.sync_all()
    }
}
