//! The answers of the rehearsal model to people.
//!
//! Pure and deterministic. The improviser does not understand language: it searches the prompt for
//! names of the offered tools and for values that fit their arguments, and makes the calls that
//! follow. When every call is answered it quotes the results.
//!
//! | file | contents |
//! | --- | --- |
//! | `prompt` | finds values in a prompt: cities, expressions, URLs, paths, quotations, numbers |
//! | `tool_selection` | decides which of the offered tools a prompt asks for, and with which values |
//! | `arguments` | makes arguments that fit a tool's JSON schema, and typed answers |

mod arguments;
mod prompt;
#[cfg(test)]
mod tests;
mod tool_selection;

use std::borrow::Cow;

use serde_json::{Value, json};

use self::arguments::ArgumentFiller;
use self::prompt::Prompt;
use self::tool_selection::{OfferedTool, select_calls};
use super::text::{content_text, items, last_user_text, words};
use super::{Call, RehearsedAnswer};
use callsheet_values::types::{READ_VAR, excerpt};

/// The largest number of characters of one result that the final answer quotes.
const QUOTE_CHARS_MAX: usize = 2000;

/// The beginning of the messages that the host adds to a history.
const HOST_MESSAGE: &str = "[callsheet: ";

/// Answers a request: with calls, or with a final text. The text is JSON if the request has a schema for it.
#[must_use]
pub fn improvise(request: &Value) -> RehearsedAnswer {
    let prompt = Prompt::read(&last_user_text(request));
    let answered = answered_calls(request);
    let tools = items(&request["tools"]).iter();
    let tools = tools.filter_map(|tool| OfferedTool::read(&tool["function"]));
    // Never selects `read_var`: prompts contain no references.
    let tools: Vec<_> = tools.filter(|tool| !tool.is_named(READ_VAR)).collect();
    let one_at_a_time = request["parallel_tool_calls"] == false;
    let mut calls = Vec::new();
    // Parallel calls are all made in the first response.
    if request["tool_choice"] != "none" && (answered.is_empty() || one_at_a_time) {
        calls = select_calls(&prompt, &tools, &request["tool_choice"]);
    }
    if one_at_a_time {
        calls.retain(|call| !answered.iter().any(|answered| answered.is_same_call(call)));
        calls.truncate(1);
    }
    if calls.is_empty() {
        if let Some(schema) = answer_schema(request) {
            return RehearsedAnswer { text: words(&typed_answer(request, &schema)), calls };
        }
        let text = final_answer(&prompt, &answered, !tools.is_empty());
        return RehearsedAnswer { text: words(&text), calls };
    }
    let preamble = match (answered.is_empty(), prompt.is_chinese()) {
        (false, _) => "",
        (true, true) => "我来查一下。",
        (true, false) => "Let me look that up.",
    };
    RehearsedAnswer { text: words(preamble), calls }
}

/// A call of the history with its result.
struct AnsweredCall {
    name: String,
    arguments: Value,
    result: String,
}

impl AnsweredCall {
    fn is_same_call(&self, call: &Call) -> bool {
        self.name == call.name && self.arguments == call.arguments
    }
}

/// Returns the answered calls after the last user message, in order.
fn answered_calls(request: &Value) -> Vec<AnsweredCall> {
    let messages = items(&request["messages"]);
    let last_user = messages.iter().rposition(|message| message["role"] == "user");
    let since = messages.get(last_user.map_or(0, |at| at + 1)..).unwrap_or_default();
    let mut answered = Vec::new();
    // A later message may use an id again, so the search for an answer starts after the call.
    for (at, message) in since.iter().enumerate() {
        for call in items(&message["tool_calls"]) {
            let answer =
                since.iter().skip(at + 1).find(|message| message["tool_call_id"] == call["id"]);
            let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
            answered.push(AnsweredCall {
                name: call["function"]["name"].as_str().unwrap_or_default().to_owned(),
                arguments: serde_json::from_str(arguments).unwrap_or_default(),
                result: answer.map(result_text).unwrap_or_default(),
            });
        }
    }
    answered
}

/// Returns the text of a result without the notes that the host appends after an empty line.
fn result_text(answer: &Value) -> String {
    let mut text = content_text(&answer["content"]);
    if let Some(notes) = text.rfind(&format!("\n\n{HOST_MESSAGE}")) {
        text.truncate(notes);
    }
    text
}

/// Returns the schema that the answer must match, if the request has one.
fn answer_schema(request: &Value) -> Option<Cow<'_, Value>> {
    let format = &request["response_format"];
    match format["type"].as_str()? {
        "json_schema" => Some(Cow::Borrowed(&format["json_schema"]["schema"])),
        "json_object" => Some(Cow::Owned(json!({"type": "object"}))),
        _ => None,
    }
}

/// Returns an answer as JSON text. Its values are those of the user's last message, not of the host's.
fn typed_answer(request: &Value, schema: &Value) -> String {
    let messages = items(&request["messages"]).iter().rev();
    let mut texts = messages
        .filter(|message| message["role"] == "user")
        .map(|message| content_text(&message["content"]))
        .filter(|text| !text.starts_with(HOST_MESSAGE));
    let prompt = Prompt::read(&texts.next().unwrap_or_default());
    ArgumentFiller::new(&prompt, schema).fill_any().to_string()
}

fn final_answer(prompt: &Prompt, answered: &[AnsweredCall], has_tools: bool) -> String {
    if answered.is_empty() {
        let quote = excerpt(prompt.text.trim(), 200);
        return match (prompt.is_chinese(), has_tools) {
            (true, true) => format!("（离线排练模型）没有合适的工具。你说的是：{quote}"),
            (true, false) => format!("（离线排练模型）没有可用的工具。你说的是：{quote}"),
            (false, true) => {
                format!("(offline rehearsal model) None of the tools fits this. You said: {quote}")
            }
            (false, false) => {
                format!("(offline rehearsal model) There are no tools to use. You said: {quote}")
            }
        };
    }
    let head = match prompt.is_chinese() {
        true => "（离线排练模型）工具的回答：",
        false => "(offline rehearsal model) The tools answered:",
    };
    answered.iter().fold(head.to_owned(), |text, call| {
        let result = excerpt(call.result.trim(), QUOTE_CHARS_MAX);
        format!("{text}\n- {}: {result}", call.name)
    })
}
