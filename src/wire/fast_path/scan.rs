//! Finding the end of a JSON string or number without parsing it.

/// Returns the length of the inside of a string, up to its closing quote, and whether it has
/// escapes. Returns `None` if it has no closing quote, or a character that JSON requires to be escaped.
pub(super) fn string_bytes(text: &[u8]) -> Option<(usize, bool)> {
    let (mut end, mut has_escapes) = (0, false);
    loop {
        end += plain_bytes(text.get(end..)?)?;
        match text.get(end)? {
            b'"' => return Some((end, has_escapes)),
            // The escaped character is skipped, because it may be a quote.
            b'\\' => (end, has_escapes) = (end + 2, true),
            _ => return None,
        }
    }
}

/// Returns the number of bytes before the first quote, backslash or control character (below 0x20), or `None` if
/// there is none.
///
/// Nearly all strings are short. Comparing eight bytes at once, without a branch for each,
/// finds their end faster than a search that is made for long texts.
pub fn plain_bytes(text: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = ONES << 7;
    let (words, rest) = text.as_chunks();
    for (word, at) in words.iter().zip((0..).step_by(8)) {
        let word = u64::from_le_bytes(*word);
        // Marks bytes that are less than the number. The lowest marked byte is always correct; a
        // borrow can only mark bytes above it by mistake.
        let less_than =
            |word: u64, number: u8| word.wrapping_sub(ONES * u64::from(number)) & !word & HIGHS;
        let equal = |byte: u8| less_than(word ^ (ONES * u64::from(byte)), 1);
        let marked = equal(b'"') | equal(b'\\') | less_than(word, b' ');
        if marked != 0 {
            return Some(at + marked.trailing_zeros() as usize / 8);
        }
    }
    let in_rest = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..b' '))?;
    Some(text.len() - rest.len() + in_rest)
}

/// Returns the length of a whole number that consists of digits alone, and is followed by a comma, a closing
/// bracket or brace, or white space.
pub(super) fn number_bytes(text: &[u8]) -> Option<usize> {
    let end = text.iter().position(|byte| !byte.is_ascii_digit())?;
    let is_number = end == 1 || (end > 1 && !text.starts_with(b"0"));
    let ends = text.get(end).is_some_and(|byte| b",}] \n\r\t".contains(byte));
    (is_number && ends).then_some(end)
}
