//! The forms in which a service or a tool may repeat a secret.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Returns the forms of a secret that [`Secrets`](super::Secrets) lists. Some may be equal.
pub(super) fn forms(secret: &str) -> Vec<String> {
    let trimmed = secret.trim();
    // Error messages have one line.
    let one_line = secret.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut forms = Vec::new();
    for text in [secret, trimmed, &one_line] {
        forms.push(text.to_owned());
        forms.extend(json_forms(text));
        forms.extend(percent_forms(text));
    }
    forms.extend(base64_forms(trimmed));
    forms
}

/// Returns the forms within a JSON string, as common libraries write them.
fn json_forms(secret: &str) -> [String; 6] {
    let is_wide = |letter: char| !letter.is_ascii();
    let is_html = |letter| matches!(letter, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
    let of_gson = |letter| is_html(letter) || matches!(letter, '=' | '\'');
    let of_dotnet = |letter: char| {
        !letter.is_ascii() || matches!(letter, '"' | '&' | '\'' | '+' | '<' | '>' | '`')
    };
    [
        // serde_json and JavaScript.
        json_escaped(secret, "/", false, |_| false),
        // Python.
        json_escaped(secret, "/", false, is_wide),
        // PHP.
        json_escaped(secret, "\\/", false, is_wide),
        // Go and Ruby on Rails.
        json_escaped(secret, "/", false, is_html),
        // Gson (Java).
        json_escaped(secret, "/", false, of_gson),
        // System.Text.Json (.NET).
        json_escaped(secret, "/", true, of_dotnet),
    ]
}

/// Escapes a text as in a JSON string. `is_escaped` tells which printable characters are written as `\u` and digits.
fn json_escaped(
    secret: &str,
    slash: &str,
    has_upper_digits: bool,
    is_escaped: impl Fn(char) -> bool,
) -> String {
    let mut escaped = String::with_capacity(secret.len());
    for letter in secret.chars() {
        match letter {
            letter if is_escaped(letter) => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    escaped.push_str(&match has_upper_digits {
                        true => format!("\\u{unit:04X}"),
                        false => format!("\\u{unit:04x}"),
                    });
                }
            }
            '/' => escaped.push_str(slash),
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            '\u{8}' => escaped.push_str("\\b"),
            '\u{c}' => escaped.push_str("\\f"),
            letter if letter < ' ' => escaped.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Returns the percent-encoded forms, as common libraries write them.
fn percent_forms(secret: &str) -> Vec<String> {
    let is_unreserved =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    // `encodeURIComponent` in JavaScript does not encode these bytes.
    let of_javascript =
        |byte| is_unreserved(byte) || matches!(byte, b'!' | b'\'' | b'(' | b')' | b'*');
    // Browsers do not encode these bytes when they send a form (`application/x-www-form-urlencoded`).
    let of_forms = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.*".contains(&byte);
    // A library that parses a URL does not encode these bytes in its query, and in its path
    // (https://url.spec.whatwg.org/#query-percent-encode-set).
    let of_query = |byte: u8| byte.is_ascii_graphic() && !b"\"#<>'".contains(&byte);
    let of_path = |byte: u8| byte.is_ascii_graphic() && !b"\"#<>?^`{}".contains(&byte);
    let plus = |encoded: String| encoded.replace("%20", "+");
    let needed = percent_encoded(secret, is_unreserved);
    let in_path = percent_encoded(secret, |byte| byte == b'/' || is_unreserved(byte));
    let mut forms = vec![
        needed.clone(),
        percent_encoded(secret, of_javascript),
        plus(percent_encoded(secret, of_forms)),
        plus(needed.clone()),
        plus(in_path.clone()),
        in_path,
        percent_encoded(secret, of_query),
        percent_encoded(secret, of_path),
        percent_encoded(secret, |_| false),
    ];
    forms.extend(forms.clone().iter().map(|form| with_lower_digits(form)));
    // Encoded twice: a URL within a parameter of another URL.
    forms.push(needed.replace('%', "%25"));
    forms
}

fn percent_encoded(secret: &str, is_kept: impl Fn(u8) -> bool) -> String {
    let encoded = |byte| match is_kept(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    secret.bytes().map(encoded).collect()
}

/// Returns a percent-encoded text with the digits behind each `%` in lower case.
fn with_lower_digits(encoded: &str) -> String {
    let mut lower = String::with_capacity(encoded.len());
    let mut digits = 0;
    for letter in encoded.chars() {
        lower.push(if digits > 0 { letter.to_ascii_lowercase() } else { letter });
        digits = if letter == '%' { 2 } else { digits.max(1) - 1 };
    }
    lower
}

/// Returns the characters that a text in base64 has for the secret, in both alphabets and each of the three
/// alignments.
fn base64_forms(secret: &str) -> Vec<String> {
    let mut forms = Vec::new();
    for alignment in 0..3 {
        let mut bytes = vec![0; alignment];
        bytes.extend_from_slice(secret.as_bytes());
        // The first characters also hold bits of the text before the secret, the last one bits of the text
        // after it.
        let first = (alignment * 8).div_ceil(6);
        let last = bytes.len() * 8 / 6;
        for encoded in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            forms.extend(encoded.get(first..last).map(str::to_owned));
        }
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_known_as_common_libraries_write_it() {
        let forms = forms(" a/b+c d'e\"f<g>h&i=j\u{e9}\u{1f511}!\n");
        for expected in [
            // Plain, trimmed.
            " a/b+c d'e\"f<g>h&i=j\u{e9}\u{1f511}!\n",
            "a/b+c d'e\"f<g>h&i=j\u{e9}\u{1f511}!",
            // JSON of serde_json, Python, PHP, Go, Gson, .NET.
            "a/b+c d'e\\\"f<g>h&i=j\u{e9}\u{1f511}!",
            "a/b+c d'e\\\"f<g>h&i=j\\u00e9\\ud83d\\udd11!",
            "a\\/b+c d'e\\\"f<g>h&i=j\\u00e9\\ud83d\\udd11!",
            "a/b+c d'e\\\"f\\u003cg\\u003eh\\u0026i=j\u{e9}\u{1f511}!",
            "a/b+c d\\u0027e\\\"f\\u003cg\\u003eh\\u0026i\\u003dj\u{e9}\u{1f511}!",
            "a/b\\u002Bc d\\u0027e\\u0022f\\u003Cg\\u003Eh\\u0026i=j\\u00E9\\uD83D\\uDD11!",
            // `encodeURIComponent`, the same with all reserved characters, Python's `quote` and `quote_plus`.
            "a%2Fb%2Bc%20d'e%22f%3Cg%3Eh%26i%3Dj%C3%A9%F0%9F%94%91!",
            "a%2Fb%2Bc%20d%27e%22f%3Cg%3Eh%26i%3Dj%C3%A9%F0%9F%94%91%21",
            "a/b%2Bc%20d%27e%22f%3Cg%3Eh%26i%3Dj%C3%A9%F0%9F%94%91%21",
            "a%2Fb%2Bc+d%27e%22f%3Cg%3Eh%26i%3Dj%C3%A9%F0%9F%94%91%21",
            // Lower digits, as .NET writes them.
            "a%2fb%2bc+d%27e%22f%3cg%3eh%26i%3dj%c3%a9%f0%9f%94%91%21",
            // A parsed URL, in its query and in its path.
            "a/b+c%20d%27e%22f%3Cg%3Eh&i=j%C3%A9%F0%9F%94%91!",
            "a/b+c%20d'e%22f%3Cg%3Eh&i=j%C3%A9%F0%9F%94%91!",
        ] {
            assert!(forms.iter().any(|form| form == expected), "{expected}");
        }
        let parsed = url::Url::parse("http://h/a b'c\"d<e>f?a b'c\"d<e>f").unwrap();
        let known = super::forms("a b'c\"d<e>f");
        assert!(known.iter().any(|form| parsed.path().ends_with(form)), "{parsed}");
        assert!(known.iter().any(|form| parsed.query() == Some(form)), "{parsed}");
    }

    #[test]
    fn white_space_between_words_may_be_one_space() {
        let forms = forms("-----BEGIN KEY-----\n\tabc  def\n-----END KEY-----\n");
        assert!(forms.iter().any(|form| form == "-----BEGIN KEY----- abc def -----END KEY-----"));
    }
}
