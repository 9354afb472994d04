//! What operators and newcomers ask for: health, metrics, and a page that says what is here.

use axum::Json;
use axum::extract::{ConnectInfo, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::AppState;
use super::error::ApiError;
use super::listener::LocalAddress;
use crate::runtime::ModelStatus;
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

/// A host whose models do not answer is ready all the same: it is not the host that is broken, and
/// another one would not fare better.
pub(super) async fn readyz(State(state): State<AppState>) -> Result<Response, ApiError> {
    if state.host.is_ready() {
        let models = state.host.models().into_iter().map(|model| {
            let ModelStatus { name, breaker, in_flight, waiting } = model;
            let breaker = breaker.as_str();
            (name, json!({"breaker": breaker, "in_flight": in_flight, "waiting": waiting}))
        });
        let models: Map<String, Value> = models.collect();
        return Ok(Json(json!({"status": "ready", "models": models})).into_response());
    }
    let message = "the host takes no runs";
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message))
}

pub(super) async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    state.host.bring_metrics_up_to_date();
    ([(header::CONTENT_TYPE, Telemetry::CONTENT_TYPE)], state.host.telemetry().render())
}
