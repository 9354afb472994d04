//! A record in its place, and how it is written down.

use serde::{Deserialize, Serialize};

use super::{Record, Seq};
use crate::types::{SessionId, excerpt};

/// The version of what is written. A reader refuses a later one.
pub const RECORD_VERSION: u32 = 1;

/// A record in its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct JournalEntry {
    /// Its place in the session's journal.
    pub seq: Seq,
    /// When it was appended: Unix time in milliseconds.
    pub time: u64,
    /// How many bytes of text and thinking watchers had been shown of the running attempt by
    /// then; 0 where none ran.
    #[serde(skip_serializing_if = "super::is_zero")]
    pub shown: u64,
    /// What happened.
    #[serde(flatten)]
    pub record: Record,
}

/// An entry's body, as it is stored beside its place and time.
#[derive(Serialize)]
struct StoredRecord<'a> {
    v: u32,
    #[serde(skip_serializing_if = "super::is_zero")]
    shown: u64,
    record: &'a Record,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    v: u32,
    #[serde(default)]
    shown: u64,
    record: Record,
}

/// What every version has.
#[derive(Deserialize)]
struct Versioned {
    v: u32,
}

/// A stored record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read record {} of session {session}: {why}", .seq.0)]
pub struct UnreadableRecord {
    /// The session.
    pub session: SessionId,
    /// The record's place.
    pub seq: Seq,
    /// What is wrong with it.
    pub why: String,
}

impl JournalEntry {
    /// The body to store: one JSON object `{"v", "shown"?, "record"}`. Place and time are stored
    /// beside it.
    #[must_use]
    #[expect(clippy::expect_used, reason = "plain data with text keys always has a JSON form")]
    pub fn body(&self) -> String {
        let written = StoredRecord { v: RECORD_VERSION, shown: self.shown, record: &self.record };
        serde_json::to_string(&written).expect("plain data")
    }

    /// Another record in the place of this one.
    #[must_use]
    pub fn beside(&self, record: Record) -> Self {
        Self { record, ..*self }
    }

    /// The entry that was stored with this body.
    ///
    /// # Errors
    /// When the body is broken, of a later version, or holds what this version does not know.
    pub fn read(
        session: &SessionId,
        seq: Seq,
        time: u64,
        body: &str,
    ) -> Result<Self, UnreadableRecord> {
        let why = match serde_json::from_str(body) {
            Ok(Read { v: RECORD_VERSION, shown, record }) => {
                return Ok(Self { seq, time, shown, record });
            }
            Ok(Read { v, .. }) => of_version(v),
            Err(error) => match serde_json::from_str(body) {
                Ok(Versioned { v }) if v != RECORD_VERSION => of_version(v),
                Ok(Versioned { .. }) | Err(_) => format!("{error} in {}", excerpt(body, 80)),
            },
        };
        Err(UnreadableRecord { session: session.clone(), seq, why })
    }
}

fn of_version(v: u32) -> String {
    format!("it is of version {v}, and this program reads version {RECORD_VERSION}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::StopMode;

    fn read(body: &str) -> Result<JournalEntry, String> {
        let session = SessionId::parse("s1").unwrap();
        JournalEntry::read(&session, Seq(3), 7, body).map_err(|error| error.to_string())
    }

    #[test]
    fn what_was_written_is_read() {
        let record = Record::StopAsked { mode: StopMode::Now };
        let entry = JournalEntry { seq: Seq(3), time: 7, shown: 12, record };
        let body = r#"{"v":1,"shown":12,"record":{"type":"stop_asked","mode":"now"}}"#;
        assert_eq!(entry.body(), body);
        assert_eq!(read(body), Ok(entry));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (body, expect) in [
            (
                r#"{"v":2,"record":{"type":"new_fact"}}"#,
                "read record 3 of session s1: it is of version 2, and this program reads version 1",
            ),
            (
                r#"{"v":1,"record":{"type":"stop_asked","mode":"now","x":1}}"#,
                "read record 3 of session s1: unknown field `x`, expected `mode`",
            ),
            (
                r#"{"v":1,"record":{"type":"new_fact"}}"#,
                "read record 3 of session s1: unknown variant `new_fact`",
            ),
            (r#"{"v":1,"rec"#, "read record 3 of session s1: EOF while parsing"),
        ] {
            let error = read(body).expect_err(body);
            assert!(error.starts_with(expect), "{error}");
        }
    }
}
