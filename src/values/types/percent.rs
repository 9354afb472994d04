//! Percent-decoding of URIs, RFC 3986.

/// Decodes `%7B` and the like. Bytes that are not UTF-8 become U+FFFD.
pub fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.get(..2).filter(|_| *first == b'%');
        // A sign is no digit, but `from_str_radix` accepts it.
        let code = code.filter(|code| code.iter().all(u8::is_ascii_hexdigit));
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_hex_digits_are_a_byte() {
        for (text, expected) in [
            ("a%7Bb%7d", "a{b}"),
            ("%c3%A9", "\u{e9}"),
            ("%+5%-5% 5", "%+5%-5% 5"),
            ("%", "%"),
            ("%4", "%4"),
        ] {
            assert_eq!(percent_decoded(text), expected, "{text}");
        }
    }
}
