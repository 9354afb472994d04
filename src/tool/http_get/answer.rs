//! What the model is told of a response: its status, its type and its text.

use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName};
use reqwest::{Response, StatusCode};

use super::GetError;

/// How much of a header or URL is told, in characters.
const QUOTED_CHARS_MAX: usize = 200;

/// Reads a response: any status is an answer. A body that is no text is left unread.
pub(super) async fn read(mut response: Response, bytes_max: usize) -> Result<String, GetError> {
    let head = head(&response);
    // Asked before reading: later it would be what is left.
    let size = response.content_length();
    if let Some(why) = unreadable(&response) {
        let size = size.map_or("of unknown size".to_owned(), |bytes| format!("{bytes} bytes"));
        return Ok(format!("{head}\n[the body is not shown: {why}, {size}]"));
    }
    let mut body = Vec::new();
    let mut whole = true;
    while let Some(chunk) = response.chunk().await? {
        let room = bytes_max - body.len();
        whole = chunk.len() <= room;
        body.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
        if !whole {
            break;
        }
    }
    Ok(format!("{head}\n{}", text(&body, whole, size)))
}

/// The status line, the type, and the URL, which redirects may have changed.
fn head(response: &Response) -> String {
    let status = status_line(response.status());
    let content_type = header(response, &CONTENT_TYPE).unwrap_or_else(|| "not told".to_owned());
    let url = shorten(response.url().as_str());
    format!("HTTP {status}\nurl: {url}\ncontent-type: {content_type}\n")
}

fn status_line(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_str()),
        None => status.as_str().to_owned(),
    }
}

/// Why the body cannot be shown as text, if it cannot.
fn unreadable(response: &Response) -> Option<String> {
    let encoding = header(response, &CONTENT_ENCODING);
    if let Some(encoding) = encoding.filter(|coding| !coding.eq_ignore_ascii_case("identity")) {
        return Some(format!("it is encoded as {encoding}"));
    }
    let content_type = header(response, &CONTENT_TYPE)?;
    (!is_text(&content_type)).then(|| format!("it is {content_type}"))
}

fn is_text(content_type: &str) -> bool {
    const TEXTS: [&str; 9] = [
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
        || TEXTS.contains(&essence.as_str())
}

/// The body as text, with a note on what is missing or was no UTF-8.
fn text(body: &[u8], whole: bool, size: Option<u64>) -> String {
    let bytes = if whole { body } else { without_torn_character(body) };
    if memchr::memchr(0, bytes).is_some() {
        return format!("[the body is not shown: it is no text, {} bytes or more]", body.len());
    }
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    if text.is_empty() {
        text.push_str("[the body is empty]");
    }
    if std::str::from_utf8(bytes).is_err() {
        text.push_str("\n[what is no UTF-8 in the body is shown as \u{fffd}]");
    }
    if !whole {
        let of = size.map_or("more".to_owned(), |size| size.to_string());
        text.push_str(&format!("\n[cut: these are the first {} of {of} bytes]", bytes.len()));
    }
    text
}

/// The bytes without a last character of which a cut has left only the beginning.
fn without_torn_character(bytes: &[u8]) -> &[u8] {
    let torn = bytes.utf8_chunks().last().map_or(0, |chunk| {
        // A beginning that could go on differs from bytes that are simply wrong.
        let rest = chunk.invalid();
        let unfinished = std::str::from_utf8(rest).is_err_and(|e| e.error_len().is_none());
        if unfinished { rest.len() } else { 0 }
    });
    bytes.get(..bytes.len() - torn).unwrap_or(bytes)
}

fn header(response: &Response, name: &HeaderName) -> Option<String> {
    let value = response.headers().get(name)?;
    Some(shorten(&String::from_utf8_lossy(value.as_bytes())))
}

/// The start of something that somebody else wrote.
pub(super) fn shorten(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_text_by_its_type() {
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
    fn says_what_is_missing_of_a_body() {
        assert_eq!(text(b"", true, None), "[the body is empty]");
        assert_eq!(text(b"hello", true, Some(5)), "hello");
        assert_eq!(
            text(b"caf\xe9 noir", true, None),
            "caf\u{fffd} noir\n[what is no UTF-8 in the body is shown as \u{fffd}]"
        );
        assert_eq!(
            text("día"[..].as_bytes(), false, Some(9)),
            "día\n[cut: these are the first 4 of 9 bytes]"
        );
        assert_eq!(
            text(&"dí".as_bytes()[..2], false, None),
            "d\n[cut: these are the first 1 of more bytes]"
        );
        assert_eq!(
            text(b"a\0b", true, None),
            "[the body is not shown: it is no text, 3 bytes or more]"
        );
    }

    #[test]
    fn bounds_what_others_wrote() {
        assert_eq!(shorten("short"), "short");
        assert_eq!(shorten(&"é".repeat(201)), format!("{}…", "é".repeat(200)));
    }
}
