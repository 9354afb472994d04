//! What the rehearsal model answers without a script: plausible for any prompt and any tools.
//!
//! Pure and deterministic. It has no understanding: it looks for words that prompt and tools have
//! in common, and for values in the prompt that fit the tools' arguments.

mod arithmetic;
mod choice;
mod concepts;
mod fill;
mod places;
mod prompt;
mod schema;

use serde_json::Value;

use self::choice::{Offer, Wanted};
use self::prompt::Prompt;
use super::script::{Call, Response};
use super::text::{content_text, last_user_text};
use crate::types::excerpt;

/// How much of one result the final answer quotes.
const QUOTE_CHARS_MAX: usize = 2000;

/// What the model says to a request that passed the strict check: calls, or a final answer.
#[must_use]
pub fn improvise(request: &Value) -> Response {
    let prompt = Prompt::read(&last_user_text(request));
    let done = calls_since_last_user(request);
    let offers = offers(request);
    let wanted = if request["tool_choice"] == "none" {
        Vec::new()
    } else if request["parallel_tool_calls"] == false {
        // One at a time: the first that was not made yet.
        let made = |wanted: &Wanted| {
            done.iter().any(|call| call.name == wanted.name && call.arguments == wanted.arguments)
        };
        let all = choice::calls(&prompt, &offers, &request["tool_choice"]);
        all.into_iter().filter(|wanted| !made(wanted)).take(1).collect()
    } else if done.is_empty() {
        choice::calls(&prompt, &offers, &request["tool_choice"])
    } else {
        Vec::new()
    };
    if !wanted.is_empty() {
        let lead = if prompt.is_chinese() { "我来查一下。" } else { "Let me look that up." };
        let mut response = Response::text(if done.is_empty() { lead } else { "" });
        response.calls =
            wanted.into_iter().map(|wanted| Call::new(&wanted.name, wanted.arguments)).collect();
        return response;
    }
    Response::text(&final_answer(&prompt, &done, !offers.is_empty()))
}

/// A call in the history, with its result.
struct Done {
    name: String,
    arguments: Value,
    result: String,
}

/// The answered calls after the last user message, in order.
fn calls_since_last_user(request: &Value) -> Vec<Done> {
    let messages = request["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let last_user = messages.iter().rposition(|message| message["role"] == "user");
    let since = messages.get(last_user.map_or(0, |at| at + 1)..).unwrap_or_default();
    let mut done = Vec::new();
    // An id may be used again by a later message, so an answer is sought after its own call.
    for (at, message) in since.iter().enumerate() {
        for call in message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let answer = since.iter().skip(at + 1).find(|m| m["tool_call_id"] == call["id"]);
            let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
            done.push(Done {
                name: call["function"]["name"].as_str().unwrap_or_default().to_owned(),
                arguments: serde_json::from_str(arguments).unwrap_or_default(),
                result: answer.map(said_by_tool).unwrap_or_default(),
            });
        }
    }
    done
}

/// A result without what the host notes behind it, after a blank line.
fn said_by_tool(answer: &Value) -> String {
    let mut text = content_text(&answer["content"]);
    if let Some(noted) = text.rfind("\n\n[callsheet: ") {
        text.truncate(noted);
    }
    text
}

fn offers(request: &Value) -> Vec<Offer<'_>> {
    let tools = request["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    tools.iter().filter_map(|tool| Offer::read(&tool["function"])).collect()
}

fn final_answer(prompt: &Prompt, done: &[Done], tools: bool) -> String {
    let chinese = prompt.is_chinese();
    if done.is_empty() {
        let said = excerpt(prompt.text.trim(), 200);
        return match (chinese, tools) {
            (true, true) => format!("（离线排练模型）没有合适的工具。你说的是：{said}"),
            (true, false) => format!("（离线排练模型）没有可用的工具。你说的是：{said}"),
            (false, true) => {
                format!("(offline rehearsal model) None of the tools fits this. You said: {said}")
            }
            (false, false) => {
                format!("(offline rehearsal model) There are no tools to use. You said: {said}")
            }
        };
    }
    let head = if chinese {
        "（离线排练模型）工具的回答："
    } else {
        "(offline rehearsal model) The tools answered:"
    };
    let quote = |call: &Done| {
        let result = excerpt(call.result.trim(), QUOTE_CHARS_MAX);
        format!("\n- {}: {result}", call.name)
    };
    done.iter().fold(head.to_owned(), |text, call| text + &quote(call))
}

#[cfg(test)]
mod tests;
