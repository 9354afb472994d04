//! Extractors of requests: strict parsing of paths, bodies and queries, in which unknown members are
//! errors, and the session that a path names.

use std::fmt;
use std::marker::PhantomData;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, FailedToBufferBody};
use axum::extract::{
    DefaultBodyLimit, FromRequest, FromRequestParts, Query, RawPathParams, Request,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header, request::Parts};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::ApiError;
use super::state::AppState;
use crate::record::RequestKey;
use crate::runtime::SessionHandle;
use crate::types::SessionId;

/// Maximum length of an `Idempotency-Key`.
const KEY_BYTES_MAX: usize = 255;

/// A JSON body without members that its type does not have.
#[derive(Debug)]
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<AppState> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let KeyedBody(body, _) = KeyedBody::from_request(request, state).await?;
        Ok(Self(body))
    }
}

/// A JSON body as [`JsonBody`], with the request's `Idempotency-Key` if it has one.
#[derive(Debug)]
pub(super) struct KeyedBody<T>(pub(super) T, pub(super) Option<RequestKey>);

impl<T: DeserializeOwned> FromRequest<AppState> for KeyedBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        check_media_type(request.headers())?;
        // The parameters of a request with a body are members of the body.
        let EmptyBody {} = parse_query(request.uri())?;
        let keys: Vec<HeaderValue> =
            request.headers().get_all("idempotency-key").iter().cloned().collect();
        let uri = request.uri().clone();
        let bytes = read_in_time(request, state).await?;
        let parsed = parse(&bytes)?;
        Ok(Self(parsed, request_key(&keys, &uri, &bytes)?))
    }
}

/// The body of a request that needs none: no bytes, or a JSON object without members.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EmptyBody {}

impl FromRequest<AppState> for EmptyBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let media_type = check_media_type(request.headers());
        let Self {} = parse_query(request.uri())?;
        let bytes = read_in_time(request, state).await?;
        if bytes.is_empty() {
            return Ok(Self {});
        }
        media_type?;
        parse(&bytes)
    }
}

/// A JSON body as [`JsonBody`], whose size is that of a result: a larger one is reported as such.
#[derive(Debug)]
pub(super) struct ResultBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<AppState> for ResultBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        match JsonBody::from_request(request, state).await {
            Ok(JsonBody(body)) => Ok(Self(body)),
            Err(error) if error.is_too_large() => {
                let maximum = state.options.body_bytes_max;
                let message = format!("the result has more than {maximum} bytes, as JSON");
                Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "result_too_large", message))
            }
            Err(error) => Err(error),
        }
    }
}

/// Reads a body within the server's limits of size and time.
async fn read_in_time(request: Request, state: &AppState) -> Result<Bytes, ApiError> {
    let (bytes_max, time) = (state.options.body_bytes_max, state.options.body_timeout);
    tokio::time::timeout(time, read(request, bytes_max)).await.map_err(|_| {
        let message = format!("the body did not arrive within {} s", time.as_secs_f64());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
    })?
}

/// Reads a body of at most `bytes_max` bytes. Refuses a longer `Content-Length` at once.
async fn read(mut request: Request, bytes_max: usize) -> Result<Bytes, ApiError> {
    let too_large = || {
        let message = format!("the body has more than {bytes_max} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let declared = request.headers().get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > bytes_max as u64) {
        return Err(too_large());
    }
    DefaultBodyLimit::max(bytes_max).apply(&mut request);
    Bytes::from_request(request, &()).await.map_err(|rejection| {
        let is_too_large = matches!(
            rejection,
            BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_))
        );
        if is_too_large {
            return too_large();
        }
        let message = format!("the connection broke in the body: {}", rejection.body_text());
        ApiError::bad_request("body_broken", message)
    })
}

/// Returns the request's `Idempotency-Key`, with a digest of the path and of the body. The order of
/// the body's members does not change the digest.
fn request_key(
    keys: &[HeaderValue],
    uri: &Uri,
    body: &[u8],
) -> Result<Option<RequestKey>, ApiError> {
    let key = match keys {
        [] => return Ok(None),
        [key] => key.to_str().ok().filter(|text| (1..=KEY_BYTES_MAX).contains(&text.len())),
        [_, _, ..] => None,
    };
    let key = key.ok_or_else(|| {
        let message = format!(
            "Idempotency-Key: send one key of 1 to {KEY_BYTES_MAX} visible ASCII characters"
        );
        ApiError::bad_request("invalid_request", message)
    })?;
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    Ok(Some(RequestKey::new(key, &format!("{} {body}", uri.path()))))
}

/// The parameters of the path, decoded.
#[derive(Debug)]
pub(super) struct PathParameters(RawPathParams);

impl PathParameters {
    /// Returns the value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PathParameters {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let parameters = RawPathParams::from_request_parts(parts, state).await;
        parameters.map(Self).map_err(|_| {
            let message = "the path contains percent-encoded bytes that are not UTF-8";
            ApiError::not_found("not_found", message)
        })
    }
}

/// The session that the path names. Does not check that the session exists; the first request to it
/// does.
#[derive(Debug)]
pub(super) struct PathSession(pub(super) SessionHandle);

impl FromRequestParts<AppState> for PathSession {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        // A path may have more parameters than the session's id.
        let parameters = PathParameters::from_request_parts(parts, state).await?;
        let Some(text) = parameters.get("id") else {
            return Err(ApiError::no_such_session(""));
        };
        // A text that is not an id cannot name a session.
        SessionId::parse(text)
            .ok()
            .map(|id| Self(state.host.session(&id)))
            .ok_or_else(|| ApiError::no_such_session(&crate::types::excerpt(text, 64)))
    }
}

/// A query without parameters that its type does not have.
#[derive(Debug)]
pub(super) struct StrictQuery<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for StrictQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        parse_query(&parts.uri).map(Self)
    }
}

fn parse_query<T: DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    Query::try_from_uri(uri).map(|Query(query)| query).map_err(|rejection| {
        let reason = std::error::Error::source(&rejection)
            .map_or_else(|| rejection.to_string(), ToString::to_string);
        ApiError::bad_request("invalid_request", format!("invalid query: {reason}"))
    })
}

/// A JSON object. serde alone would also accept an array with the values of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StrictObject<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for StrictObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields))
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

/// Parses a body. The error names the line and column, and unknown or missing members.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map(|StrictObject(body)| body).map_err(|error| {
        let invalid_request = |reason: String| {
            ApiError::bad_request("invalid_request", format!("invalid body: {reason}"))
        };
        match error.classify() {
            serde_json::error::Category::Data => invalid_request(error.to_string()),
            // serde also reports a syntax error if a value of valid JSON cannot be read, such as a
            // number that is too large.
            serde_json::error::Category::Syntax
                if serde_json::from_slice::<IgnoredAny>(bytes).is_ok() =>
            {
                let reason = error.to_string();
                // It says this if an enum's value is not a string.
                invalid_request(match reason.strip_prefix("expected value at ") {
                    Some(place) => format!("expected a string at {place}"),
                    None => reason,
                })
            }
            serde_json::error::Category::Io
            | serde_json::error::Category::Syntax
            | serde_json::error::Category::Eof => {
                ApiError::bad_request("invalid_json", format!("the body is not JSON: {error}"))
            }
        }
    })
}

/// Refuses a body whose `Content-Type` is not JSON.
fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    if is_json(headers) {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        "the body must be JSON, with Content-Type: application/json",
    ))
}

fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests {
    use tower_service::Service as _;

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        #[expect(dead_code, reason = "only read by serde")]
        input: String,
        #[expect(dead_code, reason = "only read by serde")]
        inner: Option<StrictObject<SampleInner>>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct SampleInner {
        #[expect(dead_code, reason = "only read by serde")]
        mode: crate::record::StopMode,
    }

    #[test]
    fn errors_of_a_body_name_line_and_column() {
        for (text, code, part) in [
            ("{\"input\":\"a\",\"inputs\":1}", "invalid_request", "unknown field `inputs`"),
            ("{}", "invalid_request", "missing field `input`"),
            ("{\"input\":1}", "invalid_request", "line 1 column 10"),
            ("[1]", "invalid_request", "invalid type: sequence, expected an object"),
            (" [\"a\"]", "invalid_request", "expected an object"),
            ("\"a\"", "invalid_request", "expected an object"),
            ("{\"input\":\"a\",\"inner\":[\"now\"]}", "invalid_request", "expected an object"),
            (
                "{\"input\":\"a\",\"inner\":{\"mode\":5}}",
                "invalid_request",
                "expected a string at line 1",
            ),
            (
                "{\"input\":\"a\",\"inner\":{\"mode\":[true]}}",
                "invalid_request",
                "expected a string",
            ),
            ("{\"input\":\"a\",\"inner\":{\"x\":5}}", "invalid_request", "line 1 column 25"),
            ("{\"input\":1e999}", "invalid_request", "number out of range at line 1 column"),
            ("{\n\"input\" 1}", "invalid_json", "line 2 column 9"),
            ("", "invalid_json", "line 1 column 0"),
            ("{\"input\":\"a\"} x", "invalid_json", "trailing"),
        ] {
            let error = parse::<Sample>(text.as_bytes()).expect_err("refuse");
            assert_eq!(error.status_and_code(), (400, code), "{text}");
            assert!(format!("{error:?}").contains(part), "{text}: {error:?}");
        }
    }

    #[tokio::test]
    async fn a_path_that_is_not_utf8_is_refused_in_the_form_of_the_api() {
        async fn name(path: PathParameters) -> String {
            path.get("name").unwrap_or_default().to_owned()
        }
        let mut router: axum::Router =
            axum::Router::new().route("/{name}/call", axum::routing::post(name));
        for (path, status, expected) in
            [("/a%20b/call", 200, "a b"), ("/%ff/call", 404, "\"code\":\"not_found\"")]
        {
            let request = axum::http::Request::post(path).body(axum::body::Body::empty());
            let response = router.call(request.expect("build")).await.expect("answer");
            assert_eq!(response.status().as_u16(), status, "{path}");
            let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("read");
            assert!(String::from_utf8_lossy(&body).contains(expected), "{path}: {body:?}");
        }
    }

    #[test]
    fn only_the_json_media_type_is_accepted() {
        for (value, expected) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/plain", false),
            ("application/x-www-form-urlencoded", false),
            ("application/jsonp", false),
            ("", false),
        ] {
            let headers: HeaderMap =
                [(header::CONTENT_TYPE, value.parse().expect("parse"))].into_iter().collect();
            assert_eq!(is_json(&headers), expected, "{value}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
