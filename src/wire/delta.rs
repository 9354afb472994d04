//! The smallest normalised changes that a provider's payload decodes to.

use serde::Serialize;

use crate::types::{FinishReason, ProviderError, Usage};

/// One normalised change of a response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Delta {
    /// A piece of the answer's text.
    Text(String),
    /// A piece of the model's thinking.
    Reasoning(String),
    /// A piece of a refusal.
    Refusal(String),
    /// A piece of a tool call.
    Call(CallDelta),
    /// The wire says that this call's arguments are whole (wires with explicit seals).
    Seal {
        /// The wire's own index of the call.
        index: u64,
        /// The whole arguments, where the wire says them once more (or only now): they stand
        /// instead of what came in pieces.
        arguments: Option<String>,
    },
    /// Something that the service wants back with the next request.
    Metadata(ProviderMetadata),
    /// Why the response ended; the last one stands.
    Finish(FinishReason),
    /// Token counts; the last ones stand.
    Usage {
        /// As we count.
        usage: Usage,
        /// As the wire said it: JSON text.
        raw: Box<str>,
    },
    /// The service reports an error within the response.
    Error(ProviderError),
    /// Something was odd and was passed over.
    Problem(Problem),
    /// The wire's own sign that the response is over (`[DONE]`, or the end of a plain body).
    Done,
}

/// What a service wants back with the next request, unchanged, beside text and calls.
///
/// Members are the text of one JSON object; only the dialect that wrote them reads them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProviderMetadata {
    /// Ends the text before it, which has these members.
    Text {
        /// None where only the end matters.
        members: Option<Box<str>>,
    },
    /// Ends the reasoning before it, which has these members.
    Reasoning {
        /// None where only the end matters.
        members: Option<Box<str>>,
    },
    /// A call has these members.
    Call {
        /// The wire's own index of the call.
        index: u64,
        /// Never nothing.
        members: Box<str>,
    },
    /// The newest call has these members: where the wire's own index is not there.
    LastCall {
        /// Never nothing.
        members: Box<str>,
    },
    /// A part of the service's own, at this place: JSON text.
    Part(Box<str>),
}

/// A piece of a tool call, as the wire said it: nothing is inferred here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallDelta {
    /// The wire's index, if it sent a usable one.
    pub index: Option<u64>,
    /// The provider's id, if it sent one that is not empty.
    pub id: Option<String>,
    /// The tool's name, if it sent one that is not empty.
    pub name: Option<String>,
    /// More of the arguments' text; `None` and `Some("")` both add nothing.
    pub arguments: Option<String>,
    /// What kind of call it is; every piece of a call that the service runs says so.
    pub kind: CallKind,
    /// The wire itself says that a call begins here, and will say by [`Delta::Seal`] where its
    /// arguments end. Otherwise both are inferred.
    pub begins: bool,
}

impl CallDelta {
    /// Whether the piece holds more of the arguments than blanks.
    #[must_use]
    pub fn has_arguments(&self) -> bool {
        self.arguments.as_deref().is_some_and(|text| !text.trim_ascii().is_empty())
    }

    /// Whether the piece holds nothing at all, apart perhaps from an index.
    #[must_use]
    pub fn says_nothing(&self) -> bool {
        self.id.is_none() && self.name.is_none() && !self.has_arguments()
    }
}

/// What kind of call a response holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// A function call that we run.
    #[default]
    Function,
    /// A call whose input is free text, which its service made for a tool of kind `custom`.
    Custom,
    /// A call that the service runs itself: shown, and never run by us.
    ServerToolUse,
}

/// Something odd in a response that did not stop us from reading it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Problem {
    /// A stable word.
    pub code: &'static str,
    /// What was seen; at most 200 characters are quoted.
    pub detail: String,
}
