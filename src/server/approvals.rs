//! `POST /v1/sessions/{id}/approvals/{tool_id}`: a person's decision about a call that waits, or the answer to a
//! question of its tool. `GET /v1/approvals`: all that waits, in all sessions.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State, rejection::PathRejection};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::access::Caller;
use super::error::ApiError;
use super::extract::{FilterQuery, JsonBody, PathSession, page_length};
use super::peers;
use super::state::AppState;
use callsheet_host::runtime::{
    ApprovalPosition, ApprovalQuery, HostError, OpenApproval, PendingApproval,
};
use callsheet_machines::turn::{ApprovalDecision, ApprovalError};
use callsheet_values::types::{
    ApprovalVerdict, CallKey, Metadata, Question, RunId, SessionId, WaitPhase, excerpt,
};

/// The number of characters of arguments that a list shows, unless the request asks for all.
const ARGUMENTS_CHARS_MAX: usize = 200;

/// Maximum length of a decision's message, which the model reads after a rejection.
pub(super) const MESSAGE_CHARS_MAX: usize = 4000;

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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListApprovalsQuery {
    agent: Option<String>,
    after: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    full: bool,
}

/// An approval or a question that waits, with its session.
#[derive(Debug, Serialize)]
struct ListedApproval<'a> {
    session_id: &'a SessionId,
    run_id: &'a RunId,
    tool_id: &'a str,
    tool_name: &'a str,
    phase: WaitPhase,
    agent_path: &'a [Arc<str>],
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: &'a Metadata,
    root_session_id: &'a SessionId,
    since: u64,
    /// The object, or its first characters as a text.
    arguments: Value,
    arguments_sha256: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_summary: Option<&'a str>,
    #[serde(flatten)]
    question: Option<&'a Question>,
}

impl<'a> ListedApproval<'a> {
    fn new(open: &'a OpenApproval, full: bool) -> Self {
        let PendingApproval { tool_id, tool_name, phase, input, arguments_sha256, .. } =
            &open.approval;
        let text = input.to_string();
        let is_short = full || text.chars().nth(ARGUMENTS_CHARS_MAX).is_none();
        let arguments = match is_short {
            true => (**input).clone(),
            false => excerpt(&text, ARGUMENTS_CHARS_MAX).into(),
        };
        Self {
            session_id: &open.session,
            run_id: &open.run,
            tool_id,
            tool_name,
            phase: *phase,
            agent_path: &open.agent_path,
            metadata: &open.metadata,
            root_session_id: &open.root_session,
            since: open.approval.asked_at,
            arguments,
            arguments_sha256,
            output_summary: open.approval.output_summary.as_deref(),
            question: open.approval.question.as_ref(),
        }
    }
}

/// Returns a page of the approvals and questions that wait in all sessions of all hosts, the oldest first. Its `next` is
/// the value of `after` for the next page; null on the last page.
pub(super) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    uri: Uri,
    headers: HeaderMap,
    FilterQuery(query, metadata): FilterQuery<ListApprovalsQuery>,
) -> Result<Response, ApiError> {
    let ListApprovalsQuery { agent, after, limit, full } = query;
    let invalid = |message: String| ApiError::bad_request("invalid_request", message);
    let limit = page_length(limit)?;
    let after = after.map(|after| after.parse::<ApprovalPosition>()).transpose();
    let after = after.map_err(|()| invalid("after: must be the `next` of a page".to_owned()))?;
    let query = ApprovalQuery::default().with(|query| {
        query.agent = agent;
        query.metadata = metadata;
        query.after = after;
        query.limit = limit + 1;
    });
    let asked = caller.clone();
    let is_shown =
        move |open: &OpenApproval| asked.reaches_path(open.agent_path.iter().map(|name| &**name));
    let open = state.host.open_approvals(query, is_shown).await?;
    let own = open.iter().map(|open| {
        let listed = serde_json::to_value(ListedApproval::new(open, full)).unwrap_or_default();
        (open.position(), listed)
    });
    let mut all: Vec<_> = own.collect();
    let pages = peers::pages(&state, &caller, &uri, &headers).await;
    let mut has_more = false;
    for page in pages {
        has_more |= !page["next"].is_null();
        let listed = page["approvals"].as_array().cloned().unwrap_or_default();
        all.extend(listed.into_iter().map(|listed| (position(&listed), listed)));
    }
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    has_more |= all.len() > limit;
    all.truncate(limit);
    let last = all.last().and_then(|(position, _)| position.as_ref()).filter(|_| has_more);
    let next = last.map(ToString::to_string);
    let listed: Vec<Value> = all.into_iter().map(|(_, listed)| listed).collect();
    state.answer_limiter.json(&json!({"approvals": listed, "next": next}))
}

/// Returns the position of an approval in the list of another host.
fn position(listed: &Value) -> Option<ApprovalPosition> {
    let (session, call) = (listed["session_id"].as_str()?, listed["tool_id"].as_str()?);
    format!("{}-{session}-{call}", listed["since"].as_u64()?).parse().ok()
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
    let answer =
        ApprovalDecision { phase, verdict, message, arguments_sha256, content, author: None };
    session.decide(key, answer).await?;
    Ok(Json(ApprovalDecisionResponse { tool_id: key.to_string(), phase, decision }).into_response())
}
