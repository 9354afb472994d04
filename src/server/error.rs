//! Errors of the API: a status code and the body `{"error":{"code","message"}}`. [`HostError`] and
//! [`RunFailed`] are such responses too.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::default_headers::with_default_headers;
use crate::runtime::{ClientResultError, ErrorKind, HostError, RunFailed};
use crate::types::{RunEnd, SessionId};

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
        let status = error.status();
        // The time until there is room is unknown, so the shortest wait is suggested.
        let header =
            (status == StatusCode::TOO_MANY_REQUESTS).then_some((header::RETRY_AFTER, "1"));
        // For a client, a closed session is the same as one that never existed.
        let is_closed = matches!(error, HostError::SessionClosed);
        let code = if is_closed { "no_such_session" } else { error.code() };
        let message = match remedy {
            Some(remedy) => format!("{error}; {remedy}"),
            None => error.to_string(),
        };
        let reason =
            if let HostError::SummaryFailed(reason) = error { Some(reason.as_str()) } else { None };
        Self { header, reason, ..Self::new(status, code, message) }
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

    #[cfg(test)]
    pub(super) fn status_and_code(&self) -> (u16, &'static str) {
        (self.status.as_u16(), self.code)
    }
}

impl HostError {
    /// Returns the HTTP status of the API's answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        if matches!(self, Self::SummaryFailed(_)) {
            return StatusCode::BAD_GATEWAY;
        }
        // Their kind is `InvalidRequest`, but the body is well formed, so they are not 400.
        if matches!(self, Self::KeyReused | Self::NothingToCompact) {
            return StatusCode::UNPROCESSABLE_ENTITY;
        }
        let is_large =
            |error: &ClientResultError| matches!(error, ClientResultError::TooLarge { .. });
        if matches!(self, Self::SessionTooLarge(_))
            || matches!(self, Self::ClientResult(error) if is_large(error))
        {
            return StatusCode::PAYLOAD_TOO_LARGE;
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

impl RunFailed {
    /// Returns the HTTP status for an answer that a run did not give: 502 if the run could not continue, for
    /// example because the service failed, 504 after a timeout, 503 if the host shut down, 409 if the run was
    /// stopped, and 422 otherwise.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.run_end {
            RunEnd::Failed => StatusCode::BAD_GATEWAY,
            RunEnd::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            RunEnd::Interrupted => StatusCode::SERVICE_UNAVAILABLE,
            RunEnd::Stopped => StatusCode::CONFLICT,
            // `Answered` does not occur: `RunReport::text` fails only for the other ends.
            RunEnd::Answered
            | RunEnd::MaxTurns
            | RunEnd::Refused
            | RunEnd::AllToolsFailed
            | RunEnd::Budget
            | RunEnd::LoopDetected => StatusCode::UNPROCESSABLE_ENTITY,
        }
    }
}

/// An error response in the form of the API. The code is that of the run's error, or else the run end.
///
/// ```
/// use axum::extract::State;
/// use callsheet::prelude::*;
///
/// // The error of an `axum::response::Result` is any response.
/// async fn ask(State(host): State<Host>, question: String) -> axum::response::Result<String> {
///     let session = host.open_session(OpenSession::default()).await?;
///     Ok(session.run(question).await?.text()?.to_owned())
/// }
/// ```
impl IntoResponse for RunFailed {
    fn into_response(self) -> Response {
        let code = match &self.error {
            Some(error) => error.code.clone(),
            None => self.run_end.as_str().to_owned(),
        };
        error_response(self.status(), &code, &self.to_string(), None)
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
        | HostError::Full(_)
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
        | HostError::NotSuspended
        | HostError::KeyReused
        | HostError::NothingToCompact
        | HostError::SummaryFailed(_)
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
        let Self { status, code, message, header, reason } = self;
        let mut response = error_response(status, code, &message, reason);
        if let Some((name, value)) = header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

fn error_response(status: StatusCode, code: &str, message: &str, reason: Option<&str>) -> Response {
    let mut body = serde_json::json!({"error": {"code": code, "message": message}});
    if let (Some(reason), Some(error)) = (reason, body["error"].as_object_mut()) {
        error.insert("reason".to_owned(), reason.into());
    }
    with_default_headers((status, axum::Json(body)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::RunError;

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

    #[test]
    fn a_failed_run_is_a_response_with_the_code_of_its_error() {
        let error = RunError {
            code: "provider_error".to_owned(),
            message: "it broke".to_owned(),
            transient: true,
        };
        for (run_end, expected) in [(RunEnd::Failed, 502), (RunEnd::TimedOut, 504)] {
            let failed = RunFailed { run_end, error: Some(error.clone()) };
            assert_eq!(failed.status().as_u16(), expected);
            assert_eq!(failed.into_response().status().as_u16(), expected);
        }
        assert_eq!(RunFailed { run_end: RunEnd::Budget, error: None }.status().as_u16(), 422);
    }
}
