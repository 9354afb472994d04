//! The errors of a host and of a run as answers over HTTP: a status and the body `{"error":{"code","message"}}`, with the
//! headers of every answer. A handler of a program's own server returns them as its errors.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use callsheet_values::types::RunEnd;

use crate::runtime::{ClientResultError, ErrorKind, HostError, RunFailed};

/// The headers of every answer that has not set them: browsers do not store it, do not guess its type, show it in no
/// frame, and give it to no page of another site.
const DEFAULT_HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

/// Adds `DEFAULT_HEADERS`.
#[must_use]
pub fn with_default_headers(mut response: Response) -> Response {
    for (name, value) in DEFAULT_HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
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

    /// Returns the code in the API's answer. For a client, a closed session is the same as one that never existed.
    #[must_use]
    pub fn api_code(&self) -> &'static str {
        if matches!(self, Self::SessionClosed) { "no_such_session" } else { self.code() }
    }

    /// Returns the reason of a summary that failed.
    #[must_use]
    pub fn summary_failure(&self) -> Option<&'static str> {
        if let Self::SummaryFailed(reason) = self { Some(reason.as_str()) } else { None }
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
        let code = self.api_code();
        error_response(self.status(), code, &self.to_string(), self.summary_failure())
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

/// Returns the answer with an error.
#[must_use]
pub fn error_response(
    status: StatusCode,
    code: &str,
    message: &str,
    reason: Option<&str>,
) -> Response {
    let mut body = serde_json::json!({"error": {"code": code, "message": message}});
    if let (Some(reason), Some(error)) = (reason, body["error"].as_object_mut()) {
        error.insert("reason".to_owned(), reason.into());
    }
    let mut response = with_default_headers((status, axum::Json(body)).into_response());
    let is_of_next_host =
        [HostError::ShuttingDown, HostError::SessionMoved].iter().any(|error| error.code() == code);
    if status == StatusCode::TOO_MANY_REQUESTS || is_of_next_host {
        // The time until there is room, or the next host, is unknown, so the shortest wait is suggested.
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

#[cfg(test)]
mod tests {
    use callsheet_values::types::RunError;

    use super::*;

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
