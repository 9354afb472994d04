//! Removes the secrets of a configured tool or an MCP server from its results.

use super::{ToolError, ToolOutput};
use crate::types::Secrets;

/// Replaces the secrets of a call in its output or error message. The host itself knows only the values that
/// secrets had when it started.
pub(super) fn redacted(
    result: Result<ToolOutput, ToolError>,
    secrets: &Secrets,
) -> Result<ToolOutput, ToolError> {
    if secrets.is_empty() {
        return result;
    }
    match result {
        Ok(output) => Ok(output.redacted(secrets)),
        Err(error) => {
            let message = secrets.redact(error.message()).into_owned();
            Err(error.with_message(message))
        }
    }
}
