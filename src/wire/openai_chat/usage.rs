//! Token counts under the names that services of this family use: `prompt_tokens` and
//! `completion_tokens` of OpenAI's Chat Completions API reference, `input_tokens` and
//! `output_tokens` of its Responses API reference, `prompt_cache_hit_tokens` of DeepSeek's API
//! reference, and others as recorded.

use serde_json::value::RawValue;

use crate::types::Usage;
use crate::wire::Delta;
use crate::wire::lenient::Scalar;
use crate::wire::repair::parse_value;

/// Reads token counts. Returns `None` if the object is empty.
pub(in crate::wire) fn usage_of(raw: &RawValue) -> Option<Delta> {
    let counts = parse_value(raw.get())?;
    if counts.as_object()?.is_empty() {
        return None;
    }
    // The first member that holds a number counts.
    let count = |members: &[&str]| {
        let number = |member: &&str| Scalar::of(counts.pointer(member)?).as_number();
        members.iter().find_map(number).unwrap_or(0)
    };
    let usage = Usage {
        input_tokens: count(&["/prompt_tokens", "/input_tokens"]),
        output_tokens: count(&["/completion_tokens", "/output_tokens"]),
        cached_tokens: count(&[
            "/prompt_tokens_details/cached_tokens",
            "/input_tokens_details/cached_tokens",
            "/prompt_cache_hit_tokens",
            "/cached_tokens",
        ]),
        reasoning_tokens: count(&[
            "/completion_tokens_details/reasoning_tokens",
            "/output_tokens_details/reasoning_tokens",
            "/reasoning_tokens",
        ]),
    };
    Some(Delta::Usage { usage, raw: raw.get().into() })
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
    fn counts_are_read_under_every_name() {
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
        check(
            r#"{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":5,
                "output_tokens_details":{"reasoning_tokens":3},"prompt_tokens_details":null}"#,
            [9, 5, 4, 3],
        );
        check(
            r#"{"prompt_tokens":9,"completion_tokens":5,"input_tokens":0,"output_tokens":0}"#,
            [9, 5, 0, 0],
        );
        check(r#"{"prompt_tokens":8,"completion_tokens":5,"prompt_tokens":9}"#, [9, 5, 0, 0]);
    }

    #[test]
    fn an_empty_object_has_no_usage() {
        for text in ["{}", "{ }", "null", "[]", "7"] {
            assert_eq!(usage_of(serde_json::from_str(text).unwrap()), None, "{text}");
        }
    }
}
