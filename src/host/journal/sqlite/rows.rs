//! The rows of the table `records`. A row has consecutive records of a session, one on each line of its body:
//!
//! ```text
//! -12 {"v":1,"record":{"type":"run_started",...}}
//! {"v":1,"record":{"type":"attempt_started",...}}
//! ```
//!
//! The row has the sequence number of its last record, and a time: that of the last record when the row was stored.
//! A line begins with `-` and the number of milliseconds by which its record is earlier than that time, unless it is 0.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use callsheet_values::record::JournalEntry;

/// The length from which a row takes no more records, so that a few records can be read and deleted without
/// many others.
const ROW_BYTES: usize = 32 << 10;

/// The memory that is allocated for the records of a batch before their length is known. Most need no more.
const BATCH_BYTES: usize = 1_024;

/// Consecutive records in stored form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredRow {
    /// The sequence number of the last record.
    pub(super) last_seq: u64,
    /// The time of the last record in milliseconds since 1970.
    pub(super) time: u64,
    /// A line for each record.
    pub(super) bodies: String,
}

/// Converts entries to rows, each with consecutive entries of one time.
#[expect(clippy::expect_used, reason = "JSON is UTF-8")]
pub(super) fn encode(entries: &[Arc<JournalEntry>]) -> Vec<StoredRow> {
    let mut rows = Vec::new();
    let mut entries = entries.iter().peekable();
    while let Some(first) = entries.next() {
        let (mut last, mut bodies) = (first, Vec::with_capacity(BATCH_BYTES));
        first.write_body(&mut bodies);
        while bodies.len() < ROW_BYTES
            && let Some(entry) = entries.next_if(|entry| entry.time == first.time)
        {
            bodies.push(b'\n');
            entry.write_body(&mut bodies);
            last = entry;
        }
        let bodies = String::from_utf8(bodies).expect("JSON");
        rows.push(StoredRow { last_seq: last.seq.0, time: first.time, bodies });
    }
    rows
}

/// Combines the rows of [`encode`], consecutive ones of one session, to fewer rows of at most about 32 KiB, unless a
/// single one is longer.
pub(super) fn combine<'a>(rows: &[&'a StoredRow]) -> Vec<Cow<'a, StoredRow>> {
    let mut combined = Vec::new();
    let mut rest = rows;
    while let [first, others @ ..] = rest {
        let (mut bytes, mut time, mut count) = (first.bodies.len(), first.time, 1);
        for row in others {
            // Differences are not negative, even if the clock was set back.
            if bytes + row.bodies.len() > ROW_BYTES || row.time < time {
                break;
            }
            (bytes, time, count) = (bytes + row.bodies.len(), row.time, count + 1);
        }
        let (group, later) = rest.split_at(count);
        combined.push(if count == 1 { Cow::Borrowed(*first) } else { Cow::Owned(join(group)) });
        rest = later;
    }
    combined
}

/// Joins rows to one.
fn join(rows: &[&StoredRow]) -> StoredRow {
    let (last_seq, time) = rows.last().map_or((0, 0), |last| (last.last_seq, last.time));
    let bytes: usize = rows.iter().map(|row| row.bodies.len() + 16).sum();
    let mut bodies = String::with_capacity(bytes);
    for row in rows {
        for body in row.bodies.split('\n') {
            if !bodies.is_empty() {
                bodies.push('\n');
            }
            if row.time < time {
                // Writing to a string cannot fail.
                let _ = write!(bodies, "-{} ", time - row.time);
            }
            bodies.push_str(body);
        }
    }
    StoredRow { last_seq, time, bodies }
}

/// Returns the sequence number of the first record of a row.
pub(super) fn first_of_row(last: u64, bodies: &[u8]) -> u64 {
    last.saturating_sub(memchr::memchr_iter(b'\n', bodies).count() as u64)
}

/// Returns the time and the body of the record on a line of a row. A damaged line is returned as it is, and is not
/// readable as a record.
pub(super) fn parse_line(row_time: u64, line: &str) -> (u64, &str) {
    let parse = || {
        let (difference, body) = line.strip_prefix('-')?.split_once(' ')?;
        Some((row_time.checked_sub(difference.parse().ok()?)?, body))
    };
    parse().unwrap_or((row_time, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(last_seq: u64, time: u64, bodies: &str) -> StoredRow {
        StoredRow { last_seq, time, bodies: bodies.to_owned() }
    }

    #[test]
    fn rows_are_combined_and_each_line_keeps_its_time() {
        let rows = [row(2, 1_000, "{1}\n{2}"), row(3, 1_012, "{3}"), row(4, 1_012, "{4}")];
        let combined = combine(&rows.each_ref());
        let expected = row(4, 1_012, "-12 {1}\n-12 {2}\n{3}\n{4}");
        assert_eq!(combined, [Cow::<StoredRow>::Owned(expected)]);
        let bodies = &combined[0].bodies;
        assert_eq!(first_of_row(4, bodies.as_bytes()), 1);
        let lines: Vec<_> = bodies.split('\n').map(|line| parse_line(1_012, line)).collect();
        assert_eq!(lines, [(1_000, "{1}"), (1_000, "{2}"), (1_012, "{3}"), (1_012, "{4}")]);
    }

    #[test]
    fn large_rows_and_earlier_times_begin_new_rows() {
        let large = "x".repeat(ROW_BYTES);
        let rows = [row(1, 5, "{1}"), row(2, 4, "{2}"), row(3, 4, &large), row(4, 4, "{4}")];
        let combined = combine(&rows.each_ref());
        assert_eq!(combined.len(), 4);
        assert!(combined.iter().all(|row| matches!(row, Cow::Borrowed(_))));
    }

    #[test]
    fn a_damaged_line_is_returned_whole() {
        for line in ["-12{1}", "-1x {1}", "-13 {1}", "- {1}", "--1 {1}"] {
            assert_eq!(parse_line(12, line), (12, line));
        }
    }
}
