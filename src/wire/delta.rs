//! The deltas: the smallest normalised changes that a payload decodes to.

use serde::Serialize;

use callsheet_values::types::{FinishReason, ProviderError, Usage};

/// One normalised change of a response. A model source of the program creates deltas, and a
/// `ModelClient` returns them.
///
/// ```
/// use callsheet::model::{CallDelta, Delta, FinishKind, FinishReason, ModelStream, Usage};
/// use futures::{StreamExt as _, stream};
///
/// fn answer_in_pieces() -> ModelStream {
///     let call = CallDelta::default().with(|call| {
///         (call.index, call.name) = (Some(0), Some("clock".to_owned()));
///         call.arguments = Some("{}".to_owned());
///     });
///     let counts = Usage::default().with(|usage| usage.output_tokens = 9);
///     let deltas = [
///         Delta::Text("I look at ".to_owned()),
///         Delta::Text("the clock.".to_owned()),
///         Delta::Call(call),
///         Delta::Usage { usage: counts, raw: "{}".into() },
///         Delta::Finish(FinishReason::new(FinishKind::ToolCalls, "tool_calls")),
///         Delta::Done,
///     ];
///     stream::iter(deltas).map(|delta| Ok(vec![delta])).boxed()
/// }
/// # let _ = answer_in_pieces();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Delta {
    /// More of the answer's text.
    Text(String),
    /// More of the model's reasoning.
    Reasoning(String),
    /// More of a refusal.
    Refusal(String),
    /// More of a tool call.
    Call(CallDelta),
    /// The arguments of this call are complete: the wire marks it, or sent the call whole. Chat Completions does
    /// neither, so the seals of its calls are inferred.
    Seal {
        /// The [`CallDelta::index`] of the call.
        index: u64,
        /// The complete arguments, if the wire sends them with the seal. They replace the
        /// arguments that came in pieces.
        arguments: Option<String>,
    },
    /// Data that the service wants back with the next request.
    Metadata(ProviderMetadata),
    /// The reason why the response ended. The last one counts.
    Finish(FinishReason),
    /// Token counts. The last ones count.
    Usage {
        /// The counts under our names.
        usage: Usage,
        /// The counts as the wire sent them: JSON text.
        raw: Box<str>,
    },
    /// An error that the service reports within the response, or a payload that cannot be read.
    Error(ProviderError),
    /// Something unexpected that was ignored.
    Problem(Problem),
    /// The wire's own mark that the response is over, such as `[DONE]`, or the end of a plain body.
    Done,
}

/// Data other than text and calls that a service wants back unchanged with the next request.
///
/// Members are the text of one JSON object. Only the dialect that wrote them reads them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProviderMetadata {
    /// Ends the text before it, to which these members belong.
    Text {
        /// `None` if only the end of the text matters.
        members: Option<Box<str>>,
    },
    /// Ends the reasoning before it, to which these members belong.
    Reasoning {
        /// `None` if only the end of the reasoning matters.
        members: Option<Box<str>>,
    },
    /// Ends the reasoning before it, which stood in tags in the text. With the reasoning between them, the tags are
    /// the text as it came.
    ReasoningTags {
        /// The opening tag with the white space around it. Empty if the prompt had it.
        open: Box<str>,
        /// The closing tag with the white space around it. Empty if it is missing.
        close: Box<str>,
    },
    /// These members belong to a call.
    Call {
        /// The [`CallDelta::index`] of the call.
        index: u64,
        /// Never an empty object.
        members: Box<str>,
    },
    /// These members belong to the newest call, because the wire sent no index.
    LastCall {
        /// Never an empty object.
        members: Box<str>,
    },
    /// A part of the service's own at this position: JSON text.
    RawPart(Box<str>),
}

/// A piece of a tool call as the wire sent it. The assembler of the response infers what the wire leaves open.
///
/// [`Delta`] shows its use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallDelta {
    /// The wire's index, if it sent a usable one. Where the wire has none, a decoder may count the calls.
    pub index: Option<u64>,
    /// The provider's id, if it sent one that is not empty.
    pub id: Option<String>,
    /// The tool's name, if it sent one that is not empty.
    pub name: Option<String>,
    /// More of the arguments' text. `None` and `Some("")` both add nothing.
    pub arguments: Option<String>,
    /// The kind of the call. Every piece of a call that the service runs has it.
    pub kind: CallKind,
    /// The wire itself marks the beginning of a call here, and will mark the end of its arguments
    /// with [`Delta::Seal`]. Without this mark both are inferred.
    pub is_marked_start: bool,
    /// The model did not write the arguments in the required form, and they were repaired.
    pub is_repaired: bool,
    /// The protocol allows no such call. It is dropped, and counted.
    pub is_surplus: bool,
}

callsheet_values::impl_with!(CallDelta);

impl CallDelta {
    /// Returns whether the piece holds arguments other than white space.
    #[must_use]
    pub fn has_arguments(&self) -> bool {
        self.arguments.as_deref().is_some_and(|text| !text.trim_ascii().is_empty())
    }

    /// Returns whether the piece has neither an id, nor a name, nor arguments other than white space.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.id.is_none() && self.name.is_none() && !self.has_arguments()
    }
}

/// The kind of a call in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// A function call that we run.
    #[default]
    Function,
    /// A call whose input is free text, made for a tool of kind `custom`.
    Custom,
    /// A call that the service runs itself. It is published, but the host does not run it.
    ServerToolUse,
}

/// Something unexpected in a response that could be ignored.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Problem {
    /// A stable code.
    pub code: &'static str,
    /// A description that quotes at most 200 characters of the response.
    pub detail: String,
}

/// Minimum spare capacity that is reserved when an appended piece does not fit into the capacity of a text.
const MERGED_BYTES_MIN: usize = 128;

/// Appends a text to `out`. If the last delta is a text of the same kind, the text is added to it.
pub(super) fn append_text(kind: impl Fn(String) -> Delta, text: &str, out: &mut Vec<Delta>) {
    match (kind(String::new()), out.last_mut()) {
        (Delta::Text(_), Some(Delta::Text(last)))
        | (Delta::Reasoning(_), Some(Delta::Reasoning(last)))
        | (Delta::Refusal(_), Some(Delta::Refusal(last))) => extend(last, text),
        _ => out.push(kind(text.to_owned())),
    }
}

/// Appends a piece of a call with more arguments to `out`. If the last delta is a piece of the
/// same call, and neither has an id or a name, the arguments are added to it.
pub(super) fn append_call(call: CallDelta, arguments: Option<&str>, out: &mut Vec<Delta>) {
    if let (Some(Delta::Call(last)), Some(arguments)) = (out.last_mut(), arguments) {
        let CallDelta {
            index,
            id,
            name,
            arguments: last_arguments,
            kind,
            is_marked_start,
            is_repaired: _,
            is_surplus: _,
        } = last;
        let is_same = (*index, *kind, *is_marked_start)
            == (call.index, call.kind, call.is_marked_start)
            && [id, name].iter().all(|text| text.is_none())
            && [&call.id, &call.name].iter().all(|text| text.is_none());
        if let Some(last_arguments) = last_arguments.as_mut().filter(|_| is_same) {
            return extend(last_arguments, arguments);
        }
    }
    out.push(Delta::Call(CallDelta { arguments: arguments.map(str::to_owned), ..call }));
}

/// Appends to a text. After two pieces of a text more of them usually follow, so spare capacity is reserved.
fn extend(text: &mut String, more: &str) {
    if text.capacity() - text.len() < more.len() {
        text.reserve(more.len().max(MERGED_BYTES_MIN));
    }
    text.push_str(more);
}
