//! Calls in the form of Gemma: `<|tool_call>call:NAME{key:<|"|>text<|"|>,n:1}<tool_call|>` (Gemma 4), and
//! `<start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call>` (FunctionGemma). Keys have no quotes,
//! and texts no escapes. Sources: the chat template of `google/gemma-4-e2b-it`, and the parsers of vLLM and llama.cpp.

use super::literal::{self, TEXT_MARKS};
use super::react::{NeedsMoreText, after};
use super::read_call::{BodyText, NAME_BYTES_MAX, ReadCall, ReadStep, from, name_length, up_to};
use super::trigger::one_of;

pub(super) const TAGS: [(&str, &str); 2] =
    [("<|tool_call>", "<tool_call|>"), ("<start_function_call>", "<end_function_call>")];

const QUOTE: &str = "\"";

/// Reads the text from the opening brace on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GemmaBody {
    name: String,
    close: &'static str,
    /// The next byte to read.
    at: usize,
    depth: usize,
    /// The mark that ends the text in which `at` is.
    text_end: Option<&'static str>,
    is_read: bool,
}

/// The end of the arguments.
enum ArgumentsEnd {
    Open,
    /// They end before this position.
    At(usize),
    /// The closing tag at this position ends them, although brackets are missing.
    Cut(usize),
}

/// Returns the body of the call that begins here, and the number of bytes before its opening brace.
pub(super) fn find_gemma_call(text: &str) -> Result<Option<(GemmaBody, usize)>, NeedsMoreText> {
    if !text.starts_with('<') {
        return Ok(None);
    }
    let mut is_begun = false;
    for (open, close) in TAGS {
        let Some(rest) = text.strip_prefix(open) else {
            is_begun |= open.starts_with(text);
            continue;
        };
        let Some(bytes) = one_of(rest.trim_start(), &["call:"])? else { return Ok(None) };
        let named = after(rest.trim_start(), bytes);
        let name = up_to(named, name_length(named));
        let object = after(named, name.len());
        if object.is_empty() && name.len() <= NAME_BYTES_MAX {
            return Err(NeedsMoreText);
        }
        let is_call = !name.is_empty() && name.len() <= NAME_BYTES_MAX && object.starts_with('{');
        let name = name.to_owned();
        let body = GemmaBody { name, close, at: 0, depth: 0, text_end: None, is_read: false };
        return Ok(is_call.then(|| (body, text.len() - object.len())));
    }
    if is_begun { Err(NeedsMoreText) } else { Ok(None) }
}

impl GemmaBody {
    pub(super) fn step(&mut self, body: BodyText<'_>) -> ReadStep {
        if self.is_read {
            let (text, blanks) = body.trimmed();
            if text.starts_with(self.close) {
                return ReadStep::Seal { bytes: blanks + self.close.len(), is_over: true };
            }
            return body.wait_for(&[self.close]).unwrap_or(ReadStep::Over(0));
        }
        let (bytes, is_cut) = match self.find_end(body.text) {
            ArgumentsEnd::At(bytes) => (bytes, false),
            ArgumentsEnd::Cut(bytes) => (bytes, true),
            ArgumentsEnd::Open if !body.is_end => return ReadStep::More,
            ArgumentsEnd::Open => (body.text.len(), !body.is_cut),
        };
        self.is_read = true;
        let text = up_to(body.text, bytes);
        let call = match literal::parse_value(text, is_cut) {
            Some(arguments) => {
                let (name, arguments) = (Some(self.name.clone()), arguments.to_string());
                ReadCall { name, arguments, is_repaired: is_cut }
            }
            None => ReadCall::cut_off(&*self.name, text),
        };
        ReadStep::call(call, bytes, false)
    }

    fn find_end(&mut self, text: &str) -> ArgumentsEnd {
        loop {
            let rest = from(text, self.at);
            if self.text_end == Some(QUOTE) {
                match rest.find(['\\', '"']) {
                    Some(found) if from(rest, found).starts_with('"') => {
                        self.at += found + 1;
                        self.text_end = None;
                    }
                    Some(found) => match from(rest, found + 1).chars().next() {
                        Some(escaped) => self.at += found + 1 + escaped.len_utf8(),
                        None => return ArgumentsEnd::Open,
                    },
                    None => {
                        self.at = text.len();
                        return ArgumentsEnd::Open;
                    }
                }
                continue;
            }
            if let Some(mark) = self.text_end {
                let Some(found) = rest.find(mark) else {
                    // The end may hold the beginning of the mark.
                    let kept = rest.len().saturating_sub(mark.len());
                    self.at += callsheet_values::types::floor_char_boundary(rest, kept);
                    return ArgumentsEnd::Open;
                };
                self.at += found + mark.len();
                self.text_end = None;
                continue;
            }
            let Some(found) = rest.find(['{', '[', '}', ']', '<', '"']) else {
                self.at = text.len();
                return ArgumentsEnd::Open;
            };
            self.at += found;
            let rest = from(text, self.at);
            match rest.chars().next() {
                Some('{' | '[') => self.depth += 1,
                Some('}' | ']') => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return ArgumentsEnd::At(self.at + 1);
                    }
                }
                Some('<') => {
                    if rest.starts_with(self.close) {
                        return ArgumentsEnd::Cut(self.at);
                    }
                    if let Some(mark) = TEXT_MARKS.iter().find(|mark| rest.starts_with(**mark)) {
                        self.at += mark.len();
                        self.text_end = Some(mark);
                        continue;
                    }
                    let mut words = TEXT_MARKS.iter().chain([&self.close]);
                    if words.any(|word| word.starts_with(rest)) {
                        return ArgumentsEnd::Open;
                    }
                }
                // A text of JSON, which some write instead.
                Some(_) => self.text_end = Some(QUOTE),
                None => return ArgumentsEnd::Open,
            }
            self.at += 1;
        }
    }
}
