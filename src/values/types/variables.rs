//! Reads and writes of session variables by tool calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name of a variable.
pub type VariableName = Arc<str>;

/// The writes of one call. They take effect together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WriteSet(pub BTreeMap<VariableName, Arc<Value>>);

impl WriteSet {
    /// Returns whether there are no writes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The reads and writes of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct VariablesUse {
    /// The names that the call read from its snapshot, whether or not they existed.
    pub reads: BTreeSet<VariableName>,
    /// The writes.
    pub writes: WriteSet,
}

impl VariablesUse {
    /// Returns whether the call used no variables.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
}

/// The reads of a call. Each name maps to the index of the call in the same turn whose write was
/// visible, or to `None` if the value is older than the turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReadSet(pub BTreeMap<VariableName, Option<u32>>);
