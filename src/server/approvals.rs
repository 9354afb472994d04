//! `POST /v1/sessions/{id}/approvals/{tool_id}`: a person's decision about a call that waits, or the answer to a
//! question of its tool.

use axum::Json;
use axum::extract::{Path, rejection::PathRejection};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::ApiError;
use super::extract::{JsonBody, PathSession};
use callsheet_host::runtime::HostError;
use callsheet_machines::turn::{ApprovalDecision, ApprovalError};
use callsheet_values::types::{ApprovalVerdict, CallKey, WaitPhase};

/// Maximum length of a decision's message, which the model reads after a rejection.
const MESSAGE_CHARS_MAX: usize = 4000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ApprovalDecisionRequest {
    decision: ApprovalChoice,
    message: Option<String>,
    arguments_sha256: Option<String>,
    /// The answer to a question of the tool.
    content: Option<Value>,
    /// Needed only if the call waited for an approval before and after it ran.
    phase: Option<WaitPhase>,
}

/// The decisions of the API.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ApprovalChoice {
    Approve,
    Reject,
}

/// An accepted decision; also returned when the same decision is sent again.
#[derive(Debug, Serialize)]
struct ApprovalDecisionResponse {
    tool_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<WaitPhase>,
    decision: ApprovalChoice,
}

pub(super) async fn decide(
    PathSession(session): PathSession,
    path: Result<Path<(String, String)>, PathRejection>,
    JsonBody(request): JsonBody<ApprovalDecisionRequest>,
) -> Result<Response, ApiError> {
    let ApprovalDecisionRequest { decision, message, arguments_sha256, content, phase } = request;
    // A text that is not a call key cannot name a call that waits.
    let key: CallKey = path
        .ok()
        .and_then(|Path((_, tool_id))| tool_id.parse().ok())
        .ok_or(HostError::Approval(ApprovalError::NoSuchApproval))?;
    let arguments_sha256 = arguments_sha256.ok_or_else(|| {
        let message = "arguments_sha256 is missing: copy it from the tool_approval event or from \
                       current_run.approvals of the session";
        ApiError::bad_request("invalid_request", message)
    })?;
    let message = message.filter(|message| !message.trim().is_empty());
    if message.as_ref().is_some_and(|message| message.chars().nth(MESSAGE_CHARS_MAX).is_some()) {
        let message = format!("message: at most {MESSAGE_CHARS_MAX} characters are allowed");
        return Err(ApiError::bad_request("invalid_request", message));
    }
    let verdict = match decision {
        ApprovalChoice::Approve => ApprovalVerdict::Approved,
        ApprovalChoice::Reject => ApprovalVerdict::Rejected,
    };
    let answer = ApprovalDecision { phase, verdict, message, arguments_sha256, content };
    session.decide(key, answer).await?;
    Ok(Json(ApprovalDecisionResponse { tool_id: key.to_string(), phase, decision }).into_response())
}
