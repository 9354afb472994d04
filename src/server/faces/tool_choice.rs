//! The tool that a request forces the model to call.

use callsheet_values::config::ClientTool;
use callsheet_values::types::ToolChoice;

/// Returns the rule for calling tools as OpenAI's API means it: `required` is about the tools of the request. The
/// host's rule is about all tools of the run, so the only tool of a request is forced by its name. With several, a call
/// of one of the agent's own tools is enough.
pub(super) fn of_request(choice: ToolChoice, tools: &[ClientTool]) -> ToolChoice {
    match (choice, tools) {
        (ToolChoice::Required, [only]) => ToolChoice::Tool(only.name.as_str().into()),
        (choice, _) => choice,
    }
}
