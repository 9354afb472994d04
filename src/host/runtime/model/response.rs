//! The whole response of a model, for users of the client without a host.

use std::sync::Arc;

use serde_json::{Value, json};

use callsheet_values::message::ResponseMessage;
use callsheet_values::types::{
    CallKey, FinishReason, MessagePart, ModelOrigin, ProviderError, ToolCall, Usage,
};
use callsheet_wire::response::{
    ExchangeEnd, PartialCall, ResponseAssembler, ResponseLimits, classify_ending, parse_arguments,
};
use callsheet_wire::{Delta, ModelRequest, ToolDefinition, Wire, original_properties, renamed};

/// A whole response of a model.
///
/// Returned by [`ModelClient::complete`](crate::runtime::model::ModelClient::complete).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelResponse {
    /// The text of the response.
    pub text: String,
    /// The reasoning of the model.
    pub reasoning: String,
    /// The text of a refusal.
    pub refusal: String,
    /// The reason for the end of the response.
    pub finish_reason: Option<FinishReason>,
    /// The token usage.
    pub usage: Usage,
    calls: Vec<RequestedCall>,
    service_calls: Vec<RequestedCall>,
    origin: Option<Arc<ModelOrigin>>,
    parts: Vec<MessagePart>,
    /// True if the request had `parallel_tool_calls: Some(false)`.
    one_call: bool,
}

impl ModelResponse {
    /// Returns the tool calls to run, in the model's order. If the request had
    /// `parallel_tool_calls: Some(false)`, returns only the first call, even if the service sent
    /// more. In a response that was cut off (`FinishKind::Length`), the last one may be incomplete.
    #[must_use]
    pub fn tool_calls(&self) -> &[RequestedCall] {
        if self.one_call { self.calls.get(..1).unwrap_or_default() } else { &self.calls }
    }

    /// Returns all tool calls of the response, in the model's order.
    #[must_use]
    pub fn all_tool_calls(&self) -> &[RequestedCall] {
        &self.calls
    }

    /// Returns the first tool call.
    #[must_use]
    pub fn first_tool_call(&self) -> Option<&RequestedCall> {
        self.calls.first()
    }

    /// Returns the calls that the service runs itself, in the order of arrival. The caller must not
    /// run them.
    #[must_use]
    pub fn service_calls(&self) -> &[RequestedCall] {
        &self.service_calls
    }

    /// Returns the response as a message for the next request. It holds the tool calls to run, and
    /// the data that the service wants back with them. A call without an id from the provider gets
    /// the id `call_{turn}_{index}`, so each response of a conversation needs a `turn` of its own.
    #[must_use]
    pub fn message(&self, turn: u32) -> ResponseMessage {
        let calls = self.tool_calls().iter().zip(0..).map(|(call, index)| ToolCall {
            key: CallKey { turn, attempt: 1, index },
            id: call.id.clone().unwrap_or_else(|| format!("call_{turn}_{index}")).into(),
            provider_id: call.id.as_deref().map(Arc::from),
            name: call.name.as_str().into(),
            arguments: Arc::new(call.arguments.clone().unwrap_or_else(|| json!({}))),
            raw: call.arguments.is_none().then(|| call.arguments_raw.clone()),
            indirect: false,
        });
        let mut message = ResponseMessage {
            text: format!("{}{}", self.text, self.refusal),
            reasoning: self.reasoning.clone(),
            calls: calls.collect(),
            origin: self.origin.clone(),
            parts: self.parts.clone(),
            hint_bytes: None,
        };
        message.drop_parts_without_calls();
        message
    }
}

/// A tool call that a model requests.
///
/// Returned by [`ModelClient::complete`](crate::runtime::model::ModelClient::complete), in [`ModelResponse::tool_calls`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestedCall {
    /// The provider's id.
    pub id: Option<String>,
    /// The tool's name.
    pub name: String,
    /// The parsed arguments, or `None` if they are not a JSON object.
    pub arguments: Option<Value>,
    /// The arguments as received.
    pub arguments_raw: String,
}

impl RequestedCall {
    /// Returns a call of one of the tools of the request. Its properties have their names, not their aliases.
    fn new(call: &PartialCall, tools: &[ToolDefinition]) -> Self {
        let arguments = parse_arguments(&call.raw).object().cloned();
        let tool = tools.iter().find(|tool| tool.name == *call.name);
        let named = arguments
            .as_ref()
            .zip(tool)
            .and_then(|(arguments, tool)| renamed(arguments, &original_properties(&tool.schema)));
        Self {
            id: call.provider_id.as_deref().map(str::to_owned),
            name: call.name.to_string(),
            arguments: named.or(arguments),
            arguments_raw: call.raw.clone(),
        }
    }
}

/// Collects the deltas of an exchange into a [`ModelResponse`].
#[derive(Debug)]
pub(super) struct Collector {
    assembler: ResponseAssembler,
    origin: ModelOrigin,
    tools: Arc<[ToolDefinition]>,
    one_call: bool,
}

impl Collector {
    pub(super) fn new(wire: Wire, request: &ModelRequest) -> Self {
        Self {
            assembler: ResponseAssembler::new(ResponseLimits::default()),
            origin: ModelOrigin { wire, model: request.model.clone() },
            tools: Arc::clone(&request.tools),
            one_call: request.parallel_tool_calls == Some(false),
        }
    }

    pub(super) fn push(&mut self, batch: Vec<Delta>) -> Result<(), ProviderError> {
        for delta in batch {
            self.assembler.push(&delta);
            if let Some(error) = self.assembler.fatal_error() {
                return Err(error.clone());
            }
        }
        Ok(())
    }

    /// Returns the response, if a turn would accept it too.
    pub(super) fn finish(mut self, end: ExchangeEnd) -> Result<ModelResponse, ProviderError> {
        self.assembler.seal_all();
        let response = &self.assembler;
        classify_ending(response, end)?;
        let requested = |call: &PartialCall| RequestedCall::new(call, &self.tools);
        Ok(ModelResponse {
            text: response.text().to_owned(),
            reasoning: response.reasoning().to_owned(),
            refusal: response.refusal().to_owned(),
            calls: response.calls().iter().filter(|call| !call.is_surplus).map(requested).collect(),
            service_calls: response.service_calls().iter().map(requested).collect(),
            origin: Some(Arc::new(self.origin)),
            parts: response.parts().to_vec(),
            one_call: self.one_call,
            finish_reason: response.finish_reason().cloned(),
            usage: response.usage(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_values::message::RequestPart;
    use callsheet_values::types::{FinishKind, ProviderErrorKind};
    use callsheet_wire::{CallDelta, CallKind, ProviderMetadata};

    fn call(index: u64, id: Option<&str>, name: &str, kind: CallKind) -> Delta {
        Delta::Call(CallDelta {
            index: Some(index),
            id: id.map(str::to_owned),
            name: Some(name.to_owned()),
            arguments: Some("{\"n\":1}".to_owned()),
            kind,
            is_marked_start: true,
            is_repaired: false,
            is_surplus: false,
        })
    }

    fn response(request: &ModelRequest) -> ModelResponse {
        let mut collector = Collector::new(Wire::OpenaiChat, request);
        let reason = FinishReason::new(FinishKind::ToolCalls, "tool_calls");
        let deltas = vec![
            Delta::Reasoning("hm".into()),
            Delta::Metadata(ProviderMetadata::Reasoning { members: Some("{\"s\":1}".into()) }),
            call(0, Some("srv"), "web_search", CallKind::ServerToolUse),
            Delta::Metadata(ProviderMetadata::RawPart("{\"own\":1}".into())),
            call(1, None, "clock", CallKind::Function),
            call(2, Some("b"), "clock", CallKind::Function),
            Delta::Finish(reason),
        ];
        collector.push(deltas).unwrap();
        collector.finish(ExchangeEnd::Closed).unwrap()
    }

    fn kinds(message: &ResponseMessage, model: &str) -> Vec<String> {
        let origin = ModelOrigin { wire: Wire::OpenaiChat, model: model.to_owned() };
        let pieces = message.request_parts(&origin).into_iter().map(|piece| match piece {
            RequestPart::Text { text, .. } => format!("text {text}"),
            RequestPart::Reasoning { text, .. } => format!("reasoning {text}"),
            RequestPart::Call { call, .. } => format!("call {}", call.id),
            RequestPart::Raw(json) => format!("raw {json}"),
        });
        pieces.collect()
    }

    #[test]
    fn a_response_is_sent_back_to_its_model_unchanged() {
        let response = response(&ModelRequest::new("m", [].into()));
        let names: Vec<_> = response.service_calls().iter().map(|c| c.name.as_str()).collect();
        assert_eq!((names, response.tool_calls().len()), (vec!["web_search"], 2));
        let message = response.message(3);
        let whole = ["reasoning hm", "raw {\"own\":1}", "call call_3_0", "call b"];
        assert_eq!(kinds(&message, "m"), whole);
        assert_eq!(kinds(&message, "another"), ["call call_3_0", "call b"]);
    }

    #[test]
    fn a_response_is_accepted_by_the_rules_of_a_turn() {
        let text = || Delta::Text("a".into());
        let finish = |kind| Delta::Finish(FinishReason::new(kind, "raw"));
        let whole = || call(0, None, "clock", CallKind::Function);
        let cut_off = || {
            Delta::Call(CallDelta {
                index: Some(0),
                id: None,
                name: Some("clock".to_owned()),
                arguments: Some("{\"n\":".to_owned()),
                kind: CallKind::Function,
                is_marked_start: true,
                is_repaired: false,
                is_surplus: false,
            })
        };
        let reset = || ProviderError::new(ProviderErrorKind::Transport, "connection reset");
        let broken = || ExchangeEnd::Failed(reset());
        for (deltas, end, error) in [
            (vec![text(), finish(FinishKind::Stop)], ExchangeEnd::Closed, None),
            (vec![text(), finish(FinishKind::Length)], ExchangeEnd::Closed, None),
            (vec![text(), finish(FinishKind::Stop)], broken(), None),
            (vec![whole(), Delta::Done], ExchangeEnd::Closed, None),
            (vec![text()], broken(), Some("connection reset")),
            (vec![text()], ExchangeEnd::Closed, Some("the response ended without a finish reason")),
            (
                vec![cut_off(), Delta::Done],
                ExchangeEnd::Closed,
                Some("the response ended without a finish reason"),
            ),
            (vec![Delta::Done], ExchangeEnd::Closed, Some("the response was empty")),
            (
                vec![text(), finish(FinishKind::Error)],
                ExchangeEnd::Closed,
                Some("the service ended the response with an error"),
            ),
        ] {
            let request = ModelRequest::new("m", [].into());
            let mut collector = Collector::new(Wire::OpenaiChat, &request);
            collector.push(deltas.clone()).unwrap();
            let found = collector.finish(end).err().map(|error| error.message);
            assert_eq!(found.as_deref(), error, "{deltas:?}");
        }
    }

    #[test]
    fn calls_beyond_the_first_are_not_sent_back() {
        let request =
            ModelRequest { parallel_tool_calls: Some(false), ..ModelRequest::new("m", [].into()) };
        let message = response(&request).message(1);
        assert_eq!(kinds(&message, "m"), ["reasoning hm", "raw {\"own\":1}", "call call_1_0"]);
    }
}
