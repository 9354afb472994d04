//! Writing to stdout and stderr without ever panicking.

use std::io::{self, Write as _};

use super::CommandError;

/// Writes to stdout at once.
pub(super) fn to_stdout(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Says something on stderr. If nobody reads that, nothing is lost that anybody wanted.
pub(super) fn to_stderr(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// One line that says what is wrong.
pub(super) fn error(line: &str) {
    to_stderr(&format!("callsheet: {line}\n"));
}

/// What is left to say when the output cannot be written: nothing, if its reader has gone.
pub(super) fn broken(error: &io::Error) -> CommandError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return CommandError { status: 1, message: String::new() };
    }
    CommandError::failed(format!("write the output: {error}"))
}
