//! What a run leaves for whoever asked for it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::event::{RunStats, StatsReport};
use crate::message::{Message, MessageList};
use crate::types::{
    Judgement, ResultNotes, RunEnd, RunError, RunId, ToolResult, ToolStatus, Usage, Verdict,
};

/// A run that is over.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunReport {
    /// Which run.
    pub run_id: RunId,
    /// Why it ended.
    pub run_end: RunEnd,
    /// The final answer, or what there is of it.
    pub text: String,
    /// What went wrong, if something did.
    pub error: Option<RunError>,
    /// Turns that were begun, the last request included.
    pub turns: u32,
    /// Every call, in call order.
    pub calls: Vec<CallReport>,
    /// Its sums.
    pub stats: StatsReport,
    /// The same as exactly as it is known: times in whole milliseconds where the run was read from
    /// the journal.
    #[serde(skip)]
    pub exact: RunStats,
    /// The session's messages; those of the run are shown.
    pub(super) messages: Messages,
}

impl RunReport {
    /// What the history held before the run.
    #[must_use]
    pub fn context_messages(&self) -> &[Arc<Message>] {
        self.messages.split().0
    }

    /// What the run added to the history, from the user's input on.
    #[must_use]
    pub fn run_messages(&self) -> &[Arc<Message>] {
        self.messages.split().1
    }

    /// The whole history as the run left it.
    #[must_use]
    pub fn all_messages(&self) -> &[Arc<Message>] {
        &self.messages.all
    }
}

/// A history, and where in it a run begins. The messages are shared with the session.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Messages {
    pub(super) all: MessageList,
    pub(super) first_of_run: usize,
}

impl Messages {
    fn split(&self) -> (&[Arc<Message>], &[Arc<Message>]) {
        self.all.split_at_checked(self.first_of_run).unwrap_or((&self.all, &[]))
    }
}

impl Serialize for Messages {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.split().1.serialize(serializer)
    }
}

/// One call of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallReport {
    /// Which run.
    pub run_id: RunId,
    /// The session's turn.
    pub turn: u32,
    /// The call's place in its response, from 0.
    pub call_index: u32,
    /// What clients know it by.
    pub tool_id: String,
    /// What the provider called it.
    pub provider_id: Option<String>,
    /// The tool's name.
    pub tool_name: String,
    /// The arguments as understood.
    pub arguments: Arc<Value>,
    /// What became of it.
    pub status: ToolStatus,
    /// What the tool answered, whole.
    pub result: String,
    /// What else there is to know.
    pub metadata: Value,
    /// What people have decided; a no counts more than a yes. None if nobody was asked, or the
    /// run was ended before they said anything.
    pub approval: Option<Verdict>,
    /// Whether it ran, and people did not let its result be seen.
    pub result_rejected: bool,
    /// What was said with a no.
    pub reject_reason: Option<String>,
    /// When it started, since the run began; none if it never did.
    pub started_ms: Option<u64>,
    /// From its seal to its start.
    pub wait_ms: u64,
    /// From its start to its outcome.
    pub duration_ms: u64,
    /// What its turn cost, all attempts together; the same for each call of a turn. None while
    /// the turn goes on.
    pub usage: Option<Usage>,
}

impl CallReport {
    pub(super) fn new(run_id: RunId, usage: Option<Usage>, result: ToolResult) -> Self {
        let metadata = result.metadata();
        let ToolResult { call, outcome, notes, started, wait, duration, writes: _ } = result;
        Self {
            run_id,
            turn: call.key.turn,
            call_index: call.key.index,
            tool_id: call.key.to_string(),
            provider_id: call.provider_id.as_deref().map(str::to_owned),
            tool_name: call.name.to_string(),
            arguments: call.arguments,
            status: outcome.status,
            result: outcome.content.to_string(),
            metadata,
            approval: approval(&notes),
            result_rejected: notes.after.as_ref().is_some_and(is_no),
            reject_reason: notes.rejection().and_then(reason),
            started_ms: started.map(millis),
            wait_ms: millis(wait),
            duration_ms: millis(duration),
            usage,
        }
    }
}

fn is_no(judgement: &Judgement) -> bool {
    judgement.verdict != Verdict::Approved
}

fn approval(notes: &ResultNotes) -> Option<Verdict> {
    let said = notes.rejection().or(notes.after.as_ref()).or(notes.before.as_ref());
    said.map(|judgement| judgement.verdict)
}

fn reason(no: &Judgement) -> Option<String> {
    match no.verdict {
        Verdict::Approved | Verdict::Rejected => no.message.clone(),
        Verdict::Expired => Some("nobody has said anything in time".to_owned()),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
