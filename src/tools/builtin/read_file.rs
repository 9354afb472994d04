//! `read_file {path}`: reads a text file below a configured directory, by default at most its first 64 KiB.

use std::io::{self, Read};
use std::path::Path;

use async_trait::async_trait;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, OpenOptions};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use callsheet_values::types::excerpt;

/// Maximum number of characters of a path that an error quotes.
const QUOTED_CHARS_MAX: usize = 200;

/// Errors of the system that another attempt with the same path would repeat. `ENXIO`: it is a socket.
const PATH_ERRORS: [i32; 5] =
    [libc::EACCES, libc::ELOOP, libc::ENAMETOOLONG, libc::ENOTDIR, libc::ENXIO];

/// Default of the maximum number of bytes that are read of a file.
pub const READ_BYTES_MAX: usize = 64 << 10;

/// Reads text files below one directory. Pure.
///
/// Prevents path traversal: the directory is open as a handle, and every path is resolved relative to
/// it. `..`, absolute paths and symbolic links cannot leave it, even if a link is created during the
/// call. Only regular files are read, because a pipe or device could block the call.
#[derive(Debug)]
pub struct ReadFile {
    root: Dir,
    bytes_max: usize,
}

impl ReadFile {
    /// Opens the directory. At most `bytes_max` bytes of each file are read.
    ///
    /// # Errors
    /// If the directory cannot be opened.
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
            return Err(ReadError::NotRegularFile);
        }
        // Reads one byte more than is returned, to detect that the file is longer.
        let mut bytes = Vec::new();
        file.take(self.bytes_max as u64 + 1).read_to_end(&mut bytes)?;
        let is_complete = bytes.len() <= self.bytes_max;
        bytes.truncate(self.bytes_max);
        let text = decode_text(bytes, is_complete)?;
        if is_complete {
            return Ok(text);
        }
        let (length, size) = (text.len(), metadata.len());
        Ok(format!("{text}\n[cut: the first {length} of {size} bytes]"))
    }

    /// Opens a file without blocking: a plain open of a pipe without a writer never returns.
    fn open(&self, path: &str) -> Result<File, ReadError> {
        if path.contains('\0') {
            return Err(ReadError::NulInPath);
        }
        let mut options = OpenOptions::new();
        options.read(true);
        #[cfg(unix)]
        cap_std::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
        self.root.open_with(path, &options).map_err(|e| open_error(path, e))
    }
}

/// Maps the error of opening a path. Paths that leave the directory are never resolved, so the
/// error reveals nothing about files outside.
fn open_error(path: &str, error: io::Error) -> ReadError {
    // cap-std reports a path that leaves the directory with this kind and without an OS error.
    let outside = error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none();
    if outside || Path::new(path).is_absolute() {
        return ReadError::OutsideRoot;
    }
    match error.kind() == io::ErrorKind::NotFound {
        true => ReadError::NotFound,
        false => ReadError::Io(error),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadFileInput {
    /// Path of the file, relative to the tool's directory.
    path: String,
}

#[async_trait]
impl Tool for ReadFile {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<ReadFileInput>("read_file", "Reads a UTF-8 text file and returns its text.")
            .pure()
            .blocking()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let ReadFileInput { path } = context.input()?;
        self.read(&path).map(ToolOutput::from).map_err(|e| {
            let path = excerpt(&path, QUOTED_CHARS_MAX);
            let error = ToolError::new(format!("cannot read {path:?}: {e}"));
            if e.is_permanent() { error.permanent() } else { error }
        })
    }
}

/// The reason why a file was not read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("no such file")]
    NotFound,
    #[error("the path leaves the tool's directory; give a path relative to it")]
    OutsideRoot,
    #[error("the path contains a NUL character")]
    NulInPath,
    #[error("it is a directory")]
    Directory,
    #[error("it is not a regular file")]
    NotRegularFile,
    #[error("it is not UTF-8 text (at byte {0})")]
    NotText(usize),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl ReadError {
    /// Returns whether the path cannot be read, so that another attempt would fail in the same way.
    fn is_permanent(&self) -> bool {
        match self {
            Self::NotFound
            | Self::OutsideRoot
            | Self::NulInPath
            | Self::Directory
            | Self::NotRegularFile
            | Self::NotText(_) => true,
            Self::Io(error) => error.raw_os_error().is_some_and(|code| PATH_ERRORS.contains(&code)),
        }
    }
}

/// Decodes UTF-8, and refuses NUL bytes. If the bytes were cut, drops a last character that the cut left incomplete.
fn decode_text(bytes: Vec<u8>, is_complete: bool) -> Result<String, ReadError> {
    if let Some(at) = memchr::memchr(0, &bytes) {
        return Err(ReadError::NotText(at));
    }
    String::from_utf8(bytes).or_else(|e| {
        let (error, mut bytes) = (e.utf8_error(), e.into_bytes());
        let cut = !is_complete && error.error_len().is_none();
        bytes.truncate(error.valid_up_to());
        match String::from_utf8(bytes) {
            Ok(text) if cut => Ok(text),
            Ok(_) | Err(_) => Err(ReadError::NotText(error.valid_up_to())),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A temporary directory. The tool reads from `root/`; all other files are outside.
    struct TestDirectory(PathBuf);

    impl TestDirectory {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let nth = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("callsheet-read-file-{}-{nth}", std::process::id());
            let directory = Self(std::env::temp_dir().join(name));
            fs::create_dir_all(directory.0.join("root/sub")).unwrap();
            fs::write(directory.0.join("secret.txt"), "secret").unwrap();
            fs::write(directory.root().join("a.txt"), "hello\n").unwrap();
            fs::write(directory.root().join("sub/b.txt"), "beneath").unwrap();
            directory
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

    impl Drop for TestDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn reads_files_below_the_root() {
        let directory = TestDirectory::new();
        assert_eq!(directory.read("a.txt").as_deref(), Ok("hello\n"));
        for path in ["sub/b.txt", "./sub//b.txt", "sub/../sub/b.txt"] {
            assert_eq!(directory.read(path).as_deref(), Ok("beneath"), "{path}");
        }
        symlink("sub/b.txt", directory.root().join("inner-link")).unwrap();
        assert_eq!(directory.read("inner-link").as_deref(), Ok("beneath"));
    }

    #[test]
    fn paths_cannot_leave_the_root() {
        let directory = TestDirectory::new();
        let root = directory.root();
        symlink("../secret.txt", root.join("link")).unwrap();
        symlink(directory.0.join("secret.txt"), root.join("absolute-link")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink(&directory.0, root.join("absolute-up")).unwrap();
        symlink("up/secret.txt", root.join("link-by-link")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        let absolute = directory.0.join("secret.txt").display().to_string();
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
            directory.check_error(path, "leaves the tool's directory");
        }
    }

    #[test]
    fn refuses_files_that_are_not_regular() {
        let directory = TestDirectory::new();
        let fifo = directory.root().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        // The pipe has no writer: a blocking open would never return.
        directory.check_error("fifo", "not a regular file");
        let _listener = std::os::unix::net::UnixListener::bind(directory.root().join("s")).unwrap();
        assert!(directory.read("s").is_err());
        for path in [".", "sub", "sub/"] {
            directory.check_error(path, "it is a directory");
        }
    }

    #[test]
    fn errors_name_the_reason() {
        let directory = TestDirectory::new();
        for path in ["b.txt", "", "nowhere/b.txt"] {
            directory.check_error(path, "no such file");
        }
        directory.check_error("a.txt/b", "");
        directory.check_error("a\0.txt", "NUL");
        symlink("nowhere", directory.root().join("dangling")).unwrap();
        directory.check_error("dangling", "no such file");
        symlink("loop", directory.root().join("loop")).unwrap();
        directory.check_error("loop", "");
        assert!(ReadFile::new(&directory.0.join("nowhere"), 16).is_err());
        assert!(ReadFile::new(&directory.0.join("secret.txt"), 16).is_err());
    }

    #[test]
    fn errors_of_the_path_are_permanent_and_those_of_the_device_are_not() {
        let directory = TestDirectory::new();
        let root = directory.root();
        symlink("loop", root.join("loop")).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(root.join("s")).unwrap();
        let tool = ReadFile::new(&root, 16).unwrap();
        let long = "x".repeat(300);
        for path in
            ["b.txt", "../secret.txt", "a\0.txt", "sub", "a.txt/b", "loop", "s", long.as_str()]
        {
            let error = tool.read(path).unwrap_err();
            assert!(error.is_permanent(), "{path:?}: {error:?}");
        }
        for code in [libc::EIO, libc::EINTR, libc::EMFILE] {
            let error = ReadError::Io(io::Error::from_raw_os_error(code));
            assert!(!error.is_permanent(), "{error:?}");
        }
    }

    #[test]
    fn refuses_files_that_are_not_utf8_text() {
        let directory = TestDirectory::new();
        let cases: [(&str, &[u8], &str); 3] = [
            ("nul", b"a\0b", "not UTF-8 text (at byte 1)"),
            ("latin", b"caf\xe9!", "not UTF-8 text (at byte 3)"),
            ("half", b"caf\xc3", "not UTF-8 text (at byte 3)"),
        ];
        for (name, bytes, expect) in cases {
            fs::write(directory.root().join(name), bytes).unwrap();
            directory.check_error(name, expect);
        }
    }

    #[test]
    fn long_files_are_cut_with_a_note() {
        let directory = TestDirectory::new();
        let check = |text: &str, expect: &str| {
            fs::write(directory.root().join("long"), text).unwrap();
            assert_eq!(directory.read("long").as_deref(), Ok(expect));
        };
        check("0123456789abcdef", "0123456789abcdef");
        check("0123456789abcdefg", "0123456789abcdef\n[cut: the first 16 of 17 bytes]");
        check("0123456789abcdéf", "0123456789abcdé\n[cut: the first 16 of 17 bytes]");
        check("0123456789abcde日", "0123456789abcde\n[cut: the first 15 of 18 bytes]");
    }
}
