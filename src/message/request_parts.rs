//! A model's message piece by piece, as its own service wants it back, or as any other takes it.

use super::ResponseMessage;
use crate::types::{MessagePart, ModelOrigin, ToolCall};

/// One piece of a model's message. `members` and `Raw` are JSON text that the asked wire's dialect
/// wrote itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RequestPart<'a> {
    /// Text.
    Text {
        /// Not empty, unless there are members.
        text: &'a str,
        /// What belongs to it.
        members: Option<&'a str>,
    },
    /// Thinking: only given back to the model that thought it.
    Reasoning {
        /// May be empty.
        text: &'a str,
        /// What belongs to it.
        members: Option<&'a str>,
    },
    /// A call.
    Call {
        /// The call.
        call: &'a ToolCall,
        /// What belongs to it.
        members: Option<&'a str>,
    },
    /// A part of the service's own.
    Raw(&'a str),
}

impl ResponseMessage {
    /// Whether it came from this model.
    #[must_use]
    pub fn is_from(&self, asked: &ModelOrigin) -> bool {
        self.origin.as_deref() == Some(asked)
    }

    /// The message for a model that is asked.
    ///
    /// For the model that it came from, its parts in the order in which they came, with all that
    /// belongs to them. For any other its text and its calls.
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
                        // It did not stay in the history.
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

/// The next bytes of a text; the rest of it where there are not so many.
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
    fn its_own_model_gets_every_part_in_order_and_what_no_part_tells_of_last() {
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
    fn another_model_gets_text_and_calls() {
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
