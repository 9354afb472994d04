//! `/v1/sessions/{id}/results/{tool_id}`: returns the result of a call, or a part of it, and receives the result of
//! a call that the client has run.

use axum::Json;
use axum::extract::{Path, State, rejection::PathRejection};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::ApiError;
use super::extract::{PathSession, ResultBody, StrictQuery, rewrite_serde_error};
use super::state::AppState;
use callsheet_host::runtime::{HostError, StoredResult};
use callsheet_tools::ToolOutput;
use callsheet_values::types::{
    CallKey, ResultPart, ToolStatus, ceil_char_boundary, floor_char_boundary,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResultQuery {
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
}

#[derive(Debug, Serialize)]
struct ResultResponse<'a> {
    tool_id: String,
    tool_name: &'a str,
    status: ToolStatus,
    content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured: Option<&'a Value>,
}

pub(super) async fn show(
    State(state): State<AppState>,
    PathSession(session): PathSession,
    path: Result<Path<(String, String)>, PathRejection>,
    StrictQuery(ResultQuery { offset, limit }): StrictQuery<ResultQuery>,
) -> Result<Response, ApiError> {
    if limit == Some(0) {
        let message = "limit: must be at least 1; without it the answer has the whole result";
        return Err(ApiError::bad_request("invalid_request", message));
    }
    let tool_id = path.map(|Path((_, tool_id))| tool_id).unwrap_or_default();
    // A text that is not a call key cannot name a call.
    let key: CallKey = tool_id
        .parse()
        .map_err(|_| HostError::NoSuchResult(callsheet_values::types::excerpt(&tool_id, 64)))?;
    // Other requests do not wait while the session is read from the journal.
    session.wake().await?;
    let _guard = state.reads.results.lock().await;
    if limit.is_none() {
        state.answer_limiter.check_large()?;
    }
    let StoredResult { tool_name, outcome, .. } = session.result(key).await?;
    let content = &*outcome.content;
    let start = floor_char_boundary(content, offset);
    let end = limit.map_or(content.len(), |limit| {
        let end = floor_char_boundary(content, start.saturating_add(limit));
        // At least one character, so that reading goes on.
        if end == start { ceil_char_boundary(content, start + 1) } else { end }
    });
    let response = ResultResponse {
        tool_id,
        tool_name: &tool_name,
        status: outcome.status,
        content: content.get(start..end).unwrap_or_default(),
        structured: outcome.full.as_ref().and_then(|full| full.structured.as_ref()),
    };
    state.answer_limiter.json(&response)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientResultRequest {
    content: Value,
    #[serde(default)]
    is_error: bool,
    structured: Option<Value>,
}

#[derive(Debug, Serialize)]
struct ClientResultResponse {
    tool_id: String,
    status: ToolStatus,
}

/// Ends a call that the client has run.
pub(super) async fn answer(
    PathSession(session): PathSession,
    path: Result<Path<(String, String)>, PathRejection>,
    ResultBody(request): ResultBody<ClientResultRequest>,
) -> Result<Response, ApiError> {
    let tool_id = path.map(|Path((_, tool_id))| tool_id).unwrap_or_default();
    let ClientResultRequest { content, is_error, structured } = request;
    let output = output(content, structured)
        .map_err(|message| ApiError::bad_request("invalid_request", message))?;
    let (output, status) = match is_error {
        true => (output.into_error(), ToolStatus::Failed),
        false => (output, ToolStatus::Ok),
    };
    session.answer_call(&tool_id, output).await?;
    Ok(Json(ClientResultResponse { tool_id, status }).into_response())
}

/// Returns the output of a call: a text, parts, or an object, which the model reads as JSON. With a structured value
/// for programs the object is such a text, without one it is the structured value.
fn output(content: Value, structured: Option<Value>) -> Result<ToolOutput, String> {
    let (output, value) = match content {
        Value::String(text) => (ToolOutput::from(text), structured),
        Value::Array(parts) => {
            let mut output = ToolOutput::default();
            for (index, part) in parts.into_iter().enumerate() {
                let part = ResultPart::deserialize(part).map_err(|error| {
                    let reason = rewrite_serde_error(&error.to_string(), "member");
                    format!("content: part {index}: {reason}")
                })?;
                output = output.with_part(part);
            }
            (output, structured)
        }
        object @ Value::Object(_) => match structured {
            Some(_) => (ToolOutput::from(object.to_string()), structured),
            None => (ToolOutput::default(), Some(object)),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            return Err("content: must be a text, a list of parts such as \
                        {\"type\": \"text\", \"text\": \"..\"}, or a JSON object"
                .to_owned());
        }
    };
    Ok(match value {
        Some(value) => output.with_structured(value),
        None => output,
    })
}
