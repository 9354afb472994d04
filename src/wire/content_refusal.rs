//! Recognises refusals of a request because of the content of its messages: an image, a text that a policy forbids, or
//! something that the error does not name.
//!
//! The wordings are those of public reports: Anthropic ("Could not process image", "image exceeds 5 MB maximum"), OpenAI
//! (codes such as `invalid_image_format`, "Invalid MIME type. Only image types are supported."), DeepSeek ("unknown
//! variant `image_url`, expected `text`"), Mistral ("Image input is not enabled for this model"), llama.cpp (HTTP 500,
//! "image input is not supported"). An error that names none of this may be about content too. The turn finds out by a
//! request without it.

use serde_json::Value;

use super::refusal::refusal_of_text;
use callsheet_values::types::{ContentRefusal, ProviderError, ProviderErrorKind};

/// Nouns for images, in lower case.
const IMAGES: [&str; 8] =
    ["image", "picture", "photo", "vision", "multimodal", "multi-modal", "图片", "图像"];

/// Words of errors about something else than images that may have one of their nouns, such as in the name of a tool.
const NOT_IMAGES: [&str; 6] =
    ["schema", "function ", "unknown parameter", "unsupported parameter", "extra inputs", "quota"];

/// Words of errors about something else than content: parameters, tools, reasoning, access, models.
const OTHER_SUBJECTS: [&str; 47] = [
    "parameter",
    "argument",
    "tool",
    "function",
    "schema",
    "reasoning",
    "thinking",
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "penalty",
    "logprobs",
    "logit_bias",
    "response_format",
    "stop sequence",
    "stream",
    "service_tier",
    "cache_control",
    "extra inputs",
    "unknown name",
    "unknown field",
    "unrecognized",
    "unexpected keyword",
    "api key",
    "api_key",
    "apikey",
    "api version",
    "api-version",
    "credential",
    "credit",
    "balance",
    "billing",
    "quota",
    "account",
    "organization",
    "region",
    "location is not supported",
    "beta",
    "deployment",
    "model not",
    "model does not exist",
    "unknown model",
    "invalid model",
    "no such model",
];

/// The beginnings of paths to a message of a request.
const MESSAGE_PATHS: [&str; 4] = ["messages[", "messages.", "input[", "contents["];

/// Finds out whether the service refused the content of the request's messages, and notes it in the error. `value` is
/// the error as JSON. The other reasons of the error are noted before.
pub(super) fn note_content_refusal(error: &mut ProviderError, value: Option<&Value>) {
    error.content = find_content_refusal(error, value);
    if error.content == Some(ContentRefusal::Image) {
        // The size of an image is not that of the request.
        error.overflow = None;
    }
    if error.content == Some(ContentRefusal::Unnamed)
        && let Some(refusal) = refusal_of_text(&error.message)
    {
        error.refusal = Some(refusal.into());
        error.content = Some(ContentRefusal::Policy);
    }
}

fn find_content_refusal(error: &ProviderError, value: Option<&Value>) -> Option<ContentRefusal> {
    let status = error.status?;
    let is_window = error.overflow.is_some_and(|overflow| !overflow.of_body);
    if error.kind == ProviderErrorKind::UnparsableOutput
        || error.reasoning.is_some()
        || error.retryable == Some(true)
        || is_window
    {
        return None;
    }
    if error.refusal.is_some() {
        return matches!(status, 400 | 403 | 422).then_some(ContentRefusal::Policy);
    }
    let param = value.and_then(|value| value.get("param")?.as_str()).unwrap_or_default();
    let code = error.code.as_deref().unwrap_or_default();
    let text = [param, code, &error.message].join(" ").to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let is_path = has(&MESSAGE_PATHS) && text.contains("content");
    let names_message = is_path || ["messages", "input", "prompt", "contents"].contains(&param);
    if !param.is_empty() && !names_message {
        return None;
    }
    let is_image = has(&IMAGES) && !has(&NOT_IMAGES);
    if is_image && matches!(status, 400 | 415 | 422 | 500 | 501) {
        return Some(ContentRefusal::Image);
    }
    let is_pairing = has(&["tool_use_id", "tool_call_id"]);
    let is_unnamed = match is_path {
        true => !is_pairing,
        false => !has(&OTHER_SUBJECTS),
    };
    let is_refused = matches!(status, 400 | 415 | 422) && error.overflow.is_none();
    (is_refused && is_unnamed).then_some(ContentRefusal::Unnamed)
}

#[cfg(test)]
mod tests {
    use super::super::error::http_error;
    use super::*;
    use serde_json::json;

    fn of(status: u16, error: Value) -> Option<ContentRefusal> {
        http_error(status, &json!({ "error": error }).to_string()).content
    }

    #[test]
    fn errors_about_images_are_recognised() {
        for (status, message) in [
            (400, "Could not process image"),
            (400, "messages.1.content.0.image.source.base64: image exceeds 5 MB maximum: 6 > 5"),
            (400, "image exceeds the maximum size of 5 MB"),
            (
                400,
                "Failed to deserialize: messages[0]: unknown variant `image_url`, expected `text`",
            ),
            (400, "This model does not support images."),
            (422, "Image input is not enabled for this model"),
            (500, "image input is not supported - hint: you may need to provide the mmproj"),
            (400, "messages.2.content.0.tool_result.content.1: image is too small"),
        ] {
            let error = http_error(status, &json!({"error": {"message": message}}).to_string());
            assert_eq!(error.content, Some(ContentRefusal::Image), "{message}");
            assert_eq!(error.overflow, None, "{message}");
        }
        let coded = json!({"message": "bad", "code": "invalid_image_format", "param": null});
        assert_eq!(of(400, coded), Some(ContentRefusal::Image));
        let path = json!({"message": "bad", "param": "messages[1].content[0].image_url"});
        assert_eq!(of(400, path), Some(ContentRefusal::Image));
    }

    #[test]
    fn an_error_about_a_policy_is_a_refusal_to_answer() {
        for message in [
            "Your input violates our content policy",
            "The request was rejected by the safety system.",
        ] {
            let body = json!({"error": {"message": message}}).to_string();
            let error = http_error(400, &body);
            assert_eq!(error.content, Some(ContentRefusal::Policy), "{message}");
            assert!(error.refusal.is_some(), "{message}");
            for status in [401, 404, 429, 500] {
                let error = http_error(status, &body);
                assert_eq!((error.content, error.refusal), (None, None), "{status} {message}");
            }
        }
        let coded = json!({"message": "no", "code": "content_policy_violation"});
        assert_eq!(of(400, coded), Some(ContentRefusal::Policy));
    }

    #[test]
    fn an_error_that_names_nothing_may_be_about_content() {
        for message in ["Bad Request", "invalid request", "file is over 5 MB", "bad unicode"] {
            assert_eq!(of(400, json!({"message": message})), Some(ContentRefusal::Unnamed));
        }
        let path = json!({"message": "invalid tool message", "param": "messages[2].content"});
        assert_eq!(of(400, path), Some(ContentRefusal::Unnamed));
    }

    #[test]
    fn other_errors_blame_no_content() {
        for status in [401, 402, 403, 404, 408, 409, 413, 429, 503] {
            for message in ["invalid image", "bad request"] {
                assert_eq!(of(status, json!({"message": message})), None, "{status} {message}");
            }
        }
        for message in [
            "Unsupported parameter: 'temperature' is not supported with this model.",
            "temperature must be between 0 and 2",
            "Unknown parameter: 'image_size'.",
            "Invalid schema for function 'make_image'",
            "tools.3.custom.input_schema: bad",
            "messages.2.content.0.tool_result: unexpected tool_use_id",
            "The `reasoning_content` in the thinking mode must be passed back to the API.",
            "API key not valid. Please pass a valid API key.",
            "User location is not supported for the API use.",
            "prompt is too long: 250000 tokens > 200000 maximum",
        ] {
            assert_eq!(of(400, json!({"message": message})), None, "{message}");
        }
        let named = json!({"message": "image too large", "param": "size"});
        assert_eq!(of(400, named), None);
    }
}
