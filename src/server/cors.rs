//! CORS: lets pages of other origins use the API, if the configuration names their origins.
//!
//! A browser asks with a preflight request before it sends a request of such a page, and gives the page an answer only
//! if the answer names the page's origin. Credentials of the browser, such as cookies, are never allowed: a page sends
//! the token itself.

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use callsheet_host::error_response::with_default_headers;

/// The methods of the API.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");

/// The headers of requests that are allowed if a preflight request does not ask for any.
const REQUEST_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, idempotency-key, last-event-id, x-callsheet-session",
);

/// The headers of answers that pages may read.
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static(
    "x-callsheet-session, x-callsheet-ignored, retry-after, www-authenticate, x-vercel-ai-ui-message-stream, \
     callsheet-attempt, callsheet-model",
);

/// The seconds for which a browser need not repeat a preflight request: two hours, the longest time that browsers take.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");

const PRIVATE_NETWORK_ASKED: &str = "access-control-request-private-network";
const PRIVATE_NETWORK_ALLOWED: &str = "access-control-allow-private-network";

/// The origins of pages that may use the API.
#[derive(Clone, Debug, Default)]
pub(super) struct AllowedOrigins(Vec<HeaderValue>);

impl AllowedOrigins {
    /// Adds an origin. A text that cannot be a header's value is no origin of a page.
    pub(super) fn add(&mut self, origin: &str) {
        self.0.extend(HeaderValue::try_from(origin.to_ascii_lowercase()).ok());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, origin: &HeaderValue) -> bool {
        self.0.contains(origin)
    }

    /// Returns the allowed origin of the page that sends a request.
    pub(super) fn find(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let mut sent = headers.get_all(header::ORIGIN).iter();
        let (Some(origin), None) = (sent.next(), sent.next()) else { return None };
        self.has(origin).then(|| origin.clone())
    }
}

/// Returns whether a request only asks if the page may send another one.
pub(super) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Answers a preflight request of an allowed page.
pub(super) fn preflight(asked: &HeaderMap) -> Response {
    let mut answer = with_default_headers(StatusCode::NO_CONTENT.into_response());
    let headers = answer.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    let names = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.unwrap_or(REQUEST_HEADERS));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    // A page of a public address asks for a host in a private network, such as a loopback address.
    if asked.contains_key(PRIVATE_NETWORK_ASKED) {
        headers.insert(PRIVATE_NETWORK_ALLOWED, HeaderValue::from_static("true"));
    }
    answer
}

/// Gives an answer to the page of an allowed origin.
pub(super) fn with_origin(mut answer: Response, origin: HeaderValue) -> Response {
    let headers = answer.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
    vary(answer)
}

/// Says that answers to other origins differ, so that a cache does not mix them up.
pub(super) fn vary(mut answer: Response) -> Response {
    answer.headers_mut().append(header::VARY, HeaderValue::from_static("Origin"));
    answer
}
