//! Journal entries and their stored form.

use serde::{Deserialize, Serialize};

use super::{Record, Seq};
use crate::types::{SessionId, excerpt};

/// The version of the stored form. Readers accept this version only, and no unknown records. They refuse unknown
/// fields of records, but not of all the values in them.
pub const RECORD_VERSION: u32 = 1;

/// A record with its sequence number and time.
///
/// `Serialize` gives the form of
/// the HTTP API and of the export as JSON Lines; [`body`](Self::body) gives the stored form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct JournalEntry {
    /// The sequence number in the session's journal.
    pub seq: Seq,
    /// The time at which it was appended: Unix time in milliseconds.
    pub time: u64,
    /// Bytes of text and thinking of the running attempt that were published before the record. 0
    /// if no attempt was running.
    #[serde(rename = "shown", skip_serializing_if = "super::is_zero")]
    pub displayed_bytes: u64,
    /// The record.
    #[serde(flatten)]
    pub record: Record,
}

/// The stored body of an entry. Sequence number and time are stored beside it.
#[derive(Serialize)]
struct StoredRecord<'a> {
    v: u32,
    #[serde(skip_serializing_if = "super::is_zero")]
    shown: u64,
    record: &'a Record,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRecordOwned {
    v: u32,
    #[serde(default)]
    shown: u64,
    record: Record,
}

/// The only field that the bodies of all versions have.
#[derive(Deserialize)]
struct Versioned {
    v: u32,
}

/// The error of a stored record that cannot be read.
///
/// Returned by [`JournalEntry::from_body`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read record {} of session {session}: {reason}", .seq.0)]
#[non_exhaustive]
pub struct UnreadableRecord {
    /// The session.
    pub session: SessionId,
    /// The record's sequence number.
    pub seq: Seq,
    /// The problem.
    pub reason: String,
}

impl JournalEntry {
    /// Returns the key of the journal document that this record refers to (the list of frozen tools), if it
    /// does. The document must be kept as long as the record.
    #[must_use]
    pub fn document_key(&self) -> Option<String> {
        let Record::ToolsFrozen { sha256 } = &self.record else { return None };
        Some(super::frozen_tools_key(sha256))
    }

    /// Returns the body to store: one JSON object `{"v", "shown"?, "record"}`. Sequence number and
    /// time are stored beside it.
    #[must_use]
    #[expect(clippy::expect_used, reason = "JSON is UTF-8")]
    pub fn body(&self) -> String {
        let mut body = Vec::new();
        self.write_body(&mut body);
        String::from_utf8(body).expect("JSON")
    }

    /// Appends the body to a buffer. It has no line breaks.
    #[expect(clippy::expect_used, reason = "plain data with text keys always has a JSON form")]
    pub fn write_body(&self, buffer: &mut Vec<u8>) {
        let written =
            StoredRecord { v: RECORD_VERSION, shown: self.displayed_bytes, record: &self.record };
        serde_json::to_writer(buffer, &written).expect("plain data");
    }

    /// Returns this entry with another record.
    #[must_use]
    pub fn with_record(&self, record: Record) -> Self {
        Self { record, ..*self }
    }

    /// Parses a stored entry from its sequence number, its time and its [body](Self::body).
    ///
    /// # Errors
    /// If the body is broken, has another version, or contains an unknown record or an unknown field of a record.
    pub fn from_body(
        session: &SessionId,
        seq: Seq,
        time: u64,
        body: &str,
    ) -> Result<Self, UnreadableRecord> {
        let reason = match serde_json::from_str(body) {
            Ok(StoredRecordOwned { v: RECORD_VERSION, shown, record }) => {
                return Ok(Self { seq, time, displayed_bytes: shown, record });
            }
            Ok(StoredRecordOwned { v, .. }) => version_problem(v),
            Err(error) => match serde_json::from_str(body) {
                Ok(Versioned { v }) if v != RECORD_VERSION => version_problem(v),
                Ok(Versioned { .. }) | Err(_) => format!("{error} in {}", excerpt(body, 80)),
            },
        };
        Err(UnreadableRecord { session: session.clone(), seq, reason })
    }
}

fn version_problem(v: u32) -> String {
    format!("it is of version {v}, and this program reads version {RECORD_VERSION}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::StopMode;

    fn read(body: &str) -> Result<JournalEntry, String> {
        let session = SessionId::parse("s1").unwrap();
        JournalEntry::from_body(&session, Seq(3), 7, body).map_err(|error| error.to_string())
    }

    #[test]
    fn a_stored_entry_is_read_back() {
        let record = Record::StopAsked { mode: StopMode::Now, authored_by: None };
        let entry = JournalEntry { seq: Seq(3), time: 7, displayed_bytes: 12, record };
        let body = r#"{"v":1,"shown":12,"record":{"type":"stop_asked","mode":"now"}}"#;
        assert_eq!(entry.body(), body);
        assert_eq!(read(body), Ok(entry));
    }

    #[test]
    fn unknown_versions_and_fields_are_rejected() {
        for (body, expect) in [
            (
                r#"{"v":2,"record":{"type":"new_fact"}}"#,
                "cannot read record 3 of session s1: it is of version 2, and this program reads version 1",
            ),
            (
                r#"{"v":1,"record":{"type":"stop_asked","mode":"now","x":1}}"#,
                "cannot read record 3 of session s1: unknown field `x`, expected `mode`",
            ),
            (
                r#"{"v":1,"record":{"type":"new_fact"}}"#,
                "cannot read record 3 of session s1: unknown variant `new_fact`",
            ),
            (r#"{"v":1,"rec"#, "cannot read record 3 of session s1: EOF while parsing"),
        ] {
            let error = read(body).expect_err(body);
            assert!(error.starts_with(expect), "{error}");
        }
    }
}
