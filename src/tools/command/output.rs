//! The captured output of a program, and the result or error that it makes. Of the standard output the first
//! `max_output_bytes` are kept (1 MiB by default; of a hook, 8 MiB), and of the standard error the last 2 KiB. An
//! error quotes the last 10 of the kept lines of the standard error, or of the standard output if it is empty.

use std::num::NonZeroU32;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::http::response::without_partial_character;
use crate::launcher::ProcessEnd;
use crate::{ParsedSchema, ToolError};
use callsheet_values::types::{FailureKind, Secrets};

/// Maximum number of lines of an output that an error quotes.
const QUOTED_LINES_MAX: usize = 10;

/// The size of one read.
const READ_BYTES: usize = 16 * 1024;

/// The first or last `bytes_max` bytes of a stream.
#[derive(Debug)]
pub(crate) struct CapturedOutput {
    bytes: Vec<u8>,
    /// Number of bytes that were read, also of those that are not kept.
    written: usize,
    bytes_max: usize,
    keeps_last: bool,
    /// The secrets to remove from its text.
    secrets: Secrets,
}

impl CapturedOutput {
    /// Keeps the first bytes.
    pub(super) fn keeping_first(bytes_max: usize, secrets: &Secrets) -> Self {
        let secrets = secrets.clone();
        Self { bytes: Vec::new(), written: 0, bytes_max, keeps_last: false, secrets }
    }

    /// Keeps the last bytes.
    pub(super) fn keeping_last(bytes_max: usize, secrets: &Secrets) -> Self {
        Self { keeps_last: true, ..Self::keeping_first(bytes_max, secrets) }
    }

    /// Reads until the end or the first error. Cancel safe: keeps the bytes read so far.
    pub(super) async fn read(&mut self, mut stream: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; READ_BYTES];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            self.push(buffer.get(..count).unwrap_or_default());
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.written = self.written.saturating_add(bytes.len());
        if self.keeps_last {
            self.bytes.extend_from_slice(bytes);
            let excess = self.bytes.len().saturating_sub(self.bytes_max);
            self.bytes.drain(..excess);
        } else {
            let space = self.bytes_max - self.bytes.len();
            self.bytes.extend(bytes.iter().take(space));
        }
    }

    /// Returns the bytes, if all are kept.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        (!self.is_cut()).then_some(&self.bytes)
    }

    fn is_cut(&self) -> bool {
        self.written > self.bytes.len()
    }

    /// Returns the kept bytes without those of a character that the cut left incomplete.
    fn whole_characters(&self) -> &[u8] {
        match (self.is_cut(), self.keeps_last) {
            (false, _) => &self.bytes,
            (true, false) => without_partial_character(&self.bytes),
            (true, true) => without_partial_first_character(&self.bytes),
        }
    }

    /// Returns the kept text without secrets. Removes the part of a secret at the cut, too.
    fn redacted_text(&self) -> String {
        let text = String::from_utf8_lossy(self.whole_characters());
        match (self.is_cut(), self.keeps_last) {
            (false, _) => self.secrets.redact(&text).into_owned(),
            (true, false) => self.secrets.redact_head(&text),
            (true, true) => self.secrets.redact_tail(&text),
        }
    }

    /// Returns the text for the model without secrets, with notes about a cut and about invalid UTF-8.
    pub(super) fn text_result(&self, end: ProcessEnd) -> String {
        let bytes = self.whole_characters();
        let mut text = self.redacted_text();
        if self.is_cut() {
            let (kept, written) = (bytes.len(), self.written);
            text.push_str(&format!("\n[cut: the first {kept} of {written} bytes]"));
        }
        if std::str::from_utf8(bytes).is_err() {
            text.push_str("\n[not UTF-8: invalid bytes were replaced]");
        }
        if text.trim().is_empty() {
            text = match end {
                ProcessEnd::Exited(code) if code != 0 => format!("(no output, exit status {code})"),
                ProcessEnd::Exited(_)
                | ProcessEnd::Signalled(_)
                | ProcessEnd::TooManyProcesses
                | ProcessEnd::LauncherDied => "(no output)".to_owned(),
            };
        }
        text
    }

    /// Returns the value that the program wrote. The caller removes its secrets.
    ///
    /// # Errors
    /// If the output is cut, is not one JSON value, or does not fit the schema.
    pub(super) fn json_result(&self, schema: Option<&ParsedSchema>) -> Result<Value, ToolError> {
        if self.is_cut() {
            let message = format!(
                "the program wrote {} bytes, more than max_output_bytes = {}",
                self.written, self.bytes_max
            );
            return Err(ToolError::new(message));
        }
        let value = serde_json::from_slice(&self.bytes).map_err(|error| {
            ToolError::from(error).with_message("the output of the program is not one JSON value")
        })?;
        match schema.and_then(|schema| schema.first_violation(&value)) {
            Some(violation) => {
                let message = format!(
                    "the output of the program does not fit its output_schema: {violation}"
                );
                Err(ToolError::new(message))
            }
            None => Ok(value),
        }
    }

    /// Returns the last of the kept lines without secrets.
    pub(crate) fn last_lines(&self) -> String {
        // Redacts before it removes the first lines, because a secret may have several lines.
        let text = self.redacted_text();
        let lines: Vec<&str> = text.trim_end().lines().collect();
        let first = lines.len().saturating_sub(QUOTED_LINES_MAX);
        lines.get(first..).unwrap_or_default().join("\n")
    }

    /// Returns the error of a failed program; `self` is its standard output.
    pub(crate) fn failure(
        &self,
        end: ProcessEnd,
        stderr: &Self,
        max_processes: Option<NonZeroU32>,
    ) -> ToolError {
        let mut message = match end {
            ProcessEnd::Exited(code) => format!("the program ended with exit status {code}"),
            ProcessEnd::Signalled(signal) => {
                let signal = ExitStatus::from_raw(signal).to_string();
                format!("the program was ended by {}", signal.replacen("signal: ", "signal ", 1))
            }
            ProcessEnd::TooManyProcesses => {
                let max = max_processes.map_or(0, NonZeroU32::get);
                format!("the program was killed: it had more than {max} processes (max_processes)")
            }
            ProcessEnd::LauncherDied => "the launcher of the program was killed".to_owned(),
        };
        let quoted = [("stderr", stderr), ("stdout", self)];
        let quoted = quoted.map(|(name, stream)| (name, stream.last_lines()));
        if let Some((name, lines)) = quoted.iter().find(|(_, lines)| !lines.is_empty()) {
            message.push_str(&format!("; {name}:\n{lines}"));
        }
        ToolError::new(message).with_kind(FailureKind::ExitStatus)
    }
}

/// Removes the bytes of a first character that the cut left incomplete: at most three.
fn without_partial_first_character(bytes: &[u8]) -> &[u8] {
    let is_continuation = |byte: &&u8| matches!(byte, 0x80..=0xbf);
    let partial = bytes.iter().take(3).take_while(is_continuation).count();
    bytes.get(partial..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A secret that consists of two lines.
    const SECRET: &str = "sk-live-0123456789\nabcdefghijkl";

    fn secrets() -> Secrets {
        Secrets::new([SECRET])
    }

    fn head(text: &[u8], bytes_max: usize) -> CapturedOutput {
        let mut output = CapturedOutput::keeping_first(bytes_max, &secrets());
        text.chunks(3).for_each(|chunk| output.push(chunk));
        output
    }

    fn tail(text: &str) -> CapturedOutput {
        let mut output = CapturedOutput::keeping_last(2048, &secrets());
        text.as_bytes().chunks(7).for_each(|chunk| output.push(chunk));
        output
    }

    #[test]
    fn a_text_says_what_is_missing() {
        for (bytes, code, expected) in [
            (&b"hello\n"[..], 0, "hello\n"),
            (b"0123456789abc", 0, "0123456789\n[cut: the first 10 of 13 bytes]"),
            (b"a\xffb", 0, "a\u{fffd}b\n[not UTF-8: invalid bytes were replaced]"),
            (b"\n", 0, "(no output)"),
            (b"", 1, "(no output, exit status 1)"),
        ] {
            assert_eq!(head(bytes, 10).text_result(ProcessEnd::Exited(code)), expected);
        }
    }

    #[test]
    fn a_cut_in_a_character_is_no_invalid_byte() {
        for (bytes_max, expected) in [
            (8, "ab\u{e9}\u{1f600}\n[cut: the first 8 of 9 bytes]"),
            (7, "ab\u{e9}\n[cut: the first 4 of 9 bytes]"),
            (5, "ab\u{e9}\n[cut: the first 4 of 9 bytes]"),
            (3, "ab\n[cut: the first 2 of 9 bytes]"),
        ] {
            let output = head("ab\u{e9}\u{1f600}c".as_bytes(), bytes_max);
            assert_eq!(output.text_result(ProcessEnd::Exited(0)), expected);
        }
        let text = head(b"a\xffb\xc3\xa9", 4).text_result(ProcessEnd::Exited(0));
        let notes = "[cut: the first 3 of 5 bytes]\n[not UTF-8: invalid bytes were replaced]";
        assert_eq!(text, format!("a\u{fffd}b\n{notes}"));
        for character in ["\u{e9}", "\u{20ac}", "\u{1f600}"] {
            let rest = "x".repeat(2048 - (character.len() - 1));
            assert_eq!(tail(&format!("{character}{rest}")).last_lines(), rest);
        }
    }

    #[test]
    fn a_cut_output_has_no_part_of_a_secret() {
        let text = |kept: usize| {
            let output = head(format!("xxxxxxxxxx{SECRET} y").as_bytes(), 10 + kept);
            output.text_result(ProcessEnd::Exited(0))
        };
        for kept in 8..SECRET.len() {
            let cut = format!("[cut: the first {} of 43 bytes]", 10 + kept);
            assert_eq!(text(kept), format!("xxxxxxxxxx[redacted]\n{cut}"));
        }
        assert_eq!(text(3), "xxxxxxxxxx\n[cut: the first 13 of 43 bytes]");
        assert_eq!(text(100), "xxxxxxxxxx[redacted] y");
        for missing in 0..SECRET.len() - 8 {
            let rest = "y".repeat(2048 - (SECRET.len() - missing));
            assert_eq!(tail(&format!("{SECRET}{rest}")).last_lines(), format!("[redacted]{rest}"));
        }
        // The first line of the secret is not among the quoted ones.
        let lines = "\n1\n2\n3\n4\n5\n6\n7\n8\n9";
        let output = head(format!("{SECRET}{lines}").as_bytes(), 1000);
        assert_eq!(output.last_lines(), format!("[redacted]{lines}"));
        let failure = head(SECRET.as_bytes(), 20).failure(ProcessEnd::Exited(1), &tail(""), None);
        let message = "the program ended with exit status 1; stdout:\n[redacted]";
        assert_eq!(failure.message(), message);
    }

    #[test]
    fn json_is_checked() {
        let json = |bytes: &[u8], schema: Option<&ParsedSchema>| {
            head(bytes, 20).json_result(schema).map_err(|error| error.message().to_owned())
        };
        assert_eq!(json(b"{\"a\":1}\n", None), Ok(json!({"a": 1})));
        let expected = "the output of the program is not one JSON value";
        assert_eq!(json(b"a", None).unwrap_err(), expected);
        let expected = "the program wrote 22 bytes, more than max_output_bytes = 20";
        assert_eq!(json(&[b' '; 22], None).unwrap_err(), expected);
        let schema = ParsedSchema::parse(json!({"type": "array"})).unwrap();
        let error = json(b"1", Some(&schema)).unwrap_err();
        assert!(error.starts_with("the output of the program does not fit its output_schema: "));
    }

    #[test]
    fn a_failure_quotes_the_last_lines() {
        let max_processes = NonZeroU32::new(8);
        let message = |end, out: &str, err: &str| {
            let error = head(out.as_bytes(), 100).failure(end, &tail(err), max_processes);
            assert_eq!(error.kind(), FailureKind::ExitStatus);
            error.message().to_owned()
        };
        let long: String = (0..2000).map(|line| format!("line {line}\n")).collect();
        let lines: Vec<String> = (1990..2000).map(|line| format!("line {line}")).collect();
        let expected =
            format!("the program ended with exit status 2; stderr:\n{}", lines.join("\n"));
        assert_eq!(message(ProcessEnd::Exited(2), "out", &long), expected);
        let expected = "the program was ended by signal 9 (SIGKILL); stdout:\nout";
        assert_eq!(message(ProcessEnd::Signalled(9), "out", " \n"), expected);
        let expected = "the program was killed: it had more than 8 processes (max_processes)";
        assert_eq!(message(ProcessEnd::TooManyProcesses, "", ""), expected);
    }
}
