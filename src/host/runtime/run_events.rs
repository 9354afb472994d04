//! The events of a run, for a program that drives it.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::error::HostError;
use super::handle::SessionHandle;
use super::report::CallReport;
use super::snapshot::{PendingApproval, PendingClientCall};
use callsheet_machines::turn::ApprovalDecision;
use callsheet_tools::ToolOutput;
use callsheet_values::event::{ChildEvent, Event, PublishedEvent, ToolListChange};
use callsheet_values::types::{ApprovalVerdict, CallKey};

/// An event of a run. [`SessionHandle::watch`] returns every event, in the form of the HTTP API.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// let mut run = host.open_session("demo").await?.start_run("Hello?").await?;
/// let mut text = String::new();
/// while let Some(event) = run.next_event().await? {
///     if let RunEvent::Text(part) = event {
///         text.push_str(&part);
///     }
/// }
/// assert_eq!(text, "Hello.");
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub enum RunEvent {
    /// A part of the model's text.
    Text(String),
    /// A part of the model's reasoning.
    Thinking(String),
    /// An attempt of the current turn failed, or was cut off, for example by a restart of the host. Its text and
    /// calls so far are void; the next attempt, if there is one, starts anew. If the attempt was cut off after a call
    /// with effects had started, a part of the response is kept: its text follows again, and its calls are not void.
    AttemptVoided {
        /// The reason.
        reason: String,
    },
    /// The run waits before its first turn: servers of tools are not connected yet.
    WaitingForServers {
        /// The names of the servers.
        servers: Vec<String>,
    },
    /// The tool list of a tool server has changed. The session keeps its own list;
    /// [`SessionHandle::refresh_tools`] adopts the new list.
    ToolsChanged {
        /// The server's name in the configuration.
        server: String,
        /// The difference. Tools have the names under which they are offered.
        change: ToolListChange,
    },
    /// The session's connection to a tool server was ended while the session was idle, because another session
    /// needed it. The next call finds a new process of the server.
    ServerReleased {
        /// The server's name in the configuration.
        server: String,
    },
    /// A tool call started.
    CallStarted {
        /// The id of the call for clients.
        tool_id: String,
        /// The tool's name.
        tool_name: String,
        /// The first 200 characters of its arguments.
        input_summary: String,
    },
    /// A tool reported progress.
    CallProgressed {
        /// The id of the call for clients.
        tool_id: String,
        /// The tool's message.
        text: String,
    },
    /// A tool call of the run or of a child session waits for a decision, or for the answer to a question of its
    /// tool. It waits until the decision or the answer is there, its time limit expires, or its run is stopped.
    ApprovalRequested(ApprovalHandle),
    /// The client has to run a tool call. The call waits until it has the result, its time limit expires, or the
    /// run is stopped.
    ClientCall(ClientCall),
    /// A tool call has its result.
    CallEnded(Box<CallReport>),
}

/// A tool call that waits for approval, or for the answer to a question (`approval.phase` tells which).
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::call("pay", serde_json::json!({})), ModelReply::text("Done.")]);
/// # let host = Host::builder().model_source("fake", model).tool(ToolSpec::named("pay", "Pays.").approval(ApprovalPolicy::BEFORE).into_tool(async |(): (), _| Ok("paid"))).start().await?;
/// let mut run = host.open_session("demo").await?.start_run("Pay.").await?;
/// while let Some(event) = run.next_event().await? {
///     if let RunEvent::ApprovalRequested(question) = event {
///         assert_eq!(question.approval.tool_name, "pay");
///         question.approve().await?;
///     }
/// }
/// assert_eq!(run.report.await?.text()?, "Done.");
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct ApprovalHandle {
    /// The call, with its arguments.
    pub approval: PendingApproval,
    key: CallKey,
    session: SessionHandle,
}

impl ApprovalHandle {
    /// Creates the handle of a pending approval. `None` if the call's id is not valid.
    pub(super) fn new(approval: PendingApproval, session: SessionHandle) -> Option<Self> {
        let key = approval.tool_id.parse().ok()?;
        Some(Self { approval, key, session })
    }

    /// Allows the call, or its result. Consents to a question with a URL.
    ///
    /// # Errors
    /// If another decision was made before, the call no longer waits, or the session is closed. If the question
    /// has a form: use [`Self::answer`].
    pub async fn approve(&self) -> Result<(), HostError> {
        self.decide(ApprovalVerdict::Approved, None, None).await
    }

    /// Rejects the call, or its result, or declines to answer the tool's question. The model reads the reason. If a
    /// question is declined, the tool receives the reason instead.
    ///
    /// # Errors
    /// If another decision was made before, the call no longer waits, or the session is closed.
    pub async fn reject(&self, reason: impl Into<String>) -> Result<(), HostError> {
        self.decide(ApprovalVerdict::Rejected, Some(reason.into()), None).await
    }

    /// Answers the question of a running tool (phase `input`) with an object that fits its form. Defaults of
    /// the form are filled in. A question with a URL is answered by [`Self::approve`].
    ///
    /// # Errors
    /// If the content does not fit the form (the question stays open then), the question was answered
    /// before or has ended, or the session is closed.
    pub async fn answer(&self, content: Value) -> Result<(), HostError> {
        self.decide(ApprovalVerdict::Approved, None, Some(content)).await
    }

    async fn decide(
        &self,
        verdict: ApprovalVerdict,
        message: Option<String>,
        content: Option<Value>,
    ) -> Result<(), HostError> {
        let decision = ApprovalDecision {
            phase: Some(self.approval.phase),
            verdict,
            message,
            arguments_sha256: self.approval.arguments_sha256.clone(),
            content,
            author: None,
        };
        self.session.decide(self.key, decision).await
    }
}

impl fmt::Debug for ApprovalHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.approval.fmt(f)
    }
}

/// A call that the client has to run: [`ClientTool`](callsheet_values::config::ClientTool) has an example.
#[derive(Clone)]
pub struct ClientCall {
    /// The call, with its arguments.
    pub pending: PendingClientCall,
    pub(super) key: CallKey,
    pub(super) session: SessionHandle,
}

impl ClientCall {
    /// Sends the result of the call. [`ToolOutput::into_error`] marks the call as failed.
    ///
    /// # Errors
    /// If the call has a result or has ended, the result is too large, or the session is closed.
    pub async fn answer(&self, output: impl Into<ToolOutput>) -> Result<(), HostError> {
        self.session.answer(self.key, output.into()).await
    }
}

impl fmt::Debug for ClientCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pending.fmt(f)
    }
}

impl RunEvent {
    /// Converts an event of a session for the program that drives the run. `None` if the program does not get it.
    pub(super) fn from_published(
        published: &PublishedEvent,
        session: &SessionHandle,
    ) -> Option<Self> {
        match &published.event {
            Event::TextReceived { text } => Some(Self::Text(text.clone())),
            Event::ThinkingReceived { text } => Some(Self::Thinking(text.clone())),
            // One failure never publishes both. `AttemptStarted` follows a void attempt, or precedes the text of a
            // kept one (a turn's first request publishes `TurnStarted`). After `AttemptVoided` no attempt follows.
            Event::AttemptStarted { reason, .. } | Event::AttemptVoided { reason, .. } => {
                Some(Self::AttemptVoided { reason: reason.clone() })
            }
            Event::RunWaiting { waiting_for: _, servers } => {
                Some(Self::WaitingForServers { servers: servers.clone() })
            }
            Event::ToolsChanged { change } => Some(Self::ToolsChanged {
                server: change.server.clone(),
                change: change.change.clone(),
            }),
            Event::ServerReleased { server } => {
                Some(Self::ServerReleased { server: server.to_string() })
            }
            Event::CallStarted { call, input_summary, .. } => Some(Self::CallStarted {
                tool_id: call.key.to_string(),
                tool_name: call.name.to_string(),
                input_summary: input_summary.clone(),
            }),
            Event::CallProgressed { key, text } => {
                Some(Self::CallProgressed { tool_id: key.to_string(), text: text.clone() })
            }
            Event::ApprovalAsked { request } => Some(Self::ApprovalRequested(ApprovalHandle {
                approval: PendingApproval::new((**request).clone(), published.timestamp_ms),
                key: request.call.key,
                session: session.clone(),
            })),
            Event::CallWaiting { call, arguments, by_client: true, .. } => {
                let pending = PendingClientCall {
                    tool_id: call.key.to_string(),
                    tool_name: call.name.to_string(),
                    input: Arc::clone(arguments),
                    asked_at: published.timestamp_ms,
                };
                let session = session.clone();
                Some(Self::ClientCall(ClientCall { pending, key: call.key, session }))
            }
            Event::CallEnded { result, .. } => {
                let call = CallReport::new(published.run.clone(), None, (**result).clone());
                Some(Self::CallEnded(Box::new(call)))
            }
            Event::OfChild { event, .. } => Self::from_child(event, session),
            Event::RunStarted { .. }
            | Event::InputQueued { .. }
            | Event::InputRemoved { .. }
            | Event::RunSteered { .. }
            | Event::TurnStarted
            | Event::CallOpened { .. }
            | Event::CallDetected { .. }
            | Event::ArgumentsReceived { .. }
            | Event::ArgumentsAnomalyFound { .. }
            | Event::ArgumentsLost { .. }
            | Event::CallWaiting { .. }
            | Event::ApprovalGiven { .. }
            | Event::ConflictFound { .. }
            | Event::CallDiscarded { .. }
            | Event::ServiceCallChanged { .. }
            | Event::OutcomeLate { .. }
            | Event::ResultReleased { .. }
            | Event::ResponseEnded { .. }
            | Event::ResponseDecoded { .. }
            | Event::AttemptEnded { .. }
            | Event::AttemptFellBack { .. }
            | Event::TurnEnded { .. }
            | Event::LimitReached { .. }
            | Event::ContextCompacted { .. }
            | Event::HistoryRepaired { .. }
            | Event::ToolSetAside { .. }
            | Event::RunEnded { .. } => None,
        }
    }

    /// Returns the event of a child session if it is a request for approval, else `None`.
    fn from_child(event: &ChildEvent, session: &SessionHandle) -> Option<Self> {
        let Event::ApprovalAsked { request } = &event.event else { return None };
        Some(Self::ApprovalRequested(ApprovalHandle {
            approval: PendingApproval::new((**request).clone(), event.timestamp_ms),
            key: request.call.key,
            session: session.other(&event.session),
        }))
    }
}
