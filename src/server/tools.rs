//! `/v1/tools`: lists the tools of an agent.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::extract::StrictQuery;
use super::state::AppState;
use crate::tool::ListedTool;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListToolsQuery {
    agent: Option<String>,
}

#[derive(Debug, Serialize)]
struct ToolList {
    agent: Arc<str>,
    tools: Vec<ListedTool>,
}

pub(super) async fn list(
    State(state): State<AppState>,
    StrictQuery(ListToolsQuery { agent }): StrictQuery<ListToolsQuery>,
) -> Result<Response, ApiError> {
    let (agent, tools) = state.host.listed_tools(agent)?;
    Ok(Json(ToolList { agent, tools }).into_response())
}
