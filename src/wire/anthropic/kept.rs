//! Blocks that are kept whole, because their service wants them back as they were.

use serde_json::{Map, Value};

use crate::wire::mend::value_of;

/// Bytes of one block that are collected until it ends. A block that is longer is not given back.
pub(super) const COLLECTED_BYTES_MAX: usize = 8 << 20;

/// A block that is kept whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    json: Box<str>,
    /// Pieces of its input.
    input: String,
    /// What else was added to it.
    added: Map<String, Value>,
    bytes: usize,
}

impl Kept {
    pub(super) fn new(json: &str) -> Self {
        Self { json: json.into(), input: String::new(), added: Map::new(), bytes: json.len() }
    }

    pub(super) fn push_input(&mut self, more: &str) {
        self.bytes = self.bytes.saturating_add(more.len());
        if self.bytes <= COLLECTED_BYTES_MAX {
            self.input.push_str(more);
        }
    }

    /// Takes the members of an event's `delta`: texts are continued, anything else is replaced.
    pub(super) fn add(&mut self, event: &str) {
        self.bytes = self.bytes.saturating_add(event.len());
        let Some(Value::Object(mut event)) = value_of(event) else { return };
        let Some(Value::Object(delta)) = event.remove("delta") else { return };
        if self.bytes > COLLECTED_BYTES_MAX {
            return;
        }
        for (key, value) in delta.into_iter().filter(|(key, _)| key != "type") {
            match (self.added.get_mut(&key), value) {
                (Some(Value::String(said)), Value::String(more)) => said.push_str(&more),
                (_, value) => drop(self.added.insert(key, value)),
            }
        }
    }

    /// The block as it stands at its end; none if it cannot be told whole.
    pub(super) fn whole(self) -> Option<Box<str>> {
        if self.bytes > COLLECTED_BYTES_MAX {
            return None;
        }
        let has_input = !self.input.trim_ascii().is_empty();
        if !has_input && self.added.is_empty() {
            return Some(self.json);
        }
        let Value::Object(mut block) = value_of(&self.json)? else { return None };
        if has_input {
            block.insert("input".to_owned(), value_of(&self.input)?);
        }
        for (key, value) in self.added {
            match (block.get_mut(&key), value) {
                (Some(Value::String(said)), Value::String(more)) => said.push_str(&more),
                (_, value) => drop(block.insert(key, value)),
            }
        }
        Some(Value::Object(block).to_string().into())
    }
}
