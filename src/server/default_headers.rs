//! The headers of every answer that has not set them.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;

/// The headers of every answer that has not set them: browsers do not store it, do not guess its type, show it in no
/// frame, and give it to no page of another site.
const DEFAULT_HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

/// Adds [`DEFAULT_HEADERS`].
pub(super) fn with_default_headers(mut response: Response) -> Response {
    for (name, value) in DEFAULT_HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
