//! Errors of the API: a status code and the body `{"error":{"code","message"}}`.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::runtime::HostError;
use crate::turn::ApprovalError;

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    header: Option<(HeaderName, &'static str)>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), header: None }
    }

    pub(super) fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(super) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, message)
    }

    pub(super) fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    pub(super) fn no_such_session(id: &str) -> Self {
        Self::not_found("no_such_session", format!("there is no session {id:?}"))
    }

    pub(super) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    pub(super) fn unauthorized() -> Self {
        let message = "send the host's token: Authorization: Bearer TOKEN";
        let header = Some((header::WWW_AUTHENTICATE, "Bearer realm=\"callsheet\""));
        Self { header, ..Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message) }
    }

    /// Maps a host's error to a status code and a message.
    fn from_host(error: &HostError) -> Self {
        let status = match error {
            HostError::UnknownAgent(_)
            | HostError::InvalidSessionId
            | HostError::InvalidMessages(_)
            | HostError::TooHigh(_)
            | HostError::UnknownTool(_)
            | HostError::UnknownModel { .. }
            | HostError::NoSuchRecord { .. }
            | HostError::UnknownEventId { .. }
            | HostError::EmptyInput => StatusCode::BAD_REQUEST,
            HostError::NoSuchSession(id) => return Self::no_such_session(id.as_str()),
            HostError::Approval(ApprovalError::NotAsked) => StatusCode::NOT_FOUND,
            HostError::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            HostError::Journal(error) if error.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
            HostError::SessionExists
            | HostError::AgentGone(_)
            | HostError::RunInProgress
            | HostError::NoRun
            | HostError::Suspended
            | HostError::NotSuspended
            | HostError::Approval(_) => StatusCode::CONFLICT,
            HostError::SessionClosed => {
                return Self::not_found("no_such_session", "the session is closed");
            }
            HostError::Full(_) | HostError::QueueFull(_) => StatusCode::TOO_MANY_REQUESTS,
            HostError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            HostError::Config(_) | HostError::Journal(_) | HostError::Rebuild(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        // The time at which a run ends is unknown, so the shortest wait is suggested.
        let header =
            (status == StatusCode::TOO_MANY_REQUESTS).then_some((header::RETRY_AFTER, "1"));
        let message = match remedy(error) {
            Some(remedy) => format!("{error}; {remedy}"),
            None => error.to_string(),
        };
        Self { header, ..Self::new(status, error.code(), message) }
    }

    #[cfg(test)]
    pub(super) fn status_and_code(&self) -> (u16, &'static str) {
        (self.status.as_u16(), self.code)
    }
}

/// Returns the request that helps, for errors that another request can resolve.
fn remedy(error: &HostError) -> Option<&'static str> {
    match error {
        HostError::RunInProgress => Some("send \"queue\": true to wait for it"),
        HostError::Suspended => Some("POST /v1/sessions/{id}/resume resumes it, .../stop stops it"),
        HostError::NoRun => Some("POST /v1/sessions/{id}/runs starts one"),
        HostError::UnknownEventId { .. } => Some("send 0 to read all events from the beginning"),
        HostError::Config(_)
        | HostError::UnknownAgent(_)
        | HostError::AgentGone(_)
        | HostError::InvalidSessionId
        | HostError::SessionExists
        | HostError::InvalidMessages(_)
        | HostError::Full(_)
        | HostError::QueueFull(_)
        | HostError::TooHigh(_)
        | HostError::UnknownTool(_)
        | HostError::UnknownModel { .. }
        | HostError::EmptyInput
        | HostError::Approval(_)
        | HostError::NoSuchSession(_)
        | HostError::NoSuchRecord { .. }
        | HostError::NotSuspended
        | HostError::KeyReused
        | HostError::Journal(_)
        | HostError::Rebuild(_)
        | HostError::SessionClosed
        | HostError::ShuttingDown => None,
    }
}

impl From<HostError> for ApiError {
    fn from(error: HostError) -> Self {
        Self::from_host(&error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, code, message, header } = self;
        let body = serde_json::json!({"error": {"code": code, "message": message}});
        let mut response = (status, axum::Json(body)).into_response();
        if let Some((name, value)) = header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_request_that_helps() {
        let error = ApiError::from(HostError::RunInProgress);
        assert_eq!(error.message, "run in progress; send \"queue\": true to wait for it");
        assert_eq!(error.status_and_code(), (409, "run_in_progress"));
        let error = ApiError::from(HostError::SessionExists);
        assert_eq!(error.message, "another session has this id");
    }
}
