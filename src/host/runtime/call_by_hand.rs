//! One tool call by hand, as a session would make it.
//!
//! The call runs in a session of its own, which is deleted afterwards; after a crash the next host deletes it
//! (`recovery`). Its agent has the limits, hooks and policies of a configured one, and a model that asks for the
//! call and answers with its result. So the call takes the same path as every other: schema, hooks, approval,
//! limits of the tool, timeout, metrics.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::error::HostError;
use super::handle::SessionHandle;
use super::ids::CALLER;
use super::model::{ModelReply, ModelRequest, ModelStream};
use super::models::Model;
use super::report::RunReport;
use super::run_events::RunEvent;
use super::{Host, OpenSession, ids, opening, task};
use callsheet_values::message::Message;
use callsheet_values::types::WaitPhase;

/// Maximum number of calls at once. With a blocking tool each has a thread, whose memory the allocator keeps. Others
/// wait, but not longer than this: a called tool may make such calls itself.
pub(super) const CALLS_MAX: usize = 32;
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The input of the run, which no model reads.
const INPUT: &str = "call the tool";

const NOT_APPROVED: &str = "the caller has not approved the call";

impl Host {
    /// Calls a tool once, as the agent named `agent` would (`None`: `default`, or the only agent). The tool may be
    /// any that is registered with the host, or one of an MCP server that this agent names. A call that needs
    /// approval is rejected unless `approved` is true; a question of the tool is always declined. The call runs to
    /// its end even if the future is dropped, once it has begun: of more than 32 calls at once the others wait, at
    /// most 10 s.
    ///
    /// # Errors
    /// If there is no such agent or tool, or the host is full or shuts down.
    pub async fn call_tool(
        &self,
        agent: Option<String>,
        tool: &str,
        input: Map<String, Value>,
        approved: bool,
    ) -> Result<RunReport, HostError> {
        let (agent, host_ref) = (self.agent(agent)?, &self.inner.host_ref);
        let permit = Arc::clone(&host_ref.shared.calls_by_hand).acquire_owned();
        let permit = tokio::time::timeout(WAIT_MAX, permit).await;
        let permit = permit.map_err(|_| HostError::Full("tool call by hand"))?;
        let servers = &host_ref.shared.catalog.tool_servers;
        // Without a session: a server that sessions do not share is connected for this call.
        let connected = servers.servers_for(host_ref, None, |server| agent.names_server(server));
        let frozen = servers.freeze(&agent, &connected).await?;
        let input = Value::Object(input);
        let model = Model::from_source(
            CALLER,
            model_that_calls(tool.to_owned(), move || input.clone()),
            &host_ref.shared.telemetry,
            host_ref.shared.lag_clock.clone(),
            host_ref.shared.catalog.secrets.clone(),
        );
        let agent_with_tool = frozen.agent.with_only_tool(tool, CALLER, Arc::new(model));
        let agent = agent_with_tool.ok_or_else(|| HostError::UnknownTool(tool.to_owned()))?;
        // Cannot fail: the id is well formed.
        let id = ids::call_session_id().ok_or(HostError::InvalidSessionId)?;
        let (agent, options) = (Arc::new(agent), OpenSession::default());
        let host_ref = host_ref.clone();
        let call = async move {
            let _permit = permit;
            let session = opening::open(&host_ref, id, agent, options, None).await?;
            let report = run_call(&session, approved).await;
            if let Err(error) = session.close().await {
                tracing::warn!(session = %session.id(), %error, "tool_call_session_not_deleted");
            }
            report
        };
        // Boxed: many requests may wait for a permit, each with this future.
        task::to_its_end(Box::pin(call)).await
    }
}

/// Returns a model that asks for the call, and answers with its result. `input` returns the arguments.
pub fn model_that_calls(
    tool: String,
    input: impl Fn() -> Value + Send + Sync + 'static,
) -> impl Fn(ModelRequest) -> ModelStream + Send + Sync + 'static {
    move |request: ModelRequest| {
        // Messages may follow the result: a hook adds them to the request, a client steers the run.
        let result = request.messages.iter().rev().find_map(|message| match &**message {
            Message::Tool { content, .. } => Some(content.to_string()),
            Message::User { .. } | Message::Summary { .. } | Message::Assistant(_) => None,
        });
        let reply = match result {
            Some(text) => ModelReply::text(text),
            None => ModelReply::call(tool.clone(), input()),
        };
        reply.into_stream()
    }
}

/// Runs the call. Answers its approvals by `approved`, and declines every other question.
async fn run_call(session: &SessionHandle, approved: bool) -> Result<RunReport, HostError> {
    let mut run = session.start_run(INPUT).await?;
    while let Some(event) = run.next_event().await? {
        let RunEvent::ApprovalRequested(question) = event else { continue };
        let decided = match question.approval.phase {
            WaitPhase::Before | WaitPhase::After if approved => question.approve().await,
            WaitPhase::Before | WaitPhase::After => question.reject(NOT_APPROVED).await,
            WaitPhase::Input | WaitPhase::Client => question.reject("no person can be asked").await,
        };
        match decided {
            // The question is not open any more: the call has ended.
            Ok(()) | Err(HostError::Approval(_)) => {}
            Err(error) => return Err(error),
        }
    }
    run.report.await
}
