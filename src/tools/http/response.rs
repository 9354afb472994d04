//! The text that the model reads of an HTTP response: status, URL, content type and body. A body is read up to a
//! limit.

use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName};
use reqwest::{Response, StatusCode};

use super::HttpError;
use callsheet_values::types::{Secrets, excerpt};

/// Maximum length of a quoted header or URL.
const QUOTED_CHARS_MAX: usize = 200;

/// The body of a response, read up to a limit.
pub(crate) enum LimitedBody {
    /// The beginning of a text body, all of it if `is_complete`, and the value of its `content-length`.
    Text { bytes: Vec<u8>, is_complete: bool, content_length: Option<u64> },
    /// A body that was not read. The reason quotes headers of the server.
    Unreadable { reason: String },
}

impl LimitedBody {
    /// Reads at most `bytes_max` bytes. Does not read a body that is not text.
    pub(crate) async fn read(mut response: Response, bytes_max: usize) -> Result<Self, HttpError> {
        // Must be read before the body: afterwards it is the length of the unread rest.
        let content_length = response.content_length();
        if let Some(reason) = unreadable_reason(&response) {
            let size = content_length
                .map_or("of unknown size".to_owned(), |bytes| format!("{bytes} bytes"));
            return Ok(Self::Unreadable { reason: format!("{reason}, {size}") });
        }
        let mut bytes = Vec::new();
        let mut is_complete = true;
        while let Some(chunk) = response.chunk().await? {
            let remaining = bytes_max - bytes.len();
            is_complete = chunk.len() <= remaining;
            bytes.extend_from_slice(chunk.get(..remaining).unwrap_or(&chunk));
            if !is_complete {
                break;
            }
        }
        Ok(Self::Text { bytes, is_complete, content_length })
    }

    /// Returns the text for the model without secrets, with notes about what is missing.
    pub(crate) fn redacted_text(&self, secrets: &Secrets) -> String {
        match self {
            Self::Text { bytes, is_complete, content_length } => {
                text(bytes, *is_complete, *content_length, secrets)
            }
            // The reason quotes headers that may have been cut within a secret.
            Self::Unreadable { reason } => {
                secrets.redact_excerpts(&format!("[the body is left out: {reason}]"))
            }
        }
    }
}

/// Reads a response with any status. Returns the text for the model: status, URL, content type and body.
pub(crate) async fn response_text(
    response: Response,
    bytes_max: usize,
) -> Result<String, HttpError> {
    let head = head(&response);
    let body = LimitedBody::read(response, bytes_max).await?;
    Ok(format!("{head}\n{}", body.redacted_text(&Secrets::default())))
}

/// Returns the status line, the content type and the URL, which redirects may have changed.
fn head(response: &Response) -> String {
    let status = status_line(response.status());
    let content_type = header(response, &CONTENT_TYPE).unwrap_or_else(|| "missing".to_owned());
    let url = quoted_excerpt(response.url().as_str());
    format!("HTTP {status}\nurl: {url}\ncontent-type: {content_type}\n")
}

pub(crate) fn status_line(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_str()),
        None => status.as_str().to_owned(),
    }
}

/// Returns the reason why the body cannot be read as text, if there is one. A body without a content type is read as
/// text.
fn unreadable_reason(response: &Response) -> Option<String> {
    let encoding = header(response, &CONTENT_ENCODING);
    if let Some(encoding) = encoding.filter(|name| !name.eq_ignore_ascii_case("identity")) {
        return Some(format!("it is encoded as {encoding}"));
    }
    let content_type = header(response, &CONTENT_TYPE)?;
    (!is_text(&content_type)).then(|| format!("it is {content_type}"))
}

fn is_text(content_type: &str) -> bool {
    const TEXT_MEDIA_TYPES: [&str; 9] = [
        "application/json",
        "application/javascript",
        "application/ecmascript",
        "application/xml",
        "application/x-ndjson",
        "application/x-www-form-urlencoded",
        "application/x-yaml",
        "application/yaml",
        "application/toml",
    ];
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.starts_with("text/")
        || essence.ends_with("+json")
        || essence.ends_with("+xml")
        || TEXT_MEDIA_TYPES.contains(&essence.as_str())
}

/// Returns the body as text without secrets, with notes about a cut and about invalid UTF-8. Leaves out a body with
/// a NUL byte.
fn text(body: &[u8], is_complete: bool, content_length: Option<u64>, secrets: &Secrets) -> String {
    let bytes = if is_complete { body } else { without_partial_character(body) };
    if memchr::memchr(0, bytes).is_some() {
        return format!("[the body is left out: it is not text, {} bytes or more]", body.len());
    }
    let text = String::from_utf8_lossy(bytes);
    // After a cut the text may end with the beginning of a secret, which only `redact_head` removes.
    let mut text =
        if is_complete { secrets.redact(&text).into_owned() } else { secrets.redact_head(&text) };
    if bytes.is_empty() {
        text.push_str("[the body is empty]");
    }
    if std::str::from_utf8(bytes).is_err() {
        text.push_str("\n[invalid UTF-8 in the body is replaced by \u{fffd}]");
    }
    if !is_complete {
        let read = bytes.len();
        text.push_str(&match content_length {
            Some(size) => format!("\n[cut: the first {read} of {size} bytes]"),
            None => format!("\n[cut: the first {read} bytes; the size is unknown]"),
        });
    }
    text
}

/// Removes the bytes of a last character that the cut left incomplete.
pub(crate) fn without_partial_character(bytes: &[u8]) -> &[u8] {
    let partial = bytes.utf8_chunks().last().map_or(0, |chunk| {
        // `error_len` is `None` only for the beginning of a valid character.
        let invalid = chunk.invalid();
        let is_partial = std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
        if is_partial { invalid.len() } else { 0 }
    });
    bytes.get(..bytes.len() - partial).unwrap_or(bytes)
}

fn header(response: &Response, name: &HeaderName) -> Option<String> {
    let value = response.headers().get(name)?;
    Some(quoted_excerpt(&String::from_utf8_lossy(value.as_bytes())))
}

/// Returns a text of a server or a model, cut to the length that may be quoted.
pub(crate) fn quoted_excerpt(text: &str) -> String {
    excerpt(text, QUOTED_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_recognised_by_its_content_type() {
        for content_type in [
            "text/html; charset=utf-8",
            "TEXT/Plain",
            "application/json",
            "application/problem+json",
            "application/atom+xml;type=feed",
        ] {
            assert!(is_text(content_type), "{content_type}");
        }
        for content_type in ["image/png", "application/octet-stream", "", "application/pdf"] {
            assert!(!is_text(content_type), "{content_type}");
        }
    }

    #[test]
    fn a_cut_body_has_no_part_of_a_secret() {
        let secrets = Secrets::new(["sk-web-0123456789", "\u{e9}t\u{e9}-secret-\u{e9}"]);
        let body = |bytes: &[u8], is_complete| {
            let body =
                LimitedBody::Text { bytes: bytes.to_vec(), is_complete, content_length: None };
            body.redacted_text(&secrets)
        };
        assert_eq!(body(b"a sk-web-0123456789", true), "a [redacted]");
        assert_eq!(body(b"a sk-web-012345678", true), "a sk-web-012345678");
        let cut = "a [redacted]\n[cut: the first 16 bytes; the size is unknown]";
        assert_eq!(body(b"a sk-web-0123456", false), cut);
        // The cut is in the last character of the secret.
        let bytes = "a \u{e9}t\u{e9}-secret-\u{e9}".as_bytes();
        let cut = "a [redacted]\n[cut: the first 15 bytes; the size is unknown]";
        assert_eq!(body(&bytes[..bytes.len() - 1], false), cut);
    }

    #[test]
    fn body_text_notes_cuts_and_invalid_bytes() {
        let text =
            |body: &[u8], is_complete, size| text(body, is_complete, size, &Secrets::default());
        assert_eq!(text(b"", true, None), "[the body is empty]");
        assert_eq!(text(b"hello", true, Some(5)), "hello");
        assert_eq!(
            text(b"caf\xe9 noir", true, None),
            "caf\u{fffd} noir\n[invalid UTF-8 in the body is replaced by \u{fffd}]"
        );
        assert_eq!(
            text("día"[..].as_bytes(), false, Some(9)),
            "día\n[cut: the first 4 of 9 bytes]"
        );
        assert_eq!(
            text(&"dí".as_bytes()[..2], false, None),
            "d\n[cut: the first 1 bytes; the size is unknown]"
        );
        assert_eq!(
            text(b"a\0b", true, None),
            "[the body is left out: it is not text, 3 bytes or more]"
        );
    }
}
