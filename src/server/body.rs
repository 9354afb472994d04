//! Bodies and queries of requests, read strictly.

use std::fmt;
use std::marker::PhantomData;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::{HeaderMap, StatusCode, header, request::Parts};
use futures::StreamExt as _;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use sha2::{Digest as _, Sha256};

use super::AppState;
use super::error::ApiError;
use crate::record::RequestKey;

/// How long an `Idempotency-Key` may be.
const KEY_BYTES_MAX: usize = 255;

/// A body that is JSON and nothing that its type does not know.
#[derive(Debug)]
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<AppState> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let KeyedBody(body, _) = KeyedBody::from_request(request, state).await?;
        Ok(Self(body))
    }
}

/// The same, and what its `Idempotency-Key` makes of it, if it has one.
#[derive(Debug)]
pub(super) struct KeyedBody<T>(pub(super) T, pub(super) Option<RequestKey>);

impl<T: DeserializeOwned> FromRequest<AppState> for KeyedBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        if !is_json(&parts.headers) {
            return Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "the body must be JSON, with Content-Type: application/json",
            ));
        }
        let reading = read(body, &parts.headers, state.options.body_bytes_max);
        let bytes =
            tokio::time::timeout(state.options.body_timeout, reading).await.map_err(|_| {
                let message = "the body took too long";
                ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
            })??;
        let parsed = parse(&bytes)?;
        Ok(Self(parsed, request_key(&parts, &bytes)?))
    }
}

/// The request's `Idempotency-Key`, with what is asked: the path, and the body whatever the order
/// of its keys.
fn request_key(parts: &Parts, body: &[u8]) -> Result<Option<RequestKey>, ApiError> {
    let mut keys = parts.headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let text = key.to_str().ok().filter(|text| (1..=KEY_BYTES_MAX).contains(&text.len()));
    let (Some(key), None) = (text, keys.next()) else {
        let message =
            format!("Idempotency-Key: one of 1 to {KEY_BYTES_MAX} visible ASCII characters");
        return Err(ApiError::bad_request("invalid_request", message));
    };
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let digest = Sha256::digest(format!("{} {body}", parts.uri.path()));
    let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Some(RequestKey { key: key.to_owned(), digest }))
}

/// The part after `?`, with nothing that its type does not know.
#[derive(Debug)]
pub(super) struct StrictQuery<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for StrictQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        Query::try_from_uri(&parts.uri).map(|Query(query)| Self(query)).map_err(|rejection| {
            let why = std::error::Error::source(&rejection)
                .map_or_else(|| rejection.to_string(), ToString::to_string);
            ApiError::bad_request("invalid_request", format!("read the query: {why}"))
        })
    }
}

async fn read(body: Body, headers: &HeaderMap, max: usize) -> Result<Vec<u8>, ApiError> {
    let too_large = || {
        let message = format!("a body has at most {max} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if announced.and_then(|length| length.parse::<u64>().ok()).is_some_and(|n| n > max as u64) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            ApiError::bad_request("body_broken", format!("the body broke off: {error}"))
        })?;
        if bytes.len() + chunk.len() > max {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// A JSON object, and no array with the values of its fields, which serde would take as well.
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

/// What the bytes mean; serde names unknown and missing keys and where they stand.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map(|StrictObject(body)| body).map_err(|error| {
        let misfit = |why: String| {
            ApiError::bad_request("invalid_request", format!("the body does not fit: {why}"))
        };
        match error.classify() {
            serde_json::error::Category::Data => misfit(error.to_string()),
            // Where one of some words should stand, serde takes any other value for bad syntax.
            serde_json::error::Category::Syntax
                if serde_json::from_slice::<IgnoredAny>(bytes).is_ok() =>
            {
                let (line, column) = (error.line(), error.column());
                misfit(format!("a text is expected at line {line} column {column}"))
            }
            serde_json::error::Category::Io
            | serde_json::error::Category::Syntax
            | serde_json::error::Category::Eof => {
                ApiError::bad_request("invalid_json", format!("the body is no JSON: {error}"))
            }
        }
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests {
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
    fn what_is_wrong_with_a_body_is_named_with_its_place() {
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
                "text is expected at line 1",
            ),
            (
                "{\"input\":\"a\",\"inner\":{\"mode\":[true]}}",
                "invalid_request",
                "text is expected",
            ),
            ("{\"input\":\"a\",\"inner\":{\"x\":5}}", "invalid_request", "line 1 column 25"),
            ("{\n\"input\" 1}", "invalid_json", "line 2 column 9"),
            ("", "invalid_json", "line 1 column 0"),
            ("{\"input\":\"a\"} x", "invalid_json", "trailing"),
        ] {
            let error = parse::<Sample>(text.as_bytes()).expect_err("refuse");
            assert_eq!(error.shown(), (400, code), "{text}");
            assert!(format!("{error:?}").contains(part), "{text}: {error:?}");
        }
    }

    #[test]
    fn only_json_is_json() {
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
