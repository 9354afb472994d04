//! What a call does with the variables of its session.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name of a variable.
pub type VariableName = Arc<str>;

/// What one call writes: all of it counts, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WriteSet(pub BTreeMap<VariableName, Arc<Value>>);

impl WriteSet {
    /// Whether nothing is written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What one call has read of its snapshot, and what it writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct VariablesUse {
    /// The names that were read, found or not.
    pub reads: BTreeSet<VariableName>,
    /// What is written.
    pub writes: WriteSet,
}

impl VariablesUse {
    /// Whether the call had nothing to do with variables.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
}

/// What a call has read, each name with the call of its turn whose write it saw: the place of
/// that call, or none where the value is older than the turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReadSet(pub BTreeMap<VariableName, Option<u32>>);
