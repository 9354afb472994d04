//! A whole answer, for those who use the client alone.

use serde_json::Value;

use crate::turn::{Accumulator, AccumulatorLimits, understand};
use crate::types::{FinishReason, ProviderError, ProviderErrorKind, Usage};
use crate::wire::{Delta, ModelRequest};

/// What a model answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Response {
    /// The text.
    pub text: String,
    /// The model's thinking.
    pub reasoning: String,
    /// What it says where it will not answer.
    pub refusal: String,
    /// Why it ended.
    pub finish_reason: Option<FinishReason>,
    /// What it cost.
    pub usage: Usage,
    calls: Vec<RequestedCall>,
    /// Whether the request left the model a single call.
    one_call: bool,
}

impl Response {
    /// The tool calls that count, in the model's order: only the first if the request said
    /// `parallel_tool_calls: Some(false)`, whatever the service made of that.
    #[must_use]
    pub fn tool_calls(&self) -> &[RequestedCall] {
        if self.one_call { self.calls.get(..1).unwrap_or_default() } else { &self.calls }
    }

    /// Every tool call that the response holds, in the model's order.
    #[must_use]
    pub fn all_tool_calls(&self) -> &[RequestedCall] {
        &self.calls
    }

    /// The first tool call, if there is one.
    #[must_use]
    pub fn first_tool_call(&self) -> Option<&RequestedCall> {
        self.calls.first()
    }
}

/// A tool call that a model asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedCall {
    /// The provider's id, if it gave one.
    pub id: Option<String>,
    /// The tool's name.
    pub name: String,
    /// The arguments; none if they are no JSON object.
    pub arguments: Option<Value>,
    /// The arguments as they came.
    pub arguments_raw: String,
}

/// Puts a response together.
#[derive(Debug)]
pub(super) struct Collector {
    accumulator: Accumulator,
    one_call: bool,
}

impl Collector {
    pub(super) fn new(request: &ModelRequest) -> Self {
        Self {
            accumulator: Accumulator::new(AccumulatorLimits::default()),
            one_call: request.parallel_tool_calls == Some(false),
        }
    }

    pub(super) fn push(&mut self, batch: Vec<Delta>) -> Result<(), ProviderError> {
        for delta in batch {
            self.accumulator.push(&delta);
            if let Delta::Error(error) = delta {
                return Err(error);
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Response, ProviderError> {
        self.accumulator.end(true);
        let said = &self.accumulator;
        if said.finish().is_none() && !said.is_done() {
            let message = "the response ended without a finish";
            return Err(ProviderError::new(ProviderErrorKind::Transport, message));
        }
        let calls = said.calls().iter().map(|bucket| RequestedCall {
            id: bucket.provider_id.clone(),
            name: bucket.name.clone(),
            arguments: understand(&bucket.raw).object().cloned(),
            arguments_raw: bucket.raw.clone(),
        });
        Ok(Response {
            text: said.text().to_owned(),
            reasoning: said.reasoning().to_owned(),
            refusal: said.refusal().to_owned(),
            calls: calls.collect(),
            one_call: self.one_call,
            finish_reason: said.finish().cloned(),
            usage: said.usage(),
        })
    }
}
