//! Counts the work of a check.

use serde_json::Value;

/// Number of bytes of a text that are compared or counted in the time of a step.
const BYTES_PER_STEP: usize = 64;

/// The work takes too many steps or levels.
#[derive(Clone, Copy, Debug)]
pub(super) struct TooExpensive;

/// The steps that are left. Everything whose work grows with the schema or the value spends some of them before it
/// does the work.
#[derive(Debug)]
pub(super) struct Steps {
    left: usize,
}

impl Steps {
    pub(super) fn new(left: usize) -> Self {
        Self { left }
    }

    pub(super) fn left(&self) -> usize {
        self.left
    }

    pub(super) fn spend(&mut self, steps: usize) -> Result<(), TooExpensive> {
        self.left = self.left.checked_sub(steps).ok_or(TooExpensive)?;
        Ok(())
    }

    /// Spends the steps to look up, hash, compare or copy a text.
    pub(super) fn spend_text(&mut self, text: &str) -> Result<(), TooExpensive> {
        self.spend(text_steps(text))
    }
}

fn text_steps(text: &str) -> usize {
    1 + text.len() / BYTES_PER_STEP
}

/// Returns the steps that a comparison of a value takes, at most `max`: `max` means `max` or more. Looks at no more
/// than `max` parts of the value.
pub(super) fn comparison_steps(value: &Value, max: usize) -> usize {
    let mut size = 0;
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        let parts = match value {
            Value::Array(items) => items.len(),
            Value::Object(members) => members.len(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
        };
        if size + open.len() + parts >= max {
            return max;
        }
        size += 1;
        match value {
            Value::String(text) => size += text_steps(text),
            Value::Array(items) => open.extend(items),
            Value::Object(members) => {
                size += members.keys().map(|name| text_steps(name)).sum::<usize>();
                open.extend(members.values());
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    size.min(max)
}
