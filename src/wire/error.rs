//! Provider errors: error bodies and error payloads of all wires.
//!
//! The forms are those of the API references of OpenAI, Anthropic, Google and Ollama, and of recorded
//! answers of other services and gateways.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::Delta;
use super::content_refusal::note_content_refusal;
use super::overflow::find_overflow;
use super::reasoning_refusal::note_reasoning_refusal;
use super::refusal::refusal_of_error;
use super::repair::parse_value;
use callsheet_values::types::{ProviderError, ProviderErrorKind, excerpt, one_line};

/// Maximum length of a service's error message in characters.
const MESSAGE_CHARS_MAX: usize = 1000;

/// The members that may hold the text of an error, the most specific first.
const MESSAGE_KEYS: [&str; 10] = [
    "message",
    "detail",
    "error_message",
    "error_msg",
    "msg",
    "error",
    "errors",
    "description",
    "status_msg",
    "title",
];

/// Reads the body of an HTTP response whose status is not a success.
///
/// Accepts `{"error": {"message", "type", "code"}}`, `{"error": "text"}`, `{"detail": ..}`,
/// `{"message": ..}`, an array around one of them, and plain text.
#[must_use]
pub fn http_error(status: u16, body: &str) -> ProviderError {
    let found = serde_json::from_str::<Value>(body).ok();
    let value = found.as_ref().and_then(find_error);
    let mut error = match value {
        Some(value) => json_error(value),
        None => text_error(ProviderErrorKind::Status, plain_message(body)),
    };
    error.status = Some(status);
    if error.kind != ProviderErrorKind::UnparsableOutput {
        let message = value.map_or_else(|| error.message.clone(), error_message);
        error.overflow = find_overflow(&error, value, &message);
        note_reasoning_refusal(&mut error, found.as_ref());
        if value.is_none() && status < 500 {
            error.refusal = refusal_of_error(&Value::Null, &error.message).map(Arc::new);
        }
    }
    note_content_refusal(&mut error, value);
    error.message = match error.message.as_str() {
        "" => format!("HTTP status {status}"),
        message => format!("HTTP status {status}: {message}"),
    };
    if error.kind == ProviderErrorKind::InStream {
        error.kind = ProviderErrorKind::Status;
    }
    // OpenAI sends an exhausted quota with status 429 too, but a retry cannot succeed.
    let is_billing_error = value.and_then(status_of_codes) == Some(402);
    error.retryable = Some(false).filter(|_| is_billing_error);
    error
}

/// Finds the error in a JSON value: its member `error`, MiniMax's `base_resp`, or the value itself if it has a
/// member that usually holds the text of an error. In a list it is the first one found. Answers may have members
/// with such texts too, so callers pass only values that have a member `error` or are no answer of their wire.
pub(super) fn find_error(value: &Value) -> Option<&Value> {
    match value {
        Value::Array(items) => items.iter().find_map(find_error),
        Value::Object(map) => match map.get("error").filter(|error| is_nonempty(error)) {
            // `{"error": true, "message": ..}`, `{"error": "Not Found", "message": ..}`
            Some(Value::Bool(_)) => Some(value),
            Some(Value::String(_)) if map.get("message").is_some_and(Value::is_string) => {
                Some(value)
            }
            Some(error) => Some(error),
            None if map.get("choices").is_some_and(|choices| !choices.is_null()) => None,
            // MiniMax sends a status beside every answer, which is 0 without an error
            // (<https://platform.minimax.io/docs/api-reference/text-post>; its codes:
            // <https://platform.minimax.io/docs/api-reference/errorcode>).
            None if map.get("base_resp").is_some_and(has_failed) => map.get("base_resp"),
            None => ["message", "detail", "error_message", "error_msg", "errors", "msg"]
                .iter()
                .any(|key| map.get(*key).is_some_and(is_nonempty))
                .then_some(value),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// Converts the JSON of an error, as one that a service reported within a response.
pub(super) fn provider_error(value: &Value) -> ProviderError {
    let mut error = json_error(value);
    note_content_refusal(&mut error, Some(value));
    error
}

/// Converts the JSON of an error, without what depends on the status of the answer.
fn json_error(value: &Value) -> ProviderError {
    let mut message = error_message(value);
    // OpenRouter puts the error of the service behind it here.
    if let Some(raw) = value.get("metadata").and_then(|metadata| metadata.get("raw")?.as_str()) {
        message.push_str(&format!(": {}", one_line(raw, RAW_CHARS)));
    }
    let mut error = text_error(ProviderErrorKind::InStream, message);
    if let Value::Object(map) = value {
        error.status = ["status_code", "status", "code", "http_code"]
            .iter()
            .find_map(|key| map.get(*key).and_then(parse_status));
        error.code = ["code", "error_code", "type", "status_code", "status"].iter().find_map(
            |key| match map.get(*key) {
                // The type `error` is not specific.
                Some(Value::String(word)) if !word.is_empty() && word != "error" => {
                    Some(word.clone())
                }
                Some(Value::Number(number)) => Some(number.to_string()),
                _ => None,
            },
        );
        error.status = error.status.or_else(|| status_of_codes(value));
        error.retry_after = map.get("details").and_then(retry_delay);
        if let Some(part) = tool_part(map).filter(|part| !error.message.contains(part)) {
            error.message.push_str(&format!(" ({})", one_line(&part, PART_CHARS)));
        }
        let has_code = |code: &String| UNPARSABLE_CODES.contains(&code.as_str());
        if let Some(output) = map.get("failed_generation") {
            // The same words stand in each such error. What the model wrote tells two of them apart.
            let output = output.as_str().map_or_else(|| output.to_string(), str::to_owned);
            if !output.is_empty() {
                let output = one_line(&output, OUTPUT_CHARS);
                error.message.push_str(&format!(" (it wrote: {output})"));
            }
            error.kind = ProviderErrorKind::UnparsableOutput;
        } else if error.code.as_ref().is_some_and(has_code) {
            error.kind = ProviderErrorKind::UnparsableOutput;
        }
    }
    if error.kind != ProviderErrorKind::UnparsableOutput {
        error.overflow = find_overflow(&error, Some(value), &error_message(value));
        note_reasoning_refusal(&mut error, Some(value));
        error.refusal = refusal_of_error(value, &error.message).map(Arc::new);
    }
    error
}

/// Returns the part of a request's tools that an error names beside its message: by `param` (OpenAI), or by the `loc`
/// of the first item of `detail` (services in Python, such as Mistral's).
fn tool_part(error: &Map<String, Value>) -> Option<String> {
    let loc = || {
        let first = error.get("detail")?.as_array()?.first()?;
        let step = |step: &Value| step.as_str().map_or_else(|| step.to_string(), str::to_owned);
        Some(first.get("loc")?.as_array()?.iter().map(step).collect::<Vec<_>>().join("."))
    };
    let param = error.get("param").and_then(Value::as_str).map(str::to_owned);
    let names_tool = |part: &String| part.contains("tools[") || part.contains("tools.");
    param.filter(names_tool).or_else(|| loc().filter(names_tool))
}

/// Maximum length of the quoted error of a service behind a gateway, in characters.
const RAW_CHARS: usize = 500;

/// Maximum length of the name of a part of a request in an error, in characters.
const PART_CHARS: usize = 200;

/// Maximum length of the quoted output of a model in an error, in characters.
const OUTPUT_CHARS: usize = 300;

/// Codes of errors of services that could not read what their models wrote (Groq:
/// <https://console.groq.com/docs/errors>).
const UNPARSABLE_CODES: [&str; 4] =
    ["tool_use_failed", "json_validate_failed", "output_parse_failed", "tool_call_parse_failed"];

/// Parts of such errors in lower case, from reports about the services.
const UNPARSABLE_TEXTS: [&str; 36] = [
    // Groq, also within the text of a gateway's error.
    "tool_use_failed",
    "output_parse_failed",
    "failed to call a function",
    "tool call validation failed",
    // Cerebras.
    "failed to generate tool_calls",
    // llama.cpp.
    "does not match the expected peg",
    "failed to parse tool call",
    "failed to parse input at pos",
    "unexpected empty grammar stack",
    "invalid diff: now finding less tool calls",
    // Ollama.
    "error parsing tool call",
    "xml syntax error",
    "failed to parse xml",
    "no reverse mapping found for function name",
    "after object key:value pair",
    "after top-level value",
    "looking for beginning of object key string",
    // vLLM and SGLang, and the parser of gpt-oss that both use.
    "error in extracting tool call",
    "error extracting tool call",
    "failed to parse fc related info",
    "validation error for list[function-wrap",
    "harmonyerror",
    "unexpected tokens remaining in message header",
    "could not parse header:",
    "no channel value found in header",
    "message header did not contain a role",
    "expected message start token",
    "while expecting start token",
    // LM Studio.
    "failed to generate a tool call",
    // OpenAI, Bedrock, Gemini.
    "the model produced invalid content",
    "model produced invalid sequence as part of tooluse",
    "malformed_function_call",
    "malformed function call",
    // Gateways.
    "could not parse tool call",
    "error parsing function call",
    "failed to parse function call",
];

/// Creates an error. Its kind is [`ProviderErrorKind::UnparsableOutput`] if its message says so.
fn text_error(kind: ProviderErrorKind, message: String) -> ProviderError {
    let lower = message.to_ascii_lowercase();
    let is_unparsable = UNPARSABLE_TEXTS.iter().any(|text| lower.contains(text));
    let kind = if is_unparsable { ProviderErrorKind::UnparsableOutput } else { kind };
    ProviderError::new(kind, message)
}

/// Returns the delay that Google's services request: the detail `google.rpc.RetryInfo`
/// (<https://cloud.google.com/apis/design/errors>), whose `retryDelay` is a text such as `34s` or
/// `1.5s`.
fn retry_delay(details: &Value) -> Option<Duration> {
    let delays = details.as_array()?.iter().filter_map(|detail| detail.get("retryDelay")?.as_str());
    let seconds = |delay: &str| delay.trim().strip_suffix('s')?.parse().ok();
    delays.filter_map(seconds).find_map(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

/// Reads the value of a member `error`. Returns `None` if it is empty.
pub(super) fn keyed_error(raw: &str) -> Option<ProviderError> {
    // A value that is nested too deeply cannot be read, but it is an error too.
    let value = parse_value(raw).unwrap_or_else(|| Value::String(raw.into()));
    find_error(&serde_json::json!({ "error": value })).map(provider_error)
}

/// Reads the value of a member `error` of a payload, whose text may be beside it:
/// `{"error": true, "message": ..}`. Returns `None` if it is empty.
pub(super) fn payload_error(raw: &str, payload: &str) -> Option<ProviderError> {
    let error = keyed_error(raw)?;
    if raw.starts_with(['{', '[']) {
        return Some(error);
    }
    parse_value(payload).as_ref().and_then(find_error).map(provider_error).or(Some(error))
}

/// Reads the data of an event named `error`, which is an error in any form.
pub(super) fn parse_error_event(text: &str) -> ProviderError {
    match parse_value(text) {
        Some(value) => provider_error(find_error(&value).unwrap_or(&value)),
        None if text.is_empty() => {
            ProviderError::new(ProviderErrorKind::InStream, "the service reported an error")
        }
        None => provider_error(&Value::String(text.to_owned())),
    }
}

/// Reads a payload that has no known member of its wire. It may be an error without the key `error`.
pub(super) fn unkeyed_error(text: &str) -> Option<Delta> {
    // Most such payloads hold only token counts. The search for these words is faster than a parse. A backslash
    // may escape letters of a word.
    let words = ["error", "message", "detail", "msg", "base_resp", "\\"];
    if !words.iter().any(|word| text.contains(word)) {
        return None;
    }
    parse_value(text).as_ref().and_then(find_error).map(provider_error).map(Delta::Error)
}

/// Returns the error for a payload that cannot be read.
pub(super) fn malformed(text: &str, error: &serde_json::Error) -> Delta {
    // The payload may have held part of a call, so the response cannot be used.
    let message = format!("a payload is no JSON ({error}): {}", one_line(text, 200));
    Delta::Error(ProviderError::new(ProviderErrorKind::Malformed, message))
}

/// Returns the HTTP status that the first known code of an error stands for. Errors within a stream often have
/// no status of their own, and the status decides whether the error is transient. An error within a stream with
/// neither a status nor a known code is transient.
fn status_of_codes(error: &Value) -> Option<u16> {
    let keys = ["code", "error_code", "type", "status"];
    keys.iter().find_map(|key| status_of_code(error.get(*key)?.as_str()?))
}

/// Returns the HTTP status that an error code stands for.
///
/// OpenAI: <https://platform.openai.com/docs/guides/error-codes>, and the codes of `ResponseError`
/// in its API reference; `slow_down` and `server_is_overloaded` as its own Codex client reads them.
/// Anthropic: <https://docs.anthropic.com/en/api/errors>.
fn status_of_code(code: &str) -> Option<u16> {
    let status = match code {
        "invalid_request_error"
        | "invalid_prompt"
        | "invalid_encrypted_content"
        | "context_length_exceeded"
        | "content_policy_violation"
        | "content_filter"
        | "cyber_policy"
        | "bio_policy"
        | "image_content_policy_violation"
        | "invalid_image"
        | "invalid_image_format"
        | "invalid_base64_image"
        | "invalid_image_url"
        | "invalid_image_mode"
        | "image_too_large"
        | "image_too_small"
        | "image_file_too_large"
        | "image_file_not_found"
        | "image_parse_error"
        | "empty_image_file"
        | "unsupported_image_media_type"
        | "unsupported_value"
        | "unsupported_parameter"
        | "unknown_parameter"
        | "missing_required_parameter"
        | "invalid_type"
        | "invalid_value"
        | "string_above_max_length" => 400,
        "invalid_api_key" | "authentication_error" => 401,
        // Some of these are sent with status 429, but a retry cannot succeed.
        "insufficient_quota"
        | "quota_exceeded"
        | "billing_hard_limit_reached"
        | "billing_not_active"
        | "usage_not_included"
        | "billing_error" => 402,
        "permission_error" | "permission_denied" | "unsupported_country_region_territory" => 403,
        "model_not_found" | "not_found_error" => 404,
        "conflict_error" => 409,
        "request_too_large" => 413,
        "rate_limit_exceeded" | "rate_limit_error" => 429,
        "server_error" | "internal_server_error" | "api_error" => 500,
        "server_is_overloaded" | "slow_down" => 503,
        "vector_store_timeout" | "timeout_error" => 504,
        "overloaded_error" => 529,
        _ => return None,
    };
    Some(status)
}

fn has_failed(base_resp: &Value) -> bool {
    base_resp.get("status_code").and_then(Value::as_i64).is_some_and(|code| code != 0)
}

fn is_nonempty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) | Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

fn parse_status(value: &Value) -> Option<u16> {
    let number = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    number.and_then(|number| u16::try_from(number).ok()).filter(|n| (400..600).contains(n))
}

fn error_message(value: &Value) -> String {
    match error_text(value, 4) {
        Some(text) => excerpt(text, MESSAGE_CHARS_MAX),
        None => excerpt(&value.to_string(), MESSAGE_CHARS_MAX),
    }
}

/// Returns the text of an error, which may be nested in objects and lists, at most `depth` levels deep. Only the
/// first item of a list is searched.
fn error_text(value: &Value, depth: usize) -> Option<&str> {
    let deeper = |inner| error_text(inner, depth.checked_sub(1)?);
    match value {
        Value::String(text) => Some(text.as_str()).filter(|text| !text.is_empty()),
        Value::Array(items) => items.first().and_then(deeper),
        Value::Object(map) => MESSAGE_KEYS.iter().find_map(|key| map.get(*key).and_then(deeper)),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// Returns the text of a body that has no error in a known form: the title of a web page, or else all of it.
fn plain_message(body: &str) -> String {
    let body = body.trim();
    let title = body
        .starts_with('<')
        .then(|| body.split_once("<title>")?.1.split_once("</title>"))
        .flatten()
        .map(|(title, _)| title.trim())
        .filter(|title| !title.is_empty());
    excerpt(title.unwrap_or(body), MESSAGE_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(body: &str, message: &str, code: Option<&str>) {
        let error = http_error(429, body);
        let expected =
            format!("HTTP status 429{}{message}", if message.is_empty() { "" } else { ": " });
        assert_eq!((error.message, error.code.as_deref()), (expected, code), "{body}");
        assert_eq!((error.kind, error.status), (ProviderErrorKind::Status, Some(429)));
    }

    #[test]
    fn the_message_is_found_in_every_form_of_an_error() {
        check(
            r#"{"error":{"message":"slow down","type":"requests","code":"rate_limit_exceeded"}}"#,
            "slow down",
            Some("rate_limit_exceeded"),
        );
        check(r#"{"error":{"message":"m","type":"requests","code":null}}"#, "m", Some("requests"));
        check(r#"[{"error":{"code":429,"message":"quota","status":"X"}}]"#, "quota", Some("429"));
        check(r#"{"error":"no such model"}"#, "no such model", None);
        check(r#"{"error":"Bad","message":"why"}"#, "why", None);
        check(r#"{"detail":"Not Found"}"#, "Not Found", None);
        check(
            r#"{"detail":[{"loc":["body"],"msg":"field required","type":"missing"}]}"#,
            "field required",
            None,
        );
        check(
            r#"{"object":"error","message":"m","type":"BadRequestError","code":400}"#,
            "m",
            Some("400"),
        );
        check(r#"{"error_code":336003,"error_msg":"bad"}"#, "bad", Some("336003"));
        check(r#"{"message":"gone","request_id":"r"}"#, "gone", None);
        check(
            r#"{"message":{"detail":[{"msg":"extra","loc":["a"]}]},"code":1}"#,
            "extra",
            Some("1"),
        );
        check(r#"{"errors":[{"description":"bad","key":"k"}]}"#, "bad", None);
        check(r#"{"detail":{"error":"gone"}}"#, "gone", None);
        check(r#"{"error":["m"]}"#, "m", None);
        check(r#"{"error":{"title":"gone","message":null}}"#, "gone", None);
        check(
            r#"{"choices":null,"base_resp":{"status_code":1004,"status_msg":"no key"}}"#,
            "no key",
            Some("1004"),
        );
        check("  upstream connect error\n", "upstream connect error", None);
        check("", "", None);
        check("<html><title> 502 Bad\n</title><p>nginx</html>", "502 Bad", None);
        check("<html><p>nginx</html>", "<html><p>nginx</html>", None);
        check("[]", "[]", None);
    }

    #[test]
    fn an_output_that_the_service_could_not_read_has_a_kind_of_its_own() {
        let of_groq = r#"{"error":{"message":"Failed to call a function. See 'failed_generation'.",
            "type":"invalid_request_error","code":"tool_use_failed",
            "failed_generation":"<function=clock>{\"zone\": \"UTC\"}</function>"}}"#;
        let error = http_error(400, of_groq);
        assert_eq!((error.kind, error.status), (ProviderErrorKind::UnparsableOutput, Some(400)));
        assert!(error.is_transient() && error.message.contains("<function=clock>{"), "{error}");
        let unknown = of_groq.replace(r#"<function=clock>{\"zone\": \"UTC\"}</function>"#, "");
        assert!(!http_error(400, &unknown).message.contains("it wrote"), "{unknown}");
        let nested = "litellm.BadRequestError: GroqException - {\"error\":{\"message\":\"Failed to \
            call\",\"code\":\"tool_use_failed\"}}";
        for (status, message) in [
            (400, nested),
            (500, "The model produced output that does not match the expected peg-native format"),
            (500, "Failed to parse tool call arguments as JSON: [json.exception.parse_error.101]"),
            (500, "error parsing tool call: raw='{\"a\":', err=unexpected end of JSON input"),
            (500, "XML syntax error on line 3: element <function> closed by </parameter>"),
            (400, "Failed to parse fc related info to json format!"),
            (500, "unexpected tokens remaining in message header: Some(\"to=functions.web\")"),
            (
                400,
                "Could not parse header: too many tokens remaining after extracting content-type",
            ),
            (400, "channel marker present but no channel value found in header"),
            (400, "Expected message start token but ran out of tokens"),
            (424, "The model produced invalid sequence as part of ToolUse. Refer to the guide."),
        ] {
            for body in [json!({"error": {"message": message}}), json!({"error": message})] {
                let error = http_error(status, &body.to_string());
                assert_eq!(error.kind, ProviderErrorKind::UnparsableOutput, "{message}");
                let in_stream = keyed_error(&body["error"].to_string()).unwrap();
                assert_eq!(in_stream.kind, ProviderErrorKind::UnparsableOutput, "{message}");
                assert!(error.is_transient() && in_stream.is_transient(), "{message}");
            }
        }
        for message in ["Invalid schema for function 'f'", "failed to parse grammar"] {
            let error = http_error(400, &json!({"error": {"message": message}}).to_string());
            assert_eq!(error.kind, ProviderErrorKind::Status, "{message}");
        }
    }

    #[test]
    fn an_exhausted_quota_is_not_transient() {
        let body = |code: &str| format!(r#"{{"error":{{"message":"m","code":"{code}"}}}}"#);
        assert!(!http_error(429, &body("insufficient_quota")).is_transient());
        assert!(http_error(429, &body("rate_limit_exceeded")).is_transient());
        // A gateway replaces the code, but keeps the type.
        let body = r#"{"error":{"type":"insufficient_quota","code":"some_code"}}"#;
        let error = http_error(429, body);
        assert_eq!((error.is_transient(), error.code.as_deref()), (false, Some("some_code")));
    }

    #[test]
    fn a_long_message_is_shortened() {
        let error = http_error(500, &"é".repeat(5000));
        let before = "HTTP status 500: ".len();
        assert_eq!(error.message.chars().count(), before + MESSAGE_CHARS_MAX + 1);
    }

    #[test]
    fn the_retry_delay_is_read_from_the_details() {
        let with = |details: &str| {
            let body = format!(r#"{{"error":{{"code":429,"message":"m","details":{details}}}}}"#);
            http_error(429, &body).retry_after
        };
        let info = |delay: &str| {
            with(&format!(
                r#"[{{"@type":"x"}},{{"@type":"google.rpc.RetryInfo","retryDelay":{delay}}}]"#
            ))
        };
        assert_eq!(info("\"34s\""), Some(Duration::from_secs(34)));
        assert_eq!(info("\"1.5s\""), Some(Duration::from_millis(1500)));
        for none in ["\"-1s\"", "\"s\"", "\"1m\"", "null", "7"] {
            assert_eq!(info(none), None, "{none}");
        }
        assert_eq!((with("null"), with("[]"), with("{}")), (None, None, None));
    }

    #[test]
    fn a_status_within_a_stream_decides_whether_it_is_transient() {
        let value = serde_json::json!({"message": "overloaded", "code": 503});
        assert!(provider_error(&value).is_transient());
        let value = serde_json::json!({"message": "bad", "status_code": 400, "code": "x"});
        let error = provider_error(&value);
        assert_eq!((error.status, error.code.as_deref()), (Some(400), Some("x")));
        assert!(!error.is_transient());
    }

    #[test]
    fn a_known_error_type_implies_its_status() {
        let status = |value: serde_json::Value| provider_error(&value).status;
        let overloaded = serde_json::json!({"type": "overloaded_error", "message": "m"});
        assert!(provider_error(&overloaded).is_transient());
        assert_eq!(status(overloaded), Some(529));
        let invalid = serde_json::json!({"type": "invalid_request_error", "message": "m"});
        assert!(!provider_error(&invalid).is_transient());
        let both = serde_json::json!({"type": "api_error", "code": 503});
        assert_eq!(status(both), Some(503));
        assert_eq!(status(serde_json::json!({"type": "odd"})), None);
    }

    #[test]
    fn a_known_error_code_implies_its_status() {
        for (value, status, transient) in [
            (serde_json::json!({"code": "insufficient_quota", "message": "m"}), Some(402), false),
            (serde_json::json!({"code": "invalid_prompt", "message": "m"}), Some(400), false),
            (serde_json::json!({"type": "invalid_request_error", "code": null}), Some(400), false),
            (
                serde_json::json!({"type": "invalid_request_error", "code": "rate_limit_exceeded"}),
                Some(429),
                true,
            ),
            (serde_json::json!({"type": "tokens", "code": "rate_limit_exceeded"}), Some(429), true),
            (serde_json::json!({"code": "server_error", "message": "m"}), Some(500), true),
            (serde_json::json!({"code": "slow_down", "status": 429}), Some(429), true),
            (serde_json::json!({"code": "nobody_knows", "message": "m"}), None, true),
        ] {
            let error = provider_error(&value);
            assert_eq!((error.status, error.is_transient()), (status, transient), "{value}");
        }
        let flat = serde_json::json!({"type": "error", "code": null, "message": "m"});
        assert_eq!(provider_error(&flat).code, None);
    }
}
