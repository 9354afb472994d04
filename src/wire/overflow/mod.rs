//! Recognises the error of a request that is larger than the context window of its model, or that has more
//! bytes than its service accepts.
//!
//! Services have a code for it, or only a sentence. The code decides if there is one. A sentence is an
//! overflow of the window if it joins a noun of the request's size (context window, prompt, input, tokens) with
//! a word of excess (exceeds, too long, is greater than, at most), whichever service wrote it. Sentences about
//! rates and quotas use the same words, and are excluded. So are those about the length of the answer and the size
//! of images, unless they name the window.
//!
//! | what | file |
//! | --- | --- |
//! | the classification | `mod.rs` |
//! | the numbers in the sentence | `numbers.rs` |
//! | error texts of services: overflows, and other errors | `tests.rs` |

mod numbers;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use super::repair::parse_value;
use callsheet_values::types::{ContextOverflow, ProviderError, excerpt};

/// Members of an error that hold the window, in tokens.
const WINDOW_KEYS: [&str; 8] = [
    "n_ctx",
    "context_window",
    "context_length",
    "context_size",
    "max_context_length",
    "max_context_tokens",
    "max_model_len",
    "max_input_tokens",
];

/// Members of an error that hold the tokens of the request.
const REQUEST_KEYS: [&str; 5] =
    ["n_prompt_tokens", "prompt_tokens", "input_tokens", "requested_tokens", "token_count"];

/// Parts of the codes of an overflow of the window, without separators.
const CODES: [&str; 15] = [
    "contextlength",
    "contextwindow",
    "contextsize",
    "contextoverflow",
    "contextlimit",
    "prompttoolong",
    "promptistoolong",
    "inputtoolong",
    "prompttokensexceeded",
    "maxprompttokens",
    "maxinputtokens",
    "inputtokensexceeded",
    "tokenlimitexceeded",
    "tokenslimitexceeded",
    "toomanyinputtokens",
];

/// Words of errors about rates, quotas, time, availability and parameters that the service does not know. Such
/// errors mention tokens and limits too.
const OTHER_LIMITS: [&str; 43] = [
    "rate limit",
    "ratelimit",
    "per minute",
    "per min",
    "per second",
    "per hour",
    "per day",
    "per month",
    "(tpm",
    " tpm",
    "(rpm",
    " rpm",
    "throttl",
    "too many requests",
    "please wait",
    "try again in",
    "retry after",
    "retry in",
    "quota",
    "resource exhausted",
    "concurren",
    "overloaded",
    "billing",
    "credits",
    "account balance",
    "insufficient balance",
    "subscription",
    "daily",
    "today",
    "this minute",
    "weekly",
    "monthly",
    "usage limit",
    "timed out",
    "timeout",
    "seconds",
    "unknown parameter",
    "unsupported parameter",
    "extra inputs are not permitted",
    "频率",
    "限流",
    "配额",
    "余额",
];

/// Parts of the codes of the same errors, without separators.
const OTHER_CODES: [&str; 10] = [
    "ratelimit",
    "quota",
    "throttl",
    "toomanyrequests",
    "exhausted",
    "billing",
    "overloaded",
    "timeout",
    "unknownparameter",
    "unsupportedparameter",
];

/// Nouns for the context window.
const WINDOW_NOUNS: [&str; 26] = [
    "context length",
    "context window",
    "context size",
    "context limit",
    "context budget",
    "context capacity",
    "context overflow",
    "context is full",
    "context full",
    "context of",
    "context the overflows",
    "maximum context",
    "max context",
    "contextlength",
    "contextwindow",
    "model length",
    "model len",
    "sequence length",
    "seq len",
    "n ctx",
    "tokens of context",
    "context tokens",
    "message tokens",
    "slot context",
    "kv cache",
    "上下文",
];

/// Nouns for the contents of the window.
const CONTENT_NOUNS: [&str; 14] = [
    "prompt",
    "input",
    "message",
    "conversation",
    "request",
    "history",
    "sequence",
    "text",
    "tokens",
    "token count",
    "token limit",
    "输入",
    "提示",
    "请求",
];

/// Words of a size. Without one, a noun of the contents does not refer to the window.
const SIZE_WORDS: [&str; 10] = [
    "token",
    "length",
    "long",
    "context",
    "too large",
    "too big",
    "model limit",
    "model's limit",
    "长",
    "最大",
];

/// Words which say that a limit is exceeded.
const EXCESS: [&str; 47] = [
    "exceed",
    "too long",
    "too large",
    "too many",
    "too big",
    "longer than",
    "larger than",
    "greater than",
    "bigger than",
    "more than",
    "less than",
    "fewer than",
    "smaller than",
    "at most",
    "above",
    "over the",
    "over limit",
    "beyond",
    "surpass",
    "overflow",
    "not enough",
    "not fit",
    "n't fit",
    "only supports",
    "supports up to",
    "limited to",
    "maximum prompt",
    "maximum input",
    "max prompt",
    "max input",
    "max is",
    "max of",
    "(max",
    "maximum is",
    "maximum of",
    "limit is",
    "limit of",
    "must be <",
    "should be [",
    " > ",
    ">=",
    "reduce the",
    "reduce your",
    "超",
    "过长",
    "太长",
    "过大",
];

/// Words which say so only in a text that names the window.
const EXCESS_OF_WINDOW: [&str; 17] = [
    "maximum",
    "limit",
    "reached",
    "reduce",
    "shorten",
    "shorter",
    "truncat",
    "insufficient",
    "ran out",
    "run out",
    "out of",
    "free space",
    " but ",
    "you sent",
    "you requested",
    "up to",
    "full",
];

/// Things with a limit on their own size. A text about one of them is an overflow of the window only if it names
/// the window.
const OTHER_THINGS: [&str; 21] = [
    "image",
    "picture",
    "photo",
    "audio",
    "video",
    "pdf",
    "file",
    "attachment",
    "character",
    "string too long",
    "array too long",
    "name",
    "description",
    "schema",
    "stop sequence",
    "metadata",
    "header",
    "url",
    "bytes",
    " mb",
    "decimal",
];

/// Names of the limit on the length of the answer. They are removed from a text that does not name the window,
/// because their words would look like an overflow.
const ANSWER_LIMITS: [&str; 9] = [
    "max completion tokens",
    "max output tokens",
    "maxoutputtokens",
    "max new tokens",
    "budget tokens",
    "max tokens",
    "maximum tokens you requested",
    "completion tokens",
    "output tokens",
];

/// Nouns for the size of the request in bytes.
const BODY_NOUNS: [&str; 6] = [
    "payload",
    "entity too large",
    "request size",
    "request body",
    "body is too large",
    "the maximum size",
];

/// Parts of the codes of a request with too many bytes, without separators.
const BODY_CODES: [&str; 4] =
    ["requesttoolarge", "payloadtoolarge", "entitytoolarge", "bodytoolarge"];

/// Members that may repeat the request or name a part of it. Their texts are not read.
const ECHOES: [&str; 7] = ["input", "messages", "prompt", "request", "body", "ctx", "param"];

/// Members with codes. They are not read as sentences.
const CODE_KEYS: [&str; 5] = ["code", "type", "error_code", "status", "reason"];

/// The separator between the texts of an error.
const SEPARATOR: &str = " | ";

/// Maximum number of bytes of an error's texts that are read.
const TEXT_BYTES_MAX: usize = 8 * 1024;

/// Returns the overflow that an error reports: of the window, or of the size in bytes. `message` is the service's
/// own sentence, and `value` the whole error if it is JSON.
pub(super) fn find_overflow(
    error: &ProviderError,
    value: Option<&Value>,
    message: &str,
) -> Option<ContextOverflow> {
    let members = value.and_then(Value::as_object);
    let sentence = match value {
        Some(value) => normalised(&[message, &texts(value)].join(SEPARATOR)),
        None => normalised(message),
    };
    let text = sentence.replace(['_', '-'], " ");
    let codes = codes(error, members);
    let has_code = |known: &[&str]| codes.iter().any(|code| has(code, known));
    // Zhipu's code of a prompt that is too long.
    if has_code(&CODES) || codes.iter().any(|code| code == "1261") {
        return Some(with_numbers(members, &sentence, error));
    }
    if has_code(&OTHER_CODES) || has(&text, &OTHER_LIMITS) {
        return None;
    }
    if is_overflow_text(&text, error.status) {
        return Some(with_numbers(members, &sentence, error));
    }
    let is_of_body = match error.status {
        Some(413) => true,
        // Cerebras and some gateways refuse a long request with an empty body.
        Some(400) if text.trim().is_empty() => true,
        Some(_) | None => has_code(&BODY_CODES) || (has(&text, &BODY_NOUNS) && has(&text, &EXCESS)),
    };
    is_of_body.then(ContextOverflow::of_body)
}

/// Returns whether a text reports an overflow of the window. The text has none of [`OTHER_LIMITS`].
fn is_overflow_text(text: &str, status: Option<u16>) -> bool {
    // These statuses report missing access or credit, or an unknown model.
    if matches!(status, Some(401..=404)) {
        return false;
    }
    if has(text, &WINDOW_NOUNS) {
        return has(text, &EXCESS) || has(text, &EXCESS_OF_WINDOW);
    }
    if matches!(status, Some(429)) || has(text, &OTHER_THINGS) {
        return false;
    }
    let without = |text: String, limit: &&str| text.replace(limit, " ");
    let text = ANSWER_LIMITS.iter().fold(text.to_owned(), without);
    let is_about_body = has(&text, &BODY_NOUNS) && !text.contains("token");
    !is_about_body && has(&text, &CONTENT_NOUNS) && has(&text, &SIZE_WORDS) && has(&text, &EXCESS)
}

fn has(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

/// Returns the codes of an error in lower case, without separators.
fn codes(error: &ProviderError, members: Option<&Map<String, Value>>) -> Vec<String> {
    let of_members = CODE_KEYS.iter().filter_map(|key| members?.get(*key)?.as_str());
    let letters = |code: &str| {
        let letters = code.chars().filter(char::is_ascii_alphanumeric);
        letters.collect::<String>().to_lowercase()
    };
    error.code.as_deref().into_iter().chain(of_members).map(letters).collect()
}

/// Returns the texts of an error, also those in JSON that a gateway received from the service as a text.
fn texts(value: &Value) -> String {
    fn collect(value: &Value, depth: usize, out: &mut String) {
        if depth == 0 || out.len() > TEXT_BYTES_MAX {
            return;
        }
        match value {
            Value::String(text) => {
                let nested =
                    text.trim_start().starts_with('{').then(|| parse_value(text)).flatten();
                match nested {
                    Some(nested) => collect(&nested, depth - 1, out),
                    None => {
                        out.push_str(text);
                        out.push_str(SEPARATOR);
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, depth - 1, out)),
            Value::Object(members) => {
                let is_read = |key: &str| !ECHOES.contains(&key) && !CODE_KEYS.contains(&key);
                let members = members.iter().filter(|(key, _)| is_read(key));
                members.for_each(|(_, value)| collect(value, depth - 1, out));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut out = String::new();
    collect(value, 8, &mut out);
    out
}

/// Returns the beginning of a text in lower case, with single spaces and without addresses of pages.
fn normalised(text: &str) -> String {
    let text = excerpt(text, TEXT_BYTES_MAX).to_lowercase();
    let words = text.split_whitespace().filter(|word| !word.contains("://"));
    words.collect::<Vec<_>>().join(" ")
}

fn with_numbers(
    members: Option<&Map<String, Value>>,
    text: &str,
    error: &ProviderError,
) -> ContextOverflow {
    let member = |keys: &[&str]| {
        let values = keys.iter().filter_map(|key| members?.get(*key)?.as_u64());
        values.into_iter().find(|number| *number > 0)
    };
    let found = numbers::find(text, error.code.as_deref(), error.status);
    let window = member(&WINDOW_KEYS).or(found.window);
    ContextOverflow {
        output_room: window.and_then(|window| numbers::output_room(text, window)),
        ..ContextOverflow::of_window(window, member(&REQUEST_KEYS).or(found.request))
    }
}
