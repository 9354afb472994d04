//! The state of started calls that the tool supervisor keeps, so that a resumed turn can attach to
//! the calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use callsheet_values::types::{CallKey, Question, ToolOutcome, VariableName, VariablesUse};
use serde_json::Value;

/// For each variable that a call of the turn wrote: the index of the last such call.
pub(super) type LastWriters = BTreeMap<VariableName, u32>;

/// The end of a call, as its supervisor reports it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolCompletion {
    /// The outcome.
    pub outcome: ToolOutcome,
    /// The reads and writes of session variables.
    pub variables: VariablesUse,
}

/// The state of a call that is decided at its start and is in no record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallStartState {
    /// The last writers of those variables in its snapshot that calls of this turn wrote.
    pub(super) snapshot: LastWriters,
    /// True if it started before the response had ended.
    pub(super) is_early: bool,
    /// True if it runs again because of a conflict.
    pub(super) is_rerun: bool,
    /// The number of questions that the call had asked before.
    pub(super) questions: u32,
    /// Its arguments, if they are not those of the model: with values of references, or changed by hooks.
    pub(super) arguments: Option<Arc<Value>>,
}

impl CallStartState {
    /// Returns the number of questions that the call had asked before this start.
    #[must_use]
    pub fn questions(&self) -> u32 {
        self.questions
    }
}

/// The calls of a turn that its tool supervisor has started, when the turn is resumed under the
/// same supervisor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StartedCalls {
    /// The calls that run, and the ended calls whose completions the turn may have missed.
    pub calls: BTreeMap<CallKey, StartedCall>,
    /// True if the supervisor has received every start of the turn. A call that is not in `calls` was
    /// then never started.
    pub is_complete: bool,
}

/// A call that was started before its turn was resumed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StartedCall {
    /// Its state at its start.
    pub state: CallStartState,
    /// The time since its start, or from its start to its end, without the time of its waits for people.
    pub elapsed: Duration,
    /// Its wait for people.
    pub wait: Option<StartedWait>,
    /// Its end. `None` while it runs.
    pub completion: Option<ToolCompletion>,
}

/// The wait for people of a call that was started before its turn was resumed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StartedWait {
    /// Its tool waits for the answer to this question.
    Question(StartedQuestion),
    /// Its child waits only for people.
    Child,
}

/// The question of a call that was started before its turn was resumed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StartedQuestion {
    /// Its number in its call, from 1.
    pub number: u32,
    /// The question.
    pub question: Arc<Question>,
}
