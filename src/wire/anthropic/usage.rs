//! Token counts of a message. `message_start` and `message_delta` may both have any of them. Each is a total of the
//! message so far and no increment: Anthropic's API reference calls those of `message_delta` cumulative.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::Delta;
use crate::lenient::Scalar;
use crate::repair::parse_value;
use callsheet_values::types::Usage;

/// The counts of one message so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UsageCounts {
    /// All members as the wire sent them. Later values replace earlier ones, also if the earlier ones are higher.
    raw: Map<String, Value>,
    // In tokens. Input is `uncached + written_to_cache + cached`; `reasoning` is part of `output`.
    uncached: u64,
    written_to_cache: u64,
    cached: u64,
    output: u64,
    reasoning: u64,
}

impl UsageCounts {
    /// Takes over counts that are higher than before. Returns the totals of the message so far, which replace
    /// earlier ones; `None` if `raw` is not an object with members.
    pub(super) fn merge(&mut self, raw: Option<&RawValue>) -> Option<Delta> {
        let Value::Object(more) = parse_value(raw?.get())? else { return None };
        if more.is_empty() {
            return None;
        }
        // Counts only grow within a message. Some relays send 0 or null for an unchanged count.
        let highest = |count: &mut u64, value: Option<&Value>| {
            *count =
                value.and_then(|value| Scalar::read(value).as_number()).unwrap_or(0).max(*count);
        };
        highest(&mut self.uncached, more.get("input_tokens"));
        highest(&mut self.written_to_cache, more.get("cache_creation_input_tokens"));
        highest(&mut self.cached, more.get("cache_read_input_tokens"));
        highest(&mut self.output, more.get("output_tokens"));
        let details = more.get("output_tokens_details");
        highest(&mut self.reasoning, details.and_then(|details| details.get("thinking_tokens")));
        self.raw.extend(more);
        let usage = Usage {
            input_tokens: self
                .uncached
                .saturating_add(self.written_to_cache)
                .saturating_add(self.cached),
            output_tokens: self.output,
            cached_tokens: self.cached,
            reasoning_tokens: self.reasoning,
        };
        let raw = serde_json::to_string(&self.raw).unwrap_or_default();
        Some(Delta::Usage { usage, raw: raw.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges the counts in order. The last result must have these values.
    #[track_caller]
    fn check(texts: &[&str], [input, output, cached, reasoning]: [u64; 4], raw: Value) {
        let mut counts = UsageCounts::default();
        let last =
            texts.iter().filter_map(|text| counts.merge(Some(serde_json::from_str(text).unwrap())));
        let Some(Delta::Usage { usage, raw: found }) = last.last() else { panic!("no counts") };
        let expected = Usage {
            input_tokens: input,
            output_tokens: output,
            cached_tokens: cached,
            reasoning_tokens: reasoning,
        };
        assert_eq!(usage, expected, "{texts:?}");
        assert_eq!(serde_json::from_str::<Value>(&found).unwrap(), raw);
    }

    #[test]
    fn counts_of_the_message_end_update_those_of_its_start() {
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
    fn zero_and_null_do_not_reduce_counts() {
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
            assert_eq!(
                UsageCounts::default().merge(Some(serde_json::from_str(nothing).unwrap())),
                None
            );
        }
        assert_eq!(UsageCounts::default().merge(None), None);
    }
}
