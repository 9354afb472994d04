//! Tool calling for models without it: calls in the text, in one of several protocols.
//!
//! Both parts are pure. The reader knows no wire format, and the renderer only compares it with the origin of a
//! message. Before the encoder, [`PromptRenderer`] turns a request with tools into one without: the tools are in
//! the system prompt, calls in the text of the model's messages, and the results of a turn in one message of the
//! user. After the decoder, [`CallReader`] turns text deltas into text and calls. The history in the host stays
//! neutral, so a session may change between models with and without tool calling.
//!
//! | file | contents |
//! | --- | --- |
//! | `reader` | [`CallReader`]: finds triggers, emits text and calls |
//! | `text_context` | code, quotes and reasoning, in which nothing is a call |
//! | `trigger` | the beginnings of calls |
//! | `tagged`, `pythonic`, `react`, `arrow` | the grammars after the triggers |
//! | `object` | objects without `<tool_call>`: before a closing tag, in `<tools>`, or as the whole answer |
//! | `gemma` | the form of Gemma, which is read in every protocol |
//! | `read_call` | a call that was read, the steps of reading it, and calls as JSON objects |
//! | `bracket_scan` | the end of an object or an argument list that arrives in pieces |
//! | `literal` | values of Python, and JSON with mistakes |
//! | `parameter_type` | values that are given as bare text, by their schema |
//! | `render` | [`PromptRenderer`] |
//! | `prompt` | the text of the system prompt, and the rule for calling tools |
//! | `text_format` | calls and results as text |
//!
//! The rules of reading:
//!
//! - The text of a call is held back until it can be read. Of other text, only the end that may begin a trigger is
//!   held back, and white space at the beginning and after a call.
//! - Nothing in code (fenced, or in backticks), in a line that is quoted with `>`, in a quoted result or in
//!   reasoning is a call, except an object in a block of code that is the whole answer.
//! - An object, or a list of objects, that is the whole answer is a call in every protocol if it names an offered tool
//!   and has no members but those of a call. So is an object before `</tool_call>` in the protocols with that tag,
//!   whatever its name; in the middle of a line only if no text follows in the line.
//! - A call is sealed where its form ends: mostly at its closing tag, bracket or brace. Without that the call is
//!   accepted if the response ends well, by the same rule as on every wire.
//! - A call in the right form to a tool that does not exist is a call, whose answer reports this. Only
//!   `[f(a=1)]` within a line, JSON without a tag, and `Action:` without an input must name an offered tool.
//! - Arguments that are nearly JSON are repaired, which `ArgumentsAnomaly::Repaired` reports.
//! - The host generates the ids of the calls.

mod arrow;
mod bracket_scan;
mod gemma;
mod literal;
mod object;
mod parameter_type;
mod prompt;
mod pythonic;
mod react;
mod read_call;
mod reader;
mod render;
mod tagged;
#[cfg(test)]
mod tests;
mod text_context;
mod text_format;
mod trigger;

pub use reader::CallReader;
pub use render::PromptRenderer;
pub(super) use text_context::TextContext;
