//! `/v1/tools`: lists the tools of an agent, and calls one.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::access::Caller;
use super::error::ApiError;
use super::extract::{JsonBody, PathParameters, StrictQuery};
use super::state::AppState;
use callsheet_host::runtime::{CallReport, HostError};
use callsheet_values::types::{RunEnd, RunError};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListToolsQuery {
    agent: Option<String>,
}

pub(super) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    StrictQuery(ListToolsQuery { agent }): StrictQuery<ListToolsQuery>,
) -> Result<Response, ApiError> {
    caller.check_asked_agent(&state.host, &agent)?;
    state.answer_limiter.json(&state.host.listed_tools(agent).await?)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallToolRequest {
    input: Map<String, Value>,
    agent: Option<String>,
    #[serde(default)]
    approve: bool,
}

/// The end of the error if the result of a call is too large to be sent now.
const CALL_ENDED: &str = "the call has ended, and its result is not kept";

#[derive(Debug, Serialize)]
struct CallToolResponse<'a> {
    /// Null if no turn with the call was committed, for example because a hook has refused the turn.
    call: Option<&'a CallReport>,
    run_end: RunEnd,
    error: Option<&'a RunError>,
}

/// Calls a tool once, as `callsheet tools call` does.
pub(super) async fn call(
    State(state): State<AppState>,
    path: PathParameters,
    caller: Caller,
    JsonBody(CallToolRequest { input, agent, approve }): JsonBody<CallToolRequest>,
) -> Result<Response, ApiError> {
    caller.check_asked_agent(&state.host, &agent)?;
    let name = path.get("name").unwrap_or_default();
    let report = state.host.call_tool(agent, name, input, approve).await;
    let report = report.map_err(|error| {
        if !matches!(error, HostError::UnknownTool(_)) {
            return ApiError::from(error);
        }
        let name = callsheet_values::types::excerpt(name, 64);
        let message = format!("no tool is called {name:?}; GET /v1/tools lists those of an agent");
        ApiError::not_found("unknown_tool", message)
    })?;
    let (call, error) = (report.calls.first(), report.error.as_ref());
    let response = CallToolResponse { call, run_end: report.run_end, error };
    state.answer_limiter.json_of_act(&response, CALL_ENDED).await
}
