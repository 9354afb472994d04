//! Errors of the API: a status code and the body `{"error":{"code","message"}}`.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use callsheet_host::error_response::error_response;
use callsheet_host::runtime::HostError;
use callsheet_values::types::SessionId;

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    header: Option<(HeaderName, &'static str)>,
    /// The reason of a summary that failed.
    reason: Option<&'static str>,
}

/// The code of an error response, as an extension of the response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorCode(pub(super) &'static str);

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), header: None, reason: None }
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

    /// Returns an error after which the same request may succeed.
    pub(super) fn retry_later(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { header: Some((header::RETRY_AFTER, "1")), ..Self::new(status, code, message) }
    }

    pub(super) fn internal(error: &dyn std::error::Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", error.to_string())
    }

    fn of_host(error: &HostError, remedy: Option<&str>) -> Self {
        let message = match remedy {
            Some(remedy) => format!("{error}; {remedy}"),
            None => error.to_string(),
        };
        let reason = error.summary_failure();
        Self { reason, ..Self::new(error.status(), error.api_code(), message) }
    }

    /// Returns the error of a request to start a run. If a run is in progress, it names the option that queues
    /// the input.
    pub(super) fn of_run_start(error: HostError) -> Self {
        match error == HostError::RunInProgress {
            true => Self::of_host(&error, Some("send \"queue\": true to wait for it")),
            false => error.into(),
        }
    }

    /// Names the session that the error is about, for a request about several.
    pub(super) fn of_session(self, session: &SessionId) -> Self {
        Self { message: format!("session {session}: {}", self.message), ..self }
    }

    /// Returns whether the body of the request is too large.
    pub(super) fn is_too_large(&self) -> bool {
        self.status == StatusCode::PAYLOAD_TOO_LARGE
    }

    /// Returns whether there is no such session.
    #[cfg(feature = "faces")]
    pub(super) fn is_no_such_session(&self) -> bool {
        self.code == "no_such_session"
    }

    /// Returns the status, the code, the message and a header.
    #[cfg(feature = "faces")]
    pub(super) fn into_parts(
        self,
    ) -> (StatusCode, &'static str, String, Option<(HeaderName, &'static str)>) {
        (self.status, self.code, self.message, self.header)
    }

    #[cfg(test)]
    pub(super) fn status_and_code(&self) -> (u16, &'static str) {
        (self.status.as_u16(), self.code)
    }
}

/// Returns the advice for an error that another request of the API can resolve.
fn remedy(error: &HostError) -> Option<&'static str> {
    match error {
        HostError::Suspended => Some("POST .../resume resumes it, .../stop stops it"),
        HostError::NoRun => Some("POST .../runs starts one"),
        HostError::UnknownEventId { .. } => Some("send 0 to read all events from the beginning"),
        HostError::Config(_)
        | HostError::UnknownAgent { .. }
        | HostError::AgentGone(_)
        | HostError::InvalidSessionId
        | HostError::ReservedSessionId
        | HostError::SessionExists
        | HostError::InvalidMessages(_)
        | HostError::RunInProgress
        | HostError::NoSuchInput
        | HostError::AlreadyStarted
        | HostError::InputRemoved
        | HostError::Full(_)
        | HostError::StoreFull
        | HostError::QueueFull(_)
        | HostError::SessionTooLarge(_)
        | HostError::InvalidOverride(_)
        | HostError::UnknownTool(_)
        | HostError::UnknownModel { .. }
        | HostError::UnknownToolChoice { .. }
        | HostError::OverrideNotAllowed(_)
        | HostError::InvalidOutput(_)
        | HostError::InvalidVariable(_)
        | HostError::InvalidClientTool(_)
        | HostError::ToolNameTaken(_)
        | HostError::ClientResult(_)
        | HostError::EmptyInput
        | HostError::Approval(_)
        | HostError::NoSuchSession(_)
        | HostError::NoSuchRecord { .. }
        | HostError::NoSuchResult(_)
        | HostError::NoSuchMessage(_)
        | HostError::NotAnInput(_)
        | HostError::NotSuspended
        | HostError::KeyReused
        | HostError::NothingToCompact
        | HostError::SummaryFailed(_)
        | HostError::Journal(_)
        | HostError::Rebuild(_)
        | HostError::SessionClosed
        | HostError::ShuttingDown
        | HostError::SessionMoved => None,
    }
}

impl From<HostError> for ApiError {
    fn from(error: HostError) -> Self {
        Self::of_host(&error, remedy(&error))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, code, message, header, reason } = &self;
        let mut response = error_response(*status, code, message, *reason);
        response.extensions_mut().insert(ErrorCode(code));
        if let Some((name, value)) = header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        // A face answers with the error in the form of its protocol.
        #[cfg(feature = "faces")]
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_request_that_helps() {
        let error = ApiError::of_run_start(HostError::RunInProgress);
        assert_eq!(error.message, "run in progress; send \"queue\": true to wait for it");
        assert_eq!(error.status_and_code(), (409, "run_in_progress"));
        // Other requests than the start of a run cannot wait.
        let error = ApiError::from(HostError::RunInProgress);
        assert_eq!(error.message, "run in progress");
        let error = ApiError::of_run_start(HostError::NoRun);
        assert_eq!(error, ApiError::from(HostError::NoRun));
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
