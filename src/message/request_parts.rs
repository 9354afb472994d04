//! The parts of a model's message for a request: in the form for its own service, or for any other
//! service.

use super::ResponseMessage;
use crate::types::{MessagePart, ModelOrigin, ToolCall};

/// One part of a model's message. `members` and `Raw` are JSON text that the dialect of the
/// requested wire format wrote itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RequestPart<'a> {
    /// Text.
    Text {
        /// Not empty, unless there are members.
        text: &'a str,
        /// The provider data of this part.
        members: Option<&'a str>,
    },
    /// Thinking. Only the model that produced it receives it back.
    Reasoning {
        /// May be empty.
        text: &'a str,
        /// The provider data of this part.
        members: Option<&'a str>,
    },
    /// A call.
    Call {
        /// The call.
        call: &'a ToolCall,
        /// The provider data of this part.
        members: Option<&'a str>,
    },
    /// A part of the service's own.
    Raw(&'a str),
}

impl ResponseMessage {
    /// Whether this model produced it.
    #[must_use]
    pub fn is_from(&self, asked: &ModelOrigin) -> bool {
        self.origin.as_deref() == Some(asked)
    }

    /// Returns the message's parts for a model.
    ///
    /// The model that produced the message receives its parts in order, with their provider data.
    /// Any other model receives text and calls.
    #[must_use]
    pub fn request_parts(&self, asked: &ModelOrigin) -> Vec<RequestPart<'_>> {
        let mut pieces = Vec::with_capacity(self.parts.len().max(1 + self.calls.len()));
        let (mut text, mut reasoning) = (self.text.as_str(), self.reasoning.as_str());
        let mut given = 0;
        for part in self.parts.iter().filter(|_| self.is_from(asked)) {
            let piece = match part {
                MessagePart::Text { bytes, members } => {
                    RequestPart::Text { text: take(&mut text, *bytes), members: members.as_deref() }
                }
                MessagePart::Reasoning { bytes, members } => {
                    let text = take(&mut reasoning, *bytes);
                    RequestPart::Reasoning { text, members: members.as_deref() }
                }
                MessagePart::Call { index, members } => {
                    let calls = self.calls.get(given..).unwrap_or_default();
                    let Some(call) = calls.first().filter(|call| call.key.index == *index) else {
                        // The call is not in the history.
                        continue;
                    };
                    given += 1;
                    RequestPart::Call { call, members: members.as_deref() }
                }
                MessagePart::Raw { json } => RequestPart::Raw(json),
            };
            pieces.push(piece);
        }
        if !text.is_empty() {
            pieces.push(RequestPart::Text { text, members: None });
        }
        let rest = self.calls.get(given..).unwrap_or_default();
        pieces.extend(rest.iter().map(|call| RequestPart::Call { call, members: None }));
        pieces
    }
}

/// Returns the next bytes of a text, or the rest if there are fewer.
fn take<'a>(text: &mut &'a str, bytes: usize) -> &'a str {
    let (head, rest) = text.split_at_checked(bytes).unwrap_or((text, ""));
    *text = rest;
    head
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::types::{CallKey, Wire};

    fn call(index: u32) -> ToolCall {
        ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: format!("c{index}").into(),
            provider_id: None,
            name: "add".into(),
            arguments: json!({}).into(),
            raw: None,
        }
    }

    fn origin(model: &str) -> ModelOrigin {
        ModelOrigin { wire: Wire::OpenaiChat, model: model.into() }
    }

    fn message() -> ResponseMessage {
        ResponseMessage {
            text: "abc no".into(),
            reasoning: "hm".into(),
            calls: vec![call(0), call(2)],
            origin: Some(Arc::new(origin("m"))),
            parts: vec![
                MessagePart::Reasoning { bytes: 2, members: Some("{\"s\":1}".into()) },
                MessagePart::Text { bytes: 3, members: None },
                MessagePart::Call { index: 0, members: Some("{\"t\":2}".into()) },
                MessagePart::Raw { json: "{}".into() },
                MessagePart::Call { index: 1, members: None },
            ],
        }
    }

    #[test]
    fn its_own_model_receives_every_part_in_order_and_the_remaining_data_last() {
        let (message, [first, last]) = (message(), [call(0), call(2)]);
        assert_eq!(
            message.request_parts(&origin("m")),
            [
                RequestPart::Reasoning { text: "hm", members: Some("{\"s\":1}") },
                RequestPart::Text { text: "abc", members: None },
                RequestPart::Call { call: &first, members: Some("{\"t\":2}") },
                RequestPart::Raw("{}"),
                RequestPart::Text { text: " no", members: None },
                RequestPart::Call { call: &last, members: None },
            ]
        );
    }

    #[test]
    fn another_model_receives_text_and_calls() {
        let (message, [first, last]) = (message(), [call(0), call(2)]);
        assert_eq!(
            message.request_parts(&origin("other")),
            [
                RequestPart::Text { text: "abc no", members: None },
                RequestPart::Call { call: &first, members: None },
                RequestPart::Call { call: &last, members: None },
            ]
        );
    }
}
