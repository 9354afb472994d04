//! Reads lists and texts from requests, splits texts into pieces, and hashes texts.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Returns the items of a list; nothing for any other value.
pub(super) fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns the first bytes of a text's SHA-256 hash as hexadecimal digits.
pub(super) fn hash(text: &str, bytes: usize) -> String {
    Sha256::digest(text).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the text of a message's content: a string, or the text parts of an array, joined by line feeds.
pub(super) fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

/// Returns the text of the last user message.
pub(super) fn last_user_text(request: &Value) -> String {
    let last = items(&request["messages"]).iter().rfind(|message| message["role"] == "user");
    last.map(|message| content_text(&message["content"])).unwrap_or_default()
}

/// Returns the number of model messages after the last user message.
pub(super) fn turns_since_user(request: &Value) -> usize {
    let since =
        items(&request["messages"]).iter().rev().take_while(|message| message["role"] != "user");
    since.filter(|message| message["role"] == "assistant").count()
}

/// Splits a text into words: after spaces and line feeds. Splits a word that is not ASCII after every four
/// characters, because scripts such as Chinese have no spaces.
pub(super) fn words(text: &str) -> Vec<String> {
    text.split_inclusive([' ', '\n'])
        .flat_map(|word| if word.is_ascii() { vec![word.to_owned()] } else { split_every(word, 4) })
        .collect()
}

/// Splits a text into pieces of `chars` characters; the last may be shorter.
pub(super) fn split_every(text: &str, chars: usize) -> Vec<String> {
    let all: Vec<char> = text.chars().collect();
    all.chunks(chars.max(1)).map(|piece| piece.iter().collect()).collect()
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
            assert_eq!(words(text).concat(), text);
            assert_eq!(split_in(text, 3).concat(), text);
            assert_eq!(split_in(text, 3).len(), 3);
            assert_eq!(split_every(text, 2).concat(), text);
        }
    }
}
