//! The parts of a model's message in the form in which they go into a request.

use std::borrow::Cow;

use super::ResponseMessage;
use crate::types::{MessagePart, ModelOrigin, ToolCall};

/// One part of a model's message in a request. `members` and `Raw` are JSON text that the dialect of
/// the request's wire wrote itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RequestPart<'a> {
    /// Text.
    Text {
        /// The text. It is empty only if there are members.
        text: &'a str,
        /// JSON members that are sent back with it.
        members: Option<&'a str>,
    },
    /// Reasoning. It is sent back only to the model that wrote it.
    Reasoning {
        /// The text, which may be empty.
        text: &'a str,
        /// JSON members that are sent back with it.
        members: Option<&'a str>,
    },
    /// A call.
    Call {
        /// The call.
        call: &'a ToolCall,
        /// JSON members that are sent back with it.
        members: Option<&'a str>,
    },
    /// A part that only the service understands.
    Raw(&'a str),
}

impl ResponseMessage {
    /// Returns whether this model wrote the message.
    #[must_use]
    pub fn is_from(&self, model: &ModelOrigin) -> bool {
        self.origin.as_deref() == Some(model)
    }

    /// Returns the message for a request to a model. If the model wrote it with reasoning in tags, that is in the text
    /// again, as it came: the template of the model removes it where the model wants it removed. Reasoning without an
    /// answer, or whose closing tag is missing, is left out.
    #[must_use]
    pub fn with_tagged_reasoning(&self, model: &ModelOrigin, is_sent: bool) -> Cow<'_, Self> {
        let is_tagged = |part: &MessagePart| matches!(part, MessagePart::TaggedReasoning { .. });
        let is_empty = self.text.is_empty() && self.calls.is_empty();
        if is_empty || !self.parts.iter().any(is_tagged) || !self.is_from(model) {
            return Cow::Borrowed(self);
        }
        let (mut text, mut reasoning) = (self.text.as_str(), self.reasoning.as_str());
        let (mut new_text, mut new_reasoning) = (String::new(), String::new());
        let mut parts: Vec<MessagePart> = Vec::with_capacity(self.parts.len());
        let mut is_behind_tag = false;
        for part in &self.parts {
            let before = new_text.len();
            let was_behind_tag = std::mem::replace(&mut is_behind_tag, is_tagged(part));
            let members = match part {
                MessagePart::TaggedReasoning { bytes, open, close } => {
                    let tagged = split_off(&mut reasoning, *bytes);
                    if is_sent && !close.is_empty() {
                        new_text.extend([&**open, tagged, &**close]);
                    }
                    &None
                }
                MessagePart::Text { bytes, members } => {
                    new_text.push_str(split_off(&mut text, *bytes));
                    members
                }
                MessagePart::Reasoning { bytes, .. } => {
                    new_reasoning.push_str(split_off(&mut reasoning, *bytes));
                    parts.push(part.clone());
                    continue;
                }
                MessagePart::Call { .. } | MessagePart::Raw { .. } => {
                    parts.push(part.clone());
                    continue;
                }
            };
            let more = new_text.len() - before;
            match parts.last_mut() {
                _ if more == 0 && members.is_none() => {}
                // The tagged text and the text behind it came as one.
                Some(MessagePart::Text { bytes, members: last @ None })
                    if members.is_none() || was_behind_tag =>
                {
                    *bytes += more;
                    last.clone_from(members);
                }
                Some(_) | None => {
                    parts.push(MessagePart::Text { bytes: more, members: members.clone() });
                }
            }
        }
        new_text.push_str(text);
        new_reasoning.push_str(reasoning);
        Cow::Owned(Self {
            text: new_text,
            reasoning: new_reasoning,
            calls: self.calls.clone(),
            origin: self.origin.clone(),
            parts,
            hint_bytes: self.hint_bytes,
        })
    }

    /// Returns the parts of the message for a request to a model.
    ///
    /// The model that wrote the message gets all parts in order, with their members, and then the text and the calls
    /// that no part names. Any other model gets text and calls.
    #[must_use]
    pub fn request_parts(&self, model: &ModelOrigin) -> Vec<RequestPart<'_>> {
        self.parts_for(self.is_from(model))
    }

    /// Returns whether a message has the reasoning of a model: the model wrote it, or it is one of the messages with
    /// which the session was opened and the model is the session's own, not a fallback.
    pub fn has_reasoning_of(&self, model: &ModelOrigin, is_fallback: bool) -> bool {
        self.is_from(model) || (self.origin.is_none() && !is_fallback)
    }

    /// Returns the parts of the message for its author (`is_author`), or for any other model.
    pub fn parts_for(&self, is_author: bool) -> Vec<RequestPart<'_>> {
        let mut parts = Vec::with_capacity(self.parts.len().max(1 + self.calls.len()));
        let (mut text, mut reasoning) = (self.text.as_str(), self.reasoning.as_str());
        let mut next_call = 0;
        for part in self.parts.iter().filter(|_| is_author) {
            let request_part = match part {
                MessagePart::Text { bytes, members } => RequestPart::Text {
                    text: split_off(&mut text, *bytes),
                    members: members.as_deref(),
                },
                MessagePart::Reasoning { bytes, members } => {
                    let text = split_off(&mut reasoning, *bytes);
                    RequestPart::Reasoning { text, members: members.as_deref() }
                }
                MessagePart::TaggedReasoning { bytes, .. } => {
                    let text = split_off(&mut reasoning, *bytes);
                    RequestPart::Reasoning { text, members: None }
                }
                MessagePart::Call { index, members } => {
                    let calls = self.calls.get(next_call..).unwrap_or_default();
                    let Some(call) = calls.first().filter(|call| call.key.index == *index) else {
                        // The call was removed from the history.
                        continue;
                    };
                    next_call += 1;
                    RequestPart::Call { call, members: members.as_deref() }
                }
                MessagePart::Raw { json } => RequestPart::Raw(json),
            };
            parts.push(request_part);
        }
        if !text.is_empty() {
            parts.push(RequestPart::Text { text, members: None });
        }
        let rest = self.calls.get(next_call..).unwrap_or_default();
        parts.extend(rest.iter().map(|call| RequestPart::Call { call, members: None }));
        parts
    }
}

/// Splits the next bytes off a text, or all of it if it is shorter or has no character boundary there.
fn split_off<'a>(text: &mut &'a str, bytes: usize) -> &'a str {
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
            indirect: false,
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
            hint_bytes: None,
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
    fn the_model_that_wrote_it_gets_all_parts_in_order_and_the_remaining_text_and_calls_last() {
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
