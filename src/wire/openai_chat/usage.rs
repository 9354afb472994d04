//! Token counts, under the names that the services of this family give them.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::types::Usage;
use crate::wire::Delta;
use crate::wire::fields::Loose;
use crate::wire::loose::Scalar;
use crate::wire::mend::value_of;

/// Token counts in the words of this family of services; none if the object holds nothing.
pub(super) fn usage_of(raw: &RawValue) -> Option<Delta> {
    let text = raw.get();
    if !text.starts_with('{') || text.trim_matches(['{', '}', ' ', '\n', '\r', '\t']).is_empty() {
        return None;
    }
    let usage = match serde_json::from_str::<Counts<'_>>(text) {
        Ok(counts) => counts.usage(),
        // A key that stands twice: the last one counts.
        Err(_) => value_of(text)
            .and_then(|value| {
                Some(serde_json::from_str::<Counts<'_>>(&value.to_string()).ok()?.usage())
            })
            .unwrap_or_default(),
    };
    Some(Delta::Usage { usage, raw: text.into() })
}

#[derive(Deserialize)]
struct Counts<'a> {
    #[serde(borrow, default)]
    prompt_tokens: Scalar<'a>,
    #[serde(borrow, default)]
    completion_tokens: Scalar<'a>,
    // Some gateways send both names.
    #[serde(borrow, default)]
    input_tokens: Scalar<'a>,
    #[serde(borrow, default)]
    output_tokens: Scalar<'a>,
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

impl Counts<'_> {
    fn usage(self) -> Usage {
        let read = self.prompt_tokens_details.0.map(|details| details.cached_tokens);
        let written = self.completion_tokens_details.0.map(|details| details.reasoning_tokens);
        Usage {
            input_tokens: first(&[Some(self.prompt_tokens), Some(self.input_tokens)]),
            output_tokens: first(&[Some(self.completion_tokens), Some(self.output_tokens)]),
            cached_tokens: first(&[
                read,
                Some(self.prompt_cache_hit_tokens),
                Some(self.cached_tokens),
            ]),
            reasoning_tokens: first(&[written, Some(self.reasoning_tokens)]),
        }
    }
}

fn first(places: &[Option<Scalar<'_>>]) -> u64 {
    places.iter().flatten().find_map(Scalar::as_number).unwrap_or(0)
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
        check(
            r#"{"prompt_tokens":9,"completion_tokens":5,"input_tokens":0,"output_tokens":0}"#,
            [9, 5, 0, 0],
        );
        check(r#"{"prompt_tokens":8,"completion_tokens":5,"prompt_tokens":9}"#, [9, 5, 0, 0]);
    }

    #[test]
    fn nothing_is_no_usage() {
        for text in ["{}", "{ }", "null", "[]", "7"] {
            assert_eq!(usage_of(serde_json::from_str(text).unwrap()), None, "{text}");
        }
    }
}
