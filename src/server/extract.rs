//! Extractors of requests: strict parsing of paths, bodies and queries (unknown members are errors), the
//! session that a path names, `Idempotency-Key`, and the limits of a body in size, time and memory.
//!
//! By default a body has at most 4 MiB (`body_bytes_max`) and 30 s (`body_timeout`). Bodies above 32 KiB share
//! 48 MiB. A key has 1 to 255 characters.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use axum::body::{Bytes, HttpBody as _};
use axum::extract::rejection::{BytesRejection, FailedToBufferBody};
use axum::extract::{
    DefaultBodyLimit, FromRequest, FromRequestParts, Query, RawPathParams, Request,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header, request::Parts};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;
use tokio::sync::OwnedSemaphorePermit;

use super::access::Caller;
use super::error::ApiError;
use super::state::{ApiState, AppState, BODIES_BYTES_MAX};
use callsheet_host::runtime::SessionHandle;
use callsheet_values::record::RequestKey;
use callsheet_values::types::{Metadata, SessionId, excerpt};

/// Maximum length of an `Idempotency-Key` in bytes.
const KEY_BYTES_MAX: usize = 255;

/// Maximum number of characters of a value or a name that an error quotes.
const QUOTE_CHARS: usize = 100;

/// Size up to which a body needs no share of the memory for bodies.
const SMALL_BODY_BYTES: u32 = 32 * 1024;

/// The unsigned types of values, with the maximum of each, as errors of serde name them.
const UNSIGNED_TYPES: [(&str, u64); 5] = [
    ("u8", u8::MAX as u64),
    ("u16", u16::MAX as u64),
    ("u32", u32::MAX as u64),
    ("u64", u64::MAX),
    ("usize", usize::MAX as u64),
];

/// A JSON object as the body. Unknown members are refused only if `T` has `#[serde(deny_unknown_fields)]`,
/// which every body type of the API must have.
#[derive(Debug)]
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<AppState> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let KeyedBody(body, _, _) = KeyedBody::<T>::from_request(request, state).await?;
        Ok(Self(body))
    }
}

/// A JSON body as [`JsonBody`], with the request's `Idempotency-Key` if it has one, and its query.
#[derive(Debug)]
pub(super) struct KeyedBody<T, Q = EmptyBody>(
    pub(super) T,
    pub(super) Option<RequestKey>,
    pub(super) Q,
);

impl<T: DeserializeOwned, Q: DeserializeOwned + Send> FromRequest<AppState> for KeyedBody<T, Q> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        check_media_type(request.headers())?;
        let query = parse_query(request.uri())?;
        let keys: Vec<HeaderValue> =
            request.headers().get_all("idempotency-key").iter().cloned().collect();
        let uri = request.uri().clone();
        let body = read_in_time(request, state).await?;
        let parsed = parse(&body.bytes)?;
        Ok(Self(parsed, request_key(&keys, &uri, &body.bytes)?, query))
    }
}

/// The body of a request that needs none: no bytes, or a JSON object without members.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EmptyBody {}

impl FromRequest<AppState> for EmptyBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        // A wrong media type is an error only if there is a body.
        let media_type_check = check_media_type(request.headers());
        refuse_query(request.uri())?;
        let body = read_in_time(request, state).await?;
        if body.bytes.is_empty() {
            return Ok(Self {});
        }
        media_type_check?;
        parse(&body.bytes)
    }
}

/// The body of a request that brings the result of a call: as [`JsonBody`], except that a too large one is the
/// error `result_too_large`.
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

/// A request whose body was received, and has its share of the memory for bodies.
#[derive(Clone, Copy, Debug)]
pub(super) struct IsReceived;

/// A body that was received. It holds its share of the memory for bodies.
pub(super) struct ReceivedBody {
    pub(super) bytes: Bytes,
    _share: Option<OwnedSemaphorePermit>,
}

impl ReceivedBody {
    /// Gives the part of the share back that only a longer body would need.
    pub(super) fn with_share_of_length(mut self) -> Self {
        if self.bytes.len() <= SMALL_BODY_BYTES as usize {
            self._share = None;
        } else if let Some(share) = &mut self._share {
            drop(share.split(share.num_permits().saturating_sub(self.bytes.len())));
        }
        self
    }
}

/// Reads a body within the server's limits of size, time and memory.
pub(super) async fn read_in_time(
    request: Request,
    state: &ApiState,
) -> Result<ReceivedBody, ApiError> {
    let (bytes_max, timeout) = (state.options.body_bytes_max, state.options.body_timeout);
    // Known if there is no body, or if its length was sent.
    let length = request.body().size_hint().exact();
    let length = length.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    if length.is_some_and(|length| length > bytes_max) {
        return Err(too_large(bytes_max));
    }
    let needed = match request.extensions().get::<IsReceived>() {
        Some(IsReceived) => 0,
        None => length.unwrap_or(bytes_max),
    };
    let share = tokio::time::timeout(timeout, acquire_body_bytes(needed, state));
    let share = share.await.map_err(|_| {
        let message = "too many large bodies are being received: try again later";
        ApiError::retry_later(StatusCode::SERVICE_UNAVAILABLE, "too_many_large_bodies", message)
    })?;
    let bytes = tokio::time::timeout(timeout, read(request, bytes_max)).await.map_err(|_| {
        let message = format!("the body did not arrive within {} s", timeout.as_secs_f64());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
    })?;
    Ok(ReceivedBody { bytes: bytes?, _share: share })
}

/// Waits until there is memory for a body of this length. A small body needs no share.
async fn acquire_body_bytes(length: usize, state: &ApiState) -> Option<OwnedSemaphorePermit> {
    let length = u32::try_from(length.min(BODIES_BYTES_MAX)).unwrap_or(u32::MAX);
    let share = Arc::clone(&state.body_bytes).acquire_many_owned(length);
    // The semaphore is never closed.
    if length > SMALL_BODY_BYTES { share.await.ok() } else { None }
}

fn too_large(bytes_max: usize) -> ApiError {
    let message = format!("the body has more than {bytes_max} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

/// Reads a body of at most `bytes_max` bytes.
async fn read(mut request: Request, bytes_max: usize) -> Result<Bytes, ApiError> {
    DefaultBodyLimit::max(bytes_max).apply(&mut request);
    Bytes::from_request(request, &()).await.map_err(|rejection| {
        let is_too_large = matches!(
            rejection,
            BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_))
        );
        if is_too_large {
            return too_large(bytes_max);
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
            "Idempotency-Key: send one key of 1 to {KEY_BYTES_MAX} printable ASCII characters"
        );
        ApiError::bad_request("invalid_request", message)
    })?;
    // Cannot fail: the body was parsed before. `Value` sorts members, as long as no crate enables serde_json's
    // `preserve_order`.
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

/// The session that the path names, if the caller may reach it. Does not check that the session exists; the first
/// request to it does.
#[derive(Debug)]
pub(super) struct PathSession(pub(super) SessionHandle);

impl FromRequestParts<AppState> for PathSession {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        // A path may have more parameters than the session's id.
        let parameters = PathParameters::from_request_parts(parts, state).await?;
        let Some(text) = parameters.get("id") else {
            // Not reached: every route with this extractor has `{id}`.
            return Err(ApiError::no_such_session(""));
        };
        // A text that is not an id cannot name a session.
        let id = SessionId::parse(text);
        let id = id.map_err(|_| ApiError::no_such_session(&excerpt(text, 64)))?;
        let session = state.host.session(&id);
        if let Some(caller) = parts.extensions.get::<Caller>() {
            caller.check_session(&session).await?;
            return Ok(Self(caller.with_author(session)));
        }
        Ok(Self(session))
    }
}

/// The length of a page, by default and at most.
const PAGE_LENGTH: usize = 100;
const PAGE_LENGTH_MAX: usize = 1000;

/// Returns the length of the page that a request asks for.
///
/// # Errors
/// If it is 0 or too large.
pub(super) fn page_length(limit: Option<usize>) -> Result<usize, ApiError> {
    let limit = limit.unwrap_or(PAGE_LENGTH);
    if (1..=PAGE_LENGTH_MAX).contains(&limit) {
        return Ok(limit);
    }
    let message = format!("limit: must be a number from 1 to {PAGE_LENGTH_MAX}");
    Err(ApiError::bad_request("invalid_request", message))
}

/// A query, with the same condition for `T` as [`JsonBody`].
#[derive(Debug)]
pub(super) struct StrictQuery<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for StrictQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        parse_query(&parts.uri).map(Self)
    }
}

/// A query as [`StrictQuery`], with any number of parameters `metadata.KEY=VALUE`.
#[derive(Debug)]
pub(super) struct FilterQuery<T>(pub(super) T, pub(super) Metadata);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for FilterQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let parameters = parts.uri.query().unwrap_or_default().split('&');
        let (pairs, rest): (Vec<_>, Vec<_>) =
            parameters.partition(|parameter| parameter.starts_with(METADATA_PREFIX));
        let query_of = |parameters: Vec<&str>| {
            // A part of a valid query is valid.
            Uri::try_from(format!("/?{}", parameters.join("&"))).unwrap_or_default()
        };
        let pairs: Vec<(String, String)> = parse_query(&query_of(pairs))?;
        let pairs = pairs.iter().map(|(name, value)| {
            (name.strip_prefix(METADATA_PREFIX).unwrap_or(name).to_owned(), value.clone())
        });
        let metadata = Metadata::new(pairs)
            .map_err(|error| ApiError::bad_request("invalid_request", error.to_string()))?;
        Ok(Self(parse_query(&query_of(rest))?, metadata))
    }
}

/// The beginning of the names of parameters that select by metadata.
const METADATA_PREFIX: &str = "metadata.";

/// The query of a request that has no parameters.
pub(super) type NoQuery = StrictQuery<EmptyBody>;

/// Refuses a query with parameters, for requests whose parameters are members of the body.
fn refuse_query(uri: &Uri) -> Result<(), ApiError> {
    parse_query::<EmptyBody>(uri).map(drop)
}

fn parse_query<T: DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    Query::try_from_uri(uri).map(|Query(query)| query).map_err(|rejection| {
        let reason = std::error::Error::source(&rejection)
            .map_or_else(|| rejection.to_string(), ToString::to_string);
        // The text begins with the name of an unknown parameter, which the reason repeats.
        let unknown = reason.find("unknown field ").and_then(|at| reason.get(at..));
        let reason = rewrite_serde_error(unknown.unwrap_or(&reason), "parameter");
        ApiError::bad_request("invalid_request", format!("invalid query: {reason}"))
    })
}

/// Returns the reason why a value is refused in plain words, without those of serde and of Rust. `noun` names
/// what an object has: members, or the parameters of a query.
pub(super) fn rewrite_serde_error(reason: &str, noun: &str) -> String {
    // A path such as `metadata: ` may precede the reason, so each text after a `: ` is tried too.
    let starts = reason.match_indices(": ").map(|(at, colon)| at + colon.len());
    let plain = std::iter::once(0).chain(starts).find_map(|start| {
        let (path, problem) = reason.split_at_checked(start)?;
        Some(format!("{path}{}", plain_problem(problem, noun)?))
    });
    plain.unwrap_or_else(|| reason.to_owned())
}

/// Rewrites a text of serde or of a parser of the standard library. Returns `None` for a text that it does not know.
fn plain_problem(problem: &str, noun: &str) -> Option<String> {
    match problem {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            return Some("must be a whole number".to_owned());
        }
        "number too large to fit in target type" => {
            return Some("the number is too large".to_owned());
        }
        "provided string was not `true` or `false`" => {
            return Some("must be true or false".to_owned());
        }
        _ => {}
    }
    if let Some(name) = problem.strip_prefix("missing field ") {
        return Some(format!("{name} is missing"));
    }
    if let Some(name) = problem.strip_prefix("duplicate field ") {
        return Some(format!("{name} is given twice"));
    }
    if let Some(field) = problem.strip_prefix("unknown field ") {
        return Some(match field.rsplit_once(", expected ") {
            Some((name, known)) => {
                let known = known.strip_prefix("one of ").unwrap_or(known);
                format!("unknown {noun} {} (known: {known})", excerpt(name, QUOTE_CHARS))
            }
            None => {
                let name = field.strip_suffix(", there are no fields").unwrap_or(field);
                format!("unknown {noun} {}: this request has none", excerpt(name, QUOTE_CHARS))
            }
        });
    }
    let kinds = ["unknown variant ", "invalid type: ", "invalid value: "];
    let values = kinds.iter().find_map(|kind| problem.strip_prefix(*kind))?;
    let (found, expected) = values.rsplit_once(", expected ")?;
    Some(format!("must be {}, not {}", plain_expected(expected), plain_found(found)))
}

/// Names the values that serde expects.
fn plain_expected(expected: &str) -> String {
    let (least, kind) = match expected.strip_prefix("a nonzero ") {
        Some(kind) => (1, kind),
        None => (0, expected),
    };
    if let Some((_, most)) = UNSIGNED_TYPES.iter().find(|(name, _)| *name == kind) {
        return format!("a whole number from {least} to {most}");
    }
    let objects = ["struct ", "internally tagged enum "];
    match expected {
        "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        "unit" => "null",
        "string or map" | "variant identifier" | "field identifier" => "a string",
        _ if objects.iter().any(|object| expected.starts_with(*object)) => "an object",
        other => other,
    }
    .to_owned()
}

/// Names the value that serde has found.
fn plain_found(found: &str) -> String {
    let literal = ["integer `", "floating point `", "boolean `"]
        .iter()
        .find_map(|kind| found.strip_prefix(*kind)?.strip_suffix('`'));
    match found {
        "sequence" => "a list".to_owned(),
        "map" => "an object".to_owned(),
        other => {
            let value = literal.or_else(|| other.strip_prefix("string ")).unwrap_or(other);
            excerpt(value, QUOTE_CHARS)
        }
    }
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
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map(|StrictObject(body)| body).map_err(|error| {
        let is_json = match error.classify() {
            Category::Data => true,
            // serde_json also calls it a syntax error if valid JSON holds a value that it cannot read, such
            // as a number that is too large.
            Category::Syntax => serde_json::from_slice::<IgnoredAny>(bytes).is_ok(),
            Category::Io | Category::Eof => false,
        };
        let (line, column) = (error.line(), error.column());
        let reason = error.to_string();
        let end = format!(" at line {line} column {column}");
        let reason = reason.strip_suffix(end.as_str()).unwrap_or(&reason);
        let place = format!("line {line} column {column}");
        if !is_json {
            let reason = match reason.strip_prefix("EOF while parsing ") {
                Some(part) => format!("it ends within {part}"),
                None => reason.to_owned(),
            };
            let message = format!("the body is not JSON: {place}: {reason}");
            return ApiError::bad_request("invalid_json", message);
        }
        // "expected value" means that an enum's value is not a string.
        let reason = match reason == "expected value" {
            true => "must be a string".to_owned(),
            false => rewrite_serde_error(reason, "member"),
        };
        ApiError::bad_request("invalid_request", format!("invalid body: {place}: {reason}"))
    })
}

/// Refuses a body whose `Content-Type` is not JSON.
pub(super) fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
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
        mode: callsheet_values::record::StopMode,
    }

    #[test]
    fn errors_of_a_body_name_line_and_column() {
        for (text, code, part) in [
            (
                "{\"input\":\"a\",\"inputs\":1}",
                "invalid_request",
                ": unknown member `inputs` (known: `input` or `inner`)",
            ),
            ("{}", "invalid_request", ": `input` is missing"),
            ("{\"input\":1}", "invalid_request", "line 1 column 10: must be a string, not 1"),
            ("[1]", "invalid_request", ": must be an object, not a list"),
            (" [\"a\"]", "invalid_request", ": must be an object"),
            ("\"a\"", "invalid_request", ": must be an object"),
            ("{\"input\":\"a\",\"inner\":[\"now\"]}", "invalid_request", ": must be an object"),
            ("{\"input\":\"a\",\"inner\":{\"mode\":5}}", "invalid_request", ": must be a string"),
            (
                "{\"input\":\"a\",\"inner\":{\"mode\":[true]}}",
                "invalid_request",
                ": must be a string",
            ),
            ("{\"input\":\"a\",\"inner\":{\"x\":5}}", "invalid_request", "line 1 column 25"),
            ("{\"input\":1e999}", "invalid_request", ": number out of range"),
            ("{\n\"input\" 1}", "invalid_json", "line 2 column 9"),
            ("", "invalid_json", "line 1 column 0: it ends within a value"),
            ("{\"input\":\"a\"} x", "invalid_json", "trailing"),
        ] {
            let error = parse::<Sample>(text.as_bytes()).expect_err("refuse");
            assert_eq!(error.status_and_code(), (400, code), "{text}");
            assert!(format!("{error:?}").contains(part), "{text}: {error:?}");
        }
    }

    #[test]
    fn reasons_have_no_words_of_serde() {
        for (reason, expected) in [
            (
                "invalid type: string \"x\", expected u32",
                "must be a whole number from 0 to 4294967295, not \"x\"",
            ),
            (
                "invalid value: integer `256`, expected u8",
                "must be a whole number from 0 to 255, not 256",
            ),
            (
                "invalid value: integer `0`, expected a nonzero u16",
                "must be a whole number from 1 to 65535, not 0",
            ),
            (
                "invalid value: integer `0`, expected a nonzero u32",
                "must be a whole number from 1 to 4294967295, not 0",
            ),
            (
                "invalid type: floating point `1.5`, expected a boolean",
                "must be true or false, not 1.5",
            ),
            ("invalid type: map, expected a sequence", "must be a list, not an object"),
            ("invalid type: null, expected struct Sample", "must be an object, not null"),
            (
                "metadata: invalid type: boolean `true`, expected a string",
                "metadata: must be a string, not true",
            ),
            (
                "unknown variant `later`, expected `now` or `after_turn`",
                "must be `now` or `after_turn`, not `later`",
            ),
            ("unknown field `x`, there are no fields", "unknown member `x`: this request has none"),
            ("unknown field `x`, expected one of `a`, `b`", "unknown member `x` (known: `a`, `b`)"),
            ("metadata: duplicate field \"a\"", "metadata: \"a\" is given twice"),
            ("limit: invalid digit found in string", "limit: must be a whole number"),
            ("input: must be a string", "input: must be a string"),
        ] {
            assert_eq!(rewrite_serde_error(reason, "member"), expected);
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
