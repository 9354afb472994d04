//! Token counts, as Gemini tells them: whole in the last chunk, and often in every one.

use serde::de::MapAccess;
use serde_json::value::RawValue;

use crate::types::Usage;
use crate::wire::Delta;
use crate::wire::fields::{Fields, fill};
use crate::wire::loose::Scalar;

/// Reads a `usageMetadata`; none if the object holds nothing. What it does not say stays as it was
/// said before: some chunks bring no counts at all.
pub(super) fn usage_of(raw: &RawValue, before: &mut Counts) -> Option<Delta> {
    let text = raw.get();
    if !text.starts_with('{') || text.trim_matches(['{', '}', ' ', '\n', '\r', '\t']).is_empty() {
        return None;
    }
    let mut counts = *before;
    if fill(text, &mut counts).is_ok() {
        *before = counts;
    }
    Some(Delta::Usage { usage: before.usage(), raw: text.into() })
}

/// The counts of a response, as far as they were said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    prompt: u64,
    tool_use_prompt: u64,
    candidates: u64,
    thoughts: u64,
    cached: u64,
}

impl<'de> Fields<'de> for Counts {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        let count = match key {
            "promptTokenCount" | "prompt_token_count" => &mut self.prompt,
            "toolUsePromptTokenCount" | "tool_use_prompt_token_count" => &mut self.tool_use_prompt,
            "candidatesTokenCount" | "candidates_token_count" => &mut self.candidates,
            "thoughtsTokenCount" | "thoughts_token_count" => &mut self.thoughts,
            "cachedContentTokenCount" | "cached_content_token_count" => &mut self.cached,
            _ => return Ok(false),
        };
        let said = map.next_value::<Scalar<'de>>()?.as_number();
        *count = said.unwrap_or(*count);
        Ok(true)
    }
}

impl Counts {
    fn usage(self) -> Usage {
        Usage {
            input_tokens: self.prompt.saturating_add(self.tool_use_prompt),
            // Here thoughts are not counted with the answer.
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
        let mut counts = Counts::default();
        let mut last = None;
        for text in texts {
            last = usage_of(serde_json::from_str(text).unwrap(), &mut counts);
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
    fn a_chunk_without_counts_takes_none_away() {
        let first = r#"{"promptTokenCount":9,"candidatesTokenCount":5}"#;
        check(&[first, r#"{"trafficType":"ON_DEMAND"}"#], [9, 5, 0, 0]);
        check(&[first, r#"{"candidatesTokenCount":7}"#], [9, 7, 0, 0]);
    }

    #[test]
    fn nothing_is_no_usage() {
        for text in ["{}", "{ }", "null", "[]", "7"] {
            let mut counts = Counts::default();
            assert_eq!(usage_of(serde_json::from_str(text).unwrap(), &mut counts), None, "{text}");
        }
    }
}
