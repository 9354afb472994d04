//! One tool call by hand, as a session would make it.
//!
//! The call runs in a session of its own, which is deleted afterwards. Its agent has the limits, hooks and
//! policies of a configured one, and a model that asks for the call and answers with its result. So the
//! call takes the same path as every other: schema, hooks, approval, limits of the tool, timeout, metrics.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::error::HostError;
use super::handle::SessionHandle;
use super::model::{ModelReply, ModelRequest};
use super::models::Model;
use super::report::RunReport;
use super::run_events::RunEvent;
use super::{Host, OpenSession, ids, opening, task};
use crate::message::Message;
use crate::types::ApprovalPhase;

/// The name of the agent and of the model of such calls; not a valid name in a configuration file. After a
/// crash of the host no agent has it, so that the run is not continued.
pub(super) const CALLER: &str = "(tools call)";

/// The input of the run, which no model reads.
const INPUT: &str = "call the tool";

const NOT_APPROVED: &str = "the caller has not approved the call";

impl Host {
    /// Calls a tool once, with the limits of an agent, by default the default one. The tool is any of the host's
    /// own, or one of a server that the agent names. A call that needs approval is rejected unless it is
    /// `approved`; a question of the tool is declined. The call goes on if the future is dropped.
    ///
    /// # Errors
    /// If there is no such agent or tool, or the host is full or shuts down.
    #[doc(hidden)]
    pub async fn call_tool(
        &self,
        agent: Option<String>,
        tool: &str,
        input: Map<String, Value>,
        approved: bool,
    ) -> Result<RunReport, HostError> {
        let (agent, link) = (self.agent(agent)?, &self.inner.link);
        let servers = &link.shared.tool_servers;
        let used = servers.used_by(link, None, |server| agent.names_server(server));
        let frozen = servers.freeze(&agent, &used).await?;
        let model = Model::of_program(
            CALLER,
            model_that_calls(tool.to_owned(), input),
            &link.shared.telemetry,
            link.shared.secrets.clone(),
        );
        let caller = frozen.agent.calling(tool, CALLER, Arc::new(model));
        let caller = caller.ok_or_else(|| HostError::UnknownTool(tool.to_owned()))?;
        let id = ids::call_session_id().ok_or(HostError::InvalidSessionId)?;
        let (caller, new) = (Arc::new(caller), OpenSession::default());
        let link = link.clone();
        let call = async move {
            let session = opening::open(&link, id, caller, new, None).await?;
            let report = run(&session, approved).await;
            if let Err(error) = session.close().await {
                tracing::warn!(session = %session.id(), %error, "tool_call_session_not_deleted");
            }
            report
        };
        task::to_its_end(call).await
    }
}

/// Returns a model that asks for the call, and answers with its result.
fn model_that_calls(
    tool: String,
    input: Map<String, Value>,
) -> impl Fn(ModelRequest) -> super::model::ModelStream + Send + Sync + 'static {
    let input = Value::Object(input);
    move |request| {
        let reply = match request.messages.last().map(|message| &**message) {
            Some(Message::Tool { content, .. }) => ModelReply::text(content.to_string()),
            Some(Message::User { .. } | Message::Summary { .. } | Message::Assistant(_)) | None => {
                ModelReply::call(tool.clone(), input.clone())
            }
        };
        reply.into_stream()
    }
}

async fn run(session: &SessionHandle, approved: bool) -> Result<RunReport, HostError> {
    let mut run = session.start_run(INPUT).await?;
    while let Some(event) = run.next_event().await? {
        let RunEvent::ApprovalRequested(question) = event else { continue };
        let decided = match question.approval.phase {
            ApprovalPhase::Before | ApprovalPhase::After if approved => question.approve().await,
            ApprovalPhase::Before | ApprovalPhase::After => question.reject(NOT_APPROVED).await,
            ApprovalPhase::Input | ApprovalPhase::Client => {
                question.reject("no person can be asked").await
            }
        };
        match decided {
            // The call has ended meanwhile.
            Ok(()) | Err(HostError::Approval(_)) => {}
            Err(error) => return Err(error),
        }
    }
    run.report.await
}
