//! Ids of calls and names of tools in the form that a service accepts.
//!
//! An id mostly goes back unchanged to the model that made it. Another service may refuse it. Then it is
//! mapped: always to the same text, and different ids to different texts, apart from collisions of hashes.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

/// Number of hex digits of the hash that makes sanitized ids distinct.
const HASH_DIGITS: usize = 8;

/// Returns the id itself if it is not empty, all its characters are allowed and it is short enough. Otherwise
/// returns its beginning with underscores for other characters, an underscore, and 8 hex digits of
/// a hash of the whole id.
pub(super) fn sanitized(
    id: &str,
    allowed: impl Fn(char) -> bool,
    chars_max: usize,
) -> Cow<'_, str> {
    let fits = !id.is_empty() && id.chars().all(&allowed) && id.chars().count() <= chars_max;
    if fits { Cow::Borrowed(id) } else { Cow::Owned(hashed(id, allowed, chars_max)) }
}

/// Returns the beginning of an id with underscores for characters that are not allowed, an underscore, and 8 hex
/// digits of a hash of the whole id.
pub(super) fn hashed(id: &str, allowed: impl Fn(char) -> bool, chars_max: usize) -> String {
    let kept = chars_max.saturating_sub(HASH_DIGITS + 1);
    let replace = |c: char| if allowed(c) { c } else { '_' };
    let mut sanitized: String = id.chars().take(kept).map(replace).collect();
    sanitized.push('_');
    for byte in Sha256::digest(id).iter().take(HASH_DIGITS / 2) {
        sanitized.push_str(&format!("{byte:02x}"));
    }
    sanitized
}

/// Maximum length of a tool name that every service accepts.
const NAME_CHARS_MAX: usize = 64;

/// Returns a called tool's name in the form that the API reference of OpenAI's Chat Completions and
/// Responses requires: `^[a-zA-Z0-9_-]{1,64}$`. All our tools have such names. Models also call
/// tools that do not exist (`multi_tool_use.parallel`), and the service refuses these names when
/// they are sent back.
pub(super) fn sanitized_tool_name(name: &str) -> Cow<'_, str> {
    sanitized(name, |c| c.is_ascii_alphanumeric() || c == '_' || c == '-', NAME_CHARS_MAX)
}

/// Length of an id that Mistral accepts.
const SHORT_ID_CHARS: usize = 9;

/// Returns the id itself if it consists of nine ASCII letters and digits, otherwise nine of these made from a
/// hash of it. Every service accepts them, also Mistral, whose error message requires
/// `a-z, A-Z, 0-9, with a length of 9`.
pub(super) fn nine_char_id(id: &str) -> Cow<'_, str> {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    if id.len() == SHORT_ID_CHARS && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Cow::Borrowed(id);
    }
    let hash = Sha256::digest(id);
    let digit = |byte: &u8| DIGITS.get(usize::from(*byte) % DIGITS.len()).copied();
    Cow::Owned(hash.iter().filter_map(digit).take(SHORT_ID_CHARS).map(char::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(id: &str, expected: &str) {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert_eq!(sanitized(id, allowed, 16), expected);
    }

    #[test]
    fn a_valid_id_is_unchanged_and_others_become_distinct_valid_ids() {
        check("call_1", "call_1");
        check("", "_e3b0c442");
        check("a:0", "a_0_0ed32d33");
        check("a.0", "a_0_6f632802");
        check("0123456789abcdef0", "0123456_d4022b7a");
    }

    #[test]
    fn an_invalid_tool_name_becomes_a_valid_one() {
        assert_eq!(sanitized_tool_name("set_variable-2"), "set_variable-2");
        assert_eq!(
            sanitized_tool_name("multi_tool_use.parallel"),
            "multi_tool_use_parallel_41c06c9e"
        );
        let long = "x".repeat(65);
        assert_eq!(sanitized_tool_name(&long).chars().count(), 64);
    }

    #[test]
    fn nine_char_ids_are_deterministic_and_distinct() {
        let ids = ["", "toolu_01", "toolu_02", "call_1_0"].map(nine_char_id);
        assert_eq!(ids, ["", "toolu_01", "toolu_02", "call_1_0"].map(nine_char_id));
        for (at, id) in ids.iter().enumerate() {
            assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
            assert!(!ids[..at].contains(id));
        }
    }

    #[test]
    fn an_id_of_nine_letters_and_digits_is_unchanged() {
        assert_eq!(nine_char_id("D681PevKs"), "D681PevKs");
        for id in ["D681PevK", "D681PevKsx", "D681_evKs", "D681Pev\u{e9}"] {
            assert_ne!(nine_char_id(id), id);
        }
    }
}
