//! Token counts: `usageMetadata` of Google's API reference. The last chunk has all counts; often every
//! chunk does.

use serde::de::MapAccess;
use serde_json::value::RawValue;

use crate::Delta;
use crate::lenient::{ReadMembers, Scalar, read_object};
use callsheet_values::types::Usage;

/// Reads a `usageMetadata` into `counts`. Returns `None` if it is an empty object or no object. Missing
/// counts keep their values, because some chunks have no counts at all.
pub(super) fn read_usage(raw: &RawValue, counts: &mut UsageCounts) -> Option<Delta> {
    let text = raw.get();
    if !text.starts_with('{') || text.trim_matches(['{', '}', ' ', '\n', '\r', '\t']).is_empty() {
        return None;
    }
    let mut new = *counts;
    if read_object(text, &mut new).is_ok() {
        *counts = new;
    }
    Some(Delta::Usage { usage: counts.usage(), raw: text.into() })
}

/// The counts of a response so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UsageCounts {
    prompt: u64,
    tool_use_prompt: u64,
    candidates: u64,
    thoughts: u64,
    cached: u64,
}

impl<'de> ReadMembers<'de> for UsageCounts {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        let count = match key {
            "promptTokenCount" | "prompt_token_count" => &mut self.prompt,
            "toolUsePromptTokenCount" | "tool_use_prompt_token_count" => &mut self.tool_use_prompt,
            "candidatesTokenCount" | "candidates_token_count" => &mut self.candidates,
            "thoughtsTokenCount" | "thoughts_token_count" => &mut self.thoughts,
            "cachedContentTokenCount" | "cached_content_token_count" => &mut self.cached,
            _ => return Ok(false),
        };
        let new = map.next_value::<Scalar<'de>>()?.as_number();
        *count = new.unwrap_or(*count);
        Ok(true)
    }
}

impl UsageCounts {
    fn usage(self) -> Usage {
        Usage {
            input_tokens: self.prompt.saturating_add(self.tool_use_prompt),
            // `candidatesTokenCount` does not include the thoughts.
            output_tokens: self.candidates.saturating_add(self.thoughts),
            cached_tokens: self.cached,
            reasoning_tokens: self.thoughts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(texts: &[&str], [input, output, cached, reasoning]: [u64; 4]) {
        let mut counts = UsageCounts::default();
        let mut last = None;
        for text in texts {
            last = read_usage(serde_json::from_str(text).unwrap(), &mut counts);
        }
        let usage = Usage {
            input_tokens: input,
            output_tokens: output,
            cached_tokens: cached,
            reasoning_tokens: reasoning,
        };
        let raw = texts.last().copied().unwrap_or_default().into();
        assert_eq!(last, Some(Delta::Usage { usage, raw }), "{texts:?}");
    }

    #[test]
    fn counts_in_both_spellings() {
        let whole = r#"{"promptTokenCount":9,"candidatesTokenCount":5,"thoughtsTokenCount":3,
            "cachedContentTokenCount":4,"toolUsePromptTokenCount":2,"totalTokenCount":19}"#;
        check(&[whole], [11, 8, 4, 3]);
        check(
            &[
                r#"{"prompt_token_count":9,"candidates_token_count":"5","thoughts_token_count":3.0}"#,
            ],
            [9, 8, 0, 3],
        );
        check(&[r#"{"promptTokenCount":8,"promptTokenCount":9}"#], [9, 0, 0, 0]);
        check(&[r#"{"promptTokenCount":null,"candidatesTokenCount":{}}"#], [0, 0, 0, 0]);
    }

    #[test]
    fn missing_counts_keep_their_values() {
        let first = r#"{"promptTokenCount":9,"candidatesTokenCount":5}"#;
        check(&[first, r#"{"trafficType":"ON_DEMAND"}"#], [9, 5, 0, 0]);
        check(&[first, r#"{"candidatesTokenCount":7}"#], [9, 7, 0, 0]);
    }

    #[test]
    fn an_empty_object_has_no_usage() {
        for text in ["{}", "{ }", "null", "[]", "7"] {
            let mut counts = UsageCounts::default();
            assert_eq!(
                read_usage(serde_json::from_str(text).unwrap(), &mut counts),
                None,
                "{text}"
            );
        }
    }
}
