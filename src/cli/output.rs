//! Writing to stdout and stderr without panics.

use std::io::{self, Write as _};

use super::error::CommandError;

/// Writes to stdout and flushes.
pub(super) fn to_stdout(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes to stderr and ignores errors.
pub(super) fn to_stderr(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Prints an error as one line on stderr.
pub(super) fn error(line: &str) {
    to_stderr(&format!("callsheet: {line}\n"));
}

/// Turns an error of writing to stdout into a command error. A closed pipe has no message, because
/// its reader has exited.
pub(super) fn write_error(error: &io::Error) -> CommandError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return CommandError { status: 1, message: String::new() };
    }
    CommandError::failed(format!("write the output: {error}"))
}

/// Formats a count with a noun: `1 run`, `2 runs`.
pub(super) fn format_count(count: impl Into<u64>, noun: &str) -> String {
    let count = count.into();
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
