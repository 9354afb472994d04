//! Calls of ReAct agents: a line `Action: NAME`, and `Action Input:` with a JSON object, which may be fenced, or
//! with a bare text. The input may be missing.

use serde_json::{Map, Value};

use super::bracket_scan::{BracketScan, ScanEnd};
use super::read_call::{BodyText, ReadCall, ReadStep, from, read_arguments, up_to};

pub(super) const OBSERVATION: &str = "Observation:";
const FENCE: &str = "```";

/// Reads the text after `Action Input:`, or after `Action: NAME` if there is no input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReactBody {
    name: String,
    state: ReactState,
    is_fenced: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ReactState {
    /// Before the arguments.
    Input,
    Json(BracketScan),
    /// After the arguments.
    After,
}

impl ReactBody {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), state: ReactState::Input, is_fenced: false }
    }

    pub(super) fn step(&mut self, body: BodyText<'_>) -> ReadStep {
        match &mut self.state {
            ReactState::Input => self.step_input(body),
            ReactState::Json(scan) => {
                let (bytes, is_cut, are_sealed) = match scan.scan(body.text, &[OBSERVATION]) {
                    ScanEnd::Closed(bytes) => (bytes, false, true),
                    ScanEnd::Stopped(bytes) => (bytes, true, true),
                    ScanEnd::Open if !body.is_end => return ReadStep::More,
                    ScanEnd::Open => (body.text.len(), false, false),
                };
                let call = read_arguments(&self.name, up_to(body.text, bytes).trim(), is_cut);
                self.state = ReactState::After;
                ReadStep::call(call, bytes, are_sealed)
            }
            ReactState::After if !self.is_fenced => ReadStep::Over(0),
            ReactState::After => {
                let (text, blanks) = body.trimmed();
                match text.starts_with(FENCE) {
                    true => ReadStep::Over(blanks + FENCE.len()),
                    false => body.wait_for(&[FENCE]).unwrap_or(ReadStep::Over(0)),
                }
            }
        }
    }

    fn step_input(&mut self, body: BodyText<'_>) -> ReadStep {
        let (text, blanks) = body.trimmed();
        if text.starts_with('{') {
            self.state = ReactState::Json(BracketScan::new(0));
            return ReadStep::Skip(blanks);
        }
        let is_empty_fence = self.is_fenced && text.starts_with(FENCE);
        if is_empty_fence || text.starts_with(OBSERVATION) || (text.is_empty() && body.is_end) {
            self.state = ReactState::After;
            let is_sealed = !text.is_empty();
            return ReadStep::call(ReadCall::new(&*self.name, Map::new()), blanks, is_sealed);
        }
        if !body.is_end && [OBSERVATION, FENCE].iter().any(|word| word.starts_with(text)) {
            return ReadStep::More;
        }
        let (end, is_sealed) = match text.find('\n') {
            Some(end) => (end, true),
            None if body.is_end => (text.len(), false),
            None => return ReadStep::More,
        };
        if !self.is_fenced && text.starts_with(FENCE) {
            self.is_fenced = true;
            // The object may begin on the line of the fence.
            let bytes = up_to(text, end).find('{').unwrap_or(end);
            return ReadStep::Skip(blanks + bytes);
        }
        self.state = ReactState::After;
        ReadStep::call(self.bare_input(up_to(text, end), body), blanks + end, is_sealed)
    }

    /// Makes the call of an input that is not an object. An input such as `None` means no arguments. If the tool has
    /// exactly one parameter, any other input is its value. Otherwise the input becomes the arguments as it is.
    fn bare_input(&self, input: &str, body: BodyText<'_>) -> ReadCall {
        let input = input.trim();
        if matches!(input, "None" | "null" | "" | "\"\"") {
            return ReadCall::new(&*self.name, Map::new());
        }
        let tool = body.tools.iter().find(|tool| tool.name == self.name);
        let parameters = tool.and_then(|tool| tool.schema.get("properties")?.as_object());
        let (name, is_repaired) = (Some(self.name.clone()), true);
        match parameters.filter(|parameters| parameters.len() == 1).and_then(|p| p.keys().next()) {
            Some(parameter) => {
                let text = input.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
                let schema = tool.map(|tool| &tool.schema);
                let value =
                    super::parameter_type::typed_value(schema, parameter, text.unwrap_or(input));
                let arguments = Value::from_iter([(parameter.clone(), value)]).to_string();
                ReadCall { name, arguments, is_repaired }
            }
            None => ReadCall { name, arguments: input.to_owned(), is_repaired: false },
        }
    }
}

/// Returns the length of the label at the beginning of a text: a word and a colon, such as `Action:`, which may be
/// bold. Returns `Err` if the text is too short to decide.
pub(super) fn label(text: &str, word: &str) -> Result<Option<usize>, NeedsMoreText> {
    let forms = [format!("{word}:"), format!("**{word}:**"), format!("**{word}**:")];
    if let Some(form) = forms.iter().find(|form| text.starts_with(form.as_str())) {
        return Ok(Some(form.len()));
    }
    if forms.iter().any(|form| form.starts_with(text)) {
        return Err(NeedsMoreText);
    }
    Ok(None)
}

/// More text is needed for the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeedsMoreText;

/// Returns the name of a tool in a line, without quotes, backticks, asterisks and brackets around it.
pub(super) fn action_name(line: &str) -> &str {
    line.trim().trim_matches(['`', '"', '\'', '*', '[', ']']).trim()
}

/// Returns the text after this many bytes and the white space that follows them.
pub(super) fn after(text: &str, bytes: usize) -> &str {
    from(text, bytes).trim_start()
}
