//! Cuts values and texts for errors, before they are formatted: they come from clients, models and servers of tools,
//! and can be long.

use std::fmt::{self, Write};

use serde_json::{Map, Value};

/// Number of characters after which a value is cut in an error.
const SHOWN_CHARS_MAX: usize = 200;

/// Number of characters after which a name or another text is cut in an error.
pub(super) const TEXT_CHARS_MAX: usize = 200;

/// Returns a text, cut after a number of characters. A cut text ends with `…`.
pub(super) fn cut(text: impl fmt::Display, chars_max: usize) -> String {
    let mut cut = CutText::new(chars_max);
    // Fails when the text is full.
    if write!(cut, "{text}").is_err() {
        cut.text.push('…');
    }
    cut.text
}

/// A value as JSON, cut if it is long.
pub(super) struct JsonExcerpt<'v>(pub(super) &'v Value);

impl fmt::Display for JsonExcerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&json_excerpt(self.0, SHOWN_CHARS_MAX))
    }
}

/// Returns a value as JSON, cut after a number of characters.
pub(super) fn json_excerpt(value: &Value, chars_max: usize) -> String {
    let mut chars = chars_max;
    cut(beginning(value, &mut chars), chars_max)
}

/// Returns the beginning of a value: what the JSON text of `chars` characters can contain, and a little more.
fn beginning(value: &Value, chars: &mut usize) -> Value {
    *chars = chars.saturating_sub(1);
    match value {
        Value::String(text) => Value::String(beginning_of_text(text, chars)),
        Value::Array(items) => {
            let mut shown = Vec::new();
            for item in items {
                if *chars == 0 {
                    break;
                }
                shown.push(beginning(item, chars));
            }
            Value::Array(shown)
        }
        Value::Object(members) => {
            let mut shown = Map::new();
            for (name, member) in members {
                if *chars == 0 {
                    break;
                }
                let name = beginning_of_text(name, chars);
                shown.insert(name, beginning(member, chars));
            }
            Value::Object(shown)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Returns the beginning of a text, with a character more than fits.
fn beginning_of_text(text: &str, chars: &mut usize) -> String {
    let shown: String = text.chars().take(*chars + 1).collect();
    *chars = chars.saturating_sub(shown.chars().count());
    shown
}

/// A text that takes a number of characters.
pub(super) struct CutText {
    pub(super) text: String,
    chars_left: usize,
}

impl CutText {
    pub(super) fn new(chars_max: usize) -> Self {
        Self { text: String::new(), chars_left: chars_max }
    }
}

impl Write for CutText {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        for character in more.chars() {
            self.chars_left = self.chars_left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(character);
        }
        Ok(())
    }
}
