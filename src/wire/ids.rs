//! Ids of calls, and names of tools, as a service takes them.
//!
//! An id goes back unchanged to the wire that it came from. A service may refuse another's, so
//! that one is mapped: to the same text every time, and to different texts for different ids.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

/// Hex digits of the hash that keeps two cleaned ids apart.
const HASH_DIGITS: usize = 8;

/// The id itself if every character is allowed and it is short enough; else its cleaned text, an
/// underscore, and 8 hex digits of a hash of the whole.
pub(super) fn cleaned(id: &str, allowed: impl Fn(char) -> bool, chars_max: usize) -> Cow<'_, str> {
    let fits = !id.is_empty() && id.chars().all(&allowed) && id.chars().count() <= chars_max;
    if fits {
        return Cow::Borrowed(id);
    }
    let kept = chars_max.saturating_sub(HASH_DIGITS + 1);
    let clean = |c: char| if allowed(c) { c } else { '_' };
    let mut cleaned: String = id.chars().take(kept).map(clean).collect();
    cleaned.push('_');
    for byte in Sha256::digest(id).iter().take(HASH_DIGITS / 2) {
        cleaned.push_str(&format!("{byte:02x}"));
    }
    Cow::Owned(cleaned)
}

/// Characters of a name that every service takes.
const NAME_CHARS_MAX: usize = 64;

/// A called tool's name as both OpenAI wires take it: `^[a-zA-Z0-9_-]{1,64}$`. Every tool of ours has
/// such a name, but models also call what does not exist (`multi_tool_use.parallel`), and a service
/// refuses to be sent back what it said itself.
pub(super) fn tool_name(name: &str) -> Cow<'_, str> {
    cleaned(name, |c| c.is_ascii_alphanumeric() || c == '_' || c == '-', NAME_CHARS_MAX)
}

/// Nine letters and digits, made of a hash of the id: what every service takes, also the strictest
/// of them (Mistral: `a-z, A-Z, 0-9, with a length of 9`).
pub(super) fn of_nine(id: &str) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let hash = Sha256::digest(id);
    let digit = |byte: &u8| DIGITS.get(usize::from(*byte) % DIGITS.len()).copied();
    hash.iter().filter_map(digit).take(9).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(id: &str, expected: &str) {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert_eq!(cleaned(id, allowed, 16), expected);
    }

    #[test]
    fn an_id_that_fits_stays_and_others_are_cleaned_and_told_apart() {
        check("call_1", "call_1");
        check("", "_e3b0c442");
        check("a:0", "a_0_0ed32d33");
        check("a.0", "a_0_6f632802");
        check("0123456789abcdef0", "0123456_d4022b7a");
    }

    #[test]
    fn a_name_that_no_tool_has_is_sent_as_one_that_a_tool_may_have() {
        assert_eq!(tool_name("set_variable-2"), "set_variable-2");
        assert_eq!(tool_name("multi_tool_use.parallel"), "multi_tool_use_parallel_41c06c9e");
        let long = "x".repeat(65);
        assert_eq!(tool_name(&long).chars().count(), 64);
    }

    #[test]
    fn nine_letters_and_digits_are_the_same_every_time_and_others_for_another_id() {
        let ids = ["", "toolu_01", "toolu_02", "call_1_0"].map(of_nine);
        assert_eq!(ids, ["", "toolu_01", "toolu_02", "call_1_0"].map(of_nine));
        for (at, id) in ids.iter().enumerate() {
            assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
            assert!(!ids[..at].contains(id));
        }
    }
}
