//! Writing to stdout and stderr without panics.

use std::io::{self, Write as _};

use super::error::CommandError;
use super::screen::wrapped_on_stderr;
use callsheet_values::types::sanitize_text;

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

/// Prints an error as one line on stderr. On a terminal the line is wrapped. The text may come from a
/// service, a tool or a file.
pub(super) fn error(text: &str) {
    let line = format!("callsheet: {}", clean(text.trim_end()));
    to_stderr(&(wrapped_on_stderr(&line) + "\n"));
}

/// Returns a text as one line: replaces control characters by spaces and writes invisible characters out
/// (`\u{202e}`).
pub(super) fn clean(text: &str) -> String {
    sanitize_text(&text.replace(char::is_control, " "))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_from_outside_becomes_one_harmless_line() {
        let text = "bad \u{202e}\u{200b}\u{1b}[31m thing\nline\ttwo\u{9b}2J";
        assert_eq!(clean(text), "bad \\u{202e}\\u{200b} [31m thing line two 2J");
    }
}
