//! Summaries of long inputs and outputs.

use std::borrow::Cow;
use std::io;

use crate::types::ToolCall;

/// Maximum number of characters of a summary, including the ellipsis.
const SUMMARY_CHARS: usize = 200;

/// Returns the text, or its first 199 characters and an ellipsis.
pub(super) fn summary(text: &str) -> Cow<'_, str> {
    if text.chars().nth(SUMMARY_CHARS).is_none() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().take(SUMMARY_CHARS - 1).chain(['…']).collect())
}

/// Returns a summary of the call's arguments, or of the received text if it could not be decoded.
pub(super) fn input_summary(call: &ToolCall) -> String {
    if let Some(raw) = call.raw.as_deref().filter(|_| !is_understood(call)) {
        return summary(raw).into_owned();
    }
    let mut head = TruncatingWriter::default();
    // The writer stops when it is full. The summary needs no more.
    let _full = serde_json::to_writer(&mut head, &call.arguments);
    summary(&String::from_utf8_lossy(&head.bytes)).into_owned()
}

/// Returns false if the arguments are empty, so that the received text, if there is any, could not be decoded.
pub(super) fn is_understood(call: &ToolCall) -> bool {
    call.arguments.as_object().is_none_or(|map| !map.is_empty())
}

/// Keeps the first bytes that are written, more than a summary needs.
#[derive(Default)]
struct TruncatingWriter {
    bytes: Vec<u8>,
}

impl TruncatingWriter {
    const BYTES_MAX: usize = SUMMARY_CHARS * 4 + 8;
}

impl io::Write for TruncatingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = Self::BYTES_MAX.saturating_sub(self.bytes.len()).min(bytes.len());
        self.bytes.extend_from_slice(bytes.get(..room).unwrap_or_default());
        Ok(room)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::event::samples;

    #[test]
    fn summaries_have_at_most_200_characters() {
        let check = |text: &str, expect: &str| assert_eq!(summary(text), expect);
        check("", "");
        check("short", "short");
        check(&"é".repeat(200), &"é".repeat(200));
        check(&"é".repeat(201), &format!("{}…", "é".repeat(199)));

        let mut result = samples::result();
        result.call.arguments = json!({"text": "😀".repeat(100_000)}).into();
        let seen = input_summary(&result.call);
        assert_eq!(seen, format!("{{\"text\":\"{}…", "😀".repeat(190)));
    }
}
