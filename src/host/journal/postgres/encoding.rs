//! The stored form of a record: the body of its entry, compressed if it is large.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use callsheet_values::record::JournalEntry;

/// The length from which a body is compressed. The server does not compress it: it may lack the fast methods.
const COMPRESSED_FROM_BYTES: usize = 1 << 20;

/// The first byte of a compressed body, which is LZ4 with the length before it. Others begin with `{`.
const LZ4: u8 = 4;

/// LZ4 makes a text at most this many times shorter.
const LZ4_RATIO_MAX: usize = 255;

/// The memory that is allocated for the records of a batch before their length is known.
const BATCH_BYTES: usize = 1_024;

/// Consecutive records of a session in stored form.
#[derive(Debug, Default)]
pub(super) struct StoredRecords {
    rows: Vec<RecordRow>,
    bodies: Vec<u8>,
}

#[derive(Debug)]
struct RecordRow {
    seq: i64,
    time: i64,
    body: Range<usize>,
}

impl StoredRecords {
    pub(super) fn of(entries: &[Arc<JournalEntry>]) -> Self {
        let bodies = Vec::with_capacity(if entries.is_empty() { 0 } else { BATCH_BYTES });
        let mut records = Self { rows: Vec::with_capacity(entries.len()), bodies };
        for entry in entries {
            let begin = records.bodies.len();
            entry.write_body(&mut records.bodies);
            compress_from(&mut records.bodies, begin);
            let body = begin..records.bodies.len();
            let (seq, time) = (signed(entry.seq.0), signed(entry.time));
            records.rows.push(RecordRow { seq, time, body });
        }
        records
    }

    /// Iterates over the records: sequence number, time and body.
    pub(super) fn iter(&self) -> impl Iterator<Item = (i64, i64, &[u8])> {
        let body = |range: &Range<usize>| self.bodies.get(range.clone()).unwrap_or_default();
        self.rows.iter().map(move |row| (row.seq, row.time, body(&row.body)))
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bodies.len()
    }
}

/// Returns a number as PostgreSQL stores it. A larger one is not stored exactly, and there is none.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns a stored number, which is not negative.
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Compresses the body that begins here, if it is large and becomes smaller.
fn compress_from(bodies: &mut Vec<u8>, begin: usize) {
    let Some(body) = bodies.get(begin..).filter(|body| body.len() > COMPRESSED_FROM_BYTES) else {
        return;
    };
    let compressed = lz4_flex::compress_prepend_size(body);
    if compressed.len() < body.len() {
        bodies.truncate(begin);
        bodies.push(LZ4);
        bodies.extend(compressed);
    }
}

/// Returns the body of an entry from its stored form.
///
/// # Errors
/// If it is damaged.
pub(super) fn body(stored: &[u8]) -> Result<Cow<'_, str>, String> {
    let damaged = |error: &dyn std::fmt::Display| format!("its body is damaged: {error}");
    match stored.split_first() {
        Some((&LZ4, compressed)) => {
            let size = lz4_flex::block::uncompressed_size(compressed);
            let (length, _) = size.map_err(|error| damaged(&error))?;
            if length / LZ4_RATIO_MAX > compressed.len() {
                return Err(damaged(&"its length is wrong"));
            }
            let body = lz4_flex::decompress_size_prepended(compressed);
            let body = body.map_err(|error| damaged(&error))?;
            String::from_utf8(body).map(Cow::Owned).map_err(|error| damaged(&error))
        }
        Some(_) | None => {
            std::str::from_utf8(stored).map(Cow::Borrowed).map_err(|error| damaged(&error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_values::record::{Record, Seq};

    fn entry(seq: u64, agent: String) -> Arc<JournalEntry> {
        let record = Record::SessionOpened {
            agent,
            messages: Vec::new(),
            metadata: callsheet_values::types::Metadata::default(),
            parent: None,
            client_tools: None,
        };
        Arc::new(JournalEntry { seq: Seq(seq), time: 7, displayed_bytes: 3, record })
    }

    #[test]
    fn bodies_are_read_back_and_large_ones_are_compressed() {
        let entries =
            [entry(1, "a".to_owned()), entry(2, "b".repeat(2 << 20)), entry(3, "c".to_owned())];
        let stored = StoredRecords::of(&entries);
        assert!(stored.bytes() < 1 << 20, "{}", stored.bytes());
        for ((seq, time, stored), entry) in stored.iter().zip(&entries) {
            assert_eq!((seq, time), (signed(entry.seq.0), 7));
            assert_eq!(body(stored).unwrap(), entry.body());
        }
    }

    #[test]
    fn a_damaged_body_is_an_error() {
        for damaged in [&[LZ4, 1][..], &[LZ4, 255, 255, 255, 255, 0], &[b'{', 0xff]] {
            assert!(body(damaged).unwrap_err().starts_with("its body is damaged"));
        }
    }
}
