//! Removes the secrets of the host from results of configured tools and MCP servers.

use super::{ToolError, ToolOutput};
use callsheet_values::types::Secrets;

/// Replaces secrets in the output or the error message of a call. A message may quote excerpts.
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
            let message = secrets.redact_excerpts(error.message());
            Err(error.with_message(message))
        }
    }
}
