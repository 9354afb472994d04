//! Token counts, under the names that the services of this family give them.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::types::Usage;
use crate::wire::Delta;
use crate::wire::fields::Loose;
use crate::wire::loose::Scalar;

/// Token counts in the words of this family of services; none if the object holds nothing.
pub(super) fn usage_of(raw: &RawValue) -> Option<Delta> {
    #[derive(Deserialize)]
    struct Counts<'a> {
        #[serde(borrow, default, alias = "input_tokens")]
        prompt_tokens: Scalar<'a>,
        #[serde(borrow, default, alias = "output_tokens")]
        completion_tokens: Scalar<'a>,
        #[serde(borrow, default)]
        prompt_tokens_details: Loose<Details<'a>>,
        #[serde(borrow, default)]
        completion_tokens_details: Loose<Details<'a>>,
        #[serde(borrow, default)]
        prompt_cache_hit_tokens: Scalar<'a>,
        #[serde(borrow, default)]
        cached_tokens: Scalar<'a>,
        #[serde(borrow, default)]
        reasoning_tokens: Scalar<'a>,
    }
    #[derive(Deserialize)]
    struct Details<'a> {
        #[serde(borrow, default)]
        cached_tokens: Scalar<'a>,
        #[serde(borrow, default)]
        reasoning_tokens: Scalar<'a>,
    }
    let text = raw.get();
    if !text.starts_with('{') || text.trim_matches(['{', '}', ' ', '\n', '\r', '\t']).is_empty() {
        return None;
    }
    let usage = serde_json::from_str::<Counts<'_>>(text).map_or_else(
        |_| Usage::default(),
        |counts| {
            let first = |places: [Option<u64>; 3]| places.into_iter().flatten().next().unwrap_or(0);
            let read = counts.prompt_tokens_details.0;
            let written = counts.completion_tokens_details.0;
            Usage {
                input_tokens: counts.prompt_tokens.as_number().unwrap_or(0),
                output_tokens: counts.completion_tokens.as_number().unwrap_or(0),
                cached_tokens: first([
                    read.and_then(|details| details.cached_tokens.as_number()),
                    counts.prompt_cache_hit_tokens.as_number(),
                    counts.cached_tokens.as_number(),
                ]),
                reasoning_tokens: first([
                    written.and_then(|details| details.reasoning_tokens.as_number()),
                    counts.reasoning_tokens.as_number(),
                    None,
                ]),
            }
        },
    );
    Some(Delta::Usage { usage, raw: text.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, [input, output, cached, reasoning]: [u64; 4]) {
        let raw = serde_json::from_str(text).unwrap();
        let usage = Usage {
            input_tokens: input,
            output_tokens: output,
            cached_tokens: cached,
            reasoning_tokens: reasoning,
        };
        assert_eq!(usage_of(raw), Some(Delta::Usage { usage, raw: text.into() }));
    }

    #[test]
    fn counts_under_every_name() {
        check(
            r#"{"prompt_tokens":9,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4},
                "completion_tokens_details":{"reasoning_tokens":3}}"#,
            [9, 5, 4, 3],
        );
        check(
            r#"{"prompt_tokens":9,"completion_tokens":5,"prompt_cache_hit_tokens":4}"#,
            [9, 5, 4, 0],
        );
        check(r#"{"input_tokens":9,"output_tokens":5,"cached_tokens":4}"#, [9, 5, 4, 0]);
        check(
            r#"{"prompt_tokens":9.0,"completion_tokens":null,"reasoning_tokens":2}"#,
            [9, 0, 0, 2],
        );
        check(r#"{"prompt_tokens":9,"prompt_tokens_details":null}"#, [9, 0, 0, 0]);
    }

    #[test]
    fn nothing_is_no_usage() {
        for text in ["{}", "{ }", "null", "[]", "7"] {
            assert_eq!(usage_of(serde_json::from_str(text).unwrap()), None, "{text}");
        }
    }
}
