//! The public snapshot of a session.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::report::CallReport;
use crate::journal::is_zero;
use callsheet_machines::context::Variables;
use callsheet_values::event::{ApprovalRequest, WaitingFor};
use callsheet_values::message::Message;
use callsheet_values::record::Seq;
use callsheet_values::types::{
    Content, Metadata, Question, RunId, SessionId, SessionState, Usage, WaitPhase,
};

/// A snapshot of a session.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// let session = host.open_session("demo").await?;
/// session.run("Hello?").await?;
/// let snapshot = session.snapshot().await?;
/// assert_eq!(snapshot.history.len(), 2);
/// assert!(snapshot.current_run.is_none() && snapshot.queued.is_empty());
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionSnapshot {
    /// The session's id.
    pub id: SessionId,
    /// The name of the session's agent.
    pub agent: String,
    /// The client's pairs of strings.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// The session's state.
    pub state: SessionState,
    /// The position of the last record.
    pub seq: Seq,
    /// The history. The current turn is not in it yet; unanswered calls that the session was opened
    /// with are.
    pub history: Vec<Arc<Message>>,
    /// The variables by name.
    pub variables: Variables,
    /// The run in progress.
    pub current_run: Option<CurrentRun>,
    /// Number of approvals and questions that wait for a person, with those of the session's sub-agents.
    #[serde(skip_serializing_if = "is_zero")]
    pub approvals_open: usize,
    /// The inputs that wait for the run to end, in order.
    pub queued: Vec<QueuedInput>,
    /// The usage of all committed turns and of summaries.
    pub usage: Usage,
}

impl SessionSnapshot {
    /// Returns the value of a variable.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&Value> {
        self.variables.get(name)
    }

    /// Returns the names and values of the variables, in the order of names.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.variables.iter()
    }
}

/// A run in progress.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// # let long = std::time::Duration::from_secs(60);
/// # let model = FakeModel::replies([ModelReply::text("Wait.")]).with_pauses(long);
/// # let host = Host::builder().model_source("slow", model).start().await?;
/// let session = host.open_session("demo").await?;
/// let started = session.start_run("Hello?").await?;
/// let current = session.snapshot().await?.current_run.ok_or("no run")?;
/// assert_eq!((current.run_id, current.turn), (started.run_id, 1));
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CurrentRun {
    /// The run's id.
    pub run_id: RunId,
    /// The position of the run's first record.
    #[serde(skip)]
    pub seq: Seq,
    /// The index of the run's first message in the history.
    #[serde(skip)]
    pub first_message: usize,
    /// The client's pairs of strings.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// The number of the current turn.
    pub turn: u32,
    /// The reason why the run waits before its first turn: servers of tools are not connected yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    /// True if the end of its host interrupted the run and it waits to be resumed or stopped.
    pub suspended: bool,
    /// True if it is set aside, because the host ended each time it went on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub quarantined: bool,
    /// The pending approvals, in call order.
    pub approvals: Vec<PendingApproval>,
    /// The calls that the client has to run, in call order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub client_calls: Vec<PendingClientCall>,
    /// The durable results of the current turn up to the first call that has none. These are kept even if
    /// the turn fails.
    pub results: Vec<CallReport>,
}

/// A call that waits for a decision, or for the answer to a question of its tool.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::call("pay", serde_json::json!({})), ModelReply::text("Done.")]);
/// # let host = Host::builder().model_source("fake", model).tool(ToolSpec::named("pay", "Pays.").approval(ApprovalPolicy::BEFORE).into_tool(async |(): (), _| Ok("paid"))).start().await?;
/// let session = host.open_session("demo").await?;
/// let mut run = session.start_run("Pay.").await?;
/// while !matches!(run.next_event().await?, Some(RunEvent::ApprovalRequested(_))) {}
/// // Another part of the program finds the question, and answers it.
/// let questions = session.approvals().await?;
/// assert_eq!(questions[0].approval.tool_name, "pay");
/// questions[0].reject("too expensive").await?;
/// assert_eq!(run.report.await?.calls[0].status.as_str(), "refused");
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PendingApproval {
    /// The id of the call for clients.
    pub tool_id: String,
    /// The tool's name.
    pub tool_name: String,
    /// The phase of the approval.
    pub phase: WaitPhase,
    /// The arguments that the tool will receive, or received: a JSON object.
    pub input: Arc<Value>,
    /// The SHA-256 of the arguments, or of the question. A decision has to repeat it.
    pub arguments_sha256: String,
    /// The first 200 characters of the result, if there is one.
    pub output_summary: Option<String>,
    /// The question of the running tool: `message`, and `form` or `url`.
    #[serde(flatten)]
    pub question: Option<Question>,
    /// The time of the request: Unix time in milliseconds.
    pub asked_at: u64,
}

impl PendingApproval {
    pub(super) fn new(request: ApprovalRequest, asked_at: u64) -> Self {
        let ApprovalRequest { call, phase, arguments, arguments_sha256, output_summary, question } =
            request;
        Self {
            tool_id: call.key.to_string(),
            tool_name: call.name.to_string(),
            phase,
            input: arguments,
            arguments_sha256,
            output_summary,
            question: question.map(Arc::unwrap_or_clone),
            asked_at,
        }
    }
}

/// A call that the client has to run.
///
/// [`ClientCall`](crate::runtime::ClientCall) has it; [`ClientTool`](callsheet_values::config::ClientTool) has an example.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PendingClientCall {
    /// The id of the call, which its result names.
    pub tool_id: String,
    /// The tool's name.
    pub tool_name: String,
    /// The arguments: a JSON object that matches the schema of the tool.
    pub input: Arc<Value>,
    /// The time at which the call was handed to the client: Unix time in milliseconds.
    pub asked_at: u64,
}

impl PendingClientCall {
    /// Separates the calls that the client has to run from approvals.
    pub(super) fn separate(pending: Vec<PendingApproval>) -> (Vec<PendingApproval>, Vec<Self>) {
        let is_for_client = |pending: &PendingApproval| pending.phase == WaitPhase::Client;
        let (calls, approvals) = pending.into_iter().partition::<Vec<_>, _>(is_for_client);
        let calls = calls.into_iter().map(|pending| {
            let PendingApproval { tool_id, tool_name, input, asked_at, .. } = pending;
            Self { tool_id, tool_name, input, asked_at }
        });
        (approvals, calls.collect())
    }
}

/// An input that waits for the current run to end.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// # let long = std::time::Duration::from_secs(60);
/// # let model = FakeModel::replies([ModelReply::text("Wait.")]).with_pauses(long);
/// # let host = Host::builder().model_source("slow", model).start().await?;
/// let session = host.open_session("demo").await?;
/// session.start_run("First.").await?;
/// session.start_run(RunRequest::from("Second.").queued()).await?;
/// let snapshot = session.snapshot().await?;
/// assert_eq!(snapshot.queued[0].input.text(), "Second.");
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueuedInput {
    /// The run that will start with the input.
    pub run_id: RunId,
    /// The user's input.
    pub input: Content,
}
