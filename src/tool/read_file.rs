//! `read_file {path}`: a text file beneath a configured directory.

use std::io::{self, Read};
use std::path::Path;

use async_trait::async_trait;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, OpenOptions};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};

/// How much of a file is read where nothing else is said, in bytes.
pub const READ_BYTES_MAX: usize = 64 << 10;

/// Reads text files beneath one directory. Pure.
///
/// The directory is held by a handle, and every path is opened from there: neither `..`, nor an
/// absolute path, nor a symbolic link leads out of it, also not one that is put there meanwhile.
/// Only regular files are read, so that no pipe or device can hold a call up.
#[derive(Debug)]
pub struct ReadFile {
    root: Dir,
    bytes_max: usize,
}

impl ReadFile {
    /// Opens the directory beneath which files are read, at most `bytes_max` bytes of each.
    ///
    /// # Errors
    /// When it is no directory that can be opened.
    pub fn new(root: &Path, bytes_max: usize) -> io::Result<Self> {
        Ok(Self { root: Dir::open_ambient_dir(root, ambient_authority())?, bytes_max })
    }

    fn read(&self, path: &str) -> Result<String, ReadError> {
        let file = self.open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(ReadError::Directory);
        }
        if !metadata.is_file() {
            return Err(ReadError::NoRegularFile);
        }
        // One byte more than is shown tells whether there is more.
        let mut bytes = Vec::new();
        file.take(self.bytes_max as u64 + 1).read_to_end(&mut bytes)?;
        let whole = bytes.len() <= self.bytes_max;
        bytes.truncate(self.bytes_max);
        let shown = text(bytes, whole)?;
        if whole {
            return Ok(shown);
        }
        let (part, size) = (shown.len(), metadata.len());
        Ok(format!("{shown}\n[cut: these are the first {part} of {size} bytes]"))
    }

    /// Opens without waiting: a pipe without a writer would wait for ever.
    fn open(&self, path: &str) -> Result<File, ReadError> {
        if path.contains('\0') {
            return Err(ReadError::BadPath);
        }
        let mut options = OpenOptions::new();
        options.read(true);
        #[cfg(unix)]
        cap_std::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
        self.root.open_with(path, &options).map_err(|e| self.explain(path, e))
    }

    /// Why a path was not opened. What lies outside is never looked at, so the answer does not
    /// depend on it.
    fn explain(&self, path: &str, error: io::Error) -> ReadError {
        let outside =
            error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none();
        if outside || Path::new(path).is_absolute() {
            return ReadError::Outside;
        }
        match error.kind() == io::ErrorKind::NotFound {
            true => ReadError::Missing,
            false => ReadError::Io(error),
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadFileInput {
    /// The file's path, relative to the directory that files are read from.
    path: String,
}

#[async_trait]
impl Tool for ReadFile {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<ReadFileInput>("read_file", "Reads a UTF-8 text file and answers its text.")
            .pure()
            .blocking()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let ReadFileInput { path } = context.input()?;
        self.read(&path)
            .map(ToolOutput)
            .map_err(|e| ToolError(format!("cannot read {:?}: {e}", shorten(&path))))
    }
}

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("no such file")]
    Missing,
    #[error(
        "the path leads out of the directory that files are read from; give one relative to it"
    )]
    Outside,
    #[error("the path holds a NUL character")]
    BadPath,
    #[error("it is a directory")]
    Directory,
    #[error("it is no regular file")]
    NoRegularFile,
    #[error("it is no UTF-8 text (at byte {0})")]
    NoText(usize),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The bytes as text; where they were cut, without the character that the cut went through.
fn text(bytes: Vec<u8>, whole: bool) -> Result<String, ReadError> {
    if let Some(at) = memchr::memchr(0, &bytes) {
        return Err(ReadError::NoText(at));
    }
    String::from_utf8(bytes).or_else(|e| {
        let (error, mut bytes) = (e.utf8_error(), e.into_bytes());
        let cut = !whole && error.error_len().is_none();
        bytes.truncate(error.valid_up_to());
        match String::from_utf8(bytes) {
            Ok(text) if cut => Ok(text),
            Ok(_) | Err(_) => Err(ReadError::NoText(error.valid_up_to())),
        }
    })
}

/// The start of a path, for an error.
fn shorten(path: &str) -> String {
    const CHARS_MAX: usize = 200;
    match path.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", path.get(..end).unwrap_or_default()),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A directory of one test: `root/` is what is read from, the rest lies outside.
    struct Place(PathBuf);

    impl Place {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let nth = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("callsheet-read-file-{}-{nth}", std::process::id());
            let place = Self(std::env::temp_dir().join(name));
            fs::create_dir_all(place.0.join("root/sub")).unwrap();
            fs::write(place.0.join("secret.txt"), "secret").unwrap();
            fs::write(place.root().join("a.txt"), "hello\n").unwrap();
            fs::write(place.root().join("sub/b.txt"), "beneath").unwrap();
            place
        }

        fn root(&self) -> PathBuf {
            self.0.join("root")
        }

        fn read(&self, path: &str) -> Result<String, String> {
            let tool = ReadFile::new(&self.root(), 16).unwrap();
            tool.read(path).map_err(|e| e.to_string())
        }

        #[track_caller]
        fn check_error(&self, path: &str, expect: &str) {
            let error = self.read(path).expect_err(path);
            assert!(error.contains(expect), "{path}: {error}");
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn reads_what_lies_beneath() {
        let place = Place::new();
        assert_eq!(place.read("a.txt").as_deref(), Ok("hello\n"));
        for path in ["sub/b.txt", "./sub//b.txt", "sub/../sub/b.txt"] {
            assert_eq!(place.read(path).as_deref(), Ok("beneath"), "{path}");
        }
        symlink("sub/b.txt", place.root().join("inner-link")).unwrap();
        assert_eq!(place.read("inner-link").as_deref(), Ok("beneath"));
    }

    #[test]
    fn nothing_leads_out() {
        let place = Place::new();
        let root = place.root();
        symlink("../secret.txt", root.join("link")).unwrap();
        symlink(place.0.join("secret.txt"), root.join("absolute-link")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink(&place.0, root.join("absolute-up")).unwrap();
        symlink("up/secret.txt", root.join("link-by-link")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        let absolute = place.0.join("secret.txt").display().to_string();
        let absolute_inside = root.join("a.txt").display().to_string();
        for path in [
            "../secret.txt",
            "../root/a.txt",
            "sub/../../secret.txt",
            "..",
            "link",
            "absolute-link",
            "up/secret.txt",
            "absolute-up/secret.txt",
            "link-by-link",
            "magic/etc/passwd",
            "/etc/passwd",
            "/nowhere",
            absolute.as_str(),
            absolute_inside.as_str(),
        ] {
            place.check_error(path, "leads out of the directory");
        }
    }

    #[test]
    fn reads_regular_files_only() {
        let place = Place::new();
        let fifo = place.root().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        // Nobody writes to it: a plain open would wait for ever.
        place.check_error("fifo", "no regular file");
        let _listener = std::os::unix::net::UnixListener::bind(place.root().join("s")).unwrap();
        assert!(place.read("s").is_err());
        for path in [".", "sub", "sub/"] {
            place.check_error(path, "it is a directory");
        }
    }

    #[test]
    fn says_what_is_missing_or_wrong() {
        let place = Place::new();
        for path in ["b.txt", "", "nowhere/b.txt"] {
            place.check_error(path, "no such file");
        }
        place.check_error("a.txt/b", "");
        place.check_error("a\0.txt", "NUL");
        symlink("nowhere", place.root().join("dangling")).unwrap();
        place.check_error("dangling", "no such file");
        symlink("loop", place.root().join("loop")).unwrap();
        place.check_error("loop", "");
        assert!(ReadFile::new(&place.0.join("nowhere"), 16).is_err());
        assert!(ReadFile::new(&place.0.join("secret.txt"), 16).is_err());
    }

    #[test]
    fn reads_text_only() {
        let place = Place::new();
        let cases: [(&str, &[u8], &str); 3] = [
            ("nul", b"a\0b", "no UTF-8 text (at byte 1)"),
            ("latin", b"caf\xe9!", "no UTF-8 text (at byte 3)"),
            ("half", b"caf\xc3", "no UTF-8 text (at byte 3)"),
        ];
        for (name, bytes, expect) in cases {
            fs::write(place.root().join(name), bytes).unwrap();
            place.check_error(name, expect);
        }
    }

    #[test]
    fn cuts_what_is_too_long_and_says_so() {
        let place = Place::new();
        let check = |text: &str, expect: &str| {
            fs::write(place.root().join("long"), text).unwrap();
            assert_eq!(place.read("long").as_deref(), Ok(expect));
        };
        check("0123456789abcdef", "0123456789abcdef");
        check("0123456789abcdefg", "0123456789abcdef\n[cut: these are the first 16 of 17 bytes]");
        check("0123456789abcdéf", "0123456789abcdé\n[cut: these are the first 16 of 17 bytes]");
        check("0123456789abcde日", "0123456789abcde\n[cut: these are the first 15 of 18 bytes]");
    }
}
