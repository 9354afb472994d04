//! The text of the system prompt: the tools, and how to call them. Also the rule for calling tools in words.

use std::fmt::Write as _;

use serde_json::json;

use crate::{ToolChoice, ToolDefinition};
use callsheet_values::types::ToolProtocol;

/// Returns the text that describes the tools and the protocol. It depends only on the arguments, so it
/// stays the same as long as they do.
pub(super) fn tool_prompt(
    protocol: ToolProtocol,
    tools: &[ToolDefinition],
    allows_several: bool,
) -> String {
    let mut text = String::from(
        "# Tools\n\nYou can call these tools. Each line is one tool as JSON:\n<tools>\n",
    );
    for ToolDefinition { name, description, schema } in tools {
        let function = json!({"name": name, "description": description, "parameters": schema});
        // Writing to a text does not fail.
        let _ = writeln!(text, "{}", json!({"type": "function", "function": function}));
    }
    text.push_str("</tools>\n\n");
    text.push_str(form_of_calls(protocol));
    text.push_str(match protocol {
        ToolProtocol::Arrow => "Make at most one call in a response, at its end.\n",
        _ if !allows_several => "Make at most one call in a response.\n",
        ToolProtocol::Pythonic => "Several calls stand in the same list.\n",
        ToolProtocol::Native | ToolProtocol::Hermes | ToolProtocol::Xml | ToolProtocol::React => {
            "For several calls, repeat this form.\n"
        }
    });
    text.push_str(
        "A call is never in a code block. After your calls, end the response: the results come in the next \
         message, as\n",
    );
    text.push_str(form_of_results(protocol));
    text.push_str("\nIf no tool is needed, answer in plain text.");
    if protocol == ToolProtocol::React {
        text.push_str(" Begin that with \"Final Answer:\".");
    }
    text
}

fn form_of_calls(protocol: ToolProtocol) -> &'static str {
    match protocol {
        ToolProtocol::Native | ToolProtocol::Hermes => {
            "To call a tool, write a JSON object with its name and arguments within <tool_call></tool_call> \
             tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n\
             </tool_call>\n\n"
        }
        ToolProtocol::Xml => {
            "To call a tool, write its name and arguments in this form:\n<tool_call>\n\
             <function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n\
             <parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\n\
             multiple lines\n</parameter>\n</function>\n</tool_call>\n\nThe values of texts stand as they \
             are, all others as JSON. "
        }
        ToolProtocol::React => {
            "To call a tool, write its name and its arguments as one JSON object, each on a line that begins \
             so:\nThought: what to do\nAction: the name of the tool\nAction Input: {\"argument\": \
             \"value\"}\n\n"
        }
        ToolProtocol::Pythonic => {
            "To call a tool, write a list of calls in the syntax of Python on a line of its own, and nothing \
             else on it:\n[func_name1(params_name1=params_value1, params_name2=params_value2), \
             func_name2(params)]\n\n"
        }
        ToolProtocol::Arrow => {
            "To call a tool, write =># and its name at the start of a line, then its arguments as one JSON \
             object:\n=>#name {\"argument\": \"value\"}\n\n"
        }
    }
}

fn form_of_results(protocol: ToolProtocol) -> &'static str {
    match protocol {
        ToolProtocol::React => "Observation: [id name]\nresult\n",
        ToolProtocol::Native
        | ToolProtocol::Hermes
        | ToolProtocol::Xml
        | ToolProtocol::Pythonic
        | ToolProtocol::Arrow => {
            "<tool_response id=\"..\" name=\"..\">\nresult\n</tool_response>\n"
        }
    }
}

/// Returns the tool choice in words; `None` if the model may decide.
pub(super) fn tool_choice_text(choice: &ToolChoice) -> Option<String> {
    match choice {
        ToolChoice::Auto => None,
        ToolChoice::None => {
            Some("Answer now, in plain text. Do not call a tool in this response.".to_owned())
        }
        ToolChoice::Required => Some("Call at least one tool in this response.".to_owned()),
        ToolChoice::Tool(name) => Some(format!("Call the tool {name} in this response.")),
    }
}
