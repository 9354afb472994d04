//! The errors of the MCP library (`rmcp`): their causes, and their texts for people.

use std::error::Error;
use std::time::{Duration, SystemTime};

use reqwest::{StatusCode, Url};
use rmcp::model::ErrorData;
use rmcp::service::{ClientInitializeError, ServiceError};
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use crate::http::response::status_line;
use crate::retry_after;
use callsheet_values::types::CUT_MARK;

/// An error of the transport to a server at a URL.
pub(super) type TransportError = StreamableHttpError<reqwest::Error>;

/// The text of the library before a body that is no message in JSON, of which it keeps this number of bytes.
const INVALID_JSON: &str = "could not parse JSON response";
const INVALID_JSON_BYTES_MAX: usize = 256;

/// The text of an error that means that the server has lost the session.
pub(super) const SESSION_LOST: &str = "the server does not know its session any more";

/// A redirect that the host does not follow.
#[derive(Debug, thiserror::Error)]
#[error("HTTP {}, redirects to {target}", status_line(*.status))]
pub(super) struct RefusedRedirect {
    pub(super) status: StatusCode,
    /// The URL to which it leads, without query and password.
    pub(super) target: Url,
}

/// Returns the redirect that caused an error of the library, if it was one.
pub(super) fn refused_redirect<'e>(
    error: &'e (dyn Error + 'static),
) -> Option<&'e RefusedRedirect> {
    let Some(StreamableHttpError::Client(error)) = http_error(error) else { return None };
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(refused) = error.downcast_ref() {
            return Some(refused);
        }
        cause = error.source();
    }
    None
}

/// The status of failure with which a service answered a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HttpFailure {
    pub(super) status: u16,
    /// The wait that the service asks for. The library keeps it only for the status 429 and those of 500 and above.
    pub(super) wait: Option<Duration>,
}

impl HttpFailure {
    /// Returns the status of failure that caused an error of the library, if there is one.
    pub(super) fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        if let Some(redirect) = refused_redirect(error) {
            return Some(Self { status: redirect.status.as_u16(), wait: None });
        }
        let status: u16 = match http_error(error) {
            Some(StreamableHttpError::HttpStatus(error)) => {
                let value = error.retry_after.as_deref();
                let header = |name: &str| value.filter(|_| name == "retry-after");
                let wait = retry_after(header, SystemTime::now());
                return Some(Self { status: error.status, wait });
            }
            Some(StreamableHttpError::AuthRequired(_)) => 401,
            Some(StreamableHttpError::InsufficientScope(_)) => 403,
            // The library has most other statuses only in this text. The 404 of a lost session
            // (`SessionExpired`) and the 405 of a missing stream are not failures of a request here.
            Some(StreamableHttpError::UnexpectedServerResponse(text)) => {
                text.strip_prefix("HTTP ")?.get(..3)?.parse().ok()?
            }
            Some(_) | None => return None,
        };
        Some(Self { status, wait: None })
    }
}

/// Returns whether the server refused the secret headers of a request, which it did not read then (401).
pub(super) fn is_unauthorized(error: &TransportError) -> bool {
    if let StreamableHttpError::Client(error) = error {
        return error.status() == Some(StatusCode::UNAUTHORIZED);
    }
    HttpFailure::of(error).is_some_and(|failure| failure.status == 401)
}

/// Returns the error of the HTTP transport that caused an error of the library, if there is one.
pub(super) fn http_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e TransportError> {
    transport_cause(error).downcast_ref()
}

/// Returns whether a service answered a request, but not with a message of the protocol.
pub(super) fn is_invalid_answer(error: &(dyn Error + 'static)) -> bool {
    matches!(
        http_error(error),
        Some(
            StreamableHttpError::UnexpectedServerResponse(_)
                | StreamableHttpError::UnexpectedContentType(_)
                | StreamableHttpError::ResponseBodyTooLarge { .. }
        )
    )
}

/// Returns the error of the transport that caused an error of the library, or the error itself. The library does not
/// pass it on as a source, and its own texts name the Rust types of the transport.
fn transport_cause<'e>(error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
    let mut cause = Some(error);
    while let Some(current) = cause {
        let transport = match current.downcast_ref() {
            Some(ClientInitializeError::TransportError { error, .. }) => Some(error),
            Some(ClientInitializeError::LegacyFallbackFailed { fallback, .. }) => {
                return transport_cause(&**fallback);
            }
            Some(_) | None => current.downcast_ref::<DynamicTransportError>(),
        };
        if let Some(transport) = transport {
            return &*transport.error;
        }
        cause = current.source();
    }
    error
}

/// Returns the texts of an error of the library and of its sources. This function does not cut a body, so that
/// secrets can be replaced first. Where the library may have cut one, [`CUT_MARK`] shows it.
pub(super) fn error_chain(error: &(dyn Error + 'static)) -> String {
    let cause = transport_cause(error);
    if let Some(error) = answered_error(cause) {
        return answered_text(error);
    }
    if let Some(redirect) = refused_redirect(cause) {
        return redirect.to_string();
    }
    let cause = match cause.downcast_ref::<TransportError>() {
        Some(StreamableHttpError::UnexpectedServerResponse(text)) => {
            // After the status there is a body, which may be empty.
            let text = text.trim_end().trim_end_matches(':');
            // The body may have been cut, and then may end within a secret.
            let is_cut = text.starts_with(INVALID_JSON) && text.len() >= INVALID_JSON_BYTES_MAX;
            return if is_cut { format!("{text}{CUT_MARK}") } else { text.to_owned() };
        }
        Some(StreamableHttpError::HttpStatus(error)) => return status_text(error.status),
        Some(StreamableHttpError::SessionExpired) => return SESSION_LOST.to_owned(),
        Some(StreamableHttpError::AuthRequired(error)) => {
            return format!("{}: {}", status_text(401), error.www_authenticate_header);
        }
        Some(StreamableHttpError::InsufficientScope(error)) => {
            return format!("{}: {}", status_text(403), error.www_authenticate_header);
        }
        Some(StreamableHttpError::Client(error)) => {
            let text = source_chain(error);
            return match error.url() {
                Some(url) => text.replace(url.as_str(), without_query(url).as_str()),
                None => text,
            };
        }
        Some(_) | None => cause,
    };
    source_chain(cause)
}

/// Returns a URL without its query and fragment, which may contain an API key.
pub(super) fn without_query(url: &Url) -> Url {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // These fail only for URLs without a host.
    let _ = (url.set_username(""), url.set_password(None));
    url
}

/// Returns the texts of an error and of its sources, without those that repeat an earlier text.
fn source_chain(cause: &(dyn Error + 'static)) -> String {
    let mut text = cause.to_string();
    let mut source = cause.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}

/// Returns the text of the error with which a server answered a request.
pub(super) fn answered_text(error: &ErrorData) -> String {
    format!("{} (code {})", error.message, error.code.0)
}

/// Returns the error with which the server answered the request, if it did.
fn answered_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e ErrorData> {
    if let Some(ServiceError::McpError(error)) = error.downcast_ref() {
        return Some(error);
    }
    match error.downcast_ref() {
        Some(ClientInitializeError::JsonRpcError(error)) => Some(error),
        Some(_) | None => None,
    }
}

fn status_text(status: u16) -> String {
    match StatusCode::from_u16(status) {
        Ok(status) => format!("HTTP {}", status_line(status)),
        Err(_) => format!("HTTP {status}"),
    }
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use rmcp::transport::streamable_http_client::HttpStatusError;

    use super::*;
    use callsheet_values::types::Secrets;

    fn sent(error: TransportError) -> ServiceError {
        let name = "rmcp::transport::worker::WorkerTransport<A>";
        let error = DynamicTransportError::from_parts(name, TypeId::of::<()>(), Box::new(error));
        ServiceError::TransportSend(error)
    }

    fn unexpected(text: &'static str) -> ServiceError {
        sent(StreamableHttpError::UnexpectedServerResponse(text.into()))
    }

    #[test]
    fn the_status_of_a_refusal_is_read() {
        let failure = |error: &ServiceError| {
            HttpFailure::of(error).map(|failure| (failure.status, failure.wait))
        };
        let busy = sent(HttpStatusError::new(429, Some("7".to_owned())).into());
        assert_eq!(failure(&busy), Some((429, Some(Duration::from_secs(7)))));
        assert_eq!(error_chain(&busy), "HTTP 429 Too Many Requests");
        let refused = unexpected("HTTP 400 Bad Request: no such city");
        assert_eq!(failure(&refused), Some((400, None)));
        assert_eq!(error_chain(&refused), "HTTP 400 Bad Request: no such city");
        assert_eq!(error_chain(&unexpected("HTTP 404 Not Found: ")), "HTTP 404 Not Found");
        let invalid = unexpected("could not parse JSON response");
        assert_eq!(failure(&invalid), None);
        assert!(is_invalid_answer(&invalid));
        assert_eq!(failure(&ServiceError::TransportClosed), None);
    }

    #[test]
    fn the_beginning_of_a_secret_at_the_end_of_a_cut_body_is_replaced() {
        let secrets = Secrets::new(["sk-live-0123456789"]);
        // The library keeps 256 bytes of the body.
        let body = format!("{}sk-live-0123", "x".repeat(244));
        let text = format!(
            "could not parse JSON response as ServerJsonRpcMessage: expected value: {body}"
        );
        let reason = error_chain(&unexpected(text.leak()));
        assert!(secrets.redact_excerpts(&reason).ends_with("xx[redacted]\u{2026}"), "{reason}");
        let short =
            "could not parse JSON response as ServerJsonRpcMessage: expected value: <empty>";
        assert_eq!(error_chain(&unexpected(short)), short);
    }

    #[test]
    fn the_fallback_of_the_handshake_is_the_cause() {
        let discover = ErrorData::invalid_request("no", None);
        let error = StreamableHttpError::UnexpectedServerResponse("HTTP 404 Not Found: ".into());
        let error: Box<TransportError> = Box::new(error);
        let error = DynamicTransportError::from_parts("T", TypeId::of::<()>(), error);
        let failed = ClientInitializeError::LegacyFallbackFailed {
            discover: Box::new(ClientInitializeError::JsonRpcError(discover)),
            fallback: Box::new(ClientInitializeError::TransportError {
                error,
                context: "send initialize request".into(),
            }),
        };
        assert_eq!(error_chain(&failed), "HTTP 404 Not Found");
        assert_eq!(HttpFailure::of(&failed), Some(HttpFailure { status: 404, wait: None }));
    }
}
