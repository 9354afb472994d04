//! `/v1/tools`: lists the tools of an agent.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::error::ApiError;
use super::extract::StrictQuery;
use super::state::AppState;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListToolsQuery {
    agent: Option<String>,
}

pub(super) async fn list(
    State(state): State<AppState>,
    StrictQuery(ListToolsQuery { agent }): StrictQuery<ListToolsQuery>,
) -> Result<Response, ApiError> {
    Ok(Json(state.host.listed_tools(agent).await?).into_response())
}
