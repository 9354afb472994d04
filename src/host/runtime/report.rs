//! Reports: of a run and its calls, of the parts of a context, and of a compaction on request.

use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::error::HostError;
use callsheet_values::event::{RunStats, StatsReport};
use callsheet_values::message::{Message, MessageList};
use callsheet_values::types::{
    ApprovalVerdict, ChildUse, FinishKind, RefusalDetails, ResultNotes, ResultPart, RunEnd,
    RunError, RunId, ToolResult, ToolStatus, Usage, VerdictWithMessage, millis,
};

/// The parts of a context and their sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ContextReport {
    /// The window in tokens, if it is known.
    pub window: Option<u64>,
    /// The source of the window: `config` or `learnt`. `None` if the window is unknown.
    pub source: Option<&'static str>,
    /// The tokens of the next request, by the service's counts and an estimate.
    pub used: u64,
    /// The parts of the next request.
    pub parts: Vec<ContextPartReport>,
}

/// One part of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ContextPartReport {
    /// `tools`, `system`, `user`, `assistant`, `results` or `summary`.
    pub part: &'static str,
    /// Its tokens, by estimate.
    pub tokens: u64,
    /// Its bytes, about.
    pub bytes: u64,
}

/// The result of a request to make a context smaller, or to leave a message out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CompactionReport {
    /// `summarised`, `excluded` or `included`.
    pub kind: &'static str,
    /// The tokens of the next request before, by estimate.
    pub tokens_before: u64,
    /// The tokens of the next request now, by estimate.
    pub tokens_after: u64,
}

/// A run that is over.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use callsheet::prelude::*;
///
/// let host = Host::builder().start().await?;
/// let session = host.open_session("demo").await?;
/// let report = session.run("Say hello.").await?;
/// println!("{} in {} turns, {} tokens", report.text()?, report.turns, report.stats.output_tokens);
/// for call in &report.calls {
///     println!("{} {} -> {}", call.tool_name, call.arguments, call.result);
/// }
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RunReport {
    /// The run's id.
    pub run_id: RunId,
    /// The reason of its end.
    pub run_end: RunEnd,
    /// The final answer, or the part of it that exists.
    pub text: String,
    /// The typed answer, if the run has an output schema.
    pub output: Option<Arc<Value>>,
    /// The reason why the last response ended.
    pub finish_reason: Option<FinishKind>,
    /// True if the last response was cut off: at its maximum length, or at the end of the model's window.
    pub truncated: bool,
    /// Set if the model or its service refused to answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Arc<RefusalDetails>>,
    /// The error, if there is one.
    pub error: Option<RunError>,
    /// The time of the run's start: Unix time in milliseconds.
    pub started_at: u64,
    /// The time of the run's end: Unix time in milliseconds.
    pub ended_at: u64,
    /// The number of turns.
    pub turns: u32,
    /// Every call of the run's committed turns, in call order.
    pub calls: Vec<CallReport>,
    /// The statistics.
    pub stats: StatsReport,
    /// The statistics with full precision. Times are whole milliseconds if the run was read from the
    /// journal.
    #[serde(skip)]
    pub exact: RunStats,
    /// The session's messages; only those of the run are serialized.
    pub(super) messages: Messages,
}

/// A run with a typed answer.
///
/// Returned by [`SessionHandle::run_typed`](crate::runtime::SessionHandle::run_typed).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TypedRun<T> {
    /// The answer.
    pub output: T,
    /// The report of the run.
    pub report: RunReport,
}

/// The reason why a run has no typed answer.
///
/// Returned by [`SessionHandle::run_typed`](crate::runtime::SessionHandle::run_typed).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypedRunError {
    /// The run was refused.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The run ended without an answer. Its error has the code `OUTPUT_INVALID` if no answer matched the
    /// schema.
    #[error(transparent)]
    Failed(#[from] RunFailed),
    /// The answer matches the schema of the type, but not the type.
    #[error("decode the answer: {0}")]
    Decode(String),
}

/// A run that ended without an answer.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// let report = host.open_session("demo").await?.run("Hello?").await?;
/// let failed = report.text().unwrap_err();
/// assert_eq!(failed.run_end, RunEnd::Failed);
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run ended as {}{}", .run_end.as_str(), reason_text(.error.as_ref()))]
#[non_exhaustive]
pub struct RunFailed {
    /// The reason of its end.
    pub run_end: RunEnd,
    /// The error, if there is one.
    pub error: Option<RunError>,
}

fn reason_text(error: Option<&RunError>) -> String {
    error.map(|error| format!(": {}", error.message)).unwrap_or_default()
}

impl RunReport {
    /// Returns the answer.
    ///
    /// # Errors
    /// If the run ended for another reason than an answer: [`RunReport::text`](field@Self::text) has the part that
    /// exists. If there is no text beside a typed answer: the code of the error is then `no_text`.
    pub fn text(&self) -> Result<&str, RunFailed> {
        self.check_answered()?;
        if self.text.trim().is_empty() {
            let code = "no_text".to_owned();
            let message = "the answer has no text; RunReport::output has a typed answer".to_owned();
            let error = Some(RunError { code, message, transient: false });
            return Err(RunFailed { run_end: self.run_end, error });
        }
        Ok(&self.text)
    }

    pub(super) fn check_answered(&self) -> Result<(), RunFailed> {
        if self.run_end == RunEnd::Answered {
            return Ok(());
        }
        Err(RunFailed { run_end: self.run_end, error: self.error.clone() })
    }

    /// Returns the history before the run.
    #[must_use]
    pub fn context_messages(&self) -> &[Arc<Message>] {
        self.messages.split().0
    }

    /// Returns the messages of the run, from the user's input on.
    #[must_use]
    pub fn run_messages(&self) -> &[Arc<Message>] {
        self.messages.split().1
    }

    /// Returns the whole history at the run's end.
    #[must_use]
    pub fn all_messages(&self) -> &[Arc<Message>] {
        &self.messages.all
    }
}

/// A history and the position where a run starts in it. The session shares the messages.
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
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::call("pay", serde_json::json!({})), ModelReply::text("Done.")]);
/// # let host = Host::builder().model_source("fake", model).tool(ToolSpec::named("pay", "Pays.").into_tool(async |(): (), _| Ok("paid"))).start().await?;
/// let report = host.open_session("demo").await?.run("Pay.").await?;
/// let call = &report.calls[0];
/// assert_eq!((&*call.tool_name, call.status.as_str(), &*call.result), ("pay", "success", "paid"));
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallReport {
    /// The run's id.
    pub run_id: RunId,
    /// The number of the turn in the session.
    pub turn: u32,
    /// The call index in the response, from 0.
    pub call_index: u32,
    /// The id for clients.
    pub tool_id: String,
    /// The provider's id.
    pub provider_id: Option<String>,
    /// The tool's name.
    pub tool_name: String,
    /// The arguments as parsed.
    pub arguments: Arc<Value>,
    /// The status of the outcome.
    pub status: ToolStatus,
    /// The whole result of the tool as a text.
    pub result: String,
    /// The parts of the result, if it is more than a text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<ResultPart>,
    /// Further notes about the call.
    pub metadata: Value,
    /// The decision about the call; a rejection takes precedence. `None` if no approval was needed, or the
    /// run ended before a decision.
    pub approval: Option<ApprovalVerdict>,
    /// True if the call ran and its result was rejected.
    pub result_rejected: bool,
    /// The reason of a rejection.
    pub reject_reason: Option<String>,
    /// The time of the start since the run's start; `None` if the call never started.
    pub started_ms: Option<u64>,
    /// The time from the seal to the start.
    pub wait_ms: u64,
    /// The time from the start to the outcome.
    pub duration_ms: u64,
    /// The usage of the call's turn, all attempts together; equal for all calls of a turn. `None` while
    /// the turn runs.
    pub usage: Option<Usage>,
    /// The child of the call, if its tool is an agent.
    #[serde(skip)]
    pub child: Option<Arc<ChildUse>>,
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
            tool_name: (*call.name).to_owned(),
            arguments: call.arguments,
            status: outcome.status,
            content: outcome.parts().unwrap_or_default().to_vec(),
            result: (*outcome.content).to_owned(),
            metadata,
            approval: approval(&notes),
            result_rejected: notes.after.as_ref().is_some_and(is_rejection),
            reject_reason: notes.rejection().and_then(reason),
            started_ms: started.map(millis),
            wait_ms: millis(wait),
            duration_ms: millis(duration),
            usage,
            // A copy of an outcome is no second child.
            child: outcome.child.filter(|_| notes.duplicate_of.is_none()),
        }
    }
}

impl CallReport {
    /// Returns the child of the call, if its tool is an agent.
    pub(super) fn child(&self) -> Option<&ChildUse> {
        self.child.as_deref()
    }
}

fn is_rejection(given: &VerdictWithMessage) -> bool {
    given.verdict != ApprovalVerdict::Approved
}

fn approval(notes: &ResultNotes) -> Option<ApprovalVerdict> {
    let given = notes.rejection().or(notes.after.as_ref()).or(notes.before.as_ref());
    given.map(|given| given.verdict)
}

fn reason(given: &VerdictWithMessage) -> Option<String> {
    match given.verdict {
        ApprovalVerdict::Approved | ApprovalVerdict::Rejected | ApprovalVerdict::Withdrawn => {
            given.message.clone()
        }
        ApprovalVerdict::Expired => Some("no decision arrived in time".to_owned()),
    }
}
