//! Token counts under the names that services of this family use: `prompt_tokens` and
//! `completion_tokens` of OpenAI's Chat Completions API reference, `input_tokens` and
//! `output_tokens` of its Responses API reference, `prompt_cache_hit_tokens` of DeepSeek's API
//! reference, and others as recorded.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::types::Usage;
use crate::wire::Delta;
use crate::wire::lenient::{Lenient, Scalar};
use crate::wire::repair::parse_value;

/// Reads token counts. Returns `None` if the object is empty.
pub(in crate::wire) fn usage_of(raw: &RawValue) -> Option<Delta> {
    let text = raw.get();
    if !text.starts_with('{') || text.trim_matches(['{', '}', ' ', '\n', '\r', '\t']).is_empty() {
        return None;
    }
    let usage = match serde_json::from_str::<UsageCounts<'_>>(text) {
        Ok(counts) => counts.usage(),
        // A repeated key makes the typed parse fail. The last one counts.
        Err(_) => parse_value(text)
            .and_then(|value| {
                Some(serde_json::from_str::<UsageCounts<'_>>(&value.to_string()).ok()?.usage())
            })
            .unwrap_or_default(),
    };
    Some(Delta::Usage { usage, raw: text.into() })
}

#[derive(Deserialize)]
struct UsageCounts<'a> {
    #[serde(borrow, default)]
    prompt_tokens: Scalar<'a>,
    #[serde(borrow, default)]
    completion_tokens: Scalar<'a>,
    // Some gateways send these names as well.
    #[serde(borrow, default)]
    input_tokens: Scalar<'a>,
    #[serde(borrow, default)]
    output_tokens: Scalar<'a>,
    #[serde(borrow, default)]
    prompt_tokens_details: Lenient<TokenDetails<'a>>,
    #[serde(borrow, default)]
    completion_tokens_details: Lenient<TokenDetails<'a>>,
    #[serde(borrow, default)]
    input_tokens_details: Lenient<TokenDetails<'a>>,
    #[serde(borrow, default)]
    output_tokens_details: Lenient<TokenDetails<'a>>,
    #[serde(borrow, default)]
    prompt_cache_hit_tokens: Scalar<'a>,
    #[serde(borrow, default)]
    cached_tokens: Scalar<'a>,
    #[serde(borrow, default)]
    reasoning_tokens: Scalar<'a>,
}

#[derive(Deserialize)]
struct TokenDetails<'a> {
    #[serde(borrow, default)]
    cached_tokens: Scalar<'a>,
    #[serde(borrow, default)]
    reasoning_tokens: Scalar<'a>,
}

impl<'a> UsageCounts<'a> {
    fn usage(self) -> Usage {
        let details =
            |named: Lenient<TokenDetails<'a>>, or: Lenient<TokenDetails<'a>>| named.0.or(or.0);
        let prompt = details(self.prompt_tokens_details, self.input_tokens_details)
            .map(|details| details.cached_tokens);
        let answer = details(self.completion_tokens_details, self.output_tokens_details)
            .map(|details| details.reasoning_tokens);
        Usage {
            input_tokens: first_number(&[Some(self.prompt_tokens), Some(self.input_tokens)]),
            output_tokens: first_number(&[Some(self.completion_tokens), Some(self.output_tokens)]),
            cached_tokens: first_number(&[
                prompt,
                Some(self.prompt_cache_hit_tokens),
                Some(self.cached_tokens),
            ]),
            reasoning_tokens: first_number(&[answer, Some(self.reasoning_tokens)]),
        }
    }
}

fn first_number(values: &[Option<Scalar<'_>>]) -> u64 {
    values.iter().flatten().find_map(Scalar::as_number).unwrap_or(0)
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
