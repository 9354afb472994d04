//! Calls in the syntax of Python, as Llama writes them: `[f(a=1), g(b="x")]`, also after
//! `<|python_tag|>`, which `f(a=1)` and JSON objects may follow too. A bare JSON object at the beginning of a
//! response, or a list of such objects, is a call if it names an offered tool.

use super::bracket_scan::{BracketScan, ScanEnd};
use super::literal;
use super::read_call::{BodyText, ReadCall, ReadStep, from, name_length, read_objects, up_to};
use crate::ToolDefinition;

/// Reads the text after `[`, after `<|python_tag|>`, or from bare JSON on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PythonicBody {
    state: PythonicState,
    scan: Option<BracketScan>,
    /// At least one call was read, or a tag came before, so the text is no prose.
    is_certain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PythonicState {
    /// After `<|python_tag|>`, or before a further call that is in no list.
    Tag,
    /// Before a call of a list.
    List,
    /// After a call of a list.
    ListNext,
    /// In a JSON value.
    Json,
    /// After a call that is in no list, or after JSON.
    Next,
}

impl PythonicBody {
    pub(super) fn tag() -> Self {
        Self { state: PythonicState::Tag, scan: None, is_certain: true }
    }

    pub(super) fn list() -> Self {
        Self { state: PythonicState::List, scan: None, is_certain: false }
    }

    pub(super) fn json() -> Self {
        Self { state: PythonicState::Json, scan: None, is_certain: false }
    }

    pub(super) fn step(&mut self, body: BodyText<'_>) -> ReadStep {
        let (text, blanks) = body.trimmed();
        match self.state {
            PythonicState::Tag => self.step_tag(body),
            PythonicState::List if text.starts_with(']') => ReadStep::Over(blanks + 1),
            PythonicState::List => self.step_call(body, true),
            PythonicState::ListNext => match text.chars().next() {
                Some(',') => {
                    self.state = PythonicState::List;
                    ReadStep::Skip(blanks + 1)
                }
                Some(']') => ReadStep::Over(blanks + 1),
                // Anything else ends the list.
                Some(_) => ReadStep::Over(0),
                None if body.is_end => ReadStep::Over(blanks),
                None => ReadStep::More,
            },
            PythonicState::Json => self.step_json(body),
            PythonicState::Next => match text.chars().next() {
                Some(';' | ',') => {
                    self.state = PythonicState::Tag;
                    ReadStep::Skip(blanks + 1)
                }
                Some(_) => ReadStep::Over(0),
                None if body.is_end => ReadStep::Over(blanks),
                None => ReadStep::More,
            },
        }
    }

    fn step_tag(&mut self, body: BodyText<'_>) -> ReadStep {
        let (text, blanks) = body.trimmed();
        let mut chars = text.chars();
        match chars.next() {
            None if body.is_end => ReadStep::Over(blanks),
            None => ReadStep::More,
            Some('{') => self.begin_json(),
            Some('[') => match chars.as_str().trim_start().chars().next() {
                Some('{') => self.begin_json(),
                Some(_) => {
                    self.state = PythonicState::List;
                    ReadStep::Skip(blanks + 1)
                }
                None if body.is_end => ReadStep::Over(body.text.len()),
                None => ReadStep::More,
            },
            Some(_) => self.step_call(body, false),
        }
    }

    fn begin_json(&mut self) -> ReadStep {
        (self.state, self.scan) = (PythonicState::Json, None);
        ReadStep::Skip(0)
    }

    fn step_json(&mut self, body: BodyText<'_>) -> ReadStep {
        let (_, blanks) = body.trimmed();
        let end = self.scan.get_or_insert_with(|| BracketScan::new(blanks)).scan(body.text, &[]);
        let (bytes, are_sealed) = match end {
            ScanEnd::Closed(bytes) => (bytes, true),
            ScanEnd::Open | ScanEnd::Stopped(_) if !body.is_end => return ReadStep::More,
            ScanEnd::Open | ScanEnd::Stopped(_) => (body.text.len(), false),
        };
        let calls = read_objects(up_to(body.text, bytes), false);
        let is_offered =
            |call: &ReadCall| call.name.as_deref().is_some_and(|n| offers(body.tools, n));
        if !self.is_certain && (calls.is_empty() || !calls.iter().all(is_offered)) {
            return ReadStep::NotACall;
        }
        *self = Self { state: PythonicState::Next, scan: None, is_certain: true };
        ReadStep::Calls { calls, bytes, are_sealed }
    }

    /// Reads `f(a=1)`.
    fn step_call(&mut self, body: BodyText<'_>, is_in_list: bool) -> ReadStep {
        let (text, blanks) = body.trimmed();
        let name = up_to(text, name_length(text));
        let after_name = from(text, name.len()).trim_start();
        let open = body.text.len() - after_name.len();
        if name.is_empty() || !after_name.starts_with('(') {
            return match after_name.is_empty() {
                true if !body.is_end => ReadStep::More,
                true => ReadStep::Over(body.text.len()),
                // A program follows `<|python_tag|>`, or a list has items that are no calls.
                false if self.is_certain => ReadStep::Over(0),
                false => ReadStep::NotACall,
            };
        }
        // Llama calls its built-in tools in this form.
        let tool = name.strip_suffix(".call").unwrap_or(name);
        let end = self.scan.get_or_insert_with(|| BracketScan::new(open)).scan(body.text, &[]);
        let ScanEnd::Closed(bytes) = end else {
            if !body.is_end {
                return ReadStep::More;
            }
            let call = ReadCall::cut_off(tool, from(body.text, blanks));
            return ReadStep::call(call, body.text.len(), false);
        };
        let mut is_sealed = true;
        if is_in_list {
            match from(body.text, bytes).trim_start().chars().next() {
                Some(',' | ']') => {}
                Some(_) if !self.is_certain => return ReadStep::NotACall,
                Some(_) => {}
                // If the response was cut off here, prose may have followed, and this is no list of calls.
                None if body.is_end => is_sealed = self.is_certain || !body.is_cut,
                None => return ReadStep::More,
            }
        }
        let inner = body.text.get(open + 1..bytes - 1).unwrap_or_default();
        let call = match literal::parse_keywords(inner) {
            Some(arguments) => ReadCall::new(tool, arguments),
            None if self.is_certain || offers(body.tools, tool) => {
                let (name, arguments) = (Some(tool.to_owned()), inner.to_owned());
                ReadCall { name, arguments, is_repaired: false }
            }
            None => return ReadStep::NotACall,
        };
        self.state = if is_in_list { PythonicState::ListNext } else { PythonicState::Next };
        (self.scan, self.is_certain) = (None, true);
        ReadStep::call(call, bytes, is_sealed)
    }
}

pub(super) fn offers(tools: &[ToolDefinition], name: &str) -> bool {
    tools.iter().any(|tool| tool.name == name)
}
