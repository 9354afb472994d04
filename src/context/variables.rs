//! The variables of a session, and one call's view of them.
//!
//! A call reads a snapshot and writes to a set of its own; what it read and wrote is judged when
//! every earlier call of its turn has its outcome (`turn`'s `isolation`).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::types::{VariableName, VariablesUse, WriteSet};

/// How long a variable's name may be, in bytes.
pub const VARIABLE_NAME_BYTES_MAX: usize = 128;

/// The variables of a session: JSON values by name. Cloning shares them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Variables {
    values: Arc<BTreeMap<VariableName, Arc<Value>>>,
}

impl Variables {
    /// A variable's value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name).map(Arc::as_ref)
    }

    /// The names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    /// Makes a call's writes part of the variables. Snapshots stay as they are.
    pub fn apply(&mut self, writes: &WriteSet) {
        if !writes.is_empty() {
            let entries = writes.0.iter().map(|(name, value)| (name.clone(), Arc::clone(value)));
            Arc::make_mut(&mut self.values).extend(entries);
        }
    }

    /// How many bytes names and values as JSON would take with these writes.
    #[must_use]
    pub fn bytes_with(&self, writes: &WriteSet) -> usize {
        let kept = self.values.iter().filter(|(name, _)| !writes.0.contains_key(*name));
        kept.chain(&writes.0).map(|(name, value)| bytes_of(name, value)).sum()
    }
}

/// One call's view: a snapshot, what it read of that, and what it writes.
#[derive(Debug, Default)]
pub struct VariablesTransaction {
    snapshot: Variables,
    used: VariablesUse,
    written_bytes: usize,
    bytes_max: usize,
}

impl VariablesTransaction {
    /// A view of a snapshot. One call may write at most `bytes_max` bytes, names and JSON.
    #[must_use]
    pub fn new(snapshot: Variables, bytes_max: usize) -> Self {
        Self { snapshot, bytes_max, ..Self::default() }
    }

    /// What the call itself wrote, or else the snapshot's value.
    pub fn get(&mut self, name: &str) -> Option<Value> {
        if let Some(own) = self.used.writes.0.get(name) {
            return Some(own.as_ref().clone());
        }
        if !self.used.reads.contains(name) {
            self.used.reads.insert(name.into());
        }
        self.snapshot.get(name).cloned()
    }

    /// Writes a variable, for this call until it counts for all.
    ///
    /// # Errors
    /// When the name is empty or too long, or the call writes more than it may; then nothing has
    /// changed.
    pub fn set(&mut self, name: &str, value: Value) -> Result<(), VariableError> {
        if name.is_empty() || name.len() > VARIABLE_NAME_BYTES_MAX {
            return Err(VariableError::Name { bytes: name.len() });
        }
        let before = self.used.writes.0.get(name).map_or(0, |value| bytes_of(name, value));
        let bytes = self.written_bytes - before + bytes_of(name, &value);
        if bytes > self.bytes_max {
            return Err(VariableError::TooLarge { bytes, maximum: self.bytes_max });
        }
        self.written_bytes = bytes;
        self.used.writes.0.insert(name.into(), Arc::new(value));
        Ok(())
    }

    /// What was read and written, whereafter nothing more counts.
    pub fn take(&mut self) -> VariablesUse {
        self.bytes_max = 0;
        std::mem::take(&mut self.used)
    }
}

/// Why a variable was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VariableError {
    /// Its name is none.
    #[error("a variable's name has 1 to {VARIABLE_NAME_BYTES_MAX} bytes, not {bytes}")]
    Name {
        /// How many the name has.
        bytes: usize,
    },
    /// The call writes too much.
    #[error("write {bytes} bytes of variables, where {maximum} are allowed (max_variables_bytes)")]
    TooLarge {
        /// How much it would be, names and JSON.
        bytes: usize,
        /// How much it may be.
        maximum: usize,
    },
}

fn bytes_of(name: &str, value: &Value) -> usize {
    /// Counts what is written to it.
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
    // A value that could not be written as JSON would not fit.
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
    fn a_call_reads_what_it_wrote_and_only_what_it_read_elsewhere_is_a_read() {
        let mut variables = Variables::default();
        variables.apply(&writes(&[("x", json!(1))]));
        let mut view = VariablesTransaction::new(variables.clone(), 100);
        assert_eq!((view.get("x"), view.get("y")), (Some(json!(1)), None));
        view.set("z", json!([2])).unwrap();
        assert_eq!(view.get("z"), Some(json!([2])));
        let used = view.take();
        assert_eq!(used.reads, ["x".into(), "y".into()].into());
        assert_eq!(used.writes, writes(&[("z", json!([2]))]));
        // What a tool still does when its call is over is nobody's business.
        assert!(view.set("late", json!(1)).is_err());
        assert_eq!(view.take(), VariablesUse::default());
    }

    #[test]
    fn a_snapshot_stays_as_it_was() {
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
    fn a_call_writes_no_more_than_it_may() {
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
