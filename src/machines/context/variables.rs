//! The variables of a session, and a call's transaction on them. A name has 1 to 128 bytes; names and values together
//! have at most `max_variables_bytes` (256 KiB by default).
//!
//! A call reads a snapshot and collects its writes. When every earlier call of its turn has its outcome, its
//! reads are checked for conflicts with the writes of those calls. Then its own writes are applied or dropped,
//! or the call runs again (`turn`'s `isolation`).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use callsheet_values::types::{VariableName, VariablesUse, WriteSet};

/// Maximum length of a variable's name, in bytes.
pub const VARIABLE_NAME_BYTES_MAX: usize = 128;

/// The variables of a session: JSON values by name. Cloning shares them.
///
/// `SessionSnapshot` has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Variables {
    values: Arc<BTreeMap<VariableName, Arc<Value>>>,
}

impl Variables {
    /// Returns the value of a variable.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name).map(Arc::as_ref)
    }

    /// Returns names and values in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    /// Applies a call's writes. Existing snapshots do not change.
    pub fn apply(&mut self, writes: &WriteSet) {
        if !writes.is_empty() {
            let entries = writes.0.iter().map(|(name, value)| (name.clone(), Arc::clone(value)));
            Arc::make_mut(&mut self.values).extend(entries);
        }
    }

    /// Returns the size of names and values as JSON after these writes.
    #[must_use]
    pub fn bytes_with(&self, writes: &WriteSet) -> usize {
        let kept = self.values.iter().filter(|(name, _)| !writes.0.contains_key(*name));
        kept.chain(&writes.0).map(|(name, value)| stored_bytes(name, value)).sum()
    }
}

/// A call's transaction: a snapshot, the names that the call read from it, and the call's writes.
#[derive(Debug, Default)]
pub struct VariablesTransaction {
    snapshot: Variables,
    used: VariablesUse,
    written_bytes: usize,
    bytes_max: usize,
}

impl VariablesTransaction {
    /// Creates a transaction on a snapshot. It may write at most `bytes_max` bytes of names and
    /// JSON.
    #[must_use]
    pub fn new(snapshot: Variables, bytes_max: usize) -> Self {
        Self { snapshot, bytes_max, ..Self::default() }
    }

    /// Returns the value that the call wrote, or else the snapshot's value.
    pub fn get(&mut self, name: &str) -> Option<Value> {
        if let Some(written) = self.used.writes.0.get(name) {
            return Some(written.as_ref().clone());
        }
        if !self.used.reads.contains(name) {
            self.used.reads.insert(name.into());
        }
        self.snapshot.get(name).cloned()
    }

    /// Writes a variable. Only this call sees it until it is committed.
    ///
    /// # Errors
    /// If the name is empty or too long, or the writes exceed the limit. Then nothing changes.
    pub fn set(&mut self, name: &str, value: Value) -> Result<(), VariableError> {
        if name.is_empty() || name.len() > VARIABLE_NAME_BYTES_MAX {
            return Err(VariableError::Name { bytes: name.len() });
        }
        let before = self.used.writes.0.get(name).map_or(0, |value| stored_bytes(name, value));
        let bytes = self.written_bytes - before + stored_bytes(name, &value);
        if bytes > self.bytes_max {
            return Err(VariableError::TooLarge { bytes, maximum: self.bytes_max });
        }
        self.written_bytes = bytes;
        self.used.writes.0.insert(name.into(), Arc::new(value));
        Ok(())
    }

    /// Discards what the call has written and read, because it begins again with the same values.
    pub fn begin_again(&mut self) {
        (self.used, self.written_bytes) = (VariablesUse::default(), 0);
    }

    /// Ends the transaction and returns its reads and writes. Later writes fail.
    pub fn take(&mut self) -> VariablesUse {
        self.bytes_max = 0;
        std::mem::take(&mut self.used)
    }
}

/// An error of writing a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// The name is invalid.
    #[error("a variable's name has 1 to {VARIABLE_NAME_BYTES_MAX} bytes, not {bytes}")]
    Name {
        /// The length of the name.
        bytes: usize,
    },
    /// The writes exceed the limit.
    #[error("write {bytes} bytes of variables, where {maximum} are allowed (max_variables_bytes)")]
    TooLarge {
        /// The size of the writes, names and JSON.
        bytes: usize,
        /// The limit.
        maximum: usize,
    },
}

fn stored_bytes(name: &str, value: &Value) -> usize {
    /// Counts the bytes that are written.
    struct ByteCounter(usize);

    impl io::Write for ByteCounter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut counter = ByteCounter(name.len());
    // A value that cannot be serialised counts as too large.
    serde_json::to_writer(&mut counter, value).map_or(usize::MAX / 2, |()| counter.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn writes(entries: &[(&str, Value)]) -> WriteSet {
        WriteSet(entries.iter().map(|(n, v)| ((*n).into(), Arc::new(v.clone()))).collect())
    }

    #[test]
    fn a_call_reads_its_own_writes_and_only_reads_of_the_snapshot_count() {
        let mut variables = Variables::default();
        variables.apply(&writes(&[("x", json!(1))]));
        let mut view = VariablesTransaction::new(variables.clone(), 100);
        assert_eq!((view.get("x"), view.get("y")), (Some(json!(1)), None));
        view.set("z", json!([2])).unwrap();
        assert_eq!(view.get("z"), Some(json!([2])));
        let used = view.take();
        assert_eq!(used.reads, ["x".into(), "y".into()].into());
        assert_eq!(used.writes, writes(&[("z", json!([2]))]));
        // Later writes of a tool whose call has ended fail.
        assert!(view.set("late", json!(1)).is_err());
        assert_eq!(view.take(), VariablesUse::default());
    }

    #[test]
    fn a_call_that_begins_again_has_neither_read_nor_written() {
        let mut view = VariablesTransaction::new(Variables::default(), 10);
        view.get("x");
        view.set("y", json!("1234567")).unwrap();
        view.begin_again();
        assert_eq!(view.get("y"), None);
        view.set("z", json!("1234567")).unwrap();
        let used = view.take();
        assert_eq!(used.reads, ["y".into()].into());
        assert_eq!(used.writes, writes(&[("z", json!("1234567"))]));
    }

    #[test]
    fn a_snapshot_does_not_change() {
        let mut variables = Variables::default();
        let snapshot = variables.clone();
        variables.apply(&writes(&[("x", json!(1))]));
        assert_eq!((snapshot.get("x"), variables.get("x")), (None, Some(&json!(1))));
    }

    #[test]
    fn sizes_are_those_of_names_and_json() {
        let mut variables = Variables::default();
        variables.apply(&writes(&[("ab", json!("cd")), ("x", json!(null))]));
        assert_eq!(variables.bytes_with(&WriteSet::default()), 2 + 4 + 1 + 4);
        assert_eq!(variables.bytes_with(&writes(&[("ab", json!(7))])), 2 + 1 + 1 + 4);
    }

    #[test]
    fn a_call_cannot_exceed_its_write_limit() {
        let mut view = VariablesTransaction::new(Variables::default(), 10);
        assert_eq!(view.set("x", json!("1234567")), Ok(()));
        let too_large = VariableError::TooLarge { bytes: 12, maximum: 10 };
        assert_eq!(view.set("y", json!(1)), Err(too_large));
        assert_eq!(view.set("x", json!(1)), Ok(()));
        assert_eq!(view.set("y", json!(1)), Ok(()));
        assert_eq!(view.set("", json!(1)), Err(VariableError::Name { bytes: 0 }));
        let long = "n".repeat(VARIABLE_NAME_BYTES_MAX + 1);
        assert_eq!(view.set(&long, json!(1)), Err(VariableError::Name { bytes: 129 }));
        assert_eq!(view.take().writes, writes(&[("x", json!(1)), ("y", json!(1))]));
    }
}
