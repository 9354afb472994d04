//! Token counts under the names that services of this family use: `prompt_tokens` and
//! `completion_tokens` of OpenAI's Chat Completions API reference, `input_tokens` and
//! `output_tokens` of its Responses API reference, `prompt_cache_hit_tokens` of DeepSeek's API
//! reference, and others as recorded.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Delta;
use crate::lenient::{Lenient, Scalar};
use crate::repair::parse_value;
use callsheet_values::types::Usage;

/// Reads token counts. Returns `None` if the JSON is an empty object or no object.
pub(crate) fn read_usage(raw: &RawValue) -> Option<Delta> {
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

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct UsageCounts<'a> {
    prompt_tokens: Scalar<'a>,
    completion_tokens: Scalar<'a>,
    // The names of the Responses API. Some gateways send them on Chat Completions too.
    input_tokens: Scalar<'a>,
    output_tokens: Scalar<'a>,
    prompt_tokens_details: Lenient<TokenDetails<'a>>,
    completion_tokens_details: Lenient<TokenDetails<'a>>,
    input_tokens_details: Lenient<TokenDetails<'a>>,
    output_tokens_details: Lenient<TokenDetails<'a>>,
    prompt_cache_hit_tokens: Scalar<'a>,
    cached_tokens: Scalar<'a>,
    reasoning_tokens: Scalar<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct TokenDetails<'a> {
    cached_tokens: Scalar<'a>,
    reasoning_tokens: Scalar<'a>,
}

impl UsageCounts<'_> {
    fn usage(&self) -> Usage {
        let cached =
            |details: &Lenient<TokenDetails<'_>>| details.0.as_ref()?.cached_tokens.as_number();
        let reasoning =
            |details: &Lenient<TokenDetails<'_>>| details.0.as_ref()?.reasoning_tokens.as_number();
        let input = self.prompt_tokens.as_number().or(self.input_tokens.as_number());
        let output = self.completion_tokens.as_number().or(self.output_tokens.as_number());
        let cached = cached(&self.prompt_tokens_details)
            .or_else(|| cached(&self.input_tokens_details))
            .or_else(|| self.prompt_cache_hit_tokens.as_number())
            .or_else(|| self.cached_tokens.as_number());
        let reasoning = reasoning(&self.completion_tokens_details)
            .or_else(|| reasoning(&self.output_tokens_details))
            .or_else(|| self.reasoning_tokens.as_number());
        Usage {
            input_tokens: input.unwrap_or(0),
            output_tokens: output.unwrap_or(0),
            cached_tokens: cached.unwrap_or(0),
            reasoning_tokens: reasoning.unwrap_or(0),
        }
    }
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
        assert_eq!(read_usage(raw), Some(Delta::Usage { usage, raw: text.into() }));
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
            assert_eq!(read_usage(serde_json::from_str(text).unwrap()), None, "{text}");
        }
    }
}
