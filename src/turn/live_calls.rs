//! Started calls: what their supervisor keeps of them, so that a resumed turn can attach to them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::types::{CallKey, ToolOutcome, VariableName, VariablesUse};

/// For each variable that a call of the turn wrote: the index of the last such call.
pub(super) type LastWriters = BTreeMap<VariableName, u32>;

/// The end of a call, as its supervisor reports it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolCompletion {
    /// The outcome.
    pub outcome: ToolOutcome,
    /// The reads and writes of session variables.
    pub used: VariablesUse,
}

/// What is decided at the start of a call and is in no record. Its supervisor keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallStartState {
    /// The last writer of each variable in its snapshot, as far as calls of this turn wrote it.
    pub(super) snapshot: LastWriters,
    /// True if it started before the response had ended.
    pub(super) early: bool,
    /// True if it runs again because of a conflict.
    pub(super) rerun: bool,
}

/// The calls of a turn that its tool supervisor has started, when the turn is resumed under the
/// same supervisor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LiveCalls {
    /// The calls that run, and the ended calls whose completions the turn may have missed.
    pub calls: BTreeMap<CallKey, LiveCall>,
    /// True if the supervisor has received every start of the turn. A call that is not in `calls` was
    /// then never started.
    pub is_complete: bool,
}

/// A call that was started before its turn was resumed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LiveCall {
    /// Its state at its start.
    pub state: CallStartState,
    /// The time since its start, or from its start to its end.
    pub elapsed: Duration,
    /// Its end. `None` while it runs.
    pub completion: Option<ToolCompletion>,
}
