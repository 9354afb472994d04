//! Reads lists and texts from requests, splits texts into pieces, and hashes texts.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

pub(super) use callsheet_rehearsal::text::{
    content_text, items, last_user_text, split_every, words,
};

/// Returns the first bytes of a text's SHA-256 hash as hexadecimal digits.
pub(super) fn hash(text: &str, bytes: usize) -> String {
    Sha256::digest(text).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the number of model messages after the last user message.
pub(super) fn turns_since_user(request: &Value) -> usize {
    let since =
        items(&request["messages"]).iter().rev().take_while(|message| message["role"] != "user");
    since.filter(|message| message["role"] == "assistant").count()
}

/// Splits a text into `count` pieces of nearly equal length; some are empty if it is too short.
pub(super) fn split_in(text: &str, count: usize) -> Vec<String> {
    let all: Vec<char> = text.chars().collect();
    let cut = |piece: usize| piece * all.len() / count.max(1);
    let piece =
        |n: usize| all.get(cut(n)..cut(n + 1)).map(|p| p.iter().collect()).unwrap_or_default();
    (0..count.max(1)).map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lose_nothing() {
        for text in ["", "a", "It is 12:00, now.", "东京现在是几点？ yes\nno"] {
            assert_eq!(split_in(text, 3).concat(), text);
            assert_eq!(split_in(text, 3).len(), 3);
        }
    }
}
