//! What operators and newcomers ask for: health, metrics, and a page that says what is here.

use axum::Json;
use axum::extract::{ConnectInfo, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::AppState;
use super::error::ApiError;
use super::listener::LocalAddress;
use crate::telemetry::Telemetry;

/// Where a newcomer would find the host, as it stands in the page until somebody asks.
const PLACE: &str = "127.0.0.1:7700";

pub(super) async fn page(
    ConnectInfo(LocalAddress(local)): ConnectInfo<LocalAddress>,
) -> impl IntoResponse {
    let page = include_str!("page.html");
    let page = match local {
        Some(local) => page.replace(PLACE, &local.to_string()),
        None => page.to_owned(),
    };
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, page)
}

pub(super) async fn healthz() -> impl IntoResponse {
    Json(json!({"status": "ok"}))
}

pub(super) async fn readyz(State(state): State<AppState>) -> Result<Response, ApiError> {
    if state.host.is_ready() {
        return Ok(Json(json!({"status": "ready"})).into_response());
    }
    let message = "the host takes no runs";
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message))
}

pub(super) async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, Telemetry::CONTENT_TYPE)], state.host.telemetry().render())
}
