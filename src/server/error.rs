//! What goes wrong with a request, as `{"error":{"code","message"}}` and a fitting status.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::runtime::HostError;
use crate::turn::ApprovalError;

/// An answer that is no success.
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
        let message = "this host needs Authorization: Bearer with its token";
        let header = Some((header::WWW_AUTHENTICATE, "Bearer realm=\"callsheet\""));
        Self { header, ..Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message) }
    }

    /// What a host's refusal is over HTTP.
    fn of_host(error: &HostError) -> Self {
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
        // Runs end and make room; nobody knows when, so the shortest wait is said.
        let header =
            (status == StatusCode::TOO_MANY_REQUESTS).then_some((header::RETRY_AFTER, "1"));
        Self { header, ..Self::new(status, error.code(), error.to_string()) }
    }

    #[cfg(test)]
    pub(super) fn shown(&self) -> (u16, &'static str) {
        (self.status.as_u16(), self.code)
    }
}

impl From<HostError> for ApiError {
    fn from(error: HostError) -> Self {
        Self::of_host(&error)
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
