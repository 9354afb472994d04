//! Token counts: what opens a message says some, and what ends it says the rest.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::types::Usage;
use crate::wire::Delta;
use crate::wire::mend::value_of;

/// The counts of one message so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// As the wire said them, later ones laid over earlier ones.
    said: Map<String, Value>,
    uncached: u64,
    written_to_cache: u64,
    cached: u64,
    output: u64,
    reasoning: u64,
}

impl Counts {
    /// Lays more counts over those that came; none if nothing is said.
    pub(super) fn add(&mut self, raw: Option<&RawValue>) -> Option<Delta> {
        let Value::Object(more) = value_of(raw?.get())? else { return None };
        if more.is_empty() {
            return None;
        }
        // Counts only grow within a message. Some relays say 0 or nothing where they know no more.
        let highest = |count: &mut u64, value: Option<&Value>| {
            *count = value.and_then(number).unwrap_or(0).max(*count);
        };
        highest(&mut self.uncached, more.get("input_tokens"));
        highest(&mut self.written_to_cache, more.get("cache_creation_input_tokens"));
        highest(&mut self.cached, more.get("cache_read_input_tokens"));
        highest(&mut self.output, more.get("output_tokens"));
        let details = more.get("output_tokens_details");
        highest(&mut self.reasoning, details.and_then(|details| details.get("thinking_tokens")));
        self.said.extend(more);
        let usage = Usage {
            input_tokens: self
                .uncached
                .saturating_add(self.written_to_cache)
                .saturating_add(self.cached),
            output_tokens: self.output,
            cached_tokens: self.cached,
            reasoning_tokens: self.reasoning,
        };
        let raw = serde_json::to_string(&self.said).unwrap_or_default();
        Some(Delta::Usage { usage, raw: raw.into() })
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number
            .as_u64()
            // A whole number that was written as `1.0`.
            .or_else(|| format!("{:.0}", number.as_f64()?).parse().ok()),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts in the order of their coming; the last must give these.
    #[track_caller]
    fn check(said: &[&str], [input, output, cached, reasoning]: [u64; 4], raw: Value) {
        let mut counts = Counts::default();
        let last =
            said.iter().filter_map(|text| counts.add(Some(serde_json::from_str(text).unwrap())));
        let Some(Delta::Usage { usage, raw: found }) = last.last() else { panic!("no counts") };
        let expected = Usage {
            input_tokens: input,
            output_tokens: output,
            cached_tokens: cached,
            reasoning_tokens: reasoning,
        };
        assert_eq!(usage, expected, "{said:?}");
        assert_eq!(serde_json::from_str::<Value>(&found).unwrap(), raw);
    }

    #[test]
    fn what_ends_a_message_is_laid_over_what_opened_it() {
        check(
            &[
                r#"{"input_tokens":5,"cache_creation_input_tokens":10,
                    "cache_read_input_tokens":20,"output_tokens":1,"service_tier":"x"}"#,
                r#"{"output_tokens":7,"output_tokens_details":{"thinking_tokens":3}}"#,
            ],
            [35, 7, 20, 3],
            serde_json::json!({"input_tokens": 5, "cache_creation_input_tokens": 10,
                "cache_read_input_tokens": 20, "output_tokens": 7, "service_tier": "x",
                "output_tokens_details": {"thinking_tokens": 3}}),
        );
        check(
            &[
                r#"{"input_tokens":0,"output_tokens":0}"#,
                r#"{"input_tokens":32,"output_tokens":16}"#,
            ],
            [32, 16, 0, 0],
            serde_json::json!({"input_tokens": 32, "output_tokens": 16}),
        );
    }

    #[test]
    fn counts_that_say_nothing_take_nothing_away() {
        check(
            &[
                r#"{"input_tokens":9,"cache_read_input_tokens":null,"output_tokens":2}"#,
                r#"{"input_tokens":0,"output_tokens":"5","output_tokens_details":7}"#,
            ],
            [9, 5, 0, 0],
            serde_json::json!({"input_tokens": 0, "cache_read_input_tokens": null,
                "output_tokens": "5", "output_tokens_details": 7}),
        );
        check(
            &[r#"{"input_tokens":9.0}"#, "{}", "null"],
            [9, 0, 0, 0],
            serde_json::json!({"input_tokens": 9.0}),
        );
        for nothing in ["{}", "null", "[]", "7"] {
            assert_eq!(Counts::default().add(Some(serde_json::from_str(nothing).unwrap())), None);
        }
        assert_eq!(Counts::default().add(None), None);
    }
}
