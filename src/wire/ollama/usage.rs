//! Token counts: `prompt_eval_count` and `eval_count` of Ollama's API reference.

use serde_json::value::RawValue;

use crate::Delta;
use crate::lenient::Scalar;
use callsheet_values::types::Usage;

/// Returns the token counts of a chunk, if it has any. Older versions of Ollama send no count for
/// a prompt that is cached completely.
pub(super) fn read_usage(prompt: Option<&RawValue>, answer: Option<&RawValue>) -> Option<Delta> {
    prompt.or(answer)?;
    let counts = [("prompt_eval_count", prompt), ("eval_count", answer)];
    let members: Vec<String> = counts
        .iter()
        .filter_map(|(key, count)| Some(format!("\"{key}\":{}", (*count)?.get())))
        .collect();
    let count = |raw: Option<&RawValue>| {
        let scalar = serde_json::from_str::<Scalar<'_>>(raw?.get()).ok()?;
        scalar.as_number()
    };
    let usage = Usage {
        input_tokens: count(prompt).unwrap_or(0),
        output_tokens: count(answer).unwrap_or(0),
        ..Usage::default()
    };
    Some(Delta::Usage { usage, raw: format!("{{{}}}", members.join(",")).into() })
}
