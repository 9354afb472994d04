//! Reads calls from the text of a response.

use std::ops::Range;
use std::sync::Arc;

use super::arrow::ARROW;
use super::read_call::{BodyText, ReadCall, ReadStep, from, up_to};
use super::text_context::TextContext;
use super::trigger::{CallBody, Position, Trigger, find_trigger};
use crate::delta::append_text;
use crate::{CallDelta, Delta, Problem, ToolDefinition};
use callsheet_values::types::{FinishKind, ToolProtocol, excerpt};

/// The [`CallDelta::index`] of the first call, above those that a service gives to calls that it runs itself.
const FIRST_INDEX: u64 = 1 << 32;

/// Maximum number of bytes that are held back for one call. Far more than the default of `max_arguments_bytes`. A
/// call that is longer counts as cut off.
const CALL_BYTES_MAX: usize = 16 << 20;

/// Turns the text deltas of one response into text and calls. Other deltas pass unchanged.
///
/// The deltas do not depend on how the text was cut, except that a text may come in several of them.
#[derive(Clone, Debug)]
pub struct CallReader {
    protocol: ToolProtocol,
    tools: Arc<[ToolDefinition]>,
    /// The text that is held back.
    buffer: String,
    /// Number of bytes at the buffer's start that were read and not removed yet. 0 between two deltas.
    read_bytes: usize,
    /// Number of bytes at the buffer's start in which no object without a tag begins: they were searched for the end of
    /// one that is no call.
    searched_bytes: usize,
    state: ReaderState,
    /// The start of the line, and the code, quotes and reasoning in which nothing is a call.
    context: TextContext,
    /// White space before the first text, or after a call. It is text only if text follows.
    blanks: String,
    /// Text other than white space came, since the last call if there was one.
    has_text: bool,
    /// Number of calls so far.
    calls: u64,
    /// The calls that are not sealed yet.
    unsealed: Range<u64>,
    /// The rest of the response is ignored.
    is_over: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ReaderState {
    Text,
    /// After a trigger, of which this many bytes are not read yet.
    Call {
        body: CallBody,
        trigger_bytes: usize,
    },
}

/// The end of the text, if it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextEnd {
    /// More text may come.
    Open,
    /// The response ended well.
    Well,
    /// The response was cut off or broke.
    Cut,
}

impl CallReader {
    /// Creates a reader for one response. Returns `None` if calls come in the form of the wire format, or
    /// no tool is offered.
    #[must_use]
    pub fn new(protocol: ToolProtocol, tools: &Arc<[ToolDefinition]>) -> Option<Self> {
        (protocol != ToolProtocol::Native && !tools.is_empty())
            .then(|| Self::reading(protocol, Arc::clone(tools)))
    }

    /// Creates a reader for a protocol other than `Native`, also if no tools are known.
    pub fn reading(protocol: ToolProtocol, tools: Arc<[ToolDefinition]>) -> Self {
        Self {
            protocol,
            tools,
            buffer: String::new(),
            read_bytes: 0,
            searched_bytes: 0,
            state: ReaderState::Text,
            context: TextContext::default(),
            blanks: String::new(),
            has_text: false,
            calls: 0,
            unsealed: FIRST_INDEX..FIRST_INDEX,
            is_over: false,
        }
    }

    /// Reads a batch of deltas.
    pub fn read(&mut self, batch: Vec<Delta>) -> Vec<Delta> {
        let mut out = Vec::with_capacity(batch.len());
        for delta in batch {
            match &delta {
                Delta::Text(text) => {
                    self.buffer.push_str(text);
                    self.advance(TextEnd::Open, &mut out);
                    continue;
                }
                Delta::Finish(reason) => {
                    let is_cut = match reason.kind {
                        FinishKind::Length | FinishKind::ContentFilter | FinishKind::Error => true,
                        FinishKind::Stop
                        | FinishKind::ToolCalls
                        | FinishKind::Pause
                        | FinishKind::Other => false,
                    };
                    self.advance(if is_cut { TextEnd::Cut } else { TextEnd::Well }, &mut out);
                }
                Delta::Done => self.advance(TextEnd::Well, &mut out),
                Delta::Error(_) => self.advance(TextEnd::Cut, &mut out),
                Delta::Reasoning(_)
                | Delta::Refusal(_)
                | Delta::Call(_)
                | Delta::Seal { .. }
                | Delta::Metadata(_)
                | Delta::Usage { .. }
                | Delta::Problem(_) => {}
            }
            out.push(delta);
        }
        out
    }

    /// Returns the deltas of what was held back. Called when the stream ends. A response without a finish reason
    /// counts as cut off.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut out = Vec::new();
        self.advance(TextEnd::Cut, &mut out);
        out
    }

    fn advance(&mut self, end: TextEnd, out: &mut Vec<Delta>) {
        self.read_buffer(end, out);
        // Once for all steps, because each removal moves the rest of the text.
        self.buffer.drain(..self.read_bytes);
        self.searched_bytes = self.searched_bytes.saturating_sub(self.read_bytes);
        self.read_bytes = 0;
    }

    /// Reads the buffer until more text is needed.
    fn read_buffer(&mut self, end: TextEnd, out: &mut Vec<Delta>) {
        loop {
            if self.is_over {
                self.read_bytes = self.buffer.len();
                return;
            }
            let is_too_long = self.buffer.len() - self.read_bytes > CALL_BYTES_MAX;
            let goes_on = match &self.state {
                ReaderState::Text => self.advance_text(end, out),
                ReaderState::Call { .. } if is_too_long => self.advance_call(TextEnd::Cut, out),
                ReaderState::Call { .. } => self.advance_call(end, out),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Emits the text up to the next trigger. Returns false if more text is needed, or none comes.
    fn advance_text(&mut self, end: TextEnd, out: &mut Vec<Delta>) -> bool {
        let mut at = self.read_bytes;
        let mut begun = None;
        while let Some(c) = from(&self.buffer, at).chars().next() {
            match self.find_trigger(at, c, end) {
                Trigger::None => self.add_text(c, out),
                Trigger::Undecided => break,
                Trigger::Mark(bytes) => {
                    at += bytes;
                    continue;
                }
                Trigger::ImaginedResults => {
                    let detail = "the model wrote results of its calls itself".to_owned();
                    out.push(Delta::Problem(Problem { code: "imagined_results", detail }));
                    self.is_over = true;
                    return true;
                }
                Trigger::Call { body, bytes } => {
                    begun = Some(ReaderState::Call { body, trigger_bytes: bytes });
                    break;
                }
            }
            at += c.len_utf8();
        }
        self.read_bytes = at;
        if let Some(state) = begun {
            self.state = state;
            return true;
        }
        if end != TextEnd::Open {
            self.end_text(end, out);
        }
        false
    }

    fn find_trigger(&mut self, at: usize, c: char, end: TextEnd) -> Trigger {
        if c.is_alphanumeric() && !self.context.is_line_start()
            || self.context.resolve_protection(c)
        {
            return Trigger::None;
        }
        let position = Position {
            text: from(&self.buffer, at),
            // The beginning of a possible trigger is not text if the response is cut off.
            is_end: end == TextEnd::Well,
            is_line_start: self.context.is_line_start(),
            is_response_start: !self.has_text && self.calls == 0,
            has_calls: self.calls > 0,
            may_begin_object: at >= self.searched_bytes,
            tools: &self.tools,
        };
        find_trigger(self.protocol, position)
    }

    /// Handles the end of the text after the last trigger.
    fn end_text(&mut self, end: TextEnd, out: &mut Vec<Delta>) {
        let held = self.buffer.split_off(self.read_bytes);
        // One byte, such as `<`, is rather text. Every trigger begins with an ASCII character.
        if end == TextEnd::Cut && held.len() > 1 {
            let detail = excerpt(&held, 200);
            out.push(Delta::Problem(Problem { code: "call_cut_off", detail }));
        } else {
            held.chars().for_each(|c| self.add_text(c, out));
        }
        // A response of white space alone stays what it is.
        if self.calls == 0 {
            append_some_text(&std::mem::take(&mut self.blanks), out);
        }
        self.blanks.clear();
    }

    fn add_text(&mut self, c: char, out: &mut Vec<Delta>) {
        self.context.push(c);
        if c.is_whitespace() && (!self.has_text || !self.blanks.is_empty()) {
            self.blanks.push(c);
            return;
        }
        append_some_text(&std::mem::take(&mut self.blanks), out);
        append_some_text(c.encode_utf8(&mut [0; 4]), out);
        self.has_text = true;
    }

    /// Reads the text after a trigger. Returns false if more text is needed.
    fn advance_call(&mut self, end: TextEnd, out: &mut Vec<Delta>) -> bool {
        let ReaderState::Call { body, trigger_bytes } = &mut self.state else { return true };
        let start = self.read_bytes + *trigger_bytes;
        let text = from(&self.buffer, start);
        let (is_end, is_cut) = (end != TextEnd::Open, end == TextEnd::Cut);
        let step = body.step(BodyText { text, is_end, is_cut, tools: &self.tools });
        let bytes = match step {
            ReadStep::More => return false,
            ReadStep::NotACall => {
                if let CallBody::Object(object) = body {
                    self.searched_bytes = start + object.examined_bytes(text);
                }
                let rest = from(&self.buffer, self.read_bytes);
                let first = rest.chars().next().map_or(0, char::len_utf8);
                let trigger = up_to(rest, first.max(*trigger_bytes)).to_owned();
                self.read_bytes += trigger.len();
                self.state = ReaderState::Text;
                trigger.chars().for_each(|c| self.add_text(c, out));
                return true;
            }
            ReadStep::Skip(bytes) => bytes,
            ReadStep::Calls { calls, bytes, are_sealed } => {
                for call in calls {
                    self.emit_call(call, out);
                }
                if are_sealed {
                    self.seal(out);
                }
                bytes
            }
            ReadStep::Seal { bytes, is_over } => {
                self.seal(out);
                if is_over {
                    self.end_call();
                }
                bytes
            }
            ReadStep::Over(bytes) => {
                self.end_call();
                bytes
            }
        };
        if let ReaderState::Call { trigger_bytes, .. } = &mut self.state {
            *trigger_bytes = 0;
        }
        self.read_bytes = start + bytes;
        true
    }

    fn end_call(&mut self) {
        self.state = ReaderState::Text;
        self.unsealed = self.unsealed.end..self.unsealed.end;
        self.context.after_call();
        self.blanks.clear();
        // White space after a call is text only if text follows.
        self.has_text = false;
    }

    fn emit_call(&mut self, call: ReadCall, out: &mut Vec<Delta>) {
        let ReadCall { name, arguments, is_repaired } = call;
        let is_surplus = self.protocol == ToolProtocol::Arrow && self.calls > 0;
        if is_surplus {
            let detail = format!("{ARROW}{} {arguments}", name.as_deref().unwrap_or_default());
            let detail = excerpt(&detail, 200);
            out.push(Delta::Problem(Problem { code: "second_call", detail }));
        }
        out.push(Delta::Call(CallDelta {
            index: Some(self.unsealed.end),
            name: name.filter(|name| !name.is_empty()),
            arguments: Some(arguments),
            is_marked_start: true,
            is_repaired,
            is_surplus,
            ..CallDelta::default()
        }));
        self.calls += 1;
        self.unsealed.end += 1;
    }

    fn seal(&mut self, out: &mut Vec<Delta>) {
        let sealed = std::mem::replace(&mut self.unsealed, 0..0);
        self.unsealed = sealed.end..sealed.end;
        out.extend(sealed.map(|index| Delta::Seal { index, arguments: None }));
    }
}

fn append_some_text(text: &str, out: &mut Vec<Delta>) {
    if !text.is_empty() {
        append_text(Delta::Text, text, out);
    }
}
