//! Errors as clients of OpenAI read them: `{"error": {"message", "type", "param", "code"}}`.
//!
//! "run in progress" and other conflicts are 422 here, because these clients repeat a request after a 409.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::super::error::{ApiError, ErrorCode};
use callsheet_host::error_response::with_default_headers;
use callsheet_host::runtime::HostError;
use callsheet_machines::session::OUTPUT_INVALID;
use callsheet_values::config::ClientTool;

/// The beginnings of paths of OpenAI's API, behind `/v1`: of those that this host has, and of others that clients try.
const PATHS: [&str; 6] =
    ["/responses", "/chat", "/conversations", "/models", "/completions", "/embeddings"];

/// The names of parameters in the protocol of a face.
#[derive(Debug)]
pub(super) struct ParameterNames {
    /// The member of a tool that has its name: `.function`, or nothing.
    pub(super) function: &'static str,
    /// The member beside the name that has the schema of the arguments.
    pub(super) schema: &'static str,
    /// The form of the answer, and the member that has its schema.
    pub(super) format: &'static str,
    pub(super) output: &'static str,
    pub(super) instructions: &'static str,
    /// The maximum of tokens.
    pub(super) max_output: &'static str,
}

/// Returns whether a path belongs to OpenAI's API, also below the path at which this API is mounted.
pub(super) fn is_path(path: &str) -> bool {
    let is_own = |rest: &str| {
        let rest = PATHS.iter().find_map(|own| rest.strip_prefix(own));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    path.match_indices("/v1")
        .any(|(at, version)| path.get(at + version.len()..).is_some_and(is_own))
}

/// Returns an answer in OpenAI's form, if it is an error of the API.
pub(super) fn in_form(mut response: Response) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let mut answer = with_default_headers(OpenAiError::from(error).into_response());
    for (name, value) in response.headers() {
        answer.headers_mut().entry(name).or_insert_with(|| value.clone());
    }
    answer
}

/// Returns the error of a parameter that is wrong or not supported.
pub(super) fn wrong(param: impl Into<String>, problem: impl std::fmt::Display) -> OpenAiError {
    let param = param.into();
    let message = format!("{param}: {problem}");
    OpenAiError::new(StatusCode::BAD_REQUEST, "invalid_request", message).of_param(param)
}

/// An error response of the faces of OpenAI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenAiError {
    status: StatusCode,
    code: String,
    message: String,
    /// The parameter that is wrong.
    param: Option<String>,
    /// True if the same request gets the same error, whatever its status.
    is_final: bool,
    header: Option<(HeaderName, &'static str)>,
    /// The code of the API, by which a host finds out that another one has the session.
    api_code: Option<&'static str>,
}

impl OpenAiError {
    pub(super) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        let (code, message) = (code.to_owned(), message.into());
        let (param, is_final, header, api_code) = (None, false, None, None);
        Self { status, code, message, param, is_final, header, api_code }
    }

    /// Returns the error of a run that has ended. To send its request again is no use.
    pub(super) fn of_ended_run(code: &str, message: &str) -> Self {
        let status = match code {
            OUTPUT_INVALID => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::BAD_GATEWAY,
        };
        Self { is_final: true, ..Self::new(status, code, message) }
    }

    /// Returns the error of a request whose run does not start, and names the parameter that is wrong.
    pub(super) fn of_start(
        error: HostError,
        tools: Option<&[ClientTool]>,
        names: &ParameterNames,
    ) -> Self {
        let function = names.function;
        let index = |is_meant: &dyn Fn(&ClientTool) -> bool| tools?.iter().position(is_meant);
        let param = if let HostError::ToolNameTaken(name) = &error {
            index(&|tool| tool.name == *name).map(|at| format!("tools[{at}]{function}.name"))
        } else if let HostError::InvalidClientTool(problem) = &error {
            let is_meant =
                |tool: &ClientTool| problem.starts_with(&format!("register tool {:?}:", tool.name));
            let member =
                if problem.contains("the schema of its input") { names.schema } else { "name" };
            index(&is_meant).map(|at| format!("tools[{at}]{function}.{member}"))
        } else if let HostError::UnknownToolChoice { .. } = &error {
            Some("tool_choice".to_owned())
        } else if let HostError::InvalidOutput(_) = &error {
            Some(names.output.to_owned())
        } else {
            None
        };
        let error = Self::from(error);
        let Some(param) = param else { return error };
        // The words of the host begin with the names of its own parameters.
        let own = ["client_tools: ", "output.schema: ", "tool_choice: "];
        let own = own.into_iter().find_map(|own| error.message.strip_prefix(own));
        let problem = own.unwrap_or(&error.message);
        let problem = match problem.strip_prefix("register tool ") {
            Some(named) => named.split_once("\": ").map_or(named, |(_, problem)| problem),
            None => problem,
        };
        Self { message: format!("{param}: {problem}"), param: Some(param), ..error }
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
        if self.is_final || !repeats {
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
