//! Removes the secrets of a configured tool from its results.

use super::{ToolError, ToolOutput};
use crate::types::Secrets;

/// Replaces the secrets of a call in its result. The host replaces only the values that they had at its
/// start.
pub(super) fn redacted(
    result: Result<ToolOutput, ToolError>,
    secrets: &Secrets,
) -> Result<ToolOutput, ToolError> {
    if secrets.is_empty() {
        return result;
    }
    match result {
        Ok(output) => {
            let (text, full) = output.into_parts();
            let structured = full.and_then(|full| full.structured);
            Ok(match structured {
                Some(value) => {
                    let value = secrets.redact_json(&value).unwrap_or(value);
                    ToolOutput::default().with_structured(value)
                }
                None => secrets.redact(&text).into_owned().into(),
            })
        }
        Err(error) => {
            let message = secrets.redact(error.message()).into_owned();
            Err(error.with_message(message))
        }
    }
}
