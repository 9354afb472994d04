//! Reads lists and texts from requests, and splits texts into pieces.

use serde_json::Value;

/// Returns the items of a list; nothing for any other value.
#[must_use]
pub fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns the text of a message's content: a string, or the text parts of an array, joined by line feeds.
#[must_use]
pub fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

/// Returns the text of the last user message.
#[must_use]
pub fn last_user_text(request: &Value) -> String {
    let last = items(&request["messages"]).iter().rfind(|message| message["role"] == "user");
    last.map(|message| content_text(&message["content"])).unwrap_or_default()
}

/// Splits a text into words: after spaces and line feeds. Splits a word that is not ASCII after every four
/// characters, because scripts such as Chinese have no spaces.
#[must_use]
pub fn words(text: &str) -> Vec<String> {
    text.split_inclusive([' ', '\n'])
        .flat_map(|word| if word.is_ascii() { vec![word.to_owned()] } else { split_every(word, 4) })
        .collect()
}

/// Splits a text into pieces of `chars` characters; the last may be shorter.
#[must_use]
pub fn split_every(text: &str, chars: usize) -> Vec<String> {
    let all: Vec<char> = text.chars().collect();
    all.chunks(chars.max(1)).map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lose_nothing() {
        for text in ["", "a", "It is 12:00, now.", "东京现在是几点？ yes\nno"] {
            assert_eq!(words(text).concat(), text);
            assert_eq!(split_every(text, 2).concat(), text);
        }
    }
}
