//! Metadata: blocks that are kept whole, because the service wants them back unchanged.

use serde_json::{Map, Value};

use crate::repair::parse_value;

/// Maximum bytes of one block. A longer block does not go back. Also limits the citations of a streamed text:
/// those beyond it are dropped.
pub(super) const COLLECTED_BYTES_MAX: usize = 8 << 20;

/// A block that is collected until it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RawBlock {
    json: Box<str>,
    /// The pieces of its input.
    input: String,
    /// The members of its other pieces.
    added: Map<String, Value>,
    /// Number of bytes received, including those above the limit.
    bytes: usize,
}

impl RawBlock {
    pub(super) fn new(json: &str) -> Self {
        Self { json: json.into(), input: String::new(), added: Map::new(), bytes: json.len() }
    }

    pub(super) fn push_input(&mut self, more: &str) {
        self.bytes = self.bytes.saturating_add(more.len());
        if self.bytes <= COLLECTED_BYTES_MAX {
            self.input.push_str(more);
        }
    }

    /// Adds the members of an event's `delta`. Texts are appended, and other values are replaced.
    pub(super) fn push_event(&mut self, event: &str) {
        self.bytes = self.bytes.saturating_add(event.len());
        let Some(Value::Object(mut event)) = parse_value(event) else { return };
        let Some(Value::Object(delta)) = event.remove("delta") else { return };
        if self.bytes > COLLECTED_BYTES_MAX {
            return;
        }
        for (key, value) in delta.into_iter().filter(|(key, _)| key != "type") {
            match (self.added.get_mut(&key), value) {
                (Some(Value::String(text)), Value::String(more)) => text.push_str(&more),
                (_, value) => drop(self.added.insert(key, value)),
            }
        }
    }

    /// Returns the JSON of the complete block, or `None` if it is incomplete or too long.
    pub(super) fn into_json(self) -> Option<Box<str>> {
        if self.bytes > COLLECTED_BYTES_MAX {
            return None;
        }
        let has_input = !self.input.trim_ascii().is_empty();
        if !has_input && self.added.is_empty() {
            return Some(self.json);
        }
        let Value::Object(mut block) = parse_value(&self.json)? else { return None };
        if has_input {
            block.insert("input".to_owned(), parse_value(&self.input)?);
        }
        for (key, value) in self.added {
            match (block.get_mut(&key), value) {
                (Some(Value::String(text)), Value::String(more)) => text.push_str(&more),
                (_, value) => drop(block.insert(key, value)),
            }
        }
        Some(Value::Object(block).to_string().into())
    }
}
