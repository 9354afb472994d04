//! Errors of the API: a status code and the body `{"error":{"code","message"}}`. [`HostError`] is
//! such a response too.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::runtime::{ErrorKind, HostError};

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

    fn of_host(error: &HostError, remedy: Option<&str>) -> Self {
        let status = error.status();
        // The time at which a run ends is unknown, so the shortest wait is suggested.
        let header =
            (status == StatusCode::TOO_MANY_REQUESTS).then_some((header::RETRY_AFTER, "1"));
        // A client cannot know a closed session from one that never was.
        let is_closed = matches!(error, HostError::SessionClosed);
        let code = if is_closed { "no_such_session" } else { error.code() };
        let message = match remedy {
            Some(remedy) => format!("{error}; {remedy}"),
            None => error.to_string(),
        };
        Self { header, ..Self::new(status, code, message) }
    }

    #[cfg(test)]
    pub(super) fn status_and_code(&self) -> (u16, &'static str) {
        (self.status.as_u16(), self.code)
    }
}

impl HostError {
    /// Returns the HTTP status of the API's answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        if *self == Self::KeyReused {
            return StatusCode::UNPROCESSABLE_ENTITY;
        }
        // The position is a parameter of the request, not its path.
        if matches!(self, Self::NoSuchRecord { .. } | Self::UnknownEventId { .. }) {
            return StatusCode::BAD_REQUEST;
        }
        match self.kind() {
            ErrorKind::InvalidRequest => StatusCode::BAD_REQUEST,
            ErrorKind::Journal if self.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::Busy => StatusCode::TOO_MANY_REQUESTS,
            ErrorKind::Closed => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Config | ErrorKind::Journal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// The API's error response: [`HostError::status`], and the body `{"error":{"code","message"}}` with
/// [`HostError::code`] and the text of the error. The code of a closed session is `no_such_session`.
///
/// ```
/// use axum::extract::State;
/// use callsheet::prelude::*;
///
/// async fn ask(State(host): State<Host>, question: String) -> Result<String, HostError> {
///     let session = host.open_session(OpenSession::default()).await?;
///     Ok(session.run(question).await?.text)
/// }
/// ```
impl IntoResponse for HostError {
    fn into_response(self) -> Response {
        ApiError::of_host(&self, None).into_response()
    }
}

/// Returns the request of the API that helps, for errors that another request can resolve.
fn remedy(error: &HostError) -> Option<&'static str> {
    match error {
        HostError::RunInProgress => Some("send \"queue\": true to wait for it"),
        HostError::Suspended => Some("POST .../resume resumes it, .../stop stops it"),
        HostError::NoRun => Some("POST .../runs starts one"),
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
        Self::of_host(&error, remedy(&error))
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

    #[test]
    fn a_host_error_is_a_response_without_words_about_the_api() {
        let response = HostError::RunInProgress.into_response();
        assert_eq!(response.status(), HostError::RunInProgress.status());
        let error = ApiError::of_host(&HostError::RunInProgress, None);
        assert_eq!((error.code, &*error.message), ("run_in_progress", "run in progress"));
        let full = HostError::QueueFull(3).into_response();
        assert_eq!(full.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(full.headers().get(header::RETRY_AFTER), Some(&HeaderValue::from_static("1")));
        let closed = ApiError::of_host(&HostError::SessionClosed, None);
        assert_eq!(closed.status_and_code(), (404, "no_such_session"));
    }
}
