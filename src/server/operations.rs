//! Health checks, metrics, and the state of the models.
//!
//! Liveness: `/healthz` is always 200. Readiness: `/readyz` is 503 `journal_failed` while the journal cannot be
//! written, and 503 `not_ready` from the beginning of a shutdown on. The state of models does not change it.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::access::Caller;
use super::answer_limiter;
use super::error::ApiError;
use super::state::AppState;
use callsheet_host::journal::HostInfo;
use callsheet_host::runtime::ModelStatus;
use callsheet_host::telemetry::Telemetry;
use callsheet_values::types::millis;

pub(super) async fn healthz() -> impl IntoResponse {
    Json(json!({"status": "ok"}))
}

/// Returns the state of the models if the host accepts runs and its journal can be written, and otherwise an
/// error. A failing model does not make the host unready: another host would have the same problem.
pub(super) async fn readyz(State(state): State<AppState>) -> Result<Response, ApiError> {
    if let Some(error) = state.host.journal_failure() {
        let message = error.to_string();
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "journal_failed", message));
    }
    if state.host.is_ready() {
        let models = state.host.models().into_iter().map(|model| {
            let ModelStatus { name, breaker, in_flight, waiting, .. } = model;
            let breaker = breaker.as_str();
            (name, json!({"breaker": breaker, "in_flight": in_flight, "waiting": waiting}))
        });
        let models: Map<String, Value> = models.collect();
        let mut body = json!({"status": "ready", "models": models});
        // Not their ids: everybody may read this.
        let quarantined = state.host.quarantined_sessions().len();
        if quarantined > 0 {
            body["quarantined_runs"] = json!(quarantined);
        }
        if let Some((count, max)) = state.host.nearly_full_store() {
            body["stored_sessions"] = json!({"count": count, "max": max});
        }
        return Ok(Json(body).into_response());
    }
    if state.host.peers().is_some() {
        let message = "the host shuts down: the others have its sessions";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "draining", message));
    }
    let message = "the host does not accept runs: it is shutting down";
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message))
}

/// Returns the agents with their models and tools.
pub(super) async fn agents(
    State(state): State<AppState>,
    caller: Caller,
) -> Result<Response, ApiError> {
    let host = &state.host;
    let agents = host.agents().into_iter().filter(|name| caller.reaches(name)).map(|name| {
        let (models, tools) = (host.agent_models(&name), host.agent_tools(&name));
        json!({"name": name, "models": models, "tools": tools})
    });
    let agents: Vec<Value> = agents.collect();
    state.answer_limiter.json(&json!({"agents": agents}))
}

/// Returns the hosts with the same journal that live.
pub(super) async fn hosts(State(state): State<AppState>) -> Result<Response, ApiError> {
    let hosts = state.host.hosts().await?.into_iter().map(|host| {
        let HostInfo { id, address, version, sessions, beat_age, is_this, .. } = host;
        json!({
            "id": id, "address": address, "version": version, "sessions": sessions,
            "heartbeat_age_ms": millis(beat_age), "this": is_this,
        })
    });
    let hosts: Vec<Value> = hosts.collect();
    state.answer_limiter.json(&json!({"hosts": hosts}))
}

/// Returns the configuration, the state and the failures of the models.
pub(super) async fn models(State(state): State<AppState>) -> Result<Response, ApiError> {
    state.answer_limiter.json(&json!({"models": state.host.model_reports()}))
}

pub(super) async fn metrics(State(state): State<AppState>) -> Result<Response, ApiError> {
    let page = state.host.metrics_page().ok_or_else(|| {
        let message = "this host has no metrics page: its metrics go to a recorder of the program";
        ApiError::not_found("no_metrics_page", message)
    })?;
    let permit = state.metrics_pages.try_acquire(page.len(), page.len())?;
    let body = answer_limiter::body(page.into(), permit);
    Ok(([(header::CONTENT_TYPE, Telemetry::CONTENT_TYPE)], body).into_response())
}
