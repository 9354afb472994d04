//! Errors as clients of OpenAI read them: `{"error": {"message", "type", "param", "code"}}`.
//!
//! "run in progress" and other conflicts are 422 here, because these clients repeat a request after a 409.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::super::error::{ApiError, ErrorCode};
use callsheet_host::runtime::HostError;

/// An error response of the faces of OpenAI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenAiError {
    status: StatusCode,
    code: String,
    message: String,
    /// The parameter that is wrong.
    param: Option<String>,
    header: Option<(HeaderName, &'static str)>,
    /// The code of the API, by which a host finds out that another one has the session.
    api_code: Option<&'static str>,
}

impl OpenAiError {
    pub(super) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        let (code, message) = (code.to_owned(), message.into());
        Self { status, code, message, param: None, header: None, api_code: None }
    }

    /// Returns the error of a request with a wrong or unsupported parameter.
    pub(super) fn parameter(param: impl Into<String>, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_request", message);
        Self { param: Some(param.into()), ..error }
    }

    /// Names the parameter that the error is about.
    pub(super) fn of_param(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    /// Returns the error of a request for a model that no agent is.
    pub(super) fn no_such_model(model: &str, agents: &[String]) -> Self {
        let model = callsheet_values::types::excerpt(model, 64);
        let agents = agents.join(", ");
        let message = format!("the model {model:?} does not exist; the agents are: {agents}");
        let error = Self::new(StatusCode::NOT_FOUND, "model_not_found", message);
        Self { param: Some("model".to_owned()), ..error }
    }

    /// Returns the status.
    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns whether something does not exist.
    pub(super) fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }

    /// Returns the body.
    pub(super) fn to_json(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let Self { code, message, param, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }
}

impl std::fmt::Display for OpenAiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ApiError> for OpenAiError {
    fn from(error: ApiError) -> Self {
        let (status, code, message, header) = error.into_parts();
        let status = match status {
            StatusCode::CONFLICT => StatusCode::UNPROCESSABLE_ENTITY,
            status => status,
        };
        Self { header, api_code: Some(code), ..Self::new(status, code, message) }
    }
}

impl From<HostError> for OpenAiError {
    fn from(error: HostError) -> Self {
        ApiError::from(error).into()
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_json())).into_response();
        // The SDKs of OpenAI repeat a request after some errors unless the answer says that this is no use.
        let repeats = self.status.is_server_error()
            || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&self.status);
        if !repeats {
            let never = HeaderValue::from_static("false");
            response.headers_mut().insert("x-should-retry", never);
        }
        if let Some((name, value)) = self.header {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        if let Some(code) = self.api_code {
            response.extensions_mut().insert(ErrorCode(code));
        }
        response
    }
}
